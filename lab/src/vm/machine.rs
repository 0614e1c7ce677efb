//! What every guest shares: QEMU and a kernel, from Debian's packages, unpacked once under `target/vm/root`
//! ([`guest::Root`]), with the images of the suites and what the last run left behind.
//!
//! ```text
//!   target/vm/root/vm/RELEASE/    what depends on the kernel, by the release that has it:
//!                       kernel/     its packages, unpacked
//!                       NAME/       the image of a suite, and its initramfs
//!                     dev/        headers and libraries for programs of ours in C
//!                     run/        sockets and logs of the last run
//! ```

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use guest::kernel::Unpacked;
use guest::{EMULATOR, Kernel, Root};

use crate::shell;

/// QEMU and a kernel.
pub struct Machine {
    root: Root,
    /// Which kernel.
    kernel: Kernel,
    /// It, unpacked.
    pub unpacked: Unpacked,
    /// Version of QEMU, such as 11.1.3.
    pub qemu: String,
}

/// Unpacks what is missing.
///
/// # Errors
/// A package that cannot be had, with the command that failed.
pub fn prepare(kernel: Kernel) -> Result<Machine> {
    let folder = shell::target_directory()?.join("vm/root");
    let tell = |what: &str| println!("vm: {what}");
    let root = Root::prepare(&folder, true, &tell)?;
    let unpacked = kernel.unpack(&root, &tell)?;
    let mut version = root.program(EMULATOR);
    version.arg("--version");
    let version = shell::capture(version)?;
    let qemu = version.split_whitespace().nth(3).unwrap_or("unknown");
    Ok(Machine {
        qemu: qemu.to_owned(),
        root,
        kernel,
        unpacked,
    })
}

impl Machine {
    /// The folder of what depends on the kernel.
    pub const fn folder(&self) -> &'static str {
        self.kernel.folder()
    }

    /// A path of ours.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root.path(inside)
    }

    /// QEMU.
    pub fn emulator(&self) -> Command {
        self.root.program(EMULATOR)
    }

    /// busybox, which needs nothing.
    pub fn busybox(&self) -> PathBuf {
        self.root.busybox()
    }

    /// A shell script run in the folder of what is ours.
    pub fn script(&self, script: &str) -> Command {
        self.root.script(script)
    }

    /// Downloads packages and all they need, and unpacks them into a folder of ours.
    pub fn unpack_packages(&self, packages: &[&str], folder: &str) -> Result<()> {
        self.root.unpack_packages(packages, folder)
    }
}
