//! Hostile frames on the wire.
//!
//! A function with well-behaved software has a connected queue pair and a datagram queue pair. Forged frames arrive:
//! packets with the addresses, numbers and ICRC of the connection and other fields arbitrary, or arbitrary bytes. The
//! simulator must not report any frame as a bug of the function's driver. No frame changes memory that no key covers.
//! The firmware keeps running. The function's second connection still delivers messages within `MOST_US`.

use crate::extent;
use crate::honest::Longest;
use crate::live::{
    ATTACKED, GSI_Q_KEY, HEALTHY, Live, MOST_US, RECEIVES, Spoil, World, data_segment, gid, mac,
    send,
};
use bolero::{TypeGenerator, check, produce};
use hw_sim::wire::{
    AckSyndrome, AethRepr, AtomicAckEthRepr, AtomicEthRepr, BthRepr, DEFAULT_PKEY, DethRepr,
    EthRepr, GrhRepr, Headers, Ipv4Repr, Ipv6Repr, NakCode, Network, Opcode, Operation, Packet,
    Psn, Qpn, RethRepr, Transport, UdpRepr, Vlan, icrc,
};
use mlx_prm::*;
use std::collections::HashSet;

/// Path MTU of the connections.
const MTU: usize = 256;

/// The key in a forged request.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Key {
    Attacked,
    Healthy,
    Variant(u8),
    Any(u32),
}

/// The payload length of a forged packet.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Length {
    Empty,
    Mtu,
    Datagram,
    Any(u16),
}

/// A forged packet.
#[derive(Clone, Debug, TypeGenerator)]
struct Forgery {
    opcode: u8,
    /// Difference from the expected PSN.
    psn: i8,
    spoil_psn: Spoil,
    length: Length,
    key: Key,
    /// Offset into the page of the key. `bytes` is the length in the RETH.
    at: u16,
    bytes: u32,
    big: bool,
    syndrome: u8,
    msn: u32,
    words: (u64, u64),
    flags: u8,
    /// Destination queue pair: that of the connection, QP 1, or another.
    destination: u8,
    q_key: Spoil,
    network: u8,
    /// Bits to flip before the ICRC is computed, so that the ICRC is right.
    transport: Spoil,
    /// Bits to flip after the ICRC is computed, so that the ICRC is wrong.
    frame: Spoil,
}

/// One event of the test.
#[derive(Clone, Debug, TypeGenerator)]
enum Event {
    Forge(Forgery),
    /// The last packet arrives again.
    Repeat,
    /// The function itself posts a send, RDMA Write, RDMA Read or atomic operation.
    Own {
        kind: u8,
        bytes: u16,
    },
    /// The connection's real peer sends a message.
    Peer {
        bytes: u16,
    },
    /// The function posts a receive.
    Receive {
        bytes: u16,
        datagram: bool,
    },
    Wait {
        microseconds: u8,
    },
    /// The attacked queue pair and its peer are reset and connected again.
    Reconnect,
}

fn context(world: &mut World) -> Qpc {
    let mut query = QueryQpIn::new();
    query.set_qpn(world.a.qps[ATTACKED].qpn);
    world.a.bench.exec(&query).unwrap().qpc().clone()
}

/// The memory that a forged request addresses.
struct Target {
    va: u64,
    key: u32,
}

impl Forgery {
    fn opcode(&self) -> Opcode {
        let all = || (0..=u8::MAX).filter_map(Opcode::from_bits);
        let of = |transport| all().filter(move |opcode| opcode.transport() == transport);
        // Mostly an opcode of the connection's transport. 60 opcodes are defined.
        let (choice, number): (Vec<Opcode>, _) = match self.opcode {
            0..160 => (of(Transport::Rc).collect(), self.opcode),
            160..220 => (all().collect(), self.opcode - 160),
            220.. => (of(Transport::Ud).collect(), self.opcode),
        };
        choice[usize::from(number) % choice.len()]
    }

    /// Returns a datagram of 40 bytes to QP 1, with nothing wrong in it.
    const fn datagram() -> Self {
        Self {
            opcode: 220,
            psn: 0,
            spoil_psn: Spoil::NONE,
            length: Length::Datagram,
            key: Key::Attacked,
            at: 0,
            bytes: 0,
            big: false,
            syndrome: 0,
            msn: 0,
            words: (0, 0),
            flags: 2,
            destination: 0,
            q_key: Spoil::NONE,
            network: 1,
            transport: Spoil::NONE,
            frame: Spoil::NONE,
        }
    }

    fn network(&self) -> Network {
        let udp = UdpRepr {
            src_port: 0xc001,
            payload_len: 0,
        };
        match self.network {
            0..192 => {
                let ip = Ipv6Repr {
                    src: gid(2),
                    dst: gid(1),
                    traffic_class: 0,
                    flow_label: 0,
                    hop_limit: 64,
                    payload_len: 0,
                };
                Network::Ipv6(ip, udp)
            }
            192..224 => {
                let (src, dst) = ([10, 0, 0, 2], [10, 0, 0, 1]);
                Network::Ipv4(
                    Ipv4Repr {
                        src,
                        dst,
                        tos: 0,
                        ident: 0,
                        dont_fragment: true,
                        ttl: 1,
                        payload_len: 0,
                    },
                    udp,
                )
            }
            224.. => {
                let (src, dst) = (gid(2), gid(1));
                Network::Grh(GrhRepr {
                    src,
                    dst,
                    traffic_class: 0,
                    flow_label: 0,
                    hop_limit: 1,
                    payload_len: 0,
                })
            }
        }
    }

    fn headers(&self, opcode: Opcode, target: &Target) -> Headers {
        let rkey = match self.key {
            Key::Attacked | Key::Healthy => target.key,
            Key::Variant(variant) => target.key & !0xff | u32::from(variant),
            Key::Any(key) => key,
        };
        let va = target.va.wrapping_add(u64::from(self.at % 5_000));
        let length = if self.big {
            self.bytes
        } else {
            self.bytes % 2_048
        };
        let operation = opcode.operation();
        let syndrome = match self.syndrome {
            0..128 => AckSyndrome::ACK,
            128..160 => AckSyndrome::Rnr(self.syndrome & 31),
            160..200 => AckSyndrome::Nak(NakCode::Sequence),
            200..220 => AckSyndrome::Nak(NakCode::RemoteAccess),
            220..240 => AckSyndrome::Nak(NakCode::RemoteOperational),
            240.. => AckSyndrome::Nak(NakCode::InvalidRd),
        };
        let mut q_key = GSI_Q_KEY.to_be_bytes();
        self.q_key.apply(&mut q_key);
        let xrc_request = opcode.transport() == Transport::Xrc && !operation.is_response();
        Headers {
            xrc_srq: xrc_request.then_some(self.msn & 0xff_ffff),
            deth: (opcode.transport() == Transport::Ud).then(|| DethRepr {
                qkey: u32::from_be_bytes(q_key),
                src_qpn: Qpn::GSI,
            }),
            reth: operation
                .has_reth()
                .then_some(RethRepr { va, rkey, length }),
            atomic: operation.has_atomic().then_some(AtomicEthRepr {
                va: va & !7,
                rkey,
                swap_add: self.words.0,
                compare: self.words.1,
            }),
            aeth: operation.has_aeth().then_some(AethRepr {
                syndrome,
                msn: self.msn & 0xff_ffff,
            }),
            atomic_ack: (operation == Operation::AtomicAcknowledge).then_some(AtomicAckEthRepr {
                original: self.words.0,
            }),
            immediate: operation.has_immediate().then_some([1, 2, 3, 4]),
            invalidate: operation.has_invalidate().then_some(rkey),
        }
    }

    fn frame(&self, world: &mut World, gsi: &Live) -> Vec<u8> {
        let opcode = self.opcode();
        let context = context(world);
        let right = if opcode.operation().is_response() {
            context.last_acked_psn()
        } else {
            context.next_rcv_psn()
        };
        let off = if self.spoil_psn.any() {
            i32::from(self.psn)
        } else {
            i32::from(self.psn) >> 6
        };
        let datagram = opcode.transport() == Transport::Ud;
        let dest_qpn = match (self.destination, datagram) {
            (0..240, false) => world.a.qps[ATTACKED].qpn,
            (0..240, true) => 1,
            (240..248, _) => gsi.qpn,
            (248.., _) => 0xf0_0000 + u32::from(self.psn.unsigned_abs()),
        };
        let length = match self.length {
            Length::Empty => 0,
            Length::Mtu => MTU,
            Length::Datagram => 40,
            Length::Any(bytes) => usize::from(bytes) % 1_500,
        };
        let payload = vec![0x99; length];
        let live = &world.a.qps[if matches!(self.key, Key::Healthy) {
            HEALTHY
        } else {
            ATTACKED
        }];
        let target = Target {
            va: live.va,
            key: live.key,
        };
        let flag = |bit: u8| self.flags >> bit & 1 == 1;
        let vlan = self
            .network
            .is_multiple_of(16)
            .then_some(Vlan { id: 5, priority: 1 });
        let packet = Packet {
            link: EthRepr {
                dst: mac(1),
                src: mac(2),
                vlan,
                ethertype: 0,
            }
            .into(),
            network: self.network(),
            bth: BthRepr {
                solicited: flag(0),
                migrated: flag(1),
                pkey: if self.flags >= 240 {
                    // A P_Key with limited membership.
                    0x7fff
                } else {
                    DEFAULT_PKEY
                },
                fecn: flag(2),
                becn: flag(3),
                ack_request: flag(4),
                ..BthRepr::new(
                    opcode,
                    Qpn::new(dest_qpn),
                    Psn::masked(right.wrapping_add_signed(off)),
                )
            },
            headers: self.headers(opcode, &target),
            payload: &payload,
        };
        let mut frame = packet.emit();
        if self.transport.any() {
            let encapsulation = match packet.network {
                Network::Ipv4(..) => icrc::Encapsulation::Ipv4Udp,
                Network::Ipv6(..) => icrc::Encapsulation::Ipv6Udp,
                Network::Local | Network::Grh(_) => icrc::Encapsulation::Grh,
            };
            let start = if vlan.is_some() { 18 } else { 14 };
            let end = frame.len() - icrc::BYTES;
            let sound = frame.clone();
            self.transport.apply(&mut frame[start..end]);
            // A changed packet that reaches the healthy queue pair would affect it, so the unchanged frame is used.
            let healthy = world.a.qps[HEALTHY].qpn;
            if Packet::parse_ignoring_icrc(&frame)
                .is_ok_and(|packet| packet.dest_qpn().get() == healthy)
            {
                frame = sound;
            }
            if let Some(crc) = icrc::compute(encapsulation, &frame[start..end]) {
                frame[end..].copy_from_slice(&crc);
            }
        }
        if self.flags == 0 {
            self.frame.apply(&mut frame[6..]);
        }
        frame
    }
}

/// Returns a valid request that the function itself posts.
fn own(world: &World, kind: u8, bytes: u16) -> Vec<u8> {
    let (live, peer) = (&world.a.qps[ATTACKED], &world.b.qps[ATTACKED]);
    let bytes = u32::from(bytes % 1_024).max(1);
    let mut raddr = RaddrSeg::new();
    raddr.set_rkey(peer.key).set_raddr(peer.va);
    let mut wqe = send(live, bytes);
    let opcode = match kind % 4 {
        0 => return wqe,
        1 => WqeOpcode::RDMA_WRITE,
        2 => WqeOpcode::RDMA_READ,
        _ => WqeOpcode::ATOMIC_FA,
    };
    wqe[3] = opcode.0;
    wqe.splice(16..16, raddr.as_array().iter().copied());
    wqe[7] = 3;
    if opcode == WqeOpcode::ATOMIC_FA {
        wqe.splice(32..32, [0; 16]);
        wqe[48..52].copy_from_slice(&8_u32.to_be_bytes());
        wqe[7] = 4;
    }
    wqe
}

fn post_receive(world: &mut World, gsi: &mut Live, bytes: u16, datagram: bool) {
    let live = if datagram {
        &*gsi
    } else {
        &world.a.qps[ATTACKED]
    };
    let mut entry = data_segment(live.key, live.va, u32::from(bytes % 5_000).max(1));
    entry.extend(data_segment(0x100, 0, 0));
    if datagram {
        entry.resize(64, 0);
        let at = gsi.ring + usize::from(gsi.receives) % RECEIVES as usize * 64;
        world.a.bench.memory.write_bytes(at, &entry);
        gsi.receives = gsi.receives.wrapping_add(1);
        world
            .a
            .bench
            .memory
            .store_be32(gsi.record, u32::from(gsi.receives));
    } else {
        world.a.post_receive(ATTACKED, &entry);
    }
}

/// Well-behaved software: it never posts more receives than the ring holds, and it polls completions.
struct WellBehaved {
    receives: [u32; 2],
    sends: u32,
}

impl WellBehaved {
    fn act(&mut self, world: &mut World, gsi: &mut Live, last: &mut Vec<u8>, event: &Event) {
        match event {
            Event::Forge(forgery) => {
                *last = forgery.frame(world, gsi);
                world.sim.deliver(&world.a.bench.function, last);
            }
            Event::Repeat => world.sim.deliver(&world.a.bench.function, last),
            Event::Own { kind, bytes } => {
                if self.sends < 24 {
                    self.sends += 1;
                    let wqe = own(world, *kind, *bytes);
                    world.a.place(ATTACKED, &wqe);
                    world.a.ring(*wqe.first_chunk().unwrap());
                }
            }
            Event::Peer { bytes } => {
                let wqe = send(&world.b.qps[ATTACKED], u32::from(bytes % 1_024).max(1));
                world.b.place(ATTACKED, &wqe);
                world.b.ring(*wqe.first_chunk().unwrap());
            }
            Event::Receive { bytes, datagram } => {
                let posted = &mut self.receives[usize::from(*datagram)];
                if *posted < RECEIVES {
                    *posted += 1;
                    post_receive(world, gsi, *bytes, *datagram);
                }
            }
            Event::Wait { microseconds } => world.run(u64::from(*microseconds)),
            Event::Reconnect => {
                world.reconnect();
                self.sends = 0;
                self.receives[0] = 0;
            }
        }
        world.run(1);
        while world.a.poll(ATTACKED).is_some() {}
        while world.b.poll(ATTACKED).is_some() {}
    }
}

/// Forged packets of a connection break at most that connection.
#[test]
fn forged_packets_hurt_at_most_their_connection() {
    static BESIDE: Longest = Longest::new("forged packets", "us", MOST_US);
    let (iterations, time) = extent(3_000, 5);
    check!()
        .with_generator(produce::<Vec<Event>>().with().len(0..80_usize))
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|events| {
            let mut world = World::new();
            let mut gsi = world.a.create_gsi();
            let mut manners = WellBehaved {
                receives: [0; 2],
                sends: 0,
            };
            let mut last = Vec::new();
            for (number, event) in events.iter().enumerate() {
                manners.act(&mut world, &mut gsi, &mut last, event);
                if number % 4 == 0 {
                    world.check_healthy(&BESIDE);
                }
            }
            world.run(2_000);
            let report = world.sim.report(&world.a.bench.function);
            assert_eq!(report.driver_bugs, [] as [String; 0]);
            assert!(report.dma_faults.is_empty(), "{:?}", report.dma_faults);
            assert_eq!(
                (world.a.syndrome(), world.b.syndrome()),
                (0, 0),
                "the firmware died"
            );
            world.a.check_canaries();
            world.b.check_canaries();
            world.check_healthy(&BESIDE);
            world.check_reset();
        });
    BESIDE.report();
}

/// The packets that the harness forges have every opcode.
#[test]
fn every_opcode_is_forged() {
    let forged: HashSet<Opcode> = (0..=u8::MAX)
        .map(|opcode| {
            let forgery = Forgery {
                opcode,
                ..Forgery::datagram()
            };
            forgery.opcode()
        })
        .collect();
    let defined = (0..=u8::MAX).filter_map(Opcode::from_bits).collect();
    assert_eq!(forged, defined);
}

/// A forged datagram with no flipped bits arrives at QP 1.
#[test]
fn forged_datagram_is_received() {
    let mut world = World::new();
    let mut gsi = world.a.create_gsi();
    post_receive(&mut world, &mut gsi, 4_095, true);
    let frame = Forgery::datagram().frame(&mut world, &gsi);
    world.sim.deliver(&world.a.bench.function, &frame);
    world.run(1);
    let cqe: Cqe64 = world.a.bench.memory.read_obj(gsi.cq.at);
    assert_eq!(
        (cqe.op_own() >> 4, cqe.byte_cnt()),
        (2, 40 + 40),
        "a SEND of 40 bytes after a GRH: {cqe:?}"
    );
}

/// Frames of arbitrary bytes, with or without the function's MAC address, do not affect the healthy connection and are
/// not reported as a bug of the driver.
#[test]
fn frames_of_any_bytes_are_dropped_or_served() {
    static BESIDE: Longest = Longest::new("frames of any bytes", "us", MOST_US);
    let (iterations, time) = extent(2_000, 2);
    check!()
        .with_type::<Vec<(bool, Vec<u8>)>>()
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|frames| {
            let mut world = World::new();
            for (number, (ours, bytes)) in frames.iter().enumerate() {
                let mut frame = if *ours { mac(1).to_vec() } else { Vec::new() };
                frame.extend_from_slice(bytes);
                world.sim.deliver(&world.a.bench.function, &frame);
                if number % 4 == 0 {
                    world.check_healthy(&BESIDE);
                }
            }
            world.run(10);
            assert_eq!(
                world.sim.report(&world.a.bench.function).driver_bugs,
                [] as [String; 0]
            );
            world.check_healthy(&BESIDE);
        });
    BESIDE.report();
}

/// A packet that was parsed can be emitted and parsed again without a change. The ICRC of a frame with flipped bits is
/// not checked, because it would almost always be wrong.
#[test]
fn packets_survive_being_emitted() {
    let (iterations, time) = extent(50_000, 2);
    check!()
        .with_type::<(Forgery, Spoil, Spoil)>()
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|(forgery, headers, anywhere)| {
            let opcode = forgery.opcode();
            let payload = vec![0x99; usize::from(forgery.at) % 80];
            let [vlan, ack_request] = [forgery.flags & 1 == 1, forgery.flags & 2 == 2];
            let packet = Packet {
                link: EthRepr {
                    dst: mac(1),
                    src: mac(2),
                    vlan: vlan.then_some(Vlan { id: 5, priority: 1 }),
                    ethertype: 0,
                }
                .into(),
                network: forgery.network(),
                bth: BthRepr {
                    ack_request,
                    ..BthRepr::new(opcode, Qpn::GSI, Psn::masked(forgery.bytes))
                },
                headers: forgery.headers(
                    opcode,
                    &Target {
                        va: 0x1000,
                        key: 0x142,
                    },
                ),
                payload: &payload,
            };
            let mut frame = packet.emit();
            assert_eq!(
                Packet::parse(&frame).map(|read| (read.bth.psn, read.headers, read.payload)),
                { Ok((packet.bth.psn, packet.headers, packet.payload)) }
            );
            let end = frame.len().min(80);
            headers.apply(&mut frame[12..end]);
            anywhere.apply(&mut frame);
            let _ = Packet::parse(&frame);
            if let Ok(packet) = Packet::parse_ignoring_icrc(&frame) {
                let again = packet.emit();
                let reread = Packet::parse(&again).expect("our own packet");
                assert_eq!(
                    (reread.bth, reread.headers, reread.payload),
                    (packet.bth, packet.headers, packet.payload)
                );
            }
        });
}
