//! What many endpoints cost: memory, connections a second, and what a post and a dequeue cost among them.
//!
//! `scale [ENDPOINTS [INSTANCES]]` brings two simulated functions up, opens each several times, makes so many endpoints
//! on either and connects each to one of the other (60,000 and 4, if nothing is said). `scale count REGION ENDPOINTS`
//! makes them in one instance and runs `region_REGION` once, for callgrind.
//!
//! Memory is what the kernel says of this process (`/proc/self/status`): shared memory is what devices reach, anonymous
//! memory is the heap, of driver and simulator together, and of both sides. Times are the processor's, of all threads,
//! so that nobody else's count; they are for ratios.
//!
//! Each endpoint takes part once in each operation, in an order in which no two neighbours in memory follow each other,
//! so its cache lines are as cold as so many endpoints make them.

#[path = "../tests/hotpath/deaf.rs"]
mod deaf;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use dat_mlx::MlxProvider;
use deaf::{Deaf, Quiet};
use driver::{Device, Function};
use hw_mlx::HcaConfig;
use hw_sim::{LinkFaults, Profile, Sim, SimConfig, SimFunction};
use nix::time::{ClockId, clock_gettime};
use udapl::{
    Adapter, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, EpAttr,
    EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, IaConfig, LmrSlice, MemPrivFlags, PspFlags,
    Qos, RmrTriplet, Timeout,
};

const NONE: CompletionFlags = CompletionFlags::empty();
const PATIENCE: Timeout = Timeout::from_micros(60_000_000);
/// Requests, and receives, that an endpoint may have outstanding.
const DEPTH: u32 = 128;
/// Connections that are begun at a time.
const UNDER_WAY: usize = 64;
/// Where the instances listen, each at one of its own.
fn quals() -> impl Iterator<Item = ConnQual> {
    (0x1_0000_0001..).map(ConnQual::service_id)
}
/// How often a region does what it does, where that has nothing to do with the number of endpoints.
const TIMES: u32 = 1024;

/// An instance, and its endpoints in the order in which they take part.
struct Instance {
    ia: Ia,
    events: EvdHandle,
    eps: Vec<EpHandle>,
    slice: LmrSlice,
    remote: RmrTriplet,
}

impl Instance {
    /// With room for an event of each of so many endpoints' requests, twice.
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

    /// Takes what has come. Connections that are established now; requests are accepted with the next of `free`.
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

    /// Takes all events there are.
    fn drain(&mut self) {
        while matches!(self.ia.evd_dequeue(self.events), Ok(Some(_))) {}
    }
}

/// The same in another order, neighbours far apart.
fn scattered(eps: &[EpHandle]) -> Vec<EpHandle> {
    // No divisor of the number of any endpoints anybody asks for.
    const STEP: usize = 7919;
    (0..eps.len())
        .map(|at| eps[at * STEP % eps.len()])
        .collect()
}

/// Connects each endpoint of an instance to one of another, which listens at `qual`.
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

/// A function that several instances share.
struct Side {
    instances: Vec<Instance>,
    device: Arc<Quiet>,
    /// Bytes that its arena has mapped, and of them those for endpoints.
    mapped: [usize; 2],
}

fn function(sim: &Sim, name: &str, number: u8) -> Arc<SimFunction> {
    sim.add_function(Profile::named(name, [2, 0, 0, 0, 0, number]))
}

impl Side {
    fn new(function: Arc<SimFunction>, endpoints: usize, instances: usize) -> Self {
        let device = Deaf::hearing(function);
        let handle =
            Function::in_process(Arc::clone(&device) as Arc<dyn Device>).expect("the function");
        let mut config = HcaConfig::new();
        // Number 0 and QP1 are nobody's.
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

/// Two functions, and endpoints on each that are not connected.
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

    /// Connects everything, instance by instance. How long it took.
    fn connect(&mut self) -> Duration {
        let began = spent();
        let pairs = self.a.instances.iter_mut().zip(&mut self.b.instances);
        for ((one, other), qual) in pairs.zip(quals()) {
            connect(one, other, qual);
        }
        spent() - began
    }

    /// The same, each pair of instances in a thread of its own.
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

    /// The peer's memory that the first instance writes to.
    fn target(&self) -> RmrTriplet {
        self.b.instances[0].remote
    }

    /// An RDMA Write of each endpoint of the first instance, heard.
    fn write(&mut self, target: &RmrTriplet) {
        let Instance { ia, eps, slice, .. } = &mut self.a.instances[0];
        for &ep in &*eps {
            let posted = ia.ep_post_rdma_write(ep, &[*slice], DtoCookie(1), target, NONE);
            posted.expect("a post");
        }
    }

    /// Runs a region in the first instance, with nobody told of register writes.
    fn quietly(&mut self, region: impl FnOnce(&mut Instance)) -> Duration {
        let device = Arc::clone(&self.a.device);
        device.front.quietly(|| {
            let began = spent();
            region(&mut self.a.instances[0]);
            spent() - began
        })
    }

    /// A region, and what has to be there before and to happen behind it. How often it did what it does.
    fn run(&mut self, name: &str) -> (Duration, usize) {
        let (target, endpoints) = (self.target(), self.a.instances[0].eps.len());
        let many = usize::try_from(TIMES).expect("a small number");
        let result = match name {
            "post_recv" => (self.quietly(region_post_recv), endpoints),
            "post_rdma_write" => {
                let took = self.quietly(|side| region_post_rdma_write(side, &target));
                // The device hears of the second one, and does both.
                self.write(&target);
                (took, endpoints)
            }
            "dequeue" => {
                self.write(&target);
                (self.quietly(region_dequeue), endpoints)
            }
            // Behind `post_recv`: there is a receive for each.
            "dequeue_recv" => {
                let peer = &mut self.b.instances[0];
                for &ep in &peer.eps {
                    let sent = peer.ia.ep_post_send(ep, &[peer.slice], DtoCookie(0), NONE);
                    sent.expect("a send");
                }
                (self.quietly(region_dequeue), endpoints)
            }
            "progress" => (self.quietly(region_progress), many),
            "evd_wait" => (self.quietly(region_evd_wait), many),
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

/// What a thread does that finds nothing, once in many looks.
#[inline(never)]
fn region_progress(side: &mut Instance) {
    for _ in 0..TIMES {
        side.ia.progress();
    }
}

/// A wait that finds nothing, and has no time: everything but the sleep.
#[inline(never)]
fn region_evd_wait(side: &mut Instance) {
    for _ in 0..TIMES {
        let none = side.ia.evd_wait(side.events, Timeout::from_micros(0), 1);
        assert!(black_box(none).is_err());
    }
}

/// Time of the processor that the process has had.
fn spent() -> Duration {
    let spent = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("a clock of the process");
    spent.into()
}

/// Kilobytes of the process, of shared memory and of the heap.
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
