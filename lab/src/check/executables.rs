//! Builds the test executables of the workspace, and runs them.
//!
//! `cargo test` runs one executable after another, so a long test at the end of an executable leaves processors idle.
//! Here cargo only builds the executables. Each becomes a job as soon as it is built ([`super::jobs`]).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::jobs::{AT_ONCE, Ended, Job, OUTPUT_LIMIT, Queue, table};
use crate::shell;

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

/// Output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

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

/// Builds all tests of the workspace, and runs them and the tests in documentation with these environment variables.
/// `meanwhile` runs beside the build, as does one test executable at a time. All other tests start after both.
///
/// Returns the jobs that have ended, failed ones included, and the result of the build and of `meanwhile`.
///
/// # Errors
/// The number of processors is unknown. Nothing has run.
pub(super) fn run(
    variables: &[(&str, String)],
    meanwhile: impl FnOnce() -> Result<()> + Send,
) -> Result<(Vec<Ended>, Result<()>)> {
    let wanted = std::env::var(THREADS).ok();
    let threads = threads()?.to_string();
    let prepared = |mut job: Job| {
        job.command
            .envs(variables.iter().map(|(key, value)| (key, value)));
        if wanted.is_none() {
            job.command.env(THREADS, &threads);
        }
        job
    };
    // If tests are to run one at a time, so are the executables.
    let at_once = match wanted.as_deref() {
        Some("1") => 1,
        Some(_) | None => AT_ONCE,
    };
    let queue = Queue::new(at_once);
    let (ended, built) = std::thread::scope(|scope| {
        let build = scope.spawn(|| -> Result<()> {
            let mut end = EndOfBuild {
                queue: &queue,
                well: false,
            };
            let all = [
                "test",
                "--workspace",
                "--no-run",
                "--message-format",
                "json-render-diagnostics",
            ];
            let programs = packages_with_programs()?;
            build(shell::cargo(&all), &programs, meanwhile, |job| {
                queue.add(prepared(job))
            })?;
            queue.add(prepared(documentation()));
            end.well = true;
            Ok(())
        });
        let ended = queue.run(OUTPUT_LIMIT, &mut stdout());
        let built = build.join();
        // PANIC: a panic of that thread goes on in this one.
        (
            ended,
            built.unwrap_or_else(|why| std::panic::resume_unwind(why)),
        )
    });
    // A closed output does not change the result.
    let _ = writeln!(stdout(), "{}", table(&ended));
    Ok((ended, built))
}

/// Reports the end of the build to the queue when it is dropped, even if the thread that builds panics.
struct EndOfBuild<'a> {
    queue: &'a Queue,
    well: bool,
}

impl Drop for EndOfBuild<'_> {
    fn drop(&mut self) {
        self.queue.built(self.well);
    }
}

/// Returns the number of tests of an executable that run at once.
fn threads() -> Result<usize> {
    let processors = std::thread::available_parallelism()?.get();
    Ok((processors + WAITING).div_ceil(AT_ONCE))
}

/// Returns the job of the tests in documentation.
fn documentation() -> Job {
    let mut command = shell::cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    command.args(["--", "--show-output"]);
    Job {
        name: "documentation".into(),
        command,
        rank: LONGEST.len(),
        after_build: true,
    }
}

/// Returns the manifests of the packages that have programs.
fn packages_with_programs() -> Result<BTreeSet<PathBuf>> {
    let metadata = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata: Metadata = serde_json::from_str(&shell::capture(shell::cargo(&metadata))?)?;
    let is_program = |target: &Target| target.kind.iter().any(|kind| kind == "bin");
    let packages = metadata.packages.into_iter();
    let with = packages.filter(|package| package.targets.iter().any(is_program));
    Ok(with.map(|package| package.manifest_path).collect())
}

/// Runs the build `command`, and calls `add` with the job of each test executable as soon as it is built. Calls
/// `meanwhile` while the build runs. `programs` are the manifests of packages with programs. Returns after the build
/// and `meanwhile`.
///
/// # Errors
/// The build or `meanwhile` failed, or a message of cargo cannot be read. The jobs that were added stay valid.
fn build(
    mut command: Command,
    programs: &BTreeSet<PathBuf>,
    meanwhile: impl FnOnce() -> Result<()>,
    add: impl Fn(Job) + Sync,
) -> Result<()> {
    let shown = shell::announce(&command);
    let mut cargo = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let output = cargo.stdout.take().context("its output is a pipe")?;
    std::thread::scope(|scope| {
        let messages = scope.spawn(|| {
            for line in BufReader::new(output).lines() {
                if let Some(job) = job_of(&line?, programs)? {
                    add(job);
                }
            }
            Ok(())
        });
        let done = meanwhile();
        let read = messages.join();
        // PANIC: a panic of that thread goes on in this one.
        let read: Result<()> = read.unwrap_or_else(|why| std::panic::resume_unwind(why));
        // A message that cannot be read closes the pipe, and cargo ends at its next one.
        let status = cargo.wait()?;
        read?;
        ensure!(status.success(), "`{shown}` ended with {status}");
        done
    })
}

/// Returns the job of the test executable that a message of cargo names; `None` if it names none.
fn job_of(line: &str, programs: &BTreeSet<PathBuf>) -> Result<Option<Job>> {
    // A procedural macro may print lines of its own between the messages.
    if !line.starts_with('{') {
        return Ok(None);
    }
    let message: serde_json::Value = serde_json::from_str(line)?;
    if message["reason"] != "compiler-artifact" {
        return Ok(None);
    }
    let artifact: Artifact = serde_json::from_value(message)?;
    let Some(executable) = artifact.executable.filter(|_| artifact.profile.test) else {
        return Ok(None);
    };
    let job = job(&artifact.target, &artifact.manifest_path, &executable)?;
    let is_library = artifact.target.kind.iter().any(|kind| kind == "lib");
    Ok(Some(Job {
        // Cargo builds a test of programs before or after the programs.
        after_build: !is_library && programs.contains(&artifact.manifest_path),
        ..job
    }))
}

/// Returns the job that runs an executable as cargo does: in the package's directory, and with `CARGO_MANIFEST_DIR`.
fn job(target: &Target, manifest: &Path, executable: &Path) -> Result<Job> {
    let Target { name, kind } = target;
    let directory = manifest.parent().context("a manifest has a directory")?;
    let package = directory.file_name().unwrap_or_default().to_string_lossy();
    let mut command = Command::new(executable);
    command
        .arg("--show-output")
        .current_dir(directory)
        .env("CARGO_MANIFEST_DIR", directory);
    let rank = LONGEST.iter().position(|longest| longest == name);
    Ok(Job {
        name: format!("{} {name} of {package}", kind.join(" ")),
        command,
        rank: rank.unwrap_or(LONGEST.len()),
        after_build: false,
    })
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
{"reason":"compiler-artifact","manifest_path":"/w/lab/Cargo.toml","target":{"kind":["bin"],"name":"lab"},"profile":{"test":true},"executable":"/w/target/lab-1"}
{"reason":"build-finished","success":true}"#;

    #[test]
    fn tests_run_in_their_packages_and_those_of_programs_after_the_build() {
        let programs = ["datctl", "lab"].map(|name| format!("/w/{name}/Cargo.toml").into());
        let programs = BTreeSet::from(programs);
        let jobs = MESSAGES
            .lines()
            .filter_map(|line| job_of(line, &programs).unwrap());
        let shown: Vec<_> = jobs
            .map(|job| {
                let directory = job.command.get_current_dir().unwrap();
                let directory = directory.display().to_string();
                (job.name, directory, job.rank, job.after_build)
            })
            .collect();
        let expected = [
            (
                "lib dat_core of dat-core",
                "/w/dat-core",
                LONGEST.len(),
                false,
            ),
            ("test cli of datctl", "/w/datctl", 1, true),
            ("bin lab of lab", "/w/lab", 0, true),
        ];
        let expected = expected.map(|(name, directory, rank, after_build)| {
            (name.to_owned(), directory.to_owned(), rank, after_build)
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_failed_build_and_failed_work_beside_it_are_errors() {
        let refused = anyhow::anyhow!("no mirror");
        let error = build(
            shell::command("true", &[]),
            &BTreeSet::new(),
            || Err(refused),
            drop,
        )
        .unwrap_err();
        assert_eq!(error.to_string(), "no mirror");
        let error = build(
            shell::command("false", &[]),
            &BTreeSet::new(),
            || Ok(()),
            drop,
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.contains("false") && error.contains("exit status: 1"),
            "{error}"
        );
    }

    #[test]
    fn each_of_the_longest_targets_exists() {
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
}
