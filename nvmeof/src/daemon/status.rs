//! What is there now, as it is told.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::schema::Histogram;
use serde::Serialize;
use uuid::Uuid;

use super::state::Daemon;
use super::write::access_name;
use crate::model::{Controller, Namespace, Subsystem};
use crate::serve::{KINDS, Took};

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Ports.
    pub ports: Vec<PortStatus>,
    /// Subsystems.
    pub subsystems: Vec<SubsystemStatus>,
    /// Controllers: one for each host and subsystem that it has connected to, and for each that discovers.
    pub controllers: Vec<ControllerStatus>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortStatus {
    /// Its number.
    pub id: u16,
    /// Its adapter.
    pub adapter: String,
    /// Where hosts find it.
    pub addresses: Vec<SocketAddr>,
    /// Who serves it.
    pub workers: Vec<WorkerStatus>,
    /// How it reaches groups, where that is not optimized.
    pub access: BTreeMap<u32, &'static str>,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// As the target counts it.
    pub worker: u32,
    /// Its thread is there.
    pub serves: bool,
    /// Commands that were answered.
    pub commands: u64,
    /// Of them, those that were refused.
    pub refused: u64,
    /// Connections that were taken.
    pub connections: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Commands that are at it now.
    pub queue_depth: u64,
    /// Entries that the queues of all hosts can have together.
    pub queue_size: u32,
    /// How long commands of I/O queues took, of which one of 64 is timed: `read`, `write`, `other`.
    pub latency: BTreeMap<&'static str, Histogram>,
    /// Entries of hosts' queues that are left.
    pub entries_left: u32,
    /// Queues of hosts.
    pub host_queues: u32,
    /// Connections without Connect, of discovery, and not authenticated.
    pub guests: u32,
    /// Queues of hosts that were refused for want of entries.
    pub refused_hosts: u64,
    /// Guests that were rejected.
    pub refused_guests: u64,
    /// Guests that ended for newcomers.
    pub displaced_guests: u64,
    /// Connections that ended since they held more than they may.
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
    /// By which hosts know it.
    pub uuid: Uuid,
    /// What its blocks lie on.
    pub disk: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Nothing may be written.
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
    /// Of which subsystem.
    pub subsystem: String,
    /// Whose.
    pub host: String,
    /// By which port it was reached.
    pub port: u16,
    /// It takes commands.
    pub ready: bool,
    /// I/O queues.
    pub queues: Vec<u16>,
    /// Keep-alive time; 0 is none.
    pub keep_alive_ms: u32,
}

impl Daemon {
    /// What is there now.
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
