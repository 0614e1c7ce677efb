//! An SRQ that is parked and resumed.

use super::Srq;
use crate::handle::{PzHandle, PzKey, SrqHandle, SrqKey};
use crate::object::snapshot::SrqSnapshot;
use crate::provider::ParkProvider;

impl<P: ParkProvider> Srq<P> {
    /// Writes the SRQ out.
    pub(crate) fn park(
        self,
        key: SrqKey,
        ia: u32,
        parking: &mut P::Parking,
    ) -> SrqSnapshot<P::SrqSnapshot> {
        let Self {
            queue,
            pz,
            pz_index: _,
            max_recv_dtos,
            max_recv_iov,
            low_watermark,
            mode,
            undequeued: _,
            users: _,
            recv_evds: _,
            unwanted: _,
            full,
        } = self;
        SrqSnapshot {
            srq: SrqHandle { key, ia },
            pz: PzHandle { key: pz, ia },
            max_recv_dtos,
            max_recv_iov,
            low_watermark,
            mode,
            full,
            queue: P::park_srq(parking, queue),
        }
    }

    /// Makes an SRQ without endpoints, of which all completions were dequeued.
    pub(crate) fn resume(snapshot: &SrqSnapshot<P::SrqSnapshot>, queue: P::Srq, pz: PzKey) -> Self {
        let (max_recv_dtos, max_recv_iov) = (snapshot.max_recv_dtos, snapshot.max_recv_iov);
        let mut srq = Self::new(queue, pz, max_recv_dtos, max_recv_iov);
        srq.low_watermark = snapshot.low_watermark;
        srq.mode = snapshot.mode;
        srq.full = snapshot.full;
        srq
    }
}
