//! Functions of this process that run in real time: those of `sim:` names in `udapl`, unless they have `time=virtual`.
//!
//! The thread that writes a register runs the simulation until it is idle. So work without delay needs no other thread.
//! Delayed work (a retry, link training, a slow command) is due at a virtual time. One thread for all simulators of the
//! process advances their virtual time with real time. The thread exists while an adapter has such a function open. It
//! sleeps until delayed work is due, at most `LAG`.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use driver::{Clock, Front, Fronted, HeldSignals, RealClock};
use hw_sim::{Alarm, Sim, SimFunction};

use crate::pace::Pace;

/// Maximum sleep of the thread that advances virtual time. It is shorter than the largest step of [`Pace`], so that no
/// virtual time is lost if the thread wakes a little late.
pub const LAG: Duration = Duration::from_millis(1);

/// A function that runs in real time.
pub type TimedFunction = Fronted<SimFunction, Timed>;

/// Front of a function that gives the function's driver a real-time clock.
pub struct Timed {
    clock: Arc<RealClock>,
    _moved: Arc<Moved>,
}

impl Timed {
    /// Wraps a function so that its driver gets a real-time clock. `moved` keeps the virtual time of the function's
    /// simulator advancing.
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

/// Token: while it exists, the virtual time of one simulator advances.
pub struct Moved {
    _token: Arc<()>,
    mover: Arc<Mover>,
}

impl Moved {
    /// Starts to advance the virtual time of a simulator. Starts the thread in `mover` if it does not run.
    ///
    /// # Errors
    /// The operating system's error if the thread cannot be started.
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

/// Owner of the thread that advances virtual time. It exists as long as any [`Moved`] does.
pub struct Mover {
    shared: Arc<Shared>,
    clock: Arc<RealClock>,
    /// Thread that advances virtual time. `None` after it was joined.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Simulators whose time advances. Each is removed after its [`Moved`] is dropped.
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
        // Signals are blocked in the new thread, because the program's own threads handle them.
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
    /// Ends and joins the thread.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread wakes 500 µs late after each sleep, and virtual time still advances as fast as real time.
    #[test]
    fn virtual_time_keeps_up_while_the_thread_sleeps_as_long_as_it_may() {
        let (start, sleep) = (Instant::now(), LAG + Duration::from_micros(500));
        let mut pace = Pace::new(start);
        let virtual_time: Duration = (1..=100).map(|turn| pace.step(start + sleep * turn)).sum();
        assert_eq!(virtual_time, sleep * 100);
    }
}
