//! `datctl devices`: the functions of this machine, their drivers, and whether each of them could be opened now.

use driver::pci::{Kind, Link, Machine, PciFunction, Role};
use hw_mlx::ids;
use serde::Serialize;

use crate::report::{Report, table};

/// All cards with a known device ID and all SSDs.
#[derive(Serialize)]
pub(crate) struct Devices {
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    address: String,
    product: String,
    vendor_id: String,
    device_id: String,
    driver: Option<String>,
    driver_override: Option<String>,
    iommu_group: Option<u32>,
    role: &'static str,
    /// Physical function of a virtual function.
    physical_function: Option<String>,
    /// Number of virtual functions that a physical function has, and the largest number that it could have.
    virtual_functions: Option<[u16; 2]>,
    link: Option<PcieLink>,
    numa_node: Option<u32>,
    netdevs: Vec<String>,
    disks: Vec<String>,
    reset_methods: Vec<String>,
    usable: bool,
    why_not: Option<String>,
}

#[derive(Serialize)]
struct PcieLink {
    speed: String,
    width: u32,
    max_speed: String,
    max_width: u32,
}

/// Returns the cards with a known device ID and the SSDs, each with its product name.
pub(crate) fn known(machine: &Machine) -> Vec<(PciFunction, String)> {
    machine
        .functions()
        .into_iter()
        .filter_map(|function| {
            let product = match function.kind()? {
                Kind::Network if function.vendor_id == ids::VENDOR => {
                    ids::product(function.device_id)?.to_owned()
                }
                Kind::Network => return None,
                Kind::Nvme => "NVMe SSD".to_owned(),
            };
            Some((function, product))
        })
        .collect()
}

pub(crate) fn run(machine: &Machine) -> Devices {
    let devices = known(machine)
        .into_iter()
        .map(|(function, product)| Device::new(machine, function, product))
        .collect();
    Devices { devices }
}

impl Device {
    fn new(machine: &Machine, function: PciFunction, product: String) -> Self {
        let why_not = match machine.usable(function.address) {
            Ok(group) => machine.holders(group).first().map(|holder| {
                format!(
                    "{}: process {} ({}) has its IOMMU group {group} open",
                    function.address, holder.pid, holder.name
                )
            }),
            Err(error) => Some(error.to_string()),
        };
        let (role, physical_function, virtual_functions) = match function.role {
            Role::Physical {
                virtual_functions,
                most,
            } => ("physical", None, Some([virtual_functions, most])),
            Role::Virtual { of } => ("virtual", of.map(|of| of.to_string()), None),
        };
        Self {
            address: function.address.to_string(),
            product,
            vendor_id: format!("{:#06x}", function.vendor_id),
            device_id: format!("{:#06x}", function.device_id),
            driver: function.driver,
            driver_override: function.driver_override,
            iommu_group: function.iommu_group,
            role,
            physical_function,
            virtual_functions,
            link: function.link.map(PcieLink::from),
            numa_node: function.numa_node,
            netdevs: function.netdevs,
            disks: function.disks,
            reset_methods: function.reset_methods,
            usable: why_not.is_none(),
            why_not,
        }
    }

    fn role(&self) -> String {
        match (&self.physical_function, self.virtual_functions) {
            (Some(of), _) => format!("VF of {of}"),
            (None, Some([now, most])) => format!("PF, {now} of {most} VFs"),
            (None, None) => "VF".to_owned(),
        }
    }
}

impl From<Link> for PcieLink {
    fn from(link: Link) -> Self {
        let Link {
            speed,
            width,
            max_speed,
            max_width,
        } = link;
        Self {
            speed,
            width,
            max_speed,
            max_width,
        }
    }
}

/// Returns text like `8.0 GT/s x8 of 16.0 GT/s x16`, or only the first half if the link is at its maximum.
pub(crate) fn link_text(link: &Link) -> String {
    let short = |speed: &str| speed.trim_end_matches(" PCIe").to_owned();
    let now = format!("{} x{}", short(&link.speed), link.width);
    if link.is_degraded() {
        format!("{now} of {} x{}", short(&link.max_speed), link.max_width)
    } else {
        now
    }
}

impl Report for Devices {
    fn human(&self) -> String {
        if self.devices.is_empty() {
            return "no ConnectX function and no NVMe SSD on this machine (lspci -d 15b3: shows what else there is); sim:NAME and vfio-user:SOCKET need none".to_owned();
        }
        let dash = || "-".to_owned();
        let rows = self.devices.iter().map(|device| {
            let link = device.link.as_ref().map(|link| {
                link_text(&Link {
                    speed: link.speed.clone(),
                    width: link.width,
                    max_speed: link.max_speed.clone(),
                    max_width: link.max_width,
                })
            });
            [
                device.address.clone(),
                device.product.clone(),
                device.role(),
                device.driver.clone().unwrap_or_else(dash),
                device
                    .iommu_group
                    .map_or_else(dash, |group| group.to_string()),
                link.unwrap_or_else(dash),
                device.numa_node.map_or_else(dash, |node| node.to_string()),
                match [&*device.netdevs, &*device.disks].concat().join(",") {
                    none if none.is_empty() => dash(),
                    names => names,
                },
                if device.usable { "yes" } else { "no" }.to_owned(),
            ]
        });
        let header = [
            "address", "product", "role", "driver", "group", "link", "node", "name", "usable",
        ];
        let mut text = table(header, rows);
        for why_not in self
            .devices
            .iter()
            .filter_map(|device| device.why_not.as_ref())
        {
            text.push_str("\n\n");
            text.push_str(why_not);
        }
        text
    }
}
