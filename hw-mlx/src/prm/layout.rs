//! The `layout!` macro: one struct per PRM table, written as the table is printed.
//!
//! A table line `[31:28] status` at offset 0x00 becomes `status: 0x00[31:28]` and expands to a getter
//! `status()` and a chainable setter `set_status(v)`. The struct is nothing but its bytes, in the
//! device's order: it can be copied to and from DMA memory, and no field of it can be read in the
//! host's byte order by mistake.
//!
//! What can stand behind the offset:
//!
//! | form | field | getter gives |
//! |---|---|---|
//! | `[hi:lo]` | bits of the big-endian dword at that offset | `u32` |
//! | `[bit]` | one bit of it | `bool` |
//! | `(Type[hi:lo])` | the same, as one of [`codes`](super::codes) | `Type` |
//! | `u8` `u16` `u32` `u64` | a whole number | the number |
//! | `[u8; N]` | bytes | `&[u8; N]` |
//! | `Type` | another layout | `&Type`, and `field_mut()` |
//!
//! Offsets of bit fields are those of dwords, bit 31 being the most significant, as in the PRM.
//! A constant assertion per struct refuses fields that overlap or leave the struct. Bits no field
//! names are reserved: [`Layout::reserved_bits`] finds set ones, and [`Layout::reencode`] shows what
//! the named fields alone say, which is how recordings of real hardware are held against the tables.
//!
//! A setter asserts that the value fits. Values come from our own code; one that does not fit is
//! our bug, and shifting it into its neighbour would make it the device's problem.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What all layouts can do; the same things exist as inherent methods.
pub trait Layout:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Clone + fmt::Debug
{
    /// Name of the struct.
    const TYPE_NAME: &'static str;
    /// Bytes it takes.
    const SIZE: usize;
    /// Its named fields, in the order of the table.
    const FIELDS: &'static [Field];

    /// Byte offset of the first dword with a set bit that no field names.
    fn reserved_bits(&self) -> Option<usize>;

    /// A zeroed struct with every named field set to the value it has here.
    #[must_use]
    fn reencode(&self) -> Self;
}

/// A named field of a layout.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The PRM's name.
    pub name: &'static str,
    /// Offset in bytes: of the dword for bit fields, of the first byte for others.
    pub offset: usize,
    /// What is there.
    pub shape: Shape,
}

/// What a field is made of.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Bits of a big-endian dword.
    Bits {
        /// Most significant bit.
        hi: u8,
        /// Least significant bit.
        lo: u8,
    },
    /// A big-endian number of that many bytes.
    Number(usize),
    /// So many bytes.
    Bytes(usize),
    /// Another layout.
    Nested {
        /// Its type.
        type_name: &'static str,
        /// Its size.
        bytes: usize,
        /// Its fields; offsets are relative to it.
        fields: &'static [Field],
    },
}

impl Shape {
    /// Bytes the field, or the dword it is in, takes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bits { .. } => 4,
            Self::Number(bytes) | Self::Bytes(bytes) | Self::Nested { bytes, .. } => bytes,
        }
    }
}

impl Field {
    /// The value of a bit field or number in a struct of `bytes`; `None` for byte arrays, nested
    /// layouts, and bytes too short to hold the field.
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

    /// Stores a value where [`Field::value`] reads it. False, and nothing stored, if it does not fit, or where that gives
    /// `None`.
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

/// Every bit a field names, as a mask over the struct. Refuses, at compile time, fields that overlap
/// or leave the struct.
pub(super) const fn mask<const N: usize>(fields: &[Field]) -> [u8; N] {
    let mut mask = [0; N];
    claim(&mut mask, 0, fields);
    mask
}

const fn claim<const N: usize>(mask: &mut [u8; N], base: usize, fields: &[Field]) {
    let mut index = 0;
    while index < fields.len() {
        let Field { offset, shape, .. } = fields[index];
        assert!(
            base + offset + shape.bytes() <= N,
            "a field leaves its struct"
        );
        match shape {
            Shape::Bits { hi, lo } => {
                assert!(
                    offset % 4 == 0,
                    "a bit field's offset is not that of a dword"
                );
                assert!(hi <= 31 && lo <= hi, "not bits of a dword");
                let bits = (u32::MAX >> (31 - (hi - lo)) << lo).to_be_bytes();
                let mut byte = 0;
                while byte < 4 {
                    let at = base + offset + byte;
                    assert!(mask[at] & bits[byte] == 0, "fields overlap");
                    mask[at] |= bits[byte];
                    byte += 1;
                }
            }
            Shape::Number(bytes) | Shape::Bytes(bytes) => {
                let mut at = base + offset;
                while at < base + offset + bytes {
                    assert!(mask[at] == 0, "fields overlap");
                    mask[at] = 0xff;
                    at += 1;
                }
            }
            Shape::Nested { fields, .. } => claim(mask, base + offset, fields),
        }
        index += 1;
    }
}

/// A raw identifier's name.
pub(super) const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// The dword at `at`.
#[inline]
pub(super) const fn dword<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Sets bits `hi:lo` of the dword at `at`.
#[inline]
pub(super) fn set_bits<const N: usize>(
    bytes: &mut [u8; N],
    at: usize,
    hi: u8,
    lo: u8,
    value: u32,
    name: &'static str,
) {
    let ones = u32::MAX >> (31 - (hi - lo));
    if value > ones {
        does_not_fit(name, value, hi, lo);
    }
    let word = dword(bytes, at) & !(ones << lo) | value << lo;
    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

#[cold]
#[inline(never)]
fn does_not_fit(name: &'static str, value: u32, hi: u8, lo: u8) -> ! {
    panic!("{name}: {value:#x} does not fit bits {hi}:{lo}")
}

/// Offset of the first dword of `bytes` with a bit that is not in `mask`.
pub(super) fn unnamed_bits(bytes: &[u8], mask: &[u8]) -> Option<usize> {
    bytes
        .iter()
        .zip(mask)
        .position(|(byte, named)| byte & !named != 0)
        .map(|at| at & !3)
}

/// A struct as its fields that are not zero.
pub(super) struct NonZero<'a> {
    pub(super) type_name: &'static str,
    pub(super) fields: &'static [Field],
    pub(super) bytes: &'a [u8],
}

impl fmt::Debug for NonZero<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct(self.type_name);
        for field in self.fields {
            let at = &self.bytes[field.offset..][..field.shape.bytes()];
            if at.iter().all(|byte| *byte == 0) {
                continue;
            }
            match (field.shape, field.value(self.bytes)) {
                (
                    Shape::Nested {
                        type_name, fields, ..
                    },
                    _,
                ) => {
                    out.field(
                        field.name,
                        &NonZero {
                            type_name,
                            fields,
                            bytes: at,
                        },
                    );
                }
                (_, Some(0)) => {}
                (_, Some(value)) => {
                    out.field(field.name, &format_args!("{value:#x}"));
                }
                (_, None) => {
                    out.field(field.name, &format_args!("{at:02x?}"));
                }
            }
        }
        out.finish()
    }
}

/// One struct per PRM table; see the module's description for the notation.
macro_rules! layout {
    ($( $(#[$meta:meta])* pub struct $name:ident($size:literal) { $($fields:tt)* } )+) => {$(
        $crate::prm::layout::layout!(@struct [$(#[$meta])*] $name $size { $($fields)* });

        #[allow(clippy::new_without_default, reason = "an all-zero context is not a sensible one")]
        impl $name {
            /// All fields zero.
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

        static_assertions::const_assert_eq!(size_of::<$name>(), $size);
        // Fields neither overlap nor leave the struct.
        const _: [u8; $size] = $name::NAMED_BITS;

        #[allow(clippy::len_without_is_empty, reason = "`len` is a field's name in the PRM")]
        impl $name {
            /// Bytes it takes.
            pub const SIZE: usize = $size;
            /// Its named fields.
            pub const FIELDS: &'static [$crate::prm::Field] = &[$(
                $crate::prm::Field {
                    name: $crate::prm::layout::plain(stringify!($field)),
                    offset: $offset,
                    shape: $crate::prm::layout::layout!(@shape $shape),
                },
            )*];
            const NAMED_BITS: [u8; $size] = $crate::prm::layout::mask(Self::FIELDS);

            /// The bytes as the device sees them.
            #[inline]
            #[must_use]
            pub const fn as_array(&self) -> &[u8; $size] {
                &self.bytes
            }

            /// The struct whose bytes these are.
            #[inline]
            #[must_use]
            pub const fn from_array(bytes: [u8; $size]) -> Self {
                Self { bytes }
            }

            /// Byte offset of the first dword with a set bit that no field names.
            #[must_use]
            pub fn reserved_bits(&self) -> Option<usize> {
                $crate::prm::layout::unnamed_bits(&self.bytes, &Self::NAMED_BITS)
            }

            $( $crate::prm::layout::layout!(@access [$(#[$doc])*] $field $offset $shape); )*
        }

        impl $crate::prm::Layout for $name {
            const TYPE_NAME: &'static str = stringify!($name);
            const SIZE: usize = $size;
            const FIELDS: &'static [$crate::prm::Field] = $name::FIELDS;

            fn reserved_bits(&self) -> Option<usize> {
                $name::reserved_bits(self)
            }

            fn reencode(&self) -> Self {
                #[allow(unused_mut, reason = "some structs have no fields")]
                let mut out = Self { bytes: [0; $size] };
                $( $crate::prm::layout::layout!(@copy self out $field $shape); )*
                out
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::prm::layout::NonZero { type_name: stringify!($name), fields: Self::FIELDS, bytes: &self.bytes }.fmt(f)
            }
        }
    };

    (@shape [u8; $n:literal]) => { $crate::prm::Shape::Bytes($n) };
    (@shape [$hi:literal : $lo:literal]) => { $crate::prm::Shape::Bits { hi: $hi, lo: $lo } };
    (@shape [$bit:literal]) => { $crate::prm::Shape::Bits { hi: $bit, lo: $bit } };
    (@shape ($type:ident [$hi:literal : $lo:literal])) => { $crate::prm::Shape::Bits { hi: $hi, lo: $lo } };
    (@shape u8) => { $crate::prm::Shape::Number(1) };
    (@shape u16) => { $crate::prm::Shape::Number(2) };
    (@shape u32) => { $crate::prm::Shape::Number(4) };
    (@shape u64) => { $crate::prm::Shape::Number(8) };
    (@shape $type:ident) => {
        $crate::prm::Shape::Nested { type_name: stringify!($type), bytes: $type::SIZE, fields: $type::FIELDS }
    };

    (@access [$($doc:tt)*] $field:ident $offset:literal [u8; $n:literal]) => {
        $crate::prm::layout::layout!(@part [$($doc)*] $field $offset {[u8; $n]} $n);
    };
    (@access [$($doc:tt)*] $field:ident $offset:literal [$hi:literal : $lo:literal]) => { pastey::paste! {
        $($doc)*
        #[doc = concat!("\n\nBits ", $hi, ":", $lo, " of the dword at ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub const fn $field(&self) -> u32 {
            $crate::prm::layout::dword(&self.bytes, $offset) >> $lo & (u32::MAX >> (31 - ($hi - $lo)))
        }

        #[doc = concat!("Sets `", stringify!($field), "`; panics if the value has more bits than the field.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: u32) -> &mut Self {
            $crate::prm::layout::set_bits(&mut self.bytes, $offset, $hi, $lo, value, stringify!($field));
            self
        }
    }};
    (@access [$($doc:tt)*] $field:ident $offset:literal [$bit:literal]) => { pastey::paste! {
        $($doc)*
        #[doc = concat!("\n\nBit ", $bit, " of the dword at ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub const fn $field(&self) -> bool {
            $crate::prm::layout::dword(&self.bytes, $offset) >> $bit & 1 == 1
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: bool) -> &mut Self {
            $crate::prm::layout::set_bits(&mut self.bytes, $offset, $bit, $bit, value as u32, stringify!($field));
            self
        }
    }};
    (@access [$($doc:tt)*] $field:ident $offset:literal ($type:ident [$hi:literal : $lo:literal])) => { pastey::paste! {
        $($doc)*
        #[doc = concat!("\n\nBits ", $hi, ":", $lo, " of the dword at ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub const fn $field(&self) -> $type {
            $type::from_bits($crate::prm::layout::dword(&self.bytes, $offset) >> $lo & (u32::MAX >> (31 - ($hi - $lo))))
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: $type) -> &mut Self {
            $crate::prm::layout::set_bits(&mut self.bytes, $offset, $hi, $lo, value.bits(), stringify!($field));
            self
        }
    }};
    (@access [$($doc:tt)*] $field:ident $offset:literal u8) => { $crate::prm::layout::layout!(@number [$($doc)*] $field $offset u8 1); };
    (@access [$($doc:tt)*] $field:ident $offset:literal u16) => { $crate::prm::layout::layout!(@number [$($doc)*] $field $offset u16 2); };
    (@access [$($doc:tt)*] $field:ident $offset:literal u32) => { $crate::prm::layout::layout!(@number [$($doc)*] $field $offset u32 4); };
    (@access [$($doc:tt)*] $field:ident $offset:literal u64) => { $crate::prm::layout::layout!(@number [$($doc)*] $field $offset u64 8); };
    (@access [$($doc:tt)*] $field:ident $offset:literal $type:ident) => {
        $crate::prm::layout::layout!(@part [$($doc)*] $field $offset {$type} ($type::SIZE));
    };

    (@number [$($doc:tt)*] $field:ident $offset:literal $int:ident $bytes:literal) => { pastey::paste! {
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

    (@part [$($doc:tt)*] $field:ident $offset:literal {$type:ty} $size:tt) => { pastey::paste! {
        $($doc)*
        #[doc = concat!("\n\nAt ", stringify!($offset), ".")]
        #[inline]
        #[must_use]
        pub fn $field(&self) -> &$type {
            // PANIC: never; the slice has the type's size and the type no alignment.
            zerocopy::FromBytes::ref_from_bytes(&self.bytes[$offset..$offset + $size]).expect("a part of the struct")
        }

        #[doc = concat!("`", stringify!($field), "`, to be changed in place.")]
        #[inline]
        pub fn [<$field _mut>](&mut self) -> &mut $type {
            // PANIC: never, as above.
            zerocopy::FromBytes::mut_from_bytes(&mut self.bytes[$offset..$offset + $size]).expect("a part of the struct")
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub fn [<set_ $field>](&mut self, value: &$type) -> &mut Self {
            self.[<$field _mut>]().clone_from(value);
            self
        }
    }};

    (@copy $from:ident $to:ident $field:ident [u8; $n:literal]) => { pastey::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident [$($bits:tt)*]) => { pastey::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident ($($bits:tt)*)) => { pastey::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u8) => { pastey::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u16) => { pastey::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u32) => { pastey::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident u64) => { pastey::paste! { $to.[<set_ $field>]($from.$field()); } };
    (@copy $from:ident $to:ident $field:ident $type:ident) => { pastey::paste! {
        $to.[<set_ $field>](&$crate::prm::Layout::reencode($from.$field()));
    } };
}
pub(super) use layout;

/// A command: input and output, each with the header all commands share, and the opcode they belong to.
macro_rules! command {
    ($( $(#[$meta:meta])* $opcode:ident: $input:ident($in_size:literal) { $($in_fields:tt)* } -> $output:ident($out_size:literal) { $($out_fields:tt)* } )+) => {$(
        $crate::prm::layout::layout!(@struct [
            #[doc = concat!("Input of `", stringify!($opcode), "`.\n")]
            $(#[$meta])*
        ] $input $in_size {
            /// Which command this is.
            opcode: 0x00 (Opcode[31:16]),
            /// Variant of the command; 0 where the command has none.
            op_mod: 0x04[15:0],
            $($in_fields)*
        });

        #[allow(clippy::new_without_default, reason = "an all-zero command is not a sensible one")]
        impl $input {
            /// The opcode set and all else zero.
            #[must_use]
            pub fn new() -> Self {
                let mut input = Self { bytes: [0; $in_size] };
                input.set_opcode(Opcode::$opcode);
                input
            }
        }

        impl $crate::prm::Command for $input {
            const OPCODE: Opcode = Opcode::$opcode;
            const NAME: &'static str = match Opcode::$opcode.name() {
                Some(name) => name,
                None => panic!("an opcode without a name"),
            };
            type Out = $output;
        }

        $crate::prm::layout::layout!(@struct [
            #[doc = concat!("Output of `", stringify!($opcode), "`.\n")]
            $(#[$meta])*
        ] $output $out_size {
            /// What became of the command.
            status: 0x00 (CmdStatus[31:24]),
            /// The firmware's reason for a refusal; meaningful to its makers.
            syndrome: 0x04 u32,
            $($out_fields)*
        });

        #[allow(clippy::new_without_default, reason = "an all-zero answer is a claim of success")]
        impl $output {
            /// All zero: status OK.
            #[inline]
            #[must_use]
            pub const fn new() -> Self {
                Self { bytes: [0; $out_size] }
            }
        }

        impl $crate::prm::CommandOutput for $output {
            fn status(&self) -> CmdStatus {
                $output::status(self)
            }

            fn syndrome(&self) -> u32 {
                $output::syndrome(self)
            }

            fn set_outcome(&mut self, status: CmdStatus, syndrome: u32) {
                self.set_status(status).set_syndrome(syndrome);
            }
        }
    )+};
}
pub(super) use command;
