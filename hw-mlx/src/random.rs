//! Random numbers: identifiers, packet sequence numbers, a MAC where there is none.

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a stream of well-mixed numbers from one seed. It names
/// things; it keeps no secrets.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        use std::hash::{BuildHasher, Hasher};
        Self(seed.unwrap_or_else(|| {
            std::collections::hash_map::RandomState::new()
                .build_hasher()
                .finish()
        }))
    }

    /// The stream of one function: functions that share a seed draw different numbers.
    pub(crate) fn of_function(seed: Option<u64>, name: &str) -> Self {
        let mut random = Self::new(seed);
        for byte in name.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

impl SplitMix {
    /// Sixteen bytes of the stream.
    pub(crate) fn bytes(&mut self) -> [u8; 16] {
        (u128::from(self.next()) << 64 | u128::from(self.next())).to_be_bytes()
    }
}

/// A MAC address nobody gave out: locally administered, of one station.
pub(crate) fn local_mac(random: &mut SplitMix) -> [u8; 6] {
    let [first, b, c, d, e, f, ..] = random.next().to_be_bytes();
    [first & 0xfc | 2, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First outputs for seed 1234567, from the reference implementation's published test vector.
    #[test]
    fn random_numbers_of_a_seed_are_the_reference_streams() {
        let mut random = SplitMix::new(Some(1_234_567));
        let drawn: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
