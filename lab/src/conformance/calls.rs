//! Checks the table of the calls, `docs/calls.md`, against the sources.
//!
//! A row has the call `dat_…`, its Rust functions, its state, and its tests. Each of the 74 calls has one row. A
//! function in a row must be public in `udapl` or `dat-core`, and its documentation must name the call's page. A test
//! in a row must exist. A call whose state is done must have a test.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use super::sources;
use crate::shell;

/// Number of calls of DAT 1.2: 73 man pages and `dat_evd_create`.
const CALLS: usize = 74;

/// One row of the table.
struct Call {
    name: String,
    functions: Vec<String>,
    state: String,
    tests: Vec<String>,
}

/// Returns the names that are in backticks in a cell.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn parse(text: &str) -> Vec<Call> {
    text.lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, name, functions, state, tests, _] = cells[..] else {
                return None;
            };
            Some(Call {
                name: quoted(name).into_iter().next()?,
                functions: quoted(functions),
                state: state.to_owned(),
                tests: quoted(tests),
            })
        })
        .collect()
}

/// Returns a message for each error in the table.
fn complaints(calls: &[Call], functions: &Functions, tests: &Functions) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for call in calls {
        let name = &call.name;
        if !seen.insert(name) {
            wrong.push(format!("{name} is there twice"));
        }
        if call.functions.is_empty() {
            wrong.push(format!("{name} has no function"));
        }
        for function in &call.functions {
            let last = function.rsplit("::").next().unwrap_or(function);
            match functions.get(last) {
                None => wrong.push(format!("{name}: no public function {function}")),
                Some(pages) if !pages.contains(name) => {
                    wrong.push(format!("{name} is not named where {function} is described"));
                }
                Some(_) => {}
            }
        }
        for test in call.tests.iter().filter(|test| !tests.contains_key(*test)) {
            wrong.push(format!("{name}: no test {test}"));
        }
        if call.state == "done" && call.tests.is_empty() {
            wrong.push(format!("{name} is done without a test"));
        }
    }
    if calls.len() != CALLS {
        wrong.push(format!("{} calls instead of {CALLS}", calls.len()));
    }
    wrong
}

/// Returns the functions whose line begins with one of `beginnings`, in the sources below these folders.
fn functions(folders: &[&str], beginnings: &[&str]) -> Result<Functions> {
    let mut found = Functions::new();
    for file in sources(folders)? {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        collect(&text, beginnings, &mut found);
    }
    Ok(found)
}

/// Functions, each with the calls that its documentation names. Functions of the same name share an entry.
type Functions = BTreeMap<String, BTreeSet<String>>;

fn collect(text: &str, beginnings: &[&str], found: &mut Functions) {
    let mut named = BTreeSet::new();
    let mut described = false;
    for line in text.lines().map(str::trim) {
        let comment = line.strip_prefix("///");
        if let Some(comment) = comment {
            if !described {
                named.clear();
            }
            let words = comment.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            named.extend(
                words
                    .filter(|word| word.starts_with("dat_"))
                    .map(str::to_owned),
            );
        }
        described = comment.is_some();
        let rest = beginnings.iter().find_map(|begin| line.strip_prefix(begin));
        if let Some(name) = rest.and_then(|rest| rest.split(['(', '<']).next()) {
            let pages = std::mem::take(&mut named);
            found.entry(name.to_owned()).or_default().extend(pages);
        }
    }
}

fn calls() -> Result<Vec<Call>> {
    let path = shell::root().join("docs/calls.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(parse(&text))
}

/// Returns the names of the calls.
pub fn names() -> Result<Vec<String>> {
    Ok(calls()?.into_iter().map(|call| call.name).collect())
}

/// Fails if the table of the calls does not match the sources.
pub fn check() -> Result<()> {
    let calls = calls()?;
    let public = functions(
        &["udapl/src", "dat-core/src"],
        &["pub fn ", "pub const fn "],
    )?;
    let tests = functions(&["udapl/tests", "udapl/src", "dat-core/src"], &["fn "])?;
    let wrong = complaints(&calls, &public, &tests);
    ensure!(wrong.is_empty(), "docs/calls.md: {}", wrong.join("; "));
    let done = calls.iter().filter(|call| call.state == "done").count();
    println!("conformance: {done} of {CALLS} calls are done");
    for call in calls.iter().filter(|call| call.state != "done") {
        println!("conformance: {}: {}", call.name, call.state);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_calls_is_true() {
        check().expect("docs/calls.md agrees with the sources");
    }

    #[test]
    fn a_table_that_is_not_true_is_complained_of() {
        let row = "| `dat_a` | `Ia::a`, `Ia::gone` | done | `a_test` |\n\
                   | `dat_a` | `Ia::a` | done | |\n\
                   | `dat_b` | | partial: all of it | `no_test` |\n\
                   | `dat_c` | `Ia::a` | partial | |";
        let mut known = Functions::new();
        let sources = "/// One.\n///\n/// Page: dat_b.\npub fn gone_by(&self) {}\n/// Page: dat_a.\n#[inline]\npub fn a<T>() {}";
        collect(sources, &["pub fn "], &mut known);
        let tests = Functions::from([("a_test".to_owned(), BTreeSet::new())]);
        let wrong = complaints(&parse(row), &known, &tests);
        assert_eq!(
            wrong,
            [
                "dat_a: no public function Ia::gone",
                "dat_a is there twice",
                "dat_a is done without a test",
                "dat_b has no function",
                "dat_b: no test no_test",
                "dat_c is not named where Ia::a is described",
                "4 calls instead of 74",
            ]
        );
    }
}
