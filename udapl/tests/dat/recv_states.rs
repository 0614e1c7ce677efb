//! `ep_post_recv`: the states in which receives may be posted, the number of receives, and the flush of receives that
//! get no message.

use core::time::Duration;
use hw_sim::{Drive, Faults, LinkFaults};
use udapl::endpoint::{EpAttr, EpState};
use udapl::error::{ReturnType, Subtype};
use udapl::memory::LmrTriplet;
use udapl::{
    CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds, Event,
    Qos, Timeout,
};

use crate::support::{self, A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig, attributes, refused};

const EMPTY: &[LmrTriplet] = &[];

/// Starts a connection from A to a qualifier of B.
fn start_connecting(pair: &mut Pair, conn_qual: ConnQual) {
    let ep = pair.sides[A].ep;
    let address = pair.sides[B].ia.query().ia.ia_address;
    pair.sides[A]
        .ia
        .ep_connect(
            ep,
            address,
            conn_qual,
            LONG,
            &[],
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )
        .expect("accepted");
}

/// Waits for the connection request at B, and accepts it.
fn accept(pair: &mut Pair) {
    let ep = pair.sides[B].ep;
    let Event::ConnectionRequest(arrived) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    pair.sides[B]
        .ia
        .cr_accept(arrived.cr, Some(ep), &[])
        .expect("accepted");
}

/// Checks that the next receive of a side is flushed, with this cookie.
#[track_caller]
fn expect_flushed(pair: &mut Pair, side: usize, cookie: u64) {
    let flushed = pair.wait_recv(side);
    assert_eq!(
        (flushed.cookie.0, flushed.status),
        (cookie, DtoStatus::ErrFlushed)
    );
}

/// Receives are accepted in every state that this test reaches, and used in the order of posting. It does not reach
/// RESERVED, PASSIVE_CONNECTION_PENDING and TENTATIVE_CONNECTION_PENDING, which need an RSP or an endpoint made by the
/// provider.
///
/// Clauses: RECV-24, RECV-25, RECV-26, RECV-R6.
#[test]
fn receives_are_taken_in_every_state_and_used_in_the_order_of_posting() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let recv = [pair.sides[A].recv, pair.sides[B].recv];
    let post = |pair: &mut Pair, side: usize, state: EpState, cookie: u64| {
        assert_eq!(pair.state(side), state);
        pair.post_recv(side, EMPTY, cookie, NONE)
            .expect("every state takes receives");
    };
    post(&mut pair, A, EpState::Unconnected, 1);
    post(&mut pair, B, EpState::Unconnected, 1);
    pair.sides[A]
        .ia
        .ep_reset(pair.sides[A].ep)
        .expect("a no-op");
    start_connecting(&mut pair, CONN_QUAL);
    post(&mut pair, A, EpState::ActiveConnectionPending, 2);
    accept(&mut pair);
    post(&mut pair, B, EpState::CompletionPending, 2);
    for (side, evd) in [(A, recv[A]), (B, recv[B])] {
        assert_eq!(pair.sides[side].ia.evd_dequeue(evd), Ok(None));
    }
    pair.expect_connection(A, ConnectionEventKind::Established);
    pair.expect_connection(B, ConnectionEventKind::Established);
    post(&mut pair, A, EpState::Connected, 3);
    post(&mut pair, B, EpState::Connected, 3);
    for (from, to) in [(A, B), (B, A)] {
        for cookie in 1..4 {
            pair.post_send(from, EMPTY, 0, NONE).expect("posted");
            let received = pair.wait_recv(to);
            assert_eq!(
                (received.cookie.0, received.status),
                (cookie, DtoStatus::Success)
            );
            let _sent = pair.wait_request(from);
        }
    }

    post(&mut pair, A, EpState::Connected, 4);
    pair.set_delay(2000);
    pair.post_recv(B, EMPTY, 4, NONE).expect("posted");
    pair.post_send(A, EMPTY, 0, NONE).expect("posted");
    pair.sides[A]
        .ia
        .ep_disconnect(pair.sides[A].ep, CloseFlags::Graceful)
        .expect("accepted");
    post(&mut pair, A, EpState::DisconnectPending, 5);
    assert_eq!(pair.sides[A].ia.evd_dequeue(recv[A]), Ok(None));
    expect_flushed(&mut pair, A, 4);
    expect_flushed(&mut pair, A, 5);
    pair.expect_connection(A, ConnectionEventKind::Disconnected);
    pair.expect_connection(B, ConnectionEventKind::Disconnected);
    assert_eq!(
        pair.wait_recv(B).status,
        DtoStatus::Success,
        "the request posted before was drained"
    );

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
    // In simulated time the flush takes less than 2 ms: only this side runs, and the only timer is the timer with which
    // the device polls for receives. In real time the duration depends on the load of the machine, so there is no
    // limit.
    let at_once = match pair.fabric.simulated() {
        Some(_) => Timeout::from_micros(2000),
        None => Timeout::INFINITE,
    };
    for round in 0..40 {
        for at in 0..5 {
            pair.post_recv(B, &[to.all()], at, NONE)
                .expect("disconnected endpoints take receives");
        }
        for at in 0..5 {
            let (event, _) = pair.sides[B]
                .ia
                .evd_wait(evd, at_once, 1)
                .expect("a completion");
            let Event::Dto(flushed) = event else {
                panic!("a completion, not {event:?}")
            };
            assert_eq!(
                (flushed.cookie.0, flushed.status),
                (at, DtoStatus::ErrFlushed),
                "round {round}"
            );
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
    // B disconnects and resets its endpoint. A gets no event, and continues to send to the queue pair that it knows.
    let deaf = LinkFaults {
        b_to_a: Faults {
            loss_ppm: 1_000_000,
            ..Faults::default()
        },
        ..LinkFaults::default()
    };
    pair.fabric.sim.set_faults(pair.fabric.link, deaf);
    let ep = pair.sides[B].ep;
    pair.sides[B]
        .ia
        .ep_disconnect(ep, CloseFlags::Abrupt)
        .expect("accepted");
    pair.expect_connection(B, ConnectionEventKind::Disconnected);
    pair.sides[B].ia.ep_reset(ep).expect("reset");
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posted");
    assert_eq!(
        (pair.state(A), pair.state(B)),
        (EpState::Connected, EpState::Unconnected)
    );
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let sent = pair.wait_request(A);
    assert_eq!((sent.cookie.0, sent.status), (2, DtoStatus::ErrTransport));
    pair.expect_connection(A, ConnectionEventKind::Broken);
    pair.expect_nothing(B, pair.sides[B].recv);
    assert_eq!(to.read(0, 64), [0; 64]);

    // The receive stays posted for the next connection. The wait lets both connection managers end the old connection.
    pair.fabric.sim.heal();
    for _ in 0..100 {
        pair.fabric.sim.advance(Duration::from_millis(100));
        pair.pump();
    }
    pair.sides[A].ia.ep_reset(pair.sides[A].ep).expect("reset");
    pair.connect();
    pair.post_send(A, &[from.all()], 3, NONE).expect("posted");
    let received = pair.wait_recv(B);
    assert_eq!(
        (received.cookie.0, received.status),
        (1, DtoStatus::Success)
    );
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
    // A gets the reply, but A's RTU is lost. A's first message arrives at B instead.
    let mute = LinkFaults {
        a_to_b: Faults {
            loss_ppm: 1_000_000,
            ..Faults::default()
        },
        ..LinkFaults::default()
    };
    pair.fabric.sim.set_faults(pair.fabric.link, mute);
    let connect = pair.sides[A].connect;
    let event = pair.sides[A]
        .ia
        .evd_dequeue(connect)
        .expect("the reply is there");
    assert!(
        matches!(event, Some(Event::Connection(event)) if event.kind == ConnectionEventKind::Established)
    );
    pair.fabric.sim.heal();
    pair.post_send(A, &[from.all()], 2, NONE).expect("posted");
    let (recv, connect) = (pair.sides[B].recv, pair.sides[B].connect);
    assert_eq!(
        pair.state(B),
        EpState::CompletionPending,
        "B's software has not looked yet"
    );
    let event = pair.sides[B]
        .ia
        .evd_dequeue(recv)
        .expect("the message is there");
    assert!(
        matches!(event, Some(Event::Dto(dto)) if (dto.cookie.0, dto.status) == (1, DtoStatus::Success)),
        "{event:?}"
    );
    assert_eq!(
        pair.state(B),
        EpState::Connected,
        "before its first completion can be seen"
    );
    let event = pair.sides[B]
        .ia
        .evd_dequeue(connect)
        .expect("and the event is there");
    assert!(
        matches!(event, Some(Event::Connection(event)) if event.kind == ConnectionEventKind::Established)
    );
    pair.expect_nothing(B, connect);
}

/// Clauses: RECV-28.
#[test]
fn exactly_max_recv_dtos_receives_may_be_outstanding() {
    for limit in [0, 1, 13, 64] {
        let mut pair = Pair::unconnected(&PairConfig::with_attr(|attr| attr.max_recv_dtos = limit));
        let full = |pair: &mut Pair| {
            let error = refused(
                pair.post_recv(B, EMPTY, 99, NONE),
                ReturnType::InsufficientResources,
            );
            assert_eq!(error.subtype(), Subtype::ResourceTep);
        };
        for at in 0..u64::from(limit) {
            pair.post_recv(B, EMPTY, at, NONE).expect("there is room");
        }
        full(&mut pair);
        pair.connect();
        full(&mut pair);
        // The receives go around the ring many times, and the queue is full after each post.
        for at in 0..u64::from(limit) * 10 {
            pair.post_send(A, EMPTY, 0, NONE).expect("posted");
            let received = pair.wait_recv(B);
            assert_eq!(
                (received.cookie.0, received.status),
                (at, DtoStatus::Success),
                "of {limit}"
            );
            pair.post_recv(B, EMPTY, at + u64::from(limit), NONE)
                .expect("a slot is free again");
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
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_recv_dtos = 4));
    for at in 0..40 {
        pair.post_recv(B, EMPTY, at, NONE)
            .expect("all before are done: only their events wait");
        pair.post_send(A, EMPTY, at, NONE).expect("posted");
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    }
    for at in 0..40 {
        assert_eq!(pair.wait_recv(B).cookie, DtoCookie(at));
    }
    pair.expect_nothing(B, pair.sides[B].recv);
}

/// Clauses: RECV-R1, EPCS-2.
#[test]
fn an_endpoint_with_an_srq_takes_no_receives_of_its_own_in_any_state() {
    let config = PairConfig {
        srq: Some(8),
        ..PairConfig::default()
    };
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
        .ep_create(
            None,
            EpEvds::NONE
                .recv(side.recv)
                .request(side.request)
                .connect(side.connect),
            None,
        )
        .expect("an endpoint may get its zone later");
    let error = refused(
        side.ia
            .ep_post_recv(ep, &[buffer.all()], DtoCookie(1), NONE),
        ReturnType::InvalidState,
    );
    assert_eq!(error.subtype(), Subtype::StateEpNotReady);
    let change = udapl::endpoint::EpChange {
        pz: Some(Some(side.pz)),
        ..Default::default()
    };
    side.ia.ep_modify(ep, &change).expect("unconnected");
    side.ia
        .ep_post_recv(ep, &[buffer.all()], DtoCookie(1), NONE)
        .expect("now it has one");
}

/// Receives of an endpoint with a null receive EVD are filled, and give no event. A null EVD is legal: the consumer
/// does not want these events (`dat_ep_create`).
///
/// Clauses: RECV-R4, EPC-3.
#[test]
fn receives_of_an_endpoint_with_a_null_receive_evd_are_filled_and_told_to_nobody() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 64));
    let side = &mut pair.sides[B];
    let attr = EpAttr {
        max_recv_dtos: 3,
        ..attributes(&side.ia)
    };
    side.ep = side
        .ia
        .ep_create(
            Some(side.pz),
            EpEvds::NONE.request(side.request).connect(side.connect),
            Some(&attr),
        )
        .expect("an endpoint");
    pair.post_recv(B, &[to.all()], 0, NONE).expect("posted");
    pair.connect();
    for round in 0..20 {
        from.write(0, &[round; 64]);
        pair.post_send(A, &[from.all()], 0, NONE).expect("posted");
        assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
        assert_eq!(to.read(0, 64), [round; 64]);
        pair.post_recv(B, &[to.all()], 0, NONE)
            .expect("the slot is free");
    }
    for evd in [
        pair.sides[B].recv,
        pair.sides[B].request,
        pair.sides[B].connect,
    ] {
        pair.expect_nothing(B, evd);
    }
    // A receive that fails breaks the connection, which is reported on the connect EVD.
    let long = pair.buffer(A, 65);
    pair.post_send(A, &[long.all()], 0, NONE).expect("posted");
    pair.expect_connection(B, ConnectionEventKind::Broken);
}

/// Clauses: RECV-R6.
#[test]
fn preposted_receives_survive_a_reset_and_the_connecting() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let (from, to) = (pair.buffer(A, 64), pair.buffer(B, 640));
    let data = support::pattern(5, 64);
    from.write(0, &data);
    for at in 0..10 {
        pair.post_recv(B, &[to.part(at * 64, 64)], at as u64, NONE)
            .expect("posted");
        pair.sides[B]
            .ia
            .ep_reset(pair.sides[B].ep)
            .expect("a no-op");
    }
    pair.connect();
    for at in 0..10 {
        pair.post_send(A, &[from.all()], 0, NONE).expect("posted");
        let received = pair.wait_recv(B);
        assert_eq!(
            (received.cookie.0, received.status),
            (at as u64, DtoStatus::Success)
        );
        assert_eq!(to.read(at * 64, 64), data);
    }
    pair.assert_no_complaints();
}

/// Clauses: RECV-R6, CONN-7.
#[test]
fn a_failed_attempt_flushes_the_preposted_receives_of_the_active_side() {
    // Three ends of an attempt: no service listens, the active side disconnects, the peer rejects.
    for how in 0..3 {
        let mut pair = Pair::unconnected(&PairConfig::default());
        for at in 0..5 {
            pair.post_recv(A, EMPTY, at, NONE).expect("posted");
        }
        let kind = match how {
            0 => {
                start_connecting(&mut pair, support::beside(1));
                ConnectionEventKind::NonPeerRejected
            }
            1 => {
                start_connecting(&mut pair, CONN_QUAL);
                let ep = pair.sides[A].ep;
                pair.sides[A]
                    .ia
                    .ep_disconnect(ep, CloseFlags::Abrupt)
                    .expect("accepted");
                ConnectionEventKind::Disconnected
            }
            _ => {
                start_connecting(&mut pair, CONN_QUAL);
                let Event::ConnectionRequest(arrived) = pair.wait_event(B, pair.sides[B].cr) else {
                    panic!("a request")
                };
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
    // The active side disconnects before the accept. The passive side does not know of the disconnect when it accepts.
    let Event::ConnectionRequest(arrived) = pair.wait_event(B, pair.sides[B].cr) else {
        panic!("a request")
    };
    let (a, b) = (pair.sides[A].ep, pair.sides[B].ep);
    pair.sides[A]
        .ia
        .ep_disconnect(a, CloseFlags::Abrupt)
        .expect("accepted");
    pair.sides[B]
        .ia
        .cr_accept(arrived.cr, Some(b), &[])
        .expect("accepted");
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
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_recv_dtos = 5));
    pair.disconnect();
    // The device does not flush while the posts are made.
    pair.fabric.sim.set_drive(Drive::Stepped);
    for at in 0..5 {
        pair.post_recv(B, EMPTY, at, NONE).expect("there is room");
    }
    refused(
        pair.post_recv(B, EMPTY, 99, NONE),
        ReturnType::InsufficientResources,
    );
    pair.fabric.sim.set_drive(Drive::Inline);
    for at in 0..5 {
        expect_flushed(&mut pair, B, at);
    }
    pair.expect_nothing(B, pair.sides[B].recv);
}
