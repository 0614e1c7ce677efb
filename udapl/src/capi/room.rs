//! A room: a content that one thread at a time may use, behind a [`Gate`], in memory that is never freed.
//!
//! A pointer to a room is always valid, because the room is never freed; its content may be replaced. The content is
//! accessed only in a turn or in the fast lane, and no reference outlives them.
//!
//! If a call panics, which is a bug of the library, the content's state is unknown. Its function is stopped, so that
//! the device no longer accesses memory, all of which the program may use again. The content is leaked with all its
//! resources, and every later call on the room returns DAT_INTERNAL_ERROR.

// UNSAFETY: the content is in an `UnsafeCell` that the gate guards.
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

/// The content of a room.
pub(super) trait Content: Send {
    /// Stops its clock, if its time is virtual, until the returned value is dropped.
    fn hold_time(&self) -> Held;
    /// Wakes threads that sleep on it.
    fn kick(&self);
    /// Takes out work for other rooms. It is done after the turn, because a thread has only one turn at a time.
    fn forwarded(&mut self) -> Option<Box<dyn FnOnce()>>;
    /// A call in a turn returned this error: record further details that the content has.
    fn refused(&self, _error: DatError) {}
}

/// A room.
#[repr(C)]
pub(super) struct Room<T> {
    gate: Gate,
    content: UnsafeCell<Option<T>>,
    /// True after a call has panicked.
    broken: AtomicBool,
    /// True if the fast lane is open. Changed in turns.
    lane: AtomicBool,
    /// True if several threads may use the content at once. A late post of one of them may still enter the lane, so
    /// the lane of such a room is never opened.
    many: AtomicBool,
    /// The function to stop when the room breaks.
    function: Mutex<Option<Function>>,
    /// Called when the room breaks.
    when_broken: Mutex<Option<WhenBroken>>,
}

/// A function called when a room breaks, in a turn or in the lane.
pub(super) type WhenBroken = Box<dyn FnOnce() + Send>;

// SAFETY: `content` is accessed only in a turn or in the fast lane of `gate`, by one thread at a time, and `T` is
// `Send`.
unsafe impl<T: Send> Sync for Room<T> {}

impl<T> Room<T> {
    /// Creates an empty room.
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

    /// Returns whether its fast lane stays closed for ever.
    pub(super) fn is_of_many(&self) -> bool {
        self.many.load(Ordering::Relaxed)
    }

    /// Opens or closes the fast lane, which only one thread at a time may use. Call it in a turn: then the lane is
    /// empty, and its next user sees the turn first.
    pub(super) fn set_lane(&self, many: bool) {
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

    /// Sets the function to call when the room breaks.
    pub(super) fn set_when_broken(&self, work: Option<WhenBroken>) {
        *unpoisoned(&self.when_broken) = work;
    }

    /// Stops the function's DMA, because the content can no longer be used. Done once; returns whether this was the
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

    /// A thread in the fast lane cannot be kept out, so all access is refused; the content stays in place.
    #[cold]
    fn shut(&self, none: NoTurn) -> DatError {
        if self.stop() {
            tracing::error!(
                errno = none.0,
                "membarrier(2) fails since the adapter was opened; every call on it is refused"
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
    /// Puts a content into an empty room. `function` is stopped if the room breaks. With `many` threads the lane
    /// stays closed.
    pub(super) fn move_in(&self, content: T, function: Function, many: bool) {
        // PANIC: the lane of an empty room is closed, so the turn needs no fence.
        let _turn = self.gate.turn().expect("an empty room has turns");
        self.set_lane(many);
        *unpoisoned(&self.function) = Some(function);
        // SAFETY: the turn excludes all other threads.
        unsafe { *self.content.get() = Some(content) };
    }

    /// Takes the content out if `may` allows it, and calls `left` in the same turn.
    ///
    /// # Errors
    /// Those of `may` and of [`Room::turn`].
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
        let mut forwarded = None;
        if let Ok(content) = &mut out {
            forwarded = content.forwarded();
            if self.lane.swap(false, Ordering::Relaxed) {
                self.gate.close();
            }
            *unpoisoned(&self.function) = None;
            self.set_when_broken(None);
            left(content);
        }
        core::mem::forget(fuse);
        drop(turn);
        if let Some(forwarded) = forwarded {
            forwarded();
        }
        out
    }

    /// Runs `work` in a turn, then wakes the content's sleeping threads.
    ///
    /// # Errors
    /// Those of `work`. DAT_INVALID_HANDLE|IA: the content was closed meanwhile. DAT_INTERNAL_ERROR: the room is
    /// broken.
    pub(super) fn turn<R>(&self, work: impl FnOnce(&mut T) -> DatResult<R>) -> DatResult<R> {
        self.look(|content| {
            let answer = work(content);
            content.kick();
            answer
        })
    }

    /// Runs `work` in a turn and wakes no thread: for a waiter that only checks its condition, and would wake itself.
    ///
    /// # Errors
    /// Those of [`Room::turn`].
    pub(super) fn look<R>(&self, work: impl FnOnce(&mut T) -> DatResult<R>) -> DatResult<R> {
        self.look_in(self.gate.turn(), work)
    }

    /// Like [`Room::turn`], if no thread is in a turn; otherwise `None`.
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
        // SAFETY: the turn excludes all other threads, and no reference outlives it.
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
        let forwarded = content.forwarded();
        core::mem::forget(fuse);
        drop(turn);
        if let Some(forwarded) = forwarded {
            forwarded();
        }
        drop(held);
        answer
    }

    /// Runs `work` in the fast lane. `None`: the lane is closed, or `work` returned `None`.
    #[inline(always)]
    pub(super) fn fast(&self, work: impl FnOnce(&mut T) -> Option<DatReturn>) -> Option<DatReturn> {
        if !self.gate.enter() {
            return None;
        }
        let answered = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: only one thread at a time is in the lane, which the consumer of an adapter that is not thread
            // safe guarantees, and the lane excludes turns. `work` returns the reference before the lane is left.
            let cell = unsafe { &mut *self.content.get() };
            // SAFETY: the lane is open only while the room has a content.
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

    /// Runs `work` in the fast lane, or in a turn if the lane is closed.
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

/// Breaks the room when dropped, which happens only during a panic; otherwise it is forgotten.
struct Fuse<'a, T>(&'a Room<T>);

impl<T> Drop for Fuse<'_, T> {
    #[cold]
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
        // Keep all threads out of the lane.
        self.0.gate.close();
        // SAFETY: this is inside a turn or the lane, and the reference made there no longer exists.
        let content = unsafe { (*self.0.content.get()).take() };
        let _first = self.0.stop();
        let when_broken = unpoisoned(&self.0.when_broken).take();
        if let Some(work) = when_broken {
            work();
        }
        // Leak it: dropping a content in an unknown state is not safe.
        let _kept = ManuallyDrop::new(content);
    }
}
