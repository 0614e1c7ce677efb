//! Runs blktests' group `nvme` in a stock kernel against our target: <https://github.com/linux-blktests/blktests>.
//!
//! The suite is fetched from its repository at one commit, and is not part of this project. The suite runs a program
//! that sets up the target (`guest/blktests-target`). Some cases need settings that this program does not have: they
//! call functions for the kernel's target, which `guest/blktests-functions` replaces. A case that does not pass is
//! listed here with its reason. So a new failure is an error, and a failure that no longer occurs is noticed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::functions::Slots;
use super::image::{Image, Program};
use super::machine::Machine;
use super::report::Step;
use super::suite::{Ssd, Suite};
use super::{beside, build, nvme, stock};
use crate::shell;

/// URL of the suite's repository. `BLKTESTS` may name another repository that has the commit.
const REPOSITORY: &str = "https://github.com/linux-blktests/blktests";
/// Commit of the suite, from August 2026.
const COMMIT: &str = "a608cb56341e0f4cacf473f5e0ac6052f1f12de9";
/// Path of the target's configuration in the folder of the run.
const SETTINGS: &str = "blktests.toml";

/// Cases that the suite does not run, or that do not pass, each with the reason.
const EXPECTED: [(&str, &str); 26] = [
    ("002", "of the loop transport"),
    ("016", "of the loop transport"),
    ("017", "of the loop transport"),
    ("032", "of a PCI controller"),
    (
        "033",
        "of a controller passed through by the kernel's target",
    ),
    (
        "034",
        "of a controller passed through by the kernel's target",
    ),
    (
        "035",
        "of a controller passed through by the kernel's target",
    ),
    (
        "036",
        "of a controller passed through by the kernel's target",
    ),
    (
        "037",
        "of a controller passed through by the kernel's target",
    ),
    ("039", "of a kernel with fault injection"),
    (
        "046",
        "fails: it reads 4 KiB as one block, and a block has 512 bytes here",
    ),
    (
        "050",
        "of a PCI controller, and a kernel with fault injection",
    ),
    (
        "051",
        "it writes to the configfs of the kernel's target itself",
    ),
    ("052", "of the loop transport"),
    ("055", "of the loop transport"),
    ("056", "of TCP"),
    ("059", "of atomic writes, which the namespace does not have"),
    ("060", "of the kernel's target in its debugfs"),
    ("062", "of TCP"),
    ("063", "of TCP"),
    ("064", "of metadata, which the namespace does not have"),
    ("065", "of scsi_debug behind the kernel's target"),
    ("066", "of a self-encrypting disk"),
    (
        "067",
        "fails: its program is not built, since that takes liburing's headers",
    ),
    ("068", "fails: of a younger kernel (delayed removal)"),
    ("069", "of a kernel with KASAN"),
];

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "blktests",
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
                "loop",
                "xfs",
                "nvme_rdma",
                // blktests loads these modules for any target.
                "nvmet_rdma",
                "rdma_rxe",
            ],
            packages: &[
                "bash",
                "coreutils",
                "findutils",
                "sed",
                "grep",
                "gawk",
                "diffutils",
                "util-linux",
                "bsdextrautils",
                "mount",
                "uuid-runtime",
                "libc-bin",
                "udev",
                "kmod",
                "procps",
                "gzip",
                "iproute2",
                "rdma-core",
                "nvme-cli",
                "xfsprogs",
                "fio",
            ],
            script: concat!(
                include_str!("guest/nvme-ends"),
                include_str!("guest/blktests")
            ),
            variables: &[],
        },
        slots: Slots::Wired,
        ssd: Ssd::None,
        memory: "3G",
        patience: Duration::from_secs(3600),
        serve: &["--profile", "roce", "--link", "unix:wire%.sock"],
        beside: Some(target),
        lost: None,
        programs,
        shown: &[],
        judge,
    }
}

/// Fetches blktests at the commit, and returns a folder with the suite and the files that replace parts of it.
fn programs(machine: &Machine) -> Result<Vec<Program>> {
    let repository = std::env::var("BLKTESTS").unwrap_or_else(|_| REPOSITORY.to_owned());
    shell::run(machine.script(&format!(
        "test -d blktests.git && git -C blktests.git cat-file -e {COMMIT} ||
             {{ rm -rf blktests.git; git clone --quiet --bare '{repository}' blktests.git; }}
         rm -rf blktests; mkdir -p blktests/suite
         git -C blktests.git archive {COMMIT} | tar -x -C blktests/suite
         cp {}/kernel/boot/config-{} blktests/kernel-config",
        machine.folder(),
        machine.unpacked.version
    )))?;
    let folder = machine.path("blktests");
    std::fs::write(folder.join("target"), include_str!("guest/blktests-target"))?;
    let functions = include_str!("guest/blktests-functions");
    std::fs::write(folder.join("functions"), functions)?;
    Ok(vec![("blktests".to_owned(), folder)])
}

/// Returns the command of the target, which has six ports on two adapters.
fn target(machine: &Machine) -> Result<Command> {
    let program: PathBuf = build::nvmeofd()?;
    let run = machine.path("run");
    let mut settings = format!("[control]\nsocket = \"{}\"\n", beside::CONTROL);
    for port in 0..6 {
        let (adapter, service) = (port % 2, 4420 + port / 2);
        settings += &format!(
            "[[port]]\nid = {}\nservice = {service}\nadapter = \"{}\"\nmax_transfer = \"1MiB\"\n",
            port + 1,
            nvme::adapter(["target", "second"][adapter], adapter)
        );
    }
    settings += &format!(
        "[[subsystem]]\nnqn = \"{}\"\nany_host = true\nnamespace = [{{ memory = \"64MiB\" }}]\n",
        nvme::SUBSYSTEM
    );
    std::fs::write(run.join(SETTINGS), settings)?;
    let mut command = Command::new(program);
    command
        .current_dir(&run)
        .env("RUST_LOG", "info")
        .arg(SETTINGS);
    Ok(command)
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "oops" => return nvme::oops(step),
        "functions" => return stock::judge(step),
        "probe" | "prepare" => return Ok(step.said.join(", ")),
        _ => {}
    }
    // A case with several variants prints several result lines, and one may be incomplete.
    let ends = ["[passed]", "[failed]", "[not run]"];
    let ended: Vec<&str> = ends
        .into_iter()
        .filter(|end| !step.lines_with(end).is_empty())
        .collect();
    let expected = EXPECTED.iter().find(|(case, _)| *case == step.name);
    match (&ended[..], expected) {
        (["[passed]"], None) => Ok("passed".to_owned()),
        (["[passed]"], Some((_, why))) => bail!("passed, which was not expected: {why}"),
        ([], _) => bail!("check says nothing of it"),
        (_, Some((_, why))) => {
            ensure!(ended != ["[failed]"] || why.starts_with("fails"), "failed");
            Ok(format!(
                "{}: {why}",
                ended.join(" ").trim_matches(['[', ']'])
            ))
        }
        (["[not run]"], None) => {
            let at = step.said.iter().position(|line| line.contains("[not run]"));
            let reasons = step
                .said
                .get(at.context("a line")? + 1..)
                .unwrap_or_default();
            let reasons: Vec<&str> = reasons.iter().map(|line| line.trim()).collect();
            bail!("not run: {}", reasons.join("; "))
        }
        (_, None) => bail!("{}", ended.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_ends_otherwise_than_expected_fails() {
        let said = |case: &str, lines: &[&str]| judge(&Step::succeeded(case, lines));
        assert!(said("010", &["nvme/010 [passed]"]).is_ok());
        assert!(said("010", &["nvme/010 [failed]"]).is_err());
        assert!(said("010", &["nvme/010 [not run]", "    no fio"]).is_err());
        assert!(said("010", &[]).is_err());
        assert!(said("002", &["nvme/002 [not run]"]).is_ok());
        assert!(said("002", &["nvme/002 [failed]"]).is_err());
        assert!(said("046", &["nvme/046 [failed]"]).is_ok());
        assert!(said("046", &["nvme/046 [passed]"]).is_err());
    }
}
