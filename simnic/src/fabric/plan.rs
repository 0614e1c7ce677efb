//! What is to be seen: which functions send to which over which switches, and how those are made.

use std::str::FromStr;
use std::time::Duration;

use hw_sim::Reaction;
use hw_sim::switch::{Buffer, Pfc, Red};

/// The priority that all traffic has, and the code point that says so.
pub use crate::switch::PRIORITY;
pub(super) const DSCP: u8 = 26;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// So many functions send to one, all on a switch.
    Incast(usize),
    /// So many functions send, each to one of its own, all on a switch.
    Pairs(usize),
    /// So many functions on a switch, each of which sends to the next.
    Round(usize),
    /// So many switches in a circle, each with a function, which sends to that of the switch before: the long way
    /// round.
    Ring(usize),
}

/// Most functions of a picture.
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
    /// How many functions there are.
    #[must_use]
    pub const fn functions(self) -> usize {
        match self {
            Self::Incast(senders) => senders + 1,
            Self::Pairs(pairs) => 2 * pairs,
            Self::Round(functions) => functions,
            Self::Ring(switches) => switches,
        }
    }

    /// Sender and receiver of each flow.
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

    /// The switches' ports at which frames wait for each other: switch and port.
    pub(super) fn bottlenecks(self) -> Vec<(usize, usize)> {
        match self {
            Self::Incast(senders) => vec![(0, senders)],
            Self::Pairs(pairs) => (0..pairs).map(|pair| (0, 2 * pair + 1)).collect(),
            Self::Round(functions) => (0..functions).map(|function| (0, function)).collect(),
            // The port to the next switch.
            Self::Ring(switches) => (0..switches).map(|switch| (switch, 1)).collect(),
        }
    }
}

/// What is to be seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Who sends to whom.
    pub topology: Topology,
    /// Everything random follows from it.
    pub seed: u64,
    /// Bits each second, of every port.
    pub rate_bps: u64,
    /// Flight time of every cable.
    pub delay: Duration,
    /// Memory of a switch for what may be lost.
    pub buffer: Buffer,
    /// It marks.
    pub ecn: Option<Red>,
    /// It pauses.
    pub pfc: Option<Pfc>,
    /// How senders react to marks.
    pub reaction: Reaction,
    /// How long they send.
    pub time: Duration,
    /// How long the second flow begins behind the first, the third behind the second, and so on.
    pub stagger: Duration,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Messages that a flow has under way.
    pub depth: usize,
}

impl Plan {
    /// The usual: 10 Gb/s, cables of a microsecond, a buffer of 256 KiB, and neither marks nor pauses, for 10 ms.
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

    /// Marks from `kmin` to `kmax` bytes.
    #[must_use]
    pub const fn marking(mut self, red: Red) -> Self {
        self.ecn = Some(red);
        self
    }

    /// Pauses of the priority that the traffic has.
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
