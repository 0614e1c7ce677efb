//! The current state of a daemon, and the steps that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use udapl::Adapter;

use super::port::{Port, PortError};
use super::settings::{HostSettings, NamespaceSettings, PortSettings, Settings, SubsystemSettings};
use crate::auth::{Key, KeyError, Keys};
use crate::disk::faults::Orders;
use crate::disk::{Disk, DiskError, OwnLocks};
use crate::model::{Limit, ModelError, NamespaceConfig, SubsystemConfig};
use crate::nvme::Nqn;
use crate::nvme::log::Access;
use crate::serve::{Target, TargetSnapshot, Worker};

/// Reason why a step is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The model refuses the step.
    #[error("{0}")]
    Model(#[from] ModelError),
    /// A disk cannot be opened.
    #[error("namespace {nsid} of {subsystem}: {error}")]
    Disk {
        /// Subsystem of the namespace.
        subsystem: Nqn,
        /// Number of the namespace.
        nsid: u32,
        /// Reason why the disk cannot be opened.
        error: DiskError,
    },
    /// Orders for faults were given to a disk that is not a faulty disk.
    #[error(
        "namespace {nsid} of {subsystem}: its disk, {disk}, fails by no order; one that is `faulty` does"
    )]
    NotFaulty {
        /// Subsystem of the namespace.
        subsystem: Nqn,
        /// Number of the namespace.
        nsid: u32,
        /// Name of the disk, which shows its kind.
        disk: String,
    },
    /// A port cannot be served.
    #[error("port {port}: {error}")]
    Port {
        /// Number of the port.
        port: u16,
        /// Reason why the port cannot be served.
        error: PortError,
    },
    /// The file of a host's key cannot be read.
    #[error("the key of host {host}, {}: {error}", file.display())]
    Key {
        /// Host that the key is for.
        host: Nqn,
        /// Path of the key's file.
        file: PathBuf,
        /// Reason why the file cannot be read.
        error: io::Error,
    },
    /// The file of a host's key does not contain a key.
    #[error("the key of host {host}, {}: {error}", file.display())]
    NoKey {
        /// Host that the key is for.
        host: Nqn,
        /// Path of the key's file.
        file: PathBuf,
        /// Reason why the text is not a key.
        error: KeyError,
    },
    /// The host has another key at another subsystem. A host has one key for all subsystems.
    #[error("host {host} has the key {} for {subsystem}, and another here", file.display())]
    OtherKey {
        /// Host with the two keys.
        host: Nqn,
        /// Subsystem at which the host has another key.
        subsystem: Nqn,
        /// Path of that other key's file.
        file: PathBuf,
    },
}

/// A target with its ports, and the settings that describe them.
pub struct Daemon {
    target: Target,
    settings: Settings,
    ports: BTreeMap<u16, Port>,
    /// True once the next process has the ports: changes would be lost.
    is_handed_over: bool,
    /// True if a client of the control socket has requested a handover, which has not begun.
    is_requested: bool,
}

impl Daemon {
    /// Returns a daemon without ports and subsystems.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            settings: Settings::default(),
            ports: BTreeMap::new(),
            is_handed_over: false,
            is_requested: false,
        }
    }

    /// Returns whether the next process has the ports. Changes of this daemon are refused then.
    #[must_use]
    pub const fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }

    /// Records that a client of the control socket has requested a handover.
    pub(super) const fn request_handover(&mut self) {
        self.is_requested = true;
    }

    /// Returns whether a client of the control socket has requested a handover, and removes the request.
    pub const fn take_handover_request(&mut self) -> bool {
        core::mem::replace(&mut self.is_requested, false)
    }

    /// Starts a daemon with these settings: first the subsystems, so that the first host finds them, then the ports.
    ///
    /// # Errors
    /// [`DaemonError`]; nothing is served.
    pub fn start(settings: &Settings) -> Result<Self, DaemonError> {
        let mut daemon = Self::without_ports(settings)?;
        for (id, port) in &settings.ports {
            if let Err(error) = daemon.add_port(*id, port) {
                daemon.end();
                return Err(error);
            }
        }
        Ok(daemon)
    }

    /// Returns a daemon with these settings and without ports.
    pub(super) fn without_ports(settings: &Settings) -> Result<Self, DaemonError> {
        let mut daemon = Self::new(Target::default());
        daemon.settings.log.clone_from(&settings.log);
        daemon.set_of_process(settings);
        daemon.set_strict(settings.strict);
        for (name, subsystem) in &settings.subsystems {
            daemon.add_subsystem(name, subsystem)?;
        }
        for (at, port) in &settings.referrals {
            daemon.add_referral(*at, *port)?;
        }
        Ok(daemon)
    }

    /// Puts the state of a parked target into the daemon's own, which has had no host.
    pub(super) fn resume_target(mut self, snapshot: &TargetSnapshot) -> Result<Self, String> {
        let target = core::mem::take(&mut self.target);
        let model = target.into_model().ok_or("the target is in use")?;
        let target = Target::resume(model, snapshot).map_err(|error| error.to_string())?;
        Ok(Self { target, ..self })
    }

    /// Sets whether the name of a host that connects from now on must have the form of a qualified name (NQN).
    pub(super) fn set_strict(&mut self, strict: bool) {
        self.settings.strict = strict;
        self.target.with(|model| model.set_strict(strict));
    }

    /// Returns the target that the daemon serves.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the current settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the addresses at which a port listens; none if there is no such port.
    #[must_use]
    pub fn addresses(&self, port: u16) -> &[SocketAddr] {
        self.ports.get(&port).map_or(&[], Port::addresses)
    }

    /// Returns the workers of a port, and whether each of them still serves.
    #[must_use]
    pub fn workers(&self, port: u16) -> Vec<(u32, bool)> {
        let port = self.ports.get(&port);
        port.map_or_else(Vec::new, |port| port.workers().collect())
    }

    /// Returns whether at least one worker still serves.
    #[must_use]
    pub fn serves(&self) -> bool {
        let mut workers = self.ports.values().flat_map(Port::workers);
        workers.any(|(_, serves)| serves)
    }

    /// Records the settings that a process takes at its start: the control socket and the address of the metrics.
    pub fn set_of_process(&mut self, settings: &Settings) {
        self.settings.control.clone_from(&settings.control);
        self.settings.metrics = settings.metrics;
    }

    /// Records the filter of the log, so that it is saved with the settings. The caller sets the filter itself.
    pub(super) fn set_log(&mut self, log: Option<String>) {
        self.settings.log = log;
    }

    /// Checks that a disk could be opened now, and could be locked if its settings ask for that, after the locks in
    /// `own.released` have been released. If the existing namespace `there` has the same source, its path must still
    /// name the open file.
    pub(super) fn try_disk(
        &self,
        subsystem: &Nqn,
        nsid: u32,
        settings: &NamespaceSettings,
        there: &NamespaceSettings,
        own: &OwnLocks,
    ) -> Result<(), DaemonError> {
        if there.source == settings.source {
            self.check_path(subsystem, nsid)?;
        }
        let source = settings.source.clone();
        let (shift, read_only) = (settings.shift, settings.read_only);
        let tried = Disk::probe(source, shift, read_only, settings.lock, own);
        tried.map_err(|error| DaemonError::Disk {
            subsystem: subsystem.clone(),
            nsid,
            error,
        })
    }

    /// Checks that the path of a namespace's disk still names the open file.
    pub(super) fn check_path(&self, subsystem: &Nqn, nsid: u32) -> Result<(), DaemonError> {
        let namespace = self.target.with(|model| model.namespace(subsystem, nsid))?;
        let checked = namespace.disk().check_path();
        checked.map_err(|error| DaemonError::Disk {
            subsystem: subsystem.clone(),
            nsid,
            error,
        })
    }

    /// Adds a subsystem with its hosts and namespaces. If one of them fails, neither the subsystem nor any namespace or
    /// key is added.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn add_subsystem(
        &mut self,
        name: &Nqn,
        settings: &SubsystemSettings,
    ) -> Result<(), DaemonError> {
        let keys = keys_of_all(&self.settings, name, settings)?;
        self.add_subsystem_with(name, settings, keys)
    }

    /// Adds a subsystem whose hosts have these keys.
    pub(super) fn add_subsystem_with(
        &mut self,
        name: &Nqn,
        settings: &SubsystemSettings,
        keys: Vec<(Nqn, Keys)>,
    ) -> Result<(), DaemonError> {
        // Disks are opened before the model is locked, because opening takes long and may fail.
        let mut namespaces = Vec::new();
        for (nsid, namespace) in &settings.namespaces {
            namespaces.push((*nsid, open(name, *nsid, namespace)?, namespace.limit));
        }
        self.target.with(|model| -> Result<(), DaemonError> {
            model.add_subsystem(SubsystemConfig {
                name: name.clone(),
                serial: settings.serial.clone(),
                model: settings.model.clone(),
                any_host: settings.any_host,
                queues: settings.queues,
            })?;
            let fill = || -> Result<(), ModelError> {
                for (host, of_host) in &settings.hosts {
                    model.allow_host(name, host.clone())?;
                    model.limit_host(name, host, of_host.limit)?;
                }
                for (nsid, namespace, limit) in namespaces {
                    model.add_namespace(name, namespace)?;
                    if limit.is_some() {
                        model.set_limit(name, nsid, limit)?;
                    }
                }
                Ok(())
            };
            let filled = fill();
            if filled.is_err() {
                model.remove_subsystem(name)?;
            }
            filled?;
            // The hosts see the model only when this step is complete, so the order of keys and hosts has no effect.
            for (host, of_host) in keys {
                model.set_keys(host, Some(of_host));
            }
            Ok(())
        })?;
        self.settings
            .subsystems
            .insert(name.clone(), settings.clone());
        tracing::info!(subsystem = %name, namespaces = settings.namespaces.len(), any_host = settings.any_host, hosts = settings.hosts.len(), "subsystem");
        Ok(())
    }

    /// Removes a subsystem, and disconnects its hosts.
    ///
    /// # Errors
    /// There is no such subsystem.
    pub fn remove_subsystem(&mut self, name: &Nqn) -> Result<(), DaemonError> {
        self.target.with(|model| model.remove_subsystem(name))?;
        if let Some(removed) = self.settings.subsystems.remove(name) {
            for host in removed.hosts.keys() {
                self.forget_key(host);
            }
        }
        tracing::info!(subsystem = %name, "subsystem removed");
        Ok(())
    }

    /// Adds a namespace.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn add_namespace(
        &mut self,
        subsystem: &Nqn,
        nsid: u32,
        settings: &NamespaceSettings,
    ) -> Result<(), DaemonError> {
        let of = self.subsystem_mut(subsystem)?;
        of.namespaces.get(&nsid).map_or(Ok(()), |_| {
            Err(ModelError::Exists {
                kind: "namespace",
                name: nsid.to_string(),
            })
        })?;
        let namespace = open(subsystem, nsid, settings)?;
        self.target.with(|model| {
            model.add_namespace(subsystem, namespace)?;
            if settings.limit.is_some() {
                let limited = model.set_limit(subsystem, nsid, settings.limit);
                limited.inspect_err(|_| {
                    // The namespace exists, because it was just added.
                    let _ = model.remove_namespace(subsystem, nsid);
                })?;
            }
            Ok::<_, ModelError>(())
        })?;
        let of = self.subsystem_mut(subsystem)?;
        of.namespaces.insert(nsid, settings.clone());
        tracing::info!(%subsystem, nsid, source = ?settings.source, "namespace");
        Ok(())
    }

    /// Removes a namespace.
    ///
    /// # Errors
    /// There is no such namespace.
    pub fn remove_namespace(&mut self, subsystem: &Nqn, nsid: u32) -> Result<(), DaemonError> {
        self.target
            .with(|model| model.remove_namespace(subsystem, nsid))?;
        self.subsystem_mut(subsystem)?.namespaces.remove(&nsid);
        tracing::info!(%subsystem, nsid, "namespace removed");
        Ok(())
    }

    /// Reads the size of a namespace's disk again. Returns the number of blocks.
    ///
    /// # Errors
    /// There is no such namespace, or the size of its disk cannot be read or used. Nothing has changed.
    pub fn resize_namespace(&mut self, subsystem: &Nqn, nsid: u32) -> Result<u64, DaemonError> {
        let blocks = self.target.resize_namespace(subsystem, nsid)?;
        tracing::info!(%subsystem, nsid, blocks, "namespace has this size now");
        Ok(blocks)
    }

    /// Limits the I/Os and bytes per second of a namespace; `None` ends the limit.
    ///
    /// # Errors
    /// There is no such namespace, or a number of the limit is out of its range.
    pub fn set_limit(
        &mut self,
        subsystem: &Nqn,
        nsid: u32,
        limit: Option<Limit>,
    ) -> Result<(), DaemonError> {
        self.target
            .with(|model| model.set_limit(subsystem, nsid, limit))?;
        let of = self.subsystem_mut(subsystem)?;
        if let Some(settings) = of.namespaces.get_mut(&nsid) {
            settings.limit = limit;
        }
        tracing::info!(%subsystem, nsid, ?limit, "limit");
        Ok(())
    }

    /// Limits the I/Os and bytes per second of a host at a subsystem; `None` ends the limit.
    ///
    /// # Errors
    /// There is no such subsystem, the host is not listed, or a number of the limit is out of its range.
    pub fn limit_host(
        &mut self,
        subsystem: &Nqn,
        host: &Nqn,
        limit: Option<Limit>,
    ) -> Result<(), DaemonError> {
        self.target
            .with(|model| model.limit_host(subsystem, host, limit))?;
        let of = self.subsystem_mut(subsystem)?;
        if let Some(settings) = of.hosts.get_mut(host) {
            settings.limit = limit;
        }
        tracing::info!(%subsystem, %host, ?limit, "limit");
        Ok(())
    }

    /// Sets the hosts that see a namespace; `None` for all hosts of its subsystem.
    ///
    /// # Errors
    /// There is no such subsystem or namespace.
    pub fn set_hosts(
        &mut self,
        subsystem: &Nqn,
        nsid: u32,
        hosts: Option<BTreeSet<Nqn>>,
    ) -> Result<(), DaemonError> {
        let wanted = hosts.clone();
        self.target
            .with(|model| model.set_hosts(subsystem, nsid, wanted))?;
        tracing::info!(%subsystem, nsid, ?hosts, "hosts that see the namespace");
        let of = self.subsystem_mut(subsystem)?;
        if let Some(settings) = of.namespaces.get_mut(&nsid) {
            settings.hosts = hosts;
        }
        Ok(())
    }

    /// Sets the maximum number of I/O queues of a subsystem's controllers. Its hosts are disconnected, and connect
    /// again with that number.
    ///
    /// # Errors
    /// There is no such subsystem, or the number is out of range.
    pub fn set_queues(&mut self, subsystem: &Nqn, queues: u16) -> Result<(), DaemonError> {
        self.target
            .with(|model| model.set_queues(subsystem, queues))?;
        self.subsystem_mut(subsystem)?.queues = queues;
        tracing::info!(%subsystem, queues, "queues of a host");
        Ok(())
    }

    /// Sets the orders of a namespace's faulty disk; `None` ends them. Returns the number of operations that orders
    /// have affected so far.
    ///
    /// # Errors
    /// There is no such namespace, or its disk is not a faulty disk.
    pub fn order_fault(
        &mut self,
        subsystem: &Nqn,
        nsid: u32,
        orders: Option<Orders>,
    ) -> Result<u64, DaemonError> {
        let namespace = self.target.with(|model| model.namespace(subsystem, nsid))?;
        let faults = namespace.disk().faults();
        let faults = faults.ok_or_else(|| DaemonError::NotFaulty {
            subsystem: subsystem.clone(),
            nsid,
            disk: namespace.disk().name(),
        })?;
        faults.order(orders);
        tracing::warn!(%subsystem, nsid, ?orders, "a disk fails by order");
        Ok(faults.struck())
    }

    /// Allows a host to connect to a subsystem.
    ///
    /// # Errors
    /// There is no such subsystem; a key cannot be read, or differs from the host's key at another subsystem.
    pub fn allow_host(
        &mut self,
        subsystem: &Nqn,
        host: &Nqn,
        settings: &HostSettings,
    ) -> Result<(), DaemonError> {
        let keys = keys_of(&self.settings, subsystem, host, settings)?;
        self.allow_host_with(subsystem, host, settings, keys)
    }

    /// Sets whether any host may connect to a subsystem. Hosts that may not connect any more are disconnected.
    ///
    /// # Errors
    /// There is no such subsystem.
    pub fn set_any_host(&mut self, subsystem: &Nqn, any_host: bool) -> Result<(), DaemonError> {
        self.target
            .with(|model| model.set_any_host(subsystem, any_host))?;
        self.subsystem_mut(subsystem)?.any_host = any_host;
        tracing::info!(%subsystem, any_host, "any host");
        Ok(())
    }

    /// Allows a host, which has these keys, to connect to a subsystem.
    pub(super) fn allow_host_with(
        &mut self,
        subsystem: &Nqn,
        host: &Nqn,
        settings: &HostSettings,
        keys: Option<Keys>,
    ) -> Result<(), DaemonError> {
        if settings.limit.is_some_and(|limit| !limit.is_valid()) {
            return Err(ModelError::Limit.into());
        }
        self.target.with(|model| -> Result<(), ModelError> {
            model.allow_host(subsystem, host.clone())?;
            model.limit_host(subsystem, host, settings.limit)?;
            if keys.is_some() {
                model.set_keys(host.clone(), keys);
            }
            Ok(())
        })?;
        let of = self.subsystem_mut(subsystem)?;
        of.hosts.insert(host.clone(), settings.clone());
        // The host may have had a key here until now.
        self.forget_key(host);
        tracing::info!(%subsystem, %host, "host may connect");
        Ok(())
    }

    /// Forbids a host to connect to a subsystem, and disconnects it.
    ///
    /// # Errors
    /// There is no such subsystem, or the host was not allowed.
    pub fn forbid_host(&mut self, subsystem: &Nqn, host: &Nqn) -> Result<(), DaemonError> {
        self.target
            .with(|model| model.forbid_host(subsystem, host))?;
        self.subsystem_mut(subsystem)?.hosts.remove(host);
        self.forget_key(host);
        tracing::info!(%subsystem, %host, "host may connect no more");
        Ok(())
    }

    /// Removes the key of this host from the model, unless the settings of a subsystem still name a key for the host.
    fn forget_key(&self, host: &Nqn) {
        let mut all = self.settings.subsystems.values();
        let is_named = all.any(|of| of.hosts.get(host).is_some_and(|one| one.key.is_some()));
        if !is_named {
            self.target.with(|model| model.set_keys(host.clone(), None));
        }
    }

    /// Adds a port: opens its adapter, and listens.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn add_port(&mut self, id: u16, settings: &PortSettings) -> Result<(), DaemonError> {
        self.add_port_to_model(id, settings, Vec::new())?;
        let others = self.ports.iter().map(|(id, port)| (*id, port));
        let port = match Port::start(&self.target, id, settings, others) {
            Ok(port) => port,
            Err(error) => {
                self.target.with(|model| model.remove_port(id))?;
                return Err(DaemonError::Port { port: id, error });
            }
        };
        let at = port.addresses().to_vec();
        self.target.with(|model| model.move_port(id, at))?;
        self.insert_port(id, settings, port);
        Ok(())
    }

    /// Adds a port to the model, before the first host can connect.
    pub(super) fn add_port_to_model(
        &self,
        id: u16,
        settings: &PortSettings,
        addresses: Vec<SocketAddr>,
    ) -> Result<(), ModelError> {
        self.target.with(|model| {
            model.add_port(id, addresses)?;
            let mut fill = || {
                model.set_transfer_shift(id, settings.transfer_shift)?;
                for (group, access) in &settings.access {
                    model.set_access(id, *group, *access)?;
                }
                Ok(())
            };
            let filled = fill();
            if filled.is_err() {
                model.remove_port(id)?;
            }
            filled
        })
    }

    /// Adds a port that the model has, with workers that were resumed. Hosts find it at the addresses in `place`.
    pub(super) fn run_port(
        &mut self,
        id: u16,
        settings: &PortSettings,
        place: (Adapter, Vec<SocketAddr>),
        workers: Vec<Worker>,
    ) -> Result<(), DaemonError> {
        let at = place.1.clone();
        let port = Port::run(&self.target, id, settings, place, workers);
        let port = port.map_err(|error| DaemonError::Port { port: id, error })?;
        self.target.with(|model| {
            let has_moved = !model.ports().any(|one| one.id == id && one.addresses == at);
            if has_moved {
                model.move_port(id, at)?;
            }
            Ok::<_, ModelError>(())
        })?;
        self.insert_port(id, settings, port);
        Ok(())
    }

    fn insert_port(&mut self, id: u16, settings: &PortSettings, port: Port) {
        tracing::info!(
            port = id,
            adapter = settings.adapter,
            at = ?port.addresses(),
            workers = settings.workers,
            "listening"
        );
        self.ports.insert(id, port);
        self.settings.ports.insert(id, settings.clone());
    }

    /// Returns the open ports.
    pub(super) const fn ports(&self) -> &BTreeMap<u16, Port> {
        &self.ports
    }

    /// Removes all open ports from this value. Their workers have gone to the next process.
    pub(super) fn take_ports(&mut self) -> BTreeMap<u16, Port> {
        self.is_handed_over = true;
        core::mem::take(&mut self.ports)
    }

    /// Sets the adapter of a port, which was resumed.
    pub(super) fn set_adapter(&mut self, port: u16, adapter: Adapter) {
        if let Some(port) = self.ports.get_mut(&port) {
            port.set_adapter(adapter);
        }
    }

    /// Removes a port, and disconnects its hosts. Waits for a bounded time until the port's threads have ended.
    ///
    /// # Errors
    /// There is no such port.
    pub fn remove_port(&mut self, id: u16) -> Result<(), DaemonError> {
        // First discovery stops listing the port. Then pending commands are answered, and the port's controllers end.
        self.target.with(|model| model.move_port(id, Vec::new()))?;
        if let Some(port) = self.ports.remove(&id) {
            port.stop(&self.target);
        }
        self.target.with(|model| model.remove_port(id))?;
        self.settings.ports.remove(&id);
        tracing::info!(port = id, "listens no more");
        Ok(())
    }

    /// Sets the access of a port to a group of namespaces.
    ///
    /// # Errors
    /// There is no such port, or no such group.
    pub fn set_access(&mut self, port: u16, group: u32, access: Access) -> Result<(), DaemonError> {
        self.target
            .with(|model| model.set_access(port, group, access))?;
        if let Some(settings) = self.settings.ports.get_mut(&port) {
            settings.access.remove(&group);
            if access != Access::Optimized {
                settings.access.insert(group, access);
            }
        }
        tracing::info!(port, group, ?access, "access");
        Ok(())
    }

    /// Adds a referral to another discovery service.
    ///
    /// # Errors
    /// There is a referral to this address already.
    pub fn add_referral(&mut self, at: SocketAddr, port: u16) -> Result<(), DaemonError> {
        self.target.with(|model| model.add_referral(port, at))?;
        self.settings.referrals.insert(at, port);
        Ok(())
    }

    /// Removes a referral.
    ///
    /// # Errors
    /// There is no such referral.
    pub fn remove_referral(&mut self, at: SocketAddr) -> Result<(), DaemonError> {
        self.target.with(|model| model.remove_referral(at))?;
        self.settings.referrals.remove(&at);
        Ok(())
    }

    /// Removes from discovery the ports whose workers have all ended, because their adapters cannot be used any more.
    /// Returns the number of these ports.
    pub fn give_up_ports(&mut self) -> usize {
        let mut given_up = 0;
        for (id, port) in &mut self.ports {
            if port.workers().any(|(_, serves)| serves) || port.addresses().is_empty() {
                continue;
            }
            port.clear_addresses();
            // The model has the port as long as the settings have it.
            let _ = self.target.with(|model| model.move_port(*id, Vec::new()));
            tracing::error!(
                port = id,
                "no worker serves it any more, and discovery lists it no more; remove it and add it again once its adapter is back"
            );
            given_up += 1;
        }
        given_up
    }

    /// Ends all ports at the same time, each within its time limit.
    pub fn end(&mut self) {
        for port in self.ports.values() {
            port.request_stop(&self.target);
        }
        for (id, port) in core::mem::take(&mut self.ports) {
            let over = port.stop(&self.target);
            tracing::info!(
                port = id,
                commands = over.commands,
                connections = over.connections,
                "listens no more"
            );
        }
    }

    fn subsystem_mut(&mut self, name: &Nqn) -> Result<&mut SubsystemSettings, ModelError> {
        let found = self.settings.subsystems.get_mut(name);
        found.ok_or_else(|| ModelError::Unknown {
            kind: "subsystem",
            name: name.to_string(),
        })
    }
}

/// Reads the keys of a host of a subsystem from their files; `None` if the host has no key. `all`: the settings of all
/// subsystems. In the others the host may have no other key.
pub(super) fn keys_of(
    all: &Settings,
    subsystem: &Nqn,
    host: &Nqn,
    settings: &HostSettings,
) -> Result<Option<Keys>, DaemonError> {
    let Some(file) = &settings.key else {
        return Ok(None);
    };
    let others = all.subsystems.iter();
    for (other, of) in others.filter(|(other, _)| *other != subsystem) {
        let there = of.hosts.get(host);
        let pairs = [
            (there.and_then(|one| one.key.as_ref()), Some(file)),
            (
                there.and_then(|one| one.controller_key.as_ref()),
                settings.controller_key.as_ref(),
            ),
        ];
        let differs =
            |(there, here): &(Option<&PathBuf>, Option<&PathBuf>)| there.is_some() && there != here;
        if let Some((Some(there), _)) = pairs.into_iter().find(differs) {
            return Err(DaemonError::OtherKey {
                host: host.clone(),
                subsystem: other.clone(),
                file: there.clone(),
            });
        }
    }
    let controller = settings.controller_key.as_ref();
    Ok(Some(Keys {
        host: key_in(host, file)?,
        controller: controller.map(|file| key_in(host, file)).transpose()?,
        hash: None,
        group: None,
    }))
}

/// Reads the keys of all hosts of a subsystem, as [`keys_of`].
pub(super) fn keys_of_all(
    all: &Settings,
    subsystem: &Nqn,
    settings: &SubsystemSettings,
) -> Result<Vec<(Nqn, Keys)>, DaemonError> {
    let mut keys = Vec::new();
    for (host, of_host) in &settings.hosts {
        let of = keys_of(all, subsystem, host, of_host)?;
        keys.extend(of.map(|of| (host.clone(), of)));
    }
    Ok(keys)
}

fn open(
    subsystem: &Nqn,
    nsid: u32,
    settings: &NamespaceSettings,
) -> Result<NamespaceConfig, DaemonError> {
    let opens = if settings.lock {
        Disk::open
    } else {
        Disk::open_unlocked
    };
    let disk = opens(settings.source.clone(), settings.shift, settings.read_only);
    let disk = disk.map_err(|error| DaemonError::Disk {
        subsystem: subsystem.clone(),
        nsid,
        error,
    })?;
    if let Some(warning) = left_out(subsystem, nsid, &disk) {
        tracing::warn!("{warning}");
    }
    Ok(NamespaceConfig {
        nsid: Some(nsid),
        uuid: settings.uuid,
        group: settings.group,
        hosts: settings.hosts.clone(),
        disk,
    })
}

fn left_out(subsystem: &Nqn, nsid: u32, disk: &Disk) -> Option<String> {
    let left = disk.left_out().ok().filter(|left| *left != 0)?;
    let (name, block) = (disk.name(), 1 << disk.shift());
    Some(format!(
        "namespace {nsid} of {subsystem}: {name} has {left} bytes behind its last block of {block}, \
         which no host reaches"
    ))
}

/// Reads the key of a host from a file. From then on this process leaves no core dump, and other processes of its user
/// cannot trace it.
fn key_in(host: &Nqn, path: &Path) -> Result<Key, DaemonError> {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        let (owner, mode) = (file.metadata()?.uid(), file.metadata()?.mode() & 0o7777);
        if let Some(others) = may_read(mode) {
            let file = path.display();
            tracing::warn!(%host, owner, "the key in {file} can be read by {others}: its mode is {mode:04o}, and 0600 would do");
        }
        nix::sys::prctl::set_dumpable(false)?;
        let mut text = zeroize::Zeroizing::new(String::new());
        file.read_to_string(&mut text)?;
        Ok(text)
    };
    let file = path;
    let text = read().map_err(|error| DaemonError::Key {
        host: host.clone(),
        file: file.to_owned(),
        error,
    })?;
    text.parse().map_err(|error| DaemonError::NoKey {
        host: host.clone(),
        file: file.to_owned(),
        error,
    })
}

/// Returns the users besides the owner that may read a file with this mode; `None` if there are none.
const fn may_read(mode: u32) -> Option<&'static str> {
    match (mode & 0o040 != 0, mode & 0o004 != 0) {
        (_, true) => Some("everybody"),
        (true, false) => Some("its group"),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{file, write};
    use super::*;

    #[test]
    fn a_key_file_that_others_can_read_is_told_by_who_can() {
        for (mode, others) in [
            (0o600, None),
            (0o400, None),
            (0o620, None),
            (0o640, Some("its group")),
            (0o644, Some("everybody")),
            (0o604, Some("everybody")),
        ] {
            assert_eq!(may_read(mode), others, "{mode:o}");
        }
    }

    #[test]
    fn a_host_of_a_file_is_called_as_it_likes_unless_the_file_is_strict() {
        let text = |strict: &str| {
            let of = "[[subsystem]]\nnqn = \"nqn.2026-11.test:disks\"\n";
            format!("{strict}{of}[[subsystem.host]]\nnqn = \"not-a-nqn\"\n")
        };
        let parse = |text: &str| file::parse(Path::new("test"), text);
        for loose in ["", "strict = false\n"] {
            let settings = parse(&text(loose)).expect("a name");
            assert_eq!(parse(&write::text(&settings)), Ok(settings));
        }
        let mistakes = parse(&text("strict = true\n")).expect_err("no qualified name");
        assert!(mistakes.to_string().contains("not-a-nqn"), "{mistakes}");
        let strict = parse("strict = true\n").expect("a file");
        assert_eq!(parse(&write::text(&strict)), Ok(strict));
    }
}
