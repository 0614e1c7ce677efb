//! Authentication, computed outside the workers' threads and without the model's lock.
//!
//! A worker gives a host's message to a thread, which computes the answer and puts it into the worker's inbox. The
//! command waits meanwhile, like a command that a disk executes. There is one such thread, which ends when no message
//! waits.
//!
//! Before authentication a host's name is only a claim. So waiting messages are queued in lanes, one for each pair of
//! name and address, and the thread serves the lanes in rotation: a peer that claims a host's name from another address
//! is in another lane. There are at most 64 lanes, with at most 129 messages each, as many as a controller has queues
//! ([`super::lanes`]). If a lane is full, or all lanes are in use, the worker answers the command with Command
//! Interrupted, and the host may try again.
//!
//! ```text
//!   worker --> lane a: x x x \
//!   worker --> lane b: x      >--- one thread: a, b, c, a, a --> inboxes
//!   worker --> lane c: x     /
//! ```

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::error::WorkerError;
use super::inbox::Message;
use super::lanes::{Job, Lanes};
use super::queue::State;
use super::target::Target;
use super::worker::Worker;
use crate::io::{DataBuffer, Step};
use crate::model::{Answer, AuthStep};
use crate::nvme::{Nqn, Status};

/// The thread that computes authentications.
struct Running<'a>(&'a Target);

impl Running<'_> {
    fn run(&self) {
        let target = self.0;
        let next = || {
            target.waiting().with(|waiting| {
                let next = waiting.lanes.next();
                waiting.has_thread = next.is_some();
                next
            })
        };
        while let Some(mut job) = next() {
            let is_wanted = target.with(|model| model.wants(&job.step));
            let work = AssertUnwindSafe(|| {
                if is_wanted {
                    job.step.work();
                }
            });
            let worked = catch_unwind(work);
            let now = target.now();
            let (answer, is_known) = match worked {
                Ok(()) => target.with(|model| model.finish_step(job.step, now)),
                // The panic hook has logged the panic. The queue ends when its time to authenticate runs out.
                Err(_) => (Status::INTERNAL.dnr().into(), false),
            };
            // If the worker has ended, its inbox discards the answer.
            job.inbox.put(Message::Authenticated {
                io: job.io,
                answer,
                is_known,
            });
        }
    }
}

impl Target {
    /// Queues a step for the thread, and starts the thread if none runs. Returns the step if too many are queued, or
    /// the target is held.
    fn submit_job(&self, job: Job) -> Result<(), Box<AuthStep>> {
        let owner = job.step.who();
        let begins = self.waiting().with(|waiting| {
            // `hold` empties the lanes after it has begun.
            let put = if self.is_held() {
                Err(job)
            } else {
                waiting.lanes.put(owner, job)
            };
            put.map(|()| !core::mem::replace(&mut waiting.has_thread, true))
        });
        let begins = begins.map_err(|job| job.step)?;
        if !begins {
            return Ok(());
        }
        let target = self.clone();
        let thread = std::thread::Builder::new().name("nvmeof-keys".to_owned());
        let Err(error) = thread.spawn(move || Running(&target).run()) else {
            return Ok(());
        };
        tracing::error!(%error, "no thread for authentications");
        let all = self.waiting().with(|waiting| {
            waiting.has_thread = false;
            core::mem::take(&mut waiting.lanes)
        });
        self.abandon(all);
        Ok(())
    }

    /// Answers the messages that wait for the thread with Command Interrupted. The one that it computes now is not
    /// affected.
    pub(super) fn abandon_waiting(&self) {
        let all = self
            .waiting()
            .with(|waiting| core::mem::take(&mut waiting.lanes));
        self.abandon(all);
    }

    fn abandon(&self, all: Lanes<(Nqn, IpAddr), Job>) {
        for job in all.lanes.into_iter().flat_map(|(_, waiting)| waiting) {
            let answer = self.with(|model| model.abandon_step(job.step));
            job.inbox.put(Message::Authenticated {
                io: job.io,
                answer,
                is_known: false,
            });
        }
    }
}

impl Worker {
    /// Begins Authentication Send or Receive, whose data is in the worker's memory. `room`: number of bytes that the
    /// host accepts.
    pub(super) fn authenticate(
        &mut self,
        at: u32,
        (controller, number): (u16, u16),
        room: u32,
    ) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        let sqe = io.sqe;
        let mut said = vec![0; io.bytes as usize]; // CAST: at most a page.
        let data = io.buffer.unwrap_or(DataBuffer::Page(at));
        let (buffer, from) = self.commands.memory.at(data);
        buffer.read_bytes(from, &mut said);
        let begun = self
            .target
            .with(|model| model.begin_step(controller, number, &sqe, &said, room));
        io.step(Step::Execute);
        let refused = match begun {
            Err(answer) => answer,
            Ok(step) => {
                let job = Job {
                    step,
                    inbox: Arc::clone(&self.membership.inbox),
                    io: at,
                };
                let Err(step) = self.target.submit_job(job) else {
                    return Ok(());
                };
                self.target.with(|model| model.abandon_step(step))
            }
        };
        self.authenticated(at, &refused, false)
    }

    /// Answers an authentication command, whose answer has been computed. `is_known`: the host has authenticated.
    pub(super) fn authenticated(
        &mut self,
        at: u32,
        answer: &Answer,
        is_known: bool,
    ) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        io.step(Step::DiskDone);
        let queue = self.queues.get_mut(io.queue);
        let Some(queue) = queue.filter(|queue| queue.state() != State::Ending) else {
            return self.drop_io(at);
        };
        if is_known && let Some(attached) = &mut queue.attached {
            attached.must_authenticate = false;
            if attached.list.is_some() {
                let (party, entries) = (attached.party.clone(), attached.entries);
                let id = io.queue;
                if !self.admit(id, &party, entries) {
                    self.drop_io(at)?;
                    return self.disconnect(id);
                }
            }
        }
        self.answer_with(at, answer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;
    use crate::auth::cost;
    use crate::model::tests::authenticating;
    use crate::serve::inbox::Inbox;

    /// A challenge of the largest group, the most expensive computation that an unauthenticated host can cause, is
    /// computed by another thread than the caller's.
    #[test]
    fn a_power_is_worked_out_by_another_thread_than_the_one_that_asks() {
        let (model, id, ask_for_the_challenge) = authenticating(5);
        let target = Target::new(model);
        let inbox = Arc::new(Inbox::new().expect("a descriptor"));
        let before = cost::spent();
        let step = target.with(|model| {
            let step = model.begin_step(id, 0, &ask_for_the_challenge, &[], 4096);
            step.expect("something to work out")
        });
        let job = Job {
            step,
            inbox: Arc::clone(&inbox),
            io: 7,
        };
        target.submit_job(job).expect("room");
        let mut fds = [PollFd::new(inbox.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE).expect("an answer comes");
        let mut messages = inbox.take();
        let Some(Message::Authenticated { io, answer, .. }) = messages.pop_front() else {
            panic!("{messages:?}");
        };
        assert_eq!((io, answer.data.len()), (7, 4096));
        assert_eq!(
            (answer.data[1], answer.data[9]),
            (1, 5),
            "a challenge of the group"
        );
        assert_eq!(cost::spent(), before, "of this thread");
    }
}
