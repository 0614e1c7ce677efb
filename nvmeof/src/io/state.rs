//! The states of a command, from the posted receive until the response has been sent.
//!
//! ```text
//!            Receive            Fetch              Fetched
//!    FREE ------------> NEW ------------> FETCHING --------.
//!     ^ |               | | ^                              v        Execute
//!     | |      NoBuffer | |  '- BufferFree      READY_TO_EXECUTE -----------> EXECUTING
//!     | |               v |                         ^  |   |                   ^  |
//!     | |     NEED_BUFFER |          Ready          |  |   |           Execute |  | DiskDone
//!     | |                  '------------------------'  |   |                   |  v
//!     | |                                              |   |                  EXECUTED
//!     | | Event                                        |   | Answer              | Answer
//!     | |                                              |   v                     |
//!     | '------------------------> READY_TO_COMPLETE <-+---+---------------------'
//!     |  Sent                       | Post             |   (a command that is refused goes there from NEW, too)
//!     '------------- COMPLETING <---'                  |
//! ```
//!
//! A write that meets a locked block, and the commands of a fused pair ([`super::fused`]), wait outside of
//! READY_TO_EXECUTE for a while:
//!
//! ```text
//!    READY_TO_EXECUTE ---Block---> BLOCKED ---Unblock---> READY_TO_EXECUTE     another pair has locked the block
//!    READY_TO_EXECUTE ---Pair----> PAIRED  ---Join------> READY_TO_EXECUTE     the partner is not ready yet
//!    READY_TO_EXECUTE ---Lock----> LOCKING ---Locked----> READY_TO_EXECUTE     commands of the lock are drained
//! ```
//!
//! A command of a namespace or a host with a limit ([`super::limits`]) may wait outside of NEW:
//!
//! ```text
//!    NEW ---Hold---> HELD ---Admit---> NEW                                     it is not its time yet
//! ```
//!
//! *Event* is the step of an entry that answers an asynchronous event request. The request's own entry is free already.
//!
//! *Drop* leads to FREE from each state in which neither the adapter nor a disk accesses the command's memory: NEW,
//! HELD, NEED_BUFFER, READY_TO_EXECUTE, PAIRED, BLOCKED, EXECUTED, READY_TO_COMPLETE. In FETCHING, EXECUTING and
//! COMPLETING the adapter or a disk may access the memory, and in LOCKING some workers must still pass the lock. If
//! the connection ends in one of these states, the command is freed after the access or the lock has completed.
//!
//! A step that a state does not have is a bug of this crate. It leads to LOST, which has no steps. The adapter or a
//! disk may still access the entry's memory, so the entry is not used again. The worker logs the bug and ends the
//! connection; other connections continue.

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum State {
    /// The entry is free. Its receive, if it has one, is posted, or will be posted at the end of the iteration.
    Free,
    /// The command has been received.
    New,
    /// The command waits for its time, because its namespace or its host has a limit.
    Held,
    /// The command waits for a buffer.
    NeedBuffer,
    /// The transport fetches the command's data from the host.
    Fetching,
    /// The data is in the target's memory, or the command has no data.
    ReadyToExecute,
    /// The command belongs to a fused pair and waits for its partner.
    Paired,
    /// The command waits until no worker has a command of its lock ([`super::lock`]) at a disk.
    Locking,
    /// The command is a write, or the first of a pair, and waits until its block is unlocked.
    Blocked,
    /// A disk executes the command, or the authentication thread handles it.
    Executing,
    /// The disk has completed one step of the command, or the answer to an authentication message is computed.
    Executed,
    /// The result is known; the response is not posted yet.
    ReadyToComplete,
    /// The response is posted.
    Completing,
    /// The command took a step that its state does not have. The entry is not used again.
    Lost,
}

/// Step of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Step {
    /// A command is received.
    Receive,
    /// It is not the command's time yet.
    Hold,
    /// The command's time has come.
    Admit,
    /// No buffer is free for the command.
    NoBuffer,
    /// Buffers are free, and it is this command's turn.
    BufferFree,
    /// The transport has posted the fetch of the data.
    Fetch,
    /// The data has arrived, or the fetch has failed.
    Fetched,
    /// The command has no data to fetch.
    Ready,
    /// The partner of the pair is not ready.
    Pair,
    /// The partner of the pair is ready.
    Join,
    /// The block is locked, and all workers are asked to pass the lock.
    Lock,
    /// No worker has a write at the block.
    Locked,
    /// Another pair has locked the block.
    Block,
    /// A block was unlocked.
    Unblock,
    /// A disk gets an operation of the command, or the authentication thread gets its message.
    Execute,
    /// The disk has completed its operations, or the authentication thread has computed the answer.
    DiskDone,
    /// The entry answers an event request with an event.
    Event,
    /// The command gets its status.
    Answer,
    /// The response is posted.
    Post,
    /// The response has been sent, or sending it has failed.
    Sent,
    /// The entry is freed without a response: the connection has ended, or the command is an event request that waits.
    Drop,
}

impl State {
    /// Returns the state after a step; `None` if this state does not have the step.
    pub(crate) const fn next(self, step: Step) -> Option<Self> {
        Some(match (self, step) {
            (Self::Free, Step::Receive)
            | (Self::Held, Step::Admit)
            | (Self::NeedBuffer, Step::BufferFree) => Self::New,
            (Self::New, Step::Hold) => Self::Held,
            (Self::New, Step::NoBuffer) => Self::NeedBuffer,
            (Self::New, Step::Fetch) => Self::Fetching,
            (Self::New, Step::Ready)
            | (Self::Fetching, Step::Fetched)
            | (Self::Paired, Step::Join)
            | (Self::Locking, Step::Locked)
            | (Self::Blocked, Step::Unblock) => Self::ReadyToExecute,
            (Self::ReadyToExecute, Step::Pair) => Self::Paired,
            (Self::ReadyToExecute, Step::Lock) => Self::Locking,
            (Self::ReadyToExecute, Step::Block) => Self::Blocked,
            (Self::ReadyToExecute | Self::Executed, Step::Execute) => Self::Executing,
            (Self::Executing, Step::DiskDone) => Self::Executed,
            (Self::New | Self::ReadyToExecute | Self::Executed, Step::Answer)
            | (Self::Free, Step::Event) => Self::ReadyToComplete,
            (Self::ReadyToComplete, Step::Post) => Self::Completing,
            (Self::Completing, Step::Sent)
            | (
                Self::New
                | Self::Held
                | Self::NeedBuffer
                | Self::ReadyToExecute
                | Self::Paired
                | Self::Blocked
                | Self::Executed
                | Self::ReadyToComplete,
                Step::Drop,
            ) => Self::Free,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::assert_table;

    #[test]
    fn every_pair_of_state_and_step_is_as_the_checked_in_table_says() {
        assert_table(State::next, "is a bug", include_str!("state.table"));
    }
}
