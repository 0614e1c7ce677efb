//! Random delays, generated from the caller's seed.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[derive(Debug)]
pub(crate) struct Draw(ChaCha8Rng);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a random time between `least` and `most`.
    pub(crate) fn within(&mut self, least: Duration, most: Duration) -> Duration {
        self.0.random_range(least..=most.max(least))
    }

    /// Returns a random number that an attacker cannot predict.
    pub(crate) fn number(&mut self) -> u16 {
        self.0.random()
    }

    /// Returns a random time between zero and `most`.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        self.within(Duration::ZERO, most)
    }
}
