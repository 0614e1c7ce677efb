//! An instance: an adapter as one `dat_ia_openv` of a C program has it.
//!
//! Instances of an adapter share its IA and the lock before it, and nothing else that the program could see. Each has
//! objects of its own, which name it as their IA; a handle of another instance is as good as none to it. Which instance an
//! object belongs to is known beside its handle ([`table`](super::table)). What the IA makes by itself, a connection request
//! or an endpoint that comes with one, belongs to the instance whose EVD tells of it.
//!
//! | asynchronous EVD | asked for by | when the instance closes |
//! |---|---|---|
//! | made for it | null | ends, and instances it was given to are without one |
//! | of another instance | its handle | stays |
//! | none, or none in its reach | DAT_EVD_ASYNC_EXISTS | |
//!
//! Events of an object go to the asynchronous EVD of its instance, or to all there are if that has none; events of the
//! adapter go to all, once to each, and name the IA of the EVD.
//!
//! The last instance's end is that of the IA. Any other's ends its objects, as if they had the IA to themselves
//! ([`dat_core::Ia::end`]).

// UNSAFETY: the tests call the C ABI.
#![cfg_attr(test, expect(unsafe_code, reason = "calls of the C ABI"))]

use std::sync::Arc;

use dat_core::{
    AnyHandle, CloseFlags, DatError, DatResult, EvdFlags, EvdHandle, HandleType, ReturnType,
    Subtype,
};

use super::adapter::{Adapter, Open, handle_error};
use super::records::Address;
use super::registry::Entry;
use super::table::{self, IaName, Named, Reserved, find_owned, handle_of, number, object};
use super::types::{DatContext, DatHandle};
use super::upcalls::Upcalls;
use super::watch::{Call, Watch};
use crate::Ia;

/// An adapter as one opening has it.
pub(super) struct Instance {
    pub(super) name: IaName,
    /// C's handle of the IA.
    handle: u64,
    pub(super) async_evd: AsyncEvd,
    pub(super) thread_safe: bool,
    /// What the consumer keeps with the IA.
    pub(super) context: DatContext,
    /// Its address, as queries and events tell it.
    pub(super) local: Address,
    /// The thread that calls agents, once there was one.
    watch: Option<Watch>,
    /// Keeps an entry of the registry in use.
    _entry: Option<Arc<Entry>>,
}

/// Where the asynchronous events of an instance go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AsyncEvd {
    /// Made for it.
    Own(EvdHandle),
    /// Another instance's.
    Given(EvdHandle),
    /// The consumer has not asked for one, or it has gone.
    OutOfScope,
}

/// What a program that opens an adapter wants of its asynchronous EVD.
#[derive(Clone, Copy)]
pub(super) enum WantedEvd {
    /// One of at least that many events.
    New(u32),
    /// The one with this handle.
    This(DatHandle),
    /// There is one somewhere.
    Exists,
}

/// What a program that opens an adapter wants.
pub(super) struct Wanted {
    pub(super) async_evd: WantedEvd,
    pub(super) thread_safe: bool,
    pub(super) entry: Option<Arc<Entry>>,
}

impl AsyncEvd {
    fn evd(self) -> Option<EvdHandle> {
        match self {
            Self::Own(evd) | Self::Given(evd) => Some(evd),
            Self::OutOfScope => None,
        }
    }
}

impl Instance {
    /// The instance of an IA that will have this handle.
    pub(super) fn new(ia: &Ia, reserved: &Reserved<IaName>, wanted: &Wanted) -> Self {
        Self {
            name: IaName::fresh(),
            handle: reserved.handle(),
            async_evd: AsyncEvd::OutOfScope,
            thread_safe: wanted.thread_safe,
            context: 0,
            local: Address::new(ia.query().ia.ia_address),
            watch: None,
            _entry: wanted.entry.clone(),
        }
    }

    /// Whether a thread of ours calls agents of it.
    pub(super) const fn has_watch(&self) -> bool {
        self.watch.is_some()
    }

    /// C's handle of the IA.
    pub(super) fn handle(&self) -> DatHandle {
        handle_of(self.handle)
    }
}

impl Open {
    /// An instance.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|IA: it has gone.
    pub(super) fn instance(&mut self, ia: IaName) -> DatResult<&mut Instance> {
        let found = self.instances.iter_mut().find(|one| one.name == ia);
        found.ok_or(handle_error(Subtype::HandleIa))
    }

    fn instance_now(&self, ia: IaName) -> Option<&Instance> {
        self.instances.iter().find(|one| one.name == ia)
    }

    /// C's handle of an instance's IA.
    pub(super) fn ia_handle(&self, ia: IaName) -> DatHandle {
        self.instance_now(ia)
            .map_or(core::ptr::null_mut(), Instance::handle)
    }

    /// The instance that an EVD belongs to.
    pub(super) fn owner_of(&self, evd: DatHandle) -> Option<&Instance> {
        let (_, ia, _) = find_owned::<EvdHandle>(evd)?;
        self.instance_now(ia)
    }

    /// C's handle of an object that an EVD tells of, which belongs to the same instance.
    pub(super) fn name_beside<H: Named>(
        &mut self,
        adapter: &'static Adapter,
        evd: DatHandle,
        object: H,
    ) -> DatHandle {
        match find_owned::<EvdHandle>(evd) {
            Some((_, ia, _)) => self.name(adapter, ia, object),
            None => self.known(object).unwrap_or(core::ptr::null_mut()),
        }
    }

    /// Whether an object is one of an instance.
    pub(super) fn belongs_to(&self, ia: IaName, object: AnyHandle) -> bool {
        self.objects_of(ia).any(|(_, one)| one == object)
    }

    /// What belongs to an instance.
    fn objects_of(&self, ia: IaName) -> impl Iterator<Item = (DatHandle, AnyHandle)> {
        self.names.handles().filter_map(move |handle| {
            let (_, owner, object) = object(handle)?;
            (owner == ia).then_some((handle, object))
        })
    }

    /// An object is an instance's from now on: so are its asynchronous events.
    pub(super) fn tell_of(&mut self, ia: IaName, object: AnyHandle) {
        let evd = self.instance_now(ia).and_then(|one| one.async_evd.evd());
        if let Some(evd) = evd
            && matches!(
                object,
                AnyHandle::Ep(_) | AnyHandle::Evd(_) | AnyHandle::Srq(_)
            )
            && let Err(error) = self.ia.async_evd_of(object, evd)
        {
            tracing::debug!(%error, ?object, "an object that has gone already");
        }
    }

    /// C's handle of an instance's asynchronous EVD; `None` if it is out of the consumer's scope.
    pub(super) fn async_evd(&mut self, ia: IaName) -> DatResult<Option<DatHandle>> {
        let evd = self.instance(ia)?.async_evd.evd();
        Ok(evd.and_then(|evd| self.known(evd)))
    }

    /// The first instance has asked for this EVD; the IA has one.
    pub(super) fn settle_first(&mut self, adapter: &'static Adapter, wanted: WantedEvd) {
        let (ia, evd) = (self.first, self.ia.async_evd());
        if let WantedEvd::New(_) = wanted
            && let Ok(instance) = self.instance(ia)
        {
            instance.async_evd = AsyncEvd::Own(evd);
            self.name(adapter, ia, evd);
        }
    }

    /// The adapter is opened once more.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: the EVD is not one of this adapter's that takes asynchronous events. Those of
    /// `dat_evd_create`.
    pub(super) fn join(
        &mut self,
        adapter: &'static Adapter,
        reserved: Reserved<IaName>,
        wanted: &Wanted,
    ) -> DatResult<IaName> {
        let mut instance = Instance::new(&self.ia, &reserved, wanted);
        let ia = instance.name;
        let mut made = None;
        match wanted.async_evd {
            WantedEvd::New(qlen) => {
                let place = Reserved::<EvdHandle>::new()?;
                let evd = self.ia.evd_create(qlen, EvdFlags::ASYNC)?;
                if let Err(error) = self.ia.async_evd_bind(evd) {
                    let _unused = self.ia.evd_free(evd);
                    return Err(error);
                }
                instance.async_evd = AsyncEvd::Own(evd);
                made = Some((place, evd));
            }
            WantedEvd::This(handle) => {
                let evd = find_owned::<EvdHandle>(handle)
                    .filter(|(of, ..)| core::ptr::eq(*of, adapter))
                    .ok_or(handle_error(Subtype::HandleEvdAsync))?;
                self.ia.async_evd_bind(evd.2)?;
                instance.async_evd = AsyncEvd::Given(evd.2);
            }
            WantedEvd::Exists => {}
        }
        self.instances.push(instance);
        adapter.settle_lane(self);
        if let Some((place, evd)) = made {
            self.enter(adapter, ia, place, evd);
        }
        reserved.fill(adapter, ia, ia);
        Ok(ia)
    }

    /// Whether an instance may be closed with these flags.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|IA: it has gone. DAT_INVALID_STATE|IA_IN_USE: gracefully, and objects of the consumer's are left.
    pub(super) fn may_leave(&self, ia: IaName, flags: CloseFlags) -> DatResult<()> {
        let instance = self
            .instance_now(ia)
            .ok_or(handle_error(Subtype::HandleIa))?;
        let own = match instance.async_evd {
            AsyncEvd::Own(evd) => Some(AnyHandle::Evd(evd)),
            AsyncEvd::Given(_) | AsyncEvd::OutOfScope => None,
        };
        let unused = if self.instances.len() == 1 {
            self.ia.is_unused()
        } else {
            let counts = |object: AnyHandle| {
                if object.handle_type() == HandleType::Evd {
                    // One that was given to other instances is the consumer's all the same.
                    return Some(object) != own;
                }
                self.ia.is_in_use(object)
            };
            !self.objects_of(ia).any(|(_, object)| counts(object))
        };
        if flags == CloseFlags::Graceful && !unused {
            return Err(DatError::new(
                ReturnType::InvalidState,
                Subtype::StateIaInUse,
            ));
        }
        Ok(())
    }

    /// Takes out an instance, and ends what belongs to it unless it is the last: then all goes with the IA.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|IA: it has gone.
    pub(super) fn leave(&mut self, ia: IaName) -> DatResult<Instance> {
        let at = self.instances.iter().position(|one| one.name == ia);
        let at = at.ok_or(handle_error(Subtype::HandleIa))?;
        let instance = self.instances.remove(at);
        table::leave(instance.handle);
        if self.instances.is_empty() {
            return Ok(instance);
        }
        let (handles, objects): (Vec<_>, Vec<_>) = self.objects_of(ia).unzip();
        for handle in &handles {
            table::leave(number(*handle));
        }
        self.records.forget(&handles);
        for other in &mut self.instances {
            if let AsyncEvd::Given(evd) = other.async_evd
                && objects.contains(&evd.into())
            {
                other.async_evd = AsyncEvd::OutOfScope;
            }
        }
        if let AsyncEvd::Given(evd) = instance.async_evd
            && !self
                .instances
                .iter()
                .any(|one| one.async_evd.evd() == Some(evd))
        {
            self.ia.async_evd_unbind(evd);
        }
        self.ia.end(objects);
        Ok(instance)
    }

    /// Where agents of an instance are told; their thread is started if there is none yet.
    ///
    /// # Errors
    /// As [`Watch::start`].
    pub(super) fn watch(
        &mut self,
        adapter: &'static Adapter,
        ia: IaName,
    ) -> DatResult<Arc<Upcalls<Call>>> {
        let watch = match self.instance(ia)?.watch.take() {
            Some(watch) => watch,
            None => Watch::start(adapter, self)?,
        };
        let upcalls = self.instance(ia)?.watch.insert(watch).upcalls();
        adapter.settle_lane(self);
        Ok(upcalls)
    }
}

#[cfg(test)]
mod tests {
    use core::mem::MaybeUninit;

    use hw_sim::Fault;

    use super::*;
    use crate::capi::openings::adopt;
    use crate::capi::{dat_evd_wait, dat_ia_close};
    use crate::fabric::Fabric;

    /// Clauses: IAO-4, IAO-10.
    #[test]
    fn every_instance_hears_that_the_adapter_is_unusable_and_of_its_own_ia() {
        let fabric = Fabric::pair(1);
        let wanted = Wanted {
            async_evd: WantedEvd::New(4),
            thread_safe: false,
            entry: None,
        };
        let ia = fabric.open(0).expect("an adapter");
        let (adapter, first) = adopt(ia, &wanted).expect("an instance");
        let opened = adapter.turn(|open| {
            let second = open.join(adapter, Reserved::new()?, &wanted)?;
            [first, second]
                .map(|ia| Ok((open.ia_handle(ia), open.async_evd(ia)?)))
                .into_iter()
                .collect::<DatResult<Vec<_>>>()
        });
        let opened = opened.expect("two instances");
        fabric
            .sim
            .inject(&fabric.function(0), &Fault::SurpriseRemoval);
        for (ia, evd) in opened {
            let evd = evd.expect("in scope");
            let (mut event, mut left) = (MaybeUninit::zeroed(), 0);
            // SAFETY: places for what the call returns.
            let answer =
                unsafe { dat_evd_wait(evd, u32::MAX, 1, event.as_mut_ptr(), &raw mut left) };
            assert_eq!(answer, 0);
            // SAFETY: the call has written it.
            let event = unsafe { event.assume_init() };
            // SAFETY: the member of an asynchronous event.
            let about = unsafe { event.event_data.asynch_error_event_data.dat_handle };
            assert_eq!((event.event_number, about), (0x08002, ia));
            dat_ia_close(ia, 0);
        }
    }
}
