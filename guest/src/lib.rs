//! A stock Linux kernel under QEMU, from Debian's packages.
//!
//! QEMU and a kernel are unpacked once into a folder ([`Root`]), by the apt and the dpkg-deb of the host, which keep
//! all that they know of it in that folder: nothing is installed, and no root is needed. What was unpacked is run where
//! it lies, by its own dynamic loader. A guest is started with functions in its PCI slots, each of them
//! a socket of vfio-user ([`qemu`]).
//!
//! What a guest consists of besides, and what runs in it, is its owner's: the suites of `cargo xtask vm`, and
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
