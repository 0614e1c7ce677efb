//! What every guest shares: QEMU and a kernel, from Debian's packages, unpacked once under the target directory.
//!
//! ```text
//!   target/vm/root/            Debian: QEMU, busybox, xz, cpio, kmod, apt
//!   target/vm/root/vm/         what is ours, and seen from inside as /vm
//!                     kernel/     the kernel package, unpacked
//!                     NAME/       the image of a suite, and its initramfs
//!                     run/        sockets and logs of the last run
//! ```
//!
//! A folder that says it was made from the same list is used as it is; a half-made one is made again.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{setup, shell};

/// Where the packages come from.
const MIRROR: &str = "http://deb.debian.org/debian";
/// The release of the kernel and of everything in a guest.
const RELEASE: &str = "trixie";
/// Where QEMU comes from: vfio-user-pci is younger than the release.
const BACKPORTS: &str = "trixie-backports";
/// What has to be unpacked to build and run a guest.
const PACKAGES: &str = "qemu-system-x86,busybox-static,xz-utils,cpio,kmod";
/// Changes when what is unpacked does, so that an older folder is made again.
const RECIPE: &str = "root 1: trixie, qemu-system-x86 and its friends from backports";

/// QEMU and a kernel.
pub struct Machine {
    root: PathBuf,
    /// Release of the kernel, such as 6.12.107+deb13-amd64.
    pub kernel: String,
    /// Version of QEMU, such as 11.1.3.
    pub qemu: String,
}

/// Unpacks what is missing.
///
/// # Errors
/// Not root; or a package that cannot be had, with the command that failed.
pub fn prepare() -> Result<Machine> {
    ensure!(
        shell::capture(shell::command("id", &["-u"]))?.trim() == "0",
        "the virtual machine's parts are unpacked and run by chroot, which needs root; nothing was run. \
         What needs no root: cargo xtask test (the same tests on sim: and vfio-user:), and by hand \
         datctl sim serve with any vfio-user client"
    );
    let root = shell::target_directory()?.join("vm/root");
    let stamp = root.join("vm/recipe");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(RECIPE) {
        if root.exists() {
            std::fs::remove_dir_all(&root).with_context(|| root.display().to_string())?;
        }
        unpack_root(&root)?;
        std::fs::create_dir_all(root.join("vm/run"))?;
        std::fs::write(&stamp, RECIPE)?;
    }
    let mut machine = Machine {
        root,
        kernel: String::new(),
        qemu: String::new(),
    };
    machine.kernel = machine.unpack_kernel()?;
    let version = shell::capture(machine.inside("qemu-system-x86_64", &["--version"]))?;
    machine.qemu = version
        .split_whitespace()
        .nth(3)
        .unwrap_or("unknown")
        .to_owned();
    Ok(machine)
}

fn unpack_root(root: &Path) -> Result<()> {
    if !shell::exists("mmdebstrap") {
        setup::run()?;
    }
    ensure!(
        shell::exists("mmdebstrap"),
        "mmdebstrap is not installed and could not be: apt-get install mmdebstrap"
    );
    std::fs::create_dir_all(root.parent().context("a folder in a folder")?)?;
    let mut command = shell::command("mmdebstrap", &["--quiet", "--variant=minbase"]);
    command
        // QEMU and what it needs newer than the release.
        .arg(format!("--aptopt=APT::Default-Release \"{BACKPORTS}\""))
        .arg(format!("--include={PACKAGES}"))
        // Later downloads are the release's again.
        .arg("--customize-hook=rm -f \"$1/etc/apt/apt.conf.d/99mmdebstrap\"")
        .arg(RELEASE)
        .arg(root)
        .arg(format!("deb {MIRROR} {RELEASE} main"))
        .arg(format!("deb {MIRROR} {BACKPORTS} main"));
    shell::run(command)?;
    // Guests' packages are found by a fresh list, kept from here on.
    shell::run({
        let mut command = shell::command("chroot", &[]);
        command.arg(root).args(["apt-get", "update", "-qq"]);
        command
    })
}

impl Machine {
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

    /// Downloads packages and all they need, and unpacks them into a folder of /vm.
    pub fn unpack_packages(&self, packages: &[&str], folder: &str) -> Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        let list = packages.join(" ");
        // Told that nothing is installed, apt fetches everything that is needed.
        shell::run(self.script(&format!(
            "mkdir -p debs/partial {folder}; : > nothing-installed
             apt-get install -qq -y --no-install-recommends --download-only \
                 -o APT::Sandbox::User=root -o Dir::State::status=/vm/nothing-installed \
                 -o Dir::Cache::archives=/vm/debs {list} >/dev/null
             for deb in debs/*.deb; do dpkg-deb --fsys-tarfile $deb | tar -x -C {folder} --keep-directory-symlink; done
             rm -rf debs"
        )))
    }

    /// The release of the kernel package that is unpacked, downloading it first if there is none.
    fn unpack_kernel(&self) -> Result<String> {
        let release = || -> Option<String> {
            let modules = self.path("kernel/usr/lib/modules");
            let folder = std::fs::read_dir(modules).ok()?.flatten().next()?;
            // depmod's last file says that nothing is missing.
            folder
                .path()
                .join("modules.symbols.bin")
                .exists()
                .then_some(())?;
            folder.file_name().into_string().ok()
        };
        if let Some(release) = release() {
            return Ok(release);
        }
        shell::run(self.script(
            "rm -rf kernel linux-image-*.deb
             image=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \\(linux-image-[0-9].*\\)/\\1/p' | head -1)
             apt-get -qq -o APT::Sandbox::User=root download $image
             mkdir kernel; dpkg-deb -x linux-image-*.deb kernel; rm linux-image-*.deb
             for release in $(ls kernel/usr/lib/modules); do depmod -b /vm/kernel/usr $release; done",
        ))?;
        release().context("the kernel package has no modules")
    }
}
