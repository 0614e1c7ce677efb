//! Get Log Page: the log pages of I/O and discovery controllers.

use zerocopy::{FromZeros, IntoBytes};

use super::controller::ERRORS;
use super::{Answer, Controller, Model};
use crate::nvme::command::{ALL_NAMESPACES, admin, io};
use crate::nvme::log::{Health, Wanted, page};
use crate::nvme::{Sqe, Status};

/// Maximum number of bytes that one Get Log Page may request.
const LONGEST: u64 = 4 << 20;
/// Reported temperature in kelvins. It is not measured.
const TEMPERATURE: u16 = 300;

impl Model {
    pub(super) fn log_page(&mut self, id: u16, sqe: &Sqe) -> Answer {
        let wanted = Wanted::of(sqe);
        let Some(controller) = self.controllers.get(&id) else {
            return Status::INTERNAL.into();
        };
        let nsid = sqe.nsid.get();
        let whole = match (wanted.page, controller.is_discovery()) {
            (page::DISCOVERY, true) => Answer::data(self.discovery_page(id)),
            (page::SUPPORTED, is_discovery) => Answer::data(supported(is_discovery)),
            (page::ERRORS, _) => Answer::data(errors(controller)),
            (page::HEALTH, false) => self.health(id, nsid),
            (page::FIRMWARE, false) => Answer::data(firmware()),
            (page::CHANGED_NAMESPACES, false) => Answer::data(changed(controller)),
            (page::EFFECTS, false) => Answer::data(effects()),
            (page::RESERVATION, false) => Answer::data(controller.reservation_page()),
            (page::FEATURE_EFFECTS, is_discovery) => {
                Answer::data(super::feature::effects(is_discovery))
            }
            (page::ACCESS, false) => self.access_page(controller, wanted.specific & 1 != 0),
            _ => Status::LOG_PAGE.dnr().into(),
        };
        if !whole.status.is_success() {
            return whole;
        }
        let length = whole.data.len() as u64; // CAST: widening.
        if wanted.offset > length || !wanted.offset.is_multiple_of(4) || wanted.bytes > LONGEST {
            return Status::INVALID_FIELD.dnr().into();
        }
        if !wanted.retain {
            self.page_read(id, wanted.page);
        }
        let (Ok(from), Ok(bytes)) = (
            usize::try_from(wanted.offset),
            usize::try_from(wanted.bytes),
        ) else {
            return Status::INVALID_FIELD.dnr().into();
        };
        let mut data = whole.data[from..].to_vec();
        data.resize(bytes, 0);
        Answer::data(data)
    }

    /// Clears the event of a log page, because the page was read without RAE.
    fn page_read(&mut self, id: u16, page: u8) {
        if let Some(controller) = self.controllers.get_mut(&id) {
            if page == page::CHANGED_NAMESPACES {
                controller.forget_changed();
            }
            let is_more = page == page::RESERVATION && controller.reservation_page_read();
            let can_answer = controller.events.read(page);
            if is_more && controller.events.happened(super::event::Kind::Reservation) || can_answer
            {
                let worker = controller.worker();
                self.notices.push(super::Notice::Event {
                    worker,
                    controller: id,
                });
            }
        }
    }

    fn health(&self, id: u16, nsid: u32) -> Answer {
        let controller = &self.controllers[&id];
        let Some(subsystem) = self.subsystems.get(controller.subsystem()) else {
            return Status::INTERNAL.into();
        };
        let namespaces: Vec<_> = match nsid {
            0 | ALL_NAMESPACES => subsystem.seen_by(controller.host()).collect(),
            one => match subsystem.namespace_of(controller.host(), one) {
                Some(namespace) => vec![namespace],
                None => return Status::INVALID_NAMESPACE.dnr().into(),
            },
        };
        let mut health = Health::new_zeroed();
        health.temperature = zerocopy::little_endian::U16::new(TEMPERATURE).to_bytes();
        // Bit 1 means that the temperature has reached a threshold.
        health.warnings = u8::from(controller.kept.exceeds_threshold(TEMPERATURE)) << 1;
        health.spare = 100;
        // A data unit is 512,000 bytes; the number is rounded up.
        let units = |bytes: u64| bytes.div_ceil(512 * 1000);
        let (mut reads, mut writes, mut read, mut written) = (0, 0, 0, 0);
        for namespace in namespaces {
            let done = namespace.done();
            reads = u64::saturating_add(reads, done.reads);
            writes = u64::saturating_add(writes, done.writes);
            read = u64::saturating_add(read, done.read_bytes);
            written = u64::saturating_add(written, done.written_bytes);
        }
        health.read[0] = units(read).into();
        health.written[0] = units(written).into();
        health.reads[0] = reads.into();
        health.writes[0] = writes.into();
        let (_, errors) = controller.errors();
        health.errors[0] = errors.into();
        Answer::data(health.as_bytes().to_vec())
    }
}

/// Returns the page of supported log pages: a dword of flags for each page. Bit 0: the page is supported.
fn supported(is_discovery: bool) -> Vec<u8> {
    let mut said = vec![0; 1024];
    let pages: &[u8] = if is_discovery {
        &[
            page::SUPPORTED,
            page::ERRORS,
            page::FEATURE_EFFECTS,
            page::DISCOVERY,
        ]
    } else {
        &[
            page::SUPPORTED,
            page::ERRORS,
            page::HEALTH,
            page::FIRMWARE,
            page::CHANGED_NAMESPACES,
            page::EFFECTS,
            page::ACCESS,
            page::FEATURE_EFFECTS,
            page::RESERVATION,
        ]
    };
    for page in pages {
        said[usize::from(*page) * 4] = 1;
    }
    said
}

fn errors(controller: &Controller) -> Vec<u8> {
    let (entries, _) = controller.errors();
    let mut said: Vec<u8> = entries
        .flat_map(|entry| entry.as_bytes().to_vec())
        .collect();
    said.resize(usize::from(ERRORS) * 64, 0);
    said
}

fn firmware() -> Vec<u8> {
    let mut said = vec![0; 512];
    // Firmware slot 1 is active.
    said[0] = 1;
    said[8..16].copy_from_slice(&crate::nvme::identify::padded::<8>(env!(
        "CARGO_PKG_VERSION"
    )));
    said
}

/// Returns the page of changed namespaces. It lists at most 1024, which is as many as a subsystem may have.
fn changed(controller: &Controller) -> Vec<u8> {
    static_assertions::const_assert!(super::NAMESPACES <= 1024);
    let mut said: Vec<u8> = controller
        .changed()
        .into_iter()
        .flat_map(|nsid| zerocopy::little_endian::U32::new(nsid).to_bytes())
        .collect();
    said.resize(4096, 0);
    said
}

/// Returns the page of command effects: a dword for each opcode, admin commands first. Bit 0: the command is supported;
/// bit 1: it may change blocks.
fn effects() -> Vec<u8> {
    const IO: usize = 1024;
    let mut said = vec![0; 4096];
    for opcode in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ] {
        said[usize::from(opcode) * 4] = 1;
    }
    for opcode in [
        io::READ,
        io::COMPARE,
        io::FLUSH,
        io::VERIFY,
        io::RESERVATION_REGISTER,
        io::RESERVATION_REPORT,
        io::RESERVATION_ACQUIRE,
        io::RESERVATION_RELEASE,
    ] {
        said[IO + usize::from(opcode) * 4] = 1;
    }
    for opcode in [
        io::WRITE,
        io::WRITE_ZEROES,
        io::DATASET_MANAGEMENT,
        io::COPY,
    ] {
        said[IO + usize::from(opcode) * 4] = 1 | 1 << 1;
    }
    said
}
