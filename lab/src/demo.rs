//! Runs the example `demo` of crate `udapl` with a small file.

use std::path::Path;

use anyhow::Result;

use crate::shell;

/// Runs the demo with a small file of the repository and captures its packets for the checks.
pub fn small(capture: &Path) -> Result<()> {
    let file = shell::root().join("Cargo.lock");
    let [file, capture] = [&file, capture].map(|path| path.to_string_lossy().into_owned());
    let pcap = format!("--pcap={capture}");
    let arguments = [
        "run",
        shell::TESTED,
        "--example",
        "demo",
        "--",
        &file,
        "--chunk=10000",
        &pcap,
    ];
    shell::run(shell::cargo(&arguments))
}
