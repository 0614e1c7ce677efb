//! The addresses of an open function, which come and go.
//!
//! ```text
//!                write_entry                retire                     clear_entry
//!   (no entry) --------------> living ------------------> retiring ------------------> (no entry)
//!                                      no path leaves from    nobody uses it any more,
//!                                      it any more            or RETIRING is over
//! ```
//!
//! A queue pair that leaves from an entry holds it ([`Use`]) until it is stopped, so that its peer can still be told,
//! and so that the device does not find an entry changed under a queue pair that runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver::Instant;
use rdma_types::Address;

use super::entry::{GidEntry, entry_of};
use crate::error::MlxError;

/// How long an address that was removed waits for those who use it. Connections end within a turn of their instances;
/// one that nobody calls does not keep it.
const RETIRING: Duration = Duration::from_secs(5);

/// Somebody uses an entry.
#[derive(Debug)]
pub(crate) struct Use {
    _held: Arc<()>,
}

/// An entry that ends when nobody uses it.
struct Retiring {
    entry: GidEntry,
    since: Instant,
    /// The device did not clear it: it is not used again, and not asked for again.
    stuck: bool,
}

/// The entries, by what they are good for.
struct Entries {
    living: Arc<[GidEntry]>,
    retiring: Vec<Retiring>,
    /// Held once here, and once by each [`Use`].
    uses: BTreeMap<u8, Arc<()>>,
    /// Where the next index is looked for: one that was just given back names another address to datagrams that are
    /// late.
    next: usize,
}

/// The table of a function.
pub(crate) struct GidTable {
    /// Whoever changes it has this while the device is asked.
    change: Mutex<()>,
    entries: Mutex<Entries>,
    /// Entries the device has.
    room: usize,
}

impl GidTable {
    /// Of a function that has come up with these.
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
        // Each change is one assignment.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody else changes the table meanwhile.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that paths leave from, by index.
    pub(crate) fn living(&self) -> Arc<[GidEntry]> {
        Arc::clone(&self.entries().living)
    }

    /// The entry of an index, of those that retire, too.
    pub(crate) fn at(&self, index: u8) -> Option<GidEntry> {
        let entries = self.entries();
        let retiring = entries.retiring.iter().map(|one| &one.entry);
        let mut all = entries.living.iter().chain(retiring);
        all.find(|entry| entry.index == index).copied()
    }

    /// The entry of a GID, of those that retire, too.
    pub(crate) fn of(&self, gid: [u8; 16]) -> Option<GidEntry> {
        let entries = self.entries();
        let retiring = entries.retiring.iter().map(|one| &one.entry);
        let mut all = entries.living.iter().chain(retiring);
        all.find(|entry| entry.gid == gid).copied()
    }

    /// Holds a living entry. `None`: there is none of that index, or it retires.
    pub(crate) fn hold(&self, index: u8) -> Option<Use> {
        let entries = self.entries();
        let lives = entries.living.iter().any(|entry| entry.index == index);
        let held = entries.uses.get(&index).filter(|_| lives)?;
        Some(Use {
            _held: Arc::clone(held),
        })
    }

    /// The entry that one more address gets.
    ///
    /// # Errors
    /// It is there, or there is no room.
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

    /// The device has the entry.
    pub(crate) fn publish(&self, entry: GidEntry) {
        let mut entries = self.entries();
        let mut living = entries.living.to_vec();
        living.push(entry);
        living.sort_by_key(|entry| entry.index);
        entries.living = living.into();
        entries.uses.insert(entry.index, Arc::new(()));
        entries.next = usize::from(entry.index) + 1;
    }

    /// No path leaves from an address any more.
    ///
    /// # Errors
    /// It is none, or the one that stays.
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

    /// An entry that retires and that nobody uses any more, or not for long.
    pub(crate) fn retired(&self, now: Instant) -> Option<GidEntry> {
        let entries = self.entries();
        let is_over = |one: &&Retiring| {
            let uses = entries.uses.get(&one.entry.index);
            let idle = uses.is_none_or(|uses| Arc::strong_count(uses) == 1);
            !one.stuck && (idle || now - one.since >= RETIRING)
        };
        entries.retiring.iter().find(is_over).map(|one| one.entry)
    }

    /// When an entry that retires ends at the latest.
    pub(crate) fn due(&self) -> Option<Instant> {
        let entries = self.entries();
        let waiting = entries.retiring.iter().filter(|one| !one.stuck);
        waiting.map(|one| one.since + RETIRING).min()
    }

    /// The device has cleared an entry, or would not.
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

    /// Indices that the device may know.
    pub(crate) fn indices(&self) -> Vec<u8> {
        self.entries().uses.keys().copied().collect()
    }
}
