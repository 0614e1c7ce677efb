//! A function behind the kernel's VFIO: real hardware, or a virtual machine's emulation of it.
//!
//! The kernel gives a process access to a whole IOMMU group through three files: one for the container (the I/O address
//! space), one for the group, and one for the device. Registers are then accessed through a mapping of the BAR, without
//! the kernel. Configuration space, interrupts and DMA mappings need system calls. [`device`] describes the order of
//! all steps.
//!
//! VFIO needs an IOMMU, which a test machine may lack. So every system call goes through [`sys::System`], which tests
//! replace by a kernel with chosen answers and errors.
//!
//! Deliberately absent: the IOMMUFD interface, groups without an IOMMU, legacy interrupts, MSI that is not MSI-X.

mod config;
mod container;
mod device;
mod dma;
mod error;
mod group;
mod irq;
mod region;
mod requests;
mod sys;
#[cfg(test)]
mod tests;

pub(crate) use config::Window;
pub(crate) use container::Container;
pub use device::VfioFds;
pub(crate) use device::{Files, Vfio};
pub use error::VfioError;
pub use group::PciAddress;
pub(crate) use group::{Roots, is_harmless, is_vfio, link_name};
pub(crate) use sys::{Kernel, System};
