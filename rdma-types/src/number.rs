//! Numbers that the two sides of a connection exchange: queue pair numbers and packet sequence numbers.
//!
//! Both have 24 bits, and neither type holds more. So a number that was checked, or that came from a field of 24 bits,
//! needs no further check, and one kind cannot be given in place of the other.

use core::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MASK: u32 = (1 << 24) - 1;

/// Number of a queue pair (QPN): 24 bits. It only identifies the queue pair, so it has no arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The subnet management interface of a port.
    pub const SMI: Self = Self(0);
    /// The general services interface (GSI) of a port, which carries the connection manager's datagrams.
    pub const GSI: Self = Self(1);
    /// Destination of multicast packets, which is every queue pair that is attached to the group.
    pub const MULTICAST: Self = Self(MASK);

    /// Returns the number, or `None` if it has more than 24 bits.
    #[inline]
    #[must_use]
    pub const fn checked(number: u32) -> Option<Self> {
        if number > MASK {
            None
        } else {
            Some(Self(number))
        }
    }

    /// Makes a number that the caller knows to fit: it comes from a field of 24 bits, or we chose it.
    ///
    /// # Panics
    /// If the number has more than 24 bits.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Self {
        assert!(number <= MASK, "Qpn: more than 24 bits");
        Self(number)
    }

    /// Makes a number from the low 24 bits of an integer, and ignores the other bits.
    #[inline]
    #[must_use]
    pub const fn masked(number: u32) -> Self {
        Self(number & MASK)
    }

    /// Makes a number from the bits of a field, for the macro `layout!`. Bits above the low 24 are ignored.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self::masked(bits)
    }

    /// Returns the bits for a field, as the macro `layout!` takes them.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the number as an integer.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Packet sequence number (PSN): 24 bits, ordered modulo 2^24 (IBTA volume 1, PSN rules).
///
/// The type has no `Ord`, because PSNs wrap: the order of two PSNs is defined only relative to a third PSN, or if they
/// are less than 2^23 apart ([`Psn::ahead_of`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Makes a PSN from the low 24 bits of an integer.
    #[inline]
    #[must_use]
    pub const fn masked(number: u32) -> Self {
        Self(number & MASK)
    }

    /// Makes a PSN from the bits of a field, for the macro `layout!`. Bits above the low 24 are ignored.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self::masked(bits)
    }

    /// Returns the bits for a field, as the macro `layout!` takes them.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the PSN as an integer below 2^24.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN of the following packet.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        self.advance(1)
    }

    /// Returns the PSN of the preceding packet.
    #[inline]
    #[must_use]
    pub const fn previous(self) -> Self {
        Self::masked(self.0.wrapping_sub(1))
    }

    /// Returns the PSN `n` packets later.
    #[inline]
    #[must_use]
    pub const fn advance(self, n: u32) -> Self {
        Self::masked(self.0.wrapping_add(n))
    }

    /// Returns the number of packets from `base` forward to `self`, in `0..2^24`.
    #[inline]
    #[must_use]
    pub const fn distance_from(self, base: Self) -> u32 {
        self.0.wrapping_sub(base.0) & MASK
    }

    /// Returns the number of packets by which `self` is ahead of `base`, in `-2^23..2^23`; negative if it is behind.
    #[inline]
    #[must_use]
    pub const fn ahead_of(self, base: Self) -> i32 {
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Implements serialization as an integer. An integer of more than 24 bits is refused.
macro_rules! as_integer {
    ($($name:ident),+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_u32(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let number = u32::deserialize(from)?;
                if number > MASK {
                    let name = stringify!($name);
                    return Err(D::Error::custom(format_args!("{name} {number:#x} has more than 24 bits")));
                }
                Ok(Self(number))
            }
        }
    )+};
}

as_integer!(Qpn, Psn);

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn psn_order_survives_the_wrap() {
        let (last, first) = (Psn::masked(0xff_ffff), Psn::masked(0));
        assert_eq!((last.next(), first.previous()), (first, last));
        assert_eq!(last.advance(3), Psn::masked(2));
        assert_eq!(Psn::masked(2).ahead_of(last), 3);
        assert_eq!(last.ahead_of(Psn::masked(2)), -3);
        assert_eq!(Psn::masked(0x80_0000).ahead_of(first), -(1 << 23));
        assert_eq!(Psn::masked(0x7f_ffff).ahead_of(first), (1 << 23) - 1);
        assert_eq!(last.distance_from(first), 0xff_ffff);
        assert_eq!(first.distance_from(last), 1);
        assert_eq!(first.advance(u32::MAX), last);
    }

    #[test]
    fn numbers_have_24_bits() {
        for (number, fits) in [
            (0, true),
            (0xff_ffff, true),
            (0x0100_0000, false),
            (u32::MAX, false),
        ] {
            let expected = fits.then_some(number);
            assert_eq!(Qpn::checked(number).map(Qpn::get), expected);
        }
        assert_eq!(Qpn::new(0xff_ffff), Qpn::MULTICAST);
        assert_eq!(Qpn::masked(0xab00_0001), Qpn::GSI);
        assert_eq!(Qpn::from_bits(0x1200_0000), Qpn::SMI);
        assert_eq!(Qpn::GSI.bits(), 1);
        assert_eq!(Psn::masked(0xab12_3456).get(), 0x12_3456);
        assert_eq!(Psn::from_bits(0x0100_0007).bits(), 7);
    }

    #[test]
    #[should_panic(expected = "more than 24 bits")]
    fn queue_pair_number_that_does_not_fit_is_refused() {
        let _ = Qpn::new(1 << 24);
    }

    #[test]
    fn numbers_are_shown_in_hexadecimal() {
        assert_eq!(
            format!("{} {:?}", Qpn::new(0x4a), Qpn::new(0x4a)),
            "0x4a Qpn(0x4a)"
        );
        assert_eq!(
            format!("{} {:?}", Psn::masked(0x4b), Psn::masked(0x4b)),
            "0x4b Psn(0x4b)"
        );
    }
}
