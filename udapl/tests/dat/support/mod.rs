//! Two adapters on one simulated link, connected or about to be, and short ways to say what tests say often.
//!
//! Time is the simulator's. Each side's software runs only when that side is called, so whatever needs
//! both (connection management above all) goes through [`Pair::pump`] or one of the `wait` functions,
//! which give both sides their turn.

pub mod connecting;
pub mod forged;
pub mod functions;
pub mod rdma;
pub mod rogue;
pub mod shared;
pub mod waiting;
pub mod windows;
pub mod wire;
pub mod world;

use hw_sim::{Faults, LinkFaults, Profile};
use udapl::fabric::Fabric;
use udapl::{
    CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DatError, DatResult, DmaMemory,
    DtoCompletion, DtoCookie, DtoStatus, EpAttr, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia,
    LmrCreated, LmrTriplet, MemPrivFlags, OpenOptions, PspFlags, PspHandle, PzHandle, Qos,
    ReturnType, RmrTriplet, SrqHandle, Timeout,
};

use world::World;

/// The connection qualifier tests listen on: an IB service ID, so private data has its exact length.
pub const CONN_QUAL: ConnQual = ConnQual::service_id(0x1_0000_0042);

/// A qualifier beside it.
pub const fn beside(at: u64) -> ConnQual {
    ConnQual::service_id(CONN_QUAL.0 + at)
}
/// Long enough for everything in virtual time, short enough to end a stuck test.
pub const LONG: Timeout = Timeout::from_micros(60_000_000);
/// No flags.
pub const NONE: CompletionFlags = CompletionFlags::empty();
/// The active side.
pub const A: usize = 0;
/// The passive side.
pub const B: usize = 1;

/// One side: an adapter, a PZ, EVDs and an endpoint.
pub struct Side {
    pub ia: Ia,
    pub pz: PzHandle,
    pub recv: EvdHandle,
    pub request: EvdHandle,
    pub connect: EvdHandle,
    pub cr: EvdHandle,
    pub ep: EpHandle,
}

/// Registered memory and what names it.
pub struct Buffer {
    pub memory: DmaMemory,
    pub lmr: LmrCreated,
    pub bytes: usize,
}

impl Buffer {
    /// A local triplet of `bytes` from `offset` on.
    pub fn part(&self, offset: usize, bytes: usize) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr.lmr_context,
            virtual_address: self.lmr.registered_address + offset as u64,
            segment_length: bytes as u64,
        }
    }

    /// The whole of it as a local triplet.
    pub fn all(&self) -> LmrTriplet {
        self.part(0, self.bytes)
    }

    /// What a peer is told.
    pub fn remote(&self, offset: usize, bytes: usize) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            target_address: self.lmr.registered_address + offset as u64,
            segment_length: bytes as u64,
        }
    }

    /// The whole of it, as a peer is told.
    pub fn all_remote(&self) -> RmrTriplet {
        self.remote(0, self.bytes)
    }

    pub fn write(&self, offset: usize, data: &[u8]) {
        self.memory.write_from(offset, data).expect("inside");
    }

    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.memory.read(offset, bytes).expect("inside")
    }
}

/// How a pair is made.
#[derive(Clone)]
pub struct PairConfig {
    pub seed: u64,
    pub faults: LinkFaults,
    pub attr: [Option<EpAttr>; 2],
    pub options: [OpenOptions; 2],
    pub evd_qlen: u32,
    /// Side B's endpoint takes its buffers from an SRQ of this many.
    pub srq: Option<u32>,
    /// Shapes both simulated functions.
    pub profile: fn(Profile) -> Profile,
    /// Keep the event log; a run of a million packets is better off without.
    pub event_log: bool,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            faults: LinkFaults::default(),
            attr: [None; 2],
            options: [Fabric::options(0), Fabric::options(1)],
            evd_qlen: 256,
            srq: None,
            profile: |profile| profile,
            event_log: true,
        }
    }
}

impl PairConfig {
    /// The usual, except for some attributes of both endpoints.
    pub fn with_attr(change: impl FnOnce(&mut EpAttr)) -> Self {
        let probe = Fabric::pair(0).open(A).expect("the adapter opens");
        let mut attr = attributes(&probe);
        change(&mut attr);
        Self {
            attr: [Some(attr); 2],
            ..Self::default()
        }
    }
}

/// Two sides on one link.
pub struct Pair {
    pub fabric: World,
    pub sides: [Side; 2],
    pub psp: PspHandle,
    pub srq: Option<SrqHandle>,
}

/// Attributes that suit most tests: 64 DTOs each way, 8 segments, 4 RDMA Reads.
pub fn attributes(ia: &Ia) -> EpAttr {
    EpAttr {
        max_recv_dtos: 64,
        max_request_dtos: 64,
        max_recv_iov: 8,
        max_request_iov: 8,
        max_rdma_read_in: 4,
        max_rdma_read_out: 4,
        ..EpAttr::defaults(ia.query().ia)
    }
}

impl Pair {
    /// Both sides open, the passive one listening, nothing connected.
    pub fn unconnected(config: &PairConfig) -> Self {
        Self::over(World::new(config), config)
    }

    /// The same over a fabric that is there already.
    pub fn over(fabric: impl Into<World>, config: &PairConfig) -> Self {
        let fabric = fabric.into();
        let mut srq = None;
        let sides = [A, B].map(|side| {
            let mut ia = fabric
                .open_side(side, &config.options[side])
                .expect("the adapter opens");
            let pz = ia.pz_create().expect("a PZ");
            let [recv, request] = [EvdFlags::DTO, EvdFlags::DTO]
                .map(|flags| ia.evd_create(config.evd_qlen, flags).expect("an EVD"));
            let connect = ia.evd_create(16, EvdFlags::CONNECTION).expect("an EVD");
            let cr = ia.evd_create(16, EvdFlags::CR).expect("an EVD");
            let attr = config.attr[side].unwrap_or_else(|| attributes(&ia));
            let ep = if let (B, Some(max_recv_dtos)) = (side, config.srq) {
                let attr_srq = udapl::SrqAttr {
                    max_recv_dtos,
                    max_recv_iov: 8,
                    low_watermark: 0,
                };
                let queue = ia.srq_create(pz, attr_srq).expect("an SRQ");
                srq = Some(queue);
                ia.ep_create_with_srq(
                    Some(pz),
                    EpEvds::NONE.recv(recv).request(request).connect(connect),
                    queue,
                    &attr,
                )
            } else {
                ia.ep_create(
                    Some(pz),
                    EpEvds::NONE.recv(recv).request(request).connect(connect),
                    Some(&attr),
                )
            }
            .expect("an endpoint");
            Side {
                ia,
                pz,
                recv,
                request,
                connect,
                cr,
                ep,
            }
        });
        let [a, mut b] = sides;
        let psp =
            b.ia.psp_create(CONN_QUAL, b.cr, PspFlags::CONSUMER)
                .expect("a PSP");
        Self {
            fabric,
            sides: [a, b],
            psp,
            srq,
        }
    }

    /// Both sides connected.
    pub fn connected() -> Self {
        Self::connected_with(&PairConfig::default())
    }

    /// Both sides connected, otherwise than usual.
    pub fn connected_with(config: &PairConfig) -> Self {
        let mut pair = Self::unconnected(config);
        pair.connect();
        pair
    }

    /// Connects the two endpoints.
    pub fn connect(&mut self) {
        let (a, b) = (self.sides[A].ep, self.sides[B].ep);
        self.connect_endpoints(a, b);
    }

    /// Connects an endpoint of A to one of B.
    pub fn connect_endpoints(&mut self, a: EpHandle, b: EpHandle) {
        let address = self.sides[B].ia.query().ia.ia_address;
        self.sides[A]
            .ia
            .ep_connect(
                a,
                address,
                CONN_QUAL,
                LONG,
                b"request",
                Qos::BEST_EFFORT,
                ConnectFlags::empty(),
            )
            .expect("the connect is accepted");
        let Event::ConnectionRequest(request) = self.wait_event(B, self.sides[B].cr) else {
            panic!("a connection request");
        };
        self.sides[B]
            .ia
            .cr_accept(request.cr, Some(b), b"accept")
            .expect("the accept is accepted");
        self.expect_connection(A, ConnectionEventKind::Established);
        self.expect_connection(B, ConnectionEventKind::Established);
    }

    /// Registers `bytes` of new memory of a side with every right.
    pub fn buffer(&mut self, side: usize, bytes: usize) -> Buffer {
        let pz = self.sides[side].pz;
        self.buffer_in(side, bytes, pz, MemPrivFlags::all())
    }

    /// Registers `bytes` of new memory of a side.
    pub fn buffer_in(
        &mut self,
        side: usize,
        bytes: usize,
        pz: PzHandle,
        rights: MemPrivFlags,
    ) -> Buffer {
        let ia = &mut self.sides[side].ia;
        let memory = udapl::alloc(ia, bytes.max(1)).expect("memory");
        let lmr = ia.lmr_create(memory.clone(), pz, rights).expect("an LMR");
        Buffer { memory, lmr, bytes }
    }

    /// Gives both sides' software a turn, and time a step of a tenth of a millisecond.
    pub fn pump(&mut self) {
        for side in &mut self.sides {
            side.ia.progress();
        }
        self.fabric.pass_time();
    }

    /// The next event of an EVD, both sides running meanwhile.
    pub fn wait_event(&mut self, side: usize, evd: EvdHandle) -> Event {
        self.poll_event(side, evd, 600_000).unwrap_or_else(|| {
            panic!("side {side}: no event on {evd:?} within a minute of virtual time")
        })
    }

    /// The next event of an EVD within so many pumps.
    pub fn poll_event(&mut self, side: usize, evd: EvdHandle, pumps: usize) -> Option<Event> {
        let mut turns = self.fabric.turns(pumps);
        while turns.next() {
            if let Some(event) = self.sides[side].ia.evd_dequeue(evd).expect("an EVD") {
                return Some(event);
            }
            self.pump();
        }
        None
    }

    /// The next DTO completion of an EVD.
    pub fn wait_dto(&mut self, side: usize, evd: EvdHandle) -> DtoCompletion {
        let event = self.wait_event(side, evd);
        let Event::Dto(completion) = event else {
            panic!("side {side}: a DTO completion, not {event:?}");
        };
        completion
    }

    /// The next completion of the side's request EVD.
    pub fn wait_request(&mut self, side: usize) -> DtoCompletion {
        self.wait_dto(side, self.sides[side].request)
    }

    /// The next completion of the side's receive EVD.
    pub fn wait_recv(&mut self, side: usize) -> DtoCompletion {
        self.wait_dto(side, self.sides[side].recv)
    }

    /// The next event of the side's connection EVD must be this.
    pub fn expect_connection(&mut self, side: usize, kind: ConnectionEventKind) {
        let event = self.wait_event(side, self.sides[side].connect);
        let Event::Connection(event) = event else {
            panic!("side {side}: {kind:?}, not {event:?}");
        };
        assert_eq!(event.kind, kind, "side {side}");
    }

    /// Nothing is on the EVD, and nothing comes within ten milliseconds of virtual time.
    pub fn expect_nothing(&mut self, side: usize, evd: EvdHandle) {
        assert_eq!(self.poll_event(side, evd, 100), None, "side {side}");
    }

    /// The state of the side's endpoint.
    pub fn state(&self, side: usize) -> udapl::EpState {
        let side = &self.sides[side];
        side.ia.ep_get_status(side.ep).expect("a status").state
    }

    /// Virtual time.
    pub fn now(&self) -> driver::Instant {
        self.fabric.sim.clock().now()
    }

    /// From now on frames fly so many microseconds, in both directions.
    pub fn set_delay(&mut self, micros: u64) {
        let faults = Faults {
            delay_ns: micros * 1000,
            ..Faults::default()
        };
        self.fabric
            .sim
            .set_faults(self.fabric.link, LinkFaults::both(faults));
    }

    /// Posts a Send on the side's endpoint.
    pub fn post_send(
        &mut self,
        side: usize,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let ep = self.sides[side].ep;
        self.sides[side]
            .ia
            .ep_post_send(ep, iov, DtoCookie(cookie), flags)
    }

    /// Posts a Receive on the side's endpoint.
    pub fn post_recv(
        &mut self,
        side: usize,
        iov: &[LmrTriplet],
        cookie: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let ep = self.sides[side].ep;
        self.sides[side]
            .ia
            .ep_post_recv(ep, iov, DtoCookie(cookie), flags)
    }

    /// Ends the connection from side A and takes both DISCONNECTED events.
    pub fn disconnect(&mut self) {
        let ep = self.sides[A].ep;
        self.sides[A]
            .ia
            .ep_disconnect(ep, udapl::CloseFlags::Abrupt)
            .expect("the disconnect is accepted");
        self.expect_connection(A, ConnectionEventKind::Disconnected);
        self.expect_connection(B, ConnectionEventKind::Disconnected);
    }

    /// Sends `bytes` bytes of a buffer from A into a receive of B and takes both completions.
    pub fn send(&mut self, from: &Buffer, to: &Buffer, bytes: usize) {
        let (a, b) = (self.sides[A].ep, self.sides[B].ep);
        self.sides[B]
            .ia
            .ep_post_recv(b, &[to.all()], DtoCookie(1), NONE)
            .expect("the receive is posted");
        self.sides[A]
            .ia
            .ep_post_send(a, &[from.part(0, bytes)], DtoCookie(2), NONE)
            .expect("the send is posted");
        let received = self.wait_recv(B);
        assert_eq!(
            (received.status, received.transferred_length),
            (DtoStatus::Success, bytes as u64)
        );
        assert_eq!(self.wait_request(A).status, DtoStatus::Success);
    }

    /// Nothing the simulator has to complain of: no DMA fault, no driver bug.
    pub fn assert_no_complaints(&self) {
        // Whoever serves the functions says it elsewhere.
        let Some(fabric) = self.fabric.simulated() else {
            return;
        };
        for side in [A, B] {
            let report = fabric.report(side);
            assert!(
                report.dma_faults.is_empty(),
                "side {side}: {:?}",
                report.dma_faults
            );
            assert!(
                report.driver_bugs.is_empty(),
                "side {side}: {:?}",
                report.driver_bugs
            );
        }
    }
}

/// Bytes that differ everywhere and from seed to seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut data = vec![0; bytes];
    rand_chacha::ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

/// The call failed with this type.
#[track_caller]
pub fn refused<T: core::fmt::Debug>(result: Result<T, DatError>, with: ReturnType) -> DatError {
    let error = result.expect_err("the call is refused");
    assert_eq!(error.return_type(), with, "{error}");
    error
}
