//! Several posts with one doorbell.
//!
//! On an uncached BAR each doorbell is a write on the bus, and waits until earlier writes have left the processor. A
//! batch puts any number of requests into the queue and announces all of them at its end, as rdma-core does for a
//! list of work requests (one doorbell record and one register write for all: `providers/mlx5/qp.c`, `post_send_db`).
//! Receives have a doorbell record and no register; the batch writes the record once (as `mlx5_post_recv` there).
//! DAT 1.2 has no such calls.

use crate::error::DatResult;
use crate::handle::{EpHandle, SrqHandle, index_of};
use crate::ia::instance::Ia;
use crate::object::ep::Ep;
use crate::object::ep::extension::{
    CompareSwap, FetchAdd, RdmaWriteImmediate, SendImmediate, SendInvalidate,
};
use crate::object::ep::request::{Operation, RdmaRead, RdmaWrite, Recv, Send};
use crate::object::lmr::segment::{RmrTriplet, Segment};
use crate::provider::{Provider, QueuePair, SharedReceiveQueue};
use crate::refusal::Refusal;
use crate::types::{CompletionFlags, DtoCookie};

/// A batch of posts to an endpoint ([`Ia::batch`]). Dropping it rings the doorbell, unless that was done earlier.
pub struct Batch<'a, P: Provider> {
    ia: &'a mut Ia<P>,
    /// The endpoint and its table index, which is valid while the batch borrows the IA. For an invalid handle, `place`
    /// is an index that no endpoint has.
    ep: EpHandle,
    place: u32,
    /// True if the queue holds requests for which no doorbell was rung.
    unrung: bool,
    /// Number of requests posted when the doorbell last rang.
    rung_at: u64,
    /// True if the queue holds receives for which the doorbell record was not written.
    unpublished: bool,
}

/// A batch of buffers posted to an SRQ ([`Ia::srq_batch`]). Dropping it announces them to the device, unless that was
/// done earlier.
pub struct SrqBatch<'a, P: Provider> {
    ia: &'a mut Ia<P>,
    /// The SRQ and its place in the table, which is valid while the batch borrows the IA. For an invalid handle,
    /// `place` is one that no SRQ has.
    srq: SrqHandle,
    place: usize,
    unpublished: bool,
}

impl<P: Provider> Ia<P> {
    /// Posts the requests and receives that the closure `post` adds, in its order. Requests need one doorbell, receives
    /// one write of the doorbell record. A post that is refused changes nothing. Earlier posts stay posted, whatever
    /// the closure returns.
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
        let there = self.eps.named_mut(ep.key, ep.ia);
        let rung_at = there.as_ref().map_or(0, |ep| posted(ep));
        let there = there.is_some();
        post(&mut Batch {
            ia: self,
            ep,
            place: if there { index_of(ep.key) } else { u32::MAX },
            unrung: false,
            rung_at,
            unpublished: false,
        })
    }

    /// Posts to an SRQ the buffers that the closure `post` adds, in its order, with one write of the doorbell record. A
    /// post that is refused changes nothing. Earlier posts stay posted, whatever the closure returns.
    ///
    /// # Errors
    /// Those that `post` returns.
    #[inline]
    pub fn srq_batch<T>(
        &mut self,
        srq: SrqHandle,
        post: impl FnOnce(&mut SrqBatch<'_, P>) -> DatResult<T>,
    ) -> DatResult<T> {
        let place = self.srqs.place(srq.key).filter(|_| srq.ia == self.id);
        post(&mut SrqBatch {
            ia: self,
            srq,
            place: place.unwrap_or(usize::MAX),
            unpublished: false,
        })
    }
}

impl<P: Provider> Batch<'_, P> {
    /// Adds a Send ([`Ia::ep_post_send`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_send`].
    #[inline(always)]
    pub fn send<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(iov, Send, cookie, flags)
    }

    /// Adds an RDMA Write ([`Ia::ep_post_rdma_write`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_rdma_write`].
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

    /// Adds an RDMA Read ([`Ia::ep_post_rdma_read`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_rdma_read`].
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

    /// Adds a Send with immediate data ([`Ia::ep_post_send_immediate`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_send_immediate`].
    #[inline(always)]
    pub fn send_immediate<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(iov, SendImmediate(immediate), cookie, flags)
    }

    /// Adds a Send that invalidates a context of the peer ([`Ia::ep_post_send_invalidate`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_send_invalidate`].
    #[inline(always)]
    pub fn send_invalidate<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(iov, SendInvalidate(rmr_context), cookie, flags)
    }

    /// Adds an RDMA Write with immediate data ([`Ia::ep_post_rdma_write_immediate`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_rdma_write_immediate`].
    #[inline(always)]
    pub fn rdma_write_immediate<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(iov, RdmaWriteImmediate(remote, immediate), cookie, flags)
    }

    /// Adds a fetch-and-add ([`Ia::ep_post_fetch_add`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_fetch_add`].
    pub fn fetch_add<S: Segment>(
        &mut self,
        result: &[S],
        cookie: DtoCookie,
        operation: FetchAdd<'_>,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(result, operation, cookie, flags)
    }

    /// Adds a compare-and-swap ([`Ia::ep_post_compare_swap`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_compare_swap`].
    pub fn compare_swap<S: Segment>(
        &mut self,
        result: &[S],
        cookie: DtoCookie,
        operation: CompareSwap<'_>,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.post(result, operation, cookie, flags)
    }

    /// Adds a receive ([`Ia::ep_post_recv`]).
    ///
    /// # Errors
    /// The errors of [`Ia::ep_post_recv`].
    #[inline(always)]
    pub fn recv<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let Ia { eps, regions, .. } = &mut *self.ia;
        if let Some((_, ep)) = eps.at_mut(self.place)
            && ep.recv_at_once::<false, _>(regions.table(), iov, cookie, flags)
        {
            self.unpublished = true;
            return Ok(());
        }
        self.ia.recv_in_order(self.ep, iov, Recv, cookie, flags)?;
        // This post has written the doorbell record, which announces the earlier ones, too.
        self.unpublished = false;
        Ok(())
    }

    /// Counts one doorbell for the requests posted since the last one. Each of these requests except one saved a
    /// doorbell.
    fn rung(&mut self) {
        if let Some((_, ep)) = self.ia.eps.at_mut(self.place) {
            let now = posted(ep);
            ep.counts.unrung((now - self.rung_at).saturating_sub(1));
            self.rung_at = now;
        }
    }

    #[inline(always)]
    fn post<S: Segment>(
        &mut self,
        iov: &[S],
        what: impl Operation,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let Ia { eps, regions, .. } = &mut *self.ia;
        if let Some((_, ep)) = eps.at_mut(self.place)
            && ep.request_at_once::<false, _, _>(regions.table(), iov, what, cookie, flags)
        {
            self.unrung = true;
            return Ok(());
        }
        let EpHandle { key, ia } = self.ep;
        self.ia
            .request_in_order_of(key, ia, iov, what, cookie, flags)?;
        // This post rang the doorbell for the earlier ones, too.
        self.unrung = false;
        self.rung();
        Ok(())
    }
}

/// Returns the number of requests posted to an endpoint's queue pair so far.
fn posted<P: Provider>(ep: &Ep<P>) -> u64 {
    ep.qp.get().map_or(0, |qp| qp.counts().requests)
}

impl<P: Provider> Drop for Batch<'_, P> {
    fn drop(&mut self) {
        if (self.unrung || self.unpublished)
            && let Some((_, ep)) = self.ia.eps.at_mut(self.place)
            && let Some(qp) = ep.qp.get_mut()
        {
            if self.unpublished {
                qp.publish_recvs();
            }
            if self.unrung {
                qp.ring_last();
                self.rung();
            }
        }
    }
}

impl<P: Provider> SrqBatch<'_, P> {
    /// Adds a buffer ([`Ia::srq_post_recv`]).
    ///
    /// # Errors
    /// The errors of [`Ia::srq_post_recv`].
    #[inline(always)]
    pub fn recv<S: Segment>(&mut self, iov: &[S], cookie: DtoCookie) -> DatResult<()> {
        match self.ia.post_to_srq_at(self.place, iov, cookie) {
            Ok(()) => {}
            Err(refusal) => self.recv_again(iov, cookie, refusal)?,
        }
        self.unpublished = true;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn recv_again<S: Segment>(
        &mut self,
        iov: &[S],
        cookie: DtoCookie,
        refusal: Refusal,
    ) -> DatResult<()> {
        let srq = self.srq;
        self.ia
            .post_to_srq_again::<false, S>(srq, iov, cookie, refusal)
    }
}

impl<P: Provider> Drop for SrqBatch<'_, P> {
    fn drop(&mut self) {
        if self.unpublished
            && let Some(srq) = self.ia.srqs.at_mut(self.place)
        {
            srq.queue.publish();
        }
    }
}
