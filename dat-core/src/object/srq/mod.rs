//! The shared receive queue.
//!
//! A buffer's slot is occupied until the consumer has *dequeued* its completion. The provider knows
//! until when the completion was polled; those polled early, into an EVD's queue in software, are
//! counted here.

pub mod state;

use crate::handle::{EpKey, EvdKey, PzKey};
use crate::provider::Provider;
use crate::turns::{Counted, Turns};
use state::SrqMode;

pub(crate) struct Srq<P: Provider> {
    pub(crate) queue: P::Srq,
    pub(crate) pz: PzKey,
    pub(crate) pz_index: u32,
    pub(crate) max_recv_dtos: u32,
    pub(crate) max_recv_iov: u32,
    pub(crate) low_watermark: u32,
    pub(crate) mode: SrqMode,
    /// Completions taken out of the device's queue and not yet dequeued by the consumer.
    pub(crate) undequeued: u32,
    /// Endpoints that use it.
    pub(crate) users: u32,
    /// Where their receives complete.
    pub(crate) recv_evds: Counted<EvdKey>,
    /// Those of them whose receives complete nowhere.
    pub(crate) unwanted: Turns<EpKey>,
}

impl<P: Provider> Srq<P> {
    pub(crate) const fn max_recv_dtos(&self) -> u32 {
        self.max_recv_dtos
    }
}
