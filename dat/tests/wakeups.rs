//! Waiting on the machine's own clock, eventfds and io_uring, against a device that runs at the same time.
//!
//! Everywhere else the simulator runs inside the driver's own register write. Here a thread of its own plays the device:
//! a register write is handed to it and is heard some time later, as on a bus, while the driver goes on to poll, arm and
//! sleep. Each round leaves a random while between the doorbell and the wait, so that completions arrive in every gap
//! of that order. A wakeup that is lost is a wait that ends with its timeout.
//!
//! The same protocol in every order there is, is checked by the model in `hw-mlx/tests/wakeup.rs`.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dat::{
    CloseFlags, CompletionFlags, ConnectFlags, DtoStatus, EpHandle, EvdFlags, EvdHandle, Event, Ia,
    LmrTriplet, MemPrivFlags, OpenOptions, PspFlags, Qos, Timeout,
};
use driver::{Clock, Device, Function, Interrupt, RealClock, SharedMemory};
use hw_mlx::provider::MlxProvider;
use hw_sim::{Profile, Sim, SimConfig, SimFunction};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Waits, two a round, unless the variable `WAKEUP_WAITS` says how many.
const WAITS: u64 = 100_000;
/// A wait that takes that long has lost its wakeup.
const LONG: Timeout = Timeout::from_micros(20_000_000);
const NONE: CompletionFlags = CompletionFlags::empty();
const CONN_QUAL: u64 = 0x1_0000_0042;

/// A function whose register writes are heard by another thread.
struct Posted {
    function: Arc<SimFunction>,
    writes: Sender<(u8, u64, Vec<u8>)>,
}

impl Posted {
    /// The function, and the thread that plays it until the function is dropped.
    fn start() -> (Arc<Self>, JoinHandle<()>) {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let function = sim.add_function(Profile::named("sim:posted", dat::fabric::mac(0)));
        let (writes, heard) = channel();
        let device = Arc::new(Self {
            function: Arc::clone(&function),
            writes,
        });
        let plays = thread::spawn(move || {
            let start = Instant::now();
            loop {
                match heard.recv_timeout(Duration::from_micros(100)) {
                    Ok((index, offset, bytes)) => function.bar_written(index, offset, &bytes),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                let world = Duration::from_nanos(sim.clock().now().0);
                if let Some(behind) = start.elapsed().checked_sub(world) {
                    sim.advance(behind);
                }
            }
        });
        (device, plays)
    }
}

impl Device for Posted {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.function.config_read(offset, out);
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        self.function.config_write(offset, data);
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        self.function.bar(index)
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        self.writes
            .send((index, offset, bytes.to_vec()))
            .expect("the thread that plays the device");
    }

    fn reset(&self) {
        self.function.reset();
    }

    fn interrupt_count(&self) -> usize {
        self.function.interrupt_count()
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.function.set_interrupts(vectors);
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.function.dma_map(iova, memory, offset, bytes)
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        self.function.dma_unmap(iova, bytes)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.function.iova_ranges()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(RealClock::new())
    }
}

fn event(ia: &mut Ia, evd: EvdHandle) -> Event {
    ia.evd_wait(evd, LONG, 1).expect("an event in time").0
}

/// Two endpoints of one adapter, connected with each other, and their EVD.
fn connected(ia: &mut Ia) -> ([EpHandle; 2], EvdHandle, LmrTriplet) {
    let zone = ia.pz_create().expect("a PZ");
    let events = ia
        .evd_create(64, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)
        .expect("an EVD");
    let [active, passive] = [0, 1].map(|_| {
        ia.ep_create(Some(zone), Some(events), Some(events), Some(events), None)
            .expect("an endpoint")
    });
    let memory = dat::alloc(ia, 4096).expect("memory");
    let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
    let lmr = ia.lmr_create(memory, zone, rights).expect("an LMR");
    ia.psp_create(CONN_QUAL, events, PspFlags::CONSUMER)
        .expect("a PSP");
    let address = ia.query().ia.ia_address;
    ia.ep_connect(
        active,
        address,
        CONN_QUAL,
        LONG,
        b"",
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    )
    .expect("a connect");
    let Event::ConnectionRequest(request) = event(ia, events) else {
        panic!("a connection request");
    };
    ia.cr_accept(request.cr, Some(passive), b"")
        .expect("an accept");
    for _ in 0..2 {
        let established = event(ia, events);
        assert!(
            matches!(established, Event::Connection(_)),
            "{established:?}"
        );
    }
    let part = LmrTriplet {
        lmr_context: lmr.lmr_context,
        virtual_address: lmr.registered_address,
        segment_length: 64,
    };
    ([active, passive], events, part)
}

/// How often this thread has gone to sleep so far.
fn sleeps() -> u64 {
    std::fs::read_to_string("/proc/thread-self/status")
        .expect("procfs")
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|count| count.trim().parse().ok())
        .expect("a count")
}

#[test]
fn no_wakeup_is_lost_in_many_rounds_of_arming_and_sleeping() {
    let (device, plays) = Posted::start();
    let function = Function::in_process(device).expect("a function");
    let options = OpenOptions::default();
    let provider = MlxProvider::open(function, options.hca).expect("bring-up");
    let mut ia = Ia::open(provider, options.ia).expect("an adapter");
    let ([active, passive], events, part) = connected(&mut ia);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let waits = std::env::var("WAKEUP_WAITS")
        .ok()
        .and_then(|waits| waits.parse().ok())
        .unwrap_or(WAITS);
    let slept = sleeps();
    for round in 0..waits / 2 {
        ia.ep_post_recv(passive, &[part], 2 * round, NONE)
            .expect("a receive");
        ia.ep_post_send(active, &[part], 2 * round + 1, NONE)
            .expect("a send");
        let mut sum = 0;
        for _ in 0..2 {
            for _ in 0..random.random_range(0..600) {
                std::hint::spin_loop();
            }
            let Event::Dto(done) = event(&mut ia, events) else {
                panic!("a completion");
            };
            assert_eq!(done.status, DtoStatus::Success);
            sum += done.cookie;
        }
        assert_eq!(sum, 4 * round + 1, "the two of this round");
    }
    let slept = sleeps() - slept;
    println!("{waits} waits, {slept} of them slept");
    assert!(
        slept > waits / 100,
        "{slept} sleeps in {waits} waits: this tests nothing"
    );
    let provider = ia.close(CloseFlags::Abrupt).expect("it closes");
    provider.close().expect("the teardown");
    plays.join().expect("the device goes with its function");
}
