//! The suite on `vfio-pci`: our driver through the kernel's own VFIO.
//!
//! The programs are the ones `cargo build` and `cargo test` make. The tests of the data path are the very programs that
//! run on `sim:`; the environment tells them which functions to open. Which tests run, and which do not for what
//! reason, is in the script (`guest/vfio`).

mod judge;

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::image::{Image, Program};
use super::{PATIENCE, Slots, Suite};
use crate::shell;

/// What the guest runs.
const SCRIPT: &str = include_str!("guest/vfio");

/// The suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "vfio",
            modules: &["vfio", "vfio_iommu_type1", "vfio-pci"],
            packages: &[],
            script: SCRIPT,
            variables: &["WAKEUP_WAITS"],
        },
        slots: Slots::Linked,
        memory: "1G",
        patience: PATIENCE,
        // Frames fly for a while, so that who waits has to sleep.
        serve: &["--faults", "delay=100us"],
        programs: |_| programs(),
        shown: &[],
        judge: judge::judge,
    }
}

/// The programs of tests that the script names: `tests NAME SECONDS TEST...`.
fn tested() -> impl Iterator<Item = &'static str> {
    SCRIPT.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("tests")).then(|| words.next())?
    })
}

/// datctl, the demo, and the tests as test-NAME.
fn programs() -> Result<Vec<Program>> {
    let mut build = super::cargo_test();
    build.args(["--message-format", "json-render-diagnostics"]);
    for name in tested() {
        build.args(["--test", name]);
    }
    let mut programs = vec![
        ("datctl".to_owned(), super::datctl()?),
        super::example("demo")?,
    ];
    for line in shell::capture(build)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's message")?;
        let (Some(path), Some(name)) = (
            message["executable"].as_str(),
            message["target"]["name"].as_str(),
        ) else {
            continue;
        };
        let source = Path::new(message["target"]["src_path"].as_str().unwrap_or_default());
        let suites = ["udapl/tests", "datctl/tests"].map(|folder| shell::root().join(folder));
        if suites.iter().any(|folder| source.starts_with(folder)) {
            programs.push((format!("test-{name}"), path.into()));
        }
    }
    for name in tested() {
        let name = format!("test-{name}");
        ensure!(
            programs.iter().any(|(program, _)| *program == name),
            "cargo test --no-run built no {name}"
        );
    }
    Ok(programs)
}
