//! Where the two functions are: on the built-in simulator, or wherever their names say.

use anyhow::{Context, Result};
use dat::Ia;
use dat::fabric::Fabric;
use hw_sim::FunctionReport;

use super::table::Counters;

/// The names of the sides.
pub const SIDES: [&str; 2] = ["A", "B"];

/// Two functions on one link.
pub enum World {
    /// Simulated here: what they sent and what their drivers did wrong can be asked.
    Simulated(Fabric),
    /// Opened by name; the addresses are those of [`Fabric::options`].
    Named([String; 2]),
}

impl World {
    /// Brings a side up and opens it.
    pub fn open(&self, side: usize) -> Result<Ia> {
        let opened = match self {
            Self::Simulated(fabric) => fabric.open(side),
            Self::Named(names) => dat::ia_open(&names[side], &Fabric::options(side)),
        };
        opened.with_context(|| format!("side {}", SIDES[side]))
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
