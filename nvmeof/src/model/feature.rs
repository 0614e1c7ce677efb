//! Features (Base specification, "Get Features" and "Set Features").

use std::sync::Arc;

use super::event::{OF_DISCOVERY, SETTABLE_IO};
use super::kept::{Kept, SENSOR_MASK};
use super::{Answer, Controller, Model, Namespace};
use crate::nvme::command::ALL_NAMESPACES;
use crate::nvme::feature as id;
use crate::nvme::{Sqe, Status};

/// Granularity of keep-alive times in units of 100 ms, as in KAS.
pub(super) const KEEP_ALIVE_STEP: u16 = 10;
/// Granularity of keep-alive times in milliseconds.
const KEEP_ALIVE_STEP_MS: u32 = KEEP_ALIVE_STEP as u32 * 100;

/// Properties of a feature. No feature can be saved.
struct Feature {
    id: u8,
    /// True if each namespace has its own value.
    of_namespace: bool,
    is_changeable: bool,
    /// True if discovery controllers support the feature, too.
    of_discovery: bool,
}

impl Feature {
    const fn new(id: u8) -> Self {
        Self {
            id,
            of_namespace: false,
            is_changeable: true,
            of_discovery: false,
        }
    }

    const fn of_namespace(self) -> Self {
        Self {
            of_namespace: true,
            ..self
        }
    }

    const fn fixed(self) -> Self {
        Self {
            is_changeable: false,
            ..self
        }
    }

    const fn of_discovery(self) -> Self {
        Self {
            of_discovery: true,
            ..self
        }
    }
}

/// All supported features.
const FEATURES: [Feature; 13] = [
    Feature::new(id::ARBITRATION),
    Feature::new(id::POWER),
    Feature::new(id::TEMPERATURE),
    Feature::new(id::ERROR_RECOVERY).of_namespace(),
    Feature::new(id::WRITE_CACHE).fixed(),
    Feature::new(id::NUMBER_OF_QUEUES),
    Feature::new(id::ATOMICITY),
    Feature::new(id::EVENTS).of_discovery(),
    Feature::new(id::KEEP_ALIVE).of_discovery(),
    Feature::new(id::HOST_ID).fixed(),
    Feature::new(id::RESERVATION_MASK).of_namespace(),
    Feature::new(id::RESERVATION_PERSISTENCE)
        .of_namespace()
        .fixed(),
    Feature::new(id::WRITE_PROTECTION).of_namespace(),
];

/// Returns the features of a kind of controllers.
fn features(is_discovery: bool) -> impl Iterator<Item = &'static Feature> {
    let all = FEATURES.iter();
    all.filter(move |feature| feature.of_discovery || !is_discovery)
}

/// Returns the log page of feature effects: a dword of flags for each feature. Bit 0: the feature is supported; bit 20:
/// its scope is a namespace; bit 21: its scope is the controller.
pub(super) fn effects(is_discovery: bool) -> Vec<u8> {
    const BYTES: usize = 1024;
    let mut said = vec![0; BYTES];
    for feature in features(is_discovery) {
        let at = usize::from(feature.id) * 4;
        said[at] = 1;
        said[at + 2] = 1 << if feature.of_namespace { 4 } else { 5 };
    }
    said
}

/// Rounds a keep-alive time in milliseconds up to the granularity.
pub(super) const fn keep_alive(ms: u32) -> u32 {
    match ms
        .div_ceil(KEEP_ALIVE_STEP_MS)
        .checked_mul(KEEP_ALIVE_STEP_MS)
    {
        Some(ms) => ms,
        None => u32::MAX - u32::MAX % KEEP_ALIVE_STEP_MS,
    }
}

/// Returns the feature identifier, bits 7:0 of dword 10.
const fn feature(sqe: &Sqe) -> u8 {
    (sqe.cdw10.get() & 0xff) as u8 // CAST: eight bits are left.
}

impl Controller {
    const fn offered_events(&self) -> u32 {
        if self.is_discovery() {
            OF_DISCOVERY
        } else {
            SETTABLE_IO
        }
    }

    /// Returns the number of I/O queues that a host may have, less one, in each 16-bit half of the dword.
    const fn queues_granted(&self) -> u64 {
        let less_one = self.queues_most() as u64 - 1; // CAST: widening.
        less_one | less_one << 16
    }
}

impl Model {
    pub(super) fn set_feature(&mut self, id: u16, sqe: &Sqe) -> Answer {
        /// Bit 31 of dword 10: the value is to be saved across resets.
        const SAVE: u32 = 1 << 31;
        let Some(controller) = self.controllers.get(&id) else {
            return Status::INTERNAL.into();
        };
        let known = features(controller.is_discovery()).find(|one| one.id == feature(sqe));
        let Some(known) = known else {
            return Status::INVALID_FIELD.dnr().into();
        };
        if sqe.cdw10.get() & SAVE != 0 {
            return Status::NOT_SAVEABLE.dnr().into();
        }
        let (asked, nsid) = (sqe.cdw11.get(), sqe.nsid.get());
        if !known.of_namespace && !matches!(nsid, 0 | ALL_NAMESPACES) {
            return Status::NOT_OF_NAMESPACE.dnr().into();
        }
        if known.of_namespace && self.namespaces_of(id, nsid).is_err() {
            return Status::INVALID_NAMESPACE.dnr().into();
        }
        let Some(controller) = self.controllers.get_mut(&id) else {
            return Status::INTERNAL.into();
        };
        match known.id {
            id::NUMBER_OF_QUEUES => {
                if controller.queues().next().is_some() {
                    return Status::SEQUENCE.dnr().into();
                }
                if asked & 0xffff == 0xffff || asked >> 16 == 0xffff {
                    return Status::INVALID_FIELD.dnr().into();
                }
                Answer::result(controller.queues_granted())
            }
            id::EVENTS => {
                if asked & !controller.offered_events() != 0 {
                    return Status::INVALID_FIELD.dnr().into();
                }
                controller.events.want(asked);
                Answer::done()
            }
            id::KEEP_ALIVE => {
                controller.set_keep_alive(keep_alive(asked));
                Answer::done()
            }
            id::ERROR_RECOVERY => {
                let kept = self.keep_for_namespaces(id, nsid, asked);
                kept.map_or_else(Answer::from, |()| Answer::done())
            }
            id::ARBITRATION | id::POWER | id::TEMPERATURE | id::ATOMICITY => {
                let kept = controller.kept.set(known.id, 0, asked);
                kept.map_or_else(Answer::from, |()| Answer::done())
            }
            id::WRITE_PROTECTION => self.protect(id, nsid, asked),
            id::RESERVATION_MASK => self.mask_reservations(id, nsid, asked),
            // Persistence through power loss is not supported.
            id::RESERVATION_PERSISTENCE if asked & 1 == 0 => Answer::done(),
            id::HOST_ID => Status::SEQUENCE.dnr().into(),
            id::WRITE_CACHE => Status::NOT_CHANGEABLE.dnr().into(),
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }

    /// Returns a namespace that a controller's host sees.
    fn namespace_of(&self, id: u16, nsid: u32) -> Result<Arc<Namespace>, Status> {
        let controller = &self.controllers[&id];
        let of = self.subsystems.get(controller.subsystem());
        let found = of.and_then(|of| of.namespace_of(controller.host(), nsid));
        found.ok_or(Status::INVALID_NAMESPACE.dnr())
    }

    /// Returns `nsid` if the controller's host sees that namespace. For NSID FFFFFFFFh, returns the numbers of all
    /// namespaces that the host sees.
    pub(super) fn namespaces_of(&self, id: u16, nsid: u32) -> Result<Vec<u32>, Status> {
        if nsid != ALL_NAMESPACES {
            return self.namespace_of(id, nsid).map(|_| vec![nsid]);
        }
        let controller = &self.controllers[&id];
        let of = self.subsystems.get(controller.subsystem());
        let all = of.into_iter().flat_map(|of| of.seen_by(controller.host()));
        Ok(all.map(|one| one.nsid()).collect())
    }

    /// Stores the error recovery feature for a namespace, or for all namespaces.
    fn keep_for_namespaces(&mut self, id: u16, nsid: u32, value: u32) -> Result<(), Status> {
        let there = self.namespaces_of(id, nsid)?;
        let controller = self.controllers.get_mut(&id).ok_or(Status::INTERNAL)?;
        let mut there = there.into_iter();
        there.try_for_each(|nsid| controller.kept.set(id::ERROR_RECOVERY, nsid, value))
    }

    fn protect(&mut self, id: u16, nsid: u32, state: u32) -> Answer {
        let namespace = match self.namespace_of(id, nsid) {
            Ok(namespace) => namespace,
            Err(status) => return status.into(),
        };
        let subsystem = self.controllers[&id].subsystem().clone();
        let protected = match state & 7 {
            0 => false,
            1 => true,
            _ => return Status::INVALID_FIELD.dnr().into(),
        };
        if !namespace.protect(protected) {
            return Status::NOT_CHANGEABLE.dnr().into();
        }
        self.namespace_changed(&subsystem, &namespace);
        Answer::done()
    }

    pub(super) fn get_feature(&self, id: u16, sqe: &Sqe) -> Answer {
        let Some(controller) = self.controllers.get(&id) else {
            return Status::INTERNAL.into();
        };
        // Bits 10:8: 0 is the current value, 1 the default, 2 the saved value, 3 the capabilities.
        let what = sqe.cdw10.get() >> 8 & 7;
        let known = features(controller.is_discovery()).find(|one| one.id == feature(sqe));
        let Some(known) = known.filter(|_| what <= 3) else {
            return Status::INVALID_FIELD.dnr().into();
        };
        if what == 3 {
            // Bit 0 is clear: not saveable. Bit 1: specific to a namespace. Bit 2: changeable.
            let can = u64::from(known.of_namespace) << 1 | u64::from(known.is_changeable) << 2;
            return Answer::result(can);
        }
        // No feature is saved, so the saved value is the default.
        let is_current = what == 0;
        let nsid = sqe.nsid.get();
        if known.of_namespace && self.namespace_of(id, nsid).is_err() {
            return Status::INVALID_NAMESPACE.dnr().into();
        }
        match known.id {
            id::TEMPERATURE if sqe.cdw11.get() & SENSOR_MASK != 0 => {
                Status::INVALID_FIELD.dnr().into()
            }
            id::ARBITRATION | id::POWER | id::TEMPERATURE | id::ERROR_RECOVERY | id::ATOMICITY
                if !is_current =>
            {
                Answer::result(Kept::usual(known.id).into())
            }
            id::ERROR_RECOVERY => Answer::result(controller.kept.get(known.id, nsid).into()),
            id::ARBITRATION | id::POWER | id::TEMPERATURE | id::ATOMICITY => {
                Answer::result(controller.kept.get(known.id, 0).into())
            }
            id::EVENTS | id::KEEP_ALIVE | id::RESERVATION_MASK | id::WRITE_PROTECTION
                if !is_current =>
            {
                Answer::done()
            }
            id::WRITE_CACHE => Answer::result(1),
            id::NUMBER_OF_QUEUES => Answer::result(controller.queues_granted()),
            id::EVENTS => Answer::result(controller.events.wanted().into()),
            id::KEEP_ALIVE => Answer::result(controller.keep_alive_ms().into()),
            id::HOST_ID if sqe.cdw11.get() & 1 == 1 => Answer::data(controller.host_id().to_vec()),
            id::RESERVATION_PERSISTENCE => Answer::done(),
            id::RESERVATION_MASK => {
                let masks = &controller.reservation_masks;
                let mask = masks.get(&nsid).copied().unwrap_or(0);
                Answer::result(mask.into())
            }
            id::WRITE_PROTECTION => match self.namespace_of(id, nsid) {
                Ok(namespace) => Answer::result(namespace.is_protected().into()),
                Err(status) => status.into(),
            },
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }
}
