//! The machine's PCI functions as the kernel shows them, without opening any.
//!
//! Before a function can be opened, a person has to find it, see why it is not available yet, and bind it to vfio-pci
//! without cutting off their own login or their disks. All of that is known from files: sysfs lists the functions,
//! their drivers and the members of their IOMMU groups; procfs shows network traffic, mounts and this process's limit
//! on locked memory. [`Machine`] holds the roots of these trees, so that a test can use trees of its own.
//!
//! No file is required: the value of a missing or unreadable file is unknown, which is not an error. Only
//! [`Machine::bind`] and [`Machine::unbind`] write.

mod acs;
mod bind;
pub(crate) mod capability;
mod host;
mod machine;
mod network;
mod physical;
mod storage;

pub use acs::{Isolation, Port};
pub use bind::{BindError, Bound, Kernel, Writer};
pub use host::{Holder, HugePages, Iommu, Remapping};
pub use machine::{Kind, Link, Machine, Member, PciFunction, Role};
pub use network::Traffic;
pub use physical::Netdev;
pub use storage::DiskUse;
