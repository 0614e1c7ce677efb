//! The IOMMU group of a function, as sysfs describes it: the functions of the group and their drivers.
//!
//! The IOMMU isolates groups from each other, not functions. So the kernel gives a process a group only as a whole, and
//! only if no kernel driver uses a function of it. Otherwise the kernel only reports "not viable"; this module
//! determines the cause from sysfs. Functions without a driver do not prevent the use of a group, nor do `pci-stub` and
//! the drivers of bridges, which do no DMA of their own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::VfioError;

/// Address of a PCI function: domain, bus, device, function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for PciAddress {
    type Err = VfioError;

    /// Parses `0000:3b:00.2`, or `3b:00.2` in domain 0.
    fn from_str(text: &str) -> Result<Self, VfioError> {
        let parsed = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.split_once(':').unwrap_or(("0000", rest));
            let parsed = Self {
                domain: hex(domain, 4..=8)?,
                bus: u8::try_from(hex(bus, 2..=2)?).ok()?,
                device: u8::try_from(hex(device, 2..=2)?).ok()?,
                function: u8::try_from(hex(function, 1..=1)?).ok()?,
            };
            (parsed.device < 32 && parsed.function < 8).then_some(parsed)
        };
        parsed().ok_or_else(|| VfioError::Address {
            text: text.to_owned(),
        })
    }
}

fn hex(digits: &str, length: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let digits_only = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    (digits_only && length.contains(&digits.len()))
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

/// Directories in which sysfs and VFIO's device files are found.
#[derive(Clone, Debug)]
pub(crate) struct Roots {
    pub(crate) sysfs: PathBuf,
    pub(crate) dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sysfs: "/sys".into(),
            dev: "/dev/vfio".into(),
        }
    }
}

impl Roots {
    fn device(&self, address: &str) -> PathBuf {
        self.sysfs.join("bus/pci/devices").join(address)
    }

    /// Returns the group number of a function that can be opened: it is bound to VFIO, and no other driver uses the
    /// group.
    pub(crate) fn viable_group(&self, address: PciAddress) -> Result<u32, VfioError> {
        let address = address.to_string();
        let path = self.device(&address);
        if !path.exists() {
            return Err(VfioError::NoDevice { address, path });
        }
        let Some(group) = self.group(&address) else {
            return Err(VfioError::NoIommu { address });
        };
        match self.driver(&address) {
            Some(driver) if is_vfio(&driver) => {}
            other => {
                let driver = other.unwrap_or_else(|| "no driver".to_owned());
                return Err(VfioError::NotBound { address, driver });
            }
        }
        let others = self.in_the_way(group, &address);
        if others.is_empty() {
            Ok(group)
        } else {
            Err(VfioError::NotViable {
                address,
                group,
                others: others.join(", "),
            })
        }
    }

    /// Makes the error for a group that the kernel reports as not viable. The text gives the cause found in sysfs.
    pub(super) fn not_viable(&self, address: &str) -> VfioError {
        let group = self.group(address);
        let mut others = group.map_or_else(Vec::new, |group| self.in_the_way(group, address));
        if others.is_empty() {
            others.push("the kernel says so although sysfs shows no cause (see dmesg)".to_owned());
        }
        VfioError::NotViable {
            address: address.to_owned(),
            group: group.unwrap_or_default(),
            others: others.join(", "),
        }
    }

    /// Returns the number of a function's IOMMU group; `None` without an IOMMU.
    pub(super) fn group(&self, address: &str) -> Option<u32> {
        link_name(&self.device(address).join("iommu_group"))?
            .parse()
            .ok()
    }

    /// Lists the other functions of a group whose drivers prevent its use, each with its driver.
    fn in_the_way(&self, group: u32, address: &str) -> Vec<String> {
        let devices = self
            .sysfs
            .join(format!("kernel/iommu_groups/{group}/devices"));
        let mut others: Vec<String> = std::fs::read_dir(devices)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|other| other != address)
            .filter_map(|other| {
                let driver = self.driver(&other)?;
                (!is_harmless(&driver)).then(|| format!("{other} is bound to {driver}"))
            })
            .collect();
        others.sort();
        others
    }

    fn driver(&self, address: &str) -> Option<String> {
        link_name(&self.device(address).join("driver"))
    }
}

/// Returns whether a driver is `vfio-pci`, or a variant of it for one vendor's devices (`mlx5_vfio_pci`).
pub(crate) fn is_vfio(driver: &str) -> bool {
    driver == "vfio-pci" || driver.ends_with("_vfio_pci") || driver.ends_with("-vfio-pci")
}

/// Returns whether functions of a group that VFIO uses may stay bound to a driver: it is a driver of VFIO, or does no
/// DMA (`driver_managed_dma` in Linux).
pub(crate) fn is_harmless(driver: &str) -> bool {
    is_vfio(driver) || matches!(driver, "pci-stub" | "pcieport" | "shpchp")
}

/// Returns the last component of a symbolic link's target; `None` if the path is no link.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}
