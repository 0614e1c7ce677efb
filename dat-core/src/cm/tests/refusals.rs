//! Tests of connections that are not established.

use super::*;

fn rejected(conn: ConnId, reason: u16) -> CmEvent {
    CmEvent::Rejected {
        conn,
        by_consumer: reason == 28,
        reason,
        private_data: Vec::new(),
    }
}

#[test]
fn private_data_of_a_rejection_reaches_the_requester_also_by_a_repetition() {
    let (mut pair, a, b) = Pair::requested();
    let mut lost = false;
    pair.keep(move |_, message| !is_rej(message) || std::mem::replace(&mut lost, true));
    let service = pair.a.conns.get(a).expect("asked").service_id;
    let limit = reject_limit(service);
    let reason = RejectReason::Consumer;
    let given = limit + 1;
    assert_eq!(
        pair.b.reject_with(pair.now, b, reason, &vec![7; given]),
        Err(PrivateDataError::TooLong { given, limit }.into())
    );
    pair.b
        .reject_with(pair.now, b, reason, b"full")
        .expect("a request");
    pair.run_for(5 * SECOND);
    let events = pair.take(A);
    let [
        CmEvent::Rejected {
            by_consumer: true,
            private_data,
            ..
        },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(&private_data[..4], b"full");
    assert_eq!(private_data.iter().rposition(|&byte| byte != 0), Some(3));
}

#[test]
fn request_without_a_listener_is_rejected_with_invalid_service_id() {
    let mut pair = Pair::new();
    let a = pair.connect(connect_params());
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(A), [rejected(a, 8)]);
    assert_eq!(pair.b.connections(), 0, "nothing is kept of it");
    assert_eq!(pair.b.counters().refused, 1);
}

#[test]
fn reject_reasons_reach_the_requester() {
    for (reason, code) in [
        (RejectReason::Consumer, 28),
        (RejectReason::NoResources, 3),
        (RejectReason::InvalidServiceId, 8),
    ] {
        let (mut pair, a, b) = Pair::requested();
        pair.b.reject(pair.now, b, reason).expect("a request");
        pair.run_for(MILLISECOND);
        assert_eq!(pair.take(A), [rejected(a, code)]);
        assert_eq!(pair.take(B), []);
        assert_eq!(
            pair.b.accept(pair.now, b, accept_params()),
            Err(CmError::State(State::Refused))
        );
    }
}

#[test]
fn lost_rej_is_repeated_when_the_request_comes_again() {
    let (mut pair, a, b) = Pair::requested();
    let mut lost = false;
    pair.keep(move |_, message| !is_rej(message) || std::mem::replace(&mut lost, true));
    pair.b
        .reject(pair.now, b, RejectReason::Consumer)
        .expect("a request");
    pair.b.release(pair.now, b);
    pair.run_for(5 * SECOND);
    assert_eq!(pair.take(A), [rejected(a, 28)]);
    assert_eq!(pair.take(B), [], "the request is not reported again");
    pair.a.release(pair.now, a);
    pair.run_to_the_end();
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
}

#[test]
fn silent_peer_is_unreachable_after_sixteen_requests() {
    let mut pair = Pair::listening();
    pair.keep(|_, _| false);
    let start = pair.now;
    let a = pair.connect(connect_params());
    assert!(pair.run_until(60 * SECOND, |pair| !pair.a_events.is_empty()));
    assert_eq!(pair.take(A), [CmEvent::Unreachable { conn: a }]);
    assert_eq!(pair.count(A, is_req), 16);
    // Sixteen waits of 4.096 us * (2^18 + 2 * 2^14) each.
    assert_eq!(pair.now - start, 16 * 4_096 * (262_144 + 32_768));
}

#[test]
fn consumer_timeout_comes_first_when_it_is_shorter() {
    let mut pair = Pair::listening();
    pair.keep(|_, _| false);
    let start = pair.now;
    let a = pair.connect(ConnectParams {
        timeout: Some(3 * SECOND),
        ..connect_params()
    });
    assert!(pair.run_until(60 * SECOND, |pair| !pair.a_events.is_empty()));
    assert_eq!(pair.now - start, 3 * SECOND);
    assert_eq!(pair.take(A), [CmEvent::TimedOut { conn: a }]);
    pair.run_to_the_end();
    assert_eq!(pair.take(A), []);
}

#[test]
fn consumer_timeout_bounds_a_reply_that_is_never_used() {
    let mut pair = Pair::listening();
    let a = pair.connect(ConnectParams {
        timeout: Some(3 * SECOND),
        ..connect_params()
    });
    pair.run_for(LATENCY);
    let [CmEvent::Request { conn: b, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    pair.run_for(4 * SECOND);
    assert!(
        matches!(pair.take(A)[..], [CmEvent::Reply { .. }, CmEvent::TimedOut { conn }] if conn == a)
    );
    assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
    assert_eq!(
        pair.a.ready(pair.now, a),
        Err(CmError::State(State::Refused))
    );
}

#[test]
fn established_connection_outlives_the_connect_timeout() {
    let mut pair = Pair::listening();
    let a = pair.connect(ConnectParams {
        timeout: Some(SECOND),
        ..connect_params()
    });
    pair.run_for(LATENCY);
    let [CmEvent::Request { conn: b, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    pair.run_for(LATENCY);
    pair.a.ready(pair.now, a).expect("a reply");
    pair.run_for(10 * SECOND);
    assert_eq!(pair.a.state(a), Some(State::Established));
}

#[test]
fn request_given_up_by_the_peer_can_still_be_decided_on() {
    for accept in [true, false] {
        let (mut pair, a, b) = Pair::requested();
        pair.a.abort(pair.now, a);
        pair.run_for(MILLISECOND);
        assert_eq!(pair.take(B), [], "the consumer holds the request");
        assert_eq!(pair.b.state(b), Some(State::Withdrawn));
        if accept {
            pair.b
                .accept(pair.now, b, accept_params())
                .expect("a request");
            pair.run_for(MILLISECOND);
            assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
        } else {
            pair.b
                .reject(pair.now, b, RejectReason::Consumer)
                .expect("a request");
        }
        assert_eq!(pair.take(A), []);
        pair.a.release(pair.now, a);
        pair.b.release(pair.now, b);
        pair.run_to_the_end();
        assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
    }
}

#[test]
fn late_rep_is_answered_with_rej_timeout() {
    let mut pair = Pair::listening();
    let a = pair.connect(ConnectParams {
        timeout: Some(SECOND),
        ..connect_params()
    });
    pair.run_for(LATENCY);
    let [CmEvent::Request { conn: b, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    // The REJ is lost, so B does not know that A gave up.
    pair.keep(|end, _| end == B);
    pair.run_for(2 * SECOND);
    assert_eq!(pair.take(A), [CmEvent::TimedOut { conn: a }]);
    pair.lose_nothing();
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request, as far as B knows");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
    let Some((_, Message::Rej(rej))) = pair.sent.iter().rev().find(|(end, _)| *end == A) else {
        panic!("a REJ")
    };
    assert_eq!(
        (rej.reason, rej.rejected),
        (RejectReason::Timeout, wire::Rejected::Rep)
    );
    assert_eq!(rej.ca_guid(), Some(config(A).local_ca_guid));
}

#[test]
fn rep_for_a_forgotten_attempt_is_answered_with_invalid_communication_id() {
    let (mut pair, a, b) = Pair::requested();
    pair.keep(|end, _| end == B);
    pair.a.release(pair.now, a);
    pair.run_for(600 * SECOND);
    assert_eq!(pair.a.connections(), 0);
    pair.lose_nothing();
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request, as far as B knows");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
}

#[test]
fn acceptor_gives_up_on_a_requester_that_vanished() {
    let (mut pair, _, b) = Pair::requested();
    pair.keep(|end, _| end == A);
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    pair.keep(|_, _| false);
    assert!(pair.run_until(60 * SECOND, |pair| !pair.b_events.is_empty()));
    assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
    assert_eq!(pair.count(B, is_rep), 16);
}

#[test]
fn requester_may_refuse_the_reply() {
    let (mut pair, a, b) = Pair::replied();
    pair.a
        .reject(pair.now, a, RejectReason::Consumer)
        .expect("a reply");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::AcceptFailed { conn: b }]);
    assert_eq!(pair.take(A), []);
}

#[test]
fn acceptor_may_abort_an_accepted_connection() {
    let (mut pair, a, b) = Pair::replied();
    pair.b.abort(pair.now, b);
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(A), [rejected(a, 28)]);
    assert_eq!(pair.take(B), []);
}

#[test]
fn released_request_is_rejected() {
    let (mut pair, a, b) = Pair::requested();
    pair.b.release(pair.now, b);
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(A), [rejected(a, 28)]);
    assert_eq!(
        pair.b.accept(pair.now, b, accept_params()),
        Err(CmError::Unknown)
    );
}

#[test]
fn listener_is_alone_at_its_service_until_it_leaves() {
    let mut cm = Cm::new(config(A));
    let listen = cm.listen(SERVICE).expect("nobody else listens");
    assert_eq!(
        cm.listen(SERVICE),
        Err(InUse {
            service_id: SERVICE
        })
    );
    cm.unlisten(listen);
    cm.unlisten(listen);
    let again = cm.listen(SERVICE).expect("nobody listens any more");
    assert_ne!(listen, again);
}

#[test]
fn request_outlives_its_listener_but_no_new_one_comes() {
    let mut pair = Pair::new();
    let listen = pair.b.listen(SERVICE).expect("nobody else listens");
    let first = pair.connect(connect_params());
    pair.run_for(LATENCY);
    let [CmEvent::Request { conn: b, .. }] = pair.take(B)[..] else {
        panic!("one request")
    };
    pair.b.unlisten(listen);
    let second = pair.connect(ConnectParams {
        qpn: Qpn::new(0xa2),
        random: 5,
        ..connect_params()
    });
    pair.run_for(LATENCY);
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    pair.run_for(MILLISECOND);
    let events = pair.take(A);
    assert!(
        matches!(events[..], [CmEvent::Rejected { conn, reason: 8, .. }, CmEvent::Reply { conn: replied, .. }]
        if conn == second && replied == first)
    );
}

#[test]
fn request_over_the_limit_is_rejected_for_lack_of_resources() {
    let mut pair = Pair::listening();
    pair.b.config.max_connections = 1;
    pair.connect(connect_params());
    let second = pair.connect(ConnectParams {
        qpn: Qpn::new(0xa2),
        random: 5,
        ..connect_params()
    });
    pair.run_for(LATENCY * 2);
    assert_eq!(pair.take(A), [rejected(second, 3)]);
    assert_eq!(pair.take(B).len(), 1);
    let mut full = Cm::new(Config {
        max_connections: 0,
        ..config(A)
    });
    assert_eq!(
        full.connect(0, connect_params()),
        Err(ConnectError::TooMany(0))
    );
}

#[test]
fn request_for_another_transport_or_mtu_is_rejected() {
    for (change, reason) in [
        ((|req| req.transport = 1) as fn(&mut ReqRepr), 9),
        (|req| req.transport = 3, 9),
        (|req| req.mtu = 0, 26),
        (|req| req.mtu = 6, 26),
    ] {
        let mut pair = Pair::listening();
        let a = pair.connect(connect_params());
        let (_, mad) = pair.a.poll_transmit().expect("a REQ");
        let Ok((transaction_id, Message::Req(mut req))) = Message::parse(&mad) else {
            panic!("a REQ")
        };
        change(&mut req);
        let (now, mad) = (pair.now, Message::Req(req).to_mad(transaction_id));
        pair.b.handle_mad(now, &A.address(), &mad, 1);
        pair.run_for(MILLISECOND);
        assert_eq!(pair.take(A), [rejected(a, reason)]);
        assert_eq!(pair.take(B), []);
    }
}

#[test]
fn request_to_the_rdma_cm_without_its_header_is_rejected() {
    let mut pair = Pair::new();
    let service_id = rdma_cm::service_id(4420);
    pair.b.listen(service_id).expect("nobody else listens");
    let a = pair.connect(ConnectParams {
        service_id,
        ..connect_params()
    });
    let (_, mut mad) = pair.a.poll_transmit().expect("a REQ");
    mad[24 + 140] = 1;
    let now = pair.now;
    pair.b.handle_mad(now, &A.address(), &mad, 1);
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(A), [rejected(a, 5)]);
}

#[test]
fn parameters_that_do_not_fit_are_refused_and_nothing_changes() {
    let mut cm = Cm::new(config(A));
    let long = [0; 89];
    let too_long = PrivateDataError::TooLong {
        given: 89,
        limit: 88,
    };
    let wide = |name, value, limit| ConnectError::OutOfRange { name, value, limit };
    for (params, error) in [
        (
            ConnectParams {
                private_data: &long,
                ..connect_params()
            },
            too_long.into(),
        ),
        (
            ConnectParams {
                retry_count: 8,
                ..connect_params()
            },
            wide("retry_count", 8, 7),
        ),
        (
            ConnectParams {
                rnr_retry: 8,
                ..connect_params()
            },
            wide("rnr_retry", 8, 7),
        ),
        (
            ConnectParams {
                ack_timeout: 32,
                ..connect_params()
            },
            wide("ack_timeout", 32, 31),
        ),
        (
            ConnectParams {
                mtu: 6,
                ..connect_params()
            },
            ConnectError::Mtu(6),
        ),
        (
            ConnectParams {
                mtu: 0,
                ..connect_params()
            },
            ConnectError::Mtu(0),
        ),
        (
            ConnectParams {
                service_id: rdma_cm::service_id(1),
                source: [0xfe; 16],
                ..connect_params()
            },
            PrivateDataError::Header(rdma_cm::HeaderError::MixedFamilies).into(),
        ),
    ] {
        assert_eq!(cm.connect(0, params), Err(error));
    }
    assert_eq!(
        (cm.connections(), cm.next_timeout(), cm.poll_transmit()),
        (0, None, None)
    );
}

#[test]
fn acceptance_that_does_not_fit_is_refused_and_can_be_repeated() {
    let (mut pair, _, b) = Pair::requested();
    let long = [0; 193];
    let now = pair.now;
    let error = pair.b.accept(
        now,
        b,
        AcceptParams {
            private_data: &long,
            ..accept_params()
        },
    );
    assert_eq!(
        error,
        Err(PrivateDataError::TooLong {
            given: 193,
            limit: 192
        }
        .into())
    );
    let error = pair.b.accept(
        now,
        b,
        AcceptParams {
            rnr_retry: 8,
            ..accept_params()
        },
    );
    assert_eq!(
        error,
        Err(CmError::OutOfRange {
            name: "rnr_retry",
            value: 8,
            limit: 7
        })
    );
    assert_eq!(pair.b.accept(now, b, accept_params()), Ok(()));
    assert_eq!(
        pair.b.accept(now, b, accept_params()),
        Err(CmError::State(State::RepSent))
    );
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let (mut pair, a, b) = Pair::requested();
    let now = pair.now;
    assert_eq!(pair.a.ready(now, a), Err(CmError::State(State::ReqSent)));
    assert_eq!(
        pair.a.accept(now, a, accept_params()),
        Err(CmError::State(State::ReqSent))
    );
    assert_eq!(
        pair.a.reject(now, a, RejectReason::Consumer),
        Err(CmError::State(State::ReqSent))
    );
    assert_eq!(
        pair.b.ready(now, b),
        Err(CmError::State(State::ReqReceived))
    );
    assert_eq!(
        pair.b.disconnect(now, b),
        Err(CmError::State(State::ReqReceived))
    );
    assert_eq!(
        pair.b.communication_established(now, b),
        Err(CmError::State(State::ReqReceived))
    );
}

#[test]
fn new_request_of_a_queue_pair_replaces_one_not_yet_established() {
    let (mut pair, _, first) = Pair::requested();
    pair.b
        .accept(pair.now, first, accept_params())
        .expect("a request");
    // A restarts and no longer knows the first request.
    pair.a = Cm::new(config(A));
    pair.flights.clear();
    pair.drain();
    pair.flights.clear();
    pair.connect(ConnectParams {
        random: 5,
        ..connect_params()
    });
    pair.run_for(MILLISECOND);
    let events = pair.take(B);
    assert!(
        matches!(events[..], [CmEvent::AcceptFailed { conn }, CmEvent::Request { .. }] if conn == first)
    );
}
