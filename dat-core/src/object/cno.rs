//! The consumer notification object, on which a consumer waits for many EVDs at once.
//!
//! ```text
//!                   trigger: the EVD is stored, the agent is called and dropped
//!      untriggered ------------------------------------------------------------------> triggered(EVD)
//!           ^                                                                              |  | trigger:
//!           |                     one cno_wait takes it                                    |<-' no effect
//!           '------------------------------------------------------------------------------'
//! ```
//!
//! A CNO is triggered by a notification event that arrives at an attached EVD that is enabled and has no waiter
//! ([`EvdMode`](crate::object::evd::mode::EvdMode)). The CNO stays triggered until one waiter takes the trigger. The
//! waiter gets the EVD as a hint only: events of other EVDs may have arrived meanwhile, and the event itself may
//! already have been dequeued.

mod parking;

use crate::handle::{EvdHandle, EvdKey};
use crate::round_robin::RoundRobin;
use core::fmt;

/// A function of the program that a CNO calls when it is triggered (`DAT_OS_WAIT_PROXY_AGENT`).
///
/// The argument is the EVD that triggered the CNO, or `None` if the last EVD of the CNO was freed or the IA was closed.
/// The function runs inside a call of the IA: it must neither block nor panic, and it cannot call the IA.
pub struct Agent(Box<dyn FnOnce(Option<EvdHandle>) + Send>);

impl Agent {
    /// Makes an agent from a closure.
    pub fn new(call: impl FnOnce(Option<EvdHandle>) + Send + 'static) -> Self {
        Self(Box::new(call))
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Agent")
    }
}

#[derive(Default)]
pub(crate) struct Cno {
    /// EVD of a trigger that no waiter has taken. It may have been freed meanwhile, which the wait checks.
    triggered: Option<EvdKey>,
    agent: Option<Agent>,
    evds: RoundRobin<EvdKey>,
    /// Attached EVDs that must be polled, because their completion queues have reported entries or were never armed.
    pub(crate) unarmed: RoundRobin<EvdKey>,
    waiters: u32,
    /// Number of times that all waiters were released without a trigger.
    released: u64,
}

impl Cno {
    pub(crate) fn new(agent: Option<Agent>) -> Self {
        Self {
            agent,
            ..Self::default()
        }
    }

    /// Replaces or removes the agent.
    pub(crate) fn set_agent(&mut self, agent: Option<Agent>) {
        self.agent = agent;
    }

    pub(crate) const fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    pub(crate) const fn is_triggered(&self) -> bool {
        self.triggered.is_some()
    }

    /// Triggers the CNO for an EVD, and calls the agent once, with the EVD's handle `known_as`. A triggered CNO is
    /// unchanged.
    pub(crate) fn trigger(&mut self, evd: EvdKey, known_as: EvdHandle) {
        if self.triggered.is_none() {
            self.triggered = Some(evd);
            if let Some(Agent(call)) = self.agent.take() {
                call(Some(known_as));
            }
        }
    }

    /// Counts a waiter. Returns the number of releases so far.
    pub(crate) const fn wait_begins(&mut self) -> u64 {
        self.waiters += 1;
        self.released
    }

    /// Returns whether a wait that began after `released` releases is over.
    pub(crate) const fn ends_wait(&self, released: u64) -> bool {
        self.triggered.is_some() || self.released != released
    }

    /// Ends a wait if it is over. The result is the EVD that triggered, or `Some(None)` if all waiters were released.
    /// Returns `None` if the wait is not over.
    pub(crate) const fn end_wait(&mut self, released: u64) -> Option<Option<EvdKey>> {
        let woken = if self.released == released {
            match self.triggered.take() {
                None => return None,
                Some(evd) => Some(evd),
            }
        } else {
            None
        };
        self.wait_over();
        Some(woken)
    }

    /// Subtracts one waiter.
    pub(crate) const fn wait_over(&mut self) {
        self.waiters -= 1;
    }

    /// Returns whether an EVD refers to the CNO or a thread waits on it.
    pub(crate) const fn is_in_use(&self) -> bool {
        !self.evds.is_empty() || self.waiters != 0
    }

    /// Returns the EVDs that refer to the CNO.
    pub(crate) fn evds(&self) -> impl Iterator<Item = EvdKey> {
        self.evds.iter()
    }

    pub(crate) fn attach(&mut self, evd: EvdKey) {
        self.evds.insert(evd);
    }

    /// Detaches an EVD; `gone` is true if the EVD was freed.
    pub(crate) fn detach(&mut self, evd: EvdKey, gone: bool) {
        self.evds.remove(evd);
        self.unarmed.remove(evd);
        if gone && self.evds.is_empty() {
            self.release_waiters();
        }
    }

    /// Releases all waiters without an EVD, and calls the agent with `None`.
    pub(crate) fn release_waiters(&mut self) {
        self.triggered = None;
        self.released += 1;
        if let Some(Agent(call)) = self.agent.take() {
            call(None);
        }
    }
}
