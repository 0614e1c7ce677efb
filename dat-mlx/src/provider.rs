//! The provider: the traits of `dat-core`, implemented on a ConnectX function.
//!
//! [`MlxProvider`] is an instance of an opened function ([`Hca`]). It shares QP1 with the other instances, and
//! creates the queue objects that `dat-core` then owns. The provider keeps only the data that events need: tables from
//! device numbers to owner numbers, and the arm sequences of completion queues. The objects hold everything else, so
//! posting and polling do not call the provider.
//!
//! Path of events: [`Hca`] drains the function's event queues. Completion events are counted for the queue they name
//! (the queue's next arm request carries the count, see [`hw_mlx::cq`]). Other events that a consumer can use become
//! [`ProviderEvent`]s. An event of a destroyed object is dropped, because its owner no longer needs it.
//!
//! Registered memory is `driver`'s [`DmaMemory`]: arena memory or memory lent by the caller. The region keeps a
//! clone, so that the device's mapping exists longer than the key.
//!
//! Random numbers (identifiers, first PSNs, variants of keys) come from a cipher. Its seed is in
//! [`HcaConfig`](hw_mlx::HcaConfig) for deterministic runs; otherwise the system supplies the seed.

mod counts;
mod errors;
mod joining;
mod leases;
mod limits;
mod opened;
mod parking;
mod reach;
mod region;
mod resuming;
mod snapshot;
mod written;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dat_core::address::Address;
use dat_core::log_budget::LogBudget;
use dat_core::provider::{
    Limits, MadAddress, Nanos, Path, Provider, ProviderError, ProviderEvent, Qpn, QueueSizes,
    ReadyToReceive, ReadyToSend, Registration,
};
use dat_core::types::MemPrivFlags;
use dat_core::{Descriptor, Echo, NetworkEvent, Waker};
use driver::{DmaArena, DmaMemory, Function, Instant};
use hw_mlx::cq::ArmSequence;
use hw_mlx::gid::address_of;
use hw_mlx::gsi::{DroppedMads, Gsi};
use hw_mlx::mkey::{self, KeyRequest};
use hw_mlx::qp::context::HOP_LIMIT;
use hw_mlx::qp::control::QpRequest;
use hw_mlx::random::{Random, Variants};
use hw_mlx::ring::Lent;
use hw_mlx::uar::Doorbells;
use hw_mlx::window::{self, Window};
use hw_mlx::{AsyncEvent, CloseError, CloseReport, CmdError, Hca, MlxError, datagrams};
use mlx_prm::{AllocPdIn, Cqn, DeallocPdIn, Rmpn};
use neighbour::Need;

use self::counts::Registered;
pub use self::counts::{NetworkCounters, ProviderCounters};
use self::errors::ForDat;
pub use self::joining::NetworkState;
use self::limits::limits;
pub use self::opened::OpenedProvider;
pub use self::parking::{ParkingProvider, UnclaimedProvider};
use self::reach::Down;
pub use self::region::Region;
use self::resuming::Resuming;
pub use self::snapshot::{
    DownSnapshot, ProviderInstance, ProviderSnapshot, ProviderTables, RegionSnapshot,
};
use crate::config::ProviderConfig;
use crate::network::{CountersCopy, Network, NextHop};
use crate::queues::{Cq, Qp, Srq};

/// Maximum owner number. Owner numbers have 24 bits, and all ones means "none" to the device.
const MAX_OWNER: u32 = 0xff_fffe;
/// Maximum number of datagrams from senders with unknown MACs that one call of `poll_mad` takes from QP1.
const MAX_SKIPPED_DATAGRAMS: usize = 64;

/// Data of a completion queue of this instance that its events need.
#[derive(Debug)]
struct KnownCq {
    sequence: ArmSequence,
    owner: u32,
    /// True if each completion event of the queue is reported as `ProviderEvent::CqEntries`.
    watched: bool,
}

/// State above [`Hca`] that the instances of a function share.
struct SharedProvider {
    /// QP1. The holder of this lock waits for the device only while it resets a broken QP1.
    gsi: Mutex<Gsi>,
    /// The protection domain of QP1.
    gsi_pd: u32,
    /// Network state; `None` if the function takes no part in the network. Locked before `gsi`.
    network: Option<Mutex<Network>>,
    /// Reason why the function takes no part, if [`Participation::IfPossible`](crate::Participation::IfPossible) was
    /// configured.
    without_network: Option<String>,
    /// The seed of random numbers ([`HcaConfig::seed`](hw_mlx::HcaConfig::seed)).
    seed: Option<u64>,
    /// Number of instances created so far.
    made: AtomicU32,
    registered: Registered,
    /// True while the function was resumed and the resumption is not finished. Then no instance is made.
    is_resuming: AtomicBool,
    /// Counters of what `gsi` and `network` do, for readers that do not wait for their locks. `network_counters` is
    /// `None` if `network` is.
    mads_dropped: DroppedMads,
    network_counters: Option<CountersCopy>,
    /// Lock held while a reader of counters has a reference to this object, and while a closing instance drops its own.
    /// So the last reference is always dropped in a close.
    asked: Arc<Mutex<()>>,
}

impl SharedProvider {
    fn gsi(&self) -> MutexGuard<'_, Gsi> {
        // A panic under this lock leaves at most a datagram unsent.
        self.gsi.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn network(&self) -> Option<MutexGuard<'_, Network>> {
        // A panic under this lock leaves at most a frame unsent.
        let network = self.network.as_ref()?;
        Some(network.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An instance of an opened function, as a provider.
pub struct MlxProvider {
    hca: Hca,
    doorbells: Doorbells,
    common: Arc<SharedProvider>,
    limits: Limits,
    cqs: BTreeMap<u32, KnownCq>,
    /// Owner numbers by queue pair number.
    qps: BTreeMap<Qpn, u32>,
    /// Owner numbers by RMP number.
    srqs: BTreeMap<u32, u32>,
    events: VecDeque<ProviderEvent>,
    /// State of the port while it is down; `None` if it is up.
    down: Option<Down>,
    /// True if the last event was [`AsyncEvent::EventsLost`]. The port's state follows, which may be unchanged.
    port_unsure: bool,
    random: Random,
    /// Source of the variants (low bytes) of keys.
    variants: Variants,
    /// Lines about datagrams that QP1 has dropped.
    log_mads_dropped: LogBudget,
    /// State of a resumption that is not finished, which all instances share. Until then, no event is collected, and
    /// nothing is sent or received.
    resuming: Option<Arc<Mutex<Resuming>>>,
}

impl MlxProvider {
    /// Opens a function: brings the device up, creates QP1, joins the network and computes the limits.
    ///
    /// # Errors
    /// Any failure of bring-up; the function is then stopped.
    pub fn open(function: Function, config: impl Into<ProviderConfig>) -> Result<Self, MlxError> {
        let ProviderConfig {
            hca: config,
            network: joins,
        } = config.into();
        let seed = config.seed;
        let mut hca = Hca::open(function, config)?;
        let doorbells = Doorbells::new(hca.uar().clone());
        let gsi_pd = alloc_pd(&mut hca)?;
        let mut gsi = Gsi::create(&mut hca, &doorbells, gsi_pd)?;
        // QP1's queue is armed from the start, because a connection request may be the first event.
        let _none_yet = gsi.receive();
        let (network, without_network) = joining::join(&mut hca, &doorbells, joins, seed)?;
        let common = SharedProvider {
            mads_dropped: gsi.dropped().clone(),
            network_counters: network.as_ref().map(|network| network.counters().clone()),
            gsi: Mutex::new(gsi),
            gsi_pd,
            network: network.map(Mutex::new),
            without_network,
            seed,
            made: AtomicU32::new(0),
            registered: Registered::default(),
            is_resuming: AtomicBool::new(false),
            asked: Arc::default(),
        };
        Self::of(hca, Arc::new(common))
    }

    fn of(hca: Hca, common: Arc<SharedProvider>) -> Result<Self, MlxError> {
        let number = common.made.fetch_add(1, Ordering::Relaxed);
        // Peers see variants, so variants are not drawn from the same stream as the other random numbers.
        let (random, variants) = if number == 0 {
            (
                Random::new(common.seed)?,
                Random::of_function(common.seed, "variants")?,
            )
        } else {
            let of = |what: &str| Random::of_function(common.seed, &format!("{what} of {number}"));
            (of("numbers")?, of("variants")?)
        };
        let limits = limits(&hca, common.network.is_some());
        let down = (!hca.link_is_up()).then(|| Down {
            since: hca.now(),
            trains: true,
        });
        if down.is_some() {
            tracing::warn!(function = hca.name(), "the port is down");
        }
        let given_up = common.network().is_some_and(|mut network| {
            network.update_link(down.is_none(), hca.now());
            network.is_given_up()
        });
        let without = given_up || common.without_network.is_some();
        let events = without.then_some(ProviderEvent::Network(NetworkEvent::NotJoined));
        Ok(Self {
            doorbells: Doorbells::new(hca.uar().clone()),
            hca,
            common,
            limits,
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            events: events.into_iter().collect(),
            random,
            down,
            port_unsure: false,
            variants: Variants::new(variants),
            log_mads_dropped: LogBudget::default(),
            resuming: None,
        })
    }

    /// Ends the instance. The last instance also leaves the network, destroys QP1 and closes the function
    /// ([`Hca::close`]).
    ///
    /// # Errors
    /// As [`Hca::close`].
    #[allow(clippy::result_large_err, reason = "once in a function's life")]
    pub fn close(self) -> Result<CloseReport, CloseError> {
        let Self {
            mut hca, common, ..
        } = self;
        let asked = Arc::clone(&common.asked);
        let alone = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let last = Arc::into_inner(common);
        drop(alone);
        if let Some(SharedProvider {
            gsi,
            gsi_pd,
            network,
            ..
        }) = last
        {
            if let Some(network) = network {
                let network = network.into_inner().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = network.destroy(&mut hca) {
                    tracing::warn!(%error, "the Ethernet port stays");
                }
            }
            let gsi = gsi.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = gsi.destroy(&mut hca) {
                tracing::warn!(%error, "QP1 stays");
            }
            if let Err(error) = free_pd(&mut hca, gsi_pd) {
                tracing::warn!(%error, "the protection domain of QP1 stays");
            }
        }
        hca.close()
    }

    /// Returns the arena of this function. Memory allocated here is best for regions.
    #[must_use]
    pub fn arena(&self) -> &DmaArena {
        self.hca.arena()
    }

    /// Returns the opened function.
    #[must_use]
    pub fn hca(&self) -> &Hca {
        &self.hca
    }

    /// Returns the queue pair number of QP1, which the device's error events name.
    #[must_use]
    pub fn gsi_number(&self) -> Qpn {
        self.common.gsi().number()
    }

    /// Returns the function for queries. The caller must destroy objects created through it.
    pub fn hca_mut(&mut self) -> &mut Hca {
        &mut self.hca
    }

    /// Processes the events of an object that was just destroyed, while no object has its number. The device reuses
    /// numbers, and a later owner must not get these events.
    fn forget_events(&mut self) {
        self.collect();
    }

    /// Converts the events that [`Hca`] collected into counts and provider events, and repairs QP1 if it is in error.
    /// Returns true if there was an event.
    fn collect(&mut self) -> bool {
        if self.resuming.is_some() {
            // An event of an object that was not resumed yet would be lost.
            return false;
        }
        let mut handled = false;
        while let Some(cqn) = self.hca.next_completion() {
            if let Some(known) = self.cqs.get(&cqn.get()) {
                known.sequence.count_event();
                handled = true;
                if known.watched {
                    let owner = known.owner;
                    self.events.push_back(ProviderEvent::CqEntries { owner });
                }
            }
        }
        handled |= self.collect_shared();
        while let Some(event) = self.hca.next_async() {
            handled = true;
            tracing::debug!(?event, "device event");
            let is_known = event == AsyncEvent::PortUp && self.down.is_none()
                || event == AsyncEvent::PortDown && self.down.is_some();
            let is_lost = matches!(event, AsyncEvent::EventsLost { .. });
            if core::mem::replace(&mut self.port_unsure, is_lost) && is_known {
                continue;
            }
            self.note_port(&event);
            let translated = self.translate(&event);
            self.events.extend(translated);
        }
        if let Err(error) = self.common.gsi().repair(&mut self.hca) {
            if self.hca.is_dead() {
                tracing::error!(%error, "QP1 cannot be repaired; the device is stopped");
            } else {
                tracing::error!(%error, "QP1 cannot be repaired now; the repair is tried again");
            }
        }
        handled
    }

    /// Converts an event to a provider event, if its object still exists.
    fn translate(&mut self, event: &AsyncEvent) -> Option<ProviderEvent> {
        let qp_owner = |qpn| self.qps.get(&qpn).copied();
        let srq_owner = |rmpn: Rmpn| self.srqs.get(&rmpn.get()).copied();
        match *event {
            AsyncEvent::PortUp => Some(ProviderEvent::Network(self.port_up_event())),
            AsyncEvent::PortDown => Some(ProviderEvent::Network(NetworkEvent::PortDown)),
            AsyncEvent::Network(event) => Some(ProviderEvent::Network(heard(event))),
            AsyncEvent::AddressRemoved { index, address } => Some(ProviderEvent::AddressRemoved {
                source_gid_index: index,
                address,
            }),
            AsyncEvent::CommEstablished { qpn } => {
                qp_owner(qpn).map(|owner| ProviderEvent::CommunicationEstablished { owner })
            }
            AsyncEvent::QpError { qpn, event } => {
                qp_owner(qpn).map(|owner| ProviderEvent::QpError {
                    owner,
                    event: event.0,
                })
            }
            AsyncEvent::SrqLastWqe { qpn } => {
                qp_owner(qpn).map(|owner| ProviderEvent::SrqLastBuffer { owner })
            }
            AsyncEvent::CqError { cqn, syndrome } => {
                tracing::error!(%cqn, syndrome, "a completion queue is lost (1 overrun, 2 not writable)");
                self.cqs
                    .get(&cqn.get())
                    .map(|known| ProviderEvent::CqError { owner: known.owner })
            }
            AsyncEvent::SrqLimit { rmpn } => {
                srq_owner(rmpn).map(|owner| ProviderEvent::SrqLimit { owner })
            }
            AsyncEvent::SrqError { rmpn } => {
                // The queue pairs that use this shared receive queue report their own errors.
                tracing::error!(%rmpn, "a shared receive queue is lost");
                srq_owner(rmpn).map(|owner| ProviderEvent::SrqError { owner })
            }
            AsyncEvent::EventsLost { count } => {
                tracing::error!(count, "device events were lost");
                None
            }
            AsyncEvent::DeviceDead { .. } => Some(ProviderEvent::DeviceDead),
            AsyncEvent::DeviceRequested => Some(ProviderEvent::DeviceRequested),
            AsyncEvent::PortChange { .. }
            | AsyncEvent::SqDrained { .. }
            | AsyncEvent::Other { .. } => None,
        }
    }

    /// Returns the index of our GID with this address, or index 0 (the default source) if we have no such GID.
    fn source_index(&self, own: [u8; 16]) -> u8 {
        self.hca.known(own).map_or(0, |entry| entry.index)
    }

    fn check_owner(owner: u32) -> Result<(), ProviderError> {
        Self::check("owner number", owner, MAX_OWNER)
    }

    fn check(
        what: &'static str,
        asked: impl Into<u64>,
        limit: impl Into<u64>,
    ) -> Result<(), ProviderError> {
        let (asked, limit) = (asked.into(), limit.into());
        if asked > limit {
            return Err(ProviderError::Limit { what, asked, limit });
        }
        Ok(())
    }
}

/// Converts a network event of the driver to DAT's.
fn heard(event: hw_mlx::NetworkEvent) -> NetworkEvent {
    use hw_mlx::NetworkEvent as Heard;
    match event {
        Heard::AddressAdded(address) => NetworkEvent::AddressAdded(address),
        Heard::AddressDuplicate { address, mac, lost } => {
            NetworkEvent::AddressDuplicate { address, mac, lost }
        }
        Heard::NeighbourMoved { address, mac } => NetworkEvent::NeighbourMoved { address, mac },
        Heard::NeighbourLost(address) => NetworkEvent::NeighbourLost(address),
        Heard::PortGivenUp => NetworkEvent::NotJoined,
    }
}

fn alloc_pd(hca: &mut Hca) -> Result<u32, CmdError> {
    hca.exec(&AllocPdIn::new()).map(|answer| answer.pd())
}

fn free_pd(hca: &mut Hca, pd: u32) -> Result<(), CmdError> {
    let mut command = DeallocPdIn::new();
    command.set_pd(pd);
    hca.exec(&command).map(drop)
}

impl Descriptor for MlxProvider {
    type Fd = driver::Descriptor;

    fn descriptor(&mut self) -> Result<Self::Fd, ProviderError> {
        self.hca.descriptor().for_dat()
    }

    fn woken(&mut self) {
        self.hca.woken();
    }
}

impl Provider for MlxProvider {
    type Cq = Cq;
    type Qp = Qp;
    type Srq = Srq;
    type Pd = u32;
    type Memory = DmaMemory;
    type Region = Region;
    type Window = Window;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn now(&self) -> Nanos {
        self.hca.now().0
    }

    fn since(&self, written: u64) -> Option<Nanos> {
        self.hca.since(written)
    }

    fn wait(&mut self, deadline: Nanos) -> Result<bool, ProviderError> {
        // The wait must not block while events that were collected before are undelivered.
        let called = self.hca.process_events();
        if self.collect() || called || !self.events.is_empty() {
            return Ok(true);
        }
        let handled = self.hca.wait(Instant(deadline));
        // The device's death is an event too, so it must be reported even if the wait failed.
        let collected = self.collect();
        Ok(handled.for_dat()? || collected)
    }

    fn progress(&mut self) {
        self.hca.process_events();
        // Otherwise only `wait` checks the device's health, and a consumer that only polls never calls `wait`.
        self.hca.check_health();
        self.collect();
        self.run_network();
        self.clear_retired_addresses();
    }

    fn next_timeout(&self) -> Option<Nanos> {
        self.next_due()
    }

    fn next_event(&mut self) -> Option<ProviderEvent> {
        self.events.pop_front()
    }

    fn alloc_pd(&mut self) -> Result<u32, ProviderError> {
        alloc_pd(&mut self.hca).for_dat()
    }

    fn free_pd(&mut self, pd: u32) -> Result<(), ProviderError> {
        free_pd(&mut self.hca, pd).for_dat()
    }

    fn register(
        &mut self,
        pd: u32,
        memory: &DmaMemory,
        access: MemPrivFlags,
    ) -> Result<Registration<Region>, ProviderError> {
        if memory.is_empty() {
            return Err(ProviderError::Unsupported(
                "a region of no bytes, or outside of its buffer".to_owned(),
            ));
        }
        let ours = self.hca.function();
        if !memory.is_reached_by(ours) {
            // The memory's I/O addresses belong to another address space. In ours they would refer to other bytes.
            let (ours, theirs) = (ours.name(), memory.made_for());
            return Err(ProviderError::Foreign(if theirs == ours {
                format!("the memory is of an earlier opening of {ours}: allocate it anew")
            } else {
                format!(
                    "the memory is {theirs}'s, which {ours} cannot reach: open both with `,memory=NAME`"
                )
            }));
        }
        let bytes = memory.len() as u64;
        Self::check("bytes of a region", bytes, self.limits.max_region_bytes)?;
        let request = KeyRequest {
            pd,
            address: memory.address(),
            bytes,
            access,
            variant: self.variants.draw(),
            may_have_windows: self.limits.max_windows > 0,
        };
        let lent = Lent::new(memory.clone(), self.hca.arena().downgrade());
        let (index, key) = match mkey::create(&mut self.hca, &request, memory.iova()) {
            Ok(key) => key,
            Err(MlxError::Cmd(error)) => {
                if error.outcome_unknown() {
                    // The device may keep the memory mapped, but the call fails and so the caller owns the memory
                    // again.
                    memory.withdraw();
                }
                return Err(lent.after(error)).for_dat();
            }
            Err(error) => {
                drop(lent.give_back());
                return Err(error).for_dat();
            }
        };
        self.common.registered.add(bytes);
        debug_assert_eq!(key, index << 8 | u32::from(request.variant));
        let region = Region {
            index,
            variant: request.variant,
            memory: lent,
        };
        Ok(region.registration(access))
    }

    fn deregister(&mut self, region: &mut Region) -> Result<(), ProviderError> {
        if !region.memory.is_returned() {
            mkey::destroy(&mut self.hca, region.index).for_dat()?;
            region.memory.returned();
            let bytes = region.memory().len() as u64;
            self.common.registered.remove(bytes);
        }
        Ok(())
    }

    fn withdraw(&self, memory: &DmaMemory) {
        memory.withdraw();
    }

    fn is_shared(&self, memory: &DmaMemory) -> bool {
        memory.is_shared()
    }

    fn create_window(&mut self, pd: u32) -> Result<Window, ProviderError> {
        if self.limits.max_windows == 0 {
            return Err(ProviderError::Unsupported(
                "the device has no memory windows".to_owned(),
            ));
        }
        let order = self.variants.order();
        window::create(&mut self.hca, pd, order).for_dat()
    }

    fn unbind_window(&mut self, pd: u32, window: &mut Window) -> Result<(), ProviderError> {
        let mut fresh = self.create_window(pd)?;
        if let Err(error) = window::destroy(&mut self.hca, window) {
            if let Err(second) = window::destroy(&mut self.hca, &mut fresh) {
                tracing::warn!(%second, "a window that was never bound stays");
            }
            return Err(error).for_dat();
        }
        *window = fresh;
        Ok(())
    }

    fn destroy_window(&mut self, window: &mut Window) -> Result<(), ProviderError> {
        window::destroy(&mut self.hca, window).for_dat()
    }

    fn create_cq(&mut self, entries: u32, owner: u32) -> Result<Cq, ProviderError> {
        Self::check(
            "completion queue entries",
            entries,
            self.limits.max_cq_entries,
        )?;
        // Each queue may be armed and have one event in the event queue. More queues could overrun the event queue,
        // which is fatal to the function.
        if self.cqs.len() >= self.limits.max_cqs as usize {
            return Err(ProviderError::Resources(format!(
                "{} completion queues of this instance, one event each",
                self.cqs.len()
            )));
        }
        let cq = hw_mlx::cq::Cq::create(&mut self.hca, &self.doorbells, entries).for_dat()?;
        // The device reuses numbers. An event of a destroyed queue must not count for this one.
        self.hca.forget_completion(Cqn::new(cq.cqn()));
        self.collect();
        self.cqs.insert(
            cq.cqn(),
            KnownCq {
                sequence: cq.sequence(),
                owner,
                watched: false,
            },
        );
        Ok(Cq(cq))
    }

    fn watch_cq(&mut self, cq: &Cq) {
        if let Some(known) = self.cqs.get_mut(&cq.0.cqn()) {
            known.watched = true;
        }
    }

    fn resize_cq(&mut self, cq: &mut Cq, entries: u32) -> Result<(), ProviderError> {
        Self::check(
            "completion queue entries",
            entries,
            self.limits.max_cq_entries,
        )?;
        if !self.hca.caps().general().cq_resize() {
            return Err(ProviderError::Unsupported(
                "resizing completion queues (capability cq_resize)".to_owned(),
            ));
        }
        cq.0.resize(&mut self.hca, entries).for_dat()
    }

    fn destroy_cq(&mut self, cq: &mut Cq) -> Result<(), ProviderError> {
        cq.0.destroy(&mut self.hca).for_dat()?;
        self.cqs.remove(&cq.0.cqn());
        self.forget_events();
        Ok(())
    }

    fn create_srq(
        &mut self,
        pd: u32,
        max_recvs: u32,
        max_segments: u32,
        owner: u32,
    ) -> Result<Srq, ProviderError> {
        Self::check("shared receives", max_recvs, self.limits.max_srq_recvs)?;
        Self::check(
            "segments of a receive",
            max_segments,
            self.limits.max_recv_segments,
        )?;
        let srq = hw_mlx::srq::Srq::create(&mut self.hca, pd, max_recvs, max_segments).for_dat()?;
        self.collect();
        self.srqs.insert(srq.rmpn(), owner);
        Ok(Srq(srq))
    }

    fn arm_srq_limit(&mut self, srq: &Srq, limit: u32) -> Result<(), ProviderError> {
        srq.0.arm_limit(&mut self.hca, limit).for_dat()
    }

    fn destroy_srq(&mut self, srq: &mut Srq) -> Result<(), ProviderError> {
        srq.0.destroy(&mut self.hca).for_dat()?;
        self.srqs.remove(&srq.0.rmpn());
        self.forget_events();
        Ok(())
    }

    fn create_qp(
        &mut self,
        pd: u32,
        request_cq: &Cq,
        recv_cq: &Cq,
        srq: Option<&Srq>,
        sizes: QueueSizes,
        owner: u32,
    ) -> Result<Qp, ProviderError> {
        Self::check_owner(owner)?;
        Self::check("requests", sizes.max_requests, self.limits.max_dtos)?;
        Self::check("receives", sizes.max_recvs, self.limits.max_dtos)?;
        Self::check(
            "segments of a request",
            sizes.max_request_segments,
            self.limits.max_request_segments,
        )?;
        Self::check(
            "segments of an RDMA Read",
            sizes.max_read_segments,
            self.limits.max_read_segments,
        )?;
        Self::check(
            "segments of a receive",
            sizes.max_recv_segments,
            self.limits.max_recv_segments,
        )?;
        let request = QpRequest {
            pd,
            cqn_send: request_cq.0.cqn(),
            cqn_receive: recv_cq.0.cqn(),
            srq: srq.map(|srq| &srq.0),
            sizes,
            owner,
        };
        let qp = hw_mlx::qp::Qp::create(&mut self.hca, &self.doorbells, &request).for_dat()?;
        // Events of an earlier queue pair with this number, in another instance, must not count for this one.
        self.collect();
        self.qps.insert(qp.number(), owner);
        Ok(Qp(qp))
    }

    fn ready_to_receive(
        &mut self,
        qp: &mut Qp,
        attributes: &ReadyToReceive,
    ) -> Result<(), ProviderError> {
        // Some of these numbers come from the peer. The layouts panic on a number that does not fit, so check first.
        Self::check("path MTU code", attributes.mtu, self.limits.mtu)?;
        Self::check("RNR timer code", attributes.min_rnr_timer, 31_u32)?;
        Self::check(
            "incoming RDMA Reads",
            attributes.reads_in,
            self.limits.max_reads_in,
        )?;
        if attributes.mtu == 0 {
            return Err(ProviderError::Unsupported("path MTU code 0".to_owned()));
        }
        let mac = self.find(&attributes.path)?;
        let source = self.hca.gid_at(attributes.path.source_gid_index);
        let peer = source.and_then(|source| {
            let destination = address_of(attributes.path.gid);
            let now = self.hca.now();
            let mut network = self.common.network()?;
            Some(network.peer(source.address.address, destination, now))
        });
        qp.0.ready_to_receive(&mut self.hca, attributes, mac, peer)
            .for_dat()
    }

    fn ready_to_send(
        &mut self,
        qp: &mut Qp,
        attributes: &ReadyToSend,
    ) -> Result<(), ProviderError> {
        Self::check("transport retries", attributes.retry_count, 7_u32)?;
        Self::check("RNR retries", attributes.rnr_retry, 7_u32)?;
        Self::check("ACK timeout code", attributes.ack_timeout, 31_u32)?;
        Self::check(
            "outgoing RDMA Reads",
            attributes.reads_out,
            self.limits.max_reads_out,
        )?;
        qp.0.ready_to_send(&mut self.hca, attributes).for_dat()
    }

    fn to_error(&mut self, qp: &mut Qp) -> Result<(), ProviderError> {
        qp.0.to_error(&mut self.hca).for_dat()
    }

    fn reset_qp(
        &mut self,
        qp: &mut Qp,
        request_cq: &mut Cq,
        recv_cq: Option<&mut Cq>,
    ) -> Result<(), ProviderError> {
        qp.0.reset(
            &mut self.hca,
            &mut request_cq.0,
            recv_cq.map(|cq| &mut cq.0),
        )
        .for_dat()
    }

    fn rewind_qp(
        &mut self,
        qp: &mut Qp,
        request_cq: &mut Cq,
        recv_cq: Option<&mut Cq>,
    ) -> Result<bool, ProviderError> {
        qp.0.rewind(&mut self.hca, &request_cq.0, recv_cq.map(|cq| &cq.0))
            .for_dat()
    }

    fn destroy_qp(
        &mut self,
        qp: &mut Qp,
        request_cq: &mut Cq,
        recv_cq: Option<&mut Cq>,
    ) -> Result<(), ProviderError> {
        qp.0.destroy(
            &mut self.hca,
            &mut request_cq.0,
            recv_cq.map(|cq| &mut cq.0),
        )
        .for_dat()?;
        self.qps.remove(&qp.0.number());
        self.forget_events();
        Ok(())
    }

    fn stop(&mut self, why: &'static str) {
        self.hca.stop(why);
    }

    fn one_limit(&mut self, on: bool) {
        self.hca.one_limit(on);
    }

    fn sync_for_device(&self) {
        driver::barrier::dma_to_device();
    }

    fn sync_for_cpu(&self) {
        driver::barrier::dma_from_device();
    }

    fn gid(&self, index: u8) -> Option<[u8; 16]> {
        self.hca.gid_at(index).map(|entry| entry.gid)
    }

    fn addresses(&self) -> Vec<Address> {
        self.hca.gids().iter().map(|entry| entry.address).collect()
    }

    fn add_address(&mut self, address: &Address) -> Result<(), ProviderError> {
        self.check_resumed()?;
        self.add(address).for_dat()
    }

    fn remove_address(&mut self, address: IpAddr) -> Result<(), ProviderError> {
        self.check_resumed()?;
        self.hca.retire_address(address).for_dat().map(drop)
    }

    fn echo(&mut self, destination: IpAddr, sequence: u16) -> Result<bool, ProviderError> {
        self.check_resumed()?;
        self.send_echo(destination, sequence)
    }

    fn take_echo(&mut self) -> Option<Echo> {
        self.common.network()?.take_echo()
    }

    fn route(&self, gid: [u8; 16], source: Option<IpAddr>) -> Result<Path, ProviderError> {
        // Packets to our own address do not leave the function, so the port's state does not matter.
        if self.hca.own(gid).is_none() {
            self.check_port()?;
        }
        if self.common.network.is_none() {
            // Without the network protocols only configured peers and MAC-derived addresses can be resolved.
            self.hca.resolve(gid).for_dat()?;
        }
        let source = self.source(gid, source)?;
        Ok(Path {
            source_gid_index: source.index,
            gid,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            priority: source.priority(),
        })
    }

    fn port_is_up(&self) -> bool {
        self.down.is_none()
    }

    fn send_mad(&mut self, to: &MadAddress, mad: &[u8; 256]) -> Result<(), ProviderError> {
        self.check_resumed()?;
        if let Some(cause) = self.hca.dead_cause() {
            return Err(ProviderError::Dead(cause.to_string()));
        }
        match self.way(to.path.gid, to.path.source_gid_index, Need::Datagram) {
            NextHop::Known(mac) => self.send_over(to, mac, mad),
            NextHop::Pending => {
                if let (Some(mut network), Some(source)) = (
                    self.common.network(),
                    self.hca.gid_at(to.path.source_gid_index),
                ) {
                    network.queue_outgoing(*to, source.address.address, mad);
                }
                Ok(())
            }
            NextHop::Unreachable(why) => {
                tracing::debug!(why, "a datagram to nobody");
                let gid = to.path.gid;
                self.events.push_back(ProviderEvent::Unreachable { gid });
                Ok(())
            }
        }
    }

    fn await_mads(&mut self, deadline: Nanos) {
        while self.common.gsi().is_sending()
            && self.hca.now() < Instant(deadline)
            && self.hca.wait(Instant(deadline)).is_ok()
        {}
    }

    fn poll_mad(&mut self) -> Option<(MadAddress, [u8; 256])> {
        if self.resuming.is_some() {
            return None;
        }
        // The loop is bounded, so that a peer that sends unanswerable datagrams does not delay the caller.
        for _ in 0..MAX_SKIPPED_DATAGRAMS {
            let waited = self
                .common
                .network()
                .and_then(|mut network| network.found());
            let received = match waited {
                Some(received) => received,
                None => self.receive_mad()?,
            };
            let index = self.source_index(received.route.destination);
            match self.way(received.route.source, index, Need::Sender) {
                NextHop::Known(_) => {
                    datagrams::received(&self.hca, &received);
                    let priority = self.hca.priority(index);
                    return Some((received.sender(index, priority), received.mad));
                }
                NextHop::Pending => {
                    if let Some(mut network) = self.common.network() {
                        network.queue_incoming(received);
                    }
                }
                NextHop::Unreachable(why) => {
                    tracing::debug!(why, "a datagram that cannot be answered")
                }
            }
        }
        // More datagrams may wait, and QP1 raises no event for them. So the instance polls again.
        self.hca.call_again();
        None
    }

    fn retire(&mut self) -> bool {
        self.hca.retire()
    }

    fn waker(&self) -> Waker {
        self.hca.waker()
    }

    fn record(&mut self) {
        self.hca.recorder().start();
    }

    fn random(&mut self) -> u64 {
        self.random.number()
    }
}

impl core::fmt::Debug for MlxProvider {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MlxProvider")
            .field("adapter", &self.limits.adapter_name)
            .field("cqs", &self.cqs.len())
            .field("qps", &self.qps.len())
            .field("srqs", &self.srqs.len())
            .field("gsi", &self.common.gsi())
            .finish_non_exhaustive()
    }
}
