//! nvmeofd as a process, and its surroundings: a folder, a file of 4 MiB, a wire, and a socket that gets the ready
//! message.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control::Client;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use nvmeof::nvme::Nqn;
use tempfile::TempDir;

use crate::host::Host;

pub const SUBSYSTEM: &str = "nqn.2026-11.test:disks";
pub const DISK: u64 = 4 << 20;
const SERVICE: u16 = 4420;
/// Key of a host in the format of the specification.
pub const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// Time limit for any action of the process.
const PATIENCE: Duration = Duration::from_secs(300);

/// Surroundings of a daemon.
pub struct Place {
    pub folder: TempDir,
    notices: UnixDatagram,
}

/// A running daemon.
pub struct Process {
    child: Child,
}

impl Place {
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let notices = UnixDatagram::bind(folder.path().join("notify"))?;
        notices.set_read_timeout(Some(PATIENCE))?;
        fs::File::create(folder.path().join("disk"))?.set_len(DISK)?;
        let place = Self { folder, notices };
        place.configure(&place.subsystem(""))?;
        Ok(place)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the part of a name that is unique to these surroundings. The simulated functions of a process share one
    /// name space.
    fn own(&self) -> Result<&str> {
        let name = self
            .folder
            .path()
            .file_name()
            .and_then(|name| name.to_str());
        name.context("a name")
    }

    /// Returns the table of the subsystem, followed by more lines.
    pub fn subsystem(&self, more: &str) -> String {
        let disk = self.path("disk");
        format!(
            "[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\nany_host = true\n[[subsystem.namespace]]\nfile = \"{}\"\n{more}",
            disk.display()
        )
    }

    /// Writes the configuration: a control socket, one port, and these tables.
    pub fn configure(&self, tables: &str) -> Result<()> {
        let (socket, wire) = (self.path("control"), self.path("wire"));
        let text = format!(
            "[control]\nsocket = \"{}\"\n[[port]]\nid = 1\nadapter = \"sim:target-{},mac=02:00:00:00:0f:01,link=unix:{},address=192.0.2.1/24\"\nservice = {SERVICE}\n{tables}",
            socket.display(),
            self.own()?,
            wire.display()
        );
        Ok(fs::write(self.path("nvmeofd.toml"), text)?)
    }

    /// Writes the default configuration, with other lines before it.
    pub fn prepend(&self, lines: &str) -> Result<()> {
        self.configure(&self.subsystem(""))?;
        let path = self.path("nvmeofd.toml");
        let text = fs::read_to_string(&path)?;
        Ok(fs::write(path, format!("{lines}{text}"))?)
    }

    /// Starts a daemon, and waits until it serves.
    pub fn start(&self) -> Result<Process> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeofd"));
        command.arg(self.path("nvmeofd.toml"));
        self.start_by(command)
    }

    pub fn start_by(&self, command: Command) -> Result<Process> {
        self.start_with(command, Stdio::null())
    }

    /// Starts the daemon with this standard input.
    pub fn start_with(&self, mut command: Command, input: Stdio) -> Result<Process> {
        command.env_remove("RUST_LOG").stdin(input);
        self.spawned(command)
    }

    /// Starts the daemon with this `RUST_LOG` in its environment.
    pub fn start_with_log(&self, mut command: Command, log: &str) -> Result<Process> {
        command.env("RUST_LOG", log).stdin(Stdio::null());
        self.spawned(command)
    }

    fn spawned(&self, mut command: Command) -> Result<Process> {
        command.env("NOTIFY_SOCKET", self.path("notify"));
        let child = command.spawn()?;
        let process = Process { child };
        self.wait_for_notice("READY=1")?;
        Ok(process)
    }

    /// Waits until the ready socket has received a message with this line; returns the message.
    pub fn wait_for_notice(&self, line: &str) -> Result<String> {
        let mut buffer = [0; 4096];
        loop {
            let bytes = match self.notices.recv(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                received => received.context(line.to_owned())?,
            };
            let text = String::from_utf8_lossy(&buffer[..bytes]).into_owned();
            if text.lines().any(|one| one == line) {
                return Ok(text);
            }
        }
    }

    pub fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.path("control"))?)
    }

    /// Returns the host at the other end of the wire.
    pub fn host(&self) -> Result<Host> {
        let name = format!(
            "sim:host-{},mac=02:00:00:00:0f:02,link=unix:{}",
            self.own()?,
            self.path("wire").display()
        );
        // The address is the link-local address of the function's MAC, so a connection request waits until the link is
        // up.
        Host::open(&name, "fe80::ff:fe00:f01".parse()?, SERVICE)
    }

    pub fn disk(&self) -> Result<Vec<u8>> {
        Ok(fs::read(self.path("disk"))?)
    }
}

pub fn subsystem() -> Nqn {
    SUBSYSTEM.parse().expect("a name")
}

impl Process {
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// Makes the daemon read its file again, and waits until it has. Returns the state that it then reports.
    pub fn reload(&self, place: &Place) -> Result<String> {
        self.signal(Signal::SIGHUP)?;
        place.wait_for_notice("RELOADING=1")?;
        place.wait_for_notice("READY=1")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address at which the daemon listens for TCP over IPv4: the local address of the socket in state 0Ah
    /// among its descriptors (proc_pid_net(5)).
    pub fn listens(&self) -> Result<SocketAddr> {
        let of = PathBuf::from(format!("/proc/{}", self.child.id()));
        let mut sockets = Vec::new();
        for descriptor in fs::read_dir(of.join("fd"))? {
            // The daemon may close a descriptor meanwhile.
            sockets.extend(fs::read_link(descriptor?.path()));
        }
        let table = fs::read_to_string(of.join("net/tcp"))?;
        let found = table.lines().find_map(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let own = PathBuf::from(format!("socket:[{}]", cells.get(9)?));
            (*cells.get(3)? == "0A" && sockets.contains(&own)).then(|| cells[1].to_owned())
        });
        let found = found.context("a socket that listens")?;
        let (address, port) = found.split_once(':').context("a port")?;
        let address = Ipv4Addr::from(u32::from_be(u32::from_str_radix(address, 16)?));
        Ok((address, u16::from_str_radix(port, 16)?).into())
    }

    /// Returns the names of the daemon's threads, each with the processors that it may run on.
    pub fn threads(&self) -> Result<BTreeMap<String, String>> {
        let mut threads = BTreeMap::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let path = thread?.path();
            let name = fs::read_to_string(path.join("comm"))?.trim().to_owned();
            threads.insert(name, processors(&path.join("status"))?);
        }
        Ok(threads)
    }

    /// Waits until SIGSTOP has stopped the process.
    pub fn wait_for_stop(&self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED))?;
        ensure!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
        Ok(())
    }

    pub fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Ends the daemon by SIGTERM, as a service manager does.
    pub fn end(mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = self.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Most daemons have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processors that a thread may run on, from its status file.
pub fn processors(status: &Path) -> Result<String> {
    let text = fs::read_to_string(status)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.context("Cpus_allowed_list")?.trim().to_owned())
}

/// Runs nvmeofd until it exits; returns whether it succeeded, and its output.
pub fn run(arguments: &[&str]) -> Result<(bool, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_nvmeofd"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    let mut said = String::from_utf8(output.stdout)?;
    said.push_str(&String::from_utf8(output.stderr)?);
    Ok((output.status.success(), said))
}

/// Returns the settings of a configuration file.
pub fn parsed(path: &Path) -> Result<nvmeof::daemon::Settings> {
    match nvmeof::daemon::file::read(path) {
        Ok(settings) => Ok(settings),
        Err(mistakes) => bail!("{mistakes}"),
    }
}
