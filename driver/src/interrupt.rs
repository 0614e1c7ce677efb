//! Interrupts as eventfds.
//!
//! An interrupt vector is a counter in the kernel: the device adds one, the driver reads and clears. VFIO has the
//! kernel signal it from the MSI-X vector, a device model signals it itself, and whoever waits polls it, in its
//! own ring or in ours. Signals that arrive before they are taken merge, as edges do.

// UNSAFETY: an eventfd that another process gave us is taken as one.
#![expect(unsafe_code, reason = "received eventfds")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::courier::{Courier, Errands};

/// One interrupt vector. Clones share it.
#[derive(Clone, Debug)]
pub struct Interrupt {
    event: Arc<EventFd>,
    /// Who signals it, if that may block.
    errands: Option<Arc<Errands>>,
}

impl Interrupt {
    /// A new one, not signalled.
    ///
    /// # Errors
    /// The system has no eventfd left.
    pub fn new() -> io::Result<Self> {
        let event =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            event: Arc::new(event),
            errands: None,
        })
    }

    /// One that another process gave us, to be signalled. Refused unless it is an eventfd.
    ///
    /// It is made nonblocking, but the other process shares that flag and may take it back: the courier signals it.
    pub(crate) fn imported(fd: OwnedFd, courier: &Courier) -> io::Result<Self> {
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return Err(Errno::EINVAL.into());
        }
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        // SAFETY: the kernel just said that it is an eventfd.
        let event = unsafe { EventFd::from_owned_fd(fd) };
        Ok(Self {
            event: Arc::new(event),
            errands: Some(Arc::clone(courier.errands())),
        })
    }

    /// Signals it, as the device does.
    pub fn signal(&self) {
        if let Some(errands) = &self.errands {
            errands.signal(&self.event);
            return;
        }
        // The only refusal of a descriptor that is ours is a counter about to overflow, which is signalled anyway.
        if let Err(errno) = self.event.write(1)
            && errno != Errno::EAGAIN
        {
            tracing::error!("eventfd write: {errno}");
        }
    }

    /// How often it was signalled since it was last taken, 0 if not; clears it.
    #[must_use = "the count is gone with this call"]
    pub fn take(&self) -> u64 {
        match self.event.read() {
            Ok(count) => count,
            Err(Errno::EAGAIN) => 0,
            Err(errno) => {
                tracing::error!("eventfd read: {errno}");
                0
            }
        }
    }

    /// True if it is signalled; leaves it so.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let mut fds = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether it is the same vector.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.event, &other.event)
    }

    /// The descriptor, for a ring or a poll of one's own.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What the system says of a device, which the device itself would not: eventfds like its vectors. Nobody says
/// what is `None`.
#[derive(Clone, Debug, Default)]
pub struct Notices {
    /// The bus reports an uncorrectable error of the device: what it did last may be wrong, what it does next as well.
    pub error: Option<Interrupt>,
    /// Somebody wants the device back (it is being unbound, or unplugged) and waits until we close it.
    pub requested: Option<Interrupt>,
}

impl Notices {
    /// Both, not signalled.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            error: Some(Interrupt::new()?),
            requested: Some(Interrupt::new()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_merge_until_taken() {
        let interrupt = Interrupt::new().unwrap();
        assert_eq!(interrupt.take(), 0);
        assert!(!interrupt.is_pending());
        interrupt.signal();
        interrupt.clone().signal();
        assert!(interrupt.is_pending());
        assert!(interrupt.is_pending(), "looking is not taking");
        assert_eq!(interrupt.take(), 2);
        assert_eq!(interrupt.take(), 0);
    }

    #[test]
    fn a_full_counter_stays_signalled() {
        let interrupt = Interrupt::new().unwrap();
        interrupt.event.write(u64::MAX - 1).unwrap();
        interrupt.signal();
        assert_eq!(interrupt.take(), u64::MAX - 1);
    }
}
