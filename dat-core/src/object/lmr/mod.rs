//! The local memory region, and what a post checks of one.

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
    /// As asked.
    pub(crate) privileges: MemPrivFlags,
    /// As posts see them.
    pub(crate) effective: MemPrivFlags,
    pub(crate) created: Registered,
    pub(crate) kind: MemType,
    /// What other regions of the same memory are made from.
    pub(crate) memory: P::Memory,
    /// RMRs bound to it, going by the binds posted.
    bound: u32,
    /// Windows of the device that reach through it, and binds on their way to that.
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

    /// An RMR is bound to it, going by the binds posted.
    pub(crate) const fn is_bound(&self) -> bool {
        self.bound != 0
    }

    /// A window of the device reaches through it, or a bind on its way may bring it there.
    pub(crate) const fn is_held(&self) -> bool {
        self.held != 0
    }

    /// A bind to it was posted.
    pub(crate) const fn bind_posted(&mut self) {
        self.bound += 1;
        self.held += 1;
    }

    /// An RMR is no longer bound to it, going by the binds posted.
    pub(crate) const fn unbound(&mut self) {
        self.bound -= 1;
    }

    /// A window of the device no longer reaches through it, or a bind to it did not come about.
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

/// What a region was made of (`DAT_MEM_TYPE` and what goes with it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemType {
    /// A range of addresses.
    Virtual,
    /// The memory of another region, which may be gone by now.
    Lmr(LmrHandle),
    /// Memory other processes know by the same name.
    SharedVirtual(SharedMemoryId),
}

impl MemType {
    /// The `DAT_MEM_TYPE`.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::Virtual => 0,
            Self::Lmr(_) => 1,
            Self::SharedVirtual(_) => 2,
        }
    }
}

/// Index of the PZ whose posts have a right to an LMR.
pub(crate) fn allowed_in<P: Provider>(lmr: &Lmr<P>, right: MemPrivFlags) -> u32 {
    if lmr.effective.contains(right) {
        index_of(lmr.pz)
    } else {
        NOWHERE
    }
}
