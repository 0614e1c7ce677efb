//! Send queues: posting and completing requests.
//!
//! A send queue is a ring of 64-byte basic blocks (WQEBBs). Blocks from the oldest outstanding WQE
//! up to `producer_index` belong to the device until a CQE names them; the others are ours to
//! write. Indices count blocks since the last reset, wrap at 2^16 and are masked only on access.
//!
//! Callers count requests, not blocks, and may have exactly `max_requests` of them outstanding. The ring is therefore
//! large enough for this many WQEs of the largest size, and a post only checks how many requests are outstanding.
//! Whatever the sizes of the WQEs, the ring never fills before the maximum is reached.
//!
//! Beside the ring there is a *shadow*, an array with one element for each request in order. It holds the data for the
//! request's completion (cookie, bytes, how it is reported), and the tail of the CQE that completes the request. The
//! device works in order, so the next CQE completes the oldest request, or the first later one that is reported; the
//! requests before that are then done too. A CQE that names no outstanding request is a device error and is counted. A
//! CQE names a WQE by its first block. The bits of that number beyond the ring size carry no information: drivers mask
//! them off (rdma-core `cq.c`), and a device need not provide them.
//!
//! A request whose success is not reported (suppressed) asks for a CQE on error only. A queue of only suppressed
//! requests would fill up, and no CQE would show that they are done. So every `reclaim_every`-th suppressed request in
//! a row asks for a CQE anyway, which [`SendQueue::complete`] does not report. An error is always reported.
//!
//! Posting has three steps, whose order is essential (PRM, chapter "Work Queues"): write the WQE, write the doorbell
//! record, write the doorbell register. See [`SendQueue::ring`].
//!
//! A bind of a memory window changes a key, and the device may start the next WQE before the key has changed, unless
//! that WQE carries a fence. To avoid a check for this in every post, a bind makes the queue appear full. The next post
//! then takes the path for full queues, which detects the bind and posts with the fence ([`SendQueue::end_bind_hold`]).
//! The success of a bind is always reported, because the owner of the windows needs it.
//!
//! BlueFlame is not used: VFIO maps BARs uncached, where its 64-byte copy is eight bus writes, not one. WQE signatures
//! are not used either.

mod parking;

use driver::{Cyclic, DmaBuffer, DmaQueue, barrier};
use rdma_types::{
    DataSegment, Detail, InlineError, QueueFull, RequestFlags, RequestOp, WindowTarget,
};

use super::request::{atomic_unit, head_units, last_word, opcode, remote_unit};
use crate::completion::{Completion, Status};
use crate::cq::Tail;
use crate::uar::{Doorbells, SendDoorbell};
use crate::window::{self, Window};
use crate::wqe::{self, AddressVector, BLOCK_BYTES, BLOCK_UNITS, UNIT_BYTES, Unit};
use mlx_prm::WqeOpcode;
pub use parking::{RequestSnapshot, SendQueueSnapshot};

/// Offset of the send counter in the doorbell record.
const SEND_COUNTER: usize = 4;
/// Smallest ring, in blocks. No driver makes a smaller one: the largest WQE of rdma-core's `mlx5_calc_send_wqe` and of
/// Linux' `calc_send_wqe` has at least 192 bytes, which rounds up to four blocks.
const MIN_RING_BLOCKS: u32 = 4;

/// Sizes of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SendSizes {
    /// Maximum number of outstanding requests.
    pub max_requests: u32,
    /// Number of blocks of the largest WQE.
    pub wqe_blocks: u32,
    /// Number of blocks of the ring, a power of two.
    pub ring_blocks: u32,
}

impl SendSizes {
    /// Returns the sizes for `max_requests` requests with up to the given numbers of local segments. Returns `None` if
    /// a WQE would be larger than `ds` can express, or the ring larger than 2^15 blocks.
    #[must_use]
    pub fn new(
        max_requests: u32,
        max_request_segments: u32,
        max_read_segments: u32,
    ) -> Option<Self> {
        let segments = max_request_segments.max(max_read_segments).max(1);
        // The control unit and the remote address unit come before the data. A Send has no remote address unit.
        let units = segments
            .checked_add(2)
            .filter(|&units| units as usize <= wqe::MAX_UNITS)?;
        let wqe_blocks = units.div_ceil(wqe::BLOCK_UNITS_U32);
        let ring_blocks = max_requests
            .max(1)
            .checked_mul(wqe_blocks)?
            .checked_next_power_of_two()?
            .max(MIN_RING_BLOCKS);
        (ring_blocks <= 1 << 15).then_some(Self {
            max_requests,
            wqe_blocks,
            ring_blocks,
        })
    }

    /// Returns the sizes of a ring in which every request may be a bind of a memory window; `None` if it would be
    /// larger than 2^15 blocks.
    #[must_use]
    pub fn with_binds(self) -> Option<Self> {
        let wqe_blocks = self.wqe_blocks.max(window::BLOCKS.into());
        let ring_blocks = self
            .max_requests
            .max(1)
            .checked_mul(wqe_blocks)?
            .checked_next_power_of_two()?
            .max(MIN_RING_BLOCKS);
        (ring_blocks <= 1 << 15).then_some(Self {
            wqe_blocks,
            ring_blocks,
            ..self
        })
    }

    /// Returns the size of the ring in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ring_blocks as usize * BLOCK_BYTES
    }
}

/// Data kept for a posted request.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    cookie: u64,
    /// Tail of the CQE that completes the request in the common case: an ordinary request whose success is reported.
    /// For other requests, a tail that matches no CQE; its WQE counter is the number of the first block.
    reported: Tail,
    /// Number of bytes in bits 31:0, and the flags below.
    what: u64,
}

/// Flag: the `unsignalled` choice made at the post.
const UNSIGNALLED: u64 = 1 << 32;
/// Flag: the success of the request is not reported.
const SUPPRESSED: u64 = 2 << 32;
/// Flag: the request is a bind. [`SendQueue::complete`] reports its success; [`SendQueue::complete_plain`] does not
/// handle it.
const BIND: u64 = 4 << 32;
/// Flag: the library itself posted the request. Its success is reported like that of a bind.
const OWN: u64 = 8 << 32;

impl Shadow {
    /// Value of an unused element.
    const NONE: Self = Self {
        cookie: 0,
        reported: Tail::NONE,
        what: SUPPRESSED,
    };

    /// Returns the index of the request's first block, as the device reports it.
    const fn index(&self) -> u16 {
        self.reported.index()
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    const fn bytes(&self) -> u32 {
        self.what as u32
    }

    const fn unsignalled(&self) -> bool {
        self.what & UNSIGNALLED != 0
    }

    const fn suppressed(&self) -> bool {
        self.what & SUPPRESSED != 0
    }

    const fn is_bind(&self) -> bool {
        self.what & BIND != 0
    }

    const fn is_own(&self) -> bool {
        self.what & OWN != 0
    }
}

/// Precomputed first eight bytes of control segments ([`wqe::head`]).
#[derive(Clone, Copy, Debug)]
struct Heads {
    send: u64,
    rdma_write: u64,
}

/// Bits in which the first eight bytes of the control segment differ between RDMA Read and RDMA Write.
const READ_NOT_WRITE: u64 =
    wqe::head(WqeOpcode::RDMA_WRITE, 0) ^ wqe::head(WqeOpcode::RDMA_READ, 0);

/// A send queue, at the start of its queue pair. The fields are grouped by cache line in the order of their use.
#[repr(C)]
pub struct SendQueue {
    // Fields that both a completion and a post use.
    /// Data of each outstanding request, indexed by running number; and the running number of the oldest outstanding
    /// one.
    shadow: Cyclic<Shadow>,
    /// Number of requests posted since creation. Its lower 32 bits are the running number of the next request.
    posted: u64,
    /// Part of the CQE tails that is the same for all requests of the queue pair ([`Tail::of_queue`]).
    queue_tail: u64,
    /// The ring, and its word of the doorbell record.
    ring: DmaQueue<BLOCK_BYTES>,

    // Fields that only a post uses.
    doorbell: SendDoorbell,
    /// Precomputed starts of the WQEs of Sends and RDMA Writes with one segment.
    heads: Heads,
    /// Number of suppressed requests since the last one that asked for a CQE.
    unreported: u32,
    /// Number of requests in a row without a CQE, after which a request asks for a CQE although it is suppressed.
    reclaim_every: u32,
    /// Limit that posts check: equal to `limit`, or 0 after a bind.
    max_requests: u32,
    /// Number of blocks posted since the last reset, modulo 2^16.
    producer_index: u16,
    /// Number of blocks of the ring, minus one.
    block_mask: u16,
    /// Number of bytes of all requests posted since creation.
    bytes: u64,

    // Fields that only some posts use.
    /// Maximum number of outstanding requests.
    limit: u32,
    /// Number of the queue pair, or of the SQ, in bits 31:8.
    qpn_shifted: u32,
    /// Maximum number of units of a WQE.
    max_units: usize,
    /// Doorbell value of the last request that was posted without ringing the doorbell.
    unrung: u64,
    /// Number of CQEs that match no outstanding request.
    unmatched_entries: u64,
}

static_assertions::const_assert_eq!(core::mem::offset_of!(SendQueue, doorbell), 64);
static_assertions::const_assert!(core::mem::offset_of!(SendQueue, limit) <= 128);

impl SendQueue {
    /// Makes a send queue in `buffer` from byte offset `base` on, with the doorbell record `record`. `number` is
    /// that of the queue pair, or of the SQ.
    ///
    /// # Panics
    /// When the number of blocks is more than 2^15 or not a power of two, or the ring does not fit the buffer.
    #[must_use]
    pub fn new(
        sizes: SendSizes,
        buffer: &DmaBuffer,
        base: usize,
        record: &DmaBuffer,
        doorbells: &Doorbells,
        number: u32,
    ) -> Self {
        assert!(sizes.ring_blocks <= 1 << 15, "a send ring of {sizes:?}");
        let ring = DmaQueue::new(buffer, base, sizes.ring_blocks, (record, SEND_COUNTER));
        // CAST: `ring_blocks` is at most 2^15, as asserted above.
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^15")]
        let block_mask = (sizes.ring_blocks - 1) as u16;
        let qpn_shifted = number << 8;
        Self {
            ring,
            doorbell: doorbells.of_send_queues(),
            heads: Heads {
                send: wqe::head(WqeOpcode::SEND, qpn_shifted | 2),
                rdma_write: wqe::head(WqeOpcode::RDMA_WRITE, qpn_shifted | 3),
            },
            qpn_shifted,
            queue_tail: Tail::of_queue(number),
            block_mask,
            producer_index: 0,
            max_units: (sizes.wqe_blocks as usize * BLOCK_UNITS).min(wqe::MAX_UNITS),
            max_requests: sizes.max_requests,
            limit: sizes.max_requests,
            posted: 0,
            bytes: 0,
            unrung: 0,
            unreported: 0,
            reclaim_every: (sizes.max_requests / 4).max(1),
            shadow: Cyclic::new(sizes.max_requests, Shadow::NONE),
            unmatched_entries: 0,
        }
    }

    /// Discards all outstanding requests and starts at index 0 again, as the device does on 2RST.
    pub fn reset(&mut self) {
        self.producer_index = 0;
        self.max_requests = self.limit;
        self.shadow.oldest = self.next();
        self.unreported = 0;
        self.shadow.fill(Shadow::NONE);
        self.ring.store(0);
    }

    /// Hides all requests from the device by a doorbell record of 0, as
    /// [`RecvQueue::withhold`](super::recv::RecvQueue::withhold).
    pub fn withhold(&self) {
        self.ring.store(0);
    }

    /// Returns the number of requests posted and not yet known complete.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.next().wrapping_sub(self.shadow.oldest)
    }

    /// Returns the running number of the next request.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    const fn next(&self) -> u32 {
        self.posted as u32
    }

    /// Returns the number of requests posted since creation, and their bytes.
    #[must_use]
    pub const fn posted(&self) -> (u64, u64) {
        (self.posted, self.bytes)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.outstanding() >= self.max_requests
    }

    /// Returns whether the last request asked for no CQE.
    #[must_use]
    pub const fn ends_silently(&self) -> bool {
        self.unreported != 0
    }

    /// Returns the number of CQEs since creation that named no outstanding request.
    #[must_use]
    pub fn unmatched_entries(&self) -> u64 {
        self.unmatched_entries
    }

    /// Writes unit number `at` of the next WQE, which starts at `producer_index`.
    #[inline]
    fn store(&self, at: usize, unit: Unit) {
        // CAST: `at` is at most 63.
        #[expect(clippy::cast_possible_truncation, reason = "at most 63 units")]
        let place = u32::from(self.producer_index) * wqe::BLOCK_UNITS_U32 + at as u32;
        self.ring.part::<UNIT_BYTES>(place).write(&unit);
    }

    /// Posts a request and rings the doorbell.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_requests` are outstanding; nothing was written.
    ///
    /// # Panics
    /// When there are more segments than the queue was made for.
    // Always inlined: `op` is a constant at the call, so the compiler removes the branches on it.
    #[inline(always)]
    pub fn post<I>(
        &mut self,
        op: RequestOp,
        mut segments: I,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment>,
    {
        if self.is_full() {
            return self.post_when_full(op, segments, cookie, flags);
        }
        // Nearly all requests have one segment. The WQE is then no larger than a block: it is computed in registers and
        // stored as a whole.
        let (Some(first), second) = (segments.next(), segments.next()) else {
            self.post_list(op, segments, cookie, flags);
            return Ok(());
        };
        if let Some(second) = second {
            self.post_list(
                op,
                [first, second].into_iter().chain(segments),
                cookie,
                flags,
            );
            return Ok(());
        }
        let control = self.write_first(op, first, cookie, flags);
        self.ring(control);
        Ok(())
    }

    /// Posts a request of one segment, unless the queue appears full. Without `RING`, [`SendQueue::ring_last`] or the
    /// next post with a doorbell rings for this request.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written. [`SendQueue::post`] may still succeed.
    #[inline(always)]
    pub fn post_one<const RING: bool>(
        &mut self,
        op: RequestOp,
        segment: DataSegment,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull> {
        if self.is_full() {
            return Err(QueueFull);
        }
        let control = self.write_first(op, segment, cookie, flags);
        if RING {
            self.ring(control);
        } else {
            self.unrung = control;
        }
        Ok(())
    }

    /// Rings the doorbell for requests that [`SendQueue::post_one`] posted without a doorbell. There must be at least
    /// one.
    pub fn ring_last(&mut self) {
        self.ring(self.unrung);
    }

    /// Writes a request of one segment into a queue that is not full, and accounts for it. Returns its doorbell value.
    #[inline(always)]
    fn write_first(
        &mut self,
        op: RequestOp,
        segment: DataSegment,
        cookie: u64,
        flags: RequestFlags,
    ) -> u64 {
        let report = self.reports(flags);
        let head = match op {
            RequestOp::Send => self.heads.send,
            RequestOp::RdmaWrite { .. } => self.heads.rdma_write,
            RequestOp::RdmaRead { .. } => self.heads.rdma_write ^ READ_NOT_WRITE,
            // These operations are too rare for precomputed values.
            RequestOp::SendImmediate(_)
            | RequestOp::SendInvalidate { .. }
            | RequestOp::RdmaWriteImmediate { .. }
            | RequestOp::FetchAdd { .. }
            | RequestOp::CompareSwap { .. } => {
                // CAST: a WQE of one segment has at most four units.
                #[expect(clippy::cast_possible_truncation, reason = "at most four units")]
                let units = head_units(op) as u32 + 1;
                wqe::head(opcode(op), self.qpn_shifted | units)
            }
        };
        let bits = control_bits(report, flags);
        let control = wqe::control_with(head, self.producer_index, bits, last_word(op));
        let data = wqe::data(segment.bytes, segment.lmr_context, segment.address);
        let block = self.ring.block(u32::from(self.producer_index));
        match (remote_unit(op), atomic_unit(op)) {
            (None, _) => block.write(&[control, data]),
            (Some(remote), None) => block.write(&[control, remote, data]),
            (Some(remote), Some(atomic)) => block.write(&[control, remote, atomic, data]),
        }
        self.count(1, segment.bytes, cookie, flags);
        control.doorbell()
    }

    /// Posts a request with any number of segments to a queue that is not full.
    #[inline(never)]
    fn post_list<I>(&mut self, op: RequestOp, segments: I, cookie: u64, flags: RequestFlags)
    where
        I: Iterator<Item = DataSegment>,
    {
        let mut units = head_units(op);
        let mut bytes = 0_u32;
        for segment in segments {
            // PANIC: the caller checked the number of segments against the queue's sizes. One more unit would overwrite
            // a WQE that the device may be reading.
            assert!(
                units < self.max_units,
                "a WQE of more than {} units",
                self.max_units
            );
            self.store(
                units,
                wqe::data(segment.bytes, segment.lmr_context, segment.address),
            );
            bytes = bytes.wrapping_add(segment.bytes);
            units += 1;
        }
        self.commit(op, units, bytes, cookie, flags);
    }

    /// Posts a datagram. The queue must belong to a datagram queue pair, and its WQEs must be large enough for an
    /// address vector.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_requests` are outstanding; nothing was written.
    ///
    /// # Panics
    /// When the queue's WQEs are too small.
    pub fn post_datagram(
        &mut self,
        to: &AddressVector,
        segment: DataSegment,
        cookie: u64,
    ) -> Result<(), QueueFull> {
        const UNITS: usize = 5;
        assert!(
            UNITS <= self.max_units,
            "a datagram WQE of {UNITS} units where {} fit",
            self.max_units
        );
        if self.is_full() {
            return Err(QueueFull);
        }
        for (at, unit) in to.units().into_iter().enumerate() {
            self.store(1 + at, unit);
        }
        self.store(
            UNITS - 1,
            wqe::data(segment.bytes, segment.lmr_context, segment.address),
        );
        self.commit(
            RequestOp::Send,
            UNITS,
            segment.bytes,
            cookie,
            RequestFlags::NONE,
        );
        Ok(())
    }

    /// Posts an Ethernet frame. The queue must belong to an Ethernet port. `inline` is the start of the frame, and
    /// `rest` the remainder, if there is any.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_requests` are outstanding; nothing was written.
    ///
    /// # Panics
    /// When the queue's WQEs are too small.
    pub fn post_frame(
        &mut self,
        inline: &[u8],
        rest: Option<DataSegment>,
        cookie: u64,
    ) -> Result<(), QueueFull> {
        /// Number of units before the data: the control and the Ethernet segment.
        const HEAD: usize = 2;
        let (beside, units) = wqe::ethernet(inline);
        let all = HEAD + units.len() + usize::from(rest.is_some());
        // PANIC: only the Ethernet port calls this, with WQEs that are large enough.
        assert!(
            all <= self.max_units,
            "a frame's WQE of {all} units where {} fit",
            self.max_units
        );
        if self.is_full() {
            return Err(QueueFull);
        }
        self.store(1, beside);
        for (at, unit) in units.enumerate() {
            self.store(HEAD + at, unit);
        }
        if let Some(rest) = rest {
            self.store(
                all - 1,
                wqe::data(rest.bytes, rest.lmr_context, rest.address),
            );
        }
        let bytes = rest.map_or(0, |rest| rest.bytes);
        self.commit(RequestOp::Send, all, bytes, cookie, RequestFlags::NONE);
        Ok(())
    }

    /// Posts the bind of a window, and makes later requests wait for it. Returns the window's new key.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_requests` are outstanding; nothing was written.
    ///
    /// # Panics
    /// When the queue was not made for binds ([`SendSizes::with_binds`]).
    pub fn post_bind(
        &mut self,
        window: &mut Window,
        target: &WindowTarget,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<u32, QueueFull> {
        // PANIC: without this check, the bind could overwrite a WQE that the device may be reading.
        assert!(
            self.max_units >= usize::from(window::BLOCKS) * BLOCK_UNITS,
            "a bind on a queue that was not made for it"
        );
        let held = self.is_full();
        if held && !self.end_bind_hold() {
            return Err(QueueFull);
        }
        let flags = RequestFlags {
            suppress: false,
            solicited: false,
            fence: flags.fence || held,
            unsignalled: flags.unsignalled,
        };
        let report = self.reports(flags);
        let body = window.body(target);
        let units = 1 + body.units().len();
        // CAST: `units` is at most twelve.
        #[expect(clippy::cast_possible_truncation, reason = "at most twelve units")]
        let (blocks, ds) = (wqe::blocks(units) as u16, units as u32);
        let head = wqe::head(WqeOpcode::UMR, self.qpn_shifted | ds);
        let bits = control_bits(report, flags);
        let control = wqe::control_with(head, self.producer_index, bits, window.key());
        self.store(0, control);
        for (at, unit) in body.units().iter().enumerate() {
            self.store(1 + at, *unit);
        }
        window.advance(target);
        let (number, index) = (self.next(), self.producer_index);
        self.count(blocks, 0, cookie, flags);
        self.ring(control.doorbell());
        let shadow = self.shadow.at_mut(number);
        shadow.what |= BIND;
        shadow.reported = Tail::of_block(self.queue_tail, index, true);
        if window.needs_fence() {
            self.max_requests = 0;
        }
        Ok(window.key())
    }

    /// Posts an RDMA Write of no bytes for the library itself. Its completion is marked as the library's own.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    pub fn post_own(&mut self) -> Result<(), QueueFull> {
        let nothing = RequestOp::RdmaWrite {
            address: 0,
            rmr_context: 0,
        };
        let (number, index) = (self.next(), self.producer_index);
        self.post(nothing, core::iter::empty(), 0, RequestFlags::NONE)?;
        let shadow = self.shadow.at_mut(number);
        shadow.what |= OWN;
        shadow.reported = Tail::of_block(self.queue_tail, index, true);
        Ok(())
    }

    /// Returns whether a queue that appears full does so only because its last request was a bind. If so, restores the
    /// limit, and the caller must post the next request with a fence.
    #[cold]
    fn end_bind_hold(&mut self) -> bool {
        let held = self.max_requests != self.limit && self.outstanding() < self.limit;
        if held {
            self.max_requests = self.limit;
        }
        held
    }

    /// Posts to a queue that appears full: with a fence after a bind, otherwise not at all.
    #[cold]
    #[inline(never)]
    fn post_when_full<I>(
        &mut self,
        op: RequestOp,
        segments: I,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment>,
    {
        if !self.end_bind_hold() {
            return Err(QueueFull);
        }
        let fence = true;
        self.post_list(op, segments, cookie, RequestFlags { fence, ..flags });
        Ok(())
    }

    /// Returns the maximum number of bytes that [`SendQueue::post_inline`] takes for an operation.
    #[must_use]
    pub const fn inline_limit(&self, op: RequestOp) -> usize {
        wqe::inline_limit(self.max_units, head_units(op))
    }

    /// Posts a request and copies its data into the WQE. The data needs no local key, and the caller may reuse its
    /// memory on return. RDMA Read and atomic operations have no inline form: their segments are destinations.
    ///
    /// # Errors
    /// [`InlineError`]; nothing was written.
    ///
    /// # Panics
    /// When asked for an RDMA Read or an atomic operation.
    #[inline]
    pub fn post_inline(
        &mut self,
        op: RequestOp,
        data: &[u8],
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), InlineError> {
        // PANIC: only our own code calls this, with Sends and RDMA Writes.
        assert!(
            !matches!(
                op,
                RequestOp::RdmaRead { .. }
                    | RequestOp::FetchAdd { .. }
                    | RequestOp::CompareSwap { .. }
            ),
            "inline data of a request whose segments are destinations"
        );
        let limit = self.inline_limit(op);
        let bytes = u32::try_from(data.len())
            .ok()
            .filter(|_| data.len() <= limit);
        let Some(bytes) = bytes else {
            return Err(InlineError::TooLong {
                bytes: data.len(),
                limit,
            });
        };
        let held = self.is_full();
        if held && !self.end_bind_hold() {
            return Err(InlineError::Full);
        }
        let flags = RequestFlags {
            fence: flags.fence || held,
            ..flags
        };
        let mut units = head_units(op);
        if !data.is_empty() {
            // The inline header and the first twelve bytes share a unit. The other bytes follow in whole units, so the
            // ring ends between two units.
            const BESIDE: usize = UNIT_BYTES - 4;
            let mut unit = [0; UNIT_BYTES];
            unit[..4].copy_from_slice(&wqe::inline_header(bytes).to_be_bytes());
            // A whole chunk has a constant length, so the compiler copies it without a call of memcpy(3).
            let rest = match data.split_first_chunk::<BESIDE>() {
                Some((first, rest)) => {
                    unit[4..].copy_from_slice(first);
                    rest
                }
                None => {
                    unit[4..4 + data.len()].copy_from_slice(data);
                    &[]
                }
            };
            self.store(units, Unit::from_bytes(unit));
            units += 1;
            let (whole, last) = rest.as_chunks::<UNIT_BYTES>();
            for &part in whole {
                self.store(units, Unit::from_bytes(part));
                units += 1;
            }
            if !last.is_empty() {
                self.store(units, Unit::from_bytes(end_of(data, last.len())));
                units += 1;
            }
        }
        self.commit(op, units, bytes, cookie, flags);
        Ok(())
    }

    /// Finishes a WQE whose data units are written: writes its other units, accounts for it and rings the doorbell.
    #[inline(always)]
    fn commit(
        &mut self,
        op: RequestOp,
        units: usize,
        bytes: u32,
        cookie: u64,
        flags: RequestFlags,
    ) {
        let report = self.reports(flags);
        // CAST: `units` is at most 63.
        #[expect(clippy::cast_possible_truncation, reason = "at most 63 units")]
        let head = wqe::head(opcode(op), self.qpn_shifted | units as u32);
        let bits = control_bits(report, flags);
        let control = wqe::control_with(head, self.producer_index, bits, last_word(op));
        self.store(0, control);
        if let Some(remote) = remote_unit(op) {
            self.store(1, remote);
        }
        if let Some(atomic) = atomic_unit(op) {
            self.store(2, atomic);
        }
        // CAST: `units` is at most 63.
        #[expect(clippy::cast_possible_truncation, reason = "at most 16 blocks")]
        let blocks = wqe::blocks(units) as u16;
        self.count(blocks, bytes, cookie, flags);
        self.ring(control.doorbell());
    }

    /// Returns whether the next request asks for a CQE on success, and updates the number of unreported requests.
    #[inline(always)]
    fn reports(&mut self, flags: RequestFlags) -> bool {
        self.unreported += 1;
        let report = !flags.suppress || self.unreported >= self.reclaim_every;
        if report {
            self.unreported = 0;
        }
        report
    }

    /// Accounts for the WQE that was just written to the ring.
    #[inline(always)]
    fn count(&mut self, blocks: u16, bytes: u32, cookie: u64, flags: RequestFlags) {
        let number = self.next();
        *self.shadow.at_mut(number) = Shadow {
            cookie,
            reported: Tail::of_block(self.queue_tail, self.producer_index, flags.suppress),
            what: u64::from(bytes)
                | (u64::from(flags.unsignalled) * UNSIGNALLED)
                | (u64::from(flags.suppress) * SUPPRESSED),
        };
        self.producer_index = self.producer_index.wrapping_add(blocks);
        self.posted = self.posted.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(bytes));
    }

    /// Hands all WQEs before `producer_index` to the device. Only this function rings send doorbells, because the order
    /// of its steps is essential.
    ///
    /// The device may act on the doorbell record alone, which it reads again while it works on the queue. The register
    /// only ensures that the device reads the record.
    #[inline(always)]
    pub fn ring(&mut self, control: u64) {
        barrier::dma_to_device(); // the WQEs are written before the record that announces them
        self.ring.store(u32::from(self.producer_index));
        barrier::dma_to_device(); // the doorbell record is written before the doorbell register
        self.doorbell.ring(control);
        barrier::flush_write_combining(); // the doorbell must not wait in a store buffer
    }

    /// Returns the data kept for the request with a running number.
    #[inline]
    fn shadow(&self, number: u32) -> &Shadow {
        self.shadow.at(number)
    }

    /// Returns the running number of the oldest outstanding request for which `is_it` returns true.
    fn find(&self, is_it: impl Fn(&Shadow) -> bool) -> Option<u32> {
        (0..self.outstanding())
            .map(|ahead| self.shadow.oldest.wrapping_add(ahead))
            .find(|&number| is_it(self.shadow(number)))
    }

    /// Handles the common case of [`SendQueue::complete`]: completes the oldest request if the CQE reports its success
    /// and the success is to be reported. Returns its cookie and bytes. In any other case returns `None` and changes
    /// nothing.
    #[inline(always)]
    pub fn complete_plain(&mut self, entry: Tail) -> Option<(u64, u32)> {
        let oldest = self.shadow.oldest;
        let shadow = self.shadow.at_mut(oldest);
        // If no request is outstanding, no CQE matches, because unused and discarded elements hold `Tail::NONE`.
        if !entry.is(shadow.reported) {
            return None;
        }
        shadow.reported = Tail::NONE;
        let done = (shadow.cookie, shadow.bytes());
        self.shadow.oldest = oldest.wrapping_add(1);
        Some(done)
    }

    /// Completes a request that has suppressed requests before it. Those are completed too.
    pub fn complete_behind_suppressed(&mut self, entry: Tail) -> Option<(u64, u32)> {
        let number = self.find(|shadow| entry.is(shadow.reported))?;
        let shadow = self.forget_until(number);
        Some((shadow.cookie, shadow.bytes()))
    }

    /// Discards the requests up to `number`, so that no CQE matches them any more. Returns the data of the last one.
    fn forget_until(&mut self, number: u32) -> Shadow {
        let shadow = *self.shadow.at(number);
        let last = number.wrapping_add(1);
        while self.shadow.oldest != last {
            self.shadow.at_mut(self.shadow.oldest).reported = Tail::NONE;
            self.shadow.oldest = self.shadow.oldest.wrapping_add(1);
        }
        shadow
    }

    /// Completes the WQE at block `index` and all WQEs before it. `failure` is the syndrome and vendor syndrome of that
    /// WQE if it failed. Returns its completion, unless it succeeded and its success is not to be reported. The WQEs
    /// before it are not reported: they were suppressed, or the device has skipped their CQEs.
    pub fn complete(&mut self, index: u16, failure: Option<(u8, u8)>) -> Option<Completion> {
        let here = |shadow: &Shadow| (shadow.index() ^ index) & self.block_mask == 0;
        let Some(number) = self.find(here) else {
            self.count_unmatched(index);
            return None;
        };
        let shadow = self.forget_until(number);
        let status = match failure {
            None if shadow.suppressed() => return None,
            None => Status::Success,
            Some((syndrome, _)) => Status::of_syndrome(syndrome),
        };
        Some(Completion {
            cookie: shadow.cookie,
            status,
            transferred: u64::from(shadow.bytes()),
            request: true,
            bind: shadow.is_bind(),
            own: shadow.is_own(),
            unsignalled: shadow.unsignalled(),
            solicited: false,
            detail: Detail::of_syndrome(failure.unwrap_or((0, 0))),
        })
    }

    /// Removes the oldest outstanding request and returns it as flushed, because the device will report nothing more
    /// about it.
    pub fn take_oldest(&mut self) -> Option<Completion> {
        if self.outstanding() == 0 {
            return None;
        }
        let shadow = self.forget_until(self.shadow.oldest);
        Some(Completion {
            bind: shadow.is_bind(),
            own: shadow.is_own(),
            ..Completion::flushed(shadow.cookie, true, shadow.unsignalled())
        })
    }

    #[cold]
    #[inline(never)]
    fn count_unmatched(&mut self, index: u16) {
        self.unmatched_entries += 1;
        tracing::warn!(qpn = self.qpn_shifted >> 8, index, queue = ?self, "a completion names no outstanding request; ignored");
    }
}

/// Returns the flags byte of a control segment.
#[inline(always)]
fn control_bits(report: bool, flags: RequestFlags) -> u8 {
    (u8::from(flags.solicited) * wqe::flag::SOLICITED)
        | (u8::from(report) * wqe::flag::COMPLETE)
        | (u8::from(flags.fence) * wqe::flag::FENCE)
}

/// Returns the last `bytes` bytes of `data`, at most 16, followed by zeros to fill a unit.
#[inline(always)]
fn end_of(data: &[u8], bytes: usize) -> [u8; UNIT_BYTES] {
    match data.last_chunk::<UNIT_BYTES>() {
        // The last 16 bytes are read as a whole and shifted, so the compiler emits no call of memcpy(3).
        Some(&end) => (u128::from_be_bytes(end) << (8 * (UNIT_BYTES - bytes))).to_be_bytes(),
        None => {
            let mut unit = [0; UNIT_BYTES];
            unit[..bytes].copy_from_slice(&data[data.len() - bytes..]);
            unit
        }
    }
}

impl core::fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &format_args!("{:#x}", self.qpn_shifted >> 8))
            .field("ring", &self.ring)
            .field(
                "producer_index",
                &format_args!("{:#x}", self.producer_index),
            )
            .field("posted", &format_args!("{:#x}", self.posted))
            .field("completed", &format_args!("{:#x}", self.shadow.oldest))
            .field("max_requests", &self.limit)
            .field("behind_bind", &(self.max_requests != self.limit))
            .finish_non_exhaustive()
    }
}
