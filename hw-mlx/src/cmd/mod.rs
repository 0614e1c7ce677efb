//! The command interface (PRM "Command Interface").
//!
//! The driver asks, the firmware answers. One page of DMA memory holds up to 32 *slots*; a slot is a
//! 64-byte entry (`CmdQueueEntry`) with the first 16 bytes of the question and of the answer, and pointers
//! to two chains of mailboxes for the rest. Posting a command is: fill chains and entry, give the
//! entry to the device (ownership bit, the last byte written), ring the doorbell bit of the slot. The
//! device answers by taking the ownership bit away, and, once an event queue for it exists, by an
//! event naming the slot. Slots finish in any order.
//!
//! Ownership: between the doorbell and the moment the ownership bit is zero, the entry and both chains belong to the
//! device. Giving up on a command (time limit, dead device) does not change that: the slot is *quarantined* with its
//! memory until the device hands it back. If the device never answers, the slot is lost; that is the price of never
//! lending memory twice.
//!
//! The last slot is reserved for `MANAGE_PAGES`: a command may wait inside the firmware for pages,
//! and the answer to that must not wait behind the command.
//!
//! [`queue`] is the queue without any waiting: submit, harvest, take. Waiting, and serving events meanwhile, is done
//! in `crate::control`.

pub(crate) mod dump;
pub(crate) mod mailbox;
pub mod queue;
pub(crate) mod signature;

pub use queue::{CommandQueue, CommandTally, SlotClass, SubmitError, Ticket};
