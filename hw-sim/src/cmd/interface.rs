//! The command queue: from a doorbell bit to an answered slot.
//!
//! A slot passes three phases. *Fetch*, at the doorbell: the device reads entry and mailboxes by DMA and makes the
//! transport's checks. A command that fails here is not delivered and not executed. *Execute*, at the command's
//! execution time: opcode table, generic checks, handler. *Answer*: the device writes the output to the mailboxes and
//! the entry, then the byte that returns the slot to software. If a command EQ existed at submission, the command's
//! completion event follows. Last come the events that the command caused.
//!
//! A command that creates an object waits between fetch and execute until the firmware has the pages it needs. So does
//! INIT_HCA of a virtual function whose memory a reset has returned.
//!
//! Signatures are checked and written only while the `cmdif_checksum` capability is 3. A mailbox chain may be longer
//! than the message needs. A token of 0 in the entry disables the check of tokens.

use super::slots::{ENTRY_BYTES, Running, SLOTS, Waiting};
use super::{Answer, dispatch};
use crate::card::CardEvent;
use crate::env::{Env, Timer};
use crate::fault::CommandFault;
use crate::init_segment::{LOG_CMDQ_STRIDE, NIC_FULL_DRIVER};
use crate::iommu::Who;
use crate::nic::Nic;
use crate::time::nanoseconds;
use mlx_prm::{
    CmdMailbox, CmdQueueEntry, CmdStatus, DeliveryStatus, Eqe, EventType, HealthSyndrome,
    INLINE_BYTES, MAILBOX_BYTES, Opcode, TRANSPORT_PCIE,
};
use rand::RngCore;

/// Offset of the output in an entry.
const OUTPUT: u64 = 0x20;
/// Offset of the entry's last byte, which holds delivery status and ownership.
const STATUS_OWN: usize = 0x3f;
const SIGNATURE: usize = 0x3d;
const MAILBOX_CONTROL: usize = 0x200;
const MAILBOX_CTRL_SIGNATURE: usize = 0x23e;
const MAILBOX_SIGNATURE: usize = 0x23f;
/// Low 9 bits of a mailbox pointer, which are reserved (PRM, command queue entry).
const POINTER_RESERVED: u64 = 0x1ff;
/// Shortest input and output that the transport delivers, in bytes.
const MIN_LENGTH: u32 = 8;
/// Value of `cmdif_checksum` with signatures enabled.
const CHECKSUM_ON: u32 = 3;

/// The reason why a command was not delivered.
struct Undelivered {
    status: DeliveryStatus,
    why: &'static str,
}

const fn undelivered(status: DeliveryStatus, why: &'static str) -> Undelivered {
    Undelivered { status, why }
}

impl Nic {
    /// Handles a write of the command doorbell. Each set bit in `slots` names a slot.
    pub fn command_doorbell(&mut self, env: &mut Env, slots: u32) {
        if !self.alive() || self.init.nic_interface() != NIC_FULL_DRIVER {
            return;
        }
        if self.init.initializing(env.now) {
            self.driver_bug(
                env,
                format!("command doorbell {slots:#x} while the firmware boots"),
            );
            return;
        }
        let Some(queue) = self.init.command_queue() else {
            self.driver_bug(
                env,
                format!("command doorbell {slots:#x} without a command queue"),
            );
            return;
        };
        for slot in (0..32_u8).filter(|slot| slots >> slot & 1 == 1) {
            if slot >= SLOTS {
                self.driver_bug(
                    env,
                    format!("command doorbell for slot {slot}, the queue has {SLOTS}"),
                );
            } else if self.commands.owns(slot) {
                self.driver_bug(
                    env,
                    format!("command doorbell for slot {slot}, which the device owns"),
                );
            } else {
                self.fetch(env, queue, slot);
            }
        }
    }

    fn fetch(&mut self, env: &mut Env, queue: u64, slot: u8) {
        let at = entry_address(queue, slot);
        let mut bytes = [0; ENTRY_BYTES];
        if self.iommu.read(at, &mut bytes, Who::Command).is_err() {
            self.init
                .set_health_syndrome(HealthSyndrome::ICM_FETCH_PCI_ERR.0);
            return;
        }
        let entry = CmdQueueEntry::from_array(bytes);
        if !entry.ownership() {
            self.driver_bug(
                env,
                format!("command doorbell for slot {slot}, whose entry software owns"),
            );
            return;
        }
        let events = self.carrier_of(EventType::CMD).is_some();
        let opcode = u16::from_be_bytes([bytes[0x10], bytes[0x11]]);
        self.count_opcode(opcode);
        let fault = self.faults.meet(opcode);
        let message = match fault {
            Some(CommandFault::Deliver(status)) => {
                Err(undelivered(DeliveryStatus(status), "injected"))
            }
            _ => self.read_message(&entry),
        };
        match message {
            Err(Undelivered { status, why }) => {
                env.note(
                    self.index,
                    format_args!("cmd slot={slot} not delivered: {status:?}, {why}"),
                );
                self.hand_back(env, slot, status, &mut bytes, events);
                self.begin_command();
                self.end_command(env);
            }
            Ok((input, output_mailboxes)) => {
                let delay = match fault {
                    Some(CommandFault::Delay(delay)) => delay,
                    _ => 0,
                };
                let jitter = match nanoseconds(self.profile.command_jitter) {
                    0 => 0,
                    most => env.rng.next_u64() % most.saturating_add(1).max(1),
                };
                let time = nanoseconds(self.profile.command_time).saturating_add(jitter);
                let due = env.now.saturating_add(time).saturating_add(delay);
                let output_length = usize::try_from(entry.output_length()).unwrap_or(usize::MAX);
                let state = Waiting::Time;
                let running = Running {
                    entry: bytes,
                    input,
                    output_mailboxes,
                    output_length,
                    events,
                    fault,
                    state,
                };
                self.commands.running.insert(slot, running);
                env.schedule(due, self.index, Timer::Command(slot));
            }
        }
    }

    /// Reads the whole input, collects the addresses of the output mailboxes, and makes the transport's checks.
    fn read_message(&mut self, entry: &CmdQueueEntry) -> Result<(Vec<u8>, Vec<u64>), Undelivered> {
        use DeliveryStatus as D;
        let bytes = entry.as_array();
        if entry.r#type() != TRANSPORT_PCIE {
            return Err(undelivered(D::CMD_TYPE_ERR, "type"));
        }
        if entry.reserved_bits().is_some() {
            return Err(undelivered(
                D::RES_FLD_NOT_CLR_ERR,
                "reserved bits of the entry",
            ));
        }
        if self.checksums() && xor(bytes) != 0xff {
            return Err(undelivered(D::SIGNATURE_ERR, "entry signature"));
        }
        if entry.input_length() < MIN_LENGTH {
            return Err(undelivered(D::IN_LENGTH_ERR, "input length"));
        }
        if entry.output_length() < MIN_LENGTH {
            return Err(undelivered(D::OUT_LENGTH_ERR, "output length"));
        }
        let mut input = entry.command_input_inline_data().to_vec();
        self.chain(
            entry.token(),
            entry.input_mailbox_pointer(),
            entry.input_length(),
            D::IN_PTR_ALIGN_ERR,
            |mailbox, _| input.extend_from_slice(mailbox.mailbox_data()),
        )?;
        input.truncate(usize::try_from(entry.input_length()).unwrap_or(usize::MAX));
        let mut output = Vec::new();
        self.chain(
            entry.token(),
            entry.output_mailbox_pointer(),
            entry.output_length(),
            D::OUT_PTR_ALIGN_ERR,
            |_, at| output.push(at),
        )?;
        Ok((input, output))
    }

    /// Follows a mailbox chain through the mailboxes that a message of `length` bytes uses, and calls `each` for each
    /// of them.
    fn chain(
        &mut self,
        token: u32,
        first: u64,
        length: u32,
        bad_pointer: DeliveryStatus,
        mut each: impl FnMut(&CmdMailbox, u64),
    ) -> Result<(), Undelivered> {
        use DeliveryStatus as D;
        let inline = u32::try_from(INLINE_BYTES).unwrap_or(0);
        let per_mailbox = u32::try_from(MAILBOX_BYTES).unwrap_or(u32::MAX);
        let count = length.saturating_sub(inline).div_ceil(per_mailbox);
        let mut at = first;
        for number in 0..count {
            if at == 0 {
                return Err(undelivered(bad_pointer, "mailbox chain too short"));
            }
            if at & POINTER_RESERVED != 0 {
                return Err(undelivered(bad_pointer, "mailbox pointer not aligned"));
            }
            let mut bytes = [0; size_of::<CmdMailbox>()];
            if self.iommu.read(at, &mut bytes, Who::Command).is_err() {
                return Err(undelivered(D::FW_ERR, "mailbox not readable"));
            }
            if self.checksums() && bad_pointer == D::IN_PTR_ALIGN_ERR && !mailbox_signed(&bytes) {
                return Err(undelivered(D::SIGNATURE_ERR, "mailbox signature"));
            }
            let mailbox = CmdMailbox::from_array(bytes);
            if token != 0 && mailbox.token() != token {
                return Err(undelivered(D::TOKEN_ERR, "token"));
            }
            if mailbox.block_number() != number {
                return Err(undelivered(D::BAD_BLOCK_NUMBER, "block number"));
            }
            if mailbox.reserved_bits().is_some() {
                return Err(undelivered(
                    D::RES_FLD_NOT_CLR_ERR,
                    "reserved bits of a mailbox",
                ));
            }
            each(&mailbox, at);
            at = mailbox.next_pointer();
        }
        Ok(())
    }

    /// Executes the command in this slot at its execution time.
    pub fn execute_command(&mut self, env: &mut Env, slot: u8) {
        let Some(mut running) = self.commands.running.remove(&slot) else {
            return;
        };
        let silent = matches!(running.fault, Some(CommandFault::Silence));
        if !self.alive() || self.init.is_stuck() || silent {
            env.note(
                self.index,
                format_args!("cmd slot={slot} is never answered"),
            );
            running.state = Waiting::Never;
            self.commands.running.insert(slot, running);
            return;
        }
        if running.state == Waiting::Never {
            self.commands.running.insert(slot, running);
            return;
        }
        if self.must_wait_for_pages(env, &running) {
            env.note(self.index, format_args!("cmd slot={slot} waits for pages"));
            running.state = Waiting::Pages;
            self.commands.running.insert(slot, running);
            return;
        }
        self.begin_command();
        let answer = match running.fault {
            Some(CommandFault::Fail { status, syndrome }) => Answer::injected(status, syndrome),
            _ => dispatch(self, env, &running.input, running.output_length),
        };
        self.answer(env, slot, running, &answer);
    }

    fn must_wait_for_pages(&mut self, env: &mut Env, running: &Running) -> bool {
        if self.must_wait_for_manager(env, running) {
            return true;
        }
        if !super::creates(&running.input) || self.carrier_of(EventType::PAGE_REQUEST).is_none() {
            return false;
        }
        if running.state == Waiting::Time
            && let Some(&opcode) = running.input.first_chunk()
            && let Some(pages) = self.faults.wanted_pages(u16::from_be_bytes(opcode))
        {
            self.request_pages(env, i32::try_from(pages).unwrap_or(i32::MAX));
        }
        self.pages.starving()
    }

    /// Returns whether INIT_HCA must wait for the manager. A virtual function that was reset gets new memory from its
    /// manager's driver during INIT_HCA. Until that driver responds, the command stays unanswered.
    fn must_wait_for_manager(&mut self, env: &mut Env, running: &Running) -> bool {
        let needs_pages = self.seat.is_virtual() && env.vport(self.seat).needs_pages;
        let starts = running.input.starts_with(&Opcode::INIT_HCA.0.to_be_bytes());
        if !needs_pages || !starts || running.state == Waiting::PagesAnswered {
            return false;
        }
        if running.state == Waiting::Time
            && let Some(manager) = env.manager(self.seat)
        {
            let vport = self.seat.vport;
            env.card_events
                .push_back((manager, CardEvent::VfNeedsPages { vport }));
        }
        true
    }

    /// Continues the commands that waited for pages, or fails them if the pages were not given.
    pub fn pages_answered(&mut self, env: &mut Env, given: bool) {
        let waiting: Vec<u8> = self
            .commands
            .running
            .iter()
            .filter(|(_, running)| running.state == Waiting::Pages)
            .map(|(&slot, _)| slot)
            .collect();
        for slot in waiting {
            if let Some(running) = self.commands.running.get_mut(&slot) {
                running.state = Waiting::PagesAnswered;
                if !given {
                    let status = CmdStatus::NO_RESOURCES.0;
                    running.fault = Some(CommandFault::Fail {
                        status,
                        syndrome: super::syndrome_of("no pages"),
                    });
                }
                env.schedule(env.now, self.index, Timer::Command(slot));
            }
        }
    }

    fn answer(&mut self, env: &mut Env, slot: u8, mut running: Running, answer: &Answer) {
        let output = &answer.bytes[..answer.bytes.len().min(running.output_length)];
        let mut bytes = running.entry;
        let inline = output.len().min(INLINE_BYTES);
        let field = &mut bytes[0x20..0x20 + INLINE_BYTES];
        field[..inline].copy_from_slice(&output[..inline]);
        let mut status = DeliveryStatus::OK;
        let rest = output.get(INLINE_BYTES..).unwrap_or_default();
        for (at, data) in std::mem::take(&mut running.output_mailboxes)
            .into_iter()
            .zip(rest.chunks(MAILBOX_BYTES))
        {
            if self.write_mailbox(at, data).is_err() {
                env.note(
                    self.index,
                    format_args!("cmd slot={slot}: output mailbox not writable"),
                );
                status = DeliveryStatus::FW_ERR;
            }
        }
        self.hand_back(env, slot, status, &mut bytes, running.events);
        self.end_command(env);
    }

    fn write_mailbox(&mut self, at: u64, data: &[u8]) -> Result<(), crate::host::DmaFault> {
        self.iommu.write(at, data, Who::Command)?;
        if !self.checksums() {
            return Ok(());
        }
        let mut bytes = [0; size_of::<CmdMailbox>()];
        self.iommu.read(at, &mut bytes, Who::Command)?;
        bytes[MAILBOX_CTRL_SIGNATURE] = 0;
        bytes[MAILBOX_CTRL_SIGNATURE] = !xor(&bytes[MAILBOX_CONTROL..MAILBOX_SIGNATURE]);
        bytes[MAILBOX_SIGNATURE] = 0;
        bytes[MAILBOX_SIGNATURE] = !xor(&bytes);
        self.iommu.write(
            at + MAILBOX_CONTROL as u64,
            &bytes[MAILBOX_CONTROL..],
            Who::Command,
        )
    }

    /// Writes the inline output, then returns the slot to software, then sends the completion event.
    fn hand_back(
        &mut self,
        env: &mut Env,
        slot: u8,
        status: DeliveryStatus,
        bytes: &mut [u8; ENTRY_BYTES],
        events: bool,
    ) {
        let Some(queue) = self.init.command_queue() else {
            return;
        };
        let at = entry_address(queue, slot);
        bytes[STATUS_OWN] = status.0 << 1;
        if self.checksums() {
            bytes[SIGNATURE] = 0;
            bytes[SIGNATURE] = !xor(bytes.as_slice());
        }
        let inline = &bytes[0x20..0x20 + INLINE_BYTES];
        let written = self
            .iommu
            .write(at + OUTPUT, inline, Who::Command)
            .and_then(|()| {
                self.iommu
                    .write(at + SIGNATURE as u64, &[bytes[SIGNATURE]], Who::Command)
            })
            .and_then(|()| {
                self.iommu
                    .publish(at + STATUS_OWN as u64, bytes[STATUS_OWN], Who::Command)
            });
        if written.is_err() {
            self.init
                .set_health_syndrome(HealthSyndrome::ICM_FETCH_PCI_ERR.0);
            return;
        }
        if events && let Some(eqn) = self.carrier_of(EventType::CMD) {
            let mut eqe = Eqe::new();
            eqe.set_event_type(EventType::CMD.0);
            eqe.event_data_mut()[0..4].copy_from_slice(&(1_u32 << slot).to_be_bytes());
            self.post_now(env, eqn, &eqe);
        }
    }

    fn checksums(&self) -> bool {
        self.caps.general.cmdif_checksum() == CHECKSUM_ON
    }
}

fn entry_address(queue: u64, slot: u8) -> u64 {
    queue + (u64::from(slot) << LOG_CMDQ_STRIDE)
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

fn mailbox_signed(bytes: &[u8]) -> bool {
    xor(&bytes[MAILBOX_CONTROL..MAILBOX_SIGNATURE]) == 0xff && xor(bytes) == 0xff
}
