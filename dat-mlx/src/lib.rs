//! DAT's provider on a ConnectX function: implements the traits of [`dat_core`] on [`hw_mlx`].
//!
//! The driver in `hw_mlx` does not depend on DAT, and `dat_core` does not depend on the device. Only this crate
//! connects them:
//!
//! | module | contents |
//! |---|---|
//! | [`provider`] | [`MlxProvider`]: an instance of an opened function; it maps queue numbers to owner numbers |
//! | [`queues`] | completion queues, queue pairs and shared receive queues under the traits of `dat-core` |
//! | [`status`] | translation of the device's completion status to DAT |
//! | `network` | resolution of the peers' MACs, and the datagrams that wait for it |
//! | `config` | settings for opening a function |
//! | `recorded` | text form of the function's flight recorder |
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod config;
mod network;
pub mod provider;
pub mod queues;
mod recorded;
pub mod status;

pub use config::{Participation, ProviderConfig};
pub use network::{NetworkSnapshot, PendingMadSnapshot};
pub use provider::{
    DownSnapshot, MlxProvider, NetworkCounters, NetworkState, OpenedProvider, ParkingProvider,
    ProviderCounters, ProviderInstance, ProviderSnapshot, ProviderTables, RegionSnapshot,
    UnclaimedProvider,
};
pub use recorded::InWords;
