//! States of a neighbour, of either family.
//!
//! ```text
//!              Used                Answered
//!    Absent ---------> Incomplete ----------> Reachable <-----------------------.
//!      |  ^                | ^ |                | |  ^                          |
//!      |  |        Elapsed | | | Hinted         | |  | Confirmed                | Answered,
//!      |  | Elapsed,       v | |        Elapsed,| |  | (from all that have a    | Confirmed
//!      |  | Hinted  Unreachable|       LinkDown | |  |  MAC)                    |
//!      |  '--------------'   | |                v |  |                          |
//!      |                     | |    Used      Stale -+--- Contradicted --.      |
//!      |        Named        | v  <-----------' ^ |  |                   v      |
//!      '------------------>  Delay -------------|-|--|-- Elapsed, -->  Probe ---'
//!                            | '----------------' |       Contradicted   |
//!                            '------- LinkDown ---'                      |
//!                         Incomplete <----------------- Elapsed ---------'
//! ```
//!
//! The states are those of RFC 4861, 7.3.2, with four differences:
//! - If no node answers, the entry stays in `Unreachable` for a while. Senders get the error immediately, and no
//!   request is sent for them. RFC 7048 has a state of the same name for the same reason.
//! - If the neighbour does not answer in `Probe`, we send requests to all nodes (`Incomplete`). RFC 4861, 7.3.3, would
//!   delete the entry, and the next sender would cause a request.
//! - A message that contradicts a known MAC never replaces that MAC. It makes us probe the known MAC
//!   (docs/decisions/neighbours.md). RFC 4861, 7.2.5, would take the new MAC, or make the entry `Stale`.
//! - A link-local address that names its MAC starts in `Delay`, as if we had learnt that MAC. The MAC is used
//!   immediately, and probed soon.

/// State of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum State {
    /// The table has no entry for the neighbour.
    Absent,
    /// We send requests to all nodes; no MAC is usable yet.
    Incomplete,
    /// The MAC was proven recently.
    Reachable,
    /// The MAC may still be valid; no sender uses it.
    Stale,
    /// A sender uses the MAC. We probe the neighbour if no message proves the MAC soon.
    Delay,
    /// A sender uses the MAC, and we are probing the neighbour.
    Probe,
    /// No reply has come; senders get an error until the hold-off time is over.
    Unreachable,
}

/// Events that change the state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Step {
    /// A sender needs the MAC. `Absent` takes this step only for an address that does not name its MAC.
    Used,
    /// A sender needs the MAC, and the address names one.
    Named,
    /// The neighbour has answered our request: from the MAC that we asked or, if we asked all nodes, from any MAC.
    Answered,
    /// An unsolicited message has named the neighbour's MAC.
    Hinted,
    /// A message has named another MAC than the known MAC.
    Contradicted,
    /// Traffic has proven that the neighbour receives our frames (RFC 4861, 7.3.1).
    Confirmed,
    /// The time of the state is over, or the last request of the state had no reply.
    Elapsed,
    /// The link has gone down.
    LinkDown,
}

impl State {
    /// Returns the next state by the transition table; `None` if the step has no effect in this state.
    pub(crate) const fn next(self, step: Step) -> Option<Self> {
        use {State as S, Step as E};
        Some(match (self, step) {
            (S::Absent, E::Used) => S::Incomplete,
            (S::Absent, E::Named) | (S::Stale, E::Used) => S::Delay,
            (S::Incomplete | S::Probe, E::Answered) => S::Reachable,
            // RFC 4861, 7.2.5 and 7.2.3, make the entry STALE. The waiting senders send at once, which makes it DELAY.
            (S::Incomplete, E::Hinted) => S::Delay,
            (S::Incomplete, E::Elapsed | E::LinkDown) => S::Unreachable,
            (S::Reachable, E::Elapsed) => S::Stale,
            (S::Delay, E::Elapsed) => S::Probe,
            (S::Probe, E::Elapsed) => S::Incomplete,
            (S::Reachable | S::Stale | S::Delay | S::Probe, E::Confirmed) => S::Reachable,
            (S::Reachable | S::Stale | S::Delay, E::Contradicted) => S::Probe,
            (S::Reachable | S::Stale | S::Delay | S::Probe, E::LinkDown) => S::Stale,
            // The neighbour has sent a message, or the hold-off is over: the next sender causes a request.
            (S::Unreachable, E::Elapsed | E::Hinted) => S::Absent,
            _ => return None,
        })
    }

    /// Returns whether the MAC may be used in this state.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(
            self,
            Self::Reachable | Self::Stale | Self::Delay | Self::Probe
        )
    }

    /// Returns whether we send requests in this state.
    #[must_use]
    pub const fn is_asking(self) -> bool {
        matches!(self, Self::Incomplete | Self::Probe)
    }
}
