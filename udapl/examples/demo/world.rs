//! Where the two functions are: on the built-in simulator, or wherever their names say.

use std::net::IpAddr;

use anyhow::{Context, Result};
use hw_sim::FunctionReport;
use udapl::fabric::Fabric;
use udapl::{Ia, OpenOptions};

/// The names of the sides.
pub const SIDES: [&str; 2] = ["A", "B"];

/// Counters of both functions together.
#[derive(Clone, Copy, Default)]
pub struct Counters {
    /// Frames sent onto the wire, both ways.
    pub packets: u64,
    /// Send doorbells rung.
    pub doorbells: u64,
}

impl Counters {
    pub const fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            doorbells: self.doorbells - before.doorbells,
        }
    }
}

/// Two functions on one link.
pub enum World {
    /// Simulated here: what they sent and what their drivers did wrong can be asked.
    Simulated(Fabric),
    /// Opened by name. Nobody knows their MACs before, so they have no address but the one that contains it.
    Named([String; 2]),
}

impl World {
    /// Brings a side up and opens it.
    pub fn open(&self, side: usize) -> Result<Ia> {
        let opened = match self {
            Self::Simulated(fabric) => fabric.open(side),
            Self::Named(names) => udapl::ia_open(&names[side], &OpenOptions::default()),
        };
        opened.with_context(|| format!("side {}", SIDES[side]))
    }

    /// Another address of side B, where it has one, than the one that contains its MAC.
    pub fn other_address(&self, link_local: IpAddr) -> IpAddr {
        match self {
            Self::Simulated(_) => Fabric::ipv4(1),
            Self::Named(_) => link_local,
        }
    }

    /// The simulator, if it is here.
    pub const fn fabric(&self) -> Option<&Fabric> {
        match self {
            Self::Simulated(fabric) => Some(fabric),
            Self::Named(_) => None,
        }
    }

    /// What a function has to say of its driver, if it can be asked.
    pub fn report(&self, side: usize) -> Option<FunctionReport> {
        self.fabric().map(|fabric| fabric.report(side))
    }

    /// Packets and doorbells so far, of both sides, if they can be asked.
    pub fn counters(&self) -> Option<Counters> {
        let fabric = self.fabric()?;
        let [one, other] = [0, 1].map(|side| fabric.report(side));
        Some(Counters {
            packets: one.transmitted.packets + other.transmitted.packets,
            doorbells: one.send_doorbells + other.send_doorbells,
        })
    }
}
