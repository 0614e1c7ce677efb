//! Full EVDs: refused calls, lost events, broken connections, and the asynchronous event that names the full EVD.

use udapl::adapter::IaConfig;
use udapl::endpoint::{EpChange, EpState};
use udapl::error::{ReturnType, Subtype};
use udapl::event::{AsyncEvent, SoftwareEvent};
use udapl::{
    CompletionFlags, ConnQual, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds, EvdFlags, Event,
};

use crate::support::connecting::EMPTY;
use crate::support::waiting::se;
use crate::support::{A, B, LONG, NONE, Pair, PairConfig, refused};

#[test]
fn software_events_fill_an_evd_to_its_length_and_the_next_is_refused_without_a_trace() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    for qlen in [1, 7, 64] {
        let evd = pair.evd(qlen, EvdFlags::SOFTWARE);
        let room = u64::from(pair.sides[A].ia.evd_query(evd).expect("exists").qlen);
        for round in 0..3 {
            pair.post_se(evd, (0..room).map(|at| at + round));
            for _ in 0..3 {
                let error = refused(
                    pair.sides[A].ia.evd_post_se(evd, SoftwareEvent(777)),
                    ReturnType::QueueFull,
                );
                assert_eq!(error.code(), 0x800e_0000);
            }
            for at in 0..room {
                assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(Some(se(at + round))));
            }
            assert_eq!(pair.sides[A].ia.evd_dequeue(evd), Ok(None));
        }
    }
    let evd = pair.sides[A].ia.async_evd();
    pair.expect_nothing(A, evd);
    // An EVD without the software stream refuses software events.
    let other = pair.evd(4, EvdFlags::DEFAULT);
    let error = refused(
        pair.sides[A].ia.evd_post_se(other, SoftwareEvent(1)),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg1);
}

#[test]
fn a_connection_event_that_does_not_fit_is_lost_and_the_asynchronous_evd_says_where() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(2, EvdFlags::CONNECTION);
    let room = pair.sides[A].ia.evd_query(evd).expect("exists").qlen as usize;
    let eps: Vec<_> = (0..room + 2)
        .map(|_| {
            let side = &mut pair.sides[A];
            side.ia
                .ep_create(Some(side.pz), EpEvds::NONE.connect(evd), None)
                .expect("an endpoint")
        })
        .collect();
    for &ep in &eps {
        pair.start(A, ep, ConnQual(7), LONG, b"").expect("starts");
        let mut turns = pair.fabric.iterations(10_000);
        while pair.state_of(A, ep) != EpState::Disconnected {
            assert!(turns.next(), "{:?}", pair.state_of(A, ep));
            pair.pump();
        }
    }
    let lost = Event::Async(AsyncEvent::EvdOverflow(evd));
    assert_eq!(lost.number(), 0x8001);
    let asynchronous = pair.sides[A].ia.async_evd();
    for _ in 0..2 {
        assert_eq!(pair.wait_event(A, asynchronous), lost);
    }
    pair.expect_nothing(A, asynchronous);
    for &ep in &eps[..room] {
        let Event::Connection(event) = pair.wait_event(A, evd) else {
            panic!("an event")
        };
        assert_eq!(
            (event.ep, event.kind),
            (ep, ConnectionEventKind::NonPeerRejected)
        );
    }
    pair.expect_nothing(A, evd);
}

#[test]
fn an_asynchronous_evd_that_overflows_loses_events_and_nothing_else() {
    let mut config = PairConfig::default();
    config.options[A].ia = IaConfig {
        async_evd_min_qlen: 2,
        ..IaConfig::default()
    };
    let mut pair = Pair::unconnected(&config);
    let evd = pair.evd(1, EvdFlags::CONNECTION);
    for _ in 0..10 {
        let side = &mut pair.sides[A];
        let ep = side
            .ia
            .ep_create(Some(side.pz), EpEvds::NONE.connect(evd), None)
            .expect("an endpoint");
        pair.start(A, ep, ConnQual(7), LONG, b"").expect("starts");
        for _ in 0..10 {
            pair.pump();
        }
    }
    let asynchronous = pair.sides[A].ia.async_evd();
    let room = pair.sides[A]
        .ia
        .evd_query(asynchronous)
        .expect("exists")
        .qlen;
    for _ in 0..room {
        assert!(matches!(
            pair.wait_event(A, asynchronous),
            Event::Async(AsyncEvent::EvdOverflow(_))
        ));
    }
    pair.expect_nothing(A, asynchronous);
    pair.connect();
    pair.assert_no_complaints();
}

#[test]
fn completions_that_do_not_fit_break_their_connections_and_the_asynchronous_evd_says_where() {
    // A's receives complete on an EVD that is far too short, and the program dequeues no event.
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(4, EvdFlags::DTO);
    let ep = pair.sides[A].ep;
    let short = EpChange {
        recv_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    pair.sides[A].ia.ep_modify(ep, &short).expect("UNCONNECTED");
    pair.connect();
    for cookie in 0..64 {
        pair.post_recv(A, EMPTY, cookie, NONE).expect("posted");
    }
    for cookie in 0..64 {
        pair.post_send(B, EMPTY, cookie, NONE).expect("posted");
    }
    let asynchronous = pair.sides[A].ia.async_evd();
    assert_eq!(
        pair.wait_event(A, asynchronous),
        Event::Async(AsyncEvent::EvdOverflow(evd))
    );
    pair.expect_nothing(A, asynchronous);
    pair.expect_connection(A, ConnectionEventKind::Broken);
    assert_eq!(pair.state(A), EpState::Disconnected);
    // The events that fit are in the EVD, in order. The peer gets the event of the connection's end.
    let mut next = 0;
    while let Ok(Some(Event::Dto(done))) = pair.sides[A].ia.evd_dequeue(evd) {
        assert_eq!((done.cookie.0, done.status), (next, DtoStatus::Success));
        next += 1;
    }
    assert!((4..64).contains(&next), "{next}");
    assert!(matches!(
        pair.wait_event(B, pair.sides[B].connect),
        Event::Connection(_)
    ));
    assert_eq!(pair.state(B), EpState::Disconnected);
    // The endpoint works with another EVD instead of the overflowed EVD.
    pair.sides[A].ia.ep_reset(ep).expect("DISCONNECTED");
    let recv = pair.sides[A].recv;
    let usual = EpChange {
        recv_evd: Some(Some(recv)),
        ..EpChange::default()
    };
    pair.sides[A].ia.ep_modify(ep, &usual).expect("UNCONNECTED");
    pair.sides[A].ia.evd_free(evd).expect("nothing feeds it");
    let b = pair.sides[B].ep;
    pair.sides[B].ia.ep_reset(b).expect("DISCONNECTED");
    pair.connect();
    let (from, to) = (pair.buffer(B, 9), pair.buffer(A, 9));
    pair.post_recv(A, &[to.all()], 1, NONE).expect("posted");
    // Discard the events of earlier requests of B.
    while matches!(
        pair.sides[B].ia.evd_dequeue(pair.sides[B].request),
        Ok(Some(_))
    ) {}
    pair.post_send(B, &[from.all()], 2, NONE).expect("posted");
    pair.expect_recv(A, 1, DtoStatus::Success);
    pair.assert_no_complaints();
}

#[test]
fn suppressed_successes_never_overflow_an_evd_however_short() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(1, EvdFlags::DTO);
    let ep = pair.sides[A].ep;
    let short = EpChange {
        request_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    pair.sides[A].ia.ep_modify(ep, &short).expect("UNCONNECTED");
    pair.connect();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    for cookie in 0..64 {
        let remote = to.remote(0, 64);
        pair.sides[A]
            .ia
            .ep_post_rdma_write(
                ep,
                &[from.all()],
                DtoCookie(cookie),
                &remote,
                CompletionFlags::SUPPRESS,
            )
            .expect("posted");
    }
    pair.expect_nothing(A, evd);
    assert_eq!(pair.state(A), EpState::Connected);
    let asynchronous = pair.sides[A].ia.async_evd();
    pair.expect_nothing(A, asynchronous);
}

#[test]
fn an_evd_as_long_as_what_may_be_outstanding_never_overflows() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let evd = pair.evd(64, EvdFlags::DTO);
    let ep = pair.sides[A].ep;
    let just = EpChange {
        recv_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    pair.sides[A].ia.ep_modify(ep, &just).expect("UNCONNECTED");
    pair.connect();
    for round in 0..5 {
        for cookie in 0..64 {
            pair.post_recv(A, EMPTY, cookie, NONE).expect("posted");
        }
        for cookie in 0..64 {
            pair.post_send(B, EMPTY, cookie, NONE).expect("posted");
        }
        for cookie in 0..64 {
            let done = pair.wait_dto(A, evd);
            assert_eq!(
                (done.cookie.0, done.status),
                (cookie, DtoStatus::Success),
                "round {round}"
            );
            pair.expect_request(B, cookie, DtoStatus::Success);
        }
    }
    let asynchronous = pair.sides[A].ia.async_evd();
    pair.expect_nothing(A, asynchronous);
}
