//! Service points: destinations of connection requests.

use crate::cm;
use crate::handle::{PspKey, RspKey};
use crate::types::ConnQual;

/// Destination of connection requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServicePoint {
    /// Takes any number of requests.
    Psp(PspKey),
    /// Takes one request.
    Rsp(RspKey),
}

/// Returns the service ID of a connection qualifier.
pub(crate) const fn service_id(conn_qual: ConnQual) -> u64 {
    match conn_qual.0 {
        port @ ..=0xffff => cm::rdma_cm::SERVICE_ID_BASE | port,
        id => id,
    }
}
