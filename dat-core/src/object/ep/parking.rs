//! An endpoint that is parked and resumed.

use std::collections::VecDeque;

use super::state::Lifecycle;
use super::{Ep, Setup};
use crate::handle::{
    EpHandle, EpKey, EvdHandle, Handle, LmrHandle, PzHandle, RmrHandle, SrqHandle,
};
use crate::object::rmr::PendingBind;
use crate::object::snapshot::{EpSnapshot, PendingBindSnapshot};
use crate::provider::{Nanos, ParkProvider};

impl<P: ParkProvider> Ep<P> {
    /// Writes the endpoint out. `next_check` is the time of its check, if one is scheduled.
    pub(crate) fn park(
        self,
        key: EpKey,
        ia: u32,
        next_check: Option<Nanos>,
        parking: &mut P::Parking,
    ) -> EpSnapshot<P::QpSnapshot, P::CqSnapshot> {
        let Self {
            place: _,
            hot,
            name,
            mut qp,
            bounds: _,
            srq,
            discard,
            attr,
            transport,
            pz,
            recv_evd,
            request_evd,
            connect_evd,
            conn,
            ends,
            local_port_qual,
            outgoing,
            path,
            cause,
            private_data,
            own_outstanding,
            idle_since,
            next_check: _,
            has_received,
            last_buffer,
            binds,
            marks,
            counts,
            recorded: _,
            timed: _,
        } = self;
        let evd = |key| EvdHandle { key, ia };
        let binds = binds.into_iter().map(|bind| PendingBindSnapshot {
            rmr: RmrHandle::new(bind.rmr, ia),
            number: bind.number,
            lmr: bind.lmr.map(|lmr| LmrHandle::new(lmr, ia)),
            suppress: bind.suppress,
        });
        EpSnapshot {
            ep: EpHandle { key, ia },
            name,
            pz: pz.map(|pz| PzHandle::new(pz, ia)),
            recv_evd: recv_evd.map(evd),
            request_evd: request_evd.map(evd),
            connect_evd: connect_evd.map(evd),
            srq: srq.map(|srq| SrqHandle::new(srq, ia)),
            attr,
            transport,
            state: hot.state,
            conn,
            ends,
            local_port_qual,
            outgoing,
            path,
            cause,
            private_data: private_data.into(),
            own_outstanding,
            idle_since,
            next_check,
            has_received,
            last_buffer,
            binds: binds.collect(),
            marks,
            counts,
            queue_pair: qp.exchange(None).map(|qp| P::park_qp(parking, qp)),
            discard: discard.map(|cq| P::park_cq(parking, cq)),
        }
    }

    /// Makes an endpoint. `room` is the number of binds for which it has memory.
    pub(crate) fn resume(
        snapshot: &EpSnapshot<P::QpSnapshot, P::CqSnapshot>,
        (setup, max_read_iov): (&Setup, u32),
        (qp, discard): (Option<P::Qp>, Option<P::Cq>),
        binds: impl Iterator<Item = PendingBind>,
        room: usize,
    ) -> Self {
        let mut ep = Self::new(setup, max_read_iov);
        ep.hot.life = Lifecycle::resume(snapshot.state);
        ep.name = snapshot.name;
        ep.qp = qp.into();
        ep.discard = discard;
        ep.conn = snapshot.conn;
        ep.ends = snapshot.ends;
        ep.local_port_qual = snapshot.local_port_qual;
        ep.outgoing = snapshot.outgoing;
        ep.path = snapshot.path;
        ep.cause = snapshot.cause;
        ep.private_data = snapshot.private_data.clone().into();
        ep.own_outstanding = snapshot.own_outstanding;
        ep.idle_since = snapshot.idle_since;
        ep.next_check = snapshot.next_check.unwrap_or(0);
        ep.has_received = snapshot.has_received;
        ep.last_buffer = snapshot.last_buffer;
        ep.binds = VecDeque::with_capacity(room);
        ep.binds.extend(binds);
        ep.marks = snapshot.marks;
        ep.counts = snapshot.counts;
        ep.update_at_once();
        ep
    }
}
