//! Our NVMe over RDMA target and the kernel's, side by side in one guest.
//!
//! Host and target are two functions on one link. The kernel's target first uses the target's function, then ours uses
//! the same function through vfio-pci. The host and its load are the same. The processor is emulated for both, so a
//! figure is meaningful only in comparison with that of the other target.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::functions::Slots;
use super::image::{Image, Program};
use super::machine::Machine;
use super::report::Step;
use super::stock;
use super::suite::{PATIENCE, Ssd, Suite};
use crate::shell;

/// Kernel modules and packages of a guest that has both targets.
pub(super) const MODULES: &[&str] = &[
    "ib_uverbs",
    "rdma_ucm",
    "mlx5_core",
    "mlx5_ib",
    "vfio",
    "vfio_iommu_type1",
    "vfio-pci",
    "null_blk",
    "nvme_rdma",
    "nvmet_rdma",
];
pub(super) const PACKAGES: &[&str] = &["iproute2", "nvme-cli", "fio"];

/// Number of loads measured with each target.
const LOADS: usize = 6;

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "nvme-compare",
            modules: MODULES,
            packages: PACKAGES,
            script: concat!(
                include_str!("guest/roce"),
                include_str!("guest/nvme-targets"),
                include_str!("guest/nvme-compare")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
        ssd: Ssd::None,
        memory: "2G",
        patience: PATIENCE,
        serve: &["--profile", "roce"],
        beside: None,
        lost: None,
        programs,
        shown: &[],
        judge,
    }
}

/// Builds our target with optimisation, since the kernel is optimised, too.
pub(super) fn programs(_: &Machine) -> Result<Vec<Program>> {
    let build = ["build", "--release", "--workspace", "--bin", "nvmeofd"];
    shell::run(shell::cargo(&build))?;
    let path: PathBuf = shell::target_directory()?.join("release/nvmeofd");
    Ok(vec![("nvmeofd".to_owned(), path)])
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "nvmet-measured" | "ours-measured" => figures(step, LOADS),
        "functions" => stock::judge(step),
        _ => last_words(step),
    }
}

/// Returns the figures of this many loads, each of which has moved something.
pub(super) fn figures(step: &Step, loads: usize) -> Result<String> {
    let figures = step.lines_with(" IOPS, ");
    ensure!(figures.len() == loads, "{} of {loads} loads", figures.len());
    let idle = step.lines_with(": 0 IOPS, ");
    ensure!(idle.is_empty(), "{}", idle.join("\n"));
    Ok(figures.join("\n"))
}

/// Returns the last line of a step without figures.
pub(super) fn last_words(step: &Step) -> Result<String> {
    let last = step.said.last().context("nothing was said")?;
    Ok(last.split_whitespace().collect::<Vec<_>>().join(" "))
}
