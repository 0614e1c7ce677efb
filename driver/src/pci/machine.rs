//! [`Machine`]: where its trees are, and the PCI functions they show.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::vfio::{PciAddress, Roots, VfioError, is_harmless, is_vfio, link_name};

/// The trees a machine shows of itself.
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
    /// The only driver it may be bound to, if somebody said so.
    pub driver_override: Option<String>,
    /// Number of its IOMMU group; `None` without an IOMMU.
    pub iommu_group: Option<u32>,
    /// Physical or virtual.
    pub role: Role,
    /// The way to the slot; virtual functions have none of their own.
    pub link: Option<Link>,
    /// The NUMA node it is nearest to; `None` if there is but one, or the firmware does not say.
    pub numa_node: Option<u32>,
    /// Ways to reset it, the preferred one first (`reset_method`).
    pub reset_methods: Vec<String>,
    /// Network interfaces its driver has made of it, in this network namespace.
    pub netdevs: Vec<String>,
}

/// Physical or virtual (SR-IOV).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A physical function.
    Physical {
        /// Virtual functions it has made.
        virtual_functions: u16,
        /// Virtual functions it could make.
        most: u16,
    },
    /// A virtual function.
    Virtual {
        /// Its physical function, where that can be seen.
        of: Option<PciAddress>,
    },
}

/// A PCI Express link as trained, and as it could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// As the kernel writes it, such as `8.0 GT/s PCIe`.
    pub speed: String,
    /// Lanes.
    pub width: u32,
    /// The best the function could do.
    pub max_speed: String,
    /// Lanes the function has.
    pub max_width: u32,
}

impl Link {
    /// Fewer lanes or a lower speed than the function could do.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.speed != self.max_speed || self.width != self.max_width
    }
}

/// A function of an IOMMU group, and what it means for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its address.
    pub address: PciAddress,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// The kernel does not hand the group out because of it.
    pub in_the_way: bool,
    /// A bridge, whose driver may stay.
    pub is_bridge: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self::at("/")
    }
}

impl Machine {
    /// A machine whose `sys`, `proc` and `dev` are below a directory.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let roots = Roots {
            sysfs: root.join("sys"),
            dev: root.join("dev/vfio"),
        };
        Self { root, roots }
    }

    /// A file by its usual absolute path.
    #[must_use]
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file, trimmed.
    pub(super) fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        text(&self.path(absolute))
    }

    /// All PCI functions, in order of address; none if there is no PCI.
    #[must_use]
    pub fn functions(&self) -> Vec<PciFunction> {
        let mut functions: Vec<PciFunction> = names(&self.path("/sys/bus/pci/devices"))
            .into_iter()
            .filter_map(|name| self.function(name.parse().ok()?))
            .collect();
        functions.sort_by_key(|function| function.address);
        functions
    }

    /// One function; `None` if there is none at this address.
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
        })
    }

    /// Where sysfs has a function.
    #[must_use]
    pub fn device(&self, address: PciAddress) -> PathBuf {
        self.path("/sys/bus/pci/devices").join(address.to_string())
    }

    /// The IOMMU group of a function that could be opened now.
    ///
    /// # Errors
    /// [`VfioError`]: why not, and what to do about it.
    pub fn usable(&self, address: PciAddress) -> Result<u32, VfioError> {
        self.roots.viable_group(address)
    }

    /// The functions of an IOMMU group.
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

    /// The virtual functions a physical one has made.
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

impl PciFunction {
    /// Bound to vfio-pci, or to a variant of it.
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

/// Since Linux 5.15 the methods are named; before that there is only a file to ask for a reset.
fn reset_methods(path: &Path) -> Vec<String> {
    match text(&path.join("reset_method")) {
        Some(methods) => methods.split_whitespace().map(str::to_owned).collect(),
        None if path.join("reset").exists() => vec!["unnamed".to_owned()],
        None => Vec::new(),
    }
}

/// The text of a file, trimmed.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// A decimal number in a file; nothing for what does not fit, such as -1.
pub(super) fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// A number in hex, with 0x in front or not.
pub(super) fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// The names in a directory, in order.
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
