//! The lock that prevents a second function from being resumed while the first one exists.
//!
//! A descriptor that is passed on refers to the same open file as before, and a lock of flock(2) belongs to the open
//! file: all holders of the descriptor have the lock, or none. So the descriptor that is passed on only identifies a
//! file without contents (memfd_create(2)), and is not locked. The process that takes the function over opens the file
//! anew (`/proc/self/fd`, proc(5)), and locks the new open file. The function has the lock until it is closed or
//! parked. All snapshots of a function have the same file, so a function that is in use is not resumed from an older
//! snapshot either.
//!
//! The lock ends when the function is dropped, even if a child of `fork` has a copy of the descriptor. If the process
//! ends without a drop, the kernel ends the lock when the last copy is closed; a child closes its copy when it executes
//! a program.
//!
//! The lock is advisory. It prevents mistakes: a process that has the descriptors can drive the device without the
//! lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::fs::{FlockOperation, flock};

use crate::descriptors::{Given, Parting};
use crate::error::{ParkError, ResumeError};
use crate::snapshot::DescriptorSnapshot;

/// Name of the descriptor.
const NAME: &str = "lock";

/// A lock that is taken.
pub(crate) struct DrivingLock {
    /// The descriptor that is passed on. Its open file is not locked.
    passed: OwnedFd,
    _locked: Locked,
}

/// An open file that has the lock.
struct Locked {
    file: File,
    /// ID of the process that has taken the lock. A drop in a child of `fork` does not end the lock.
    process: u32,
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.process == std::process::id()
            && let Err(errno) = flock(&self.file, FlockOperation::Unlock)
        {
            tracing::error!("flock: {errno}");
        }
    }
}

impl DrivingLock {
    /// Takes the lock of a snapshot.
    pub(crate) fn take(
        function: &str,
        lock: &DescriptorSnapshot,
        given: &mut Given<'_>,
    ) -> Result<Self, ResumeError> {
        let passed = given.duplicate(NAME, lock)?;
        match locked(&passed) {
            Ok(Some(locked)) => Ok(Self {
                passed,
                _locked: locked,
            }),
            Ok(None) => Err(ResumeError::Resumed {
                name: function.to_owned(),
            }),
            Err(error) => Err(given.unfit(NAME, error.to_string())),
        }
    }

    /// Describes the lock for another process.
    pub(crate) fn snapshot(
        &self,
        parting: &mut Parting<'_>,
    ) -> Result<DescriptorSnapshot, ParkError> {
        parting.add(NAME, self.passed.as_fd())
    }

    /// Makes the file of a function that is parked for the first time.
    pub(crate) fn make(parting: &mut Parting<'_>) -> Result<DescriptorSnapshot, ParkError> {
        let file = memfd_create("driving", MFdFlags::MFD_CLOEXEC);
        let file = file.map_err(|errno| parting.failed(NAME, errno.into()))?;
        parting.add(NAME, file.as_fd())
    }
}

/// Opens the file of a descriptor anew and locks it. `None` if it is locked.
fn locked(passed: &OwnedFd) -> io::Result<Option<Locked>> {
    let path = format!("/proc/self/fd/{}", passed.as_raw_fd());
    let file = OpenOptions::new().read(true).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Locked {
            file,
            process: std::process::id(),
        })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_of_a_descriptor_does_not_get_the_lock() {
        let passed = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        let other = passed.try_clone().unwrap();
        let first = locked(&passed).unwrap();
        assert!(first.is_some());
        assert!(locked(&other).unwrap().is_none());
        assert!(locked(&passed).unwrap().is_none());
        // A child of `fork` has such a copy.
        let _copy = first.as_ref().unwrap().file.try_clone().unwrap();
        drop(first);
        let next = locked(&other).unwrap();
        // The child does not end the lock.
        let mut of_parent = next.unwrap();
        of_parent.process = 0;
        let _still_open = of_parent.file.try_clone().unwrap();
        drop(of_parent);
        assert!(locked(&passed).unwrap().is_none());
    }
}
