//! The header at the start of every management datagram (IBTA volume 1, "MAD Base Format"), and the position of the
//! message behind it.

use layout::layout;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::ParseError;

/// Length of a management datagram in bytes.
pub const MAD_BYTES: usize = 256;
/// Length of the MAD header in bytes; the message follows it.
pub const HEADER_BYTES: usize = MadHeader::SIZE;
/// Length of a message in bytes, which every message fills.
pub(super) const BODY_BYTES: usize = MAD_BYTES - HEADER_BYTES;
/// A management datagram.
pub type Mad = [u8; MAD_BYTES];

/// Base version of management datagrams.
const BASE_VERSION: u8 = 1;
/// Communication management class.
const MGMT_CLASS: u8 = 0x07;
/// Class version of IBTA 1.2 and later.
const CLASS_VERSION: u8 = 2;
/// Method "Send", of all messages handled here. The class has Get and Set only for ClassPortInfo, which is not handled.
const METHOD_SEND: u8 = 0x03;

layout! {
    /// The header of a management datagram.
    pub struct MadHeader(0x18) {
        /// Base version, 1.
        base_version: 0x00 u8,
        /// Management class, 7.
        mgmt_class: 0x01 u8,
        /// Version of the class, 2.
        class_version: 0x02 u8,
        /// Method, 3 (Send).
        method: 0x03 u8,
        /// Status; zero in our messages.
        status: 0x04 u16,
        /// Class-specific field; zero in our messages.
        class_specific: 0x06 u16,
        /// Transaction ID; an answer has the transaction ID of the message it answers.
        transaction_id: 0x08 u64,
        /// Attribute ID, which is the kind of message.
        attribute_id: 0x10 u16,
        /// Attribute modifier; zero in our messages.
        attribute_modifier: 0x14 u32,
    }
}

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

/// Returns the value of a field of at most eight bits.
///
/// # Panics
/// The value has more than eight bits: the field is wider than that.
pub(in crate::cm) const fn narrow(field: u32) -> u8 {
    let [0, 0, 0, low] = field.to_be_bytes() else {
        panic!("the field has more than eight bits");
    };
    low
}

/// Returns the message after the MAD header, as a `T` to read.
pub(super) fn body<T: FromBytes + KnownLayout + Immutable + Unaligned>(mad: &Mad) -> &T {
    const { assert!(size_of::<T>() == BODY_BYTES) };
    // PANIC: the lengths are equal, as checked above when compiled; a `T` needs no alignment.
    T::ref_from_bytes(&mad[HEADER_BYTES..]).expect("layouts fill the datagram")
}

/// Writes the message after the MAD header.
pub(super) fn put(mad: &mut Mad, body: &[u8; BODY_BYTES]) {
    mad[HEADER_BYTES..].copy_from_slice(body);
}

/// Checks the header. Returns the transaction ID and the attribute.
pub(super) fn parse_header(mad: &Mad) -> Result<(u64, AttributeId), ParseError> {
    // PANIC: the header has 24 bytes, the datagram 256.
    let (header, _) = MadHeader::ref_from_prefix(mad).expect("a MAD is longer than its header");
    if (
        header.base_version(),
        header.mgmt_class(),
        header.class_version(),
    ) != (BASE_VERSION, MGMT_CLASS, CLASS_VERSION)
    {
        return Err(ParseError::Class {
            base_version: header.base_version(),
            class: header.mgmt_class(),
            class_version: header.class_version(),
        });
    }
    if header.method() != METHOD_SEND {
        return Err(ParseError::Method(header.method()));
    }
    Ok((
        header.transaction_id(),
        AttributeId::from_code(header.attribute_id()),
    ))
}

/// Writes the header.
pub(super) fn emit_header(mad: &mut Mad, attribute: AttributeId, transaction_id: u64) {
    let mut header = MadHeader::new();
    header
        .set_base_version(BASE_VERSION)
        .set_mgmt_class(MGMT_CLASS)
        .set_class_version(CLASS_VERSION)
        .set_method(METHOD_SEND)
        .set_transaction_id(transaction_id)
        .set_attribute_id(attribute.code());
    mad[..HEADER_BYTES].copy_from_slice(header.as_array());
}
