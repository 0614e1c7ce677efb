//! `datctl bind` and `datctl unbind`: bind a function to vfio-pci, and return it to the kernel's driver.

use driver::PciAddress;
use driver::pci::{BindError, Bound, Kernel, Machine};
use serde::Serialize;

use crate::report::Report;

/// The result of a bind or unbind, and the commands that undo it.
#[derive(Serialize)]
pub(crate) struct Rebound {
    address: String,
    before: Option<String>,
    now: Option<String>,
    /// Shell commands that undo the bind or unbind.
    undo: Vec<String>,
    /// Reason why the function still cannot be opened after a bind; `None` if it can.
    why_not: Option<String>,
}

pub(crate) fn bind(machine: &Machine, address: PciAddress) -> Result<Rebound, BindError> {
    let bound = machine.bind(address, &Kernel)?;
    let why_not = machine.usable(address).err().map(|error| error.to_string());
    Ok(Rebound::new(bound, why_not))
}

pub(crate) fn unbind(machine: &Machine, address: PciAddress) -> Result<Rebound, BindError> {
    let bound = machine.unbind(address, &Kernel)?;
    Ok(Rebound::new(bound, None))
}

impl Rebound {
    fn new(bound: Bound, why_not: Option<String>) -> Self {
        Self {
            address: bound.address.to_string(),
            before: bound.before,
            now: bound.now,
            undo: bound.undo,
            why_not,
        }
    }
}

impl Report for Rebound {
    fn human(&self) -> String {
        let name = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "no driver".into());
        let (before, now) = (name(&self.before), name(&self.now));
        let mut lines = vec![if self.undo.is_empty() {
            format!("{}: bound to {now} already", self.address)
        } else {
            format!("{}: bound to {now}, was bound to {before}", self.address)
        }];
        if !self.undo.is_empty() {
            lines.push("undo:".to_owned());
            lines.extend(self.undo.iter().map(|command| format!("  {command}")));
        }
        if let Some(why_not) = &self.why_not {
            lines.push(format!("not usable yet: {why_not}"));
        }
        lines.join("\n")
    }
}
