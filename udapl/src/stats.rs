//! What an adapter counts ([`Adapter::stats`]).

use std::collections::BTreeMap;
use std::time::Duration;

use dat_core::cm::{Counters as ConnectionCounters, Refused};
use dat_mlx::NetworkCounters;
use hw_mlx::{CmdError, DeviceCounters};

use crate::open::{Adapter, OpenError};

/// The commands of one kind that an adapter has sent since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandStats {
    /// Their name in the PRM; `None` for a number without a name.
    pub name: Option<&'static str>,
    /// The same as a number.
    pub opcode: u16,
    /// Those that were answered, refusals among them.
    pub answered: u64,
    /// Those of them that the firmware refused, or whose answer was malformed.
    pub refused: u64,
    /// Those that were given up after their time limit, or because the device died.
    pub unanswered: u64,
    /// From the doorbell until the answer was taken in, of all that were answered together.
    pub time: Duration,
    /// The longest of them.
    pub longest: Duration,
}

/// What an adapter counts, all of its instances together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdapterStats {
    /// Instances that are open.
    pub instances: usize,
    /// Its commands, by number.
    pub commands: Vec<CommandStats>,
    /// Pages of 4 KiB that the firmware holds.
    pub firmware_pages: u64,
    /// Regions registered since it was opened.
    pub registrations: u64,
    /// Regions that are registered now.
    pub regions: u64,
    /// Bytes of them; a byte counts in each region that it is in.
    pub registered_bytes: u64,
    /// What the connection manager has done: connections and their refusals by reason, datagrams.
    pub connections: ConnectionCounters,
    /// Frames of the network's protocols; `None` where the adapter takes no part in one.
    pub network: Option<NetworkCounters>,
    /// What the device itself counts.
    pub device: DeviceCounters,
}

/// A group of counters: names and numbers.
pub type Counters = BTreeMap<String, u64>;

impl AdapterStats {
    /// All of it but the commands by group, with names as `rdma statistic` and `ethtool -S` have them. `None`: the
    /// device does not have the group, or does not tell it, or the adapter takes no part in the network.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<&'static str, Option<Counters>> {
        let (device, connections) = (&self.device, &self.connections);
        let priorities = device.priorities.as_ref().map(|all| {
            let all = all.iter().enumerate();
            all.flat_map(|(priority, one)| {
                one.named()
                    .map(move |(name, count)| (of_priority(priority, name), count))
            })
            .collect()
        });
        let connections_of = named([
            ("connects", connections.connects),
            ("requests", connections.requests),
            ("accepted", connections.accepted),
            ("established", connections.established),
            ("ended", connections.ended),
            ("unreachable", connections.unreachable),
            ("timed_out", connections.timed_out),
            ("accept_failed", connections.accept_failed),
        ]);
        let memory = named([
            ("firmware_pages", self.firmware_pages),
            ("registrations", self.registrations),
            ("regions", self.regions),
            ("registered_bytes", self.registered_bytes),
        ]);
        let network = self.network.as_ref().map(|network| {
            named([
                ("received", network.received),
                ("asked_all", network.asked_all),
                ("asked_one", network.asked_one),
                ("answered", network.answered),
                ("unanswered", network.unanswered),
                ("echoed", network.echoed),
                ("announced", network.announced),
                ("conflicts", network.conflicts),
                ("contradicted", network.contradicted),
                ("moved", network.moved),
                ("evicted", network.evicted),
                ("neighbours", network.neighbours),
            ])
        });
        BTreeMap::from([
            ("queue", device.queue.map(|all| named(all.named()))),
            ("vport", device.vport.map(|all| named(all.named()))),
            ("port", device.port.map(|all| named(all.named()))),
            ("priorities", priorities),
            ("connections", Some(connections_of)),
            ("refused_by_us", Some(refusals(&connections.refused_by_us))),
            (
                "refused_by_peers",
                Some(refusals(&connections.refused_by_peers)),
            ),
            ("memory", Some(memory)),
            ("network", network),
        ])
    }
}

fn named<'a>(all: impl IntoIterator<Item = (&'a str, u64)>) -> Counters {
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

fn refusals(refused: &Refused) -> Counters {
    let each = refused.each();
    each.map(|(reason, times)| (format!("{reason:?}"), times))
        .collect()
}

impl Adapter {
    /// What it counts, from any thread: its commands, memory and connections, which cost nothing to ask for, and what
    /// the device counts, which takes a dozen commands. Nothing is set back.
    ///
    /// What the device does not have, or does not tell this function, is `None` in [`AdapterStats::device`], all of it
    /// where the device is dead or does not answer.
    ///
    /// # Errors
    /// [`OpenError::Closed`].
    pub fn stats(&self) -> Result<AdapterStats, OpenError> {
        let closed = || OpenError::Closed {
            name: self.name().to_owned(),
        };
        let device = match self.device().device() {
            Ok(counters) => counters.ok_or_else(closed)?,
            Err(error) => self.silent(&error),
        };
        let ours = self.device().counters().ok_or_else(closed)?;
        let (connections, instances) = self.dat().counters().ok_or_else(closed)?;
        let commands = ours.commands.iter().map(|(opcode, tally)| CommandStats {
            name: opcode.name(),
            opcode: opcode.0,
            answered: tally.answered,
            refused: tally.refused,
            unanswered: tally.unanswered,
            time: tally.time,
            longest: tally.longest,
        });
        Ok(AdapterStats {
            instances,
            commands: commands.collect(),
            firmware_pages: ours.pages.given - ours.pages.returned,
            registrations: ours.registrations,
            regions: ours.regions,
            registered_bytes: ours.registered_bytes,
            connections,
            network: ours.network,
            device,
        })
    }

    fn silent(&self, error: &CmdError) -> DeviceCounters {
        tracing::warn!(adapter = self.name(), %error, "the device does not say what it counts");
        DeviceCounters::default()
    }
}
