//! Memory from malloc(3), registered with functions that a vfio-user server emulates. The memory has no file
//! descriptor, so the server accesses it by messages.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::CString;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use driver::{Clock, RealClock, VfioUserServer};
use hw_sim::{LinkFaults, Profile, Sim, SimConfig};
use tempfile::TempDir;
use udapl::capi::types::{CEvent, CRegionDescription, DatHandle};
use udapl::capi::*;
use udapl::fabric::pace::Pace;
use udapl::memory::{LmrTriplet, RmrTriplet};

use crate::instances::{address_of, next, zeros};
use crate::support::{SECOND, TIMEOUT_INFINITE, World, c, done, ok};

const QUALIFIER: u64 = 0x1_0000_0001;
/// `DAT_CONNECTION_REQUEST_EVENT`, `DAT_CONNECTION_EVENT_ESTABLISHED`, `DAT_DTO_COMPLETION_EVENT`.
const REQUEST: u32 = 0x2001;
const ESTABLISHED: u32 = 0x4001;
const DTO: u32 = 1;
/// `DAT_DTO_SUCCESS`, `DAT_DTO_ERR_REMOTE_ACCESS`.
const SUCCESS: u32 = 0;
const REMOTE_ACCESS: u32 = 6;
/// Size of the memory in bytes: longer than several messages to the server, and not a multiple of the page size.
const BYTES: usize = 150_001;

/// Two functions on a link, served by threads that run until the process ends. Simulated time advances until `Served`
/// is dropped.
pub struct Served {
    directory: TempDir,
    over: Arc<AtomicBool>,
}

impl Served {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let functions = [1, 2].map(|number| {
            let name = format!("side{number}");
            let function = sim.add_function(Profile::named(&name, [2, 0, 0, 0, 0, number]));
            let path = directory.path().join(&name);
            let (listener, taken) = driver::listen_at(&path).expect("a path");
            let device = Arc::clone(&function);
            thread::spawn(move || {
                let _taken = taken;
                panic!("{}", VfioUserServer::serve(device, listener));
            });
            function
        });
        let [a, b] = &functions;
        sim.connect(a, b, LinkFaults::default());
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        thread::spawn(move || {
            let (mut pace, clock) = (Pace::new(Instant::now()), RealClock::new());
            while !ends.load(Ordering::Relaxed) {
                sim.advance(pace.step(Instant::now()));
                clock.wait(&[], clock.now() + std::time::Duration::from_millis(1));
            }
        });
        Self { directory, over }
    }

    /// Returns the folder of the servers' sockets.
    pub fn folder(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the name of a function.
    pub fn name(&self, number: u8) -> CString {
        let path = self.directory.path().join(format!("side{number}"));
        CString::new(format!("vfio-user:{}", path.display())).expect("a name")
    }

    pub fn world(&self, number: u8) -> World {
        World::of(&self.name(number), false, QUALIFIER)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Memory from malloc(3), with its registration.
struct Region {
    at: *mut u8,
    lmr: DatHandle,
    local: LmrTriplet,
    remote: RmrTriplet,
}

impl Region {
    fn new(world: &World) -> Self {
        let mut region = Self {
            at: vec![0; BYTES].leak().as_mut_ptr(),
            lmr: null_mut(),
            local: LmrTriplet {
                lmr_context: 0,
                virtual_address: 0,
                segment_length: BYTES as u64,
            },
            remote: RmrTriplet {
                rmr_context: 0,
                target_address: 0,
                segment_length: BYTES as u64,
            },
        };
        let description = CRegionDescription {
            virtual_address: region.at.cast(),
            shared_memory_id: null(),
        };
        let mut size = 0;
        ok!(dat_lmr_create(
            world.ia,
            0,
            description,
            BYTES as u64,
            world.pz,
            0x33,
            &raw mut region.lmr,
            &raw mut region.local.lmr_context,
            &raw mut region.remote.rmr_context,
            &raw mut size,
            &raw mut region.local.virtual_address,
        ));
        assert!(size >= BYTES as u64);
        region.remote.target_address = region.local.virtual_address;
        region
    }

    fn put(&self, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            // SAFETY: inside the memory, which is never freed.
            unsafe { self.at.wrapping_add(index).write_volatile(byte) };
        }
    }

    fn get(&self) -> Vec<u8> {
        // SAFETY: as above; a device that writes at the same time writes whole bytes.
        let byte = |index| unsafe { self.at.wrapping_add(index).read_volatile() };
        (0..BYTES).map(byte).collect()
    }
}

fn pattern(seed: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 4096 + seed) % 251).expect("small");
    (0..BYTES).map(byte).collect()
}

/// Connects the endpoint of `one` to the endpoint of `other`. Polls `one` meanwhile: the first request is lost while
/// the link trains, and only a poll sends the request again.
pub fn connect(one: &World, other: &World) {
    let to = address_of(other.ia);
    ok!(dat_ep_connect(
        one.ep,
        to,
        QUALIFIER,
        TIMEOUT_INFINITE,
        0,
        null(),
        0,
        0
    ));
    let (mut event, mut left): (CEvent, _) = (zeros(), 0);
    while c!(dat_evd_wait(
        other.evd,
        1_000,
        1,
        &raw mut event,
        &raw mut left
    )) != 0
    {
        assert!(next(one.evd).is_none(), "nobody has answered yet");
    }
    assert_eq!(event.event_number, REQUEST);
    // SAFETY: the event is a connection request.
    let arrival = unsafe { event.event_data.cr_arrival_event_data };
    ok!(dat_cr_accept(arrival.cr_handle, other.ep, 0, null()));
    for side in [one, other] {
        assert_eq!(side.wait(20 * SECOND).number, ESTABLISHED);
    }
}

/// Waits for the next completion, which must have the given cookie. Returns its status.
fn completes(world: &World, cookie: u64) -> u32 {
    let (mut event, mut left): (CEvent, _) = (zeros(), 0);
    ok!(dat_evd_wait(
        world.evd,
        20 * SECOND,
        1,
        &raw mut event,
        &raw mut left
    ));
    assert_eq!(event.event_number, DTO);
    // SAFETY: the event is a DTO completion.
    let said = unsafe { event.event_data.dto_completion_event_data };
    assert_eq!(said.user_cookie, cookie);
    said.status
}

fn write(from: &World, here: &Region, there: &Region, cookie: u64) -> u32 {
    let (local, remote) = (&raw const here.local, &raw const there.remote);
    ok!(dat_ep_post_rdma_write(from.ep, 1, local, cookie, remote, 0));
    completes(from, cookie)
}

/// Pages: dat_lmr_create, dat_lmr_free.
#[test]
fn memory_of_malloc_is_written_both_ways_through_a_server_until_it_is_freed() {
    let served = Served::new();
    let (one, other) = (served.world(1), served.world(2));
    connect(&one, &other);
    let (here, there) = (Region::new(&one), Region::new(&other));
    here.put(&pattern(1));
    assert_eq!(write(&one, &here, &there, 1), SUCCESS);
    assert!(there.get() == pattern(1));
    there.put(&pattern(2));
    assert_eq!(write(&other, &there, &here, 2), SUCCESS);
    assert!(here.get() == pattern(2));

    here.put(&pattern(3));
    done!(dat_lmr_free(there.lmr));
    assert_eq!(write(&one, &here, &there, 3), REMOTE_ACCESS);
    assert!(there.get() == pattern(2));
    done!(dat_lmr_free(here.lmr));
}
