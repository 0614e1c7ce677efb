//! A target with workers on one simulated function, and a host on the other end of its wire.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use nvmeof::disk::faults::Faults;
use nvmeof::disk::{Disk, Source};
use nvmeof::model::{Model, NamespaceConfig, QUEUES, SubsystemConfig};
use nvmeof::nvme::Nqn;
use nvmeof::serve::{Over, Target, Worker, WorkerConfig, WorkerError};
use tempfile::TempDir;
use udapl::adapter::IaConfig;
use udapl::{Adapter, Ia, OpenOptions, ia_open};
use uuid::Uuid;

use crate::host::Host;

pub const PORT: u16 = 4420;

pub struct World {
    pub target: Target,
    pub subsystem: Nqn,
    pub folder: TempDir,
    pub address: IpAddr,
    workers: Vec<JoinHandle<Result<Over, WorkerError>>>,
}

/// Returns the name of the adapter of one side of a wire. All adapters of a process share one name space, so the name
/// contains the unique name of the folder.
fn adapter(folder: &TempDir, side: &str, wire: u8) -> Result<String> {
    let folder = folder.path();
    let own = folder.file_name().and_then(|name| name.to_str());
    Ok(format!(
        "sim:{side}{wire}-{},mac=02:00:00:00:{wire:02x}:{:02x},link=unix:{},endpoints=2048",
        own.context("a name")?,
        side.len(),
        folder.join(format!("wire{wire}")).display()
    ))
}

/// Adds a port, and a subsystem with one namespace on this disk. Returns the subsystem's name.
pub fn configure(
    model: &mut Model,
    address: IpAddr,
    config: &WorkerConfig,
    source: Source,
    shift: u8,
) -> Result<Nqn> {
    let subsystem: Nqn = "nqn.2026-11.test:disks".parse()?;
    model.add_port(config.port, vec![SocketAddr::new(address, PORT)])?;
    model.set_transfer_shift(config.port, config.transfer_shift)?;
    model.add_subsystem(SubsystemConfig {
        name: subsystem.clone(),
        serial: "1".to_owned(),
        model: "test".to_owned(),
        any_host: true,
        queues: QUEUES,
    })?;
    model.add_namespace(
        &subsystem,
        NamespaceConfig {
            nsid: None,
            uuid: Uuid::from_u128(1),
            group: 1,
            hosts: None,
            disk: Disk::open(source, shift, false)?,
        },
    )?;
    Ok(subsystem)
}

impl World {
    /// Makes a target with this many running workers, and a subsystem with one namespace on this disk, with blocks of
    /// two to the power of `shift` bytes.
    pub fn new(workers: usize, source: Source, shift: u8) -> Result<Self> {
        Self::with(workers, source, shift, WorkerConfig::default())
    }

    pub fn with(workers: usize, source: Source, shift: u8, config: WorkerConfig) -> Result<Self> {
        let (mut world, workers) = Self::unserved(workers, source, shift, config)?;
        let workers = workers.into_iter();
        let threads = workers.map(|worker| std::thread::spawn(move || worker.run()));
        world.workers = threads.collect();
        Ok(world)
    }

    /// Makes a target whose workers are not running yet.
    pub fn unserved(
        workers: usize,
        source: Source,
        shift: u8,
        config: WorkerConfig,
    ) -> Result<(Self, Vec<Worker>)> {
        let folder = tempfile::tempdir()?;
        let name = adapter(&folder, "target", 1)?;
        let mut ias = vec![ia_open(&name, &OpenOptions::default())?];
        let adapter = Adapter::of(&ias[0]);
        while ias.len() < workers {
            ias.push(adapter.instance(IaConfig::default())?);
        }
        Self::of(folder, ias, source, shift, config)
    }

    /// Makes a target with a worker for each of these instances. The workers are not running yet.
    pub fn of(
        folder: TempDir,
        ias: Vec<Ia>,
        source: Source,
        shift: u8,
        config: WorkerConfig,
    ) -> Result<(Self, Vec<Worker>)> {
        let address = ias[0].query().ia.ia_address;
        let target = Target::default();
        let subsystem = target.with(|model| configure(model, address, &config, source, shift))?;
        let made = ias.into_iter().map(|ia| Worker::new(&target, ia, config));
        let made = made.collect::<Result<Vec<_>, _>>()?;
        let world = Self {
            target,
            subsystem,
            folder,
            address,
            workers: Vec::new(),
        };
        Ok((world, made))
    }

    /// Returns the host at the other end of the wire; only one can be made.
    pub fn host(&mut self) -> Result<Host> {
        Host::open(&adapter(&self.folder, "host", 1)?, self.address, PORT)
    }

    /// Adds port 2: a second function with a worker and a wire of its own. Returns the same host at the other end of
    /// that wire.
    pub fn second_path(&mut self) -> Result<Host> {
        let ia = ia_open(
            &adapter(&self.folder, "target", 2)?,
            &OpenOptions::default(),
        )?;
        let address = ia.query().ia.ia_address;
        let config = WorkerConfig {
            port: 2,
            ..WorkerConfig::default()
        };
        let at = vec![SocketAddr::new(address, PORT)];
        self.target.with(|model| model.add_port(config.port, at))?;
        let worker = Worker::new(&self.target, ia, config)?;
        self.workers.push(std::thread::spawn(move || worker.run()));
        Host::open(&adapter(&self.folder, "host", 2)?, address, PORT)
    }

    /// Returns the faults of the disk of namespace 1, which must be a faulty disk.
    pub fn faults(&self) -> Result<Arc<Faults>> {
        let namespace = self
            .target
            .with(|model| model.namespace(&self.subsystem, 1))?;
        namespace.disk().faults().cloned().context("a faulty disk")
    }

    /// Ends all workers, which must succeed; returns their results.
    pub fn stop(self) -> Result<Vec<Over>> {
        let ended = self.end()?;
        for over in &ended {
            // Every slot and every buffer was returned.
            assert_eq!((over.ios_left, over.buffers_left), (0, 0), "{over:?}");
        }
        Ok(ended)
    }

    /// Ends all workers; returns their results.
    pub fn end(self) -> Result<Vec<Over>> {
        self.target.stop();
        let workers = self.workers.into_iter();
        let ended = workers.map(|worker| Ok(worker.join().expect("no panic")?));
        ended.collect()
    }
}
