//! What other threads have to tell a worker.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::fused::Lock;
use crate::model::Answer;

/// What there is to tell.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// An event request of this controller can be answered.
    Event(u16),
    /// This controller was disabled or shut down: its I/O queues up to this connection end.
    Reset(u16, u64),
    /// This controller is over: its connections end.
    Over(u16),
    /// The host of the queue that is this connection has not shown who it is: the connection ends.
    Queue(u64),
    /// What a host said to show who it is was worked out.
    Authenticated {
        /// Which I/O it came with.
        io: u32,
        /// What the host is answered.
        answer: Answer,
        /// It is known from now on.
        is_known: bool,
    },
    /// Somebody locks a block: writes that are at it are waited for.
    Fence(Arc<Lock>),
    /// The block that this I/O wants is locked.
    Locked(u32),
    /// A lock is gone.
    Unlocked,
    /// Everything ends.
    Stop,
}

#[derive(Debug, Default)]
struct Messages {
    waiting: VecDeque<Message>,
    is_closed: bool,
}

/// An inbox. A look at an empty one reads a word that is written only with a message.
#[derive(Debug)]
pub(super) struct Inbox {
    messages: Mutex<Messages>,
    has_some: AtomicBool,
    /// Readable while there are messages: who sleeps on it wakes up.
    wakeup: EventFd,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            messages: Mutex::default(),
            has_some: AtomicBool::new(false),
            wakeup: EventFd::from_value_and_flags(0, flags)?,
        })
    }

    /// False if nobody reads it any more.
    pub(super) fn put(&self, message: Message) -> bool {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.is_closed {
            return false;
        }
        messages.waiting.push_back(message);
        self.has_some.store(true, Ordering::Release);
        drop(messages);
        // It can only be full, and then it is readable.
        let _ = self.wakeup.write(1);
        true
    }

    /// Nobody reads it any more: what nobody has read.
    pub(super) fn close(&self) -> VecDeque<Message> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.is_closed = true;
        core::mem::take(&mut messages.waiting)
    }

    pub(super) fn take(&self) -> VecDeque<Message> {
        if !self.has_some.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        // Nothing to read: somebody is about to write, and wakes up once for nothing.
        let _ = self.wakeup.read();
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_some.store(false, Ordering::Release);
        core::mem::take(&mut messages.waiting)
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
