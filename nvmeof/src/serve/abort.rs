//! Abort: a host takes a command back that has not begun (Base specification, "Abort command").
//!
//! The command may be at another worker than the admin queue. So all workers are asked, and the Abort is answered when
//! the last one has looked. A command that waits for its time, for a buffer or for a locked block is found, and so is
//! an event request. One that the adapter or a disk has is not: it ends as usual. A controller has at most [`ABORTS`]
//! Aborts at a time.
//!
//! ```text
//!   worker of the admin queue                         each worker, itself among them
//!     Message::Abort ----------------------------->     looks, and ends the command with Command Abort Requested
//!     Message::Searched <--------------------------     the last one that has looked
//!     answers the Abort
//! ```

use super::error::WorkerError;
use super::queue::State;
use super::search::Search;
use super::worker::Worker;
use crate::io::{QueueId, Step};
use crate::model::{ABORTS, NOT_ABORTED};
use crate::nvme::Status;

impl Worker {
    /// Begins an Abort of a command of a controller.
    #[cold]
    pub(super) fn begin_abort(&mut self, at: u32, of: (u16, u16, u16)) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        let Some(queue) = self.queues.get_mut(io.queue) else {
            return self.drop_io(at);
        };
        if queue.aborts >= ABORTS.into() {
            return self.refuse(at, Status::ABORT_LIMIT.dnr());
        }
        if self.target.search(of, self.id, at) {
            queue.aborts += 1;
            io.step(Step::Execute);
        } else {
            self.respond_with(at, Status::SUCCESS, NOT_ABORTED);
        }
        Ok(())
    }

    /// Looks for the command of an Abort, of this worker or another.
    pub(super) fn look_for(&mut self, search: &Search) -> Result<(), WorkerError> {
        let mut ids = self.queues.ids().into_iter();
        let id = ids.find(|id| {
            // A queue that ends may have the number of one that was connected after it.
            let queue = self
                .queues
                .get(*id)
                .filter(|it| it.state() == State::Attached);
            let attached = queue.and_then(|it| it.attached.as_ref());
            attached
                .is_some_and(|it| (it.controller, it.number) == (search.controller, search.queue))
        });
        let found = match id {
            Some(id) if self.abort_event(id, search) => Ok(true),
            Some(id) => self.abort_command(id, search.cid),
            None => Ok(false),
        };
        // An error ends this worker, and the Abort of another one must be answered all the same.
        search.pass(found.as_ref().is_ok_and(|found| *found));
        found.map(|_found| ())
    }

    fn abort_command(&mut self, id: QueueId, cid: u16) -> Result<bool, WorkerError> {
        match self.commands.abort(|of| of == id, cid) {
            Some(at) => self.refuse(at, Status::ABORTED).map(|()| true),
            None => Ok(false),
        }
    }

    /// Answers an Abort, because all workers have looked.
    pub(super) fn searched(&mut self, at: u32, was_found: bool) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        io.step(Step::DiskDone);
        if let Some(queue) = self.queues.get_mut(io.queue) {
            queue.aborts -= 1;
        }
        if io.is_orphan {
            return self.drop_io(at);
        }
        let result = if was_found { 0 } else { NOT_ABORTED };
        self.respond_with(at, Status::SUCCESS, result);
        Ok(())
    }
}
