//! Functions that the macros' expansions call. Other code must not use them.

use core::fmt;

use crate::{Field, Shape};

pub use pastey::paste;
pub use static_assertions::const_assert_eq;

/// Returns the mask of all bits of the struct that belong to a field. Refuses, at compile time, fields that overlap or
/// leave the struct.
pub const fn mask<const N: usize>(fields: &[Field]) -> [u8; N] {
    let mut mask = [0; N];
    mark_bits(&mut mask, 0, fields);
    mask
}

const fn mark_bits<const N: usize>(mask: &mut [u8; N], base: usize, fields: &[Field]) {
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
            Shape::Nested { fields, .. } => mark_bits(mask, base + offset, fields),
        }
        index += 1;
    }
}

/// Returns the offset of the field with this name. Panics if no field has the name.
#[must_use]
pub const fn offset_of(fields: &[Field], name: &str) -> usize {
    let mut index = 0;
    while index < fields.len() {
        if equal(fields[index].name.as_bytes(), name.as_bytes()) {
            return fields[index].offset;
        }
        index += 1;
    }
    panic!("no such field");
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    match (a, b) {
        ([], []) => true,
        ([first, a @ ..], [other, b @ ..]) => *first == *other && equal(a, b),
        _ => false,
    }
}

/// Returns an identifier without the prefix `r#` of raw identifiers.
pub const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// Returns the big-endian dword at offset `at`.
#[inline]
pub const fn dword<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Sets bits `hi:lo` of the big-endian dword at offset `at`.
#[inline]
pub fn set_bits<const N: usize>(
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

/// Returns the offset of the first dword of `bytes` with a bit that is not in `mask`.
pub fn unnamed_bits(bytes: &[u8], mask: &[u8]) -> Option<usize> {
    bytes
        .iter()
        .zip(mask)
        .position(|(byte, named)| byte & !named != 0)
        .map(|at| at & !3)
}

/// `Debug` form of a struct that prints only the fields that are not zero.
pub struct NonZero<'a> {
    pub type_name: &'static str,
    pub fields: &'static [Field],
    pub bytes: &'a [u8],
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
