//! Views of an instance for other threads. An instance belongs to one thread, so another thread sends a question, and
//! the instance answers when it next runs its housekeeping ([`Opened::ask`](crate::Opened::ask)). Watchers are called
//! when an event happens ([`Opened::watch`](crate::Opened::watch)).

use std::net::IpAddr;
use std::sync::mpsc::Sender;

use crate::address::Address;
use crate::event::{AsyncEvent, ConnectionEventKind};
use crate::latency::Histogram;
use crate::object::ep::cause::EndCause;
use crate::object::ep::state::EpState;
use crate::object::ep::transport::EpTransport;
use crate::object::recorder::RecorderDump;
use crate::provider::Nanos;
use crate::stats::{EpStats, EvdStats, IaStats, SrqStats};
use crate::types::{EvdFlags, MemPrivFlags};

/// A question to an instance.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) what: Wanted,
    pub(crate) to: Sender<InstanceView>,
}

/// Limits on the size of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Maximum number of objects of each kind; the first ones.
    pub objects: usize,
    /// Maximum number of events of the flight recorder; the last ones.
    pub events: usize,
}

/// View of an instance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstanceView {
    /// Number of the instance in the process.
    pub number: u32,
    /// Time of the answer, by the clock of its device.
    pub at: Nanos,
    /// Counters of the whole instance.
    pub stats: IaStats,
    /// Its endpoints.
    pub eps: Vec<EpView>,
    /// Its EVDs.
    pub evds: Vec<EvdView>,
    /// Its SRQs: number and counters.
    pub srqs: Vec<(u32, SrqStats)>,
    /// Its regions.
    pub lmrs: Vec<LmrView>,
    /// Qualifiers at which it listens.
    pub listeners: Vec<u64>,
    /// Addresses of its adapter.
    pub addresses: Vec<Address>,
    /// Latencies of all its endpoints, freed ones included.
    pub latencies: LatencyView,
    /// Its last events, if it records and the question asked for them.
    pub recorded: Option<RecorderDump>,
}

/// Measured latencies ([`Ia::measure`](crate::Ia::measure)). `None`: nothing was measured.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LatencyView {
    /// Time from the doorbell of a request until its completion was taken in.
    pub completion: Option<Box<Histogram>>,
    /// Time from the device's write of a completion until a wait that slept found it.
    pub wakeup: Option<Box<Histogram>>,
}

impl LatencyView {
    pub(crate) fn new(of: Option<(&Histogram, &Histogram)>) -> Self {
        let told = |which: &Histogram| (which.count() != 0).then(|| Box::new(which.clone()));
        Self {
            completion: of.and_then(|(completion, _)| told(completion)),
            wakeup: of.and_then(|(_, wakeup)| told(wakeup)),
        }
    }
}

/// View of an endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EpView {
    /// Number in the instance.
    pub number: u32,
    /// Number of its queue pair.
    pub qp_number: Option<u32>,
    /// Its state.
    pub state: EpState,
    /// The peer.
    pub peer: Option<IpAddr>,
    /// The qualifier or port that was asked for, or that the peer came from.
    pub port_qual: u64,
    /// Cause of the end of its last connection.
    pub cause: Option<EndCause>,
    /// Transport settings of its connections.
    pub transport: EpTransport,
    /// Its counters.
    pub stats: EpStats,
    /// Its latencies.
    pub latencies: LatencyView,
}

/// View of an EVD.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EvdView {
    /// Number in the instance.
    pub number: u32,
    /// Streams it may carry.
    pub flags: EvdFlags,
    /// Events it can hold.
    pub qlen: u32,
    /// Its counters.
    pub stats: EvdStats,
}

/// View of an LMR.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LmrView {
    /// Its context.
    pub lmr_context: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its privileges.
    pub privileges: MemPrivFlags,
}

/// An event for watchers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Notice {
    /// The instance.
    pub instance: u32,
    /// Time, by the clock of its device.
    pub at: Nanos,
    /// The event.
    pub what: Happened,
}

/// Kind of a [`Notice`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Happened {
    /// An event of a connection.
    Connection {
        /// Number of the endpoint.
        ep: u32,
        /// Number of its queue pair.
        qp_number: Option<u32>,
        /// The peer.
        peer: Option<IpAddr>,
        /// Kind of event.
        kind: ConnectionEventKind,
        /// Cause, if the connection has ended.
        cause: Option<EndCause>,
    },
    /// An asynchronous event.
    Async(AsyncEvent),
}

/// Called with each event, in the thread where it happens. It must not block, and must not call the instance.
pub type Watcher = Box<dyn Fn(&Notice) + Send>;
