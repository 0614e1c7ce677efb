//! Helpers for EVDs of side A: create, post software events, wait.

use udapl::error::{ReturnType, Subtype};
use udapl::event::SoftwareEvent;
use udapl::{EvdFlags, EvdHandle, Event, Timeout};

use super::{A, Pair};

/// Timeout without a limit.
pub const FOREVER: Timeout = Timeout::INFINITE;

/// The result of a wait: the event and the number of events left, or the error and the number of events in the EVD.
pub type Waited = Result<(Event, u32), (ReturnType, Subtype, u32)>;

/// Returns a software event with this word.
pub const fn se(word: u64) -> Event {
    Event::Software(SoftwareEvent(word))
}

impl Pair {
    /// Makes an EVD of A.
    pub fn evd(&mut self, qlen: u32, flags: EvdFlags) -> EvdHandle {
        self.sides[A].ia.evd_create(qlen, flags).expect("an EVD")
    }

    /// Posts software events to an EVD of A.
    pub fn post_se(&mut self, evd: EvdHandle, words: impl IntoIterator<Item = u64>) {
        for word in words {
            self.sides[A]
                .ia
                .evd_post_se(evd, SoftwareEvent(word))
                .expect("room");
        }
    }

    /// Waits on an EVD of A. Returns the result, and the virtual time of the wait in microseconds.
    pub fn wait(&mut self, evd: EvdHandle, timeout: Timeout, threshold: u32) -> (Waited, u64) {
        let before = self.now();
        let result = self.sides[A].ia.evd_wait(evd, timeout, threshold);
        let took = (self.now().0 - before.0) / 1000;
        let result = result.map_err(|error| {
            (
                error.error.return_type(),
                error.error.subtype(),
                error.nmore,
            )
        });
        (result, took)
    }

    /// Checks that a wait returns this event at once, and that `nmore` events are left.
    #[track_caller]
    pub fn expect_at_once(&mut self, evd: EvdHandle, threshold: u32, event: Event, nmore: u32) {
        assert_eq!(self.wait(evd, FOREVER, threshold), (Ok((event, nmore)), 0));
    }
}
