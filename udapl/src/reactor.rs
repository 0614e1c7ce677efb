//! Files, timers and descriptors beside an adapter, in one io_uring.
//!
//! A storage program moves blocks between files and peers. A [`Reactor`] reads and writes files directly from and to
//! DMA memory, without a copy: [`Reactor::submit`] takes a [`FileOperation`] on a range of
//! [`DmaMemory`](crate::DmaMemory), [`bytes`](crate::DmaMemory::bytes), or of a
//! [`DmaBuffer`](crate::memory::DmaBuffer). Operations are read, write (optionally through to the medium), sync, write
//! zeroes and discard; [`File::geometry`] says which of them a disk or file supports. An operation ends as a
//! [`Completion`], with the tag that it was submitted with. [`alloc_aligned`](crate::memory::alloc_aligned) returns
//! memory for files opened with `O_DIRECT`.
//!
//! Registering long-lived buffers and files once ([`Reactor::register`], [`Reactor::register_files`]) saves the
//! kernel work on each operation. `docs/performance.md`, "Disks", has the costs.
//!
//! One thread waits for everything. It arms the [`Ia`](crate::Ia), and sleeps in the reactor on the descriptor of the
//! armed IA. The sleep ends when that descriptor is readable, an operation has ended, or the time is over:
//!
//! ```text
//! match ia.arm(&[events])? {
//!     Arm::Ready => reactor.wait_for(&[], Instant(0))?,
//!     Arm::Armed(armed) => reactor.wait_for(&[armed.as_fd()], clock.now() + armed.timeout())?,
//! };
//! // ... Ia::evd_poll, Reactor::take_completion ...
//! ```
//!
//! Times are nanoseconds of the machine's monotonic clock ([`RealClock`]). No sleep is longer than [`MAX_WAIT`].
//! Example `uring` is a whole program. Where io_uring is not allowed, as on RHEL 9 by default, a reactor waits by
//! ppoll(2) and refuses disks ([`Reactor::check_disks`], [`ReactorError::NoDisks`]).

pub use driver::{
    Clock, Completion, Descriptor, File, FileOperation, Geometry, HandedInError, Instant,
    Interrupt, MAX_WAIT, Reactor, ReactorError, RealClock, Token, Wake, handed_in, names_handed_in,
};
