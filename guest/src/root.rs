//! A folder with QEMU and kernels, unpacked once from Debian's packages.
//!
//! ```text
//!   ROOT/                the unpacked packages: QEMU, busybox, xz, cpio, kmod; and apt's state
//!   ROOT/vm/             our own files
//!             bin/         programs of the root, each run by its own dynamic loader; apt-get, which works on the root
//!             RELEASE/     files that depend on the kernel, by its release of Debian:
//!               kernel/      its packages, unpacked
//!               ...          images of its guests
//! ```
//!
//! Nothing is installed and nothing is changed outside of this folder. apt-get and dpkg-deb are the host's, but all
//! files that apt reads and writes are in the folder. So neither root privileges nor a namespace is needed.
//!
//! A folder whose stamp has the current recipe is used as it is; any other folder is created anew.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::progress::{Line, Progress};
use crate::{mirror, program};

/// Debian release of all packages in a guest.
const RELEASE: &str = "trixie";
/// Release from which QEMU is taken, because the QEMU of `RELEASE` has no vfio-user-pci.
const BACKPORTS: &str = "trixie-backports";
/// Release from which an older kernel is taken.
const OLDER: &str = "bookworm";
/// Name of QEMU's package.
pub const QEMU: &str = "qemu-system-x86";
/// Further packages, which are needed to unpack kernels and to create images.
pub const TOOLS: [&str; 4] = ["busybox-static", "xz-utils", "cpio", "kmod"];
/// Contents of a folder's stamp. This must change with the unpacked contents, so that an older folder is created anew.
/// Without QEMU, the list of packages is appended.
const RECIPE: &str =
    "root 2: trixie, qemu-system-x86 and its friends from backports; lists of bookworm too";
/// Paths in the root of the dynamic loader and the libraries of all its programs.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Paths on the host of the keys that sign Debian's lists; the first that exists is used.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// A folder with unpacked packages.
#[derive(Clone, Debug)]
pub struct Root {
    folder: PathBuf,
}

impl Root {
    /// Returns the root in `folder`. If the folder's stamp is not current, first removes the folder, creates it anew,
    /// and reports progress.
    ///
    /// # Errors
    /// A program of the host is missing, or a package is not available. The error names the command that failed.
    pub fn prepare(folder: &Path, has_qemu: bool, progress: &impl Progress) -> Result<Self> {
        Self::prepare_for(folder, has_qemu, &[], progress)
    }

    /// Does the same as [`Root::prepare`], for a caller that will also need the packages `wanted`. If the folder is
    /// created anew, an unknown package is reported before much is downloaded.
    ///
    /// # Errors
    /// Those of [`Root::prepare`], and of [`Root::knows`].
    pub fn prepare_for(
        folder: &Path,
        has_qemu: bool,
        wanted: &[&str],
        progress: &impl Progress,
    ) -> Result<Self> {
        ensure!(
            std::env::consts::ARCH == "x86_64",
            "QEMU and kernels are Debian's for x86-64, and this is {}",
            std::env::consts::ARCH
        );
        let missing: Vec<&str> = ["apt-get", "dpkg-deb", "tar", "setpriv"]
            .into_iter()
            .filter(|name| !program::exists(name))
            .collect();
        ensure!(
            missing.is_empty(),
            "not on the path: {}; a Debian or Ubuntu has them in its packages apt, dpkg, tar and util-linux",
            missing.join(", ")
        );
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let folder = folder.canonicalize()?;
        let root = Self { folder };
        let recipe = match has_qemu {
            true => RECIPE.to_owned(),
            false => format!("{RECIPE}; {}", TOOLS.join(" ")),
        };
        let stamp = root.path("recipe");
        // A root with QEMU also serves callers that need no QEMU.
        if std::fs::read_to_string(&stamp).is_ok_and(|made| made == recipe || made == RECIPE) {
            root.write_programs()?;
            return Ok(root);
        }
        progress.begins(match has_qemu {
            true => "fetching QEMU from Debian's packages",
            false => "fetching busybox and kmod from Debian's packages",
        });
        let above = root.folder.parent().context("a folder in a folder")?;
        mirror::reach(RELEASE, above)?;
        remove(&root.folder)?;
        for folder in [
            "vm/run",
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "etc/apt/sources.list.d",
            "etc/apt/trusted.gpg.d",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
        ] {
            std::fs::create_dir_all(root.folder.join(folder))?;
        }
        root.write_programs()?;
        root.update()?;
        root.knows(wanted)?;
        let mut packages = TOOLS.to_vec();
        packages.extend(has_qemu.then_some(QEMU));
        root.unpack_from(Some(BACKPORTS), &packages, "..", progress)?;
        std::fs::write(&stamp, recipe)?;
        Ok(root)
    }

    /// Writes the programs that [`script`](Self::script) and [`program`](Self::program) run. They contain the path of
    /// the root, which may have changed.
    fn write_programs(&self) -> Result<()> {
        let root = self.folder.display();
        let folder = self.path("bin");
        std::fs::create_dir_all(&folder)?;
        let ours = |name: &str, more: &str| {
            format!(
                "export QEMU_MODULE_DIR='{root}/{LIBRARIES}/qemu'\n\
                 exec '{root}/{LOADER}' --library-path '{root}/{LIBRARIES}' '{root}/{name}' {more} \"$@\"\n"
            )
        };
        let apt = on_path("apt-get").context("apt-get")?;
        let apt = format!(
            "exec '{}' -o Dir='{root}' -o Dir::State::status='{root}/vm/nothing-installed' \
             -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root \
             -o Acquire::Languages=none \"$@\"\n",
            apt.display()
        );
        let data = format!("-L '{root}/usr/share/qemu' -L '{root}/usr/share/seabios'");
        for (name, text) in [
            (EMULATOR, ours("usr/bin/qemu-system-x86_64", &data)),
            ("cpio", ours("usr/bin/cpio", "")),
            ("xz", ours("usr/bin/xz", "")),
            ("depmod", ours("usr/sbin/depmod", "")),
            ("apt-get", apt),
        ] {
            replace(&folder.join(name), &format!("#!/bin/sh\n{text}"))?;
        }
        // With an empty list of installed packages, apt lists and downloads all dependencies.
        std::fs::write(self.path("nothing-installed"), "")?;
        Ok(())
    }

    /// Fetches fresh lists of packages, from the mirror that is configured now.
    fn update(&self) -> Result<()> {
        let mirror = mirror::address();
        let keys = KEYRINGS
            .into_iter()
            .find(|keys| Path::new(keys).exists())
            .context(
                "the keys of Debian's packages are not here (/usr/share/keyrings/debian-archive-keyring.gpg): \
                 apt-get install debian-archive-keyring",
            )?;
        let releases = [RELEASE, BACKPORTS, OLDER];
        let sources = releases
            .map(|release| format!("deb [arch=amd64 signed-by={keys}] {mirror} {release} main\n"));
        std::fs::write(self.folder.join("etc/apt/sources.list"), sources.concat())?;
        let mut command = self.program("apt-get");
        command
            .args(["update", "-qq", "-oAPT::Update::Error-Mode=any"])
            .args(mirror::PATIENCE);
        mirror::run_apt(&mut command, &mirror)
    }

    /// Returns a path in our part of the root, `ROOT/vm`.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.folder.join("vm").join(inside)
    }

    /// Returns a command that runs a program of the root in the folder `ROOT/vm`.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.path("bin").join(name));
        command.current_dir(self.path("")).env("LC_ALL", "C");
        command
    }

    /// Returns the path of busybox, which is statically linked.
    pub fn busybox(&self) -> PathBuf {
        self.folder.join("usr/bin/busybox")
    }

    /// Returns a command that runs a shell script in the folder `ROOT/vm`, with the programs of the root in PATH.
    pub fn script(&self, script: &str) -> Command {
        let mut path = self.path("bin").into_os_string();
        if let Some(host) = std::env::var_os("PATH") {
            path.push(":");
            path.push(host);
        }
        let mut command = Command::new("sh");
        command
            .args(["-euc", script])
            .current_dir(self.path(""))
            .env("LC_ALL", "C")
            .env("PATH", path);
        command
    }

    /// Runs a script that downloads something. If it fails, updates the lists of packages and repeats the script. The
    /// script's output is [progress](Line).
    pub(crate) fn fetch(&self, script: &str, progress: &impl Progress) -> Result<()> {
        let run = || {
            program::followed(self.script(script), |line| {
                if let Some(line) = Line::parse(line) {
                    line.report(progress);
                }
            })
        };
        mirror::with_fresh_lists(run, || self.update())
    }

    /// Checks that the lists contain these packages.
    ///
    /// # Errors
    /// The name of a package that is unknown.
    pub fn knows(&self, names: &[&str]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let mut command = self.program("apt-get");
        command
            .args(["install", "-qq", "-s", "--no-install-recommends"])
            .args(names);
        let output = command.output().context("apt-get")?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        match missing(&said) {
            Some(name) => bail!("no Debian package {name} (in {RELEASE} and its backports)"),
            None => bail!("{}: {}", names.join(" "), mirror::reason(&said)),
        }
    }

    /// Downloads packages and all their dependencies, and unpacks them into `folder` below `ROOT/vm`.
    pub fn unpack_packages(&self, packages: &[&str], folder: &str) -> Result<()> {
        self.unpack_from(None, packages, folder, &|_: &str| {})
    }

    /// Does the same as `Root::unpack_packages`, and reports progress.
    pub fn unpack_with_progress(
        &self,
        packages: &[&str],
        folder: &str,
        progress: &impl Progress,
    ) -> Result<()> {
        self.unpack_from(None, packages, folder, progress)
    }

    fn unpack_from(
        &self,
        release: Option<&str>,
        packages: &[&str],
        folder: &str,
        progress: &impl Progress,
    ) -> Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        let list = packages.join(" ");
        let release = release.map_or_else(String::new, |release| format!("-t {release}"));
        // `debs` is cleared because an interrupted download, perhaps for another guest, may have left files.
        let script = format!(
            "rm -rf debs; mkdir -p debs/partial {folder}
             apt-get install -qq -y {release} --no-install-recommends --download-only \
                 -o Dir::Cache::archives=\"$PWD/debs\" -o APT::Status-Fd=3 {list} 3>&1 >/dev/null
             cd debs
             {UNPACK} dpkg-deb --fsys-tarfile $deb | tar -x -C ../{folder} --keep-directory-symlink; {UNPACKED}
             cd ..; rm -rf debs"
        );
        self.fetch(&script, progress)
    }
}

/// Start and end of a shell loop over the package files in the current folder. The loop prints its progress.
pub(crate) const UNPACK: &str = "set -- *.deb; done=0; echo unpacked 0 $#; for deb; do";
pub(crate) const UNPACKED: &str = "done=$((done + 1)); echo unpacked $done $#; done";

/// Name of the emulator's program.
pub const EMULATOR: &str = "qemu-system-x86_64";

/// Returns the path of a program of the host, from PATH.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(name));
    files.find(|file| file.is_file())
}

/// Writes a program file, unless it has this text already. A new file replaces the old one by a rename, because
/// another process may be running the old one.
fn replace(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text).with_context(|| new.display().to_string())?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&new, path).with_context(|| path.display().to_string())
}

/// Removes an unusable root. Older versions of this project made the root with mmdebstrap. A root that mmdebstrap left
/// incomplete may still have the host's devices mounted in it, so these are unmounted first.
fn remove(root: &Path) -> Result<()> {
    if !root.exists() {
        return Ok(());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    // The innermost mounts are unmounted first.
    for point in mounted_below(&mounts, root).iter().rev() {
        let mut umount = Command::new("umount");
        umount.arg(point);
        program::quietly(umount)?;
    }
    std::fs::remove_dir_all(root).with_context(|| root.display().to_string())
}

/// Returns the mount points below a folder, in the order of mounting (proc_mounts(5)).
fn mounted_below(mounts: &str, folder: &Path) -> Vec<PathBuf> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .map(unescaped)
        .filter(|point| point.starts_with(folder))
        .collect()
}

/// Returns the path of a field of /proc/self/mounts, where a space is `\040` and a backslash `\134` (getmntent(3)).
fn unescaped(field: &str) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(path).into()
}

/// Returns the name of the package that apt does not find, from apt's message.
fn missing(said: &str) -> Option<&str> {
    said.lines().find_map(|line| {
        let unknown = line.strip_prefix("E: Unable to locate package ");
        let nothing = || {
            let rest = line.strip_prefix("E: Package '")?;
            rest.strip_suffix("' has no installation candidate")
        };
        unknown.map(str::trim).or_else(nothing)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_apt_does_not_find_is_named() {
        let unknown = "W: something\nE: Unable to locate package no-such-package\n";
        assert_eq!(missing(unknown), Some("no-such-package"));
        let nothing =
            "Package awk is a virtual package\nE: Package 'awk' has no installation candidate\n";
        assert_eq!(missing(nothing), Some("awk"));
        assert_eq!(missing("E: Failed to fetch http://x\n"), None);
    }

    #[test]
    fn what_a_half_made_root_has_mounted_is_found_and_nothing_beside_it() {
        let mounts = "proc /proc proc rw 0 0\n\
            tmp /t/vm/root-of-another tmpfs rw 0 0\n\
            proc /t/vm/root/proc proc rw 0 0\n\
            udev /t/vm/root/dev/null devtmpfs rw 0 0\n";
        assert_eq!(
            mounted_below(mounts, Path::new("/t/vm/root")),
            ["/t/vm/root/proc", "/t/vm/root/dev/null"].map(PathBuf::from)
        );
    }

    /// The kernel escapes spaces, tabs, line feeds and backslashes (Linux `fs/proc_namespace.c` `mangle`).
    #[test]
    fn a_mount_point_is_found_whatever_characters_its_path_has() {
        let mounts = "udev /my\\040folder/a\\134b/root/dev\\011x devtmpfs rw 0 0\n";
        assert_eq!(
            mounted_below(mounts, Path::new("/my folder/a\\b/root")),
            [PathBuf::from("/my folder/a\\b/root/dev\tx")]
        );
    }
}
