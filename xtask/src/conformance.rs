//! Clause → tests → result.
//!
//! The clauses are the tables of `docs/clauses.md`. A test names the clauses it holds in a doc line
//! `/// Clauses: SEND-1, SEND-29.` above its function in `dat/tests`. A clause that binds the
//! provider (a kind that begins with P) and has no test is an error.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::Table;

use crate::shell;

struct Clause {
    id: String,
    kind: String,
    text: String,
}

impl Clause {
    fn binds_provider(&self) -> bool {
        self.kind.starts_with('P')
    }
}

fn clauses() -> Result<Vec<Clause>> {
    let path = shell::root().join("docs/clauses.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut clauses = Vec::new();
    for line in text.lines() {
        // A cell may hold an escaped bar.
        let line = line.replace("\\|", "\u{1}");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, id, kind, text, _] = cells[..]
            && id.contains('-')
            && id.chars().last().is_some_and(|last| last.is_ascii_digit())
        {
            clauses.push(Clause {
                id: id.into(),
                kind: kind.into(),
                text: text.replace('\u{1}', "|"),
            });
        }
    }
    ensure!(
        clauses.len() > 200,
        "docs/clauses.md: only {} clauses read",
        clauses.len()
    );
    Ok(clauses)
}

/// Clause → names of the tests that hold it.
fn tests_by_clause() -> Result<BTreeMap<String, Vec<String>>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut folders = vec![shell::root().join("dat/tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                collect(&path, &mut found)?;
            }
        }
    }
    Ok(found)
}

fn collect(path: &Path, found: &mut BTreeMap<String, Vec<String>>) -> Result<()> {
    let mut pending: Vec<String> = Vec::new();
    for line in std::fs::read_to_string(path)?.lines() {
        let line = line.trim();
        if let Some(list) = line.strip_prefix("/// Clauses:") {
            pending.extend(
                list.split([',', ' ', '.'])
                    .filter(|word| word.contains('-'))
                    .map(str::to_owned),
            );
        } else if let Some(rest) = line.strip_prefix("fn ")
            && let Some(name) = rest.split('(').next()
        {
            for clause in pending.drain(..) {
                found.entry(clause).or_default().push(name.to_owned());
            }
        }
    }
    Ok(())
}

fn missing(clauses: &[Clause], tests: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    clauses
        .iter()
        .filter(|clause| clause.binds_provider() && !tests.contains_key(&clause.id))
        .map(|clause| clause.id.clone())
        .collect()
}

/// Fails when a clause has no test, or a test names a clause that does not exist.
pub fn check_complete() -> Result<()> {
    let clauses = clauses()?;
    let tests = tests_by_clause()?;
    let missing = missing(&clauses, &tests);
    ensure!(
        missing.is_empty(),
        "clauses without a test: {}",
        missing.join(", ")
    );
    for (id, names) in &tests {
        ensure!(
            clauses.iter().any(|clause| clause.id == *id),
            "{} names clause {id}, which docs/clauses.md does not have",
            names.join(", ")
        );
    }
    let bound = clauses
        .iter()
        .filter(|clause| clause.binds_provider())
        .count();
    println!("conformance: each of {bound} clauses that bind the provider has a test");
    Ok(())
}

/// Runs the tests and prints the matrix.
pub fn run() -> Result<()> {
    let clauses = clauses()?;
    let tests = tests_by_clause()?;
    let output = shell::cargo(&["test", "--package", "dat", "--tests", "--no-fail-fast"])
        .output()
        .context("cargo test")?;
    let mut results: BTreeMap<String, &str> = BTreeMap::new();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("test ")
            && let Some((name, result)) = rest.rsplit_once(" ... ")
        {
            let name = name.rsplit("::").next().unwrap_or(name);
            // Tests of one name in several files pass only together.
            let entry = results.entry(name.to_owned()).or_insert("pass");
            if result != "ok" {
                *entry = "FAIL";
            }
        }
    }
    let mut table = Table::new();
    table.set_header(["clause", "kind", "tests", "result"]);
    let mut failed = 0;
    let mut untested = Vec::new();
    for clause in &clauses {
        let (names, result) = match tests.get(&clause.id) {
            Some(names) => {
                let failing = names
                    .iter()
                    .filter(|name| results.get(*name).is_none_or(|result| *result != "pass"))
                    .count();
                failed += failing;
                (names.join("\n"), if failing == 0 { "pass" } else { "FAIL" })
            }
            None if clause.binds_provider() => {
                untested.push(format!("{} {}", clause.id, clause.text));
                (String::new(), "NO TEST")
            }
            None => (String::new(), "-"),
        };
        table.add_row([&clause.id, &clause.kind, &names, result]);
    }
    println!("{table}");
    let of_kind = |test: fn(&Clause) -> bool| clauses.iter().filter(|clause| test(clause)).count();
    println!(
        "{} clauses: {} bind the provider ({} of them without a test), {} recommended, {} the consumer's, undefined or informative",
        clauses.len(),
        of_kind(Clause::binds_provider),
        untested.len(),
        of_kind(|clause| clause.kind == "R"),
        of_kind(|clause| !clause.binds_provider() && clause.kind != "R"),
    );
    if failed > 0 || !untested.is_empty() {
        bail!(
            "{failed} failing tests; clauses without a test:\n{}",
            untested.join("\n")
        );
    }
    Ok(())
}
