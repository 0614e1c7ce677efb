//! Send queues: how a request becomes a packet.
//!
//! A send queue is a ring of 64-byte basic blocks (WQEBBs). Blocks from the oldest outstanding WQE
//! up to `producer_index` belong to the device until a CQE names them; the others are ours to
//! write. Indices count blocks since creation, wrap at 2^16 and are masked only on access.
//!
//! DAT counts requests and not blocks, and promises exactly `max_requests` of them. The ring is
//! therefore made so large that this many WQEs of the largest size fit, and the only question a post
//! asks is how many requests are outstanding. Whatever the sizes of the WQEs, the ring is never full
//! before the count is.
//!
//! Beside the ring stands a *shadow*: for the first block of each WQE what the completion must say
//! (cookie, bytes, how it is reported) and the running number of the request. A CQE names a
//! block; the shadow turns it into a request, and the running numbers say how many older requests
//! are thereby done too, without walking over them. A block that is not the first of an outstanding
//! WQE fails the comparison of index and number, so that a lying device is noticed.
//!
//! A request whose success is not reported (suppressed) asks for a CQE on error only. If nothing
//! else did, a queue driven with suppressed requests alone would fill and never learn that it is
//! empty: every `reclaim_every`-th request in a row asks for a CQE after all, which
//! [`SendQueue::complete`] hides. An error is reported whether or not success would have been.
//!
//! Posting has three steps, and their order is the whole point (PRM, chapter "Work Queues"): write
//! the WQE, write the doorbell record, write the doorbell register. See [`SendQueue::ring`].
//!
//! No BlueFlame: VFIO maps BARs uncached, where its 64-byte copy is eight bus writes, not one. No
//! WQE signatures, no memory windows (their WQEs would be the largest ones by far).

use dat_core::provider::{Completion, DataSegment, QueueFull, RequestFlags, RequestOp};
use dat_core::types::DtoStatus;
use driver::{DmaBuffer, barrier};

use crate::completion;
use crate::uar::Doorbells;
use crate::wqe::{self, AddressVector, BLOCK_BYTES, BLOCK_UNITS, UNIT_BYTES, Unit};

/// Offset in the doorbell record of the send counter.
const SEND_COUNTER: usize = 4;

/// Sizes of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendSizes {
    /// Requests that may be outstanding.
    pub max_requests: u32,
    /// Blocks of the largest WQE.
    pub wqe_blocks: u32,
    /// Blocks of the ring, a power of two.
    pub ring_blocks: u32,
}

impl SendSizes {
    /// The ring for `max_requests` requests with up to so many local segments; `None` when a WQE
    /// would be larger than `ds` can say or the ring larger than its 16-bit indices can.
    #[must_use]
    pub fn new(
        max_requests: u32,
        max_request_segments: u32,
        max_read_segments: u32,
    ) -> Option<Self> {
        let segments = max_request_segments.max(max_read_segments).max(1);
        // Control and remote address before the data; a Send has one unit less.
        let units = segments
            .checked_add(2)
            .filter(|&units| units as usize <= wqe::MAX_UNITS)?;
        let wqe_blocks = units.div_ceil(wqe::BLOCK_UNITS_U32);
        let ring_blocks = max_requests
            .max(1)
            .checked_mul(wqe_blocks)?
            .checked_next_power_of_two()?;
        (ring_blocks <= 1 << 15).then_some(Self {
            max_requests,
            wqe_blocks,
            ring_blocks,
        })
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ring_blocks as usize * BLOCK_BYTES
    }
}

/// What we remember of a request, at the slot of its first block.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    cookie: u64,
    bytes: u32,
    /// Running number of the request.
    number: u32,
    /// Block index as the device will say it.
    index: u16,
    suppress: bool,
    unsignalled: bool,
}

/// Why an inline post was refused; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InlineError {
    /// No room.
    #[error("max_requests are outstanding")]
    Full,
    /// The data does not fit a WQE of this queue.
    #[error("{bytes} bytes do not fit inline, {limit} do")]
    TooLong {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that fit.
        limit: usize,
    },
}

/// A send queue.
pub struct SendQueue {
    /// The queue pair's buffer; the send ring starts at `base`.
    buffer: DmaBuffer,
    base: usize,
    record: DmaBuffer,
    doorbells: Doorbells,
    /// Queue pair number in bits 31:8.
    qpn_shifted: u32,
    /// Blocks of the ring minus one.
    block_mask: u16,
    /// Blocks posted since creation.
    producer_index: u16,
    /// Units a WQE may have.
    max_units: usize,
    max_requests: u32,
    /// Requests posted since creation.
    posted: u32,
    /// Requests known complete since creation.
    completed: u32,
    /// What `posted` is when the queue is full: `max_requests` beyond `completed`.
    limit: u32,
    /// Suppressed requests since the last one that asked for a CQE.
    unreported: u32,
    /// After so many requests in a row without a CQE, one asks for it.
    reclaim_every: u32,
    /// One per block of the ring.
    shadow: Box<[Shadow]>,
    /// Entries of the device that fit no request.
    distrusted: u64,
}

impl SendQueue {
    /// A send queue in `buffer` from byte `base` on, whose doorbell record is `record`.
    ///
    /// # Panics
    /// When the ring does not fit the buffer.
    #[must_use]
    pub fn new(
        sizes: SendSizes,
        buffer: DmaBuffer,
        base: usize,
        record: DmaBuffer,
        doorbells: Doorbells,
        qpn: u32,
    ) -> Self {
        assert!(
            sizes.ring_blocks.is_power_of_two()
                && sizes.ring_blocks <= 1 << 15
                && buffer.contains(base, sizes.bytes()),
            "a send ring of {sizes:?} at {base:#x} of {:#x} bytes",
            buffer.len()
        );
        // CAST: at most 2^15, asserted above.
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^15")]
        let block_mask = (sizes.ring_blocks - 1) as u16;
        let mut queue = Self {
            buffer,
            base,
            record,
            doorbells,
            qpn_shifted: qpn << 8,
            block_mask,
            producer_index: 0,
            max_units: (sizes.wqe_blocks as usize * BLOCK_UNITS).min(wqe::MAX_UNITS),
            max_requests: sizes.max_requests,
            posted: 0,
            completed: 0,
            limit: sizes.max_requests,
            unreported: 0,
            reclaim_every: (sizes.max_requests / 4).max(1),
            shadow: Box::new([]),
            distrusted: 0,
        };
        queue.shadow = queue.fresh_shadow();
        queue
    }

    /// Shadows that no CQE matches: each claims an index its slot cannot have.
    fn fresh_shadow(&self) -> Box<[Shadow]> {
        (0..=self.block_mask)
            .map(|slot| Shadow {
                cookie: 0,
                bytes: 0,
                number: 0,
                index: !slot,
                suppress: true,
                unsignalled: false,
            })
            .collect()
    }

    /// Forgets everything outstanding and starts at index 0 again, as the device does on 2RST.
    pub fn reset(&mut self) {
        self.producer_index = 0;
        self.posted = 0;
        self.completed = 0;
        self.limit = self.max_requests;
        self.unreported = 0;
        self.shadow = self.fresh_shadow();
        self.record.store_be32(SEND_COUNTER, 0);
    }

    /// Requests posted and not yet known complete.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.completed)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.posted == self.limit
    }

    /// CQEs that named no outstanding request, since creation.
    #[must_use]
    pub fn distrusted(&self) -> u64 {
        self.distrusted
    }

    /// Stores the `at`-th unit of the WQE whose first block is `block`.
    #[inline]
    fn store(&self, block: usize, at: usize, unit: Unit) {
        let offset = (block * BLOCK_BYTES + at * UNIT_BYTES)
            & (usize::from(self.block_mask) * BLOCK_BYTES + BLOCK_BYTES - 1);
        self.buffer.write_obj(self.base + offset, &unit);
    }

    /// Posts a request and rings the doorbell.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_requests` are outstanding; nothing was written.
    ///
    /// # Panics
    /// When there are more segments than the queue was made for.
    // Always inlined: the caller knows the operation, and the branches on it vanish.
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
            return Err(QueueFull);
        }
        // Nearly all requests have one segment. Then the WQE is less than a block, known to the last bit
        // before anything is stored, and goes out in one piece.
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
        let data = wqe::data(first.bytes, first.lmr_context, first.address);
        let control = self.control(op, head_units(op) + 1, flags);
        let block = usize::from(self.producer_index & self.block_mask);
        let at = self.base + block * BLOCK_BYTES;
        match remote_unit(op) {
            Some(remote) => self.buffer.write_obj(at, &[control, remote, data]),
            None => self.buffer.write_obj(at, &[control, data]),
        }
        self.finish(block, 1, first.bytes, cookie, flags, control);
        Ok(())
    }

    /// Posts a request of none or several segments to a queue that is not full.
    #[inline(never)]
    fn post_list<I>(&mut self, op: RequestOp, segments: I, cookie: u64, flags: RequestFlags)
    where
        I: Iterator<Item = DataSegment>,
    {
        let block = usize::from(self.producer_index & self.block_mask);
        let mut units = head_units(op);
        let mut bytes = 0_u32;
        for segment in segments {
            // PANIC: the caller checked the count against the sizes it created the queue with; one more unit
            // would land in a WQE the device may be reading.
            assert!(
                units < self.max_units,
                "a WQE of more than {} units",
                self.max_units
            );
            self.store(
                block,
                units,
                wqe::data(segment.bytes, segment.lmr_context, segment.address),
            );
            bytes = bytes.wrapping_add(segment.bytes);
            units += 1;
        }
        self.commit(op, block, units, bytes, cookie, flags);
    }

    /// Posts a datagram: the queue is one of a datagram queue pair, made for WQEs with room for an
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
        let block = usize::from(self.producer_index & self.block_mask);
        for (at, unit) in to.units().into_iter().enumerate() {
            self.store(block, 1 + at, unit);
        }
        self.store(
            block,
            UNITS - 1,
            wqe::data(segment.bytes, segment.lmr_context, segment.address),
        );
        let flags = RequestFlags {
            suppress: false,
            solicited: false,
            fence: false,
            unsignalled: false,
        };
        self.commit(RequestOp::Send, block, UNITS, segment.bytes, cookie, flags);
        Ok(())
    }

    /// Largest number of bytes [`SendQueue::post_inline`] takes for an operation.
    #[must_use]
    pub fn inline_limit(&self, op: RequestOp) -> usize {
        ((self.max_units - head_units(op)) * UNIT_BYTES - 4).min(0x3ff)
    }

    /// Posts a request whose data is copied into the WQE, which needs no local key and whose
    /// memory is free again on return. RDMA Read has no such form: its segments say where to.
    ///
    /// # Errors
    /// [`InlineError`]; nothing was written.
    ///
    /// # Panics
    /// When asked for an RDMA Read.
    #[inline]
    pub fn post_inline(
        &mut self,
        op: RequestOp,
        data: &[u8],
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), InlineError> {
        // PANIC: our own callers only.
        assert!(
            !matches!(op, RequestOp::RdmaRead { .. }),
            "an RDMA Read has no inline data"
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
        if self.is_full() {
            return Err(InlineError::Full);
        }
        let block = usize::from(self.producer_index & self.block_mask);
        let mut units = head_units(op);
        if !data.is_empty() {
            // The header and the first twelve bytes share a unit; the rest follows in whole units, so
            // that the end of the ring falls between two of them.
            let mut unit = [0; UNIT_BYTES];
            unit[..4].copy_from_slice(&wqe::inline_header(bytes).to_be_bytes());
            let (first, rest) = data.split_at(data.len().min(UNIT_BYTES - 4));
            unit[4..4 + first.len()].copy_from_slice(first);
            self.store_bytes(block, units, &unit);
            units += 1;
            for part in rest.chunks(UNIT_BYTES) {
                self.store_bytes(block, units, part);
                units += 1;
            }
        }
        self.commit(op, block, units, bytes, cookie, flags);
        Ok(())
    }

    /// As [`SendQueue::store`], with up to sixteen raw bytes.
    #[inline]
    fn store_bytes(&self, block: usize, at: usize, bytes: &[u8]) {
        let offset = (block * BLOCK_BYTES + at * UNIT_BYTES)
            & (usize::from(self.block_mask) * BLOCK_BYTES + BLOCK_BYTES - 1);
        self.buffer.write_bytes(self.base + offset, bytes);
    }

    /// Completes the WQE whose data units are written.
    fn commit(
        &mut self,
        op: RequestOp,
        block: usize,
        units: usize,
        bytes: u32,
        cookie: u64,
        flags: RequestFlags,
    ) {
        let control = self.control(op, units, flags);
        self.store(block, 0, control);
        if let Some(remote) = remote_unit(op) {
            self.store(block, 1, remote);
        }
        // CAST: `units` is at most 63.
        #[expect(clippy::cast_possible_truncation, reason = "at most 16 blocks")]
        let blocks = wqe::blocks(units) as u16;
        self.finish(block, blocks, bytes, cookie, flags, control);
    }

    /// The control unit of the next WQE; decides whether it asks for a CQE.
    #[inline(always)]
    fn control(&mut self, op: RequestOp, units: usize, flags: RequestFlags) -> Unit {
        self.unreported += 1;
        let report = !flags.suppress || self.unreported >= self.reclaim_every;
        if report {
            self.unreported = 0;
        }
        let bits = (u8::from(flags.solicited) * wqe::flag::SOLICITED)
            | (u8::from(report) * wqe::flag::COMPLETE)
            | (u8::from(flags.fence) * wqe::flag::FENCE);
        let opcode = match op {
            RequestOp::Send => wqe::opcode::SEND,
            RequestOp::RdmaWrite { .. } => wqe::opcode::RDMA_WRITE,
            RequestOp::RdmaRead { .. } => wqe::opcode::RDMA_READ,
        };
        // CAST: `units` is at most 63.
        #[expect(clippy::cast_possible_truncation, reason = "at most 63 units")]
        let units = units as u32;
        wqe::control(opcode, self.producer_index, self.qpn_shifted | units, bits)
    }

    /// Accounts for the WQE that is now in the ring and rings the doorbell.
    #[inline(always)]
    fn finish(
        &mut self,
        block: usize,
        blocks: u16,
        bytes: u32,
        cookie: u64,
        flags: RequestFlags,
        control: Unit,
    ) {
        self.shadow[block] = Shadow {
            cookie,
            bytes,
            number: self.posted,
            index: self.producer_index,
            suppress: flags.suppress,
            unsignalled: flags.unsignalled,
        };
        self.producer_index = self.producer_index.wrapping_add(blocks);
        self.posted = self.posted.wrapping_add(1);
        self.ring(control.doorbell());
    }

    /// Hands everything up to `producer_index` to the device. The one place that rings a send
    /// doorbell of a reliable queue pair, because the order is the whole point.
    ///
    /// The device may act on the record alone (it looks at it again whenever it is at work on the
    /// queue); the register only makes sure that it looks.
    #[inline]
    pub fn ring(&mut self, control: u64) {
        barrier::dma_to_device(); // WQEs before the record that announces them
        self.record
            .store_be32(SEND_COUNTER, u32::from(self.producer_index));
        barrier::dma_to_device(); // the record before the register that points at it
        self.doorbells.ring_send(control);
        barrier::flush_write_combining(); // out of the store buffer now, not eventually
    }

    /// Takes the device's word that the WQE at block `index` and all before it are done, the last one
    /// with `failure` (syndrome and vendor syndrome) if there is one. Returns that WQE's completion
    /// unless its success is not to be reported; earlier ones asked not to be.
    #[inline]
    pub fn complete(&mut self, index: u16, failure: Option<(u8, u8)>) -> Option<Completion> {
        let shadow = self.shadow[usize::from(index & self.block_mask)];
        let ahead = shadow.number.wrapping_sub(self.completed);
        if shadow.index != index || ahead >= self.outstanding() {
            self.distrust(index);
            return None;
        }
        self.completed = shadow.number.wrapping_add(1);
        self.limit = self.completed.wrapping_add(self.max_requests);
        let status = match failure {
            None if shadow.suppress => return None,
            None => DtoStatus::Success,
            Some((syndrome, _)) => completion::dto_status(syndrome),
        };
        Some(Completion {
            cookie: shadow.cookie,
            status,
            transferred: u64::from(shadow.bytes),
            request: true,
            unsignalled: shadow.unsignalled,
            solicited: false,
            syndrome: failure.unwrap_or((0, 0)),
        })
    }

    /// Takes the oldest outstanding request as flushed: the device will say nothing of it any more.
    pub fn take_oldest(&mut self) -> Option<Completion> {
        if self.outstanding() == 0 {
            return None;
        }
        // A shadow that was never used claims an index its slot cannot have.
        let oldest = (0..)
            .zip(&self.shadow)
            .find(|&(slot, shadow): &(u16, &Shadow)| {
                shadow.number == self.completed && shadow.index & self.block_mask == slot
            });
        let (_, shadow) = oldest?;
        self.completed = self.completed.wrapping_add(1);
        self.limit = self.completed.wrapping_add(self.max_requests);
        Some(Completion::flushed(shadow.cookie, true, shadow.unsignalled))
    }

    #[cold]
    #[inline(never)]
    fn distrust(&mut self, index: u16) {
        self.distrusted += 1;
        tracing::warn!(qpn = self.qpn_shifted >> 8, index, queue = ?self, "a completion names no outstanding request; ignored");
    }
}

/// Units before the data.
#[inline]
const fn head_units(op: RequestOp) -> usize {
    match op {
        RequestOp::Send => 1,
        RequestOp::RdmaWrite { .. } | RequestOp::RdmaRead { .. } => 2,
    }
}

/// The remote address unit, for operations that have one.
#[inline]
fn remote_unit(op: RequestOp) -> Option<Unit> {
    match op {
        RequestOp::Send => None,
        RequestOp::RdmaWrite {
            address,
            rmr_context,
        }
        | RequestOp::RdmaRead {
            address,
            rmr_context,
        } => Some(wqe::remote_address(address, rmr_context)),
    }
}

impl core::fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SendQueue")
            .field("qpn", &format_args!("{:#x}", self.qpn_shifted >> 8))
            .field(
                "blocks",
                &format_args!("{:#x}", u32::from(self.block_mask) + 1),
            )
            .field(
                "producer_index",
                &format_args!("{:#x}", self.producer_index),
            )
            .field("posted", &format_args!("{:#x}", self.posted))
            .field("completed", &format_args!("{:#x}", self.completed))
            .field("max_requests", &self.max_requests)
            .finish_non_exhaustive()
    }
}
