//! An NVMe over Fabrics target on RDMA.
//!
//! ```text
//!   host (nvme-rdma of Linux, SPDK, ...)
//!      |  connection: one for each queue
//!      v
//!   serve    the RDMA transport: workers, an instance of an adapter each, with their queues      one thread each
//!      |        A command that reads or writes touches its worker alone
//!      |        Every other command goes to the model, behind one lock; the powers of authentication, which take
//!      |        long, are computed by a thread of their own
//!      |---- io      I/O commands without a wire: checks, states, steps, a worker's namespaces, buffers, disks
//!      v
//!   model    subsystems, namespaces, controllers: what each command means. No I/O, no clock, no thread
//!      |
//!   nvme     what the specifications lay down: bytes and numbers; nothing that acts
//! ```
//!
//! The target uses only the public interface of [`udapl`], and contains no unsafe code. docs/nvmeof.md lists which
//! parts of the specifications are supported and which are refused.
#![forbid(unsafe_code)]

pub mod auth;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod disk;
mod io;
mod lines;
pub mod model;
pub mod nvme;
pub mod serve;
#[cfg(test)]
mod tables;
