//! What is posted to a queue.

use alloc::vec::Vec;

use crate::access::Access;

/// One checked, non-empty piece of local memory: what a data segment of a work queue entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Local key of the memory region.
    pub lmr_context: u32,
    /// Virtual address of the first byte.
    pub address: u64,
    /// Length in bytes, never zero, at most 2^31 - 1.
    pub bytes: u32,
}

/// What a posted request does.
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
    /// Send that takes a remote key of the peer's from what it stands for.
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
    /// Adds to the 8 bytes at the peer, a number in its host's order; what they were before goes into the one local
    /// segment, of 8 bytes, in our host's order.
    FetchAdd {
        /// First byte at the peer, a multiple of 8.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// What to add, modulo 2^64.
        add: u64,
    },
    /// Replaces the 8 bytes at the peer if they are as expected; what they were before goes likewise.
    CompareSwap {
        /// First byte at the peer, a multiple of 8.
        address: u64,
        /// The peer's remote key.
        rmr_context: u32,
        /// What is expected.
        compare: u64,
        /// What replaces it.
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
    /// Handed back with the completion; means nothing to the queue.
    pub unsignalled: bool,
}

impl RequestFlags {
    /// Reported, and nothing else.
    pub const NONE: Self = Self {
        suppress: false,
        solicited: false,
        fence: false,
        unsignalled: false,
    };
}

/// What a memory window gives its peers: a range of a region, and rights in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTarget {
    /// Local key of the region.
    pub lmr_context: u32,
    /// Virtual address of the first byte.
    pub address: u64,
    /// Length in bytes, at most as many as a window of the device can have; 0 takes the window from whatever it was
    /// bound to.
    pub bytes: u64,
    /// What peers may do. Only the remote rights count, and whether peers may invalidate it.
    pub access: Access,
}

/// A receive that is posted and not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedRecv {
    /// Where the message goes.
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
