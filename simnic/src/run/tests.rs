//! Tests of how a run ends, with different readers of its output.
//!
//! The run is a separate process, because its standard output is a pipe that the test reads or leaves unread. A
//! second process replaces QEMU: it connects to the sockets as QEMU does and sends a guest's messages.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio, exit};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use guest::child::tied;

use super::session::Session;
use super::{NO_STATUS, Options, TIMED_OUT, follow, print_error};

/// Names of the environment variables with the role of a process and its parameters.
const PART: &str = "SIMNIC_TEST_PART";
const RUN: &str = "SIMNIC_TEST_RUN";
const OPTIONS: &str = "SIMNIC_TEST_OPTIONS";
const CASE: &str = "SIMNIC_TEST_CASE";

/// Size of the command's output in bytes, which is more than pipes and sockets can hold, and the value of each byte.
/// The test library writes no such byte to the same pipe.
const BYTES: usize = 2_000_000;
const BYTE: u8 = 0xff;
/// Exit status of the command, if it ends.
const STATUS: u8 = 3;
/// Line that the guest writes to the errors when it has sent all its messages.
const SAID: &str = "said";
/// Time limit for a run, which only serves to end a test that would hang.
const SURELY: Duration = Duration::from_secs(300);

/// Cases of the guest's behaviour, besides writing to the output.
mod case {
    /// Reports at once that the command has ended.
    pub const ENDS: &str = "ends";
    /// Never reports that the command has ended.
    pub const STAYS: &str = "stays";
    /// Writes as many bytes to the errors as to the output, and never ends.
    pub const STAYS_AND_COMPLAINS: &str = "complains";
    /// Reports at once that the command has ended, while simnic's output is a full disk.
    pub const ENDS_ON_A_FULL_DISK: &str = "ends, full";
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// Serves as the entry point of both child processes. It does nothing in an ordinary test run.
#[test]
fn part() {
    match std::env::var(PART).as_deref() {
        Ok("simnic") => simnic(),
        Ok(_) => guest(),
        Err(_) => {}
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).expect(name)
}

fn this_test(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "run::tests::part", "--nocapture"])
        .env(PART, part);
    command
}

fn simnic() {
    let run = PathBuf::from(variable(RUN));
    if variable(CASE) == case::ENDS_ON_A_FULL_DISK {
        let full = File::options().write(true).open("/dev/full");
        nix::unistd::dup2_stdout(full.expect("Linux has /dev/full")).expect("a descriptor");
    }
    let words = format!("simnic {} -- true", variable(OPTIONS));
    let options = Line::parse_from(words.split_whitespace()).options;
    let mut session = Session::open(&run, 2).expect("sockets");
    let status = follow(&options, &mut session, &tied(&this_test("guest")), &run);
    exit(i32::from(status.unwrap_or_else(|error| {
        print_error(&format!("{error:#}"));
        NO_STATUS
    })));
}

/// Sends the messages of a guest, and runs until simnic ends it.
fn guest() {
    let run = PathBuf::from(variable(RUN));
    let case = variable(CASE);
    let port =
        |name: &str| UnixStream::connect(run.join(format!("{name}.sock"))).expect("simnic listens");
    let (mut control, input, mut output, mut errors) =
        (port("control"), port("in"), port("out"), port("err"));
    writeln!(control, "ready").expect("simnic reads");
    let heard = control.try_clone().expect("a descriptor");
    let line = format!("{SAID}\n");
    if case.starts_with(case::ENDS) {
        writeln!(control, "status {STATUS} {BYTES} {}", line.len()).expect("simnic reads");
    }
    errors.write_all(line.as_bytes()).expect("simnic reads");
    let writer = thread::spawn(move || output.write_all(&vec![BYTE; BYTES]));
    if case == case::STAYS_AND_COMPLAINS {
        // This write never returns, because no process reads all of these bytes.
        let _ = errors.write_all(&vec![BYTE; BYTES]);
    }
    for line in BufReader::new(heard).lines().map_while(Result::ok) {
        writeln!(errors, "heard {line}").expect("simnic reads");
    }
    let _ = writer.join();
    drop(input);
}

/// A running simnic process.
struct Run {
    child: Child,
    output: Option<ChildStdout>,
    errors: Receiver<String>,
    _folder: tempfile::TempDir,
}

impl Run {
    fn begin(options: &str, case: &str) -> Self {
        Self::with(options, case, Stdio::piped())
    }

    fn with(options: &str, case: &str, errors: Stdio) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("simnic-")
            .tempdir_in("/tmp");
        let folder = folder.expect("a folder");
        // TERM is blocked from the start. The test library's threads would not block it, and a signal to one of them
        // would end the process.
        let test = this_test("simnic");
        let mut child = Command::new("env")
            .arg("--block-signal=TERM")
            .arg(test.get_program())
            .args(test.get_args())
            .env(PART, "simnic")
            .env(RUN, folder.path())
            .env(OPTIONS, options)
            .env(CASE, case)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("this program runs");
        let (tell, errors) = channel();
        if let Some(lines) = child.stderr.take() {
            thread::spawn(move || {
                let lines = BufReader::new(lines).lines().map_while(Result::ok);
                lines.for_each(|line| drop(tell.send(line)));
            });
        }
        Self {
            output: child.stdout.take(),
            child,
            errors,
            _folder: folder,
        }
    }

    /// Waits until simnic writes the line `wanted` to its errors.
    fn hears(&self, wanted: &str) {
        let mut heard = Vec::new();
        while heard.last().is_none_or(|line| line != wanted) {
            let line = self.errors.recv_timeout(SURELY);
            heard.push(line.unwrap_or_else(|_| panic!("no line {wanted:?} after {heard:?}")));
        }
    }

    /// Waits until simnic ends. Returns its exit status and the rest of its errors.
    fn end(mut self) -> (u8, String) {
        let until = Instant::now() + SURELY;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            if Instant::now() > until {
                let _ = self.child.kill();
                panic!("simnic run has not ended within {SURELY:?}");
            }
            thread::park_timeout(Duration::from_millis(20));
        };
        let said: Vec<String> = self.errors.iter().collect();
        let status = status.code().and_then(|code| u8::try_from(code).ok());
        (status.expect("an exit status"), said.join("\n"))
    }
}

/// Returns how many of the bytes read are the command's.
fn counted(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == BYTE).count()
}

/// Returns the number of lost bytes and the reason, from simnic's message.
fn lost(said: &str, of: &str) -> (usize, String) {
    let part = format!(" bytes of the command's {of} are lost: ");
    let lost = said.lines().find_map(|line| line.split_once(&part));
    let (bytes, why) = lost.unwrap_or_else(|| panic!("{said}"));
    let bytes = bytes.trim_start_matches("simnic: ").parse();
    (bytes.expect("a number"), why.to_owned())
}

fn reads(output: &mut impl Read, bytes: usize) {
    output.read_exact(&mut vec![0; bytes]).expect("its output");
}

#[test]
fn a_reader_that_begins_after_the_command_has_ended_gets_all_that_it_wrote() {
    let mut run = Run::begin("", case::ENDS);
    run.hears(SAID);
    let mut read = Vec::new();
    let mut output = run.output.take().expect("a pipe");
    output.read_to_end(&mut read).expect("its output");
    assert_eq!(counted(&read), BYTES);
    assert_eq!(run.end(), (STATUS, String::new()));
}

#[test]
fn a_run_ends_at_its_time_limit_though_nothing_reads_its_output() {
    for case in [case::STAYS, case::ENDS] {
        let mut run = Run::begin("--timeout 1", case);
        let output = run.output.take();
        let (status, said) = run.end();
        assert_eq!(status, TIMED_OUT, "{case}: {said}");
        let (bytes, why) = lost(&said, "output");
        // simnic reports all bytes but those in the pipe. It knows of bytes that the guest has not passed on only if
        // the command has ended.
        let known = if case == case::ENDS { BYTES } else { 200_000 };
        assert!((known - 100_000..BYTES).contains(&bytes), "{case}: {said}");
        assert_eq!(why, "nothing reads them");
        assert!(said.contains("in time (--timeout)"), "{case}: {said}");
        drop(output);
    }
}

#[test]
fn a_run_ends_at_its_time_limit_though_its_reader_stops_in_the_middle() {
    for case in [case::STAYS, case::ENDS] {
        // All that is read passes in less, also on a busy machine.
        let mut run = Run::begin("--timeout 4", case);
        let mut output = run.output.take().expect("a pipe");
        reads(&mut output, BYTES / 2);
        let (status, said) = run.end();
        assert_eq!(status, TIMED_OUT, "{case}: {said}");
        let (bytes, _) = lost(&said, "output");
        assert!((1..=BYTES / 2).contains(&bytes), "{case}: {said}");
    }
}

#[test]
fn a_run_ends_at_its_time_limit_though_nothing_reads_its_output_and_errors() {
    let (errors, kept) = std::io::pipe().expect("a pipe");
    let mut run = Run::with("--timeout 1", case::STAYS_AND_COMPLAINS, kept.into());
    let output = run.output.take();
    let (status, _) = run.end();
    assert_eq!(status, TIMED_OUT);
    drop((output, errors));
}

#[test]
fn a_reader_that_goes_away_does_not_change_the_status_and_its_loss_is_counted() {
    let mut run = Run::begin("", case::ENDS);
    let mut output = run.output.take().expect("a pipe");
    reads(&mut output, BYTES / 2);
    drop(output);
    let (status, said) = run.end();
    assert_eq!(status, STATUS, "{said}");
    let (bytes, why) = lost(&said, "output");
    assert!((1..=BYTES / 2).contains(&bytes), "{said}");
    assert!(why.contains("Broken pipe"), "{said}");
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure() {
    let (status, said) = Run::begin("", case::ENDS_ON_A_FULL_DISK).end();
    assert_eq!(status, NO_STATUS, "{said}");
    let (bytes, why) = lost(&said, "output");
    assert!(bytes == BYTES && why.contains("No space left"), "{said}");
}

#[test]
fn the_third_signal_ends_a_run_though_nothing_reads_its_output() {
    for case in [case::STAYS, case::ENDS] {
        let mut run = Run::begin("", case);
        let output = run.output.take();
        let id = nix::unistd::Pid::from_raw(run.child.id().try_into().expect("a process"));
        let term = || nix::sys::signal::kill(id, nix::sys::signal::SIGTERM).expect("it lives");
        run.hears(SAID);
        for _ in 0..2 {
            term();
            run.hears("heard signal TERM");
        }
        term();
        let (status, said) = run.end();
        assert_eq!(status, 128 + 15, "{case}: {said}");
        drop(output);
    }
}
