//! Settings of a port for priorities and congestion control.
//!
//! The physical function's host sets them from outside of the world, and registers and commands report them. Its
//! driver changes some of them until the next reset: pauses (register PFCC), traffic classes (QTCT, QETCR) and
//! parameters of congestion control (MODIFY_CONG_PARAMS). A port on a [switch](crate::switch) applies them; on a bare
//! wire, where no queue ever fills, they have no effect.

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
    /// Pause frames of the whole port (register PFCC): sent; obeyed.
    pub pause: (bool, bool),
    /// Paused priorities, a bit each: sent; obeyed.
    pub paused_priorities: (u8, u8),
    /// Trusted bits of a frame (register QPTS).
    #[serde(with = "stored::trust")]
    pub trust: TrustState,
    /// The priority of each code point (register QPDPM).
    #[serde(with = "stored::code_points")]
    pub priorities: [u8; 64],
    /// The traffic classes of priorities, and their shares of the port (registers QTCT and QETCR).
    pub traffic: TrafficClasses,
    /// Priorities of congestion control (QUERY_CONG_STATUS), a bit each: those in which a notified sender slows down;
    /// those in which a receiver notifies.
    pub congestion: (u8, u8),
    /// Code point and priority of notifications (QUERY_CONG_PARAMS).
    pub cnp: (u8, u8),
    /// Smallest time between two notifications of a receiver to a queue pair's sender.
    pub cnp_interval: Duration,
    /// Parameters of a sender's slowdown and recovery.
    pub reaction: Reaction,
}

impl PortQos {
    /// Checks that registers and commands can report the settings.
    ///
    /// # Errors
    /// In words: the setting that they cannot report.
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

    /// Returns the port's mapping of frames to priorities.
    pub(crate) fn classes(&self) -> Classes {
        Classes {
            trust: self.trust,
            of_dscp: self.priorities,
        }
    }
}

/// Pauses of one priority that the peer requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounters {
    /// Frames that named the priority, including those that end a pause.
    pub received: u64,
    /// Time it was paused, including the rest of the last pause, in ns.
    pub silent_ns: u64,
    /// Number of times it was paused or resumed.
    pub transitions: u64,
}

/// Counters of a port about congestion (QUERY_CONG_STATISTICS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionCounters {
    /// Marked packets of queue pairs that were received.
    pub marked_received: u64,
    /// Notifications sent.
    pub cnps_sent: u64,
    /// Notifications received that slowed a queue pair down.
    pub cnps_handled: u64,
    /// Notifications received without effect.
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
