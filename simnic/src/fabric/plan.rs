//! The plan of a run: flows between functions, and settings of the switches.

use std::str::FromStr;
use std::time::Duration;

use hw_sim::Reaction;
use hw_sim::switch::{Buffer, Pfc, Red};

/// Priority of all traffic, and the DSCP that selects it.
pub use crate::switch::PRIORITY;
pub(super) const DSCP: u8 = 26;

/// The functions, and the flows between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// N functions send to one more function. All are on one switch.
    Incast(usize),
    /// N functions send, each to a receiver of its own. All are on one switch.
    Pairs(usize),
    /// N functions on one switch, each of which sends to the next.
    Round(usize),
    /// N switches in a circle with one function each. Each function sends to the function of the previous switch, and
    /// the frames take the long way through all switches.
    Ring(usize),
}

/// Maximum number of functions.
const MOST: usize = 32;

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = "incast:N, pairs:N (1 to 15), round:N (2 to 15) or ring:N (3 to 15)";
        let wrong = || format!("{text:?} is no topology like {known}");
        let (name, number) = text.split_once(':').ok_or_else(wrong)?;
        let number: usize = number.parse().map_err(|_| wrong())?;
        let topology = match name {
            "incast" => Self::Incast(number),
            "pairs" => Self::Pairs(number),
            "round" if number >= 2 => Self::Round(number),
            "ring" if number >= 3 => Self::Ring(number),
            _ => return Err(wrong()),
        };
        if number == 0 || topology.functions() > MOST || number > 15 {
            return Err(wrong());
        }
        Ok(topology)
    }
}

impl std::fmt::Display for Topology {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Incast(number) => write!(to, "incast:{number}"),
            Self::Pairs(number) => write!(to, "pairs:{number}"),
            Self::Round(number) => write!(to, "round:{number}"),
            Self::Ring(number) => write!(to, "ring:{number}"),
        }
    }
}

impl Topology {
    /// Returns the number of functions.
    #[must_use]
    pub const fn functions(self) -> usize {
        match self {
            Self::Incast(senders) => senders + 1,
            Self::Pairs(pairs) => 2 * pairs,
            Self::Round(functions) => functions,
            Self::Ring(switches) => switches,
        }
    }

    /// Returns sender and receiver of each flow.
    #[must_use]
    pub fn flows(self) -> Vec<(usize, usize)> {
        match self {
            Self::Incast(senders) => (0..senders).map(|sender| (sender, senders)).collect(),
            Self::Pairs(pairs) => (0..pairs).map(|pair| (2 * pair, 2 * pair + 1)).collect(),
            Self::Round(functions) => (0..functions)
                .map(|sender| (sender, (sender + 1) % functions))
                .collect(),
            Self::Ring(switches) => (0..switches)
                .map(|sender| (sender, (sender + switches - 1) % switches))
                .collect(),
        }
    }

    /// Returns the switch and the port of each bottleneck, where the frames of flows queue.
    pub(super) fn bottlenecks(self) -> Vec<(usize, usize)> {
        match self {
            Self::Incast(senders) => vec![(0, senders)],
            Self::Pairs(pairs) => (0..pairs).map(|pair| (0, 2 * pair + 1)).collect(),
            Self::Round(functions) => (0..functions).map(|function| (0, function)).collect(),
            // Port 1 of each switch leads to the next switch.
            Self::Ring(switches) => (0..switches).map(|switch| (switch, 1)).collect(),
        }
    }
}

/// Plan of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Flows between functions.
    pub topology: Topology,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Rate of every port in bits per second.
    pub rate_bps: u64,
    /// Propagation delay of every cable.
    pub delay: Duration,
    /// Buffer memory of a switch for lossy traffic.
    pub buffer: Buffer,
    /// Settings of ECN marking; `None` if the switches do not mark.
    pub ecn: Option<Red>,
    /// Settings of PFC; `None` if the switches send no pause frames.
    pub pfc: Option<Pfc>,
    /// Reaction of the senders to ECN marks.
    pub reaction: Reaction,
    /// Time during which the flows send.
    pub time: Duration,
    /// Time between the starts of two successive flows.
    pub stagger: Duration,
    /// Length of a message in bytes.
    pub message_bytes: usize,
    /// Number of messages that a flow keeps outstanding.
    pub depth: usize,
}

impl Plan {
    /// Returns the default plan: ports of 10 Gb/s, cables with 1 us of delay, a buffer of 256 KiB, neither ECN nor
    /// PFC, and 10 ms of sending.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        Self {
            topology,
            seed: 1,
            rate_bps: 10_000_000_000,
            delay: Duration::from_micros(1),
            buffer: Buffer::Shared(256 << 10),
            ecn: None,
            pfc: None,
            reaction: Reaction::PAPER,
            time: Duration::from_millis(10),
            stagger: Duration::ZERO,
            message_bytes: 16 << 10,
            depth: 8,
        }
    }

    /// Adds ECN marking with these settings.
    #[must_use]
    pub const fn marking(mut self, red: Red) -> Self {
        self.ecn = Some(red);
        self
    }

    /// Adds PFC for the priority of the traffic.
    #[must_use]
    pub const fn pausing(mut self) -> Self {
        self.pfc = Some(Pfc::of(1 << PRIORITY));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_is_a_name_and_a_number() {
        for (text, functions) in [
            ("incast:4", 5),
            ("pairs:2", 4),
            ("round:3", 3),
            ("ring:3", 3),
        ] {
            let topology: Topology = text.parse().expect(text);
            assert_eq!(
                (topology.functions(), topology.to_string()),
                (functions, text.to_owned())
            );
        }
        for wrong in [
            "incast", "incast:0", "ring:2", "round:1", "star:4", "pairs:16", "pairs:-1",
        ] {
            let error = wrong.parse::<Topology>().expect_err(wrong);
            assert!(error.contains("incast:N"), "{error}");
        }
    }

    #[test]
    fn in_a_ring_every_flow_passes_all_switches() {
        assert_eq!(Topology::Ring(3).flows(), [(0, 2), (1, 0), (2, 1)]);
    }
}
