//! `ep_post_rdma_write`, clause by clause: A writes memory of B.
//!
//! A null remote_buffer (in WRITE-R4) cannot be said: the argument is a reference.

mod support;

use core::time::Duration;

use dat::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DtoStatus, EpState, Event,
    LmrTriplet, MemPrivFlags, Qos, ReturnType, RmrTriplet, Subtype, Timeout,
};
use rand::Rng;
use support::rdma::{Pieces, UNTOUCHED, stream};
use support::wire::{packets, packets_to};
use support::{A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, pattern, refused};

const SUPPRESS: CompletionFlags = CompletionFlags::SUPPRESS;
const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;
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
    assert_eq!([first.read(0, 10_000), second.read(0, 10_000)], data, "the source is as it was");
    pair.assert_no_complaints();
}

/// Clauses: WRITE-R1.
#[test]
fn a_remote_buffer_larger_than_the_data_is_untouched_behind_it() {
    let mut pair = Pair::connected();
    let source = pair.filled(A, 3, 1_000);
    for bytes in [0, 1, 99, 100, 999] {
        let target = pair.untouched(B, 1_000);
        pair.post_write(A, &[source.part(0, bytes)], 1, &target.remote(0, 1_000), NONE)
            .expect("the write is posted");
        let done = pair.expect_request(A, 1, DtoStatus::Success);
        assert_eq!(done.transferred_length, bytes as u64);
        let mut model = pattern(3, 1_000);
        model[bytes..].fill(UNTOUCHED);
        assert_eq!(target.read(0, 1_000), model, "{bytes} bytes");
    }
    // It is the data that counts: what the remote buffer claims beyond it is not looked at.
    let target = pair.untouched(B, 100);
    pair.post_write(A, &[source.part(0, 100)], 2, &target.remote(0, 1 << 30), NONE)
        .expect("posted");
    pair.expect_request(A, 2, DtoStatus::Success);
    assert_eq!(target.read(0, 100), pattern(3, 1_000)[..100]);
}

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
        pair.post_write(A, &pieces.iov(&source), round, &target.remote(at, room), NONE)
            .expect("posted");
        let done = pair.expect_request(A, round, DtoStatus::Success);
        assert_eq!(done.transferred_length, bytes as u64);
        let mut model = vec![UNTOUCHED; 50_000];
        model[at..at + bytes].copy_from_slice(&pieces.gather(&data));
        assert!(target.read(0, 50_000) == model, "round {round}: {pieces:?} to {at}");
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
    ia.ep_post_rdma_write(ep, &iov, 1, &target.remote(0, 60), NONE)
        .expect("posted");
    pair.expect_request(A, 1, DtoStatus::Success);
    let data = pattern(5, 300);
    assert_eq!(target.read(0, 60), [&data[200..250], &data[..10]].concat());
    let ia = &mut pair.sides[A].ia;
    ia.lmr_free(source.lmr.lmr).expect("freed");
    refused(
        ia.ep_post_rdma_write(ep, &iov, 2, &target.remote(0, 60), NONE),
        ReturnType::PrivilegesViolation,
    );
    pair.expect_idle(A);
}

/// Clauses: WRITE-3.
#[test]
fn cookies_come_back_unchanged_whatever_they_are_and_however_often_the_same() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 6, 64), pair.buffer(B, 64));
    let cookies = [0, u64::MAX, 1 << 63, 0xdead_beef_0bad_cafe, 0, 0, u64::MAX];
    for cookie in cookies {
        pair.post_write(A, &[source.all()], cookie, &target.remote(0, 64), NONE)
            .expect("posted");
    }
    for cookie in cookies {
        pair.expect_request(A, cookie, DtoStatus::Success);
    }
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
    // Behind a read and fenced, it is not even begun when the call returns.
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
        refused(ia.evd_dequeue(request), ReturnType::QueueEmpty);
        assert!(!ia.ep_get_status(ep).expect("a status").request_idle);
        let done = pair.expect_request(A, 9, DtoStatus::Success);
        assert_eq!((done.transferred_length, done.syndrome), (5_000, (0, 0)));
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
        // The receive is still there for a message.
        pair.post_send(A, &[source.part(0, 64)], 10, NONE)
            .expect("posted");
        pair.expect_recv(B, 1, DtoStatus::Success);
    }
}

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
fn a_suppressed_write_is_silent_when_it_succeeds_and_not_when_it_fails() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 9, 128), pair.untouched(B, 128));
    pair.post_write(A, &[source.part(0, 64)], 1, &target.remote(0, 64), SUPPRESS)
        .expect("posted");
    pair.post_write(A, &[source.part(64, 64)], 2, &target.remote(64, 64), NONE)
        .expect("posted");
    pair.expect_request(A, 2, DtoStatus::Success);
    pair.expect_idle(A);
    assert_eq!(target.read(0, 128), pattern(9, 128));

    pair.set_delay(20);
    let beyond = RmrTriplet {
        target_address: target.remote(0, 128).target_address + 1,
        ..target.remote(0, 128)
    };
    for (cookie, remote) in [(3, target.remote(0, 128)), (4, beyond), (5, target.remote(0, 128))] {
        pair.post_write(A, &[source.all()], cookie, &remote, SUPPRESS)
            .expect("posted");
    }
    pair.expect_request(A, 4, DtoStatus::ErrRemoteAccess);
    pair.expect_request(A, 5, DtoStatus::ErrFlushed);
    pair.expect_broken();
    pair.expect_idle(A);
}

/// Clauses: WRITE-5.
#[test]
fn an_unsignalled_write_wakes_no_waiter_and_a_plain_one_does() {
    let mut pair = Pair::shaped(|_, attr| attr.request_completion_flags = UNSIGNALLED);
    let (source, target) = (pair.filled(A, 10, 64), pair.buffer(B, 64));
    pair.set_delay(100);
    for (flags, wakes) in [(NONE, true), (UNSIGNALLED, false)] {
        pair.post_write(A, &[source.all()], 4, &target.remote(0, 64), flags)
            .expect("posted");
        let (start, request) = (pair.now(), pair.sides[A].request);
        let (event, _) = pair.sides[A]
            .ia
            .evd_wait(request, Timeout::from_micros(5_000), 1)
            .expect("an event");
        let Event::Dto(done) = event else {
            panic!("{event:?}")
        };
        assert_eq!((done.cookie, done.status), (4, DtoStatus::Success));
        let took = Duration::from_nanos(pair.now().0 - start.0);
        assert_eq!(took < Duration::from_micros(1_000), wakes, "{flags:?}: {took:?}");
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

/// Clauses: WRITE-5, WRITE-6, WRITE-R4.
#[test]
fn flags_that_are_unknown_or_not_the_endpoints_are_the_sixth_argument() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 12, 64), pair.untouched(B, 64));
    let illegal = [
        UNSIGNALLED,
        UNSIGNALLED | SUPPRESS,
        CompletionFlags::EVD_THRESHOLD,
        CompletionFlags::from_bits_retain(0x20),
        CompletionFlags::from_bits_retain(0x8000_0000),
    ];
    for flags in illegal {
        let error = refused(
            pair.post_write(A, &[source.all()], 1, &target.remote(0, 64), flags),
            ReturnType::InvalidParameter,
        );
        assert_eq!(error.subtype(), Subtype::Arg6, "{flags:?}");
    }
    pair.expect_idle(A);
    assert_eq!(target.read(0, 64), vec![UNTOUCHED; 64]);
    for flags in [NONE, SOLICITED, FENCE, FENCE | SOLICITED] {
        pair.post_write(A, &[source.all()], 2, &target.remote(0, 64), flags)
            .expect("posted");
        pair.expect_request(A, 2, DtoStatus::Success);
    }
    let mut pair = Pair::shaped(|_, attr| attr.request_completion_flags = UNSIGNALLED);
    let (source, target) = (pair.filled(A, 12, 64), pair.buffer(B, 64));
    let all = UNSIGNALLED | SUPPRESS | FENCE | SOLICITED;
    for (cookie, flags) in [(3, all), (4, UNSIGNALLED)] {
        pair.post_write(A, &[source.all()], cookie, &target.remote(0, 64), flags)
            .expect("posted");
    }
    pair.expect_request(A, 4, DtoStatus::Success);
    pair.expect_idle(A);
}

/// Clauses: WRITE-1.
#[test]
fn a_freed_or_foreign_endpoint_is_no_handle() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 13, 64), pair.untouched(B, 64));
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
                .ep_post_rdma_write(ep, &[source.all()], 1, &target.remote(0, 64), NONE),
            ReturnType::InvalidHandle,
        );
        assert_eq!(error.subtype(), Subtype::HandleEp);
    }
    pair.expect_idle(A);
    assert_eq!(target.read(0, 64), vec![UNTOUCHED; 64]);
}

/// Clauses: WRITE-14.
#[test]
fn writes_are_for_connected_and_disconnected_endpoints_only() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (source, target) = (pair.filled(A, 14, 64), pair.untouched(B, 64));
    let (source_b, target_a) = (pair.filled(B, 14, 64), pair.untouched(A, 64));
    let write = |pair: &mut Pair, side: usize, cookie| {
        let (source, remote) = if side == A {
            (source.all(), target.remote(0, 64))
        } else {
            (source_b.all(), target_a.remote(0, 64))
        };
        pair.post_write(side, &[source], cookie, &remote, NONE)
    };
    let refuse = |pair: &mut Pair, side: usize, state: Subtype| {
        let error = refused(write(pair, side, 1), ReturnType::InvalidState);
        assert_eq!(error.subtype(), state);
    };
    refuse(&mut pair, A, Subtype::StateEpUnconnected);
    let (ep, address) = (pair.sides[A].ep, pair.sides[B].ia.query().ia.ia_address);
    pair.sides[A]
        .ia
        .ep_connect(ep, address, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, ConnectFlags::empty())
        .expect("accepted");
    refuse(&mut pair, A, Subtype::StateEpActiveConnectionPending);
    let Event::ConnectionRequest(request) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    let ep_b = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .cr_accept(request.cr, Some(ep_b), b"")
        .expect("accepted");
    refuse(&mut pair, B, Subtype::StateEpCompletionPending);
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    for side in [A, B] {
        write(&mut pair, side, 4).expect("connected");
        pair.expect_request(side, 4, DtoStatus::Success);
    }
    assert_eq!(target.read(0, 64), pattern(14, 64));
    assert_eq!(target_a.read(0, 64), pattern(14, 64));

    pair.set_delay(50);
    write(&mut pair, A, 5).expect("connected");
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("begun");
    assert_eq!(pair.state(A), EpState::DisconnectPending);
    refuse(&mut pair, A, Subtype::StateEpDisconnectPending);
    pair.expect_request(A, 5, DtoStatus::Success);
    pair.expect_connection(A, ConnectionEventKind::Disconnected);
    pair.expect_connection(B, ConnectionEventKind::Disconnected);

    let before = packets(&pair.fabric).len();
    for side in [A, B] {
        for cookie in [7, 8] {
            write(&mut pair, side, cookie).expect("accepted, to be flushed");
        }
        // At once: the first look finds them.
        for cookie in [7, 8] {
            let request = pair.sides[side].request;
            let event = pair.sides[side].ia.evd_dequeue(request).expect("flushed");
            let Event::Dto(done) = event else {
                panic!("{event:?}")
            };
            assert_eq!(
                (done.cookie, done.status, done.request, done.ep),
                (cookie, DtoStatus::ErrFlushed, true, pair.sides[side].ep)
            );
        }
        pair.expect_idle(side);
    }
    pair.post_write(A, &[source.all()], 9, &target.remote(0, 64), SUPPRESS)
        .expect("accepted");
    pair.expect_request(A, 9, DtoStatus::ErrFlushed);
    assert_eq!(packets(&pair.fabric).len(), before, "nothing went out");
    refused(
        pair.post_write(A, &[source.part(0, 65)], 9, &target.remote(0, 65), NONE),
        ReturnType::InvalidParameter,
    );
    pair.sides[A].ia.ep_reset(ep).expect("reset");
    refuse(&mut pair, A, Subtype::StateEpUnconnected);
    pair.expect_idle(A);
}

/// Clauses: WRITE-15.
#[test]
fn as_many_writes_as_max_request_dtos_may_be_outstanding() {
    let mut pair = Pair::shaped(|_, attr| attr.max_request_dtos = 6);
    let (source, target) = (pair.filled(A, 15, 64), pair.untouched(B, 64));
    pair.set_delay(50);
    let remote = target.remote(0, 64);
    // Suppressed or not.
    for cookie in 0..6 {
        let flags = if cookie % 2 == 0 { SUPPRESS } else { NONE };
        pair.post_write(A, &[source.all()], cookie, &remote, flags)
            .expect("posted");
    }
    for _ in 0..2 {
        refused(
            pair.post_write(A, &[source.all()], 6, &remote, NONE),
            ReturnType::InsufficientResources,
        );
    }
    for cookie in [1, 3, 5] {
        pair.expect_request(A, cookie, DtoStatus::Success);
    }
    for cookie in 10..16 {
        pair.post_write(A, &[source.all()], cookie, &remote, NONE)
            .expect("there is room again");
    }
    for cookie in 10..16 {
        pair.expect_request(A, cookie, DtoStatus::Success);
    }
    pair.set_delay(0);
    for cookie in 0..100 {
        pair.post_write(A, &[source.all()], cookie, &remote, SUPPRESS)
            .expect("those before it are complete");
    }
    pair.post_write(A, &[source.all()], 99, &remote, NONE)
        .expect("posted");
    pair.expect_request(A, 99, DtoStatus::Success);
    pair.expect_idle(A);
}

/// Clauses: WRITE-16.
#[test]
fn a_segment_outside_its_lmr_is_the_third_argument() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 16, 4_096), pair.untouched(B, 8_192));
    let start = source.lmr.registered_address;
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
            ..source.all()
        };
        for iov in [&[bad][..], &[source.part(0, 64), bad], &[bad, source.part(0, 64)]] {
            let error = refused(
                pair.post_write(A, iov, 1, &target.remote(0, 8_192), NONE),
                ReturnType::InvalidParameter,
            );
            assert_eq!(error.subtype(), Subtype::Arg3, "{bad:x?}");
        }
    }
    pair.expect_idle(A);
    assert_eq!(target.read(0, 8_192), vec![UNTOUCHED; 8_192]);
    pair.post_write(A, &[source.all()], 2, &target.remote(0, 4_096), NONE)
        .expect("up to the last byte");
    pair.expect_request(A, 2, DtoStatus::Success);
}

/// Clauses: WRITE-17.
#[test]
fn a_remote_buffer_smaller_than_the_data_is_a_length_error() {
    let mut pair = Pair::connected();
    let (source, target) = (pair.filled(A, 17, 4_096), pair.untouched(B, 4_096));
    let cases: [(&[LmrTriplet], usize); 4] = [
        (&[source.part(0, 1)], 0),
        (&[source.part(0, 101)], 100),
        (&[source.part(0, 50), source.part(50, 0), source.part(60, 51)], 100),
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

/// Clauses: WRITE-18.
#[test]
fn a_local_lmr_of_another_zone_is_a_protection_violation() {
    let mut pair = Pair::connected();
    let (good, target) = (pair.filled(A, 18, 64), pair.untouched(B, 128));
    let elsewhere = pair.sides[A].ia.pz_create().expect("a PZ");
    let foreign = pair.buffer_in(A, 64, elsewhere, MemPrivFlags::all());
    for iov in [&[foreign.all()][..], &[good.all(), foreign.part(0, 1)]] {
        refused(
            pair.post_write(A, iov, 1, &target.remote(0, 128), NONE),
            ReturnType::ProtectionViolation,
        );
    }
    pair.expect_idle(A);
    assert_eq!(target.read(0, 128), vec![UNTOUCHED; 128]);
    pair.post_write(A, &[foreign.part(0, 0), good.all()], 2, &target.remote(0, 64), NONE)
        .expect("of an empty segment nothing is looked at");
    pair.expect_request(A, 2, DtoStatus::Success);
}

/// Clauses: WRITE-19.
#[test]
fn a_local_lmr_that_is_gone_or_not_readable_is_a_privileges_violation() {
    let mut pair = Pair::connected();
    let (good, target) = (pair.filled(A, 19, 64), pair.untouched(B, 128));
    let pz = pair.sides[A].pz;
    let rights = MemPrivFlags::all() - MemPrivFlags::LOCAL_READ;
    let writable = pair.buffer_in(A, 64, pz, rights);
    let error = refused(
        pair.post_write(A, &[writable.all()], 1, &target.remote(0, 64), NONE),
        ReturnType::PrivilegesViolation,
    );
    assert_eq!(error.subtype(), Subtype::PrivilegesRead);
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
                pair.post_write(A, iov, 1, &target.remote(0, 128), NONE),
                ReturnType::PrivilegesViolation,
            );
        }
    }
    pair.expect_idle(A);
    assert_eq!(target.read(0, 128), vec![UNTOUCHED; 128]);
    let readable = pair.buffer_in(A, 64, pz, MemPrivFlags::LOCAL_READ);
    readable.write(0, &pattern(20, 64));
    pair.post_write(A, &[readable.all()], 2, &target.remote(0, 64), NONE)
        .expect("the right to read locally is all it takes");
    pair.expect_request(A, 2, DtoStatus::Success);
    assert_eq!(target.read(0, 64), pattern(20, 64));
}

/// A write to memory that B must not allow: ERR_REMOTE_ACCESS, and the connection is broken.
/// `target` makes the buffer meant and its name; nothing of it may change.
fn expect_remote_refusal(what: &str, target: impl Fn(&mut Pair) -> (support::Buffer, RmrTriplet)) {
    let mut pair = Pair::connected();
    let (source, good) = (pair.filled(A, 21, 4_096), pair.untouched(B, 4_096));
    let (meant, bad) = target(&mut pair);
    let before = meant.read(0, meant.bytes);
    pair.set_delay(20);
    let whole = good.remote(0, 4_096);
    pair.post_write(A, &[source.all()], 1, &whole, NONE)
        .expect("posted");
    let part = source.part(0, bad.segment_length as usize);
    pair.post_write(A, &[part], 2, &bad, NONE)
        .unwrap_or_else(|error| panic!("{what}: only B can know, not {error}"));
    pair.post_write(A, &[source.part(64, 64)], 3, &whole, NONE)
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
    assert_eq!(good.read(0, 4_096), pattern(21, 4_096), "{what}");
    assert_eq!(meant.read(0, meant.bytes), before, "{what}: nothing was written");
    pair.assert_no_complaints();
}

/// Clauses: WRITE-18, WRITE-R5.
#[test]
fn a_remote_buffer_in_another_zone_than_the_remote_endpoint_breaks_the_connection() {
    expect_remote_refusal("another zone", |pair| {
        let elsewhere = pair.sides[B].ia.pz_create().expect("a PZ");
        let memory = pair.buffer_in(B, 64, elsewhere, MemPrivFlags::all());
        let remote = memory.remote(0, 64);
        (memory, remote)
    });
}

/// Clauses: WRITE-19, WRITE-R5.
#[test]
fn a_remote_buffer_without_the_right_of_remote_write_breaks_the_connection() {
    expect_remote_refusal("no right", |pair| {
        let pz = pair.sides[B].pz;
        let rights = MemPrivFlags::all() - MemPrivFlags::REMOTE_WRITE;
        let memory = pair.buffer_in(B, 64, pz, rights);
        let remote = memory.remote(0, 64);
        (memory, remote)
    });
}

/// Clauses: WRITE-R5.
#[test]
fn a_remote_buffer_that_is_not_or_not_there_breaks_the_connection() {
    let moved = |what: &str, change: fn(RmrTriplet) -> RmrTriplet| {
        expect_remote_refusal(what, |pair| {
            let memory = pair.untouched(B, 4_096);
            let remote = change(memory.remote(0, 64));
            (memory, remote)
        });
    };
    moved("no such context", |good| RmrTriplet {
        rmr_context: 0xffff_ff00,
        ..good
    });
    moved("another variant of the context", |good| RmrTriplet {
        rmr_context: good.rmr_context ^ 1,
        ..good
    });
    moved("one byte behind the end", |good| RmrTriplet {
        target_address: good.target_address + 4_096 - 63,
        ..good
    });
    moved("one byte before the start", |good| RmrTriplet {
        target_address: good.target_address - 1,
        ..good
    });
    moved("around the end of the address space", |good| RmrTriplet {
        target_address: u64::MAX - 8,
        ..good
    });
    expect_remote_refusal("freed", |pair| {
        let memory = pair.untouched(B, 64);
        pair.sides[B].ia.lmr_free(memory.lmr.lmr).expect("freed");
        let remote = memory.remote(0, 64);
        (memory, remote)
    });
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

/// Clauses: WRITE-R3.
#[test]
fn segments_and_bytes_are_limited_by_the_attributes() {
    let mut pair = Pair::shaped(|_, attr| {
        (attr.max_request_iov, attr.max_rdma_size) = (3, 4_096);
    });
    let (source, target) = (pair.filled(A, 23, 8_192), pair.untouched(B, 8_192));
    let one = source.part(0, 1);
    let error = refused(
        pair.post_write(A, &[one; 4], 1, &target.remote(0, 8_192), NONE),
        ReturnType::InvalidParameter,
    );
    assert_eq!(error.subtype(), Subtype::Arg2, "max_request_iov");
    for iov in [&[source.part(0, 4_097)][..], &[source.part(0, 4_096), one]] {
        refused(
            pair.post_write(A, iov, 1, &target.remote(0, 8_192), NONE),
            ReturnType::InvalidParameter,
        );
    }
    pair.expect_idle(A);
    pair.post_write(A, &[one; 3], 2, &target.remote(0, 3), NONE)
        .expect("three segments");
    pair.post_write(A, &[source.part(0, 4_096)], 3, &target.remote(0, 8_192), NONE)
        .expect("the data counts, not the room");
    pair.expect_request(A, 2, DtoStatus::Success);
    pair.expect_request(A, 3, DtoStatus::Success);

    let mut pair = Pair::shaped(|_, attr| {
        (attr.max_request_iov, attr.max_rdma_write_iov) = (2, 5);
    });
    let (source, target) = (pair.filled(A, 23, 64), pair.untouched(B, 64));
    let five = [0, 1, 2, 3, 4].map(|at| source.part(at * 10, 2));
    refused(
        pair.post_write(A, &[five[0]; 6], 1, &target.remote(0, 64), NONE),
        ReturnType::InvalidParameter,
    );
    pair.post_write(A, &five, 2, &target.remote(0, 10), NONE)
        .expect("max_rdma_write_iov, though max_request_iov is 2");
    pair.expect_request(A, 2, DtoStatus::Success);
    let data = pattern(23, 64);
    let gathered: Vec<u8> = (0..5).flat_map(|at| data[at * 10..at * 10 + 2].to_vec()).collect();
    assert_eq!(target.read(0, 10), gathered);
}

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
    // Each went to the peer: it is done when everything before it is.
    assert_eq!(packets_to(&pair.fabric, B, "WriteOnly").len(), 6);
    let iov = [garbage, source.part(0, 32), garbage, source.part(32, 32), garbage];
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
    assert_eq!(target.read(0, 3_000), [&data[2_000..], &data[..2_000]].concat());
    let inbox = pair.buffer(A, 64);
    refused(
        pair.post_recv(A, &[inbox.all()], 1, NONE),
        ReturnType::InsufficientResources,
    );
    pair.assert_no_complaints();
}
