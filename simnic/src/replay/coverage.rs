//! What functions were asked, part by part of a recording.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use hw_sim::FunctionReport;

use super::{Replay, Step};

/// Packets that arrived, by what they are.
type Packets = BTreeMap<String, u64>;

/// Lists what there was, in parts that begin at these times.
pub(super) struct Coverage {
    /// The next ones, the first last.
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

    /// A record is to be carried out.
    pub(super) fn before(&mut self, replay: &Replay) {
        let now = Duration::from_nanos(replay.end().now);
        while self.begins.pop_if(|begin| *begin <= now).is_some() {
            self.end_part(replay);
        }
    }

    /// It was.
    pub(super) fn after(&mut self, step: &Step) {
        // As `ingress` in hw-sim words it.
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

    /// All of it, as `serve --report` has it.
    pub(super) fn finished(mut self, replay: &Replay) -> String {
        self.end_part(replay);
        self.text
    }
}

/// What a function was asked since an earlier report.
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
