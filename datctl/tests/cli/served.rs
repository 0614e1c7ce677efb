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
