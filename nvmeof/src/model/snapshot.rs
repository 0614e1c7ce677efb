//! The snapshot of a model ([`Model::park`](super::Model::park)): plain data. This module does not interpret it.
//!
//! Times are lengths in nanoseconds before or after the parking. So no time passes for the model between the parking
//! and the resumption.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::WorkerId;
use super::event::Kind;
use super::reservation::{HostId, Kind as ReservationKind, Notification};
use crate::auth::ExchangeSnapshot;
use crate::nvme::log::Access;

/// A model that was parked: what has happened since its subsystems, namespaces and ports were added, and what is needed
/// to recognise these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSnapshot {
    /// The subsystems, by name.
    pub subsystems: Vec<SubsystemSnapshot>,
    /// The ports, by number.
    pub ports: Vec<PortSnapshot>,
    /// The controllers, by number.
    pub controllers: Vec<ControllerSnapshot>,
    /// The unfinished authentications, by controller and queue.
    pub authentications: Vec<AuthenticationSnapshot>,
    /// Controller number that was assigned last.
    pub last_controller: u16,
    /// Number of changes of the discovery log page.
    pub generation: u64,
    /// Number of the last connection.
    pub connections: u64,
    /// Number of controllers that were ended in favour of new ones.
    pub displaced: u64,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsystemSnapshot {
    /// Its name.
    pub name: String,
    /// Its serial number.
    pub serial: String,
    /// Its model.
    pub model: String,
    /// Its namespaces, by number.
    pub namespaces: Vec<NamespaceSnapshot>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceSnapshot {
    /// Its number.
    pub nsid: u32,
    /// Its identifier.
    pub uuid: [u8; 16],
    /// Its group.
    pub group: u32,
    /// Block size in bytes, as a power of two.
    pub shift: u8,
    /// Number of blocks that hosts know.
    pub blocks: u64,
    /// True if the disk is open for reading only.
    pub is_read_only: bool,
    /// True if writes are refused.
    pub is_protected: bool,
    /// Its reservation and registrants.
    pub reservations: ReservationsSnapshot,
    /// Number of read commands.
    pub reads: u64,
    /// Number of write commands.
    pub writes: u64,
    /// Number of bytes read.
    pub read_bytes: u64,
    /// Number of bytes written.
    pub written_bytes: u64,
}

/// The reservation and the registrants of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationsSnapshot {
    /// Number of changes of registrations.
    pub generation: u32,
    /// The registrants, by host identifier.
    pub registrants: Vec<RegistrantSnapshot>,
    /// The reservation: the host that acquired it, and its type.
    pub held: Option<(HostId, ReservationKind)>,
}

/// A registrant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrantSnapshot {
    /// Identifier of the host.
    pub host_id: HostId,
    /// Its key.
    pub key: u64,
    /// Name of the host.
    pub name: String,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSnapshot {
    /// Its number.
    pub id: u16,
    /// Access to each group, from group 1 on.
    pub access: Vec<Access>,
    /// Number of changes of the access.
    pub changes: u64,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerSnapshot {
    /// Its number.
    pub id: u16,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Name of the host.
    pub host: String,
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// Number of the port by which the host connected.
    pub port: u16,
    /// Number of the worker that has the admin queue.
    pub worker: WorkerId,
    /// Address of the host.
    pub source: IpAddr,
    /// True if the controller is counted for the host's name, false if for its address.
    pub is_of_name: bool,
    /// Time since the Connect.
    pub age_ns: u64,
    /// Time since the last sign that the host is alive.
    pub silent_ns: u64,
    /// Value of the property CC.
    pub configuration: u32,
    /// Value of the property CSTS.
    pub status: u32,
    /// Keep-alive time in milliseconds; 0 for none.
    pub keep_alive_ms: u32,
    /// The events and event requests.
    pub events: EventsSnapshot,
    /// Features that the host has set: identifier, namespace or 0, value.
    pub features: Vec<(u8, u32, u32)>,
    /// Number of the connection of the admin queue.
    pub connection: u64,
    /// I/O queues: number of the queue, number of its connection.
    pub queues: Vec<(u16, u64)>,
    /// Number of I/O queues that Set Features grants.
    pub queues_most: u16,
    /// Namespaces that have changed since the host last read the log page.
    pub changed: Vec<u32>,
    /// Notices about reservations, oldest first, each with the number of the namespace.
    pub reservation_notices: Vec<(u32, Notification)>,
    /// The host's masks of notices about reservations, by namespace.
    pub reservation_masks: Vec<(u32, u32)>,
    /// Number of notices about reservations that the host has read.
    pub reservation_count: u64,
    /// The error log, newest entry first.
    pub errors: Vec<ErrorSnapshot>,
    /// Number of errors since the Connect.
    pub error_count: u64,
}

/// The events and event requests of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsSnapshot {
    /// Events that the host has enabled.
    pub wanted: u32,
    /// Number of outstanding event requests.
    pub requests: u8,
    /// Events that wait, oldest first.
    pub waiting: Vec<Kind>,
    /// Kinds that were reported and whose log page was not read since.
    pub reported: Vec<Kind>,
}

/// An entry of the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorSnapshot {
    /// Number of the queue.
    pub queue: u16,
    /// Identifier of the failed command.
    pub cid: u16,
    /// Status Field.
    pub status: u16,
    /// First block of the command, or 0.
    pub block: u64,
    /// Namespace of the command, or 0.
    pub nsid: u32,
}

/// An unfinished authentication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthenticationSnapshot {
    /// Number of the controller.
    pub controller: u16,
    /// Number of the queue.
    pub queue: u16,
    /// Address of the host.
    pub source: IpAddr,
    /// Time until the connection ends.
    pub left_ns: u64,
    /// True if the worker was notified that the connection ends.
    pub is_over: bool,
    /// The exchange; `None` if the host has authenticated when no controller was left.
    pub exchange: Option<ExchangeSnapshot>,
}

impl ModelSnapshot {
    /// Returns the numbers of the workers that have admin queues. The caller checks that it has these workers.
    #[must_use]
    pub fn workers(&self) -> BTreeSet<WorkerId> {
        self.controllers.iter().map(|one| one.worker).collect()
    }
}
