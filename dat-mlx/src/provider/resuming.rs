//! The way from snapshots to the providers of a function and their objects.
//!
//! There are three steps:
//!
//! 1. [`Checked`] compares all numbers of the providers' snapshot with each other and with the tables of the function.
//!    It sends no command, so a refusal leaves the device as it was.
//! 2. The function is resumed, which drains its event queues. Then QP1 and the Ethernet port are compared with the
//!    device's. A refusal stops the device, because the drained events would be lost.
//! 3. The caller resumes the objects, each by the instance that had it. An object comes after those that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dat_core::MAX_INSTANCES;
use dat_core::log_budget::LogBudget;
use dat_core::provider::{
    ProviderError, ProviderEvent, Qpn, QueuePair, QueueSizes, QueuesOf, Registration, ResumedQp,
};
use dat_core::types::MemPrivFlags;
use driver::{DmaBuffer, DmaMemory, Instant, Iova};
use hw_mlx::bounds::MAX_COUNT;
use hw_mlx::cq::CqSnapshot;
use hw_mlx::gid::address_of;
use hw_mlx::gsi::Gsi;
use hw_mlx::mkey::{self, KeyRequest};
use hw_mlx::qp::QpSnapshot;
use hw_mlx::qp::control::{self, ring_sizes};
use hw_mlx::random::{Random, Variants};
use hw_mlx::ring::Lent;
use hw_mlx::srq::{SrqSizes, SrqSnapshot};
use hw_mlx::uar::Doorbells;
use hw_mlx::vport::path_mtu_code;
use hw_mlx::window::{Window, WindowSnapshot};
use hw_mlx::{AsyncEvent, Hca, HcaTables, InstanceSnapshot, MlxError, ParkError, ResumeError};
use mlx_prm::{Opcode, QpState, Qpc};

use super::counts::Registered;
use super::errors::DriverError;
use super::leases::{Lease, Leases};
use super::limits::{keys, limits};
use super::reach::Down;
use super::snapshot::{DownSnapshot, ProviderInstance, ProviderTables, RegionSnapshot};
use super::written::{count, own, own_domains};
use super::{KnownCq, MAX_OWNER, MlxProvider, Region, SharedProvider};
use crate::network::CheckedNetwork;
use crate::queues::{Cq, Qp, Srq};

/// Maximum number of instances that were made, so that the number of a later one does not begin anew.
const MOST_MADE: u32 = 1 << 31;
/// Name of the provider's tables in errors.
const TABLE: &str = "the provider";
/// Maximum number of variants of keys.
const MAX_VARIANTS: usize = 64;
/// Maximum path MTU code: 4096 bytes.
const MAX_PATH_MTU: u8 = 5;
/// Maximum length in bytes of the reason why a function takes no part in the network.
const MAX_REASON: usize = 4096;
/// Mask of numbers of 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

/// State of a resumption that is not finished, which all instances share.
#[derive(Debug)]
pub(super) struct Resuming {
    /// True if all objects of all instances are known.
    is_finished: bool,
    /// Protection domains that were resumed.
    pds: BTreeSet<u32>,
    /// Protection domains of QP1 and of the Ethernet port.
    own_pds: Vec<u32>,
    /// Number of protection domains that are to be resumed.
    wanted_pds: usize,
    leases: Leases,
    /// Buffers of regions, by I/O address. Several regions may share a buffer. The buffer of a region that was refused
    /// stays here, because the device may use it until all keys are known.
    buffers: BTreeMap<u64, DmaBuffer>,
    /// Our addresses by index, removed ones included.
    addresses: BTreeMap<u8, IpAddr>,
}

impl Resuming {
    fn new(provider: &ProviderTables, hca: &HcaTables) -> Result<Self, ResumeError> {
        let own_pds = own_domains(provider);
        let (gsi, port) = own_pds.split_at(1);
        if port.contains(&gsi[0]) {
            let what = format!(
                "QP1 and the Ethernet port have protection domain {:#x}",
                gsi[0]
            );
            return Err(ResumeError::snapshot(TABLE, what));
        }
        let domains = count(hca, Opcode::ALLOC_PD);
        let wanted = domains.checked_sub(own(provider));
        let wanted = wanted.and_then(|wanted| usize::try_from(wanted).ok());
        let Some(wanted_pds) = wanted else {
            let what = format!(
                "the device has {domains} protection domains, fewer than QP1 and the Ethernet port have"
            );
            return Err(ResumeError::snapshot(TABLE, what));
        };
        let addresses = hca.gids.entries.iter();
        Ok(Self {
            is_finished: false,
            pds: BTreeSet::new(),
            own_pds,
            wanted_pds,
            leases: Leases::of(&hca.arena),
            buffers: BTreeMap::new(),
            addresses: addresses
                .map(|one| (one.index, one.address.address))
                .collect(),
        })
    }

    /// Checks that a protection domain was resumed.
    fn check_pd(&self, table: &'static str, pd: u32) -> Result<(), ResumeError> {
        if self.pds.contains(&pd) {
            return Ok(());
        }
        let what = format!("protection domain {pd:#x} was not resumed");
        Err(ResumeError::snapshot(table, what))
    }

    /// Returns memory of a region, and claims its buffer if no other region has.
    fn memory(&mut self, hca: &Hca, region: &RegionSnapshot) -> Result<DmaMemory, ResumeError> {
        /// Name of the table in errors.
        const TABLE: &str = "a region";
        let RegionSnapshot { iova, bytes, .. } = *region;
        let outside =
            || ResumeError::snapshot(TABLE, format!("{bytes:#x} bytes at IOVA {iova:#x}"));
        let lease = self.leases.around(iova, bytes).filter(|_| bytes > 0);
        let Lease {
            iova: first,
            bytes: all,
        } = lease.ok_or_else(outside)?;
        let [offset, bytes, all] = [iova - first, bytes, all].map(usize::try_from);
        let (Ok(offset), Ok(bytes), Ok(all)) = (offset, bytes, all) else {
            return Err(outside());
        };
        let buffer = match self.buffers.get(&first) {
            Some(buffer) => buffer.clone(),
            None => {
                let claimed = hca.arena().claim(Iova(first), all);
                let buffer = claimed.map_err(|error| ResumeError::Claim {
                    table: TABLE,
                    error,
                })?;
                self.buffers.insert(first, buffer.clone());
                buffer
            }
        };
        Ok(DmaMemory::Arena {
            buffer,
            offset,
            bytes,
        })
    }
}

/// Providers whose tables were checked, and which have no function yet.
pub(super) struct Checked<'a> {
    tables: &'a ProviderTables,
    network: Option<CheckedNetwork<'a>>,
    /// Random numbers and variants of keys, of each instance.
    random: Vec<(Random, Variants)>,
    instances_made: u32,
    resuming: Resuming,
}

impl<'a> Checked<'a> {
    /// Checks the tables of the providers of a function against those of the function. Times that have passed must not
    /// be later than `now`. Sends no command.
    ///
    /// # Errors
    /// [`ResumeError::Snapshot`]: numbers are impossible, or contradict each other. [`ResumeError::Device`]: the system
    /// has no random numbers.
    pub(super) fn new(
        tables: &'a ProviderTables,
        hca: &HcaTables,
        now: Instant,
    ) -> Result<Self, ResumeError> {
        let ProviderTables {
            // The device confirms it.
            gsi: _,
            network,
            without_network,
            seed,
            instances_made,
            registrations,
            instances,
        } = tables;
        let (count, its) = (instances.len(), hca.instances.len());
        let made = u32::try_from(count).ok();
        let made = made.and_then(|count| instances_made.checked_add(count));
        if count > MAX_INSTANCES {
            let what = format!("{count} instances; at most {MAX_INSTANCES} in all");
            return Err(ResumeError::snapshot(TABLE, what));
        }
        let is_possible = count == its && count > 0 && (1..=MOST_MADE).contains(instances_made);
        let Some(made) = made.filter(|_| is_possible) else {
            let what = format!(
                "{count} instances, {its} instances of the function, and {instances_made} instances made"
            );
            return Err(ResumeError::snapshot(TABLE, what));
        };
        let is_possible = *registrations <= MAX_COUNT
            && without_network
                .as_ref()
                .is_none_or(|why| network.is_none() && why.len() <= MAX_REASON);
        if !is_possible {
            return Err(ResumeError::snapshot(
                TABLE,
                format!(
                    "{registrations} regions registered so far, in the network: {}, reason if not: {without_network:?}",
                    network.is_some()
                ),
            ));
        }
        for (one, its) in instances.iter().zip(&hca.instances) {
            check_instance(one, its, hca, now)?;
        }
        let resuming = Resuming::new(tables, hca)?;
        // No instance has used these streams before, so nothing that was drawn comes again.
        let first = *instances_made;
        let stream =
            |what: &str, number| Random::of_function(*seed, &format!("{what} of {number}"));
        let seed_of_network = stream("network", first)?.number();
        let network = network.as_ref().map(|it| {
            // Instances that have not handled the port's last event do not know its state.
            let mut known = instances.iter().map(|one| one.down.is_none());
            let is_up = known.any(|is_up| is_up == it.neighbours.up) == it.neighbours.up;
            CheckedNetwork::new(it, hca, (seed_of_network, is_up), now)
        });
        let random = (first..made).zip(instances).map(|(number, one)| {
            let variants = Variants::behind(stream("variants", number)?, &one.recent_variants);
            Ok((stream("numbers", number)?, variants))
        });
        let random = random.collect::<Result<_, ResumeError>>()?;
        Ok(Self {
            tables,
            network: network.transpose()?,
            random,
            instances_made: made,
            resuming,
        })
    }

    /// Returns the number of instances.
    pub(super) fn instances(&self) -> usize {
        self.tables.instances.len()
    }

    /// Makes QP1 and the network again, and the providers, in their order. If it is refused, the function is stopped.
    ///
    /// # Errors
    /// As [`Gsi::resume`] and [`Ethernet::resume`](hw_mlx::ethernet::Ethernet::resume).
    pub(super) fn resume(self, mut hcas: Vec<Hca>) -> Result<Vec<MlxProvider>, ResumeError> {
        let Self {
            tables,
            network,
            random,
            instances_made,
            resuming,
        } = self;
        // PANIC: `Checked::new` refuses tables without instances, and there are as many as in the tables.
        let hca = hcas.first_mut().expect("an instance");
        // QP1 and the port belong to no instance.
        let gsi = Gsi::resume(hca, &tables.gsi)?;
        let network = network.map(|it| it.resume(hca)).transpose()?;
        let common = SharedProvider {
            mads_dropped: gsi.dropped().clone(),
            network_counters: network.as_ref().map(|network| network.counters().clone()),
            gsi: Mutex::new(gsi),
            gsi_pd: tables.gsi.pd,
            network: network.map(Mutex::new),
            without_network: tables.without_network.clone(),
            seed: tables.seed,
            made: AtomicU32::new(instances_made),
            registered: Registered::of(tables.registrations),
            is_resuming: AtomicBool::new(true),
            asked: Arc::default(),
        };
        let (common, resuming) = (Arc::new(common), Arc::new(Mutex::new(resuming)));
        let all = hcas.into_iter().zip(&tables.instances).zip(random);
        let all = all.map(|((hca, one), random)| {
            let shared = (Arc::clone(&common), Arc::clone(&resuming));
            instance(hca, one, random, shared)
        });
        Ok(all.collect())
    }
}

/// Makes an instance of a function that is resumed.
fn instance(
    hca: Hca,
    tables: &ProviderInstance,
    (random, variants): (Random, Variants),
    (common, resuming): (Arc<SharedProvider>, Arc<Mutex<Resuming>>),
) -> MlxProvider {
    let is_joined = common.network.is_some();
    let mut limits = limits(&hca, is_joined);
    // Fewer mappings may be left than at the opening, but those that exist are the arena's.
    limits.max_regions = tables.max_regions.min(keys(&hca, is_joined));
    // The MTU may have become smaller, as it may for a function that was not parked.
    limits.mtu = tables.path_mtu;
    let down = tables.down.map(|it| {
        let DownSnapshot { since, trains } = it;
        Down { since, trains }
    });
    MlxProvider {
        doorbells: Doorbells::new(hca.uar().clone()),
        hca,
        common,
        limits,
        cqs: BTreeMap::new(),
        qps: BTreeMap::new(),
        srqs: BTreeMap::new(),
        events: tables.events.iter().copied().collect(),
        down,
        port_unsure: tables.port_unsure,
        random,
        variants,
        log_mads_dropped: LogBudget::default(),
        resuming: Some(resuming),
    }
}

/// Checks the tables of an instance against those of the function.
fn check_instance(
    one: &ProviderInstance,
    its: &InstanceSnapshot,
    hca: &HcaTables,
    now: Instant,
) -> Result<(), ResumeError> {
    let ProviderInstance {
        recent_variants,
        max_regions,
        path_mtu,
        events,
        down,
        // It matters only until the port's next event.
        port_unsure: _,
    } = one;
    let is_possible = recent_variants.len() <= MAX_VARIANTS
        && *max_regions > 0
        && (path_mtu_code(hca.port.mtu)..=MAX_PATH_MTU).contains(path_mtu)
        && down.is_none_or(|down| down.since <= now);
    if !is_possible {
        return Err(ResumeError::snapshot(
            TABLE,
            format!(
                "{} variants, at most {max_regions} regions at a time, path MTU code {path_mtu} on a port with MTU {}, port down: {down:?}, the time is {now:?}",
                recent_variants.len(),
                hca.port.mtu
            ),
        ));
    }
    if let Some(event) = events.iter().find(|event| !is_possible_event(event)) {
        return Err(ResumeError::snapshot(TABLE, format!("event {event:?}")));
    }
    check_link(down.is_none(), hca.link_up, its)
}

/// Returns whether an event can be one that a parked provider has.
fn is_possible_event(event: &ProviderEvent) -> bool {
    match *event {
        ProviderEvent::CommunicationEstablished { owner }
        | ProviderEvent::QpError { owner, .. }
        | ProviderEvent::SrqLastBuffer { owner } => owner <= MAX_OWNER,
        ProviderEvent::CqEntries { .. }
        | ProviderEvent::CqError { .. }
        | ProviderEvent::SrqLimit { .. }
        | ProviderEvent::SrqError { .. }
        | ProviderEvent::Network(_)
        | ProviderEvent::AddressRemoved { .. }
        | ProviderEvent::Unreachable { .. } => true,
        // The function is then not parked.
        ProviderEvent::DeviceDead | ProviderEvent::DeviceRequested => false,
    }
}

/// Checks that the instance knows the state of the link (`link_up`), or has an event of it that was not fetched. The
/// provider knows the state `is_up`.
fn check_link(is_up: bool, link_up: bool, instance: &InstanceSnapshot) -> Result<(), ResumeError> {
    let mut latest = instance.events.iter().rev();
    let last = latest.find(|it| matches!(it, AsyncEvent::PortUp | AsyncEvent::PortDown));
    let becomes = last.map_or(is_up, |event| *event == AsyncEvent::PortUp);
    if becomes == link_up || instance.events_lost > 0 {
        return Ok(());
    }
    let what = format!("the link is up: {link_up}, and for the instance: {becomes}");
    Err(ResumeError::snapshot(TABLE, what))
}

/// Returns the state of a resumption that is not finished.
fn unfinished(
    resuming: Option<&Arc<Mutex<Resuming>>>,
) -> Result<MutexGuard<'_, Resuming>, ResumeError> {
    let resuming = resuming.map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
    resuming.filter(|it| !it.is_finished).ok_or_else(|| {
        ResumeError::snapshot("an object", "it comes after the end of the resumption")
    })
}

impl MlxProvider {
    /// Refuses a call that sends or changes something while a resumption is not finished.
    pub(super) fn check_resumed(&self) -> Result<(), ProviderError> {
        match self.resuming {
            None => Ok(()),
            Some(_) => Err(ParkError::Unfinished.into_dat()),
        }
    }

    /// Returns the state of the resumption.
    fn resuming(&self) -> Result<MutexGuard<'_, Resuming>, ResumeError> {
        unfinished(self.resuming.as_ref())
    }

    /// Makes a protection domain again. The device has no query for it. It is confirmed when objects that name it are
    /// compared with the device's.
    pub(super) fn resume_domain(&mut self, pd: u32) -> Result<u32, ResumeError> {
        let mut resuming = self.resuming()?;
        let why = if pd > NUMBER_MASK {
            "is no number of 24 bits"
        } else if resuming.own_pds.contains(&pd) {
            "is that of QP1 or of the Ethernet port"
        } else if resuming.pds.insert(pd) {
            return Ok(pd);
        } else {
            "has an owner already"
        };
        Err(ResumeError::snapshot(
            "a protection domain",
            format!("{pd:#x} {why}"),
        ))
    }

    /// Makes a region again.
    pub(super) fn resume_key(
        &mut self,
        pd: u32,
        access: MemPrivFlags,
        snapshot: &RegionSnapshot,
    ) -> Result<(Registration<Region>, DmaMemory), ResumeError> {
        let Self { hca, resuming, .. } = self;
        let mut resuming = unfinished(resuming.as_ref())?;
        resuming.check_pd("a region", pd)?;
        let memory = resuming.memory(hca, snapshot)?;
        let RegionSnapshot {
            index,
            variant,
            // The memory has them.
            iova: _,
            bytes,
        } = *snapshot;
        let request = KeyRequest {
            pd,
            address: memory.address(),
            bytes,
            access,
            variant,
            may_have_windows: self.limits.max_windows > 0,
        };
        let arena = hca.arena().downgrade();
        // If this is refused, `Resuming` keeps the memory: another snapshot may be that of the region.
        mkey::confirm(hca, index, &request)?;
        let lent = Lent::new(memory.clone(), arena);
        self.common.registered.add_again(bytes);
        let region = Region {
            index,
            variant,
            memory: lent,
        };
        Ok((region.registration(access), memory))
    }

    /// Makes a window again, and compares its protection domain with the device's.
    pub(super) fn resume_window_of(
        &mut self,
        pd: u32,
        outstanding_binds: u32,
        snapshot: &WindowSnapshot,
    ) -> Result<Window, ResumeError> {
        const TABLE: &str = "a memory window";
        self.resuming()?.check_pd(TABLE, pd)?;
        let index = snapshot.index;
        let devices = mkey::query(&mut self.hca, index)?.pd();
        if devices != pd {
            return Err(ResumeError::changed(format!(
                "window {index:#x} is of protection domain {devices:#x}, and not {pd:#x}"
            )));
        }
        // After 256 binds any of the keys can be the last one that the device has.
        let binds = u8::try_from(outstanding_binds).unwrap_or(u8::MAX);
        Window::resume(&mut self.hca, snapshot, binds)
    }

    /// Makes a completion queue again. Its events are counted when the resumption is finished.
    pub(super) fn resume_completions(
        &mut self,
        owner: u32,
        snapshot: &CqSnapshot,
    ) -> Result<Cq, ResumeError> {
        drop(self.resuming()?);
        if self.cqs.len() >= self.limits.max_cqs as usize {
            let what = format!(
                "{:#x}: there are {} others, and at most {} in all, one event each",
                snapshot.cqn,
                self.cqs.len(),
                self.limits.max_cqs
            );
            return Err(ResumeError::snapshot("a completion queue", what));
        }
        let cq = hw_mlx::cq::Cq::resume(&mut self.hca, &self.doorbells, snapshot)?;
        let known = KnownCq {
            sequence: cq.sequence(),
            owner,
            watched: false,
        };
        self.cqs.insert(cq.cqn(), known);
        Ok(Cq(cq))
    }

    /// Makes a shared receive queue again, and compares its sizes with those that the caller knows.
    pub(super) fn resume_receives(
        &mut self,
        pd: u32,
        (max_recvs, max_segments): (u32, u32),
        owner: u32,
        snapshot: &SrqSnapshot,
    ) -> Result<Srq, ResumeError> {
        const TABLE: &str = "a shared receive queue";
        self.resuming()?.check_pd(TABLE, pd)?;
        let sizes = SrqSizes::new(max_recvs, max_segments);
        // The ring has room for more receives than were asked for, so that their number can be raised.
        let is_its = sizes.is_some_and(|sizes| {
            let ours = SrqSizes {
                entries: snapshot.sizes.entries,
                ..sizes
            };
            ours == snapshot.sizes && sizes.entries <= snapshot.sizes.entries
        });
        if snapshot.pd != pd || !is_its {
            return Err(ResumeError::snapshot(
                TABLE,
                format!(
                    "{:#x}: protection domain {:#x} and {:?}, and not {pd:#x} with {max_recvs} receives of {max_segments} segments",
                    snapshot.rmpn, snapshot.pd, snapshot.sizes
                ),
            ));
        }
        let srq = hw_mlx::srq::Srq::resume(&mut self.hca, snapshot)?;
        self.srqs.insert(srq.rmpn(), owner);
        Ok(Srq(srq))
    }

    /// Makes a queue pair again, and compares it with what the caller knows of it.
    pub(super) fn resume_pair(
        &mut self,
        pd: u32,
        queues: &QueuesOf<'_, Self>,
        sizes: QueueSizes,
        owner: u32,
        snapshot: &QpSnapshot,
    ) -> Result<Qp, ResumeError> {
        const TABLE: &str = "a queue pair";
        self.resuming()?.check_pd(TABLE, pd)?;
        let srq = queues.srq.map(|srq| &srq.0);
        let rings = ring_sizes(&sizes, srq.is_some())?;
        let ours = (
            (pd, owner),
            [queues.request_cq, queues.recv_cq].map(|cq| cq.0.cqn()),
            rings,
        );
        let its = (
            (snapshot.pd, snapshot.owner),
            [snapshot.cqn_send, snapshot.cqn_receive],
            (snapshot.send.sizes, snapshot.recv.sizes),
        );
        if owner > MAX_OWNER {
            let what = format!("owner {owner:#x}; the largest is {MAX_OWNER:#x}");
            return Err(ResumeError::snapshot(TABLE, what));
        }
        if ours != its {
            return Err(ResumeError::snapshot(
                TABLE,
                format!(
                    "{:#x}: protection domain, owner, completion queues and rings are {its:x?}, and not {ours:x?}",
                    snapshot.qpn
                ),
            ));
        }
        let peer = self.peer_of(snapshot)?;
        let qp = hw_mlx::qp::Qp::resume(&mut self.hca, &self.doorbells, snapshot, srq, peer)?;
        self.qps.insert(qp.number(), owner);
        Ok(Qp(qp))
    }

    /// Marks the peer of a queue pair as in use, if it has one and the function takes part in the network. The device
    /// knows the peer.
    fn peer_of(&mut self, snapshot: &QpSnapshot) -> Result<Option<Arc<()>>, ResumeError> {
        let index = snapshot.source_gid_index;
        let known = |index| self.resuming().ok()?.addresses.get(&index).copied();
        let source = index.and_then(known);
        let Some(source) = source.filter(|_| self.common.network.is_some()) else {
            return Ok(None);
        };
        let context = self.query_qp(snapshot.qpn)?;
        let destination = address_of(*context.primary_address_path().rgid_rip());
        let mut network = self.common.network();
        Ok(network
            .as_mut()
            .map(|network| network.resume_peer(source, destination)))
    }

    /// Reads the context of a queue pair from the device.
    fn query_qp(&mut self, qpn: u32) -> Result<Qpc, ResumeError> {
        if qpn > NUMBER_MASK {
            return Err(ResumeError::snapshot(
                "a queue pair",
                format!("number {qpn:#x}"),
            ));
        }
        let context = control::query(&mut self.hca, Qpn::new(qpn));
        Ok(context.map_err(MlxError::from)?)
    }

    /// Returns the state of a queue pair in the device.
    pub(super) fn state_of(&mut self, qp: &Qp) -> Result<ResumedQp, ResumeError> {
        let context = self.query_qp(qp.number().get())?;
        // CAST: the field has four bits.
        #[expect(clippy::cast_possible_truncation, reason = "four bits")]
        let state = QpState(context.state() as u8);
        Ok(match state {
            QpState::RST | QpState::INIT => ResumedQp::Init,
            QpState::RTR => ResumedQp::ReadyToReceive,
            QpState::RTS => ResumedQp::ReadyToSend,
            _ => ResumedQp::Error,
        })
    }

    /// Ends the resumption: all objects of all instances are known, so this one collects events from now on. The first
    /// call of an instance compares the objects with those of the device.
    pub(super) fn finish(&mut self) -> Result<(), ResumeError> {
        let Some(resuming) = self.resuming.clone() else {
            return Ok(());
        };
        let mut resuming = resuming.lock().unwrap_or_else(PoisonError::into_inner);
        if !resuming.is_finished {
            self.finish_function(&resuming)?;
            resuming.is_finished = true;
        }
        drop(resuming);
        self.resuming = None;
        self.collect();
        // Datagrams and frames may have come meanwhile, for which there is no further event.
        self.hca.call_again();
        Ok(())
    }

    /// Checks that all objects of the function are known, and ends its resumption.
    fn finish_function(&mut self, resuming: &Resuming) -> Result<(), ResumeError> {
        let (resumed, wanted) = (resuming.pds.len(), resuming.wanted_pds);
        if resumed != wanted {
            let what = format!("{resumed} protection domains of {wanted} were resumed");
            return Err(ResumeError::snapshot(TABLE, what));
        }
        if let Err((made, regions)) = self.common.registered.check() {
            let what = format!("{regions} regions exist, and only {made} were registered");
            return Err(ResumeError::snapshot(TABLE, what));
        }
        let freed = self.hca.finish_resuming()?;
        if !freed.is_empty() {
            tracing::debug!(
                function = self.hca.name(),
                ranges = freed.len(),
                "memory that only the previous process used was freed"
            );
        }
        self.common.is_resuming.store(false, Ordering::Release);
        Ok(())
    }
}
