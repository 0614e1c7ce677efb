//! Tests with an off-path attacker: its datagrams do not change connections between others.
//!
//! The attacker knows everything that is sent in clear or that can be enumerated: GUIDs, queue pair numbers, service
//! IDs, even communication IDs. It does not forge the source address of its datagrams. An attacker that can do that
//! is on the path, and RoCE has no protection against it.

use super::wire::{DreqRepr, MraRepr, RejRepr, Rejected, RepRepr, RtuRepr};
use super::*;

pub(super) const STRANGER: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 66];

fn from(gid: [u8; 16]) -> MadAddress {
    MadAddress {
        path: Path {
            gid,
            ..End::path_to(A)
        },
        qpn: Qpn::GSI,
    }
}

/// Makes the REQ of an attacker at `gid`, modified by `change`.
pub(super) fn request_from(gid: [u8; 16], random: u64, change: impl FnOnce(&mut ReqRepr)) -> Mad {
    let mut cm = Cm::new(Config {
        local_ca_guid: 0xcccc_0000_0000_0066,
        ..Config::default()
    });
    cm.connect(
        0,
        ConnectParams {
            source: gid,
            qpn: Qpn::new(0x66),
            random,
            ..connect_params()
        },
    )
    .expect("sound parameters");
    let (_, mad) = cm.poll_transmit().expect("a REQ");
    let Ok((tid, Message::Req(mut req))) = Message::parse(&mad) else {
        panic!("a REQ")
    };
    change(&mut req);
    Message::Req(req).to_mad(tid)
}

/// Passes a datagram of the attacker to B. Returns B's answers.
pub(super) fn b_takes(pair: &mut Pair, gid: [u8; 16], mad: &Mad) -> Vec<Message> {
    let (now, random) = (pair.now, pair.random.next());
    takes(&mut pair.b, now, gid, mad, random)
}

pub(super) fn takes(
    cm: &mut Cm,
    now: Nanos,
    gid: [u8; 16],
    mad: &Mad,
    random: u64,
) -> Vec<Message> {
    cm.handle_mad(now, &from(gid), mad, random);
    let answers = core::iter::from_fn(|| cm.poll_transmit()).map(|(to, mad)| {
        assert_eq!(to.path.gid, gid, "only the sender is answered");
        Message::parse(&mad).expect("we send what we can read").1
    });
    answers.collect()
}

pub(super) fn reject_of(answers: &[Message]) -> Option<RejectReason> {
    match answers {
        [Message::Rej(rej)] => Some(rej.reason),
        _ => None,
    }
}

fn both_stay_connected(pair: &mut Pair, a: ConnId, b: ConnId) {
    pair.run_for(60 * SECOND);
    assert_eq!((pair.take(A), pair.take(B)), (vec![], vec![]));
    assert_eq!(pair.a.state(a), Some(State::Established));
    assert_eq!(pair.b.state(b), Some(State::Established));
}

/// A REQ with the GUID and QPN of another node ends no connection of that node. The stale connection rule (IBTA volume
/// 1, 12.9.8.3.1) is for a peer that has lost its state; GUID and QPN are only claims of the sender.
#[test]
fn a_stranger_that_names_anothers_queue_pair_ends_no_connection() {
    for service_id in [SERVICE, SERVICE + 1] {
        let (mut pair, a, b) = Pair::established();
        let mad = request_from(STRANGER, 77, |req| {
            req.local_ca_guid = config(A).local_ca_guid;
            req.local_qpn = connect_params().qpn;
            req.service_id = service_id;
        });
        let answers = b_takes(&mut pair, STRANGER, &mad);
        if service_id == SERVICE {
            assert!(answers.is_empty(), "a request like any other");
            let [CmEvent::Request { conn, .. }] = drained(&mut pair.b)[..] else {
                panic!("one request")
            };
            pair.b
                .reject(pair.now, conn, RejectReason::Consumer)
                .expect("a request");
            while pair.b.poll_transmit().is_some() {}
        } else {
            assert_eq!(reject_of(&answers), Some(RejectReason::InvalidServiceId));
        }
        both_stay_connected(&mut pair, a, b);
    }
}

/// Makes a REP to a request. The REP names B's adapter and queue pair.
pub(super) fn reply_to(request: &Mad, target_ack_delay: u8) -> Mad {
    let Ok((tid, Message::Req(req))) = Message::parse(request) else {
        panic!("a REQ")
    };
    Message::Rep(Box::new(RepRepr {
        local_comm_id: 0x66,
        remote_comm_id: req.local_comm_id,
        local_q_key: 0,
        local_qpn: accept_params().qpn,
        local_eecn: 0,
        starting_psn: Psn::masked(1),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry: 1,
        srq: false,
        local_ca_guid: config(B).local_ca_guid,
        private_data: [0; 196],
    }))
    .to_mad(tid)
}

pub(super) fn drained(cm: &mut Cm) -> Vec<CmEvent> {
    core::iter::from_fn(|| cm.poll_event()).collect()
}

#[test]
fn a_server_whose_reply_names_anothers_queue_pair_ends_no_connection() {
    let (mut pair, a, b) = Pair::established();
    let to_stranger = ConnectParams {
        path: from(STRANGER).path,
        qpn: Qpn::new(0xa2),
        random: 5,
        ..connect_params()
    };
    let second = pair.a.connect(pair.now, to_stranger).expect("parameters");
    let (_, mad) = pair.a.poll_transmit().expect("a REQ");
    let rep = reply_to(&mad, 0);
    let now = pair.now;
    assert!(takes(&mut pair.a, now, STRANGER, &rep, 1).is_empty());
    assert!(
        matches!(drained(&mut pair.a)[..], [CmEvent::Reply { conn, .. }] if conn == second),
        "its own connection, to its own address"
    );
    pair.a.release(now, second);
    while pair.a.poll_transmit().is_some() {}
    both_stay_connected(&mut pair, a, b);
}

#[test]
fn a_stranger_cannot_take_the_name_that_a_peers_request_will_have() {
    let mut pair = Pair::listening();
    let a = pair.connect(connect_params());
    let comm_id = pair.a.conns[a].local_id;
    let squat = request_from(STRANGER, 77, |req| {
        req.local_ca_guid = config(A).local_ca_guid;
        req.local_qpn = connect_params().qpn;
        req.local_comm_id = comm_id;
    });
    b_takes(&mut pair, STRANGER, &squat);
    assert_eq!(drained(&mut pair.b).len(), 1);
    pair.run_for(MILLISECOND);
    let [CmEvent::Request { conn, request }] = &pair.take(B)[..] else {
        panic!("the peer's request")
    };
    assert_eq!(request.remote_gid, A.gid());
    pair.b
        .accept(pair.now, *conn, accept_params())
        .expect("a request");
    pair.run_for(MILLISECOND);
    assert!(matches!(pair.take(A)[..], [CmEvent::Reply { conn, .. }] if conn == a));
}

#[test]
fn a_stranger_that_knows_every_name_of_a_connection_cannot_end_it() {
    let (mut pair, a, b) = Pair::established();
    let (ours, theirs) = (pair.b.conns[b].local_id, pair.a.conns[a].local_id);
    let dreq = Message::Dreq(DreqRepr {
        local_comm_id: theirs,
        remote_comm_id: ours,
        remote_qpn: accept_params().qpn,
    });
    let rej = Message::Rej(Box::new(RejRepr::new(
        theirs,
        ours,
        Rejected::Other,
        RejectReason::Consumer,
    )));
    let gone = Message::Rej(Box::new(
        RejRepr::new(theirs, 0, Rejected::Other, RejectReason::Timeout)
            .with_ca_guid(config(A).local_ca_guid),
    ));
    for message in [dreq, rej, gone] {
        b_takes(&mut pair, STRANGER, &message.to_mad(1));
    }
    both_stay_connected(&mut pair, a, b);
}

/// An attacker cannot end, answer or prolong a pending connection: REP, RTU and MRA are accepted only from the peer's
/// own address.
#[test]
fn a_stranger_that_knows_every_name_of_a_pending_connection_cannot_take_part_in_it() {
    let mra = |theirs, ours, acknowledged| {
        Message::Mra(MraRepr {
            local_comm_id: theirs,
            remote_comm_id: ours,
            acknowledged,
            service_timeout: 24,
        })
    };
    // The active side waits for a reply.
    let (mut pair, a, _) = Pair::requested();
    let ours = pair.a.conns[a].local_id;
    let again = pair.a.conns[a].repeatable.as_deref().copied();
    let (now, req) = (pair.now, again.expect("a REQ"));
    let forged = [
        Message::parse(&reply_to(&req, 0)).expect("a REP").1,
        mra(0x66, ours, Rejected::Req),
    ];
    for message in forged {
        let answers = takes(&mut pair.a, now, STRANGER, &message.to_mad(1), 1);
        let refused = matches!(message, Message::Rep(_)).then_some(RejectReason::InvalidCommId);
        assert_eq!(reject_of(&answers), refused);
        assert_eq!(drained(&mut pair.a), []);
        assert_eq!(pair.a.state(a), Some(State::ReqSent), "{message:?}");
    }
    // The passive side waits for the RTU.
    let (mut pair, a, b) = Pair::replied();
    let (ours, theirs) = (pair.b.conns[b].local_id, pair.a.conns[a].local_id);
    let rtu = Message::Rtu(RtuRepr {
        local_comm_id: theirs,
        remote_comm_id: ours,
    });
    for message in [rtu, mra(theirs, ours, Rejected::Rep)] {
        assert_eq!(b_takes(&mut pair, STRANGER, &message.to_mad(1)), []);
        assert_eq!(drained(&mut pair.b), []);
        assert_eq!(pair.b.state(b), Some(State::RepSent), "{message:?}");
    }
    pair.a.ready(pair.now, a).expect("a reply");
    pair.run_for(MILLISECOND);
    assert_eq!(pair.take(B), [CmEvent::Established { conn: b }]);
}

/// A REQ that claims another address than that of its sender is refused. A consumer may rely on the address, for
/// example with a list of addresses that may connect.
#[test]
fn a_request_that_claims_anothers_address_is_refused() {
    let lies: [fn(&mut ReqRepr); 2] = [
        |req| req.primary.local_gid = A.gid(),
        |req| {
            let header = IpHeader {
                source_port: 0xc001,
                source: A.gid(),
                destination: B.gid(),
            };
            req.service_id = rdma_cm::service_id(4420);
            req.private_data = private_data::encode_request(req.service_id, &header, b"")
                .expect("no private data");
        },
    ];
    for lie in lies {
        let mut pair = Pair::listening();
        pair.b
            .listen(rdma_cm::service_id(4420))
            .expect("nobody else listens");
        let mad = request_from(STRANGER, 77, lie);
        let answers = b_takes(&mut pair, STRANGER, &mad);
        assert_eq!(reject_of(&answers), Some(RejectReason::InvalidGid));
        assert_eq!((drained(&mut pair.b), pair.b.connections()), (vec![], 0));
    }
}

#[test]
fn request_over_the_limit_keeps_no_state() {
    let mut pair = Pair::listening();
    for n in 0..70_000_u32 {
        let mad = request_from(STRANGER, 77, |req| {
            req.local_comm_id = n;
            req.local_qpn = Qpn::new(n);
            // 31 is 2.4 hours, the largest value of the field.
            req.remote_response_timeout = 31;
        });
        let (now, random) = (pair.now, pair.random.next());
        pair.b.handle_mad(now, &from(STRANGER), &mad, random);
        for event in drained(&mut pair.b) {
            pair.b.decline(now, event.conn(), RejectReason::NoResources);
        }
        while pair.b.poll_transmit().is_some() {}
    }
    assert_eq!(pair.b.connections(), 0);
    assert!(pair.b.pending.is_empty());
    let a = pair.connect(connect_params());
    pair.run_for(MILLISECOND);
    assert!(matches!(pair.take(B)[..], [CmEvent::Request { .. }]));
    assert_eq!(pair.a.state(a), Some(State::ReqSent));
}

/// Undecided requests of an attacker leave capacity for other peers and for our own connections. In this test the
/// consumer never decides, so the attacker's requests stay pending.
#[test]
fn undecided_requests_of_a_stranger_leave_room_for_others_and_for_us() {
    let mut pair = Pair::listening();
    let bounds = Config {
        max_connections: 96,
        max_pending_per_peer: 20,
        max_pending_per_listener: 60,
        ..config(B)
    };
    pair.b.config = bounds;
    let flood = |pair: &mut Pair, gid: [u8; 16], count: u32, service_id: u64| {
        let mut refused = 0;
        for n in 0..count {
            let mad = request_from(gid, 77, |req| {
                req.local_comm_id = n;
                req.local_qpn = Qpn::new(n);
                req.service_id = service_id;
            });
            let answers = b_takes(pair, gid, &mad);
            refused += u32::from(reject_of(&answers) == Some(RejectReason::NoResources));
        }
        refused
    };
    let stranger = |n: u8| {
        let mut gid = STRANGER;
        gid[15] = n;
        gid
    };
    assert_eq!(
        flood(&mut pair, stranger(66), 500, SERVICE),
        480,
        "per peer"
    );
    assert_eq!(flood(&mut pair, stranger(67), 500, SERVICE), 480);
    assert_eq!(flood(&mut pair, stranger(68), 500, SERVICE), 480);
    assert_eq!(
        flood(&mut pair, stranger(69), 500, SERVICE),
        500,
        "per listener"
    );
    pair.b.listen(SERVICE + 1).expect("nobody else listens");
    assert_eq!(flood(&mut pair, stranger(70), 500, SERVICE + 1), 480);
    assert_eq!(
        flood(&mut pair, stranger(71), 500, SERVICE + 1),
        490,
        "in all"
    );
    assert_eq!(pair.b.connections(), 90);
    for n in 0..6 {
        let params = ConnectParams {
            path: End::path_to(A),
            source: B.gid(),
            qpn: Qpn::new(n),
            ..connect_params()
        };
        pair.b.connect(pair.now, params).expect("kept for us");
    }
    assert_eq!(
        pair.b.connect(pair.now, connect_params()),
        Err(ConnectError::TooMany(96))
    );
}

/// Accepted requests whose requesters never send an RTU are bounded, and other peers can still connect. The consumer
/// accepts each request immediately and gives it an endpoint. Attackers at a hundred addresses send requests as fast
/// as they can and answer nothing. Each connection attempt of the honest peer succeeds within two loop iterations.
#[test]
fn accepted_requests_that_nobody_completes_are_bounded_and_keep_no_peer_out() {
    let mut pair = Pair::listening();
    let most = config(B).max_pending_per_listener;
    let (mut endpoints, mut most_endpoints, mut longest) = (0_usize, 0, 0);
    let (mut number, mut qpn, mut connects) = (0_u32, 0, 0);
    let mut asked: Option<(ConnId, u32)> = None;
    // 20,000 requests, 64 in each loop iteration: the most that are received at a time.
    for turn in 0_u32..313 {
        for _ in 0..64 {
            let mut gid = STRANGER;
            gid[15] = 100 + u8::try_from(number % 100).expect("small");
            number += 1;
            let mad = request_from(gid, 77, |req| {
                (req.local_comm_id, req.local_qpn) = (number, Qpn::new(number));
                req.local_response_timeout = 31;
                req.max_cm_retries = 15;
            });
            let (now, random) = (pair.now, pair.random.next());
            pair.b.handle_mad(now, &from(gid), &mad, random);
        }
        if asked.is_none() {
            let random = pair.random.next();
            let a = pair.connect(ConnectParams {
                qpn: Qpn::new(turn),
                random,
                ..connect_params()
            });
            asked = Some((a, turn));
        }
        // In each iteration, the honest peer's datagrams arrive after the attackers'.
        for (_, mad) in core::iter::from_fn(|| pair.a.poll_transmit()).collect::<Vec<_>>() {
            let (now, random) = (pair.now, pair.random.next());
            pair.b.handle_mad(now, &A.address(), &mad, random);
        }
        for event in drained(&mut pair.b) {
            match event {
                CmEvent::Request { conn, .. } => {
                    endpoints += 1;
                    qpn += 1;
                    let with = AcceptParams {
                        qpn: Qpn::new(qpn),
                        ..accept_params()
                    };
                    pair.b.accept(pair.now, conn, with).expect("a request");
                }
                CmEvent::AcceptFailed { conn } => {
                    endpoints -= 1;
                    pair.b.release(pair.now, conn);
                }
                CmEvent::Established { .. } => {}
                other @ (CmEvent::Reply { .. }
                | CmEvent::Rejected { .. }
                | CmEvent::Unreachable { .. }
                | CmEvent::TimedOut { .. }
                | CmEvent::Disconnected { .. }
                | CmEvent::DisconnectDone { .. }) => panic!("{other:?}"),
            }
            most_endpoints = most_endpoints.max(endpoints);
        }
        for (to, mad) in core::iter::from_fn(|| pair.b.poll_transmit()).collect::<Vec<_>>() {
            if to.path.gid == A.gid() {
                pair.a.handle_mad(pair.now, &B.address(), &mad, 1);
            }
        }
        for event in drained(&mut pair.a) {
            let (a, since) = asked.take().expect("it asked");
            assert!(
                matches!(event, CmEvent::Reply { conn, .. } if conn == a),
                "turn {turn}: {event:?}"
            );
            pair.a.ready(pair.now, a).expect("a reply");
            longest = longest.max(turn - since);
            connects += 1;
        }
        pair.now += MILLISECOND;
    }
    let established = pair.b.conns.values();
    let established = established.filter(|conn| conn.state == State::Established);
    assert!(connects > 100 && established.count() >= connects - 1);
    assert!(longest <= 2, "{longest} turns");
    // The bound is the listener's limit, plus the requests of one loop iteration, plus those of the honest peer.
    assert!(most_endpoints <= most + 64 + connects, "{most_endpoints}");
    assert!(most_endpoints > most / 2, "the bound is reached");
}

/// An address with many requests displaces no requests of other addresses. An address with few requests may displace a
/// few.
#[test]
fn an_address_with_many_requests_does_not_drop_those_of_others() {
    let mut pair = Pair::listening();
    pair.b.config = Config {
        max_pending_per_peer: 256,
        max_pending_per_listener: 256,
        ..config(B)
    };
    let ask = |pair: &mut Pair, last: u8, n: u32| {
        let mut gid = STRANGER;
        gid[15] = last;
        let mad = request_from(gid, 77, |req| {
            (req.local_comm_id, req.local_qpn) = (n, Qpn::new(n))
        });
        let (now, random) = (pair.now, pair.random.next());
        pair.b.handle_mad(now, &from(gid), &mad, random);
        // The peer of a dropped request gets a REJ. The new request is refused, or reported to the consumer.
        let sent = core::iter::from_fn(|| pair.b.poll_transmit());
        let refused = sent
            .filter(|(to, _)| to.path.gid == gid)
            .find_map(|(_, mad)| reject_of(&[Message::parse(&mad).expect("ours").1]));
        for event in drained(&mut pair.b) {
            if let CmEvent::Request { conn, .. } = event {
                let accepted = pair.b.accept(pair.now, conn, accept_params());
                accepted.expect("a request");
            } else {
                assert!(matches!(event, CmEvent::AcceptFailed { .. }), "{event:?}");
            }
        }
        while pair.b.poll_transmit().is_some() {}
        refused
    };
    for n in 0..256 {
        assert_eq!(ask(&mut pair, 66, n), None);
    }
    assert_eq!(ask(&mut pair, 66, 256), Some(RejectReason::NoResources));
    for n in 0..4 {
        assert_eq!(ask(&mut pair, 67, n), None, "it has few: others make room");
    }
    assert_eq!(ask(&mut pair, 67, 4), Some(RejectReason::NoResources));
    assert_eq!(ask(&mut pair, 68, 0), None);
    // The counts of each address are still right.
    let left = |last: u8| {
        let held = pair
            .b
            .conns
            .values()
            .filter(|it| it.peer.path.gid[15] == last && it.state == State::RepSent);
        held.count()
    };
    assert_eq!((left(66), left(67), left(68)), (251, 4, 1));
}

/// The state of a request is freed within minutes, even if the REQ names the longest local and remote CM response
/// timeouts (31, 2.4 hours).
#[test]
fn state_of_a_request_is_gone_within_minutes_whatever_times_it_names() {
    for accept in [false, true] {
        let mut pair = Pair::listening();
        let mad = request_from(STRANGER, 77, |req| {
            req.remote_response_timeout = 31;
            req.local_response_timeout = 31;
            req.max_cm_retries = 15;
        });
        b_takes(&mut pair, STRANGER, &mad);
        let [CmEvent::Request { conn, .. }] = drained(&mut pair.b)[..] else {
            panic!("one request")
        };
        if accept {
            pair.b
                .accept(pair.now, conn, accept_params())
                .expect("a request");
        } else {
            pair.b
                .reject(pair.now, conn, RejectReason::Consumer)
                .expect("a request");
        }
        let begun = pair.now;
        while let Some(at) = pair.b.next_timeout() {
            pair.now = at;
            pair.b.handle_timeout(at);
            while pair.b.poll_transmit().is_some() {}
        }
        let took = pair.now - begun;
        assert!(took < 180 * SECOND, "{took} ns");
        pair.b.release(pair.now, conn);
        assert_eq!(pair.b.connections(), 0);
    }
}

/// A peer cannot make our queue pair wait too long before it notices the peer's death. The local ACK timeout of a REQ
/// and the timeout computed from the ACK delay of a REP are limited; 0 would be no timeout, 31 is 2.4 hours per try.
#[test]
fn a_peer_cannot_make_its_death_unnoticeable() {
    for (asked, used) in [(0, 22), (14, 14), (22, 22), (23, 22), (31, 22)] {
        let mut pair = Pair::listening();
        let mad = request_from(STRANGER, 77, |req| req.primary.ack_timeout = asked);
        b_takes(&mut pair, STRANGER, &mad);
        let events = drained(&mut pair.b);
        assert!(
            matches!(&events[..], [CmEvent::Request { request, .. }] if request.ack_timeout == used),
            "{asked}: {events:?}"
        );
    }
    for (delay, used) in [(0, 16), (16, 17), (20, 21), (21, 22), (31, 22)] {
        let mut pair = Pair::listening();
        let a = pair.connect(connect_params());
        let (_, mad) = pair.a.poll_transmit().expect("a REQ");
        let now = pair.now;
        let _rtu = takes(&mut pair.a, now, B.gid(), &reply_to(&mad, delay), 1);
        let events = drained(&mut pair.a);
        assert!(
            matches!(&events[..], [CmEvent::Reply { conn, reply }] if (*conn, reply.ack_timeout) == (a, used)),
            "{delay}: {events:?}"
        );
    }
}

/// Refused requests block no other requests, and the memory for them is bounded. In this test the consumer refuses all
/// requests but the peer's.
#[test]
fn requests_that_were_refused_leave_room_for_others_however_many_they_were() {
    let mut pair = Pair::listening();
    pair.b.config = Config {
        max_connections: 96,
        max_pending_per_peer: 20,
        max_pending_per_listener: 60,
        ..config(B)
    };
    for n in 0..500 {
        let mad = request_from(STRANGER, 77, |req| {
            req.local_comm_id = n;
            req.local_qpn = Qpn::new(n);
        });
        assert!(b_takes(&mut pair, STRANGER, &mad).is_empty());
        let [CmEvent::Request { conn, .. }] = drained(&mut pair.b)[..] else {
            panic!("request {n} is admitted")
        };
        let now = pair.now;
        pair.b
            .reject(now, conn, RejectReason::Consumer)
            .expect("a request");
        pair.b.release(now, conn);
        while pair.b.poll_transmit().is_some() {}
        assert!(pair.b.connections() <= 60, "{n}");
    }
    // The last refusals are remembered, and repeated if the peer repeats its request.
    let again = request_from(STRANGER, 77, |req| {
        req.local_comm_id = 499;
        req.local_qpn = Qpn::new(499);
    });
    let answers = b_takes(&mut pair, STRANGER, &again);
    assert_eq!(reject_of(&answers), Some(RejectReason::Consumer));
    let a = pair.connect(connect_params());
    pair.run_for(MILLISECOND);
    assert!(matches!(pair.take(B)[..], [CmEvent::Request { .. }]));
    assert_eq!(pair.a.state(a), Some(State::ReqSent));
    // After some time all refusals are forgotten.
    pair.run_for(300 * SECOND);
    assert!(pair.b.refusals.is_empty());
}

/// One step drops all refused requests over the limit. Their number is not limited by the stack.
#[test]
fn refused_requests_over_the_limit_are_dropped_however_many_they_are() {
    let mut pair = Pair::listening();
    let refuse = |pair: &mut Pair, n: u32| {
        let mad = request_from(STRANGER, 77, |req| {
            (req.local_comm_id, req.local_qpn) = (n, Qpn::new(n));
        });
        pair.b.handle_mad(pair.now, &from(STRANGER), &mad, n.into());
        let Some(CmEvent::Request { conn, .. }) = pair.b.poll_event() else {
            panic!("request {n} is admitted")
        };
        let refused = pair.b.reject(pair.now, conn, RejectReason::Consumer);
        refused.expect("a request");
        pair.b.release(pair.now, conn);
        while pair.b.poll_transmit().is_some() {}
    };
    pair.b.config.max_pending_per_listener = 20_000;
    for n in 0..20_000 {
        refuse(&mut pair, n);
    }
    assert_eq!(pair.b.connections(), 20_000);
    pair.b.config.max_pending_per_listener = 1;
    refuse(&mut pair, 20_000);
    assert_eq!(pair.b.connections(), 1);
}
