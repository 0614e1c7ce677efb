//! `datctl doctor`: checks the conditions under which a function can be driven from user space.
//!
//! There is one line for each condition, ok or not ok, with the finding and the command that fixes it.
//! `docs/hardware.md` has the same list with the reasons. Lines about conditions that a function does not need, such as
//! those for speed, do not count for the exit status. A condition that cannot be checked from here is unknown, never
//! ok.

mod card;
mod fix;
mod function;
mod lossless;
mod machine;
mod physical;

use driver::PciAddress;
use driver::pci::{Kind, Machine, PciFunction};
use serde::Serialize;

use self::fix::Fix;
pub(crate) use self::fix::fix;
pub(crate) use self::physical::link_state;
use crate::devices::known;
use crate::report::{Ink, Report};

/// The lines of all checks.
#[derive(Serialize)]
pub(crate) struct Diagnosis {
    /// True if no required line is "not ok"; unknown lines do not matter.
    pub(crate) ok: bool,
    lines: Vec<Line>,
}

/// The result of one check.
#[derive(Serialize)]
struct Line {
    /// Name of the check, as in the checklist.
    check: &'static str,
    /// Address of the function; `None` if the check is about the machine.
    device: Option<String>,
    /// The result; `None` if it is unknown.
    ok: Option<bool>,
    /// True if functions cannot be used without this condition.
    required: bool,
    /// The finding.
    found: String,
    /// Remedy, as shell commands if possible.
    mend: Option<String>,
    /// Remedy that `--fix` applies.
    #[serde(serialize_with = "fix::as_command")]
    fix: Option<Fix>,
}

impl Line {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            device: None,
            ok: Some(true),
            required: true,
            found: found.into(),
            mend: None,
            fix: None,
        }
    }

    fn not_ok(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            ok: Some(false),
            mend: Some(mend.into()),
            ..Self::ok(check, found)
        }
    }

    /// Returns a line without a result. `mend` says how to find out.
    fn unknown(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            ok: None,
            ..Self::not_ok(check, found, mend)
        }
    }

    /// Returns true if the line is a required condition that is not met.
    fn is_unmet_requirement(&self) -> bool {
        self.ok == Some(false) && self.required
    }

    /// Adds a remedy for `--fix`.
    fn fixed_by(self, fix: Fix) -> Self {
        Self {
            fix: Some(fix),
            ..self
        }
    }

    /// Marks the line as not required.
    fn optional(self) -> Self {
        Self {
            required: false,
            ..self
        }
    }

    fn of(self, address: PciAddress) -> Self {
        Self {
            device: Some(address.to_string()),
            ..self
        }
    }
}

/// Checks the machine and the functions in `addresses`. If `addresses` is empty, checks all cards with a known device
/// ID that are bound to VFIO, or, if none is bound, all with a known device ID; and the SSDs that are bound to VFIO,
/// since one that the kernel has is most often its disk. `memory_mib` is the amount of memory to be registered, in
/// MiB.
pub(crate) fn run(
    machine: &Machine,
    addresses: &[PciAddress],
    memory_mib: u64,
) -> Result<Diagnosis, String> {
    let mut lines = Vec::from(machine::lines(machine, memory_mib));
    let functions = functions(machine, addresses)?;
    if functions.is_empty() {
        lines.push(Line::not_ok(
            "function",
            "no ConnectX function (ids in hw_mlx::ids), and no SSD that is bound to vfio-pci",
            "lspci -d 15b3: shows whether the slot sees the card; datctl doctor ADDRESS checks an SSD; sim:NAME needs none",
        ));
    } else {
        let names: Vec<String> = functions
            .iter()
            .map(|function| function.address.to_string())
            .collect();
        lines.push(Line::ok("function", names.join(", ")));
    }
    for function in &functions {
        lines.extend(function::lines(machine, function));
    }
    Ok(Diagnosis {
        ok: !lines.iter().any(Line::is_unmet_requirement),
        lines,
    })
}

fn functions(machine: &Machine, addresses: &[PciAddress]) -> Result<Vec<PciFunction>, String> {
    if !addresses.is_empty() {
        return addresses
            .iter()
            .map(|&address| {
                machine.function(address).ok_or_else(|| {
                    format!(
                        "{address}: no such PCI function: {} is not there (see lspci -D)",
                        machine.device(address).display()
                    )
                })
            })
            .collect();
    }
    let all: Vec<PciFunction> = known(machine)
        .into_iter()
        .map(|(function, _)| function)
        .collect();
    let (ssds, cards): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|function| function.kind() == Some(Kind::Nvme));
    let some_bound = cards.iter().any(PciFunction::is_bound_to_vfio);
    Ok(cards
        .into_iter()
        .filter(|card| card.is_bound_to_vfio() || !some_bound)
        .chain(ssds.into_iter().filter(PciFunction::is_bound_to_vfio))
        .collect())
}

impl Diagnosis {
    /// Returns a summary in one sentence. Fails if a required line is not ok.
    pub(crate) fn summary(&self) -> Result<String, String> {
        let bad: Vec<String> = self
            .lines
            .iter()
            .filter(|line| line.is_unmet_requirement())
            .map(|line| format!("{}: {}", line.check, line.found))
            .collect();
        let unknown = self.lines.iter().filter(|line| line.ok.is_none()).count();
        match (bad.is_empty(), unknown) {
            (false, _) => Err(bad.join("; ")),
            (true, 0) => Ok("ready".to_owned()),
            (true, count) => Ok(format!("ready as far as can be seen, {count} unknown")),
        }
    }
}

impl Report for Diagnosis {
    fn human(&self) -> String {
        self.text(|_, words| words.to_owned())
    }

    fn coloured(&self) -> String {
        self.text(Ink::on)
    }
}

impl Diagnosis {
    fn text(&self, paint: impl Fn(Ink, &str) -> String) -> String {
        let mut text = Vec::new();
        let mut device = None;
        for line in &self.lines {
            if line.device != device {
                device.clone_from(&line.device);
                text.push(device.clone().unwrap_or_default());
            }
            let (verdict, ink) = match line.ok {
                Some(true) => ("ok", Ink::Green),
                Some(false) if line.required => ("not ok", Ink::Red),
                Some(false) => ("not ok", Ink::Yellow),
                None => ("unknown", Ink::Yellow),
            };
            // The verdict is padded to the length of the longest verdict before escape sequences, which have no width,
            // are added.
            let verdict = paint(ink, &format!("{verdict:<7}"));
            let needed = if line.ok == Some(false) && !line.required {
                " (works without)"
            } else {
                ""
            };
            text.push(format!(
                "  {verdict} {:<20} {}{needed}",
                line.check, line.found
            ));
            if let Some(mend) = &line.mend {
                text.push(format!("{:31}mend: {mend}", ""));
            }
        }
        let bad = self
            .lines
            .iter()
            .filter(|line| line.is_unmet_requirement())
            .count();
        let unknown = self.lines.iter().filter(|line| line.ok.is_none()).count();
        let whole = match (bad, unknown) {
            (0, 0) => "ready".to_owned(),
            (0, 1) => "ready as far as can be seen: 1 line is unknown".to_owned(),
            (0, count) => format!("ready as far as can be seen: {count} lines are unknown"),
            (1, _) => "not ready: 1 line is not ok".to_owned(),
            (count, _) => format!("not ready: {count} lines are not ok"),
        };
        let ink = match (bad, unknown) {
            (0, 0) => Ink::Green,
            (0, _) => Ink::Yellow,
            _ => Ink::Red,
        };
        text.push(paint(ink, &whole));
        text.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_change_nothing_but_the_colours() {
        let diagnosis = Diagnosis {
            ok: false,
            lines: vec![
                Line::ok("one", "1"),
                Line::not_ok("two", "2", "mend it"),
                Line::unknown("three", "3", "look"),
            ],
        };
        let coloured = diagnosis.coloured();
        for (ink, word) in [
            (Ink::Green, "ok     "),
            (Ink::Red, "not ok "),
            (Ink::Yellow, "unknown"),
        ] {
            assert!(coloured.contains(&ink.on(word)), "{coloured}");
        }
        let mut plain = coloured;
        for code in ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, diagnosis.human());
    }
}
