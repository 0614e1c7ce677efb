//! Hostile bytes against the connection manager and its messages. [`neighbours`](super::neighbours) does the same for
//! ARP and neighbour discovery.
//!
//! As tests, these harnesses replay their corpora and run random inputs; `cargo bolero test` runs them with a fuzzing
//! engine.

use crate::honest::Longest;
use bolero::{TypeGenerator, check};
use dat_core::cm::wire::{MAD_BYTES, Mad, Message};
use dat_core::cm::{
    AcceptParams, Cm, CmEvent, Config, ConnId, ConnectParams, RejectReason, rdma_cm,
};
use dat_core::provider::{MadAddress, Nanos, Path, Psn, Qpn};

const SERVICE: u64 = 0x1000_0000_0000_0042;
const PORT: u16 = 4420;
const GUIDS: [u64; 2] = [0xaaaa_0000_0000_0001, 0xbbbb_0000_0000_0002];

/// Returns a datagram that begins with these bytes and is zero after them.
fn padded(bytes: &[u8]) -> Mad {
    let mut mad = [0; MAD_BYTES];
    for (to, from) in mad.iter_mut().zip(bytes) {
        *to = *from;
    }
    mad
}

/// Returns a datagram of these bytes with the header of a connection management message. Without this header few
/// inputs would pass the first check.
fn of_our_class(bytes: &[u8]) -> Mad {
    let mut mad = padded(bytes);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16] = 0;
    mad[17] = 0x10 + mad[17] % 8;
    mad
}

fn path(last: u8) -> Path {
    Path {
        source_gid_index: 0,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last],
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        priority: 0,
    }
}

fn address(last: u8) -> MadAddress {
    MadAddress {
        path: path(last),
        qpn: Qpn::GSI,
    }
}

fn connect_params(service_id: u64, qpn: u32, random: u64) -> ConnectParams<'static> {
    ConnectParams {
        service_id,
        source: path(1).gid,
        path: path(2),
        qpn: Qpn::new(qpn),
        psn: Psn::masked(7),
        reads_out: 1,
        reads_in: 1,
        mtu: 3,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 14,
        private_data: b"data",
        timeout: Some(30_000_000_000),
        srq: false,
        random,
    }
}

fn accept_params(qpn: u32) -> AcceptParams<'static> {
    AcceptParams {
        qpn: Qpn::new(qpn),
        psn: Psn::masked(9),
        reads_out: 1,
        reads_in: 1,
        rnr_retry: 7,
        srq: false,
        private_data: b"yes",
    }
}

/// A message that was parsed can be emitted and parsed again without a change.
#[test]
fn parsed_messages_survive_being_emitted() {
    check!().for_each(|bytes: &[u8]| {
        let Ok((transaction_id, message)) = Message::parse(&of_our_class(bytes)) else {
            return;
        };
        let mut mad = [0xa5; MAD_BYTES];
        message.emit(transaction_id, &mut mad);
        assert_eq!(Message::parse(&mad), Ok((transaction_id, message)));
    });
}

/// Arbitrary bytes are parsed or refused, without a panic.
#[test]
fn arbitrary_bytes_are_parsed_without_panic() {
    check!().for_each(|bytes: &[u8]| drop(Message::parse(&padded(bytes))));
}

/// An event at one of the two connection managers.
#[derive(Clone, Debug, TypeGenerator)]
enum Action {
    /// One connection manager sends a request to the other.
    Connect {
        at_a: bool,
        rdma_cm: bool,
        qpn: u8,
        random: u64,
    },
    /// The consumer makes a call on one of its connections.
    Answer { at_a: bool, how: u8, which: u8 },
    /// A datagram on the wire arrives.
    Deliver { which: u8 },
    /// A datagram on the wire arrives, and stays on the wire to arrive again.
    Repeat { which: u8 },
    /// A datagram on the wire is lost.
    Lose { which: u8 },
    /// A datagram on the wire arrives with some bytes changed.
    Corrupt { which: u8, changes: Vec<(u8, u8)> },
    /// A forged datagram arrives.
    Forge { at_a: bool, bytes: Vec<u8> },
    /// Virtual time passes.
    Wait { milliseconds: u16 },
}

/// Number of turns until an honest client and its server are connected. In the first turn the request and the reply
/// travel, in the second the client's RTU.
const MOST_TURNS: u64 = 2;
/// Number of turns after which the test fails if an honest client has no connection. Each turn from the second on has
/// time for a retransmission.
const PATIENCE: u64 = 16;
static BESIDE: Longest = Longest::new("connection managers of any history", "turns", MOST_TURNS);

struct World {
    cms: [Cm; 2],
    now: Nanos,
    /// Datagrams on the wire, each with the index of its receiver.
    wire: Vec<(usize, Mad)>,
    names: [Vec<ConnId>; 2],
    qpn: u32,
}

impl World {
    fn new() -> Self {
        let cms = GUIDS.map(|local_ca_guid| {
            let mut cm = Cm::new(Config {
                local_ca_guid,
                max_connections: 64,
                ..Config::default()
            });
            cm.listen(SERVICE).expect("nobody listens yet");
            cm.listen(rdma_cm::service_id(PORT))
                .expect("nobody listens yet");
            cm
        });
        Self {
            cms,
            now: 0,
            wire: Vec::new(),
            names: [Vec::new(), Vec::new()],
            qpn: 0x100,
        }
    }

    fn drain(&mut self) {
        for (end, cm) in self.cms.iter_mut().enumerate() {
            while let Some((_, mad)) = cm.poll_transmit() {
                assert!(Message::parse(&mad).is_ok(), "we send what we can read");
                self.wire.push((1 - end, mad));
            }
            while let Some(event) = cm.poll_event() {
                assert!(
                    cm.state(event.conn()).is_some(),
                    "{event:?} is about a forgotten connection"
                );
                if let CmEvent::Request { conn, .. } = event {
                    self.names[end].push(conn);
                }
            }
            assert!(cm.connections() <= 64);
        }
        self.wire.truncate(256);
    }

    fn pick(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.wire.len())
    }

    fn receive(&mut self, end: usize, mad: &Mad) {
        let from = address(if end == 0 { 2 } else { 1 });
        self.cms[end].handle_mad(self.now, &from, mad, self.now ^ 0x5555_aaaa_1234_4321);
    }

    fn answer(&mut self, end: usize, how: u8, which: u8) {
        let Some(index) = usize::from(which).checked_rem(self.names[end].len()) else {
            return;
        };
        let (conn, now, cm) = (self.names[end][index], self.now, &mut self.cms[end]);
        self.qpn += 1;
        // The call may be refused; it must not do any harm.
        match how % 7 {
            0 => drop(cm.accept(now, conn, accept_params(self.qpn))),
            1 => drop(cm.reject(now, conn, RejectReason::Consumer)),
            2 => drop(cm.ready(now, conn)),
            3 => drop(cm.disconnect(now, conn)),
            4 => drop(cm.communication_established(now, conn)),
            5 => cm.abort(now, conn),
            _ => {
                cm.release(now, conn);
                self.names[end].swap_remove(index);
            }
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Connect {
                at_a,
                rdma_cm,
                qpn,
                random,
            } => {
                let end = usize::from(!at_a);
                let service = if *rdma_cm {
                    rdma_cm::service_id(PORT)
                } else {
                    SERVICE
                };
                let mut params = connect_params(service, u32::from(*qpn), *random);
                if end == 1 {
                    (params.source, params.path) = (path(2).gid, path(1));
                }
                self.names[end].extend(self.cms[end].connect(self.now, params));
            }
            Action::Answer { at_a, how, which } => self.answer(usize::from(!at_a), *how, *which),
            Action::Deliver { which } => {
                if let Some(index) = self.pick(*which) {
                    let (end, mad) = self.wire.remove(index);
                    self.receive(end, &mad);
                }
            }
            Action::Repeat { which } => {
                if let Some(index) = self.pick(*which) {
                    let (end, mad) = self.wire[index];
                    self.receive(end, &mad);
                }
            }
            Action::Lose { which } => {
                if let Some(index) = self.pick(*which) {
                    self.wire.remove(index);
                }
            }
            Action::Corrupt { which, changes } => {
                if let Some(index) = self.pick(*which) {
                    let (end, mut mad) = self.wire.remove(index);
                    for &(at, bits) in changes {
                        mad[usize::from(at)] ^= bits;
                    }
                    self.receive(end, &mad);
                }
            }
            Action::Forge { at_a, bytes } => self.receive(usize::from(!at_a), &of_our_class(bytes)),
            Action::Wait { milliseconds } => {
                self.now += Nanos::from(*milliseconds) * 1_000_000;
                for cm in &mut self.cms {
                    cm.handle_timeout(self.now);
                    assert!(cm.next_timeout().is_none_or(|at| at > self.now));
                }
            }
        }
        self.drain();
    }

    /// Connects an honest client, which has an address and a wire of its own, to one of the two connection managers.
    /// The manager's program accepts the request at once.
    fn honest(&mut self, end: usize) {
        let (now, server, random) = (self.now, &mut self.cms[end], self.now ^ 0x0e57);
        let mut client = Cm::new(Config {
            local_ca_guid: 0xcccc_0000_0000_0003,
            ..Config::default()
        });
        self.qpn += 1;
        let at = address(if end == 0 { 1 } else { 2 });
        let params = ConnectParams {
            source: path(3).gid,
            path: at.path,
            ..connect_params(SERVICE, self.qpn, random ^ u64::from(self.qpn))
        };
        client.connect(now, params).expect("sound parameters");
        let mut established = None;
        // The last two turns are for the disconnect.
        for turn in 1..=MOST_TURNS + 2 {
            while let Some((_, mad)) = client.poll_transmit() {
                server.handle_mad(now, &address(3), &mad, random);
            }
            while let Some(event) = server.poll_event() {
                match event {
                    CmEvent::Request { conn, .. } => {
                        let accepted = server.accept(now, conn, accept_params(self.qpn));
                        accepted.expect("a new request");
                    }
                    CmEvent::Established { conn } => {
                        established = Some(turn);
                        server.release(now, conn);
                    }
                    CmEvent::Reply { .. }
                    | CmEvent::Rejected { .. }
                    | CmEvent::AcceptFailed { .. }
                    | CmEvent::Unreachable { .. }
                    | CmEvent::TimedOut { .. }
                    | CmEvent::Disconnected { .. }
                    | CmEvent::DisconnectDone { .. } => panic!("of an honest client: {event:?}"),
                }
            }
            while let Some((to, mad)) = server.poll_transmit() {
                assert_eq!(to.path.gid, path(3).gid);
                client.handle_mad(now, &at, &mad, random);
            }
            while let Some(event) = client.poll_event() {
                if let CmEvent::Reply { conn, .. } = event {
                    client.ready(now, conn).expect("a reply");
                }
            }
        }
        BESIDE.took(established.expect("the honest client has its connection"));
    }

    /// Frees all connections and cuts the wire. All remaining state must end by timeouts alone.
    fn end(mut self) {
        for (cm, names) in self.cms.iter_mut().zip(&self.names) {
            for &conn in names {
                cm.release(self.now, conn);
            }
            for _ in 0..10_000 {
                let Some(at) = cm.next_timeout() else { break };
                cm.handle_timeout(at);
            }
            assert_eq!(cm.next_timeout(), None);
            assert_eq!(cm.connections(), 0, "{cm:?}");
        }
    }
}

/// Two connection managers with arbitrary consumers over an arbitrary wire do not panic, keep their memory bounded and
/// connect an honest client within `MOST_TURNS` turns. In the end no connection is left.
#[test]
fn connection_managers_survive_any_history() {
    check!().with_type::<Vec<Action>>().for_each(|actions| {
        let mut world = World::new();
        for (number, action) in actions.iter().enumerate() {
            world.act(action);
            if number % 8 == 0 {
                world.honest(number / 8 % 2);
            }
        }
        world.end();
    });
    BESIDE.report();
}

/// A connection manager that is sending a request survives any datagrams.
#[test]
fn connection_manager_survives_arbitrary_datagrams() {
    check!()
        .with_type::<(u64, Vec<Vec<u8>>)>()
        .for_each(|(random, datagrams)| {
            let mut cm = Cm::new(Config {
                local_ca_guid: GUIDS[0],
                max_connections: 64,
                ..Config::default()
            });
            cm.listen(SERVICE).expect("nobody listens yet");
            cm.connect(0, connect_params(SERVICE, 1, *random))
                .expect("sound parameters");
            for bytes in datagrams {
                cm.handle_mad(0, &address(2), &of_our_class(bytes), *random);
                while cm.poll_transmit().is_some() {}
                while let Some(event) = cm.poll_event() {
                    if let CmEvent::Request { conn, .. } = event {
                        cm.accept(0, conn, accept_params(2))
                            .expect("a new request can be accepted");
                    }
                }
                assert!(cm.connections() <= 64);
            }
        });
}

/// Returns a well-formed connection request from the address with this last byte.
fn request_from(last: u8, random: u64) -> Mad {
    let mut cm = Cm::new(Config {
        local_ca_guid: u64::from(last),
        ..Config::default()
    });
    let params = ConnectParams {
        source: path(last).gid,
        ..connect_params(SERVICE, u32::from(last), random)
    };
    cm.connect(0, params).expect("sound parameters");
    cm.poll_transmit().expect("a REQ").1
}

/// A server that accepts every request gets any traffic from many addresses. An honest client connects after one round
/// trip each time, and the server's memory stays bounded.
#[test]
fn an_honest_client_connects_in_one_round_trip_whatever_strangers_send() {
    static BESIDE: Longest =
        Longest::new("requests and datagrams of strangers", "turns", MOST_TURNS);
    check!()
        .with_type::<(u64, Vec<(u8, u64, Vec<u8>)>)>()
        .for_each(|(random, strangers)| {
            let mut server = Cm::new(Config {
                local_ca_guid: GUIDS[1],
                max_pending_per_peer: 64,
                max_pending_per_listener: 64,
                ..Config::default()
            });
            server.listen(SERVICE).expect("nobody listens yet");
            let mut client = Cm::new(Config {
                local_ca_guid: GUIDS[0],
                ..Config::default()
            });
            let (mut now, mut qpn, mut held) = (0, 0x100, 0_usize);
            // 32 datagrams are too few to replace all 64 pending requests of the listener within a round trip.
            for sent in strangers.chunks(32) {
                client
                    .connect(now, connect_params(SERVICE, qpn, random ^ u64::from(qpn)))
                    .expect("sound parameters");
                let (before, after) = sent.split_at(sent.len() / 2);
                // In each turn the strangers' datagrams arrive before the client's.
                let parts = [before, after]
                    .into_iter()
                    .chain(std::iter::repeat(&[][..]));
                let established = (1..=PATIENCE).zip(parts).find_map(|(turn, part)| {
                    for (last, number, bytes) in part {
                        let last = 3 + last % 250;
                        let mad = if bytes.is_empty() {
                            request_from(last, *number)
                        } else {
                            of_our_class(bytes)
                        };
                        server.handle_mad(now, &address(last), &mad, *number);
                    }
                    while let Some((_, mad)) = client.poll_transmit() {
                        server.handle_mad(now, &address(1), &mad, random ^ now);
                    }
                    let mut is_established = false;
                    while let Some(event) = server.poll_event() {
                        match event {
                            CmEvent::Request { conn, .. } => {
                                (qpn, held) = (qpn + 1, held + 1);
                                let accepted = server.accept(now, conn, accept_params(qpn));
                                accepted.expect("a new request");
                            }
                            CmEvent::AcceptFailed { conn } => {
                                held -= 1;
                                server.release(now, conn);
                            }
                            CmEvent::Established { conn } => {
                                (held, is_established) = (held - 1, true);
                                server.release(now, conn);
                            }
                            CmEvent::Reply { .. }
                            | CmEvent::Rejected { .. }
                            | CmEvent::Unreachable { .. }
                            | CmEvent::TimedOut { .. }
                            | CmEvent::Disconnected { .. }
                            | CmEvent::DisconnectDone { .. } => {}
                        }
                    }
                    while let Some((to, mad)) = server.poll_transmit() {
                        if to.path.gid == path(1).gid {
                            client.handle_mad(now, &address(2), &mad, *random);
                        }
                    }
                    while let Some(event) = client.poll_event() {
                        let CmEvent::Reply { conn, .. } = event else {
                            continue;
                        };
                        client.ready(now, conn).expect("a reply");
                    }
                    if is_established {
                        return Some(turn);
                    }
                    if turn >= MOST_TURNS {
                        // Enough time passes for a retransmission.
                        now += 1_000_000_000;
                        server.handle_timeout(now);
                        client.handle_timeout(now);
                    }
                    None
                });
                BESIDE.took(established.expect("the honest client has its connection"));
                assert!(held <= 64 + 32, "{held} endpoints");
                now += 1_000_000;
                server.handle_timeout(now);
                client.handle_timeout(now);
            }
        });
    BESIDE.report();
}
