//! The target, which all workers share: the model, and the workers' inboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::admission::Room;
use super::hold::Hold;
use super::inbox::{Inbox, Membership, Message};
use super::lanes::Waiting;
use super::search::Search;
use super::times::{KINDS, Times, Took};
use crate::io::{Disks, Lock, Scope};
use crate::model::{
    HostId, Model, ModelError, ModelParkError, ModelResumeError, ModelSnapshot, Moment, Namespace,
    Notice, WorkerId,
};
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

/// A target that was parked: plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetSnapshot {
    model: ModelSnapshot,
    /// Time of the clock, in nanoseconds.
    now_ns: u64,
    /// Number of workers that the target has or had. The next worker gets this number.
    workers: u32,
    /// Workers that are parked.
    parked: Vec<WorkerId>,
}

/// Reason why a target was not parked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetParkError {
    /// A worker is not parked.
    #[error("worker {worker} is not parked")]
    Worker {
        /// Number of the worker.
        worker: WorkerId,
    },
    /// A parked worker has messages, which the next process would not get. The worker is resumed and parked again.
    #[error("parked worker {worker} has messages: it must be resumed, and parked again")]
    Messages {
        /// Number of the worker.
        worker: WorkerId,
    },
    /// The model cannot be parked.
    #[error("{0}")]
    Model(#[from] ModelParkError),
}

/// Reason why a target was not resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetResumeError {
    /// The time or the numbers of workers are impossible.
    #[error("the snapshot's time or numbers of workers are impossible")]
    Numbers,
    /// A controller's worker was not parked.
    #[error("a controller has worker {worker}, which the snapshot does not have")]
    Worker {
        /// Number of the worker.
        worker: WorkerId,
    },
    /// The model is not resumed.
    #[error("{0}")]
    Model(#[from] ModelResumeError),
    /// An event descriptor cannot be created.
    #[error("a descriptor to wake a worker by: {0}")]
    Wakeup(#[from] std::io::Error),
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
    /// It is locked before `inboxes`.
    hold: Mutex<Hold>,
    /// Port and capacity of each worker.
    rooms: Mutex<BTreeMap<WorkerId, (u16, Room)>>,
    /// Time of the creation; `None` if only `Target::advance` advances the clock.
    began: Option<Instant>,
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
        Self::at(model, 0, Vec::new(), Hold::default())
    }

    /// Creates a target whose clock is advanced by [`Self::advance`] alone, for simulations in virtual time.
    #[must_use]
    pub fn with_own_clock(model: Model) -> Self {
        let mut target = Self::new(model);
        if let Some(shared) = Arc::get_mut(&mut target.0) {
            shared.began = None;
        }
        target
    }

    /// Creates a target whose clock is at this time.
    fn at(model: Model, ahead: u64, inboxes: Vec<Option<Arc<Inbox>>>, hold: Hold) -> Self {
        Self(Arc::new(Shared {
            model: Mutex::new(model),
            inboxes: Mutex::new(inboxes),
            hold: Mutex::new(hold),
            counts: Mutex::default(),
            waiting: Waiting::default(),
            rooms: Mutex::default(),
            began: Some(Instant::now()),
            ahead: AtomicU64::new(ahead),
        }))
    }

    /// Returns the model; `None` if there are other clones of the target, such as those of workers.
    #[must_use]
    pub fn into_model(self) -> Option<Model> {
        let model = Arc::into_inner(self.0)?.model;
        Some(model.into_inner().unwrap_or_else(PoisonError::into_inner))
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
            self.with(|model| model.namespace_changed(subsystem, &namespace));
        }
        Ok(namespace.blocks())
    }

    /// Returns the time since the target was created. The model's times are in this clock.
    #[must_use]
    pub fn now(&self) -> Moment {
        let elapsed = self.0.began.map_or(Duration::ZERO, |began| began.elapsed());
        elapsed + Duration::from_nanos(self.0.ahead.load(Ordering::Relaxed))
    }

    /// Advances the model's clock. For programs with a clock of their own, such as tests.
    pub fn advance(&self, by: Duration) {
        self.0.ahead.fetch_add(nanos(by), Ordering::Relaxed);
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

    /// Holds the target: workers begin no commands, and end those that they have begun. Commands of hosts wait in the
    /// workers' receives. Authentications that wait to be computed are answered with Command Interrupted.
    /// [`Worker::run_or_pause`](super::Worker::run_or_pause) returns when all workers are quiet. If a disk or a host
    /// delays that for too long, the caller releases the target.
    pub fn hold(&self) {
        let mut hold = lock(&self.0.hold);
        if !core::mem::replace(&mut hold.is_on, true) {
            hold.quiet.clear();
        }
        drop(hold);
        self.abandon_waiting();
        self.announce(&Message::Hold);
    }

    /// Ends a hold, whether or not workers have paused: they go on, and begin the commands that came meanwhile.
    pub fn release(&self) {
        let mut hold = lock(&self.0.hold);
        hold.is_on = false;
        hold.quiet.clear();
        drop(hold);
        self.announce(&Message::Hold);
    }

    /// Returns whether the target is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        lock(&self.0.hold).is_on
    }

    /// Records that a worker is quiet, if the target is held. If it was the last one, all workers are notified.
    pub(super) fn report_quiet(&self, worker: WorkerId) {
        let mut hold = lock(&self.0.hold);
        // The worker may not have heard yet that the hold is over.
        let is_new = hold.is_on && hold.quiet.insert(worker);
        drop(hold);
        if is_new && self.is_all_quiet() {
            self.announce(&Message::Hold);
        }
    }

    /// Returns whether the target is held and all workers are quiet or parked.
    pub(super) fn is_all_quiet(&self) -> bool {
        let hold = lock(&self.0.hold);
        hold.is_on && members(&self.inboxes()).all(|worker| hold.has(worker))
    }

    /// Returns the workers that are neither quiet nor parked, while the target is held.
    #[must_use]
    pub fn busy_workers(&self) -> Vec<WorkerId> {
        let hold = lock(&self.0.hold);
        let inboxes = self.inboxes();
        let busy = members(&inboxes).filter(|worker| !hold.has(*worker));
        busy.collect()
    }

    /// Parks the target, whose workers are all parked: its model and its clock, of which [`Target::resume`] makes a
    /// target again. If the parking is given up, the target goes on as it is, with
    /// [`Worker::resume`](super::Worker::resume) of each worker, and after [`Target::release`].
    ///
    /// # Errors
    /// A worker is not parked, a message for one would be lost, or the model cannot be parked. Nothing has changed.
    pub fn park(&self) -> Result<TargetSnapshot, TargetParkError> {
        let hold = lock(&self.0.hold);
        let inboxes = self.inboxes();
        let running = members(&inboxes).find(|worker| !hold.parked.contains(worker));
        if let Some(worker) = running {
            return Err(TargetParkError::Worker { worker });
        }
        let mut waiting = (0..).zip(inboxes.iter());
        let waiting = waiting.find(|(_, inbox)| inbox.as_ref().is_some_and(|it| it.must_be_read()));
        if let Some((worker, _)) = waiting {
            return Err(TargetParkError::Messages { worker });
        }
        let known = inboxes.len();
        drop(inboxes);
        let now = self.now();
        let model = lock(&self.0.model).park(now)?;
        Ok(TargetSnapshot {
            model,
            now_ns: nanos(now),
            // CAST: workers are threads; there are not that many.
            workers: u32::try_from(known).unwrap_or(u32::MAX),
            parked: hold.parked.iter().copied().collect(),
        })
    }

    /// Makes a target of a snapshot and of a new model, which has the subsystems, namespaces and ports of the parked
    /// one. The clock continues where it stood. [`Worker::resume`](super::Worker::resume) of each worker follows.
    ///
    /// # Errors
    /// The reason.
    pub fn resume(mut model: Model, snapshot: &TargetSnapshot) -> Result<Self, TargetResumeError> {
        /// Maximum number of workers that a target has or had.
        const WORKERS: u32 = 1 << 16;
        /// Maximum time of the clock: a hundred years.
        const LATEST: u64 = 100 * 366 * 86_400 * 1_000_000_000;
        let TargetSnapshot {
            model: parked_model,
            now_ns,
            workers,
            parked,
        } = snapshot;
        if *workers > WORKERS || *now_ns > LATEST {
            return Err(TargetResumeError::Numbers);
        }
        let numbers: BTreeSet<WorkerId> = parked.iter().copied().collect();
        if numbers.len() != parked.len() || numbers.iter().any(|worker| worker >= workers) {
            return Err(TargetResumeError::Numbers);
        }
        let missing = parked_model.workers();
        if let Some(worker) = missing.difference(&numbers).next() {
            return Err(TargetResumeError::Worker { worker: *worker });
        }
        let mut inboxes = vec![None; *workers as usize]; // CAST: widening.
        for worker in &numbers {
            inboxes[*worker as usize] = Some(Arc::new(Inbox::new()?)); // CAST: widening.
        }
        model.resume(parked_model, Duration::from_nanos(*now_ns))?;
        let hold = Hold {
            parked: numbers,
            ..Hold::default()
        };
        let target = Self::at(model, *now_ns, inboxes, hold);
        // The messages about event requests that can be answered wait in the inboxes.
        target.with(|_| ());
        Ok(target)
    }

    /// Returns the workers that are parked, or that [`Target::resume`] has made and [`Worker::resume`] has not.
    ///
    /// [`Worker::resume`]: super::Worker::resume
    #[must_use]
    pub fn parked_workers(&self) -> Vec<WorkerId> {
        lock(&self.0.hold).parked.iter().copied().collect()
    }

    /// Removes a parked worker, which will not be resumed: the controllers whose admin queues it had end. Does nothing
    /// if there is no such parked worker.
    pub fn forget_worker(&self, worker: WorkerId) {
        if let Some((member, inbox)) = self.rejoin(worker) {
            // Pairs of other workers may wait for these drops.
            drop(Membership::new(inbox));
            drop(member);
        }
    }

    /// Sends a message to all workers.
    fn announce(&self, message: &Message) {
        for inbox in self.inboxes().iter().flatten() {
            inbox.put(message.clone());
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
        Some(announce(&inboxes, |workers| {
            Lock::new(namespace, Scope::Block(block), workers, owner, io)
        }))
    }

    /// Locks hosts for a command of a worker. The worker gets [`Message::Locked`] when the disk of the namespace has
    /// completed the commands that the hosts have sent before. `None` if the worker has ended.
    pub(super) fn lock_hosts(
        &self,
        namespace: &Arc<Namespace>,
        hosts: Vec<HostId>,
        worker: WorkerId,
        io: u32,
    ) -> Option<Arc<Lock>> {
        let inboxes = self.inboxes();
        let owner = inboxes.get(worker as usize)?.clone()?; // CAST: widening.
        Some(announce(&inboxes, |workers| {
            Lock::new(namespace, Scope::Hosts(hosts), workers, owner, io)
        }))
    }

    /// Asks all workers to look for a command of a controller's queue, for the Abort that is command `io` of a worker.
    /// The worker gets [`Message::Searched`]. Returns false if the worker has ended.
    pub(super) fn search(&self, of: (u16, u16, u16), worker: WorkerId, io: u32) -> bool {
        let inboxes = self.inboxes();
        // CAST: widening.
        let Some(owner) = inboxes.get(worker as usize).cloned().flatten() else {
            return false;
        };
        let workers = inboxes.iter().flatten();
        let search = Arc::new(Search::new(of, workers.clone().count(), (owner, io)));
        for inbox in workers {
            if !inbox.put(Message::Abort(Arc::clone(&search))) {
                search.pass(false);
            }
        }
        true
    }

    /// Ends a lock. If it is one of a block, unlocks the block, and notifies all workers.
    pub(super) fn unlock(&self, lock: &Lock) {
        if let Scope::Block(block) = lock.scope() {
            lock.namespace().unlock(*block);
            self.announce_unlocked();
        }
    }

    /// Notifies all workers that a block was unlocked.
    fn announce_unlocked(&self) {
        self.announce(&Message::Unlocked);
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
            is_parked: false,
        }
    }

    /// Registers a worker that was parked, with its number and its inbox; `None` if no such worker is parked.
    pub(super) fn rejoin(&self, id: WorkerId) -> Option<(Member, Arc<Inbox>)> {
        let mut hold = lock(&self.0.hold);
        if !hold.parked.contains(&id) {
            return None;
        }
        let at = usize::try_from(id).ok()?;
        let inbox = self.inboxes().get(at)?.clone()?;
        hold.parked.remove(&id);
        hold.quiet.remove(&id);
        hold.disks.remove(&id);
        drop(hold);
        let mut counts = lock(&self.0.counts);
        let counts = Arc::clone(counts.entry(id).or_default());
        let target = self.clone();
        let member = Member {
            target,
            id,
            counts,
            is_parked: false,
        };
        Some((member, inbox))
    }

    /// Returns the disks of a worker that was parked in this process.
    pub(super) fn take_disks(&self, id: WorkerId) -> Option<Disks> {
        lock(&self.0.hold).disks.remove(&id)
    }

    /// Keeps the disks of a parked worker, which was not resumed.
    pub(super) fn keep_disks(&self, id: WorkerId, disks: Disks) {
        lock(&self.0.hold).disks.insert(id, disks);
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
    /// True if the worker was parked: it stays registered.
    is_parked: bool,
}

impl Member {
    /// Drops this value without removing the worker.
    pub(super) fn park(mut self, disks: Disks) {
        let mut hold = lock(&self.target.0.hold);
        hold.parked.insert(self.id);
        hold.disks.insert(self.id, disks);
        drop(hold);
        self.is_parked = true;
    }

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
        if self.is_parked {
            return;
        }
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
        // During a hold the others may be quiet, and wait for this worker.
        if self.target.is_held() {
            self.target.announce(&Message::Hold);
        }
    }
}

/// Announces a lock to all workers. `of` makes the lock for a number of workers.
fn announce(inboxes: &[Option<Arc<Inbox>>], of: impl FnOnce(usize) -> Lock) -> Arc<Lock> {
    let workers = inboxes.iter().flatten();
    let lock = Arc::new(of(workers.clone().count()));
    for inbox in workers {
        if !inbox.put(Message::Fence(Arc::clone(&lock))) {
            lock.pass();
        }
    }
    lock
}

/// Returns the numbers of the workers that have not ended.
fn members(inboxes: &[Option<Arc<Inbox>>]) -> impl Iterator<Item = WorkerId> {
    let there = (0..).zip(inboxes).filter(|(_, inbox)| inbox.is_some());
    there.map(|(worker, _)| worker)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
