//! Passes on the output of `cargo test` as it comes, and collects two things from it: the names of failed tests, and
//! the checks that passed tests report as left out.
//!
//! libtest prints the output of a passed test only with `--show-output`, which is given here. The output of passed
//! tests is not passed on. Its lines that begin with one of [`WORDS`] are collected.

use std::io::{BufRead, Write};

use anyhow::Result;

/// Prefixes of lines in which a test reports what it left out, and why.
const WORDS: [&str; 2] = ["skipped: ", "left out: "];

/// Names that were found in the output.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Found {
    /// Names of failed tests, each once.
    pub failed: Vec<String>,
    /// Names of tests that left something out, each with the test's report.
    pub left_out: Vec<(String, String)>,
}

/// Passes lines on, and returns the names that were found in them.
///
/// # Errors
/// Reading or writing failed.
pub fn pass_on(from: impl BufRead, to: &mut impl Write) -> Result<Found> {
    let mut found = Found::default();
    // True while libtest prints the output of passed tests. `test` is the name of the current one.
    let mut passed = false;
    let mut test = String::new();
    for line in from.split(b'\n') {
        let mut line = line?;
        let text = String::from_utf8_lossy(&line);
        passed = match &*text {
            "successes:" => true,
            // The failures or the summary follow this line.
            "failures:" => false,
            text if text.starts_with("test result: ") => false,
            _ => passed,
        };
        if passed {
            let begins = text
                .strip_prefix("---- ")
                .and_then(|rest| rest.strip_suffix(" stdout ----"));
            if let Some(name) = begins {
                test = name.to_owned();
            }
            if let Some(why) = WORDS.iter().find_map(|word| text.strip_prefix(word)) {
                found.left_out.push((test.clone(), why.to_owned()));
            }
            continue;
        }
        let failed = text
            .strip_prefix("test ")
            .and_then(|text| text.strip_suffix(" ... FAILED"))
            .filter(|name| !found.failed.iter().any(|known| known == name));
        found.failed.extend(failed.map(str::to_owned));
        line.push(b'\n');
        to.write_all(&line)?;
        to.flush()?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sample output of libtest of Rust 1.95.
    const SAID: &str = "\
running 4 tests
test whole ... ok
test dma::broken ... FAILED
test panics - should panic ... FAILED

failures:

---- dma::broken stdout ----
test dma::broken ... FAILED
\u{fffd} no text

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

test src/lib.rs - documented (line 7) ... FAILED
no newline at the end";

    #[test]
    fn failed_tests_are_named_once_and_everything_is_passed_on() {
        let mut shown = Vec::new();
        let found = pass_on(SAID.as_bytes(), &mut shown).expect("readable");
        assert_eq!(shown, [SAID.as_bytes(), b"\n"].concat());
        let expected = [
            "dma::broken",
            "panics - should panic",
            "src/lib.rs - documented (line 7)",
        ];
        assert_eq!(found.failed, expected);
        assert_eq!(found.left_out, []);
    }

    /// Sample output of libtest of Rust 1.95 with `--show-output`.
    const WITH_SUCCESSES: &str = "\
test one ... ok
test two ... FAILED

successes:

---- one stdout ----
output of a passed test
skipped: the kernel knows no nodes


successes:
    one

failures:

---- two stdout ----
skipped: not so, it failed
";
    const WITHOUT: &str = "\
test one ... ok
test two ... FAILED

failures:

---- two stdout ----
skipped: not so, it failed
";

    #[test]
    fn of_tests_that_passed_only_what_they_left_out_is_kept() {
        let mut shown = Vec::new();
        let found = pass_on(WITH_SUCCESSES.as_bytes(), &mut shown).expect("readable");
        assert_eq!(String::from_utf8(shown).as_deref(), Ok(WITHOUT));
        let left_out = ("one".to_owned(), "the kernel knows no nodes".to_owned());
        assert_eq!(found.left_out, [left_out]);
    }
}
