//! The lines about the card as a whole and its place in the machine: bonding of its ports, settings of its firmware,
//! the driver that takes its virtual functions, the processors near it.
//!
//! `mlxconfig` of NVIDIA's tools, or `mstconfig` of mstflint, prints the firmware's settings, if run as root. These
//! settings matter here:
//!
//! | Setting | Meaning |
//! |---|---|
//! | `ROCE_CONTROL` | if it is off, no function of the card has RoCE |
//! | `INTERNAL_CPU_OFFLOAD_ENGINE` | BlueField: on, its Arm switches and filters frames (DPU mode); off: NIC mode |
//! | `REAL_TIME_CLOCK_ENABLE` | on: only queues with real-time timestamps are created (otherwise syndrome 0xd61c0b) |
//! | `PCI_WR_ORDERING` | whether each key specifies how its writes may be reordered |

use driver::pci::{Machine, PciFunction, Role};
use hw_mlx::ids;

use super::Line;

/// Settings that are shown, if the card has them.
const SHOWN: [&str; 4] = [
    "ROCE_CONTROL",
    "INTERNAL_CPU_OFFLOAD_ENGINE",
    "REAL_TIME_CLOCK_ENABLE",
    "PCI_WR_ORDERING",
];

/// Returns the lines about the card of a function. Leaves out the lines about the physical function if that is not on
/// this machine.
pub(super) fn lines(machine: &Machine, function: &PciFunction) -> Vec<Line> {
    let physical = match function.role {
        Role::Virtual { of } => of.and_then(|of| machine.function(of)),
        // In a guest, a virtual function has no physical function beside it.
        Role::Physical { .. } if ids::is_virtual(function.device_id) => None,
        Role::Physical { .. } => Some(function.clone()),
    };
    let mut lines = Vec::new();
    if let Some(physical) = &physical {
        lines.extend(joined(machine, physical));
        lines.push(setup(machine, physical));
        if physical.address != function.address {
            lines.extend(probing(machine, physical));
        }
    }
    lines.extend(near(machine, function));
    lines
}

/// Checks that the port is not bonded with others. Returns no line if the port has no interface here, which
/// `pf interface` reports.
fn joined(machine: &Machine, physical: &PciFunction) -> Option<Line> {
    const CHECK: &str = "pf lag";
    let interface = machine
        .netdevs(physical)
        .into_iter()
        .find(|netdev| netdev.represents().is_none())?
        .name;
    let folder = machine
        .device(physical.address)
        .join(format!("net/{interface}"));
    let master = std::fs::read_link(folder.join("master")).ok();
    let master = master.as_ref().and_then(|path| path.file_name()?.to_str());
    // A bridge is a master, too. Only a slave of a bond has the folder `bonding_slave` (Linux `bond_sysfs_slave.c`).
    let bond = master.filter(|_| folder.join("bonding_slave").is_dir());
    Some(match bond {
        None => Line::ok(CHECK, format!("{interface} is in no bond")),
        Some(bond) => Line::not_ok(
            CHECK,
            format!(
                "{interface} is in {bond}: the kernel's driver may join the ports of the card, and frames of the function then leave on either"
            ),
            format!("ip link set dev {interface} nomaster"),
        )
        .optional(),
    })
}

/// Checks the settings of the card's firmware.
fn setup(machine: &Machine, physical: &PciFunction) -> Line {
    const CHECK: &str = "pf setup";
    let address = physical.address.to_string();
    let is_bluefield =
        ids::product(physical.device_id).is_some_and(|product| product.starts_with("BlueField"));
    let printed = ["mlxconfig", "mstconfig"]
        .into_iter()
        .find_map(|program| machine.ask(program, &["-d", &address, "-e", "query"]));
    let Some(printed) = printed else {
        let more = if is_bluefield {
            "; a BlueField whose Arm is the switch (DPU mode) passes frames only where the Arm lets them"
        } else {
            ""
        };
        return Line::unknown(
            CHECK,
            format!("how the firmware is set up is unknown{more}"),
            format!(
                "mlxconfig -d {address} -e query (of mft), or mstconfig (of mstflint), as root"
            ),
        );
    };
    let told: Vec<(&str, &str)> = SHOWN
        .into_iter()
        .filter_map(|name| Some((name, current(&printed, name)?)))
        .collect();
    let is = |name: &str, value: &str| told.contains(&(name, value));
    let found = || {
        let pairs: Vec<String> = told
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        pairs.join(", ")
    };
    if is("ROCE_CONTROL", "ROCE_DISABLE(1)") {
        return Line::not_ok(
            CHECK,
            format!("RoCE is switched off for the whole card ({})", found()),
            format!("mlxconfig -d {address} set ROCE_CONTROL=2, then a reset of the firmware"),
        );
    }
    if is("INTERNAL_CPU_OFFLOAD_ENGINE", "ENABLED(0)") {
        return Line::not_ok(
            CHECK,
            format!(
                "DPU mode: the Arm is the switch, and frames of this function pass only where it lets them ({})",
                found()
            ),
            format!(
                "on the Arm: ovs-vsctl show, with the function's representor (pfNvfM) in a bridge; or NIC mode: mlxconfig -d {address} set INTERNAL_CPU_OFFLOAD_ENGINE=1, then power off and on"
            ),
        )
        .optional();
    }
    if told.is_empty() {
        return Line::unknown(
            CHECK,
            "mlxconfig names none of the settings that are looked at",
            format!("mlxconfig -d {address} -e query"),
        );
    }
    Line::ok(CHECK, found())
}

/// Returns the current value of a setting from the printed settings. A line has the name and the values: default,
/// current, next boot. The line also contains `*` if the values differ, and `RO` if the setting is read-only. Older
/// tools print only the last value.
fn current<'a>(printed: &'a str, name: &str) -> Option<&'a str> {
    printed.lines().find_map(|line| {
        let mut words = line
            .split_whitespace()
            .filter(|word| !matches!(*word, "*" | "RO"));
        (words.next() == Some(name)).then_some(())?;
        let values: Vec<&str> = words.collect();
        match values[..] {
            [_, current, _] => Some(current),
            [only] => Some(only),
            _ => None,
        }
    })
}

/// Reports which driver binds new virtual functions (`sriov_drivers_autoprobe`, Linux
/// `Documentation/ABI/testing/sysfs-bus-pci`). Either answer is ok. Returns `None` if the kernel does not show it.
fn probing(machine: &Machine, physical: &PciFunction) -> Option<Line> {
    const CHECK: &str = "vf probing";
    let file = machine
        .device(physical.address)
        .join("sriov_drivers_autoprobe");
    let text = std::fs::read_to_string(file).ok()?;
    Some(Line::ok(
        CHECK,
        if text.trim() == "0" {
            "new virtual functions have no driver until one is bound"
        } else {
            "new virtual functions are mlx5_core's first, with an interface that the system may configure, until they are bound"
        },
    ))
}

/// Checks that this process may run on processors of the function's NUMA node. Returns `None` if the node or a list of
/// processors is unknown.
pub(super) fn near(machine: &Machine, function: &PciFunction) -> Option<Line> {
    const CHECK: &str = "numa";
    let node = function.numa_node?;
    let list = |path: String| std::fs::read_to_string(machine.path(path)).ok();
    let of_node = list(format!("/sys/devices/system/node/node{node}/cpulist"))?;
    let status = list("/proc/self/status".to_owned())?;
    let ours = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let (of_node, ours) = (of_node.trim(), ours.trim());
    let all = ranges(of_node);
    let some = ranges(ours)
        .iter()
        .any(|(first, last)| all.iter().any(|(from, to)| first <= to && from <= last));
    let command = format!("numactl --cpunodebind={node} --membind={node} PROGRAM");
    Some(if some {
        Line::ok(
            CHECK,
            format!("near node {node}, processors {of_node}; {command} keeps a program there"),
        )
    } else {
        Line::not_ok(
            CHECK,
            format!(
                "near node {node}, processors {of_node}, of which this process may use none ({ours}): each access of the card crosses nodes"
            ),
            command,
        )
        .optional()
    })
}

/// Parses a list like `0-3,8` as pairs of first and last number. Unreadable parts are left out.
fn ranges(list: &str) -> Vec<(u32, u32)> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of mstconfig on a BlueField-2 (github.com/Mellanox/mstflint issue 830) and on a ConnectX-5
    /// (github.com/kubeovn/kube-ovn issue 2685).
    #[test]
    fn a_setting_in_force_is_the_one_between_default_and_next_boot() {
        let printed = "\
Configurations:                                      Default         Current         Next Boot
         INTERNAL_CPU_MODEL                          EMBEDDED_CPU(1) EMBEDDED_CPU(1) EMBEDDED_CPU(1)
         INTERNAL_CPU_PAGE_SUPPLIER                  ECPF(0)         ECPF(0)         ECPF(0)
*        ROCE_CONTROL                                ROCE_ENABLE(2)  DEVICE_DEFAULT(0) ROCE_ENABLE(2)
";
        assert_eq!(
            current(printed, "INTERNAL_CPU_MODEL"),
            Some("EMBEDDED_CPU(1)")
        );
        assert_eq!(current(printed, "ROCE_CONTROL"), Some("DEVICE_DEFAULT(0)"));
        assert_eq!(current(printed, "ROCE"), None);
        assert_eq!(
            current("  SRIOV_EN   True(1)\n", "SRIOV_EN"),
            Some("True(1)")
        );
    }

    #[test]
    fn lists_of_processors_are_pairs() {
        assert_eq!(ranges("0-3,8,10-11"), [(0, 3), (8, 8), (10, 11)]);
        assert_eq!(ranges(""), []);
    }
}
