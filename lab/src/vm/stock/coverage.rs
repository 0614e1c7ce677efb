//! docs/simulator-coverage.md: the requests of stock software to the simulated functions, and their answers.
//!
//! The page is made from the report of `datctl sim serve --report`, which also lists commands that were never
//! requested. The numbers of requests differ from run to run and are left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};

/// A command or register: its name, the number of requests, and how many of them were refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub name: String,
    pub times: u64,
    pub refused: u64,
}

impl Asked {
    fn answer(&self) -> &'static str {
        match (self.refused, self.times) {
            (0, _) => "answered",
            (refused, times) if refused == times => "refused as not supported",
            _ => "answered; refused where its rules say so",
        }
    }
}

/// Commands and registers in a report, by number, summed over all functions.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub commands: BTreeMap<u16, Asked>,
    pub registers: BTreeMap<u16, Asked>,
}

impl Coverage {
    pub fn parse(report: &str) -> Result<Self> {
        let mut coverage = Self::default();
        for line in report.lines() {
            let (line, _reasons) = line.split_once("; ").unwrap_or((line, ""));
            let words: Vec<&str> = line.split_whitespace().collect();
            let [kind, number, name, "asked", times, "refused", refused] = words[..] else {
                continue;
            };
            let table = match kind {
                "command" => &mut coverage.commands,
                "register" => &mut coverage.registers,
                _ => continue,
            };
            let number = number.strip_prefix("0x").context("a number in hex")?;
            let asked = table.entry(u16::from_str_radix(number, 16)?).or_default();
            name.clone_into(&mut asked.name);
            asked.times += times.parse::<u64>()?;
            asked.refused += refused.parse::<u64>()?;
        }
        Ok(coverage)
    }
}

/// Returns the page for the report of a run. `who` names the software that sent the requests.
pub fn page(report: &str, who: &str) -> Result<String> {
    let coverage = Coverage::parse(report)?;
    let mut page = format!(
        "# What the simulator answers\n\n\
         Written by `cargo xtask vm test --stock`: every command and register that stock software asked for, and every other\n\
         command the simulator has. What is not listed is refused as a device without it refuses: commands with status 0x02\n\
         (bad opcode), registers with 0x03 (bad parameter).\n\n\
         Who asked: {who}. Commands without such a mark are exercised by the project's own driver and the tests in\n\
         `hw-sim/tests` alone.\n\n\
         ## Commands\n\n\
         | Opcode | Command | Answer | Asked by stock software |\n|---|---|---|---|\n"
    );
    for (number, asked) in &coverage.commands {
        let (name, answer) = (&asked.name, asked.answer());
        let mark = if asked.times == 0 { "" } else { "yes" };
        writeln!(page, "| {number:#06x} | {name} | {answer} | {mark} |")?;
    }
    page += "\n## Registers asked for\n\n| Register | Name | Answer |\n|---|---|---|\n";
    for (number, asked) in &coverage.registers {
        writeln!(
            page,
            "| {number:#06x} | {} | {} |",
            asked.name,
            asked.answer()
        )?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "function sim:0.sock\n\
        command 0x0500 CREATE_QP asked 12 refused 0\n\
        command 0x0108 MANAGE_PAGES asked 4 refused 1; page given twice\n\
        register 0x5004 PTYS asked 3 refused 0\n\
        function sim:1.sock\n\
        command 0x0500 CREATE_QP asked 2 refused 0\n\
        command 0x0304 GEN_EQE asked 0 refused 0\n\
        command 0x0a04 CREATE_UCTX asked 1 refused 1; unknown opcode\n";

    #[test]
    fn what_several_functions_were_asked_is_added_up() {
        let coverage = Coverage::parse(REPORT).unwrap();
        assert_eq!(coverage.commands[&0x500].times, 14);
        assert_eq!(coverage.registers[&0x5004].answer(), "answered");
    }

    #[test]
    fn the_page_lists_refused_and_unused_requests() {
        let page = page(REPORT, "a kernel").unwrap();
        for row in [
            "| 0x0500 | CREATE_QP | answered | yes |",
            "| 0x0108 | MANAGE_PAGES | answered; refused where its rules say so | yes |",
            "| 0x0a04 | CREATE_UCTX | refused as not supported | yes |",
            "| 0x0304 | GEN_EQE | answered |  |",
            "| 0x5004 | PTYS | answered |",
        ] {
            assert!(page.contains(row), "{row} in {page}");
        }
    }
}
