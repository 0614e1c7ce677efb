//! A room: a container for one value, its content. One thread at a time may use the content ([`Gate`]).
//!
//! A pointer to a room is always valid, because the room is never freed; its content may be replaced. The content is
//! accessed only under the lock or in the fast lane. No reference to the content outlives the guard or the use of the
//! lane.
//!
//! If a call panics, which is a bug of the library, the content's state is unknown, and the room is *broken*. The
//! device's function is stopped, so that the device no longer accesses memory, and the program may use all memory
//! again. The content is leaked with all its resources, and every later call on the room returns DAT_INTERNAL_ERROR.

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

use super::answer::{answer, caught, panicked};
use super::error::{handle_error, internal};
use super::gate::{Gate, GateGuard, LockLost};
use super::types::DatReturn;

/// The content of a room.
pub(super) trait Content: Send {
    /// Stops the content's clock, if its time is virtual, until the returned value is dropped.
    fn hold_time(&self) -> Held;
    /// Wakes threads that sleep until the content changes.
    fn kick(&self);
    /// Returns work to be done in other rooms. The caller does the work after it has released the lock, because a
    /// thread may hold the lock of only one room at a time.
    fn forwarded(&mut self) -> Option<Box<dyn FnOnce()>>;
    /// Records further details of an error that a call under the lock has returned, if the content has any.
    fn refused(&self, _error: DatError) {}
}

/// A container whose content is accessed through a gate; see the module.
#[repr(C)]
pub(super) struct Room<T> {
    gate: Gate,
    content: UnsafeCell<Option<T>>,
    /// True after a call has panicked.
    broken: AtomicBool,
    /// True if the fast lane is open. Changed only under the lock.
    lane: AtomicBool,
    /// True if several threads may make calls at the same time. Never becomes false again: a late post of one of these
    /// threads may still try the lane, so the lane of such a room is never opened.
    many: AtomicBool,
    /// Function of the device to stop when the room breaks.
    function: Mutex<Option<Function>>,
    /// Closure to call when the room breaks.
    when_broken: Mutex<Option<WhenBroken>>,
}

/// A closure that is called when a room breaks, by a thread that holds the lock or is in the lane.
pub(super) type WhenBroken = Box<dyn FnOnce() + Send>;

// SAFETY: `content` is accessed only under the lock or in the fast lane of `gate`, so by one thread at a time, and `T`
// is `Send`.
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

    /// Returns whether the room's fast lane stays closed for ever.
    pub(super) fn is_shared(&self) -> bool {
        self.many.load(Ordering::Relaxed)
    }

    /// Closes the fast lane for ever if `many`; otherwise opens it unless it was closed for ever. The caller must hold
    /// the lock: then no thread is in the lane, and the next thread in the lane sees the changes made under the lock.
    pub(super) fn set_lane(&self, many: bool) {
        if many {
            self.many.store(true, Ordering::Relaxed);
        }
        let may = !self.is_shared();
        match (self.lane.load(Ordering::Relaxed), may) {
            (false, true) => self.gate.open(),
            (true, false) => self.gate.close(),
            (false, false) | (true, true) => {}
        }
        self.lane.store(may, Ordering::Relaxed);
    }

    /// Sets the closure to call when the room breaks.
    pub(super) fn set_when_broken(&self, work: Option<WhenBroken>) {
        *unpoisoned(&self.when_broken) = work;
    }

    /// Stops the DMA of the room's function, because the content can no longer be used. Only the first call does this,
    /// and it returns true.
    fn stop(&self) -> bool {
        let Some(function) = unpoisoned(&self.function).take() else {
            return false;
        };
        if let Err(error) = function.stop() {
            tracing::error!(function = function.name(), %error, "a broken adapter cannot be stopped");
        }
        true
    }

    /// Stops the function and returns the error of a refused access. A thread in the fast lane cannot be excluded, so
    /// all access is refused. The content is neither taken out nor freed. Waiting threads notice it at their next
    /// check, within a second.
    #[cold]
    fn shut(&self, none: LockLost) -> DatError {
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
    /// Puts a content into an empty room. `function` is stopped if the room breaks. If `many`, several threads may make
    /// calls at the same time: the lane stays closed, so that they take the lock.
    pub(super) fn set_content(&self, content: T, function: Function, many: bool) {
        // PANIC: the lane of an empty room is closed, so taking the lock needs no membarrier(2) and cannot fail.
        let _guard = self.gate.lock().expect("a closed lane needs no fence");
        self.set_lane(many);
        *unpoisoned(&self.function) = Some(function);
        // SAFETY: the lock excludes all other threads.
        unsafe { *self.content.get() = Some(content) };
    }

    /// Takes the content out if `may` allows it, and calls `left` with it under the same lock.
    ///
    /// # Errors
    /// Those of `may` and of [`Room::with`].
    pub(super) fn take_content(
        &self,
        may: impl FnOnce(&T) -> DatResult<()>,
        left: impl FnOnce(&T),
    ) -> DatResult<T> {
        let guard = self.gate.lock().map_err(|none| self.shut(none))?;
        // SAFETY: the guard excludes all other threads, and no reference outlives it.
        let cell = unsafe { &mut *self.content.get() };
        let fuse = BreakOnPanic(self);
        let may_take = cell.as_ref().ok_or_else(|| self.gone()).and_then(may);
        let mut out = may_take.and_then(|()| cell.take().ok_or_else(|| self.gone()));
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
        drop(guard);
        if let Some(forwarded) = forwarded {
            forwarded();
        }
        out
    }

    /// Runs `work` under the lock, then wakes the content's sleeping threads.
    ///
    /// # Errors
    /// Those of `work`. DAT_INVALID_HANDLE|IA: the content was closed meanwhile. DAT_INTERNAL_ERROR: the room is
    /// broken, or membarrier(2) has failed.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut T) -> DatResult<R>) -> DatResult<R> {
        self.with_no_wake(|content| {
            let answer = work(content);
            content.kick();
            answer
        })
    }

    /// Runs `work` under the lock and wakes no thread. Called by a waiting thread that only checks its condition:
    /// `with` would wake the thread itself.
    ///
    /// # Errors
    /// Those of [`Room::with`].
    pub(super) fn with_no_wake<R>(
        &self,
        work: impl FnOnce(&mut T) -> DatResult<R>,
    ) -> DatResult<R> {
        self.with_guard(self.gate.lock(), work)
    }

    /// Runs `work` like [`Room::with`] if no thread holds the lock. Otherwise returns `None`.
    pub(super) fn try_with<R>(
        &self,
        work: impl FnOnce(&mut T) -> DatResult<R>,
    ) -> Option<DatResult<R>> {
        let guard = self.gate.try_lock()?;
        Some(self.with_guard(guard, |content| {
            let answer = work(content);
            content.kick();
            answer
        }))
    }

    fn with_guard<R>(
        &self,
        guard: Result<GateGuard<'_>, LockLost>,
        work: impl FnOnce(&mut T) -> DatResult<R>,
    ) -> DatResult<R> {
        let guard = guard.map_err(|none| self.shut(none))?;
        // SAFETY: the guard excludes all other threads, and no reference outlives it.
        let cell = unsafe { &mut *self.content.get() };
        let fuse = BreakOnPanic(self);
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
        drop(guard);
        if let Some(forwarded) = forwarded {
            forwarded();
        }
        drop(held);
        answer
    }

    /// Runs `work` in the fast lane. Returns `None` if the lane is closed, if a thread holds or waits for the lock, or
    /// if `work` returned `None`.
    #[inline(always)]
    pub(super) fn fast(&self, work: impl FnOnce(&mut T) -> Option<DatReturn>) -> Option<DatReturn> {
        if !self.gate.enter() {
            return None;
        }
        let answered = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: only one thread at a time is in the lane: the consumer of an adapter that is not thread safe
            // guarantees this, and the lane excludes the lock. The reference ends with `work`, before the lane is left.
            let cell = unsafe { &mut *self.content.get() };
            // SAFETY: the lane is open only while the room has a content.
            work(unsafe { cell.as_mut().unwrap_unchecked() })
        }));
        match answered {
            Ok(answer) => {
                self.gate.exit();
                answer
            }
            Err(panic) => Some(self.broken_in_the_lane(panic)),
        }
    }

    /// Runs `work` in the fast lane, or under the lock if the lane cannot be entered.
    pub(super) fn fast_or_locked(&self, work: impl Fn(&mut T) -> DatReturn) -> DatReturn {
        caught(|| {
            let answered = self.fast(|content| Some(work(content)));
            answered.unwrap_or_else(|| {
                self.with(|content| Ok(work(content)))
                    .unwrap_or_else(answer)
            })
        })
    }

    #[cold]
    #[inline(never)]
    fn broken_in_the_lane(&self, _panic: Box<dyn Any + Send>) -> DatReturn {
        drop(BreakOnPanic(self));
        self.gate.exit();
        panicked()
    }
}

/// A guard that breaks the room when a panic drops it. Without a panic it is forgotten, not dropped.
struct BreakOnPanic<'a, T>(&'a Room<T>);

impl<T> Drop for BreakOnPanic<'_, T> {
    #[cold]
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
        // Close the lane, so that no thread enters it any more.
        self.0.gate.close();
        // SAFETY: this thread holds the lock or is in the lane, and its reference to the content no longer exists.
        let content = unsafe { (*self.0.content.get()).take() };
        let _first = self.0.stop();
        let when_broken = unpoisoned(&self.0.when_broken).take();
        if let Some(work) = when_broken {
            work();
        }
        // Leak the content, because dropping a content in an unknown state is not safe.
        let _kept = ManuallyDrop::new(content);
    }
}
