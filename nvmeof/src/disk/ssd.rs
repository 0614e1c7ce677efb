//! NVMe SSDs that this process drives itself, without the kernel ([`hw_nvme`]).
//!
//! ```text
//!   Ssd         a function and its controller; one for all namespaces and workers of this process
//!   SsdDisk     one of its namespaces: the disk of a namespace of ours
//! ```
//!
//! Each worker has a queue of its own, which it gets by `Ssd::queue` (`io::ssd_queues`). An SSD that has ended stays
//! ended: its disks fail all operations. A namespace that is added later opens it anew.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use driver::{DmaBuffer, Function, Instant, MappedBuffer, PciAddress};
use hw_nvme::{Cause, Config, Controller, Event, NvmeError, QueuePair};

use super::DiskError;

/// Number of queues that are asked for: a maximum of the workers that use an SSD.
const QUEUES: u16 = 32;
/// Number of entries of a queue.
const ENTRIES: u32 = 256;
/// Time limit of an admin command. A worker waits for those that make and delete its queue.
const ADMIN_LIMIT: Duration = Duration::from_secs(5);
/// Time limit of a command.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The SSDs that are open, by the name of their function.
static OPEN: Mutex<BTreeMap<String, Weak<Ssd>>> = Mutex::new(BTreeMap::new());
/// The namespaces that disks have, by function and number: the number of disks, and whether they only read.
static CLAIMS: Mutex<BTreeMap<(String, u32), (usize, bool)>> = Mutex::new(BTreeMap::new());

/// Address of a namespace of an SSD: `0000:5e:00.0`, `vfio-user:PATH`, either with `,namespace=NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdAddress {
    /// PCI address with its domain, or `vfio-user:` and the path of a socket.
    pub function: String,
    /// Number of the namespace.
    pub nsid: u32,
}

impl std::str::FromStr for SsdAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (function, nsid) = match text.split_once(",namespace=") {
            Some((function, nsid)) => (function, nsid.parse().ok().filter(|nsid| *nsid != 0)),
            None => (text, Some(1)),
        };
        let nsid = nsid.ok_or("the number of a namespace is 1 or more")?;
        let function = if function.starts_with("vfio-user:") {
            function.to_owned()
        } else {
            let address: Result<PciAddress, _> = function.parse();
            address.map_err(|error| error.to_string())?.to_string()
        };
        Ok(Self { function, nsid })
    }
}

impl fmt::Display for SsdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nsid {
            1 => f.write_str(&self.function),
            nsid => write!(f, "{},namespace={nsid}", self.function),
        }
    }
}

/// A function and its controller.
pub struct Ssd {
    name: String,
    /// `None` once it was stopped. Its function is closed when the queues of all workers are gone, too.
    controller: Mutex<Option<Controller>>,
    /// True once it has ended. It gets no more commands.
    has_ended: AtomicBool,
    max_transfer: u32,
    has_cache: bool,
    deallocates: bool,
    zeroes: bool,
}

/// A worker's queue pair of an SSD, with the worker's memory.
pub(crate) struct WorkerQueue {
    pub pair: QueuePair,
    /// The worker's memory, mapped for the SSD.
    pub memory: Vec<MappedBuffer>,
    /// Memory of the SSD's function.
    pub own: DmaBuffer,
}

impl Ssd {
    /// Returns the SSD of this function, which is opened unless it is open already.
    fn open(name: &str) -> Result<Arc<Self>, DiskError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, one| one.strong_count() > 0);
        if let Some(ssd) = open.get(name).and_then(Weak::upgrade)
            && !ssd.has_ended()
        {
            return Ok(ssd);
        }
        let failed = |error: NvmeError| failed(name, error);
        let function = match name.strip_prefix("vfio-user:") {
            Some(path) => Function::vfio_user(path),
            None => Function::vfio(name),
        };
        let function = function.map_err(|error| failed(error.into()))?;
        let config = Config {
            queues: QUEUES,
            entries: ENTRIES,
            admin_limit: ADMIN_LIMIT,
            shutdown_limit: ADMIN_LIMIT,
            ..Config::default()
        };
        let controller = Controller::open(function, config).map_err(failed)?;
        let identity = controller.identity();
        tracing::info!(
            ssd = name,
            model = identity.model,
            serial = identity.serial,
            firmware = identity.firmware,
            queues = controller.queues(),
            "opened"
        );
        let ssd = Arc::new(Self {
            name: name.to_owned(),
            has_ended: AtomicBool::new(false),
            max_transfer: u32::try_from(identity.max_transfer).unwrap_or(u32::MAX),
            has_cache: identity.has_write_cache,
            deallocates: identity.has_dataset_management(),
            zeroes: identity.has_write_zeroes(),
            controller: Mutex::new(Some(controller)),
        });
        open.insert(name.to_owned(), Arc::downgrade(&ssd));
        Ok(ssd)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Controller>> {
        self.controller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the controller, unless the SSD has ended.
    fn with<T>(
        &self,
        act: impl FnOnce(&mut Controller) -> Result<T, NvmeError>,
    ) -> Result<T, DiskError> {
        let mut locked = self.lock();
        match locked.as_mut().filter(|_| !self.has_ended()) {
            Some(controller) => act(controller).map_err(|error| failed(&self.name, error)),
            None => Err(DiskError::Ssd {
                name: self.name.clone(),
                error: "it has ended; a namespace that is added now opens it anew".to_owned(),
            }),
        }
    }

    /// Returns the name of the function.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the SSD has ended.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns the longest transfer of a command in bytes.
    pub(crate) const fn max_transfer(&self) -> u32 {
        self.max_transfer
    }

    /// Returns whether there is the command Write Zeroes.
    pub(crate) const fn zeroes(&self) -> bool {
        self.zeroes
    }

    /// Makes a queue for a worker, maps the worker's memory for the SSD, and allocates `bytes` bytes of the function.
    pub(crate) fn queue(
        &self,
        memory: &[DmaBuffer],
        bytes: usize,
    ) -> Result<WorkerQueue, DiskError> {
        self.with(|controller| {
            let own = controller.arena().alloc(bytes, 4096)?;
            let mapped = memory.iter().map(|one| one.map_for(controller.function()));
            Ok(WorkerQueue {
                memory: mapped.collect::<Result<_, _>>()?,
                own,
                pair: controller.create_queue()?,
            })
        })
    }

    /// Returns the next event that the SSD has reported. `None`: there is none, or the SSD has ended.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut locked = self.lock();
        let controller = locked.as_mut().filter(|_| !self.has_ended())?;
        let event = controller.next_event();
        drop(locked);
        match event {
            Ok(event) => event,
            Err(NvmeError::Ended { cause, .. }) => {
                self.stop(cause);
                None
            }
            Err(error) => {
                tracing::warn!(ssd = self.name, %error, "an event of an SSD is lost");
                None
            }
        }
    }

    /// Deletes a queue without outstanding commands. If that fails, the queue's memory is kept for the controller.
    pub(crate) fn delete_queue(&self, queue: QueuePair) {
        let mut locked = self.lock();
        if let Some(controller) = locked.as_mut()
            && let Err(error) = controller.delete_queue(queue)
        {
            tracing::warn!(ssd = self.name, %error, "a queue cannot be deleted");
        }
    }

    /// Checks whether the controller has ended or, if `is_silent`, a command of the queue has no answer for too long.
    /// Does nothing if another worker checks.
    pub(crate) fn check(&self, queue: &QueuePair, now: Instant, is_silent: bool) {
        if let Ok(locked) = self.controller.try_lock()
            && let Some(controller) = &*locked
            && controller.check().is_none()
            && is_silent
        {
            let _cause = controller.check_time(queue, now, LIMIT);
        }
    }

    /// Stops the controller, which has ended. Afterwards it reaches no memory. Returns false if it cannot be stopped
    /// now.
    #[cold]
    pub(crate) fn stop(&self, cause: Cause) -> bool {
        let is_first = !self.has_ended.swap(true, Ordering::AcqRel);
        if is_first {
            tracing::error!(ssd = self.name, %cause, "an SSD has ended; its disks fail all operations");
        }
        let mut locked = self.lock();
        let Some(controller) = locked.take() else {
            return true;
        };
        match controller.stop(Vec::new()) {
            Ok(_) => true,
            Err(refused) => {
                if is_first {
                    tracing::error!(ssd = self.name, error = %refused.error, "it cannot be stopped, and its commands stay");
                }
                *locked = Some(refused.controller);
                false
            }
        }
    }
}

fn failed(name: &str, error: NvmeError) -> DiskError {
    DiskError::Ssd {
        name: name.to_owned(),
        error: error.to_string(),
    }
}

impl fmt::Debug for Ssd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ssd({})", self.name)
    }
}

/// The claim of a disk to its namespace. Several disks may have one that they all only read.
#[derive(Debug)]
pub(super) struct SsdClaim(String, u32);

impl Drop for SsdClaim {
    fn drop(&mut self) {
        let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (core::mem::take(&mut self.0), self.1);
        if let Some((count, _)) = claims.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                claims.remove(&key);
            }
        }
    }
}

/// A namespace of an SSD.
#[derive(Debug)]
pub struct SsdDisk {
    ssd: Arc<Ssd>,
    nsid: u32,
    /// Block size of the namespace in bytes, as a power of two.
    shift: u8,
    is_protected: bool,
    bytes: AtomicU64,
    /// True once the namespace was found in another format. Operations fail then.
    has_ended: AtomicBool,
}

impl SsdDisk {
    /// Opens a namespace, and the SSD if it is not open.
    pub(super) fn open(address: &SsdAddress) -> Result<Self, DiskError> {
        let ssd = Ssd::open(&address.function)?;
        let nsid = address.nsid;
        let namespace = ssd.with(|controller| controller.namespace(nsid))?;
        Ok(Self {
            nsid,
            // CAST: the number of a bit of 32.
            #[expect(clippy::cast_possible_truncation, reason = "at most 31")]
            shift: namespace.block_bytes.trailing_zeros() as u8,
            is_protected: namespace.is_write_protected,
            bytes: AtomicU64::new(namespace.blocks * u64::from(namespace.block_bytes)),
            has_ended: AtomicBool::new(false),
            ssd,
        })
    }

    /// Claims the namespace for a disk.
    pub(super) fn claim(&self, read_only: bool) -> Result<SsdClaim, DiskError> {
        let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.ssd.name.clone(), self.nsid);
        let (count, are_reading) = claims.entry(key.clone()).or_insert((0, true));
        if *count > 0 && !(*are_reading && read_only) {
            return Err(DiskError::Taken {
                what: format!("namespace {} of {}", self.nsid, self.ssd.name),
                holder: "another namespace of this process".to_owned(),
            });
        }
        *count += 1;
        *are_reading = read_only;
        Ok(SsdClaim(key.0, key.1))
    }

    /// Returns the SSD.
    pub(crate) const fn ssd(&self) -> &Arc<Ssd> {
        &self.ssd
    }

    /// Returns the number of the namespace.
    pub(crate) const fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Returns the block size in bytes, as a power of two.
    pub(crate) const fn shift(&self) -> u8 {
        self.shift
    }

    /// Returns whether the namespace cannot be written.
    pub(super) const fn is_protected(&self) -> bool {
        self.is_protected
    }

    /// Returns whether there is a volatile write cache.
    pub(super) fn has_cache(&self) -> bool {
        self.ssd.has_cache
    }

    /// Returns whether blocks can be deallocated.
    pub(super) fn deallocates(&self) -> bool {
        self.ssd.deallocates
    }

    /// Returns the size of the namespace in bytes, as it was last read.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether operations fail, because the SSD has ended or the namespace has another format.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ssd.has_ended() || self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the disk. Commands with the earlier block size would transfer other lengths than their buffers have.
    fn end(&self, why: &str) -> DiskError {
        self.has_ended.store(true, Ordering::Release);
        DiskError::Ssd {
            name: self.ssd.name.clone(),
            error: format!("namespace {} {why}; its operations fail", self.nsid),
        }
    }

    /// Reads the size of the namespace. Ends the disk if the namespace was formatted otherwise.
    pub(super) fn refresh(&self) -> Result<(), DiskError> {
        let nsid = self.nsid;
        let namespace = self
            .ssd
            .with(|controller| match controller.namespace(nsid) {
                Err(NvmeError::Unsupported { what, .. }) => Ok(Err(self.end(&what))),
                other => other.map(Ok),
            })??;
        let (now, before) = (namespace.block_bytes, 1 << self.shift);
        if now != before {
            let why = format!("has blocks of {now} bytes now, and had {before}");
            return Err(self.end(&why));
        }
        let bytes = namespace.blocks << self.shift;
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Ends an open SSD, as one that has a fatal status.
#[cfg(test)]
pub(crate) fn end(name: &str) {
    let open = OPEN.lock().expect("no panic");
    let ssd = open.get(name).and_then(Weak::upgrade).expect("it is open");
    drop(open);
    assert!(ssd.stop(Cause::Fatal));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_that_of_a_function_and_may_name_a_namespace() {
        for (text, function, nsid) in [
            ("0000:5e:00.0", "0000:5e:00.0", 1),
            ("5E:00.0,namespace=2", "0000:5e:00.0", 2),
            ("vfio-user:/run/ssd.sock", "vfio-user:/run/ssd.sock", 1),
        ] {
            let address: SsdAddress = text.parse().expect(text);
            assert_eq!((&*address.function, address.nsid), (function, nsid));
            assert_eq!(address.to_string().parse(), Ok(address));
        }
        for wrong in [
            "",
            "/dev/nvme0n1",
            "5e:00",
            "5e:00.0,namespace=0",
            "5e:00.0,nsid=1",
        ] {
            assert!(wrong.parse::<SsdAddress>().is_err(), "{wrong}");
        }
    }
}
