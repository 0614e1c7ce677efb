//! The parts that all guests share: QEMU and a kernel, from Debian's packages, unpacked once under `target/vm/root`
//! ([`guest::Root`]), with the images of the suites and the files of the last run.
//!
//! ```text
//!   target/vm/root/vm/RELEASE/    files that depend on the kernel, by the Debian release that contains it:
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

/// The unpacked QEMU and kernel, and the folder in which they are.
pub struct Machine {
    root: Root,
    /// Selected kernel.
    kernel: Kernel,
    /// The unpacked kernel.
    pub unpacked: Unpacked,
    /// Version of QEMU, such as 11.1.3.
    pub qemu: String,
}

/// Downloads and unpacks QEMU and the kernel, unless they are unpacked already.
///
/// # Errors
/// A package is not available; the error names the command that failed.
pub fn prepare(kernel: Kernel) -> Result<Machine> {
    let folder = shell::target_directory()?.join("vm/root");
    let announce = |what: &str| println!("vm: {what}");
    let root = Root::prepare(&folder, true, &announce)?;
    let unpacked = kernel.unpack(&root, &announce)?;
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
    /// Returns the folder of the files that depend on the kernel.
    pub const fn folder(&self) -> &'static str {
        self.kernel.folder()
    }

    /// Returns a path below the machine's folder.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root.path(inside)
    }

    /// Returns a command that runs QEMU.
    pub fn emulator(&self) -> Command {
        self.root.program(EMULATOR)
    }

    /// Returns the path of busybox, which needs no libraries.
    pub fn busybox(&self) -> PathBuf {
        self.root.busybox()
    }

    /// Returns a command that runs a shell script in the machine's folder.
    pub fn script(&self, script: &str) -> Command {
        self.root.script(script)
    }

    /// Downloads packages and their dependencies, and unpacks them into a folder below the machine's folder.
    pub fn unpack_packages(&self, packages: &[&str], folder: &str) -> Result<()> {
        self.root.unpack_packages(packages, folder)
    }
}
