//! An attacker on the network: a node with an address of its own, which knows everything but secrets.
//!
//! The attacker knows addresses, GUIDs and service IDs, which other nodes send in clear, and queue pair numbers, which
//! can be enumerated. The attacker does not know packet sequence numbers, communication IDs and keys, and guesses them.
//! The management datagrams of this module have the attacker's own source address (the module `captured_packets` also
//! spoofs addresses). RoCE has no defence against a node on the path. The RC packets may have a spoofed source
//! address. Answers to the attacker are dropped.
//!
//! The general checks are sufficient: a connection may end only for a recorded reason, and an attacker's packet is no
//! reason.

use dat_core::cm::wire::{
    DreqRepr, Mad, Message, MraRepr, RejRepr, RejectReason, Rejected, RepRepr, ReqRepr, RtuRepr,
};
use dat_core::cm::{Cm, Config, ConnectParams};
use dat_core::provider::{Path, Qpn};
use hw_sim::wire::{
    AckSyndrome, AethRepr, BthRepr, DethRepr, EthRepr, Headers, Ipv6Repr, NakCode, Network, Opcode,
    Operation, Packet, Psn, RethRepr, UdpRepr,
};
use rand::Rng;

use crate::address::Address;
use crate::side::{CONN_QUAL, LENDING_QUAL, OTHER_QUAL, RESERVED_QUAL};
use crate::world::World;

/// Address and MAC of the attacker.
pub const ATTACKER: Address = Address {
    mac: [2, 0xca, 0xff, 0, 0, 66],
    gid: [
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0xca, 0xff, 0xff, 0xfe, 0, 0, 66,
    ],
};
/// GUID of the attacker.
const GUID: u64 = 0x00ca_ffff_fe00_0042;
/// Q_Key of the general services interface (IBTA volume 1, section 3.5.3).
const GSI_Q_KEY: u32 = 0x8001_0000;
/// Range of queue pair numbers that includes those of an adapter.
pub const QPNS: std::ops::Range<u32> = 0x50..0x90;

fn packet(from: Address, to: Address, bth: BthRepr, headers: Headers, payload: &[u8]) -> Vec<u8> {
    let link = EthRepr {
        dst: to.mac,
        src: from.mac,
        vlan: None,
        ethertype: 0,
    };
    let ip = Ipv6Repr {
        src: from.gid,
        dst: to.gid,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        payload_len: 0,
    };
    let udp = UdpRepr {
        src_port: 0xc001,
        payload_len: 0,
    };
    Packet {
        link: link.into(),
        network: Network::Ipv6(ip, udp),
        bth,
        headers,
        payload,
    }
    .emit()
}

const fn bth(opcode: Opcode, dest_qpn: Qpn, psn: u32) -> BthRepr {
    BthRepr {
        ack_request: true,
        ..BthRepr::new(opcode, dest_qpn, Psn::masked(psn))
    }
}

/// Returns a frame with a datagram to the general services interface.
pub fn datagram(from: Address, to: Address, psn: u32, mad: &[u8]) -> Vec<u8> {
    let headers = Headers {
        deth: Some(DethRepr {
            qkey: GSI_Q_KEY,
            src_qpn: Qpn::GSI,
        }),
        ..Headers::NONE
    };
    packet(
        from,
        to,
        bth(Opcode::ud(false), Qpn::GSI, psn),
        headers,
        mad,
    )
}

/// Returns the parameters of an ordinary connection request of the attacker.
fn parameters(to: Address, service_id: u64) -> ConnectParams<'static> {
    ConnectParams {
        service_id,
        source: ATTACKER.gid,
        path: Path {
            source_gid_index: 0,
            gid: to.gid,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            priority: 0,
        },
        qpn: Qpn::new(0x66),
        psn: Psn::masked(0x66),
        reads_out: 2,
        reads_in: 2,
        mtu: 3,
        retry_count: 7,
        rnr_retry: 6,
        ack_timeout: 14,
        private_data: b"a stranger asks",
        timeout: None,
        srq: false,
        random: 0x66,
    }
}

/// Returns the datagram of a connection request (REQ) with this GUID.
fn request(guid: u64, params: ConnectParams<'_>) -> Mad {
    let mut cm = Cm::new(Config {
        local_ca_guid: guid,
        ..Config::default()
    });
    // PANIC: all numbers in `params` fit their fields.
    cm.connect(0, params).expect("sound parameters");
    let (_, mad) = cm.poll_transmit().expect("a REQ");
    mad
}

/// Returns the fields of an ordinary connection request (REQ) of the attacker.
pub fn a_request(to: Address, service_id: u64) -> ReqRepr {
    match Message::parse(&request(GUID, parameters(to, service_id))) {
        Ok((_, Message::Req(req))) => *req,
        // PANIC: `request` returns a REQ.
        other => panic!("{other:?} is no REQ"),
    }
}

impl World {
    /// Sends one or eight packets of an attacker to an adapter, or rarely very many connection requests.
    pub fn attack_from_network(&mut self) {
        if self.random.random_bool(0.5) {
            let times = if self.random.random_ratio(1, 8) { 8 } else { 1 };
            for _ in 0..times {
                self.echo();
            }
            return;
        }
        let side = self.random.random_range(0..self.sides.len());
        let other = self.random.random_range(0..self.sides.len());
        let (Some(to), Some(known)) = (self.address(side), self.address(other)) else {
            return;
        };
        if self.random.random_ratio(1, 500) {
            self.flood(side);
            return;
        }
        let draw = self.random.random_range(0..12);
        let times = if draw == 0 { 8 } else { 1 };
        let (mut to, mut card) = (to, self.sides[side].card);
        if self.honest.is_some() && self.random.random_ratio(1, 3) {
            let at = usize::from(self.random.random_bool(0.5));
            if let Some(honest) = self.honest.as_ref().and_then(|honest| honest.address(at)) {
                (to, card) = honest;
            }
        }
        for _ in 0..times {
            let (what, frame) = match draw {
                0..=3 => ("REQ", self.attacker_request(to, known)),
                4..=6 => ("forged datagram", self.forged_datagram(to, known)),
                7..=9 => ("RC packet", self.forged_packet(ATTACKER, to)),
                _ => ("RC packet in another's name", self.forged_packet(known, to)),
            };
            self.cover.count("attacker", what);
            self.sim.deliver(&self.cards[card].physical(), &frame);
        }
    }

    /// Returns the address of a side.
    pub fn address(&self, side: usize) -> Option<Address> {
        let open = self.sides[side].open.as_ref()?;
        Address::of(open.ia.query().ia.ia_address)
    }

    /// Returns an ordinary connection request, perhaps with another node's GUID and queue pair number.
    fn attacker_request(&mut self, to: Address, known: Address) -> Vec<u8> {
        let random: u64 = self.random.random();
        let quals = [
            CONN_QUAL,
            OTHER_QUAL,
            LENDING_QUAL,
            RESERVED_QUAL,
            7,
            random,
        ];
        let service_id = quals[self.random.random_range(0..quals.len())];
        let qpn = self.random.random_range(QPNS);
        let own = self.random.random_bool(0.5);
        let guid = if own { GUID } else { guid_of(known) };
        let params = ConnectParams {
            qpn: Qpn::new(qpn),
            psn: Psn::masked(self.random.random_range(0..1 << 24)),
            ack_timeout: self.random.random_range(0..32),
            random,
            ..parameters(to, service_id)
        };
        let mad = request(guid, params);
        datagram(ATTACKER, to, self.random.random(), &mad)
    }

    /// Returns a guessed communication ID: a number below 4 in one of four cases, because a node may count its IDs from
    /// 0, or a random number.
    fn comm_id(&mut self) -> u32 {
        if self.random.random_ratio(1, 4) {
            self.random.random_range(0..4)
        } else {
            self.random.random()
        }
    }

    /// Returns a frame with a CM message about a connection of other nodes, or with random bytes.
    fn forged_datagram(&mut self, to: Address, known: Address) -> Vec<u8> {
        let (local_comm_id, remote_comm_id) = (self.comm_id(), self.comm_id());
        let qpn = Qpn::new(self.random.random_range(QPNS));
        let starting_psn = Psn::masked(self.random.random_range(0..1 << 24));
        let reason: u16 = self.random.random_range(0..40);
        let message = match self.random.random_range(0..6) {
            0 => Message::Rep(Box::new(RepRepr {
                local_comm_id,
                remote_comm_id,
                local_q_key: 0,
                local_qpn: qpn,
                local_eecn: 0,
                starting_psn,
                responder_resources: 1,
                initiator_depth: 1,
                target_ack_delay: 31,
                failover_accepted: 0,
                flow_control: false,
                rnr_retry: 1,
                srq: false,
                local_ca_guid: guid_of(known),
                private_data: [0; 196],
            })),
            1 => Message::Rej(Box::new(RejRepr {
                local_comm_id,
                remote_comm_id,
                rejected: Rejected::Req,
                additional_bytes: 0,
                reason: RejectReason::from_code(reason),
                additional: [0; 72],
                private_data: [0; 148],
            })),
            2 => Message::Dreq(DreqRepr {
                local_comm_id,
                remote_comm_id,
                remote_qpn: qpn,
            }),
            3 => Message::Rtu(RtuRepr {
                local_comm_id,
                remote_comm_id,
            }),
            4 => Message::Mra(MraRepr {
                local_comm_id,
                remote_comm_id,
                acknowledged: Rejected::Req,
                service_timeout: 31,
            }),
            _ => {
                let mut bytes: Mad = [0; 256];
                self.random.fill(&mut bytes[..]);
                return datagram(ATTACKER, to, starting_psn.get(), &bytes);
            }
        };
        let mad = message.to_mad(self.random.random());
        datagram(ATTACKER, to, starting_psn.get(), &mad)
    }

    /// Returns a frame with an RC packet to a random queue pair, with a random PSN and a random key.
    fn forged_packet(&mut self, from: Address, to: Address) -> Vec<u8> {
        let qpn = self.random.random_range(QPNS);
        let psn = self.random.random();
        let reth = RethRepr {
            va: self.random.random(),
            rkey: self.random.random(),
            length: 64,
        };
        let syndromes = [
            AckSyndrome::ACK,
            AckSyndrome::Rnr(1),
            AckSyndrome::Nak(NakCode::Sequence),
            AckSyndrome::Nak(NakCode::RemoteAccess),
        ];
        let aeth = AethRepr {
            syndrome: syndromes[self.random.random_range(0..syndromes.len())],
            msn: self.random.random_range(0..1 << 24),
        };
        let (operation, headers, bytes) = match self.random.random_range(0..4) {
            0 => (Operation::SendOnly, Headers::NONE, 64),
            1 => {
                let reth = Some(reth);
                let headers = Headers {
                    reth,
                    ..Headers::NONE
                };
                (Operation::WriteOnly, headers, 64)
            }
            2 => {
                let reth = Some(reth);
                let headers = Headers {
                    reth,
                    ..Headers::NONE
                };
                (Operation::ReadRequest, headers, 0)
            }
            _ => {
                let aeth = Some(aeth);
                let headers = Headers {
                    aeth,
                    ..Headers::NONE
                };
                (Operation::Acknowledge, headers, 0)
            }
        };
        let bth = bth(Opcode::rc(operation), Qpn::new(qpn), psn);
        packet(from, to, bth, headers, &vec![0x99; bytes])
    }
}

/// Returns the GUID of a function, which is derived from its MAC address. The local bit is not inverted.
fn guid_of(known: Address) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = known.gid;
    u64::from_be_bytes([a ^ 2, b, c, d, e, f, g, h])
}
