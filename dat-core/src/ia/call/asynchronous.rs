//! Asynchronous events, and the EVDs they go to.
//!
//! An IA is opened with an asynchronous EVD of its own, which its events go to. A program may want those of several
//! instances in one EVD: that is bound ([`Ia::async_evd_bind`]) in the instance that has it, and who speaks for the
//! others takes their events out ([`Ia::next_async_event`]) and puts them in there ([`Ia::async_evd_post`]).
//!
//! What an asynchronous EVD has no room for is lost, and no event says so.

use crate::error::{DatError, DatResult, Subtype};
use crate::event::{AsyncEvent, Event};
use crate::handle::{EvdHandle, EvdKey};
use crate::ia::instance::Ia;
use crate::object::evd::streams::Stream;
use crate::provider::Provider;
use crate::types::EvdFlags;

impl<P: Provider> Ia<P> {
    /// Makes another EVD take asynchronous events of other instances; it cannot be freed from then on. If it takes them
    /// already, nothing changes.
    ///
    /// Page: dat_ia_open.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: no such EVD, one that was made without the ASYNC flag, or one whose streams share
    /// it with no other.
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

    /// Undoes [`Ia::async_evd_bind`]. The IA's own stays what it is.
    #[doc(hidden)] // for the C facade
    pub fn async_evd_unbind(&mut self, evd: EvdHandle) {
        if evd.ia == self.id && self.async_evds.contains(&evd.key) {
            self.async_evds.retain(|bound| *bound != evd.key);
            self.evds[evd.key].streams.detach(Stream::Other);
        }
    }

    /// An asynchronous event of another instance, for one of the EVDs that such events go to.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_ASYNC: no asynchronous events go to that EVD.
    #[doc(hidden)] // for the C facade
    pub fn async_evd_post(&mut self, evd: EvdHandle, event: AsyncEvent) -> DatResult<()> {
        if evd.ia != self.id || !self.is_async(evd.key) {
            return Err(DatError::handle(Subtype::HandleEvdAsync)
                .because("no asynchronous events go to that EVD"));
        }
        self.push_event(Some(evd.key), Event::Async(event));
        Ok(())
    }

    /// Takes the oldest event out of the IA's own asynchronous EVD. It looks after nothing else.
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

    /// Whether there is one.
    #[doc(hidden)] // for the C facade
    #[inline]
    #[must_use]
    pub fn has_async_events(&self) -> bool {
        self.evds[self.async_evd].len() != 0
    }

    /// Asynchronous events go to this EVD.
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
