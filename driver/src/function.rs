//! A PCI function, independent of its backend.
//!
//! [`Function`] is one type for all code above. The kind of backend is an enum inside, so that no generic parameter
//! and no `dyn` call reaches a driver's hot path. Rare operations are here: configuration space, reset, interrupts,
//! DMA mappings. Frequent ones go through a [`Bar`]'s register blocks.
//!
//! The function has an I/O address space ([`Space`]), its own or a shared one. All mappings (of the arena, of lent
//! memory) take their addresses from this space, so that they do not collide.
//!
//! A function can be handed over to another process ([`Function::park`], [`Function::resume`]).
//!
//! [`Device`] is the device's side of the in-process backend and of a vfio-user server, implemented by a device
//! model. The model gets the same as a device: configuration cycles, register writes, resets, and the memory that the
//! IOMMU lets the device reach.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::Backend;
use crate::bar::{Bar, Listener};
use crate::device::CONFIG_BYTES;
use crate::device::Device;
use crate::driving_lock::DrivingLock;
use crate::error::{FunctionError, MemoryError};
use crate::interrupt::{Interrupt, Notices};
use crate::interrupt_set::InterruptSet;
use crate::iova::Iova;
use crate::memory::SharedMemory;
use crate::page::DMA_PAGE;
use crate::parked_models;
use crate::pci::capability;
use crate::space::{DmaSpace, Space};
use crate::vfio::{Kernel, PciAddress, Roots, Vfio, VfioError, VfioFds};
use crate::vfio_user::name::function_name;
use crate::vfio_user::{Client, VfioUserError};

struct Inner {
    name: String,
    backend: Backend,
    space: Arc<Space>,
    notices: Notices,
    /// Interrupts that are enabled, in vector order; empty until `enable_interrupts`.
    interrupts: Mutex<Vec<Interrupt>>,
    /// Lock of a function that was resumed; `None` if it was never parked. Each reference to a BAR has a clone.
    lock: Arc<Option<DrivingLock>>,
    /// True once the function was handed over to another process. Dropping this has no effect on it then.
    is_parked: bool,
}

/// A PCI function. Clones share it.
#[derive(Clone)]
pub struct Function {
    inner: Arc<Inner>,
}

impl Function {
    /// Opens a function that a model in this process implements.
    ///
    /// # Errors
    /// [`FunctionError::Notices`]: the system has no eventfd left.
    pub fn in_process(device: Arc<dyn Device>) -> Result<Self, FunctionError> {
        Self::played(device, None)
    }

    /// Opens a function that a model in this process implements, in the I/O address space of other such functions:
    /// memory mapped for one of them is mapped for all, and memory of one can be registered on each.
    ///
    /// # Errors
    /// The errors of [`Function::in_process`]. [`FunctionError::Space`]: no function of the space is open any more, its
    /// functions are of another kind, or memory is mapped at addresses that this function cannot reach.
    /// [`FunctionError::Stopped`]: the space was stopped, because one of its functions has refused to unmap memory.
    /// [`FunctionError::DmaRefused`]: the model refuses a mapping of the space.
    pub fn in_process_in(device: Arc<dyn Device>, space: &DmaSpace) -> Result<Self, FunctionError> {
        Self::played(device, Some(space))
    }

    fn played(device: Arc<dyn Device>, space: Option<&DmaSpace>) -> Result<Self, FunctionError> {
        let notices = Notices::new().map_err(|source| FunctionError::Notices {
            name: device.name().to_owned(),
            source,
        })?;
        let function = Self::new(
            Backend::InProcess(Arc::clone(&device)),
            space,
            notices.clone(),
        )?;
        parked_models::remove(&device);
        device.set_notices(notices);
        Ok(function)
    }

    /// Opens the function at a PCI address, such as `0000:3b:00.2` or `3b:00.2`, through the kernel's VFIO.
    ///
    /// # Errors
    /// [`FunctionError::Vfio`], which names the missing setup.
    pub fn vfio(address: &str) -> Result<Self, FunctionError> {
        let address: PciAddress = address.parse().map_err(Box::new)?;
        let vfio = Vfio::open(address, &Roots::default(), Arc::new(Kernel));
        Self::from_vfio(vfio.map_err(Box::new)?)
    }

    /// Opens the function at a PCI address in the container of other functions, so that memory is pinned and mapped
    /// once for all of them (Linux `Documentation/driver-api/vfio.rst`, `VFIO_GROUP_SET_CONTAINER`). The IOMMU lets
    /// each function reach all memory mapped for any of them. Memory keys limit the access of remote peers as before.
    ///
    /// # Errors
    /// As [`Function::vfio`], and as [`Function::in_process_in`] for the space. The kernel refuses a group whose
    /// IOMMU is incompatible with the others', or which has reserved addresses where memory is mapped.
    pub fn vfio_in(address: &str, space: &DmaSpace) -> Result<Self, FunctionError> {
        let address: PciAddress = address.parse().map_err(Box::new)?;
        Self::joining(address, &Roots::default(), space)
    }

    pub(crate) fn joining(
        address: PciAddress,
        roots: &Roots,
        space: &DmaSpace,
    ) -> Result<Self, FunctionError> {
        space.0.check_claimed(
            &address.to_string(),
            "another function in its I/O address space",
        )?;
        let container = space.0.container().ok_or_else(|| FunctionError::Space {
            name: address.to_string(),
            space: space.name().to_owned(),
            what: "no function of it is open under VFIO".to_owned(),
        })?;
        let vfio = Vfio::join(address, roots, &container).map_err(Box::new)?;
        let notices = vfio.notices();
        Self::new(Backend::Vfio(Arc::new(vfio)), Some(space), notices)
    }

    /// Takes over a function that a process with more privileges has opened. `address` is its PCI address.
    ///
    /// # Errors
    /// [`FunctionError::Vfio`]: `address` is no PCI address, the descriptors do not belong to such a function, or the
    /// kernel refuses a request.
    pub fn vfio_from_fds(address: &str, fds: VfioFds) -> Result<Self, FunctionError> {
        let address: PciAddress = address.parse().map_err(Box::new)?;
        let vfio = Vfio::from_fds(
            address.to_string(),
            &Roots::default(),
            Arc::new(Kernel),
            fds,
        );
        Self::from_vfio(vfio.map_err(Box::new)?)
    }

    pub(crate) fn from_vfio(vfio: Vfio) -> Result<Self, FunctionError> {
        let notices = vfio.notices();
        Self::new(Backend::Vfio(Arc::new(vfio)), None, notices)
    }

    /// Returns the eventfds on which the system reports events of the device.
    #[must_use]
    pub fn notices(&self) -> &Notices {
        &self.inner.notices
    }

    /// Returns the number of DMA mappings that can still be made in the I/O address space. Under VFIO the limit is the
    /// kernel's `dma_entry_limit`, by default 65,535 (`VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL`, `linux/vfio.h`). For a
    /// function in this process the limit is 65,535; for a server it is the server's `max_dma_maps`. `None` if the
    /// number is not reported, as by kernels before 5.10.
    #[must_use]
    pub fn dma_mappings_left(&self) -> Option<u32> {
        self.inner.space.mappings_left()
    }

    /// Returns the I/O address space, for opening other functions in it.
    #[must_use]
    pub fn dma_space(&self) -> DmaSpace {
        DmaSpace(Arc::clone(&self.inner.space))
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.inner.backend
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.inner.space
    }

    /// Returns whether memory of the hugetlb pool can be mapped for the function. A server in another process takes no
    /// such memory, because the kernel would kill the server if the pool lacked a page.
    pub(crate) fn takes_huge_pages(&self) -> bool {
        match &self.inner.backend {
            // A model that can be parked maps memory as a server does.
            Backend::InProcess(model) => !model.can_be_parked(),
            Backend::Vfio(_) => true,
            Backend::VfioUser(_) => false,
        }
    }

    /// Opens a function that a vfio-user server at the socket `path` implements. Its clock is the machine's.
    ///
    /// # Errors
    /// [`FunctionError::VfioUser`]: there is no server, it does not implement a PCI function, or it violates the
    /// protocol.
    pub fn vfio_user(path: impl AsRef<Path>) -> Result<Self, FunctionError> {
        Self::served(path.as_ref(), None)
    }

    /// Opens a function that another process implements, in the I/O address space of other such functions: each server
    /// receives all of the memory.
    ///
    /// # Errors
    /// As [`Function::vfio_user`], and as [`Function::in_process_in`] for the space.
    pub fn vfio_user_in(path: impl AsRef<Path>, space: &DmaSpace) -> Result<Self, FunctionError> {
        Self::served(path.as_ref(), Some(space))
    }

    fn served(path: &Path, space: Option<&DmaSpace>) -> Result<Self, FunctionError> {
        let client = Client::connect(path).map_err(|source| FunctionError::VfioUser {
            name: function_name(path),
            source: Box::new(source),
        })?;
        let notices = client.notices();
        Self::new(Backend::VfioUser(Arc::new(client)), space, notices)
    }

    fn remote(&self) -> impl Fn(VfioUserError) -> FunctionError {
        self.inner.backend.remote()
    }

    /// Makes a function with an I/O address space of its own, or with that of others.
    fn new(
        backend: Backend,
        space: Option<&DmaSpace>,
        notices: Notices,
    ) -> Result<Self, FunctionError> {
        let space = match space {
            Some(DmaSpace(space)) => {
                space.join(&backend)?;
                Arc::clone(space)
            }
            None => Space::of(&backend),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                name: backend.name().to_owned(),
                backend,
                space,
                notices,
                interrupts: Mutex::new(Vec::new()),
                lock: Arc::new(None),
                is_parked: false,
            }),
        })
    }

    /// Returns whether both have the same I/O address space, so that an I/O address means the same bytes to both.
    /// This holds for clones, and for functions that were opened in the space of another one. A function that was
    /// closed and opened again on its own has a new space.
    #[must_use]
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner.space, &other.inner.space)
    }

    /// Returns the function's name, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Reads a byte of configuration space.
    ///
    /// # Errors
    /// [`FunctionError::ConfigBounds`]: the access is outside configuration space. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the other process or the kernel refused.
    pub fn config_read_u8(&self, offset: u16) -> Result<u8, FunctionError> {
        self.config_read(offset).map(|[byte]| byte)
    }

    /// Reads a 16-bit word of configuration space.
    ///
    /// # Errors
    /// [`FunctionError::ConfigBounds`]: the access is outside configuration space. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the other process or the kernel refused.
    pub fn config_read_u16(&self, offset: u16) -> Result<u16, FunctionError> {
        self.config_read(offset).map(u16::from_le_bytes)
    }

    /// Reads a 32-bit word of configuration space.
    ///
    /// # Errors
    /// [`FunctionError::ConfigBounds`]: the access is outside configuration space. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the other process or the kernel refused.
    pub fn config_read_u32(&self, offset: u16) -> Result<u32, FunctionError> {
        self.config_read(offset).map(u32::from_le_bytes)
    }

    /// Writes a byte of configuration space.
    ///
    /// # Errors
    /// [`FunctionError::ConfigBounds`]: the access is outside configuration space. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the other process or the kernel refused.
    pub fn config_write_u8(&self, offset: u16, value: u8) -> Result<(), FunctionError> {
        self.config_write(offset, &[value])
    }

    /// Writes a 16-bit word of configuration space.
    ///
    /// # Errors
    /// [`FunctionError::ConfigBounds`]: the access is outside configuration space. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the other process or the kernel refused.
    #[expect(
        clippy::little_endian_bytes,
        reason = "configuration space is little-endian"
    )]
    pub fn config_write_u16(&self, offset: u16, value: u16) -> Result<(), FunctionError> {
        self.config_write(offset, &value.to_le_bytes())
    }

    /// Writes a 32-bit word of configuration space.
    ///
    /// # Errors
    /// [`FunctionError::ConfigBounds`]: the access is outside configuration space. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the other process or the kernel refused.
    #[expect(
        clippy::little_endian_bytes,
        reason = "configuration space is little-endian"
    )]
    pub fn config_write_u32(&self, offset: u16, value: u32) -> Result<(), FunctionError> {
        self.config_write(offset, &value.to_le_bytes())
    }

    /// Returns the offset of a PCI capability in configuration space; `None` if the function has no capability with
    /// this ID.
    ///
    /// # Errors
    /// The errors of [`Function::config_read_u8`].
    pub fn capability(&self, id: u8) -> Result<Option<u16>, FunctionError> {
        capability::find(id, |at| self.config_read_u8(at))
    }

    // Configuration space is little-endian on every host; the callers above convert accordingly.
    fn config_read<const N: usize>(&self, offset: u16) -> Result<[u8; N], FunctionError> {
        self.check_config(offset, N)?;
        let mut out = [0; N];
        self.inner.backend.config_read(offset, &mut out)?;
        Ok(out)
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError> {
        self.check_config(offset, data.len())?;
        self.check_claimed("a write to configuration space")?;
        self.inner.backend.config_write(offset, data)
    }

    fn check_config(&self, offset: u16, bytes: usize) -> Result<(), FunctionError> {
        if usize::from(offset) + bytes > CONFIG_BYTES {
            return Err(FunctionError::ConfigBounds {
                name: self.name().to_owned(),
                offset,
                bytes,
            });
        }
        Ok(())
    }

    /// Enables BAR decoding and bus mastering if `on`. Otherwise disables only bus mastering; the registers stay
    /// reachable.
    ///
    /// # Errors
    /// The errors of [`Function::config_write_u16`]. [`FunctionError::Stopped`]: bus mastering cannot be enabled any
    /// more, because a function of the I/O address space has refused to unmap memory.
    pub fn set_bus_master(&self, on: bool) -> Result<(), FunctionError> {
        self.check_claimed("a change of bus mastering")?;
        if on {
            return self.inner.space.start(&self.inner.backend);
        }
        self.inner.backend.set_bus_master(false)
    }

    /// Ends the function's use of memory without relying on its firmware: disables bus mastering, then resets. One of
    /// the two steps is enough.
    ///
    /// # Errors
    /// The errors of [`Function::set_bus_master`]; only if both steps have failed.
    pub fn stop(&self) -> Result<(), FunctionError> {
        self.check_claimed("a stop")?;
        self.inner.backend.stop()
    }

    /// Returns why the function cannot be reached any more, if known: the process that implemented it has ended or does
    /// not answer. The function's registers read as ones. Its accesses to memory that the process received by
    /// descriptor have no effect on us once that memory is unmapped here, and its requests for memory by message are
    /// not answered any more.
    #[must_use]
    pub fn lost(&self) -> Option<FunctionError> {
        match &self.inner.backend {
            Backend::VfioUser(client) => client.lost().map(self.remote()),
            Backend::InProcess(_) | Backend::Vfio(_) => None,
        }
    }

    /// Performs a function level reset. Registers, queues and interrupts of the device are lost; DMA mappings stay.
    ///
    /// # Errors
    /// [`FunctionError::VfioUser`], [`FunctionError::Vfio`]: the other process or the kernel refused.
    pub fn reset(&self) -> Result<(), FunctionError> {
        self.check_claimed("a reset")?;
        self.inner.backend.reset()
    }

    /// Maps a BAR.
    ///
    /// # Errors
    /// [`FunctionError::NoBar`]: the function has no BAR of this number. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the BAR could not be mapped.
    pub fn bar(&self, index: u8) -> Result<Bar, FunctionError> {
        let lock = Arc::clone(&self.inner.lock);
        match &self.inner.backend {
            Backend::InProcess(device) => {
                let memory = device.bar(index).ok_or_else(|| FunctionError::NoBar {
                    name: self.name().to_owned(),
                    index,
                })?;
                Ok(Bar::new(
                    index,
                    memory,
                    Some(Listener::Device(Arc::clone(device))),
                    lock,
                ))
            }
            Backend::VfioUser(client) => self.remote_bar(client, index),
            Backend::Vfio(vfio) => {
                let found = vfio.bar(index).map_err(Box::new)?;
                let (memory, window) = found.ok_or_else(|| FunctionError::NoBar {
                    name: self.name().to_owned(),
                    index,
                })?;
                let Some(window) = window else {
                    return Ok(Bar::new(index, memory, None, lock));
                };
                let shadow = SharedMemory::of_this_process(memory.len()).map_err(|error| {
                    Box::new(VfioError::Map {
                        address: self.name().to_owned(),
                        index,
                        error,
                    })
                })?;
                let listener = Listener::Window(window, shadow);
                Ok(Bar::new(index, memory, Some(listener), lock))
            }
        }
    }

    /// Makes the BAR of a function in another process: memory of the BAR's size that shadows the writes. It costs only
    /// address space.
    fn remote_bar(&self, client: &Arc<Client>, index: u8) -> Result<Bar, FunctionError> {
        let bytes = match index {
            0..=5 => client.bar_bytes(index).map_err(self.remote())?,
            _ => 0,
        };
        if bytes == 0 {
            return Err(FunctionError::NoBar {
                name: self.name().to_owned(),
                index,
            });
        }
        let memory = usize::try_from(bytes)
            .map_err(|_| MemoryError::TooLarge { bytes: usize::MAX })
            .and_then(SharedMemory::of_this_process)
            .map_err(|source| VfioUserError::Bar {
                path: client.path().to_owned(),
                index,
                bytes,
                source,
            })
            .map_err(self.remote())?;
        let listener = Listener::Remote(Arc::clone(client));
        let lock = Arc::clone(&self.inner.lock);
        Ok(Bar::new(index, memory, Some(listener), lock))
    }

    /// Returns the number of MSI-X vectors of the function.
    #[must_use]
    pub fn interrupt_count(&self) -> usize {
        self.inner.backend.interrupt_count()
    }

    /// Makes an eventfd that wakes threads sleeping on the function's interrupts. The device never signals it.
    ///
    /// # Errors
    /// [`FunctionError::Wakeup`]: the system has no eventfd left.
    pub fn wakeup(&self) -> Result<Interrupt, FunctionError> {
        Interrupt::new().map_err(|source| self.no_wakeup(source))
    }

    /// Makes a descriptor for waiting on these interrupts in an event loop.
    ///
    /// # Errors
    /// [`FunctionError::Wakeup`]: the system has no descriptor left.
    pub fn interrupt_set(&self, interrupts: &[Interrupt]) -> Result<InterruptSet, FunctionError> {
        let watched = || {
            let mut set = InterruptSet::new()?;
            set.watch(interrupts)?;
            Ok(set)
        };
        watched().map_err(|source| self.no_wakeup(source))
    }

    fn no_wakeup(&self, source: io::Error) -> FunctionError {
        FunctionError::Wakeup {
            name: self.name().to_owned(),
            source,
        }
    }

    /// Enables the first `most` interrupt vectors, or fewer if the function or the kernel has fewer, and returns them
    /// in vector order. Later calls return the same vectors: once MSI-X is enabled, kernels before 6.5 cannot add a
    /// vector without losing interrupts of the others (Linux `vfio_pci_intrs.c`, VFIO_IRQ_INFO_NORESIZE).
    ///
    /// # Errors
    /// [`FunctionError::Interrupt`]: the system has no eventfd left. [`FunctionError::VfioUser`],
    /// [`FunctionError::Vfio`]: the other process or the kernel refused.
    pub fn enable_interrupts(&self, most: usize) -> Result<Vec<Interrupt>, FunctionError> {
        let mut enabled = self
            .inner
            .interrupts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if enabled.is_empty() {
            self.check_claimed("a change of interrupts")?;
            let count = self.interrupt_count().min(most);
            let mut vectors = (0..count)
                .map(|vector| {
                    Interrupt::new().map_err(|source| FunctionError::Interrupt {
                        name: self.name().to_owned(),
                        vector,
                        count,
                        source,
                    })
                })
                .collect::<Result<Vec<_>, _>>()?;
            match &self.inner.backend {
                Backend::InProcess(device) => device.set_interrupts(vectors.clone()),
                Backend::VfioUser(client) => {
                    client.set_interrupts(&vectors).map_err(self.remote())?;
                }
                Backend::Vfio(vfio) => {
                    let count = vfio.set_interrupts(&vectors).map_err(Box::new)?;
                    vectors.truncate(count);
                }
            }
            *enabled = vectors;
        }
        Ok(enabled.clone())
    }

    /// Returns the I/O addresses that can be mapped.
    #[must_use]
    pub fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.inner.backend.iova_ranges()
    }

    /// Maps `bytes` bytes of `memory`, starting at byte `offset`, at `iova` for all functions of the I/O address space.
    /// `bytes`, `offset` and `iova` are multiples of 4 KiB.
    ///
    /// # Errors
    /// [`FunctionError::DmaRange`]: not whole pages, or not inside `memory`. [`FunctionError::Stopped`]: the I/O
    /// address space was stopped, because one of its functions has refused to unmap memory.
    /// [`FunctionError::DmaRefused`], [`FunctionError::VfioUser`], [`FunctionError::Vfio`]: the model, the other
    /// process or the kernel refused.
    pub fn dma_map(
        &self,
        iova: Iova,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), FunctionError> {
        let page_mask = DMA_PAGE - 1;
        let whole_pages =
            (offset | bytes) & page_mask == 0 && iova.0.is_multiple_of(DMA_PAGE as u64);
        if bytes == 0 || !whole_pages || !memory.contains(offset, bytes) {
            return Err(FunctionError::DmaRange {
                name: self.name().to_owned(),
                iova: iova.0,
                offset,
                bytes,
                len: memory.len(),
            });
        }
        self.inner.space.map(iova, memory, offset, bytes, false)
    }

    /// Unmaps exactly one mapping, from every function of the I/O address space.
    ///
    /// # Errors
    /// There is no such mapping; then nothing has changed. [`FunctionError::DmaRefused`],
    /// [`FunctionError::VfioUser`], [`FunctionError::Vfio`]: the model, the other process or the kernel refused.
    pub fn dma_unmap(&self, iova: Iova, bytes: usize) -> Result<(), FunctionError> {
        self.inner.space.unmap(iova, bytes)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_parked {
            return;
        }
        if self.space.abandon_unclaimed() {
            return;
        }
        match &self.backend {
            // A model outlives its driver, and must not keep the driver's eventfds open.
            Backend::InProcess(device) => {
                device.set_interrupts(Vec::new());
                device.set_notices(Notices::default());
            }
            Backend::VfioUser(_) => {}
            Backend::Vfio(vfio) => vfio.disable(),
        }
        self.space.remove_member(&self.backend);
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({})", self.name())
    }
}

mod parking;
mod unclaimed;

pub use unclaimed::UnclaimedFunction;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::CONFIG_COMMAND;
    use crate::double::Double;

    #[test]
    fn bus_mastering_off_leaves_the_registers_reachable() {
        let device = Double::new();
        let function = device.function();
        function.config_write_u16(CONFIG_COMMAND, 0x0400).unwrap();
        function.set_bus_master(true).unwrap();
        assert_eq!(function.config_read_u16(CONFIG_COMMAND).unwrap(), 0x0406);
        function.set_bus_master(false).unwrap();
        assert_eq!(function.config_read_u16(CONFIG_COMMAND).unwrap(), 0x0402);
    }

    #[test]
    fn configuration_words_are_little_endian() {
        let function = Double::new().function();
        function.config_write_u32(0x40, 0x1122_3344).unwrap();
        assert_eq!(function.config_read_u8(0x40).unwrap(), 0x44);
        function.config_write_u8(0x43, 0xaa).unwrap();
        assert_eq!(function.config_read_u16(0x42).unwrap(), 0xaa22);
    }

    #[test]
    fn configuration_access_past_the_end_is_refused_with_its_numbers() {
        let function = Double::new().function();
        assert!(function.config_read_u32(0xffc).is_ok());
        let error = function.config_read_u32(0xffd).unwrap_err().to_string();
        assert!(
            error.contains("0xffd") && error.contains("4 bytes"),
            "{error}"
        );
        assert!(function.config_write_u16(u16::MAX, 0).is_err());
    }

    #[test]
    fn missing_bar_is_an_error() {
        let function = Double::new().function();
        assert!(matches!(
            function.bar(1),
            Err(FunctionError::NoBar { index: 1, .. })
        ));
    }

    #[test]
    fn interrupts_enabled_twice_are_the_same_ones() {
        let device = Double::new();
        let function = device.function();
        let first = function.enable_interrupts(usize::MAX).unwrap();
        let second = function.enable_interrupts(usize::MAX).unwrap();
        assert_eq!((first.len(), second.len()), (2, 2));
        device.signal(1);
        assert!(!first[0].is_pending());
        assert_eq!(first[1].take(), 1);
        assert_eq!(second[1].take(), 0);
        assert_eq!(device.times_interrupts_set(), 1);
    }

    #[test]
    fn no_more_vectors_are_enabled_than_asked_for_and_none_outlive_the_driver() {
        let device = Double::new();
        let function = device.function();
        let vectors = function.enable_interrupts(1).unwrap();
        assert_eq!((vectors.len(), device.interrupts_set()), (1, 1));
        assert!(device.notices().error.is_some());
        drop(function);
        assert_eq!(device.interrupts_set(), 0);
        assert!(device.notices().error.is_none() && device.notices().requested.is_none());
    }

    #[test]
    fn notices_of_the_system_reach_the_driver() {
        let device = Double::new();
        let function = device.function();
        let (theirs, ours) = (device.notices(), function.notices());
        theirs.requested.unwrap().signal();
        assert!(ours.requested.as_ref().unwrap().is_pending());
        assert!(!ours.error.as_ref().unwrap().is_pending());
        theirs.error.unwrap().signal();
        assert!(ours.error.as_ref().unwrap().is_pending());
    }

    #[test]
    fn reset_reaches_the_device() {
        let device = Double::new();
        device.function().reset().unwrap();
        assert_eq!(device.resets(), 1);
    }

    #[test]
    fn dma_map_of_less_than_pages_or_outside_the_memory_is_refused() {
        let device = Double::new();
        let function = device.function();
        let memory = SharedMemory::anonymous(2 * DMA_PAGE).unwrap();
        let refused = [
            (0x1000, 0, 0),
            (0x1000, 0, 100),
            (0x1000, 100, DMA_PAGE),
            (0x1010, 0, DMA_PAGE),
            (0x1000, DMA_PAGE, 2 * DMA_PAGE),
            (0x1000, usize::MAX & !(DMA_PAGE - 1), DMA_PAGE),
        ];
        for (iova, offset, bytes) in refused {
            let result = function.dma_map(Iova(iova), &memory, offset, bytes);
            assert!(
                matches!(result, Err(FunctionError::DmaRange { .. })),
                "{iova:#x} {offset:#x} {bytes:#x}: {result:?}"
            );
        }
        assert_eq!(device.mappings(), vec![]);
        function
            .dma_map(Iova(0x1000), &memory, DMA_PAGE, DMA_PAGE)
            .unwrap();
        assert_eq!(device.mappings(), vec![(0x1000, DMA_PAGE)]);
        function.dma_unmap(Iova(0x1000), DMA_PAGE).unwrap();
        assert_eq!(device.mappings(), vec![]);
    }

    #[test]
    fn a_refusal_by_the_device_keeps_its_reason() {
        let device = Double::new();
        let function = device.function();
        let memory = SharedMemory::anonymous(DMA_PAGE).unwrap();
        device.set_refuses_dma(true);
        let error = function.dma_map(Iova(0x7000), &memory, 0, DMA_PAGE);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("0x7000") && error.contains("refused by the double"),
            "{error}"
        );
        let error = function.dma_unmap(Iova(0x7000), DMA_PAGE).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("0x7000") && error.contains("nothing was mapped"),
            "{error}"
        );
    }
}
