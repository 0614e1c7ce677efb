//! Timers of requests, of detection and announcements, and of multicast reports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::address::Vlan;
use crate::config::{MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT, RETRANS_TIMER};
use crate::event::{Event, Reason};
use crate::membership::Membership;
use crate::neighbours::Neighbours;
use crate::own::{Claim, DueAction};
use crate::state::{State, Step};
use crate::table::Key;
use crate::wire::{arp, mld, ndisc};

impl Neighbours {
    /// Runs all actions that are due, and computes the time of the next timer.
    pub(crate) fn run_timers(&mut self) {
        // Groups are reported before duplicate detection starts, so that a snooping switch forwards the answers to us
        // (RFC 4862, 5.4.2).
        let vlans: Vec<Option<u16>> = self.memberships.keys().copied().collect();
        for vlan in vlans {
            self.report_if_due(vlan);
        }
        for at in 0..self.own.len() {
            while let Some(todo) = self.own[at].next_action(self.now, &mut self.draw) {
                self.act(at, todo);
            }
        }
        for key in self.table.due_at(self.now) {
            self.ask_if_due(key);
        }
        self.memberships
            .retain(|_, membership| membership.due().is_some());
        self.due = self.first_timer();
    }

    /// Returns the time of the first timer.
    pub(crate) fn first_timer(&self) -> Option<Duration> {
        let own = self.own.iter().filter_map(|own| own.due);
        let reports = self.memberships.values().filter_map(Membership::due);
        own.chain(reports).chain(self.table.due()).min()
    }

    /// Sends the request to a neighbour, or applies the step that is due, until nothing is due for this neighbour.
    pub(crate) fn ask_if_due(&mut self, key: Key) {
        while let Some(entry) = self.table.get(key)
            && entry.due.is_some_and(|due| due <= self.now)
        {
            let most = match entry.state() {
                State::Incomplete => MAX_MULTICAST_SOLICIT,
                State::Probe => MAX_UNICAST_SOLICIT,
                State::Absent
                | State::Reachable
                | State::Stale
                | State::Delay
                | State::Unreachable => 0,
            };
            if entry.suspect {
                self.step(key, Step::Contradicted, Reason::NoAnswer);
            } else if entry.tries >= most {
                self.step(key, Step::Elapsed, Reason::NoAnswer);
            } else {
                self.ask(key);
            }
        }
    }

    /// Sends one request: by unicast to a neighbour with a usable MAC, otherwise to all.
    fn ask(&mut self, key: Key) {
        let Some(entry) = self.table.get(key) else {
            return;
        };
        let (to, stranger) = (entry.usable_mac(), entry.stranger);
        let Some((source, vlan)) = self
            .asker(key, entry.asker)
            .map(|own| (own.address(), own.interface.vlan))
        else {
            // We have no preferred address yet, and an optimistic address must not send requests (RFC 4429, 3.2). The
            // request waits until detection has passed.
            self.reschedule(key, None);
            return;
        };
        let budget = match stranger {
            true => &mut self.asks_of_strangers,
            false => &mut self.asks,
        };
        if let Err(later) = budget.take(self.now) {
            self.counters.asks_put_off += 1;
            self.reschedule(key, Some(later));
            return;
        }
        if let Some(entry) = self.table.get_mut(key) {
            entry.tries += 1;
        }
        self.reschedule(key, Some(self.now + RETRANS_TIMER));
        let mac = self.config.mac;
        let frame = match (source, key.address) {
            (IpAddr::V4(sender), IpAddr::V4(target)) => {
                let ask = arp::Out {
                    reply: false,
                    sender,
                    to,
                    target,
                };
                ask.emit(mac, vlan)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => ndisc::ask(source, target, to, mac, vlan),
            _ => unreachable!("source and target of a request are of the same family"),
        };
        match to {
            Some(_) => self.counters.asked_one += 1,
            None => self.counters.asked_all += 1,
        }
        self.send(frame);
    }

    fn reschedule(&mut self, key: Key, due: Option<Duration>) {
        if let Some(entry) = self.table.get_mut(key) {
            entry.due = due;
        }
        self.wake_at(due);
    }

    /// Carries out an action that is due for one of our addresses.
    fn act(&mut self, at: usize, todo: DueAction) {
        let interface = self.own[at].interface;
        let mac = self.config.mac;
        match todo {
            DueAction::Probe => {
                let frame = match interface.address {
                    // RFC 5227, 2.1.1: the sender is 0.0.0.0, so that the probe changes no neighbour cache.
                    IpAddr::V4(target) => arp::Out {
                        reply: false,
                        sender: Ipv4Addr::UNSPECIFIED,
                        to: None,
                        target,
                    }
                    .emit(mac, interface.vlan),
                    IpAddr::V6(target) => {
                        ndisc::ask(Ipv6Addr::UNSPECIFIED, target, None, mac, interface.vlan)
                    }
                };
                self.counters.probed += 1;
                self.send(frame);
            }
            DueAction::Pass => {
                self.wake_waiting_requests(interface.vlan_id(), interface.address.is_ipv4())
            }
            DueAction::Announce { first } => {
                if first {
                    self.push_event(Event::Announced {
                        address: interface.address,
                        vlan: interface.vlan_id(),
                    });
                }
                self.counters.announced += 1;
                self.announce(interface.address, interface.vlan);
            }
        }
    }

    /// Announces that an address is ours: for IPv4, by an ARP request for the address (RFC 5227, 2.3); for IPv6, by an
    /// advertisement to all nodes with the override flag (RFC 4861, 7.2.6).
    pub(crate) fn announce(&mut self, address: IpAddr, vlan: Option<Vlan>) {
        let mac = self.config.mac;
        let frame = match address {
            IpAddr::V4(address) => arp::Out {
                reply: false,
                sender: address,
                to: None,
                target: address,
            }
            .emit(mac, vlan),
            IpAddr::V6(address) => ndisc::say(address, None, true, mac, vlan),
        };
        self.send(frame);
    }

    /// Makes those requests due that have waited for one of our addresses in this VLAN to become usable.
    fn wake_waiting_requests(&mut self, vlan: Option<u16>, v4: bool) {
        let now = self.now;
        for (key, entry) in self.table.iter_mut() {
            let waits = entry.state().is_asking() && entry.due.is_none();
            if waits && key.vlan == vlan && key.address.is_ipv4() == v4 {
                entry.due = Some(now);
            }
        }
    }

    /// Reports our groups to the routers and switches of a VLAN, if that is due.
    fn report_if_due(&mut self, vlan: Option<u16>) {
        let groups = self.all_groups().into_iter();
        let groups = groups.filter(|&(at, _)| at == vlan).map(|(_, group)| group);
        let Some(membership) = self.memberships.get_mut(&vlan) else {
            return;
        };
        let records = membership.due_records(groups, self.now, &mut self.draw);
        if records.is_empty() {
            return;
        }
        // RFC 3810, 5.2.13: the source is a preferred link-local address of ours, or the unspecified address.
        let in_vlan = self
            .own
            .iter()
            .filter(|own| own.interface.vlan_id() == vlan);
        let mut ours = in_vlan
            .clone()
            .filter(|own| own.claim() == Claim::Preferred);
        let source = ours.find_map(|own| match own.address() {
            IpAddr::V6(address) => address.is_unicast_link_local().then_some(address),
            IpAddr::V4(_) => None,
        });
        let tag = in_vlan.clone().find_map(|own| own.interface.vlan);
        // If the last address of a VLAN was removed, its priority is no longer known, and the report has priority 0.
        let tag = tag.or(vlan.map(|id| Vlan { id, priority: 0 }));
        let source = source.unwrap_or(Ipv6Addr::UNSPECIFIED);
        for records in records.chunks(mld::MOST_RECORDS) {
            let frame = mld::report(source, records, self.config.mac, tag);
            self.counters.reported += 1;
            self.send(frame);
        }
    }
}
