//! Calls on SRQs other than posting: create, query, resize, low watermark, free.

use udapl::error::{ReturnType, Subtype};
use udapl::event::AsyncEvent;
use udapl::memory::PzHandle;
use udapl::srq::{SrqAttr, SrqParam, SrqState};
use udapl::{DtoCookie, DtoStatus, Event, MemPrivFlags};

use crate::support::connecting::EMPTY;
use crate::support::shared::{SRQ, Shared};
use crate::support::{A, B, NONE, Pair, PairConfig, refused};

const LOW: u32 = 4;

impl Shared {
    fn param(&mut self) -> SrqParam {
        let queried = self.pair.sides[B].ia.srq_query(self.srq);
        queried.expect("exists")
    }

    fn fill(&mut self, count: u64) {
        for cookie in 0..count {
            self.post(EMPTY, cookie).expect("room");
        }
    }

    /// Consumes a buffer by an empty message, and dequeues its completion if `dequeue` is set.
    fn take(&mut self, which: usize, dequeue: bool) {
        self.send(which, EMPTY, 7, NONE).expect("posted");
        let done = self.pair.wait_request(A);
        assert_eq!(done.status, DtoStatus::Success);
        if dequeue {
            assert_eq!(self.received(which).status, DtoStatus::Success);
        }
    }

    fn set_lw(&mut self, mark: u32) {
        let set = self.pair.sides[B].ia.srq_set_lw(self.srq, mark);
        set.expect("OPERATIONAL");
    }

    /// Checks that the asynchronous EVD has this many watermark events and no others.
    #[track_caller]
    fn expect_low(&mut self, times: usize) {
        let evd = self.pair.sides[B].ia.async_evd();
        for _ in 0..times {
            let event = self.pair.wait_event(B, evd);
            assert_eq!(event, Event::Async(AsyncEvent::SrqLowWatermark(self.srq)));
        }
        self.pair.expect_nothing(B, evd);
    }

    fn resize(&mut self, max_recv_dtos: u32) -> udapl::DatResult<()> {
        self.pair.sides[B].ia.srq_resize(self.srq, max_recv_dtos)
    }
}

/// Clauses: SRQC-1, SRQQ-1.
#[test]
fn a_new_srq_is_empty_and_as_long_and_wide_as_asked_for() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let pz = pair.sides[B].pz;
    let ia = &mut pair.sides[B].ia;
    let srq = ia.srq_create(pz, SRQ).expect("an SRQ");
    let param = ia.srq_query(srq).expect("exists");
    assert_eq!((param.state, param.pz), (SrqState::Operational, pz));
    assert!(param.max_recv_dtos >= SRQ.max_recv_dtos && param.max_recv_iov >= SRQ.max_recv_iov);
    assert_eq!(param.low_watermark, 0);
    assert_eq!(
        (param.available_dto_count, param.outstanding_dto_count),
        (0, 0)
    );
    for cookie in 0..param.max_recv_dtos {
        ia.srq_post_recv(srq, EMPTY, DtoCookie(cookie.into()))
            .expect("room");
    }
    let error = refused(
        ia.srq_post_recv(srq, EMPTY, DtoCookie(9)),
        ReturnType::InsufficientResources,
    );
    assert_eq!(error.subtype(), Subtype::ResourceSrq);
}

/// Clauses: SRQC-2.
#[test]
fn an_srq_of_nothing_or_of_too_much_or_with_a_watermark_is_refused() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let foreign = pair.sides[A].pz;
    let side = &mut pair.sides[B];
    let limits = side.ia.query().ia;
    let (most, widest) = (limits.max_recv_per_srq, limits.max_iov_segments_per_dto);
    let attr = |max_recv_dtos, max_recv_iov, low_watermark| SrqAttr {
        max_recv_dtos,
        max_recv_iov,
        low_watermark,
    };
    for attr in [
        attr(0, 1, 0),
        attr(most + 1, 1, 0),
        attr(4, 0, 0),
        attr(4, widest + 1, 0),
        attr(4, 1, 1),
    ] {
        let made = side.ia.srq_create(side.pz, attr);
        let error = refused(made, ReturnType::InvalidParameter);
        assert_eq!(error.subtype(), Subtype::Arg3, "{attr:?}");
    }
    let gone: PzHandle = side.ia.pz_create().expect("a PZ");
    side.ia.pz_free(gone).expect("empty");
    for zone in [gone, foreign] {
        let error = refused(side.ia.srq_create(zone, SRQ), ReturnType::InvalidHandle);
        assert_eq!(error.subtype(), Subtype::HandlePz);
    }
    side.ia
        .srq_create(side.pz, attr(most, widest, 0))
        .expect("what the adapter says it has");
}

/// Clauses: SRQQ-1, SRQQ-2.
#[test]
fn a_buffer_is_available_until_taken_and_outstanding_until_its_completion_is_dequeued() {
    let mut shared = Shared::connected();
    shared.fill(3);
    assert_eq!(shared.counts(), (3, 3));
    shared.take(0, false);
    assert_eq!(shared.counts(), (2, 3));
    assert_eq!(shared.received(0).cookie, DtoCookie(0));
    assert_eq!(shared.counts(), (2, 2));
}

/// Clauses: SRQQ-3, SRQF-1, SRQF-2.
#[test]
fn an_srq_ends_with_the_buffers_in_it_when_no_endpoint_uses_it() {
    let mut shared = Shared::connected();
    shared.fill(3);
    let srq = shared.srq;
    let error = refused(
        shared.pair.sides[B].ia.srq_free(srq),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateSrqInUse);
    shared.take(0, true);
    for ep in shared.b {
        shared.pair.sides[B].ia.ep_free(ep).expect("CONNECTED");
    }
    let ia = &mut shared.pair.sides[B].ia;
    ia.srq_free(srq).expect("unused");
    let calls = [
        ia.srq_free(srq).err(),
        ia.srq_query(srq).err(),
        ia.srq_resize(srq, 8).err(),
        ia.srq_set_lw(srq, 1).err(),
        ia.srq_post_recv(srq, EMPTY, DtoCookie(0)).err(),
    ];
    for error in calls {
        let error = error.expect("no such SRQ");
        assert_eq!(
            (error.return_type(), error.subtype()),
            (ReturnType::InvalidHandle, Subtype::HandleSrq)
        );
    }
    for which in [0, 1] {
        let evd = shared.recv[which];
        shared.pair.expect_nothing(B, evd);
    }
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQZ-1, SRQZ-2.
#[test]
fn an_srq_takes_another_length_with_buffers_in_it_and_messages_on_their_way() {
    let mut shared = Shared::connected();
    let from = shared.pair.filled(A, 1, 64);
    let to = shared
        .pair
        .buffer_in(B, 4_096, shared.pair.sides[B].pz, MemPrivFlags::LOCAL_WRITE);
    let mut next = 0;
    let mut expected = 0;
    for (round, length) in [16, 40, 12, 64, 10, 64].into_iter().enumerate() {
        shared.resize(length).expect("room for what is there");
        assert!(shared.param().max_recv_dtos >= length);
        while shared.param().outstanding_dto_count < length.min(12) {
            let place = usize::try_from(next % 64).expect("small");
            shared.post(&[to.part(place * 64, 64)], next).expect("room");
            next += 1;
        }
        for _ in 0..6 {
            shared
                .send(round % 2, &[from.all()], 7, NONE)
                .expect("posted");
        }
        // The SRQ is resized again before the completions of these messages are dequeued.
        shared.resize(length + 1).expect("longer");
        for _ in 0..6 {
            shared.expect_received(round % 2, expected, 64);
            expected += 1;
        }
        for _ in 0..6 {
            assert_eq!(shared.pair.wait_request(A).status, DtoStatus::Success);
        }
    }
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQZ-1.
#[test]
fn a_longer_srq_holds_more() {
    let mut shared = Shared::connected();
    shared.fill(16);
    let full = shared.post(EMPTY, 99);
    refused(full, ReturnType::InsufficientResources);
    shared.resize(20).expect("longer");
    shared.fill(4);
    refused(shared.post(EMPTY, 99), ReturnType::InsufficientResources);
    assert_eq!(shared.counts(), (20, 20));
}

/// Clauses: SRQZ-3, SRQZ-4, SRQZ-5.
#[test]
fn a_length_that_cannot_be_had_changes_nothing() {
    let mut shared = Shared::connected();
    shared.fill(5);
    shared.take(0, false);
    let most = shared.pair.sides[B].ia.query().ia.max_recv_per_srq;
    let before = shared.param();
    for (length, kind, subtype) in [
        (0, ReturnType::InvalidParameter, Subtype::Arg2),
        (4, ReturnType::InvalidState, Subtype::None),
        (
            most + 1,
            ReturnType::InsufficientResources,
            Subtype::ResourceSrq,
        ),
    ] {
        let error = refused(shared.resize(length), kind);
        assert_eq!(error.subtype(), subtype, "{length}");
        assert_eq!(shared.param(), before, "{length}");
    }
    shared.set_lw(5);
    shared.expect_low(1);
    assert_eq!(shared.received(0).cookie, DtoCookie(0));
    // Four buffers are outstanding, but the watermark is five.
    refused(shared.resize(4), ReturnType::InvalidState);
    shared.set_lw(0);
    shared.resize(4).expect("as many as there are");
}

/// Clauses: SRQL-1, SRQL-3.
#[test]
fn fewer_buffers_than_the_mark_are_told_once_for_each_setting() {
    let mut shared = Shared::connected();
    shared.fill(u64::from(LOW) + 1);
    shared.set_lw(LOW);
    assert_eq!(shared.param().low_watermark, LOW);
    shared.expect_low(0);
    shared.take(0, true);
    shared.expect_low(0);
    shared.take(1, true);
    shared.expect_low(1);
    shared.take(0, true);
    shared.expect_low(0);
    // Posting more buffers does not arm the watermark again. Setting the watermark does.
    shared.fill(2);
    shared.take(0, true);
    shared.take(0, true);
    shared.expect_low(0);
    shared.fill(2);
    shared.set_lw(LOW);
    shared.expect_low(0);
    shared.take(1, true);
    shared.expect_low(1);
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQL-2, SRQL-3.
#[test]
fn a_mark_above_what_is_there_speaks_at_once() {
    let mut shared = Shared::connected();
    shared.set_lw(1);
    shared.expect_low(1);
    shared.set_lw(1);
    shared.expect_low(1);
    shared.fill(3);
    shared.set_lw(3);
    shared.expect_low(0);
    shared.set_lw(LOW);
    shared.expect_low(1);
    // A watermark of 0 never gives an event.
    shared.set_lw(0);
    for _ in 0..3 {
        shared.take(0, true);
    }
    shared.expect_low(0);
}

/// Clauses: SRQL-4.
#[test]
fn a_mark_beyond_the_queue_is_refused_and_the_old_one_stays() {
    let mut shared = Shared::connected();
    shared.fill(2);
    shared.set_lw(2);
    let longest = shared.param().max_recv_dtos;
    let error = refused(
        shared.pair.sides[B].ia.srq_set_lw(shared.srq, longest + 1),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg2);
    assert_eq!(shared.param().low_watermark, 2);
    shared.take(0, true);
    shared.expect_low(1);
}
