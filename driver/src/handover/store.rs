//! A handover in systemd's descriptor store.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::PollFlags;
use nix::unistd::pipe2;

use super::claim::{Claim, Offer};
use super::error::HandoverError;
use super::file::{Contents, HandoverFile};
use super::name::{self, CANARY, FILE};
use super::removal::{Pace, remove_all};
use super::{NotGiven, Sent, take_back};
use crate::clock::{Instant, monotonic_now};
use crate::handed_in::{refused_count, take_handed_in};
use crate::readable::poll_ready;
use crate::rights::has_gained_rights;
use crate::service_manager::{ServiceManager, ServiceManagerError};
use crate::snapshot::NamedFd;

/// Time that systemd has, after it has handled all messages, to close a descriptor that it does not keep. Before
/// version 254 it has closed it by then; later versions close it in another thread.
const CLOSE_LIMIT: Duration = Duration::from_millis(100);
/// Time for removing what a failed call has left in the store.
const CLEANUP_LIMIT: Duration = Duration::from_secs(2);

/// Puts a snapshot and its descriptors into the descriptor store of this service. The next process of the service takes
/// them with [`take_stored`]. The caller ends this process afterwards.
///
/// systemd does not report whether it has kept them. So the last message has the write end of a pipe, which systemd
/// closes if its store is full, or if it takes no messages of this process. The store needs a place for it. This does
/// not show every loss: systemd also drops an open file that is in the store already. Then the next process refuses the
/// handover, and the device is reset.
///
/// # Errors
/// [`NotGiven`], with the descriptors and the reason. This process has claimed the handover, so the next process
/// refuses what may be in the store. Before anything is sent: [`HandoverError::Name`], [`HandoverError::Repeated`],
/// [`HandoverError::TooMany`], [`HandoverError::SnapshotSize`], [`HandoverError::NoRoom`],
/// [`HandoverError::NamesSize`]. Afterwards: [`HandoverError::ServiceManager`], if the deadline (of the machine's
/// monotonic clock, [`RealClock`](crate::RealClock)) has passed or a system call failed; [`HandoverError::NotKept`].
pub fn store(
    manager: &ServiceManager,
    snapshot: &[u8],
    descriptors: Vec<NamedFd>,
    deadline: Instant,
) -> Result<Sent, NotGiven> {
    let limits = (CLOSE_LIMIT, CLEANUP_LIMIT);
    store_by(manager, snapshot, descriptors, deadline, limits)
}

/// Checks that the store keeps descriptors of this process, which takes up to 100 ms. If the service manager reports
/// the number of its places, a [`store`] to the returned one does not check that again. So a program does this while
/// its peers do not wait for it yet.
///
/// # Errors
/// [`HandoverError::NoRoom`], [`HandoverError::NotKept`], [`HandoverError::ServiceManager`].
pub fn check_store(
    manager: &ServiceManager,
    deadline: Instant,
) -> Result<ServiceManager, HandoverError> {
    check_room(manager, 0)?;
    check_kept(manager, 0, deadline, CLOSE_LIMIT)?;
    Ok(manager.with_checked_store())
}

/// Does the same as [`store`], with other time limits.
pub(super) fn store_by(
    manager: &ServiceManager,
    snapshot: &[u8],
    descriptors: Vec<NamedFd>,
    deadline: Instant,
    (close_limit, cleanup_limit): (Duration, Duration),
) -> Result<Sent, NotGiven> {
    let names = || descriptors.iter().map(|named| named.name.as_str());
    let stored: Vec<String> = names().map(name::stored).collect();
    let checked = check_room(manager, descriptors.len()).and_then(|()| name::check_stored(&stored));
    let file = match checked.and_then(|()| HandoverFile::write(names(), snapshot)) {
        Ok(file) => file,
        Err(error) => return Err(NotGiven::new(descriptors, error)),
    };
    let kept = store_all(manager, &file, (&stored, &descriptors), deadline)
        .map_err(HandoverError::from)
        .and_then(|()| {
            if manager.keeps() {
                return Ok(());
            }
            check_kept(manager, descriptors.len(), deadline, close_limit)
        });
    match kept {
        Ok(()) => Ok(Sent {
            unacknowledged: None,
            undecided: None,
        }),
        Err(error) => {
            // The claim makes what is left in the store unusable, so it does not matter if this fails, too.
            let deadline = monotonic_now() + cleanup_limit;
            if let Err(error) = remove_all(manager, &stored, deadline) {
                tracing::warn!(
                    "descriptors of a failed handover may be left in the store: {error}"
                );
            }
            take_back(file, descriptors, error)
        }
    }
}

/// Returns the number of places that `count` descriptors need: with the file and the canary.
const fn places(count: usize) -> usize {
    count + 2
}

/// Checks that the store has room.
fn check_room(manager: &ServiceManager, count: usize) -> Result<(), HandoverError> {
    let needed = places(count);
    match manager.store_room() {
        Some(room) if room < needed as u64 => Err(HandoverError::NoRoom { room, needed }),
        Some(_) | None => Ok(()),
    }
}

fn store_all(
    manager: &ServiceManager,
    file: &HandoverFile,
    (names, descriptors): (&[String], &[NamedFd]),
    deadline: Instant,
) -> Result<(), ServiceManagerError> {
    // An earlier handover may have left descriptors of these names, or open files that are in this one, too: systemd
    // keeps an open file only once.
    remove_all(manager, names, deadline)?;
    let messenger = manager.connect()?;
    let mut pace = Pace::new(&messenger, deadline);
    for (name, named) in names.iter().zip(descriptors) {
        messenger.store(name, named.fd.as_fd(), deadline)?;
        pace.sent_one()?;
    }
    messenger.store(FILE, file.as_fd(), deadline)?;
    messenger.barrier(deadline)
}

/// Checks that the store keeps one more descriptor after the `count` of a handover and its file.
fn check_kept(
    manager: &ServiceManager,
    count: usize,
    deadline: Instant,
    close_limit: Duration,
) -> Result<(), HandoverError> {
    let pipe = pipe2(OFlag::O_CLOEXEC);
    let (ours, theirs) = pipe.map_err(|errno| HandoverError::system("pipe2")(errno.into()))?;
    let messenger = manager.connect()?;
    messenger.store(CANARY, theirs.as_fd(), deadline)?;
    messenger.barrier(deadline)?;
    drop(theirs);
    // The read end is never readable. It is hung up if systemd has closed the write end.
    let limit = deadline.min(monotonic_now() + close_limit);
    let is_closed = poll_ready(ours.as_fd(), PollFlags::empty(), limit)
        .map_err(|errno| HandoverError::system("ppoll")(errno.into()))?;
    if is_closed {
        let needed = places(count);
        return Err(HandoverError::NotKept { needed });
    }
    messenger.forget(CANARY, deadline)?;
    Ok(messenger.barrier(deadline)?)
}

/// Takes the descriptors of a handover that the service manager has handed in (sd_listen_fds(3)). `None`: there are
/// none, or they were taken before, or the program has more rights than its caller. Other descriptors stay available by
/// [`handed_in`](crate::handed_in()).
///
/// The first call of this function or of `handed_in` must come before the process opens anything or changes its
/// environment.
///
/// # Errors
/// [`HandoverError::HandedIn`]: the number of descriptors is not valid. They stay open until the process ends.
pub fn take_stored() -> Result<Option<StoredDescriptors>, HandoverError> {
    if let Some(given) = refused_count() {
        let given = given.to_owned();
        return Err(HandoverError::HandedIn { given });
    }
    let fds = take_handed_in(name::is_stored);
    if fds.is_empty() {
        return Ok(None);
    }
    if has_gained_rights() {
        tracing::warn!("a stored handover is ignored: this program has rights its caller lacks");
        return Ok(None);
    }
    Ok(Some(StoredDescriptors { fds }))
}

/// Descriptors from the store that belong to a handover. They are in the store, too: if this process ends before they
/// are [claimed](super::Claim::take) or [forgotten](Self::forget), systemd hands them to the next process.
#[derive(Debug)]
pub struct StoredDescriptors {
    fds: Vec<NamedFd>,
}

/// A step with stored descriptors that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct StoredRefusal {
    /// The descriptors, unchanged.
    pub stored: StoredDescriptors,
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

    /// Reads the file of the handover, and checks that all descriptors that it names are there. They stay in the store
    /// until the claim of the offer is taken. Descriptors that the file does not name are left from an earlier
    /// handover: they are closed here, and the claim removes them, too. To start a device afresh although the handover
    /// is whole, take the claim and close the descriptors.
    ///
    /// # Errors
    /// The descriptors, and the reason. [`HandoverError::Missing`]: descriptors, or the file of the handover
    /// (`handover`), are missing. [`HandoverError::Repeated`]: several have the same name. [`HandoverError::Claimed`]:
    /// a process has claimed the handover before. [`HandoverError::File`], [`HandoverError::Name`],
    /// [`HandoverError::TooMany`], [`HandoverError::SnapshotSize`]: the file is not valid. In these cases the caller
    /// [forgets](Self::forget) the descriptors and starts its device afresh. [`HandoverError::System`]: a system call
    /// failed, and the call may be repeated.
    pub fn open(mut self, manager: &ServiceManager) -> Result<Offer, StoredRefusal> {
        let Some(at) = self.fds.iter().position(|named| named.name == FILE) else {
            let error = HandoverError::Missing {
                names: vec![FILE.to_owned()],
                found: self.fds.len(),
                wanted: self.fds.len() + 1,
            };
            return Err(StoredRefusal {
                stored: self,
                error,
            });
        };
        let file = HandoverFile::of(self.fds.remove(at).fd);
        let read = file
            .contents()
            .and_then(|contents| self.check(&contents.names).map(|()| contents));
        let Contents { names, snapshot } = match read {
            Ok(contents) => contents,
            Err(error) => {
                let fd = file.into_fd();
                let name = FILE.to_owned();
                self.fds.insert(at, NamedFd { name, fd });
                return Err(StoredRefusal {
                    stored: self,
                    error,
                });
            }
        };
        let mut stored: Vec<String> = names.iter().map(|name| name::stored(name)).collect();
        let mut by_name: BTreeMap<String, OwnedFd> = (self.fds.into_iter())
            .map(|named| (named.name, named.fd))
            .collect();
        // `check` has found each of them.
        let descriptors = (names.into_iter().zip(&stored))
            .filter_map(|(name, stored)| {
                let fd = by_name.remove(stored)?;
                Some(NamedFd { name, fd })
            })
            .collect();
        if !by_name.is_empty() {
            let stale: Vec<&String> = by_name.keys().collect();
            tracing::warn!(
                ?stale,
                "descriptors in the store are not of this handover, and are closed"
            );
            stored.extend(by_name.into_keys());
        }
        Ok(Offer {
            snapshot,
            descriptors,
            claim: Claim::from_store(file, manager.clone(), stored),
        })
    }

    /// Checks that there are descriptors of these names, besides the file, and that no name is there twice.
    fn check(&self, names: &[String]) -> Result<(), HandoverError> {
        let mut found = BTreeSet::new();
        for NamedFd { name, .. } in &self.fds {
            if name == FILE || !found.insert(name.as_str()) {
                return Err(HandoverError::Repeated { name: name.clone() });
            }
        }
        let wanted = names.len();
        let is_missing = |name: &&String| !found.remove(name::stored(name).as_str());
        let missing: Vec<String> = names.iter().filter(is_missing).cloned().collect();
        if !missing.is_empty() {
            return Err(HandoverError::Missing {
                found: wanted - missing.len(),
                names: missing,
                wanted,
            });
        }
        Ok(())
    }

    /// Removes the descriptors from the store and closes them. If no other process has them open, their devices are
    /// reset. From version 254 on, systemd closes its duplicates in another thread, so that opening a VFIO group may be
    /// refused with EBUSY for a moment after this call; the caller repeats it.
    ///
    /// # Errors
    /// The descriptors, and [`HandoverError::ServiceManager`].
    pub fn forget(self, manager: &ServiceManager, deadline: Instant) -> Result<(), StoredRefusal> {
        let names: Vec<String> = self.names().map(str::to_owned).collect();
        match remove_all(manager, &names, deadline) {
            Ok(()) => Ok(()),
            Err(error) => Err(StoredRefusal {
                stored: self,
                error: error.into(),
            }),
        }
    }
}
