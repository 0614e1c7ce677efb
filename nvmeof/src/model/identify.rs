//! Identify: the data structures that describe the controller and its namespaces.

use std::sync::Arc;

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use super::feature::KEEP_ALIVE_STEP;
use super::property::VERSION;
use super::subsystem::NAMESPACES;
use super::{
    ADMIN_ENTRIES, Answer, Controller, GROUPS, IN_CAPSULE, MAX_TRANSFER_SHIFT, Model, Namespace,
    QUEUE_ENTRIES, Subsystem, controller, event,
};
use crate::nvme::command::ALL_NAMESPACES;
use crate::nvme::identify::{self, BYTES, cns, identifier, padded};
use crate::nvme::{Sqe, Status};

/// Firmware revision, which is the version of this program.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// SGLS: data of any alignment, keyed descriptors, offsets into the capsule.
const SGL: u32 = 1 | 1 << 2 | 1 << 20;
/// ONCS: Compare, Dataset Management, Write Zeroes, fields Save and Select of features, reservations, Verify, Copy.
const COMMANDS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8;
/// Maximum number of blocks of all ranges of a Copy together, and of one range.
pub(crate) const COPY_BLOCKS: u16 = 1 << 15;
/// Maximum number of ranges of a Copy.
pub(super) const COPY_RANGES: u8 = 128;

impl Model {
    pub(super) fn identify(&self, id: u16, sqe: &Sqe) -> Answer {
        let Some(controller) = self.controllers.get(&id) else {
            return Status::INTERNAL.into();
        };
        // CAST: the low bits are the field.
        let (what, set) = (
            (sqe.cdw10.get() & 0xff) as u8,
            (sqe.cdw11.get() >> 24) as u8,
        );
        let nsid = sqe.nsid.get();
        let subsystem = self.subsystems.get(controller.subsystem());
        let Some(subsystem) = subsystem.filter(|_| !controller.is_discovery()) else {
            return match what {
                cns::CONTROLLER => Answer::data(discovery(controller)),
                _ => Status::INVALID_FIELD.dnr().into(),
            };
        };
        let namespace = subsystem.namespace_of(controller.host(), nsid);
        match (what, set) {
            (cns::CONTROLLER, _) => {
                let port = self.ports.get(&controller.port());
                let shift = port.map_or(MAX_TRANSFER_SHIFT, |port| port.transfer_shift);
                Answer::data(io(controller, subsystem, shift))
            }
            (cns::SET_CONTROLLER, 0) => Answer::data(nvm_controller()),
            (cns::ACTIVE_NAMESPACES, _) | (cns::SET_ACTIVE_NAMESPACES, 0) => {
                if nsid >= ALL_NAMESPACES - 1 {
                    return Status::INVALID_NAMESPACE.dnr().into();
                }
                Answer::data(numbers(subsystem.seen_by(controller.host()), nsid))
            }
            (cns::SUBSYSTEM_CONTROLLERS, _) => {
                let from = sqe.cdw10.get() >> 16;
                Answer::data(self.controller_list(controller, from, |_| true))
            }
            (cns::NAMESPACE_CONTROLLERS, _) => match namespace {
                Some(one) => {
                    let from = sqe.cdw10.get() >> 16;
                    let sees = |other: &Controller| one.is_visible_to(other.host());
                    Answer::data(self.controller_list(controller, from, sees))
                }
                None => Status::INVALID_NAMESPACE.dnr().into(),
            },
            (cns::NAMESPACE | cns::INDEPENDENT_NAMESPACE | cns::DESCRIPTORS, _)
            | (cns::SET_NAMESPACE, 0)
                if nsid == 0 || nsid > NAMESPACES =>
            {
                Status::INVALID_NAMESPACE.dnr().into()
            }
            (cns::NAMESPACE, _) => Answer::data(namespace.map_or_else(nothing, |one| nvm(&one))),
            (cns::SET_NAMESPACE, 0) => Answer::data(nothing()),
            (cns::INDEPENDENT_NAMESPACE, _) => {
                Answer::data(namespace.map_or_else(nothing, |one| independent(&one)))
            }
            (cns::DESCRIPTORS, _) => match namespace {
                Some(one) => Answer::data(descriptors(&one)),
                None => Status::INVALID_NAMESPACE.dnr().into(),
            },
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }
}

impl Model {
    /// Returns the list of the controllers of the same subsystem from number `from` on that fulfil a condition: their
    /// count, then their numbers.
    fn controller_list(
        &self,
        of: &Controller,
        from: u32,
        which: impl Fn(&Controller) -> bool,
    ) -> Vec<u8> {
        let all = self.controllers.values();
        let same = all.filter(|one| {
            one.subsystem() == of.subsystem() && u32::from(one.id()) >= from && which(one)
        });
        let ids: Vec<u16> = same.map(Controller::id).take(BYTES / 2 - 1).collect();
        let mut list = Vec::with_capacity(BYTES);
        let count = u16::try_from(ids.len()).unwrap_or(u16::MAX);
        for number in core::iter::once(count).chain(ids) {
            list.extend_from_slice(U16::new(number).as_bytes());
        }
        list.resize(BYTES, 0);
        list
    }
}

fn nothing() -> Vec<u8> {
    vec![0; BYTES]
}

/// Returns the structure with the fields that I/O and discovery controllers have in common.
fn common(controller: &Controller) -> identify::Controller {
    let mut said = identify::Controller::new_zeroed();
    said.firmware = padded(FIRMWARE);
    said.id = controller.id().into();
    said.version = VERSION.into();
    // The bits mean 128-bit host identifiers, and that any traffic keeps a controller alive.
    said.attributes = (1 | 1 << 6).into();
    said.aborts = super::ABORTS - 1;
    said.event_requests = event::REQUESTS - 1;
    said.log_pages = 1 << 2;
    said.submission_entry = 0x66;
    said.completion_entry = 0x44;
    said.sgl = SGL.into();
    said.response_capsule = 1.into();
    said.descriptors = 1;
    said.subsystem = controller.subsystem().field();
    said
}

fn discovery(controller: &Controller) -> Vec<u8> {
    let mut said = common(controller);
    said.max_transfer = MAX_TRANSFER_SHIFT;
    said.serial = padded("discovery");
    said.model = padded("nvmeof discovery");
    said.kind = 2;
    said.events = event::OF_DISCOVERY.into();
    said.max_commands = ADMIN_ENTRIES.into();
    said.keep_alive = KEEP_ALIVE_STEP.into();
    said.command_capsule = 4.into();
    said.as_bytes().to_vec()
}

fn io(controller: &Controller, subsystem: &Subsystem, transfer_shift: u8) -> Vec<u8> {
    let mut said = common(controller);
    said.max_transfer = transfer_shift;
    said.serial = padded(&subsystem.config().serial);
    said.model = padded(&subsystem.config().model);
    // The bits mean several ports, several controllers, and asymmetric access.
    said.sharing = 1 | 1 << 1 | 1 << 3;
    said.events = event::OF_IO.into();
    said.kind = 1;
    said.firmware_slots = 1 | 1 << 1;
    // The bits mean SMART data per namespace and the effects page. `common` has set bit 2, extended data (any offset).
    said.log_pages |= 1 | 1 << 1;
    said.error_entries = controller::ERRORS - 1;
    said.keep_alive = KEEP_ALIVE_STEP.into();
    said.access_change = 10;
    // The bits mean that all access states can occur, and that the group of a namespace does not change.
    said.access = 0x1f | 1 << 6;
    said.access_group_max = GROUPS.into();
    said.access_groups = GROUPS.into();
    said.max_commands = QUEUE_ENTRIES.into();
    said.namespaces = NAMESPACES.into();
    said.max_namespaces = NAMESPACES.into();
    said.commands = COMMANDS.into();
    // Bit 0 means compare and write, which is limited to one block (ACWU).
    said.fused = 1.into();
    // Bit 0 means that ranges of format 0 are supported.
    said.copy_formats = 1.into();
    // The bits mean that there is a volatile cache, and that Flush supports all namespaces.
    said.write_cache = 1 | 3 << 1;
    said.write_protection = 1;
    said.command_capsule = ((64 + IN_CAPSULE) / 16).into();
    said.as_bytes().to_vec()
}

fn nvm_controller() -> Vec<u8> {
    // 0 in each field means no limit.
    nothing()
}

fn numbers(namespaces: impl Iterator<Item = Arc<Namespace>>, above: u32) -> Vec<u8> {
    let mut list = Vec::with_capacity(BYTES);
    let beyond = namespaces.filter(|one| one.nsid() > above);
    for namespace in beyond.take(BYTES / 4) {
        list.extend_from_slice(U32::new(namespace.nsid()).as_bytes());
    }
    list.resize(BYTES, 0);
    list
}

fn nvm(namespace: &Namespace) -> Vec<u8> {
    let mut said = identify::Namespace::new_zeroed();
    let blocks = namespace.blocks();
    said.blocks = blocks.into();
    said.capacity = blocks.into();
    said.used = blocks.into();
    said.sharing = 1;
    said.reservations = super::reserve::CAPABILITIES;
    said.access_group = namespace.group().into();
    said.attributes = namespace.is_protected().into();
    said.nguid = *namespace.uuid().as_bytes();
    said.block_formats[0].shift = namespace.shift();
    if namespace.disk().zeroes_deallocated() {
        // The bits mean that deallocated blocks read as zeros, and that Write Zeroes may deallocate.
        said.deallocation = 1 | 1 << 3;
    }
    said.copy_range = COPY_BLOCKS.into();
    said.copy_blocks = u32::from(COPY_BLOCKS).into();
    said.copy_ranges = COPY_RANGES - 1;
    // Accesses of 4 KiB are preferred.
    let preferred = ((4096_u16 >> namespace.shift()).max(1) - 1).into();
    said.features = 1 << 4;
    said.preferred = [preferred; 5];
    said.as_bytes().to_vec()
}

fn independent(namespace: &Namespace) -> Vec<u8> {
    let mut said = identify::IndependentNamespace::new_zeroed();
    said.sharing = 1;
    said.reservations = super::reserve::CAPABILITIES;
    said.access_group = namespace.group().into();
    said.attributes = namespace.is_protected().into();
    said.state = 1;
    said.as_bytes().to_vec()
}

fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let uuid: Uuid = namespace.uuid();
    let mut list = Vec::with_capacity(BYTES);
    for (kind, value) in [
        (identifier::NGUID, &uuid.as_bytes()[..]),
        (identifier::UUID, &uuid.as_bytes()[..]),
        (identifier::COMMAND_SET, &[0]),
    ] {
        let length = u8::try_from(value.len()).unwrap_or(0);
        list.extend_from_slice(&[kind, length, 0, 0]);
        list.extend_from_slice(value);
    }
    list.resize(BYTES, 0);
    list
}
