//! Functions of this process in the machine's time: what `sim:` names of `udapl` are, unless they say `time=virtual`.
//!
//! A register write runs the world to idle in the thread that writes, so what takes no time needs nobody else. What
//! does take time (a retry, a link that trains, a command that is slow) is due in the world's own time, and one thread
//! for all worlds of the process lets that follow the machine's. It is there while an adapter has such a function open,
//! and sleeps until something is due.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use driver::{Clock, Front, Fronted, HeldSignals, RealClock};
use hw_sim::{Alarm, Sim, SimFunction};

use crate::pace::Pace;

/// The longest a world's time lags behind the machine's while nothing is due.
pub const LAG: Duration = Duration::from_millis(5);

/// A function in the machine's time.
pub type TimedFunction = Fronted<SimFunction, Timed>;

/// The machine's time, in front of a function.
pub struct Timed {
    clock: Arc<RealClock>,
    _moved: Arc<Moved>,
}

impl Timed {
    /// A function in the machine's time, which is moved from now on.
    pub fn before(device: Arc<SimFunction>, moved: Arc<Moved>) -> Arc<TimedFunction> {
        let clock = Arc::clone(&moved.mover.clock);
        let front = Self {
            clock,
            _moved: moved,
        };
        Arc::new(Fronted { device, front })
    }
}

impl Front<SimFunction> for Timed {
    fn clock(&self, _: &SimFunction) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }
}

/// A world whose time goes on, for as long as somebody has this.
pub struct Moved {
    _token: Arc<()>,
    mover: Arc<Mover>,
}

impl Moved {
    /// Has the time of a world go on.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn by(mover: &Mutex<Weak<Mover>>, sim: &Sim) -> io::Result<Arc<Self>> {
        let mut known = mover.lock().unwrap_or_else(PoisonError::into_inner);
        let mover = match known.upgrade() {
            Some(mover) => mover,
            None => Mover::start()?,
        };
        *known = Arc::downgrade(&mover);
        let token = Arc::new(());
        let world = (Arc::downgrade(&token), sim.clone());
        mover.shared.worlds().push(world);
        mover.shared.alarm.ring();
        Ok(Arc::new(Self {
            _token: token,
            mover,
        }))
    }
}

/// The thread that moves worlds, for as long as there are any.
pub struct Mover {
    shared: Arc<Shared>,
    clock: Arc<RealClock>,
    /// `None` once it is over.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Each until its [`Moved`] is gone.
    worlds: Mutex<Vec<(Weak<()>, Sim)>>,
    alarm: Arc<Alarm>,
    over: AtomicBool,
}

impl Shared {
    fn worlds(&self) -> MutexGuard<'_, Vec<(Weak<()>, Sim)>> {
        self.worlds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) {
        let mut pace = Pace::new(Instant::now());
        while !self.over.load(Ordering::Acquire) {
            let step = pace.step(Instant::now());
            let sims: Vec<Sim> = {
                let mut worlds = self.worlds();
                worlds.retain(|(moved, _)| moved.strong_count() > 0);
                worlds.iter().map(|(_, sim)| sim.clone()).collect()
            };
            let moved = sims.iter().map(|sim| {
                sim.advance(step);
                sim.watch(&self.alarm, LAG)
            });
            self.alarm.wait(moved.min().unwrap_or(LAG));
        }
    }
}

impl Mover {
    fn start() -> io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            worlds: Mutex::default(),
            alarm: Alarm::new(),
            over: AtomicBool::new(false),
        });
        // The program's signals are for its own threads.
        let _held = HeldSignals::hold();
        let follows = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("sim-time".into())
            .spawn(move || follows.follow())
            .map_err(|error| io::Error::new(error.kind(), format!("sim-time thread: {error}")))?;
        Ok(Arc::new(Self {
            shared,
            clock: Arc::new(RealClock::new()),
            thread: Some(thread),
        }))
    }
}

impl Drop for Mover {
    /// Nothing of the thread is left when this is over.
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.alarm.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that moves the time of simulated functions has panicked");
        }
    }
}
