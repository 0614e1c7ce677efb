//! The suite of the NVMe over RDMA target: a process of the host's on a simulated function, and a stock kernel's
//! initiator at the other end of its wire.

use std::process::Command;

use anyhow::{Result, ensure};

use super::guest::STEER_SOCKET;
use super::image::Image;
use super::machine::Machine;
use super::report::Step;
use super::{PATIENCE, Slots, Suite, stock};

/// The wire, and the disk, in the folder of the run.
const WIRE: &str = "wire.sock";
const DISK: &str = "disk.img";
/// Bytes of the disk: XFS wants 300 MiB. It is sparse.
const BYTES: u64 = 320 << 20;

/// Steps of the short form.
pub const SHORT: [&str; 9] = [
    "probe",
    "discover",
    "connect",
    "id-ctrl",
    "raw",
    "kernel",
    "faulty",
    "killed",
    "disconnect",
];

/// The suite.
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
            script: include_str!("guest/nvme"),
            variables: &[],
        },
        slots: Slots::Wired,
        memory: "2G",
        patience: PATIENCE,
        serve: &[
            "--profile",
            "roce",
            "--link",
            "unix:wire.sock",
            "--pcap",
            "nvme.pcapng",
            "--steer",
            STEER_SOCKET,
        ],
        beside: Some(target),
        programs: |_| Ok(Vec::new()),
        shown: &[],
        judge,
    }
}

/// The target.
fn target(machine: &Machine) -> Result<Command> {
    let program = super::nvmeofd()?;
    let run = machine.path("run");
    // One that is there already has what was written to it before the target was killed.
    let disk = std::fs::File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(run.join(DISK))?;
    disk.set_len(BYTES)?;
    let mut command = Command::new(program);
    command.current_dir(&run).env("RUST_LOG", "info").args([
        "--adapter",
        &format!("sim:target,mac=02:00:00:00:0f:01,link=unix:{WIRE},address=10.0.0.2/24"),
        "--subsystem",
        SUBSYSTEM,
        "--disk",
        DISK,
        "--workers",
        "2",
    ]);
    Ok(command)
}

fn judge(step: &Step) -> Result<String> {
    let name = step.name.as_str();
    match name {
        "kernel" => kernel(step),
        "functions" => stock::judge(step),
        "ping" => Ok(step.line_with("3 packets received")?.to_owned()),
        "discover" => {
            ensure!(step.code == Some(0), "failed");
            step.line_with("current discovery subsystem")?;
            step.line_with(&format!("subnqn:  {SUBSYSTEM}"))?;
            Ok(step.line_with("Number of Records")?.trim().to_owned())
        }
        "connect" => Ok(step.line_with("controller live at")?.to_owned()),
        "refused" => {
            // With "do not retry".
            step.line_with("LBA Out of Range: The command references an LBA that exceeds the size of the namespace(0x4080)")?;
            step.line_with("Compare Failure")?;
            let opcodes = step.lines_with("Invalid Command Opcode").len();
            ensure!(opcodes == 2, "{opcodes} opcodes were refused");
            Ok("LBA Out of Range, Compare Failure, Invalid Command Opcode".to_owned())
        }
        _ => {
            ensure!(step.code == Some(0), "failed");
            let shown = SHOWN.iter().find(|(of, _)| *of == name);
            let line = match shown {
                Some((_, words)) => {
                    let lines = words.iter().map(|words| step.line_with(words));
                    lines.collect::<Result<Vec<_>>>()?.join("; ")
                }
                None => step.said.last().cloned().unwrap_or_default(),
            };
            Ok(line.split_whitespace().collect::<Vec<_>>().join(" "))
        }
    }
}

/// The name of the subsystem, in the script as well.
const SUBSYSTEM: &str = "nqn.2026-11.example:disk";

/// What steps have to say, of which all is shown.
const SHOWN: [(&str, &[&str]); 18] = [
    ("faulty", &["every block is what was written"]),
    ("away", &["every block is what was written", "live"]),
    ("killed", &["every block is what was written", "live"]),
    ("gives-up", &["given up", "controller live at"]),
    ("raw-again", &["equal"]),
    (
        "id-ctrl",
        &["cntrltype : 1", "mdts      : 5", "sgls      : 0x100005"],
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

/// The kernel complains of nothing, its NVMe driver neither.
fn kernel(step: &Step) -> Result<String> {
    /// What the driver says where something is wrong.
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
