//! Configuration of a switch.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::classify::{Classes, PRIORITIES};

/// Most ports of a switch.
pub const MAX_PORTS: usize = 64;
/// Limit of the bytes of a switch's frames: its buffer, and all room of lossless priorities.
pub const MAX_BYTES: usize = 1 << 30;

/// Configuration of a switch. The default is a lossy one with four ports of 100 Gb/s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchConfig {
    /// Number of ports.
    pub ports: usize,
    /// Rate of each port, in bits per second.
    pub rate_bps: u64,
    /// Memory for frames that wait.
    pub buffer: Buffer,
    /// Mapping of frames to priorities.
    pub classes: Classes,
    /// Thresholds for marking packets whose senders react to marks; `None` marks none.
    pub ecn: Option<Red>,
    /// Thresholds for pausing senders, in the named priorities; `None` sends no pauses.
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

/// Memory for frames of lossy priorities. Lossless ones have memory of their own ([`Pfc`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Buffer {
    /// Bytes for all ports together, first come, first served.
    Shared(usize),
    /// Bytes for each sending port.
    PerPort(usize),
}

/// Treatment of frames to unknown addresses, to groups and to all stations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unknown {
    /// They leave by every other port.
    Flood,
    /// They are dropped: in a loop of switches a flood would never end.
    Drop,
}

/// Thresholds for marking, by the bytes that wait at the port of departure (DCQCN, SIGCOMM 2015, figure 5).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Red {
    /// No packet is marked up to here.
    pub kmin_bytes: usize,
    /// Every packet is marked from here on.
    pub kmax_bytes: usize,
    /// Share of packets marked just below `kmax_bytes`, 0 to 1. From `kmin_bytes` on it grows linearly.
    pub pmax: f64,
}

impl Red {
    /// The paper's values for 40 Gb/s (table 14): 5 KB, 200 KB, 1 %.
    pub const DCQCN: Self = Self {
        kmin_bytes: 5_000,
        kmax_bytes: 200_000,
        pmax: 0.01,
    };

    /// Returns the share of packets that are marked at a depth.
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

/// Priority flow control: thresholds for pauses. Bytes are those of one receiving port and one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pfc {
    /// Lossless priorities, a bit each.
    pub priorities: u8,
    /// Above this number of bytes the sender is paused.
    pub xoff_bytes: usize,
    /// At this number of bytes or fewer the pause ends.
    pub xon_bytes: usize,
    /// Bytes above `xoff_bytes` for frames under way when the pause is requested.
    pub headroom_bytes: usize,
    /// Time a frame may wait for a paused priority. Then the queue is dropped, and so are frames for it in the next
    /// such time.
    pub watchdog: Option<Duration>,
}

impl Pfc {
    /// Returns thresholds for some priorities: XOFF at 32 KiB, with 64 KiB of headroom, and no watchdog.
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

/// Reason for which a switch is impossible.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SwitchError {
    /// Too few or too many ports.
    #[error("a switch has 2 to {MAX_PORTS} ports, not {0}")]
    Ports(usize),
    /// A rate of zero.
    #[error("a port of 0 bit/s sends nothing")]
    Rate,
    /// Wrong thresholds of marks.
    #[error("ECN: Kmin {kmin} is to be below Kmax {kmax}, and Pmax {pmax} between 0 and 1")]
    Red {
        /// Bytes.
        kmin: usize,
        /// Bytes.
        kmax: usize,
        /// Share, 0 to 1.
        pmax: f64,
    },
    /// Wrong thresholds of pauses.
    #[error("PFC: XON {xon} is to be below XOFF {xoff}")]
    Pfc {
        /// Bytes.
        xon: usize,
        /// Bytes.
        xoff: usize,
    },
    /// A watchdog time of zero.
    #[error("PFC: a watchdog of no time would drop frames that have not waited")]
    Watchdog,
    /// More memory than the limit.
    #[error("a switch has at most {MAX_BYTES} bytes for frames, not {0}")]
    Memory(usize),
    /// A priority that does not exist.
    #[error("code point {dscp} has priority {priority}, of {PRIORITIES}")]
    Priority {
        /// Code point.
        dscp: usize,
        /// Its priority.
        priority: u8,
    },
}

impl SwitchConfig {
    /// Returns the most bytes of frames that can wait in it.
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

    /// Checks that such a switch is possible.
    ///
    /// # Errors
    /// [`SwitchError`]: the impossible setting.
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
