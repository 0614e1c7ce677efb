//! Shared receive queues.

use super::*;
use crate::handle::index_of;
use crate::provider::ProviderEvent;

const ATTR: SrqAttr = SrqAttr {
    max_recv_dtos: 4,
    max_recv_iov: 2,
    low_watermark: 0,
};

/// Makes two connected sides; the endpoint of the second side takes its receive buffers from an SRQ.
pub(super) fn connected_srq() -> (Net, Side, Side, SrqHandle) {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let srq = b.ia.srq_create(b.pz, ATTR).expect("an SRQ");
    let attr = EpAttr::defaults(b.ia.query().ia);
    b.ep =
        b.ia.ep_create_with_srq(
            Some(b.pz),
            EpEvds::NONE
                .recv(b.recv)
                .request(b.request)
                .connect(b.connect),
            srq,
            &attr,
        )
        .expect("an EP");
    connect(&mut a, &mut b);
    (net, a, b, srq)
}

fn counts(side: &mut Side, srq: SrqHandle) -> (u32, u32) {
    let param = side.ia.srq_query(srq).expect("exists");
    (param.available_dto_count, param.outstanding_dto_count)
}

#[test]
fn creation_checks_its_attributes() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let bad = Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3));
    for attr in [
        SrqAttr {
            max_recv_dtos: 0,
            ..ATTR
        },
        SrqAttr {
            max_recv_dtos: 65,
            ..ATTR
        },
        SrqAttr {
            max_recv_iov: 0,
            ..ATTR
        },
        SrqAttr {
            max_recv_iov: 9,
            ..ATTR
        },
        SrqAttr {
            low_watermark: 1,
            ..ATTR
        },
    ] {
        assert_eq!(a.ia.srq_create(a.pz, attr), bad, "{attr:?}");
    }
}

#[test]
fn a_post_checks_as_a_receive_does_against_the_zone_of_the_srq() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let other = a.ia.pz_create().expect("a PZ");
    let (srq, elsewhere) = (
        a.ia.srq_create(a.pz, ATTR).expect("an SRQ"),
        a.ia.srq_create(other, ATTR).expect("an SRQ"),
    );
    let without_rights =
        a.ia.lmr_create((0x90_0000, 64), a.pz, MemPrivFlags::LOCAL_READ)
            .expect("an LMR");
    let unwritable = LmrTriplet {
        lmr_context: without_rights.lmr_context,
        virtual_address: 0x90_0000,
        segment_length: 64,
    };
    let post = |a: &mut Side, srq, iov: &[LmrTriplet]| a.ia.srq_post_recv(srq, iov, DtoCookie(0));
    let good = a.triplet(0, 8);
    let outside = a.triplet(MEMORY.1, 1);
    assert_eq!(
        post(&mut a, srq, &[good; 3]),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
    assert_eq!(
        post(&mut a, srq, &[good, outside]),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
    assert_eq!(
        post(&mut a, srq, &[unwritable]),
        Err(DatError::new(
            ReturnType::PrivilegesViolation,
            Subtype::PrivilegesWrite
        ))
    );
    assert_eq!(
        post(
            &mut a,
            srq,
            &[LmrTriplet {
                lmr_context: 1,
                ..good
            }]
        ),
        Err(DatError::new(
            ReturnType::PrivilegesViolation,
            Subtype::None
        ))
    );
    assert_eq!(
        post(&mut a, elsewhere, &[good]),
        Err(DatError::new(
            ReturnType::ProtectionViolation,
            Subtype::None
        ))
    );
    post(&mut a, srq, &[]).expect("no segments");
    post(
        &mut a,
        srq,
        &[LmrTriplet {
            lmr_context: 1,
            virtual_address: 2,
            segment_length: 0,
        }],
    )
    .expect("an empty one");
    a.ia.srq_free(srq).expect("frees");
    assert_eq!(
        post(&mut a, srq, &[good]),
        Err(DatError::handle(Subtype::HandleSrq))
    );
}

#[test]
fn a_buffer_is_occupied_until_its_completion_is_dequeued() {
    let (_net, mut a, mut b, srq) = connected_srq();
    let iov = [b.triplet(0, 64)];
    (0..4).for_each(|cookie| {
        b.ia.srq_post_recv(srq, &iov, DtoCookie(cookie))
            .expect("posts")
    });
    let full = Err(DatError::resources(Subtype::ResourceSrq));
    assert_eq!(b.ia.srq_post_recv(srq, &iov, DtoCookie(4)), full);
    assert_eq!(counts(&mut b, srq), (4, 4));
    a.send(0, NO_FLAGS).expect("posts");
    assert_eq!(counts(&mut b, srq), (3, 4), "completed, not dequeued");
    assert_eq!(b.ia.srq_post_recv(srq, &iov, DtoCookie(4)), full);
    let event = b.ia.evd_dequeue(b.recv).expect("a completion");
    let Some(Event::Dto(done)) = event else {
        panic!("{event:?}")
    };
    assert_eq!(
        (done.ep, done.cookie, done.transferred_length, done.request),
        (b.ep, DtoCookie(0), 16, false)
    );
    assert_eq!(counts(&mut b, srq), (3, 3));
    b.ia.srq_post_recv(srq, &iov, DtoCookie(4))
        .expect("room again");
}

#[test]
fn an_endpoint_with_an_srq_takes_no_receives_of_its_own() {
    let (_net, _a, mut b, srq) = connected_srq();
    let in_use = DatError::state(Subtype::StateSrqInUse);
    assert_eq!(b.post_recv(0), Err(in_use));
    assert_eq!(b.ia.srq_free(srq), Err(in_use));
    assert_eq!(b.ia.ep_query(b.ep).expect("exists").srq, Some(srq));
}

#[test]
fn buffers_stay_on_the_srq_when_a_connection_ends() {
    let (_net, mut a, mut b, srq) = connected_srq();
    let iov = [b.triplet(0, 64)];
    (0..3).for_each(|cookie| {
        b.ia.srq_post_recv(srq, &iov, DtoCookie(cookie))
            .expect("posts")
    });
    a.send(0, NO_FLAGS).expect("posts");
    b.ia.ep_disconnect(b.ep, CloseFlags::Abrupt)
        .expect("disconnects");
    progress_both(&mut a, &mut b);
    assert_eq!(b.completions(b.recv), [(0, DtoStatus::Success)]);
    assert_eq!(counts(&mut b, srq), (2, 2));
    b.ia.ep_reset(b.ep).expect("resets");
    assert_eq!(
        now(&b),
        0,
        "the device reported the last buffer, so nobody waited"
    );
    b.connection_events();
    a.connection_events();
    a.ia.ep_reset(a.ep).expect("resets");
    connect(&mut a, &mut b);
    a.send(0, NO_FLAGS).expect("posts");
    assert_eq!(b.completions(b.recv), [(1, DtoStatus::Success)]);
    b.ia.ep_free(b.ep).expect("frees");
    b.ia.srq_free(srq).expect("nobody uses it");
}

#[test]
fn an_empty_srq_is_a_receiver_that_is_not_ready() {
    let (_net, mut a, mut b, _srq) = connected_srq();
    a.send(1, NO_FLAGS).expect("posts");
    assert_eq!(
        a.completions(a.request),
        [(1, DtoStatus::ErrReceiverNotReady)]
    );
    progress_both(&mut a, &mut b);
    assert_eq!(a.connection_events(), [ConnectionEventKind::Broken]);
    assert_eq!(b.connection_events(), [ConnectionEventKind::Disconnected]);
}

/// Clauses: SRQ-24, SRQ-R3, SRQZ-6, SRQL-5.
#[test]
fn an_srq_in_error_is_told_of_once_and_takes_buffers_that_nobody_uses() {
    let (net, _a, mut b, srq) = connected_srq();
    b.ia.srq_set_lw(srq, 1).expect("OPERATIONAL");
    let evd = b.ia.async_evd();
    b.events(evd);
    let owner = index_of(srq.key);
    for event in [
        ProviderEvent::SrqError { owner },
        ProviderEvent::SrqLimit { owner },
        ProviderEvent::SrqError { owner },
    ] {
        net.report(1, event);
    }
    b.ia.progress();
    assert_eq!(
        b.events(evd),
        [Event::Async(AsyncEvent::SrqError(srq))],
        "told once, and of nothing else"
    );
    assert_eq!(b.ia.srq_query(srq).expect("exists").state, SrqState::Error);
    let iov = [b.triplet(0, 64)];
    for cookie in 0..4 {
        b.ia.srq_post_recv(srq, &iov, DtoCookie(cookie))
            .expect("every state");
    }
    assert_eq!(counts(&mut b, srq), (4, 4));
    let error = Err(DatError::state(Subtype::StateSrqError));
    assert_eq!(b.ia.srq_resize(srq, 5), error);
    assert_eq!(b.ia.srq_set_lw(srq, 1), error);
    b.ia.ep_free(b.ep).expect("CONNECTED");
    b.ia.srq_free(srq).expect("unused");
}

/// The queue that takes the completions of a null receive EVD holds what the SRQ can hold, however often the SRQ's size
/// has changed.
#[test]
fn a_discard_queue_is_as_large_as_its_srq_however_often_that_is_resized() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let srq = a.ia.srq_create(a.pz, ATTR).expect("an SRQ");
    let attr = EpAttr::defaults(a.ia.query().ia);
    let before = net.cq_capacities(0).len();
    a.ia.ep_create_with_srq(Some(a.pz), EpEvds::NONE.request(a.request), srq, &attr)
        .expect("an EP");
    let discard = || net.cq_capacities(0)[before];
    assert_eq!(discard(), 4);
    for _ in 0..20 {
        for size in [8, 4] {
            a.ia.srq_resize(srq, size).expect("nothing is outstanding");
            assert_eq!(discard(), 8);
        }
    }
    a.ia.srq_resize(srq, 64).expect("nothing is outstanding");
    assert_eq!(discard(), 64);
}
