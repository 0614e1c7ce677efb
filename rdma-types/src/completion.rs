//! Completions of requests and receives.

/// Data of a completion besides its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    None,
    /// The request failed in the device, with this syndrome and vendor syndrome.
    Failed(u8, u8),
    /// A receive: the peer's Send came with immediate data.
    SendImmediate(u32),
    /// A receive: the peer's RDMA Write came with immediate data. The bytes are at the address that the peer named,
    /// none are in the receive's buffer, and the length transferred is the Write's.
    WriteImmediate(u32),
    /// A receive: the peer's Send has invalidated this remote key.
    Invalidated(u32),
}

impl Detail {
    /// Makes a detail from a syndrome and a vendor syndrome; zeros give `None`.
    #[inline]
    #[must_use]
    pub const fn of_syndrome(syndrome: (u8, u8)) -> Self {
        match syndrome {
            (0, 0) => Self::None,
            (syndrome, vendor) => Self::Failed(syndrome, vendor),
        }
    }

    /// Returns syndrome and vendor syndrome, or zeros.
    #[inline]
    #[must_use]
    pub const fn syndrome(self) -> (u8, u8) {
        match self {
            Self::Failed(syndrome, vendor) => (syndrome, vendor),
            Self::None
            | Self::SendImmediate(_)
            | Self::WriteImmediate(_)
            | Self::Invalidated(_) => (0, 0),
        }
    }

    /// Returns true for a receive that holds no message because the peer's RDMA Write with immediate data has
    /// consumed it.
    #[inline]
    #[must_use]
    pub const fn is_write_immediate(self) -> bool {
        match self {
            Self::WriteImmediate(_) => true,
            Self::None | Self::Failed(..) | Self::SendImmediate(_) | Self::Invalidated(_) => false,
        }
    }

    /// Returns the immediate data of the peer's Send or RDMA Write.
    #[inline]
    #[must_use]
    pub const fn immediate(self) -> Option<u32> {
        match self {
            Self::SendImmediate(data) | Self::WriteImmediate(data) => Some(data),
            Self::None | Self::Failed(..) | Self::Invalidated(_) => None,
        }
    }

    /// Returns the remote key that the peer has invalidated.
    #[inline]
    #[must_use]
    pub const fn invalidated(self) -> Option<u32> {
        match self {
            Self::Invalidated(remote_key) => Some(remote_key),
            Self::None | Self::Failed(..) | Self::SendImmediate(_) | Self::WriteImmediate(_) => {
                None
            }
        }
    }
}

/// Short form of a successful completion that is reported, which most completions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// The cookie given at the post, unchanged.
    pub cookie: u64,
    /// Bytes transferred.
    pub bytes: u32,
    /// True for Send, RDMA Read and RDMA Write; false for receives.
    pub request: bool,
}

/// Counters of a queue pair since its creation. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCounts {
    /// Work requests posted to the send queue: DTOs, binds, and requests that the connection itself needs.
    pub requests: u64,
    /// Bytes of these requests, including those that RDMA Reads asked for.
    pub request_bytes: u64,
    /// Receives posted to its own receive queue.
    pub recvs: u64,
    /// Bytes that arrived in them.
    pub received_bytes: u64,
}
