//! Disks, deadlines and descriptors beside an adapter, in one io_uring.
//!
//! A storage program moves blocks between files and peers. With a [`Reactor`] the file's half goes straight into and
//! out of the memory that the device uses, without a copy: [`Reactor::queue_read`] and [`Reactor::queue_write`] take a
//! [`DmaBuffer`](crate::DmaBuffer), which is what [`DmaMemory`](crate::DmaMemory) is made of. A transfer has a
//! [`Token`], and ends as a [`Completion`].
//!
//! One thread waits for all of it. It arms the [`Ia`](crate::Ia), and sleeps in the reactor on the descriptor that the
//! armed IA gives, until that is readable, a transfer has ended, or the time is over:
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
//! Example `uring` is a whole program. Where io_uring is not allowed [`Reactor::new`] says so ([`ReactorError::Ring`],
//! with the system's error), and the descriptor still goes with poll(2) and epoll(7) (example `epoll`).

pub use driver::{
    Clock, Completion, Descriptor, File, FileOperation, Geometry, Instant, Interrupt, MAX_WAIT,
    Reactor, ReactorError, RealClock, Token, Wake,
};
