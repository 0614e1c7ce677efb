//! A model that outlives its process.
//!
//! The next process makes a model of the running settings by the same calls as at an ordinary start, and then
//! [`Model::resume`] puts in what has happened since: controllers, reservations, authentications, logs and counters.
//!
//! ```text
//!   the old process                                        the new process
//!                                                            Model::new, set_keys, add_port, add_subsystem, ...
//!     park  ---------------- ModelSnapshot ------------->    resume
//!     (no call any more)                                     commands; later, changes of the settings
//! ```
//!
//! Settings are in the snapshot only as far as hosts recognise them: a namespace by its identifier, its group, its
//! block size and its size, a subsystem by its serial number and model, a port by its number. Those that differ are
//! refused by name. Keys of hosts are not in it: the settings have them.
//!
//! The times in a snapshot are ages, and times that are left. So no time passes between `park` and `resume`: hosts get
//! the rest of their keep-alive times. The clock of the next process goes on where the old one was parked; an age that
//! it cannot have is refused.
//!
//! `resume` does not trust the snapshot. Every number is bounded, numbers of controllers, queues, connections and
//! namespaces must refer to each other as those of a model do, and the parts of a controller must fit its state. Sums
//! of quotas follow from the controllers. Budgets of log lines and random numbers are new in the next process. The
//! model cannot check that workers and connections exist: the caller does ([`ModelSnapshot::workers`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::authenticate::Exchanges;
use super::refusal::{MOST_COUNTED, ModelResumeError as Error};
use super::reservation::Reservations;
use super::snapshot::{ControllerSnapshot, NamespaceSnapshot, SubsystemSnapshot};
use super::{
    Controller, HIGHEST_CONTROLLER, HostId, Model, ModelParkError, ModelResumeError, ModelSnapshot,
    Moment, Namespace, Notice, Subsystem,
};
use crate::nvme::Nqn;

/// A namespace of the model, its snapshot, and its resumed reservations.
type Matched<'a> = (Arc<Namespace>, &'a NamespaceSnapshot, Reservations);

impl Model {
    /// Returns whether the model can be parked: [`Self::park`] refuses nothing.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.check_quiet().is_ok() && self.park_subsystems().is_ok()
    }

    /// Checks that all messages and removed namespaces were taken, and that no step of an authentication is computed.
    fn check_quiet(&self) -> Result<(), ModelParkError> {
        match (self.notices.len(), self.removed.len()) {
            (0, 0) => self.check_exchanges(),
            (0, count) => Err(ModelParkError::Removed { count }),
            (count, _) => Err(ModelParkError::Notices { count }),
        }
    }

    fn park_subsystems(&self) -> Result<Vec<SubsystemSnapshot>, ModelParkError> {
        let all = self.subsystems.values();
        let parked = all.map(|one| {
            let namespaces = one.namespaces().map(|namespace| namespace.park(one.name()));
            Ok(SubsystemSnapshot {
                name: one.name().to_string(),
                serial: one.config().serial.clone(),
                model: one.config().model.clone(),
                namespaces: namespaces.collect::<Result<_, _>>()?,
            })
        });
        parked.collect()
    }

    /// Writes the model out at the time `now`. Nothing changes. The caller makes no further call if the snapshot is
    /// resumed.
    ///
    /// # Errors
    /// [`ModelParkError`]: messages or namespaces were not taken; a step of an authentication or a compare and write is
    /// under way.
    pub fn park(&self, now: Moment) -> Result<ModelSnapshot, ModelParkError> {
        self.check_quiet()?;
        let controllers = self.controllers.values();
        Ok(ModelSnapshot {
            subsystems: self.park_subsystems()?,
            ports: self.ports.values().map(super::Port::park).collect(),
            controllers: controllers.map(|one| one.park(now)).collect(),
            authentications: self.park_exchanges(now),
            last_controller: self.last_controller,
            generation: self.generation.min(MOST_COUNTED),
            connections: self.connections,
            displaced: self.displaced.min(MOST_COUNTED),
        })
    }

    /// Goes on with a parked model. This one has the same subsystems, namespaces and ports, and has had no connection.
    /// `now` is the time of a clock that goes on where the parked one was.
    ///
    /// Controllers whose event requests can be answered get a notice ([`Model::take_notices`]).
    ///
    /// # Errors
    /// [`ModelResumeError`]: the subsystems, namespaces or ports are others, or the snapshot is impossible. The model
    /// is unchanged.
    pub fn resume(
        &mut self,
        snapshot: &ModelSnapshot,
        now: Moment,
    ) -> Result<(), ModelResumeError> {
        if self.connections != 0 {
            let connections = self.connections;
            return Err(Error::Used { connections });
        }
        Error::check_range(
            "the model",
            [
                (
                    "last_controller",
                    snapshot.last_controller.into(),
                    HIGHEST_CONTROLLER.into(),
                ),
                ("generation", snapshot.generation, MOST_COUNTED),
                ("connections", snapshot.connections, MOST_COUNTED),
                ("displaced", snapshot.displaced, MOST_COUNTED),
            ],
        )?;
        self.check_ports(snapshot)?;
        let namespaces = self.match_namespaces(snapshot)?;
        let controllers = self.resume_controllers(snapshot, now)?;
        check_owners(&controllers, &namespaces)?;
        let mut exchanges = Exchanges::new();
        for one in &snapshot.authentications {
            let controller = controllers.get(&one.controller);
            self.resume_exchange(&mut exchanges, controller, one, now)?;
        }
        (self.controllers, self.exchanges) = (controllers, exchanges);
        // The pools of controllers depend on their authentications.
        if let Err(error) = self.check_pools() {
            self.controllers.clear();
            self.exchanges.clear();
            return Err(error);
        }
        // Nothing is refused from here on.
        for parked in &snapshot.ports {
            if let Some(port) = self.ports.get(&parked.id) {
                port.resume(parked);
            }
        }
        for (_, (namespace, parked, reservations)) in namespaces {
            namespace.resume(parked, reservations);
        }
        self.last_controller = snapshot.last_controller;
        self.generation = snapshot.generation;
        self.connections = snapshot.connections;
        self.displaced = snapshot.displaced;
        self.latest = now;
        let can_answer = self.controllers.values();
        let can_answer = can_answer.filter(|one| one.events.can_answer());
        self.notices.extend(can_answer.map(|one| Notice::Event {
            worker: one.worker(),
            controller: one.id(),
        }));
        Ok(())
    }

    /// Checks that the ports are those of the snapshot.
    fn check_ports(&self, snapshot: &ModelSnapshot) -> Result<(), Error> {
        let mut there = BTreeSet::new();
        for parked in &snapshot.ports {
            let of = format!("port {}", parked.id);
            Error::check(there.insert(parked.id), &of, "it is there twice")?;
            let port = self.ports.get(&parked.id);
            port.ok_or_else(|| missing(of))?.check(parked)?;
        }
        match self.ports.keys().find(|id| !there.contains(id)) {
            None => Ok(()),
            Some(id) => Err(new(format!("port {id}"))),
        }
    }

    /// Finds the namespaces of the snapshot in the subsystems, and checks that there are no others. Returns them with
    /// the names of their subsystems.
    fn match_namespaces<'a>(
        &self,
        snapshot: &'a ModelSnapshot,
    ) -> Result<Vec<(Nqn, Matched<'a>)>, Error> {
        let mut there = BTreeSet::new();
        let mut matched = Vec::new();
        for parked in &snapshot.subsystems {
            let name: Nqn = parked
                .name
                .parse()
                .map_err(|error| Error::snapshot("a subsystem", format!("name: {error}")))?;
            let of = format!("subsystem {name}");
            Error::check(there.insert(name.clone()), &of, "it is there twice")?;
            let subsystem = self.subsystems.get(&name);
            let subsystem = subsystem.ok_or_else(|| missing(of))?;
            match_subsystem(subsystem, parked, &mut matched)?;
        }
        match self.subsystems.keys().find(|name| !there.contains(name)) {
            None => Ok(matched),
            Some(name) => Err(new(format!("subsystem {name}"))),
        }
    }

    fn resume_controllers(
        &self,
        snapshot: &ModelSnapshot,
        now: Moment,
    ) -> Result<BTreeMap<u16, Controller>, Error> {
        let mut controllers = BTreeMap::new();
        let mut connections = BTreeSet::new();
        for parked in &snapshot.controllers {
            let of = format!("controller {}", parked.id);
            let one = Controller::resume(parked, snapshot.connections, now)?;
            self.check_place(&of, &one)?;
            for connection in numbers(parked) {
                let what = format!("connection {connection} is there twice");
                Error::check(connections.insert(connection), &of, what)?;
            }
            let is_new = controllers.insert(parked.id, one).is_none();
            Error::check(is_new, of, "it is there twice")?;
        }
        Ok(controllers)
    }

    /// Checks that a controller's port and subsystem exist, and that its host may be there.
    fn check_place(&self, of: &str, one: &Controller) -> Result<(), Error> {
        let port = one.port();
        let what = format!("there is no port {port}");
        Error::check(self.ports.contains_key(&port), of, what)?;
        let (host, name) = (one.host(), one.subsystem());
        match self.subsystems.get(name) {
            None if name.is_discovery() => Ok(()),
            None => Err(Error::snapshot(of, format!("there is no subsystem {name}"))),
            Some(subsystem) if subsystem.allows(host) => Ok(()),
            Some(_) => {
                let what = format!("{host} may not connect to {name}");
                Err(Error::configuration(of, what))
            }
        }
    }
}

fn missing(of: String) -> Error {
    Error::configuration(of, "it was there at the parking")
}

fn new(of: String) -> Error {
    Error::configuration(of, "it was not there at the parking")
}

/// Returns the numbers of a controller's connections.
fn numbers(parked: &ControllerSnapshot) -> impl Iterator<Item = u64> {
    let queues = parked.queues.iter().map(|(_, connection)| *connection);
    queues.chain([parked.connection])
}

/// Finds the namespaces of a parked subsystem, and checks that there are no others.
fn match_subsystem<'a>(
    subsystem: &Subsystem,
    parked: &'a SubsystemSnapshot,
    matched: &mut Vec<(Nqn, Matched<'a>)>,
) -> Result<(), Error> {
    let (name, config) = (subsystem.name(), subsystem.config());
    let texts = [
        ("serial number", &config.serial, &parked.serial),
        ("model", &config.model, &parked.model),
    ];
    for (what, is, was) in texts {
        if is != was {
            let what = format!("its {what} is {is:?}, and was {was:?} at the parking");
            return Err(Error::configuration(format!("subsystem {name}"), what));
        }
    }
    let mut there = BTreeSet::new();
    for one in &parked.namespaces {
        let of = format!("namespace {} of {name}", one.nsid);
        Error::check(there.insert(one.nsid), &of, "it is there twice")?;
        let Some(namespace) = subsystem.namespace(one.nsid) else {
            return Err(missing(of));
        };
        let reservations = namespace.check(&of, one)?;
        matched.push((name.clone(), (namespace, one, reservations)));
    }
    let mut all = subsystem.namespaces().map(|one| one.nsid());
    match all.find(|nsid| !there.contains(nsid)) {
        None => Ok(()),
        Some(nsid) => Err(new(format!("namespace {nsid} of {name}"))),
    }
}

/// Checks that each host identifier belongs to one host of a subsystem, of those that have registered with it or have
/// an I/O queue.
fn check_owners(
    controllers: &BTreeMap<u16, Controller>,
    namespaces: &[(Nqn, Matched<'_>)],
) -> Result<(), Error> {
    let mut owners = BTreeMap::<(&Nqn, &HostId), &Nqn>::new();
    let registered = namespaces.iter().flat_map(|(name, (_, _, all))| {
        let ids = all.registrants().map(|(id, _, _)| id);
        ids.filter_map(move |id| Some(((name, id), all.owner(id)?)))
    });
    let connected = controllers.values();
    let connected = connected.filter(|one| one.queues().next().is_some());
    let connected = connected.map(|one| ((one.subsystem(), one.host_id()), one.host()));
    for ((name, id), host) in registered.chain(connected) {
        let owner = owners.entry((name, id)).or_insert(host);
        let what = format!("host identifier {id:02x?} belongs to {owner} and {host}");
        Error::check(*owner == host, format!("subsystem {name}"), what)?;
    }
    Ok(())
}
