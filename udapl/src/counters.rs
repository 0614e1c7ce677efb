//! Counters of an adapter, of its device, and of instances and their objects.
//!
//! | Of | Call | Returns |
//! |---|---|---|
//! | an adapter: commands, memory, connections, the network | [`Adapter::stats`] | [`AdapterStats`] |
//! | its device and port, counted by the device | [`Adapter::stats`], field `device` | [`DeviceCounters`] |
//! | an instance | [`Ia::stats`] | [`IaStats`] |
//! | an endpoint | [`Ia::ep_stats`] | [`EpStats`] |
//! | an EVD | [`Ia::evd_stats`] | [`EvdStats`] |
//! | an SRQ | [`Ia::srq_stats`] | [`SrqStats`] |
//!
//! Event counters only grow, and no call resets them. Fields that count what exists now (instances, regions,
//! endpoints, firmware pages) also fall. Only an instance's own thread reads the instance's counters; any thread reads
//! an adapter's counters. [`AdapterStats::groups`] returns all groups but the commands. Counters that `rdma statistic`
//! or `ethtool -S` also have keep the names used there. `docs/observability.md` explains each counter; module `control`
//! serves the counters to other processes.
//!
//! [`Ia::stats`]: crate::Ia::stats
//! [`Ia::ep_stats`]: crate::Ia::ep_stats
//! [`Ia::evd_stats`]: crate::Ia::evd_stats
//! [`Ia::srq_stats`]: crate::Ia::srq_stats

use std::collections::BTreeMap;
use std::time::Duration;

pub use dat_core::cm::{Counters as ConnectionCounters, Refused};
pub use dat_core::{EpStats, EvdStats, Failures, IaStats, LatencyView, SrqStats};
pub use dat_mlx::NetworkCounters;
use hw_mlx::CmdError;
pub use hw_mlx::{DeviceCounters, PortCounters, PriorityTraffic, QueueCounters, VportCounters};

use crate::open::{Adapter, OpenError};

/// Counters of the firmware commands with one opcode, since the adapter was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandStats {
    /// Name of the command in the PRM; `None` if the PRM has no name for the opcode.
    pub name: Option<&'static str>,
    /// Opcode.
    pub opcode: u16,
    /// Number of commands that the firmware has answered, including refused ones.
    pub answered: u64,
    /// Number of commands that the firmware refused, or whose answer was malformed.
    pub refused: u64,
    /// Number of commands given up after their time limit, or because the device died.
    pub unanswered: u64,
    /// Total time of all answered commands, each from the doorbell until the driver has read the answer.
    pub time: Duration,
    /// Longest time of an answered command, measured in the same way.
    pub longest: Duration,
}

/// Counters of an adapter, all of its instances together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AdapterStats {
    /// Number of open instances.
    pub instances: usize,
    /// Counters of the adapter's commands, by opcode.
    pub commands: Vec<CommandStats>,
    /// Number of 4 KiB pages that the firmware holds.
    pub firmware_pages: u64,
    /// Number of regions registered since the adapter was opened.
    pub registrations: u64,
    /// Number of regions registered now.
    pub regions: u64,
    /// Number of bytes registered now. A byte counts once for each region that contains it.
    pub registered_bytes: u64,
    /// Counters of the connection manager: connections, refused connections by reason, datagrams.
    pub connections: ConnectionCounters,
    /// Number of received datagrams of connection management that were dropped before the connection manager saw them,
    /// because 512 others waited. Their senders repeat them.
    pub mads_dropped: u64,
    /// Counters of frames of ARP, neighbour discovery and similar protocols; `None` if the adapter did not join the
    /// network when it was opened. If the Ethernet port is given up later ([`network::state`](crate::network::state)),
    /// the counters stay, and count no more received frames.
    pub network: Option<NetworkCounters>,
    /// Counters that the device itself keeps.
    pub device: DeviceCounters,
}

/// A group of counters: values by the counter's name.
pub type Counters = BTreeMap<String, u64>;

impl AdapterStats {
    /// Returns all groups but the commands. Counters that `rdma statistic` or `ethtool -S` also have keep the names
    /// used there. A group of the device is `None` if the device does not have it or does not report it. The group
    /// `network` is `None` if the adapter did not join the network.
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
            ("mads_dropped", self.mads_dropped),
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

/// Returns the name of a counter of a priority: `rx_bytes` of priority 3 becomes `rx_prio3_bytes`.
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
    /// Returns the adapter's counters. Any thread may call it. The device's counters cost a dozen commands; the others
    /// cost no command. No counter is reset.
    ///
    /// A counter that the device lacks, or does not report to this function, is `None` in [`AdapterStats::device`].
    /// All of the device's counters are `None` if the device is dead or does not answer.
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
            mads_dropped: ours.mads_dropped,
            network: ours.network,
            device,
        })
    }

    fn silent(&self, error: &CmdError) -> DeviceCounters {
        tracing::warn!(adapter = self.name(), %error, "cannot read the device's counters");
        DeviceCounters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_qp1_has_dropped_are_counters_of_connections() {
        let stats = AdapterStats {
            instances: 1,
            commands: Vec::new(),
            firmware_pages: 0,
            registrations: 0,
            regions: 0,
            registered_bytes: 0,
            connections: ConnectionCounters::default(),
            mads_dropped: 7,
            network: None,
            device: DeviceCounters::default(),
        };
        let groups = stats.groups();
        let connections = groups["connections"].as_ref().expect("a group");
        assert_eq!(connections["mads_dropped"], 7);
    }
}
