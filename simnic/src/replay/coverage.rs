//! Commands, registers and packets of a recording's functions, part by part.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use hw_sim::FunctionReport;

use super::{Replay, Step};

/// Number of packets that arrived, by opcode.
type Packets = BTreeMap<String, u64>;

/// Collects counts, in parts that begin at given times.
pub(super) struct Coverage {
    /// Begin of the remaining parts, the next one last.
    begins: Vec<Duration>,
    number: usize,
    before: Vec<(String, FunctionReport)>,
    packets: Packets,
    text: String,
}

impl Coverage {
    pub(super) fn new(mut begins: Vec<Duration>) -> Self {
        begins.sort();
        begins.reverse();
        Self {
            begins,
            number: 0,
            before: Vec::new(),
            packets: Packets::new(),
            text: String::new(),
        }
    }

    /// Called before each record; ends the part if the next one begins.
    pub(super) fn before(&mut self, replay: &Replay) {
        let now = Duration::from_nanos(replay.end().now);
        while self.begins.pop_if(|begin| *begin <= now).is_some() {
            self.end_part(replay);
        }
    }

    /// Called after each record; counts its packets.
    pub(super) fn after(&mut self, step: &Step) {
        // The format is that of `ingress` in hw-sim.
        for line in step.log.lines() {
            let what = line
                .split_once(" packet Opcode { transport: ")
                .and_then(|(_, rest)| rest.split_once(" }"));
            if let Some((what, _)) = what {
                let what = what.replace(", operation: ", "_");
                *self.packets.entry(what).or_default() += 1;
            }
        }
    }

    fn end_part(&mut self, replay: &Replay) {
        let reports = replay.reports();
        // Writing to a String does not fail.
        let _ = writeln!(self.text, "part {}", self.number);
        for (at, (name, report)) in reports.iter().enumerate() {
            let before = self.before.get(at).map(|(_, report)| report);
            let _ = writeln!(self.text, "function {name}");
            for line in since(report, before).coverage() {
                let _ = writeln!(self.text, "{line}");
            }
        }
        for (what, times) in std::mem::take(&mut self.packets) {
            let _ = writeln!(self.text, "packet {what} arrived {times}");
        }
        self.number += 1;
        self.before = reports;
    }

    /// Returns the whole list, in the format of `serve --report`.
    pub(super) fn finished(mut self, replay: &Replay) -> String {
        self.end_part(replay);
        self.text
    }
}

/// Returns the counts of a report since an earlier one.
fn since(report: &FunctionReport, before: Option<&FunctionReport>) -> FunctionReport {
    let mut report = report.clone();
    let Some(before) = before else {
        return report;
    };
    for (opcode, times) in &mut report.opcodes {
        let earlier = before.opcodes.get(opcode).copied().unwrap_or(0);
        *times = times.saturating_sub(earlier);
    }
    for (opcode, times) in &mut report.refusals {
        let earlier = before.refusals.get(opcode).copied().unwrap_or(0);
        *times = times.saturating_sub(earlier);
    }
    for (register, asked) in &mut report.registers {
        if let Some(before) = before.registers.get(register) {
            asked.times -= before.times.min(asked.times);
            asked.refused -= before.refused.min(asked.refused);
        }
    }
    report.registers.retain(|_, asked| asked.times > 0);
    report.refused = report
        .refused
        .split_off(before.refused.len().min(report.refused.len()));
    report
}
