//! The ConnectX (mlx5) provider: a network adapter driven from user space.
//!
//! The device's layouts and numbers are in [`mlx_prm`], where nothing acts. Here everything acts:
//!
//! | module | concern |
//! |---|---|
//! | [`cmd`] | the command interface: entries, mailboxes, signatures, answers |
//! | `control` | one command at a time from the caller's view: waiting, events meanwhile, time limits |
//! | `segment` | what the device says before the first command |
//! | [`bringup`], `teardown` | from a reset function to a usable one, and back |
//! | [`pages`] | the memory the firmware borrows |
//! | [`caps`] | what the device can do, what we need, what we switch on |
//! | `eq` | event queues; [`event`] what they say |
//! | `health` | whether the device is still alive |
//! | [`ids`] | which PCI functions are ours |
//! | [`vport`], [`gid`] | the port's MAC, MTU, RoCE switch and address table |
//! | [`device`] | [`Hca`]: the opened function; `config` how to open one |
//! | [`cq`], [`qp`], [`srq`], [`wqe`], [`uar`] | the queues, their entries, their doorbells |
//! | [`mkey`], [`window`] | memory keys, memory windows |
//! | [`counters`] | what the device counts |
//! | [`gsi`], [`mad`] | management datagrams through QP1 |
//! | [`completion`] | what the device's error codes mean |
//! | [`recorder`] | commands, datagrams, frames and events of the last while |
//! | `random` | names and numbers drawn from a seed |
//! | [`provider`] | all of it as DAT's provider |
//! | [`selftest`] | a function that sends to itself, and how far it gets |
//!
//! The crate reaches the machine only through `driver`: it knows BARs, DMA buffers, interrupts and a
//! clock, and neither VFIO, files nor threads. Time and waiting come from [`driver::Clock`], so the
//! same code runs against hardware and in a simulator's virtual time.
//!
//! Nothing the device says is believed further than it was checked: an index, a length or an address
//! from the device that does not fit what we gave it is an error or a log line, never a panic.

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
mod network;
pub mod pages;
pub mod provider;
pub mod qp;
mod random;
pub mod recorder;
mod report;
pub mod ring;
mod segment;
pub mod selftest;
pub mod srq;
mod teardown;
pub mod uar;
pub mod vport;
pub mod window;
pub mod wqe;

pub use config::{HcaConfig, Participation};
pub use counters::{DeviceCounters, PortCounters, PriorityTraffic, QueueCounters, VportCounters};
pub use dat_core::address::{Address, Vlan};
pub use device::{Hca, Opened, Pending};
pub use error::{CmdError, DeadCause, MissingCapability, MlxError, NotKept};
pub use event::AsyncEvent;
pub use gid::GidEntry;
pub use mlx_prm::TrustState;
pub use teardown::{CloseError, CloseReport};
pub use vport::Port;
pub use vport::look::{VportAdmin, VportState};
pub use vport::qos::{CongestionControl, FlowControl, PortQos};
