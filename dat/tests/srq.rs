//! `srq_post_recv`, clause by clause: A sends, endpoints of B share buffers.
//!
//! An SRQ is always in the state OPERATIONAL here (SRQ-R3 has no ERROR to start from).

mod support;

use core::time::Duration;

use dat::{
    CloseFlags, CompletionFlags, ConnectionEventKind, DtoStatus, EpState, Event, LmrTriplet,
    MemPrivFlags, ReturnType, SrqAttr, Subtype, Timeout,
};
use hw_sim::{Faults, LinkFaults};
use rand::Rng;
use support::rdma::{Pieces, UNTOUCHED, stream};
use support::shared::{SRQ, Shared};
use support::{A, B, NONE, Pair, PairConfig, pattern, refused};

const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;
const SUCCESS: DtoStatus = DtoStatus::Success;
const FLUSHED: DtoStatus = DtoStatus::ErrFlushed;

/// Clauses: SRQ-2, SRQ-6, SRQ-7, SRQ-17, SRQ-26.
#[test]
fn a_message_fills_the_segments_in_array_order_and_nothing_behind_its_last_byte() {
    let mut shared = Shared::connected();
    let from = shared.pair.filled(A, 1, 1_000);
    let data = pattern(1, 1_000);
    for (bytes, lengths) in [
        (1_000, [400, 300, 300, 0]),
        (700, [400, 300, 0, 0]),
        (701, [400, 300, 1, 0]),
        (399, [399, 0, 0, 0]),
        (0, [0; 4]),
    ] {
        let (first, second) = (
            shared.pair.untouched(B, 1_000),
            shared.pair.untouched(B, 1_000),
        );
        let iov = [
            second.part(500, 400),
            first.part(700, 300),
            second.part(100, 300),
            first.part(0, 50),
        ];
        shared.post(&iov, 5).expect("posted");
        shared.exchange(0, &from, bytes, 5);
        let mut model = [vec![UNTOUCHED; 1_000], vec![UNTOUCHED; 1_000]];
        let mut rest = &data[..bytes];
        for ((lmr, start), length) in [(1, 500), (0, 700), (1, 100), (0, 0)].into_iter().zip(lengths) {
            let (now, later) = rest.split_at(length);
            model[lmr][start..start + length].copy_from_slice(now);
            rest = later;
        }
        assert!(first.read(0, 1_000) == model[0], "{bytes} bytes, first LMR");
        assert!(second.read(0, 1_000) == model[1], "{bytes} bytes, second LMR");
    }
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQ-2, SRQ-3.
#[test]
fn no_segments_are_a_buffer_for_a_message_of_no_bytes() {
    let mut shared = Shared::connected();
    let from = shared.pair.filled(A, 2, 64);
    let garbage = LmrTriplet {
        lmr_context: 0xdead_beef,
        virtual_address: u64::MAX,
        segment_length: 0,
    };
    for (cookie, iov) in [(1, &[][..]), (2, &[garbage]), (3, &[garbage; 4])] {
        shared.post(iov, cookie).expect("posted");
        shared.exchange(0, &from, 0, cookie);
    }
    let to = shared.pair.untouched(B, 64);
    shared
        .post(&[garbage, to.part(0, 32), garbage, to.part(32, 32)], 4)
        .expect("empty segments are stepped over");
    shared.exchange(0, &from, 64, 4);
    assert_eq!(to.read(0, 64), pattern(2, 64));
    // For anything longer it is too short.
    shared.post(&[], 5).expect("posted");
    shared
        .send(0, &[from.part(0, 1)], 6, NONE)
        .expect("posted");
    assert_eq!(shared.received(0).status, DtoStatus::ErrLocalLength);
}

/// Clauses: SRQ-5, SRQ-6, SRQ-7, SRQ-21.
#[test]
fn any_message_lands_where_copying_would_whichever_connection_it_came_by() {
    let mut shared = Shared::connected();
    let mut rng = stream(3);
    let from = shared.pair.filled(A, 3, 30_000);
    let data = from.read(0, 30_000);
    // Far more messages than the ring has entries, and the two connections finish in any order.
    for round in 0..100_u64 {
        let to = shared.pair.untouched(B, 30_000);
        let mut pieces = Pieces::random(&mut rng, 30_000);
        pieces.0.truncate(4);
        let bytes = rng.random_range(0..=pieces.total());
        let which = rng.random_range(0..2_usize);
        shared.post(&pieces.iov(&to), round).expect("posted");
        shared.exchange(which, &from, bytes, round);
        let mut model = vec![UNTOUCHED; 30_000];
        pieces.scatter(&mut model, &data[..bytes]);
        assert!(to.read(0, 30_000) == model, "round {round}");
    }
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQ-4, SRQ-9.
#[test]
fn cookies_come_back_unchanged_whatever_they_are_and_however_often_the_same() {
    let mut shared = Shared::connected();
    let (from, to) = (shared.pair.filled(A, 4, 64), shared.pair.buffer(B, 64));
    let cookies = [0, u64::MAX, 1 << 63, 0xdead_beef_0bad_cafe, 0, 0, u64::MAX];
    for cookie in cookies {
        shared.post(&[to.all()], cookie).expect("posted");
    }
    let mut seen: Vec<u64> = (0..cookies.len())
        .map(|at| {
            shared
                .send(at % 2, &[from.all()], 0, NONE)
                .expect("posted");
            shared.received(at % 2).cookie
        })
        .collect();
    // Which buffer a message takes is the SRQ's business.
    let mut expected = cookies;
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

/// Clauses: SRQ-5, SRQ-19, SRQ-10.
#[test]
fn the_completion_is_that_of_a_receive_of_the_endpoint_that_took_the_buffer() {
    let mut shared = Shared::connected();
    let (from, to) = (shared.pair.filled(A, 5, 64), shared.pair.buffer(B, 64));
    shared.post(&[to.all()], 9).expect("posted");
    shared.send(1, &[from.part(0, 40)], 1, NONE).expect("posted");
    let taken = shared.received(1);
    let (recv, request) = (shared.recv[0], shared.pair.sides[B].request);
    for evd in [recv, request] {
        shared.pair.expect_nothing(B, evd);
    }

    let mut plain = Pair::connected();
    let (from, to) = (plain.filled(A, 5, 64), plain.buffer(B, 64));
    plain.post_recv(B, &[to.all()], 9, NONE).expect("posted");
    plain
        .post_send(A, &[from.part(0, 40)], 1, NONE)
        .expect("posted");
    let own = plain.wait_recv(B);
    assert_eq!(taken.ep, shared.b[1]);
    assert_eq!(
        (taken.cookie, taken.status, taken.transferred_length, taken.request, taken.syndrome),
        (own.cookie, own.status, own.transferred_length, own.request, own.syndrome)
    );
}

/// Clauses: SRQ-14.
#[test]
fn the_iov_is_the_consumers_again_when_the_call_returns() {
    let mut shared = Shared::connected();
    let (from, to) = (shared.pair.filled(A, 6, 200), shared.pair.untouched(B, 300));
    let mut iov = [to.part(0, 100), to.part(200, 100)];
    shared.post(&iov, 1).expect("posted");
    iov.fill(LmrTriplet {
        lmr_context: 0,
        virtual_address: 0,
        segment_length: 0,
    });
    shared.exchange(0, &from, 200, 1);
    assert_eq!(
        [to.read(0, 100), to.read(200, 100)].concat(),
        pattern(6, 200)
    );
    let provider = shared.pair.sides[B].ia.query().provider.clone();
    assert_eq!(provider.iov_ownership_on_return, 0, "DAT_IOV_CONSUMER");
    assert_eq!(iov[0].segment_length, 0);
}

/// Clauses: SRQ-25.
#[test]
fn posting_takes_no_time_and_asks_the_device_for_nothing() {
    let mut shared = Shared::connected();
    let to = shared.pair.buffer(B, 64);
    let before = (shared.pair.now(), shared.pair.fabric.report(B).opcodes);
    let log = shared.pair.fabric.sim.event_log().len();
    for cookie in 0..16 {
        shared.post(&[to.all()], cookie).expect("posted");
    }
    refused(
        shared.post(&[to.all()], 16),
        ReturnType::InsufficientResources,
    );
    let after = (shared.pair.now(), shared.pair.fabric.report(B).opcodes);
    assert_eq!(before, after);
    assert_eq!(
        shared.pair.fabric.sim.event_log().len(),
        log,
        "not a register was written"
    );
    shared.pair.expect_nothing(B, shared.recv[0]);
}

/// Clauses: SRQ-1.
#[test]
fn a_freed_or_foreign_srq_is_no_handle() {
    let mut shared = Shared::connected();
    let to = shared.pair.buffer(B, 64);
    let side = &mut shared.pair.sides[B];
    let freed = side.ia.srq_create(side.pz, SRQ).expect("an SRQ");
    side.ia.srq_free(freed).expect("freed");
    let side = &mut shared.pair.sides[A];
    let foreign = side.ia.srq_create(side.pz, SRQ).expect("an SRQ");
    for srq in [freed, foreign] {
        let ia = &mut shared.pair.sides[B].ia;
        let error = refused(
            ia.srq_post_recv(srq, &[to.all()], 1),
            ReturnType::InvalidHandle,
        );
        assert_eq!(error.subtype(), Subtype::HandleSrq);
    }
    assert_eq!(shared.counts(), (0, 0));
}

/// Clauses: SRQ-27, SRQ-R4.
#[test]
fn a_slot_is_taken_until_its_completion_is_dequeued() {
    let attr = SrqAttr {
        max_recv_dtos: 10,
        ..SRQ
    };
    let mut shared = Shared::connected_as(attr, |_| {});
    let (from, to) = (shared.pair.filled(A, 7, 64), shared.pair.buffer(B, 64));
    assert_eq!(shared.counts(), (0, 0));
    for cookie in 0..3 {
        shared.post(&[to.all()], cookie).expect("posted");
        let posted = u32::try_from(cookie).expect("small") + 1;
        assert_eq!(shared.counts(), (posted, posted), "at return");
    }
    shared.send(0, &[from.all()], 1, NONE).expect("posted");
    assert_eq!(shared.counts(), (2, 3), "completed, not dequeued");
    shared.received(0);
    assert_eq!(shared.counts(), (2, 2));
    for cookie in 3..11 {
        shared.post(&[to.all()], cookie).expect("posted");
    }
    assert_eq!(shared.counts(), (10, 10));
    let error = refused(
        shared.post(&[to.all()], 11),
        ReturnType::InsufficientResources,
    );
    assert_eq!(error.subtype(), Subtype::ResourceSrq);
    for at in 0..4 {
        shared.send(at % 2, &[from.all()], 1, NONE).expect("posted");
    }
    // Whether the SRQ has looked at the completions or not, they hold their slots.
    refused(
        shared.post(&[to.all()], 11),
        ReturnType::InsufficientResources,
    );
    assert_eq!(shared.counts(), (6, 10));
    refused(
        shared.post(&[to.all()], 11),
        ReturnType::InsufficientResources,
    );
    shared.received(1);
    assert_eq!(shared.counts(), (6, 9));
    shared.post(&[to.all()], 11).expect("there is room again");
    refused(
        shared.post(&[to.all()], 12),
        ReturnType::InsufficientResources,
    );
    assert_eq!(shared.counts(), (7, 10));
    for which in [0, 0, 1] {
        shared.received(which);
    }
    assert_eq!(shared.counts(), (7, 7));
}

/// Clauses: SRQ-27.
#[test]
fn buffers_whose_completions_nobody_wants_come_back_by_themselves() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let attr = SrqAttr {
        max_recv_dtos: 4,
        ..SRQ
    };
    let side = &mut pair.sides[B];
    side.ia.ep_free(side.ep).expect("freed");
    let srq = side.ia.srq_create(side.pz, attr).expect("an SRQ");
    let (zone, request, connect) = (side.pz, side.request, side.connect);
    let shape = support::attributes(&side.ia);
    side.ep = side
        .ia
        .ep_create_with_srq(Some(zone), None, Some(request), Some(connect), srq, &shape)
        .expect("an endpoint");
    pair.connect();
    let (from, to) = (pair.filled(A, 8, 64), pair.buffer(B, 64));
    for round in 0..40 {
        pair.sides[B]
            .ia
            .srq_post_recv(srq, &[to.all()], round)
            .expect("the one before it is used up");
        pair.post_send(A, &[from.all()], round, NONE)
            .expect("posted");
        pair.expect_request(A, round, SUCCESS);
    }
    let param = pair.sides[B].ia.srq_query(srq).expect("exists");
    assert_eq!((param.available_dto_count, param.outstanding_dto_count), (0, 0));
    assert_eq!(to.read(0, 64), pattern(8, 64));
}

/// Clauses: SRQ-28.
#[test]
fn a_segment_outside_its_lmr_is_an_invalid_parameter() {
    let mut shared = Shared::connected();
    let to = shared.pair.buffer(B, 4_096);
    let start = to.lmr.registered_address;
    let ranges = [
        (start - 1, 64),
        (start + 4_096 - 63, 64),
        (start + 4_096, 1),
        (start, 4_097),
        (start + 64, u64::MAX),
        (u64::MAX, 64),
        (0, 64),
    ];
    for (virtual_address, segment_length) in ranges {
        let bad = LmrTriplet {
            virtual_address,
            segment_length,
            ..to.all()
        };
        for iov in [&[bad][..], &[to.part(0, 64), bad], &[bad, to.part(0, 64)]] {
            let error = refused(shared.post(iov, 1), ReturnType::InvalidParameter);
            assert_eq!(error.subtype(), Subtype::Arg3, "{bad:x?}");
        }
    }
    assert_eq!(shared.counts(), (0, 0), "a refused call posts nothing");
    shared.post(&[to.all()], 2).expect("up to the last byte");
}

/// Clauses: SRQ-R2.
#[test]
fn more_segments_than_the_srq_allows_are_an_invalid_parameter() {
    let attr = SrqAttr {
        max_recv_iov: 2,
        ..SRQ
    };
    // The limit of the endpoints has no meaning.
    let mut shared = Shared::connected_as(attr, |attr| attr.max_recv_iov = 8);
    let to = shared.pair.buffer(B, 64);
    let error = refused(
        shared.post(&[to.part(0, 1); 3], 1),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg2);
    refused(
        shared.post(&[to.part(0, 0); 3], 1),
        ReturnType::InvalidParameter,
    );
    assert_eq!(shared.counts(), (0, 0));
    shared.post(&[to.part(0, 1); 2], 1).expect("two segments");
}

/// Clauses: SRQ-29.
#[test]
fn the_zone_that_counts_is_that_of_the_srq_and_not_of_the_endpoint() {
    let other = |ia: &mut dat::Ia| ia.pz_create().expect("a PZ");
    let mut shared = Shared::unconnected(&PairConfig::default(), SRQ, Some(other), |_| {});
    let provider = shared.pair.sides[B].ia.query().provider;
    assert!(provider.srq_ep_pz_difference_supported);
    shared.connect(0);
    let theirs = shared.pair.sides[B]
        .ia
        .ep_query(shared.b[0])
        .expect("exists")
        .pz
        .expect("a PZ");
    assert_ne!(theirs, shared.pair.sides[B].pz);
    let of_ep = shared.pair.buffer_in(B, 64, theirs, MemPrivFlags::all());
    let of_srq = shared.pair.untouched(B, 64);
    for iov in [&[of_ep.all()][..], &[of_srq.part(0, 32), of_ep.part(0, 32)]] {
        refused(shared.post(iov, 1), ReturnType::ProtectionViolation);
    }
    assert_eq!(shared.counts(), (0, 0));
    shared
        .post(&[of_ep.part(0, 0), of_srq.all()], 2)
        .expect("of an empty segment nothing is looked at");
    let from = shared.pair.filled(A, 9, 64);
    shared.exchange(0, &from, 64, 2);
    assert_eq!(of_srq.read(0, 64), pattern(9, 64));
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQ-30.
#[test]
fn an_lmr_that_is_gone_or_not_writable_is_a_privileges_violation() {
    let mut shared = Shared::connected();
    let good = shared.pair.buffer(B, 64);
    let pz = shared.pair.sides[B].pz;
    let rights = MemPrivFlags::all() - MemPrivFlags::LOCAL_WRITE;
    let readable = shared.pair.buffer_in(B, 64, pz, rights);
    let error = refused(
        shared.post(&[readable.all()], 1),
        ReturnType::PrivilegesViolation,
    );
    assert_eq!(error.subtype(), Subtype::PrivilegesWrite);
    let freed = shared.pair.buffer(B, 64);
    shared.pair.sides[B]
        .ia
        .lmr_free(freed.lmr.lmr)
        .expect("freed");
    let stale = LmrTriplet {
        lmr_context: good.lmr.lmr_context ^ 1,
        ..good.all()
    };
    for bad in [freed.all(), stale] {
        for iov in [&[bad][..], &[good.part(0, 32), bad]] {
            refused(shared.post(iov, 1), ReturnType::PrivilegesViolation);
        }
    }
    assert_eq!(shared.counts(), (0, 0));
    let writable = shared.pair.buffer_in(B, 64, pz, MemPrivFlags::LOCAL_WRITE);
    shared
        .post(&[writable.all()], 2)
        .expect("the right to write locally is all it takes");
    let from = shared.pair.filled(A, 10, 64);
    shared.exchange(0, &from, 64, 2);
}

/// Clauses: SRQ-24, SRQ-R1.
#[test]
fn buffers_are_taken_whatever_the_endpoints_do_and_stay_until_one_needs_them() {
    let mut shared = Shared::unconnected(&PairConfig::default(), SRQ, None, |_| {});
    let (from, to) = (shared.pair.filled(A, 11, 64), shared.pair.buffer(B, 64));
    shared.post(&[to.all()], 0).expect("nothing is connected");
    shared.connect(0);
    shared.post(&[to.all()], 1).expect("connected");
    shared.exchange(0, &from, 64, 0);
    shared.pair.disconnect();
    shared.post(&[to.all()], 2).expect("disconnected");
    assert_eq!(shared.queued(0), [], "nothing was flushed");
    assert_eq!(shared.counts(), (2, 2));
    for side in [A, B] {
        let ep = shared.pair.sides[side].ep;
        shared.pair.sides[side].ia.ep_reset(ep).expect("reset");
    }
    shared.post(&[to.all()], 3).expect("unconnected again");
    assert_eq!(shared.counts(), (3, 3));
    shared.connect(0);
    shared.connect(1);
    shared.exchange(0, &from, 64, 1);
    shared.exchange(1, &from, 64, 2);
    let (ia, b) = (&mut shared.pair.sides[B].ia, shared.b);
    refused(ia.srq_free(shared.srq), ReturnType::InvalidState);
    for ep in b {
        ia.ep_free(ep).expect("freed");
    }
    shared.post(&[to.all()], 4).expect("no endpoint is left");
    assert_eq!(shared.counts(), (2, 2));
    let ia = &mut shared.pair.sides[B].ia;
    ia.srq_free(shared.srq).expect("buffers in it vanish");
    shared.pair.expect_nothing(B, shared.recv[0]);
    shared.pair.assert_no_complaints();
}

/// Sends from A while B waits on the receive EVD; how long that took, and what it came to.
fn wait_for_message(
    shared: &mut Shared,
    flags: CompletionFlags,
    threshold: u32,
) -> (Duration, Result<(u64, u32), u32>) {
    let (from, to) = (shared.pair.filled(A, 12, 64), shared.pair.buffer(B, 64));
    shared.post(&[to.all()], 3).expect("posted");
    shared.pair.set_delay(100);
    shared.send(0, &[from.all()], 4, flags).expect("posted");
    let start = shared.pair.now();
    let waited = shared.pair.sides[B]
        .ia
        .evd_wait(shared.recv[0], Timeout::from_micros(5_000), threshold);
    let took = Duration::from_nanos(shared.pair.now().0 - start.0);
    let outcome = match waited {
        Ok((Event::Dto(done), more)) => {
            assert_eq!((done.status, done.ep), (SUCCESS, shared.b[0]));
            Ok((done.cookie, more))
        }
        Ok((other, _)) => panic!("{other:?}"),
        Err(error) => {
            assert_eq!(error.error.return_type(), ReturnType::TimeoutExpired);
            Err(error.nmore)
        }
    };
    (took, outcome)
}

const PROMPTLY: Duration = Duration::from_micros(1_000);
const ALL_THE_TIME: Duration = Duration::from_micros(5_000);

/// Clauses: SRQ-10, SRQ-34, SRQ-35.
#[test]
fn with_solicited_wait_the_senders_flag_decides_whether_a_waiter_wakes() {
    let mut shared = Shared::connected_as(SRQ, |attr| attr.recv_completion_flags = SOLICITED);
    let (took, outcome) = wait_for_message(&mut shared, SOLICITED, 1);
    assert_eq!(outcome, Ok((3, 0)));
    assert!(took < PROMPTLY, "{took:?}");
    // The completion is there, but only the end of the time shows it.
    let (took, outcome) = wait_for_message(&mut shared, NONE, 1);
    assert_eq!(outcome, Ok((3, 0)));
    assert!(took >= ALL_THE_TIME, "{took:?}");
}

/// Clauses: SRQ-10, SRQ-35.
#[test]
fn a_solicited_message_wakes_the_waiter_for_those_before_it_too() {
    let mut shared = Shared::connected_as(SRQ, |attr| attr.recv_completion_flags = SOLICITED);
    let (from, to) = (shared.pair.filled(A, 12, 64), shared.pair.buffer(B, 64));
    for cookie in 0..3 {
        shared.post(&[to.all()], cookie).expect("posted");
    }
    shared.pair.set_delay(100);
    for flags in [NONE, NONE, SOLICITED] {
        shared.send(0, &[from.all()], 4, flags).expect("posted");
    }
    let start = shared.pair.now();
    let (_, more) = shared.pair.sides[B]
        .ia
        .evd_wait(shared.recv[0], Timeout::from_micros(5_000), 1)
        .expect("an event");
    assert_eq!(more, 2);
    assert!(Duration::from_nanos(shared.pair.now().0 - start.0) < PROMPTLY);
}

/// Clauses: SRQ-11, SRQ-20, SRQ-33, SRQ-36.
#[test]
fn with_unsignalled_every_receive_notifies_all_the_same() {
    let unsignalled = CompletionFlags::UNSIGNALLED;
    let mut shared = Shared::connected_as(SRQ, |attr| attr.recv_completion_flags = unsignalled);
    for flags in [NONE, SOLICITED] {
        let (took, outcome) = wait_for_message(&mut shared, flags, 1);
        assert_eq!(outcome, Ok((3, 0)), "{flags:?}");
        assert!(took < PROMPTLY, "{flags:?}: {took:?}");
    }
}

/// Clauses: SRQ-36, SRQ-37.
#[test]
fn with_evd_threshold_the_count_releases_the_waiter() {
    let mut shared =
        Shared::connected_as(SRQ, |attr| attr.recv_completion_flags = CompletionFlags::EVD_THRESHOLD);
    let (took, outcome) = wait_for_message(&mut shared, NONE, 1);
    assert_eq!(outcome, Ok((3, 0)));
    assert!(took < PROMPTLY, "{took:?}");
    let (took, outcome) = wait_for_message(&mut shared, NONE, 2);
    assert_eq!(outcome, Err(1), "one is there, two were asked for");
    assert!(took >= ALL_THE_TIME, "{took:?}");
    let (took, outcome) = wait_for_message(&mut shared, NONE, 2);
    assert_eq!(outcome, Ok((3, 1)), "now there are two");
    assert!(took < PROMPTLY, "{took:?}");
}

/// Clauses: SRQ-21.
#[test]
fn completions_come_in_the_order_of_the_sends_of_each_connection() {
    for seed in 0..4 {
        let mut shared = Shared::connected();
        let mut rng = stream(seed);
        let from = shared.pair.filled(A, seed, 20_000);
        let faults = LinkFaults::swarm(seed);
        let link = shared.pair.fabric.link;
        shared.pair.fabric.sim.set_faults(link, faults);
        let inboxes: Vec<_> = (0..16).map(|_| shared.pair.buffer(B, 20_000)).collect();
        for (cookie, inbox) in (0..).zip(&inboxes) {
            shared.post(&[inbox.all()], cookie).expect("posted");
        }
        let mut sent = [Vec::new(), Vec::new()];
        for _ in 0..16 {
            let which = rng.random_range(0..2_usize);
            let bytes = rng.random_range(0..20_000_usize);
            shared
                .send(which, &[from.part(0, bytes)], 0, NONE)
                .expect("posted");
            sent[which].push(bytes);
        }
        let mut used = Vec::new();
        for which in [0, 1] {
            for &bytes in &sent[which] {
                let done = shared.received(which);
                assert_eq!(
                    (done.status, done.transferred_length),
                    (SUCCESS, bytes as u64),
                    "seed {seed}, connection {which}"
                );
                let inbox = &inboxes[usize::try_from(done.cookie).expect("small")];
                assert!(inbox.read(0, bytes) == pattern(seed, 20_000)[..bytes]);
                used.push(done.cookie);
            }
        }
        used.sort_unstable();
        assert_eq!(used, (0..16).collect::<Vec<_>>(), "each buffer once");
    }
}

/// Clauses: SRQ-22, SRQ-21.
#[test]
fn a_connection_does_not_wait_for_the_message_of_another() {
    let mut shared = Shared::connected();
    let long = shared.pair.filled(A, 13, 3 << 20);
    let to = shared.pair.buffer(B, 3 << 20);
    let small = shared.pair.buffer(B, 64);
    shared.post(&[to.all()], 1).expect("posted");
    for cookie in [2, 3] {
        shared.post(&[small.all()], cookie).expect("posted");
    }
    // More than a window of packets, and no acknowledgement comes back: it stops half-way.
    stop_answers(&mut shared.pair);
    shared.send(0, &[long.all()], 1, NONE).expect("posted");
    for cookie in [2, 3] {
        shared
            .send(1, &[long.part(0, 64)], 2, NONE)
            .expect("posted");
        shared.expect_received(1, cookie, 64);
    }
    assert_eq!(shared.queued(0), []);
    shared.pair.fabric.sim.heal();
    shared.expect_received(0, 1, 3 << 20);
    assert!(to.read(0, 3 << 20) == long.read(0, 3 << 20));
}

/// From now on nothing that B says reaches A.
fn stop_answers(pair: &mut Pair) {
    let deaf = Faults {
        loss_ppm: 1_000_000,
        ..Faults::NONE
    };
    let faults = LinkFaults {
        a_to_b: Faults::NONE,
        b_to_a: deaf,
    };
    pair.fabric.sim.set_faults(pair.fabric.link, faults);
}

/// Clauses: SRQ-39, SRQ-40, SRQ-23, SRQ-R1.
#[test]
fn a_buffer_whose_message_is_cut_off_is_flushed_and_those_before_it_are_delivered() {
    let mut shared = Shared::connected();
    let long = shared.pair.filled(A, 14, 3 << 20);
    let to = shared.pair.untouched(B, (3 << 20) + 8_192);
    let middle = to.part(4_096, 3 << 20);
    let small = shared.pair.buffer(B, 64);
    for cookie in [1, 2] {
        shared.post(&[small.all()], cookie).expect("posted");
    }
    shared.post(&[middle], 3).expect("posted");
    for cookie in [4, 5] {
        shared.post(&[small.all()], cookie).expect("posted");
    }
    for _ in 0..2 {
        shared
            .send(0, &[long.part(0, 64)], 1, NONE)
            .expect("posted");
    }
    stop_answers(&mut shared.pair);
    shared.send(0, &[long.all()], 2, NONE).expect("posted");
    let ep = shared.b[0];
    shared.pair.sides[B]
        .ia
        .ep_disconnect(ep, CloseFlags::Abrupt)
        .expect("begun");
    assert_eq!(
        shared.queued(0),
        [(1, SUCCESS), (2, SUCCESS), (3, FLUSHED)],
        "when the endpoint is disconnected they are there"
    );
    assert_eq!(shared.pair.state(B), EpState::Disconnected);
    assert_eq!(shared.counts(), (2, 2), "those nobody took are still there");
    assert_ne!(
        to.read(4_096, 64),
        vec![UNTOUCHED; 64],
        "the message had begun"
    );
    assert_eq!(to.read(0, 4_096), vec![UNTOUCHED; 4_096]);
    assert_eq!(
        to.read(4_096 + (3 << 20), 4_096),
        vec![UNTOUCHED; 4_096],
        "around the segment"
    );
    shared.pair.fabric.sim.heal();
    shared.exchange_next(1, &long, 4);
    shared.exchange_next(1, &long, 5);
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQ-39, SRQ-40.
#[test]
fn a_broken_connection_flushes_the_buffer_it_was_filling() {
    let mut shared = Shared::connected();
    let long = shared.pair.filled(A, 14, 3 << 20);
    let to = shared.pair.buffer(B, 3 << 20);
    shared.post(&[to.all()], 3).expect("posted");
    shared.post(&[to.all()], 4).expect("posted");
    stop_answers(&mut shared.pair);
    shared.send(0, &[long.all()], 2, NONE).expect("posted");
    // A gives up after its retries; its DREQ tells B, or at the latest B's next packet would.
    let done = shared.pair.wait_request(A);
    assert_eq!((done.cookie, done.status), (2, DtoStatus::ErrTransport));
    shared.pair.expect_connection(A, ConnectionEventKind::Broken);
    let done = shared.received(0);
    assert_eq!((done.cookie, done.status), (3, FLUSHED));
    assert_eq!(shared.counts(), (1, 1));
}

/// Clauses: SRQ-38.
#[test]
fn a_disconnected_endpoint_takes_no_buffers() {
    let mut shared = Shared::connected();
    let (from, to) = (shared.pair.filled(A, 15, 64), shared.pair.untouched(B, 64));
    shared.post(&[to.all()], 1).expect("posted");
    let ep = shared.b[0];
    shared.pair.sides[B]
        .ia
        .ep_disconnect(ep, CloseFlags::Abrupt)
        .expect("begun");
    // A has not looked yet and thinks it is connected.
    assert_eq!(shared.pair.state(A), EpState::Connected);
    shared.send(0, &[from.all()], 2, NONE).expect("posted");
    let done = shared.pair.wait_request(A);
    assert_eq!((done.cookie, done.status), (2, FLUSHED));
    assert_eq!(shared.queued(0), []);
    assert_eq!(shared.counts(), (1, 1));
    assert_eq!(to.read(0, 64), vec![UNTOUCHED; 64]);
    shared.exchange(1, &from, 64, 1);
}

/// Clauses: SRQ-38.
#[test]
fn an_endpoint_that_is_disconnecting_takes_buffers_still() {
    let mut shared = Shared::connected();
    let (from, to) = (shared.pair.filled(A, 16, 64), shared.pair.untouched(B, 64));
    let (back, source) = (shared.pair.buffer(A, 64), shared.pair.buffer(B, 64));
    shared.post(&[to.all()], 1).expect("posted");
    shared.pair.set_delay(100);
    shared
        .pair
        .post_write(B, &[source.all()], 5, &back.remote(0, 64), NONE)
        .expect("posted");
    let ep = shared.b[0];

    shared.pair.sides[B]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("begun");
    shared.send(0, &[from.all()], 2, NONE).expect("posted");
    shared.pair.fabric.sim.advance(Duration::from_micros(150));
    assert_eq!(shared.pair.state(B), EpState::DisconnectPending);
    assert_eq!(shared.queued(0), [(1, SUCCESS)]);
    assert_eq!(to.read(0, 64), pattern(16, 64));
    shared.pair.expect_request(B, 5, SUCCESS);
    shared
        .pair
        .expect_connection(B, ConnectionEventKind::Disconnected);
}

/// Clauses: SRQ-38, SRQ-19.
#[test]
fn a_message_that_comes_before_the_handshake_is_done_comes_after_established() {
    let mut shared = Shared::unconnected(&PairConfig::default(), SRQ, None, |_| {});
    let (from, to) = (shared.pair.filled(A, 17, 64), shared.pair.buffer(B, 64));
    shared.post(&[to.all()], 1).expect("posted");
    let pair = &mut shared.pair;
    let address = pair.sides[B].ia.query().ia.ia_address;
    pair.sides[A]
        .ia
        .ep_connect(
            shared.a[0],
            address,
            support::CONN_QUAL,
            support::LONG,
            b"",
            dat::Qos::BEST_EFFORT,
            dat::ConnectFlags::empty(),
        )
        .expect("accepted");
    let Event::ConnectionRequest(request) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    pair.sides[B]
        .ia
        .cr_accept(request.cr, Some(shared.b[0]), b"")
        .expect("accepted");
    let connect = pair.sides[A].connect;
    pair.sides[A]
        .ia
        .evd_dequeue(connect)
        .expect("established at A");
    // The RTU is on its way; so is this, and B has looked at neither.
    shared.send(0, &[from.all()], 2, NONE).expect("connected");
    assert_eq!(shared.pair.state(B), EpState::CompletionPending);
    shared.expect_received(0, 1, 64);
    assert_eq!(shared.pair.state(B), EpState::Connected);
    shared
        .pair
        .expect_connection(B, ConnectionEventKind::Established);
}

/// Clauses: SRQ-R5, SRQ-23.
#[test]
fn a_message_that_is_too_long_breaks_its_connection_and_no_other() {
    let mut shared = Shared::connected();
    let from = shared.pair.filled(A, 18, 10_000);
    let to = shared.pair.untouched(B, 10_000);
    shared.post(&[to.part(100, 64)], 1).expect("posted");
    shared.post(&[to.part(300, 64)], 2).expect("posted");
    shared.post(&[to.part(500, 64)], 3).expect("posted");
    shared.pair.set_delay(20);
    shared.send(0, &[from.all()], 4, NONE).expect("posted");
    let done = shared.received(0);
    assert_eq!((done.cookie, done.status), (1, DtoStatus::ErrLocalLength));
    let done = shared.pair.wait_request(A);
    assert_eq!(
        (done.ep, done.cookie, done.status),
        (shared.a[0], 4, DtoStatus::ErrRemoteResponder)
    );
    shared.pair.expect_broken();
    assert_eq!(shared.queued(0), [], "it held no other buffer");
    assert_eq!(shared.counts(), (2, 2));
    assert_eq!(to.read(0, 100), vec![UNTOUCHED; 100]);
    assert_eq!(to.read(164, 9_836), vec![UNTOUCHED; 9_836]);

    let status = shared.pair.sides[B].ia.ep_get_status(shared.b[1]);
    assert_eq!(status.expect("exists").state, EpState::Connected);
    shared.exchange(1, &from, 64, 2);
    shared.exchange(1, &from, 64, 3);
    assert_eq!(to.read(300, 64), pattern(18, 10_000)[..64]);
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQ-5, SRQ-R5.
#[test]
fn an_empty_srq_makes_senders_wait_and_then_give_up() {
    let mut shared = Shared::connected();
    let (from, to) = (shared.pair.filled(A, 19, 64), shared.pair.buffer(B, 64));
    shared.send(0, &[from.all()], 1, NONE).expect("posted");
    shared.pair.pump();
    shared.post(&[to.all()], 2).expect("posted");
    shared.expect_received(0, 2, 64);
    shared.pair.expect_request(A, 1, SUCCESS);

    shared.send(0, &[from.all()], 3, NONE).expect("posted");
    shared
        .pair
        .expect_request(A, 3, DtoStatus::ErrReceiverNotReady);
    shared.pair.expect_connection(A, ConnectionEventKind::Broken);
    shared.post(&[to.all()], 4).expect("posted");
    shared.exchange(1, &from, 64, 4);
}

/// Clauses: SRQ-R1, SRQ-27, SRQ-R4.
#[test]
fn completions_that_are_lost_with_their_endpoint_give_their_slots_back() {
    for reset in [false, true] {
        let mut shared = Shared::connected();
        let (from, to) = (shared.pair.filled(A, 20, 64), shared.pair.buffer(B, 64));
        for cookie in 0..16 {
            shared.post(&[to.all()], cookie).expect("posted");
        }
        for _ in 0..5 {
            shared.send(0, &[from.all()], 1, NONE).expect("posted");
        }
        let ep = shared.b[0];
        if reset {
            let ia = &mut shared.pair.sides[B].ia;
            ia.ep_disconnect(ep, CloseFlags::Abrupt).expect("begun");
            ia.ep_reset(ep).expect("reset");
        } else {
            shared.pair.sides[B].ia.ep_free(ep).expect("freed");
        }
        // Some of the completions may be there still; those hold their slots until they are taken.
        let evd = shared.recv[0];
        let left = core::iter::from_fn(|| shared.pair.sides[B].ia.evd_dequeue(evd).ok()).count();
        assert!(left <= 5);
        assert_eq!(shared.counts(), (11, 11), "reset: {reset}");
        for cookie in 16..21 {
            shared.post(&[to.all()], cookie).expect("five are free");
        }
        refused(
            shared.post(&[to.all()], 21),
            ReturnType::InsufficientResources,
        );
        for cookie in 5..21 {
            shared.exchange_next(1, &from, cookie);
        }
        assert_eq!(shared.counts(), (0, 0));
        shared.pair.assert_no_complaints();
    }
}

/// Clauses: SRQ-19.
#[test]
fn an_endpoint_of_an_srq_sends_writes_and_reads_as_any_other() {
    let mut shared = Shared::connected();
    let (mine, theirs) = (shared.pair.filled(B, 21, 3_000), shared.pair.filled(A, 22, 3_000));
    let inbox = shared.pair.buffer(A, 3_000);
    let pair = &mut shared.pair;
    // Several times around the send ring.
    for round in 0..100 {
        pair.post_recv(A, &[inbox.all()], round, NONE)
            .expect("posted");
        pair.post_send(B, &[mine.part(0, 1_000)], round, NONE)
            .expect("posted");
        pair.expect_recv(A, round, SUCCESS);
        pair.expect_request(B, round, SUCCESS);
        let (to, from) = (theirs.remote(0, 1_000), theirs.remote(1_000, 2_000));
        let parts = [mine.part(2_500, 250), mine.part(0, 250), mine.part(1_000, 500)];
        pair.post_write(B, &parts, round, &to, NONE).expect("posted");
        pair.expect_request(B, round, SUCCESS);
        pair.post_read(B, &[mine.part(1_000, 2_000)], round, &from, NONE)
            .expect("posted");
        pair.expect_request(B, round, SUCCESS);
    }
    assert_eq!(inbox.read(0, 1_000), pattern(21, 3_000)[..1_000]);
    assert_eq!(theirs.read(250, 250), pattern(21, 3_000)[..250]);
    assert_eq!(mine.read(1_000, 2_000), pattern(22, 3_000)[1_000..]);
    assert_eq!(shared.counts(), (0, 0));
    shared.pair.assert_no_complaints();
}

/// Clauses: SRQ-R1.
#[test]
fn an_endpoint_of_an_srq_takes_no_receives_of_its_own() {
    let mut shared = Shared::connected();
    let to = shared.pair.buffer(B, 64);
    let error = refused(
        shared.pair.post_recv(B, &[to.all()], 1, NONE),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateSrqInUse);
    assert_eq!(shared.counts(), (0, 0));
}
