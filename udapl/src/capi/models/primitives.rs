//! Primitives with the names of [`primitives`](crate::capi::primitives), built on loom, which runs every order of
//! events that the language's memory model allows (up to a number of preemptions).
//!
//! membarrier(2) is modelled as in Linux (kernel/sched/membarrier.c). The kernel interrupts every running thread of
//! the process, makes it execute a full fence *between two of its instructions*, and waits for all. A thread that is
//! not running executed a fence when it was taken off its processor, and executes another one before it runs again
//! (`switch_mm`). So the light half of the fence does nothing in this model: instructions are in program order anyway,
//! and loom lets loads miss the stores of other threads as processors do. [`Fences::Paired`] is the other model, that
//! of the proposals for asymmetric fences: each half is a sequentially consistent fence towards the other half. The
//! second model is stronger than Linux between two light halves, but only one thread at a time executes light halves.
//!
//! Some tests run a model with a deliberate mistake ([`Broken`]), to show that the model detects it.

use std::cell::Cell;
use std::sync::{LockResult, TryLockResult};

pub(super) use loom::sync::MutexGuard;
pub(super) use loom::sync::atomic::AtomicPtr;
pub(super) use loom::sync::atomic::{AtomicI32, Ordering};
use loom::sync::atomic::{AtomicU32 as Word, fence};
use loom::sync::{Condvar, Mutex as Lock};
use loom::thread;

/// A model of the fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fences {
    /// The kernel interrupts running threads, as Linux does.
    Interrupts,
    /// Each half is a sequentially consistent fence.
    Paired,
    /// The kernel has membarrier(2), but the call now fails with this errno.
    Refused(i32),
    /// The kernel has no membarrier(2).
    Missing,
}

/// A deliberate mistake in the primitives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// No mistake.
    Nothing,
    /// The light half is no fence; only for `Fences::Paired`, in which it is one.
    LightFence,
    /// The heavy half is missing: other threads execute no fence.
    HeavyFence,
    /// A thread enters the lane without checking for a closed lane or a thread that wants the lock.
    Check,
    /// The locking thread does not wait for the thread in the lane.
    Wait,
    /// A signal to a sleeping thread is missing.
    Signal,
    /// A 64-bit store is not a release.
    Release,
    /// A 64-bit exchange is a separate load and store.
    Exchange,
}

std::thread_local! {
    // Thread-local, because loom runs all threads of a model on the thread that started the model.
    static MACHINE: Cell<(Fences, Broken)> = const { Cell::new((Fences::Interrupts, Broken::Nothing)) };
}

/// Selects the model of the fences and the mistake for the following models of this test.
pub(super) fn set(fences: Fences, broken: Broken) {
    MACHINE.set((fences, broken));
}

fn is_broken(what: Broken) -> bool {
    MACHINE.get().1 == what
}

/// Number of threads that can be interrupted.
const THREADS: usize = 3;
/// States of a thread: not running; running; running while the kernel waits for its fence.
const OFF: u32 = 0;
const RUNNING: u32 = 1;
const INTERRUPTED: u32 = 2;

loom::lazy_static! {
    static ref PROCESSORS: [Word; THREADS] = [Word::new(OFF), Word::new(OFF), Word::new(OFF)];
}

loom::thread_local! {
    static SELF: Cell<Option<usize>> = Cell::new(None);
}

fn own() -> Option<usize> {
    SELF.with(Cell::get)
}

/// A thread that is running on a processor, until this value is dropped.
pub(super) struct Running(usize);

impl Running {
    /// Starts running a thread that uses the lane, under a number that no other thread has.
    pub(super) fn on(number: usize) -> Self {
        SELF.with(|own| own.set(Some(number)));
        switch_to(number);
        Self(number)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        switch_from(self.0);
        SELF.with(|own| own.set(None));
    }
}

fn switch_to(number: usize) {
    PROCESSORS[number].swap(RUNNING, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

fn switch_from(number: usize) {
    fence(Ordering::SeqCst);
    PROCESSORS[number].swap(OFF, Ordering::AcqRel);
}

/// Marks a point between two instructions, at which the kernel may interrupt the thread.
pub(super) fn between_instructions() {
    let Some(number) = own() else { return };
    let word = &PROCESSORS[number];
    if word.load(Ordering::Acquire) == INTERRUPTED {
        fence(Ordering::SeqCst);
        word.store(RUNNING, Ordering::Release);
    }
}

/// Models membarrier(2): interrupts all running threads and waits for their fences.
fn interrupt_all() {
    fence(Ordering::SeqCst);
    for (number, word) in PROCESSORS.iter().enumerate() {
        if own() == Some(number) {
            continue;
        }
        let was = word.compare_exchange(RUNNING, INTERRUPTED, Ordering::AcqRel, Ordering::Acquire);
        while was.is_ok() && word.load(Ordering::Acquire) == INTERRUPTED {
            thread::yield_now();
        }
    }
    fence(Ordering::SeqCst);
}

pub(super) fn has_heavy_fence() -> bool {
    MACHINE.get().0 != Fences::Missing
}

pub(super) fn light_fence() {
    if MACHINE.get() == (Fences::Paired, Broken::LightFence) {
        return;
    }
    if MACHINE.get().0 == Fences::Paired {
        fence(Ordering::SeqCst);
    }
}

pub(super) fn heavy_fence() -> Result<(), i32> {
    match MACHINE.get().0 {
        _ if is_broken(Broken::HeavyFence) => {}
        Fences::Interrupts => interrupt_all(),
        Fences::Paired => fence(Ordering::SeqCst),
        Fences::Refused(errno) => return Err(errno),
        Fences::Missing => return Err(libc::ENOSYS),
    }
    Ok(())
}

pub(super) fn pause(_count: u32) {
    between_instructions();
    thread::yield_now();
}

pub(super) struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub(super) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub(super) fn load(&self, order: Ordering) -> bool {
        between_instructions();
        self.0.load(order) && !is_broken(Broken::Wait)
    }

    pub(super) fn store(&self, value: bool, order: Ordering) {
        between_instructions();
        // This is an exchange, because loom orders plain stores of two threads only partly: a thread that waits for the
        // last store might read an older one for ever. The values that other threads may read are the same as for a
        // store.
        self.0.swap(value, order);
    }
}

pub(super) struct AtomicU32(Word);

impl AtomicU32 {
    pub(super) fn new(value: u32) -> Self {
        Self(Word::new(value))
    }

    pub(super) fn load(&self, order: Ordering) -> u32 {
        between_instructions();
        if is_broken(Broken::Check) {
            return 0;
        }
        self.0.load(order)
    }

    pub(super) fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        between_instructions();
        self.0.fetch_add(value, order)
    }

    pub(super) fn store(&self, value: u32, order: Ordering) {
        between_instructions();
        self.0.store(value, order);
    }

    pub(super) fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        between_instructions();
        self.0.fetch_sub(value, order)
    }
}

pub(super) struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(super) fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    pub(super) fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    pub(super) fn store(&self, value: u64, order: Ordering) {
        let order = if is_broken(Broken::Release) {
            Ordering::Relaxed
        } else {
            order
        };
        self.0.store(value, order);
    }

    pub(super) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        if !is_broken(Broken::Exchange) {
            return self.0.compare_exchange(current, new, success, failure);
        }
        match self.0.load(Ordering::Acquire) {
            found if found == current => {
                self.0.store(new, Ordering::Release);
                Ok(found)
            }
            found => Err(found),
        }
    }
}

pub(super) struct Mutex<T>(Lock<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    /// Locks the mutex. A thread that waits for the lock has no processor meanwhile.
    pub(super) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let Some(number) = own() else {
            return self.0.lock();
        };
        switch_from(number);
        let guard = self.0.lock();
        switch_to(number);
        guard
    }

    pub(super) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock()
    }
}

loom::lazy_static! {
    // One condition variable serves all interrupts, so that any of several interrupts wakes a thread that waits for
    // them.
    static ref SIGNALLED: (Lock<()>, Condvar) = (Lock::new(()), Condvar::new());
}

/// A model of an eventfd: a counter. Clones have the same counter.
#[derive(Clone)]
pub(super) struct Interrupt(loom::sync::Arc<Lock<u64>>);

impl Interrupt {
    /// Creates an interrupt. Returns a `Result` like the real function, which fails if no descriptor is free.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self(loom::sync::Arc::new(Lock::new(0))))
    }

    fn count(&self) -> MutexGuard<'_, u64> {
        self.0.lock().expect("no thread of a model panics alone")
    }

    pub(super) fn signal(&self) {
        if is_broken(Broken::Signal) {
            return;
        }
        let _all = SIGNALLED.0.lock().expect("as above");
        *self.count() += 1;
        SIGNALLED.1.notify_all();
    }

    pub(super) fn take(&self) -> u64 {
        core::mem::take(&mut *self.count())
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        loom::sync::Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sleeps until one of `interrupts` is signalled, and does not clear the signal. There is no time limit, so that
    /// after a lost wake-up the thread sleeps for ever.
    pub(super) fn wait(interrupts: &[&Self]) {
        let mut all = SIGNALLED.0.lock().expect("as above");
        while interrupts.iter().all(|one| *one.count() == 0) {
            all = SIGNALLED.1.wait(all).expect("as above");
        }
    }
}
