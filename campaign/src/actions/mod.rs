//! Random actions of programs. The modules group the actions by the objects that they use.

mod batches;
mod busy;
mod connections;
mod distance;
mod handover;
mod instances;
mod invalidation;
mod life;
mod listeners;
mod memory;
mod objects;
mod overrun;
mod poke;
mod queues;
mod requests;
mod revocation;
pub mod traffic;

use rand::Rng;
use udapl::{CloseFlags, DatResult};

use crate::Feature;
use crate::side::{ENDS, WINDOW_COUNT};
use crate::world::World;

fn outcome<T>(answer: &DatResult<T>) -> &'static str {
    match answer {
        Ok(_) => "done",
        Err(_) => "refused",
    }
}

impl World {
    /// Performs one random action of a program.
    pub fn action(&mut self, side: usize) {
        if self.sides[side].open.is_none() {
            // An attempt to open a removed function always fails, so such attempts are rare.
            if !self.sides[side].removed || self.random.random_ratio(1, 16) {
                self.reopen(side);
            }
            return;
        }
        if self.sides[side].open.as_ref().is_some_and(|open| open.dead)
            && self.random.random_ratio(1, 4)
        {
            self.close(side);
            return;
        }
        if self.sides[side].side_config.several && self.random.random_ratio(1, 16) {
            self.change_of_instances(side);
            return;
        }
        if self.has(Feature::Handover) && self.random.random_ratio(1, 24) {
            self.hand_over(side);
            return;
        }
        let end = self.random.random_range(0..ENDS);
        if self.has(Feature::Invalidation) && self.random.random_ratio(1, 12) {
            self.bind_or_invalidate(side, end);
            return;
        }
        if self.sides[side].open.as_ref().is_some_and(|open| open.dead) && self.has(Feature::Calls)
        {
            // A dead adapter is queried, too.
            self.ask(side, end);
            self.spare(side);
        }
        match self.random.random_range(0..168) {
            0..=14 => self.connect(side, end),
            15..=39 => self.receive(side, end),
            40..=79 => self.post(side, end),
            80..=83 => {
                let graceful = self.random.random_bool(0.5);
                let flags = if graceful {
                    CloseFlags::Graceful
                } else {
                    CloseFlags::Abrupt
                };
                self.disconnect(side, end, flags);
                if self.has(Feature::Calls) && self.random.random_ratio(1, 4) {
                    self.poke_end(side, end);
                }
            }
            84..=89 if self.has(Feature::Frees) => self.register_or_free(side),
            90..=93 if self.has(Feature::EpFrees) => self.renew(side, end),
            94 if self.has(Feature::Reopen) => {
                self.close(side);
            }
            95 if self.has(Feature::Reopen) => self.close_gracefully(side),
            96 if self.has(Feature::Drop) => self.abandon(side),
            97 if self.has(Feature::Restart) => self.restart(side),
            98..=99 if self.has(Feature::Strangers) => self.stop_dequeuing(side, end),
            100..=109 if self.has(Feature::Windows) => self.window(side, end),
            110..=115 if self.has(Feature::Srq) => self.share(side),
            116..=121 if self.has(Feature::Evds) => self.dispatch(side),
            122..=127 if self.has(Feature::Listeners) => self.listen(side, end),
            128..=130 if self.has(Feature::Modify) => self.modify(side, end),
            131..=136 if self.has(Feature::Calls) => self.ask(side, end),
            137..=141 if self.has(Feature::Calls) => self.spare(side),
            142..=143 if self.has(Feature::Calls) => self.poke_end(side, end),
            144..=149 if self.has(Feature::Overrun) => self.burst(side, end),
            150..=155 if self.has(Feature::Refused) || self.has(Feature::Silent) => {
                self.revoke_with_fault(side, end);
            }
            156..=158 if self.has(Feature::EpFrees) => self.start_over(side, end),
            159..=161 if self.has(Feature::Evds) => self.wait_for_completion(side),
            162 if self.has(Feature::Late) => self.close_slowly(side),
            163 if self.has(Feature::Evds) => self.busy(side),
            164..=165 => self.disconnect_with_requests(side, end),
            166..=167 if self.has(Feature::Windows) => {
                let which = self.random.random_range(0..WINDOW_COUNT);
                self.bind_twice(side, which);
            }
            _ => {}
        }
    }
}
