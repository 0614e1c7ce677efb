//! Several instances of one adapter: they come and go while others go on, and have the port, memory and the connection
//! manager in common.
//!
//! Each is a side of the world with queues, objects and endpoints of its own, and all that must hold of an adapter
//! holds of it. What befalls the function befalls them all. They listen at qualifiers of their own and at one together;
//! who is asked there is known when it accepts.

use rand::Rng;
use udapl::{Adapter, DmaMemory, PspFlags};

use crate::Feature;
use crate::calls::STATELESS;
use crate::keys::Key;
use crate::side::{COMMON_QUAL, CONN_QUAL, OTHER_QUAL};
use crate::world::World;

impl World {
    /// The sides that are instances of a side's function, itself among them.
    pub fn kin(&self, side: usize) -> Vec<usize> {
        let place = self.sides[side].place;
        let of = |other: &usize| self.sides[*other].place == place;
        (0..self.sides.len()).filter(of).collect()
    }

    /// Other instances of a side's function that are open.
    pub fn beside(&self, side: usize) -> Vec<usize> {
        let open = |other: &usize| *other != side && self.sides[*other].open.is_some();
        self.kin(side).into_iter().filter(open).collect()
    }

    /// Something happens to a function that may end connections and attempts of all its instances.
    pub fn spoil_function(&mut self, why: &'static str, side: usize) {
        for other in self.kin(side) {
            self.spoil_side(why, other);
        }
    }

    /// One more instance of the adapter that another side has open.
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
        self.tell(
            side,
            format_args!("another instance: {:?}", answer.as_ref().err()),
        );
        if let Err(error) = answer {
            let sound = !self.sides[side].tampered && !dead;
            assert!(!sound, "side {side} is no other instance: {error}");
        }
    }

    /// An instance ends while others go on, or listens with them, or does so no more.
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

    /// Where a request is handed off to: another service point of the side, or one of another instance.
    pub fn elsewhere(&mut self, side: usize) -> u64 {
        let own = OTHER_QUAL + self.sides[side].manner.apart;
        let beside = self.beside(side);
        if beside.is_empty() {
            return own;
        }
        match self.random.random_range(0..=beside.len()) {
            0 if self.has(Feature::Listeners) => own,
            0 => COMMON_QUAL,
            at => CONN_QUAL + self.sides[beside[at - 1]].manner.apart,
        }
    }

    /// Memory that was allocated through another instance, sometimes.
    pub fn slot_of_kin(&mut self, side: usize) -> Option<DmaMemory> {
        if !self.sides[side].manner.several || self.random.random_bool(0.5) {
            return None;
        }
        let other = *self.beside(side).first()?;
        self.cover
            .count("instance", "registers memory of another one");
        Some(self.sides[other].open.as_ref()?.slot())
    }

    /// Keys of other instances of a side's function: they open nothing to its peers.
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
