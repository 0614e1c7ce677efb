//! Completions of requests and receives.

/// Data of a completion besides its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Detail {
    /// No further data.
    None,
    /// The request failed in the device, with this syndrome and vendor syndrome.
    Failed(u8, u8),
    /// Of a receive: the peer's Send has this immediate data.
    SendImmediate(u32),
    /// Of a receive: the peer's RDMA Write has this immediate data. The bytes are at the address that the peer named,
    /// not in the receive's buffer. The length transferred is that of the Write.
    WriteImmediate(u32),
    /// Of a receive: the peer's Send has invalidated this remote key.
    Invalidated(u32),
}

impl Detail {
    /// Makes a detail from a syndrome and a vendor syndrome; `Detail::None` if both are zero.
    #[inline]
    #[must_use]
    pub const fn of_syndrome(syndrome: (u8, u8)) -> Self {
        match syndrome {
            (0, 0) => Self::None,
            (syndrome, vendor) => Self::Failed(syndrome, vendor),
        }
    }

    /// Returns the syndrome and the vendor syndrome; both are zero unless the request failed in the device.
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

    /// Returns true for a receive that contains no message, because the peer's RDMA Write with immediate data has
    /// consumed it.
    #[inline]
    #[must_use]
    pub const fn is_write_immediate(self) -> bool {
        match self {
            Self::WriteImmediate(_) => true,
            Self::None | Self::Failed(..) | Self::SendImmediate(_) | Self::Invalidated(_) => false,
        }
    }

    /// Returns the immediate data of the peer's Send or RDMA Write, if any.
    #[inline]
    #[must_use]
    pub const fn immediate(self) -> Option<u32> {
        match self {
            Self::SendImmediate(data) | Self::WriteImmediate(data) => Some(data),
            Self::None | Self::Failed(..) | Self::Invalidated(_) => None,
        }
    }

    /// Returns the remote key that the peer has invalidated, if any.
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

/// Short form of a successful completion that is reported to the caller. Most completions have this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Cookie that the caller passed to the post.
    pub cookie: u64,
    /// Number of bytes transferred.
    pub bytes: u32,
    /// True for a request of the send queue; false for a receive.
    pub request: bool,
}

/// Counters of a queue pair since its creation. They never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QueuePairCounts {
    /// Number of work requests posted to the send queue: DTOs, binds, and requests that the connection itself needs.
    pub requests: u64,
    /// Number of bytes of these requests, including those that RDMA Reads request from the peer.
    pub request_bytes: u64,
    /// Number of receives posted to the queue pair's own receive queue.
    pub recvs: u64,
    /// Number of bytes that arrived in these receives.
    pub received_bytes: u64,
}
