//! An NVMe over Fabrics target on RDMA.
//!
//! ```text
//!   host (nvme-rdma of Linux, SPDK, ...)
//!      |  connection: one for each queue
//!      v
//!   serve    workers: an instance of an adapter each, with its queues, its I/Os and its disks' ring     one thread each
//!      |        a command that reads or writes touches its worker alone
//!      |        every other command goes to the model, behind one lock; what takes its time there, the powers of
//!      |        authentication, to a thread of its own
//!      v
//!   model    subsystems, namespaces, controllers: what each command means. No I/O, no clock, no thread
//!      |
//!   nvme     what the specifications lay down: bytes and numbers; nothing that acts
//! ```
//!
//! It uses what any program may use of [`udapl`], and holds no unsafe code. What of the specifications is there, and
//! what is refused, is in docs/nvmeof.md.
#![forbid(unsafe_code)]

pub mod auth;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod disk;
mod lines;
pub mod model;
pub mod nvme;
pub mod serve;
