//! The reactor: one io_uring for interrupts, deadlines and disk I/O.
//!
//! A thread that waits for a device usually waits for disks and timers too. [`Reactor::wait`] sleeps until an
//! interrupt is signalled, an operation has ended or the deadline has come, whichever is first. Reads and writes go
//! straight between files and DMA memory, without a copy: several are queued, then waited for together.
//!
//! An operation is a small state: what is still to do ([`FileOperation`]). A short read or write is continued where it
//! stopped; a read that gets nothing has met the end of the file and ends with the bytes it has. An operation owns its
//! buffer and its file until the kernel is done with them, even if nobody waits for it any more. Its [`Completion`]
//! carries the tag that it was queued with.
//!
//! Once tables have grown to what is in use at once, queueing, waiting and taking completions allocate nothing. Looking
//! (a wait whose deadline has passed) is one system call, or none where nothing was queued and the kernel has nothing
//! to say. Sleeping is one, and one more if something else than the descriptors has ended the sleep, since polls of
//! lent descriptors end with it.
//!
//! Buffers that were [registered](Reactor::register) are pinned once and not at each transfer, and
//! [files](Reactor::register_files) are looked up once. The first needs permission to lock memory; without either,
//! operations work as well, only slower.
//!
//! A reactor is for one thread at a time. It may go to another one while nothing is outstanding.
//!
//! Where the system forbids io_uring or has none (RHEL 9 as delivered, many containers), a reactor still waits, by
//! ppoll(2), and refuses operations on files with [`ReactorError::NoDisks`].
//!
//! [`Reactor::wait_for`] sleeps on whatever has a descriptor: sockets, timers of the kernel's, an adapter's
//! [`Descriptor`](crate::Descriptor). A daemon with a ring of its own submits [`poll_entry`] there instead, or polls
//! that descriptor.

pub(crate) mod operation;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::time::Duration;

use nix::errno::Errno;

use crate::bytes::Bytes;
use crate::clock::{Instant, MAX_WAIT, monotonic_now};
use crate::dma::DmaBuffer;
use crate::error::ReactorError;
use crate::file::File;
use crate::interrupt::Interrupt;
use crate::readable::poll_readable;
use crate::ring::{Kind, Ring};
use operation::Operation;
pub use operation::{FileOperation, Token};

/// That there is no io_uring is logged once.
static FIRST_REFUSAL: Once = Once::new();

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion {
    /// Which one.
    pub token: Token,
    /// What it was queued with.
    pub tag: u64,
    /// Bytes moved, of reads and writes: a write moves all; a read moves fewer only at the end of the file. 0 of
    /// others.
    pub result: Result<usize, ReactorError>,
}

/// Why [`Reactor::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// An interrupt is signalled, or a descriptor is readable (and still is).
    Interrupt,
    /// An operation has ended; see [`Reactor::take_completion`].
    Transfer,
    /// The deadline has come.
    Deadline,
}

/// A ring with the operations and waits in it.
pub struct Reactor {
    /// Or the system's answer, if it forbids rings or has none. Then waits go by ppoll(2), and there are no operations.
    ring: Result<Ring, Errno>,
    /// For reads and writes of what can be polled.
    polled: Option<Ring>,
    entries: u32,
    queued: u64,
    /// Ended, not yet taken.
    finished: VecDeque<Completion>,
}

impl Reactor {
    /// A reactor that has up to `entries` operations in the kernel at once.
    ///
    /// Where the system forbids io_uring, or has none, it waits by ppoll(2) and refuses operations
    /// ([`Reactor::check_disks`]).
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the system makes no ring of that size.
    pub fn new(entries: u32) -> Result<Self, ReactorError> {
        Self::of(Kind::OneThread, entries)
    }

    /// One that goes from thread to thread.
    pub(crate) fn of_any_thread(entries: u32) -> Result<Self, ReactorError> {
        Self::of(Kind::AnyThread, entries)
    }

    fn of(kind: Kind, entries: u32) -> Result<Self, ReactorError> {
        let ring = match Ring::new(kind, entries) {
            Ok(ring) => Ok(ring),
            Err(source) => match source.raw_os_error().map(Errno::from_raw) {
                // A switch or a filter, no io_uring in the kernel, SELinux, RLIMIT_MEMLOCK (before Linux 5.12).
                Some(errno @ (Errno::EPERM | Errno::ENOSYS | Errno::EACCES | Errno::ENOMEM)) => {
                    FIRST_REFUSAL.call_once(|| {
                        tracing::warn!(
                            "no io_uring: waiting goes by ppoll, disks are refused: {errno}"
                        );
                    });
                    Err(errno)
                }
                _ => {
                    return Err(ReactorError::Ring {
                        call: "io_uring_setup",
                        entries,
                        source,
                    });
                }
            },
        };
        Ok(Self {
            ring,
            polled: None,
            entries,
            queued: 0,
            finished: VecDeque::new(),
        })
    }

    /// A reactor that polls devices for the end of reads and writes, on a second ring of as many `entries`. It does not
    /// sleep while there are any. That takes a processor and saves interrupts. It needs files opened with `O_DIRECT`,
    /// on devices with queues for it (`nvme.poll_queues`). If a file cannot be polled the log says so, and its
    /// transfers are made as by any other reactor.
    ///
    /// # Errors
    /// As [`Reactor::new`].
    pub fn polled(entries: u32) -> Result<Self, ReactorError> {
        let mut reactor = Self::new(entries)?;
        if reactor.ring.is_err() {
            return Ok(reactor);
        }
        match Ring::new(Kind::Polled, entries) {
            Ok(ring) => reactor.polled = Some(ring),
            Err(error) => tracing::warn!("no ring that polls can be had, and nothing is: {error}"),
        }
        Ok(reactor)
    }

    /// Whether there can be operations on files.
    ///
    /// # Errors
    /// [`ReactorError::NoDisks`]: the system makes no io_uring.
    pub fn check_disks(&self) -> Result<(), ReactorError> {
        match self.ring {
            Ok(_) => Ok(()),
            Err(errno) => Err(no_disks(errno)),
        }
    }

    /// Pins memory for transfers, in place of what was pinned before: buffers, and ranges of a region
    /// ([`DmaMemory::bytes`](crate::DmaMemory::bytes)), of several arenas if need be. False: the system does not allow
    /// it, which costs speed alone.
    ///
    /// Waits for operations in flight first, since they may use the old buffers.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered.
    pub fn register<'a, M: Into<Bytes<'a>>>(
        &mut self,
        memory: impl IntoIterator<Item = M>,
    ) -> Result<bool, ReactorError> {
        self.drain()?;
        let memory = memory.into_iter().map(|bytes| bytes.into().place());
        let buffers: Vec<DmaBuffer> = memory
            .filter(|&(.., bytes)| bytes != 0)
            .map(|(buffer, at, bytes)| buffer.part(at, bytes))
            .collect();
        self.pin(|ring| ring.pin_buffers(&buffers))
    }

    /// Registers files with the kernel, in place of those registered before, so that operations reach them faster. They
    /// stay open until others take their place, or the reactor is dropped. False: the system does not allow it, which
    /// costs speed alone.
    ///
    /// Waits for operations in flight first, as [`register`](Self::register) does.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered.
    pub fn register_files(&mut self, files: &[File]) -> Result<bool, ReactorError> {
        self.drain()?;
        self.pin(|ring| ring.pin_files(files))
    }

    fn pin(
        &mut self,
        pin: impl Fn(&mut Ring) -> std::io::Result<bool>,
    ) -> Result<bool, ReactorError> {
        let Ok(ring) = &mut self.ring else {
            return Ok(false);
        };
        let mut done = pin(ring);
        if let (Ok(all), Some(polled)) = (&mut done, &mut self.polled) {
            match pin(polled) {
                Ok(too) => *all &= too,
                Err(error) => done = Err(error),
            }
        }
        done.map_err(|source| self.ring_error("io_uring_register", source))
    }

    /// Queues an operation; its completion carries `tag`. The next wait submits it.
    ///
    /// # Errors
    /// [`ReactorError::Bounds`]: the bytes are not inside the buffer. [`ReactorError::Transfer`] with `EINVAL`: they
    /// are not inside what a file can be. [`ReactorError::NoDisks`]: the system makes no io_uring.
    #[inline]
    pub fn submit(
        &mut self,
        file: &File,
        operation: FileOperation<'_>,
        tag: u64,
    ) -> Result<Token, ReactorError> {
        let token = Token(self.queued + 1);
        let operation = Operation::new(file, operation, token, tag)?;
        match (&mut self.polled, &mut self.ring) {
            (Some(polled), _) if operation.is_transfer() && file.may_be_polled() => {
                polled.queue(operation);
            }
            (_, Ok(ring)) => ring.queue(operation),
            (_, Err(errno)) => return Err(no_disks(*errno)),
        }
        self.queued = token.0;
        Ok(token)
    }

    /// Queues a read of `bytes` bytes at `offset` of the file to `buffer_offset` of the buffer, with tag 0.
    ///
    /// # Errors
    /// As [`Reactor::submit`].
    pub fn queue_read(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &DmaBuffer,
        buffer_offset: usize,
        bytes: usize,
    ) -> Result<Token, ReactorError> {
        let read = FileOperation::Read {
            offset,
            buffer,
            buffer_offset,
            bytes,
        };
        self.submit(file, read, 0)
    }

    /// Queues a write of `bytes` bytes from `buffer_offset` of the buffer to `offset` of the file, with tag 0.
    ///
    /// # Errors
    /// As [`Reactor::submit`].
    pub fn queue_write(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &DmaBuffer,
        buffer_offset: usize,
        bytes: usize,
    ) -> Result<Token, ReactorError> {
        let write = FileOperation::Write {
            offset,
            buffer,
            buffer_offset,
            bytes,
            through: false,
        };
        self.submit(file, write, 0)
    }

    /// Operations queued or running.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let of = |ring: Option<&Ring>| ring.map_or(0, Ring::outstanding);
        of(self.ring.as_ref().ok()) + of(self.polled.as_ref())
    }

    /// Operations in a ring.
    fn in_ring(&self) -> usize {
        let of = |ring: Option<&Ring>| ring.map_or(0, Ring::in_ring);
        of(self.ring.as_ref().ok()) + of(self.polled.as_ref())
    }

    /// Takes an operation that has ended, if there is one.
    #[inline]
    pub fn take_completion(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    /// Waits for all operations, at most until `deadline`, and returns those that have ended in the order they were
    /// queued. The others stay outstanding.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered. What an operation came to is in its [`Completion`].
    pub fn wait_all(&mut self, deadline: Instant) -> Result<Vec<Completion>, ReactorError> {
        loop {
            self.turn()?;
            let left = deadline.since(monotonic_now()).min(MAX_WAIT);
            if self.outstanding() == 0 {
                break;
            }
            if left.is_zero() {
                self.look()?;
                break;
            }
            self.sleep(left)?;
        }
        let mut ended: Vec<Completion> = self.finished.drain(..).collect();
        ended.sort_unstable_by_key(|completion| completion.token);
        Ok(ended)
    }

    /// Reads and waits: bytes read, fewer than asked for only at the end of the file.
    ///
    /// # Errors
    /// As [`Reactor::queue_read`]; [`ReactorError::Transfer`]: the read failed.
    pub fn read_file_at(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &DmaBuffer,
        buffer_offset: usize,
        bytes: usize,
    ) -> Result<usize, ReactorError> {
        let token = self.queue_read(file, offset, buffer, buffer_offset, bytes)?;
        self.finish(token, file, offset, bytes, "read")
    }

    /// Writes and waits: always all bytes.
    ///
    /// # Errors
    /// As [`Reactor::queue_write`]; [`ReactorError::Transfer`]: the write failed.
    pub fn write_file_at(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &DmaBuffer,
        buffer_offset: usize,
        bytes: usize,
    ) -> Result<usize, ReactorError> {
        let token = self.queue_write(file, offset, buffer, buffer_offset, bytes)?;
        self.finish(token, file, offset, bytes, "write")
    }

    /// Waits for one transfer, at most [`MAX_WAIT`].
    fn finish(
        &mut self,
        token: Token,
        file: &File,
        offset: u64,
        bytes: usize,
        operation: &'static str,
    ) -> Result<usize, ReactorError> {
        let deadline = monotonic_now() + MAX_WAIT;
        loop {
            self.turn()?;
            if let Some(at) = self.finished.iter().position(|ended| ended.token == token)
                && let Some(completion) = self.finished.remove(at)
            {
                return completion.result;
            }
            let left = deadline.since(monotonic_now());
            if left.is_zero() {
                return Err(ReactorError::Transfer {
                    path: file.path().to_owned(),
                    operation,
                    offset,
                    bytes,
                    source: Errno::ETIMEDOUT.into(),
                });
            }
            self.sleep(left)?;
        }
    }

    /// Sleeps until an interrupt is signalled, an operation has ended, or `deadline` has come; at most [`MAX_WAIT`].
    /// With a deadline that has passed it only starts what was queued and looks.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered.
    pub fn wait(
        &mut self,
        interrupts: &[Interrupt],
        deadline: Instant,
    ) -> Result<Wake, ReactorError> {
        let descriptors = interrupts.iter().map(Interrupt::as_fd);
        self.wait_polling(descriptors, deadline)
    }

    /// Waits with descriptors instead of interrupts ([`Reactor::wait`]): until one of them is readable.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered.
    pub fn wait_for(
        &mut self,
        readable: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Wake, ReactorError> {
        self.wait_polling(readable.iter().copied(), deadline)
    }

    /// Waits beside polls, which end with the wait: their descriptors are lent for as long.
    fn wait_polling<'a>(
        &mut self,
        descriptors: impl Iterator<Item = BorrowedFd<'a>> + Clone,
        deadline: Instant,
    ) -> Result<Wake, ReactorError> {
        let Ok(ring) = &mut self.ring else {
            let ready = poll_readable(descriptors, deadline);
            let ready = ready.map_err(|errno| self.ring_error("ppoll", errno.into()))?;
            return Ok(if ready {
                Wake::Interrupt
            } else {
                Wake::Deadline
            });
        };
        ring.begin_wait();
        let waited = self.until_ready(descriptors, deadline);
        let ended = self.end_polls();
        waited?;
        ended?;
        Ok(if self.polls_fired() > 0 {
            Wake::Interrupt
        } else if self.finished.is_empty() {
            Wake::Deadline
        } else {
            Wake::Transfer
        })
    }

    /// Sleeps until there is something to say; looks once if there is already, or the deadline has passed.
    fn until_ready<'a>(
        &mut self,
        descriptors: impl Iterator<Item = BorrowedFd<'a>> + Clone,
        deadline: Instant,
    ) -> Result<(), ReactorError> {
        self.reap();
        let now = monotonic_now();
        let deadline = deadline.min(now + MAX_WAIT);
        let mut left = deadline.since(now);
        loop {
            self.fill()?;
            // Once, or again if the ring was made anew.
            if let Some(ring) = self
                .ring
                .as_mut()
                .ok()
                .filter(|ring| ring.polls_left() == 0)
            {
                let mut started = descriptors.clone().map(|fd| ring.poll(fd.as_raw_fd()));
                let started = started.find_map(Result::err);
                if let Some(source) = started {
                    return Err(self.ring_error("io_uring_enter", source));
                }
            }
            if left.is_zero() || !self.finished.is_empty() {
                // Polls that are taken back at once have looked.
                self.remove_polls()?;
                self.look()?;
                return Ok(());
            }
            self.sleep(left)?;
            self.reap();
            if self.polls_fired() > 0 || !self.finished.is_empty() {
                return self.fill();
            }
            left = deadline.since(monotonic_now());
        }
    }

    /// Takes back the polls that are left, and waits for the kernel to say that they are gone.
    fn end_polls(&mut self) -> Result<(), ReactorError> {
        if self.polls_left() == 0 {
            return Ok(());
        }
        let deadline = monotonic_now() + MAX_WAIT;
        loop {
            self.remove_polls()?;
            self.look()?;
            if self.polls_left() == 0 {
                return Ok(());
            }
            // A removal that meets a poll which is about to end takes back none: another one has to be asked for, or
            // nothing would end this sleep but the poll that is left.
            if self.ring.as_ref().is_ok_and(Ring::is_removing) || monotonic_now() >= deadline {
                self.sleep_until(deadline)?;
            }
            self.reap();
        }
    }

    fn polls_left(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::polls_left)
    }

    fn polls_fired(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::polls_fired)
    }

    fn remove_polls(&mut self) -> Result<(), ReactorError> {
        let removed = self.ring.as_mut().map_or(Ok(()), Ring::remove_polls);
        removed.map_err(|source| self.ring_error("io_uring_enter", source))
    }

    /// Takes what has completed, and moves queued operations into the ring as far as there is room.
    fn turn(&mut self) -> Result<(), ReactorError> {
        self.reap();
        self.fill()
    }

    /// Moves queued operations into the ring as far as there is room.
    #[inline]
    fn fill(&mut self) -> Result<(), ReactorError> {
        for polled in [false, true] {
            let ring = if polled {
                self.polled.as_mut()
            } else {
                self.ring.as_mut().ok()
            };
            let Some(ring) = ring else { break };
            let filled = ring.fill(|empty| self.finished.push_back(completion(&empty, Ok(0))));
            filled.map_err(|source| self.ring_error("io_uring_enter", source))?;
        }
        Ok(())
    }

    /// Takes what has completed.
    #[inline]
    fn reap(&mut self) {
        let Ok(ring) = &mut self.ring else {
            return;
        };
        while let Some((operation, came_to)) = ring.next() {
            self.finished.push_back(completion(&operation, came_to));
        }
        let Some(polled) = &mut self.polled else {
            return;
        };
        while let Some((operation, came_to)) = polled.next() {
            if came_to == Err(Errno::EOPNOTSUPP) {
                operation.file().cannot_be_polled();
                ring.queue(operation);
            } else {
                self.finished.push_back(completion(&operation, came_to));
            }
        }
    }

    /// Waits until nothing is in the ring, at most [`MAX_WAIT`]. What ends is kept for `take_completion`.
    fn drain(&mut self) -> Result<(), ReactorError> {
        let deadline = monotonic_now() + MAX_WAIT;
        while self.in_ring() > 0 {
            self.sleep_until(deadline)?;
            self.reap();
        }
        Ok(())
    }

    /// Sleeps until something completes; nothing doing so until `deadline` is an error.
    fn sleep_until(&mut self, deadline: Instant) -> Result<(), ReactorError> {
        let left = deadline.since(monotonic_now());
        if left.is_zero() {
            return Err(self.ring_error("io_uring_enter", Errno::ETIMEDOUT.into()));
        }
        self.sleep(left)
    }

    fn sleep(&mut self, timeout: Duration) -> Result<(), ReactorError> {
        let slept = match (&mut self.polled, &mut self.ring) {
            (Some(polled), Ok(ring)) if polled.in_ring() > 0 => poll_both(ring, polled, timeout),
            (_, Ok(ring)) => ring.sleep(timeout),
            (_, Err(_)) => Ok(()),
        };
        slept.map_err(|source| self.ring_error("io_uring_enter", source))
    }

    /// Submits what was queued, and takes what has completed.
    fn look(&mut self) -> Result<(), ReactorError> {
        let looked = self.ring.as_mut().map_or(Ok(()), Ring::look);
        let looked = looked.and_then(|()| self.polled.as_mut().map_or(Ok(()), Ring::look));
        looked.map_err(|source| self.ring_error("io_uring_enter", source))?;
        self.reap();
        Ok(())
    }

    fn ring_error(&self, call: &'static str, source: std::io::Error) -> ReactorError {
        ReactorError::Ring {
            call,
            entries: self.entries,
            source,
        }
    }
}

fn no_disks(errno: Errno) -> ReactorError {
    ReactorError::NoDisks {
        source: errno.into(),
    }
}

#[inline]
fn completion(operation: &Operation, came_to: Result<usize, Errno>) -> Completion {
    Completion {
        token: operation.token,
        tag: operation.tag,
        result: came_to.map_err(|errno| operation.error(errno)),
    }
}

/// Looks at both rings until one has a completion, or the time is up.
fn poll_both(ring: &mut Ring, polled: &mut Ring, timeout: Duration) -> std::io::Result<()> {
    let deadline = monotonic_now() + timeout;
    loop {
        ring.look()?;
        polled.look()?;
        if ring.has_completions() || polled.has_completions() || monotonic_now() >= deadline {
            return Ok(());
        }
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Reactor({} entries, {} outstanding, {} of them in the ring, {} ended)",
            self.entries,
            self.outstanding(),
            self.in_ring(),
            self.finished.len()
        )
    }
}

/// The entry that completes when `interrupt` is signalled, for a ring of one's own. The interrupt stays
/// signalled until it is taken; the caller keeps a clone of it until the entry has completed, and sets the user data.
#[must_use]
pub fn poll_entry(interrupt: &Interrupt) -> io_uring::squeue::Entry {
    crate::ring::poll_entry(interrupt)
}

#[cfg(test)]
mod tests;
