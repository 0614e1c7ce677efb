//! Tests of how connections end.

use super::super::conn::MAX_STALE;
use super::super::wire::{DreqRepr, RejRepr, RejectReason, Rejected};
use super::*;

fn kinds_sent(pair: &Pair) -> Vec<(End, u16)> {
    pair.sent
        .iter()
        .skip(3)
        .map(|(end, message)| (*end, message.attribute().code()))
        .collect()
}

#[test]
fn disconnect_of_either_side_is_two_datagrams() {
    for end in [A, B] {
        let (mut pair, a, b) = Pair::established();
        let (ours, theirs) = if end == A { (a, b) } else { (b, a) };
        let now = pair.now;
        pair.cm(end).disconnect(now, ours).expect("connected");
        pair.run_for(MILLISECOND);
        assert_eq!(pair.take(end), [CmEvent::DisconnectDone { conn: ours }]);
        assert_eq!(
            pair.take(end.other()),
            [CmEvent::Disconnected { conn: theirs }]
        );
        assert_eq!(kinds_sent(&pair), [(end, 0x15), (end.other(), 0x16)]);
    }
}

#[test]
fn ended_connection_is_forgotten_after_its_time_wait_and_release() {
    let (mut pair, a, b) = Pair::established();
    pair.a.disconnect(pair.now, a).expect("connected");
    pair.run_to_the_end();
    assert_eq!(pair.a.state(a), Some(State::Closed));
    assert_eq!(pair.b.state(b), Some(State::Closed));
    pair.a.release(pair.now, a);
    pair.b.release(pair.now, b);
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
    assert_eq!(pair.a.state(a), None);
}

#[test]
fn time_wait_ends_within_a_second() {
    let (mut pair, a, b) = Pair::established();
    pair.a.disconnect(pair.now, a).expect("connected");
    pair.a.release(pair.now, a);
    pair.run_for(MILLISECOND);
    pair.b.release(pair.now, b);
    pair.run_for(SECOND);
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
}

#[test]
fn lost_dreq_and_lost_drep_are_made_up_for() {
    let (mut pair, a, b) = Pair::established();
    let (mut dreqs, mut dreps) = (0, 0);
    pair.keep(move |_, message| {
        dreqs += usize::from(is_dreq(message));
        dreps += usize::from(is_drep(message));
        !(is_dreq(message) && dreqs <= 2 || is_drep(message) && dreps <= 2)
    });
    pair.a.disconnect(pair.now, a).expect("connected");
    assert!(pair.run_until(60 * SECOND, |pair| !pair.b_events.is_empty()));
    assert_eq!(pair.take(B), [CmEvent::Disconnected { conn: b }]);
    // B's time wait ends before A repeats its DREQ: then B sends the DREP without any state.
    pair.b.release(pair.now, b);
    pair.run_for(SECOND);
    assert_eq!(pair.b.connections(), 0);
    pair.run_for(60 * SECOND);
    assert_eq!(pair.take(A), [CmEvent::DisconnectDone { conn: a }]);
    assert_eq!((pair.count(A, is_dreq), pair.count(B, is_drep)), (5, 3));
}

#[test]
fn disconnect_from_a_dead_peer_is_done_in_bounded_time() {
    let (mut pair, a, _) = Pair::established();
    pair.keep(|_, _| false);
    pair.a.disconnect(pair.now, a).expect("connected");
    assert!(pair.run_until(60 * SECOND, |pair| !pair.a_events.is_empty()));
    assert_eq!(pair.take(A), [CmEvent::DisconnectDone { conn: a }]);
    assert_eq!(pair.count(A, is_dreq), 16);
}

#[test]
fn simultaneous_disconnects_are_done_on_both_sides() {
    let (mut pair, a, b) = Pair::established();
    pair.a.disconnect(pair.now, a).expect("connected");
    pair.b.disconnect(pair.now, b).expect("connected");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(A), [CmEvent::DisconnectDone { conn: a }]);
    assert_eq!(pair.take(B), [CmEvent::DisconnectDone { conn: b }]);
}

#[test]
fn second_disconnect_changes_nothing() {
    let (mut pair, a, _) = Pair::established();
    pair.a.disconnect(pair.now, a).expect("connected");
    assert_eq!(pair.a.disconnect(pair.now, a), Ok(()));
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(A), [CmEvent::DisconnectDone { conn: a }]);
    assert_eq!(pair.count(A, is_dreq), 1);
    assert_eq!(
        pair.a.disconnect(pair.now, a),
        Err(CmError::State(State::TimeWait))
    );
}

#[test]
fn abort_tells_the_peer_and_queues_no_event() {
    let (mut pair, a, b) = Pair::established();
    let mut lost = false;
    pair.keep(move |_, message| !is_dreq(message) || std::mem::replace(&mut lost, true));
    pair.a.abort(pair.now, a);
    pair.run_for(5 * SECOND);
    assert_eq!(pair.take(A), []);
    assert_eq!(pair.take(B), [CmEvent::Disconnected { conn: b }]);
}

#[test]
fn abort_drops_the_events_not_yet_polled() {
    let mut pair = Pair::new();
    let a = pair.connect(connect_params());
    pair.keep(|_, _| false);
    for _ in 0..20 {
        let next = pair.a.next_timeout().unwrap_or(pair.now);
        pair.a.handle_timeout(next);
    }
    pair.a.abort(pair.now, a);
    assert_eq!(pair.a.poll_event(), None);
}

#[test]
fn attempt_can_be_disconnected_too() {
    let (mut pair, a, b) = Pair::replied();
    pair.a.disconnect(pair.now, a).expect("an attempt");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(A), [CmEvent::DisconnectDone { conn: a }]);
    assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
}

#[test]
fn disconnect_that_overtakes_the_rtu_still_shows_both_events() {
    let (mut pair, a, b) = Pair::replied();
    pair.keep(|_, message| !is_rtu(message));
    pair.a.ready(pair.now, a).expect("a reply");
    pair.a.disconnect(pair.now, a).expect("connected");
    pair.run_for(MILLISECOND);
    assert_eq!(
        pair.take(B),
        [
            CmEvent::Established { conn: b },
            CmEvent::Disconnected { conn: b }
        ]
    );
    assert_eq!(pair.take(A), [CmEvent::DisconnectDone { conn: a }]);
}

#[test]
fn dreq_for_another_queue_pair_is_ignored() {
    let (mut pair, a, b) = Pair::established();
    pair.a.disconnect(pair.now, a).expect("connected");
    let (_, mad) = pair.a.poll_transmit().expect("a DREQ");
    let Ok((transaction_id, Message::Dreq(mut dreq))) = Message::parse(&mad) else {
        panic!("a DREQ")
    };
    dreq.remote_qpn = Qpn::new(dreq.remote_qpn.get() + 1);
    let now = pair.now;
    pair.b.handle_mad(
        now,
        &A.address(),
        &Message::Dreq(dreq).to_mad(transaction_id),
        0,
    );
    assert_eq!(
        (pair.b.state(b), pair.b.counters().foreign),
        (Some(State::Established), 1)
    );
}

/// Before the consumer accepts, the connection has no queue pair that a DREQ could name (Linux `cm_dreq_handler` drops
/// it).
#[test]
fn dreq_before_the_accept_is_ignored_whatever_queue_pair_it_names() {
    let (mut pair, a, b) = Pair::requested();
    let own = |cm: &Cm, id| cm.conns.get(id).expect("it lives").local_id;
    for remote_qpn in [Qpn::SMI, Qpn::GSI, connect_params().qpn] {
        let (mut counters, state) = (*pair.b.counters(), pair.b.state(b));
        let dreq = DreqRepr {
            local_comm_id: own(&pair.a, a),
            remote_comm_id: own(&pair.b, b),
            remote_qpn,
        };
        let now = pair.now;
        let mad = Message::Dreq(dreq).to_mad(7);
        pair.b.handle_mad(now, &A.address(), &mad, 0);
        counters.received += 1;
        counters.foreign += 1;
        assert_eq!((*pair.b.counters(), pair.b.state(b)), (counters, state));
        assert_eq!(pair.b.poll_transmit(), None);
    }
}

#[test]
fn messages_from_another_address_are_ignored_and_counted() {
    let (mut pair, a, b) = Pair::established();
    pair.a.disconnect(pair.now, a).expect("connected");
    let (_, mad) = pair.a.poll_transmit().expect("a DREQ");
    let mut elsewhere = A.address();
    elsewhere.path.gid[15] = 77;
    let now = pair.now;
    pair.b.handle_mad(now, &elsewhere, &mad, 0);
    assert_eq!(
        (pair.b.state(b), pair.b.counters().foreign),
        (Some(State::Established), 1)
    );
}

/// IBTA volume 1, 12.9.8.3.1: the acceptor refuses the request of a restarted peer as stale and ends its old
/// connection. The peer's repetition succeeds.
#[test]
fn restarted_peer_is_refused_as_stale_and_connected_when_it_asks_again_by_itself() {
    let (mut pair, _, old) = Pair::established();
    // A was stopped without a message, and restarts with the same queue pair number.
    pair.a = Cm::new(config(A));
    let new = pair.connect(ConnectParams {
        random: 5,
        ..connect_params()
    });
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::Disconnected { conn: old }]);
    assert_eq!(pair.count(B, is_rej), 1);
    assert_eq!(pair.take(A), [], "refused, and not given up");
    assert!(pair.run_until(SECOND, |pair| !pair.b_events.is_empty()));
    let [CmEvent::Request { conn, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    pair.b
        .accept(pair.now, conn, accept_params())
        .expect("a request");
    pair.run_for(MILLISECOND);
    assert!(matches!(pair.take(A)[..], [CmEvent::Reply { conn, .. }] if conn == new));
}

#[test]
fn requester_refused_as_stale_for_ever_gives_up_and_its_consumer_hears_why() {
    let (mut pair, _, _) = Pair::established();
    pair.a = Cm::new(config(A));
    // B refuses every repetition, as a peer that never drops its old connection does.
    let new = pair.connect(ConnectParams {
        random: 5,
        ..connect_params()
    });
    let stale = RejRepr::new(
        0,
        pair.a.conns.get(new).expect("a connection").local_id,
        Rejected::Req,
        RejectReason::StaleConnection,
    );
    let refused = Message::Rej(Box::new(stale)).to_mad(7);
    for _ in 0..MAX_STALE {
        pair.a.handle_mad(pair.now, &B.address(), &refused, 1);
        assert_eq!(pair.a.poll_event(), None);
    }
    pair.a.handle_mad(pair.now, &B.address(), &refused, 1);
    assert_eq!(
        pair.a.poll_event(),
        Some(CmEvent::Rejected {
            conn: new,
            by_consumer: false,
            reason: 10,
            private_data: Vec::new(),
        })
    );
}

#[test]
fn restarted_peer_is_connected_at_once_if_the_acceptor_is_ending_the_old_connection() {
    let (mut pair, _, old) = Pair::established();
    pair.a = Cm::new(config(A));
    // B has noticed the failure of A, and its DREQ has not reached A yet.
    pair.keep(|from, message| !(from == B && is_dreq(message)));
    pair.b.disconnect(pair.now, old).expect("established");
    pair.connect(ConnectParams {
        random: 5,
        ..connect_params()
    });
    pair.run_for(MILLISECOND);
    assert!(matches!(pair.take(B)[..], [CmEvent::Request { .. }]));
    assert_eq!(pair.count(B, is_rej), 0);
}

/// If the peer that receives our REQ has restarted, its REP contains a queue pair that is connected according to our
/// state. The old connection ends, and the new one is established.
#[test]
fn reply_from_a_queue_pair_still_connected_ends_the_old_connection_and_makes_the_new_one() {
    let (mut pair, old, _) = Pair::established();
    // B was stopped without a message. After the restart it gives the same queue pair to another connection.
    pair.b = Cm::new(config(B));
    pair.b.listen(SERVICE).expect("nobody else listens");
    let new = pair.connect(ConnectParams {
        qpn: Qpn::new(0xa2),
        random: 5,
        ..connect_params()
    });
    pair.run_for(LATENCY);
    let [CmEvent::Request { conn, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    pair.b
        .accept(pair.now, conn, accept_params())
        .expect("a request");
    pair.run_for(MILLISECOND);
    let told = pair.take(A);
    let [ended, CmEvent::Reply { conn: replied, .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(*ended, CmEvent::Disconnected { conn: old });
    assert_eq!(*replied, new);
    pair.a.ready(pair.now, new).expect("a reply");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::Established { conn }]);
    // Late messages of the old connection do not harm the new one.
    pair.run_for(60 * SECOND);
    assert_eq!(pair.a.state(new), Some(State::Established));
    assert_eq!(pair.b.state(conn), Some(State::Established));
    assert_eq!((pair.take(A), pair.take(B)), (vec![], vec![]));
}

#[test]
fn rej_ends_an_established_connection() {
    // Every RTU of the requester is lost, so the acceptor gives up waiting for it.
    let (mut pair, a, b) = Pair::replied();
    pair.keep(|_, message| !is_rtu(message));
    pair.a.ready(pair.now, a).expect("a reply");
    assert!(pair.run_until(60 * SECOND, |pair| !pair.a_events.is_empty()));
    assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
    assert_eq!(pair.take(A), [CmEvent::Disconnected { conn: a }]);
}
