//! The command queue: slots, and the commands in them.
//!
//! ```text
//!          Submit             Returned            Take, Abandon
//!  Free ------------> Posted ----------> Done --------------------> Free
//!                       |                                            ^
//!                       | Abandon (time limit, dead device)          |
//!                       '--------> Quarantined ----------------------'
//!                                                   Returned
//! ```
//!
//! *Returned* is the ownership bit of the entry: the device sets it to 0 when it returns the entry.
//!
//! There is no edge from Posted to Free: an entry whose answer is no longer waited for still belongs to the device.
//! A command that is abandoned in Done counts as answered, although its owner discards the answer.
//! No code in this module waits or reads a clock.

mod parking;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use driver::{Be32, Block, DmaArena, DmaBuffer, DmaError, Instant, barrier};
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::dump::{self, Direction};
use super::mailbox::{Chain, INLINE_BYTES, Pool};
use super::signature;
use crate::error::CmdError;
use crate::recorder::Recorder;
use mlx_prm::{CmdQueueEntry, CmdStatus, DeliveryStatus, InitSegment, Opcode, TRANSPORT_PCIE};
pub use parking::{CommandQueueSnapshot, TallySnapshot};

/// Maximum length of the queue in bytes: one page, so log size + log stride <= 12 (PRM "Initialization Segment").
const QUEUE_BYTES: usize = 4096;
/// Maximum number of slots: one for every bit of the doorbell.
const MAX_SLOTS: usize = 32;
const ENTRY_BYTES: usize = CmdQueueEntry::SIZE;
/// Offset of the last byte of an entry: delivery status in bits 7:1, ownership in bit 0.
const STATUS_OWN: usize = 0x3f;
const OWNED_BY_DEVICE: u8 = 1;
/// Length in bytes of the shortest message: every input and every output begins with two header words.
const SHORTEST_MESSAGE: usize = 8;

/// Class of slots that a command may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotClass {
    /// Any slot except the last.
    Ordinary,
    /// The last slot, so that page commands never wait behind a command that waits for pages. If the last slot is
    /// quarantined, any other free slot.
    Pages,
}

/// Reason why a command was not posted.
#[derive(Debug, Error)]
pub enum SubmitError {
    /// All slots of the class are in use.
    #[error("no free command slot")]
    NoSlot,
    /// No memory could be allocated for the mailboxes.
    #[error(transparent)]
    Memory(#[from] DmaError),
}

/// The right to take the answer of one posted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an answer nobody takes keeps its slot"]
pub struct Ticket {
    slot: usize,
    serial: u64,
    opcode: Opcode,
    /// Third word of the command: the number of the object that it destroys, if it destroys one.
    object: u32,
    posted_at: Instant,
}

/// Outcomes of the commands of one kind since the function was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandTally {
    /// Number of commands that were answered, including refusals.
    pub answered: u64,
    /// Number of answered commands that the firmware refused, or whose answer was invalid.
    pub refused: u64,
    /// Number of commands that were given up, or were pending when the device died.
    pub unanswered: u64,
    /// Total time of the answered commands, each from the doorbell until its owner took the answer.
    pub time: Duration,
    /// Longest time of one answered command.
    pub longest: Duration,
}

impl CommandTally {
    fn answered(&mut self, well: bool, took: Duration) {
        self.answered += 1;
        self.refused += u64::from(!well);
        self.time = self.time.saturating_add(took);
        self.longest = self.longest.max(took);
    }
}

impl Ticket {
    /// Returns the number of the slot that the command is in.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Returns the opcode of the command.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns the third word of the command: the number of the object that it destroys, if it destroys one.
    pub(crate) fn object(&self) -> u32 {
        self.object
    }
}

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
enum State {
    /// No command is in the slot.
    Free,
    /// The device has the command, and its answer is waited for.
    Posted,
    /// The answer has been read. It waits for the owner of the ticket.
    Done,
    /// The device has the command, and its owner no longer waits for the answer.
    Quarantined,
}

/// Event that changes the state of a slot. Take and Abandon require the ticket of the slot's present command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
enum Event {
    /// A command is to be posted.
    Submit,
    /// The ownership bit is 0.
    Returned,
    /// The owner of the ticket takes the answer.
    Take,
    /// The owner no longer waits for the answer.
    Abandon,
}

/// Action of a step besides the change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Nothing: the event has no effect in this state.
    Nothing,
    /// Give the entry to the device.
    HandOver,
    /// Read and keep the answer, and take the mailboxes back.
    Keep,
    /// Take the mailboxes back. The answer is late and is not read.
    Reclaim,
    /// Count the command as answered. A caller that takes the answer gets it.
    CountAnswer,
    /// Count the command as unanswered.
    CountUnanswered,
}

impl State {
    const fn step(self, event: Event) -> (Self, Action) {
        match (self, event) {
            (Self::Free, Event::Submit) => (Self::Posted, Action::HandOver),
            (Self::Posted, Event::Returned) => (Self::Done, Action::Keep),
            (Self::Posted, Event::Abandon) => (Self::Quarantined, Action::CountUnanswered),
            (Self::Done, Event::Take | Event::Abandon) => (Self::Free, Action::CountAnswer),
            (Self::Quarantined, Event::Returned) => (Self::Free, Action::Reclaim),
            (Self::Free, Event::Returned | Event::Take | Event::Abandon)
            | (Self::Posted, Event::Submit | Event::Take)
            | (Self::Done, Event::Submit | Event::Returned)
            | (Self::Quarantined, Event::Submit | Event::Take | Event::Abandon) => {
                (self, Action::Nothing)
            }
        }
    }
}

/// A command while the device has it.
#[derive(Debug)]
struct Flight {
    opcode: Opcode,
    op_mod: u16,
    out_bytes: usize,
    input: Chain,
    output: Chain,
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// Serial number of the last command in the slot.
    serial: u64,
    /// The command; there is one in Posted and Quarantined.
    flight: Option<Flight>,
    /// The answer; there is one in Done.
    answer: Option<Result<Vec<u8>, CmdError>>,
}

impl Slot {
    const FREE: Self = Self {
        state: State::Free,
        serial: 0,
        flight: None,
        answer: None,
    };

    /// Takes a step, and returns the action that the caller must carry out.
    fn step(&mut self, event: Event) -> Action {
        let (state, action) = self.state.step(event);
        self.state = state;
        action
    }
}

/// The command queue of one function.
pub struct CommandQueue {
    memory: DmaBuffer,
    registers: Block<InitSegment>,
    pool: Pool,
    slots: Vec<Slot>,
    stride: usize,
    next_token: u8,
    next_serial: u64,
    returned: u64,
    tallies: BTreeMap<Opcode, CommandTally>,
    recorder: Arc<Recorder>,
    check_signatures: bool,
}

impl CommandQueue {
    /// Makes a queue of `1 << log_size` slots, `1 << log_stride` bytes apart. Returns `None` if these
    /// numbers, which the device reports, do not describe a queue of one page with at least two slots.
    ///
    /// # Errors
    /// No memory could be allocated.
    pub fn new(
        arena: DmaArena,
        registers: Block<InitSegment>,
        log_size: u32,
        log_stride: u32,
    ) -> Result<Option<Self>, DmaError> {
        if !is_possible(log_size, log_stride) {
            return Ok(None);
        }
        let memory = arena.alloc(QUEUE_BYTES, QUEUE_BYTES)?;
        Ok(Some(Self {
            memory,
            registers,
            pool: Pool::new(arena),
            slots: (0..1usize << log_size).map(|_| Slot::FREE).collect(),
            stride: 1 << log_stride,
            next_token: 1,
            next_serial: 0,
            returned: 0,
            tallies: BTreeMap::new(),
            recorder: Arc::default(),
            check_signatures: false,
        }))
    }

    /// Returns the DMA address of the queue.
    pub fn iova(&self) -> u64 {
        self.memory.iova().0
    }

    /// Sets whether the signatures of answers are checked; must agree with the device's `cmdif_checksum`.
    pub fn check_signatures(&mut self, on: bool) {
        self.check_signatures = on;
    }

    /// Returns the number of commands posted since creation.
    pub fn posted(&self) -> u64 {
        self.next_serial
    }

    /// Returns the number of commands that the device has returned since creation, including late ones.
    pub(crate) fn returned(&self) -> u64 {
        self.returned
    }

    /// Returns the outcomes of the commands of each kind.
    pub fn tallies(&self) -> &BTreeMap<Opcode, CommandTally> {
        &self.tallies
    }

    /// Returns the flight recorder, which records commands and other events of the function.
    pub(crate) fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Returns the number of quarantined slots: their commands were given up, but the device still has their memory.
    pub fn quarantined(&self) -> usize {
        self.count(State::Quarantined)
    }

    /// Returns the number of commands that the device has and that were not given up.
    pub fn in_flight(&self) -> usize {
        self.count(State::Posted)
    }

    fn count(&self, state: State) -> usize {
        let slots = self.slots.iter();
        slots.filter(|slot| slot.state == state).count()
    }

    /// Returns whether an ordinary command can be posted now.
    pub(crate) fn has_free_slot(&self) -> bool {
        self.free_slot(SlotClass::Ordinary).is_some()
    }

    fn free_slot(&self, class: SlotClass) -> Option<usize> {
        let reserved = self.slots.len() - 1;
        let ordinary = || (0..reserved).find(|slot| self.slots[*slot].state == State::Free);
        match class {
            SlotClass::Ordinary => ordinary(),
            SlotClass::Pages => match self.slots[reserved].state {
                State::Free => Some(reserved),
                State::Quarantined => ordinary(),
                State::Posted | State::Done => None,
            },
        }
    }

    /// Posts a command. `input` is the whole message, beginning with opcode and op_mod; `out_bytes` is
    /// the length of the answer.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was posted.
    pub fn submit(
        &mut self,
        class: SlotClass,
        input: &[u8],
        out_bytes: usize,
        now: Instant,
    ) -> Result<Ticket, SubmitError> {
        // PANIC: our own command structures are longer. The device would refuse shorter ones as undeliverable.
        assert!(
            input.len() >= SHORTEST_MESSAGE && out_bytes >= SHORTEST_MESSAGE,
            "{} in, {out_bytes} out",
            input.len()
        );
        let slot = self.free_slot(class).ok_or(SubmitError::NoSlot)?;
        let in_chain = self.pool.chain_for(input.len())?;
        let out_chain = match self.pool.chain_for(out_bytes) {
            Ok(chain) => chain,
            Err(error) => {
                self.pool.give_back(in_chain);
                return Err(error.into());
            }
        };
        let token = self.next_token;
        self.next_token = self.next_token.checked_add(1).unwrap_or(1);
        let serial = self.next_serial;
        self.next_serial += 1;

        let inline = input.len().min(INLINE_BYTES);
        in_chain.fill(token, &input[inline..]);
        out_chain.fill(token, &[]);
        let mut entry = CmdQueueEntry::new();
        entry
            .set_type(TRANSPORT_PCIE)
            .set_input_length(length_u32(input.len()))
            .set_input_mailbox_pointer(in_chain.first())
            .set_output_mailbox_pointer(out_chain.first())
            .set_output_length(length_u32(out_bytes))
            .set_token(u32::from(token))
            .set_ownership(true);
        entry.command_input_inline_data_mut()[..inline].copy_from_slice(&input[..inline]);
        let signature = signature::closing(entry.as_bytes());
        entry.set_signature(u32::from(signature));

        let opcode = Opcode(u16::from_be_bytes([input[0], input[1]]));
        if dump::wanted() {
            dump::trace(
                Direction::Input,
                opcode,
                entry.as_bytes(),
                in_chain.images(),
            );
        }
        let action = self.slots[slot].step(Event::Submit);
        // PANIC: `free_slot` found the slot free, and nothing has used it since.
        assert_eq!(action, Action::HandOver, "slot {slot}");
        self.slots[slot].serial = serial;
        self.slots[slot].flight = Some(Flight {
            opcode,
            op_mod: u16::from_be_bytes([input[6], input[7]]),
            out_bytes,
            input: in_chain,
            output: out_chain,
        });
        self.hand_over(slot, &entry);
        Ok(Ticket {
            slot,
            serial,
            opcode,
            object: object_of(input),
            posted_at: now,
        })
    }

    /// Gives an entry to the device. No other function rings the command doorbell.
    fn hand_over(&self, slot: usize, entry: &CmdQueueEntry) {
        let at = slot * self.stride;
        self.memory.write_bytes(at, &entry.as_bytes()[..STATUS_OWN]);
        barrier::dma_to_device(); // entry and mailboxes are written before the ownership bit
        self.memory.store_u8(at + STATUS_OWN, OWNED_BY_DEVICE);
        barrier::dma_to_device(); // the ownership bit is written before the doorbell
        if dump::wanted() {
            tracing::trace!(target: dump::TARGET, "writing {:#x} to command doorbell", 1 << slot);
        }
        self.registers
            .write(|segment| &segment.cmd_dbell, Be32::new(1 << slot));
        barrier::flush_write_combining();
    }

    /// Checks the slots that an event named (bit n is slot n) and reads the answers. Ignores bits of slots
    /// that the queue does not have or that the device still owns. Returns the slots whose answers now wait for the
    /// owners of their tickets.
    pub fn harvest(&mut self, vector: u32) -> u32 {
        let mut done = 0;
        for slot in 0..self.slots.len() {
            if vector & (1 << slot) != 0 && self.harvest_slot(slot) {
                done |= 1 << slot;
            }
        }
        done
    }

    /// Checks a slot. Returns whether its answer was read.
    fn harvest_slot(&mut self, slot: usize) -> bool {
        let at = slot * self.stride;
        // The entry is read only if the device has the slot. Such a slot holds a command.
        if self.slots[slot].flight.is_none()
            || self.memory.load_u8(at + STATUS_OWN) & OWNED_BY_DEVICE != 0
        {
            return false;
        }
        barrier::dma_from_device(); // the rest of the entry is read after its ownership bit
        self.returned += 1;
        let kept = self.slots[slot].step(Event::Returned) == Action::Keep;
        // PANIC: the check above found a command in the slot.
        let flight = self.slots[slot].flight.take().expect("a command");
        if kept {
            let mut image = [0u8; ENTRY_BYTES];
            self.memory.read_bytes(at, &mut image);
            self.slots[slot].answer = Some(self.read_answer(&image, &flight));
        } else {
            tracing::warn!(opcode = ?flight.opcode, slot, "late answer to an abandoned command; its memory is free again");
        }
        self.pool.give_back(flight.input);
        self.pool.give_back(flight.output);
        kept
    }

    fn read_answer(&self, image: &[u8; ENTRY_BYTES], flight: &Flight) -> Result<Vec<u8>, CmdError> {
        let Flight { opcode, op_mod, .. } = *flight;
        let entry = CmdQueueEntry::read_from_bytes(image).unwrap_or_else(|_| CmdQueueEntry::new());
        if dump::wanted() {
            dump::trace(Direction::Output, opcode, image, flight.output.images());
        }
        let delivery = DeliveryStatus(image[STATUS_OWN] >> 1);
        if delivery != DeliveryStatus::OK {
            return Err(CmdError::Delivery {
                opcode,
                op_mod,
                status: delivery,
            });
        }
        if self.check_signatures && !signature::holds(image) {
            return Err(CmdError::BadSignature {
                opcode,
                op_mod,
                block: None,
            });
        }
        let mut output = Vec::with_capacity(flight.out_bytes);
        output.extend_from_slice(
            &entry.command_output_inline_data()[..flight.out_bytes.min(INLINE_BYTES)],
        );
        let status = CmdStatus(output[0]);
        if status != CmdStatus::OK {
            let syndrome = u32::from_be_bytes([output[4], output[5], output[6], output[7]]);
            return Err(CmdError::Refused {
                opcode,
                op_mod,
                status,
                syndrome,
            });
        }
        let rest = flight.out_bytes.saturating_sub(INLINE_BYTES);
        match flight.output.read(rest, self.check_signatures, &mut output) {
            Ok(()) => Ok(output),
            Err(block) => Err(CmdError::BadSignature {
                opcode,
                op_mod,
                block: Some(block.0),
            }),
        }
    }

    /// Returns the slot of a ticket's command, unless another command has used it since.
    fn slot_of(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(ticket.slot)?;
        (slot.serial == ticket.serial).then_some(slot)
    }

    /// Returns the answer if it has been read, frees the slot, and counts the command.
    pub fn take(&mut self, ticket: Ticket, now: Instant) -> Option<Result<Vec<u8>, CmdError>> {
        let action = self.slot_of(ticket)?.step(Event::Take);
        (action == Action::CountAnswer).then(|| self.count_answer(ticket, now))
    }

    /// Counts the answer of a slot that has just become free, and returns it.
    fn count_answer(&mut self, ticket: Ticket, now: Instant) -> Result<Vec<u8>, CmdError> {
        let answer = self.slots[ticket.slot].answer.take();
        // PANIC: the slot was Done, so it had an answer.
        let answer = answer.expect("an answer");
        let tally = self.tallies.entry(ticket.opcode).or_default();
        let took = now.since(ticket.posted_at);
        tally.answered(answer.is_ok(), took);
        self.recorder.answered(now, ticket.opcode, &answer, took);
        answer
    }

    /// Gives a command up. If the device still has the command, returns its opcode, its op_mod, and the milliseconds
    /// since it was posted. Its memory then belongs to the device until the device returns the entry. If the answer has
    /// been read, counts and drops the answer, and returns `None`.
    pub fn abandon(&mut self, ticket: Ticket, now: Instant) -> Option<(Opcode, u16, u64)> {
        let slot = self.slot_of(ticket)?;
        let action = slot.step(Event::Abandon);
        let op_mod = slot.flight.as_ref().map(|flight| flight.op_mod);
        if action == Action::CountAnswer {
            let _unwanted = self.count_answer(ticket, now);
        }
        if action != Action::CountUnanswered {
            return None;
        }
        // PANIC: a slot that the device has holds a command.
        let op_mod = op_mod.expect("a command");
        let opcode = ticket.opcode;
        let waited_ms = now.0.saturating_sub(ticket.posted_at.0) / 1_000_000;
        let took = now.since(ticket.posted_at);
        self.recorder.unanswered(now, opcode, took);
        self.tallies.entry(opcode).or_default().unanswered += 1;
        Some((opcode, op_mod, waited_ms))
    }
}

impl std::fmt::Debug for CommandQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slots: Vec<String> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.state != State::Free)
            .map(|(number, slot)| match &slot.flight {
                Some(flight) => format!("{number}: {:?} {:?}", slot.state, flight.opcode),
                None => format!("{number}: {:?}", slot.state),
            })
            .collect();
        f.debug_struct("CommandQueue")
            .field("iova", &format_args!("{:#x}", self.iova()))
            .field("slots", &self.slots.len())
            .field("posted", &self.next_serial)
            .field("busy", &slots)
            .finish_non_exhaustive()
    }
}

/// Returns whether `1 << log_size` slots, `1 << log_stride` bytes apart, are a queue of one page with at least two
/// slots.
fn is_possible(log_size: u32, log_stride: u32) -> bool {
    // With a single slot, the driver could not give pages while a command waits for them.
    (1..=MAX_SLOTS.ilog2()).contains(&log_size)
        && (ENTRY_BYTES.ilog2()..=QUEUE_BYTES.ilog2()).contains(&log_stride)
        && log_size + log_stride <= QUEUE_BYTES.ilog2()
}

/// Returns the third word of a message. Commands that destroy an object, and answers to those that create one, have the
/// object's number there.
pub(crate) fn object_of(message: &[u8]) -> u32 {
    let word = message.get(8..12).and_then(|word| word.first_chunk());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}

/// Converts the length of a message. The longest is MANAGE_PAGES, whose page list has up to 8 MiB.
fn length_u32(bytes: usize) -> u32 {
    // PANIC: no mailboxes could have been allocated for a message of 4 GiB.
    u32::try_from(bytes).expect("a message shorter than 4 GiB")
}

#[cfg(test)]
mod tests;
