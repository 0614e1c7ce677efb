//! Tables of bytes, in the notation of the manual.
//!
//! [`layout!`] makes one struct per table, [`codes!`] one type per list of named numbers. Neither depends on a
//! device: `mlx-prm` has the ConnectX's tables in this notation.
//!
//! A table line `[31:28] status` at offset 0x00 becomes `status: 0x00[31:28]` and expands to a getter `status()` and
//! a chainable setter `set_status(v)`. The struct contains only the bytes, in the device's order. So it can be copied
//! to and from DMA memory, and code cannot read a field in the host's byte order by mistake.
//!
//! Forms after the offset:
//!
//! | form | field | getter returns |
//! |---|---|---|
//! | `[hi:lo]` | bits of the big-endian dword at that offset | `u32` |
//! | `[bit]` | one bit of that dword | `bool` |
//! | `(Type[hi:lo])` | bits of that dword, as a type with `from_bits` and `bits`, such as one of [`codes!`] | `Type` |
//! | `u8` `u16` `u32` `u64` | a whole number | the number |
//! | `[u8; N]` | bytes | `&[u8; N]` |
//! | `Type` | another layout | `&Type`, and `field_mut()` |
//!
//! The offset of a bit field is that of its dword; bit 31 is the most significant, as in the PRM. A constant assertion
//! per struct refuses fields that overlap or leave the struct. Bits that no field names are reserved.
//! [`Layout::reserved_bits`] finds reserved bits that are set. [`Layout::reencode`] keeps only the named fields; tests
//! use it to compare recordings of real hardware with the tables.
//!
//! A setter asserts that the value fits. Values come from our own code, so a value that does not fit is our bug.
//! Shifting such a value into the next field would send the bug to the device.

#![forbid(unsafe_code)]

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod codes;
#[doc(hidden)]
pub mod support;
#[cfg(test)]
mod tests;

/// Operations of all layouts. `SIZE`, `FIELDS` and `reserved_bits` are also inherent items of each layout.
pub trait Layout:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Clone + fmt::Debug
{
    /// Name of the struct.
    const TYPE_NAME: &'static str;
    /// Size in bytes.
    const SIZE: usize;
    /// Named fields, in the order of the table.
    const FIELDS: &'static [Field];

    /// Returns the byte offset of the first dword with a set bit that no field names.
    fn reserved_bits(&self) -> Option<usize>;

    /// Returns a copy with the values of all named fields; its other bits are zero.
    #[must_use]
    fn reencode(&self) -> Self;
}

/// A named field of a layout.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in the manual's table.
    pub name: &'static str,
    /// Offset in bytes: of the dword for a bit field, of the first byte for other fields.
    pub offset: usize,
    /// Form of the field.
    pub shape: Shape,
}

/// Form of a field.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Bits of a big-endian dword.
    Bits {
        /// Most significant bit.
        hi: u8,
        /// Least significant bit.
        lo: u8,
    },
    /// A big-endian number of this many bytes.
    Number(usize),
    /// An array of this many bytes.
    Bytes(usize),
    /// Another layout.
    Nested {
        /// Name of the layout's type.
        type_name: &'static str,
        /// Size of the layout in bytes.
        bytes: usize,
        /// Fields of the layout; their offsets are relative to the layout's first byte.
        fields: &'static [Field],
    },
}

impl Shape {
    /// Returns the size of the field in bytes; for a bit field, the size of its dword.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bits { .. } => 4,
            Self::Number(bytes) | Self::Bytes(bytes) | Self::Nested { bytes, .. } => bytes,
        }
    }
}

impl Field {
    /// Returns the value of a bit field or number in a struct whose bytes are `bytes`. Returns `None` for byte arrays
    /// and nested layouts, and if `bytes` is too short for the field.
    #[must_use]
    pub fn value(&self, bytes: &[u8]) -> Option<u64> {
        let at = bytes.get(self.offset..self.offset + self.shape.bytes())?;
        let whole = || {
            at.iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        match self.shape {
            Shape::Bits { hi, lo } => Some(whole() >> lo & (u64::MAX >> (63 - (hi - lo)))),
            Shape::Number(_) => Some(whole()),
            Shape::Bytes(_) | Shape::Nested { .. } => None,
        }
    }

    /// Stores a value where [`Field::value`] reads it. Returns false, and stores nothing, if the value does not fit,
    /// or if `value` would return `None`.
    #[must_use]
    pub fn store(&self, bytes: &mut [u8], value: u64) -> bool {
        let Some(at) = bytes.get_mut(self.offset..self.offset + self.shape.bytes()) else {
            return false;
        };
        let (mask, lo) = match self.shape {
            Shape::Bits { hi, lo } => (u64::MAX >> (63 - (hi - lo)), lo),
            Shape::Number(bytes @ 1..=8) => (u64::MAX >> (64 - 8 * bytes), 0),
            Shape::Number(_) | Shape::Bytes(_) | Shape::Nested { .. } => return false,
        };
        if value > mask {
            return false;
        }
        let whole = at
            .iter()
            .fold(0, |whole, byte| whole << 8 | u64::from(*byte));
        let whole = whole & !(mask << lo) | value << lo;
        for (byte, new) in at.iter_mut().rev().zip(whole.to_be_bytes().iter().rev()) {
            *byte = *new;
        }
        true
    }
}

/// Defines one struct per table. The crate's documentation has the notation.
///
/// The struct implements traits of `zerocopy` 0.8, so the caller's crate must depend on it with its derives.
#[macro_export]
macro_rules! layout {
    ($( $(#[$meta:meta])* pub struct $name:ident($size:literal) { $($fields:tt)* } )+) => {$(
        $crate::layout!(@struct [$(#[$meta])*] $name $size { $($fields)* });

        #[allow(clippy::new_without_default, reason = "an all-zero context is not a sensible one")]
        impl $name {
            /// Makes a struct with all fields zero.
            #[inline]
            #[must_use]
            pub const fn new() -> Self {
                Self { bytes: [0; $size] }
            }
        }
    )+};

    (@struct [$($meta:tt)*] $name:ident $size:literal {
        $( $(#[$doc:meta])* $field:ident: $offset:literal $shape:tt ),* $(,)?
    }) => {
        $($meta)*
        #[derive(
            Clone, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            bytes: [u8; $size],
        }

        $crate::support::const_assert_eq!(size_of::<$name>(), $size);
        // Refuses, at compile time, fields that overlap or leave the struct.
        const _: [u8; $size] = $name::NAMED_BITS;

        #[allow(clippy::len_without_is_empty, reason = "`len` is a field's name in the PRM")]
        impl $name {
            /// Size in bytes.
            pub const SIZE: usize = $size;
            /// Named fields, in the order of the table.
            pub const FIELDS: &'static [$crate::Field] = &[$(
                $crate::Field {
                    name: $crate::support::plain(stringify!($field)),
                    offset: $offset,
                    shape: $crate::layout!(@shape $shape),
                },
            )*];
            const NAMED_BITS: [u8; $size] = $crate::support::mask(Self::FIELDS);

            /// Returns the byte offset of a field; for a bit field, the offset of its dword. In a call that runs at
            /// compile time, an unknown name is a compile error.
            #[must_use]
            pub const fn offset_of(field: &str) -> usize {
                $crate::support::offset_of(Self::FIELDS, field)
            }

            /// Returns the bytes in the device's order.
            #[inline]
            #[must_use]
            pub const fn as_array(&self) -> &[u8; $size] {
                &self.bytes
            }

            /// Makes the struct from its bytes.
            #[inline]
            #[must_use]
            pub const fn from_array(bytes: [u8; $size]) -> Self {
                Self { bytes }
            }

            /// Returns the byte offset of the first dword with a set bit that no field names.
            #[must_use]
            pub fn reserved_bits(&self) -> Option<usize> {
                $crate::support::unnamed_bits(&self.bytes, &Self::NAMED_BITS)
            }

            $( $crate::layout!(@access [$(#[$doc])*] $field $offset $shape); )*
        }

        impl $crate::Layout for $name {
            const TYPE_NAME: &'static str = stringify!($name);
            const SIZE: usize = $size;
            const FIELDS: &'static [$crate::Field] = $name::FIELDS;

            fn reserved_bits(&self) -> Option<usize> {
                $name::reserved_bits(self)
            }

            fn reencode(&self) -> Self {
                #[allow(unused_mut, reason = "some structs have no fields")]
                let mut out = Self { bytes: [0; $size] };
                $( $crate::layout!(@copy self out $field $shape); )*
                out
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::support::NonZero { type_name: stringify!($name), fields: Self::FIELDS, bytes: &self.bytes }.fmt(f)
            }
        }
    };

    (@shape [u8; $n:literal]) => { $crate::Shape::Bytes($n) };
    (@shape [$hi:literal : $lo:literal]) => { $crate::Shape::Bits { hi: $hi, lo: $lo } };
    (@shape [$bit:literal]) => { $crate::Shape::Bits { hi: $bit, lo: $bit } };
    (@shape ($type:ident [$hi:literal : $lo:literal])) => { $crate::Shape::Bits { hi: $hi, lo: $lo } };
    (@shape u8) => { $crate::Shape::Number(1) };
    (@shape u16) => { $crate::Shape::Number(2) };
    (@shape u32) => { $crate::Shape::Number(4) };
    (@shape u64) => { $crate::Shape::Number(8) };
    (@shape $type:ident) => {
        $crate::Shape::Nested { type_name: stringify!($type), bytes: $type::SIZE, fields: $type::FIELDS }
    };

    (@access [$($doc:tt)*] $field:ident $offset:literal [u8; $n:literal]) => {
        $crate::layout!(@part [$($doc)*] $field $offset {[u8; $n]} $n);
    };
    (@access [$($doc:tt)*] $field:ident $offset:literal [$hi:literal : $lo:literal]) => { $crate::support::paste! {
        $($doc)*
        #[doc = concat!("\n\nBits ", $hi, ":", $lo, " of the dword at ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub const fn $field(&self) -> u32 {
            $crate::support::dword(&self.bytes, $offset) >> $lo & (u32::MAX >> (31 - ($hi - $lo)))
        }

        #[doc = concat!("Sets `", stringify!($field), "`; panics if the value has more bits than the field.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: u32) -> &mut Self {
            $crate::support::set_bits(&mut self.bytes, $offset, $hi, $lo, value, stringify!($field));
            self
        }
    }};
    (@access [$($doc:tt)*] $field:ident $offset:literal [$bit:literal]) => { $crate::support::paste! {
        $($doc)*
        #[doc = concat!("\n\nBit ", $bit, " of the dword at ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub const fn $field(&self) -> bool {
            $crate::support::dword(&self.bytes, $offset) >> $bit & 1 == 1
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: bool) -> &mut Self {
            $crate::support::set_bits(&mut self.bytes, $offset, $bit, $bit, value as u32, stringify!($field));
            self
        }
    }};
    (@access [$($doc:tt)*] $field:ident $offset:literal ($type:ident [$hi:literal : $lo:literal])) => { $crate::support::paste! {
        $($doc)*
        #[doc = concat!("\n\nBits ", $hi, ":", $lo, " of the dword at ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub const fn $field(&self) -> $type {
            $type::from_bits($crate::support::dword(&self.bytes, $offset) >> $lo & (u32::MAX >> (31 - ($hi - $lo))))
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: $type) -> &mut Self {
            $crate::support::set_bits(&mut self.bytes, $offset, $hi, $lo, value.bits(), stringify!($field));
            self
        }
    }};
    (@access [$($doc:tt)*] $field:ident $offset:literal u8) => { $crate::layout!(@number [$($doc)*] $field $offset u8 1); };
    (@access [$($doc:tt)*] $field:ident $offset:literal u16) => { $crate::layout!(@number [$($doc)*] $field $offset u16 2); };
    (@access [$($doc:tt)*] $field:ident $offset:literal u32) => { $crate::layout!(@number [$($doc)*] $field $offset u32 4); };
    (@access [$($doc:tt)*] $field:ident $offset:literal u64) => { $crate::layout!(@number [$($doc)*] $field $offset u64 8); };
    (@access [$($doc:tt)*] $field:ident $offset:literal $type:ident) => {
        $crate::layout!(@part [$($doc)*] $field $offset {$type} ($type::SIZE));
    };

    (@number [$($doc:tt)*] $field:ident $offset:literal $int:ident $bytes:literal) => { $crate::support::paste! {
        $($doc)*
        #[doc = concat!("\n\n", $bytes, " bytes at ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub const fn $field(&self) -> $int {
            let (_, from) = self.bytes.split_at($offset);
            match from.first_chunk::<$bytes>() {
                Some(bytes) => $int::from_be_bytes(*bytes),
                // PANIC: never; `NAMED_BITS` has checked the bounds at compile time.
                None => panic!("a field outside of its struct"),
            }
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: $int) -> &mut Self {
            self.bytes[$offset..$offset + $bytes].copy_from_slice(&value.to_be_bytes());
            self
        }
    }};

    (@part [$($doc:tt)*] $field:ident $offset:literal {$type:ty} $size:tt) => { $crate::support::paste! {
        $($doc)*
        #[doc = concat!("\n\nAt ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub fn $field(&self) -> &$type {
            // PANIC: never; the slice has the type's size, and the type has no alignment requirement.
            zerocopy::FromBytes::ref_from_bytes(&self.bytes[$offset..$offset + $size]).expect("a part of the struct")
        }

        #[doc = concat!("`", stringify!($field), "`, to be changed in place.")]
        #[inline]
        pub fn [<$field _mut>](&mut self) -> &mut $type {
            // PANIC: never; the slice has the type's size, and the type has no alignment requirement.
            zerocopy::FromBytes::mut_from_bytes(&mut self.bytes[$offset..$offset + $size]).expect("a part of the struct")
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: &$type) -> &mut Self {
            self.[<$field _mut>]().clone_from(value);
            self
        }
    }};

    (@copy $from:ident $to:ident $field:ident [u8; $n:literal]) => { $crate::support::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident [$($bits:tt)*]) => { $crate::support::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident ($($bits:tt)*)) => { $crate::support::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u8) => { $crate::support::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u16) => { $crate::support::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u32) => { $crate::support::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u64) => { $crate::support::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident $type:ident) => { $crate::support::paste! {
        $to.[<set_ $field>](&$crate::Layout::reencode($from.$field()));
    } };
}
