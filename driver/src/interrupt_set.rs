//! Several interrupts as one descriptor, for an event loop to poll.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::interrupt::Interrupt;

/// Interrupts, and a descriptor that is readable while one of them is signalled.
pub struct InterruptSet {
    epoll: Descriptor,
    members: Vec<Interrupt>,
}

/// The descriptor of an [`InterruptSet`]. Clones share it.
#[derive(Clone)]
pub struct Descriptor(Arc<Epoll>);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// For event loops that take no borrowed descriptors. The descriptor is open as long as a clone exists.
impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl InterruptSet {
    /// Makes an empty set.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Descriptor(Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?)),
            members: Vec::new(),
        })
    }

    /// Makes these interrupts the members of the set, in place of the previous ones.
    ///
    /// # Errors
    /// The system has no memory, or the user has reached the limit of watches; then some of them may be missing, or
    /// some of the previous ones may remain.
    pub fn watch(&mut self, interrupts: &[Interrupt]) -> io::Result<()> {
        let gone = |member: &Interrupt| !interrupts.iter().any(|one| one.is(member));
        while let Some(place) = self.members.iter().position(gone) {
            // If this fails, the interrupt is still watched, and stays a member.
            self.epoll.0.delete(self.members[place].as_fd())?;
            self.members.remove(place);
        }
        for interrupt in interrupts {
            if !self.members.iter().any(|member| member.is(interrupt)) {
                let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
                self.epoll.0.add(interrupt.as_fd(), readable)?;
                self.members.push(interrupt.clone());
            }
        }
        Ok(())
    }

    /// Returns the descriptor for an event loop.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        self.epoll.clone()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(set: &InterruptSet) -> bool {
        let descriptor = set.descriptor();
        let mut fds = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("polled") == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_a_member_is_signalled() {
        let [one, other] = [(); 2].map(|()| Interrupt::new().expect("an eventfd"));
        let mut set = InterruptSet::new().expect("an epoll instance");
        set.watch(&[one.clone(), other.clone()]).expect("watched");
        assert!(!is_readable(&set));
        other.signal();
        assert!(is_readable(&set));
        set.watch(std::slice::from_ref(&one)).expect("watched");
        assert!(!is_readable(&set), "no member any more");
        one.signal();
        assert!(is_readable(&set));
        assert_eq!(one.take(), 1);
        assert!(!is_readable(&set));
    }

    #[test]
    fn an_interrupt_that_cannot_be_removed_stays_a_member() {
        let interrupt = Interrupt::new().expect("an eventfd");
        let mut set = InterruptSet::new().expect("an epoll instance");
        // The system refuses to remove what it does not watch (epoll_ctl(2), ENOENT).
        set.members.push(interrupt.clone());
        assert!(set.watch(&[]).is_err());
        assert!(set.members.iter().any(|member| member.is(&interrupt)));
    }
}
