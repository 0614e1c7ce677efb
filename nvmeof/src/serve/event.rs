//! Outstanding Asynchronous Event Requests: only their command identifiers are kept, without a command slot.
//!
//! An event request may be outstanding for ever. So the worker keeps only its identifier, and posts its receive again.
//! The response uses one of the slots after those of commands. There is one such slot for each admin queue, because the
//! worker reports one event at a time to a queue: the next event is reported when the response to the previous one has
//! been sent.

use super::error::WorkerError;
use super::queue::Held;
use super::search::Search;
use super::worker::Worker;
use crate::io::{QueueId, State};
use crate::nvme::Status;

impl Worker {
    /// Keeps the identifier of an event request that must wait, and frees its slot.
    pub(super) fn hold(&mut self, at: u32, controller: u16) -> Result<(), WorkerError> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
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
        self.report_events(controller);
        Ok(())
    }

    /// Answers the oldest event request of a controller, if an event is pending, no event is being reported, and the
    /// worker does not pause.
    pub(super) fn report_events(&mut self, controller: u16) {
        if self.pause.is_some() {
            return;
        }
        let Some(held) = self.held.get_mut(&controller) else {
            return;
        };
        let Some(request) = held.front().copied() else {
            return;
        };
        let queue = self.queues.get_mut(request.queue);
        let Some(queue) = queue.filter(|queue| !queue.is_reporting) else {
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
        queue.is_reporting = true;
        if queue.share.is_guest() {
            // The slot is not one of the receives' slots, so the result of the guests' limit is ignored.
            let _within = self.admission.borrow(queue.outstanding);
        }
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        io.answer_event(request.queue, request.cid, status, result);
        if io.state() == State::ReadyToComplete {
            self.ready.push(at);
        }
    }

    /// Reports the next event, because the response to an event request has been sent.
    #[cold]
    pub(super) fn event_sent(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else {
            return;
        };
        queue.is_reporting = false;
        if let Some(controller) = queue.attached.as_ref().map(|one| one.controller) {
            self.report_events(controller);
        }
    }

    /// Answers the event request that an Abort names, if it waits. Returns whether it does.
    pub(super) fn abort_event(&mut self, id: QueueId, search: &Search) -> bool {
        let Some(held) = self.held.get_mut(&search.controller) else {
            return false;
        };
        let is_it = |one: &Held| one.queue == id && one.cid == search.cid && !one.is_aborted;
        let Some(mut request) = held.iter().position(is_it).and_then(|at| held.remove(at)) else {
            return false;
        };
        request.is_aborted = true;
        held.push_front(request);
        let controller = search.controller;
        self.target
            .with(|model| model.abort_event_request(controller));
        self.report_events(controller);
        true
    }

    /// Answers the event requests of a controller that was reset, with Command Abort Requested.
    pub(super) fn abort_events(&mut self, controller: u16) {
        if let Some(held) = self.held.get_mut(&controller) {
            held.iter_mut().for_each(|one| one.is_aborted = true);
            self.report_events(controller);
        }
    }
}
