//! Checks whether the objects that a configuration names exist now: files, adapters, addresses, folders, keys.
//!
//! [`super::file`] finds mistakes in the text. An object that the text names may appear later (a disk, an adapter, a
//! folder of `/run`), so a missing object is a warning with its position in the file. The checks reserve and lock
//! nothing: a file is opened and closed again, and an address is bound for a moment.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::{major, minor};
use nix::unistd::{AccessFlags, faccessat};
use udapl::name;
use udapl::name::PciAddress;

use super::mistake::{Mistake, Mistakes};
use super::settings::Settings;
use crate::auth::Key;

/// An object outside the configuration that a configuration file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A file or block device that is the disk of a namespace.
    File {
        /// Path of the disk.
        path: PathBuf,
        /// Block size in bytes.
        block: u64,
        /// True if writes are refused.
        read_only: bool,
    },
    /// An adapter's name, with its options.
    Adapter(String),
    /// Function of an NVMe SSD: a PCI address or `vfio-user:PATH`.
    Ssd(String),
    /// Address at which counters can be read.
    Address(SocketAddr),
    /// Path of a socket that the daemon will create.
    Socket(PathBuf),
    /// Path of the file with a host's key.
    Key(PathBuf),
}

/// Result of a check: the settings of a file, and warnings.
#[derive(Debug)]
pub struct Check {
    /// The settings.
    pub settings: Settings,
    /// Objects that are missing or cannot be used, in the order of the file.
    pub warnings: Mistakes,
    /// Number of checked objects of each kind.
    looked_at: BTreeMap<&'static str, usize>,
}

impl Check {
    pub(super) fn new(
        path: &Path,
        text: &str,
        settings: Settings,
        named: Vec<(Named, Range<usize>)>,
    ) -> Self {
        let machine = Path::new("/");
        let mut warnings = Vec::new();
        let mut looked_at = BTreeMap::new();
        for (one, span) in named {
            *looked_at.entry(one.kind()).or_default() += 1;
            if let Some(what) = one.complaint(machine) {
                let message = format!("warning: as of now {what}");
                warnings.push(Mistake::at(text, &span, message));
            }
        }
        warnings.sort_by_key(|warning| (warning.line, warning.column));
        Self {
            settings,
            warnings: Mistakes {
                path: path.to_owned(),
                mistakes: warnings,
            },
            looked_at,
        }
    }
}

/// Returns a number with its noun: `1 port`, `2 ports`.
#[must_use]
pub fn counted(number: usize, what: &str) -> String {
    let plural = match what.strip_suffix('s') {
        _ if number == 1 => what.to_owned(),
        Some(_) => format!("{what}es"),
        None => format!("{what}s"),
    };
    format!("{number} {plural}")
}

/// Prints what the file contains, and how many objects were checked.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            settings,
            warnings,
            looked_at,
        } = self;
        let namespaces = settings.subsystems.values();
        let namespaces: usize = namespaces.map(|one| one.namespaces.len()).sum();
        write!(
            f,
            "{}: {}, {}, {}; ",
            warnings.path.display(),
            counted(settings.ports.len(), "port"),
            counted(settings.subsystems.len(), "subsystem"),
            counted(namespaces, "namespace")
        )?;
        if looked_at.is_empty() {
            return f.write_str("the text was checked, and it names nothing to look at");
        }
        let kinds = looked_at.iter();
        let kinds: Vec<String> = kinds.map(|(kind, number)| counted(*number, kind)).collect();
        write!(
            f,
            "the text was checked, and looked at as of now: {}; {}",
            kinds.join(", "),
            counted(warnings.mistakes.len(), "warning")
        )
    }
}

impl Named {
    const fn kind(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Adapter(_) => "adapter",
            Self::Ssd(_) => "SSD",
            Self::Address(_) => "address",
            Self::Socket(_) => "folder of a socket",
            Self::Key(_) => "key",
        }
    }

    /// Returns what is wrong with the object; `None` if it can be used. `machine` is the folder that contains sys.
    fn complaint(&self, machine: &Path) -> Option<String> {
        match self {
            Self::File {
                path,
                block,
                read_only,
            } => match size(path, *read_only) {
                Ok(bytes) => left_over(bytes, *block),
                Err(what) => Some(what),
            },
            Self::Adapter(text) => adapter(text, machine),
            Self::Ssd(function) => {
                let command = |socket: &str| format!("nvmeofd ssd {socket} --disk FILE");
                not_open(function, machine, command)
            }
            Self::Address(address) => {
                let bound = TcpListener::bind(address);
                let error = bound.err()?;
                Some(format!("{address} cannot be listened at: {error}"))
            }
            Self::Socket(path) => no_folder(path),
            Self::Key(path) => match fs::read_to_string(path) {
                Ok(text) => {
                    let error = text.parse::<Key>().err()?;
                    Some(format!("{} has no key: {error}", path.display()))
                }
                Err(error) => Some(format!("{}: {error}", path.display())),
            },
        }
    }
}

/// Returns the size of a disk in bytes. Fails if a namespace could not open the disk.
fn size(path: &Path, read_only: bool) -> Result<u64, String> {
    let failed = |error| format!("{}: {error}", path.display());
    let kind = fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let is = if kind.is_dir() {
            "a folder"
        } else {
            "a special file"
        };
        return Err(format!(
            "{} is {is}; a namespace lies on a regular file or a block device",
            path.display()
        ));
    }
    // The file is opened for reading only, because the system rescans a block device when a writer closes it.
    let mut file = OpenOptions::new().read(true).open(path).map_err(failed)?;
    if !read_only {
        faccessat(AT_FDCWD, path, AccessFlags::W_OK, AtFlags::AT_EACCESS)
            .map_err(|error| failed(error.into()))?;
        if is_read_only_device(path) {
            return Err(format!("{}: the block device is read-only", path.display()));
        }
    }
    file.seek(SeekFrom::End(0)).map_err(failed)
}

/// Returns whether a block device refuses writes (`blockdev --setro`). The mode of its device node does not show that.
fn is_read_only_device(path: &Path) -> bool {
    let Ok(there) = fs::metadata(path) else {
        return false;
    };
    if !there.file_type().is_block_device() {
        return false;
    }
    let (major, minor) = (major(there.rdev()), minor(there.rdev()));
    let read_only = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    read_only.is_ok_and(|text| text.trim() == "1")
}

/// Returns a message if the disk is smaller than a block, or has bytes after its last whole block, which no host sees.
fn left_over(bytes: u64, block: u64) -> Option<String> {
    if bytes < block {
        return Some(format!("{bytes} bytes are less than a block of {block}"));
    }
    let left = bytes % block;
    (left != 0).then(|| {
        format!(
            "{bytes} bytes are {} of {block} bytes, and the last {left} bytes belong to none",
            counted(
                usize::try_from(bytes / block).unwrap_or(usize::MAX),
                "block"
            )
        )
    })
}

/// Returns a message if the folder in which a socket is to be created does not exist.
fn no_folder(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|one| !one.as_os_str().is_empty())?;
    (!folder.is_dir()).then(|| format!("the folder {} is not there", folder.display()))
}

fn adapter(text: &str, machine: &Path) -> Option<String> {
    // The name was already checked with the text.
    let (device, options) = name::parse(text, &udapl::OpenOptions::default()).ok()?;
    let simulated = options.simulated;
    let made = [options.control, simulated.link, simulated.pcap];
    if let Some(what) = made.iter().flatten().find_map(|path| no_folder(path)) {
        return Some(what);
    }
    let command = |socket: &str| format!("datctl sim serve --socket {socket}");
    not_open(device, machine, command)
}

/// Returns a message if a function cannot be opened by its socket or its PCI address. `command` returns the command
/// that serves a function at a socket.
fn not_open(device: &str, machine: &Path, command: impl Fn(&str) -> String) -> Option<String> {
    if let Some(socket) = device.strip_prefix("vfio-user:") {
        return (!Path::new(socket).exists())
            .then(|| format!("no function is served at {socket}: `{}`", command(socket)));
    }
    let address: PciAddress = device.parse().ok()?;
    let function = machine.join(format!("sys/bus/pci/devices/{address}"));
    if !function.exists() {
        return Some(format!(
            "this machine has no PCI function {address}; `datctl devices` lists those there are"
        ));
    }
    let driver = fs::read_link(function.join("driver"));
    let driver = driver.as_deref().ok().and_then(Path::file_name);
    let driver = driver.map(|name| name.to_string_lossy().into_owned());
    match driver.as_deref() {
        Some("vfio-pci") => None,
        Some(other) => Some(format!(
            "{address} belongs to driver {other}, not vfio-pci: `datctl bind {address}`"
        )),
        None => Some(format!(
            "{address} has no driver, and takes vfio-pci: `datctl bind {address}`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn numbers_of_one_have_no_plural() {
        assert_eq!(counted(1, "port"), "1 port");
        assert_eq!(counted(0, "port"), "0 ports");
        assert_eq!(counted(2, "address"), "2 addresses");
    }

    #[test]
    fn a_function_is_there_and_bound_to_vfio_pci_or_that_is_said() {
        let machine = tempfile::tempdir().expect("a folder");
        let devices = machine.path().join("sys/bus/pci/devices");
        for (address, driver) in [
            ("0000:3b:00.2", Some("vfio-pci")),
            ("0000:3b:00.3", Some("mlx5_core")),
            ("0000:3b:00.4", None),
        ] {
            let function = devices.join(address);
            fs::create_dir_all(&function).expect("a function");
            if let Some(driver) = driver {
                let driver = Path::new("/sys/bus/pci/drivers").join(driver);
                symlink(driver, function.join("driver")).expect("its driver");
            }
        }
        let said = |adapter: &str| Named::Adapter(adapter.to_owned()).complaint(machine.path());
        for (function, wanted) in [
            ("0000:3b:00.2", None),
            (
                "0000:3b:00.3",
                Some(
                    "0000:3b:00.3 belongs to driver mlx5_core, not vfio-pci: `datctl bind 0000:3b:00.3`",
                ),
            ),
            (
                "vfio-user:/nowhere/ssd",
                Some(
                    "no function is served at /nowhere/ssd: `nvmeofd ssd /nowhere/ssd --disk FILE`",
                ),
            ),
        ] {
            let said = Named::Ssd(function.to_owned()).complaint(machine.path());
            assert_eq!(said.as_deref(), wanted);
        }
        assert_eq!(said("3b:00.2,address=192.0.2.1/24"), None);
        for (name, wanted) in [
            (
                "3b:00.3",
                "0000:3b:00.3 belongs to driver mlx5_core, not vfio-pci: `datctl bind 0000:3b:00.3`",
            ),
            (
                "3b:00.4",
                "0000:3b:00.4 has no driver, and takes vfio-pci: `datctl bind 0000:3b:00.4`",
            ),
            (
                "3b:00.5",
                "this machine has no PCI function 0000:3b:00.5; `datctl devices` lists those there are",
            ),
        ] {
            assert_eq!(said(name).as_deref(), Some(wanted));
        }
    }
}
