//! Random numbers: identifiers, packet sequence numbers, variants of keys, and the MAC of a vport that has none.
//!
//! Peers see some of these numbers, and must not be able to predict others from them. Communication identifiers, packet
//! sequence numbers and keys are the only protection of a connection against unknown hosts. So the numbers come from a
//! cipher, ChaCha20, whose state cannot be computed from its output. The system seeds it. A configured seed makes runs
//! repeatable.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::error::MlxError;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(ChaCha20Rng);

impl Random {
    /// Makes the stream of a seed. Without a seed, takes one from the system.
    ///
    /// # Errors
    /// [`MlxError::Random`]: the system provides no random numbers.
    pub fn new(seed: Option<u64>) -> Result<Self, MlxError> {
        match seed {
            Some(seed) => Ok(Self(ChaCha20Rng::seed_from_u64(seed))),
            None => ChaCha20Rng::try_from_os_rng()
                .map(Self)
                .map_err(|error| MlxError::Random(error.to_string())),
        }
    }

    /// Makes the stream of one function. Functions with different names draw different numbers from the same seed.
    ///
    /// # Errors
    /// As [`Random::new`].
    pub fn of_function(seed: Option<u64>, name: &str) -> Result<Self, MlxError> {
        let mut random = Self::new(seed)?;
        let mut key = [0; 32];
        random.0.fill_bytes(&mut key);
        for (at, byte) in name.bytes().enumerate() {
            let place = &mut key[at % 32];
            *place = place.wrapping_mul(31) ^ byte;
        }
        Ok(Self(ChaCha20Rng::from_seed(key)))
    }

    /// Returns the next 64 bits of the stream.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a byte of the stream.
    pub(crate) fn byte(&mut self) -> u8 {
        let [byte, ..] = self.0.next_u32().to_be_bytes();
        byte
    }

    /// Returns sixteen bytes of the stream.
    pub(crate) fn bytes(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// Minimum number of keys that are made before a variant is used again. The firmware may give the index of a destroyed
/// key to the next key, and then only the variant distinguishes the old key from the new one.
const FRESH: usize = 64;

/// Generator of key variants, the low bytes of keys. Each is drawn at random and differs from the last `FRESH` ones.
#[derive(Debug)]
pub struct Variants {
    random: Random,
    recent: [u8; FRESH],
    drawn: usize,
}

impl Variants {
    /// Makes a generator that draws from a stream.
    #[must_use]
    pub fn new(random: Random) -> Self {
        Self {
            random,
            recent: [0; FRESH],
            drawn: 0,
        }
    }

    /// Makes a generator that also avoids the variants that another one has drawn last ([`Variants::recent`]). Of more
    /// than 64 it avoids the last ones.
    #[must_use]
    pub fn behind(random: Random, recent: &[u8]) -> Self {
        let mut variants = Self::new(random);
        let last = &recent[recent.len().saturating_sub(FRESH)..];
        variants.recent[..last.len()].copy_from_slice(last);
        variants.drawn = last.len();
        variants
    }

    /// Returns the variants that were drawn last, oldest first: those that the next ones differ from.
    #[must_use]
    pub fn recent(&self) -> Vec<u8> {
        let first = self.drawn.saturating_sub(FRESH);
        (first..self.drawn)
            .map(|at| self.recent[at % FRESH])
            .collect()
    }

    /// Returns a variant for the next key.
    pub fn draw(&mut self) -> u8 {
        let recent = &self.recent[..self.drawn.min(FRESH)];
        // Three of four byte values are allowed. The cipher yields one soon, but the bound makes the loop finite.
        let fresh = (0..4096)
            .map(|_| self.random.byte())
            .find(|variant| !recent.contains(variant));
        let variant = fresh.unwrap_or_default();
        self.recent[self.drawn % FRESH] = variant;
        self.drawn += 1;
        variant
    }
}

impl Variants {
    /// Returns all 256 variants in random order (Fisher and Yates). The first one differs from the last `FRESH` ones.
    pub fn order(&mut self) -> Box<[u8; 256]> {
        let mut order = Box::new([0; 256]);
        for (at, variant) in (0..=u8::MAX).enumerate() {
            // The remainder of a 64-bit number is biased, but negligibly.
            let place = usize::try_from(self.random.number() % (at as u64 + 1)).unwrap_or_default();
            order[at] = order[place];
            order[place] = variant;
        }
        let fresh = self.draw();
        if let Some(at) = order.iter().position(|variant| *variant == fresh) {
            order.swap(0, at);
        }
        order
    }
}

/// Returns a random locally administered unicast MAC address, which belongs to no vendor.
pub(crate) fn local_mac(random: &mut Random) -> [u8; 6] {
    let [first, b, c, d, e, f, ..] = random.number().to_be_bytes();
    [first & 0xfc | 2, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const KEYSTREAM: [u8; 16] = [
        0x39, 0xfd, 0x2b, 0x7d, 0xd9, 0xc5, 0x19, 0x6a, 0x8d, 0xbd, 0x03, 0x77, 0xb8, 0xdc, 0x4a,
        0x49,
    ];

    fn of(seed: u64) -> Random {
        Random::new(Some(seed)).expect("a seed needs nothing of the system")
    }

    /// The numbers are the keystream of ChaCha20. Expected is the keystream for the key 00 01 .. 1f, a nonce of zeros
    /// and block 0, made by OpenSSL (`openssl enc -chacha20 -K 0001..1f -iv 0` over zeros).
    #[test]
    fn the_numbers_are_the_ciphers() {
        let key: [u8; 32] = core::array::from_fn(|at| u8::try_from(at).expect("small"));
        let mut random = Random(ChaCha20Rng::from_seed(key));
        assert_eq!(random.bytes(), KEYSTREAM);
    }

    #[test]
    fn a_seed_repeats_and_other_seeds_and_functions_differ() {
        let drawn = |mut random: Random| [random.number(), random.number(), random.number()];
        assert_eq!(drawn(of(7)), drawn(of(7)));
        assert_ne!(drawn(of(7)), drawn(of(8)));
        let named = |name| drawn(Random::of_function(Some(7), name).expect("seeded"));
        assert_eq!(named("sim:a"), named("sim:a"));
        assert_ne!(named("sim:a"), named("sim:b"));
        assert_ne!(named("sim:a"), drawn(of(7)));
        let unseeded = || drawn(Random::new(None).expect("the system's"));
        assert_ne!(unseeded(), unseeded());
    }

    #[test]
    fn variants_are_no_counter_and_stay_away_for_a_while() {
        let mut variants = Variants::new(of(3));
        let drawn: Vec<u8> = (0..10_000).map(|_| variants.draw()).collect();
        for (at, variant) in drawn.iter().enumerate() {
            let before = &drawn[at.saturating_sub(FRESH)..at];
            assert!(!before.contains(variant), "{at}: {variant}");
        }
        let last = variants.recent();
        assert_eq!(last, drawn[drawn.len() - FRESH..]);
        let mut others = Variants::behind(of(4), &drawn);
        assert_eq!(others.recent(), last);
        for at in 0..FRESH {
            let next = others.draw();
            assert!(!last[at..].contains(&next), "{at}: {next}");
        }
        let few = Variants::behind(of(5), &last[..3]);
        assert_eq!(few.recent(), last[..3]);
        let steps: BTreeSet<u8> = drawn
            .windows(2)
            .map(|pair| pair[1].wrapping_sub(pair[0]))
            .collect();
        assert_eq!(steps.len(), 255, "every step but none");
    }
}
