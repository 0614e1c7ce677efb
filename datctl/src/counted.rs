//! What an adapter counts, as a table and as JSON ([what is counted](../../docs/observability.md)).

use std::collections::BTreeMap;

use serde::Serialize;
use udapl::{AdapterStats, Refused};

use crate::report::table;

/// Names and numbers.
type Named = BTreeMap<String, u64>;

/// What an adapter counts.
#[derive(Serialize)]
pub(crate) struct Counted {
    /// Of queue pairs, as `rdma statistic` calls them; `None` where the device has none or does not tell. So it is with the next three.
    queue: Option<Named>,
    /// Of the vport, as `ethtool -S` calls them.
    vport: Option<Named>,
    /// Of the card's port, likewise.
    port: Option<Named>,
    /// Of its priorities, likewise.
    priorities: Option<Named>,
    connections: Named,
    refused_by_us: Named,
    refused_by_peers: Named,
    memory: Named,
    /// Of the network's protocols; `None` where the adapter takes no part in one.
    network: Option<Named>,
    commands: Vec<Command>,
}

#[derive(Serialize)]
struct Command {
    name: String,
    answered: u64,
    refused: u64,
    unanswered: u64,
    /// On the function's clock, as the next one.
    microseconds: f64,
    longest_microseconds: f64,
}

fn named<'a>(all: impl IntoIterator<Item = (&'a str, u64)>) -> Named {
    let all = all.into_iter();
    all.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// `rx_bytes` of priority 3 is `rx_prio3_bytes`.
fn of_priority(priority: usize, name: &str) -> String {
    match name.split_once('_') {
        Some((direction, what)) => format!("{direction}_prio{priority}_{what}"),
        None => name.to_owned(),
    }
}

impl Counted {
    pub(crate) fn of(stats: &AdapterStats) -> Self {
        let (device, connections) = (&stats.device, &stats.connections);
        let priorities = device.priorities.as_ref().map(|all| {
            let all = all.iter().enumerate();
            all.flat_map(|(priority, one)| {
                one.named()
                    .map(move |(name, count)| (of_priority(priority, name), count))
            })
            .collect()
        });
        Self {
            queue: device.queue.map(|all| named(all.named())),
            vport: device.vport.map(|all| named(all.named())),
            port: device.port.map(|all| named(all.named())),
            priorities,
            connections: named([
                ("connects", connections.connects),
                ("requests", connections.requests),
                ("accepted", connections.accepted),
                ("established", connections.established),
                ("ended", connections.ended),
                ("unreachable", connections.unreachable),
                ("timed_out", connections.timed_out),
                ("accept_failed", connections.accept_failed),
            ]),
            refused_by_us: refusals(&connections.refused_by_us),
            refused_by_peers: refusals(&connections.refused_by_peers),
            memory: named([
                ("firmware_pages", stats.firmware_pages),
                ("registrations", stats.registrations),
                ("regions", stats.regions),
                ("registered_bytes", stats.registered_bytes),
            ]),
            network: stats.network.as_ref().map(|network| {
                named([
                    ("received", network.received),
                    ("asked_all", network.asked_all),
                    ("asked_one", network.asked_one),
                    ("answered", network.answered),
                    ("echoed", network.echoed),
                    ("announced", network.announced),
                    ("conflicts", network.conflicts),
                    ("moved", network.moved),
                ])
            }),
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

    /// For a person: what is not 0, and what the device does not tell.
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

fn refusals(refused: &Refused) -> Named {
    let each = refused.each();
    each.map(|(reason, times)| (format!("{reason:?}"), times))
        .collect()
}
