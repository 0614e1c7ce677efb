//! A container: the I/O address space that the kernel gives to one or several groups.
//!
//! The container gets its IOMMU after the first group has joined. The kernel attaches every further group to that
//! IOMMU, and makes the existing mappings for it (Linux `drivers/vfio/container.c` `vfio_container_attach_group`,
//! `vfio_iommu_type1.c` `vfio_iommu_type1_attach_group`). With a further group the translatable addresses may become
//! fewer, so the ranges are read again. A group leaves when its file is closed. When the last group leaves, the kernel
//! removes the IOMMU and all mappings.
//!
//! A group's file can be open only once (`vfio_group_fops_open`), so functions of one group use the same file. The
//! kernel opens a device of a group any number of times (`group.c` `vfio_df_open`), but a function must have only one
//! driver, so the container records which functions are open.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;

use super::dma::{Iommu, map_message, unmap_message, unmapped_bytes};
use super::error::{VfioError, advice};
use super::requests::DeviceRequests;
use super::sys::{Argument, Request, System};
use crate::memory::SharedMemory;

/// A container with its IOMMU.
pub(crate) struct Container {
    /// Name of the function that the container was made for; used in messages.
    address: String,
    pub(super) system: Arc<dyn System>,
    /// Capabilities of the IOMMU, as last read.
    iommu: Mutex<Iommu>,
    /// Files of the groups in the container, by group number.
    groups: Mutex<BTreeMap<u32, Weak<OwnedFd>>>,
    /// Addresses of the functions in the container that this process has open.
    open: Mutex<BTreeSet<String>>,
    fd: OwnedFd,
}

/// A record that a function is open in a container. It prevents a second open and is removed on drop.
pub(super) struct Opening {
    container: Arc<Container>,
    address: String,
}

impl Opening {
    /// Records the function as open. It is an error if the function is already open in the container.
    pub(super) fn of(address: &str, container: &Arc<Container>) -> Result<Self, VfioError> {
        let address = address.to_owned();
        if !container.open().insert(address.clone()) {
            return Err(VfioError::OpenAlready { address });
        }
        Ok(Self {
            container: Arc::clone(container),
            address,
        })
    }

    pub(super) fn container(&self) -> &Arc<Container> {
        &self.container
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.container.open().remove(&self.address);
    }
}

impl Container {
    /// Makes a container from its file, which a group has already joined and which has an IOMMU.
    pub(super) fn new(
        address: &str,
        system: Arc<dyn System>,
        fd: OwnedFd,
    ) -> Result<Self, VfioError> {
        let ask = DeviceRequests {
            address,
            system: &*system,
        };
        let iommu = ask.iommu(fd.as_fd())?;
        Ok(Self {
            address: address.to_owned(),
            system,
            iommu: Mutex::new(iommu),
            groups: Mutex::default(),
            open: Mutex::default(),
            fd,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn ask(&self) -> DeviceRequests<'_> {
        DeviceRequests {
            address: &self.address,
            system: &*self.system,
        }
    }

    fn groups(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<OwnedFd>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the file of a group in the container; `None` if no function of the group is open.
    pub(super) fn group(&self, number: u32) -> Option<Arc<OwnedFd>> {
        self.groups().get(&number)?.upgrade()
    }

    /// Records a group that has joined.
    pub(super) fn joined(&self, number: u32, group: &Arc<OwnedFd>) {
        self.groups().insert(number, Arc::downgrade(group));
    }

    /// Sets the number of mappings that messages report as the limit.
    pub(super) fn set_available(&self, available: Option<u32>) {
        let mut iommu = self.iommu.lock().unwrap_or_else(PoisonError::into_inner);
        iommu.available = available;
    }

    /// Returns the capabilities of the IOMMU as they were last read.
    pub(super) fn iommu(&self) -> Iommu {
        let iommu = self.iommu.lock();
        iommu.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the capabilities again, because a group that joined may have changed them.
    pub(super) fn ask_again(&self) -> Result<(), VfioError> {
        let now = self.ask().iommu(self.fd())?;
        let mut iommu = self.iommu.lock().unwrap_or_else(PoisonError::into_inner);
        // The first number of available mappings is kept, because messages report it as the limit.
        let available = iommu.available;
        *iommu = Iommu { available, ..now };
        Ok(())
    }

    /// Returns the number of mappings that can still be made; `None` if the kernel does not report it, or refuses the
    /// question.
    pub(crate) fn mappings_left(&self) -> Option<u32> {
        self.ask_mappings_left().ok()?
    }

    /// Returns the number of mappings that can still be made, if the kernel reports it.
    pub(super) fn ask_mappings_left(&self) -> Result<Option<u32>, VfioError> {
        Ok(self.ask().iommu(self.fd())?.available)
    }

    pub(crate) fn dma_map(
        &self,
        iova: u64,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), VfioError> {
        let address = memory.part(offset, bytes).address() as u64;
        let mut message = map_message(address, iova, bytes as u64);
        let argument = Argument::Message(&mut message);
        self.system
            .ioctl(self.fd(), Request::IommuMapDma, argument)
            .map(|_| ())
            .map_err(|errno| self.map_refused(iova, address, bytes, errno))
    }

    /// Makes the error for a refused mapping. Two of the possible causes are limits, whose values the text reports.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "errno has more values than VFIO has uses for"
    )]
    fn map_refused(&self, iova: u64, address: u64, bytes: usize, errno: Errno) -> VfioError {
        let request = Request::IommuMapDma;
        let advice = match errno {
            Errno::ENOMEM => self.memory_advice(bytes as u64),
            Errno::ENOSPC => {
                let text = |count: Option<u32>| {
                    count.map_or_else(|| "an unknown number".to_owned(), |count| count.to_string())
                };
                format!(
                    "{} mappings are left of {}: raise dma_entry_limit of vfio_iommu_type1 (/sys/module/vfio_iommu_type1/parameters)",
                    text(self.mappings_left()),
                    text(self.iommu().available),
                )
            }
            Errno::EINVAL => format!(
                "{}; they are {}, with pages of {:#x} bytes",
                advice(request, errno, &self.address),
                self.iommu().ranges_in_words(),
                self.iommu().page_bytes
            ),
            _ => advice(request, errno, &self.address),
        };
        VfioError::Refused {
            address: self.address.clone(),
            request: request.name(),
            detail: format!(" of {bytes:#x} bytes at {address:#x} as IOVA {iova:#x}"),
            errno,
            advice,
        }
    }

    /// Returns the advice for a failure to pin `bytes` bytes in addition to the memory that is locked now.
    fn memory_advice(&self, bytes: u64) -> String {
        let (limit, locked) = self.system.locked_memory();
        let needed = locked.saturating_add(bytes);
        match limit {
            Some(limit) if limit < needed => format!(
                "{locked} bytes are locked, and {bytes} more need a limit of at least {needed}; it is {limit}: raise it with ulimit -l {}, LimitMEMLOCK= or limits.conf (memlock)",
                needed.div_ceil(1024)
            ),
            Some(_) | None => format!(
                "the limit of locked memory allows {needed} bytes, so it is memory itself that is short: for the pages, or for the IOMMU's tables (see dmesg)"
            ),
        }
    }

    /// Removes exactly one mapping. The caller must pass the range of one mapping, because the kernel unmaps all
    /// mappings in a range. It is an error if the kernel reports that it unmapped less.
    pub(crate) fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), VfioError> {
        let request = Request::IommuUnmapDma;
        let mut message = unmap_message(iova, bytes as u64);
        self.system
            .ioctl(self.fd(), request, Argument::Message(&mut message))
            .map_err(|errno| self.ask().refused(request, detail(iova, bytes), errno))?;
        let done = unmapped_bytes(&message);
        if done != bytes as u64 {
            let what = format!("only {done:#x} bytes were unmapped{}", detail(iova, bytes));
            return Err(self.ask().unusable(request, what));
        }
        Ok(())
    }

    /// Returns the error for an unmap of a mapping that does not exist.
    pub(crate) fn not_unmapped(&self, iova: u64, bytes: usize, why: &str) -> VfioError {
        let what = format!("{why}{}", detail(iova, bytes));
        self.ask().unusable(Request::IommuUnmapDma, what)
    }
}

/// Returns the range of a mapping as text for messages.
fn detail(iova: u64, bytes: usize) -> String {
    format!(" of {bytes:#x} bytes at IOVA {iova:#x}")
}
