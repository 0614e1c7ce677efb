//! Access of functions to their cards, and the events of cards for functions: link changes for each function, and
//! vport changes for the manager.

use super::seat::{PHYSICAL, Seat};
use super::{Card, CardEvent, Interest, Vport};
use crate::env::{Env, Timer};
use crate::port::Port;
use crate::profile::Profile;
use crate::time::nanoseconds;

impl Env {
    /// Returns the card of a function.
    ///
    /// # Panics
    /// Never: functions and their cards are created together.
    pub fn card(&self, seat: Seat) -> &Card {
        &self.cards[seat.card]
    }

    /// Returns the card of a function, to change it. After a change of link state, the caller calls
    /// [`Env::update_ports`].
    ///
    /// # Panics
    /// As [`Env::card`].
    pub fn card_mut(&mut self, seat: Seat) -> &mut Card {
        &mut self.cards[seat.card]
    }

    /// Returns a function's vport.
    ///
    /// # Panics
    /// Never: functions and their vports are created together, and a caller that names another function's vport checks
    /// first that the vport exists.
    pub fn vport(&self, seat: Seat) -> &Vport {
        &self.cards[seat.card].vports[usize::from(seat.vport)]
    }

    /// Returns a function's vport, to change it.
    ///
    /// # Panics
    /// As [`Env::vport`].
    pub fn vport_mut(&mut self, seat: Seat) -> &mut Vport {
        &mut self.cards[seat.card].vports[usize::from(seat.vport)]
    }

    /// Returns the part of the port's state that belongs to the function and that its reset erases.
    pub fn port(&self, seat: Seat) -> &Port {
        &self.vport(seat).port
    }

    /// Returns the part of the port's state that belongs to the function, to change it.
    pub fn port_mut(&mut self, seat: Seat) -> &mut Port {
        &mut self.vport_mut(seat).port
    }

    /// Returns whether frames pass a function's port.
    pub fn is_up(&self, seat: Seat) -> bool {
        self.card(seat).is_up(self.vport(seat))
    }

    /// Resets a function's part of its port. A reset of the physical function also resets the physical port, the
    /// forwarding table and the e-switch's tables.
    pub fn reset_port(&mut self, seat: Seat, profile: &Profile) {
        let card = self.card_mut(seat);
        if !seat.is_virtual() {
            card.forget_manager();
            card.forwarding.clear();
            card.uplink.reset();
        }
        let vport = self.vport_mut(seat);
        let listed = vport.reset(profile);
        // No event is reported, because the next driver queries the state.
        let up = self.is_up(seat);
        self.vport_mut(seat).reported_up = up;
        if listed {
            self.vport_changed(seat, Interest::LISTS);
        }
        // The drivers of the virtual functions still run, so changes of their ports are reported.
        if !seat.is_virtual() {
            self.update_ports(seat);
        }
    }

    /// Re-evaluates the state of the card's ports after a change: starts or stops training, and notifies functions.
    pub fn update_ports(&mut self, seat: Seat) {
        let (now, manager) = (self.now, self.subnet_manager);
        let card = self.card_mut(seat);
        let training = nanoseconds(card.rules.link_training);
        let due = card.uplink.update_training(now, training);
        let states: Vec<bool> = card.vports.iter().map(|vport| card.is_up(vport)).collect();
        let mut changed = Vec::new();
        for (vport, up) in card.vports.iter_mut().zip(states) {
            if vport.reported_up != up {
                vport.reported_up = up;
                if let Some(subnet) = &mut vport.port.subnet {
                    subnet.link_changed(manager);
                }
                changed.push((vport.function, CardEvent::Port { up }));
            }
        }
        let physical = card.vports.first().map(|vport| vport.function);
        self.card_events.extend(changed);
        if let (Some(due), Some(function)) = (due, physical) {
            self.schedule(due, function, Timer::Trained);
        }
    }

    /// Returns the index of the manager's function in the simulator.
    pub fn manager(&self, seat: Seat) -> Option<usize> {
        self.card(seat).vport(PHYSICAL).map(|vport| vport.function)
    }

    /// Arms the manager's event for changes of a vport. If a change is pending, the event is reported at once.
    pub fn arm(&mut self, seat: Seat, what: Interest) {
        let manager = self.card(seat).vport(PHYSICAL).map(|vport| vport.function);
        if self.vport_mut(seat).arm(what)
            && let Some(manager) = manager
        {
            self.card_events
                .push_back((manager, CardEvent::VportChange { vport: seat.vport }));
        }
    }

    /// Records that a driver changed the parts `what` of its vport, and notifies the manager if the manager's event is
    /// armed.
    pub fn vport_changed(&mut self, seat: Seat, what: Interest) {
        let card = self.card_mut(seat);
        let remembers = card.rules.remembers_changes;
        let manager = card.vport(PHYSICAL).map(|vport| vport.function);
        if self.vport_mut(seat).change(what, remembers)
            && let Some(manager) = manager
        {
            self.card_events
                .push_back((manager, CardEvent::VportChange { vport: seat.vport }));
        }
    }
}
