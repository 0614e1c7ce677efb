//! Views of an instance for other threads. An instance belongs to one thread. Another thread therefore sends a
//! question, and the instance answers when it next runs its housekeeping ([`Opened::ask`](crate::Opened::ask)).
//! Watchers are called when an event happens ([`Opened::watch`](crate::Opened::watch)).

use std::net::IpAddr;
use std::sync::mpsc::Sender;

use crate::address::Address;
use crate::event::{AsyncEvent, ConnectionEventKind};
use crate::latency::Histogram;
use crate::object::ep::cause::EndCause;
use crate::object::ep::state::EpState;
use crate::object::ep::transport::EpTransport;
use crate::object::recorder::RecorderDump;
use crate::provider::{Nanos, Qpn};
use crate::stats::{EpStats, EvdStats, IaStats, SrqStats};
use crate::types::{EvdFlags, MemPrivFlags};

/// A question to an instance, with the channel for the answer.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) what: Wanted,
    pub(crate) to: Sender<InstanceView>,
}

/// Limits on the size of an instance's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Maximum number of objects of each kind. If an instance has more, the answer has the first ones.
    pub objects: usize,
    /// Maximum number of flight recorder events. If the recorder has more, the answer has the last ones. With 0 the
    /// answer has none.
    pub events: usize,
}

/// View of an instance at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstanceView {
    /// Number of the instance in the process.
    pub number: u32,
    /// Time of the answer, by the clock of the instance's device.
    pub at: Nanos,
    /// Counters of the whole instance.
    pub stats: IaStats,
    /// Endpoints of the instance.
    pub eps: Vec<EpView>,
    /// EVDs of the instance.
    pub evds: Vec<EvdView>,
    /// SRQs of the instance: number and counters.
    pub srqs: Vec<(u32, SrqStats)>,
    /// Local memory regions of the instance.
    pub lmrs: Vec<LmrView>,
    /// Connection qualifiers at which the instance listens.
    pub listeners: Vec<u64>,
    /// Addresses of the instance's adapter.
    pub addresses: Vec<Address>,
    /// Latencies of all endpoints of the instance, freed endpoints included.
    pub latencies: LatencyView,
    /// Last recorded events, if the instance records and [`Wanted::events`] was not 0.
    pub recorded: Option<RecorderDump>,
}

/// Measured latencies ([`Ia::measure`](crate::Ia::measure)). A histogram is `None` if nothing was measured.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LatencyView {
    /// Time from the doorbell of a request until its completion was polled.
    pub completion: Option<Box<Histogram>>,
    /// Time from the device's write of a completion until a sleeping wait woke up and found it.
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
    /// Number of the endpoint in the instance.
    pub number: u32,
    /// Number of the endpoint's queue pair; `None` if it has none.
    pub qp_number: Option<Qpn>,
    /// State of the endpoint.
    pub state: EpState,
    /// Address of the peer; `None` if the endpoint has none.
    pub peer: Option<IpAddr>,
    /// Qualifier or port that this side connected to, or port from which the peer connected.
    pub port_qual: u64,
    /// Cause of the end of the last connection; `None` unless the endpoint is DISCONNECTED.
    pub cause: Option<EndCause>,
    /// Transport settings of the endpoint's connections.
    pub transport: EpTransport,
    /// Counters of the endpoint.
    pub stats: EpStats,
    /// Latencies of the endpoint.
    pub latencies: LatencyView,
}

/// View of an EVD.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EvdView {
    /// Number of the EVD in the instance.
    pub number: u32,
    /// Event streams that the EVD may carry.
    pub flags: EvdFlags,
    /// Number of events that the EVD can hold.
    pub qlen: u32,
    /// Counters of the EVD.
    pub stats: EvdStats,
}

/// View of an LMR.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LmrView {
    /// LMR context of the region.
    pub lmr_context: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Access rights of the region.
    pub privileges: MemPrivFlags,
}

/// An event for watchers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Notice {
    /// Number of the instance in the process.
    pub instance: u32,
    /// Time of the event, by the clock of the instance's device.
    pub at: Nanos,
    /// Kind of the event, with its data.
    pub what: Happened,
}

/// Kind of event in a [`Notice`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Happened {
    /// An event of a connection.
    Connection {
        /// Number of the endpoint in the instance.
        ep: u32,
        /// Number of the endpoint's queue pair; `None` if it has none.
        qp_number: Option<Qpn>,
        /// Address of the peer; `None` if the endpoint has none.
        peer: Option<IpAddr>,
        /// Kind of connection event.
        kind: ConnectionEventKind,
        /// Cause of the end; `None` if the connection has not ended.
        cause: Option<EndCause>,
    },
    /// An asynchronous event.
    Async(AsyncEvent),
}

/// A function that is called with each event, in the thread in which the event happens. It must not block, and must not
/// call an instance or open one. It may call `counters`, `ask`, `measure` and `watch` of [`Opened`](crate::Opened).
///
/// Calls of one watcher never overlap. The notices of one instance come in order. A watcher that is added during a
/// notice does not get that notice.
pub type Watcher = Box<dyn Fn(&Notice) + Send>;
