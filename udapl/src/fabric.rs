//! Simulated functions on one link, for programs that control the simulator: faults, captures, reports, time.
//!
//! A program that only opens `sim:A` by name needs none of this; see [`ia_open`](crate::ia_open). [`simulate`] acts on
//! such a function: it takes the link down or up, resets the function, or requests the function back from its driver.
//!
//! A fabric's time is virtual: it advances when a thread waits, or by [`Sim::step`] and [`Sim::advance`]. This module
//! re-exports everything needed for that, so that a program depends on this crate alone:
//!
//! ```
//! use std::time::Duration;
//! use udapl::fabric::{Fabric, Fault, Faults, LinkFaults};
//!
//! let fabric = Fabric::pair(7);
//! let (a, b) = (fabric.open(0)?, fabric.open(1)?);
//! // One packet in a hundred is lost, in both directions.
//! fabric.sim.set_faults(fabric.link, LinkFaults::both(Faults { loss_ppm: 10_000, ..Faults::NONE }));
//! // The cable is pulled for a second.
//! fabric.sim.inject(&fabric.function(0), &Fault::LinkDown);
//! fabric.sim.advance(Duration::from_secs(1));
//! fabric.sim.inject(&fabric.function(0), &Fault::LinkUp);
//! fabric.sim.heal();
//! # Ok::<(), udapl::error::OpenError>(())
//! ```

pub mod switched;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

pub use hw_sim::record::RecordError;
use hw_sim::{CardConfig, VfSettings};
pub use hw_sim::{
    Drive, Fault, Faults, FunctionReport, LinkFaults, LinkId, Profile, Sim, SimConfig, SimFunction,
};
#[doc(inline)]
pub use hw_sim_host::{mac, pace, profile, wire};

use crate::Ia;
use crate::open::simulated::open_function;
pub use crate::open::simulated::{SimAction, simulate};
use crate::open::{OpenError, OpenOptions};

/// Number of sides with an address in 192.0.2.0/24.
const FEW: usize = 254;

/// Two simulated functions and the link between them.
pub struct Fabric {
    /// Simulator that runs both functions: time, faults, captures, event log.
    pub sim: Sim,
    /// Link between the two functions.
    pub link: LinkId,
    functions: [Arc<SimFunction>; 2],
}

impl Fabric {
    /// Creates a pair on a link without faults. The same seed gives the same simulation.
    #[must_use]
    pub fn pair(seed: u64) -> Self {
        Self::with(SimConfig::seeded(seed), LinkFaults::default(), |profile| {
            profile
        })
    }

    /// Creates a pair with the given simulator configuration and faults of the link. `shape` changes the functions'
    /// profiles.
    #[must_use]
    pub fn with(config: SimConfig, faults: LinkFaults, shape: impl Fn(Profile) -> Profile) -> Self {
        Self::made(Sim::new(config), faults, shape)
    }

    /// Like [`Fabric::with`], and records every input of the simulator for [`Replay`](hw_sim::record::Replay).
    ///
    /// # Errors
    /// The writer's I/O errors.
    pub fn recorded(
        config: SimConfig,
        faults: LinkFaults,
        shape: impl Fn(Profile) -> Profile,
        to: impl Write + Send + 'static,
        about: &str,
    ) -> Result<Self, RecordError> {
        let sim = Sim::new(config);
        sim.record(to, about)?;
        Ok(Self::made(sim, faults, shape))
    }

    fn made(sim: Sim, faults: LinkFaults, shape: impl Fn(Profile) -> Profile) -> Self {
        let functions = [0, 1]
            .map(|side| sim.add_function(shape(Profile::named(&format!("sim:{side}"), mac(side)))));
        let link = sim.connect(&functions[0], &functions[1], faults);
        Self {
            sim,
            link,
            functions,
        }
    }

    /// Creates a pair of virtual functions on two linked cards. The physical functions have no driver. `shape`
    /// changes the profiles of the physical functions.
    ///
    /// # Panics
    /// Panics if the profile has no virtual functions.
    #[must_use]
    pub fn of_virtual(
        config: SimConfig,
        faults: LinkFaults,
        shape: impl Fn(Profile) -> Profile,
    ) -> Self {
        let sim = Sim::new(config);
        let cards = [0, 1].map(|side| {
            let physical = shape(Profile::named(&format!("sim:{side}"), mac(side + 2)));
            let card = sim.add_card(&CardConfig::new(physical, 1));
            let given = VfSettings {
                mac: Some(mac(side)),
                ..VfSettings::default()
            };
            card.set_vf(0, given);
            card
        });
        let link = sim.connect(&cards[0].physical(), &cards[1].physical(), faults);
        let functions = cards.map(|card| card.virtual_function(0).expect("one was asked for"));
        Self {
            sim,
            link,
            functions,
        }
    }

    /// Returns the function of side 0 or 1.
    ///
    /// # Panics
    /// Panics if there is no such side.
    #[must_use]
    pub fn function(&self, side: usize) -> Arc<SimFunction> {
        Arc::clone(&self.functions[side])
    }

    /// Returns the IPv4 address that [`Fabric::options`] gives a side: 192.0.2.1 to 192.0.2.254, and from side 254
    /// onwards 10.0.0.1, 10.0.0.2 and so on. No two sides have the same address.
    ///
    /// # Panics
    /// Panics if the network 10.0.0.0/8 has no address left for the side: from side 254 + 2^24 - 2 onwards.
    #[must_use]
    pub fn ipv4(side: usize) -> IpAddr {
        let address = match side {
            0..FEW => (Ipv4Addr::new(192, 0, 2, 1), side),
            _ => (Ipv4Addr::new(10, 0, 0, 1), side - FEW),
        };
        let (first, after) = address;
        // The last address of the network is its broadcast address.
        let after = u32::try_from(after)
            .ok()
            .filter(|&after| after < (1 << 24) - 2);
        // PANIC: as documented.
        let after = after.expect("the network has an address for the side");
        IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() + after))
    }

    /// Returns options for opening side 0 or 1: its IPv4 address, and the other side as a neighbour.
    ///
    /// # Panics
    /// Panics if there is no such side.
    #[must_use]
    pub fn options(side: usize) -> OpenOptions {
        assert!(side < 2, "side {side} of a pair");
        let peer = 1 - side;
        OpenOptions::default()
            .address(Self::ipv4(side))
            .neighbour(Self::ipv4(peer), mac(peer))
    }

    /// Brings the function of a side up and opens it as an IA, with `Fabric::options`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, side: usize) -> Result<Ia, OpenError> {
        self.open_with(side, &Self::options(side))
    }

    /// Brings the function of a side up and opens it with the given options. If the options have no seed, the driver's
    /// random numbers are derived from the simulator's seed, so that the whole run is repeatable.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(&self, side: usize, options: &OpenOptions) -> Result<Ia, OpenError> {
        let mut options = options.clone();
        let own = self.sim.seed().wrapping_mul(2).wrapping_add(side as u64);
        options.hca.seed.get_or_insert(own);
        open_function(Arc::clone(&self.functions[side]), 1, &options)
    }

    /// Returns the simulator's report about the function of a side: objects, counters, DMA faults and driver bugs.
    #[must_use]
    pub fn report(&self, side: usize) -> FunctionReport {
        self.sim.report(&self.functions[side])
    }
}
