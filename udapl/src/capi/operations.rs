//! Finds the operation of a completed request for programs of DAT 2.0. A DAT 2.0 event names the operation. A DAT 1.2
//! event does not, and the CQE has been consumed when the event is made.
//!
//! Requests of an endpoint complete in the order of posting. So posted requests are kept in a queue, and the event of a
//! completion removes its request and all requests before it. The requests before it had suppressed completions and
//! succeeded without an event.
//!
//! A request leaves the device when it completes, and its event may wait longer. So the queue has room for the requests
//! that can be outstanding and, up to [`MAX_WAITING`], for those whose events can wait. The first post makes the queue,
//! for the sizes that endpoint and EVD have then; later posts allocate nothing. If more requests are outstanding or
//! wait with their events than there is room for (a longer EVD, or an endpoint or EVD that was enlarged later), the
//! operations of the oldest are lost.

use std::collections::VecDeque;

/// A posted request.
struct Posted {
    cookie: u64,
    /// Operation number, as in `DAT_DTOS`.
    operation: u32,
    suppressed: bool,
}

/// Maximum number of requests of an endpoint that are kept while their events wait. It limits the memory of many
/// endpoints whose events go to one long EVD.
const MAX_WAITING: usize = 1024;

/// Posted requests of an endpoint, oldest first.
pub(super) struct Operations {
    posted: VecDeque<Posted>,
    /// Maximum number of requests whose events wait.
    waiting: usize,
    /// Maximum number of entries: requests that are outstanding or whose events wait.
    room: usize,
}

impl Operations {
    /// Creates the queue of an endpoint with at most `limit` outstanding requests, and an EVD for at most `waiting`
    /// events.
    pub(super) fn new(limit: usize, waiting: usize) -> Self {
        let waiting = waiting.min(MAX_WAITING);
        let room = limit.max(1) + waiting;
        Self {
            posted: VecDeque::with_capacity(room),
            waiting,
            room,
        }
    }

    /// Adds a posted request. If the queue is full, at least `waiting` + 1 of its oldest requests have completed. If at
    /// most `waiting` events wait, one of these requests was suppressed and has succeeded. The first suppressed one is
    /// removed.
    pub(super) fn push(&mut self, cookie: u64, operation: u32, suppressed: bool) {
        if self.posted.len() == self.room {
            let mut completed = self.posted.iter().take(self.waiting + 1);
            // If none was suppressed, more than `waiting` events wait, and the operation of the oldest one is lost.
            let removed = completed.position(|posted| posted.suppressed);
            self.posted.remove(removed.unwrap_or(0));
        }
        self.posted.push_back(Posted {
            cookie,
            operation,
            suppressed,
        });
    }

    /// Removes a completed request and all requests before it, and returns the operation of the completed request.
    /// Returns `None` if that request is not in the queue.
    pub(super) fn take(&mut self, cookie: u64, success: bool) -> Option<u32> {
        let is_it = |posted: &Posted| posted.cookie == cookie && !(success && posted.suppressed);
        let at = self.posted.iter().position(is_it)?;
        let found = self.posted.get(at).map(|posted| posted.operation);
        self.posted.drain(..=at);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::operation;
    use super::*;

    const WRITE: u32 = operation::RDMA_WRITE;

    #[test]
    fn a_completion_is_of_the_oldest_request_with_its_cookie_that_reports() {
        let mut operations = Operations::new(4, 4);
        operations.push(7, WRITE, true);
        operations.push(7, operation::SEND, false);
        operations.push(7, operation::RDMA_READ, false);
        assert_eq!(operations.take(7, true), Some(operation::SEND));
        assert_eq!(operations.take(7, true), Some(operation::RDMA_READ));
        assert_eq!(operations.take(7, true), None);
    }

    #[test]
    fn a_suppressed_request_reports_its_failure() {
        let mut operations = Operations::new(4, 4);
        operations.push(1, WRITE, true);
        operations.push(2, operation::SEND, false);
        assert_eq!(operations.take(1, false), Some(WRITE));
        assert_eq!(operations.take(2, false), Some(operation::SEND));
    }

    #[test]
    fn suppressed_requests_take_no_more_room_than_can_be_outstanding() {
        let mut operations = Operations::new(2, 0);
        for cookie in 0..100 {
            operations.push(cookie, WRITE, true);
        }
        operations.push(100, operation::SEND, false);
        assert_eq!(operations.posted.len(), 2);
        assert_eq!(operations.take(100, true), Some(operation::SEND));
    }

    /// Requests complete and make room for others in the device, while their events wait in the EVD. The queue keeps
    /// the operations of all events that can wait, and allocates nothing after its creation.
    #[test]
    fn requests_whose_events_wait_keep_their_operation() {
        let mut operations = Operations::new(2, 3);
        let capacity = operations.posted.capacity();
        // Only suppressed requests are dropped.
        for cookie in 0..3 {
            operations.push(cookie, operation::RDMA_READ, false);
            operations.push(100 + cookie, WRITE, true);
            operations.push(200 + cookie, WRITE, true);
        }
        for cookie in 0..3 {
            assert_eq!(operations.take(cookie, true), Some(operation::RDMA_READ));
        }
        // More events than can wait: the operation of the oldest is lost.
        for cookie in 0..100 {
            operations.push(cookie, operation::RDMA_READ, false);
        }
        assert_eq!(operations.take(94, true), None);
        assert_eq!(operations.take(95, true), Some(operation::RDMA_READ));
        assert_eq!(operations.posted.len(), 4);
        assert_eq!(operations.posted.capacity(), capacity);
        assert_eq!(Operations::new(2, 65_536).room, 2 + MAX_WAITING);
    }
}
