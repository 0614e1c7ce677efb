//! Addresses of an adapter.

use std::net::IpAddr;
use std::time::Duration;

pub use rdma_types::{Address, Vlan};

/// An answer to an echo request ([`Ia::echo`](crate::Ia::echo)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Echo {
    /// Address of the node that answered.
    pub address: IpAddr,
    /// Sequence number of the request.
    pub sequence: u16,
    /// Number of data bytes that came back.
    pub bytes: usize,
    /// Time between request and answer, by the adapter's clock.
    pub took: Duration,
}
