//! A register-level simulator of a ConnectX (mlx5) PCI function.
//!
//! A [`Sim`] holds functions, links between their ports, and virtual time. Each function is a [`driver::Device`]: any
//! driver written for the hardware accesses it through configuration space, BAR 0 and DMA. A function follows the
//! device's rules and makes no allowance for the driver. It refuses an operation that hardware refuses, with
//! hardware's status, and accepts an operation that hardware is known to accept.
//!
//! ```text
//!   configuration space   BAR 0 writes           DMA, interrupts
//!          |                   |                        ^
//!   config_space      init_segment | uar          iommu | eq
//!                              |                        |
//!                 cmd (commands -> objects)  ----  cq, mkey, srq, pages
//!                              |                        |
//!                         qp, eth <-------- view -------'
//!                              |
//!                wire -> port -> card -> pcap, link -> another card
//! ```
//!
//! | module | concern |
//! |---|---|
//! | `device`, `switched`, `clock` | handles: [`Sim`], [`SimFunction`], the clock |
//! | `alarm` | waking a thread that advances virtual time with the machine's clock |
//! | `world`, `env`, `event_log` | the step loop, its part that functions use, the deterministic log |
//! | `nic`, `object_tables`, `events` | one function, and the connections between its parts |
//! | [`profile`], `fault`, `report` | a function's properties, its faults, its state as readable text |
//! | `config_space`, `init_segment`, `uar` | registers |
//! | `iommu`, `pages`, `buffer` | memory of the host |
//! | [`cmd`] | the command interface and every command |
//! | [`card`] | the physical port, virtual functions, and the e-switch between them |
//! | `objects`, `eq`, `cq`, `mkey`, `umem`, `umr`, `srq`, `port` | objects that commands create and configure |
//! | [`q_counters`], `mcg`, `uctx`, `device_memory` | more such objects |
//! | `subnet` | InfiniBand: the managed state of a port, its agents, switches |
//! | [`host`], `view`, [`qp`] | queue pairs and their interface to the function |
//! | [`eth`] | Ethernet queues, and steering to them |
//! | [`wire`], `ingress`, `multicast`, [`link`], [`pcap`] | packets, and the wire between ports |
//! | [`record`] | recording all inputs of a simulation in a file, and replaying them |
//! | [`switch`], `network` | switches, and the ports of cards on them |
//! | `congestion`, `dcqcn` | notification of marked packets, and the sender's reaction |
//!
//! Absent on purpose: DAT and any driver logic (layouts are in [`mlx_prm`], which driver and simulator share). The
//! simulator creates no threads, and its events depend on virtual time only.

#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod alarm;
mod buffer;
mod capabilities;
pub mod card;
mod clock;
pub mod cmd;
mod config_space;
mod congestion;
mod cq;
mod dcqcn;
mod device;
mod device_memory;
mod env;
mod eq;
pub mod eth;
mod event_log;
mod events;
mod fault;
pub mod host;
mod ingress;
mod init_segment;
mod iommu;
pub mod link;
mod mcg;
mod mkey;
mod multicast;
mod network;
mod nic;
mod object_tables;
mod objects;
mod pages;
pub mod pcap;
mod port;
pub mod profile;
pub mod q_counters;
pub mod qp;
pub mod record;
mod report;
mod srq;
mod subnet;
pub mod switch;
mod switched;
mod threads;
mod time;
mod traffic;
mod uar;
mod uctx;
mod umem;
mod umr;
mod view;
pub mod wire;
mod world;

pub use alarm::Alarm;
pub use card::{
    CardConfig, CardRules, CongestionCounters, LinkState, PauseCounters, PortQos, VfSettings,
};
pub use clock::SimClock;
pub use dcqcn::Reaction;
pub use device::{LinkId, Sim, SimCard, SimConfig, SimFunction};
pub use fault::{Fault, Meeting, Meetings};
pub use iommu::FaultCause;
pub use link::{Faults, LinkFaults};
pub use network::NotConnected;
pub use profile::{Habits, PortType, Profile};
pub use report::FunctionReport;
pub use switched::{Connector, SubnetSwitchId, SwitchId};
pub use world::Drive;
