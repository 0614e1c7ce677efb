//! A thread that signals eventfds received from another process.
//!
//! Adding to an eventfd blocks while its counter is full, unless the descriptor is nonblocking (eventfd(2)). That
//! flag is shared with the process that sent the descriptor. So a separate thread for each client writes to the
//! client's eventfds: a client that clears the flag and fills the counter stops only its own interrupts.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use rustix::io::{ReadWriteFlags, preadv2};

#[derive(Default)]
struct State {
    /// Eventfds to be signalled; each is listed at most once.
    due: VecDeque<Arc<EventFd>>,
    /// Eventfd being signalled now.
    now: Option<Arc<EventFd>>,
    over: bool,
}

/// State shared by the thread and its callers.
#[derive(Default)]
pub(crate) struct SignalQueue {
    state: Mutex<State>,
    wake: Condvar,
}

/// When this many eventfds are due, those that the client has replaced are dropped.
const MAX_DUE: usize = 64;

impl std::fmt::Debug for SignalQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalQueue")
    }
}

impl SignalQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that the thread signal an eventfd. Requests for the same eventfd that were not served yet count as one.
    ///
    /// If [`MAX_DUE`] eventfds are due, those that only this queue still has are dropped, because the client has
    /// replaced them. Otherwise a client that blocks the thread could fill the queue with descriptors. Below this
    /// number such eventfds are kept, because the client may have set the same eventfd again by another descriptor.
    pub(crate) fn signal(&self, event: &Arc<EventFd>) {
        let mut state = self.state();
        if state.due.len() >= MAX_DUE {
            state.due.retain(|due| Arc::strong_count(due) > 1);
        }
        if !state.over && !state.due.iter().any(|due| Arc::ptr_eq(due, event)) {
            state.due.push_back(Arc::clone(event));
            self.wake.notify_one();
        }
    }

    /// Signals the due eventfds until the signaller is dropped.
    fn run(&self) {
        loop {
            let mut state = self.state();
            state.now = None;
            let event = loop {
                if state.over {
                    return;
                }
                if let Some(event) = state.due.pop_front() {
                    break event;
                }
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            state.now = Some(Arc::clone(&event));
            drop(state);
            // EAGAIN: the counter is full, so the eventfd is signalled already.
            if let Err(errno) = event.write(1)
                && errno != Errno::EAGAIN
            {
                tracing::error!("eventfd write: {errno}");
            }
        }
    }
}

/// Owner of the signalling thread. The thread ends when the owner is dropped.
pub(crate) struct EventSignaller(Arc<SignalQueue>);

impl EventSignaller {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let queue = Arc::new(SignalQueue::default());
        let run = Arc::clone(&queue);
        thread::Builder::new()
            .name("signaller".into())
            .spawn(move || run.run())?;
        Ok(Self(queue))
    }

    pub(crate) const fn queue(&self) -> &Arc<SignalQueue> {
        &self.0
    }
}

impl Drop for EventSignaller {
    /// Requests that the thread end, and does not wait for it. If the thread is blocked on a full counter, the counter
    /// is emptied here, so that the thread continues. A client that fills the counter again and again occupies only
    /// that thread and that descriptor.
    fn drop(&mut self) {
        let blocked = {
            let mut state = self.0.state();
            state.over = true;
            state.due.clear();
            state.now.clone()
        };
        self.0.wake.notify_one();
        if let Some(event) = blocked {
            empty(&event);
        }
    }
}

/// Empties the counter of an eventfd. Never waits, even if the descriptor is blocking: the client may clear the
/// nonblocking flag, and empty the counter, at any time. `RWF_NOWAIT` concerns this read alone (Linux 5.8 and later,
/// `fs/eventfd.c` `eventfd_read`).
fn empty(event: &EventFd) {
    let mut count = [0; 8];
    let mut parts = [IoSliceMut::new(&mut count)];
    match preadv2(event, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
        // The thread stays blocked until the client empties the counter.
        Err(errno) => tracing::warn!("eventfd read: {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::sys::eventfd::EfdFlags;

    use super::*;

    /// A read of an eventfd whose counter is 0 blocks unless the descriptor is nonblocking (eventfd(2)).
    #[test]
    fn an_empty_counter_is_not_waited_for() {
        let event = EventFd::from_value_and_flags(3, EfdFlags::EFD_CLOEXEC).unwrap();
        empty(&event);
        empty(&event);
        event.write(1).unwrap();
        assert_eq!(event.read(), Ok(1), "the three are gone");
    }

    fn eventfd() -> Arc<EventFd> {
        Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap())
    }

    /// Starts a signaller whose thread is blocked at the counter of the returned eventfd.
    fn blocked() -> (EventSignaller, Arc<EventFd>) {
        let event = eventfd();
        event.write(u64::MAX - 1).unwrap();
        let signaller = EventSignaller::start().unwrap();
        signaller.queue().signal(&event);
        while signaller.queue().state().now.is_none() {
            thread::yield_now();
        }
        (signaller, event)
    }

    /// A client that blocks the thread, and replaces its eventfd after each interrupt, cannot fill the queue with
    /// descriptors.
    #[test]
    fn a_blocked_signaller_keeps_no_eventfds_that_were_replaced() {
        let (signaller, _event) = blocked();
        let queue = Arc::clone(signaller.queue());
        let used = eventfd();
        // An eventfd that the client has set again by another descriptor is still signalled.
        queue.signal(&eventfd());
        queue.signal(&used);
        assert_eq!(queue.state().due.len(), 2);
        for _ in 0..4 * MAX_DUE {
            queue.signal(&eventfd());
            assert!(queue.state().due.len() <= MAX_DUE);
        }
        assert!(queue.state().due.iter().any(|due| Arc::ptr_eq(due, &used)));
        drop(signaller);
        queue.signal(&used);
        assert_eq!(Arc::strong_count(&used), 1);
    }

    /// The client shares the flags of its descriptor (fcntl(2), "File status flags"), so it may change them whenever it
    /// likes.
    #[test]
    fn a_signaller_that_ends_frees_its_thread_and_changes_no_flag_of_the_client() {
        let (signaller, event) = blocked();
        drop(signaller);
        let flags = OFlag::from_bits_retain(fcntl(&*event, FcntlArg::F_GETFL).unwrap());
        assert!(!flags.contains(OFlag::O_NONBLOCK), "{flags:?}");
        // The counter was emptied, so the thread has added its 1.
        assert_eq!(event.read(), Ok(1));
    }
}
