//! The address table of a function that is handed over to another process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use driver::Instant;
use rdma_types::Address;

use super::super::entry::{GidEntry, entry_of, link_local};
use super::{Entries, GidTable, Retiring, Use};
use crate::error::ResumeError;

/// Name of the table in errors.
const TABLE: &str = "the address table";

/// Our addresses.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct GidTableSnapshot {
    /// The entries of the device's table that we have written.
    pub entries: Vec<GidSnapshot>,
    /// Index at which the search for a free index starts.
    pub next: u32,
}

/// An entry of the address table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct GidSnapshot {
    /// Index in the device's table.
    pub index: u8,
    /// The address.
    pub address: Address,
    /// State of an entry whose address was removed; `None`: new paths use the address.
    pub retiring: Option<RetiringSnapshot>,
}

/// State of an entry whose address was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RetiringSnapshot {
    /// Time of the removal, on the function's clock: that of the system, if the function was parked.
    pub since: Instant,
    /// True if the device refused to clear the entry.
    pub stuck: bool,
}

impl GidTable {
    /// Describes the table. The references of queue pairs are not part of it.
    pub(crate) fn snapshot(&self) -> GidTableSnapshot {
        let entries = self.entries();
        let living = entries.living.iter().map(|entry| GidSnapshot {
            index: entry.index,
            address: entry.address,
            retiring: None,
        });
        let retiring = entries.retiring.iter().map(|one| GidSnapshot {
            index: one.entry.index,
            address: one.entry.address,
            retiring: Some(RetiringSnapshot {
                since: one.since,
                stuck: one.stuck,
            }),
        });
        GidTableSnapshot {
            entries: living.chain(retiring).collect(),
            // PANIC: an index has 8 bits, and `next` is at most one more.
            next: u32::try_from(entries.next).expect("at most 256"),
        }
    }

    /// Makes the table again, of a function with this MAC. `room` is the number of entries of the device's table.
    ///
    /// # Errors
    /// The entries contradict each other, or are no addresses.
    pub(crate) fn resume(
        snapshot: &GidTableSnapshot,
        mac: [u8; 6],
        room: usize,
        now: Instant,
    ) -> Result<Self, ResumeError> {
        let refused = |what: String| Err(ResumeError::snapshot(TABLE, what));
        let (mut living, mut retiring) = (Vec::<GidEntry>::new(), Vec::<Retiring>::new());
        let mut uses = BTreeMap::new();
        for one in &snapshot.entries {
            let GidSnapshot { index, address, .. } = *one;
            if let Err(why) = address.check() {
                return refused(format!("{address}: {why}"));
            }
            let all = living.iter().chain(retiring.iter().map(|one| &one.entry));
            let is_new = all
                .clone()
                .all(|other| other.address.address != address.address);
            let is_inside = usize::from(index) < room;
            if !is_new || !is_inside || uses.insert(index, Arc::new(())).is_some() {
                return refused(format!("{address} at index {index} of {room}"));
            }
            let entry = entry_of(index, mac, &address);
            match one.retiring {
                None => living.push(entry),
                Some(RetiringSnapshot { since, stuck }) => retiring.push(Retiring {
                    entry,
                    since: since.min(now),
                    stuck,
                }),
            }
        }
        living.sort_by_key(|entry| entry.index);
        let own = link_local(mac);
        let first = living.first().filter(|first| first.index == 0);
        if first.is_none_or(|first| first.address.address != own) {
            return refused(format!("{own} is not at index 0"));
        }
        Ok(Self {
            change: Mutex::new(()),
            room,
            entries: Mutex::new(Entries {
                uses,
                // A larger number starts the search at the first index.
                next: usize::try_from(snapshot.next).map_or(room, |next| next.min(room)),
                living: living.into(),
                retiring,
            }),
        })
    }

    /// Returns all entries, including retiring ones.
    pub(crate) fn all(&self) -> Vec<GidEntry> {
        let entries = self.entries();
        let retiring = entries.retiring.iter().map(|one| one.entry);
        entries.living.iter().copied().chain(retiring).collect()
    }

    /// Takes a reference to an entry for a queue pair that had one before. Unlike [`GidTable::hold`], this also works
    /// for a retiring entry. The entry may have been cleared while the queue pair had a reference to it. The new
    /// reference then keeps no entry, like the earlier one.
    pub(crate) fn hold_again(&self, index: u8) -> Use {
        let entries = self.entries();
        let held = entries.uses.get(&index);
        Use {
            _held: held.map(Arc::clone).unwrap_or_default(),
        }
    }
}
