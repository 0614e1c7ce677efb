//! Runs test executables and other commands, several at a time.
//!
//! Jobs come as the build makes them. While it runs, one of them runs beside it; afterwards up to [`AT_ONCE`] do, the
//! longest first. The output of a job is printed when the job has ended, so that outputs do not mix. The line of a
//! failed test, or of one that takes long, is printed at once.

use std::io::{BufReader, Write, sink, stderr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use comfy_table::Table;

use super::output::{self, Found};
use crate::shell;

/// Number of jobs that run at a time.
pub(super) const AT_ONCE: usize = 3;
/// Number of jobs that run at a time beside the build, which has the processors otherwise.
const BESIDE_BUILD: usize = 1;
/// Time that the output of a job may stay open after its end.
pub(super) const OUTPUT_LIMIT: Duration = Duration::from_secs(60);
/// Shortest time of a job in the table of times.
const SHOWN_FROM: Duration = Duration::from_secs(2);

/// A command that runs tests.
pub(super) struct Job {
    pub(super) name: String,
    pub(super) command: Command,
    /// Place in the order of jobs: a lower number starts first.
    pub(super) rank: usize,
    /// True if the job uses programs of the workspace, so that it starts only after the build.
    pub(super) after_build: bool,
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

/// Jobs that have not started, and the state of the build that makes them.
#[derive(Default)]
struct State {
    /// Jobs by their rank, then by their time of arrival.
    waiting: Vec<Job>,
    running: usize,
    /// Number of all jobs, once the build has ended.
    count: Option<usize>,
    added: usize,
}

/// Queue of jobs.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    at_once: usize,
}

impl Queue {
    /// Makes an empty queue of which `at_once` jobs run at a time after the build.
    pub(super) fn new(at_once: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            at_once,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds a job of a build that runs.
    pub(super) fn add(&self, job: Job) {
        let mut state = self.state();
        state.added += 1;
        let at = state
            .waiting
            .partition_point(|other| other.rank <= job.rank);
        state.waiting.insert(at, job);
        drop(state);
        self.changed.notify_all();
    }

    /// Ends the build: no more jobs come, and all may start. If the build failed, those that wait do not start.
    pub(super) fn built(&self, well: bool) {
        let mut state = self.state();
        state.count = Some(state.added);
        if !well {
            state.waiting.clear();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the next job, as soon as one may start; `None` if there is none any more.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            let (is_built, at_once) = match state.count {
                Some(_) => (true, self.at_once),
                None => (false, self.at_once.min(BESIDE_BUILD)),
            };
            if state.running < at_once {
                let mut waiting = state.waiting.iter();
                if let Some(at) = waiting.position(|job| is_built || !job.after_build) {
                    state.running += 1;
                    return Some(state.waiting.remove(at));
                }
                if is_built {
                    return None;
                }
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes the end of a job. Returns the number of all jobs, if it is known.
    fn ended(&self) -> Option<usize> {
        let mut state = self.state();
        state.running -= 1;
        let count = state.count;
        drop(state);
        self.changed.notify_all();
        count
    }

    /// Runs the jobs as they come, and writes the output of each when it has ended. Returns after the build and the
    /// last job.
    pub(super) fn run(&self, output_limit: Duration, to: &mut (impl Write + Send)) -> Vec<Ended> {
        let results = Mutex::new((Vec::new(), to));
        let run_next = || {
            while let Some(job) = self.next() {
                let (one, text) = run_job(job, output_limit);
                let count = self.ended();
                // The lock also keeps the outputs apart.
                let mut results = lock(&results);
                let (ended, to) = &mut *results;
                // A closed output does not end the tests.
                let _ = to.write_all(&text);
                let (name, number, took) = (&one.name, ended.len() + 1, one.took.as_secs());
                let of = count
                    .map(|count| format!(" of {count}"))
                    .unwrap_or_default();
                let how = if one.succeeded() { "ended" } else { "FAILED" };
                let _ = writeln!(stderr(), "{number}{of}: {name} {how}, {took} s");
                ended.push(one);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.at_once {
                scope.spawn(run_next);
            }
        });
        let results = results.into_inner();
        results.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

/// Returns the times of the longest jobs.
pub(super) fn table(ended: &[Ended]) -> Table {
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

    fn job(name: &str, script: &str) -> Job {
        Job {
            name: name.into(),
            command: shell::command("sh", &["-c", script]),
            rank: 0,
            after_build: false,
        }
    }

    fn queue_of(jobs: impl IntoIterator<Item = Job>) -> Queue {
        let queue = Queue::new(AT_ONCE);
        for job in jobs {
            queue.add(job);
        }
        queue
    }

    #[test]
    fn every_job_runs_and_a_failed_one_ends_no_other() {
        let queue = queue_of([
            job("one", "echo 'test a ... FAILED'; exit 101"),
            job("two", "kill -SEGV $$"),
            job("three", "true"),
            Job {
                command: Command::new("/nonexistent/tests"),
                ..job("none", "")
            },
        ]);
        queue.built(true);
        let mut output = Vec::new();
        let mut ended = queue.run(OUTPUT_LIMIT, &mut output);
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

    #[test]
    fn beside_the_build_one_job_runs_and_none_that_uses_other_programs() {
        let queue = queue_of([
            Job {
                after_build: true,
                ..job("first", "true")
            },
            Job {
                rank: 2,
                ..job("third", "true")
            },
            Job {
                rank: 1,
                ..job("second", "true")
            },
        ]);
        assert_eq!(queue.next().unwrap().name, "second");
        let state = queue.state();
        assert!(state.running == BESIDE_BUILD && state.waiting.len() == 2);
        drop(state);
        assert_eq!(queue.ended(), None, "more may come");
        assert_eq!(queue.next().unwrap().name, "third");
        queue.built(true);
        assert_eq!(queue.next().unwrap().name, "first");
        assert_eq!(queue.ended(), Some(3));
        assert!(queue.next().is_none());
    }

    #[test]
    fn after_a_failed_build_no_job_starts() {
        let queue = queue_of([job("one", "true")]);
        queue.built(false);
        assert!(queue.run(OUTPUT_LIMIT, &mut Vec::new()).is_empty());
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
        let queue = queue_of([Job {
            command,
            ..job("stuck", "")
        }]);
        queue.built(true);
        let mut output = Vec::new();
        let ended = queue.run(Duration::from_millis(200), &mut output);
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
