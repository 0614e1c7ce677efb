//! A driver for NVMe SSDs in user space, on the functions of [`driver`]: the kernel's VFIO, a vfio-user server, or a
//! model in the process.
//!
//! ```no_run
//! use core::time::Duration;
//! use driver::{Clock, DmaArena, Function, RealClock};
//! use hw_nvme::{Config, Controller, Ended, Piece, block_command, opcode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let function = Function::vfio("0000:5e:00.0")?;
//! let arena = DmaArena::new(&function)?;
//! // One page, which the SSD writes itself.
//! let memory = arena.alloc(4096, 4096)?;
//! let mut controller = Controller::open(function, Config::default())?;
//! let namespace = controller.namespace(1)?;
//! let mut queue = controller.create_queue()?;
//!
//! let piece = Piece { iova: memory.iova(), bytes: namespace.block_bytes };
//! let read = block_command(opcode::READ, 1, 0, 1, false);
//! let clock = RealClock::new();
//! queue.submit(read, &[piece], 7, clock.now())?;
//! queue.ring();
//! let mut ended = [Ended::NONE];
//! while queue.poll(&mut ended)? == 0 {
//!     // After 30 s without an answer, the controller has ended, and `poll` says so.
//!     controller.check_time(&queue, clock.now(), Duration::from_secs(30));
//! }
//! println!("command {} ended with {}", ended[0].cookie, ended[0].status);
//! // From here on, the SSD reaches no memory.
//! let (_function, _unanswered) = controller.stop(vec![queue])?;
//! # Ok(())
//! # }
//! ```
//!
//! A command costs an entry in memory and, together with others, a doorbell. Nothing is allocated for it, no lock is
//! taken, and no call enters the kernel. The SSD reads and writes the caller's memory, which can be that of a network
//! card's function in the same I/O address space ([`driver::DmaSpace`]).
//!
//! The driver does not trust the SSD. A completion of a command that was not given, or with numbers beyond their
//! limits, ends the controller ([`Cause`]). [`Controller::check`] and [`Controller::check_time`] find registers that
//! read as ones, a fatal status and silence; a program calls them now and then. All commands then end once: by
//! [`Controller::stop`], after which the SSD reaches no memory.
//!
//! The sources are NVM Express Base Specification 2.0, NVM Command Set Specification 1.0 and PCIe Transport
//! Specification 1.0.

#![forbid(unsafe_code)]

mod controller;
mod error;
mod events;
mod health;
mod prp;
mod queue;
mod quirks;
mod registers;
mod slots;

pub use controller::{Config, Controller, Identity, Namespace, NotStopped, may_repeat};
pub use error::{Cause, NvmeError};
pub use events::Event;
pub use nvme_types::command::io as opcode;
pub use prp::{Piece, PrpError};
pub use queue::{Ended, QueuePair, SubmitError, block_command, command};
pub use quirks::Quirks;
