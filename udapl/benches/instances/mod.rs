//! Benchmark of posts and dequeues of several instances of one function at once, with one thread for each instance.
//!
//! Instances must not write to shared data. If each instance has a processor, a post then takes as long with four
//! instances as with one instance. If there are more instances than processors, the sum of their rates is constant.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hw_sim::{LinkFaults, Sim, SimConfig};
use udapl::adapter::IaConfig;
use udapl::{Adapter, ConnQual, DtoCookie, EpHandle};

use super::side::{Side, Sizes, endpoint};
use super::{BATCH, FLAGS, SIZES, region_dequeue_one, region_post_rdma_write};

/// Maximum number of instances.
const MOST: usize = 4;
/// Number of endpoints of each instance, and number of batches for each endpoint. All batches together take much longer
/// than the start of the threads.
const ENDPOINTS: u32 = 32;
const BATCHES: u32 = 3;
const DEPTH: u32 = 4 * 1024;

/// An instance, and its endpoints.
struct Instance {
    side: Side,
    eps: Vec<EpHandle>,
}
/// Number of rounds. The shortest time of all rounds counts.
const ROUNDS: usize = 30;

/// Mean time of the instances (`each`), and time from the first start to the last end (`all`).
#[derive(Clone, Copy)]
struct Took {
    each: Duration,
    all: Duration,
}

/// Runs `work` in all instances at the same time.
fn at_once(instances: &mut [Instance], work: impl Fn(&mut Instance) + Sync) -> Took {
    let (ready, count) = (AtomicUsize::new(0), instances.len());
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let threads: Vec<_> = instances
            .iter_mut()
            .map(|instance| {
                scope.spawn(|| {
                    ready.fetch_add(1, Ordering::AcqRel);
                    while ready.load(Ordering::Acquire) < count {
                        thread::yield_now();
                    }
                    let began = Instant::now();
                    work(instance);
                    (began, Instant::now())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let each = times
        .iter()
        .map(|(began, ended)| *ended - *began)
        .sum::<Duration>();
    let began = times.iter().map(|(began, _)| *began).min();
    let ended = times.iter().map(|(_, ended)| *ended).max();
    Took {
        each: each / u32::try_from(count).expect("a few"),
        all: ended
            .zip(began)
            .map_or(Duration::ZERO, |(ended, began)| ended - began),
    }
}

/// Creates four instances of each of two functions, and connects 32 endpoints of each instance to endpoints of the peer
/// function. Returns the first function's instances with their endpoints, and the second function's instances.
fn connected() -> (Vec<Instance>, Vec<Side>) {
    let sim = Sim::new(SimConfig {
        seed: 1,
        event_log: false,
    });
    let [a, b] =
        [("sim:a", 1), ("sim:b", 2)].map(|(name, number)| Side::open(&sim, name, number, SIZES));
    sim.connect(&a.device.device, &b.device.device, LinkFaults::default());
    let sizes = Sizes {
        requests: DEPTH,
        recv_iov: 1,
        events: DEPTH * ENDPOINTS,
    };
    let [here, mut there] = [a, b].map(|first| {
        let adapter = Adapter::of(&first.ia);
        let instance = |_| {
            let ia = adapter.instance(IaConfig::default());
            Side::new(ia.expect("an instance"), first.device.clone(), sizes)
        };
        (0..MOST).map(instance).collect::<Vec<_>>()
    });
    let mut services = (0x1_0000_0100..).map(ConnQual);
    let pairs = here.into_iter().zip(&mut there);
    let here = pairs.map(|(mut side, peer)| {
        let eps = (0..ENDPOINTS).map(|_| {
            for side in [&mut side, &mut *peer] {
                side.ep = endpoint(&mut side.ia, side.pz, side.events, sizes);
            }
            side.connect(peer, services.next().expect("one more"));
            side.ep
        });
        let eps = eps.collect();
        // The RDMA Writes of this side target the memory of its peer.
        side.remote = peer.remote;
        Instance { side, eps }
    });
    (here.collect(), there)
}

fn post(Instance { side, eps }: &mut Instance) {
    for ep in eps {
        for _ in 0..BATCHES {
            region_post_rdma_write(&mut side.ia, *ep, side.slice, &side.remote);
        }
    }
}

/// Posts one further request on each endpoint, and shows its doorbell to the simulator. The doorbell record counts all
/// earlier requests.
fn ring(Instance { side, eps }: &mut Instance) {
    let iov = [side.slice];
    for ep in eps {
        let posted = side
            .ia
            .ep_post_rdma_write(*ep, &iov, DtoCookie(0), &side.remote, FLAGS);
        posted.expect("a post");
    }
}

fn dequeue(Instance { side, eps }: &mut Instance) {
    for _ in eps {
        for _ in 0..BATCHES {
            region_dequeue_one(&mut side.ia, side.events);
        }
    }
}

/// Prints a line for each number of instances.
pub fn run() {
    let (mut here, _there) = connected();
    let device = here[0].side.device.clone();
    let operations = f64::from(ENDPOINTS * BATCHES) * BATCH as f64;
    println!("instances  ns a post, each  posts/us, all  ns a dequeue, each  dequeues/us, all");
    for count in [1, 2, MOST] {
        let instances = &mut here[..count];
        let mut best = [[f64::INFINITY; 2]; 2];
        for _ in 0..ROUNDS {
            let posted = device
                .front
                .without_register_writes(|| at_once(instances, post));
            instances.iter_mut().for_each(ring);
            let taken = device
                .front
                .without_register_writes(|| at_once(instances, dequeue));
            for Instance { side, .. } in &mut *instances {
                while matches!(side.ia.evd_dequeue(side.events), Ok(Some(_))) {}
            }
            for (best, took) in best.iter_mut().zip([posted, taken]) {
                let [each, all] = [took.each, took.all].map(|time| time.as_secs_f64() * 1e9);
                best[0] = best[0].min(each / operations);
                best[1] = best[1].min(all / (operations * count as f64));
            }
        }
        let [[post, posts], [dequeue, dequeues]] = best;
        println!(
            "{count:9}  {post:15.1}  {:13.1}  {dequeue:18.1}  {:16.1}",
            1e3 / posts,
            1e3 / dequeues
        );
    }
}
