//! A thread that signals eventfds of somebody else's.
//!
//! Adding to an eventfd blocks while its counter is full, unless the descriptor is nonblocking (eventfd(2)), and that
//! flag is shared with whoever gave us the descriptor. So strangers' eventfds are written to by a thread that serves
//! one stranger: one who takes the flag back and fills the counter stops his own interrupts.

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
    /// To be signalled, each once.
    due: VecDeque<Arc<EventFd>>,
    /// Being signalled.
    now: Option<Arc<EventFd>>,
    over: bool,
}

/// What the thread and those who signal share.
#[derive(Default)]
pub(crate) struct Errands {
    state: Mutex<State>,
    wake: Condvar,
}

impl std::fmt::Debug for Errands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Errands")
    }
}

impl Errands {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an eventfd signalled. Signals that were not delivered yet merge, as in the eventfd itself.
    pub(crate) fn signal(&self, event: &Arc<EventFd>) {
        let mut state = self.state();
        if !state.due.iter().any(|due| Arc::ptr_eq(due, event)) {
            state.due.push_back(Arc::clone(event));
            self.wake.notify_one();
        }
    }

    /// Signals what is due until it is over.
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
            // Full: it is signalled anyway.
            if let Err(errno) = event.write(1)
                && errno != Errno::EAGAIN
            {
                tracing::error!("eventfd write: {errno}");
            }
        }
    }
}

/// The thread, until this is dropped.
pub(crate) struct Courier(Arc<Errands>);

impl Courier {
    /// Starts it.
    pub(crate) fn start() -> io::Result<Self> {
        let errands = Arc::new(Errands::default());
        let run = Arc::clone(&errands);
        thread::Builder::new()
            .name("courier".into())
            .spawn(move || run.run())?;
        Ok(Self(errands))
    }

    pub(crate) const fn errands(&self) -> &Arc<Errands> {
        &self.0
    }
}

impl Drop for Courier {
    /// The thread is not waited for. One that is blocked is let go by emptying the counter; a stranger who goes on
    /// filling it keeps that thread and his own descriptor.
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
