//! `ep_post_rdma_read`, clause by clause: A reads memory of B. `rdma_calls.rs` and `rdma_refused.rs` test the common
//! properties of RDMA Read and RDMA Write, and `read_depth.rs` tests the depth of RDMA Reads.
//!
//! A null remote_buffer (READ-R2) cannot be expressed: the argument is a reference.

use rand::Rng;
use udapl::endpoint::EpState;
use udapl::error::ReturnType;
use udapl::memory::LmrTriplet;
use udapl::{CompletionFlags, DtoCookie, DtoStatus};

use crate::support::rdma::{Pieces, UNTOUCHED, stream};
use crate::support::wire::packets_to;
use crate::support::{A, B, NONE, Pair, pattern, refused};

const FENCE: CompletionFlags = CompletionFlags::BARRIER_FENCE;

/// Clauses: READ-2, READ-3, READ-5, READ-11, READ-12, READ-21, READ-R3.
#[test]
fn the_bytes_of_the_remote_buffer_fill_the_local_segments_in_array_order() {
    let mut pair = Pair::connected();
    let source = pair.filled(B, 1, 20_000);
    let (first, second) = (pair.untouched(A, 10_000), pair.untouched(A, 10_000));
    // The third segment precedes the first segment in memory. The second segment is in another LMR.
    let iov = [
        second.part(5_000, 4_097),
        first.part(9_000, 1),
        second.part(100, 2_902),
    ];
    let remote = source.remote(777, 7_000);
    pair.post_read(A, &iov, 5, &remote, NONE)
        .expect("the read is posted");
    let done = pair.expect_request(A, 5, DtoStatus::Success);
    assert_eq!(done.transferred_length, 7_000);
    let expected = pattern(1, 20_000)[777..7_777].to_vec();
    let mut model = [vec![UNTOUCHED; 10_000], vec![UNTOUCHED; 10_000]];
    model[1][5_000..9_097].copy_from_slice(&expected[..4_097]);
    model[0][9_000] = expected[4_097];
    model[1][100..3_002].copy_from_slice(&expected[4_098..]);
    assert!(first.read(0, 10_000) == model[0], "the first LMR");
    assert!(second.read(0, 10_000) == model[1], "the second LMR");
    assert_eq!(
        source.read(0, 20_000),
        pattern(1, 20_000),
        "the source is as it was"
    );
    pair.assert_no_complaints();
}

/// Clauses: READ-13, READ-R3.
#[test]
fn a_sink_larger_than_its_source_is_full_in_front_and_untouched_behind() {
    let mut pair = Pair::connected();
    let source = pair.filled(B, 2, 1_000);
    for (bytes, full) in [(100, 1), (150, 1), (200, 2), (201, 2), (299, 2), (1, 0)] {
        let sink = pair.untouched(A, 1_000);
        let iov = [
            sink.part(600, 100),
            sink.part(0, 100),
            sink.part(300, 100),
            sink.part(900, 100),
        ];
        pair.post_read(A, &iov, 1, &source.remote(0, bytes), NONE)
            .expect("the read is posted");
        let done = pair.expect_request(A, 1, DtoStatus::Success);
        assert_eq!(
            done.transferred_length, bytes as u64,
            "as many as the source has"
        );
        let mut model = vec![UNTOUCHED; 1_000];
        let data = pattern(2, 1_000);
        for (at, start) in [600, 0, 300].into_iter().enumerate() {
            let now = if at < full {
                100
            } else {
                bytes.saturating_sub(at * 100)
            };
            model[start..start + now].copy_from_slice(&data[at * 100..at * 100 + now]);
        }
        assert!(sink.read(0, 1_000) == model, "{bytes} bytes");
    }
    pair.assert_no_complaints();
}

/// An RDMA Read places its bytes where a copy to the segments in array order would.
///
/// Clauses: READ-11, READ-12, READ-13, READ-R5.
#[test]
fn any_read_puts_its_bytes_where_copying_would() {
    let mut pair = Pair::connected();
    let mut rng = stream(3);
    let source = pair.filled(B, 3, 40_000);
    let data = source.read(0, 40_000);
    for round in 0..60 {
        let sink = pair.untouched(A, 40_000);
        let pieces = Pieces::random(&mut rng, 40_000);
        let bytes = rng.random_range(0..=pieces.total());
        let from = rng.random_range(0..=40_000 - bytes);
        let iov = pieces.iov(&sink);
        pair.post_read(A, &iov, round, &source.remote(from, bytes), NONE)
            .expect("posted");
        let done = pair.expect_request(A, round, DtoStatus::Success);
        assert_eq!(done.transferred_length, bytes as u64);
        let mut model = vec![UNTOUCHED; 40_000];
        pieces.scatter(&mut model, &data[from..from + bytes]);
        assert!(
            sink.read(0, 40_000) == model,
            "round {round}: {bytes} bytes at {from} into {pieces:?}"
        );
    }
    pair.assert_no_complaints();
}

/// Clauses: READ-13, READ-27, READ-30.
#[test]
fn slices_read_as_triplets_do() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 4, 300), pair.untouched(A, 300));
    let (ep, ia) = (pair.sides[A].ep, &mut pair.sides[A].ia);
    let whole = ia.lmr_slice(sink.lmr.lmr, 0, 300).expect("a slice");
    let iov = [
        whole.part(200, 50).expect("inside"),
        whole.part(0, 100).expect("inside"),
    ];
    ia.ep_post_rdma_read(ep, &iov, DtoCookie(1), &source.remote(0, 60), NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::Success);
    let mut model = vec![UNTOUCHED; 300];
    let data = pattern(4, 300);
    model[200..250].copy_from_slice(&data[..50]);
    model[..10].copy_from_slice(&data[50..60]);
    assert_eq!(sink.read(0, 300), model);
    let ia = &mut pair.sides[A].ia;
    refused(
        ia.lmr_slice(sink.lmr.lmr, 250, 51),
        ReturnType::InvalidParameter,
    );
    ia.lmr_free(sink.lmr.lmr).expect("freed");
    refused(
        ia.ep_post_rdma_read(ep, &iov, DtoCookie(2), &source.remote(0, 60), NONE),
        ReturnType::PrivilegesViolation,
    );
    pair.expect_idle(A);
}

/// Clauses: READ-17.
#[test]
fn the_iov_is_the_consumers_again_when_the_call_returns() {
    let mut pair = Pair::connected();
    assert_eq!(
        pair.sides[A].ia.query().provider.iov_ownership_on_return,
        0,
        "DAT_IOV_CONSUMER"
    );
    let (source, sink) = (pair.filled(B, 6, 300), pair.untouched(A, 300));
    let mut remote = source.remote(0, 200);
    let mut iov = [sink.part(0, 100), sink.part(200, 100)];
    pair.set_delay(50);
    pair.post_read(A, &iov, 1, &remote, NONE).expect("posted");
    iov.fill(LmrTriplet {
        lmr_context: 0,
        virtual_address: 0,
        segment_length: 0,
    });
    remote.target_address = 0;
    pair.expect_request(A, 1, DtoStatus::Success);
    let data = pattern(6, 300);
    assert_eq!(
        [sink.read(0, 100), sink.read(200, 100)].concat(),
        data[..200]
    );
    assert_eq!((iov[0].segment_length, remote.target_address), (0, 0));
}

/// Clauses: READ-6, READ-20.
#[test]
fn the_completion_comes_later_and_only_on_the_request_evd() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 7, 5_000), pair.buffer(A, 5_000));
    pair.set_delay(50);
    pair.post_read(A, &[sink.all()], 9, &source.remote(0, 5_000), NONE)
        .expect("posted");
    let (request, ep) = (pair.sides[A].request, pair.sides[A].ep);
    let ia = &mut pair.sides[A].ia;
    assert_eq!(ia.evd_dequeue(request), Ok(None));
    assert!(!ia.ep_get_status(ep).expect("a status").request_idle);
    let done = pair.expect_request(A, 9, DtoStatus::Success);
    assert_eq!((done.transferred_length, done.syndrome()), (5_000, (0, 0)));
    pair.expect_idle(A);
    for evd in [
        pair.sides[A].recv,
        pair.sides[A].connect,
        pair.sides[A].ia.async_evd(),
    ] {
        pair.expect_nothing(A, evd);
    }
    for evd in [
        pair.sides[B].recv,
        pair.sides[B].request,
        pair.sides[B].connect,
        pair.sides[B].ia.async_evd(),
    ] {
        pair.expect_nothing(B, evd);
    }
}

/// Clauses: READ-10.
#[test]
fn a_fenced_read_starts_when_the_reads_before_it_are_complete() {
    for flags in [NONE, FENCE] {
        let mut pair = Pair::connected();
        let (source, sink) = (pair.filled(B, 12, 30_000), pair.buffer(A, 30_000));
        pair.set_delay(50);
        pair.post_read(
            A,
            &[sink.part(0, 20_000)],
            1,
            &source.remote(0, 20_000),
            NONE,
        )
        .expect("posted");
        pair.post_read(
            A,
            &[sink.part(20_000, 10_000)],
            2,
            &source.remote(20_000, 10_000),
            flags,
        )
        .expect("posted");
        pair.expect_request(A, 1, DtoStatus::Success);
        pair.expect_request(A, 2, DtoStatus::Success);
        assert_eq!(sink.read(0, 30_000), pattern(12, 30_000));
        let asked = packets_to(&pair.fabric, B, "ReadRequest");
        let answered = packets_to(&pair.fabric, A, "ReadResponseLast");
        assert_eq!((asked.len(), answered.len()), (2, 2));
        let waited = asked[1].at >= answered[0].at + 50_000;
        assert_eq!(
            waited,
            flags == FENCE,
            "asked at {} and {}, answered at {}",
            asked[0].at,
            asked[1].at,
            answered[0].at
        );
    }
}

/// Clauses: READ-28.
#[test]
fn a_sink_smaller_than_its_source_is_a_length_error() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 19, 4_096), pair.untouched(A, 4_096));
    let cases: [(&[LmrTriplet], usize); 4] = [
        (&[], 1),
        (&[sink.part(0, 99)], 100),
        (
            &[sink.part(0, 50), sink.part(50, 0), sink.part(60, 49)],
            100,
        ),
        (&[sink.all()], 4_097),
    ];
    for (iov, bytes) in cases {
        refused(
            pair.post_read(A, iov, 1, &source.remote(0, bytes), NONE),
            ReturnType::LengthError,
        );
    }
    pair.expect_idle(A);
    assert_eq!(sink.read(0, 4_096), vec![UNTOUCHED; 4_096]);
    assert_eq!(pair.state(A), EpState::Connected);
    pair.post_read(
        A,
        &[sink.part(0, 50), sink.part(60, 50)],
        2,
        &source.remote(0, 100),
        NONE,
    )
    .expect("just enough");
    pair.expect_request(A, 2, DtoStatus::Success);
}

/// A read without segments or without bytes is posted, and completes like any other.
///
/// Clauses: READ-R5, READ-2.
#[test]
fn no_segments_and_no_bytes_are_a_read_all_the_same() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 24, 64), pair.untouched(A, 64));
    let garbage = LmrTriplet {
        lmr_context: 0xdead_beef,
        virtual_address: u64::MAX,
        segment_length: 0,
    };
    let cases: [&[LmrTriplet]; 4] = [&[], &[sink.part(0, 0)], &[garbage; 8], &[sink.all()]];
    for (cookie, iov) in (0..).zip(cases) {
        pair.post_read(A, iov, cookie, &source.remote(0, 0), NONE)
            .expect("posted");
        let done = pair.expect_request(A, cookie, DtoStatus::Success);
        assert_eq!(done.transferred_length, 0);
    }
    assert_eq!(sink.read(0, 64), vec![UNTOUCHED; 64]);
    // Each read goes to the peer and back, so it completes after everything posted before it.
    assert_eq!(packets_to(&pair.fabric, B, "ReadRequest").len(), 4);
    let iov = [
        garbage,
        sink.part(0, 32),
        garbage,
        sink.part(32, 32),
        garbage,
    ];
    pair.post_read(A, &iov, 9, &source.remote(0, 64), NONE)
        .expect("empty segments are stepped over");
    pair.expect_request(A, 9, DtoStatus::Success);
    assert_eq!(sink.read(0, 64), pattern(24, 64));
}

/// Clauses: READ-21, READ-7, READ-R6.
#[test]
fn reads_survive_a_wire_that_loses_reorders_and_damages() {
    for seed in 0..6 {
        let mut pair = Pair::connected();
        let source = pair.filled(B, seed, 100_000);
        let sink = pair.untouched(A, 100_000);
        let faults = hw_sim::LinkFaults::swarm(seed);
        pair.fabric.sim.set_faults(pair.fabric.link, faults);
        for at in 0..20 {
            let part = sink.part(at * 5_000, 5_000);
            pair.post_read(
                A,
                &[part],
                at as u64,
                &source.remote(at * 5_000, 5_000),
                NONE,
            )
            .expect("posted");
        }
        for cookie in 0..20 {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        assert!(
            sink.read(0, 100_000) == pattern(seed, 100_000),
            "seed {seed}"
        );
    }
}
