//! The command queue slots that the device owns, and the event that each of them waits for.

use crate::fault::CommandFault;
use crate::init_segment::{LOG_CMDQ_SIZE, LOG_CMDQ_STRIDE};
use std::collections::BTreeMap;

/// Bytes of a command queue entry.
pub(super) const ENTRY_BYTES: usize = 1 << LOG_CMDQ_STRIDE;
/// Number of slots of the command queue.
pub const SLOTS: u8 = 1 << LOG_CMDQ_SIZE;

/// A fetched command.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) entry: [u8; ENTRY_BYTES],
    pub(super) input: Vec<u8>,
    pub(super) output_mailboxes: Vec<u64>,
    pub(super) output_length: usize,
    /// True if a command EQ existed when the command was submitted.
    pub(super) events: bool,
    pub(super) fault: Option<CommandFault>,
    pub(super) state: Waiting,
}

/// The event that a fetched command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The command's execution time.
    Time,
    /// Pages for the firmware.
    Pages,
    /// The command's execution time, after the manager or driver answered the request for pages.
    PagesAnswered,
    /// Nothing. The command will never be answered.
    Never,
}

/// The slots that the device owns.
#[derive(Debug, Default)]
pub struct CommandInterface {
    pub(super) running: BTreeMap<u8, Running>,
}

impl CommandInterface {
    /// Drops every command.
    pub fn reset(&mut self) {
        self.running.clear();
    }

    /// Returns whether the device owns this slot.
    pub fn owns(&self, slot: u8) -> bool {
        self.running.contains_key(&slot)
    }
}
