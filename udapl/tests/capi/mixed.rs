//! Several threads that make random calls, with agents that make calls of their own.
//!
//! Invariants: each successful post completes once, a refused one never; a handle is freed once; no call fails inside
//! the library. The environment variable DAT_TEST_SEEDS sets the number of random programs.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use udapl::capi::types::{CAgent, CEvdParam, CEvent, DatHandle};
use udapl::capi::*;

use crate::instances::connect;
use crate::support::{ABRUPT, INVALID_HANDLE, NO_AGENT, SOFTWARE, World, c, fresh_name, software};

/// The type of DAT_INTERNAL_ERROR, and the mask of a code's type.
const INTERNAL: u32 = 0x0004_0000;
const TYPE: u32 = 0x3fff_0000;
const DTO: u32 = 1;
/// Number of calls of each thread.
const STEPS: u32 = 120;
/// Limit on outstanding DTOs and software events. Software events of a burst (`contend_with_agent`) may exceed it.
const OUTSTANDING: u64 = 48;
/// Number of entries of an EVD.
const ROOM: i32 = 2048;

/// Use of instances by threads.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Two instances opened as thread safe; all threads use both.
    ThreadSafe,
    /// An instance for each thread, none of them thread safe.
    Instances,
    /// One instance that is not thread safe, used by one thread and by the agent's thread.
    AgentOnly,
}

/// State of all threads and agents.
struct Shared {
    worlds: Vec<World>,
    next: AtomicU64,
    outstanding: AtomicU64,
    /// Number of outstanding posts at which a burst of software events (`contend_with_agent`) ends. Several threads
    /// take the events of a burst at the same time.
    burst: u64,
    /// Number of threads that are posting a burst.
    bursting: AtomicU64,
    /// Number of completions of each post: 0 while the post is outstanding. A refused post has no entry.
    posts: Mutex<BTreeMap<u64, u32>>,
    /// Handles of the protection zones, and number of successful frees of each.
    zones: Mutex<BTreeMap<usize, u32>>,
}
// SAFETY: handles are numbers, and only the device accesses the memory.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Checks that a call did not fail with an internal error, and returns its code.
fn answered(answer: u32) -> u32 {
    assert_ne!(answer & TYPE, INTERNAL, "{answer:#x}");
    answer
}

impl Shared {
    fn posts(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.posts.lock().expect("no thread has failed")
    }

    fn outstanding(&self) -> u64 {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Makes a post with a new number as its cookie, unless `OUTSTANDING` posts are outstanding.
    fn post(&self, post: impl FnOnce(u64) -> u32) {
        if self.outstanding() < OUTSTANDING {
            self.post_beyond(post);
        }
    }

    fn post_beyond(&self, post: impl FnOnce(u64) -> u32) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // The post is counted before it is made, because another thread may take the completion first.
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        self.posts().insert(number, 0);
        if answered(post(number)) != 0 {
            let seen = self.posts().remove(&number);
            assert_eq!(seen, Some(0), "it was refused");
            self.outstanding.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn seen(&self, event: &CEvent) {
        let data = &event.event_data;
        let number = match event.event_number {
            // SAFETY: the event's number selects this member.
            SOFTWARE => (unsafe { data.software_event_data.pointer }).addr() as u64,
            // SAFETY: as above.
            DTO => unsafe { data.dto_completion_event_data.user_cookie },
            _ => return,
        };
        let mut posts = self.posts();
        let seen = posts.get_mut(&number).expect("it was posted");
        *seen += 1;
        assert_eq!(*seen, 1, "{number} has completed before");
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    /// Dequeues the oldest event, if any. The caller records the completion.
    fn next(evd: DatHandle) -> Option<CEvent> {
        let mut event = MaybeUninit::<CEvent>::zeroed();
        let taken = answered(c!(dat_evd_dequeue(evd, event.as_mut_ptr()))) == 0;
        // SAFETY: the call succeeded and has written it.
        taken.then(|| unsafe { event.assume_init() })
    }

    /// Dequeues all events, concurrently with other threads, and records them afterwards.
    fn drain(&self, evd: DatHandle) {
        let events: Vec<_> = std::iter::from_fn(|| Self::next(evd)).collect();
        events.iter().for_each(|event| self.seen(event));
    }

    fn wait(&self, evd: DatHandle, micros: u32) {
        let (mut event, mut left) = (MaybeUninit::<CEvent>::zeroed(), 0);
        if answered(c!(dat_evd_wait(
            evd,
            micros,
            1,
            event.as_mut_ptr(),
            &raw mut left
        ))) == 0
        {
            // SAFETY: the call succeeded and has written it.
            self.seen(unsafe { event.assume_init_ref() });
        }
    }

    /// Posts a software event, even if `OUTSTANDING` posts are outstanding.
    fn post_se(&self, evd: DatHandle) {
        self.post_beyond(|number| {
            let word = usize::try_from(number).expect("counted from 1");
            let event = software(word);
            c!(dat_evd_post_se(evd, &raw const event))
        });
    }

    /// Posts many events, the first of which triggers the agent, and takes events concurrently with the agent.
    fn contend_with_agent(&self, world: &World) {
        self.drain(world.evd);
        answered(c!(dat_cno_modify_agent(world.cno, self.agent())));
        answered(dat_evd_modify_cno(world.evd, world.cno));
        self.bursting.fetch_add(1, Ordering::SeqCst);
        for _ in self.outstanding()..self.burst {
            self.post_se(world.evd);
        }
        self.bursting.fetch_sub(1, Ordering::SeqCst);
        self.drain(world.evd);
    }

    /// Waits until all bursts are posted. The wait is bounded, because a posting thread may have failed.
    fn wait_for_bursts(&self) {
        for _ in 0..1_000_000 {
            if self.bursting.load(Ordering::SeqCst) == 0 {
                return;
            }
            thread::yield_now();
        }
    }

    /// Makes a protection zone, or frees a zone that any thread has made. Other threads may free the same zone at the
    /// same time.
    fn zone(&self, world: &World, frees: bool) {
        let picked = || {
            let zones = self.zones.lock().expect("no thread has failed");
            zones
                .iter()
                .find(|(_, freed)| **freed == 0)
                .map(|(zone, _)| *zone)
        };
        if frees && let Some(zone) = picked() {
            let freed = answered(dat_pz_free(std::ptr::without_provenance_mut(zone)));
            if freed == 0 {
                let mut zones = self.zones.lock().expect("no thread has failed");
                *zones.get_mut(&zone).expect("made") += 1;
            } else {
                assert_eq!(freed & 0xffff_0000, INVALID_HANDLE, "another was faster");
            }
            return;
        }
        let mut zone = null_mut();
        if answered(c!(dat_pz_create(world.ia, &raw mut zone))) == 0 {
            let mut zones = self.zones.lock().expect("no thread has failed");
            assert_eq!(zones.insert(zone.addr(), 0), None, "a handle came back");
        }
    }

    fn agent(&self) -> CAgent {
        CAgent {
            instance_data: std::ptr::from_ref(self).cast_mut().cast(),
            proxy_agent_func: Some(agent),
        }
    }

    fn step(&self, world: &World, random: &mut ChaCha8Rng) {
        let segment = world.segment();
        let iov = &raw const segment;
        match random.random_range(0..20) {
            0 => self.contend_with_agent(world),
            1..=6 if self.outstanding() < OUTSTANDING => self.post_se(world.evd),
            1..=9 => {
                let event = Self::next(world.evd);
                event.iter().for_each(|event| self.seen(event));
            }
            10 => self.wait(world.evd, random.random_range(0..500)),
            11 | 12 => self.post(|number| c!(dat_ep_post_recv(world.ep, 1, iov, number, 0))),
            13 | 14 => self.post(|number| c!(dat_ep_post_send(world.ep, 1, iov, number, 0))),
            15 => self.zone(world, random.random()),
            16 => {
                let (mut idle, mut busy, mut state) = (0, 0, 0);
                let (recv, request) = (&raw mut idle, &raw mut busy);
                answered(c!(dat_ep_get_status(
                    world.ep,
                    &raw mut state,
                    recv,
                    request
                )));
            }
            17 => {
                let mut param = MaybeUninit::<CEvdParam>::uninit();
                answered(c!(dat_evd_query(world.evd, 0x1f, param.as_mut_ptr())));
            }
            18 => {
                let agent = if random.random_ratio(1, 4) {
                    NO_AGENT
                } else {
                    self.agent()
                };
                answered(c!(dat_cno_modify_agent(world.cno, agent)));
            }
            _ => {
                let cno = if random.random_ratio(1, 4) {
                    null_mut()
                } else {
                    world.cno
                };
                answered(dat_evd_modify_cno(world.evd, cno));
            }
        }
    }
}

/// Agent of the CNOs: dequeues all events, posts a software event, and registers itself again.
///
/// # Safety
/// `instance_data` points to the threads' shared state.
unsafe extern "C" fn agent(instance_data: *mut c_void, evd: DatHandle) {
    // SAFETY: the state outlives the adapters.
    let shared = unsafe { &*instance_data.cast::<Shared>() };
    if evd.is_null() {
        return; // the end
    }
    shared.wait_for_bursts();
    shared.drain(evd);
    let world = shared.worlds.iter().find(|world| world.evd == evd);
    let world = world.expect("an EVD of the test's");
    shared.post_se(evd);
    answered(c!(dat_cno_modify_agent(world.cno, shared.agent())));
}

/// Runs one random program, which `seed` determines.
fn mixed(seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let way = [Way::ThreadSafe, Way::Instances, Way::AgentOnly][random.random_range(0..3)];
    let name = fresh_name();
    let worlds = |count, thread_safe| {
        let qualifiers = (0..count).map(|number| 0x1_0000_0001 + 16 * number);
        let worlds = qualifiers.map(|qualifier| World::of(&name, thread_safe, qualifier));
        worlds.collect::<Vec<_>>()
    };
    // `threads` has the indices of the instances that each thread uses.
    let (worlds, threads): (_, Vec<Vec<usize>>) = match way {
        Way::ThreadSafe => (
            worlds(2, true),
            vec![vec![0, 1]; random.random_range(2..=4)],
        ),
        Way::Instances => (worlds(4, false), (0..4).map(|world| vec![world]).collect()),
        Way::AgentOnly => (worlds(1, false), vec![vec![0]]),
    };
    for (pair, number) in worlds.chunks_exact(2).zip(0..) {
        connect(&pair[0], &pair[1], 0x1_0000_0011 + 32 * number);
    }
    for world in &worlds {
        assert_eq!(dat_evd_resize(world.evd, ROOM), 0);
    }
    let shared = Shared {
        worlds,
        next: AtomicU64::new(1),
        outstanding: AtomicU64::new(0),
        bursting: AtomicU64::new(0),
        burst: if matches!(way, Way::AgentOnly) {
            1_500
        } else {
            100
        },
        posts: Mutex::new(BTreeMap::new()),
        zones: Mutex::new(BTreeMap::new()),
    };
    thread::scope(|scope| {
        for mine in threads {
            let (shared, mut random) = (&shared, ChaCha8Rng::from_rng(&mut random));
            scope.spawn(move || {
                for _ in 0..STEPS {
                    let world = &shared.worlds[mine[random.random_range(0..mine.len())]];
                    shared.step(world, &mut random);
                }
            });
        }
    });
    // From here on only agents post, once in each upcall.
    for world in &shared.worlds {
        answered(c!(dat_cno_modify_agent(world.cno, NO_AGENT)));
        answered(dat_ep_disconnect(world.ep, ABRUPT));
    }
    for _ in 0..1_000 {
        for world in &shared.worlds {
            // An agent that was just running has registered itself again.
            answered(c!(dat_cno_modify_agent(world.cno, NO_AGENT)));
            shared.drain(world.evd);
            shared.wait(world.evd, 1_000);
        }
        // Receives of an endpoint that was never connected do not complete.
        if shared.outstanding() == 0 || matches!(way, Way::AgentOnly) {
            break;
        }
    }
    if !matches!(way, Way::AgentOnly) {
        assert_eq!(shared.outstanding(), 0, "{way:?}");
    }
    for world in &shared.worlds {
        answered(dat_ia_close(world.ia, ABRUPT));
    }
    let zones = shared.zones.lock().expect("no thread has failed");
    assert!(zones.values().all(|freed| *freed <= 1), "{way:?}");
}

#[test]
fn any_calls_of_several_threads_and_agents_complete_each_post_once() {
    let seeds = std::env::var("DAT_TEST_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(150);
    for seed in 0..seeds {
        println!("seed {seed}");
        mixed(seed);
    }
}
