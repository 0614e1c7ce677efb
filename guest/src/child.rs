//! Child processes that end with their owner, however the owner ends.
//!
//! An owner that returns or panics kills its children itself. If the owner is killed, the kernel kills them:
//! setpriv(1) of util-linux, which every Debian has, requests that (`PR_SET_PDEATHSIG`). The setting survives exec, as
//! it must, because a shell and a dynamic loader run between setpriv and QEMU.
//!
//! If the owner ended before that request, no signal is sent. So after the request a shell checks that the owner is
//! still the parent, and starts nothing otherwise.

use std::process::{Child, Command};

use anyhow::{Context, Result, bail};

/// Script that runs the command of its later arguments if its parent is the process of its first argument.
const IF_OWNED: &str = r#"[ "$PPID" = "$1" ] || exit 1; shift; exec "$@""#;

/// A process that ends with its owner.
pub struct Running {
    what: &'static str,
    /// The child, with this process's ends of its input and output.
    pub child: Child,
}

/// Returns a command that does the same, but whose process is killed when the thread that starts it ends (prctl(2),
/// `PR_SET_PDEATHSIG`), at the latest with this process. Only this process can start the returned command; as the child
/// of another process it ends at once. The caller must set the input and output of the returned command.
pub fn tied(command: &Command) -> Command {
    let mut tied = Command::new("setpriv");
    tied.args(["--pdeathsig", "KILL", "sh", "-c", IF_OWNED, "sh"])
        .arg(std::process::id().to_string())
        .arg(command.get_program())
        .args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        tied.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    tied
}

impl Running {
    /// Starts a command made by [`tied`].
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn start(what: &'static str, mut command: Command) -> Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("starting {what}"))?;
        Ok(Self { what, child })
    }

    /// Checks that the process is still running.
    ///
    /// # Errors
    /// The process has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended early with {status}", self.what);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Environment variable that makes the test binary act as the owner.
    const OWNER: &str = "GUEST_TEST_OWNER";
    /// Time limit for a process to end after its owner.
    const END_LIMIT: Duration = Duration::from_secs(20);

    /// Acts as the owner, in a separate process that the test kills. Its child prints a line and then reads an input
    /// that does not end.
    #[test]
    fn owner() {
        if std::env::var_os(OWNER).is_none() {
            return;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "echo started; exec cat"]);
        let mut running = Running::start("sh", tied(&command)).expect("it starts");
        let status = running.child.wait().expect("it ends");
        panic!("what waits for its owner's end has ended before: {status}");
    }

    #[test]
    fn what_a_killed_owner_has_started_is_gone() {
        let mut owner = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child::tests::owner", "--nocapture"])
            .env(OWNER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program runs");
        // The input stays open until the end, so that the child ends only because its owner was killed.
        let input = owner.stdin.take().expect("its input");
        let mut output = BufReader::new(owner.stdout.take().expect("its output"));
        let mut line = String::new();
        while !line.ends_with("started\n") {
            line.clear();
            let read = output.read_line(&mut line).expect("its output");
            assert_ne!(read, 0, "it has not started anything");
        }
        owner.kill().expect("it can be killed");
        owner.wait().expect("it ends");
        // The output ends when the last process that can write to it has ended.
        let (sender, receiver) = channel();
        thread::spawn(move || sender.send(output.read_to_end(&mut Vec::new())));
        let ended = receiver.recv_timeout(END_LIMIT);
        drop(input);
        ended.expect("it is gone").expect("its output");
    }

    /// The kernel sends no signal for a parent that had ended before `PR_SET_PDEATHSIG` (prctl(2)). Here another
    /// process is the parent, as after the owner's end.
    #[test]
    fn nothing_is_started_for_an_owner_that_is_gone() {
        let mut command = Command::new("echo");
        command.arg("started");
        let mut tied = tied(&command);
        let owned = tied.output().expect("setpriv runs");
        assert_eq!(owned.stdout, b"started\n");
        let mut between = Command::new("sh");
        between
            .args(["-c", "\"$@\"; exit $?", "sh"])
            .arg(tied.get_program())
            .args(tied.get_args());
        let orphan = between.output().expect("sh runs");
        assert_eq!((orphan.stdout, orphan.status.code()), (vec![], Some(1)));
    }

    #[test]
    fn a_tied_command_is_the_same_command() {
        let mut command = Command::new("env");
        command
            .args(["-C", "/vm"])
            .current_dir("/tmp")
            .env("A", "1")
            .env_remove("B");
        let tied = tied(&command);
        let arguments: Vec<_> = tied.get_args().collect();
        assert_eq!(tied.get_program(), "setpriv");
        assert_eq!(arguments[..2], ["--pdeathsig", "KILL"]);
        assert_eq!(arguments[arguments.len() - 3..], ["env", "-C", "/vm"]);
        assert_eq!(tied.get_current_dir(), command.get_current_dir());
        assert!(tied.get_envs().eq(command.get_envs()));
    }
}
