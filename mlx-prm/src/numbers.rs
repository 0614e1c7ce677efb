//! Numbers of device objects, and the packet sequence number.
//!
//! Each kind of object has its own type. With plain integers, a QP number in place of a CQ number would compile and
//! corrupt a queue. The types only identify objects, so they have no arithmetic. All are at most 24 bits wide, which
//! is the width of their fields in contexts, doorbells and entries.

use core::fmt;

macro_rules! numbers {
    ($( $(#[$meta:meta])* $name:ident($bits:literal); )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Returns the number, or `None` if it has more bits than the device's field.
            #[inline]
            #[must_use]
            pub const fn checked(number: u32) -> Option<Self> {
                if number >> $bits == 0 { Some(Self(number)) } else { None }
            }

            /// Makes a number that the caller knows to fit: it comes from a device field of that width, or we chose it.
            ///
            /// # Panics
            /// If the number does not fit.
            #[inline]
            #[must_use]
            pub const fn new(number: u32) -> Self {
                assert!(number >> $bits == 0, concat!(stringify!($name), ": more than ", $bits, " bits"));
                Self(number)
            }

            /// Returns the number as an integer.
            #[inline]
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    )+};
}

numbers! {
    /// Number of a queue pair.
    Qpn(24);
    /// Number of a completion queue.
    Cqn(24);
    /// Number of an event queue.
    Eqn(8);
    /// Number of a protection domain.
    Pdn(24);
    /// Number of a transport domain.
    Tdn(24);
    /// Number of an XRC domain.
    Xrcdn(24);
    /// Number of a receive memory pool, the device's object behind a basic shared receive queue.
    Rmpn(24);
    /// Index of a memory key, without the key's variant byte. CREATE_MKEY returns it, and DESTROY_MKEY takes it.
    MkeyIndex(24);
    /// Number of a doorbell page: the page is the 4 KiB of BAR 0 at this number times 4096.
    UarIndex(24);
}

impl MkeyIndex {
    /// Returns the key with this index and the given variant, as lkey and rkey fields have it.
    #[inline]
    #[must_use]
    pub const fn key(self, variant: u8) -> u32 {
        // CAST: widens u8 to u32.
        self.0 << 8 | variant as u32
    }

    /// Returns the index of a key.
    #[inline]
    #[must_use]
    pub const fn of_key(key: u32) -> Self {
        Self(key >> 8)
    }
}

/// A packet sequence number: 24 bits, ordered modulo 2^24 (IBTA volume 1, PSN rules).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = (1 << 24) - 1;

    /// Makes a sequence number from the low 24 bits of an integer.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & Self::MASK)
    }

    /// Returns the sequence number as an integer.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the sequence number `n` packets later.
    #[inline]
    #[must_use]
    pub const fn advance(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & Self::MASK)
    }

    /// Returns the distance from `base` forward to `self`, in `0..2^24`.
    #[inline]
    #[must_use]
    pub const fn distance_from(self, base: Self) -> u32 {
        self.0.wrapping_sub(base.0) & Self::MASK
    }

    /// Returns the distance of `self` ahead of `base`, in `-2^23..2^23`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_order_survives_the_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.advance(1), Psn::new(0));
        assert_eq!(Psn::new(2).ahead_of(last), 3);
        assert_eq!(last.ahead_of(Psn::new(2)), -3);
        assert_eq!(Psn::new(0x80_0000).ahead_of(Psn::new(0)), -(1 << 23));
    }

    #[test]
    fn numbers_wider_than_their_field_are_refused() {
        assert_eq!(Qpn::checked(0x0100_0000), None);
        assert_eq!(Eqn::checked(0x100), None);
        assert_eq!(Qpn::checked(0xff_ffff).map(Qpn::get), Some(0xff_ffff));
    }

    #[test]
    fn key_is_index_and_variant() {
        assert_eq!(MkeyIndex::new(0x1234).key(0x56), 0x12_3456);
        assert_eq!(MkeyIndex::of_key(0x12_3456), MkeyIndex::new(0x1234));
    }
}
