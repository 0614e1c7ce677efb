//! Judges rdma-core's own tests in Python (its `tests/`, with pyverbs of the same version) by the number of passed,
//! skipped and failed tests.
//!
//! The tests cover every device that rdma-core supports, so most of them need features that a ConnectX with these
//! capabilities lacks, and skip themselves. Tests that fail are listed here with the reason. The step fails if one more
//! or one fewer test fails.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use crate::vm::report::Step;

/// Tests that are expected to fail, each by unittest's name, with the reason.
const FAIL: &[(&str, &str)] = &[(
    "tests.test_mlx5_dc.DCTest.test_odp_dc_traffic",
    "registers memory that is paged on demand without asking for it; the event queue for page faults is refused",
)];

/// Beginnings of the names of the tests of device memory. They skip themselves if the device announces none.
const DEVICE_MEMORY: [&str; 4] = [
    "tests.test_device.DMTest.",
    "tests.test_device.SharedDMTest.",
    "tests.test_mlx5_dm_ops.",
    "tests.test_mr.DeviceMemory",
];

/// Judges the output of unittest.
pub fn judge(step: &Step) -> Result<String> {
    let ran = step.line_with("Ran ")?;
    let ran: usize = word(ran, 1)?.parse()?;
    let skipped = step.lines_with("... skipped ").len();
    let failed: BTreeSet<&str> = ["FAIL: ", "ERROR: "]
        .into_iter()
        .flat_map(|kind| {
            step.said
                .iter()
                .filter_map(move |line| line.strip_prefix(kind))
        })
        .map(name)
        .collect();
    let known: BTreeSet<&str> = FAIL.iter().map(|(name, _)| *name).collect();
    let new: Vec<&&str> = failed.difference(&known).collect();
    let gone: Vec<&&str> = known.difference(&failed).collect();
    ensure!(new.is_empty(), "{} fail: {new:?}", new.len());
    ensure!(gone.is_empty(), "no longer fail: {gone:?}");
    let passed = ran
        .checked_sub(skipped + failed.len())
        .context("more skipped and failed than ran")?;
    ensure!(passed > 0, "none of {ran} passed, {skipped} skipped");
    let memory = passed_tests(&step.said, &DEVICE_MEMORY);
    ensure!(!memory.is_empty(), "no test of device memory passed");
    Ok(format!(
        "{ran} tests: {passed} passed, {skipped} skipped, {} failed as known\n{} of device memory passed: {}",
        failed.len(),
        memory.len(),
        memory.join(", ")
    ))
}

/// Returns the tests that passed whose names begin with one of these texts. The verdict of a test is at the end of the
/// line with its name, or of a later line if the test has a description or prints something.
fn passed_tests<'a>(said: &'a [String], of: &[&str]) -> Vec<&'a str> {
    let begins = |line: &str| line.starts_with("test_") && line.contains(" (tests.");
    let mut current = None;
    let mut passed = Vec::new();
    for line in said {
        if begins(line) {
            let name = name(line.split(" ... ").next().unwrap_or(line));
            current = of
                .iter()
                .any(|start| name.starts_with(start))
                .then_some(name);
        }
        if line.ends_with("... ok") || line == "ok" {
            passed.extend(current.take());
        }
    }
    passed
}

fn word(line: &str, number: usize) -> Result<&str> {
    let found = line.split_whitespace().nth(number);
    found.with_context(|| format!("{line:?}"))
}

/// Returns the name inside the parentheses of `test_x (tests.test_y.Z.test_x)`.
fn name(line: &str) -> &str {
    let inside = line.split_once('(').map_or(line, |(_, inside)| inside);
    inside.trim_end().trim_end_matches(')')
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: [&str; 6] = [
        "test_create_dm (tests.test_device.DMTest.test_create_dm) ... ok",
        "test_b (tests.test_x.X.test_b)",
        "What it tests ... skipped 'Not supported'",
        "ERROR: test_odp_dc_traffic (tests.test_mlx5_dc.DCTest.test_odp_dc_traffic)",
        "----------------------------------------",
        "Ran 3 tests in 1.5s",
    ];

    #[test]
    fn what_was_skipped_has_not_passed() {
        assert_eq!(
            judge(&Step::succeeded("pyverbs", &SAID)).unwrap(),
            "3 tests: 1 passed, 1 skipped, 1 failed as known\n\
             1 of device memory passed: tests.test_device.DMTest.test_create_dm"
        );
        let none = [SAID[2], SAID[3], "Ran 2 tests in 1.5s"];
        assert!(judge(&Step::succeeded("pyverbs", &none)).is_err());
    }

    #[test]
    fn the_tests_of_device_memory_that_passed_are_named_and_one_has_to() {
        let lines = [
            "test_create_dm (tests.test_device.DMTest.test_create_dm)",
            "test ibv_alloc_dm() ... ok",
            "test_dm_read (tests.test_device.DMTest.test_dm_read) ... some output",
            "ok",
            "test_dm_traffic (tests.test_mr.DeviceMemoryTest.test_dm_traffic) ... skipped 'none'",
            "test_reg_mr (tests.test_mr.MRTest.test_reg_mr) ... ok",
        ];
        let said = lines.map(str::to_owned);
        assert_eq!(
            passed_tests(&said, &DEVICE_MEMORY),
            [
                "tests.test_device.DMTest.test_create_dm",
                "tests.test_device.DMTest.test_dm_read"
            ]
        );
        let mut without = SAID;
        without[0] = lines[5];
        let error = judge(&Step::succeeded("pyverbs", &without)).unwrap_err();
        assert!(error.to_string().contains("device memory"), "{error}");
    }

    #[test]
    fn a_test_that_fails_without_being_known_fails_the_step_and_is_named() {
        let mut said = SAID.to_vec();
        said.push("ERROR: test_b (tests.test_x.X.test_b)");
        let error = judge(&Step::succeeded("pyverbs", &said)).unwrap_err();
        assert!(
            error.to_string().contains("tests.test_x.X.test_b"),
            "{error}"
        );
    }

    #[test]
    fn tests_that_did_not_come_to_an_end_prove_nothing() {
        assert!(judge(&Step::succeeded("pyverbs", &SAID[..5])).is_err());
    }
}
