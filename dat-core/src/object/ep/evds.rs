//! To which EVDs the events of an endpoint go.

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
    /// Completions of receives.
    pub recv: Option<EvdHandle>,
    /// Completions of requests: Sends, RDMA Writes, RDMA Reads, binds.
    pub request: Option<EvdHandle>,
    /// What becomes of the connection.
    pub connect: Option<EvdHandle>,
}

impl EpEvds {
    /// No events.
    pub const NONE: Self = Self {
        recv: None,
        request: None,
        connect: None,
    };

    /// All three streams to one EVD.
    #[must_use]
    pub const fn all(evd: EvdHandle) -> Self {
        Self::dto(evd).connect(evd)
    }

    /// Completions of receives and of requests to one EVD.
    #[must_use]
    pub const fn dto(evd: EvdHandle) -> Self {
        Self::NONE.recv(evd).request(evd)
    }

    /// With completions of receives to this EVD.
    #[must_use]
    pub const fn recv(mut self, evd: EvdHandle) -> Self {
        self.recv = Some(evd);
        self
    }

    /// With completions of requests to this EVD.
    #[must_use]
    pub const fn request(mut self, evd: EvdHandle) -> Self {
        self.request = Some(evd);
        self
    }

    /// With events of the connection to this EVD.
    #[must_use]
    pub const fn connect(mut self, evd: EvdHandle) -> Self {
        self.connect = Some(evd);
        self
    }
}
