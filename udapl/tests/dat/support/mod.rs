//! Two adapters on one link, connected or ready to connect, and helpers for frequent steps.
//!
//! Time is virtual unless the functions are real ([`world`]). A side's software runs only when the test calls it. So
//! every step that needs both sides (above all connection management) goes through [`Pair::pump`] or one of the `wait`
//! functions, which let both sides make progress.

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
use udapl::connection::PspHandle;
use udapl::endpoint::EpAttr;
use udapl::error::ReturnType;
use udapl::event::DtoCompletion;
use udapl::fabric::Fabric;
use udapl::memory::{LmrCreated, LmrTriplet, PzHandle, RmrTriplet};
use udapl::srq::SrqHandle;
use udapl::{
    CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DatError, DatResult, DmaMemory,
    DtoCookie, DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags,
    OpenOptions, PspFlags, Qos, Timeout,
};

use world::World;

/// Connection qualifier of the tests: an IB service ID, so that private data keeps its exact length.
pub const CONN_QUAL: ConnQual = ConnQual::service_id(0x1_0000_0042);

/// Returns the connection qualifier `at` above `CONN_QUAL`.
pub const fn beside(at: u64) -> ConnQual {
    ConnQual::service_id(CONN_QUAL.0 + at)
}
/// Time limit that is long enough for everything in virtual time, and short enough to end a stuck test.
pub const LONG: Timeout = Timeout::from_micros(60_000_000);
/// Completion flags: none.
pub const NONE: CompletionFlags = CompletionFlags::empty();
/// Index of the active side.
pub const A: usize = 0;
/// Index of the passive side.
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

/// Registered memory, with its LMR and its length.
pub struct Buffer {
    pub memory: DmaMemory,
    pub lmr: LmrCreated,
    pub bytes: usize,
}

impl Buffer {
    /// Returns a local triplet of `bytes` bytes from `offset` on.
    pub fn part(&self, offset: usize, bytes: usize) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr.lmr_context,
            virtual_address: self.lmr.registered_address + offset as u64,
            segment_length: bytes as u64,
        }
    }

    /// Returns a local triplet of the whole buffer.
    pub fn all(&self) -> LmrTriplet {
        self.part(0, self.bytes)
    }

    /// Returns a remote triplet of `bytes` bytes from `offset` on, for the peer.
    pub fn remote(&self, offset: usize, bytes: usize) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            target_address: self.lmr.registered_address + offset as u64,
            segment_length: bytes as u64,
        }
    }

    /// Returns a triplet of the whole buffer for the peer.
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

/// Settings of a `Pair`.
#[derive(Clone)]
pub struct PairConfig {
    pub seed: u64,
    pub faults: LinkFaults,
    pub attr: [Option<EpAttr>; 2],
    pub options: [OpenOptions; 2],
    pub evd_qlen: u32,
    /// Maximum number of receives in the SRQ of side B's endpoint; `None` if the endpoint uses no SRQ.
    pub srq: Option<u32>,
    /// Function that changes the profile of both simulated functions.
    pub profile: fn(Profile) -> Profile,
    /// True if the simulator keeps its event log; false for runs of a million packets.
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
    /// Returns the defaults with other attributes of both endpoints.
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

/// Returns attributes that suit most tests: 64 DTOs each way, 8 segments, 4 RDMA Reads.
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
    /// Opens both sides. B listens, but no endpoint is connected.
    pub fn unconnected(config: &PairConfig) -> Self {
        Self::over(World::new(config), config)
    }

    /// Like `Pair::unconnected`, on an existing fabric.
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
                let attr_srq = udapl::srq::SrqAttr {
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

    /// Opens and connects both sides.
    pub fn connected() -> Self {
        Self::connected_with(&PairConfig::default())
    }

    /// Opens and connects both sides, with other settings.
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

    /// Connects the endpoint `a` of A to the endpoint `b` of B, which listens at `CONN_QUAL`.
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

    /// Registers `bytes` of new memory of a side with all rights.
    pub fn buffer(&mut self, side: usize, bytes: usize) -> Buffer {
        let pz = self.sides[side].pz;
        self.buffer_in(side, bytes, pz, MemPrivFlags::all())
    }

    /// Registers `bytes` of new memory of a side in the given PZ with the given rights.
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

    /// Lets both sides make progress once, and advances time by 0.1 ms.
    pub fn pump(&mut self) {
        for side in &mut self.sides {
            side.ia.progress();
        }
        self.fabric.pass_time();
    }

    /// Waits for the next event of an EVD, while both sides make progress.
    pub fn wait_event(&mut self, side: usize, evd: EvdHandle) -> Event {
        self.poll_event(side, evd, 600_000).unwrap_or_else(|| {
            panic!("side {side}: no event on {evd:?} within a minute of virtual time")
        })
    }

    /// Returns the next event of an EVD; `None` if there is none after this many calls of `Pair::pump`.
    pub fn poll_event(&mut self, side: usize, evd: EvdHandle, pumps: usize) -> Option<Event> {
        let mut turns = self.fabric.iterations(pumps);
        while turns.next() {
            if let Some(event) = self.sides[side].ia.evd_dequeue(evd).expect("an EVD") {
                return Some(event);
            }
            self.pump();
        }
        None
    }

    /// Waits for the next DTO completion of an EVD.
    pub fn wait_dto(&mut self, side: usize, evd: EvdHandle) -> DtoCompletion {
        let event = self.wait_event(side, evd);
        let Event::Dto(completion) = event else {
            panic!("side {side}: a DTO completion, not {event:?}");
        };
        completion
    }

    /// Waits for the next completion of the side's request EVD.
    pub fn wait_request(&mut self, side: usize) -> DtoCompletion {
        self.wait_dto(side, self.sides[side].request)
    }

    /// Waits for the next completion of the side's receive EVD.
    pub fn wait_recv(&mut self, side: usize) -> DtoCompletion {
        self.wait_dto(side, self.sides[side].recv)
    }

    /// Waits for the next event of the side's connection EVD, which must be of this kind.
    pub fn expect_connection(&mut self, side: usize, kind: ConnectionEventKind) {
        let event = self.wait_event(side, self.sides[side].connect);
        let Event::Connection(event) = event else {
            panic!("side {side}: {kind:?}, not {event:?}");
        };
        assert_eq!(event.kind, kind, "side {side}");
    }

    /// Checks that the EVD is empty, and stays so for ten milliseconds of virtual time.
    pub fn expect_nothing(&mut self, side: usize, evd: EvdHandle) {
        assert_eq!(self.poll_event(side, evd, 100), None, "side {side}");
    }

    /// Returns the state of the side's endpoint.
    pub fn state(&self, side: usize) -> udapl::endpoint::EpState {
        let side = &self.sides[side];
        side.ia.ep_get_status(side.ep).expect("a status").state
    }

    /// Returns the virtual time.
    pub fn now(&self) -> driver::Instant {
        self.fabric.sim.clock().now()
    }

    /// Sets the delay of frames in both directions, in microseconds, from now on. Ends all other faults of the link.
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

    /// Ends the connection from side A and dequeues both DISCONNECTED events.
    pub fn disconnect(&mut self) {
        let ep = self.sides[A].ep;
        self.sides[A]
            .ia
            .ep_disconnect(ep, udapl::CloseFlags::Abrupt)
            .expect("the disconnect is accepted");
        self.expect_connection(A, ConnectionEventKind::Disconnected);
        self.expect_connection(B, ConnectionEventKind::Disconnected);
    }

    /// Sends `bytes` bytes of a buffer from A into a receive of B and dequeues both completions.
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

    /// Checks that the simulator has reported no DMA fault and no driver bug.
    pub fn assert_no_complaints(&self) {
        // Functions that another process serves are checked by that process.
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

/// Returns bytes that differ by position and by seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut data = vec![0; bytes];
    rand_chacha::ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut data);
    data
}

/// Checks that the call failed with this return type. Returns the error.
#[track_caller]
pub fn refused<T: core::fmt::Debug>(result: Result<T, DatError>, with: ReturnType) -> DatError {
    let error = result.expect_err("the call is refused");
    assert_eq!(error.return_type(), with, "{error}");
    error
}
