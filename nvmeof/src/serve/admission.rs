//! Admission: the share of each party in a worker.
//!
//! All connections of a worker take their receives from one shared queue, and the adapter gives each of them whatever
//! receive is free. A command keeps its place from its receive until its response has left, and a host can delay
//! that: it does not receive responses, or does not let its memory be read. So places are covered by credit: the
//! credits of all connections together never exceed the number of places.
//!
//! ```text
//!   places = 2 x ios               queues of hosts: Connect has made them queues of a subsystem, and a host with a
//!                                  key has authenticated
//!          + GUESTS x GREETING     guests: all other connections. No Connect yet, discovery, not authenticated
//!          + LOAN                  lent to guests beyond their greeting
//! ```
//!
//! A host's queue reserves its entries of `ios` from the time it is a host's (above) until its last command has
//! ended. It holds at most twice its entries: a command that is not answered for each entry, and as many again whose
//! answers are posted and not known to have left. The worker posts no more answers than entries before one of them
//! has left, so more commands than entries and leaving answers are more than a host may send
//! ([`super::queue::Queue::is_overrun`]). A queue whose entries do not fit is refused: by the rejection "no
//! resources" where the connection manager asks, by Controller Busy in answer to Connect. It is never granted fewer
//! entries: Linux does not look at CRQSIZE. Set Features (Number of Queues) grants as many queues of the longest size
//! as fit, so that a stock host asks for what there is.
//!
//! A guest can always have [`GREETING`] commands here, which is what Connect, authentication and discovery need one
//! after the other. It may borrow more as long as all guests together have borrowed less than [`LOAN`]; the command
//! that finds the loan used up ends its connection. Beyond [`GUESTS_WELCOME`] guests, or [`GUESTS_OF_SOURCE`] of one
//! address, the oldest of the address that has the most ends for the newcomer. Nothing that a guest sends makes it
//! younger, so no guest keeps a place for ever that another one wants.
//!
//! A party that holds many places meets one rule in each pool ([`is_fair`]): it may not have more than it leaves to all
//! others. So each leaves half of what it found. A party's first pieces need only be there. The party is the host's
//! name where the subsystem lists it or it has a key, and its address where any host may connect, since names cost
//! nothing there.
//!
//! Credit is about what is kept. A host that sends faster than the worker looks uses up receives beyond its credit for
//! one turn of the worker; others are told to wait meanwhile (RNR), for which their connections have patience
//! ([`super::connection`]).
//!
//! An event request needs its name alone: its place goes back at once, and its answer has a place apart, one for each
//! admin queue, which the adapter never receives into. The first of a fused pair keeps its place, which is one of its
//! own queue's: there is one for each queue.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::io::{Owner, QueueId};
use crate::model::{Party, QUEUE_ENTRIES, is_fair};

/// Guests beyond which the next one ends another: one host may open a connection for each of its queues before it sends
/// the first Connect, as Linux does, and there are other hosts.
pub(super) const GUESTS_WELCOME: usize = 192;
/// The same for guests of one address: a connection for each I/O queue of a controller, whose admin queue is a host's
/// by then.
pub(super) const GUESTS_OF_SOURCE: usize = 128;
/// Guests in all, those that are about to end included; beyond that connections are rejected.
pub(super) const GUESTS: u32 = 256;
/// Commands that each guest can have pending: one that is executed, one whose response leaves, and the same once more
/// for hosts that send without waiting.
pub(super) const GREETING: u32 = 4;
/// Commands of all guests beyond that.
pub(super) const LOAN: u32 = 256;
/// Entries that a party gets whenever they are free: an admin queue and one I/O queue of Linux.
const FIRST_ENTRIES: u32 = 160;

/// Number of places with a receive.
pub(super) const fn places(ios: u32) -> u32 {
    2 * ios + GUESTS * GREETING + LOAN
}

/// Number of places for answers to event requests: one for each possible admin queue, of at least two entries each.
pub(super) const fn event_places(ios: u32) -> u32 {
    ios / 2 + GUESTS
}

/// The most `ios` for which there are receives.
pub(super) const fn most_ios(receives: u32) -> u32 {
    receives.saturating_sub(places(0)) / 2
}

/// Shares that a worker has given out, for other threads to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// Entries that hosts' queues may have.
    pub entries: u32,
    /// Entries that are left of them.
    pub entries_left: u32,
    /// Number of hosts' queues.
    pub host_queues: u32,
    /// Number of guests: connections without Connect, discovery, and queues that have not authenticated.
    pub guests: u32,
    /// Number of queues of hosts that were refused because no entries were left.
    pub refused_hosts: u64,
    /// Number of guests that were rejected.
    pub refused_guests: u64,
    /// Number of guests that ended to make room for others.
    pub displaced_guests: u64,
    /// Number of connections that ended because they held more commands than they may.
    pub overdrawn: u64,
}

/// The share of a party.
#[derive(Debug)]
struct Entry {
    key: (bool, Party),
    /// Number of queues that name it.
    queues: u32,
    /// Number of entries that those have reserved.
    entries: u32,
}

/// Class of a queue, for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Guest,
    /// A host's, with the entries that it has reserved.
    Host(u32),
}

/// The share of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub class: Class,
    /// The party of its address, among guests.
    source: u32,
    /// The party that it is counted for now.
    pub owner: Owner,
}

/// The parties, and the room that is left.
#[derive(Debug)]
pub(super) struct Admission {
    pub room: Room,
    /// Number of places that guests have beyond their greeting.
    borrowed: u32,
    parties: Vec<Option<Entry>>,
    by_key: BTreeMap<(bool, Party), u32>,
}

impl Admission {
    pub(super) fn new(ios: u32) -> Self {
        let room = Room {
            entries: ios,
            entries_left: ios,
            ..Room::default()
        };
        Self {
            room,
            borrowed: 0,
            parties: Vec::new(),
            by_key: BTreeMap::new(),
        }
    }

    fn join(&mut self, key: (bool, Party)) -> u32 {
        let id = self.by_key.get(&key).copied().unwrap_or_else(|| {
            let free = self.parties.iter().position(Option::is_none);
            let at = free.unwrap_or_else(|| {
                self.parties.push(None);
                self.parties.len() - 1
            });
            self.parties[at] = Some(Entry {
                key: key.clone(),
                queues: 0,
                entries: 0,
            });
            // There are no more of them than queues.
            let id = u32::try_from(at).unwrap_or(u32::MAX);
            self.by_key.insert(key, id);
            id
        });
        if let Some(entry) = self.entry(id) {
            entry.queues += 1;
        }
        id
    }

    fn leave(&mut self, id: u32) {
        if let Some(entry) = self.entry(id) {
            entry.queues -= 1;
            if entry.queues == 0 {
                let key = entry.key.clone();
                self.by_key.remove(&key);
                self.parties[id as usize] = None; // CAST: widening.
            }
        }
    }

    fn entry(&mut self, id: u32) -> Option<&mut Entry> {
        self.parties.get_mut(id as usize)?.as_mut() // CAST: widening.
    }

    /// Returns whether there is room for a host's queue of this many entries; the host is not known yet.
    pub(super) const fn has_entries(&self, entries: u32) -> bool {
        entries <= self.room.entries_left
    }

    /// Admits a connection from an address as a guest; `None` if there are too many.
    pub(super) fn greet(&mut self, source: IpAddr) -> Option<Share> {
        if self.room.guests >= GUESTS {
            self.room.refused_guests += 1;
            return None;
        }
        self.room.guests += 1;
        let id = self.join((true, Party::Source(source)));
        Some(Share {
            class: Class::Guest,
            source: id,
            owner: Owner { id, is_guest: true },
        })
    }

    /// Makes a guest that holds `held` places a queue of a host. Returns false if the entries are not left, or the
    /// party has its share already.
    pub(super) fn admit(
        &mut self,
        share: &mut Share,
        held: u32,
        party: &Party,
        entries: u32,
    ) -> bool {
        if share.class != Class::Guest {
            return true;
        }
        let id = self.join((false, party.clone()));
        let left = self.room.entries_left;
        let own = self.entry(id).map_or(0, |entry| entry.entries);
        if !is_fair(own, entries, left, FIRST_ENTRIES) {
            self.leave(id);
            self.room.refused_hosts += 1;
            return false;
        }
        if let Some(entry) = self.entry(id) {
            entry.entries += entries;
        }
        self.borrowed -= held.saturating_sub(GREETING);
        self.room.entries_left -= entries;
        self.room.guests -= 1;
        self.room.host_queues += 1;
        share.class = Class::Host(entries);
        share.owner = Owner {
            id,
            is_guest: false,
        };
        true
    }

    /// The last command of a queue has ended.
    pub(super) fn dismiss(&mut self, share: &Share) {
        match share.class {
            Class::Guest => self.room.guests -= 1,
            Class::Host(entries) => {
                self.room.entries_left += entries;
                self.room.host_queues -= 1;
                if let Some(entry) = self.entry(share.owner.id) {
                    entry.entries -= entries;
                }
                self.leave(share.owner.id);
            }
        }
        self.leave(share.source);
    }

    /// A guest has one more place, and `held` now. Returns false if guests have more than they may.
    pub(super) const fn borrow(&mut self, held: u32) -> bool {
        if held > GREETING {
            self.borrowed += 1;
        }
        held <= GREETING || self.borrowed <= LOAN
    }

    /// A guest that had `held` places gives one back.
    pub(super) const fn give_back(&mut self, held: u32) {
        if held > GREETING {
            self.borrowed -= 1;
        }
    }

    /// Number of I/O queues of the longest size that a party could still have here. `left`: entries that are left at
    /// another worker, where it has as much as here.
    pub(super) fn queues_left(&self, owner: Owner, left: Option<u32>) -> u32 {
        let left = left.unwrap_or(self.room.entries_left);
        let there = self.parties.get(owner.id as usize); // CAST: widening.
        let own = there.and_then(Option::as_ref).map_or(0, |one| one.entries);
        let longest = u32::from(QUEUE_ENTRIES);
        let fits = |queues: &u32| is_fair(own, queues * longest, left, FIRST_ENTRIES);
        let most = left / longest;
        (1..=most).rev().find(fits).unwrap_or(0)
    }

    /// Returns the guest that ends for a newcomer; `None` if there is room. `guests` are those that stay, the newcomer
    /// included: each with its address and the time of its arrival.
    pub(super) fn displaced<T: Copy + Ord>(
        guests: &[(QueueId, u32, T)],
        newcomer: &Share,
    ) -> Option<QueueId> {
        let mut counts = BTreeMap::<u32, usize>::new();
        for (_, source, _) in guests {
            *counts.entry(*source).or_default() += 1;
        }
        let own = counts.get(&newcomer.source).copied().unwrap_or(0);
        let source = if own > GUESTS_OF_SOURCE {
            newcomer.source
        } else if guests.len() > GUESTS_WELCOME {
            let most = counts.iter().max_by_key(|(_, count)| **count);
            *most?.0
        } else {
            return None;
        };
        let theirs = guests.iter().filter(|(_, of, _)| *of == source);
        theirs.min_by_key(|(_, _, since)| *since).map(|one| one.0)
    }
}

impl Share {
    pub(super) const fn source(&self) -> u32 {
        self.source
    }

    pub(super) const fn is_guest(&self) -> bool {
        matches!(self.class, Class::Guest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_id(place: u32) -> QueueId {
        QueueId {
            place,
            generation: 0,
        }
    }

    fn source(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn host(number: u8) -> Party {
        let name = format!("nqn.2026-11.test:host{number}");
        Party::Host(name.parse().expect("a name"))
    }

    fn queue(there: &mut Admission, party: &Party, entries: u32) -> Option<Share> {
        let mut share = there.greet(source(1)).expect("a guest");
        let admitted = there.admit(&mut share, 1, party, entries);
        if !admitted {
            there.dismiss(&share);
        }
        admitted.then_some(share)
    }

    /// Credits of all connections are covered by places, in whatever order they come.
    #[test]
    fn credits_are_never_more_than_places_and_all_come_back() {
        let mut there = Admission::new(1000);
        let mut shares = Vec::new();
        for number in 0..=u8::MAX {
            let entries = 2 + u32::from(number) % 127;
            shares.extend(queue(&mut there, &host(number % 7), entries));
            shares.extend(there.greet(source(number)));
            let credit = |share: &Share| match share.class {
                Class::Guest => GREETING,
                Class::Host(entries) => 2 * entries,
            };
            let all: u32 = shares.iter().map(credit).sum();
            assert!(all + LOAN <= places(1000), "{all}");
        }
        assert!(there.room.refused_hosts > 0);
        for share in &shares {
            there.dismiss(share);
        }
        let room = Room {
            refused_hosts: there.room.refused_hosts,
            refused_guests: there.room.refused_guests,
            ..Admission::new(1000).room
        };
        assert_eq!(there.room, room);
        assert!(there.by_key.is_empty() && there.borrowed == 0);
    }

    #[test]
    fn a_host_leaves_as_much_as_it_has_and_a_newcomer_finds_its_first_queues() {
        let mut there = Admission::new(2048);
        let mut own = 0;
        while queue(&mut there, &host(1), 128).is_some() {
            own += 128;
        }
        assert_eq!((own, there.room.entries_left), (1024, 1024));
        for number in 2..8 {
            for entries in [32, 128] {
                assert!(
                    queue(&mut there, &host(number), entries).is_some(),
                    "{number}: {entries} of {:?}",
                    there.room
                );
            }
        }
        assert!(queue(&mut there, &host(8), 128).is_none());
        assert_eq!(there.room.refused_hosts, 2);
    }

    #[test]
    fn what_set_features_grants_is_what_is_admitted() {
        let mut there = Admission::new(2048);
        let admin = queue(&mut there, &host(1), 32).expect("an admin queue");
        let granted = there.queues_left(admin.owner, None);
        assert_eq!(
            granted, 7,
            "1,024 entries, of which 32 are the admin queue's"
        );
        for _ in 0..granted {
            assert!(queue(&mut there, &host(1), 128).is_some());
        }
        assert!(queue(&mut there, &host(1), 128).is_none());
        assert_eq!(there.queues_left(admin.owner, None), 0);
    }

    #[test]
    fn guests_borrow_as_much_as_the_loan_and_their_greeting_is_always_there() {
        let mut there = Admission::new(2);
        let mut borrowed = 0;
        while there.borrow(GREETING + 1 + borrowed) {
            borrowed += 1;
        }
        assert_eq!(borrowed, LOAN);
        for held in 1..=GREETING {
            assert!(there.borrow(held));
        }
        for held in (GREETING + 1..=GREETING + 1 + LOAN).rev() {
            there.give_back(held);
        }
        assert_eq!(there.borrowed, 0);
    }

    #[test]
    fn the_oldest_of_the_address_with_the_most_ends_for_a_newcomer() {
        let mut there = Admission::new(2);
        let mut newcomer = |last| there.greet(source(last)).expect("a guest");
        let (many, few) = (newcomer(1), newcomer(2));
        let of = |share: &Share, count: u32, from: u32| {
            let id = share.source();
            (from..from + count).map(move |at| (queue_id(at), id, at))
        };
        // An address that has its part ends its own, whatever room there is.
        let most = u32::try_from(GUESTS_OF_SOURCE).expect("few");
        let mut guests: Vec<_> = of(&many, most + 1, 100).collect();
        assert_eq!(Admission::displaced(&guests, &many), Some(queue_id(100)));
        guests.pop();
        assert_eq!(Admission::displaced(&guests, &many), None);
        // Where there is no room, the one that has the most does, also for others.
        let rest = u32::try_from(GUESTS_WELCOME).expect("few") - most + 1;
        guests.extend(of(&few, rest, 0));
        assert_eq!(Admission::displaced(&guests, &few), Some(queue_id(100)));
    }
}
