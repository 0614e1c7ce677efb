//! The neighbours that are known by asking.
//!
//! An entry is made when somebody here wants to send, and at no other time. What it steps through says
//! [`state`](crate::state); the times of a state are set here, when it is entered. The table keeps them in the order of
//! their names, so that one seed gives one run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::address::Mac;
use crate::config::{Config, DELAY_FIRST_PROBE};
use crate::draw::Draw;
use crate::state::{State, Step};

/// What a neighbour is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) vlan: Option<u16>,
    pub(crate) address: IpAddr,
}

/// A neighbour.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    /// [`Neighbour::step`] alone changes it.
    state: State,
    /// What was last learnt. In `Incomplete`, what it was before nobody answered.
    pub(crate) mac: Option<Mac>,
    /// Which of our addresses wants to send.
    pub(crate) asker: IpAddr,
    /// Questions sent in this state.
    pub(crate) tries: u8,
    /// Somebody has said another MAC since the state began; the one we have is asked when it is due.
    pub(crate) suspect: bool,
    /// When something is to be done.
    pub(crate) due: Option<Duration>,
    /// When somebody last wanted to send.
    pub(crate) used: Duration,
    /// When the state began.
    pub(crate) since: Duration,
}

impl Neighbour {
    pub(crate) fn new(asker: IpAddr, mac: Option<Mac>, now: Duration) -> Self {
        Self {
            state: State::Absent,
            mac,
            asker,
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

    /// The MAC that frames may be sent to.
    pub(crate) fn usable_mac(&self) -> Option<Mac> {
        self.mac.filter(|_| self.state.is_usable())
    }

    /// The one way from a state to the next; `false` if nothing follows from this step.
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

    /// Those for which something is to be done.
    pub(crate) fn due_at(&self, now: Duration) -> Vec<Key> {
        self.keys(|entry| entry.due.is_some_and(|due| due <= now))
    }

    /// Those of which something holds.
    pub(crate) fn keys(&self, holds: impl Fn(&Neighbour) -> bool) -> Vec<Key> {
        let found = self.iter().filter(|(_, entry)| holds(entry));
        found.map(|(key, _)| key).collect()
    }

    /// When something is next to be done.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.entries.values().filter_map(|entry| entry.due).min()
    }

    /// The one that is not being asked and was idle for longest.
    pub(crate) fn idle(&self) -> Option<Key> {
        let idle = self.iter().filter(|(_, entry)| !entry.state.is_asking());
        idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key)
    }
}
