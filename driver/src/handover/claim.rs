//! The order of a takeover, which is the same for both ways: an offer, its claim, and the report of the outcome.

use std::time::Duration;

use super::channel::{Channel, Kind};
use super::error::HandoverError;
use super::file::HandoverFile;
use super::removal::remove_all;
use crate::clock::{Instant, monotonic_now};
use crate::service_manager::ServiceManager;
use crate::snapshot::NamedFd;

/// Time that the service manager has to remove a handover from its store.
const STORE_LIMIT: Duration = Duration::from_secs(10);

/// A handover that this process has received, and has neither claimed nor refused.
#[derive(Debug)]
pub struct Offer {
    /// The snapshot, as the layer above has written it. It was not checked.
    pub snapshot: Vec<u8>,
    /// The descriptors, with the names that they had.
    pub descriptors: Vec<NamedFd>,
    /// The right to claim the handover. Until then, this process sends no command to the device and writes no register.
    pub claim: Claim,
}

/// The right to claim a handover. If it is dropped, the handover stays where it is: a sender keeps its function, and
/// the service manager hands a stored one to the next process.
#[derive(Debug)]
#[must_use]
pub struct Claim {
    file: HandoverFile,
    way: Way,
}

/// The way by which a handover came.
#[derive(Debug)]
enum Way {
    Socket(Channel),
    Store {
        manager: Box<ServiceManager>,
        /// Names in the store, without that of the file.
        names: Vec<String>,
    },
}

/// A claim that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotTaken {
    /// The claim, if it can be repeated or refused. `None` if another process has claimed the handover.
    pub claim: Option<Claim>,
    /// The reason.
    pub error: HandoverError,
}

impl Claim {
    pub(super) const fn over_socket(file: HandoverFile, channel: Channel) -> Self {
        let way = Way::Socket(channel);
        Self { file, way }
    }

    pub(super) fn from_store(
        file: HandoverFile,
        manager: ServiceManager,
        names: Vec<String>,
    ) -> Self {
        let manager = Box::new(manager);
        let way = Way::Store { manager, names };
        Self { file, way }
    }

    /// Claims the handover for this process. From now on this process may drive the device, and no other process does.
    /// A stored handover is removed from the store first; the service manager has 10 s for that.
    ///
    /// # Errors
    /// [`NotTaken`]. This process must not drive the device: it [parks](crate::UnclaimedFunction::park) or drops the
    /// functions that it has resumed. [`HandoverError::Claimed`]: another process has claimed the handover, as a sender
    /// does whose deadline has passed. [`HandoverError::ServiceManager`]: the service manager has not answered; the
    /// handover may be in the store. [`HandoverError::System`]: a system call failed.
    pub fn take(self) -> Result<Claimed, NotTaken> {
        self.take_until(monotonic_now() + STORE_LIMIT)
    }

    /// Does the same as [`take`](Self::take). The service manager has until `deadline`, of the machine's monotonic
    /// clock. A claim over a socket waits for nothing.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_until(self, deadline: Instant) -> Result<Claimed, NotTaken> {
        let removed = match &self.way {
            Way::Socket(_) => Ok(()),
            // A process that is killed after its claim must not leave anything that the next one could use.
            Way::Store { manager, names } => remove_all(manager, names, deadline),
        };
        let taken = removed.map_err(HandoverError::from);
        match taken.and_then(|()| self.file.claim()) {
            Ok(()) => Ok(Claimed {
                sender: match self.way {
                    Way::Socket(channel) => Some(channel),
                    Way::Store { .. } => None,
                },
            }),
            Err(error) => Err(NotTaken {
                claim: (!matches!(error, HandoverError::Claimed)).then_some(self),
                error,
            }),
        }
    }

    /// Refuses the handover. A sender gets the reason, at most [`MAX_REASON`](super::MAX_REASON) bytes of it, and keeps
    /// its function. A stored handover stays in the store for the next process, and the reason is logged. If this
    /// process has resumed a function, it [parks](crate::UnclaimedFunction::park) or drops it before this call, because
    /// no other process can resume it while its driving lock is held.
    pub fn refuse(self, reason: &str) {
        match &self.way {
            Way::Socket(channel) => channel.answer(Kind::Refused, reason),
            Way::Store { .. } => {
                tracing::warn!(
                    "a handover is refused, and stays in the descriptor store: {reason}"
                );
            }
        }
    }
}

/// The proof that this process may drive the functions of a handover. A [`Claim`] makes at most one.
#[derive(Debug)]
#[must_use]
pub struct Claimed {
    /// The process that waits for the outcome, if there is one.
    sender: Option<Channel>,
}

impl Claimed {
    /// Makes the proof for descriptors that have come in another way: the caller promises that no other process uses
    /// their snapshot, now or later. This is so in a process that resumes what it has parked itself, if it has given
    /// the descriptors to no other process, or has them back ([`NotGiven`](super::NotGiven)).
    pub const fn by_caller() -> Self {
        Self { sender: None }
    }

    /// Reports the outcome to the sender, which waits for it and does not use the functions any more in either case. An
    /// error is a text for the sender's log: at most [`MAX_REASON`](super::MAX_REASON) bytes of it. The device is reset
    /// when its last descriptor is closed. Nothing is reported for a handover from the store.
    pub fn end(self, outcome: Result<(), &str>) {
        let Some(sender) = self.sender else {
            return;
        };
        match outcome {
            Ok(()) => sender.answer(Kind::Adopted, ""),
            Err(reason) => sender.answer(Kind::Failed, reason),
        }
    }
}
