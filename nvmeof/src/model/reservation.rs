//! Reservations of a namespace: registrants and holders (Base specification, "Reservations").
//!
//! ```text
//!                 Acquire                          Preempt: another holder or type
//!   NOT RESERVED -----------------------> RESERVED ----------------.
//!        ^                                  |  ^                   |
//!        '--- Release, Clear, Unregister ---'  '-------------------'
//! ```
//!
//! A host is identified by its host identifier. A step returns the notices for the other registrants. All reservations
//! end with the process, because persistence through power loss is not supported. While an identifier is registered, it
//! belongs to the host name that registered with it.

mod parking;

use std::collections::BTreeMap;

use crate::nvme::{Nqn, Status};

/// Maximum number of registrants of a namespace.
const REGISTRANTS: usize = 256;
/// Maximum number of registrants of a namespace with the same host name.
const REGISTRANTS_OF_A_NAME: usize = 16;

/// A host identifier.
pub type HostId = [u8; 16];

/// Type of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// Write Exclusive: only the holder writes.
    WriteExclusive = 1,
    /// Exclusive Access: only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Write Exclusive, Registrants Only: only registrants write.
    WriteExclusiveRegistrants = 3,
    /// Exclusive Access, Registrants Only: only registrants read and write.
    ExclusiveAccessRegistrants = 4,
    /// Write Exclusive, All Registrants: only registrants write, and each is a holder.
    WriteExclusiveAll = 5,
    /// Exclusive Access, All Registrants: only registrants read and write, and each is a holder.
    ExclusiveAccessAll = 6,
}

impl Kind {
    /// Returns the type with this number.
    pub(super) fn of(number: u32) -> Option<Self> {
        [
            Self::WriteExclusive,
            Self::ExclusiveAccess,
            Self::WriteExclusiveRegistrants,
            Self::ExclusiveAccessRegistrants,
            Self::WriteExclusiveAll,
            Self::ExclusiveAccessAll,
        ]
        .into_iter()
        .find(|kind| *kind as u32 == number)
    }

    const fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    const fn is_of_one(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    const fn guards_reads(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll
        )
    }
}

/// A notice for a host. The values are the types in the reservation notification log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Notification {
    /// Registration preempted.
    RegistrationPreempted = 1,
    /// Reservation released.
    Released = 2,
    /// Reservation preempted.
    Preempted = 3,
}

/// A reservation request of a host, with its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Registers the host with this key.
    Register(u64),
    /// Unregisters the host, which has this key; `None` if the key is not checked.
    Unregister(Option<u64>),
    /// Replaces the host's key, which is not checked if `None`, by the second key.
    Replace(Option<u64>, u64),
    /// Acquires a reservation of this type. The key is the host's own.
    Acquire(u64, Kind),
    /// Preempts registrations with the second key, and their reservation. The first key is the host's own. Second key 0
    /// preempts all other registrants of an All Registrants reservation.
    Preempt(u64, u64, Kind),
    /// Releases the reservation of this type. The key is the host's own.
    Release(u64, Kind),
    /// Clears the reservation and all registrations. The key is the host's own.
    Clear(u64),
}

/// The reservation and the registrants of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    generation: u32,
    keys: BTreeMap<HostId, u64>,
    /// Names of the registrants, by host identifier.
    names: BTreeMap<HostId, Nqn>,
    held: Option<(HostId, Kind)>,
}

/// Host identifiers, each with the notice for that host.
pub type Notes = Vec<(HostId, Notification)>;

const CONFLICT: Status = Status::RESERVATION.dnr();

impl Reservations {
    /// Returns the number of changes of registrations.
    #[must_use]
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the type of the reservation; `None` if there is none.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.held.map(|(_, kind)| kind)
    }

    /// Returns the registrants with their keys, and whether each of them holds the reservation.
    pub fn registrants(&self) -> impl Iterator<Item = (&HostId, u64, bool)> {
        let registered = self.keys.iter();
        registered.map(|(host, key)| (host, *key, self.holds(host)))
    }

    fn holds(&self, host: &HostId) -> bool {
        self.held.as_ref().is_some_and(|(holder, kind)| {
            holder == host || kind.is_of_all() && self.keys.contains_key(host)
        })
    }

    /// Returns whether the reservation allows a host to read, or to write if `writes` is true.
    #[must_use]
    pub fn allows(&self, host: &HostId, writes: bool) -> bool {
        match &self.held {
            Some((holder, kind)) if writes || kind.guards_reads() => {
                if kind.is_of_one() {
                    holder == host
                } else {
                    self.keys.contains_key(host)
                }
            }
            _ => true,
        }
    }

    fn others(&self, than: &HostId, notification: Notification) -> Notes {
        let others = self.keys.keys().filter(|host| *host != than);
        others.map(|host| (*host, notification)).collect()
    }

    fn knows(&self, host: &HostId, key: Option<u64>) -> Result<(), Status> {
        match self.keys.get(host) {
            Some(has) if key.is_none_or(|key| key == *has) => Ok(()),
            _ => Err(CONFLICT),
        }
    }

    /// Returns the name of the host that has registered with a host identifier.
    #[must_use]
    pub fn owner(&self, host: &HostId) -> Option<&Nqn> {
        self.names.get(host)
    }

    /// Carries out a request of a host with this identifier and name.
    ///
    /// # Errors
    /// The status for the host: that of [`Reservations::step`], or INTERNAL if there are too many registrants. Nothing
    /// has changed.
    pub fn step_of(
        &mut self,
        host: &HostId,
        name: &Nqn,
        request: Request,
    ) -> Result<Notes, Status> {
        let is_new = matches!(request, Request::Register(_)) && !self.keys.contains_key(host);
        let same = self.names.values().filter(|one| *one == name).count();
        if is_new && (self.keys.len() >= REGISTRANTS || same >= REGISTRANTS_OF_A_NAME) {
            return Err(Status::INTERNAL.dnr());
        }
        let notes = self.step(host, request)?;
        if is_new {
            self.names.insert(*host, name.clone());
        }
        self.names.retain(|host, _| self.keys.contains_key(host));
        Ok(notes)
    }

    /// Carries out a request of a host, without a limit of registrants. Returns the notices for other hosts.
    ///
    /// # Errors
    /// The status for the host. Nothing has changed.
    pub fn step(&mut self, host: &HostId, request: Request) -> Result<Notes, Status> {
        match request {
            Request::Register(key) => {
                if self.keys.get(host).is_some_and(|has| *has != key) {
                    return Err(CONFLICT);
                }
                self.keys.insert(*host, key);
                self.count();
                Ok(Notes::new())
            }
            Request::Unregister(key) => {
                self.knows(host, key)?;
                let is_last = self.keys.len() == 1;
                let ends = match self.held {
                    Some((_, kind)) if kind.is_of_all() => is_last,
                    Some((holder, _)) => holder == *host,
                    None => false,
                };
                let kind = self.kind();
                self.keys.remove(host);
                self.count();
                if !ends {
                    return Ok(Notes::new());
                }
                self.held = None;
                let is_shared = kind.is_some_and(|kind| !kind.is_of_one());
                Ok(if is_shared {
                    self.others(host, Notification::Released)
                } else {
                    Notes::new()
                })
            }
            Request::Replace(key, new) => {
                self.knows(host, key)?;
                self.keys.insert(*host, new);
                self.count();
                Ok(Notes::new())
            }
            Request::Acquire(key, kind) => {
                self.knows(host, Some(key))?;
                match self.held {
                    None => self.held = Some((*host, kind)),
                    Some((_, has)) if has == kind && self.holds(host) => {}
                    Some(_) => return Err(CONFLICT),
                }
                Ok(Notes::new())
            }
            Request::Preempt(key, theirs, kind) => self.preempt(host, key, theirs, kind),
            Request::Release(key, kind) => {
                self.knows(host, Some(key))?;
                if !self.holds(host) {
                    return Ok(Notes::new());
                }
                if self.kind() != Some(kind) {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                self.held = None;
                Ok(if kind.is_of_one() {
                    Notes::new()
                } else {
                    self.others(host, Notification::Released)
                })
            }
            Request::Clear(key) => {
                self.knows(host, Some(key))?;
                let notes = self.others(host, Notification::Preempted);
                self.keys.clear();
                self.held = None;
                self.count();
                Ok(notes)
            }
        }
    }

    fn preempt(
        &mut self,
        host: &HostId,
        key: u64,
        theirs: u64,
        kind: Kind,
    ) -> Result<Notes, Status> {
        self.knows(host, Some(key))?;
        let takes = match self.held {
            None => false,
            Some((_, has)) if has.is_of_all() => theirs == 0,
            Some((holder, _)) => self.keys.get(&holder) == Some(&theirs),
        };
        if theirs == 0 && !takes {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let all = takes && theirs == 0;
        if !all && !self.keys.values().any(|has| *has == theirs) {
            return Err(CONFLICT);
        }
        let before = self.clone();
        // A host that preempts its own key stays registered.
        self.keys
            .retain(|one, has| one == host || !all && *has != theirs);
        let gone = before
            .keys
            .keys()
            .filter(|one| !self.keys.contains_key(*one));
        let mut notes: Notes = gone
            .map(|one| {
                let held = takes && before.holds(one);
                (
                    *one,
                    if held {
                        Notification::Preempted
                    } else {
                        Notification::RegistrationPreempted
                    },
                )
            })
            .collect();
        if takes {
            self.held = Some((*host, kind));
            if before.kind().is_some_and(|has| has != kind) {
                notes.extend(self.others(host, Notification::Released));
            }
        }
        self.count();
        Ok(notes)
    }

    const fn count(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = [1; 16];
    const B: HostId = [2; 16];
    const C: HostId = [3; 16];

    /// Returns reservations for which A, B and C have registered with keys 1, 2 and 3, and A holds one of this type.
    fn held(kind: u32) -> (Reservations, Kind) {
        let mut all = Reservations::default();
        for (host, key) in [(A, 1), (B, 2), (C, 3)] {
            all.step(&host, Request::Register(key)).expect("registered");
        }
        let kind = Kind::of(kind).expect("a type");
        all.step(&A, Request::Acquire(1, kind)).expect("acquired");
        (all, kind)
    }

    /// Base specification, "Command Behavior in the Presence of a Reservation": the table holds for read and write of
    /// the holder, of a registrant, and of another host.
    #[test]
    fn who_may_read_and_write_is_as_the_table_says() {
        for (kind, table) in [
            (1, "rw r- r-"),
            (2, "rw -- --"),
            (3, "rw rw r-"),
            (4, "rw rw --"),
            (5, "rw rw r-"),
            (6, "rw rw --"),
        ] {
            let (all, _) = held(kind);
            let may = [A, B, [9; 16]].map(|host| {
                let letter = |writes, letter| {
                    if all.allows(&host, writes) {
                        letter
                    } else {
                        '-'
                    }
                };
                format!("{}{}", letter(false, 'r'), letter(true, 'w'))
            });
            assert_eq!(may.join(" "), table, "type {kind}");
        }
        assert!(Kind::of(0).is_none() && Kind::of(7).is_none());
    }

    #[test]
    fn registrants_are_limited_in_all_and_for_each_name_and_their_names_end_with_them() {
        let name = |number: u16| -> Nqn {
            let text = format!("nqn.2026-11.test:{number}");
            text.parse().expect("a name")
        };
        let full = Err(Status::INTERNAL.dnr());
        let mut all = Reservations::default();
        let mut id = [0; 16];
        let most = REGISTRANTS / REGISTRANTS_OF_A_NAME;
        for number in 0..u16::try_from(most).expect("few") {
            for one in 0..=u8::try_from(REGISTRANTS_OF_A_NAME).expect("few") {
                (id[0], id[1]) = (number.to_be_bytes()[1], one);
                let done = all.step_of(&id, &name(number), Request::Register(1));
                let is_last = usize::from(one) == REGISTRANTS_OF_A_NAME;
                assert_eq!(done, if is_last { full.clone() } else { Ok(vec![]) });
            }
        }
        assert_eq!(all.registrants().count(), REGISTRANTS);
        let other = name(999);
        assert_eq!(all.step_of(&[9; 16], &other, Request::Register(1)), full);
        let first = [0; 16];
        assert_eq!(all.owner(&first), Some(&name(0)));
        let again = all.step_of(&first, &name(0), Request::Register(1));
        assert_eq!(again, Ok(vec![]), "it is registered");
        assert_eq!(
            all.step_of(&first, &name(0), Request::Unregister(Some(1))),
            Ok(vec![])
        );
        assert_eq!(all.owner(&first), None);
        assert_eq!(
            all.step_of(&[9; 16], &other, Request::Register(1)),
            Ok(vec![])
        );
        assert_eq!(all.owner(&[9; 16]), Some(&other));
        let cleared = all
            .step_of(&[9; 16], &other, Request::Clear(1))
            .expect("cleared");
        assert_eq!((cleared.len(), all.names.len()), (REGISTRANTS - 1, 0));
    }

    #[test]
    fn keys_that_are_not_the_hosts_are_conflicts_that_change_nothing() {
        let (before, kind) = held(1);
        let mut all = before.clone();
        for request in [
            Request::Register(9),
            Request::Unregister(Some(9)),
            Request::Replace(Some(9), 1),
            Request::Acquire(9, kind),
            Request::Acquire(2, kind),
            Request::Preempt(9, 1, kind),
            Request::Preempt(2, 9, kind),
            Request::Release(9, kind),
            Request::Clear(9),
        ] {
            assert_eq!(all.step(&B, request), Err(CONFLICT), "{request:?}");
            assert_eq!(all.step(&[9; 16], Request::Clear(2)), Err(CONFLICT));
        }
        let field = Err(Status::INVALID_FIELD.dnr());
        assert_eq!(
            all.step(&B, Request::Preempt(2, 0, kind)),
            field,
            "no key, and not of all"
        );
        assert_eq!(
            all.step(&A, Request::Release(1, Kind::ExclusiveAccess)),
            field,
            "another type"
        );
        assert_eq!(
            all.step(&B, Request::Release(2, kind)),
            Ok(vec![]),
            "it holds none"
        );
        assert_eq!(all, before);
    }

    #[test]
    fn a_release_is_told_to_registrants_where_they_have_a_part_in_it() {
        for kind in 1..=6 {
            let (mut all, of) = held(kind);
            let told = all.step(&A, Request::Release(1, of)).expect("released");
            let expected = [(B, Notification::Released), (C, Notification::Released)];
            assert_eq!(
                told,
                if kind < 3 { &[][..] } else { &expected[..] },
                "type {kind}"
            );
            assert!(all.kind().is_none() && all.allows(&[9; 16], true));
            assert_eq!(all.generation(), 3, "no registration has changed");
            // The holder unregisters. With an All Registrants type, the other registrants still hold it.
            let (mut all, _) = held(kind);
            let told = all
                .step(&A, Request::Unregister(Some(1)))
                .expect("unregistered");
            assert_eq!(all.kind().is_some(), kind > 4, "type {kind}");
            assert_eq!(
                told.len(),
                if kind == 3 || kind == 4 { 2 } else { 0 },
                "type {kind}"
            );
            assert_eq!(all.generation(), 4);
        }
    }

    #[test]
    fn a_preemption_takes_registrations_away_and_the_reservation_with_its_holders() {
        for kind in 1..=6 {
            let (mut all, _) = held(kind);
            // B preempts C, which does not hold the reservation or shares it with all registrants.
            let told = all.step(&B, Request::Preempt(2, 3, Kind::ExclusiveAccess));
            assert_eq!(
                told,
                Ok(vec![(C, Notification::RegistrationPreempted)]),
                "type {kind}"
            );
            assert_eq!(all.kind(), Kind::of(kind));
            let theirs = if kind > 4 { 0 } else { 1 };
            let (mut all, _) = held(kind);
            let told = all
                .step(&B, Request::Preempt(2, theirs, Kind::ExclusiveAccess))
                .expect("preempted");
            assert_eq!(
                (told[0], all.kind()),
                ((A, Notification::Preempted), Some(Kind::ExclusiveAccess))
            );
            assert!(all.allows(&B, true) && !all.allows(&A, false));
            assert_eq!(
                all.registrants().count(),
                if kind > 4 { 1 } else { 2 },
                "type {kind}"
            );
            assert_eq!(all.generation(), 4);
        }
        let (mut all, _) = held(1);
        let told = all.step(&C, Request::Clear(3)).expect("cleared");
        assert_eq!(
            told,
            [(A, Notification::Preempted), (B, Notification::Preempted)]
        );
        assert_eq!((all.registrants().count(), all.kind()), (0, None));
    }

    #[test]
    fn keys_are_replaced_and_given_up_whatever_they_are_if_the_host_says_so() {
        let (mut all, _) = held(2);
        assert_eq!(all.step(&B, Request::Replace(None, 7)), Ok(vec![]));
        assert_eq!(all.step(&B, Request::Unregister(Some(7))), Ok(vec![]));
        assert_eq!(all.step(&B, Request::Unregister(None)), Err(CONFLICT));
        assert_eq!(all.step(&C, Request::Unregister(None)), Ok(vec![]));
        assert_eq!(all.registrants().collect::<Vec<_>>(), [(&A, 1, true)]);
    }
}
