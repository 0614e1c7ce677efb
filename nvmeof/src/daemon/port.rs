//! Open ports: an adapter, and the threads that serve it.

use std::net::{IpAddr, SocketAddr};

use udapl::adapter::IaConfig;
use udapl::error::OpenError;
use udapl::{Adapter, Ia, OpenOptions, ia_open, name};

use super::settings::PortSettings;
use super::worker_thread::WorkerThread;
use crate::model::WorkerId;
use crate::serve::{Over, Target, Worker, WorkerConfig, WorkerError};

/// Reason why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The adapter cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// Another port uses the adapter with other options.
    #[error("adapter {adapter}: port {other} has it already, as {there}")]
    OtherName {
        /// Adapter's name with the options that were requested.
        adapter: String,
        /// Number of the other port.
        other: u16,
        /// Adapter's name with the options of the other port.
        there: String,
    },
    /// A worker cannot be created.
    #[error("adapter {adapter}: worker {number}: {error}")]
    Worker {
        /// Name of the adapter.
        adapter: String,
        /// Number of the worker within the port, from 0.
        number: u16,
        /// Reason why the worker cannot be created.
        error: WorkerError,
    },
    /// The thread of a worker cannot be started.
    #[error("a thread for a worker: {0}")]
    Thread(std::io::Error),
}

/// An open port with its workers.
pub(super) struct Port {
    adapter: Adapter,
    name: String,
    addresses: Vec<SocketAddr>,
    workers: Vec<WorkerThread>,
}

/// Returns the configuration of a port's workers.
pub(super) fn worker_config(port: u16, settings: &PortSettings) -> WorkerConfig {
    WorkerConfig {
        port,
        service: settings.service,
        ios: settings.ios,
        buffers: settings.buffers,
        transfer_shift: settings.transfer_shift,
        spin: settings.spin,
    }
}

/// Returns the part of an adapter's name that identifies the function.
fn device(adapter: &str) -> Result<String, OpenError> {
    let (device, _) = name::parse(adapter, &OpenOptions::default())?;
    Ok(device.to_owned())
}

impl Port {
    /// Opens a port and starts its workers. `others` are the ports that are open already.
    pub(super) fn start<'a>(
        target: &Target,
        id: u16,
        settings: &PortSettings,
        mut others: impl Iterator<Item = (u16, &'a Self)>,
    ) -> Result<Self, PortError> {
        let wanted = device(&settings.adapter)?;
        let same = others.find(|(_, port)| device(&port.name).is_ok_and(|one| one == wanted));
        let first = match same {
            Some((_, port)) if port.name == settings.adapter => {
                port.adapter.instance(IaConfig::default())?
            }
            Some((other, port)) => {
                return Err(PortError::OtherName {
                    adapter: settings.adapter.clone(),
                    other,
                    there: port.name.clone(),
                });
            }
            None => ia_open(&settings.adapter, &OpenOptions::default())?,
        };
        let adapter = Adapter::of(&first);
        let addresses = addresses(&first, settings.service);
        let mut ias = vec![first];
        while ias.len() < usize::from(settings.workers) {
            ias.push(adapter.instance(IaConfig::default())?);
        }
        let config = worker_config(id, settings);
        // All workers are created before the first one runs, so that a failure leaves nothing served.
        let mut made = Vec::new();
        for (number, ia) in (0..).zip(ias) {
            let worker = Worker::new(target, ia, config);
            made.push(worker.map_err(|error| PortError::Worker {
                adapter: settings.adapter.clone(),
                number,
                error,
            })?);
        }
        Self::run(target, id, settings, (adapter, addresses), made)
    }

    /// Starts the threads of a port's workers, which the caller has made or resumed. `adapter` is theirs, and hosts
    /// find them at `addresses`.
    pub(super) fn run(
        target: &Target,
        id: u16,
        settings: &PortSettings,
        (adapter, addresses): (Adapter, Vec<SocketAddr>),
        workers: Vec<Worker>,
    ) -> Result<Self, PortError> {
        let mut port = Self {
            adapter,
            name: settings.adapter.clone(),
            addresses,
            workers: Vec::new(),
        };
        for (number, worker) in workers.into_iter().enumerate() {
            let cpu = settings.cpus.get(number % settings.cpus.len().max(1));
            match WorkerThread::start(worker, target, (id, number), cpu.copied()) {
                Ok(thread) => port.workers.push(thread),
                Err(error) => {
                    port.stop(target);
                    return Err(PortError::Thread(error));
                }
            }
        }
        Ok(port)
    }

    /// Returns the addresses at which the port listens.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Clears the addresses of the port, because no worker of the port listens any more.
    pub(super) fn clear_addresses(&mut self) {
        self.addresses.clear();
    }

    /// Returns the port's workers, and whether each of them still serves.
    pub(super) fn workers(&self) -> impl Iterator<Item = (WorkerId, bool)> {
        self.workers
            .iter()
            .map(|worker| (worker.id(), worker.serves()))
    }

    /// Returns the threads of the port's workers.
    pub(super) fn threads(&self) -> impl Iterator<Item = &WorkerThread> {
        self.workers.iter()
    }

    /// Returns the part of the adapter's name that identifies the function.
    pub(super) fn device(&self) -> Result<String, OpenError> {
        device(&self.name)
    }

    /// Sets the adapter of the workers, which was resumed.
    pub(super) fn set_adapter(&mut self, adapter: Adapter) {
        self.adapter = adapter;
    }

    /// Asks the port's workers to end, without waiting for them.
    pub(super) fn request_stop(&self, target: &Target) {
        for worker in &self.workers {
            target.stop_worker(worker.id());
        }
    }

    /// Ends the port's threads, whose workers have gone to the next process.
    pub(super) fn dismiss(self) {
        for worker in self.workers {
            worker.dismiss();
            worker.join();
        }
    }

    /// Ends the port, with its connections and threads. Returns the sums of the workers' counters.
    pub(super) fn stop(self, target: &Target) -> Over {
        self.request_stop(target);
        let mut all = Over::default();
        for worker in self.workers {
            let over = worker.join().unwrap_or_default();
            all.commands += over.commands;
            all.connections += over.connections;
            all.sleeps += over.sleeps;
            all.refused += over.refused;
        }
        all
    }
}

/// Returns the addresses at which hosts find a service of an adapter. A link-local address is valid on one link only,
/// so link-local addresses are returned only if there are no others.
pub(super) fn addresses(ia: &Ia, service: u16) -> Vec<SocketAddr> {
    let all: Vec<IpAddr> = ia.addresses().iter().map(|one| one.address).collect();
    let far = all.iter().copied().filter(|ip| !is_link_local(*ip));
    let mut told: Vec<IpAddr> = far.collect();
    if told.is_empty() {
        told = all;
    }
    let at = |ip| SocketAddr::new(ip, service);
    told.into_iter().map(at).collect()
}

const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
