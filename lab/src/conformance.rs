//! Maps the clauses of DAT to tests and results, and checks the table of the calls.
//!
//! The clauses are in the tables of `docs/clauses.md`. A test names the clauses that it verifies in a doc line `///
//! Clauses: SEND-1, SEND-29.` above its function. It is an error if a clause that binds the provider (a kind that
//! begins with P) has no test, or if a call has no clauses.
//!
//! `docs/conformance.md` is the matrix, which `cargo xtask conformance` writes and which is checked in. A check fails
//! if the file differs from the matrix generated now. The file contains no results, because a check that passes has run
//! every test in it.

mod calls;
mod matrix;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::shell;

/// Folders with tests that name clauses.
const TESTS: &[&str] = &["udapl/tests", "udapl/src", "dat-core/src", "fuzz/tests"];

/// Options of `cargo xtask conformance`.
#[derive(Args)]
pub struct Arguments {
    /// Write docs/conformance.md and run no test.
    #[arg(long)]
    write: bool,
}

struct Clause {
    id: String,
    kind: String,
    text: String,
    /// Heading above the clause: names of calls, separated by commas.
    section: String,
}

impl Clause {
    fn binds_provider(&self) -> bool {
        self.kind.starts_with('P')
    }
}

/// A test that names a clause.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    /// Path of the test's file from the workspace's root.
    file: String,
    name: String,
}

/// The tests that verify each clause.
type Tests = BTreeMap<String, Vec<Test>>;

/// Returns the Rust sources below some folders, sorted.
fn sources(folders: &[&str]) -> Result<Vec<PathBuf>> {
    let mut folders: Vec<PathBuf> = folders.iter().map(|at| shell::root().join(at)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn clauses() -> Result<Vec<Clause>> {
    let path = shell::root().join("docs/clauses.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let clauses = parse_clauses(&text);
    ensure!(
        clauses.len() > 200,
        "docs/clauses.md: only {} clauses read",
        clauses.len()
    );
    Ok(clauses)
}

fn parse_clauses(text: &str) -> Vec<Clause> {
    let mut clauses = Vec::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            heading.clone_into(&mut section);
        }
        // A cell may contain an escaped vertical bar.
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
                section: section.clone(),
            });
        }
    }
    clauses
}

fn tests_by_clause() -> Result<Tests> {
    let mut found = Tests::new();
    for file in sources(TESTS)? {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(shell::root()).unwrap_or(&file);
        collect(name, &text, &mut found);
    }
    Ok(found)
}

fn collect(file: &Path, text: &str, found: &mut Tests) {
    let mut pending: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(list) = line.strip_prefix("/// Clauses:") {
            pending.extend(
                list.split([',', ' ', '.'])
                    .filter(|word| word.contains('-'))
                    .map(str::to_owned),
            );
        } else if let Some(rest) = line.strip_prefix("fn ")
            && let Some(name) = rest.split('(').next()
        {
            let test = Test {
                file: file.display().to_string(),
                name: name.to_owned(),
            };
            for clause in pending.drain(..) {
                found.entry(clause).or_default().push(test.clone());
            }
        }
    }
}

fn missing<'a>(clauses: &'a [Clause], tests: &Tests) -> Vec<&'a Clause> {
    clauses
        .iter()
        .filter(|clause| clause.binds_provider() && !tests.contains_key(&clause.id))
        .collect()
}

/// Checks the clauses and the tables in `docs`. Fails if a clause that binds the provider has no test, a test names a
/// clause that does not exist, a call has no clauses, or a table in `docs` is wrong.
pub fn check_complete() -> Result<()> {
    calls::check()?;
    let (clauses, tests) = (clauses()?, tests_by_clause()?);
    let missing: Vec<&str> = missing(&clauses, &tests)
        .into_iter()
        .map(|clause| clause.id.as_str())
        .collect();
    ensure!(
        missing.is_empty(),
        "clauses without a test: {}",
        missing.join(", ")
    );
    for (id, tests) in &tests {
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        ensure!(
            clauses.iter().any(|clause| clause.id == *id),
            "{} names clause {id}, which docs/clauses.md does not have",
            names.join(", ")
        );
    }
    let without: Vec<String> = calls::names()?
        .into_iter()
        .filter(|call| {
            let covers = |clause: &Clause| clause.section.split(", ").any(|name| name == call);
            !clauses.iter().any(covers)
        })
        .collect();
    ensure!(
        without.is_empty(),
        "calls without clauses in docs/clauses.md: {}",
        without.join(", ")
    );
    matrix::check(&clauses, &tests)?;
    let bound = clauses
        .iter()
        .filter(|clause| clause.binds_provider())
        .count();
    println!("conformance: each of {bound} clauses that bind the provider has a test");
    Ok(())
}

/// Writes the matrix, and checks the clauses and the tables. Without `--write`, also runs the tests and prints the
/// result of each clause.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (clauses, tests) = (clauses()?, tests_by_clause()?);
    matrix::write(&clauses, &tests)?;
    if !arguments.write {
        matrix::run(&clauses, &tests)?;
    }
    check_complete()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_clause_has_its_section_and_a_test_its_clauses() {
        let clauses =
            parse_clauses("## dat_a, dat_b\n\n| A-1 | P | one \\| two |\n| no | P | x |\n");
        let [clause] = &clauses[..] else {
            panic!("one clause");
        };
        assert_eq!((&*clause.id, &*clause.text), ("A-1", "one | two"));
        assert_eq!(clause.section, "dat_a, dat_b");
        let mut tests = Tests::new();
        let text = "/// Clauses: A-1, A-2.\n#[test]\nfn holds() {}\nfn does_not() {}\n";
        collect(Path::new("udapl/tests/dat/a.rs"), text, &mut tests);
        assert_eq!(tests.keys().collect::<Vec<_>>(), ["A-1", "A-2"]);
        assert_eq!(tests["A-1"][0].name, "holds");
        assert!(missing(&clauses, &tests).is_empty());
        assert_eq!(missing(&clauses, &Tests::new()).len(), 1);
    }
}
