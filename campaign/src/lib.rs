//! Worlds made of one seed: adapters that connect, move bytes, free memory and are closed and opened again, while
//! frames are lost, commands are refused and devices die. Then everything heals, and it has to become quiet.
//!
//! ```text
//! seed --> features of this world (a random half of them)
//!      --> so many steps: a random deed, a random fault, a moment of time
//!      --> healing: what was connecting ends, what is connected ends, all is closed, opened and closed again
//! ```
//!
//! Each step is checked against what must always hold, not against the failures that were expected: a call may fail
//! whenever a device is faulty, but a call that succeeded has had its effect.
//!
//! - A DTO completes once, in the order posted; a success moved the right bytes ([`bytes`]).
//! - What arrives was sent, in order and whole.
//! - No byte outside of granted memory changes: gaps between slots, freed memory, memory of adapters that are closed
//!   or dropped. Peers know the keys of freed memory and go on writing.
//! - Every call returns within [`CALL_LIMIT`] of the world's time.
//! - A driver breaks no rule of its device and reports no misbehaviour of it, and the device accesses no address that
//!   is not mapped.
//! - A connection ends only for a recorded reason: packets of attackers, and faults of others, do not end it.
//! - An event is lost only if its EVD was shorter than the number of events that could arrive. Then the program is
//!   told, and nothing else is lost.
//! - A call succeeds only in the states in which DAT allows it, and a refused call leaves the state unchanged.
//! - A program that only connects and sends completes each operation within a few turns, whatever its neighbours do.
//! - After healing every attempt to connect ends, every connection ends, every adapter closes with nothing left
//!   behind, and opens again.
//!
//! The same seed gives the same world. A failure prints one line that repeats it ([`Failure`]).
#![forbid(unsafe_code)]

mod blame;
pub mod bytes;
pub mod calls;
mod cover;
mod deeds;
mod deluge;
mod eavesdrop;
mod end;
mod events;
mod farewell;
mod flood;
mod grants;
mod healing;
mod honest;
mod judge;
mod keys;
mod many;
mod side;
mod small;
mod story;
mod stranger;
mod trouble;
mod world;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use cover::Coverage;
pub use flood::{Ebb, Flood, flood, flood_table};
use hw_sim::{Sim, SimConfig};
pub use many::{Many, many};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
pub use small::{Case, Exhaustive, Harm, case, exhaustive};
use story::Story;
use strum::{Display, EnumIter, EnumString, IntoEnumIterator};
pub use trouble::FAULTS;
use world::World;

/// The longest time that any call may take, in the world's time.
pub const CALL_LIMIT: Duration = Duration::from_secs(200);

/// Faults and actions that may happen in a world besides plain traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Display, EnumIter, EnumString)]
#[strum(serialize_all = "kebab-case")]
pub enum Feature {
    /// Frames are lost, repeated, delayed, reordered, changed.
    Wire,
    /// No frame passes in one direction or both, for a while.
    Partition,
    /// Cables are pulled and put back.
    Flap,
    /// Commands are refused.
    Refused,
    /// Commands are not answered.
    Silent,
    /// Commands are answered late.
    Late,
    /// The firmware asks for pages, sometimes before it answers a command, and returns them a few at a time.
    Pages,
    /// Devices die.
    Death,
    /// Health counters stand still for a moment.
    Stall,
    /// Adapters are closed and opened again.
    Reopen,
    /// Adapters are dropped without being closed.
    Drop,
    /// Memory is freed, and peers that know its keys go on writing.
    Frees,
    /// Endpoints are freed in any state.
    EpFrees,
    /// Programs end without a close, and others begin on the same functions.
    Restart,
    /// Memory windows are bound, unbound and freed, and peers go on with their keys.
    Windows,
    /// Endpoints take their buffers from shared receive queues.
    Srq,
    /// Event dispatchers are resized under traffic, freed while in use, and waited for.
    Evds,
    /// Service points are made and freed; requests are handed off, held, and arrive with endpoints.
    Listeners,
    /// Endpoints are modified.
    Modify,
    /// Every call, in any state, sensible or not.
    Calls,
    /// Interrupts are lost, or spurious.
    Interrupts,
    /// Functions get another MAC address.
    Mac,
    /// Functions are pulled out, or their slot loses its link, and never come back.
    Removal,
    /// An attacker sends requests, messages about others' connections, and packets to others' queue pairs.
    Strangers,
    /// Event dispatchers hold fewer events than requests are posted, programs sleep meanwhile, and devices' event
    /// queues overrun.
    Overrun,
    /// Functions carry several instances, of which each is a side of its own.
    Instances,
    /// Windows are bound so that peers may invalidate their keys. Peers do so, and also try keys that they may not
    /// invalidate.
    Invalidation,
    /// Two programs that only connect and send have functions of their own, and a bounded wait (not with
    /// [`Overrun`](Self::Overrun), which affects them, too).
    Neighbours,
}

/// Features of one world in four. They are drawn last, in this order: a further one changes no world without it.
pub const RARE: [Feature; 3] = [
    Feature::Instances,
    Feature::Invalidation,
    Feature::Neighbours,
];

/// A world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of all random choices in it.
    pub seed: u64,
    /// Number of steps.
    pub steps: u32,
    /// Number of functions, on two cards: even.
    pub functions: u16,
    /// Faults and actions that may happen.
    pub features: BTreeSet<Feature>,
}

impl Plan {
    /// The world of a seed: each feature with an even chance ([`RARE`] ones with one of four), and mostly few
    /// functions.
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

/// A world in which a check failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The world.
    pub plan: Plan,
    /// The check that failed.
    pub what: String,
    /// The simulator's log up to the failure, if requested.
    pub log: Vec<u8>,
    /// Actions and events up to the failure, if requested.
    pub story: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  again: {}", self.what, self.plan)
    }
}

/// Results of a world.
pub struct Run {
    /// Counts of actions, faults and calls.
    pub coverage: Coverage,
    /// The simulator's log, the same for the same plan; empty if not requested.
    pub log: Vec<u8>,
    /// The longest wait of the honest programs for an operation, in turns, if there were any.
    pub longest: Option<u64>,
}

/// Records kept of a world besides its results.
#[derive(Debug)]
pub enum Record {
    /// Nothing, for speed.
    Nothing,
    /// The simulator's log.
    Log,
    /// The log, and the packets as pcapng.
    Packets(File),
}

/// Runs a world.
///
/// # Errors
/// If a check failed, or a panic occurred.
pub fn run(plan: &Plan, record: Record) -> Result<Run, Failure> {
    let sim = Sim::new(SimConfig {
        seed: plan.seed,
        event_log: !matches!(record, Record::Nothing),
    });
    let story = (!matches!(record, Record::Nothing)).then(Story::default);
    let world = || {
        let mut world = World::new(plan, sim.clone(), story.clone());
        let _heard = world.blame.listen();
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
            what: words_of(&*panic),
            log,
            story: story.map_or_else(String::new, |story| story.text()),
        }),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}

/// Returns the smallest world that fails in the same way, found by leaving out features and steps.
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
    // Fewer steps are the same world up to there.
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
