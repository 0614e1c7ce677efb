//! The two functions of a pair: in a simulated world of the test, or functions of this machine.
//!
//! `DAT_TEST_PROFILE=connectx-6-dx` selects another generation for the simulated world, and `connectx-6-dx/vf` one of
//! its virtual functions. Changes that tests make to a profile apply to that one.
//!
//! If the environment names functions ([`functions::named`]), the tests open those. Time is then real, and frames
//! cannot be dropped nor profiles changed: a test that needs that ends early.

use std::ops::Deref;
use std::time::{Duration, Instant};

use hw_sim::{LinkFaults, Profile, SimConfig};
use udapl::error::OpenError;
use udapl::fabric::Fabric;
use udapl::{Ia, OpenOptions};

use super::{PairConfig, functions};

/// Environment variable for the generation.
const PROFILE: &str = "DAT_TEST_PROFILE";
/// Message of a test that needs a simulator of its own.
const NEEDS_SIMULATOR: &str = "this test needs a simulator of its own, not functions in slots";
/// Longest wait of a test on the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The two functions.
pub enum World {
    /// In a world of the test.
    Simulated(Fabric),
    /// In this machine, at these addresses.
    Machine([String; 2]),
}

impl World {
    /// Creates what the environment asks for; by default a simulated world changed by `config`.
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

    /// Opens a side.
    pub fn open_side(&self, side: usize, options: &OpenOptions) -> Result<Ia, OpenError> {
        match self {
            Self::Simulated(fabric) => fabric.open_with(side, options),
            Self::Machine(names) => udapl::ia_open(&names[side], options),
        }
    }

    /// Advances time by 0.1 ms.
    pub fn pass_time(&self) {
        match self {
            Self::Simulated(fabric) => fabric.sim.advance(Duration::from_micros(100)),
            Self::Machine(_) => std::thread::yield_now(),
        }
    }

    /// Returns a limit of this many turns. With real time a turn has no fixed length, so the limit is a time.
    pub fn turns(&self, turns: usize) -> Turns {
        let micros = u64::try_from(turns).map_or(u64::MAX, |turns| turns.saturating_mul(100));
        Turns {
            left: turns,
            until: match self {
                Self::Simulated(_) => None,
                Self::Machine(_) => {
                    Some(Instant::now() + Duration::from_micros(micros).min(PATIENCE))
                }
            },
        }
    }

    /// Returns the simulated world, if it is one.
    pub const fn simulated(&self) -> Option<&Fabric> {
        match self {
            Self::Simulated(fabric) => Some(fabric),
            Self::Machine(_) => None,
        }
    }
}

/// Creates a pair of functions of a generation, changed by `config`.
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

/// Gives the simulated world; with other functions the test ends here.
impl Deref for World {
    type Target = Fabric;

    fn deref(&self) -> &Fabric {
        self.simulated()
            .unwrap_or_else(|| panic!("{NEEDS_SIMULATOR}"))
    }
}

/// A limit on turns.
pub struct Turns {
    left: usize,
    until: Option<Instant>,
}

impl Turns {
    /// Returns whether another turn is allowed.
    pub fn next(&mut self) -> bool {
        if let Some(until) = self.until {
            return Instant::now() < until;
        }
        let more = self.left > 0;
        self.left = self.left.saturating_sub(1);
        more
    }
}
