//! A function behind the kernel's VFIO: real hardware, or a virtual machine's idea of it.
//!
//! The kernel gives a process a whole IOMMU group: a file for the container (the I/O address space), one for the
//! group, one for the device. Registers are then reached without it, by a mapping of the BAR; configuration space,
//! interrupts and DMA mappings through it. [`device`] has the order of it all.
//!
//! Nothing here runs on a machine without an IOMMU, so every system call goes through [`sys::System`], in whose place
//! tests put a kernel that answers, or refuses, what they want.
//!
//! Deliberately absent: the IOMMUFD interface, groups without an IOMMU, legacy interrupts, MSI that is not MSI-X.

mod ask;
mod config;
mod container;
mod device;
mod dma;
mod error;
mod group;
mod irq;
mod region;
mod sys;
#[cfg(test)]
mod tests;

pub(crate) use config::Window;
pub(crate) use container::Container;
pub(crate) use device::Vfio;
pub use device::VfioFds;
pub use error::VfioError;
pub use group::PciAddress;
pub(crate) use group::{Roots, is_harmless, is_vfio, link_name};
pub(crate) use sys::Kernel;
