//! What a caller says and asks; what it all is kept in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::address::{
    ALL_NODES, AddressError, Interface, Mac, group_mac, is_station, is_unicast, solicited_node,
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

/// An echo request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echoing {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) identifier: u16,
    pub(crate) sequence: u16,
}

/// The neighbours of one adapter.
///
/// Times are what has passed since the clock's beginning. One that is earlier than one before counts as that.
#[derive(Debug)]
pub struct Neighbours {
    pub(crate) config: Config,
    pub(crate) now: Duration,
    pub(crate) up: bool,
    pub(crate) own: Vec<Own>,
    pub(crate) statics: BTreeMap<IpAddr, Mac>,
    pub(crate) table: Table,
    /// One for each VLAN in which something is to be reported.
    pub(crate) memberships: BTreeMap<Option<u16>, Membership>,
    pub(crate) draw: Draw,
    pub(crate) asks: Budget,
    pub(crate) answers: Budget,
    pub(crate) echoes: Budget,
    /// The echo of ours that has no answer yet.
    pub(crate) echo: Option<Echoing>,
    pub(crate) outbox: Outbox,
    pub(crate) counters: Counters,
    /// Not later than anything is due.
    pub(crate) due: Option<Duration>,
}

impl Neighbours {
    /// An adapter without addresses and neighbours, whose link is up.
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
            answers: Budget::new(config.answers_per_second),
            echoes: Budget::new(config.echoes_per_second),
            echo: None,
            outbox: Outbox::new(&config),
            counters: Counters::default(),
            due: None,
        }
    }

    /// Our MAC.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.config.mac
    }

    /// An address is ours from now on, or is being looked for: see [`Detection`](crate::Detection).
    ///
    /// # Errors
    /// Each says what is wrong with the address, and nothing has changed.
    pub fn add(&mut self, interface: Interface, now: Duration) -> Result<(), AddressError> {
        let interface = interface.checked()?;
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
        self.turn();
        Ok(())
    }

    /// An address is not ours any more. `false`: it was not.
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
        self.forget_unserved();
        self.turn();
        true
    }

    /// A neighbour has this MAC, in every VLAN, whatever it or others say.
    ///
    /// # Errors
    /// [`AddressError::NotUnicast`] and [`AddressError::NotAMac`]: the address or the MAC is not one station's.
    pub fn add_static(&mut self, address: IpAddr, mac: Mac) -> Result<(), AddressError> {
        let address = address.to_canonical();
        if !is_unicast(address) {
            return Err(AddressError::NotUnicast { address });
        }
        if !is_station(mac) {
            return Err(AddressError::NotAMac { mac });
        }
        self.statics.insert(address, mac);
        // Nobody asks for it any more; who waits has the answer now.
        for key in self.table.keys(|_| true) {
            if key.address == address {
                let waits = self
                    .table
                    .get(key)
                    .is_some_and(|entry| entry.state() == crate::State::Incomplete);
                self.table.remove(key);
                if waits {
                    self.tell(Event::Resolved {
                        address,
                        vlan: key.vlan,
                        mac,
                    });
                }
            }
        }
        Ok(())
    }

    /// A neighbour is found by asking again. `false`: it was no static one.
    pub fn remove_static(&mut self, address: IpAddr) -> bool {
        self.statics.remove(&address.to_canonical()).is_some()
    }

    /// The link is up, or down. Down: nothing is sent, what waits to be sent is dropped, who waits for an answer is
    /// told, and what was learnt is to be asked again once it is used. Up again: our addresses are announced, and those
    /// that were somebody else's are looked for anew.
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
            // What had no answer, or has none now, is asked for anew when the link is up.
            for key in self
                .table
                .keys(|entry| entry.state() == crate::State::Unreachable)
            {
                self.table.remove(key);
            }
        }
        self.turn();
    }

    /// Does what time has brought.
    pub fn tick(&mut self, now: Duration) {
        self.pass(now);
        if self.due.is_some_and(|due| due <= self.now) {
            self.turn();
        }
    }

    /// When [`tick`](Self::tick) is to be called; now and then there is nothing to do then.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Writes the next frame to send and says how long it is: 60 to 1,518 bytes, with a tag if its VLAN has one,
    /// without FCS. Frames longer than `out` are lost.
    pub fn next_frame(&mut self, out: &mut [u8]) -> Option<usize> {
        self.outbox.take_frame(out, &mut self.counters)
    }

    /// What has happened next.
    pub fn next_event(&mut self) -> Option<Event> {
        self.outbox.take_event()
    }

    /// MACs of the groups whose frames we have to receive, each once: all nodes, and those in which our addresses are
    /// asked for. They change with [`add`](Self::add) and [`remove`](Self::remove) only.
    pub fn groups(&self) -> impl Iterator<Item = Mac> + use<> {
        let asked = self.all_groups().into_iter().map(|(_, group)| group);
        let mut groups: BTreeSet<Mac> = asked.map(group_mac).collect();
        if !groups.is_empty() {
            groups.insert(group_mac(ALL_NODES));
        }
        groups.into_iter()
    }

    /// Our addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Interface> {
        self.own.iter().map(|own| own.interface)
    }

    /// All neighbours: those the caller has said, then those found, by VLAN and address.
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

    /// What happened, in numbers.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.neighbours = self.table.len() as u64;
        counters
    }

    /// Time goes on.
    pub(crate) fn pass(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    pub(crate) fn own(&self, address: IpAddr) -> Option<&Own> {
        self.own.iter().find(|own| own.address() == address)
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.outbox.tell(event, &mut self.counters);
    }

    /// Sends a frame of our own, if the link is up.
    pub(crate) fn send(&mut self, frame: Vec<u8>) {
        if self.up {
            self.outbox.send(frame, &mut self.counters);
        }
    }

    /// Steps an entry, if there is one, and tells what follows. `why`: the reason if it has no MAC any more. `false`:
    /// nothing follows.
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
            self.tell(Event::Unreachable {
                address: key.address,
                vlan: key.vlan,
                reason: why,
            });
        }
        true
    }

    /// Something is due.
    pub(crate) fn wake_at(&mut self, due: Option<Duration>) {
        self.due = [self.due, due].into_iter().flatten().min();
    }

    /// Neighbours in a VLAN and a family in which no address of ours is left are forgotten.
    pub(crate) fn forget_unserved(&mut self) {
        let served: BTreeSet<(Option<u16>, bool)> = self
            .own
            .iter()
            .filter(|own| own.claim() != crate::own::Claim::Duplicate)
            .map(|own| (own.interface.vlan_id(), own.address().is_ipv4()))
            .collect();
        for key in self.table.keys(|_| true) {
            if !served.contains(&(key.vlan, key.address.is_ipv4())) {
                self.forget(key);
            }
        }
    }

    /// An entry goes; who waits for it is told.
    pub(crate) fn forget(&mut self, key: Key) {
        let Some(entry) = self.table.get(key) else {
            return;
        };
        let waits = entry.state() == crate::State::Incomplete;
        self.table.remove(key);
        if waits {
            self.tell(Event::Unreachable {
                address: key.address,
                vlan: key.vlan,
                reason: Reason::Forgotten,
            });
        }
    }

    /// The groups in which our addresses are asked for, with the VLAN of each; each once.
    pub(crate) fn all_groups(&self) -> BTreeSet<(Option<u16>, Ipv6Addr)> {
        let own = self.own.iter().filter_map(|own| match own.address() {
            IpAddr::V6(address) => Some((own.interface.vlan_id(), solicited_node(address))),
            IpAddr::V4(_) => None,
        });
        own.collect()
    }

    /// We listen for an address from now on, or no more; called while it is none of ours. What another of our addresses
    /// needs goes on.
    fn change_group(&mut self, vlan: Option<u16>, address: Ipv6Addr, record: Record) {
        let group = solicited_node(address);
        if self.up && !self.all_groups().contains(&(vlan, group)) {
            let membership = self.memberships.entry(vlan).or_default();
            membership.change(group, record, self.now);
        }
    }
}
