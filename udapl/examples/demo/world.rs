//! The two functions: on the built-in simulator, or opened by name.

use std::net::IpAddr;

use anyhow::{Context, Result};
use udapl::fabric::{Fabric, FunctionReport};
use udapl::{Ia, OpenOptions};

/// The names of the sides.
pub const SIDES: [&str; 2] = ["A", "B"];

/// Counters of both functions together.
#[derive(Clone, Copy, Default)]
pub struct Counters {
    /// Number of frames sent onto the wire, in both directions.
    pub packets: u64,
    /// Number of send doorbells rung.
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
    /// Two functions that are simulated in this process. Their packets can be captured, and the simulator reports
    /// errors of their drivers.
    Simulated(Fabric),
    /// Two functions that are opened by name. Their MACs are unknown in advance, so they have only link-local
    /// addresses, which contain the MAC.
    Named([String; 2]),
}

impl World {
    /// Brings the function of a side up and opens it.
    pub fn open(&self, side: usize) -> Result<Ia> {
        let opened = match self {
            Self::Simulated(fabric) => fabric.open(side),
            Self::Named(names) => udapl::ia_open(&names[side], &OpenOptions::default()),
        };
        opened.with_context(|| format!("side {}", SIDES[side]))
    }

    /// Returns the address for the second and third connection: side B's IPv4 address if the functions are simulated in
    /// this process, otherwise `link_local`.
    pub fn other_address(&self, link_local: IpAddr) -> IpAddr {
        match self {
            Self::Simulated(_) => Fabric::ipv4(1),
            Self::Named(_) => link_local,
        }
    }

    /// Returns the simulator, if the functions are in this process.
    pub const fn fabric(&self) -> Option<&Fabric> {
        match self {
            Self::Simulated(fabric) => Some(fabric),
            Self::Named(_) => None,
        }
    }

    /// Returns the simulator's report about a function's driver, if the functions are in this process.
    pub fn report(&self, side: usize) -> Option<FunctionReport> {
        self.fabric().map(|fabric| fabric.report(side))
    }

    /// Returns the packets and doorbells of both sides so far, if the functions are in this process.
    pub fn counters(&self) -> Option<Counters> {
        let fabric = self.fabric()?;
        let [one, other] = [0, 1].map(|side| fabric.report(side));
        Some(Counters {
            packets: one.transmitted.packets + other.transmitted.packets,
            doorbells: one.send_doorbells + other.send_doorbells,
        })
    }
}
