//! Requests that are posted to a queue.

use alloc::vec::Vec;

use crate::access::Access;

/// A checked, non-empty range of local memory: the content of a data segment of a work queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Local key of the memory region.
    pub lmr_context: u32,
    /// Virtual address of the first byte.
    pub address: u64,
    /// Length in bytes, never zero, at most 2^31 - 1.
    pub bytes: u32,
}

/// Operation of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOp {
    /// Send: consumes a receive buffer of the peer.
    Send,
    /// RDMA Write to `address` under the peer's `rmr_context`.
    RdmaWrite {
        /// Address of the first byte at the peer.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
    },
    /// RDMA Read of as many bytes as the local segments have.
    RdmaRead {
        /// Address of the first byte at the peer.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
    },
    /// Send with immediate data.
    SendImmediate(u32),
    /// Send that invalidates a remote key of the peer.
    SendInvalidate {
        /// The peer's remote key.
        rmr_context: u32,
    },
    /// RDMA Write with immediate data. It consumes a receive of the peer, but no bytes go to the receive's buffer.
    RdmaWriteImmediate {
        /// Address of the first byte at the peer.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// The immediate data.
        immediate: u32,
    },
    /// Adds to the 8-byte number at the peer, which is in the byte order of the peer's host. The previous value goes to
    /// the only local segment, of 8 bytes, in the byte order of our host.
    FetchAdd {
        /// Address of the number at the peer, a multiple of 8.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// Number to add, modulo 2^64.
        add: u64,
    },
    /// Replaces the 8 bytes at the peer if they equal `compare`. The previous value is returned as for `FetchAdd`.
    CompareSwap {
        /// Address of the 8 bytes at the peer, a multiple of 8.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
}

/// Flags of a posted request: its execution and the report of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFlags {
    /// Set: the queue does not report a successful completion. The queue still requests completions from the device,
    /// often enough to reclaim its entries, and hides them from the caller.
    pub suppress: bool,
    /// Set: the request carries the solicited event bit for the peer.
    pub solicited: bool,
    /// Set: the request waits for earlier RDMA Reads and atomic operations of the queue.
    pub fence: bool,
    /// Flag that the queue returns with the completion and does not use itself.
    pub unsignalled: bool,
}

impl RequestFlags {
    /// No flag set: the queue reports the completion.
    pub const NONE: Self = Self {
        suppress: false,
        solicited: false,
        fence: false,
        unsignalled: false,
    };
}

/// Target of a memory window: a range of a region, and the rights of peers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTarget {
    /// Local key of the region.
    pub lmr_context: u32,
    /// Virtual address of the first byte.
    pub address: u64,
    /// Length in bytes, at most the device's limit for a window; 0 unbinds the window.
    pub bytes: u64,
    /// Rights of peers. Only the remote rights and the right to invalidate have an effect.
    pub access: Access,
}

/// A posted receive that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedRecv {
    /// Buffers for the message, in order.
    pub segments: Vec<DataSegment>,
    /// Cookie that the caller passed to the post.
    pub cookie: u64,
    /// [`RequestFlags::unsignalled`] that the caller passed to the post.
    pub unsignalled: bool,
}

/// Reason why an inline post was refused. The queue has not written anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineError {
    /// The queue is full.
    Full,
    /// The data does not fit in an entry of this queue.
    TooLong {
        /// Number of bytes in the request.
        bytes: usize,
        /// Largest number of bytes that fit.
        limit: usize,
    },
}

impl core::fmt::Display for InlineError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Full => f.write_str("max_requests are outstanding"),
            Self::TooLong { bytes, limit } => {
                write!(f, "{bytes} bytes do not fit inline, {limit} do")
            }
        }
    }
}

impl core::error::Error for InlineError {}

/// The queue has no free entry. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// Sizes of the queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// Number of requests that may be outstanding; 0 for no send queue.
    pub max_requests: u32,
    /// Number of receives that may be outstanding; 0 for no receive queue, or if the queue pair uses an SRQ.
    pub max_recvs: u32,
    /// Largest number of data segments in a Send or RDMA Write.
    pub max_request_segments: u32,
    /// Largest number of data segments in an RDMA Read.
    pub max_read_segments: u32,
    /// Largest number of data segments in a receive.
    pub max_recv_segments: u32,
    /// True if requests may be binds of memory windows, which need more space in the send queue.
    pub binds: bool,
}
