//! Completions: the response capsule (Base specification, "Common Completion Queue Entry").

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Status;

/// A completion: 16 bytes, all of a response capsule.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cqe {
    /// Dwords 0 and 1: what the command gives back.
    pub result: U64,
    /// How far the submission queue is taken in.
    pub sq_head: U16,
    /// The queue.
    pub sqid: U16,
    /// The command's name.
    pub cid: U16,
    /// [`Status::field`].
    pub status: U16,
}

/// Bytes of a completion.
pub const BYTES: u32 = 16;

static_assertions::const_assert_eq!(size_of::<Cqe>(), BYTES as usize);

impl Cqe {
    /// How the command went.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::of_field(self.status.get())
    }
}
