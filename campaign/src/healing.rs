//! The last phase of a simulation: all faults are removed, and then all activity has to end.

use std::time::Duration;

use udapl::CloseFlags;

use crate::end::Phase;
use crate::side::ENDS;
use crate::world::World;

/// Maximum number of attempts to open a function after all faults were removed.
const ATTEMPTS: usize = 4;
/// Maximum number of loop iterations of a millisecond each until all activity has ended, including timeouts of the
/// connection manager and of the transport.
const HEALING: u32 = 400_000;
/// Maximum number of loop iterations, of 1 ms each, until all requests have completed on connections without a recorded
/// reason to end (`Link::spoiled`).
const CARRIED: u32 = 1_000;

impl World {
    /// Removes all faults, waits until all activity has ended, and checks that each function can be opened again.
    pub fn heal(&mut self) {
        self.healing = true;
        self.mend_wire();
        for side in 0..self.sides.len() {
            self.decide_held(side);
            self.release_reserved(side);
            self.make_missing(side);
        }
        // An injected fault may take effect later. Opening the function again removes the fault.
        for side in 0..self.sides.len() {
            if self.sides[side].tampered {
                self.close(side);
            }
        }
        self.wait_for_phases("every attempt to connect ends", |phase| {
            phase != Phase::Pending
        });
        self.drain_requests();
        for side in 0..self.sides.len() {
            for end in 0..ENDS {
                self.disconnect(side, end, CloseFlags::Abrupt);
            }
        }
        self.wait_for_phases(
            "every connection ends, and all that was posted comes back",
            |phase| phase == Phase::Idle,
        );
        for side in 0..self.sides.len() {
            self.close(side);
        }
        for side in 0..self.sides.len() {
            if self.sides[side].removed {
                self.reopen(side);
                assert!(
                    self.sides[side].open.is_none(),
                    "side {side} opens, and is not there"
                );
                continue;
            }
            // Opening removes faults that wait for commands. A dead device may need another attempt.
            for _ in 0..ATTEMPTS {
                if self.sides[side].open.is_none() {
                    self.reopen(side);
                }
            }
            assert!(
                self.sides[side].open.is_some(),
                "side {side} never opens again"
            );
            self.close(side);
        }
        self.check_all();
    }

    /// Waits until all posted requests have completed on connections without a recorded reason to end.
    fn drain_requests(&mut self) {
        let left = |world: &Self| {
            let mut left = Vec::new();
            for (side, one) in world.sides.iter().enumerate() {
                let ends = one.open.iter().flat_map(|open| open.ends.iter());
                for (at, end) in ends.enumerate() {
                    let link = end.link.map(|(link, _)| &world.links[link]);
                    let sound = link.is_some_and(|link| link.spoiled.is_none());
                    if sound && end.phase == Phase::Up && !end.requests.is_empty() {
                        left.push((side, at, end.requests.clone()));
                    }
                }
            }
            left
        };
        for _ in 0..CARRIED {
            if left(self).is_empty() {
                return;
            }
            self.run_once(Duration::from_millis(1));
        }
        panic!(
            "what was posted on a sound connection is done, but not this: {:?}",
            left(self)
        );
    }

    /// Runs loop iterations of a millisecond until `done` returns true for the phases of all endpoints. `what` names
    /// the condition in the message of a failure.
    fn wait_for_phases(&mut self, what: &str, done: impl Fn(Phase) -> bool) {
        let open = |world: &Self| {
            let mut left = Vec::new();
            for (side, one) in world.sides.iter().enumerate() {
                for (at, end) in one
                    .open
                    .iter()
                    .flat_map(|open| open.ends.iter().enumerate())
                {
                    if end.ep.is_some() && !done(end.phase) {
                        left.push((side, at, end.phase, end.requests.len(), end.receives.len()));
                    }
                }
            }
            left
        };
        for _ in 0..HEALING {
            if open(self).is_empty() {
                return;
            }
            self.run_once(Duration::from_millis(1));
        }
        panic!("{what}, but not these: {:?}", open(self));
    }
}
