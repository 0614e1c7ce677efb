//! The reserved service point: a listener for one request. It is *spent* once the request has arrived.

use crate::cm::ListenId;
use crate::handle::{EpKey, EvdKey};
use crate::types::ConnQual;

#[derive(Clone, Copy)]
pub(crate) struct Rsp {
    /// Listener of the RSP; `None` if the RSP is spent or freed.
    listen: Option<ListenId>,
    pub(crate) conn_qual: ConnQual,
    pub(crate) evd: EvdKey,
    pub(crate) ep: Option<EpKey>,
}

impl Rsp {
    pub(crate) const fn new(
        listen: ListenId,
        conn_qual: ConnQual,
        evd: EvdKey,
        ep: Option<EpKey>,
    ) -> Self {
        Self {
            listen: Some(listen),
            conn_qual,
            evd,
            ep,
        }
    }

    /// Makes an RSP that was parked; `listen` is `None` if it is spent.
    pub(crate) const fn resume(
        listen: Option<ListenId>,
        conn_qual: ConnQual,
        evd: EvdKey,
        ep: Option<EpKey>,
    ) -> Self {
        Self {
            listen,
            conn_qual,
            evd,
            ep,
        }
    }

    /// Returns the listener; `None` if the RSP is spent.
    pub(crate) const fn listen(&self) -> Option<ListenId> {
        self.listen
    }

    /// Marks the RSP as spent, because its request has arrived or the RSP is freed. Returns the listener, which the
    /// caller must stop.
    pub(crate) const fn spend(&mut self) -> Option<ListenId> {
        self.listen.take()
    }

    /// Returns whether the RSP no longer listens: its request has arrived, or it is being freed.
    pub(crate) const fn is_spent(&self) -> bool {
        self.listen.is_none()
    }
}
