//! A stock Linux kernel under QEMU, from Debian's packages.
//!
//! The host's apt and dpkg-deb unpack QEMU and a kernel once into a folder ([`Root`]). They keep all their state in it,
//! so nothing is installed and no root privileges are needed. The unpacked programs run in place, by their own dynamic
//! loader. A guest starts with functions in its PCI slots, each of them a vfio-user socket ([`qemu`]).
//!
//! The user of this crate provides the rest of a guest and the programs in it. The users are `simnic run` and the
//! suites of `cargo xtask vm`.
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
