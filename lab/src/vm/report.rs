//! The table of a guest's steps: step, program, result, time, figures.

use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::Table;

/// Beginning of the message in a log's lines about a rule that a driver broke.
const BROKEN: &str = "driver bug: ";
/// Module whose lines are those of the simulated function (`hw-sim/src/nic.rs`). The program that serves the function
/// (`simnic/src/serve.rs`) may log the same rule.
const FUNCTION: &str = "hw_sim::nic: ";

/// Returns the number of broken rules in lines that [`Step::broken_rules`] returned. A rule with a line of the function
/// and a line of the program that serves it counts once.
pub fn count_broken(lines: &[&str]) -> usize {
    let (of_function, of_server): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| line.contains(FUNCTION));
    of_function.len().max(of_server.len())
}

/// A step of a guest's script that has ended or was ended.
#[derive(Clone, Debug)]
pub struct Step {
    /// Name of the step in the suite's script.
    pub name: String,
    /// Command line of the step.
    pub command: String,
    /// Lines of the step's output.
    pub said: Vec<String>,
    /// Exit status of the command; `None` if the guest ended first.
    pub code: Option<i32>,
    /// Duration of the step by the guest's clock.
    pub took: Duration,
}

impl Step {
    /// Returns a successful step, for tests of the judging functions.
    #[cfg(test)]
    pub fn succeeded(name: &str, said: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            command: String::new(),
            said: said.iter().map(|&line| line.to_owned()).collect(),
            code: Some(0),
            took: Duration::ZERO,
        }
    }

    /// Returns a step without a program, for output that is found after the guest has ended. `of` takes the place of
    /// its command.
    pub fn shown(name: &str, of: &str, said: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            command: of.to_owned(),
            said,
            code: Some(0),
            took: Duration::ZERO,
        }
    }

    /// Returns the lines that contain this text.
    pub fn lines_with(&self, what: &str) -> Vec<&str> {
        let lines = self.said.iter().map(String::as_str);
        lines.filter(|line| line.contains(what)).collect()
    }

    /// Returns the lines about rules that a driver broke, logged by the function or by the program that serves it.
    pub fn broken_rules(&self) -> Vec<&str> {
        let lines = self.said.iter().map(String::as_str);
        lines.filter(|line| line.contains(BROKEN)).collect()
    }

    /// Checks that the programs at both ends of a connection succeeded. Returns the line that says so.
    pub fn both_succeeded(&self) -> Result<&str> {
        self.line_with("client 0 server 0")
    }

    /// Returns the first line that contains this text.
    pub fn line_with(&self, what: &str) -> Result<&str> {
        let lines = self.lines_with(what);
        lines
            .first()
            .copied()
            .with_context(|| format!("no line contains {what:?}"))
    }
}

/// A step and its verdict.
#[derive(Debug)]
pub struct Verdict {
    /// The step.
    pub step: Step,
    /// Figures of the step if it passed, otherwise the error.
    pub result: std::result::Result<String, String>,
}

impl Verdict {
    /// Judges a step: its exit status must be 0, and `judge` must accept its output.
    pub fn of(step: Step, judge: impl Fn(&Step) -> Result<String>) -> Self {
        let result = match step.code {
            Some(0) => judge(&step).map_err(|error| format!("{error:#}")),
            // These are the exit statuses of timeout(1) and of a shell whose program was killed.
            Some(124 | 137 | 143) => Err("took too long and was ended".to_owned()),
            Some(code) => Err(format!("exit status {code}")),
            None => Err("did not end".to_owned()),
        };
        Self { step, result }
    }
}

/// Returns the table of all steps.
pub fn table(verdicts: &[Verdict]) -> Table {
    let mut table = Table::new();
    table.set_header(["step", "program", "result", "time", "figures"]);
    for verdict in verdicts {
        let (result, figures) = match &verdict.result {
            Ok(figures) => ("ok", figures),
            Err(wrong) => ("FAILED", wrong),
        };
        let program: String = verdict.step.command.chars().take(60).collect();
        table.add_row([
            &verdict.step.name,
            &program,
            result,
            &format!("{:.1} s", verdict.step.took.as_secs_f64()),
            figures,
        ]);
    }
    table
}

/// Returns the table of steps that ran several times: number of runs, number of successes, duration.
pub fn summary(verdicts: &[Verdict]) -> Table {
    let mut table = Table::new();
    table.set_header(["step", "runs", "ok", "time"]);
    let mut names: Vec<&str> = Vec::new();
    for verdict in verdicts {
        let name = verdict.step.name.as_str();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let runs: Vec<&Verdict> = verdicts.iter().filter(|of| of.step.name == name).collect();
        let times = runs.iter().map(|of| of.step.took.as_secs_f64());
        let (shortest, longest) = times.fold((f64::MAX, 0.0_f64), |(low, high), time| {
            (low.min(time), high.max(time))
        });
        if runs.len() > 1 {
            let good = runs.iter().filter(|of| of.result.is_ok()).count();
            table.add_row([
                name.to_owned(),
                runs.len().to_string(),
                good.to_string(),
                format!("{shortest:.1} to {longest:.1} s"),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(code: Option<i32>) -> Step {
        Step {
            name: "info".to_owned(),
            command: "datctl info".to_owned(),
            said: vec!["firmware 1.2".to_owned()],
            code,
            took: Duration::from_millis(1500),
        }
    }

    /// The lines are those of `tracing::warn!` in `hw-sim/src/nic.rs` and in `simnic/src/serve.rs`.
    #[test]
    fn a_rule_that_a_driver_broke_is_found_in_either_log_and_counted_once() {
        let bug =
            "WARN hw_sim::nic: driver bug: a write behind a UMR without a fence function=sim:a";
        let served = "WARN simnic::serve: sim:a: driver bug: a write behind a UMR without a fence";
        let quiet = "sim:a: 268 commands, 0 refused, 0 DMA faults, 0 driver bugs";
        for (said, times) in [
            (&[quiet][..], 0),
            (&[quiet, bug][..], 1),
            (&[served][..], 1),
            (&[bug, served][..], 1),
            (&[bug, served, served][..], 2),
        ] {
            let step = Step::succeeded("functions", said);
            let broken = step.broken_rules();
            assert_eq!(count_broken(&broken), times, "{said:?}");
            assert!(!broken.contains(&quiet));
        }
    }

    #[test]
    fn every_judge_of_functions_refuses_a_broken_rule_in_either_log() {
        use crate::vm::{card, interop, stock, vfio};
        type Judge = fn(&Step) -> Result<String>;
        let judges: [(&str, Judge); 4] = [
            ("stock", stock::judge),
            ("interop", interop::judge),
            ("vfio", vfio::judge::judge),
            ("card", card::judge::judge),
        ];
        // The suite on vfio-pci needs this line; a test in the guest provokes it.
        let refused = "sim:1.sock: the IOMMU refused the key";
        for (name, judge) in judges {
            let with = |line: &str| {
                let mut said = vec![line];
                if name == "vfio" {
                    said.push(refused);
                }
                judge(&Step::succeeded("functions", &said))
            };
            assert!(with("a quiet line").is_ok(), "{name}");
            for log in ["hw_sim::nic: ", "simnic::serve: sim:a: "] {
                let line = format!("WARN {log}{BROKEN}no fence");
                assert!(with(&line).is_err(), "{name}: {line}");
            }
        }
    }

    #[test]
    fn what_ran_several_times_is_counted() {
        let verdict = |code| Verdict::of(step(code), |_| Ok(String::new()));
        let verdicts = [verdict(Some(0)), verdict(Some(1)), verdict(Some(0))];
        let table = summary(&verdicts).to_string();
        let row = table.lines().find(|line| line.contains("info"));
        let words: Vec<&str> = row.unwrap().split_whitespace().collect();
        assert_eq!((words[3], words[5]), ("3", "2"), "{table}");
        assert!(!summary(&verdicts[..1]).to_string().contains("info"));
    }

    #[test]
    fn a_step_is_right_only_if_it_ended_well_and_said_the_right_thing() {
        let good = |_: &Step| Ok("1 line".to_owned());
        let bad = |step: &Step| step.line_with("hardware").map(str::to_owned);
        assert_eq!(
            Verdict::of(step(Some(0)), good).result,
            Ok("1 line".to_owned())
        );
        assert_eq!(
            Verdict::of(step(Some(0)), bad).result,
            Err("no line contains \"hardware\"".to_owned())
        );
        for code in [Some(1), Some(124), None] {
            assert!(
                Verdict::of(step(code), good).result.is_err(),
                "status {code:?}"
            );
        }
    }
}
