//! Frames from the wire, and the choice of their receiver.
//!
//! A RoCE packet is for this function if its destination MAC is in the RoCE address table. An InfiniBand packet is for
//! this function if its destination LID is the port's or the permissive LID. A packet for this function that does not
//! parse is dropped and counted by reason. Every other frame of an Ethernet port goes to the flow tables
//! ([`crate::eth`]), and so does a packet to an unknown queue pair. Without flow tables such a frame is dropped and
//! counted, as a NIC without a host stack does. A multicast datagram goes to the members of its group ([`crate::mcg`]).

use crate::env::{Env, Origin};
use crate::nic::Nic;
use crate::profile::PortType;
use crate::wire::frame::is_roce;
use crate::wire::{CNP, Ecn, Packet, Qpn, WireError};

impl Nic {
    /// Handles a received frame. A RoCE packet goes to the queue pair that it names; a packet for QP 0 or QP 1 goes to
    /// the queue pair of that service type.
    pub fn frame_received(&mut self, env: &mut Env, frame: &[u8], origin: Origin) {
        if !self.alive() {
            return;
        }
        let is_infiniband = self.profile.port_type == PortType::InfiniBand;
        if is_infiniband && !self.lane_is_open(env, frame) {
            return;
        }
        if self.group_received(env, frame, origin.is_itself()) {
            return;
        }
        let steered = self.takes_ethernet();
        let ours = env.port(self.seat).owns(frame);
        if steered && !(ours && is_roce(frame)) {
            self.ethernet_received(env, frame, origin);
            return;
        }
        if !ours {
            let port = env.port_mut(self.seat);
            port.ethernet.unwanted.count(frame.len());
            self.count_drop(env, "address of another");
            return;
        }
        let parsed = match self.profile.port_type {
            PortType::Ethernet if env.seals() => Packet::parse(frame),
            PortType::Ethernet => Packet::parse_ignoring_icrc(frame),
            PortType::InfiniBand => Packet::parse_infiniband(frame),
        };
        let packet = match parsed {
            Ok(packet) => packet,
            Err(WireError::Opcode(CNP)) if self.cnp_received(env, frame) => return,
            Err(error) => {
                self.count_drop(env, reason(error));
                return;
            }
        };
        if is_infiniband && self.agent_received(env, &packet) {
            return;
        }
        let delivered = self.packet_received(env, &packet);
        if !delivered && steered {
            self.ethernet_received(env, frame, origin);
        } else if !delivered {
            self.count_drop(env, "no such QP");
        }
    }

    /// Returns whether the function is alive and has the queue pair that a packet is for.
    pub(crate) fn takes(&self, packet: &Packet<'_>) -> bool {
        let slot = self
            .destination(packet)
            .and_then(|qpn| self.objects.qps.get(qpn));
        self.alive() && slot.is_some()
    }

    /// Returns the number of the queue pair that a packet is for. QP 0 and QP 1 of the wire have other numbers inside
    /// the device.
    fn destination(&self, packet: &Packet<'_>) -> Option<u32> {
        match packet.dest_qpn() {
            Qpn::SMI => self.smi,
            Qpn::GSI => self.gsi,
            qpn => Some(qpn.get()),
        }
    }

    /// Passes a packet for this function to its queue pair. Returns whether the queue pair exists.
    pub(crate) fn packet_received(&mut self, env: &mut Env, packet: &Packet<'_>) -> bool {
        let (bth, bytes) = (&packet.bth, packet.payload.len());
        env.note(
            self.index,
            format_args!(
                "packet {:?} qp={} psn={} ack={} bytes={bytes}",
                bth.opcode, bth.dest_qpn, bth.psn, bth.ack_request,
            ),
        );
        let Some(qpn) = self.destination(packet) else {
            return false;
        };
        let delivered = self.with_qp(env, qpn, |qp, view| qp.receive(packet, view));
        if delivered.is_some() && packet.network.ecn() == Ecn::Marked {
            self.marked_packet_received(env, qpn);
        }
        delivered.is_some()
    }
}

/// Returns the name of the drop counter for a parse error.
const fn reason(error: WireError) -> &'static str {
    match error {
        WireError::Truncated(_) => "truncated",
        WireError::NotRoce => "not RoCE",
        WireError::Malformed(_) => "malformed",
        WireError::Checksum => "IPv4 checksum",
        WireError::Opcode(_) => "BTH opcode",
        WireError::Icrc => "ICRC",
        WireError::Vcrc => "VCRC",
    }
}
