//! Completion flags: which completions are reported, which of them wake a waiter, and which requests a fence delays.
//!
//! The tests detect a wake-up as follows: a message is in flight for a known time while one side waits with a longer
//! timeout. A wait that is woken returns when the message arrives. A wait that is not woken returns at its timeout,
//! with the event that arrived meanwhile. `refused.rs` tests illegal flags.

use core::time::Duration;
use udapl::error::{ReturnType, Subtype};
use udapl::event::DtoCompletion;
use udapl::memory::LmrTriplet;
use udapl::{
    CompletionFlags, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds, EvdHandle,
    Event, Qos, Timeout,
};

use crate::support::{self, A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, refused};

const EMPTY: &[LmrTriplet] = &[];
const SUPPRESS: CompletionFlags = CompletionFlags::SUPPRESS;
const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;
const UNSIGNALLED: CompletionFlags = CompletionFlags::UNSIGNALLED;
const THRESHOLD: CompletionFlags = CompletionFlags::EVD_THRESHOLD;
const FENCE: CompletionFlags = CompletionFlags::BARRIER_FENCE;
/// Time of flight of a packet in µs.
const FLIGHT: u64 = 1000;
/// A timeout longer than any flight here.
const PATIENCE: Timeout = Timeout::from_micros(100_000);

fn completion(event: Event) -> DtoCompletion {
    let Event::Dto(completion) = event else {
        panic!("a completion, not {event:?}")
    };
    completion
}

/// Waits for one completion. Returns the completion, the number of events left, and the duration of the wait.
fn wait(pair: &mut Pair, side: usize, evd: EvdHandle) -> (DtoCompletion, u32, Duration) {
    let before = pair.now();
    let (event, nmore) = pair.sides[side]
        .ia
        .evd_wait(evd, PATIENCE, 1)
        .expect("an event within the patience");
    (completion(event), nmore, pair.now() - before)
}

/// Waits for one event on B's receive EVD, like `wait`.
fn wait_for_recv(pair: &mut Pair) -> (DtoCompletion, u32, Duration) {
    let evd = pair.sides[B].recv;
    wait(pair, B, evd)
}

/// Waits for one event on A's request EVD, like `wait`.
fn wait_for_send(pair: &mut Pair) -> (DtoCompletion, u32, Duration) {
    let evd = pair.sides[A].request;
    wait(pair, A, evd)
}

/// Returns whether a wake-up ended a wait of this length.
#[track_caller]
fn was_woken(took: Duration) -> bool {
    let patience = Duration::from_micros(PATIENCE.as_micros().into());
    assert!(took <= patience + Duration::from_millis(1), "{took:?}");
    assert!(
        took < patience / 2 || took >= patience,
        "neither at an arrival nor at the timeout: {took:?}"
    );
    took < patience
}

/// Clauses: SEND-9, RECV-7, SEND-25.
#[test]
fn without_flags_a_send_and_its_receive_are_reported_and_wake() {
    assert_eq!(
        CompletionFlags::empty().bits(),
        0,
        "DAT_COMPLETION_DEFAULT_FLAG"
    );
    let mut pair = Pair::connected();
    pair.set_delay(FLIGHT);
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    let (received, nmore, took) = wait_for_recv(&mut pair);
    assert_eq!((received.cookie.0, nmore), (1, 0));
    assert!(was_woken(took));
    pair.post_recv(B, EMPTY, 3, NONE).expect("posted");
    pair.post_send(A, EMPTY, 4, NONE).expect("posted");
    assert_eq!(pair.wait_request(A).cookie, DtoCookie(2));
    let (sent, nmore, took) = wait_for_send(&mut pair);
    assert_eq!((sent.cookie.0, nmore), (4, 0));
    assert!(was_woken(took));
}

/// Clauses: SEND-10.
#[test]
fn a_suppressed_send_that_succeeds_is_not_reported_and_the_next_report_covers_it() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 512), pair.buffer(B, 512));
    for at in 0..8 {
        pair.post_recv(B, &[to.part(at * 64, 64)], at as u64, NONE)
            .expect("posted");
    }
    for at in 0..8 {
        let flags = if at % 4 == 3 { NONE } else { SUPPRESS };
        pair.post_send(A, &[from.part(at * 64, 64)], at as u64, flags)
            .expect("posted");
    }
    for at in 0..8 {
        assert_eq!(
            pair.wait_recv(B).cookie,
            DtoCookie(at),
            "the message itself is not suppressed"
        );
    }
    assert_eq!(pair.wait_request(A).cookie, DtoCookie(3));
    assert_eq!(pair.wait_request(A).cookie, DtoCookie(7));
    pair.expect_nothing(A, pair.sides[A].request);
    let side = &pair.sides[A];
    assert!(
        side.ia
            .ep_get_status(side.ep)
            .expect("a status")
            .request_idle
    );
    pair.assert_no_complaints();
}

/// Clauses: SEND-10, SEND-31.
#[test]
fn a_queue_whose_every_completion_is_suppressed_goes_on_for_ever() {
    // WQE indices have 16 bits: this number of Sends wraps the indices, and wraps the ring many times. A's consumer
    // expects no event, so it never polls and makes no other call.
    const SENDS: u64 = 70_000;
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        (attr.max_request_dtos, attr.max_recv_dtos) = (24, 64);
        (attr.max_request_iov, attr.max_recv_iov) = (1, 1);
    }));
    let (from, to) = (pair.buffer(A, 8), pair.buffer(B, 8));
    for at in 0..64 {
        pair.post_recv(B, &[to.all()], at, NONE).expect("posted");
    }
    for at in 0..SENDS {
        from.write(0, &at.to_be_bytes());
        pair.post_send(A, &[from.all()], at, SUPPRESS)
            .unwrap_or_else(|error| panic!("Send {at}: {error}"));
        let recv = pair.sides[B].recv;
        let received = completion(
            pair.sides[B]
                .ia
                .evd_dequeue(recv)
                .expect("an EVD")
                .expect("the wire takes no time"),
        );
        assert_eq!(
            (received.cookie.0, received.status),
            (at % 64, DtoStatus::Success)
        );
        assert_eq!(to.read(0, 8), at.to_be_bytes());
        pair.post_recv(B, &[to.all()], at % 64, NONE)
            .expect("posted");
    }
    // The first event belongs to the first Send that is not suppressed.
    pair.post_send(A, EMPTY, 1, NONE).expect("posted");
    let sent = pair.wait_request(A);
    assert_eq!((sent.cookie.0, sent.status), (1, DtoStatus::Success));
    pair.expect_nothing(A, pair.sides[A].request);
    pair.assert_no_complaints();
}

/// Clauses: SEND-10.
#[test]
fn suppressed_sends_of_mixed_sizes_wrap_their_ring_and_arrive_whole() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_request_dtos = 7));
    let (from, to) = (pair.buffer(A, 800), pair.buffer(B, 800));
    let data = support::pattern(11, 800);
    from.write(0, &data);
    let iov: [LmrTriplet; 8] = core::array::from_fn(|at| from.part(at * 100, 100));
    for round in 0..500_usize {
        let segments = round * 5 % 9;
        pair.post_recv(B, &[to.all()], round as u64, NONE)
            .expect("posted");
        pair.post_send(A, &iov[..segments], round as u64, SUPPRESS)
            .expect("posted");
        let received = pair.wait_recv(B);
        assert_eq!(
            (received.cookie.0, received.transferred_length),
            (round as u64, segments as u64 * 100)
        );
        assert_eq!(to.read(0, segments * 100), data[..segments * 100]);
    }
    pair.expect_nothing(A, pair.sides[A].request);
    pair.assert_no_complaints();
}

/// Clauses: SEND-10.
#[test]
fn suppressed_sends_that_fail_are_reported_each_of_them() {
    // The peer has no receive: the first Send fails, and the following Sends are flushed.
    let mut pair = Pair::connected();
    for at in 0..20 {
        pair.post_send(A, EMPTY, at, SUPPRESS).expect("posted");
    }
    let failed = pair.wait_request(A);
    assert_eq!(
        (failed.cookie.0, failed.status),
        (0, DtoStatus::ErrReceiverNotReady)
    );
    for at in 1..20 {
        let flushed = pair.wait_request(A);
        assert_eq!(
            (flushed.cookie.0, flushed.status),
            (at, DtoStatus::ErrFlushed)
        );
    }
    pair.expect_connection(A, ConnectionEventKind::Broken);
    pair.expect_nothing(A, pair.sides[A].request);
}

/// Clauses: SEND-10.
#[test]
fn of_a_row_of_suppressed_sends_only_the_failing_and_the_flushed_are_reported() {
    let mut pair = Pair::connected();
    for at in 0..5 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
    }
    pair.set_delay(100);
    for at in 0..10 {
        pair.post_send(A, EMPTY, at, SUPPRESS).expect("posted");
    }
    let failed = pair.wait_request(A);
    assert_eq!(
        (failed.cookie.0, failed.status),
        (5, DtoStatus::ErrReceiverNotReady)
    );
    for at in 6..10 {
        let flushed = pair.wait_request(A);
        assert_eq!(
            (flushed.cookie.0, flushed.status),
            (at, DtoStatus::ErrFlushed)
        );
    }
    pair.expect_nothing(A, pair.sides[A].request);
}

/// Clauses: SEND-11, SEND-R5, RECV-13.
#[test]
fn only_where_the_peer_decides_does_solicited_wait_decide_about_the_wake_up() {
    let cases = [
        // The receiver's configuration, the Send's flags, and whether the receive wakes.
        (SOLICITED, NONE, false),
        (SOLICITED, SOLICITED, true),
        (SOLICITED, SOLICITED | SUPPRESS, true),
        (SOLICITED, FENCE, false),
        (THRESHOLD, NONE, true),
        (THRESHOLD, SOLICITED, true),
        (NONE, NONE, true),
        (NONE, SOLICITED, true),
        (UNSIGNALLED, NONE, true),
        (UNSIGNALLED, SOLICITED, true),
    ];
    for (configured, flags, wakes) in cases {
        let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
            attr.recv_completion_flags = configured
        }));
        pair.set_delay(FLIGHT);
        pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
        pair.post_send(A, EMPTY, 2, flags).expect("posted");
        let (received, nmore, took) = wait_for_recv(&mut pair);
        assert_eq!(
            (received.cookie.0, received.status, nmore),
            (1, DtoStatus::Success, 0)
        );
        assert_eq!(was_woken(took), wakes, "{configured:?} {flags:?}: {took:?}");
    }
}

/// A wait for solicited receives ignores unsolicited receives until a solicited receive arrives.
///
/// Clauses: SEND-11, RECV-13.
#[test]
fn a_waiter_sleeps_over_unsolicited_receives_until_a_solicited_one_comes() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.recv_completion_flags = SOLICITED
    }));
    for at in 0..6 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
    }
    // Five messages arrive, after 1, 2, 3, 4 and 5 ms. The fourth message is solicited.
    for at in 0..5 {
        pair.set_delay(FLIGHT * (at + 1));
        let flags = if at == 3 { SOLICITED } else { NONE };
        pair.post_send(A, EMPTY, at, flags).expect("posted");
    }
    let (received, nmore, took) = wait_for_recv(&mut pair);
    assert_eq!((received.cookie.0, nmore), (0, 3), "the oldest comes first");
    assert!(
        (Duration::from_millis(4)..Duration::from_millis(5)).contains(&took),
        "{took:?}"
    );
    // An event that is already there needs no wake-up: a wait returns at once.
    for at in 1..4 {
        let (received, _, took) = wait_for_recv(&mut pair);
        assert_eq!((received.cookie.0, took), (at, Duration::ZERO));
    }
    // The fifth message is still in flight, and is not solicited. Its completion can be dequeued without a wake-up.
    assert_eq!(pair.wait_recv(B).cookie, DtoCookie(4));
}

/// If the consumer controls notification, an interrupt for another EVD does not end a wait.
///
/// Clauses: SEND-11, RECV-8.
#[test]
fn what_else_wakes_the_device_does_not_release_a_waiter_who_controls_notification() {
    for (configured, recv_flags) in [(SOLICITED, NONE), (UNSIGNALLED, UNSIGNALLED)] {
        let config = PairConfig::with_attr(|attr| attr.recv_completion_flags = configured);
        let mut pair = Pair::connected_with(&config);
        let side = &mut pair.sides[A];
        let other = side.ia.ep_create(Some(side.pz), EpEvds::NONE, None);
        let other = other.expect("an endpoint");
        pair.set_delay(FLIGHT);
        pair.post_recv(B, EMPTY, 1, recv_flags).expect("posted");
        pair.post_send(A, EMPTY, 2, NONE).expect("posted");
        // A connection request follows the message, so that B's provider runs while the receive's completion is queued.
        pair.set_delay(2 * FLIGHT);
        let address = pair.sides[B].ia.query().ia.ia_address;
        let (qos, flags) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        pair.sides[A]
            .ia
            .ep_connect(other, address, CONN_QUAL, LONG, &[], qos, flags)
            .expect("accepted");
        let (received, nmore, took) = wait_for_recv(&mut pair);
        assert_eq!((received.cookie.0, nmore), (1, 0));
        assert!(!was_woken(took), "{configured:?}: {took:?}");
        let cr = pair.sides[B].cr;
        let event = pair.sides[B].ia.evd_dequeue(cr);
        assert!(
            matches!(event, Ok(Some(Event::ConnectionRequest(_)))),
            "{event:?}"
        );
    }
}

/// Clauses: SEND-11.
#[test]
fn a_receive_that_fails_wakes_even_a_waiter_for_solicited_ones() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.recv_completion_flags = SOLICITED
    }));
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 8));
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.set_delay(FLIGHT);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let (received, _, took) = wait_for_recv(&mut pair);
    assert_eq!(
        (received.cookie.0, received.status),
        (1, DtoStatus::ErrLocalLength)
    );
    assert!(was_woken(took));
}

/// Clauses: SEND-12.
#[test]
fn an_unsignalled_send_wakes_no_waiter_but_its_completion_is_there() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.request_completion_flags = UNSIGNALLED
    }));
    for at in 0..5 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
    }
    pair.set_delay(FLIGHT);
    pair.post_send(A, EMPTY, 1, UNSIGNALLED).expect("posted");
    let (sent, _, took) = wait_for_send(&mut pair);
    assert_eq!((sent.cookie.0, sent.status), (1, DtoStatus::Success));
    assert!(!was_woken(took), "{took:?}");

    pair.post_send(A, EMPTY, 2, UNSIGNALLED).expect("posted");
    assert_eq!(
        pair.wait_request(A).cookie,
        DtoCookie(2),
        "dequeued without a wake-up"
    );

    // A signalled completion wakes the wait, which returns the older unsignalled completion first.
    pair.post_send(A, EMPTY, 3, UNSIGNALLED).expect("posted");
    pair.set_delay(3 * FLIGHT);
    pair.post_send(A, EMPTY, 4, NONE).expect("posted");
    let (sent, nmore, took) = wait_for_send(&mut pair);
    assert_eq!((sent.cookie.0, nmore), (3, 1));
    assert!(
        was_woken(took) && took >= Duration::from_micros(3 * FLIGHT),
        "{took:?}"
    );
    assert_eq!(pair.wait_request(A).cookie, DtoCookie(4));

    // An unsignalled request that fails does wake.
    pair.post_recv(B, EMPTY, 5, NONE).expect("posted");
    let from = pair.buffer(A, 8);
    for at in 5..8 {
        pair.post_send(A, &[from.all()], at, UNSIGNALLED)
            .expect("posted");
    }
    let (failed, _, took) = wait_for_send(&mut pair);
    assert_ne!(
        failed.status,
        DtoStatus::Success,
        "5 meets a receive of no bytes"
    );
    assert!(was_woken(took));
}

/// Clauses: RECV-8, RECV-13.
#[test]
fn an_unsignalled_receive_wakes_no_waiter_but_its_completion_is_there() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.recv_completion_flags = UNSIGNALLED
    }));
    for (cookie, flags) in [
        (1, UNSIGNALLED),
        (2, UNSIGNALLED),
        (3, NONE),
        (4, UNSIGNALLED),
    ] {
        pair.post_recv(B, EMPTY, cookie, flags).expect("posted");
    }
    // The receive's own flag decides, not the Send's.
    pair.set_delay(FLIGHT);
    pair.post_send(A, EMPTY, 0, SOLICITED).expect("posted");
    let (received, _, took) = wait_for_recv(&mut pair);
    assert_eq!(
        (received.cookie.0, received.status),
        (1, DtoStatus::Success)
    );
    assert!(!was_woken(took), "{took:?}");

    pair.post_send(A, EMPTY, 0, NONE).expect("posted");
    pair.set_delay(2 * FLIGHT);
    pair.post_send(A, EMPTY, 0, NONE).expect("posted");
    let (received, nmore, took) = wait_for_recv(&mut pair);
    assert_eq!((received.cookie.0, nmore), (2, 1));
    assert!(
        was_woken(took) && took >= Duration::from_micros(2 * FLIGHT),
        "{took:?}"
    );
    assert_eq!(pair.wait_recv(B).cookie, DtoCookie(3));

    pair.post_send(A, EMPTY, 0, NONE).expect("posted");
    assert_eq!(
        pair.wait_recv(B).cookie,
        DtoCookie(4),
        "dequeued without a wake-up"
    );
}

/// Clauses: RECV-13, SEND-25.
#[test]
fn a_waiter_with_a_threshold_wakes_when_that_many_events_are_there() {
    let mut pair = Pair::connected();
    let recv = pair.sides[B].recv;
    for at in 0..8 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
    }
    for at in 0..4 {
        pair.set_delay(FLIGHT * (at + 1));
        pair.post_send(A, EMPTY, at, NONE).expect("posted");
    }
    let before = pair.now();
    let (event, nmore) = pair.sides[B]
        .ia
        .evd_wait(recv, PATIENCE, 3)
        .expect("three events");
    assert_eq!((completion(event).cookie.0, nmore), (0, 2));
    let took = pair.now() - before;
    assert!(
        (Duration::from_millis(3)..Duration::from_millis(4)).contains(&took),
        "{took:?}"
    );

    // Two events are left and one arrives. A wait for four events times out, and dequeues none.
    let short = Timeout::from_micros(5000);
    let error = pair.sides[B]
        .ia
        .evd_wait(recv, short, 4)
        .expect_err("too few");
    assert_eq!(
        (error.error.return_type(), error.nmore),
        (ReturnType::TimeoutExpired, 3)
    );
    let (event, nmore) = pair.sides[B]
        .ia
        .evd_wait(recv, Timeout::ZERO, 3)
        .expect("they are still there");
    assert_eq!((completion(event).cookie.0, nmore), (1, 2));
    let error = pair.sides[B]
        .ia
        .evd_wait(recv, Timeout::ZERO, 3)
        .expect_err("too few");
    assert_eq!(
        (error.error.return_type(), error.nmore),
        (ReturnType::TimeoutExpired, 2)
    );
    for cookie in 2..4 {
        assert_eq!(pair.wait_recv(B).cookie, DtoCookie(cookie));
    }
}

/// Clauses: SEND-12, RECV-8.
#[test]
fn where_the_consumer_controls_notification_the_threshold_must_be_one() {
    let configured = [
        (UNSIGNALLED, Subtype::StateEvdConfigNotify),
        (SOLICITED, Subtype::StateEvdConfigSolicited),
    ];
    for (flags, subtype) in configured {
        let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
            attr.recv_completion_flags = flags;
            attr.request_completion_flags = UNSIGNALLED;
        }));
        let (recv, request) = (pair.sides[A].recv, pair.sides[A].request);
        for (evd, subtype) in [(recv, subtype), (request, Subtype::StateEvdConfigNotify)] {
            let error = pair.sides[A]
                .ia
                .evd_wait(evd, Timeout::ZERO, 2)
                .expect_err("refused")
                .error;
            assert_eq!(
                (error.return_type(), error.subtype()),
                (ReturnType::InvalidState, subtype)
            );
            let error = pair.sides[A]
                .ia
                .evd_wait(evd, Timeout::ZERO, 1)
                .expect_err("nothing is there")
                .error;
            assert_eq!(error.return_type(), ReturnType::TimeoutExpired);
        }
        for threshold in [0, 100_000] {
            let result = pair.sides[A]
                .ia
                .evd_wait(request, Timeout::ZERO, threshold)
                .map_err(|error| error.error);
            assert_eq!(
                refused(result, ReturnType::InvalidParameter).subtype(),
                Subtype::Arg3
            );
        }
    }
}

/// Reads `reads` pieces of B's memory into A's memory, and sends A's memory to B at once, with `flags` for the Send.
/// Returns the bytes that B received, and the bytes that A read.
fn read_and_send(reads: usize, flags: CompletionFlags) -> (Vec<u8>, Vec<u8>) {
    const PIECE: usize = 3000;
    let bytes = reads * PIECE;
    let mut pair = Pair::connected();
    let (source, between, target) = (
        pair.buffer(B, bytes),
        pair.buffer(A, bytes),
        pair.buffer(B, bytes),
    );
    let data = support::pattern(12, bytes);
    source.write(0, &data);
    between.write(0, &vec![0xee; bytes]);
    pair.post_recv(B, &[target.all()], 1, NONE).expect("posted");
    pair.set_delay(FLIGHT);
    let ep = pair.sides[A].ep;
    for at in 0..reads {
        let sink = between.part(at * PIECE, PIECE);
        pair.sides[A]
            .ia
            .ep_post_rdma_read(
                ep,
                &[sink],
                DtoCookie(at as u64),
                &source.remote(at * PIECE, PIECE),
                NONE,
            )
            .expect("posted");
    }
    let before = pair.now();
    pair.post_send(A, &[between.all()], 99, flags)
        .expect("posted");
    let received = pair.wait_recv(B);
    assert_eq!(
        (received.status, received.transferred_length),
        (DtoStatus::Success, bytes as u64)
    );
    if flags.contains(FENCE) {
        // Request, response, Send: three flights.
        assert!(pair.now() - before >= Duration::from_micros(3 * FLIGHT));
    }
    for at in 0..reads {
        let read = pair.wait_request(A);
        assert_eq!(
            (read.cookie.0, read.status),
            (at as u64, DtoStatus::Success)
        );
    }
    if !flags.contains(SUPPRESS) {
        assert_eq!(
            pair.wait_request(A).cookie,
            DtoCookie(99),
            "completions keep the order of posting"
        );
    }
    assert_eq!(between.read(0, bytes), data);
    pair.expect_nothing(A, pair.sides[A].request);
    pair.assert_no_complaints();
    (target.read(0, bytes), data)
}

/// Clauses: SEND-14.
#[test]
fn a_fenced_send_carries_what_earlier_reads_brought() {
    for reads in [1, 2, 4, 9] {
        for flags in [FENCE, FENCE | SOLICITED, FENCE | SUPPRESS] {
            let (received, expected) = read_and_send(reads, flags);
            assert!(received == expected, "{reads} reads, {flags:?}");
        }
    }
    // Without the fence the Send overtakes the read, so it was the fence that delayed it.
    let (received, expected) = read_and_send(1, NONE);
    assert!(received.iter().all(|&byte| byte == 0xee) && received != expected);
}

/// Clauses: SEND-14.
#[test]
fn a_fence_with_nothing_to_wait_for_holds_nothing() {
    let mut pair = Pair::connected();
    pair.set_delay(FLIGHT);
    for cookie in 0..3 {
        pair.post_recv(B, EMPTY, cookie, NONE).expect("posted");
        pair.post_send(A, EMPTY, cookie, FENCE).expect("posted");
    }
    let before = pair.now();
    for cookie in 0..3 {
        assert_eq!(pair.wait_recv(B).cookie, DtoCookie(cookie));
    }
    // A fence does not wait for the acknowledgements of earlier Sends, which take one more flight.
    assert!(pair.now() - before < Duration::from_micros(2 * FLIGHT));
}
