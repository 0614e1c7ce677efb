//! Asynchronous events, and the EVDs they go to.
//!
//! An IA is opened with an asynchronous EVD of its own. Who shares an IA among several users, as the C ABI does with the
//! instances of an adapter, binds one more for each of them ([`Ia::async_evd_bind`]) and says of every object whose it is
//! ([`Ia::async_evd_of`]). Then
//!
//! | an event | goes to |
//! |---|---|
//! | of an object that was given an asynchronous EVD | that one |
//! | of any other object, or of the adapter | all of them |
//!
//! What an asynchronous EVD has no room for is lost, and no event says so.

use crate::context::AnyHandle;
use crate::error::{DatError, DatResult, Subtype};
use crate::evd::queue::Evd;
use crate::evd::streams::Stream;
use crate::event::{AsyncEvent, Event};
use crate::handle::{EvdHandle, EvdKey};
use crate::ia::Ia;
use crate::provider::Provider;
use crate::types::EvdFlags;
use std::collections::HashMap;

/// Where asynchronous events go besides the IA's own EVD.
#[derive(Default)]
pub(crate) struct AsyncEvds {
    bound: Vec<EvdKey>,
    /// Those of single objects.
    of: HashMap<AnyHandle, EvdKey>,
    /// Who had the IA's own has gone; nobody can read that one.
    own_is_nobodys: bool,
}

impl AsyncEvds {
    /// An object has gone.
    pub(crate) fn forget(&mut self, object: AnyHandle) {
        self.of.remove(&object);
    }

    /// An EVD takes no asynchronous events any more.
    pub(crate) fn remove(&mut self, key: EvdKey) {
        self.of.retain(|_, evd| *evd != key);
        self.bound.retain(|evd| *evd != key);
    }
}

impl<P: Provider> Evd<P> {
    /// An EVD that an IA feeds.
    pub(crate) fn asynchronous(qlen: u32) -> Self {
        let mut evd = Self::new(None, qlen, EvdFlags::ASYNC);
        evd.streams.attach(Stream::Other);
        evd
    }
}

impl<P: Provider> Ia<P> {
    /// Has asynchronous events go to another EVD too, which cannot be freed from now on. Does nothing if they do.
    ///
    /// Page: dat_ia_open.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: no such EVD, one that was made without the ASYNC flag, or one whose streams share it
    /// with no other.
    pub fn async_evd_bind(&mut self, evd: EvdHandle) -> DatResult<()> {
        let subtype = Subtype::HandleEvdAsync;
        self.evd_for(Some(evd), EvdFlags::ASYNC, subtype)?;
        if self.is_async(evd.key) {
            return Ok(());
        }
        let mut streams = self.evds[evd.key].streams;
        streams.attach(Stream::Other);
        if self.config.strict_evd_sharing && !streams.may_share() {
            return Err(DatError::handle(subtype).because(
                "an EVD with UNSIGNALLED or SOLICITED_WAIT streams takes no other events",
            ));
        }
        self.evds[evd.key].streams = streams;
        self.async_evds.bound.push(evd.key);
        Ok(())
    }

    /// Undoes [`Ia::async_evd_bind`]. The IA's own stays what it is.
    pub fn async_evd_unbind(&mut self, evd: EvdHandle) {
        if evd.ia == self.id && self.async_evds.bound.contains(&evd.key) {
            self.async_evds.remove(evd.key);
            self.evds[evd.key].streams.detach(Stream::Other);
        }
    }

    /// Has the asynchronous events of an object go to one of the EVDs, and to that one alone.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: there is no such object; |EVD_ASYNC no asynchronous events go to that EVD.
    pub fn async_evd_of(&mut self, object: impl Into<AnyHandle>, evd: EvdHandle) -> DatResult<()> {
        let object = object.into();
        self.check_any(object)?;
        if evd.ia != self.id || !self.is_async(evd.key) {
            return Err(DatError::handle(Subtype::HandleEvdAsync)
                .because("no asynchronous events go to that EVD"));
        }
        self.async_evds.of.insert(object, evd.key);
        Ok(())
    }

    /// Asynchronous events go to this EVD.
    pub(crate) fn is_async(&self, key: EvdKey) -> bool {
        key == self.async_evd || self.async_evds.bound.contains(&key)
    }

    pub(crate) fn push_async(&mut self, event: AsyncEvent) {
        let told = event
            .object()
            .and_then(|object| self.async_evds.of.get(&object).copied());
        if told.is_some() {
            self.push_event(told, Event::Async(event));
            return;
        }
        if !self.async_evds.own_is_nobodys || self.async_evds.bound.is_empty() {
            self.push_event(Some(self.async_evd), Event::Async(event));
        }
        for at in 0..self.async_evds.bound.len() {
            self.push_event(Some(self.async_evds.bound[at]), Event::Async(event));
        }
    }

    /// Ends the IA's own asynchronous EVD. It gets another one, as empty as at the beginning: an IA is never without. Nobody
    /// reads that one, so it takes nothing while there are others.
    pub(crate) fn renew_async_evd(&mut self) {
        let before = self.async_evd;
        let qlen = self.evds[before].qlen;
        self.async_evd = self.evds.insert(Evd::asynchronous(qlen));
        self.async_evds.own_is_nobodys = true;
        self.insist("ending the asynchronous EVD", |ia| ia.remove_evd(before));
    }
}
