//! Opening, closing and dropping adapters, and restarting programs.

use std::time::Duration;

use hw_sim::Fault;
use rand::Rng;
use udapl::CloseFlags;

use crate::bytes::Freed;
use crate::calls;
use crate::world::World;

/// Duration of a command of slow firmware, which is shorter than the command's timeout.
const SLOW: Duration = Duration::from_secs(25);

impl World {
    /// Requests a graceful close. The close must be refused because objects exist, and must change nothing.
    pub fn close_gracefully(&mut self, side: usize) {
        let state = self.state_of(side);
        let Some(mut open) = self.sides[side].open.take() else {
            return;
        };
        let ia = open.ia.take();
        let answer = self.timed(side, "dat_ia_close", |_| {
            ia.close(CloseFlags::Graceful).err().map(Box::new)
        });
        self.cover.call("dat_ia_close", state, answer.is_none());
        match answer {
            None => panic!("side {side} closes gracefully, and it has objects"),
            Some(refused) => open.ia.put(refused.ia),
        }
        self.sides[side].open = Some(open);
    }

    /// Closes an adapter. From then on no peer may access its memory, whatever the device answered. Returns whether the
    /// close succeeded, or true if the adapter was not open.
    pub fn close(&mut self, side: usize) -> bool {
        let (state, keys) = (self.state_of(side), self.keys_of(side));
        let peers_to_notify = self.peers_to_notify(side);
        let Some(open) = self.sides[side].open.take() else {
            return true;
        };
        self.trace_line(side, format_args!("close"));
        self.spoil_side("a close", side);
        let untouched = !self.sides[side].tampered && !open.dead;
        let left = self.beside(side).len();
        let (ia, memories) = open.memories();
        let answer = self.timed(side, "dat_ia_close", |_| {
            udapl::ia_close(ia, CloseFlags::Abrupt)
        });
        self.gone(peers_to_notify);
        let closed = answer.is_ok();
        self.cover.call("dat_ia_close", state, closed);
        self.cover.count(
            "close",
            if answer.is_ok() {
                "done"
            } else {
                "with errors"
            },
        );
        if untouched {
            let report =
                answer.unwrap_or_else(|error| panic!("side {side} does not close: {error}"));
            assert_eq!(
                (report.pages_not_returned, report.objects_left.len()),
                (0, 0),
                "side {side}: {report:?}"
            );
            assert_eq!(report.instances_left, left, "side {side}: {report:?}");
            let said = self.sim.report(&self.sides[side].function);
            assert!(
                left > 0 || said.objects.is_empty() && said.pages_held == 0,
                "side {side} leaves {:?} and {} pages",
                said.objects,
                said.pages_held
            );
        }
        for memory in memories {
            self.watch(Freed::watch(memory, side, "which is closed"));
        }
        self.attack_closed(side, keys);
        closed
    }

    /// Closes an adapter whose firmware is slow at every command. All commands of the close together have the time
    /// limit of one command.
    pub fn close_slowly(&mut self, side: usize) {
        if self.sides[side].open.is_none() {
            return;
        }
        let slow = Fault::CommandDelay {
            opcode: None,
            delay: SLOW,
            count: u32::MAX,
        };
        self.inject(side, "late command", &slow);
        self.close(side);
        self.sim.mend(&self.sides[side].function);
    }

    /// Drops an adapter without closing it.
    pub fn abandon(&mut self, side: usize) {
        let (keys, peers_to_notify) = (self.keys_of(side), self.peers_to_notify(side));
        let Some(open) = self.sides[side].open.take() else {
            return;
        };
        self.trace_line(side, format_args!("drop"));
        self.spoil_side("a drop", side);
        let (ia, memories) = open.memories();
        self.timed(side, calls::DROP, |_| drop(ia));
        self.gone(peers_to_notify);
        self.cover.count("drop", "done");
        for memory in memories {
            self.watch(Freed::watch(memory, side, "which was dropped"));
        }
        self.attack_closed(side, keys);
    }

    /// Ends a program without a close, and immediately starts another on the same function.
    pub fn restart(&mut self, side: usize) {
        self.abandon(side);
        self.cover.count("restart", "done");
        self.reopen(side);
    }

    /// Opens an adapter again: as another instance if the function already has an open one.
    pub fn reopen(&mut self, side: usize) {
        if let [other, ..] = self.beside(side)[..] {
            self.join(side, other);
            return;
        }
        let kin = self.kin(side);
        // The records of freed memory keep the function open. So all memory is checked once more, and the records of
        // this function are dropped.
        self.check_all();
        self.freed.retain(|freed| !kin.contains(&freed.side));
        let before = self.sides[side].tampered;
        // In half of the random openings, faults that wait for a command are removed before the opening. Otherwise
        // they stay in effect.
        let forgets = self.healing || (!self.scripted && self.random.random_bool(0.5));
        if forgets {
            self.sim.mend(&self.sides[side].function);
        }
        let answer = self.timed(side, "dat_ia_open", |world| world.sides[side].open(side));
        self.cover
            .call("dat_ia_open", calls::STATELESS, answer.is_ok());
        self.cover
            .count("open", if answer.is_ok() { "done" } else { "refused" });
        self.trace_line(side, format_args!("open: {:?}", answer.as_ref().err()));
        match answer {
            // The reset at the opening has removed all other faults of the function.
            Ok(()) => {
                for other in kin {
                    self.sides[other].tampered = before && !forgets;
                    self.sides[other].unanswered &= other == side;
                }
            }
            Err(error) => {
                assert!(before, "side {side} does not open: {error}");
            }
        }
    }
}
