//! Table of the neighbours whose MACs we found by requests (ARP, neighbour solicitation).
//!
//! An entry is created only when a local sender needs the neighbour, or when a datagram of an unknown sender must be
//! answered. Entries of the second kind are limited to a share of the table, and evict each other.
//! [`state`](crate::state) has the transitions of an entry. This module sets the duration of a state when the entry
//! enters the state. The table is ordered by key, so that runs with the same seed are identical.

mod parking;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::address::Mac;
use crate::config::{Config, DELAY_FIRST_PROBE};
use crate::draw::Draw;
use crate::state::{State, Step};

/// Divisor of the strangers' share. At most this part of the table holds strangers: neighbours that we resolved only to
/// answer their datagrams.
pub(crate) const STRANGERS: usize = 4;

/// Key of a neighbour: VLAN ID and IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) vlan: Option<u16>,
    pub(crate) address: IpAddr,
}

/// A neighbour.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    /// State of the entry. Only [`Neighbour::step`] changes it.
    state: State,
    /// MAC last learnt. In `Incomplete`, the MAC that was known before the requests had no reply.
    pub(crate) mac: Option<Mac>,
    /// Address of ours from which a sender last wanted to send.
    pub(crate) asker: IpAddr,
    /// True as long as the entry was needed only to answer datagrams of the neighbour, and by no local sender.
    pub(crate) stranger: bool,
    /// Number of requests sent in this state.
    pub(crate) tries: u8,
    /// True if a message has named another MAC since the state began. Then the known MAC is probed at `due`.
    pub(crate) suspect: bool,
    /// Time of the next action.
    pub(crate) due: Option<Duration>,
    /// Time at which a sender last needed the neighbour.
    pub(crate) used: Duration,
    /// Time at which the state began.
    pub(crate) since: Duration,
}

impl Neighbour {
    pub(crate) fn new(asker: IpAddr, stranger: bool, mac: Option<Mac>, now: Duration) -> Self {
        Self {
            state: State::Absent,
            mac,
            asker,
            stranger,
            tries: 0,
            suspect: false,
            due: None,
            used: now,
            since: now,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Returns the MAC that frames may be sent to; `None` if no MAC is known, or if the state does not allow its use.
    pub(crate) fn usable_mac(&self) -> Option<Mac> {
        self.mac.filter(|_| self.state.is_usable())
    }

    /// Applies an event to the state. Nothing else changes the state. Returns `false` if the event changes nothing.
    pub(crate) fn step(
        &mut self,
        step: Step,
        now: Duration,
        config: &Config,
        draw: &mut Draw,
    ) -> bool {
        let Some(next) = self.state.next(step) else {
            return false;
        };
        self.state = next;
        self.since = now;
        self.tries = 0;
        self.suspect = false;
        self.due = match next {
            State::Incomplete | State::Probe => Some(now),
            // RFC 4861, 6.3.2: MIN_RANDOM_FACTOR 0.5, MAX_RANDOM_FACTOR 1.5.
            State::Reachable => {
                Some(now + draw.within(config.reachable / 2, config.reachable * 3 / 2))
            }
            State::Delay => Some(now + DELAY_FIRST_PROBE),
            State::Unreachable => Some(now + config.holdoff),
            State::Stale | State::Absent => None,
        };
        true
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: BTreeMap<Key, Neighbour>,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Neighbour> {
        self.entries.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Neighbour> {
        self.entries.get_mut(&key)
    }

    pub(crate) fn insert(&mut self, key: Key, neighbour: Neighbour) {
        self.entries.insert(key, neighbour);
    }

    pub(crate) fn remove(&mut self, key: Key) {
        self.entries.remove(&key);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Neighbour)> {
        self.entries.iter().map(|(&key, entry)| (key, entry))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Neighbour)> {
        self.entries.iter_mut().map(|(&key, entry)| (key, entry))
    }

    /// Returns the neighbours for which an action is due.
    pub(crate) fn due_at(&self, now: Duration) -> Vec<Key> {
        self.keys(|entry| entry.due.is_some_and(|due| due <= now))
    }

    /// Returns the neighbours for which `holds` is true.
    pub(crate) fn keys(&self, holds: impl Fn(&Neighbour) -> bool) -> Vec<Key> {
        let found = self.iter().filter(|(_, entry)| holds(entry));
        found.map(|(key, _)| key).collect()
    }

    /// Returns the time of the next action.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.entries.values().filter_map(|entry| entry.due).min()
    }

    /// Returns the number of entries of strangers.
    pub(crate) fn strangers(&self) -> usize {
        self.iter().filter(|(_, entry)| entry.stranger).count()
    }

    /// Returns the stranger that was unused for longest, even if we are sending requests to it.
    pub(crate) fn oldest_stranger(&self) -> Option<Key> {
        self.oldest(|entry| entry.stranger)
    }

    /// Returns the neighbour that has been unused for longest, among those to which we are not sending requests.
    pub(crate) fn idle(&self) -> Option<Key> {
        self.oldest(|entry| !entry.state.is_asking())
    }

    fn oldest(&self, holds: impl Fn(&Neighbour) -> bool) -> Option<Key> {
        let found = self.iter().filter(|(_, entry)| holds(entry));
        found
            .min_by_key(|(_, entry)| entry.used)
            .map(|(key, _)| key)
    }
}
