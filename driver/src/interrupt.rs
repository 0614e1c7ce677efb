//! Interrupts as eventfds.
//!
//! An interrupt vector is a counter in the kernel: the device adds one, the driver reads and clears it. With VFIO the
//! kernel signals it from the MSI-X vector; a device model signals it itself. A waiting thread polls it, by an io_uring
//! or ppoll(2). Signals merge until they are taken, as edges do.

// UNSAFETY: a descriptor received from another process is used as an eventfd.
#![expect(unsafe_code, reason = "received eventfds")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::event_signaller::{EventSignaller, SignalQueue};

/// One interrupt vector. Clones share it.
#[derive(Clone, Debug)]
pub struct Interrupt {
    event: Arc<EventFd>,
    /// Queue of the thread that signals the eventfd, if a write to it may block.
    queue: Option<Arc<SignalQueue>>,
}

impl Interrupt {
    /// Makes an interrupt that is not signalled.
    ///
    /// # Errors
    /// The system has no eventfd left.
    pub fn new() -> io::Result<Self> {
        let event =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            event: Arc::new(event),
            queue: None,
        })
    }

    /// Takes an eventfd of another process, to be signalled here. Any other descriptor is refused.
    ///
    /// The eventfd is made nonblocking, but the other process shares that flag and may clear it. So the signaller's
    /// thread signals the eventfd.
    pub(crate) fn imported(fd: OwnedFd, signaller: &EventSignaller) -> io::Result<Self> {
        check_eventfd(&fd)?;
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        // SAFETY: the kernel just confirmed that it is an eventfd.
        let event = unsafe { EventFd::from_owned_fd(fd) };
        Ok(Self {
            event: Arc::new(event),
            queue: Some(Arc::clone(signaller.queue())),
        })
    }

    /// Takes over an eventfd that another process has made as [`new`](Self::new) does. Its count stays.
    ///
    /// # Errors
    /// It is no eventfd, or a read of it would wait.
    pub(crate) fn adopted(fd: OwnedFd) -> io::Result<Self> {
        check_eventfd(&fd)?;
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        if !flags.contains(OFlag::O_NONBLOCK) {
            return Err(io::Error::other("a read of the eventfd would wait"));
        }
        // SAFETY: the kernel just confirmed that it is an eventfd.
        let event = unsafe { EventFd::from_owned_fd(fd) };
        Ok(Self {
            event: Arc::new(event),
            queue: None,
        })
    }

    /// Signals the interrupt, as the device does.
    pub fn signal(&self) {
        if let Some(queue) = &self.queue {
            queue.signal(&self.event);
            return;
        }
        // The only error for an eventfd of this process is EAGAIN: the counter is full, so the eventfd is signalled.
        if let Err(errno) = self.event.write(1)
            && errno != Errno::EAGAIN
        {
            tracing::error!("eventfd write: {errno}");
        }
    }

    /// Returns the number of signals since the last call, 0 if none, and clears it.
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

    /// Returns whether the interrupt is signalled; it stays signalled.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let mut fds = [PollFd::new(self.event.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether both are the same vector.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.event, &other.event)
    }

    /// Returns the descriptor, for an io_uring or a poll of the caller.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Checks that a descriptor is an eventfd.
fn check_eventfd(fd: &OwnedFd) -> io::Result<()> {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    if kind.as_os_str() == "anon_inode:[eventfd]" {
        Ok(())
    } else {
        Err(Errno::EINVAL.into())
    }
}

/// Eventfds, like those of vectors, on which the system reports events of a device that the device itself cannot
/// report. An eventfd is `None` if the backend does not report its event.
#[derive(Clone, Debug, Default)]
pub struct Notices {
    /// Signalled when the bus has reported an uncorrectable error of the device: its latest results and all further
    /// ones may be wrong.
    pub error: Option<Interrupt>,
    /// Signalled when the device is being unbound or unplugged. The system then waits until we close the device.
    pub requested: Option<Interrupt>,
}

impl Notices {
    /// Makes both eventfds, not signalled.
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
    fn an_adopted_eventfd_has_its_count_and_any_other_descriptor_is_refused() {
        let interrupt = Interrupt::new().unwrap();
        interrupt.signal();
        let adopted = interrupt.as_fd().try_clone_to_owned().unwrap();
        let adopted = Interrupt::adopted(adopted).unwrap();
        assert_eq!((adopted.take(), interrupt.take()), (1, 0));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Interrupt::adopted(file.into()).is_err());
        let waiting = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap();
        assert!(Interrupt::adopted(waiting.into()).is_err());
    }

    #[test]
    fn a_full_counter_stays_signalled() {
        let interrupt = Interrupt::new().unwrap();
        interrupt.event.write(u64::MAX - 1).unwrap();
        interrupt.signal();
        assert_eq!(interrupt.take(), u64::MAX - 1);
    }
}
