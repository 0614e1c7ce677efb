//! `srq_post_recv`, clause by clause: posts, errors, counts. `srq_connections.rs` tests the use of the buffers by
//! connections.
//!
//! An SRQ is always in the state OPERATIONAL here: it cannot enter the state ERROR, to which SRQ-R3 applies.

use rand::Rng;
use udapl::error::{ReturnType, Subtype};
use udapl::memory::LmrTriplet;
use udapl::srq::SrqAttr;
use udapl::{DtoCookie, DtoStatus, EpEvds, MemPrivFlags};

use crate::support::rdma::{Pieces, UNTOUCHED, stream};
use crate::support::shared::{SRQ, Shared};
use crate::support::{self, A, B, NONE, Pair, PairConfig, pattern, refused};

const SUCCESS: DtoStatus = DtoStatus::Success;

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
        for ((lmr, start), length) in [(1, 500), (0, 700), (1, 100), (0, 0)]
            .into_iter()
            .zip(lengths)
        {
            let (now, later) = rest.split_at(length);
            model[lmr][start..start + length].copy_from_slice(now);
            rest = later;
        }
        assert!(first.read(0, 1_000) == model[0], "{bytes} bytes, first LMR");
        assert!(
            second.read(0, 1_000) == model[1],
            "{bytes} bytes, second LMR"
        );
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
    // A buffer without segments is too short for a message of one byte.
    shared.post(&[], 5).expect("posted");
    shared.send(0, &[from.part(0, 1)], 6, NONE).expect("posted");
    assert_eq!(shared.received(0).status, DtoStatus::ErrLocalLength);
}

/// A message is placed where copying it over the segments would place it, whichever connection it came by.
///
/// Clauses: SRQ-5, SRQ-6, SRQ-7, SRQ-21.
#[test]
fn any_message_lands_where_copying_would_whichever_connection_it_came_by() {
    let mut shared = Shared::connected();
    let mut rng = stream(3);
    let from = shared.pair.filled(A, 3, 30_000);
    let data = from.read(0, 30_000);
    // The test sends far more messages than the ring has entries, on two connections in random order.
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
            shared.send(at % 2, &[from.all()], 0, NONE).expect("posted");
            shared.received(at % 2).cookie.0
        })
        .collect();
    // The SRQ decides which buffer a message takes.
    let mut expected = cookies;
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

/// The completion of a buffer is the same as that of a receive of the endpoint that took the buffer.
///
/// Clauses: SRQ-5, SRQ-19, SRQ-10.
#[test]
fn the_completion_is_that_of_a_receive_of_the_endpoint_that_took_the_buffer() {
    let mut shared = Shared::connected();
    let (from, to) = (shared.pair.filled(A, 5, 64), shared.pair.buffer(B, 64));
    shared.post(&[to.all()], 9).expect("posted");
    shared
        .send(1, &[from.part(0, 40)], 1, NONE)
        .expect("posted");
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
        (
            taken.cookie.0,
            taken.status,
            taken.transferred_length,
            taken.request,
            taken.syndrome()
        ),
        (
            own.cookie.0,
            own.status,
            own.transferred_length,
            own.request,
            own.syndrome()
        )
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

/// Posting takes no time, sends no command and writes no register.
///
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
            ia.srq_post_recv(srq, &[to.all()], DtoCookie(1)),
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
    // Completions that are not dequeued occupy their slots, whether the driver has polled them or not.
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

/// Buffers of an endpoint without a receive EVD free their slots without a dequeue.
///
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
        .ep_create_with_srq(
            Some(zone),
            EpEvds::NONE.request(request).connect(connect),
            srq,
            &shape,
        )
        .expect("an endpoint");
    pair.connect();
    let (from, to) = (pair.filled(A, 8, 64), pair.buffer(B, 64));
    for round in 0..40 {
        pair.sides[B]
            .ia
            .srq_post_recv(srq, &[to.all()], DtoCookie(round))
            .expect("the one before it is used up");
        pair.post_send(A, &[from.all()], round, NONE)
            .expect("posted");
        pair.expect_request(A, round, SUCCESS);
    }
    let param = pair.sides[B].ia.srq_query(srq).expect("exists");
    assert_eq!(
        (param.available_dto_count, param.outstanding_dto_count),
        (0, 0)
    );
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
    // The endpoints' own limit on segments is ignored.
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

/// The segments of a buffer must be in the PZ of the SRQ, not in the PZ of the endpoint.
///
/// Clauses: SRQ-29.
#[test]
fn the_zone_that_counts_is_that_of_the_srq_and_not_of_the_endpoint() {
    let other = |ia: &mut udapl::Ia| ia.pz_create().expect("a PZ");
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

/// Buffers are accepted in every state of the endpoints, and stay in the SRQ until an endpoint takes them.
///
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

/// Clauses: SRQ-19.
#[test]
fn an_endpoint_of_an_srq_sends_writes_and_reads_as_any_other() {
    let mut shared = Shared::connected();
    let (mine, theirs) = (
        shared.pair.filled(B, 21, 3_000),
        shared.pair.filled(A, 22, 3_000),
    );
    let inbox = shared.pair.buffer(A, 3_000);
    let pair = &mut shared.pair;
    // The rounds go around the send ring several times.
    for round in 0..100 {
        pair.post_recv(A, &[inbox.all()], round, NONE)
            .expect("posted");
        pair.post_send(B, &[mine.part(0, 1_000)], round, NONE)
            .expect("posted");
        pair.expect_recv(A, round, SUCCESS);
        pair.expect_request(B, round, SUCCESS);
        let (to, from) = (theirs.remote(0, 1_000), theirs.remote(1_000, 2_000));
        let parts = [
            mine.part(2_500, 250),
            mine.part(0, 250),
            mine.part(1_000, 500),
        ];
        pair.post_write(B, &parts, round, &to, NONE)
            .expect("posted");
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
