//! [`Machine`]: the root of a machine's sysfs, procfs and devices, and the PCI functions in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::vfio::{PciAddress, Roots, VfioError, is_harmless, is_vfio, link_name};

/// The file systems in which the kernel describes a machine: sysfs, procfs and `/dev`.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    pub(super) roots: Roots,
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address.
    pub address: PciAddress,
    /// PCI vendor id.
    pub vendor_id: u16,
    /// PCI device id.
    pub device_id: u16,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// The only driver it may be bound to, if one was set.
    pub driver_override: Option<String>,
    /// Number of its IOMMU group; `None` without an IOMMU.
    pub iommu_group: Option<u32>,
    /// Physical or virtual.
    pub role: Role,
    /// Link to the slot; virtual functions have none of their own.
    pub link: Option<Link>,
    /// Nearest NUMA node; `None` if there is only one, or the firmware reports none.
    pub numa_node: Option<u32>,
    /// Methods to reset it, the preferred one first (`reset_method`).
    pub reset_methods: Vec<String>,
    /// Network interfaces that its driver has made, in this network namespace.
    pub netdevs: Vec<String>,
    /// Block devices of an NVMe controller's namespaces that its driver has made.
    pub disks: Vec<String>,
}

/// Kinds of functions that this project drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A network controller.
    Network,
    /// An NVMe controller for I/O.
    Nvme,
}

/// Physical or virtual (SR-IOV).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A physical function.
    Physical {
        /// Number of virtual functions it has now.
        virtual_functions: u16,
        /// Number of virtual functions it could have.
        most: u16,
    },
    /// A virtual function.
    Virtual {
        /// Its physical function, if visible.
        of: Option<PciAddress>,
    },
}

/// A PCI Express link as trained, and its capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Current speed in the kernel's words, such as `8.0 GT/s PCIe`.
    pub speed: String,
    /// Number of lanes in use.
    pub width: u32,
    /// Highest speed of the function.
    pub max_speed: String,
    /// Number of lanes of the function.
    pub max_width: u32,
}

impl Link {
    /// Returns whether the link has fewer lanes or a lower speed than the function supports.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.speed != self.max_speed || self.width != self.max_width
    }
}

/// A function of an IOMMU group, and whether it prevents the use of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its address.
    pub address: PciAddress,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// True if the kernel does not permit use of the group because of this function.
    pub in_the_way: bool,
    /// True for a bridge, which may keep its driver.
    pub is_bridge: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self::at("/")
    }
}

impl Machine {
    /// Makes a machine whose `sys`, `proc` and `dev` are below a directory.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let roots = Roots {
            sysfs: root.join("sys"),
            dev: root.join("dev/vfio"),
        };
        Self { root, roots }
    }

    /// Returns the path below this machine's root for a usual absolute path.
    #[must_use]
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the text of a file, trimmed; `None` if it cannot be read.
    pub(super) fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        text(&self.path(absolute))
    }

    /// Returns all PCI functions, sorted by address; none if there is no PCI.
    #[must_use]
    pub fn functions(&self) -> Vec<PciFunction> {
        let mut functions: Vec<PciFunction> = names(&self.path("/sys/bus/pci/devices"))
            .into_iter()
            .filter_map(|name| self.function(name.parse().ok()?))
            .collect();
        functions.sort_by_key(|function| function.address);
        functions
    }

    /// Returns one function; `None` if there is none at this address.
    #[must_use]
    pub fn function(&self, address: PciAddress) -> Option<PciFunction> {
        let path = self.device(address);
        let id = |name: &str| hex(&text(&path.join(name))?);
        Some(PciFunction {
            address,
            vendor_id: u16::try_from(id("vendor")?).ok()?,
            device_id: u16::try_from(id("device")?).ok()?,
            class: id("class").unwrap_or_default(),
            driver: link_name(&path.join("driver")),
            driver_override: text(&path.join("driver_override"))
                .filter(|name| !name.is_empty() && name != "(null)"),
            iommu_group: link_name(&path.join("iommu_group")).and_then(|name| name.parse().ok()),
            role: role(&path),
            link: link(&path),
            numa_node: number(&path.join("numa_node")),
            reset_methods: reset_methods(&path),
            netdevs: names(&path.join("net")),
            disks: self.disks(&path),
        })
    }

    /// Returns the path of a function in sysfs.
    #[must_use]
    pub fn device(&self, address: PciAddress) -> PathBuf {
        self.path("/sys/bus/pci/devices").join(address.to_string())
    }

    /// Returns the IOMMU group of a function, if the function could be opened now.
    ///
    /// # Errors
    /// [`VfioError`]: the reason why it cannot be opened, and advice.
    pub fn usable(&self, address: PciAddress) -> Result<u32, VfioError> {
        self.roots.viable_group(address)
    }

    /// Returns the functions of an IOMMU group.
    #[must_use]
    pub fn group(&self, group: u32) -> Vec<Member> {
        let devices = format!("/sys/kernel/iommu_groups/{group}/devices");
        let mut members: Vec<Member> = names(&self.path(devices))
            .into_iter()
            .filter_map(|name| {
                let address: PciAddress = name.parse().ok()?;
                let function = self.function(address);
                let driver = link_name(&self.device(address).join("driver"));
                Some(Member {
                    address,
                    in_the_way: driver.as_deref().is_some_and(|name| !is_harmless(name)),
                    driver,
                    is_bridge: function.is_some_and(|function| function.class >> 16 == BRIDGE),
                })
            })
            .collect();
        members.sort_by_key(|member| member.address);
        members
    }

    /// Returns the virtual functions of a physical one.
    #[must_use]
    pub fn virtual_functions(&self, address: PciAddress) -> Vec<PciAddress> {
        let path = self.device(address);
        names(&path)
            .into_iter()
            .filter(|name| name.starts_with("virtfn"))
            .filter_map(|name| link_name(&path.join(name))?.parse().ok())
            .collect()
    }
}

/// Class code of bridges.
pub(super) const BRIDGE: u32 = 0x06;

impl Kind {
    /// Class code, subclass and programming interface of NVMe controllers for I/O (PCI Code and ID Assignment
    /// Specification).
    pub const NVME_CLASS: u32 = 0x01_08_02;

    /// Returns the kind of functions of a class: its code, subclass and programming interface. `None` if this project
    /// drives none of that class.
    #[must_use]
    pub const fn of_class(class: u32) -> Option<Self> {
        /// Class code of network controllers.
        const NETWORK: u32 = 0x02;
        match class {
            Self::NVME_CLASS => Some(Self::Nvme),
            class if class >> 16 == NETWORK => Some(Self::Network),
            _ => None,
        }
    }
}

impl PciFunction {
    /// Returns the kind of the function; `None` if this project drives none of its class.
    #[must_use]
    pub const fn kind(&self) -> Option<Kind> {
        Kind::of_class(self.class)
    }

    /// Returns whether the function is bound to vfio-pci, or to a variant of vfio-pci.
    #[must_use]
    pub fn is_bound_to_vfio(&self) -> bool {
        self.driver.as_deref().is_some_and(is_vfio)
    }
}

fn role(path: &Path) -> Role {
    if path.join("physfn").is_symlink() {
        let of = link_name(&path.join("physfn")).and_then(|name| name.parse().ok());
        return Role::Virtual { of };
    }
    Role::Physical {
        virtual_functions: number(&path.join("sriov_numvfs")).unwrap_or_default(),
        most: number(&path.join("sriov_totalvfs")).unwrap_or_default(),
    }
}

fn link(path: &Path) -> Option<Link> {
    let read = |name: &str| text(&path.join(name));
    let width = number(&path.join("current_link_width")).filter(|&width| width > 0)?;
    Some(Link {
        speed: read("current_link_speed")?,
        width,
        max_speed: read("max_link_speed")?,
        max_width: number(&path.join("max_link_width"))?,
    })
}

/// Returns the reset methods. Linux lists them since 5.15; before, there is only a file that triggers a reset, and the
/// method is "unnamed".
fn reset_methods(path: &Path) -> Vec<String> {
    match text(&path.join("reset_method")) {
        Some(methods) => methods.split_whitespace().map(str::to_owned).collect(),
        None if path.join("reset").exists() => vec!["unnamed".to_owned()],
        None => Vec::new(),
    }
}

/// Returns the text of a file, trimmed; `None` if it cannot be read.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Reads a decimal number from a file. `None` if the file cannot be read, or its number does not fit the type (as -1).
pub(super) fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// Parses a number in hex, with or without 0x.
pub(super) fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Returns the names in a directory, sorted.
pub(super) fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
