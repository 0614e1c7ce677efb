//! What a queue says of a request that is done.

/// What a completion tells besides its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    None,
    /// The device says that it failed, with this syndrome and vendor syndrome.
    Failed(u8, u8),
    /// A receive: the peer's Send came with immediate data.
    SendImmediate(u32),
    /// A receive: the peer's RDMA Write came with immediate data. The bytes are where the peer said, none are in the
    /// receive's buffer, and the length transferred is the Write's.
    WriteImmediate(u32),
    /// A receive: the peer's Send has invalidated this remote key.
    Invalidated(u32),
}

impl Detail {
    /// Of a syndrome and a vendor syndrome; zeros are none.
    #[inline]
    #[must_use]
    pub const fn of_syndrome(syndrome: (u8, u8)) -> Self {
        match syndrome {
            (0, 0) => Self::None,
            (syndrome, vendor) => Self::Failed(syndrome, vendor),
        }
    }

    /// Syndrome and vendor syndrome, or zeros.
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

    /// A receive that holds no message: the peer's RDMA Write with immediate data has used it up.
    #[inline]
    #[must_use]
    pub const fn is_write_immediate(self) -> bool {
        match self {
            Self::WriteImmediate(_) => true,
            Self::None | Self::Failed(..) | Self::SendImmediate(_) | Self::Invalidated(_) => false,
        }
    }

    /// Immediate data, the peer's of a Send or of an RDMA Write.
    #[inline]
    #[must_use]
    pub const fn immediate(self) -> Option<u32> {
        match self {
            Self::SendImmediate(data) | Self::WriteImmediate(data) => Some(data),
            Self::None | Self::Failed(..) | Self::Invalidated(_) => None,
        }
    }

    /// The remote key that the peer has invalidated.
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

/// A completion that is a success to be reported, in short: what most completions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// The cookie given at the post, unchanged.
    pub cookie: u64,
    /// Bytes transferred.
    pub bytes: u32,
    /// True for Send, RDMA Read and RDMA Write; false for receives.
    pub request: bool,
}

/// What a queue pair has counted since it was made: numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCounts {
    /// Work requests posted to the send queue: DTOs, binds, and what the connection needs itself.
    pub requests: u64,
    /// Bytes of them, those that RDMA Reads asked for among them.
    pub request_bytes: u64,
    /// Receives posted to its own receive queue.
    pub recvs: u64,
    /// Bytes that arrived in them.
    pub received_bytes: u64,
}
