//! Parking a worker: its instance and a [`WorkerSnapshot`], of which [`Worker::resume`] makes the worker again.
//!
//! ```text
//!   Target::hold ... run_or_pause: Paused ... Worker::park of each ... Target::park ---> instances, snapshots
//!                                                                                            |  handover
//!   instances, snapshots ---> Target::resume ... Worker::resume of each ... run_or_pause <---'
//! ```
//!
//! The worker is quiet, so a command slot is in one of these places:
//!
//! | Place | In the snapshot |
//! |---|---|
//! | its receive is posted, or has completed and was not dequeued | no: the adapter has it, and counts it |
//! | its receive was dequeued during the hold ([`super::hold`]) | `arrived` |
//! | its capsule came before the event that the connection is established | `early` of the queue |
//! | first command of a fused pair, whose second has not come | `first` of the queue |
//! | slot for responses to event requests | no: all are free |
//!
//! A capsule stays in its slot's memory, which the instance keeps, and is read again.

mod resuming;
mod snapshot;
#[cfg(test)]
mod tests;

pub use resuming::WorkerResumeError;
pub use snapshot::WorkerSnapshot;

use udapl::{EpHandle, Event, Ia};

use super::admission::GREETING;
use super::error::WorkerError;
use super::hold::{Arrived, Pause};
use super::queue::{Queue, State};
use super::worker::Worker;
use crate::io::{QueueId, State as IoState};

/// Reason why a worker was not parked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerParkError {
    /// The target is not held, or the worker does not know it yet.
    #[error("worker {worker} is not held")]
    NotHeld {
        /// Number of the worker.
        worker: u32,
    },
    /// The worker is stopping.
    #[error("worker {worker} is stopping")]
    Stopping {
        /// Number of the worker.
        worker: u32,
    },
    /// Commands are under way.
    #[error("worker {worker} is not quiet: {commands} commands are under way")]
    Busy {
        /// Number of the worker.
        worker: u32,
        /// Number of the commands.
        commands: usize,
    },
    /// A command took a step that its state does not have. The adapter or a disk may still use its memory.
    #[error("worker {worker} has lost command slot {slot}")]
    Lost {
        /// Number of the worker.
        worker: u32,
        /// Index of the slot.
        slot: usize,
    },
    /// A message could not be handled. The worker has failed ([`Worker::end`]).
    #[error("{0}")]
    Worker(#[from] WorkerError),
}

impl Worker {
    /// Returns whether the worker is held and nothing is under way: no disk operation, no RDMA transfer, no response.
    #[must_use]
    pub fn quiet(&self) -> bool {
        self.pause.is_some()
            && self.is_stopping.is_none()
            && self.ready.is_empty()
            && self.spare.is_empty()
            && self.membership.fences.is_empty()
            && self.queues.all().all(Queue::is_quiet)
    }

    /// Returns whether this worker and all others are quiet.
    #[cold]
    pub(super) fn may_pause(&mut self) -> bool {
        if !self.quiet() {
            return false;
        }
        self.target.report_quiet(self.id);
        self.target.is_all_quiet()
    }

    /// Begins or ends the worker's pause, as the target is held or not.
    #[cold]
    pub(super) fn follow_hold(&mut self) -> Result<(), WorkerError> {
        match (self.target.is_held(), self.pause.is_some()) {
            (true, false) if self.is_stopping.is_none() => {
                self.pause = Some(Box::<Pause>::default());
                Ok(())
            }
            (false, true) => self.end_pause(),
            (true | false, _) => Ok(()),
        }
    }

    /// Ends the pause, if there is one: begins the commands that came during it, and reports the events.
    #[cold]
    pub(super) fn end_pause(&mut self) -> Result<(), WorkerError> {
        let Some(pause) = self.pause.take() else {
            return Ok(());
        };
        // Hosts whose Keep Alive was not dequeued during the hold are not taken for dead.
        self.queues.hear_all();
        self.report_heard(self.target.now());
        for one in pause.arrived() {
            self.received(one.at, one.ep, one.bytes)?;
        }
        let waiting: Vec<u16> = self.held.keys().copied().collect();
        for controller in waiting {
            self.report_events(controller);
        }
        Ok(())
    }

    /// Handles events during a hold, as many as `places` holds. Sets capsules aside. Returns the number of events.
    #[cold]
    pub(super) fn take_events_held(&mut self, places: &mut [Event]) -> Result<usize, WorkerError> {
        if self.quiet() {
            self.target.report_quiet(self.id);
        }
        let taken = self.ia.evd_poll(self.events, places)?;
        for event in &places[..taken] {
            let arrived = match event {
                Event::Dto(done) => Self::set_aside(done),
                Event::ConnectionRequest(_)
                | Event::Connection(_)
                | Event::Async(_)
                | Event::RmrBind(_)
                | Event::Software(_) => None,
            };
            match arrived {
                Some(arrived) if self.pause.is_some() => self.keep_until_release(arrived)?,
                Some(_) | None => self.take(event)?,
            }
        }
        Ok(taken)
    }

    /// Sets a capsule aside. A host that has sent more than it may loses its connection, and its capsules are dropped
    /// at once, because their receives belong to all connections.
    fn keep_until_release(&mut self, arrived: Arrived) -> Result<(), WorkerError> {
        let Some(pause) = &mut self.pause else {
            return Ok(());
        };
        let count = pause.count(arrived.ep) + 1;
        let known = self.queues.of(arrived.ep);
        let Some((id, queue)) = known.filter(|(_, queue)| !queue.is_over()) else {
            return self.drop_capsule(arrived.at);
        };
        queue.was_heard = true;
        // A guest borrows nothing during a hold, and the capsules that wait in its queue do not end.
        // CAST: a queue keeps at most its entries.
        #[expect(clippy::cast_possible_truncation, reason = "at most its entries")]
        let kept = queue.kept().count() as u32;
        let is_overdrawn = queue.share.is_guest() && count + kept > GREETING;
        if !is_overdrawn && !queue.is_overrun(count) {
            pause.add(arrived);
            return Ok(());
        }
        self.drop_capsule(arrived.at)?;
        self.drop_capsules(arrived.ep)?;
        if is_overdrawn {
            self.report_overdrawn(id);
            self.disconnect(id)
        } else {
            self.report_overrun(id);
            self.fail(id)
        }
    }

    /// Drops the capsules of a connection that were set aside.
    pub(super) fn drop_capsules(&mut self, ep: EpHandle) -> Result<(), WorkerError> {
        let dropped = self.pause.as_mut().map(|pause| pause.remove(ep));
        for one in dropped.into_iter().flatten() {
            self.drop_capsule(one.at)?;
        }
        Ok(())
    }

    /// Drops a capsule whose command has not begun. Its receive is posted again.
    fn drop_capsule(&mut self, at: u32) -> Result<(), WorkerError> {
        self.over.here += 1;
        self.commands.ios[at as usize].begin(QueueId::NONE, 0); // CAST: widening.
        self.drop_io(at)
    }

    /// Handles the messages that have come since the worker paused, and checks that it is quiet.
    fn settle(&mut self) -> Result<(), WorkerParkError> {
        let worker = self.id;
        self.hear_all()?;
        if self.is_stopping.is_some() {
            return Err(WorkerParkError::Stopping { worker });
        }
        if self.pause.is_none() {
            return Err(WorkerParkError::NotHeld { worker });
        }
        let ios = &self.commands.ios;
        if let Some(slot) = ios.iter().position(|io| io.state() == IoState::Lost) {
            return Err(WorkerParkError::Lost { worker, slot });
        }
        if !self.quiet() {
            let busy = ios.iter().filter(|io| io.state() != IoState::Free);
            let waiting: usize = self.queues.all().map(|queue| queue.kept().count()).sum();
            let commands = busy.count().saturating_sub(waiting);
            return Err(WorkerParkError::Busy { worker, commands });
        }
        Ok(())
    }

    /// Parks the worker, which [`Worker::run_or_pause`] has paused. Returns its instance, and what [`Worker::resume`]
    /// needs. The worker stays registered at the target: its inbox is open, and its controllers stay.
    ///
    /// # Errors
    /// The worker, which is unchanged and goes on, and the reason.
    pub fn park(mut self) -> Result<(Ia, WorkerSnapshot), Box<(Self, WorkerParkError)>> {
        if let Err(error) = self.settle() {
            return Err(Box::new((self, error)));
        }
        let snapshot = WorkerSnapshot::of(&self);
        let Self {
            ia,
            commands,
            memory,
            membership,
            member,
            ..
        } = self;
        // No operation is at the disks. They and the commands have clones of the memory of regions.
        let mut disks = commands.into_disks();
        disks.unpin();
        drop(memory);
        membership.park();
        member.park(disks);
        Ok((ia, snapshot))
    }
}

impl Queue {
    /// Returns the slots of commands that have arrived and not begun, or that wait for their partner's capsule.
    pub(super) fn kept(&self) -> impl Iterator<Item = u32> {
        self.early.iter().chain(&self.fused).copied()
    }

    /// Returns whether nothing of the queue is under way.
    fn is_quiet(&self) -> bool {
        let kept = self.kept().count();
        self.state() != State::Ending
            && self.outstanding as usize == kept // CAST: widening.
            && self.behind.is_empty()
            && self.sending.is_empty()
            && !self.is_reporting
    }
}
