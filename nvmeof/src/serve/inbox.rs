//! Messages of other threads to a worker.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::io::{Lock, LockOwner};
use crate::model::Answer;

/// A message.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// An event request of this controller can be answered.
    Event(u16),
    /// This controller was disabled or shut down: its I/O queues up to this connection end.
    Reset(u16, u64),
    /// This controller has ended: its connections end.
    Over(u16),
    /// The host of this connection has failed to authenticate: the connection ends.
    Queue(u64),
    /// A message of authentication was computed.
    Authenticated {
        /// The command that it came with.
        io: u32,
        /// The answer for the host.
        answer: Answer,
        /// The host has authenticated.
        is_known: bool,
    },
    /// A worker locks a block: the receiver passes the lock once it has no write at the block.
    Fence(Arc<Lock>),
    /// The block that this command locks has no writes any more.
    Locked(u32),
    /// A block was unlocked.
    Unlocked,
    /// The worker ends.
    Stop,
}

#[derive(Debug, Default)]
struct Messages {
    waiting: VecDeque<Message>,
    is_closed: bool,
}

/// An inbox. Taking from an empty one reads one word, which only a message writes.
#[derive(Debug)]
pub(super) struct Inbox {
    messages: Mutex<Messages>,
    has_some: AtomicBool,
    /// Readable while there are messages, so that the worker wakes up.
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

    /// Adds a message. Returns false if the inbox is closed.
    pub(super) fn put(&self, message: Message) -> bool {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.is_closed {
            return false;
        }
        messages.waiting.push_back(message);
        self.has_some.store(true, Ordering::Release);
        drop(messages);
        // An error means that it is full, and then it is readable.
        let _ = self.wakeup.write(1);
        true
    }

    /// Closes the inbox, and returns the messages in it.
    pub(super) fn close(&self) -> VecDeque<Message> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.is_closed = true;
        core::mem::take(&mut messages.waiting)
    }

    pub(super) fn take(&self) -> VecDeque<Message> {
        if !self.has_some.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        // An error means that the writer has not written yet; the worker then wakes up once without a message.
        let _ = self.wakeup.read();
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_some.store(false, Ordering::Release);
        core::mem::take(&mut messages.waiting)
    }
}

impl LockOwner for Inbox {
    fn locked(&self, io: u32) {
        self.put(Message::Locked(io));
    }
}

/// A worker's part in the locks of all workers. When it ends, it passes the locks that wait for it.
#[derive(Debug)]
pub(super) struct Membership {
    pub inbox: Arc<Inbox>,
    /// Locks that wait for writes of this worker.
    pub fences: Vec<Arc<Lock>>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        for message in self.inbox.close() {
            if let Message::Fence(lock) = message {
                lock.pass();
            }
        }
        self.fences.drain(..).for_each(|lock| lock.pass());
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
