//! Completions: the response capsule (Base specification, "Common Completion Queue Entry").

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Status;

/// A completion queue entry: 16 bytes, which are a whole response capsule.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe {
    /// Dwords 0 and 1: the result of the command.
    pub result: U64,
    /// Head of the submission queue.
    pub sq_head: U16,
    /// Identifier of the submission queue.
    pub sqid: U16,
    /// Identifier of the command.
    pub cid: U16,
    /// Status Field, as [`Status::field`] returns it.
    pub status: U16,
}

/// Size of a completion in bytes.
pub const BYTES: u32 = 16;

static_assertions::const_assert_eq!(size_of::<Cqe>(), BYTES as usize);

impl Cqe {
    /// Returns the status of the command.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::of_field(self.status.get())
    }
}
