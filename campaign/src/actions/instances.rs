//! Several instances of one adapter. The instances are opened and closed independently, and share the port, memory and
//! the connection manager.
//!
//! Each instance is a side of the simulation with queues, objects and endpoints of its own, and every check of an
//! adapter applies to it. A fault of the function affects all its instances. Each instance listens at qualifiers of its
//! own, and all listen at a common one. The simulation learns which instance got a request at the common qualifier when
//! that instance accepts.

use rand::Rng;
use udapl::{Adapter, DmaMemory, PspFlags};

use crate::Feature;
use crate::calls::STATELESS;
use crate::keys::Key;
use crate::side::{COMMON_QUAL, CONN_QUAL, OTHER_QUAL};
use crate::world::World;

impl World {
    /// Returns the sides that are instances of the same function as `side`, including `side`.
    pub fn kin(&self, side: usize) -> Vec<usize> {
        let place = self.sides[side].place;
        let of = |other: &usize| self.sides[*other].place == place;
        (0..self.sides.len()).filter(of).collect()
    }

    /// Returns the other open instances of a side's function.
    pub fn beside(&self, side: usize) -> Vec<usize> {
        let open = |other: &usize| *other != side && self.sides[*other].open.is_some();
        self.kin(side).into_iter().filter(open).collect()
    }

    /// Records an event at a function that may end the connections and connection attempts of all its instances.
    pub fn spoil_function(&mut self, why: &'static str, side: usize) {
        for other in self.kin(side) {
            self.spoil_side(why, other);
        }
    }

    /// Opens `side` as another instance of the adapter that the side `other` has open.
    pub fn join(&mut self, side: usize, other: usize) {
        let Some(open) = &self.sides[other].open else {
            return;
        };
        let (adapter, dead) = (Adapter::of(&open.ia), open.dead);
        let answer = self.timed(side, "dat_ia_open", |world| {
            world.sides[side].join(side, &adapter)
        });
        self.cover.call("dat_ia_open", STATELESS, answer.is_ok());
        let came_to = if answer.is_ok() { "opened" } else { "refused" };
        self.cover.count("instance", came_to);
        self.trace_line(
            side,
            format_args!("another instance: {:?}", answer.as_ref().err()),
        );
        if let Err(error) = answer {
            let sound = !self.sides[side].tampered && !dead;
            assert!(!sound, "side {side} is no other instance: {error}");
        }
    }

    /// Closes or drops an instance while others remain open, or starts or stops listening at the common qualifier.
    pub fn change_of_instances(&mut self, side: usize) {
        let draw = self.random.random_range(0..6);
        let alone = self.beside(side).is_empty();
        match draw {
            0..=1 if !alone => {
                self.cover.count("instance", "closed");
                self.close(side);
            }
            2 if !alone => {
                self.cover.count("instance", "dropped");
                self.abandon(side);
            }
            _ => {
                let Some(open) = &self.sides[side].open else {
                    return;
                };
                let common = open.spare.common;
                let common = self.point(side, common, COMMON_QUAL, PspFlags::CONSUMER);
                self.cover
                    .count("instance", "listens with others, or no more");
                if let Some(open) = &mut self.sides[side].open {
                    open.spare.common = common;
                }
            }
        }
    }

    /// Returns the qualifier to which a request is handed off: the qualifier of another service point of the side, of
    /// another instance, or the common qualifier.
    pub fn elsewhere(&mut self, side: usize) -> u64 {
        let own = OTHER_QUAL + self.sides[side].side_config.apart;
        let beside = self.beside(side);
        if beside.is_empty() {
            return own;
        }
        match self.random.random_range(0..=beside.len()) {
            0 if self.has(Feature::Listeners) => own,
            0 => COMMON_QUAL,
            at => CONN_QUAL + self.sides[beside[at - 1]].side_config.apart,
        }
    }

    /// Allocates memory of one slot through another open instance of the function, if there is one, in half of the
    /// calls. Otherwise returns `None`.
    pub fn slot_of_kin(&mut self, side: usize) -> Option<DmaMemory> {
        if !self.sides[side].side_config.several || self.random.random_bool(0.5) {
            return None;
        }
        let other = *self.beside(side).first()?;
        self.cover
            .count("instance", "registers memory of another one");
        Some(self.sides[other].open.as_ref()?.slot())
    }

    /// Returns the keys of other instances of the side's function, marked as void: this side's peers may access nothing
    /// with them.
    pub fn keys_of_kin(&self, side: usize) -> Vec<Key> {
        let beside = self.beside(side);
        let opens = beside
            .iter()
            .filter_map(|other| self.sides[*other].open.as_ref());
        let void = |key: Key| Key {
            void: Some(0),
            ..key
        };
        opens
            .flat_map(|open| open.granted().map(void).collect::<Vec<_>>())
            .collect()
    }
}
