//! Random simulations, each determined by one seed: adapters connect, move bytes, free memory, and are closed and
//! opened again, while frames are lost, commands are refused and devices die. Then all faults stop, and all activity
//! has to end. A simulation is a `World`.
//!
//! ```text
//! seed --> features of this simulation (each drawn at random)
//!      --> steps: a random action, a random fault, some virtual time
//!      --> healing: faults stop, all connections end, all adapters are closed, opened and closed again
//! ```
//!
//! Each step is checked against invariants, not against expected failures: a call may fail whenever a device is faulty,
//! but a call that succeeded has had its effect.
//!
//! - A DTO completes once, in the order posted; a successful one moved the right bytes ([`bytes`]).
//! - Each message that arrives was sent, in order and completely.
//! - No byte outside of granted memory changes: gaps between slots, freed memory, memory of adapters that are closed
//!   or dropped. Peers know the keys of freed memory and continue to write.
//! - Every call returns within [`CALL_LIMIT`] of virtual time.
//! - A driver breaks no rule of its device and logs no wrong completion entry, and the device accesses no address that
//!   is not mapped.
//! - A connection ends only for a recorded reason: packets of attackers, and faults of others, do not end it.
//! - An event is lost only if its EVD was shorter than the number of events that could arrive. Then the program gets an
//!   asynchronous event, and no other event is lost.
//! - A call succeeds only in the states in which DAT allows it, and a refused call leaves the state unchanged.
//! - A program that only connects and sends completes each operation within a few loop iterations, whatever its
//!   neighbours do.
//! - After the faults have stopped, every attempt to connect ends, every connection ends, and every adapter closes,
//!   leaves no objects or pages behind, and can be opened again.
//!
//! The same seed gives the same simulation. A failure prints one line with the command that repeats it ([`Failure`]).
#![forbid(unsafe_code)]

mod actions;
mod address;
pub mod bytes;
pub mod calls;
mod captured_packets;
mod close_notice;
mod cover;
mod driver_warnings;
mod end;
mod events;
mod faults;
mod flood;
mod flooding;
mod grants;
mod healing;
mod honest;
mod judge;
mod kept;
mod keys;
mod many;
mod off_path_attacker;
mod process;
mod side;
mod small;
mod trace;
mod world;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use cover::Coverage;
pub use faults::FAULTS;
pub use flood::{Flood, FloodResult, flood, flood_table};
use hw_sim::{Sim, SimConfig};
pub use many::{Many, many};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
pub use small::{Case, Exhaustive, Harm, case, exhaustive};
use strum::{Display, EnumIter, EnumString, IntoEnumIterator};
use trace::Trace;
use world::World;

/// Longest virtual time that any call may take.
pub const CALL_LIMIT: Duration = Duration::from_secs(200);

/// Faults and actions that may happen in a simulation besides plain traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Display, EnumIter, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub enum Feature {
    /// Frames are lost, repeated, delayed, reordered, changed.
    Wire,
    /// No frame passes in one direction or both, for a while.
    Partition,
    /// Cables are unplugged and plugged in again.
    Flap,
    /// Commands are refused.
    Refused,
    /// Commands are not answered.
    Silent,
    /// Commands are answered late.
    Late,
    /// The firmware requests pages, sometimes before it answers a command, and returns pages a few at a time.
    Pages,
    /// Devices die.
    Death,
    /// Health counters stop for some seconds.
    Stall,
    /// Adapters are closed and opened again.
    Reopen,
    /// Adapters are dropped without being closed.
    Drop,
    /// Memory is freed, and peers that know its keys continue to write.
    Frees,
    /// Endpoints are freed in any state.
    EpFrees,
    /// Programs end without a close, and others start on the same functions.
    Restart,
    /// Memory windows are bound, unbound and freed, and peers continue to use their keys.
    Windows,
    /// Endpoints take their buffers from shared receive queues.
    Srq,
    /// Event dispatchers are resized under traffic, waited on, and the program tries to free them while in use.
    Evds,
    /// Service points are made and freed; requests are handed off, held, and arrive with endpoints.
    Listeners,
    /// Endpoints are modified.
    Modify,
    /// Programs make every call in any state, also in states that forbid it.
    Calls,
    /// Interrupts are lost, or spurious.
    Interrupts,
    /// Functions get another MAC address.
    Mac,
    /// Functions are removed, or their PCIe slot loses its link so that all registers read as ones. The functions never
    /// return.
    Removal,
    /// An attacker sends requests, messages about connections of other nodes, and packets to their queue pairs.
    Strangers,
    /// Event dispatchers are shorter than the number of posted requests, programs dequeue nothing for some time, and
    /// the event queues of devices overrun.
    Overrun,
    /// Functions have several instances, each of which is a side of its own.
    Instances,
    /// Windows are bound so that peers may invalidate their keys. Peers do so, and also try keys that they may not
    /// invalidate.
    Invalidation,
    /// Two programs that only connect and send have functions of their own, and their operations must complete in
    /// bounded time. Not combined with [`Overrun`](Self::Overrun), which affects these programs, too.
    Neighbours,
    /// Adapters are parked, and handed over to the next process of their program. Processes are killed meanwhile.
    Handover,
}

/// Features that are each in one of four simulations. They are drawn last and in this order. So a feature added at the
/// end changes no simulation without that feature.
pub const RARE: [Feature; 4] = [
    Feature::Instances,
    Feature::Invalidation,
    Feature::Neighbours,
    Feature::Handover,
];

/// The plan of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Number of steps before the faults stop.
    pub steps: u32,
    /// Number of functions on the two cards together, which must be even.
    pub functions: u16,
    /// Faults and actions that may happen.
    pub features: BTreeSet<Feature>,
}

impl Plan {
    /// Returns the plan for a seed. Each feature has a probability of 1/2, or of 1/4 if it is in [`RARE`]. Most plans
    /// have two or four functions.
    #[must_use]
    pub fn of(seed: u64, steps: u32) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
        let mut features: BTreeSet<Feature> = Feature::iter()
            .filter(|feature| !RARE.contains(feature) && random.random_bool(0.5))
            .collect();
        let functions = match random.random_range(0..10) {
            0..=3 => 2,
            4..=7 => 4,
            8 => 6,
            _ => 8,
        };
        for feature in RARE {
            if random.random_ratio(1, 4) {
                features.insert(feature);
            }
        }
        Self {
            seed,
            steps,
            functions,
            features,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let features: Vec<String> = self.features.iter().map(ToString::to_string).collect();
        write!(
            f,
            "cargo xtask campaign --seed {} --steps {} --functions {} --features {}",
            self.seed,
            self.steps,
            self.functions,
            if features.is_empty() {
                "none".to_owned()
            } else {
                features.join(",")
            }
        )
    }
}

/// A simulation in which a check failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Plan of the simulation.
    pub plan: Plan,
    /// Message of the check that failed.
    pub what: String,
    /// The simulator's log up to the failure, if requested.
    pub log: Vec<u8>,
    /// Actions and events up to the failure, if requested.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  again: {}", self.what, self.plan)
    }
}

/// Results of a simulation.
pub struct Run {
    /// Counts of actions, faults, calls and commands.
    pub coverage: Coverage,
    /// The simulator's log, the same for the same plan; empty if not requested.
    pub log: Vec<u8>,
    /// Longest operation of the honest programs, in loop iterations, if there were any.
    pub longest: Option<u64>,
}

/// Records that are kept of a simulation besides its results.
#[derive(Debug)]
pub enum Record {
    /// No records, which is fastest.
    Nothing,
    /// The simulator's log.
    Log,
    /// The simulator's log, and the packets as pcapng.
    Packets(File),
}

/// Runs a simulation.
///
/// # Errors
/// If a check failed, or a panic occurred.
pub fn run(plan: &Plan, record: Record) -> Result<Run, Failure> {
    let sim = Sim::new(SimConfig {
        seed: plan.seed,
        event_log: !matches!(record, Record::Nothing),
    });
    let trace = (!matches!(record, Record::Nothing)).then(Trace::default);
    let world = || {
        let mut world = World::new(plan, sim.clone(), trace.clone());
        let _heard = world.warnings.listen();
        if let Record::Packets(file) = record {
            sim.pcap(file).expect("the capture begins");
        }
        world.run();
        (world.cover, world.honest.map(|honest| honest.longest))
    };
    let outcome = catch_unwind(AssertUnwindSafe(world));
    let flushed = sim.flush_pcap();
    let log = sim.event_log();
    match outcome {
        Ok((coverage, longest)) => {
            flushed.expect("the capture ends");
            Ok(Run {
                coverage,
                log,
                longest,
            })
        }
        Err(panic) => Err(Failure {
            plan: plan.clone(),
            what: panic_text(&*panic),
            log,
            trace: trace.map_or_else(String::new, |trace| trace.text()),
        }),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}

/// Returns the failure of a smaller plan that still fails, by removing features and steps. Returns `failure` if no
/// smaller plan was found.
#[must_use]
pub fn shrink(failure: Failure) -> Failure {
    let fails = |plan: &Plan| run(plan, Record::Nothing).err();
    let mut least = failure;
    for feature in least.plan.features.clone() {
        let mut plan = least.plan.clone();
        plan.features.remove(&feature);
        if let Some(smaller) = fails(&plan) {
            least = smaller;
        }
    }
    // A simulation with fewer steps is the same up to its last step, so the number of steps can be bisected.
    let (mut passes, mut steps) = (0, least.plan.steps);
    while steps - passes > 1 {
        let mut plan = least.plan.clone();
        plan.steps = passes + (steps - passes) / 2;
        match fails(&plan) {
            Some(smaller) => {
                steps = smaller.plan.steps;
                least = smaller;
            }
            None => passes = plan.steps,
        }
    }
    least
}
