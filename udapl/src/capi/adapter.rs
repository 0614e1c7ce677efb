//! An adapter as a C program has it open once: an [`Instance`], its IA, and what C needs beside it.
//!
//! An [`Adapter`] is a place for one; it is made when it is first needed, never goes, and serves another opening later.
//! So a pointer to it is always good, whoever holds it for how long. What is open in it, [`Open`], is reached through the
//! [`Gate`] only.
//!
//! Rust's handles are numbers of an IA, C's are numbers of the process ([`table`](super::table)). From C to Rust the
//! table leads; the way back, for events and queries, are the names kept here: for each kind a list by the index in the
//! Rust handle.
//!
//! If a call panics, which would be an error of ours, nobody knows what state its IA is in. The function is stopped, so that
//! nobody reaches memory by it any more: it is all the program's again. The IA is put away, with all it
//! holds, and every later call for that adapter answers DAT_INTERNAL_ERROR.

// UNSAFETY: what is open in an adapter is in a cell that the gate guards.
#![expect(unsafe_code, reason = "a cell behind a lock of our own")]

use core::any::Any;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use driver::Function;

use dat_core::{CrHandle, DatError, DatResult, EpHandle, HandleType, ReturnType, Subtype};

use super::call::{answer, caught, panicked};
use super::gate::{Gate, NoTurn, Turn};
use super::instance::Instance;
use super::records::Records;
use super::siblings::Siblings;
use super::sleep::Sleep;
use super::table::{self, IaName, Named, Reserved};
use super::types::{DatHandle, DatReturn};
use crate::Ia;

/// A place for an open adapter.
#[repr(C)]
pub(super) struct Adapter {
    gate: Gate,
    open: UnsafeCell<Option<Open>>,
    /// A call has panicked.
    broken: AtomicBool,
    /// Somebody opened it as thread safe, or it had agents, once. A post of theirs may still be on its way here, so the lane stays
    /// closed for good.
    many: AtomicBool,
    /// What is stopped if nothing can be asked of the IA any more.
    function: Mutex<Option<Function>>,
    /// What is open, as its siblings know it.
    siblings: Mutex<Option<(Arc<Siblings>, IaName)>>,
}

/// What is open.
pub(super) struct Open {
    /// The IA.
    pub(super) ia: Ia,
    /// C's handle for each object, with the key it is for, by index.
    pub(super) names: Names,
    pub(super) instance: Instance,
    /// The fast lane is open.
    lane: bool,
    /// What C's pointers point to.
    pub(super) records: Records,
    pub(super) sleep: Arc<Sleep>,
}

/// C's handle, with the raw key it is for, by the index in the key; a list for each kind.
#[derive(Default)]
pub(super) struct Names([Vec<(u64, u64)>; 11]);

// SAFETY: `open` is reached in a turn or in the fast lane of `gate` only, one thread at a time, and what is in it may
// move between threads (`movable` says so to the compiler).
unsafe impl Sync for Adapter {}

const fn movable<T: Send>() {}
const _: () = movable::<Open>();

/// Places nobody has open.
static IDLE: Mutex<Vec<&'static Adapter>> = Mutex::new(Vec::new());

impl Adapter {
    /// The adapter of a place in the handle table, if there ever was one.
    #[inline(always)]
    pub(super) fn of_place(adapter: *mut Self) -> Option<&'static Self> {
        // SAFETY: a pointer in a place is null or made of a `&'static Adapter` (`Reserved::fill`).
        unsafe { adapter.as_ref() }
    }

    /// A place, which never goes, with nothing open in it.
    pub(super) fn idle(many: bool) -> &'static Self {
        Box::leak(Box::new(Self {
            gate: Gate::new(),
            open: UnsafeCell::new(None),
            broken: AtomicBool::new(false),
            many: AtomicBool::new(many),
            function: Mutex::new(None),
            siblings: Mutex::new(None),
        }))
    }

    /// Opens an adapter for C.
    pub(super) fn open(reserved: Reserved<IaName>, mut open: Open) -> &'static Self {
        let (name, many) = (open.instance.name, open.instance.thread_safe);
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let alike = |place: &&Self| place.many.load(Ordering::Relaxed) == many;
        let at = idle.iter().position(alike);
        let adapter = at
            .map(|at| idle.swap_remove(at))
            .unwrap_or_else(|| Self::idle(many));
        drop(idle);
        // PANIC: the lane of a place that nobody has open is closed, and needs no fence.
        let _turn = adapter.gate.turn().expect("an idle adapter has turns");
        adapter.settle_lane(&mut open);
        adapter.set_function(Some(open.ia.provider().hca().function().clone()));
        reserved.fill(adapter, name, name);
        // SAFETY: the turn keeps everybody else out.
        unsafe { *adapter.open.get() = Some(open) };
        adapter
    }

    /// Opens or closes the fast lane, which is for an instance that is not thread safe and has no agents: those are called by a
    /// thread of ours, on which they may post and dequeue. In a turn: nobody is in the lane, and whoever comes by it meets the turn
    /// first.
    pub(super) fn settle_lane(&self, open: &mut Open) {
        if open.instance.thread_safe || open.instance.has_watch() {
            self.many.store(true, Ordering::Relaxed);
        }
        let may = !self.many.load(Ordering::Relaxed);
        match (open.lane, may) {
            (false, true) => self.gate.open(),
            (true, false) => self.gate.close(),
            (false, false) | (true, true) => {}
        }
        open.lane = may;
    }

    /// Runs `work` in a turn. Who sleeps on the adapter looks again afterwards.
    ///
    /// # Errors
    /// What `work` answers; DAT_INVALID_HANDLE|IA: it was closed meanwhile. DAT_INTERNAL_ERROR: it is broken.
    pub(super) fn turn<R>(
        &'static self,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> DatResult<R> {
        self.look(|open| {
            let answer = work(open);
            open.sleep.kick();
            answer
        })
    }

    /// The same on an instance.
    ///
    /// # Errors
    /// As [`Adapter::turn`]; DAT_INVALID_HANDLE|IA: the instance was closed meanwhile.
    pub(super) fn turn_of<R>(
        &'static self,
        ia: IaName,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> DatResult<R> {
        self.turn(|open| {
            open.check(ia)?;
            work(open)
        })
    }

    /// The same on an instance that may have been closed; nothing if it has.
    ///
    /// # Errors
    /// What `work` answers; DAT_INTERNAL_ERROR: the adapter is broken.
    pub(super) fn turn_if_open<R>(
        &'static self,
        ia: IaName,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> DatResult<Option<R>> {
        let answer = self.turn(|open| {
            // The place may serve another opening by now.
            Ok((open.instance.name == ia).then(|| work(open)))
        });
        match answer {
            Ok(done) => done.transpose(),
            Err(error) if error == handle_error(Subtype::HandleIa) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same for who only looks whether its wait is over, and would wake itself.
    ///
    /// # Errors
    /// As [`Adapter::turn`].
    pub(super) fn look<R>(
        &'static self,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> DatResult<R> {
        self.look_in(self.gate.turn(), work)
    }

    /// The same as [`Adapter::turn_of`] for who looks after an instance that nobody calls. `None`: somebody is in it.
    pub(super) fn try_turn_of<R>(
        &'static self,
        ia: IaName,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> Option<DatResult<R>> {
        let turn = self.gate.try_turn()?;
        Some(self.look_in(turn, |open| {
            open.check(ia)?;
            let answer = work(open);
            open.sleep.kick();
            answer
        }))
    }

    fn look_in<R>(
        &'static self,
        turn: Result<Turn<'_>, NoTurn>,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> DatResult<R> {
        let turn = turn.map_err(|none| self.shut(none))?;
        // SAFETY: the turn keeps everybody else out, and nobody is given a reference that outlasts one.
        let cell = unsafe { &mut *self.open.get() };
        let fuse = Fuse(self);
        let Some(open) = cell.as_mut() else {
            core::mem::forget(fuse);
            return Err(self.gone());
        };
        let held = open.sleep.hold_time();
        let answer = work(open);
        let strays = open.strays();
        core::mem::forget(fuse);
        drop(turn);
        // They are for another instance: nobody has two turns at a time.
        if let Some(strays) = strays {
            strays.deliver();
        }
        drop(held);
        answer
    }

    /// Runs `work` in the fast lane. `None`: that is closed, or `work` came to nothing.
    #[inline(always)]
    pub(super) fn fast(
        &'static self,
        work: impl FnOnce(&mut Open) -> Option<DatReturn>,
    ) -> Option<DatReturn> {
        if !self.gate.enter() {
            return None;
        }
        let answered = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the lane is one thread's at a time, as the consumer of an adapter that is not thread safe sees to, and
            // keeps turns out; `work` is done with the reference before the lane is left.
            let cell = unsafe { &mut *self.open.get() };
            // SAFETY: the gate lets nobody into the lane unless something is open.
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
    pub(super) fn fast_or_in_turn(
        &'static self,
        work: impl Fn(&mut Open) -> DatReturn,
    ) -> DatReturn {
        caught(|| {
            let answered = self.fast(|open| Some(work(open)));
            answered.unwrap_or_else(|| self.turn(|open| Ok(work(open))).unwrap_or_else(answer))
        })
    }

    #[cold]
    #[inline(never)]
    fn broken_in_the_lane(&'static self, _panic: Box<dyn Any + Send>) -> DatReturn {
        drop(Fuse(self));
        self.gate.leave();
        panicked()
    }

    /// Takes out an instance that is being closed. Its handles name nothing any more.
    ///
    /// # Errors
    /// Those of `may`; as [`Adapter::turn_of`].
    pub(super) fn leave(
        &'static self,
        ia: IaName,
        may: impl FnOnce(&Open) -> DatResult<()>,
    ) -> DatResult<Open> {
        let turn = self.gate.turn().map_err(|none| self.shut(none))?;
        // SAFETY: as in `turn`.
        let cell = unsafe { &mut *self.open.get() };
        let fuse = Fuse(self);
        let left = match cell.as_mut() {
            Some(open) => open.check(ia).and_then(|()| may(open)),
            None => Err(self.gone()),
        };
        let mut left = left.and_then(|()| cell.take().ok_or_else(|| self.gone()));
        let mut strays = None;
        if let Ok(open) = &mut left {
            strays = open.strays();
            if open.lane {
                self.gate.close();
            }
            self.set_function(None);
            self.set_siblings(None);
            open.forget_all();
            IDLE.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self);
        }
        core::mem::forget(fuse);
        drop(turn);
        if let Some(strays) = strays {
            strays.deliver();
        }
        left
    }

    pub(super) fn set_siblings(&self, siblings: Option<(Arc<Siblings>, IaName)>) {
        *self.siblings.lock().unwrap_or_else(PoisonError::into_inner) = siblings;
    }

    fn set_function(&self, function: Option<Function>) {
        *self.function.lock().unwrap_or_else(PoisonError::into_inner) = function;
    }

    /// Ends the function's use of memory: nothing can be asked of the IA any more. Once; whether this was the first time.
    fn stop(&self) -> bool {
        let mut function = self.function.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(function) = function.take() else {
            return false;
        };
        if let Err(error) = function.stop() {
            tracing::error!(function = function.name(), %error, "a broken adapter cannot be stopped");
        }
        true
    }

    /// Nobody can be kept out of the fast lane, so nobody goes in; what is open stays where it is.
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

/// Breaks the adapter unless it is forgotten: while a panic unwinds.
struct Fuse(&'static Adapter);

impl Drop for Fuse {
    #[cold]
    fn drop(&mut self) {
        self.0.broken.store(true, Ordering::Relaxed);
        // Nobody comes by the lane any more.
        self.0.gate.close();
        // SAFETY: the fuse lives inside a turn or the lane, and the reference that was made there is gone.
        let open = unsafe { (*self.0.open.get()).take() };
        let _first = self.0.stop();
        let siblings = self
            .0
            .siblings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((siblings, ia)) = siblings {
            siblings.bury(ia);
        }
        // Nobody knows what dropping it would do.
        let _kept = ManuallyDrop::new(open);
    }
}

impl Open {
    pub(super) fn new(ia: Ia, instance: Instance) -> Self {
        Self {
            records: Records::new(&ia),
            sleep: Arc::new(Sleep::new(&ia)),
            ia,
            names: Names::default(),
            instance,
            lane: false,
        }
    }

    /// C's handle of an object. An object that got none yet, because the IA made it, gets one; null if there are too many.
    pub(super) fn name<H: Named>(&mut self, adapter: &'static Adapter, object: H) -> DatHandle {
        if let Some(handle) = self.known(object) {
            return handle;
        }
        match Reserved::new() {
            Ok(reserved) => self.enter(adapter, reserved, object),
            Err(error) => {
                tracing::error!(%error, kind = ?H::KIND, "an object without a handle");
                core::ptr::null_mut()
            }
        }
    }

    /// C's handle of an object, if it has one.
    #[inline(always)]
    pub(super) fn known<H: Named>(&self, object: H) -> Option<DatHandle> {
        let key = object.raw().0;
        // CAST: the index is the lower half.
        #[expect(clippy::cast_possible_truncation, reason = "the index of the key")]
        let index = key as u32 as usize;
        let (of, handle) = self.names.0[H::KIND as usize].get(index)?;
        (*of == key).then(|| table::handle_of(*handle))
    }

    /// Gives a new object the handle that was reserved for it.
    pub(super) fn enter<H: Named>(
        &mut self,
        adapter: &'static Adapter,
        reserved: Reserved<H>,
        object: H,
    ) -> DatHandle {
        let key = object.raw().0;
        // CAST: the index is the lower half.
        #[expect(clippy::cast_possible_truncation, reason = "the index of the key")]
        let index = key as u32 as usize;
        let handle = reserved.handle();
        let names = &mut self.names.0[H::KIND as usize];
        if names.len() <= index {
            names.resize(index + 1, (0, 0));
        }
        // Who had the index before is gone, with or without our knowing.
        let (_, before) = core::mem::replace(&mut names[index], (key, handle));
        table::leave(before);
        if H::KIND == HandleType::Ep {
            let (key, ia) = object.raw();
            // An endpoint that is gone already has no posts and no completions to be known by.
            let _gone = self.ia.ep_set_name(EpHandle::from_raw(key, ia), handle);
        }
        reserved.fill(adapter, self.instance.name, object);
        table::handle_of(handle)
    }

    /// An object has gone, and its handle with it.
    pub(super) fn forget<H: Named>(&mut self, object: H) {
        if let Some(handle) = self.known(object) {
            // The name stays for events that are still queued; nothing is found by it.
            table::leave(table::number(handle));
        }
    }

    /// A connection request has been decided.
    pub(super) fn request_over(&mut self, cr: CrHandle, handle: DatHandle) {
        self.forget(cr);
        self.records.requests.remove(&table::number(handle));
    }

    fn forget_all(&self) {
        table::leave(table::number(self.ia_handle()));
        for (_, handle) in self.names.0.iter().flatten() {
            table::leave(*handle);
        }
    }
}

/// DAT_INVALID_HANDLE.
pub(super) fn handle_error(subtype: Subtype) -> DatError {
    DatError::new(ReturnType::InvalidHandle, subtype)
}

/// DAT_INTERNAL_ERROR.
pub(super) fn internal(why: &'static str) -> DatError {
    DatError::new(ReturnType::InternalError, Subtype::None).because(why)
}

/// DAT_INVALID_HANDLE with the subtype of a kind.
pub(super) const fn subtype_of(kind: HandleType) -> Subtype {
    match kind {
        HandleType::Cr => Subtype::HandleCr,
        HandleType::Ep => Subtype::HandleEp,
        HandleType::Evd => Subtype::Handle1,
        HandleType::Ia => Subtype::HandleIa,
        HandleType::Lmr => Subtype::HandleLmr,
        HandleType::Psp => Subtype::HandlePsp,
        HandleType::Pz => Subtype::HandlePz,
        HandleType::Rmr => Subtype::HandleRmr,
        HandleType::Rsp => Subtype::HandleRsp,
        HandleType::Cno => Subtype::HandleCno,
        HandleType::Srq => Subtype::HandleSrq,
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::null_mut;

    use super::super::call::{call, look_up};
    use super::super::primitives::refusal::REFUSED;
    use super::super::types::CAgent;
    use super::super::{
        dat_cno_create, dat_cno_free, dat_ia_close, dat_ia_openv, dat_pz_create, lend,
    };
    use super::*;
    use crate::OpenOptions;

    /// No answer of ours.
    const CLOSED: DatReturn = 77;

    /// What a call for the adapter answers.
    fn answer(ia: DatHandle) -> u32 {
        let mut pz = null_mut();
        // SAFETY: a place for a handle.
        unsafe { dat_pz_create(ia, &raw mut pz) }
    }

    fn opened(name: &str) -> DatHandle {
        let ia = crate::ia_open(name, &OpenOptions::default()).expect("an adapter");
        let handle = lend(ia, false).expect("a handle");
        assert_eq!(answer(handle), 0, "as long as nothing has happened");
        handle
    }

    #[test]
    fn a_panic_in_a_turn_is_an_answer_and_puts_the_adapter_away() {
        let handle = opened("sim:panics-in-a-turn");
        let broken = internal("").code();
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        let function = function_of(adapter);
        assert!(is_bus_master(&function));
        let answered = call(|| {
            let (adapter, _) = look_up::<IaName>(handle)?;
            adapter.turn(|_| -> DatResult<()> { panic!("as if we had made a mistake") })
        });
        // The memory is the program's again.
        assert!(!is_bus_master(&function));
        assert_eq!(answered, broken);
        assert_eq!(answer(handle), broken);
    }

    #[test]
    fn a_panic_in_one_instance_ends_the_function_and_others_answer_that() {
        let first = opened_by_name(c"sim:panics-beside-another");
        let second = opened_by_name(c"sim:panics-beside-another");
        let (adapter, _) = look_up::<IaName>(first).expect("it is open");
        let (other, _) = look_up::<IaName>(second).expect("it is open");
        let function = function_of(other);
        let answered =
            call(|| adapter.turn(|_| -> DatResult<()> { panic!("as if we had made a mistake") }));
        assert_eq!(answered, internal("").code());
        assert!(!is_bus_master(&function));
        assert_ne!(answer(second), 0, "its device is dead");
        // A dead adapter closes, and the handle of the broken one stays good for nothing.
        assert_eq!(dat_ia_close(second, 0), 0);
        assert_eq!(answer(first), internal("").code());
    }

    fn opened_by_name(name: &core::ffi::CStr) -> DatHandle {
        let (mut async_evd, mut ia) = (null_mut(), null_mut());
        // SAFETY: a string, and places for handles.
        let answer =
            unsafe { dat_ia_openv(name.as_ptr(), 8, &raw mut async_evd, &raw mut ia, 1, 2, 0) };
        assert_eq!(answer, 0);
        ia
    }

    fn function_of(adapter: &'static Adapter) -> Function {
        let function = adapter.turn(|open| Ok(open.ia.provider().hca().function().clone()));
        function.expect("open")
    }

    fn is_bus_master(function: &Function) -> bool {
        function.config_read_u16(4).expect("readable") & 4 != 0
    }

    #[test]
    fn an_adapter_whose_lane_cannot_be_emptied_is_refused_by_name_and_stopped() {
        let handle = opened("sim:without-membarrier");
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        let function = function_of(adapter);
        if adapter.fast(|_| Some(0)).unwrap_or(CLOSED) == CLOSED {
            return; // no membarrier(2), no lane
        }
        REFUSED.set(Some(libc::EPERM));
        let refused = adapter.turn(|_| -> DatResult<()> { panic!("nobody gets in") });
        REFUSED.set(None);
        let error = refused.expect_err("no fence");
        assert_eq!(error.return_type(), ReturnType::InternalError);
        assert!(error.to_string().contains("membarrier(2)"), "{error}");
        assert!(!is_bus_master(&function));
        assert_eq!(answer(handle), internal("").code(), "for good");
        assert_eq!(adapter.fast(|_| Some(0)).unwrap_or(CLOSED), CLOSED);
        assert_ne!(dat_ia_close(handle, 0), 0);
    }

    #[test]
    fn an_adapter_with_agents_has_no_lane() {
        extern "C" fn agent(_data: *mut core::ffi::c_void, _evd: DatHandle) {}
        let handle = opened("sim:with-an-agent");
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        let lane = || adapter.fast(|_| Some(0)).unwrap_or(CLOSED);
        let mut cno = null_mut();
        let proxy = CAgent {
            instance_data: null_mut(),
            proxy_agent_func: Some(agent),
        };
        // SAFETY: a place for a handle.
        let made = unsafe { dat_cno_create(handle, proxy, &raw mut cno) };
        assert_eq!(made, 0);
        assert_eq!(
            lane(),
            CLOSED,
            "a thread of the library's may be about to call"
        );
        assert_eq!(dat_cno_free(cno), 0);
        assert_eq!(lane(), CLOSED, "it may still be on its way");
        assert_eq!(dat_ia_close(handle, 0), 0);
    }

    #[test]
    fn a_panic_in_the_fast_lane_is_an_answer_and_puts_the_adapter_away() {
        let handle = opened("sim:panics-in-the-lane");
        let broken = internal("").code();
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        let answered = adapter
            .fast(|_| panic!("as if we had made a mistake"))
            .unwrap_or(CLOSED);
        // Where there is no membarrier(2) there is no lane.
        if answered != CLOSED {
            assert_eq!(answered, broken);
            assert_eq!(answer(handle), broken);
            let again = adapter.fast(|_| Some(0)).unwrap_or(CLOSED);
            assert_eq!(again, CLOSED, "nobody comes by the lane");
        }
        // An adapter opened later has a place of its own.
        let _other = opened("sim:opens-after-a-panic");
    }

    #[test]
    fn each_opening_has_a_lane_of_its_own_but_for_thread_safe_ones() {
        let open = |thread_safe| {
            let (mut async_evd, mut ia) = (null_mut(), null_mut());
            let name = c"sim:opened-twice".as_ptr();
            // SAFETY: a string, and places for handles.
            let answer = unsafe {
                dat_ia_openv(name, 8, &raw mut async_evd, &raw mut ia, 1, 2, thread_safe)
            };
            assert_eq!(answer, 0);
            ia
        };
        let first = open(0);
        let lane = |ia| {
            let (adapter, _) = look_up::<IaName>(ia).expect("it is open");
            adapter.fast(|_| Some(0)).unwrap_or(CLOSED)
        };
        let alone = lane(first);
        for (thread_safe, its_own) in [(0, alone), (1, CLOSED)] {
            let second = open(thread_safe);
            assert_eq!((lane(first), lane(second)), (alone, its_own));
            assert_eq!(dat_ia_close(second, 0), 0);
            assert_eq!(lane(first), alone);
        }
        assert_eq!(dat_ia_close(first, 0), 0);
    }
}
