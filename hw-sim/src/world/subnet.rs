//! InfiniBand switches of the simulator, and the cables between cards and these switches.

use super::{Cable, World, side_of};
use crate::card::CardEvent;
use crate::link::{Link, LinkFaults};
use crate::network::{End, NotConnected};
use crate::record::Record;
use crate::subnet::Manager;
use crate::subnet::switch::{LinkChange, SubnetSwitch};
use rand::RngCore;

/// Maximum number of InfiniBand switches.
const SWITCHES: usize = 64;

impl World {
    /// Lets a subnet manager program configure the InfiniBand subnet: the ports of existing cards lose their LID and
    /// start again in Init. Existing switches stay preset.
    pub fn use_external_subnet_manager(&mut self) {
        self.env.subnet_manager = Manager::Outside;
        for card in &mut self.env.cards {
            card.unmanage();
        }
    }

    /// Adds an InfiniBand switch. Returns its number.
    ///
    /// # Errors
    /// [`NotConnected::Port`] if there are too many switches, or if the number of ports is out of range.
    pub fn add_subnet_switch(&mut self, ports: usize) -> Result<usize, NotConnected> {
        let number = self.subnet.len();
        if number >= SWITCHES || !crate::subnet::switch::PORTS.contains(&ports) {
            return Err(NotConnected::Port);
        }
        self.input(|| Record::SubnetSwitch { ports });
        let manager = self.env.subnet_manager;
        self.subnet.push(SubnetSwitch::new(number, ports, manager));
        Ok(number)
    }

    /// Connects a function's card to a port of an InfiniBand switch by a link. Switch ports count from 1. Returns the
    /// number of the link.
    ///
    /// # Errors
    /// [`NotConnected::Port`] if the port does not exist, or if an end already has a cable.
    pub fn connect_subnet(
        &mut self,
        nic: usize,
        (switch, port): (usize, usize),
        faults: LinkFaults,
    ) -> Result<usize, NotConnected> {
        let seat = self.nics[nic].seat;
        let ends = [End::Card(seat.card), End::Subnet { switch, port }];
        let is_there = self
            .subnet
            .get(switch)
            .is_some_and(|switch| switch.has(port));
        let is_laid = |cable: &Cable| ends.iter().any(|end| cable.ends.contains(end));
        if !is_there || self.cables.iter().any(is_laid) {
            return Err(NotConnected::Port);
        }
        self.input(|| Record::SubnetCable {
            function: nic,
            switch,
            port,
            faults,
        });
        let seed = self.env.rng.next_u64();
        if faults.corrupts() {
            self.env.seal();
        }
        self.cables.push(Cable {
            link: Link::new(seed, faults),
            ends,
        });
        self.env.set_light(seat, true);
        let (up, lid) = (self.env.is_up(seat), self.env.port(seat).lid());
        // CAST: a switch has at most fifteen ports.
        let port = u8::try_from(port).unwrap_or(u8::MAX);
        let switch = &mut self.subnet[switch];
        switch.link_changed(port, up);
        if let Some(lid) = lid {
            switch.preset(lid, port);
        }
        Ok(self.cables.len() - 1)
    }

    /// Forwards a port event of a function to the switch at the other end of the cable.
    pub(super) fn pass_port_event(&mut self, nic: usize, card_event: CardEvent) {
        let CardEvent::Port { up } = card_event else {
            return;
        };
        // The link of a virtual function ends at the card's own switch.
        if self.nics[nic].seat.is_virtual() {
            return;
        }
        let end = End::Card(self.nics[nic].seat.card);
        let cable = self.cables.iter().find(|cable| cable.ends.contains(&end));
        if let Some(End::Subnet { switch, port }) = cable.map(|cable| side_of(cable, end).1) {
            // CAST: a switch has at most fifteen ports.
            let port = u8::try_from(port).unwrap_or(u8::MAX);
            self.subnet[switch].link_changed(port, up);
        }
    }

    /// Takes the link of a card down at both ends, and trains it again.
    pub(super) fn retrain(&mut self, nic: usize) {
        let seat = self.nics[nic].seat;
        let end = End::Card(seat.card);
        let cable = self.cables.iter().find(|cable| cable.ends.contains(&end));
        let other = match cable.map(|cable| side_of(cable, end).1) {
            Some(End::Card(card)) => self.physical(card),
            Some(End::Switch { .. } | End::Subnet { .. } | End::Outside) | None => None,
        };
        for seat in [Some(seat), other].into_iter().flatten() {
            if self.env.is_up(seat) {
                self.env.set_light(seat, false);
                self.env.set_light(seat, true);
            }
        }
    }

    /// Handles a packet that has arrived at an InfiniBand switch.
    pub(super) fn subnet_receives(&mut self, number: usize, port: usize, frame: Vec<u8>) {
        let Some(switch) = self.subnet.get_mut(number) else {
            return;
        };
        let by = u8::try_from(port).unwrap_or(u8::MAX);
        let (departures, link_changes) = (switch.receive(by, frame), switch.take_link_changes());
        for (port, frame) in departures {
            let port = usize::from(port);
            let end = End::Subnet {
                switch: number,
                port,
            };
            let now = self.env.now;
            let cable = self
                .cables
                .iter_mut()
                .find(|cable| cable.ends.contains(&end));
            if let Some(cable) = cable {
                let (side, _) = side_of(cable, end);
                cable.link.send(now, side, frame);
            }
        }
        for (port, change) in link_changes {
            let port = usize::from(port);
            let end = End::Subnet {
                switch: number,
                port,
            };
            let cable = self.cables.iter().find(|cable| cable.ends.contains(&end));
            if let Some(End::Card(card)) = cable.map(|cable| side_of(cable, end).1)
                && let Some(seat) = self.physical(card)
            {
                match change {
                    LinkChange::Disabled => self.env.set_light(seat, false),
                    LinkChange::Enabled => self.env.set_light(seat, true),
                    LinkChange::Retrain => self.env.retrain_soon(seat),
                }
            }
        }
    }
}
