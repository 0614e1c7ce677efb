//! `ep_post_recv`: where messages go, how receives complete, and in which states they may be posted.
//!
//! Completion flags are in `flags.rs`, refusals in `refused.rs`. That a post allocates nothing
//! (RECV-21) is measured in `hotpath.rs`.

mod support;

use core::time::Duration;
use dat::{
    CloseFlags, ConnectFlags, ConnectionEventKind, DtoStatus, EpAttr, EpState, Event, LmrTriplet, Qos, ReturnType,
    Subtype, Timeout,
};
use hw_sim::{Drive, Faults, LinkFaults};
use support::{A, B, Buffer, CONN_QUAL, LONG, NONE, Pair, PairConfig, attributes, refused};

const EMPTY: &[LmrTriplet] = &[];
/// What a segment of no bytes may say: nothing of it is looked at.
const NOTHING: LmrTriplet = LmrTriplet { lmr_context: 0xffff_ffff, virtual_address: u64::MAX, segment_length: 0 };

/// Attributes for both sides, other than usual.
fn with_attr(change: impl FnOnce(&mut EpAttr)) -> PairConfig {
    let probe = Pair::unconnected(&PairConfig::default());
    let mut attr = attributes(&probe.sides[A].ia);
    change(&mut attr);
    PairConfig { attr: [Some(attr); 2], ..PairConfig::default() }
}

/// Starts a connection from A to a qualifier of B.
fn start_connecting(pair: &mut Pair, conn_qual: u64) {
    let ep = pair.sides[A].ep;
    let address = pair.sides[B].ia.query().ia.ia_address;
    pair.sides[A]
        .ia
        .ep_connect(ep, address, conn_qual, LONG, &[], Qos::BEST_EFFORT, ConnectFlags::empty())
        .expect("accepted");
}

/// Takes the request that has arrived at B and accepts it.
fn accept(pair: &mut Pair) {
    let ep = pair.sides[B].ep;
    let Event::ConnectionRequest(arrived) = pair.wait_event(B, pair.sides[B].cr) else { panic!("a request") };
    pair.sides[B].ia.cr_accept(arrived.cr, Some(ep), &[]).expect("accepted");
}

/// The next receive of a side is flushed, with this cookie.
#[track_caller]
fn expect_flushed(pair: &mut Pair, side: usize, cookie: u64) {
    let flushed = pair.wait_recv(side);
    assert_eq!((flushed.cookie, flushed.status), (cookie, DtoStatus::ErrFlushed));
}

/// Clauses: RECV-10, RECV-27, RECV-R5.
#[test]
fn messages_go_into_receives_in_posting_order_one_into_each() {
    let mut pair = Pair::connected();
    let lengths = [1, 4096, 0, 5000, 1024, 3, 2048, 1];
    let (from, to) = (pair.buffer(A, 5000), pair.buffer(B, 8 * 5000));
    let data = support::pattern(1, 5000);
    from.write(0, &data);
    for (at, _) in lengths.iter().enumerate() {
        pair.post_recv(B, &[to.part(at * 5000, 5000)], at as u64, NONE).expect("posted");
    }
    for &bytes in &lengths {
        pair.post_send(A, &[from.part(0, bytes)], 0, NONE).expect("posted");
    }
    for (at, &bytes) in lengths.iter().enumerate() {
        let received = pair.wait_recv(B);
        assert_eq!((received.ep, received.cookie, received.request), (pair.sides[B].ep, at as u64, false));
        assert_eq!((received.status, received.transferred_length), (DtoStatus::Success, bytes as u64));
        assert_eq!(to.read(at * 5000, bytes), data[..bytes]);
        assert_eq!(to.read(at * 5000 + bytes, 5000 - bytes), vec![0; 5000 - bytes]);
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    }
    pair.expect_nothing(B, pair.sides[B].recv);
    pair.assert_no_complaints();
}

/// Clauses: RECV-2, RECV-3.
#[test]
fn a_receive_without_segments_takes_a_message_of_no_bytes() {
    let mut pair = Pair::connected();
    let to = pair.buffer(B, 16);
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.post_recv(B, &[NOTHING; 8], 2, NONE).expect("segments of no bytes are none");
    pair.post_recv(B, &[to.all()], 3, NONE).expect("posted");
    for cookie in 1..4 {
        pair.post_send(A, EMPTY, 0, NONE).expect("posted");
        let received = pair.wait_recv(B);
        assert_eq!(
            (received.cookie, received.status, received.transferred_length),
            (cookie, DtoStatus::Success, 0)
        );
    }
    pair.assert_no_complaints();
}

/// Segments of B's memory, each in the middle of a place of its own, and what is around them.
struct Scatter {
    buffer: Buffer,
    lengths: Vec<usize>,
}

impl Scatter {
    const PLACE: usize = 8192;
    const INSIDE: usize = 1000;

    fn new(pair: &mut Pair, lengths: &[usize]) -> Self {
        let buffer = pair.buffer(B, Self::PLACE * lengths.len());
        buffer.write(0, &vec![0xcc; buffer.bytes]);
        Self { buffer, lengths: lengths.to_vec() }
    }

    fn iov(&self) -> Vec<LmrTriplet> {
        // Places in reverse: the order of addresses must not matter.
        let last = self.lengths.len() - 1;
        let place = |at: usize| (last - at) * Self::PLACE + Self::INSIDE;
        self.lengths.iter().enumerate().map(|(at, &bytes)| self.buffer.part(place(at), bytes)).collect()
    }

    /// What the memory must hold after a message of `data`: segments filled from the first on, all else untouched.
    fn after(&self, mut data: &[u8]) -> Vec<u8> {
        let mut memory = vec![0xcc; self.buffer.bytes];
        let last = self.lengths.len() - 1;
        for (at, &bytes) in self.lengths.iter().enumerate() {
            let place = (last - at) * Self::PLACE + Self::INSIDE;
            let (here, rest) = data.split_at(bytes.min(data.len()));
            memory[place..place + here.len()].copy_from_slice(here);
            data = rest;
        }
        memory
    }
}

/// Clauses: RECV-2, RECV-11, RECV-12.
#[test]
fn a_message_fills_the_segments_from_the_first_on_and_touches_nothing_else() {
    let shapes: [&[usize]; 6] =
        [&[5000], &[1, 1, 1, 4997], &[3000, 2000], &[1023, 1, 1024, 7, 2945], &[0, 2500, 0, 0, 2500, 0], &[625; 8]];
    for lengths in shapes {
        let mut pair = Pair::connected();
        let from = pair.buffer(A, 5000);
        let data = support::pattern(2, 5000);
        from.write(0, &data);
        let mut edges: Vec<usize> = lengths
            .iter()
            .scan(0, |end, bytes| {
                *end += bytes;
                Some(*end)
            })
            .flat_map(|end: usize| [end.saturating_sub(1), end, end + 1])
            .chain([0, 1, 1024, 1025, 4096])
            .filter(|&bytes| bytes <= 5000)
            .collect();
        edges.dedup();
        for bytes in edges {
            let scatter = Scatter::new(&mut pair, lengths);
            pair.post_recv(B, &scatter.iov(), 1, NONE).expect("posted");
            pair.post_send(A, &[from.part(0, bytes)], 2, NONE).expect("posted");
            let received = pair.wait_recv(B);
            assert_eq!((received.status, received.transferred_length), (DtoStatus::Success, bytes as u64));
            assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
            let memory = scatter.buffer.read(0, scatter.buffer.bytes);
            assert!(memory == scatter.after(&data[..bytes]), "{bytes} bytes into {lengths:?}");
            pair.sides[B].ia.lmr_free(scatter.buffer.lmr.lmr).expect("freed");
        }
        pair.assert_no_complaints();
    }
}

/// Clauses: RECV-4, RECV-5, RECV-6.
#[test]
fn any_cookie_comes_back_as_it_was_even_one_used_before() {
    let mut pair = Pair::connected();
    let cookies = [0, 1, u64::MAX, 0, 0xdead_beef_0000_0001, 1 << 63, 7, 7, 7, u64::from(u32::MAX) + 1, 0];
    for cookie in cookies {
        pair.post_recv(B, EMPTY, cookie, NONE).expect("posted");
    }
    for cookie in cookies {
        pair.post_send(A, EMPTY, 1, NONE).expect("posted");
        let received = pair.wait_recv(B);
        assert_eq!((received.cookie, received.status), (cookie, DtoStatus::Success));
    }
    pair.expect_nothing(B, pair.sides[B].recv);
}

/// Clauses: RECV-13.
#[test]
fn the_completion_comes_with_the_message_once_and_on_the_receive_evd_alone() {
    let mut pair = Pair::connected();
    let (recv, request, connect) = (pair.sides[B].recv, pair.sides[B].request, pair.sides[B].connect);
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.expect_nothing(B, recv);
    pair.set_delay(1000);
    pair.post_send(A, EMPTY, 2, NONE).expect("posted");
    refused(pair.sides[B].ia.evd_dequeue(recv), ReturnType::QueueEmpty);
    assert_eq!(pair.wait_recv(B).cookie, 1);
    for evd in [recv, request, connect] {
        pair.expect_nothing(B, evd);
    }
}

/// Clauses: RECV-16.
#[test]
fn the_vector_is_the_callers_again_on_return() {
    // That the provider says so is in `send.rs`: there is one attribute for all posts.
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let data = support::pattern(3, 64);
    from.write(0, &data);
    let mut iov = vec![to.part(32, 32), to.part(0, 32)];
    pair.post_recv(B, &iov, 1, NONE).expect("posted");
    iov.fill(LmrTriplet { lmr_context: 1, virtual_address: 2, segment_length: 3 });
    drop(iov);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    assert_eq!(pair.wait_recv(B).transferred_length, 64);
    assert_eq!(to.read(32, 32), data[..32]);
    assert_eq!(to.read(0, 32), data[32..]);
    pair.assert_no_complaints();
}

/// Clauses: RECV-20.
#[test]
fn once_accepted_a_receive_needs_nothing_more_from_its_receiver() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 5000), pair.buffer(B, 5000));
    let data = support::pattern(4, 5000);
    from.write(0, &data);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.set_delay(1000);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    // Only the sender's software runs, until it knows that all of it was received.
    let evd = pair.sides[A].request;
    let (event, _) = pair.sides[A].ia.evd_wait(evd, LONG, 1).expect("the Send ends");
    let Event::Dto(sent) = event else { panic!("a completion, not {event:?}") };
    assert_eq!(sent.status, DtoStatus::Success);
    assert_eq!(to.read(0, 5000), data);
    assert_eq!(pair.wait_recv(B).transferred_length, 5000);
}

/// Clauses: RECV-22, RECV-23, RECV-R7.
#[test]
fn a_message_too_long_by_a_byte_is_a_length_error_and_breaks_the_connection() {
    let shapes: [(&[usize], usize); 6] =
        [(&[], 1), (&[8], 9), (&[0, 8, 0, 8], 17), (&[5000], 5001), (&[1024], 1025), (&[4096], 60_000)];
    for (lengths, bytes) in shapes {
        let mut pair = Pair::connected();
        let from = pair.buffer(A, bytes);
        from.write(0, &vec![0xdd; bytes]);
        let scatter = Scatter::new(&mut pair, if lengths.is_empty() { &[0] } else { lengths });
        let iov = scatter.iov();
        let iov = if lengths.is_empty() { EMPTY } else { &iov };
        pair.post_recv(B, iov, 1, NONE).expect("posted");
        pair.post_recv(B, EMPTY, 2, NONE).expect("posted");
        pair.post_send(A, &[from.all()], 3, NONE).expect("posted");

        let received = pair.wait_recv(B);
        assert_eq!((received.cookie, received.status), (1, DtoStatus::ErrLocalLength), "{bytes} into {lengths:?}");
        assert_eq!(received.status as u32, 2, "DAT_DTO_LENGTH_ERROR");
        expect_flushed(&mut pair, B, 2);
        pair.expect_connection(B, ConnectionEventKind::Broken);
        assert_eq!(pair.state(B), EpState::Disconnected);
        let sent = pair.wait_request(A);
        assert_eq!((sent.cookie, sent.status), (3, DtoStatus::ErrRemoteResponder));
        pair.expect_connection(A, ConnectionEventKind::Broken);
        assert_eq!(pair.state(A), EpState::Disconnected);
        for side in [A, B] {
            pair.expect_nothing(side, pair.sides[side].connect);
        }

        // What the segments hold is undefined now, what is around them is not.
        let mut memory = scatter.buffer.read(0, scatter.buffer.bytes);
        let base = scatter.buffer.lmr.registered_address;
        for segment in iov {
            let start = usize::try_from(segment.virtual_address - base).expect("an offset");
            let end = start + usize::try_from(segment.segment_length).expect("a length");
            memory[start..end].fill(0xcc);
        }
        assert!(memory.iter().all(|&byte| byte == 0xcc), "{bytes} into {lengths:?}");
        pair.assert_no_complaints();
    }
}

/// Clauses: RECV-22.
#[test]
fn a_message_that_fits_exactly_is_no_length_error() {
    for bytes in [1, 8, 1024, 4096, 5000] {
        let mut pair = Pair::connected();
        let (from, to) = (pair.buffer(A, bytes), pair.buffer(B, bytes));
        pair.send(&from, &to, bytes);
        assert_eq!(pair.state(B), EpState::Connected);
    }
}

/// Clauses: RECV-23.
#[test]
fn a_receive_whose_region_is_gone_when_the_message_comes_fails_and_breaks_the_connection() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.sides[B].ia.lmr_free(to.lmr.lmr).expect("a free does not wait for DTOs");
    from.write(0, &[0xdd; 64]);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let received = pair.wait_recv(B);
    assert_eq!((received.cookie, received.status), (1, DtoStatus::ErrLocalProtection));
    pair.expect_connection(B, ConnectionEventKind::Broken);
    assert_ne!(pair.wait_request(A).status, DtoStatus::Success);
    pair.expect_connection(A, ConnectionEventKind::Broken);
    assert_eq!(to.read(0, 64), [0; 64], "freed memory is out of reach");
}

/// Clauses: RECV-24, RECV-25, RECV-26, RECV-R6.
///
/// RESERVED, PASSIVE_CONNECTION_PENDING and TENTATIVE_CONNECTION_PENDING need an RSP or an endpoint made by the
/// provider; neither exists yet, so no call leads there.
#[test]
fn receives_are_taken_in_every_state_and_used_in_the_order_of_posting() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let recv = [pair.sides[A].recv, pair.sides[B].recv];
    let post = |pair: &mut Pair, side: usize, state: EpState, cookie: u64| {
        assert_eq!(pair.state(side), state);
        pair.post_recv(side, EMPTY, cookie, NONE).expect("every state takes receives");
    };
    post(&mut pair, A, EpState::Unconnected, 1);
    post(&mut pair, B, EpState::Unconnected, 1);
    pair.sides[A].ia.ep_reset(pair.sides[A].ep).expect("a no-op");
    start_connecting(&mut pair, CONN_QUAL);
    post(&mut pair, A, EpState::ActiveConnectionPending, 2);
    accept(&mut pair);
    post(&mut pair, B, EpState::CompletionPending, 2);
    for (side, evd) in [(A, recv[A]), (B, recv[B])] {
        refused(pair.sides[side].ia.evd_dequeue(evd), ReturnType::QueueEmpty);
    }
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    post(&mut pair, A, EpState::Connected, 3);
    post(&mut pair, B, EpState::Connected, 3);
    for (from, to) in [(A, B), (B, A)] {
        for cookie in 1..4 {
            pair.post_send(from, EMPTY, 0, NONE).expect("posted");
            let received = pair.wait_recv(to);
            assert_eq!((received.cookie, received.status), (cookie, DtoStatus::Success));
            let _sent = pair.wait_request(from);
        }
    }

    post(&mut pair, A, EpState::Connected, 4);
    pair.set_delay(2000);
    pair.post_recv(B, EMPTY, 4, NONE).expect("posted");
    pair.post_send(A, EMPTY, 0, NONE).expect("posted");
    pair.sides[A].ia.ep_disconnect(pair.sides[A].ep, CloseFlags::Graceful).expect("accepted");
    post(&mut pair, A, EpState::DisconnectPending, 5);
    refused(pair.sides[A].ia.evd_dequeue(recv[A]), ReturnType::QueueEmpty);
    expect_flushed(&mut pair, A, 4);
    expect_flushed(&mut pair, A, 5);
    pair.expect_connection(A, ConnectionEventKind::Disconnected);
    pair.expect_connection(B, ConnectionEventKind::Disconnected);
    assert_eq!(pair.wait_recv(B).status, DtoStatus::Success, "the request posted before was drained");

    post(&mut pair, A, EpState::Disconnected, 6);
    expect_flushed(&mut pair, A, 6);
    for side in [A, B] {
        pair.expect_nothing(side, recv[side]);
    }
    pair.assert_no_complaints();
}

/// Clauses: RECV-26.
#[test]
fn receives_posted_after_the_end_are_flushed_at_once() {
    let mut pair = Pair::connected();
    let to = pair.buffer(B, 64);
    pair.disconnect();
    let evd = pair.sides[B].recv;
    for round in 0..40 {
        for at in 0..5 {
            pair.post_recv(B, &[to.all()], at, NONE).expect("disconnected endpoints take receives");
        }
        for at in 0..5 {
            // At once, as far as a device can that hears of a receive by looking: of the two sides only this one
            // runs, and no timer but the device's own.
            let (event, _) = pair.sides[B].ia.evd_wait(evd, Timeout::from_micros(2000), 1).expect("a completion");
            let Event::Dto(flushed) = event else { panic!("a completion, not {event:?}") };
            assert_eq!((flushed.cookie, flushed.status), (at, DtoStatus::ErrFlushed), "round {round}");
        }
    }
    pair.expect_nothing(B, evd);
    pair.assert_no_complaints();
}

/// Clauses: RECV-25.
#[test]
fn no_message_reaches_an_endpoint_that_is_unconnected_again() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    from.write(0, &[0xdd; 64]);
    // B leaves and starts anew; A is never told, and goes on sending to the queue pair it knows.
    let deaf = LinkFaults { b_to_a: Faults { loss_ppm: 1_000_000, ..Faults::default() }, ..LinkFaults::default() };
    pair.fabric.sim.set_faults(pair.fabric.link, deaf);
    let ep = pair.sides[B].ep;
    pair.sides[B].ia.ep_disconnect(ep, CloseFlags::Abrupt).expect("accepted");
    pair.expect_connection(B, ConnectionEventKind::Disconnected);
    pair.sides[B].ia.ep_reset(ep).expect("reset");
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    assert_eq!((pair.state(A), pair.state(B)), (EpState::Connected, EpState::Unconnected));
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let sent = pair.wait_request(A);
    assert_eq!((sent.cookie, sent.status), (2, DtoStatus::ErrTransport));
    pair.expect_connection(A, ConnectionEventKind::Broken);
    pair.expect_nothing(B, pair.sides[B].recv);
    assert_eq!(to.read(0, 64), [0; 64]);

    // The receive is still there for the next connection, once both connection managers have forgotten the last one.
    pair.fabric.sim.heal();
    for _ in 0..100 {
        pair.fabric.sim.advance(Duration::from_millis(100));
        pair.pump();
    }
    pair.sides[A].ia.ep_reset(pair.sides[A].ep).expect("reset");
    pair.connect();
    pair.post_send(A, &[from.all()], 3, NONE).expect("posted");
    let received = pair.wait_recv(B);
    assert_eq!((received.cookie, received.status), (1, DtoStatus::Success));
    assert_eq!(to.read(0, 64), [0xdd; 64]);
}

/// Clauses: RECV-25.
#[test]
fn a_message_that_outruns_the_handshake_completes_after_established() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    from.write(0, &[0xdd; 64]);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    start_connecting(&mut pair, CONN_QUAL);
    accept(&mut pair);
    assert_eq!(pair.state(B), EpState::CompletionPending);
    // A is told, but what it answers is lost. Its first message arrives instead.
    let mute = LinkFaults { a_to_b: Faults { loss_ppm: 1_000_000, ..Faults::default() }, ..LinkFaults::default() };
    pair.fabric.sim.set_faults(pair.fabric.link, mute);
    let connect = pair.sides[A].connect;
    let event = pair.sides[A].ia.evd_dequeue(connect).expect("the reply is there");
    assert!(matches!(event, Event::Connection(event) if event.kind == ConnectionEventKind::Established));
    pair.fabric.sim.heal();
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let (recv, connect) = (pair.sides[B].recv, pair.sides[B].connect);
    assert_eq!(pair.state(B), EpState::CompletionPending, "B's software has not looked yet");
    let event = pair.sides[B].ia.evd_dequeue(recv).expect("the message is there");
    assert!(matches!(event, Event::Dto(dto) if (dto.cookie, dto.status) == (1, DtoStatus::Success)), "{event:?}");
    assert_eq!(pair.state(B), EpState::Connected, "before its first completion can be seen");
    let event = pair.sides[B].ia.evd_dequeue(connect).expect("and the event is there");
    assert!(matches!(event, Event::Connection(event) if event.kind == ConnectionEventKind::Established));
    pair.expect_nothing(B, connect);
}

/// Clauses: RECV-28.
#[test]
fn exactly_max_recv_dtos_receives_may_be_outstanding() {
    for limit in [0, 1, 13, 64] {
        let mut pair = Pair::unconnected(&with_attr(|attr| attr.max_recv_dtos = limit));
        let full = |pair: &mut Pair| {
            let error = refused(pair.post_recv(B, EMPTY, 99, NONE), ReturnType::InsufficientResources);
            assert_eq!(error.subtype(), Subtype::ResourceTep);
        };
        for at in 0..u64::from(limit) {
            pair.post_recv(B, EMPTY, at, NONE).expect("there is room");
        }
        full(&mut pair);
        pair.connect();
        full(&mut pair);
        // Many times round the ring, always full.
        for at in 0..u64::from(limit) * 10 {
            pair.post_send(A, EMPTY, 0, NONE).expect("posted");
            let received = pair.wait_recv(B);
            assert_eq!((received.cookie, received.status), (at, DtoStatus::Success), "of {limit}");
            pair.post_recv(B, EMPTY, at + u64::from(limit), NONE).expect("a slot is free again");
            full(&mut pair);
            let _sent = pair.wait_request(A);
        }
        pair.expect_nothing(B, pair.sides[B].recv);
        pair.assert_no_complaints();
    }
}

/// Clauses: RECV-28.
#[test]
fn a_slot_is_free_again_when_the_message_is_there_even_if_nobody_has_taken_its_event() {
    let mut pair = Pair::connected_with(&with_attr(|attr| attr.max_recv_dtos = 4));
    for at in 0..40 {
        pair.post_recv(B, EMPTY, at, NONE).expect("all before are done: only their events wait");
        pair.post_send(A, EMPTY, at, NONE).expect("posted");
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    }
    for at in 0..40 {
        assert_eq!(pair.wait_recv(B).cookie, at);
    }
    pair.expect_nothing(B, pair.sides[B].recv);
}

/// Clauses: RECV-R1.
#[test]
fn an_endpoint_with_an_srq_takes_no_receives_of_its_own_in_any_state() {
    let config = PairConfig { srq: Some(8), ..PairConfig::default() };
    let mut pair = Pair::unconnected(&config);
    let to = pair.buffer(B, 64);
    let refuse = |pair: &mut Pair, state: EpState| {
        assert_eq!(pair.state(B), state);
        for iov in [EMPTY, &[to.all()]] {
            let error = refused(pair.post_recv(B, iov, 1, NONE), ReturnType::InvalidState);
            assert_eq!(error.subtype(), Subtype::StateSrqInUse, "{state:?}");
        }
    };
    refuse(&mut pair, EpState::Unconnected);
    start_connecting(&mut pair, CONN_QUAL);
    accept(&mut pair);
    refuse(&mut pair, EpState::CompletionPending);
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    refuse(&mut pair, EpState::Connected);
    pair.disconnect();
    refuse(&mut pair, EpState::Disconnected);
    pair.expect_nothing(B, pair.sides[B].recv);
}

/// Clauses: RECV-R4.
#[test]
fn an_endpoint_without_a_protection_zone_is_not_ready_for_receives() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let buffer = pair.buffer(A, 64);
    let side = &mut pair.sides[A];
    let ep = side
        .ia
        .ep_create(None, Some(side.recv), Some(side.request), Some(side.connect), None)
        .expect("an endpoint may get its zone later");
    let error = refused(side.ia.ep_post_recv(ep, &[buffer.all()], 1, NONE), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEpNotReady);
    let change = dat::EpChange { pz: Some(Some(side.pz)), ..Default::default() };
    side.ia.ep_modify(ep, &change).expect("unconnected");
    side.ia.ep_post_recv(ep, &[buffer.all()], 1, NONE).expect("now it has one");
}

/// Clauses: RECV-R6.
#[test]
fn preposted_receives_survive_a_reset_and_the_connecting() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 640));
    let data = support::pattern(5, 64);
    from.write(0, &data);
    for at in 0..10 {
        pair.post_recv(B, &[to.part(at * 64, 64)], at as u64, NONE).expect("posted");
        pair.sides[B].ia.ep_reset(pair.sides[B].ep).expect("a no-op");
    }
    pair.connect();
    for at in 0..10 {
        pair.post_send(A, &[from.all()], 0, NONE).expect("posted");
        let received = pair.wait_recv(B);
        assert_eq!((received.cookie, received.status), (at as u64, DtoStatus::Success));
        assert_eq!(to.read(at * 64, 64), data);
    }
    pair.assert_no_complaints();
}

/// Clauses: RECV-R6.
#[test]
fn a_failed_attempt_flushes_the_preposted_receives_of_the_active_side() {
    // Refused by nobody listening, given up by ourselves, out of time.
    for how in 0..3 {
        let mut pair = Pair::unconnected(&PairConfig::default());
        for at in 0..5 {
            pair.post_recv(A, EMPTY, at, NONE).expect("posted");
        }
        let kind = match how {
            0 => {
                start_connecting(&mut pair, CONN_QUAL + 1);
                ConnectionEventKind::NonPeerRejected
            }
            1 => {
                start_connecting(&mut pair, CONN_QUAL);
                let ep = pair.sides[A].ep;
                pair.sides[A].ia.ep_disconnect(ep, CloseFlags::Abrupt).expect("accepted");
                ConnectionEventKind::Disconnected
            }
            _ => {
                start_connecting(&mut pair, CONN_QUAL);
                let Event::ConnectionRequest(arrived) = pair.wait_event(B, pair.sides[B].cr) else { panic!("a request") };
                pair.sides[B].ia.cr_reject(arrived.cr).expect("rejected");
                ConnectionEventKind::PeerRejected
            }
        };
        pair.expect_connection(A, kind);
        for at in 0..5 {
            expect_flushed(&mut pair, A, at);
        }
        pair.expect_nothing(A, pair.sides[A].recv);
    }
}

/// Clauses: RECV-R6.
#[test]
fn a_failed_attempt_flushes_the_preposted_receives_of_the_passive_side() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    for at in 0..5 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
    }
    start_connecting(&mut pair, CONN_QUAL);
    // The active side gives up before the accept is made, and the accept cannot know.
    let Event::ConnectionRequest(arrived) = pair.wait_event(B, pair.sides[B].cr) else { panic!("a request") };
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    pair.sides[A].ia.ep_disconnect(a, CloseFlags::Abrupt).expect("accepted");
    pair.sides[B].ia.cr_accept(arrived.cr, Some(b), &[]).expect("accepted");
    pair.expect_connection(B, ConnectionEventKind::AcceptCompletionError);
    for at in 0..5 {
        expect_flushed(&mut pair, B, at);
    }
    assert_eq!(pair.state(B), EpState::Disconnected);
    pair.expect_nothing(B, pair.sides[B].recv);
}

/// Clauses: RECV-26, RECV-28.
#[test]
fn a_disconnected_queue_takes_its_number_of_receives_and_flushes_them_in_order() {
    let mut pair = Pair::connected_with(&with_attr(|attr| attr.max_recv_dtos = 5));
    pair.disconnect();
    // The device is kept from flushing while the posts are made.
    pair.fabric.sim.set_drive(Drive::Stepped);
    for at in 0..5 {
        pair.post_recv(B, EMPTY, at, NONE).expect("there is room");
    }
    refused(pair.post_recv(B, EMPTY, 99, NONE), ReturnType::InsufficientResources);
    pair.fabric.sim.set_drive(Drive::Inline);
    for at in 0..5 {
        expect_flushed(&mut pair, B, at);
    }
    pair.expect_nothing(B, pair.sides[B].recv);
}
