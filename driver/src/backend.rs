//! Backends: the three ways to reach a function. Each gives access to the function's configuration space, and maps
//! memory for its DMA.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::device::{COMMAND_BUS_MASTER, COMMAND_MEMORY_SPACE, CONFIG_COMMAND, Device};
use crate::error::FunctionError;
use crate::iova::Iova;
use crate::memory::SharedMemory;
use crate::vfio::Vfio;
use crate::vfio_user::{Client, VfioUserError};

/// I/O addresses that may be mapped for a function in another process: 39 bits, as with the smallest IOMMUs, except the
/// window of the interrupt controller. vfio-user has no message that returns the ranges.
const REMOTE_IOVA: [RangeInclusive<u64>; 2] = [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];

/// Maximum number of mappings in an I/O address space of functions in this process. The value is the default of the
/// kernel's VFIO (`dma_entry_limit` of `vfio_iommu_type1`; `DMA_ENTRY_LIMIT` in its source is `U16_MAX`). So a program
/// that works with an in-process function also works with VFIO.
pub(crate) const MOST_MAPPINGS: u32 = 65_535;

/// Backend of a function. Clones refer to the same open function.
#[derive(Clone)]
pub(crate) enum Backend {
    /// A device model in this process.
    InProcess(Arc<dyn Device>),
    /// A vfio-user server: a process behind a socket.
    VfioUser(Arc<Client>),
    /// A device of the kernel's VFIO.
    Vfio(Arc<Vfio>),
}

impl Backend {
    /// Returns the function's name, for messages and logs.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::InProcess(device) => device.name(),
            Self::VfioUser(client) => client.name(),
            Self::Vfio(vfio) => vfio.address(),
        }
    }

    /// Returns whether both backends refer to the same open function.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::InProcess(one), Self::InProcess(other)) => {
                std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
            }
            (Self::VfioUser(one), Self::VfioUser(other)) => Arc::ptr_eq(one, other),
            (Self::Vfio(one), Self::Vfio(other)) => Arc::ptr_eq(one, other),
            (Self::InProcess(_) | Self::VfioUser(_) | Self::Vfio(_), _) => false,
        }
    }

    /// Returns a closure that converts vfio-user errors and adds the function's name.
    pub(crate) fn remote(&self) -> impl Fn(VfioUserError) -> FunctionError {
        |source| FunctionError::VfioUser {
            name: self.name().to_owned(),
            source: Box::new(source),
        }
    }

    /// Ends this process's use of the function: dropping this backend has no effect on the function any more. Dropping
    /// the backend of a model in this process never has an effect on the model.
    pub(crate) fn part(&self) {
        match self {
            Self::InProcess(_) => {}
            Self::VfioUser(client) => client.part(),
            Self::Vfio(vfio) => vfio.part(),
        }
    }

    /// Takes over a function that another process has parked. Before this, dropping the backend has no effect on the
    /// function.
    pub(crate) fn adopt(&self) {
        match self {
            Self::InProcess(_) => {}
            Self::VfioUser(client) => client.adopt(),
            Self::Vfio(vfio) => vfio.adopt(),
        }
    }

    /// Returns the number of MSI-X vectors of the function.
    pub(crate) fn interrupt_count(&self) -> usize {
        match self {
            Self::InProcess(device) => device.interrupt_count(),
            Self::VfioUser(client) => client.vectors(),
            Self::Vfio(vfio) => vfio.vectors(),
        }
    }

    /// Returns the ranges of I/O addresses that can be mapped.
    pub(crate) fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        match self {
            Self::InProcess(device) => device.iova_ranges(),
            Self::VfioUser(_) => REMOTE_IOVA.to_vec(),
            Self::Vfio(vfio) => vfio.iova_ranges(),
        }
    }

    /// Reads configuration space. The caller has checked the range.
    pub(crate) fn config_read(&self, offset: u16, out: &mut [u8]) -> Result<(), FunctionError> {
        match self {
            Self::InProcess(device) => device.config_read(offset, out),
            Self::VfioUser(client) => client.config_read(offset, out).map_err(self.remote())?,
            Self::Vfio(vfio) => vfio
                .config()
                .read(u64::from(offset), out)
                .map_err(Box::new)?,
        }
        Ok(())
    }

    /// Writes configuration space. The caller has checked the range.
    pub(crate) fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError> {
        match self {
            Self::InProcess(device) => device.config_write(offset, data),
            Self::VfioUser(client) => client.config_write(offset, data).map_err(self.remote())?,
            Self::Vfio(vfio) => vfio
                .config()
                .write(u64::from(offset), data)
                .map_err(Box::new)?,
        }
        Ok(())
    }

    /// Enables BAR decoding and bus mastering (`on`), or disables bus mastering only. In both cases the registers stay
    /// reachable.
    #[expect(
        clippy::little_endian_bytes,
        reason = "configuration space is little-endian"
    )]
    pub(crate) fn set_bus_master(&self, on: bool) -> Result<(), FunctionError> {
        let mut command = [0; 2];
        self.config_read(CONFIG_COMMAND, &mut command)?;
        let command = u16::from_le_bytes(command);
        let wanted = if on {
            command | u16::from(COMMAND_MEMORY_SPACE | COMMAND_BUS_MASTER)
        } else {
            command & !u16::from(COMMAND_BUS_MASTER)
        };
        self.config_write(CONFIG_COMMAND, &wanted.to_le_bytes())
    }

    /// Performs a function level reset.
    pub(crate) fn reset(&self) -> Result<(), FunctionError> {
        match self {
            Self::InProcess(device) => device.reset(),
            Self::VfioUser(client) => client.reset().map_err(self.remote())?,
            Self::Vfio(vfio) => vfio.reset().map_err(Box::new)?,
        }
        Ok(())
    }

    /// Ends the function's access to memory: disables bus mastering, then resets the function. Succeeds if either step
    /// succeeds.
    pub(crate) fn stop(&self) -> Result<(), FunctionError> {
        let bus_master_off = self.set_bus_master(false);
        match self.reset() {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::warn!(function = self.name(), %error, "cannot be reset");
                bus_master_off
            }
        }
    }

    /// Returns whether the process that implements the function has ended or does not answer. No more messages are sent
    /// to a lost process.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::VfioUser(client) => client.lost().is_some(),
            Self::InProcess(_) | Self::Vfio(_) => false,
        }
    }

    /// Checks the limit on mappings where this process enforces it; `made` is the number of existing mappings.
    pub(crate) fn may_map(
        &self,
        iova: Iova,
        bytes: usize,
        made: usize,
    ) -> Result<(), FunctionError> {
        match self {
            Self::InProcess(_) if made >= MOST_MAPPINGS as usize => {
                let reason = format!(
                    "there are {made} mappings, and no more can be had: so it is under VFIO (dma_entry_limit of vfio_iommu_type1)"
                );
                Err(self.dma_refused("dma_map", iova, bytes, reason))
            }
            // The kernel and a vfio-user server enforce their own limits on mappings.
            Self::InProcess(_) | Self::VfioUser(_) | Self::Vfio(_) => Ok(()),
        }
    }

    /// Maps memory at an I/O address.
    pub(crate) fn dma_map(
        &self,
        iova: Iova,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), FunctionError> {
        match self {
            Self::InProcess(device) => {
                let (memory, offset) = if device.can_be_parked() {
                    (memory.mapped_again(offset, bytes), 0)
                } else {
                    (Ok(memory.clone()), offset)
                };
                let memory = memory.map_err(|error| error.to_string());
                memory
                    .and_then(|memory| device.dma_map(iova.0, memory, offset, bytes))
                    .map_err(|reason| self.dma_refused("dma_map", iova, bytes, reason))
            }
            Self::VfioUser(client) => client
                .dma_map(iova.0, memory, offset, bytes)
                .map_err(self.remote()),
            Self::Vfio(vfio) => Ok(vfio
                .container()
                .dma_map(iova.0, memory, offset, bytes)
                .map_err(Box::new)?),
        }
    }

    /// Unmaps exactly one mapping made by [`dma_map`](Self::dma_map).
    pub(crate) fn dma_unmap(&self, iova: Iova, bytes: usize) -> Result<(), FunctionError> {
        match self {
            Self::InProcess(device) => device
                .dma_unmap(iova.0, bytes)
                .map_err(|reason| self.dma_refused("dma_unmap", iova, bytes, reason)),
            Self::VfioUser(client) => client.dma_unmap(iova.0, bytes).map_err(self.remote()),
            Self::Vfio(vfio) => Ok(vfio
                .container()
                .dma_unmap(iova.0, bytes)
                .map_err(Box::new)?),
        }
    }

    /// Returns the error for an unmap of a mapping that does not exist.
    pub(crate) fn not_unmapped(&self, iova: Iova, bytes: usize, why: &str) -> FunctionError {
        match self {
            Self::InProcess(_) | Self::VfioUser(_) => {
                self.dma_refused("dma_unmap", iova, bytes, why.to_owned())
            }
            Self::Vfio(vfio) => Box::new(vfio.container().not_unmapped(iova.0, bytes, why)).into(),
        }
    }

    fn dma_refused(
        &self,
        operation: &'static str,
        iova: Iova,
        bytes: usize,
        reason: String,
    ) -> FunctionError {
        FunctionError::DmaRefused {
            name: self.name().to_owned(),
            operation,
            iova: iova.0,
            bytes,
            reason,
        }
    }
}
