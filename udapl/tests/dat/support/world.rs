//! The two functions of a pair: simulated functions that the test creates, or real functions of this machine.
//!
//! `DAT_TEST_PROFILE=connectx-6-dx` selects another generation for the simulated functions, and `connectx-6-dx/vf` its
//! virtual functions. Tests that change a profile change the profile of the selected generation.
//!
//! If the environment names functions ([`functions::named`]), the tests open these. Time is then real, and a test
//! cannot drop frames or change profiles: a test that needs this panics with `NEEDS_SIMULATOR`.

use std::ops::Deref;
use std::time::{Duration, Instant};

use hw_sim::{LinkFaults, Profile, SimConfig};
use udapl::error::OpenError;
use udapl::fabric::Fabric;
use udapl::{Ia, OpenOptions};

use super::{PairConfig, functions};

/// Environment variable that names the generation of the simulated functions.
const PROFILE: &str = "DAT_TEST_PROFILE";
/// Message of the panic if a test needs a simulator and runs on real functions.
const NEEDS_SIMULATOR: &str = "this test needs a simulator of its own, not functions in slots";
/// Longest wait of a test on real functions.
const PATIENCE: Duration = Duration::from_secs(20);

/// The two functions of a pair.
pub enum World {
    /// Functions of a simulator that the test owns.
    Simulated(Fabric),
    /// Functions of this machine, by their PCI addresses.
    Machine([String; 2]),
}

impl World {
    /// Selects the functions that the environment variable names. Without the variable, creates simulated functions,
    /// changed by `config`.
    pub fn new(config: &PairConfig) -> Self {
        let Some(names) = functions::named() else {
            let sim = SimConfig {
                seed: config.seed,
                event_log: config.event_log,
            };
            return Self::Simulated(match std::env::var(PROFILE) {
                Ok(name) => of_generation(&name, sim, config),
                Err(_) => Fabric::with(sim, config.faults, config.profile),
            });
        };
        let plain = || Profile::named("plain", udapl::fabric::mac(0));
        let shaped = format!("{:?}", (config.profile)(plain())) != format!("{:?}", plain());
        let faulty = format!("{:?}", config.faults) != format!("{:?}", LinkFaults::default());
        assert!(!shaped && !faulty, "{NEEDS_SIMULATOR}");
        Self::Machine(names)
    }

    /// Opens the adapter of a side.
    pub fn open_side(&self, side: usize, options: &OpenOptions) -> Result<Ia, OpenError> {
        match self {
            Self::Simulated(fabric) => fabric.open_with(side, options),
            Self::Machine(names) => udapl::ia_open(&names[side], options),
        }
    }

    /// Advances simulated time by 0.1 ms; yields the processor if time is real.
    pub fn pass_time(&self) {
        match self {
            Self::Simulated(fabric) => fabric.sim.advance(Duration::from_micros(100)),
            Self::Machine(_) => std::thread::yield_now(),
        }
    }

    /// Returns a limit of this many loop iterations. With real functions an iteration has no fixed length, so the limit
    /// is 0.1 ms for each, 20 s at most.
    pub fn iterations(&self, turns: usize) -> Iterations {
        let micros = u64::try_from(turns).map_or(u64::MAX, |turns| turns.saturating_mul(100));
        Iterations {
            left: turns,
            until: match self {
                Self::Simulated(_) => None,
                Self::Machine(_) => {
                    Some(Instant::now() + Duration::from_micros(micros).min(PATIENCE))
                }
            },
        }
    }

    /// Returns the simulated functions; `None` if the functions are real.
    pub const fn simulated(&self) -> Option<&Fabric> {
        match self {
            Self::Simulated(fabric) => Some(fabric),
            Self::Machine(_) => None,
        }
    }
}

/// Creates two simulated functions of a generation, changed by `config`. If the name ends with `/vf`, the functions are
/// virtual functions.
fn of_generation(name: &str, sim: SimConfig, config: &PairConfig) -> Fabric {
    let (name, is_virtual) = match name.strip_suffix("/vf") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let kind = Profile::generation(name).unwrap_or_else(|error| panic!("{PROFILE}: {error}"));
    let shape = |plain: Profile| (config.profile)(kind.clone().called(&plain.name, plain.mac));
    println!("on {name}, virtual: {is_virtual}");
    if is_virtual {
        Fabric::of_virtual(sim, config.faults, shape)
    } else {
        Fabric::with(sim, config.faults, shape)
    }
}

impl From<Fabric> for World {
    fn from(fabric: Fabric) -> Self {
        Self::Simulated(fabric)
    }
}

/// Dereferences to the simulated functions; panics if the functions are real, which ends the test.
impl Deref for World {
    type Target = Fabric;

    fn deref(&self) -> &Fabric {
        self.simulated()
            .unwrap_or_else(|| panic!("{NEEDS_SIMULATOR}"))
    }
}

/// A limit on the iterations of a polling loop.
pub struct Iterations {
    left: usize,
    until: Option<Instant>,
}

impl Iterations {
    /// Returns true if another iteration is allowed.
    pub fn next(&mut self) -> bool {
        if let Some(until) = self.until {
            return Instant::now() < until;
        }
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        more
    }
}
