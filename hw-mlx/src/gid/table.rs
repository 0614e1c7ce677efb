//! The GID table of an open function. Addresses can be added and removed while the function is in use.
//!
//! ```text
//!                write_entry                retire                     clear_entry
//!   (no entry) --------------> living ------------------> retiring ------------------> (no entry)
//!                                      no path leaves from    nobody uses it any more,
//!                                      it any more            or RETIRING is over
//! ```
//!
//! A queue pair that sends from an entry holds the entry ([`Use`]) until the queue pair is stopped. A held entry is not
//! cleared before `RETIRING` is over, so the connection manager has that time to notify the peer and to stop the queue
//! pair.

mod parking;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver::Instant;
use rdma_types::Address;

use super::entry::{GidEntry, entry_of};
use crate::error::MlxError;
pub use parking::{GidSnapshot, GidTableSnapshot, RetiringSnapshot};

/// Maximum time for which a removed address waits for its users. Instances end their connections the next time they
/// are called. An instance that is not called does not keep the address longer than this.
const RETIRING: Duration = Duration::from_secs(5);

/// A reference to an entry, which keeps the entry from being cleared before `RETIRING` is over.
#[derive(Debug)]
pub(crate) struct Use {
    _held: Arc<()>,
}

/// A removed entry, which is cleared when nothing uses it any more, or when `RETIRING` is over.
struct Retiring {
    entry: GidEntry,
    since: Instant,
    /// True if the device refused to clear the entry. Such an entry is neither reused nor cleared again.
    stuck: bool,
}

/// The entries, by state.
struct Entries {
    living: Arc<[GidEntry]>,
    retiring: Vec<Retiring>,
    /// Reference count of each index: one reference is held here, and one by each [`Use`].
    uses: BTreeMap<u8, Arc<()>>,
    /// Index at which the search for a free index starts. A freed index is not reused at once, because late datagrams
    /// would then be sent from another address.
    next: usize,
}

/// The table of a function.
pub(crate) struct GidTable {
    /// Lock held by the thread that changes the table, while that thread sends commands.
    change: Mutex<()>,
    entries: Mutex<Entries>,
    /// Number of entries of the device's table.
    room: usize,
}

impl GidTable {
    /// Makes the table of a function that bring-up has given these entries.
    pub(crate) fn new(entries: Vec<GidEntry>, room: usize) -> Self {
        let uses = entries.iter().map(|entry| (entry.index, Arc::new(())));
        Self {
            change: Mutex::new(()),
            room,
            entries: Mutex::new(Entries {
                uses: uses.collect(),
                next: entries.len(),
                living: entries.into(),
                retiring: Vec::new(),
            }),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // No change panics half-way, so a poisoned lock still guards consistent entries.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the table against changes by others.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries that new paths may use, in order of index.
    pub(crate) fn living(&self) -> Arc<[GidEntry]> {
        Arc::clone(&self.entries().living)
    }

    /// Returns the entry of an index, including retiring ones.
    pub(crate) fn at(&self, index: u8) -> Option<GidEntry> {
        let entries = self.entries();
        let retiring = entries.retiring.iter().map(|one| &one.entry);
        let mut all = entries.living.iter().chain(retiring);
        all.find(|entry| entry.index == index).copied()
    }

    /// Returns the entry of a GID, including retiring ones.
    pub(crate) fn of(&self, gid: [u8; 16]) -> Option<GidEntry> {
        let entries = self.entries();
        let retiring = entries.retiring.iter().map(|one| &one.entry);
        let mut all = entries.living.iter().chain(retiring);
        all.find(|entry| entry.gid == gid).copied()
    }

    /// Takes a reference to a living entry. Returns `None` if `index` has no entry, or if the entry is retiring.
    pub(crate) fn hold(&self, index: u8) -> Option<Use> {
        let entries = self.entries();
        let lives = entries.living.iter().any(|entry| entry.index == index);
        let held = entries.uses.get(&index).filter(|_| lives)?;
        Some(Use {
            _held: Arc::clone(held),
        })
    }

    /// Returns the entry for an address to be added. Does not change the table.
    ///
    /// # Errors
    /// The table already has the address, or the table is full.
    pub(crate) fn plan(&self, mac: [u8; 6], address: &Address) -> Result<GidEntry, MlxError> {
        let entries = self.entries();
        let there = |ip: IpAddr| {
            let retiring = entries.retiring.iter().map(|one| &one.entry);
            let mut all = entries.living.iter().chain(retiring);
            all.any(|entry| entry.address.address == ip)
        };
        if there(address.address) {
            return Err(MlxError::Address {
                address: *address,
                why: "it is there already, or not quite gone",
            });
        }
        let is_free = |index: &usize| {
            u8::try_from(*index).is_ok_and(|index| !entries.uses.contains_key(&index))
        };
        let (before, behind) = (0..entries.next, entries.next..self.room);
        let free = behind.chain(before).find(is_free);
        let index = free.and_then(|index| u8::try_from(index).ok());
        let index = index.ok_or(MlxError::TooManyGids {
            asked: entries.uses.len() + 1,
            room: self.room,
        })?;
        Ok(entry_of(index, mac, address))
    }

    /// Adds an entry after the device has accepted it.
    pub(crate) fn publish(&self, entry: GidEntry) {
        let mut entries = self.entries();
        let mut living = entries.living.to_vec();
        living.push(entry);
        living.sort_by_key(|entry| entry.index);
        entries.living = living.into();
        entries.uses.insert(entry.index, Arc::new(()));
        entries.next = usize::from(entry.index) + 1;
    }

    /// Retires the entry of an address: no new path uses the entry any more.
    ///
    /// # Errors
    /// The table does not have the address, or the address is the link-local one at index 0, which cannot be removed.
    pub(crate) fn retire(&self, address: IpAddr, now: Instant) -> Result<GidEntry, MlxError> {
        let refused = |why| MlxError::Address {
            address: address.into(),
            why,
        };
        let mut entries = self.entries();
        let found = entries
            .living
            .iter()
            .find(|entry| entry.address.address == address)
            .copied()
            .ok_or_else(|| refused("it is none of ours"))?;
        if found.index == 0 {
            return Err(refused("it is made of the MAC, and stays"));
        }
        let living = entries.living.iter().filter(|entry| **entry != found);
        entries.living = living.copied().collect();
        entries.retiring.push(Retiring {
            entry: found,
            since: now,
            stuck: false,
        });
        Ok(found)
    }

    /// Returns a retiring entry that nothing uses any more, or whose waiting time is over.
    pub(crate) fn retired(&self, now: Instant) -> Option<GidEntry> {
        let entries = self.entries();
        let is_over = |one: &&Retiring| {
            let uses = entries.uses.get(&one.entry.index);
            let idle = uses.is_none_or(|uses| Arc::strong_count(uses) == 1);
            !one.stuck && (idle || now - one.since >= RETIRING)
        };
        entries.retiring.iter().find(is_over).map(|one| one.entry)
    }

    /// Returns the earliest time at which the waiting time of a retiring entry is over. `None`: no entry waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        let entries = self.entries();
        let waiting = entries.retiring.iter().filter(|one| !one.stuck);
        waiting.map(|one| one.since + RETIRING).min()
    }

    /// Records the result of clearing an entry: `done` is true if the device cleared it, false if the command failed.
    pub(crate) fn cleared(&self, index: u8, done: bool) {
        let mut entries = self.entries();
        if done {
            entries.retiring.retain(|one| one.entry.index != index);
            entries.uses.remove(&index);
        } else if let Some(one) = entries
            .retiring
            .iter_mut()
            .find(|one| one.entry.index == index)
        {
            one.stuck = true;
        }
    }

    /// Returns the indices of all entries that the device may have, including retiring ones.
    pub(crate) fn indices(&self) -> Vec<u8> {
        self.entries().uses.keys().copied().collect()
    }
}
