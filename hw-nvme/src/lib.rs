//! A driver for NVMe SSDs in user space, on the functions of [`driver`]: the kernel's VFIO, a vfio-user server, or a
//! model in the process.
//!
//! ```no_run
//! use driver::{DmaArena, Function};
//! use hw_nvme::{Config, Controller, Ended, Piece, block_command, opcode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let function = Function::vfio("0000:5e:00.0")?;
//! let mut controller = Controller::open(function, Config::default())?;
//! let nsid = controller.namespaces()?[0];
//! let namespace = controller.namespace(nsid)?;
//! let mut queue = controller.create_queue()?;
//!
//! // One block into memory that the SSD writes itself.
//! let memory = controller.arena().alloc(4096, 4096)?;
//! let piece = Piece { iova: memory.iova(), bytes: namespace.block_bytes };
//! queue.submit(block_command(opcode::READ, nsid, 0, 1, false), &[piece], 7)?;
//! queue.ring();
//! let mut ended = [Ended::NONE];
//! while queue.poll(&mut ended)? == 0 {}
//! assert!(ended[0].cookie == 7 && ended[0].status.is_success());
//! # Ok(())
//! # }
//! ```
//!
//! A command costs an entry in memory and, together with others, a doorbell. Nothing is allocated for it, no lock is
//! taken, and no call enters the kernel. The SSD reads and writes the caller's memory, which can be that of a network
//! card's function in the same I/O address space ([`driver::DmaSpace`]).
//!
//! What the SSD writes is not trusted. A completion of a command that was not given, or with numbers beyond their
//! limits, ends the controller ([`Cause`]). So do registers that read as ones, a fatal status, and silence. All
//! commands then end once: by [`Controller::stop`], after which the SSD reaches no memory.
//!
//! The sources are NVM Express Base Specification 2.0, NVM Command Set Specification 1.0 and PCIe Transport
//! Specification 1.0.

#![forbid(unsafe_code)]

mod controller;
mod error;
mod health;
mod prp;
mod queue;
mod quirks;
pub mod registers;
mod slots;

pub use controller::{Config, Controller, Identity, Namespace, NotStopped, may_repeat};
pub use error::{Cause, NvmeError};
pub use nvme_types::command::io as opcode;
pub use prp::{Piece, PrpError};
pub use queue::{Ended, QueuePair, SubmitError, block_command, command};
pub use quirks::Quirks;
