//! Where requests to connect arrive.

use crate::cm;
use crate::handle::{PspKey, RspKey};
use crate::types::ConnQual;

/// Where requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServicePoint {
    /// Any number of them.
    Psp(PspKey),
    /// One.
    Rsp(RspKey),
}

/// The service ID of a connection qualifier.
pub(crate) const fn service_id(conn_qual: ConnQual) -> u64 {
    match conn_qual.0 {
        port @ ..=0xffff => cm::rdma_cm::SERVICE_ID_BASE | port,
        id => id,
    }
}
