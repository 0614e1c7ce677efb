//! The slots of the command queue that the device owns, and the wait of each.

use crate::fault::CommandFault;
use crate::init_segment::{LOG_CMDQ_SIZE, LOG_CMDQ_STRIDE};
use std::collections::BTreeMap;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 1 << LOG_CMDQ_STRIDE;
/// Slots of the queue.
pub const SLOTS: u8 = 1 << LOG_CMDQ_SIZE;

/// A fetched command.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) entry: [u8; ENTRY_BYTES],
    pub(super) input: Vec<u8>,
    pub(super) output_mailboxes: Vec<u64>,
    pub(super) output_length: usize,
    /// A command EQ existed when it was submitted.
    pub(super) events: bool,
    pub(super) fault: Option<CommandFault>,
    pub(super) state: Waiting,
}

/// The event that a fetched command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Its execution time.
    Time,
    /// Pages for the firmware.
    Pages,
    /// Its execution time; the pages have come.
    PagesAnswered,
    /// None; it will never be answered.
    Never,
}

/// The slots the device owns.
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
