//! Endpoints that use an SRQ: which endpoint takes a buffer, which EVD gets the event, and whether the buffer is
//! flushed when the connection ends. `srq.rs` tests posting.

use core::time::Duration;

use hw_sim::{Faults, LinkFaults};
use rand::Rng;
use udapl::endpoint::EpState;
use udapl::error::ReturnType;
use udapl::{CloseFlags, CompletionFlags, ConnectionEventKind, DtoStatus, EpEvds, Event, Timeout};

use crate::support::rdma::{UNTOUCHED, stream};
use crate::support::shared::{SRQ, Shared};
use crate::support::{self, A, B, NONE, Pair, PairConfig, pattern, refused};

const SOLICITED: CompletionFlags = CompletionFlags::SOLICITED_WAIT;
const SUCCESS: DtoStatus = DtoStatus::Success;
const FLUSHED: DtoStatus = DtoStatus::ErrFlushed;

/// Posts a receive, sends from A, and waits on B's receive EVD for up to 5 ms with this threshold. Returns the virtual
/// time of the wait, and its result: the receive's cookie and the number of events left, or on a timeout the number of
/// events in the EVD.
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
    let waited =
        shared.pair.sides[B]
            .ia
            .evd_wait(shared.recv[0], Timeout::from_micros(5_000), threshold);
    let took = Duration::from_nanos(shared.pair.now().0 - start.0);
    let outcome = match waited {
        Ok((Event::Dto(done), more)) => {
            assert_eq!((done.status, done.ep), (SUCCESS, shared.b[0]));
            Ok((done.cookie.0, more))
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
    // The completion arrives early, but does not wake the waiter. The wait returns the completion at its timeout.
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

/// Clauses: SRQ-10, SRQ-35.
#[test]
fn an_unsolicited_message_releases_no_waiter_that_is_awake_for_another_reason() {
    for (flags, releases) in [(NONE, false), (SOLICITED, true)] {
        let shape = |attr: &mut udapl::endpoint::EpAttr| attr.recv_completion_flags = SOLICITED;
        let mut shared = Shared::unconnected(&PairConfig::default(), SRQ, None, shape);
        shared.connect(0);
        let (from, to) = (shared.pair.buffer(A, 64), shared.pair.buffer(B, 64));
        shared.post(&[to.all()], 1).expect("posted");
        shared.pair.set_delay(100);
        shared.send(0, &[from.all()], 2, flags).expect("posted");
        // A connection request follows the message immediately, and wakes B's provider.
        let address = shared.pair.sides[B].ia.query().ia.ia_address;
        let ia = &mut shared.pair.sides[A].ia;
        ia.ep_connect(
            shared.a[1],
            address,
            support::CONN_QUAL,
            support::LONG,
            b"",
            udapl::Qos::BEST_EFFORT,
            udapl::ConnectFlags::empty(),
        )
        .expect("accepted");
        let start = shared.pair.now();
        let five = Timeout::from_micros(5_000);
        let recv = shared.recv[0];
        let (_, more) = shared.pair.sides[B]
            .ia
            .evd_wait(recv, five, 1)
            .expect("an event");
        assert_eq!(more, 0);
        let took = Duration::from_nanos(shared.pair.now().0 - start.0);
        assert_eq!(took < PROMPTLY, releases, "{flags:?}: {took:?}");
    }
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
    let mut shared = Shared::connected_as(SRQ, |attr| {
        attr.recv_completion_flags = CompletionFlags::EVD_THRESHOLD
    });
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
    for seed in 0..6 {
        let mut shared = Shared::connected();
        let mut rng = stream(seed);
        let from = shared.pair.filled(A, seed, 20_000);
        let link = shared.pair.fabric.link;
        shared
            .pair
            .fabric
            .sim
            .set_faults(link, LinkFaults::swarm(seed));
        let inboxes: Vec<_> = (0..16).map(|_| shared.pair.buffer(B, 20_000)).collect();
        // The batches go around the SRQ's ring several times. Its entries are not freed in the order in which they were
        // posted.
        for batch in 0..6 {
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
            for (which, lengths) in sent.iter().enumerate() {
                for &bytes in lengths {
                    let done = shared.received(which);
                    assert_eq!(
                        (done.status, done.transferred_length),
                        (SUCCESS, bytes as u64),
                        "seed {seed}, batch {batch}, connection {which}"
                    );
                    let inbox = &inboxes[usize::try_from(done.cookie.0).expect("small")];
                    assert!(inbox.read(0, bytes) == pattern(seed, 20_000)[..bytes]);
                    used.push(done.cookie.0);
                }
            }
            used.sort_unstable();
            assert_eq!(used, (0..16).collect::<Vec<_>>(), "each buffer once");
            for _ in 0..16 {
                assert_eq!(shared.pair.wait_request(A).status, SUCCESS);
            }
        }
        shared.pair.assert_no_complaints();
    }
}

/// Clauses: SRQ-5, SRQ-19, SRQ-21.
#[test]
fn endpoints_that_share_the_evd_too_are_told_apart_by_the_event() {
    let mut shared = Shared::unconnected(&PairConfig::default(), SRQ, None, |_| {});
    let side = &mut shared.pair.sides[B];
    side.ia.ep_free(shared.b[1]).expect("freed");
    let attr = support::attributes(&side.ia);
    let (recv, request, connect) = (side.recv, side.request, side.connect);
    shared.b[1] = side
        .ia
        .ep_create_with_srq(
            Some(side.pz),
            EpEvds::NONE.recv(recv).request(request).connect(connect),
            shared.srq,
            &attr,
        )
        .expect("an endpoint");
    shared.connect(0);
    shared.connect(1);
    let (from, to) = (shared.pair.buffer(A, 64), shared.pair.buffer(B, 64));
    let order = [0, 1, 1, 0, 1, 0, 0, 0, 1];
    for (bytes, which) in order.into_iter().enumerate() {
        shared.post(&[to.all()], 0).expect("posted");
        shared
            .send(which, &[from.part(0, bytes)], 0, NONE)
            .expect("posted");
    }
    let mut seen = [Vec::new(), Vec::new()];
    for _ in order {
        let done = shared.pair.wait_recv(B);
        assert_eq!(done.status, SUCCESS);
        let which = usize::from(done.ep == shared.b[1]);
        assert_eq!(done.ep, shared.b[which]);
        seen[which].push(done.transferred_length);
    }
    assert_eq!(seen, [vec![0, 3, 5, 6, 7], vec![1, 2, 4, 8]]);
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
    // The message has more packets than may be unacknowledged, and no acknowledgement reaches A, so A stops half-way.
    drop_responses(&mut shared.pair);
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

/// Drops all frames from B to A from now on.
fn drop_responses(pair: &mut Pair) {
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
    drop_responses(&mut shared.pair);
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
    drop_responses(&mut shared.pair);
    shared.send(0, &[long.all()], 2, NONE).expect("posted");
    // A's Send fails after its retries. Then B notices the end by A's DREQ, or at the latest when A refuses B's next
    // packet.
    let done = shared.pair.wait_request(A);
    assert_eq!((done.cookie.0, done.status), (2, DtoStatus::ErrTransport));
    shared
        .pair
        .expect_connection(A, ConnectionEventKind::Broken);
    let done = shared.received(0);
    assert_eq!((done.cookie.0, done.status), (3, FLUSHED));
    assert_eq!(shared.counts(), (1, 1));
}

/// Clauses: SRQ-R1, SRQ-R4, SRQ-40.
#[test]
fn a_buffer_that_was_being_filled_comes_back_when_its_endpoint_is_freed() {
    for reset in [false, true] {
        let mut shared = Shared::connected();
        let long = shared.pair.filled(A, 14, 3 << 20);
        let (to, small) = (shared.pair.buffer(B, 3 << 20), shared.pair.buffer(B, 64));
        shared.post(&[to.all()], 0).expect("posted");
        for cookie in 1..16 {
            shared.post(&[small.all()], cookie).expect("posted");
        }
        drop_responses(&mut shared.pair);
        shared.send(0, &[long.all()], 2, NONE).expect("posted");
        let (ep, ia) = (shared.b[0], &mut shared.pair.sides[B].ia);
        if reset {
            ia.ep_disconnect(ep, CloseFlags::Abrupt).expect("begun");
            ia.ep_reset(ep).expect("reset");
        } else {
            ia.ep_free(ep).expect("freed");
        }
        let left = shared.queued(0);
        assert!(left.is_empty() || left == [(0, FLUSHED)], "{left:?}");
        assert_eq!(shared.counts(), (15, 15), "reset: {reset}");
        shared.post(&[small.all()], 16).expect("one is free");
        refused(
            shared.post(&[small.all()], 17),
            ReturnType::InsufficientResources,
        );
        shared.pair.fabric.sim.heal();
        for cookie in 1..17 {
            shared.exchange_next(1, &long, cookie);
        }
        assert_eq!(shared.counts(), (0, 0));
        shared.pair.assert_no_complaints();
    }
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
    // A has not polled since B's disconnect, so A's endpoint is still CONNECTED.
    assert_eq!(shared.pair.state(A), EpState::Connected);
    shared.send(0, &[from.all()], 2, NONE).expect("posted");
    let done = shared.pair.wait_request(A);
    assert_eq!((done.cookie.0, done.status), (2, FLUSHED));
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
            udapl::Qos::BEST_EFFORT,
            udapl::ConnectFlags::empty(),
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
    // The RTU and this Send are in flight. B has handled neither.
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
    assert_eq!((done.cookie.0, done.status), (1, DtoStatus::ErrLocalLength));
    let done = shared.pair.wait_request(A);
    assert_eq!(
        (done.ep, done.cookie.0, done.status),
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
    shared
        .pair
        .expect_connection(A, ConnectionEventKind::Broken);
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
        // Some of the completions may still be in the EVD. They occupy their slots until the test dequeues them.
        let evd = shared.recv[0];
        let left =
            core::iter::from_fn(|| shared.pair.sides[B].ia.evd_dequeue(evd).ok().flatten()).count();
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
