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
//! RFC 4861, 7.3.2, with four differences:
//! - A request without a reply leaves `Unreachable` for a while. So senders are told at once, and the network is not
//!   asked again for each of them. RFC 7048 has a state of that name, for the same reason.
//! - `Probe` without a reply asks all (`Incomplete`). RFC 4861, 7.3.3, would delete the entry, and the next sender
//!   would ask.
//! - A message that contradicts a known MAC is never believed; it makes us ask the known one
//!   (docs/decisions/neighbours.md). 7.2.5 would take the new one, or make the entry `Stale`.
//! - A link-local address that names its MAC starts as if that had been learnt, in `Delay`: the MAC is used at once
//!   and asked soon.

/// State of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum State {
    /// No entry.
    Absent,
    /// All were asked; no MAC is usable.
    Incomplete,
    /// The MAC was proven recently.
    Reachable,
    /// The MAC may be valid; it is not in use.
    Stale,
    /// The MAC is in use, and will be asked if nothing proves it soon.
    Delay,
    /// The MAC is in use, and is being asked.
    Probe,
    /// No reply has come.
    Unreachable,
}

/// Steps of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Step {
    /// A sender needs the MAC, and the address does not name one.
    Used,
    /// A sender needs the MAC, and the address names one.
    Named,
    /// The neighbour has answered our request: with the MAC we asked or, if we asked all, with one.
    Answered,
    /// An unsolicited message has named the neighbour's MAC.
    Hinted,
    /// A message has named another MAC than the known one.
    Contradicted,
    /// Traffic has proven that the neighbour receives our frames (RFC 4861, 7.3.1).
    Confirmed,
    /// The time of the state is over, or its last request had no reply.
    Elapsed,
    /// The link has gone down.
    LinkDown,
}

impl State {
    /// Returns the next state by the transition table. `None`: no change.
    pub(crate) const fn next(self, step: Step) -> Option<Self> {
        use {State as S, Step as E};
        Some(match (self, step) {
            (S::Absent, E::Used) => S::Incomplete,
            (S::Absent, E::Named) | (S::Stale, E::Used) => S::Delay,
            (S::Incomplete | S::Probe, E::Answered) => S::Reachable,
            // RFC 4861, 7.2.5 and 7.2.3: STALE; those that wait send at once, which makes it DELAY.
            (S::Incomplete, E::Hinted) => S::Delay,
            (S::Incomplete, E::Elapsed | E::LinkDown) => S::Unreachable,
            (S::Reachable, E::Elapsed) => S::Stale,
            (S::Delay, E::Elapsed) => S::Probe,
            (S::Probe, E::Elapsed) => S::Incomplete,
            (S::Reachable | S::Stale | S::Delay | S::Probe, E::Confirmed) => S::Reachable,
            (S::Reachable | S::Stale | S::Delay, E::Contradicted) => S::Probe,
            (S::Reachable | S::Stale | S::Delay | S::Probe, E::LinkDown) => S::Stale,
            // The neighbour is there after all: the next sender asks.
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

    /// Returns whether a request of ours is outstanding.
    #[must_use]
    pub const fn is_asking(self) -> bool {
        matches!(self, Self::Incomplete | Self::Probe)
    }
}
