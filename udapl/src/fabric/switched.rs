//! Simulated functions on switches: for programs that want to see queues fill.
//!
//! ```
//! use std::time::Duration;
//! use udapl::fabric::LinkFaults;
//! use udapl::fabric::switched::{SwitchConfig, Switched};
//!
//! // Three functions on one switch.
//! let fabric = Switched::star(7, 3, SwitchConfig::default(), LinkFaults::default())?;
//! let (a, b) = (fabric.open(0)?, fabric.open(2)?);
//! let counters = fabric.sim.switch_counters(fabric.switches[0], 0).expect("a port for each");
//! assert_eq!(counters.dropped_full, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::IpAddr;
use std::sync::Arc;

pub use hw_sim::switch::{
    Buffer, Classes, Pfc, PortCounters, Red, SwitchConfig, SwitchError, Unknown,
};
pub use hw_sim::{
    CongestionCounters, Connector, NotConnected, PauseCounters, PortQos, Reaction, SwitchId,
};
use hw_sim::{LinkFaults, LinkId, Profile, Sim, SimConfig, SimFunction};
use thiserror::Error;

use super::{Fabric, mac};
use crate::Ia;
use crate::open::simulated::open_function;
use crate::open::{OpenError, OpenOptions};

/// The port of a switch in a [ring](Switched::ring) that leads to its function, to the next switch, and to the one
/// before.
const OWN: usize = 0;
const NEXT: usize = 1;
const BEFORE: usize = 2;

/// Functions, and the switches they are on.
pub struct Switched {
    /// The world they live in.
    pub sim: Sim,
    /// The switches.
    pub switches: Vec<SwitchId>,
    /// The cables of functions, by function.
    pub links: Vec<LinkId>,
    functions: Vec<Arc<SimFunction>>,
}

/// A world whose log nobody reads.
fn unlogged(seed: u64) -> Sim {
    Sim::new(SimConfig {
        seed,
        event_log: false,
    })
}

/// Why such a fabric cannot be.
#[derive(Debug, Error)]
pub enum NotSwitched {
    /// The switch cannot be.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A cable cannot be laid.
    #[error(transparent)]
    Cable(#[from] NotConnected),
}

impl Switched {
    /// So many functions on one switch, function N at port N; the switch has as many ports, whatever `config` says. The
    /// same seed gives the same world.
    ///
    /// # Errors
    /// [`NotSwitched`].
    pub fn star(
        seed: u64,
        functions: usize,
        config: SwitchConfig,
        faults: LinkFaults,
    ) -> Result<Self, NotSwitched> {
        Self::star_in(unlogged(seed), functions, config, faults)
    }

    /// As [`Switched::star`], in a world that has nothing in it yet, and is recorded, for instance ([`Sim::record`]).
    ///
    /// # Errors
    /// [`NotSwitched`].
    pub fn star_in(
        sim: Sim,
        functions: usize,
        config: SwitchConfig,
        faults: LinkFaults,
    ) -> Result<Self, NotSwitched> {
        let mut fabric = Self::of_functions(sim, functions);
        let ports = functions;
        let switch = fabric.sim.add_switch(SwitchConfig { ports, ..config })?;
        for (port, function) in fabric.functions.iter().enumerate() {
            let ends = [Connector::Function(function), Connector::Port(switch, port)];
            fabric.links.push(fabric.sim.connect_switch(ends, faults)?);
        }
        fabric.switches.push(switch);
        Ok(fabric)
    }

    /// So many switches in a circle, each with a function, and all frames go one way round: what is for the function of
    /// the switch before passes all others. No switch floods, since a flood would never end.
    ///
    /// # Errors
    /// [`NotSwitched`].
    pub fn ring(
        seed: u64,
        switches: usize,
        config: &SwitchConfig,
        faults: LinkFaults,
    ) -> Result<Self, NotSwitched> {
        Self::ring_in(unlogged(seed), switches, config, faults)
    }

    /// As [`Switched::ring`], in a world that has nothing in it yet.
    ///
    /// # Errors
    /// [`NotSwitched`].
    pub fn ring_in(
        sim: Sim,
        switches: usize,
        config: &SwitchConfig,
        faults: LinkFaults,
    ) -> Result<Self, NotSwitched> {
        let mut fabric = Self::of_functions(sim, switches);
        for function in &fabric.functions {
            let switch = fabric.sim.add_switch(SwitchConfig {
                ports: 3,
                unknown: Unknown::Drop,
                ..config.clone()
            })?;
            let ends = [Connector::Function(function), Connector::Port(switch, OWN)];
            fabric.links.push(fabric.sim.connect_switch(ends, faults)?);
            fabric.switches.push(switch);
        }
        for (number, &switch) in fabric.switches.iter().enumerate() {
            let next = fabric.switches[(number + 1) % switches];
            let ends = [Connector::Port(switch, NEXT), Connector::Port(next, BEFORE)];
            fabric.sim.connect_switch(ends, faults)?;
            for other in 0..switches {
                let port = if other == number { OWN } else { NEXT };
                if !fabric.sim.fix_address(switch, mac(other), port) {
                    return Err(NotConnected::Port.into());
                }
            }
        }
        Ok(fabric)
    }

    fn of_functions(sim: Sim, functions: usize) -> Self {
        let function =
            |number| sim.add_function(Profile::named(&format!("sim:{number}"), mac(number)));
        let functions = (0..functions).map(function).collect();
        Self {
            sim,
            switches: Vec::new(),
            links: Vec::new(),
            functions,
        }
    }

    /// How many functions there are.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// One of them.
    ///
    /// # Panics
    /// There is no such function.
    #[must_use]
    pub fn function(&self, number: usize) -> Arc<SimFunction> {
        Arc::clone(&self.functions[number])
    }

    /// Says what the ports of all functions do with priorities and about congestion.
    pub fn set_qos(&self, qos: &PortQos) {
        for function in &self.functions {
            self.sim.set_qos(function, qos.clone());
        }
    }

    /// The IPv4 address that [`Switched::options`] gives a function.
    #[must_use]
    pub fn ipv4(number: usize) -> IpAddr {
        Fabric::ipv4(number)
    }

    /// Options for a function: its IPv4 address, and all others as neighbours.
    #[must_use]
    pub fn options(&self, number: usize) -> OpenOptions {
        let others = (0..self.functions.len()).filter(|&other| other != number);
        others.fold(
            OpenOptions::default().address(Self::ipv4(number)),
            |options, other| options.neighbour(Self::ipv4(other), mac(other)),
        )
    }

    /// Brings a function up and opens it as an IA.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, number: usize) -> Result<Ia, OpenError> {
        self.open_with(number, &self.options(number))
    }

    /// Brings a function up and opens it with other options. The random numbers of the driver follow from the seed of
    /// the world, unless the options have a seed.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(&self, number: usize, options: &OpenOptions) -> Result<Ia, OpenError> {
        let mut options = options.clone();
        let functions = self.functions.len() as u64;
        let own = self
            .sim
            .seed()
            .wrapping_mul(functions)
            .wrapping_add(number as u64);
        options.hca.seed.get_or_insert(own);
        open_function(self.function(number), 1, &options)
    }
}
