//! An instance: the result of one `dat_ia_openv` of a C program.
//!
//! Each instance has its own IA, objects, [gate](super::gate) and fast lane, and can be used by its own thread.
//! Instances share the state of the [adapter](crate::Adapter). A call on one instance treats a handle of another
//! instance as invalid. [`siblings`](super::siblings) has the list of an adapter's instances, and the background thread
//! that makes progress for idle instances.
//!
//! | asynchronous EVD | requested by | its events |
//! |---|---|---|
//! | the IA's own | null | stay there |
//! | of another instance | its handle | go to that EVD while it exists, then as in the next row |
//! | none, or out of scope | DAT_EVD_ASYNC_EXISTS | go to the own EVDs of all other instances |
//!
//! A thread takes events for another instance out of the IA under the lock, and delivers them after it has
//! released the lock ([`ForwardedEvents`]). An event about the whole IA carries the handle of the IA that owns the EVD.

// UNSAFETY: tests that call the C ABI.
#![cfg_attr(test, expect(unsafe_code, reason = "calls of the C ABI"))]

use std::sync::Arc;

use driver::Held;

use dat_core::{AsyncEvent, CloseFlags, DatError, DatResult, EvdHandle};

use super::adapter::{Adapter, AsyncEvd, Instance, Open, Opened, Siblings, find_owned};
use super::directory::Entry;
use super::last_error;
use super::records::{Address, GivenAgent};
use super::room::Content;
use super::sleep::Taken;
use super::table::{IaName, Named, Reserved, as_key, handle_of, number, of_key};
use super::types::DatHandle;
use super::upcalls::Upcalls;
use super::watch::{Call, Watch};
use crate::Ia;

/// An asynchronous EVD that a program requests when it opens an adapter.
#[derive(Clone, Copy)]
pub(super) enum WantedEvd {
    /// A new EVD, with capacity for at least that many events.
    New(u32),
    /// The existing EVD with this handle.
    This(DatHandle),
    /// No EVD, because another instance has one.
    Exists,
}

/// Arguments of an opening.
pub(super) struct Wanted {
    pub(super) async_evd: WantedEvd,
    pub(super) thread_safe: bool,
    pub(super) entry: Option<Arc<Entry>>,
}

impl Instance {
    /// Creates the instance of an IA. `reserved` holds its handle.
    pub(super) fn new(
        ia: &Ia,
        reserved: &Reserved<IaName>,
        wanted: &Wanted,
        siblings: Arc<Siblings>,
    ) -> Self {
        Self {
            name: IaName::fresh(),
            handle: reserved.handle(),
            async_evd: match wanted.async_evd {
                WantedEvd::New(_) => AsyncEvd::Own,
                WantedEvd::This(evd) => AsyncEvd::Given(number(evd)),
                WantedEvd::Exists => AsyncEvd::OutOfScope,
            },
            thread_safe: wanted.thread_safe,
            local: Address::new(ia.query().ia.ia_address),
            siblings,
            watch: None,
            state: Box::default(),
            _entry: wanted.entry.clone(),
        }
    }
}

impl Open {
    /// Returns the C handle of the asynchronous EVD; `None` if the consumer opened the instance without one
    /// (DAT_EVD_ASYNC_EXISTS), or has freed the EVD that it gave.
    pub(super) fn async_evd(&mut self, adapter: &'static Adapter) -> Option<DatHandle> {
        match self.instance.async_evd {
            AsyncEvd::Own => Some(self.name(adapter, self.ia.async_evd())),
            AsyncEvd::Given(evd) => {
                let evd = handle_of(evd);
                find_owned::<EvdHandle>(evd).map(|_there| evd)
            }
            AsyncEvd::OutOfScope => None,
        }
    }

    /// Checks whether the instance may be closed with these flags.
    ///
    /// # Errors
    /// DAT_INVALID_STATE|IA_IN_USE: the close is graceful, and the consumer still has objects.
    pub(super) fn may_close(&self, flags: CloseFlags) -> DatResult<()> {
        self.ia.may_close(flags)
    }

    /// Returns the queue of upcalls to the instance's agents, and starts their thread if it is not running.
    ///
    /// # Errors
    /// Those of [`Watch::start`].
    pub(super) fn watch(&mut self, adapter: &'static Adapter) -> DatResult<Arc<Upcalls<Call>>> {
        let watch = match self.instance.watch.take() {
            Some(watch) => watch,
            None => {
                let ia = self.instance.name;
                Watch::start(&self.ia, move |taken, upcalls| {
                    agents_to_call(adapter, ia, taken, upcalls)
                })?
            }
        };
        let upcalls = self.instance.watch.insert(watch).upcalls();
        adapter.set_lane_of(self);
        Ok(upcalls)
    }

    /// Takes the asynchronous events for other instances out of the IA. The caller must hold the lock.
    fn events_for_others(&mut self) -> Option<ForwardedEvents> {
        let to = match self.instance.async_evd {
            AsyncEvd::Own => return None,
            AsyncEvd::Given(evd) => Some(handle_of(evd)),
            AsyncEvd::OutOfScope => None,
        };
        let mut events = Vec::new();
        while let Some(event) = self.ia.next_async_event() {
            events.push(self.exported_event(event));
        }
        (!events.is_empty()).then(|| ForwardedEvents {
            siblings: Arc::clone(&self.instance.siblings),
            from: self.instance.name,
            to,
            events,
        })
    }

    /// Wakes waiting threads and requests forwarding. To be called after a dequeue of an empty queue, because such a
    /// dequeue processes the events of all queues of the IA.
    pub(super) fn progressed(&self) {
        self.sleep.kick();
        self.request_forwarding();
    }

    /// Makes the background thread deliver asynchronous events to another instance, if there are any. To be called
    /// where the IA may have processed events of all its queues. In the lane a thread cannot wait for another
    /// instance's lock, so it cannot deliver them itself.
    #[inline]
    pub(super) fn request_forwarding(&self) {
        if self.instance.async_evd != AsyncEvd::Own && self.ia.has_async_events() {
            self.instance.siblings.request_progress(self.instance.name);
        }
    }

    /// Converts an event for another instance: the event then names its object by C's handle.
    fn exported_event(&self, event: AsyncEvent) -> AsyncEvent {
        match event {
            AsyncEvent::EvdOverflow(evd) => AsyncEvent::EvdOverflow(self.exported(evd)),
            AsyncEvent::EpBroken(ep) => AsyncEvent::EpBroken(self.exported(ep)),
            AsyncEvent::EpSoftHighWatermark(ep) => {
                AsyncEvent::EpSoftHighWatermark(self.exported(ep))
            }
            AsyncEvent::SrqError(srq) => AsyncEvent::SrqError(self.exported(srq)),
            AsyncEvent::SrqLowWatermark(srq) => AsyncEvent::SrqLowWatermark(self.exported(srq)),
            AsyncEvent::IaCatastrophic
            | AsyncEvent::ProviderInternalError
            | AsyncEvent::Network(_) => event,
        }
    }

    fn exported<H: Named>(&self, object: H) -> H {
        let handle = self.known(object).map_or(0, number);
        H::from_parts(as_key(handle), OF_NO_IA)
    }

    /// Returns C's handle of the object of an event, which is an event of this instance or
    /// [of another](Open::exported_event).
    pub(super) fn subject<H: Named>(&self, object: H) -> Option<DatHandle> {
        match object.raw() {
            (key, OF_NO_IA) => Some(handle_of(of_key(key))),
            _ => self.known(object),
        }
    }
}

impl Content for Open {
    fn hold_time(&self) -> Held {
        self.sleep.hold_time()
    }

    fn kick(&self) {
        self.sleep.kick();
    }

    fn forwarded(&mut self) -> Option<Box<dyn FnOnce()>> {
        let events = self.events_for_others()?;
        Some(Box::new(|| events.deliver()))
    }

    fn refused(&self, error: DatError) {
        last_error::note_device_error(error, self.ia.last_device_error());
    }
}

/// Makes progress, and returns the agents to call, with C's handles of the EVDs. Returns no agents if the IA is being
/// closed, because an EVD may not have a handle then.
///
/// # Errors
/// DAT_INTERNAL_ERROR: the adapter is broken.
fn agents_to_call(
    adapter: &'static Adapter,
    ia: IaName,
    taken: Taken,
    upcalls: &Upcalls<Call>,
) -> DatResult<Vec<(GivenAgent, DatHandle)>> {
    // Another opening may use this `Adapter` by now. Its EVDs do not belong to these agents.
    let calls = adapter.with_if_open(ia, |open| {
        taken.share(&open.ia);
        open.ia.progress();
        let calls = upcalls.take().into_iter();
        Ok(calls
            .map(|(agent, evd)| {
                let evd = evd.and_then(|evd| open.known(evd));
                (agent, evd.unwrap_or(core::ptr::null_mut()))
            })
            .collect())
    });
    Ok(calls?.unwrap_or_default())
}

/// IA number that no IA has. It marks an object whose key encodes C's handle.
const OF_NO_IA: u32 = 0;

/// Asynchronous events to be delivered to other instances.
struct ForwardedEvents {
    siblings: Arc<Siblings>,
    from: IaName,
    /// C's handle of the destination EVD. `None`, or the handle of a freed EVD, means the own EVDs of all other
    /// instances.
    to: Option<DatHandle>,
    events: Vec<AsyncEvent>,
}

impl ForwardedEvents {
    /// Delivers the events. The caller must not hold the lock.
    fn deliver(self) {
        let given = self.to.and_then(find_owned::<EvdHandle>);
        let to = match given {
            Some((adapter, ia, evd)) => vec![(Opened { adapter, ia }, Some(evd))],
            None => {
                let others = self.siblings.others(self.from).into_iter();
                others.map(|other| (other, None)).collect()
            }
        };
        for (Opened { adapter, ia }, evd) in to {
            // An instance that has been closed meanwhile gets no events.
            let _gone = adapter.with_instance(ia, |open| {
                let own = (open.instance.async_evd == AsyncEvd::Own).then(|| open.ia.async_evd());
                let Some(evd) = evd.or(own) else {
                    return Ok(());
                };
                let mut events = self.events.iter();
                events.try_for_each(|event| open.ia.async_evd_post(evd, *event))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use core::mem::MaybeUninit;

    use dat_core::EvdFlags;
    use driver::Interrupt;
    use hw_sim::Fault;

    use super::*;
    use crate::OpenOptions;
    use crate::capi::call::look_up;
    use crate::capi::openings::adopt;
    use crate::capi::{dat_evd_wait, dat_ia_close, lend};
    use crate::fabric::Fabric;

    /// When the device is removed, the asynchronous EVD of each instance reports a catastrophic event with that
    /// instance's IA handle.
    ///
    /// Clauses: IAO-4, IAO-10.
    #[test]
    fn every_instance_hears_that_the_adapter_is_unusable_and_of_its_own_ia() {
        let fabric = Fabric::pair(1);
        let wanted = Wanted {
            async_evd: WantedEvd::New(4),
            thread_safe: false,
            entry: None,
        };
        let siblings = Siblings::new().expect("an eventfd");
        let first = fabric.open(0).expect("an adapter");
        let second = crate::Adapter::of(&first).instance(dat_core::IaConfig::default());
        let opened = [first, second.expect("an instance")].map(|ia| {
            let (adapter, ia) = adopt(ia, &wanted, Arc::clone(&siblings)).expect("a handle");
            let opened =
                adapter.with_instance(ia, |open| Ok((open.ia_handle(), open.async_evd(adapter))));
            opened.expect("open")
        });
        fabric
            .sim
            .inject(&fabric.function(0), &Fault::SurpriseRemoval);
        for (ia, evd) in opened {
            let evd = evd.expect("in scope");
            let (mut event, mut left) = (MaybeUninit::zeroed(), 0);
            // SAFETY: contract ROOM for the results.
            let answer =
                unsafe { dat_evd_wait(evd, u32::MAX, 1, event.as_mut_ptr(), &raw mut left) };
            assert_eq!(answer, 0);
            // SAFETY: the call succeeded, so it has written the value.
            let event = unsafe { event.assume_init() };
            // SAFETY: the event is an asynchronous one, so this member is valid.
            let about = unsafe { event.event_data.asynch_error_event_data.dat_handle };
            assert_eq!((event.event_number, about), (0x08002, ia));
            dat_ia_close(ia, 0);
        }
    }

    /// Without a background thread, a thread that is about to sleep in one instance first makes progress in the other
    /// instance, whose peer needs it.
    #[test]
    fn who_sleeps_in_one_instance_has_another_look_first() {
        let fabric = Fabric::pair(1);
        let wanted = Wanted {
            async_evd: WantedEvd::New(4),
            thread_safe: false,
            entry: None,
        };
        let siblings = Siblings::new().expect("an eventfd");
        let first = fabric.open(0).expect("an adapter");
        let second = crate::Adapter::of(&first).instance(dat_core::IaConfig::default());
        let [asks, answers] = [first, second.expect("an instance")].map(|ia| {
            let (adapter, ia) = adopt(ia, &wanted, Arc::clone(&siblings)).expect("a handle");
            let made = adapter.with_instance(ia, |open| {
                let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
                let (pz, evd) = (open.ia.pz_create()?, open.ia.evd_create(16, streams)?);
                let ep = open
                    .ia
                    .ep_create(Some(pz), dat_core::EpEvds::all(evd), None)?;
                Ok((evd, ep, open.name(adapter, evd), open.ia_handle()))
            });
            (adapter, ia, made.expect("objects"))
        });
        let (adapter, ia, (evd, ep, events, _)) = answers;
        let listens = |open: &mut Open| {
            open.ia
                .psp_create(dat_core::ConnQual(7), evd, dat_core::PspFlags::CONSUMER)?;
            Ok(open.ia.query().ia.ia_address)
        };
        let address = adapter.with_instance(ia, listens).expect("it listens");
        let connects = |open: &mut Open| {
            let (best, none) = (dat_core::Qos::BEST_EFFORT, dat_core::ConnectFlags::empty());
            let patience = dat_core::Timeout::INFINITE;
            open.ia.ep_connect(
                asks.2.1,
                address,
                dat_core::ConnQual(7),
                patience,
                b"",
                best,
                none,
            )
        };
        asks.0.with_instance(asks.1, connects).expect("it asks");
        let next = || {
            let (mut event, mut left) = (MaybeUninit::zeroed(), 0);
            // SAFETY: contract ROOM for the results.
            let answer =
                unsafe { dat_evd_wait(events, u32::MAX, 1, event.as_mut_ptr(), &raw mut left) };
            assert_eq!(answer, 0);
            // SAFETY: the call succeeded, so it has written the value.
            let event: crate::capi::types::CEvent = unsafe { event.assume_init() };
            event
        };
        let request = next();
        assert_eq!(request.event_number, 0x02001);
        // SAFETY: the event is a connection request, so this member is valid.
        let cr = unsafe { request.event_data.cr_arrival_event_data.cr_handle };
        let (_, _, cr) = find_owned::<dat_core::CrHandle>(cr).expect("a request");
        let accepts = |open: &mut Open| open.ia.cr_accept(cr, Some(ep), b"");
        adapter.with_instance(ia, accepts).expect("accepted");
        assert_eq!(next().event_number, 0x04001, "established");
        for (_, _, (.., handle)) in [asks, answers] {
            assert_eq!(dat_ia_close(handle, 0), 0);
        }
    }

    fn agent() -> GivenAgent {
        extern "C" fn nobody(_data: *mut core::ffi::c_void, _evd: DatHandle) {}
        GivenAgent {
            instance_data: 0,
            function: nobody,
            map_handle: core::convert::identity,
        }
    }

    fn opened(name: &str) -> (DatHandle, &'static Adapter) {
        let ia = crate::ia_open(name, &OpenOptions::default()).expect("an adapter");
        let handle = lend(ia, true).expect("a handle");
        let (adapter, _) = look_up::<IaName>(handle).expect("it is open");
        (handle, adapter)
    }

    /// Opens and closes an instance, and opens another one that uses the same `Adapter`. Returns the `Adapter`, the
    /// name and an EVD of the first instance, and the handle of the second.
    fn one_after_the_other() -> (&'static Adapter, (IaName, EvdHandle), DatHandle) {
        // Other tests run at the same time and open adapters, too, so the `Adapter` may not be reused at once.
        for round in 0..20 {
            let (before, adapter) = opened(&format!("sim:place-{round}"));
            let of_it = adapter.with(|open| Ok((open.instance.name, open.ia.async_evd())));
            assert_eq!(dat_ia_close(before, 0), 0);
            let mut others = Vec::new();
            let same = (0..20).find_map(|number| {
                let (handle, place) = opened(&format!("sim:place-{round}-{number}"));
                let same = core::ptr::eq(place, adapter);
                if !same {
                    others.push(handle);
                }
                same.then_some(handle)
            });
            for other in others {
                assert_eq!(dat_ia_close(other, 0), 0);
            }
            if let Some(after) = same {
                return (adapter, of_it.expect("it was open"), after);
            }
        }
        panic!("the place was not used again");
    }

    #[test]
    fn an_agent_is_not_told_of_an_evd_of_the_device_that_has_the_place_afterwards() {
        let (adapter, (first, evd), after) = one_after_the_other();
        let known = adapter.with(|open| Ok(open.known(evd)));
        assert!(known.expect("open").is_some(), "the EVDs' keys are alike");
        let upcalls = Upcalls::new(Interrupt::new().expect("an eventfd"));
        upcalls.push((agent(), Some(evd)));
        let told = agents_to_call(adapter, first, Taken::NOTHING, &upcalls).expect("not broken");
        assert!(told.is_empty(), "its opening is over");
        assert_eq!(upcalls.take().len(), 1, "it will be told of the end");
        assert_eq!(dat_ia_close(after, 0), 0);
    }
}
