//! A room: what one thread at a time may use, behind a [`Gate`], and a place for it that never goes.
//!
//! Because the place stays, a pointer to it is always good, whoever holds it for how long; another content may move in
//! later. What is in it is reached in a turn or in the fast lane, and nobody is given a reference that outlasts one.
//!
//! If a call panics, which would be an error of ours, nobody knows what state the content is in. Its function is
//! stopped, so that nobody reaches memory by it any more: it is all the program's again. The content is put away, with
//! all it holds, and every later call for that room answers DAT_INTERNAL_ERROR.

// UNSAFETY: what is in a room is in a cell that the gate guards.
#![expect(unsafe_code, reason = "a cell behind a lock of our own")]

use core::any::Any;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError};

use dat_core::{DatError, DatResult, Subtype};
use driver::{Function, Held};

use super::answer::{answer, caught, handle_error, internal, panicked};
use super::gate::{Gate, NoTurn, Turn};
use super::types::DatReturn;

/// What a room is for.
pub(super) trait Content: Send {
    /// Its clock, if that is one of virtual time, stands still until what is returned is dropped.
    fn hold_time(&self) -> Held;
    /// Wakes who sleeps on it.
    fn kick(&self);
    /// What a turn leaves for other rooms. It is done after the turn: nobody has two at a time.
    fn strays(&mut self) -> Option<Box<dyn FnOnce()>>;
    /// Something was refused in a turn: whatever else the content knows of it is noted for who asks.
    fn refused(&self, _error: DatError) {}
}

/// A room.
#[repr(C)]
pub(super) struct Room<T> {
    gate: Gate,
    content: UnsafeCell<Option<T>>,
    /// A call has panicked.
    broken: AtomicBool,
    /// The fast lane is open. Changed in turns.
    lane: AtomicBool,
    /// Several threads could be in the lane, once. A post of theirs may still be on its way here, so it stays closed
    /// for good.
    many: AtomicBool,
    /// What is stopped if nothing can be asked of the content any more.
    function: Mutex<Option<Function>>,
    /// What is done if the room breaks.
    when_broken: Mutex<Option<WhenBroken>>,
}

/// What is done if a room breaks; in a turn or in the lane.
pub(super) type WhenBroken = Box<dyn FnOnce() + Send>;

// SAFETY: `content` is reached in a turn or in the fast lane of `gate` only, one thread at a time, and what is in it
// may move between threads.
unsafe impl<T: Send> Sync for Room<T> {}

impl<T> Room<T> {
    /// An empty one.
    pub(super) fn new(many: bool) -> Self {
        Self {
            gate: Gate::new(),
            content: UnsafeCell::new(None),
            broken: AtomicBool::new(false),
            lane: AtomicBool::new(false),
            many: AtomicBool::new(many),
            function: Mutex::new(None),
            when_broken: Mutex::new(None),
        }
    }

    /// Whether its fast lane stays closed for good.
    pub(super) fn is_of_many(&self) -> bool {
        self.many.load(Ordering::Relaxed)
    }

    /// Opens or closes the fast lane, which is for one thread at a time. In a turn: nobody is in the lane, and whoever
    /// comes by it meets the turn first.
    pub(super) fn settle_lane(&self, many: bool) {
        if many {
            self.many.store(true, Ordering::Relaxed);
        }
        let may = !self.is_of_many();
        match (self.lane.load(Ordering::Relaxed), may) {
            (false, true) => self.gate.open(),
            (true, false) => self.gate.close(),
            (false, false) | (true, true) => {}
        }
        self.lane.store(may, Ordering::Relaxed);
    }

    /// What is to be done if the room breaks.
    pub(super) fn set_when_broken(&self, work: Option<WhenBroken>) {
        *unpoisoned(&self.when_broken) = work;
    }

    /// Ends the function's use of memory: nothing can be asked of the content any more. Once; whether this was the
    /// first time.
    fn stop(&self) -> bool {
        let Some(function) = unpoisoned(&self.function).take() else {
            return false;
        };
        if let Err(error) = function.stop() {
            tracing::error!(function = function.name(), %error, "a broken adapter cannot be stopped");
        }
        true
    }

    /// Nobody can be kept out of the fast lane, so nobody goes in; what is in the room stays where it is.
    #[cold]
    fn shut(&self, none: NoTurn) -> DatError {
        if self.stop() {
            tracing::error!(
                errno = none.0,
                "membarrier(2) is refused since an adapter was opened; it is shut"
            );
        }
        internal(
            "membarrier(2) is refused since the adapter was opened (by a seccomp filter?), so threads cannot be kept apart; the adapter is unusable",
        )
    }

    fn gone(&self) -> DatError {
        if self.broken.load(Ordering::Relaxed) {
            internal("a call has failed inside the library; the adapter is unusable")
        } else {
            handle_error(Subtype::HandleIa)
        }
    }
}

fn unpoisoned<T>(lock: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Content> Room<T> {
    /// Puts something into an empty room. Its function is stopped if the room breaks; `many` threads have no lane.
    pub(super) fn move_in(&self, content: T, function: Function, many: bool) {
        // PANIC: the lane of a room that nobody has is closed, and needs no fence.
        let _turn = self.gate.turn().expect("an empty room has turns");
        self.settle_lane(many);
        *unpoisoned(&self.function) = Some(function);
        // SAFETY: the turn keeps everybody else out.
        unsafe { *self.content.get() = Some(content) };
    }

    /// Takes out what is in the room, if it `may` leave. `left` is done in the same turn.
    ///
    /// # Errors
    /// Those of `may`; as [`Room::turn`].
    pub(super) fn move_out(
        &self,
        may: impl FnOnce(&T) -> DatResult<()>,
        left: impl FnOnce(&T),
    ) -> DatResult<T> {
        let turn = self.gate.turn().map_err(|none| self.shut(none))?;
        // SAFETY: as in `turn`.
        let cell = unsafe { &mut *self.content.get() };
        let fuse = Fuse(self);
        let may_leave = cell.as_ref().ok_or_else(|| self.gone()).and_then(may);
        let mut out = may_leave.and_then(|()| cell.take().ok_or_else(|| self.gone()));
        let mut strays = None;
        if let Ok(content) = &mut out {
            strays = content.strays();
            if self.lane.swap(false, Ordering::Relaxed) {
                self.gate.close();
            }
            *unpoisoned(&self.function) = None;
            self.set_when_broken(None);
            left(content);
        }
        core::mem::forget(fuse);
        drop(turn);
        if let Some(strays) = strays {
            strays();
        }
        out
    }

    /// Runs `work` in a turn. Who sleeps on the content looks again afterwards.
    ///
    /// # Errors
    /// What `work` answers; DAT_INVALID_HANDLE|IA: it was closed meanwhile. DAT_INTERNAL_ERROR: it is broken.
    pub(super) fn turn<R>(&self, work: impl FnOnce(&mut T) -> DatResult<R>) -> DatResult<R> {
        self.look(|content| {
            let answer = work(content);
            content.kick();
            answer
        })
    }

    /// Runs `work` in a turn and wakes nobody: for who only looks whether its wait is over, and would wake itself.
    ///
    /// # Errors
    /// As [`Room::turn`].
    pub(super) fn look<R>(&self, work: impl FnOnce(&mut T) -> DatResult<R>) -> DatResult<R> {
        self.look_in(self.gate.turn(), work)
    }

    /// [`Room::turn`], if nobody is in the room; `None`: somebody is.
    pub(super) fn try_turn<R>(
        &self,
        work: impl FnOnce(&mut T) -> DatResult<R>,
    ) -> Option<DatResult<R>> {
        let turn = self.gate.try_turn()?;
        Some(self.look_in(turn, |content| {
            let answer = work(content);
            content.kick();
            answer
        }))
    }

    fn look_in<R>(
        &self,
        turn: Result<Turn<'_>, NoTurn>,
        work: impl FnOnce(&mut T) -> DatResult<R>,
    ) -> DatResult<R> {
        let turn = turn.map_err(|none| self.shut(none))?;
        // SAFETY: the turn keeps everybody else out, and nobody is given a reference that outlasts one.
        let cell = unsafe { &mut *self.content.get() };
        let fuse = Fuse(self);
        let Some(content) = cell.as_mut() else {
            core::mem::forget(fuse);
            return Err(self.gone());
        };
        let held = content.hold_time();
        let answer = work(content);
        if let Err(error) = &answer {
            content.refused(*error);
        }
        let strays = content.strays();
        core::mem::forget(fuse);
        drop(turn);
        if let Some(strays) = strays {
            strays();
        }
        drop(held);
        answer
    }

    /// Runs `work` in the fast lane. `None`: that is closed, or `work` came to nothing.
    #[inline(always)]
    pub(super) fn fast(&self, work: impl FnOnce(&mut T) -> Option<DatReturn>) -> Option<DatReturn> {
        if !self.gate.enter() {
            return None;
        }
        let answered = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the lane is one thread's at a time, as the consumer of an adapter that is not thread safe sees
            // to, and keeps turns out; `work` is done with the reference before the lane is left.
            let cell = unsafe { &mut *self.content.get() };
            // SAFETY: the gate lets nobody into the lane unless something is in the room.
            work(unsafe { cell.as_mut().unwrap_unchecked() })
        }));
        match answered {
            Ok(answer) => {
                self.gate.leave();
                answer
            }
            Err(panic) => Some(self.broken_in_the_lane(panic)),
        }
    }

    /// Runs `work` in the fast lane, or in a turn if that is closed.
    pub(super) fn fast_or_in_turn(&self, work: impl Fn(&mut T) -> DatReturn) -> DatReturn {
        caught(|| {
            let answered = self.fast(|content| Some(work(content)));
            answered.unwrap_or_else(|| {
                self.turn(|content| Ok(work(content)))
                    .unwrap_or_else(answer)
            })
        })
    }

    #[cold]
    #[inline(never)]
    fn broken_in_the_lane(&self, _panic: Box<dyn Any + Send>) -> DatReturn {
        drop(Fuse(self));
        self.gate.leave();
        panicked()
    }
}

/// Breaks the room unless it is forgotten: while a panic unwinds.
struct Fuse<'a, T>(&'a Room<T>);

impl<T> Drop for Fuse<'_, T> {
    #[cold]
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
        // Nobody comes by the lane any more.
        self.0.gate.close();
        // SAFETY: the fuse lives inside a turn or the lane, and the reference that was made there is gone.
        let content = unsafe { (*self.0.content.get()).take() };
        let _first = self.0.stop();
        let when_broken = unpoisoned(&self.0.when_broken).take();
        if let Some(work) = when_broken {
            work();
        }
        // Nobody knows what dropping it would do.
        let _kept = ManuallyDrop::new(content);
    }
}
