//! The instances of an adapter that a C program has open, and the steward that looks after those whom nobody calls.
//!
//! An instance takes in what is for it when it is called, waited in, or polled. A program may use one of two, and the other has a
//! connection that its peer wants to set up, or an asynchronous event for an EVD that they share. So whoever is about to sleep in
//! one instance first has those look that have been called ([`Siblings::attend`]); a program of one thread, and of virtual time,
//! needs no more. And with the second instance a thread of the library's begins, the steward. It sleeps until an instance is
//! called by another one that has taken in something for it, or the device says something that is for all, and has that instance
//! look, in a turn, for which it waits as everybody does. It ends with the last one.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use dat_core::{DatError, DatResult, EvdHandle, ReturnType, Subtype};
use driver::{Clock, Held, HeldSignals, Interrupt, RealClock};

use super::adapter::{Adapter, handle_error};
use super::table::{IaName, find_owned, handle_of, number};
use super::types::DatHandle;
use crate::Ia;

/// The longest sleep without a look: timers of instances that nobody calls go off that late.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An instance, as its siblings know it.
#[derive(Clone)]
struct Member {
    adapter: &'static Adapter,
    ia: IaName,
    /// The asynchronous EVD it was given, which is another's.
    given: Option<u64>,
    /// Another instance has taken in something for this one.
    wakeup: Option<Interrupt>,
    /// What the device says to all.
    common: Option<Interrupt>,
    clock: Arc<dyn Clock>,
}

/// All of an adapter.
pub(super) struct Siblings {
    shared: Arc<Shared>,
    steward: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    members: Mutex<Vec<Member>>,
    /// There are others than before, or it is over.
    changed: Interrupt,
    over: AtomicBool,
}

impl Shared {
    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Siblings {
    /// None yet.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: no eventfd is left.
    pub(super) fn new() -> DatResult<Arc<Self>> {
        let changed = Interrupt::new().map_err(|_| missing("no eventfd"))?;
        Ok(Arc::new(Self {
            shared: Arc::new(Shared {
                members: Mutex::new(Vec::new()),
                changed,
                over: AtomicBool::new(false),
            }),
            steward: Mutex::new(None),
        }))
    }

    /// Has a steward, before there is a second instance.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES: the system has no thread left.
    pub(super) fn look_after(&self) -> DatResult<()> {
        let mut steward = self.steward.lock().unwrap_or_else(PoisonError::into_inner);
        if steward.is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        // The program's signals are for its own threads.
        let _held = HeldSignals::hold();
        let thread = std::thread::Builder::new()
            .name("dat-steward".into())
            .spawn(move || steward_of(&shared))
            .map_err(|_| missing("no thread"))?;
        *steward = Some(thread);
        Ok(())
    }

    /// An instance is there, with this IA and the asynchronous EVD it was given.
    pub(super) fn join(
        &self,
        adapter: &'static Adapter,
        ia: IaName,
        of: &Ia,
        given: Option<DatHandle>,
    ) {
        let hca = of.provider().hca();
        let vectors = hca.interrupts().get(..hca.vectors()).unwrap_or_default();
        self.shared.members().push(Member {
            adapter,
            ia,
            given: given.map(number),
            wakeup: vectors.last().cloned(),
            common: vectors.first().cloned(),
            clock: hca.function().clock(),
        });
        self.shared.changed.signal();
    }

    /// An instance is going; the EVD it was given is its owner's alone again, unless others were given it, too.
    pub(super) fn leave(&self, ia: IaName) {
        let mut members = self.shared.members();
        let at = members.iter().position(|one| one.ia == ia);
        let gone = at.map(|at| members.remove(at));
        drop(members);
        self.shared.changed.signal();
        if let Some(evd) = gone.and_then(|gone| gone.given) {
            self.give_back(handle_of(evd));
        }
    }

    /// Has those look that were called, but one, who is about to sleep. True if there was one.
    pub(super) fn attend(&self, but: IaName) -> bool {
        let is_called =
            |one: &&Member| one.ia != but && one.wakeup.as_ref().is_some_and(Interrupt::is_pending);
        let called: Vec<Member> = self
            .shared
            .members()
            .iter()
            .filter(is_called)
            .cloned()
            .collect();
        for one in &called {
            if let Some(wakeup) = &one.wakeup {
                let _called = wakeup.take();
            }
            look(one, false);
        }
        !called.is_empty()
    }

    /// Has the steward look at an instance.
    pub(super) fn call(&self, ia: IaName) {
        let members = self.shared.members();
        let called = members.iter().find(|one| one.ia == ia);
        if let Some(wakeup) = called.and_then(|one| one.wakeup.as_ref()) {
            wakeup.signal();
        }
    }

    /// Whether an instance is one of them.
    pub(super) fn has(&self, ia: IaName) -> bool {
        self.shared.members().iter().any(|one| one.ia == ia)
    }

    /// All but one.
    pub(super) fn others(&self, but: IaName) -> Vec<(&'static Adapter, IaName)> {
        let members = self.shared.members();
        let others = members.iter().filter(|one| one.ia != but);
        others.map(|one| (one.adapter, one.ia)).collect()
    }

    /// Lends an asynchronous EVD of one of them to one that is being made.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: it is none of theirs that takes asynchronous events.
    pub(super) fn lend(&self, evd: DatHandle) -> DatResult<()> {
        let (adapter, ia, evd) = find_owned::<EvdHandle>(evd)
            .filter(|(_, ia, _)| self.has(*ia))
            .ok_or(handle_error(Subtype::HandleEvdAsync))?;
        adapter.turn_of(ia, |open| open.ia.async_evd_bind(evd))
    }

    /// Nobody uses it any more who was lent it, unless another does.
    pub(super) fn give_back(&self, evd: DatHandle) {
        let members = self.shared.members();
        if members.iter().any(|one| one.given == Some(number(evd))) {
            return;
        }
        drop(members);
        if let Some((adapter, ia, evd)) = find_owned::<EvdHandle>(evd) {
            // Its owner may be going, too.
            let _gone = adapter.turn_of(ia, |open| {
                open.ia.async_evd_unbind(evd);
                Ok(())
            });
        }
    }

    /// The end: there is no instance any more.
    pub(super) fn end(&self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.changed.signal();
        let thread = self
            .steward
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the steward of an adapter has panicked");
        }
    }
}

fn missing(why: &'static str) -> DatError {
    DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory).because(why)
}

/// What the steward does.
fn steward_of(shared: &Shared) {
    let clock = RealClock::new();
    let mut interrupts = Vec::new();
    while !shared.over.load(Ordering::SeqCst) {
        let _others = shared.changed.take();
        let members = shared.members().clone();
        let common = members.first().and_then(|one| one.common.clone());
        interrupts.clear();
        interrupts.push(shared.changed.clone());
        interrupts.extend(common.iter().cloned());
        interrupts.extend(members.iter().filter_map(|one| one.wakeup.clone()));
        let woken = clock.wait(&interrupts, clock.now() + LOOK_EVERY);
        // What is taken here is looked at before any time goes by.
        let _held = members.first().map(|one| Held::new(&one.clock));
        let for_all = common.is_some_and(|common| common.take() > 0);
        for (at, one) in members.iter().enumerate() {
            // Whoever looks takes in what is for all, and wakes the others.
            let called = one.wakeup.as_ref().is_some_and(|wakeup| wakeup.take() > 0);
            if called || !woken || (for_all && at == 0) {
                look(one, for_all && at == 0);
            }
        }
    }
}

/// Has an instance look. One that has gone, or is broken, has nothing to look at.
fn look(one: &Member, for_all: bool) {
    let _gone = one.adapter.turn_if_open(one.ia, |open| {
        if for_all {
            open.ia.provider().hca().interrupt_taken(0);
        }
        open.ia.progress();
        Ok(())
    });
}
