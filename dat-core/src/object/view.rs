//! What is seen of an instance from outside: an instance is one thread's, so who looks from another asks, and
//! the instance answers when it next looks after itself ([`Opened::ask`](crate::Opened::ask)); and what watchers are
//! told when it happens ([`Opened::watch`](crate::Opened::watch)).

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

/// How much is to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Objects of each kind, at most; the first ones.
    pub objects: usize,
    /// Events of the flight recorder, at most; the last ones.
    pub events: usize,
}

/// An instance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstanceView {
    /// Its number in the process.
    pub number: u32,
    /// When it answered, by the clock of its device.
    pub at: Nanos,
    /// All of it.
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
    /// What was measured of all its endpoints, those that were freed among them.
    pub latencies: LatencyView,
    /// What it did last, if it records and that was asked for.
    pub recorded: Option<RecorderDump>,
}

/// What was measured ([`Ia::measure`](crate::Ia::measure)). `None`: nothing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LatencyView {
    /// From the doorbell of a request until its completion was taken in.
    pub completion: Option<Box<Histogram>>,
    /// From the moment at which the device wrote a completion until a wait that slept found it.
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

/// An endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EpView {
    /// Its number in the instance.
    pub number: u32,
    /// Number of its queue pair.
    pub qp_number: Option<u32>,
    /// Its state.
    pub state: EpState,
    /// The peer.
    pub peer: Option<IpAddr>,
    /// Where the peer was asked for, or came from.
    pub port_qual: u64,
    /// Why its last connection ended.
    pub cause: Option<EndCause>,
    /// What its connections ask of the network.
    pub transport: EpTransport,
    /// What it has done.
    pub stats: EpStats,
    /// What was measured of it.
    pub latencies: LatencyView,
}

/// An EVD.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EvdView {
    /// Its number in the instance.
    pub number: u32,
    /// Streams it may carry.
    pub flags: EvdFlags,
    /// Events it can hold.
    pub qlen: u32,
    /// What it has taken in.
    pub stats: EvdStats,
}

/// An LMR.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LmrView {
    /// Its context.
    pub lmr_context: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// What may be done with it.
    pub privileges: MemPrivFlags,
}

/// Something has happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Notice {
    /// The instance.
    pub instance: u32,
    /// When, by the clock of its device.
    pub at: Nanos,
    /// What.
    pub what: Happened,
}

/// What has happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Happened {
    /// To a connection.
    Connection {
        /// The endpoint's number.
        ep: u32,
        /// Its queue pair's.
        qp_number: Option<u32>,
        /// The peer.
        peer: Option<IpAddr>,
        /// What.
        kind: ConnectionEventKind,
        /// Why, if it has ended.
        cause: Option<EndCause>,
    },
    /// To something else.
    Async(AsyncEvent),
}

/// Is told of what happens, by the thread it happens in. It must not wait, nor call the instance.
pub type Watcher = Box<dyn Fn(&Notice) + Send>;
