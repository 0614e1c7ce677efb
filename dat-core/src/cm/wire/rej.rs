//! REJ, the refusal of a message or of a connection (IBTA volume 1, chapter 12, "REJ Message
//! Contents" and "Rejection Reason").

use core::fmt;

use layout::layout;

use super::mad::{Mad, body, narrow, put};

/// Length of the additional rejection information in bytes.
pub const ADDITIONAL_BYTES: usize = 72;
/// Private data bytes of a REJ.
pub const PRIVATE_DATA_BYTES: usize = 148;

layout! {
    /// A REJ after the MAD header.
    pub struct RejLayout(0xe8) {
        local_comm_id: 0x00 u32,
        remote_comm_id: 0x04 u32,
        message_rejected: 0x08 (Rejected[31:30]),
        reject_info_length: 0x08[23:17],
        reason: 0x0a u16,
        /// Additional rejection information.
        additional: 0x0c [u8; 72],
        private_data: 0x54 [u8; 148],
    }
}

/// The message that a REJ refuses, or an MRA acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// In a REJ: no message in particular. In an MRA: a LAP.
    Other,
    /// The fourth value, which is not defined.
    Reserved,
}

impl Rejected {
    /// Converts the two-bit field.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 0x3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    /// Returns the two-bit field.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
            Self::Reserved => 3,
        }
    }
}

/// Reason for refusing a connection. The reasons that this connection manager counts separately have variants of their
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// 1: no queue pair available.
    NoQp,
    /// 3: no resources available (buffers, connections, event queue entries).
    NoResources,
    /// 4: the sender stopped waiting.
    Timeout,
    /// 5: the request asks for something unknown.
    Unsupported,
    /// 6: a communication ID names no connection.
    InvalidCommId,
    /// 8: no listener at the service ID.
    InvalidServiceId,
    /// 9: the transport service type is not offered.
    InvalidTransportType,
    /// 10: the sender still has a connection with the queue pair.
    StaleConnection,
    /// 12: the GID at which the path begins is not valid.
    InvalidGid,
    /// 26: the path MTU is not valid.
    InvalidMtu,
    /// 27: not enough responder resources.
    InsufficientResponderResources,
    /// 28: the consumer refused.
    Consumer,
    /// Any other reason.
    Other(u16),
}

impl RejectReason {
    /// Converts the number on the wire.
    #[must_use]
    pub const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::NoQp,
            3 => Self::NoResources,
            4 => Self::Timeout,
            5 => Self::Unsupported,
            6 => Self::InvalidCommId,
            8 => Self::InvalidServiceId,
            9 => Self::InvalidTransportType,
            10 => Self::StaleConnection,
            12 => Self::InvalidGid,
            26 => Self::InvalidMtu,
            27 => Self::InsufficientResponderResources,
            28 => Self::Consumer,
            other => Self::Other(other),
        }
    }

    /// Returns the number on the wire.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::NoQp => 1,
            Self::NoResources => 3,
            Self::Timeout => 4,
            Self::Unsupported => 5,
            Self::InvalidCommId => 6,
            Self::InvalidServiceId => 8,
            Self::InvalidTransportType => 9,
            Self::StaleConnection => 10,
            Self::InvalidGid => 12,
            Self::InvalidMtu => 26,
            Self::InsufficientResponderResources => 27,
            Self::Consumer => 28,
            Self::Other(code) => code,
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoQp => "there is no queue pair left: raise the limit there, or close connections",
            Self::NoResources => "connections, buffers or room for requests are used up there: the backlog is full, or its program is slow",
            Self::Timeout => "the other side stopped waiting for an answer: its program, or ours, decides too slowly",
            Self::Unsupported => "the request asks for something that is not known there",
            Self::InvalidCommId => "the other side knows no such connection any more: it has restarted, or given up",
            Self::InvalidServiceId => "nothing listens there: is the program running, and is the port or the service ID right?",
            Self::InvalidTransportType => "another transport than reliable connection was asked for, or is offered",
            Self::StaleConnection => "an old connection of the same queue pair was still there; it ends now, and the request is repeated by itself",
            Self::InvalidGid => "the address the request names as its source is not one that it came from, or not reachable",
            Self::InvalidMtu => "the path MTU asked for is larger than the port's there: check the MTU of both sides",
            Self::InsufficientResponderResources => "more RDMA Reads at a time were asked for than are offered there",
            Self::Consumer => "the program there refused; its private data may say why",
            Self::Other(_) => "a reason that this library gives no name (IBTA volume 1, \"Rejection Reason\")",
        })
    }
}

/// A refusal of a message or of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejRepr {
    /// The sender's communication ID; 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's communication ID; 0 if the sender never learned it.
    pub remote_comm_id: u32,
    /// The refused message.
    pub rejected: Rejected,
    /// Number of valid bytes in `additional` (7 bits; a hostile peer may send more than the array holds).
    pub additional_bytes: u8,
    /// Reason of the refusal.
    pub reason: RejectReason,
    /// Additional information, depending on the reason. For a timeout it is the GUID of the sender's adapter.
    pub additional: [u8; ADDITIONAL_BYTES],
    /// The consumer's private data.
    pub private_data: [u8; PRIVATE_DATA_BYTES],
}

impl RejRepr {
    /// Makes a refusal without additional information or private data.
    #[must_use]
    pub const fn new(
        local_comm_id: u32,
        remote_comm_id: u32,
        rejected: Rejected,
        reason: RejectReason,
    ) -> Self {
        Self {
            local_comm_id,
            remote_comm_id,
            rejected,
            additional_bytes: 0,
            reason,
            additional: [0; ADDITIONAL_BYTES],
            private_data: [0; PRIVATE_DATA_BYTES],
        }
    }

    /// Adds the GUID of the sender's adapter. The receiver needs it to match a timeout, because the sender may not have
    /// learned the receiver's communication ID.
    #[must_use]
    pub fn with_ca_guid(mut self, ca_guid: u64) -> Self {
        self.additional[..8].copy_from_slice(&ca_guid.to_be_bytes());
        self.additional_bytes = 8;
        self
    }

    /// Returns the GUID of the sender's adapter, if the additional information has at least the 8 bytes of a GUID.
    #[must_use]
    pub fn ca_guid(&self) -> Option<u64> {
        let bytes = self.additional.first_chunk()?;
        (self.additional_bytes >= 8).then(|| u64::from_be_bytes(*bytes))
    }

    /// Parses the message after the MAD header.
    #[must_use]
    pub fn parse(mad: &Mad) -> Self {
        let layout: &RejLayout = body(mad);
        Self {
            local_comm_id: layout.local_comm_id(),
            remote_comm_id: layout.remote_comm_id(),
            rejected: layout.message_rejected(),
            additional_bytes: narrow(layout.reject_info_length()),
            reason: RejectReason::from_code(layout.reason()),
            additional: *layout.additional(),
            private_data: *layout.private_data(),
        }
    }

    /// Writes the message after the MAD header.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, mad: &mut Mad) {
        let mut layout = RejLayout::new();
        layout
            .set_local_comm_id(self.local_comm_id)
            .set_remote_comm_id(self.remote_comm_id)
            .set_message_rejected(self.rejected)
            .set_reject_info_length(self.additional_bytes.into())
            .set_reason(self.reason.code())
            .set_additional(&self.additional)
            .set_private_data(&self.private_data);
        put(mad, layout.as_array());
    }
}
