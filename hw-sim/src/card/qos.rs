//! Settings of a port for priorities and congestion control.
//!
//! The user of the simulator sets them in place of the physical function's host, and registers and commands report
//! them. The function's driver can change some of them: pauses (register PFCC), traffic classes (QTCT, QETCR) and
//! parameters of congestion control (MODIFY_CONG_PARAMS). A reset of the function restores the user's settings. A port
//! on a [switch](crate::switch) applies them. On a bare wire, where no queue ever fills, they have no effect.

use std::time::Duration;

use mlx_prm::TrustState;
use serde::{Deserialize, Serialize};

use crate::dcqcn::Reaction;
use crate::switch::classify::PRIORITIES;
use crate::switch::{Classes, TrafficClasses, stored};

/// Settings of a port. At power-on both kinds of pauses are off, and congestion control is on in each priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortQos {
    /// Pause frames of the whole port (register PFCC): true if the port sends them, and true if the port obeys them.
    pub pause: (bool, bool),
    /// Priorities with priority flow control, one bit each: priorities for which the port sends pauses, and priorities
    /// for which the port obeys pauses.
    pub paused_priorities: (u8, u8),
    /// Field of a frame from which the port takes the priority (register QPTS).
    #[serde(with = "stored::trust")]
    pub trust: TrustState,
    /// Priority of each DSCP (register QPDPM).
    #[serde(with = "stored::code_points")]
    pub priorities: [u8; 64],
    /// Traffic class of each priority, and the classes' parts of the port's bandwidth (registers QTCT and QETCR).
    pub traffic: TrafficClasses,
    /// Priorities with congestion control (QUERY_CONG_STATUS), one bit each: priorities in which a notified sender
    /// reduces its rate, and priorities in which a receiver sends notifications.
    pub congestion: (u8, u8),
    /// DSCP and priority of notifications (QUERY_CONG_PARAMS).
    pub cnp: (u8, u8),
    /// Minimum time between two notifications that a receiver sends for one queue pair.
    pub cnp_interval: Duration,
    /// Parameters of the slowdown and recovery of a notified sender.
    pub reaction: Reaction,
}

impl PortQos {
    /// Checks that registers and commands can report the settings.
    ///
    /// # Errors
    /// A description of the setting that they cannot report.
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

/// Counters of the pauses that the peer requested for one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounters {
    /// Pause frames that named the priority, including those that end a pause.
    pub received: u64,
    /// Time for which the priority was paused, including the rest of the last pause, in ns.
    pub silent_ns: u64,
    /// Number of times that a pause frame paused or resumed the priority.
    pub transitions: u64,
}

/// Counters of a port about congestion (QUERY_CONG_STATISTICS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionCounters {
    /// Packets of queue pairs that were received with a congestion mark.
    pub marked_received: u64,
    /// Notifications (CNPs) sent.
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
            // The values of a real ConnectX-5 (`CNP_DSCP`, `CNP_802P_PRIO`, `MIN_TIME_BETWEEN_CNPS` of mlxconfig;
            // `github.com/ironcore-dev/dpservice`, issue 26).
            cnp: (48, 6),
            cnp_interval: Duration::from_micros(4),
            reaction: Reaction::default(),
        }
    }
}
