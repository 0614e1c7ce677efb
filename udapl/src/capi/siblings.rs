//! The instances of an adapter that a C program has open, and the steward that looks after those whom nobody calls.
//!
//! An instance takes in what is for it when it is called, waited in, or polled. A program may use one of two, and the
//! other has a connection that its peer wants to set up, or an asynchronous event for an EVD that they share. So each
//! has an *attendant*, an interrupt that is signalled when another one has taken in something for it. Whoever is about
//! to sleep in one instance first has those look whose attendants are signalled ([`Siblings::attend`]); a program of
//! one thread, and of virtual time, needs no more. And with the second instance a thread of the library's begins, the
//! steward, which sleeps on all attendants and on what the device says to all, and has instances look. It ends with the
//! last one.
//!
//! Both leave an instance alone that somebody is in: nobody waits for another's turn, and a signal that a thread in
//! there may be asleep for is taken in a turn only. The steward comes back to it ([`SOON`]).

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use dat_core::{DatError, DatResult, EvdHandle, ReturnType, Subtype};
use driver::{Clock, Held, HeldSignals, Interrupt, RealClock};

use super::answer::handle_error;
use super::sleep::Taken;
use super::table::{IaName, handle_of, number};
use super::types::DatHandle;
use crate::Ia;

/// The longest sleep without a look: timers of instances that nobody calls go off that late.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// When the steward comes back to an instance that somebody was in.
const SOON: Duration = Duration::from_millis(1);
/// How often an instance looks in one turn, if each time something is left.
const LOOKS: u32 = 16;

/// An instance that can be looked after.
pub(super) trait Sibling: Copy + Send + Sync + 'static {
    /// The number of its IA.
    fn name(self) -> IaName;
    /// Whose an EVD is, by C's handle.
    fn owner_of(evd: DatHandle) -> Option<(Self, EvdHandle)>;
    /// Runs `work` in a turn.
    ///
    /// # Errors
    /// Those of `work`; DAT_INVALID_HANDLE|IA: the instance has gone. DAT_INTERNAL_ERROR: it is broken.
    fn turn<R>(self, work: impl FnOnce(&mut Ia) -> DatResult<R>) -> DatResult<R>;
    /// Runs `work` in a turn, if nobody is in the instance; `None`: somebody is.
    fn try_turn<R>(self, work: impl FnOnce(&mut Ia) -> DatResult<R>) -> Option<DatResult<R>>;
}

/// An instance, as its siblings know it.
#[derive(Clone)]
struct Member<M> {
    of: M,
    /// The asynchronous EVD it was given, which is another's.
    given: Option<u64>,
    /// There is something for it that nobody has taken in.
    attendant: Interrupt,
    /// Ends the sleep of whoever waits in it.
    wakeup: Option<Interrupt>,
    /// What the device says to all. Who sleeps in an instance may sleep on it, too.
    common: Option<Interrupt>,
    clock: Arc<dyn Clock>,
}

/// All of an adapter.
pub(super) struct Siblings<M> {
    shared: Arc<Shared<M>>,
    steward: Mutex<Option<JoinHandle<()>>>,
}

struct Members<M> {
    list: Vec<Member<M>>,
    /// Asynchronous EVDs, by C's handles, that are being given to instances which are not there yet.
    lent: Vec<u64>,
    /// Those that were given to instances which have broken.
    orphaned: Vec<u64>,
}

struct Shared<M> {
    members: Mutex<Members<M>>,
    /// There are others than before, or it is over.
    changed: Interrupt,
    over: AtomicBool,
}

impl<M> Default for Members<M> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            lent: Vec::new(),
            orphaned: Vec::new(),
        }
    }
}

impl<M: Sibling> Shared<M> {
    fn members(&self) -> MutexGuard<'_, Members<M>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance is one of them no more; the asynchronous EVD it was given.
    fn forget(&self, ia: IaName) -> Option<u64> {
        let list = &mut self.members().list;
        let at = list.iter().position(|one| one.of.name() == ia)?;
        let gone = list.swap_remove(at);
        self.changed.signal();
        gone.given
    }

    /// An asynchronous EVD is its owner's alone again, unless others have it, too.
    fn give_back(&self, evd: u64) {
        if let Some((owner, handle)) = M::owner_of(handle_of(evd)) {
            // Its owner may be going, too.
            let _gone = owner.turn(|ia| {
                // In the owner's turn, where it is lent, too.
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
    /// None yet.
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

    /// An instance is there, with this IA, the asynchronous EVD it was lent, and an attendant.
    pub(super) fn join(&self, of: M, ia: &Ia, given: Option<DatHandle>, attendant: Interrupt) {
        let hca = ia.provider().hca();
        let vectors = hca.interrupts().get(..hca.vectors()).unwrap_or_default();
        hca.attended_by(attendant.clone());
        self.shared.members().list.push(Member {
            of,
            given: given.map(number),
            attendant,
            wakeup: vectors.last().cloned(),
            common: vectors.first().cloned(),
            clock: hca.function().clock(),
        });
        self.shared.changed.signal();
    }

    /// An instance is going. Not in a turn.
    pub(super) fn leave(&self, ia: IaName) {
        if let Some(evd) = self.shared.forget(ia) {
            self.shared.give_back(evd);
        }
    }

    /// An instance has broken, in a turn or in the lane. The steward gives back what it was given.
    pub(super) fn has_broken(&self, ia: IaName) {
        if let Some(evd) = self.shared.forget(ia) {
            self.shared.members().orphaned.push(evd);
            self.shared.changed.signal();
        }
    }

    /// Whether an instance is one of them.
    fn has(&self, ia: IaName) -> bool {
        self.shared
            .members()
            .list
            .iter()
            .any(|one| one.of.name() == ia)
    }

    /// All but one.
    pub(super) fn others(&self, but: IaName) -> Vec<M> {
        let members = self.shared.members();
        let others = members.list.iter().filter(|one| one.of.name() != but);
        others.map(|one| one.of).collect()
    }

    /// Has those look that were called, but one, who is about to sleep. True if there was one. Whom somebody is in is
    /// the steward's.
    pub(super) fn attend(&self, but: IaName) -> bool {
        let is_called = |one: &&Member<M>| one.of.name() != but && one.attendant.is_pending();
        let called: Vec<Member<M>> = {
            let members = self.shared.members();
            members.list.iter().filter(is_called).cloned().collect()
        };
        let mut attended = false;
        for one in &called {
            let _held = Held::new(&one.clock);
            if one.attendant.take() == 0 {
                continue;
            }
            match look(one, false) {
                Looked::Busy => one.attendant.signal(),
                Looked::Done | Looked::Gone => attended = true,
            }
        }
        attended
    }

    /// Has the steward look at an instance.
    pub(super) fn call(&self, ia: IaName) {
        let members = self.shared.members();
        if let Some(called) = members.list.iter().find(|one| one.of.name() == ia) {
            called.attendant.signal();
        }
    }

    /// A sleeper has taken interrupts, and its instance has gone: whoever sleeps elsewhere may have been meant.
    pub(super) fn take_over(&self, taken: Taken) {
        if taken == Taken::NOTHING {
            return;
        }
        for one in &self.shared.members().list {
            one.attendant.signal();
            if let Some(wakeup) = &one.wakeup {
                wakeup.signal();
            }
        }
    }

    /// Lends an asynchronous EVD of one of them to one that is being made, until [`Siblings::is_made`].
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: it is none of theirs that takes asynchronous events.
    pub(super) fn lend(&self, evd: DatHandle) -> DatResult<()> {
        let unknown = handle_error(Subtype::HandleEvdAsync);
        let (owner, handle) = M::owner_of(evd)
            .filter(|(owner, _)| self.has(owner.name()))
            .ok_or(unknown)?;
        self.shared.members().lent.push(number(evd));
        let bound = owner.turn(|ia| ia.async_evd_bind(handle));
        if bound.is_err() {
            self.is_made(evd);
        }
        // Its owner may just have gone.
        bound.map_err(|error| match error {
            gone if gone == handle_error(Subtype::HandleIa) => unknown,
            other => other,
        })
    }

    /// Who was lent it is there, or will not be.
    pub(super) fn is_made(&self, evd: DatHandle) {
        let evd = number(evd);
        let mut members = self.shared.members();
        if let Some(at) = members.lent.iter().position(|one| *one == evd) {
            members.lent.swap_remove(at);
        }
        drop(members);
        self.shared.give_back(evd);
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

/// An interrupt of ours.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES: no eventfd is left.
pub(super) fn interrupt() -> DatResult<Interrupt> {
    Interrupt::new().map_err(|_| missing("no eventfd"))
}

/// What the steward does.
fn steward_of<M: Sibling>(shared: &Shared<M>) {
    let clock = RealClock::new();
    let mut interrupts = Vec::new();
    // Whom it has to come back to.
    let mut owed: Vec<IaName> = Vec::new();
    let mut next_round = clock.now() + LOOK_EVERY;
    while !shared.over.load(Ordering::SeqCst) {
        let _others = shared.changed.take();
        let orphaned = core::mem::take(&mut shared.members().orphaned);
        orphaned.into_iter().for_each(|evd| shared.give_back(evd));
        let members = shared.members().list.clone();
        let common = members.first().and_then(|one| one.common.clone());
        interrupts.clear();
        interrupts.push(shared.changed.clone());
        interrupts.extend(members.iter().map(|one| one.attendant.clone()));
        let until = if owed.is_empty() {
            interrupts.extend(common.iter().cloned());
            next_round
        } else {
            // Who is in an instance takes in there what is for all, and that would end every sleep until then.
            next_round.min(clock.now() + SOON)
        };
        clock.wait(&interrupts, until);
        let round = clock.now() >= next_round;
        if round {
            next_round = clock.now() + LOOK_EVERY;
        }
        // What is taken here is looked at before any time goes by.
        let _held = members.first().map(|one| Held::new(&one.clock));
        let mut for_all = common.as_ref().is_some_and(Interrupt::is_pending);
        let before = core::mem::take(&mut owed);
        for one in &members {
            let called = one.attendant.take() > 0 || before.contains(&one.of.name());
            // Whoever looks takes in what is for all, and calls the others.
            if !(called || round || for_all) {
                continue;
            }
            match look(one, for_all) {
                Looked::Done => for_all = false,
                Looked::Busy => owed.push(one.of.name()),
                Looked::Gone => {}
            }
        }
        if for_all
            && owed.is_empty()
            && let Some(common) = &common
        {
            // There is nobody who could look, and it would end every sleep.
            let _signalled = common.take();
        }
    }
}

/// What became of having an instance look.
enum Looked {
    Done,
    /// Somebody is in it.
    Busy,
    /// It has gone, or is broken, and has nothing to look at.
    Gone,
}

fn look<M: Sibling>(one: &Member<M>, for_all: bool) -> Looked {
    let looked = one.of.try_turn(|ia| {
        if for_all {
            // Nobody sleeps on it in here.
            if let Some(common) = &one.common {
                let _signalled = common.take();
            }
            ia.provider().hca().interrupt_taken(0);
        }
        for _ in 0..LOOKS {
            ia.progress();
            if !ia.has_more() {
                break;
            }
        }
        Ok(())
    });
    match looked {
        None => Looked::Busy,
        Some(Ok(())) => Looked::Done,
        Some(Err(_gone)) => Looked::Gone,
    }
}
