//! Reads logs, and shows their ends after a failure.

use std::path::Path;

use anyhow::{Context, Result};

/// Number of the last lines of a step or of a log that are shown after a failure.
const TAIL: usize = 40;

/// Returns the lines of a log.
pub fn lines_of(log: &Path) -> Result<Vec<String>> {
    let bytes = std::fs::read(log).with_context(|| log.display().to_string())?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(str::to_owned).collect())
}

/// Returns the last lines.
pub fn tail(lines: &[String]) -> &[String] {
    &lines[lines.len().saturating_sub(TAIL)..]
}

/// Prints the last lines of a log.
pub fn show_tail(log: &Path) {
    let lines = lines_of(log).unwrap_or_default();
    println!("--- end of {}", log.display());
    for line in tail(&lines) {
        println!("    {}", line.trim_end());
    }
}
