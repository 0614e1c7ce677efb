//! The machine's PCI functions as the kernel shows them, without opening any.
//!
//! Before a function can be opened a person has to find it, see why it cannot be had yet, and give it to vfio-pci
//! without cutting off the login they do it from. All that is known from files: sysfs says which functions there are,
//! who drives them and who else is in their IOMMU group; procfs says what the network carries and what this process may
//! lock. [`Machine`] is where those trees are, so that tests bring their own.
//!
//! Nothing here is believed to be complete: a file that is missing, or says what cannot be read, is an unknown and not
//! an error. Only [`Machine::bind`] and [`Machine::unbind`] write.

mod acs;
mod bind;
mod host;
mod machine;
mod network;
mod physical;

pub use acs::{Isolation, Port};
pub use bind::{BindError, Bound, Kernel, Writer};
pub use host::{Holder, HugePages, Iommu, Remapping};
pub use machine::{Link, Machine, Member, PciFunction, Role};
pub use network::Traffic;
pub use physical::Netdev;
