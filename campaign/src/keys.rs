//! Memory of an adapter, and the keys that its peers know.

use udapl::DmaMemory;
use udapl::memory::{LmrCreated, RmrHandle};

/// Memory with an LMR.
pub struct Region {
    pub memory: DmaMemory,
    pub lmr: LmrCreated,
}

/// A key that peers know.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub address: u64,
    pub context: u32,
    /// The number at which it became void: a request posted later must fail.
    pub void: Option<u64>,
    /// Peers may invalidate the key.
    pub yields: bool,
}

/// Memory that may be freed while peers know its key.
pub struct Loose {
    pub region: Region,
    pub key: Key,
}

/// Memory that peers access through a window only.
pub struct Veil {
    pub region: Region,
    pub rmr: Option<RmrHandle>,
    /// Binds under way.
    pub binds: u32,
    /// The key that the last posted bind gives, or none for an unbind.
    pub key: Option<Key>,
    /// The context that the last bind gave.
    pub context: Option<u32>,
    /// Keys that are void once the last bind is done.
    pub before: Vec<Key>,
    /// No peer may access the memory, which is filled and watched.
    pub closed: bool,
    /// A peer was told to invalidate the key, and this program does not know the result: the adapter may know more
    /// than the program.
    pub claimed: bool,
}
