//! One opening of an adapter by a C program: an IA with the state that C needs. The IA is one
//! [instance](super::instance) of a device, which may have several instances.
//!
//! An [`Adapter`] is a reusable slot ([`room`](super::room)) for one such opening. A slot is allocated when first
//! needed and never freed; later openings use it again.
//!
//! Rust's handles are numbers within an IA; C's handles are numbers within the process ([`table`](super::table)). The
//! table maps C's handles to Rust's ([`find`]). Events and queries need the reverse mapping, which is in this module:
//! for each kind of object, a list of C's handles by the index in the Rust handle.

// UNSAFETY: tests that call the C ABI.
#![cfg_attr(test, expect(unsafe_code, reason = "calls of the C ABI"))]

use std::sync::{Arc, Mutex, PoisonError};

use dat_core::{
    AnyHandle, CnoHandle, CrHandle, DatResult, EpHandle, EvdHandle, HandleType, LmrHandle,
    PspHandle, PzHandle, RmrHandle, RspHandle, SrqHandle, Subtype,
};

use super::dat2;
use super::directory::Entry;
use super::error::handle_error;
use super::fork;
use super::locked;
use super::records::{Address, Records};
use super::room::Room;
use super::siblings::Sibling;
use super::sleep::Sleep;
use super::table::{
    self, Holder, IaName, KINDS, Named, Places, Reserved, Withdrawn, empty, handle_of, number,
    place_of,
};
use super::types::DatHandle;
use super::watch::Watch;
use crate::Ia;

/// A reusable slot for an open adapter.
pub(super) type Adapter = Room<Open>;

/// The contents of the slot: an open adapter.
pub(super) struct Open {
    /// The IA.
    pub(super) ia: Ia,
    /// C's handle and Rust key of each object, indexed by the key's index.
    pub(super) names: Names,
    pub(super) instance: Instance,
    /// Memory for the pointers that queries return to C.
    pub(super) records: Records,
    pub(super) sleep: Arc<Sleep>,
}

/// Properties of one opening of an adapter.
pub(super) struct Instance {
    pub(super) name: IaName,
    /// C's handle of the IA.
    pub(super) handle: u64,
    pub(super) async_evd: AsyncEvd,
    pub(super) thread_safe: bool,
    /// Address of the IA, as queries and events report it.
    pub(super) local: Address,
    pub(super) siblings: Arc<Siblings>,
    /// Thread that calls the agents, if it has been started.
    pub(super) watch: Option<Watch>,
    /// The program's own bytes of a resumed instance.
    pub(super) state: Box<[u8]>,
    /// Keeps the registry's entry in use while the instance is open.
    pub(super) _entry: Option<Arc<Entry>>,
}

/// Destination of an instance's asynchronous events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AsyncEvd {
    /// The instance's own asynchronous EVD.
    Own,
    /// The EVD of another instance with this C handle. After that EVD has been freed, events go where those of
    /// `OutOfScope` go.
    Given(u64),
    /// The own asynchronous EVDs of all other instances: the consumer opened this instance without an asynchronous EVD
    /// (`DAT_EVD_ASYNC_EXISTS`).
    OutOfScope,
}

impl Instance {
    /// Returns whether a library thread calls the instance's agents.
    pub(super) const fn has_watch(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns whether calls of agents are queued. The caller must hold the lock, under which they are queued.
    pub(super) fn is_about_to_call(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_about_to_call)
    }
}

/// All instances of a device.
pub(super) type Siblings = super::siblings::Siblings<Opened>;

/// An instance: its slot, and the name of its IA.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    pub(super) adapter: &'static Adapter,
    pub(super) ia: IaName,
}

impl Sibling for Opened {
    fn name(self) -> IaName {
        self.ia
    }

    fn owner_of(evd: DatHandle) -> Option<(Self, EvdHandle)> {
        let (adapter, ia, evd) = find_owned(evd)?;
        Some((Self { adapter, ia }, evd))
    }

    fn with<R>(self, work: impl FnOnce(&mut Ia) -> DatResult<R>) -> DatResult<R> {
        self.adapter
            .with_instance(self.ia, |open| work(&mut open.ia))
    }

    fn try_with<R>(self, work: impl FnOnce(&mut Ia) -> DatResult<R>) -> Option<DatResult<R>> {
        self.adapter.try_with(|open| {
            open.check(self.ia)?;
            work(&mut open.ia)
        })
    }
}

/// Lists of Rust key and C handle, one list for each kind of object, indexed by the key's index.
#[derive(Default)]
pub(super) struct Names(pub(super) [Vec<(u64, u64)>; KINDS]);

/// Table entries of all handles, by kind. The array is static, so that the address of an entry is computed in one
/// instruction.
static PLACES: [Places<Adapter>; KINDS] = [const { empty() }; KINDS];

impl Holder for Adapter {
    #[inline(always)]
    fn places(kind: HandleType) -> &'static Places<Self> {
        &PLACES[kind as usize]
    }

    fn places_of(kind: usize) -> Option<&'static Places<Self>> {
        PLACES.get(kind)
    }
}

/// Prepares the process for open adapters. A child of fork(2) does not inherit adapters that are opened from now on. A
/// program that locks its memory locks only the parts of the tables that are in use.
///
/// # Errors
/// Those of [`fork::guard`].
pub(super) fn guard() -> DatResult<()> {
    fork::guard(PLACES.iter().map(fork::wiped))?;
    locked::lock_on_use(PLACES.iter().map(fork::wiped).chain([dat2::cells()]));
    Ok(())
}

/// Returns the object of a handle and its adapter; `None` if the handle is invalid or of another kind.
#[inline(always)]
pub(super) fn find<H: Named>(handle: DatHandle) -> Option<(&'static Adapter, H)> {
    table::find(handle)
}

/// Returns the object of a handle, and the instance to which it belongs.
pub(super) fn find_owned<H: Named>(handle: DatHandle) -> Option<(&'static Adapter, IaName, H)> {
    table::find_owned(handle)
}

macro_rules! any_kind {
    ($($kind:ident: $handle:ident,)*) => {
        /// Returns the object of a handle of any kind, and the instance to which it belongs.
        pub(super) fn object(handle: DatHandle) -> Option<(&'static Adapter, IaName, AnyHandle)> {
            let (kind, _) = place_of(number(handle));
            if kind == HandleType::Ia as usize {
                return find_owned::<IaName>(handle).map(|(adapter, ia, _)| (adapter, ia, AnyHandle::Ia));
            }
            $(if kind == HandleType::$kind as usize {
                return find_owned::<$handle>(handle).map(|(adapter, ia, object)| (adapter, ia, object.into()));
            })*
            None
        }
    };
}

any_kind! {
    Cr: CrHandle,
    Ep: EpHandle,
    Evd: EvdHandle,
    Lmr: LmrHandle,
    Psp: PspHandle,
    Pz: PzHandle,
    Rmr: RmrHandle,
    Rsp: RspHandle,
    Cno: CnoHandle,
    Srq: SrqHandle,
}

/// Slots with no open adapter.
static IDLE: Mutex<Vec<&'static Adapter>> = Mutex::new(Vec::new());

impl Room<Open> {
    /// Allocates a slot without an open adapter. `many`: the slot is for thread-safe instances.
    pub(super) fn idle(many: bool) -> &'static Self {
        Box::leak(Box::new(Self::new(many)))
    }

    /// Moves an open IA into a free slot, and makes its reserved handle valid.
    pub(super) fn open(reserved: Reserved<IaName>, open: Open) -> &'static Self {
        let name = open.instance.name;
        let adapter = Self::free(open.instance.thread_safe);
        adapter.put(open);
        reserved.fill(adapter, name, name);
        adapter
    }

    /// Takes a free slot, or allocates one. `many`: the slot is for thread-safe instances.
    pub(super) fn free(many: bool) -> &'static Self {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|place| place.is_shared() == many);
        let free = at.map(|at| idle.swap_remove(at));
        drop(idle);
        free.unwrap_or_else(|| Self::idle(many))
    }

    /// Puts an open IA into a slot that [`free`](Self::free) or [`take_whole`](Self::take_whole) has emptied.
    pub(super) fn put(&self, open: Open) {
        let many = open.instance.thread_safe;
        let function = open.ia.provider().hca().function().clone();
        self.set_content(open, function, many);
    }

    /// Takes an instance out of its slot, if `may` allows it, together with its handles, which become invalid. The slot
    /// and the places of the handles stay reserved.
    ///
    /// # Errors
    /// Those of `may` and of [`Room::with_instance`].
    pub(super) fn take_whole(
        &self,
        ia: IaName,
        may: impl FnOnce(&Open) -> DatResult<()>,
    ) -> DatResult<(Open, Withdrawn)> {
        let mut withdrawn = None;
        let open = self.take_content(
            |open| open.check(ia).and_then(|()| may(open)),
            |open| withdrawn = Some(Withdrawn::withdraw::<Self>(open.handles(), ia)),
        )?;
        // PANIC: `take_content` has called the second closure if it returns the content.
        Ok((open, withdrawn.expect("withdrawn with the content")))
    }

    /// Makes a slot that [`take_whole`](Self::take_whole) has emptied free for another opening.
    pub(super) fn give_back(&'static self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(self);
    }

    /// Opens or closes the fast lane, on which posts and dequeues run without the lock. The lane is open for an
    /// instance that is not thread safe and has no agents, because agents run on a library thread and may post and
    /// dequeue there. The caller must hold the lock.
    pub(super) fn set_lane_of(&self, open: &Open) {
        self.set_lane(open.instance.thread_safe || open.instance.has_watch());
    }

    /// Runs `work` on an instance, with exclusive access to its slot (the lock).
    ///
    /// # Errors
    /// Those of [`Room::with`]. DAT_INVALID_HANDLE|IA: the instance was closed meanwhile.
    pub(super) fn with_instance<R>(
        &self,
        ia: IaName,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> DatResult<R> {
        self.with(|open| {
            open.check(ia)?;
            work(open)
        })
    }

    /// Runs `work` on an instance under the lock, unless the instance has been closed; then returns `None`.
    ///
    /// # Errors
    /// The errors of `work`. DAT_INTERNAL_ERROR: the adapter is broken, or membarrier(2) has failed.
    pub(super) fn with_if_open<R>(
        &self,
        ia: IaName,
        work: impl FnOnce(&mut Open) -> DatResult<R>,
    ) -> DatResult<Option<R>> {
        let answer = self.with(|open| {
            // The slot may contain a later opening.
            Ok((open.instance.name == ia).then(|| work(open)))
        });
        none_if_closed(answer)?.transpose()
    }

    /// Runs `work` on an instance under the lock and wakes no thread ([`Room::with_no_wake`]), unless the instance
    /// has been closed; then returns `None`.
    ///
    /// # Errors
    /// DAT_INTERNAL_ERROR: the adapter is broken, or membarrier(2) has failed.
    pub(super) fn with_no_wake_if_open<R>(
        &self,
        ia: IaName,
        work: impl FnOnce(&mut Open) -> R,
    ) -> DatResult<Option<R>> {
        // The slot may contain a later opening.
        none_if_closed(self.with_no_wake(|open| Ok((open.instance.name == ia).then(|| work(open)))))
    }

    /// Removes an instance that is being closed, if `may` allows it. All of its handles become invalid.
    ///
    /// # Errors
    /// Those of `may` and of [`Room::with_instance`].
    pub(super) fn remove(
        &'static self,
        ia: IaName,
        may: impl FnOnce(&Open) -> DatResult<()>,
    ) -> DatResult<Open> {
        self.take_content(
            |open| open.check(ia).and_then(|()| may(open)),
            |open| {
                open.handles()
                    .for_each(|handle| table::free_handle::<Self>(handle, ia));
                self.give_back();
            },
        )
    }
}

/// Converts the error of an empty slot, whose instance has been closed, to `None`.
fn none_if_closed<R>(answer: DatResult<Option<R>>) -> DatResult<Option<R>> {
    match answer {
        Err(error) if error == handle_error(Subtype::HandleIa) => Ok(None),
        answer => answer,
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
        }
    }

    /// Checks that the slot still contains this instance.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|IA: the instance was closed.
    pub(super) fn check(&self, ia: IaName) -> DatResult<()> {
        if self.instance.name != ia {
            return Err(handle_error(Subtype::HandleIa));
        }
        Ok(())
    }

    /// Returns C's handle of the IA.
    pub(super) fn ia_handle(&self) -> DatHandle {
        handle_of(self.instance.handle)
    }

    /// Returns C's handle of an object. An object that the IA itself has created has no C handle yet, and gets one
    /// here. Returns null if the table is full.
    pub(super) fn name<H: Named>(&mut self, adapter: &'static Adapter, object: H) -> DatHandle {
        if let Some(handle) = self.known(object) {
            return handle;
        }
        match Reserved::new() {
            Ok(reserved) => self.enter(adapter, reserved, object),
            Err(error) => {
                tracing::error!(%error, kind = ?H::KIND, "no handle left for an object");
                core::ptr::null_mut()
            }
        }
    }

    /// Returns C's handle of an object, if it has one.
    #[inline(always)]
    pub(super) fn known<H: Named>(&self, object: H) -> Option<DatHandle> {
        let key = object.raw().0;
        // CAST: the index is the lower half.
        #[expect(clippy::cast_possible_truncation, reason = "the index of the key")]
        let index = key as u32 as usize;
        let (of, handle) = self.names.0[H::KIND as usize].get(index)?;
        (*of == key).then(|| table::handle_of(*handle))
    }

    /// Assigns a reserved handle to a new object.
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
        // The previous object with this index has been freed, perhaps by the IA itself.
        let (_, before) = core::mem::replace(&mut names[index], (key, handle));
        table::free_handle::<Adapter>(before, self.instance.name);
        if H::KIND == HandleType::Ep {
            let (key, ia) = object.raw();
            // The call fails for an endpoint that has been freed. Such an endpoint has no posts and no completions that
            // need the name.
            let _gone = self.ia.ep_set_name(EpHandle::from_raw(key, ia), handle);
        }
        reserved.fill(adapter, self.instance.name, object);
        table::handle_of(handle)
    }

    /// Invalidates the handle of a freed object.
    pub(super) fn forget<H: Named>(&mut self, object: H) {
        if let Some(handle) = self.known(object) {
            // The entry in `names` is kept, because queued events need it. Only the table's entry is removed.
            table::free_handle::<Adapter>(table::number(handle), self.instance.name);
        }
    }

    /// Invalidates the handle of a connection request after its decision.
    pub(super) fn forget_request(&mut self, cr: CrHandle, handle: DatHandle) {
        self.forget(cr);
        self.records.requests.remove(&table::number(handle));
    }

    /// Returns the handles of the IA and of its objects, including handles of freed objects.
    fn handles(&self) -> impl Iterator<Item = u64> {
        let of_objects = self.names.0.iter().flatten();
        core::iter::once(self.instance.handle).chain(of_objects.map(|(_, handle)| *handle))
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::null_mut;

    use dat_core::ReturnType;
    use driver::Function;

    use super::super::answer::call;
    use super::super::call::look_up;
    use super::super::error::internal;
    use super::super::primitives::refusal::REFUSED;
    use super::super::types::{CAgent, CEvent, DatReturn};
    use super::super::{
        dat_cno_create, dat_cno_free, dat_cno_wait, dat_evd_create, dat_evd_wait, dat_ia_close,
        dat_ia_openv, dat_pz_create, lend,
    };
    use super::*;
    use crate::OpenOptions;

    /// A return code that the library never uses.
    const CLOSED: DatReturn = 77;

    /// Calls `dat_pz_create`, and returns its code.
    fn answer(ia: DatHandle) -> u32 {
        let mut pz = null_mut();
        // SAFETY: contract ROOM for the handle.
        unsafe { dat_pz_create(ia, &raw mut pz) }
    }

    fn opened(name: &str) -> DatHandle {
        let ia = crate::ia_open(name, &OpenOptions::default()).expect("an adapter");
        let handle = lend(ia, false).expect("a handle");
        assert_eq!(answer(handle), 0, "as long as nothing has happened");
        handle
    }

    #[test]
    fn a_panic_under_the_lock_returns_internal_error_and_breaks_the_adapter() {
        let handle = opened("sim:panics-under-the-lock");
        let broken = internal("").code();
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        let function = function_of(adapter);
        assert!(is_bus_master(&function));
        let answered = call(|| {
            let (adapter, _) = look_up::<IaName>(handle)?;
            adapter.with(|_| -> DatResult<()> { panic!("as if we had made a mistake") })
        });
        // The device can no longer access the program's memory.
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
            call(|| adapter.with(|_| -> DatResult<()> { panic!("as if we had made a mistake") }));
        assert_eq!(answered, internal("").code());
        assert!(!is_bus_master(&function));
        assert_ne!(answer(second), 0, "its device is dead");
        // An adapter with a dead device can be closed. The handle of the instance that has panicked stays unusable.
        assert_eq!(dat_ia_close(second, 0), 0);
        assert_eq!(answer(first), internal("").code());
    }

    /// Breaks an adapter while another thread waits in it, and returns the code of the wait. `wait` gets C's handle of
    /// the IA, as an address.
    fn code_of_a_broken_wait(name: &str, wait: fn(usize) -> DatReturn) -> DatReturn {
        let handle = opened(name);
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        let address = handle.addr();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || wait(address));
            // A waiting thread holds the adapter's `Sleep` from the call in which its wait begins.
            let panics_beside_a_wait = || {
                adapter.with(|open| {
                    assert_eq!(Arc::strong_count(&open.sleep), 1, "a thread waits");
                    Ok(())
                })
            };
            while call(panics_beside_a_wait) == 0 {
                assert!(!waiter.is_finished(), "it waits");
                std::thread::yield_now();
            }
            waiter.join().expect("the waiter")
        })
    }

    #[test]
    fn a_wait_on_a_cno_of_an_adapter_that_breaks_returns_internal_error() {
        let waited = code_of_a_broken_wait("sim:breaks-beside-a-cno-wait", |ia| {
            let (ia, mut cno) = (handle_of(ia as u64), null_mut());
            let none = CAgent {
                instance_data: null_mut(),
                proxy_agent_func: None,
            };
            // SAFETY: contract ROOM for the handle.
            assert_eq!(unsafe { dat_cno_create(ia, none, &raw mut cno) }, 0);
            let mut evd = null_mut();
            // SAFETY: contract ROOM for the handle.
            unsafe { dat_cno_wait(cno, u32::MAX, &raw mut evd) }
        });
        assert_eq!(waited, internal("").code());
    }

    #[test]
    fn a_wait_on_an_evd_of_an_adapter_that_breaks_returns_internal_error() {
        let waited = code_of_a_broken_wait("sim:breaks-beside-an-evd-wait", |ia| {
            let (ia, mut evd) = (handle_of(ia as u64), null_mut());
            // SAFETY: contract ROOM for the handle.
            let made = unsafe { dat_evd_create(ia, 4, null_mut(), 1, &raw mut evd) };
            assert_eq!(made, 0);
            let (mut event, mut left) = (core::mem::MaybeUninit::<CEvent>::uninit(), 0);
            // SAFETY: contract ROOM for the event and the number.
            unsafe { dat_evd_wait(evd, u32::MAX, 1, event.as_mut_ptr(), &raw mut left) }
        });
        assert_eq!(waited, internal("").code());
    }

    /// A break wakes the threads that sleep, whether the call that broke the adapter held the lock or was in the lane.
    #[test]
    fn an_adapter_that_breaks_wakes_its_sleeping_threads() {
        for (name, is_in_lane) in [
            ("sim:wakes-under-the-lock", false),
            ("sim:wakes-in-the-lane", true),
        ] {
            let handle = opened(name);
            let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
            let sleep = adapter.with(|open| Ok(Arc::clone(&open.sleep)));
            let sleep = sleep.expect("it is open");
            let sleeper = sleep.enlist();
            assert!(!sleeper.is_kicked(), "{name}");
            if is_in_lane {
                if adapter.fast(|_| Some(0)).is_none() {
                    return; // no membarrier(2), no lane
                }
                let _broken = adapter.fast(|_| panic!("as if we had made a mistake"));
            } else {
                let _broken = call(|| {
                    adapter.with(|_| -> DatResult<()> { panic!("as if we had made a mistake") })
                });
            }
            assert_eq!(answer(handle), internal("").code(), "{name}");
            assert!(sleeper.is_kicked(), "{name}");
        }
    }

    fn opened_by_name(name: &core::ffi::CStr) -> DatHandle {
        let (mut async_evd, mut ia) = (null_mut(), null_mut());
        // SAFETY: contract TEXT for the string, ROOM for the handles.
        let answer =
            unsafe { dat_ia_openv(name.as_ptr(), 8, &raw mut async_evd, &raw mut ia, 1, 2, 0) };
        assert_eq!(answer, 0);
        ia
    }

    fn function_of(adapter: &'static Adapter) -> Function {
        let function = adapter.with(|open| Ok(open.ia.provider().hca().function().clone()));
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
        let refused = adapter
            .with(|_| -> DatResult<()> { unreachable!("the lock was granted without the fence") });
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
        // SAFETY: contract ROOM for the handle.
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
        // If the kernel has no membarrier(2), the lane is always closed.
        if answered != CLOSED {
            assert_eq!(answered, broken);
            assert_eq!(answer(handle), broken);
            let again = adapter.fast(|_| Some(0)).unwrap_or(CLOSED);
            assert_eq!(again, CLOSED, "nobody comes by the lane");
        }
        // An adapter that is opened later gets another slot.
        let _other = opened("sim:opens-after-a-panic");
    }

    #[test]
    fn each_opening_has_a_lane_of_its_own_but_for_thread_safe_ones() {
        let open = |thread_safe| {
            let (mut async_evd, mut ia) = (null_mut(), null_mut());
            let name = c"sim:opened-twice".as_ptr();
            // SAFETY: contract TEXT for the string, ROOM for the handles.
            let answer = unsafe {
                dat_ia_openv(name, 8, &raw mut async_evd, &raw mut ia, 1, 2, thread_safe)
            };
            assert_eq!(answer, 0);
            ia
        };
        let first = open(0);
        let lane = |ia| {
            let (adapter, _) = look_up::<IaName>(ia).expect("it is open");
            // The background thread closes the lane briefly each time it takes the lock.
            let tries = (0..1_000).find_map(|_| {
                std::thread::yield_now();
                adapter.fast(|_| Some(0))
            });
            tries.unwrap_or(CLOSED)
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
