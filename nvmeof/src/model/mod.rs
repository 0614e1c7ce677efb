//! What commands mean: subsystems, namespaces, hosts, controllers.
//!
//! No I/O, no clock, no thread: commands and time go in, answers and notices come out. Whoever has a [`Model`] has it
//! behind one lock; commands that read and write blocks need none of it. What they need, the namespaces and how a
//! port reaches them, is in [`Shelf`] and [`PortAccess`], which the model changes and workers look at.
//!
//! ```text
//!   Model ---- subsystems: by name      ---- namespaces, on a Shelf; hosts that may connect
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
pub use subsystem::{NAMESPACES, Shelf, Subsystem, SubsystemConfig};

use crate::nvme::{Nqn, Status};

/// A time, in whatever clock: what has passed since its beginning.
pub type Moment = Duration;

/// The longest data of an I/O is 4 KiB shifted by this: 128 KiB.
pub const MAX_TRANSFER_SHIFT: u8 = 5;
/// Bytes of it.
pub const MAX_TRANSFER: u32 = 4096 << MAX_TRANSFER_SHIFT;
/// Data that a command capsule has room for.
pub const IN_CAPSULE: u32 = 4096;
/// Entries of an I/O queue at most.
pub const QUEUE_ENTRIES: u16 = 128;
/// Entries of an admin queue at most.
pub const ADMIN_ENTRIES: u16 = 32;
/// I/O queues of a controller at most.
pub const QUEUES: u16 = 128;

/// Which worker, as whoever runs them counts them.
pub type WorkerId = u32;

/// An answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it went.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// What is written to the host.
    pub data: Vec<u8>,
}

impl Answer {
    /// Success, with nothing to say.
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

/// What comes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is answered.
    Answered(Answer),
    /// It waits for an event ([`Model::next_event`]).
    Waits,
}

/// What a worker has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The worker that has the admin queue of this controller: there is an event for it.
    Event {
        /// Who.
        worker: WorkerId,
        /// Whose.
        controller: u16,
    },
    /// All workers: this controller was disabled or shut down. Its I/O queues end, and event requests are answered.
    Reset {
        /// Which.
        controller: u16,
        /// The last connection before. Those with a higher number are queues of the controller's next life.
        last: u64,
    },
    /// All workers: this controller is over, its connections end.
    Over {
        /// Which.
        controller: u16,
    },
    /// All workers: the host of this I/O queue has not shown who it is, and the connection ends.
    Queue {
        /// Its number ([`Connected::connection`]).
        connection: u64,
    },
}

/// A place where hosts connect.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its number.
    pub id: u16,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// How it reaches namespaces.
    pub access: Arc<PortAccess>,
}

/// All there is.
#[derive(Debug, Default)]
pub struct Model {
    subsystems: BTreeMap<Nqn, Subsystem>,
    ports: BTreeMap<u16, Port>,
    referrals: Vec<discovery::Referral>,
    controllers: BTreeMap<u16, Controller>,
    /// The number that was given out last.
    last_controller: u16,
    /// Changes of what discovery tells.
    generation: u64,
    notices: Vec<Notice>,
    /// Keys of hosts that have to authenticate.
    keys: BTreeMap<Nqn, crate::auth::Keys>,
    exchanges: authenticate::Exchanges,
    /// Connections that asked to be a queue.
    connections: u64,
    /// Controllers that ended for newcomers.
    displaced: u64,
    random: authenticate::Random,
    /// Names of hosts have to have the form of a qualified name.
    is_strict: bool,
    /// Lines of the log that strangers cause.
    lines: crate::lines::Lines,
    /// The latest time that was told.
    latest: Moment,
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is one already.
    #[error("there is a {kind} {name} already")]
    Exists {
        /// What.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// There is none.
    #[error("there is no {kind} {name}")]
    Unknown {
        /// What.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A number that cannot be.
    #[error("{kind} {number}: there are 1 to {most}")]
    Range {
        /// What.
        kind: &'static str,
        /// Its number.
        number: u32,
        /// The highest.
        most: u32,
    },
    /// The disk of another namespace.
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
    /// A disk is not as it has to be.
    #[error("namespace {nsid} of {subsystem}: {error}")]
    Disk {
        /// The namespace's subsystem.
        subsystem: String,
        /// The namespace's number.
        nsid: u32,
        /// The reason.
        error: String,
    },
    /// The identifier of another namespace.
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
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether names of hosts have to have the form of a qualified name. It holds for hosts that connect from now on.
    pub const fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// What workers have to be told since this was asked for the last time.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        core::mem::take(&mut self.notices)
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// There is one with this name.
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

    /// Removes a namespace; hosts are told. Commands that are at its disk end as they end.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_namespace(&mut self, subsystem: &Nqn, nsid: u32) -> Result<(), ModelError> {
        self.subsystem_mut(subsystem)?.remove(nsid)?;
        self.namespace_changed(subsystem, nsid);
        Ok(())
    }

    /// Takes in the size that a namespace's disk has now; hosts are told if it is another. The blocks it has.
    ///
    /// # Errors
    /// There is no such namespace. Its disk does not answer, has no block any more, or its path leads to another file;
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

    /// Lets a host connect to a subsystem that is not open to any.
    ///
    /// # Errors
    /// There is no such subsystem.
    pub fn allow_host(&mut self, subsystem: &Nqn, host: Nqn) -> Result<(), ModelError> {
        self.subsystem_mut(subsystem)?.allow(host);
        self.discovery_changed();
        Ok(())
    }

    /// Lets it no more: its controllers end.
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
    /// There is one with this number.
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

    /// The addresses at which a port listens have changed.
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

    /// Removes a port; controllers that were reached by it end.
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

    /// The connection of that number is over ([`Connected::connection`]). With its admin queue a controller ends.
    /// Nothing happens if the number is another connection's by now: a host resets its controller and connects its
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

    /// A worker is no more, and with it the admin queues that it served.
    pub fn worker_lost(&mut self, worker: WorkerId) {
        self.end_controllers(|one| one.worker() == worker);
    }

    /// A host broke the rules, or nothing else can be done for it: the controller says so (CFS), and its connections
    /// end.
    pub fn fail_controller(&mut self, controller: u16) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.fail();
        }
        self.end_controller(controller);
    }

    /// The numbers of controllers.
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

    /// A worker has had commands of a controller since it last told, or has sent answers. It tells now and then, and
    /// sooner than any keep-alive time is over: what each I/O costs is a flag of its queue (Base specification,
    /// "Traffic Based Keep Alive").
    pub fn hear(&mut self, controller: u16, now: Moment) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.hear(now);
        }
    }

    /// Set Features grants a controller so many I/O queues at most: for more there is no room.
    pub fn limit_queues(&mut self, controller: u16, most: u16) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.limit_queues(most);
        }
    }

    /// Ends controllers whose hosts were silent for longer than their keep-alive time. When the next one is due.
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

    /// Ports, subsystems or hosts have changed: who discovers is told.
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

    /// An event for a controller; its worker is told if a request waits for it.
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

    /// The next event of a controller that an event request can be answered with.
    pub fn next_event(&mut self, controller: u16) -> Option<Answer> {
        let controller = self.controllers.get_mut(&controller)?;
        let event = controller.events.take()?;
        Some(Answer::result(event.into()))
    }
}
