//! Runs a server and a client, each with a simulated function of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::distribution::Distribution;

/// IA name that each of the two processes resolves to its own function.
const IA: &str = "ofa-v2-sim";
/// Addresses of the server's and of the client's function.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const MACS: [&str; 2] = ["02:00:5e:10:00:01", "02:00:5e:10:00:02"];
/// TCP port through which the server of dtest, dtestcm and dtestx sends the client its address.
const PORT: u16 = 15828;
/// Time limit for each wait for a program.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval between checks of a program's progress.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Words that must not occur in the output of any program.
const BAD: [&str; 7] = [
    "FAILED", "Error", "error", "ERR", "fails", "Failed", "Warning",
];

/// Result of a mode.
pub struct Outcome {
    pub passed: bool,
    /// The line of output with a rate or a count.
    pub figure: String,
    /// The whole output of all programs.
    pub said: String,
}

/// Files and programs with which a server and a client are started.
pub struct Pair<'a> {
    distribution: &'a Distribution,
    libraries: PathBuf,
    folder: PathBuf,
}

/// A running program, killed on drop.
struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Waits until the program ends. Returns whether it succeeded, and its output.
    fn end(mut self) -> Result<(bool, String)> {
        let until = Instant::now() + PATIENCE;
        while !self.has_ended()? {
            if Instant::now() > until {
                bail!(
                    "{} has not ended after {PATIENCE:?}:\n{}",
                    self.name,
                    std::fs::read_to_string(&self.log)?
                );
            }
            pause();
        }
        let success = self.child.wait()?.success();
        Ok((success, std::fs::read_to_string(&self.log)?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors are ignored, because the program may have ended already.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

impl<'a> Pair<'a> {
    /// Writes the two files `dat.conf`. `prefix` contains the installed library, and gets the files of this module.
    pub fn new(distribution: &'a Distribution, prefix: &Path) -> Result<Self> {
        let folder = prefix.canonicalize()?;
        let wire = folder.join("wire");
        for side in 0..2 {
            let (other, library) = (1 - side, folder.join("lib/libdat.so"));
            let line = format!(
                "{IA} u2.0 nonthreadsafe default {} mlx5.0.1 \"sim:{side},link=unix:{},mac={},address={},neighbour={}/{}\" \"\"\n",
                library.display(),
                wire.display(),
                MACS[side],
                ADDRESSES[side],
                ADDRESSES[other],
                MACS[other],
            );
            std::fs::write(folder.join(format!("{side}.conf")), line)?;
        }
        Ok(Self {
            distribution,
            libraries: distribution.libraries()?,
            folder,
        })
    }

    /// Starts a program as server (side 0) or client (side 1).
    fn start(&self, side: usize, program: &str, arguments: &[&str]) -> Result<Running> {
        let log = self.folder.join(format!("{side}.log"));
        let out = File::create(&log)?;
        let path = self.distribution.program(program);
        // Line buffering: lines appear when they are printed, not when the program ends.
        let mut command = Command::new("stdbuf");
        command
            .args(["-oL", "-eL"])
            .arg(&path)
            .args(arguments)
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env("DAT_OVERRIDE", self.folder.join(format!("{side}.conf")))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        let child = command
            .spawn()
            .with_context(|| format!("stdbuf {}", path.display()))?;
        Ok(Running {
            child,
            name: format!("{program} {}", arguments.join(" ")),
            log,
        })
    }

    /// Waits until `there` returns true or the program has ended.
    fn until(running: &mut Running, mut there: impl FnMut(&Running) -> Result<bool>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !there(running)? && !running.has_ended()? {
            ensure!(
                Instant::now() < until,
                "{} is not ready after {PATIENCE:?}:\n{}",
                running.name,
                std::fs::read_to_string(&running.log)?
            );
            pause();
        }
        Ok(())
    }

    /// Runs `dtest`.
    pub fn dtest(&self, options: &str) -> Result<Outcome> {
        let said = self.both("dtest", options)?;
        let passed = clean(&said) && said.iter().all(|(_, text)| text.contains("PASSED"));
        Ok(outcome(passed, &said, &["MB/s", "latency"]))
    }

    /// Runs `dtestcm`.
    pub fn dtestcm(&self, options: &str) -> Result<Outcome> {
        let said = self.both("dtestcm", options)?;
        let passed = clean(&said) && said.iter().all(|(_, text)| text.contains("CONNECTED on"));
        Ok(outcome(passed, &said, &["Connections:"]))
    }

    /// Runs `dtestx`.
    pub fn dtestx(&self, options: &str) -> Result<Outcome> {
        let said = self.both("dtestx", options)?;
        let passed = clean(&said)
            && said.iter().all(|(_, text)| {
                text.contains("immed/atomic test PASSED")
                    // The program prints this line when it skips a test because the device lacks a feature.
                    && !text.contains("Skipping")
            });
        Ok(outcome(passed, &said, &["final result"]))
    }

    /// Runs the server and the client of one program with the same options. Returns whether each succeeded, and its
    /// output.
    fn both(&self, program: &str, options: &str) -> Result<[(bool, String); 2]> {
        ensure!(
            !listening(PORT)?,
            "TCP port {PORT}, which {program} uses, has a listener already"
        );
        let mut arguments = vec!["-P", IA];
        arguments.extend(options.split_whitespace());
        let mut server = self.start(0, program, &arguments)?;
        Self::until(&mut server, |_| listening(PORT))?;
        arguments.extend(["-h", "127.0.0.1"]);
        let client = self.start(1, program, &arguments)?.end()?;
        Ok([server.end()?, client])
    }

    /// Runs `dapltest`: a server, a client, and a second client that makes the server quit.
    pub fn dapltest(&self, options: &str) -> Result<Outcome> {
        let mut server = self.start(0, "dapltest", &["-T", "S", "-D", IA])?;
        Self::until(&mut server, |server| {
            Ok(std::fs::read_to_string(&server.log)?.contains("Service Point Ready"))
        })?;
        let mut words = options.split_whitespace();
        // The first two words select the kind of test.
        let mut arguments: Vec<&str> = words.by_ref().take(2).collect();
        arguments.extend(["-s", ADDRESSES[0], "-D", IA]);
        arguments.extend(words);
        let client = self.start(1, "dapltest", &arguments)?.end()?;
        let quit = ["-T", "Q", "-s", ADDRESSES[0], "-D", IA];
        let quit = self.start(1, "dapltest", &quit)?.end()?;
        let said = [server.end()?, client, quit];
        let passed = clean(&said) && said[1].1.contains("End of Work");
        Ok(outcome(passed, &said, &["Bandwidth", "Total WQE"]))
    }

    /// Runs `dapltest -T L`, which creates up to 100 objects of a kind.
    pub fn limit(&self, what: &str) -> Result<Outcome> {
        let mut arguments = vec!["-T", "L", "-D", IA, "-m", "100"];
        arguments.extend(what.split_whitespace());
        let (success, text) = self.start(0, "dapltest", &arguments)?.end()?;
        let enough = [": 100", "OK - stopping now", "posted per EP: 16"];
        let passed = success && enough.iter().any(|word| text.contains(word));
        Ok(outcome(passed, &[(success, text)], &["LimitTest:"]))
    }
}

/// Returns whether a text contains a word, except in lines in which dtest names the queue that it is checking.
fn bad(text: &str, word: &str) -> bool {
    text.lines()
        .filter(|line| !line.contains("Checking"))
        .any(|line| line.contains(word))
}

fn clean(said: &[(bool, String)]) -> bool {
    said.iter()
        .all(|(success, text)| *success && !BAD.iter().any(|word| bad(text, word)))
}

/// Returns the outcome of a run. Its figure is the last line that has a digit and one of the `words`.
fn outcome(passed: bool, said: &[(bool, String)], words: &[&str]) -> Outcome {
    let texts: Vec<&str> = said.iter().map(|(_, text)| text.as_str()).collect();
    let figure = texts.iter().flat_map(|text| text.lines()).rfind(|line| {
        words.iter().any(|word| line.contains(word)) && line.chars().any(|c| c.is_ascii_digit())
    });
    Outcome {
        passed,
        figure: figure.map_or_else(String::new, short),
        said: texts.join("\n--\n"),
    }
}

/// Returns a line without the leading process number, and with single blanks.
fn short(line: &str) -> String {
    let number = |word: &&str| word.trim_end_matches(':').parse::<u32>().is_ok();
    let mut words = line.split_whitespace().peekable();
    if line.contains(':') && words.peek().is_some_and(number) {
        words.next();
    }
    words.collect::<Vec<_>>().join(" ")
}

/// Pauses between two checks of a program's progress. Progress is a listening port, a line of output or the program's
/// end. No file descriptor signals it.
fn pause() {
    std::thread::park_timeout(POLL_INTERVAL);
}

/// Returns whether a process on this machine listens at a TCP port (proc(5), `/proc/net/tcp`: state 0A).
fn listening(port: u16) -> Result<bool> {
    let local = format!(":{port:04X}");
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let Ok(text) = std::fs::read_to_string(table) else {
            continue;
        };
        for line in text.lines().skip(1) {
            let mut words = line.split_whitespace().skip(1);
            if words.next().is_some_and(|at| at.ends_with(&local)) && words.nth(1) == Some("0A") {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_shown_without_the_number_of_the_process() {
        let line = "4242: RDMA write  (bi-direction): Total=  5.00 usec";
        assert_eq!(short(line), "RDMA write (bi-direction): Total= 5.00 usec");
        assert_eq!(
            short("Bandwidth   : 21.80 MB/sec"),
            "Bandwidth : 21.80 MB/sec"
        );
    }

    #[test]
    fn a_port_with_a_listener_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        assert!(listening(port).expect("the kernel's list"));
        // The listening socket cannot be closed to test the negative case, because a child process of another test may
        // have inherited it for a moment. So the test uses the local port of a connection, at which no process listens.
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let port = client.local_addr().expect("an address").port();
        assert!(!listening(port).expect("the kernel's list"));
    }
}
