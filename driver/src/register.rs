//! Register values and register cells.
//!
//! A register value ([`RegisterValue`]) is a natively aligned integer, so that one access is one bus
//! transaction of its width. `Be32`, `Be64` and `Le32` hold the device's byte order; they are not zerocopy's integers,
//! whose alignment of 1 would turn a read into four one-byte loads.
//!
//! A cell (`Ro`, `Rw`, `Wo`) declares in a register block which accesses the register at that place allows. It has
//! the size and alignment of its value and no methods. No cell lies in device memory: a register block of cells is only
//! a layout. [`Block`](crate::Block) does the access, by one volatile load or store at the mapped address.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A big-endian 32-bit register value, natively aligned.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Be32(u32);

impl Be32 {
    /// Converts from the host's order.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value.to_be())
    }

    /// Returns the value in the host's order.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        u32::from_be(self.0)
    }
}

impl std::fmt::Debug for Be32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#010x}", self.get())
    }
}

/// A little-endian 32-bit register value, natively aligned.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Le32(u32);

impl Le32 {
    /// Converts from the host's order.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value.to_le())
    }

    /// Returns the value in the host's order.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        u32::from_le(self.0)
    }
}

impl std::fmt::Debug for Le32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#010x}", self.get())
    }
}

/// A big-endian 64-bit register value, natively aligned.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Be64(u64);

impl Be64 {
    /// Converts from the host's order. `Be64::new(u64::from_be_bytes(bytes))` is the value whose memory is `bytes`;
    /// this is how a doorbell takes the first eight bytes of a WQE.
    #[inline]
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value.to_be())
    }

    /// Returns the value in the host's order.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        u64::from_be(self.0)
    }

    /// Returns the bits of `mask` in which `self` and `other` differ. Needs no conversion of byte order.
    #[inline]
    #[must_use]
    pub const fn difference(self, other: Self, mask: Self) -> Self {
        Self((self.0 ^ other.0) & mask.0)
    }

    /// Returns whether no bit is set.
    #[inline]
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Debug for Be64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#018x}", self.get())
    }
}

/// Value of a register: an integer whose alignment is its size, so that one access is one transaction.
pub trait RegisterValue: Copy + FromBytes + IntoBytes + Immutable + sealed::Sealed {}

mod sealed {
    /// Seals the public traits: only this crate decides which types a bus can transfer in one piece.
    pub trait Sealed {}
}

macro_rules! register_values {
    ($($value:ty),*) => {$(
        static_assertions::const_assert!(align_of::<$value>() == size_of::<$value>());
        static_assertions::const_assert!(size_of::<$value>() <= 8);
        impl sealed::Sealed for $value {}
        impl RegisterValue for $value {}
    )*};
}
register_values!(Be32, Be64, Le32, u8, u16, u32, u64);

/// A register that is only read.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Ro<V>(V);

/// A register that is read and written.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Rw<V>(V);

/// A register that is only written.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Wo<V>(V);

/// A cell that can be read.
pub trait Readable: sealed::Sealed {
    /// Type of its value.
    type Value: RegisterValue;
}

/// A cell that can be written.
pub trait Writable: sealed::Sealed {
    /// Type of its value.
    type Value: RegisterValue;
}

impl<V> sealed::Sealed for Ro<V> {}
impl<V> sealed::Sealed for Rw<V> {}
impl<V> sealed::Sealed for Wo<V> {}
impl<V: RegisterValue> Readable for Ro<V> {
    type Value = V;
}
impl<V: RegisterValue> Readable for Rw<V> {
    type Value = V;
}
impl<V: RegisterValue> Writable for Rw<V> {
    type Value = V;
}
impl<V: RegisterValue> Writable for Wo<V> {
    type Value = V;
}
