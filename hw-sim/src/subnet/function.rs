//! The InfiniBand port of a function in its subnet: packets for the port's agents, and events for the driver when a
//! subnet manager changes the port.

use mlx_prm::{Eqe, EventType, MadClass, MadMethod, PerformanceMad, PortChange, Smp, SmpAttribute};

use super::directed::{self, Step};
use super::mad::IEEE_MELLANOX;
use super::packet::{datagram, is_of_management_lane, lrh, reply, wrong_lane};
use super::pma::{self, Counted};
use super::sma::{self, Node};
use super::{Changes, Link, PortState};
use crate::card::AdminState;
use crate::card::seat::Seat;
use crate::env::{Env, Timer};
use crate::nic::Nic;
use crate::wire::{LrhPacket, Packet, Qpn};

/// Number of the function's only port.
const PORT: u8 = 1;
/// Node type in NodeInfo: a channel adapter.
const CHANNEL_ADAPTER: u8 = 1;

/// Time in ns from a Set that takes the link down until the link goes down. The answer to the Set has left by then. The
/// delay is inferred from the fact that managers get such an answer.
const ANSWERED_NS: u64 = 1_000_000;

impl Env {
    /// Schedules the link of a card's port to go down at both ends and to train again, after the answer to the Set has
    /// left. Until then the port reports Down, and another such Set changes nothing.
    pub(crate) fn retrain_soon(&mut self, seat: Seat) {
        if let Some(function) = self.manager(seat)
            && !self.retrains(seat)
        {
            let due = self.now.saturating_add(ANSWERED_NS);
            self.schedule(due, function, Timer::Retrain);
        }
    }

    /// Returns whether the link of a card's port is scheduled to go down and train again.
    fn retrains(&self, seat: Seat) -> bool {
        let function = self.manager(seat);
        let mut timers = self.timers.values();
        timers.any(|&(of, timer)| timer == Timer::Retrain && Some(of) == function)
    }

    /// Returns the state of the link of a function's port.
    pub fn link(&self, seat: Seat) -> Link {
        let uplink = &self.card(seat).uplink;
        match (self.is_up(seat), uplink.light && !uplink.is_training()) {
            (true, _) if self.retrains(seat) => Link::Dark,
            (true, _) => Link::Up,
            (false, true) => Link::Disabled,
            (false, false) => Link::Dark,
        }
    }
}

impl Nic {
    /// Returns whether the port is an InfiniBand port that is not Active, so that only subnet management packets leave.
    pub fn is_managed_only(&self, env: &Env) -> bool {
        let subnet = env.port(self.seat).subnet.as_ref();
        subnet.is_some_and(|subnet| subnet.state() != PortState::Active)
    }

    /// Returns whether a frame may enter an InfiniBand port. Subnet management always may; data may once the port is
    /// armed. A frame that may not enter is counted as dropped.
    pub(crate) fn lane_is_open(&mut self, env: &mut Env, frame: &[u8]) -> bool {
        if LrhPacket::new_checked(frame).is_err() {
            self.count_drop(env, "no LRH");
            return false;
        }
        if let Some(reason) = wrong_lane(frame) {
            self.count_drop(env, reason);
            return false;
        }
        if is_of_management_lane(frame) || self.takes_data(env) {
            return true;
        }
        self.count_drop(env, "port not active");
        false
    }

    /// Passes a packet that arrived at an InfiniBand port to the port's agents. Returns whether an agent has handled
    /// it.
    pub(crate) fn agent_received(&mut self, env: &mut Env, packet: &Packet<'_>) -> bool {
        let Some(mad) = datagram(packet) else {
            return false;
        };
        if packet.dest_qpn() == Qpn::SMI {
            self.smp_received(env, packet, Smp::from_array(*mad))
        } else {
            self.performance_received(env, packet, &PerformanceMad::from_array(*mad))
        }
    }

    /// Returns whether data may enter the port. The first data packet at an armed port makes the port active, because
    /// it shows that the neighbour is active.
    fn takes_data(&mut self, env: &mut Env) -> bool {
        let Some(subnet) = &mut env.port_mut(self.seat).subnet else {
            return true;
        };
        if subnet.data_arrived() {
            self.port_changed(env, PortChange::ACTIVE);
            return true;
        }
        subnet.state() != PortState::Init
    }

    fn smp_received(&mut self, env: &mut Env, packet: &Packet<'_>, mut smp: Smp) -> bool {
        let is_directed = directed::is_directed(&smp);
        if !is_directed && MadClass(smp.mgmt_class()) != MadClass::SUBNET_LID_ROUTED {
            return false;
        }
        // Packets for a subnet manager on this node, and answers to it, go to the queue pair.
        let answers = [MadMethod::GET, MadMethod::SET, MadMethod::TRAP_REPRESS];
        if !answers.contains(&MadMethod(smp.method()))
            || SmpAttribute(smp.attribute_id()) == SmpAttribute::SM_INFO
            || is_directed && directed::returns(&smp)
        {
            return false;
        }
        if is_directed && directed::arrives(&mut smp, PORT) != Step::Agent {
            self.count_drop(env, "directed route that does not end here");
            return true;
        }
        let Some(mut answer) = self.managed(env, &smp, false) else {
            return true;
        };
        if is_directed {
            // The next hop needs no look-up, because the port is the function's only one.
            directed::answers(&mut answer);
        }
        self.reply(env, packet, answer.as_array());
        true
    }

    fn performance_received(
        &mut self,
        env: &mut Env,
        packet: &Packet<'_>,
        mad: &PerformanceMad,
    ) -> bool {
        let is_asked = [MadMethod::GET, MadMethod::SET].contains(&MadMethod(mad.method()));
        if MadClass(mad.mgmt_class()) != MadClass::PERFORMANCE || !is_asked {
            return false;
        }
        if let Some(answer) = self.measured(env, mad) {
            self.reply(env, packet, answer.as_array());
        }
        true
    }

    fn reply(&self, env: &mut Env, request: &Packet<'_>, mad: &[u8; 256]) {
        let own = env.port(self.seat).lid().unwrap_or(0);
        // If a port has several LIDs, the answer comes from the LID to which the request was sent.
        let asked = lrh(request).map(|lrh| lrh.dlid);
        let lid = asked
            .filter(|&asked| env.port(self.seat).owns_lid(asked))
            .unwrap_or(own);
        if let Some(frame) = reply(request, lid, mad) {
            env.frames.push_back((self.index, frame.into()));
        }
    }

    /// Returns the answer of the performance management agent.
    pub(crate) fn measured(&self, env: &mut Env, mad: &PerformanceMad) -> Option<PerformanceMad> {
        let port = env.port_mut(self.seat);
        let counted = Counted {
            sent: port.transmitted,
            received: port.received,
        };
        let cleared = &mut port.subnet.as_mut()?.cleared;
        Some(pma::answer(mad, &mut [(PORT, counted, cleared)]))
    }

    /// Returns the answer of the subnet management agent, if there is one. `unchecked` skips the check of the M_Key.
    pub(crate) fn managed(&mut self, env: &mut Env, smp: &Smp, unchecked: bool) -> Option<Smp> {
        let link = env.link(self.seat);
        let vport = env.vport_mut(self.seat);
        let subnet = vport.port.subnet.as_mut()?;
        let node = Node {
            node_type: CHANNEL_ADAPTER,
            ports: 1,
            guids: vport.guids,
            partitions: subnet.pkeys.len(),
            device_id: self.profile.device_id,
            revision: self.profile.revision.into(),
            vendor_id: IEEE_MELLANOX,
        };
        let description = &vport.port.node_description;
        let outcome = sma::adapter(&node, description, subnet, link, smp, unchecked);
        self.announce(env, outcome.changes);
        outcome.smp
    }

    /// Reports a subnet manager's changes to the driver by events.
    fn announce(&mut self, env: &mut Env, changes: Changes) {
        let state = env
            .port(self.seat)
            .subnet
            .as_ref()
            .map(super::Subnet::state);
        if changes.bounced && !self.seat.is_virtual() {
            env.retrain_soon(self.seat);
        } else if changes.bounced {
            // The link of a virtual function is inside the card and has no second end to train.
            self.port_changed(env, PortChange::DOWN);
            self.port_changed(env, PortChange::INITIALIZED);
        } else if changes.state && state == Some(PortState::Active) {
            self.port_changed(env, PortChange::ACTIVE);
        }
        let told = [
            (changes.lid, PortChange::LID),
            (changes.pkeys, PortChange::PKEY),
            (changes.gids, PortChange::GUID),
            (changes.reregister, PortChange::CLIENT_REREG),
        ];
        for (_, change) in told.into_iter().filter(|(is, _)| *is) {
            self.port_changed(env, change);
        }
        if let Some(enable) = changes.enable {
            let admin = match enable {
                true => AdminState::Up,
                false => AdminState::Down,
            };
            env.card_mut(self.seat).uplink.admin = admin;
            env.update_ports(self.seat);
        }
    }

    /// Posts the event for a change of the port.
    pub(crate) fn port_changed(&mut self, env: &mut Env, change: PortChange) {
        let mut eqe = Eqe::new();
        eqe.set_event_sub_type(change.0);
        eqe.event_data_mut()[8] = PORT << 4;
        self.event(env, EventType::PORT_CHANGE, &mut eqe);
    }

    /// Returns the change that an event reports for a link that came up.
    pub(crate) fn port_up(&self, env: &Env) -> PortChange {
        match self.is_managed_only(env) {
            true => PortChange::INITIALIZED,
            false => PortChange::ACTIVE,
        }
    }
}
