//! The meaning of commands: subsystems, namespaces, hosts, controllers.
//!
//! No I/O, no clock, no thread: commands and time go in, answers and notices come out. A [`Model`] is kept behind one
//! lock. Commands that read and write blocks do not take it: the namespaces and the access of a port are in
//! [`NamespaceList`] and [`PortAccess`], which the model changes and workers look at.
//!
//! ```text
//!   Model ---- subsystems: by name      ---- namespaces, in a list; hosts that may connect
//!         ---- ports: by number         ---- addresses, and access to each group of namespaces (ANA)
//!         ---- controllers: by number   ---- one for each host that has connected: properties, features, events, logs
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
mod log;
mod namespace;
mod property;
mod quota;
mod reservation;
mod reserve;
mod subsystem;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use access::{GROUPS, PortAccess};
pub use authenticate::{PATIENCE as AUTHENTICATION_PATIENCE, Turn};
pub use connect::{Connected, NotConnected, Place};
pub use controller::Controller;
pub(crate) use feature::NUMBER_OF_QUEUES;
pub(crate) use identify::COPY_BLOCKS;
pub use namespace::{Namespace, NamespaceConfig, Tally};
pub use quota::{Party, is_fair};
pub use reservation::{HostId, Reservations};
pub use reserve::bytes as reservation_bytes;
pub use subsystem::{NAMESPACES, NamespaceList, Subsystem, SubsystemConfig};

use crate::nvme::{Nqn, Status};

/// A time of the clock that the caller counts in, since its beginning.
pub type Moment = Duration;

/// The longest data of an I/O is 4 KiB shifted by this: 128 KiB.
pub const MAX_TRANSFER_SHIFT: u8 = 5;
/// The longest data of an I/O, in bytes.
pub const MAX_TRANSFER: u32 = 4096 << MAX_TRANSFER_SHIFT;
/// Data in a command capsule at most, in bytes.
pub const IN_CAPSULE: u32 = 4096;
/// Entries of an I/O queue at most.
pub const QUEUE_ENTRIES: u16 = 128;
/// Entries of an admin queue at most.
pub const ADMIN_ENTRIES: u16 = 32;
/// I/O queues of a controller at most.
pub const QUEUES: u16 = 128;

/// Number of a worker, which the caller gives out.
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
    /// Success, without a result.
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

/// Outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is answered.
    Answered(Answer),
    /// It waits for an event ([`Model::next_event`]).
    Waits,
}

/// A message for workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The worker that has the admin queue of this controller: there is an event for it.
    Event {
        /// The worker.
        worker: WorkerId,
        /// The controller.
        controller: u16,
    },
    /// All workers: this controller was disabled or shut down. Its I/O queues end, and event requests are answered.
    Reset {
        /// The controller.
        controller: u16,
        /// The last connection before the reset. Connections with a higher number are queues of the enabled-again
        /// controller.
        last: u64,
    },
    /// All workers: this controller has ended, its connections end.
    Over {
        /// The controller.
        controller: u16,
    },
    /// All workers: the host of this I/O queue has failed to authenticate, and the connection ends.
    Queue {
        /// The number of the connection ([`Connected::connection`]).
        connection: u64,
    },
}

/// A port, at which hosts connect.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its number.
    pub id: u16,
    /// The addresses at which it listens.
    pub addresses: Vec<SocketAddr>,
    /// Its access to groups of namespaces.
    pub access: Arc<PortAccess>,
}

/// Everything that the target has.
#[derive(Debug, Default)]
pub struct Model {
    subsystems: BTreeMap<Nqn, Subsystem>,
    ports: BTreeMap<u16, Port>,
    referrals: Vec<discovery::Referral>,
    controllers: BTreeMap<u16, Controller>,
    /// The controller number that was given out last.
    last_controller: u16,
    /// Number of changes of the discovery log page.
    generation: u64,
    notices: Vec<Notice>,
    /// Keys of hosts that have to authenticate.
    keys: BTreeMap<Nqn, crate::auth::Keys>,
    exchanges: authenticate::Exchanges,
    /// Number of connections that sent Connect.
    connections: u64,
    /// Number of controllers that ended to make room for others.
    displaced: u64,
    random: authenticate::Random,
    /// Names of hosts must have the form of a qualified name.
    is_strict: bool,
    /// Budgets of log lines that peers cause.
    lines: crate::lines::Lines,
    /// The latest time that the caller has passed.
    latest: Moment,
}

/// Reason why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The object exists already.
    #[error("there is a {kind} {name} already")]
    Exists {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The object does not exist.
    #[error("there is no {kind} {name}")]
    Unknown {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A number is out of range.
    #[error("{kind} {number}: there are 1 to {most}")]
    Range {
        /// Kind of the object.
        kind: &'static str,
        /// Its number.
        number: u32,
        /// The highest number.
        most: u32,
    },
    /// The disk is another namespace's.
    #[error(
        "{disk} is the disk of namespace {nsid} of {subsystem}; `lock = false` of both lets them share it"
    )]
    SameDisk {
        /// The disk.
        disk: String,
        /// The other namespace's subsystem.
        subsystem: String,
        /// The other namespace's number.
        nsid: u32,
    },
    /// A disk cannot be used.
    #[error("namespace {nsid} of {subsystem}: {error}")]
    Disk {
        /// The namespace's subsystem.
        subsystem: String,
        /// The namespace's number.
        nsid: u32,
        /// The reason.
        error: String,
    },
    /// The identifier is another namespace's.
    #[error("the identifier {uuid} is that of namespace {nsid} of {subsystem}")]
    Identifier {
        /// Which.
        uuid: uuid::Uuid,
        /// Whose.
        subsystem: String,
        /// Whose.
        nsid: u32,
    },
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
    /// A model without ports and subsystems.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether names of hosts must have the form of a qualified name, for hosts that connect from now on.
    pub const fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// Returns the messages for workers since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        core::mem::take(&mut self.notices)
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// The name is in use.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<(), ModelError> {
        if self.subsystems.contains_key(&config.name) {
            return Err(ModelError::Exists {
                kind: "subsystem",
                name: config.name.to_string(),
            });
        }
        let subsystem = Subsystem::new(config);
        self.subsystems.insert(subsystem.name().clone(), subsystem);
        self.discovery_changed();
        Ok(())
    }

    /// Removes a subsystem; its controllers end.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_subsystem(&mut self, name: &Nqn) -> Result<(), ModelError> {
        let removed = self.subsystems.remove(name);
        let removed = removed.ok_or_else(|| ModelError::unknown("subsystem", name))?;
        for namespace in removed.namespaces() {
            namespace.disk().give_up();
        }
        self.end_controllers(|one| one.subsystem() == name);
        self.discovery_changed();
        Ok(())
    }

    /// Adds a namespace to a subsystem; hosts are told.
    ///
    /// # Errors
    /// There is no such subsystem; there is such a namespace; a number out of range; its identifier, or its disk, is
    /// another's.
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
        self.namespace_changed(subsystem, nsid);
        Ok(nsid)
    }

    /// Removes a namespace; hosts are told. Commands that its disk has are not interrupted.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_namespace(&mut self, subsystem: &Nqn, nsid: u32) -> Result<(), ModelError> {
        self.subsystem_mut(subsystem)?.remove(nsid)?;
        self.namespace_changed(subsystem, nsid);
        Ok(())
    }

    /// Reads the size of a namespace's disk; hosts are told if it has changed. Returns the number of blocks.
    ///
    /// # Errors
    /// There is no such namespace. Its disk does not answer, is smaller than a block, or its path names another file;
    /// nothing has changed.
    pub fn resize_namespace(&mut self, subsystem: &Nqn, nsid: u32) -> Result<u64, ModelError> {
        let namespace = self.namespace(subsystem, nsid)?;
        let has_changed = namespace.look_at_size();
        let has_changed = has_changed.map_err(|error| ModelError::Disk {
            subsystem: subsystem.to_string(),
            nsid,
            error: error.to_string(),
        })?;
        let blocks = namespace.blocks();
        if has_changed {
            self.namespace_changed(subsystem, nsid);
        }
        Ok(blocks)
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

    /// Withdraws that: the host's controllers end.
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
            },
        );
        self.discovery_changed();
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

    /// Removes a port; controllers that were connected by it end.
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

    /// The ports.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.values()
    }

    /// The subsystems.
    pub fn subsystems(&self) -> impl Iterator<Item = &Subsystem> {
        self.subsystems.values()
    }

    /// The controllers.
    pub fn controllers(&self) -> impl Iterator<Item = &Controller> {
        self.controllers.values()
    }

    /// A controller.
    #[must_use]
    pub fn controller(&self, id: u16) -> Option<&Controller> {
        self.controllers.get(&id)
    }

    /// A namespace.
    ///
    /// # Errors
    /// There is no such subsystem, or no such namespace.
    pub fn namespace(&self, subsystem: &Nqn, nsid: u32) -> Result<Arc<Namespace>, ModelError> {
        let of = self.subsystems.get(subsystem);
        let of = of.ok_or_else(|| ModelError::unknown("subsystem", subsystem))?;
        let namespace = of.namespace(nsid);
        namespace.ok_or_else(|| ModelError::unknown("namespace", nsid))
    }

    fn subsystem_mut(&mut self, name: &Nqn) -> Result<&mut Subsystem, ModelError> {
        let subsystem = self.subsystems.get_mut(name);
        subsystem.ok_or_else(|| ModelError::unknown("subsystem", name))
    }

    /// The connection of this number has ended ([`Connected::connection`]). A controller ends with its
    /// admin queue. A queue that another connection has by now stays: a host may reset its controller and connect its
    /// queues again before the ends of the old connections are noticed.
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

    /// Logs why a connection of a controller ended, if no side has disconnected it. [`Model::queue_lost`] follows.
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

    /// A worker has ended, and with it the admin queues that it served.
    pub fn worker_lost(&mut self, worker: WorkerId) {
        self.end_controllers(|one| one.worker() == worker);
    }

    /// Ends a controller whose host broke a rule, or that cannot go on: it reports CFS, and its connections end.
    pub fn fail_controller(&mut self, controller: u16) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.fail();
        }
        self.end_controller(controller);
    }

    /// Numbers of the controllers that fulfil a condition.
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

    fn end_controller(&mut self, id: u16) {
        if let Some(controller) = self.controllers.remove(&id) {
            let told = self.lines.take(controller.source(), "over", self.latest);
            if let Some(unlogged) = told {
                tracing::info!(controller = id, host = %controller.host(), subsystem = %controller.subsystem(), unlogged, "controller is over");
            }
            self.exchanges.retain(|(of, _), _| *of != id);
            self.notices.push(Notice::Over { controller: id });
        }
    }

    /// A worker has received commands of a controller, or sent responses, since it last reported. Workers report more
    /// often than any keep-alive time, so an I/O costs one flag of its queue (Base specification, "Traffic Based Keep
    /// Alive").
    pub fn hear(&mut self, controller: u16, now: Moment) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.hear(now);
        }
    }

    /// Limits the I/O queues that Set Features grants a controller: there is no room for more.
    pub fn limit_queues(&mut self, controller: u16, most: u16) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.limit_queues(most);
        }
    }

    /// Ends controllers whose hosts were silent for longer than their keep-alive time. Returns the time of the next
    /// deadline.
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
            self.fail_controller(id);
        }
        let due = self.controllers.values().map(Controller::deadline);
        due.chain(self.next_exchange()).min()
    }

    /// Ports, subsystems or hosts have changed: discovery controllers get an event.
    fn discovery_changed(&mut self) {
        self.generation += 1;
        for id in self.controllers_that(Controller::is_discovery) {
            self.tell(id, event::Kind::Discovery);
        }
    }

    fn namespace_changed(&mut self, subsystem: &Nqn, nsid: u32) {
        let of_it = |controller: &&mut Controller| controller.subsystem() == subsystem;
        let changed = self.controllers.values_mut().filter(of_it);
        let ids: BTreeSet<u16> = changed
            .map(|controller| {
                controller.note_namespace(nsid);
                controller.id()
            })
            .collect();
        for id in ids {
            self.tell(id, event::Kind::Namespace);
        }
    }

    /// Adds an event of a controller; its worker gets a notice if a request waits for it.
    fn tell(&mut self, id: u16, kind: event::Kind) {
        if let Some(controller) = self.controllers.get_mut(&id)
            && controller.events.happened(kind)
        {
            self.notices.push(Notice::Event {
                worker: controller.worker(),
                controller: id,
            });
        }
    }

    /// Takes the next event of a controller, as the answer to an event request.
    pub fn next_event(&mut self, controller: u16) -> Option<Answer> {
        let controller = self.controllers.get_mut(&controller)?;
        let event = controller.events.take()?;
        Some(Answer::result(event.into()))
    }
}
