//! An NVMe over Fabrics target on RDMA.
//!
//! ```text
//!   host (nvme-rdma of Linux, SPDK, ...)
//!      |  connection: one for each queue
//!      v
//!   serve    the RDMA transport: workers. Each worker has a thread, an instance of an adapter, and queues
//!      |        A command of an I/O queue, except a reservation command, uses only its worker
//!      |        All other commands go to the model, behind one lock. A separate thread computes the modular
//!      |        exponentiations of authentication, which take long
//!      |---- io      I/O commands, without the transport: checks, states, steps, a worker's namespaces, buffers, disks
//!      v
//!   model    subsystems, namespaces, controllers: what each command means. No I/O, no clock, no thread
//!      |
//!   nvme     data structures and constants of the specifications
//! ```
//!
//! [`pci`] is a simulated NVMe SSD: the same model and the same commands behind the registers of a PCI function.
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
pub use nvme_types as nvme;
pub mod pci;
pub mod serve;
#[cfg(test)]
mod tables;
