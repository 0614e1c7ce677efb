//! Diffie-Hellman key exchange in the groups of RFC 7919.

use crypto_bigint::modular::runtime_mod::{DynResidue, DynResidueParams};
use crypto_bigint::{Encoding, U512, U2048, U3072, U4096, U6144, U8192};
use zeroize::{Zeroize, Zeroizing};

use super::primes;

/// A Diffie-Hellman group. The values are the identifiers in messages (Base specification, "DH Group Identifiers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Group {
    /// No key exchange: the response to the challenge is the only proof.
    Null = 0,
    /// Group of 2,048 bits.
    Ffdhe2048 = 1,
    /// Group of 3,072 bits.
    Ffdhe3072 = 2,
    /// Group of 4,096 bits.
    Ffdhe4096 = 3,
    /// Group of 6,144 bits.
    Ffdhe6144 = 4,
    /// Group of 8,192 bits.
    Ffdhe8192 = 5,
}

impl Group {
    /// Returns the group with this identifier.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Null,
            1 => Self::Ffdhe2048,
            2 => Self::Ffdhe3072,
            3 => Self::Ffdhe4096,
            4 => Self::Ffdhe6144,
            5 => Self::Ffdhe8192,
            _ => return None,
        })
    }

    /// Returns the length of the group's values in bytes.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }
}

macro_rules! power {
    ($int:ty, $prime:expr, $base:expr, $secret:expr) => {{
        let prime = <$int>::from_be_hex($prime);
        let mut base = [0; <$int>::BYTES];
        let at = base.len().checked_sub($base.len())?;
        base[at..].copy_from_slice($base);
        let base = <$int>::from_be_slice(&base);
        // 0, 1 and p - 1 generate only trivial subgroups: a peer that sends one can predict the result.
        if base <= <$int>::ONE || base >= prime.wrapping_sub(&<$int>::ONE) {
            return None;
        }
        let base = DynResidue::new(&base, DynResidueParams::new(&prime));
        let mut power = base.pow_bounded_exp($secret, U512::BITS).retrieve();
        let bytes = power.to_be_bytes().to_vec();
        power.zeroize();
        Some(bytes)
    }};
}

/// A secret exponent of 512 bits. RFC 7919 recommends 225 to 400.
pub(super) struct Secret(U512);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Secret {
    /// Length in bytes.
    pub(super) const BYTES: usize = U512::BYTES;

    /// Returns the bytes of which [`Self::new`] makes this secret.
    pub(super) fn bytes(&self) -> Zeroizing<[u8; Self::BYTES]> {
        Zeroizing::new(self.0.to_be_bytes())
    }

    pub(super) fn new(mut random: [u8; Self::BYTES]) -> Self {
        let secret = U512::from_be_slice(&random);
        random.zeroize();
        Self(secret)
    }

    /// Returns the public value, which is sent to the peer.
    pub(super) fn public(&self, group: Group) -> Option<Vec<u8>> {
        self.shared(group, &[2])
    }

    /// Computes the shared secret from the peer's public value. Returns `None` if that value is not between 2 and
    /// p - 2, or the group is [`Group::Null`].
    pub(super) fn shared(&self, group: Group, theirs: &[u8]) -> Option<Vec<u8>> {
        #[cfg(test)]
        super::cost::power(group);
        match group {
            Group::Null => None,
            Group::Ffdhe2048 => power!(U2048, primes::P2048, theirs, &self.0),
            Group::Ffdhe3072 => power!(U3072, primes::P3072, theirs, &self.0),
            Group::Ffdhe4096 => power!(U4096, primes::P4096, theirs, &self.0),
            Group::Ffdhe6144 => power!(U6144, primes::P6144, theirs, &self.0),
            Group::Ffdhe8192 => power!(U8192, primes::P8192, theirs, &self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIMES: [&str; 5] = [
        primes::P2048,
        primes::P3072,
        primes::P4096,
        primes::P6144,
        primes::P8192,
    ];

    /// Returns the bytes of a number in hexadecimal digits.
    fn number_of(digits: &str) -> Vec<u8> {
        let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
        let bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).expect("two digits"));
        bytes.collect()
    }

    #[test]
    fn both_sides_come_to_the_same_and_values_outside_of_the_group_are_refused() {
        for number in 1..=5 {
            let group = Group::of(number).expect("a group");
            let (a, b) = (Secret::new([0xa5; 64]), Secret::new([0x3c; 64]));
            let (of_a, of_b) = (
                a.public(group).expect("a value"),
                b.public(group).expect("a value"),
            );
            assert_eq!((of_a.len(), of_a == of_b), (group.bytes(), false));
            assert_eq!(a.shared(group, &of_b), b.shared(group, &of_a));
            // A value y of the other side has 1 < y < p - 1 (RFC 7919, section 5.1).
            let prime = number_of(PRIMES[usize::from(number) - 1]);
            assert_eq!(prime.len(), group.bytes());
            // The last byte of each prime is FFh, so nothing is borrowed from the byte before it.
            let below = |by: u8| {
                let (last, others) = prime.split_last().expect("a number");
                [others, &[last - by]].concat()
            };
            let padded = |value: u8| [vec![0; group.bytes() - 1], vec![value]].concat();
            for outside in [
                vec![],
                vec![0],
                vec![1],
                padded(0),
                padded(1),
                below(1),
                prime.clone(),
                vec![0xff; group.bytes()],
                vec![2; group.bytes() + 1],
            ] {
                assert_eq!(a.shared(group, &outside), None, "{outside:x?}");
            }
            assert!(a.shared(group, &below(2)).is_some(), "p - 2");
            assert_eq!(a.shared(group, &padded(2)), Some(of_a), "the generator");
        }
        assert!(Group::of(6).is_none() && Secret::new([1; 64]).public(Group::Null).is_none());
    }
}
