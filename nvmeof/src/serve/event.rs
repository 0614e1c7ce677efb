//! Event requests that wait: their names, without a place.
//!
//! A host's event request may wait for ever. So it keeps its name alone, and its receive is posted again. Its answer
//! has one of the places behind those of commands, of which there is one for each admin queue: a queue is told one
//! event at a time, and the next one when that has left.

use super::io::State;
use super::queue::QueueId;
use super::worker::{Worker, WorkerError};
use crate::nvme::Status;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    queue: QueueId,
    cid: u16,
    /// Its controller was reset.
    is_aborted: bool,
}

impl Worker {
    /// A command is an event request that waits from now on; its place goes back.
    pub(super) fn hold(&mut self, at: u32, controller: u16) -> Result<(), WorkerError> {
        let io = &self.ios[at as usize];
        let request = Held {
            queue: io.queue,
            cid: io.sqe.cid.get(),
            is_aborted: false,
        };
        if let Some(queue) = self.queues.get_mut(request.queue) {
            queue.held += 1;
        }
        self.held.entry(controller).or_default().push_back(request);
        self.drop_io(at)?;
        self.tell_events(controller);
        Ok(())
    }

    /// Answers an event request, if there is an event for it and none is being told.
    pub(super) fn tell_events(&mut self, controller: u16) {
        let Some(held) = self.held.get_mut(&controller) else {
            return;
        };
        let Some(request) = held.front().copied() else {
            return;
        };
        let queue = self.queues.get_mut(request.queue);
        let Some(queue) = queue.filter(|queue| !queue.is_telling) else {
            return;
        };
        let Some(at) = self.spare_events.last().copied() else {
            return;
        };
        let (status, result) = if request.is_aborted {
            (Status::ABORTED, 0)
        } else {
            match self.target.with(|model| model.next_event(controller)) {
                Some(answer) => (answer.status, answer.result),
                None => return,
            }
        };
        held.pop_front();
        self.spare_events.pop();
        queue.held -= 1;
        queue.outstanding += 1;
        queue.is_telling = true;
        if queue.share.is_guest() {
            // It is one of ours: the host is not to blame.
            let _within = self.admission.borrow(queue.outstanding);
        }
        let io = &mut self.ios[at as usize];
        io.happened(request.queue, request.cid, status, result);
        if io.state() == State::Ready {
            self.ready.push(at);
        }
    }

    /// An event was told: the next one.
    #[cold]
    pub(super) fn told(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        queue.is_telling = false;
        if let Some(controller) = queue.attached.as_ref().map(|one| one.controller) {
            self.tell_events(controller);
        }
    }

    /// The event requests of a controller are answered: it was reset.
    pub(super) fn abort_events(&mut self, controller: u16) {
        if let Some(held) = self.held.get_mut(&controller) {
            held.iter_mut().for_each(|one| one.is_aborted = true);
            self.tell_events(controller);
        }
    }
}
