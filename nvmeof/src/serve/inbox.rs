//! Messages from other threads to a worker.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::search::{Search, SearchOwner};
use crate::io::{Fence, Lock, LockOwner};
use crate::model::{Answer, Namespace};

/// A message to a worker.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// An event request of this controller can be answered.
    Event(u16),
    /// This controller was disabled or shut down: the worker ends its I/O queues up to this connection number.
    Reset(u16, u64),
    /// This controller has ended: the worker ends its connections.
    Over(u16),
    /// The host of this connection has not authenticated, or not in time: the worker ends the connection.
    Queue(u64),
    /// The answer to an authentication message has been computed.
    Authenticated {
        /// Index of the command that carried the message.
        io: u32,
        /// Answer for the host.
        answer: Answer,
        /// True if the host has authenticated.
        is_known: bool,
    },
    /// A worker has locked commands of a namespace: the receiver passes the lock when it has none of these at a disk.
    Fence(Arc<Lock>),
    /// All workers have passed the lock of this command.
    Locked(u32),
    /// A block was unlocked.
    Unlocked,
    /// A host aborts a command: the receiver looks for it, and passes the search.
    Abort(Arc<Search>),
    /// All workers have looked for the command of this Abort.
    Searched {
        /// Index of the Abort.
        io: u32,
        /// True if the command was found and ended.
        was_found: bool,
    },
    /// A hold of the target has begun or ended, or all workers have become quiet.
    Hold,
    /// The worker must stop.
    Stop,
}

impl Message {
    /// Drops a message of a worker that handles no more. Another worker that waits for this one goes on.
    pub(super) fn give_up(self) {
        match self {
            Self::Fence(lock) => lock.pass(),
            Self::Abort(search) => search.pass(false),
            Self::Event(_)
            | Self::Reset(..)
            | Self::Over(_)
            | Self::Queue(_)
            | Self::Authenticated { .. }
            | Self::Locked(_)
            | Self::Unlocked
            | Self::Searched { .. }
            | Self::Hold
            | Self::Stop => {}
        }
    }
}

#[derive(Debug, Default)]
struct Messages {
    waiting: VecDeque<Message>,
    is_closed: bool,
}

/// An inbox. A take from an empty inbox only reads one word, which changes when messages come or are taken.
#[derive(Debug)]
pub(super) struct Inbox {
    messages: Mutex<Messages>,
    has_some: AtomicBool,
    /// Descriptor that is readable while there are messages, so that a sleeping worker wakes.
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
        // The descriptor is written and read under the lock. Otherwise `take` could take the message before the write.
        // Then the descriptor would stay readable without a message, and would end each sleep at once.
        // An error means that the counter is at its maximum, so the descriptor is readable already.
        let _ = self.wakeup.write(1);
        true
    }

    /// Closes the inbox, and returns the messages in it.
    pub(super) fn close(&self) -> VecDeque<Message> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.is_closed = true;
        core::mem::take(&mut messages.waiting)
    }

    /// Returns whether a message waits that nothing repeats. An event request that can be answered has its message
    /// again when the model is resumed.
    pub(super) fn must_be_read(&self) -> bool {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.waiting.iter().any(|message| match message {
            Message::Reset(..)
            | Message::Over(_)
            | Message::Queue(_)
            | Message::Authenticated { .. }
            | Message::Fence(_)
            | Message::Locked(_)
            | Message::Abort(_)
            | Message::Searched { .. }
            | Message::Stop => true,
            Message::Event(_) | Message::Unlocked | Message::Hold => false,
        })
    }

    pub(super) fn take(&self) -> VecDeque<Message> {
        if !self.has_some.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        // An error means that the descriptor is not readable, which is what this read is for.
        let _ = self.wakeup.read();
        self.has_some.store(false, Ordering::Release);
        core::mem::take(&mut messages.waiting)
    }
}

impl LockOwner for Inbox {
    fn locked(&self, io: u32) {
        self.put(Message::Locked(io));
    }
}

impl SearchOwner for Inbox {
    fn searched(&self, io: u32, was_found: bool) {
        self.put(Message::Searched { io, was_found });
    }
}

/// Locks that this worker must pass, its own among them. When the worker ends, it passes all that are pending.
#[derive(Debug)]
pub(super) struct Membership {
    pub inbox: Arc<Inbox>,
    /// Locks that this worker has not passed.
    pub fences: Vec<Fence>,
    /// True if the worker was parked: its inbox stays open.
    is_parked: bool,
    /// True if the worker's commands may be at disks for ever.
    is_abandoning: bool,
}

impl Membership {
    pub(super) const fn new(inbox: Arc<Inbox>) -> Self {
        Self {
            inbox,
            fences: Vec::new(),
            is_parked: false,
            is_abandoning: false,
        }
    }

    /// Records that the worker ends with commands at the disks of these namespaces. The locks that it has not passed,
    /// and later ones of these namespaces, fail.
    pub(super) fn abandon(&mut self, at_disks: &[Arc<Namespace>]) {
        self.is_abandoning = true;
        at_disks.iter().for_each(|one| one.abandon());
    }

    /// Drops this value without closing the inbox.
    pub(super) fn park(mut self) {
        self.is_parked = true;
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.is_parked {
            return;
        }
        for message in self.inbox.close() {
            if let Message::Fence(lock) = &message
                && self.is_abandoning
            {
                lock.fail();
            }
            message.give_up();
        }
        for fence in self.fences.drain(..) {
            if self.is_abandoning {
                fence.lock.fail();
            }
            fence.lock.pass();
        }
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread::{scope, yield_now};

    use uuid::Uuid;

    use super::super::target::Target;
    use super::*;
    use crate::disk::{Disk, Source};
    use crate::io::Scope;
    use crate::model::{NamespaceConfig, SubsystemConfig};
    use crate::nvme::Nqn;

    /// A sleep of a worker ends while the descriptor is readable (level-triggered). So the descriptor of an empty inbox
    /// must not be readable, however the steps of sender and receiver interleave.
    #[test]
    fn an_inbox_that_was_emptied_ends_no_sleep() {
        const ROUNDS: u32 = 10_000;
        let inbox = Inbox::new().expect("a descriptor");
        let (asked, done) = (AtomicU32::new(0), AtomicU32::new(0));
        let until = |counter: &AtomicU32, round| {
            while counter.load(Ordering::Acquire) != round {
                yield_now();
            }
        };
        // Failed rounds are counted, and asserted only at the end, so that the other thread always ends.
        let mut readable = 0;
        scope(|threads| {
            threads.spawn(|| {
                for round in 1..=ROUNDS {
                    until(&asked, round);
                    inbox.put(Message::Unlocked);
                    done.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::Release);
                while inbox.take().is_empty() {
                    yield_now();
                }
                until(&done, round);
                readable += u32::from(inbox.wakeup.read().is_ok());
            }
        });
        assert_eq!(readable, 0, "rounds of {ROUNDS}");
    }

    fn namespace() -> Arc<Namespace> {
        let name: Nqn = "nqn.2026-11.test:a".parse().expect("a name");
        let target = Target::default();
        target.with(|model| {
            let config = SubsystemConfig {
                name: name.clone(),
                serial: "a".to_owned(),
                model: "a".to_owned(),
                any_host: true,
                queues: 1,
            };
            model.add_subsystem(config).expect("a subsystem");
            let disk = Disk::open(Source::Memory(1 << 20), 9, false);
            let config = NamespaceConfig {
                nsid: Some(1),
                uuid: Uuid::from_u128(1),
                group: 1,
                hosts: None,
                disk: disk.expect("memory"),
            };
            model.add_namespace(&name, config).expect("a namespace");
            model.namespace(&name, 1).expect("it is there")
        })
    }

    /// A worker that ends while its commands are at a disk that hangs lets those who wait go on, but a write of a
    /// preempted host may follow. So their
    /// locks have failed, and so have later ones.
    #[test]
    fn a_worker_that_ends_with_commands_at_a_disk_fails_the_locks_of_the_namespace() {
        for (is_abandoning, is_read) in [(false, false), (true, false), (true, true)] {
            let namespace = namespace();
            let inbox = Arc::new(Inbox::new().expect("a descriptor"));
            let owner = Arc::new(Inbox::new().expect("a descriptor"));
            let lock = || {
                let owner = Arc::clone(&owner) as Arc<dyn LockOwner>;
                Arc::new(Lock::new(&namespace, Scope::Hosts(Vec::new()), 1, owner, 5))
            };
            let mut membership = Membership::new(Arc::clone(&inbox));
            let first = lock();
            if is_read {
                let lock = Arc::clone(&first);
                let busy = vec![1];
                membership.fences.push(Fence { lock, busy });
            } else {
                assert!(inbox.put(Message::Fence(Arc::clone(&first))));
            }
            if is_abandoning {
                membership.abandon(&[Arc::clone(&namespace)]);
            }
            drop(membership);
            let told = owner.take();
            assert!(matches!(told.front(), Some(Message::Locked(5))), "{told:?}");
            assert_eq!(first.has_failed(), is_abandoning);
            assert_eq!(lock().has_failed(), is_abandoning);
        }
    }

    #[test]
    fn an_inbox_with_a_message_ends_a_sleep() {
        let inbox = Inbox::new().expect("a descriptor");
        assert!(inbox.put(Message::Stop) && inbox.put(Message::Unlocked));
        assert_eq!(inbox.wakeup.read().ok(), Some(2), "readable");
    }
}
