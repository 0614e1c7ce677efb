//! Remote invalidation: a program binds a window so that peers may invalidate its key, and a peer's Send with
//! Invalidate does so.
//!
//! As soon as one of the two programs gets the completion, no peer may access the memory of that key. The memory is
//! checked for changes, and connected peers write with the key. Peers also try to invalidate keys that they may not
//! invalidate: keys of regions, keys of windows bound without that right, and void keys. Such a request breaks its
//! connection and does not change the key.

use std::time::Duration;

use rand::Rng;
use udapl::{CompletionFlags, MemPrivFlags};

use crate::bytes::SLOT;
use crate::end::{Kind, Phase, Work};
use crate::side::WINDOW_COUNT;
use crate::world::World;

impl World {
    /// Binds a window whose key peers may invalidate, or invalidates such a key of the peer. The peer binds a window
    /// first if it has none.
    pub fn bind_or_invalidate(&mut self, side: usize, at: usize) {
        let (which, takes) = (
            self.random.random_range(0..WINDOW_COUNT),
            self.random.random_ratio(3, 4),
        );
        if !takes {
            self.yield_window(side, at, which);
            return;
        }
        let Some((peer, there)) = self.peer_of(side, at) else {
            return;
        };
        let has_none = |world: &Self| {
            let open = world.sides[peer].open.as_ref();
            open.is_some_and(|open| open.yielded().next().is_none())
        };
        if has_none(self) {
            self.yield_window(peer, there, which);
            self.run_once(Duration::from_micros(100));
        }
        self.invalidate_peer_key(side, at);
    }

    /// Binds a window so that peers may invalidate its key.
    fn yield_window(&mut self, side: usize, at: usize, which: usize) {
        let window_memory = |world: &Self| {
            let open = world.sides[side].open.as_ref();
            open.and_then(|open| {
                open.window_memories
                    .get(which)
                    .map(|window_memory| window_memory.rmr.is_some())
            })
        };
        if window_memory(self) == Some(false) {
            self.make_window(side, which);
        }
        if window_memory(self) == Some(true) {
            let none = CompletionFlags::empty();
            self.bind_with(side, at, which, true, MemPrivFlags::REMOTE_INVALIDATE, none);
        }
    }

    /// Returns the side and the endpoint at the other end of an endpoint's connection, if they still exist.
    fn peer_of(&self, side: usize, at: usize) -> Option<(usize, usize)> {
        let end = &self.sides[side].open.as_ref()?.ends[at];
        let (link, own) = end.link.filter(|_| end.phase == Phase::Up)?;
        let (peer, opening, there) = self.links[link].ends[1 - own];
        let other = self.sides.get(peer)?;
        (other.openings == opening && other.open.is_some()).then_some((peer, there))
    }

    /// Tries to invalidate a key of the peer. Then, in half of the calls, all endpoints that are connected to the peer
    /// write with keys of the peer.
    fn invalidate_peer_key(&mut self, side: usize, at: usize) {
        let (draw, pick, bytes, fence) = (
            self.random.random_range(0..8),
            self.random.random_range(0..12),
            8 * self.random.random_range(0..=SLOT / 8),
            self.random.random_ratio(1, 8),
        );
        let Some((peer, there)) = self.peer_of(side, at) else {
            return;
        };
        let Some(open) = &self.sides[peer].open else {
            return;
        };
        let contexts: Vec<u32> = if draw == 0 {
            let keys = open.known_keys().map(|key| key.context);
            keys.chain([open.written.lmr.rmr_context]).collect()
        } else {
            open.yielded().collect()
        };
        let Some(&context) = contexts.get(pick % contexts.len().max(1)) else {
            return;
        };
        self.receive(peer, there);
        self.post_one(side, at, Kind::Invalidate(context), bytes, 0, fence);
        if draw < 4 {
            self.run_once(Duration::from_micros(100));
            self.attack(peer);
        }
    }

    /// Records that a request with invalidation is about to be posted. Unless its success is certain, its connection
    /// may break, and so may the connections of all other requests that invalidate the same key. This is recorded, too.
    pub fn record_claim(&mut self, link: usize, (peer, opening): (usize, u64), work: &Work) {
        let Kind::Invalidate(context) = work.kind else {
            return;
        };
        let owner = self.sides.get_mut(peer);
        let open = owner.filter(|owner| owner.openings == opening);
        let open = open.and_then(|owner| owner.open.as_mut());
        let is_sure = open.is_some_and(|open| {
            let is_there = open.yielded().any(|yielded| yielded == context);
            open.claim(context) && is_there
        });
        if !is_sure {
            self.spoil_link(
                link,
                "a key that is not there, or others take, or nobody may",
            );
            self.spoil_takers_of(peer, context);
        }
    }

    /// Records that a window is about to be bound again, unbound or freed. An outstanding request that invalidates the
    /// window's key may arrive too late and break the request's connection.
    pub fn spoil_takers(&mut self, side: usize, which: usize) {
        let open = self.sides[side].open.as_ref();
        let context = open.and_then(|open| open.window_memories[which].context);
        if let Some(context) = context {
            self.spoil_takers_of(side, context);
        }
    }

    fn spoil_takers_of(&mut self, owner: usize, context: u32) {
        let mut links = Vec::new();
        for open in self.sides.iter().filter_map(|side| side.open.as_ref()) {
            for end in &open.ends {
                let takes = |work: &Work| work.kind == Kind::Invalidate(context);
                if let Some((link, own)) = end.link
                    && self.links[link].ends[1 - own].0 == owner
                    && end.requests.iter().any(takes)
                {
                    links.push(link);
                }
            }
        }
        for link in links {
            self.spoil_link(link, "a key that changes while it is taken");
        }
    }

    /// Records that a request with invalidation has succeeded.
    pub fn took(&mut self, side: usize, (peer, opening): (usize, u64), work: &Work, context: u32) {
        let number = self.next_number();
        let owner = self.sides.get_mut(peer);
        let open = owner.filter(|owner| owner.openings == opening);
        let Some(open) = open.and_then(|owner| owner.open.as_mut()) else {
            return;
        };
        assert!(
            work.void.is_none() || open.yields(context),
            "side {side} took key {context:#x} from side {peer}, which was nobody's to take"
        );
        open.taken(context, number);
        self.cover.count("take a key away", "done");
    }

    /// Records that a program has got the receive completion with the invalidation of its key.
    pub fn key_invalidated(&mut self, side: usize, context: u32) {
        let number = self.next_number();
        if let Some(open) = &mut self.sides[side].open {
            open.invalidation_reported(context, number);
            self.cover.count("lose a key to a peer", "heard");
        }
    }
}
