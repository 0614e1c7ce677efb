//! Providers whose process ends: they are parked with all of their objects, and resumed from plain data.
//!
//! The simulated functions are behind vfio-user servers, because a function in the process cannot be parked. A server
//! sees one client, and the simulator counts the resets.

mod changed;
mod first;
mod network;
mod objects;
mod random;
mod refused;
mod several;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dat_core::provider::{
    Completion, CompletionEntry, CompletionQueue, DataSegment, MadAddress, ParkProvider, Path,
    Provider, ProviderError, Psn, Qpn, QueuePair, QueueSizes, QueuesOf, ReadyToReceive,
    ReadyToSend, RequestFlags, RequestOp, SharedReceiveQueue,
};
use dat_core::types::{DtoStatus, MemPrivFlags};
use dat_mlx::provider::Region;
use dat_mlx::queues::{Cq, Qp, Srq};
use dat_mlx::{
    MlxProvider, ParkingProvider, Participation, PendingMadSnapshot, ProviderConfig,
    ProviderSnapshot, RegionSnapshot,
};
use driver::handover::Claimed;
use driver::{Clock, Device, DmaMemory, Function, NamedFd, RealClock, VfioUserServer};
use hw_mlx::HcaConfig;
use hw_mlx::cq::CqSnapshot;
use hw_mlx::gid::gid_of;
use hw_mlx::gsi::{ReceivedMad, Route};
use hw_mlx::qp::QpSnapshot;
use hw_mlx::srq::SrqSnapshot;
use hw_mlx::window::{Window, WindowSnapshot};
use hw_sim::{Drive, FaultCause, LinkFaults, Profile, Sim, SimConfig, SimFunction};
use tempfile::TempDir;

/// Time limit of a test's waits, in ns.
const PATIENCE: u64 = 60_000_000_000;
/// Bytes of a message.
const BYTES: u32 = 3000;
/// Number of messages that the memory has room for, in each direction.
const SLOTS: u32 = 8;
const SLOT_BYTES: u32 = 4096;
const SIZES: QueueSizes = QueueSizes {
    max_requests: 16,
    max_recvs: 16,
    max_request_segments: 2,
    max_read_segments: 1,
    max_recv_segments: 2,
    binds: true,
};
const ALL: MemPrivFlags = MemPrivFlags::all();
/// Owner numbers of the queue pair, of the completion queue and of the shared receive queue.
const QP_OWNER: u32 = 7;
const CQ_OWNER: u32 = 8;
const SRQ_OWNER: u32 = 9;
const SRQ_RECVS: u32 = 20;
const SRQ_SEGMENTS: u32 = 2;
const REPORTED: RequestFlags = RequestFlags {
    suppress: false,
    solicited: false,
    fence: false,
    unsignalled: false,
};

/// Two simulated functions on a link, each behind a server's socket.
struct World {
    sim: Sim,
    functions: [Arc<SimFunction>; 2],
    directory: TempDir,
    /// True while the functions' time stands still, so that what is posted is not done.
    stopped: Arc<Mutex<bool>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl World {
    #[expect(
        clippy::disallowed_methods,
        reason = "the servers and their time are another process's"
    )]
    fn new() -> Self {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let functions = [1, 2].map(|n| {
            let mut profile = Profile::named(&format!("parked{n}"), mac(n)).ethernet();
            profile.pages.init = profile.pages.init.min(64);
            sim.add_function(profile)
        });
        sim.connect(&functions[0], &functions[1], LinkFaults::NONE);
        let directory = tempfile::tempdir().expect("a directory");
        let mut threads = Vec::new();
        for (n, function) in functions.iter().enumerate() {
            let (listener, taken) =
                driver::listen_at(&directory.path().join(n.to_string())).expect("a path");
            let device = Arc::clone(function) as Arc<dyn Device>;
            threads.push(thread::spawn(move || {
                let _taken = taken;
                let served = VfioUserServer::new(device, listener).serve_next();
                served.expect("a client");
            }));
        }
        let over = Arc::new(AtomicBool::new(false));
        let stopped = Arc::new(Mutex::new(false));
        let (ends, moved, stands) = (Arc::clone(&over), sim.clone(), Arc::clone(&stopped));
        threads.push(thread::spawn(move || {
            let clock = RealClock::new();
            while !ends.load(Ordering::Relaxed) {
                let stands = stands.lock().expect("no panic");
                if !*stands {
                    moved.advance(Duration::from_millis(1));
                }
                drop(stands);
                clock.wait(&[], clock.now() + Duration::from_millis(1));
            }
        }));
        Self {
            sim,
            functions,
            directory,
            stopped,
            over,
            threads,
        }
    }

    fn function(&self, n: u8) -> Function {
        let path = self.directory.path().join((n - 1).to_string());
        Function::vfio_user(path).expect("a server")
    }

    /// Opens a function that knows the other one from its configuration.
    fn open(&self, n: u8) -> MlxProvider {
        MlxProvider::open(self.function(n), config(n)).expect("bring-up")
    }

    /// Opens a function that takes part in the network, and knows the other one from its configuration if `knows_peer`.
    fn open_in_network(&self, n: u8, knows_peer: bool) -> MlxProvider {
        let mut hca = config(n);
        if !knows_peer {
            hca.neighbours.clear();
        }
        let config = ProviderConfig {
            hca,
            network: Participation::Required,
        };
        MlxProvider::open(self.function(n), config).expect("bring-up")
    }

    /// Stops the functions' time, and what register writes would start at once.
    fn stop_time(&self) {
        *self.stopped.lock().expect("no panic") = true;
        self.sim.set_drive(Drive::Stepped);
    }

    /// Lets the functions do all that is posted, and their time go on.
    fn go_on(&self) {
        self.sim.set_drive(Drive::Inline);
        self.sim.advance(Duration::from_millis(100));
        *self.stopped.lock().expect("no panic") = false;
    }

    fn resets(&self) -> [u64; 2] {
        [0, 1].map(|n| self.sim.report(&self.functions[n]).resets)
    }

    /// Ends the servers, whose clients are gone. The report of each function has no bugs.
    fn finish(mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("no panic");
        }
        for function in &self.functions {
            let report = self.sim.report(function);
            assert_eq!(report.driver_bugs, Vec::<String>::new());
            // A function that is stopped may have had packets under way.
            let mut faults = report.dma_faults.iter();
            assert!(
                faults.all(|it| it.cause == FaultCause::NotBusMaster),
                "{:?}",
                report.dma_faults
            );
        }
    }
}

/// Goes on with a provider that this process has parked.
fn resume(
    snapshot: &ProviderSnapshot,
    descriptors: Vec<NamedFd>,
) -> Result<MlxProvider, (Option<Vec<NamedFd>>, ProviderError)> {
    let unclaimed = MlxProvider::check(snapshot, descriptors)
        .map_err(|(descriptors, error)| (Some(descriptors), error))?;
    MlxProvider::go_on(unclaimed, &Claimed::by_caller()).map(only)
}

/// Returns the only instance of a function.
fn only<T>(mut all: Vec<T>) -> T {
    assert_eq!(all.len(), 1, "instances");
    all.remove(0)
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

fn address(n: u8) -> IpAddr {
    format!("10.0.0.{n}").parse().expect("an address")
}

fn config(n: u8) -> HcaConfig {
    let mut config = HcaConfig::new();
    config.addresses.push(address(n).into());
    config.neighbours.push((address(3 - n), mac(3 - n)));
    config
}

/// A provider with objects of each kind.
struct Node {
    provider: MlxProvider,
    things: Things,
}

/// The objects of a provider.
struct Things {
    pd: u32,
    cq: Cq,
    srq: Option<Srq>,
    qp: Qp,
    window: Option<Window>,
    memory: DmaMemory,
    /// Regions that all have the memory.
    regions: Vec<Region>,
    /// Key of the first region.
    key: u32,
}

impl Node {
    fn new(provider: MlxProvider) -> Self {
        Self::with(provider, false)
    }

    /// Makes a node whose queue pair takes its receives from a shared receive queue.
    fn with_srq(provider: MlxProvider) -> Self {
        Self::with(provider, true)
    }

    fn with(mut provider: MlxProvider, has_srq: bool) -> Self {
        let pd = provider.alloc_pd().expect("a PD");
        let cq = provider.create_cq(63, CQ_OWNER).expect("a CQ");
        let bytes = (2 * SLOTS * SLOT_BYTES) as usize;
        let buffer = provider.arena().alloc(bytes + 100, 4096).expect("memory");
        let memory = DmaMemory::Arena {
            buffer,
            offset: 64,
            bytes,
        };
        let mut register = || provider.register(pd, &memory, ALL).expect("a region");
        let (first, second) = (register(), register());
        let srq = has_srq.then(|| {
            let srq = provider.create_srq(pd, SRQ_RECVS, SRQ_SEGMENTS, SRQ_OWNER);
            srq.expect("an SRQ")
        });
        let qp = provider.create_qp(pd, &cq, &cq, srq.as_ref(), sizes(has_srq), QP_OWNER);
        let qp = qp.expect("a QP");
        let window = provider.create_window(pd).expect("a window");
        Self {
            provider,
            things: Things {
                pd,
                cq,
                srq,
                qp,
                window: Some(window),
                memory,
                key: first.lmr_context,
                regions: vec![first.region, second.region],
            },
        }
    }

    fn segment(&self, slot: u32) -> DataSegment {
        DataSegment {
            lmr_context: self.things.key,
            address: self.things.memory.address() + u64::from(slot * SLOT_BYTES),
            bytes: BYTES,
        }
    }

    /// Posts the receive of a slot. Its cookie is the slot and 1,000.
    fn receive(&mut self, slot: u32) {
        self.post_receive(slot, 1000 + u64::from(slot));
    }

    /// Posts the receive with a number, which is its cookie. Slots are used in turn.
    fn receive_as(&mut self, number: u32) {
        self.post_receive(number % SLOTS, number.into());
    }

    /// Posts a receive to the queue pair, or to its shared receive queue.
    fn post_receive(&mut self, slot: u32, cookie: u64) {
        let segment = core::iter::once(self.segment(SLOTS + slot));
        match &mut self.things.srq {
            Some(srq) => srq.post_recv(segment, cookie).expect("room"),
            None => self
                .things
                .qp
                .post_recv(segment, cookie, false)
                .expect("room"),
        }
    }

    /// Sends the message of a slot, whose cookie is the slot.
    fn send(&mut self, slot: u32) {
        self.post_send(slot, slot.into(), &pattern(slot));
    }

    /// Sends the message with a number, which is its cookie. Slots are used in turn.
    fn send_as(&mut self, number: u32) {
        self.post_send(number % SLOTS, number.into(), &pattern(number % 97));
    }

    fn post_send(&mut self, slot: u32, cookie: u64, data: &[u8]) {
        let segment = core::iter::once(self.segment(slot));
        self.write(slot, data);
        let qp = &mut self.things.qp;
        qp.post_request(RequestOp::Send, segment, cookie, REPORTED)
            .expect("room");
    }

    fn write(&self, slot: u32, data: &[u8]) {
        let DmaMemory::Arena { buffer, offset, .. } = &self.things.memory else {
            panic!("lent memory");
        };
        buffer.write_bytes(offset + (slot * SLOT_BYTES) as usize, data);
    }

    fn read(&self, slot: u32) -> Vec<u8> {
        let DmaMemory::Arena { buffer, offset, .. } = &self.things.memory else {
            panic!("lent memory");
        };
        let mut bytes = vec![0; BYTES as usize];
        buffer.read_bytes(offset + (slot * SLOT_BYTES) as usize, &mut bytes);
        bytes
    }

    /// Checks that the messages of these slots have come.
    fn check(&self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            assert_eq!(self.read(SLOTS + slot), pattern(slot), "slot {slot}");
        }
    }

    /// Takes the completions that are there.
    fn completions(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        let Things { cq, qp, srq, .. } = &mut self.things;
        while let Some(entry) = cq.poll() {
            assert_eq!(entry.owner(), QP_OWNER);
            done.extend(match srq {
                Some(srq) if !entry.is_request() => srq.complete(&entry),
                _ => qp.complete(&entry),
            });
        }
        done
    }

    /// Takes completions until there are `count`. Sleeps until an event of the queue comes: a queue whose arm requests
    /// are wrong has none.
    fn wait_for(&mut self, count: usize) -> Vec<Completion> {
        let deadline = self.provider.now() + PATIENCE;
        let mut done = self.completions();
        while done.len() < count {
            assert!(
                self.provider.now() < deadline,
                "{} of {count}: {done:?}",
                done.len()
            );
            self.things.cq.arm(false);
            let more = self.completions();
            if more.is_empty() {
                self.wait_for_event("more completions");
            }
            done.extend(more);
            done.extend(self.completions());
        }
        done
    }

    /// Sleeps until the event of the armed queue has come.
    fn wait_for_event(&mut self, what: &str) {
        let deadline = self.provider.now() + PATIENCE;
        while self.things.cq.is_armed() {
            assert!(self.provider.now() < deadline, "{what}: no event");
            self.provider.wait(deadline).expect("alive");
        }
    }

    /// Parks the provider and all of its objects.
    fn park(self) -> Parked {
        let (parking, objects) = self.written_out();
        let finished = MlxProvider::finish_parking(parking);
        let (snapshot, descriptors) = finished.map_err(|(_, error)| error).expect("parked");
        Parked {
            snapshot,
            descriptors,
            objects,
        }
    }

    /// Reaches the quiet point, and writes all objects out.
    fn written_out(self) -> (ParkingProvider, Objects) {
        let Self { provider, things } = self;
        let Things {
            memory, regions, ..
        } = &things;
        for region in regions {
            provider
                .can_park_region(region, memory)
                .expect("the arena's");
        }
        let begun = MlxProvider::begin_parking(vec![provider]);
        let mut parking = begun.map_err(|(_, error)| error).expect("quiet");
        let objects = things.park(&mut parking);
        (parking, objects)
    }
}

impl Things {
    fn park(self, parking: &mut ParkingProvider) -> Objects {
        let Self {
            pd,
            cq,
            srq,
            qp,
            window,
            memory,
            regions,
            key: _,
        } = self;
        let regions = regions.into_iter();
        Objects {
            qp: MlxProvider::park_qp(parking, qp),
            srq: srq.map(|srq| MlxProvider::park_srq(parking, srq)),
            window: window.map(|window| MlxProvider::park_window(parking, window)),
            regions: regions
                .map(|region| MlxProvider::park_region(parking, region, memory.clone()))
                .collect(),
            cq: MlxProvider::park_cq(parking, cq),
            pd: MlxProvider::park_pd(parking, pd),
        }
    }
}

/// A provider that was parked, with its objects.
struct Parked {
    snapshot: ProviderSnapshot,
    descriptors: Vec<NamedFd>,
    objects: Objects,
}

impl Parked {
    fn resume(self) -> Node {
        let Self {
            snapshot,
            descriptors,
            objects,
        } = self;
        let resumed = resume(&snapshot, descriptors);
        let provider = resumed.map_err(|(_, error)| error).expect("resumed");
        objects.resume(provider)
    }
}

/// Snapshots of the objects of a provider.
#[derive(Clone, Debug, PartialEq)]
struct Objects {
    pd: u32,
    cq: CqSnapshot,
    srq: Option<SrqSnapshot>,
    qp: QpSnapshot,
    window: Option<WindowSnapshot>,
    regions: Vec<RegionSnapshot>,
}

impl Objects {
    /// Resumes all objects, and ends the resumption.
    fn resume(&self, mut provider: MlxProvider) -> Node {
        let things = self.try_resume(&mut provider).expect("resumed");
        provider.finish_resuming().expect("all is there");
        Node { provider, things }
    }

    /// Resumes all objects.
    fn try_resume(&self, provider: &mut MlxProvider) -> Result<Things, ProviderError> {
        let pd = provider.resume_pd(&self.pd)?;
        self.resume_in(pd, provider)
    }

    /// Resumes all objects of a protection domain.
    fn resume_in(&self, pd: u32, provider: &mut MlxProvider) -> Result<Things, ProviderError> {
        let (mut regions, mut key, mut memory) = (Vec::new(), None, None);
        for region in &self.regions {
            let (registration, its) = provider.resume_region(pd, ALL, region)?;
            key.get_or_insert(registration.lmr_context);
            memory.get_or_insert(its);
            regions.push(registration.region);
        }
        let window = &self.window;
        let window = window
            .as_ref()
            .map(|window| provider.resume_window(pd, 0, window))
            .transpose()?;
        let cq = provider.resume_cq(CQ_OWNER, &self.cq)?;
        let srq = &self.srq;
        let srq = srq
            .as_ref()
            .map(|srq| provider.resume_srq(pd, SRQ_RECVS, SRQ_SEGMENTS, SRQ_OWNER, srq))
            .transpose()?;
        let queues = QueuesOf {
            request_cq: &cq,
            recv_cq: &cq,
            srq: srq.as_ref(),
        };
        let qp = provider.resume_qp(pd, queues, sizes(srq.is_some()), QP_OWNER, &self.qp)?;
        Ok(Things {
            pd,
            cq,
            srq,
            qp,
            window,
            memory: memory.expect("a region"),
            regions,
            key: key.expect("a region"),
        })
    }
}

/// Returns a datagram that waits for the MAC of the other function.
fn pending() -> PendingMadSnapshot {
    PendingMadSnapshot {
        to: MadAddress {
            path: Path {
                source_gid_index: 1,
                gid: gid_of(address(2)),
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                priority: 0,
            },
            qpn: Qpn::GSI,
        },
        source: address(1),
        mad: [0; 256],
    }
}

/// Returns a datagram that was received from the other function.
fn arrived(byte: u8) -> ReceivedMad {
    ReceivedMad {
        route: Route {
            source: gid_of(address(2)),
            destination: gid_of(address(1)),
            traffic_class: 0,
        },
        qpn: Qpn::GSI,
        mad: [byte; 256],
    }
}

fn sizes(has_srq: bool) -> QueueSizes {
    QueueSizes {
        max_recvs: if has_srq { 0 } else { SIZES.max_recvs },
        ..SIZES
    }
}

/// Moves the queue pair of a node to RTS. `n` is the number of the other node.
fn ready(node: &mut Node, n: u8, peer: &Qp) {
    let receive = ReadyToReceive {
        path: node
            .provider
            .route(gid_of(address(n)), None)
            .expect("a path"),
        remote_qpn: peer.number(),
        receive_psn: Psn::masked(0xff_fffe),
        mtu: 3,
        reads_in: 1,
        min_rnr_timer: 12,
    };
    let Node { provider, things } = node;
    provider
        .ready_to_receive(&mut things.qp, &receive)
        .expect("RTR");
    let send = ReadyToSend {
        send_psn: Psn::masked(0xff_fffe),
        reads_out: 1,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 18,
    };
    provider.ready_to_send(&mut things.qp, &send).expect("RTS");
}

fn connect(a: &mut Node, b: &mut Node) {
    ready(a, 2, &b.things.qp);
    ready(b, 1, &a.things.qp);
}

fn pattern(slot: u32) -> Vec<u8> {
    (0..BYTES)
        .map(|at| u8::try_from((at * 7 + slot * 31) % 251).expect("a byte"))
        .collect()
}

/// Cookies of successful completions, sorted.
fn cookies(done: &[Completion]) -> Vec<u64> {
    assert!(
        done.iter().all(|it| it.status == DtoStatus::Success),
        "{done:?}"
    );
    let mut cookies: Vec<u64> = done.iter().map(|it| it.cookie).collect();
    cookies.sort_unstable();
    cookies
}
