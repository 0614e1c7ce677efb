//! `ep_post_send`: the bytes of a Send, its completion, and the states in which it may be posted.
//!
//! `flags.rs` tests completion flags, `refused.rs` errors. The test program `hotpath` tests that a post allocates
//! nothing (SEND-24).

use hw_sim::Drive;
use udapl::endpoint::{EpAttr, EpState};
use udapl::error::{ReturnType, Subtype};
use udapl::memory::LmrTriplet;
use udapl::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds,
    Event, Qos,
};

use crate::support::{self, A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, attributes, refused};

/// An empty I/O vector, with its type.
const EMPTY: &[LmrTriplet] = &[];
/// A segment of no bytes with invalid fields, which are ignored.
const NOTHING: LmrTriplet = LmrTriplet {
    lmr_context: 0xffff_ffff,
    virtual_address: u64::MAX,
    segment_length: 0,
};

/// Clauses: SEND-15, SEND-25, SEND-30.
#[test]
fn send_arrives_whole_and_completes_on_both_sides() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 10_000), pair.buffer(B, 10_000));
    let data = support::pattern(1, 10_000);
    from.write(0, &data);
    pair.send(&from, &to, 10_000);
    assert_eq!(to.read(0, 10_000), data);
    pair.assert_no_complaints();
}

/// Clauses: SEND-15, SEND-16, SEND-R4.
#[test]
fn sends_of_every_length_around_a_packet_arrive_byte_for_byte_and_in_order() {
    let mut pair = Pair::connected();
    let lengths = [
        1, 3, 4, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 4095, 4096, 4097, 8191, 12_289,
        65_536,
    ];
    let (from, to) = (
        pair.buffer(A, 65_536),
        pair.buffer(B, 65_536 * lengths.len()),
    );
    let data = support::pattern(2, 65_536);
    from.write(0, &data);
    for at in 0..lengths.len() {
        pair.post_recv(B, &[to.part(at * 65_536, 65_536)], 100 + at as u64, NONE)
            .expect("posted");
    }
    for (at, &bytes) in lengths.iter().enumerate() {
        pair.post_send(A, &[from.part(0, bytes)], at as u64, NONE)
            .expect("posted");
    }
    for (at, &bytes) in lengths.iter().enumerate() {
        let sent = pair.wait_request(A);
        assert_eq!(
            (sent.cookie.0, sent.status, sent.transferred_length),
            (at as u64, DtoStatus::Success, bytes as u64)
        );
        let received = pair.wait_recv(B);
        assert_eq!(
            (received.cookie.0, received.transferred_length),
            (100 + at as u64, bytes as u64)
        );
        assert_eq!(to.read(at * 65_536, bytes), data[..bytes], "{bytes} bytes");
        assert_eq!(
            to.read(at * 65_536 + bytes, 65_536 - bytes),
            vec![0; 65_536 - bytes],
            "behind {bytes} bytes"
        );
    }
    pair.assert_no_complaints();
}

/// Clauses: SEND-2, SEND-16.
#[test]
fn a_message_is_the_concatenation_of_exactly_the_segments_given() {
    let mut pair = Pair::connected();
    let (one, other, to) = (
        pair.buffer(A, 9000),
        pair.buffer(A, 5000),
        pair.buffer(B, 32_768),
    );
    let (first, second) = (support::pattern(3, 9000), support::pattern(4, 5000));
    one.write(0, &first);
    other.write(0, &second);
    // The segments run backwards, overlap, have odd lengths, cross packet ends and are in two regions: only the vector
    // decides the order.
    let pieces = [
        (&one, &first, 5001, 3999),
        (&other, &second, 4999, 1),
        (&one, &first, 0, 1),
        (&one, &first, 4000, 2500),
        (&other, &second, 0, 5000),
        (&one, &first, 4000, 2500),
        (&other, &second, 7, 13),
        (&one, &first, 8999, 1),
    ];
    let iov = pieces.map(|(buffer, _, offset, bytes)| buffer.part(offset, bytes));
    for segments in 0..=pieces.len() {
        let expected: Vec<u8> = pieces[..segments]
            .iter()
            .flat_map(|(_, data, offset, bytes)| data[*offset..offset + bytes].to_vec())
            .collect();
        to.write(0, &[0; 32_768]);
        pair.post_recv(B, &[to.all()], 0, NONE).expect("posted");
        pair.post_send(A, &iov[..segments], segments as u64, NONE)
            .expect("posted");
        let sent = pair.wait_request(A);
        assert_eq!(
            (sent.status, sent.transferred_length),
            (DtoStatus::Success, expected.len() as u64)
        );
        assert_eq!(pair.wait_recv(B).transferred_length, expected.len() as u64);
        assert_eq!(to.read(0, expected.len()), expected, "{segments} segments");
        assert_eq!(to.read(expected.len(), 16), [0; 16], "{segments} segments");
    }
    pair.assert_no_complaints();
}

/// Clauses: SEND-3, SEND-4.
#[test]
fn no_segments_send_a_message_of_no_bytes() {
    let mut pair = Pair::connected();
    let to = pair.buffer(B, 64);
    to.write(0, &[0xaa; 64]);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.post_recv(B, &[to.all()], 2, NONE).expect("posted");
    pair.post_send(A, EMPTY, 3, NONE).expect("posted");
    let received = pair.wait_recv(B);
    assert_eq!(
        (
            received.cookie.0,
            received.status,
            received.transferred_length
        ),
        (1, DtoStatus::Success, 0)
    );
    let sent = pair.wait_request(A);
    assert_eq!(
        (sent.cookie.0, sent.status, sent.transferred_length),
        (3, DtoStatus::Success, 0)
    );
    assert_eq!(to.read(0, 64), [0xaa; 64]);
    // One message took one receive.
    pair.expect_nothing(B, pair.sides[B].recv);
    pair.assert_no_complaints();
}

/// A segment of no bytes is skipped at any place of the vector, and its other fields are ignored.
///
/// Clauses: SEND-R3.
#[test]
fn a_segment_of_no_bytes_is_skipped_wherever_it_stands_and_never_looked_at() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 100), pair.buffer(B, 100));
    let data = support::pattern(5, 100);
    from.write(0, &data);
    let (head, tail) = (from.part(0, 40), from.part(40, 60));
    let empty_of_ours = from.part(100, 0);
    let vectors: [(&[LmrTriplet], usize); 6] = [
        (&[NOTHING], 0),
        (&[NOTHING; 8], 0),
        (&[NOTHING, head, tail], 100),
        (&[head, NOTHING, NOTHING, tail], 100),
        (&[head, tail, NOTHING], 100),
        (
            &[
                empty_of_ours,
                NOTHING,
                NOTHING,
                NOTHING,
                NOTHING,
                NOTHING,
                NOTHING,
                head,
            ],
            40,
        ),
    ];
    for (iov, bytes) in vectors {
        to.write(0, &[0; 100]);
        pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
        pair.post_send(A, iov, 2, NONE).expect("posted");
        let sent = pair.wait_request(A);
        assert_eq!(
            (sent.status, sent.transferred_length),
            (DtoStatus::Success, bytes as u64),
            "{iov:?}"
        );
        assert_eq!(
            pair.wait_recv(B).transferred_length,
            bytes as u64,
            "{iov:?}"
        );
        assert_eq!(to.read(0, bytes), data[..bytes], "{iov:?}");
    }
    pair.assert_no_complaints();
}

/// Clauses: SEND-5, SEND-6, SEND-7, SEND-8.
#[test]
fn any_cookie_comes_back_as_it_was_even_one_used_before() {
    let mut pair = Pair::connected();
    // Null, small numbers, invalid addresses, all ones, and equal cookies that are outstanding at the same time.
    let cookies = [
        0,
        1,
        u64::MAX,
        0,
        0xdead_beef_0000_0001,
        1 << 63,
        7,
        7,
        7,
        u64::from(u32::MAX) + 1,
        0,
    ];
    for _ in cookies {
        pair.post_recv(B, EMPTY, 0, NONE).expect("posted");
    }
    pair.set_delay(100);
    for cookie in cookies {
        pair.post_send(A, EMPTY, cookie, NONE).expect("posted");
    }
    for cookie in cookies {
        let sent = pair.wait_request(A);
        assert_eq!((sent.cookie.0, sent.status), (cookie, DtoStatus::Success));
    }
    pair.expect_nothing(A, pair.sides[A].request);
}

/// Clauses: SEND-25, SEND-R4.
#[test]
fn the_completion_comes_later_once_and_on_the_request_evd_alone() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 5000), pair.buffer(B, 5000));
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.set_delay(1000);
    pair.post_send(A, &[from.part(0, 2000), from.part(2000, 3000)], 9, NONE)
        .expect("posted");
    let (recv, request, connect) = (
        pair.sides[A].recv,
        pair.sides[A].request,
        pair.sides[A].connect,
    );
    assert_eq!(pair.sides[A].ia.evd_dequeue(request), Ok(None));
    let completion = pair.wait_request(A);
    assert_eq!((completion.ep, completion.cookie.0), (pair.sides[A].ep, 9));
    assert_eq!(
        (completion.status, completion.transferred_length),
        (DtoStatus::Success, 5000)
    );
    assert!(completion.request);
    for evd in [recv, request, connect] {
        pair.expect_nothing(A, evd);
    }
}

/// After a Send was accepted, it arrives without further calls of its sender.
///
/// Clauses: SEND-23.
#[test]
fn once_accepted_a_send_needs_nothing_more_from_its_sender() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.buffer(A, 3000), pair.buffer(B, 3000));
    let data = support::pattern(6, 3000);
    from.write(0, &data);
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    pair.set_delay(1000);
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    // From here on only the other side's software runs.
    let evd = pair.sides[B].recv;
    let (event, _) = pair.sides[B]
        .ia
        .evd_wait(evd, LONG, 1)
        .expect("the message comes");
    let Event::Dto(received) = event else {
        panic!("a completion, not {event:?}")
    };
    assert_eq!(
        (received.status, received.transferred_length),
        (DtoStatus::Success, 3000)
    );
    assert_eq!(to.read(0, 3000), data);
}

/// Clauses: SEND-19.
#[test]
fn the_vector_is_the_callers_again_on_return_and_the_provider_says_so() {
    let mut pair = Pair::connected();
    const DAT_IOV_CONSUMER: u32 = 0;
    assert_eq!(
        pair.sides[A].ia.query().provider.iov_ownership_on_return,
        DAT_IOV_CONSUMER
    );
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    from.write(0, b"as it was described when it was posted");
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    // The device reads the post only after the vector was overwritten and dropped.
    pair.fabric.sim.set_drive(Drive::Stepped);
    let mut iov = vec![from.part(0, 19), from.part(19, 19)];
    pair.post_send(A, &iov, 2, NONE).expect("posted");
    iov.fill(LmrTriplet {
        lmr_context: 1,
        virtual_address: 2,
        segment_length: 3,
    });
    drop(iov);
    pair.fabric.sim.set_drive(Drive::Inline);
    assert_eq!(pair.wait_recv(B).transferred_length, 38);
    assert_eq!(to.read(0, 38), b"as it was described when it was posted");
    assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    pair.assert_no_complaints();
}

/// Clauses: SEND-31, SEND-30.
#[test]
fn exactly_max_request_dtos_sends_may_be_outstanding() {
    // The maximum is no power of two: rounding up the size of the ring must not allow more.
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_request_dtos = 13));
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let iov: [LmrTriplet; 8] = core::array::from_fn(|at| from.part(at * 8, 8));
    for round in 0..20 {
        // The WQEs have one block or several blocks, mixed differently in each round.
        let segments = |at: u64| if (round + at).is_multiple_of(3) { 0 } else { 8 };
        pair.set_delay(100);
        for at in 0..13 {
            pair.post_recv(B, &[to.all()], at, NONE).expect("posted");
            pair.post_send(A, &iov[..segments(at)], at, NONE)
                .expect("there is room");
        }
        for _ in 0..2 {
            let error = refused(
                pair.post_send(A, &iov, 99, NONE),
                ReturnType::InsufficientResources,
            );
            assert_eq!(error.subtype(), Subtype::ResourceTep);
        }
        for at in 0..13 {
            let sent = pair.wait_request(A);
            assert_eq!(
                (sent.cookie.0, sent.status),
                (at, DtoStatus::Success),
                "round {round}"
            );
            let received = pair.wait_recv(B);
            assert_eq!(
                (received.cookie.0, received.transferred_length),
                (at, segments(at) as u64 * 8),
                "round {round}"
            );
        }
    }
    pair.expect_nothing(A, pair.sides[A].request);
    pair.assert_no_complaints();
}

/// Clauses: SEND-31.
#[test]
fn a_slot_is_free_again_when_the_send_is_done_even_if_nobody_has_taken_its_event() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_request_dtos = 4));
    for at in 0..40 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
        pair.post_send(A, EMPTY, at, NONE)
            .expect("all before are done: only their events wait");
    }
    for at in 0..40 {
        assert_eq!(pair.wait_request(A).cookie, DtoCookie(at));
    }
    pair.expect_nothing(A, pair.sides[A].request);
}

/// An endpoint with a null request EVD can send without end, and its Sends give no event: the consumer does not want
/// these events (`dat_ep_create`).
///
/// Clauses: SEND-31.
#[test]
fn sends_of_an_endpoint_with_a_null_request_evd_go_on_for_ever_and_are_told_to_nobody() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let side = &mut pair.sides[A];
    let attr = EpAttr {
        max_request_dtos: 3,
        ..attributes(&side.ia)
    };
    side.ep = side
        .ia
        .ep_create(
            Some(side.pz),
            EpEvds::NONE.recv(side.recv).connect(side.connect),
            Some(&attr),
        )
        .expect("an endpoint");
    pair.connect();
    for at in 0..50 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
        pair.post_send(A, EMPTY, at, NONE)
            .expect("all before are done");
        assert_eq!(pair.wait_recv(B).cookie, DtoCookie(at));
    }
    for evd in [
        pair.sides[A].recv,
        pair.sides[A].request,
        pair.sides[A].connect,
    ] {
        pair.expect_nothing(A, evd);
    }
    // A Send that fails gives no event, but the connection that the Send breaks gives an event.
    pair.post_send(A, EMPTY, 0, NONE)
        .expect("posted; but no receive is");
    pair.expect_connection(A, ConnectionEventKind::Broken);
}

/// Sends are refused in every state that this test reaches except CONNECTED and DISCONNECTED. It does not reach
/// RESERVED, PASSIVE_CONNECTION_PENDING and TENTATIVE_CONNECTION_PENDING, which need an RSP or an endpoint made by the
/// provider.
///
/// Clauses: SEND-26, SEND-27, SEND-29, SEND-R6.
#[test]
fn sends_are_refused_in_every_state_but_connected_and_disconnected() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let request = [pair.sides[A].request, pair.sides[B].request];
    let refuse = |pair: &mut Pair, side: usize, state: EpState, subtype: Subtype| {
        assert_eq!(pair.state(side), state);
        for flags in [NONE, CompletionFlags::SUPPRESS] {
            let error = refused(
                pair.post_send(side, EMPTY, 66, flags),
                ReturnType::InvalidState,
            );
            assert_eq!(error.subtype(), subtype);
        }
        assert_eq!(pair.sides[side].ia.evd_dequeue(request[side]), Ok(None));
    };

    refuse(
        &mut pair,
        A,
        EpState::Unconnected,
        Subtype::StateEpUnconnected,
    );
    let (ep, peer) = (pair.sides[A].ep, pair.sides[B].ep);
    let address = pair.sides[B].ia.query().ia.ia_address;
    pair.sides[A]
        .ia
        .ep_connect(
            ep,
            address,
            CONN_QUAL,
            LONG,
            &[],
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )
        .expect("accepted");
    refuse(
        &mut pair,
        A,
        EpState::ActiveConnectionPending,
        Subtype::StateEpActiveConnectionPending,
    );

    let Event::ConnectionRequest(arrived) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    pair.sides[B]
        .ia
        .cr_accept(arrived.cr, Some(peer), &[])
        .expect("accepted");
    // Side A has not polled yet, so the handshake is not complete.
    refuse(
        &mut pair,
        B,
        EpState::CompletionPending,
        Subtype::StateEpCompletionPending,
    );
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);

    assert_eq!(pair.state(A), EpState::Connected);
    pair.set_delay(2000);
    for at in 0..64 {
        pair.post_recv(B, EMPTY, at, NONE).expect("posted");
        pair.post_send(A, EMPTY, at, NONE)
            .expect("connected; and the refused ones took no room");
    }
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Graceful)
        .expect("accepted");
    refuse(
        &mut pair,
        A,
        EpState::DisconnectPending,
        Subtype::StateEpDisconnectPending,
    );
    for at in 0..64 {
        let sent = pair.wait_request(A);
        assert_eq!(
            (sent.cookie.0, sent.status),
            (at, DtoStatus::Success),
            "drained before the end"
        );
        assert_eq!(pair.wait_recv(B).status, DtoStatus::Success);
    }
    pair.expect_connection(A, ConnectionEventKind::Disconnected);
    pair.expect_connection(B, ConnectionEventKind::Disconnected);

    assert_eq!(pair.state(A), EpState::Disconnected);
    pair.post_send(A, EMPTY, 77, NONE).expect("disconnected");
    let flushed = pair.wait_request(A);
    assert_eq!(
        (flushed.cookie.0, flushed.status),
        (77, DtoStatus::ErrFlushed)
    );
    pair.expect_nothing(A, request[A]);
    pair.expect_nothing(B, request[B]);
    pair.assert_no_complaints();
}

/// Clauses: SEND-27, SEND-28.
#[test]
fn sends_posted_after_the_end_are_flushed_at_once_whatever_their_flags() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| {
        attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
    }));
    let from = pair.buffer(A, 64);
    pair.disconnect();
    let (request, connect) = (pair.sides[A].request, pair.sides[A].connect);
    let flags = [
        NONE,
        CompletionFlags::SUPPRESS,
        CompletionFlags::SOLICITED_WAIT,
        CompletionFlags::UNSIGNALLED,
        CompletionFlags::BARRIER_FENCE,
        CompletionFlags::SUPPRESS | CompletionFlags::UNSIGNALLED | CompletionFlags::BARRIER_FENCE,
    ];
    // The test makes many rounds, because a flushed Send must return its slot.
    for round in 0..30 {
        for (at, &flags) in flags.iter().enumerate() {
            pair.post_send(A, &[from.all()], at as u64, flags)
                .expect("disconnected endpoints take Sends");
        }
        for (at, flags) in flags.iter().enumerate() {
            // The flush is immediate: neither time nor the peer's software has advanced since the posts.
            let event = pair.sides[A].ia.evd_dequeue(request).expect("an EVD");
            let Some(Event::Dto(flushed)) = event else {
                panic!("a completion, not {event:?}")
            };
            assert_eq!(
                (flushed.cookie.0, flushed.status),
                (at as u64, DtoStatus::ErrFlushed),
                "{flags:?}, round {round}"
            );
            assert_eq!(flushed.ep, pair.sides[A].ep);
        }
    }
    for evd in [request, connect] {
        pair.expect_nothing(A, evd);
    }
    pair.assert_no_complaints();
}

/// Clauses: SEND-28, SEND-31.
#[test]
fn a_disconnected_queue_takes_its_number_of_sends_and_flushes_them_in_order() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_request_dtos = 5));
    pair.disconnect();
    // The device does not flush while the posts are made.
    pair.fabric.sim.set_drive(Drive::Stepped);
    for at in 0..5 {
        pair.post_send(A, EMPTY, at, NONE).expect("there is room");
    }
    refused(
        pair.post_send(A, EMPTY, 99, NONE),
        ReturnType::InsufficientResources,
    );
    pair.fabric.sim.set_drive(Drive::Inline);
    for at in 0..5 {
        let flushed = pair.wait_request(A);
        assert_eq!(
            (flushed.cookie.0, flushed.status),
            (at, DtoStatus::ErrFlushed)
        );
    }
    pair.expect_nothing(A, pair.sides[A].request);
}

/// Clauses: SEND-25, SEND-5.
#[test]
fn outstanding_sends_are_flushed_with_their_cookies_when_the_connection_ends() {
    let mut pair = Pair::connected();
    pair.set_delay(5000);
    for at in 0..10 {
        pair.post_send(A, EMPTY, at, NONE).expect("posted");
    }
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_disconnect(ep, CloseFlags::Abrupt)
        .expect("accepted");
    for at in 0..10 {
        let flushed = pair.wait_request(A);
        assert_eq!(
            (flushed.cookie.0, flushed.status),
            (at, DtoStatus::ErrFlushed)
        );
    }
    pair.expect_nothing(A, pair.sides[A].request);
    pair.expect_connection(A, ConnectionEventKind::Disconnected);
}

/// Clauses: SEND-25.
#[test]
fn a_send_whose_region_is_freed_before_it_starts_fails_and_breaks_the_connection() {
    let mut pair = Pair::connected();
    let (from, sink, source) = (pair.buffer(A, 64), pair.buffer(A, 64), pair.buffer(B, 64));
    pair.post_recv(B, EMPTY, 1, NONE).expect("posted");
    pair.set_delay(1000);
    // The fence delays the Send until the read is answered.
    let ep = pair.sides[A].ep;
    pair.sides[A]
        .ia
        .ep_post_rdma_read(ep, &[sink.all()], DtoCookie(2), &source.remote(0, 64), NONE)
        .expect("posted");
    pair.post_send(A, &[from.all()], 3, CompletionFlags::BARRIER_FENCE)
        .expect("posted");
    pair.sides[A]
        .ia
        .lmr_free(from.lmr.lmr)
        .expect("a free does not wait for DTOs");
    assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    let failed = pair.wait_request(A);
    assert_eq!(
        (failed.cookie.0, failed.status),
        (3, DtoStatus::ErrLocalProtection)
    );
    pair.expect_connection(A, ConnectionEventKind::Broken);
    assert_eq!(pair.state(A), EpState::Disconnected);
}
