//! The reserved service point: a listener for one request. When that has come it is *spent*.

use crate::cm::ListenId;
use crate::handle::{EpKey, EvdKey};
use crate::types::ConnQual;

#[derive(Clone, Copy)]
pub(crate) struct Rsp {
    /// `None`: spent.
    pub(crate) listen: Option<ListenId>,
    pub(crate) conn_qual: ConnQual,
    pub(crate) evd: EvdKey,
    pub(crate) ep: Option<EpKey>,
}

impl Rsp {
    /// Its request has come.
    pub(crate) const fn is_spent(&self) -> bool {
        self.listen.is_none()
    }
}
