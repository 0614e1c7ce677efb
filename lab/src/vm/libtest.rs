//! Parses the output of our test programs into results per test.
//!
//! The program was run as `test-PROGRAM --test-threads=1 --show-output --exact TEST...` with `DAT_TEST_FUNCTIONS` in
//! the environment. Every requested test must have passed, and must have printed that it opened the functions
//! (`udapl/tests/dat/support/world.rs`). A test that passed on other functions, or that no longer exists, shows nothing
//! about these functions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};

use super::report::Step;

/// Text that every test prints once it has opened the functions.
const ON_FUNCTIONS: &str = "on functions";
/// Prefix of a line with a figure.
const FIGURE: &str = "figure: ";

/// Judges a step that ran tests. Returns the number of passed tests, and their figures.
pub fn judge(step: &Step) -> Result<String> {
    let wanted = wanted(&step.command);
    ensure!(!wanted.is_empty(), "no test was asked for");
    let outputs = outputs(&step.said);
    for name in &wanted {
        let passed = format!("test {name} ... ok");
        if !step.said.contains(&passed) {
            bail!("{name} did not pass, or there is no such test");
        }
        let output = outputs.get(name).map_or("", String::as_str);
        ensure!(
            output.contains(ON_FUNCTIONS),
            "{name} did not open the functions"
        );
    }
    let mut figures = vec![format!("{} tests passed", wanted.len())];
    let said = outputs.values().flat_map(|output| output.lines());
    figures.extend(said.filter_map(|line| line.strip_prefix(FIGURE).map(str::to_owned)));
    Ok(figures.join("\n"))
}

/// Returns the figures in the output of a test that ran without capture, and passed on the functions.
pub fn figures(step: &Step) -> Result<Vec<&str>> {
    step.line_with("test result: ok. 1 passed")?;
    step.line_with(ON_FUNCTIONS)?;
    let lines = step.said.iter();
    Ok(lines
        .filter_map(|line| Some(line.split_once(FIGURE)?.1))
        .collect())
}

/// Returns the names of the tests in a command line.
fn wanted(command: &str) -> BTreeSet<&str> {
    let mut words = command.split_whitespace();
    words.by_ref().find(|&word| word == "--exact");
    words.collect()
}

/// Returns the output of each test by its name.
fn outputs(said: &[String]) -> BTreeMap<&str, String> {
    let mut outputs: BTreeMap<&str, String> = BTreeMap::new();
    let mut of = None;
    for line in said {
        let title = line.strip_prefix("---- ");
        if let Some(name) = title.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            of = Some(name);
        } else if let Some(name) = of {
            let output = outputs.entry(name).or_default();
            output.push_str(line);
            output.push('\n');
        }
    }
    outputs
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SAID: &str = "running 2 tests\ntest a ... ok\ntest m::b ... ok\n\nsuccesses:\n\n\
        ---- a stdout ----\non functions x and y\nfigure: 7 waits\n\n---- m::b stdout ----\nskipped\n\n\
        successes:\n    a\n    m::b\n\ntest result: ok. 2 passed; 0 failed";

    fn verdict(tests: &str) -> Result<String> {
        judge(&Step {
            name: "send".to_owned(),
            command: format!("test-dat --test-threads=1 --exact {tests}"),
            said: SAID.lines().map(str::to_owned).collect(),
            code: Some(0),
            took: Duration::ZERO,
        })
    }

    #[test]
    fn a_test_counts_if_it_passed_on_the_functions_and_its_figures_are_kept() {
        assert_eq!(verdict("a").unwrap(), "1 tests passed\n7 waits");
    }

    #[test]
    fn a_test_that_passed_elsewhere_or_is_not_there_is_a_failure() {
        for (tests, reason) in [
            ("a m::b", "m::b did not open the functions"),
            ("a c", "c did not pass, or there is no such test"),
            ("", "no test was asked for"),
        ] {
            assert_eq!(verdict(tests).unwrap_err().to_string(), reason);
        }
    }
}
