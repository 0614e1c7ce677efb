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
    posted: Option<Bound>,
    /// Binds posted, ever.
    binds: u64,
    /// The endpoint of the last one.
    bound_on: Option<EpKey>,
    /// What the device's window reaches through.
    settled: Option<LmrKey>,
    /// A peer has invalidated what this bind and those before it made of it.
    void_up_to: u64,
}

/// What an RMR has let go of.
pub(crate) struct LetGo {
    /// What it was bound to, going by the binds posted.
    pub(crate) bound: Option<Bound>,
    /// What its window, or a bind, reached for.
    pub(crate) held: [Option<LmrKey>; 2],
    /// The window may reach through what an earlier bind made of it, and has to be taken from that.
    pub(crate) reaches_still: bool,
}

impl<P: Provider> Rmr<P> {
    pub(crate) const fn new(window: P::Window, pz: PzKey) -> Self {
        Self {
            window,
            pz,
            posted: None,
            binds: 0,
            bound_on: None,
            settled: None,
            void_up_to: 0,
        }
    }

    /// What the last bind posted makes of it.
    pub(crate) const fn posted(&self) -> Option<&Bound> {
        self.posted.as_ref()
    }

    /// The endpoint of the last bind.
    pub(crate) const fn bound_on(&self) -> Option<EpKey> {
        self.bound_on
    }

    /// What the device's window reaches through.
    pub(crate) const fn settled(&self) -> Option<LmrKey> {
        self.settled
    }

    /// A bind is on its way on an endpoint: its number, and what the RMR was bound to before.
    pub(crate) const fn bind_posted(
        &mut self,
        ep: EpKey,
        bound: Option<Bound>,
    ) -> (u64, Option<Bound>) {
        self.binds += 1;
        self.bound_on = Some(ep);
        (self.binds, core::mem::replace(&mut self.posted, bound))
    }

    /// The oldest bind of its endpoint is done.
    pub(crate) fn bind_ended(&mut self, bind: &PendingBind, succeeded: bool) -> LetGo {
        if succeeded {
            let void = bind.number <= self.void_up_to;
            let now = bind.lmr.filter(|_| !void);
            let before = core::mem::replace(&mut self.settled, now);
            return LetGo {
                bound: None,
                held: [before, bind.lmr.filter(|_| void)],
                reaches_still: false,
            };
        }
        let is_last = self.binds == bind.number;
        LetGo {
            bound: self.posted.take_if(|_| is_last),
            held: [bind.lmr, None],
            reaches_still: is_last,
        }
    }

    /// A peer has invalidated its context. A bind that is not known done lets go of what it settles when it is.
    pub(crate) fn invalidated(&mut self, is_under_way: bool) -> LetGo {
        self.void_up_to = self.binds;
        LetGo {
            bound: self.posted.take(),
            held: [self.settled.take_if(|_| !is_under_way), None],
            reaches_still: false,
        }
    }

    /// Its window was taken from whatever it reached through.
    pub(crate) const fn unbound(&mut self) -> Option<LmrKey> {
        self.settled.take()
    }
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
