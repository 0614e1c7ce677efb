//! Tests of DAT's calls over the simulated device, by object and by clause. Some of the tests can also run on real
//! functions of this machine.
//!
//! All files are one program, because a program for each file would link the whole simulator each time. Tests that need
//! their own process are separate programs beside this folder: `capi` (one table of handles, checked by
//! ThreadSanitizer), `capi_fork` (it forks), `hotpath` (it counts allocations, and disables system calls) and `log` (it
//! subscribes to `tracing`, whose caches belong to the process).

mod adapter;
mod attended;
mod capi_layout;
mod captured;
mod closing;
mod cno;
mod connection;
mod dead_device;
mod descriptors;
mod disconnect;
mod dup_connect;
mod ep_calls;
mod ep_holding;
mod ep_modify;
mod ep_states;
mod evd;
mod evd_calls;
mod evd_overflow;
mod evd_streams;
mod ext;
mod failover;
mod flags;
mod flooded;
mod futures;
mod in_threads;
mod inline;
mod instances;
mod iommu;
mod keep_alive;
mod killed;
mod lent;
mod limits;
mod lmr;
mod lossy;
mod many_at_once;
mod memory_ends;
mod messages;
mod named;
mod network;
mod objects;
mod private_data;
mod rdma_calls;
mod rdma_read;
mod rdma_refused;
mod rdma_write;
mod read_depth;
mod recorder;
mod recv;
mod recv_states;
mod refused;
mod registry;
mod replayed;
mod restarted;
mod rmr;
mod scale;
mod send;
mod service_points;
mod slots;
mod snapshot_form;
mod srq;
mod srq_calls;
mod srq_connections;
mod stats;
mod statuses;
mod support;
mod sync;
mod transport;
mod ui;
mod wakeups;
