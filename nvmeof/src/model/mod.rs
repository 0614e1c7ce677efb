//! The meaning of commands: subsystems, namespaces, hosts, controllers.
//!
//! The model has no I/O, no clock and no thread: it gets commands and times, and returns answers and notices. A
//! [`Model`] is behind one lock. Commands that read and write blocks do not take that lock: the namespaces and the
//! access of a port are in [`NamespaceList`] and [`PortAccess`], which the model changes and the workers read.
//!
//! ```text
//!   Model ---- subsystems: by name      ---- namespaces, in a list; hosts that may connect
//!         ---- ports: by number         ---- addresses, and access to each group of namespaces (ANA)
//!         ---- controllers: by number   ---- one for each connected admin queue: properties, features, events, logs
//! ```

mod access;
mod admin;
mod authenticate;
mod connect;
mod controller;
mod discovery;
mod event;
mod feature;
mod identify;
mod kept;
mod limit;
mod log;
mod namespace;
mod parking;
mod party;
mod property;
mod quota;
mod refusal;
mod reservation;
mod reserve;
mod snapshot;
mod subsystem;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use access::{GROUPS, PortAccess};
pub use admin::NOT_ABORTED;
pub use authenticate::{AuthStep, PATIENCE as AUTHENTICATION_PATIENCE};
use connect::HIGHEST_CONTROLLER;
pub use connect::{Connected, NotConnected, Place};
pub use controller::Controller;
pub(crate) use identify::COPY_BLOCKS;
pub use limit::Limit;
pub(crate) use limit::{Cost, Limiter, Limiters};
pub use namespace::{Namespace, NamespaceConfig, Tally};
pub use party::{Party, is_fair};
pub(crate) use property::{CAPABILITIES, READY_WITHIN, VERSION};
pub use refusal::{ModelParkError, ModelResumeError};
pub use reservation::{HostId, Reservations};
pub use reserve::bytes as reservation_bytes;
pub use snapshot::ModelSnapshot;
pub use subsystem::{NAMESPACES, NamespaceList, Subsystem, SubsystemConfig};

use crate::nvme::{Nqn, Status};

/// A time of the caller's clock, as the duration since the clock's start.
pub type Moment = Duration;

/// Default of MDTS: the maximum length of the data of an I/O is 4 KiB shifted left by this number, which is 128 KiB.
pub const MAX_TRANSFER_SHIFT: u8 = 5;
/// Default of the maximum length of the data of an I/O, in bytes.
pub const MAX_TRANSFER: u32 = 4096 << MAX_TRANSFER_SHIFT;
/// Highest MDTS that a port can have: 1 MiB.
pub const LARGEST_TRANSFER_SHIFT: u8 = 8;
/// Maximum length of the data in a command capsule, in bytes.
pub const IN_CAPSULE: u32 = 4096;
/// Maximum number of entries of an I/O queue.
pub const QUEUE_ENTRIES: u16 = 128;
/// Maximum number of entries of an admin queue.
pub const ADMIN_ENTRIES: u16 = 32;
/// Maximum number of I/O queues of a controller.
pub const QUEUES: u16 = 128;

/// Maximum number of Aborts of a controller at a time (ACL, plus one).
pub const ABORTS: u8 = 4;

/// Number of a worker, which the caller assigns.
pub type WorkerId = u32;

/// An answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status of the completion.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// Data for the host.
    pub data: Vec<u8>,
}

impl Answer {
    /// Returns the answer of a command that succeeded without a result.
    pub(crate) const fn done() -> Self {
        Self::result(0)
    }

    pub(crate) const fn result(result: u64) -> Self {
        Self {
            status: Status::SUCCESS,
            result,
            data: Vec::new(),
        }
    }

    pub(crate) const fn data(data: Vec<u8>) -> Self {
        Self {
            status: Status::SUCCESS,
            result: 0,
            data,
        }
    }

    pub(crate) const fn refused(status: Status) -> Self {
        Self {
            status,
            result: 0,
            data: Vec::new(),
        }
    }
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        Self::refused(status)
    }
}

/// Outcome of a command that the model carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command is answered.
    Answered(Answer),
    /// The command is an event request, which waits for an event ([`Model::next_event`]).
    Waits,
    /// The command is a Preempt and Abort that has succeeded. It is answered when no disk has a command of the
    /// namespace any more that one of the preempted hosts, which have these identifiers, has sent before.
    Preempted(Vec<HostId>),
    /// The command is an Abort of a command of the same controller. Bit 0 of its result is clear if the command was
    /// found and had not begun.
    Abort {
        /// Number of the queue of the command to be aborted.
        queue: u16,
        /// Identifier of the command.
        cid: u16,
    },
}

/// A message of the model to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// To the worker that has the controller's admin queue: an event request of the controller can be answered.
    Event {
        /// Number of the worker.
        worker: WorkerId,
        /// Number of the controller.
        controller: u16,
    },
    /// To all workers: the controller was disabled or shut down. Its I/O queues end; event requests are answered.
    Reset {
        /// Number of the controller.
        controller: u16,
        /// Number of the last connection before the reset. Connections with higher numbers are queues of the controller
        /// after it was enabled again.
        last: u64,
    },
    /// To all workers: the controller has ended, so its connections end.
    Over {
        /// Number of the controller.
        controller: u16,
    },
    /// To all workers: the host of this I/O queue has not authenticated, or not in time, so the connection ends.
    Queue {
        /// Number of the connection ([`Connected::connection`]).
        connection: u64,
    },
}

/// A port by which hosts connect.
#[derive(Clone, Debug)]
pub struct Port {
    /// Number of the port.
    pub id: u16,
    /// Addresses at which the port listens.
    pub addresses: Vec<SocketAddr>,
    /// Access of the port to groups of namespaces.
    pub access: Arc<PortAccess>,
    /// MDTS of controllers at the port: the maximum length of the data of an I/O is 4 KiB shifted left by this number.
    pub transfer_shift: u8,
}

/// The state of the target: subsystems, ports, controllers and authentications.
#[derive(Debug, Default)]
pub struct Model {
    subsystems: BTreeMap<Nqn, Subsystem>,
    ports: BTreeMap<u16, Port>,
    referrals: Vec<discovery::Referral>,
    controllers: BTreeMap<u16, Controller>,
    /// Controller number that was assigned last.
    last_controller: u16,
    /// Number of changes of the discovery log page.
    generation: u64,
    notices: Vec<Notice>,
    /// Removed namespaces whose disks are still locked ([`Model::take_removed`]).
    removed: Vec<Arc<Namespace>>,
    /// Keys of hosts that have to authenticate.
    keys: BTreeMap<Nqn, crate::auth::Keys>,
    exchanges: authenticate::Exchanges,
    /// Number of the last connection. Connections are numbered at their Connect.
    connections: u64,
    /// Number of controllers that were ended in favour of new ones.
    displaced: u64,
    random: authenticate::Random,
    /// True if the name of a host must have the form of a qualified name (NQN).
    is_strict: bool,
    /// Budgets for log lines that any peer can cause.
    lines: crate::lines::Lines,
    /// Budgets for log lines about hosts that have authenticated.
    host_lines: crate::lines::Lines,
    /// Latest time that the caller has passed.
    latest: Moment,
}

/// Reason why a change of the configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The object exists already.
    #[error("there is a {kind} {name} already")]
    Exists {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
    },
    /// The object does not exist.
    #[error("there is no {kind} {name}")]
    Unknown {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
    },
    /// A number is out of range.
    #[error("{kind} {number}: there are 1 to {most}")]
    Range {
        /// Kind of the object.
        kind: &'static str,
        /// The number that was given.
        number: u32,
        /// Highest number that is allowed.
        most: u32,
    },
    /// A limit has a number out of its range.
    #[error(
        "a limit has {} to {} I/Os or {} to {1} bytes per second, and a burst of at most {} s",
        Limit::LEAST_IOS, Limit::MOST, Limit::LEAST_BYTES, Limit::LONGEST_BURST.as_secs()
    )]
    Limit,
    /// Another namespace has the same disk, and both lock it.
    #[error(
        "{disk} is the disk of namespace {nsid} of {subsystem}; `lock = false` of both lets them share it"
    )]
    SameDisk {
        /// Name of the disk.
        disk: String,
        /// Subsystem of the other namespace.
        subsystem: String,
        /// Number of the other namespace.
        nsid: u32,
    },
    /// A disk cannot be used.
    #[error("namespace {nsid} of {subsystem}: {error}")]
    Disk {
        /// Subsystem of the namespace.
        subsystem: String,
        /// Number of the namespace.
        nsid: u32,
        /// Reason why the disk cannot be used.
        error: String,
    },
    /// Another namespace has the same identifier.
    #[error("the identifier {uuid} is that of namespace {nsid} of {subsystem}")]
    Identifier {
        /// The identifier.
        uuid: uuid::Uuid,
        /// Subsystem of the other namespace.
        subsystem: String,
        /// Number of the other namespace.
        nsid: u32,
    },
}

/// Checks the maximum number of I/O queues of a subsystem's controllers.
fn check_queues(queues: u16) -> Result<(), ModelError> {
    if (1..=QUEUES).contains(&queues) {
        return Ok(());
    }
    Err(ModelError::Range {
        kind: "number of queues",
        number: queues.into(),
        most: QUEUES.into(),
    })
}

impl ModelError {
    fn unknown(kind: &'static str, name: impl ToString) -> Self {
        Self::Unknown {
            kind,
            name: name.to_string(),
        }
    }
}

impl Model {
    /// Returns a model without ports and subsystems.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the name of a host that connects from now on must have the form of a qualified name (NQN).
    pub const fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// Returns the messages to workers since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        core::mem::take(&mut self.notices)
    }

    /// Returns the namespaces that were removed since the last call. The caller releases the locks of their disks
    /// ([`Disk::give_up`](crate::disk::Disk::give_up)) without the lock of the model, because a file server may take
    /// long, and workers would wait for the model.
    #[must_use = "the disks of these namespaces are locked"]
    pub fn take_removed(&mut self) -> Vec<Arc<Namespace>> {
        core::mem::take(&mut self.removed)
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// The name is in use, or the number of queues is out of range.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<(), ModelError> {
        if self.subsystems.contains_key(&config.name) {
            return Err(ModelError::Exists {
                kind: "subsystem",
                name: config.name.to_string(),
            });
        }
        check_queues(config.queues)?;
        let subsystem = Subsystem::new(config);
        self.subsystems.insert(subsystem.name().clone(), subsystem);
        self.discovery_changed();
        Ok(())
    }

    /// Removes a subsystem, and ends its controllers. Its disks stay locked until the caller gives them up
    /// ([`Self::take_removed`]); [`Target::with`](crate::serve::Target::with) does.
    ///
    /// # Errors
    /// There is no such subsystem.
    pub fn remove_subsystem(&mut self, name: &Nqn) -> Result<(), ModelError> {
        let removed = self.subsystems.remove(name);
        let removed = removed.ok_or_else(|| ModelError::unknown("subsystem", name))?;
        self.removed.extend(removed.namespaces());
        self.end_controllers(|one| one.subsystem() == name);
        self.discovery_changed();
        Ok(())
    }

    /// Adds a namespace to a subsystem, and notifies its hosts. Returns the namespace's number.
    ///
    /// # Errors
    /// There is no such subsystem; the number is in use; the number or the group is out of range; another namespace has
    /// the same identifier or the same disk.
    pub fn add_namespace(
        &mut self,
        subsystem: &Nqn,
        config: NamespaceConfig,
    ) -> Result<u32, ModelError> {
        for other in self.subsystems.values() {
            if let Some(namespace) = other.by_uuid(config.uuid) {
                return Err(ModelError::Identifier {
                    uuid: config.uuid,
                    subsystem: other.name().to_string(),
                    nsid: namespace.nsid(),
                });
            }
            let mut there = other.namespaces();
            if let Some(namespace) = there.find(|one| one.disk().excludes(&config.disk)) {
                return Err(ModelError::SameDisk {
                    disk: config.disk.name(),
                    subsystem: other.name().to_string(),
                    nsid: namespace.nsid(),
                });
            }
        }
        let nsid = self.subsystem_mut(subsystem)?.add(config)?;
        let added = self.namespace(subsystem, nsid)?;
        self.namespace_changed(subsystem, &added);
        Ok(nsid)
    }

    /// Removes a namespace, and notifies its hosts. Commands that are at the disk already are not interrupted. The disk
    /// stays locked until the caller gives it up ([`Self::take_removed`]); [`Target::with`](crate::serve::Target::with)
    /// does.
    ///
    /// # Errors
    /// There is no such subsystem or namespace.
    pub fn remove_namespace(&mut self, subsystem: &Nqn, nsid: u32) -> Result<(), ModelError> {
        let removed = self.subsystem_mut(subsystem)?.remove(nsid)?;
        self.removed.push(Arc::clone(&removed));
        self.namespace_changed(subsystem, &removed);
        Ok(())
    }

    /// Allows a host to connect to a subsystem that is not open to any host.
    ///
    /// # Errors
    /// There is no such subsystem.
    pub fn allow_host(&mut self, subsystem: &Nqn, host: Nqn) -> Result<(), ModelError> {
        self.subsystem_mut(subsystem)?.allow(host);
        self.discovery_changed();
        Ok(())
    }

    /// Removes a host from those that may connect to a subsystem, and ends its controllers. If the subsystem is open to
    /// any host, the controllers stay.
    ///
    /// # Errors
    /// There is no such subsystem, or the host was not allowed.
    pub fn forbid_host(&mut self, subsystem: &Nqn, host: &Nqn) -> Result<(), ModelError> {
        let subsystem = self.subsystem_mut(subsystem)?;
        if !subsystem.forbid(host) {
            return Err(ModelError::unknown("host", host));
        }
        let name = subsystem.name().clone();
        let still = subsystem.allows(host);
        self.end_controllers(|one| *one.subsystem() == name && one.host() == host && !still);
        self.discovery_changed();
        Ok(())
    }

    /// Sets whether any host may connect to a subsystem. Hosts that may not connect any more are disconnected.
    ///
    /// # Errors
    /// There is no such subsystem.
    pub fn set_any_host(&mut self, subsystem: &Nqn, any_host: bool) -> Result<(), ModelError> {
        self.subsystem_mut(subsystem)?.set_any_host(any_host);
        let of = self.subsystems.get(subsystem);
        let may_stay = |host: &Nqn| of.is_some_and(|of| of.allows(host));
        let is_over = |one: &&Controller| one.subsystem() == subsystem && !may_stay(one.host());
        let over = self.controllers.values().filter(is_over);
        let over: BTreeSet<u16> = over.map(Controller::id).collect();
        self.end_controllers(|one| over.contains(&one.id()));
        self.discovery_changed();
        Ok(())
    }

    /// Adds a port.
    ///
    /// # Errors
    /// The number is in use.
    pub fn add_port(&mut self, id: u16, addresses: Vec<SocketAddr>) -> Result<(), ModelError> {
        if self.ports.contains_key(&id) {
            return Err(ModelError::Exists {
                kind: "port",
                name: id.to_string(),
            });
        }
        let access = Arc::default();
        self.ports.insert(
            id,
            Port {
                id,
                addresses,
                access,
                transfer_shift: MAX_TRANSFER_SHIFT,
            },
        );
        self.discovery_changed();
        Ok(())
    }

    /// Sets MDTS of the controllers at a port: the maximum length of the data of an I/O is 4 KiB shifted left by this
    /// number, 5 to 8. The workers of the port have buffers of that length
    /// ([`WorkerConfig::transfer_shift`](crate::serve::WorkerConfig::transfer_shift)), and hosts read it when they
    /// connect.
    ///
    /// # Errors
    /// There is no such port, or the number is out of range.
    pub fn set_transfer_shift(&mut self, id: u16, shift: u8) -> Result<(), ModelError> {
        if !(MAX_TRANSFER_SHIFT..=LARGEST_TRANSFER_SHIFT).contains(&shift) {
            return Err(ModelError::Range {
                kind: "MDTS",
                number: shift.into(),
                most: LARGEST_TRANSFER_SHIFT.into(),
            });
        }
        let port = self.ports.get_mut(&id);
        port.ok_or_else(|| ModelError::unknown("port", id))?
            .transfer_shift = shift;
        Ok(())
    }

    /// Sets the addresses at which a port listens.
    ///
    /// # Errors
    /// There is no such port.
    pub fn move_port(&mut self, id: u16, addresses: Vec<SocketAddr>) -> Result<(), ModelError> {
        let port = self.ports.get_mut(&id);
        port.ok_or_else(|| ModelError::unknown("port", id))?
            .addresses = addresses;
        self.discovery_changed();
        Ok(())
    }

    /// Removes a port, and ends the controllers that were connected by it.
    ///
    /// # Errors
    /// There is no such port.
    pub fn remove_port(&mut self, id: u16) -> Result<(), ModelError> {
        let removed = self.ports.remove(&id);
        removed.ok_or_else(|| ModelError::unknown("port", id))?;
        self.end_controllers(|one| one.port() == id);
        self.discovery_changed();
        Ok(())
    }

    /// Returns the ports.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.values()
    }

    /// Returns the subsystems.
    pub fn subsystems(&self) -> impl Iterator<Item = &Subsystem> {
        self.subsystems.values()
    }

    /// Returns the controllers.
    pub fn controllers(&self) -> impl Iterator<Item = &Controller> {
        self.controllers.values()
    }

    /// Returns the controller with this number.
    #[must_use]
    pub fn controller(&self, id: u16) -> Option<&Controller> {
        self.controllers.get(&id)
    }

    /// Returns a namespace of a subsystem.
    ///
    /// # Errors
    /// There is no such subsystem, or no such namespace.
    pub fn namespace(&self, subsystem: &Nqn, nsid: u32) -> Result<Arc<Namespace>, ModelError> {
        let of = self.subsystems.get(subsystem);
        let of = of.ok_or_else(|| ModelError::unknown("subsystem", subsystem))?;
        let namespace = of.namespace(nsid);
        namespace.ok_or_else(|| ModelError::unknown("namespace", nsid))
    }

    /// Limits the I/Os and bytes per second of a namespace; `None` ends the limit.
    ///
    /// # Errors
    /// There is no such namespace, or a number of the limit is out of its range.
    pub fn set_limit(
        &self,
        subsystem: &Nqn,
        nsid: u32,
        limit: Option<Limit>,
    ) -> Result<(), ModelError> {
        let namespace = self.namespace(subsystem, nsid)?;
        if limit.is_some_and(|limit| !limit.is_valid()) {
            return Err(ModelError::Limit);
        }
        namespace.set_limit(limit);
        Ok(())
    }

    /// Limits the I/Os and bytes per second of a host of a subsystem, at all its namespaces together; `None` ends the
    /// limit. The host is one of those that may connect by name.
    ///
    /// # Errors
    /// There is no such subsystem, the host is not listed, or a number of the limit is out of its range.
    pub fn limit_host(
        &self,
        subsystem: &Nqn,
        host: &Nqn,
        limit: Option<Limit>,
    ) -> Result<(), ModelError> {
        let of = self.subsystems.get(subsystem);
        let of = of.ok_or_else(|| ModelError::unknown("subsystem", subsystem))?;
        if !of.hosts().any(|listed| listed == host) {
            return Err(ModelError::unknown("host", host));
        }
        if limit.is_some_and(|limit| !limit.is_valid()) {
            return Err(ModelError::Limit);
        }
        of.limit_host(host, limit);
        Ok(())
    }

    /// Sets the hosts that see a namespace; `None` for all hosts of its subsystem. Each connected host for which the
    /// namespace appears or vanishes gets an event, and a host that does not see it any more is refused from now on.
    ///
    /// # Errors
    /// There is no such subsystem or namespace.
    pub fn set_hosts(
        &mut self,
        subsystem: &Nqn,
        nsid: u32,
        hosts: Option<BTreeSet<Nqn>>,
    ) -> Result<(), ModelError> {
        let namespace = self.namespace(subsystem, nsid)?;
        let before = namespace.set_hosts(hosts);
        let saw = |host: &Nqn| before.as_ref().is_none_or(|hosts| hosts.contains(host));
        self.changed_for(subsystem, nsid, |host| {
            saw(host) != namespace.is_visible_to(host)
        });
        Ok(())
    }

    /// Sets the maximum number of I/O queues of the controllers of a subsystem, and ends its controllers: their hosts
    /// connect again, and are granted the new number. Does nothing if that is the number.
    ///
    /// # Errors
    /// There is no such subsystem, or the number is out of range.
    pub fn set_queues(&mut self, subsystem: &Nqn, queues: u16) -> Result<(), ModelError> {
        check_queues(queues)?;
        let of = self.subsystem_mut(subsystem)?;
        if of.config().queues == queues {
            return Ok(());
        }
        of.set_queues(queues);
        self.end_controllers(|one| one.subsystem() == subsystem);
        Ok(())
    }

    fn subsystem_mut(&mut self, name: &Nqn) -> Result<&mut Subsystem, ModelError> {
        let subsystem = self.subsystems.get_mut(name);
        subsystem.ok_or_else(|| ModelError::unknown("subsystem", name))
    }

    /// Handles the end of the connection with this number ([`Connected::connection`]). A controller ends with its admin
    /// queue. If another connection has the queue by now, the queue stays: a host may reset its controller and connect
    /// its queues again before the ends of the old connections are noticed.
    pub fn queue_lost(&mut self, id: u16, queue: u16, connection: u64) {
        let key = (id, queue);
        let exchange = self.exchanges.get(&key);
        if exchange.is_some_and(|one| one.is_of(connection)) {
            self.exchanges.remove(&key);
        }
        let controller = self.controllers.get_mut(&id);
        match controller.filter(|one| one.has_queue(queue, connection)) {
            Some(_) if queue == 0 => self.end_controller(id),
            Some(controller) => controller.lose_queue(queue),
            None => {}
        }
    }

    /// Logs why a connection of a controller broke. The caller calls this only if neither side has disconnected, and
    /// calls [`Model::queue_lost`] afterwards.
    pub fn queue_broke(&mut self, id: u16, queue: u16, connection: u64, cause: &dyn Display) {
        let controller = self.controllers.get(&id);
        let Some(controller) = controller.filter(|one| one.has_queue(queue, connection)) else {
            return;
        };
        if let Some(unlogged) = self.lines.take(controller.source(), "broken", self.latest) {
            let host = controller.host();
            tracing::warn!(controller = id, queue, %host, %cause, unlogged, "a connection broke");
        }
    }

    /// Handles the end of a worker: ends the controllers whose admin queues it had, and unlocks the blocks that its
    /// pairs had locked.
    pub fn worker_lost(&mut self, worker: WorkerId) {
        for namespace in self.subsystems.values().flat_map(Subsystem::namespaces) {
            namespace.unlock_all(worker);
        }
        self.end_controllers(|one| one.worker() == worker);
    }

    /// Returns the numbers of the controllers that fulfil a condition.
    fn controllers_that(&self, are_wanted: impl Fn(&Controller) -> bool) -> Vec<u16> {
        let all = self.controllers.values();
        let wanted = all.filter(|controller| are_wanted(controller));
        wanted.map(Controller::id).collect()
    }

    fn end_controllers(&mut self, that: impl Fn(&Controller) -> bool) {
        for id in self.controllers_that(that) {
            self.end_controller(id);
        }
    }

    /// Ends a controller and its connections. Does nothing if there is no such controller.
    pub fn end_controller(&mut self, id: u16) {
        if let Some(controller) = self.controllers.remove(&id) {
            let told = self.lines.take(controller.source(), "over", self.latest);
            if let Some(unlogged) = told {
                tracing::info!(controller = id, host = %controller.host(), subsystem = %controller.subsystem(), unlogged, "controller is over");
            }
            self.exchanges.retain(|(of, _), _| *of != id);
            self.notices.push(Notice::Over { controller: id });
        }
    }

    /// Records that a worker has received commands of a controller, or sent responses, since its last report. Workers
    /// report more often than any keep-alive time expires, so that an I/O only has to set a flag of its queue (Base
    /// specification, "Traffic Based Keep Alive").
    pub fn hear(&mut self, controller: u16, now: Moment) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.hear(now);
        }
    }

    /// Limits the number of I/O queues that Set Features grants a controller, because there are no resources for more.
    pub fn limit_queues(&mut self, controller: u16, most: u16) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            let of = self.subsystems.get(controller.subsystem());
            let of_all = of.map_or(QUEUES, |of| of.config().queues);
            controller.limit_queues(most.min(of_all));
        }
    }

    /// Ends the controllers whose hosts were silent for longer than the keep-alive time or, without one, than the
    /// time-out of the controller. Ends late authentications, too. Returns the time of the next deadline.
    pub fn expire(&mut self, now: Moment) -> Option<Moment> {
        self.latest = now;
        self.expire_exchanges(now);
        let is_silent = |one: &Controller| one.deadline() <= now;
        for id in self.controllers_that(is_silent) {
            let controller = &self.controllers[&id];
            if let Some(unlogged) = self.lines.take(controller.source(), "silent", now) {
                tracing::warn!(
                    controller = id,
                    host = %controller.host(),
                    keep_alive_ms = controller.keep_alive_ms(),
                    unlogged,
                    "no keep-alive: the host is taken for dead"
                );
            }
            self.end_controller(id);
        }
        let due = self.controllers.values().map(Controller::deadline);
        due.chain(self.next_exchange()).min()
    }

    /// Notifies the discovery controllers by an event, because ports, subsystems, allowed hosts or referrals have
    /// changed.
    fn discovery_changed(&mut self) {
        self.generation += 1;
        for id in self.controllers_that(Controller::is_discovery) {
            self.push_event(id, event::Kind::Discovery);
        }
    }

    /// Notifies the hosts that see a namespace that it has changed.
    pub(crate) fn namespace_changed(&mut self, subsystem: &Nqn, namespace: &Namespace) {
        self.changed_for(subsystem, namespace.nsid(), |host| {
            namespace.is_visible_to(host)
        });
    }

    /// Notifies the hosts of a subsystem that fulfil a condition that a namespace has changed.
    fn changed_for(&mut self, subsystem: &Nqn, nsid: u32, which: impl Fn(&Nqn) -> bool) {
        // Discovery controllers have no page of changed namespaces.
        let of_it = |controller: &&mut Controller| {
            controller.subsystem() == subsystem
                && !controller.is_discovery()
                && which(controller.host())
        };
        let changed = self.controllers.values_mut().filter(of_it);
        let ids: BTreeSet<u16> = changed
            .map(|controller| {
                controller.note_namespace(nsid);
                controller.id()
            })
            .collect();
        for id in ids {
            self.push_event(id, event::Kind::Namespace);
        }
    }

    /// Adds an event to a controller. If an event request can be answered now, the controller's worker gets a notice.
    fn push_event(&mut self, id: u16, kind: event::Kind) {
        if let Some(controller) = self.controllers.get_mut(&id)
            && controller.events.happened(kind)
        {
            self.notices.push(Notice::Event {
                worker: controller.worker(),
                controller: id,
            });
        }
    }

    /// Takes an event request of a controller back, because its host has aborted it.
    pub fn abort_event_request(&mut self, controller: u16) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.events.take_back();
        }
    }

    /// Takes the next event of a controller, and returns the answer to an event request.
    pub fn next_event(&mut self, controller: u16) -> Option<Answer> {
        let controller = self.controllers.get_mut(&controller)?;
        let event = controller.events.take()?;
        Some(Answer::result(event.into()))
    }
}
