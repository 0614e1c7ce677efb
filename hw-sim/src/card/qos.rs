//! What the physical function's driver has a port do with priorities and congestion.
//!
//! It is set from outside of the world, and the registers and commands that tell of it say it as it was set. A port on
//! a [switch](crate::switch) does it, too; one on a bare wire, where no queue ever fills, has nothing to do.

use std::time::Duration;

use mlx_prm::TrustState;
use serde::{Deserialize, Serialize};

use crate::dcqcn::Reaction;
use crate::switch::classify::PRIORITIES;
use crate::switch::{Classes, TrafficClasses, stored};

/// Settings of a port. At power-on there is neither pause nor priority, and the device answers congestion in each
/// priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortQos {
    /// Pause frames of the whole port are sent; and obeyed (register PFCC).
    pub pause: (bool, bool),
    /// Priorities that are paused, a bit each, as they are sent; and obeyed.
    pub paused_priorities: (u8, u8),
    /// By what the port goes (register QPTS).
    #[serde(with = "stored::trust")]
    pub trust: TrustState,
    /// The priority of each code point (register QPDPM).
    #[serde(with = "stored::code_points")]
    pub priorities: [u8; 64],
    /// The traffic classes of priorities, and how they share the port (registers QTCT and QETCR).
    #[serde(default)]
    pub traffic: TrafficClasses,
    /// Priorities in which a sender slows down that is told of congestion; and in which it is told (QUERY_CONG_STATUS).
    pub congestion: (u8, u8),
    /// Code point and priority of what tells it (QUERY_CONG_PARAMS).
    pub cnp: (u8, u8),
    /// A receiver tells the sender of a queue pair's packets so often at most.
    pub cnp_interval: Duration,
    /// How a sender slows down and recovers.
    pub reaction: Reaction,
}

impl PortQos {
    /// Whether registers and commands can tell of it.
    ///
    /// # Errors
    /// In words: what has no place in them.
    pub fn check(&self) -> Result<(), String> {
        if !matches!(self.trust, TrustState::PCP | TrustState::DSCP) {
            return Err(format!("a port goes by no {:?}", self.trust));
        }
        let (dscp, priority) = self.cnp;
        let mut all = self.priorities.iter().chain([&priority]);
        if let Some(priority) = all.find(|&&priority| usize::from(priority) >= PRIORITIES) {
            return Err(format!("there is no priority {priority}"));
        }
        self.traffic.check()?;
        if usize::from(dscp) >= self.priorities.len() {
            return Err(format!("there is no code point {dscp}"));
        }
        Ok(())
    }

    /// How the port knows the priority of a frame.
    pub(crate) fn classes(&self) -> Classes {
        Classes {
            trust: self.trust,
            of_dscp: self.priorities,
        }
    }
}

/// Pauses of one priority that a port was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounters {
    /// Frames that named it, the end of a pause among them.
    pub received: u64,
    /// How long it was silent for them, or will have been when the last pause ends by itself.
    pub silent_ns: u64,
    /// How often it fell silent or went on because of one.
    pub transitions: u64,
}

/// What a port has counted about congestion (QUERY_CONG_STATISTICS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionCounters {
    /// Marked packets of queue pairs that were received.
    pub marked_received: u64,
    /// Notifications sent.
    pub cnps_sent: u64,
    /// Notifications received, and a queue pair slowed down.
    pub cnps_handled: u64,
    /// Notifications received to which nobody reacts.
    pub cnps_ignored: u64,
}

impl Default for PortQos {
    fn default() -> Self {
        Self {
            pause: (false, false),
            paused_priorities: (0, 0),
            trust: TrustState::PCP,
            priorities: [0; 64],
            traffic: TrafficClasses::default(),
            congestion: (0xff, 0xff),
            // As a real ConnectX-5 had them (`CNP_DSCP`, `CNP_802P_PRIO`, `MIN_TIME_BETWEEN_CNPS` of mlxconfig;
            // `github.com/ironcore-dev/dpservice`, issue 26).
            cnp: (48, 6),
            cnp_interval: Duration::from_micros(4),
            reaction: Reaction::default(),
        }
    }
}
