//! The state of the machine around a run: the kernel's log since the run began, and the physical functions.
//!
//! Two drivers run a card: ours runs the function, the kernel's `mlx5_core` the physical function. Errors on the
//! kernel's side show only in dmesg, ethtool, devlink and mlxconfig, so the output of these programs is saved before
//! the first line and after the last one:
//!
//! | File | Contents |
//! |---|---|
//! | `kernel.log` | kernel's log since the run began: IOMMU faults, `vfio-pci`, `mlx5_core` of the physical function |
//! | `machine-N-before.txt`, `machine-N-after.txt` | lspci, ethtool, ip, devlink, mlxconfig; function N and its PF |
//!
//! The files also name each program that is missing or fails; most of them need root. None of this decides whether a
//! card is accepted.

use std::error::Error;

use driver::PciAddress;
use driver::pci::{Machine, Role};
use hw_mlx::ids;

use super::bundle::Bundle;
use super::subject::Subject;

/// The functions under test, and the last line of the kernel's log before the run.
pub(super) struct Surroundings<'a> {
    machine: &'a Machine,
    functions: Vec<(usize, PciAddress)>,
    /// Last line of the kernel's log before the run.
    last: Option<String>,
}

impl<'a> Surroundings<'a> {
    /// Saves the state before the first line.
    pub(super) fn before(
        machine: &'a Machine,
        subjects: &[Subject<'_>],
        bundle: &Bundle,
    ) -> Result<Self, Box<dyn Error>> {
        let functions: Vec<_> = subjects
            .iter()
            .enumerate()
            .filter_map(|(number, subject)| Some((number, subject.address?)))
            .collect();
        let surroundings = Self {
            last: log(machine).and_then(|log| log.lines().next_back().map(str::to_owned)),
            machine,
            functions,
        };
        surroundings.keep("before", bundle)?;
        Ok(surroundings)
    }

    /// Saves the state after the last line.
    pub(super) fn after(&self, bundle: &Bundle) -> Result<(), Box<dyn Error>> {
        self.keep("after", bundle)?;
        // A run that uses only simulated functions does not depend on this machine.
        if self.functions.is_empty() {
            return Ok(());
        }
        let text = log(self.machine).map_or_else(
            || "dmesg is not there or refuses (as root: dmesg)\n".to_owned(),
            |log| since(&log, self.last.as_deref()),
        );
        bundle.keep("kernel.log", &text)
    }

    fn keep(&self, when: &str, bundle: &Bundle) -> Result<(), Box<dyn Error>> {
        for (number, address) in &self.functions {
            let text = programs_output(self.machine, *address);
            bundle.keep(&format!("machine-{number}-{when}.txt"), &text)?;
        }
        Ok(())
    }
}

/// Returns the whole log, as dmesg prints it; `None` if dmesg is missing or fails.
fn log(machine: &Machine) -> Option<String> {
    machine.ask("dmesg", &[])
}

/// Returns the part of a log behind the line `last`; the whole log if it does not contain `last`.
fn since(log: &str, last: Option<&str>) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let begin = last
        .and_then(|last| lines.iter().rposition(|line| *line == last))
        .map_or(0, |at| at + 1);
    lines[begin..]
        .iter()
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Returns the output of the programs about a function and its physical function.
fn programs_output(machine: &Machine, address: PciAddress) -> String {
    let mut text = String::new();
    let mut ask = |program: &str, arguments: &[&str]| {
        let said = machine
            .ask(program, arguments)
            .unwrap_or_else(|| "(not there, refused, or silent for 30 s)\n".to_owned());
        text += &format!("$ {program} {}\n{said}\n", arguments.join(" "));
    };
    let own = address.to_string();
    ask("lspci", &["-D", "-nn", "-vvv", "-s", &own]);
    let function = machine.function(address);
    let physical = function.and_then(|function| match function.role {
        Role::Virtual { of } => of.and_then(|of| machine.function(of)),
        // In a guest a virtual function looks like a physical one.
        Role::Physical { .. } => (!ids::is_virtual(function.device_id)).then_some(function),
    });
    let Some(physical) = physical else {
        text += "its physical function is not on this machine\n";
        return text;
    };
    let pf = physical.address.to_string();
    let device = format!("pci/{pf}");
    if physical.address != address {
        ask("lspci", &["-D", "-nn", "-vvv", "-s", &pf]);
    }
    for interface in machine.netdevs(&physical) {
        let name = interface.name.as_str();
        ask("ip", &["-s", "-d", "link", "show", "dev", name]);
        for flag in ["-i", "-S", "-a", "-g"] {
            ask("ethtool", &[flag, name]);
        }
        ask("ethtool", &[name]);
    }
    for arguments in [
        &["dev", "info", &device][..],
        &["dev", "eswitch", "show", &device],
        &["dev", "param", "show", &device],
        &["health", "show", &device],
        &["port", "show"],
    ] {
        ask("devlink", arguments);
    }
    for program in ["mlxconfig", "mstconfig"] {
        ask(program, &["-d", &pf, "-e", "query"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_log_is_kept_from_the_line_behind_the_last_one_before() {
        let log = "[1.0] a\n[2.0] b\n[2.0] b\n[3.0] c\n";
        assert_eq!(since(log, Some("[2.0] b")), "[3.0] c\n");
        assert_eq!(since(log, Some("[3.0] c")), "");
        // The kernel's ring buffer has wrapped since then, so the line is lost.
        assert_eq!(since(log, Some("[0.5] lost")), log);
        assert_eq!(since(log, None), log);
    }
}
