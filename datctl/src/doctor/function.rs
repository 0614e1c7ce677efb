//! The lines about one function.

use driver::pci::{DiskUse, Isolation, Kind, Machine, Member, PciFunction, Role};

use super::fix::Fix;
use super::{Line, card, physical};
use crate::devices::link_text;

pub(super) fn lines(machine: &Machine, function: &PciFunction) -> Vec<Line> {
    let mut lines = vec![bound(function)];
    if let Some(group) = function.iommu_group {
        let others: Vec<Member> = machine
            .group(group)
            .into_iter()
            .filter(|member| member.address != function.address)
            .collect();
        lines.push(viable(machine, group, &others));
        lines.push(acs(machine, function, group, &others));
        lines.push(access(machine, group));
        lines.push(free(machine, group));
    } else {
        lines.push(Line::not_ok(
            "group",
            "in no IOMMU group",
            "the line iommu above says how to get one",
        ));
    }
    lines.push(reset(machine, function));
    lines.extend(link(machine, function));
    if function.kind() == Some(Kind::Nvme) {
        lines.extend(disks(machine, function));
        lines.extend(card::near(machine, function));
    } else {
        lines.extend(physical::lines(machine, function));
        lines.extend(card::lines(machine, function));
    }
    lines
        .into_iter()
        .map(|line| line.of(function.address))
        .collect()
}

fn bound(function: &PciFunction) -> Line {
    const CHECK: &str = "driver";
    let driver = function.driver.as_deref().unwrap_or("no driver");
    if function.is_bound_to_vfio() {
        return Line::ok(CHECK, driver);
    }
    Line::not_ok(
        CHECK,
        format!("bound to {driver}, not to vfio-pci"),
        format!("datctl bind {}", function.address),
    )
    .fixed_by(Fix::Bind(function.address))
}

fn viable(machine: &Machine, group: u32, others: &[Member]) -> Line {
    const CHECK: &str = "group";
    let in_the_way: Vec<&Member> = others.iter().filter(|member| member.in_the_way).collect();
    if in_the_way.is_empty() {
        return Line::ok(CHECK, format!("{group}, viable"));
    }
    let who: Vec<String> = in_the_way
        .iter()
        .map(|member| {
            let driver = member.driver.as_deref().unwrap_or("no driver");
            format!("{} is bound to {driver}", member.address)
        })
        .collect();
    let mend: Vec<String> = in_the_way
        .iter()
        .map(|member| {
            let address = member.address;
            let kind = machine
                .function(address)
                .and_then(|function| function.kind());
            if kind.is_some() {
                format!("datctl bind {address}")
            } else {
                format!(
                    "echo {address} > {}/driver/unbind",
                    machine.device(address).display()
                )
            }
        })
        .collect();
    Line::not_ok(
        CHECK,
        format!("{group} is not viable: {}", who.join(", ")),
        mend.join("; "),
    )
}

fn acs(machine: &Machine, function: &PciFunction, group: u32, others: &[Member]) -> Line {
    const CHECK: &str = "acs";
    let strangers: Vec<String> = others
        .iter()
        .filter(|member| !member.is_bridge)
        .map(|member| member.address.to_string())
        .collect();
    if strangers.is_empty() {
        return Line::ok(CHECK, format!("group {group} holds this function alone"));
    }
    let ports: Vec<String> = machine
        .ports_above(function.address)
        .into_iter()
        .filter_map(|port| {
            let what = match port.isolation {
                Isolation::On => return None,
                Isolation::Off => "has ACS, switched off",
                Isolation::Absent => "has no ACS",
                Isolation::Unreadable => "shows its ACS to root only",
            };
            Some(format!("port {} {what}", port.address))
        })
        .collect();
    let because = if ports.is_empty() {
        "the ports above isolate, so the functions of the card themselves do not".to_owned()
    } else {
        ports.join(", ")
    };
    // A shared group can be used only as a whole. The line before reports whether it can be used now.
    Line::not_ok(
        CHECK,
        format!("shares group {group} with {}: {because}", strangers.join(", ")),
        "switch ACS on in the firmware's setup, or put the card below another root port; as it is, the group can only be used as a whole, by one program",
    )
    .optional()
}

fn access(machine: &Machine, group: u32) -> Line {
    const CHECK: &str = "access";
    let file = format!("/dev/vfio/{group}");
    if machine.may_open_group(group) {
        return Line::ok(CHECK, file);
    }
    if machine.path(&file).exists() {
        return Line::not_ok(
            CHECK,
            format!("{file} is not ours to read and write"),
            format!("chown $USER {file} (as root)"),
        );
    }
    Line::not_ok(
        CHECK,
        format!("there is no {file}"),
        "it comes when a function of the group is bound to vfio-pci",
    )
}

fn free(machine: &Machine, group: u32) -> Line {
    const CHECK: &str = "in use";
    match machine.holders(group).first() {
        None => Line::ok(CHECK, "by nobody"),
        Some(holder) => Line::not_ok(
            CHECK,
            format!(
                "process {} ({}) has group {group} open",
                holder.pid, holder.name
            ),
            format!("kill {}", holder.pid),
        ),
    }
}

/// Checks that the disks of an SSD that the kernel's driver has may be taken. Returns no line if there are no disks.
fn disks(machine: &Machine, function: &PciFunction) -> Option<Line> {
    const CHECK: &str = "disks";
    if function.disks.is_empty() {
        return None;
    }
    let disks = function.disks.join(", ");
    let uses = machine.disk_uses(function);
    let texts: Vec<String> = uses.iter().map(ToString::to_string).collect();
    let is_unknown = |it: &DiskUse| matches!(it, DiskUse::Unknown { .. });
    Some(if uses.is_empty() {
        Line::ok(CHECK, format!("{disks}, not in use"))
    } else if uses.iter().all(is_unknown) {
        Line::unknown(CHECK, texts.join(", "), "datctl doctor (as root)")
    } else {
        Line::not_ok(
            CHECK,
            texts.join(", "),
            "end that use first, or take another SSD: its disks are lost to this machine with its driver",
        )
    })
}

fn reset(machine: &Machine, function: &PciFunction) -> Line {
    const CHECK: &str = "reset";
    if !function.reset_methods.is_empty() {
        return Line::ok(CHECK, function.reset_methods.join(", "));
    }
    let file = machine.device(function.address).join("reset_method");
    if file.exists() {
        return Line::not_ok(
            CHECK,
            "all ways to reset the function are switched off",
            format!("echo default > {}", file.display()),
        )
        .fixed_by(Fix::Write {
            path: format!("/sys/bus/pci/devices/{}/reset_method", function.address),
            text: "default".to_owned(),
        });
    }
    Line::not_ok(
        CHECK,
        "the kernel knows no way to reset the function alone",
        "use a virtual function, which always has one: echo 1 > sriov_numvfs of the physical function",
    )
}

/// Checks the PCIe link of a function. A virtual function has the link of its physical function. Returns `None` if
/// the link is unknown.
fn link(machine: &Machine, function: &PciFunction) -> Option<Line> {
    const CHECK: &str = "pcie link";
    let link = match function.role {
        Role::Virtual { of } => machine.function(of?)?.link,
        Role::Physical { .. } => function.link.clone(),
    }?;
    let found = link_text(&link);
    Some(if link.is_degraded() {
        Line::not_ok(
            CHECK,
            found,
            "another slot, or the card seated anew; lspci -vv shows what the port above can do",
        )
        .optional()
    } else {
        Line::ok(CHECK, found)
    })
}
