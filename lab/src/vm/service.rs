//! nvmeofd as a service. The guest's first process is systemd, as Debian ships it. The target runs as the unit of
//! `nvmeof/deploy`, on a function bound to `vfio-pci`, with the package's udev rule. The host is the guest's own
//! kernel, at the other end of the link.

use anyhow::{Context, Result, ensure};

use super::functions::{STEER_SOCKET, Slots};
use super::image::{Image, Program};
use super::machine::Machine;
use super::report::Step;
use super::suite::{PATIENCE, Ssd, Suite};
use super::{build, c, nvme, stock, vfio};

/// Actions that `guest/service-probe` tries inside the unit and that must succeed.
const POSSIBLE: [&str; 8] = [
    "write /etc/nvmeofd",
    "write the runtime directory",
    "write /tmp",
    "open /dev/null",
    "the metrics",
    "bind to a processor",
    "pin memory without a limit",
    "65536 descriptors",
];
/// Number of actions of `guest/service-probe` that the unit's sandbox must refuse.
const REFUSED: usize = 14;

/// Expected texts in the output of each step. The lines with them are its figures.
const SHOWN: [(&str, &[&str]); 8] = [
    ("booted", &["systemd is the first process"]),
    ("prepared", &["root:udapl 660"]),
    ("mistaken", &["unknown field"]),
    ("started", &["nvmeofd:nvmeofd 600", "active, user nvmeofd"]),
    ("connected", &["equal", "nvmeof_namespace_writes_total"]),
    (
        "reloaded",
        &["a namespace came", "a mistake changed nothing", "it went"],
    ),
    ("restarted", &["killed: another", "hung: another", "live"]),
    (
        "drained",
        &[
            "inactive, success, status 0",
            "every block is what was written",
        ],
    ),
];

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "service",
            modules: &[
                "ib_uverbs",
                "rdma_ucm",
                "mlx5_core",
                "mlx5_ib",
                "crc32c_generic?",
                "crc32c_intel?",
                "vfio",
                "vfio_iommu_type1",
                "vfio-pci",
                "nvme_rdma",
            ],
            packages: &[
                "systemd",
                "udev",
                "bash",
                "coreutils",
                "procps",
                "util-linux",
                "iproute2",
                "nvme-cli",
                "fio",
            ],
            script: include_str!("guest/service"),
            variables: &["RESTARTS"],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "2G",
        patience: PATIENCE,
        serve: &["--profile", "roce", "--steer", STEER_SOCKET],
        beside: None,
        lost: None,
        programs,
        shown: &[],
        judge,
    }
}

/// Returns nvmeofd, and a folder with its unit, the udev rule, and the scripts of the steps.
fn programs(machine: &Machine) -> Result<Vec<Program>> {
    let folder = machine.path("service");
    std::fs::create_dir_all(&folder)?;
    for (name, text) in [
        (
            "nvmeofd.service",
            include_str!("../../../nvmeof/deploy/nvmeofd.service"),
        ),
        (
            "udapl.rules",
            include_str!("../../../packaging/udapl.rules"),
        ),
        ("steps", include_str!("guest/service-steps")),
        ("probe", include_str!("guest/service-probe")),
    ] {
        std::fs::write(folder.join(name), text)?;
    }
    let mut programs = build::test_programs(&["dat"])?;
    programs.extend([
        ("nvmeofd".to_owned(), build::nvmeofd()?),
        ("service".to_owned(), folder),
        c::alone(machine, "handover", include_str!("guest/handover.c"))?,
    ]);
    Ok(programs)
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "oops" => return nvme::oops(step),
        "functions" => return stock::judge(step),
        "sandboxed" => return sandboxed(step),
        "stored" => return stored(step),
        "parked" => return vfio::judge::parked(step),
        "kept" => return kept(step),
        _ => {}
    }
    let shown = SHOWN.iter().find(|(of, _)| *of == step.name);
    let Some((_, words)) = shown else {
        return Ok(step.said.last().context("nothing was said")?.clone());
    };
    let lines = words.iter().map(|words| step.line_with(words));
    Ok(lines.collect::<Result<Vec<_>>>()?.join("; "))
}

/// Checks that systemd's store kept the descriptors of a function, and that the next process used the function.
fn stored(step: &Step) -> Result<String> {
    step.line_with("5 descriptors are stored")?;
    step.line_with("0 descriptors are stored")?;
    vfio::judge::handover(step)
}

/// Checks that the host has not noticed restarts of the target but by the time that they took.
fn kept(step: &Step) -> Result<String> {
    step.line_with("0 lines of the host are of NVMe")?;
    let restarts = step.line_with("systemctl restart nvmeofd: ")?;
    let count = restarts.split(' ').nth(3).unwrap_or_default();
    // One more came before the host was there.
    let handed_over = step.line_with("times handed over")?;
    let times = handed_over.split(' ').next().unwrap_or_default();
    let (count, times): (u64, u64) = (count.parse()?, times.parse()?);
    ensure!(times > count, "{handed_over}, {restarts}");
    let errors = step.lines_with("err=");
    ensure!(
        errors.len() == 2 && errors.iter().all(|line| line.contains("err= 0")),
        "{errors:?}"
    );
    // fio reads only what it verifies.
    let reads = step.lines_with("read: IOPS=").len();
    ensure!(reads == 2, "fio has verified in {reads} of 2 runs");
    let resets = step.line_with("resets: ")?;
    let numbers: Vec<&str> = resets
        .split(' ')
        .filter(|word| word.parse::<u64>().is_ok())
        .collect();
    ensure!(
        matches!(numbers[..], [before, after] if before == after),
        "{resets}"
    );
    Ok(step.lines_with("stood still").join("; "))
}

/// Checks that the process has no capabilities, cannot gain any, and has a system call filter. Checks that exactly the
/// expected actions succeeded.
fn sandboxed(step: &Step) -> Result<String> {
    let process = step.line_with("CapEff:")?;
    for what in [
        "CapEff: 0000000000000000",
        "CapBnd: 0000000000000000",
        "NoNewPrivs: 1",
        "Seccomp: 2",
    ] {
        ensure!(process.contains(what), "{what} is not in {process}");
    }
    step.line_with("/tmp is its own")?;
    for line in step.lines_with("- possible: ") {
        ensure!(
            POSSIBLE.iter().any(|what| line.ends_with(what)),
            "{line}, and should not be"
        );
    }
    for what in POSSIBLE {
        step.line_with(&format!("- possible: {what}"))?;
    }
    let refused = step.lines_with("- refused: ").len();
    ensure!(refused == REFUSED, "{refused} of {REFUSED} were refused");
    Ok(format!("{process}; {refused} things refused"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_unit_should_not_allow_is_noticed() {
        let mut said = vec![
            "CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1 Seccomp: 2".to_owned(),
            "- /tmp is its own".to_owned(),
        ];
        said.extend(POSSIBLE.map(|what| format!("- possible: {what}")));
        said.extend((0..REFUSED).map(|number| format!("- refused: {number}")));
        let mut step = Step::succeeded("sandboxed", &[]);
        step.said = said;
        assert!(judge(&step).is_ok());
        step.said.push("- possible: mount".to_owned());
        assert!(judge(&step).is_err());
    }
}
