//! Commands of the admin queue, and Fabrics commands of any queue.

use super::{Answer, Model, Moment, Outcome};
use crate::nvme::command::{FUSE, PSDT, PSDT_SGL, admin};
use crate::nvme::fabrics::kind;
use crate::nvme::{Sqe, Status};

/// Result of an Abort whose command was not aborted.
pub const NOT_ABORTED: u64 = 1;

impl Model {
    /// Carries out an admin command, or a Fabrics command other than Connect and the authentication commands. `room` is
    /// the number of bytes of data that the host accepts.
    pub fn command(
        &mut self,
        controller: u16,
        queue: u16,
        sqe: &Sqe,
        room: u32,
        now: Moment,
    ) -> Outcome {
        let answer = match self.carried_out(controller, queue, sqe, now) {
            Outcome::Answered(answer) => answer,
            other @ (Outcome::Waits | Outcome::Preempted(_) | Outcome::Abort { .. }) => {
                return other;
            }
        };
        // CAST: widening.
        let answer = if answer.data.len() as u64 > u64::from(room) {
            Status::SGL_LENGTH.dnr().into()
        } else {
            answer
        };
        if !answer.status.is_success() {
            self.note_error(controller, queue, sqe, answer.status);
        }
        Outcome::Answered(answer)
    }

    /// Adds a failed command to the controller's error log, but not a command of an I/O queue that has not
    /// authenticated: its host may be a stranger, who could push the errors of the controller's host out of the log.
    pub fn note_error(&mut self, controller: u16, queue: u16, sqe: &Sqe, status: Status) {
        if queue != 0 && !self.is_authenticated(controller, queue) {
            return;
        }
        if let Some(controller) = self.controllers.get_mut(&controller) {
            tracing::debug!(
                controller = controller.id(),
                queue,
                opcode = sqe.opcode,
                cid = sqe.cid.get(),
                nsid = sqe.nsid.get(),
                %status,
                "command failed"
            );
            controller.note_error(queue, sqe, status);
        }
    }

    fn carried_out(&mut self, id: u16, queue: u16, sqe: &Sqe, now: Moment) -> Outcome {
        let Some(controller) = self.controllers.get_mut(&id) else {
            return Outcome::Answered(Status::INTERNAL.into());
        };
        self.latest = now;
        if self.exchanges.contains_key(&(id, queue)) {
            return Outcome::Answered(Status::AUTHENTICATION_REQUIRED.dnr().into());
        }
        controller.hear(now);
        if sqe.flags & FUSE != 0 || sqe.flags & PSDT != PSDT_SGL {
            return Outcome::Answered(Status::INVALID_FIELD.dnr().into());
        }
        if sqe.opcode == admin::FABRICS {
            let answer = match (sqe.fabrics_type(), queue) {
                (kind::PROPERTY_GET, 0) => self.property_get(id, sqe),
                (kind::PROPERTY_SET, 0) => self.property_set(id, sqe),
                // The queue is connected already.
                (kind::CONNECT, _) => Status::SEQUENCE.dnr().into(),
                _ => Status::INVALID_OPCODE.dnr().into(),
            };
            return Outcome::Answered(answer);
        }
        if !controller.is_ready() {
            return Outcome::Answered(Status::SEQUENCE.dnr().into());
        }
        let answer = match sqe.opcode {
            admin::IDENTIFY => self.identify(id, sqe),
            admin::GET_LOG_PAGE => self.log_page(id, sqe),
            admin::SET_FEATURES => self.set_feature(id, sqe),
            admin::GET_FEATURES => self.get_feature(id, sqe),
            // Any command resets the keep-alive timer, so this one needs no action.
            admin::KEEP_ALIVE => Answer::done(),
            admin::ASYNC_EVENT => {
                if controller.events.request() {
                    return Outcome::Waits;
                }
                Status::EVENT_LIMIT.dnr().into()
            }
            admin::ABORT => {
                let dword = sqe.cdw10.get();
                // CAST: the low half, and the high half.
                let (queue, cid) = ((dword & 0xffff) as u16, (dword >> 16) as u16);
                if controller.connection_of(queue).is_some() {
                    return Outcome::Abort { queue, cid };
                }
                Answer::result(NOT_ABORTED)
            }
            _ => Status::INVALID_OPCODE.dnr().into(),
        };
        Outcome::Answered(answer)
    }
}
