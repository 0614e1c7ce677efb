//! The status that the control socket reports.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::schema::Histogram;
use serde::Serialize;
use uuid::Uuid;

use super::state::Daemon;
use super::write::access_name;
use crate::model::{Controller, Namespace, Subsystem};
use crate::serve::{KINDS, Took};

/// The status of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Ports.
    pub ports: Vec<PortStatus>,
    /// Subsystems.
    pub subsystems: Vec<SubsystemStatus>,
    /// Controllers: one for each host at each subsystem, and one for each host that discovers.
    pub controllers: Vec<ControllerStatus>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortStatus {
    /// Its number.
    pub id: u16,
    /// Its adapter.
    pub adapter: String,
    /// The addresses at which hosts find it.
    pub addresses: Vec<SocketAddr>,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// Its access to groups that is not optimized.
    pub access: BTreeMap<u32, &'static str>,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u32,
    /// Its thread runs.
    pub serves: bool,
    /// Number of commands that were answered.
    pub commands: u64,
    /// Number of them that were refused.
    pub refused: u64,
    /// Number of connections that were accepted.
    pub connections: u64,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Number of commands that it has now.
    pub queue_depth: u64,
    /// Entries that the queues of all hosts may have together.
    pub queue_size: u32,
    /// Latencies of commands of I/O queues, of which one in 64 is timed: `read`, `write`, `other`.
    pub latency: BTreeMap<&'static str, Histogram>,
    /// Entries that are left of them.
    pub entries_left: u32,
    /// Number of queues of hosts.
    pub host_queues: u32,
    /// Number of guests: connections without Connect, of discovery, and not authenticated.
    pub guests: u32,
    /// Number of queues of hosts that were refused because no entries were left.
    pub refused_hosts: u64,
    /// Number of guests that were rejected.
    pub refused_guests: u64,
    /// Number of guests that ended to make room for others.
    pub displaced_guests: u64,
    /// Number of connections that ended because they held more commands than they may.
    pub overdrawn: u64,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubsystemStatus {
    /// Its name.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Any host may connect.
    pub any_host: bool,
    /// Hosts that may connect.
    pub hosts: Vec<String>,
    /// Namespaces.
    pub namespaces: Vec<NamespaceStatus>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceStatus {
    /// Its number.
    pub nsid: u32,
    /// The identifier by which hosts recognise it.
    pub uuid: Uuid,
    /// The name of its disk.
    pub disk: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Its group.
    pub group: u32,
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControllerStatus {
    /// Its number.
    pub controller: u16,
    /// Its subsystem.
    pub subsystem: String,
    /// Its host.
    pub host: String,
    /// The port that it was connected by.
    pub port: u16,
    /// It takes commands.
    pub ready: bool,
    /// The connected I/O queues.
    pub queues: Vec<u16>,
    /// Keep-alive time; 0 is none.
    pub keep_alive_ms: u32,
}

impl Daemon {
    /// The current status.
    #[must_use]
    pub fn status(&self) -> Status {
        let (done, rooms) = (self.target().done(), self.target().rooms());
        let took = self.target().took();
        let ports = self.settings().ports.iter().map(|(id, port)| {
            let workers = self.workers(*id).into_iter().map(|(worker, serves)| {
                let done = done.get(&worker).copied().unwrap_or_default();
                let room = rooms.get(&worker).copied().unwrap_or_default();
                WorkerStatus {
                    worker,
                    serves,
                    commands: done.commands,
                    refused: done.refused,
                    connections: done.connections,
                    sleeps: done.sleeps,
                    queue_depth: done.here,
                    queue_size: port.ios,
                    latency: took.get(&worker).map(latency).unwrap_or_default(),
                    entries_left: room.entries_left,
                    host_queues: room.host_queues,
                    guests: room.guests,
                    refused_hosts: room.refused_hosts,
                    refused_guests: room.refused_guests,
                    displaced_guests: room.displaced_guests,
                    overdrawn: room.overdrawn,
                }
            });
            let access = port.access.iter();
            PortStatus {
                id: *id,
                adapter: port.adapter.clone(),
                addresses: self.addresses(*id).to_vec(),
                workers: workers.collect(),
                access: access
                    .map(|(group, state)| (*group, access_name(*state)))
                    .collect(),
            }
        });
        let ports = ports.collect();
        self.target().with(|model| Status {
            ports,
            subsystems: model.subsystems().map(subsystem).collect(),
            controllers: model.controllers().map(controller).collect(),
        })
    }
}

fn latency(took: &[Took; KINDS.len()]) -> BTreeMap<&'static str, Histogram> {
    let kinds = KINDS.into_iter().zip(took);
    let kinds = kinds.map(|(kind, took)| {
        let histogram = Histogram {
            count: took.count,
            sum: took.nanoseconds,
            buckets: took.buckets().filter(|(_, count)| *count != 0).collect(),
        };
        (kind, histogram)
    });
    kinds.collect()
}

fn subsystem(of: &Subsystem) -> SubsystemStatus {
    let config = of.config();
    SubsystemStatus {
        nqn: of.name().to_string(),
        serial: config.serial.clone(),
        model: config.model.clone(),
        any_host: config.any_host,
        hosts: of.hosts().map(ToString::to_string).collect(),
        namespaces: of.namespaces().map(|one| namespace(&one)).collect(),
    }
}

fn namespace(of: &Namespace) -> NamespaceStatus {
    let done = of.done();
    NamespaceStatus {
        nsid: of.nsid(),
        uuid: of.uuid(),
        disk: of.disk().name(),
        bytes: of.blocks() << of.shift(),
        block_size: 1 << of.shift(),
        read_only: of.is_protected(),
        group: of.group(),
        reads: done.reads,
        writes: done.writes,
        read_bytes: done.read_bytes,
        written_bytes: done.written_bytes,
    }
}

fn controller(of: &Controller) -> ControllerStatus {
    ControllerStatus {
        controller: of.id(),
        subsystem: of.subsystem().to_string(),
        host: of.host().to_string(),
        port: of.port(),
        ready: of.is_ready(),
        queues: of.queues().collect(),
        keep_alive_ms: of.keep_alive_ms(),
    }
}
