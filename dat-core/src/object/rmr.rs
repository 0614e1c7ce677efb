//! The remote memory region: a window of the device, and what it is bound to.

use super::lmr::segment::LmrTriplet;
use crate::handle::{EpKey, LmrKey, PzKey, RmrKey};
use crate::provider::Provider;
use crate::types::MemPrivFlags;

/// What an RMR is bound to.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) lmr: LmrKey,
    pub(crate) triplet: LmrTriplet,
    pub(crate) privileges: MemPrivFlags,
    pub(crate) rmr_context: u32,
}

pub(crate) struct Rmr<P: Provider> {
    pub(crate) window: P::Window,
    pub(crate) pz: PzKey,
    /// What the last bind posted makes of it.
    pub(crate) posted: Option<Bound>,
    /// Binds posted, ever.
    pub(crate) binds: u64,
    /// The endpoint of the last one.
    pub(crate) bound_on: Option<EpKey>,
    /// What the device's window reaches through.
    pub(crate) settled: Option<LmrKey>,
    /// A peer has invalidated what this bind and those before it made of it.
    pub(crate) void_up_to: u64,
}

/// A bind that was posted and is not known done.
#[derive(Clone, Copy)]
pub(crate) struct PendingBind {
    pub(crate) rmr: RmrKey,
    /// Which bind of the RMR it is, counted from 1.
    pub(crate) number: u64,
    /// The LMR it reaches for; none when it unbinds.
    pub(crate) lmr: Option<LmrKey>,
    /// Success is not to be told.
    pub(crate) suppress: bool,
}

impl PendingBind {
    pub(crate) const fn rmr(&self) -> RmrKey {
        self.rmr
    }

    pub(crate) const fn lmr(&self) -> Option<LmrKey> {
        self.lmr
    }
}
