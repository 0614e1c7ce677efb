//! A simulated function whose wire leaves the process: `sim:a,link=unix:/run/wire`.
//!
//! The other end of the wire is a function of another process that names the same path, opened this way or served by
//! `datctl sim serve --link`. So two programs that know nothing of each other but a path, such as a client and a server of
//! one package, each have a function of their own, and both functions are on one link.
//!
//! What happens in the world of such a function is moved by three: a register write runs it to idle in the thread that
//! writes; a frame that arrives does in the thread that listens at the wire; and what takes time, in a thread that lets the
//! world's time follow the machine's and sends what leaves. So memory changes while the program looks at it and makes no
//! call, as with a card. The function's clock is the machine's, since others live by it.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use driver::{Clock, Device, HeldSignals, Interrupt, Notices, RealClock, SharedMemory};
use hw_sim::{LinkFaults, Profile, Sim, SimConfig, SimFunction};

use crate::fabric::wire::{Wire, WirePath};

/// The longest the world's time lags behind the machine's while nothing is due.
const LAG: Duration = Duration::from_millis(5);
/// The most that the world's time moves on at once. Who was not given the processor for long does not make up for it: timers
/// would run out, one after the other, before an answer that waits at the wire is looked at.
const STEP: Duration = Duration::from_millis(2);
/// How often what a function says is fetched once it is to be silent.
const LAST_WORDS: usize = 64;

/// A function with its wire.
pub(crate) struct Wired {
    function: Arc<SimFunction>,
    wire: Arc<Wire>,
    path: PathBuf,
    poke: SyncSender<()>,
    clock: Arc<RealClock>,
}

impl Wired {
    /// Makes a function and lays its wire to a path. Its port has a carrier while somebody is at the other end.
    ///
    /// # Errors
    /// What the system answered at the path, or when asked for a thread.
    pub(crate) fn lay(name: &str, mac: [u8; 6], path: &Path) -> io::Result<Arc<Self>> {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let function = sim.add_function(Profile::named(name, mac));
        let (poke, poked) = sync_channel(1);
        let leads = WirePath::Process(path.to_owned());
        let wire = Wire::lay(&sim, &function, &leads, LinkFaults::default(), poke.clone())?;
        let sends = Arc::clone(&wire);
        // The program's signals are for its own threads.
        let _held = HeldSignals::hold();
        thread::Builder::new()
            .name("sim-time".into())
            .spawn(move || follow(&sim, &sends, &poked))?;
        Ok(Arc::new(Self {
            function,
            wire,
            path: path.to_owned(),
            poke,
            clock: Arc::new(RealClock::new()),
        }))
    }

    /// Where the wire leads.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the function has said is on the wire before it falls silent: the process may end next. Who keeps on sending
    /// without end is cut off.
    fn say_all(&self) {
        let _rest = (0..LAST_WORDS).all(|_| self.wire.send());
    }

    /// Wakes who moves the time and sends.
    fn poke(&self) {
        // Full: it will wake anyway.
        let _ = self.poke.try_send(());
    }
}

/// Lets the world's time follow the machine's, and sends what leaves, for as long as the process lives.
fn follow(sim: &Sim, wire: &Wire, poked: &Receiver<()>) {
    let clock = sim.clock();
    let mut before = Instant::now();
    loop {
        let now = Instant::now();
        sim.advance((now - before).min(STEP));
        before = now;
        if wire.send() {
            // There may be more at once.
            continue;
        }
        let wait = sim.next_due().map_or(LAG, |due| {
            Duration::from_nanos(due.0.saturating_sub(clock.now().0)).min(LAG)
        });
        match poked.recv_timeout(wait) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            // Nobody writes registers any more, and the wire is cut.
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Device for Wired {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.function.config_read(offset, out);
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        // It may take bus mastering away, which is how a driver takes its leave.
        self.say_all();
        self.function.config_write(offset, data);
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        self.function.bar(index)
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        self.function.bar_written(index, offset, bytes);
        self.poke();
    }

    fn reset(&self) {
        self.say_all();
        self.function.reset();
        self.poke();
    }

    fn interrupt_count(&self) -> usize {
        self.function.interrupt_count()
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.function.set_interrupts(vectors);
    }

    fn set_notices(&self, notices: Notices) {
        self.function.set_notices(notices);
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

    fn dma_map_read_only(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.function.dma_map_read_only(iova, memory, offset, bytes)
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        self.function.dma_unmap(iova, bytes)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.function.iova_ranges()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }
}
