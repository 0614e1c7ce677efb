//! A worker's disks: the ring that all of them share, and the operations that a faulty disk delays.
//!
//! ```text
//!   ask ---> in the ring ------------------------------> next: the command continues
//!      \       \- orders delay it ------------> late ---->|   when the delay is over, or the orders have changed
//!       `- orders make it fail ---------------> late ---->'
//! ```
//!
//! A delayed operation still counts as pending. Only faulty disks ([`crate::disk::faults`]) delay operations.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use udapl::memory::DmaBuffer;
use udapl::reactor::{
    Clock, FileOperation, Instant, Reactor, ReactorError, RealClock, Token, Wake,
};

use super::ended::Ended;
use super::ssd_queues::{POLL_INTERVAL, SsdQueues};
use crate::disk::Handle;
use crate::disk::faults::{Fault, Faults};

/// Time at which a delay ends, and the orders that caused it. If these change, the delay ends early.
struct Late {
    until: Instant,
    faults: Arc<Faults>,
    generation: u64,
}

impl Late {
    fn is_over(&self, now: Instant) -> bool {
        self.until <= now || self.faults.generation() != self.generation
    }
}

/// Returns the error of an operation that a faulty disk was ordered to fail.
fn failed(operation: &FileOperation<'_>, error: Errno) -> ReactorError {
    let (operation, offset, bytes) = match *operation {
        FileOperation::Read { offset, bytes, .. } => ("read", offset, bytes),
        FileOperation::Write { offset, bytes, .. } => ("write", offset, bytes),
        FileOperation::Sync => ("sync", 0, 0),
        FileOperation::Zero { offset, bytes } => ("zero", offset, bounded(bytes)),
        FileOperation::Deallocate { offset, bytes } => ("deallocate", offset, bounded(bytes)),
    };
    ReactorError::Transfer {
        path: "a faulty disk".into(),
        operation,
        offset,
        bytes,
        source: error.into(),
    }
}

fn bounded(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Maximum number of operations that are in the kernel at once. Others wait.
const MOST_OPERATIONS: u32 = 2048;

/// The disks of a worker.
pub(crate) struct Disks {
    reactor: Reactor,
    /// Operations in the ring that will be delayed when they complete.
    slow: Vec<(Token, Late)>,
    /// Operations that have completed in the ring and are being delayed.
    late: Vec<(Late, Ended)>,
    /// Queues on SSDs that the process drives itself.
    ssds: SsdQueues,
}

impl core::fmt::Debug for Disks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut out = f.debug_struct("Disks");
        out.field("slow", &self.slow.len())
            .field("late", &self.late.len())
            .finish_non_exhaustive()
    }
}

impl Disks {
    /// Creates a ring for the operations of this many commands.
    pub(crate) fn new(commands: u32) -> Result<Self, ReactorError> {
        let reactor = Reactor::new(commands.min(MOST_OPERATIONS))?;
        reactor.check_disks()?;
        Ok(Self {
            reactor,
            slow: Vec::new(),
            late: Vec::new(),
            ssds: SsdQueues::default(),
        })
    }

    /// Registers the memory of operations with the kernel, which pins it. Returns false if that failed; operations are
    /// slower then. SSDs that the process drives itself get mappings of that memory.
    pub(crate) fn pin(&mut self, memory: &[DmaBuffer]) -> Result<bool, ReactorError> {
        self.ssds.set_memory(memory);
        self.reactor.register(memory)
    }

    /// Ends the registration of memory, and its mappings for SSDs. When the ring is closed, the kernel would end the
    /// registration at some later time.
    pub(crate) fn unpin(&mut self) {
        self.ssds.clear();
        if let Err(error) = self.reactor.register::<&DmaBuffer>([]) {
            tracing::debug!(%error, "the memory of operations stays registered until the ring is gone");
        }
    }

    /// Returns whether the worker has queues on SSDs.
    #[cfg(test)]
    pub(crate) fn has_ssds(&self) -> bool {
        !self.ssds.is_empty()
    }

    /// Submits a disk operation of a command. Returns the number of operations that will complete: 1, or 0 for a null
    /// disk.
    #[inline]
    pub(crate) fn ask(
        &mut self,
        disk: &Handle,
        operation: FileOperation<'_>,
        io: u32,
    ) -> Result<u32, ReactorError> {
        match disk {
            Handle::File(file) => {
                self.reactor.submit(file, operation, io.into())?;
                Ok(1)
            }
            Handle::Faulty(file, faults) => {
                let Some((fault, generation)) = faults.strike(&operation) else {
                    self.reactor.submit(file, operation, io.into())?;
                    return Ok(1);
                };
                let late = Late {
                    until: RealClock::new().now() + fault.delay,
                    faults: Arc::clone(faults),
                    generation,
                };
                if let Fault {
                    error: Some(error), ..
                } = fault
                {
                    let result = Err(failed(&operation, error));
                    self.late.push((late, Ended { io, result }));
                } else {
                    let token = self.reactor.submit(file, operation, io.into())?;
                    self.slow.push((token, late));
                }
                Ok(1)
            }
            Handle::Null => Ok(0),
            Handle::Ssd(disk) => {
                let now = RealClock::new().now();
                self.ssds.ask(disk, operation, io, now)?;
                Ok(1)
            }
        }
    }

    /// Submits queued operations to the kernel and to SSDs, and collects completed ones, without waiting.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<(), ReactorError> {
        if self.reactor.outstanding() != 0 {
            self.reactor.wait_for(&[], Instant(0))?;
        }
        if !self.ssds.is_empty() {
            self.ssds.poll(RealClock::new().now());
        }
        Ok(())
    }

    /// Returns a completed operation that is not being delayed.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Ended> {
        while let Some(done) = self.reactor.take_completion() {
            let ended = Ended {
                // The tag is the 32-bit index with which the operation was submitted.
                io: u32::try_from(done.tag).unwrap_or(u32::MAX),
                result: done.result,
            };
            if self.slow.is_empty() {
                return Some(ended);
            }
            match self.slow.iter().position(|(token, _)| *token == done.token) {
                Some(at) => {
                    let (_, late) = self.slow.swap_remove(at);
                    self.late.push((late, ended));
                }
                None => return Some(ended),
            }
        }
        if !self.ssds.is_empty()
            && let Some(ended) = self.ssds.next()
        {
            return Some(ended);
        }
        if self.late.is_empty() {
            return None;
        }
        self.next_late()
    }

    #[cold]
    fn next_late(&mut self) -> Option<Ended> {
        let now = RealClock::new().now();
        let at = self.late.iter().position(|(late, _)| late.is_over(now))?;
        Some(self.late.swap_remove(at).1)
    }

    /// Sleeps until an operation completes, a delay ends, one of these descriptors is readable, or the time is over.
    pub(crate) fn sleep(
        &mut self,
        on: &[std::os::fd::BorrowedFd<'_>],
        no_longer_than: Duration,
    ) -> Result<Wake, ReactorError> {
        let now = RealClock::new().now();
        let due = self.late.iter().map(|(late, _)| late.until).min();
        let until = now + no_longer_than;
        let until = due.map_or(until, |due| due.min(until));
        if self.ssds.is_empty() {
            return self.reactor.wait_for(on, until);
        }
        if !self.ssds.may_sleep(now) {
            return Ok(Wake::Transfer);
        }
        let until = if self.ssds.has_polled() {
            until.min(now + POLL_INTERVAL)
        } else {
            until
        };
        let all: Vec<_> = on.iter().copied().chain(self.ssds.interrupts()).collect();
        self.reactor.wait_for(&all, until)
    }

    /// Waits until the kernel no longer uses the worker's memory, at most for the given time. If a disk still hangs
    /// then, the ring is leaked with the memory and the files of its operations. Returns whether all operations have
    /// ended.
    pub(crate) fn end(mut self, no_longer_than: Duration) -> Result<bool, ReactorError> {
        let until = RealClock::new().now() + no_longer_than;
        while self.ssds.outstanding() > 0 && RealClock::new().now() < until {
            let slept = self.sleep(&[], POLL_INTERVAL);
            while self.ssds.next().is_some() {}
            if slept.is_err() {
                break;
            }
        }
        self.ssds.clear();
        let waited = self.reactor.wait_all(until);
        let operations = self.reactor.outstanding();
        if operations != 0 {
            tracing::error!(
                operations,
                "disks have not answered in time: the memory and the files of these operations are leaked"
            );
            // The drop of a reactor waits for its operations once more.
            core::mem::forget(self.reactor);
        }
        waited.map(|_| operations == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use udapl::fabric::Fabric;
    use udapl::memory::alloc_buffer;
    use udapl::reactor::File;

    use super::*;

    /// A pipe without data serves as a disk that hangs. The leaked read keeps the pipe's read end open, so the write at
    /// the end succeeds.
    #[test]
    fn an_operation_that_has_not_ended_in_time_is_leaked_and_not_waited_for() {
        let ia = Fabric::pair(1).open(0).expect("an adapter");
        let buffer = alloc_buffer(&ia, 4096, 4096).expect("memory");
        let (from, mut to) = std::io::pipe().expect("a pipe");
        let disk = Handle::File(File::from_std(OwnedFd::from(from).into(), "pipe"));
        let mut disks = Disks::new(4).expect("a ring");
        let read = FileOperation::Read {
            offset: 0,
            buffer: &buffer,
            buffer_offset: 0,
            bytes: 512,
        };
        assert_eq!(disks.ask(&disk, read, 0).expect("a place"), 1);
        drop(disk);
        let all_ended = disks.end(Duration::ZERO).expect("the time is over");
        assert!(!all_ended);
        to.write_all(&[1]).expect("the read has its file");
    }
}
