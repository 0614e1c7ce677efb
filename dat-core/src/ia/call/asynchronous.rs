//! Asynchronous events, and the EVDs they go to.
//!
//! An IA is opened with an asynchronous EVD of its own, which receives its asynchronous events. A program may want
//! the events of several instances in one EVD. The caller binds that EVD ([`Ia::async_evd_bind`]) in the instance that
//! owns it. Then the caller takes each event from the other instances ([`Ia::next_async_event`]) and posts it to that
//! EVD ([`Ia::async_evd_post`]).
//!
//! If an asynchronous EVD is full, further events are lost, and no event reports the loss.

use crate::error::{DatError, DatResult, Subtype};
use crate::event::{AsyncEvent, Event};
use crate::handle::{EvdHandle, EvdKey};
use crate::ia::instance::Ia;
use crate::object::evd::streams::Stream;
use crate::provider::Provider;
use crate::types::EvdFlags;

impl<P: Provider> Ia<P> {
    /// Permits an EVD to receive asynchronous events of other instances. The EVD cannot be freed while it is bound.
    /// Does nothing if the EVD already receives such events.
    ///
    /// Page: dat_ia_open.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: no such EVD, one that was made without the ASYNC flag, or one whose streams do not
    /// permit other events in the same EVD.
    #[doc(hidden)] // for the C facade
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
        self.async_evds.push(evd.key);
        Ok(())
    }

    /// Undoes [`Ia::async_evd_bind`]. The IA's own asynchronous EVD stays bound.
    #[doc(hidden)] // for the C facade
    pub fn async_evd_unbind(&mut self, evd: EvdHandle) {
        if evd.ia == self.id && self.async_evds.contains(&evd.key) {
            self.async_evds.retain(|bound| *bound != evd.key);
            self.evds[evd.key].streams.detach(Stream::Other);
        }
    }

    /// Posts an asynchronous event of another instance to a bound EVD or to the IA's own asynchronous EVD.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: the EVD takes no asynchronous events.
    #[doc(hidden)] // for the C facade
    pub fn async_evd_post(&mut self, evd: EvdHandle, event: AsyncEvent) -> DatResult<()> {
        if evd.ia != self.id || !self.is_async(evd.key) {
            return Err(DatError::handle(Subtype::HandleEvdAsync)
                .because("no asynchronous events go to that EVD"));
        }
        self.push_event(Some(evd.key), Event::Async(event));
        Ok(())
    }

    /// Takes the oldest event from the IA's own asynchronous EVD. Unlike a dequeue, does no other work.
    #[doc(hidden)] // for the C facade
    pub fn next_async_event(&mut self) -> Option<AsyncEvent> {
        match self.evds[self.async_evd].pop()?.0 {
            Event::Async(event) => Some(event),
            Event::Dto(_)
            | Event::RmrBind(_)
            | Event::ConnectionRequest(_)
            | Event::Connection(_)
            | Event::Software(_) => None,
        }
    }

    /// Returns whether the IA's own asynchronous EVD holds an event.
    #[doc(hidden)] // for the C facade
    #[inline]
    #[must_use]
    pub fn has_async_events(&self) -> bool {
        self.evds[self.async_evd].len() != 0
    }

    /// Returns whether asynchronous events go to this EVD.
    pub(in crate::ia) fn is_async(&self, key: EvdKey) -> bool {
        key == self.async_evd || self.async_evds.contains(&key)
    }

    pub(in crate::ia) fn push_async(&mut self, event: AsyncEvent) {
        if !matches!(event, AsyncEvent::Network(_)) {
            self.notice_async(event);
        }
        self.push_event(Some(self.async_evd), Event::Async(event));
    }
}
