//! Admission: the quota of each party at a worker.
//!
//! All connections of a worker take their receives from one shared receive queue, and the adapter gives any connection
//! any free receive. A command occupies its slot (`place`) from its receive until its response has been sent. A host
//! can delay the response: it can post no receives for responses, or block access to its memory. So slots are covered
//! by credit: the credits of all connections together never exceed the number of slots.
//!
//! ```text
//!   places = 2 x ios               queues of hosts: Connect has made them queues of a subsystem, and a host with a
//!                                  key has authenticated
//!          + GUESTS x GREETING     guests: all other connections. No Connect yet, discovery, not authenticated
//!          + LOAN                  lent to guests beyond their greeting
//! ```
//!
//! A queue of a host reserves its entries of `ios` from the time it becomes one until its last command has ended. It
//! occupies at most twice its entries: unanswered commands, one for each entry, and as many again whose responses are
//! posted and not known to have been sent. The worker posts no more responses than entries until one of them has been
//! sent. So a host that has more commands than entries plus posted responses breaks the rules
//! ([`super::queue::Queue::is_overrun`]). A queue whose entries do not fit is refused: by the rejection "no resources"
//! of the RDMA connection request, or by the status Controller Busy of Connect. The worker never grants fewer entries,
//! because Linux ignores CRQSIZE. Set Features (Number of Queues) grants as many queues of the maximum size as fit, so
//! that an unmodified host requests only queues that fit.
//!
//! A guest can always have [`GREETING`] commands pending, which suffices for Connect, authentication and discovery in
//! sequence. A guest may borrow more slots as long as all guests together have borrowed less than [`LOAN`]. A guest
//! whose command exceeds the loan loses its connection. If the address of a newcomer has more than [`GUESTS_OF_SOURCE`]
//! guests, the worker ends the oldest guest of that address. Otherwise, if there are more than [`GUESTS_WELCOME`]
//! guests, it ends the oldest guest of the address that has the most. No command of a guest changes its age, so no
//! guest can occupy for ever a slot that another one needs.
//!
//! Entries of hosts' queues, and the model's controllers of hosts, have one rule for a party that has many of them
//! ([`is_fair`]): the party may not have more than it leaves free for all others. So a party can get at most half of
//! the units that are free without it. A party gets its first units whenever they are free. The party is the host's
//! name if the subsystem lists the host or the host has a key. Otherwise the party is the address, because a host
//! without a key can use any name.
//!
//! Credit limits the commands that stay pending. A host that sends faster than the worker polls can use up receives
//! beyond its credit during one loop iteration of the worker. Other connections then get RNR NAKs, and their RNR
//! retries outlast the iteration ([`super::connection`]).
//!
//! Of an Asynchronous Event Request the worker needs only the command identifier, so the slot is free again at once.
//! The response has a slot of its own, one for each admin queue, into which the adapter never receives. The first
//! command of a fused pair occupies its slot until the second one comes; each queue can have one such command.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::io::{Owner, QueueId};
use crate::model::{Party, QUEUE_ENTRIES, is_fair};

/// Number of guests beyond which a newcomer ends another guest. Linux opens a connection for each of its queues before
/// it sends the first Connect, so the number covers one such host and some others.
pub(super) const GUESTS_WELCOME: usize = 192;
/// Number of guests of one address beyond which a newcomer ends another guest: a connection for each I/O queue of a
/// controller. The controller's admin queue is a host's by then.
pub(super) const GUESTS_OF_SOURCE: usize = 128;
/// Maximum number of guests, including guests that are about to end. Further connections are rejected.
pub(super) const GUESTS: u32 = 256;
/// Number of commands that each guest can have pending: one that is executed, one whose response is being sent, and as
/// many again for hosts that send without waiting.
pub(super) const GREETING: u32 = 4;
/// Number of commands beyond `GREETING` that all guests together can have pending.
pub(super) const LOAN: u32 = 256;
/// Number of entries that a party gets whenever they are free: an admin queue and one I/O queue of Linux.
const FIRST_ENTRIES: u32 = 160;

/// Returns the number of command slots with a receive.
pub(super) const fn places(ios: u32) -> u32 {
    2 * ios + GUESTS * GREETING + LOAN
}

/// Returns the number of slots for responses to event requests: one for each possible admin queue, of at least two
/// entries each.
pub(super) const fn event_places(ios: u32) -> u32 {
    ios / 2 + GUESTS
}

/// Returns the highest `ios` for which an adapter has enough receives.
pub(super) const fn most_ios(receives: u32) -> u32 {
    receives.saturating_sub(places(0)) / 2
}

/// Use of a worker's quotas, for other threads to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// Number of entries that all queues of hosts may have.
    pub entries: u32,
    /// Number of entries that are free for hosts' queues.
    pub entries_left: u32,
    /// Number of hosts' queues.
    pub host_queues: u32,
    /// Number of guests: connections without Connect, discovery, and queues that have not authenticated.
    pub guests: u32,
    /// Number of queues of hosts that were refused because too few entries were left or the party had its quota.
    pub refused_hosts: u64,
    /// Number of guests that were rejected.
    pub refused_guests: u64,
    /// Number of guests that the worker ended for newcomers.
    pub displaced_guests: u64,
    /// Number of connections that the worker ended because they had more commands pending than allowed.
    pub overdrawn: u64,
}

/// Quota use of a party.
#[derive(Debug)]
struct Entry {
    key: (bool, Party),
    /// Number of queues that count for the party.
    queues: u32,
    /// Number of entries that these queues have reserved.
    entries: u32,
}

/// Class of a queue: guest or host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Guest,
    /// Queue of a host, with the number of entries that it has reserved.
    Host(u32),
}

/// Quota of a queue, and the parties for which the queue counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub class: Class,
    /// Index of the party of the connection's address, for which guests count.
    source: u32,
    /// Party for which the queue counts now: the address of a guest, or the host.
    pub owner: Owner,
}

/// The parties, and the capacity that is left.
#[derive(Debug)]
pub(super) struct Admission {
    pub room: Room,
    /// Number of slots that guests occupy beyond `GREETING` each.
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

    fn add_queue(&mut self, key: (bool, Party)) -> u32 {
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
            // A queue counts for at most two parties (its source and its host), so their number fits in 32 bits.
            let id = u32::try_from(at).unwrap_or(u32::MAX);
            self.by_key.insert(key, id);
            id
        });
        if let Some(entry) = self.entry(id) {
            entry.queues += 1;
        }
        id
    }

    fn remove_queue(&mut self, id: u32) {
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

    /// Returns whether so many entries are free. Used before the host is known.
    pub(super) const fn has_entries(&self, entries: u32) -> bool {
        entries <= self.room.entries_left
    }

    /// Admits a connection from an address as a guest; `None` if the number of guests is at its limit.
    pub(super) fn admit_guest(&mut self, source: IpAddr) -> Option<Share> {
        if self.room.guests >= GUESTS {
            self.room.refused_guests += 1;
            return None;
        }
        Some(self.add_guest(source))
    }

    fn add_guest(&mut self, source: IpAddr) -> Share {
        self.room.guests += 1;
        let id = self.add_queue((true, Party::Source(source)));
        Share {
            class: Class::Guest,
            source: id,
            owner: Owner { id, is_guest: true },
        }
    }

    /// Turns a guest that occupies `held` slots into a queue of a host. Returns false if the entries are not free, or
    /// the party would exceed its quota.
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
        let id = self.add_queue((false, party.clone()));
        let left = self.room.entries_left;
        let own = self.entry(id).map_or(0, |entry| entry.entries);
        if !is_fair(own, entries, left, FIRST_ENTRIES) {
            self.remove_queue(id);
            self.room.refused_hosts += 1;
            return false;
        }
        self.borrowed -= held.saturating_sub(GREETING);
        self.become_host(share, id, entries);
        true
    }

    /// Turns a guest into a queue of the host with party number `id`.
    fn become_host(&mut self, share: &mut Share, id: u32, entries: u32) {
        if let Some(entry) = self.entry(id) {
            entry.entries += entries;
        }
        self.room.entries_left -= entries;
        self.room.guests -= 1;
        self.room.host_queues += 1;
        share.class = Class::Host(entries);
        share.owner = Owner {
            id,
            is_guest: false,
        };
    }

    /// Adds the quota of a queue of a resumed worker: of a guest, or of a host's queue with so many entries. The fair
    /// share of a party was checked when the queue became the host's. `None` if the queue exceeds what is there.
    pub(super) fn resume(&mut self, source: IpAddr, host: Option<(&Party, u32)>) -> Option<Share> {
        let Some((party, entries)) = host else {
            return self.admit_guest(source);
        };
        if !self.has_entries(entries) {
            return None;
        }
        // It is a guest for no moment that counts, so the maximum number of guests does not limit it.
        let mut share = self.add_guest(source);
        let id = self.add_queue((false, party.clone()));
        self.become_host(&mut share, id, entries);
        Some(share)
    }

    /// Frees the quota of a queue whose last command has ended.
    pub(super) fn release_share(&mut self, share: &Share) {
        match share.class {
            Class::Guest => self.room.guests -= 1,
            Class::Host(entries) => {
                self.room.entries_left += entries;
                self.room.host_queues -= 1;
                if let Some(entry) = self.entry(share.owner.id) {
                    entry.entries -= entries;
                }
                self.remove_queue(share.owner.id);
            }
        }
        self.remove_queue(share.source);
    }

    /// Counts one more slot for a guest, which now occupies `held`. Returns false if guests exceed the loan.
    pub(super) const fn borrow(&mut self, held: u32) -> bool {
        if held > GREETING {
            self.borrowed += 1;
        }
        held <= GREETING || self.borrowed <= LOAN
    }

    /// Frees one slot of a guest that occupied `held`.
    pub(super) const fn give_back(&mut self, held: u32) {
        if held > GREETING {
            self.borrowed -= 1;
        }
    }

    /// Returns the number of I/O queues of the maximum size that a party could still have at a worker. `left`: number
    /// of free entries of another worker, at which the party is assumed to have as many entries as here; `None` means
    /// this worker.
    pub(super) fn queues_left(&self, owner: Owner, left: Option<u32>) -> u32 {
        let left = left.unwrap_or(self.room.entries_left);
        let there = self.parties.get(owner.id as usize); // CAST: widening.
        let own = there.and_then(Option::as_ref).map_or(0, |one| one.entries);
        let longest = u32::from(QUEUE_ENTRIES);
        let fits = |queues: &u32| is_fair(own, queues * longest, left, FIRST_ENTRIES);
        let most = left / longest;
        (1..=most).rev().find(fits).unwrap_or(0)
    }

    /// Returns the guest that must end for a newcomer; `None` if no limit is exceeded. `guests`: the guests that are
    /// not ending, including the newcomer, each with the party of its address and the time of its arrival.
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
        let mut share = there.admit_guest(source(1)).expect("a guest");
        let admitted = there.admit(&mut share, 1, party, entries);
        if !admitted {
            there.release_share(&share);
        }
        admitted.then_some(share)
    }

    #[test]
    fn a_queue_of_a_host_is_resumed_beside_the_maximum_number_of_guests() {
        let mut there = Admission::new(1000);
        for _ in 0..GUESTS {
            assert!(there.resume(source(1), None).is_some());
        }
        assert!(there.resume(source(1), None).is_none());
        let host = host(1);
        assert!(there.resume(source(1), Some((&host, 128))).is_some());
        assert!(there.resume(source(1), None).is_none());
    }

    /// The credits of all connections never exceed the slots, whatever the order of admissions, and all credits are
    /// returned.
    #[test]
    fn credits_are_never_more_than_places_and_all_come_back() {
        let mut there = Admission::new(1000);
        let mut shares = Vec::new();
        for number in 0..=u8::MAX {
            let entries = 2 + u32::from(number) % 127;
            shares.extend(queue(&mut there, &host(number % 7), entries));
            shares.extend(there.admit_guest(source(number)));
            let credit = |share: &Share| match share.class {
                Class::Guest => GREETING,
                Class::Host(entries) => 2 * entries,
            };
            let all: u32 = shares.iter().map(credit).sum();
            assert!(all + LOAN <= places(1000), "{all}");
        }
        assert!(there.room.refused_hosts > 0);
        for share in &shares {
            there.release_share(share);
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
        let mut newcomer = |last| there.admit_guest(source(last)).expect("a guest");
        let (many, few) = (newcomer(1), newcomer(2));
        let of = |share: &Share, count: u32, from: u32| {
            let id = share.source();
            (from..from + count).map(move |at| (queue_id(at), id, at))
        };
        // An address over its limit loses its own oldest guest, even if the total is below the limit.
        let most = u32::try_from(GUESTS_OF_SOURCE).expect("few");
        let mut guests: Vec<_> = of(&many, most + 1, 100).collect();
        assert_eq!(Admission::displaced(&guests, &many), Some(queue_id(100)));
        guests.pop();
        assert_eq!(Admission::displaced(&guests, &many), None);
        // If the total is over the limit, the address with the most guests loses its oldest one, also for the newcomer
        // of another address.
        let rest = u32::try_from(GUESTS_WELCOME).expect("few") - most + 1;
        guests.extend(of(&few, rest, 0));
        assert_eq!(Admission::displaced(&guests, &few), Some(queue_id(100)));
    }
}
