//! A thread that signals eventfds received from another process.
//!
//! Adding to an eventfd blocks while its counter is full, unless the descriptor is nonblocking (eventfd(2)). That
//! flag is shared with the process that sent the descriptor. So a separate thread for each client writes to the
//! client's eventfds: a client that clears the flag and fills the counter stops only its own interrupts.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::EventFd;

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

impl std::fmt::Debug for SignalQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalQueue")
    }
}

impl SignalQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the thread to signal an eventfd. Signals that were not delivered yet merge, as in the eventfd itself.
    pub(crate) fn signal(&self, event: &Arc<EventFd>) {
        let mut state = self.state();
        if !state.due.iter().any(|due| Arc::ptr_eq(due, event)) {
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
    /// Asks the thread to end, and does not wait for it. If the thread is blocked on a full counter, this empties the
    /// counter, which releases the thread. A client that keeps filling the counter occupies only that thread and that
    /// descriptor.
    fn drop(&mut self) {
        let blocked = {
            let mut state = self.0.state();
            state.over = true;
            state.now.clone()
        };
        self.0.wake.notify_one();
        let Some(event) = blocked else {
            return;
        };
        let nonblocking = fcntl(event.as_fd(), FcntlArg::F_GETFL).and_then(|flags| {
            let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
            fcntl(event.as_fd(), FcntlArg::F_SETFL(flags))
        });
        if nonblocking.is_ok() {
            let _emptied = event.read();
        }
    }
}
