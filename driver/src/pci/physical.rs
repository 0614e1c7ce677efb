//! What a physical function gives its virtual ones, as far as files tell.
//!
//! A virtual function has no link of its own: it is up while the interface that the kernel's driver made of its
//! physical function is up (Linux mlx5 `en_main.c`: `mlx5e_close` takes the port down, `esw_legacy_enable` lets the
//! virtual ones follow). In switchdev mode the same PCI function has an interface for each virtual function too, its
//! representor; they are told apart by `phys_port_name` (`p0` and `pf0vf3`, Linux `devlink_port` attributes).
//!
//! What only netlink knows (a virtual function's MAC, trust, spoof check, link state) is asked of the machine's own
//! `ip` and `devlink` ([`Machine::ask`]); the caller understands their JSON.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::machine::{Machine, PciFunction, hex, names, number, text};
use crate::vfio::{PciAddress, link_name};

/// Where programs of the machine are, below its root.
const PROGRAMS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A network interface, as sysfs shows it. What could not be read is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Somebody has set it up (`ip link set dev NAME up`).
    pub is_up: Option<bool>,
    /// Whether it could carry frames now, in the kernel's words: `up`, `down`, `lowerlayerdown`.
    pub operstate: Option<String>,
    /// The longest payload of a frame, without Ethernet header: what people call the MTU.
    pub mtu: Option<u32>,
    /// Which port of the card it is.
    pub port_name: Option<String>,
}

impl Netdev {
    /// The number of the virtual function whose representor this is: `pf0vf3`, or `c1pf0vf3` from a card's own
    /// processor.
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
    /// The interfaces a function's driver has made of it, in this network namespace.
    #[must_use]
    pub fn netdevs(&self, function: &PciFunction) -> Vec<Netdev> {
        let folder = self.device(function.address).join("net");
        function
            .netdevs
            .iter()
            .map(|name| netdev(&folder.join(name), name))
            .collect()
    }

    /// Which of its physical function's virtual ones a function is, from 0: the number that `ip link set ... vf` takes.
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

    /// What a program of the machine prints; `None` if it is not there, or fails.
    #[must_use]
    pub fn ask(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let path = self.program(program)?;
        let output = Command::new(path)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then_some(text)
    }

    fn program(&self, name: &str) -> Option<PathBuf> {
        PROGRAMS
            .iter()
            .map(|folder| self.path(folder).join(name))
            .find(|path| path.exists())
    }
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
