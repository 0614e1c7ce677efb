//! Authentication, off the workers' threads and the model's lock.
//!
//! A worker hands what a host says to a thread, which works it out and puts the answer into the worker's inbox; the
//! command waits like one that is at a disk. There is one such thread, and it lives while there is something to do.
//!
//! Who says that he is a host is not believed yet. So turns wait in lanes, one for each name and address together, and
//! the lanes have their turn one after the other: whoever takes a host's name elsewhere is in another lane. There are
//! [`LANES`] lanes and [`TURNS`] turns in each, as many as a controller has queues; what comes beyond is answered that
//! it was interrupted, and the host may ask again.
//!
//! ```text
//!   worker --> lane a: x x x \
//!   worker --> lane b: x      >--- one thread: a, b, c, a, a --> inboxes
//!   worker --> lane c: x     /
//! ```

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::inbox::{Inbox, Message};
use super::io::Step;
use super::layout::Spot;
use super::queue::State;
use super::target::Target;
use super::worker::{Worker, WorkerError};
use crate::model::{Answer, QUEUES, Turn};
use crate::nvme::{Nqn, Status};

/// Lanes at most.
const LANES: usize = 64;
/// Turns that wait in a lane.
const TURNS: usize = QUEUES as usize + 1;

/// What waits, in lanes.
#[derive(Debug)]
struct Lanes<O, J> {
    /// The next one's turn first.
    lanes: VecDeque<(O, VecDeque<J>)>,
}

impl<O, J> Default for Lanes<O, J> {
    fn default() -> Self {
        Self {
            lanes: VecDeque::new(),
        }
    }
}

impl<O: PartialEq, J> Lanes<O, J> {
    /// Puts one behind the others of its lane; it comes back if there is no room.
    fn put(&mut self, owner: O, job: J) -> Result<(), J> {
        let has_room = self.lanes.len() < LANES;
        match self.lanes.iter_mut().find(|(one, _)| *one == owner) {
            Some((_, waiting)) if waiting.len() < TURNS => waiting.push_back(job),
            None if has_room => self.lanes.push_back((owner, [job].into())),
            Some(_) | None => return Err(job),
        }
        Ok(())
    }

    /// The next one.
    fn next(&mut self) -> Option<J> {
        let (owner, mut waiting) = self.lanes.pop_front()?;
        let job = waiting.pop_front();
        if !waiting.is_empty() {
            self.lanes.push_back((owner, waiting));
        }
        job
    }
}

/// A turn, and who waits for it.
#[derive(Debug)]
pub(super) struct Job {
    turn: Box<Turn>,
    inbox: Arc<Inbox>,
    io: u32,
}

/// What waits to be worked out.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    lanes: Lanes<(Nqn, IpAddr), Job>,
    has_thread: bool,
}

impl Waiting {
    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The thread that works.
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
            let is_wanted = target.with(|model| model.wants(&job.turn));
            let work = AssertUnwindSafe(|| {
                if is_wanted {
                    job.turn.work();
                }
            });
            let worked = catch_unwind(work);
            let now = target.now();
            let (answer, is_known) = match worked {
                Ok(()) => target.with(|model| model.end_turn(job.turn, now)),
                // The panic has been told. The time that the queue has to authenticate runs out.
                Err(_) => (Status::INTERNAL.dnr().into(), false),
            };
            // A worker that has ended wants no answer.
            job.inbox.put(Message::Authenticated {
                io: job.io,
                answer,
                is_known,
            });
        }
    }
}

impl Target {
    /// Has a turn worked out; it comes back if too many wait.
    fn work_out(&self, job: Job) -> Result<(), Box<Turn>> {
        let owner = job.turn.who();
        let begins = self.waiting().with(|waiting| {
            let put = waiting.lanes.put(owner, job);
            put.map(|()| !core::mem::replace(&mut waiting.has_thread, true))
        });
        let begins = begins.map_err(|job| job.turn)?;
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
        for job in all.lanes.into_iter().flat_map(|(_, waiting)| waiting) {
            let answer = self.with(|model| model.give_up_turn(job.turn));
            job.inbox.put(Message::Authenticated {
                io: job.io,
                answer,
                is_known: false,
            });
        }
        Ok(())
    }
}

impl Worker {
    /// Authentication Send or Receive, whose data is here. `room`: bytes that the host takes.
    pub(super) fn authenticate(
        &mut self,
        at: u32,
        (controller, number): (u16, u16),
        room: u32,
    ) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        let sqe = io.sqe;
        let mut said = vec![0; io.bytes as usize]; // CAST: at most a page.
        let (region, from) = self.memory.at(io.spot.unwrap_or(Spot::Page(at)));
        region.buffer.read_bytes(from as usize, &mut said);
        let begun = self
            .target
            .with(|model| model.begin_turn(controller, number, &sqe, &said, room));
        io.step(Step::Start);
        let refused = match begun {
            Err(answer) => answer,
            Ok(turn) => {
                let job = Job {
                    turn,
                    inbox: Arc::clone(&self.membership.inbox),
                    io: at,
                };
                let Err(turn) = self.target.work_out(job) else {
                    return Ok(());
                };
                self.target.with(|model| model.give_up_turn(turn))
            }
        };
        self.authenticated(at, &refused, false)
    }

    /// What a host has said was worked out, and this is the answer; the host may be known from now on.
    pub(super) fn authenticated(
        &mut self,
        at: u32,
        answer: &Answer,
        is_known: bool,
    ) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        io.step(Step::Ended);
        let queue = self.queues.get_mut(io.queue);
        let Some(queue) = queue.filter(|queue| queue.state() != State::Ending) else {
            return self.drop_io(at);
        };
        if is_known && let Some(attached) = &mut queue.attached {
            attached.must_authenticate = false;
            if attached.shelf.is_some() {
                let (party, entries) = (attached.party.clone(), attached.entries);
                let id = io.queue;
                if !self.admit(id, &party, entries) {
                    self.drop_io(at)?;
                    return self.leave(id);
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

    #[test]
    fn lanes_have_their_turn_one_after_the_other_and_one_that_is_full_is_full_alone() {
        let mut lanes = Lanes::default();
        for number in 0..TURNS {
            lanes.put('a', ('a', number)).expect("room");
        }
        assert_eq!(lanes.put('a', ('a', 999)), Err(('a', 999)));
        lanes.put('b', ('b', 0)).expect("room");
        lanes.put('c', ('c', 0)).expect("room");
        let order: Vec<_> = (0..5).filter_map(|_| lanes.next()).collect();
        assert_eq!(order, [('a', 0), ('b', 0), ('c', 0), ('a', 1), ('a', 2)]);
        let mut lanes = Lanes::default();
        for number in 0..LANES {
            lanes.put(number, number).expect("room");
        }
        assert_eq!(lanes.put(LANES, 0), Err(0), "one lane too many");
        lanes.put(7, 0).expect("room in a lane that is there");
    }

    /// The challenge of the largest group, which takes longer than anything else that a stranger can ask for.
    #[test]
    fn a_power_is_worked_out_by_another_thread_than_the_one_that_asks() {
        let (model, id, ask_for_the_challenge) = authenticating(5);
        let target = Target::new(model);
        let inbox = Arc::new(Inbox::new().expect("a descriptor"));
        let before = cost::spent();
        let turn = target.with(|model| {
            let turn = model.begin_turn(id, 0, &ask_for_the_challenge, &[], 4096);
            turn.expect("something to work out")
        });
        let job = Job {
            turn,
            inbox: Arc::clone(&inbox),
            io: 7,
        };
        target.work_out(job).expect("room");
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
