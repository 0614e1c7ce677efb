//! Requests that are posted to a queue.

use alloc::vec::Vec;

use crate::access::Access;

/// One checked, non-empty piece of local memory: the content of a data segment of a work queue entry.
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
        /// First byte at the peer.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
    },
    /// RDMA Read of as many bytes as the local segments hold.
    RdmaRead {
        /// First byte at the peer.
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
    /// RDMA Write with immediate data: consumes a receive of the peer, which gets no bytes.
    RdmaWriteImmediate {
        /// First byte at the peer.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// The data.
        immediate: u32,
    },
    /// Adds to the 8 bytes at the peer, a number in its host's byte order. The previous value goes into the one local
    /// segment, of 8 bytes, in our host's byte order.
    FetchAdd {
        /// First byte at the peer, a multiple of 8.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// Number to add, modulo 2^64.
        add: u64,
    },
    /// Replaces the 8 bytes at the peer if they equal `compare`. The previous value is returned as for fetch-and-add.
    CompareSwap {
        /// First byte at the peer, a multiple of 8.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
}

/// How a request is executed and reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFlags {
    /// A successful completion is not reported. The queue still asks the device for completions of its own, often
    /// enough to reclaim its entries, and hides them.
    pub suppress: bool,
    /// The matching receive at the peer is a solicited one.
    pub solicited: bool,
    /// The request waits for earlier RDMA Reads of the queue.
    pub fence: bool,
    /// Returned with the completion; the queue does not use it.
    pub unsignalled: bool,
}

impl RequestFlags {
    /// No flag: the completion is reported.
    pub const NONE: Self = Self {
        suppress: false,
        solicited: false,
        fence: false,
        unsignalled: false,
    };
}

/// Target of a memory window: a range of a region, and the peers' rights in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTarget {
    /// Local key of the region.
    pub lmr_context: u32,
    /// Virtual address of the first byte.
    pub address: u64,
    /// Length in bytes, at most the device's limit for a window; 0 unbinds the window.
    pub bytes: u64,
    /// Rights of peers. Only the remote rights and the right to invalidate count.
    pub access: Access,
}

/// A receive that is posted and not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedRecv {
    /// Buffers for the message.
    pub segments: Vec<DataSegment>,
    /// The cookie given at the post.
    pub cookie: u64,
    /// [`RequestFlags::unsignalled`], as given at the post.
    pub unsignalled: bool,
}

/// Why an inline post was refused; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineError {
    /// No room.
    Full,
    /// The data does not fit an entry of this queue.
    TooLong {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that fit.
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

/// The queue has no room for another entry; nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// Size of the queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// Requests that may be outstanding; 0 for none.
    pub max_requests: u32,
    /// Receives that may be outstanding; 0 for none or when an SRQ is used.
    pub max_recvs: u32,
    /// Data segments per Send or RDMA Write.
    pub max_request_segments: u32,
    /// Data segments per RDMA Read.
    pub max_read_segments: u32,
    /// Data segments per receive.
    pub max_recv_segments: u32,
    /// Requests may be binds of memory windows, which take more room.
    pub binds: bool,
}
