//! The states of a command, from its receive until its response has left.
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
//! A write that meets a locked block, and a fused pair ([`super::fused`]), leave READY_TO_EXECUTE for a while:
//!
//! ```text
//!    READY_TO_EXECUTE ---Block---> BLOCKED ---Unblock---> READY_TO_EXECUTE     another pair has locked the block
//!    READY_TO_EXECUTE ---Pair----> PAIRED  ---Join------> READY_TO_EXECUTE     the partner is not ready yet
//!    READY_TO_EXECUTE ---Lock----> LOCKING ---Locked----> READY_TO_EXECUTE     writes at the block are drained
//! ```
//!
//! *Event* is the step of a place that answers an asynchronous event request; the request's own place is free already.
//!
//! *Drop* leads to FREE from each state in which neither the adapter nor a disk reaches the command's memory: NEW,
//! NEED_BUFFER, READY_TO_EXECUTE, PAIRED, BLOCKED, EXECUTED, READY_TO_COMPLETE. In FETCHING, EXECUTING and COMPLETING
//! they do, and in LOCKING other workers answer: such a command ends when that has ended, and finds that its
//! connection is gone.
//!
//! A step that a state does not have is a bug of this crate. It leads to LOST, which has no steps: the adapter or a
//! disk may still reach the place's memory, so the place is not used again. The worker logs it and ends the
//! connection; other connections go on.

/// State of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum State {
    /// The receive is posted.
    Free,
    /// The command has come.
    New,
    /// It waits for a buffer of 128 KiB.
    NeedBuffer,
    /// The transport fetches its data from the host.
    Fetching,
    /// Its data is in the target's memory, or it has none.
    ReadyToExecute,
    /// It is one of a fused pair and waits for its partner.
    Paired,
    /// It waits until no worker has a write at its block.
    Locking,
    /// It is a write, or the first of a pair, and waits until its block is unlocked.
    Blocked,
    /// A disk, or the thread of authentications, has it.
    Executing,
    /// The disk has done one step of it.
    Executed,
    /// It is answered; the response is not posted yet.
    ReadyToComplete,
    /// The response is posted.
    Completing,
    /// It took a step that its state does not have. The place is not used again.
    Lost,
}

/// Step of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Step {
    /// A command has come.
    Receive,
    /// No buffer is free.
    NoBuffer,
    /// Buffers are free, and it is this command's turn.
    BufferFree,
    /// The fetch of its data is posted.
    Fetch,
    /// Its data has come, or the fetch has failed.
    Fetched,
    /// It has no data to fetch.
    Ready,
    /// Its partner is not ready.
    Pair,
    /// Its partner is ready.
    Join,
    /// Its block is locked, and other workers are asked for their writes.
    Lock,
    /// No worker has a write at its block.
    Locked,
    /// Its block is locked by another pair.
    Block,
    /// A block was unlocked.
    Unblock,
    /// A disk has it.
    Execute,
    /// The disk is done.
    DiskDone,
    /// An event is the answer to a request.
    Event,
    /// It has a status.
    Answer,
    /// The response is posted.
    Post,
    /// The response has left, or failed.
    Sent,
    /// Its connection has ended.
    Drop,
}

impl State {
    /// The state after a step; `None` if this state does not have the step.
    pub(crate) const fn next(self, step: Step) -> Option<Self> {
        Some(match (self, step) {
            (Self::Free, Step::Receive) | (Self::NeedBuffer, Step::BufferFree) => Self::New,
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
