//! Memory that an adapter grants to its peers: regions, windows, and keys that become void.

use udapl::memory::PzHandle;
use udapl::{DmaMemory, Ia, MemPrivFlags};

use crate::bytes;
use crate::keys::{Key, Loose, Region, Veil};
use crate::side::Open;

impl Open {
    pub fn make_veil(&mut self) -> Result<Veil, udapl::DatError> {
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let region = Self::region_of(&mut self.ia, self.pz, 1, rights)?;
        bytes::cover(&region.memory);
        Ok(Veil {
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
        Ok(Region { memory, lmr })
    }

    /// Allocates and registers memory of one slot to which peers may write.
    pub fn lend(&mut self) -> Result<(), udapl::DatError> {
        let memory = self.slot();
        self.lend_this(memory)
    }

    /// Allocates memory of one slot that is not registered yet.
    pub fn slot(&self) -> DmaMemory {
        udapl::alloc(&self.ia, bytes::STRIDE).expect("the host has memory")
    }

    /// Registers memory of one slot so that peers may write to it.
    pub fn lend_this(&mut self, memory: DmaMemory) -> Result<(), udapl::DatError> {
        let lmr = self
            .ia
            .lmr_create(memory.clone(), self.pz, MemPrivFlags::all())?;
        let region = Region { memory, lmr };
        bytes::prepare(&region.memory, 1);
        let key = Key {
            address: region.lmr.registered_address,
            context: region.lmr.rmr_context,
            void: None,
            yields: false,
        };
        self.loose.push(Loose { region, key });
        Ok(())
    }

    /// Returns the keys of all memory to which peers may write now.
    pub fn granted(&self) -> impl Iterator<Item = Key> {
        let loose = self.loose.iter().map(|loose| loose.key);
        let windows = self.veils.iter().filter_map(|veil| veil.key);
        let written = Key {
            address: self.written.lmr.registered_address,
            context: self.written.lmr.rmr_context,
            void: None,
            yields: false,
        };
        loose.chain(windows).chain([written])
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

    /// Returns the keys that peers know of regions and windows that are freed at times. Void keys are included, so that
    /// peers also write to freed memory.
    pub fn told(&self) -> impl Iterator<Item = Key> {
        let there = self.loose.iter().map(|loose| loose.key);
        let of = |veil: &Veil| {
            veil.before
                .iter()
                .copied()
                .chain(veil.key)
                .collect::<Vec<_>>()
        };
        let windows = self.veils.iter().flat_map(of);
        self.gone.iter().copied().chain(there).chain(windows)
    }

    /// Returns the index, in [`Open::told`], of the key that became void last.
    pub fn youngest_void(&self) -> Option<usize> {
        self.gone.len().checked_sub(1)
    }

    /// Records that a key known to peers is void from now on. The last three such keys are kept.
    pub fn remember(&mut self, key: Key, number: u64) {
        self.gone.push(Key {
            void: Some(number),
            ..key
        });
        if self.gone.len() > 3 {
            self.gone.remove(0);
        }
    }

    /// Handles the completion of the last outstanding bind of a window. If the window is bound, its earlier keys are
    /// void. If not, no peer may access the memory of the window any more.
    pub fn bind_done(&mut self, at: usize, bound: bool, number: u64) {
        let veil = &mut self.veils[at];
        let mut void = std::mem::take(&mut veil.before);
        if !bound {
            void.extend(veil.key.take());
            veil.closed = true;
            bytes::cover(&veil.region.memory);
        }
        for key in void {
            self.remember(key, number);
        }
    }

    /// Returns the RMR contexts that peers may invalidate now.
    pub fn yielded(&self) -> impl Iterator<Item = u32> {
        let there = self.veils.iter().filter(|veil| veil.binds == 0);
        let keys = there.filter_map(|veil| veil.key);
        keys.filter(|key| key.yields).map(|key| key.context)
    }

    /// Returns whether peers may invalidate an RMR context. This includes contexts of binds whose completion the
    /// program has not seen, so the context may not exist.
    pub fn yields(&self, context: u32) -> bool {
        let mut told = self.told();
        told.any(|key| key.context == context && key.yields && key.void.is_none())
    }

    /// Records that a peer is about to invalidate an RMR context. Returns whether the context exists and this is the
    /// first such request.
    pub fn claim(&mut self, context: u32) -> bool {
        let of = |veil: &&mut Veil| veil.key.is_some_and(|key| key.context == context);
        let veil = self.veils.iter_mut().find(of);
        veil.is_some_and(|veil| !std::mem::replace(&mut veil.claimed, true))
    }

    /// Records that a peer has invalidated an RMR context. From now on no peer may access the memory of that window.
    pub fn taken(&mut self, context: u32, number: u64) {
        for at in 0..self.veils.len() {
            let veil = &mut self.veils[at];
            if veil.binds == 0 && veil.key.is_some_and(|key| key.context == context) {
                self.bind_done(at, false, number);
            } else if let Some(old) = veil.before.iter().position(|key| key.context == context) {
                let key = veil.before.remove(old);
                self.remember(key, number);
            }
        }
    }

    /// Records that this program has learned of the invalidation of an RMR context.
    pub fn heard_of(&mut self, context: u32, number: u64) {
        self.taken(context, number);
        for veil in &mut self.veils {
            if veil.context == Some(context) {
                veil.claimed = false;
            }
        }
    }

    /// Handles windows whose bind completions were lost, by querying the windows.
    pub fn binds_lost(&mut self, number: u64) {
        for at in 0..self.veils.len() {
            let veil = &self.veils[at];
            if veil.closed || veil.binds > 0 {
                continue;
            }
            let bound = veil.rmr.and_then(|rmr| self.ia.rmr_query(rmr).ok());
            let bound = bound.is_some_and(|param| param.binding.is_some());
            self.bind_done(at, bound, number);
        }
    }

    /// Returns whether a key is valid now.
    pub fn is_live(&self, address: u64, context: u32) -> bool {
        let mut told = self.told();
        told.any(|key| key.void.is_none() && (key.address, key.context) == (address, context))
    }
}
