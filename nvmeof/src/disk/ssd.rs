//! NVMe SSDs that this process drives itself, without the kernel ([`hw_nvme`]).
//!
//! ```text
//!   Ssd         a function and its controller; one for all namespaces and workers of this process
//!   SsdDisk     one of its namespaces: the disk of a namespace of ours
//! ```
//!
//! Each worker has a queue of its own, which it gets by [`Ssd::queue`] (`io::ssd_queues`). An SSD that has ended stays
//! ended: its disks fail all operations until their namespaces are removed. Then it can be opened again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use driver::{Function, Instant};
use hw_nvme::{Cause, Config, Controller, NvmeError, QueuePair};

use super::DiskError;

/// Number of queues that are asked for: a maximum of the workers that use an SSD.
const QUEUES: u16 = 32;
/// Number of entries of a queue.
const ENTRIES: u32 = 256;
/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(30);

/// The SSDs that are open, by the name of their function.
static OPEN: Mutex<BTreeMap<String, Weak<Ssd>>> = Mutex::new(BTreeMap::new());

/// Address of a namespace of an SSD: `0000:5e:00.0`, `vfio-user:PATH`, either with `,namespace=NUMBER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdAddress {
    /// PCI address, or `vfio-user:` and the path of a socket.
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
        if !function.starts_with("vfio-user:") {
            let address: Result<driver::PciAddress, _> = function.parse();
            address.map_err(|error| error.to_string())?;
        }
        Ok(Self {
            function: function.to_owned(),
            nsid,
        })
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
    function: Function,
    /// `None` once it was stopped.
    controller: Mutex<Option<Controller>>,
    max_transfer: u32,
    has_cache: bool,
    deallocates: bool,
    zeroes: bool,
}

impl Ssd {
    /// Returns the SSD of this function, which is opened unless it is open already.
    fn open(name: &str) -> Result<Arc<Self>, DiskError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, one| one.strong_count() > 0);
        if let Some(ssd) = open.get(name).and_then(Weak::upgrade) {
            return Ok(ssd);
        }
        let failed = |error: NvmeError| DiskError::Ssd {
            name: name.to_owned(),
            error: error.to_string(),
        };
        let function = match name.strip_prefix("vfio-user:") {
            Some(path) => Function::vfio_user(path),
            None => Function::vfio(name),
        };
        let function = function.map_err(|error| failed(error.into()))?;
        let config = Config {
            queues: QUEUES,
            entries: ENTRIES,
            ..Config::default()
        };
        let controller = Controller::open(function.clone(), config).map_err(failed)?;
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
            max_transfer: u32::try_from(identity.max_transfer).unwrap_or(u32::MAX),
            has_cache: identity.has_write_cache,
            deallocates: identity.has_dataset_management(),
            zeroes: identity.has_write_zeroes(),
            function,
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

    fn ended(&self) -> DiskError {
        DiskError::Ssd {
            name: self.name.clone(),
            error: "it was stopped; it is opened again once its namespaces are removed".to_owned(),
        }
    }

    /// Returns the name of the function.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the function, for mappings of memory.
    pub(crate) const fn function(&self) -> &Function {
        &self.function
    }

    /// Returns the longest transfer of a command in bytes.
    pub(crate) const fn max_transfer(&self) -> u32 {
        self.max_transfer
    }

    /// Returns whether there is the command Write Zeroes.
    pub(crate) const fn zeroes(&self) -> bool {
        self.zeroes
    }

    /// Makes a queue for a worker, and memory of the function for `bytes` bytes.
    pub(crate) fn queue(&self, bytes: usize) -> Result<(QueuePair, driver::DmaBuffer), DiskError> {
        let mut locked = self.lock();
        let controller = locked.as_mut().ok_or_else(|| self.ended())?;
        let failed = |error: NvmeError| DiskError::Ssd {
            name: self.name.clone(),
            error: error.to_string(),
        };
        let memory = controller.arena().alloc(bytes, 4096);
        let memory = memory.map_err(|error| failed(error.into()))?;
        let queue = controller.create_queue().map_err(failed)?;
        Ok((queue, memory))
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

    /// Checks whether the controller has ended, or a command of the queue has no answer for too long. Does nothing if
    /// another worker checks.
    pub(crate) fn check(&self, queue: &QueuePair, now: Instant) {
        if let Ok(locked) = self.controller.try_lock()
            && let Some(controller) = &*locked
        {
            let _cause = controller
                .check()
                .or_else(|| controller.check_time(queue, now, LIMIT));
        }
    }

    /// Stops the controller, which has ended. Afterwards it reaches no memory. Returns false if it cannot be stopped
    /// now.
    #[cold]
    pub(crate) fn stop(&self, cause: Cause) -> bool {
        let mut locked = self.lock();
        let Some(controller) = locked.take() else {
            return true;
        };
        tracing::error!(ssd = self.name, %cause, "an SSD has ended; its disks fail all operations");
        match controller.stop(Vec::new()) {
            Ok(_) => true,
            Err(refused) => {
                tracing::error!(ssd = self.name, error = %refused.error, "it cannot be stopped, and its commands stay");
                *locked = Some(refused.controller);
                false
            }
        }
    }
}

impl fmt::Debug for Ssd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ssd({})", self.name)
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
}

impl SsdDisk {
    /// Opens a namespace, and the SSD if it is not open.
    pub(super) fn open(address: &SsdAddress) -> Result<Self, DiskError> {
        let ssd = Ssd::open(&address.function)?;
        let nsid = address.nsid;
        let namespace = {
            let mut locked = ssd.lock();
            let controller = locked.as_mut().ok_or_else(|| ssd.ended())?;
            let namespace = controller.namespace(nsid);
            namespace.map_err(|error| DiskError::Ssd {
                name: ssd.name.clone(),
                error: error.to_string(),
            })?
        };
        Ok(Self {
            nsid,
            // CAST: the number of a bit of 32.
            #[expect(clippy::cast_possible_truncation, reason = "at most 31")]
            shift: namespace.block_bytes.trailing_zeros() as u8,
            is_protected: namespace.is_write_protected,
            ssd,
        })
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

    /// Reads the size of the namespace in bytes.
    pub(super) fn bytes(&self) -> Result<u64, DiskError> {
        let mut locked = self.ssd.lock();
        let controller = locked.as_mut().ok_or_else(|| self.ssd.ended())?;
        let namespace = controller.namespace(self.nsid);
        let namespace = namespace.map_err(|error| DiskError::Ssd {
            name: self.ssd.name.clone(),
            error: error.to_string(),
        })?;
        Ok(namespace.blocks << self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_that_of_a_function_and_may_name_a_namespace() {
        for (text, function, nsid) in [
            ("0000:5e:00.0", "0000:5e:00.0", 1),
            ("5e:00.0,namespace=2", "5e:00.0", 2),
            ("vfio-user:/run/ssd.sock", "vfio-user:/run/ssd.sock", 1),
        ] {
            let address: SsdAddress = text.parse().expect(text);
            assert_eq!((&*address.function, address.nsid), (function, nsid));
            assert_eq!(address.to_string(), text);
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
