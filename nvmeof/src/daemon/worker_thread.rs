//! The thread of a worker. During a hold of the target it gives the worker away, and may get it back.
//!
//! ```text
//!   Running --(the worker has paused)--> Paused --take--> Taken --give_back--> Returned --> Running
//!      ^                                   |                 \--dismiss-->  the thread ends
//!      \------(the target is released)-----/
//! ```
//!
//! The worker is put back into its own thread, which has its name and its processor.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::model::WorkerId;
use crate::serve::{Over, Served, Target, Worker, WorkerError};

/// The place of a worker.
enum Place {
    /// The thread has it.
    Running,
    /// It has paused, and the thread waits.
    Paused(Box<Worker>),
    /// The caller of [`WorkerThread::take`] has it, and the thread waits.
    Taken,
    /// The thread may have it again.
    Returned(Box<Worker>),
    /// The thread gets no worker any more.
    Dismissed,
    /// The worker has ended.
    Ended,
}

struct Slot {
    place: Mutex<Place>,
    has_changed: Condvar,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Place> {
        // Each change is one assignment, so the value is whole even if a thread panicked.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, place: Place) {
        *self.lock() = place;
        self.has_changed.notify_all();
    }

    /// Offers a worker that has paused, and waits until it is returned. `None`: it is not, and the thread ends.
    fn offer(&self, target: &Target, worker: Worker) -> Option<Worker> {
        let mut place = self.lock();
        *place = Place::Paused(Box::new(worker));
        self.has_changed.notify_all();
        loop {
            match core::mem::replace(&mut *place, Place::Running) {
                // Whoever ends the hold does so before it looks at the place.
                Place::Paused(worker) if !target.is_held() => return Some(*worker),
                Place::Returned(worker) => return Some(*worker),
                waiting @ (Place::Paused(_) | Place::Taken) => *place = waiting,
                over @ (Place::Running | Place::Dismissed | Place::Ended) => {
                    *place = over;
                    return None;
                }
            }
            let waited = self.has_changed.wait(place);
            place = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Reports the end of a thread, also of one that panics.
struct End(Arc<Slot>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.set(Place::Ended);
    }
}

/// Outcome of a wait for a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Paused,
    TimedOut,
    /// The thread has no worker any more.
    Ended,
}

/// A worker and its thread.
pub(super) struct WorkerThread {
    id: WorkerId,
    slot: Arc<Slot>,
    thread: JoinHandle<Option<Result<Over, WorkerError>>>,
}

impl WorkerThread {
    /// Starts the thread of worker `number` of a port. If `cpu` is set, the thread runs on that processor only.
    pub(super) fn start(
        worker: Worker,
        target: &Target,
        (port, number): (u16, usize),
        cpu: Option<u16>,
    ) -> io::Result<Self> {
        let id = worker.id();
        let slot = Arc::new(Slot {
            place: Mutex::new(Place::Running),
            has_changed: Condvar::new(),
        });
        let (of_thread, target) = (Arc::clone(&slot), target.clone());
        let thread = std::thread::Builder::new()
            .name(format!("port{port}-{number}"))
            .spawn(move || {
                let end = End(of_thread);
                serve(worker, &target, &end.0, port, cpu)
            })?;
        Ok(Self { id, slot, thread })
    }

    /// Returns the worker's number.
    pub(super) const fn id(&self) -> WorkerId {
        self.id
    }

    /// Returns whether the thread has not ended.
    pub(super) fn serves(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Waits until the worker has paused, because the target is held, or has ended, or `until` has passed.
    pub(super) fn wait_for_pause(&self, until: Instant) -> Waited {
        let left = until.saturating_duration_since(Instant::now());
        let has_place = |place: &mut Place| match place {
            Place::Running | Place::Returned(_) => true,
            Place::Paused(_) | Place::Taken | Place::Dismissed | Place::Ended => false,
        };
        let waited = self
            .slot
            .has_changed
            .wait_timeout_while(self.slot.lock(), left, has_place);
        let (place, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match *place {
            Place::Paused(_) => Waited::Paused,
            Place::Running | Place::Returned(_) => Waited::TimedOut,
            Place::Taken | Place::Dismissed | Place::Ended => Waited::Ended,
        }
    }

    /// Takes the worker, which has paused. [`Self::give_back`] or [`Self::dismiss`] follows.
    pub(super) fn take(&self) -> Option<Worker> {
        let mut place = self.slot.lock();
        match core::mem::replace(&mut *place, Place::Taken) {
            Place::Paused(worker) => Some(*worker),
            other @ (Place::Running
            | Place::Taken
            | Place::Returned(_)
            | Place::Dismissed
            | Place::Ended) => {
                *place = other;
                None
            }
        }
    }

    /// Gives the worker back to the thread, which goes on.
    pub(super) fn give_back(&self, worker: Worker) {
        self.slot.set(Place::Returned(Box::new(worker)));
    }

    /// Ends the thread, whose worker was taken and does not come back.
    pub(super) fn dismiss(&self) {
        self.slot.set(Place::Dismissed);
    }

    /// Lets a worker go on that has paused, after [`Target::release`].
    pub(super) fn wake(&self) {
        if let Some(worker) = self.take() {
            self.give_back(worker);
        }
    }

    /// Waits for the end of the thread. Returns the worker's counters; `None` if it has failed, or was not returned.
    pub(super) fn join(self) -> Option<Over> {
        match self.thread.join() {
            Ok(Some(Ok(over))) => Some(over),
            // The worker logged its error when it ended.
            Ok(Some(Err(_)) | None) => None,
            Err(_) => {
                tracing::error!(worker = self.id, "a worker's thread panicked");
                None
            }
        }
    }
}

fn serve(
    mut worker: Worker,
    target: &Target,
    slot: &Slot,
    port: u16,
    cpu: Option<u16>,
) -> Option<Result<Over, WorkerError>> {
    let id = worker.id();
    if let Some(cpu) = cpu
        && let Err(error) = pin(cpu)
    {
        tracing::warn!(port, worker = id, cpu, %error, "the worker is not bound to its processor, and runs on any");
    }
    let ended = loop {
        match worker.run_or_pause() {
            Ok(Served::Paused) => worker = slot.offer(target, worker)?,
            served @ (Ok(Served::Stopped) | Err(_)) => break worker.end(served),
        }
    };
    match &ended {
        Ok(over) => tracing::debug!(port, worker = id, ?over, "worker has ended"),
        Err(error) => {
            tracing::error!(port, worker = id, %error, "worker has ended: this port serves less, or nothing, until it is started anew");
        }
    }
    Some(ended)
}

/// Pins this thread to one processor.
fn pin(cpu: u16) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu.into())?;
    sched_setaffinity(Pid::from_raw(0), &set)
}
