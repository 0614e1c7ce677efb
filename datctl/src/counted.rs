//! The counters of an adapter, as a table and as JSON (see [observability](../../docs/observability.md)).

use serde::Serialize;
use udapl::counters::{AdapterStats, Counters};

use crate::report::table;

/// The counters of an adapter.
#[derive(Serialize)]
pub(crate) struct Counted {
    /// Counters of queue pairs, with the names of `rdma statistic`; `None` if the device has none or does not report
    /// them. The same holds for the next three fields.
    queue: Option<Counters>,
    /// Counters of the vport, with the names of `ethtool -S`.
    vport: Option<Counters>,
    /// Counters of the card's port, with the names of `ethtool -S`.
    port: Option<Counters>,
    /// Counters of the port's priorities, with the names of `ethtool -S`.
    priorities: Option<Counters>,
    connections: Counters,
    refused_by_us: Counters,
    refused_by_peers: Counters,
    memory: Counters,
    /// Counters of the network protocols; `None` if the adapter is in no network.
    network: Option<Counters>,
    commands: Vec<Command>,
}

#[derive(Serialize)]
struct Command {
    name: String,
    answered: u64,
    refused: u64,
    unanswered: u64,
    /// Total time of these commands, in microseconds of the function's clock. The next field has the time of the
    /// longest command.
    microseconds: f64,
    longest_microseconds: f64,
}

impl Counted {
    pub(crate) fn of(stats: &AdapterStats) -> Self {
        let mut groups = stats.groups();
        let mut group = |name| groups.remove(name).flatten();
        Self {
            queue: group("queue"),
            vport: group("vport"),
            port: group("port"),
            priorities: group("priorities"),
            connections: group("connections").unwrap_or_default(),
            refused_by_us: group("refused_by_us").unwrap_or_default(),
            refused_by_peers: group("refused_by_peers").unwrap_or_default(),
            memory: group("memory").unwrap_or_default(),
            network: group("network"),
            commands: stats
                .commands
                .iter()
                .map(|command| Command {
                    name: command
                        .name
                        .map_or_else(|| format!("{:#06x}", command.opcode), str::to_owned),
                    answered: command.answered,
                    refused: command.refused,
                    unanswered: command.unanswered,
                    microseconds: command.time.as_secs_f64() * 1e6,
                    longest_microseconds: command.longest.as_secs_f64() * 1e6,
                })
                .collect(),
        }
    }

    /// Returns the table for a person: the counters that are not 0, and the groups that the device does not report.
    pub(crate) fn human(&self) -> String {
        let all = [
            ("queue pairs", self.queue.as_ref()),
            ("vport", self.vport.as_ref()),
            ("port", self.port.as_ref()),
            ("priorities", self.priorities.as_ref()),
            ("connections", Some(&self.connections)),
            ("refused by us", Some(&self.refused_by_us)),
            ("refused by peers", Some(&self.refused_by_peers)),
            ("memory", Some(&self.memory)),
            ("network", self.network.as_ref()),
        ];
        let rows = all.into_iter().flat_map(|(part, named)| match named {
            None => vec![[part.to_owned(), "not told".to_owned(), String::new()]],
            Some(named) => named
                .iter()
                .filter(|(_, count)| **count != 0)
                .map(|(name, count)| [part.to_owned(), name.clone(), count.to_string()])
                .collect(),
        });
        let counters = table(["of", "counter", "count"], rows);
        let commands = table(
            [
                "command",
                "answered",
                "refused",
                "unanswered",
                "longest, us",
            ],
            self.commands.iter().map(|command| {
                [
                    command.name.clone(),
                    command.answered.to_string(),
                    command.refused.to_string(),
                    command.unanswered.to_string(),
                    format!("{:.1}", command.longest_microseconds),
                ]
            }),
        );
        format!("{counters}\n\n{commands}")
    }
}
