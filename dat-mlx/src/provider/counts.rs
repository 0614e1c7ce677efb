//! What the provider counts for all instances of a function, and what it passes on of what the device counts.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use hw_mlx::cmd::CommandTally;
use hw_mlx::pages::PageCounts;
use hw_mlx::recorder::Recorder;
use hw_mlx::{CmdError, DeviceCounters};
use mlx_prm::Opcode;
pub use neighbour::Counters as NetworkCounters;

use super::OpenedProvider;

impl OpenedProvider {
    /// What the function counts. `None`: it is closed.
    ///
    /// # Errors
    /// A command was refused, or never answered.
    pub fn device(&self) -> Result<Option<DeviceCounters>, CmdError> {
        self.function.counters()
    }

    /// The function's flight recorder. `None`: it is closed.
    #[must_use]
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.function.recorder()
    }

    /// What is counted without asking the device. `None`: the function is closed.
    #[must_use]
    pub fn counters(&self) -> Option<ProviderCounters> {
        let (commands, pages) = self.function.commands()?;
        let _asking = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let common = self.common.upgrade()?;
        let number = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let network = common.network().map(|network| network.counters());
        Some(ProviderCounters {
            commands,
            pages,
            registrations: number(&common.registered.made),
            regions: number(&common.registered.regions),
            registered_bytes: number(&common.registered.bytes),
            network,
        })
    }
}

/// What a function's driver has counted since it was opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProviderCounters {
    /// Commands, by what they ask for.
    pub commands: BTreeMap<Opcode, CommandTally>,
    /// Pages of 4 KiB that the firmware was given and has returned.
    pub pages: PageCounts,
    /// Regions registered since then.
    pub registrations: u64,
    /// Regions that are registered now.
    pub regions: u64,
    /// Bytes of them. A byte counts in each region that it is in.
    pub registered_bytes: u64,
    /// Frames of the network's protocols; `None` where the function takes no part in one.
    pub network: Option<NetworkCounters>,
}

/// Regions of all instances. They are counted where commands are sent, never where something is posted.
#[derive(Debug, Default)]
pub(super) struct Registered {
    made: AtomicU64,
    regions: AtomicU64,
    bytes: AtomicU64,
}

impl Registered {
    pub(super) fn add(&self, bytes: u64) {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.regions.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, bytes: u64) {
        self.regions.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
