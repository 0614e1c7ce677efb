//! Instances that outlive their process.
//!
//! [`Ia::park_all`] turns the instances of an adapter, all of them together, into a snapshot, which is plain data, and
//! the provider's descriptors. The device goes on with the work that it has. [`Ia::resume_all`] makes as many instances
//! of them, in the same order, in another process or in the same one. Handles keep their numbers, and later handles are
//! those that the parked instance would have given out.
//!
//! ```text
//!   the old process                                       the new process
//!     refuse by name; handle what has arrived
//!     provider: the quiet point
//!     write all objects out, and check them
//!     provider: finish  ----- snapshot, descriptors ---->   provider and tables, checked without a command
//!                                                         claim
//!                                                           objects, each compared with the device
//!                                                           provider: finish the resumption
//!                                                           all datagrams that arrived meanwhile
//!                                                         progress: device events, then timers, then completions
//! ```
//!
//! Before the instances are written out, device events that have arrived, effects of completions, and events of the
//! connection manager are handled, so the tables have none of them. Device events that come later are in the provider's
//! snapshot. Datagrams that one call does not take stay in the device's receives, and completions that were not polled
//! in their queues.
//!
//! `resume_all` does not trust the snapshot. The error names the value that is wrong, and the instance. If the device
//! was resumed before, its instances are then dropped, which stops it.
//!
//! The recorder, measured latencies, the text of the last device error, limits and spans of the log, and questions of
//! observers belong to the process. They are not in the snapshot.

mod checking;
mod endpoints;
mod names;
mod requests;
mod resuming;
mod writing;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::adapter::Adapter;
use crate::cm::Cm;
use crate::error::parking::{ParkError, ResumeError};
use crate::handle::{CnoHandle, EpHandle, EvdHandle, LmrHandle, SrqHandle};
use crate::ia::instance::{Ia, cm_config};
use crate::ia::number::IaNumber;
use crate::ia::snapshot::{AdapterTables, IaSnapshot, IaTables};
use crate::object::ep::DISCARD_OWNER;
use crate::object::evd::mode::Waiter;
use crate::object::srq::Srq;
use crate::object::srq::state::SrqState;
use crate::provider::{ParkProvider, Provider};

/// Maximum number of instances that are parked and resumed together. A device may allow fewer: instances that have
/// ended may count, too.
pub const MAX_INSTANCES: usize = 60;
/// Maximum number of calls that receive datagrams at the resumption, of all instances together. Each of them takes a
/// bounded number, and a peer may send faster than they are handled.
const DATAGRAM_CALLS: u32 = 1_024;

/// Instances that were not parked.
pub struct NotParked<P: Provider> {
    /// The instances, in the order in which they were given. They can be used as before. If their tables or the last
    /// step were refused, the recorders and the measurements are as after a resumption: the configured ones have begun
    /// anew, and those that the program had started by a call are off. Wakers, the descriptors and handles of the
    /// provider that the program had are of no use any more: the program asks the instances for new ones. None if the
    /// provider could then not go on; it was dropped, which stops the device.
    pub ias: Vec<Ia<P>>,
    /// The reason.
    pub error: ParkError,
}

/// Instances that were not resumed.
pub struct NotResumed<P: ParkProvider> {
    /// The descriptors, if the device goes on and can be resumed. `None` if the device is stopped: it has confirmed
    /// only a part of the provider's snapshot, or the provider was dropped because the snapshot of an instance was
    /// refused.
    pub handover: Option<P::Handover>,
    /// The reason.
    pub error: ResumeError,
}

/// Parked instances that this process may not use yet. If they are dropped, the device stays parked.
#[must_use]
pub struct UnclaimedIas<'a, P: ParkProvider> {
    provider: P::Unclaimed<'a>,
    tables: Tables<'a, P>,
    cm: Cm,
    numbers: Vec<IaNumber>,
}

/// The tables of an adapter and of its instances.
struct Tables<'a, P: ParkProvider> {
    adapter: &'a AdapterTables,
    instances: &'a [IaTables<P>],
}

impl<P: ParkProvider> UnclaimedIas<'_, P> {
    /// Gives the handover back. The device is as before, and the numbers are free again.
    #[must_use]
    pub fn give_back(self) -> P::Handover {
        P::give_back(self.provider)
    }

    /// Goes on with the instances, and returns them in the order in which they were parked. The first [`Ia::progress`]
    /// of each, or its first wait, ends connections that broke meanwhile, and handles overdue timers.
    ///
    /// # Errors
    /// [`NotResumed`] with the reason: the device is not as the snapshot says ([`ResumeError::Device`],
    /// [`ResumeError::OutOfRange`], [`ResumeError::Snapshot`]).
    pub fn go_on(self, proof: &P::Proof) -> Result<Vec<Ia<P>>, Box<NotResumed<P>>> {
        let Self {
            provider,
            tables,
            cm,
            numbers,
        } = self;
        let not_resumed = |handover, error| Box::new(NotResumed { handover, error });
        let providers = P::go_on(provider, proof).map_err(|(handover, error)| {
            not_resumed(handover, ResumeError::device("the provider", &error))
        })?;
        let adapter = Arc::new(Adapter::resume(cm));
        resume_tables(providers, &tables, numbers, &adapter)
            .map_err(|error| not_resumed(None, error))
    }
}

/// Snapshot of the instances of an adapter, and what goes along with it.
pub type Parked<P> = (IaSnapshot<P>, <P as ParkProvider>::Handover);

impl<P: ParkProvider> Ia<P> {
    /// Parks the only instance of an adapter: [`Ia::park_all`] with this instance.
    ///
    /// # Errors
    /// As [`Ia::park_all`].
    pub fn park(self) -> Result<Parked<P>, Box<NotParked<P>>> {
        Self::park_all(vec![self])
    }

    /// Parks all instances of an adapter together, at most [`MAX_INSTANCES`]. If the snapshot is resumed, the peers
    /// notice nothing but time that passes.
    ///
    /// # Errors
    /// [`NotParked`] with the instances in their order, and the reason:
    ///
    /// - the list is empty ([`ParkError::NoInstance`]) or too long ([`ParkError::TooManyInstances`]), an instance is
    ///   missing from it ([`ParkError::Instances`]), or one is of another adapter ([`ParkError::OtherAdapter`]);
    /// - [`ParkError::Dead`], [`ParkError::Requested`];
    /// - a thread waits ([`ParkError::EvdWaiter`], [`ParkError::CnoWaiter`]);
    /// - an instance has functions of the program ([`ParkError::Agent`], [`ParkError::Watchers`],
    ///   [`ParkError::Keeper`]);
    /// - [`ParkError::Region`]: another process cannot have the memory of a region; [`ParkError::Memory`]: the program
    ///   still has it;
    /// - [`ParkError::Tables`]: no process could resume the instances, which is a bug of this crate;
    /// - [`ParkError::Provider`].
    pub fn park_all(mut ias: Vec<Self>) -> Result<Parked<P>, Box<NotParked<P>>> {
        let not_parked = |ias, error| Err(Box::new(NotParked { ias, error }));
        let adapter = match check_parkable(&ias) {
            Ok(adapter) => adapter,
            Err(error) => return not_parked(ias, error),
        };
        handle_arrivals(&mut ias, &adapter);
        // The device may have died meanwhile.
        if let Err(error) = check_parkable(&ias) {
            return not_parked(ias, error);
        }
        // PANIC: `check_parkable` refuses an empty list.
        let first = &ias.first().expect("an instance").provider;
        let (now, limits) = (first.now(), first.limits().clone());
        // PANIC: an IA that exists is open.
        let providers = ias
            .iter_mut()
            .map(|ia| ia.provider.take().expect("an IA that is open"));
        let mut parking = match P::begin_parking(providers.collect()) {
            Ok(parking) => parking,
            Err((providers, error)) => {
                for (ia, provider) in ias.iter_mut().zip(providers) {
                    ia.provider.put_back(provider);
                }
                return not_parked(ias, ParkError::Provider(error));
            }
        };
        let instances = ias.iter_mut().map(|ia| ia.write_out(&mut parking));
        let instances: Vec<_> = instances.collect();
        let order: Vec<_> = ias.iter().map(|ia| ia.instance_index).collect();
        let cm = adapter.lock().park(now, &order);
        let tables = AdapterTables { limits, cm };
        // PANIC: an instance that is written out has its number. The instances may have to go on, so no other ones get
        // the numbers meanwhile.
        let numbers = ias
            .iter_mut()
            .map(|ia| ia.number.take().expect("the number"));
        let numbers: Vec<IaNumber> = numbers.collect();
        // The objects are in the tables.
        drop(ias);
        let checked = checking::check(&tables, &instances, now).map_err(ParkError::Tables);
        let finished = match checked {
            Ok(_) => P::finish_parking(parking)
                .map_err(|(parking, error)| (parking, ParkError::Provider(error))),
            Err(error) => Err((parking, error)),
        };
        match finished {
            Ok((provider, handover)) => {
                let adapter = tables;
                let snapshot = IaSnapshot {
                    provider,
                    adapter,
                    instances,
                };
                Ok((snapshot, handover))
            }
            Err((parking, error)) => {
                let tables = Tables {
                    adapter: &tables,
                    instances: &instances,
                };
                not_parked(go_on(parking, &tables, numbers, &adapter), error)
            }
        }
    }

    /// Goes on with the only instance of an adapter that this or another process has parked: [`Ia::resume_all`] for a
    /// snapshot with one instance.
    ///
    /// # Errors
    /// [`NotResumed`], as [`Ia::resume_all`]. [`ResumeError::Instances`]: the snapshot has several instances. Nothing
    /// was changed.
    pub fn resume(
        snapshot: &IaSnapshot<P>,
        handover: P::Handover,
        proof: &P::Proof,
    ) -> Result<Self, Box<NotResumed<P>>> {
        let count = snapshot.instances.len();
        if count > 1 {
            let error = ResumeError::Instances { count };
            return Err(not_checked(handover, error));
        }
        let mut all = Self::resume_all(snapshot, handover, proof)?;
        // PANIC: a snapshot without instances is refused, and there are as many instances as in the snapshot.
        Ok(all.pop().expect("an instance"))
    }

    /// Goes on with the instances of an adapter that this or another process has parked: [`Ia::check_all`] and
    /// [`UnclaimedIas::go_on`] in one.
    ///
    /// # Errors
    /// [`NotResumed`], as those calls.
    pub fn resume_all(
        snapshot: &IaSnapshot<P>,
        handover: P::Handover,
        proof: &P::Proof,
    ) -> Result<Vec<Self>, Box<NotResumed<P>>> {
        Self::check_all(snapshot, handover)?.go_on(proof)
    }

    /// Takes the numbers of parked instances, all or none, makes a device of what was parked with them, as far as that
    /// needs no command, and checks the tables of the adapter and of the instances. The device is not changed, so this
    /// comes before the claim of a handover.
    ///
    /// # Errors
    /// [`NotResumed`] with the handover and the reason. [`ResumeError::Number`]: an IA of this process has one of the
    /// numbers. [`ResumeError::Device`]: the provider refused its snapshot. [`ResumeError::Clock`],
    /// [`ResumeError::OutOfRange`] and [`ResumeError::Snapshot`]: no adapter has such tables.
    pub fn check_all(
        snapshot: &IaSnapshot<P>,
        handover: P::Handover,
    ) -> Result<UnclaimedIas<'_, P>, Box<NotResumed<P>>> {
        let IaSnapshot {
            provider,
            adapter,
            instances,
        } = snapshot;
        let numbers = match take_numbers(instances) {
            Ok(numbers) => numbers,
            Err(error) => return Err(not_checked(handover, error)),
        };
        let provider = match P::check(provider, handover) {
            Ok(provider) => provider,
            Err((handover, error)) => {
                let error = ResumeError::device("the provider", &error);
                return Err(not_checked(handover, error));
            }
        };
        let (count, its) = (instances.len(), P::instances(&provider));
        let checked = if count == its {
            checking::check(adapter, instances, P::time_of(&provider))
        } else {
            let what = format!("{count} have tables, and the device has {its}");
            Err(ResumeError::snapshot(INSTANCES, what))
        };
        match checked {
            Ok(cm) => Ok(UnclaimedIas {
                provider,
                tables: Tables { adapter, instances },
                cm,
                numbers,
            }),
            Err(error) => Err(not_checked(P::give_back(provider), error)),
        }
    }

    /// Refuses an instance that cannot be parked.
    fn check_instance(&self) -> Result<(), ParkError> {
        let adapter = || self.attr.adapter_name.clone();
        if self.health.is_dead() {
            let adapter = adapter();
            return Err(ParkError::Dead { adapter });
        }
        if self.health.is_release_requested() {
            let adapter = adapter();
            return Err(ParkError::Requested { adapter });
        }
        let ia = self.id;
        if self.recorder.as_ref().is_some_and(|all| all.has_keeper()) {
            return Err(ParkError::Keeper { number: ia });
        }
        for (key, evd) in self.evds.iter() {
            if evd.mode.waiter != Waiter::Nobody {
                let evd = EvdHandle { key, ia };
                return Err(ParkError::EvdWaiter { evd });
            }
        }
        self.check_queues()?;
        for (key, object) in self.cnos.iter() {
            let cno = CnoHandle { key, ia };
            if object.waiters() != 0 {
                return Err(ParkError::CnoWaiter { cno });
            }
            if object.has_agent() {
                return Err(ParkError::Agent { cno });
            }
        }
        for (key, lmr) in self.regions.all() {
            if let Err(error) = self.provider.can_park_region(&lmr.region, &lmr.memory) {
                let lmr = LmrHandle { key, ia };
                return Err(ParkError::Region { lmr, error });
            }
        }
        Ok(())
    }

    /// Refuses an instance with a queue in which the device lost an entry. The program can free its object.
    fn check_queues(&self) -> Result<(), ParkError> {
        let ia = self.id;
        for owner in &self.overran {
            if owner & DISCARD_OWNER == 0 {
                let key = self.evds.key_at(*owner);
                if let Some(key) = key.filter(|key| self.evds[*key].cq.is_some()) {
                    let evd = EvdHandle { key, ia };
                    return Err(ParkError::EvdOverran { evd });
                }
            } else {
                let key = self.eps.key_at(*owner & !DISCARD_OWNER);
                if let Some(key) = key.filter(|key| self.eps[*key].discard.is_some()) {
                    let ep = EpHandle { key, ia };
                    return Err(ParkError::EpOverran { ep });
                }
            }
        }
        let broken = |srq: &Srq<P>| srq.mode().state == SrqState::Error;
        let mut broken = self.srqs.iter().filter(|(_, srq)| broken(srq));
        broken.next().map_or(Ok(()), |(key, _)| {
            let srq = SrqHandle { key, ia };
            Err(ParkError::SrqError { srq })
        })
    }
}

/// Name of the list of instances in errors.
const INSTANCES: &str = "the instances";

/// Returns the refusal of a check. The device is as before.
fn not_checked<P: ParkProvider>(handover: P::Handover, error: ResumeError) -> Box<NotResumed<P>> {
    Box::new(NotResumed {
        handover: Some(handover),
        error,
    })
}

/// Takes the numbers of the instances of a snapshot, all or none.
fn take_numbers<P: ParkProvider>(instances: &[IaTables<P>]) -> Result<Vec<IaNumber>, ResumeError> {
    let (count, most) = (instances.len() as u64, MAX_INSTANCES as u64);
    ResumeError::check_range(INSTANCES, [("instances", count, most)])?;
    if instances.is_empty() {
        return Err(ResumeError::snapshot(INSTANCES, "there is none"));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = instances.iter().find(|one| !seen.insert(one.number)) {
        let what = format!("IA {} is there twice", twice.number);
        return Err(ResumeError::snapshot(INSTANCES, what));
    }
    let numbers = instances.iter().map(|one| IaNumber::take(one.number));
    numbers.collect()
}

/// Refuses instances that are not all of their adapter, and those that cannot be parked. Returns the adapter.
fn check_parkable<P: ParkProvider>(ias: &[Ia<P>]) -> Result<Arc<Adapter>, ParkError> {
    let Some(first) = ias.first() else {
        return Err(ParkError::NoInstance);
    };
    let name = |ia: &Ia<P>| ia.attr.adapter_name.clone();
    let is_other = |ia: &&Ia<P>| !Arc::ptr_eq(&ia.adapter, &first.adapter);
    if let Some(other) = ias.iter().find(is_other) {
        return Err(ParkError::OtherAdapter {
            number: other.id,
            other: name(other),
            first: first.id,
            adapter: name(first),
        });
    }
    let (given, most) = (ias.len(), MAX_INSTANCES);
    if given > most {
        let count = given;
        return Err(ParkError::TooManyInstances { count, most });
    }
    let state = first.adapter.lock();
    let count = state.instances();
    let ids: BTreeSet<u32> = ias.iter().map(|ia| ia.id).collect();
    let missing = state.numbers().find(|number| !ids.contains(number));
    drop(state);
    if let Some(missing) = missing {
        return Err(ParkError::Instances {
            count,
            given,
            missing,
        });
    }
    let count = first.adapter.watcher_count();
    if count != 0 {
        return Err(ParkError::Watchers { count });
    }
    ias.iter().try_for_each(Ia::check_instance)?;
    check_memory(ias)?;
    Ok(Arc::clone(&first.adapter))
}

/// Refuses instances if the program has memory of their regions. The program could still change the memory when it
/// belongs to the next process. Regions of several instances may have the same memory.
fn check_memory<P: ParkProvider>(ias: &[Ia<P>]) -> Result<(), ParkError> {
    // An LMR has a clone, and its region is another owner.
    const OWN: usize = 2;
    let mut buffers = BTreeMap::new();
    for ia in ias {
        for (key, lmr) in ia.regions.all() {
            if let Some((address, owners)) = P::owners(&lmr.memory) {
                let handle = LmrHandle { key, ia: ia.id };
                let (_, left) = buffers.entry(address).or_insert((handle, owners));
                *left = left.saturating_sub(OWN);
            }
        }
    }
    let ours = buffers.into_values().find(|(_, left)| *left != 0);
    ours.map_or(Ok(()), |(lmr, owners)| {
        Err(ParkError::Memory { lmr, owners })
    })
}

/// Handles datagrams that have arrived, those of one call of each instance, and device events, effects of completions
/// and events of the connection manager, until none is left. An instance may queue events for the others meanwhile.
fn handle_arrivals<P: ParkProvider>(ias: &mut [Ia<P>], adapter: &Adapter) {
    for ia in ias.iter_mut() {
        ia.take_first_messages();
        ia.progress();
    }
    loop {
        for ia in ias.iter_mut() {
            ia.apply_effects();
            ia.connection_manager_events();
        }
        let state = adapter.lock();
        let is_done = !state.cm.has_events()
            && ias
                .iter()
                .all(|ia| ia.effects.is_empty() && !state.has_arrivals(ia.instance_index));
        if is_done {
            return;
        }
    }
}

/// Goes on with instances whose provider did not finish the parking. Returns none if the provider cannot go on.
fn go_on<P: ParkProvider>(
    parking: P::Parking,
    tables: &Tables<'_, P>,
    numbers: Vec<IaNumber>,
    adapter: &Arc<Adapter>,
) -> Vec<Ia<P>> {
    let providers = match P::cancel_parking(parking) {
        Ok(providers) => providers,
        Err((parking, error)) => {
            tracing::error!(%error, "a parking that was refused cannot be cancelled: the device is stopped");
            drop(parking);
            return Vec::new();
        }
    };
    let resumed = || {
        let Some(first) = providers.first() else {
            return Err(ResumeError::snapshot(INSTANCES, "the device has none"));
        };
        let config = cm_config(first.limits());
        let cm = Cm::resume(&tables.adapter.cm, &config, first.now())?;
        adapter.lock().replace(cm);
        resume_tables(providers, tables, numbers, adapter)
    };
    resumed().unwrap_or_else(|error| {
        tracing::error!(%error, "instances that were not parked cannot go on: the device is stopped");
        Vec::new()
    })
}

/// Makes instances of their tables, on an adapter that has none.
fn resume_tables<P: ParkProvider>(
    providers: Vec<P>,
    tables: &Tables<'_, P>,
    numbers: Vec<IaNumber>,
    adapter: &Arc<Adapter>,
) -> Result<Vec<Ia<P>>, ResumeError> {
    let limits = &tables.adapter.limits;
    let (found, count) = (providers.len(), tables.instances.len());
    if found != count {
        let what = format!("{count} have tables, and the device has {found}");
        return Err(ResumeError::snapshot(INSTANCES, what));
    }
    for (at, provider) in providers.iter().enumerate() {
        resuming::check_limits(provider.limits(), limits, at == 0)?;
    }
    let mut ias = Vec::new();
    for ((provider, one), number) in providers.into_iter().zip(tables.instances).zip(numbers) {
        let adapter = Arc::clone(adapter);
        ias.push(Ia::without_objects(adapter, provider, one.config, number));
    }
    if let Err(error) = take_up(&mut ias, tables) {
        // Without a provider, an instance notifies no peer.
        ias.iter_mut().for_each(|ia| drop(ia.provider.take()));
        return Err(error);
    }
    let numbers = ias.iter().flat_map(|ia| &ia.number);
    numbers.for_each(IaNumber::begin_use);
    Ok(ias)
}

/// Makes all objects of the instances again.
fn take_up<P: ParkProvider>(ias: &mut [Ia<P>], tables: &Tables<'_, P>) -> Result<(), ResumeError> {
    let conns = tables.adapter.cm.conns.iter();
    let conns = conns.map(|conn| (conn.id, conn)).collect();
    for (ia, one) in ias.iter_mut().zip(tables.instances) {
        ia.read_in(one, &conns)
            .map_err(|error| error.of_instance(one.number))?;
    }
    for ia in ias.iter_mut() {
        let finished = ia.provider.finish_resuming();
        finished.map_err(|error| ResumeError::device("the provider", &error).of_instance(ia.id))?;
        ia.arm_discards();
    }
    // Overdue timers are not handled before the answers that may have arrived.
    let mut calls = 0..DATAGRAM_CALLS;
    for ia in ias.iter_mut() {
        while calls.next().is_some() {
            ia.take_datagrams();
            if !ia.has_more() {
                break;
            }
        }
    }
    for ia in ias.iter_mut() {
        ia.take_first_messages();
        ia.observe_as_configured();
    }
    Ok(())
}

impl<P: Provider> fmt::Debug for NotParked<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotParked")
            .field("ias", &self.ias)
            .field("error", &self.error)
            .finish()
    }
}

impl<P: ParkProvider> fmt::Debug for NotResumed<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotResumed")
            .field("device_goes_on", &self.handover.is_some())
            .field("error", &self.error)
            .finish()
    }
}
