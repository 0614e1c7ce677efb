//! The reactor: one io_uring for interrupts, deadlines and disk I/O.
//!
//! A thread that waits for a device usually waits for disks and timers too. [`Reactor::wait`] sleeps until an
//! interrupt is signalled, a transfer has ended or the deadline has come, whichever is first. Transfers go
//! straight between files and DMA memory, without a copy: several are queued, then waited for together.
//!
//! A transfer is a small state: the bytes still to move. A short read or write is continued where it stopped; a read
//! that gets nothing has met the end of the file and ends with the bytes it has. A transfer owns its buffer and its
//! file until the kernel is done with them, even if nobody waits for it any more.
//!
//! Buffers that were [registered](Reactor::register) are pinned once and not at each transfer. That needs
//! permission to lock memory; without it transfers work as well, only slower.
//!
//! [`Reactor::wait_for`] sleeps on whatever has a descriptor: sockets, timers of the kernel's, an adapter's
//! [`Descriptor`](crate::Descriptor). A daemon with a ring of its own submits [`poll_entry`] there instead, or polls
//! that descriptor.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;

use crate::clock::{Instant, MAX_WAIT, monotonic_now};
use crate::dma::DmaBuffer;
use crate::error::ReactorError;
use crate::file::File;
use crate::interrupt::Interrupt;
use crate::ring::{Operation, Ring, Transfer};

/// Names a queued transfer. Later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

/// A transfer that has ended.
#[derive(Debug)]
pub struct Completion {
    /// Which one.
    pub token: Token,
    /// Bytes moved. A write moves all; a read moves fewer only at the end of the file.
    pub result: Result<usize, ReactorError>,
}

/// Why [`Reactor::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// An interrupt is signalled, or a descriptor is readable (and still is).
    Interrupt,
    /// A transfer has ended; see [`Reactor::take_completion`].
    Transfer,
    /// The deadline has come.
    Deadline,
}

/// A ring with the transfers and waits in it.
pub struct Reactor {
    ring: Ring,
    entries: u32,
    next_key: u64,
    /// Queued, not yet in the ring: at most `entries` operations are.
    waiting: VecDeque<(Token, Progress)>,
    /// In the ring: their operation is there, this is the rest.
    running: Vec<(Token, Progress)>,
    /// Ended, not yet taken.
    finished: VecDeque<Completion>,
}

/// A transfer and how far it has come.
#[derive(Debug)]
struct Progress {
    /// What is still to do.
    rest: Transfer,
    /// Bytes done.
    done: usize,
}

impl Reactor {
    /// A reactor that has up to `entries` operations in the kernel at once.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the system makes no ring of that size, or none at all.
    pub fn new(entries: u32) -> Result<Self, ReactorError> {
        let ring = Ring::new(entries).map_err(|source| ReactorError::Ring {
            call: "io_uring_setup",
            entries,
            source,
        })?;
        Ok(Self {
            ring,
            entries,
            next_key: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            finished: VecDeque::new(),
        })
    }

    /// Pins buffers for transfers, in place of those pinned before. False if the system does not let us, which
    /// costs speed and nothing else.
    ///
    /// Waits for transfers in flight first, since they may use the old ones.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered.
    pub fn register(&mut self, buffers: &[DmaBuffer]) -> Result<bool, ReactorError> {
        self.drain()?;
        match self.ring.register(buffers) {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.raw_os_error().map(Errno::from_raw),
                    Some(Errno::ENOMEM | Errno::EPERM | Errno::EOPNOTSUPP)
                ) =>
            {
                tracing::debug!("buffers are not pinned: {error}");
                Ok(false)
            }
            Err(source) => Err(self.ring_error("io_uring_register", source)),
        }
    }

    /// Queues a read of `bytes` bytes at `offset` of the file to `buffer_offset` of the buffer.
    ///
    /// # Errors
    /// [`ReactorError::Bounds`]: the bytes are not inside the buffer. [`ReactorError::Ring`].
    pub fn queue_read(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &DmaBuffer,
        buffer_offset: usize,
        bytes: usize,
    ) -> Result<Token, ReactorError> {
        self.queue(Transfer {
            file: file.clone(),
            buffer: buffer.clone(),
            write: false,
            file_offset: offset,
            buffer_offset,
            bytes,
        })
    }

    /// Queues a write of `bytes` bytes from `buffer_offset` of the buffer to `offset` of the file.
    ///
    /// # Errors
    /// As [`Reactor::queue_read`].
    pub fn queue_write(
        &mut self,
        file: &File,
        offset: u64,
        buffer: &DmaBuffer,
        buffer_offset: usize,
        bytes: usize,
    ) -> Result<Token, ReactorError> {
        self.queue(Transfer {
            file: file.clone(),
            buffer: buffer.clone(),
            write: true,
            file_offset: offset,
            buffer_offset,
            bytes,
        })
    }

    fn queue(&mut self, transfer: Transfer) -> Result<Token, ReactorError> {
        if !transfer
            .buffer
            .contains(transfer.buffer_offset, transfer.bytes)
        {
            return Err(ReactorError::Bounds {
                path: transfer.file.path().to_owned(),
                buffer_offset: transfer.buffer_offset,
                bytes: transfer.bytes,
                len: transfer.buffer.len(),
            });
        }
        let token = Token(self.key());
        let progress = Progress {
            rest: transfer,
            done: 0,
        };
        self.waiting.push_back((token, progress));
        Ok(token)
    }

    /// Transfers queued or running.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// A transfer that has ended, if there is one.
    pub fn take_completion(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    /// Waits for all transfers, at most until `deadline`, and returns those that have ended in the order they were
    /// queued. The others stay outstanding.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered. What a transfer came to is in its [`Completion`].
    pub fn wait_all(&mut self, deadline: Instant) -> Result<Vec<Completion>, ReactorError> {
        while self.outstanding() > 0 {
            self.reap();
            self.submit_waiting()?;
            let left = deadline.since(monotonic_now());
            if self.outstanding() == 0 || left.is_zero() {
                break;
            }
            self.enter(1, left)?;
        }
        let mut ended: Vec<Completion> = self.finished.drain(..).collect();
        ended.sort_by_key(|completion| completion.token);
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
            self.reap();
            self.submit_waiting()?;
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
            self.enter(1, left)?;
        }
    }

    /// Sleeps until an interrupt is signalled, a transfer has ended, or `deadline` has come; at most [`MAX_WAIT`].
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered.
    pub fn wait(
        &mut self,
        interrupts: &[Interrupt],
        deadline: Instant,
    ) -> Result<Wake, ReactorError> {
        self.wait_polling(interrupts.iter().cloned().map(Operation::Poll), deadline)
    }

    /// Waits with descriptors instead of interrupts ([`Reactor::wait`]): until one of them is readable. With none of
    /// them and a deadline that has passed it only starts what was queued and looks what has ended.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered.
    pub fn wait_for(
        &mut self,
        readable: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Wake, ReactorError> {
        let polls = readable.iter().map(|fd| Operation::PollFd(fd.as_raw_fd()));
        self.wait_polling(polls, deadline)
    }

    /// Sleeps beside polls, which end with the sleep.
    fn wait_polling(
        &mut self,
        operations: impl ExactSizeIterator<Item = Operation>,
        deadline: Instant,
    ) -> Result<Wake, ReactorError> {
        let deadline = deadline.min(monotonic_now() + MAX_WAIT);
        let mut polls = Vec::with_capacity(operations.len());
        let waited = self
            .arm(operations, &mut polls)
            .and_then(|()| self.sleep(&mut polls, deadline));
        let disarmed = self.disarm(&polls);
        let wake = waited?;
        disarmed?;
        Ok(wake)
    }

    /// Starts the polls.
    fn arm(
        &mut self,
        operations: impl Iterator<Item = Operation>,
        polls: &mut Vec<u64>,
    ) -> Result<(), ReactorError> {
        for operation in operations {
            let key = self.key();
            self.start(key, operation)?;
            polls.push(key);
        }
        Ok(())
    }

    fn sleep(&mut self, polls: &mut Vec<u64>, deadline: Instant) -> Result<Wake, ReactorError> {
        loop {
            let armed = polls.len();
            for key in self.reap() {
                polls.retain(|&poll| poll != key);
            }
            self.submit_waiting()?;
            if polls.len() < armed {
                return Ok(Wake::Interrupt);
            }
            if !self.finished.is_empty() {
                return Ok(Wake::Transfer);
            }
            let left = deadline.since(monotonic_now());
            self.enter(1, left)?;
            if left.is_zero() && !self.ring.has_completions() {
                return Ok(Wake::Deadline);
            }
        }
    }

    /// Ends the polls that are left and waits for the kernel to say so.
    fn disarm(&mut self, polls: &[u64]) -> Result<(), ReactorError> {
        let mut left: Vec<u64> = polls.to_vec();
        for &poll in polls {
            let key = self.key();
            left.push(key);
            self.start(key, Operation::Cancel(poll))?;
        }
        let deadline = monotonic_now() + MAX_WAIT;
        while !left.is_empty() {
            self.enter_until(deadline)?;
            for key in self.reap() {
                left.retain(|&waiting| waiting != key);
            }
        }
        Ok(())
    }

    /// Moves queued transfers into the ring as far as there is room.
    fn submit_waiting(&mut self) -> Result<(), ReactorError> {
        let room = usize::try_from(self.entries).unwrap_or(usize::MAX);
        while self.ring.in_flight() < room
            && let Some((token, progress)) = self.waiting.pop_front()
        {
            if progress.rest.bytes == 0 {
                self.finished.push_back(Completion {
                    token,
                    result: Ok(progress.done),
                });
                continue;
            }
            let started = self.start(token.0, Operation::Transfer(progress.rest.clone()));
            if let Err(error) = started {
                self.waiting.push_front((token, progress));
                return Err(error);
            }
            self.running.push((token, progress));
        }
        Ok(())
    }

    /// Takes what has completed. Returns the keys that were not transfers.
    fn reap(&mut self) -> Vec<u64> {
        let mut others = Vec::new();
        while let Some((key, result, operation)) = self.ring.reap() {
            match operation {
                Operation::Transfer(_) => self.advance(Token(key), result),
                Operation::Poll(_) | Operation::PollFd(_) | Operation::Cancel(_) => {
                    others.push(key);
                }
            }
        }
        others
    }

    /// Carries a transfer on after the kernel's answer.
    fn advance(&mut self, token: Token, result: i32) {
        let Some(at) = self
            .running
            .iter()
            .position(|(running, _)| *running == token)
        else {
            return;
        };
        let (_, mut progress) = self.running.swap_remove(at);
        let result = match usize::try_from(result) {
            Ok(0) if progress.rest.write => Err(Errno::ENOSPC),
            Ok(0) => Ok(progress.done),
            Ok(moved) => {
                let moved = moved.min(progress.rest.bytes);
                progress.done += moved;
                progress.rest.bytes -= moved;
                progress.rest.buffer_offset += moved;
                // CAST: usize has at most 64 bits on every target Rust has.
                progress.rest.file_offset += moved as u64;
                if progress.rest.bytes > 0 {
                    self.waiting.push_front((token, progress));
                    return;
                }
                Ok(progress.done)
            }
            Err(_) => {
                let errno = Errno::from_raw(result.wrapping_neg());
                if matches!(errno, Errno::EINTR | Errno::EAGAIN) {
                    self.waiting.push_front((token, progress));
                    return;
                }
                Err(errno)
            }
        };
        let result = result.map_err(|errno| ReactorError::Transfer {
            path: progress.rest.file.path().to_owned(),
            operation: if progress.rest.write { "write" } else { "read" },
            offset: progress.rest.file_offset,
            bytes: progress.rest.bytes,
            source: errno.into(),
        });
        self.finished.push_back(Completion { token, result });
    }

    /// Waits until nothing is in the ring, at most [`MAX_WAIT`]. What ends is kept for `take_completion`.
    fn drain(&mut self) -> Result<(), ReactorError> {
        let deadline = monotonic_now() + MAX_WAIT;
        while self.ring.in_flight() > 0 {
            self.enter_until(deadline)?;
            self.reap();
        }
        Ok(())
    }

    /// Sleeps until something completes; nothing doing so until `deadline` is an error.
    fn enter_until(&mut self, deadline: Instant) -> Result<(), ReactorError> {
        let left = deadline.since(monotonic_now());
        if left.is_zero() {
            return Err(self.ring_error("io_uring_enter", Errno::ETIMEDOUT.into()));
        }
        self.enter(1, left)
    }

    fn key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    fn start(&mut self, key: u64, operation: Operation) -> Result<(), ReactorError> {
        self.ring
            .start(key, operation)
            .map_err(|source| self.ring_error("io_uring_enter", source))
    }

    fn enter(&mut self, want: usize, timeout: Duration) -> Result<(), ReactorError> {
        self.ring
            .enter(want, Some(timeout))
            .map_err(|source| self.ring_error("io_uring_enter", source))
    }

    fn ring_error(&self, call: &'static str, source: std::io::Error) -> ReactorError {
        ReactorError::Ring {
            call,
            entries: self.entries,
            source,
        }
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Reactor({} entries, {} queued, {} running, {} ended)",
            self.entries,
            self.waiting.len(),
            self.running.len(),
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
