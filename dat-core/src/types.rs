//! Scalar types and flags of DAT 1.2 (`dat.h`).

bitflags::bitflags! {
    /// Memory privileges of an LMR or RMR (`DAT_MEM_PRIV_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MemPrivFlags: u32 {
        /// Local DTOs may read the memory.
        const LOCAL_READ = 0x01;
        /// Peers may RDMA-read it.
        const REMOTE_READ = 0x02;
        /// Local DTOs may write it.
        const LOCAL_WRITE = 0x10;
        /// Peers may RDMA-write it.
        const REMOTE_WRITE = 0x20;
    }
}

/// How a DTO ended (`DAT_DTO_COMPLETION_STATUS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DtoStatus {
    /// Done.
    Success = 0,
    /// Not attempted, or cut off, because the connection ended.
    ErrFlushed = 1,
    /// The incoming message is longer than the receive buffer.
    ErrLocalLength = 2,
    /// The endpoint's queue is inconsistent.
    ErrLocalEp = 3,
    /// A local memory region refused the access.
    ErrLocalProtection = 4,
    /// The peer's answer made no sense.
    ErrBadResponse = 5,
    /// The peer's memory refused the access.
    ErrRemoteAccess = 6,
    /// The peer could not carry the request out.
    ErrRemoteResponder = 7,
    /// The peer did not answer.
    ErrTransport = 8,
    /// The peer had no receive buffer.
    ErrReceiverNotReady = 9,
    /// A truncated packet.
    ErrPartialPacket = 10,
    /// A memory window bind failed after it was posted.
    RmrOperationFailed = 11,
}
