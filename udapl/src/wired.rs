//! A simulated function whose wire leads to another process: `sim:a,link=unix:/run/wire`.
//!
//! The other end of the wire is a function of another process that names the same path, opened this way or served by
//! `datctl sim serve --link`. Two programs that have nothing but a path in common, such as a client and a server, each
//! get a function of their own, and both functions are on one link.
//!
//! Three threads may advance the simulation of such a function. A thread that writes a register runs the simulation
//! until it is idle. The thread that listens at the wire runs it when a frame arrives. A third thread runs its timers,
//! and keeps the simulation's time equal to the machine's. The thread that produced a frame sends it; if the wire is
//! full, the third thread sends it later. So memory may change while the program reads it without a call, as with a
//! card.
//!
//! The function's clock is the machine's clock, because the other process uses that, too ([`WireClock`]). A thread that
//! reads this clock, or sleeps by it, also receives from the wire, so that no other thread has to be woken for that.
//!
//! The function and its wire exist while an adapter has the function open. Opening it again creates a function in its
//! power-on state, with the same MAC on the same wire. In between, the other end's link is down.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use driver::{Clock, Device, Front, Fronted, HeldSignals, Interrupt, MAX_WAIT, RealClock, Woken};
use hw_sim::{Alarm, LinkFaults, Profile, Sim, SimConfig, SimFunction};
use hw_sim_host::pace::Pace;
use hw_sim_host::timed::LAG;
use hw_sim_host::wire::{Wake, Wire, WirePath};

/// Maximum number of rounds in which the function's last frames are sent when it is closed.
const FINAL_SENDS: usize = 64;

/// A function behind its wire.
pub(crate) type WiredFunction = Fronted<SimFunction, Wired>;

/// The wire of a function. `Fronted` passes the accesses of the driver through this layer.
pub(crate) struct Wired {
    wire: Arc<Wire>,
    /// Wakes the thread that advances the time.
    alarm: Arc<Alarm>,
    over: Arc<AtomicBool>,
    clock: Arc<WireClock>,
    /// The thread that advances the time.
    follower: Option<JoinHandle<()>>,
}

impl Wired {
    /// Creates a function in a simulation of its own, and connects its wire to a path. Its port has a carrier while
    /// another process is at the other end.
    ///
    /// # Errors
    /// I/O errors at the path, or of starting the thread.
    pub(crate) fn lay(profile: Profile, path: &Path) -> io::Result<(Arc<WiredFunction>, Sim)> {
        let (function, mut wired, sim) = Self::without_thread(profile, path)?;
        let (sends, world) = (Arc::clone(&wired.wire), sim.clone());
        let (alarm, over) = (Arc::clone(&wired.alarm), Arc::clone(&wired.over));
        // The new thread blocks signals, so that they are delivered to the program's own threads.
        let _held = HeldSignals::hold();
        let follower = thread::Builder::new()
            .name("sim-time".into())
            .spawn(move || follow(&sim, &sends, &alarm, &over))
            .map_err(|error| io::Error::new(error.kind(), format!("sim-time thread: {error}")))?;
        wired.follower = Some(follower);
        Ok((wired.before(function), world))
    }

    /// Puts this wire in front of a function.
    fn before(self, device: Arc<SimFunction>) -> Arc<WiredFunction> {
        Arc::new(Fronted {
            device,
            front: self,
        })
    }

    /// Creates a function on a wire, without the thread that advances the simulation's time.
    fn without_thread(profile: Profile, path: &Path) -> io::Result<(Arc<SimFunction>, Self, Sim)> {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let function = sim
            .try_add_function(profile)
            .map_err(|error| io::Error::other(format!("memory of the BAR: {error}")))?;
        let alarm = Alarm::new();
        let leads = WirePath::Process(path.to_owned());
        let wake = Wake::NoRoom(Arc::clone(&alarm));
        let wire = Wire::lay_waking(&sim, &function, &leads, LinkFaults::default(), wake)?;
        let clock = WireClock {
            machine: RealClock::new(),
            wire: Arc::clone(&wire),
        };
        let wired = Self {
            wire,
            alarm,
            over: Arc::default(),
            clock: Arc::new(clock),
            follower: None,
        };
        Ok((function, wired, sim))
    }

    /// Sends all frames of the function before it is closed, because the process may end next. After [`FINAL_SENDS`]
    /// rounds it stops, in case the function sends without end.
    fn flush(&self) {
        let _rest = (0..FINAL_SENDS).all(|_| self.wire.send());
    }

    /// Sends outgoing frames. If the wire is full, wakes the thread, which sends them later.
    fn send_or_wake(&self) {
        if !self.wire.send_at_once() {
            self.alarm.ring();
        }
    }
}

/// The machine's clock. Reading it also receives from the wire.
struct WireClock {
    machine: RealClock,
    wire: Arc<Wire>,
}

impl Clock for WireClock {
    fn now(&self) -> driver::Instant {
        // Receive here, because a program that polls reads the clock regularly.
        self.wire.attend();
        self.machine.now()
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: driver::Instant) -> bool {
        let deadline = deadline.min(self.machine.now() + MAX_WAIT);
        match self.wire.sleep(interrupts, deadline, None) {
            Some(woken) => woken == Woken::Interrupt,
            None => self.machine.wait(interrupts, deadline),
        }
    }

    fn wait_unless_signalled(
        &self,
        interrupts: &[Interrupt],
        deadline: driver::Instant,
        signals: &HeldSignals,
    ) -> Woken {
        let deadline = deadline.min(self.machine.now() + MAX_WAIT);
        let slept = self.wire.sleep(interrupts, deadline, Some(signals));
        slept.unwrap_or_else(|| {
            self.machine
                .wait_unless_signalled(interrupts, deadline, signals)
        })
    }
}

impl Drop for Wired {
    /// Sends the function's last frames, cuts the wire and joins the thread. Runs after the last adapter has closed the
    /// function.
    fn drop(&mut self) {
        self.flush();
        self.wire.cut();
        self.over.store(true, Ordering::Release);
        self.alarm.ring();
        if let Some(follower) = self.follower.take()
            && follower.join().is_err()
        {
            tracing::error!("the thread that advances the time of a wired function has panicked");
        }
    }
}

/// Keeps the simulation's time equal to the machine's, and sends frames that did not fit into the wire before, until
/// `over` is set.
fn follow(sim: &Sim, wire: &Wire, alarm: &Arc<Alarm>, over: &AtomicBool) {
    let mut pace = Pace::new(Instant::now());
    while !over.load(Ordering::Acquire) {
        sim.advance(pace.step(Instant::now()));
        if wire.send() {
            // More frames may be ready at once.
            continue;
        }
        alarm.wait(sim.watch(alarm, LAG));
    }
}

impl Front<SimFunction> for Wired {
    fn bar_written(&self, function: &SimFunction, index: u8, offset: u64, bytes: &[u8]) {
        function.bar_written(index, offset, bytes);
        self.send_or_wake();
    }

    fn config_write(&self, function: &SimFunction, offset: u16, data: &[u8]) {
        // This write may disable bus mastering, the last step of a driver: send everything now.
        self.flush();
        function.config_write(offset, data);
    }

    fn reset(&self, function: &SimFunction) {
        self.flush();
        function.reset();
        self.send_or_wake();
    }

    fn clock(&self, _: &SimFunction) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use dat_core::{
        CloseFlags, ConnQual, ConnectFlags, ConnectionEventKind, EpEvds, EpHandle, EvdFlags,
        EvdHandle, Event, PspFlags, Qos, Timeout,
    };

    use super::*;
    use crate::open::OpenOptions;
    use crate::open::simulated::open_device;
    use crate::{Ia, ia_close};

    const SERVICE: u64 = 0x1_0000_0001;
    const PATIENCE: Timeout = Timeout::from_micros(10_000_000);

    /// Advances a simulation until `over` is set, and sends its frames unless `silent`.
    fn moved(sim: &Sim, wire: &Wire, silent: &Mutex<bool>, over: &AtomicBool, alarm: &Alarm) {
        let mut pace = Pace::new(Instant::now());
        while !over.load(Ordering::Relaxed) {
            sim.advance(pace.step(Instant::now()));
            let silent = silent.lock().expect("nobody panics");
            if !*silent {
                wire.send();
            }
            drop(silent);
            alarm.wait(Duration::from_millis(1));
        }
    }

    /// Ends the thread that runs `moved` even if a test panics.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct End {
        ia: Ia,
        events: EvdHandle,
        ep: EpHandle,
    }

    impl End {
        fn open(function: &Arc<WiredFunction>) -> Self {
            // The test holds one handle.
            let mut ia =
                open_device(Arc::clone(function), 1, &OpenOptions::default()).expect("opens");
            let pz = ia.pz_create().expect("a PZ");
            let streams = EvdFlags::CONNECTION | EvdFlags::CR | EvdFlags::DTO;
            let events = ia.evd_create(16, streams).expect("an EVD");
            let ep = ia
                .ep_create(Some(pz), EpEvds::all(events), None)
                .expect("an EP");
            Self { ia, events, ep }
        }

        fn event(&mut self) -> Event {
            let (event, _left) = self
                .ia
                .evd_wait(self.events, PATIENCE, 1)
                .expect("an event");
            event
        }

        fn expect(&mut self, kind: ConnectionEventKind) {
            let event = self.event();
            assert!(
                matches!(&event, Event::Connection(event) if event.kind == kind),
                "{event:?} instead of {kind:?}"
            );
        }
    }

    /// A close sends all its frames before it returns: the peer gets the disconnect although no other thread sends
    /// frames afterwards, as when the process ends.
    #[test]
    fn what_a_close_has_to_say_has_left_when_it_is_over() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("wire");
        let (theirs, _world) =
            Wired::lay(Profile::named("sim:theirs", [2, 0, 0, 0, 0, 1]), &path).expect("a wire");
        let (function, wired, sim) =
            Wired::without_thread(Profile::named("sim:ours", [2, 0, 0, 0, 0, 2]), &path)
                .expect("its other end");
        let alarm = Arc::clone(&wired.alarm);
        let ours = wired.before(function);
        let (silent, over) = (Mutex::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let (world, wire) = (&sim, &ours.front.wire);
            let (quiet, end) = (&silent, &over);
            scope.spawn(move || moved(world, wire, quiet, end, &alarm));
            let _over = Over(&over);
            let (mut a, mut b) = (End::open(&ours), End::open(&theirs));
            b.ia.psp_create(ConnQual(SERVICE), b.events, PspFlags::CONSUMER)
                .expect("listens");
            let address = b.ia.query().ia.ia_address;
            let (none, best) = (ConnectFlags::empty(), Qos::BEST_EFFORT);
            a.ia.ep_connect(a.ep, address, ConnQual(SERVICE), PATIENCE, b"", best, none)
                .expect("connects");
            // The link is training: A's request is lost, and sent again once the link is up.
            let moment = Timeout::from_micros(1_000);
            let called = (0..10_000).find_map(|_| {
                a.ia.progress();
                b.ia.evd_wait(b.events, moment, 1).ok()
            });
            let Some((Event::ConnectionRequest(request), _)) = called else {
                panic!("a request to connect")
            };
            b.ia.cr_accept(request.cr, Some(b.ep), b"")
                .expect("accepts");
            a.expect(ConnectionEventKind::Established);
            b.expect(ConnectionEventKind::Established);

            *silent.lock().expect("nobody panics") = true;
            ia_close(a.ia, CloseFlags::Abrupt).expect("closes");
            b.expect(ConnectionEventKind::Disconnected);
            ia_close(b.ia, CloseFlags::Abrupt).expect("closes");
        });
    }
}
