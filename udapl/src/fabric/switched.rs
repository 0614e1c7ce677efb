//! Simulated functions on switches, for programs that study congestion.
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

/// Port numbers of a switch in a [ring](Switched::ring): to its function, to the next switch, to the previous switch.
const OWN: usize = 0;
const NEXT: usize = 1;
const BEFORE: usize = 2;

/// Simulated functions and the switches that connect them.
pub struct Switched {
    /// Simulator that runs the functions and switches.
    pub sim: Sim,
    /// Switches, in the order of their creation.
    pub switches: Vec<SwitchId>,
    /// Link of each function to its switch.
    pub links: Vec<LinkId>,
    functions: Vec<Arc<SimFunction>>,
}

/// Creates a simulator without an event log.
fn unlogged(seed: u64) -> Sim {
    Sim::new(SimConfig {
        seed,
        event_log: false,
    })
}

/// Errors of building a fabric with switches.
#[derive(Debug, Error)]
pub enum NotSwitched {
    /// A switch has an invalid configuration.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A cable cannot be connected.
    #[error(transparent)]
    Cable(#[from] NotConnected),
}

impl Switched {
    /// Connects this many functions to one switch, function N to port N. The number of ports in `config` is ignored.
    /// The same seed gives the same simulation.
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

    /// Like [`Switched::star`], in a given simulator, which must be empty. The simulator may record ([`Sim::record`]).
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

    /// Connects this many switches to a ring, each with one function. All frames travel in one direction, so a frame
    /// for the function at the previous switch passes all other switches. No switch floods, because a flood would never
    /// end.
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

    /// Like [`Switched::ring`], in a given simulator, which must be empty.
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

    /// Returns the number of functions.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns the function with this number.
    ///
    /// # Panics
    /// Panics if there is no such function.
    #[must_use]
    pub fn function(&self, number: usize) -> Arc<SimFunction> {
        Arc::clone(&self.functions[number])
    }

    /// Sets the priorities and congestion control of all functions' ports.
    pub fn set_qos(&self, qos: &PortQos) {
        for function in &self.functions {
            self.sim.set_qos(function, qos.clone());
        }
    }

    /// Returns the IPv4 address that [`Switched::options`] gives a function, as [`Fabric::ipv4`] does.
    ///
    /// # Panics
    /// Those of [`Fabric::ipv4`].
    #[must_use]
    pub fn ipv4(number: usize) -> IpAddr {
        Fabric::ipv4(number)
    }

    /// Returns options for opening a function: its IPv4 address, and all other functions as neighbours.
    #[must_use]
    pub fn options(&self, number: usize) -> OpenOptions {
        let others = (0..self.functions.len()).filter(|&other| other != number);
        others.fold(
            OpenOptions::default().address(Self::ipv4(number)),
            |options, other| options.neighbour(Self::ipv4(other), mac(other)),
        )
    }

    /// Brings a function up and opens it as an IA, with `Switched::options`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, number: usize) -> Result<Ia, OpenError> {
        self.open_with(number, &self.options(number))
    }

    /// Brings a function up and opens it with the given options. If the options have no seed, the driver's random
    /// numbers are derived from the simulator's seed.
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
