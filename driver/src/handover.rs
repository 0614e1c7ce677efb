//! Two ways to hand parked functions to the next process: a socket, and systemd's descriptor store.
//!
//! A handover is a snapshot (bytes that the layer above writes) and named descriptors. It goes to a process that waits
//! at a UNIX socket ([`await_receiver`], [`receive`]), or into the descriptor store of systemd and from there to the
//! next process of the service ([`store()`], [`take_stored`]).
//!
//! # One process
//!
//! Two processes must not use one snapshot: the second would drive a device whose state has changed since. A message
//! cannot decide which process has the function, because the process that sends it may die before or after sending, and
//! its peer cannot distinguish the two. The kernel decides: the snapshot is in a file, a memfd, that both processes
//! have open, and the process that adds the seal `F_SEAL_SEAL` to it has *claimed* the handover. The kernel lets only
//! one process add it, and no process can remove it (module `file`). So:
//!
//! - The new process sends no command to the device and writes no register until it has claimed the handover
//!   ([`Claim::take`]). The types have this order: [`Function::resume`](crate::Function::resume) gives an
//!   [`UnclaimedFunction`](crate::UnclaimedFunction), and its `go_on` needs a [`Claimed`].
//! - The old process resumes its function only after it has claimed its own handover. [`NotGiven`] reports that claim.
//! - Messages only shorten the wait for the claim, and carry reasons.
//!
//! A claim is never undone. The driving lock of a function (`driving_lock`) ends with its process. The lock prevents
//! two living processes from driving the function at a time. The claim prevents the use of an old snapshot after its
//! process has ended. A handover needs both. A claim is advisory, as the lock is.
//!
//! # The receiver's order
//!
//! The order is the same for both ways ([`Offer`]):
//!
//! 1. Resume each function, which takes its driving lock.
//! 2. Check all that memory, registers and configuration space can show, for all functions.
//! 3. [`Claim::take`].
//! 4. [`go_on`](crate::UnclaimedFunction::go_on), and ask the device by commands.
//! 5. Drain and arm event queues, and resume objects.
//! 6. [`Claimed::end`] reports the outcome.
//!
//! A refusal in steps 1 to 3 changes nothing: the sender, or the next process of the service, goes on. A refusal from
//! step 4 on ends in a reset of the device, and its reason reaches the sender's log.
//!
//! # Over a socket
//!
//! ```text
//!   the sender, the old process                     the receiver, the new process
//!     await_receiver  <---------- READY ----------    receive: it is initialised
//!     it parks its functions
//!     send            --- OFFER, the file -------->
//!                     --- DESCRIPTORS, 1 to 253 -->   (as often as needed)
//!                                                     it resumes the functions, and checks them
//!                     <------- REFUSED, why ------    refuse, or: take, which claims; it goes on
//!                     <-- ADOPTED | FAILED, why ---   end
//!     tries to claim
//! ```
//!
//! The socket is a stream socket, so callers make it by [`listen_privately`](crate::listen_privately) and
//! [`connect_within`](crate::connect_within), or use one that they have. Message boundaries (`SOCK_SEQPACKET`) would
//! save little: messages have a fixed header, and the long parts are in a file. Each end refuses a peer of another
//! user, except root. The sender keeps its descriptors until it knows who has claimed the handover. Its last step is
//! always an attempt to claim the handover: after an answer, after the peer has hung up, and after the deadline. The
//! outcomes are:
//!
//! | moment at which a process dies (or the deadline passes) | claimed by | the sender | the receiver |
//! |---|---|---|---|
//! | before OFFER | sender | resumes: [`NotGiven`] | [`HandoverError::HungUp`], has nothing |
//! | sender: before all descriptors are sent | no process | dead; the last close resets the device | `HungUp`, closes what it has |
//! | receiver: before its claim | sender | resumes | dead, or its claim fails: [`HandoverError::Claimed`] |
//! | sender: after the last descriptor | receiver | dead | goes on; ADOPTED reaches no process |
//! | receiver: after its claim, before its report | receiver | [`Sent`], not acknowledged; does not resume | dead; the last close resets the device |
//! | receiver: after ADOPTED | receiver | [`Sent`] | dead, as any driver that is killed |
//! | sender: before it has read ADOPTED | receiver | dead | goes on |
//! | none: the sender cannot add the seal | not decided | [`Sent`], with [`Undecided`]: tries again | may claim |
//! | none: REFUSED | sender | resumes, and has the reason | has parked what it had resumed ([`Claim::refuse`]) |
//! | none: FAILED | receiver | [`Sent`], with the reason; does not resume | closes what it has, which resets the device |
//!
//! # Over systemd's descriptor store
//!
//! ```text
//!   the old process                       systemd                      the next process of the service
//!     store: forget old names ---------->
//!            FDSTORE=1 for each --------> keeps duplicates
//!            FDSTORE=1 -- a pipe -------> keeps it, else the handover is refused; FDSTOREREMOVE=1
//!            BARRIER=1 ---- pipe -------> closes the pipe
//!     it ends                              LISTEN_FDS, LISTEN_FDNAMES -> take_stored, open: whole, or refused by name
//!                                                        it resumes the functions, and checks them
//!                                        <---------- FDSTOREREMOVE=1, BARRIER=1   take, which claims
//! ```
//!
//! Each descriptor has its own name in the store, because the store does not keep an order. The file of the handover is
//! removed first and stored last, so a process that dies in between leaves a store without the file, which is refused.
//! systemd drops descriptors without a report: if the store is full (`FileDescriptorStoreMax=`), if the message is not
//! from a process that may send it (`NotifyAccess=`), and if it has the open file already, under any name. The old
//! process notices the first two, because systemd then closes the last descriptor that it gets, the end of a pipe. The
//! file names all descriptors, so the next process notices every loss, refuses the handover, and names what is missing.
//! If the service manager reports its room (`FDSTORE`, systemd 254), a handover that does not fit is refused before
//! anything is sent.
//!
//! | moment at which a process dies | claimed by | effect |
//! |---|---|---|
//! | old: while it stores | no process | the next process takes the handover if it is whole, else refuses it by name |
//! | none: storing fails | old | it resumes; what is left in the store is refused later, because it is claimed |
//! | old: after [`store()`] has returned | no process | the next process takes the handover |
//! | next: before its claim | no process | the process after it takes the handover, if it is whole: the claim begins with removing it |
//! | next: after its claim | next | the store has nothing, or what is refused; the last close resets the device |
//!
//! Sources: unix(7) (`SCM_RIGHTS`, `SO_PEERCRED`), fcntl(2) (file seals), sd_notify(3), sd_pid_notify_with_fds(3),
//! sd_notify_barrier(3), sd_listen_fds(3), systemd.service(5) (`FileDescriptorStoreMax=`, `NotifyAccess=`).

mod channel;
mod claim;
mod error;
mod file;
mod name;
mod removal;
mod socket;
mod store;

pub use claim::{Claim, Claimed, NotTaken, Offer};
pub use error::HandoverError;
pub use socket::{Receiver, await_receiver, receive};
pub use store::{StoredDescriptors, StoredRefusal, check_store, store, take_stored};

use crate::clock::Instant;
use crate::snapshot::NamedFd;

/// Maximum number of descriptors of a handover.
pub const MAX_DESCRIPTORS: usize = 4_000;
/// Maximum length of a descriptor's name, in bytes. A name has the form of those of a function's descriptors
/// ([`NamedFd`]: at most 32 ASCII letters, digits and `-`), or several such parts with dots between them. So the
/// descriptors of several functions can have different names, such as `nic0.lock` and `nic1.lock`.
pub const MAX_NAME: usize = 128;
/// Maximum length of a snapshot: 1 GiB.
pub const MAX_SNAPSHOT: u64 = 1 << 30;
/// Maximum length of the reason of a refusal, in bytes of UTF-8. Longer reasons are cut.
pub const MAX_REASON: usize = 1024;

/// A handover that another process has, or can take. This process has closed its descriptors, and must not use the
/// function any more.
#[derive(Debug)]
#[must_use]
pub struct Sent {
    /// `None` if the receiver has reported that it goes on, or the service manager has handled all messages. Otherwise
    /// another process has claimed the handover, and this is its report ([`HandoverError::Failed`]), or the reason why
    /// none was received. If that process has ended since, the device is reset.
    pub unacknowledged: Option<HandoverError>,
    /// The descriptors, if it is not decided who has the handover. This process must not use them yet.
    pub undecided: Option<Box<Undecided>>,
}

/// A handover about which nothing is decided: this process could not find out whether another one has claimed it. It
/// must not resume the function. As long as this value exists, the device is not reset.
#[derive(Debug)]
#[must_use]
pub struct Undecided {
    file: file::HandoverFile,
    descriptors: Vec<NamedFd>,
    /// The reason why this process could not claim the handover.
    pub error: HandoverError,
}

impl Undecided {
    /// Tries again to claim the handover.
    ///
    /// # Errors
    /// [`NotGiven`]: this process has the function.
    pub fn claim(self) -> Result<Sent, NotGiven> {
        take_back(self.file, self.descriptors, self.error)
    }
}

/// A handover that did not take place. No other process can claim it any more, and this process can resume the function
/// with the descriptors. A receiver that has resumed the function without a claim still has the driving lock until it
/// parks the function, or ends: until then, [`Function::resume`](crate::Function::resume) is refused with
/// [`ResumeError::Resumed`](crate::ResumeError::Resumed), and is to be repeated. If a vfio-user server answers a
/// question of that receiver late, one resumption is refused, and the next one drops the reply.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotGiven {
    /// The descriptors of the handover, unchanged.
    pub descriptors: Vec<NamedFd>,
    /// The reason.
    pub error: HandoverError,
    /// The socket of the handover. This process has ended its direction.
    receiver: Option<channel::Channel>,
}

impl NotGiven {
    const fn new(descriptors: Vec<NamedFd>, error: HandoverError) -> Self {
        Self {
            descriptors,
            error,
            receiver: None,
        }
    }

    /// Waits until the receiver has closed its end of the socket, as it does when its claim has failed or it ends. The
    /// function can be resumed shortly after that. Returns at once if no receiver has the descriptors.
    ///
    /// # Errors
    /// [`HandoverError::Silent`]: the deadline, of the machine's monotonic clock, has passed, as with a process that is
    /// stopped. [`HandoverError::System`]: ppoll(2) has failed.
    pub fn wait_for_receiver(&self, deadline: Instant) -> Result<(), HandoverError> {
        match &self.receiver {
            Some(receiver) => receiver.wait_for_hang_up(deadline),
            None => Ok(()),
        }
    }
}

/// Ends an attempt to give a handover away that has failed with `error`. If no other process has claimed the handover,
/// this process claims it and keeps its function.
fn take_back(
    file: file::HandoverFile,
    descriptors: Vec<NamedFd>,
    error: HandoverError,
) -> Result<Sent, NotGiven> {
    match file.claim() {
        Ok(()) => Err(NotGiven::new(descriptors, error)),
        Err(HandoverError::Claimed) => Ok(Sent {
            unacknowledged: Some(error),
            undecided: None,
        }),
        // Another process may claim the handover, or may have claimed it.
        Err(unclaimed) => Ok(Sent {
            unacknowledged: Some(error),
            undecided: Some(Box::new(Undecided {
                file,
                descriptors,
                error: unclaimed,
            })),
        }),
    }
}

#[cfg(test)]
mod tests;
