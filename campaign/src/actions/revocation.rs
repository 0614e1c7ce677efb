//! Revocation of access while the device refuses the command, and peers that immediately use the revoked key.
//!
//! A fault that waits for one of forty commands rarely affects a command that ends access. A peer that writes at random
//! rarely uses a key just after it becomes void. Here both are forced: the command for one action is refused or not
//! answered, the action is performed, and every connected peer writes with a key of the side.

use std::time::Duration;

use hw_sim::Fault;
use mlx_prm::Opcode;
use rand::Rng;
use udapl::CloseFlags;
use udapl::memory::RmrTriplet;

use crate::Feature;
use crate::bytes::SLOT;
use crate::end::{Kind, Phase};
use crate::keys::Key;
use crate::side::{ENDS, Open, WINDOW_COUNT};
use crate::world::World;

impl World {
    /// Performs an action that ends access, while the device refuses or does not answer the action's command. The call
    /// fails, or the function is stopped.
    pub fn revoke_with_fault(&mut self, side: usize, at: usize) {
        let (action, which, times) = (
            self.random.random_range(0..8),
            self.random.random_range(0..WINDOW_COUNT),
            self.random.random_range(1..4),
        );
        let rebinds = action > 5 && self.has(Feature::Windows);
        if rebinds && !self.bound_and_left(side, at, which) {
            return;
        }
        let opcode = match action {
            0..=3 | 6.. => Opcode::DESTROY_MKEY,
            4 => Opcode::TO_ERR_QP,
            _ => Opcode::DESTROY_QP,
        };
        let silent = self.random.random_ratio(1, 4);
        if self.has(Feature::Silent) && (silent || !self.has(Feature::Refused)) {
            let fault = Fault::CommandSilence {
                opcode: Some(opcode.0),
                count: times,
            };
            self.inject(side, "silent command", &fault);
        } else {
            let fault = Fault::CommandFailure {
                opcode: Some(opcode.0),
                status: 0x09,
                syndrome: 0,
                count: times,
            };
            self.inject(side, "refused command", &fault);
        }
        match action {
            2 if self.has(Feature::Windows) => self.free_window(side, which),
            3 if self.has(Feature::Windows) => self.bind(side, at, which, false),
            0..=3 => self.free_region(side),
            4 => self.disconnect(side, at, CloseFlags::Abrupt),
            6.. if rebinds => self.bind(side, at, which, times == 1),
            _ => {
                self.renew(side, at);
            }
        }
        // A bind counts as done only when the program has dequeued its completion.
        self.events(side);
        self.attack(side);
    }

    /// Binds a window, and disconnects the endpoint. Then the next bind on that endpoint fails, and a command must
    /// unbind the window. Returns whether the window is bound.
    fn bound_and_left(&mut self, side: usize, at: usize, which: usize) -> bool {
        let bound = |world: &Self| {
            let open = world.sides[side].open.as_ref();
            let window_memory = open.and_then(|open| open.window_memories.get(which));
            window_memory.is_some_and(|window_memory| {
                window_memory.key.is_some() && window_memory.binds == 0
            })
        };
        let lacks = |world: &Self| {
            let open = world.sides[side].open.as_ref();
            let window_memory = open.and_then(|open| open.window_memories.get(which));
            window_memory.is_some_and(|window_memory| window_memory.rmr.is_none())
        };
        if lacks(self) {
            self.make_window(side, which);
        }
        if !bound(self) {
            self.bind(side, at, which, true);
            self.run_once(Duration::from_micros(100));
        }
        self.disconnect(side, at, CloseFlags::Abrupt);
        bound(self)
    }

    /// Makes every endpoint that is connected to a side write with one of the side's valid or recently void keys. In
    /// half of the cases this is the key that became void last, if there is one.
    pub fn attack(&mut self, side: usize) {
        let youngest = self.sides[side].open.as_ref().and_then(Open::youngest_void);
        for (other, at) in self.connected_to(side) {
            let (any, last) = (
                self.random.random_range(0..12),
                self.random.random_bool(0.5),
            );
            let pick = youngest.filter(|_| last).unwrap_or(any);
            self.post_one(other, at, Kind::Attack, SLOT, pick, false);
        }
    }

    /// Returns the side and the index of all endpoints that are connected to an endpoint of this side.
    fn connected_to(&self, side: usize) -> Vec<(usize, usize)> {
        let all = (0..self.sides.len()).flat_map(|other| (0..ENDS).map(move |at| (other, at)));
        all.filter(|(other, at)| {
            let end = self.sides[*other].open.as_ref().map(|open| &open.ends[*at]);
            end.is_some_and(|end| {
                let peer = end.link.map(|(link, own)| self.links[link].ends[1 - own].0);
                end.phase == Phase::Up && peer == Some(side)
            })
        })
        .collect()
    }

    /// Returns the valid keys of an adapter that is about to close. The close makes all of them void.
    pub fn keys_of(&self, side: usize) -> Vec<Key> {
        let open = self.sides[side].open.as_ref();
        open.map_or_else(Vec::new, |open| open.granted().collect())
    }

    /// Makes every peer of a closed adapter write to its memory with keys that the adapter had given to peers.
    pub fn attack_closed(&mut self, side: usize, keys: Vec<Key>) {
        if self.healing || self.scripted {
            return;
        }
        self.closed_keys = keys;
        self.attack(side);
        self.closed_keys.clear();
    }

    /// Returns the target of an attack on an adapter that was closed or dropped.
    pub fn closed_target(&self, pick: usize, bytes: usize) -> Option<RmrTriplet> {
        let key = self.closed_keys.get(pick % self.closed_keys.len().max(1))?;
        Some(RmrTriplet {
            rmr_context: key.context,
            target_address: key.address,
            segment_length: bytes as u64,
        })
    }
}
