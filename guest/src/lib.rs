//! A stock Linux kernel under QEMU, from Debian's packages.
//!
//! QEMU and a kernel are unpacked once into a folder ([`Root`]), by the host's apt and dpkg-deb, which keep all their
//! state in that folder: nothing is installed, and no root is needed. The unpacked programs run in place, by their
//! own dynamic loader. A guest is started with functions in its PCI slots, each of them a vfio-user socket
//! ([`qemu`]).
//!
//! The user of this crate provides the rest of a guest and the programs in it: the suites of `cargo xtask vm`, and
//! `simnic run`.
#![forbid(unsafe_code)]

pub mod child;
pub mod kernel;
pub mod mirror;
pub mod modules;
pub mod program;
pub mod progress;
pub mod qemu;
mod root;

pub use self::kernel::Kernel;
pub use self::root::{EMULATOR, Root};
