//! The local memory region, and the part of its data that a post checks.

pub mod segment;
pub(crate) mod slice;
pub(crate) mod table;

use crate::handle::{LmrHandle, PzKey, index_of};
use crate::provider::{Provider, Registration};
use crate::types::MemPrivFlags;
use slice::NOWHERE;

pub(crate) struct Lmr<P: Provider> {
    pub(crate) region: P::Region,
    pub(crate) pz: PzKey,
    /// Privileges that the consumer requested.
    pub(crate) privileges: MemPrivFlags,
    /// Privileges that the checks of posts apply.
    pub(crate) effective: MemPrivFlags,
    pub(crate) created: Registered,
    pub(crate) kind: MemType,
    /// Memory of the region, from which other regions can be created.
    pub(crate) memory: P::Memory,
    /// Number of RMRs that are bound to this LMR according to the posted binds.
    bound: u32,
    /// Number of device windows that use this LMR, plus the number of outstanding binds to it.
    held: u32,
}

impl<P: Provider> Lmr<P> {
    pub(crate) fn new(
        registered: (P::Region, P::Memory, Registered),
        pz: PzKey,
        (privileges, effective): (MemPrivFlags, MemPrivFlags),
        kind: MemType,
    ) -> Self {
        let (region, memory, created) = registered;
        Self {
            region,
            pz,
            privileges,
            effective,
            created,
            kind,
            memory,
            bound: 0,
            held: 0,
        }
    }

    /// Returns what a snapshot has of the LMR: region, memory, PZ, privileges, kind. The rest follows from these and
    /// from the RMRs.
    pub(crate) fn into_parts(self) -> (P::Region, P::Memory, PzKey, MemPrivFlags, MemType) {
        let Self {
            region,
            pz,
            privileges,
            effective: _,
            created: _,
            kind,
            memory,
            bound: _,
            held: _,
        } = self;
        (region, memory, pz, privileges, kind)
    }

    /// Sets the counts of uses of an LMR that was parked: RMRs that are bound to it, and windows and outstanding binds
    /// that use it.
    pub(crate) const fn resume_uses(&mut self, bound: u32, held: u32) {
        self.bound = bound;
        self.held = held;
    }

    /// Returns whether an RMR is bound to this LMR according to the posted binds.
    pub(crate) const fn is_bound(&self) -> bool {
        self.bound != 0
    }

    /// Returns whether a device window uses this LMR, or an outstanding bind to it exists.
    pub(crate) const fn is_held(&self) -> bool {
        self.held != 0
    }

    /// Counts a posted bind to this LMR.
    pub(crate) const fn bind_posted(&mut self) {
        self.bound += 1;
        self.held += 1;
    }

    /// Subtracts an RMR that a later posted bind no longer binds to this LMR.
    pub(crate) const fn unbound(&mut self) {
        self.bound -= 1;
    }

    /// Subtracts a device window that no longer uses this LMR, or a failed bind to it.
    pub(crate) const fn let_go(&mut self) {
        self.held -= 1;
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Registered {
    pub(crate) lmr_context: u32,
    pub(crate) rmr_context: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl Registered {
    pub(crate) fn new<M>(registration: &Registration<M>, privileges: MemPrivFlags) -> Self {
        Self {
            lmr_context: registration.lmr_context,
            rmr_context: if privileges.intersects(MemPrivFlags::REMOTE) {
                registration.rmr_context
            } else {
                0
            },
            address: registration.address,
            bytes: registration.bytes,
        }
    }
}

/// Name of shared memory (`DAT_LMR_COOKIE`). All 40 bytes are significant.
pub type SharedMemoryId = [u8; 40];

/// Kind of memory of a region (`DAT_MEM_TYPE` and its parameters).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum MemType {
    /// A range of virtual addresses of this process.
    Virtual,
    /// The memory of another region, which may have been freed since.
    Lmr(LmrHandle),
    /// Memory that other processes also register, under the same name.
    SharedVirtual(#[serde(with = "serde_bytes")] SharedMemoryId),
}

impl MemType {
    /// Returns the `DAT_MEM_TYPE`.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::Virtual => 0,
            Self::Lmr(_) => 1,
            Self::SharedVirtual(_) => 2,
        }
    }
}

/// Returns the index of the PZ whose posts may use an LMR with this right, or `NOWHERE` if the LMR lacks the right.
pub(crate) fn allowed_in<P: Provider>(lmr: &Lmr<P>, right: MemPrivFlags) -> u32 {
    if lmr.effective.contains(right) {
        index_of(lmr.pz)
    } else {
        NOWHERE
    }
}
