//! Tests of the simulated function without a driver: commands, queues and packets, byte by byte.
//!
//! All files are modules of one test program, because each test program is linked with the whole simulator.

mod bench;
mod commands;
mod device_memory;
mod eswitch;
mod eth_data;
mod eth_steering;
mod eth_support;
mod ethernet;
mod flow_counters;
mod infiniband;
mod keys;
mod lifecycle;
mod link;
mod multicast;
mod priorities;
mod rc;
mod rc_counters;
mod rc_datagram;
mod rc_errors;
mod rc_flow;
mod rc_loss;
mod rc_machine;
mod rc_support;
mod recordings;
mod scatter_to_cqe;
mod side;
mod strict;
mod strict_data;
mod strict_noise;
mod subnet;
mod trace_replay;
mod uctx;
mod umem;
mod wire;
mod xrc;
