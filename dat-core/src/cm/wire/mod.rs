//! Encoding of connection management messages.
//!
//! A message is one management datagram of 256 bytes: the 24-byte MAD header and 232 bytes
//! whose meaning the attribute ID of the header gives (IBTA volume 1, chapter 12, "Message Contents").
//! There are two levels, as in smoltcp. A *layout* (`…Layout`) is the table of a message's bytes, in the notation of
//! [`layout!`](layout::layout), with dwords counted from the end of the header. A *representation* (`…Repr`) holds
//! plain numbers in host order; `parse` reads it from a layout, and `emit` writes it to one.
//!
//! Parsing cannot fail on length, because all MADs have the same. It fails only if the header is not that of a
//! connection management message ([`ParseError`]). Reserved bits are ignored when read and written as zero, so a
//! datagram with zero reserved bits is reproduced byte for byte. The attribute modifier and the word after REQ's
//! communication ID are treated as reserved too: newer senders put enhanced connection establishment there, which we
//! neither offer nor accept.
//!
//! Absent: LAP and APR (alternate paths have no meaning on Ethernet) and SIDR (datagram services, which are not
//! offered here). They parse as [`ParseError::Attribute`] and are dropped.

pub(in crate::cm) mod dreq;
pub(in crate::cm) mod mad;
pub(in crate::cm) mod mra;
pub(in crate::cm) mod rej;
pub(in crate::cm) mod rep;
pub(in crate::cm) mod req;
pub(in crate::cm) mod rtu;
mod words;

pub use dreq::{DrepRepr, DreqRepr};
pub use mad::{AttributeId, MAD_BYTES, Mad};
pub use mra::MraRepr;
pub use rej::{RejRepr, RejectReason, Rejected};
pub use rep::RepRepr;
pub use req::{PathRepr, ReqRepr};
pub use rtu::RtuRepr;
pub use words::{CommIds, in_words};

/// Reason why a datagram is not a connection management message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The base version, class or class version is unknown.
    #[error(
        "base version {base_version}, class {class:#04x} version {class_version}: not connection management"
    )]
    Class {
        /// Base version of the datagram; ours is 1.
        base_version: u8,
        /// Management class of the datagram; ours is 0x07.
        class: u8,
        /// Class version of the datagram; ours is 2.
        class_version: u8,
    },
    /// The method is not Send (3), the only method handled here.
    #[error("method {0:#04x} is not Send")]
    Method(u8),
    /// The attribute is not handled here.
    #[error("attribute {0:#06x} is not handled")]
    Attribute(u16),
}

/// A connection management message, received or to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Request for communication.
    Req(Box<ReqRepr>),
    /// Message receipt acknowledgement: "wait longer".
    Mra(MraRepr),
    /// Reject.
    Rej(Box<RejRepr>),
    /// Reply to a request.
    Rep(Box<RepRepr>),
    /// Ready to use.
    Rtu(RtuRepr),
    /// Request for disconnection.
    Dreq(DreqRepr),
    /// Reply to a request for disconnection.
    Drep(DrepRepr),
}

impl Message {
    /// Parses a datagram. Returns its transaction ID and its message.
    ///
    /// # Errors
    /// [`ParseError`] if it is no known connection management message.
    pub fn parse(mad: &Mad) -> Result<(u64, Self), ParseError> {
        let (transaction_id, attribute) = mad::parse_header(mad)?;
        let message = match attribute {
            AttributeId::Req => Self::Req(Box::new(ReqRepr::parse(mad))),
            AttributeId::Mra => Self::Mra(MraRepr::parse(mad)),
            AttributeId::Rej => Self::Rej(Box::new(RejRepr::parse(mad))),
            AttributeId::Rep => Self::Rep(Box::new(RepRepr::parse(mad))),
            AttributeId::Rtu => Self::Rtu(RtuRepr::parse(mad)),
            AttributeId::Dreq => Self::Dreq(DreqRepr::parse(mad)),
            AttributeId::Drep => Self::Drep(DrepRepr::parse(mad)),
            AttributeId::Other(other) => return Err(ParseError::Attribute(other)),
        };
        Ok((transaction_id, message))
    }

    /// Returns the attribute ID of the header.
    #[must_use]
    pub const fn attribute(&self) -> AttributeId {
        match self {
            Self::Req(_) => AttributeId::Req,
            Self::Mra(_) => AttributeId::Mra,
            Self::Rej(_) => AttributeId::Rej,
            Self::Rep(_) => AttributeId::Rep,
            Self::Rtu(_) => AttributeId::Rtu,
            Self::Dreq(_) => AttributeId::Dreq,
            Self::Drep(_) => AttributeId::Drep,
        }
    }

    /// Writes every byte of `mad`.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, transaction_id: u64, mad: &mut Mad) {
        mad::emit_header(mad, self.attribute(), transaction_id);
        match self {
            Self::Req(repr) => repr.emit(mad),
            Self::Mra(repr) => repr.emit(mad),
            Self::Rej(repr) => repr.emit(mad),
            Self::Rep(repr) => repr.emit(mad),
            Self::Rtu(repr) => repr.emit(mad),
            Self::Dreq(repr) => repr.emit(mad),
            Self::Drep(repr) => repr.emit(mad),
        }
    }

    /// Encodes the message as a datagram.
    ///
    /// # Panics
    /// As [`Message::emit`].
    #[must_use]
    pub fn to_mad(&self, transaction_id: u64) -> Mad {
        let mut mad = [0; MAD_BYTES];
        self.emit(transaction_id, &mut mad);
        mad
    }
}

#[cfg(test)]
mod tests;
