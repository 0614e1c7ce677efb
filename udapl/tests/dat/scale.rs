//! Large numbers of objects: event queues do not overrun, the number of completion queues is limited, and the device
//! reports errors of endpoints, so that the driver need not search for them.

use udapl::endpoint::EpState;
use udapl::error::{ReturnType, Subtype};
use udapl::wait::Agent;
use udapl::{ConnectionEventKind, DtoCookie, EpEvds, EpHandle, EvdFlags, EvdHandle, Timeout};

use crate::support::{A, B, LONG, NONE, Pair, PairConfig, attributes, refused};

/// Number of EVDs. It is below the 16,384 entries of an instance's completion event queue, and above the 256 entries of
/// the queue for commands.
const MANY: usize = 1100;

/// Creates an EVD of A that is attached to `cno`, and an endpoint whose requests complete on this EVD. Returns both.
fn with_own_evd(pair: &mut Pair, cno: udapl::wait::CnoHandle) -> (EpHandle, EvdHandle) {
    let side = &mut pair.sides[A];
    let evd = side
        .ia
        .evd_create_with_cno(8, Some(cno), EvdFlags::DTO)
        .expect("an EVD");
    let mut attr = attributes(&side.ia);
    attr.max_request_dtos = 4;
    attr.max_recv_dtos = 4;
    let on = (Some(side.recv), Some(evd), Some(side.connect));
    let ep = side.ia.ep_create(
        Some(side.pz),
        EpEvds {
            recv: on.0,
            request: on.1,
            connect: on.2,
        },
        Some(&attr),
    );
    (ep.expect("an endpoint"), evd)
}

#[test]
fn eleven_hundred_armed_evds_of_a_consumer_that_is_busy_overrun_nothing() {
    let mut pair = Pair::unconnected(&PairConfig {
        event_log: false,
        ..PairConfig::default()
    });
    // The EVDs of a CNO with an agent are always armed.
    let agent = Agent::new(|_| {});
    let cno = pair.sides[A].ia.cno_create(Some(agent)).expect("a CNO");
    let target = pair.buffer(B, 64);
    let source = pair.buffer(A, 64);
    let mut eps = Vec::new();
    for _ in 0..MANY {
        let (ep, evd) = with_own_evd(&mut pair, cno);
        let peer = pair.another_ep(B);
        pair.connect_endpoints(ep, peer);
        assert_eq!(pair.state_of(A, ep), EpState::Connected, "{}", eps.len());
        eps.push((ep, evd));
    }
    pair.sides[A].ia.progress();
    // No call polls the queues meanwhile, so each has one unread event.
    for &(ep, _) in &eps {
        let ia = &mut pair.sides[A].ia;
        let (iov, remote) = ([source.all()], target.all_remote());
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(7), &remote, NONE)
            .expect("posted");
    }
    for _ in 0..100 {
        pair.fabric.pass_time();
    }
    pair.assert_no_complaints();
    for (_, evd) in eps {
        let (event, left) = pair.sides[A]
            .ia
            .evd_wait(evd, LONG, 1)
            .expect("a completion");
        assert!(
            matches!(event, udapl::Event::Dto(_)) && left == 0,
            "{event:?}"
        );
    }
    pair.assert_no_complaints();
}

#[test]
fn an_instance_has_no_more_completion_queues_than_events_fit_its_event_queue() {
    let mut pair = Pair::unconnected(&PairConfig {
        event_log: false,
        ..PairConfig::default()
    });
    let ia = &mut pair.sides[A].ia;
    let most = ia.query().ia.max_evds;
    // Two EVDs of the pair already have completion queues.
    let evds: Vec<EvdHandle> = (2..most)
        .map(|_| ia.evd_create(1, EvdFlags::DTO).expect("there is room"))
        .collect();
    let error = refused(
        ia.evd_create(1, EvdFlags::DTO),
        ReturnType::InsufficientResources,
    );
    assert_eq!(error.subtype(), Subtype::ResourceTevd);
    // The null EVDs of an endpoint need a completion queue, too.
    let attr = attributes(ia);
    let side = &mut pair.sides[A];
    let error = refused(
        side.ia.ep_create(Some(side.pz), EpEvds::NONE, Some(&attr)),
        ReturnType::InsufficientResources,
    );
    assert_eq!(error.subtype(), Subtype::ResourceTevd);
    // An EVD that needs no completion queue can still be created.
    side.ia
        .evd_create(1, EvdFlags::SOFTWARE)
        .expect("no completion queue");
    side.ia.evd_free(evds[0]).expect("unused");
    side.ia
        .evd_create(1, EvdFlags::DTO)
        .expect("there is room again");
    pair.assert_no_complaints();
}

/// An endpoint with null EVDs for its DTOs breaks while its consumer sleeps: the device reports the error, and the
/// driver does not search for it.
#[test]
fn an_endpoint_without_evds_for_its_dtos_breaks_while_its_consumer_sleeps() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let side = &mut pair.sides[A];
    let mut attr = attributes(&side.ia);
    attr.max_request_dtos = 4;
    let connect = Some(side.connect);
    let ep = side
        .ia
        .ep_create(
            Some(side.pz),
            EpEvds {
                recv: None,
                request: None,
                connect,
            },
            Some(&attr),
        )
        .expect("an endpoint");
    let peer = pair.another_ep(B);
    pair.connect_endpoints(ep, peer);
    let source = pair.buffer(A, 64);
    let target = pair.buffer(B, 64);
    let mut remote = target.all_remote();
    for _ in 0..100 {
        let ia = &mut pair.sides[A].ia;
        ia.ep_post_rdma_write(ep, &[source.all()], DtoCookie(1), &remote, NONE)
            .expect("there is room again and again");
        ia.progress();
    }
    remote.target_address += 1 << 20;
    let side = &mut pair.sides[A];
    side.ia
        .ep_post_rdma_write(ep, &[source.all()], DtoCookie(2), &remote, NONE)
        .expect("posted");
    let seconds = Timeout::from_micros(900_000);
    let (event, _) = side
        .ia
        .evd_wait(side.connect, seconds, 1)
        .expect("it wakes up for that");
    assert!(
        matches!(event, udapl::Event::Connection(event) if event.ep == ep && event.kind == ConnectionEventKind::Broken),
        "{event:?}"
    );
}
