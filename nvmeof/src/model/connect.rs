//! Connect, which turns a connection into a queue (Base specification, "Connect command and response").

use std::net::IpAddr;
use std::sync::Arc;

use super::controller::Beginning;
use super::{
    ADMIN_ENTRIES, Controller, Model, Moment, NamespaceList, Party, PortAccess, QUEUE_ENTRIES,
    QUEUES, WorkerId,
};
use crate::nvme::fabrics::{ANY_CONTROLLER, Connect, ConnectData, bad_parameter};
use crate::nvme::{Nqn, Status};

/// Highest number of a controller.
pub(super) const HIGHEST_CONTROLLER: u16 = 0xffef;

/// The origin of a new connection, and the parameters of its private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the port.
    pub port: u16,
    /// Number of the worker.
    pub worker: WorkerId,
    /// Queue number in the connection's private data.
    pub queue: u16,
    /// Number of queue entries in the connection's private data.
    pub entries: u16,
    /// Address of the host.
    pub source: IpAddr,
}

/// The result of a successful Connect: a connection that has become a queue.
#[derive(Clone, Debug)]
pub struct Connected {
    /// Number of the controller.
    pub controller: u16,
    /// Number of the queue; 0 is the admin queue.
    pub queue: u16,
    /// Number of the connection. A queue that is connected again gets another number.
    pub connection: u64,
    /// Number of queue entries that the host uses.
    pub entries: u16,
    /// True if the host disables flow control: completions contain no submission queue head.
    pub without_head: bool,
    /// True if the host must authenticate before it sends any other command (ATR).
    pub must_authenticate: bool,
    /// Party that the queue is counted for.
    pub party: Party,
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// Name of the host.
    pub host: Nqn,
    /// Namespaces of the subsystem; `None` for discovery.
    pub namespaces: Option<Arc<NamespaceList>>,
    /// Access of the port to the groups of the namespaces.
    pub access: Arc<PortAccess>,
}

/// Status and result of a refused Connect. If the status has DNR, the host does not try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotConnected {
    /// Status of the completion.
    pub status: Status,
    /// Location of the invalid parameter, or 0.
    pub result: u64,
}

impl Connected {
    /// Returns dword 0 of the completion: the controller's number, and bit ATR if the host must authenticate.
    #[must_use]
    pub const fn result(&self) -> u64 {
        self.controller as u64 | (self.must_authenticate as u64) << 17
    }
}

impl NotConnected {
    const fn of(status: Status) -> Self {
        Self {
            status: status.dnr(),
            result: 0,
        }
    }

    /// Refuses a Connect because of the parameter at this offset of the command.
    const fn in_command(offset: u16) -> Self {
        Self {
            status: Status::CONNECT_PARAMETER.dnr(),
            result: bad_parameter(offset, false),
        }
    }

    /// Refuses a Connect because of the parameter at this offset of the data.
    const fn in_data(offset: u16) -> Self {
        Self {
            status: Status::CONNECT_PARAMETER.dnr(),
            result: bad_parameter(offset, true),
        }
    }
}

/// Offsets of parameters, for refusals.
mod at {
    pub(super) const QUEUE: u16 = 42;
    pub(super) const SIZE: u16 = 44;
    pub(super) const HOST_ID: u16 = 0;
    pub(super) const CONTROLLER: u16 = 16;
    pub(super) const SUBSYSTEM: u16 = 256;
    pub(super) const HOST: u16 = 512;
}

impl Model {
    /// Carries out a Connect: turns a connection into a queue.
    ///
    /// # Errors
    /// The status and result for the host. Nothing has changed.
    pub fn connect(
        &mut self,
        place: Place,
        connect: Connect,
        data: &ConnectData,
        now: Moment,
    ) -> Result<Connected, NotConnected> {
        self.latest = now;
        if connect.format != 0 {
            return Err(NotConnected::of(Status::CONNECT_FORMAT));
        }
        if connect.queue != place.queue {
            return Err(NotConnected::in_command(at::QUEUE));
        }
        let most = if connect.queue == 0 {
            ADMIN_ENTRIES
        } else {
            QUEUE_ENTRIES
        };
        if connect.size == 0 || connect.size >= most.min(place.entries) {
            return Err(NotConnected::in_command(at::SIZE));
        }
        let host = Nqn::of_hosts_field(&data.host, self.is_strict);
        let host = host.map_err(|_| NotConnected::in_data(at::HOST))?;
        let name = Nqn::of_field(&data.subsystem);
        let name = name.map_err(|_| NotConnected::in_data(at::SUBSYSTEM))?;
        let namespaces = match self.subsystems.get(&name) {
            None if name.is_discovery() => None,
            None => return Err(NotConnected::in_data(at::SUBSYSTEM)),
            // A host that is not allowed always gets this reason, so that the response discloses nothing else about the
            // subsystem.
            Some(subsystem) if !subsystem.allows(&host) => {
                return Err(NotConnected {
                    status: Status::CONNECT_HOST.dnr(),
                    result: bad_parameter(at::HOST, true),
                });
            }
            Some(subsystem) => Some(subsystem.list()),
        };
        if namespaces.is_some()
            && let Some(owner) =
                self.identifier_owner(&name, &host, &data.host_id, connect.queue != 0)
        {
            if let Some(unlogged) = self.lines.take(place.source, "identifier", now) {
                tracing::info!(%host, %owner, unlogged, "the host's identifier belongs to another host");
            }
            return Err(NotConnected::in_data(at::HOST_ID));
        }
        let port = self.ports.get(&place.port);
        let port = port.ok_or(NotConnected::of(Status::INTERNAL))?;
        let access = Arc::clone(&port.access);
        self.connections += 1;
        let controller = if connect.queue == 0 {
            self.connect_admin(place, connect, data, (name.clone(), host.clone()), now)?
        } else {
            self.connect_io(connect, data, (&name, &host), now)?
        };
        let must_authenticate = match self.controllers.get(&controller) {
            Some(one) => {
                let (host, name) = (one.host().clone(), one.subsystem().clone());
                let queue = (controller, connect.queue);
                self.begin_authentication(queue, &host, &name, place.source, now)
            }
            None => false,
        };
        let party = self.party(&name, &host, place.source);
        Ok(Connected {
            must_authenticate,
            party,
            controller,
            queue: connect.queue,
            connection: self.connections,
            entries: connect.size + 1,
            without_head: connect.without_head(),
            host_id: data.host_id,
            host,
            namespaces,
            access,
        })
    }

    fn connect_admin(
        &mut self,
        place: Place,
        connect: Connect,
        data: &ConnectData,
        (subsystem, host): (Nqn, Nqn),
        now: Moment,
    ) -> Result<u16, NotConnected> {
        if data.controller.get() != ANY_CONTROLLER {
            return Err(NotConnected::in_data(at::CONTROLLER));
        }
        self.make_room(&subsystem, &host, place.source)?;
        let id = self.free_controller();
        let party = self.party(&subsystem, &host, place.source);
        if let Some(unlogged) = self.lines.take(place.source, "controller", now) {
            tracing::info!(controller = id, %host, %subsystem, port = place.port, keep_alive_ms = connect.keep_alive_ms, unlogged, "controller");
        }
        let controller = Controller::new(Beginning {
            id,
            subsystem,
            host,
            host_id: data.host_id,
            port: place.port,
            worker: place.worker,
            source: place.source,
            party,
            keep_alive_ms: super::feature::keep_alive(connect.keep_alive_ms),
            connection: self.connections,
            now,
        });
        self.controllers.insert(id, controller);
        self.limit_queues(id, QUEUES);
        Ok(id)
    }

    fn connect_io(
        &mut self,
        connect: Connect,
        data: &ConnectData,
        (subsystem, host): (&Nqn, &Nqn),
        now: Moment,
    ) -> Result<u16, NotConnected> {
        let id = data.controller.get();
        let of = self.subsystems.get(subsystem);
        let queues = of.map_or(QUEUES, |of| of.config().queues);
        let theirs = |controller: &&mut Controller| {
            controller.subsystem() == subsystem && controller.host() == host
        };
        let controller = self.controllers.get_mut(&id).filter(theirs);
        let controller = controller.ok_or(NotConnected::in_data(at::CONTROLLER))?;
        if *controller.host_id() != data.host_id {
            return Err(NotConnected::in_data(at::HOST_ID));
        }
        if connect.queue > queues || controller.is_discovery() {
            return Err(NotConnected::in_command(at::QUEUE));
        }
        if !controller.is_ready() || !controller.add_queue(connect.queue, self.connections) {
            return Err(NotConnected::of(Status::SEQUENCE));
        }
        // If the host must authenticate, the new queue does not yet prove that the host is alive.
        if !self.keys.contains_key(host) {
            controller.hear(now);
        }
        Ok(id)
    }

    /// Returns a controller number that is not in use and was not used recently.
    fn free_controller(&mut self) -> u16 {
        loop {
            let next = self.last_controller % HIGHEST_CONTROLLER + 1;
            self.last_controller = next;
            if !self.controllers.contains_key(&next) {
                return next;
            }
        }
    }
}
