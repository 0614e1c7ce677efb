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
//! ([`EvdMode`](crate::object::evd::mode::EvdMode)). It stays until one waiter takes it, with the EVD as a hint: events of other EVDs may
//! have come meanwhile, and the event itself may be gone.

use crate::handle::{EvdHandle, EvdKey};
use crate::turns::Turns;
use core::fmt;

/// Who is told of a trigger (`DAT_OS_WAIT_PROXY_AGENT`).
///
/// It is given the EVD that triggered, or none when the last EVD of the CNO or the IA has gone. It runs while the IA
/// is at work: it must neither block nor panic, and cannot call the IA.
pub struct Agent(pub(crate) Box<dyn FnOnce(Option<EvdHandle>) + Send>);

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
    pub(crate) triggered: Option<EvdKey>,
    pub(crate) agent: Option<Agent>,
    pub(crate) evds: Turns<EvdKey>,
    /// Those of them to be looked at: their completion queues have something, or were never asked for an interrupt.
    pub(crate) unasked: Turns<EvdKey>,
    pub(crate) waiters: u32,
    /// How often everybody was sent home.
    pub(crate) released: u64,
}

impl Cno {
    /// It is over; whoever is to be told is told.
    pub(crate) fn dissolve(&mut self) {
        self.triggered = None;
        self.released += 1;
        if let Some(Agent(call)) = self.agent.take() {
            call(None);
        }
    }
}
