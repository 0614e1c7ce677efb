//! Reservation commands, and their log page and features.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::reservation::{HostId, Kind, Notification, Request};
use super::{Answer, Controller, Model, Namespace, Outcome, event};
use crate::nvme::command::io;
use crate::nvme::{Nqn, Sqe, Status};

/// RESCAP: all six types, and IEKEY as defined since version 1.3; no persistence through power loss.
pub(super) const CAPABILITIES: u8 = 0xfe;
/// Maximum number of notices that wait for a host.
pub(super) const NOTICES: usize = 64;
/// Mask of the notices that a host may mask: a bit for each of [`Notification`].
pub(super) const MASKABLE: u32 = 0b1110;

/// RACQA of Preempt and Abort.
const PREEMPT_AND_ABORT: u32 = 2;

/// Returns the length of the data that a host sends with a reservation command, in bytes.
#[must_use]
pub const fn bytes(opcode: u8) -> u32 {
    match opcode {
        io::RESERVATION_REGISTER | io::RESERVATION_ACQUIRE => 16,
        io::RESERVATION_RELEASE => 8,
        _ => 0,
    }
}

/// Parses the request of a reservation command.
fn request(sqe: &Sqe, data: [u64; 2]) -> Result<Request, Status> {
    const FIELD: Status = Status::INVALID_FIELD.dnr();
    let (dword, [key, second]) = (sqe.cdw10.get(), data);
    let (action, ignores_key) = (dword & 7, dword & 8 != 0);
    let kind = || Kind::of(dword >> 8 & 0xff).ok_or(FIELD);
    match (sqe.opcode, action) {
        (io::RESERVATION_REGISTER, _) if !matches!(dword >> 30, 0 | 2) => {
            // CPTPL: 3 requests persistence through power loss, which is not supported, and 1 is reserved.
            Err(FIELD)
        }
        (io::RESERVATION_REGISTER, 0) => Ok(Request::Register(second)),
        (io::RESERVATION_REGISTER, 1) => Ok(Request::Unregister((!ignores_key).then_some(key))),
        (io::RESERVATION_REGISTER, 2) => {
            Ok(Request::Replace((!ignores_key).then_some(key), second))
        }
        _ if ignores_key => Err(FIELD),
        (io::RESERVATION_ACQUIRE, 0) => Ok(Request::Acquire(key, kind()?)),
        (io::RESERVATION_ACQUIRE, 1 | PREEMPT_AND_ABORT) => {
            Ok(Request::Preempt(key, second, kind()?))
        }
        (io::RESERVATION_RELEASE, 0) => Ok(Request::Release(key, kind()?)),
        (io::RESERVATION_RELEASE, 1) => Ok(Request::Clear(key)),
        _ => Err(FIELD),
    }
}

impl Model {
    /// Carries out a reservation command of an I/O queue. `data`: the one or two 64-bit words that the host sent with
    /// the command. `room`: number of bytes that the host accepts.
    ///
    /// Preempt and Abort interrupts no disk. Its answer waits instead until the disks have completed what the preempted
    /// hosts have sent before ([`Outcome::Preempted`]). Their other commands are checked against the new reservation.
    pub fn reserve(
        &mut self,
        id: u16,
        queue: u16,
        sqe: &Sqe,
        data: [u64; 2],
        room: u32,
    ) -> Outcome {
        let mut preempted = Vec::new();
        let answer = self.reserved(id, sqe, data, room, &mut preempted);
        if !answer.status.is_success() {
            self.note_error(id, queue, sqe, answer.status);
        }
        let aborts =
            sqe.opcode == io::RESERVATION_ACQUIRE && sqe.cdw10.get() & 7 == PREEMPT_AND_ABORT;
        if aborts && !preempted.is_empty() {
            return Outcome::Preempted(preempted);
        }
        Outcome::Answered(answer)
    }

    /// Carries out a reservation command, and adds the hosts that it has preempted to `preempted`.
    fn reserved(
        &mut self,
        id: u16,
        sqe: &Sqe,
        data: [u64; 2],
        room: u32,
        preempted: &mut Vec<HostId>,
    ) -> Answer {
        let Some(controller) = self.controllers.get(&id) else {
            return Status::INTERNAL.into();
        };
        let (host, owner, name, nsid) = (
            *controller.host_id(),
            controller.host().clone(),
            controller.subsystem().clone(),
            sqe.nsid.get(),
        );
        let subsystem = self.subsystems.get(&name);
        let Some(namespace) = subsystem.and_then(|one| one.namespace_of(&owner, nsid)) else {
            return Status::INVALID_NAMESPACE.dnr().into();
        };
        if sqe.opcode == io::RESERVATION_REPORT {
            return report(&namespace.reservations(), sqe, room);
        }
        let done = request(sqe, data).and_then(|request| {
            namespace.change_reservations(|all| all.step_of(&host, &owner, request))
        });
        match done {
            Ok(notes) => {
                for (whom, notification) in notes {
                    if notification != Notification::Released {
                        preempted.push(whom);
                    }
                    self.note_reservation(&name, &whom, &namespace, notification);
                }
                Answer::done()
            }
            Err(status) => status.into(),
        }
    }

    /// Returns the name of another host that owns this host identifier in the subsystem. A host owns an identifier if
    /// it has registered with it, or has a controller with it that has authenticated (if it must). Two hosts can hold
    /// controllers with one identifier, if the second connected before the first had authenticated. So the check is
    /// made again with `for_io` when an I/O queue connects; then only controllers with an I/O queue count.
    pub(super) fn identifier_owner(
        &self,
        subsystem: &Nqn,
        host: &Nqn,
        id: &HostId,
        for_io: bool,
    ) -> Option<Nqn> {
        let controllers = self.controllers.values();
        let mut theirs = controllers.filter(|one| {
            one.host_id() == id && one.subsystem() == subsystem && one.host() != host
        });
        let has_it = |one: &&Controller| {
            self.is_authenticated(one.id(), 0) && !(for_io && one.queues().next().is_none())
        };
        if let Some(one) = theirs.find(has_it) {
            return Some(one.host().clone());
        }
        let namespaces = self.subsystems.get(subsystem)?.namespaces();
        let mut reserved = namespaces.filter(|one| one.changes() != 0);
        reserved.find_map(|one| {
            let reservations = one.reservations();
            reservations
                .owner(id)
                .filter(|owner| *owner != host)
                .cloned()
        })
    }

    fn note_reservation(
        &mut self,
        subsystem: &Nqn,
        host: &HostId,
        namespace: &Namespace,
        notification: Notification,
    ) {
        let nsid = namespace.nsid();
        let all = self.controllers.values_mut();
        let theirs = all.filter(|one| {
            one.subsystem() == subsystem
                && one.host_id() == host
                && namespace.is_visible_to(one.host())
        });
        let ids: Vec<u16> = theirs
            .filter_map(|one| one.note_reservation(nsid, notification).then(|| one.id()))
            .collect();
        for id in ids {
            self.push_event(id, event::Kind::Reservation);
        }
    }

    /// Sets the mask of reservation notifications of one namespace, or of all.
    pub(super) fn mask_reservations(&mut self, id: u16, nsid: u32, mask: u32) -> Answer {
        let there = match self.namespaces_of(id, nsid) {
            Ok(there) => there,
            Err(status) => return status.into(),
        };
        if let Some(controller) = self.controllers.get_mut(&id) {
            for nsid in there {
                controller.reservation_masks.insert(nsid, mask & MASKABLE);
            }
        }
        Answer::done()
    }
}

impl Controller {
    /// Queues a reservation notification. Returns false if its kind is masked, or the queue is full.
    fn note_reservation(&mut self, nsid: u32, notification: Notification) -> bool {
        let mask = self.reservation_masks.get(&nsid).copied().unwrap_or(0);
        let is_queued =
            mask & 1 << notification as u32 == 0 && self.reservation_notices.len() < NOTICES;
        if is_queued {
            self.reservation_notices.push_back((nsid, notification));
        }
        is_queued
    }

    /// Returns the Reservation Notification log page: the oldest notification, and the number of further ones.
    pub(super) fn reservation_page(&self) -> Vec<u8> {
        let mut page = vec![0; 64];
        page[..8].copy_from_slice(U64::new(self.reservation_count).as_bytes());
        if let Some((nsid, notification)) = self.reservation_notices.front() {
            page[..8].copy_from_slice(U64::new(self.reservation_count + 1).as_bytes());
            page[8] = *notification as u8;
            page[9] = u8::try_from(self.reservation_notices.len() - 1).unwrap_or(u8::MAX);
            page[12..16].copy_from_slice(U32::new(*nsid).as_bytes());
        }
        page
    }

    /// Removes the oldest notification, which the host has read. Returns whether there is another.
    pub(super) fn reservation_page_read(&mut self) -> bool {
        if self.reservation_notices.pop_front().is_some() {
            self.reservation_count += 1;
        }
        !self.reservation_notices.is_empty()
    }
}

/// Answers Reservation Report with the extended data structure, whose host identifiers have 128 bits.
fn report(reservations: &super::reservation::Reservations, sqe: &Sqe, room: u32) -> Answer {
    const HEAD: usize = 64;
    if sqe.cdw11.get() & 1 == 0 {
        return Status::HOST_ID.dnr().into();
    }
    let bytes = (u64::from(sqe.cdw10.get()) + 1) * 4;
    if bytes > room.into() {
        return Status::SGL_LENGTH.dnr().into();
    }
    let mut data = vec![0; HEAD];
    data[..4].copy_from_slice(U32::new(reservations.generation()).as_bytes());
    data[4] = reservations.kind().map_or(0, |kind| kind as u8);
    let count = reservations.registrants().count();
    data[5..7].copy_from_slice(U16::new(u16::try_from(count).unwrap_or(u16::MAX)).as_bytes());
    for (host, key, holds) in reservations.registrants() {
        let mut entry = [0; 64];
        entry[..2].fill(0xff);
        entry[2] = holds.into();
        entry[8..16].copy_from_slice(U64::new(key).as_bytes());
        entry[16..32].copy_from_slice(host);
        data.extend_from_slice(&entry);
    }
    data.resize(usize::try_from(bytes).unwrap_or(HEAD), 0);
    Answer::data(data)
}
