//! `datctl stat`: the counters of a live process, its adapter and its device.

use std::error::Error;

use control::schema::{Counters, Stat};
use serde::Serialize;

use super::{Target, ask};
use crate::report::{Report, counted, table};

/// `stat`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Also show each kind of command, the port with its priorities, and the vport.
    #[arg(long)]
    all: bool,
    /// Also show counters that are 0.
    #[arg(long)]
    zeros: bool,
}

/// Groups with many counters, which are shown only with `--all`.
const LONG: [&str; 4] = ["commands", "port", "priorities", "vport"];

/// The counters of a process.
#[derive(Serialize)]
pub(crate) struct Shown {
    #[serde(flatten)]
    stat: Stat,
    #[serde(skip)]
    all: bool,
    #[serde(skip)]
    zeros: bool,
}

pub(crate) fn run(options: &Options) -> Result<Shown, Box<dyn Error>> {
    let mut client = options.target.connect()?;
    Ok(Shown {
        stat: ask(&mut client, "stat")?,
        all: options.all,
        zeros: options.zeros,
    })
}

impl Report for Shown {
    fn human(&self) -> String {
        let instances = self.stat.instances.iter().map(|instance| {
            let silent = self.stat.silent.contains(&instance.instance);
            let of = if silent {
                format!("instance {} (silent)", instance.instance)
            } else {
                format!("instance {}", instance.instance)
            };
            (of, Some(&instance.counters))
        });
        let timed = self.stat.instances.iter().flat_map(|instance| {
            let of = format!("instance {}", instance.instance);
            let parts = [
                ("completion", instance.latency.completion.as_ref()),
                ("wakeup", instance.latency.wakeup.as_ref()),
            ];
            let parts = parts
                .into_iter()
                .filter_map(|(name, all)| Some((name, all?)));
            parts.flat_map(move |(name, all)| {
                let row = |what: &str, count: u64| {
                    [of.clone(), format!("{name}_{what}"), count.to_string()]
                };
                let quantile = |of_a_thousand| all.quantile(of_a_thousand).unwrap_or(0);
                [
                    row("samples", all.count),
                    row("p50_nanoseconds", quantile(500)),
                    row("p99_nanoseconds", quantile(990)),
                ]
            })
        });
        let is_shown = |name: &str| self.all || !LONG.contains(&name);
        let left_out = self.stat.groups.iter().filter(|(name, _)| !is_shown(name));
        let left_out = left_out.flat_map(|(_, counters)| counters.iter().flatten());
        let left_out = left_out
            .filter(|(_, count)| self.zeros || **count != 0)
            .count();
        let commands = self.commands();
        let groups = self.stat.groups.iter().filter(|(name, _)| is_shown(name));
        let groups = groups.map(|(name, counters)| (name.replace('_', " "), counters.as_ref()));
        let rows = instances
            .chain(groups)
            .flat_map(|(of, counters)| match counters {
                None => vec![[of, "not told".to_owned(), String::new()]],
                Some(counters) => self.rows(&of, counters),
            })
            .chain(commands)
            .chain(timed);
        let table = table(["of", "counter", "count"], rows);
        let more = if left_out == 0 {
            String::new()
        } else {
            format!("\n{} more with --all", counted(left_out, "counter"))
        };
        format!("{}\n{table}{more}", self.stat.adapter)
    }
}

impl Shown {
    /// Returns the totals over all commands, for a table that does not show the kinds of commands.
    fn commands(&self) -> Vec<[String; 3]> {
        let commands = self.stat.groups.get("commands").and_then(Option::as_ref);
        let Some(commands) = commands.filter(|_| !self.all) else {
            return Vec::new();
        };
        let all = ["answered", "refused", "unanswered"].map(|what| {
            let ending = format!("_{what}");
            let of_kind = commands.iter().filter(|(name, _)| name.ends_with(&ending));
            let count: u64 = of_kind.map(|(_, count)| count).sum();
            (what.to_owned(), count)
        });
        self.rows("commands", &all.into())
    }

    fn rows(&self, of: &str, counters: &Counters) -> Vec<[String; 3]> {
        let shown = counters
            .iter()
            .filter(|(_, count)| self.zeros || **count != 0);
        shown
            .map(|(name, count)| [of.to_owned(), name.clone(), count.to_string()])
            .collect()
    }
}
