//! What functions ask of their cards, and what cards tell them: ports that come up, managers that want to know.

use super::seat::{PHYSICAL, Seat};
use super::{Card, Happening, Interest, Vport};
use crate::env::{Env, Timer};
use crate::port::Port;
use crate::profile::Profile;
use crate::time::nanoseconds;

impl Env {
    /// The card a function sits on.
    ///
    /// # Panics
    /// There is none: functions and their cards are made together.
    pub fn card(&self, seat: Seat) -> &Card {
        &self.cards[seat.card]
    }

    /// The card a function sits on, to change it; [`Env::settle`] tells whom it concerns.
    ///
    /// # Panics
    /// As [`Env::card`].
    pub fn card_mut(&mut self, seat: Seat) -> &mut Card {
        &mut self.cards[seat.card]
    }

    /// A function's vport.
    ///
    /// # Panics
    /// There is none: functions and their vports are made together, and whoever names another's looks first.
    pub fn vport(&self, seat: Seat) -> &Vport {
        &self.cards[seat.card].vports[usize::from(seat.vport)]
    }

    /// A function's vport, to change it.
    ///
    /// # Panics
    /// As [`Env::vport`].
    pub fn vport_mut(&mut self, seat: Seat) -> &mut Vport {
        &mut self.cards[seat.card].vports[usize::from(seat.vport)]
    }

    /// What a function itself keeps of its port.
    pub fn port(&self, seat: Seat) -> &Port {
        &self.vport(seat).port
    }

    /// What a function itself keeps of its port, to change it.
    pub fn port_mut(&mut self, seat: Seat) -> &mut Port {
        &mut self.vport_mut(seat).port
    }

    /// Whether frames pass a function's port.
    pub fn is_up(&self, seat: Seat) -> bool {
        self.card(seat).is_up(self.vport(seat))
    }

    /// A function was reset: what it kept of its port is gone.
    pub fn reset_port(&mut self, seat: Seat, profile: &Profile) {
        let card = self.card_mut(seat);
        if !seat.is_virtual() {
            card.forget_manager();
            card.forwarding.clear();
            card.uplink.reset();
        }
        let vport = self.vport_mut(seat);
        let listed = vport.reset(profile);
        // Its next driver asks for the state; no event is owed.
        let up = self.is_up(seat);
        self.vport_mut(seat).told_up = up;
        if listed {
            self.vport_changed(seat, Interest::LISTS);
        }
    }

    /// Something that the state of ports follows from has changed: training begins or ends, functions are told.
    pub fn settle(&mut self, seat: Seat) {
        let (now, manager) = (self.now, self.subnet_manager);
        let card = self.card_mut(seat);
        let training = nanoseconds(card.rules.link_training);
        let due = card.uplink.settle(now, training);
        let states: Vec<bool> = card.vports.iter().map(|vport| card.is_up(vport)).collect();
        let mut changed = Vec::new();
        for (vport, up) in card.vports.iter_mut().zip(states) {
            if vport.told_up != up {
                vport.told_up = up;
                if let Some(subnet) = &mut vport.port.subnet {
                    subnet.link_changed(manager);
                }
                changed.push((vport.function, Happening::Port { up }));
            }
        }
        let physical = card.vports.first().map(|vport| vport.function);
        self.happenings.extend(changed);
        if let (Some(due), Some(function)) = (due, physical) {
            self.schedule(due, function, Timer::Trained);
        }
    }

    /// The manager's function, by its place in the world.
    pub fn manager(&self, seat: Seat) -> Option<usize> {
        self.card(seat).vport(PHYSICAL).map(|vport| vport.function)
    }

    /// The manager arms for changes of a vport. It is told at once of one it has not seen.
    pub fn arm(&mut self, seat: Seat, what: Interest) {
        let manager = self.card(seat).vport(PHYSICAL).map(|vport| vport.function);
        if self.vport_mut(seat).arm(what)
            && let Some(manager) = manager
        {
            self.happenings
                .push_back((manager, Happening::VportChange { vport: seat.vport }));
        }
    }

    /// A driver changed what the manager may want to know of its vport.
    pub fn vport_changed(&mut self, seat: Seat, what: Interest) {
        let card = self.card_mut(seat);
        let remembers = card.rules.remembers_changes;
        let manager = card.vport(PHYSICAL).map(|vport| vport.function);
        if self.vport_mut(seat).change(what, remembers)
            && let Some(manager) = manager
        {
            self.happenings
                .push_back((manager, Happening::VportChange { vport: seat.vport }));
        }
    }
}
