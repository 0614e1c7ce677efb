//! `test` and `check`: the tests to run before a commit, and all checks that CI runs.

mod beside;
mod executables;
mod jobs;
mod named;
mod output;

use std::io::{BufReader, Write, stdout};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use comfy_table::Table;
use serde::Deserialize;

use self::beside::Beside;
use self::jobs::Ended;
use self::output::Found;
use crate::{
    campaign, conformance, demo, deny, dtest, left_out, publish, setup, shear, shell, tidy, vm,
    wire,
};

/// Runs every test of the workspace, then checks captures with external programs. With a name, builds and runs only the
/// test targets with tests of that name, and installs nothing. Lists at the end what was left out.
pub fn test(name: Option<&str>) -> Result<()> {
    match name {
        Some(name) => with_what_was_left_out(|| named_tests(name)),
        None => {
            conformance::check_complete()?;
            with_what_was_left_out(|| tests(Extent::Short))
        }
    }
}

fn named_tests(name: &str) -> Result<()> {
    let mut failed = Vec::new();
    for target in named::targets(name)? {
        let command = shell::cargo(&target.arguments(name));
        if let Err(error) = run_tests(command, &mut stdout()) {
            failed.push(error.to_string());
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Runs `work`, then lists all checks that `test` or `check` left out.
fn with_what_was_left_out(work: impl FnOnce() -> Result<()>) -> Result<()> {
    let result = work();
    match left_out::table() {
        Some(table) => println!("{table}"),
        None => println!("nothing was left out"),
    }
    result
}

/// Extent of the tests that are exhaustive by nature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// For a person who waits for the result.
    Short,
    /// Before a change lands.
    Whole,
}

/// Environment variables for [`Extent::Whole`]: number of calls that are compared with the model of DAT, extent of the
/// harnesses with random inputs, generations on which the whole data path runs, and number of worlds of the campaign.
const WHOLE: [(&str, &str); 4] = [
    ("CALLS", "1000000"),
    ("FUZZ", "whole"),
    ("GENERATIONS", "all"),
    ("WORLDS", "240"),
];

fn tests(extent: Extent) -> Result<()> {
    let mut variables = Vec::new();
    if extent == Extent::Whole {
        variables.extend(WHOLE.map(|(name, value)| (name, value.to_owned())));
    }
    // Without git (a source archive), only the fixed seeds are used.
    if let Ok(commit) = shell::capture(shell::command("git", &["rev-parse", "HEAD"])) {
        variables.push(("SIM_COMMIT", commit.trim().to_owned()));
    }
    let (ended, built) = executables::run(&variables, setup::run)?;
    for ended in &ended {
        note_left_out(&ended.found);
    }
    verdict(built, &ended)?;
    let capture = shell::target().join("demo.pcapng");
    demo::small(&capture)?;
    wire::run(&capture, &[])?;
    let capture = shell::target().join("world.pcapng");
    campaign::capture(&capture)?;
    wire::run(&capture, &wire::EXTENSIONS)
}

/// Modules of `udapl/tests/dat` about the data path: messages, windows and shared receive queues.
const DATA_PATH: [&str; 9] = [
    "send::",
    "recv::",
    "inline::",
    "flags::",
    "rdma_write::",
    "rdma_read::",
    WINDOWS,
    "srq::",
    "lossy::",
];
/// The module of tests of memory windows, which a device may lack.
const WINDOWS: &str = "rmr::";

/// Output of `datctl sim profiles`.
#[derive(Deserialize)]
struct Profiles {
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    name: String,
    link: String,
    virtual_functions: bool,
    memory_windows: bool,
}

/// Runs the tests of the data path, or those with `filter` in their names, on each simulated generation with an
/// Ethernet port, and on its virtual functions if it has them.
pub fn profiles(filter: Option<&str>) -> Result<()> {
    let listed = [
        "run",
        shell::TESTED,
        "--bin",
        "datctl",
        "--",
        "--json",
        "sim",
        "profiles",
    ];
    let listed: Profiles = serde_json::from_str(&shell::capture(shell::cargo(&listed))?)?;
    for profile in listed.profiles {
        let generation = &profile.name;
        if profile.link == "infiniband" {
            continue;
        }
        let mut worlds = vec![generation.clone()];
        if profile.virtual_functions {
            worlds.push(format!("{generation}/vf"));
        }
        for world in worlds {
            println!("{world}");
            let mut arguments = vec!["test", "--workspace", "--test", "dat", "--"];
            match filter {
                Some(filter) => arguments.push(filter),
                None => arguments.extend(DATA_PATH),
            }
            if !profile.memory_windows {
                arguments.extend(["--skip", WINDOWS]);
            }
            let mut command = shell::cargo(&arguments);
            command.env("DAT_TEST_PROFILE", &world);
            run_tests(command, &mut stdout()).with_context(|| format!("on {world}"))?;
        }
    }
    Ok(())
}

/// Runs `cargo test` and prints its output as it comes. The error at the end repeats the names of the failed tests,
/// which have scrolled out of view by then. Records what tests have left out.
fn run_tests(mut command: Command, to: &mut impl Write) -> Result<()> {
    let shown = shell::announce(&command);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let output = child.stdout.take().context("its output is a pipe")?;
    let found = output::pass_on(BufReader::new(output), to)?;
    let status = child.wait()?;
    note_left_out(&found);
    ensure!(
        status.success(),
        "`{shown}` ended with {status}{}",
        list(&found.failed)
    );
    Ok(())
}

fn note_left_out(found: &Found) {
    for (test, why) in &found.left_out {
        left_out::note(&format!("of test {test}"), why);
    }
}

/// Returns an error if the build or a job failed, with the messages of all of them.
fn verdict(built: Result<()>, ended: &[Ended]) -> Result<()> {
    let failures = failures(ended);
    match built {
        Ok(()) => ensure!(failures.is_empty(), "{failures}"),
        Err(error) if failures.is_empty() => return Err(error),
        Err(error) => bail!("{error:#}\n{failures}"),
    }
    Ok(())
}

/// Returns the failed tests by executable. The end of the output repeats them, because they may have scrolled out of
/// view.
fn failures(ended: &[Ended]) -> String {
    let failed = ended.iter().filter(|one| !one.succeeded());
    let lines = failed.map(|one| {
        let failed = list(&one.found.failed);
        match &one.status {
            Ok(status) => format!("{} ended with {status}{failed}", one.name),
            Err(error) => format!("{}: {error:#}{failed}", one.name),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn list(failed: &[String]) -> String {
    let lines: String = failed.iter().map(|name| format!("\n  {name}")).collect();
    match failed.len() {
        0 => String::new(),
        1 => format!("\n1 test failed:{lines}"),
        count => format!("\n{count} tests failed:{lines}"),
    }
}

/// Runs all checks: format, house rules, foreign crates, lints, the library alone, documentation, tests, the upper
/// bounds of the hot path, programs of DAT 2.0, and the tests of the data path through a kernel in a virtual machine.
pub fn run() -> Result<()> {
    with_what_was_left_out(checks)
}

fn checks() -> Result<()> {
    let mut phases = Phases::default();
    let result = phases.all();
    println!("{}", phases.table());
    result
}

/// Phases of `check` that have run, each with its duration.
#[derive(Default)]
struct Phases {
    took: Vec<(&'static str, Duration)>,
}

impl Phases {
    fn phase(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let began = Instant::now();
        let result = work();
        self.took.push((name, began.elapsed()));
        result
    }

    fn all(&mut self) -> Result<()> {
        self.phase("format", || {
            shell::run(shell::cargo(&["fmt", "--all", "--check"]))
        })?;
        self.phase("house rules", || {
            tidy::run()?;
            conformance::check_complete()
        })?;
        self.phase("foreign crates", || {
            deny::run()?;
            shear::run()
        })?;
        self.phase("lints", || {
            shell::run(shell::cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "--deny",
                "warnings",
            ]))
        })?;
        self.phase("the library alone", publish::library_alone)?;
        self.phase("documentation", || {
            let mut doc = shell::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
            doc.env("RUSTDOCFLAGS", "--deny warnings");
            shell::run(doc)
        })?;
        self.phase("tests, with their build", || tests(Extent::Whole))?;
        // The counts of instructions, which have the bars, do not depend on what else runs. Its times are shown only.
        let bars = Beside::start("bench")?;
        self.phase("programs of DAT 2.0", dtest::check)?;
        self.phase("a kernel in a virtual machine", vm::check)?;
        self.phase("the hot path's bars, which ran beside them", || {
            bars.finish()
        })
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.set_header(["check", "s"]);
        let all = self.took.iter().map(|(_, took)| took).sum::<Duration>();
        for (name, took) in self.took.iter().chain([&("all", all)]) {
            table.add_row([*name, &format!("{:.0}", took.as_secs_f64())]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_counted_and_listed() {
        let names = ["dma::broken", "panics - should panic"].map(str::to_owned);
        assert_eq!(
            list(&names),
            "\n2 tests failed:\n  dma::broken\n  panics - should panic"
        );
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn a_failed_build_hides_no_failed_test() {
        let queue = jobs::Queue::new(1);
        queue.add(jobs::Job {
            name: "one".into(),
            command: shell::command("sh", &["-c", "echo 'test a ... FAILED'; exit 101"]),
            rank: 0,
            after_build: false,
        });
        queue.built(true);
        let ended = queue.run(jobs::OUTPUT_LIMIT, &mut Vec::new());
        let failed = "one ended with exit status: 101\n1 test failed:\n  a";
        let said =
            |built: Result<()>, ended| verdict(built, ended).expect_err("it failed").to_string();
        assert_eq!(said(Ok(()), &ended[..]), failed);
        let broken = || Err(anyhow::anyhow!("no linker"));
        assert_eq!(said(broken(), &ended[..]), format!("no linker\n{failed}"));
        assert_eq!(said(broken(), &[]), "no linker");
        assert!(verdict(Ok(()), &[]).is_ok());
    }

    #[test]
    fn the_error_of_a_failed_run_names_its_tests() {
        let mut command = shell::command("sh", &["-c", "echo 'test one ... FAILED'; exit 101"]);
        command.stderr(Stdio::null());
        let error = run_tests(command, &mut Vec::new())
            .expect_err("it failed")
            .to_string();
        assert!(error.ends_with("1 test failed:\n  one"), "{error}");
    }
}
