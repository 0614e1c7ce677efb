//! Properties of a physical function that matter for its virtual ones, as far as files show them.
//!
//! A virtual function has no link of its own: it is up while the network interface of its physical function is up
//! (Linux mlx5 `en_main.c`: `mlx5e_close` takes the port down, `esw_legacy_enable` lets the virtual ones follow). In
//! switchdev mode the same PCI function also has an interface for each virtual function, its representor.
//! `phys_port_name` distinguishes the two kinds (`p0` and `pf0vf3`, Linux `devlink_port` attributes).
//!
//! Properties that only netlink shows (a virtual function's MAC, trust, spoof check, link state) are read through the
//! machine's own `ip` and `devlink` ([`Machine::ask`]); the caller parses their JSON.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::machine::{Machine, PciFunction, hex, names, number, text};
use crate::vfio::{PciAddress, link_name};

/// Directories of the machine's programs, below its root.
const PROGRAMS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Time limit for one run of such a program.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of bytes that are read of a program's output.
const LONGEST: u64 = 16 << 20;

/// A network interface, as sysfs shows it. Values that could not be read are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// True if it is set up (`ip link set dev NAME up`).
    pub is_up: Option<bool>,
    /// Its operational state in the kernel's words: `up`, `down`, `lowerlayerdown`.
    pub operstate: Option<String>,
    /// Bytes of the longest payload of a frame, without Ethernet header: the MTU.
    pub mtu: Option<u32>,
    /// Name of the card's port (`phys_port_name`).
    pub port_name: Option<String>,
}

impl Netdev {
    /// Returns the number of the virtual function whose representor this is: `pf0vf3`, or `c1pf0vf3` from a card's own
    /// processor. `None` if this is no representor.
    #[must_use]
    pub fn represents(&self) -> Option<u32> {
        let (physical, number) = self.port_name.as_deref()?.split_once("vf")?;
        physical
            .contains("pf")
            .then(|| number.parse().ok())
            .flatten()
    }
}

impl Machine {
    /// Returns the interfaces that a function's driver has made, in this network namespace.
    #[must_use]
    pub fn netdevs(&self, function: &PciFunction) -> Vec<Netdev> {
        let folder = self.device(function.address).join("net");
        function
            .netdevs
            .iter()
            .map(|name| netdev(&folder.join(name), name))
            .collect()
    }

    /// Returns the index of a virtual function among those of its physical function, from 0: the number that `ip link
    /// set ... vf` takes. `None` if the physical function does not list it.
    #[must_use]
    pub fn virtual_function_number(
        &self,
        physical: PciAddress,
        function: PciAddress,
    ) -> Option<u32> {
        let path = self.device(physical);
        names(&path).into_iter().find_map(|name| {
            let number = name.strip_prefix("virtfn")?.parse().ok()?;
            let address: PciAddress = link_name(&path.join(&name))?.parse().ok()?;
            (address == function).then_some(number)
        })
    }

    /// Returns the output of a program of the machine. `None` if the program does not exist, fails, takes longer than
    /// 30 s (for example because it waits for firmware that does not answer), or prints more than 16 MiB.
    #[must_use]
    pub fn ask(&self, program: &str, arguments: &[&str]) -> Option<String> {
        output(&self.program(program)?, arguments, PATIENCE)
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        PROGRAMS
            .iter()
            .map(|folder| self.path(folder).join(name))
            .find(|path| path.exists())
    }
}

fn output(program: &Path, arguments: &[&str], patience: Duration) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let id = Pid::from_raw(i32::try_from(child.id()).ok()?);
    let pipe = child.stdout.take()?;
    let (done, outcome) = mpsc::sync_channel(1);
    // This thread runs on after the time limit if the program sleeps in the kernel, where no signal ends it.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.take(LONGEST).read_to_end(&mut bytes);
        // With `WNOWAIT` the ended program stays a zombie, so its process ID is not used again (waitid(2)).
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(id), ended) == Err(Errno::EINTR) {}
        // The receiver is gone if the program took too long.
        let _ = done.send(read.map(|_| bytes));
    });
    let Ok(outcome) = outcome.recv_timeout(patience) else {
        // Nobody has reaped the child, so the signal reaches no other process.
        let _ = child.kill();
        std::thread::spawn(move || child.wait());
        return None;
    };
    let status = child.wait().ok()?;
    let bytes = outcome.ok()?;
    // Product data of a card may contain any byte.
    let text = String::from_utf8_lossy(&bytes).into_owned();
    status.success().then_some(text)
}

fn netdev(path: &Path, name: &str) -> Netdev {
    /// IFF_UP of `if.h`, the flag that `ip link set up` sets.
    const UP: u32 = 1;
    let flags = text(&path.join("flags")).and_then(|flags| hex(&flags));
    let word = |file: &str| text(&path.join(file)).filter(|word| !word.is_empty());
    Netdev {
        name: name.to_owned(),
        is_up: flags.map(|flags| flags & UP != 0),
        operstate: word("operstate"),
        mtu: number(&path.join("mtu")),
        port_name: word("phys_port_name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Option<String> {
        output(Path::new("/bin/sh"), &["-c", script], patience)
    }

    #[test]
    fn a_program_that_does_not_end_is_not_waited_for() {
        let silent = "exec tail -f /dev/null";
        assert_eq!(shell(silent, Duration::from_millis(1)), None);
    }

    #[test]
    fn a_program_that_closes_its_output_and_goes_on_is_not_waited_for() {
        let silent = "exec >&-; exec tail -f /dev/null";
        assert_eq!(shell(silent, Duration::from_millis(1)), None);
    }

    #[test]
    fn a_program_is_quoted_if_it_succeeds_whatever_bytes_it_prints() {
        assert_eq!(
            shell("printf 'a\\377b'", PATIENCE).as_deref(),
            Some("a\u{fffd}b")
        );
        assert_eq!(shell("echo a; exit 3", PATIENCE), None);
        assert_eq!(output(Path::new("/nowhere"), &[], PATIENCE), None);
    }

    #[test]
    fn a_program_that_prints_without_end_is_over() {
        assert_eq!(shell("yes", PATIENCE), None, "by the end of its pipe");
    }
}
