//! Event dispatchers in short: making, filling and waiting on those of side A.

use udapl::{EvdFlags, EvdHandle, Event, ReturnType, SoftwareEvent, Subtype, Timeout};

use super::{A, Pair};

/// A waiter for ever, if nothing comes.
pub const FOREVER: Timeout = Timeout::INFINITE;

/// What a wait came to: the event and how many are left, or the error and how many there are.
pub type Waited = Result<(Event, u32), (ReturnType, Subtype, u32)>;

/// A software event.
pub const fn se(word: u64) -> Event {
    Event::Software(SoftwareEvent(word))
}

impl Pair {
    /// An EVD of A.
    pub fn evd(&mut self, qlen: u32, flags: EvdFlags) -> EvdHandle {
        self.sides[A].ia.evd_create(qlen, flags).expect("an EVD")
    }

    /// Puts software events on an EVD of A.
    pub fn post_se(&mut self, evd: EvdHandle, words: impl IntoIterator<Item = u64>) {
        for word in words {
            self.sides[A]
                .ia
                .evd_post_se(evd, SoftwareEvent(word))
                .expect("room");
        }
    }

    /// Waits on an EVD of A; what came of it, and how many microseconds it took.
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

    /// The wait gives this event at once, and says how many are left.
    #[track_caller]
    pub fn expect_at_once(&mut self, evd: EvdHandle, threshold: u32, event: Event, nmore: u32) {
        assert_eq!(self.wait(evd, FOREVER, threshold), (Ok((event, nmore)), 0));
    }
}
