//! Our NVMe over RDMA target and the kernel's, side by side in one guest.
//!
//! Host and target are two functions on one link. The kernel's target first uses the target's function, then ours uses
//! the same function through vfio-pci. The host and its load are the same. The processor is emulated for both, so a
//! figure is meaningful only in comparison with that of the other target.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::image::{Image, Program};
use super::machine::Machine;
use super::report::Step;
use super::{PATIENCE, Slots, Suite, stock};
use crate::shell;

/// Number of loads measured with each target.
const LOADS: usize = 6;

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "nvme-compare",
            modules: &[
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
            ],
            packages: &["iproute2", "nvme-cli", "fio"],
            script: concat!(
                include_str!("guest/roce"),
                include_str!("guest/nvme-compare")
            ),
            variables: &[],
        },
        slots: Slots::Linked,
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
fn programs(_: &Machine) -> Result<Vec<Program>> {
    let build = ["build", "--release", "--workspace", "--bin", "nvmeofd"];
    shell::run(shell::cargo(&build))?;
    let path: PathBuf = shell::target_directory()?.join("release/nvmeofd");
    Ok(vec![("nvmeofd".to_owned(), path)])
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "nvmet-measured" | "ours-measured" => {
            let figures = step.lines_with(" IOPS, ");
            ensure!(figures.len() == LOADS, "{} of {LOADS} loads", figures.len());
            Ok(figures.join("\n"))
        }
        "functions" => stock::judge(step),
        _ => {
            let last = step.said.last().context("nothing was said")?;
            Ok(last.split_whitespace().collect::<Vec<_>>().join(" "))
        }
    }
}
