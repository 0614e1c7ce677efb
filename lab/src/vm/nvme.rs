//! The suite of the NVMe over RDMA target. The target is a host process on a simulated function. A stock kernel's
//! initiator is at the other end of the function's wire.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::beside::{self, Beside};
use super::functions::{STEER_SOCKET, Slots};
use super::image::Image;
use super::machine::Machine;
use super::report::Step;
use super::suite::{PATIENCE, Shown, Ssd, Suite};
use super::{build, capture, stock};

/// Path of the disk in the folder of the run.
const DISK: &str = "disk.img";
/// Path of the target's configuration in the folder of the run.
const SETTINGS: &str = "nvmeofd.toml";
/// Size of the disk in bytes. XFS requires at least 300 MiB. The file is sparse.
const BYTES: u64 = 320 << 20;
/// NQNs of the subsystems, which the scripts use as well.
pub(super) const SUBSYSTEM: &str = "nqn.2026-11.example:disk";
const KEYS: &str = "nqn.2026-11.example:keys";
const SSD: &str = "nqn.2026-11.example:ssd";
/// Keep-alive timeout of the host that is lost, and additional time for the target's clean-up.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
const LONGER: Duration = Duration::from_secs(4);

/// Steps that the short form of the suite runs.
pub const SHORT: [&str; 14] = [
    "probe",
    "discover",
    "connect",
    "id-ctrl",
    "raw",
    "commands",
    "reservations",
    "ssd",
    "paths",
    "kernel",
    "faulty",
    "killed",
    "disconnect",
    "dissected",
];

/// Steps that are repeated for each seed after the first. Each repetition needs a guest of its own, because `host-lost`
/// ends the guest.
pub const LOST: [&str; 2] = ["probe", "host-lost"];

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "nvme",
            modules: &[
                "ib_uverbs",
                "rdma_ucm",
                "mlx5_core",
                "mlx5_ib",
                "crc32c_generic?",
                "crc32c_intel?",
                "dh_generic?",
                "hmac?",
                "sha256_generic?",
                "sha512_generic?",
                "ext4",
                "xfs",
                "nvme_rdma",
            ],
            packages: &[
                "iproute2",
                "nvme-cli",
                "e2fsprogs",
                "xfsprogs",
                "fio",
                "util-linux",
            ],
            script: concat!(
                include_str!("guest/nvme-ends"),
                include_str!("guest/nvme"),
                include_str!("guest/nvme-hosts"),
                include_str!("guest/nvme-faults")
            ),
            variables: &[],
        },
        slots: Slots::Wired,
        ssd: Ssd::Backing,
        memory: "2G",
        patience: PATIENCE * 2,
        serve: &[
            "--profile",
            "roce",
            "--link",
            "unix:wire%.sock",
            "--pcap",
            "nvme%.pcapng",
            "--steer",
            STEER_SOCKET,
        ],
        beside: Some(target),
        lost: Some(lost),
        programs: |_| Ok(Vec::new()),
        shown: &[Shown {
            step: "dissected",
            file: "nvme0.pcapng",
            lines: capture::nvme,
        }],
        judge,
    }
}

/// Returns the target's configuration: a port for each function, a subsystem with the disk for any host, one for hosts
/// that have a key, and one with an SSD that the target drives itself.
fn settings() -> String {
    format!(
        "\
[control]
socket = \"{control}\"

[[port]]
id = 1
adapter = \"{first},control={at}\"
workers = 2
max_transfer = \"1MiB\"

[[port]]
id = 2
adapter = \"{second}\"
max_transfer = \"1MiB\"

[[subsystem]]
nqn = \"{SUBSYSTEM}\"
any_host = true
namespace = [{{ nsid = 1, file = \"{DISK}\" }}]

[[subsystem]]
nqn = \"{KEYS}\"
namespace = [{{ memory = \"16MiB\" }}]

[[subsystem]]
nqn = \"{SSD}\"
any_host = true
namespace = [{{ disk = \"vfio-user:{backing}\" }}]
",
        backing = beside::BACKING,
        control = beside::CONTROL,
        at = beside::ADAPTER,
        first = adapter("target", 0),
        second = adapter("second", 1),
    )
}

/// Returns the name that opens the target's adapter at one end of the wire with this number.
pub(super) fn adapter(name: &str, number: usize) -> String {
    format!(
        "sim:{name},mac=02:00:00:00:0f:0{},link=unix:wire{number}.sock,address=10.0.{number}.2/24",
        number + 1
    )
}

/// Returns the command of the target.
fn target(machine: &Machine) -> Result<Command> {
    let program = build::nvmeofd()?;
    let run = machine.path("run");
    // The file is not truncated: a target that is started again must find the data written before it was killed.
    let disk = std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(run.join(DISK))?;
    disk.set_len(BYTES)?;
    std::fs::write(run.join(SETTINGS), settings())?;
    let mut command = Command::new(program);
    command
        .current_dir(&run)
        .env("RUST_LOG", "info")
        .arg(SETTINGS);
    Ok(command)
}

/// Waits until the target has released the resources of its lost host. Returns the counts, or the error, as a line of
/// output.
fn lost(beside: &Beside<'_>) -> Vec<String> {
    let forgotten = beside::await_release(beside, KEEP_ALIVE + LONGER);
    vec![match forgotten {
        Ok(how) => format!("nothing is held: {how}"),
        Err(error) => format!("{error:#}"),
    }]
}

fn judge(step: &Step) -> Result<String> {
    let name = step.name.as_str();
    match name {
        "kernel" => kernel(step),
        "oops" => oops(step),
        "commands" => {
            let refused = step.lines_with("Invalid Command Opcode").len();
            ensure!(refused == 1, "{refused} opcodes were refused");
            shown(step)
        }
        "paths" => {
            let ways = step.lines_with("writes went by path");
            ensure!(ways.len() == 4, "{} of 4 ways", ways.len());
            Ok("optimized before non-optimized and before inaccessible, each path".to_owned())
        }
        "dissected" => dissected(step),
        "authentication" => match step.lines_with("this kernel has no authentication")[..] {
            [line] => Ok(line.to_owned()),
            _ => shown(step),
        },
        "functions" => stock::judge(step),
        "ping" => Ok(step.line_with("3 packets received")?.to_owned()),
        "discover" => {
            ensure!(step.code == Some(0), "failed");
            step.line_with("current discovery subsystem")?;
            step.line_with(&format!("subnqn:  {SUBSYSTEM}"))?;
            Ok(step.line_with("Number of Records")?.trim().to_owned())
        }
        "connect" | "connect-again" => Ok(step.line_with("controller live at")?.to_owned()),
        "refused" => {
            // In the status 0x4080, the bit DNR (Do Not Retry) is set.
            step.line_with("LBA Out of Range: The command references an LBA that exceeds the size of the namespace(0x4080)")?;
            step.line_with("Compare Failure")?;
            let opcodes = step.lines_with("Invalid Command Opcode").len();
            ensure!(opcodes == 2, "{opcodes} opcodes were refused");
            Ok("LBA Out of Range, Compare Failure, Invalid Command Opcode".to_owned())
        }
        _ => shown(step),
    }
}

/// Checks that the output of a step has the expected texts. Returns their lines, or the last line of a step without
/// expected texts.
fn shown(step: &Step) -> Result<String> {
    ensure!(step.code == Some(0), "failed");
    let shown = SHOWN.iter().find(|(of, _)| *of == step.name);
    let line = match shown {
        Some((_, words)) => {
            let lines = words.iter().map(|words| step.line_with(words));
            lines.collect::<Result<Vec<_>>>()?.join("; ")
        }
        None => step.said.last().cloned().unwrap_or_default(),
    };
    Ok(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Checks that Wireshark reported no error, and recognised commands of each of the most frequent kinds.
fn dissected(step: &Step) -> Result<String> {
    if step.said.is_empty() {
        return Ok("tshark is not installed".to_owned());
    }
    let complaints = step.lines_with("complains");
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    for what in ["Read", "Write", "Identify", "Connect"] {
        step.line_with(&format!("{what}: "))?;
    }
    Ok(step.said.join(", "))
}

/// Expected texts in the output of each step. The lines with them are its figures.
const SHOWN: [(&str, &[&str]); 36] = [
    ("ssd", &["written and read: equal", "verified", "zeroes"]),
    (
        "commands",
        &["written and read: equal", "copied: equal", "all done"],
    ),
    ("persistent", &["live", "change reported", "subnqn:"]),
    (
        "authentication",
        &[
            "refused without",
            "one way: live",
            "both ways: live",
            "after a reset: live",
        ],
    ),
    (
        "reservations",
        &["the other host may not write", "preempted", "released"],
    ),
    ("remapped", &["20 times"]),
    (
        "queues",
        &["1/2/1 default/read/poll", "verified by polling", "live"],
    ),
    ("uring", &["verified by io_uring_cmd"]),
    ("reset-loaded", &["every block is what was written", "live"]),
    ("namespaces", &["added", "grown", "shrunk", "removed"]),
    (
        "limited",
        &[
            "verified, at 100 I/Os a second",
            "verified, after the limit was gone",
        ],
    ),
    (
        "masked",
        &["not there", "verified, once it is shown", "gone again"],
    ),
    ("large", &["KiB in a command", "verified"]),
    (
        "failing",
        &["a read failed", "every block is what was written", "live"],
    ),
    (
        "removed",
        &[
            "gone",
            "there again: equal",
            "every block is what was written",
        ],
    ),
    (
        "path-lost",
        &["path ", "every block is what was written", "live"],
    ),
    ("pulled", &["every block is what was written", "live"]),
    ("host-lost", &["nothing is held"]),
    ("faulty", &["every block is what was written"]),
    ("away", &["every block is what was written", "live"]),
    ("killed", &["every block is what was written", "live"]),
    ("gives-up", &["given up", "controller live at"]),
    ("raw-again", &["equal"]),
    (
        "id-ctrl",
        &["cntrltype : 1", "mdts      : 8", "sgls      : 0x100005"],
    ),
    ("id-ns", &["Data Size: 512 bytes"]),
    ("ns-descs", &["uuid"]),
    ("list-subsys", &["rdma traddr=10.0.0.2"]),
    ("smart-log", &["available_spare", "host_read_commands"]),
    ("ana-log", &["grpid", "optimized"]),
    ("feature", &["Submission Queues Allocated"]),
    ("regs", &["Controller Fatal Status        (CFS): False"]),
    ("raw", &["written 32 MiB", "read 32 MiB", "equal"]),
    ("raw-after", &["written 32 MiB", "read 32 MiB", "equal"]),
    (
        "ext4",
        &["written 32 MiB", "read and compared 32 MiB", "equal"],
    ),
    (
        "xfs",
        &["written 32 MiB", "read and compared 32 MiB", "equal"],
    ),
    ("verify", &["verified"]),
];

/// Checks that neither the kernel nor its NVMe driver reports an error.
pub(super) fn kernel(step: &Step) -> Result<String> {
    /// Texts that occur in errors of the driver.
    const BAD: [&str; 6] = [
        "fail",
        "error",
        "timeout",
        "Firmware bug",
        "invalid",
        "reconnect",
    ];
    let complains =
        |line: &&String| line.contains("nvme") && BAD.iter().any(|word| line.contains(word));
    let complaints: Vec<&str> = step
        .said
        .iter()
        .filter(complains)
        .map(String::as_str)
        .collect();
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    stock::judge(step)
}

/// Checks that the kernel itself reports no failure, even if its devices failed.
pub(super) fn oops(step: &Step) -> Result<String> {
    const BAD: [&str; 6] = [
        "WARNING:",
        "BUG:",
        "Oops",
        "blocked for more than",
        "general protection fault",
        "refcount_t",
    ];
    for what in BAD {
        let lines = step.lines_with(what);
        ensure!(lines.is_empty(), "{}", lines.join("\n"));
    }
    Ok(format!("{} lines, no warning", step.said.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_had_to_reconnect_has_complained() {
        let quiet = [
            "nvme nvme0: creating 2 I/O queues.",
            "nvme nvme0: mapped 2/0/0 default/read/poll queues.",
        ];
        assert!(judge(&Step::succeeded("kernel", &quiet)).is_ok());
        for loud in [
            "nvme nvme0: starting error recovery",
            "nvme nvme0: failed nvme_keep_alive_end_io error=10",
        ] {
            assert!(
                judge(&Step::succeeded("kernel", &[loud])).is_err(),
                "{loud}"
            );
        }
    }

    #[test]
    fn what_a_step_has_to_say_is_asked_for() {
        let said = ["written 32 MiB in 2 ms", "read 32 MiB in 3 ms"];
        assert!(judge(&Step::succeeded("raw", &said)).is_err());
        let said = [said[0], said[1], "equal"];
        assert!(judge(&Step::succeeded("raw", &said)).is_ok());
        assert!(judge(&Step::succeeded("refused", &["over"])).is_err());
    }
}
