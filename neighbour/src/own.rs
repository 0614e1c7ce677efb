//! Addresses of ours: duplicate detection, announcement, defence.
//!
//! ```text
//!    Tentative --- Passed ---> Preferred <--- Passed --- Optimistic
//!        |                         |                         |
//!        '------- Conflict --.     '-- Conflict: stays   Conflict
//!                            v                               |
//!                        Duplicate <-------------------------'
//! ```
//!
//! [`Detection`](crate::Detection) decides the first state. `Tentative` is RFC 4862's and, for IPv4, the probing of
//! RFC 5227, 2.1; `Optimistic` is RFC 4429's. A `Preferred` address stays ours even in a conflict (RFC 5227, 2.4 (c);
//! RFC 4862, 5.4.4, does not specify this case), because connections use it. Only [`Own::begin`] moves an address out
//! of `Duplicate`, when the link comes up: the link may then be connected to another network.

mod parking;

use std::net::IpAddr;
use std::time::Duration;

use crate::address::Address;
use crate::config::{
    ANNOUNCE_INTERVAL, ANNOUNCE_JITTER, ANNOUNCE_NUM, ANNOUNCE_WAIT, DEFEND_INTERVAL,
    DUP_ADDR_DETECT_TRANSMITS, Detection, MAX_NEIGHBOR_ADVERTISEMENT, MAX_RTR_SOLICITATION_DELAY,
    PROBE_INTERVAL, PROBE_NUM, PROBE_WAIT, RETRANS_TIMER,
};
use crate::draw::Draw;

/// State of an address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Claim {
    /// Detection is running; the address is not usable yet.
    Tentative,
    /// Detection is running; the address is already usable.
    Optimistic,
    /// The address is ours.
    Preferred,
    /// Another node also has the address; we do not use it.
    Duplicate,
}

/// Result of duplicate detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum DetectionResult {
    /// No other node has claimed the address.
    Passed,
    /// Another node has claimed the address.
    Conflict,
}

impl Claim {
    /// Returns the next state by the transition table; `None` if the finding has no consequence in this state.
    pub(crate) const fn next(self, finding: DetectionResult) -> Option<Self> {
        use {Claim as C, DetectionResult as F};
        Some(match (self, finding) {
            (C::Tentative | C::Optimistic, F::Passed) | (C::Preferred, F::Conflict) => C::Preferred,
            (C::Tentative | C::Optimistic, F::Conflict) => C::Duplicate,
            (C::Preferred | C::Duplicate, F::Passed) | (C::Duplicate, F::Conflict) => return None,
        })
    }

    /// Returns whether we send from the address and answer requests for it.
    pub(crate) const fn serves(self) -> bool {
        matches!(self, Self::Optimistic | Self::Preferred)
    }

    const fn is_detecting(self) -> bool {
        matches!(self, Self::Optimistic | Self::Tentative)
    }
}

/// Action that is due for one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DueAction {
    /// Send a probe for the address.
    Probe,
    /// Detection has passed; the address is ours from now on.
    Pass,
    /// Announce the address. `first` is true for the first announcement since the address became ours or the link came
    /// up.
    Announce { first: bool },
}

/// Consequence of a conflict over one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictAction {
    /// Detection has failed: the address is not ours.
    Lost,
    /// The address is ours, and we must defend it by an announcement.
    Defend,
    /// Nothing is to be done: we defended the address recently, or have lost it already.
    Nothing,
}

/// One of our addresses.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) interface: Address,
    claim: Claim,
    pub(crate) due: Option<Duration>,
    probes: u8,
    announcements: u8,
    defended: Option<Duration>,
}

impl Own {
    pub(crate) fn new(interface: Address, detection: Detection) -> Self {
        let mut own = Self {
            interface,
            claim: Claim::Duplicate,
            due: None,
            probes: 0,
            announcements: 0,
            defended: None,
        };
        own.begin(detection);
        own
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.interface.address
    }

    pub(crate) fn claim(&self) -> Claim {
        self.claim
    }

    /// Sets the state with which detection starts: for a new address, and again for an address that is not ours yet
    /// when the link comes up. Nothing is due before [`Own::link_up`].
    fn begin(&mut self, detection: Detection) {
        let v4 = self.address().is_ipv4();
        (self.claim, self.probes) = match detection {
            Detection::Never => (Claim::Preferred, 0),
            Detection::Optimistic if v4 => (Claim::Preferred, 0),
            Detection::Optimistic => (Claim::Optimistic, DUP_ADDR_DETECT_TRANSMITS),
            Detection::First if v4 => (Claim::Tentative, PROBE_NUM),
            Detection::First => (Claim::Tentative, DUP_ADDR_DETECT_TRANSMITS),
        };
    }

    /// Starts detection or announcement because the link is up, for the first time or again.
    pub(crate) fn link_up(&mut self, detection: Detection, now: Duration, draw: &mut Draw) {
        if self.claim != Claim::Preferred {
            self.begin(detection);
        }
        let wait = match (self.claim, self.address()) {
            // RFC 4429, 3.3: the address is usable once the solicitation is sent, so we send the solicitation now.
            (Claim::Optimistic | Claim::Duplicate, _) => Duration::ZERO,
            (Claim::Preferred, _) => {
                self.announcements = self.times();
                Duration::ZERO
            }
            (Claim::Tentative, IpAddr::V4(_)) => draw.up_to(PROBE_WAIT),
            (Claim::Tentative, IpAddr::V6(_)) => draw.up_to(MAX_RTR_SOLICITATION_DELAY),
        };
        self.due = Some(now + wait);
    }

    pub(crate) fn link_down(&mut self) {
        self.due = None;
    }

    /// Returns the number of announcements that we send for the address.
    fn times(&self) -> u8 {
        match self.address() {
            IpAddr::V4(_) => ANNOUNCE_NUM,
            IpAddr::V6(_) => MAX_NEIGHBOR_ADVERTISEMENT,
        }
    }

    /// Returns the next action that is due at `now`. The caller repeats the call until the result is `None`.
    pub(crate) fn next_action(&mut self, now: Duration, draw: &mut Draw) -> Option<DueAction> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let v4 = self.address().is_ipv4();
        if self.claim.is_detecting() {
            if let Some(left) = self.probes.checked_sub(1) {
                self.probes = left;
                let [least, most] = PROBE_INTERVAL;
                let wait = match (v4, left) {
                    (true, 0) => ANNOUNCE_WAIT,
                    (true, _) => draw.within(least, most),
                    (false, _) => RETRANS_TIMER,
                };
                self.due = Some(now + wait);
                return Some(DueAction::Probe);
            }
            self.step(DetectionResult::Passed);
            self.announcements = self.times();
            return Some(DueAction::Pass);
        }
        let Some(left) = self.announcements.checked_sub(1) else {
            self.due = None;
            return None;
        };
        let first = self.announcements == self.times();
        self.announcements = left;
        let interval = if v4 { ANNOUNCE_INTERVAL } else { RETRANS_TIMER };
        self.due = (left > 0).then(|| now + interval + draw.up_to(ANNOUNCE_JITTER));
        Some(DueAction::Announce { first })
    }

    /// Handles another node's use of the address, and returns the consequence.
    pub(crate) fn conflict(&mut self, now: Duration) -> ConflictAction {
        let was = self.claim;
        if !self.step(DetectionResult::Conflict) {
            return ConflictAction::Nothing;
        }
        if was != Claim::Preferred {
            self.due = None;
            return ConflictAction::Lost;
        }
        let recently = |then: Duration| now < then + DEFEND_INTERVAL;
        if self.defended.is_some_and(recently) {
            return ConflictAction::Nothing;
        }
        self.defended = Some(now);
        ConflictAction::Defend
    }

    fn step(&mut self, finding: DetectionResult) -> bool {
        let next = self.claim.next(finding);
        self.claim = next.unwrap_or(self.claim);
        next.is_some()
    }
}
