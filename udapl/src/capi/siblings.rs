//! The instances of an adapter that a C program has open, and a background thread that makes progress for idle ones.
//!
//! An instance processes its events when the program makes a call on it, waits in it or polls it. If the program uses
//! only one of two instances, the other instance may have a connection request to answer, or an asynchronous event for
//! an EVD that both use. So each instance has a `notify` interrupt. An instance that has received something for
//! another instance signals the other instance's `notify`. A thread that is about to sleep in one instance first makes
//! progress in the instances whose `notify` is signalled ([`Siblings::poll_notified`]). Programs with one thread or
//! with virtual time need no more. When the second instance is opened, the library also starts a background thread.
//! That thread sleeps on all `notify` interrupts and on the device's common interrupt, and makes progress in
//! instances. It ends with the last instance.
//!
//! A thread that is about to sleep and the background thread skip an instance whose lock (`gate`) another thread
//! holds. So neither waits for a lock. If a thread of an instance may be sleeping on a signal, the signal is cleared
//! only under the lock of that instance. The background thread tries a skipped instance again after [`RETRY_AFTER`].

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use dat_core::{DatError, DatResult, EvdHandle, ReturnType, Subtype};
use driver::{Clock, Held, HeldSignals, Interrupt, RealClock};

use super::error::handle_error;
use super::sleep::Taken;
use super::table::{IaName, handle_of, number};
use super::types::DatHandle;
use crate::Ia;

/// Maximum time between two checks of all instances. Timers of idle instances are late by at most this time.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Time until the next attempt on an instance that was busy.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Maximum number of calls of `Ia::progress` while the lock is held once, while the IA has more events.
const PROGRESS_LIMIT: u32 = 16;

/// An instance as an entry of the list.
pub(super) trait Sibling: Copy + Send + Sync + 'static {
    /// Returns the number of the instance.
    fn name(self) -> IaName;
    /// Returns the instance that owns an EVD, which is given by C's handle, and the EVD's Rust handle.
    fn owner_of(evd: DatHandle) -> Option<(Self, EvdHandle)>;
    /// Runs `work` under the lock of the instance.
    ///
    /// # Errors
    /// Those of `work`. DAT_INVALID_HANDLE|IA: the instance was closed. DAT_INTERNAL_ERROR: it is broken.
    fn with<R>(self, work: impl FnOnce(&mut Ia) -> DatResult<R>) -> DatResult<R>;
    /// Runs `work` under the lock, or returns `None` if another thread holds the instance's lock.
    fn try_with<R>(self, work: impl FnOnce(&mut Ia) -> DatResult<R>) -> Option<DatResult<R>>;
}

/// An instance with its interrupts.
#[derive(Clone)]
struct Member<M> {
    of: M,
    /// Asynchronous EVD that the instance uses and that belongs to another instance, by C's handle.
    given: Option<u64>,
    /// Interrupt that requests progress in this instance. It is signalled when another instance has received something
    /// for this one, when this one has events to forward to another, and by [`Siblings::take_over`].
    notify: Interrupt,
    /// Interrupt that wakes threads that wait in this instance.
    wakeup: Option<Interrupt>,
    /// Interrupt of the device for all instances. Threads in any instance may sleep on it, too.
    common: Option<Interrupt>,
    clock: Arc<dyn Clock>,
}

/// All instances of an adapter.
pub(super) struct Siblings<M> {
    shared: Arc<Shared<M>>,
    background: Mutex<Option<JoinHandle<()>>>,
}

struct Members<M> {
    list: Vec<Member<M>>,
    /// Asynchronous EVDs lent to instances that are still being opened, by C's handles.
    lent: Vec<u64>,
    /// Asynchronous EVDs that broken instances used and that the background thread must give back, by C's handles.
    unowned_evds: Vec<u64>,
}

struct Shared<M> {
    members: Mutex<Members<M>>,
    /// Interrupt that is signalled when an instance is added or removed, and when the background thread must end.
    changed: Interrupt,
    over: AtomicBool,
}

impl<M> Default for Members<M> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            lent: Vec::new(),
            unowned_evds: Vec::new(),
        }
    }
}

impl<M: Sibling> Shared<M> {
    fn members(&self) -> MutexGuard<'_, Members<M>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an instance, and returns the asynchronous EVD of another instance that it used.
    fn forget(&self, ia: IaName) -> Option<u64> {
        let list = &mut self.members().list;
        let at = list.iter().position(|one| one.of.name() == ia)?;
        let gone = list.swap_remove(at);
        self.changed.signal();
        gone.given
    }

    /// Unbinds an asynchronous EVD that was lent, unless other instances still use it.
    fn give_back(&self, evd: u64) {
        if let Some((owner, handle)) = M::owner_of(handle_of(evd)) {
            // This fails if the owner is already closed, which is harmless.
            let _gone = owner.with(|ia| {
                // Lock the list while the owner's lock is held. `lend` also binds the EVD under the owner's lock.
                let members = self.members();
                let is_given = members.list.iter().any(|one| one.given == Some(evd));
                if !is_given && !members.lent.contains(&evd) {
                    ia.async_evd_unbind(handle);
                }
                Ok(())
            });
        }
    }
}

impl<M: Sibling> Siblings<M> {
    /// Returns whether all instances are closed, being closed, or broken.
    pub(super) fn is_empty(&self) -> bool {
        self.shared.members().list.is_empty()
    }

    /// Creates an empty list.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: no eventfd is left.
    pub(super) fn new() -> DatResult<Arc<Self>> {
        Ok(Arc::new(Self {
            shared: Arc::new(Shared {
                members: Mutex::default(),
                changed: interrupt()?,
                over: AtomicBool::new(false),
            }),
            background: Mutex::new(None),
        }))
    }

    /// Starts the background thread if it is not running. Called before a second instance is opened.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no thread left.
    pub(super) fn start_background(&self) -> DatResult<()> {
        let mut background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if background.is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        // Block signals in the new thread, so that the system delivers them to the program's own threads.
        let _held = HeldSignals::hold();
        let thread = std::thread::Builder::new()
            .name("dat-background".into())
            .spawn(move || run_background(&shared))
            .map_err(|_| missing("no thread"))?;
        *background = Some(thread);
        Ok(())
    }

    /// Adds an instance with its IA, the asynchronous EVD that it was lent, and its `notify` interrupt.
    pub(super) fn add(&self, of: M, ia: &Ia, given: Option<DatHandle>, notify: Interrupt) {
        let hca = ia.provider().hca();
        let vectors = hca.interrupts().get(..hca.vectors()).unwrap_or_default();
        hca.attended_by(notify.clone());
        self.shared.members().list.push(Member {
            of,
            given: given.map(number),
            notify,
            wakeup: vectors.last().cloned(),
            common: vectors.first().cloned(),
            clock: hca.function().clock(),
        });
        self.shared.changed.signal();
    }

    /// Removes an instance that is being closed. The caller must not hold the lock.
    pub(super) fn remove(&self, ia: IaName) {
        if let Some(evd) = self.shared.forget(ia) {
            self.shared.give_back(evd);
        }
    }

    /// Removes an instance that has broken. The caller holds the lock or is in the lane, so the background thread gives
    /// back the EVD that the instance used.
    pub(super) fn has_broken(&self, ia: IaName) {
        if let Some(evd) = self.shared.forget(ia) {
            self.shared.members().unowned_evds.push(evd);
            self.shared.changed.signal();
        }
    }

    /// Returns whether an instance is in the list.
    fn has(&self, ia: IaName) -> bool {
        self.shared
            .members()
            .list
            .iter()
            .any(|one| one.of.name() == ia)
    }

    /// Returns all instances except `but`.
    pub(super) fn others(&self, but: IaName) -> Vec<M> {
        let members = self.shared.members();
        let others = members.list.iter().filter(|one| one.of.name() != but);
        others.map(|one| one.of).collect()
    }

    /// Makes progress in the notified instances, except `but`, in which the caller is about to sleep. Returns false if
    /// no instance was notified, or if other threads hold the locks of all notified instances: the background thread
    /// makes progress in these.
    pub(super) fn poll_notified(&self, but: IaName) -> bool {
        let is_called = |one: &&Member<M>| one.of.name() != but && one.notify.is_pending();
        let called: Vec<Member<M>> = {
            let members = self.shared.members();
            members.list.iter().filter(is_called).cloned().collect()
        };
        let mut progressed = false;
        for one in &called {
            let _held = Held::new(&one.clock);
            if one.notify.take() == 0 {
                continue;
            }
            match try_progress(one, false) {
                Attempt::Busy => one.notify.signal(),
                Attempt::Done | Attempt::Gone => progressed = true,
            }
        }
        progressed
    }

    /// Requests progress in an instance from the background thread.
    pub(super) fn request_progress(&self, ia: IaName) {
        let members = self.shared.members();
        if let Some(called) = members.list.iter().find(|one| one.of.name() == ia) {
            called.notify.signal();
        }
    }

    /// Wakes the threads of all instances if `taken` is not empty. Used after the instance of a sleeping thread was
    /// closed: the interrupts that the thread had taken may have been for other instances.
    pub(super) fn take_over(&self, taken: Taken) {
        if taken == Taken::NOTHING {
            return;
        }
        for one in &self.shared.members().list {
            one.notify.signal();
            if let Some(wakeup) = &one.wakeup {
                wakeup.signal();
            }
        }
    }

    /// Lends an asynchronous EVD of an instance to an instance that is being opened, until [`Siblings::end_lending`].
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: `evd` is not an EVD for asynchronous events of one of these instances.
    pub(super) fn lend(&self, evd: DatHandle) -> DatResult<()> {
        let unknown = handle_error(Subtype::HandleEvdAsync);
        let (owner, handle) = M::owner_of(evd)
            .filter(|(owner, _)| self.has(owner.name()))
            .ok_or(unknown)?;
        self.shared.members().lent.push(number(evd));
        let bound = owner.with(|ia| ia.async_evd_bind(handle));
        if bound.is_err() {
            self.end_lending(evd);
        }
        // If the owner was closed just now, report the EVD as unknown.
        bound.map_err(|error| match error {
            gone if gone == handle_error(Subtype::HandleIa) => unknown,
            other => other,
        })
    }

    /// Ends a lending. The instance that borrowed the EVD is now in the list, which keeps the EVD bound, or its opening
    /// has failed.
    pub(super) fn end_lending(&self, evd: DatHandle) {
        let evd = number(evd);
        let mut members = self.shared.members();
        if let Some(at) = members.lent.iter().position(|one| *one == evd) {
            members.lent.swap_remove(at);
        }
        drop(members);
        self.shared.give_back(evd);
    }

    /// Ends the background thread, because no instance is left.
    pub(super) fn end(&self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.changed.signal();
        let thread = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the background thread of an adapter has panicked");
        }
    }
}

fn missing(why: &'static str) -> DatError {
    DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory).because(why)
}

/// Creates an interrupt that the library signals itself.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES: no eventfd is left.
pub(super) fn interrupt() -> DatResult<Interrupt> {
    Interrupt::new().map_err(|_| missing("no eventfd"))
}

/// Runs the background thread until the end.
fn run_background<M: Sibling>(shared: &Shared<M>) {
    let clock = RealClock::new();
    let mut interrupts = Vec::new();
    // These instances were busy and are tried again.
    let mut deferred: Vec<IaName> = Vec::new();
    let mut next_round = clock.now() + PROGRESS_INTERVAL;
    while !shared.over.load(Ordering::SeqCst) {
        let _others = shared.changed.take();
        let unowned_evds = core::mem::take(&mut shared.members().unowned_evds);
        unowned_evds
            .into_iter()
            .for_each(|evd| shared.give_back(evd));
        let members = shared.members().list.clone();
        let common = members.first().and_then(|one| one.common.clone());
        interrupts.clear();
        interrupts.push(shared.changed.clone());
        interrupts.extend(members.iter().map(|one| one.notify.clone()));
        let until = if deferred.is_empty() {
            interrupts.extend(common.iter().cloned());
            next_round
        } else {
            // Do not sleep on the common interrupt. The thread in the busy instance will clear it, and until then the
            // interrupt would end every sleep.
            next_round.min(clock.now() + RETRY_AFTER)
        };
        clock.wait(&interrupts, until);
        let round = clock.now() >= next_round;
        if round {
            next_round = clock.now() + PROGRESS_INTERVAL;
        }
        // Hold virtual time until the signals that are cleared here have been handled.
        let _held = members.first().map(|one| Held::new(&one.clock));
        let mut for_all = common.as_ref().is_some_and(Interrupt::is_pending);
        let before = core::mem::take(&mut deferred);
        for one in &members {
            let called = one.notify.take() > 0 || before.contains(&one.of.name());
            // Progress in one instance processes the device's events for all, and notifies the other instances.
            if !(called || round || for_all) {
                continue;
            }
            match try_progress(one, for_all) {
                Attempt::Done => for_all = false,
                Attempt::Busy => deferred.push(one.of.name()),
                Attempt::Gone => {}
            }
        }
        if for_all
            && deferred.is_empty()
            && let Some(common) = &common
        {
            // No instance could make progress. Clear the signal, which would otherwise end every sleep.
            let _signalled = common.take();
        }
    }
}

/// Result of an attempt to make progress in an instance.
enum Attempt {
    Done,
    /// Another thread holds the instance's lock.
    Busy,
    /// The instance is closed or broken.
    Gone,
}

fn try_progress<M: Sibling>(one: &Member<M>, for_all: bool) -> Attempt {
    let attempt = one.of.try_with(|ia| {
        if for_all {
            // The end of the work wakes this instance's threads, so none of them misses the signal that is cleared
            // here.
            if let Some(common) = &one.common {
                let _signalled = common.take();
            }
            ia.provider().hca().interrupt_taken(0);
        }
        for _ in 0..PROGRESS_LIMIT {
            ia.progress();
            if !ia.has_more() {
                break;
            }
        }
        Ok(())
    });
    match attempt {
        None => Attempt::Busy,
        Some(Ok(())) => Attempt::Done,
        Some(Err(_gone)) => Attempt::Gone,
    }
}
