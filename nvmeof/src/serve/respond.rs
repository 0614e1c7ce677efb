//! Responses: posting them, and releasing their resources when they have been sent.

use udapl::CompletionFlags;
use udapl::error::ReturnType;
use udapl::memory::RmrTriplet;
use udapl::reactor::ReactorError;

use super::error::WorkerError;
use super::queue::State;
use super::worker::{Worker, cookie, kind};
use crate::io::{Ended, Event, QueueId, State as IoState, Step};
use crate::model::Moment;
use crate::nvme::command::admin;
use crate::nvme::sgl::Data;
use crate::nvme::{Cqe, Status};

impl Worker {
    /// Refuses a command, and enters the error into the error log of its controller, but not for an I/O queue that has
    /// not authenticated. If the command is one of a fused pair, the other one fails, too.
    pub(super) fn refuse(&mut self, at: u32, status: Status) -> Result<(), WorkerError> {
        self.over.refused += 1;
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        if let Some(attached) = self
            .queues
            .get(io.queue)
            .and_then(|queue| queue.attached.as_ref())
            .filter(|one| one.number == 0 || !one.must_authenticate)
        {
            let (controller, number, sqe) = (attached.controller, attached.number, io.sqe);
            self.target
                .with(|model| model.note_error(controller, number, &sqe, status));
        }
        self.respond_with(at, status, 0);
        match self.commands.fail_partner(at) {
            Some(partner) => self.refuse(partner, Status::FAILED_FUSED.dnr()),
            None => Ok(()),
        }
    }

    /// Answers a command without data. The response is posted at the end of the loop iteration.
    pub(super) fn respond_with(&mut self, at: u32, status: Status, result: u64) {
        self.commands.ios[at as usize].answer(status, result, false); // CAST: widening.
        self.ready.push(at);
    }

    /// Posts the responses of a loop iteration, those of one queue with one doorbell. Responses are sent in order, so
    /// the completion of the last one covers all. In a long run, one of every `stretch` responses has a completion, so
    /// that the slots become free early enough.
    pub(super) fn respond(&mut self) -> Result<(), WorkerError> {
        let mut ready = core::mem::take(&mut self.ready);
        let mut rest = &ready[..];
        while let Some(first) = rest.first() {
            let ios = &self.commands.ios;
            let of = ios[*first as usize].queue; // CAST: widening.
            let same = rest.iter().take_while(|io| ios[**io as usize].queue == of);
            let (run, others) = rest.split_at(same.count());
            rest = others;
            self.respond_run(of, run)?;
        }
        ready.clear();
        // Dropped commands may have moved waiting responses of their queue to `self.ready`.
        ready.append(&mut self.ready);
        self.ready = ready;
        Ok(())
    }

    fn respond_run(&mut self, id: QueueId, run: &[u32]) -> Result<(), WorkerError> {
        let Self {
            ia,
            commands,
            memory,
            queues,
            ..
        } = self;
        let ios = &mut commands.ios;
        let Some(queue) = queues.get_mut(id) else {
            return Ok(());
        };
        // At most as many responses are posted at once as the queue has entries, which is the queue's quota of slots.
        let (run, later) = run.split_at(run.len().min(queue.answers_left()));
        if run.is_empty() {
            queue.behind.extend(later);
            return Ok(());
        }
        let mut posted = 0;
        let (last, stretch) = (run.len() - 1, queue.stretch);
        let without_head = queue.attached.as_ref().is_some_and(|one| one.without_head);
        let (head, sqid) = (queue.head, queue.place.queue.into());
        // A response that does not fit is posted later, after others: hosts do not depend on the order of a queue's
        // responses.
        let full = ia.batch(queue.ep, |batch| {
            let mut until_signalled = stretch;
            for (number, at) in run.iter().enumerate() {
                let io = &ios[*at as usize]; // CAST: widening.
                let mut status = io.status;
                if io.puts && status.is_success() {
                    let local = io.buffer.and_then(|data| memory.slice(data, io.bytes));
                    match (io.data, local) {
                        (Data::Remote { address, key, .. }, Some(local)) => {
                            let remote = RmrTriplet {
                                rmr_context: key,
                                target_address: address,
                                segment_length: io.bytes.into(),
                            };
                            let named = cookie(*at, kind::PUT);
                            let flags = CompletionFlags::SUPPRESS;
                            batch.rdma_write(&[local], named, &remote, flags)?;
                        }
                        // The data has no local buffer, or the command has no remote one.
                        (Data::Remote { .. } | Data::None | Data::Capsule { .. }, _) => {
                            status = Status::INTERNAL;
                        }
                    }
                }
                let sq_head = if without_head {
                    // SQHD FFFFh in the response to Connect means that flow control is disabled.
                    u16::from(io.sqe.opcode == admin::FABRICS).wrapping_neg()
                } else {
                    head
                };
                let cqe = Cqe {
                    result: io.result.into(),
                    sq_head: sq_head.into(),
                    sqid,
                    cid: io.sqe.cid,
                    status: status.field().into(),
                };
                let response = memory.respond(*at, &cqe);
                until_signalled -= 1;
                let flags = if number == last || until_signalled == 0 {
                    until_signalled = stretch;
                    CompletionFlags::empty()
                } else {
                    CompletionFlags::SUPPRESS
                };
                let named = cookie(*at, kind::RESPONSE);
                match io.invalidates() {
                    Some(key) => batch.send_invalidate(&[response], named, key, flags)?,
                    None => batch.send(&[response], named, flags)?,
                }
                posted += 1;
            }
            Ok(())
        });
        for at in &run[..posted] {
            ios[*at as usize].step(Step::Post); // CAST: widening.
        }
        queue.sending.extend(&run[..posted]);
        let left = &run[posted..];
        match full {
            Ok(()) => {}
            Err(error) if error.return_type() == ReturnType::InsufficientResources => {
                queue.behind.extend(left);
            }
            Err(error) => {
                // The post failed because the connection has ended.
                tracing::debug!(worker = self.id, %error, "no answer");
                for at in left {
                    self.drop_io(*at)?;
                }
            }
        }
        if !later.is_empty()
            && let Some(queue) = self.queues.get_mut(id)
        {
            queue.behind.extend(later);
        }
        Ok(())
    }

    /// Handles the completion of a response. The responses posted before it have been sent, because a response that
    /// fails always has a completion of its own.
    pub(super) fn left(&mut self, at: u32, succeeded: bool) -> Result<(), WorkerError> {
        let id = self.commands.ios[at as usize].queue; // CAST: widening.
        loop {
            let Some(queue) = self.queues.get_mut(id) else {
                return Ok(());
            };
            let is_held = queue.share.is_guest()
                || !queue.behind.is_empty()
                || queue.state() == State::Ending;
            loop {
                let Some(first) = queue.sending.pop_front() else {
                    return Ok(());
                };
                let has_left = succeeded || first != at;
                queue.was_heard |= has_left;
                self.over.commands += u64::from(has_left);
                let io = &mut self.commands.ios[first as usize]; // CAST: widening.
                let began = io.began.take();
                io.step(Step::Sent);
                let is_plain = !is_held && began.is_none() && first < self.places && io.is_plain();
                if !is_plain {
                    if let Some(began) = began
                        && has_left
                    {
                        self.end_time(first, began);
                    }
                    self.release(first)?;
                    if first == at {
                        return Ok(());
                    }
                    break;
                }
                io.buffer = None;
                queue.outstanding -= 1;
                self.over.here -= 1;
                self.spare.push(first);
                if first == at {
                    return Ok(());
                }
            }
        }
    }

    /// Adds the latency of a timed command whose response has been sent.
    #[cold]
    fn end_time(&mut self, at: u32, began: Moment) {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let queue = self.queues.get(io.queue);
        let attached = queue.and_then(|of| of.attached.as_ref());
        if attached.is_some_and(|one| one.number != 0) {
            let took = self.target.now().saturating_sub(began).as_nanos();
            let took = u64::try_from(took).unwrap_or(u64::MAX);
            self.member.times().add(io.sqe.opcode, took);
        }
    }

    /// Frees the resources of a command that has ended, and queues its receive to be posted again.
    pub(super) fn release(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        if io.state() != IoState::Free {
            // The command is in state Lost: its slot is never used again.
            return Ok(());
        }
        let queue = io.queue;
        if let Some(lock) = self.commands.release(at) {
            self.target.unlock(&lock);
        }
        let is_event = at >= self.places;
        if is_event {
            self.spare_events.push(at);
        } else {
            self.spare.push(at);
            self.over.here -= 1;
        }
        if let Some(of) = self.queues.get_mut(queue) {
            if of.share.is_guest() {
                self.admission.give_back(of.outstanding);
            }
            of.outstanding -= 1;
            if let Some(next) = of.behind.pop_front() {
                self.ready.push(next);
            }
            if of.state() == State::Ending {
                return self.remove_ended(queue);
            }
        }
        if is_event {
            self.event_sent(queue);
        }
        Ok(())
    }

    /// Frees a command that gets no response. The caller ensures that neither the adapter nor a disk accesses the
    /// command's memory.
    pub(super) fn drop_io(&mut self, at: u32) -> Result<(), WorkerError> {
        self.commands.ios[at as usize].step(Step::Drop); // CAST: widening.
        self.release(at)
    }

    /// Continues a command whose disk operation has ended.
    pub(super) fn disk_done(&mut self, ended: Ended) -> Result<(), WorkerError> {
        let at = ended.io;
        if let Err(error) = &ended.result {
            self.warn_of_disk(at, error);
        }
        let act = self.commands.disk_done(ended);
        self.carry_out(at, act)
    }

    /// Logs that a disk operation has failed, within the budget of the host's address: a host that writes to a full
    /// disk causes a failure with each write.
    fn warn_of_disk(&mut self, at: u32, error: &ReactorError) {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let (nsid, opcode) = (io.sqe.nsid.get(), io.sqe.opcode);
        let queue = self.queues.get(io.queue);
        if let Some((source, controller)) = queue.map(|queue| {
            (
                queue.place.source,
                queue.attached.as_ref().map(|of| of.controller),
            )
        }) && let Some(unlogged) = self.disk_lines.take(source, "disk", self.target.now())
        {
            tracing::warn!(worker = self.id, %source, controller, nsid, opcode, %error, unlogged, "a disk failed an operation");
        }
    }

    /// Continues a command whose lock all workers have passed.
    pub(super) fn locked(&mut self, at: u32) -> Result<(), WorkerError> {
        let queue = self.queues.get(self.commands.ios[at as usize].queue); // CAST: widening.
        let queue = queue.filter(|queue| queue.state() != State::Ending);
        let issuer = queue.and_then(super::queue::Queue::issuer);
        let act = self.commands.locked(at, issuer.as_ref());
        self.carry_out(at, act)
    }

    /// Handles a lock of a worker, this one or another.
    pub(super) fn fence(&mut self, lock: std::sync::Arc<crate::io::Lock>) {
        let fence = self.commands.fence(lock, |id, hosts| {
            let queue = self.queues.get(id);
            let attached = queue.and_then(|queue| queue.attached.as_ref());
            attached.is_none_or(|one| hosts.contains(&one.host_id))
        });
        self.membership.fences.push(fence);
        self.pass_fences();
    }

    /// Passes the locks whose commands this worker has at no disk any more.
    pub(super) fn pass_fences(&mut self) {
        let commands = &self.commands;
        let fences = &mut self.membership.fences;
        fences.retain_mut(|fence| !commands.pass(fence));
    }

    /// Retries the commands that were blocked by a lock, because a block was unlocked.
    pub(super) fn unlocked(&mut self) -> Result<(), WorkerError> {
        for _ in 0..self.commands.blocked() {
            let Some(at) = self.commands.unblock() else {
                break;
            };
            self.drive(at, Event::Unblocked)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use udapl::{OpenOptions, ia_open};

    use super::super::config::WorkerConfig;
    use super::super::queue::Attached;
    use super::super::target::Target;
    use super::*;
    use crate::model::{Party, Place};
    use crate::nvme::Nqn;

    /// Lines about disks have budgets of their own, which only hosts with a controller can use up.
    #[test]
    fn strangers_do_not_silence_the_line_that_a_disk_failed() {
        let adapter = ia_open("sim:lines-about-disks", &OpenOptions::default());
        let config = WorkerConfig {
            ios: 16,
            buffers: 2,
            ..WorkerConfig::default()
        };
        let target = Target::default();
        let worker = Worker::new(&target, adapter.expect("an adapter"), config);
        let mut worker = worker.expect("a worker");
        let (source, now) = (IpAddr::from([192, 0, 2, 1]), target.now());
        let place = Place {
            port: 1,
            worker: worker.id,
            queue: 1,
            entries: 2,
            source,
        };
        let ep = worker.endpoint(2).expect("an endpoint");
        let share = worker.admission.admit_guest(source).expect("a guest");
        let id = worker.queues.add(ep, (place, share), 8, now);
        let queue = worker.queues.get_mut(id).expect("just added");
        queue.attached = Some(Attached {
            controller: 1,
            number: 1,
            connection: 1,
            entries: 2,
            without_head: false,
            host_id: [0; 16],
            host: Nqn::discovery(),
            must_authenticate: false,
            list: None,
            party: Party::Source(source),
            access: Arc::default(),
        });
        worker.commands.ios[0].queue = id;
        for stranger in 0..64 {
            let from = IpAddr::from([192, 0, 3, stranger]);
            assert!(worker.lines.take(from, "rejected", now).is_some());
        }
        assert!(worker.lines.take(source, "disk", now).is_none());
        let error = ReactorError::Open {
            path: "disk".into(),
            source: std::io::ErrorKind::StorageFull.into(),
        };
        for _ in 0..1000 {
            worker.warn_of_disk(0, &error);
        }
        // The next line counts those that followed the first eight, so these were written by a budget for disks.
        let later = now + Duration::from_secs(3600);
        let unlogged = worker.disk_lines.take(source, "disk", later);
        assert!(unlogged.is_some_and(|lines| lines > 0), "{unlogged:?}");
    }
}
