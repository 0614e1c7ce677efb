//! Errors of a handover.

use std::io;

use thiserror::Error;

use super::{MAX_DESCRIPTORS, MAX_SNAPSHOT};
use crate::service_manager::ServiceManagerError;

/// Reason why a handover did not take place, or was not acknowledged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// A descriptor has a name that is not allowed.
    #[error("descriptor {name:?}: the name is not allowed: {what}")]
    Name {
        /// The name, or its first characters.
        name: String,
        /// The rule that it breaks.
        what: String,
    },
    /// Several descriptors have the same name.
    #[error("there are several descriptors {name:?}")]
    Repeated {
        /// The name.
        name: String,
    },
    /// There are more descriptors than a handover may have.
    #[error("{count} descriptors, the limit of a handover is {MAX_DESCRIPTORS}")]
    TooMany {
        /// Number of descriptors.
        count: usize,
    },
    /// The snapshot is longer than a handover may have.
    #[error("a snapshot of {bytes} bytes, the limit is {MAX_SNAPSHOT}")]
    SnapshotSize {
        /// Length of the snapshot.
        bytes: u64,
    },
    /// The file of the handover is not valid.
    #[error("the file of the handover is not valid: {what}")]
    File {
        /// The reason, with its numbers.
        what: String,
    },
    /// Another process has claimed the handover, or this one before.
    #[error("the handover was claimed already: its descriptors must not be used again")]
    Claimed,
    /// The process at the other end belongs to another user.
    #[error(
        "process {pid} of user {uid} is at the other end; only user {own} and root are allowed{}",
        if *uid == u32::MAX { " (the socket is no UNIX socket, or not connected)" } else { "" }
    )]
    Peer {
        /// Process ID of the other end; 0 if its process is in another PID namespace.
        pid: i32,
        /// User ID of the other end.
        uid: u32,
        /// User ID of this process.
        own: u32,
    },
    /// The deadline has passed.
    #[error("the deadline has passed while this process waited {step}")]
    Silent {
        /// The step of the protocol.
        step: &'static str,
    },
    /// The other end was closed: its process has ended, or has given up.
    #[error("the other process has hung up while this one waited {step}")]
    HungUp {
        /// The step of the protocol.
        step: &'static str,
    },
    /// The other process has sent a message that is not valid at this step.
    #[error("while this process waited {step}, the other one sent {what}")]
    Unexpected {
        /// The step of the protocol.
        step: &'static str,
        /// The message.
        what: String,
    },
    /// Descriptors were lost on their way (recv(2), `MSG_CTRUNC`).
    #[error(
        "descriptors were lost while this process waited {step}: it has no room for them (RLIMIT_NOFILE), or a security module forbids one"
    )]
    Cut {
        /// The step of the protocol.
        step: &'static str,
    },
    /// The other process has refused the handover.
    #[error("the other process refuses: {reason}")]
    Refused {
        /// The reason, with control characters escaped.
        reason: String,
    },
    /// The other process has claimed the handover, and could not go on with the functions. The device is reset.
    #[error("the other process has claimed the handover and failed: {reason}")]
    Failed {
        /// The reason, with control characters escaped.
        reason: String,
    },
    /// Descriptors of a stored handover are missing.
    #[error(
        "descriptors of the stored handover are missing: {}; {found} of {wanted} were found",
        some_of(names)
    )]
    Missing {
        /// Names of the missing descriptors.
        names: Vec<String>,
        /// Number of descriptors that were found.
        found: usize,
        /// Number of descriptors that the handover has.
        wanted: usize,
    },
    /// The store has fewer places than are needed. Nothing was sent.
    #[error(
        "the descriptor store of this service has {room} places (FileDescriptorStoreMax=), and {needed} are needed"
    )]
    NoRoom {
        /// Number of places.
        room: u64,
        /// Number of descriptors, including the file of the handover.
        needed: usize,
    },
    /// The names of the descriptors in the store are too long for an environment variable. Nothing was sent.
    #[error("the names of the descriptors have {bytes} bytes in the store, the limit is {limit}")]
    NamesSize {
        /// Length of all names.
        bytes: usize,
        /// Maximum length.
        limit: usize,
    },
    /// The service manager has handled all messages, and has not kept the last descriptor.
    #[error(
        "the service manager does not keep descriptors: its store is full (FileDescriptorStoreMax= must be at least {needed}), or it takes no messages of this process (NotifyAccess=)"
    )]
    NotKept {
        /// Number of descriptors, including the file of the handover and the one that tests the store.
        needed: usize,
    },
    /// The number of descriptors that were handed in is not valid, so none was taken.
    #[error("LISTEN_FDS is {given:?}: no descriptor is taken, and a handover may be among them")]
    HandedIn {
        /// Value of the variable.
        given: String,
    },
    /// A message to the service manager failed.
    #[error(transparent)]
    ServiceManager(#[from] ServiceManagerError),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Number of names in the text of an error.
const MOST_NAMES: usize = 5;

/// Returns the first names, and the number of the others.
fn some_of(names: &[String]) -> String {
    let first = &names[..names.len().min(MOST_NAMES)];
    match names.len() - first.len() {
        0 => first.join(", "),
        others => format!("{} and {others} others", first.join(", ")),
    }
}

impl HandoverError {
    /// Makes the error for a failed system call.
    pub(super) fn system(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { call, source }
    }
}
