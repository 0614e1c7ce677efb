//! What a switch is told before it runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::classify::{Classes, PRIORITIES};

/// Most ports of a switch.
pub const MAX_PORTS: usize = 64;
/// Most bytes that the frames of a switch take: its buffer, and all room of lossless priorities.
pub const MAX_BYTES: usize = 1 << 30;

/// How a switch is made. The default is a lossy one of four ports of 100 Gb/s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchConfig {
    /// How many ports it has.
    pub ports: usize,
    /// Their rate, bits each second.
    pub rate_bps: u64,
    /// What holds frames that wait.
    pub buffer: Buffer,
    /// How it knows the priority of a frame.
    pub classes: Classes,
    /// It marks packets whose senders listen. Without, nobody hears of its queues.
    pub ecn: Option<Red>,
    /// It pauses who sends, in the priorities that are named.
    pub pfc: Option<Pfc>,
    /// What becomes of frames to addresses that it has not learned.
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

/// Memory for frames of priorities that may be lost. Those that may not have memory of their own ([`Pfc`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Buffer {
    /// So many bytes for all ports together; who comes first has them.
    Shared(usize),
    /// So many bytes for each port that sends.
    PerPort(usize),
}

/// What becomes of frames to addresses that were not learned, to groups and to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unknown {
    /// They leave at every other port.
    Flood,
    /// They are dropped: where switches lie in a circle, a flood would never end.
    Drop,
}

/// When a packet is marked, by the bytes that wait where it is to leave (DCQCN, SIGCOMM 2015, figure 5).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Red {
    /// None up to here.
    pub kmin_bytes: usize,
    /// All from here on.
    pub kmax_bytes: usize,
    /// The part of them that is marked just below `kmax_bytes`, 0 to 1. Between the two it grows in a straight line.
    pub pmax: f64,
}

impl Red {
    /// What the paper's authors chose for 40 Gb/s (table 14): 5 KB, 200 KB, 1 %.
    pub const DCQCN: Self = Self {
        kmin_bytes: 5_000,
        kmax_bytes: 200_000,
        pmax: 0.01,
    };

    /// The part of packets that is marked at a depth.
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

/// Priority flow control: when it asks for silence. Bytes are of one port that receives and one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pfc {
    /// The priorities that lose nothing, a bit each.
    pub priorities: u8,
    /// Above so many bytes, the other end is paused.
    pub xoff_bytes: usize,
    /// Down to so many, it goes on.
    pub xon_bytes: usize,
    /// Room above `xoff_bytes` for what is on its way when the pause is asked for.
    pub headroom_bytes: usize,
    /// What may not send for so long is thrown away, and so is what comes for it in the next such time.
    pub watchdog: Option<Duration>,
}

impl Pfc {
    /// A pause of some priorities at 32 KiB, with 64 KiB of headroom, and no watchdog.
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

/// A switch that cannot be.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SwitchError {
    /// Too few or too many ports.
    #[error("a switch has 2 to {MAX_PORTS} ports, not {0}")]
    Ports(usize),
    /// No rate.
    #[error("a port of 0 bit/s sends nothing")]
    Rate,
    /// Thresholds of marks.
    #[error("ECN: Kmin {kmin} is to be below Kmax {kmax}, and Pmax {pmax} between 0 and 1")]
    Red {
        /// Bytes.
        kmin: usize,
        /// Bytes.
        kmax: usize,
        /// Part.
        pmax: f64,
    },
    /// Thresholds of pauses.
    #[error("PFC: XON {xon} is to be below XOFF {xoff}")]
    Pfc {
        /// Bytes.
        xon: usize,
        /// Bytes.
        xoff: usize,
    },
    /// A watchdog that gives nobody time.
    #[error("PFC: a watchdog of no time throws away what has not waited")]
    Watchdog,
    /// More memory than there is.
    #[error("a switch has at most {MAX_BYTES} bytes for frames, not {0}")]
    Memory(usize),
    /// A priority that does not exist.
    #[error("code point {dscp} has priority {priority}, of {PRIORITIES}")]
    Priority {
        /// Of which.
        dscp: usize,
        /// What it has.
        priority: u8,
    },
}

impl SwitchConfig {
    /// The most bytes of frames that wait in it at a time.
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

    /// Whether such a switch can be.
    ///
    /// # Errors
    /// [`SwitchError`]: what cannot.
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
