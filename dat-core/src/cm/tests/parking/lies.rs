//! Snapshots that no connection manager has written. The error names the value that is wrong. A wrong snapshot that is
//! accepted does no harm.

use super::*;
use crate::cm::wire::{MAD_BYTES, Mad};

fn parked(state: State, way: usize) -> (CmSnapshot, Nanos) {
    let (mut pair, end, _) = ways(state)[way]();
    let now = pair.now;
    (pair.cm(end).park(now), now)
}

type Change = fn(&mut CmSnapshot);

/// A lie about a snapshot of a pair's end in a state, and a part of the error that names it.
type Lie = (State, &'static str, Change);

/// Returns the request of the first event that was not polled. Adds such an event if there is none.
fn request(snapshot: &mut CmSnapshot) -> &mut PeerRequest {
    let id = snapshot.conns[0].id;
    let conn = &snapshot.conns[0];
    if snapshot.events.is_empty() {
        let request = PeerRequest {
            listen: conn.listen.expect("passive"),
            service_id: conn.service_id,
            remote_gid: conn.peer.path.gid,
            path: conn.peer.path,
            remote_qpn: conn.remote_qpn.expect("passive"),
            remote_psn: Psn::masked(1),
            reads_in: 1,
            reads_out: 1,
            mtu: 3,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            private_data: vec![1; 92],
            remote_port: 0,
            srq: false,
        };
        snapshot.events.push(CmEvent::Request {
            conn: id,
            request: Box::new(request),
        });
    }
    let CmEvent::Request { request, .. } = &mut snapshot.events[0] else {
        panic!("another event");
    };
    request
}

/// The same for a reply.
fn reply(snapshot: &mut CmSnapshot) -> &mut PeerReply {
    let conn = &snapshot.conns[0];
    if snapshot.events.is_empty() {
        let reply = PeerReply {
            remote_qpn: conn.remote_qpn.expect("a reply"),
            remote_psn: Psn::masked(1),
            reads_in: 1,
            reads_out: 1,
            rnr_retry: 7,
            ack_timeout: 14,
            private_data: vec![1; 196],
        };
        let conn = conn.id;
        snapshot.events.push(CmEvent::Reply { conn, reply });
    }
    let CmEvent::Reply { reply, .. } = &mut snapshot.events[0] else {
        panic!("another event");
    };
    reply
}

fn rejected(snapshot: &mut CmSnapshot, by_consumer: bool, reason: u16, bytes: usize) {
    snapshot.events.push(CmEvent::Rejected {
        conn: snapshot.conns[0].id,
        by_consumer,
        reason,
        private_data: vec![0; bytes],
    });
}

fn push_event(snapshot: &mut CmSnapshot, event: fn(ConnId) -> CmEvent) {
    let id = snapshot.conns[0].id;
    snapshot.events.push(event(id));
}

/// Changes the message that the first connection repeats.
fn rewrite(snapshot: &mut CmSnapshot, change: impl FnOnce(&mut Message)) {
    let mad = snapshot.conns[0].repeatable.as_mut().expect("a message");
    let (transaction_id, mut message) = Message::parse(mad).expect("ours");
    change(&mut message);
    *mad = message.to_mad(transaction_id);
}

fn rewrite_req(snapshot: &mut CmSnapshot, change: fn(&mut ReqRepr)) {
    rewrite(snapshot, |message| {
        let Message::Req(req) = message else {
            panic!("a REQ");
        };
        change(req);
    });
}

fn rewrite_rep(snapshot: &mut CmSnapshot, change: fn(&mut RepRepr)) {
    rewrite(snapshot, |message| {
        let Message::Rep(rep) = message else {
            panic!("a REP");
        };
        change(rep);
    });
}

/// Adds a copy of the first connection in a new slot.
fn double(snapshot: &mut CmSnapshot) -> &mut ConnSnapshot {
    let mut other = snapshot.conns[0].clone();
    let index = snapshot.conns.len() + snapshot.free_conns.len() + 1;
    other.id = ConnId::from_raw(1 << 32 | index as u64);
    snapshot.conns.push(other);
    snapshot.conns.last_mut().expect("it")
}

use State::{
    Closed, DreqSent, Established, MraSent, Refused as Refusing, RepReceived, RepSent, ReqReceived,
    ReqSent, TimeWait, Withdrawn,
};

#[rustfmt::skip]
const LIES: &[Lie] = &[
    // The configuration and the counters.
    (ReqSent, "response_timeout is 32, at most 31", |s| s.config.response_timeout = 32),
    (ReqSent, "packet_lifetime is 32, at most 31", |s| s.config.packet_lifetime = 32),
    (ReqSent, "max_retries is 16, at most 15", |s| s.config.max_retries = 16),
    (ReqSent, "service_timeout is 32, at most 31", |s| s.config.service_timeout = 32),
    (ReqSent, "ack_delay is 32, at most 31", |s| s.config.ack_delay = 32),
    (ReqSent, "packet_rate is 64, at most 63", |s| s.config.packet_rate = 64),
    (ReqSent, "max_mtu is 6, at most 5", |s| s.config.max_mtu = 6),
    (ReqSent, "max_ack_timeout is 32, at most 31", |s| s.config.max_ack_timeout = 32),
    (ReqSent, "max_ack_timeout is 0", |s| s.config.max_ack_timeout = 0),
    (ReqSent, "slots is 1, at most 0", |s| s.config.max_connections = 0),
    (ReqSent, "slots is 2, at most 1", |s| {
        s.config.max_connections = 1;
        s.free_conns.push(ConnId::from_raw(1 << 32 | 2));
    }),
    (ReqSent, "the counters: received is", |s| s.counters.received = u64::MAX),
    (ReqSent, "the counters: sent is", |s| s.counters.sent = u64::MAX),
    (ReqSent, "the counters: repeated is", |s| s.counters.repeated = u64::MAX),
    (ReqSent, "the counters: malformed is", |s| s.counters.malformed = u64::MAX),
    (ReqSent, "the counters: foreign is", |s| s.counters.foreign = u64::MAX),
    (ReqSent, "the counters: unexpected is", |s| s.counters.unexpected = u64::MAX),
    (ReqSent, "the counters: refused is", |s| s.counters.refused = u64::MAX),
    (ReqSent, "the counters: duplicates is", |s| s.counters.duplicates = u64::MAX),
    (ReqSent, "the counters: connects is", |s| s.counters.connects = u64::MAX),
    (ReqSent, "the counters: requests is", |s| s.counters.requests = u64::MAX),
    (ReqSent, "the counters: accepted is", |s| s.counters.accepted = u64::MAX),
    (ReqSent, "the counters: established is", |s| s.counters.established = u64::MAX),
    (ReqSent, "the counters: ended is", |s| s.counters.ended = u64::MAX),
    (ReqSent, "the counters: unreachable is", |s| s.counters.unreachable = u64::MAX),
    (ReqSent, "the counters: timed_out is", |s| s.counters.timed_out = u64::MAX),
    (ReqSent, "the counters: accept_failed is", |s| s.counters.accept_failed = u64::MAX),
    (ReqSent, "refused_by_peers is", |s| {
        s.counters.refused_by_peers = Refused::of_each([(RejectReason::NoQp, u64::MAX)]);
    }),
    (ReqSent, "refused_by_us is 72057594037927937, at most 72057594037927936", |s| {
        s.counters.refused_by_us = Refused::of_each([(RejectReason::NoQp, (1 << 56) + 1)]);
    }),
    // The tables.
    (ReqSent, "connections: ConnId(2v1) names no slot", |s| s.conns[0].id = ConnId::from_raw(1 << 32 | 2)),
    (ReqSent, "connections: ConnId(0v1) names no slot", |s| s.conns[0].id = ConnId::from_raw(1 << 32)),
    (ReqSent, "the slot of ConnId(1v1) is there twice", |s| double(s).id = ConnId::from_raw(1 << 32 | 1)),
    (ReqSent, "connections: ConnId(9v1) names no slot", |s| s.free_conns.push(ConnId::from_raw(1 << 32 | 9))),
    (ReqReceived, "listeners: ListenId(2v1) names no slot", |s| s.listeners[0].id = ListenId::from_raw(1 << 32 | 2)),
    (ReqReceived, "the slot of ListenId(1v3) is there twice", |s| s.free_listeners.push(ListenId::from_raw(3 << 32 | 1))),
    (ReqReceived, "listeners: slots is 1048577, at most 1048576", |s| {
        s.free_listeners = vec![ListenId::from_raw(1 << 32 | 2); 1 << 20];
    }),
    (ReqReceived, "listen at 0x1000000000000042", |s| {
        let service_id = SERVICE;
        s.listeners.push(ListenerSnapshot { id: ListenId::from_raw(1 << 32 | 2), service_id });
    }),
    (ReqReceived, "ListenId(1v3), which never listened", |s| s.conns[0].listen = Some(ListenId::from_raw(3 << 32 | 1))),
    (ReqReceived, "ListenId(2v1), which never listened", |s| s.conns[0].listen = Some(ListenId::from_raw(1 << 32 | 2))),
    (ReqSent, "have the same communication ID", |s| _ = double(s)),
    (Established, "have the same peer's communication ID", |s| double(s).local_id = 9),
    (Established, "have the same peer's queue pair", |s| {
        let other = double(s);
        (other.local_id, other.remote_id) = (9, Some(9));
    }),
    // The lists.
    (RepSent, "accepted requests: ConnId(1v1)", |s| s.accepted.clear()),
    (RepSent, "accepted requests: ConnId(1v1)", |s| s.accepted.push(s.accepted[0])),
    (RepSent, "accepted requests: ConnId(2v1)", |s| s.accepted.push(ConnId::from_raw(1 << 32 | 2))),
    (ReqReceived, "accepted requests: ConnId(1v1)", |s| s.accepted.push(s.conns[0].id)),
    (Refusing, "refused requests: ConnId(1v1)", |s| s.refused.clear()),
    (Refusing, "refused requests: ConnId(1v1)", |s| s.refused.push(s.refused[0])),
    (Refusing, "refused requests: ConnId(2v1)", |s| s.refused.push(ConnId::from_raw(1 << 32 | 2))),
    (ReqReceived, "refused requests: ConnId(1v1)", |s| s.refused.push(s.conns[0].id)),
    (Refusing, "refused requests: connections is 1, at most 0", |s| s.config.max_pending_per_listener = 0),
    // Numbers of a connection.
    (ReqSent, "flow_label is 1048576, at most 1048575", |s| s.conns[0].peer.path.flow_label = 1 << 20),
    (ReqSent, "priority is 8, at most 7", |s| s.conns[0].peer.path.priority = 8),
    (ReqSent, "ConnId(1v1): max_retries is 16, at most 15", |s| s.conns[0].max_retries = 16),
    (ReqSent, "retries is 16, at most 15", |s| s.conns[0].retries = 16),
    (ReqSent, "response_wait is 137573171201, at most 137573171200", |s| s.conns[0].response_wait = 137_573_171_201),
    (ReqSent, "peer_wait is", |s| s.conns[0].peer_wait = Nanos::MAX),
    (ReqSent, "service_wait is", |s| s.conns[0].service_wait = Nanos::MAX),
    (ReqSent, "mra_after is", |s| s.conns[0].mra_after = Nanos::MAX),
    (Refusing, "refusal_data is 145, at most 144", |s| s.conns[0].refusal_data = vec![1; 145]),
    (Refusing, "holds is 17, at most 16", |s| s.conns[0].holds = 17),
    (ReqSent, "stale is 5, at most 4", |s| s.conns[0].stale = 5),
    (ReqSent, "state_deadline is 18446744073709551615", |s| s.conns[0].state_deadline = Some(Nanos::MAX)),
    (ReqSent, "consumer_deadline is 18446744073709551615", |s| s.conns[0].consumer_deadline = Some(Nanos::MAX)),
    (ReqSent, "our communication ID is 0", |s| s.conns[0].local_id = 0),
    // Requirements of states.
    (ReqSent, "the Passive side is never in state ReqSent", |s| s.conns[0].listen = Some(ListenId::from_raw(1 << 32 | 1))),
    (ReqReceived, "the Active side is never in state ReqReceived", |s| s.conns[0].listen = None),
    (ReqSent, "queue pair is Some(Qpn(0x7)) in state ReqSent", |s| {
        (s.conns[0].remote_id, s.conns[0].remote_qpn) = (Some(7), Some(Qpn::new(7)));
    }),
    (Established, "the peer's queue pair is None in state Established", |s| s.conns[0].remote_qpn = None),
    (DreqSent, "the peer's queue pair is None in state DreqSent", |s| s.conns[0].remote_qpn = None),
    (RepReceived, "the peer's queue pair is None in state RepReceived", |s| s.conns[0].remote_qpn = None),
    (Withdrawn, "the peer's queue pair is None in state Withdrawn", |s| s.conns[0].remote_qpn = None),
    (ReqSent, "the peer's communication ID is Some(7) in state ReqSent", |s| s.conns[0].remote_id = Some(7)),
    (Established, "the peer's communication ID is None in state Established", |s| s.conns[0].remote_id = None),
    (TimeWait, "our queue pair is None in state TimeWait", |s| s.conns[0].local_qpn = None),
    (RepSent, "our queue pair is None in state RepSent", |s| s.conns[0].local_qpn = None),
    (ReqReceived, "our queue pair is Some(Qpn(0x7)) in state ReqReceived", |s| s.conns[0].local_qpn = Some(Qpn::new(7))),
    (ReqSent, "our port is 49152 for service 0x1000000000000042, Active", |s| s.conns[0].local_port = 0xc000),
    (ReqReceived, "our port is 1 for service", |s| {
        (s.conns[0].local_port, s.conns[0].service_id) = (1, rdma_cm::service_id(7));
    }),
    (ReqSent, "the deadline of state ReqSent is None", |s| s.conns[0].state_deadline = None),
    (TimeWait, "the deadline of state TimeWait is None", |s| s.conns[0].state_deadline = None),
    (Established, "the deadline of state Established is Some(1)", |s| s.conns[0].state_deadline = Some(1)),
    (Established, "the consumer's deadline in state Established is 1", |s| s.conns[0].consumer_deadline = Some(1)),
    (Established, "silent true and released false in state Established", |s| s.conns[0].silent = true),
    (TimeWait, "silent false and released true in state TimeWait", |s| s.conns[0].released = true),
    (Closed, "silent true and released true in state Closed", |s| {
        (s.conns[0].silent, s.conns[0].released) = (true, true);
    }),
    // Messages that are repeated.
    (ReqSent, "no message to repeat in state ReqSent", |s| s.conns[0].repeatable = None),
    (RepSent, "no message to repeat in state RepSent", |s| s.conns[0].repeatable = None),
    (Established, "another message to repeat in state Established", |s| s.conns[0].repeatable = Some([0; MAD_BYTES])),
    (ReqSent, "another message to repeat", |s| s.conns[0].repeatable = Some([0; MAD_BYTES])),
    (ReqSent, "another message to repeat", |s| s.conns[0].transaction_id ^= 1),
    (ReqSent, "another message to repeat", |s| {
        // A reserved byte of the header.
        s.conns[0].repeatable.as_mut().expect("a REQ")[5] = 1;
    }),
    (ReqSent, "another message to repeat", |s| {
        rewrite(s, |message| *message = Message::Rtu(wire::RtuRepr { local_comm_id: 1, remote_comm_id: 2 }));
    }),
    (ReqSent, "another message to repeat", |s| rewrite_req(s, |req| req.local_comm_id ^= 1)),
    (ReqSent, "another message to repeat", |s| rewrite_req(s, |req| req.service_id ^= 1)),
    (ReqSent, "another message to repeat", |s| rewrite_req(s, |req| req.local_qpn = Qpn::new(7))),
    (ReqSent, "another message to repeat", |s| rewrite_req(s, |req| req.primary.remote_gid[0] ^= 1)),
    (RepSent, "another message to repeat", |s| rewrite_rep(s, |rep| rep.local_comm_id ^= 1)),
    (RepSent, "another message to repeat", |s| rewrite_rep(s, |rep| rep.remote_comm_id ^= 1)),
    (RepSent, "another message to repeat", |s| rewrite_rep(s, |rep| rep.local_qpn = Qpn::new(7))),
    // Datagrams to send.
    (ReqSent, "number 0 is not a message of ours", |s| s.outbox[0].1[5] = 1),
    (ReqSent, "number 0 is not a message of ours", |s| s.outbox[0].1[1] = 0x81),
    (ReqSent, "the datagrams to send: flow_label", |s| s.outbox[0].0.path.flow_label = 1 << 20),
    (ReqSent, "the datagrams to send: priority", |s| s.outbox[0].0.path.priority = 8),
    // Events.
    (Established, "there is no such connection", |s| {
        s.events.push(CmEvent::Disconnected { conn: ConnId::from_raw(1 << 32 | 9) });
    }),
    (TimeWait, "there is no such connection", |s| {
        (s.conns[0].silent, s.conns[0].released) = (true, true);
        push_event(s, |conn| CmEvent::Disconnected { conn });
    }),
    (TimeWait, "Disconnected of ConnId(1v1): it is there twice", |s| {
        push_event(s, |conn| CmEvent::Disconnected { conn });
        push_event(s, |conn| CmEvent::Disconnected { conn });
    }),
    (Established, "Disconnected of ConnId(1v1): it does not fit state Established", |s| push_event(s, |conn| CmEvent::Disconnected { conn })),
    (Established, "DisconnectDone of ConnId(1v1): it does not fit", |s| push_event(s, |conn| CmEvent::DisconnectDone { conn })),
    (Established, "Established of ConnId(1v1): it does not fit", |s| push_event(s, |conn| CmEvent::Established { conn })),
    (MraSent, "Established of ConnId(1v1): it does not fit", |s| push_event(s, |conn| CmEvent::Established { conn })),
    (TimeWait, "AcceptFailed of ConnId(1v1): it does not fit", |s| push_event(s, |conn| CmEvent::AcceptFailed { conn })),
    (RepSent, "AcceptFailed of ConnId(1v1): it does not fit", |s| push_event(s, |conn| CmEvent::AcceptFailed { conn })),
    (TimeWait, "Unreachable of ConnId(1v1): it does not fit", |s| push_event(s, |conn| CmEvent::Unreachable { conn })),
    (Refusing, "TimedOut of ConnId(1v1): it does not fit", |s| push_event(s, |conn| CmEvent::TimedOut { conn })),
    (Refusing, "Rejected of ConnId(1v1): it does not fit", |s| rejected(s, false, 3, 0)),
    (RepReceived, "Rejected of ConnId(1v1): it does not fit", |s| rejected(s, false, 3, 0)),
    (TimeWait, "private_data is 149, at most 148", |s| rejected(s, true, 28, 149)),
    (TimeWait, "by the consumer: true, reason 3", |s| rejected(s, true, 3, 0)),
    (TimeWait, "by the consumer: false, reason 28", |s| rejected(s, false, 28, 0)),
    (TimeWait, "by the consumer: false, reason 3", |s| rejected(s, false, 3, 1)),
    (Established, "Request of ConnId(1v1): it does not fit", |s| {
        (s.conns[0].listen, s.conns[0].remote_id) = (Some(ListenId::default()), Some(1));
        request(s);
        s.conns[0].listen = None;
    }),
    (ReqReceived, "mtu is 6, at most 5", |s| request(s).mtu = 6),
    (ReqReceived, "ack_timeout is 23, at most 22", |s| request(s).ack_timeout = 23),
    (ReqReceived, "retry_count is 8, at most 7", |s| request(s).retry_count = 8),
    (ReqReceived, "rnr_retry is 8, at most 7", |s| request(s).rnr_retry = 8),
    (ReqReceived, "private_data is 93, at most 92", |s| request(s).private_data = vec![1; 93]),
    (ReqReceived, "request: flow_label is 1048576", |s| request(s).path.flow_label = 1 << 20),
    (ReqReceived, "request: priority is 8", |s| request(s).path.priority = 8),
    (ReqReceived, "not the one of its connection", |s| request(s).mtu = 0),
    (ReqReceived, "not the one of its connection", |s| request(s).ack_timeout = 0),
    (ReqReceived, "not the one of its connection", |s| request(s).listen = ListenId::default()),
    (ReqReceived, "not the one of its connection", |s| request(s).service_id ^= 1),
    (ReqReceived, "not the one of its connection", |s| request(s).remote_qpn = Qpn::new(1)),
    (ReqReceived, "not the one of its connection", |s| request(s).remote_gid[0] ^= 1),
    (ReqReceived, "not the one of its connection", |s| request(s).path.gid[0] ^= 1),
    (ReqReceived, "Reply of ConnId(1v1): it does not fit", |s| _ = reply(s)),
    (RepReceived, "private_data is 197, at most 196", |s| reply(s).private_data = vec![1; 197]),
    (RepReceived, "rnr_retry is 8, at most 7", |s| reply(s).rnr_retry = 8),
    (RepReceived, "ack_timeout is 23, at most 22", |s| reply(s).ack_timeout = 23),
    (RepReceived, "not the one of its connection", |s| reply(s).ack_timeout = 0),
    (RepReceived, "not the one of its connection", |s| reply(s).remote_qpn = Qpn::new(1)),
];

#[test]
fn each_lie_is_refused_by_name() {
    for (number, (state, name, lie)) in LIES.iter().enumerate() {
        let (mut snapshot, now) = parked(*state, 0);
        let limits = Config::default();
        Cm::resume(&snapshot, &limits, now).expect("a snapshot that is true");
        lie(&mut snapshot);
        match Cm::resume(&snapshot, &limits, now) {
            Err(error) if error.to_string().contains(name) => {}
            other => panic!("lie {number} ({name}): {other:?}"),
        }
    }
}

/// A number may be at its limit.
#[test]
fn numbers_at_their_limits_are_taken() {
    let truths: [(State, Change); 8] = [
        (ReqReceived, |s| _ = request(s)),
        (RepReceived, |s| _ = reply(s)),
        (ReqSent, |s| {
            (s.conns[0].max_retries, s.conns[0].retries) = (15, 15);
            s.conns[0].response_wait = 137_573_171_200;
            s.conns[0].consumer_deadline = Some(s.parked_at + 4_294_967_295_000);
            s.conns[0].state_deadline = Some(s.parked_at + 275_146_342_400);
            s.conns[0].stale = 4;
            s.counters.received = 1 << 56;
        }),
        (Refusing, |s| {
            (s.conns[0].refusal_data, s.conns[0].holds) = (vec![1; 144], 16);
        }),
        (ReqSent, |s| s.conns[0].state_deadline = Some(0)),
        (ReqSent, |s| s.config.max_connections = 1),
        (ReqReceived, |s| {
            // The listener has ended.
            s.listeners.clear();
            s.free_listeners.push(ListenId::from_raw(3 << 32 | 1));
        }),
        (TimeWait, |s| rejected(s, true, 28, 148)),
    ];
    for (number, (state, truth)) in truths.iter().enumerate() {
        let (mut snapshot, now) = parked(*state, 0);
        truth(&mut snapshot);
        match Cm::resume(&snapshot, &Config::default(), now) {
            Ok(cm) => assert_eq!(cm.park(now).conns, snapshot.conns),
            Err(error) => panic!("truth {number}: {error}"),
        }
    }
}

/// Changes one thing of a snapshot to something drawn.
fn draw_a_lie(snapshot: &mut CmSnapshot, random: &mut Random) {
    let number = match random.below(4) {
        0 => random.below(4),
        1 => 1 << random.below(64),
        2 => random.next(),
        _ => u64::MAX,
    };
    let id = |number: u64| ConnId::from_raw(1 << 32 | number & 0x3f);
    // CAST: some bits of a drawn number.
    let [.., byte] = number.to_be_bytes();
    let word = u32::try_from(number & 0xffff_ffff).expect("32 bits");
    let other = snapshot.conns.first().cloned();
    let count = snapshot.conns.len().max(1) as u64;
    let drawn = usize::try_from(random.below(count)).expect("small");
    match random.below(40) {
        0 => snapshot.accepted.push(id(number)),
        1 => snapshot.refused.push(id(number)),
        2 => drop(snapshot.accepted.pop()),
        3 => drop(snapshot.refused.pop()),
        4 => snapshot.accepted.reverse(),
        5 => snapshot
            .events
            .push(CmEvent::Disconnected { conn: id(number) }),
        6 => snapshot
            .events
            .push(CmEvent::Established { conn: id(number) }),
        7 => snapshot.events.reverse(),
        8 => snapshot.free_conns.push(id(number)),
        9 => snapshot.free_conns.reverse(),
        10 => snapshot.listeners.clear(),
        11 => snapshot.config.max_connections = usize::try_from(number & 0xff).expect("small"),
        12 => snapshot.config.max_mtu = byte,
        13 => snapshot.config.packet_lifetime = byte,
        14 => snapshot.config.max_pending_per_listener = usize::from(byte),
        15 => snapshot.counters.sent = number,
        16 => snapshot.conns.reverse(),
        17 => snapshot.conns.extend(other),
        draw => {
            let Some(conn) = snapshot.conns.get_mut(drawn) else {
                return;
            };
            let state = usize::try_from(number % State::VARIANTS.len() as u64).expect("small");
            match draw {
                18 => conn.state = State::VARIANTS[state],
                19 => conn.listen = (byte & 1 != 0).then(|| ListenId::from_raw(number)),
                20 => conn.local_id = word,
                21 => conn.remote_id = (byte & 1 != 0).then_some(word),
                22 => conn.remote_qpn = (byte & 1 != 0).then_some(Qpn::masked(word)),
                23 => conn.local_qpn = (byte & 1 != 0).then_some(Qpn::masked(word)),
                24 => conn.remote_ca_guid = number,
                25 => conn.local_port = u16::from(byte),
                26 => conn.transaction_id = number,
                27 => conn.disconnect_transaction_id = number,
                28 => conn.repeatable = None,
                29 => conn.retries = byte,
                30 => conn.max_retries = byte,
                31 => conn.response_wait = number,
                32 => conn.peer_wait = number,
                33 => conn.service_wait = number,
                34 => conn.refusal = u16::from(byte),
                35 => conn.refusal_data = vec![byte; usize::from(byte)],
                36 => (conn.holds, conn.stale) = (byte, byte),
                37 => (conn.silent, conn.released) = (byte & 1 != 0, byte & 2 != 0),
                38 => conn.state_deadline = (byte & 1 != 0).then_some(number),
                _ => conn.consumer_deadline = (byte & 1 != 0).then_some(number),
            }
        }
    }
}

/// Uses a connection manager in every way.
fn exercise(cm: &mut Cm, now: Nanos, datagrams: &[Mad], random: &mut Random) {
    let mut now = now;
    let conns: Vec<ConnId> = cm.conns.iter().map(|(id, _)| id).collect();
    for conn in conns {
        let mad = &datagrams[usize::try_from(random.below(datagrams.len() as u64)).expect("few")];
        let end = if random.below(2) == 0 { A } else { B };
        cm.handle_mad(now, &end.address(), mad, random.next());
        match random.below(9) {
            0 => _ = cm.accept(now, conn, accept_params()),
            1 => _ = cm.reject_with(now, conn, RejectReason::Consumer, b"no"),
            2 => _ = cm.ready(now, conn),
            3 => _ = cm.disconnect(now, conn),
            4 => cm.abort(now, conn),
            5 => cm.release(now, conn),
            6 => cm.unreachable(now, B.gid()),
            7 => cm.port_came_up(now),
            _ => _ = cm.communication_established(now, conn),
        }
    }
    for _ in 0..2_000 {
        while cm.poll_event().is_some() || cm.poll_transmit().is_some() {}
        let Some(at) = cm.next_timeout() else { return };
        now = now.max(at);
        cm.handle_timeout(now);
    }
    panic!("it never ends: {cm:?}");
}

/// A changed snapshot that is accepted does no harm: nothing panics, all waits end, and it can be parked again.
#[test]
fn drawn_lies_are_refused_or_do_no_harm() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 1..200_u64 {
        let mut random = Random(seed.wrapping_mul(0x0123_4567_89ab_cdef) | 1);
        let mut pair = Pair::listening();
        pair.faults.lose = 30;
        for number in 0..6 {
            pair.connect(ConnectParams {
                qpn: Qpn::new(0x100 + number),
                random: random.next(),
                ..connect_params()
            });
            pair.run_for(random.below(2 * SECOND));
            for event in pair.take(B) {
                let (now, conn) = (pair.now, event.conn());
                if random.below(3) > 0 {
                    _ = pair.b.accept(now, conn, accept_params());
                }
            }
            for event in pair.take(A) {
                _ = pair.a.ready(pair.now, event.conn());
            }
        }
        let datagrams: Vec<Mad> = pair.sent.iter().map(|(_, one)| one.to_mad(3)).collect();
        let now = pair.now;
        for end in [A, B] {
            for _ in 0..20 {
                let mut snapshot = pair.cm(end).park(now);
                for _ in 0..=random.below(3) {
                    draw_a_lie(&mut snapshot, &mut random);
                }
                match Cm::resume(&snapshot, &Config::default(), now) {
                    Ok(mut cm) => {
                        taken += 1;
                        cm = resumed(&cm, now);
                        exercise(&mut cm, now, &datagrams, &mut random);
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(
        taken > 500 && refused > 500,
        "{taken} taken, {refused} refused"
    );
}
