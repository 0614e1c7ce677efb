//! Properties, which correspond to the registers of a PCIe controller (Base specification, "Controller Properties").
//!
//! ```text
//!   CC.EN 0 -> 1    CSTS.RDY if the fields are supported, else CSTS.CFS
//!   CC.EN 1 -> 0    CSTS.RDY is cleared, I/O queues and event requests end; the association stays
//!   CC.SHN 0 -> n   CSTS.SHST complete, I/O queues and event requests end; then only Property Get and Set are accepted
//!   CC.SHN n -> 0   CSTS.SHST normal
//! ```

use super::{Answer, Controller, Model, QUEUE_ENTRIES};
use crate::nvme::fabrics::{Configuration, Property, csts, property};
use crate::nvme::{Sqe, Status};

/// Version of the specification: 2.0.
pub(crate) const VERSION: u32 = 0x0002_0000;
/// CAP.TO and CRTO: time within which a controller becomes ready, in units of 500 ms.
pub(crate) const READY_WITHIN: u32 = 15;
/// Controller Capabilities: the maximum number of queue entries, contiguous queues, the time-out for readiness, the NVM
/// command set, and ready with media (CRMS.CRWMS).
pub(crate) const CAPABILITIES: u64 =
    (QUEUE_ENTRIES as u64 - 1) | 1 << 16 | (READY_WITHIN as u64) << 24 | 1 << 37 | 1 << 59;

impl Model {
    pub(super) fn property_get(&self, id: u16, sqe: &Sqe) -> Answer {
        let (Some(controller), Some(wanted)) = (self.controllers.get(&id), Property::of(sqe))
        else {
            return Status::INVALID_FIELD.dnr().into();
        };
        let value = match (wanted.offset, wanted.is_long) {
            (property::CAP, true) => CAPABILITIES,
            (property::VS, false) => VERSION.into(),
            (property::CC, false) => controller.configuration.0.into(),
            (property::CSTS, false) => controller.status.into(),
            (property::CRTO, false) => READY_WITHIN.into(),
            _ => return Status::INVALID_FIELD.dnr().into(),
        };
        Answer::result(value)
    }

    pub(super) fn property_set(&mut self, id: u16, sqe: &Sqe) -> Answer {
        let (Some(controller), Some(wanted)) = (self.controllers.get_mut(&id), Property::of(sqe))
        else {
            return Status::INVALID_FIELD.dnr().into();
        };
        match (wanted.offset, wanted.is_long) {
            (property::CC, false) => {
                let was_ready = controller.is_ready();
                // CAST: a property of four bytes has only the lower half of the value.
                let to = Configuration((wanted.value & 0xffff_ffff) as u32);
                if !controller.configure(to)
                    && let Some(unlogged) =
                        self.lines
                            .take(controller.source(), "configuration", self.latest)
                {
                    tracing::warn!(
                        controller = id,
                        configuration = to.0,
                        unlogged,
                        "a configuration that is not offered"
                    );
                }
                if was_ready && !controller.is_ready() {
                    controller.reset();
                    // The reset ends the I/O queues, so their unfinished authentications end as well.
                    self.exchanges
                        .retain(|(of, queue), _| *of != id || *queue == 0);
                    self.notices.push(super::Notice::Reset {
                        controller: id,
                        last: self.connections,
                    });
                }
                Answer::done()
            }
            _ => Status::INVALID_FIELD.dnr().into(),
        }
    }
}

impl Controller {
    /// Sets the configuration (CC), and updates the status. Returns false if the configuration is not supported.
    fn configure(&mut self, to: Configuration) -> bool {
        let is_offered = to.is_offered() || !to.is_enabled() || self.configuration.is_enabled();
        let from = self.configuration;
        self.configuration = to;
        match (from.is_enabled(), to.is_enabled()) {
            (false, true) if is_offered => self.status |= csts::RDY,
            (false, true) => self.fail(),
            (true, false) => self.status &= !(csts::RDY | csts::SHST | csts::CFS),
            (true, true) | (false, false) => {}
        }
        match (from.shutdown(), to.shutdown()) {
            (0, 1..) => self.status = self.status & !csts::SHST | csts::SHST_COMPLETE,
            (1.., 0) => self.status &= !csts::SHST,
            _ => {}
        }
        is_offered
    }
}
