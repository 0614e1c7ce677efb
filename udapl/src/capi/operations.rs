//! Finds the operation of a completed request for programs of DAT 2.0. A DAT 2.0 event names the operation. A DAT 1.2
//! event does not, and the CQE has been consumed when the event is made.
//!
//! Requests of an endpoint complete in the order of posting. So posted requests are kept in a queue, and a completion
//! removes its request and all requests before it. The requests before it had suppressed completions and succeeded
//! without an event.

use std::collections::VecDeque;

/// A posted request.
struct Posted {
    cookie: u64,
    /// Operation number, as in `DAT_DTOS`.
    operation: u32,
    suppressed: bool,
}

/// Posted requests of an endpoint, oldest first.
pub(super) struct Operations {
    posted: VecDeque<Posted>,
    /// Maximum number of outstanding requests.
    limit: usize,
}

impl Operations {
    /// Creates the queue of an endpoint with at most this many outstanding requests.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            posted: VecDeque::with_capacity(limit.max(1)),
            limit: limit.max(1),
        }
    }

    /// Adds a posted request. If the queue is full, removes the oldest entry: its request has succeeded with a
    /// suppressed completion.
    pub(super) fn push(&mut self, cookie: u64, operation: u32, suppressed: bool) {
        if self.posted.len() == self.limit {
            self.posted.pop_front();
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
        let mut operations = Operations::new(4);
        operations.push(7, WRITE, true);
        operations.push(7, operation::SEND, false);
        operations.push(7, operation::RDMA_READ, false);
        assert_eq!(operations.take(7, true), Some(operation::SEND));
        assert_eq!(operations.take(7, true), Some(operation::RDMA_READ));
        assert_eq!(operations.take(7, true), None);
    }

    #[test]
    fn a_suppressed_request_reports_its_failure() {
        let mut operations = Operations::new(4);
        operations.push(1, WRITE, true);
        operations.push(2, operation::SEND, false);
        assert_eq!(operations.take(1, false), Some(WRITE));
        assert_eq!(operations.take(2, false), Some(operation::SEND));
    }

    #[test]
    fn suppressed_requests_take_no_more_room_than_can_be_outstanding() {
        let mut operations = Operations::new(2);
        for cookie in 0..100 {
            operations.push(cookie, WRITE, true);
        }
        operations.push(100, operation::SEND, false);
        assert_eq!(operations.posted.len(), 2);
        assert_eq!(operations.take(100, true), Some(operation::SEND));
    }
}
