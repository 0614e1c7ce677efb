//! Cases that need a distant peer: requests are outstanding while the program goes on.
//!
//! The wire has no delay by default, so a request completes before the next call. Here the wire has a delay during one
//! action. So a graceful disconnect finds outstanding requests, and a bind waits behind a fenced Read while another
//! endpoint binds the same window, if that bind is accepted.

use hw_sim::{Faults, LinkFaults};
use rand::Rng;
use udapl::{CloseFlags, CompletionFlags, MemPrivFlags};

use crate::end::{Kind, Phase, WINDOW};
use crate::side::ENDS;
use crate::world::World;

/// Delay of the wire in each direction.
const FAR: Faults = Faults {
    delay_ns: 50_000,
    ..Faults::NONE
};

impl World {
    /// Performs an action while the wire has a delay. Does nothing if the wire has another fault.
    fn at_a_distance(&mut self, deed: impl FnOnce(&mut Self)) {
        let calm = self.until.is_none() && self.now() >= self.trained && self.repeats.is_none();
        if !calm {
            return;
        }
        self.sim.set_faults(self.wire, LinkFaults::both(FAR));
        deed(self);
        self.sim.set_faults(self.wire, LinkFaults::default());
    }

    /// Posts requests and disconnects gracefully before they complete.
    pub fn linger(&mut self, side: usize, at: usize) {
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

    /// Binds a window on one endpoint behind a slow Read, and immediately binds it on another endpoint.
    pub fn bind_twice(&mut self, side: usize, which: usize) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let up = |at: &usize| open.ends[*at].phase == Phase::Up;
        let ends: Vec<usize> = (0..ENDS).filter(up).collect();
        let (&[one, other, ..], Some(veil)) = (&ends[..], open.veils.get(which)) else {
            return;
        };
        if open.dead || veil.rmr.is_none() || veil.binds > 0 {
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
