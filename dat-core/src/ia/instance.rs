//! The interface adapter: one opened device and all objects created on it.
//!
//! An [`Ia`] owns all its objects, in tables; a handle is a table index with a generation. Every DAT call is a method
//! with the call's name. Each method takes the IA by reference, so the borrow checker provides the serialisation that
//! DAT asks of consumers (MT-Level "Unsafe").
//!
//! The library has no thread of its own. [`Ia::progress`] polls for events of the device and of peers. So does
//! `evd_wait`, unless it finds its event at once. `evd_dequeue` does so once in many calls.
//!
//! [`Ia::close`] closes an [`Ia`] and releases all its resources in order. Dropping the only instance of an adapter
//! stops the device. Dropping one of several instances closes it abruptly.

use crate::adapter::{Adapter, InstanceIndex};
use crate::attributes::{IaAttr, ProviderAttr};
use crate::cm::{self, ConnId, ListenId};
use crate::error::{DatError, DatResult, Subtype};
use crate::handle::AnyHandle;
use crate::handle::{
    CnoKey, CrKey, EpKey, EvdHandle, EvdKey, PspKey, PzKey, RmrKey, RspKey, SrqKey,
};
use crate::ia::effect::Effect;
use crate::ia::health::Health;
use crate::ia::keep_alive::KeepAlives;
use crate::ia::latencies::Latencies;
use crate::ia::log::Log;
use crate::ia::number::IaNumber;
use crate::ia::regions::Regions;
use crate::ia::watched_evds::WatchedEvds;
use crate::object::cno::Cno;
use crate::object::cr::Cr;
use crate::object::ep::Ep;
use crate::object::ep::transport::EpTransport;
use crate::object::evd::queue::Evd;
use crate::object::psp::Psp;
use crate::object::pz::Pz;
use crate::object::recorder::Recorder;
use crate::object::rmr::Rmr;
use crate::object::rsp::Rsp;
use crate::object::service_point::ServicePoint;
use crate::object::srq::Srq;
use crate::object::view::{InstanceView, Question, Wanted, Watcher};
use crate::provider::{Limits, Nanos, Provider};
use crate::round_robin::RoundRobin;
use crate::slots::Slots;
use crate::stats::Ended;
use crate::table::Table;
use core::fmt;
use core::ops::{Deref, DerefMut};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

/// Configuration of an IA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IaConfig {
    /// Minimum number of events that the asynchronous EVD holds.
    pub async_evd_min_qlen: u32,
    /// True to enforce DAT's rules on which streams may share an EVD.
    pub strict_evd_sharing: bool,
    /// True to allow an LMR with LOCAL_WRITE alone as the source of Sends and RDMA Writes, as some existing consumers
    /// expect.
    pub local_write_implies_read: bool,
    /// True to report changes of the port, addresses and neighbours on the asynchronous EVD
    /// ([`NetworkEvent`](crate::NetworkEvent)). A program written for DAT 1.2 interprets an unknown event as an error.
    pub network_events: bool,
    /// True to start the flight recorder when the IA is opened ([`Ia::recorder_start`]).
    pub recorder: bool,
    /// Transport settings of connections.
    pub transport: TransportConfig,
}

impl Default for IaConfig {
    fn default() -> Self {
        Self {
            async_evd_min_qlen: 64,
            strict_evd_sharing: true,
            local_write_implies_read: false,
            network_events: true,
            recorder: false,
            transport: TransportConfig::default(),
        }
    }
}

/// Retries and timeouts of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TransportConfig {
    /// Number of retransmissions of an unacknowledged packet, 0..=7.
    pub retry_count: u8,
    /// Number of retransmissions to a peer that has no receive buffer, 0..=7. 7 means without limit: a missing buffer
    /// then never breaks a connection.
    pub rnr_retry: u8,
    /// Time that an acknowledgement may take, as a code n for 4.096 us * 2^n, n at most 31; 0 means without limit.
    /// `None` derives the time from the path and from the delay that the acknowledging adapter states
    /// ([`cm::ack_timeout`]).
    pub ack_timeout: Option<u8>,
    /// Time that a peer waits after it found no receive buffer here (IBTA RNR timer code, 5 bits).
    pub min_rnr_timer: u8,
}

impl TransportConfig {
    /// Returns these settings, each replaced by the endpoint's own setting if the endpoint has one.
    pub(in crate::ia) fn with(self, own: &EpTransport) -> Self {
        Self {
            retry_count: own.retry_count.unwrap_or(self.retry_count),
            rnr_retry: own.rnr_retry.unwrap_or(self.rnr_retry),
            ack_timeout: own.ack_timeout.or(self.ack_timeout),
            min_rnr_timer: own.min_rnr_timer.unwrap_or(self.min_rnr_timer),
        }
    }

    /// Returns the number of RNR retries towards a peer that requested `asked`. This is the endpoint's own setting if
    /// it has one, otherwise `asked`, but at most the adapter's setting. The limit is needed because 7 means without
    /// limit: a peer that requests 7 and posts no receive would block every Send for ever.
    pub(in crate::ia) fn rnr_retry_asked(self, own: &EpTransport, asked: u8) -> u8 {
        own.rnr_retry.unwrap_or(asked.min(self.rnr_retry))
    }
}

impl Default for TransportConfig {
    /// Returns seven retries, an ACK timeout that is derived for each connection, six RNR retries, and an RNR timer of
    /// 0.64 ms.
    fn default() -> Self {
        Self {
            retry_count: 7,
            rnr_retry: 6,
            ack_timeout: None,
            min_rnr_timer: 12,
        }
    }
}

/// Result of `query` (`dat_ia_query`).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct IaParam<'a> {
    /// Handle of the asynchronous EVD.
    pub async_evd: EvdHandle,
    /// Attributes of the adapter.
    pub ia: &'a IaAttr,
    /// Attributes of the provider.
    pub provider: &'a ProviderAttr,
}

/// An interface adapter. The crate `udapl` documents the calls by object, at its own `Ia`.
///
/// A call that needs the device or starts new work fails with DAT_INTERNAL_ERROR if the device is dead or the system
/// has requested its release. The sections on errors of the calls do not repeat this.
pub struct Ia<P: Provider> {
    // Fields of the hot path.
    pub(in crate::ia) id: u32,
    pub(in crate::ia) regions: Regions<P>,
    /// Table of endpoints. A completion names its endpoint by the table index alone.
    pub(in crate::ia) eps: Slots<EpKey, Ep<P>>,
    pub(in crate::ia) evds: Slots<EvdKey, Evd<P>>,
    pub(in crate::ia) srqs: Table<SrqKey, Srq<P>>,
    // Other fields.
    /// Keeps `id` from being the number of another IA. `None` after the instance was written out.
    pub(in crate::ia) number: Option<IaNumber>,
    pub(in crate::ia) provider: ProviderSlot<P>,
    pub(in crate::ia) pzs: Table<PzKey, Pz<P>>,
    /// RMRs that a peer may invalidate, by the RMR context of the last posted bind.
    pub(in crate::ia) rmrs_invalidatable: BTreeMap<u32, RmrKey>,
    pub(in crate::ia) rmrs: Table<RmrKey, Rmr<P>>,
    pub(in crate::ia) psps: Table<PspKey, Psp>,
    pub(in crate::ia) rsps: Table<RspKey, Rsp>,
    pub(in crate::ia) cnos: Table<CnoKey, Cno>,
    /// Keys of `cnos`, in order of creation.
    pub(in crate::ia) cno_keys: Vec<CnoKey>,
    /// Contexts that the consumer has attached to objects.
    pub(in crate::ia) contexts: HashMap<AnyHandle, u64>,
    pub(in crate::ia) crs: Table<CrKey, Cr>,
    pub(in crate::ia) adapter: Arc<Adapter>,
    /// Identity of this instance among the adapter's instances.
    pub(in crate::ia) instance_index: InstanceIndex,
    /// Number of times the port has come up, as far as this instance was notified.
    pub(in crate::ia) port_ups: u64,
    /// Endpoint of each connection. Connections of undecided requests are in `crs` instead.
    pub(in crate::ia) conns: BTreeMap<ConnId, EpKey>,
    pub(in crate::ia) listeners: BTreeMap<ListenId, ServicePoint>,
    /// EVDs that receive the request completions of endpoints in DISCONNECT_PENDING.
    pub(in crate::ia) draining: WatchedEvds,
    /// Owners of completion queues that overran since they were created. Such a queue reports nothing any more.
    pub(in crate::ia) overran: BTreeSet<u32>,
    /// EVDs on which a completion may show an error whose connection event goes to another EVD.
    pub(in crate::ia) feeding: WatchedEvds,
    /// Keep-alive checks of connections, and deadlines of graceful disconnects.
    pub(in crate::ia) keep_alives: KeepAlives,
    pub(in crate::ia) log: Log,
    /// Endpoints with high watermarks.
    pub(in crate::ia) marked: RoundRobin<EpKey>,
    pub(in crate::ia) effects: VecDeque<Effect>,
    pub(in crate::ia) async_evd: EvdKey,
    /// EVDs that also receive asynchronous events of other instances.
    pub(in crate::ia) async_evds: Vec<EvdKey>,
    pub(in crate::ia) config: IaConfig,
    pub(in crate::ia) attr: IaAttr,
    pub(in crate::ia) provider_attr: ProviderAttr,
    /// True if the last poll for datagrams stopped at its limit.
    pub(in crate::ia) more_datagrams: bool,
    pub(in crate::ia) health: Health,
    /// During a close: the time that is left for waits for last SRQ buffers.
    pub(in crate::ia) last_buffer_wait_left: Option<Nanos>,
    /// Flight recorder; `None` while recording is off.
    pub(in crate::ia) recorder: Option<Box<Recorder>>,
    /// Measured latencies; `None` if measuring was never on.
    pub(in crate::ia) latencies: Option<Box<Latencies>>,
    /// True if the instance records events or measures latencies.
    pub(in crate::ia) observed: bool,
    /// Number of times that a sleeping wait woke up.
    pub(in crate::ia) wakeups: u64,
    /// True if the instance was armed for an event loop. The event loop may then sleep until the instance is armed
    /// again.
    pub(in crate::ia) may_sleep: bool,
    /// Sums of the counters of freed endpoints and EVDs.
    pub(in crate::ia) ended: Ended,
    pub(in crate::ia) ended_completions: u64,
    /// Connections whose queue pairs had stopped when the instance was resumed. The first [`Ia::progress`] ends them.
    pub(in crate::ia) stopped: Vec<(EpKey, ConnId)>,
}

impl<P: Provider> Ia<P> {
    /// Opens an IA over an opened device, with its own asynchronous EVD.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: an asynchronous EVD of length 0.
    pub fn open(provider: P, config: IaConfig) -> DatResult<Self> {
        let adapter = Adapter::new(cm_config(provider.limits()));
        Self::on(Arc::new(adapter), provider, config)
    }

    /// Returns the adapter, from which any thread can open another instance.
    #[must_use]
    pub fn opened(&self) -> Opened {
        Opened(Arc::downgrade(&self.adapter))
    }

    /// Returns the number of instances of the adapter, including this one.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.adapter.lock().instances()
    }

    fn on(adapter: Arc<Adapter>, provider: P, config: IaConfig) -> DatResult<Self> {
        if config.async_evd_min_qlen == 0 {
            return Err(DatError::parameter(Subtype::Arg2, "async_evd_min_qlen")
                .because("an EVD holds at least one event"));
        }
        let mut ia = Self::without_objects(adapter, provider, config, IaNumber::next());
        let async_evd = Evd::asynchronous(config.async_evd_min_qlen);
        ia.async_evd = ia.evds.insert(async_evd);
        ia.observe_as_configured();
        Ok(ia)
    }

    /// Makes an instance that has no objects, and not even an asynchronous EVD, which the caller makes.
    pub(in crate::ia) fn without_objects(
        adapter: Arc<Adapter>,
        provider: P,
        config: IaConfig,
        number: IaNumber,
    ) -> Self {
        let attr = IaAttr::from_limits(provider.limits());
        let id = number.get();
        let mut state = adapter.lock();
        let (instance_index, port_ups) = state.add_instance(id, provider.waker());
        drop(state);
        Self {
            id,
            regions: Regions::new(),
            eps: Slots::new(id),
            evds: Slots::new(id),
            srqs: Table::new(),
            number: Some(number),
            provider: ProviderSlot(Some(provider)),
            pzs: Table::new(),
            rmrs_invalidatable: BTreeMap::new(),
            rmrs: Table::new(),
            psps: Table::new(),
            rsps: Table::new(),
            cnos: Table::new(),
            cno_keys: Vec::new(),
            contexts: HashMap::new(),
            crs: Table::new(),
            adapter,
            instance_index,
            port_ups,
            overran: BTreeSet::new(),
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            draining: WatchedEvds::new(),
            feeding: WatchedEvds::new(),
            keep_alives: KeepAlives::new(),
            log: Log::default(),
            marked: RoundRobin::new(),
            // Large enough that a post that polls a completion queue does not allocate.
            effects: VecDeque::with_capacity(1024),
            async_evd: EvdKey::default(),
            async_evds: Vec::new(),
            config,
            attr,
            provider_attr: ProviderAttr::of_this_crate(),
            more_datagrams: false,
            health: Health::default(),
            last_buffer_wait_left: None,
            recorder: None,
            latencies: None,
            observed: false,
            wakeups: 0,
            may_sleep: false,
            ended: Ended::default(),
            ended_completions: 0,
            stopped: Vec::new(),
        }
    }

    /// Starts the recorder and the measurements of a new instance, if they are to run from the beginning.
    pub(in crate::ia) fn observe_as_configured(&mut self) {
        if self.config.recorder {
            self.recorder_start();
        }
        let is_measured = self.adapter.lock().is_measured();
        if is_measured {
            self.measure(true);
        }
    }

    /// Returns the asynchronous EVD, and the attributes of the adapter and of the provider (`dat_ia_query`).
    #[must_use]
    pub fn query(&self) -> IaParam<'_> {
        IaParam {
            async_evd: self.async_evd(),
            ia: &self.attr,
            provider: &self.provider_attr,
        }
    }

    /// Returns the asynchronous EVD.
    #[must_use]
    pub const fn async_evd(&self) -> EvdHandle {
        self.evd_handle(self.async_evd)
    }

    /// Returns the text of the last error of the device, of the network or of the connection manager; `None` if there
    /// was none.
    #[must_use]
    pub fn last_device_error(&self) -> Option<&str> {
        self.health.last_error()
    }

    /// Returns the number of connections that the connection manager holds, in any state. Ended connections whose peers
    /// may still send messages are included.
    #[must_use]
    pub fn cm_connections(&self) -> usize {
        self.adapter.lock().cm.connections()
    }

    /// Returns the counters of the connection manager.
    #[must_use]
    pub fn cm_counters(&self) -> crate::cm::Counters {
        *self.adapter.lock().cm.counters()
    }

    /// Returns the provider. The caller must not change the provider's objects that belong to this IA.
    #[doc(hidden)] // for facades and tools that know the provider
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Returns the provider. The caller must not change the provider's objects that belong to this IA.
    #[doc(hidden)] // for facades and tools that know the provider
    pub fn provider_mut(&mut self) -> &mut P {
        &mut self.provider
    }
}

/// Returns the configuration of the connection manager of an adapter.
pub(in crate::ia) fn cm_config(limits: &Limits) -> cm::Config {
    let [.., a, b, c, d, e, f, g, h] = limits.gid;
    let usual = cm::Config::default();
    let endpoints = usize::try_from(limits.max_qps).unwrap_or(usize::MAX);
    cm::Config {
        // One connection for each endpoint, and the same number again for ended connections whose peers may still send
        // messages.
        max_connections: usual.max_connections.max(endpoints.saturating_mul(2)),
        // The interface identifier of a link-local GID is derived from the port's EUI-64, with one bit inverted
        // (RFC 4291, appendix A). The port's GUID is that EUI-64, so the bit is inverted back.
        local_ca_guid: u64::from_be_bytes([a ^ 2, b, c, d, e, f, g, h]),
        max_mtu: limits.mtu,
        ack_delay: limits.ack_delay,
        ..usual
    }
}

/// A reference to an open adapter. The adapter is closed when its last instance is closed.
#[derive(Clone)]
pub struct Opened(Weak<Adapter>);

impl Opened {
    /// Opens another instance of the adapter, over another instance of its device.
    ///
    /// # Errors
    /// As [`Ia::open`]. DAT_INVALID_HANDLE|IA: the adapter is closed.
    pub fn instance<P: Provider>(&self, provider: P, config: IaConfig) -> DatResult<Ia<P>> {
        let closed = DatError::handle(Subtype::HandleIa).because("the adapter is closed");
        Ia::on(self.0.upgrade().ok_or(closed)?, provider, config)
    }

    /// Returns the counters of the connection manager, and the number of instances. Returns `None` if the adapter is
    /// closed.
    #[must_use]
    pub fn counters(&self) -> Option<(crate::cm::Counters, usize)> {
        let adapter = self.0.upgrade()?;
        let state = adapter.lock();
        Some((*state.cm.counters(), state.instances()))
    }

    /// Asks every instance for a view, and wakes the sleeping instances. Returns the numbers of the instances, and the
    /// channel that receives the views. An instance answers when its thread runs [`Ia::progress`]: in a wait, in some
    /// of the dequeues from an empty EVD, or by calling `progress` itself. A busy instance answers later, and a closed
    /// instance never answers. An instance keeps the last 16 questions, and does not answer older ones. Returns `None`
    /// if the adapter is closed.
    #[must_use]
    pub fn ask(&self, what: Wanted) -> Option<(Vec<u32>, Receiver<InstanceView>)> {
        let (to, answers) = channel();
        let numbers = self.0.upgrade()?.lock().ask(&Question { what, to });
        Some((numbers, answers))
    }

    /// Switches measuring on or off in every instance ([`Ia::measure`]). Measuring stays on until each call with `true`
    /// has been matched by a call with `false`. Returns false if the adapter is closed.
    #[must_use]
    pub fn measure(&self, on: bool) -> bool {
        let adapter = self.0.upgrade();
        adapter.is_some_and(|adapter| {
            adapter.lock().measure(on);
            true
        })
    }

    /// Registers a watcher of events until the adapter is closed. Returns false if the adapter is closed.
    #[must_use]
    pub fn watch(&self, watcher: Watcher) -> bool {
        let adapter = self.0.upgrade();
        adapter.is_some_and(|adapter| {
            adapter.watch(watcher);
            true
        })
    }
}

/// The provider of an IA; `None` after the IA has been closed.
pub(crate) struct ProviderSlot<P>(Option<P>);

impl<P> ProviderSlot<P> {
    /// Returns whether the IA is open.
    pub(in crate::ia) const fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Puts a provider back that was removed.
    pub(in crate::ia) fn put_back(&mut self, provider: P) {
        self.0 = Some(provider);
    }

    /// Removes and returns the provider, which closes the IA.
    pub(in crate::ia) fn take(&mut self) -> Option<P> {
        self.0.take()
    }
}

impl<P> Deref for ProviderSlot<P> {
    type Target = P;

    fn deref(&self) -> &P {
        // PANIC: only `Ia::close` and the drop of an IA remove the provider, and both consume the IA.
        self.0.as_ref().expect("an IA that is open")
    }
}

impl<P> DerefMut for ProviderSlot<P> {
    fn deref_mut(&mut self) -> &mut P {
        // PANIC: as above.
        self.0.as_mut().expect("an IA that is open")
    }
}

impl<P: Provider> fmt::Debug for Ia<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ia")
            .field("id", &self.id)
            .field("adapter", &self.attr.adapter_name)
            .field("dead", &self.health.is_dead())
            .field("pzs", &self.pzs.len())
            .field("lmrs", &self.regions.len())
            .field("rmrs", &self.rmrs.len())
            .field("evds", &self.evds.len())
            .field("eps", &self.eps.len())
            .field("srqs", &self.srqs.len())
            .field("psps", &self.psps.len())
            .field("rsps", &self.rsps.len())
            .field("cnos", &self.cnos.len())
            .field("crs", &self.crs.len())
            .finish_non_exhaustive()
    }
}
