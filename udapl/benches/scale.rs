//! Costs of many endpoints: memory, connections per second, and the time of a post and of a dequeue.
//!
//! `scale [ENDPOINTS [INSTANCES]]` brings up two simulated functions, opens several instances of each, creates the
//! endpoints on both functions, and connects each endpoint to an endpoint of the other function (default: 60,000 and
//! 4). First it measures the rate of connections with 8,192 endpoints, in one and in several instances, with one thread
//! and with a thread for each instance. `scale count REGION ENDPOINTS` creates the endpoints in one instance and runs
//! `REGION` once, for callgrind.
//!
//! Resident memory is the kernel's figure for this process (`/proc/self/status`). Shared memory is DMA memory;
//! anonymous memory is the heap of driver and simulator together, on both sides. Times are the CPU time of all threads
//! of this process, so that other processes do not count. Only ratios of these times are meaningful.
//!
//! A region of posts or of dequeues uses every endpoint once, in an order in which successive endpoints are not
//! adjacent in memory. So an endpoint's cache lines are as cold as in a program that uses that many endpoints.

#[path = "../tests/hotpath/deaf.rs"]
mod deaf;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use dat_mlx::MlxProvider;
use deaf::{Deaf, FilteredFunction};
use driver::{Device, Function};
use hw_mlx::HcaConfig;
use hw_sim::{LinkFaults, Profile, Sim, SimConfig, SimFunction};
use nix::time::{ClockId, clock_gettime};
use udapl::adapter::IaConfig;
use udapl::endpoint::EpAttr;
use udapl::memory::{LmrSlice, RmrTriplet};
use udapl::{
    Adapter, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, EpEvds,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, PspFlags, Qos, Timeout,
};

const NONE: CompletionFlags = CompletionFlags::empty();
const PATIENCE: Timeout = Timeout::from_micros(60_000_000);
/// Maximum number of outstanding requests, and of receives, for each endpoint.
const DEPTH: u32 = 128;
/// Number of connections being established at a time.
const UNDER_WAY: usize = 64;
/// Returns the connection qualifiers of the instances, from 0x1_0000_0001 up.
fn quals() -> impl Iterator<Item = ConnQual> {
    (0x1_0000_0001..).map(ConnQual::service_id)
}
/// Number of repetitions of a region whose work does not depend on the number of endpoints.
const TIMES: u32 = 1024;

/// An instance, and its endpoints in the order of use.
struct Instance {
    ia: Ia,
    events: EvdHandle,
    eps: Vec<EpHandle>,
    slice: LmrSlice,
    remote: RmrTriplet,
}

impl Instance {
    /// Creates the objects of an instance. The EVD holds two events for each endpoint, and at least 1,024 events.
    fn new(mut ia: Ia, endpoints: usize, qual: ConnQual) -> Self {
        let pz = ia.pz_create().expect("a PZ");
        let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let room = u32::try_from(2 * endpoints).expect("a number of endpoints");
        let events = ia.evd_create(room.max(1024), flags).expect("an EVD");
        ia.psp_create(qual, events, PspFlags::CONSUMER)
            .expect("a PSP");
        let memory = udapl::alloc(&ia, 4096).expect("memory");
        let lmr = ia
            .lmr_create(memory, pz, MemPrivFlags::all())
            .expect("an LMR");
        let attr = EpAttr {
            max_recv_dtos: DEPTH,
            max_request_dtos: DEPTH,
            max_recv_iov: 1,
            max_request_iov: 1,
            ..EpAttr::defaults(ia.query().ia)
        };
        let made: Vec<EpHandle> = (0..endpoints)
            .map(|_| {
                ia.ep_create(Some(pz), EpEvds::all(events), Some(&attr))
                    .expect("an endpoint")
            })
            .collect();
        Self {
            slice: ia.lmr_slice(lmr.lmr, 0, 64).expect("a slice"),
            remote: RmrTriplet {
                rmr_context: lmr.rmr_context,
                target_address: lmr.registered_address,
                segment_length: 64,
            },
            eps: scattered(&made),
            ia,
            events,
        }
    }

    fn connect(&mut self, ep: EpHandle, to: &Self, qual: ConnQual) {
        let address = to.ia.query().ia.ia_address;
        let (best, flags) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        self.ia
            .ep_connect(ep, address, qual, PATIENCE, &[], best, flags)
            .expect("begun");
    }

    /// Dequeues all events. Accepts each connection request with the next endpoint of `free`. Returns the number of
    /// connections established.
    fn take(&mut self, free: &mut impl Iterator<Item = EpHandle>) -> usize {
        let mut established = 0;
        while let Ok(Some(event)) = self.ia.evd_dequeue(self.events) {
            if let Event::ConnectionRequest(request) = event {
                let ep = free.next().expect("an endpoint for each request");
                let accepted = self.ia.cr_accept(request.cr, Some(ep), &[]);
                accepted.expect("accepted");
            } else {
                let is_established = matches!(event, Event::Connection(event) if event.kind == ConnectionEventKind::Established);
                assert!(is_established, "{event:?}");
                established += 1;
            }
        }
        established
    }

    /// Dequeues all events.
    fn drain(&mut self) {
        while matches!(self.ia.evd_dequeue(self.events), Ok(Some(_))) {}
    }
}

/// Returns the endpoints in an order in which successive endpoints are far apart in memory.
fn scattered(eps: &[EpHandle]) -> Vec<EpHandle> {
    // A prime that divides no usual number of endpoints.
    const STEP: usize = 7919;
    (0..eps.len())
        .map(|at| eps[at * STEP % eps.len()])
        .collect()
}

/// Connects each endpoint of `one` to an endpoint of `other`, which listens at `qual`.
fn connect(one: &mut Instance, other: &mut Instance, qual: ConnQual) {
    let (mine, theirs) = (one.eps.clone(), other.eps.clone());
    let mut free = theirs.into_iter();
    for window in mine.chunks(UNDER_WAY) {
        for &ep in window {
            one.connect(ep, other, qual);
        }
        let mut left = [window.len(); 2];
        while left != [0; 2] {
            left[0] -= one.take(&mut std::iter::empty());
            left[1] -= other.take(&mut free);
        }
    }
}

/// A function with several instances.
struct Side {
    instances: Vec<Instance>,
    device: Arc<FilteredFunction>,
    /// Number of bytes that the function's arena has mapped: in total, and since the first IA was opened.
    mapped: [usize; 2],
}

fn function(sim: &Sim, name: &str, number: u8) -> Arc<SimFunction> {
    sim.add_function(Profile::named(name, [2, 0, 0, 0, 0, number]))
}

impl Side {
    fn new(function: Arc<SimFunction>, endpoints: usize, instances: usize) -> Self {
        let device = Deaf::wrap_function(function);
        let handle =
            Function::in_process(Arc::clone(&device) as Arc<dyn Device>).expect("the function");
        let mut config = HcaConfig::new();
        // QP 0 and QP 1 are reserved, so two more QPs are needed.
        let wanted = u32::try_from(endpoints + 2).expect("a number of endpoints");
        config.log_max_qp = Some(wanted.next_power_of_two().ilog2());
        let provider = MlxProvider::open(handle, config).expect("bring-up");
        let first = Ia::open(provider, IaConfig::default()).expect("the adapter opens");
        let adapter = Adapter::of(&first);
        let arena = first.provider().arena().clone();
        let before = arena.mapped_bytes();
        let more = (1..instances).map(|_| adapter.instance(IaConfig::default()).expect("one more"));
        let all: Vec<Ia> = std::iter::once(first).chain(more).collect();
        let instances = all
            .into_iter()
            .zip(quals())
            .map(|(ia, qual)| Instance::new(ia, endpoints / instances, qual))
            .collect();
        let mapped = arena.mapped_bytes();
        Self {
            instances,
            device,
            mapped: [mapped, mapped - before],
        }
    }
}

/// Two functions on one link, with their instances.
struct World {
    a: Side,
    b: Side,
}

impl World {
    fn new(endpoints: usize, instances: usize) -> Self {
        let sim = Sim::new(SimConfig {
            seed: 1,
            event_log: false,
        });
        let (one, other) = (function(&sim, "sim:a", 1), function(&sim, "sim:b", 2));
        sim.connect(&one, &other, LinkFaults::default());
        let [a, b] = [one, other].map(|function| Side::new(function, endpoints, instances));
        Self { a, b }
    }

    /// Connects all endpoints, one instance after the other. Returns the CPU time.
    fn connect(&mut self) -> Duration {
        let began = spent();
        let pairs = self.a.instances.iter_mut().zip(&mut self.b.instances);
        for ((one, other), qual) in pairs.zip(quals()) {
            connect(one, other, qual);
        }
        spent() - began
    }

    /// Connects all endpoints, with a thread for each pair of instances. Returns the CPU time.
    fn connect_in_threads(&mut self) -> Duration {
        let began = spent();
        let pairs = self.a.instances.iter_mut().zip(&mut self.b.instances);
        std::thread::scope(|scope| {
            for ((one, other), qual) in pairs.zip(quals()) {
                scope.spawn(move || connect(one, other, qual));
            }
        });
        spent() - began
    }

    /// Returns the peer's memory to which the first instance writes.
    fn target(&self) -> RmrTriplet {
        self.b.instances[0].remote
    }

    /// Posts an RDMA Write on each endpoint of the first instance, and shows the doorbells to the device.
    fn write(&mut self, target: &RmrTriplet) {
        let Instance { ia, eps, slice, .. } = &mut self.a.instances[0];
        for &ep in &*eps {
            let posted = ia.ep_post_rdma_write(ep, &[*slice], DtoCookie(1), target, NONE);
            posted.expect("a post");
        }
    }

    /// Runs a region in the first instance without showing register writes to the device. Returns the CPU time.
    fn without_register_writes(&mut self, region: impl FnOnce(&mut Instance)) -> Duration {
        let device = Arc::clone(&self.a.device);
        device.front.without_register_writes(|| {
            let began = spent();
            region(&mut self.a.instances[0]);
            spent() - began
        })
    }

    /// Runs the region `name`, with preparation and cleanup. Returns the region's CPU time and number of operations.
    fn run(&mut self, name: &str) -> (Duration, usize) {
        let (target, endpoints) = (self.target(), self.a.instances[0].eps.len());
        let many = usize::try_from(TIMES).expect("a small number");
        let result = match name {
            "post_recv" => (self.without_register_writes(region_post_recv), endpoints),
            "post_rdma_write" => {
                let took =
                    self.without_register_writes(|side| region_post_rdma_write(side, &target));
                // The device sees only the second doorbell of each endpoint, and executes both requests.
                self.write(&target);
                (took, endpoints)
            }
            "dequeue" => {
                self.write(&target);
                (self.without_register_writes(region_dequeue), endpoints)
            }
            // This region runs after `post_recv`, so each endpoint has a receive.
            "dequeue_recv" => {
                let peer = &mut self.b.instances[0];
                for &ep in &peer.eps {
                    let sent = peer.ia.ep_post_send(ep, &[peer.slice], DtoCookie(0), NONE);
                    sent.expect("a send");
                }
                (self.without_register_writes(region_dequeue_recv), endpoints)
            }
            "progress" => (self.without_register_writes(region_progress), many),
            "evd_wait" => (self.without_register_writes(region_evd_wait), many),
            other => panic!("no region is called {other}"),
        };
        self.a.instances[0].drain();
        self.b.instances[0].drain();
        result
    }
}

#[inline(never)]
fn region_post_recv(side: &mut Instance) {
    let iov = [side.slice];
    for &ep in &side.eps {
        side.ia
            .ep_post_recv(ep, &iov, DtoCookie(1), NONE)
            .expect("a post");
    }
}

#[inline(never)]
fn region_post_rdma_write(side: &mut Instance, target: &RmrTriplet) {
    let iov = [side.slice];
    for &ep in &side.eps {
        side.ia
            .ep_post_rdma_write(ep, &iov, DtoCookie(1), target, NONE)
            .expect("a post");
    }
}

#[inline(never)]
fn region_dequeue(side: &mut Instance) {
    for _ in 0..side.eps.len() {
        let event = side.ia.evd_dequeue(side.events);
        assert!(matches!(black_box(event), Ok(Some(_))));
    }
}

/// Dequeues a completion of a receive for each endpoint.
#[inline(never)]
fn region_dequeue_recv(side: &mut Instance) {
    for _ in 0..side.eps.len() {
        let event = side.ia.evd_dequeue(side.events);
        let is_recv = matches!(black_box(event), Ok(Some(Event::Dto(done))) if !done.request);
        assert!(is_recv);
    }
}

/// Runs `Ia::progress`, which a polling thread calls from time to time while it finds no event.
#[inline(never)]
fn region_progress(side: &mut Instance) {
    for _ in 0..TIMES {
        side.ia.progress();
    }
}

/// Waits with a timeout of 0 and finds no event: all work of a wait except the sleep.
#[inline(never)]
fn region_evd_wait(side: &mut Instance) {
    for _ in 0..TIMES {
        let none = side.ia.evd_wait(side.events, Timeout::from_micros(0), 1);
        assert!(black_box(none).is_err());
    }
}

/// Returns the CPU time of the process.
fn spent() -> Duration {
    let spent = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock of the process");
    spent.into()
}

/// Returns the resident shared memory and the resident anonymous memory of the process, in KiB.
fn resident() -> [usize; 2] {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    ["RssShmem:", "RssAnon:"].map(|what| {
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.expect("a line of kilobytes")
    })
}

fn whole(endpoints: usize, instances: usize) {
    let per = |bytes: usize| bytes as f64 / endpoints as f64;
    let before = resident();
    let began = spent();
    let mut world = World::new(endpoints, instances);
    let made = spent() - began;
    let after = resident();
    let [shared, heap] = [0, 1].map(|at| (after[at] - before[at]) as f64 / (2 * endpoints) as f64);
    println!("{endpoints} endpoints in {instances} instances, on either side, {DEPTH} deep");
    println!(
        "made: {:.1} us each",
        1e6 * made.as_secs_f64() / (2 * endpoints) as f64
    );
    let [all, of_endpoints] = world.a.mapped;
    println!(
        "pinned: {all:#x} bytes, {:.2} KiB each for endpoints",
        per(of_endpoints) / 1024.0
    );
    println!(
        "of that resident: {shared:.2} KiB each; heap, driver and simulator: {heap:.2} KiB each"
    );
    let took = world.connect().as_secs_f64();
    println!("connected: {:.0} a second", endpoints as f64 / took);
    let [_, heap] = [0, 1].map(|at| (resident()[at] - before[at]) as f64 / (2 * endpoints) as f64);
    println!("heap when connected: {heap:.2} KiB each");
    for name in [
        "post_recv",
        "dequeue_recv",
        "post_rdma_write",
        "dequeue",
        "progress",
        "evd_wait",
    ] {
        let first = per_operation(world.run(name));
        let again: Vec<f64> = match name {
            "dequeue_recv" | "post_recv" => Vec::new(),
            _ => (0..5).map(|_| per_operation(world.run(name))).collect(),
        };
        let best = again.into_iter().fold(first, f64::min);
        println!("{name}: first {first:.1} ns, best {best:.1} ns");
    }
}

fn per_operation((took, operations): (Duration, usize)) -> f64 {
    took.as_nanos() as f64 / operations as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| {
        let said = arguments.get(at).and_then(|text| text.parse().ok());
        said.unwrap_or(otherwise)
    };
    if arguments.first().is_some_and(|first| first == "count") {
        let mut world = World::new(number(2, 1), 1);
        world.connect();
        if arguments[1] == "dequeue_recv" {
            world.run("post_recv");
        }
        let (_, operations) = world.run(&arguments[1]);
        println!("{} {operations}", arguments[1]);
        return;
    }
    let (endpoints, instances) = (number(0, 60_000), number(1, 4));
    for instances in [1, instances] {
        let took = World::new(8192, instances).connect().as_secs_f64();
        println!(
            "{instances} instances, one thread: {:.0} connections a second",
            8192.0 / took
        );
        let took = World::new(8192, instances)
            .connect_in_threads()
            .as_secs_f64();
        println!(
            "{instances} instances, a thread each: {:.0} connections a second",
            8192.0 / took
        );
    }
    whole(endpoints, instances);
}
