//! The reserved service point: a listener for one request. When that has come it is *spent*.

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

    /// Its request has come, or it is freed: where it has listened until now.
    pub(crate) const fn spend(&mut self) -> Option<ListenId> {
        self.listen.take()
    }

    /// Its request has come.
    pub(crate) const fn is_spent(&self) -> bool {
        self.listen.is_none()
    }
}
