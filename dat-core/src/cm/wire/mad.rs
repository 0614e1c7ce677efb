//! The header at the start of every management datagram (IBTA volume 1, "MAD Base Format"), and the
//! small number types that the messages use.

use std::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ParseError;

/// Length of a management datagram in bytes.
pub const MAD_BYTES: usize = 256;
/// Length of the MAD header in bytes; the message follows it.
pub const HEADER_BYTES: usize = size_of::<MadHeader>();
/// A management datagram.
pub type Mad = [u8; MAD_BYTES];

/// Base version of management datagrams.
const BASE_VERSION: u8 = 1;
/// Communication management class.
const MGMT_CLASS: u8 = 0x07;
/// Class version of IBTA 1.2 and later.
const CLASS_VERSION: u8 = 2;
/// Method "Send", the only method of the class used here; the class has no Get or Set.
const METHOD_SEND: u8 = 0x03;

/// The header of a management datagram.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MadHeader {
    /// Base version, 1.
    pub base_version: u8,
    /// Management class, 7.
    pub mgmt_class: u8,
    /// Version of the class, 2.
    pub class_version: u8,
    /// Method, 3 (Send).
    pub method: u8,
    /// Status; zero in our messages.
    pub status: U16,
    /// Class-specific field; zero in our messages.
    pub class_specific: U16,
    /// Transaction ID; an answer has the transaction ID of the message it answers.
    pub transaction_id: U64,
    /// Attribute ID, which is the kind of message.
    pub attribute_id: U16,
    rsvd_12: U16,
    /// Attribute modifier; zero in our messages.
    pub attribute_modifier: U32,
}
const_assert_eq!(size_of::<MadHeader>(), 24);
const_assert_eq!(offset_of!(MadHeader, method), 0x03);
const_assert_eq!(offset_of!(MadHeader, transaction_id), 0x08);
const_assert_eq!(offset_of!(MadHeader, attribute_id), 0x10);
const_assert_eq!(offset_of!(MadHeader, attribute_modifier), 0x14);

/// Attribute IDs of the CM class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeId {
    /// Request for communication.
    Req,
    /// Message receipt acknowledgement.
    Mra,
    /// Reject.
    Rej,
    /// Reply.
    Rep,
    /// Ready to use.
    Rtu,
    /// Request for disconnection.
    Dreq,
    /// Reply to a request for disconnection.
    Drep,
    /// Any other attribute: SIDR, LAP, APR, class port info, or an undefined one.
    Other(u16),
}

impl AttributeId {
    /// Converts the attribute ID in the header.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        match code {
            0x0010 => Self::Req,
            0x0011 => Self::Mra,
            0x0012 => Self::Rej,
            0x0013 => Self::Rep,
            0x0014 => Self::Rtu,
            0x0015 => Self::Dreq,
            0x0016 => Self::Drep,
            other => Self::Other(other),
        }
    }

    /// Returns the attribute ID for the header.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Req => 0x0010,
            Self::Mra => 0x0011,
            Self::Rej => 0x0012,
            Self::Rep => 0x0013,
            Self::Rtu => 0x0014,
            Self::Dreq => 0x0015,
            Self::Drep => 0x0016,
            Self::Other(code) => code,
        }
    }
}

/// A big-endian 24-bit number, for queue pair numbers and packet sequence numbers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub(super) struct U24([u8; 3]);

impl U24 {
    pub(super) fn get(self) -> u32 {
        let [high, middle, low] = self.0;
        u32::from_be_bytes([0, high, middle, low])
    }

    pub(super) fn set(&mut self, value: u32) {
        let [over, high, middle, low] = value.to_be_bytes();
        assert!(over == 0, "{value:#x} does not fit in 24 bits");
        self.0 = [high, middle, low];
    }
}

/// Returns `value` shifted left by `shift` bits, after checking that it is no wider than `width` bits.
pub(super) fn bits(value: u8, width: u32, shift: u32) -> u8 {
    assert!(
        u32::from(value) < 1 << width,
        "{value:#x} does not fit in {width} bits"
    );
    value << shift
}

/// Returns the message after the MAD header, as a `T` to read.
pub(super) fn body<T: FromBytes + KnownLayout + Immutable + Unaligned>(mad: &Mad) -> &T {
    // PANIC: every layout asserts that it is exactly as long as a MAD without its header.
    T::ref_from_bytes(&mad[HEADER_BYTES..]).expect("layouts fill the datagram")
}

/// Returns the message after the MAD header, as a `T` to write.
pub(super) fn body_mut<T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned>(
    mad: &mut Mad,
) -> &mut T {
    // PANIC: as in `body`.
    T::mut_from_bytes(&mut mad[HEADER_BYTES..]).expect("layouts fill the datagram")
}

/// Checks the header. Returns the transaction ID and the attribute.
pub(super) fn parse_header(mad: &Mad) -> Result<(u64, AttributeId), ParseError> {
    // PANIC: the header has 24 bytes, the datagram 256.
    let (header, _) = MadHeader::ref_from_prefix(mad).expect("a MAD is longer than its header");
    if (header.base_version, header.mgmt_class, header.class_version)
        != (BASE_VERSION, MGMT_CLASS, CLASS_VERSION)
    {
        return Err(ParseError::Class {
            base_version: header.base_version,
            class: header.mgmt_class,
            class_version: header.class_version,
        });
    }
    if header.method != METHOD_SEND {
        return Err(ParseError::Method(header.method));
    }
    Ok((
        header.transaction_id.get(),
        AttributeId::from_code(header.attribute_id.get()),
    ))
}

/// Writes the header.
pub(super) fn emit_header(mad: &mut Mad, attribute: AttributeId, transaction_id: u64) {
    let header = MadHeader {
        base_version: BASE_VERSION,
        mgmt_class: MGMT_CLASS,
        class_version: CLASS_VERSION,
        method: METHOD_SEND,
        status: U16::ZERO,
        class_specific: U16::ZERO,
        transaction_id: U64::new(transaction_id),
        attribute_id: U16::new(attribute.code()),
        rsvd_12: U16::ZERO,
        attribute_modifier: U32::ZERO,
    };
    mad[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}
