//! Coverage of a function: the commands and registers that its driver used.

use super::opcodes;
use crate::report::FunctionReport;
use mlx_prm::{Opcode, RegisterId};
use std::collections::{BTreeMap, BTreeSet};

impl FunctionReport {
    /// Returns a line for each command and register: `command` or `register`, number, name, number of uses, number of
    /// refusals, and for commands each reason of a refusal once. Commands that were never sent are listed too.
    ///
    /// ```text
    /// command 0x0500 CREATE_QP asked 12 refused 0
    /// register 0x5004 PTYS asked 3 refused 0
    /// ```
    pub fn coverage(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut commands: BTreeMap<u16, _> = opcodes().map(|known| (known.0, 0)).collect();
        commands.extend(self.opcodes.iter().map(|(&opcode, &times)| (opcode, times)));
        for (opcode, times) in commands {
            let of_it = self.refused.iter().filter(|of| of.opcode == opcode);
            let reasons: BTreeSet<&str> = of_it.map(|of| of.reason.as_str()).collect();
            let mut line = format!(
                "command {opcode:#06x} {:?} asked {times} refused {}",
                Opcode(opcode),
                self.refusals.get(&opcode).unwrap_or(&0)
            );
            for reason in reasons {
                line += &format!("; {reason}");
            }
            lines.push(line);
        }
        for (&register, asked) in &self.registers {
            lines.push(format!(
                "register {register:#06x} {:?} asked {} refused {}",
                RegisterId(register),
                asked.times,
                asked.refused
            ));
        }
        lines
    }
}
