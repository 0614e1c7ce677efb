//! Runs the test executables of the workspace, several at a time.
//!
//! `cargo test` runs one executable after another, so a long test at the end of an executable leaves processors idle.
//! Here cargo builds the executables and lists them. Then [`AT_ONCE`] of them run at a time, the longest first.
//! The output of an executable is printed when it has ended, so that outputs do not mix.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::Table;
use serde::Deserialize;

use super::output::{self, Found};
use crate::shell;

/// Number of executables that run at a time.
const AT_ONCE: usize = 2;
/// Number of tests that run at once in addition to one for each processor, since some tests wait for a timer or a
/// process.
const WAITING: usize = 2;
/// Environment variable with the number of tests of an executable that run at once.
const THREADS: &str = "RUST_TEST_THREADS";
/// Targets whose tests take the longest, in the order in which they start. The others follow.
const LONGEST: [&str; 9] = [
    "lab",
    "cli",
    "dat",
    "vfio_user",
    "hostile",
    "provider",
    "simnic",
    "syscalls",
    "hca",
];
/// Executables that ended earlier are not in the table of times.
const SHOWN_FROM: Duration = Duration::from_secs(2);

/// A message of cargo about what it has built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A command that runs tests.
struct Job {
    name: String,
    command: Command,
}

/// A job that has ended.
pub(super) struct Ended {
    /// Target and package, or "documentation".
    pub(super) name: String,
    pub(super) status: ExitStatus,
    pub(super) found: Found,
    took: Duration,
}

/// Builds all tests of the workspace, and runs them and the tests in documentation with these environment variables.
///
/// # Errors
/// The build failed, or an executable could not be started. A failed test is in the result.
pub(super) fn run(variables: &[(&str, String)]) -> Result<Vec<Ended>> {
    let mut jobs = jobs(&built()?)?;
    let mut documentation = shell::cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    documentation.args(["--", "--show-output"]);
    jobs.push(Job {
        name: "documentation".into(),
        command: documentation,
    });
    for job in &mut jobs {
        job.command
            .envs(variables.iter().map(|(key, value)| (key, value)));
        if std::env::var_os(THREADS).is_none() {
            job.command.env(THREADS, threads()?.to_string());
        }
    }
    let ended = run_jobs(jobs)?;
    println!("{}", table(&ended));
    Ok(ended)
}

/// Returns the number of tests of an executable that run at once.
fn threads() -> Result<usize> {
    let processors = std::thread::available_parallelism()?.get();
    Ok((processors + WAITING).div_ceil(AT_ONCE))
}

/// Builds all tests of the workspace, and returns cargo's messages.
fn built() -> Result<String> {
    let command = shell::cargo(&[
        "test",
        "--workspace",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
    ]);
    shell::announce(&command);
    shell::capture(command)
}

/// Returns a job for each test executable in cargo's messages, the longest first.
fn jobs(messages: &str) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        let artifact: Artifact = serde_json::from_value(message)?;
        let Some(executable) = artifact.executable.filter(|_| artifact.profile.test) else {
            continue;
        };
        let target = artifact.target.name;
        let start = LONGEST.iter().position(|name| *name == target);
        jobs.push((
            start.unwrap_or(LONGEST.len()),
            job(&target, &artifact.manifest_path, &executable)?,
        ));
    }
    jobs.sort_by_key(|(start, _)| *start);
    Ok(jobs.into_iter().map(|(_, job)| job).collect())
}

/// Returns the job that runs an executable like cargo does: in the package's directory, which is in the environment.
fn job(target: &str, manifest: &Path, executable: &Path) -> Result<Job> {
    let directory = manifest.parent().context("a manifest has a directory")?;
    let package = directory.file_name().unwrap_or_default().to_string_lossy();
    let mut command = Command::new(executable);
    command
        .arg("--show-output")
        .current_dir(directory)
        .env("CARGO_MANIFEST_DIR", directory);
    Ok(Job {
        name: format!("{target} of {package}"),
        command,
    })
}

/// Runs the jobs in their order, [`AT_ONCE`] at a time.
fn run_jobs(jobs: Vec<Job>) -> Result<Vec<Ended>> {
    let jobs = Mutex::new(VecDeque::from(jobs));
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let run_next = || -> Result<()> {
            loop {
                let next = lock(&jobs).pop_front();
                let Some(job) = next else {
                    return Ok(());
                };
                let (one, output) = run_job(job)?;
                // The lock also keeps the outputs apart.
                let mut ended = lock(&ended);
                print!("{output}");
                ended.push(one);
            }
        };
        let threads = [(); AT_ONCE].map(|()| scope.spawn(run_next));
        let results = threads.map(|thread| thread.join().expect("no panic in a job"));
        results.into_iter().collect::<Result<Vec<()>>>()
    })?;
    Ok(ended.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_job(mut job: Job) -> Result<(Ended, String)> {
    let began = Instant::now();
    let shown = shell::announce(&job.command);
    let mut child = job
        .command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let output = child.stdout.take().context("its output is a pipe")?;
    let mut text = Vec::new();
    let found = output::pass_on(std::io::BufReader::new(output), &mut text)?;
    let ended = Ended {
        status: child.wait()?,
        name: job.name,
        found,
        took: began.elapsed(),
    };
    let text = format!("\n{}:\n{}", ended.name, String::from_utf8_lossy(&text));
    Ok((ended, text))
}

/// Returns the times of the longest executables.
fn table(ended: &[Ended]) -> Table {
    let mut table = Table::new();
    table.set_header(["tests", "s"]);
    let mut shown: Vec<&Ended> = ended.iter().filter(|one| one.took >= SHOWN_FROM).collect();
    shown.sort_by_key(|one| std::cmp::Reverse(one.took));
    for one in shown {
        table.add_row([&one.name, &format!("{:.0}", one.took.as_secs_f64())]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages in the form of cargo 1.95, with the fields that are read here.
    const MESSAGES: &str = r#"{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","manifest_path":"/w/dat-core/Cargo.toml","target":{"name":"dat_core"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/dat-core/Cargo.toml","target":{"name":"dat_core"},"profile":{"test":true},"executable":"/w/target/dat_core-1"}
{"reason":"compiler-artifact","manifest_path":"/w/datctl/Cargo.toml","target":{"name":"datctl"},"profile":{"test":false},"executable":"/w/target/datctl"}
{"reason":"compiler-artifact","manifest_path":"/w/datctl/Cargo.toml","target":{"name":"cli"},"profile":{"test":true},"executable":"/w/target/cli-1"}
{"reason":"build-finished","success":true}"#;

    #[test]
    fn test_executables_run_in_their_packages_and_the_longest_starts_first() {
        let jobs = jobs(MESSAGES).unwrap();
        let shown: Vec<_> = jobs
            .iter()
            .map(|job| {
                let directory = job.command.get_current_dir().unwrap();
                (job.name.as_str(), directory.to_str().unwrap())
            })
            .collect();
        let expected = [
            ("cli of datctl", "/w/datctl"),
            ("dat_core of dat-core", "/w/dat-core"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn every_job_runs_and_a_failed_one_ends_no_other() {
        let job = |name: &str, script: &str| {
            let command = shell::command("sh", &["-c", script]);
            let name = name.into();
            Job { name, command }
        };
        let jobs = vec![
            job("one", "echo 'test a ... FAILED'; exit 101"),
            job("two", "kill -SEGV $$"),
            job("three", "true"),
        ];
        let mut ended = run_jobs(jobs).unwrap();
        ended.sort_by(|one, other| one.name.cmp(&other.name));
        let [one, three, two] = &ended[..] else {
            panic!("{} ended", ended.len());
        };
        assert_eq!(one.status.code(), Some(101));
        assert_eq!(one.found.failed, ["a"]);
        assert!(three.status.success());
        assert_eq!(two.status.code(), None);
    }
}
