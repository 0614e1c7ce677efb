//! Counts of events. A zero means that no simulation has tried the event.
//!
//! There are three kinds of counts: results of actions and faults, by name; calls, by the state in which they were
//! made; and commands that a call gave to the device, by the fault that affected the command. The calls, their states
//! and the faults are known in advance. So [`Coverage::zeros`] can name each state without the call, and each fault
//! that did not affect a command of a call.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::Table;
use hw_sim::{Meeting, Meetings};
use mlx_prm::Opcode;

use crate::calls::CALLS;

/// Numbers of calls that succeeded and of calls that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ended {
    done: u64,
    refused: u64,
}

/// Counts of the results of actions and faults, of calls, and of commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    events: BTreeMap<(&'static str, &'static str), u64>,
    calls: BTreeMap<(&'static str, &'static str), Ended>,
    commands: BTreeMap<(&'static str, u16, Meeting), u64>,
}

/// Faults that can affect a command, with their names in the tables.
const FAULTS: [(Meeting, &str); 5] = [
    (Meeting::Refused, "refused"),
    (Meeting::NotDelivered, "not delivered"),
    (Meeting::Silent, "silent"),
    (Meeting::Late, "late"),
    (Meeting::Starved, "starved of pages"),
];

impl Coverage {
    /// Counts the result `came_to` of the action or fault `what`.
    pub fn count(&mut self, what: &'static str, came_to: &'static str) {
        *self.events.entry((what, came_to)).or_default() += 1;
    }

    /// Counts a call made in a state.
    pub fn call(&mut self, call: &'static str, state: &'static str, done: bool) {
        let ended = self.calls.entry((call, state)).or_default();
        if done {
            ended.done += 1;
        } else {
            ended.refused += 1;
        }
    }

    /// Counts the commands of a call by the faults that affected them.
    pub fn commands(&mut self, call: &'static str, meetings: &Meetings) {
        for (&(opcode, meeting), times) in meetings {
            *self.commands.entry((call, opcode, meeting)).or_default() += times;
        }
    }

    /// Adds the counts of another simulation.
    pub fn add(&mut self, other: &Self) {
        for (what, times) in &other.events {
            *self.events.entry(*what).or_default() += times;
        }
        for (what, ended) in &other.calls {
            let sum = self.calls.entry(*what).or_default();
            sum.done += ended.done;
            sum.refused += ended.refused;
        }
        for (what, times) in &other.commands {
            *self.commands.entry(*what).or_default() += times;
        }
    }

    /// Returns how often an action or a fault happened, whatever its results were.
    #[must_use]
    pub fn times(&self, what: &str) -> u64 {
        let these = self
            .events
            .iter()
            .filter(|((action, _), _)| *action == what);
        these.map(|(_, times)| times).sum()
    }

    /// Returns all results that an action or a fault has had.
    #[must_use]
    pub fn came_to(&self, what: &str) -> BTreeSet<&'static str> {
        let these = self.events.keys().filter(|(action, _)| *action == what);
        these.map(|(_, came_to)| *came_to).collect()
    }

    /// Returns the names of the faults that have affected no command.
    #[must_use]
    pub fn faults_never_met(&self) -> Vec<&'static str> {
        let met = |fault| {
            self.commands
                .keys()
                .any(|(_, _, meeting)| *meeting == fault)
        };
        let never = FAULTS.iter().filter(|(fault, _)| !met(*fault));
        never.map(|(_, name)| *name).collect()
    }

    /// Returns the first call and opcode, in alphabetical and numerical order, of a command that a fault affected.
    /// Returns `None` if there is no such command.
    #[must_use]
    pub fn harmed(&self) -> Option<(&'static str, u16)> {
        let mut met = self.commands.keys();
        met.find(|(_, _, meeting)| *meeting != Meeting::Nothing)
            .map(|&(call, opcode, _)| (call, opcode))
    }

    /// Returns the calls that have not succeeded in any simulation.
    #[must_use]
    pub fn calls_never_done(&self) -> Vec<&'static str> {
        let done = |call: &str| {
            let these = self.calls.iter().filter(|((other, _), _)| *other == call);
            these.map(|(_, ended)| ended.done).sum::<u64>()
        };
        let names = CALLS.iter().map(|(call, _)| *call);
        names.filter(|call| done(call) == 0).collect()
    }

    /// Returns the cases that never happened: a line for each call that was never made in some of its states, and for
    /// each fault and call a line with the call's commands that the fault never affected.
    #[must_use]
    pub fn zeros(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (call, of) in CALLS {
            let never: Vec<&str> = of
                .states()
                .iter()
                .copied()
                .filter(|state| !self.calls.contains_key(&(call, state)))
                .collect();
            if never.len() == of.states().len() {
                lines.push(format!("{call}: never"));
            } else if !never.is_empty() {
                lines.push(format!("{call}: never in {}", never.join(", ")));
            }
        }
        let seen: BTreeSet<(&str, u16)> = self
            .commands
            .keys()
            .map(|&(call, opcode, _)| (call, opcode))
            .collect();
        for (fault, name) in FAULTS {
            let never = seen.iter().filter(|&&(call, opcode)| {
                let possible =
                    fault != Meeting::Starved || hw_sim::cmd::creates(&opcode.to_be_bytes());
                possible
                    && !self
                        .commands
                        .keys()
                        .any(|key| *key == (call, opcode, fault))
            });
            let mut by_call: BTreeMap<&str, Vec<String>> = BTreeMap::new();
            for &(call, opcode) in never {
                let opcode = format!("{:?}", Opcode(opcode));
                by_call.entry(call).or_default().push(opcode);
            }
            for (call, opcodes) in by_call {
                lines.push(format!("{name}: never {} of {call}", opcodes.join(", ")));
            }
        }
        lines
    }

    /// Returns the table of actions and faults with their results.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.set_header(["action or fault", "came to", "times"]);
        for ((what, came_to), times) in &self.events {
            table.add_row([*what, *came_to, &times.to_string()]);
        }
        table
    }

    /// Returns the table of calls: how often each succeeded and was refused in each state.
    #[must_use]
    pub fn calls_table(&self) -> Table {
        let mut table = Table::new();
        table.set_header(["call", "state", "done", "refused"]);
        for ((call, state), ended) in &self.calls {
            table.add_row([
                *call,
                *state,
                &ended.done.to_string(),
                &ended.refused.to_string(),
            ]);
        }
        table
    }

    /// Returns the table of commands by call: how often each was affected by no fault and by each fault.
    #[must_use]
    pub fn commands_table(&self) -> Table {
        let mut table = Table::new();
        let mut header = vec!["call", "command", "in peace"];
        header.extend(FAULTS.map(|(_, name)| name));
        table.set_header(header);
        let seen: BTreeSet<(&str, u16)> = self
            .commands
            .keys()
            .map(|&(call, opcode, _)| (call, opcode))
            .collect();
        for (call, opcode) in seen {
            let times = |meeting| {
                let found = self
                    .commands
                    .iter()
                    .find(|(key, _)| **key == (call, opcode, meeting));
                found.map_or(0, |(_, times)| *times).to_string()
            };
            let mut row = vec![call.to_owned(), format!("{:?}", Opcode(opcode))];
            row.push(times(Meeting::Nothing));
            row.extend(FAULTS.map(|(meeting, _)| times(meeting)));
            table.add_row(row);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_happened_is_said_by_name() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.calls_never_done().len(), CALLS.len());
        coverage.call("dat_ia_close", "healthy", true);
        coverage.call("dat_ia_close", "dead", false);
        coverage.commands(
            "dat_ia_close",
            &Meetings::from([((Opcode::TEARDOWN_HCA.0, Meeting::Silent), 1)]),
        );
        assert_eq!(coverage.calls_never_done().len(), CALLS.len() - 1);
        let zeros = coverage.zeros();
        assert!(zeros.contains(&"dat_ia_open: never".to_owned()));
        assert!(zeros.contains(&"dat_ia_close: never in tampered".to_owned()));
        assert!(zeros.contains(&"late: never TEARDOWN_HCA of dat_ia_close".to_owned()));
        assert!(!zeros.iter().any(|line| line.starts_with("silent")));
    }
}
