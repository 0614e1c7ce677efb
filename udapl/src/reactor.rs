//! Disks, deadlines and descriptors beside an adapter, in one io_uring.
//!
//! A storage program moves blocks between files and peers. With a [`Reactor`] the file's half goes straight into and
//! out of the memory that the device uses, without a copy: [`Reactor::submit`] takes a [`FileOperation`] on a range of
//! [`DmaMemory`](crate::DmaMemory), [`bytes`](crate::DmaMemory::bytes), or of a
//! [`DmaBuffer`](crate::DmaBuffer). It reads, writes, if need be through to the medium, syncs, zeroes and gives space
//! back; [`File::geometry`] says what a disk or file can. An operation ends as a [`Completion`], with the tag that it
//! was submitted with. Memory for files that are opened with `O_DIRECT` comes from
//! [`alloc_aligned`](crate::alloc_aligned).
//!
//! Buffers and files that are used again and again are registered once ([`Reactor::register`],
//! [`Reactor::register_files`]), which saves the kernel work at each operation. What it costs is in
//! `docs/performance.md`, "Disks".
//!
//! One thread waits for all of it. It arms the [`Ia`](crate::Ia), and sleeps in the reactor on the descriptor that the
//! armed IA gives, until that is readable, an operation has ended, or the time is over:
//!
//! ```text
//! match ia.arm(&[events])? {
//!     Arm::Ready => reactor.wait_for(&[], Instant(0))?,
//!     Arm::Armed(armed) => reactor.wait_for(&[armed.as_fd()], clock.now() + armed.timeout())?,
//! };
//! // ... Ia::evd_poll, Reactor::take_completion ...
//! ```
//!
//! Times are nanoseconds of the machine's monotonic clock ([`RealClock`]); no sleep is longer than [`MAX_WAIT`].
//! Example `uring` is a whole program. Where io_uring is not allowed, as on RHEL 9 as delivered, a
//! reactor waits by ppoll(2) and refuses disks ([`Reactor::check_disks`], [`ReactorError::NoDisks`]).

pub use driver::{
    Clock, Completion, Descriptor, File, FileOperation, Geometry, HandedInError, Instant,
    Interrupt, MAX_WAIT, Reactor, ReactorError, RealClock, Token, Wake, handed_in, names_handed_in,
};
