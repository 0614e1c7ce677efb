//! Namespaces: each is a disk with a number.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use super::WorkerId;
use super::reservation::Reservations;
use crate::disk::{Disk, DiskError};

/// Configuration of a namespace.
#[derive(Debug)]
pub struct NamespaceConfig {
    /// Number of the namespace; `None` for the lowest free number.
    pub nsid: Option<u32>,
    /// Identifier by which hosts recognise the namespace. It must not change while a host has the namespace.
    pub uuid: Uuid,
    /// Group of the namespace, for [`super::PortAccess`].
    pub group: u32,
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
    /// Number of changes of reservations and locks. Workers have copies of these, and compare only this number.
    changes: AtomicU64,
    reservations: Mutex<Arc<Reservations>>,
    /// Blocks that compare and write has locked against writes, each with the worker of the pair.
    locks: Mutex<Vec<(u64, WorkerId)>>,
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
}

impl Done {
    fn add(&mut self, tally: &Tally) {
        self.reads += tally.reads.load(Ordering::Relaxed);
        self.writes += tally.writes.load(Ordering::Relaxed);
        self.read_bytes += tally.read_bytes.load(Ordering::Relaxed);
        self.written_bytes += tally.written_bytes.load(Ordering::Relaxed);
    }
}

impl Namespace {
    pub(super) fn new(nsid: u32, config: NamespaceConfig) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let blocks = config.disk.blocks().unwrap_or(0);
        Self {
            serial: MADE.fetch_add(1, Ordering::Relaxed),
            nsid,
            uuid: config.uuid,
            group: config.group,
            protected: AtomicBool::new(config.disk.is_read_only()),
            disk: config.disk,
            blocks: AtomicU64::new(blocks),
            changes: AtomicU64::new(0),
            locks: Mutex::default(),
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

    /// Returns the number of changes of reservations and locks; 0 if there has never been one.
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
