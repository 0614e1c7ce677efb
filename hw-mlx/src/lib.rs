//! A driver for ConnectX (mlx5) network adapters in user space.
//!
//! [`Hca`] is an instance of an opened function. The function is reset and brought up, and has its firmware's pages,
//! event queues, a doorbell page and the port's addresses. Programs create queues of every kind on it, and post to them
//! without a system call.
//! The function may be a PCI function under the kernel's VFIO, a function that another process emulates (vfio-user), or
//! a simulated function in this process. [`driver::Function`] covers all three, and this crate cannot distinguish them.
//!
//! ```no_run
//! use hw_mlx::{AsyncEvent, Hca, HcaConfig};
//!
//! let function = driver::Function::vfio("0000:3b:00.2")?;
//! let mut card = Hca::open(function, HcaConfig::new())?;
//! println!("firmware {:?}, {:?} millidegrees", card.firmware_version(), card.millidegrees()?);
//! loop {
//!     // Sleeps on the function's interrupts. A program with its own event loop polls `card.descriptor()` instead.
//!     card.wait(card.now() + std::time::Duration::from_secs(1))?;
//!     while let Some(event) = card.next_async() {
//!         println!("{event}");
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/daemon.rs` does the same in its own io_uring loop, with counters and metrics, and opens the function anew
//! when the device fails. A program that needs RDMA connections uses `udapl`, whose provider on this driver is
//! `dat-mlx`.
//!
//! The device's layouts and numbers are in [`mlx_prm`], which has no logic. This crate has the logic:
//!
//! | module | contents |
//! |---|---|
//! | [`device`] | [`Hca`]: the opened function; `config`: options; `instance`: several threads on one function |
//! | [`HcaSnapshot`] | a function that outlives its process: [`Hca::park`], [`Hca::resume`]; [`bounds`]: limits of its numbers |
//! | [`bringup`], `teardown` | from a reset function to a usable one, and back |
//! | [`cmd`] | the command interface: entries, mailboxes, signatures, answers |
//! | `control` | execution of a command from the caller's view: waiting, events meanwhile, time limits |
//! | `segment` | the initialization segment, read before the first command |
//! | [`pages`] | the host memory that the firmware uses |
//! | [`caps`] | capabilities: those the device has, those we need, those we enable |
//! | `eq` | event queues; [`event`]: decoding of their entries |
//! | `health`, `sensor` | detection of a dead device; temperature |
//! | [`ids`] | PCI device ids that this driver supports |
//! | [`vport`], [`gid`] | the port's MAC, MTU, RoCE switch and address table |
//! | [`cq`], [`qp`], [`srq`], [`wqe`], [`uar`] | the queues, their entries, their doorbells |
//! | [`completion`] | results of requests, and explanations of the device's error codes |
//! | [`mkey`], [`window`] | memory keys, memory windows |
//! | [`gsi`], [`mad`], [`datagrams`] | management datagrams through QP1 |
//! | [`ethernet`] | frames through the Ethernet port |
//! | `slot_queue` | the queues of QP1 and of the Ethernet port, with a slot of memory for each entry |
//! | [`counters`] | the device's counters |
//! | [`recorder`] | flight recorder: the last commands, datagrams, frames and events |
//! | [`random`] | random identifiers and numbers, reproducible with a seed |
//! | [`selftest`] | test in which a function sends to itself, and which finds the layer that fails |
//!
//! The crate accesses the machine only through `driver`, as BARs, DMA buffers, interrupts and a clock. It does not use
//! VFIO, files or threads itself. Time and waiting come from [`driver::Clock`], so the same code runs on hardware and
//! in a simulator's virtual time.
//!
//! The crate checks everything that the device reports before it is used. An index, a length or an address that does
//! not match what we gave to the device causes an error or a log line, never a panic.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod bounds;
pub mod bringup;
mod broken;
pub mod caps;
pub mod cmd;
pub mod completion;
mod config;
mod control;
pub mod counters;
pub mod cq;
pub mod datagrams;
pub mod device;
mod eq;
pub mod error;
pub mod ethernet;
pub mod event;
pub mod gid;
pub mod gsi;
mod health;
pub mod ids;
mod instance;
pub mod mad;
pub mod mkey;
pub mod pages;
pub mod qp;
pub mod random;
pub mod recorder;
mod report;
pub mod ring;
mod segment;
pub mod selftest;
mod sensor;
mod slot_queue;
pub mod srq;
#[cfg(test)]
mod tables;
mod teardown;
pub mod uar;
pub mod vport;
pub mod window;
pub mod wqe;

pub use config::HcaConfig;
pub use counters::{DeviceCounters, PortCounters, PriorityTraffic, QueueCounters, VportCounters};
pub use device::{
    Hca, HcaSnapshot, HcaTables, InstanceSnapshot, NotCancelled, NotParked, ObjectCount, Opened,
    ParkingHca, Pending, PortSnapshot, UnclaimedHca,
};
pub use eq::EqSnapshot;
pub use error::{
    CmdError, DeadCause, MissingCapability, MlxError, NotKept, NotResumed, ParkError, ResumeError,
};
pub use event::{AsyncEvent, NetworkEvent};
pub use gid::GidEntry;
pub use mlx_prm::TrustState;
pub use rdma_types::{Address, Vlan};
pub use teardown::{CloseError, CloseReport};
pub use vport::Port;
pub use vport::qos::{CongestionControl, FlowControl, PortQos};
pub use vport::state::{VportAdmin, VportState};
