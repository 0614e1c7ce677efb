//! Configuration of a switch.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::classify::{Classes, PRIORITIES};

/// Maximum number of ports of a switch.
pub const MAX_PORTS: usize = 64;
/// Maximum number of bytes that a switch can hold: its buffer plus the buffers of all lossless priorities.
pub const MAX_BYTES: usize = 1 << 30;

/// Configuration of a switch. The default has four ports of 100 Gb/s and no lossless priorities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchConfig {
    /// Number of ports.
    pub ports: usize,
    /// Rate of each port, in bits per second.
    pub rate_bps: u64,
    /// Memory for queued frames of lossy priorities.
    pub buffer: Buffer,
    /// Mapping of frames to priorities.
    pub classes: Classes,
    /// Thresholds for marking packets whose senders react to marks. With `None`, no packet is marked.
    pub ecn: Option<Red>,
    /// Thresholds for pausing senders, and the priorities they apply to. With `None`, the switch sends no pauses.
    pub pfc: Option<Pfc>,
    /// Treatment of frames to unknown addresses.
    pub unknown: Unknown,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            ports: 4,
            rate_bps: 100_000_000_000,
            buffer: Buffer::Shared(1 << 20),
            classes: Classes::by_dscp(),
            ecn: None,
            pfc: None,
            unknown: Unknown::Flood,
        }
    }
}

/// Memory for frames of lossy priorities. Lossless priorities have their own memory ([`Pfc`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Buffer {
    /// Number of bytes for all ports together, first come, first served.
    Shared(usize),
    /// Number of bytes for each egress port.
    PerPort(usize),
}

/// Treatment of frames to unknown unicast addresses, to multicast groups and to the broadcast address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unknown {
    /// The switch sends such a frame through every other port.
    Flood,
    /// The switch drops such a frame. Required in a loop of switches, where a flooded frame would circulate forever.
    Drop,
}

/// Thresholds for marking, in bytes queued at the egress port in the packet's priority (DCQCN, SIGCOMM 2015, figure 5).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Red {
    /// Queue depth in bytes up to which no packet is marked.
    pub kmin_bytes: usize,
    /// Queue depth in bytes from which every packet is marked.
    pub kmax_bytes: usize,
    /// Fraction of packets marked just below `kmax_bytes`, 0 to 1. The fraction grows linearly from 0 at `kmin_bytes`.
    pub pmax: f64,
}

impl Red {
    /// The paper's values for 40 Gb/s (table 14): 5 KB, 200 KB, 1 %.
    pub const DCQCN: Self = Self {
        kmin_bytes: 5_000,
        kmax_bytes: 200_000,
        pmax: 0.01,
    };

    /// Returns the probability that a packet is marked at this queue depth, in bytes.
    #[must_use]
    pub fn probability(&self, depth: usize) -> f64 {
        if depth <= self.kmin_bytes {
            0.0
        } else if depth >= self.kmax_bytes {
            1.0
        } else {
            let above = (depth - self.kmin_bytes) as f64;
            self.pmax * above / (self.kmax_bytes - self.kmin_bytes) as f64
        }
    }
}

/// Thresholds of priority flow control. Byte counts are per ingress port and priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pfc {
    /// Bit mask of the lossless priorities.
    pub priorities: u8,
    /// Number of bytes above which the switch pauses the sender.
    pub xoff_bytes: usize,
    /// Number of bytes at which the switch ends the pause.
    pub xon_bytes: usize,
    /// Number of bytes above `xoff_bytes`, for frames that are in flight when the switch requests the pause.
    pub headroom_bytes: usize,
    /// Maximum time that a frame may wait because of a pause. After that time, the switch drops the whole queue, and
    /// drops new frames for the queue during the same time again. With `None`, there is no limit.
    pub watchdog: Option<Duration>,
}

impl Pfc {
    /// Returns default thresholds for the lossless `priorities`: XOFF at 32 KiB, 64 KiB of headroom, no watchdog.
    #[must_use]
    pub const fn of(priorities: u8) -> Self {
        Self {
            priorities,
            xoff_bytes: 32 << 10,
            xon_bytes: 24 << 10,
            headroom_bytes: 64 << 10,
            watchdog: None,
        }
    }
}

/// An invalid switch configuration.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SwitchError {
    /// The number of ports is out of range.
    #[error("a switch has 2 to {MAX_PORTS} ports, not {0}")]
    Ports(usize),
    /// The rate is zero.
    #[error("a port of 0 bit/s sends nothing")]
    Rate,
    /// The thresholds for ECN marking contradict each other.
    #[error("ECN: Kmin {kmin} is to be below Kmax {kmax}, and Pmax {pmax} between 0 and 1")]
    Red {
        /// Kmin in bytes.
        kmin: usize,
        /// Kmax in bytes.
        kmax: usize,
        /// Pmax, a fraction of 0 to 1.
        pmax: f64,
    },
    /// The thresholds for pauses contradict each other.
    #[error("PFC: XON {xon} is to be below XOFF {xoff}")]
    Pfc {
        /// XON in bytes.
        xon: usize,
        /// XOFF in bytes.
        xoff: usize,
    },
    /// The watchdog time is zero.
    #[error("PFC: a watchdog of no time would drop frames that have not waited")]
    Watchdog,
    /// The memory exceeds the limit. The field is the number of bytes.
    #[error("a switch has at most {MAX_BYTES} bytes for frames, not {0}")]
    Memory(usize),
    /// The mapping has a priority above 7.
    #[error("code point {dscp} has priority {priority}, of {PRIORITIES}")]
    Priority {
        /// DSCP with the wrong priority.
        dscp: usize,
        /// Priority of that DSCP.
        priority: u8,
    },
}

impl SwitchConfig {
    /// Returns the maximum number of bytes that the switch can hold.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let lossy = match self.buffer {
            Buffer::Shared(bytes) => bytes,
            Buffer::PerPort(bytes) => bytes.saturating_mul(self.ports),
        };
        let lossless = self.pfc.map_or(0, |pfc| {
            let of_one = pfc.xoff_bytes.saturating_add(pfc.headroom_bytes);
            let priorities = pfc.priorities.count_ones() as usize;
            of_one.saturating_mul(priorities).saturating_mul(self.ports)
        });
        lossy.saturating_add(lossless)
    }

    /// Checks that the configuration is valid.
    ///
    /// # Errors
    /// [`SwitchError`] with the first invalid setting.
    pub fn check(&self) -> Result<(), SwitchError> {
        if !(2..=MAX_PORTS).contains(&self.ports) {
            return Err(SwitchError::Ports(self.ports));
        }
        if self.rate_bps == 0 {
            return Err(SwitchError::Rate);
        }
        if let Some(Red {
            kmin_bytes: kmin,
            kmax_bytes: kmax,
            pmax,
        }) = self.ecn
            && (kmin >= kmax || !(0.0..=1.0).contains(&pmax))
        {
            return Err(SwitchError::Red { kmin, kmax, pmax });
        }
        if let Some(Pfc {
            xon_bytes: xon,
            xoff_bytes: xoff,
            ..
        }) = self.pfc
            && xon >= xoff
        {
            return Err(SwitchError::Pfc { xon, xoff });
        }
        if self.pfc.and_then(|pfc| pfc.watchdog) == Some(Duration::ZERO) {
            return Err(SwitchError::Watchdog);
        }
        let bytes = self.bytes();
        if bytes > MAX_BYTES {
            return Err(SwitchError::Memory(bytes));
        }
        let wrong = |&(_, &priority): &(usize, &u8)| usize::from(priority) >= PRIORITIES;
        match self.classes.of_dscp.iter().enumerate().find(wrong) {
            Some((dscp, &priority)) => Err(SwitchError::Priority { dscp, priority }),
            None => Ok(()),
        }
    }
}
