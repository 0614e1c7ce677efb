//! Memory that an adapter grants to its peers: regions, windows, and keys that become void.

use udapl::memory::PzHandle;
use udapl::{DmaMemory, Ia, MemPrivFlags};

use crate::bytes;
use crate::kept::Kept;
use crate::keys::{FreeableRegion, Key, Region, WindowMemory};
use crate::side::Open;

impl Open {
    pub fn make_window_memory(&mut self) -> Result<WindowMemory, udapl::DatError> {
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let region = Self::region_of(&mut self.ia, self.pz, 1, rights)?;
        bytes::cover(&region.memory);
        Ok(WindowMemory {
            region,
            rmr: None,
            binds: 0,
            key: None,
            context: None,
            before: Vec::new(),
            closed: true,
            claimed: false,
        })
    }

    pub fn region_of(
        ia: &mut Ia,
        pz: PzHandle,
        slots: usize,
        rights: MemPrivFlags,
    ) -> Result<Region, udapl::DatError> {
        let memory = udapl::alloc(ia, slots * bytes::STRIDE).expect("the host has memory");
        let lmr = ia.lmr_create(memory.clone(), pz, rights)?;
        Ok(Region {
            memory: Kept::new(memory),
            lmr,
        })
    }

    /// Allocates and registers memory of one slot to which peers may write.
    pub fn lend(&mut self) -> Result<(), udapl::DatError> {
        let memory = self.slot();
        self.register_memory(memory)
    }

    /// Allocates memory of one slot that is not registered yet.
    pub fn slot(&self) -> DmaMemory {
        udapl::alloc(&self.ia, bytes::STRIDE).expect("the host has memory")
    }

    /// Registers memory of one slot so that peers may write to it.
    pub fn register_memory(&mut self, memory: DmaMemory) -> Result<(), udapl::DatError> {
        let lmr = self
            .ia
            .lmr_create(memory.clone(), self.pz, MemPrivFlags::all())?;
        let region = Region {
            memory: Kept::new(memory),
            lmr,
        };
        bytes::prepare(&region.memory, 1);
        let key = Key {
            address: region.lmr.registered_address,
            context: region.lmr.rmr_context,
            void: None,
            yields: false,
        };
        self.freeable.push(FreeableRegion { region, key });
        Ok(())
    }

    /// Returns the keys of all memory to which peers may write now.
    pub fn granted(&self) -> impl Iterator<Item = Key> {
        let freeable = self.freeable.iter().map(|freeable| freeable.key);
        let windows = self
            .window_memories
            .iter()
            .filter_map(|window_memory| window_memory.key);
        let written = Key {
            address: self.written.lmr.registered_address,
            context: self.written.lmr.rmr_context,
            void: None,
            yields: false,
        };
        freeable.chain(windows).chain([written])
    }

    /// Returns the key of memory that peers may only read. This key was never valid for writing.
    pub fn to_be_read(&self) -> Key {
        Key {
            address: self.offered.lmr.registered_address,
            context: self.offered.lmr.rmr_context,
            void: Some(0),
            yields: false,
        }
    }

    /// Returns the keys of regions and windows that peers know. The result includes void keys, so that peers also write
    /// to freed memory.
    pub fn known_keys(&self) -> impl Iterator<Item = Key> {
        let there = self.freeable.iter().map(|freeable| freeable.key);
        let of = |window_memory: &WindowMemory| {
            window_memory
                .before
                .iter()
                .copied()
                .chain(window_memory.key)
                .collect::<Vec<_>>()
        };
        let windows = self.window_memories.iter().flat_map(of);
        self.gone.iter().copied().chain(there).chain(windows)
    }

    /// Returns the index, in [`Open::known_keys`], of the key that became void last.
    pub fn youngest_void(&self) -> Option<usize> {
        self.gone.len().checked_sub(1)
    }

    /// Records that a key known to peers is void. Keeps the last three void keys.
    pub fn remember(&mut self, key: Key, number: u64) {
        self.gone.push(Key {
            void: Some(number),
            ..key
        });
        if self.gone.len() > 3 {
            self.gone.remove(0);
        }
    }

    /// Records that a window has no outstanding bind any more. If the window is bound, only its earlier keys are void.
    /// Otherwise all its keys are void, and no peer may access the window's memory.
    pub fn bind_done(&mut self, at: usize, bound: bool, number: u64) {
        let window_memory = &mut self.window_memories[at];
        let mut void = std::mem::take(&mut window_memory.before);
        if !bound {
            void.extend(window_memory.key.take());
            window_memory.closed = true;
            bytes::cover(&window_memory.region.memory);
        }
        for key in void {
            self.remember(key, number);
        }
    }

    /// Returns the RMR contexts that peers may invalidate now.
    pub fn yielded(&self) -> impl Iterator<Item = u32> {
        let there = self
            .window_memories
            .iter()
            .filter(|window_memory| window_memory.binds == 0);
        let keys = there.filter_map(|window_memory| window_memory.key);
        keys.filter(|key| key.yields).map(|key| key.context)
    }

    /// Returns whether peers may invalidate an RMR context. The result is true for the context of an outstanding bind,
    /// although the bind may fail.
    pub fn yields(&self, context: u32) -> bool {
        let mut keys = self.known_keys();
        keys.any(|key| key.context == context && key.yields && key.void.is_none())
    }

    /// Records that a peer is about to invalidate an RMR context. Returns whether the context exists and this is the
    /// first such request.
    pub fn claim(&mut self, context: u32) -> bool {
        let of = |window_memory: &&mut WindowMemory| {
            window_memory.key.is_some_and(|key| key.context == context)
        };
        let window_memory = self.window_memories.iter_mut().find(of);
        window_memory
            .is_some_and(|window_memory| !std::mem::replace(&mut window_memory.claimed, true))
    }

    /// Records that a peer has invalidated an RMR context. From now on no peer may access the memory of that window.
    pub fn taken(&mut self, context: u32, number: u64) {
        for at in 0..self.window_memories.len() {
            let window_memory = &mut self.window_memories[at];
            if window_memory.binds == 0
                && window_memory.key.is_some_and(|key| key.context == context)
            {
                self.bind_done(at, false, number);
            } else if let Some(old) = window_memory
                .before
                .iter()
                .position(|key| key.context == context)
            {
                let key = window_memory.before.remove(old);
                self.remember(key, number);
            }
        }
    }

    /// Records that this program has learned of the invalidation of an RMR context.
    pub fn invalidation_reported(&mut self, context: u32, number: u64) {
        self.taken(context, number);
        for window_memory in &mut self.window_memories {
            if window_memory.context == Some(context) {
                window_memory.claimed = false;
            }
        }
    }

    /// Queries the windows without an outstanding bind, because bind completions may have been lost, and updates the
    /// records.
    pub fn binds_lost(&mut self, number: u64) {
        for at in 0..self.window_memories.len() {
            let window_memory = &self.window_memories[at];
            if window_memory.closed || window_memory.binds > 0 {
                continue;
            }
            let bound = window_memory
                .rmr
                .and_then(|rmr| self.ia.rmr_query(rmr).ok());
            let bound = bound.is_some_and(|param| param.binding.is_some());
            self.bind_done(at, bound, number);
        }
    }

    /// Returns whether the key of a region or window is known to peers and not void.
    pub fn is_live(&self, address: u64, context: u32) -> bool {
        let mut keys = self.known_keys();
        keys.any(|key| key.void.is_none() && (key.address, key.context) == (address, context))
    }
}
