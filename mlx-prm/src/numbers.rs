//! Numbers of device objects.
//!
//! Each kind of object has its own type. With plain integers, a QP number in place of a CQ number would compile and
//! corrupt a queue. The types only identify objects, so they have no arithmetic. All are at most 24 bits wide, which
//! is the width of their fields in contexts, doorbells and entries. `rdma-types` has the types of the numbers that
//! peers exchange: queue pair numbers and packet sequence numbers.

use core::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use rdma_types::{Psn, Qpn};

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

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_u32(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let number = u32::deserialize(from)?;
                Self::checked(number).ok_or_else(|| {
                    let name = stringify!($name);
                    D::Error::custom(format_args!("{name} {number:#x} has more than {} bits", $bits))
                })
            }
        }
    )+};
}

numbers! {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wider_than_their_field_are_refused() {
        assert_eq!(Cqn::checked(0x0100_0000), None);
        assert_eq!(Eqn::checked(0x100), None);
        assert_eq!(Cqn::checked(0xff_ffff).map(Cqn::get), Some(0xff_ffff));
    }

    #[test]
    fn key_is_index_and_variant() {
        assert_eq!(MkeyIndex::new(0x1234).key(0x56), 0x12_3456);
        assert_eq!(MkeyIndex::of_key(0x12_3456), MkeyIndex::new(0x1234));
    }
}
