//! Providers that outlive their process: all instances of a function, together.
//!
//! The device goes on alone: it acknowledges, fills posted receives, and writes completions. The objects of the data
//! path are those of [`hw_mlx`], each with its own snapshot. This module adds the state above them: events that were
//! not fetched, the network, the state of the port, and the regions.
//!
//! ```text
//!   begin_parking     the quiet point of the function; all of its instances
//!   park_*            objects are written out, and counted
//!   finish_parking    QP1 and the network are written out; no object is missing; the function is parked
//!   resume            tables are checked; the function, QP1 and the network are resumed
//!   resume_*          objects are resumed, each by its instance, and count as known
//!   finish_resuming   all objects of the device are known; events are collected again, by each instance
//! ```
//!
//! An event of a completion queue must be counted exactly once. A wrong count makes the queue's next arm request wrong,
//! and the device ignores wrong requests without an error. So the provider collects no events between `resume` and
//! `finish_resuming`. The function keeps all events until then.
//!
//! A parking that is cancelled goes on with other instances of the function. Wakers, descriptors and handles
//! ([`OpenedProvider`](super::OpenedProvider)) of the parked instances do not work any more. The caller asks the new
//! instances for others.
//!
//! Random numbers are not continued. A process draws from new seeds of the system. With a configured seed, a resumed
//! provider draws like a further instance of the function, from a stream that no instance has used before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use dat_core::log_budget::LogBudget;
use dat_core::provider::{
    Limits, Nanos, ParkProvider, Provider, ProviderError, ProviderEvent, Qpn, QueueSizes, QueuesOf,
    Registration, ResumedQp,
};
use dat_core::types::MemPrivFlags;
use driver::handover::Claimed;
use driver::{BackendSnapshot, Clock, DmaMemory, Instant, NamedFd, RealClock};
use hw_mlx::cq::CqSnapshot;
use hw_mlx::qp::QpSnapshot;
use hw_mlx::random::{Random, Variants};
use hw_mlx::srq::SrqSnapshot;
use hw_mlx::uar::Doorbells;
use hw_mlx::window::{Window, WindowSnapshot};
use hw_mlx::{Hca, NotCancelled, NotParked, NotResumed, ParkError, ParkingHca, UnclaimedHca};

use super::errors::{DriverError, ForDat};
use super::reach::Down;
use super::resuming::{Checked, Resuming};
use super::snapshot::{
    DownSnapshot, ProviderInstance, ProviderSnapshot, ProviderTables, RegionSnapshot,
};
use super::written::Written;
use super::{KnownCq, MlxProvider, Region, SharedProvider};
use crate::queues::{Cq, Qp, Srq};

/// A function at its quiet point, with its instances. If it is dropped, the function is stopped.
#[must_use = "the function is stopped if this is dropped"]
#[derive(Debug)]
pub struct ParkingProvider {
    /// The function. `None`: a cancellation has failed after it had taken the function, which was stopped then.
    hca: Option<ParkingHca>,
    stage: Option<Stage>,
    facts: Facts,
    written: Written,
    /// Time at which the parking began, on the function's clock.
    begun: Instant,
}

/// State of the instances besides what they share.
#[derive(Debug)]
struct Facts {
    /// The function's name, for people.
    name: String,
    instances: Vec<ProviderInstance>,
}

/// An instance without its part of the function.
struct Rest {
    doorbells: Doorbells,
    common: Arc<SharedProvider>,
    limits: Limits,
    cqs: BTreeMap<u32, KnownCq>,
    qps: BTreeMap<Qpn, u32>,
    srqs: BTreeMap<u32, u32>,
    events: VecDeque<ProviderEvent>,
    down: Option<Down>,
    port_unsure: bool,
    random: Random,
    variants: Variants,
    log_mads_dropped: LogBudget,
    resuming: Option<Arc<Mutex<Resuming>>>,
}

impl Rest {
    /// Takes an instance apart.
    fn of(provider: MlxProvider) -> (Hca, Self) {
        let MlxProvider {
            hca,
            doorbells,
            common,
            limits,
            cqs,
            qps,
            srqs,
            events,
            down,
            port_unsure,
            random,
            variants,
            log_mads_dropped,
            resuming,
        } = provider;
        let rest = Self {
            doorbells,
            common,
            limits,
            cqs,
            qps,
            srqs,
            events,
            down,
            port_unsure,
            random,
            variants,
            log_mads_dropped,
            resuming,
        };
        (hca, rest)
    }

    /// Makes the instance again.
    fn with(self, hca: Hca) -> MlxProvider {
        let Self {
            doorbells,
            common,
            limits,
            cqs,
            qps,
            srqs,
            events,
            down,
            port_unsure,
            random,
            variants,
            log_mads_dropped,
            resuming,
        } = self;
        MlxProvider {
            hca,
            doorbells,
            common,
            limits,
            cqs,
            qps,
            srqs,
            events,
            down,
            port_unsure,
            random,
            variants,
            log_mads_dropped,
            resuming,
        }
    }

    /// Returns what the snapshot has of the instance.
    fn written(self) -> ProviderInstance {
        let down = self.down.map(|it| {
            let Down { since, trains } = it;
            DownSnapshot { since, trains }
        });
        ProviderInstance {
            recent_variants: self.variants.recent(),
            max_regions: self.limits.max_regions,
            path_mtu: self.limits.mtu,
            events: self.events.into(),
            down,
            port_unsure: self.port_unsure,
        }
    }
}

/// State that all instances of the function share.
enum Stage {
    /// Nothing was written out.
    Shared(Arc<SharedProvider>),
    /// All was written out.
    Written(Box<ProviderTables>),
}

impl Stage {
    /// Writes QP1 and the network out, unless that was done before.
    ///
    /// # Errors
    /// The unchanged stage, and the reason: another thread still drops an instance.
    fn write_out(
        self,
        facts: &Facts,
        hca: &ParkingHca,
    ) -> Result<Box<ProviderTables>, (Self, ProviderError)> {
        let shared = match self {
            Self::Shared(shared) => shared,
            Self::Written(tables) => return Ok(tables),
        };
        let SharedProvider {
            gsi,
            // QP1 has it, too.
            gsi_pd: _,
            network,
            without_network,
            seed,
            made,
            registered,
            // `Hca::begin_parking` refuses an unfinished resumption.
            is_resuming: _,
            // Copies of counters of QP1 and of the network.
            mads_dropped: _,
            network_counters: _,
            asked: _,
        } = alone(shared).map_err(|shared| {
            let name = &facts.name;
            let why = format!("another thread is about to drop an instance of {name}");
            (Self::Shared(shared), ProviderError::Device(why))
        })?;
        let gsi = gsi.into_inner().unwrap_or_else(PoisonError::into_inner);
        let network = network.map(|it| it.into_inner().unwrap_or_else(PoisonError::into_inner));
        // PANIC: `Hca::begin_parking` refuses a function with queues that have failed, and nothing was received since.
        let gsi = gsi.park(hca).map_err(|refused| refused.1);
        let gsi = gsi.expect("a QP1 that works");
        let network = network.map(|network| {
            // PANIC: as above.
            network.park(hca).expect("a port that works")
        });
        Ok(Box::new(ProviderTables {
            gsi,
            network,
            without_network,
            seed,
            instances_made: made.into_inner(),
            registrations: registered.made(),
            instances: facts.instances.clone(),
        }))
    }
}

/// Takes the state of all instances from the last one.
///
/// # Errors
/// The state: another thread has a reference to it.
fn alone(shared: Arc<SharedProvider>) -> Result<SharedProvider, Arc<SharedProvider>> {
    // Readers of counters have a reference only while they hold this lock.
    let asked = Arc::clone(&shared.asked);
    let _nobody_asks = asked.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::try_unwrap(shared)
}

impl ParkingProvider {
    /// Writes QP1 and the network out, and returns them with the function.
    ///
    /// # Errors
    /// The parking, and the reason.
    #[expect(clippy::result_large_err, reason = "once in a provider's life")]
    fn written_out(
        mut self,
    ) -> Result<(ParkingHca, Box<ProviderTables>, Self), (Self, ProviderError)> {
        let Some(hca) = self.hca.take() else {
            let name = &self.facts.name;
            let why = format!("{name} was stopped, because the parking could not be cancelled");
            return Err((self, ProviderError::Dead(why)));
        };
        // PANIC: only this function takes it, and it puts a stage back.
        let stage = self.stage.take().expect("a stage");
        match stage.write_out(&self.facts, &hca) {
            Ok(tables) => {
                self.stage = Some(Stage::Written(tables.clone()));
                Ok((hca, tables, self))
            }
            Err((stage, error)) => {
                (self.hca, self.stage) = (Some(hca), Some(stage));
                Err((self, error))
            }
        }
    }
}

/// A function that was checked without a command, with its instances, and is not claimed. If it is dropped, the
/// function stays parked.
#[must_use]
pub struct UnclaimedProvider<'a> {
    hca: UnclaimedHca,
    checked: Checked<'a>,
    /// Number of descriptors that were given.
    given: usize,
}

impl ParkProvider for MlxProvider {
    type Parking = ParkingProvider;
    type Snapshot = ProviderSnapshot;
    type Handover = Vec<NamedFd>;
    type Proof = Claimed;
    type Unclaimed<'a> = UnclaimedProvider<'a>;
    type PdSnapshot = u32;
    type CqSnapshot = CqSnapshot;
    type SrqSnapshot = SrqSnapshot;
    type QpSnapshot = QpSnapshot;
    type RegionSnapshot = RegionSnapshot;
    type WindowSnapshot = WindowSnapshot;

    fn can_park_region(&self, region: &Region, memory: &DmaMemory) -> Result<(), ProviderError> {
        let ours = self.hca.name();
        let place = match region.memory() {
            DmaMemory::Lent(_) => {
                return Err(ProviderError::Foreign(format!(
                    "the program has lent the memory at {:#x} to {ours}, and no other process has it: use memory of the adapter's arena instead",
                    region.memory().address()
                )));
            }
            arena @ DmaMemory::Arena { .. } => (arena.iova().0, arena.len() as u64),
        };
        if (memory.iova().0, memory.len() as u64) != place {
            return Err(ProviderError::Foreign(format!(
                "the region with key {:#x} is not that of the memory at {:#x}",
                region.key(),
                memory.address()
            )));
        }
        if self.resuming.is_some() {
            // Memory of the arena may have no owner yet.
            return Err(ParkError::Unfinished.into_dat());
        }
        if self.hca.arena().has(memory.iova(), memory.len()) {
            return Ok(());
        }
        Err(ProviderError::Foreign(format!(
            "the memory at {:#x} is outside the arena of {ours}, and only that arena is handed over: use memory of that arena instead",
            memory.address()
        )))
    }

    fn owners(memory: &DmaMemory) -> Option<(u64, usize)> {
        memory.owners().map(|(buffer, count)| (buffer.0, count))
    }

    fn begin_parking(
        mut instances: Vec<Self>,
    ) -> Result<ParkingProvider, (Vec<Self>, ProviderError)> {
        if let Err(error) = check_instances(&instances) {
            return Err((instances, error));
        }
        // Queues that have failed are repaired here if that is due.
        instances.iter_mut().for_each(Provider::progress);
        let (hcas, rests): (Vec<Hca>, Vec<Rest>) = instances.into_iter().map(Rest::of).unzip();
        // PANIC: `check_instances` refuses an empty list.
        let (first, common) = (&hcas[0], Arc::clone(&rests[0].common));
        let (name, begun) = (first.name().to_owned(), first.now());
        match Hca::begin_parking_all(hcas) {
            Ok(hca) => Ok(ParkingProvider {
                hca: Some(hca),
                begun,
                stage: Some(Stage::Shared(common)),
                facts: Facts {
                    name,
                    instances: rests.into_iter().map(Rest::written).collect(),
                },
                written: Written::default(),
            }),
            Err(refused) => {
                let NotParked {
                    instances: hcas,
                    error,
                    ..
                } = *refused;
                // `Hca::begin_parking_all` returns the instances in their order.
                let unchanged = rests.into_iter().zip(hcas);
                let unchanged = unchanged.map(|(rest, hca)| rest.with(hca));
                Err((unchanged.collect(), error.into_dat()))
            }
        }
    }

    fn park_pd(parking: &mut ParkingProvider, pd: u32) -> u32 {
        parking.written.add_pd(pd);
        pd
    }

    fn park_cq(parking: &mut ParkingProvider, cq: Cq) -> CqSnapshot {
        parking.written.cqs += 1;
        cq.0.park(parking.quiet())
    }

    fn park_srq(parking: &mut ParkingProvider, srq: Srq) -> SrqSnapshot {
        parking.written.srqs += 1;
        srq.0.park(parking.quiet())
    }

    fn park_qp(parking: &mut ParkingProvider, qp: Qp) -> QpSnapshot {
        parking.written.qps += 1;
        qp.0.park(parking.quiet())
    }

    fn park_region(
        parking: &mut ParkingProvider,
        mut region: Region,
        memory: DmaMemory,
    ) -> RegionSnapshot {
        drop(memory);
        parking.written.keys += 1;
        // The memory is the other process's from now on.
        region.memory.returned();
        let memory = region.memory();
        RegionSnapshot {
            index: region.index,
            variant: region.variant,
            iova: memory.iova().0,
            // CAST: widening, on every target of the driver.
            bytes: memory.len() as u64,
        }
    }

    fn park_window(parking: &mut ParkingProvider, window: Window) -> WindowSnapshot {
        parking.written.keys += 1;
        window.park(parking.quiet())
    }

    fn finish_parking(
        parking: ParkingProvider,
    ) -> Result<(ProviderSnapshot, Vec<NamedFd>), (ParkingProvider, ProviderError)> {
        let (hca, tables, mut parking) = parking.written_out()?;
        let checked = parking.written.check(hca.tables(), &tables);
        // The next process must not be the first one that finds a contradiction.
        let checked = checked.and_then(|()| {
            Checked::new(&tables, hca.tables(), parking.begun)
                .map(drop)
                .for_dat()
        });
        if let Err(error) = checked {
            parking.hca = Some(hca);
            return Err((parking, error));
        }
        match hca.finish() {
            Ok((hca, descriptors)) => {
                let tables = *tables;
                Ok((ProviderSnapshot { hca, tables }, descriptors))
            }
            Err(refused) => {
                let NotParked {
                    parking: hca,
                    error,
                    ..
                } = *refused;
                parking.hca = hca;
                Err((parking, error.into_dat()))
            }
        }
    }

    fn cancel_parking(
        parking: ParkingProvider,
    ) -> Result<Vec<Self>, (ParkingProvider, ProviderError)> {
        let (hca, tables, mut parking) = parking.written_out()?;
        let checked = match Checked::new(&tables, hca.tables(), parking.begun) {
            Ok(checked) => checked,
            Err(error) => {
                parking.hca = Some(hca);
                return Err((parking, error.into_dat()));
            }
        };
        match hca.cancel() {
            // A refusal of QP1 or of the port has stopped the function, so the parking has none any more.
            Ok(instances) => checked
                .resume(instances)
                .map_err(|error| (parking, error.into_dat())),
            Err(refused) => {
                let NotCancelled {
                    parking: hca,
                    error,
                } = *refused;
                parking.hca = Some(hca);
                Err((parking, error.into_dat()))
            }
        }
    }

    fn check(
        snapshot: &ProviderSnapshot,
        handover: Vec<NamedFd>,
    ) -> Result<UnclaimedProvider<'_>, (Vec<NamedFd>, ProviderError)> {
        let ProviderSnapshot { hca, tables } = snapshot;
        let given = handover.len();
        let check = |now| Checked::new(tables, &hca.tables, now);
        // A model in this process has a clock of its own, which comes with its function. The others have the machine's.
        let early = match &hca.function.backend {
            BackendSnapshot::InProcess(_) => None,
            BackendSnapshot::VfioUser(_) | BackendSnapshot::Vfio(_) => {
                match check(RealClock::new().now()) {
                    Ok(checked) => Some(checked),
                    Err(error) => return Err((handover, error.into_dat())),
                }
            }
        };
        let unclaimed = match Hca::check(hca, handover) {
            Ok(unclaimed) => unclaimed,
            Err(refused) => return Err((refused.descriptors, refused.error.into_dat())),
        };
        match early.map_or_else(|| check(unclaimed.now()), Ok) {
            Ok(checked) => Ok(UnclaimedProvider {
                hca: unclaimed,
                checked,
                given,
            }),
            Err(error) => Err((unclaimed.park(), error.into_dat())),
        }
    }

    fn instances(unclaimed: &UnclaimedProvider<'_>) -> usize {
        unclaimed.checked.instances()
    }

    fn give_back(unclaimed: UnclaimedProvider<'_>) -> Vec<NamedFd> {
        unclaimed.hca.park()
    }

    fn time_of(unclaimed: &UnclaimedProvider<'_>) -> Nanos {
        unclaimed.hca.now().0
    }

    fn go_on(
        unclaimed: UnclaimedProvider<'_>,
        claimed: &Claimed,
    ) -> Result<Vec<Self>, (Option<Vec<NamedFd>>, ProviderError)> {
        let UnclaimedProvider {
            hca,
            checked,
            given,
        } = unclaimed;
        match hca.go_on(claimed) {
            // A refusal of QP1 or of the port has stopped the function, so there are no descriptors to give back.
            Ok(instances) => checked
                .resume(instances)
                .map_err(|error| (None, error.into_dat())),
            Err(refused) => {
                let NotResumed {
                    descriptors, error, ..
                } = *refused;
                // None are left if the function was closed.
                let goes_on = given == descriptors.len();
                Err((goes_on.then_some(descriptors), error.into_dat()))
            }
        }
    }

    fn resume_pd(&mut self, snapshot: &u32) -> Result<u32, ProviderError> {
        self.resume_domain(*snapshot).for_dat()
    }

    fn resume_region(
        &mut self,
        pd: u32,
        access: MemPrivFlags,
        snapshot: &RegionSnapshot,
    ) -> Result<(Registration<Region>, DmaMemory), ProviderError> {
        self.resume_key(pd, access, snapshot).for_dat()
    }

    fn resume_window(
        &mut self,
        pd: u32,
        outstanding_binds: u32,
        snapshot: &WindowSnapshot,
    ) -> Result<Window, ProviderError> {
        self.resume_window_of(pd, outstanding_binds, snapshot)
            .for_dat()
    }

    fn resume_cq(&mut self, owner: u32, snapshot: &CqSnapshot) -> Result<Cq, ProviderError> {
        self.resume_completions(owner, snapshot).for_dat()
    }

    fn resume_srq(
        &mut self,
        pd: u32,
        max_recvs: u32,
        max_segments: u32,
        owner: u32,
        snapshot: &SrqSnapshot,
    ) -> Result<Srq, ProviderError> {
        self.resume_receives(pd, (max_recvs, max_segments), owner, snapshot)
            .for_dat()
    }

    fn resume_qp(
        &mut self,
        pd: u32,
        queues: QueuesOf<'_, Self>,
        sizes: QueueSizes,
        owner: u32,
        snapshot: &QpSnapshot,
    ) -> Result<Qp, ProviderError> {
        self.resume_pair(pd, &queues, sizes, owner, snapshot)
            .for_dat()
    }

    fn qp_state(&mut self, qp: &Qp) -> Result<ResumedQp, ProviderError> {
        self.state_of(qp).for_dat()
    }

    fn finish_resuming(&mut self) -> Result<(), ProviderError> {
        self.finish().for_dat()
    }
}

/// Refuses instances that are not all of one function.
fn check_instances(instances: &[MlxProvider]) -> Result<(), ProviderError> {
    let Some(first) = instances.first() else {
        return Err(ParkError::NoInstance.into_dat());
    };
    let is_other = |one: &&MlxProvider| !Arc::ptr_eq(&one.common, &first.common);
    if let Some(other) = instances.iter().find(is_other) {
        let (function, other) = (first.hca.name().to_owned(), other.hca.name().to_owned());
        return Err(ParkError::OtherFunction { function, other }.into_dat());
    }
    // Readers of counters have a reference only while they hold this lock.
    let alone = first.common.asked.lock();
    let count = Arc::strong_count(&first.common);
    drop(alone);
    let given = instances.len();
    if count > given {
        return Err(ParkError::Instances { count, given }.into_dat());
    }
    Ok(())
}

impl ParkingProvider {
    /// Returns the function at its quiet point.
    fn quiet(&self) -> &ParkingHca {
        // PANIC: only a cancellation that fails leaves none, and all objects were written out before it.
        self.hca.as_ref().expect("a function at its quiet point")
    }
}

impl core::fmt::Debug for UnclaimedProvider<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UnclaimedProvider")
            .field("hca", &self.hca)
            .finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Stage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Shared(_) => "Shared",
            Self::Written(_) => "Written",
        })
    }
}
