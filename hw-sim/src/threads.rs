//! Threads of a program that use the simulator's virtual time, and those of them that sleep
//! ([`SimClock`](crate::SimClock)).

use driver::Interrupt;
use std::sync::{Arc, Condvar};

/// The threads that use the simulator's virtual time.
#[derive(Default)]
pub struct Threads {
    /// Number of running threads that keep virtual time from advancing.
    pub(crate) busy: usize,
    pub(crate) sleepers: Vec<Sleeper>,
    next: u64,
    pub(crate) changed: Arc<Condvar>,
}

/// A thread that waits for an interrupt or a deadline.
pub(crate) struct Sleeper {
    number: u64,
    interrupts: Vec<Interrupt>,
    deadline: u64,
    /// Value of the simulator's signal counter when this thread's interrupts were last checked.
    pub(crate) seen_signals: Option<u64>,
    is_signalled: bool,
}

impl Sleeper {
    /// Returns whether an interrupt is pending. The check of an eventfd is a system call, so the result is cached until
    /// the simulator has signalled another interrupt.
    fn is_woken(&mut self, signals: u64) -> bool {
        if self.seen_signals != Some(signals) {
            self.seen_signals = Some(signals);
            self.is_signalled = self.interrupts.iter().any(Interrupt::is_pending);
        }
        self.is_signalled
    }
}

impl Threads {
    pub(crate) fn sleeps(&mut self, interrupts: &[Interrupt], deadline: u64) -> u64 {
        self.next += 1;
        self.sleepers.push(Sleeper {
            number: self.next,
            interrupts: interrupts.to_vec(),
            deadline,
            seen_signals: None,
            is_signalled: false,
        });
        self.next
    }

    pub(crate) fn is_woken(&mut self, number: u64, signals: u64) -> bool {
        let own = self.sleepers.iter_mut().find(|one| one.number == number);
        own.is_some_and(|own| own.is_woken(signals))
    }

    /// Returns whether a thread other than `but` has to run before virtual time may advance.
    pub(crate) fn go_first(&mut self, but: u64, signals: u64, now: u64) -> bool {
        let mut others = self.sleepers.iter_mut().filter(|one| one.number != but);
        self.busy > 0 || others.any(|one| one.deadline <= now || one.is_woken(signals))
    }

    pub(crate) fn first_deadline(&self) -> u64 {
        let deadlines = self.sleepers.iter().map(|one| one.deadline);
        deadlines.min().unwrap_or(u64::MAX)
    }

    pub(crate) fn wakes(&mut self, number: u64) {
        self.sleepers.retain(|one| one.number != number);
        self.changed.notify_all();
    }
}
