//! Identify and log pages of a controller on PCIe: those of the model, without what only fabrics have.

use zerocopy::{FromBytes, IntoBytes};

use crate::nvme::Sqe;
use crate::nvme::command::admin;
use crate::nvme::identify::{self, cns};
use crate::nvme::log::{Wanted, page};

/// Number of the controller, which stays the same when it is enabled again.
const CONTROLLER: u16 = 1;
/// Bit of OAES and of the event configuration: the access to namespaces changes.
const ACCESS_EVENT: u32 = 1 << 11;
/// Bytes of an entry of the pages that list commands, and of those that list pages.
const ENTRY: u64 = 4;

/// Adapts the data of an answer of the model.
pub(super) fn adapt(sqe: &Sqe, data: &mut Vec<u8>) {
    // CAST: eight bits are left.
    let what = (sqe.cdw10.get() & 0xff) as u8;
    match (sqe.opcode, what) {
        (admin::IDENTIFY, cns::CONTROLLER) => {
            if let Ok(page) = identify::Controller::read_from_bytes(data) {
                *data = controller(page).as_bytes().to_vec();
            }
        }
        (admin::IDENTIFY, cns::NAMESPACE) => {
            if let Ok(mut page) = identify::Namespace::read_from_bytes(data) {
                page.access_group = 0.into();
                *data = page.as_bytes().to_vec();
            }
        }
        (admin::GET_LOG_PAGE, page::EFFECTS) => {
            let own = [
                admin::DELETE_SUBMISSION_QUEUE,
                admin::CREATE_SUBMISSION_QUEUE,
                admin::DELETE_COMPLETION_QUEUE,
                admin::CREATE_COMPLETION_QUEUE,
            ];
            for opcode in own {
                set_entry(sqe, data, opcode, 1);
            }
            set_entry(sqe, data, admin::KEEP_ALIVE, 0);
        }
        (admin::GET_LOG_PAGE, page::SUPPORTED) => set_entry(sqe, data, page::ACCESS, 0),
        _ => {}
    }
}

/// Sets the first byte of an entry of a page, if it is in the part of the page that was asked for.
fn set_entry(sqe: &Sqe, data: &mut [u8], entry: u8, value: u8) {
    let at = u64::from(entry) * ENTRY;
    let at = at.checked_sub(Wanted::of(sqe).offset);
    let byte = at
        .and_then(|at| usize::try_from(at).ok())
        .and_then(|at| data.get_mut(at));
    if let Some(byte) = byte {
        *byte = value;
    }
}

/// Removes capsules, keyed descriptors, keep-alive and other paths.
fn controller(mut page: identify::Controller) -> identify::Controller {
    page.id = CONTROLLER.into();
    page.events = (page.events.get() & !ACCESS_EVENT).into();
    page.sharing = 0;
    (page.access, page.access_change) = (0, 0);
    (page.access_groups, page.access_group_max) = (0.into(), 0.into());
    page.keep_alive = 0.into();
    page.sgl = 0.into();
    (page.command_capsule, page.response_capsule) = (0.into(), 0.into());
    page.descriptors = 0;
    // Bit 0: host identifiers of 128 bits.
    page.attributes = (page.attributes.get() & 1).into();
    page
}
