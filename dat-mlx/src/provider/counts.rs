//! Counters: those of the provider, summed over all instances of a function, and those of the device.

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
use crate::network::CountersCopy;

impl OpenedProvider {
    /// Queries the device's counters for the function. `None`: the function is closed, or its last instance is about to
    /// close it.
    ///
    /// # Errors
    /// The device refused a command or never answered.
    pub fn device(&self) -> Result<Option<DeviceCounters>, CmdError> {
        self.function.counters()
    }

    /// Returns the function's flight recorder. `None`: the function is closed.
    #[must_use]
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.function.recorder()
    }

    /// Returns the counters that need no command to the device. The call does not wait for commands of other threads.
    /// `None`: the function is closed.
    #[must_use]
    pub fn counters(&self) -> Option<ProviderCounters> {
        let (commands, pages) = self.function.commands()?;
        let _asking = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let common = self.common.upgrade()?;
        let number = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Some(ProviderCounters {
            commands,
            pages,
            registrations: number(&common.registered.made),
            regions: number(&common.registered.regions),
            registered_bytes: number(&common.registered.bytes),
            network: common.network_counters.as_ref().map(CountersCopy::get),
            mads_dropped: common.mads_dropped.get(),
        })
    }
}

/// Counters of a function's driver since the function was opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProviderCounters {
    /// Number and outcome of commands, by opcode.
    pub commands: BTreeMap<Opcode, CommandTally>,
    /// Pages of 4 KiB given to the firmware and returned by it.
    pub pages: PageCounts,
    /// Number of regions registered since the function was opened.
    pub registrations: u64,
    /// Number of regions that exist now.
    pub regions: u64,
    /// Bytes of the regions that exist now. A byte counts once in each region that contains it.
    pub registered_bytes: u64,
    /// Counters of the network protocols' frames; `None` if the function takes no part in the network.
    pub network: Option<NetworkCounters>,
    /// Number of received datagrams of connection management that were dropped because too many others waited.
    pub mads_dropped: u64,
}

/// Counters of the regions of all instances. They change when a region is registered or deregistered, never when a
/// request is posted.
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

    /// Makes the counters of a function that was resumed, which has no regions yet. `made` regions were registered.
    pub(super) fn of(made: u64) -> Self {
        Self {
            made: AtomicU64::new(made),
            ..Self::default()
        }
    }

    /// Counts a region that was registered before the function was parked.
    pub(super) fn add_again(&self, bytes: u64) {
        self.regions.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the number of regions registered since the function was opened.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Checks that no more regions exist than were registered.
    ///
    /// # Errors
    /// The number of regions that were registered, and of those that exist.
    pub(super) fn check(&self) -> Result<(), (u64, u64)> {
        let (made, regions) = (self.made(), self.regions.load(Ordering::Relaxed));
        if regions <= made {
            Ok(())
        } else {
            Err((made, regions))
        }
    }

    pub(super) fn remove(&self, bytes: u64) {
        self.regions.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
