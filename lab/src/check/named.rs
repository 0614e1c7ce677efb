//! Finds the test targets that hold tests of a name, so that one test is built and run without the others.
//!
//! The names are those of the test functions in the sources. A name with a module (`lossy::dtos`) also requires that
//! the file's path or text names the module. Too many targets cost time only: cargo filters by the name once more.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::shell;

/// Output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
    src_path: PathBuf,
    test: bool,
}

/// A test target: the package and the arguments of cargo that select the target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Selected {
    package: String,
    target: Vec<String>,
}

impl Selected {
    /// Returns the arguments of cargo that run the tests whose names contain `name`.
    pub(super) fn arguments<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        let mut arguments = vec!["test", "--package", &self.package];
        arguments.extend(self.target.iter().map(String::as_str));
        arguments.extend([name, "--", "--show-output"]);
        arguments
    }
}

/// Returns the targets with tests whose names contain `name`.
///
/// # Errors
/// No source has such a test.
pub(super) fn targets(name: &str) -> Result<Vec<Selected>> {
    let metadata = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata = shell::capture(shell::cargo(&metadata))?;
    let metadata: Metadata = serde_json::from_str(&metadata)?;
    let mut found = Vec::new();
    for package in &metadata.packages {
        for target in package.targets.iter().filter(|target| target.test) {
            let Some(arguments) = arguments(target) else {
                continue;
            };
            let mut holds = false;
            for file in files(target)? {
                holds = holds || has(&file, &std::fs::read_to_string(&file)?, name);
            }
            if holds {
                let package = package.name.clone();
                let target = arguments;
                found.push(Selected { package, target });
            }
        }
    }
    if found.is_empty() {
        bail!("no test has a name with \"{name}\"");
    }
    found.sort();
    Ok(found)
}

fn arguments(target: &Target) -> Option<Vec<String>> {
    let kind = target.kind.first()?;
    match kind.as_str() {
        "lib" | "proc-macro" => Some(vec!["--lib".into()]),
        "bin" | "test" | "example" => Some(vec![format!("--{kind}"), target.name.clone()]),
        _ => None,
    }
}

/// Returns the source files of a target: its root file, or all files of the directory if the root file is a `main.rs`
/// or `lib.rs`.
fn files(target: &Target) -> Result<Vec<PathBuf>> {
    let is_root = ["main.rs", "lib.rs"]
        .iter()
        .any(|root| target.src_path.ends_with(root));
    if !is_root {
        return Ok(vec![target.src_path.clone()]);
    }
    let directory = target.src_path.parent().context("a file has a directory")?;
    let mut files = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            // Programs of a package are targets of their own.
            if path.is_dir() && !path.ends_with("src/bin") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Returns whether a file may hold tests whose full names contain `name`.
fn has(file: &Path, text: &str, name: &str) -> bool {
    let (modules, function) = name.rsplit_once("::").unwrap_or(("", name));
    let is_there = text
        .lines()
        .filter_map(|line| line.trim_start().split_once("fn "))
        .any(|(before, rest)| {
            let is_declaration = before
                .split_whitespace()
                .all(|word| matches!(word, "pub" | "async"));
            let declared = rest.split(['(', '<']).next().unwrap_or_default();
            is_declaration && declared.contains(function)
        });
    let path = file.display().to_string();
    let is_in = |module: &str| path.contains(module) || text.contains(&format!("mod {module}"));
    let has_tests = text.contains("#[test]") || text.contains("check!()");
    has_tests && is_there && modules.split("::").all(is_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_the_tests_that_it_declares() {
        let text = "mod lossy {\n    #[test]\n    fn dtos_complete_once() {}\n}\n";
        let has = |file: &str, name: &str| has(Path::new(file), text, name);
        assert!(has("udapl/tests/dat/main.rs", "dtos_complete"));
        assert!(has("udapl/tests/dat/main.rs", "lossy::dtos_complete_once"));
        assert!(has("udapl/tests/dat/main.rs", "lossy::"), "all of a module");
        assert!(!has("udapl/tests/dat/main.rs", "srq::dtos_complete_once"));
        assert!(has("udapl/tests/dat/srq.rs", "srq::dtos_complete_once"));
        assert!(!has("udapl/tests/dat/main.rs", "dtos_complete_twice"));
    }

    #[test]
    fn this_test_is_found_in_its_target_and_a_name_of_none_is_refused() {
        let found = targets("this_test_is_found_in_its_target").unwrap();
        let [target] = &found[..] else {
            panic!("{found:?}");
        };
        let arguments = target.arguments("this_test");
        assert_eq!(arguments[..5], ["test", "--package", "lab", "--bin", "lab"]);
        let name = ["no", "such", "name"].join("_");
        let refused = targets(&name).unwrap_err().to_string();
        assert!(refused.contains(&name), "{refused}");
    }
}
