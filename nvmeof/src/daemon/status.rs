//! The status that the control socket reports.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::schema::Histogram;
use serde::Serialize;
use uuid::Uuid;

use super::state::Daemon;
use super::write::access_name;
use crate::model::{Controller, Limit, Namespace, Subsystem};
use crate::serve::{KINDS, Took};

/// Status of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Status of each port.
    pub ports: Vec<PortStatus>,
    /// Status of each subsystem.
    pub subsystems: Vec<SubsystemStatus>,
    /// Status of each controller. Each association of a host with a subsystem or with discovery has one controller.
    pub controllers: Vec<ControllerStatus>,
}

/// Status of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortStatus {
    /// Number of the port.
    pub id: u16,
    /// Name of the adapter, with its options.
    pub adapter: String,
    /// Addresses at which hosts find the port.
    pub addresses: Vec<SocketAddr>,
    /// Status of each worker of the port.
    pub workers: Vec<WorkerStatus>,
    /// Access of the port to groups of namespaces; a group that is missing is optimized.
    pub access: BTreeMap<u32, &'static str>,
    /// Maximum length of the data of an I/O, and length of each buffer of a worker, in bytes.
    pub max_transfer: u32,
}

/// Status of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// Number of the worker.
    pub worker: u32,
    /// True if the worker's thread runs.
    pub serves: bool,
    /// Number of commands that were answered.
    pub commands: u64,
    /// Number of commands that were refused.
    pub refused: u64,
    /// Number of connections that were accepted.
    pub connections: u64,
    /// Number of times that the worker slept.
    pub sleeps: u64,
    /// Number of commands that the worker has now.
    pub queue_depth: u64,
    /// Number of queue entries that all hosts together may have.
    pub queue_size: u32,
    /// Latencies of commands of I/O queues, by kind: `read`, `write`, `other`. One command in 64 is measured.
    pub latency: BTreeMap<&'static str, Histogram>,
    /// Number of queue entries of `queue_size` that are not in use.
    pub entries_left: u32,
    /// Number of queues of hosts, without guests.
    pub host_queues: u32,
    /// Number of guests: connections without Connect, connections for discovery, and connections that have not
    /// authenticated.
    pub guests: u32,
    /// Number of hosts' queues that were refused because too few entries were left or the party had its quota.
    pub refused_hosts: u64,
    /// Number of guests that were rejected.
    pub refused_guests: u64,
    /// Number of guests whose connections were ended in favour of new guests.
    pub displaced_guests: u64,
    /// Number of connections that were ended because they had more commands outstanding than they may.
    pub overdrawn: u64,
}

/// Status of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubsystemStatus {
    /// Name of the subsystem (NQN).
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// True if any host may connect.
    pub any_host: bool,
    /// Maximum number of I/O queues of a host's controller.
    pub queues: u16,
    /// Names of the hosts that may connect.
    pub hosts: Vec<String>,
    /// Limits of hosts, at all namespaces of the subsystem together.
    pub host_limits: Vec<HostLimitStatus>,
    /// Status of each namespace.
    pub namespaces: Vec<NamespaceStatus>,
}

/// Status of the limit of a host at a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLimitStatus {
    /// Name of the host.
    pub host: String,
    /// I/Os per second that the host is limited to; 0 without such a limit.
    pub ios_per_second: u64,
    /// Bytes per second that the host is limited to; 0 without such a limit.
    pub bytes_per_second: u64,
    /// Number of commands that waited because of the limit.
    pub limited: u64,
}

/// Status of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceStatus {
    /// Number of the namespace.
    pub nsid: u32,
    /// Identifier by which hosts recognise the namespace.
    pub uuid: Uuid,
    /// Name of the disk.
    pub disk: String,
    /// Size of the namespace in bytes.
    pub bytes: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// True if writes are refused.
    pub read_only: bool,
    /// Number of the namespace's group.
    pub group: u32,
    /// Names of the hosts that see the namespace; `None` if all hosts of the subsystem see it.
    pub hosts: Option<Vec<String>>,
    /// Number of read commands.
    pub reads: u64,
    /// Number of write commands.
    pub writes: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of bytes written.
    pub written_bytes: u64,
    /// I/Os per second that the namespace is limited to; 0 without such a limit.
    pub ios_per_second: u64,
    /// Bytes per second that the namespace is limited to; 0 without such a limit.
    pub bytes_per_second: u64,
    /// Number of commands that waited because of the limit, since this process serves the namespace.
    pub limited: u64,
}

/// Status of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControllerStatus {
    /// Number of the controller.
    pub controller: u16,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Name of the host.
    pub host: String,
    /// Number of the port by which the host connected.
    pub port: u16,
    /// True if the controller accepts commands.
    pub ready: bool,
    /// Numbers of the connected I/O queues.
    pub queues: Vec<u16>,
    /// Keep-alive time in milliseconds; 0 for none.
    pub keep_alive_ms: u32,
}

impl Daemon {
    /// Returns the current status.
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
                max_transfer: 4096 << port.transfer_shift,
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
        queues: config.queues,
        hosts: of.hosts().map(ToString::to_string).collect(),
        host_limits: host_limits(of),
        namespaces: of.namespaces().map(|one| namespace(&one)).collect(),
    }
}

fn host_limits(of: &Subsystem) -> Vec<HostLimitStatus> {
    let all = of.host_limits();
    let all = all.iter().map(|(host, limiter)| HostLimitStatus {
        host: host.to_string(),
        ios_per_second: limiter.limit().ios_per_second.unwrap_or(0),
        bytes_per_second: limiter.limit().bytes_per_second.unwrap_or(0),
        limited: limiter.waited(),
    });
    all.collect()
}

fn namespace(of: &Namespace) -> NamespaceStatus {
    let (done, limit) = (of.done(), of.limit());
    let rate = |rate: fn(Limit) -> Option<u64>| limit.and_then(rate).unwrap_or(0);
    let hosts = of.hosts();
    let hosts = hosts.map(|hosts| hosts.iter().map(ToString::to_string).collect());
    NamespaceStatus {
        nsid: of.nsid(),
        uuid: of.uuid(),
        disk: of.disk().name(),
        bytes: of.blocks() << of.shift(),
        block_size: 1 << of.shift(),
        read_only: of.is_protected(),
        group: of.group(),
        hosts,
        reads: done.reads,
        writes: done.writes,
        read_bytes: done.read_bytes,
        written_bytes: done.written_bytes,
        ios_per_second: rate(|limit| limit.ios_per_second),
        bytes_per_second: rate(|limit| limit.bytes_per_second),
        limited: done.limited,
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
