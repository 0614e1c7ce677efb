//! The address table of an open function, to which addresses are added and from which they are removed.
//!
//! ```text
//!                write_entry                retire                     clear_entry
//!   (no entry) --------------> living ------------------> retiring ------------------> (no entry)
//!                                      no path leaves from    nobody uses it any more,
//!                                      it any more            or RETIRING is over
//! ```
//!
//! A queue pair that sends from an entry holds it ([`Use`]) until it is stopped, so that its peer can still be told,
//! and so that the device does not find an entry changed under a running queue pair.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver::Instant;
use rdma_types::Address;

use super::entry::{GidEntry, entry_of};
use crate::error::MlxError;

/// Time for which a removed address waits for its users. Connections end within a turn of their instances; an
/// instance that is not called does not keep the address.
const RETIRING: Duration = Duration::from_secs(5);

/// A hold on an entry.
#[derive(Debug)]
pub(crate) struct Use {
    _held: Arc<()>,
}

/// An entry that is cleared when it is no longer used.
struct Retiring {
    entry: GidEntry,
    since: Instant,
    /// True if the device did not clear it: it is neither reused nor cleared again.
    stuck: bool,
}

/// The entries, by state.
struct Entries {
    living: Arc<[GidEntry]>,
    retiring: Vec<Retiring>,
    /// Held once here, and once by each [`Use`].
    uses: BTreeMap<u8, Arc<()>>,
    /// Start of the search for the next index: an index that was just freed would give late datagrams another
    /// address.
    next: usize,
}

/// The table of a function.
pub(crate) struct GidTable {
    /// Held by the thread that changes the table while it sends commands.
    change: Mutex<()>,
    entries: Mutex<Entries>,
    /// Number of entries the device has.
    room: usize,
}

impl GidTable {
    /// Makes the table of a function that has come up with these entries.
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
        // Each change is one assignment, so a panic leaves no half change.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the table against changes by others.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries that new paths may use, by index.
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

    /// Holds a living entry. `None`: there is none of that index, or it is retiring.
    pub(crate) fn hold(&self, index: u8) -> Option<Use> {
        let entries = self.entries();
        let lives = entries.living.iter().any(|entry| entry.index == index);
        let held = entries.uses.get(&index).filter(|_| lives)?;
        Some(Use {
            _held: Arc::clone(held),
        })
    }

    /// Returns the entry for an address to be added.
    ///
    /// # Errors
    /// The address is already there, or there is no room.
    pub(crate) fn plan(&self, mac: [u8; 6], address: &Address) -> Result<GidEntry, MlxError> {
        let entries = self.entries();
        let there = |ip: IpAddr| {
            let retiring = entries.retiring.iter().map(|one| &one.entry);
            let mut all = entries.living.iter().chain(retiring);
            all.any(|entry| entry.address == ip)
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

    /// Adds an entry that the device has.
    pub(crate) fn publish(&self, entry: GidEntry) {
        let mut entries = self.entries();
        let mut living = entries.living.to_vec();
        living.push(entry);
        living.sort_by_key(|entry| entry.index);
        entries.living = living.into();
        entries.uses.insert(entry.index, Arc::new(()));
        entries.next = usize::from(entry.index) + 1;
    }

    /// Retires an address: no new path uses it.
    ///
    /// # Errors
    /// It is not in the table, or it is the one that stays.
    pub(crate) fn retire(&self, address: IpAddr, now: Instant) -> Result<GidEntry, MlxError> {
        let refused = |why| MlxError::Address {
            address: address.into(),
            why,
        };
        let mut entries = self.entries();
        let found = entries
            .living
            .iter()
            .find(|entry| entry.address == address)
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

    /// Returns a retiring entry that is no longer used, or whose time is over.
    pub(crate) fn retired(&self, now: Instant) -> Option<GidEntry> {
        let entries = self.entries();
        let is_over = |one: &&Retiring| {
            let uses = entries.uses.get(&one.entry.index);
            let idle = uses.is_none_or(|uses| Arc::strong_count(uses) == 1);
            !one.stuck && (idle || now - one.since >= RETIRING)
        };
        entries.retiring.iter().find(is_over).map(|one| one.entry)
    }

    /// Returns the latest time at which a retiring entry ends.
    pub(crate) fn due(&self) -> Option<Instant> {
        let entries = self.entries();
        let waiting = entries.retiring.iter().filter(|one| !one.stuck);
        waiting.map(|one| one.since + RETIRING).min()
    }

    /// Notes that the device has cleared an entry, or refused to.
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

    /// Returns the indices that the device may know.
    pub(crate) fn indices(&self) -> Vec<u8> {
        self.entries().uses.keys().copied().collect()
    }
}
