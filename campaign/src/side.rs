//! One adapter of a simulation: a function, and the program's objects on that function.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dat_mlx::MlxProvider;
use driver::{Device, Function};
use hw_sim::SimFunction;
use udapl::adapter::{HcaConfig, IaConfig};
use udapl::connection::{CrHandle, PspHandle, RspHandle};
use udapl::endpoint::EpAttr;
use udapl::memory::PzHandle;
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::wait::CnoHandle;
use udapl::{
    Adapter, ConnQual, DmaMemory, EpEvds, EpHandle, EvdFlags, EvdHandle, Ia, MemPrivFlags, PspFlags,
};

use crate::bytes;
use crate::end::{End, Kind, WINDOW};
use crate::kept::Kept;
use crate::keys::{FreeableRegion, Key, Region, WindowMemory};
use crate::process::Process;

/// Connection qualifier at which the first instance of every function listens.
pub const CONN_QUAL: u64 = 0x1_0000_0077;
/// Number of endpoints of an adapter.
pub const ENDS: usize = 3;
/// Number of slots of a region: `WINDOW` for each endpoint.
const SLOTS: usize = ENDS * WINDOW;

/// Connection qualifier of a second service point, to which requests are handed off.
pub const OTHER_QUAL: u64 = 0x1_0000_0078;
/// Connection qualifier whose requests arrive with an endpoint that the provider made.
pub const LENDING_QUAL: u64 = 0x1_0000_0079;
/// Connection qualifier of reserved service points.
pub const RESERVED_QUAL: u64 = 0x1_0000_007a;
/// Common connection qualifier of all instances of a function that has several.
pub const COMMON_QUAL: u64 = 0x1_0000_007c;
/// Offset between the connection qualifiers of successive instances of a function.
pub const APART: u64 = 0x100;
/// Number of buffers of a shared receive queue.
pub const SHARED: usize = SHARED_DTOS as usize;
/// [`SHARED`] in the type of a DTO count of DAT.
pub const SHARED_DTOS: u32 = 8;
/// Number of memory windows of an adapter.
pub const WINDOW_COUNT: usize = 2;
/// Length of an EVD that connection requests and connection events share. Requests occupy at most half of its entries,
/// and each endpoint has a reserved entry.
pub const MIXED: u32 = 6;
const _: () = assert!(MIXED as usize == 2 * ENDS);
/// Number of requests without data that an endpoint accepts in addition to its slots, on a side with short EVDs.
pub const BURST: u32 = 32;
/// Log2 of the maximum length of a device's event queue in a simulation with `Feature::Overrun`.
pub const LOG_SHORT_EQ: u32 = 10;
/// Number of port events that fit into a short event queue. The driver reserves 128 entries (Linux `eq.h`
/// `MLX5_NUM_SPARE_EQE`).
pub const EVENTS_OF_THE_PORT: u32 = (1 << LOG_SHORT_EQ) - 128;

/// Further service points, and objects on which no traffic depends.
#[derive(Default)]
pub struct Spare {
    pub evd: Option<EvdHandle>,
    pub cno: Option<CnoHandle>,
    pub pz: Option<PzHandle>,
    /// Service point at [`OTHER_QUAL`].
    pub other: Option<PspHandle>,
    /// Service point at [`LENDING_QUAL`].
    pub lending: Option<PspHandle>,
    /// Service point at [`RESERVED_QUAL`], and the index of its endpoint.
    pub reserved: Option<(RspHandle, usize)>,
    /// Service point at a free qualifier that the provider chose.
    pub any: Option<PspHandle>,
    /// Service point at [`COMMON_QUAL`].
    pub common: Option<PspHandle>,
    /// Connection requests that the program has neither accepted nor rejected.
    pub held: Vec<CrHandle>,
}

/// The objects open on a function.
pub struct Open {
    pub ia: Kept<Ia>,
    pub pz: PzHandle,
    pub dto: EvdHandle,
    pub connect: EvdHandle,
    pub cr: EvdHandle,
    /// Service point at [`CONN_QUAL`].
    pub psp: Option<PspHandle>,
    pub ends: Vec<End>,
    /// Memory from which messages are sent.
    pub source: Region,
    /// Memory into which messages are received.
    pub inbox: Region,
    /// Memory to which peers write.
    pub written: Region,
    /// Memory that peers read and that never changes.
    pub offered: Region,
    /// A counter that peers increment.
    pub counter: Region,
    /// Earlier values of the counter that were reported to peers. Each increment reports a different value.
    pub counted: BTreeSet<u64>,
    pub asked: u64,
    /// Memory into which Reads put their data.
    pub sink: Region,
    /// Memory of the buffers of the shared receive queue.
    pub shared: Region,
    pub srq: Option<SrqHandle>,
    /// Buffers posted to the shared receive queue: the slot of each cookie.
    pub buffers: BTreeMap<u64, usize>,
    /// True if buffers may have been lost with a freed endpoint that had taken them.
    pub buffers_lost: bool,
    /// DTOs of freed endpoints whose completions were not seen: true for a request and false for a receive, and the
    /// cookie. Receives and requests have separate cookies.
    pub orphans: BTreeSet<(bool, u64)>,
    /// Regions of one slot each that may be freed.
    pub freeable: Vec<FreeableRegion>,
    pub window_memories: Vec<WindowMemory>,
    /// The last three void keys, which peers still know.
    pub gone: Vec<Key>,
    pub spare: Spare,
    /// True if the program has got the event `DAT_ASYNC_ERROR_IA_CATASTROPHIC`.
    pub dead: bool,
    /// Requested length of the EVD for completions.
    events: u32,
    /// True if `events` is less than the number of requests that can be outstanding, and the EVD for connection events
    /// has a requested length of one.
    pub narrow: bool,
    /// True if more requests and receives were outstanding than the EVD for completions holds.
    pub crowded: bool,
    /// True if the EVD for completions has lost completions.
    pub spent: bool,
    /// Overflowed EVDs that endpoints still use.
    pub old: Vec<EvdHandle>,
    /// Number of connection events dequeued since the last call of `World::events` began.
    pub heard: usize,
}

/// An adapter, open or not. If its function has several instances, this is one of the instances.
pub struct Side {
    pub function: Arc<SimFunction>,
    /// The processes of the function's program, in a simulation with `Feature::Handover`.
    pub process: Option<Arc<Process>>,
    /// Index of the function among all functions.
    pub place: usize,
    /// Index of the function's card.
    pub card: usize,
    pub seed: u64,
    /// Number of times that the adapter was opened.
    pub openings: u64,
    pub open: Option<Open>,
    /// True if a fault was injected into the function and may still be in effect.
    pub tampered: bool,
    /// True if the function was removed.
    pub removed: bool,
    /// True while the function is parked. Then `open` is `None`.
    pub parked: bool,
    /// Configuration of the adapter's endpoints and queues.
    pub side_config: SideConfig,
    /// True if a command that ends access was not answered since the opening. Then the adapter must be dead as soon as
    /// the program has dequeued all events.
    pub unanswered: bool,
    /// Number of further loop iterations in which the program dequeues nothing.
    pub asleep: u32,
    /// True if the adapter's connections are not served either during these loop iterations.
    pub deep: bool,
}

/// Configuration of an adapter's objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct SideConfig {
    /// True if the EVD for completions has `EVENTS` entries, with which it never overflows.
    pub tight: bool,
    /// True if all endpoints but the first take buffers from the shared receive queue.
    pub shares: bool,
    /// True if the adapter has memory windows.
    pub windows: bool,
    /// True if EVDs are shorter than the number of possible events, and endpoints accept `BURST` more requests.
    pub narrow: bool,
    /// True if connection requests and connection events share a short event dispatcher.
    pub mixed: bool,
    /// True if the function has several instances.
    pub several: bool,
    /// Offset of the connection qualifiers from those of the first instance.
    pub apart: u64,
}

/// Returns the message number in the memory that an adapter offers to readers. It differs between adapters.
pub const fn offered_tag(side: usize) -> u64 {
    0xff_0000 + side as u64
}

impl Side {
    /// Returns the record of an adapter that is not open.
    pub fn new(
        (function, process): (Arc<SimFunction>, Option<Arc<Process>>),
        (place, card): (usize, usize),
        seed: u64,
        side_config: SideConfig,
    ) -> Self {
        Self {
            function,
            process,
            place,
            card,
            seed,
            openings: 0,
            open: None,
            tampered: false,
            removed: false,
            parked: false,
            side_config,
            unanswered: false,
            asleep: 0,
            deep: false,
        }
    }

    /// Opens the adapter with all its objects.
    ///
    /// # Errors
    /// The reason as a text.
    pub fn open(&mut self, index: usize) -> Result<(), String> {
        let device = match &self.process {
            Some(process) => Arc::clone(process) as Arc<dyn Device>,
            None => Arc::clone(&self.function) as Arc<dyn Device>,
        };
        let function = Function::in_process(device).map_err(|error| error.to_string())?;
        self.openings += 1;
        self.unanswered = false;
        let mut hca = HcaConfig::new();
        hca.seed = Some(self.seed ^ self.openings << 32);
        let provider = MlxProvider::open(function, hca).map_err(|error| error.to_string())?;
        let ia = Ia::open(provider, IaConfig::default()).map_err(|error| error.to_string())?;
        self.create_objects(ia, index)
    }

    /// Opens the adapter as one more instance of an adapter that is open.
    ///
    /// # Errors
    /// The reason as a text.
    pub fn join(&mut self, index: usize, adapter: &Adapter) -> Result<(), String> {
        self.openings += 1;
        self.unanswered = false;
        let ia = adapter.instance(IaConfig::default());
        self.create_objects(ia.map_err(|error| error.to_string())?, index)
    }

    /// Returns the processes of the function's program.
    pub fn process(&self) -> Arc<Process> {
        let process = self.process.as_ref();
        Arc::clone(process.expect("a simulation with handovers"))
    }

    fn create_objects(&mut self, ia: Ia, index: usize) -> Result<(), String> {
        let open = Open::create_objects(ia, index, self.side_config);
        self.open = Some(open.map_err(|error| error.to_string())?);
        Ok(())
    }
}

/// Returns the attributes that every endpoint gets.
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

/// Maximum number of outstanding completions of an adapter, without bursts.
pub const EVENTS: u32 = 32;
const _: () = assert!(EVENTS as usize == 2 * ENDS * WINDOW + SHARED);

impl Open {
    fn create_objects(
        mut ia: Ia,
        index: usize,
        side_config: SideConfig,
    ) -> Result<Self, udapl::DatError> {
        let pz = ia.pz_create()?;
        let events = match side_config {
            SideConfig { narrow: true, .. } => 1,
            SideConfig { tight: true, .. } => EVENTS,
            SideConfig { .. } => 256,
        };
        let dto = ia.evd_create(events, EvdFlags::DTO | EvdFlags::RMR_BIND)?;
        let (connect, cr) = if side_config.mixed {
            let both = ia.evd_create(MIXED, EvdFlags::CONNECTION | EvdFlags::CR)?;
            (both, both)
        } else {
            let length = if side_config.narrow { 1 } else { 64 };
            let connect = ia.evd_create(length, EvdFlags::CONNECTION)?;
            (connect, ia.evd_create(64, EvdFlags::CR)?)
        };
        let psp = Some(ia.psp_create(
            ConnQual(CONN_QUAL + side_config.apart),
            cr,
            PspFlags::CONSUMER,
        )?);
        let mut spare = Spare::default();
        if side_config.several {
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
            ia: Kept::new(ia),
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
            freeable: Vec::new(),
            window_memories: Vec::new(),
            gone: Vec::new(),
            spare,
            dead: false,
            events,
            narrow: side_config.narrow,
            crowded: false,
            spent: false,
            old: Vec::new(),
            heard: 0,
        };
        if side_config.shares {
            open.srq = Some(open.make_srq()?);
        }
        if side_config.windows {
            for _ in 0..WINDOW_COUNT {
                let window_memory = open.make_window_memory()?;
                open.window_memories.push(window_memory);
            }
        }
        for at in 0..ENDS {
            let shares = side_config.shares && at > 0;
            let ep = open.make_ep(shares)?;
            open.ends.push(End::new(Some(ep), shares));
        }
        Ok(open)
    }

    /// Makes a shared receive queue.
    pub fn make_srq(&mut self) -> Result<SrqHandle, udapl::DatError> {
        let attr = SrqAttr {
            max_recv_dtos: SHARED_DTOS,
            max_recv_iov: 1,
            low_watermark: 0,
        };
        self.ia.srq_create(self.pz, attr)
    }

    /// Makes an EVD for completions.
    pub fn make_dto(&mut self) -> Result<EvdHandle, udapl::DatError> {
        let flags = EvdFlags::DTO | EvdFlags::RMR_BIND;
        self.ia.evd_create(self.events, flags)
    }

    /// Creates an endpoint. If `shares` is true and there is a shared receive queue, the endpoint takes its receive
    /// buffers from that queue.
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

    /// Records that the posted DTOs of a freed or reset endpoint have ended, and that their completions may be lost.
    pub fn forget_posted(&mut self, end: &End) {
        let receives = end.receives.iter().map(|cookie| (false, *cookie));
        self.orphans.extend(receives);
        for work in &end.requests {
            self.orphans.insert((true, work.cookie));
            if let Kind::Bind(at) = work.kind {
                self.window_memories[at].binds -= 1;
            }
        }
    }

    /// Returns the adapter, and all memory that peers or the device could access.
    pub fn memories(mut self) -> (Ia, Vec<DmaMemory>) {
        let ia = self.ia.take();
        let regions = [
            self.source,
            self.inbox,
            self.written,
            self.offered,
            self.counter,
            self.sink,
            self.shared,
        ];
        let freeable = self.freeable.into_iter().map(|freeable| freeable.region);
        let window_memories = self
            .window_memories
            .into_iter()
            .map(|window_memory| window_memory.region);
        let all = regions.into_iter().chain(freeable).chain(window_memories);
        (ia, all.map(|mut region| region.memory.take()).collect())
    }

    /// Returns all regions.
    pub fn regions(&mut self) -> impl Iterator<Item = &mut Region> {
        let regions = [
            &mut self.source,
            &mut self.inbox,
            &mut self.written,
            &mut self.offered,
            &mut self.counter,
            &mut self.sink,
            &mut self.shared,
        ];
        let freeable = self.freeable.iter_mut().map(|it| &mut it.region);
        let window_memories = self.window_memories.iter_mut().map(|it| &mut it.region);
        regions.into_iter().chain(freeable).chain(window_memories)
    }

    /// Returns the index of the endpoint with this handle.
    pub fn end_of(&mut self, ep: EpHandle) -> Option<usize> {
        self.ends.iter().position(|end| end.ep == Some(ep))
    }
}
