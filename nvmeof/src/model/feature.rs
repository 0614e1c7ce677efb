//! Features (Base specification, "Get Features" and "Set Features").

use super::event::{OF_DISCOVERY, OF_IO};
use super::{Answer, Controller, Model, Moment, QUEUES};
use crate::nvme::{Sqe, Status};

/// Granularity of keep-alive times, as KAS counts it: in 100 ms.
pub(super) const KEEP_ALIVE_STEP: u16 = 10;
/// In milliseconds.
const KEEP_ALIVE_STEP_MS: u32 = KEEP_ALIVE_STEP as u32 * 100;

/// Identifiers of features.
mod id {
    pub(super) const WRITE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const EVENTS: u8 = 0x0b;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_ID: u8 = 0x81;
    pub(super) const RESERVATION_MASK: u8 = 0x82;
    pub(super) const RESERVATION_PERSISTENCE: u8 = 0x83;
    pub(super) const WRITE_PROTECTION: u8 = 0x84;
}

/// A dword of flags for each feature: bit 0 there is such a feature, 20 it is of a namespace, 21 of a controller.
pub(super) fn effects(is_discovery: bool) -> Vec<u8> {
    const BYTES: usize = 1024;
    let mut said = vec![0; BYTES];
    let of_io: &[u8] = &[
        id::WRITE_CACHE,
        id::QUEUES,
        id::HOST_ID,
        id::RESERVATION_MASK,
        id::RESERVATION_PERSISTENCE,
        id::WRITE_PROTECTION,
    ];
    let of_io = if is_discovery { &[] } else { of_io };
    for feature in [id::EVENTS, id::KEEP_ALIVE].iter().chain(of_io) {
        let at = usize::from(*feature) * 4;
        said[at] = 1;
        said[at + 2] = 1
            << if *feature == id::WRITE_PROTECTION {
                4
            } else {
                5
            };
    }
    said
}

/// A keep-alive time, rounded up to what is kept.
pub(super) const fn keep_alive(ms: u32) -> u32 {
    match ms
        .div_ceil(KEEP_ALIVE_STEP_MS)
        .checked_mul(KEEP_ALIVE_STEP_MS)
    {
        Some(ms) => ms,
        None => u32::MAX - u32::MAX % KEEP_ALIVE_STEP_MS,
    }
}

/// Features that each namespace has of its own.
const fn is_of_namespace(feature: u8) -> bool {
    matches!(
        feature,
        id::RESERVATION_MASK | id::RESERVATION_PERSISTENCE | id::WRITE_PROTECTION
    )
}

/// Feature identifier: bits 7:0 of dword 10.
const fn feature(sqe: &Sqe) -> u8 {
    (sqe.cdw10.get() & 0xff) as u8 // CAST: eight bits are left.
}

impl Controller {
    const fn offered_events(&self) -> u32 {
        if self.is_discovery() {
            OF_DISCOVERY
        } else {
            OF_IO
        }
    }

    /// I/O queues that a host may have, less one, in both halves.
    const fn queues_granted() -> u64 {
        let less_one = QUEUES as u64 - 1;
        less_one | less_one << 16
    }
}

impl Model {
    pub(super) fn set_feature(&mut self, id: u16, sqe: &Sqe, now: Moment) -> Answer {
        /// Bit 31 of dword 10: it is to be kept over a reset.
        const SAVE: u32 = 1 << 31;
        let Some(controller) = self.controllers.get_mut(&id) else {
            return Status::INTERNAL.into();
        };
        if sqe.cdw10.get() & SAVE != 0 {
            return Status::NOT_SAVEABLE.dnr().into();
        }
        let asked = sqe.cdw11.get();
        match (feature(sqe), controller.is_discovery()) {
            (id::QUEUES, false) => {
                if controller.queues().next().is_some() {
                    return Status::SEQUENCE.dnr().into();
                }
                if asked & 0xffff == 0xffff || asked >> 16 == 0xffff {
                    return Status::INVALID_FIELD.dnr().into();
                }
                Answer::result(Controller::queues_granted())
            }
            (id::EVENTS, _) => {
                if asked & !controller.offered_events() != 0 {
                    return Status::INVALID_FIELD.dnr().into();
                }
                controller.events.want(asked);
                Answer::done()
            }
            (id::KEEP_ALIVE, _) => {
                controller.set_keep_alive(keep_alive(asked), now);
                Answer::done()
            }
            (id::WRITE_PROTECTION, false) => self.protect(id, sqe.nsid.get(), asked),
            (id::RESERVATION_MASK, false) => self.mask_reservations(id, sqe.nsid.get(), asked),
            // Nothing persists through power loss, and nothing can be told to.
            (id::RESERVATION_PERSISTENCE, false) if asked & 1 == 0 => Answer::done(),
            (id::HOST_ID, false) => Status::SEQUENCE.dnr().into(),
            (id::WRITE_CACHE, false) => Status::NOT_CHANGEABLE.dnr().into(),
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }

    fn protect(&mut self, id: u16, nsid: u32, state: u32) -> Answer {
        let subsystem = self.controllers[&id].subsystem().clone();
        let there = self.subsystems.get(&subsystem);
        let Some(namespace) = there.and_then(|one| one.namespace(nsid)) else {
            return Status::INVALID_NAMESPACE.dnr().into();
        };
        let protected = match state & 7 {
            0 => false,
            1 => true,
            _ => return Status::INVALID_FIELD.dnr().into(),
        };
        if !namespace.protect(protected) {
            return Status::NOT_CHANGEABLE.dnr().into();
        }
        self.namespace_changed(&subsystem, nsid);
        Answer::done()
    }

    pub(super) fn get_feature(&self, id: u16, sqe: &Sqe) -> Answer {
        let Some(controller) = self.controllers.get(&id) else {
            return Status::INTERNAL.into();
        };
        // Bits 10:8: 0 the value now, 1 the default, 2 the saved one, 3 what can be done with it.
        let what = sqe.cdw10.get() >> 8 & 7;
        let known = match (feature(sqe), controller.is_discovery()) {
            (id::EVENTS | id::KEEP_ALIVE, _) => true,
            (
                id::WRITE_CACHE
                | id::QUEUES
                | id::HOST_ID
                | id::RESERVATION_MASK
                | id::RESERVATION_PERSISTENCE
                | id::WRITE_PROTECTION,
                is_discovery,
            ) => !is_discovery,
            _ => false,
        };
        if !known || what > 3 {
            return Status::INVALID_FIELD.dnr().into();
        }
        if what == 3 {
            // Not saveable; of each namespace; changeable.
            let of_namespace = is_of_namespace(feature(sqe));
            let changeable = !matches!(
                feature(sqe),
                id::WRITE_CACHE | id::HOST_ID | id::RESERVATION_PERSISTENCE
            );
            return Answer::result(u64::from(of_namespace) << 1 | u64::from(changeable) << 2);
        }
        // What is not saved has its default as its saved value.
        if what != 0 && matches!(feature(sqe), id::EVENTS | id::KEEP_ALIVE) {
            return Answer::done();
        }
        match feature(sqe) {
            id::WRITE_CACHE => Answer::result(1),
            id::QUEUES => Answer::result(Controller::queues_granted()),
            id::EVENTS => Answer::result(controller.events.wanted().into()),
            id::KEEP_ALIVE => Answer::result(controller.keep_alive_ms().into()),
            id::HOST_ID if sqe.cdw11.get() & 1 == 1 => Answer::data(controller.host_id().to_vec()),
            id::RESERVATION_PERSISTENCE => Answer::done(),
            id::RESERVATION_MASK => {
                let masks = &controller.reservation_masks;
                let mask = masks.get(&sqe.nsid.get()).copied().unwrap_or(0);
                Answer::result(mask.into())
            }
            id::WRITE_PROTECTION => {
                let subsystem = self.subsystems.get(controller.subsystem());
                match subsystem.and_then(|one| one.namespace(sqe.nsid.get())) {
                    Some(namespace) => Answer::result(namespace.is_protected().into()),
                    None => Status::INVALID_NAMESPACE.dnr().into(),
                }
            }
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }
}
