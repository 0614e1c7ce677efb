//! The host process at the other end of the functions' wire while a guest runs, and the actions on the process that a
//! guest's script may request.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use guest::child::{Running, tied};
use serde_json::Value;

use super::build;
use super::machine::Machine;

/// Path of the process's log in the folder of the run.
pub const LOG: &str = "beside.log";
/// Path of the process's control socket in the folder of the run.
pub const CONTROL: &str = "control.sock";
/// Path of the control socket of the process's adapter in the folder of the run.
pub const ADAPTER: &str = "adapter.sock";

/// Time between two queries of the process's resources while `await_release` waits for their release.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Socket of an SSD for the process beside a guest, in the folder of the run.
pub const BACKING: &str = "backing.sock";
/// Size of each namespace of a simulated SSD in bytes.
const SSD_BYTES: u64 = 128 << 20;
/// Time within which a process listens on its socket.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);

/// The host process beside the guest, if the suite has one.
pub struct Beside<'a> {
    machine: &'a Machine,
    command: Option<Command>,
    running: Option<Running>,
    /// Path of `datctl`, which queries the process's adapter.
    datctl: PathBuf,
    /// Resources that the process held before a host connected.
    before: Option<Held>,
}

/// Resources that the process holds for hosts and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Number of controllers of hosts.
    pub controllers: usize,
    /// Number of endpoints with a connection.
    pub connected: usize,
    /// Number of endpoints.
    pub endpoints: usize,
    /// Number of EVDs.
    pub evds: usize,
    /// Number of registered memory regions.
    pub regions: usize,
}

impl<'a> Beside<'a> {
    /// Starts the process, if there is a command for it.
    pub fn start(
        machine: &'a Machine,
        command: Option<fn(&Machine) -> Result<Command>>,
    ) -> Result<Self> {
        std::fs::write(machine.path("run").join(LOG), "")?;
        let command = command.map(|command| command(machine));
        let mut beside = Self {
            machine,
            command: command.transpose()?,
            running: None,
            datctl: build::datctl()?,
            before: None,
        };
        beside.begin()?;
        Ok(beside)
    }

    fn begin(&mut self) -> Result<()> {
        let Some(command) = &self.command else {
            return Ok(());
        };
        let mut command = tied(command);
        let log = self.machine.path("run").join(LOG);
        let log = File::options().create(true).append(true).open(log)?;
        // The pipe to its standard input closes when this program ends, which ends the process.
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.running = Some(Running::start("the process beside the guest", command)?);
        Ok(())
    }

    /// Waits until the process listens on a socket, whose path is in the folder of the run.
    pub fn await_socket(&mut self, socket: &str) -> Result<()> {
        let running = self.running.as_mut();
        let running = running.context("there is nothing beside")?;
        await_socket(running, &self.machine.path("run").join(socket))
    }

    /// Executes an action that the guest requests. Returns `ok` and an answer of one line, or an error text.
    pub fn happen(&mut self, words: &str) -> String {
        match self.done(words) {
            Ok(answer) => format!("ok {answer}").trim_end().to_owned(),
            Err(error) => format!("{error:#}").replace('\n', " "),
        }
    }

    fn done(&mut self, words: &str) -> Result<String> {
        let (what, rest) = words.split_once(' ').unwrap_or((words, ""));
        let file = |name: &str| {
            ensure!(!name.contains('/'), "{name:?} is no name of a file");
            Ok(self.machine.path("run").join(name))
        };
        match what {
            "kill" => self.running = None,
            "start" => self.begin()?,
            "ctl" => return self.ctl(rest),
            "held" => return Ok(format!("{:?}", self.held()?)),
            "baseline" => self.before = Some(self.held()?),
            "write" => {
                let (name, text) = rest.split_once(' ').context("write FILE TEXT")?;
                std::fs::write(file(name)?, text)?;
            }
            "size" => {
                let (name, bytes) = rest.split_once(' ').context("size FILE BYTES")?;
                let mut open = File::options();
                open.create(true).write(true).truncate(false);
                open.open(file(name)?)?.set_len(bytes.parse()?)?;
            }
            other => bail!("{other:?}: there are kill, start, ctl, held, baseline, write and size"),
        }
        Ok(String::new())
    }

    /// Sends a request to the process's control socket.
    fn ctl(&self, words: &str) -> Result<String> {
        let of = self.command.as_ref().context("there is nothing beside")?;
        let mut command = Command::new(of.get_program());
        command
            .args(["ctl", CONTROL])
            .args(words.split_whitespace());
        self.captured(command)
    }

    /// Returns the output of a program that runs in the folder of the run, which keeps the paths of sockets short.
    fn captured(&self, mut command: Command) -> Result<String> {
        let said = command.current_dir(self.machine.path("run")).output()?;
        let error = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "{}", error.trim());
        let text = String::from_utf8_lossy(&said.stdout);
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Returns the resources that the process holds now.
    pub fn held(&self) -> Result<Held> {
        let status: Value = serde_json::from_str(&self.ctl("status")?)?;
        let mut command = Command::new(&self.datctl);
        command.args(["resource", ADAPTER, "--json"]);
        let adapter: Value = serde_json::from_str(&self.captured(command)?)?;
        held(&status, &adapter)
    }
}

/// Returns the command that serves a simulated SSD on a socket. Its namespaces are new files in the folder of the run.
pub fn ssd(machine: &Machine, socket: &str, disks: &[&str]) -> Result<Command> {
    let run = machine.path("run");
    let mut command = Command::new(build::nvmeofd()?);
    command.current_dir(&run).args(["ssd", socket]);
    for disk in disks {
        File::create(run.join(disk))?.set_len(SSD_BYTES)?;
        command.args(["--disk", disk]);
    }
    command.env("RUST_LOG", "info");
    Ok(command)
}

/// Starts a process that serves an SSD to the process beside a guest, on the socket [`BACKING`].
pub fn backing(machine: &Machine) -> Result<Running> {
    let run = machine.path("run");
    std::fs::create_dir_all(&run)?;
    let mut command = tied(&ssd(machine, BACKING, &["backing.img"])?);
    let log = File::create(run.join("backing.log"))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut running = Running::start("nvmeofd ssd", command)?;
    await_socket(&mut running, &run.join(BACKING))?;
    Ok(running)
}

/// Waits until a process listens on the socket at this path.
fn await_socket(running: &mut Running, path: &Path) -> Result<()> {
    let until = Instant::now() + LISTENS_WITHIN;
    while UnixStream::connect(path).is_err() {
        running.check()?;
        ensure!(
            Instant::now() < until,
            "nobody listens on {}",
            path.display()
        );
        thread::park_timeout(POLL_INTERVAL);
    }
    Ok(())
}

/// Waits until the process holds the same resources as before the host connected. Returns the first and the last
/// counts, and the time it took.
pub fn await_release(beside: &Beside<'_>, within: Duration) -> Result<String> {
    let before = beside
        .before
        .context("the state without a host was not read")?;
    let began = Instant::now();
    let first = beside.held()?;
    let mut last = first;
    while last != before {
        ensure!(
            began.elapsed() < within,
            "still {last:?}, before the host {before:?}"
        );
        thread::park_timeout(POLL_INTERVAL);
        last = beside.held()?;
    }
    let after = began.elapsed().as_secs_f64();
    Ok(format!("{first:?}; after {after:.1} s {last:?}"))
}

/// Parses the counts of resources from the status of the process and of its adapter.
fn held(status: &Value, adapter: &Value) -> Result<Held> {
    let list = |of: &Value, name: &str| {
        let list = of.get(name).and_then(Value::as_array);
        list.cloned().with_context(|| format!("{name}: {of}"))
    };
    let mut held = Held {
        controllers: list(status, "controllers")?.len(),
        connected: 0,
        endpoints: 0,
        evds: 0,
        regions: 0,
    };
    for instance in list(adapter, "instances")? {
        let endpoints = list(&instance, "endpoints")?;
        let connected = endpoints.iter().filter(|one| one["state"] == "Connected");
        held.connected += connected.count();
        held.endpoints += endpoints.len();
        held.evds += list(&instance, "evds")?.len();
        held.regions += list(&instance, "regions")?.len();
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_held_is_that_of_all_instances() {
        let status = json!({"controllers": [{"controller": 1}]});
        let one = json!({"endpoints": [{"state": "Connected"}, {"state": "Unconnected"}], "evds": [{}], "regions": [{}]});
        let other = json!({"endpoints": [{"state": "Connected"}], "evds": [], "regions": [{}, {}]});
        let adapter = json!({"instances": [one, other]});
        let expected = Held {
            controllers: 1,
            connected: 2,
            endpoints: 3,
            evds: 1,
            regions: 3,
        };
        assert_eq!(held(&status, &adapter).unwrap(), expected);
        assert!(held(&json!({}), &adapter).is_err());
    }
}
