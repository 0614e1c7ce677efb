//! The messages on the control socket. Later versions may add fields. Existing fields keep their names and meanings as
//! long as [`SCHEMA`] is unchanged.
//!
//! Counters are maps from names to numbers. docs/observability.md lists them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of this schema.
pub const SCHEMA: u32 = 1;

/// Counters by name.
pub type Counters = BTreeMap<String, u64>;

/// Answer of `version`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Version {
    /// Schema version of the process, which is [`SCHEMA`] in this version.
    pub schema: u32,
    /// Version of the library.
    pub library: String,
    /// Name of the adapter.
    pub adapter: String,
    /// Process id.
    pub process: u32,
    /// Names of the methods that the process answers.
    pub methods: Vec<String>,
}

/// Answer of `resource`: the objects that exist.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// The adapter's name.
    pub adapter: String,
    /// Network addresses of the adapter.
    pub addresses: Vec<String>,
    /// Instances of the adapter that have answered.
    pub instances: Vec<Instance>,
    /// Instances that did not answer in time: their thread is busy outside of the library.
    pub silent: Vec<u32>,
}

/// Distribution of measured times.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// Number of measurements.
    pub count: u64,
    /// Sum of all measurements, in nanoseconds.
    pub sum: u64,
    /// Pairs of an upper bound in nanoseconds and the number of measurements below it that are not below the bound of
    /// the previous pair. Empty intervals have no pair.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    /// Returns the quantile: the upper bound, in nanoseconds, of the interval that contains it. At least
    /// `of_a_thousand` of 1,000 measurements are below this bound. Returns `None` if nothing was measured.
    #[must_use]
    pub fn quantile(&self, of_a_thousand: u64) -> Option<u64> {
        let all: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let wanted = all.saturating_mul(of_a_thousand).div_ceil(1_000);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.map(|(end, _)| *end)
    }

    /// Returns the measurements made since the earlier answer `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let then: BTreeMap<u64, u64> = before.buckets.iter().copied().collect();
        let buckets = self.buckets.iter();
        let buckets = buckets.map(|(end, count)| {
            let then = then.get(end).copied().unwrap_or(0);
            (*end, count.saturating_sub(then))
        });
        Self {
            count: self.count.saturating_sub(before.count),
            sum: self.sum.saturating_sub(before.sum),
            buckets: buckets.filter(|(_, count)| *count != 0).collect(),
        }
    }
}

/// Latencies of requests and wakeups. A latency that is not measured is `None`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Time from the doorbell of a request until the library polls its completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Histogram>,
    /// Time from the device's write of a completion until the waiting thread runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeup: Option<Histogram>,
}

impl Latency {
    /// Returns whether nothing was measured.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.completion.is_none() && self.wakeup.is_none()
    }
}

/// An open instance of an adapter.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// Number of the instance in its process.
    pub instance: u32,
    /// Counters of the whole instance: numbers of current objects, and traffic since it was opened.
    pub counters: Counters,
    /// Latencies, if measured (method `measure`).
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
    /// Endpoints, up to the requested number.
    pub endpoints: Vec<Endpoint>,
    /// Event dispatchers.
    pub evds: Vec<Evd>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Memory regions.
    pub regions: Vec<Region>,
    /// Connection qualifiers of the listeners.
    pub listeners: Vec<u64>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Number of the endpoint in its instance.
    pub endpoint: u32,
    /// Number of the queue pair; `None` for an endpoint without a protection zone.
    pub queue_pair: Option<u32>,
    /// State of the endpoint, by its name in DAT.
    pub state: String,
    /// Address of the peer.
    pub peer: Option<String>,
    /// Port qualifier of the peer.
    pub port: u64,
    /// Cause for which the last connection ended.
    pub cause: Option<String>,
    /// Properties that the endpoint's connections request from the network.
    pub transport: String,
    /// Counters of the endpoint.
    pub counters: Counters,
    /// Latencies, if measured (method `measure`).
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
}

/// An event dispatcher.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Evd {
    /// Number of the event dispatcher in its instance.
    pub evd: u32,
    /// Event streams that the event dispatcher may carry.
    pub streams: String,
    /// Number of events that the event dispatcher can hold.
    pub length: u32,
    /// Counters of the event dispatcher.
    pub counters: Counters,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Srq {
    /// Number of the shared receive queue in its instance.
    pub srq: u32,
    /// Counters of the shared receive queue.
    pub counters: Counters,
}

/// A memory region.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Local key of the region.
    pub lmr_context: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Permitted accesses.
    pub rights: String,
}

/// Answer of `stat`: counters of the adapter by group, and of each instance.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Stat {
    /// Name of the adapter.
    pub adapter: String,
    /// Time of the answer in nanoseconds, on a monotonic clock.
    pub at: u64,
    /// Counters of the adapter and its device, by group. A group is `None` if the device does not have or report it.
    pub groups: BTreeMap<String, Option<Counters>>,
    /// Instances of the adapter, without their objects.
    pub instances: Vec<Instance>,
    /// Instances that did not answer in time.
    pub silent: Vec<u32>,
}

/// Answer of `recorder`: the latest recorded events of instances and of the function, as text.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Recorder {
    /// Name of the adapter.
    pub adapter: String,
    /// Events of the instances that have answered.
    pub instances: Vec<Recorded>,
    /// Events that belong to no instance: commands, datagrams, frames, and events of the device and the link. `None` if
    /// recording has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<RecordedFunction>,
    /// Instances that did not answer in time.
    pub silent: Vec<u32>,
    /// All events as a pcapng file, in hexadecimal digits, if the client requested the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcapng: Option<String>,
}

/// Latest events of a function.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedFunction {
    /// Number of earlier events, which are no longer recorded.
    pub before: u64,
    /// Events, oldest first, one line each: milliseconds before the answer, and the event.
    pub events: Vec<String>,
}

/// An event of a flight recorder, in the form of a JSON comment in the pcapng file. Fields that do not apply to its
/// kind are left out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Entry {
    /// `post`, `completion`, `state` or `end` of an instance; `command`, `event` or `lost` (a datagram or a frame
    /// whose bytes are not kept) of the function; `dump` and `endpoint` for the state at the time of writing the
    /// file.
    pub kind: String,
    /// Description for people.
    pub says: String,
    /// Number of the instance in its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<u32>,
    /// Number of the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<u32>,
    /// Number of the endpoint's queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// Address of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Kind of a posted request, status of a completion, new state after a change of state, or cause for which a
    /// connection ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// Old state before a change of state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// True for the post or the completion of a receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<bool>,
    /// Number of bytes that were posted or transferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// Cookie of the request, chosen by the consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// Syndrome and vendor syndrome of a failed completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syndromes: Option<(u8, u8)>,
    /// Name of the adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
}

/// Latest events of an instance.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Number of the instance in its process.
    pub instance: u32,
    /// True if the instance records events.
    pub records: bool,
    /// Number of earlier events, which are no longer recorded.
    pub before: u64,
    /// Events, oldest first, one line each: milliseconds before the answer, the endpoint, and the event.
    pub events: Vec<String>,
}

/// Answer of `sim.time`, `sim.link` and `sim.function`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct SimTime {
    /// Virtual time of the simulation in nanoseconds.
    pub at: u64,
}

/// Answer of `sim.counters`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct SimCounters {
    /// Virtual time of the simulation in nanoseconds.
    pub at: u64,
    /// Counters of each function, by the path of its socket.
    pub functions: BTreeMap<String, Counters>,
}

/// A notice of an event (notification `event`, after `subscribe`).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Time of the event in nanoseconds, on the same clock as `Stat::at`.
    pub at: u64,
    /// Number of the instance that noticed the event.
    pub instance: u32,
    /// Kind of the event: `connection`, `network` or `error`.
    pub kind: String,
    /// Description of the event for people.
    pub what: String,
    /// Number of the endpoint, if the event concerns a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<u32>,
    /// Number of the endpoint's queue pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// Address of the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Cause for which a connection ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Number of notices that were dropped immediately before this one, because the client had too much unread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}
