//! The suite with Ethernet ports: `mlx5_core`'s network devices, RoCE, librdmacm's programs, and the kernel's NVMe
//! target and initiator.

use anyhow::{Context, Result, ensure};

use super::FUNCTIONS;
use crate::vm::functions::Slots;
use crate::vm::image::Image;
use crate::vm::report::Step;
use crate::vm::suite::{PATIENCE, Ssd, Suite};

/// Number of times that the functions are unbound and bound.
const ROUNDS: usize = 3;
/// Number of pings of rping. `REQUESTS` is the summary that ping(8) prints.
const PINGS: usize = 10;
const REQUESTS: &str = "3 packets transmitted, 3 packets received, 0% packet loss";
/// GIDs of the IPv4 addresses that the script assigns to the ports, as they appear in the RoCE address table.
const IPV4_GIDS: [&str; 2] = ["ffff:0a00:0001 RoCE v2", "ffff:0a00:0002 RoCE v2"];

/// Returns the suite with Ethernet ports.
pub fn ethernet() -> Suite {
    Suite {
        image: Image {
            name: "stock-roce",
            modules: &[
                "ib_uverbs",
                "ib_umad",
                "rdma_ucm",
                "mlx5_core",
                "mlx5_ib",
                "8021q",
                "sch_mqprio",
                "crc32c_generic?",
                "ext4",
                "loop",
                "nvme_rdma",
                "nvmet_rdma",
            ],
            packages: &[
                "ibverbs-utils",
                "ibverbs-providers",
                "rdmacm-utils",
                "perftest",
                "iproute2",
                "ethtool",
                "nvme-cli",
                "e2fsprogs",
            ],
            script: concat!(
                include_str!("../guest/roce"),
                include_str!("../guest/stock-roce")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "1G",
        patience: PATIENCE,
        serve: &["--profile", "roce", "--report", super::REPORTS[1]],
        beside: None,
        lost: None,
        programs: |_| Ok(Vec::new()),
        shown: &[],
        judge,
    }
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "apart" | "together" => devices(step),
        "gids" => gids(step),
        "ping" | "ping-large" | "vlan" | "jumbo" => {
            step.line_with(REQUESTS)?;
            Ok(step.line_with("round-trip")?.to_owned())
        }
        "arp" => neighbours(step),
        "pauses" => pauses(step),
        "module" => {
            step.line_with("QSFP28")?;
            Ok(step.line_with("Vendor name")?.trim().to_owned())
        }
        "mqprio" | "mqprio-channel" => {
            step.line_with(REQUESTS)?;
            Ok(step.line_with("qdisc mqprio")?.to_owned())
        }
        "shares" => shares(step),
        "rping" => {
            let pings = step.lines_with("ping data: rdma-ping-").len();
            ensure!(pings == PINGS, "{pings} pings");
            Ok(format!("{pings} pings, {}", step.both_succeeded()?))
        }
        "ucmatose" | "udaddy" => {
            step.line_with("data transfers complete")?;
            step.both_succeeded().map(str::to_owned)
        }
        "tcp" => {
            step.line_with("equal")?;
            Ok(step.line_with("16 MiB in")?.to_owned())
        }
        "counters" => {
            step.line_with("Link detected: yes")?;
            Ok(step.line_with("rx_packets_phy")?.trim().to_owned())
        }
        "rebind" => {
            let rounds = step.lines_with("round ").len();
            ensure!(rounds == ROUNDS, "{rounds} rounds");
            Ok(format!("{rounds} times, both functions"))
        }
        name if name.starts_with("nvme-") => storage(step),
        _ => super::judge(step),
    }
}

/// Checks that every network device exists. In the step `apart`, checks that the devices are up.
fn devices(step: &Step) -> Result<String> {
    let wanted = if step.name == "apart" {
        "state UP"
    } else {
        "02:00:5e:10:00:"
    };
    let devices = step.lines_with(wanted);
    ensure!(devices.len() == FUNCTIONS, "{} devices", devices.len());
    let name = |line: &&str| {
        let words = line.split([' ', ':']);
        words
            .into_iter()
            .find(|word| word.starts_with("eth"))
            .map(str::to_owned)
    };
    let names: Vec<String> = devices.iter().filter_map(name).collect();
    Ok(names.join(", "))
}

/// Checks that ports are ACTIVE, and that their GID tables have their IPv4 addresses.
fn gids(step: &Step) -> Result<String> {
    let active = step.lines_with("4: ACTIVE").len();
    ensure!(active == FUNCTIONS, "{active} ports are ACTIVE");
    for gid in IPV4_GIDS {
        step.line_with(gid)?;
    }
    let all = step.lines_with("RoCE v").len();
    Ok(format!("{all} GIDs, IPv4 among them"))
}

/// Checks that each side has resolved the other's MAC address.
fn neighbours(step: &Step) -> Result<String> {
    let found = step.lines_with("lladdr 02:00:5e:10:00:");
    ensure!(found.len() == FUNCTIONS, "{found:?}");
    Ok(found[0].trim().to_owned())
}

/// Checks the output of `ethtool -a` after RX and TX pause frames were switched on, and after they were switched off.
fn pauses(step: &Step) -> Result<String> {
    for (way, state) in [("RX:", "on"), ("TX:", "on"), ("RX:", "off"), ("TX:", "off")] {
        let lines = step.lines_with(way);
        ensure!(
            lines.iter().any(|line| line.ends_with(state)),
            "{way} never {state}: {lines:?}"
        );
    }
    Ok("on, and off again".to_owned())
}

/// Checks the mapping of priorities to traffic classes, first the kernel's default (priorities 0 and 1 are swapped),
/// then the one that was set. Checks the bandwidth limit and the shares that were set.
fn shares(step: &Step) -> Result<String> {
    step.line_with("prio-tc 0:1 1:0 2:2")?;
    step.line_with("prio-tc 0:0 1:1 2:2")?;
    step.line_with("2:1Gbit")?;
    step.line_with(REQUESTS)?;
    Ok(step.line_with("tc-bw 0:60 1:40")?.trim().to_owned())
}

fn storage(step: &Step) -> Result<String> {
    let lines = |all: &[&str]| -> Result<String> {
        let said: Result<Vec<&str>> = all.iter().map(|line| step.line_with(line)).collect();
        Ok(said?.join("; "))
    };
    match step.name.as_str() {
        "nvme-target" => lines(&["10.0.0.2:4420"]).map(|_| "10.0.0.2:4420".to_owned()),
        "nvme-connect" | "nvme-connect-again" => lines(&["controller live"]),
        "nvme-dd" | "nvme-files" => {
            step.line_with("equal")?;
            lines(&["written", "read"])
        }
        "nvme-cut" => {
            step.line_with("equal")?;
            let state = step.said.first().context("no state")?;
            ensure!(
                state.starts_with("controller connecting"),
                "the controller did not notice: {state}"
            );
            lines(&["live ", "written"])
        }
        _ => Ok("gone".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_that_the_initiator_slept_through_proves_nothing() {
        let mut said = [
            "controller connecting at traddr=10.0.0.2,trsvcid=4420",
            "live 3900 ms after the port is up",
            "written 64 MiB in 8000 ms",
            "equal",
        ];
        assert_eq!(
            judge(&Step::succeeded("nvme-cut", &said)).unwrap(),
            "live 3900 ms after the port is up; written 64 MiB in 8000 ms"
        );
        said[0] = "controller live at traddr=10.0.0.2,trsvcid=4420";
        assert!(judge(&Step::succeeded("nvme-cut", &said)).is_err());
    }

    #[test]
    fn a_port_without_a_gid_for_its_ipv4_address_fails() {
        let said = [
            "mlx5_0 3 0000:0000:0000:0000:0000:ffff:0a00:0001 RoCE v2 eth0",
            "mlx5_0 4: ACTIVE",
            "mlx5_1 3 0000:0000:0000:0000:0000:ffff:0a00:0002 RoCE v2 eth1",
            "mlx5_1 4: ACTIVE",
        ];
        assert!(judge(&Step::succeeded("gids", &said)).is_ok());
        assert!(judge(&Step::succeeded("gids", &said[..2])).is_err());
    }

    #[test]
    fn pauses_that_stay_as_they_were_fail() {
        let said = ["RX:\ton", "TX:\ton", "RX:\toff", "TX:\toff"];
        assert!(judge(&Step::succeeded("pauses", &said)).is_ok());
        assert!(judge(&Step::succeeded("pauses", &said[2..])).is_err());
    }

    #[test]
    fn classes_that_are_not_read_back_as_they_were_set_fail() {
        let said = [
            "prio-tc 0:1 1:0 2:2 3:3 4:4 5:5 6:6 7:7 ",
            "tc-bw 0:60 1:40 2:0 3:0 4:0 5:0 6:0 7:0 ",
            "prio-tc 0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7 ",
            "tc-maxrate 0:0 1:0 2:1Gbit 3:0",
            REQUESTS,
        ];
        assert!(judge(&Step::succeeded("shares", &said)).is_ok());
        assert!(judge(&Step::succeeded("shares", &said[1..])).is_err());
    }

    #[test]
    fn a_lost_ping_fails() {
        let said = [
            "3 packets transmitted, 2 packets received, 33% packet loss",
            "round-trip min/avg/max = 2.818/12.980/31.932 ms",
        ];
        assert!(judge(&Step::succeeded("ping", &said)).is_err());
    }
}
