//! The suite on `vfio-pci`: our driver through the kernel's own VFIO.

use anyhow::{Result, bail};

use super::Suite;
use super::image::{Image, Program};
use super::report::Step;
use crate::shell;

/// The suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "vfio",
            modules: &["vfio", "vfio_iommu_type1", "vfio-pci"],
            packages: &[],
            script: include_str!("guest/vfio"),
            kernel_parameters: "",
        },
        serve: &[],
        programs,
        judge,
    }
}

fn programs() -> Result<Vec<Program>> {
    shell::run(shell::cargo(&[
        "build",
        "--quiet",
        "--package",
        "dat",
        "--bin",
        "datctl",
    ]))?;
    let built = shell::target_directory()?.join("debug");
    Ok(vec![("datctl".to_owned(), built.join("datctl"))])
}

/// Figures of a step.
fn judge(step: &Step) -> Result<String> {
    let last = step.said.last().cloned().unwrap_or_default();
    if step.said.is_empty() {
        bail!("it said nothing");
    }
    Ok(last)
}
