//! The functions that the caller calls, and the state of the module.

mod parking;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::address::{
    ALL_NODES, Address, AddressError, Mac, checked, group_mac, is_station, is_unicast,
    solicited_node,
};
use crate::budget::Budget;
use crate::config::{Config, MOST_ADDRESSES};
use crate::counters::Counters;
use crate::draw::Draw;
use crate::event::{Entry, Event, Reason};
use crate::membership::Membership;
use crate::outbox::Outbox;
use crate::own::Own;
use crate::state::Step;
use crate::table::{Key, Table};
use crate::wire::mld::Record;

/// Our outstanding echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echoing {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) identifier: u16,
    pub(crate) sequence: u16,
}

/// The neighbours of one adapter.
///
/// All times have the same arbitrary origin. If a time is earlier than a previous one, the previous time is used.
#[derive(Debug)]
pub struct Neighbours {
    pub(crate) config: Config,
    pub(crate) now: Duration,
    pub(crate) up: bool,
    pub(crate) own: Vec<Own>,
    pub(crate) statics: BTreeMap<IpAddr, Mac>,
    pub(crate) table: Table,
    /// Membership of each VLAN that has something to report.
    pub(crate) memberships: BTreeMap<Option<u16>, Membership>,
    pub(crate) draw: Draw,
    pub(crate) asks: Budget,
    /// Limit on requests to strangers.
    pub(crate) asks_of_strangers: Budget,
    pub(crate) answers: Budget,
    pub(crate) echoes: Budget,
    /// Our outstanding echo request, if any.
    pub(crate) echo: Option<Echoing>,
    pub(crate) outbox: Outbox,
    pub(crate) counters: Counters,
    /// Time of the first timer, or an earlier time; `None` if no timer is set.
    pub(crate) due: Option<Duration>,
}

impl Neighbours {
    /// Makes the module for an adapter that has no addresses and neighbours, and whose link is up.
    #[must_use]
    pub fn new(config: Config, now: Duration) -> Self {
        let config = Config {
            addresses: config.addresses.min(MOST_ADDRESSES),
            ..config
        };
        Self {
            config,
            now,
            up: true,
            own: Vec::new(),
            statics: BTreeMap::new(),
            table: Table::default(),
            memberships: BTreeMap::new(),
            draw: Draw::new(config.seed),
            asks: Budget::new(config.asks_per_second),
            asks_of_strangers: Budget::new(config.asks_per_second / 2),
            answers: Budget::new(config.answers_per_second),
            echoes: Budget::new(config.echoes_per_second),
            echo: None,
            outbox: Outbox::new(&config),
            counters: Counters::default(),
            due: None,
        }
    }

    /// Returns our MAC.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.config.mac
    }

    /// Adds an address of ours. [`Detection`](crate::Detection) decides whether duplicate detection runs first.
    /// An IPv4-mapped IPv6 address is treated as the IPv4 address.
    ///
    /// # Errors
    /// The reason why the address is not valid; the call has then changed nothing.
    pub fn add(&mut self, interface: Address, now: Duration) -> Result<(), AddressError> {
        let interface = checked(interface)?;
        let address = interface.address;
        if self.own(address).is_some() {
            return Err(AddressError::Taken { address });
        }
        let (have, most) = (self.own.len(), self.config.addresses);
        if have >= most {
            return Err(AddressError::TooMany { have, most });
        }
        self.pass(now);
        if let IpAddr::V6(address) = address {
            self.change_group(interface.vlan_id(), address, Record::Joined);
        }
        let mut own = Own::new(interface, self.config.detection);
        if self.up {
            own.link_up(self.config.detection, self.now, &mut self.draw);
        }
        self.own.push(own);
        self.run_timers();
        Ok(())
    }

    /// Removes an address of ours. Returns `false` if it was not ours.
    pub fn remove(&mut self, address: IpAddr, now: Duration) -> bool {
        let address = address.to_canonical();
        self.pass(now);
        let Some(at) = self.own.iter().position(|own| own.address() == address) else {
            return false;
        };
        let own = self.own.remove(at);
        if let IpAddr::V6(address) = address {
            self.change_group(own.interface.vlan_id(), address, Record::Left);
        }
        self.drop_unserved();
        self.run_timers();
        true
    }

    /// Sets the MAC of a neighbour in every VLAN. Received messages do not change a static MAC.
    ///
    /// # Errors
    /// [`AddressError::NotUnicast`] and [`AddressError::NotAMac`]: the address or the MAC is not that of one station.
    pub fn add_static(&mut self, address: IpAddr, mac: Mac) -> Result<(), AddressError> {
        let address = address.to_canonical();
        if !is_unicast(address) {
            return Err(AddressError::NotUnicast { address });
        }
        if !is_station(mac) {
            return Err(AddressError::NotAMac { mac });
        }
        self.statics.insert(address, mac);
        // The static entry replaces entries of the table. Callers that wait for a reply get the MAC now.
        for key in self.table.keys(|_| true) {
            if key.address == address {
                let waits = self
                    .table
                    .get(key)
                    .is_some_and(|entry| entry.state() == crate::State::Incomplete);
                self.table.remove(key);
                if waits {
                    self.push_event(Event::Resolved {
                        address,
                        vlan: key.vlan,
                        mac,
                    });
                }
            }
        }
        Ok(())
    }

    /// Removes a static entry. The next use of the neighbour resolves its MAC by requests. Returns `false` if there was
    /// no such static entry.
    pub fn remove_static(&mut self, address: IpAddr) -> bool {
        self.statics.remove(&address.to_canonical()).is_some()
    }

    /// Sets the link up or down. While the link is down, nothing is sent. When the link goes down, queued frames are
    /// dropped, pending requests end with an event, and entries with a learnt MAC become `Stale`. When the link comes
    /// up, our addresses are announced, and detection starts again for addresses that were duplicates or under
    /// detection.
    pub fn link(&mut self, up: bool, now: Duration) {
        self.pass(now);
        if self.up == up {
            return;
        }
        self.up = up;
        if up {
            let detection = self.config.detection;
            for own in &mut self.own {
                own.link_up(detection, self.now, &mut self.draw);
            }
            for (vlan, group) in self.all_groups() {
                let membership = self.memberships.entry(vlan).or_default();
                membership.change(group, Record::Joined, self.now);
            }
        } else {
            self.outbox.drop_frames(&mut self.counters);
            self.own.iter_mut().for_each(Own::link_down);
            self.memberships
                .values_mut()
                .for_each(Membership::link_down);
            for key in self.table.keys(|_| true) {
                self.step(key, Step::LinkDown, Reason::LinkDown);
            }
            // Dropping neighbours that did not reply lets the next use send a request again when the link is up.
            for key in self
                .table
                .keys(|entry| entry.state() == crate::State::Unreachable)
            {
                self.table.remove(key);
            }
        }
        self.run_timers();
    }

    /// Handles all timers that are due.
    pub fn tick(&mut self, now: Duration) {
        self.pass(now);
        if self.due.is_some_and(|due| due <= self.now) {
            self.run_timers();
        }
    }

    /// Returns the time at which to call [`tick`](Self::tick), which may be earlier than the first timer; `None` if no
    /// timer is set.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Writes the next frame to send to `out`, and returns its length: 60 to 1,518 bytes, with a tag if its VLAN has
    /// one, without FCS. Drops frames that are longer than `out`.
    pub fn next_frame(&mut self, out: &mut [u8]) -> Option<usize> {
        self.outbox.take_frame(out, &mut self.counters)
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.outbox.take_event()
    }

    /// Returns the MACs of the groups whose frames the adapter must receive, without duplicates: all nodes, and the
    /// solicited-node groups of our addresses. Only [`add`](Self::add) and [`remove`](Self::remove) change them.
    pub fn groups(&self) -> impl Iterator<Item = Mac> + use<> {
        let asked = self.all_groups().into_iter().map(|(_, group)| group);
        let mut groups: BTreeSet<Mac> = asked.map(group_mac).collect();
        if !groups.is_empty() {
            groups.insert(group_mac(ALL_NODES));
        }
        groups.into_iter()
    }

    /// Returns our addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.own.iter().map(|own| own.interface)
    }

    /// Returns all neighbours: first the static ones, then the learnt ones, ordered by VLAN and address.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let statics = self.statics.iter().map(|(&address, &mac)| Entry {
            address,
            vlan: None,
            mac: Some(mac),
            state: None,
            age: Duration::ZERO,
        });
        let found = self.table.iter().map(|(key, entry)| Entry {
            address: key.address,
            vlan: key.vlan,
            mac: entry.mac,
            state: Some(entry.state()),
            age: self.now - entry.since,
        });
        statics.chain(found)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.neighbours = self.table.len() as u64;
        counters
    }

    /// Sets the current time, unless it is earlier than the previous one.
    pub(crate) fn pass(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    pub(crate) fn own(&self, address: IpAddr) -> Option<&Own> {
        self.own.iter().find(|own| own.address() == address)
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        self.outbox.push_event(event, &mut self.counters);
    }

    /// Queues a frame of our own, if the link is up.
    pub(crate) fn send(&mut self, frame: Vec<u8>) {
        if self.up {
            self.outbox.send(frame, &mut self.counters);
        }
    }

    /// Applies a step to an entry, if the entry exists. If `Incomplete` becomes `Unreachable`, queues
    /// [`Event::Unreachable`] with the reason `why`. Returns `false` if the step changed nothing.
    pub(crate) fn step(&mut self, key: Key, step: Step, why: Reason) -> bool {
        use crate::State;
        let Some(entry) = self.table.get_mut(key) else {
            return false;
        };
        let was = entry.state();
        if !entry.step(step, self.now, &self.config, &mut self.draw) {
            return false;
        }
        let (is, due) = (entry.state(), entry.due);
        self.wake_at(due);
        if is == State::Absent {
            self.table.remove(key);
        }
        if is == State::Unreachable && was == State::Incomplete {
            self.push_event(Event::Unreachable {
                address: key.address,
                vlan: key.vlan,
                reason: why,
            });
        }
        true
    }

    /// Sets the time of the next timer to `due`, if `due` is earlier.
    pub(crate) fn wake_at(&mut self, due: Option<Duration>) {
        self.due = [self.due, due].into_iter().flatten().min();
    }

    /// Drops neighbours of a VLAN and family in which we have no address, or only duplicate addresses.
    pub(crate) fn drop_unserved(&mut self) {
        let served = self.served();
        for key in self.table.keys(|_| true) {
            if !served.contains(&(key.vlan, key.address.is_ipv4())) {
                self.forget(key, Reason::Forgotten);
            }
        }
    }

    /// Returns the VLANs, and whether the family is IPv4, in which we have an address that is not a duplicate.
    fn served(&self) -> BTreeSet<(Option<u16>, bool)> {
        self.own
            .iter()
            .filter(|own| own.claim() != crate::own::Claim::Duplicate)
            .map(|own| (own.interface.vlan_id(), own.address().is_ipv4()))
            .collect()
    }

    /// Drops an entry. If a request for it was outstanding, queues [`Event::Unreachable`] with the reason `why`.
    pub(crate) fn forget(&mut self, key: Key, why: Reason) {
        let Some(entry) = self.table.get(key) else {
            return;
        };
        let waits = entry.state() == crate::State::Incomplete;
        self.table.remove(key);
        if waits {
            self.push_event(Event::Unreachable {
                address: key.address,
                vlan: key.vlan,
                reason: why,
            });
        }
    }

    /// Returns the solicited-node groups of our addresses, with the VLAN of each, without duplicates.
    pub(crate) fn all_groups(&self) -> BTreeSet<(Option<u16>, Ipv6Addr)> {
        let own = self.own.iter().filter_map(|own| match own.address() {
            IpAddr::V6(address) => Some((own.interface.vlan_id(), solicited_node(address))),
            IpAddr::V4(_) => None,
        });
        own.collect()
    }

    /// Joins or leaves the group of an address. The address must not be in `own` (it is not yet added, or is already
    /// removed). A group that another address of ours needs does not change.
    fn change_group(&mut self, vlan: Option<u16>, address: Ipv6Addr, record: Record) {
        let group = solicited_node(address);
        if self.up && !self.all_groups().contains(&(vlan, group)) {
            let membership = self.memberships.entry(vlan).or_default();
            membership.change(group, record, self.now);
        }
    }
}
