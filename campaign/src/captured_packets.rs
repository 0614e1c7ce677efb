//! An attacker that has captured packets of other nodes, and uses everything in them but the secrets.
//!
//! The attacker knows addresses, GUIDs, service IDs, queue pair numbers, virtual addresses and the public part of keys,
//! and the form and order of messages. It does not know the numbers that `dat_mlx::provider` draws at random: packet
//! sequence numbers, the communication and transaction IDs in datagrams of other nodes, and the variants of keys.
//! There are two such attackers:
//!
//! - One sends from its own address. It may even know communication IDs, because each ID belongs to the address that it
//!   comes from (`dat_core::cm`).
//! - One is not on the path and spoofs another node's address, so it does not see the answers. It must guess, and a
//!   guess succeeds once in 2^24 or 2^32. Here its guesses are always wrong: numbers that a connection has used or will
//!   use soon are excluded, because RC has no other proof of the sender. A spoofed REQ does not name a queue pair that
//!   the spoofed node has: IBTA volume 1, 12.9.8.3.1 takes such a REQ for a peer that has lost its state, and ends the
//!   old connection (docs/decisions/strangers.md).

use dat_core::cm::wire::{
    DrepRepr, DreqRepr, Mad, Message, MraRepr, RejRepr, RejectReason, Rejected, RtuRepr,
};
use dat_core::provider::Qpn;
use hw_sim::wire::{
    AckSyndrome, AethRepr, AtomicAckEthRepr, AtomicEthRepr, Headers, Link, Network, Opcode,
    Operation, Packet, Psn, RethRepr, Transport,
};
use mlx_prm::Qpc;
use rand::Rng;

use crate::off_path_attacker::ATTACKER;
use crate::world::{CAPTURED_FRAMES, World};

/// Minimum distance of guessed PSNs to the PSNs in use, which is more than a connection of a simulation uses.
const NEAR: u32 = 8192;
/// Private data of a REQ that contains another GID than its sender's. No program may get an event for such a request.
pub const SPOOFED_DATA: &[u8] = b"from elsewhere";
/// Queue pair numbers that no adapter of a simulation uses.
const UNUSED_QPNS: std::ops::Range<u32> = 0x10_0000..0x20_0000;

impl World {
    /// Sends a packet that is derived from a captured packet.
    pub fn echo(&mut self) {
        let at = self.random.random_range(0..CAPTURED_FRAMES);
        let own = self.random.random_bool(0.5);
        let Some(frame) = self.sim.overheard(at) else {
            return;
        };
        let Ok(mut packet) = Packet::parse(&frame) else {
            return;
        };
        let to = packet.network.dst_gid();
        let Some(side) = (0..self.sides.len()).find(|side| self.gid_of(*side) == Some(to)) else {
            return;
        };
        if own {
            let (Link::Ethernet(eth), Network::Ipv6(ip, _)) =
                (&mut packet.link, &mut packet.network)
            else {
                return;
            };
            (eth.src, ip.src) = (ATTACKER.mac, ATTACKER.gid);
        }
        let (what, frame) = if packet.bth.opcode.transport() == Transport::Rc {
            let Some(psn) = self.wrong_psn(side, packet.bth.dest_qpn) else {
                return;
            };
            packet.bth.psn = psn;
            let what = if own {
                "RC packet like one seen"
            } else {
                "RC packet like one seen, in its sender's name"
            };
            (what, self.reshaped(&packet))
        } else {
            let Ok(mad) = Mad::try_from(packet.payload) else {
                return;
            };
            let Ok((transaction, message)) = Message::parse(&mad) else {
                return;
            };
            let mad = if own {
                self.sent_by_another(transaction, message)
            } else {
                self.spoofed_message(message)
            };
            let what = if own {
                "datagram with names seen"
            } else {
                "datagram like one seen, in its sender's name"
            };
            packet.bth.psn = self.any_psn();
            let packet = Packet {
                payload: &mad,
                ..packet
            };
            (what, packet.emit())
        };
        self.cover.count("attacker", what);
        let card = &self.cards[self.sides[side].card];
        self.sim.deliver(&card.physical(), &frame);
    }

    fn gid_of(&self, side: usize) -> Option<[u8; 16]> {
        let open = self.sides[side].open.as_ref()?;
        match open.ia.query().ia.ia_address {
            std::net::IpAddr::V6(ip) => Some(ip.octets()),
            std::net::IpAddr::V4(ip) => Some(ip.to_ipv6_mapped().octets()),
        }
    }

    fn any_psn(&mut self) -> Psn {
        Psn::masked(self.random.random_range(0..1 << 24))
    }

    /// Returns a PSN outside of the queue pair's window: a boundary value, or a random one. Returns `None` if the PSN
    /// that was drawn is too near to one in use.
    fn wrong_psn(&mut self, side: usize, qpn: Qpn) -> Option<Psn> {
        let edges = [
            NEAR,
            NEAR + 1,
            (1 << 23) - 1,
            1 << 23,
            (1 << 23) + 1,
            (1 << 24) - NEAR,
        ];
        let (pick, edge) = (
            self.random.random_range(0..3),
            self.random.random_range(0..2 * edges.len()),
        );
        let any = self.any_psn();
        let qp = self.sim.queue_pair(&self.sides[side].function, qpn.get());
        let used = qp.as_ref().map_or(Vec::new(), |qp: &Qpc| {
            [qp.next_rcv_psn(), qp.next_send_psn(), qp.last_acked_psn()]
                .map(Psn::masked)
                .into()
        });
        let psn = match (used.get(pick), edges.get(edge)) {
            (Some(base), Some(edge)) => base.advance(*edge),
            _ => any,
        };
        let near = |base: &Psn| !(NEAR..=(1 << 24) - NEAR).contains(&psn.distance_from(*base));
        (!used.iter().any(near)).then_some(psn)
    }

    /// Returns the packet with wrong key variants and other payload, and perhaps another operation.
    fn reshaped(&mut self, packet: &Packet<'_>) -> Vec<u8> {
        let (bits, keep) = (
            self.random.random_range(0..0x18),
            self.random.random_bool(0.5),
        );
        let variant = self.random.random_range(1..=0xff);
        let number: u64 = self.random.random();
        let syndromes = [
            AckSyndrome::ACK,
            AckSyndrome::Rnr(31),
            AckSyndrome::Nak(hw_sim::wire::NakCode::Sequence),
            AckSyndrome::Nak(hw_sim::wire::NakCode::RemoteAccess),
        ];
        let syndrome = syndromes[self.random.random_range(0..syndromes.len())];
        let lengths = [packet.payload.len(), 0, 1, 1024, 4096];
        let length = lengths[self.random.random_range(0..lengths.len())];
        let other = Opcode::from_bits(bits).filter(|other| other.transport() == Transport::Rc);
        let opcode = other.filter(|_| !keep).unwrap_or(packet.bth.opcode);
        let operation = opcode.operation();
        let seen = packet.headers;
        let (va, rkey) = seen
            .reth
            .map_or((number, 0x100), |reth| (reth.va, reth.rkey));
        let rkey = rkey ^ variant;
        let reth = RethRepr {
            va,
            rkey,
            length: u32::try_from(length).unwrap_or(0),
        };
        let headers = Headers {
            reth: operation.has_reth().then_some(reth),
            atomic: operation.has_atomic().then_some(AtomicEthRepr {
                va,
                rkey,
                swap_add: number,
                compare: 0,
            }),
            aeth: operation.has_aeth().then_some(AethRepr {
                syndrome,
                msn: seen.aeth.map_or(0, |aeth| aeth.msn),
            }),
            atomic_ack: (operation == Operation::AtomicAcknowledge)
                .then_some(AtomicAckEthRepr { original: number }),
            immediate: operation.has_immediate().then_some([0x99; 4]),
            invalidate: operation.has_invalidate().then_some(rkey),
            ..Headers::NONE
        };
        let payload = vec![0x99; length];
        let mut bth = packet.bth;
        bth.opcode = opcode;
        Packet {
            link: packet.link,
            network: packet.network,
            bth,
            headers,
            payload: &payload,
        }
        .emit()
    }

    /// Returns a message with the IDs of another node's message, for a sender with its own address. The result is the
    /// captured message, or one that could follow it.
    fn sent_by_another(&mut self, transaction: u64, message: Message) -> Mad {
        let (local, remote, qpn) = match &message {
            Message::Req(req) => (req.local_comm_id, 0, req.local_qpn),
            Message::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id, rep.local_qpn),
            Message::Rej(rej) => (rej.local_comm_id, rej.remote_comm_id, Qpn::SMI),
            Message::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id, Qpn::SMI),
            Message::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id, Qpn::SMI),
            Message::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_comm_id, dreq.remote_qpn),
            Message::Drep(drep) => (drep.local_comm_id, drep.remote_comm_id, Qpn::SMI),
        };
        let turned = self.random.random_bool(0.5);
        let (local_comm_id, remote_comm_id) = if turned {
            (remote, local)
        } else {
            (local, remote)
        };
        let reason: u16 = self.random.random_range(0..40);
        let follows = match self.random.random_range(0..8) {
            0 => Message::Dreq(DreqRepr {
                local_comm_id,
                remote_comm_id,
                remote_qpn: qpn,
            }),
            1 => Message::Drep(DrepRepr {
                local_comm_id,
                remote_comm_id,
            }),
            2 => Message::Rtu(RtuRepr {
                local_comm_id,
                remote_comm_id,
            }),
            3 => Message::Mra(MraRepr {
                local_comm_id,
                remote_comm_id,
                acknowledged: Rejected::Req,
                service_timeout: 31,
            }),
            4 => Message::Rej(Box::new(RejRepr::new(
                local_comm_id,
                remote_comm_id,
                Rejected::Req,
                RejectReason::from_code(reason),
            ))),
            _ => {
                let mut same = message;
                if let Message::Req(req) = &mut same {
                    anonymous(&mut req.private_data);
                    if turned {
                        req.primary.local_gid = ATTACKER.gid;
                    } else if req.primary.local_gid != ATTACKER.gid {
                        req.private_data[4..4 + SPOOFED_DATA.len()].copy_from_slice(SPOOFED_DATA);
                    }
                }
                same
            }
        };
        follows.to_mad(transaction)
    }

    /// Returns the captured message with guessed IDs and PSNs, for a sender that is not on the path and spoofs another
    /// node's address.
    fn spoofed_message(&mut self, mut message: Message) -> Mad {
        let (local, remote): (u32, u32) = (self.random.random(), self.random.random());
        let qpn = Qpn::new(self.random.random_range(UNUSED_QPNS));
        let starting_psn = self.any_psn();
        match &mut message {
            Message::Req(req) => {
                (req.local_comm_id, req.local_qpn) = (local, qpn);
                req.starting_psn = starting_psn;
                anonymous(&mut req.private_data);
            }
            Message::Rep(rep) => {
                (rep.local_comm_id, rep.remote_comm_id) = (local, remote);
                rep.starting_psn = starting_psn;
            }
            Message::Rej(rej) => (rej.local_comm_id, rej.remote_comm_id) = (local, remote),
            Message::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id) = (local, remote),
            Message::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id) = (local, remote),
            Message::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_comm_id) = (local, remote),
            Message::Drep(drep) => (drep.local_comm_id, drep.remote_comm_id) = (local, remote),
        }
        message.to_mad(self.random.random())
    }
}

/// Clears private data after the first four bytes, which hold its length. No program of this simulation recognizes the
/// result.
fn anonymous(data: &mut [u8]) {
    data[4..].fill(0);
}
