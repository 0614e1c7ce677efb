//! The interface adapter: one opened device and everything made of it.
//!
//! An [`Ia`] owns all its objects, in tables; handles are places in them. Every DAT call is a method
//! with the call's name, and because each takes the IA by reference the borrow checker is the
//! serialisation DAT asks consumers for (MT-Level "Unsafe").
//!
//! Nothing happens behind the consumer's back: there is no thread. What the device and the peer did is
//! looked at in `evd_wait`, in an `evd_dequeue` that finds nothing, and in [`Ia::progress`].
//!
//! An [`Ia`] ends by [`Ia::close`], which gives everything back in order. Dropped, it ends at once: its device is
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
use crate::ia::neighbours::Neighbours;
use crate::ia::regions::Regions;
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
use crate::slots::Slots;
use crate::stats::Ended;
use crate::turns::Turns;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use slotmap::SlotMap;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

/// How an IA behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IaConfig {
    /// Events the asynchronous EVD holds at least.
    pub async_evd_min_qlen: u32,
    /// Enforce which streams may share an EVD.
    pub strict_evd_sharing: bool,
    /// Let LMRs with LOCAL_WRITE only be the source of Sends and RDMA Writes, as some existing
    /// consumers expect.
    pub local_write_implies_read: bool,
    /// Tell on the asynchronous EVD what happens to the port, addresses and neighbours
    /// ([`NetworkEvent`](crate::NetworkEvent)). Programs that were written for DAT 1.2 take what they do not know for
    /// an error.
    pub network_events: bool,
    /// Record from the beginning ([`Ia::recorder_start`]).
    pub recorder: bool,
    /// The transport of connections.
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

/// How patient a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Repetitions of an unacknowledged packet, 0..=7.
    pub retry_count: u8,
    /// Repetitions towards a peer without a receive buffer, 0..=7; 7 is for ever, and then that
    /// error never breaks a connection.
    pub rnr_retry: u8,
    /// Time an acknowledgement may take, 4.096 us * 2^n, n at most 31; 0 is for ever. `None` takes it from the way and
    /// from what the acknowledging adapter says of itself ([`cm::ack_timeout`]).
    pub ack_timeout: Option<u8>,
    /// What a peer is told to wait when we have no receive buffer (IBTA code, 5 bits).
    pub min_rnr_timer: u8,
}

impl TransportConfig {
    /// With what an endpoint has of its own.
    pub(in crate::ia) fn with(self, own: &EpTransport) -> Self {
        Self {
            retry_count: own.retry_count.unwrap_or(self.retry_count),
            rnr_retry: own.rnr_retry.unwrap_or(self.rnr_retry),
            ack_timeout: own.ack_timeout.or(self.ack_timeout),
            min_rnr_timer: own.min_rnr_timer.unwrap_or(self.min_rnr_timer),
        }
    }

    /// RNR retries of an endpoint whose peer asks for `asked`: what the endpoint has of its own, else at most what the
    /// adapter has. 7 is for ever, and a peer that asks for it and posts no receive would hold every Send.
    pub(in crate::ia) fn rnr_retry_asked(self, own: &EpTransport, asked: u8) -> u8 {
        own.rnr_retry.unwrap_or(asked.min(self.rnr_retry))
    }
}

impl Default for TransportConfig {
    /// As long as the acknowledging adapter needs, seven times; 0.64 ms six times.
    fn default() -> Self {
        Self {
            retry_count: 7,
            rnr_retry: 6,
            ack_timeout: None,
            min_rnr_timer: 12,
        }
    }
}

/// What `query` tells.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct IaParam<'a> {
    /// Where asynchronous errors go.
    pub async_evd: EvdHandle,
    /// The adapter.
    pub ia: &'a IaAttr,
    /// This opening of it.
    pub provider: &'a ProviderAttr,
}

/// An interface adapter. Crate `udapl` lists its calls by object, at its own `Ia`.
pub struct Ia<P: Provider> {
    // The hot path's.
    pub(in crate::ia) id: u32,
    pub(in crate::ia) regions: Regions<P>,
    /// Completions name them by index alone.
    pub(in crate::ia) eps: Slots<EpKey, Ep<P>>,
    pub(in crate::ia) evds: Slots<EvdKey, Evd<P>>,
    pub(in crate::ia) srqs: SlotMap<SrqKey, Srq<P>>,
    // The rest.
    pub(in crate::ia) provider: Held<P>,
    pub(in crate::ia) pzs: SlotMap<PzKey, Pz<P>>,
    /// RMRs that a peer may take from what they are bound to, by the context of the last bind posted.
    pub(in crate::ia) rmrs_invalidatable: BTreeMap<u32, RmrKey>,
    pub(in crate::ia) rmrs: SlotMap<RmrKey, Rmr<P>>,
    pub(in crate::ia) psps: SlotMap<PspKey, Psp>,
    pub(in crate::ia) rsps: SlotMap<RspKey, Rsp>,
    pub(in crate::ia) cnos: SlotMap<CnoKey, Cno>,
    /// Those of `cnos`, in order of creation.
    pub(in crate::ia) cno_keys: Vec<CnoKey>,
    /// What the consumer keeps with objects.
    pub(in crate::ia) contexts: HashMap<AnyHandle, u64>,
    pub(in crate::ia) crs: SlotMap<CrKey, Cr>,
    pub(in crate::ia) adapter: Arc<Adapter>,
    /// Our place among its instances.
    pub(in crate::ia) seat: Seat,
    /// How often the port has come up as far as we have been told.
    pub(in crate::ia) port_ups: u64,
    /// Connections of endpoints; those of undecided requests are in `crs`.
    pub(in crate::ia) conns: BTreeMap<ConnId, EpKey>,
    pub(in crate::ia) listeners: BTreeMap<ListenId, ServicePoint>,
    /// Where the requests of endpoints in DISCONNECT_PENDING complete.
    pub(in crate::ia) draining: Neighbours,
    /// Where an error may be seen first that is a connection event elsewhere.
    pub(in crate::ia) feeding: Neighbours,
    /// Connections that are tried when they are idle.
    pub(in crate::ia) keep_alives: KeepAlives,
    pub(in crate::ia) log: Log,
    /// Endpoints with watermarks.
    pub(in crate::ia) marked: Turns<EpKey>,
    pub(in crate::ia) effects: VecDeque<Effect>,
    pub(in crate::ia) async_evd: EvdKey,
    /// EVDs that take asynchronous events of other instances.
    pub(in crate::ia) async_evds: Vec<EvdKey>,
    pub(in crate::ia) config: IaConfig,
    pub(in crate::ia) attr: IaAttr,
    provider_attr: ProviderAttr,
    /// The last look at what has arrived for the connection manager ended by its budget.
    pub(in crate::ia) more_datagrams: bool,
    pub(in crate::ia) health: Health,
    /// What happened last, if it is recorded.
    pub(in crate::ia) recorder: Option<Box<Recorder>>,
    /// What was measured, if anything ever was.
    pub(in crate::ia) latencies: Option<Box<Latencies>>,
    /// It is recorded or measured.
    pub(in crate::ia) observed: bool,
    /// Times that a wait which slept ran again.
    pub(in crate::ia) wakeups: u64,
    /// It was armed for an event loop, which may sleep until it is armed again.
    pub(in crate::ia) may_sleep: bool,
    /// What endpoints counted that are no more, and entries that EVDs took which are no more.
    pub(in crate::ia) ended: Ended,
    pub(in crate::ia) ended_completions: u64,
}

/// Numbers of IAs, from 1.
static NEXT_IA: AtomicU32 = AtomicU32::new(1);

impl<P: Provider> Ia<P> {
    /// An IA over an opened device, with an asynchronous EVD of its own.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: an asynchronous EVD of length 0.
    pub fn open(provider: P, config: IaConfig) -> DatResult<Self> {
        let limits = provider.limits();
        let [.., a, b, c, d, e, f, g, h] = limits.gid;
        let usual = cm::Config::default();
        let endpoints = usize::try_from(limits.max_qps).unwrap_or(usize::MAX);
        let adapter = Adapter::new(cm::Config {
            // One for each endpoint, and as many that are over and whose peers are still answered about.
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

    /// The adapter, from which any thread can open another instance.
    #[must_use]
    pub fn opened(&self) -> Opened {
        Opened(Arc::downgrade(&self.adapter))
    }

    /// Instances of its adapter, this one included.
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
            draining: Neighbours::new(),
            feeding: Neighbours::new(),
            keep_alives: KeepAlives::new(),
            log: Log::default(),
            marked: Turns::new(),
            // Enough that a post that looks at a completion queue does not allocate.
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

    /// The asynchronous EVD, and the attributes of the adapter and of the provider (`dat_ia_query`).
    #[must_use]
    pub fn query(&self) -> IaParam<'_> {
        IaParam {
            async_evd: self.async_evd(),
            ia: &self.attr,
            provider: &self.provider_attr,
        }
    }

    /// The asynchronous EVD.
    #[must_use]
    pub const fn async_evd(&self) -> EvdHandle {
        self.evd_handle(self.async_evd)
    }

    /// What the device said when it last refused something.
    #[must_use]
    pub fn last_device_error(&self) -> Option<&str> {
        self.health.last_word()
    }

    /// How many connections the connection manager holds, in any state. Connections that have ended, whose peers may
    /// still ask, are among them.
    #[must_use]
    pub fn cm_connections(&self) -> usize {
        self.adapter.lock().cm.connections()
    }

    /// Counters of the connection manager.
    #[must_use]
    pub fn cm_counters(&self) -> crate::cm::Counters {
        *self.adapter.lock().cm.counters()
    }

    /// The provider. What it owns for this IA must not be changed behind its back.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// The provider, for what DAT has no call for (making memory, for one).
    pub fn provider_mut(&mut self) -> &mut P {
        &mut self.provider
    }
}

/// An adapter that is open as long as there is an instance of it.
#[derive(Clone)]
pub struct Opened(Weak<Adapter>);

impl Opened {
    /// One more instance of the adapter, over an instance of its device.
    ///
    /// # Errors
    /// As [`Ia::open`]. DAT_INVALID_HANDLE|IA: it is closed.
    pub fn instance<P: Provider>(&self, provider: P, config: IaConfig) -> DatResult<Ia<P>> {
        let closed = DatError::handle(Subtype::HandleIa).because("the adapter is closed");
        Ia::on(self.0.upgrade().ok_or(closed)?, provider, config)
    }

    /// What the connection manager has done with datagrams, and how many instances there are. `None`: it is closed.
    #[must_use]
    pub fn counters(&self) -> Option<(crate::cm::Counters, usize)> {
        let adapter = self.0.upgrade()?;
        let state = adapter.lock();
        Some((*state.cm.counters(), state.instances()))
    }

    /// Asks every instance what is seen of it, and wakes those that sleep: their numbers, and where the answers come.
    /// An instance answers when its thread is in a call that looks after it: a wait, a look at an empty EVD,
    /// [`Ia::progress`]; one that is busy with something else answers later, and one that is closed never. `None`: the
    /// adapter is closed.
    #[must_use]
    pub fn ask(&self, what: Wanted) -> Option<(Vec<u32>, Receiver<InstanceView>)> {
        let (to, answers) = channel();
        let numbers = self.0.upgrade()?.lock().ask(&Question { what, to });
        Some((numbers, answers))
    }

    /// Has every instance measure how long requests and wakeups take ([`Ia::measure`]), for as long as those who asked
    /// for it are more than those who no longer do. False: it is closed.
    #[must_use]
    pub fn measure(&self, on: bool) -> bool {
        let adapter = self.0.upgrade();
        adapter.is_some_and(|adapter| {
            adapter.lock().measure(on);
            true
        })
    }

    /// Has somebody told of what happens, for as long as there is an adapter. False: it is closed.
    #[must_use]
    pub fn watch(&self, watcher: Watcher) -> bool {
        let adapter = self.0.upgrade();
        adapter.is_some_and(|adapter| {
            adapter.lock().watch(watcher);
            true
        })
    }
}

/// The provider of an IA, which is there until the IA is closed.
pub(crate) struct Held<P>(Option<P>);

impl<P> Held<P> {
    /// Whether the IA is not over.
    pub(in crate::ia) const fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Takes it out: the IA is over.
    pub(in crate::ia) fn take(&mut self) -> Option<P> {
        self.0.take()
    }
}

impl<P> Deref for Held<P> {
    type Target = P;

    fn deref(&self) -> &P {
        // PANIC: only `Ia::close` and the drop of an IA take it, which end the IA.
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
