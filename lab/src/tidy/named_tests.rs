//! Checks that each test named in docs/findings.md and in the catalogue of mutations is a function in the sources.
//!
//! In the page, a test is named in a column whose header has the word "test". Its name is in backticks, sometimes after
//! the module's name. In the catalogue, a test is named in the reason why a campaign cannot find a mutation. A name
//! with three or more underscores counts as the name of a test. It must not be shortened, so that a search finds it.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::Source;
use crate::shell;

const PAGE: &str = "docs/findings.md";
const CATALOGUE: &str = "campaign/mutations.toml";
/// Names in the page's columns that are not functions, with the reason.
const OTHERS: [(&str, &str); 4] = [
    ("counts_queue_pairs_on", "a habit of simulated cards"),
    ("local_ca_ack_delay", "a field of the capabilities"),
    ("post_rdma_write_stale", "a row of cargo xtask bench"),
    ("post_rdma_write_suppressed", "a row of cargo xtask bench"),
];
/// Smallest number of underscores in a name that counts as the name of a test.
const UNDERSCORES: usize = 3;

/// Compares the names in the page and in the catalogue with the functions of the sources.
pub(super) fn are_functions_of_the_sources(
    sources: &[Source],
    breaches: &mut Vec<String>,
) -> Result<()> {
    let read = |file| std::fs::read_to_string(shell::root().join(file)).context(file);
    let functions = sources.iter().flat_map(|source| functions(&source.text));
    let functions = functions.collect();
    breaches.extend(wrong_of_the_page(&read(PAGE)?, &functions));
    breaches.extend(wrong_of_the_catalogue(&read(CATALOGUE)?, &functions));
    Ok(())
}

/// Returns the names of the functions in a source.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start();
        let name = match line.strip_prefix("fn ") {
            Some(name) => name,
            None => line.split_once(" fn ")?.1,
        };
        name.split(|c: char| !is_of_name(c)).next()
    })
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// Returns the error in a name, if the name counts as that of a test and is wrong.
fn mistake(name: &str, functions: &BTreeSet<&str>) -> Option<&'static str> {
    let whole = name.replace('…', "");
    if !whole.chars().all(is_of_name) || whole.matches('_').count() < UNDERSCORES {
        None
    } else if whole != name {
        Some("is cut short")
    } else {
        (!functions.contains(name)).then_some("is no function")
    }
}

/// Returns a line for each wrong name in the catalogue's reasons.
fn wrong_of_the_catalogue(text: &str, functions: &BTreeSet<&str>) -> Vec<String> {
    let reasons = (1..).zip(text.lines());
    let reasons = reasons.filter(|(_, line)| line.starts_with("blind = "));
    let names = reasons.flat_map(|(number, line)| {
        let words = line.split(|c: char| !is_of_name(c) && c != '…');
        words.map(move |word| (number, word))
    });
    let wrong = names.filter_map(|(number, name)| {
        let what = mistake(name, functions)?;
        Some(format!("{CATALOGUE}:{number}: {name} {what}"))
    });
    wrong.collect()
}

/// Returns a line for each wrong name in the page's columns of tests, and for each of [`OTHERS`] that no column has.
fn wrong_of_the_page(text: &str, functions: &BTreeSet<&str>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    let is_other = |name: &str| OTHERS.iter().any(|(other, _)| *other == name);
    // For each column of the current table: whether its header has the word "test".
    let mut columns: Vec<bool> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(row) = line.strip_prefix('|') else {
            columns.clear();
            continue;
        };
        let cells = row.trim_end_matches([' ', '|']).split(" | ");
        if columns.is_empty() {
            columns = cells
                .map(|cell| cell.to_lowercase().contains("test"))
                .collect();
            continue;
        }
        let tests = cells.zip(&columns).filter(|(_, names_tests)| **names_tests);
        for name in tests.flat_map(|(cell, _)| cell.split('`').skip(1).step_by(2)) {
            let name = name.rsplit("::").next().unwrap_or_default();
            named.insert(name);
            if let Some(what) = mistake(name, functions)
                && !is_other(name)
            {
                wrong.push(format!("{PAGE}:{}: {name} {what}", index + 1));
            }
        }
    }
    let unused = OTHERS.iter().filter(|(name, _)| !named.contains(name));
    wrong.extend(unused.map(|(name, _)| format!("{PAGE}: {name} is in no column of tests")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_test_is_a_function_and_stands_there_whole() {
        let source =
            "/// Fn.\nfn a_test_that_holds() {\n    pub(crate) fn one_more_test_there<T>(\n";
        let functions: BTreeSet<&str> = functions(source).collect();
        assert_eq!(
            functions,
            BTreeSet::from(["a_test_that_holds", "one_more_test_there"])
        );
        let page = "| What | Evidence | The test that failed |\n|---|---|---|\n\
                    | a | `no_test_in_here` | `a_test_that_holds`, `capi::one_more_test_there` in `some/path.rs` |\n\
                    | b | c | `counts_queue_pairs_on`, `local_ca_ack_delay`, `post_rdma_write_stale`, `post_rdma_write_suppressed` |\n";
        assert_eq!(wrong_of_the_page(page, &functions), [] as [&str; 0]);
        let page = page.replace("a_test_that_holds", "a_test_of_another_name");
        let page = page.replace("capi::one_more_test_there", "capi::one_more_test_…");
        assert_eq!(
            wrong_of_the_page(&page.replace("post_rdma_write_stale", ""), &functions),
            [
                "docs/findings.md:3: a_test_of_another_name is no function",
                "docs/findings.md:3: one_more_test_… is cut short",
                "docs/findings.md: post_rdma_write_stale is in no column of tests"
            ]
        );
        let catalogue = "# a_name_that_is_no_reason\nblind = \"no target; a_test_that_holds in some/path.rs\"\n\
                         blind = \"one_more_test_there, one_more_test_…, a_test_of_another_name\"\n";
        assert_eq!(
            wrong_of_the_catalogue(catalogue, &functions),
            [
                "campaign/mutations.toml:3: one_more_test_… is cut short",
                "campaign/mutations.toml:3: a_test_of_another_name is no function"
            ]
        );
    }
}
