//! The suites of our driver against another RDMA stack. One link has our driver on one side and the kernel's stack on
//! the other.
//!
//! Both sides run `rping` of librdmacm, whose protocol `datctl rping` implements: Send/Recv, RDMA Read and RDMA Write
//! over connections that the kernel's `rdma_cm` makes, in either role. A program on librdmacm and one of ours
//! (`udapl/examples/peer`) test cases that `rping` lacks: receives that are posted late or never, a passive side that
//! disconnects, private data, rejections. `datctl perf --perftest` measures against programs of perftest.

mod network;
mod peers;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::c::{self, Source};
use super::functions::{STEER_SOCKET, Slots};
use super::image::{Image, Program};
use super::machine::Machine;
use super::report::{Step, count_broken};
use super::suite::{Shown, Ssd, Suite};
use super::{build, capture, stock};

/// Packages that every guest of these suites has.
pub(super) const PACKAGES: &[&str] = &[
    "rdmacm-utils",
    "ibverbs-utils",
    "ibverbs-providers",
    "iproute2",
    "perftest",
];

/// Time limit of each of these suites, in which the link is down for two minutes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Returns the step that judges Wireshark's findings in a capture.
const fn dissected(file: &'static str) -> Shown {
    Shown {
        step: "dissected",
        file,
        lines: capture::dissected,
    }
}

/// Our C programs for the stock side, in addition to `rping`.
const SOURCES: [Source; 2] = [
    Source {
        name: "peer",
        text: include_str!("guest/peer.c"),
        libraries: &["rdmacm", "ibverbs"],
    },
    Source {
        name: "forge",
        text: include_str!("guest/forge.c"),
        libraries: &[],
    },
];

fn programs(machine: &Machine) -> Result<Vec<Program>> {
    let mut programs = c::programs(machine, &SOURCES)?;
    programs.push(("datctl".to_owned(), build::datctl()?));
    let (_, ours) = build::example("peer")?;
    programs.push(("our-peer".to_owned(), ours));
    Ok(programs)
}

/// The RDMA stack on the other side.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// The kernel's software RoCE.
    Rxe,
    /// The kernel's mlx5 drivers.
    Mlx5,
}

impl Which {
    /// Returns the suite against this stack.
    pub(super) fn suite(self) -> Suite {
        match self {
            Self::Rxe => software(),
            Self::Mlx5 => mlx5(),
        }
    }
}

/// Returns the suites against both stacks.
pub(super) fn all() -> [Suite; 2] {
    [Which::Rxe, Which::Mlx5].map(Which::suite)
}

/// Returns the suite in which the kernel's `mlx5_core` and `mlx5_ib` drive the other function of the link.
fn mlx5() -> Suite {
    Suite {
        image: Image {
            name: "mlx5",
            modules: &[
                "vfio",
                "vfio_iommu_type1",
                "vfio-pci",
                "ib_uverbs",
                "rdma_ucm",
                "mlx5_core",
                "mlx5_ib",
                "crc32_generic?",
                "rdma_rxe",
                "bridge",
                "8021q",
                "veth",
            ],
            packages: PACKAGES,
            script: concat!(
                include_str!("guest/interop-mlx5"),
                include_str!("guest/ends"),
                include_str!("guest/interop"),
                include_str!("guest/network")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "1G",
        patience: PATIENCE,
        serve: &[
            "--profile",
            "roce",
            "--pcap",
            "mlx5.pcapng",
            "--steer",
            STEER_SOCKET,
        ],
        beside: None,
        lost: None,
        programs,
        shown: const { &[Shown::wire("mlx5.pcapng"), dissected("mlx5.pcapng")] },
        judge,
    }
}

/// Returns the suite against the kernel's software RoCE: `rdma_rxe` on a network device that is connected to the wire
/// of our function.
fn software() -> Suite {
    Suite {
        image: Image {
            name: "rxe",
            modules: &[
                "vfio",
                "vfio_iommu_type1",
                "vfio-pci",
                "virtio_pci?",
                "virtio_net",
                "crc32_generic?",
                "rdma_rxe",
                "ib_uverbs",
                "rdma_ucm",
                "bridge",
                "8021q",
                "veth",
            ],
            packages: PACKAGES,
            script: concat!(
                include_str!("guest/interop-rxe"),
                include_str!("guest/ends"),
                include_str!("guest/interop"),
                include_str!("guest/network")
            ),
            variables: &[],
        },
        slots: Slots::Networked,
        ssd: Ssd::None,
        memory: "1G",
        patience: PATIENCE,
        serve: &[
            "--link",
            "dgram:wire.sock,net.sock",
            "--pcap",
            "rxe.pcapng",
            "--steer",
            STEER_SOCKET,
        ],
        beside: None,
        lost: None,
        programs,
        shown: const { &[Shown::wire("rxe.pcapng"), dissected("rxe.pcapng")] },
        judge: judge_software,
    }
}

pub(super) fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "bind" => bound(step, 0),
        "stock" => bound(step, step.said.len().saturating_sub(1)),
        "kernel" => stock::judge(step),
        "functions" => functions(step),
        "wire" => refused(step),
        _ if peers::has(step) => peers::judge(step),
        _ if network::has(step) => network::judge(step),
        name if name.starts_with("ib_") => perftest(step),
        _ => both(step),
    }
}

/// Judges a step of the software RoCE suite. Steps of `peer` include the counters of software RoCE.
fn judge_software(step: &Step) -> Result<String> {
    if peers::has(step) {
        return peers::judge_counted(step);
    }
    judge(step)
}

/// Checks that neither driver broke a rule, with one exception. When the kernel's MAC changes, the kernel deletes the
/// old addresses at once, even if queue pairs use them (Linux `drivers/infiniband/core/cache.c`, `del_gid`). Our
/// function is the first one.
fn functions(step: &Step) -> Result<String> {
    let known =
        |line: &&str| line.contains("its source GID left the table") && line.contains("sim:1.sock");
    let broken = step.broken_rules();
    let (gone, other): (Vec<&str>, Vec<&str>) = broken.into_iter().partition(known);
    ensure!(other.is_empty(), "{}", other.join("\n"));
    Ok(match count_broken(&gone) {
        0 => "no rule broken".to_owned(),
        gone => format!("no rule broken; {gone} queue pairs of the kernel's lost their address"),
    })
}

/// Timer code of the RNR NAKs of our side: the default of our library.
const OUR_TIMER: u32 = 12;
/// Timer codes of the RNR NAKs of the stock side. `rdma_cm` sets 0. The programs of perftest set 12 (`MIN_RNR_TIMER`),
/// and rxe also sends RNR NAKs for RDMA Reads whose response it cannot send at once (Linux `rxe_resp.c`, `read_reply`).
const STOCK_TIMERS: [u32; 2] = [0, 12];

/// Checks that both sides sent RNR NAKs with their own timer codes: ours with [`OUR_TIMER`] alone, the stock side with
/// the code of `rdma_cm`, and on a busy machine with that of perftest.
fn refused(step: &Step) -> Result<String> {
    let [stock, ours] = [
        ("10.0.0.1: ", &STOCK_TIMERS[..]),
        ("10.0.0.2: ", &[OUR_TIMER]),
    ]
    .map(|(who, timers)| {
        let lines = step.lines_with(who);
        let has =
            |line: &str, timer: &u32| line.ends_with(&format!(" RNR NAKs, timer code {timer}"));
        let all_known = lines
            .iter()
            .all(|line| timers.iter().any(|timer| has(line, timer)));
        let first = lines.iter().any(|line| has(line, &timers[0]));
        ensure!(all_known && first, "{who}{lines:?}");
        Ok(lines.join("; "))
    });
    Ok(format!("{}; {}", stock?, ours?))
}

/// Checks that the program succeeded. Returns the line of its output with this index.
fn bound(step: &Step, line: usize) -> Result<String> {
    ensure!(step.code == Some(0), "failed");
    let line = step.said.get(line).context("it says nothing")?;
    Ok(line.trim().to_owned())
}

/// Checks that both ends succeeded. Returns the output of our end: a row of figures if it is the active end, a count if
/// it is the passive end.
pub(super) fn both(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    let header = step.said.iter().rposition(|line| line.contains("median"));
    let Some(header) = header else {
        return Ok(step.line_with("answered ")?.to_owned());
    };
    let row = step.said.get(header + 1).context("no figures")?;
    let columns: Vec<&str> = row.split_whitespace().collect();
    let [messages, bytes, _, _, median, unit, ..] = columns[..] else {
        anyhow::bail!("figures {columns:?}");
    };
    Ok(format!(
        "{messages} of {bytes} bytes, median {median} {unit}"
    ))
}

/// Checks that both ends succeeded, and that perftest printed a row for the size that our program measured, if it
/// prints rows. Returns our row.
fn perftest(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    step.line_with(&format!("the peer is {} of perftest ", step.name))?;
    let (_, kind) = step.name.split_once('_').context("no program")?;
    let (operation, _) = kind.split_once('_').context("no program")?;
    let is_row = |line: &&String| line.split_whitespace().next() == Some(operation);
    let ours = step.said.iter().find(is_row).context("no row of ours")?;
    // The passive end of `ib_read_lat` prints nothing, since it only exposes its memory.
    if step.name != "ib_read_lat" {
        let header = |line: &String| line.trim_start().starts_with("#bytes");
        let header = step.said.iter().rposition(header);
        let theirs = header.and_then(|at| step.said.get(at + 1));
        let theirs = theirs.context("no row of theirs")?;
        let bytes = |row: &str, column| row.split_whitespace().nth(column).map(str::to_owned);
        ensure!(
            bytes(theirs, 0) == bytes(ours, 1),
            "{ours:?} here and {theirs:?} there"
        );
    }
    let columns: Vec<&str> = ours.split_whitespace().collect();
    let [_, bytes, _, median, .., rate, _, _] = columns[..] else {
        anyhow::bail!("figures {columns:?}");
    };
    Ok(match median {
        "-" => format!("{bytes} bytes: {rate} MB/s"),
        _ => format!("{bytes} bytes: median {median} us"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_perftest_has_to_have_a_row_of_the_same_size() {
        let all = [
            " operation  bytes  min us  median us  p99 us  p99.99 us  max us  MB/s  back MB/s  k/s",
            " write      4096   -       -          -       -          -       54.2  -          13.2",
            "bandwidth: 16 under way; the peer is ib_write_bw of perftest 6.24",
            " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]",
            " 4096       5000             0.00               51.69              0.013234",
            "client 0 server 0",
        ];
        let judged = |said: &[&str]| judge(&Step::succeeded("ib_write_bw", said));
        assert_eq!(judged(&all).expect("good"), "4096 bytes: 54.2 MB/s");
        for missing in 1..all.len() {
            let mut said = all.to_vec();
            said.remove(missing);
            assert!(judged(&said).is_err(), "{said:?}");
        }
        let mut other = all;
        other[4] = " 2048       5000             0.00               51.69              0.013234";
        assert!(judged(&other).is_err());
        let latency = [
            " read       2      34.62   108.42     982.53  1082.37    1082.37   -     -          -",
            "latency: post to completion; the peer is ib_read_lat of perftest 6.24",
            "client 0 server 0",
        ];
        let judged = judge(&Step::succeeded("ib_read_lat", &latency));
        assert_eq!(judged.expect("good"), "2 bytes: median 108.42 us");
    }

    #[test]
    fn an_end_that_failed_fails_the_step_in_either_role() {
        let active = [
            " messages  bytes  shortest   median     longest",
            " 20        64     2646.0 us  7953.7 us  26707.3 us",
            "client 0 server 0",
        ];
        let figures = judge(&Step::succeeded("connect", &active)).expect("good");
        assert_eq!(figures, "20 of 64 bytes, median 7953.7 us");
        let passive = [
            "listening on fe80::1",
            "answered 20 messages",
            "client 0 server 0",
        ];
        assert_eq!(
            judge(&Step::succeeded("listen", &passive)).expect("good"),
            "answered 20 messages"
        );
        for end in ["client 1 server 0", "client 0 server 143"] {
            let failed = [active[0], active[1], end];
            assert!(
                judge(&Step::succeeded("connect", &failed)).is_err(),
                "{end}"
            );
        }
    }

    #[test]
    fn a_broken_rule_fails_unless_the_kernel_removed_an_address_in_use() {
        let gone = "driver bug: QP 0xb2: its source GID left the table function=sim:1.sock";
        let judged = |said: &[&str]| judge(&Step::succeeded("functions", said));
        assert_eq!(judged(&["connected"]).expect("good"), "no rule broken");
        assert!(judged(&[gone]).is_ok());
        let ours = gone.replace("sim:1", "sim:0");
        let other = "driver bug: a write behind a UMR without a fence function=sim:1.sock";
        for bad in [ours.as_str(), other] {
            assert!(judged(&[gone, bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn either_side_has_to_have_refused_with_its_own_timer() {
        let (stock, ours) = (
            "10.0.0.1: 5 RNR NAKs, timer code 0",
            "10.0.0.2: 104 RNR NAKs, timer code 12",
        );
        assert!(judge(&Step::succeeded("wire", &[stock, ours])).is_ok());
        let of_perftest = "10.0.0.1: 209 RNR NAKs, timer code 12";
        assert!(judge(&Step::succeeded("wire", &[stock, of_perftest, ours])).is_ok());
        let other = "10.0.0.2: 1 RNR NAKs, timer code 0";
        let unknown = "10.0.0.1: 1 RNR NAKs, timer code 14";
        for wrong in [
            &[stock][..],
            &[ours],
            &[stock, other],
            &[stock, ours, other],
            &[stock, ours, unknown],
            &[of_perftest, ours],
        ] {
            assert!(judge(&Step::succeeded("wire", wrong)).is_err(), "{wrong:?}");
        }
    }
}
