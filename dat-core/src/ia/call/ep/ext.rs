//! Posts that InfiniBand supports but DAT 1.2 lacks ([`crate::object::ep::extension`]).

use super::post::{Post, posts};
use crate::error::{DatError, DatResult};
use crate::handle::EpHandle;
use crate::ia::instance::Ia;
use crate::object::ep::extension::{
    CompareSwap, FetchAdd, RdmaWriteImmediate, SendImmediate, SendInvalidate,
};
use crate::object::lmr::segment::{RmrTriplet, Segment};
use crate::provider::Provider;
use crate::types::{CompletionFlags, DtoCookie};

posts! {
    SendImmediate: Ia::request_at_once, request_in_order;
    SendInvalidate: Ia::request_at_once, request_in_order;
    RdmaWriteImmediate<'_>: Ia::request_at_once, request_in_order;
    FetchAdd<'_>: Ia::request_at_once, request_in_order;
    CompareSwap<'_>: Ia::request_at_once, request_in_order;
}

/// Renames the argument in an error about the segments of an atomic operation: they are its result.
#[cold]
fn of_result(error: DatError) -> DatError {
    if error.argument() == Some("iov") {
        error.naming("result")
    } else {
        error
    }
}

impl<P: Provider> Ia<P> {
    /// Returns whether the device has atomic operations of 8 bytes. If so, regions may be registered with
    /// [`MemPrivFlags::REMOTE_ATOMIC`](crate::MemPrivFlags::REMOTE_ATOMIC).
    #[must_use]
    pub fn has_atomics(&self) -> bool {
        self.provider.limits().atomics
    }

    /// Sends the bytes of `iov` as one message with immediate data, which appears in the completion of the peer's
    /// receive.
    ///
    /// # Errors
    /// As [`Ia::ep_post_send`].
    #[inline]
    pub fn ep_post_send_immediate<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        SendImmediate(immediate).post(self, ep, iov, cookie, flags)
    }

    /// Sends the bytes of `iov` as one message that also invalidates one of the peer's contexts. The invalidation
    /// precedes the completion of the peer's receive, which names the context. The peer must allow it: by a window
    /// bound with [`MemPrivFlags::REMOTE_INVALIDATE`](crate::MemPrivFlags::REMOTE_INVALIDATE), or, in a kernel, by
    /// fast registration. Any other context breaks the connection (DAT_DTO_ERR_REMOTE_ACCESS).
    ///
    /// # Errors
    /// As [`Ia::ep_post_send`].
    #[inline]
    pub fn ep_post_send_invalidate<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        SendInvalidate(rmr_context).post(self, ep, iov, cookie, flags)
    }

    /// Writes the bytes of `iov` to the peer's memory and then completes a receive at the peer. That completion
    /// contains the immediate data and the number of bytes. SOLICITED_WAIT has the same meaning as for a Send.
    ///
    /// # Errors
    /// As [`Ia::ep_post_rdma_write`].
    #[inline]
    pub fn ep_post_rdma_write_immediate<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        RdmaWriteImmediate(remote, immediate).post(self, ep, iov, cookie, flags)
    }

    /// Adds `add` to a number in the peer's memory. The operation is atomic with other atomic operations of the
    /// peer's device. When the request completes, `result` has the old value, 8 bytes.
    ///
    /// # Errors
    /// As [`Ia::ep_post_rdma_read`], with one segment. DAT_LENGTH_ERROR: `result` is not 8 bytes long, or `remote` is
    /// shorter. DAT_INVALID_PARAMETER|ARG5: the remote address is not a multiple of 8. DAT_MODEL_NOT_SUPPORTED:
    /// [`Ia::has_atomics`] is false.
    pub fn ep_post_fetch_add<S: Segment>(
        &mut self,
        ep: EpHandle,
        result: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        add: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        FetchAdd { remote, add }
            .post(self, ep, result, cookie, flags)
            .map_err(of_result)
    }

    /// Replaces a number in the peer's memory by `swap` if it equals `compare`. All other behaviour is that of
    /// [`Ia::ep_post_fetch_add`].
    ///
    /// # Errors
    /// As [`Ia::ep_post_fetch_add`].
    #[expect(clippy::too_many_arguments, reason = "an RDMA post and two operands")]
    pub fn ep_post_compare_swap<S: Segment>(
        &mut self,
        ep: EpHandle,
        result: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        compare: u64,
        swap: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let swap = CompareSwap {
            remote,
            compare,
            swap,
        };
        swap.post(self, ep, result, cookie, flags)
            .map_err(of_result)
    }
}
