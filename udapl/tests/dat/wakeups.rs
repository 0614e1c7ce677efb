//! Waiting with the machine's clock, eventfds and io_uring, while the device runs concurrently.
//!
//! In most other tests the simulator runs inside the driver's register write. Here a separate thread runs the device:
//! the thread gets each register write and executes it some time later, as on a bus, while the driver goes on to poll,
//! arm and sleep. Each round waits a random time between the doorbell and the wait, so that completions arrive at every
//! point of this sequence. A wait that ends with its timeout has lost its wake-up.
//!
//! With real functions (`support/functions.rs`) the device is on the bus, and its MSI-X vectors signal the eventfds.
//!
//! The model in `hw-mlx/tests/hca/wakeup.rs` checks the same protocol in every possible order.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dat_mlx::{MlxProvider, ProviderConfig};
use driver::{Clock, Device, Front, Fronted, Function, RealClock};
use hw_sim::{Profile, Sim, SimConfig, SimFunction};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use udapl::error::ReturnType;
use udapl::memory::{LmrTriplet, PzHandle};
use udapl::wait::Arm;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, DtoCookie, DtoStatus, EpEvds, EpHandle,
    EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, PspFlags, Qos, Timeout,
};

use crate::support::{A, B, Pair, functions, refused};

/// Number of waits, two in each round; the environment variable `WAKEUP_WAITS` overrides it.
const WAITS: u64 = 100_000;
/// Timeout of a wait: a wait that takes this long has lost its wake-up.
const LONG: Timeout = Timeout::from_micros(300_000_000);
const NONE: CompletionFlags = CompletionFlags::empty();
const CONN_QUAL: ConnQual = ConnQual::service_id(0x1_0000_0042);

/// A front of the device that sends register writes to another thread, which executes them later.
struct Posted(Sender<(u8, u64, Vec<u8>)>);

impl Posted {
    /// Creates the function, and starts the thread that runs it until the function is dropped.
    fn start() -> (Arc<Fronted<SimFunction, Self>>, JoinHandle<()>) {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let function = sim.add_function(Profile::named("sim:posted", udapl::fabric::mac(0)));
        let (writes, heard) = channel();
        let device = Arc::new(Fronted {
            device: Arc::clone(&function),
            front: Self(writes),
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

impl Front<SimFunction> for Posted {
    fn bar_written(&self, _: &SimFunction, index: u8, offset: u64, bytes: &[u8]) {
        self.0
            .send((index, offset, bytes.to_vec()))
            .expect("the thread that plays the device");
    }

    fn clock(&self, _: &SimFunction) -> Arc<dyn Clock> {
        Arc::new(RealClock::new())
    }
}

/// An adapter with one EVD for all events, and registered memory.
struct End {
    ia: Ia,
    zone: PzHandle,
    events: EvdHandle,
    part: LmrTriplet,
}

impl End {
    fn new(mut ia: Ia) -> Self {
        let zone = ia.pz_create().expect("a PZ");
        let events = ia
            .evd_create(64, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)
            .expect("an EVD");
        let memory = udapl::alloc(&ia, 4096).expect("memory");
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let lmr = ia.lmr_create(memory, zone, rights).expect("an LMR");
        let part = LmrTriplet {
            lmr_context: lmr.lmr_context,
            virtual_address: lmr.registered_address,
            segment_length: 64,
        };
        Self {
            ia,
            zone,
            events,
            part,
        }
    }

    fn endpoint(&mut self) -> EpHandle {
        let (zone, events) = (Some(self.zone), Some(self.events));
        self.ia
            .ep_create(
                zone,
                EpEvds {
                    recv: events,
                    request: events,
                    connect: events,
                },
                None,
            )
            .expect("an endpoint")
    }

    fn event(&mut self) -> Event {
        self.ia
            .evd_wait(self.events, LONG, 1)
            .expect("an event in time")
            .0
    }

    /// Like [`End::event`], but sleeps with poll(2) on the descriptor of the instance, as an event loop does.
    fn event_of_a_loop(&mut self) -> Event {
        for _ in 0..1_000 {
            match self.ia.arm(&[self.events]).expect("nobody waits on it") {
                Arm::Ready => {
                    let event = self.ia.evd_dequeue(self.events).expect("an EVD");
                    return event.expect("it is there");
                }
                Arm::Armed(armed) => {
                    let mut fds = [PollFd::new(armed.as_fd(), PollFlags::POLLIN)];
                    let longest = u16::try_from(armed.timeout().as_millis()).expect("a second");
                    let woken = poll(&mut fds, PollTimeout::from(longest)).expect("polled");
                    // An established connection has no timer, so only an event may end a sleep of about a second.
                    assert!(
                        woken == 1 || longest < 900,
                        "{longest} ms, and nothing came"
                    );
                }
            }
        }
        panic!("woken again and again, and nothing is there");
    }

    fn established(&mut self) {
        let event = self.event();
        assert!(matches!(event, Event::Connection(_)), "{event:?}");
    }
}

/// Creates an endpoint of the first adapter and an endpoint of the last adapter, and connects them. The first adapter
/// may also be the last.
fn connected(ends: &mut [End]) -> [EpHandle; 2] {
    let last = ends.len() - 1;
    let [active, passive] = [0, last].map(|end| ends[end].endpoint());
    let listener = &mut ends[last];
    listener
        .ia
        .psp_create(CONN_QUAL, listener.events, PspFlags::CONSUMER)
        .expect("a PSP");
    let address = listener.ia.query().ia.ia_address;
    ends[0]
        .ia
        .ep_connect(
            active,
            address,
            CONN_QUAL,
            LONG,
            b"",
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )
        .expect("a connect");
    let Event::ConnectionRequest(request) = ends[last].event() else {
        panic!("a connection request");
    };
    ends[last]
        .ia
        .cr_accept(request.cr, Some(passive), b"")
        .expect("an accept");
    for end in [0, last] {
        ends[end].established();
    }
    [active, passive]
}

/// Returns the number of voluntary context switches of this thread so far.
fn sleeps() -> u64 {
    std::fs::read_to_string("/proc/thread-self/status")
        .expect("procfs")
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|count| count.trim().parse().ok())
        .expect("a count")
}

/// Opens the adapters of two real functions, if an environment variable names them. Otherwise opens one adapter of a
/// simulated function, and also returns the thread that runs this function.
fn adapters() -> (Vec<End>, Option<JoinHandle<()>>) {
    let options = OpenOptions::default();
    if let Some(names) = functions::named() {
        let open = |name: &String| End::new(udapl::ia_open(name, &options).expect("an adapter"));
        return (names.iter().map(open).collect(), None);
    }
    let (device, plays) = Posted::start();
    let function = Function::in_process(device).expect("a function");
    let config = ProviderConfig {
        hca: options.hca,
        network: options.network,
    };
    let provider = MlxProvider::open(function, config).expect("bring-up");
    let ia = Ia::open(provider, options.ia).expect("an adapter");
    (vec![End::new(ia)], Some(plays))
}

#[test]
fn no_wakeup_is_lost_in_many_rounds_of_arming_and_sleeping() {
    let (mut ends, plays) = adapters();
    let [active, passive] = connected(&mut ends);
    let last = ends.len() - 1;
    // A real function may belong to an emulated machine, where a spin loop takes longer.
    let pauses = if plays.is_some() { 600 } else { 60 };
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let waits = std::env::var("WAKEUP_WAITS")
        .ok()
        .and_then(|waits| waits.parse().ok())
        .unwrap_or(WAITS);
    let slept = sleeps();
    for round in 0..waits / 2 {
        let End { ia, part, .. } = &mut ends[last];
        ia.ep_post_recv(passive, &[*part], DtoCookie(2 * round), NONE)
            .expect("a receive");
        let End { ia, part, .. } = &mut ends[0];
        ia.ep_post_send(active, &[*part], DtoCookie(2 * round + 1), NONE)
            .expect("a send");
        let mut sum = 0;
        for end in [last, 0] {
            for _ in 0..random.random_range(0..pauses) {
                std::hint::spin_loop();
            }
            let event = match round % 2 {
                0 => ends[end].event(),
                _ => ends[end].event_of_a_loop(),
            };
            let Event::Dto(done) = event else {
                panic!("a completion");
            };
            assert_eq!(done.status, DtoStatus::Success);
            sum += done.cookie.0;
        }
        assert_eq!(sum, 4 * round + 1, "the two of this round");
    }
    let slept = sleeps() - slept;
    println!("figure: {waits} waits, {slept} of them slept, none lost its wakeup");
    assert!(
        slept > waits / 100,
        "{slept} sleeps in {waits} waits: this tests nothing"
    );
    for end in ends {
        udapl::ia_close(end.ia, CloseFlags::Abrupt).expect("it closes");
    }
    if let Some(plays) = plays {
        plays.join().expect("the device goes with its function");
    }
}

/// An IA can be armed for EVDs without events, and not for an unwaitable EVD. Time is virtual, so the test sleeps with
/// `sleep` of the armed state, not with poll(2).
#[test]
fn an_ia_is_armed_where_nothing_is_to_be_taken_and_nobody_else_waits() {
    let mut pair = Pair::connected();
    let [from, to] = [A, B].map(|side| pair.buffer(side, 64));
    let side = &mut pair.sides[B];
    let evds = [side.recv, side.connect];
    assert!(matches!(side.ia.arm(&evds), Ok(Arm::Armed(_))));
    side.ia.evd_set_unwaitable(side.recv).expect("nobody waits");
    refused(side.ia.arm(&evds), ReturnType::InvalidState);
    side.ia.evd_clear_unwaitable(side.recv).expect("waitable");
    pair.post_recv(B, &[to.all()], 1, NONE).expect("posts");
    pair.post_send(A, &[from.all()], 2, NONE).expect("posts");
    let side = &mut pair.sides[B];
    for _ in 0..1_000 {
        match side.ia.arm(&evds).expect("nobody waits") {
            Arm::Ready => {
                let event = side.ia.evd_dequeue(side.recv).expect("an EVD");
                assert!(
                    matches!(event, Some(Event::Dto(done)) if done.cookie.0 == 1),
                    "{event:?}"
                );
                return;
            }
            Arm::Armed(armed) => {
                assert!(armed.timeout() <= Duration::from_secs(1));
                armed.sleep();
            }
        }
    }
    panic!("the receive never completed");
}

/// Time of flight of a frame in µs, and limit on the virtual time of a sleep that waits for the frame.
const FLIGHT_MICROS: u64 = 5_000;
const IN_TIME: Duration = Duration::from_millis(100);

/// Returns a connected pair with a frame in flight to B, and two EVDs of B, first the one that will get an event. The
/// frame is a message for the receive EVD, or a disconnect for the connection EVD.
fn pair_with_frame(message: bool) -> (Pair, [EvdHandle; 2]) {
    let mut pair = Pair::connected();
    let [from, to] = [A, B].map(|side| pair.buffer(side, 64));
    pair.set_delay(FLIGHT_MICROS);
    let evds = [pair.sides[B].recv, pair.sides[B].connect];
    if message {
        pair.post_recv(B, &[to.all()], 1, NONE).expect("posts");
        pair.post_send(A, &[from.all()], 2, NONE).expect("posts");
        (pair, evds)
    } else {
        let ep = pair.sides[A].ep;
        let ended = pair.sides[A].ia.ep_disconnect(ep, CloseFlags::Abrupt);
        ended.expect("CONNECTED");
        (pair, [evds[1], evds[0]])
    }
}

/// Cases. The first value is the argument of `pair_with_frame`. The second is true if the EVD that gets the event comes
/// first.
const CASES: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// Returns the EVDs in the given order, or in the reverse order.
const fn ordered(evds: [EvdHandle; 2], as_given: bool) -> [EvdHandle; 2] {
    if as_given { evds } else { [evds[1], evds[0]] }
}

/// Arming a connection EVD arms the CQs of its endpoints' other EVDs for errors only. This must not undo the arming of
/// those EVDs.
#[test]
fn an_ia_that_is_armed_for_several_evds_is_woken_by_each_in_any_order() {
    for (message, first) in CASES {
        let (mut pair, evds) = pair_with_frame(message);
        let begun = pair.now();
        let side = &mut pair.sides[B];
        let order = ordered(evds, first);
        let woken = (0..100).any(|_| match side.ia.arm(&order).expect("nobody waits") {
            Arm::Ready => true,
            Arm::Armed(armed) => {
                armed.sleep();
                false
            }
        });
        let event = side.ia.evd_dequeue(evds[0]).expect("an EVD");
        assert!(event.is_some(), "{message}, {first}");
        let slept = pair.now() - begun;
        assert!(woken && slept < IN_TIME, "{slept:?}, {message}, {first}");
    }
}

#[test]
fn a_cno_is_triggered_by_each_of_its_evds_in_any_order() {
    for (message, first) in CASES {
        let (mut pair, evds) = pair_with_frame(message);
        let begun = pair.now();
        let side = &mut pair.sides[B];
        let cno = side.ia.cno_create(None).expect("a CNO");
        for evd in ordered(evds, first) {
            side.ia.evd_modify_cno(evd, Some(cno)).expect("its EVD");
        }
        let triggered = side.ia.cno_wait(cno, LONG).expect("in time");
        assert_eq!(triggered, Some(evds[0]), "{message}, {first}");
        let slept = pair.now() - begun;
        assert!(slept < IN_TIME, "{slept:?}, {message}, {first}");
    }
}
