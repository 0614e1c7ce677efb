//! The states of a neighbour, of either family.
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
//! - A question that had no answer leaves `Unreachable` for a while, so that who sends is told at once and the network
//!   is not asked again for each that is to be sent. RFC 7048 has a state of that name, and the same reason.
//! - `Probe` that had no answer asks all (`Incomplete`): RFC 4861, 7.3.3, would have the entry deleted, and then asked
//!   for by who sends next.
//! - What contradicts a MAC that we have is never believed; it makes us ask the one we have
//!   (docs/decisions/neighbours.md). 7.2.5 would have the new one taken, or the entry `Stale`.
//! - A link-local address that names its MAC starts as if that had been learnt, in `Delay`: it is used at once and
//!   asked soon.

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum State {
    /// Nothing: there is no entry.
    Absent,
    /// All were asked; there is no MAC that may be used.
    Incomplete,
    /// The MAC was proven to be good not long ago.
    Reachable,
    /// The MAC may be good; nobody uses it.
    Stale,
    /// The MAC is used, and will be asked if nothing proves it soon.
    Delay,
    /// The MAC is used, and is being asked.
    Probe,
    /// Nobody has answered.
    Unreachable,
}

/// What happens to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Step {
    /// Somebody wants to send, and no MAC is known by itself.
    Used,
    /// Somebody wants to send, and the address names a MAC.
    Named,
    /// The neighbour has answered a question of ours, with the MAC we asked or, if we asked all, with one.
    Answered,
    /// The neighbour has spoken without being asked, and said its MAC.
    Hinted,
    /// Somebody has said another MAC than we have.
    Contradicted,
    /// Traffic has proven that the neighbour hears us (RFC 4861, 7.3.1).
    Confirmed,
    /// The time of the state is over, or its last question had no answer.
    Elapsed,
    /// The link has gone down.
    LinkDown,
}

impl State {
    /// The transition table. `None`: nothing follows from it in this state.
    pub(crate) const fn next(self, step: Step) -> Option<Self> {
        use {State as S, Step as E};
        Some(match (self, step) {
            (S::Absent, E::Used) => S::Incomplete,
            (S::Absent, E::Named) | (S::Stale, E::Used) => S::Delay,
            (S::Incomplete | S::Probe, E::Answered) => S::Reachable,
            // RFC 4861, 7.2.5 and 7.2.3: STALE, and who waits sends at once, which makes it DELAY.
            (S::Incomplete, E::Hinted) => S::Delay,
            (S::Incomplete, E::Elapsed | E::LinkDown) => S::Unreachable,
            (S::Reachable, E::Elapsed) => S::Stale,
            (S::Delay, E::Elapsed) => S::Probe,
            (S::Probe, E::Elapsed) => S::Incomplete,
            (S::Reachable | S::Stale | S::Delay | S::Probe, E::Confirmed) => S::Reachable,
            (S::Reachable | S::Stale | S::Delay, E::Contradicted) => S::Probe,
            (S::Reachable | S::Stale | S::Delay | S::Probe, E::LinkDown) => S::Stale,
            // It is there after all: who sends next asks.
            (S::Unreachable, E::Elapsed | E::Hinted) => S::Absent,
            _ => return None,
        })
    }

    /// Whether a MAC may be used in this state.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(
            self,
            Self::Reachable | Self::Stale | Self::Delay | Self::Probe
        )
    }

    /// Whether a question of ours is on its way.
    #[must_use]
    pub const fn is_asking(self) -> bool {
        matches!(self, Self::Incomplete | Self::Probe)
    }
}
