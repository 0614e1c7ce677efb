//! The shared receive queue.
//!
//! A buffer's slot is occupied until the consumer has *dequeued* its completion. The provider knows
//! until when the completion was polled; those polled early, into an EVD's queue in software, are
//! counted here.

pub mod state;

use crate::error::Subtype;
use crate::handle::{EpKey, EvdKey, PzKey, index_of};
use crate::provider::{Provider, SharedReceiveQueue};
use crate::stats::SrqStats;
use crate::turns::{Counted, Turns};
use state::{SrqInput, SrqMode, SrqTell};

pub(crate) struct Srq<P: Provider> {
    pub(crate) queue: P::Srq,
    pub(crate) pz: PzKey,
    pub(crate) pz_index: u32,
    pub(crate) max_recv_dtos: u32,
    pub(crate) max_recv_iov: u32,
    pub(crate) low_watermark: u32,
    mode: SrqMode,
    /// Completions taken out of the device's queue and not yet dequeued by the consumer.
    undequeued: u32,
    /// Endpoints that use it.
    pub(crate) users: u32,
    /// Where their receives complete.
    pub(crate) recv_evds: Counted<EvdKey>,
    /// Those of them whose receives complete nowhere.
    pub(crate) unwanted: Turns<EpKey>,
    /// Posts that found no room, ever.
    pub(crate) full: u64,
}

impl<P: Provider> Srq<P> {
    pub(crate) fn new(queue: P::Srq, pz: PzKey, max_recv_dtos: u32, max_recv_iov: u32) -> Self {
        Self {
            queue,
            pz,
            pz_index: index_of(pz),
            max_recv_dtos,
            max_recv_iov,
            low_watermark: 0,
            mode: SrqMode::NEW,
            undequeued: 0,
            users: 0,
            recv_evds: Counted::new(),
            unwanted: Turns::new(),
            full: 0,
        }
    }

    pub(crate) const fn max_recv_dtos(&self) -> u32 {
        self.max_recv_dtos
    }

    pub(crate) const fn mode(&self) -> SrqMode {
        self.mode
    }

    /// The one way from a mode to the next; what there is to tell.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE that refuses it; nothing has changed.
    pub(crate) fn step(&mut self, input: SrqInput) -> Result<SrqTell, Subtype> {
        let (mode, tell) = self.mode.next(input)?;
        self.mode = mode;
        Ok(tell)
    }

    /// Slots in use.
    pub(crate) fn outstanding(&self) -> u32 {
        self.queue.outstanding().saturating_add(self.undequeued)
    }

    /// What it has taken in.
    pub(crate) fn stats(&self) -> SrqStats {
        SrqStats {
            posted: self.queue.posted(),
            outstanding: self.outstanding(),
            full: self.full,
        }
    }

    /// Whether what was taken out early, and is still to be dequeued, leaves no slot.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.undequeued != 0 && self.outstanding() >= self.max_recv_dtos
    }

    /// A completion was taken out early.
    pub(crate) const fn taken_early(&mut self) {
        self.undequeued += 1;
    }

    /// One that was is dequeued, or dropped.
    pub(crate) const fn slot_returned(&mut self) {
        self.undequeued -= 1;
    }
}
