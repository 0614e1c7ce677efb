//! Neighbours that are handed over to another process.

use std::collections::BTreeMap;

use super::{Key, Neighbour, STRANGERS, Table};
use crate::bounds::{self, Bounds};
use crate::config::{
    Config, DELAY_FIRST_PROBE, MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT, RETRANS_TIMER,
};
use crate::resume_error::ResumeError;
use crate::snapshot::NeighbourSnapshot;
use crate::state::State;

impl Table {
    /// Describes the entries, by key.
    pub(crate) fn park(&self) -> Vec<NeighbourSnapshot> {
        self.iter().map(|(key, entry)| entry.park(key)).collect()
    }

    /// Makes the table again.
    ///
    /// # Errors
    /// An entry is in a state that it cannot be in, or there are more entries than the configuration allows.
    pub(crate) fn resume(
        snapshot: &[NeighbourSnapshot],
        bounds: &Bounds,
        config: &Config,
    ) -> Result<Self, ResumeError> {
        bounds::length("neighbours", snapshot.len(), config.neighbours)?;
        let mut entries = BTreeMap::new();
        for one in snapshot {
            let key = Key {
                vlan: one.vlan,
                address: bounds::node(one.address)?,
            };
            let entry = Neighbour::resume(key, one, bounds, config)?;
            if entries.insert(key, entry).is_some() {
                return Err(ResumeError::Twice { item: key.name() });
            }
        }
        let table = Self { entries };
        let most = (config.neighbours / STRANGERS).max(1);
        bounds::length("strangers", table.strangers(), most)?;
        Ok(table)
    }
}

impl Key {
    /// Returns the name of the neighbour, for errors.
    pub(crate) fn name(self) -> String {
        bounds::in_vlan(&format!("neighbour {}", self.address), self.vlan)
    }
}

impl Neighbour {
    fn park(&self, key: Key) -> NeighbourSnapshot {
        NeighbourSnapshot {
            address: key.address,
            vlan: key.vlan,
            state: self.state,
            mac: self.mac,
            asker: self.asker,
            stranger: self.stranger,
            tries: self.tries,
            suspect: self.suspect,
            due: self.due,
            used: self.used,
            since: self.since,
        }
    }

    fn resume(
        key: Key,
        snapshot: &NeighbourSnapshot,
        bounds: &Bounds,
        config: &Config,
    ) -> Result<Self, ResumeError> {
        let item = key.name();
        let NeighbourSnapshot {
            state,
            mac,
            asker,
            stranger,
            tries,
            suspect,
            due,
            used,
            since,
            ..
        } = *snapshot;
        let contradiction = |facts: String| Err(ResumeError::contradiction(&*item, facts));
        if let Some(mac) = mac
            && bounds::station(mac)? == bounds.mac
        {
            return contradiction(format!("{mac:02x?} is our own MAC"));
        }
        let asker = bounds::node(asker)?;
        if asker.is_ipv4() != key.address.is_ipv4() {
            return contradiction(format!("our address {asker} is of another family"));
        }
        // The most requests, and the time that the state lasts at most from now on.
        let (most_tries, within) = match state {
            State::Incomplete => (MAX_MULTICAST_SOLICIT, Some(RETRANS_TIMER)),
            State::Probe => (MAX_UNICAST_SOLICIT, Some(RETRANS_TIMER)),
            State::Reachable if suspect => (0, Some(RETRANS_TIMER)),
            State::Reachable => (0, Some(config.reachable.saturating_mul(3) / 2)),
            State::Delay => (0, Some(DELAY_FIRST_PROBE)),
            State::Unreachable => (0, Some(config.holdoff)),
            State::Absent | State::Stale => (0, None),
        };
        // The configuration may have a shorter time than that of the parked process, so the time is shortened. Other
        // times are the protocol's.
        let is_configured = state == State::Unreachable || state == State::Reachable && !suspect;
        let due = match within {
            Some(within) if is_configured => {
                due.map(|due| due.min(bounds.parked.saturating_add(within)))
            }
            _ => due,
        };
        bounds::number(&item, "requests", tries, [0, most_tries])?;
        let may_lack_timer = within.is_none() || state.is_asking();
        let is_sound = state != State::Absent
            && (bounds.up || state == State::Stale)
            && (mac.is_some() || !state.is_usable())
            && (state == State::Reachable || !suspect)
            && (due.is_some() || may_lack_timer)
            && (due.is_none() || within.is_some());
        if !is_sound {
            return contradiction(format!(
                "{state:?}, MAC {mac:02x?}, due at {due:?}, suspect: {suspect}, link up: {}",
                bounds.up
            ));
        }
        if let (Some(due), Some(within)) = (due, within) {
            bounds.timer(&item, "next action", due, within)?;
        }
        bounds.past(&item, "last use", used)?;
        bounds.past(&item, "beginning of the state", since)?;
        Ok(Self {
            state,
            mac,
            asker,
            stranger,
            tries,
            suspect,
            due,
            used,
            since,
        })
    }
}
