//! Memory of an adapter, and the keys that its peers know.

use udapl::{DmaMemory, LmrCreated, RmrHandle};

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
    /// The number at which it became void: nothing that was posted later comes through.
    pub void: Option<u64>,
    /// Peers may take it away.
    pub yields: bool,
}

/// Memory that may be freed while peers know its key.
pub struct Loose {
    pub region: Region,
    pub key: Key,
}

/// Memory that peers reach through a window only.
pub struct Veil {
    pub region: Region,
    pub rmr: Option<RmrHandle>,
    /// Binds on their way.
    pub binds: u32,
    /// What the last bind posted makes of it: a key, or nothing.
    pub key: Option<Key>,
    /// The context that the last bind gave it.
    pub context: Option<u32>,
    /// Keys that are void once the last bind is done.
    pub before: Vec<Key>,
    /// Nobody may reach it, and it is filled and watched.
    pub closed: bool,
    /// A peer was told to, and this program has not heard of it: the adapter may know more than the program.
    pub claimed: bool,
}
