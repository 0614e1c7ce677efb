//! The target, which all workers share: the model, and the workers' inboxes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::admission::Room;
use super::inbox::{Inbox, Message};
use super::lanes::Waiting;
use super::times::{KINDS, Times, Took};
use crate::io::Lock;
use crate::model::{Model, ModelError, Moment, Namespace, Notice, WorkerId};
use crate::nvme::Nqn;

/// Counters of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Over {
    /// Number of commands that were answered.
    pub commands: u64,
    /// Number of connections that were accepted.
    pub connections: u64,
    /// Number of connections that exist.
    pub queues: u64,
    /// Number of times that the worker slept.
    pub sleeps: u64,
    /// Number of commands that had not ended when the worker ended: 0 unless connections did not end in time.
    pub ios_left: usize,
    /// Number of buffers that these commands occupied.
    pub buffers_left: usize,
    /// Number of refused commands, which are also counted in `commands`.
    pub refused: u64,
    /// Number of pending commands: received, and their responses not yet sent.
    pub here: u64,
}

/// A target: the model, and its workers. Clones are the same target.
#[derive(Clone, Debug)]
pub struct Target(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    /// Inbox of each worker; `None` for workers that have ended.
    inboxes: Mutex<Vec<Option<Arc<Inbox>>>>,
    counts: Mutex<BTreeMap<WorkerId, Arc<Counts>>>,
    waiting: Waiting,
    /// Port and capacity of each worker.
    rooms: Mutex<BTreeMap<WorkerId, (u16, Room)>>,
    began: Instant,
    /// Nanoseconds by which `Target::advance` has advanced the clock.
    ahead: AtomicU64,
}

impl Default for Target {
    fn default() -> Self {
        Self::new(Model::new())
    }
}

impl Target {
    /// Creates a target with this model.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self(Arc::new(Shared {
            model: Mutex::new(model),
            inboxes: Mutex::default(),
            counts: Mutex::default(),
            waiting: Waiting::default(),
            rooms: Mutex::default(),
            began: Instant::now(),
            ahead: AtomicU64::new(0),
        }))
    }

    /// Calls `act` with the model, then sends the workers the messages that result from its changes, and releases the
    /// locks of removed disks. Within `act` these are still locked.
    pub fn with<T>(&self, act: impl FnOnce(&mut Model) -> T) -> T {
        let mut model = lock(&self.0.model);
        let result = act(&mut model);
        let (notices, removed) = (model.take_notices(), model.take_removed());
        drop(model);
        if !notices.is_empty() {
            let inboxes = lock(&self.0.inboxes);
            for notice in notices {
                deliver(&inboxes, notice);
            }
        }
        for namespace in removed {
            namespace.disk().give_up();
        }
        result
    }

    /// Reads the size of a namespace's disk again, and notifies the hosts if it has changed. Returns the number of
    /// blocks. Workers do not wait for the disk.
    ///
    /// # Errors
    /// There is no such namespace. Its disk does not answer, is smaller than a block, or its path names another file;
    /// nothing has changed.
    pub fn resize_namespace(&self, subsystem: &Nqn, nsid: u32) -> Result<u64, ModelError> {
        let namespace = self.with(|model| model.namespace(subsystem, nsid))?;
        let has_changed = namespace.reread_size();
        let has_changed = has_changed.map_err(|error| ModelError::Disk {
            subsystem: subsystem.to_string(),
            nsid,
            error: error.to_string(),
        })?;
        if has_changed {
            self.with(|model| model.namespace_changed(subsystem, nsid));
        }
        Ok(namespace.blocks())
    }

    /// Returns the time since the target was created. The model's times are in this clock.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.0.began.elapsed() + Duration::from_nanos(self.0.ahead.load(Ordering::Relaxed))
    }

    /// Advances the model's clock. For programs with a clock of their own, such as tests.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.ahead.fetch_add(by, Ordering::Relaxed);
    }

    /// Stops all workers: each closes its connections, and its `run` returns.
    pub fn stop(&self) {
        for inbox in lock(&self.0.inboxes).iter().flatten() {
            inbox.put(Message::Stop);
        }
    }

    /// Stops one worker.
    pub fn stop_worker(&self, worker: WorkerId) {
        let at = usize::try_from(worker).unwrap_or(usize::MAX);
        if let Some(Some(inbox)) = lock(&self.0.inboxes).get(at) {
            inbox.put(Message::Stop);
        }
    }

    /// Returns the queue of authentications that wait to be computed.
    pub(super) fn waiting(&self) -> &Waiting {
        &self.0.waiting
    }

    fn inboxes(&self) -> MutexGuard<'_, Vec<Option<Arc<Inbox>>>> {
        lock(&self.0.inboxes)
    }

    /// Locks a block for a command of a worker. The worker gets [`Message::Locked`] when no worker has a write to the
    /// block in progress. `None` if the block is locked already.
    pub(super) fn lock(
        &self,
        namespace: &Arc<Namespace>,
        block: u64,
        worker: WorkerId,
        io: u32,
    ) -> Option<Arc<Lock>> {
        let inboxes = self.inboxes();
        let owner = inboxes.get(worker as usize)?.clone()?; // CAST: widening.
        if !namespace.lock(block, worker) {
            return None;
        }
        let workers = inboxes.iter().flatten();
        let lock = Arc::new(Lock::new(
            namespace,
            block,
            workers.clone().count(),
            owner,
            io,
        ));
        for inbox in workers {
            if !inbox.put(Message::Fence(Arc::clone(&lock))) {
                lock.pass();
            }
        }
        Some(lock)
    }

    /// Unlocks a block, and notifies all workers.
    pub(super) fn unlock(&self, lock: &Lock) {
        lock.namespace().unlock(lock.block());
        self.announce_unlocked();
    }

    /// Notifies all workers that a block was unlocked.
    fn announce_unlocked(&self) {
        for inbox in self.inboxes().iter().flatten() {
            inbox.put(Message::Unlocked);
        }
    }

    /// Registers a worker.
    pub(super) fn join(&self, inbox: Arc<Inbox>) -> Member {
        let mut inboxes = lock(&self.0.inboxes);
        inboxes.push(Some(inbox));
        // CAST: workers are threads; there are not that many.
        let id = u32::try_from(inboxes.len() - 1).unwrap_or(u32::MAX);
        let counts = Arc::<Counts>::default();
        lock(&self.0.counts).insert(id, Arc::clone(&counts));
        Member {
            target: self.clone(),
            id,
            counts,
        }
    }

    /// Returns the capacity of each worker that has not ended.
    #[must_use]
    pub fn rooms(&self) -> BTreeMap<WorkerId, Room> {
        let rooms = lock(&self.0.rooms);
        rooms.iter().map(|(id, (_, room))| (*id, *room)).collect()
    }

    /// Returns the number of free entries of each other worker of a port.
    pub(super) fn entries_left(&self, port: u16, but: WorkerId) -> Vec<u32> {
        let rooms = lock(&self.0.rooms);
        let others = rooms
            .iter()
            .filter(|(id, (of, _))| *of == port && **id != but);
        others.map(|(_, (_, room))| room.entries_left).collect()
    }

    /// Returns the counters of each worker that has not ended, as of the worker's last report.
    #[must_use]
    pub fn done(&self) -> BTreeMap<WorkerId, Over> {
        let counts = lock(&self.0.counts);
        counts.iter().map(|(id, one)| (*id, one.read())).collect()
    }

    /// Returns the latencies of the commands that each worker has timed, in the order of [`KINDS`].
    #[must_use]
    pub fn took(&self) -> BTreeMap<WorkerId, [Took; KINDS.len()]> {
        let counts = lock(&self.0.counts);
        let all = counts.iter();
        all.map(|(id, one)| (*id, one.times.read())).collect()
    }
}

/// Counters of a worker. Only the worker writes them; other threads read them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    commands: AtomicU64,
    connections: AtomicU64,
    queues: AtomicU64,
    sleeps: AtomicU64,
    refused: AtomicU64,
    here: AtomicU64,
    times: Times,
}

impl Counts {
    fn read(&self) -> Over {
        Over {
            commands: self.commands.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            queues: self.queues.load(Ordering::Relaxed),
            sleeps: self.sleeps.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            here: self.here.load(Ordering::Relaxed),
            ..Over::default()
        }
    }
}

/// A worker's registration. Dropping it removes the worker from the target, and the worker gets no more messages.
#[derive(Debug)]
pub(super) struct Member {
    target: Target,
    id: WorkerId,
    counts: Arc<Counts>,
}

impl Member {
    pub(super) const fn id(&self) -> WorkerId {
        self.id
    }

    /// Returns the histograms of the worker's latencies.
    pub(super) fn times(&self) -> &Times {
        &self.counts.times
    }

    /// Reports the worker's capacity.
    pub(super) fn report_capacity(&self, port: u16, room: Room) {
        lock(&self.target.0.rooms).insert(self.id, (port, room));
    }

    /// Reports the worker's counters.
    #[inline]
    pub(super) fn report_counts(&self, done: &Over) {
        self.counts.commands.store(done.commands, Ordering::Relaxed);
        let connections = &self.counts.connections;
        connections.store(done.connections, Ordering::Relaxed);
        self.counts.queues.store(done.queues, Ordering::Relaxed);
        self.counts.sleeps.store(done.sleeps, Ordering::Relaxed);
        self.counts.refused.store(done.refused, Ordering::Relaxed);
        self.counts.here.store(done.here, Ordering::Relaxed);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let at = usize::try_from(self.id).unwrap_or(usize::MAX);
        if let Some(inbox) = lock(&self.target.0.inboxes).get_mut(at) {
            *inbox = None;
        }
        lock(&self.target.0.counts).remove(&self.id);
        lock(&self.target.0.rooms).remove(&self.id);
        // The controllers whose admin queues were at this worker end, even if the worker could not report that. Its
        // pairs unlock their blocks, even those of a disk that hangs.
        self.target.with(|model| model.worker_lost(self.id));
        self.target.announce_unlocked();
    }
}

fn deliver(inboxes: &[Option<Arc<Inbox>>], notice: Notice) {
    let all = |message: Message| {
        for inbox in inboxes.iter().flatten() {
            inbox.put(message.clone());
        }
    };
    match notice {
        Notice::Event { worker, controller } => {
            let at = usize::try_from(worker).unwrap_or(usize::MAX);
            if let Some(Some(inbox)) = inboxes.get(at) {
                inbox.put(Message::Event(controller));
            }
        }
        Notice::Reset { controller, last } => all(Message::Reset(controller, last)),
        Notice::Over { controller } => all(Message::Over(controller)),
        Notice::Queue { connection } => all(Message::Queue(connection)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is used even if a thread panicked while it held the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
