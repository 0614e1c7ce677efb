//! The shared receive queue.
//!
//! A buffer's slot is occupied until the consumer has *dequeued* its completion. The provider counts a slot only until
//! the completion is polled. This object counts the completions that were polled early, into the software queue of an
//! EVD.

mod parking;
pub mod state;

use crate::error::Subtype;
use crate::handle::{EpKey, EvdKey, PzKey, index_of};
use crate::provider::{Provider, SharedReceiveQueue};
use crate::round_robin::{Counted, RoundRobin};
use crate::stats::SrqStats;
use state::{SrqInput, SrqMode, SrqReport};

pub(crate) struct Srq<P: Provider> {
    pub(crate) queue: P::Srq,
    pub(crate) pz: PzKey,
    pub(crate) pz_index: u32,
    pub(crate) max_recv_dtos: u32,
    pub(crate) max_recv_iov: u32,
    pub(crate) low_watermark: u32,
    mode: SrqMode,
    /// Number of completions that were polled from the completion queue, and that the consumer has not dequeued yet.
    undequeued: u32,
    /// Number of endpoints that use the SRQ.
    pub(crate) users: u32,
    /// EVDs on which the receives of these endpoints complete.
    pub(crate) recv_evds: Counted<EvdKey>,
    /// Endpoints that use the SRQ and have no receive EVD, so that no call dequeues their completions.
    pub(crate) unwanted: RoundRobin<EpKey>,
    /// Number of posts that were refused because the SRQ was full.
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
            unwanted: RoundRobin::new(),
            full: 0,
        }
    }

    pub(crate) const fn max_recv_dtos(&self) -> u32 {
        self.max_recv_dtos
    }

    pub(crate) const fn mode(&self) -> SrqMode {
        self.mode
    }

    /// Applies an input to the state of the SRQ. No other function changes this state. Returns the event to report.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE error with which the input is refused; nothing has changed.
    pub(crate) fn step(&mut self, input: SrqInput) -> Result<SrqReport, Subtype> {
        let (mode, report) = self.mode.next(input)?;
        self.mode = mode;
        Ok(report)
    }

    /// Returns the number of slots in use: available buffers, and completions not yet dequeued.
    pub(crate) fn outstanding(&self) -> u32 {
        self.queue.outstanding().saturating_add(self.undequeued)
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> SrqStats {
        SrqStats {
            posted: self.queue.posted(),
            outstanding: self.outstanding(),
            full: self.full,
        }
    }

    /// Returns whether completions that were polled early, and are not yet dequeued, make the SRQ full.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.undequeued != 0 && self.outstanding() >= self.max_recv_dtos
    }

    /// Counts a completion that was polled early.
    pub(crate) const fn taken_early(&mut self) {
        self.undequeued += 1;
    }

    /// Subtracts a completion that was polled early, because it was dequeued or dropped.
    pub(crate) const fn slot_returned(&mut self) {
        self.undequeued -= 1;
    }
}
