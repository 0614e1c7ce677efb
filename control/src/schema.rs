//! The messages on the socket. Fields may be added. Existing fields keep name and meaning as long as [`SCHEMA`] is
//! the same.
//!
//! Counters are maps of names to numbers that only grow, listed in docs/observability.md.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of this schema.
pub const SCHEMA: u32 = 1;

/// Numbers by name.
pub type Counters = BTreeMap<String, u64>;

/// Answer of `version`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Version {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the library.
    pub library: String,
    /// The adapter's name.
    pub adapter: String,
    /// Process id.
    pub process: u32,
    /// Names of its methods.
    pub methods: Vec<String>,
}

/// Answer of `resource`: the existing objects.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// The adapter's name.
    pub adapter: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its instances.
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
    /// Upper bound in nanoseconds, and number of measurements below it and not below the previous pair's bound. Empty
    /// intervals have no pair.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    /// Returns a time, in nanoseconds, that `of_a_thousand` of 1,000 measurements are below. `None`: nothing was
    /// measured.
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

    /// Returns the measurements since an earlier answer.
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

/// Latencies of requests and wakeups. `None`: not measured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// From the doorbell of a request until the library took its completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Histogram>,
    /// From the device's write of a completion until the waiting thread ran again.
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

/// An instance.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// Number of the instance in its process.
    pub instance: u32,
    /// Counters of the whole instance: current objects, traffic so far.
    pub counters: Counters,
    /// Latencies, if measured (method `measure`).
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
    /// Endpoints, up to the number asked for.
    pub endpoints: Vec<Endpoint>,
    /// Event dispatchers.
    pub evds: Vec<Evd>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Memory regions.
    pub regions: Vec<Region>,
    /// Qualifiers of its listeners.
    pub listeners: Vec<u64>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Number in its instance.
    pub endpoint: u32,
    /// The queue pair's number; `None` without a PZ.
    pub queue_pair: Option<u32>,
    /// Its state, by DAT's name.
    pub state: String,
    /// The peer's address.
    pub peer: Option<String>,
    /// The peer's port qualifier.
    pub port: u64,
    /// Cause of the end of the last connection.
    pub cause: Option<String>,
    /// Properties its connections ask of the network.
    pub transport: String,
    /// Its counters.
    pub counters: Counters,
    /// Latencies, if measured (method `measure`).
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
}

/// An event dispatcher.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Evd {
    /// Number in its instance.
    pub evd: u32,
    /// Streams of events it may carry.
    pub streams: String,
    /// Number of events it can hold.
    pub length: u32,
    /// Its counters.
    pub counters: Counters,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Srq {
    /// Number in its instance.
    pub srq: u32,
    /// Its counters.
    pub counters: Counters,
}

/// A memory region.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Its local key.
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
    /// The adapter's name.
    pub adapter: String,
    /// Time in nanoseconds of a monotonic clock.
    pub at: u64,
    /// Counters of the adapter and its device, by group. `None`: the device does not have or report the group.
    pub groups: BTreeMap<String, Option<Counters>>,
    /// Its instances, without their objects.
    pub instances: Vec<Instance>,
    /// Instances that did not answer.
    pub silent: Vec<u32>,
}

/// Answer of `recorder`: the latest events of instances, as text.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Recorder {
    /// The adapter's name.
    pub adapter: String,
    /// Instances that have answered.
    pub instances: Vec<Recorded>,
    /// Events of no instance: commands, datagrams, frames, events of device and link. `None`: recording has not
    /// begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<RecordedFunction>,
    /// Instances that did not answer.
    pub silent: Vec<u32>,
    /// All events as a pcapng file, in hexadecimal digits, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcapng: Option<String>,
}

/// Latest events of a function.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedFunction {
    /// Number of earlier events.
    pub before: u64,
    /// One line per event, oldest first: milliseconds before the answer, event.
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
    /// The endpoint's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<u32>,
    /// Number of its queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// The peer's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Kind of the posted request; status of a completion; state after a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// The state before a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// True for the post or the completion of a receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<bool>,
    /// Bytes posted, or transferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// The consumer's cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// Syndrome and vendor syndrome of a failed completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syndromes: Option<(u8, u8)>,
    /// The adapter's name.
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
    /// True if it records.
    pub records: bool,
    /// Number of earlier events.
    pub before: u64,
    /// One line per event, oldest first: milliseconds before the answer, endpoint, event.
    pub events: Vec<String>,
}

/// Answer of `sim.time`, `sim.link` and `sim.function`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct SimTime {
    /// Nanoseconds of the simulated world's clock.
    pub at: u64,
}

/// Answer of `sim.counters`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct SimCounters {
    /// Nanoseconds of the simulated world's clock.
    pub at: u64,
    /// Counters of each function, by the path of its socket.
    pub functions: BTreeMap<String, Counters>,
}

/// A notice of an event (notification `event`, after `subscribe`).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Time in nanoseconds of the same clock.
    pub at: u64,
    /// The instance that has noticed the event.
    pub instance: u32,
    /// `connection`, `network` or `error`.
    pub kind: String,
    /// Description.
    pub what: String,
    /// The endpoint, for connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<u32>,
    /// Number of its queue pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// The peer's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Cause of the end of a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Number of notices before this one that were dropped for lack of room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}
