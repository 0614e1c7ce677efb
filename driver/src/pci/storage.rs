//! Use of a function's disks by this machine, which would be cut off if the disks disappeared.
//!
//! An NVMe controller that is unbound from the kernel's driver loses the block devices of its namespaces. sysfs shows
//! the devices and what is built on them (device mapper, md, bcache), procfs the mounts, the swap areas and the
//! processes that have a device open, configfs what the kernel's NVMe target serves. A claim that none of these show,
//! such as that of a ZFS pool, is found by an exclusive open of the device (`O_EXCL`, open(2)): it fails with EBUSY
//! while the kernel has claimed the device or one of its partitions. A device that cannot be opened counts as used.
//!
//! Not seen: uses by the kernel without a claim other than those of loop devices and of the NVMe target (LIO's fileio),
//! and files that a process has only as registered files of a ring (io_uring_register(2)).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::machine::{Machine, PciFunction, names, text};

/// Use of a disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskUse {
    /// A file system on it is mounted, here or in another mount namespace.
    Mounted {
        /// The block device, which may be a partition.
        device: String,
        /// The mount point.
        at: String,
    },
    /// The kernel swaps to it.
    Swap {
        /// The block device, which may be a partition.
        device: String,
    },
    /// Another block device consists of it.
    PartOf {
        /// The block device, which may be a partition.
        device: String,
        /// The other block device.
        holder: String,
    },
    /// The kernel's NVMe target serves it to hosts.
    Exported {
        /// The block device, which may be a partition.
        device: String,
        /// Qualified name of the subsystem.
        subsystem: String,
    },
    /// A process has it open.
    Open {
        /// The file that is open.
        file: String,
        /// Process number.
        pid: u32,
        /// Name of the program.
        name: String,
    },
    /// The kernel has claimed it for a use that is not listed, such as a ZFS pool.
    Claimed {
        /// The block device.
        device: String,
    },
    /// It could not be opened to see whether it is claimed.
    Unknown {
        /// The block device.
        device: String,
        /// Error of the system.
        error: String,
    },
}

impl fmt::Display for DiskUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { device, at } => write!(f, "{device} is mounted at {at}"),
            Self::Swap { device } => write!(f, "{device} is a swap area"),
            Self::PartOf { device, holder } => write!(f, "{device} is a part of {holder}"),
            Self::Exported { device, subsystem } => {
                write!(f, "the kernel's NVMe target serves {device} as {subsystem}")
            }
            Self::Open { file, pid, name } => {
                write!(f, "process {pid} ({name}) has {file} open")
            }
            Self::Claimed { device } => {
                write!(f, "the kernel has claimed {device}, perhaps for a ZFS pool")
            }
            Self::Unknown { device, error } => {
                write!(
                    f,
                    "whether {device} is in use is not known: /dev/{device}: {error}"
                )
            }
        }
    }
}

impl Machine {
    /// Returns the block devices of the namespaces of an NVMe controller that the kernel's driver has, such as
    /// `nvme0n1`; none of another function.
    ///
    /// A namespace that several controllers may reach (CMIC) has its block device at the subsystem, in place of the
    /// controller (Linux `drivers/nvme/host/multipath.c`).
    pub(super) fn disks(&self, function: &Path) -> Vec<String> {
        let controllers = names(&function.join("nvme"));
        let own = controllers
            .iter()
            .flat_map(|controller| names(&function.join("nvme").join(controller)));
        let subsystems = self.path("/sys/class/nvme-subsystem");
        let shared = names(&subsystems)
            .into_iter()
            .map(|subsystem| names(&subsystems.join(subsystem)))
            .filter(|entries| controllers.iter().any(|it| entries.contains(it)))
            .flatten();
        // The kernel hides a namespace whose format or command set it does not know. It has no file.
        let is_hidden = |disk: &String| {
            let hidden = self.path("/sys/class/block").join(disk).join("hidden");
            text(&hidden).is_some_and(|text| text == "1")
        };
        let disks: BTreeSet<String> = own
            .chain(shared)
            .filter(|it| is_namespace(it) && !is_hidden(it))
            .collect();
        disks.into_iter().collect()
    }

    /// Returns the uses of a function's disks and of their partitions; none of a function without disks.
    #[must_use]
    pub fn disk_uses(&self, function: &PciFunction) -> Vec<DiskUse> {
        if function.disks.is_empty() {
            return Vec::new();
        }
        let mounts = self.mounts();
        let controllers = names(&self.device(function.address).join("nvme"));
        let mut uses = self.exports(&controllers);
        for disk in &function.disks {
            let devices = self.with_partitions(disk);
            let mut shown = self.shown_uses(&devices, &mounts);
            if shown.is_empty() {
                shown.extend(self.claim(disk));
            }
            uses.extend(shown);
            uses.extend(self.exports(&devices));
            uses.extend(self.loops(&devices));
            uses.extend(self.openers(disk, &devices));
        }
        uses
    }

    /// Returns a disk and its partitions.
    fn with_partitions(&self, disk: &str) -> Vec<String> {
        let folder = self.path("/sys/class/block").join(disk);
        let partitions = names(&folder)
            .into_iter()
            .filter(|name| folder.join(name).join("partition").exists());
        [disk.to_owned()].into_iter().chain(partitions).collect()
    }

    /// Returns the uses of block devices that claim them: mounts, swap areas, and devices that consist of them.
    fn shown_uses(&self, devices: &[String], mounts: &BTreeMap<String, String>) -> Vec<DiskUse> {
        let swaps = self.text("/proc/swaps").unwrap_or_default();
        let mut uses = Vec::new();
        for device in devices {
            let folder = self.path("/sys/class/block").join(device);
            let file = format!("/dev/{device}");
            let number = text(&folder.join("dev")).unwrap_or_default();
            if let Some(at) = mounts.get(&number).or_else(|| mounts.get(&file)) {
                uses.push(DiskUse::Mounted {
                    device: device.clone(),
                    at: at.clone(),
                });
            }
            if swaps
                .lines()
                .any(|line| line.split_whitespace().next() == Some(&file))
            {
                uses.push(DiskUse::Swap {
                    device: device.clone(),
                });
            }
            uses.extend(names(&folder.join("holders")).into_iter().map(|holder| {
                // A device of the device mapper has a name that a person chose.
                let mapped = self.path("/sys/class/block").join(&holder).join("dm/name");
                DiskUse::PartOf {
                    device: device.clone(),
                    holder: text(&mapped).unwrap_or(holder),
                }
            }));
        }
        uses
    }

    /// Returns the mount point of each mounted file system, by the numbers of its block device and by the file it was
    /// mounted from. A file system of several devices (btrfs) has numbers of its own. Of several mount points the first
    /// one is returned, of this mount namespace if there is one.
    fn mounts(&self) -> BTreeMap<String, String> {
        let mut namespaces = BTreeSet::new();
        let mut mounts = BTreeMap::new();
        let processes = names(&self.path("/proc"))
            .into_iter()
            .filter(|name| name.parse::<u32>().is_ok());
        for process in ["self".to_owned()].into_iter().chain(processes) {
            let folder = self.path("/proc").join(process);
            if let Ok(namespace) = fs::read_link(folder.join("ns/mnt"))
                && !namespaces.insert(namespace)
            {
                continue;
            }
            for line in text(&folder.join("mountinfo")).unwrap_or_default().lines() {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let source = fields.iter().position(|&field| field == "-");
                let source = source.and_then(|at| fields.get(at + 2));
                if let (Some(&number), Some(&at)) = (fields.get(2), fields.get(4)) {
                    for key in [Some(number), source.copied()].into_iter().flatten() {
                        mounts
                            .entry(key.to_owned())
                            .or_insert_with(|| at.to_owned());
                    }
                }
            }
        }
        mounts
    }

    /// Returns what the kernel's NVMe target serves of devices: namespaces that lie on one, and controllers that
    /// it passes commands through to. A path may be a link.
    fn exports(&self, devices: &[String]) -> Vec<DiskUse> {
        let subsystems = self.path("/sys/kernel/config/nvmet/subsystems");
        let mut uses = Vec::new();
        for subsystem in names(&subsystems) {
            let folder = subsystems.join(&subsystem);
            let namespaces = folder.join("namespaces");
            let mut served: Vec<PathBuf> = names(&namespaces)
                .into_iter()
                .map(|namespace| namespaces.join(namespace))
                .collect();
            served.push(folder.join("passthru"));
            for one in served {
                let is_off = text(&one.join("enable")).is_some_and(|text| text == "0");
                let path = text(&one.join("device_path")).filter(|_| !is_off);
                let device = path.and_then(|path| self.is_one_of(&path, devices));
                uses.extend(device.map(|device| DiskUse::Exported {
                    device: device.clone(),
                    subsystem: subsystem.clone(),
                }));
            }
        }
        uses
    }

    /// Returns the loop devices on one of the block devices.
    fn loops(&self, devices: &[String]) -> Vec<DiskUse> {
        let all = self.path("/sys/class/block");
        let mut uses = Vec::new();
        for holder in names(&all) {
            let path = text(&all.join(&holder).join("loop/backing_file"));
            let device = path.and_then(|path| self.is_one_of(&path, devices));
            uses.extend(device.map(|device| DiskUse::PartOf {
                device: device.clone(),
                holder: holder.clone(),
            }));
        }
        uses
    }

    /// Returns the device whose file a path leads to; `None` if it leads to none of them.
    fn is_one_of<'a>(&self, path: &str, devices: &'a [String]) -> Option<&'a String> {
        let to = fs::canonicalize(self.path(path)).ok();
        let leads_to = |device: &&String| {
            let file = self.path("/dev").join(device);
            to.is_some() && fs::canonicalize(file).ok() == to || path == format!("/dev/{device}")
        };
        devices.iter().find(leads_to)
    }

    /// Returns the processes that have a block device open, or the character device of a namespace (`ng0n1`), as far as
    /// this process may see them.
    fn openers(&self, disk: &str, devices: &[String]) -> Vec<DiskUse> {
        let character = disk.replacen("nvme", "ng", 1);
        let files: Vec<String> = devices
            .iter()
            .chain([&character])
            .map(|name| format!("/dev/{name}"))
            .collect();
        let mut uses = Vec::new();
        for pid in names(&self.path("/proc"))
            .into_iter()
            .filter_map(|name| name.parse().ok())
        {
            let descriptors = self.path(format!("/proc/{pid}/fd"));
            let open = names(&descriptors)
                .into_iter()
                .filter_map(|number| fs::read_link(descriptors.join(number)).ok())
                .find_map(|target| files.iter().find(|file| self.path(file) == target));
            uses.extend(open.map(|file| DiskUse::Open {
                file: file.clone(),
                pid,
                name: self.text(format!("/proc/{pid}/comm")).unwrap_or_default(),
            }));
        }
        uses
    }

    /// Opens a disk exclusively, and closes it. Returns `None` if that succeeds.
    fn claim(&self, disk: &str) -> Option<DiskUse> {
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_EXCL.bits())
            .open(self.path("/dev").join(disk));
        Some(refused(disk, &opened.err()?))
    }
}

/// Returns the use that the refusal of an exclusive open shows.
fn refused(disk: &str, error: &io::Error) -> DiskUse {
    let device = disk.to_owned();
    if error.raw_os_error() == Some(Errno::EBUSY as i32) {
        DiskUse::Claimed { device }
    } else {
        DiskUse::Unknown {
            device,
            error: error.to_string(),
        }
    }
}

/// Returns whether a name is that of a namespace's block device: `nvme0n1`. A path to a shared namespace (`nvme0c0n1`)
/// is hidden, and has no file.
fn is_namespace(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    name.strip_prefix("nvme")
        .and_then(|rest| rest.split_once('n'))
        .is_some_and(|(controller, namespace)| number(controller) && number(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exclusive_open_that_is_refused_shows_a_claim_or_is_no_answer() {
        let of = |errno: Errno| refused("nvme0n1", &io::Error::from(errno));
        let device = "nvme0n1".to_owned();
        assert_eq!(of(Errno::EBUSY), DiskUse::Claimed { device });
        for errno in [Errno::ENOENT, Errno::EACCES, Errno::EIO] {
            assert!(matches!(of(errno), DiskUse::Unknown { .. }), "{errno}");
        }
    }

    #[test]
    fn a_namespace_is_told_from_controllers_paths_and_partitions() {
        for name in ["nvme0n1", "nvme12n345"] {
            assert!(is_namespace(name), "{name}");
        }
        for name in ["nvme0", "nvme0c0n1", "nvme0n1p1", "ng0n1", "nvmen1", "sda"] {
            assert!(!is_namespace(name), "{name}");
        }
    }
}
