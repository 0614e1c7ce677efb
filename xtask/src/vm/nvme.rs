//! The suite of the NVMe over RDMA target: a process of the host's on a simulated function, and a stock kernel's
//! initiator at the other end of its wire.

use std::process::Command;

use anyhow::{Result, ensure};

use super::image::Image;
use super::machine::Machine;
use super::report::Step;
use super::{PATIENCE, Slots, Suite, stock};

/// The wire, and the disk, in the folder of the run.
const WIRE: &str = "wire.sock";
const DISK: &str = "disk.img";
/// Bytes of the disk: XFS wants 300 MiB. It is sparse.
const BYTES: u64 = 320 << 20;

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
            packages: &["iproute2", "nvme-cli", "e2fsprogs", "xfsprogs", "fio", "util-linux"],
            script: include_str!("guest/nvme"),
            variables: &[],
        },
        slots: Slots::Wired,
        memory: "2G",
        patience: PATIENCE,
        serve: &["--profile", "roce", "--link", "unix:wire.sock", "--pcap", "nvme.pcapng"],
        beside: Some(target),
        programs: |_| Ok(Vec::new()),
        shown: &[],
        judge,
    }
}

/// The target.
fn target(machine: &Machine) -> Result<Command> {
    let (_, program) = super::example("target")?;
    let run = machine.path("run");
    let disk = std::fs::File::create(run.join(DISK))?;
    disk.set_len(BYTES)?;
    let mut command = Command::new(program);
    command
        .current_dir(&run)
        .arg(format!("sim:target,mac=02:00:00:00:0f:01,link=unix:{WIRE},address=10.0.0.2/24"))
        .arg(DISK);
    Ok(command)
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "kernel" | "functions" => stock::judge(step),
        _ => {
            ensure!(step.code == Some(0), "failed");
            Ok(step.said.last().cloned().unwrap_or_default().trim().to_owned())
        }
    }
}
