//! Private data of connections (RDMA transport, 3.1 and 3.5).

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Private data of a request to connect: 32 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestData {
    /// Record format, 0.
    pub format: U16,
    /// QID: identifier of the queue; 0 is the admin queue.
    pub queue: U16,
    /// HRQSIZE: number of receives that the host posts.
    pub host_receives: U16,
    /// HSQSIZE: number of commands that the host sends at once, less one.
    pub host_sends: U16,
    /// CNTLID: controller of an I/O queue; 0 if the host does not name the controller.
    pub controller: U16,
    rsvd_0a: [u8; 22],
}

static_assertions::const_assert_eq!(size_of::<RequestData>(), 32);

/// Private data of the reply: 32 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AcceptData {
    /// Record format, 0.
    pub format: U16,
    /// CRQSIZE: number of receives that the controller posts.
    pub controller_receives: U16,
    rsvd_04: [u8; 28],
}

static_assertions::const_assert_eq!(size_of::<AcceptData>(), 32);

/// Private data of a rejection: 4 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RejectData {
    /// Record format, 0.
    pub format: U16,
    /// Reason: a [`Reject`], as a number.
    pub status: U16,
}

/// Reason of a rejection (RDMA transport, figure 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reject {
    /// The length of the private data is invalid.
    Length = 1,
    /// The record format is not 0.
    Format = 2,
    /// The queue identifier is invalid.
    Queue = 3,
    /// HSQSIZE is out of range.
    HostSends = 4,
    /// HRQSIZE is 0.
    HostReceives = 5,
    /// The target has no resources for another queue.
    Resources = 6,
    /// The host does not accept RDMA Reads.
    Reads = 7,
}

impl Reject {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Length,
        Self::Format,
        Self::Queue,
        Self::HostSends,
        Self::HostReceives,
        Self::Resources,
        Self::Reads,
    ];

    /// Returns the reason in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Length => "private data of another length than 32 bytes",
            Self::Format => "a record format other than 0",
            Self::Queue => "a queue number beyond those that are offered",
            Self::HostSends => "a queue size that is not offered (HSQSIZE)",
            Self::HostReceives => "no receives (HRQSIZE)",
            Self::Resources => "no room for one more queue",
            Self::Reads => "a host that takes no RDMA Reads",
        }
    }

    /// Returns the private data of the rejection.
    #[must_use]
    pub fn data(self) -> RejectData {
        RejectData {
            format: 0.into(),
            status: (self as u16).into(),
        }
    }
}

impl RequestData {
    /// Reads a request's private data. The data may be longer than 32 bytes: the connection manager pads it with zeros.
    ///
    /// # Errors
    /// The reason to reject the connection.
    pub fn parse(bytes: &[u8]) -> Result<Self, Reject> {
        let (data, _) = Self::read_from_prefix(bytes).map_err(|_| Reject::Length)?;
        if data.format.get() != 0 {
            return Err(Reject::Format);
        }
        if data.host_receives.get() == 0 {
            return Err(Reject::HostReceives);
        }
        Ok(data)
    }

    /// Returns the private data of a request, as a host sends it.
    #[must_use]
    pub fn new(queue: u16, entries: u16, controller: u16) -> Self {
        Self {
            format: 0.into(),
            queue: queue.into(),
            host_receives: entries.into(),
            host_sends: entries.saturating_sub(1).into(),
            controller: controller.into(),
            rsvd_0a: [0; 22],
        }
    }
}

impl AcceptData {
    /// Returns the private data of a reply with this many receives.
    #[must_use]
    pub fn new(controller_receives: u16) -> Self {
        Self {
            format: 0.into(),
            controller_receives: controller_receives.into(),
            rsvd_04: [0; 28],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Private data of a request may be longer than 32 bytes, and not shorter. The bytes are those that Linux sends for
    /// its admin queue: 32 receives, and 31 as the size of the queue.
    #[test]
    fn a_request_may_be_longer_and_not_shorter() {
        let mut bytes = [0; 56];
        bytes[..8].copy_from_slice(&[0, 0, 0, 0, 32, 0, 31, 0]);
        let data = RequestData::parse(&bytes).expect("as Linux sends it");
        assert_eq!((data.host_receives.get(), data.host_sends.get()), (32, 31));
        assert_eq!(RequestData::parse(&bytes[..31]).err(), Some(Reject::Length));
        bytes[4] = 0;
        assert_eq!(RequestData::parse(&bytes).err(), Some(Reject::HostReceives));
        bytes[0] = 1;
        assert_eq!(RequestData::parse(&bytes).err(), Some(Reject::Format));
    }
}
