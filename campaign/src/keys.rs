//! Memory of an adapter, and the keys that its peers know.

use udapl::DmaMemory;
use udapl::memory::{LmrCreated, RmrHandle};

use crate::kept::Kept;

/// Memory that is registered with an LMR.
pub struct Region {
    pub memory: Kept<DmaMemory>,
    pub lmr: LmrCreated,
}

/// A key that peers know.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub address: u64,
    pub context: u32,
    /// Number drawn when the key became void: a request that is posted after that must fail. 0 if peers never had the
    /// access; `None` while the key is valid.
    pub void: Option<u64>,
    /// True if peers may invalidate the key.
    pub yields: bool,
}

/// Registered memory that may be freed while peers know its key.
pub struct FreeableRegion {
    pub region: Region,
    pub key: Key,
}

/// Memory that peers can access only through a window.
pub struct WindowMemory {
    pub region: Region,
    pub rmr: Option<RmrHandle>,
    /// Number of outstanding binds.
    pub binds: u32,
    /// Key that results from the last posted bind; `None` after an unbind.
    pub key: Option<Key>,
    /// RMR context that the last bind returned.
    pub context: Option<u32>,
    /// Keys that become void when the last bind has completed.
    pub before: Vec<Key>,
    /// True if no peer may access the memory. The memory is then filled and watched.
    pub closed: bool,
    /// True if a peer has prepared a request that invalidates the key, and this program has not got the result. The
    /// adapter may have handled the invalidation already.
    pub claimed: bool,
}
