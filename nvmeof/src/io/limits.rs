//! Commands that wait because their namespace or their host has a limit ([`crate::model::Limit`]).
//!
//! A command reserves its time when it has been checked, before it has a buffer and before its data is fetched, so a
//! command that waits occupies nothing but its entry of the host's queue. It is checked again when it goes on. If it
//! ends before, it gives its time back.
//!
//! A command of a host with a limit at a namespace with a limit passes one after the other, the host's first. So a host
//! that has to wait long for its own limit takes no time of the namespace's other hosts meanwhile.
//!
//! A limit may change while commands wait. So each is looked at after [`LOOK_AGAIN`] at the latest, and reserves its
//! time anew at a limiter that is another one by then.

use std::sync::Arc;
use std::time::Duration;

use super::Commands;
use super::command::{Do, Event, Io};
use super::namespaces::Stage;
use super::permit::{Issuer, is_reservation};
use super::state::{State, Step};
use crate::model::{Cost, Limiter, Moment, Tally};
use crate::nvme::Nqn;
use crate::nvme::command::io as opcode;

/// Time after which a command that waits is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A command that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// Index of the command.
    pub at: u32,
    /// Limit for which the command waits, and the limiter at which it has reserved its time.
    stage: Stage,
    limiter: Arc<Limiter>,
    /// Time at which the command may go on.
    until: Moment,
    cost: Cost,
}

impl Io {
    /// Returns the I/Os and bytes that a command reserves; `None` if it never waits. Copy and
    /// Verify take their bytes as they go ([`Commands::charge_step`]), because one may take very many.
    fn cost(&self) -> Option<Cost> {
        let bytes = match self.sqe.opcode {
            opcode::FLUSH => return None,
            reservation if is_reservation(reservation) => return None,
            opcode::READ | opcode::WRITE | opcode::COMPARE => self.bytes.into(),
            _ => 0,
        };
        Some(Cost { ios: 1, bytes })
    }
}

impl Commands {
    /// Reserves the time of a command of a namespace or a host with a limit, and continues the command if it need not
    /// wait.
    #[cold]
    pub(crate) fn reserve(&mut self, at: u32, now: Moment, issuer: &Issuer<'_>) -> Do {
        let cost = self.ios[at as usize].cost(); // CAST: widening.
        match cost {
            Some(cost) => self.pass_limits((at, cost), (Stage::Host, false), now, issuer),
            None => self.drive(at, Event::Admitted, issuer),
        }
    }

    /// Reserves the time of a command at the limits from the stage `from` on, one after the other, and continues the
    /// command if it need not wait. `is_counted`: the wait at that first stage is counted already.
    fn pass_limits(
        &mut self,
        (at, cost): (u32, Cost),
        (from, is_counted): (Stage, bool),
        now: Moment,
        issuer: &Issuer<'_>,
    ) -> Do {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        let local = self.lists.namespace(issuer.list, io.sqe.nsid.get());
        // A command of a namespace that was replaced is refused, and takes no time of the other one.
        let local = local.filter(|local| local.namespace.serial() == io.used.serial);
        for stage in [Stage::Host, Stage::Namespace] {
            let limiter = local.and_then(|local| local.limiter(stage, issuer.host));
            let (Some(local), Some(limiter)) = (local, limiter.filter(|_| stage >= from)) else {
                continue;
            };
            let until = limiter.reserve(now, cost);
            if until <= now {
                continue;
            }
            match stage {
                _ if is_counted && stage == from => {}
                Stage::Host => limiter.note_wait(),
                Stage::Namespace => Tally::add(&local.tally.limited, 1),
            }
            if io.state() == State::New {
                io.step(Step::Hold);
            }
            let waiting = Waiting {
                at,
                stage,
                limiter: Arc::clone(limiter),
                until,
                cost,
            };
            self.wait(waiting, now);
            return Do::Wait;
        }
        if io.state() == State::Held {
            io.step(Step::Admit);
        }
        self.drive(at, Event::Admitted, issuer)
    }

    fn wait(&mut self, waiting: Waiting, now: Moment) {
        self.waits += 1;
        let key = (waiting.until.min(now + LOOK_AGAIN), self.waits);
        self.ios[waiting.at as usize].wait = Some(key); // CAST: widening.
        self.waiting.insert(key, waiting);
    }

    /// Returns the time at which a command that waits is to be looked at; `None` if none waits.
    #[inline]
    pub(crate) fn wake(&self) -> Option<Moment> {
        self.waiting.first_key_value().map(|((wake, _), _)| *wake)
    }

    /// Takes the first command that is to be looked at by this time. The transport calls [`Self::go_on`] with it.
    #[cold]
    pub(crate) fn next_due(&mut self, now: Moment) -> Option<Waiting> {
        self.wake().filter(|wake| *wake <= now)?;
        let (_, waiting) = self.waiting.pop_first()?;
        self.ios[waiting.at as usize].wait = None; // CAST: widening.
        Some(waiting)
    }

    /// Continues a command that [`Self::next_due`] has returned, or lets it wait on. `is_forced`: it does not wait, as
    /// the target is held or stops.
    #[cold]
    pub(crate) fn go_on(
        &mut self,
        of: Waiting,
        now: Moment,
        is_forced: bool,
        issuer: &Issuer<'_>,
    ) -> Do {
        let io = &mut self.ios[of.at as usize]; // CAST: widening.
        let local = self.lists.namespace(issuer.list, io.sqe.nsid.get());
        let local = local.filter(|local| local.namespace.serial() == io.used.serial);
        let limiter = local.and_then(|local| local.limiter(of.stage, issuer.host));
        let same = limiter.is_some_and(|limiter| Arc::ptr_eq(limiter, &of.limiter));
        if is_forced {
            of.limiter.give_back(of.cost);
            io.step(Step::Admit);
            return self.drive(of.at, Event::Admitted, issuer);
        }
        if same && of.until > now {
            self.wait(of, now);
            return Do::Wait;
        }
        let next = if same {
            Stage::Namespace
        } else {
            of.limiter.give_back(of.cost);
            of.stage
        };
        if same && of.stage == Stage::Namespace {
            io.step(Step::Admit);
            return self.drive(of.at, Event::Admitted, issuer);
        }
        self.pass_limits((of.at, of.cost), (next, !same), now, issuer)
    }

    /// Ends the wait of a command that does not go on.
    pub(super) fn end_wait(&mut self, at: u32) {
        let key = self.ios[at as usize].wait.take(); // CAST: widening.
        if let Some(waiting) = key.and_then(|key| self.waiting.remove(&key)) {
            waiting.limiter.give_back(waiting.cost);
        }
    }

    /// Takes the bytes of a completed step of a Copy or Verify from the limits of its namespace and its host. Later
    /// commands wait for them.
    #[cold]
    pub(crate) fn charge_step(&self, at: u32, host: Option<&Nqn>, now: impl FnOnce() -> Moment) {
        let io = &self.ios[at as usize]; // CAST: widening.
        let local = self.lists.noted(io.used).filter(|local| local.is_limited);
        if let (Some(local), Some(host)) = (local, host)
            && matches!(io.sqe.opcode, opcode::COPY | opcode::VERIFY)
        {
            let (now, bytes) = (now(), io.moved.into());
            for stage in [Stage::Host, Stage::Namespace] {
                if let Some(limiter) = local.limiter(stage, host) {
                    limiter.reserve(now, Cost { ios: 0, bytes });
                }
            }
        }
    }
}
