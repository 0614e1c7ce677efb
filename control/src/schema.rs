//! What passes over the socket. Fields may be added; what is there keeps its name and meaning while [`SCHEMA`] is the
//! same.
//!
//! Counters are maps of names and numbers that only grow, as docs/observability.md lists them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of this schema.
pub const SCHEMA: u32 = 1;

/// Names and numbers.
pub type Counters = BTreeMap<String, u64>;

/// Answer of `version`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Version {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The library's.
    pub library: String,
    /// The adapter's name.
    pub adapter: String,
    /// The process.
    pub process: u32,
    /// Methods that are there.
    pub methods: Vec<String>,
}

/// Answer of `resource`: what there is now.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// The adapter's name.
    pub adapter: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its instances.
    pub instances: Vec<Instance>,
    /// Instances that did not answer within the time: busy with something else, and not in a call of the library.
    pub silent: Vec<u32>,
}

/// How often something took how long.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// How often it was measured.
    pub count: u64,
    /// All of it together, in nanoseconds.
    pub sum: u64,
    /// Nanoseconds, and how often it took less than that, and not less than what the pair before says. Pairs are
    /// there for what has happened.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    /// A time, in nanoseconds, that so many of a thousand took less than. `None`: nothing was measured.
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

    /// What was measured since an earlier look.
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

/// How long requests and wakeups took. `None`: that was not measured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// From the doorbell of a request until its completion was taken in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<Histogram>,
    /// From when the device wrote a completion until the wait that slept for it ran again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeup: Option<Histogram>,
}

impl Latency {
    /// Nothing was measured.
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
    /// All of it together: objects now, traffic so far.
    pub counters: Counters,
    /// How long things took that were measured (method `measure`).
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
    /// Endpoints, at most as many as were asked for.
    pub endpoints: Vec<Endpoint>,
    /// Event dispatchers.
    pub evds: Vec<Evd>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Memory regions.
    pub regions: Vec<Region>,
    /// Qualifiers at which it listens.
    pub listeners: Vec<u64>,
}

/// An endpoint.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Number in its instance.
    pub endpoint: u32,
    /// The queue pair's number; `None` without a PZ.
    pub queue_pair: Option<u32>,
    /// Its state, as DAT calls it.
    pub state: String,
    /// The peer's address.
    pub peer: Option<String>,
    /// The peer's port qualifier.
    pub port: u64,
    /// Why the last connection ended.
    pub cause: Option<String>,
    /// What its connections ask of the network.
    pub transport: String,
    /// What it has counted.
    pub counters: Counters,
    /// How long things took that were measured (method `measure`).
    #[serde(default, skip_serializing_if = "Latency::is_empty")]
    pub latency: Latency,
}

/// An event dispatcher.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Evd {
    /// Number in its instance.
    pub evd: u32,
    /// Streams it may carry.
    pub streams: String,
    /// Events it can hold.
    pub length: u32,
    /// What it has counted.
    pub counters: Counters,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Srq {
    /// Number in its instance.
    pub srq: u32,
    /// What it has counted.
    pub counters: Counters,
}

/// A memory region.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Its local key.
    pub lmr_context: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What may be done with it.
    pub rights: String,
}

/// Answer of `stat`: counters of the adapter by group, and of each instance.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Stat {
    /// The adapter's name.
    pub adapter: String,
    /// Nanoseconds of a clock that only grows.
    pub at: u64,
    /// Counters of the adapter and its device, by group. `None`: the device does not have it, or does not tell.
    pub groups: BTreeMap<String, Option<Counters>>,
    /// Its instances, without their objects.
    pub instances: Vec<Instance>,
    /// Those that did not answer.
    pub silent: Vec<u32>,
}

/// Answer of `recorder`: what instances did last, for people.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Recorder {
    /// The adapter's name.
    pub adapter: String,
    /// Those that have answered.
    pub instances: Vec<Recorded>,
    /// What is no instance's: commands, datagrams, frames, events of device and link. `None`: nobody has recorded yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<RecordedFunction>,
    /// Those that did not.
    pub silent: Vec<u32>,
    /// All of it as a pcapng file, in hexadecimal digits, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcapng: Option<String>,
}

/// What a function did last.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct RecordedFunction {
    /// Events before these.
    pub before: u64,
    /// A line each, oldest first: milliseconds before the answer, what.
    pub events: Vec<String>,
}

/// An event of a flight recorder, as a file of it has it: a note of the pcapng file, in JSON. Fields that an event of
/// its kind does not have are left out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Entry {
    /// `post`, `completion`, `state` or `end` of an instance; `command`, `event` or `lost` (a datagram or a frame whose
    /// bytes are not kept) of the function; `dump` and `endpoint` of what was there when the file was written.
    pub kind: String,
    /// For people.
    pub says: String,
    /// Number of the instance in its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<u32>,
    /// The endpoint's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<u32>,
    /// Its queue pair's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// The peer's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// What was posted; the status of a completion; the state after a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// The state before a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Of a post or a completion: it is a receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<bool>,
    /// Bytes posted, or transferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// The consumer's cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// Of a failed completion: syndrome and vendor syndrome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syndromes: Option<(u8, u8)>,
    /// The adapter's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
}

/// What an instance did last.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Number of the instance in its process.
    pub instance: u32,
    /// Whether it records.
    pub records: bool,
    /// Events before these.
    pub before: u64,
    /// A line each, oldest first: milliseconds before the answer, the endpoint, what.
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
    /// What each function has done, by the path of its socket.
    pub functions: BTreeMap<String, Counters>,
}

/// A notice of something that has happened (notification `event`, after `subscribe`).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Nanoseconds of the same clock.
    pub at: u64,
    /// The instance that has noticed it.
    pub instance: u32,
    /// `connection`, `network` or `error`.
    pub kind: String,
    /// What, in words.
    pub what: String,
    /// The endpoint, of connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<u32>,
    /// Its queue pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// The peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Why, of connections that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Notices before this one that found no room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}
