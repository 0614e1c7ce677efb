//! The interface adapter: one opened device and everything made of it.
//!
//! An [`Ia`] owns all its objects, in tables; handles are places in them. Every DAT call is a method with the call's
//! name. Each takes the IA by reference, so the borrow checker provides the serialisation that DAT asks of consumers
//! (MT-Level "Unsafe").
//!
//! The library has no thread of its own. `evd_wait`, an `evd_dequeue` that finds nothing, and [`Ia::progress`] look
//! for events of the device and of peers.
//!
//! [`Ia::close`] ends an [`Ia`] and gives everything back in order. Dropping it ends it at once: its device is
//! stopped.

use crate::adapter::{Adapter, Seat};
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
use crate::provider::Provider;
use crate::round_robin::RoundRobin;
use crate::slots::Slots;
use crate::stats::Ended;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use slotmap::SlotMap;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

/// Configuration of an IA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IaConfig {
    /// Least number of events that the asynchronous EVD holds.
    pub async_evd_min_qlen: u32,
    /// Check which streams may share an EVD.
    pub strict_evd_sharing: bool,
    /// Let LMRs with LOCAL_WRITE alone be the source of Sends and RDMA Writes, as some existing consumers expect.
    pub local_write_implies_read: bool,
    /// Report changes of the port, addresses and neighbours on the asynchronous EVD
    /// ([`NetworkEvent`](crate::NetworkEvent)). A program written for DAT 1.2 takes an event that it does not know
    /// for an error.
    pub network_events: bool,
    /// Record from the beginning ([`Ia::recorder_start`]).
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Repetitions of an unacknowledged packet, 0..=7.
    pub retry_count: u8,
    /// Repetitions towards a peer without a receive buffer, 0..=7. 7 is for ever: then a missing buffer never breaks
    /// a connection.
    pub rnr_retry: u8,
    /// Time an acknowledgement may take, 4.096 us * 2^n, n at most 31; 0 is for ever. `None` derives it from the path
    /// and from the delay that the acknowledging adapter states ([`cm::ack_timeout`]).
    pub ack_timeout: Option<u8>,
    /// Time that a peer waits after it found no receive buffer here (IBTA code, 5 bits).
    pub min_rnr_timer: u8,
}

impl TransportConfig {
    /// Returns these settings with an endpoint's own in place of those it sets.
    pub(in crate::ia) fn with(self, own: &EpTransport) -> Self {
        Self {
            retry_count: own.retry_count.unwrap_or(self.retry_count),
            rnr_retry: own.rnr_retry.unwrap_or(self.rnr_retry),
            ack_timeout: own.ack_timeout.or(self.ack_timeout),
            min_rnr_timer: own.min_rnr_timer.unwrap_or(self.min_rnr_timer),
        }
    }

    /// Returns the RNR retries of an endpoint whose peer asks for `asked`: the endpoint's own setting, else `asked`
    /// limited by the adapter's. 7 is for ever: a peer that asks for it and posts no receive would hold every Send.
    pub(in crate::ia) fn rnr_retry_asked(self, own: &EpTransport, asked: u8) -> u8 {
        own.rnr_retry.unwrap_or(asked.min(self.rnr_retry))
    }
}

impl Default for TransportConfig {
    /// Seven retries with the timeout the acknowledging adapter needs; six RNR retries; an RNR timer of 0.64 ms.
    fn default() -> Self {
        Self {
            retry_count: 7,
            rnr_retry: 6,
            ack_timeout: None,
            min_rnr_timer: 12,
        }
    }
}

/// Answer of `query`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct IaParam<'a> {
    /// The asynchronous EVD.
    pub async_evd: EvdHandle,
    /// Attributes of the adapter.
    pub ia: &'a IaAttr,
    /// Attributes of this instance.
    pub provider: &'a ProviderAttr,
}

/// An interface adapter. Crate `udapl` lists its calls by object, at its own `Ia`.
pub struct Ia<P: Provider> {
    // Fields of the hot path.
    pub(in crate::ia) id: u32,
    pub(in crate::ia) regions: Regions<P>,
    /// Endpoints. Completions name them by index alone.
    pub(in crate::ia) eps: Slots<EpKey, Ep<P>>,
    pub(in crate::ia) evds: Slots<EvdKey, Evd<P>>,
    pub(in crate::ia) srqs: SlotMap<SrqKey, Srq<P>>,
    // Other fields.
    pub(in crate::ia) provider: Held<P>,
    pub(in crate::ia) pzs: SlotMap<PzKey, Pz<P>>,
    /// RMRs that a peer may invalidate, by the context of the last bind posted.
    pub(in crate::ia) rmrs_invalidatable: BTreeMap<u32, RmrKey>,
    pub(in crate::ia) rmrs: SlotMap<RmrKey, Rmr<P>>,
    pub(in crate::ia) psps: SlotMap<PspKey, Psp>,
    pub(in crate::ia) rsps: SlotMap<RspKey, Rsp>,
    pub(in crate::ia) cnos: SlotMap<CnoKey, Cno>,
    /// Keys of `cnos`, in order of creation.
    pub(in crate::ia) cno_keys: Vec<CnoKey>,
    /// Consumer contexts of objects.
    pub(in crate::ia) contexts: HashMap<AnyHandle, u64>,
    pub(in crate::ia) crs: SlotMap<CrKey, Cr>,
    pub(in crate::ia) adapter: Arc<Adapter>,
    /// This instance's place among the adapter's instances.
    pub(in crate::ia) seat: Seat,
    /// Number of times the port has come up, as far as this instance has been told.
    pub(in crate::ia) port_ups: u64,
    /// Connections of endpoints; those of undecided requests are in `crs`.
    pub(in crate::ia) conns: BTreeMap<ConnId, EpKey>,
    pub(in crate::ia) listeners: BTreeMap<ListenId, ServicePoint>,
    /// EVDs on which endpoints in DISCONNECT_PENDING complete their requests.
    pub(in crate::ia) draining: WatchedEvds,
    /// EVDs that may show an error whose connection event goes to another EVD.
    pub(in crate::ia) feeding: WatchedEvds,
    /// Connections that are probed when they are idle.
    pub(in crate::ia) keep_alives: KeepAlives,
    pub(in crate::ia) log: Log,
    /// Endpoints with watermarks.
    pub(in crate::ia) marked: RoundRobin<EpKey>,
    pub(in crate::ia) effects: VecDeque<Effect>,
    pub(in crate::ia) async_evd: EvdKey,
    /// EVDs that take asynchronous events of other instances.
    pub(in crate::ia) async_evds: Vec<EvdKey>,
    pub(in crate::ia) config: IaConfig,
    pub(in crate::ia) attr: IaAttr,
    provider_attr: ProviderAttr,
    /// True if the last poll for datagrams ended at its limit.
    pub(in crate::ia) more_datagrams: bool,
    pub(in crate::ia) health: Health,
    /// Flight recorder, if it is on.
    pub(in crate::ia) recorder: Option<Box<Recorder>>,
    /// Measured latencies, if measuring was ever on.
    pub(in crate::ia) latencies: Option<Box<Latencies>>,
    /// True if the instance is recorded or measured.
    pub(in crate::ia) observed: bool,
    /// Number of times that a wait which slept ran again.
    pub(in crate::ia) wakeups: u64,
    /// True if the instance was armed for an event loop, which may sleep until it is armed again.
    pub(in crate::ia) may_sleep: bool,
    /// Counters of freed endpoints and EVDs.
    pub(in crate::ia) ended: Ended,
    pub(in crate::ia) ended_completions: u64,
}

/// Number of the next IA, from 1.
static NEXT_IA: AtomicU32 = AtomicU32::new(1);

impl<P: Provider> Ia<P> {
    /// Opens an IA over an opened device, with an asynchronous EVD of its own.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: an asynchronous EVD of length 0.
    pub fn open(provider: P, config: IaConfig) -> DatResult<Self> {
        let limits = provider.limits();
        let [.., a, b, c, d, e, f, g, h] = limits.gid;
        let usual = cm::Config::default();
        let endpoints = usize::try_from(limits.max_qps).unwrap_or(usize::MAX);
        let adapter = Adapter::new(cm::Config {
            // One connection for each endpoint, and as many that have ended but whose peers may still ask.
            max_connections: usual.max_connections.max(endpoints.saturating_mul(2)),
            // The interface identifier of a link-local GID is the port's EUI-64, as is a GUID,
            // but for the bit that RFC 4291, appendix A inverts.
            local_ca_guid: u64::from_be_bytes([a ^ 2, b, c, d, e, f, g, h]),
            max_mtu: limits.mtu,
            ack_delay: limits.ack_delay,
            ..usual
        });
        Self::on(Arc::new(adapter), provider, config)
    }

    /// Returns the adapter, from which any thread can open another instance.
    #[must_use]
    pub fn opened(&self) -> Opened {
        Opened(Arc::downgrade(&self.adapter))
    }

    /// Returns the number of instances of its adapter, this one included.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.adapter.lock().instances()
    }

    fn on(adapter: Arc<Adapter>, provider: P, config: IaConfig) -> DatResult<Self> {
        if config.async_evd_min_qlen == 0 {
            return Err(DatError::parameter(Subtype::Arg2, "async_evd_min_qlen")
                .because("an EVD holds at least one event"));
        }
        let attr = IaAttr::from_limits(provider.limits());
        let id = NEXT_IA.fetch_add(1, Ordering::Relaxed);
        let mut evds = Slots::new(id);
        let async_evd = evds.insert(Evd::asynchronous(config.async_evd_min_qlen));
        let mut state = adapter.lock();
        let (seat, port_ups) = state.join(id, provider.waker());
        let measured = state.is_measured();
        drop(state);
        let mut ia = Self {
            id,
            regions: Regions::new(),
            eps: Slots::new(id),
            evds,
            srqs: SlotMap::with_key(),
            provider: Held(Some(provider)),
            pzs: SlotMap::with_key(),
            rmrs_invalidatable: BTreeMap::new(),
            rmrs: SlotMap::with_key(),
            psps: SlotMap::with_key(),
            rsps: SlotMap::with_key(),
            cnos: SlotMap::with_key(),
            cno_keys: Vec::new(),
            contexts: HashMap::new(),
            crs: SlotMap::with_key(),
            adapter,
            seat,
            port_ups,
            conns: BTreeMap::new(),
            listeners: BTreeMap::new(),
            draining: WatchedEvds::new(),
            feeding: WatchedEvds::new(),
            keep_alives: KeepAlives::new(),
            log: Log::default(),
            marked: RoundRobin::new(),
            // Large enough that a post that looks at a completion queue does not allocate.
            effects: VecDeque::with_capacity(1024),
            async_evd,
            async_evds: Vec::new(),
            config,
            attr,
            provider_attr: ProviderAttr::of_this_crate(),
            more_datagrams: false,
            health: Health::default(),
            recorder: None,
            latencies: None,
            observed: false,
            wakeups: 0,
            may_sleep: false,
            ended: Ended::default(),
            ended_completions: 0,
        };
        if config.recorder {
            ia.recorder_start();
        }
        if measured {
            ia.measure(true);
        }
        Ok(ia)
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

    /// Returns the device's error of its last refusal.
    #[must_use]
    pub fn last_device_error(&self) -> Option<&str> {
        self.health.last_word()
    }

    /// Returns the number of connections that the connection manager holds, in any state. Connections that have
    /// ended, but whose peers may still ask, are included.
    #[must_use]
    pub fn cm_connections(&self) -> usize {
        self.adapter.lock().cm.connections()
    }

    /// Returns the counters of the connection manager.
    #[must_use]
    pub fn cm_counters(&self) -> crate::cm::Counters {
        *self.adapter.lock().cm.counters()
    }

    /// Returns the provider. Do not change the objects it owns for this IA.
    #[doc(hidden)] // for facades and tools that know the provider
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Returns the provider. Do not change the objects it owns for this IA.
    #[doc(hidden)] // for facades and tools that know the provider
    pub fn provider_mut(&mut self) -> &mut P {
        &mut self.provider
    }
}

/// An adapter that is open while it has an instance.
#[derive(Clone)]
pub struct Opened(Weak<Adapter>);

impl Opened {
    /// Opens one more instance of the adapter, over an instance of its device.
    ///
    /// # Errors
    /// As [`Ia::open`]. DAT_INVALID_HANDLE|IA: the adapter is closed.
    pub fn instance<P: Provider>(&self, provider: P, config: IaConfig) -> DatResult<Ia<P>> {
        let closed = DatError::handle(Subtype::HandleIa).because("the adapter is closed");
        Ia::on(self.0.upgrade().ok_or(closed)?, provider, config)
    }

    /// Returns the connection manager's counters of datagrams, and the number of instances. `None`: the adapter is
    /// closed.
    #[must_use]
    pub fn counters(&self) -> Option<(crate::cm::Counters, usize)> {
        let adapter = self.0.upgrade()?;
        let state = adapter.lock();
        Some((*state.cm.counters(), state.instances()))
    }

    /// Asks every instance for a view, and wakes those that sleep. Returns their numbers, and the channel that
    /// receives the answers. An instance answers when its thread is in a call that runs [`Ia::progress`]: a wait, a
    /// look at an empty EVD, or `progress` itself. A busy instance answers later, and a closed one never. `None`: the
    /// adapter is closed.
    #[must_use]
    pub fn ask(&self, what: Wanted) -> Option<(Vec<u32>, Receiver<InstanceView>)> {
        let (to, answers) = channel();
        let numbers = self.0.upgrade()?.lock().ask(&Question { what, to });
        Some((numbers, answers))
    }

    /// Switches measuring on or off in every instance ([`Ia::measure`]). Measuring stays on until each call with
    /// `true` has been matched by one with `false`. Returns false if the adapter is closed.
    #[must_use]
    pub fn measure(&self, on: bool) -> bool {
        let adapter = self.0.upgrade();
        adapter.is_some_and(|adapter| {
            adapter.lock().measure(on);
            true
        })
    }

    /// Registers a watcher of events for the life of the adapter. Returns false if the adapter is closed.
    #[must_use]
    pub fn watch(&self, watcher: Watcher) -> bool {
        let adapter = self.0.upgrade();
        adapter.is_some_and(|adapter| {
            adapter.lock().watch(watcher);
            true
        })
    }
}

/// The provider of an IA; present until the IA is closed.
pub(crate) struct Held<P>(Option<P>);

impl<P> Held<P> {
    /// Returns whether the IA is open.
    pub(in crate::ia) const fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Takes the provider out, which ends the IA.
    pub(in crate::ia) fn take(&mut self) -> Option<P> {
        self.0.take()
    }
}

impl<P> Deref for Held<P> {
    type Target = P;

    fn deref(&self) -> &P {
        // PANIC: only `Ia::close` and the drop of an IA take the provider, and both end the IA.
        self.0.as_ref().expect("an IA that is open")
    }
}

impl<P> DerefMut for Held<P> {
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
