//! Namespaces: each is a disk with a number.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use super::limit::{HostLimits, Limit, Limiter, Limiters};
use super::refusal::ModelResumeError as Error;
use super::reservation::Reservations;
use super::snapshot::NamespaceSnapshot;
use super::{ModelParkError, Nqn, WorkerId};
use crate::disk::{Disk, DiskError};

/// Limit of the counters of a namespace in a snapshot: an exabyte, so that no sum of counters overflows for years.
const MOST_DONE: u64 = 1 << 60;

/// Configuration of a namespace.
#[derive(Debug)]
pub struct NamespaceConfig {
    /// Number of the namespace; `None` for the lowest free number.
    pub nsid: Option<u32>,
    /// Identifier by which hosts recognise the namespace. It must not change while a host has the namespace.
    pub uuid: Uuid,
    /// Group of the namespace, for [`super::PortAccess`].
    pub group: u32,
    /// Hosts that see the namespace; `None` if all hosts of the subsystem see it.
    pub hosts: Option<BTreeSet<Nqn>>,
    /// Disk of the namespace.
    pub disk: Disk,
}

/// A namespace, as it is shared with the workers.
#[derive(Debug)]
pub struct Namespace {
    /// Serial number of the namespace object within this process.
    serial: u64,
    nsid: u32,
    uuid: Uuid,
    group: u32,
    disk: Disk,
    blocks: AtomicU64,
    protected: AtomicBool,
    /// Hosts that see the namespace; `None` if all hosts of the subsystem see it.
    hosts: Mutex<Option<Arc<BTreeSet<Nqn>>>>,
    /// Number of changes of hosts, reservations, locks and limits. Workers have copies of these, and compare only this
    /// number.
    changes: AtomicU64,
    reservations: Mutex<Arc<Reservations>>,
    limiter: Mutex<Option<Arc<Limiter>>>,
    host_limits: Arc<HostLimits>,
    /// Blocks that compare and write has locked against writes, each with the worker of the pair.
    locks: Mutex<Vec<(u64, WorkerId)>>,
    /// True once a worker has ended that had commands at the disk which the disk may carry out at any time.
    is_abandoned: AtomicBool,
    /// Counters of each worker, and the sums of the workers that have ended.
    tallies: Mutex<(Vec<Arc<Tally>>, Done)>,
}

/// Counters of one worker on a namespace. Only that worker writes them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Tally {
    /// Number of read commands.
    pub reads: AtomicU64,
    /// Number of write commands.
    pub writes: AtomicU64,
    /// Number of bytes read.
    pub read_bytes: AtomicU64,
    /// Number of bytes written.
    pub written_bytes: AtomicU64,
    /// Number of commands that waited because of the limit.
    pub limited: AtomicU64,
}

impl Tally {
    /// Adds to a counter. No count is lost between the load and the store, because only one thread writes the counter.
    #[inline]
    pub fn add(counter: &AtomicU64, more: u64) {
        counter.store(
            counter.load(Ordering::Relaxed).wrapping_add(more),
            Ordering::Relaxed,
        );
    }
}

/// Sums of the counters of all workers on a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of read commands.
    pub reads: u64,
    /// Number of write commands.
    pub writes: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of bytes written.
    pub written_bytes: u64,
    /// Number of commands that waited because of the limit, since this process serves the namespace.
    pub limited: u64,
}

impl Done {
    fn add(&mut self, tally: &Tally) {
        self.reads += tally.reads.load(Ordering::Relaxed);
        self.writes += tally.writes.load(Ordering::Relaxed);
        self.read_bytes += tally.read_bytes.load(Ordering::Relaxed);
        self.written_bytes += tally.written_bytes.load(Ordering::Relaxed);
        self.limited += tally.limited.load(Ordering::Relaxed);
    }
}

impl Namespace {
    pub(super) fn new(nsid: u32, config: NamespaceConfig, host_limits: &Arc<HostLimits>) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let blocks = config.disk.blocks().unwrap_or(0);
        let is_plain = config.hosts.is_none() && host_limits.all().is_empty();
        Self {
            serial: MADE.fetch_add(1, Ordering::Relaxed),
            nsid,
            uuid: config.uuid,
            group: config.group,
            protected: AtomicBool::new(config.disk.is_read_only()),
            disk: config.disk,
            blocks: AtomicU64::new(blocks),
            hosts: Mutex::new(config.hosts.map(Arc::new)),
            changes: AtomicU64::new((!is_plain).into()),
            limiter: Mutex::default(),
            host_limits: Arc::clone(host_limits),
            locks: Mutex::default(),
            is_abandoned: AtomicBool::new(false),
            reservations: Mutex::default(),
            tallies: Mutex::default(),
        }
    }

    /// Returns a serial number that no other namespace has or had, not even one with the same subsystem, number and
    /// identifier.
    #[must_use]
    pub(crate) const fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the namespace's number.
    #[must_use]
    pub const fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Returns the identifier by which hosts recognise the namespace.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the number of the namespace's group.
    #[must_use]
    pub const fn group(&self) -> u32 {
        self.group
    }

    /// Returns the disk.
    #[must_use]
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Returns the block size in bytes, as a power of two.
    #[must_use]
    pub const fn shift(&self) -> u8 {
        self.disk.shift()
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Returns whether writes are refused.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.protected.load(Ordering::Relaxed)
    }

    /// Sets or clears write protection. Returns false if it cannot be cleared, because the disk was opened for reading
    /// only.
    pub(super) fn protect(&self, protected: bool) -> bool {
        let can = protected || !self.disk.is_read_only();
        if can {
            self.protected.store(protected, Ordering::Relaxed);
        }
        can
    }

    /// Reads the size of the disk again. Returns whether it has changed.
    ///
    /// # Errors
    /// The disk does not answer, is smaller than a block, or its path names another file. Nothing has changed.
    pub(crate) fn reread_size(&self) -> Result<bool, DiskError> {
        self.disk.check_path()?;
        let blocks = self.disk.blocks_now()?;
        Ok(self.blocks.swap(blocks, Ordering::Relaxed) != blocks)
    }

    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        self.limiter().map(|limiter| limiter.limit())
    }

    /// Returns the limiter, which the workers share.
    #[must_use]
    pub(crate) fn limiter(&self) -> Option<Arc<Limiter>> {
        let now = self.limiter.lock();
        now.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the limit; `None` ends it. Commands that wait follow the new limit within half a second.
    pub(super) fn set_limit(&self, limit: Option<Limit>) {
        let mut now = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        *now = limit.map(|limit| Arc::new(Limiter::new(limit)));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the limiters of the subsystem's hosts.
    #[must_use]
    pub(crate) fn host_limits(&self) -> Arc<Limiters> {
        self.host_limits.all()
    }

    /// Records that the limit of a host has changed.
    pub(super) fn note_host_limit(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the hosts that see the namespace; `None` if all hosts of the subsystem see it.
    #[must_use]
    pub fn hosts(&self) -> Option<Arc<BTreeSet<Nqn>>> {
        let hosts = self.hosts.lock();
        hosts.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the hosts that see the namespace. Returns the former ones.
    pub(super) fn set_hosts(&self, hosts: Option<BTreeSet<Nqn>>) -> Option<Arc<BTreeSet<Nqn>>> {
        let mut now = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let before = core::mem::replace(&mut *now, hosts.map(Arc::new));
        self.changes.fetch_add(1, Ordering::Release);
        before
    }

    /// Returns whether a host of the subsystem sees the namespace.
    #[must_use]
    pub fn is_visible_to(&self, host: &Nqn) -> bool {
        self.hosts().is_none_or(|hosts| hosts.contains(host))
    }

    /// Returns the number of changes of hosts, reservations, locks and limits; 0 if there has never been one, every
    /// host sees the namespace, and no host has a limit.
    #[inline]
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the locked blocks.
    #[must_use]
    pub(crate) fn locks(&self) -> Vec<u64> {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.iter().map(|(block, _)| *block).collect()
    }

    /// Records that a worker has ended with commands at the disk.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Returns whether a worker has ended with commands at the disk.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Locks a block for a pair of a worker. Returns false if it is locked already.
    pub(crate) fn lock(&self, block: u64, worker: WorkerId) -> bool {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = locks.iter().all(|(one, _)| *one != block);
        if is_free {
            locks.push((block, worker));
            self.changes.fetch_add(1, Ordering::Release);
        }
        is_free
    }

    /// Unlocks a block.
    pub(crate) fn unlock(&self, block: u64) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|(one, _)| *one != block);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Unlocks the blocks of a worker that has ended.
    pub(super) fn unlock_all(&self, worker: WorkerId) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let before = locks.len();
        locks.retain(|(_, one)| *one != worker);
        if locks.len() != before {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the current reservations.
    #[must_use]
    pub fn reservations(&self) -> Arc<Reservations> {
        let now = self.reservations.lock();
        Arc::clone(&now.unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn change_reservations<T, E>(
        &self,
        change: impl FnOnce(&mut Reservations) -> Result<T, E>,
    ) -> Result<T, E> {
        let now = self.reservations.lock();
        let mut now = now.unwrap_or_else(PoisonError::into_inner);
        let done = change(Arc::make_mut(&mut now))?;
        self.changes.fetch_add(1, Ordering::Release);
        Ok(done)
    }

    /// Writes out what has happened to the namespace, and what it is recognised by.
    ///
    /// # Errors
    /// A pair of commands has locked blocks.
    pub(super) fn park(&self, subsystem: &Nqn) -> Result<NamespaceSnapshot, ModelParkError> {
        if !self.locks().is_empty() {
            return Err(ModelParkError::Locked {
                subsystem: subsystem.to_string(),
                nsid: self.nsid,
            });
        }
        let done = self.done();
        Ok(NamespaceSnapshot {
            nsid: self.nsid,
            uuid: self.uuid.into_bytes(),
            group: self.group,
            shift: self.shift(),
            blocks: self.blocks(),
            is_read_only: self.disk.is_read_only(),
            is_protected: self.is_protected(),
            reservations: self.reservations().park(),
            reads: done.reads.min(MOST_DONE),
            writes: done.writes.min(MOST_DONE),
            read_bytes: done.read_bytes.min(MOST_DONE),
            written_bytes: done.written_bytes.min(MOST_DONE),
        })
    }

    /// Checks that this is the namespace that was parked, and returns its reservations. `of` is its name, for errors. A
    /// disk that has grown since the size was last read is not another one: hosts know its former size, and read the
    /// new size as usual ([`Self::reread_size`]).
    pub(super) fn check(
        &self,
        of: &str,
        parked: &NamespaceSnapshot,
    ) -> Result<Reservations, Error> {
        let differs = |what: &str, is: String, was: String| {
            Err(Error::configuration(
                of,
                format!("{what} is {is}, and was {was} at the parking"),
            ))
        };
        let uuid = Uuid::from_bytes(parked.uuid);
        if self.uuid != uuid {
            return differs("its identifier", self.uuid.to_string(), uuid.to_string());
        }
        if self.group != parked.group {
            let (is, was) = (self.group.to_string(), parked.group.to_string());
            return differs("its group", is, was);
        }
        if self.shift() != parked.shift {
            let (is, was) = (self.shift().to_string(), parked.shift.to_string());
            return differs("the exponent of its block size", is, was);
        }
        if self.disk.is_read_only() != parked.is_read_only {
            let (is, was) = (self.disk.is_read_only(), parked.is_read_only);
            return differs("that it is read-only", is.to_string(), was.to_string());
        }
        if self.blocks() < parked.blocks {
            let (is, was) = (self.blocks().to_string(), parked.blocks.to_string());
            return differs("its number of blocks", is, was);
        }
        let is_possible = parked.is_protected || !parked.is_read_only;
        Error::check(is_possible, of, "it is read-only, and not protected")?;
        Error::check_range(
            of,
            [
                ("reads", parked.reads, MOST_DONE),
                ("writes", parked.writes, MOST_DONE),
                ("read_bytes", parked.read_bytes, MOST_DONE),
                ("written_bytes", parked.written_bytes, MOST_DONE),
            ],
        )?;
        Reservations::resume(of, &parked.reservations)
    }

    /// Goes on with a parked namespace, which was checked, and its reservations.
    pub(super) fn resume(&self, parked: &NamespaceSnapshot, reservations: Reservations) {
        self.blocks.store(parked.blocks, Ordering::Relaxed);
        self.protected.store(parked.is_protected, Ordering::Relaxed);
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.1 = Done {
            reads: parked.reads,
            writes: parked.writes,
            read_bytes: parked.read_bytes,
            written_bytes: parked.written_bytes,
            limited: 0,
        };
        drop(tallies);
        if reservations != Reservations::default() {
            let place = self.reservations.lock();
            *place.unwrap_or_else(PoisonError::into_inner) = Arc::new(reservations);
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns new counters, for one more worker.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, gone) = &mut *tallies;
        live.retain(|one| {
            let is_used = Arc::strong_count(one) > 1;
            if !is_used {
                gone.add(one);
            }
            is_used
        });
        live.push(Arc::clone(&tally));
        tally
    }

    /// Returns the sums of all workers' counters.
    #[must_use]
    pub fn done(&self) -> Done {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, mut done) = (&tallies.0, tallies.1);
        for tally in live {
            done.add(tally);
        }
        done
    }
}
