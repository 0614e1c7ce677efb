//! Tests of connections that are established, over a wire with and without faults.

use super::*;

#[test]
fn request_reaches_the_listener_as_it_was_given() {
    let mut pair = Pair::new();
    let listen = pair.b.listen(SERVICE).expect("nobody else listens");
    pair.connect(connect_params());
    pair.run_for(LATENCY);
    let [event] = &pair.take(B)[..] else {
        panic!("one request")
    };
    let request = PeerRequest {
        listen,
        service_id: SERVICE,
        remote_gid: A.gid(),
        path: End::path_to(A),
        remote_qpn: Qpn::new(0x00_0a0a),
        remote_psn: Psn::masked(0xaa_aaaa),
        reads_in: 4,
        reads_out: 8,
        mtu: 3,
        ack_timeout: 14,
        retry_count: 7,
        rnr_retry: 6,
        private_data: b"may I?".to_vec(),
        remote_port: 0,
        srq: false,
    };
    let expected = CmEvent::Request {
        conn: event.conn(),
        request: Box::new(request),
    };
    assert_eq!(*event, expected);
}

#[test]
fn reply_reaches_the_requester_as_it_was_given() {
    let (mut pair, a, b) = Pair::requested();
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    pair.run_for(LATENCY);
    let reply = PeerReply {
        remote_qpn: Qpn::new(0x00_0b0b),
        remote_psn: Psn::masked(0xbb_bbbb),
        reads_in: 2,
        reads_out: 3,
        rnr_retry: 5,
        // 16 is made of twice the packet lifetime (2^15) and the peer's ACK delay (2^15).
        ack_timeout: 16,
        private_data: b"you may".to_vec(),
    };
    assert_eq!(pair.take(A), [CmEvent::Reply { conn: a, reply }]);
}

#[test]
fn handshake_on_a_good_wire_is_three_datagrams_of_one_transaction() {
    let (mut pair, a, b) = Pair::established();
    let kinds: Vec<_> = pair
        .sent
        .iter()
        .map(|(end, message)| (*end, message.attribute().code()))
        .collect();
    assert_eq!(kinds, [(A, 0x10), (B, 0x13), (A, 0x14)]);
    assert_eq!(pair.a.state(a), Some(State::Established));
    assert_eq!(pair.b.state(b), Some(State::Established));
    pair.run_for(1_000 * SECOND);
    assert_eq!(pair.sent.len(), 3, "an established connection is silent");
    assert_eq!(pair.next_time(), None);
}

#[test]
fn rdma_cm_service_carries_the_port_and_pads_the_private_data() {
    let mut pair = Pair::new();
    let service_id = rdma_cm::service_id(4420);
    pair.b.listen(service_id).expect("nobody else listens");
    let a = pair.connect(ConnectParams {
        service_id,
        ..connect_params()
    });
    let port = pair.a.local_port(a).expect("a port of the RDMA CM");
    assert!(port >= 0xc000);
    pair.run_for(LATENCY);
    let [CmEvent::Request { conn, request }] = &pair.take(B)[..] else {
        panic!("one request")
    };
    assert_eq!(request.remote_port, port);
    assert_eq!(request.private_data.len(), 56);
    assert!(request.private_data.starts_with(b"may I?\0"));
    pair.b
        .accept(pair.now, *conn, accept_params())
        .expect("a request");
    pair.run_for(LATENCY);
    let [CmEvent::Reply { reply, .. }] = &pair.take(A)[..] else {
        panic!("one reply")
    };
    assert_eq!(reply.private_data.len(), 196);
    assert!(reply.private_data.starts_with(b"you may\0"));
}

#[test]
fn req_on_a_routed_path_has_permissive_lids_and_on_a_local_one_none() {
    for (hop_limit, lid, subnet_local) in [(64, 0xffff, false), (1, 0, true)] {
        let mut pair = Pair::new();
        let path = Path {
            hop_limit,
            ..End::path_to(B)
        };
        pair.connect(ConnectParams {
            path,
            ..connect_params()
        });
        let (_, mad) = pair.a.poll_transmit().expect("a REQ");
        let Ok((_, Message::Req(req))) = Message::parse(&mad) else {
            panic!("a REQ")
        };
        assert_eq!((req.primary.local_lid, req.primary.remote_lid), (lid, lid));
        assert_eq!(req.primary.subnet_local, subnet_local);
        assert_eq!(
            (req.primary.local_gid, req.primary.remote_gid),
            (A.gid(), B.gid())
        );
        assert_eq!(
            (req.partition_key, req.transport, req.primary.hop_limit),
            (0xffff, 0, hop_limit)
        );
        assert_eq!(
            (req.primary.flow_label, req.primary.traffic_class),
            (0x1_2345, 0x20)
        );
    }
}

#[test]
fn lost_req_is_sent_again_and_the_consumer_sees_one_request() {
    let mut pair = Pair::listening();
    pair.connect(connect_params());
    let mut left = 3;
    pair.keep(move |_, message| {
        left -= usize::from(is_req(message) && left > 0);
        left == 0
    });
    assert!(pair.run_until(60 * SECOND, |pair| !pair.b_events.is_empty()));
    assert_eq!(pair.count(A, is_req), 3);
    assert_eq!(pair.take(B).len(), 1);
    assert_eq!(pair.a.counters().repeated, 2);
}

/// A datagram sent while the port is down is lost. When the port comes up, it is repeated at once, without waiting for
/// the response timeout of a second.
#[test]
fn unanswered_messages_are_sent_again_when_the_port_comes_up_and_count_as_repetitions() {
    let mut pair = Pair::listening();
    pair.connect(connect_params());
    pair.keep(|_, _| false);
    pair.run_for(50 * MILLISECOND);
    pair.keep(|_, _| true);
    pair.a.port_came_up(pair.now);
    pair.run_for(LATENCY);
    assert!(matches!(pair.take(B)[..], [CmEvent::Request { .. }]));
    assert_eq!((pair.count(A, is_req), pair.a.counters().repeated), (2, 1));
    // A port that goes up and down does not prolong the attempt.
    let mut pair = Pair::new();
    pair.keep(|_, _| false);
    let flapping = pair.connect(connect_params());
    for _ in 0..100 {
        pair.a.port_came_up(pair.now);
        pair.run_for(MILLISECOND);
    }
    assert_eq!(pair.count(A, is_req), 16);
    pair.run_for(2 * SECOND);
    assert_eq!(pair.take(A), [CmEvent::Unreachable { conn: flapping }]);
}

/// If no host answers for the address, the attempt ends as soon as that is known, not after the last repetition.
#[test]
fn attempts_to_an_unreachable_address_end_at_once_and_nothing_else_does() {
    let mut pair = Pair::listening();
    pair.keep(|_, _| false);
    let a = pair.connect(connect_params());
    pair.run_for(MILLISECOND);
    pair.a.unreachable(pair.now, A.gid());
    pair.run_for(LATENCY);
    assert_eq!(pair.take(A), []);
    pair.a.unreachable(pair.now, B.gid());
    pair.run_for(LATENCY);
    assert_eq!(pair.take(A), [CmEvent::Unreachable { conn: a }]);
    // `unreachable` does not end an established connection; only a failure of its queue pair would.
    let (mut pair, a, _) = Pair::established();
    pair.a.unreachable(pair.now, B.gid());
    pair.run_for(LATENCY);
    assert_eq!(pair.take(A), []);
    assert_eq!(pair.a.state(a), Some(State::Established));
}

#[test]
fn repeated_req_brings_the_rep_again_when_the_rep_was_lost() {
    let (mut pair, _, b) = Pair::requested();
    let mut lost = false;
    pair.keep(move |_, message| !is_rep(message) || std::mem::replace(&mut lost, true));
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    assert!(pair.run_until(60 * SECOND, |pair| !pair.a_events.is_empty()));
    assert!(matches!(pair.take(A)[..], [CmEvent::Reply { .. }]));
    assert_eq!(pair.take(B), [], "the request is not reported twice");
}

#[test]
fn repeated_rep_brings_the_rtu_again_when_the_rtu_was_lost() {
    let (mut pair, a, b) = Pair::replied();
    pair.a.ready(pair.now, a).expect("a reply");
    let mut left = 4;
    pair.keep(move |_, message| {
        left -= usize::from(is_rtu(message) && left > 0);
        left == 0 || !is_rtu(message)
    });
    assert!(pair.run_until(60 * SECOND, |pair| !pair.b_events.is_empty()));
    assert_eq!(pair.take(B), [CmEvent::Established { conn: b }]);
    assert_eq!(pair.count(A, is_rtu), 4);
    assert_eq!(pair.take(A), [], "the reply is not reported twice");
}

#[test]
fn data_before_the_rtu_establishes_once() {
    let (mut pair, a, b) = Pair::replied();
    pair.a.ready(pair.now, a).expect("a reply");
    pair.b
        .communication_established(pair.now, b)
        .expect("accepted");
    pair.run_for(SECOND);
    assert_eq!(pair.take(B), [CmEvent::Established { conn: b }]);
    assert_eq!(pair.b.communication_established(pair.now, b), Ok(()));
    assert_eq!(pair.take(B), []);
}

#[test]
fn duplicates_on_the_wire_change_nothing() {
    let (mut once, ..) = Pair::established();
    let mut pair = Pair::listening();
    pair.faults.repeat = 100;
    let a = pair.connect(connect_params());
    pair.run_for(MILLISECOND);
    let [CmEvent::Request { conn: b, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    pair.run_for(MILLISECOND);
    assert!(matches!(pair.take(A)[..], [CmEvent::Reply { .. }]));
    pair.a.ready(pair.now, a).expect("a reply");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::Established { conn: b }]);
    pair.a.disconnect(pair.now, a).expect("connected");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::Disconnected { conn: b }]);
    assert_eq!(pair.take(A), [CmEvent::DisconnectDone { conn: a }]);
    once.run_to_the_end();
    assert_eq!(once.b.counters().duplicates, 0);
    assert_eq!(pair.b.counters().duplicates, 1);
}

#[test]
fn consumer_that_takes_its_time_keeps_the_requester_waiting_with_mras() {
    let (mut pair, a, b) = Pair::requested();
    // Without an MRA the requester would have given up long ago.
    pair.run_for(100 * SECOND);
    assert!(pair.count(B, is_mra) >= 2);
    assert_eq!(pair.take(A), []);
    assert_eq!(pair.take(B), []);
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("still a request");
    pair.run_for(SECOND);
    assert!(matches!(pair.take(A)[..], [CmEvent::Reply { conn, .. }] if conn == a));
}

#[test]
fn mra_goes_out_before_the_requester_asks_again() {
    let (mut pair, ..) = Pair::requested();
    pair.run_for(SECOND);
    assert_eq!((pair.count(A, is_req), pair.count(B, is_mra)), (1, 1));
}

#[test]
fn mra_of_a_peer_that_then_stays_silent_does_not_bind_us_for_ever() {
    let (mut pair, a, _) = Pair::requested();
    pair.run_for(SECOND);
    assert_eq!(pair.a.state(a), Some(State::ReqAcknowledged));
    pair.keep(|_, _| false);
    assert!(pair.run_until(600 * SECOND, |pair| !pair.a_events.is_empty()));
    assert_eq!(pair.take(A), [CmEvent::Unreachable { conn: a }]);
    assert_eq!(pair.count(A, is_req), 16);
}

#[test]
fn mra_for_the_rep_keeps_the_acceptor_waiting() {
    // We never send an MRA for a REP. A peer does so if its consumer is slow to move its queue pair.
    let (mut pair, _, b) = Pair::replied();
    let rep = pair
        .sent
        .iter()
        .map(|(_, message)| message)
        .find(|message| is_rep(message));
    let Some(Message::Rep(rep)) = rep else {
        panic!("a REP was sent")
    };
    let mra = wire::MraRepr {
        local_comm_id: rep.remote_comm_id,
        remote_comm_id: rep.local_comm_id,
        acknowledged: wire::Rejected::Rep,
        service_timeout: 22,
    };
    let (now, mad) = (pair.now, Message::Mra(mra).to_mad(0));
    pair.b.handle_mad(now, &A.address(), &mad, 0);
    assert_eq!(pair.b.state(b), Some(State::RepAcknowledged));
    pair.run_for(16 * SECOND);
    assert_eq!(pair.count(B, is_rep), 1, "17 s have not passed");
    pair.run_for(4 * SECOND);
    assert!(pair.count(B, is_rep) > 1);
}

#[test]
fn connections_in_both_directions_through_one_manager_do_not_mix() {
    let mut pair = Pair::listening();
    pair.a.listen(SERVICE).expect("nobody else listens");
    let from_a = pair.connect(connect_params());
    let params = ConnectParams {
        source: B.gid(),
        path: End::path_to(A),
        qpn: Qpn::new(0xb1),
        ..connect_params()
    };
    // Both sides use the same random bits, and so the same communication ID.
    let from_b = pair.b.connect(pair.now, params).expect("sound parameters");
    pair.run_for(LATENCY);
    let [CmEvent::Request { conn: at_b, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    let [CmEvent::Request { conn: at_a, .. }] = pair.take(A)[..] else {
        panic!("one request")
    };
    pair.b
        .accept(pair.now, at_b, accept_params())
        .expect("a request");
    pair.a
        .accept(
            pair.now,
            at_a,
            AcceptParams {
                qpn: Qpn::new(0xa2),
                ..accept_params()
            },
        )
        .expect("a request");
    pair.run_for(LATENCY);
    assert!(matches!(pair.take(A)[..], [CmEvent::Reply { conn, .. }] if conn == from_a));
    assert!(matches!(pair.take(B)[..], [CmEvent::Reply { conn, .. }] if conn == from_b));
    pair.a.ready(pair.now, from_a).expect("a reply");
    pair.b.ready(pair.now, from_b).expect("a reply");
    pair.run_for(LATENCY);
    assert_eq!(pair.take(A), [CmEvent::Established { conn: at_a }]);
    assert_eq!(pair.take(B), [CmEvent::Established { conn: at_b }]);
}
