//! RDMA test suites and kernel users of RDMA that others wrote: rdma-core's own tests, perftest over all sizes, UCX,
//! libfabric; NFS, SMC sockets, iSER, SRP; DPDK. They are Debian's packages, and run on the simulated functions'
//! Ethernet ports.
//!
//! Only the scripts, the judging functions and the program for SMC sockets are ours. Tests that fail are listed with
//! their reasons ([`pyverbs`]). So a new failure is an error, and a failure that no longer occurs is noticed.

mod pyverbs;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::c::{self, Source};
use super::functions::Slots;
use super::image::Image;
use super::report::Step;
use super::suite::{PATIENCE, Ssd, Suite};
use super::{perftest, stock};

/// One of the suites, each with a guest of its own.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Which {
    /// Programs: rdma-core's tests, perftest, UCX, libfabric.
    Programs,
    /// Users of RDMA in the kernel: NFS, SMC sockets, iSER, SRP.
    Kernel,
    /// DPDK's testpmd.
    Dpdk,
}

impl Which {
    /// Returns this suite.
    pub(super) fn suite(self) -> Suite {
        match self {
            Self::Programs => programs(),
            Self::Kernel => kernel(),
            Self::Dpdk => dpdk(),
        }
    }
}

/// Returns all suites.
pub(super) fn all() -> Vec<Suite> {
    let all = Which::value_variants().iter();
    all.map(|which| which.suite()).collect()
}

/// Kernel modules that the guests of all these suites load.
macro_rules! modules {
    ($($more:literal),*) => {
        &["ib_uverbs", "ib_umad", "rdma_ucm", "mlx5_core", "mlx5_ib", $($more),*]
    };
}

fn programs() -> Suite {
    Suite {
        image: Image {
            name: "foreign",
            modules: modules!(),
            packages: &[
                "ibverbs-providers",
                "iproute2",
                "python3-pyverbs",
                "perftest",
                "ucx-utils",
                "libfabric-bin",
            ],
            script: concat!(include_str!("guest/roce"), include_str!("guest/foreign")),
            variables: &["PYVERBS"],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "3G",
        patience: Duration::from_secs(2400),
        serve: &["--profile", "roce", "--report", "report-foreign.txt"],
        beside: None,
        lost: None,
        programs: |_| Ok(Vec::new()),
        shown: &[],
        judge,
    }
}

fn kernel() -> Suite {
    Suite {
        image: Image {
            name: "foreign-kernel",
            modules: modules!(
                "rpcrdma",
                "nfsd",
                "nfsv4",
                "smc",
                "crc32c_generic?",
                "sd_mod",
                "ib_iser",
                "ib_isert",
                "ib_srp",
                "ib_srpt"
            ),
            packages: &[
                "ibverbs-providers",
                "iproute2",
                "ethtool",
                "nfs-kernel-server",
                "open-iscsi",
            ],
            script: concat!(
                include_str!("guest/roce"),
                include_str!("guest/foreign-kernel")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "2G",
        // The limits of its steps add up to 2,290 s.
        patience: PATIENCE * 3,
        serve: &["--profile", "roce", "--report", "report-kernel.txt"],
        beside: None,
        lost: None,
        programs: |machine| c::programs(machine, &[SMC]),
        shown: &[],
        judge,
    }
}

/// Our program that opens SMC sockets. Debian has no program that does.
const SMC: Source = Source {
    name: "smc",
    text: include_str!("guest/smc.c"),
    libraries: &[],
};

fn dpdk() -> Suite {
    Suite {
        image: Image {
            name: "dpdk",
            modules: modules!(),
            packages: &[
                "ibverbs-providers",
                "iproute2",
                "dpdk-dev",
                "librte-net-mlx5-25",
            ],
            script: concat!(
                include_str!("guest/roce"),
                include_str!("guest/foreign-dpdk")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "3G",
        patience: PATIENCE,
        serve: &["--profile", "roce", "--report", "report-dpdk.txt"],
        beside: None,
        lost: None,
        programs: |_| Ok(Vec::new()),
        shown: &[],
        judge,
    }
}

/// Smallest number of bytes that a transfer of files, blocks or a stream must move over RDMA in at least one direction.
const TRANSFERRED: u64 = 64 << 20;
const STREAMED: u64 = 8 << 20;

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "pyverbs" => pyverbs::judge(step),
        name if name.starts_with("testpmd-") => testpmd(step),
        "prepare" | "facing" | "apart" | "together" => Ok(String::new()),
        "smc" => {
            step.both_succeeded()?;
            step.line_with("came back as they were")?;
            by_rdma(step, STREAMED)
        }
        "nfs-server" => Ok(step.line_with("rdma 20049")?.to_owned()),
        "nfs-mount" => {
            step.line_with("proto=rdma")?;
            Ok("NFS 4.2 over RDMA".to_owned())
        }
        "iser-target" => {
            ensure!(step.said.last().is_some_and(|line| line == "1"), "no iSER");
            Ok("10.0.0.2:3260".to_owned())
        }
        "iser-login" => Ok(step.line_with("iser: ")?.to_owned()),
        "srp-target" => {
            ensure!(step.said.last().is_some_and(|line| line == "1"), "no SRP");
            Ok("10.0.0.2:5555".to_owned())
        }
        "srp-login" => Ok(step.line_with("srp: ")?.to_owned()),
        "srp-dd" | "iser-dd" | "nfs-files" => {
            let errors = step.said.iter().rfind(|line| line.starts_with("errors "));
            let errors = errors.context("the kernel's log was not read")?;
            ensure!(errors == "errors 0", "{}", step.said.join("\n"));
            there_and_back(step)
        }
        "nfs-umount" | "iser-logout" | "srp-logout" => Ok("gone".to_owned()),
        "kernel-after-tests" => provoked(step),
        name if name.starts_with("ucx-") => ucx(step),
        name if name.starts_with("sweep-") => perftest::sweep(step),
        name if name.starts_with("fabric-") => fabric(step),
        _ => stock::judge(step),
    }
}

/// Errors in the kernel's log for commands that rdma-core's tests expect to fail, each with its largest number.
const PROVOKED: [(&str, usize); 2] = [
    // `test_resize_cq` requests a size below the number of entries in the queue.
    (
        "MODIFY_CQ(0x403) op_mod(0x1) failed, status bad size too many outstanding CQEs(0x40)",
        2,
    ),
    // A test registers memory for on-demand paging. For it the kernel creates an event queue for page faults, which the
    // simulator does not support.
    (
        "CREATE_EQ(0x301) op_mod(0x0) failed, status bad parameter(0x3)",
        2,
    ),
];

/// Checks the kernel's log after tests that expect commands to fail.
fn provoked(step: &Step) -> Result<String> {
    let (refused, others): (Vec<&str>, Vec<&str>) = stock::complaints(step)
        .into_iter()
        .partition(|line| PROVOKED.iter().any(|(command, _)| line.contains(command)));
    ensure!(others.is_empty(), "{}", others.join("\n"));
    for (command, most) in PROVOKED {
        let times = refused.iter().filter(|line| line.contains(command)).count();
        ensure!(times <= most, "{times} times: {command}");
    }
    let lines = step.said.len();
    Ok(format!(
        "{lines} lines, {} commands refused as known",
        refused.len()
    ))
}

/// Checks that the bytes of a transfer were equal, and that it used RDMA.
fn there_and_back(step: &Step) -> Result<String> {
    step.line_with("equal")?;
    let figures = [step.line_with("written")?, step.line_with("read")?];
    let brought = by_rdma(step, TRANSFERRED)?;
    Ok(format!("{}; {}; {brought}", figures[0], figures[1]))
}

/// Checks with the counters that at least this many bytes used RDMA, not a fallback.
fn by_rdma(step: &Step, least: u64) -> Result<String> {
    let line = step.line_with("by RDMA ")?;
    let bytes = line.split_whitespace().nth(2).context("no count")?;
    let bytes: u64 = bytes.parse().with_context(|| format!("{line:?}"))?;
    ensure!(bytes >= least, "{bytes} bytes by RDMA, not {least}");
    Ok(line.to_owned())
}

/// Checks that both ends succeeded, and parses the row of figures of ucx_perftest: count, times (median, two averages),
/// bandwidths, rates.
fn ucx(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    let rows = step.said.iter().map(|line| perftest::numbers(line));
    let row = rows
        .into_iter()
        .find(|row| row.len() == 8)
        .context("ucx_perftest prints no figures")?;
    Ok(format!(
        "{} iterations, {} us, {} MB/s",
        row[0], row[1], row[4]
    ))
}

/// Checks that both ends succeeded and that fi_pingpong printed figures. Returns the number of sizes and the last row.
fn fabric(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    let header = step.said.iter().position(|line| line.contains("#sent"));
    let rows = &step.said[header.context("fi_pingpong prints no table")? + 1..];
    let rows: Vec<&String> = rows
        .iter()
        .take_while(|row| row.split_whitespace().count() >= 7)
        .collect();
    let last = rows.last().context("fi_pingpong prints no figures")?;
    Ok(format!("{} sizes, last {}", rows.len(), last.trim()))
}

/// Smallest number of packets that testpmd must have received in all. 128 packets circulate.
const FORWARDED: u64 = 2000;

/// Checks testpmd's statistics: enough packets were received, and no received packet was dropped. In a step with `csum`
/// in its name, no checksum may be bad, and both queues of port 0 must have received packets.
fn testpmd(step: &Step) -> Result<String> {
    let ended = "Accumulated forward statistics for all ports";
    let end = step.said.iter().position(|line| line.contains(ended));
    let all = &step.said[end.context("testpmd has not come to its account")?..];
    let counted = |what: &str| counter(all, what).with_context(|| format!("no {what}"));
    let [received, lost, sent] = [
        counted("RX-packets:")?,
        counted("RX-dropped:")?,
        counted("TX-packets:")?,
    ];
    ensure!(lost == 0, "{lost} packets dropped");
    ensure!(received >= FORWARDED, "{received} packets, not {FORWARDED}");
    let mut said = format!("{received} packets received, {sent} sent");
    if step.name.contains("csum") {
        let bad: Vec<u64> = ["Bad-ipcsum:", "Bad-l4csum:"]
            .into_iter()
            .flat_map(|what| step.said.iter().filter_map(move |line| after(line, what)))
            .collect();
        ensure!(
            bad.len() == 4 && bad.iter().all(|count| *count == 0),
            "bad checksums: {bad:?}"
        );
        for queue in 0..2 {
            let what = format!("RX Port= 0/Queue= {queue} -> TX Port= 1/Queue= {queue}");
            let at = step.said.iter().position(|line| line.contains(&what));
            let share = at.and_then(|at| counter(&step.said[at..], "RX-packets:"));
            ensure!(
                share.is_some_and(|share| share > 0),
                "nothing in queue {queue} of port 0"
            );
        }
        said += ", checksums good, by both queues";
    }
    Ok(said)
}

/// Returns the first number that follows this text.
fn counter(lines: &[String], what: &str) -> Option<u64> {
    lines.iter().find_map(|line| after(line, what))
}

fn after(line: &str, what: &str) -> Option<u64> {
    let (_, rest) = line.split_once(what)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_ucx_that_ends_well_without_figures_has_shown_nothing() {
        let header = "| |     Test     | # iterations | 50.0%ile | average | overall |  average |";
        let row = "   50   3995.500  3887.630  3887.630   0.00   0.00   257   257";
        let good = judge(&Step::succeeded(
            "ucx-rc_v-lat",
            &[header, row, "client 0 server 0"],
        ));
        assert_eq!(
            good.expect("figures"),
            "50 iterations, 3995.500 us, 0.00 MB/s"
        );
        assert!(
            judge(&Step::succeeded(
                "ucx-rc_v-lat",
                &[header, "client 0 server 0"]
            ))
            .is_err()
        );
    }

    #[test]
    fn blocks_and_files_that_are_equal_fail_if_the_kernel_logged_an_error() {
        let said = [
            "written 64 MiB in 900 ms",
            "read 64 MiB in 900 ms",
            "equal",
            "by RDMA 70000000 bytes",
        ];
        for name in ["srp-dd", "iser-dd", "nfs-files"] {
            let judged =
                |end: &[&'static str]| judge(&Step::succeeded(name, &[&said, end].concat()));
            assert!(judged(&["errors 0"]).is_ok(), "{name}");
            let error = "infiniband mlx5_0: dump_cqe:272:(pid 0): WC error: 6, errors 0";
            assert!(judged(&[error, "errors 1"]).is_err(), "{name}");
            assert!(judged(&["errors 10"]).is_err(), "{name}");
            assert!(judged(&[]).is_err(), "{name}");
        }
    }

    #[test]
    fn bytes_that_came_by_tcp_are_no_bytes_by_rdma() {
        let said = [
            "8388608 bytes came back as they were",
            "by RDMA 9000000 bytes",
            "client 0 server 0",
        ];
        assert!(judge(&Step::succeeded("smc", &said)).is_ok());
        let said = [said[0], "by RDMA 120 bytes", said[2]];
        assert!(judge(&Step::succeeded("smc", &said)).is_err());
    }

    #[test]
    fn a_table_without_rows_fails() {
        let table =
            ["bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec"];
        let mut said = vec!["client 0 server 0", table[0]];
        assert!(judge(&Step::succeeded("fabric-msg", &said)).is_err());
        said.push("64      10      =10      1.2k        0.01s      0.11     580.00       0.00");
        assert!(judge(&Step::succeeded("fabric-msg", &said)).is_ok());
    }

    #[test]
    fn a_testpmd_that_loses_packets_finds_bad_sums_or_leaves_a_queue_empty_fails() {
        let said = [
            "------- Forward Stats for RX Port= 0/Queue= 0 -> TX Port= 1/Queue= 0 -------",
            "RX-packets: 42664          TX-packets: 42728          TX-dropped: 0",
            "------- Forward Stats for RX Port= 0/Queue= 1 -> TX Port= 1/Queue= 1 -------",
            "RX-packets: 49628          TX-packets: 49692          TX-dropped: 0",
            "Bad-ipcsum: 0              Bad-l4csum: 0             Bad-outer-l4csum: 0",
            "Bad-ipcsum: 0              Bad-l4csum: 0             Bad-outer-l4csum: 0",
            "+++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++",
            "RX-packets: 188368         RX-dropped: 0             RX-total: 188368",
            "TX-packets: 188624         TX-dropped: 0             TX-total: 188624",
        ];
        let judged = |said: &[&str]| judge(&Step::succeeded("testpmd-csum-rss", said));
        assert_eq!(
            judged(&said).unwrap(),
            "188368 packets received, 188624 sent, checksums good, by both queues"
        );
        for (line, other) in [
            (7, "RX-packets: 64 RX-dropped: 0 RX-total: 64"),
            (7, "RX-packets: 188368 RX-dropped: 1 RX-total: 188369"),
            (4, "Bad-ipcsum: 3 Bad-l4csum: 0"),
            (3, "RX-packets: 0 TX-packets: 0"),
            (6, ""),
        ] {
            let mut worse = said;
            worse[line] = other;
            assert!(judged(&worse).is_err(), "{other}");
        }
    }
}
