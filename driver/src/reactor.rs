//! The reactor: one io_uring for interrupts, deadlines and disk I/O.
//!
//! A thread that waits for a device usually waits for disks and timers too. [`Reactor::wait`] sleeps until an
//! interrupt is signalled, an operation has ended or the deadline has passed. Reads and writes go straight between
//! files and DMA memory, without a copy: several are queued, then waited for together.
//!
//! An operation ([`FileOperation`]) keeps track of its remaining work. A short read or write is continued where it
//! stopped. A read that gets no bytes has reached the end of the file and ends with the bytes it has. An operation
//! owns its buffer and its file until the kernel has finished, even if its caller does not wait for it any more. Its
//! [`Completion`] carries the tag that it was queued with.
//!
//! Once the tables have grown to the size in use, queueing, waiting and taking completions allocate nothing. A wait
//! whose deadline has passed does not sleep. It is one system call, or none if nothing was queued and the kernel has
//! nothing to report. A wait that sleeps is one system call. It is two if no descriptor ended the sleep, because the
//! polls of the borrowed descriptors then have to be removed.
//!
//! Buffers that were [registered](Reactor::register) are pinned once instead of at each transfer, and [registered
//! files](Reactor::register_files) are looked up once. Registering buffers needs permission to lock memory. Operations
//! on unregistered buffers and files work as well, only slower.
//!
//! A reactor is for one thread at a time. It may move to another thread while nothing is outstanding.
//!
//! Where the system forbids io_uring or lacks it (RHEL 9 by default, many containers), a reactor still waits, by
//! ppoll(2), and refuses operations on files with [`ReactorError::NoDisks`].
//!
//! [`Reactor::wait_for`] sleeps on anything with a descriptor: sockets, timerfds, an adapter's
//! [`Descriptor`](crate::Descriptor). A daemon with an io_uring of its own submits [`poll_entry`] to that io_uring
//! instead, or polls the adapter's descriptor.

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

/// Ensures that a missing io_uring is logged only once.
static FIRST_REFUSAL: Once = Once::new();

/// The result of an operation that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The operation.
    pub token: Token,
    /// The tag it was queued with.
    pub tag: u64,
    /// Number of bytes moved by a read or a write: a write moves all; a read moves fewer only at the end of the file. 0
    /// for other operations.
    pub result: Result<usize, ReactorError>,
}

/// Reason why [`Reactor::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// An interrupt is signalled, or a descriptor is readable (and still is).
    Interrupt,
    /// An operation has ended; see [`Reactor::take_completion`].
    Transfer,
    /// The deadline has passed.
    Deadline,
}

/// An io_uring with its operations and waits.
pub struct Reactor {
    /// The io_uring, or the system's error if it forbids or lacks io_uring. Then waits use ppoll(2), and there are no
    /// operations.
    ring: Result<Ring, Errno>,
    /// The io_uring for reads and writes of devices that can be polled.
    polled: Option<Ring>,
    entries: u32,
    queued: u64,
    /// Ended operations whose completions were not taken yet.
    finished: VecDeque<Completion>,
}

impl Reactor {
    /// Makes a reactor that has up to `entries` operations in the kernel at once.
    ///
    /// Where the system forbids io_uring or lacks it, the reactor waits by ppoll(2) and refuses operations
    /// ([`Reactor::check_disks`]).
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the system cannot make an io_uring of that size.
    pub fn new(entries: u32) -> Result<Self, ReactorError> {
        Self::of(Kind::OneThread, entries)
    }

    /// Makes a reactor that may move from thread to thread at any time.
    pub(crate) fn of_any_thread(entries: u32) -> Result<Self, ReactorError> {
        Self::of(Kind::AnyThread, entries)
    }

    fn of(kind: Kind, entries: u32) -> Result<Self, ReactorError> {
        let ring = match Ring::new(kind, entries) {
            Ok(ring) => Ok(ring),
            Err(source) => match source.raw_os_error().map(Errno::from_raw) {
                // EPERM: forbidden by a sysctl or a filter. ENOSYS: not in the kernel. EACCES: forbidden by SELinux.
                // ENOMEM: limited by RLIMIT_MEMLOCK, for all processes of the user together.
                Some(errno @ (Errno::EPERM | Errno::ENOSYS | Errno::EACCES | Errno::ENOMEM)) => {
                    FIRST_REFUSAL.call_once(|| {
                        tracing::warn!(
                            "no io_uring: waits use ppoll, disk operations are refused: {errno}"
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

    /// Makes a reactor that polls devices for the end of reads and writes, on a second io_uring of as many `entries`.
    /// While such transfers are in flight, the reactor does not sleep: that occupies a processor and saves interrupts.
    /// Files have to be opened with `O_DIRECT`, on devices with queues for polling (`nvme.poll_queues`). If a file
    /// cannot be polled, the reactor logs a warning, and makes the transfers as any other reactor does.
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
            Err(error) => {
                tracing::warn!("cannot make an io_uring for polling, so no file is polled: {error}")
            }
        }
        Ok(reactor)
    }

    /// Checks that operations on files are possible.
    ///
    /// # Errors
    /// [`ReactorError::NoDisks`]: the system makes no io_uring.
    pub fn check_disks(&self) -> Result<(), ReactorError> {
        match self.ring {
            Ok(_) => Ok(()),
            Err(errno) => Err(no_disks(errno)),
        }
    }

    /// Pins memory for transfers, in place of the memory pinned before: buffers, and ranges of a region
    /// ([`DmaMemory::bytes`](crate::DmaMemory::bytes)), also of several arenas. Returns false if the system does not
    /// allow it, which only costs speed.
    ///
    /// Waits for operations in flight first, at most [`MAX_WAIT`], because they may use the old buffers.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered, or an operation in flight did not end (ETIMEDOUT).
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

    /// Registers files with the kernel, in place of those registered before, so that operations reach them faster.
    /// These files stay open until others replace them, or the reactor is dropped. Returns false if the system does not
    /// allow the registration, which only costs speed.
    ///
    /// Waits for operations in flight first, as [`register`](Self::register) does.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the ring could not be entered, or an operation in flight did not end (ETIMEDOUT).
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
    /// are beyond the largest possible file. [`ReactorError::NoDisks`]: the system makes no io_uring.
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

    /// Returns the number of operations queued or running.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let of = |ring: Option<&Ring>| ring.map_or(0, Ring::outstanding);
        of(self.ring.as_ref().ok()) + of(self.polled.as_ref())
    }

    /// Returns the number of operations in an io_uring.
    fn in_ring(&self) -> usize {
        let of = |ring: Option<&Ring>| ring.map_or(0, Ring::in_ring);
        of(self.ring.as_ref().ok()) + of(self.polled.as_ref())
    }

    /// Takes the oldest completion that was not taken yet, if there is one.
    #[inline]
    pub fn take_completion(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    /// Waits for all operations, at most until `deadline`, and returns those that have ended in the order they were
    /// queued. The others stay outstanding.
    ///
    /// # Errors
    /// [`ReactorError::Ring`]: the io_uring could not be entered. The result of an operation is in its
    /// [`Completion`].
    pub fn wait_all(&mut self, deadline: Instant) -> Result<Vec<Completion>, ReactorError> {
        loop {
            self.reap_and_fill()?;
            let left = deadline.since(monotonic_now()).min(MAX_WAIT);
            if self.outstanding() == 0 {
                break;
            }
            if left.is_zero() {
                self.poll_rings()?;
                break;
            }
            self.sleep(left)?;
        }
        let mut ended: Vec<Completion> = self.finished.drain(..).collect();
        ended.sort_unstable_by_key(|completion| completion.token);
        Ok(ended)
    }

    /// Reads and waits. Returns the number of bytes read, fewer than asked for only at the end of the file.
    ///
    /// # Errors
    /// The errors of [`Reactor::queue_read`]. [`ReactorError::Transfer`]: the read failed, or did not end within
    /// [`MAX_WAIT`] (ETIMEDOUT). [`ReactorError::Ring`]: the ring could not be entered.
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

    /// Writes all bytes and waits.
    ///
    /// # Errors
    /// The errors of [`Reactor::queue_write`]. [`ReactorError::Transfer`]: the write failed, or did not end within
    /// [`MAX_WAIT`] (ETIMEDOUT). [`ReactorError::Ring`]: the ring could not be entered.
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
            self.reap_and_fill()?;
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

    /// Sleeps until an interrupt is signalled, an operation has ended, or `deadline` has passed; at most
    /// [`MAX_WAIT`]. If the deadline has passed already, it only submits queued operations and checks for results.
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

    /// Waits as [`Reactor::wait`] does, with descriptors instead of interrupts: until one of them is readable.
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

    /// Waits with polls of borrowed descriptors. The polls are removed before this returns.
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

    /// Sleeps until there is a result. Checks only once, without sleeping, if there is one already or the deadline has
    /// passed.
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
            // The polls are submitted once, and again if the io_uring was replaced.
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
                // A poll checks its descriptor when it is submitted, so it may be removed at once.
                self.remove_polls()?;
                self.poll_rings()?;
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

    /// Removes the remaining polls, and waits until the kernel confirms that they are gone.
    fn end_polls(&mut self) -> Result<(), ReactorError> {
        if self.polls_left() == 0 {
            return Ok(());
        }
        let deadline = monotonic_now() + MAX_WAIT;
        loop {
            self.remove_polls()?;
            self.poll_rings()?;
            if self.polls_left() == 0 {
                return Ok(());
            }
            // A removal removes nothing if it finds a poll that is just completing. Then another removal has to be
            // submitted; otherwise only the remaining poll itself could end this sleep.
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

    /// Takes completions, and moves queued operations into the io_uring until it is full.
    fn reap_and_fill(&mut self) -> Result<(), ReactorError> {
        self.reap();
        self.fill()
    }

    /// Moves queued operations into the io_uring until it is full.
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

    /// Takes completions.
    #[inline]
    fn reap(&mut self) {
        let Ok(ring) = &mut self.ring else {
            return;
        };
        while let Some((operation, op_result)) = ring.next() {
            self.finished.push_back(completion(&operation, op_result));
        }
        let Some(polled) = &mut self.polled else {
            return;
        };
        while let Some((operation, op_result)) = polled.next() {
            if op_result == Err(Errno::EOPNOTSUPP) {
                operation.file().cannot_be_polled();
                ring.queue(operation);
            } else {
                self.finished.push_back(completion(&operation, op_result));
            }
        }
    }

    /// Waits until no operation is in the io_urings. Fails after [`MAX_WAIT`]. Completions are kept for
    /// `take_completion`.
    fn drain(&mut self) -> Result<(), ReactorError> {
        let deadline = monotonic_now() + MAX_WAIT;
        while self.in_ring() > 0 {
            self.sleep_until(deadline)?;
            self.reap();
        }
        Ok(())
    }

    /// Sleeps until an operation completes or `deadline` passes. Fails with ETIMEDOUT if `deadline` has passed already.
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

    /// Submits queued entries, and takes completions, without sleeping.
    fn poll_rings(&mut self) -> Result<(), ReactorError> {
        let entered = self.ring.as_mut().map_or(Ok(()), Ring::enter_if_needed);
        let entered =
            entered.and_then(|()| self.polled.as_mut().map_or(Ok(()), Ring::enter_if_needed));
        entered.map_err(|source| self.ring_error("io_uring_enter", source))?;
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
fn completion(operation: &Operation, op_result: Result<usize, Errno>) -> Completion {
    Completion {
        token: operation.token,
        tag: operation.tag,
        result: op_result.map_err(|errno| operation.error(errno)),
    }
}

/// Polls both io_urings until one has a completion, or the time is up.
fn poll_both(ring: &mut Ring, polled: &mut Ring, timeout: Duration) -> std::io::Result<()> {
    let deadline = monotonic_now() + timeout;
    loop {
        ring.enter_if_needed()?;
        polled.enter_if_needed()?;
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

/// Returns the entry that completes when `interrupt` is signalled, for an io_uring of the caller. The interrupt stays
/// signalled until it is taken. The caller keeps a clone of the interrupt until the entry has completed, and sets the
/// entry's user data.
#[must_use]
pub fn poll_entry(interrupt: &Interrupt) -> io_uring::squeue::Entry {
    crate::ring::poll_entry(interrupt)
}

#[cfg(test)]
mod tests;
