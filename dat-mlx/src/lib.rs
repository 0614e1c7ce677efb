//! DAT's provider on a ConnectX function: implements the traits of [`dat_core`] on [`hw_mlx`].
//!
//! The card's driver knows no DAT, and DAT's model knows no card. Only this crate connects them:
//!
//! | module | concern |
//! |---|---|
//! | [`provider`] | [`MlxProvider`]: an instance of an opened function, with the tables that lead from the device's numbers to DAT's |
//! | [`queues`] | completion queues, queue pairs and shared receive queues under the traits of `dat-core` |
//! | [`status`] | how the card's word for the end of a request is told in DAT |
//! | `network` | who is where on the links, and what waits until that is known |
//! | `config` | what whoever opens a function may choose |
//! | `recorded` | the function's flight recorder, in words |
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod config;
mod network;
pub mod provider;
pub mod queues;
mod recorded;
pub mod status;

pub use config::{Participation, ProviderConfig};
pub use provider::{MlxProvider, NetworkCounters, NetworkState, OpenedProvider, ProviderCounters};
pub use recorded::InWords;
