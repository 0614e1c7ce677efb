//! `ep_post_rdma_write`, clause by clause: A writes memory of B. `rdma_calls.rs` and `rdma_refused.rs` test the common
//! properties of RDMA Write and RDMA Read.
//!
//! A null remote_buffer (in WRITE-R4) cannot be expressed: the argument is a reference.

use rand::Rng;
use udapl::endpoint::EpState;
use udapl::error::ReturnType;
use udapl::memory::LmrTriplet;
use udapl::{CompletionFlags, ConnectionEventKind, DtoCookie, DtoStatus};

use crate::support::rdma::{Pieces, UNTOUCHED, stream};
use crate::support::wire::packets_to;
use crate::support::{A, B, NONE, Pair, pattern, refused};

const SUPPRESS: CompletionFlags = CompletionFlags::SUPPRESS;
const FENCE: CompletionFlags = CompletionFlags::BARRIER_FENCE;
const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;

/// Clauses: WRITE-2, WRITE-4, WRITE-7, WRITE-8, WRITE-11, WRITE-R1.
#[test]
fn the_local_segments_in_array_order_are_placed_from_the_target_address_upward() {
    let mut pair = Pair::connected();
    let (first, second) = (pair.filled(A, 1, 10_000), pair.filled(A, 2, 10_000));
    let target = pair.untouched(B, 20_000);
    let iov = [
        second.part(5_000, 4_097),
        first.part(9_000, 1),
        second.part(100, 2_902),
    ];
    pair.post_write(A, &iov, 5, &target.remote(777, 7_000), NONE)
        .expect("the write is posted");
    let done = pair.expect_request(A, 5, DtoStatus::Success);
    assert_eq!(done.transferred_length, 7_000);
    let data = [pattern(1, 10_000), pattern(2, 10_000)];
    let mut model = vec![UNTOUCHED; 20_000];
    model[777..4_874].copy_from_slice(&data[1][5_000..9_097]);
    model[4_874] = data[0][9_000];
    model[4_875..7_777].copy_from_slice(&data[1][100..3_002]);
    assert!(target.read(0, 20_000) == model);
    assert_eq!(
        [first.read(0, 10_000), second.read(0, 10_000)],
        data,
        "the source is as it was"
    );
    pair.assert_no_complaints();
}

/// Clauses: WRITE-R1.
#[test]
fn a_remote_buffer_larger_than_the_data_is_untouched_behind_it() {
    let mut pair = Pair::connected();
    let source = pair.filled(A, 3, 1_000);
    for bytes in [0, 1, 99, 100, 999] {
        let target = pair.untouched(B, 1_000);
        pair.post_write(
            A,
            &[source.part(0, bytes)],
            1,
            &target.remote(0, 1_000),
            NONE,
        )
        .expect("the write is posted");
        let done = pair.expect_request(A, 1, DtoStatus::Success);
        assert_eq!(done.transferred_length, bytes as u64);
        let mut model = pattern(3, 1_000);
        model[bytes..].fill(UNTOUCHED);
        assert_eq!(target.read(0, 1_000), model, "{bytes} bytes");
    }
    // The length of the data counts: the excess of the remote buffer's length is not checked.
    let target = pair.untouched(B, 100);
    pair.post_write(
        A,
        &[source.part(0, 100)],
        2,
        &target.remote(0, 1 << 30),
        NONE,
    )
    .expect("posted");
    pair.expect_request(A, 2, DtoStatus::Success);
    assert_eq!(target.read(0, 100), pattern(3, 1_000)[..100]);
}

/// An RDMA Write places its bytes where a copy of the segments in array order would.
///
/// Clauses: WRITE-7, WRITE-8, WRITE-R1.
#[test]
fn any_write_puts_its_bytes_where_copying_would() {
    let mut pair = Pair::connected();
    let mut rng = stream(4);
    let source = pair.filled(A, 4, 40_000);
    let data = source.read(0, 40_000);
    for round in 0..60 {
        let target = pair.untouched(B, 50_000);
        let pieces = Pieces::random(&mut rng, 40_000);
        let bytes = pieces.total();
        let at = rng.random_range(0..=50_000 - bytes);
        let room = rng.random_range(bytes..=50_000 - at);
        pair.post_write(
            A,
            &pieces.iov(&source),
            round,
            &target.remote(at, room),
            NONE,
        )
        .expect("posted");
        let done = pair.expect_request(A, round, DtoStatus::Success);
        assert_eq!(done.transferred_length, bytes as u64);
        let mut model = vec![UNTOUCHED; 50_000];
        model[at..at + bytes].copy_from_slice(&pieces.gather(&data));
        assert!(
            target.read(0, 50_000) == model,
            "round {round}: {pieces:?} to {at}"
        );
    }
    pair.assert_no_complaints();
}

/// Clauses: WRITE-8, WRITE-16, WRITE-19.
#[test]
fn slices_write_as_triplets_do() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 5, 300), pair.untouched(B, 300));
    let (ep, ia) = (pair.sides[A].ep, &mut pair.sides[A].ia);
    let whole = ia.lmr_slice(source.lmr.lmr, 0, 300).expect("a slice");
    let iov = [
        whole.part(200, 50).expect("inside"),
        whole.part(0, 10).expect("inside"),
    ];
    assert!(whole.part(250, 51).is_none());
    ia.ep_post_rdma_write(ep, &iov, DtoCookie(1), &target.remote(0, 60), NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::Success);
    let data = pattern(5, 300);
    assert_eq!(target.read(0, 60), [&data[200..250], &data[..10]].concat());
    let ia = &mut pair.sides[A].ia;
    ia.lmr_free(source.lmr.lmr).expect("freed");
    refused(
        ia.ep_post_rdma_write(ep, &iov, DtoCookie(2), &target.remote(0, 60), NONE),
        ReturnType::PrivilegesViolation,
    );
    pair.expect_idle(A);
}

/// Clauses: WRITE-10.
#[test]
fn the_iov_is_the_consumers_again_when_the_call_returns() {
    let mut pair = Pair::connected();
    assert_eq!(
        pair.sides[A].ia.query().provider.iov_ownership_on_return,
        0,
        "DAT_IOV_CONSUMER"
    );
    let (source, target) = (pair.filled(A, 7, 300), pair.untouched(B, 300));
    let mut remote = target.remote(0, 200);
    let mut iov = [source.part(0, 100), source.part(200, 100)];
    pair.set_delay(50);
    // The RDMA Write is fenced behind a read, so it has not started when the call returns.
    let (back, from) = (pair.buffer(A, 8), pair.buffer(B, 8));
    pair.post_read(A, &[back.all()], 0, &from.remote(0, 8), NONE)
        .expect("posted");
    pair.post_write(A, &iov, 1, &remote, FENCE).expect("posted");
    iov.fill(LmrTriplet {
        lmr_context: 0,
        virtual_address: 0,
        segment_length: 0,
    });
    remote.target_address = 0;
    pair.expect_request(A, 0, DtoStatus::Success);
    pair.expect_request(A, 1, DtoStatus::Success);
    let data = pattern(7, 300);
    assert_eq!(target.read(0, 200), [&data[..100], &data[200..]].concat());
    assert_eq!((iov[0].segment_length, remote.target_address), (0, 0));
}

/// An RDMA Write completes after the call has returned, and the target gets no event.
///
/// Clauses: WRITE-13, WRITE-R2, WRITE-R4.
#[test]
fn the_completion_comes_later_and_the_target_hears_nothing() {
    for flags in [NONE, SOLICITED] {
        let mut pair = Pair::connected();
        let (source, target) = (pair.filled(A, 8, 5_000), pair.buffer(B, 5_000));
        let inbox = pair.buffer(B, 64);
        pair.post_recv(B, &[inbox.all()], 1, NONE).expect("posted");
        pair.set_delay(50);
        pair.post_write(A, &[source.all()], 9, &target.remote(0, 5_000), flags)
            .expect("posted");
        let (request, ep) = (pair.sides[A].request, pair.sides[A].ep);
        let ia = &mut pair.sides[A].ia;
        assert_eq!(ia.evd_dequeue(request), Ok(None));
        assert!(!ia.ep_get_status(ep).expect("a status").request_idle);
        let done = pair.expect_request(A, 9, DtoStatus::Success);
        assert_eq!((done.transferred_length, done.syndrome()), (5_000, (0, 0)));
        pair.expect_idle(A);
        assert_eq!(target.read(0, 5_000), pattern(8, 5_000));
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
        // The receive is still posted, and takes a message.
        pair.post_send(A, &[source.part(0, 64)], 10, NONE)
            .expect("posted");
        pair.expect_recv(B, 1, DtoStatus::Success);
    }
}

/// When a message has arrived, the data of earlier RDMA Writes is in memory.
///
/// Clauses: WRITE-R2, WRITE-7.
#[test]
fn what_was_written_is_there_when_a_later_message_is() {
    for seed in 0..6 {
        let mut pair = Pair::connected();
        let (source, target) = (pair.filled(A, seed, 60_000), pair.untouched(B, 60_000));
        let inbox = pair.buffer(B, 8);
        let faults = hw_sim::LinkFaults::swarm(seed);
        pair.fabric.sim.set_faults(pair.fabric.link, faults);
        for at in 0..12 {
            let bytes = at * 5_000..(at + 1) * 5_000;
            pair.post_recv(B, &[inbox.all()], at as u64, NONE)
                .expect("posted");
            pair.post_write(
                A,
                &[source.part(bytes.start, 5_000)],
                0,
                &target.remote(bytes.start, 5_000),
                SUPPRESS,
            )
            .expect("posted");
            pair.post_send(A, &[source.part(0, 8)], at as u64, NONE)
                .expect("posted");
        }
        for at in 0..12 {
            pair.expect_recv(B, at as u64, DtoStatus::Success);
            let data = pattern(seed, 60_000);
            assert!(
                target.read(at * 5_000, 5_000) == data[at * 5_000..(at + 1) * 5_000],
                "seed {seed}, message {at}"
            );
        }
        for at in 0..12 {
            pair.expect_request(A, at, DtoStatus::Success);
        }
    }
}

/// Clauses: WRITE-5.
#[test]
fn a_fenced_write_sends_what_the_read_before_it_brought() {
    for (flags, fresh) in [(NONE, false), (FENCE, true)] {
        let mut pair = Pair::connected();
        let (there, here) = (pair.filled(B, 11, 256), pair.untouched(A, 256));
        let target = pair.buffer(B, 256);
        pair.set_delay(50);
        pair.post_read(A, &[here.all()], 1, &there.remote(0, 256), NONE)
            .expect("posted");
        pair.post_write(A, &[here.all()], 2, &target.remote(0, 256), flags)
            .expect("posted");
        pair.expect_request(A, 1, DtoStatus::Success);
        pair.expect_request(A, 2, DtoStatus::Success);
        let expected = if fresh {
            pattern(11, 256)
        } else {
            vec![UNTOUCHED; 256]
        };
        assert_eq!(target.read(0, 256), expected, "{flags:?}");
    }
}

/// Clauses: WRITE-17.
#[test]
fn a_remote_buffer_smaller_than_the_data_is_a_length_error() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 17, 4_096), pair.untouched(B, 4_096));
    let cases: [(&[LmrTriplet], usize); 4] = [
        (&[source.part(0, 1)], 0),
        (&[source.part(0, 101)], 100),
        (
            &[source.part(0, 50), source.part(50, 0), source.part(60, 51)],
            100,
        ),
        (&[source.all()], 4_095),
    ];
    for (iov, room) in cases {
        refused(
            pair.post_write(A, iov, 1, &target.remote(0, room), NONE),
            ReturnType::LengthError,
        );
    }
    pair.expect_idle(A);
    assert_eq!(target.read(0, 4_096), vec![UNTOUCHED; 4_096]);
    assert_eq!(pair.state(A), EpState::Connected);
    pair.post_write(A, &[source.all()], 2, &target.remote(0, 4_096), NONE)
        .expect("just enough");
    pair.expect_request(A, 2, DtoStatus::Success);
}

/// Clauses: WRITE-R5, WRITE-11.
#[test]
fn a_write_succeeds_only_when_the_peer_has_taken_it() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 22, 64), pair.untouched(B, 64));
    let deaf = hw_sim::Faults {
        loss_ppm: 1_000_000,
        ..hw_sim::Faults::NONE
    };
    let faults = hw_sim::LinkFaults::both(deaf);
    pair.fabric.sim.set_faults(pair.fabric.link, faults);
    pair.post_write(A, &[source.all()], 1, &target.remote(0, 64), NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::ErrTransport);
    pair.expect_connection(A, ConnectionEventKind::Broken);
    assert_eq!(target.read(0, 64), vec![UNTOUCHED; 64]);
}

/// An RDMA Write without segments or without bytes is posted, and completes like any other.
///
/// Clauses: WRITE-R4, WRITE-2.
#[test]
fn no_segments_and_no_bytes_are_a_write_all_the_same() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 24, 64), pair.untouched(B, 64));
    let garbage = LmrTriplet {
        lmr_context: 0xdead_beef,
        virtual_address: u64::MAX,
        segment_length: 0,
    };
    let cases: [&[LmrTriplet]; 3] = [&[], &[source.part(0, 0)], &[garbage; 8]];
    for (cookie, iov) in (0..).zip(cases) {
        for room in [0, 64] {
            pair.post_write(A, iov, cookie, &target.remote(0, room), NONE)
                .expect("posted");
            let done = pair.expect_request(A, cookie, DtoStatus::Success);
            assert_eq!(done.transferred_length, 0);
        }
    }
    assert_eq!(target.read(0, 64), vec![UNTOUCHED; 64]);
    // Each RDMA Write goes to the peer, so it completes after everything posted before it.
    assert_eq!(packets_to(&pair.fabric, B, "WriteOnly").len(), 6);
    let iov = [
        garbage,
        source.part(0, 32),
        garbage,
        source.part(32, 32),
        garbage,
    ];
    pair.post_write(A, &iov, 9, &target.remote(0, 64), NONE)
        .expect("empty segments are stepped over");
    pair.expect_request(A, 9, DtoStatus::Success);
    assert_eq!(target.read(0, 64), pattern(24, 64));
}

/// Clauses: WRITE-11.
#[test]
fn an_endpoint_without_receives_writes_too() {
    let mut pair = Pair::shaped(|_, attr| attr.max_recv_dtos = 0);
    let (source, target) = (pair.filled(A, 25, 3_000), pair.untouched(B, 3_000));
    for round in 0..200 {
        let iov = [source.part(2_000, 1_000), source.part(0, 2_000)];
        pair.post_write(A, &iov, round, &target.remote(0, 3_000), NONE)
            .expect("posted");
        pair.expect_request(A, round, DtoStatus::Success);
    }
    let data = pattern(25, 3_000);
    assert_eq!(
        target.read(0, 3_000),
        [&data[2_000..], &data[..2_000]].concat()
    );
    let inbox = pair.buffer(A, 64);
    refused(
        pair.post_recv(A, &[inbox.all()], 1, NONE),
        ReturnType::InsufficientResources,
    );
    pair.assert_no_complaints();
}
