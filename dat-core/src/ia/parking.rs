//! An instance that outlives its process.
//!
//! [`Ia::park`] turns an instance, the only one of its adapter, into a snapshot, which is plain data, and the
//! provider's descriptors. The device goes on with the work that it has. [`Ia::resume`] makes an instance of them, in
//! another process or in the same one. Handles keep their numbers, and later handles are those that the parked instance
//! would have given out.
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
//! Before the instance is written out, device events that have arrived, effects of completions, and events of the
//! connection manager are handled, so the tables have none of them. Device events that come later are in the provider's
//! snapshot. Datagrams that one call does not take stay in the device's receives, and completions that were not polled
//! in their queues.
//!
//! `resume` does not trust the snapshot. The error names the value that is wrong. If the provider was resumed before,
//! it is then dropped, which stops the device.
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
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::adapter::Adapter;
use crate::cm::Cm;
use crate::error::parking::{ParkError, ResumeError};
use crate::handle::{CnoHandle, EvdHandle, LmrHandle};
use crate::ia::instance::{Ia, cm_config};
use crate::ia::number::IaNumber;
use crate::ia::snapshot::{IaSnapshot, IaTables};
use crate::object::evd::mode::Waiter;
use crate::provider::{ParkProvider, Provider};

/// Maximum number of calls that receive datagrams at the resumption. Each of them takes a bounded number, and a peer
/// may send faster than they are handled.
const DATAGRAM_CALLS: u32 = 1_024;

/// An instance that was not parked.
pub struct NotParked<P: Provider> {
    /// The instance, which can be used as before. If its tables or the last step were refused, the recorder and the
    /// measurements are as after a resumption: the configured ones have begun anew, and those that the program had
    /// started by a call are off. Wakers, the descriptor and handles of the provider that the program had are of no use
    /// any more: the program asks the instance for new ones. `None` if the provider could then not go on; it was
    /// dropped, which stops the device.
    pub ia: Option<Ia<P>>,
    /// The reason.
    pub error: ParkError,
}

/// An instance that was not resumed.
pub struct NotResumed<P: ParkProvider> {
    /// The descriptors, if the device goes on and can be resumed. `None` if the device is stopped: it has confirmed
    /// only a part of the provider's snapshot, or the provider was dropped because the snapshot of the instance was
    /// refused.
    pub handover: Option<P::Handover>,
    /// The reason.
    pub error: ResumeError,
}

/// A parked instance that this process may not use yet. If it is dropped, the device stays parked.
#[must_use]
pub struct UnclaimedIa<'a, P: ParkProvider> {
    provider: P::Unclaimed<'a>,
    tables: &'a IaTables<P>,
    cm: Cm,
    number: IaNumber,
}

impl<P: ParkProvider> UnclaimedIa<'_, P> {
    /// Gives the handover back. The device is as before, and the number is free again.
    #[must_use]
    pub fn give_back(self) -> P::Handover {
        P::give_back(self.provider)
    }

    /// Goes on with the instance. The first [`Ia::progress`], or the first wait, ends connections that broke meanwhile,
    /// and handles overdue timers.
    ///
    /// # Errors
    /// [`NotResumed`] with the reason: the device is not as the snapshot says ([`ResumeError::Device`],
    /// [`ResumeError::OutOfRange`], [`ResumeError::Snapshot`]).
    pub fn go_on(self, proof: &P::Proof) -> Result<Ia<P>, Box<NotResumed<P>>> {
        let Self {
            provider,
            tables,
            cm,
            number,
        } = self;
        let not_resumed = |handover, error| Box::new(NotResumed { handover, error });
        let provider = P::go_on(provider, proof).map_err(|(handover, error)| {
            not_resumed(handover, ResumeError::device("the provider", &error))
        })?;
        resume_tables(provider, (tables, cm), number, None)
            .map_err(|error| not_resumed(None, error))
    }
}

/// Snapshot of an instance, and what goes along with it.
pub type Parked<P> = (IaSnapshot<P>, <P as ParkProvider>::Handover);

impl<P: ParkProvider> Ia<P> {
    /// Parks the instance. If the snapshot is resumed, the peers notice nothing but time that passes.
    ///
    /// # Errors
    /// [`NotParked`] with the instance, and the reason:
    ///
    /// - [`ParkError::Instances`], [`ParkError::Dead`], [`ParkError::Requested`];
    /// - a thread waits ([`ParkError::EvdWaiter`], [`ParkError::CnoWaiter`]);
    /// - the instance has functions of the program ([`ParkError::Agent`], [`ParkError::Watchers`],
    ///   [`ParkError::Keeper`]);
    /// - [`ParkError::Region`]: another process cannot have the memory of a region; [`ParkError::Memory`]: the program
    ///   still has it;
    /// - [`ParkError::Tables`]: no process could resume the instance, which is a bug of this crate;
    /// - [`ParkError::Provider`].
    pub fn park(mut self) -> Result<Parked<P>, Box<NotParked<P>>> {
        if let Err(error) = self.check_parkable() {
            return Err(self.not_parked(error));
        }
        self.handle_arrivals();
        // The device may have died meanwhile.
        if let Err(error) = self.check_parkable() {
            return Err(self.not_parked(error));
        }
        let (now, limits) = (self.provider.now(), self.provider.limits().clone());
        // PANIC: an IA that exists is open.
        let provider = self.provider.take().expect("an IA that is open");
        let mut parking = match provider.begin_parking() {
            Ok(parking) => parking,
            Err((provider, error)) => {
                self.provider.put_back(provider);
                return Err(self.not_parked(ParkError::Provider(error)));
            }
        };
        let tables = self.write_out(&mut parking, now, limits);
        let adapter = Arc::clone(&self.adapter);
        // PANIC: an instance that is written out has its number. The instance may have to go on, so no other one gets
        // the number meanwhile.
        let number = self.number.take().expect("the number");
        // The objects are in the tables.
        drop(self);
        let checked = checking::check(&tables, now).map_err(ParkError::Tables);
        let finished = match checked {
            Ok(_) => P::finish_parking(parking)
                .map_err(|(parking, error)| (parking, ParkError::Provider(error))),
            Err(error) => Err((parking, error)),
        };
        match finished {
            Ok((provider, handover)) => Ok((IaSnapshot { provider, tables }, handover)),
            Err((parking, error)) => Err(Box::new(NotParked {
                ia: go_on(parking, &tables, number, adapter),
                error,
            })),
        }
    }

    /// Goes on with an instance that this or another process has parked: [`Ia::check`] and [`UnclaimedIa::go_on`] in
    /// one.
    ///
    /// # Errors
    /// [`NotResumed`], as those calls.
    pub fn resume(
        snapshot: &IaSnapshot<P>,
        handover: P::Handover,
        proof: &P::Proof,
    ) -> Result<Self, Box<NotResumed<P>>> {
        Self::check(snapshot, handover)?.go_on(proof)
    }

    /// Takes the number of a parked instance, makes a provider of what was parked with it, as far as that needs no
    /// command, and checks the tables of the instance. The device is not changed, so this comes before the claim of a
    /// handover.
    ///
    /// # Errors
    /// [`NotResumed`] with the handover and the reason. [`ResumeError::Number`]: an IA of this process has the number.
    /// [`ResumeError::Device`]: the provider refused its snapshot. [`ResumeError::Clock`],
    /// [`ResumeError::OutOfRange`] and [`ResumeError::Snapshot`]: no instance has such tables.
    pub fn check(
        snapshot: &IaSnapshot<P>,
        handover: P::Handover,
    ) -> Result<UnclaimedIa<'_, P>, Box<NotResumed<P>>> {
        let IaSnapshot { provider, tables } = snapshot;
        let not_resumed = |handover, error| {
            Box::new(NotResumed {
                handover: Some(handover),
                error,
            })
        };
        let number = match IaNumber::take(tables.number) {
            Ok(number) => number,
            Err(error) => return Err(not_resumed(handover, error)),
        };
        let provider = match P::check(provider, handover) {
            Ok(provider) => provider,
            Err((handover, error)) => {
                let error = ResumeError::device("the provider", &error);
                return Err(not_resumed(handover, error));
            }
        };
        match checking::check(tables, P::time_of(&provider)) {
            Ok(cm) => Ok(UnclaimedIa {
                provider,
                tables,
                cm,
                number,
            }),
            Err(error) => Err(not_resumed(P::give_back(provider), error)),
        }
    }

    fn not_parked(self, error: ParkError) -> Box<NotParked<P>> {
        let ia = Some(self);
        Box::new(NotParked { ia, error })
    }

    /// Refuses an instance that cannot be parked.
    fn check_parkable(&self) -> Result<(), ParkError> {
        let adapter = || self.attr.adapter_name.clone();
        if self.health.is_dead() {
            let adapter = adapter();
            return Err(ParkError::Dead { adapter });
        }
        if self.health.is_release_requested() {
            let adapter = adapter();
            return Err(ParkError::Requested { adapter });
        }
        let count = self.instances();
        if count != 1 {
            return Err(ParkError::Instances { count });
        }
        let count = self.adapter.watcher_count();
        if count != 0 {
            return Err(ParkError::Watchers { count });
        }
        if self.recorder.as_ref().is_some_and(|all| all.has_keeper()) {
            return Err(ParkError::Keeper);
        }
        let ia = self.id;
        for (key, evd) in self.evds.iter() {
            if evd.mode.waiter != Waiter::Nobody {
                let evd = EvdHandle { key, ia };
                return Err(ParkError::EvdWaiter { evd });
            }
        }
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
        self.check_memory()
    }

    /// Refuses an instance if the program has memory of its regions. The program could still change the memory when it
    /// belongs to the next process.
    fn check_memory(&self) -> Result<(), ParkError> {
        // An LMR has a clone, and its region is another owner.
        const OWN: usize = 2;
        let mut buffers = BTreeMap::new();
        for (key, lmr) in self.regions.all() {
            if let Some((address, owners)) = P::owners(&lmr.memory) {
                let (_, left) = buffers.entry(address).or_insert((key, owners));
                *left = left.saturating_sub(OWN);
            }
        }
        let ours = buffers.into_values().find(|(_, left)| *left != 0);
        ours.map_or(Ok(()), |(key, owners)| {
            let lmr = LmrHandle { key, ia: self.id };
            Err(ParkError::Memory { lmr, owners })
        })
    }

    /// Handles datagrams that have arrived, those of one call, and device events, effects of completions and events of
    /// the connection manager, until none is left.
    fn handle_arrivals(&mut self) {
        self.take_first_messages();
        self.progress();
        loop {
            self.apply_effects();
            self.connection_manager_events();
            let is_done = {
                let adapter = self.adapter.lock();
                !adapter.cm.has_events() && !adapter.has_arrivals(self.instance_index)
            };
            if is_done && self.effects.is_empty() {
                return;
            }
        }
    }
}

/// Goes on with an instance whose provider did not finish the parking. Returns `None` if the provider cannot go on.
fn go_on<P: ParkProvider>(
    parking: P::Parking,
    tables: &IaTables<P>,
    number: IaNumber,
    adapter: Arc<Adapter>,
) -> Option<Ia<P>> {
    let provider = match P::cancel_parking(parking) {
        Ok(provider) => provider,
        Err((parking, error)) => {
            tracing::error!(%error, "a parking that was refused cannot be cancelled: the device is stopped");
            drop(parking);
            return None;
        }
    };
    let config = cm_config(provider.limits());
    let cm = Cm::resume(&tables.cm, &config, provider.now());
    match cm.and_then(|cm| resume_tables(provider, (tables, cm), number, Some(adapter))) {
        Ok(ia) => Some(ia),
        Err(error) => {
            tracing::error!(%error, "an instance that was not parked cannot go on: the device is stopped");
            None
        }
    }
}

/// Makes an instance of its tables, on its adapter if that still exists.
fn resume_tables<P: ParkProvider>(
    provider: P,
    (tables, cm): (&IaTables<P>, Cm),
    number: IaNumber,
    adapter: Option<Arc<Adapter>>,
) -> Result<Ia<P>, ResumeError> {
    resuming::check_limits(&provider, tables)?;
    let adapter = match adapter {
        Some(adapter) => {
            adapter.lock().replace(cm);
            adapter
        }
        None => Arc::new(Adapter::resume(cm)),
    };
    let mut ia = Ia::without_objects(adapter, provider, tables.config, number);
    if let Err(error) = ia.take_up(tables) {
        // Without a provider, the instance notifies no peer.
        drop(ia.provider.take());
        return Err(error);
    }
    ia.number.iter().for_each(IaNumber::begin_use);
    Ok(ia)
}

impl<P: ParkProvider> Ia<P> {
    /// Makes all objects again.
    fn take_up(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        self.read_in(tables)?;
        self.provider
            .finish_resuming()
            .map_err(|error| ResumeError::device("the provider", &error))?;
        self.arm_discards();
        // Overdue timers are not handled before the answers that may have arrived.
        for _ in 0..DATAGRAM_CALLS {
            self.take_datagrams();
            if !self.has_more() {
                break;
            }
        }
        self.take_first_messages();
        self.observe_as_configured();
        Ok(())
    }
}

impl<P: Provider> fmt::Debug for NotParked<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotParked")
            .field("ia", &self.ia)
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
