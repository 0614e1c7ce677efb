//! Neighbours that outlive their process.
//!
//! [`Neighbours::park`] describes the state machine as plain data. [`Neighbours::resume`] makes it again, in another
//! process or in the same one, and it goes on as if nothing had happened: with the same addresses, states, timers,
//! limits, queues and counters, and without detection or announcements.
//!
//! ```text
//!   the old process                          the new process
//!     park; no further call                    resume: checks; sends nothing, and runs no timer
//!        '---- NeighboursSnapshot ---->        received: all frames that came meanwhile
//!                                              tick: the timers that are overdue
//! ```
//!
//! The frames come first, because they may have the answers whose timers are overdue.
//!
//! Three things are not in a snapshot. The caller gives the configuration. The time of the first timer and the groups
//! follow from the rest. The caller also gives the seed. With the seed of the parked process, the delays and
//! identifiers are those that it would have drawn; with another seed, they are new. If a snapshot is resumed twice, or
//! if others may have read it, the caller gives another seed, because identifiers of echo requests must not be
//! predictable.
//!
//! A snapshot of an earlier boot of the machine is not detected if the clock has passed its time again. The layer above
//! compares the boots.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::{Echoing, Neighbours};
use crate::address::{AddressError, Mac};
use crate::bounds::{self, Bounds};
use crate::budget::Budget;
use crate::config::Config;
use crate::counters::Counters;
use crate::draw::Draw;
use crate::membership::Membership;
use crate::outbox::Outbox;
use crate::own::Own;
use crate::resume_error::ResumeError;
use crate::snapshot::{
    AddressSnapshot, BudgetsSnapshot, EchoSnapshot, MembershipSnapshot, NeighboursSnapshot,
};
use crate::table::Table;

impl Neighbours {
    /// Describes the neighbours for another process. Changes nothing. There is nothing that cannot be parked: queued
    /// frames and events are in the snapshot.
    #[must_use]
    pub fn park(&self) -> NeighboursSnapshot {
        let (frames, events) = self.outbox.park();
        let memberships = self.memberships.iter();
        NeighboursSnapshot {
            mac: self.config.mac,
            parked: self.now,
            up: self.up,
            addresses: self.own.iter().map(Own::park).collect(),
            statics: self.statics.iter().map(|(&at, &mac)| (at, mac)).collect(),
            neighbours: self.table.park(),
            memberships: memberships.map(|(&vlan, one)| one.park(vlan)).collect(),
            budgets: BudgetsSnapshot {
                asks: self.asks.spent(),
                asks_of_strangers: self.asks_of_strangers.spent(),
                answers: self.answers.spent(),
                echoes: self.echoes.spent(),
            },
            echo: self.echo.map(|echo| EchoSnapshot {
                source: echo.source,
                destination: echo.destination,
                identifier: echo.identifier,
                sequence: echo.sequence,
            }),
            frames,
            events,
            counters: self.counters(),
            random_words: self.draw.words(),
        }
    }

    /// Goes on with neighbours that this or another process has parked. `config` must have the same MAC, and limits
    /// that the lists of the snapshot do not exceed. If [`Config::holdoff`] or [`Config::reachable`] is shorter than
    /// before, waits are shortened. Static entries and pending reports have no limit. Static entries and addresses are
    /// those of the snapshot. This function queues no frame and runs no timer. The caller then passes in the frames
    /// that have come meanwhile ([`received`](Self::received)), and calls [`tick`](Self::tick), which handles overdue
    /// timers.
    ///
    /// # Errors
    /// A [`ResumeError`] with the item that is not possible, or that the configuration does not allow.
    pub fn resume(
        snapshot: &NeighboursSnapshot,
        config: Config,
        now: Duration,
    ) -> Result<Self, ResumeError> {
        let &NeighboursSnapshot {
            mac, parked, up, ..
        } = snapshot;
        let ours = config.mac;
        if mac != ours {
            return Err(ResumeError::Mac { parked: mac, ours });
        }
        if parked > now {
            return Err(ResumeError::Clock { parked, now });
        }
        let bounds = Bounds { mac, parked, up };
        let mut neighbours = Self::new(config, now);
        let config = neighbours.config;
        neighbours.up = up;
        neighbours.own = addresses(&snapshot.addresses, &bounds, config.addresses)?;
        neighbours.statics = statics(&snapshot.statics)?;
        neighbours.table = Table::resume(&snapshot.neighbours, &bounds, &config)?;
        neighbours.check_table()?;
        neighbours.memberships = neighbours.resumed_memberships(&snapshot.memberships, &bounds)?;
        let BudgetsSnapshot {
            asks,
            asks_of_strangers,
            answers,
            echoes,
        } = snapshot.budgets;
        let budgets: [(&str, &mut Budget, Duration); 4] = [
            ("requests", &mut neighbours.asks, asks),
            (
                "requests to strangers",
                &mut neighbours.asks_of_strangers,
                asks_of_strangers,
            ),
            ("replies", &mut neighbours.answers, answers),
            ("echo replies", &mut neighbours.echoes, echoes),
        ];
        for (item, budget, spent) in budgets {
            budget.resume(item, spent, &bounds)?;
        }
        neighbours.echo = snapshot.echo.map(echoing).transpose()?;
        neighbours.outbox = Outbox::resume(&snapshot.frames, &snapshot.events, &bounds, &config)?;
        neighbours.counters = counters(snapshot.counters)?;
        neighbours.draw = Draw::resume(config.seed, snapshot.random_words)?;
        neighbours.wake_unblocked();
        neighbours.due = neighbours.first_timer();
        Ok(neighbours)
    }

    /// Checks that each entry of the table is a neighbour of an address of ours, and has no static MAC.
    fn check_table(&self) -> Result<(), ResumeError> {
        let served = self.served();
        for (key, _) in self.table.iter() {
            let facts = if self.statics.contains_key(&key.address) {
                "it is static, too"
            } else if !served.contains(&(key.vlan, key.address.is_ipv4())) {
                "no address of ours is in its VLAN and family"
            } else {
                continue;
            };
            return Err(ResumeError::contradiction(key.name(), facts));
        }
        Ok(())
    }

    fn resumed_memberships(
        &self,
        snapshot: &[MembershipSnapshot],
        bounds: &Bounds,
    ) -> Result<BTreeMap<Option<u16>, Membership>, ResumeError> {
        let groups = self.all_groups();
        let mut memberships = BTreeMap::new();
        for one in snapshot {
            let membership = Membership::resume(one, &groups, bounds)?;
            if memberships.insert(one.vlan, membership).is_some() {
                let item = bounds::in_vlan("reports", one.vlan);
                return Err(ResumeError::Twice { item });
            }
        }
        Ok(memberships)
    }

    /// Makes each request due that waits for a usable address of ours although there is one. Nothing else would wake
    /// it. A snapshot has such requests if the configuration's detection has changed.
    fn wake_unblocked(&mut self) {
        let waiting = self
            .table
            .keys(|entry| entry.state().is_asking() && entry.due.is_none());
        for key in waiting {
            let asker = self.table.get(key).map(|entry| entry.asker);
            if asker.is_some_and(|asker| self.asker(key, asker).is_some())
                && let Some(entry) = self.table.get_mut(key)
            {
                entry.due = Some(self.now);
            }
        }
    }
}

fn addresses(
    snapshot: &[AddressSnapshot],
    bounds: &Bounds,
    most: usize,
) -> Result<Vec<Own>, ResumeError> {
    let have = snapshot.len();
    if have > most {
        return Err(AddressError::TooMany { have, most }.into());
    }
    let mut own = Vec::new();
    let mut seen = BTreeSet::new();
    for one in snapshot {
        let one = Own::resume(one, bounds)?;
        let address = one.address();
        if !seen.insert(address) {
            return Err(AddressError::Taken { address }.into());
        }
        own.push(one);
    }
    Ok(own)
}

fn statics(snapshot: &[(IpAddr, Mac)]) -> Result<BTreeMap<IpAddr, Mac>, ResumeError> {
    let mut statics = BTreeMap::new();
    for &(address, mac) in snapshot {
        let address = bounds::node(address)?;
        if statics.insert(address, bounds::station(mac)?).is_some() {
            let item = format!("static neighbour {address}");
            return Err(ResumeError::Twice { item });
        }
    }
    Ok(statics)
}

fn echoing(snapshot: EchoSnapshot) -> Result<Echoing, ResumeError> {
    let (source, destination) = (
        bounds::node(snapshot.source)?,
        bounds::node(snapshot.destination)?,
    );
    if source.is_ipv4() != destination.is_ipv4() {
        let facts = format!("from {source} to {destination}");
        return Err(ResumeError::contradiction("echo request", facts));
    }
    Ok(Echoing {
        source,
        destination,
        identifier: snapshot.identifier,
        sequence: snapshot.sequence,
    })
}

fn counters(snapshot: Counters) -> Result<Counters, ResumeError> {
    // The table has the number of neighbours.
    let mut counters = snapshot;
    counters.neighbours = 0;
    for (name, number) in counters.all() {
        bounds::counted("counters", name, number)?;
    }
    Ok(counters)
}
