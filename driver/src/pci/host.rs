//! Facilities of the machine for a driver in user space: an IOMMU, modules, memory that may be locked.

use std::fs;
use std::path::PathBuf;

use super::machine::{Machine, names};

/// State of the machine's IOMMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iommu {
    /// Units that the kernel uses, such as `dmar0`.
    pub units: Vec<String>,
    /// Number of IOMMU groups.
    pub groups: usize,
    /// True if the firmware describes an IOMMU (the ACPI tables DMAR, IVRS, IORT, VIOT).
    pub described: bool,
    /// Parameters of the kernel's command line that concern the IOMMU.
    pub parameters: Vec<String>,
    /// True if the processor is Intel's, whose IOMMU some kernels do not enable by default.
    pub intel: bool,
}

/// State of interrupt remapping, by which the IOMMU filters the interrupts of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remapping {
    /// Interrupts are remapped.
    On,
    /// Interrupts are not remapped, and VFIO was configured to accept that.
    Allowed,
    /// Interrupts are not remapped.
    Off,
}

/// A process that has a function's group, or a function of the group, open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process number.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
}

/// The pool of huge pages of 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Number of free pages in the pool.
    pub free: u64,
    /// Number of pages in the pool.
    pub total: u64,
}

impl Machine {
    /// Returns the state of the IOMMU.
    #[must_use]
    pub fn iommu(&self) -> Iommu {
        let parameters = self.text("/proc/cmdline").unwrap_or_default();
        Iommu {
            units: names(&self.path("/sys/class/iommu")),
            groups: names(&self.path("/sys/kernel/iommu_groups")).len(),
            described: ["DMAR", "IVRS", "IORT", "VIOT"]
                .iter()
                .any(|table| self.path("/sys/firmware/acpi/tables").join(table).exists()),
            parameters: parameters
                .split_whitespace()
                .filter(|parameter| parameter.contains("iommu"))
                .map(str::to_owned)
                .collect(),
            intel: self
                .text("/proc/cpuinfo")
                .is_some_and(|text| text.contains("GenuineIntel")),
        }
    }

    /// Returns the state of interrupt remapping. The kernel shows the state in the names of interrupt controllers: they
    /// start with `IR-` on Intel and AMD (`arch/x86/kernel/apic/msi.c` and the IOMMU drivers); Arm's ITS remaps by
    /// design.
    #[must_use]
    pub fn interrupt_remapping(&self) -> Remapping {
        let interrupts = self.text("/proc/interrupts").unwrap_or_default();
        let remapped = interrupts
            .split_whitespace()
            .any(|word| word.starts_with("IR-") || word.starts_with("ITS-"));
        let allowed = self
            .text("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")
            .is_some_and(|value| value == "Y");
        match (remapped, allowed) {
            (true, _) => Remapping::On,
            (false, true) => Remapping::Allowed,
            (false, false) => Remapping::Off,
        }
    }

    /// Returns the missing parts of VFIO: the driver `vfio-pci`, the module `vfio_iommu_type1`, the file
    /// `/dev/vfio/vfio`.
    #[must_use]
    pub fn missing_modules(&self) -> Vec<&'static str> {
        [
            ("vfio-pci", "/sys/bus/pci/drivers/vfio-pci"),
            ("vfio_iommu_type1", "/sys/module/vfio_iommu_type1"),
            ("/dev/vfio/vfio", "/dev/vfio/vfio"),
        ]
        .into_iter()
        .filter(|(_, path)| !self.path(path).exists())
        .map(|(name, _)| name)
        .collect()
    }

    /// Returns the sysctl `kernel.io_uring_disabled`: 0 allows io_uring to all, 1 only with CAP_SYS_ADMIN or in the
    /// group `kernel.io_uring_group`, 2 to none. 0 if the sysctl cannot be read.
    #[must_use]
    pub fn io_uring_disabled(&self) -> u32 {
        self.text("/proc/sys/kernel/io_uring_disabled")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default()
    }

    /// Returns the bytes this process may lock; `None` without limit, as with CAP_IPC_LOCK, which VFIO checks.
    #[must_use]
    pub fn lockable_bytes(&self) -> Option<u64> {
        /// Bit of CAP_IPC_LOCK in `CapEff`.
        const IPC_LOCK: u64 = 1 << 14;
        let capable = self
            .own_line("status", "CapEff:")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
            .is_some_and(|mask| mask & IPC_LOCK != 0);
        if capable {
            return None;
        }
        self.soft_limit("Max locked memory")
    }

    /// Returns the number of files this process may have open; `None` without limit.
    #[must_use]
    pub fn open_files(&self) -> Option<u64> {
        self.soft_limit("Max open files")
    }

    /// Returns the number of DMA mappings that VFIO allows for each container; `None` if its module is not loaded.
    #[must_use]
    pub fn dma_mappings(&self) -> Option<u64> {
        self.text("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit")?
            .parse()
            .ok()
    }

    /// Returns the rest of the line that begins with `start`, in a file of `/proc/self`.
    fn own_line(&self, file: &str, start: &str) -> Option<String> {
        self.text(format!("/proc/self/{file}"))?
            .lines()
            .find_map(|line| Some(line.strip_prefix(start)?.trim().to_owned()))
    }

    /// Returns a soft limit of this process; `None` if it is unlimited. A limit that cannot be read counts as 0.
    fn soft_limit(&self, name: &str) -> Option<u64> {
        let limit = self.own_line("limits", name).unwrap_or_default();
        match limit.split_whitespace().next() {
            Some("unlimited") => None,
            Some(count) => Some(count.parse().unwrap_or_default()),
            None => Some(0),
        }
    }

    /// Returns the memory in MiB available to programs without swapping (`MemAvailable`).
    #[must_use]
    pub fn available_mib(&self) -> u64 {
        let text = self.text("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|it| it.strip_prefix("MemAvailable:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
            / 1024
    }

    /// Returns the number of free pages and of all pages in the machine's pool of 2 MiB pages; 0 if there is no such
    /// pool.
    #[must_use]
    pub fn huge_pages(&self) -> HugePages {
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let count = |file: &str| {
            self.text(format!("{pool}/{file}"))
                .and_then(|text| text.parse().ok())
                .unwrap_or_default()
        };
        HugePages {
            free: count("free_hugepages"),
            total: count("nr_hugepages"),
        }
    }

    /// Returns the processes that have a group open, as far as this process may see them: by the group's file, with or
    /// without an IOMMU, or by the file of a function of the group (`/dev/vfio/devices/vfioN`, for iommufd).
    #[must_use]
    pub fn holders(&self, group: u32) -> Vec<Holder> {
        let devices = self.group(group).into_iter().flat_map(|member| {
            let names = names(&self.device(member.address).join("vfio-dev"));
            names.into_iter().map(|name| format!("devices/{name}"))
        });
        let files: Vec<PathBuf> = [group.to_string(), format!("noiommu-{group}")]
            .into_iter()
            .chain(devices)
            .map(|file| self.roots.dev.join(file))
            .collect();
        names(&self.path("/proc"))
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .filter(|pid: &u32| {
                let descriptors = self.path(format!("/proc/{pid}/fd"));
                names(&descriptors).into_iter().any(|number| {
                    fs::read_link(descriptors.join(number))
                        .is_ok_and(|target| files.contains(&target))
                })
            })
            .map(|pid| Holder {
                pid,
                name: self.text(format!("/proc/{pid}/comm")).unwrap_or_default(),
            })
            .collect()
    }

    /// Returns whether this process could open a group's file for reading and writing. The file is not opened,
    /// because only one process at a time can have it open.
    #[must_use]
    pub fn may_open_group(&self, group: u32) -> bool {
        use nix::unistd::{AccessFlags, access};
        let file = self.roots.dev.join(group.to_string());
        access(&file, AccessFlags::R_OK | AccessFlags::W_OK).is_ok()
    }
}
