//! The command interface (PRM "Command Interface").
//!
//! The driver sends commands, and the firmware answers them. One page of DMA memory holds up to 32 *slots*. A slot is a
//! 64-byte entry (`CmdQueueEntry`) with the first 16 bytes of the input and of the output, and pointers to two chains
//! of mailboxes for the rest. To post a command, the driver fills the chains and the entry, gives the entry to the
//! device (by the ownership bit, in the byte that is written last), and sets the slot's bit in the doorbell. To answer,
//! the device clears the ownership bit and, once an event queue for commands exists, writes an event that names the
//! slot. Slots complete in any order.
//!
//! Ownership: from the doorbell until the ownership bit is zero, the entry and both chains belong to the device. If the
//! driver gives a command up (time limit, dead device), this does not change: the slot is *quarantined* with its
//! memory until the device returns the entry. If the device never does, the slot is lost. In return, no memory is ever
//! used for two commands at once.
//!
//! The last slot is reserved for `MANAGE_PAGES`: a command may wait inside the firmware for pages, and the command
//! that gives the pages must not wait behind it.
//!
//! [`queue`] is the queue without any waiting: submit, harvest, take. `crate::control` waits, and handles events
//! meanwhile.

pub(crate) mod dump;
pub(crate) mod mailbox;
pub mod queue;
pub(crate) mod signature;

pub use queue::{
    CommandQueue, CommandQueueSnapshot, CommandTally, SlotClass, SubmitError, TallySnapshot, Ticket,
};
