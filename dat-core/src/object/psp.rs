//! The public service point: a listener for any number of requests.

use crate::cm::ListenId;
use crate::handle::EvdKey;
use crate::types::{ConnQual, PspFlags};

#[derive(Clone, Copy)]
pub(crate) struct Psp {
    pub(crate) listen: ListenId,
    pub(crate) conn_qual: ConnQual,
    pub(crate) evd: EvdKey,
    pub(crate) flags: PspFlags,
}
