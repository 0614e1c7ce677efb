//! The matrix of clauses and tests. It is printed with results, and written to `docs/conformance.md` without them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::Table;

use super::{Clause, Test, Tests, missing};
use crate::shell;

fn path() -> PathBuf {
    shell::root().join("docs/conformance.md")
}

/// Returns the matrix of the current sources.
fn render(clauses: &[Clause], tests: &Tests) -> String {
    let mut text = String::from(
        "# Which test holds which clause\n\n\
         Written by `cargo xtask conformance`; a check fails when it is not up to date. The clauses are described in\n\
         [clauses.md](clauses.md); every test named here passes, or the check fails.\n\n\
         | Calls | Clauses that bind the Provider | With a test | Recommended | With a test |\n\
         |---|---|---|---|---|\n",
    );
    let mut sections: Vec<&str> = Vec::new();
    for clause in clauses {
        if sections.last() != Some(&clause.section.as_str()) {
            sections.push(&clause.section);
        }
    }
    let count = |section: Option<&str>, recommended: bool, tested: bool| {
        clauses
            .iter()
            .filter(|clause| section.is_none_or(|section| clause.section == section))
            .filter(|clause| {
                if recommended {
                    clause.kind == "R"
                } else {
                    clause.binds_provider()
                }
            })
            .filter(|clause| !tested || tests.contains_key(&clause.id))
            .count()
    };
    let counts = |text: &mut String, name: &str, section: Option<&str>| {
        let [bind, tested, recommend, recommended] =
            [(false, false), (false, true), (true, false), (true, true)]
                .map(|(recommended, tested)| count(section, recommended, tested));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {name} | {bind} | {tested} | {recommend} | {recommended} |"
        );
    };
    for section in &sections {
        counts(&mut text, section, Some(section));
    }
    counts(&mut text, "all", None);
    let bare: Vec<&str> = clauses
        .iter()
        .filter(|clause| clause.binds_provider() || clause.kind == "R")
        .filter(|clause| !tests.contains_key(&clause.id))
        .map(|clause| clause.id.as_str())
        .collect();
    let list = if bare.is_empty() {
        "none".to_owned()
    } else {
        bare.join(", ")
    };
    let _ = writeln!(text, "\nClauses without a test: {list}.");
    for section in sections {
        let _ = writeln!(
            text,
            "\n## {section}\n\n| Clause | Kind | Tests |\n|---|---|---|"
        );
        for clause in clauses.iter().filter(|clause| clause.section == section) {
            let names: Vec<String> = tests
                .get(&clause.id)
                .into_iter()
                .flatten()
                .map(named)
                .collect();
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                clause.id,
                clause.kind,
                names.join(", ")
            );
        }
    }
    text
}

/// Returns the name of a test as the matrix shows it.
fn named(test: &Test) -> String {
    let folders = ["udapl/tests/dat/", "udapl/tests/"];
    let file = folders
        .iter()
        .find_map(|folder| test.file.strip_prefix(folder))
        .unwrap_or(&test.file);
    format!("{}::`{}`", file.trim_end_matches(".rs"), test.name)
}

/// Writes `docs/conformance.md`.
pub fn write(clauses: &[Clause], tests: &Tests) -> Result<()> {
    std::fs::write(path(), render(clauses, tests)).context("docs/conformance.md")
}

/// Fails if `docs/conformance.md` differs from the matrix generated now.
pub fn check(clauses: &[Clause], tests: &Tests) -> Result<()> {
    let there = std::fs::read_to_string(path()).context("docs/conformance.md")?;
    ensure!(
        there == render(clauses, tests),
        "docs/conformance.md is stale: `cargo xtask conformance --write` writes it"
    );
    Ok(())
}

/// Runs the tests and prints the matrix with their results.
pub fn run(clauses: &[Clause], tests: &Tests) -> Result<()> {
    let packages = ["--package", "udapl", "--package", "dat-core"];
    let mut arguments = vec!["test", "--no-fail-fast", "--lib", "--tests"];
    arguments.extend(packages);
    let output = shell::cargo(&arguments).output().context("cargo test")?;
    let mut results: BTreeMap<String, &str> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(rest) = line.strip_prefix("test ")
            && let Some((name, result)) = rest.rsplit_once(" ... ")
        {
            let name = name.rsplit("::").next().unwrap_or(name);
            // Tests of the same name in several files count as one test, which passes only if all of them pass.
            let entry = results.entry(name.to_owned()).or_insert("pass");
            if result != "ok" {
                *entry = "FAIL";
            }
        }
    }
    let passed = |test: &Test| {
        results
            .get(&test.name)
            .is_some_and(|result| *result == "pass")
    };
    let mut table = Table::new();
    table.set_header(["clause", "kind", "tests", "result"]);
    let mut failed = 0;
    for clause in clauses {
        let (names, result) = match tests.get(&clause.id) {
            Some(tests) => {
                let failing = tests.iter().filter(|test| !passed(test)).count();
                failed += failing;
                let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
                (names.join("\n"), if failing == 0 { "pass" } else { "FAIL" })
            }
            None if clause.binds_provider() => (String::new(), "NO TEST"),
            None => (String::new(), "-"),
        };
        table.add_row([&clause.id, &clause.kind, &names, result]);
    }
    println!("{table}");
    let of_kind = |test: fn(&Clause) -> bool| clauses.iter().filter(|clause| test(clause)).count();
    let untested = missing(clauses, tests);
    println!(
        "{} clauses: {} bind the provider ({} of them without a test), {} recommended, {} the consumer's, undefined or informative",
        clauses.len(),
        of_kind(Clause::binds_provider),
        untested.len(),
        of_kind(|clause| clause.kind == "R"),
        of_kind(|clause| !clause.binds_provider() && clause.kind != "R"),
    );
    if failed > 0 || !untested.is_empty() {
        let names: Vec<String> = untested
            .iter()
            .map(|clause| format!("{} {}", clause.id, clause.text))
            .collect();
        bail!(
            "{failed} failing tests; clauses without a test:\n{}",
            names.join("\n")
        );
    }
    Ok(())
}
