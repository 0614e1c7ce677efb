//! Handover: the next process of the daemon goes on with its adapters, its hosts and their connections.
//!
//! ```text
//!   the old process: Daemon::hand_over                         the next process: Daemon::adopt
//!     hold the target; all workers pause                         read the state; open and lock the disks;
//!     park the workers, the target, the adapters                   make a target, and put the old one's state into it
//!     give: descriptors and snapshot ------------------------->  check the adapters; claim them; go on with them
//!     (refused: resume all of it, release the target)            resume the workers; start their threads
//!     end                                                        apply the configuration file, as SIGHUP does
//! ```
//!
//! Commands of hosts wait in the workers' receives meanwhile. The settings are those that the old process had, so that
//! nothing about a host's disks changes on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use udapl::handover::{
    self, HandoverError, MAX_ADAPTERS, NamedFd, NotAdopted, NotGiven, Offer, ParkFailure, Parked,
    Sent, ServiceManager,
};
use udapl::{Adapter, Ia};

use super::port::{Port, addresses, worker_config};
use super::settings::{PortSettings, Settings};
use super::state::{Daemon, DaemonError};
use super::state_words::{DiskWords, Words};
use super::worker_thread::{Waited, WorkerThread};
use crate::disk::Source;
use crate::model::WorkerId;
use crate::nvme::Nqn;
use crate::serve::{
    Target, TargetParkError, Worker, WorkerParkError, WorkerResumeError, WorkerSnapshot,
};

/// Reason why a daemon was not handed over. With all but [`Self::Lost`], it serves as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// There is no service manager.
    #[error(
        "there is no service manager that could keep the adapter's descriptors (NOTIFY_SOCKET is not set)"
    )]
    NoManager,
    /// The service manager keeps no descriptors.
    #[error(
        "the service manager keeps no descriptors of this service (FileDescriptorStoreMax= is 0)"
    )]
    NoStore,
    /// There is no adapter, or there are too many.
    #[error(
        "the ports have {count} adapters; a daemon with 1 to {MAX_ADAPTERS} can be handed over"
    )]
    Adapters {
        /// Number of the adapters.
        count: usize,
    },
    /// The content of a disk ends with the process.
    #[error("namespace {nsid} of {subsystem} is memory of this process")]
    Memory {
        /// Subsystem of the namespace.
        subsystem: Nqn,
        /// Number of the namespace.
        nsid: u32,
    },
    /// The next process would reset an SSD while hosts use it.
    #[error("namespace {nsid} of {subsystem} is an SSD that this process drives")]
    Ssd {
        /// Subsystem of the namespace.
        subsystem: Nqn,
        /// Number of the namespace.
        nsid: u32,
    },
    /// A worker has ended, because its adapter failed.
    #[error("worker {worker} has ended")]
    Ended {
        /// Number of the worker.
        worker: WorkerId,
    },
    /// The function of an adapter is simulated in this process.
    #[error("{device} is simulated in this process, and ends with it")]
    Simulated {
        /// Part of the adapter's name that identifies the function.
        device: String,
    },
    /// Workers have not paused in time. A disk or a host may not have answered.
    #[error("workers {workers:?} have not paused within {} ms", limit.as_millis())]
    Busy {
        /// Numbers of the workers.
        workers: Vec<WorkerId>,
        /// The time that they had.
        limit: Duration,
    },
    /// A worker was not parked.
    #[error("{0}")]
    Worker(WorkerParkError),
    /// The target was not parked.
    #[error("{0}")]
    Target(#[from] TargetParkError),
    /// The state of the daemon cannot be written.
    #[error("the state of the daemon: {why}")]
    State {
        /// The reason.
        why: String,
    },
    /// The adapters were not parked.
    #[error("{0}")]
    Adapter(ParkFailure),
    /// The handover was not given.
    #[error("{0}")]
    Given(HandoverError),
    /// The handover was not given, and workers cannot go on: their connections end.
    #[error("{error}; and workers are lost: {lost}")]
    Lost {
        /// The first reason.
        error: Box<Self>,
        /// The reason why they cannot go on.
        lost: String,
    },
}

/// Reason why a daemon was not adopted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The adapters were not adopted.
    #[error("{0}")]
    Adapter(#[from] NotAdopted),
    /// The adapters have another number of instances than workers.
    #[error("the adapters have {instances} instances for {count} workers")]
    Instances {
        /// Number of the instances.
        instances: usize,
        /// Number of the workers.
        count: usize,
    },
    /// A worker was not resumed.
    #[error("worker {worker}: {error}")]
    Worker {
        /// Number of the worker.
        worker: WorkerId,
        /// The reason.
        error: WorkerResumeError,
    },
    /// A port was not started.
    #[error("{0}")]
    Port(Box<DaemonError>),
}

/// Checks that there is a service manager with a store. One that does not report its room may have none.
///
/// # Errors
/// [`HandOverError::NoManager`], [`HandOverError::NoStore`].
pub fn check_manager(manager: Option<&ServiceManager>) -> Result<&ServiceManager, HandOverError> {
    let manager = manager.ok_or(HandOverError::NoManager)?;
    match manager.store_room() {
        Some(0) => Err(HandOverError::NoStore),
        Some(_) | None => Ok(manager),
    }
}

/// Workers of an adapter that were parked, with their instances in the same order. Instances that are lost are missing.
#[derive(Default)]
struct ParkedWorkers {
    ias: Vec<Ia>,
    snapshots: Vec<WorkerSnapshot>,
}

/// Parked workers of all adapters.
type ParkedAdapters = Vec<ParkedWorkers>;

/// Gives instances to the workers of their adapters, in the same order.
fn with_instances(snapshots: Vec<Vec<WorkerSnapshot>>, adapters: Vec<Vec<Ia>>) -> ParkedAdapters {
    let mut adapters = adapters.into_iter();
    let of_adapter = |snapshots| ParkedWorkers {
        ias: adapters.next().unwrap_or_default(),
        snapshots,
    };
    snapshots.into_iter().map(of_adapter).collect()
}

impl Daemon {
    /// Checks what can be checked without an effect on hosts: whether [`Self::hand_over`] could succeed.
    ///
    /// # Errors
    /// [`HandOverError::Adapters`], [`HandOverError::Simulated`], [`HandOverError::Ended`], [`HandOverError::Memory`].
    pub fn check_hand_over(&self) -> Result<(), HandOverError> {
        let devices = self.devices();
        let count = devices.len();
        if !(1..=MAX_ADAPTERS).contains(&count) {
            return Err(HandOverError::Adapters { count });
        }
        let is_simulated = |device: &String| device.starts_with("sim:");
        if let Some(device) = devices.into_iter().find(is_simulated) {
            return Err(HandOverError::Simulated { device });
        }
        if let Some(ended) = self.threads().find(|thread| !thread.serves()) {
            let worker = ended.id();
            return Err(HandOverError::Ended { worker });
        }
        check_sources(self.settings())
    }

    /// Pauses all workers, for which they have the time `limit`, parks the adapters, and gives them to the next process
    /// by `give`. If this succeeds, the daemon has no ports any more, and the process ends.
    ///
    /// # Errors
    /// [`HandOverError`]. With all but [`HandOverError::Lost`], all workers go on.
    pub fn hand_over(
        &mut self,
        limit: Duration,
        give: impl FnOnce(&[u8], Vec<NamedFd>) -> Result<Sent, NotGiven>,
    ) -> Result<Sent, HandOverError> {
        self.check_hand_over()?;
        self.target().hold();
        match self.hand_over_held(limit, give) {
            Ok(sent) => {
                for port in self.take_ports().into_values() {
                    port.dismiss();
                }
                Ok(sent)
            }
            Err(error) => {
                self.target().release();
                for thread in self.threads() {
                    thread.wake();
                }
                Err(error)
            }
        }
    }

    fn hand_over_held(
        &mut self,
        limit: Duration,
        give: impl FnOnce(&[u8], Vec<NamedFd>) -> Result<Sent, NotGiven>,
    ) -> Result<Sent, HandOverError> {
        let until = Instant::now() + limit;
        let (workers, words) = loop {
            self.wait_for_pauses(until, limit)?;
            match self.park_target() {
                Ok(parked) => break parked,
                // A worker has got a message after it paused. It handles the message, and pauses again.
                Err(
                    HandOverError::Worker(WorkerParkError::Busy { .. })
                    | HandOverError::Target(TargetParkError::Messages { .. }),
                ) if Instant::now() < until => {}
                Err(error) => return Err(error),
            }
        };
        let each = workers.into_iter().map(|of| (of.ias, of.snapshots));
        let (adapters, snapshots): (Vec<_>, Vec<_>) = each.unzip();
        let parked = match handover::park_adapters(adapters, &words) {
            Ok(parked) => parked,
            Err(refused) => {
                let (adapters, error) = refused.into_adapters();
                let workers = with_instances(snapshots, adapters);
                return Err(self.give_back(workers, HandOverError::Adapter(error)));
            }
        };
        let Parked {
            snapshot,
            descriptors,
        } = parked;
        let (descriptors, error) = match give(&snapshot, descriptors) {
            Ok(sent) => return Ok(sent),
            Err(NotGiven {
                descriptors, error, ..
            }) => (descriptors, HandOverError::Given(error)),
        };
        // An adapter that does not go on costs its own hosts only.
        let resumed = handover::take_back(Parked {
            snapshot,
            descriptors,
        });
        let adapters = resumed.unwrap_or_else(|refused| {
            tracing::error!(error = %refused, "the adapters do not go on");
            Vec::new()
        });
        Err(self.give_back(with_instances(snapshots, adapters), error))
    }

    /// Waits until all workers have paused.
    fn wait_for_pauses(&self, until: Instant, limit: Duration) -> Result<(), HandOverError> {
        for thread in self.threads() {
            match thread.wait_for_pause(until) {
                Waited::Paused => {}
                Waited::Ended => {
                    let worker = thread.id();
                    return Err(HandOverError::Ended { worker });
                }
                Waited::TimedOut => {
                    let workers = self.target().busy_workers();
                    return Err(HandOverError::Busy { workers, limit });
                }
            }
        }
        Ok(())
    }

    /// Parks all workers and the target. Returns the workers, and the state of the daemon. If this fails, the workers
    /// are with their threads again.
    fn park_target(&mut self) -> Result<(ParkedAdapters, Vec<u8>), HandOverError> {
        let workers = self.park_workers()?;
        let snapshots = workers.iter().flat_map(|of| &of.snapshots).cloned();
        match self.words(snapshots.collect()) {
            Ok(words) => Ok((workers, words)),
            Err(error) => Err(self.give_back(workers, error)),
        }
    }

    fn threads(&self) -> impl Iterator<Item = &WorkerThread> {
        self.ports().values().flat_map(Port::threads)
    }

    /// Returns the parts of the adapters' names that identify their functions. An open port's name is valid.
    fn devices(&self) -> BTreeSet<String> {
        let devices = self.ports().values().filter_map(|port| port.device().ok());
        devices.collect()
    }

    /// Parks all workers, which have paused.
    fn park_workers(&mut self) -> Result<ParkedAdapters, HandOverError> {
        let mut adapters = ParkedAdapters::new();
        let mut refused = None;
        for device in self.devices() {
            let mut parked = ParkedWorkers::default();
            let is_of_device = |port: &&Port| port.device().is_ok_and(|of| of == device);
            let ports = self.ports().values().filter(is_of_device);
            let threads = ports.flat_map(Port::threads);
            refused = park_each(threads, &mut parked).err();
            adapters.push(parked);
            if refused.is_some() {
                break;
            }
        }
        match refused {
            None => Ok(adapters),
            Some(error) => Err(self.give_back(adapters, error)),
        }
    }

    /// Returns the state of the daemon for the next process.
    fn words(&self, workers: Vec<WorkerSnapshot>) -> Result<Vec<u8>, HandOverError> {
        let addresses = self.ports().iter();
        let addresses = addresses.map(|(id, port)| (*id, port.addresses().to_vec()));
        let words = Words {
            settings: self.settings().clone(),
            addresses: addresses.collect(),
            disks: disks(self.target()),
            target: self.target().park()?,
            workers,
        };
        let written = words.write();
        written.map_err(|error| HandOverError::State {
            why: error.to_string(),
        })
    }

    /// Gives parked workers back to their threads, because of `error`. Workers without an instance are lost.
    fn give_back(&mut self, adapters: ParkedAdapters, error: HandOverError) -> HandOverError {
        let mut lost = Vec::new();
        let mut resumed = BTreeMap::new();
        for ParkedWorkers { ias, snapshots } in adapters {
            let mut ias = ias.into_iter();
            for snapshot in &snapshots {
                let ia = ias.next();
                if let Some(ia) = &ia {
                    resumed.insert(snapshot.config().port, Adapter::of(ia));
                }
                if let Err(why) = self.give_one_back(ia, snapshot) {
                    lost.push(format!("worker {}: {why}", snapshot.worker()));
                }
            }
        }
        for (port, adapter) in resumed {
            self.set_adapter(port, adapter);
        }
        if lost.is_empty() {
            return error;
        }
        HandOverError::Lost {
            error: Box::new(error),
            lost: lost.join("; "),
        }
    }

    /// Gives a parked worker back to its thread.
    ///
    /// # Errors
    /// The reason why the worker is lost.
    fn give_one_back(&self, ia: Option<Ia>, snapshot: &WorkerSnapshot) -> Result<(), String> {
        let worker = match ia {
            Some(ia) => {
                Worker::resume(self.target(), ia, snapshot).map_err(|refused| refused.1.to_string())
            }
            None => Err("the adapter does not go on".to_owned()),
        };
        let mut threads = self.threads();
        let thread = threads.find(|thread| thread.id() == snapshot.worker());
        match (worker, thread) {
            (Ok(worker), Some(thread)) => thread.give_back(worker),
            (Ok(_), None) => {}
            (Err(why), thread) => {
                self.target().forget_worker(snapshot.worker());
                if let Some(thread) = thread {
                    thread.dismiss();
                }
                return Err(why);
            }
        }
        Ok(())
    }

    /// Goes on with the daemon of an earlier process. The state is checked, and the disks are opened and locked, before
    /// the offer is claimed.
    ///
    /// # Errors
    /// [`AdoptError`]; nothing is served. If the offer was claimed, its device is reset as soon as the descriptors are
    /// closed.
    pub fn adopt(offer: Offer) -> Result<Self, AdoptError> {
        let (resumed, unclaimed) = handover::adopt_adapters_if(offer, Unclaimed::new)?;
        unclaimed.start_workers(resumed.adapters.into_iter().flatten().collect())
    }
}

/// Parks the workers of an adapter.
fn park_each<'a>(
    threads: impl Iterator<Item = &'a WorkerThread>,
    parked: &mut ParkedWorkers,
) -> Result<(), HandOverError> {
    for thread in threads {
        let Some(worker) = thread.take() else {
            let worker = thread.id();
            return Err(HandOverError::Ended { worker });
        };
        match worker.park() {
            Ok((ia, snapshot)) => {
                parked.ias.push(ia);
                parked.snapshots.push(snapshot);
            }
            Err(not_parked) => {
                let (worker, error) = *not_parked;
                thread.give_back(worker);
                return Err(HandOverError::Worker(error));
            }
        }
    }
    Ok(())
}

/// Returns the namespaces of a target with the identities of their disks.
fn disks(target: &Target) -> Vec<DiskWords> {
    target.with(|model| {
        let mut disks = Vec::new();
        for subsystem in model.subsystems() {
            disks.extend(subsystem.namespaces().map(|namespace| DiskWords {
                subsystem: subsystem.name().to_string(),
                nsid: namespace.nsid(),
                identity: namespace.disk().identity(),
            }));
        }
        disks
    })
}

/// A daemon of which the offer was not claimed yet: it has no ports. The workers are those that it will have.
struct Unclaimed {
    daemon: Daemon,
    ports: BTreeMap<u16, PortSettings>,
    workers: Vec<WorkerSnapshot>,
}

impl Unclaimed {
    /// Makes the daemon of its state.
    fn new(words: &[u8]) -> Result<Self, String> {
        let words = Words::read(words).map_err(|error| error.to_string())?;
        let Words {
            settings,
            addresses,
            disks: parked_disks,
            target,
            workers,
        } = words;
        check_workers(&settings, &workers)?;
        check_sources(&settings).map_err(|error| error.to_string())?;
        let daemon = Daemon::without_ports(&settings).map_err(|error| error.to_string())?;
        for (id, port) in &settings.ports {
            let at = addresses.get(id).cloned().unwrap_or_default();
            let added = daemon.add_port_to_model(*id, port, at);
            added.map_err(|error| format!("port {id}: {error}"))?;
        }
        // The target checks that the namespaces are those of its state.
        let parked_disks: BTreeSet<DiskWords> = parked_disks.into_iter().collect();
        for is in disks(daemon.target()) {
            if !parked_disks.contains(&is) {
                let (nsid, of) = (is.nsid, is.subsystem);
                return Err(format!("namespace {nsid} of {of} has another disk"));
            }
        }
        let daemon = daemon.resume_target(&target)?;
        let resumed: BTreeSet<WorkerId> = workers.iter().map(WorkerSnapshot::worker).collect();
        if !daemon.target().parked_workers().iter().eq(&resumed) {
            return Err("the target has other workers".to_owned());
        }
        Ok(Self {
            daemon,
            ports: settings.ports,
            workers,
        })
    }

    /// Resumes the workers, and starts their threads.
    fn start_workers(self, ias: Vec<Ia>) -> Result<Daemon, AdoptError> {
        let Self {
            mut daemon,
            ports,
            workers: snapshots,
        } = self;
        let (instances, count) = (ias.len(), snapshots.len());
        if instances != count {
            return Err(AdoptError::Instances { instances, count });
        }
        let mut workers = BTreeMap::<u16, Vec<Worker>>::new();
        let mut places = BTreeMap::<u16, (Adapter, Vec<SocketAddr>)>::new();
        for (ia, snapshot) in ias.into_iter().zip(&snapshots) {
            let (worker, config) = (snapshot.worker(), snapshot.config());
            let place = places.entry(config.port);
            place.or_insert_with(|| (Adapter::of(&ia), addresses(&ia, config.service)));
            let resumed = Worker::resume(daemon.target(), ia, snapshot);
            let resumed = resumed.map_err(|refused| AdoptError::Worker {
                worker,
                error: refused.1,
            })?;
            workers.entry(config.port).or_default().push(resumed);
        }
        for (id, place) in places {
            let (Some(settings), Some(workers)) = (ports.get(&id), workers.remove(&id)) else {
                continue;
            };
            if let Err(error) = daemon.run_port(id, settings, place, workers) {
                daemon.end();
                return Err(AdoptError::Port(Box::new(error)));
            }
        }
        Ok(daemon)
    }
}

/// Checks that no disk ends with its process, and that none is an SSD that the process drives.
fn check_sources(settings: &Settings) -> Result<(), HandOverError> {
    for (subsystem, of) in &settings.subsystems {
        for (nsid, namespace) in &of.namespaces {
            match namespace.source {
                Source::Memory(_) | Source::Faulty(_) => {
                    return Err(HandOverError::Memory {
                        subsystem: subsystem.clone(),
                        nsid: *nsid,
                    });
                }
                Source::Ssd(_) => {
                    return Err(HandOverError::Ssd {
                        subsystem: subsystem.clone(),
                        nsid: *nsid,
                    });
                }
                Source::File(_) | Source::Given(_) | Source::Null(_) => {}
            }
        }
    }
    Ok(())
}

/// Checks that the workers are those of the ports.
fn check_workers(settings: &Settings, workers: &[WorkerSnapshot]) -> Result<(), String> {
    let mut counts = BTreeMap::<u16, usize>::new();
    for worker in workers {
        let config = worker.config();
        let port = settings.ports.get(&config.port);
        if port.map(|port| worker_config(config.port, port)) != Some(config) {
            let (worker, port) = (worker.worker(), config.port);
            return Err(format!("worker {worker} is not one of port {port}"));
        }
        *counts.entry(config.port).or_default() += 1;
    }
    for (id, port) in &settings.ports {
        let count = counts.get(id).copied().unwrap_or(0);
        if count != usize::from(port.workers) {
            return Err(format!("port {id} has {count} workers of {}", port.workers));
        }
    }
    Ok(())
}
