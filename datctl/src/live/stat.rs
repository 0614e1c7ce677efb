//! `datctl stat`: what a live process has counted, its adapter and its device.

use std::error::Error;

use control::schema::{Counters, Stat};
use serde::Serialize;

use super::{Target, ask};
use crate::report::{Report, table};

/// `stat`
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Counters that are 0, too.
    #[arg(long)]
    zeros: bool,
}

/// What it has counted.
#[derive(Serialize)]
pub(crate) struct Shown {
    #[serde(flatten)]
    stat: Stat,
    #[serde(skip)]
    zeros: bool,
}

pub(crate) fn run(options: &Options) -> Result<Shown, Box<dyn Error>> {
    let mut client = options.target.connect()?;
    Ok(Shown {
        stat: ask(&mut client, "stat")?,
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
        let groups = self.stat.groups.iter();
        let groups = groups.map(|(name, counters)| (name.replace('_', " "), counters.as_ref()));
        let rows = instances
            .chain(groups)
            .flat_map(|(of, counters)| match counters {
                None => vec![[of, "not told".to_owned(), String::new()]],
                Some(counters) => self.rows(&of, counters),
            })
            .chain(timed);
        format!(
            "{}\n{}",
            self.stat.adapter,
            table(["of", "counter", "count"], rows)
        )
    }
}

impl Shown {
    fn rows(&self, of: &str, counters: &Counters) -> Vec<[String; 3]> {
        let shown = counters
            .iter()
            .filter(|(_, count)| self.zeros || **count != 0);
        shown
            .map(|(name, count)| [of.to_owned(), name.clone(), count.to_string()])
            .collect()
    }
}
