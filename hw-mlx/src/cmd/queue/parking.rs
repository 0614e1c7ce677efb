//! The command queue of a function that is handed over to another process.
//!
//! All slots are free then, so the snapshot has no commands. Mailboxes are not in it either: the next process allocates
//! its own.

use std::collections::BTreeMap;
use std::time::Duration;

use driver::{Block, DmaArena, Iova};
use mlx_prm::{InitSegment, Opcode};

use super::super::mailbox::Pool;
use super::{
    CommandQueue, CommandTally, OWNED_BY_DEVICE, QUEUE_BYTES, STATUS_OWN, Slot, State, is_possible,
};
use crate::bounds::MAX_COUNT;
use crate::error::ResumeError;

/// Name of the table in errors.
const TABLE: &str = "the command queue";

/// A command queue whose slots are all free.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CommandQueueSnapshot {
    /// I/O address of the queue, which has 4096 bytes.
    pub iova: u64,
    /// log2 of the number of slots.
    pub log_size: u32,
    /// log2 of the distance between slots in bytes.
    pub log_stride: u32,
    /// Token of the next command; never 0.
    pub next_token: u8,
    /// Number of commands posted since the function was opened. All were returned.
    pub posted: u64,
    /// True if the device signs its answers.
    pub is_signed: bool,
    /// Outcomes of the commands, by opcode.
    pub tallies: Vec<TallySnapshot>,
}

/// Outcomes of the commands of one kind ([`CommandTally`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct TallySnapshot {
    /// The opcode.
    pub opcode: u16,
    /// Number of commands that were answered, including refusals.
    pub answered: u64,
    /// Number of answered commands that the firmware refused, or whose answer was invalid.
    pub refused: u64,
    /// Number of commands that were given up.
    pub unanswered: u64,
    /// Total time of the answered commands.
    pub time: Duration,
    /// Longest time of one answered command.
    pub longest: Duration,
}

impl CommandQueue {
    /// Returns the numbers of slots that are in use: posted, done, quarantined.
    pub(crate) fn in_use(&self) -> (usize, usize, usize) {
        (
            self.count(State::Posted),
            self.count(State::Done),
            self.count(State::Quarantined),
        )
    }

    /// Returns the number of buffers of a queue whose slots are all free: the queue, and pages of mailboxes.
    pub(crate) fn buffers(&self) -> usize {
        1 + self.pool.pages()
    }

    /// Describes a queue whose slots are all free.
    pub(crate) fn snapshot(&self) -> CommandQueueSnapshot {
        let tally = |(opcode, tally): (&Opcode, &CommandTally)| TallySnapshot {
            opcode: opcode.0,
            answered: tally.answered,
            refused: tally.refused,
            unanswered: tally.unanswered,
            time: tally.time,
            longest: tally.longest,
        };
        CommandQueueSnapshot {
            iova: self.iova(),
            log_size: self.slots.len().ilog2(),
            log_stride: self.stride.ilog2(),
            next_token: self.next_token,
            posted: self.next_serial,
            is_signed: self.check_signatures,
            tallies: self.tallies.iter().map(tally).collect(),
        }
    }

    /// Makes the queue again. Nothing is written to the device or to memory.
    ///
    /// # Errors
    /// The numbers are impossible, the memory is not there, or the device has a slot.
    pub(crate) fn resume(
        arena: &DmaArena,
        registers: Block<InitSegment>,
        snapshot: &CommandQueueSnapshot,
    ) -> Result<Self, ResumeError> {
        let CommandQueueSnapshot {
            iova,
            log_size,
            log_stride,
            next_token,
            posted,
            is_signed,
            ref tallies,
        } = *snapshot;
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        if !is_possible(log_size, log_stride) || !iova.is_multiple_of(QUEUE_BYTES as u64) {
            return Err(refused(format!(
                "2^{log_size} slots of 2^{log_stride} bytes at IOVA {iova:#x}"
            )));
        }
        if next_token == 0 || posted > MAX_COUNT {
            return Err(refused(format!(
                "{posted} commands posted, the next with token {next_token}"
            )));
        }
        let tallies = resume_tallies(tallies, posted)?;
        let memory = arena.claim(Iova(iova), QUEUE_BYTES);
        let memory = memory.map_err(ResumeError::of_memory(TABLE))?;
        let stride = 1 << log_stride;
        for slot in 0..1usize << log_size {
            if memory.load_u8(slot * stride + STATUS_OWN) & OWNED_BY_DEVICE != 0 {
                return Err(ResumeError::changed(format!(
                    "it owns slot {slot} of the command queue"
                )));
            }
        }
        Ok(Self {
            memory,
            registers,
            pool: Pool::new(arena.clone()),
            slots: (0..1usize << log_size).map(|_| Slot::FREE).collect(),
            stride,
            next_token,
            next_serial: posted,
            returned: posted,
            tallies,
            recorder: std::sync::Arc::default(),
            check_signatures: is_signed,
        })
    }
}

fn resume_tallies(
    tallies: &[TallySnapshot],
    posted: u64,
) -> Result<BTreeMap<Opcode, CommandTally>, ResumeError> {
    let mut resumed = BTreeMap::new();
    let mut counted = 0_u64;
    for tally in tallies {
        let TallySnapshot {
            opcode,
            answered,
            refused,
            unanswered,
            time,
            longest,
        } = *tally;
        let all = answered.checked_add(unanswered);
        let sum = all.and_then(|all| counted.checked_add(all));
        let restored = CommandTally {
            answered,
            refused,
            unanswered,
            time,
            longest,
        };
        let is_new = resumed.insert(Opcode(opcode), restored).is_none();
        match sum {
            Some(sum) if sum <= posted && refused <= answered && longest <= time && is_new => {
                counted = sum;
            }
            Some(_) | None => {
                return Err(ResumeError::snapshot(
                    TABLE,
                    format!("{posted} commands posted, among them {tally:?}"),
                ));
            }
        }
    }
    Ok(resumed)
}
