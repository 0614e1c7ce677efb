//! One adapter of a world: a function, and what is open on it.

use std::sync::Arc;

use dat::{
    DmaMemory, EpAttr, EpHandle, EvdFlags, EvdHandle, HcaConfig, Ia, IaConfig, LmrCreated,
    MemPrivFlags, PspFlags, PzHandle,
};
use driver::{Device, Function};
use hw_mlx::provider::MlxProvider;
use hw_sim::SimFunction;

use crate::bytes;
use crate::end::{End, WINDOW};

/// Where every adapter listens.
pub const CONN_QUAL: u64 = 0x1_0000_0077;
/// Endpoints of an adapter.
pub const ENDS: usize = 3;
/// Slots of a region: a window for each endpoint.
const SLOTS: usize = ENDS * WINDOW;

/// Memory with an LMR.
pub struct Region {
    pub memory: DmaMemory,
    pub lmr: LmrCreated,
}

/// Memory that may be freed while peers know its key.
pub struct Loose {
    pub region: Region,
    /// Keys that peers may know: address and context.
    pub told: (u64, u32),
}

/// What is open on a function.
pub struct Open {
    pub ia: Ia,
    pub pz: PzHandle,
    pub dto: EvdHandle,
    pub connect: EvdHandle,
    pub cr: EvdHandle,
    pub ends: Vec<End>,
    /// Where messages come from.
    pub source: Region,
    /// Where they land.
    pub inbox: Region,
    /// What peers write to.
    pub written: Region,
    /// What peers read; it never changes.
    pub offered: Region,
    /// Where reads land.
    pub sink: Region,
    /// One slot each.
    pub loose: Vec<Loose>,
    /// Keys of what was freed, which peers still know.
    gone: Vec<(u64, u32)>,
    /// Its device is dead, or may be.
    pub dead: bool,
}

/// An adapter, open or not.
pub struct Side {
    pub function: Arc<SimFunction>,
    pub seed: u64,
    /// How often it was opened.
    pub openings: u64,
    pub open: Option<Open>,
    /// Something was put into the function that it may not have forgotten.
    pub tampered: bool,
}

/// The number of what an adapter offers, different for each.
pub const fn offered_tag(side: usize) -> u64 {
    0xff_0000 + side as u64
}

impl Side {
    /// Opens it, from nothing.
    ///
    /// # Errors
    /// In words.
    pub fn open(&mut self, index: usize) -> Result<(), String> {
        let function = Function::in_process(Arc::clone(&self.function) as Arc<dyn Device>)
            .map_err(|error| error.to_string())?;
        self.openings += 1;
        let mut hca = HcaConfig::new();
        hca.seed = Some(self.seed ^ self.openings << 32);
        let provider = MlxProvider::open(function, hca).map_err(|error| error.to_string())?;
        let ia = Ia::open(provider, IaConfig::default()).map_err(|error| error.to_string())?;
        self.open = Some(Open::furnish(ia, index).map_err(|error| error.to_string())?);
        Ok(())
    }
}

/// Attributes of every endpoint.
pub fn attributes(ia: &Ia) -> EpAttr {
    let depth = u32::try_from(WINDOW).unwrap_or(u32::MAX);
    EpAttr {
        max_recv_dtos: depth,
        max_request_dtos: depth,
        max_recv_iov: 1,
        max_request_iov: 1,
        max_rdma_read_in: 2,
        max_rdma_read_out: 2,
        ..EpAttr::defaults(ia.query().ia)
    }
}

impl Open {
    fn furnish(mut ia: Ia, index: usize) -> Result<Self, dat::DatError> {
        let pz = ia.pz_create()?;
        let dto = ia.evd_create(256, EvdFlags::DTO)?;
        let connect = ia.evd_create(64, EvdFlags::CONNECTION)?;
        let cr = ia.evd_create(16, EvdFlags::CR)?;
        ia.psp_create(CONN_QUAL, cr, PspFlags::CONSUMER)?;
        let mut region = |rights| {
            let region = Self::region_of(&mut ia, pz, SLOTS, rights)?;
            bytes::prepare(&region.memory, SLOTS);
            Ok::<_, dat::DatError>(region)
        };
        let source = region(MemPrivFlags::LOCAL_READ)?;
        let inbox = region(MemPrivFlags::LOCAL_WRITE)?;
        let written = region(
            MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE | MemPrivFlags::REMOTE_WRITE,
        )?;
        let offered = region(MemPrivFlags::LOCAL_READ | MemPrivFlags::REMOTE_READ)?;
        let sink = region(MemPrivFlags::LOCAL_WRITE)?;
        for slot in 0..SLOTS {
            bytes::put(&offered.memory, slot, offered_tag(index));
        }
        let mut open = Self {
            ia,
            pz,
            dto,
            connect,
            cr,
            ends: Vec::new(),
            source,
            inbox,
            written,
            offered,
            sink,
            loose: Vec::new(),
            gone: Vec::new(),
            dead: false,
        };
        for _ in 0..ENDS {
            let ep = open.make_ep()?;
            open.ends.push(End::new(Some(ep)));
        }
        Ok(open)
    }

    /// An endpoint.
    pub fn make_ep(&mut self) -> Result<EpHandle, dat::DatError> {
        let attr = attributes(&self.ia);
        let (pz, dto, connect) = (Some(self.pz), Some(self.dto), Some(self.connect));
        self.ia.ep_create(pz, dto, dto, connect, Some(&attr))
    }

    fn region_of(
        ia: &mut Ia,
        pz: PzHandle,
        slots: usize,
        rights: MemPrivFlags,
    ) -> Result<Region, dat::DatError> {
        let memory = dat::alloc(ia, slots * bytes::STRIDE).expect("the host has memory");
        let lmr = ia.lmr_create(memory.clone(), pz, rights)?;
        Ok(Region { memory, lmr })
    }

    /// Memory of one slot that peers may write to.
    pub fn lend(&mut self) -> Result<(), dat::DatError> {
        let region = Self::region_of(&mut self.ia, self.pz, 1, MemPrivFlags::all())?;
        bytes::prepare(&region.memory, 1);
        let told = (region.lmr.registered_address, region.lmr.rmr_context);
        self.loose.push(Loose { region, told });
        Ok(())
    }

    /// Keys of memory that was lent, freed or not: what is freed is written to as eagerly.
    pub fn told(&self) -> impl Iterator<Item = (u64, u32)> {
        let there = self.loose.iter().map(|loose| loose.told);
        self.gone.iter().copied().chain(there)
    }

    /// Its memory is freed; peers were told the key.
    pub fn remember(&mut self, told: (u64, u32)) {
        self.gone.push(told);
        if self.gone.len() > 2 {
            self.gone.remove(0);
        }
    }

    /// All memory that peers or the device could reach.
    pub fn memories(self) -> (Ia, Vec<DmaMemory>) {
        let regions = [
            self.source,
            self.inbox,
            self.written,
            self.offered,
            self.sink,
        ];
        let loose = self.loose.into_iter().map(|loose| loose.region);
        let memories = regions.into_iter().chain(loose).map(|region| region.memory);
        (self.ia, memories.collect())
    }

    /// Its endpoint of this name.
    pub fn end_of(&mut self, ep: EpHandle) -> Option<usize> {
        self.ends.iter().position(|end| end.ep == Some(ep))
    }
}
