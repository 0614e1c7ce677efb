//! One adapter of a world: a function, and what is open on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dat_mlx::MlxProvider;
use driver::{Device, Function};
use hw_sim::SimFunction;
use udapl::{
    Adapter, CnoHandle, ConnQual, CrHandle, DmaMemory, EpAttr, EpEvds, EpHandle, EvdFlags,
    EvdHandle, HcaConfig, Ia, IaConfig, MemPrivFlags, PspFlags, PspHandle, PzHandle, RspHandle,
    SrqAttr, SrqHandle,
};

use crate::bytes;
use crate::end::{End, Kind, WINDOW};
use crate::keys::{Key, Loose, Region, Veil};

/// Where every adapter listens.
pub const CONN_QUAL: u64 = 0x1_0000_0077;
/// Endpoints of an adapter.
pub const ENDS: usize = 3;
/// Slots of a region: a window for each endpoint.
const SLOTS: usize = ENDS * WINDOW;

/// Where requests are handed off to.
pub const OTHER_QUAL: u64 = 0x1_0000_0078;
/// Where requests bring an endpoint along.
pub const LENDING_QUAL: u64 = 0x1_0000_0079;
/// Where reserved service points listen.
pub const RESERVED_QUAL: u64 = 0x1_0000_007a;
/// Where all instances of a function listen that has several.
pub const COMMON_QUAL: u64 = 0x1_0000_007c;
/// What is added to the qualifiers of each further instance of a function.
pub const APART: u64 = 0x100;
/// Buffers of a shared receive queue.
pub const SHARED: usize = SHARED_DTOS as usize;
/// [`SHARED`], as DAT counts.
pub const SHARED_DTOS: u32 = 8;
/// Memory windows of an adapter.
pub const VEILS: usize = 2;
/// Events of an event dispatcher that requests and connection events share: half of them are requests' at most, and
/// there is a place for each endpoint.
pub const MIXED: u32 = 6;
const _: () = assert!(MIXED as usize == 2 * ENDS);
/// Requests of an endpoint beyond its slots, where there are bursts.
pub const BURST: u32 = 32;
/// log2 of the longest event queue of a device whose queues come to their end, and how many events may be waiting in
/// it.
pub const LOG_SHORT_EQ: u32 = 10;
/// The driver keeps 128 entries to itself (Linux `eq.h` `MLX5_NUM_SPARE_EQE`).
pub const EVENTS_OF_THE_PORT: u32 = (1 << LOG_SHORT_EQ) - 128;

/// Objects beside the ones that carry traffic.
#[derive(Default)]
pub struct Spare {
    pub evd: Option<EvdHandle>,
    pub cno: Option<CnoHandle>,
    pub pz: Option<PzHandle>,
    /// Of [`OTHER_QUAL`].
    pub other: Option<PspHandle>,
    /// Of [`LENDING_QUAL`].
    pub lending: Option<PspHandle>,
    /// Of [`RESERVED_QUAL`], and the endpoint's place.
    pub reserved: Option<(RspHandle, usize)>,
    /// At whatever qualifier was free.
    pub any: Option<PspHandle>,
    /// Of [`COMMON_QUAL`].
    pub common: Option<PspHandle>,
    /// Requests that are not decided yet.
    pub held: Vec<CrHandle>,
}

/// What is open on a function.
pub struct Open {
    pub ia: Ia,
    pub pz: PzHandle,
    pub dto: EvdHandle,
    pub connect: EvdHandle,
    pub cr: EvdHandle,
    /// Of [`CONN_QUAL`].
    pub psp: Option<PspHandle>,
    pub ends: Vec<End>,
    /// Where messages come from.
    pub source: Region,
    /// Where they land.
    pub inbox: Region,
    /// What peers write to.
    pub written: Region,
    /// What peers read; it never changes.
    pub offered: Region,
    /// A number that peers count up.
    pub counter: Region,
    /// What it was before, as they were told; and how often they have asked.
    pub counted: BTreeSet<u64>,
    pub asked: u64,
    /// Where reads land.
    pub sink: Region,
    /// Where messages land that take shared buffers.
    pub shared: Region,
    pub srq: Option<SrqHandle>,
    /// Buffers on it: cookie and slot.
    pub buffers: BTreeMap<u64, usize>,
    /// Buffers may have vanished with an endpoint that had taken them.
    pub buffers_lost: bool,
    /// What was posted to endpoints that are no more, and was not heard of: whether it was a request, and its cookie.
    /// Those of receives are numbered apart.
    pub orphans: BTreeSet<(bool, u64)>,
    /// One slot each.
    pub loose: Vec<Loose>,
    pub veils: Vec<Veil>,
    /// Keys that are void, which peers still know.
    pub gone: Vec<Key>,
    pub spare: Spare,
    /// Its device is dead, or may be.
    pub dead: bool,
    /// Events its EVD for completions is asked to hold.
    events: u32,
    /// That is less than what can be outstanding, and connection events have room for one.
    pub narrow: bool,
    /// More was outstanding than that.
    pub crowded: bool,
    /// The EVD for completions has lost some.
    pub spent: bool,
    /// EVDs that have, and that endpoints still use.
    pub old: Vec<EvdHandle>,
    /// Connection events heard since all had been heard.
    pub heard: usize,
}

/// An adapter, open or not; of a function that carries several instances, one of them.
pub struct Side {
    pub function: Arc<SimFunction>,
    /// The function's place among all.
    pub place: usize,
    /// Which card it is on.
    pub card: usize,
    pub seed: u64,
    /// How often it was opened.
    pub openings: u64,
    pub open: Option<Open>,
    /// Something was put into the function that it may not have forgotten.
    pub tampered: bool,
    /// It was pulled out.
    pub removed: bool,
    /// What its endpoints and queues are like.
    pub manner: Manner,
    /// A command that ends access was not answered since it was opened: it is to be dead.
    pub unanswered: bool,
    /// Turns that its program sleeps through.
    pub asleep: u32,
    /// Nobody looks after its connections either meanwhile.
    pub deep: bool,
}

/// What is asked of an adapter's objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Events dispatchers are as short as they may be.
    pub tight: bool,
    /// All endpoints but the first take shared buffers.
    pub shares: bool,
    /// There are windows.
    pub windows: bool,
    /// Event dispatchers are shorter than what can come, and endpoints take bursts.
    pub narrow: bool,
    /// Requests to connect and connection events share an event dispatcher that is short.
    pub mixed: bool,
    /// Its function carries several instances.
    pub several: bool,
    /// How far its qualifiers are from those of the first one.
    pub apart: u64,
}

/// The number of what an adapter offers, different for each.
pub const fn offered_tag(side: usize) -> u64 {
    0xff_0000 + side as u64
}

impl Side {
    /// An adapter that is not open.
    pub fn new(
        function: Arc<SimFunction>,
        (place, card): (usize, usize),
        seed: u64,
        manner: Manner,
    ) -> Self {
        Self {
            function,
            place,
            card,
            seed,
            openings: 0,
            open: None,
            tampered: false,
            removed: false,
            manner,
            unanswered: false,
            asleep: 0,
            deep: false,
        }
    }

    /// Opens it, from nothing.
    ///
    /// # Errors
    /// In words.
    pub fn open(&mut self, index: usize) -> Result<(), String> {
        let function = Function::in_process(Arc::clone(&self.function) as Arc<dyn Device>)
            .map_err(|error| error.to_string())?;
        self.openings += 1;
        self.unanswered = false;
        let mut hca = HcaConfig::new();
        hca.seed = Some(self.seed ^ self.openings << 32);
        let provider = MlxProvider::open(function, hca).map_err(|error| error.to_string())?;
        let ia = Ia::open(provider, IaConfig::default()).map_err(|error| error.to_string())?;
        self.furnish(ia, index)
    }

    /// Opens it as one more instance of an adapter that is open.
    ///
    /// # Errors
    /// In words.
    pub fn join(&mut self, index: usize, adapter: &Adapter) -> Result<(), String> {
        self.openings += 1;
        self.unanswered = false;
        let ia = adapter.instance(IaConfig::default());
        self.furnish(ia.map_err(|error| error.to_string())?, index)
    }

    fn furnish(&mut self, ia: Ia, index: usize) -> Result<(), String> {
        let open = Open::furnish(ia, index, self.manner);
        self.open = Some(open.map_err(|error| error.to_string())?);
        Ok(())
    }
}

/// Attributes of every endpoint.
pub fn attributes(ia: &Ia, narrow: bool) -> EpAttr {
    let depth = u32::try_from(WINDOW).unwrap_or(u32::MAX);
    EpAttr {
        max_recv_dtos: depth,
        max_request_dtos: if narrow { depth + BURST } else { depth },
        max_recv_iov: 1,
        max_request_iov: 1,
        max_rdma_read_in: 2,
        max_rdma_read_out: 2,
        ..EpAttr::defaults(ia.query().ia)
    }
}

/// Events that an adapter's endpoints can have waiting for it.
pub const EVENTS: u32 = 32;
const _: () = assert!(EVENTS as usize == 2 * ENDS * WINDOW + SHARED);

impl Open {
    fn furnish(mut ia: Ia, index: usize, manner: Manner) -> Result<Self, udapl::DatError> {
        let pz = ia.pz_create()?;
        let events = match manner {
            Manner { narrow: true, .. } => 1,
            Manner { tight: true, .. } => EVENTS,
            Manner { .. } => 256,
        };
        let dto = ia.evd_create(events, EvdFlags::DTO | EvdFlags::RMR_BIND)?;
        let (connect, cr) = if manner.mixed {
            let both = ia.evd_create(MIXED, EvdFlags::CONNECTION | EvdFlags::CR)?;
            (both, both)
        } else {
            let length = if manner.narrow { 1 } else { 64 };
            let connect = ia.evd_create(length, EvdFlags::CONNECTION)?;
            (connect, ia.evd_create(64, EvdFlags::CR)?)
        };
        let psp =
            Some(ia.psp_create(ConnQual(CONN_QUAL + manner.apart), cr, PspFlags::CONSUMER)?);
        let mut spare = Spare::default();
        if manner.several {
            let common = ia.psp_create_shared(ConnQual(COMMON_QUAL), cr, PspFlags::CONSUMER);
            spare.common = Some(common?);
        }
        let mut region = |slots, rights| {
            let region = Self::region_of(&mut ia, pz, slots, rights)?;
            bytes::prepare(&region.memory, slots);
            Ok::<_, udapl::DatError>(region)
        };
        let source = region(SLOTS, MemPrivFlags::LOCAL_READ)?;
        let inbox = region(SLOTS, MemPrivFlags::LOCAL_WRITE)?;
        let written = region(
            SLOTS,
            MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE | MemPrivFlags::REMOTE_WRITE,
        )?;
        let offered = region(SLOTS, MemPrivFlags::LOCAL_READ | MemPrivFlags::REMOTE_READ)?;
        let counter = region(
            1,
            MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE | MemPrivFlags::REMOTE_ATOMIC,
        )?;
        let sink = region(SLOTS, MemPrivFlags::LOCAL_WRITE)?;
        let shared = region(SHARED, MemPrivFlags::LOCAL_WRITE)?;
        for slot in 0..SLOTS {
            bytes::put(&offered.memory, slot, offered_tag(index));
        }
        let mut open = Self {
            ia,
            pz,
            dto,
            connect,
            cr,
            psp,
            ends: Vec::new(),
            source,
            inbox,
            written,
            offered,
            counter,
            counted: BTreeSet::new(),
            asked: 0,
            sink,
            shared,
            srq: None,
            buffers: BTreeMap::new(),
            buffers_lost: false,
            orphans: BTreeSet::new(),
            loose: Vec::new(),
            veils: Vec::new(),
            gone: Vec::new(),
            spare,
            dead: false,
            events,
            narrow: manner.narrow,
            crowded: false,
            spent: false,
            old: Vec::new(),
            heard: 0,
        };
        if manner.shares {
            open.srq = Some(open.make_srq()?);
        }
        if manner.windows {
            for _ in 0..VEILS {
                let veil = open.make_veil()?;
                open.veils.push(veil);
            }
        }
        for at in 0..ENDS {
            let shares = manner.shares && at > 0;
            let ep = open.make_ep(shares)?;
            open.ends.push(End::new(Some(ep), shares));
        }
        Ok(open)
    }

    /// A shared receive queue.
    pub fn make_srq(&mut self) -> Result<SrqHandle, udapl::DatError> {
        let attr = SrqAttr {
            max_recv_dtos: SHARED_DTOS,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        self.ia.srq_create(self.pz, attr)
    }

    /// An EVD for completions.
    pub fn make_dto(&mut self) -> Result<EvdHandle, udapl::DatError> {
        let flags = EvdFlags::DTO | EvdFlags::RMR_BIND;
        self.ia.evd_create(self.events, flags)
    }

    /// An endpoint.
    pub fn make_ep(&mut self, shares: bool) -> Result<EpHandle, udapl::DatError> {
        let attr = attributes(&self.ia, self.narrow);
        let (pz, dto, connect) = (Some(self.pz), Some(self.dto), Some(self.connect));
        match self.srq {
            Some(srq) if shares => self.ia.ep_create_with_srq(
                pz,
                EpEvds {
                    recv: dto,
                    request: dto,
                    connect,
                },
                srq,
                &attr,
            ),
            Some(_) | None => self.ia.ep_create(
                pz,
                EpEvds {
                    recv: dto,
                    request: dto,
                    connect,
                },
                Some(&attr),
            ),
        }
    }

    /// What was posted to an endpoint that is no more has come to something, and it may be that nobody hears of it.
    pub fn forget_posted(&mut self, end: &End) {
        let receives = end.receives.iter().map(|cookie| (false, *cookie));
        self.orphans.extend(receives);
        for work in &end.requests {
            self.orphans.insert((true, work.cookie));
            if let Kind::Bind(at) = work.kind {
                self.veils[at].binds -= 1;
            }
        }
    }

    /// All memory that peers or the device could reach.
    pub fn memories(self) -> (Ia, Vec<DmaMemory>) {
        let regions = [
            self.source,
            self.inbox,
            self.written,
            self.offered,
            self.counter,
            self.sink,
            self.shared,
        ];
        let loose = self.loose.into_iter().map(|loose| loose.region);
        let veils = self.veils.into_iter().map(|veil| veil.region);
        let all = regions.into_iter().chain(loose).chain(veils);
        (self.ia, all.map(|region| region.memory).collect())
    }

    /// Its endpoint of this name.
    pub fn end_of(&mut self, ep: EpHandle) -> Option<usize> {
        self.ends.iter().position(|end| end.ep == Some(ep))
    }
}
