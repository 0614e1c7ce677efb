//! The filter of the log, from the key `log` of the configuration or from `RUST_LOG`.
//!
//! tracing-subscriber takes an unknown level for a target, and a daemon with such a filter logs nothing at all. So each
//! directive is checked first: its level must exist. In the key `log`, its target must also be a part of this program.

use tracing_subscriber::EnvFilter;

/// Description of the expected form, for error messages.
const FORM: &str =
    "log is error, warn, info, debug, trace or off, or TARGET=LEVEL, with commas between several";
/// Names of the levels; the numbers are those of tracing.
const LEVELS: [&str; 12] = [
    "off", "error", "warn", "info", "debug", "trace", "0", "1", "2", "3", "4", "5",
];
/// Crates of this program that write to the log.
const TARGETS: [&str; 11] = [
    "control",
    "dat_core",
    "dat_mlx",
    "driver",
    "hw_mlx",
    "hw_nvme",
    "hw_sim",
    "hw_sim_host",
    "nvmeof",
    "nvmeofd",
    "udapl",
];

/// Parses the value of the key `log` to a filter.
///
/// # Errors
/// The mistake, and the expected form.
pub fn log_filter(text: &str) -> Result<EnvFilter, String> {
    filter(text, is_known)
}

/// Parses the value of `RUST_LOG` to a filter. The value may name targets of other programs.
///
/// # Errors
/// The mistake, and the expected form.
pub fn log_filter_of_environment(text: &str) -> Result<EnvFilter, String> {
    filter(text, |_| true)
}

fn filter(text: &str, is_known: impl Fn(&str) -> bool) -> Result<EnvFilter, String> {
    for directive in directives(text) {
        let (target, level) = match directive.rsplit_once('=') {
            // An `=` among the fields of a span does not set a level.
            Some((target, level)) if !level.contains(['}', ']']) => (Some(target), level),
            _ if directive.contains('[') => continue,
            _ => (None, directive),
        };
        let level = level.trim().to_ascii_lowercase();
        if !LEVELS.contains(&level.as_str()) {
            return Err(format!("{directive:?}: {FORM}"));
        }
        let target = target.and_then(|target| target.split('[').next());
        if let Some(target) = target.map(str::trim).filter(|target| !target.is_empty())
            && !is_known(target)
        {
            return Err(format!(
                "{directive:?}: nothing here logs as {target:?}; there are {}",
                TARGETS.join(", ")
            ));
        }
    }
    // The directives are joined without the spaces that may follow the commas.
    let text = directives(text).collect::<Vec<_>>().join(",");
    EnvFilter::try_new(text).map_err(|error| format!("{error}: {FORM}"))
}

/// Returns the directives, which are separated by commas. A comma between the fields of a span does not separate.
fn directives(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    let parts = text.split(move |letter| {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

/// Returns whether a target matches a crate of this program. A target of a filter is a prefix of the names it matches.
fn is_known(target: &str) -> bool {
    TARGETS.iter().any(|one| {
        let rest = target.strip_prefix(one);
        one.starts_with(target) || rest.is_some_and(|rest| rest.starts_with("::"))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn a_filter_has_levels_that_there_are_and_targets_that_log() {
        for good in [
            "info",
            "WARN",
            "off",
            "3",
            "",
            "warn,hw_mlx=trace",
            "nvmeof::serve=debug, udapl=info",
            "hw_=debug",
            "info,[connect{ep=3}]=debug",
            "dat_core[connect{ep=3}]=trace",
            "info,[connect]",
        ] {
            log_filter(good).expect(good);
        }
        for (wrong, part) in [
            (
                "lots",
                "\"lots\": log is error, warn, info, debug, trace or off, or TARGET=LEVEL",
            ),
            ("hw_mlx", "\"hw_mlx\": log is error"),
            ("info,hw_mlx=lots", "\"hw_mlx=lots\": log is error"),
            (
                "hw_mxl=debug",
                "nothing here logs as \"hw_mxl\"; there are control, dat_core",
            ),
            ("udaplx=debug", "nothing here logs as \"udaplx\""),
        ] {
            let is_of_target = part.starts_with("nothing");
            let of_environment = log_filter_of_environment(wrong);
            assert_eq!(of_environment.is_ok(), is_of_target, "{wrong}");
            let said = log_filter(wrong).expect_err(wrong);
            assert!(said.contains(part), "{wrong}: {said}");
        }
    }

    /// `TARGETS` has exactly the crates of the daemon that depend on tracing, according to the lock file.
    #[test]
    fn the_targets_are_the_crates_of_the_daemon_that_log() {
        let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock");
        let lock = std::fs::read_to_string(lock).expect("the lock file");
        let lock: toml::Table = toml::from_str(&lock).expect("TOML");
        let mut needs = BTreeMap::new();
        for package in lock["package"].as_array().expect("packages") {
            let of = package.get("dependencies").and_then(toml::Value::as_array);
            let of = of.into_iter().flatten().filter_map(toml::Value::as_str);
            let name = package["name"].as_str().expect("a name");
            // If a crate has two versions, the lock file names it with its version.
            let names = of.filter_map(|one| one.split(' ').next());
            needs
                .entry(name)
                .or_insert_with(BTreeSet::new)
                .extend(names);
        }
        let (mut left, mut seen) = (vec!["nvmeof"], BTreeSet::new());
        while let Some(name) = left.pop() {
            if seen.insert(name) {
                left.extend(needs.get(name).into_iter().flatten());
            }
        }
        // loom is only used by tests.
        let ours = seen.into_iter().filter(|name| {
            let logs = needs.get(name).is_some_and(|of| of.contains("tracing"));
            logs && !name.starts_with("tracing") && *name != "loom"
        });
        let crates: BTreeSet<String> = ours
            .map(|name| match name {
                "udapl-control" => "control".to_owned(),
                name => name.replace('-', "_"),
            })
            .chain(["nvmeofd".to_owned()])
            .collect();
        assert_eq!(crates, TARGETS.map(str::to_owned).into());
    }
}
