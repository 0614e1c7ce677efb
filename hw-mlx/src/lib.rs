//! A driver for ConnectX (mlx5) network adapters in user space.
//!
//! [`Hca`] is an opened function: reset, brought up, with its firmware's pages, event queues, a doorbell page and the
//! port's addresses. Programs create queues of every kind on it, and post to them without a system call. The function
//! may be a PCI function under the kernel's VFIO, one that another process emulates (vfio-user), or a model in this
//! process; [`driver::Function`] covers all three, and this crate does not know which it is.
//!
//! ```no_run
//! use hw_mlx::{AsyncEvent, Hca, HcaConfig};
//!
//! let function = driver::Function::vfio("0000:3b:00.2")?;
//! let mut card = Hca::open(function, HcaConfig::new())?;
//! println!("firmware {:?}, {:?} millidegrees", card.firmware_version(), card.millidegrees()?);
//! loop {
//!     // Sleeps on the function's interrupts; an event loop of its own polls `card.descriptor()` instead.
//!     card.wait(card.now() + std::time::Duration::from_secs(1))?;
//!     while let Some(event) = card.next_async() {
//!         println!("{event}");
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/daemon.rs` does that in an io_uring loop of its own, with counters and metrics, and opens the function
//! anew when the device dies. A program that wants RDMA with connections uses `udapl`, whose provider on this driver
//! is `dat-mlx`.
//!
//! The device's layouts and numbers are in [`mlx_prm`], which has no logic. The logic is here:
//!
//! | module | concern |
//! |---|---|
//! | [`device`] | [`Hca`]: the opened function; `config` how to open one; `instance` several threads on one function |
//! | [`bringup`], `teardown` | from a reset function to a usable one, and back |
//! | [`cmd`] | the command interface: entries, mailboxes, signatures, answers |
//! | `control` | one command at a time from the caller's view: waiting, events meanwhile, time limits |
//! | `segment` | what the device says before the first command |
//! | [`pages`] | the memory the firmware borrows |
//! | [`caps`] | what the device can do, what we need, what we switch on |
//! | `eq` | event queues; [`event`] what they say |
//! | `health`, `sensor` | whether the device is still alive, and how hot it is |
//! | [`ids`] | which PCI functions are ours |
//! | [`vport`], [`gid`] | the port's MAC, MTU, RoCE switch and address table |
//! | [`cq`], [`qp`], [`srq`], [`wqe`], [`uar`] | the queues, their entries, their doorbells |
//! | [`completion`] | how a request ended, and what the device's error codes mean |
//! | [`mkey`], [`window`] | memory keys, memory windows |
//! | [`gsi`], [`mad`], [`datagrams`] | management datagrams through QP1 |
//! | [`ethernet`] | frames through the Ethernet port |
//! | [`counters`] | what the device counts |
//! | [`recorder`] | commands, datagrams, frames and events of the last while |
//! | [`random`] | names and numbers drawn from a seed |
//! | [`selftest`] | a function that sends to itself, and how far it gets |
//!
//! The crate reaches the machine only through `driver`: it knows BARs, DMA buffers, interrupts and a
//! clock, and neither VFIO, files nor threads. Time and waiting come from [`driver::Clock`], so the
//! same code runs against hardware and in a simulator's virtual time.
//!
//! Nothing the device reports is trusted further than it was checked: an index, a length or an address from the
//! device that does not fit what we gave it is an error or a log line, never a panic.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod bringup;
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
pub mod srq;
mod teardown;
pub mod uar;
pub mod vport;
pub mod window;
pub mod wqe;

pub use config::HcaConfig;
pub use counters::{DeviceCounters, PortCounters, PriorityTraffic, QueueCounters, VportCounters};
pub use device::{Hca, Opened, Pending};
pub use error::{CmdError, DeadCause, MissingCapability, MlxError, NotKept};
pub use event::{AsyncEvent, NetworkEvent};
pub use gid::GidEntry;
pub use mlx_prm::TrustState;
pub use rdma_types::{Address, Vlan};
pub use teardown::{CloseError, CloseReport};
pub use vport::Port;
pub use vport::look::{VportAdmin, VportState};
pub use vport::qos::{CongestionControl, FlowControl, PortQos};
