//! An I/O: a command from its receive until its response has left, in one place of one table.
//!
//! ```text
//!            Came                            Fetch            Arrived
//!   POSTED --------> HERE ------------------------> FETCHING ---------> HERE
//!     ^ |             |  |  `- Lack --> WAITING --Found--> HERE
//!     | |             |  `----- Start ---> AT_DISK --Ended-> HERE
//!     | |             | Answer
//!     | |  Happened   v
//!     | `---------> READY
//!     |               | Send          (behind a full queue it stays READY)
//!     |  Left         v
//!     '----------- SENDING
//! ```
//!
//! One of a fused pair goes further ([`super::fused`]):
//!
//! ```text
//!   HERE ---Pair---> PAIRED ---Joined--> HERE            it waits for the other
//!   HERE ---Lock---> LOCKING --Locked--> HERE            no write is to be at its block
//! ```
//!
//! *Happened* is the step of a place that is not for commands but for answers to event requests, whose commands have
//! given their places back.
//!
//! *Drop* leads from HERE, WAITING, PAIRED and READY to POSTED: the connection has gone, and nothing of the I/O is
//! anywhere else. From FETCHING, AT_DISK, LOCKING and SENDING nothing leads back but what ends them, since until
//! then the adapter or a disk reaches the I/O's memory, or others wait for it; what ends them finds that the connection
//! has gone.
//!
//! A step that is none of its state's is a mistake of this crate. It leads to LOST, from where nothing leads on: the
//! adapter or a disk may have the place's memory, so that it is used no more. The worker says so and ends the
//! connection; its others go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fused::Lock;
use super::layout::Spot;
use super::queue::QueueId;
use crate::model::Moment;
use crate::nvme::sgl::Data;
use crate::nvme::{Sqe, Status};

/// What an I/O is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its receive is posted.
    Posted,
    /// The worker has it in its hands.
    Here,
    /// It waits for a buffer.
    Waiting,
    /// An RDMA Read fetches its data.
    Fetching,
    /// Its disk has it.
    AtDisk,
    /// It waits for the other of its pair.
    Paired,
    /// It waits until no write is at its block.
    Locking,
    /// It is answered, and the answer waits for its turn.
    Ready,
    /// The answer leaves.
    Sending,
    /// It was to take a step that is none of its state's: a mistake of ours. Its place is used no more.
    Lost,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A command has come.
    Came,
    /// There is no buffer.
    Lack,
    /// There is one now.
    Found,
    /// Its data is fetched.
    Fetch,
    /// The data has arrived.
    Arrived,
    /// A disk is asked.
    Start,
    /// The disk is done.
    Ended,
    /// The other of its pair is not here yet.
    Pair,
    /// It is.
    Joined,
    /// Its block is being locked.
    Lock,
    /// It is locked.
    Locked,
    /// There is an event, and this is its answer.
    Happened,
    /// It is answered.
    Answer,
    /// The answer is posted.
    Send,
    /// The answer has left.
    Left,
    /// Nobody wants it any more.
    Drop,
}

impl State {
    /// The state after a step; none if the step is not one of this state.
    pub(super) const fn next(self, step: Step) -> Option<Self> {
        Some(match (self, step) {
            (Self::Posted, Step::Came)
            | (Self::Waiting, Step::Found)
            | (Self::Fetching, Step::Arrived)
            | (Self::AtDisk, Step::Ended)
            | (Self::Paired, Step::Joined)
            | (Self::Locking, Step::Locked) => Self::Here,
            (Self::Here, Step::Pair) => Self::Paired,
            (Self::Here, Step::Lock) => Self::Locking,
            (Self::Here, Step::Lack) => Self::Waiting,
            (Self::Here, Step::Fetch) => Self::Fetching,
            (Self::Here, Step::Start) => Self::AtDisk,
            (Self::Here, Step::Answer) | (Self::Posted, Step::Happened) => Self::Ready,
            (Self::Ready, Step::Send) => Self::Sending,
            (Self::Sending, Step::Left)
            | (Self::Here | Self::Waiting | Self::Paired | Self::Ready, Step::Drop) => Self::Posted,
            _ => return None,
        })
    }
}

/// What is left of a command that its disk does in several steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Work {
    /// One step, or none.
    #[default]
    Single,
    /// The other of its pair has failed.
    Abandoned,
    /// Of Verify, the namespace's serial number, the next block that is read, and the one behind the last.
    Verify(u64, u64, u64),
    /// Of Copy: the namespace's serial number, the source range, blocks of it that are done, blocks that are written in
    /// all, blocks that the disk is asked for now; they are being written.
    Copy {
        namespace: u64,
        range: u16,
        done: u32,
        written: u32,
        blocks: u32,
        is_writing: bool,
    },
}

/// A place of the table.
#[derive(Debug)]
pub(super) struct Io {
    state: State,
    /// Whose.
    pub queue: QueueId,
    /// The command.
    pub sqe: Sqe,
    /// Bytes that came behind it.
    pub in_capsule: u32,
    /// Where its data is at the host.
    pub data: Data,
    /// Where its data is here, and how much.
    pub spot: Option<Spot>,
    pub bytes: u32,
    /// A second buffer, for what is compared.
    pub second: Option<u32>,
    pub work: Work,
    /// The other of a fused pair, and the lock that it has.
    pub partner: Option<u32>,
    pub lock: Option<Arc<Lock>>,
    /// What its disk has been asked for and has not done yet.
    pub pending: u32,
    /// How it went, and what it gives back.
    pub status: Status,
    pub result: u64,
    /// The data goes to the host before the response.
    pub writes: bool,
    /// When it was taken in, if it is one that is timed.
    pub began: Option<Moment>,
    /// The step that it was to take and could not.
    pub mistake: Option<(State, Step)>,
    /// Some I/O of the worker has made a mistake.
    is_any_lost: Arc<AtomicBool>,
}

impl Io {
    pub(super) fn new(is_any_lost: &Arc<AtomicBool>) -> Self {
        Self {
            state: State::Posted,
            queue: QueueId::NONE,
            sqe: zerocopy::FromZeros::new_zeroed(),
            in_capsule: 0,
            data: Data::None,
            spot: None,
            bytes: 0,
            second: None,
            work: Work::Single,
            partner: None,
            lock: None,
            pending: 0,
            status: Status::SUCCESS,
            result: 0,
            writes: false,
            began: None,
            mistake: None,
            is_any_lost: Arc::clone(is_any_lost),
        }
    }

    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Takes a step. One that is none of its state's loses it.
    #[inline]
    pub(super) fn step(&mut self, step: Step) {
        match self.state.next(step) {
            Some(next) => self.state = next,
            None => self.lose(step),
        }
    }

    #[cold]
    fn lose(&mut self, step: Step) {
        self.mistake.get_or_insert((self.state, step));
        self.state = State::Lost;
        self.is_any_lost.store(true, Ordering::Relaxed);
    }

    /// A command begins.
    pub(super) fn begin(&mut self, queue: QueueId, sqe: Sqe, in_capsule: u32) {
        self.step(Step::Came);
        self.queue = queue;
        self.sqe = sqe;
        self.in_capsule = in_capsule;
        self.data = Data::None;
        self.spot = None;
        self.bytes = 0;
        self.second = None;
        self.work = Work::Single;
        self.status = Status::SUCCESS;
        self.result = 0;
        self.writes = false;
        self.began = None;
    }

    /// It is answered; `writes`: its data goes to the host before that.
    #[inline]
    pub(super) fn answer(&mut self, status: Status, result: u64, writes: bool) {
        self.status = status;
        self.result = result;
        self.writes = writes;
        self.step(Step::Answer);
    }

    /// An event is the answer to a request of this name, whose own place has gone back.
    pub(super) fn happened(&mut self, queue: QueueId, cid: u16, status: Status, result: u64) {
        self.step(Step::Happened);
        self.queue = queue;
        self.sqe = zerocopy::FromZeros::new_zeroed();
        self.sqe.cid = cid.into();
        self.data = Data::None;
        self.writes = false;
        self.status = status;
        self.result = result;
    }

    /// The key that the host wants invalidated with the response.
    #[inline]
    pub(super) const fn invalidates(&self) -> Option<u32> {
        match self.data {
            Data::Remote {
                key,
                invalidate: true,
                ..
            } => Some(key),
            Data::Remote { .. } | Data::Capsule { .. } | Data::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 10] = [
        State::Posted,
        State::Here,
        State::Waiting,
        State::Fetching,
        State::AtDisk,
        State::Paired,
        State::Locking,
        State::Ready,
        State::Sending,
        State::Lost,
    ];
    const STEPS: [Step; 16] = [
        Step::Came,
        Step::Lack,
        Step::Found,
        Step::Fetch,
        Step::Arrived,
        Step::Start,
        Step::Ended,
        Step::Pair,
        Step::Joined,
        Step::Lock,
        Step::Locked,
        Step::Happened,
        Step::Answer,
        Step::Send,
        Step::Left,
        Step::Drop,
    ];

    #[test]
    fn every_pair_of_state_and_step_is_as_the_checked_in_table_says() {
        let mut table = String::new();
        for state in STATES {
            for step in STEPS {
                let row = match state.next(step) {
                    Some(next) => format!("{state:?} + {step:?} -> {next:?}\n"),
                    None => format!("{state:?} + {step:?} is a mistake of ours\n"),
                };
                table.push_str(&row);
            }
        }
        assert_eq!(table, include_str!("io.table"), "\n{table}");
    }

    #[test]
    fn an_io_that_takes_a_step_of_another_state_is_lost_for_good_and_says_which() {
        let is_any_lost = Arc::new(AtomicBool::new(false));
        let mut io = Io::new(&is_any_lost);
        io.step(Step::Came);
        io.step(Step::Fetch);
        assert!(!is_any_lost.load(Ordering::Relaxed));
        io.step(Step::Left);
        assert!(is_any_lost.load(Ordering::Relaxed));
        for step in STEPS {
            io.step(step);
            assert_eq!(
                (io.state(), io.mistake),
                (State::Lost, Some((State::Fetching, Step::Left)))
            );
        }
    }
}
