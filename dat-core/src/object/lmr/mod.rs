//! The local memory region, and the fields of it that a post checks.

pub mod segment;
pub(crate) mod slice;
pub(crate) mod table;

use crate::handle::{LmrHandle, PzKey, index_of};
use crate::provider::Provider;
use crate::types::MemPrivFlags;
use slice::NOWHERE;

pub(crate) struct Lmr<P: Provider> {
    pub(crate) region: P::Region,
    pub(crate) pz: PzKey,
    /// Privileges, as requested.
    pub(crate) privileges: MemPrivFlags,
    /// Privileges, as posts apply them.
    pub(crate) effective: MemPrivFlags,
    pub(crate) created: Registered,
    pub(crate) kind: MemType,
    /// The memory, from which other regions can be made.
    pub(crate) memory: P::Memory,
    /// Number of RMRs bound to it, going by the binds posted.
    bound: u32,
    /// Number of device windows that use it, and of outstanding binds to it.
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

    /// Returns whether an RMR is bound to it, going by the binds posted.
    pub(crate) const fn is_bound(&self) -> bool {
        self.bound != 0
    }

    /// Returns whether a device window uses it, or an outstanding bind may make one use it.
    pub(crate) const fn is_held(&self) -> bool {
        self.held != 0
    }

    /// Counts a bind to it that was posted.
    pub(crate) const fn bind_posted(&mut self) {
        self.bound += 1;
        self.held += 1;
    }

    /// Counts an RMR that is no longer bound to it, going by the binds posted.
    pub(crate) const fn unbound(&mut self) {
        self.bound -= 1;
    }

    /// Counts a device window that no longer uses it, or a bind to it that failed.
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

/// The name of shared memory (`DAT_LMR_COOKIE`): all 40 bytes count.
pub type SharedMemoryId = [u8; 40];

/// Kind of memory of a region (`DAT_MEM_TYPE` and its parameters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemType {
    /// A range of addresses.
    Virtual,
    /// The memory of another region, which may have been freed since.
    Lmr(LmrHandle),
    /// Memory that other processes know by the same name.
    SharedVirtual(SharedMemoryId),
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

/// Returns the index of the PZ whose posts have a right to an LMR.
pub(crate) fn allowed_in<P: Provider>(lmr: &Lmr<P>, right: MemPrivFlags) -> u32 {
    if lmr.effective.contains(right) {
        index_of(lmr.pz)
    } else {
        NOWHERE
    }
}
