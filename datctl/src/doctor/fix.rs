//! `datctl doctor --fix`: applies the remedies for lines that are not ok, as far as this is safe from here.
//!
//! Each fix is a command that a person could have typed. The command is printed before it is run; with `--dry-run` it
//! is only printed. After a failed fix the others are still tried. The lines that are printed afterwards show the
//! result.
//!
//! A fix is safe if it lasts only until the next boot, changes this machine's settings and not its policies, and takes
//! nothing that others need. So functions are bound only if they were named, under the rules of `datctl bind`. Huge
//! pages take no more than half of the available memory. `kernel.io_uring_disabled`, limits of logins, the firmware's
//! settings and the physical function's side are left to the administrator.

use driver::PciAddress;
use driver::pci::{Kernel, Machine, Writer};
use serde::{Serialize, Serializer};

use super::Diagnosis;
use crate::report::{Output, Report};

/// A remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fix {
    /// Loads kernel modules.
    Modprobe(&'static [&'static str]),
    /// Writes a text to a file of the kernel, such as one in sysfs.
    Write { path: String, text: String },
    /// Binds a function to vfio-pci.
    Bind(PciAddress),
}

impl Fix {
    /// Returns the command that a person would type.
    fn command(&self) -> String {
        match self {
            Self::Modprobe(modules) => format!("modprobe -a {}", modules.join(" ")),
            Self::Write { path, text } => format!("echo {text} > {path}"),
            Self::Bind(address) => format!("datctl bind {address}"),
        }
    }

    fn run(&self, machine: &Machine) -> Result<(), String> {
        match self {
            Self::Modprobe(modules) => {
                let arguments = [&["-a"], *modules].concat();
                let done = machine.ask("modprobe", &arguments);
                done.map(drop).ok_or_else(|| {
                    "modprobe is not there or refuses (only root may; see dmesg)".to_owned()
                })
            }
            Self::Write { path, text } => Kernel
                .write(&machine.path(path), text)
                .map_err(|error| format!("{path}: {error}")),
            Self::Bind(address) => machine
                .bind(*address, &Kernel)
                .map(drop)
                .map_err(|error| error.to_string()),
        }
    }
}

pub(super) fn as_command<S: Serializer>(
    fix: &Option<Fix>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    fix.as_ref().map(Fix::command).serialize(serializer)
}

/// A command, as it is printed before it is run.
#[derive(Serialize)]
struct Step {
    check: &'static str,
    device: Option<String>,
    command: String,
    /// False if the command is only printed (`--dry-run`).
    runs: bool,
}

/// A command that has failed.
#[derive(Serialize)]
struct Failed {
    command: String,
    failed: String,
}

impl Report for Step {
    fn human(&self) -> String {
        let would = if self.runs { "" } else { " (not run)" };
        format!("$ {}{would}", self.command)
    }
}

impl Report for Failed {
    fn human(&self) -> String {
        format!("  failed: {}", self.failed)
    }
}

/// Applies the fixes of the lines. Binds only functions that are among `named`. Returns true if there was any fix.
pub(crate) fn fix(
    machine: &Machine,
    diagnosis: &Diagnosis,
    named: &[PciAddress],
    dry_run: bool,
    output: Output,
) -> std::io::Result<bool> {
    let mut any = false;
    for line in diagnosis.lines.iter().filter(|line| line.ok == Some(false)) {
        let Some(fix) = &line.fix else {
            continue;
        };
        if matches!(fix, Fix::Bind(address) if !named.contains(address)) {
            continue;
        }
        any = true;
        let command = fix.command();
        output.show(&Step {
            check: line.check,
            device: line.device.clone(),
            command: command.clone(),
            runs: !dry_run,
        })?;
        if dry_run {
            continue;
        }
        if let Err(failed) = fix.run(machine) {
            output.show(&Failed { command, failed })?;
        }
    }
    Ok(any)
}
