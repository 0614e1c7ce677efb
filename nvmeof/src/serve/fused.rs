//! Compare and write, fused: one block is compared, and written if it was as the host thought (Base specification,
//! "Fused Operations"; NVM Command Set specification, "Compare and Write").
//!
//! ```text
//!   begin      the first waits for the second, which is the next command of its queue: it, or nothing
//!   pair       both are looked at; each has its data come
//!   execute    who is ready waits for the other (PAIRED); the last of them has the first lock the block (LOCKING)
//!   locked     the disk is read, and compared; the second is written, and has the lock until it has ended
//! ```
//!
//! A lock keeps writes of all workers away from the block. It is on the namespace, where workers look before a write is
//! given to a disk, at the word that they look at for reservations. Writes that were given to a disk before are waited
//! for: each worker is told of the lock ([`Message::Fence`]), and says when it has none of them any more. A worker that
//! ends says so as well ([`Membership`]). Reads are not kept away: one block is read or written as a whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::execute::{Local, check, writes};
use super::inbox::{Inbox, Message};
use super::io::{State, Step, Work};
use super::target::Target;
use super::worker::{Worker, WorkerError};
use crate::model::Namespace;
use crate::nvme::command::{FUSE, FUSE_SECOND, io as opcode};
use crate::nvme::sgl::Data;
use crate::nvme::{Sqe, Status};

/// A block of a namespace that is locked, or about to be.
#[derive(Debug)]
pub(super) struct Lock {
    namespace: Arc<Namespace>,
    block: u64,
    /// Workers that may have a write at a disk still.
    busy: AtomicUsize,
    owner: Arc<Inbox>,
    io: u32,
}

impl Lock {
    pub(super) fn new(
        namespace: &Arc<Namespace>,
        block: u64,
        workers: usize,
        owner: Arc<Inbox>,
        io: u32,
    ) -> Self {
        Self {
            namespace: Arc::clone(namespace),
            block,
            busy: AtomicUsize::new(workers),
            owner,
            io,
        }
    }

    /// One worker less.
    pub(super) fn pass(&self) {
        if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.owner.put(Message::Locked(self.io));
        }
    }

    /// What it is on.
    pub(super) const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    pub(super) const fn block(&self) -> u64 {
        self.block
    }
}

/// A worker's part in locks of others. When it ends, it stands in no lock's way any more.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) inbox: Arc<Inbox>,
    /// Locks that wait for writes of this worker.
    pub(super) fences: Vec<Arc<Lock>>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        for message in self.inbox.close() {
            if let Message::Fence(lock) = message {
                lock.pass();
            }
        }
        self.fences.drain(..).for_each(|lock| lock.pass());
    }
}

/// Whether a command writes a block, or may.
pub(super) fn touches(sqe: &Sqe, block: u64) -> bool {
    match sqe.opcode {
        opcode::WRITE | opcode::WRITE_ZEROES => {
            let first = sqe.first_block();
            (first..first.saturating_add(sqe.blocks().into())).contains(&block)
        }
        // Their ranges are a list.
        other => writes(other),
    }
}

/// Looks at a pair before anything is done for it. The status of one of them that fails, and whether that is the first.
fn check_pair(
    first: &Sqe,
    second: &Sqe,
    data: [Data; 2],
    parts: (&super::queue::Attached, &Local),
) -> Result<u32, (bool, Status)> {
    const FIELD: Status = Status::INVALID_FIELD.dnr();
    let (attached, local) = parts;
    let wanted = check(first, attached, local).map_err(|status| (true, status))?;
    check(second, attached, local).map_err(|status| (false, status))?;
    let same = first.nsid == second.nsid && first.first_block() == second.first_block();
    // ACWU: one block.
    if first.blocks() != 1 {
        return Err((true, FIELD));
    }
    if !same || second.blocks() != 1 {
        return Err((false, FIELD));
    }
    for (data, is_first) in data.into_iter().zip([true, false]) {
        if data.bytes() != wanted.bytes {
            return Err((is_first, Status::SGL_LENGTH.dnr()));
        }
    }
    Ok(wanted.bytes)
}

impl Worker {
    /// A command comes behind the first of a pair. Whether it is the second, which is taken care of then.
    #[cold]
    pub(super) fn follow(&mut self, at: u32) -> Result<bool, WorkerError> {
        let (sqe, queue) = (self.ios[at as usize].sqe, self.ios[at as usize].queue);
        let queue = self.queues.get_mut(queue);
        let Some(first) = queue.and_then(|queue| queue.fused.take()) else {
            return Ok(false);
        };
        if sqe.flags & FUSE != FUSE_SECOND || sqe.opcode != opcode::WRITE {
            self.refuse(first, Status::MISSING_FUSED.dnr())?;
            return Ok(false);
        }
        self.pair(first, at)?;
        Ok(true)
    }

    fn pair(&mut self, first: u32, second: u32) -> Result<(), WorkerError> {
        let [a, b] = [first, second].map(|at| {
            let io = &self.ios[at as usize];
            (io.sqe, io.data)
        });
        let parts = Self::parts(&self.queues, &mut self.shelves, &self.ios[first as usize]);
        let checked = match parts {
            Ok((_, attached, local)) => check_pair(&a.0, &b.0, [a.1, b.1], (attached, local)),
            Err(status) => Err((true, status)),
        };
        match checked {
            Ok(bytes) => {
                for (at, other) in [(first, second), (second, first)] {
                    let io = &mut self.ios[at as usize];
                    io.bytes = bytes;
                    io.partner = Some(other);
                }
                self.place(second, false)?;
                self.place(first, false)
            }
            Err((is_first, status)) => {
                let (fails, other) = if is_first {
                    (first, second)
                } else {
                    (second, first)
                };
                self.refuse(fails, status)?;
                self.refuse(other, Status::FAILED_FUSED.dnr())
            }
        }
    }

    /// The data of one of a pair is here.
    #[cold]
    pub(super) fn join(&mut self, at: u32, partner: u32) -> Result<(), WorkerError> {
        if self.ios[partner as usize].state() != State::Paired {
            self.ios[at as usize].step(Step::Pair);
            return Ok(());
        }
        let first = if self.ios[at as usize].sqe.opcode == opcode::COMPARE {
            at
        } else {
            self.ios[at as usize].step(Step::Pair);
            self.ios[partner as usize].step(Step::Joined);
            partner
        };
        let io = &mut self.ios[first as usize];
        let local = match Self::parts(&self.queues, &mut self.shelves, io) {
            Ok((_, _, local)) => local,
            Err(status) => return self.refuse(first, status),
        };
        let block = io.sqe.first_block();
        match self.target.lock(&local.namespace, block, self.id, first) {
            Some(lock) => {
                io.lock = Some(lock);
                io.step(Step::Lock);
            }
            // Another pair has it.
            None => {
                io.step(Step::Lack);
                self.locked_out.push(first);
            }
        }
        Ok(())
    }

    /// Nobody writes the block any more: it is compared.
    pub(super) fn locked(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        io.step(Step::Locked);
        if io.partner.is_none() {
            // Its connection has ended meanwhile, and the second with it.
            return self.drop_io(at);
        }
        self.compare_first(at)
    }

    /// It was equal: the second is written, if that is permitted still, and has the lock now.
    pub(super) fn compared(&mut self, first: u32, second: u32) -> Result<(), WorkerError> {
        let one = &self.ios[first as usize];
        let locked = one.lock.as_ref().map(|lock| lock.namespace().serial());
        let other = &self.ios[second as usize];
        let permitted = match Self::parts(&self.queues, &mut self.shelves, other) {
            Ok((_, _, local)) if locked != Some(local.namespace.serial()) => {
                Err(Status::INVALID_NAMESPACE.dnr())
            }
            Ok((_, attached, local)) => check(&other.sqe, attached, local).map(|_| ()),
            Err(status) => Err(status),
        };
        self.ios[first as usize].partner = None;
        let io = &mut self.ios[second as usize];
        io.partner = None;
        io.step(Step::Joined);
        if let Err(status) = permitted {
            self.refuse(second, status)?;
            return self.refuse(first, Status::FAILED_FUSED.dnr());
        }
        let lock = self.ios[first as usize].lock.take();
        self.ios[second as usize].lock = lock;
        self.respond_with(first, Status::SUCCESS, 0);
        self.execute(second)
    }

    /// One of a pair is answered with an error, so the other fails as well.
    #[cold]
    pub(super) fn fail_partner(&mut self, at: u32) -> Result<(), WorkerError> {
        let Some(partner) = self.ios[at as usize].partner.take() else {
            return Ok(());
        };
        let io = &mut self.ios[partner as usize];
        io.partner = None;
        if io.state() == State::Paired {
            io.step(Step::Joined);
            return self.refuse(partner, Status::FAILED_FUSED.dnr());
        }
        // When its data has come.
        io.work = Work::Abandoned;
        Ok(())
    }

    /// Somebody wants to lock a block.
    pub(super) fn fence(&mut self, lock: Arc<Lock>) {
        self.membership.fences.push(lock);
        self.pass_fences();
    }

    /// Tells those whose blocks no write of this worker is at.
    pub(super) fn pass_fences(&mut self) {
        let mut fences = core::mem::take(&mut self.membership.fences);
        fences.retain(|lock| {
            let is_busy = self.writes_at(lock);
            if !is_busy {
                lock.pass();
            }
            is_busy
        });
        self.membership.fences = fences;
    }

    fn writes_at(&mut self, lock: &Lock) -> bool {
        let Self {
            ios,
            queues,
            shelves,
            ..
        } = self;
        ios.iter().any(|io| {
            io.state() == State::AtDisk
                && touches(&io.sqe, lock.block())
                && Self::parts(queues, shelves, io)
                    .is_ok_and(|(_, _, local)| Arc::ptr_eq(&local.namespace, lock.namespace()))
        })
    }

    /// A lock is gone: who met one tries again.
    pub(super) fn unlocked(&mut self) -> Result<(), WorkerError> {
        for at in core::mem::take(&mut self.locked_out) {
            self.ios[at as usize].step(Step::Found);
            self.resume(at)?;
        }
        Ok(())
    }
}

impl Target {
    /// Locks a block for an I/O of a worker, which is told when no write is at it any more; none if it is locked.
    fn lock(
        &self,
        namespace: &Arc<Namespace>,
        block: u64,
        worker: u32,
        io: u32,
    ) -> Option<Arc<Lock>> {
        let inboxes = self.inboxes();
        let owner = inboxes.get(worker as usize)?.clone()?; // CAST: widening.
        if !namespace.lock(block) {
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

    /// It is locked no more.
    pub(super) fn unlock(&self, lock: &Lock) {
        lock.namespace().unlock(lock.block());
        for inbox in self.inboxes().iter().flatten() {
            inbox.put(Message::Unlocked);
        }
    }
}
