//! Layouts and numbers of the device, without any logic.
//!
//! All of it comes from the PRM as public drivers quote it: Linux 6.12 `include/linux/mlx5/*.h` and
//! `drivers/net/ethernet/mellanox/mlx5/core`, rdma-core `providers/mlx5`. The structs are the PRM's tables in the
//! PRM's spelling ([`layout!`](layout::layout) has the notation), so that a reader can compare the code with the
//! manual line by line. A driver and a simulator of the device use the same structs. Tests check the structs with a
//! recording of a real ConnectX-4 Lx (`testdata/` of this crate): each message must decode and encode back unchanged.
//!
//! | module | what |
//! |---|---|
//! | [`registers`] | BAR 0: initialization segment, doorbell page |
//! | [`cmd_queue`] | command queue entry, mailbox, common headers, [`Command`] |
//! | [`opcode`], [`status`], [`syndrome`] | the commands, their results, and known reasons of refusals |
//! | [`function`], [`resources`] | commands for the function and for global resources |
//! | [`caps`], [`caps_pages`], [`caps_flow`] | capability pages |
//! | [`eq`], [`cq`], [`qp`], [`srq`], [`mkey`], [`umem`] | contexts and commands of queues and memory |
//! | [`device_memory`] | memory of the device, which programs reach through the BAR |
//! | [`vport`], [`smp`], [`access_reg`], [`port_counters`], [`congestion`] | contexts and commands of ports |
//! | [`traffic_class`] | registers of the traffic classes of ports |
//! | [`eth_queue`], [`tir`] | Ethernet queues, and the objects between them and steering |
//! | [`flow`], [`flow_match`] | flow tables, and the fields that their entries compare |
//! | [`eswitch`] | capabilities of the switch between a card's functions |
//! | [`wqe`] | segments of work queue entries |
//! | [`numbers`] | object numbers |
//!
//! The crate re-exports every item at its root; the modules only group the documentation.

#![forbid(unsafe_code)]

pub mod access_reg;
pub mod caps;
pub mod caps_flow;
pub mod caps_pages;
pub mod cmd_queue;
mod command;
pub mod congestion;
pub mod cq;
pub mod device_memory;
pub mod eq;
pub mod eswitch;
pub mod eth_queue;
pub mod flow;
pub mod flow_match;
pub mod function;
pub mod mkey;
pub mod numbers;
pub mod opcode;
pub mod port_counters;
pub mod qp;
pub mod registers;
pub mod resources;
pub mod smp;
pub mod srq;
pub mod status;
pub mod syndrome;
#[cfg(test)]
mod tests;
pub mod tir;
pub mod traffic_class;
pub mod umem;
pub mod vport;
pub mod wqe;

pub use access_reg::*;
pub use caps::*;
pub use caps_flow::*;
pub use caps_pages::*;
pub use cmd_queue::*;
pub use congestion::*;
pub use cq::*;
pub use device_memory::*;
pub use eq::*;
pub use eswitch::*;
pub use eth_queue::*;
pub use flow::*;
pub use flow_match::*;
pub use function::*;
pub use layout::{Field, Layout, Shape};
pub use mkey::*;
pub use numbers::*;
pub use opcode::*;
pub use port_counters::*;
pub use qp::*;
pub use registers::*;
pub use resources::*;
pub use smp::*;
pub use srq::*;
pub use status::*;
pub use syndrome::*;
pub use tir::*;
pub use traffic_class::*;
pub use umem::*;
pub use vport::*;
pub use wqe::*;
