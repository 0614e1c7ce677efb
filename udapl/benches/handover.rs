//! Costs of parking and resuming an adapter, by number of connections.
//!
//! `handover [CONNECTIONS ...]` prints a table, by default for 1, 100 and 10,000 connections: the bytes of a snapshot,
//! the number of descriptors, and the time of [`park`] and of [`resume`] (the best of five, in one process). It has two
//! lines for each number: the connections share a region and a completion queue, or each has its own.
//!
//! `handover count park CONNECTIONS` and `handover count resume CONNECTIONS` do it once, for callgrind to count inside
//! the function `region_park` or `region_resume`. `handover count OPERATION CONNECTIONS` posts or dequeues once on each
//! connection, and `handover count resumed_OPERATION CONNECTIONS` does so on an adapter that was resumed before. With
//! `own_` in front of the name, each connection has its own objects. A `count` prints `name nanoseconds connections`.
//!
//! Two simulated functions are behind vfio-user servers in this process, because a function in the process itself
//! cannot be parked. The first one is measured. Each connection has 16 posted receives.

use core::time::Duration;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use driver::{Clock, Device, RealClock, VfioUserServer};
use hw_sim::{LinkFaults, Profile, Sim, SimConfig};
use udapl::endpoint::EpAttr;
use udapl::handover::{Parked, Resumed, park, resume};
use udapl::memory::{LmrHandle, LmrSlice, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind as Kind, DtoCookie,
    EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, PspFlags, Qos,
    Timeout, ia_close, ia_open,
};

const NONE: CompletionFlags = CompletionFlags::empty();
const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0079);
const PATIENCE: Timeout = Timeout::from_micros(300_000_000);
/// Posted receives of each connection.
const RECEIVES: u32 = 16;
/// Number of connections being established at a time.
const UNDER_WAY: usize = 64;
/// Number of times that an adapter is parked and resumed. The best time counts.
const ROUNDS: u32 = 5;
/// Bytes of a message.
const MESSAGE: u64 = 64;

/// An adapter with its objects.
struct Side {
    ia: Ia,
    evd: EvdHandle,
    eps: Vec<EpHandle>,
    lmr: LmrHandle,
    slice: LmrSlice,
    remote: RmrTriplet,
}

/// Objects of the connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Objects {
    /// All connections have the same region and the same completion queue.
    Shared,
    /// Each connection has a region and a completion queue of its own.
    Own,
}

impl Side {
    fn open(path: &Path, connections: usize, objects: Objects) -> Self {
        // Some queue pairs are not for endpoints.
        let name = format!(
            "vfio-user:{},endpoints={}",
            path.display(),
            connections + 16
        );
        let mut ia = ia_open(&name, &OpenOptions::default()).expect("a function");
        let pz = ia.pz_create().expect("a PZ");
        let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let events = u32::try_from((2 * connections).max(1024)).expect("a number of connections");
        let evd = ia.evd_create(events, flags).expect("an EVD");
        let memory = udapl::alloc(&ia, 4096).expect("memory");
        let lmr = ia
            .lmr_create(memory, pz, MemPrivFlags::all())
            .expect("an LMR");
        let slice = ia.lmr_slice(lmr.lmr, 0, MESSAGE).expect("a slice");
        let attr = EpAttr {
            max_recv_dtos: 2 * RECEIVES,
            max_request_dtos: RECEIVES,
            max_recv_iov: 1,
            max_request_iov: 1,
            ..EpAttr::defaults(ia.query().ia)
        };
        let eps: Vec<EpHandle> = (0..connections)
            .map(|_| {
                let (mut evds, mut slice) = (EpEvds::all(evd), slice);
                if objects == Objects::Own {
                    let dtos = ia.evd_create(4 * RECEIVES, EvdFlags::DTO);
                    let dtos = dtos.expect("an EVD");
                    (evds.recv, evds.request) = (Some(dtos), Some(dtos));
                    let memory = udapl::alloc(&ia, 4096).expect("memory");
                    let lmr = ia.lmr_create(memory, pz, MemPrivFlags::all());
                    let lmr = lmr.expect("an LMR").lmr;
                    slice = ia.lmr_slice(lmr, 0, MESSAGE).expect("a slice");
                }
                let ep = ia.ep_create(Some(pz), evds, Some(&attr));
                let ep = ep.expect("an EP");
                for number in 0..RECEIVES {
                    let posted = ia.ep_post_recv(ep, &[slice], DtoCookie(number.into()), NONE);
                    posted.expect("room");
                }
                ep
            })
            .collect();
        Self {
            remote: RmrTriplet {
                rmr_context: lmr.rmr_context,
                target_address: lmr.registered_address,
                segment_length: MESSAGE,
            },
            ia,
            evd,
            eps,
            lmr: lmr.lmr,
            slice,
        }
    }

    fn next(&mut self) -> Event {
        let event = self.ia.evd_wait(self.evd, PATIENCE, 1);
        event.expect("an event before the patience is over").0
    }

    /// Dequeues `count` connection events, which report established connections.
    fn established(&mut self, count: usize) {
        for _ in 0..count {
            let event = self.next();
            assert!(
                matches!(&event, Event::Connection(event) if event.kind == Kind::Established),
                "{event:?}"
            );
        }
    }

    /// Connects all endpoints with those of `other`, which listens.
    fn connect(&mut self, other: &mut Self) {
        let there = other.ia.query().ia.ia_address;
        let pairs: Vec<(EpHandle, EpHandle)> = self
            .eps
            .iter()
            .copied()
            .zip(other.eps.iter().copied())
            .collect();
        for window in pairs.chunks(UNDER_WAY) {
            for (ep, _) in window {
                let none = ConnectFlags::empty();
                let best = Qos::BEST_EFFORT;
                let asked = self
                    .ia
                    .ep_connect(*ep, there, SERVICE, PATIENCE, &[], best, none);
                asked.expect("it may ask");
            }
            for (_, ep) in window {
                let Event::ConnectionRequest(request) = other.next() else {
                    panic!("no request");
                };
                let accepted = other.ia.cr_accept(request.cr, Some(*ep), &[]);
                accepted.expect("it may be accepted");
            }
            self.established(window.len());
            other.established(window.len());
        }
    }

    /// Parks and resumes the adapter.
    fn parked_and_resumed(self) -> (Self, Round) {
        let Self {
            ia,
            evd,
            eps,
            lmr,
            slice: _,
            remote,
        } = self;
        let began = Instant::now();
        let parked = region_park(ia);
        let park = began.elapsed();
        let (bytes, descriptors) = (parked.snapshot.len(), parked.descriptors.len());
        let began = Instant::now();
        let ia = region_resume(parked).ia;
        let resume = began.elapsed();
        let slice = ia.lmr_slice(lmr, 0, MESSAGE).expect("a slice");
        let round = Round {
            bytes,
            descriptors,
            park,
            resume,
        };
        let side = Self {
            ia,
            evd,
            eps,
            lmr,
            slice,
            remote,
        };
        (side, round)
    }
}

/// Figures of one parking and one resumption.
struct Round {
    bytes: usize,
    descriptors: usize,
    park: Duration,
    resume: Duration,
}

#[inline(never)]
fn region_park(ia: Ia) -> Parked {
    park(ia, b"").expect("it can be parked")
}

#[inline(never)]
fn region_resume(parked: Parked) -> Resumed {
    resume(parked).expect("it is resumed")
}

#[inline(never)]
fn region_post_recv(side: &mut Side) {
    let iov = [side.slice];
    for &ep in &side.eps {
        let posted = side.ia.ep_post_recv(ep, &iov, DtoCookie(1), NONE);
        posted.expect("a post");
    }
}

#[inline(never)]
fn region_post_rdma_write(side: &mut Side, target: &RmrTriplet) {
    let iov = [side.slice];
    for &ep in &side.eps {
        let posted = side
            .ia
            .ep_post_rdma_write(ep, &iov, DtoCookie(1), target, NONE);
        posted.expect("a post");
    }
}

#[inline(never)]
fn region_dequeue(side: &mut Side) {
    for _ in 0..side.eps.len() {
        let event = side.ia.evd_dequeue(side.evd);
        assert!(matches!(black_box(event), Ok(Some(_))));
    }
}

/// The card: two functions on a link, each behind a server, in real time.
struct Card {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Card {
    fn new(folder: &Path) -> Self {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let functions = [1, 2].map(|number| {
            let name = format!("handover{number}");
            let profile = Profile::named(&name, [2, 0, 0, 0, 0, number]);
            sim.add_function(profile.ethernet())
        });
        sim.connect(&functions[0], &functions[1], LinkFaults::NONE);
        let mut threads = Vec::new();
        for (number, function) in functions.iter().enumerate() {
            let path = folder.join(number.to_string());
            let (listener, taken) = driver::listen_at(&path).expect("a path");
            let device = Arc::clone(function) as Arc<dyn Device>;
            threads.push(thread::spawn(move || {
                let _taken = taken;
                let served = VfioUserServer::new(device, listener).serve_next();
                served.expect("a client");
            }));
        }
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        threads.push(thread::spawn(move || {
            let clock = RealClock::new();
            while !is_over.load(Ordering::Relaxed) {
                sim.advance(Duration::from_millis(1));
                clock.wait(&[], clock.now() + Duration::from_millis(1));
            }
        }));
        Self { over, threads }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a thread of the card");
        }
    }
}

/// Runs `work` with two adapters that have connected all of their endpoints, and closes what it returns.
fn connected(connections: usize, objects: Objects, work: impl FnOnce(Side, &mut Side) -> Side) {
    let folder = tempfile::tempdir().expect("a folder");
    let card = Card::new(folder.path());
    let [mut one, mut other] = [("0", objects), ("1", Objects::Shared)]
        .map(|(name, objects)| Side::open(&folder.path().join(name), connections, objects));
    let psp = other.ia.psp_create(SERVICE, other.evd, PspFlags::CONSUMER);
    psp.expect("a service point");
    one.connect(&mut other);
    let one = work(one, &mut other);
    for side in [one, other] {
        ia_close(side.ia, CloseFlags::Abrupt).expect("closed");
    }
    card.end();
}

fn show(connections: usize, objects: Objects) {
    connected(connections, objects, |mut side, _| {
        let mut best: Option<Round> = None;
        for _ in 0..ROUNDS {
            let (again, round) = side.parked_and_resumed();
            side = again;
            best = Some(match best {
                None => round,
                Some(best) => Round {
                    park: best.park.min(round.park),
                    resume: best.resume.min(round.resume),
                    ..round
                },
            });
        }
        let Round {
            bytes,
            descriptors,
            park,
            resume,
        } = best.expect("a round");
        let [park, resume] = [park, resume].map(|it| 1e3 * it.as_secs_f64());
        let name = match objects {
            Objects::Shared => "shared",
            Objects::Own => "own",
        };
        println!(
            "{connections:>12} {name:>8} {bytes:>12} {descriptors:>12} {park:>9.2} {resume:>10.2}"
        );
        side
    });
}

/// Runs the region `name` once.
fn count(name: &str, connections: usize) {
    let (objects, region) = match name.strip_prefix("own_") {
        Some(region) => (Objects::Own, region),
        None => (Objects::Shared, name),
    };
    connected(connections, objects, |side, other| {
        let (mut side, operation) = match region.strip_prefix("resumed_") {
            Some(operation) => (side.parked_and_resumed().0, operation),
            None => (side, region),
        };
        let began = Instant::now();
        match operation {
            "park" | "resume" => side = side.parked_and_resumed().0,
            "post_recv" => region_post_recv(&mut side),
            "post_rdma_write" => region_post_rdma_write(&mut side, &other.remote),
            "dequeue" => {
                for &ep in &other.eps {
                    let sent = other
                        .ia
                        .ep_post_send(ep, &[other.slice], DtoCookie(0), NONE);
                    sent.expect("a send");
                }
                for _ in 0..other.eps.len() {
                    // A Send has completed when its receive has.
                    let _done = other.next();
                }
                region_dequeue(&mut side);
            }
            other => panic!("no region is called {other}"),
        }
        println!("{name} {} {connections}", began.elapsed().as_nanos());
        side
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let number = |text: &String| text.parse().expect("a number of connections");
    if let [first, name, connections] = &arguments[..]
        && first == "count"
    {
        return count(name, number(connections));
    }
    let mut asked: Vec<usize> = arguments.iter().map(number).collect();
    if asked.is_empty() {
        asked = vec![1, 100, 10_000];
    }
    println!(
        "{:>12} {:>8} {:>12} {:>12} {:>9} {:>10}",
        "connections", "objects", "bytes", "descriptors", "park, ms", "resume, ms"
    );
    for connections in asked {
        [Objects::Shared, Objects::Own]
            .into_iter()
            .for_each(|objects| show(connections, objects));
    }
}
