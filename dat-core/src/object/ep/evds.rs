//! The EVDs that receive the events of an endpoint.

use crate::handle::EvdHandle;

/// The EVDs of the three event streams of an endpoint. Without an EVD, the events of a stream are dropped.
///
/// ```
/// # use dat_core::{EpEvds, EvdHandle};
/// # fn of(done: EvdHandle, connections: EvdHandle) -> EpEvds {
/// EpEvds::dto(done).connect(connections)
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpEvds {
    /// EVD for completions of receives.
    pub recv: Option<EvdHandle>,
    /// EVD for completions of requests: Sends, RDMA Writes, RDMA Reads, atomic operations, binds.
    pub request: Option<EvdHandle>,
    /// EVD for connection events.
    pub connect: Option<EvdHandle>,
}

impl EpEvds {
    /// No EVDs: all events are dropped.
    pub const NONE: Self = Self {
        recv: None,
        request: None,
        connect: None,
    };

    /// Returns a set in which one EVD receives all three streams.
    #[must_use]
    pub const fn all(evd: EvdHandle) -> Self {
        Self::dto(evd).connect(evd)
    }

    /// Returns a set in which one EVD receives the completions of receives and of requests. Connection events are
    /// dropped.
    #[must_use]
    pub const fn dto(evd: EvdHandle) -> Self {
        Self::NONE.recv(evd).request(evd)
    }

    /// Sets the EVD for completions of receives.
    #[must_use]
    pub const fn recv(mut self, evd: EvdHandle) -> Self {
        self.recv = Some(evd);
        self
    }

    /// Sets the EVD for completions of requests.
    #[must_use]
    pub const fn request(mut self, evd: EvdHandle) -> Self {
        self.request = Some(evd);
        self
    }

    /// Sets the EVD for connection events.
    #[must_use]
    pub const fn connect(mut self, evd: EvdHandle) -> Self {
        self.connect = Some(evd);
        self
    }
}
