//! An RMR that is parked and resumed.

use super::{Bound, Rmr};
use crate::handle::{
    EpHandle, EpKey, Handle, LmrHandle, LmrKey, PzHandle, PzKey, RmrHandle, RmrKey,
};
use crate::object::snapshot::{BindingSnapshot, RmrSnapshot};
use crate::provider::ParkProvider;

impl<P: ParkProvider> Rmr<P> {
    /// Writes the RMR out.
    pub(crate) fn park(
        self,
        key: RmrKey,
        ia: u32,
        parking: &mut P::Parking,
    ) -> RmrSnapshot<P::WindowSnapshot> {
        let Self {
            window,
            pz,
            posted,
            binds,
            bound_on,
            window_lmr,
            void_up_to,
        } = self;
        let lmr = |key| LmrHandle { key, ia };
        RmrSnapshot {
            rmr: RmrHandle { key, ia },
            pz: PzHandle { key: pz, ia },
            posted: posted.map(|bound| BindingSnapshot {
                lmr: lmr(bound.lmr),
                triplet: bound.triplet,
                privileges: bound.privileges,
                rmr_context: bound.rmr_context,
            }),
            binds,
            bound_on: bound_on.map(|ep| EpHandle::new(ep, ia)),
            window_lmr: window_lmr.map(lmr),
            void_up_to,
            window: P::park_window(parking, window),
        }
    }

    /// Makes an RMR, with the keys of the objects that the snapshot names.
    pub(crate) fn resume(
        snapshot: &RmrSnapshot<P::WindowSnapshot>,
        window: P::Window,
        pz: PzKey,
        posted_lmr: Option<LmrKey>,
        window_lmr: Option<LmrKey>,
        bound_on: Option<EpKey>,
    ) -> Self {
        let posted = snapshot.posted.zip(posted_lmr);
        Self {
            window,
            pz,
            posted: posted.map(|(binding, lmr)| Bound {
                lmr,
                triplet: binding.triplet,
                privileges: binding.privileges,
                rmr_context: binding.rmr_context,
            }),
            binds: snapshot.binds,
            bound_on,
            window_lmr,
            void_up_to: snapshot.void_up_to,
        }
    }
}
