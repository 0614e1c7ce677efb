//! Methods of [`Sim`] for switches: connecting cables, and reading queues and counters.

use crate::card::seat::Seat;
use crate::card::{CongestionCounters, PauseCounters, PortQos};
use crate::device::{LinkId, Sim, SimFunction};
use crate::link::LinkFaults;
use crate::network::{End, NotConnected};
use crate::profile::PortType;
use crate::record::{CableEnd, Record};
use crate::switch::{PortCounters, SwitchConfig, SwitchError};
use crate::world::{World, lock};

/// Identifier of an Ethernet switch of a [`Sim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchId(pub(crate) usize);

/// An end of a cable.
#[derive(Clone, Copy)]
pub enum Connector<'a> {
    /// The port of a function's card.
    Function(&'a SimFunction),
    /// A port of a switch, counted from 0.
    Port(SwitchId, usize),
}

impl Connector<'_> {
    fn recorded(&self) -> CableEnd {
        match *self {
            Self::Function(function) => CableEnd::Function(function.index),
            Self::Port(SwitchId(switch), port) => CableEnd::Port { switch, port },
        }
    }
}

/// Identifier of an InfiniBand switch of a [`Sim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetSwitchId(pub(crate) usize);

impl Sim {
    /// Lets a subnet manager, a program on one of the nodes, configure the InfiniBand subnet. From now on, each card's
    /// port is in Init and has no LID until the manager configures it. The same holds for switches that are added
    /// later; existing switches stay preset. Without this call, ports are Active and have a LID as soon as they have a
    /// carrier.
    pub fn use_external_subnet_manager(&self) {
        let mut world = lock(&self.world);
        world.input(|| Record::SubnetManager);
        world.use_external_subnet_manager();
        world.driven();
    }

    /// Adds an InfiniBand switch with 2 to 15 ports. The switch is a node of the subnet.
    ///
    /// # Errors
    /// [`NotConnected::Port`] if the number of ports is out of range, or if there are 64 switches already.
    pub fn add_subnet_switch(&self, ports: usize) -> Result<SubnetSwitchId, NotConnected> {
        let mut world = lock(&self.world);
        world.add_subnet_switch(ports).map(SubnetSwitchId)
    }

    /// Connects a cable from a function's InfiniBand port to a port of an InfiniBand switch. Switch ports count from 1.
    ///
    /// # Errors
    /// [`NotConnected::Port`] if the port does not exist or an end already has a cable. [`NotConnected::Ethernet`] if
    /// the function's port is an Ethernet port.
    pub fn connect_subnet(
        &self,
        function: &SimFunction,
        SubnetSwitchId(switch): SubnetSwitchId,
        port: usize,
        faults: LinkFaults,
    ) -> Result<LinkId, NotConnected> {
        let mut world = lock(&self.world);
        if world.nics[function.index].profile.port_type != PortType::InfiniBand {
            return Err(NotConnected::Ethernet);
        }
        let link = world.connect_subnet(function.index, (switch, port), faults);
        world.driven();
        link.map(LinkId)
    }

    /// Adds an Ethernet switch.
    ///
    /// # Errors
    /// [`SwitchError`] if the configuration is invalid.
    pub fn add_switch(&self, config: SwitchConfig) -> Result<SwitchId, SwitchError> {
        let mut world = lock(&self.world);
        world.add_switch(config).map(SwitchId)
    }

    /// Connects a port of a switch by a cable, to a function's port or to another switch port. `delay_ns` of `faults`
    /// is the time of flight.
    ///
    /// # Errors
    /// [`NotConnected`] if an end cannot take the cable, or if the cable would close a loop in which a frame may be
    /// flooded.
    pub fn connect_switch(
        &self,
        ends: [Connector<'_>; 2],
        faults: LinkFaults,
    ) -> Result<LinkId, NotConnected> {
        let mut world = lock(&self.world);
        let mut laid = [End::Outside; 2];
        for (end, connector) in laid.iter_mut().zip(&ends) {
            *end = match *connector {
                Connector::Port(SwitchId(switch), port) => End::Switch { switch, port },
                Connector::Function(function) => {
                    let nic = &world.nics[function.index];
                    if nic.profile.port_type == PortType::InfiniBand {
                        return Err(NotConnected::InfiniBand);
                    }
                    End::Card(nic.seat.card)
                }
            };
        }
        let record = || Record::Cable {
            ends: ends.each_ref().map(Connector::recorded),
            faults,
        };
        let link = world.connect_switch(laid, faults, record).map(LinkId);
        world.driven();
        link
    }

    /// Binds an address to a port of a switch permanently. Returns false if the port does not exist, or if the switch's
    /// table of fixed addresses is full.
    #[must_use]
    pub fn fix_address(&self, switch: SwitchId, mac: [u8; 6], port: usize) -> bool {
        let mut world = lock(&self.world);
        let switch = switch.0;
        let may = world
            .switch_mut(switch)
            .is_some_and(|switch| switch.may_fix(mac, port));
        if may {
            world.input(|| Record::FixedAddress { switch, mac, port });
        }
        may && world
            .switch_mut(switch)
            .is_some_and(|switch| switch.fix(mac, port))
    }

    /// Returns the counters of a port of a switch.
    #[must_use]
    pub fn switch_counters(&self, switch: SwitchId, port: usize) -> Option<PortCounters> {
        lock(&self.world).switch_mut(switch.0)?.counters(port)
    }

    /// Returns the number of bytes queued at an egress port of a switch.
    #[must_use]
    pub fn queue_depth(&self, switch: SwitchId, port: usize) -> Option<usize> {
        lock(&self.world).switch_mut(switch.0)?.depth(port)
    }

    /// Returns the bit mask of the priorities in which the peer has paused a port of a switch.
    #[must_use]
    pub fn silenced(&self, switch: SwitchId, port: usize) -> Option<u8> {
        let mut world = lock(&self.world);
        let now = world.env.now;
        world.switch_mut(switch.0)?.silenced(now, port)
    }

    /// Sets the priorities and the congestion control of the port of a function's card.
    ///
    /// # Panics
    /// If [`PortQos::check`] rejects the settings.
    pub fn set_qos(&self, function: &SimFunction, qos: PortQos) {
        function.set_qos(qos);
    }

    /// Returns counters of the pauses that the link partner requested from a card's port, by priority.
    #[must_use]
    pub fn pauses(&self, function: &SimFunction) -> [PauseCounters; 8] {
        self.of_card(function, |world, seat| world.env.card(seat).uplink.pauses)
    }

    /// Returns the congestion counters of the port of a function's card.
    #[must_use]
    pub fn congestion(&self, function: &SimFunction) -> CongestionCounters {
        self.of_card(function, |world, seat| {
            world.env.card(seat).uplink.congestion
        })
    }

    fn of_card<R>(&self, function: &SimFunction, look: impl FnOnce(&World, Seat) -> R) -> R {
        let world = lock(&self.world);
        look(&world, world.nics[function.index].seat)
    }
}
