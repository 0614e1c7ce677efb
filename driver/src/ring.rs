//! The io_uring and what is in flight in it.
//!
//! One rule makes a ring safe: an operation owns what the kernel may touch on its behalf until its completion has been
//! seen. [`Ring`] keeps every operation it has started in a table and gives it back with its completion, and
//! only then; a caller that loses interest changes nothing. Dropping the ring cancels what is in flight and waits for
//! it. Should that fail, the operations are leaked, because the kernel may still write their buffers.
//!
//! Sleeping has a timeout as an argument of the system call, so no timeout operation needs to be cancelled.

// UNSAFETY: io-uring cannot know how long the memory an entry names lives; here it is known.
#![expect(unsafe_code, reason = "io_uring submission")]

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use nix::errno::Errno;
use nix::libc::iovec;

use crate::dma::DmaBuffer;
use crate::file::File;
use crate::interrupt::Interrupt;

/// The longest piece of a transfer the kernel is asked for at once; it does no more than 2 GiB.
const LONGEST: usize = 1 << 30;

/// Bytes to move between a file and a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) file: File,
    pub(crate) buffer: DmaBuffer,
    pub(crate) write: bool,
    pub(crate) file_offset: u64,
    pub(crate) buffer_offset: usize,
    pub(crate) bytes: usize,
}

/// Something the kernel is asked to do, with everything it may touch.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Wait until the interrupt is signalled.
    Poll(Interrupt),
    /// Wait until a descriptor is readable which its owner keeps open until then. The kernel touches no memory for it,
    /// and has a hold on the file itself from when it begins.
    PollFd(RawFd),
    /// Move bytes.
    Transfer(Transfer),
    /// Give up the operation of this key.
    Cancel(u64),
}

/// A ring.
pub(crate) struct Ring {
    ring: IoUring,
    /// Operations by their user data, until their completion is taken.
    flight: HashMap<u64, Operation>,
    /// Buffers pinned in the kernel, by their index there.
    registered: Vec<DmaBuffer>,
}

impl Ring {
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(entries)?,
            flight: HashMap::new(),
            registered: Vec::new(),
        })
    }

    /// Operations whose completion has not been taken.
    pub(crate) fn in_flight(&self) -> usize {
        self.flight.len()
    }

    /// Starts an operation under a key nothing in flight has. A transfer's bytes are inside its buffer.
    pub(crate) fn start(&mut self, key: u64, operation: Operation) -> io::Result<()> {
        assert!(
            !self.flight.contains_key(&key),
            "key {key} is in flight already"
        );
        let entry = self.entry(&operation).user_data(key);
        if self.ring.submission().is_full() {
            self.enter(0, None)?;
        }
        // SAFETY: what the entry names is owned by `operation`, which `flight` keeps until the completion is taken
        // by `reap`: the descriptor by the file or the interrupt, the memory by a clone of the buffer. A poll of any
        // other descriptor names no memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            return Err(io::Error::from(Errno::EBUSY));
        }
        self.flight.insert(key, operation);
        Ok(())
    }

    fn entry(&self, operation: &Operation) -> squeue::Entry {
        match operation {
            Operation::Poll(interrupt) => poll_entry(interrupt),
            Operation::PollFd(fd) => readable(*fd),
            Operation::Cancel(key) => opcode::AsyncCancel::new(*key).build(),
            Operation::Transfer(transfer) => {
                let bytes = transfer.bytes.min(LONGEST);
                // PANIC: outside the buffer, which the reactor has checked.
                let pointer = transfer
                    .buffer
                    .pointer(transfer.buffer_offset, bytes)
                    .as_ptr();
                // PANIC: LONGEST fits 32 bits.
                let length = u32::try_from(bytes).expect("at most LONGEST");
                let fd = Fd(transfer.file.as_fd().as_raw_fd());
                match (self.registered_index(pointer.addr(), bytes), transfer.write) {
                    (Some(index), false) => opcode::ReadFixed::new(fd, pointer, length, index)
                        .offset(transfer.file_offset)
                        .build(),
                    (Some(index), true) => opcode::WriteFixed::new(fd, pointer, length, index)
                        .offset(transfer.file_offset)
                        .build(),
                    (None, false) => opcode::Read::new(fd, pointer, length)
                        .offset(transfer.file_offset)
                        .build(),
                    (None, true) => opcode::Write::new(fd, pointer, length)
                        .offset(transfer.file_offset)
                        .build(),
                }
            }
        }
    }

    /// The registered buffer a range lies in.
    fn registered_index(&self, address: usize, bytes: usize) -> Option<u16> {
        let index = self.registered.iter().position(|buffer| {
            let start = buffer.pointer(0, 0).addr().get();
            address >= start && buffer.contains(address - start, bytes)
        })?;
        u16::try_from(index).ok()
    }

    /// Pins `buffers` in the kernel in place of those pinned before. Nothing may be in flight.
    pub(crate) fn register(&mut self, buffers: &[DmaBuffer]) -> io::Result<()> {
        assert!(
            self.flight.is_empty(),
            "buffers exchanged under {} operations",
            self.flight.len()
        );
        if !self.registered.is_empty() {
            self.ring.submitter().unregister_buffers()?;
            self.registered.clear();
        }
        if buffers.is_empty() {
            return Ok(());
        }
        let vectors: Vec<iovec> = buffers
            .iter()
            .map(|buffer| iovec {
                iov_base: buffer.pointer(0, buffer.len()).as_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        // SAFETY: the memory stays mapped while it is registered, since `registered` keeps a clone of each buffer until
        // after it is unregistered or the ring is closed.
        unsafe { self.ring.submitter().register_buffers(&vectors) }?;
        self.registered = buffers.to_vec();
        Ok(())
    }

    /// Submits what was started, and sleeps until `want` completions are there or the time is up.
    pub(crate) fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let entered = match timeout {
            None => self.ring.submit_and_wait(want),
            Some(timeout) => {
                let timespec = Timespec::from(timeout);
                self.ring
                    .submitter()
                    .submit_with_args(want, &SubmitArgs::new().timespec(&timespec))
            }
        };
        match entered {
            Ok(_) => Ok(()),
            // The time is up; a signal came; completions wait to be taken first. The caller looks and decides.
            Err(error)
                if matches!(
                    error.raw_os_error().map(Errno::from_raw),
                    Some(Errno::ETIME | Errno::EINTR | Errno::EBUSY | Errno::EAGAIN)
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// True if a completion can be taken.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Takes one completion: the key, the kernel's answer, and the operation with what it owned.
    pub(crate) fn reap(&mut self) -> Option<(u64, i32, Operation)> {
        loop {
            let completion = self.ring.completion().next()?;
            let key = completion.user_data();
            // A key we do not know cannot come; if it did, there would be nothing to give back.
            if let Some(operation) = self.flight.remove(&key) {
                return Some((key, completion.result(), operation));
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Keys are handed out upwards by the reactor; cancellations take theirs from the other end.
        let keys: Vec<u64> = self.flight.keys().copied().collect();
        for (key, cancel) in keys.iter().zip((0..u64::MAX).rev()) {
            if self.start(cancel, Operation::Cancel(*key)).is_err() {
                break;
            }
        }
        for _ in 0..60 {
            if self.flight.is_empty() || self.enter(1, Some(Duration::from_secs(1))).is_err() {
                break;
            }
            while self.reap().is_some() {}
        }
        if !self.flight.is_empty() {
            tracing::error!(
                "{} operations would not end; what they own is leaked",
                self.flight.len()
            );
            std::mem::forget(std::mem::take(&mut self.flight));
        }
    }
}

/// An entry that completes when the interrupt is signalled.
pub(crate) fn poll_entry(interrupt: &Interrupt) -> squeue::Entry {
    readable(interrupt.as_fd().as_raw_fd())
}

/// An entry that completes when the descriptor is readable.
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
        let mut own = IoUring::new(4).unwrap();
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
}
