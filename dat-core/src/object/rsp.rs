//! The reserved service point: a listener for one request. It is *spent* when that has arrived.

use crate::cm::ListenId;
use crate::handle::{EpKey, EvdKey};
use crate::types::ConnQual;

#[derive(Clone, Copy)]
pub(crate) struct Rsp {
    /// `None`: spent.
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

    /// Ends the listening, because the request has arrived or the RSP is freed. Returns the listener.
    pub(crate) const fn spend(&mut self) -> Option<ListenId> {
        self.listen.take()
    }

    /// Returns whether its request has arrived.
    pub(crate) const fn is_spent(&self) -> bool {
        self.listen.is_none()
    }
}
