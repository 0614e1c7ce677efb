//! The remote memory region: a memory window of the device, and its binding.

mod parking;

use super::lmr::segment::LmrTriplet;
use crate::handle::{EpKey, LmrKey, PzKey, RmrKey};
use crate::provider::Provider;
use crate::types::MemPrivFlags;

/// A binding of an RMR.
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
    /// Binding that the last posted bind makes; `None` after an unbind.
    posted: Option<Bound>,
    /// Number of binds posted since creation.
    binds: u64,
    /// Endpoint on which the last bind was posted.
    bound_on: Option<EpKey>,
    /// LMR that the device's window uses, according to the completed binds.
    window_lmr: Option<LmrKey>,
    /// Number of the last bind that had been posted when a peer invalidated the context. This bind and all earlier ones
    /// are void.
    void_up_to: u64,
}

/// The LMRs that an RMR no longer uses.
pub(crate) struct ReleasedLmrs {
    /// Former binding according to the posted binds; `None` if the binding is unchanged.
    pub(crate) bound: Option<Bound>,
    /// LMRs that the RMR's window, or a bind of the RMR, no longer uses.
    pub(crate) held: [Option<LmrKey>; 2],
    /// True if the window may still have the binding of an earlier bind, so that a command must unbind it.
    pub(crate) needs_unbind: bool,
}

impl<P: Provider> Rmr<P> {
    pub(crate) const fn new(window: P::Window, pz: PzKey) -> Self {
        Self {
            window,
            pz,
            posted: None,
            binds: 0,
            bound_on: None,
            window_lmr: None,
            void_up_to: 0,
        }
    }

    /// Returns the binding that the last posted bind makes; `None` if the RMR is unbound.
    pub(crate) const fn posted(&self) -> Option<&Bound> {
        self.posted.as_ref()
    }

    /// Returns the number of binds posted since creation, which is the number of the last one.
    pub(crate) const fn binds(&self) -> u64 {
        self.binds
    }

    /// Returns the endpoint on which the last bind was posted.
    pub(crate) const fn bound_on(&self) -> Option<EpKey> {
        self.bound_on
    }

    /// Returns the LMR that the device's window uses, according to the completed binds.
    pub(crate) const fn window_lmr(&self) -> Option<LmrKey> {
        self.window_lmr
    }

    /// Counts a bind that was posted on an endpoint. Returns the number of the bind, and the former binding.
    pub(crate) const fn bind_posted(
        &mut self,
        ep: EpKey,
        bound: Option<Bound>,
    ) -> (u64, Option<Bound>) {
        self.binds += 1;
        self.bound_on = Some(ep);
        (self.binds, core::mem::replace(&mut self.posted, bound))
    }

    /// Handles the completion of a bind.
    pub(crate) fn bind_ended(&mut self, bind: &PendingBind, succeeded: bool) -> ReleasedLmrs {
        if succeeded {
            let void = bind.number <= self.void_up_to;
            let now = bind.lmr.filter(|_| !void);
            let before = core::mem::replace(&mut self.window_lmr, now);
            return ReleasedLmrs {
                bound: None,
                held: [before, bind.lmr.filter(|_| void)],
                needs_unbind: false,
            };
        }
        let is_last = self.binds == bind.number;
        ReleasedLmrs {
            bound: self.posted.take_if(|_| is_last),
            held: [bind.lmr, None],
            needs_unbind: is_last,
        }
    }

    /// Handles an invalidation by a peer. If a bind is outstanding, its completion releases the LMR that the window
    /// uses.
    pub(crate) fn invalidated(&mut self, is_under_way: bool) -> ReleasedLmrs {
        self.void_up_to = self.binds;
        ReleasedLmrs {
            bound: self.posted.take(),
            held: [self.window_lmr.take_if(|_| !is_under_way), None],
            needs_unbind: false,
        }
    }

    /// Records that the window was unbound by a command. Returns the LMR that the window used.
    pub(crate) const fn unbound(&mut self) -> Option<LmrKey> {
        self.window_lmr.take()
    }
}

/// A bind that was posted and has not completed.
#[derive(Clone, Copy)]
pub(crate) struct PendingBind {
    pub(crate) rmr: RmrKey,
    /// Number of this bind among the binds of its RMR, from 1.
    pub(crate) number: u64,
    /// The LMR to bind to; `None` for an unbind.
    pub(crate) lmr: Option<LmrKey>,
    /// True if a successful completion makes no event.
    pub(crate) suppress: bool,
}
