//! Actions that need outstanding requests.
//!
//! The wire has no delay by default, so a request completes before the next call. Here the wire has a delay during one
//! action. So a graceful disconnect finds outstanding requests. A fenced bind waits for a Read while another endpoint
//! tries to bind the same window.

use hw_sim::{Faults, LinkFaults};
use rand::Rng;
use udapl::{CloseFlags, CompletionFlags, MemPrivFlags};

use crate::end::{Kind, Phase, WINDOW};
use crate::side::ENDS;
use crate::world::World;

/// Faults of the wire during an action: only a delay of 50 µs in each direction.
const FAR: Faults = Faults {
    delay_ns: 50_000,
    ..Faults::NONE
};

impl World {
    /// Performs an action while the wire has a delay. Does nothing if the wire has a fault or its links are in
    /// training.
    fn at_a_distance(&mut self, action: impl FnOnce(&mut Self)) {
        let calm = self.until.is_none() && self.now() >= self.trained && self.repeats.is_none();
        if !calm {
            return;
        }
        self.sim.set_faults(self.wire, LinkFaults::both(FAR));
        action(self);
        self.sim.set_faults(self.wire, LinkFaults::default());
    }

    /// Posts requests and disconnects gracefully before they complete.
    pub fn disconnect_with_requests(&mut self, side: usize, at: usize) {
        let count = self.random.random_range(1..=WINDOW);
        let up = |world: &Self| {
            let open = world.sides[side].open.as_ref();
            open.is_some_and(|open| open.ends[at].phase == Phase::Up && !open.dead)
        };
        if !up(self) {
            return;
        }
        self.at_a_distance(|world| {
            for _ in 0..count {
                world.post_one(side, at, Kind::Write, 8, 0, false);
            }
            world.disconnect(side, at, CloseFlags::Graceful);
            world.cover.count("disconnect", "with requests under way");
        });
    }

    /// Posts a Read and a fenced bind of a window on one endpoint, and immediately a bind of the window on another
    /// endpoint.
    pub fn bind_twice(&mut self, side: usize, which: usize) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let up = |at: &usize| open.ends[*at].phase == Phase::Up;
        let ends: Vec<usize> = (0..ENDS).filter(up).collect();
        let (&[one, other, ..], Some(window_memory)) = (&ends[..], open.window_memories.get(which))
        else {
            return;
        };
        if open.dead || window_memory.rmr.is_none() || window_memory.binds > 0 {
            return;
        }
        self.at_a_distance(|world| {
            world.post_one(side, one, Kind::Read, 8, 0, false);
            let fenced = CompletionFlags::BARRIER_FENCE;
            world.bind_with(side, one, which, true, MemPrivFlags::empty(), fenced);
            world.bind(side, other, which, true);
            world.cover.count("bind a window", "on two endpoints");
        });
    }
}
