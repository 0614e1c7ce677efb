//! A service manager with a descriptor store, and its services (sd_notify(3), sd_listen_fds(3)).

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, close};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors of a message (`SCM_MAX_FD` of Linux).
const MAX_FDS: usize = 253;
/// Number of places in the store.
const ROOM: usize = 64;
/// Time limit for a notice.
const PATIENCE: Duration = Duration::from_secs(300);
/// Environment variables of a launcher: the program, its argument, and the names of the descriptors.
const PROGRAM: &str = "LAUNCHED_PROGRAM";
const ARGUMENT: &str = "LAUNCHED_ARGUMENT";
const NAMES: &str = "LAUNCHED_NAMES";

/// Descriptors with their names.
pub type Kept = Vec<(String, OwnedFd)>;

/// A service manager, which runs in a thread.
pub struct Manager {
    path: PathBuf,
    notices: Receiver<String>,
    runs: JoinHandle<Kept>,
}

/// A process of a service.
pub struct Service {
    child: Child,
}

impl Manager {
    /// Starts a manager that keeps these descriptors.
    pub fn start(path: &Path, kept: Kept) -> Result<Self> {
        // That of the manager before, if there was one.
        let _ = fs::remove_file(path);
        let socket = UnixDatagram::bind(path)?;
        let (sender, notices) = channel();
        let runs = thread::spawn(move || keep(&socket, kept, &sender));
        Ok(Self {
            path: path.to_owned(),
            notices,
            runs,
        })
    }

    /// Starts a process with duplicates of the descriptors that the store has had at its start.
    pub fn spawn(&self, program: &str, argument: &Path, kept: &Kept) -> Result<Service> {
        let (ours, theirs) = UnixStream::pair()?;
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--exact", "store::a_launcher", "--nocapture"])
            .env("NOTIFY_SOCKET", &self.path)
            .env("FDSTORE", ROOM.to_string())
            .env(PROGRAM, program)
            .env(ARGUMENT, argument)
            .env(NAMES, names.join(":"))
            .env_remove("RUST_LOG")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null());
        let child = command.spawn()?;
        let fds: Vec<BorrowedFd<'_>> = kept.iter().map(|(_, fd)| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        ensure!(
            control.push(SendAncillaryMessage::ScmRights(&fds)),
            "too many"
        );
        sendmsg(
            &ours,
            &[IoSlice::new(b"x")],
            &mut control,
            SendFlags::empty(),
        )?;
        Ok(Service { child })
    }

    /// Waits for a notice with this line.
    pub fn wait_for(&self, line: &str) -> Result<String> {
        loop {
            let notice = self.notices.recv_timeout(PATIENCE);
            let notice = notice.with_context(|| line.to_owned())?;
            if notice.lines().any(|one| one == line) {
                return Ok(notice);
            }
        }
    }

    /// Ends the manager, and returns what its store keeps.
    pub fn end(self) -> Result<Kept> {
        UnixDatagram::unbound()?.send_to(b"END", &self.path)?;
        Ok(self.runs.join().expect("no panic"))
    }
}

/// Handles messages as systemd does, in their order, until the manager is ended.
fn keep(socket: &UnixDatagram, mut kept: Kept, notices: &Sender<String>) -> Kept {
    loop {
        let (message, fds) = received(socket);
        if message == "END" {
            return kept;
        }
        let lines: Vec<&str> = message.lines().collect();
        let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or("stored");
        if lines.contains(&"FDSTOREREMOVE=1") {
            kept.retain(|(other, _)| other != name);
        }
        if lines.contains(&"FDSTORE=1") {
            for fd in fds {
                if kept.len() < ROOM {
                    kept.push((name.to_owned(), fd));
                }
            }
        }
        // The test may have seen what it wants and ended.
        let _ = notices.send(message);
    }
}

fn received(socket: impl AsFd) -> (String, Vec<OwnedFd>) {
    received_with(socket, RecvFlags::CMSG_CLOEXEC)
}

fn received_with(socket: impl AsFd, flags: RecvFlags) -> (String, Vec<OwnedFd>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut slices, &mut control, flags).expect("a message");
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let text = String::from_utf8_lossy(&bytes[..received.bytes]);
    (text.into_owned(), fds)
}

impl Service {
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    pub fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Most have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process between the manager and the program. The kernel gives the descriptors that it receives the lowest free
/// numbers, from 3 on, as the program expects them.
#[test]
fn a_launcher() -> Result<()> {
    let Some(program) = std::env::var_os(PROGRAM) else {
        return Ok(());
    };
    let names = std::env::var(NAMES)?;
    // Some programs that run tests leave descriptors open.
    for number in 3..1024 {
        let _ = close(number);
    }
    let (_, fds) = received_with(std::io::stdin(), RecvFlags::empty());
    for (number, fd) in (3..).zip(fds) {
        assert_eq!(fd.into_raw_fd(), number);
    }
    let count = names.split(':').filter(|name| !name.is_empty()).count();
    let mut command = Command::new(program);
    command
        .arg(std::env::var_os(ARGUMENT).context(ARGUMENT)?)
        .stdin(Stdio::null());
    if count != 0 {
        command
            .env("LISTEN_PID", std::process::id().to_string())
            .env("LISTEN_FDS", count.to_string())
            .env("LISTEN_FDNAMES", names);
    }
    Err(command.exec().into())
}
