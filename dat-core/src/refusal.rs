//! Reasons for refusing a post, in one byte.
//!
//! The checks of a post return a `Refusal`, which fits into a register, so that the checks are cheap on the fast path.
//! The call converts it to a [`DatError`] before it returns, off the fast path.

use crate::error::{DatError, ReturnType, Subtype};

/// Reason why a post is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// The IA has no such endpoint.
    NoEp,
    /// The IA has no such SRQ.
    NoSrq,
    /// The endpoint is neither connected nor disconnected.
    State,
    /// A receive was posted to an endpoint that uses an SRQ.
    UsesSrq,
    /// The endpoint has no PZ, and therefore no queue pair.
    NotReady,
    /// The post has more segments than the endpoint allows.
    Segments,
    /// The post has more segments than the SRQ allows.
    SrqSegments,
    /// The flags of `ep_post_send` or `ep_post_recv` are not allowed (argument 5).
    Flags,
    /// The flags of an RDMA post are not allowed (argument 6, because these calls have one argument more).
    RdmaFlags,
    /// The flags of `ep_post_send_inline` are not allowed (argument 4).
    InlineFlags,
    /// The inline data is longer than a queue entry can hold.
    LongInline,
    /// No LMR has this context.
    Unknown,
    /// A segment reaches outside its LMR.
    Range,
    /// The LMR is in another protection zone.
    Pz,
    /// The LMR lacks the right of local read.
    NoRead,
    /// The LMR lacks the right of local write.
    NoWrite,
    /// A segment is too long for a work queue entry.
    LongSegment,
    /// The message is longer than `max_message_size`.
    LongMessage,
    /// The transfer is longer than `max_rdma_size`.
    LongTransfer,
    /// The destination is shorter than the source.
    Length,
    /// The endpoint's `max_rdma_read_out` is 0.
    NoReads,
    /// The device has no atomic operations.
    NoAtomics,
    /// The local or the remote buffer of an atomic operation has the wrong length: the result has 8 bytes.
    AtomicResult,
    /// The remote address of an atomic operation is not a multiple of 8.
    AtomicAddress,
    /// The endpoint's queue is full.
    Full,
    /// The SRQ is full.
    SrqFull,
}

impl Refusal {
    /// Returns the DAT error of the refusal. For [`Refusal::State`] the error lacks the state; the caller adds it.
    #[cold]
    #[inline(never)]
    pub(crate) const fn error(self) -> DatError {
        let new = DatError::new;
        match self {
            Self::NoEp => {
                DatError::handle(Subtype::HandleEp).because("no such endpoint in this IA")
            }
            Self::NoSrq => DatError::handle(Subtype::HandleSrq).because("no such SRQ in this IA"),
            Self::State => DatError::state(Subtype::None),
            Self::UsesSrq => DatError::state(Subtype::StateSrqInUse)
                .because("the endpoint takes its buffers from an SRQ"),
            Self::NotReady => {
                DatError::state(Subtype::StateEpNotReady).because("the endpoint has no PZ: ep_modify gives it one")
            }
            Self::Segments => DatError::parameter(Subtype::Arg2, "iov")
                .because("more segments than the endpoint allows (max_request_iov, max_recv_iov, max_rdma_write_iov, max_rdma_read_iov)"),
            Self::SrqSegments => DatError::parameter(Subtype::Arg2, "iov")
                .because("more segments than max_recv_iov of the SRQ"),
            Self::Flags => DatError::parameter(Subtype::Arg5, "flags").because(FLAGS),
            Self::RdmaFlags => DatError::parameter(Subtype::Arg6, "flags").because(FLAGS),
            Self::InlineFlags => DatError::parameter(Subtype::Arg4, "flags").because(FLAGS),
            Self::LongInline => DatError::parameter(Subtype::Arg2, "data")
                .because("more bytes than ep_inline_limit allows"),
            Self::Unknown => new(ReturnType::PrivilegesViolation, Subtype::None)
                .because("no LMR has this lmr_context"),
            Self::Range => DatError::parameter(Subtype::Arg3, "iov")
                .because("a segment reaches outside its LMR"),
            Self::Pz => new(ReturnType::ProtectionViolation, Subtype::None)
                .because("the LMR is in another protection zone"),
            Self::NoRead => new(ReturnType::PrivilegesViolation, Subtype::PrivilegesRead)
                .because("the LMR lacks DAT_MEM_PRIV_LOCAL_READ"),
            Self::NoWrite => new(ReturnType::PrivilegesViolation, Subtype::PrivilegesWrite)
                .because("the LMR lacks DAT_MEM_PRIV_LOCAL_WRITE"),
            Self::LongSegment => DatError::parameter(Subtype::Arg3, "iov")
                .because("a segment is longer than 2^31 - 1 bytes"),
            Self::LongMessage => DatError::parameter(Subtype::None, "iov")
                .because("the message is longer than the endpoint's max_message_size"),
            Self::LongTransfer => DatError::parameter(Subtype::None, "iov")
                .because("the transfer is longer than the endpoint's max_rdma_size"),
            Self::Length => new(ReturnType::LengthError, Subtype::None)
                .because("the destination is shorter than the source"),
            Self::NoReads => DatError::resources(Subtype::ResourceTep)
                .because("the endpoint's max_rdma_read_out is 0: ep_create or ep_modify sets it"),
            Self::NoAtomics => {
                DatError::unsupported().because("the device has no atomic operations of 8 bytes")
            }
            Self::AtomicResult => new(ReturnType::LengthError, Subtype::None)
                .because("the result of an atomic operation goes into 8 bytes, and the remote buffer has as many"),
            Self::AtomicAddress => DatError::parameter(Subtype::Arg5, "remote")
                .because("the remote address of an atomic operation is no multiple of 8"),
            Self::Full => DatError::resources(Subtype::ResourceTep)
                .because("as many DTOs are outstanding as the endpoint's max_request_dtos or max_recv_dtos allows: dequeue completions first"),
            Self::SrqFull => DatError::resources(Subtype::ResourceSrq)
                .because("max_recv_dtos buffers of the SRQ are outstanding: dequeue completions first, or srq_resize"),
        }
    }
}

const FLAGS: &str =
    "completion_flags: unknown, not for this call, or UNSIGNALLED without the endpoint's attribute";
