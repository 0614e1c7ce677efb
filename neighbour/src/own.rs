//! Addresses of ours: looked for on the network, announced, defended.
//!
//! ```text
//!    Tentative --- Passed ---> Preferred <--- Passed --- Optimistic
//!        |                         |                         |
//!        '------- Conflict --.     '-- Conflict: stays   Conflict
//!                            v                               |
//!                        Duplicate <-------------------------'
//! ```
//!
//! Where an address begins says [`Detection`](crate::Detection). `Tentative` is RFC 4862's and, for IPv4, the probing
//! of RFC 5227, 2.1; `Optimistic` is RFC 4429's. `Preferred` stays ours whoever says otherwise (RFC 5227, 2.4 (c); RFC
//! 4862, 5.4.4, leaves it open): connections stand on it. Only [`Own::begin`] leaves `Duplicate`: the link has been
//! down, and the network may be another.

use std::net::IpAddr;
use std::time::Duration;

use crate::address::Interface;
use crate::config::{
    ANNOUNCE_INTERVAL, ANNOUNCE_JITTER, ANNOUNCE_NUM, ANNOUNCE_WAIT, DEFEND_INTERVAL,
    DUP_ADDR_DETECT_TRANSMITS, Detection, MAX_NEIGHBOR_ADVERTISEMENT, MAX_RTR_SOLICITATION_DELAY,
    PROBE_INTERVAL, PROBE_NUM, PROBE_WAIT, RETRANS_TIMER,
};
use crate::draw::Draw;

/// Whose an address of ours is, as far as the network knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Claim {
    /// Being looked for; serves nobody.
    Tentative,
    /// Being looked for, and serves already.
    Optimistic,
    /// Ours.
    Preferred,
    /// Somebody else's, too; serves nobody.
    Duplicate,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Finding {
    /// Nobody has said that it is theirs.
    Passed,
    /// Somebody has.
    Conflict,
}

impl Claim {
    /// The transition table. `None`: nothing follows from it.
    pub(crate) const fn next(self, finding: Finding) -> Option<Self> {
        use {Claim as C, Finding as F};
        Some(match (self, finding) {
            (C::Tentative | C::Optimistic, F::Passed) | (C::Preferred, F::Conflict) => C::Preferred,
            (C::Tentative | C::Optimistic, F::Conflict) => C::Duplicate,
            (C::Preferred | C::Duplicate, F::Passed) | (C::Duplicate, F::Conflict) => return None,
        })
    }

    /// Whether we send from it and answer for it.
    pub(crate) const fn serves(self) -> bool {
        matches!(self, Self::Optimistic | Self::Preferred)
    }

    const fn is_looked_for(self) -> bool {
        matches!(self, Self::Optimistic | Self::Tentative)
    }
}

/// What an address of ours has to send when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    /// Ask whether it is somebody's.
    Probe,
    /// Nobody has said so: it is ours from now on.
    Pass,
    /// Say that it is ours, for the first time since it is or since the link is up, or again.
    Announce { first: bool },
}

/// What a conflict comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not ours, as it turns out.
    Lost,
    /// It is, and is to be said so.
    Defend,
    /// Nothing: that was said not long ago, or it is lost already.
    Nothing,
}

/// An address of ours.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) interface: Interface,
    claim: Claim,
    pub(crate) due: Option<Duration>,
    probes: u8,
    announcements: u8,
    defended: Option<Duration>,
}

impl Own {
    pub(crate) fn new(interface: Interface, detection: Detection) -> Self {
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

    /// What it begins with, or with again if it is not ours yet. Nothing is due before [`Own::link_up`].
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

    /// The link is up, for the first time or again.
    pub(crate) fn link_up(&mut self, detection: Detection, now: Duration, draw: &mut Draw) {
        if self.claim != Claim::Preferred {
            self.begin(detection);
        }
        let wait = match (self.claim, self.address()) {
            // RFC 4429, 3.3: it serves as soon as the question is sent, so that is now.
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

    /// How often it is announced.
    fn times(&self) -> u8 {
        match self.address() {
            IpAddr::V4(_) => ANNOUNCE_NUM,
            IpAddr::V6(_) => MAX_NEIGHBOR_ADVERTISEMENT,
        }
    }

    /// What is to be done at `now`, if anything; asked until it is nothing.
    pub(crate) fn turn(&mut self, now: Duration, draw: &mut Draw) -> Option<Todo> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let v4 = self.address().is_ipv4();
        if self.claim.is_looked_for() {
            if let Some(left) = self.probes.checked_sub(1) {
                self.probes = left;
                let [least, most] = PROBE_INTERVAL;
                let wait = match (v4, left) {
                    (true, 0) => ANNOUNCE_WAIT,
                    (true, _) => draw.within(least, most),
                    (false, _) => RETRANS_TIMER,
                };
                self.due = Some(now + wait);
                return Some(Todo::Probe);
            }
            self.step(Finding::Passed);
            self.announcements = self.times();
            return Some(Todo::Pass);
        }
        let Some(left) = self.announcements.checked_sub(1) else {
            self.due = None;
            return None;
        };
        let first = self.announcements == self.times();
        self.announcements = left;
        let interval = if v4 { ANNOUNCE_INTERVAL } else { RETRANS_TIMER };
        self.due = (left > 0).then(|| now + interval + draw.up_to(ANNOUNCE_JITTER));
        Some(Todo::Announce { first })
    }

    /// Somebody else uses the address.
    pub(crate) fn conflict(&mut self, now: Duration) -> Verdict {
        let was = self.claim;
        if !self.step(Finding::Conflict) {
            return Verdict::Nothing;
        }
        if was != Claim::Preferred {
            self.due = None;
            return Verdict::Lost;
        }
        let recently = |then: Duration| now < then + DEFEND_INTERVAL;
        if self.defended.is_some_and(recently) {
            return Verdict::Nothing;
        }
        self.defended = Some(now);
        Verdict::Defend
    }

    fn step(&mut self, finding: Finding) -> bool {
        let next = self.claim.next(finding);
        self.claim = next.unwrap_or(self.claim);
        next.is_some()
    }
}
