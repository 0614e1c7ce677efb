//! Sends whose data is copied into the send queue.
//!
//! A short message need not be in registered memory. The processor copies it into the work queue entry, so the device
//! makes no second access to host memory. DAT 1.2 has no such call; the checks and the completion are those of
//! `dat_ep_post_send`.
//!
//! The maximum length is the space in each entry of the endpoint's send queue. It grows with `max_request_iov`
//! ([`Ia::ep_inline_limit`]).

use crate::error::DatResult;
use crate::handle::EpHandle;
use crate::ia::instance::Ia;
use crate::object::ep::extension::{SendImmediate, SendInvalidate};
use crate::object::ep::request::{Operation, Send};
use crate::object::recorder::Posted;
use crate::provider::{InlineError, Provider, QueuePair, RequestFlags};
use crate::refusal::Refusal;
use crate::types::{CompletionFlags, DtoCookie};

impl<P: Provider> Ia<P> {
    /// Returns the maximum length of a message for [`Ia::ep_post_send_inline`], in bytes.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE|EP_NOTREADY: the endpoint has no PZ.
    pub fn ep_inline_limit(&self, ep: EpHandle) -> DatResult<usize> {
        let ep = self.ep(ep)?;
        let qp = ep.qp.get().ok_or_else(|| Refusal::NotReady.error())?;
        Ok(qp.send_inline_limit())
    }

    /// Sends a copy of `data` as one message, without registered memory. The caller may reuse `data` when the call
    /// returns.
    ///
    /// # Errors
    /// As [`Ia::ep_post_send`]. DAT_INVALID_PARAMETER|ARG2: `data` is longer than [`Ia::ep_inline_limit`].
    #[inline]
    pub fn ep_post_send_inline(
        &mut self,
        ep: EpHandle,
        data: &[u8],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_inline_of(ep, Send, data, cookie, flags)
    }

    /// Sends a copy of `data` with immediate data, as [`Ia::ep_post_send_immediate`] does.
    ///
    /// # Errors
    /// As [`Ia::ep_post_send_inline`].
    #[inline]
    pub fn ep_post_send_inline_immediate(
        &mut self,
        ep: EpHandle,
        data: &[u8],
        cookie: DtoCookie,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_inline_of(ep, SendImmediate(immediate), data, cookie, flags)
    }

    /// Sends a copy of `data` and invalidates a context, as [`Ia::ep_post_send_invalidate`] does.
    ///
    /// # Errors
    /// As [`Ia::ep_post_send_inline`].
    #[inline]
    pub fn ep_post_send_inline_invalidate(
        &mut self,
        ep: EpHandle,
        data: &[u8],
        cookie: DtoCookie,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post_inline_of(ep, SendInvalidate(rmr_context), data, cookie, flags)
    }

    #[inline(always)]
    fn post_inline_of(
        &mut self,
        ep: EpHandle,
        what: impl Operation,
        data: &[u8],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self.post_inline::<true>(ep, what, data, cookie, flags) {
            Ok(()) => Ok(()),
            Err(refusal) => self.post_inline_again(ep, what, data, cookie, flags, refusal),
        }
    }

    /// Posts the Send. With `AT_ONCE`, also returns [`Refusal::State`] if the post has to be recorded or timed.
    #[inline(always)]
    fn post_inline<const AT_ONCE: bool>(
        &mut self,
        handle: EpHandle,
        what: impl Operation,
        data: &[u8],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> Result<(), Refusal> {
        let ep = self.eps.named_mut(handle.key, handle.ia);
        let ep = ep.ok_or(Refusal::NoEp)?;
        let takes = if AT_ONCE {
            ep.hot.takes_inline
        } else {
            ep.hot.state.takes_requests()
        };
        if !takes {
            return Err(Refusal::State);
        }
        let qp = ep.qp.get_mut().ok_or(Refusal::NotReady)?;
        if flags.bits() & ep.hot.request_flags_refused != 0 {
            return Err(Refusal::InlineFlags);
        }
        let how = RequestFlags {
            suppress: flags.contains(CompletionFlags::SUPPRESS),
            solicited: flags.contains(CompletionFlags::SOLICITED_WAIT),
            fence: flags.contains(CompletionFlags::BARRIER_FENCE),
            unsignalled: flags.contains(CompletionFlags::UNSIGNALLED),
        };
        qp.post_send_inline(what.op(), data, cookie.0, how)
            .map_err(|error| match error {
                InlineError::Full => Refusal::Full,
                InlineError::TooLong { .. } => Refusal::LongInline,
            })?;
        Ok(())
    }

    /// Posts a Send that could not be posted at once, or returns its error.
    #[cold]
    #[inline(never)]
    fn post_inline_again(
        &mut self,
        handle: EpHandle,
        what: impl Operation,
        data: &[u8],
        cookie: DtoCookie,
        flags: CompletionFlags,
        refusal: Refusal,
    ) -> DatResult<()> {
        let refusal = if refusal == Refusal::State && self.observed {
            self.post_inline::<false>(handle, what, data, cookie, flags)
                .err()
        } else {
            Some(refusal)
        };
        if refusal == Some(Refusal::Full) {
            self.reclaim(handle, |ep| ep.request_evd);
            self.post_inline::<false>(handle, what, data, cookie, flags)
        } else {
            refusal.map_or(Ok(()), Err)
        }
        .map_err(|refusal| {
            let error = self.refused(handle, refusal);
            match self.ep_inline_limit(handle) {
                Ok(limit) if refusal == Refusal::LongInline => {
                    // CAST: usize has at most 64 bits on every target Rust has.
                    error.over(data.len() as u64, limit as u64)
                }
                _ => error,
            }
        })?;
        let what = Posted::request(what.op());
        self.record_post(handle.key, what, data.len() as u64, cookie.0);
        if self.observed && !flags.contains(CompletionFlags::SUPPRESS) {
            self.time_post(handle.key);
        }
        Ok(())
    }
}
