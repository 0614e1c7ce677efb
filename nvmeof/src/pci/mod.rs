//! A simulated NVMe SSD: the target's model behind the registers of a PCI function.
//!
//! ```text
//!   driver (hw-nvme, a guest's nvme)       Device: configuration space, BAR 0, mappings, vectors
//!      |  doorbells, CC                       ^  completions, interrupts
//!      v                                      |
//!   Registers   behind one lock            Engine, in a thread of its own
//!      '--- a signal ---> fetches commands, carries them out by the model and `io`, writes completions
//! ```
//!
//! [`Ssd`] is a model of a function in this process ([`Device`]), which a vfio-user server can also serve to a guest.
//! Its commands are those of the target: their data is fetched from page lists instead of by RDMA Reads.
//!
//! A write of a register returns at once. The thread does the work. It accesses the driver's memory only under the lock
//! of the registers, and only for the queues of the present generation. So memory is not accessed any more after its
//! mapping has ended, or after the controller was disabled, reset or removed. Disks go on with the commands that they
//! have: the controller is ready again, a queue is deleted and a shutdown is complete only after those have ended.
//!
//! A doorbell with a wrong value, or of a queue that does not exist, has no effect. No event reports it.
//!
//! The sources are NVM Express Base Specification 2.0 and PCIe Transport Specification 1.0.

mod config_space;
mod dma;
mod engine;
mod no_device;
mod pages;
mod queues;
mod registers;

use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use driver::{Clock, Device, Interrupt, MessageMemory, RealClock, SharedMemory};
use udapl::reactor::ReactorError;

use crate::disk::DiskError;
use crate::model::{Model, ModelError, NamespaceConfig, QUEUES, SubsystemConfig};
use crate::nvme::Nqn;
use config_space::BAR_BYTES;
use engine::Engine;
use registers::Registers;

/// Maximum number of I/O queues.
pub const MOST_QUEUES: u16 = 64;

/// Settings of a simulated SSD.
#[derive(Clone, Debug)]
pub struct SsdConfig {
    /// Name of the function, for messages.
    pub name: String,
    /// Name of the subsystem.
    pub subsystem: Nqn,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Number of I/O queues, from 1 to [`MOST_QUEUES`].
    pub queues: u16,
}

impl SsdConfig {
    /// Returns the settings of an SSD with eight I/O queues.
    #[must_use]
    pub fn new(subsystem: Nqn) -> Self {
        Self {
            name: "ssd".to_owned(),
            subsystem,
            serial: "1".to_owned(),
            model: "simulated SSD".to_owned(),
            queues: 8,
        }
    }
}

/// Reason why a simulated SSD cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SsdError {
    /// The number of queues is out of range.
    #[error("{queues} I/O queues: there are 1 to {MOST_QUEUES}")]
    Queues {
        /// The number.
        queues: u16,
    },
    /// A namespace cannot be added.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A disk cannot be opened.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system has no ring for the disks.
    #[error(transparent)]
    Ring(#[from] ReactorError),
    /// There is no memory, no eventfd or no thread.
    #[error("{what}: {source}")]
    System {
        /// Lacking resource.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// State that the methods of the function share with the thread of the controller.
struct Shared {
    name: String,
    bar: SharedMemory,
    /// Number of I/O queues.
    queues: u16,
    /// Signalled when the thread has something to do.
    wake: Interrupt,
    registers: Mutex<Registers>,
    model: Mutex<Model>,
}

impl Shared {
    fn registers(&self) -> MutexGuard<'_, Registers> {
        self.registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A simulated SSD.
pub struct Ssd {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    subsystem: Nqn,
}

impl Ssd {
    /// Makes an SSD with these namespaces, and starts its thread.
    ///
    /// # Errors
    /// [`SsdError`].
    pub fn new(
        config: SsdConfig,
        namespaces: impl IntoIterator<Item = NamespaceConfig>,
    ) -> Result<Arc<Self>, SsdError> {
        let queues = config.queues;
        if !(1..=MOST_QUEUES).contains(&queues) {
            return Err(SsdError::Queues { queues });
        }
        let subsystem = config.subsystem;
        let mut model = Model::new();
        model.add_port(engine::PORT, Vec::new())?;
        model.add_subsystem(SubsystemConfig {
            name: subsystem.clone(),
            serial: config.serial,
            model: config.model,
            any_host: true,
            queues: QUEUES,
        })?;
        for namespace in namespaces {
            model.add_namespace(&subsystem, namespace)?;
        }
        let system = |what| move |source| SsdError::System { what, source };
        let bar = SharedMemory::of_this_process(BAR_BYTES);
        let bar = bar.map_err(|error| system("memory")(io::Error::other(error)))?;
        let shared = Arc::new(Shared {
            registers: Mutex::new(Registers::new(queues)),
            name: config.name,
            bar,
            queues,
            wake: Interrupt::new().map_err(system("an eventfd"))?,
            model: Mutex::new(model),
        });
        shared.registers().publish(&shared.bar);
        let engine = Engine::new(Arc::clone(&shared), subsystem.clone())?;
        let thread = std::thread::Builder::new().name("ssd".to_owned());
        let thread = thread.spawn(move || engine.run());
        Ok(Arc::new(Self {
            shared,
            thread: Some(thread.map_err(system("a thread"))?),
            subsystem,
        }))
    }

    /// Calls `act` with the model, for example to add a namespace, and with the name of the subsystem. Notices of the
    /// model reach the host afterwards.
    pub fn with<T>(&self, act: impl FnOnce(&mut Model, &Nqn) -> T) -> T {
        let mut model = self.shared.model();
        let result = act(&mut model, &self.subsystem);
        let removed = model.take_removed();
        drop(model);
        for namespace in removed {
            namespace.disk().give_up();
        }
        self.shared.wake.signal();
        result
    }

    /// Removes the function, as a surprise removal does: its registers read as ones, and it accesses no memory any
    /// more.
    pub fn remove(&self) {
        self.shared.registers().remove(&self.shared.bar);
        self.shared.wake.signal();
    }
}

impl Drop for Ssd {
    fn drop(&mut self) {
        self.shared.registers().stop();
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(function = self.shared.name, "the thread has panicked");
        }
    }
}

impl Device for Ssd {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.shared.registers().config_read(offset, out);
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        let is_reset = self.shared.registers().config_write(offset, data);
        if is_reset {
            self.reset();
        }
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        (index == 0).then(|| self.shared.bar.clone())
    }

    fn bar_written(&self, _index: u8, offset: u64, bytes: &[u8]) {
        self.shared
            .registers()
            .written(&self.shared.bar, offset, bytes);
        self.shared.wake.signal();
    }

    fn reset(&self) {
        self.shared.registers().reset(&self.shared.bar);
        self.shared.wake.signal();
    }

    fn interrupt_count(&self) -> usize {
        usize::from(self.shared.queues) + 1
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.shared.registers().set_vectors(vectors);
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        let mut registers = self.shared.registers();
        registers.mappings.map(iova, (memory, offset), bytes, true)
    }

    fn dma_map_read_only(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        let mut registers = self.shared.registers();
        registers.mappings.map(iova, (memory, offset), bytes, false)
    }

    fn dma_map_by_message(
        &self,
        iova: u64,
        memory: Arc<dyn MessageMemory>,
        bytes: usize,
        writable: bool,
    ) -> Result<(), String> {
        let mut registers = self.shared.registers();
        registers
            .mappings
            .map_by_message(iova, memory, bytes, writable)
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        self.shared.registers().mappings.unmap(iova, bytes)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=dma::LAST]
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(RealClock::new())
    }
}

#[cfg(test)]
mod tests;
