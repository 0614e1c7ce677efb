//! Shared receive queues: `dat_srq_create`, `_query`, `_resize`, `_set_lw`, `_free`, `_post_recv`.
//!
//! A buffer's slot is occupied until the consumer has *dequeued* its completion. The provider counts a slot only until
//! the completion is polled. This layer counts the completions that were polled early, into the software queue of an
//! EVD.
//!
//! The low watermark is the limit that the device monitors, because only the device can count the buffers that it has
//! not taken. A mark that is set above our own count triggers at once.

use crate::error::{DatError, DatResult, Subtype};
use crate::event::AsyncEvent;
use crate::handle::{EvdKey, HandleType, PzHandle, SrqHandle, SrqKey, index_of};
use crate::ia::instance::Ia;
use crate::ia::watched_evds::MAX_PER_CALL;
use crate::object::lmr::segment::{Scope, Segment, check, pieces};
use crate::object::lmr::table::LmrTable;
use crate::object::srq::Srq;
use crate::object::srq::state::{SrqInput, SrqReport, SrqState, Watermark};
use crate::provider::{CompletionQueue, Provider, QueueFull, SharedReceiveQueue};
use crate::refusal::Refusal;
use crate::types::{DtoCookie, MemPrivFlags};

/// Requested attributes of an SRQ (`DAT_SRQ_ATTR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Maximum number of outstanding receives.
    pub max_recv_dtos: u32,
    /// Maximum number of segments per receive.
    pub max_recv_iov: u32,
    /// Low watermark, in buffers; at creation only DAT_SRQ_LW_DEFAULT, 0, is allowed.
    pub low_watermark: u32,
}

/// Result of `srq_query` (`DAT_SRQ_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqParam {
    /// State of the SRQ: operational or in error.
    pub state: SrqState,
    /// Protection zone of the SRQ.
    pub pz: PzHandle,
    /// Maximum number of outstanding receives.
    pub max_recv_dtos: u32,
    /// Maximum number of segments per receive.
    pub max_recv_iov: u32,
    /// Low watermark, in buffers; 0 if none is set.
    pub low_watermark: u32,
    /// Number of buffers that have not completed. A buffer that a message is currently arriving in is included, because
    /// the device does not report such buffers.
    pub available_dto_count: u32,
    /// Number of slots in use: available buffers, and completions not yet dequeued.
    pub outstanding_dto_count: u32,
}

impl<P: Provider> Ia<P> {
    /// Creates a shared receive queue.
    ///
    /// Page: dat_srq_create.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|PZ. DAT_INVALID_PARAMETER|ARG3: an attribute is 0 or beyond the IA's limit, or a watermark
    /// was given. DAT_INSUFFICIENT_RESOURCES|SRQ.
    pub fn srq_create(&mut self, pz: PzHandle, attr: SrqAttr) -> DatResult<SrqHandle> {
        self.alive()?;
        let pz = self.pz_key(pz)?;
        let bad = |detail| Err(DatError::parameter(Subtype::Arg3, "attr").because(detail));
        let over = |asked: u32, limit: u32, detail| {
            let excess = DatError::parameter(Subtype::Arg3, "attr").because(detail);
            Err(excess.over(asked.into(), limit.into()))
        };
        if attr.max_recv_dtos == 0 {
            return bad("max_recv_dtos: at least 1");
        }
        if attr.max_recv_dtos > self.attr.max_recv_per_srq {
            let detail = "max_recv_dtos is beyond max_recv_per_srq";
            return over(attr.max_recv_dtos, self.attr.max_recv_per_srq, detail);
        }
        if attr.max_recv_iov == 0 {
            return bad("max_recv_iov: at least 1");
        }
        if attr.max_recv_iov > self.attr.max_iov_segments_per_dto {
            let detail = "max_recv_iov is beyond max_iov_segments_per_dto";
            return over(
                attr.max_recv_iov,
                self.attr.max_iov_segments_per_dto,
                detail,
            );
        }
        if attr.low_watermark != 0 {
            return bad("low_watermark: DAT_SRQ_LW_DEFAULT at creation");
        }
        // The provider needs the SRQ's number before the SRQ is in the table.
        let (pd, owner) = (self.pzs[pz].pd, index_of(self.srqs.next_key()));
        let (max_recvs, max_segments) = (attr.max_recv_dtos, attr.max_recv_iov);
        let made = self.provider.create_srq(pd, max_recvs, max_segments, owner);
        let queue = match made {
            Ok(queue) => queue,
            Err(error) => {
                return Err(self.device_refused("srq_create", error, Subtype::ResourceSrq));
            }
        };
        let key = self
            .srqs
            .insert(Srq::new(queue, pz, max_recvs, max_segments));
        self.pzs[pz].users += 1;
        Ok(SrqHandle { key, ia: self.id })
    }

    /// Returns the parameters of an SRQ and its current buffer counts.
    ///
    /// Page: dat_srq_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|SRQ.
    pub fn srq_query(&mut self, srq: SrqHandle) -> DatResult<SrqParam> {
        let key = self.srq_key(srq)?;
        self.count_completed(key);
        let srq = &self.srqs[key];
        Ok(SrqParam {
            state: srq.mode().state,
            pz: PzHandle {
                key: srq.pz,
                ia: self.id,
            },
            max_recv_dtos: srq.max_recv_dtos,
            max_recv_iov: srq.max_recv_iov,
            low_watermark: srq.low_watermark,
            available_dto_count: srq.queue.outstanding(),
            outstanding_dto_count: srq.outstanding(),
        })
    }

    /// Polls the completion queues of the SRQ's endpoints, because a buffer counts as available until its completion
    /// has been polled.
    fn count_completed(&mut self, key: SrqKey) {
        let evds: Vec<EvdKey> = self.srqs[key].recv_evds.keys().collect();
        for evd in evds {
            self.drain_evd(evd, true);
        }
        for _ in 0..self.srqs[key].unwanted.len() {
            self.reclaim_unwanted(key);
        }
        self.apply_effects();
    }

    /// Changes the maximum number of outstanding receives. Receives that are already posted, and messages that arrive
    /// meanwhile, are not affected. The new maximum cannot exceed a size that was fixed at creation: at least four
    /// times the number requested then, and at least 1023, unless the device supports fewer.
    ///
    /// Page: dat_srq_resize.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|SRQ. DAT_INVALID_PARAMETER|ARG2: `max_recv_dtos` is 0. DAT_INSUFFICIENT_RESOURCES|SRQ:
    /// `max_recv_dtos` exceeds `max_recv_per_srq`, or the size fixed at creation. DAT_INVALID_STATE: more receives are
    /// outstanding, the low watermark is higher, or |SRQ_ERROR. On an error nothing has changed.
    pub fn srq_resize(&mut self, srq: SrqHandle, max_recv_dtos: u32) -> DatResult<()> {
        let key = self.srq_key(srq)?;
        self.srqs[key]
            .mode()
            .next(SrqInput::Resize)
            .map_err(DatError::state)?;
        if max_recv_dtos == 0 {
            return Err(DatError::parameter(Subtype::Arg2, "max_recv_dtos")
                .because("max_recv_dtos: at least 1"));
        }
        self.alive()?;
        if max_recv_dtos > self.attr.max_recv_per_srq {
            return Err(DatError::resources(Subtype::ResourceSrq)
                .because("max_recv_dtos is beyond max_recv_per_srq")
                .over(max_recv_dtos.into(), self.attr.max_recv_per_srq.into()));
        }
        self.count_completed(key);
        let target = &mut self.srqs[key];
        let outstanding = target.outstanding();
        if max_recv_dtos < outstanding {
            return Err(DatError::state(Subtype::None).because("more buffers are outstanding"));
        }
        if max_recv_dtos < target.low_watermark {
            return Err(DatError::state(Subtype::None).because("the low watermark is higher"));
        }
        let before = target.max_recv_dtos;
        if let Err(error) = target.queue.set_max_recvs(max_recv_dtos) {
            return Err(self.device_refused("srq_resize", error, Subtype::ResourceSrq));
        }
        target.max_recv_dtos = max_recv_dtos;
        if max_recv_dtos > before
            && let Err(error) = self.lengthen_discards(key)
        {
            // The old limit can be restored, because no buffer beyond it has been posted yet.
            let target = &mut self.srqs[key];
            target.max_recv_dtos = before;
            if let Err(error) = target.queue.set_max_recvs(before) {
                self.note_device_error("srq_resize", &error);
            }
            return Err(error);
        }
        Ok(())
    }

    /// Enlarges the `discard` completion queues of the SRQ's endpoints that are too small for the SRQ's new size.
    fn lengthen_discards(&mut self, key: SrqKey) -> DatResult<()> {
        for _ in 0..self.srqs[key].unwanted.len() {
            let next = self.srqs[key].unwanted.next();
            let Some(setup) = next.and_then(|ep| Some(self.eps.get(ep)?.setup())) else {
                continue;
            };
            let entries = self.discard_entries(&setup);
            if let Some(ep) = next.and_then(|ep| self.eps.get_mut(ep))
                && let Some(cq) = &mut ep.discard
                && cq.capacity() < entries
            {
                if let Err(error) = self.provider.resize_cq(cq, entries) {
                    return Err(self.device_refused("srq_resize", error, Subtype::ResourceTevd));
                }
                cq.arm(false);
            }
        }
        Ok(())
    }

    /// Sets and arms the low watermark. One asynchronous event is reported, now or later, when fewer than
    /// `low_watermark` buffers are on the SRQ. 0 disables the watermark.
    ///
    /// Page: dat_srq_set_lw.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|SRQ. DAT_INVALID_PARAMETER|ARG2: more than `max_recv_dtos`. DAT_INVALID_STATE|SRQ_ERROR.
    /// DAT_INTERNAL_ERROR: the device refused; the old mark stays.
    pub fn srq_set_lw(&mut self, srq: SrqHandle, low_watermark: u32) -> DatResult<()> {
        let key = self.srq_key(srq)?;
        if low_watermark > self.srqs[key].max_recv_dtos {
            return Err(DatError::parameter(Subtype::Arg2, "low_watermark")
                .because("low_watermark: up to max_recv_dtos"));
        }
        self.alive()?;
        // Reports that the device has already made concern the old mark, so they are handled first.
        self.progress();
        self.count_completed(key);
        let target = &mut self.srqs[key];
        let input = match low_watermark {
            0 => SrqInput::SetNone,
            mark if target.queue.outstanding() < mark => SrqInput::SetTooFew,
            _ => SrqInput::SetEnough,
        };
        let (mode, _) = target.mode().next(input).map_err(DatError::state)?;
        // A mark that triggers at once, or that was removed, is not armed on the device.
        let limit = if mode.watermark == Watermark::Armed {
            low_watermark
        } else {
            0
        };
        if let Err(error) = self.provider.arm_srq_limit(&target.queue, limit) {
            return Err(self.device_refused("srq_set_lw", error, Subtype::ResourceSrq));
        }
        let target = &mut self.srqs[key];
        let report = target.step(input).map_err(DatError::state)?;
        target.low_watermark = low_watermark;
        self.report_srq_event(key, report);
        // The SRQ may be below the new mark already, which the device reports at once.
        self.progress();
        Ok(())
    }

    /// Handles the device's report that fewer buffers than the limit are left.
    pub(in crate::ia) fn srq_ran_low(&mut self, key: SrqKey) {
        self.srq_step(key, SrqInput::Short);
    }

    /// Handles the device's report that it takes no more buffers from an SRQ. The device reports the errors of the
    /// SRQ's endpoints separately.
    pub(in crate::ia) fn srq_failed(&mut self, key: SrqKey) {
        self.srq_step(key, SrqInput::Fail);
    }

    fn srq_step(&mut self, key: SrqKey, input: SrqInput) {
        if let Ok(report) = self.srqs[key].step(input) {
            self.report_srq_event(key, report);
        }
    }

    fn report_srq_event(&mut self, key: SrqKey, report: SrqReport) {
        let srq = SrqHandle { key, ia: self.id };
        match report {
            SrqReport::Nothing => {}
            SrqReport::LowWatermark => self.push_async(AsyncEvent::SrqLowWatermark(srq)),
            SrqReport::Error => self.push_async(AsyncEvent::SrqError(srq)),
        }
    }

    /// Frees an SRQ. Its buffers are dropped without completions.
    ///
    /// Page: dat_srq_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|SRQ. DAT_INVALID_STATE|SRQ_IN_USE: an endpoint uses the SRQ. DAT_INTERNAL_ERROR: the device
    /// refused, and nothing has changed.
    pub fn srq_free(&mut self, srq: SrqHandle) -> DatResult<()> {
        let key = self.srq_key(srq)?;
        if self.srqs[key].users != 0 {
            let users = core::iter::repeat_n(HandleType::Ep, self.srqs[key].users as usize); // CAST: widening.
            return Err(DatError::state(Subtype::StateSrqInUse)
                .because("endpoints take their buffers from it")
                .with_left(users.collect()));
        }
        self.remove_srq(key)
    }

    /// Destroys and removes an SRQ. If the device refuses, the SRQ is unchanged.
    pub(in crate::ia) fn remove_srq(&mut self, key: SrqKey) -> DatResult<()> {
        let Some(srq) = self.srqs.get_mut(key) else {
            return Ok(());
        };
        let pz = srq.pz;
        if let Err(error) = self.provider.destroy_srq(&mut srq.queue) {
            return Err(self.not_ended("destroying a shared receive queue", &error));
        }
        self.srqs.remove(key);
        self.pzs[pz].users -= 1;
        self.forget_context(SrqHandle { key, ia: self.id });
        Ok(())
    }

    /// Posts a buffer for the next message that arrives at any endpoint of the SRQ.
    ///
    /// Page: dat_srq_post_recv.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|SRQ. DAT_INVALID_PARAMETER|ARG2: more than `max_recv_iov` segments. |ARG3: a segment reaches
    /// outside its LMR. DAT_PROTECTION_VIOLATION: an LMR is in another PZ than the SRQ. DAT_PRIVILEGES_VIOLATION: no
    /// such LMR, or no right of local write. DAT_INSUFFICIENT_RESOURCES|SRQ: `max_recv_dtos` are outstanding. A post
    /// that finds the SRQ full reclaims buffers completed by endpoints that have no receive EVD, for a bounded number
    /// of these endpoints per post. With very many such endpoints a later post may therefore succeed although nothing
    /// else has happened.
    #[inline]
    pub fn srq_post_recv<S: Segment>(
        &mut self,
        srq: SrqHandle,
        iov: &[S],
        cookie: DtoCookie,
    ) -> DatResult<()> {
        self.post_to_srq::<true, S>(srq, iov, cookie)
    }

    /// Posts a buffer. Without `PUBLISH`, the caller must update the doorbell record later, by
    /// [`SharedReceiveQueue::publish`].
    #[inline(always)]
    pub(in crate::ia) fn post_to_srq<const PUBLISH: bool, S: Segment>(
        &mut self,
        srq: SrqHandle,
        iov: &[S],
        cookie: DtoCookie,
    ) -> DatResult<()> {
        match self.post_to_srq_once::<PUBLISH, S>(srq, iov, cookie) {
            Ok(()) => Ok(()),
            Err(refusal) => self.post_to_srq_again::<PUBLISH, S>(srq, iov, cookie, refusal),
        }
    }

    /// Posts a buffer to the SRQ at a place of the table, which the caller has found by the handle. The caller updates
    /// the doorbell record later, and posts again if the SRQ is full.
    #[inline(always)]
    pub(in crate::ia) fn post_to_srq_at<S: Segment>(
        &mut self,
        place: usize,
        iov: &[S],
        cookie: DtoCookie,
    ) -> Result<(), Refusal> {
        let srq = self.srqs.at_mut(place).ok_or(Refusal::NoSrq)?;
        post::<false, P, S>(srq, self.regions.table(), iov, cookie)
    }

    /// Posts a buffer a second time, after the first post found the SRQ full. First reclaims completed buffers of
    /// endpoints without a receive EVD. Any other refusal is returned as an error.
    #[cold]
    #[inline(never)]
    pub(in crate::ia) fn post_to_srq_again<const PUBLISH: bool, S: Segment>(
        &mut self,
        srq: SrqHandle,
        iov: &[S],
        cookie: DtoCookie,
        refusal: Refusal,
    ) -> DatResult<()> {
        if refusal != Refusal::SrqFull {
            return Err(refusal.error());
        }
        for _ in 0..self.srqs[srq.key].unwanted.len().min(MAX_PER_CALL) {
            if self.reclaim_unwanted(srq.key) {
                break;
            }
        }
        self.post_to_srq_once::<PUBLISH, S>(srq, iov, cookie)
            .map_err(|refusal| {
                if refusal == Refusal::SrqFull {
                    self.srqs[srq.key].full += 1;
                }
                refusal.error()
            })
    }

    /// Reclaims the completed buffers of one endpoint without a receive EVD, because no call would ever dequeue their
    /// completions. Each call handles the next such endpoint. Returns true if there were such completions. If a
    /// completion has failed, the next call that polls handles the consequences: they take commands to the device, and
    /// a post must not block.
    fn reclaim_unwanted(&mut self, key: SrqKey) -> bool {
        let next = self.srqs.get_mut(key).and_then(|srq| srq.unwanted.next());
        next.is_some_and(|ep| self.drain_discard(ep))
    }

    #[inline(always)]
    fn post_to_srq_once<const PUBLISH: bool, S: Segment>(
        &mut self,
        srq: SrqHandle,
        iov: &[S],
        cookie: DtoCookie,
    ) -> Result<(), Refusal> {
        if srq.ia != self.id {
            return Err(Refusal::NoSrq);
        }
        let srq = self.srqs.get_mut(srq.key).ok_or(Refusal::NoSrq)?;
        post::<PUBLISH, P, S>(srq, self.regions.table(), iov, cookie)
    }

    /// Frees the slot of an SRQ buffer whose completion was dequeued or dropped.
    pub(in crate::ia) fn slot_returned(&mut self, srq: Option<SrqKey>) {
        if let Some(srq) = srq.and_then(|key| self.srqs.get_mut(key)) {
            srq.slot_returned();
        }
    }
}

/// Posts a buffer to an SRQ. Without `PUBLISH`, the caller updates the doorbell record later.
#[inline(always)]
fn post<const PUBLISH: bool, P: Provider, S: Segment>(
    srq: &mut Srq<P>,
    lmrs: &LmrTable,
    iov: &[S],
    cookie: DtoCookie,
) -> Result<(), Refusal> {
    if iov.len() > srq.max_recv_iov as usize {
        return Err(Refusal::SrqSegments);
    }
    check(
        iov,
        Scope {
            lmrs,
            pz: srq.pz_index,
            need: MemPrivFlags::LOCAL_WRITE,
        },
    )?;
    if srq.is_full() {
        return Err(Refusal::SrqFull);
    }
    match iov {
        [one] if one.bytes() != 0 => {
            let one = core::iter::once(one.data());
            srq.queue.post_recv_unpublished(one, cookie.0)
        }
        _ => srq.queue.post_recv_unpublished(pieces(iov), cookie.0),
    }
    .map_err(|QueueFull| Refusal::SrqFull)?;
    if PUBLISH {
        srq.queue.publish();
    }
    Ok(())
}
