//! `datctl` processes: a server of simulated functions, and its clients. Each process is killed when its handle is
//! dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// A running `datctl`.
pub struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts datctl with the default signal actions. If the tests run in the background they ignore SIGINT, and a
    /// child would inherit this.
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new("env")
            .arg("--default-signal=INT,TERM,HUP")
            .arg(env!("CARGO_BIN_EXE_datctl"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("datctl runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    /// Returns the next line of output; an empty string at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    /// Writes a line to the process, and returns the line that answers it.
    pub fn ask(&mut self, line: &str) -> String {
        let input = self.child.stdin.as_mut().expect("its input");
        writeln!(input, "{line}").expect("it reads");
        self.line()
    }

    /// Waits until the process ends by itself, and returns its exit status.
    pub fn status(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process");
        kill(Pid::from_raw(pid), signal).expect("it is there");
    }

    /// Waits until a thread of the process has this name.
    pub fn wait_for_thread(&self, name: &str) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let named = |task: std::fs::DirEntry| {
            let comm = std::fs::read_to_string(task.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim() == name)
        };
        loop {
            let mut threads = std::fs::read_dir(&tasks).expect("it lives").flatten();
            if threads.any(named) {
                return;
            }
            std::thread::yield_now();
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Simulated functions that another process serves: two on a link, or those of a card.
pub struct Served {
    directory: TempDir,
    /// Directory of the socket that steers the simulation, if it has one.
    control: Option<TempDir>,
    pub server: Process,
}

impl Served {
    pub fn new(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b] = ["a", "b"].map(|side| directory.path().join(side).display().to_string());
        let sockets = ["sim", "serve", "--socket", &a, "--socket", &b];
        let mut server = Process::start(&[&sockets, options].concat());
        assert_eq!(
            [server.line(), server.line()],
            [format!("vfio-user:{a}"), format!("vfio-user:{b}")]
        );
        Self {
            directory,
            control: None,
            server,
        }
    }

    /// Serves a card with two virtual functions, in another process.
    pub fn card(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let card = directory.path().join("card").display().to_string();
        let card_of_two = ["sim", "serve", "--card", &card, "--vfs", "2"];
        let mut server = Process::start(&[&card_of_two, options].concat());
        for function in ["pf", "vf0", "vf1"] {
            assert_eq!(server.line(), format!("vfio-user:{card}.{function}"));
        }
        Self {
            directory,
            control: None,
            server,
        }
    }

    /// Serves two functions on a link that can be steered.
    pub fn steered() -> Self {
        let control = tempfile::tempdir().expect("a directory");
        let socket = control.path().join("control").display().to_string();
        let mut served = Self::new(&["--steer", &socket]);
        served.control = Some(control);
        served
    }

    /// Steers the simulation, and returns the answer.
    pub fn steer(&self, words: &[&str]) -> Value {
        let control = self.control.as_ref().expect("it is steered");
        let socket = control.path().join("control").display().to_string();
        let (code, answer) = json(&[&["sim", "ctl", &socket], words].concat());
        assert_eq!(code, Some(0), "{words:?}: {answer}");
        answer
    }

    /// Waits until the function on a side has rung this many doorbells of send queues.
    pub fn wait_for_doorbells(&self, side: &str, count: u64) {
        let socket = self.directory.path().join(side).display().to_string();
        for _ in 0..10_000 {
            let counted = self.steer(&["counters"]);
            let rung = &counted["functions"][&socket]["send_doorbells"];
            if rung.as_u64().expect("a number") >= count {
                return;
            }
        }
        panic!("side {side} never rang {count} doorbells");
    }

    pub fn name(&self, side: &str) -> String {
        format!("vfio-user:{}", self.directory.path().join(side).display())
    }

    /// Starts a passive end on side a. Returns the process and its address.
    pub fn listener(&self, command: &str) -> (Process, String) {
        let mut listener = Process::start(&[command, &self.name("a"), "--listen"]);
        let line = listener.line();
        let address = line.strip_prefix("listening on ").expect("an address");
        (listener, address.to_owned())
    }
}

pub fn datctl(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_datctl"))
        .args(arguments)
        .output()
        .expect("datctl runs")
}

/// Runs datctl with `--json`. Returns its exit status and the object it prints.
pub fn json(arguments: &[&str]) -> (Option<i32>, Value) {
    let output = datctl(&[&["--json"], arguments].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    let value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{text:?}: {error}; {}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (output.status.code(), value)
}

/// A command that fails before it has anything to write leaves the file that it names as it was.
#[test]
fn a_command_that_fails_leaves_the_files_that_it_was_given() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (socket, file) = (at("socket"), at("file"));
    let serve = ["sim", "serve", "--socket", &socket];
    let perf = ["perf", "vfio-user:/nowhere/a", "vfio-user:/nowhere/b"];
    for (command, wrong) in [
        (&serve[..], &["--socket", "/nowhere/second"][..]),
        (&serve, &["--faults", "3:removal@1s"]),
        (&serve, &["--link", "unix:/nowhere/wire"]),
        (&serve, &["--steer", "/nowhere/control"]),
        (&perf, &[]),
    ] {
        let options = match command[0] {
            "perf" => ["--csv", "--svg"],
            _ => ["--record", "--pcap"],
        };
        for option in options {
            std::fs::write(&file, "a person's").expect("a file");
            let output = datctl(&[command, wrong, &[option, &file]].concat());
            assert!(!output.status.success(), "{command:?} {wrong:?} {option}");
            let left = std::fs::read_to_string(&file).expect("a file");
            assert_eq!(left, "a person's", "{command:?} {wrong:?} {option}");
        }
    }
}

/// A server replaces what was in its files, and a second server with the same files does not start.
#[test]
fn a_server_has_its_files_for_itself_from_the_moment_it_is_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (socket, other) = (at("socket"), at("other"));
    let files = [at("record"), at("pcap")];
    let options = ["--record", &files[0], "--pcap", &files[1]];
    let former = vec![b'x'; 1 << 20];
    for file in &files {
        std::fs::write(file, &former).expect("a file");
    }
    let mut server =
        Process::start(&[&["sim", "serve", "--socket", &socket], &options[..]].concat());
    assert!(server.line().starts_with("vfio-user:"));
    for file in &files {
        let bytes = std::fs::read(file).expect("a file");
        assert!(!bytes.is_empty() && bytes.len() < former.len(), "{file}");
        assert!(!former.starts_with(&bytes), "{file}");
    }
    for (option, file) in [("--record", &files[0]), ("--pcap", &files[1])] {
        let before = std::fs::read(file).expect("a file");
        let output = datctl(&["sim", "serve", "--socket", &other, option, file]);
        assert!(!output.status.success(), "{option}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("is being written to it"), "{said}");
        let now = std::fs::read(file).expect("a file");
        assert!(now.starts_with(&before), "{option}");
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.status(), Some(0));
}
