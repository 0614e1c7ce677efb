//! Received frames.
//!
//! A frame can have four effects:
//! - We reply to the frame.
//! - The frame completes or confirms an entry, or answers our echo request.
//! - The frame makes us probe a known MAC.
//! - The frame shows that another node claims one of our addresses. We lose the address if detection is running;
//!   otherwise we defend it.
//!
//! A frame never creates an entry. Each effect is bounded: replies and echo replies by a rate and by their quota of the
//! queue, requests by one per second and neighbour, the defence of an address by one announcement in ten seconds.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::address::{ALL_NODES, BROADCAST, Mac, group_mac, is_station, solicited_node};
use crate::config::RETRANS_TIMER;
use crate::counters::Refusal;
use crate::event::{Event, Reason};
use crate::neighbours::{Echoing, Neighbours};
use crate::outbox::Share;
use crate::own::{Claim, ConflictAction, Own};
use crate::route::ECHO_DATA;
use crate::state::{State, Step};
use crate::table::Key;
use crate::wire::ethernet::{self, Link};
use crate::wire::{self, Advertisement, Arp, Echo, Message, Query, Solicitation, arp, ndisc};

type Taken = Result<(), Refusal>;

impl Neighbours {
    /// Handles a received Ethernet frame, without FCS. The frame may contain any bytes.
    pub fn received(&mut self, frame: &[u8], now: Duration) {
        self.pass(now);
        self.counters.received += 1;
        if let Err(why) = self.take(frame) {
            self.counters.refuse(why);
        }
    }

    fn take(&mut self, frame: &[u8]) -> Taken {
        if !self.up {
            return Err(Refusal::LinkDown);
        }
        let (link, payload) = ethernet::parse(frame)?;
        if !is_station(link.source) {
            return Err(Refusal::Sender);
        }
        if link.source == self.config.mac {
            return Err(Refusal::Ourselves);
        }
        if !self
            .own
            .iter()
            .any(|own| own.interface.vlan_id() == link.vlan)
        {
            return Err(Refusal::Vlan);
        }
        if !self.is_for_us(&link) {
            return Err(Refusal::Elsewhere);
        }
        match wire::parse(&link, payload)? {
            Message::Arp(arp) => self.handle_arp(&link, arp),
            Message::Solicitation(solicitation) => self.handle_solicitation(&link, solicitation),
            Message::Advertisement(advertisement) => {
                self.handle_advertisement(&link, advertisement)
            }
            Message::Echo(echo) => self.handle_echo(&link, &echo),
            Message::EchoReply(reply) => self.handle_echo_reply(&link, &reply),
            Message::Query(query) => self.handle_query(&link, query),
        }
    }

    /// Returns whether a frame is for our MAC, for broadcast, or for a group that we have joined.
    fn is_for_us(&self, link: &Link) -> bool {
        let to = link.destination;
        let in_group = |own: &Own| match own.address() {
            IpAddr::V6(address) => {
                to == group_mac(ALL_NODES) || to == group_mac(solicited_node(address))
            }
            IpAddr::V4(_) => false,
        };
        let mut in_vlan = self
            .own
            .iter()
            .filter(|own| own.interface.vlan_id() == link.vlan);
        to == self.config.mac || to == BROADCAST || in_vlan.any(in_group)
    }

    fn handle_arp(&mut self, link: &Link, arp: Arp) -> Taken {
        match arp.reply {
            true => self.counters.arp_replies += 1,
            false => self.counters.arp_requests += 1,
        }
        if arp.sender_mac == self.config.mac {
            return Err(Refusal::Ourselves);
        }
        let target = self.own_in(link, arp.target.into());
        // RFC 5227, 2.1.1: another node's probe for an address that we are probing for is a conflict, too.
        let is_probe_conflict =
            |at: &usize| arp.sender.is_unspecified() && self.own[*at].claim() == Claim::Tentative;
        let claimed = self.own_in(link, arp.sender.into());
        if let Some(at) = claimed.or(target.filter(is_probe_conflict)) {
            self.conflict(at, arp.sender_mac);
            return Ok(());
        }
        let serving = target.filter(|&at| self.own[at].claim().serves());
        if let Some(at) = serving.filter(|_| !arp.reply) {
            let answer = arp::Out {
                reply: true,
                sender: arp.target,
                to: Some(arp.sender_mac),
                target: arp.sender,
            };
            let vlan = self.own[at].interface.vlan;
            self.answer_with(|mac| answer.emit(mac, vlan));
        }
        let answers = arp.reply && serving.is_some() && link.destination == self.config.mac;
        let key = Key {
            vlan: link.vlan,
            address: arp.sender.into(),
        };
        match self.handle_named_mac(key, arp.sender_mac, answers) {
            // RFC 826: a request for our address is answered even if its sender has no entry in the table.
            Err(_) if !arp.reply && serving.is_some() => Ok(()),
            Err(_) if !arp.reply => Err(Refusal::Address),
            taken => taken,
        }
    }

    fn handle_solicitation(&mut self, link: &Link, solicitation: Solicitation) -> Taken {
        self.counters.solicitations += 1;
        let Solicitation {
            source,
            target,
            mac,
        } = solicitation;
        if mac == Some(self.config.mac) || self.own_in(link, source.into()).is_some() {
            return Err(Refusal::Ourselves);
        }
        let detects = source.is_unspecified();
        if let (Some(mac), false) = (mac, detects) {
            let key = Key {
                vlan: link.vlan,
                address: source.into(),
            };
            // RFC 4861, 7.2.3: a solicitation updates an existing entry. We create no entry for its sender.
            let _ = self.handle_named_mac(key, mac, false);
        }
        let at = self.own_in(link, target.into()).ok_or(Refusal::Address)?;
        let overrides = match (self.own[at].claim(), detects) {
            (Claim::Tentative | Claim::Optimistic, true) => {
                // Both nodes run detection, so neither may have the address (RFC 4862, 5.4.3; RFC 4429, 3.3).
                self.conflict(at, link.source);
                return Ok(());
            }
            (Claim::Tentative | Claim::Duplicate, _) => return Err(Refusal::Address),
            // RFC 4429, 3.3: our answer must not override another node's entry in a neighbour cache.
            (Claim::Optimistic, false) => false,
            (Claim::Preferred, _) => true,
        };
        // A static entry for the asking node takes precedence over the MAC in the message.
        let fixed = self.statics.get(&IpAddr::V6(source)).copied();
        let asker = (!detects).then(|| ndisc::Solicitor {
            address: source,
            mac: fixed.or(mac).unwrap_or(link.source),
        });
        let vlan = self.own[at].interface.vlan;
        self.answer_with(|mac| ndisc::say(target, asker, overrides, mac, vlan));
        Ok(())
    }

    fn handle_advertisement(&mut self, link: &Link, advertisement: Advertisement) -> Taken {
        self.counters.advertisements += 1;
        let target = IpAddr::V6(advertisement.target);
        if advertisement.mac == Some(self.config.mac) {
            return Err(Refusal::Ourselves);
        }
        if let Some(at) = self.own_in(link, target) {
            self.conflict(at, advertisement.mac.unwrap_or(link.source));
            return Ok(());
        }
        let key = Key {
            vlan: link.vlan,
            address: target,
        };
        let is_ours = self
            .own_in(link, advertisement.destination.into())
            .is_some();
        let answers = advertisement.solicited && is_ours && link.destination == self.config.mac;
        // An advertisement without the MAC option is about the MAC to which we sent the request (RFC 4861, 7.2.5).
        let known = self.table.get(key).and_then(|entry| entry.usable_mac());
        let mac = advertisement.mac.or(known).ok_or(Refusal::Unasked)?;
        self.handle_named_mac(key, mac, answers)
    }

    fn handle_echo(&mut self, link: &Link, echo: &Echo<'_>) -> Taken {
        self.counters.echo_requests += 1;
        let at = self.own_in(link, echo.destination);
        let at = at.filter(|&at| self.own[at].claim().serves());
        let at = at.ok_or(Refusal::Address)?;
        if link.destination != self.config.mac {
            return Err(Refusal::Elsewhere);
        }
        if self.own_in(link, echo.source).is_some() {
            return Err(Refusal::Ourselves);
        }
        if !self.outbox.has_space(Share::Echo) || self.echoes.take(self.now).is_err() {
            self.counters.unanswered += 1;
            return Ok(());
        }
        let vlan = self.own[at].interface.vlan;
        match echo.answer(self.config.mac, link.source, vlan) {
            Some(frame) => {
                self.counters.echoed += 1;
                self.send(frame);
            }
            None => self.counters.unanswered += 1,
        }
        Ok(())
    }

    /// Handles the reply to our outstanding echo request. A second reply to the same request is refused.
    fn handle_echo_reply(&mut self, link: &Link, reply: &Echo<'_>) -> Taken {
        self.counters.echo_replies += 1;
        if link.destination != self.config.mac {
            return Err(Refusal::Elsewhere);
        }
        let answered = Echoing {
            source: reply.destination,
            destination: reply.source,
            identifier: reply.identifier,
            sequence: reply.sequence,
        };
        let asked = self.echo == Some(answered) && reply.data == ECHO_DATA;
        if !asked || self.own_in(link, reply.destination).is_none() {
            return Err(Refusal::Unasked);
        }
        self.echo = None;
        self.push_event(Event::Echoed {
            address: reply.source,
            sequence: reply.sequence,
            bytes: reply.data.len(),
        });
        Ok(())
    }

    fn handle_query(&mut self, link: &Link, query: Query) -> Taken {
        self.counters.queries += 1;
        let asked = |group: Ipv6Addr| query.group.is_unspecified() || query.group == group;
        let concerns = |own: &Own| match own.address() {
            IpAddr::V6(address) => {
                own.interface.vlan_id() == link.vlan && asked(solicited_node(address))
            }
            IpAddr::V4(_) => false,
        };
        if !self.own.iter().any(concerns) {
            return Err(Refusal::Address);
        }
        let membership = self.memberships.entry(link.vlan).or_default();
        membership.query(query.within, self.now, &mut self.draw);
        let due = membership.due();
        self.wake_at(due);
        Ok(())
    }

    /// Returns the index of `address` among our addresses in the VLAN of the frame.
    fn own_in(&self, link: &Link, address: IpAddr) -> Option<usize> {
        let is_it = |own: &Own| own.address() == address && own.interface.vlan_id() == link.vlan;
        self.own.iter().position(is_it)
    }

    /// Sends a reply to a request for one of our addresses, unless the rate limit or the queue's quota is used up.
    fn answer_with(&mut self, emit: impl FnOnce(Mac) -> Vec<u8>) {
        if self.outbox.has_space(Share::Answer) && self.answers.take(self.now).is_ok() {
            self.counters.answered += 1;
            self.send(emit(self.config.mac));
        } else {
            self.counters.unanswered += 1;
        }
    }

    /// Handles another node's use of one of our addresses. `mac` is that node's MAC.
    fn conflict(&mut self, at: usize, mac: Mac) {
        self.counters.conflicts += 1;
        let interface = self.own[at].interface;
        let verdict = self.own[at].conflict(self.now);
        if verdict == ConflictAction::Nothing {
            return;
        }
        self.push_event(Event::Duplicate {
            address: interface.address,
            vlan: interface.vlan_id(),
            mac,
            detecting: verdict == ConflictAction::Lost,
        });
        match verdict {
            ConflictAction::Defend => {
                self.counters.defended += 1;
                self.announce(interface.address, interface.vlan);
            }
            ConflictAction::Lost | ConflictAction::Nothing => self.drop_unserved(),
        }
    }

    /// Handles a message that names a neighbour's MAC. `answers` is true if the message answers a request of ours,
    /// false if it is unsolicited. The sender may be another node than the neighbour.
    fn handle_named_mac(&mut self, key: Key, mac: Mac, answers: bool) -> Taken {
        if self.statics.contains_key(&key.address) {
            return Err(Refusal::Unasked);
        }
        let entry = self.table.get_mut(key).ok_or(Refusal::Unasked)?;
        let known = entry.mac;
        match entry.state() {
            State::Incomplete => {
                entry.mac = Some(mac);
                let step = if answers {
                    Step::Answered
                } else {
                    Step::Hinted
                };
                self.step(key, step, Reason::NoAnswer);
                self.report_resolved(key, known, mac);
            }
            State::Unreachable => {
                self.step(key, Step::Hinted, Reason::NoAnswer);
            }
            State::Reachable | State::Stale | State::Delay | State::Probe => {
                if known != Some(mac) {
                    self.contradicted(key);
                } else if answers {
                    // An unsolicited message confirms nothing, so no step is applied. `Answered` changes only `Probe`.
                    self.step(key, Step::Answered, Reason::NoAnswer);
                }
            }
            State::Absent => {}
        }
        Ok(())
    }

    /// Handles a message that names another MAC than the known MAC of the neighbour. Probes the known MAC: now, or when
    /// the neighbour has been reachable for a second.
    fn contradicted(&mut self, key: Key) {
        self.counters.contradicted += 1;
        let Some(entry) = self.table.get_mut(key) else {
            return;
        };
        let soonest = entry.since + RETRANS_TIMER;
        if entry.state() == State::Reachable && self.now < soonest {
            entry.suspect = true;
            entry.due = Some(soonest);
            self.wake_at(Some(soonest));
        } else {
            self.step(key, Step::Contradicted, Reason::NoAnswer);
            self.ask_if_due(key);
        }
    }

    /// Reports the MAC of a neighbour that we resolved. If the MAC differs from the known one, reports that as well.
    fn report_resolved(&mut self, key: Key, known: Option<Mac>, mac: Mac) {
        let Key { vlan, address } = key;
        if let Some(old) = known.filter(|&old| old != mac) {
            self.counters.moved += 1;
            self.push_event(Event::Moved {
                address,
                vlan,
                old,
                new: mac,
            });
        }
        self.push_event(Event::Resolved { address, vlan, mac });
    }
}
