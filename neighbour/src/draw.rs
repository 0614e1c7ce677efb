//! Random delays, generated from the caller's seed.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bounds::counted;
use crate::resume_error::ResumeError;

#[derive(Debug)]
pub(crate) struct Draw(ChaCha8Rng);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Makes the generator of a seed, and skips the first `words` random words.
    ///
    /// # Errors
    /// `words` is larger than any process can have drawn.
    pub(crate) fn resume(seed: u64, words: u64) -> Result<Self, ResumeError> {
        counted("random numbers", "words", words)?;
        let mut draw = Self::new(seed);
        draw.0.set_word_pos(words.into());
        Ok(draw)
    }

    /// Returns the number of random words drawn.
    pub(crate) fn words(&self) -> u64 {
        // PANIC: The position starts at 2^56 at most; no process draws 2^63 further words.
        u64::try_from(self.0.get_word_pos()).expect("fewer than 2^64")
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
