//! Admin commands of the simulated SSD, and how it is enabled.

use super::super::dma;
use super::super::pages;
use super::super::queues::{CQE_BYTES, Completion, Done, SQE_BYTES, Submission};
use super::super::registers::Seen;
use super::{Engine, HOST_ID, PORT};
use crate::io::{Do, QueueId};
use crate::model::{
    Answer, Connected, MAX_TRANSFER, NOT_ABORTED, NotConnected, Outcome, Place, QUEUE_ENTRIES,
};
use crate::nvme::command::{ALL_NAMESPACES, FUSE, PSDT, PSDT_SGL, admin, io};
use crate::nvme::fabrics::{ANY_CONTROLLER, Connect, ConnectData, csts, kind, property};
use crate::nvme::feature::KEEP_ALIVE;
use crate::nvme::log::{Wanted, page};
use crate::nvme::{Sqe, Status};

/// Place of SHN in CC, and its value for a normal shutdown.
const SHUTDOWN_SHIFT: u32 = 14;
const NORMAL_SHUTDOWN: u32 = 1;
/// Number of entries of the admin queue in the model.
const ADMIN_SIZE: u16 = 31;

/// Makes the command that sets or gets a property of the model's controller.
fn of_property(fabrics: u8, property: u32, value: u32) -> Sqe {
    let mut sqe = Sqe::of(admin::FABRICS);
    sqe.flags = PSDT_SGL;
    sqe.nsid = u32::from(fabrics).into();
    sqe.cdw11 = property.into();
    sqe.cdw12 = value.into();
    sqe
}

/// Returns the parts of dword 10 of a command that creates or deletes a queue: number and entries.
fn queue_of(sqe: &Sqe) -> (u16, u32) {
    let dword = sqe.cdw10.get();
    // CAST: the low half.
    ((dword & 0xffff) as u16, (dword >> 16) + 1)
}

impl Engine {
    /// Enables the controller: makes the admin queues, and a controller of the model.
    pub(super) fn enable(&mut self, seen: &Seen) {
        let ([entries, completions], [at, completion_at]) = (seen.admin.entries, seen.admin.at);
        let are_possible = entries >= 2
            && completions >= 2
            && dma::is_in_range(at, u64::from(entries) * SQE_BYTES)
            && dma::is_in_range(completion_at, u64::from(completions) * CQE_BYTES);
        if !are_possible {
            return self.fail();
        }
        let Ok(connected) = self.connect(0, ADMIN_SIZE, ANY_CONTROLLER) else {
            return self.fail();
        };
        let queues = self.access.shared.queues;
        let mut model = self.access.shared.model();
        model.limit_queues(connected.controller, queues);
        drop(model);
        self.admin = Some(connected.clone());
        let Some(list) = &connected.namespaces else {
            return self.fail();
        };
        let list = self.commands.lists.add_user(list);
        self.submissions.insert(
            0,
            Submission {
                at,
                entries,
                head: 0,
                tail: 0,
                completion: 0,
                connected,
                list,
                first: None,
                under_way: 0,
            },
        );
        let queue = Completion::new(completion_at, completions, Some(0));
        self.completions.insert(0, queue);
        self.configure(seen.cc);
    }

    /// Sets CC of the model's controller, and publishes its status. A shutdown ends the I/O queues; it is complete when
    /// their commands have ended and the disks are flushed.
    pub(super) fn configure(&mut self, cc: u32) {
        let was_shut_down = self.cc >> SHUTDOWN_SHIFT & 3 != 0;
        let shutdown = cc >> SHUTDOWN_SHIFT & 3;
        self.cc = cc;
        let set = of_property(kind::PROPERTY_SET, property::CC, cc);
        let get = of_property(kind::PROPERTY_GET, property::CSTS, 0);
        let _done = self.ask(&set);
        let mut status = match self.ask(&get) {
            Outcome::Answered(Answer { result, .. }) => u32::try_from(result).unwrap_or(0),
            Outcome::Waits | Outcome::Preempted(_) | Outcome::Abort { .. } => 0,
        };
        self.has_failed |= status & csts::CFS != 0;
        if self.has_failed {
            status |= csts::CFS;
        }
        if shutdown != 0 && !was_shut_down {
            let queues: Vec<u16> = self.submissions.keys().copied().collect();
            for number in queues.into_iter().filter(|number| *number != 0) {
                self.end_submission(number);
            }
            self.events.clear();
            self.shutdown = Some(status);
            self.is_flushed = shutdown != NORMAL_SHUTDOWN;
            status = status & !csts::SHST | csts::SHST_OCCURRING;
        } else if shutdown == 0 {
            self.shutdown = None;
        } else if self.shutdown.is_some() {
            self.shutdown = Some(status);
            status = status & !csts::SHST | csts::SHST_OCCURRING;
        }
        self.publish(status);
    }

    fn publish(&self, status: u32) {
        let shared = &self.access.shared;
        let mut registers = shared.registers();
        registers.set_status(&shared.bar, self.access.generation, status);
    }

    /// Flushes all disks for a shutdown when no command is under way any more, and then publishes its end.
    pub(super) fn finish_shutdown(&mut self) {
        let Some(status) = self.shutdown else {
            return;
        };
        if self.is_flushing || self.has_orphan(None) {
            return;
        }
        if !self.is_flushed {
            (self.is_flushed, self.is_flushing) = (true, true);
            let mut sqe = Sqe::of(io::FLUSH);
            sqe.nsid = ALL_NAMESPACES.into();
            self.begin(0, sqe);
            if self.is_flushing {
                return;
            }
        }
        self.shutdown = None;
        self.publish(status);
    }

    /// Lets the model carry out a command of the admin queue.
    fn ask(&self, sqe: &Sqe) -> Outcome {
        let controller = self.admin.as_ref().map_or(0, |admin| admin.controller);
        let mut model = self.access.shared.model();
        model.command(controller, 0, sqe, u32::MAX, self.now())
    }

    /// Makes a queue in the model. `size` is the number of its entries, less one.
    fn connect(&self, queue: u16, size: u16, controller: u16) -> Result<Connected, NotConnected> {
        let place = Place {
            port: PORT,
            worker: 0,
            queue,
            entries: size + 1,
            source: Self::source(),
        };
        let connect = Connect {
            format: 0,
            queue,
            size,
            attributes: 0,
            keep_alive_ms: 0,
        };
        let (subsystem, host) = (self.subsystem.field(), self.host.field());
        let data = ConnectData::new(HOST_ID, controller, subsystem, host);
        let mut model = self.access.shared.model();
        model.connect(place, connect, &data, self.now())
    }

    /// Carries out an admin command.
    pub(super) fn administer(&mut self, sqe: &Sqe) {
        let done = match sqe.opcode {
            _ if sqe.flags & (FUSE | PSDT) != 0 => Err(Status::INVALID_FIELD.dnr()),
            admin::CREATE_COMPLETION_QUEUE => self.create_completion(sqe),
            admin::CREATE_SUBMISSION_QUEUE => self.create_submission(sqe),
            admin::DELETE_COMPLETION_QUEUE => self.delete_completion(sqe),
            admin::DELETE_SUBMISSION_QUEUE => match self.delete_submission(sqe) {
                // The answer follows when the disks have ended the commands of the queue.
                Ok(()) => return,
                refused => refused,
            },
            admin::FABRICS | admin::KEEP_ALIVE => Err(Status::INVALID_OPCODE.dnr()),
            admin::SET_FEATURES if feature_of(sqe) == KEEP_ALIVE => {
                Err(Status::INVALID_FIELD.dnr())
            }
            admin::GET_LOG_PAGE if is_too_long(sqe) => Err(Status::INVALID_FIELD.dnr()),
            admin::GET_LOG_PAGE if Wanted::of(sqe).page == page::ACCESS => {
                Err(Status::LOG_PAGE.dnr())
            }
            _ => return self.administer_by_model(sqe),
        };
        if let Err(status) = done {
            self.note_admin_error(sqe, status);
        }
        self.answer(sqe, done.err().unwrap_or(Status::SUCCESS), 0);
    }

    fn answer(&mut self, sqe: &Sqe, status: Status, result: u64) {
        self.complete(Done {
            queue: 0,
            cid: sqe.cid.get(),
            status,
            result,
        });
    }

    fn administer_by_model(&mut self, sqe: &Sqe) {
        let mut asked = *sqe;
        asked.flags |= PSDT_SGL;
        let mut answer = match self.ask(&asked) {
            Outcome::Waits => return self.events.push_back(sqe.cid.get()),
            Outcome::Answered(answer) => answer,
            // No admin command aborts those of other hosts.
            Outcome::Preempted(_) => Status::INTERNAL.into(),
            Outcome::Abort { queue, cid } => {
                let result = if self.abort(queue, cid) {
                    0
                } else {
                    NOT_ABORTED
                };
                Answer::result(result)
            }
        };
        pages::adapt(sqe, &mut answer.data);
        if answer.status.is_success()
            && !answer.data.is_empty()
            && let Err(status) = self.access.put(sqe.prp(), &answer.data)
        {
            answer.status = status;
            self.note_admin_error(sqe, status);
        }
        self.answer(sqe, answer.status, answer.result);
    }

    /// Ends a command that waits, with Command Abort Requested. Returns whether there is one.
    fn abort(&mut self, queue: u16, cid: u16) -> bool {
        if queue == 0 {
            let request = self.events.iter().position(|one| *one == cid);
            let request = request.and_then(|at| self.events.remove(at));
            let controller = self.admin.as_ref().map_or(0, |admin| admin.controller);
            if request.is_some() {
                let mut model = self.access.shared.model();
                model.abort_event_request(controller);
                drop(model);
                self.complete(Done {
                    queue: 0,
                    cid,
                    status: Status::ABORTED,
                    result: 0,
                });
            }
            return request.is_some();
        }
        let is_of = |of: QueueId| of.place == u32::from(queue);
        let found = self.commands.abort(is_of, cid);
        if let Some(at) = found {
            self.carry_out(at, Do::Refuse(Status::ABORTED));
        }
        found.is_some()
    }

    fn note_admin_error(&self, sqe: &Sqe, status: Status) {
        if let Some(admin) = &self.admin {
            let mut model = self.access.shared.model();
            model.note_error(admin.controller, 0, sqe, status);
        }
    }

    fn create_completion(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let (number, entries) = queue_of(sqe);
        self.check_new(number, self.completions.contains_key(&number))?;
        let (flags, at) = (sqe.cdw11.get(), check_memory(sqe, entries, CQE_BYTES)?);
        // CAST: the high half.
        let vector = (flags & 1 << 1 != 0).then_some((flags >> 16) as u16);
        if vector.is_some_and(|vector| vector > self.access.shared.queues) {
            return Err(Status::VECTOR.dnr());
        }
        let queue = Completion::new(at, entries, vector);
        self.completions.insert(number, queue);
        Ok(())
    }

    fn create_submission(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let (number, entries) = queue_of(sqe);
        self.check_new(number, self.submissions.contains_key(&number))?;
        let at = check_memory(sqe, entries, SQE_BYTES)?;
        // CAST: the high half.
        let completion = (sqe.cdw11.get() >> 16) as u16;
        if completion == 0 || !self.completions.contains_key(&completion) {
            return Err(Status::COMPLETION_QUEUE.dnr());
        }
        let controller = self.admin.as_ref().map_or(0, |admin| admin.controller);
        let size = u16::try_from(entries - 1).map_err(|_large| Status::QUEUE_SIZE.dnr())?;
        let connected = self.connect(number, size, controller);
        let connected = connected.map_err(|refused| refused.status)?;
        let list = connected.namespaces.as_ref().ok_or(Status::INTERNAL)?;
        let list = self.commands.lists.add_user(list);
        self.submissions.insert(
            number,
            Submission {
                at,
                entries,
                head: 0,
                tail: 0,
                completion,
                connected,
                list,
                first: None,
                under_way: 0,
            },
        );
        Ok(())
    }

    /// Checks the number of a queue to be created.
    fn check_new(&self, number: u16, is_there: bool) -> Result<(), Status> {
        let is_being_deleted = self.deletions.iter().any(|(queue, _)| *queue == number);
        if number == 0 || number > self.access.shared.queues || is_there || is_being_deleted {
            return Err(Status::QUEUE_IDENTIFIER.dnr());
        }
        Ok(())
    }

    fn delete_completion(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let (number, _) = queue_of(sqe);
        if number == 0 || !self.completions.contains_key(&number) {
            return Err(Status::QUEUE_IDENTIFIER.dnr());
        }
        let mut users = self.submissions.values();
        if users.any(|queue| queue.completion == number) {
            return Err(Status::QUEUE_DELETION.dnr());
        }
        self.completions.remove(&number);
        Ok(())
    }

    fn delete_submission(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let (number, _) = queue_of(sqe);
        if number == 0 || !self.submissions.contains_key(&number) {
            return Err(Status::QUEUE_IDENTIFIER.dnr());
        }
        self.end_submission(number);
        self.deletions.push((number, sqe.cid.get()));
        Ok(())
    }

    /// Ends an I/O queue and its commands.
    fn end_submission(&mut self, number: u16) {
        let Some(queue) = self.submissions.remove(&number) else {
            return;
        };
        self.drop_commands(Some(number));
        // Completions that were not written are those of a queue that is gone.
        if let Some(of) = self.completions.get_mut(&queue.completion) {
            of.waiting.retain(|done| done.queue != number);
        }
        self.commands.lists.remove_user(queue.list);
        let (controller, connection) = (queue.connected.controller, queue.connected.connection);
        let mut model = self.access.shared.model();
        model.queue_lost(controller, number, connection);
    }
}

/// Returns the feature of a Set Features or Get Features.
const fn feature_of(sqe: &Sqe) -> u8 {
    (sqe.cdw10.get() & 0xff) as u8 // CAST: eight bits are left.
}

/// Returns whether a Get Log Page asks for more than the longest transfer.
fn is_too_long(sqe: &Sqe) -> bool {
    Wanted::of(sqe).bytes > u64::from(MAX_TRANSFER)
}

/// Checks the memory of a queue to be created, and returns its address: it is contiguous, and begins a page.
fn check_memory(sqe: &Sqe, entries: u32, entry: u64) -> Result<u64, Status> {
    let [at, _] = sqe.prp();
    if !(2..=u32::from(QUEUE_ENTRIES)).contains(&entries) {
        return Err(Status::QUEUE_SIZE.dnr());
    }
    if sqe.cdw11.get() & 1 == 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if !at.is_multiple_of(dma::PAGE) {
        return Err(Status::PRP_OFFSET.dnr());
    }
    if !dma::is_in_range(at, u64::from(entries) * entry) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok(at)
}
