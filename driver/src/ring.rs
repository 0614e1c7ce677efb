//! The io_uring and its operations in flight.
//!
//! One rule makes an io_uring safe: an operation owns everything the kernel may touch on its behalf until its
//! completion has been seen. [`Ring`] keeps every operation in a table and returns it only with its last completion,
//! even if the caller does not wait for it any more. Dropping the ring cancels the operations in flight and waits for
//! them. If that fails, the operations are leaked, because the kernel may still write their buffers.
//!
//! The number that an entry carries to its completion (`user_data`) is the operation's index in the table, with the
//! generation of that table entry. So a completion finds its operation without a search, and a repeated completion
//! finds none. Generations are odd. Numbers without a generation belong to polls, their removals and cancellations,
//! which own nothing.
//!
//! Polls last as long as the wait that makes them, because their descriptors are only borrowed for that long. All
//! polls of one wait have the same number, and are counted. A wait that wakes for another reason removes the
//! remaining polls, in one call.
//!
//! A sleep has its timeout as an argument of the system call, so no timeout operation needs to be cancelled. One call
//! submits, sleeps and runs the work that the kernel has deferred (`DEFER_TASKRUN`). No call is made if nothing was
//! queued and the kernel reports no deferred work.
//!
//! A ring for one thread (`SINGLE_ISSUER` with `DEFER_TASKRUN`, Linux 6.1) belongs to the thread that enters it first.
//! When another thread enters, the ring is replaced by a new one, if no operation is in the kernel; otherwise the call
//! fails. If there is not enough lockable memory for a new ring, it is small, until a wait finds memory for a larger
//! one.

// UNSAFETY: io-uring does not know how long the memory an entry names lives; this module does.
#![expect(unsafe_code, reason = "io_uring submission")]

mod pins;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue, types::Fd};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use slotmap::{DefaultKey, Key, KeyData, SlotMap};

use crate::clock::{Instant, MAX_WAIT, monotonic_now};
use crate::dma::DmaBuffer;
use crate::file::File;
use crate::interrupt::Interrupt;
use crate::reactor::operation::{Operation, Step};
use crate::readable::pause_for_others;
use pins::Pins;

/// Kind bits of a number without a generation. For polls and their removals, the bits of `WAIT` below the kind
/// identify the wait.
const KIND: u64 = 3 << 30;
const POLL: u64 = 1 << 30;
const REMOVAL: u64 = 2 << 30;
const CANCEL: u64 = 3 << 30;
const WAIT: u64 = (1 << 30) - 1;
/// Number of entries of a small ring. Its submission queue takes one page of locked memory, as that of one entry does.
const SMALL: u32 = 32;
/// Maximum time for which a thread waits for the memory of a small ring. The kernel frees that of a closed ring after
/// the close, and the limit holds for all processes of the user.
const RETURN: Duration = Duration::from_secs(2);

/// True after a wait of [`RETURN`] for a first ring was in vain. Later first rings are refused at once.
static NO_MEMORY: AtomicBool = AtomicBool::new(false);

/// Kind of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For one thread at a time.
    OneThread,
    /// For any thread at any time.
    AnyThread,
    /// For one thread at a time, and only for reads and writes of devices that it polls for completions.
    Polled,
}

/// True if this process runs under valgrind, which adds a library (`vgpreload_*`) to `LD_PRELOAD`.
static UNDER_VALGRIND: LazyLock<bool> = LazyLock::new(|| {
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    preloaded.to_string_lossy().contains("vgpreload_")
});

/// An operation in the table.
struct Flight {
    operation: Operation,
    /// True if the operation's entry is in the submission queue or the kernel.
    in_ring: bool,
    /// Number of entries that were pushed before this operation's entry.
    entry: u64,
}

/// The polls of a wait.
#[derive(Default)]
struct Polls {
    /// Number of the wait.
    wait: u64,
    /// Number of polls in the ring.
    armed: usize,
    /// Number of polls whose descriptors were ready.
    fired: usize,
    /// Number of removals whose completion has not been seen.
    removals: usize,
}

/// An io_uring and its operations.
pub(crate) struct Ring {
    ring: IoUring,
    kind: Kind,
    /// Number of entries that the ring should have.
    entries: u32,
    /// Number of entries that it has.
    room: u32,
    /// True if the ring still has to be enabled by the first thread that enters it.
    disabled: bool,
    /// Operations from queueing to their last completion.
    flights: SlotMap<DefaultKey, Flight>,
    /// Queued operations that are not in the ring, which holds at most `entries`.
    waiting: VecDeque<DefaultKey>,
    /// Number of operations in the ring.
    in_ring: usize,
    /// Number of entries ever pushed.
    pushed: u64,
    polls: Polls,
    pins: Pins,
    /// Eventfd that is signalled for completions and deferred work; made by the first call of `sleep_beside`.
    completion_event: Option<Arc<EventFd>>,
    /// Number of calls of `io_uring_enter`.
    #[cfg(test)]
    pub(crate) calls: usize,
}

/// Makes a ring, with the faster modes of Linux 6.1 if the kernel has them and one thread at a time uses the ring.
/// Returns the ring, and true if it still has to be enabled.
pub(crate) fn make(kind: Kind, entries: u32) -> io::Result<(IoUring, bool)> {
    let polled = kind == Kind::Polled;
    if kind != Kind::AnyThread {
        let mut builder = IoUring::builder();
        if polled {
            builder.setup_iopoll();
        }
        // The following flags need Linux 6.1.
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_r_disabled();
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, true)),
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {}
            Err(error) => return Err(error),
        }
    }
    let mut builder = IoUring::builder();
    if polled {
        builder.setup_iopoll();
    }
    Ok((builder.build(entries)?, false))
}

/// Makes a ring by `make`, or a small one if there is no memory for all `entries`. Sleeps, until `deadline`, only if
/// there is no memory for a small one either. Returns the ring, whether it still has to be enabled, and its entries.
fn make_or_small(
    kind: Kind,
    entries: u32,
    deadline: Instant,
    mut make: impl FnMut(Kind, u32) -> io::Result<(IoUring, bool)>,
) -> io::Result<(IoUring, bool, u32)> {
    let (ring, disabled) = match make(kind, entries) {
        Err(error) if is_out_of_memory(&error) => {
            let room = entries.min(SMALL);
            let (ring, disabled) = until_memory_returns(deadline, || make(kind, room))?;
            tracing::warn!(
                entries,
                room,
                "an io_uring is small for now: no more memory can be locked"
            );
            return Ok((ring, disabled, room));
        }
        made => made?,
    };
    Ok((ring, disabled, entries))
}

impl Ring {
    pub(crate) fn new(kind: Kind, entries: u32) -> io::Result<Self> {
        let wait = if NO_MEMORY.load(Ordering::Relaxed) {
            Duration::ZERO
        } else {
            RETURN
        };
        let ring = Self::new_by(kind, entries, monotonic_now() + wait, make);
        // Not in this library's tests: one of them is refused by order, beside others that have to wait.
        if !cfg!(test) && ring.as_ref().is_err_and(is_out_of_memory) {
            NO_MEMORY.store(true, Ordering::Relaxed);
        }
        ring
    }

    fn new_by(
        kind: Kind,
        entries: u32,
        deadline: Instant,
        make: impl FnMut(Kind, u32) -> io::Result<(IoUring, bool)>,
    ) -> io::Result<Self> {
        let (ring, disabled, room) = make_or_small(kind, entries, deadline, make)?;
        Ok(Self {
            ring,
            kind,
            entries,
            room,
            disabled,
            flights: SlotMap::new(),
            waiting: VecDeque::new(),
            in_ring: 0,
            pushed: 0,
            polls: Polls::default(),
            pins: Pins::default(),
            completion_event: None,
            #[cfg(test)]
            calls: 0,
        })
    }

    /// Returns the number of operations in the ring.
    pub(crate) const fn in_ring(&self) -> usize {
        self.in_ring
    }

    /// Returns the number of operations queued, in the ring or not.
    pub(crate) fn outstanding(&self) -> usize {
        self.flights.len()
    }

    /// Returns the number of polls and removals in the ring.
    pub(crate) const fn polls_left(&self) -> usize {
        self.polls.armed + self.polls.removals
    }

    /// Returns whether removals of polls are in the ring. Each of them completes.
    pub(crate) const fn is_removing(&self) -> bool {
        self.polls.removals > 0
    }

    /// Returns the number of polls of this wait whose descriptors were ready.
    pub(crate) const fn polls_fired(&self) -> usize {
        self.polls.fired
    }

    /// Queues an operation; `fill` moves it into the ring when the ring has a free entry.
    #[inline]
    pub(crate) fn queue(&mut self, operation: Operation) {
        let key = self.flights.insert(Flight {
            operation,
            in_ring: false,
            entry: 0,
        });
        self.waiting.push_back(key);
    }

    /// Moves queued operations into the ring until it is full. Operations with no work to do are passed to `ended`.
    #[inline]
    pub(crate) fn fill(&mut self, mut ended: impl FnMut(Operation)) -> io::Result<()> {
        // CAST: 32 bits fit on every target with an io_uring.
        while self.in_ring < self.room as usize
            && let Some(&key) = self.waiting.front()
        {
            let Some(flight) = self.flights.get_mut(key) else {
                self.waiting.pop_front();
                continue;
            };
            if flight.operation.is_empty() {
                self.waiting.pop_front();
                if let Some(flight) = self.flights.remove(key) {
                    ended(flight.operation);
                }
                continue;
            }
            let entry = flight.operation.entry(&self.pins);
            let entry = entry.user_data(key.data().as_ffi());
            // SAFETY: the operation owns everything that the entry names: the descriptor by the file, the memory by
            // the buffer's lease. It stays in `flights` while `in_ring` is set, that is until `next` takes its
            // completion.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_err() {
                self.flush()?;
                if self.ring.submission().is_full() {
                    return Err(Errno::EBUSY.into());
                }
                continue;
            }
            if let Some(flight) = self.flights.get_mut(key) {
                flight.in_ring = true;
                flight.entry = self.pushed;
            }
            self.in_ring += 1;
            self.pushed += 1;
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Takes completions until an operation has ended, and returns it with its result. Operations with work left are
    /// queued again, and polls are counted. `None` if no completion is left.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(Operation, Result<usize, Errno>)> {
        loop {
            let completion = self.ring.completion().next()?;
            let (number, result) = (completion.user_data(), completion.result());
            let key = DefaultKey::from(KeyData::from_ffi(number));
            // Numbers without a generation are handled first: slotmap changes an even generation to an odd one, so such
            // a number could equal another entry's key.
            if number >> 32 == 0 {
                self.poll_ended(number, result);
                continue;
            }
            let Some(flight) = self.flights.get_mut(key).filter(|flight| flight.in_ring) else {
                continue;
            };
            flight.in_ring = false;
            self.in_ring -= 1;
            let op_result = match flight.operation.answer(result) {
                Step::Again => {
                    self.waiting.push_front(key);
                    continue;
                }
                Step::Ended => Ok(flight.operation.done()),
                Step::Failed(errno) => Err(errno),
            };
            let flight = self.flights.remove(key)?;
            return Some((flight.operation, op_result));
        }
    }

    fn poll_ended(&mut self, number: u64, result: i32) {
        if number & WAIT != self.polls.wait {
            return;
        }
        match number & KIND {
            POLL => {
                self.polls.armed = self.polls.armed.saturating_sub(1);
                self.polls.fired += usize::from(result != -(Errno::ECANCELED as i32));
            }
            REMOVAL => self.polls.removals = self.polls.removals.saturating_sub(1),
            _ => {}
        }
    }

    /// Begins a new wait, and resets the counts of its polls.
    pub(crate) fn begin_wait(&mut self) {
        if self.room < self.entries && self.in_ring == 0 {
            self.grow();
        }
        self.polls = Polls {
            wait: (self.polls.wait + 1) & WAIT,
            ..Polls::default()
        };
    }

    /// Starts a poll of this wait, which completes when the descriptor is readable.
    pub(crate) fn poll(&mut self, fd: RawFd) -> io::Result<()> {
        let entry = readable(fd).user_data(POLL | self.polls.wait);
        self.push_plain(&entry)?;
        self.polls.armed += 1;
        Ok(())
    }

    /// Removes the remaining polls of this wait. A poll that was not submitted yet still checks its descriptor once,
    /// because entries are started in order.
    pub(crate) fn remove_polls(&mut self) -> io::Result<()> {
        for _ in self.polls.removals..self.polls.armed {
            let entry = opcode::PollRemove::new(POLL | self.polls.wait).build();
            self.push_plain(&entry.user_data(REMOVAL | self.polls.wait))?;
            self.polls.removals += 1;
        }
        Ok(())
    }

    /// Puts an entry that names no memory into the submission queue.
    fn push_plain(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.flush()?;
        }
        // SAFETY: polls and cancellations name a descriptor or a number, and no memory. A poll takes a reference to
        // its file when it starts; if its number belongs to another file by then, it polls that one.
        let pushed = unsafe { self.ring.submission().push(entry) };
        if pushed.is_err() {
            return Err(Errno::EBUSY.into());
        }
        self.pushed += 1;
        Ok(())
    }

    /// Submits all queued entries, which empties the submission queue.
    fn flush(&mut self) -> io::Result<()> {
        let queued = self.ring.submission().len();
        self.enter_now(queued)
    }

    /// Submits queued entries, and runs the kernel's deferred work, without sleeping, except where the ring is replaced
    /// ([`RETURN`]). Makes no call if there is neither.
    pub(crate) fn enter_if_needed(&mut self) -> io::Result<()> {
        let submission = self.ring.submission();
        let queued = submission.len();
        // The completions of a polled device are found only by a call.
        let asks = self.kind == Kind::Polled && self.in_ring > 0;
        if queued == 0 && !asks && !submission.taskrun() && !submission.cq_overflow() {
            return Ok(());
        }
        drop(submission);
        self.enter_now(queued)
    }

    fn enter_now(&mut self, queued: usize) -> io::Result<()> {
        self.enable()?;
        let queued = u32::try_from(queued).unwrap_or(u32::MAX);
        let flags = EnterFlags::GETEVENTS.bits();
        let submitter = self.ring.submitter();
        // SAFETY: the call reads no memory but the ring's own, and each entry in it was pushed under the rules above.
        let entered = unsafe { submitter.enter::<nix::libc::sigset_t>(queued, 0, flags, None) };
        self.entered(entered)
    }

    /// Submits queued entries, and sleeps until there is a completion or the time is up. A ring that polls its devices
    /// does not sleep, but checks repeatedly.
    pub(crate) fn sleep(&mut self, timeout: Duration) -> io::Result<()> {
        if self.kind == Kind::Polled {
            let deadline = monotonic_now() + timeout;
            while !self.has_completions() && monotonic_now() < deadline {
                self.enter_if_needed()?;
            }
            return Ok(());
        }
        if *UNDER_VALGRIND {
            return self.sleep_beside(timeout);
        }
        self.enable()?;
        let timespec = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timespec);
        let entered = self.ring.submitter().submit_with_args(1, &arguments);
        self.entered(entered)
    }

    /// Sleeps as [`Ring::sleep`] does, but in poll(2). Valgrind runs one thread at a time and takes io_uring_enter(2)
    /// for a call that does not block, so that no other thread could do the work that the sleeper waits for.
    ///
    /// The call polls a registered eventfd, not the ring itself: deferred work (`DEFER_TASKRUN`) does not wake a poll
    /// of the ring, seen in Linux 6.18.
    fn sleep_beside(&mut self, timeout: Duration) -> io::Result<()> {
        self.enable()?;
        // The ring was replaced, and its polls were dropped. The caller starts them and calls again.
        let Some(event) = self.completion_event()? else {
            return Ok(());
        };
        match event.read() {
            // This read only clears the eventfd; the completions are checked below.
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
        let queued = self.ring.submission().len();
        self.enter_now(queued)?;
        // A replaced ring has no eventfd yet. The caller calls again.
        if self.has_completions() || self.completion_event.is_none() {
            return Ok(());
        }
        // The time is rounded up: a wait does not end before its time.
        let time = timeout.saturating_add(Duration::from_nanos(999_999));
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(event.as_fd(), PollFlags::POLLIN)], time) {
            Ok(_) => self.enter_now(0),
            // A signal ends `Ring::sleep` in the same way.
            Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the eventfd for completions and deferred work. `None` if another thread had entered the ring; then the
    /// ring was replaced for this thread.
    fn completion_event(&mut self) -> io::Result<Option<Arc<EventFd>>> {
        if self.completion_event.is_none() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let event = EventFd::from_value_and_flags(0, flags)?;
            match self.ring.submitter().register_eventfd(event.as_raw_fd()) {
                Ok(()) => self.completion_event = Some(Arc::new(event)),
                Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => {
                    self.make_anew()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.completion_event.clone())
    }

    /// Returns whether a completion can be taken.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn entered(&mut self, entered: io::Result<usize>) -> io::Result<()> {
        #[cfg(test)]
        {
            self.calls += 1;
        }
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                // The time is up, a signal arrived, or completions have to be taken first. The caller checks which.
                Some(Errno::ETIME | Errno::EINTR | Errno::EBUSY | Errno::EAGAIN) => Ok(()),
                Some(Errno::EEXIST) => self.make_anew(),
                _ => Err(error),
            },
        }
    }

    /// Enables the ring for the thread that enters it first.
    fn enable(&mut self) -> io::Result<()> {
        if self.disabled {
            self.ring.submitter().register_enable_rings()?;
            self.disabled = false;
        }
        Ok(())
    }

    /// Replaces the ring because another thread than before enters it. Operations that were not submitted are queued
    /// again. The polls of a wait are dropped, and that wait starts them again.
    fn make_anew(&mut self) -> io::Result<()> {
        // CAST: usize has at most 64 bits on every target Rust has.
        let submitted = self.pushed - self.ring.submission().len() as u64;
        let mut in_ring = self.flights.values().filter(|flight| flight.in_ring);
        if in_ring.any(|flight| flight.entry < submitted) {
            return Err(io::Error::other(
                "operations of another thread are in the kernel: a reactor may move to another thread only while nothing is outstanding",
            ));
        }
        self.replace_by(make)
    }

    /// Replaces the ring, which has no operation in the kernel, as [`make_or_small`] makes one.
    fn replace_by(
        &mut self,
        make: impl FnMut(Kind, u32) -> io::Result<(IoUring, bool)>,
    ) -> io::Result<()> {
        let deadline = monotonic_now() + RETURN;
        let (ring, disabled, room) = make_or_small(self.kind, self.entries, deadline, make)?;
        tracing::debug!(room, "the ring was replaced");
        (self.ring, self.disabled, self.room) = (ring, disabled, room);
        self.emptied();
        self.pins.register_again(&self.ring);
        Ok(())
    }

    /// Replaces a small ring by one with all entries, if there is memory for it now.
    #[cold]
    fn grow(&mut self) {
        match make(self.kind, self.entries) {
            Ok(made) => {
                let mut made = Some(made);
                // It is not made again, so it cannot be refused.
                let _replaced =
                    self.replace_by(|_, _| made.take().ok_or_else(|| Errno::EBUSY.into()));
            }
            Err(error) => tracing::debug!(%error, "the io_uring stays small"),
        }
    }

    /// Queues all operations again, in the order in which they were given, because the ring was replaced by an empty
    /// one.
    fn emptied(&mut self) {
        self.completion_event = None;
        self.in_ring = 0;
        self.pushed = 0;
        self.polls.armed = 0;
        self.polls.removals = 0;
        self.waiting.clear();
        let mut again: Vec<DefaultKey> = self.flights.keys().collect();
        again.sort_unstable_by_key(|&key| self.flights.get(key).map(|of| of.operation.token));
        for flight in self.flights.values_mut() {
            flight.in_ring = false;
        }
        self.waiting.extend(again);
    }

    /// Pins `buffers` in the kernel in place of those pinned before. Returns false if the system does not allow it.
    /// No operation may be in the ring.
    pub(crate) fn pin_buffers(&mut self, buffers: &[DmaBuffer]) -> io::Result<bool> {
        self.pin(|pins, ring| pins.pin_buffers(ring, buffers))
    }

    /// Registers `files` with the kernel in place of those registered before. Returns false if the system does not
    /// allow it. No operation may be in the ring.
    pub(crate) fn pin_files(&mut self, files: &[File]) -> io::Result<bool> {
        self.pin(|pins, ring| pins.pin_files(ring, files))
    }

    fn pin(&mut self, pin: impl Fn(&mut Pins, &IoUring) -> io::Result<bool>) -> io::Result<bool> {
        assert!(
            self.in_ring == 0,
            "pins exchanged under {} operations",
            self.in_ring
        );
        self.enable()?;
        match pin(&mut self.pins, &self.ring) {
            Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => {
                self.make_anew()?;
                self.enable()?;
                pin(&mut self.pins, &self.ring)
            }
            done => done,
        }
    }

    /// Cancels the operations in the kernel, and drops the others.
    fn cancel_all(&mut self) -> io::Result<()> {
        let keys: Vec<DefaultKey> = self.flights.keys().collect();
        for key in keys {
            if self.flights.get(key).is_some_and(|flight| flight.in_ring) {
                let cancel = opcode::AsyncCancel::new(key.data().as_ffi()).build();
                self.push_plain(&cancel.user_data(CANCEL))?;
            } else {
                self.flights.remove(key);
            }
        }
        self.waiting.clear();
        Ok(())
    }
}

fn is_out_of_memory(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOMEM as i32)
}

/// Repeats a call that fails with ENOMEM, until `deadline`.
fn until_memory_returns<T>(
    deadline: Instant,
    mut call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if is_out_of_memory(&error) && monotonic_now() < deadline => {
                pause_for_others();
            }
            done => return done,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // An operation with work left is queued again, but nothing is submitted from the queue any more.
        if self.cancel_all().is_ok() {
            let deadline = monotonic_now() + MAX_WAIT;
            while self.in_ring > 0 {
                let left = deadline - monotonic_now();
                // A sleep also ends with a signal, or with some of the operations.
                if left.is_zero() || self.sleep(left).is_err() {
                    break;
                }
                while self.next().is_some() {}
            }
        }
        if self.in_ring > 0 {
            tracing::error!(
                "{} operations did not end; their buffers and files are leaked",
                self.in_ring
            );
            std::mem::forget(std::mem::take(&mut self.flights));
            self.pins.leak();
        }
    }
}

/// Returns an entry that completes when the interrupt is signalled.
pub(crate) fn poll_entry(interrupt: &Interrupt) -> squeue::Entry {
    readable(interrupt.as_fd().as_raw_fd())
}

/// Returns an entry that completes when the descriptor is readable.
fn readable(fd: RawFd) -> squeue::Entry {
    let events = u32::from(nix::poll::PollFlags::POLLIN.bits().cast_unsigned());
    opcode::PollAdd::new(Fd(fd), events).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_entry_works_in_a_ring_of_ones_own() {
        let interrupt = Interrupt::new().unwrap();
        let mut own = until_memory_returns(monotonic_now() + RETURN, || IoUring::new(4)).unwrap();
        let entry = crate::reactor::poll_entry(&interrupt).user_data(77);
        // SAFETY: the entry names no memory, and the interrupt lives until its completion was seen.
        unsafe { own.submission().push(&entry) }.unwrap();
        own.submit().unwrap();
        assert!(
            own.completion().next().is_none(),
            "completed before the signal"
        );
        interrupt.signal();
        own.submit_and_wait(1).unwrap();
        let completion = own.completion().next().unwrap();
        assert_eq!(completion.user_data(), 77);
        assert!(completion.result() > 0, "{}", completion.result());
        assert_eq!(interrupt.take(), 1);
    }

    /// The kernel frees the locked memory of a closed ring after the close.
    #[test]
    fn a_call_without_memory_is_repeated_until_there_is_some_or_the_time_is_up() {
        let later = monotonic_now() + MAX_WAIT;
        let mut refusals = [Errno::ENOMEM; 3].into_iter();
        let made = until_memory_returns(later, || {
            refusals.next().map_or(Ok(7), |errno| Err(errno.into()))
        });
        assert_eq!(made.unwrap(), 7);
        let mut calls = 0;
        for (deadline, errno) in [(monotonic_now(), Errno::ENOMEM), (later, Errno::EPERM)] {
            let refused: io::Result<()> = until_memory_returns(deadline, || {
                calls += 1;
                Err(errno.into())
            });
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(errno as i32));
        }
        assert_eq!(calls, 2);
    }

    /// Begins waits until one has found memory for all entries. Other processes of the user may have locked it.
    fn wait_until_grown(ring: &mut Ring) {
        let deadline = monotonic_now() + MAX_WAIT;
        ring.begin_wait();
        while ring.room < ring.entries && monotonic_now() < deadline {
            pause_for_others();
            ring.begin_wait();
        }
    }

    #[test]
    fn a_first_ring_without_memory_is_small_and_works() {
        let mut asked = Vec::new();
        let later = monotonic_now() + MAX_WAIT;
        let ring = Ring::new_by(Kind::OneThread, 4 * SMALL, later, |kind, entries| {
            asked.push(entries);
            match asked.len() {
                1 | 2 => Err(Errno::ENOMEM.into()),
                _ => make(kind, entries),
            }
        });
        let mut ring = ring.unwrap();
        // More if other processes of the user have locked all memory.
        assert_eq!(asked[..3], [4 * SMALL, SMALL, SMALL]);
        assert_eq!((ring.entries, ring.room), (4 * SMALL, SMALL));
        wait_until_grown(&mut ring);
        assert_eq!(ring.ring.params().sq_entries(), 4 * SMALL);
    }

    /// A user may lock 8 MiB by default, in all processes together.
    #[test]
    fn a_ring_without_memory_for_another_one_is_small_until_a_wait_finds_memory() {
        for kind in [Kind::OneThread, Kind::AnyThread] {
            let interrupt = Interrupt::new().unwrap();
            let mut ring = Ring::new(kind, 4 * SMALL).unwrap();
            ring.poll(interrupt.as_fd().as_raw_fd()).unwrap();
            let mut asked = Vec::new();
            let replaced = ring.replace_by(|kind, entries| {
                asked.push(entries);
                match asked.len() {
                    1 | 2 => Err(Errno::ENOMEM.into()),
                    _ => make(kind, entries),
                }
            });
            replaced.unwrap();
            assert_eq!(asked[..3], [4 * SMALL, SMALL, SMALL], "{kind:?}");
            assert_eq!((ring.room, ring.polls_left()), (SMALL, 0), "{kind:?}");
            interrupt.signal();
            for room in [SMALL, 4 * SMALL] {
                assert_eq!(ring.room, room, "{kind:?}");
                assert_eq!(ring.ring.params().sq_entries(), room, "{kind:?}");
                ring.poll(interrupt.as_fd().as_raw_fd()).unwrap();
                ring.sleep(MAX_WAIT).unwrap();
                assert!(ring.next().is_none());
                assert_eq!((ring.polls_left(), ring.polls_fired()), (0, 1), "{kind:?}");
                wait_until_grown(&mut ring);
            }
        }
    }

    /// `sleep_beside`, which is used under valgrind, ends when the ring has a completion, or when its time is up.
    #[test]
    fn a_sleep_beside_the_ring_ends_with_what_it_waits_for_or_with_its_time() {
        for kind in [Kind::OneThread, Kind::AnyThread] {
            let interrupt = Interrupt::new().unwrap();
            let mut ring = Ring::new(kind, 4).unwrap();
            ring.sleep_beside(Duration::from_millis(1)).unwrap();
            assert!(!ring.has_completions(), "{kind:?}");
            let entry = crate::reactor::poll_entry(&interrupt).user_data(POLL);
            ring.push_plain(&entry).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| interrupt.signal());
                // The eventfd ends the sleep; its timeout would never pass.
                ring.sleep_beside(Duration::MAX).unwrap();
            });
            assert!(ring.has_completions(), "{kind:?}");
        }
    }

    /// `sleep_beside` works as usual on a ring that another thread has entered first: the thread that makes a ring for
    /// another one may enter it to register buffers and files.
    #[test]
    fn a_sleep_beside_a_ring_that_another_thread_has_entered_is_like_any_other() {
        for kind in [Kind::OneThread, Kind::AnyThread] {
            let mut ring = Ring::new(kind, 4).unwrap();
            let entered = std::thread::scope(|scope| scope.spawn(|| ring.enable()).join());
            entered.unwrap().unwrap();
            for _ in 0..2 {
                ring.sleep_beside(Duration::from_millis(1)).unwrap();
            }
            let interrupt = Interrupt::new().unwrap();
            let entry = crate::reactor::poll_entry(&interrupt).user_data(POLL);
            ring.push_plain(&entry).unwrap();
            interrupt.signal();
            ring.sleep_beside(Duration::MAX).unwrap();
            assert!(ring.has_completions(), "{kind:?}");
        }
    }
}
