//! Number of receive buffers that an endpoint holds: `dat_ep_recv_query` and `dat_ep_set_watermark`.
//!
//! A buffer posted to an endpoint belongs to it from the post to the completion (uDAPL 1.2, dat_ep_recv_query). Each
//! buffer is for one future message, so the span of the buffers is their number.
//!
//! A buffer of an SRQ belongs to an endpoint once the endpoint has taken it. Our transport keeps messages in order
//! and takes a buffer when a message begins, so an endpoint holds at most one buffer, that of the message which is
//! arriving. The device does not report when it takes a buffer. So the counts are unknown, a watermark of 1 or more is
//! never exceeded, and a watermark of 0 is not supported.
//!
//! Watermarks are checked when they are set. Later, each call of [`Ia::progress`] checks those of some endpoints.
//! Posts do not check them.

use crate::error::{DatError, DatResult};
use crate::event::AsyncEvent;
use crate::handle::{EpHandle, EpKey};
use crate::ia::instance::Ia;
use crate::object::ep::Watermarks;
use crate::object::ep::cause::EndCause;
use crate::object::ep::state::EpState;
use crate::provider::{Provider, QueuePair};

/// Maximum number of endpoints whose watermarks are checked per call.
const MAX_PER_CALL: usize = 32;

/// Result of `ep_recv_query`. `None` is DAT_VALUE_UNKNOWN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpRecvParam {
    /// Number of buffers that the endpoint holds and that have not completed.
    pub nbufs_allocated: Option<u32>,
    /// Span of these buffers. Each buffer is for one message here, so the span is the same number.
    pub bufs_alloc_span: Option<u32>,
}

impl<P: Provider> Ia<P> {
    /// Returns the number of receive buffers that an endpoint holds.
    ///
    /// Page: dat_ep_recv_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    pub fn ep_recv_query(&mut self, ep: EpHandle) -> DatResult<EpRecvParam> {
        self.ep(ep)?;
        let held = self.buffers_held(ep.key);
        self.apply_effects();
        Ok(EpRecvParam {
            nbufs_allocated: held,
            bufs_alloc_span: held,
        })
    }

    /// Sets and arms both high watermarks; `None` switches one off. When the endpoint holds more buffers than `soft`,
    /// one asynchronous event reports that. When it holds more than `hard`, the connection breaks.
    ///
    /// Page: dat_ep_set_watermark.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_MODEL_NOT_SUPPORTED: a mark of 0 for an endpoint with an SRQ.
    pub fn ep_set_watermark(
        &mut self,
        ep: EpHandle,
        soft: Option<u32>,
        hard: Option<u32>,
    ) -> DatResult<()> {
        let uses_srq = self.ep(ep)?.srq.is_some();
        if uses_srq && (soft == Some(0) || hard == Some(0)) {
            return Err(DatError::unsupported()
                .because("the device does not tell when an endpoint takes a buffer of an SRQ"));
        }
        self.eps[ep.key].marks = Watermarks { soft, hard };
        self.marked.remove(ep.key);
        if !uses_srq && (soft.is_some() || hard.is_some()) {
            self.marked.insert(ep.key);
            self.check_watermarks(ep.key);
        }
        self.apply_effects();
        Ok(())
    }

    /// Checks the watermarks of at most `MAX_PER_CALL` endpoints, in round-robin order.
    pub(in crate::ia) fn check_some_watermarks(&mut self) {
        for _ in 0..self.marked.len().min(MAX_PER_CALL) {
            if let Some(key) = self.marked.next() {
                self.check_watermarks(key);
            }
        }
    }

    fn check_watermarks(&mut self, key: EpKey) {
        let Some(held) = self.buffers_held(key) else {
            return;
        };
        let Some(ep) = self.eps.get_mut(key) else {
            return;
        };
        let exceeded = |mark: Option<u32>| mark.is_some_and(|mark| held > mark);
        let connected = matches!(
            ep.hot.state,
            EpState::Connected | EpState::DisconnectPending
        );
        let breaks = exceeded(ep.marks.hard) && connected;
        if exceeded(ep.marks.soft) {
            ep.marks.soft = None;
            let ep = EpHandle { key, ia: self.id };
            self.push_async(AsyncEvent::EpSoftHighWatermark(ep));
        }
        if breaks {
            self.set_end_cause(key, EndCause::HardHighWatermark);
            self.connection_failed(key);
        }
    }

    /// Polls completions, then returns the number of buffers that an endpoint holds. Returns `None` if it has an SRQ.
    fn buffers_held(&mut self, key: EpKey) -> Option<u32> {
        let ep = self.eps.get(key)?;
        if ep.srq.is_some() {
            return None;
        }
        match ep.recv_evd {
            Some(evd) => {
                self.drain_evd(evd, true);
            }
            None => {
                self.drain_discard(key);
            }
        }
        let qp = &self.eps.get(key)?.qp;
        Some(qp.get().map_or(0, QueuePair::recvs_outstanding))
    }
}
