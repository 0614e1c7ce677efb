//! Runs the test executables of the workspace, several at a time.
//!
//! `cargo test` runs one executable after another, so a long test at the end of an executable leaves processors idle.
//! Here cargo builds the executables and lists them. Then up to [`AT_ONCE`] of them run at a time, the longest first.
//! The output of an executable is printed when it has ended, so that outputs do not mix. The line of a failed test, or
//! of one that takes long, is printed at once.

use std::collections::VecDeque;
use std::io::{BufReader, Write, sink, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
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
/// Time that the output of an executable may stay open after its end.
const OUTPUT_LIMIT: Duration = Duration::from_secs(60);
/// Shortest time of an executable in the table of times.
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
    kind: Vec<String>,
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
    /// Kind and name of the target, and package; or "documentation".
    pub(super) name: String,
    /// The error says why the job did not run or was given up.
    pub(super) status: Result<ExitStatus>,
    pub(super) found: Found,
    took: Duration,
}

impl Ended {
    pub(super) fn succeeded(&self) -> bool {
        self.status.as_ref().is_ok_and(ExitStatus::success)
    }
}

/// Builds all tests of the workspace, and runs them and the tests in documentation with these environment variables.
///
/// # Errors
/// The build failed. A failed job is in the result.
pub(super) fn run(variables: &[(&str, String)]) -> Result<Vec<Ended>> {
    let mut jobs = jobs(&built()?)?;
    let mut documentation = shell::cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    documentation.args(["--", "--show-output"]);
    jobs.push(Job {
        name: "documentation".into(),
        command: documentation,
    });
    let wanted = std::env::var(THREADS).ok();
    for job in &mut jobs {
        job.command
            .envs(variables.iter().map(|(key, value)| (key, value)));
        if wanted.is_none() {
            job.command.env(THREADS, threads()?.to_string());
        }
    }
    // If tests are to run one at a time, so are the executables.
    let at_once = match wanted.as_deref() {
        Some("1") => 1,
        Some(_) | None => AT_ONCE,
    };
    let ended = run_jobs(jobs, at_once, OUTPUT_LIMIT, &mut stdout());
    // The result counts even if nobody reads the table.
    let _ = writeln!(stdout(), "{}", table(&ended));
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
    // A procedural macro may print lines of its own between the messages.
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        let artifact: Artifact = serde_json::from_value(message)?;
        let Some(executable) = artifact.executable.filter(|_| artifact.profile.test) else {
            continue;
        };
        let Target { name, kind } = artifact.target;
        let start = LONGEST.iter().position(|longest| *longest == name);
        let target = format!("{} {name}", kind.join(" "));
        jobs.push((
            start.unwrap_or(LONGEST.len()),
            job(&target, &artifact.manifest_path, &executable)?,
        ));
    }
    jobs.sort_by_key(|(start, _)| *start);
    Ok(jobs.into_iter().map(|(_, job)| job).collect())
}

/// Returns the job that runs an executable as cargo does: in the package's directory, and with `CARGO_MANIFEST_DIR`.
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

/// Runs the jobs in their order, `at_once` at a time, and writes the output of each when it has ended.
fn run_jobs(
    jobs: Vec<Job>,
    at_once: usize,
    output_limit: Duration,
    to: &mut (impl Write + Send),
) -> Vec<Ended> {
    let count = jobs.len();
    let jobs = Mutex::new(VecDeque::from(jobs));
    let results = Mutex::new((Vec::new(), to));
    let run_next = || {
        loop {
            let next = lock(&jobs).pop_front();
            let Some(job) = next else { return };
            let (one, text) = run_job(job, output_limit);
            // The lock also keeps the outputs apart.
            let mut results = lock(&results);
            let (ended, to) = &mut *results;
            // An output that nobody reads any more ends no test.
            let _ = to.write_all(&text);
            let (name, number, took) = (&one.name, ended.len() + 1, one.took.as_secs());
            let how = if one.succeeded() { "ended" } else { "FAILED" };
            let _ = writeln!(stderr(), "{number} of {count}: {name} {how}, {took} s");
            ended.push(one);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(run_next);
        }
    });
    let results = results.into_inner();
    results.unwrap_or_else(PoisonError::into_inner).0
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a job. Returns its result and its output.
fn run_job(mut job: Job, output_limit: Duration) -> (Ended, Vec<u8>) {
    let began = Instant::now();
    let shown = shell::announce(&job.command);
    let started = job.command.stdout(Stdio::piped()).spawn();
    let (status, found, text) = match started.with_context(|| format!("cannot start `{shown}`")) {
        Ok(child) => finish(child, &job.name, output_limit),
        Err(error) => (Err(error), Found::default(), Vec::new()),
    };
    let ended = Ended {
        name: job.name,
        status,
        found,
        took: began.elapsed(),
    };
    (ended, text)
}

/// Waits until a child has ended and its output is complete. If the output does not end, the result has the part that
/// was read.
fn finish(mut child: Child, name: &str, limit: Duration) -> (Result<ExitStatus>, Found, Vec<u8>) {
    let (to, read) = mpsc::channel();
    let text = Arc::new(Mutex::new(format!("\n{name}:\n").into_bytes()));
    if let Some(output) = child.stdout.take() {
        let mut output_of = OutputOf {
            name: name.to_owned(),
            text: Arc::clone(&text),
        };
        std::thread::spawn(move || {
            // An error means that the job was given up.
            let _ = to.send(output::pass_on(BufReader::new(output), &mut output_of));
        });
    }
    let status = child.wait().context("waiting for the executable");
    let read = read.recv_timeout(limit);
    let text = lock(&text).clone();
    let why = match read {
        Ok(Ok(found)) => return (status, found, text),
        Ok(Err(error)) => format!("its output cannot be read: {error:#}"),
        Err(RecvTimeoutError::Timeout) => {
            "a process that it started still has its output open".to_owned()
        }
        Err(RecvTimeoutError::Disconnected) => "its output was not read".to_owned(),
    };
    let status = status.and_then(|status| Err(anyhow!("it ended with {status}, and {why}")));
    let found = output::pass_on(&text[..], &mut sink()).unwrap_or_default();
    (status, found, text)
}

/// The output of an executable so far. The line of a failed test, or of one that takes long, is printed at once.
struct OutputOf {
    name: String,
    text: Arc<Mutex<Vec<u8>>>,
}

impl Write for OutputOf {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if text.ends_with(" ... FAILED\n") || text.contains("has been running for over") {
            let _ = write!(stderr(), "{}: {text}", self.name);
        }
        lock(&self.text).extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
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
{"reason":"compiler-artifact","manifest_path":"/w/dat-core/Cargo.toml","target":{"kind":["lib"],"name":"dat_core"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/dat-core/Cargo.toml","target":{"kind":["lib"],"name":"dat_core"},"profile":{"test":true},"executable":"/w/target/dat_core-1"}
{"reason":"compiler-artifact","manifest_path":"/w/datctl/Cargo.toml","target":{"kind":["bin"],"name":"datctl"},"profile":{"test":false},"executable":"/w/target/datctl"}
{"reason":"compiler-artifact","manifest_path":"/w/datctl/Cargo.toml","target":{"kind":["test"],"name":"cli"},"profile":{"test":true},"executable":"/w/target/cli-1"}
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
            ("test cli of datctl", "/w/datctl"),
            ("lib dat_core of dat-core", "/w/dat-core"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_longest_are_targets_that_there_are() {
        let metadata = ["metadata", "--no-deps", "--format-version", "1"];
        let metadata = shell::capture(shell::cargo(&metadata)).unwrap();
        let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
        let packages = metadata["packages"].as_array().unwrap().iter();
        let targets: Vec<&str> = packages
            .flat_map(|package| package["targets"].as_array().unwrap())
            .filter_map(|target| target["name"].as_str())
            .collect();
        for name in LONGEST {
            assert!(targets.contains(&name), "{name}");
        }
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
            Job {
                name: "none".into(),
                command: Command::new("/nonexistent/tests"),
            },
        ];
        let mut output = Vec::new();
        let mut ended = run_jobs(jobs, AT_ONCE, OUTPUT_LIMIT, &mut output);
        let output = String::from_utf8(output).unwrap();
        assert!(output.contains("\none:\ntest a ... FAILED\n"), "{output}");
        ended.sort_by(|one, other| one.name.cmp(&other.name));
        let [none, one, three, two] = &ended[..] else {
            panic!("{} ended", ended.len());
        };
        assert_eq!(one.status.as_ref().unwrap().code(), Some(101));
        assert_eq!(one.found.failed, ["a"]);
        let error = none.status.as_ref().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/tests"), "{error}");
        assert!(three.succeeded());
        assert_eq!(two.status.as_ref().unwrap().code(), None);
    }

    /// `cat` holds the output open. It ends with this test, which closes its input. A shell gives a background command
    /// no input unless it is redirected.
    #[test]
    fn an_output_that_does_not_end_loses_no_failure() {
        // More than a pipe holds: the shell ends only after its first line was read.
        let lines = "head -c 200000 /dev/zero | tr '\\0' '\\n'";
        let script = format!("echo 'test b ... FAILED'; exec 3<&0; cat <&3 & {lines}; exit 101");
        let mut command = shell::command("sh", &["-c", &script]);
        let (input, _open) = std::io::pipe().unwrap();
        command.stdin(input);
        let name = "stuck".into();
        let mut output = Vec::new();
        let jobs = vec![Job { name, command }];
        let ended = run_jobs(jobs, AT_ONCE, Duration::from_millis(200), &mut output);
        let error = ended[0].status.as_ref().unwrap_err().to_string();
        assert!(
            error.contains("exit status: 101") && error.contains("still has its output open"),
            "{error}"
        );
        assert_eq!(ended[0].found.failed, ["b"]);
        let output = String::from_utf8(output).unwrap();
        assert!(output.starts_with("\nstuck:\ntest b ... FAILED\n"));
        let said = crate::check::failures(&ended);
        assert!(said.ends_with("1 test failed:\n  b"), "{said}");
    }
}
