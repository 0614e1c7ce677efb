//! `ep_post_rdma_read`, clause by clause: A reads memory of B.
//!
//! A null remote_buffer (READ-R2) cannot be said: the argument is a reference.

mod support;

use core::time::Duration;

use dat::{
    CloseFlags, CompletionFlags, ConnectFlags, DtoStatus, EpState, LmrTriplet, MemPrivFlags, Qos,
    ReturnType, RmrTriplet, Subtype, Timeout,
};
use rand::Rng;
use support::rdma::{Pieces, UNTOUCHED, stream};
use support::wire::{packets, packets_to};
use support::{A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, pattern, refused};

const SUPPRESS: CompletionFlags = CompletionFlags::SUPPRESS;
const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;
const FENCE: CompletionFlags = CompletionFlags::BARRIER_FENCE;

/// Clauses: READ-2, READ-3, READ-5, READ-11, READ-12, READ-21, READ-R3.
#[test]
fn the_bytes_of_the_remote_buffer_fill_the_local_segments_in_array_order() {
    let mut pair = Pair::connected();
    let source = pair.filled(B, 1, 20_000);
    let (first, second) = (pair.untouched(A, 10_000), pair.untouched(A, 10_000));
    // The second segment lies in front of the third, and in another LMR than the first.
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
    ia.ep_post_rdma_read(ep, &iov, 1, &source.remote(0, 60), NONE)
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
        ia.ep_post_rdma_read(ep, &iov, 2, &source.remote(0, 60), NONE),
        ReturnType::PrivilegesViolation,
    );
    pair.expect_idle(A);
}

/// Clauses: READ-4, READ-14.
#[test]
fn cookies_come_back_unchanged_whatever_they_are_and_however_often_the_same() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 5, 64), pair.buffer(A, 64));
    let cookies = [0, u64::MAX, 1 << 63, 0xdead_beef_0bad_cafe, 0, 0, u64::MAX];
    for cookie in cookies {
        pair.post_read(A, &[sink.all()], cookie, &source.remote(0, 64), NONE)
            .expect("posted");
    }
    for cookie in cookies {
        pair.expect_request(A, cookie, DtoStatus::Success);
    }
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
    refused(ia.evd_dequeue(request), ReturnType::QueueEmpty);
    assert!(!ia.ep_get_status(ep).expect("a status").request_idle);
    let done = pair.expect_request(A, 9, DtoStatus::Success);
    assert_eq!((done.transferred_length, done.syndrome), (5_000, (0, 0)));
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

/// Clauses: READ-7.
#[test]
fn a_suppressed_read_is_silent_when_it_succeeds() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 8, 128), pair.buffer(A, 128));
    pair.post_read(
        A,
        &[sink.part(0, 64)],
        1,
        &source.remote(0, 64),
        SUPPRESS,
    )
    .expect("posted");
    pair.post_read(A, &[sink.part(64, 64)], 2, &source.remote(64, 64), NONE)
        .expect("posted");
    pair.expect_request(A, 2, DtoStatus::Success);
    pair.expect_idle(A);
    assert_eq!(sink.read(0, 128), pattern(8, 128));
}

/// Clauses: READ-7, READ-R7, READ-R8.
#[test]
fn a_suppressed_read_that_fails_is_reported_and_so_are_those_behind_it() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 9, 64), pair.untouched(A, 4_096));
    let beyond = RmrTriplet {
        target_address: source.remote(0, 64).target_address + 1,
        ..source.remote(0, 64)
    };
    pair.set_delay(20);
    let iov = [sink.part(1_000, 64)];
    pair.post_read(A, &iov, 1, &source.remote(0, 64), SUPPRESS)
        .expect("posted");
    pair.post_read(A, &iov, 2, &beyond, SUPPRESS)
        .expect("posted");
    pair.post_read(A, &iov, 3, &source.remote(0, 64), SUPPRESS)
        .expect("posted");
    pair.expect_request(A, 2, DtoStatus::ErrRemoteAccess);
    pair.expect_request(A, 3, DtoStatus::ErrFlushed);
    pair.expect_broken();
    pair.expect_idle(A);
    // What the segments hold is undefined now; what lies around them is not.
    let outside = [sink.read(0, 1_000), sink.read(1_064, 4_096 - 1_064)].concat();
    assert_eq!(outside, vec![UNTOUCHED; 4_096 - 64]);
}

/// How long `evd_wait` takes on A's request EVD for a read that needs 200 microseconds.
fn wait_for_read(pair: &mut Pair, flags: CompletionFlags) -> (Duration, u64) {
    let (source, sink) = (pair.filled(B, 10, 64), pair.buffer(A, 64));
    pair.set_delay(100);
    pair.post_read(A, &[sink.all()], 4, &source.remote(0, 64), flags)
        .expect("posted");
    let start = pair.now();
    let request = pair.sides[A].request;
    let (event, _) = pair.sides[A]
        .ia
        .evd_wait(request, Timeout::from_micros(5_000), 1)
        .expect("an event");
    let dat::Event::Dto(done) = event else {
        panic!("{event:?}")
    };
    assert_eq!(done.status, DtoStatus::Success);
    (
        Duration::from_nanos(pair.now().0 - start.0),
        done.cookie,
    )
}

/// Clauses: READ-6, READ-8.
#[test]
fn an_unsignalled_read_wakes_no_waiter_and_a_plain_one_does() {
    let mut pair = Pair::shaped(|_, attr| attr.request_completion_flags = UNSIGNALLED);
    let (quick, cookie) = wait_for_read(&mut pair, NONE);
    assert_eq!(cookie, 4);
    assert!(quick < Duration::from_micros(1_000), "{quick:?}");
    // The time runs out, and only then does the count decide.
    let (slow, cookie) = wait_for_read(&mut pair, UNSIGNALLED);
    assert_eq!(cookie, 4);
    assert!(slow >= Duration::from_micros(5_000), "{slow:?}");
}

/// Clauses: READ-9, READ-R1.
#[test]
fn flags_that_are_unknown_or_not_the_endpoints_are_the_sixth_argument() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 11, 64), pair.untouched(A, 64));
    let illegal = [
        UNSIGNALLED,
        UNSIGNALLED | SUPPRESS,
        CompletionFlags::EVD_THRESHOLD,
        CompletionFlags::from_bits_retain(0x20),
        CompletionFlags::from_bits_retain(0x8000_0000),
    ];
    for flags in illegal {
        let error = refused(
            pair.post_read(A, &[sink.all()], 1, &source.remote(0, 64), flags),
            ReturnType::InvalidParameter,
        );
        assert_eq!(error.subtype(), Subtype::Arg6, "{flags:?}");
    }
    pair.expect_idle(A);
    assert_eq!(sink.read(0, 64), vec![UNTOUCHED; 64]);
    let legal = [NONE, CompletionFlags::SOLICITED_WAIT, FENCE, FENCE | CompletionFlags::SOLICITED_WAIT];
    for flags in legal {
        pair.post_read(A, &[sink.all()], 2, &source.remote(0, 64), flags)
            .expect("posted");
        pair.expect_request(A, 2, DtoStatus::Success);
    }
    let mut pair = Pair::shaped(|_, attr| attr.request_completion_flags = UNSIGNALLED);
    let (source, sink) = (pair.filled(B, 11, 64), pair.buffer(A, 64));
    let all = UNSIGNALLED | SUPPRESS | FENCE | CompletionFlags::SOLICITED_WAIT;
    pair.post_read(A, &[sink.all()], 3, &source.remote(0, 64), all)
        .expect("posted");
    pair.post_read(A, &[sink.all()], 4, &source.remote(0, 64), UNSIGNALLED)
        .expect("posted");
    pair.expect_request(A, 4, DtoStatus::Success);
    for flags in [CompletionFlags::EVD_THRESHOLD, CompletionFlags::from_bits_retain(0x40)] {
        refused(
            pair.post_read(A, &[sink.all()], 1, &source.remote(0, 64), flags),
            ReturnType::InvalidParameter,
        );
    }
    pair.expect_idle(A);
}

/// Clauses: READ-10.
#[test]
fn a_fenced_read_starts_when_the_reads_before_it_are_complete() {
    for flags in [NONE, FENCE] {
        let mut pair = Pair::connected();
        let (source, sink) = (pair.filled(B, 12, 30_000), pair.buffer(A, 30_000));
        pair.set_delay(50);
        pair.post_read(A, &[sink.part(0, 20_000)], 1, &source.remote(0, 20_000), NONE)
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

/// Clauses: READ-1.
#[test]
fn a_freed_or_foreign_endpoint_is_no_handle() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 13, 64), pair.buffer(A, 64));
    let side = &mut pair.sides[A];
    let freed = side
        .ia
        .ep_create(Some(side.pz), None, None, None, None)
        .expect("an endpoint");
    side.ia.ep_free(freed).expect("freed");
    for ep in [freed, pair.sides[B].ep] {
        let error = refused(
            pair.sides[A]
                .ia
                .ep_post_rdma_read(ep, &[sink.all()], 1, &source.remote(0, 64), NONE),
            ReturnType::InvalidHandle,
        );
        assert_eq!(error.subtype(), Subtype::HandleEp);
    }
    pair.expect_idle(A);
}

/// Clauses: READ-23, READ-24, READ-25.
#[test]
fn reads_are_for_connected_and_disconnected_endpoints_only() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (source, sink) = (pair.filled(B, 14, 64), pair.untouched(A, 64));
    let (sink_b, source_a) = (pair.untouched(B, 64), pair.filled(A, 14, 64));
    let read = |pair: &mut Pair, side: usize, cookie| {
        let (sink, remote) = if side == A {
            (sink.all(), source.remote(0, 64))
        } else {
            (sink_b.all(), source_a.remote(0, 64))
        };
        pair.post_read(side, &[sink], cookie, &remote, NONE)
    };
    let error = refused(read(&mut pair, A, 1), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEpUnconnected);

    let (ep, address) = (pair.sides[A].ep, pair.sides[B].ia.query().ia.ia_address);
    pair.sides[A]
        .ia
        .ep_connect(ep, address, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, ConnectFlags::empty())
        .expect("accepted");
    let error = refused(read(&mut pair, A, 2), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEpActiveConnectionPending);

    let dat::Event::ConnectionRequest(request) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    let ep_b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .cr_accept(request.cr, Some(ep_b), b"")
        .expect("accepted");
    let error = refused(read(&mut pair, B, 3), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEpCompletionPending);
    pair.expect_connection(A, dat::ConnectionEventKind::Established);
    pair.expect_connection(B, dat::ConnectionEventKind::Established);

    for side in [A, B] {
        read(&mut pair, side, 4).expect("connected");
        pair.expect_request(side, 4, DtoStatus::Success);
    }
    assert_eq!(sink.read(0, 64), pattern(14, 64));
    assert_eq!(sink_b.read(0, 64), pattern(14, 64));

    pair.set_delay(50);
    read(&mut pair, A, 5).expect("connected");
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("begun");
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    let error = refused(read(&mut pair, A, 6), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEpDisconnectPending);
    pair.expect_request(A, 5, DtoStatus::Success);
    pair.expect_connection(A, dat::ConnectionEventKind::Disconnected);
    pair.expect_connection(B, dat::ConnectionEventKind::Disconnected);

    let before = packets(&pair.fabric).len();
    for side in [A, B] {
        for cookie in [7, 8] {
            read(&mut pair, side, cookie).expect("accepted, to be flushed");
        }
        // At once: the first look finds them.
        for cookie in [7, 8] {
            let request = pair.sides[side].request;
            let event = pair.sides[side].ia.evd_dequeue(request).expect("flushed");
            let dat::Event::Dto(done) = event else {
                panic!("{event:?}")
            };
            assert_eq!(
                (done.cookie, done.status, done.request, done.ep),
                (cookie, DtoStatus::ErrFlushed, true, pair.sides[side].ep)
            );
        }
        pair.expect_idle(side);
    }
    assert_eq!(packets(&pair.fabric).len(), before, "nothing went out");
    // What a disconnected endpoint is given is checked all the same.
    refused(
        pair.post_read(A, &[sink.part(0, 65)], 9, &source.remote(0, 64), NONE),
        ReturnType::InvalidParameter,
    );
    pair.sides[A].ia.ep_reset(ep).expect("reset");
    let error = refused(read(&mut pair, A, 10), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEpUnconnected);
    pair.expect_idle(A);
}

/// Clauses: READ-24.
#[test]
fn a_suppressed_read_of_a_disconnected_endpoint_is_flushed_aloud() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 15, 64), pair.buffer(A, 64));
    pair.disconnect();
    pair.post_read(A, &[sink.all()], 1, &source.remote(0, 64), SUPPRESS)
        .expect("accepted");
    pair.expect_request(A, 1, DtoStatus::ErrFlushed);
}

/// Clauses: READ-26.
#[test]
fn as_many_reads_as_max_request_dtos_may_be_outstanding() {
    let mut pair = Pair::shaped(|_, attr| attr.max_request_dtos = 6);
    let (source, sink) = (pair.filled(B, 16, 64), pair.buffer(A, 64));
    pair.set_delay(50);
    let remote = source.remote(0, 64);
    for cookie in 0..6 {
        pair.post_read(A, &[sink.all()], cookie, &remote, NONE)
            .expect("posted");
    }
    for _ in 0..2 {
        refused(
            pair.post_read(A, &[sink.all()], 6, &remote, NONE),
            ReturnType::InsufficientResources,
        );
    }
    pair.expect_request(A, 0, DtoStatus::Success);
    pair.post_read(A, &[sink.all()], 7, &remote, NONE)
        .expect("there is room again");
    for cookie in [1, 2, 3, 4, 5, 7] {
        pair.expect_request(A, cookie, DtoStatus::Success);
    }
    pair.expect_idle(A);
}

/// Clauses: READ-26.
#[test]
fn a_read_that_is_complete_holds_no_slot_although_nobody_dequeued_it() {
    let mut pair = Pair::shaped(|_, attr| attr.max_request_dtos = 4);
    let (source, sink) = (pair.filled(B, 17, 64), pair.buffer(A, 64));
    let remote = source.remote(0, 64);
    for cookie in 0..16 {
        pair.post_read(A, &[sink.all()], cookie, &remote, NONE)
            .expect("those before it are complete");
    }
    for cookie in 0..16 {
        pair.expect_request(A, cookie, DtoStatus::Success);
    }
    for cookie in 0..64 {
        pair.post_read(A, &[sink.all()], cookie, &remote, SUPPRESS)
            .expect("those before it are complete");
    }
    pair.post_read(A, &[sink.all()], 99, &remote, NONE)
        .expect("posted");
    pair.expect_request(A, 99, DtoStatus::Success);
    pair.expect_idle(A);
}

/// Clauses: READ-27.
#[test]
fn a_segment_outside_its_lmr_is_the_third_argument() {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 18, 4_096), pair.untouched(A, 4_096));
    let start = sink.lmr.registered_address;
    let ranges = [
        (start - 1, 64),
        (start - 64, 64),
        (start + 4_096 - 63, 64),
        (start + 4_096, 1),
        (start, 4_097),
        (start + 64, u64::MAX),
        (start, u64::MAX - start + 1),
        (u64::MAX, 64),
        (0, 64),
    ];
    for (virtual_address, segment_length) in ranges {
        let bad = LmrTriplet {
            virtual_address,
            segment_length,
            ..sink.all()
        };
        for iov in [&[bad][..], &[sink.part(0, 64), bad], &[bad, sink.part(0, 64)]] {
            let error = refused(
                pair.post_read(A, iov, 1, &source.remote(0, 64), NONE),
                ReturnType::InvalidParameter,
            );
            assert_eq!(error.subtype(), Subtype::Arg3, "{bad:x?}");
        }
    }
    pair.expect_idle(A);
    assert_eq!(sink.read(0, 4_096), vec![UNTOUCHED; 4_096]);
    for part in [sink.part(0, 1), sink.part(4_095, 1), sink.all()] {
        pair.post_read(A, &[part], 2, &source.remote(0, part.segment_length as usize), NONE)
            .expect("up to the last byte");
        pair.expect_request(A, 2, DtoStatus::Success);
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
        (&[sink.part(0, 50), sink.part(50, 0), sink.part(60, 49)], 100),
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
    pair.post_read(A, &[sink.part(0, 50), sink.part(60, 50)], 2, &source.remote(0, 100), NONE)
        .expect("just enough");
    pair.expect_request(A, 2, DtoStatus::Success);
}

/// Clauses: READ-29.
#[test]
fn a_local_lmr_of_another_zone_is_a_protection_violation() {
    let mut pair = Pair::connected();
    let (source, good) = (pair.filled(B, 20, 64), pair.buffer(A, 64));
    let elsewhere = pair.sides[A].ia.pz_create().expect("a PZ");
    let foreign = pair.buffer_in(A, 64, elsewhere, MemPrivFlags::all());
    for iov in [&[foreign.all()][..], &[good.all(), foreign.part(0, 1)]] {
        refused(
            pair.post_read(A, iov, 1, &source.remote(0, 64), NONE),
            ReturnType::ProtectionViolation,
        );
    }
    pair.expect_idle(A);
    // Of an empty segment nothing is looked at.
    pair.post_read(A, &[foreign.part(0, 0), good.all()], 2, &source.remote(0, 64), NONE)
        .expect("posted");
    pair.expect_request(A, 2, DtoStatus::Success);
}

/// Clauses: READ-30.
#[test]
fn a_local_lmr_that_is_gone_or_not_writable_is_a_privileges_violation() {
    let mut pair = Pair::connected();
    let (source, good) = (pair.filled(B, 21, 64), pair.buffer(A, 64));
    let pz = pair.sides[A].pz;
    let readable = pair.buffer_in(
        A,
        64,
        pz,
        MemPrivFlags::LOCAL_READ | MemPrivFlags::REMOTE_READ,
    );
    let error = refused(
        pair.post_read(A, &[readable.all()], 1, &source.remote(0, 64), NONE),
        ReturnType::PrivilegesViolation,
    );
    assert_eq!(error.subtype(), Subtype::PrivilegesWrite);
    let freed = pair.buffer(A, 64);
    pair.sides[A].ia.lmr_free(freed.lmr.lmr).expect("freed");
    let unknown = LmrTriplet {
        lmr_context: 0xffff_ff00,
        ..good.all()
    };
    let stale = LmrTriplet {
        lmr_context: good.lmr.lmr_context ^ 1,
        ..good.all()
    };
    for bad in [freed.all(), unknown, stale] {
        for iov in [&[bad][..], &[good.all(), bad]] {
            refused(
                pair.post_read(A, iov, 1, &source.remote(0, 64), NONE),
                ReturnType::PrivilegesViolation,
            );
        }
    }
    pair.expect_idle(A);
    let writable = pair.buffer_in(A, 64, pz, MemPrivFlags::LOCAL_WRITE);
    pair.post_read(A, &[writable.all()], 2, &source.remote(0, 64), NONE)
        .expect("the right to write locally is all it takes");
    pair.expect_request(A, 2, DtoStatus::Success);
    assert_eq!(writable.read(0, 64), pattern(21, 64));
}

/// A read of B's memory that B must not allow: ERR_REMOTE_ACCESS, and the connection is broken.
fn expect_remote_refusal(what: &str, remote: impl Fn(&mut Pair) -> RmrTriplet) {
    let mut pair = Pair::connected();
    let (source, sink) = (pair.filled(B, 22, 4_096), pair.untouched(A, 8_192));
    let bad = remote(&mut pair);
    pair.set_delay(20);
    let good = source.remote(0, 4_096);
    let fits = bad.segment_length as usize;
    pair.post_read(A, &[sink.part(0, 4_096)], 1, &good, NONE)
        .expect("posted");
    pair.post_read(A, &[sink.part(4_096, fits)], 2, &bad, NONE)
        .unwrap_or_else(|error| panic!("{what}: only B can know, not {error}"));
    pair.post_read(A, &[sink.part(0, 4_096)], 3, &good, NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::Success);
    let done = pair.wait_request(A);
    assert_eq!(
        (done.cookie, done.status),
        (2, DtoStatus::ErrRemoteAccess),
        "{what}"
    );
    assert_ne!(done.syndrome, (0, 0), "{what}: the device says why");
    pair.expect_request(A, 3, DtoStatus::ErrFlushed);
    pair.expect_broken();
    pair.expect_idle(A);
    assert_eq!(sink.read(0, 4_096), pattern(22, 4_096));
    let around = 4_096 + fits;
    assert_eq!(
        sink.read(around, 8_192 - around),
        vec![UNTOUCHED; 8_192 - around],
        "{what}"
    );
    pair.assert_no_complaints();
}

/// Clauses: READ-29, READ-R7.
#[test]
fn a_remote_buffer_in_another_zone_than_the_remote_endpoint_breaks_the_connection() {
    expect_remote_refusal("another zone", |pair| {
        let elsewhere = pair.sides[B].ia.pz_create().expect("a PZ");
        let memory = pair.buffer_in(B, 64, elsewhere, MemPrivFlags::all());
        memory.remote(0, 64)
    });
}

/// Clauses: READ-30, READ-R7.
#[test]
fn a_remote_buffer_without_the_right_of_remote_read_breaks_the_connection() {
    expect_remote_refusal("no right", |pair| {
        let pz = pair.sides[B].pz;
        let rights = MemPrivFlags::all() - MemPrivFlags::REMOTE_READ;
        pair.buffer_in(B, 64, pz, rights).remote(0, 64)
    });
}

/// Clauses: READ-R7.
#[test]
fn a_remote_buffer_that_is_not_or_not_there_breaks_the_connection() {
    expect_remote_refusal("no such context", |pair| RmrTriplet {
        rmr_context: 0xffff_ff00,
        ..pair.buffer(B, 64).remote(0, 64)
    });
    expect_remote_refusal("another variant of the context", |pair| {
        let good = pair.buffer(B, 64).remote(0, 64);
        RmrTriplet {
            rmr_context: good.rmr_context ^ 1,
            ..good
        }
    });
    expect_remote_refusal("freed", |pair| {
        let memory = pair.buffer(B, 64);
        pair.sides[B].ia.lmr_free(memory.lmr.lmr).expect("freed");
        memory.remote(0, 64)
    });
    expect_remote_refusal("one byte behind the end", |pair| {
        let memory = pair.buffer(B, 4_096);
        memory.remote(4_096 - 63, 64)
    });
    expect_remote_refusal("one byte before the start", |pair| {
        let good = pair.buffer(B, 4_096).remote(0, 64);
        RmrTriplet {
            target_address: good.target_address - 1,
            ..good
        }
    });
    expect_remote_refusal("around the end of the address space", |pair| RmrTriplet {
        target_address: u64::MAX - 8,
        ..pair.buffer(B, 64).remote(0, 64)
    });
}

/// Clauses: READ-R4.
#[test]
fn segments_and_bytes_are_limited_by_the_attributes() {
    let mut pair = Pair::shaped(|_, attr| {
        (attr.max_request_iov, attr.max_rdma_size) = (3, 4_096);
    });
    let (source, sink) = (pair.filled(B, 23, 8_192), pair.untouched(A, 8_192));
    let one = sink.part(0, 1);
    let error = refused(
        pair.post_read(A, &[one; 4], 1, &source.remote(0, 4), NONE),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg2, "max_request_iov");
    refused(
        pair.post_read(A, &[sink.all()], 1, &source.remote(0, 4_097), NONE),
        ReturnType::InvalidParameter,
    );
    pair.expect_idle(A);
    pair.post_read(A, &[one; 3], 2, &source.remote(0, 3), NONE)
        .expect("three segments");
    pair.post_read(A, &[sink.all()], 3, &source.remote(0, 4_096), NONE)
        .expect("the source counts, not the sink");
    pair.expect_request(A, 2, DtoStatus::Success);
    pair.expect_request(A, 3, DtoStatus::Success);

    let mut pair = Pair::shaped(|_, attr| {
        (attr.max_request_iov, attr.max_rdma_read_iov) = (2, 5);
    });
    let (source, sink) = (pair.filled(B, 23, 64), pair.untouched(A, 64));
    let one = sink.part(0, 1);
    refused(
        pair.post_read(A, &[one; 6], 1, &source.remote(0, 6), NONE),
        ReturnType::InvalidParameter,
    );
    let five = [0, 1, 2, 3, 4].map(|at| sink.part(at * 10, 2));
    pair.post_read(A, &five, 2, &source.remote(0, 10), NONE)
        .expect("max_rdma_read_iov, though max_request_iov is 2");
    pair.expect_request(A, 2, DtoStatus::Success);
    let gathered: Vec<u8> = (0..5).flat_map(|at| sink.read(at * 10, 2)).collect();
    assert_eq!(gathered, pattern(23, 64)[..10]);
}

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
    // Each went to the peer and back: it is done when everything before it is.
    assert_eq!(packets_to(&pair.fabric, B, "ReadRequest").len(), 4);
    let iov = [garbage, sink.part(0, 32), garbage, sink.part(32, 32), garbage];
    pair.post_read(A, &iov, 9, &source.remote(0, 64), NONE)
        .expect("empty segments are stepped over");
    pair.expect_request(A, 9, DtoStatus::Success);
    assert_eq!(sink.read(0, 64), pattern(24, 64));
}

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

/// The most reads that were asked for and not answered at a time.
fn depth_on_the_wire(pair: &Pair) -> usize {
    let mut outstanding = 0;
    let mut most = 0;
    for packet in packets(&pair.fabric) {
        match (packet.to, packet.operation.as_str()) {
            (B, "ReadRequest") => outstanding += 1,
            (A, "ReadResponseLast" | "ReadResponseOnly") => outstanding -= 1,
            _ => {}
        }
        most = most.max(outstanding);
    }
    most
}

/// Clauses: READ-R6.
#[test]
fn reads_beyond_the_depth_wait_here_and_the_depth_is_used() {
    // Ours, the peer's, what goes.
    for (out, input, depth) in [(1, 4, 1), (2, 4, 2), (4, 4, 4), (4, 2, 2), (4, 1, 1), (8, 16, 8)] {
        let mut pair = Pair::shaped(|side, attr| {
            if side == A {
                attr.max_rdma_read_out = out;
            } else {
                attr.max_rdma_read_in = input;
            }
        });
        let (source, sink) = (pair.filled(B, 26, 64_000), pair.buffer(A, 64_000));
        pair.set_delay(30);
        for at in 0..32 {
            pair.post_read(
                A,
                &[sink.part(at * 2_000, 2_000)],
                at as u64,
                &source.remote(at * 2_000, 2_000),
                NONE,
            )
            .expect("posted, however deep");
        }
        for cookie in 0..32 {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        assert_eq!(sink.read(0, 64_000), pattern(26, 64_000));
        assert_eq!(
            depth_on_the_wire(&pair),
            depth,
            "{out} out, {input} in at the peer"
        );
        assert_eq!(pair.state(B), EpState::Connected);
        pair.assert_no_complaints();
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
    assert_eq!(pair.state(A), EpState::Connected, "the mismatch is no reason to refuse");
    pair.post_read(A, &[sink.all()], 1, &source.remote(0, 64), NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::ErrRemoteResponder);
    pair.expect_broken();
    assert_eq!(sink.read(0, 64), vec![UNTOUCHED; 64]);
}

/// Clauses: READ-32.
#[test]
fn more_reads_than_the_target_takes_break_the_connection() {
    for (depth, breaks) in [(4, false), (2, true), (1, true)] {
        let mut pair = Pair::shaped(|side, attr| {
            if side == B {
                attr.max_rdma_read_in = depth;
            }
        });
        // The initiator keeps to what its peer takes, unless its device is told otherwise.
        pair.deepen_reads(A, 2);
        let (source, sink) = (pair.filled(B, 28, 40_000), pair.untouched(A, 40_000));
        pair.set_delay(50);
        for at in 0..4 {
            let (part, from) = (sink.part(at * 10_000, 10_000), source.remote(at * 10_000, 10_000));
            pair.post_read(A, &[part], at as u64, &from, NONE)
                .expect("posted");
        }
        assert_eq!(pair.state(B), EpState::Connected);
        let good = if breaks { depth.into() } else { 4 };
        for cookie in 0..good {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        let right = 10_000 * good as usize;
        assert!(sink.read(0, right) == pattern(28, 40_000)[..right], "depth {depth}");
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
            pair.post_read(A, &[part], at as u64, &source.remote(at * 5_000, 5_000), NONE)
                .expect("posted");
        }
        for cookie in 0..20 {
            pair.expect_request(A, cookie, DtoStatus::Success);
        }
        assert!(sink.read(0, 100_000) == pattern(seed, 100_000), "seed {seed}");
    }
}
