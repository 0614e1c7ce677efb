//! Compare and write, a fused pair: one block is compared, and written if its content is as the host expects (Base
//! specification, "Fused Operations"; NVM Command Set specification, "Compare and Write").
//!
//! ```text
//!   begin      the first waits for the second, the next command of its queue. Any other command makes the first fail
//!   pair       both are checked; the data of each is fetched
//!   join       the one that is ready waits for its partner (PAIRED). Then the first locks the block (LOCKING)
//!   locked     the disk is read, and compared. The second is written, and has the lock until it has ended
//! ```
//!
//! The lock of a block delays the writes of all workers to it. The namespace has the lock. Before a worker submits a
//! write, it checks the namespace's change counter, which covers reservations and locks. Writes that were already
//! submitted are waited for: each worker is notified of the lock, and passes the lock when it has no such write. Reads
//! are not delayed, because one block is always read or written as a whole.

use std::sync::Arc;

use super::Commands;
use super::command::{Do, Event, Io, QueueId};
use super::lock::{Fence, Lock, Scope};
use super::namespaces::{Local, LocalLists};
use super::permit::{Issuer, check, is_reservation};
use super::state::{State, Step};
use super::work::Work;
use crate::model::{HostId, Namespace};
use crate::nvme::command::{FUSE, FUSE_FIRST, FUSE_SECOND, PSDT, PSDT_SGL, io as opcode};
use crate::nvme::sgl::Data;
use crate::nvme::{Sqe, Status};

/// Checks a fused pair, and returns the length of each command's data in bytes. An error contains true if the first
/// command fails or false if the second one fails, and the status of that command.
fn check_pair(
    [first, second]: [(&Sqe, Data); 2],
    issuer: &Issuer<'_>,
    local: &Local,
) -> Result<u32, (bool, Status)> {
    const FIELD: Status = Status::INVALID_FIELD.dnr();
    let bytes = check(first.0, issuer, local).map_err(|status| (true, status))?;
    check(second.0, issuer, local).map_err(|status| (false, status))?;
    let ((first, a), (second, b)) = (first, second);
    let same = first.nsid == second.nsid && first.first_block() == second.first_block();
    // ACWU: compare and write is limited to one block.
    if first.blocks() != 1 {
        return Err((true, FIELD));
    }
    if !same || second.blocks() != 1 {
        return Err((false, FIELD));
    }
    for (data, is_first) in [(a, true), (b, false)] {
        if data.bytes() != bytes {
            return Err((is_first, Status::SGL_LENGTH.dnr()));
        }
    }
    Ok(bytes)
}

impl Commands {
    /// Starts a command with unusual flags, which may be one of a fused pair.
    #[cold]
    pub(super) fn begin_fused(&mut self, at: u32) -> Do {
        let sqe = &self.ios[at as usize].sqe; // CAST: widening.
        match (sqe.flags & (FUSE | PSDT) ^ PSDT_SGL, sqe.opcode) {
            (FUSE_FIRST, opcode::COMPARE) => Do::First,
            (FUSE_SECOND, opcode::WRITE) => Do::Refuse(Status::MISSING_FUSED.dnr()),
            _ => Do::Refuse(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Returns whether a command is the first of a fused pair.
    pub(crate) fn is_first(&self, at: u32) -> bool {
        let sqe = &self.ios[at as usize].sqe; // CAST: widening.
        sqe.flags & (FUSE | PSDT) ^ PSDT_SGL == FUSE_FIRST && sqe.opcode == opcode::COMPARE
    }

    /// Checks the command that follows the first of a fused pair. Returns true if it is the second; then the caller
    /// continues with both. Otherwise the caller refuses the first, and begins this command.
    pub(crate) fn is_second(&self, at: u32) -> bool {
        let sqe = &self.ios[at as usize].sqe; // CAST: widening.
        sqe.flags & FUSE == FUSE_SECOND && sqe.opcode == opcode::WRITE
    }

    /// Checks a complete pair, and gets the buffers and data of both.
    #[cold]
    pub(crate) fn pair(&mut self, first: u32, second: u32, issuer: &Issuer<'_>) -> Do {
        let [a, b] = [first, second].map(|at| &self.ios[at as usize]); // CAST: widening.
        let pair = [(&a.sqe, a.data), (&b.sqe, b.data)];
        let checked = match self.lists.namespace(issuer.list, a.sqe.nsid.get()) {
            Some(local) => {
                let used = LocalLists::used(issuer.list, a.sqe.nsid.get(), local);
                check_pair(pair, issuer, local).map(|bytes| (bytes, used))
            }
            None => Err((true, Status::INVALID_NAMESPACE.dnr())),
        };
        match checked {
            Ok((bytes, used)) => {
                for (at, other) in [(first, second), (second, first)] {
                    let io = &mut self.ios[at as usize]; // CAST: widening.
                    io.bytes = bytes;
                    io.used = used;
                    io.partner = Some(other);
                }
                for at in [second, first] {
                    let io = &mut self.ios[at as usize]; // CAST: widening.
                    let needs = io.needs();
                    let act = if self.buffers.has(issuer.owner, needs) || needs == 0 {
                        io.take_buffers(|| self.buffers.take(issuer.owner));
                        self.drive(at, Event::Placed { is_late: false }, issuer)
                    } else {
                        io.step(Step::NoBuffer);
                        self.buffers.wait(at, issuer.owner, needs);
                        Do::Wait
                    };
                    self.others.push((at, act));
                }
            }
            Err((is_first, status)) => {
                let (fails, other) = if is_first {
                    (first, second)
                } else {
                    (second, first)
                };
                self.others.push((fails, Do::Refuse(status)));
                let status = Status::FAILED_FUSED.dnr();
                self.others.push((other, Do::Refuse(status)));
            }
        }
        Do::Others
    }

    /// Handles a command of a pair that has become ready. If its partner is ready, the first locks the block.
    #[cold]
    pub(super) fn join(&mut self, at: u32, issuer: &Issuer<'_>) -> Do {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        let is_first = io.sqe.opcode == opcode::COMPARE;
        let Some(partner) = io.partner else {
            return Do::Refuse(Status::INTERNAL.dnr());
        };
        // CAST: widening.
        let is_partner_ready = self.ios[partner as usize].state() == State::Paired;
        if !is_partner_ready || !is_first {
            self.ios[at as usize].step(Step::Pair); // CAST: widening.
        }
        if !is_partner_ready {
            return Do::Wait;
        }
        let first = if is_first { at } else { partner };
        let io = &mut self.ios[first as usize]; // CAST: widening.
        if !is_first {
            io.step(Step::Join);
        }
        let act = match self.lists.namespace(issuer.list, io.sqe.nsid.get()) {
            Some(local) => Do::Lock(Arc::clone(&local.namespace)),
            None => Do::Refuse(Status::INVALID_NAMESPACE.dnr()),
        };
        self.others.push((first, act));
        Do::Others
    }

    /// Handles the transport's attempt to lock the block of a pair. `lock` is `None` if another pair has locked it.
    pub(crate) fn lock(&mut self, at: u32, lock: Option<Arc<Lock>>) {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        match lock {
            Some(lock) => {
                io.lock = Some(lock);
                io.step(Step::Lock);
            }
            None => self.block(at),
        }
    }

    /// Returns the namespaces that have commands at their disks.
    pub(crate) fn at_disks(&self) -> Vec<Arc<Namespace>> {
        let busy = self.ios.iter().filter(|io| io.is_at_disk());
        let of = busy.filter_map(|io| self.lists.noted(io.used));
        of.map(|local| Arc::clone(&local.namespace)).collect()
    }

    /// Makes a command wait until a lock is released.
    #[cold]
    pub(super) fn block(&mut self, at: u32) {
        self.ios[at as usize].step(Step::Block); // CAST: widening.
        self.blocked.push(at);
    }

    /// Starts the comparison of a pair, or completes a Preempt and Abort, because its lock has taken effect.
    pub(crate) fn locked(&mut self, at: u32, issuer: Option<&Issuer<'_>>) -> Do {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        io.step(Step::Locked);
        // A preempted host's command may still change the disk, so Preempt and Abort has not done what it says.
        let has_failed = io.lock.as_ref().is_some_and(|lock| lock.has_failed());
        match issuer {
            Some(_) if is_reservation(io.sqe.opcode) && has_failed => {
                Do::Refuse(Status::INTERNAL.dnr())
            }
            Some(issuer)
                if (io.partner.is_some() || is_reservation(io.sqe.opcode)) && !io.is_orphan =>
            {
                self.drive(at, Event::Locked, issuer)
            }
            // The connection, to which both commands of a pair belong, has ended meanwhile.
            _ => Do::Drop,
        }
    }

    /// Handles a successful comparison. The second takes over the lock and writes, if that is still permitted.
    #[cold]
    pub(crate) fn compared(&mut self, first: u32, issuer: &Issuer<'_>) -> Do {
        let one = &mut self.ios[first as usize]; // CAST: widening.
        let Some(second) = one.partner.take() else {
            return Do::Refuse(Status::INTERNAL.dnr());
        };
        let lock = one.lock.take();
        let other = &mut self.ios[second as usize]; // CAST: widening.
        other.partner = None;
        other.step(Step::Join);
        let locked = lock.as_ref().map(|lock| lock.namespace().serial());
        let permitted = match self.lists.namespace(issuer.list, other.sqe.nsid.get()) {
            Some(local) if locked == Some(local.namespace.serial()) => {
                check(&other.sqe, issuer, local).map(|_| ())
            }
            Some(_) | None => Err(Status::INVALID_NAMESPACE.dnr()),
        };
        if let Err(status) = permitted {
            // The first keeps the lock, and unlocks the block when its response has been sent.
            self.ios[first as usize].lock = lock; // CAST: widening.
            self.others.push((second, Do::Refuse(status)));
            self.others
                .push((first, Do::Refuse(Status::FAILED_FUSED.dnr())));
            return Do::Others;
        }
        other.lock = lock;
        let act = self.ios[first as usize].done(); // CAST: widening.
        self.others.push((first, act));
        let act = self.drive(second, Event::Joined, issuer);
        self.others.push((second, act));
        Do::Others
    }

    /// Handles the refusal of a command of a pair. Returns the partner if it must be refused now, too. A partner whose
    /// data has not arrived is refused when it arrives.
    #[cold]
    pub(crate) fn fail_partner(&mut self, at: u32) -> Option<u32> {
        let partner = self.ios[at as usize].partner.take()?; // CAST: widening.
        let io = &mut self.ios[partner as usize]; // CAST: widening.
        io.partner = None;
        if io.state() == State::Paired {
            io.step(Step::Join);
            return Some(partner);
        }
        io.work = Work::Abandoned;
        None
    }

    #[cold]
    pub(super) fn release_pair(&mut self, at: u32) -> Option<Arc<Lock>> {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        let (partner, lock) = (io.partner.take(), io.lock.take());
        if let Some(partner) = partner {
            self.ios[partner as usize].partner = None; // CAST: widening.
        }
        lock
    }

    /// Returns a fence for a lock, with the commands that this worker has at a disk. `is_of`: whether a queue is one of
    /// these hosts.
    pub(crate) fn fence(
        &self,
        lock: Arc<Lock>,
        is_of: impl Fn(QueueId, &[HostId]) -> bool,
    ) -> Fence {
        let serial = lock.namespace().serial();
        let in_scope = |io: &Io| match lock.scope() {
            Scope::Block(block) => io.sqe.may_write(*block),
            Scope::Hosts(hosts) => is_of(io.queue, hosts),
        };
        let is_busy = |io: &Io| io.is_at_disk() && io.used.serial == serial && in_scope(io);
        let all = (0..).zip(&self.ios);
        let busy = all.filter(|(_, io)| is_busy(io)).map(|(at, _)| at);
        let busy = busy.collect();
        Fence { lock, busy }
    }

    /// Passes a fence if none of its commands is at a disk any more. Returns whether it did. The transport calls this
    /// after each batch of completions of the disks, before it begins further commands.
    pub(crate) fn pass(&self, fence: &mut Fence) -> bool {
        // CAST: widening.
        let is_busy = |at: &u32| self.ios[*at as usize].is_at_disk();
        fence.busy.retain(is_busy);
        let is_passed = fence.busy.is_empty();
        if is_passed {
            fence.lock.pass();
        }
        is_passed
    }

    /// Returns the number of commands that wait for a locked block.
    pub(crate) const fn blocked(&self) -> usize {
        self.blocked.len()
    }

    /// Takes the command that has waited longest for a lock, because a lock was released. The transport passes it
    /// [`Event::Unblocked`]. Returns only one command, because its event may end other waiting commands.
    pub(crate) fn unblock(&mut self) -> Option<u32> {
        if self.blocked.is_empty() {
            return None;
        }
        let at = self.blocked.remove(0);
        self.ios[at as usize].step(Step::Unblock); // CAST: widening.
        Some(at)
    }
}
