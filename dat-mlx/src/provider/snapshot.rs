//! Snapshots: the plain data of a provider and of its objects that another process needs.
//!
//! Snapshots do not contain data that follows from other data. The limits are read from the device. The number of
//! regions and the path MTU are in the snapshot, because other functions may have changed them since the function was
//! opened. The counters of the network and of dropped datagrams are those of the neighbours and of QP1. The tables from
//! numbers to owners follow from the objects, and the caller passes the owners.

use driver::Instant;
use hw_mlx::HcaSnapshot;
use hw_mlx::gsi::GsiSnapshot;

use dat_core::provider::ProviderEvent;

use crate::network::NetworkSnapshot;

/// A function that was parked, with its instances.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ProviderSnapshot {
    /// The function and its instances.
    pub hca: HcaSnapshot,
    /// The tables of the function's providers.
    pub tables: ProviderTables,
}

/// The tables of the providers of a function, at its quiet point.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ProviderTables {
    /// QP1. Its protection domain has no other objects.
    pub gsi: GsiSnapshot,
    /// The network; `None` if the function takes no part in it.
    pub network: Option<NetworkSnapshot>,
    /// Reason why the function takes no part, for people, if it was to take part if possible.
    pub without_network: Option<String>,
    /// The configured seed of random numbers. It is for deterministic runs; without it, the system supplies the seeds
    /// of each process.
    pub seed: Option<u64>,
    /// Number of instances made so far, resumed ones included. With a configured seed, each draws other numbers.
    pub instances_made: u32,
    /// Number of regions registered since the function was opened.
    pub registrations: u64,
    /// The instances, in the order of those of [`ProviderSnapshot::hca`].
    pub instances: Vec<ProviderInstance>,
}

/// The tables of an instance, at the function's quiet point.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ProviderInstance {
    /// Variants (low bytes) of the last keys, oldest first, at most 64. The next keys have others.
    pub recent_variants: Vec<u8>,
    /// Maximum number of regions, as it was reported when the instance was opened.
    pub max_regions: u32,
    /// Path MTU code, as it was reported when the instance was opened.
    pub path_mtu: u8,
    /// Events that the caller has not fetched, oldest first.
    pub events: Vec<ProviderEvent>,
    /// State of the port if it is down; `None` if it is up.
    pub down: Option<DownSnapshot>,
    /// True if device events were lost, and the port's state follows.
    pub port_unsure: bool,
}

/// State of a port that is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct DownSnapshot {
    /// Time at which the instance learned that the port is down, on the function's clock, which is the system's.
    pub since: Instant,
    /// True if the port was already down when the function came up.
    pub trains: bool,
}

/// A region. Its memory is a part of a buffer of the function's arena. Several regions may have parts of one buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RegionSnapshot {
    /// Index of the key.
    pub index: u32,
    /// Variant (low byte) of the key.
    pub variant: u8,
    /// I/O address of the memory.
    pub iova: u64,
    /// Length of the memory in bytes.
    pub bytes: u64,
}
