//! `cargo xtask campaign`: simulated runs of adapters, traffic and faults, each from a seed, and the invariants checked
//! in them.
//!
//! The runs are in the crate `campaign`; `cargo xtask campaign --help` lists its options. Long campaigns use profile
//! `release`.

use std::path::Path;

use anyhow::Result;

use crate::shell;

/// Number of seeds above which the campaign uses profile `release`. Other campaigns use profile `test`.
const LONG: u64 = 1_000;

fn is_long(arguments: &[String]) -> bool {
    let value = |name: &str| {
        arguments.iter().enumerate().find_map(|(at, argument)| {
            let rest = argument.strip_prefix(name)?;
            match rest.strip_prefix('=') {
                Some(value) => Some(value),
                None if rest.is_empty() => arguments.get(at + 1).map(String::as_str),
                None => None,
            }
        })
    };
    let seeds = value("--seeds").and_then(|seeds| seeds.parse::<u64>().ok());
    seeds.is_some_and(|seeds| seeds > LONG) || value("--hours").is_some()
}

/// Runs the campaign with these arguments.
pub fn run(arguments: &[String]) -> Result<()> {
    let profile = if is_long(arguments) {
        "--release"
    } else {
        shell::TESTED
    };
    let mut command = shell::cargo(&["run", profile, "--bin", "campaign", "--"]);
    command.args(arguments);
    shell::run(command)
}

/// Captures the packets of a simulated run without faults.
pub fn capture(path: &Path) -> Result<()> {
    let arguments = [
        "--quiet",
        "--bin",
        "campaign",
        "--",
        "--seed",
        "1",
        "--features",
        "none",
        "--pcap",
    ];
    let mut command = shell::cargo(&["run", shell::TESTED]);
    command.args(arguments).arg(path);
    shell::capture(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_night_runs_optimised_and_a_look_does_not() {
        let long = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            is_long(&words)
        };
        assert!(!long(""));
        assert!(!long("--seeds 200 --seed 4"));
        assert!(!long("--seeds"));
        assert!(long("--seeds 100000"));
        assert!(!long("--seeds 1000"));
        assert!(long("--first 3 --seeds=1001"));
        assert!(long("--hours 0.5"));
    }
}
