//! Multicast frames: the members of a group ([`crate::mcg`]) get copies of received and of sent frames.

use crate::env::Env;
use crate::nic::Nic;
use crate::profile::PortType;
use crate::subnet::{FIRST_MULTICAST_LID, PERMISSIVE_LID};
use crate::wire::frame::Headers;
use crate::wire::{LrhPacket, Packet, Qpn};

impl Nic {
    /// Returns whether the destination address of a frame is a multicast address.
    fn is_multicast(&self, frame: &[u8]) -> bool {
        match self.profile.port_type {
            PortType::Ethernet => Headers::of(frame).is_some_and(|headers| headers.is_multicast()),
            PortType::InfiniBand => LrhPacket::new_checked(frame)
                .is_ok_and(|lrh| (FIRST_MULTICAST_LID..PERMISSIVE_LID).contains(&lrh.dlid())),
        }
    }

    /// Returns whether any queue pair has joined a group.
    pub(crate) fn has_groups(&self) -> bool {
        !self.objects.groups.is_empty()
    }

    /// Returns the packet in a frame, if it is for a group that has members in this function.
    fn grouped<'f>(&self, frame: &'f [u8]) -> Option<Packet<'f>> {
        if self.objects.groups.is_empty() || !self.is_multicast(frame) {
            return None;
        }
        let packet = match self.profile.port_type {
            PortType::Ethernet => Packet::parse(frame),
            PortType::InfiniBand => Packet::parse_infiniband(frame),
        };
        packet.ok().filter(|packet| {
            let group = packet.network.dst_gid();
            packet.dest_qpn() == Qpn::MULTICAST && self.objects.groups.contains(&group)
        })
    }

    /// Copies a multicast frame to the members of its group. `looped` is set if the function sent the frame itself.
    /// Returns whether the group has members in this function.
    pub fn group_received(&mut self, env: &mut Env, frame: &[u8], looped: bool) -> bool {
        let Some(packet) = self.grouped(frame) else {
            return false;
        };
        let group = packet.network.dst_gid();
        let members: Vec<u32> = self.objects.groups.members(&group).collect();
        env.note(
            self.index,
            format_args!(
                "multicast to {} bytes={}",
                members.len(),
                packet.payload.len()
            ),
        );
        for qpn in members {
            self.with_qp(env, qpn, |qp, view| {
                if !(looped && qp.blocks_own_multicast()) {
                    qp.receive(&packet, view);
                }
            });
        }
        true
    }

    /// Loops a copy of a sent frame back, if the port is up and the frame is for a group that has members in this
    /// function.
    pub fn replicate(&mut self, env: &mut Env, frame: &[u8]) {
        if env.is_up(self.seat) && self.grouped(frame).is_some() {
            env.loop_back(self.index, frame.to_vec());
        }
    }
}
