//! Parking and resuming: in every state, with time that passes meanwhile, and from snapshots that lie.

use strum::VariantArray;

use super::*;
use crate::error::parking::ResumeError;

/// Parks and resumes a connection manager. Checks that the tables are the same afterwards, also those that the snapshot
/// does not have.
pub(super) fn resumed(cm: &Cm, now: Nanos) -> Cm {
    let snapshot = cm.park(now);
    let again = match Cm::resume(&snapshot, &Config::default(), now) {
        Ok(again) => again,
        Err(error) => panic!("{error}: {snapshot:?}"),
    };
    assert_eq!(again.park(now), snapshot);
    assert_eq!(again.by_service, cm.by_service);
    assert_eq!(again.by_local, cm.by_local);
    assert_eq!(again.by_remote, cm.by_remote);
    // A connection that we are ending may be in this index, and nothing depends on it.
    let by_remote_qp: BTreeMap<_, _> = cm
        .by_remote_qp
        .iter()
        .filter(|(_, id)| cm.state(**id) != Some(State::DreqSent))
        .map(|(name, id)| (*name, *id))
        .collect();
    assert_eq!(again.by_remote_qp, by_remote_qp);
    assert_eq!(again.pending.counts(), cm.pending.counts());
    assert_eq!(format!("{:?}", again.timers), format!("{:?}", cm.timers));
    again
}

/// Makes a pair in which one end has a connection in a state.
type Way = fn() -> (Pair, End, ConnId);
/// Does something to a connection of an end. Returns the result of the call.
type Next = fn(&mut Pair, End, ConnId) -> Result<(), CmError>;

/// Returns pairs in which one end has a connection in a state.
fn ways(state: State) -> Vec<Way> {
    match state {
        State::ReqSent => vec![
            || {
                let mut pair = Pair::listening();
                let conn = pair.connect(connect_params());
                (pair, A, conn)
            },
            // With a deadline of the consumer, after two repetitions.
            || {
                let mut pair = Pair::listening();
                pair.keep(|_, message| !is_req(message));
                let conn = pair.connect(ConnectParams {
                    service_id: rdma_cm::service_id(80),
                    timeout: Some(30 * SECOND),
                    ..connect_params()
                });
                pair.run_until(60 * SECOND, |pair| pair.count(A, is_req) == 3);
                pair.lose_nothing();
                (pair, A, conn)
            },
        ],
        State::ReqAcknowledged => vec![|| {
            let (mut pair, a, _) = Pair::requested();
            pair.run_for(SECOND);
            (pair, A, a)
        }],
        State::RepReceived => vec![|| {
            let (pair, a, _) = Pair::replied();
            (pair, A, a)
        }],
        State::ReqReceived => vec![|| {
            let (pair, _, b) = Pair::requested();
            (pair, B, b)
        }],
        State::MraSent => vec![|| {
            let (mut pair, _, b) = Pair::requested();
            pair.run_for(SECOND);
            (pair, B, b)
        }],
        State::Withdrawn => vec![|| {
            let (mut pair, a, b) = Pair::requested();
            pair.a.abort(pair.now, a);
            pair.run_for(LATENCY);
            (pair, B, b)
        }],
        State::RepSent => vec![|| {
            let (mut pair, _, b) = Pair::requested();
            let accepted = pair.b.accept(pair.now, b, accept_params());
            accepted.expect("a request");
            (pair, B, b)
        }],
        State::RepAcknowledged => vec![|| {
            let (mut pair, a, b) = Pair::replied();
            let mra = wire::MraRepr {
                local_comm_id: pair.a.conns[a].local_id,
                remote_comm_id: pair.b.conns[b].local_id,
                acknowledged: wire::Rejected::Rep,
                service_timeout: 22,
            };
            let (now, mad) = (pair.now, Message::Mra(mra).to_mad(0));
            pair.b.handle_mad(now, &A.address(), &mad, 0);
            (pair, B, b)
        }],
        State::Established => vec![
            || {
                let (pair, a, _) = Pair::established();
                (pair, A, a)
            },
            || {
                let (pair, _, b) = Pair::established();
                (pair, B, b)
            },
        ],
        State::DreqSent => vec![
            || {
                let (mut pair, a, _) = Pair::established();
                pair.a.disconnect(pair.now, a).expect("established");
                (pair, A, a)
            },
            // The consumer has released it, and the peer does not answer.
            || {
                let (mut pair, _, b) = Pair::established();
                pair.keep(|_, message| !is_dreq(message));
                pair.b.release(pair.now, b);
                pair.run_for(5 * SECOND);
                (pair, B, b)
            },
        ],
        State::Refused => vec![
            || {
                let (mut pair, _, b) = Pair::requested();
                let reason = RejectReason::Consumer;
                let refused = pair.b.reject_with(pair.now, b, reason, b"no room");
                refused.expect("a request");
                (pair, B, b)
            },
            // The refusal was lost, so it is repeated.
            || {
                let (mut pair, _, b) = Pair::requested();
                pair.keep(|_, message| !is_rej(message));
                pair.b
                    .reject(pair.now, b, RejectReason::NoResources)
                    .expect("a request");
                pair.run_for(3 * SECOND);
                pair.lose_nothing();
                (pair, B, b)
            },
            // The peer accepts too late.
            || {
                let (mut pair, a, b) = Pair::requested();
                pair.keep(|_, message| !is_rej(message));
                pair.a.disconnect(pair.now, a).expect("an attempt");
                pair.run_for(LATENCY);
                pair.lose_nothing();
                let accepted = pair.b.accept(pair.now, b, accept_params());
                accepted.expect("a request");
                (pair, A, a)
            },
        ],
        State::TimeWait => vec![
            || {
                let (mut pair, a, _) = Pair::established();
                pair.a.disconnect(pair.now, a).expect("established");
                pair.run_for(2 * LATENCY);
                (pair, A, a)
            },
            || {
                let (mut pair, a, b) = Pair::established();
                pair.a.disconnect(pair.now, a).expect("established");
                pair.run_for(LATENCY);
                (pair, B, b)
            },
        ],
        State::Closed => vec![|| {
            let (mut pair, a, _) = Pair::established();
            pair.a.disconnect(pair.now, a).expect("established");
            pair.run_to_the_end();
            (pair, A, a)
        }],
    }
}

/// Calls and events that may come next at an end.
const NEXT: &[(&str, Next)] = &[
    ("nothing but time", |_, _, _| Ok(())),
    ("accept", |pair, end, conn| {
        let now = pair.now;
        pair.cm(end).accept(now, conn, accept_params())
    }),
    ("reject", |pair, end, conn| {
        let (now, reason) = (pair.now, RejectReason::Consumer);
        pair.cm(end).reject_with(now, conn, reason, b"why")
    }),
    ("decline", |pair, end, conn| {
        let (now, reason) = (pair.now, RejectReason::NoResources);
        pair.cm(end).decline(now, conn, reason);
        Ok(())
    }),
    ("ready", |pair, end, conn| {
        let now = pair.now;
        pair.cm(end).ready(now, conn)
    }),
    ("data", |pair, end, conn| {
        let now = pair.now;
        pair.cm(end).communication_established(now, conn)
    }),
    ("disconnect", |pair, end, conn| {
        let now = pair.now;
        pair.cm(end).disconnect(now, conn)
    }),
    ("abort", |pair, end, conn| {
        let now = pair.now;
        pair.cm(end).abort(now, conn);
        Ok(())
    }),
    ("release", |pair, end, conn| {
        let now = pair.now;
        pair.cm(end).release(now, conn);
        Ok(())
    }),
    ("the port came up", |pair, end, _| {
        let now = pair.now;
        pair.cm(end).port_came_up(now);
        Ok(())
    }),
    ("the peer is unreachable", |pair, end, _| {
        let now = pair.now;
        pair.cm(end).unreachable(now, end.other().gid());
        Ok(())
    }),
    ("all is sent again", |pair, end, _| {
        let sent: Vec<_> = pair.sent.clone();
        for (from, message) in sent {
            let (now, address) = (pair.now, from.address());
            if from != end {
                let mad = message.to_mad(1);
                pair.cm(end).handle_mad(now, &address, &mad, 5);
            }
        }
        Ok(())
    }),
    ("the peer ends it", |pair, end, _| {
        let peer = pair.cm(end.other());
        let conns: Vec<ConnId> = peer.conns.iter().map(|(id, _)| id).collect();
        let now = pair.now;
        for conn in conns {
            pair.cm(end.other()).release(now, conn);
        }
        Ok(())
    }),
    ("another connection begins", |pair, _, _| {
        pair.connect(ConnectParams {
            random: 77,
            ..connect_params()
        });
        Ok(())
    }),
    ("the peer has forgotten all", |pair, end, _| {
        *pair.cm(end.other()) = Cm::new(config(end.other()));
        Ok(())
    }),
    ("half a minute passes unnoticed", |pair, _, _| {
        pair.now += 30 * SECOND;
        Ok(())
    }),
];

/// Every state, each with all that may happen next: what is sent and told is the same whether the end was parked and
/// resumed or not.
#[test]
fn a_connection_in_any_state_goes_on_after_it_was_parked_and_resumed() {
    for &state in State::VARIANTS {
        for (number, way) in ways(state).into_iter().enumerate() {
            for (what, next) in NEXT {
                let run = |parks: bool| {
                    let (mut pair, end, conn) = way();
                    assert_eq!(pair.cm(end).state(conn), Some(state), "way {number}");
                    if parks {
                        let now = pair.now;
                        *pair.cm(end) = resumed(pair.cm(end), now);
                    }
                    let result = next(&mut pair, end, conn);
                    pair.run_to_the_end();
                    let Pair {
                        a, b, now, sent, ..
                    } = pair;
                    let told = [pair.a_events, pair.b_events];
                    (result, sent, told, [a.park(now), b.park(now)])
                };
                assert_eq!(run(false), run(true), "{state:?}, way {number}: {what}");
            }
        }
    }
}

#[test]
fn events_and_datagrams_that_wait_are_still_there() {
    let mut pair = Pair::listening();
    let now = pair.now;
    for n in 1..=3 {
        pair.connect(ConnectParams {
            qpn: Qpn::new(n),
            random: n.into(),
            ..connect_params()
        });
    }
    let mut a = resumed(&pair.a, now);
    let (to, first) = a.poll_transmit().expect("three requests");
    pair.b.handle_mad(now, &A.address(), &first, 9);
    // It could not be sent, and another process sends it again.
    a.unsent(to, first);
    let mut again = resumed(&a, now);
    let sent: Vec<_> = core::iter::from_fn(|| again.poll_transmit()).collect();
    assert_eq!((sent.len(), sent[0]), (3, (to, first)));
    let mut b = resumed(&pair.b, now);
    let event = b.poll_event();
    assert_eq!(event, pair.b.poll_event());
    assert!(matches!(event, Some(CmEvent::Request { .. })), "{event:?}");
}

/// A queue that is full, and to which a datagram was put back, is taken whole.
#[test]
fn a_full_queue_of_datagrams_is_parked() {
    let mut cm = Cm::new(config(B));
    let mad = strangers::request_from(strangers::STRANGER, 3, |_| {});
    for _ in 0..5_000 {
        cm.handle_mad(0, &A.address(), &mad, 1);
    }
    let (to, first) = cm.poll_transmit().expect("refusals");
    cm.handle_mad(0, &A.address(), &mad, 1);
    cm.unsent(to, first);
    let again = resumed(&cm, 0);
    let mut snapshot = again.park(0);
    assert_eq!(snapshot.outbox.len(), 4_097);
    snapshot.outbox.push((to, first));
    let error = Cm::resume(&snapshot, &Config::default(), 0).map(drop);
    assert_eq!(
        error,
        Err(over("the datagrams to send", "datagrams", 4_098, 4_097))
    );
}

/// Identifiers given out before and after the resumption are those of a connection manager that was not parked.
#[test]
fn identifiers_stay_the_same_and_so_do_the_next_ones() {
    let mut plain = Cm::new(config(A));
    let connect = |cm: &mut Cm, n: u32| {
        let params = ConnectParams {
            random: n.into(),
            qpn: Qpn::new(n),
            ..connect_params()
        };
        cm.connect(0, params).expect("sound parameters")
    };
    let conns: Vec<ConnId> = (1..=5).map(|n| connect(&mut plain, n)).collect();
    let listeners: Vec<ListenId> = (1..=5).map(|n| plain.listen(n).expect("free")).collect();
    for n in [3, 0, 4] {
        plain.release(0, conns[n]);
        plain.unlisten(listeners[n]);
    }
    // The released ones are refused until their time is over, and then freed.
    plain.handle_timeout(u64::MAX / 2);
    assert_eq!(plain.connections(), 2);
    let mut parked = resumed(&plain, u64::MAX / 2);
    assert_eq!(parked.state(conns[0]), None);
    for n in 10..14 {
        assert_eq!(connect(&mut parked, n), connect(&mut plain, n));
        let service = u64::from(n);
        assert_eq!(parked.listen(service), plain.listen(service));
    }
    assert_eq!(ConnId::from_raw(conns[1].to_raw()), conns[1]);
    assert_eq!(ListenId::from_raw(listeners[1].to_raw()), listeners[1]);
}

#[test]
fn a_deadline_that_passed_meanwhile_is_due_at_once_and_counts_once() {
    let mut pair = Pair::listening();
    pair.keep(|_, message| !is_req(message));
    pair.connect(connect_params());
    pair.drain();
    let snapshot = pair.a.park(pair.now);
    pair.now += 100 * SECOND;
    let mut a = Cm::resume(&snapshot, &Config::default(), pair.now).expect("a snapshot");
    assert!(a.next_timeout().is_some_and(|at| at < pair.now));
    assert_eq!(a.poll_transmit(), None, "only handle_timeout sends");
    a.handle_timeout(pair.now);
    assert!(a.poll_transmit().is_some());
    assert_eq!((a.poll_transmit(), a.counters().repeated), (None, 1));
    assert!(a.next_timeout().is_some_and(|at| at > pair.now));
}

/// The peer's answer arrived, and the last deadline passed, while no process had the connection manager.
#[test]
fn an_answer_that_arrived_meanwhile_counts_although_the_deadline_passed() {
    let (mut pair, a, b) = Pair::requested();
    pair.b
        .accept(pair.now, b, accept_params())
        .expect("a request");
    let (_, rep) = pair.b.poll_transmit().expect("a REP");
    let mut snapshot = pair.a.park(pair.now);
    snapshot.conns[0].max_retries = 0;
    pair.now += 10 * SECOND;
    let mut resumed = Cm::resume(&snapshot, &Config::default(), pair.now).expect("a snapshot");
    resumed.handle_mad(pair.now, &B.address(), &rep, 0);
    resumed.handle_timeout(pair.now);
    assert_eq!(resumed.state(a), Some(State::RepReceived));
    // Without the answer, the attempt is over.
    let mut resumed = Cm::resume(&snapshot, &Config::default(), pair.now).expect("a snapshot");
    resumed.handle_timeout(pair.now);
    assert_eq!(resumed.poll_event(), Some(CmEvent::Unreachable { conn: a }));
}

/// Order of accepted and of refused requests: the oldest one makes room.
#[test]
fn the_oldest_accepted_and_the_oldest_refused_request_still_make_room() {
    let mut pair = Pair::listening();
    pair.b.config = Config {
        max_pending_per_listener: 4,
        ..config(B)
    };
    let ask = |cm: &mut Cm, n: u8| {
        let mut gid = strangers::STRANGER;
        gid[15] = n;
        let mad = strangers::request_from(gid, n.into(), |req| {
            (req.local_comm_id, req.local_qpn) = (n.into(), Qpn::new(n.into()));
        });
        let from = MadAddress {
            path: Path {
                gid,
                ..End::path_to(A)
            },
            qpn: Qpn::GSI,
        };
        cm.handle_mad(0, &from, &mad, n.into());
        while let Some(event) = cm.poll_event() {
            if let CmEvent::Request { conn, .. } = event {
                return Some(conn);
            }
        }
        None
    };
    let mut cm = pair.b;
    let mut conns: Vec<ConnId> = (1..=4).filter_map(|n| ask(&mut cm, n)).collect();
    // They are accepted in another order than their indices have.
    conns.swap(0, 2);
    for &conn in &conns {
        cm.accept(0, conn, accept_params()).expect("a request");
    }
    let refused = [conns[0], conns[1], conns[2], conns[3]];
    let mut again = resumed(&cm, 0);
    for n in 5..=8 {
        let oldest = conns.remove(0);
        let new = ask(&mut again, n).expect("room is made");
        assert_eq!(again.state(oldest), Some(State::Refused));
        again.accept(0, new, accept_params()).expect("a request");
        again = resumed(&again, 0);
    }
    assert_eq!(again.refusals.in_order().len(), 4);
    ask(&mut again, 9).expect("room is made");
    let states = refused.map(|conn| again.state(conn));
    let [first, others @ ..] = states;
    assert_eq!(
        (first, others),
        (Some(State::Closed), [Some(State::Refused); 3])
    );
}

#[test]
fn an_earlier_time_than_at_the_parking_is_that_of_another_clock() {
    let (pair, _, _) = Pair::established();
    let (parked_at, now) = (pair.now, pair.now - 1);
    let error = Cm::resume(&pair.a.park(parked_at), &config(A), now).map(drop);
    assert_eq!(error, Err(ResumeError::Clock { parked_at, now }));
}

#[test]
fn counts_by_reason_come_back() {
    let mut refused = Refused::default();
    for code in 0..40 {
        for _ in 0..code {
            refused.count(RejectReason::from_code(code));
        }
    }
    assert_eq!(Refused::of_each(refused.each()), refused);
    let other = RejectReason::Other(7);
    let most = Refused::of_each([(other, u64::MAX), (other, 1)]);
    assert_eq!(most.times(other), u64::MAX);
}

#[test]
fn a_closed_connection_does_not_take_its_successors_communication_id_along() {
    let (mut pair, a, _) = Pair::established();
    pair.a.disconnect(pair.now, a).expect("established");
    pair.run_to_the_end();
    let next = pair.connect(connect_params());
    assert_eq!(pair.a.conns[a].local_id, pair.a.conns[next].local_id);
    pair.a.release(pair.now, a);
    assert_eq!(pair.a.by_local.values().collect::<Vec<_>>(), [&next]);
}

/// Numbers over their limits, which the caller may give, are reduced to the limits, so that a snapshot with them is
/// resumed.
#[test]
fn numbers_of_the_caller_that_are_over_their_limits_are_reduced_and_resumed() {
    let mut cm = Cm::new(config(A));
    let conn = cm.connect(
        7,
        ConnectParams {
            timeout: Some(u64::MAX),
            path: Path {
                flow_label: u32::MAX,
                priority: u8::MAX,
                ..End::path_to(B)
            },
            ..connect_params()
        },
    );
    let conn = conn.expect("sound parameters");
    let (to, mad) = cm.poll_transmit().expect("a REQ");
    let Ok((_, Message::Req(req))) = Message::parse(&mad) else {
        panic!("a REQ");
    };
    assert_eq!((req.primary.flow_label, req.primary.sl), (0xf_ffff, 7));
    cm.unsent(to, mad);
    let snapshot = resumed(&cm, 7).park(7);
    let one = &snapshot.conns[0];
    let path = &one.peer.path;
    assert_eq!(
        (one.id, path.flow_label, path.priority),
        (conn, 0xf_ffff, 7)
    );
    // The longest DAT_TIMEOUT, 2^32 - 1 microseconds.
    assert_eq!(one.consumer_deadline, Some(7 + 4_294_967_295_000));
    let cm = Cm::new(Config {
        max_mtu: 6,
        ..config(A)
    });
    assert_eq!(resumed(&cm, 0).config.max_mtu, 5);
}

/// The limits of a snapshot may be lower than those of the caller, but not higher.
#[test]
fn limits_are_the_lower_ones_of_the_snapshot_and_of_the_caller() {
    let limits = |connections, per_peer, per_listener| Config {
        max_connections: connections,
        max_pending_per_peer: per_peer,
        max_pending_per_listener: per_listener,
        ..config(A)
    };
    for (ours, theirs, expected) in [
        ((9, 8, 7), (9, 8, 7), (9, 8, 7)),
        ((9, 8, 7), (1, 2, 3), (1, 2, 3)),
        ((1, 2, 3), (9, 8, 7), (1, 2, 3)),
        ((usize::MAX, usize::MAX, usize::MAX), (1, 2, 3), (1, 2, 3)),
    ] {
        let snapshot = Cm::new(limits(ours.0, ours.1, ours.2)).park(0);
        let theirs = Config {
            local_ca_guid: 1,
            response_timeout: 1,
            ..limits(theirs.0, theirs.1, theirs.2)
        };
        let cm = Cm::resume(&snapshot, &theirs, 0).expect("a snapshot");
        assert_eq!(cm.config, limits(expected.0, expected.1, expected.2));
    }
}

fn over(table: &str, name: &'static str, value: u64, limit: u64) -> ResumeError {
    ResumeError::OutOfRange {
        table: table.to_owned(),
        name,
        value,
        limit,
    }
}

mod lies;
