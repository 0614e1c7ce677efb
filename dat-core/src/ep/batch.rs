//! Several requests behind one doorbell.
//!
//! On an uncached BAR each doorbell is a write on the bus, and waits for those before it to leave the processor. A batch puts any
//! number of requests into the queue and tells the device of all of them at its end, as rdma-core does for a list of work requests (one
//! doorbell record and one register write for all: `providers/mlx5/qp.c`, `post_send_db`). DAT 1.2 has no such call.

use super::post::{Operation, RdmaRead, RdmaWrite, Send};
use crate::error::DatResult;
use crate::handle::{EpHandle, index_of};
use crate::ia::Ia;
use crate::provider::{Provider, QueuePair};
use crate::segment::{RmrTriplet, Segment};
use crate::types::{CompletionFlags, DtoCookie};

/// Requests that are being posted to an endpoint. The device is told of them when it is dropped, or earlier.
pub struct Batch<'a, P: Provider> {
    ia: &'a mut Ia<P>,
    /// The endpoint, and its place while the batch has the IA to itself; a place that nothing has if the handle is none.
    ep: EpHandle,
    place: u32,
    /// Requests are in the queue that the device has not been told of.
    unrung: bool,
}

impl<P: Provider> Ia<P> {
    /// Posts what `post` posts, in its order, behind one doorbell. A request that is refused changes nothing; those before it are
    /// posted, whatever `post` makes of the refusal.
    ///
    /// ```text
    /// ia.batch(ep, |batch| {
    ///     for (piece, cookie) in pieces.iter().zip(0..) {
    ///         batch.rdma_write(&[*piece], cookie, &remote, CompletionFlags::empty())?;
    ///     }
    ///     batch.send(&[header], 99, CompletionFlags::empty())
    /// })?;
    /// ```
    ///
    /// # Errors
    /// Those that `post` returns.
    #[inline]
    pub fn batch<T>(
        &mut self,
        ep: EpHandle,
        post: impl FnOnce(&mut Batch<'_, P>) -> DatResult<T>,
    ) -> DatResult<T> {
        let there = self.eps.named_mut(ep.key, ep.ia).is_some();
        post(&mut Batch {
            ia: self,
            ep,
            place: if there { index_of(ep.key) } else { u32::MAX },
            unrung: false,
        })
    }
}

impl<P: Provider> Batch<'_, P> {
    /// As [`Ia::ep_post_send`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn send<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(iov, Send, cookie, flags)
    }

    /// As [`Ia::ep_post_rdma_write`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn rdma_write<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(iov, RdmaWrite(remote), cookie, flags)
    }

    /// As [`Ia::ep_post_rdma_read`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn rdma_read<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(iov, RdmaRead(remote), cookie, flags)
    }

    #[inline(always)]
    fn post<S: Segment>(
        &mut self,
        iov: &[S],
        what: impl Operation,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let Ia { eps, lmrs, .. } = &mut *self.ia;
        if let Some((_, ep)) = eps.at_mut(self.place)
            && ep.request_at_once::<false, _, _>(lmrs, iov, what, cookie, flags)
        {
            self.unrung = true;
            return Ok(());
        }
        let EpHandle { key, ia } = self.ep;
        self.ia
            .request_in_order_of(key, ia, iov, what, cookie, flags)?;
        // It has rung for those before it, too.
        self.unrung = false;
        Ok(())
    }
}

impl<P: Provider> Drop for Batch<'_, P> {
    fn drop(&mut self) {
        if self.unrung
            && let Some((_, ep)) = self.ia.eps.at_mut(self.place)
            && let Some(qp) = &mut ep.qp
        {
            qp.ring_last();
        }
    }
}
