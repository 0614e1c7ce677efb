//! The suite of the simulated SSD: a stock kernel's NVMe driver, `nvme-cli` and fio on `nvmeofd ssd`.

use std::process::Command;

use anyhow::{Result, ensure};

use super::beside::ssd;
use super::functions::Slots;
use super::image::Image;
use super::machine::Machine;
use super::nvme;
use super::report::Step;
use super::suite::{PATIENCE, Ssd, Suite};

/// Socket of the SSD, and the files of its namespaces, in the folder of the run.
const SOCKET: &str = "ssd.sock";
const DISKS: [&str; 2] = ["ssd-1.img", "ssd-2.img"];

/// Steps that the short form of the suite runs.
pub const SHORT: [&str; 5] = ["probe", "id-ctrl", "raw", "refused", "kernel"];

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "ssd",
            modules: &["nvme", "crc32c_generic?", "crc32c_intel?", "ext4"],
            packages: &["nvme-cli", "e2fsprogs", "fio", "util-linux"],
            script: include_str!("guest/ssd"),
            variables: &[],
        },
        slots: Slots::None,
        ssd: Ssd::Served(SOCKET),
        memory: "1G",
        patience: PATIENCE,
        serve: &[],
        beside: Some(served),
        lost: None,
        programs: |_| Ok(Vec::new()),
        shown: &[],
        judge,
    }
}

/// Returns the command that serves the SSD.
fn served(machine: &Machine) -> Result<Command> {
    ssd(machine, SOCKET, &DISKS)
}

/// Expected texts in the output of each step.
const SHOWN: [(&str, &[&str]); 10] = [
    ("probe", &["live", "nvme0n1", "nvme0n2"]),
    (
        "id-ctrl",
        &["cntrltype : 1", "mdts      : 5", "sgls      : 0"],
    ),
    ("id-ns", &["Data Size: 512 bytes"]),
    ("smart-log", &["available_spare"]),
    ("raw", &["written 32 MiB", "read 32 MiB", "equal"]),
    ("ext4", &["read and compared 32 MiB", "equal"]),
    ("verify", &["verified"]),
    ("trim", &["zeroes"]),
    ("reset", &["live", "equal"]),
    ("rebind", &["live", "equal"]),
];

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "kernel" => nvme::kernel(step),
        "oops" => nvme::oops(step),
        "functions" => Ok(String::new()),
        "refused" => {
            for status in [
                "LBA Out of Range",
                "Compare Failure",
                "Invalid Command Opcode",
            ] {
                step.line_with(status)?;
            }
            Ok("refused, each with its status".to_owned())
        }
        name => {
            ensure!(step.code == Some(0), "failed");
            let wanted = SHOWN.iter().find(|(of, _)| *of == name);
            let texts = wanted.map_or(&[][..], |(_, texts)| *texts);
            let lines: Result<Vec<&str>> = texts.iter().map(|text| step.line_with(text)).collect();
            Ok(lines?.join("\n"))
        }
    }
}
