//! The consumer notification object: one place to wait for many EVDs.
//!
//! ```text
//!                   trigger: the EVD is remembered, the agent is called and forgotten
//!      untriggered ------------------------------------------------------------------> triggered(EVD)
//!           ^                                                                              |  | trigger: nothing,
//!           |                     somebody's cno_wait takes it                             |<-' the two are one
//!           '------------------------------------------------------------------------------'
//! ```
//!
//! A trigger is a notification event that arrives at an attached EVD that is enabled and has nobody blocked on it
//! ([`EvdMode`](crate::object::evd::mode::EvdMode)). It stays until one waiter takes it, with the EVD as a hint: events
//! of other EVDs may have come meanwhile, and the event itself may be gone.

use crate::handle::{EvdHandle, EvdKey};
use crate::turns::Turns;
use core::fmt;

/// A function of the program that a CNO calls when it is triggered (`DAT_OS_WAIT_PROXY_AGENT`).
///
/// Its argument is the EVD that triggered; none when the last EVD of the CNO or the IA has gone. It runs inside a call
/// of the IA: it must neither block nor panic, and cannot call the IA.
pub struct Agent(Box<dyn FnOnce(Option<EvdHandle>) + Send>);

impl Agent {
    /// An agent that does this.
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
    /// The EVD of a trigger nobody has taken.
    triggered: Option<EvdKey>,
    agent: Option<Agent>,
    evds: Turns<EvdKey>,
    /// Those of them to be looked at: their completion queues have something, or were never asked for an interrupt.
    pub(crate) unasked: Turns<EvdKey>,
    waiters: u32,
    /// How often everybody was sent home.
    released: u64,
}

impl Cno {
    pub(crate) fn new(agent: Option<Agent>) -> Self {
        Self {
            agent,
            ..Self::default()
        }
    }

    /// Another agent, or none.
    pub(crate) fn set_agent(&mut self, agent: Option<Agent>) {
        self.agent = agent;
    }

    pub(crate) const fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    pub(crate) const fn is_triggered(&self) -> bool {
        self.triggered.is_some()
    }

    /// An EVD triggers it; the agent is told by what it is known as, once.
    pub(crate) fn trigger(&mut self, evd: EvdKey, known_as: EvdHandle) {
        if self.triggered.is_none() {
            self.triggered = Some(evd);
            if let Some(Agent(call)) = self.agent.take() {
                call(Some(known_as));
            }
        }
    }

    /// Somebody waits; how often everybody was sent home before.
    pub(crate) const fn wait_begins(&mut self) -> u64 {
        self.waiters += 1;
        self.released
    }

    /// Whether a wait is over that began when everybody had been sent home so often.
    pub(crate) const fn ends_wait(&self, released: u64) -> bool {
        self.triggered.is_some() || self.released != released
    }

    /// Lets a wait end, if it is over: with the EVD that triggered, or with none as everybody is sent home.
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

    /// Nobody waits any more who did.
    pub(crate) const fn wait_over(&mut self) {
        self.waiters -= 1;
    }

    /// An EVD refers to it, or somebody waits on it.
    pub(crate) const fn is_in_use(&self) -> bool {
        !self.evds.is_empty() || self.waiters != 0
    }

    /// The EVDs that refer to it.
    pub(crate) fn evds(&self) -> impl Iterator<Item = EvdKey> {
        self.evds.iter()
    }

    pub(crate) fn attach(&mut self, evd: EvdKey) {
        self.evds.insert(evd);
    }

    /// An EVD no longer refers to it; `gone` if it was freed.
    pub(crate) fn detach(&mut self, evd: EvdKey, gone: bool) {
        self.evds.remove(evd);
        self.unasked.remove(evd);
        if !gone {
            return;
        }
        let other = self.evds.iter().next();
        match other {
            None => self.dissolve(),
            Some(other) if self.triggered == Some(evd) => self.triggered = Some(other),
            Some(_) => {}
        }
    }

    /// It is over; whoever is to be told is told.
    pub(crate) fn dissolve(&mut self) {
        self.triggered = None;
        self.released += 1;
        if let Some(Agent(call)) = self.agent.take() {
            call(None);
        }
    }
}
