//! A handover in systemd's descriptor store.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use super::error::HandoverError;
use super::file::HandoverFile;
use super::name::{self, FILE};
use super::{Handover, NotGiven, Sent, take_back};
use crate::clock::Instant;
use crate::handed_in::take_handed_in;
use crate::rights::has_gained_rights;
use crate::service_manager::{Messenger, ServiceManager, ServiceManagerError};
use crate::snapshot::NamedFd;

/// Number of messages between two barriers. Descriptors that are on their way count against the limit of this process
/// (unix(7), `ETOOMANYREFS`).
const MESSAGES_AT_ONCE: usize = 128;

/// Puts a snapshot and its descriptors into the descriptor store of this service. The next process of the service takes
/// them with [`take_stored`]. The caller ends this process afterwards.
///
/// systemd does not report whether it has kept them. If it has dropped a descriptor, the next process refuses the
/// handover, and the device is reset.
///
/// # Errors
/// [`NotGiven`], with the descriptors and the reason. This process has claimed the handover, so the next process
/// refuses what may be in the store. Before anything is sent: [`HandoverError::Name`], [`HandoverError::Repeated`],
/// [`HandoverError::TooMany`], [`HandoverError::SnapshotSize`], [`HandoverError::NoRoom`]. Afterwards:
/// [`HandoverError::ServiceManager`], if the deadline (of the machine's monotonic clock,
/// [`RealClock`](crate::RealClock)) has passed or a system call failed.
pub fn store(
    manager: &ServiceManager,
    snapshot: &[u8],
    descriptors: Vec<NamedFd>,
    deadline: Instant,
) -> Result<Sent, NotGiven> {
    let names = descriptors.iter().map(|named| named.name.as_str());
    let file =
        match checked(manager, &descriptors).and_then(|()| HandoverFile::write(names, snapshot)) {
            Ok(file) => file,
            Err(error) => return Err(NotGiven { descriptors, error }),
        };
    match store_all(manager, &file, &descriptors, deadline) {
        Ok(()) => Ok(Sent {
            unacknowledged: None,
        }),
        Err(error) => {
            let names: Vec<String> = (descriptors.iter())
                .map(|named| name::stored(&named.name))
                .collect();
            // The claim makes what is left in the store unusable, so it does not matter if this fails, too.
            if let Err(error) = forget(manager, &names, deadline) {
                tracing::warn!(
                    "descriptors of a failed handover may be left in the store: {error}"
                );
            }
            take_back(&file, descriptors, error.into())
        }
    }
}

/// Checks that the store has room.
fn checked(manager: &ServiceManager, descriptors: &[NamedFd]) -> Result<(), HandoverError> {
    let needed = descriptors.len() + 1;
    match manager.store_room() {
        Some(room) if room < needed as u64 => Err(HandoverError::NoRoom { room, needed }),
        Some(_) | None => Ok(()),
    }
}

fn store_all(
    manager: &ServiceManager,
    file: &HandoverFile,
    descriptors: &[NamedFd],
    deadline: Instant,
) -> Result<(), ServiceManagerError> {
    // An earlier handover may have left descriptors of these names, or open files that are in this one, too: systemd
    // keeps an open file only once.
    let names: Vec<String> = (descriptors.iter())
        .map(|named| name::stored(&named.name))
        .collect();
    forget(manager, &names, deadline)?;
    let messenger = manager.connect()?;
    let mut pace = Pace::new(&messenger, deadline);
    for (name, named) in names.iter().zip(descriptors) {
        messenger.store(name, named.fd.as_fd(), deadline)?;
        pace.sent_one()?;
    }
    messenger.store(FILE, file.as_fd(), deadline)?;
    messenger.barrier(deadline)
}

/// Removes the file of a handover and then the other names from the store, and waits until that is done.
fn forget(
    manager: &ServiceManager,
    names: &[String],
    deadline: Instant,
) -> Result<(), ServiceManagerError> {
    let messenger = manager.connect()?;
    messenger.forget(FILE, deadline)?;
    let mut pace = Pace::new(&messenger, deadline);
    for name in names {
        messenger.forget(name, deadline)?;
        pace.sent_one()?;
    }
    messenger.barrier(deadline)
}

/// Inserts barriers between messages.
struct Pace<'a> {
    messenger: &'a Messenger,
    deadline: Instant,
    sent: usize,
}

impl<'a> Pace<'a> {
    const fn new(messenger: &'a Messenger, deadline: Instant) -> Self {
        Self {
            messenger,
            deadline,
            sent: 0,
        }
    }

    /// Counts a message, and waits if there were enough.
    fn sent_one(&mut self) -> Result<(), ServiceManagerError> {
        self.sent += 1;
        if self.sent.is_multiple_of(MESSAGES_AT_ONCE) {
            self.messenger.barrier(self.deadline)?;
        }
        Ok(())
    }
}

/// Takes the descriptors of a handover that the service manager has handed in (sd_listen_fds(3)). `None`: there are
/// none, or they were taken before, or the program has more rights than its caller. Other descriptors stay available by
/// [`handed_in`](crate::handed_in()).
///
/// The first call of this function or of `handed_in` must come before the process opens anything or changes its
/// environment.
#[must_use]
pub fn take_stored() -> Option<StoredDescriptors> {
    let fds = take_handed_in(name::is_stored);
    if fds.is_empty() {
        return None;
    }
    if has_gained_rights() {
        tracing::warn!("a stored handover is ignored: this program has rights its caller lacks");
        return None;
    }
    Some(StoredDescriptors { fds })
}

/// Descriptors from the store that belong to a handover. They are in the store, too: if this process ends before they
/// are [claimed](StoredHandover::claim) or [forgotten](Self::forget), systemd hands them to the next process.
#[derive(Debug)]
pub struct StoredDescriptors {
    fds: Vec<NamedFd>,
}

/// The failure of a step that consumes stored descriptors.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotClaimed<T> {
    /// The value that the step would have consumed, unchanged.
    pub stored: T,
    /// The reason.
    pub error: HandoverError,
}

impl StoredDescriptors {
    #[cfg(test)]
    pub(super) const fn new(fds: Vec<NamedFd>) -> Self {
        Self { fds }
    }

    #[cfg(test)]
    pub(super) fn duplicates(&self) -> Vec<NamedFd> {
        let duplicate = |named: &NamedFd| NamedFd {
            name: named.name.clone(),
            fd: named.fd.try_clone().expect("a duplicate"),
        };
        self.fds.iter().map(duplicate).collect()
    }

    /// Returns the names of the descriptors in the store.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.fds.iter().map(|named| named.name.as_str())
    }

    /// Reads the file of the handover, and checks that exactly the descriptors that it names are there.
    ///
    /// # Errors
    /// The descriptors, and the reason. The caller [forgets](Self::forget) them and starts its device afresh.
    /// [`HandoverError::Missing`]: descriptors, or the file of the handover (`handover`), are missing.
    /// [`HandoverError::Unknown`]: there are others. [`HandoverError::Repeated`]: several have the same name.
    /// [`HandoverError::Claimed`]: a process has claimed the handover before. [`HandoverError::File`],
    /// [`HandoverError::Name`], [`HandoverError::TooMany`], [`HandoverError::SnapshotSize`]: the file is not valid.
    /// [`HandoverError::System`]: a system call failed.
    pub fn open(self) -> Result<StoredHandover, NotClaimed<Self>> {
        match self.read() {
            Ok((file, names, snapshot)) => {
                let mut by_name: BTreeMap<String, OwnedFd> = (self.fds.into_iter())
                    .map(|named| (named.name, named.fd))
                    .collect();
                let descriptors = (names.into_iter())
                    .filter_map(|name| {
                        let fd = by_name.remove(&name::stored(&name))?;
                        Some(NamedFd { name, fd })
                    })
                    .collect();
                Ok(StoredHandover {
                    file,
                    snapshot,
                    descriptors,
                })
            }
            Err(error) => Err(NotClaimed {
                stored: self,
                error,
            }),
        }
    }

    /// Returns the file, the names of the descriptors, and the snapshot.
    fn read(&self) -> Result<(HandoverFile, Vec<String>, Vec<u8>), HandoverError> {
        let mut by_name = BTreeMap::new();
        for NamedFd { name, fd } in &self.fds {
            if by_name.insert(name.as_str(), fd).is_some() {
                return Err(HandoverError::Repeated { name: name.clone() });
            }
        }
        let Some(file) = by_name.remove(FILE) else {
            return Err(HandoverError::Missing {
                names: vec![FILE.to_owned()],
                found: by_name.len(),
                wanted: by_name.len() + 1,
            });
        };
        let file = file
            .try_clone()
            .map_err(HandoverError::system("fcntl(F_DUPFD_CLOEXEC)"))?;
        let (file, contents) = HandoverFile::read(file)?;
        let wanted = contents.names.len();
        let is_missing = |name: &&String| by_name.remove(name::stored(name).as_str()).is_none();
        let missing: Vec<String> = contents.names.iter().filter(is_missing).cloned().collect();
        if !missing.is_empty() {
            return Err(HandoverError::Missing {
                found: wanted - missing.len(),
                names: missing,
                wanted,
            });
        }
        if !by_name.is_empty() {
            let names = by_name.keys().map(|&name| name.to_owned()).collect();
            return Err(HandoverError::Unknown { names });
        }
        Ok((file, contents.names, contents.snapshot))
    }

    /// Removes the descriptors from the store and closes them. If no other process has them open, their devices are
    /// reset.
    ///
    /// # Errors
    /// The descriptors, and [`HandoverError::ServiceManager`].
    pub fn forget(
        self,
        manager: &ServiceManager,
        deadline: Instant,
    ) -> Result<(), NotClaimed<Self>> {
        let names: Vec<String> = self.names().map(str::to_owned).collect();
        match forget(manager, &names, deadline) {
            Ok(()) => Ok(()),
            Err(error) => Err(NotClaimed {
                stored: self,
                error: error.into(),
            }),
        }
    }
}

/// A handover from the store, which is complete, and which this process has not claimed.
#[derive(Debug)]
pub struct StoredHandover {
    file: HandoverFile,
    snapshot: Vec<u8>,
    descriptors: Vec<NamedFd>,
}

impl StoredHandover {
    /// Returns the snapshot, as the layer above has written it. It was not checked.
    #[must_use]
    pub fn snapshot(&self) -> &[u8] {
        &self.snapshot
    }

    /// Removes the handover from the store, and claims it for this process. After that, no other process gets it.
    ///
    /// # Errors
    /// The handover, and the reason. [`HandoverError::ServiceManager`]: the service manager has not answered; the
    /// handover may be in the store, and this call may be repeated. [`HandoverError::Claimed`]: another process has
    /// claimed it. [`HandoverError::System`]: it could not be claimed.
    pub fn claim(
        self,
        manager: &ServiceManager,
        deadline: Instant,
    ) -> Result<Handover, NotClaimed<Self>> {
        let names: Vec<String> = (self.descriptors.iter())
            .map(|named| name::stored(&named.name))
            .collect();
        let removed = forget(manager, &names, deadline).map_err(HandoverError::from);
        match removed.and_then(|()| self.file.claim()) {
            Ok(()) => Ok(Handover {
                snapshot: self.snapshot,
                descriptors: self.descriptors,
            }),
            Err(error) => Err(NotClaimed {
                stored: self,
                error,
            }),
        }
    }

    /// Returns the descriptors, in order to [forget](StoredDescriptors::forget) a handover whose snapshot is refused.
    #[must_use]
    pub fn refuse(self) -> StoredDescriptors {
        let file = NamedFd {
            name: FILE.to_owned(),
            fd: self.file.into_fd(),
        };
        let stored = self.descriptors.into_iter().map(|named| NamedFd {
            name: name::stored(&named.name),
            fd: named.fd,
        });
        StoredDescriptors {
            fds: stored.chain([file]).collect(),
        }
    }
}
