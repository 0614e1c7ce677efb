//! The depth of RDMA Reads: the number of RDMA Reads that may be outstanding at the initiator and at its peer.

use udapl::DtoStatus;
use udapl::endpoint::EpState;
use udapl::error::ReturnType;

use crate::support::rdma::UNTOUCHED;
use crate::support::wire::{packets, packets_to};
use crate::support::{A, B, NONE, Pair, pattern, refused};

/// Clauses: READ-R6.
#[test]
fn an_endpoint_without_read_depth_reads_nothing() {
    let mut pair = Pair::shaped(|_, attr| attr.max_rdma_read_out = 0);
    let (source, sink) = (pair.filled(B, 25, 64), pair.untouched(A, 64));
    for bytes in [64, 0] {
        refused(
            pair.post_read(A, &[sink.all()], 1, &source.remote(0, bytes), NONE),
            ReturnType::InsufficientResources,
        );
    }
    pair.expect_idle(A);
    assert_eq!(pair.state(A), EpState::Connected);
    assert_eq!(packets_to(&pair.fabric, B, "ReadRequest"), []);
}

/// Returns the largest number of unanswered reads of `reader` at any time.
fn depth_on_the_wire(pair: &Pair, reader: usize) -> usize {
    let mut outstanding = 0;
    let mut most = 0;
    for packet in packets(&pair.fabric) {
        match (packet.to == reader, packet.operation.as_str()) {
            (false, "ReadRequest") => outstanding += 1,
            (true, "ReadResponseLast" | "ReadResponseOnly") => outstanding -= 1,
            _ => {}
        }
        most = most.max(outstanding);
    }
    most
}

/// Reads beyond the depth wait at the initiator, and as many reads as the depth allows are outstanding.
///
/// Clauses: READ-R6.
#[test]
fn reads_beyond_the_depth_wait_here_and_the_depth_is_used() {
    // `max_rdma_read_out` of the initiator, `max_rdma_read_in` of its peer, and the resulting depth. Each row is tested
    // with the active side and with the passive side as initiator.
    let depths = [
        (1, 4, 1),
        (2, 4, 2),
        (4, 4, 4),
        (4, 2, 2),
        (4, 1, 1),
        (8, 16, 8),
    ];
    for ((out, input, depth), reader) in depths.into_iter().flat_map(|at| [(at, A), (at, B)]) {
        let mut pair = Pair::shaped(|side, attr| {
            if side == reader {
                attr.max_rdma_read_out = out;
            } else {
                attr.max_rdma_read_in = input;
            }
        });
        let (source, sink) = (
            pair.filled(1 - reader, 26, 64_000),
            pair.buffer(reader, 64_000),
        );
        pair.set_delay(30);
        for at in 0..32 {
            let (part, from) = (
                sink.part(at * 2_000, 2_000),
                source.remote(at * 2_000, 2_000),
            );
            pair.post_read(reader, &[part], at as u64, &from, NONE)
                .expect("posted, however deep");
        }
        for cookie in 0..32 {
            pair.expect_request(reader, cookie, DtoStatus::Success);
        }
        assert_eq!(sink.read(0, 64_000), pattern(26, 64_000));
        assert_eq!(
            depth_on_the_wire(&pair, reader),
            depth,
            "{out} out, {input} in at the peer, side {reader}"
        );
        assert_eq!(pair.state(reader), EpState::Connected);
        pair.assert_no_complaints();
    }
}

/// Clauses: READ-R6.
#[test]
fn a_depth_that_is_no_power_of_two_is_never_exceeded() {
    for (out, input) in [(3, 4), (4, 3), (5, 16), (7, 7)] {
        let mut pair = Pair::shaped(|side, attr| {
            if side == A {
                attr.max_rdma_read_out = out;
            } else {
                attr.max_rdma_read_in = input;
            }
        });
        let (source, sink) = (pair.filled(B, 29, 2_000), pair.buffer(A, 2_000));
        pair.set_delay(30);
        for cookie in 0..32 {
            pair.post_read(A, &[sink.all()], cookie, &source.remote(0, 2_000), NONE)
                .expect("posted");
        }
        for cookie in 0..32 {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        let depth = depth_on_the_wire(&pair, A);
        assert!(
            (2..=out.min(input) as usize).contains(&depth),
            "{depth} of {out} and {input}"
        );
    }
}

/// Clauses: READ-32.
#[test]
fn one_read_is_too_many_for_a_target_that_takes_none() {
    let mut pair = Pair::shaped(|side, attr| {
        if side == B {
            attr.max_rdma_read_in = 0;
        }
    });
    let (source, sink) = (pair.filled(B, 27, 64), pair.untouched(A, 64));
    assert_eq!(
        pair.state(A),
        EpState::Connected,
        "the mismatch is no reason to refuse"
    );
    pair.post_read(A, &[sink.all()], 1, &source.remote(0, 64), NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::ErrRemoteResponder);
    pair.expect_broken();
    assert_eq!(sink.read(0, 64), vec![UNTOUCHED; 64]);
}

/// Clauses: READ-32.
#[test]
fn more_reads_than_the_target_takes_break_the_connection() {
    for (depth, breaks) in [(4_u8, false), (2, true), (1, true)] {
        let mut pair = Pair::shaped(|side, attr| {
            if side == B {
                attr.max_rdma_read_in = depth.into();
            }
        });
        // The initiator keeps to its peer's limit, unless its device is configured otherwise.
        pair.raise_read_depth(A, 2);
        let (source, sink) = (pair.filled(B, 28, 40_000), pair.untouched(A, 40_000));
        pair.set_delay(50);
        for at in 0..4 {
            let (part, from) = (
                sink.part(at * 10_000, 10_000),
                source.remote(at * 10_000, 10_000),
            );
            pair.post_read(A, &[part], at as u64, &from, NONE)
                .expect("posted");
        }
        assert_eq!(pair.state(B), EpState::Connected);
        let good = u64::from(depth);
        for cookie in 0..good {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        let right = 10_000 * usize::from(depth);
        assert!(
            sink.read(0, right) == pattern(28, 40_000)[..right],
            "depth {depth}"
        );
        if breaks {
            pair.expect_request(A, good, DtoStatus::ErrRemoteResponder);
            for cookie in good + 1..4 {
                pair.expect_request(A, cookie, DtoStatus::ErrFlushed);
            }
            pair.expect_broken();
        } else {
            pair.expect_idle(A);
            assert_eq!(pair.state(B), EpState::Connected);
        }
        pair.assert_no_complaints();
    }
}
