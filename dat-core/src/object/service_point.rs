//! Service points: the objects at which connection requests arrive.

use crate::cm;
use crate::handle::{PspKey, RspKey};
use crate::types::ConnQual;

/// A service point, at which connection requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServicePoint {
    /// A public service point, which accepts any number of requests.
    Psp(PspKey),
    /// A reserved service point, which accepts one request.
    Rsp(RspKey),
}

/// Returns the InfiniBand service ID of a connection qualifier.
pub(crate) const fn service_id(conn_qual: ConnQual) -> u64 {
    match conn_qual.0 {
        port @ ..=0xffff => cm::rdma_cm::SERVICE_ID_BASE | port,
        id => id,
    }
}
