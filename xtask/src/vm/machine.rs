//! What every guest shares: QEMU and a kernel, from Debian's packages, unpacked once under the target directory.
//!
//! ```text
//!   target/vm/root/            Debian: QEMU, busybox, xz, cpio, kmod, apt
//!   target/vm/root/vm/         what is ours, and seen from inside as /vm
//!                     RELEASE/    what depends on the kernel, by the release that has it:
//!                       kernel/     its packages, unpacked
//!                       NAME/       the image of a suite, and its initramfs
//!                     dev/        headers and libraries for programs of ours in C
//!                     run/        sockets and logs of the last run
//! ```
//!
//! A folder that says it was made from the same list is used as it is; a half-made one is made again.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::kernel::Kernel;
use super::mirror;
use crate::{setup, shell};

/// The release of everything in a guest.
const RELEASE: &str = "trixie";
/// Where QEMU comes from: vfio-user-pci is younger than the release.
const BACKPORTS: &str = "trixie-backports";
/// The release that has an older kernel.
const OLDER: &str = "bookworm";
/// What has to be unpacked to build and run a guest.
const PACKAGES: &str = "qemu-system-x86,busybox-static,xz-utils,cpio,kmod";
/// Changes when what is unpacked does, so that an older folder is made again.
const RECIPE: &str =
    "root 2: trixie, qemu-system-x86 and its friends from backports; lists of bookworm too";

/// QEMU and a kernel.
pub struct Machine {
    root: PathBuf,
    /// Which kernel.
    kernel: Kernel,
    /// Its version, such as 6.12.107+deb13-amd64.
    pub version: String,
    /// Version of QEMU, such as 11.1.3.
    pub qemu: String,
}

/// Unpacks what is missing.
///
/// # Errors
/// Not root; or a package that cannot be had, with the command that failed.
pub fn prepare(kernel: Kernel) -> Result<Machine> {
    ensure!(
        shell::capture(shell::command("id", &["-u"]))?.trim() == "0",
        "the virtual machine's parts are unpacked and run by chroot, which needs root; nothing was run. \
         What needs no root: cargo xtask test (the same tests on sim: and vfio-user:), and by hand \
         datctl sim serve with any vfio-user client"
    );
    let root = shell::target_directory()?.join("vm/root");
    let stamp = root.join("vm/recipe");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(RECIPE) {
        let folder = root.parent().context("a folder in a folder")?;
        std::fs::create_dir_all(folder)?;
        mirror::reach(RELEASE, folder)?;
        remove(&root)?;
        unpack_root(&root)?;
        std::fs::create_dir_all(root.join("vm/run"))?;
        std::fs::write(&stamp, RECIPE)?;
    }
    let mut machine = Machine {
        root,
        kernel,
        version: String::new(),
        qemu: String::new(),
    };
    machine.version = kernel.unpack(&machine)?;
    let version = shell::capture(machine.inside("qemu-system-x86_64", &["--version"]))?;
    machine.qemu = version
        .split_whitespace()
        .nth(3)
        .unwrap_or("unknown")
        .to_owned();
    Ok(machine)
}

/// Removes a root that is of no use. One that was left half-made may still have the host's devices mounted in it.
fn remove(root: &Path) -> Result<()> {
    if !root.exists() {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    // The innermost first.
    for point in mounted_below(&mounts, root).iter().rev() {
        shell::run(shell::command("umount", &[*point]))?;
    }
    std::fs::remove_dir_all(root).with_context(|| root.display().to_string())
}

/// The mount points below a folder, in the order of mounting (proc_mounts(5)).
fn mounted_below<'a>(mounts: &'a str, folder: &Path) -> Vec<&'a str> {
    let points = mounts
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    points
        .filter(|point| Path::new(point).starts_with(folder))
        .collect()
}

fn unpack_root(root: &Path) -> Result<()> {
    if !shell::exists("mmdebstrap") {
        setup::run()?;
    }
    ensure!(
        shell::exists("mmdebstrap"),
        "mmdebstrap is not installed and could not be: apt-get install mmdebstrap"
    );
    let mirror = mirror::address();
    let mut command = shell::command("mmdebstrap", &["--quiet", "--variant=minbase"]);
    command
        // QEMU and what it needs newer than the release.
        .arg(format!("--aptopt=APT::Default-Release \"{BACKPORTS}\""))
        .arg(format!("--include={PACKAGES}"))
        // Later downloads are the release's again.
        .arg("--customize-hook=rm -f \"$1/etc/apt/apt.conf.d/99mmdebstrap\"")
        .arg(RELEASE)
        .arg(root)
        .arg(format!("deb {mirror} {RELEASE} main"))
        .arg(format!("deb {mirror} {BACKPORTS} main"));
    shell::run(command)?;
    update(root)
}

/// Fetches the lists of packages anew, from the mirror as it is named now.
fn update(root: &Path) -> Result<()> {
    let mirror = mirror::address();
    let releases = [RELEASE, BACKPORTS, OLDER];
    let sources = releases.map(|release| format!("deb {mirror} {release} main\n"));
    std::fs::write(root.join("etc/apt/sources.list"), sources.concat())?;
    let mut command = shell::command("chroot", &[]);
    command
        .arg(root)
        .args(["apt-get", "update", "-qq", "-oAPT::Update::Error-Mode=any"])
        .args(mirror::PATIENCE);
    mirror::told(&mut command, &mirror)
}

impl Machine {
    /// The folder of what depends on the kernel, in /vm.
    pub const fn folder(&self) -> &'static str {
        self.kernel.folder()
    }

    /// A path of ours, from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root.join("vm").join(inside)
    }

    /// A command run inside, in /vm.
    pub fn inside(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = shell::command("chroot", &[]);
        command.arg(&self.root);
        command
            .args([
                "env",
                "-C",
                "/vm",
                "LC_ALL=C",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            ])
            .arg(program)
            .args(arguments);
        command
    }

    /// A shell script run inside, in /vm.
    pub fn script(&self, script: &str) -> Command {
        self.inside("sh", &["-euc", script])
    }

    /// Runs a script inside that fetches something, with fresh lists of packages if the old ones no longer do.
    pub fn fetch(&self, script: &str) -> Result<()> {
        mirror::with_fresh_lists(|| shell::run(self.script(script)), || update(&self.root))
    }

    /// Downloads packages and all they need, and unpacks them into a folder of /vm.
    pub fn unpack_packages(&self, packages: &[&str], folder: &str) -> Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        let list = packages.join(" ");
        // Told that nothing is installed, apt fetches everything that is needed. What is left of a download that was
        // interrupted may be another guest's.
        self.fetch(&format!(
            "rm -rf debs; mkdir -p debs/partial {folder}; : > nothing-installed
             apt-get install -qq -y --no-install-recommends --download-only \
                 -o APT::Sandbox::User=root -o Dir::State::status=/vm/nothing-installed \
                 -o Dir::Cache::archives=/vm/debs {list} >/dev/null
             for deb in debs/*.deb; do dpkg-deb --fsys-tarfile $deb | tar -x -C {folder} --keep-directory-symlink; done
             rm -rf debs"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_half_made_root_has_mounted_is_found_and_nothing_beside_it() {
        let mounts = "proc /proc proc rw 0 0\n\
            tmp /t/vm/root-of-another tmpfs rw 0 0\n\
            proc /t/vm/root/proc proc rw 0 0\n\
            udev /t/vm/root/dev/null devtmpfs rw 0 0\n";
        assert_eq!(
            mounted_below(mounts, Path::new("/t/vm/root")),
            ["/t/vm/root/proc", "/t/vm/root/dev/null"]
        );
    }
}
