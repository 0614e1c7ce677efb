//! The suites of drivers and programs that we did not write: the kernel's `mlx5_core` and `mlx5_ib`, rdma-core's
//! programs and perftest, all from Debian's packages, on the simulated functions. Two C programs of ours use
//! rdma-core's libraries.
//!
//! The kernel's log is judged, too. The last step of a script is `dmesg`, and an error line in its output fails the
//! suite. The suite also fails if the simulator reports that a driver broke a rule.

pub mod coverage;
mod roce;
mod subnet;

use anyhow::{Context, Result, ensure};

use super::c::{self, Source};
use super::functions::Slots;
use super::image::Image;
use super::machine::Machine;
use super::perftest;
use super::report::Step;
use super::suite::{PATIENCE, Ssd, Suite};
use crate::shell;

pub use roce::ethernet;
pub use subnet::subnet;

/// Path of the page that lists the requests.
const PAGE: &str = "docs/simulator-coverage.md";
/// Reports of the functions' servers in the suites with InfiniBand ports and with Ethernet ports.
const REPORTS: [&str; 2] = ["report-ib.txt", "report-roce.txt"];

/// Writes the page of the requests that both suites have sent.
pub fn write_coverage(machine: &Machine) -> Result<()> {
    let mut report = String::new();
    for name in REPORTS {
        let path = machine.path("run").join(name);
        report += &std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    }
    let who = format!(
        "`mlx5_core` and `mlx5_ib` of Linux {}, its NVMe target and initiator, rdma-core's programs and perftest as Debian has them",
        machine.unpacked.version
    );
    std::fs::write(shell::root().join(PAGE), coverage::page(&report, &who)?)?;
    println!("vm: {PAGE} is written");
    Ok(())
}

/// Returns the suite with InfiniBand ports.
pub fn infiniband() -> Suite {
    Suite {
        image: Image {
            name: "stock",
            modules: &[
                "ib_uverbs",
                "ib_umad",
                "rdma_ucm",
                "mlx5_core",
                "mlx5_ib",
                "vfio",
                "vfio_iommu_type1",
                "vfio-pci",
            ],
            packages: &[
                "ibverbs-utils",
                "ibverbs-providers",
                "perftest",
                "iproute2",
                "infiniband-diags",
            ],
            script: include_str!("guest/stock-ib"),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "1G",
        patience: PATIENCE,
        serve: &["--profile", "ib", "--report", REPORTS[0]],
        beside: None,
        lost: None,
        programs: |machine| c::programs(machine, &SOURCES),
        shown: &[],
        judge,
    }
}

/// Our C programs that use rdma-core's libraries.
const SOURCES: [Source; 2] = [
    Source {
        name: "userspace",
        text: include_str!("guest/userspace.c"),
        libraries: &["mlx5", "ibverbs"],
    },
    Source {
        name: "verbs",
        text: include_str!("guest/verbs.c"),
        libraries: &["ibverbs"],
    },
];
/// Number of functions in the guest.
const FUNCTIONS: usize = 2;
/// Number of times that the functions are unbound and bound, and that one function is opened over VFIO.
const ROUNDS: usize = 10;

pub fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "probe" => probe(step),
        "devlink" => devlink(step),
        "rebind" => {
            ensure!(step.lines_with("round ").len() == ROUNDS, "not every round");
            Ok(format!("{ROUNDS} times, both functions"))
        }
        "verbs" => {
            let resized = step.lines_with("resize ").len();
            let restarted = step.lines_with("error, reset and ").len();
            ensure!((resized, restarted) == (6, 3), "{resized} and {restarted}");
            step.line_with("all freed")?;
            Ok(format!("{resized} resizes, {restarted} resets"))
        }
        "userspace" => {
            let rounds = step.lines_with("completion events");
            ensure!(rounds.len() == ROUNDS, "{} rounds", rounds.len());
            step.line_with("is back")?;
            Ok(rounds[0].to_owned())
        }
        "reset" => {
            step.line_with("flr")?;
            Ok(step.line_with("is back")?.to_owned())
        }
        "health" => {
            ensure!(step.said == ["0"], "the health poll complains");
            Ok("10 s".to_owned())
        }
        "ibv_devinfo" => devinfo(step),
        // The functions are at the two ends of one cable.
        "ibnetdiscover" => subnet::discovered(step, FUNCTIONS, 0),
        "iblinkinfo" => subnet::linked(step, 1),
        "smpquery" => queried(step),
        "perfquery" => {
            step.both_succeeded()?;
            subnet::cleared(step)
        }
        "kernel" => kernel(step),
        "functions" => functions(step),
        // These steps print no figures.
        "xsrq" | "xsrq-events" => {
            step.both_succeeded()?;
            Ok(step.line_with("success")?.to_owned())
        }
        name if name.starts_with("ib_") => perftest::figures(step),
        name if name.starts_with("sweep-") => perftest::sweep(step),
        _ => pingpong(step),
    }
}

fn probe(step: &Step) -> Result<String> {
    let bound = step.lines_with("driver mlx5_core as mlx5_").len();
    ensure!(bound == FUNCTIONS, "mlx5_core drives {bound} functions");
    let versions = step.lines_with("firmware version");
    ensure!(versions.len() == FUNCTIONS, "no firmware version");
    let version = versions[0].split(": ").last().unwrap_or_default();
    Ok(version.to_owned())
}

fn devlink(step: &Step) -> Result<String> {
    let answered = step.lines_with("driver mlx5_core").len();
    ensure!(answered == FUNCTIONS, "{answered} functions answer");
    Ok(step.line_with("fw.psid")?.trim().to_owned())
}

/// Checks that every port is ACTIVE, with a LID and a GID.
fn devinfo(step: &Step) -> Result<String> {
    for what in ["PORT_ACTIVE (4)", "GID[  0]:"] {
        let ports = step.lines_with(what).len();
        ensure!(ports == FUNCTIONS, "{ports} ports have {what}");
    }
    let value = |line: &&str| line.split(':').nth(1).unwrap_or_default().trim().to_owned();
    let lids: Vec<String> = step.lines_with("port_lid:").iter().map(value).collect();
    ensure!(
        lids.len() == FUNCTIONS && !lids.contains(&"0".to_owned()),
        "LIDs {lids:?}"
    );
    Ok(format!("PORT_ACTIVE, LIDs {}", lids.join(", ")))
}

/// Checks that the port at the other end of the link is the same one by a directed route and by LID, and not the one
/// that asks. Its link is active.
fn queried(step: &Step) -> Result<String> {
    step.line_with("NodeType:........................Channel Adapter")?;
    let guids = step.lines_with("PortGuid:");
    let [own, by_route, by_lid] = guids[..] else {
        anyhow::bail!("{} ports were asked", guids.len());
    };
    ensure!(own != by_route, "the route leads back to {own}");
    ensure!(by_route == by_lid, "by LID {by_lid}, by route {by_route}");
    let active = step.lines_with("LinkState:.......................Active");
    ensure!(active.len() == 2, "{} times active", active.len());
    step.line_with("Node Description:")?;
    let guid = by_route.trim_start_matches("PortGuid:");
    Ok(format!("neighbour {}", guid.trim_start_matches('.')))
}

/// Reads `N iters in T seconds = U usec/iter`.
fn pingpong(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    Ok(step.line_with(" usec/iter")?.trim().to_owned())
}

/// Words that mark a driver's log line as an error.
const BAD: [&str; 8] = [
    "error", "fail", "timeout", "time out", "warn", "unknown", "can't", "couldn't",
];

/// Returns whether a line of a kernel's log is an error.
fn complains(line: &str) -> bool {
    let of_driver = line.contains("mlx5") || line.contains("infiniband");
    let small = line.to_lowercase();
    let bad = BAD.iter().any(|word| small.contains(word));
    of_driver && bad
        || ["WARNING:", "BUG:", "Oops", "Call Trace", "Kernel panic"]
            .iter()
            .any(|word| line.contains(word))
}

/// Returns the error lines in the kernel's log.
pub fn complaints(step: &Step) -> Vec<&str> {
    let lines = step.said.iter().map(String::as_str);
    lines.filter(|line| complains(line)).collect()
}

fn kernel(step: &Step) -> Result<String> {
    let complaints = complaints(step);
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(format!("{} lines, no complaint", step.said.len()))
}

/// Checks that the simulator reports no rule that a driver broke.
fn functions(step: &Step) -> Result<String> {
    let broken = step.broken_rules();
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    Ok("no rule broken".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_drivers_and_of_the_kernel_in_its_log_fail() {
        let quiet = [
            "[    6.9] mlx5_core 0000:00:03.0: firmware version: 16.35.1010",
            "[    6.9] mlx5_core 0000:00:03.0: PTM is not supported by PCIe",
            "[    6.9] mlx5_core 0000:00:03.0: 126.016 Gb/s available PCIe bandwidth (8.0 GT/s PCIe x16 link)",
            "[    1.2] ACPI: some other error",
        ];
        assert!(judge(&Step::succeeded("kernel", &quiet)).is_ok());
        for loud in [
            "mlx5_core 0000:00:03.0: mlx5_cmd_out_err:815:(pid 1): CREATE_QP(0x500) failed",
            "infiniband mlx5_0: Couldn't open port 1",
            "WARNING: CPU: 0 PID: 9 at drivers/infiniband/core/device.c:1",
            "BUG: unable to handle page fault",
        ] {
            assert!(
                judge(&Step::succeeded("kernel", &[loud])).is_err(),
                "{loud}"
            );
        }
    }

    #[test]
    fn a_program_of_ours_without_a_line_for_each_round_fails() {
        let round = "round 1: LID 1, 40 trips of 3000 bytes, 86 completion events, 2 port events";
        let mut said = vec![round; ROUNDS - 1];
        said.push("0000:01:00.0 is back");
        assert!(judge(&Step::succeeded("userspace", &said)).is_err());
        said.push(round);
        assert_eq!(judge(&Step::succeeded("userspace", &said)).unwrap(), round);
        let mut said = vec!["resize 31 with 0 waiting"; 6];
        said.extend(["error, reset and 10 messages"; 3]);
        assert!(judge(&Step::succeeded("verbs", &said)).is_err());
        said.push("all freed");
        assert!(judge(&Step::succeeded("verbs", &said)).is_ok());
        assert!(judge(&Step::succeeded("xsrq", &["success", "client 0 server 0"])).is_ok());
        assert!(judge(&Step::succeeded("xsrq", &["success", "client 1 server 0"])).is_err());
    }

    #[test]
    fn a_link_without_a_manager_has_two_adapters_and_both_its_ends() {
        let [adapter, switch] = ["Ca\t1 \"H-0002\"", "Switch\t3 \"S-0002\""];
        assert!(judge(&Step::succeeded("ibnetdiscover", &[adapter, adapter])).is_ok());
        for other in [&[adapter][..], &[adapter, adapter, switch]] {
            assert!(judge(&Step::succeeded("ibnetdiscover", other)).is_err());
        }
        let end = "1    1[  ] ==( 4X  25.78125 Gbps Active/  LinkUp)==>  2    1[  ] \"mlx5_1\" ( )";
        assert!(judge(&Step::succeeded("iblinkinfo", &[end, end])).is_ok());
        assert!(judge(&Step::succeeded("iblinkinfo", &[end])).is_err());
    }

    #[test]
    fn a_neighbour_is_the_same_port_by_route_and_by_lid_and_not_the_asking_one() {
        let kind = "NodeType:........................Channel Adapter";
        let [own, other] = [1, 2].map(|guid| format!("PortGuid:........................0x{guid}"));
        let state = "LinkState:.......................Active";
        let judged = |guids: &[&String], states: usize| {
            let mut said = vec![kind, "Node Description:.MT2892"];
            said.extend(guids.iter().map(|guid| guid.as_str()));
            said.extend(vec![state; states]);
            judge(&Step::succeeded("smpquery", &said))
        };
        let good = judged(&[&own, &other, &other], 2);
        assert_eq!(good.expect("a neighbour"), "neighbour 0x2");
        assert!(judged(&[&own, &own, &own], 2).is_err());
        assert!(judged(&[&own, &other, &own], 2).is_err());
        assert!(judged(&[&own, &other], 2).is_err());
        assert!(judged(&[&own, &other, &other], 1).is_err());
    }

    #[test]
    fn counters_of_a_port_that_no_traffic_reached_fail() {
        let ended = "client 0 server 0";
        let [many, few] = [90, 3].map(|count| format!("PortRcvPkts:.....................{count}"));
        let judged = |said: &[&str]| judge(&Step::succeeded("perfquery", said));
        assert!(judged(&[ended, &many, &few]).is_ok());
        assert!(judged(&[ended, &few, &many]).is_err());
        assert!(judged(&[&many, &few]).is_err());
    }

    #[test]
    fn a_pair_of_which_one_end_failed_fails() {
        let figures = "500 iters in 0.50 seconds = 1000.00 usec/iter";
        let good = Step::succeeded("rc", &[figures, "client 0 server 0"]);
        assert_eq!(judge(&good).unwrap(), figures);
        assert!(judge(&Step::succeeded("rc", &[figures, "client 0 server 1"])).is_err());
        let table = [
            " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]",
            " 4096       100              44.86              43.45  \t\t     0.011124",
            "client 0 server 0",
        ];
        assert_eq!(
            judge(&Step::succeeded("ib_read_bw", &table)).unwrap(),
            "4096 bytes: 43.45 MiB/s"
        );
    }
}
