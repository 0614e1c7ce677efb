//! Counts of the commands, registers and packets of a recording's functions, for each part of the recording.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use hw_sim::FunctionReport;

use super::{Replay, Step};

/// Number of packets that arrived, by opcode.
type Packets = BTreeMap<String, u64>;

/// Collects the counts of each part. The parts begin at given times.
pub(super) struct Coverage {
    /// Begin times of the remaining parts, latest first.
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

    /// Ends the current part if the time of the next part has come. Called before each record.
    pub(super) fn before(&mut self, replay: &Replay) {
        let now = Duration::from_nanos(replay.end().now);
        while self.begins.pop_if(|begin| *begin <= now).is_some() {
            self.end_part(replay);
        }
    }

    /// Counts the packets of a record. Called after each record.
    pub(super) fn after(&mut self, step: &Step) {
        // `ingress` in hw-sim defines the format of these lines.
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

    /// Returns the counts of all parts. The lines about commands and registers have the format of `serve --report`.
    pub(super) fn finished(mut self, replay: &Replay) -> String {
        self.end_part(replay);
        self.text
    }
}

/// Returns the difference between a report's counts and those of an earlier report.
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
