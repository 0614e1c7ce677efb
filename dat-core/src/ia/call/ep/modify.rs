//! `dat_ep_modify`: changes the configuration of an endpoint that is not connected yet.
//!
//! The device fixes the sizes and queues of a queue pair at its creation. So a change of them creates a new queue pair.
//! The receives posted to the old queue pair move to the new one, and the old one is destroyed. A receive whose memory
//! is not in the new PZ stays posted, and fails when a message needs it. A change is refused if posted receives do not
//! fit the new queue pair. As the page requires, the completion flags of receives cannot change while receives are
//! posted.

use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::handle::{EpHandle, EpKey, EvdHandle, PzHandle};
use crate::ia::instance::Ia;
use crate::object::ep::Setup;
use crate::object::ep::attr::EpAttr;
use crate::object::ep::state::EpState;
use crate::object::ep::transport::EpTransport;
use crate::object::ep::untimely::EpCall;
use crate::provider::{PostedRecv, Provider, QueuePair};
use crate::types::EvdFlags;
use std::collections::VecDeque;

/// Requested changes. `None` leaves a member unchanged; `Some(None)` removes the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpChange {
    /// The protection zone.
    pub pz: Option<Option<PzHandle>>,
    /// The EVD on which receives complete.
    pub recv_evd: Option<Option<EvdHandle>>,
    /// The EVD on which requests complete.
    pub request_evd: Option<Option<EvdHandle>>,
    /// The EVD that receives connection events.
    pub connect_evd: Option<Option<EvdHandle>>,
    /// All attributes. Start from those that `ep_query` returns.
    pub attr: Option<EpAttr>,
    /// All transport settings of the endpoint's connections. Start from those that `ep_query` returns.
    pub transport: Option<EpTransport>,
}

impl<P: Provider> Ia<P> {
    /// Changes the configuration of an endpoint. On an error nothing has changed.
    ///
    /// Page: dat_ep_modify.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: endpoint, PZ or an EVD. DAT_INVALID_STATE: the PZ can be changed in UNCONNECTED and
    /// TENTATIVE, the rest also in RESERVED and PASSIVE. While receives are posted, their completion flags cannot be
    /// changed, `max_recv_dtos` and `max_recv_iov` cannot be smaller than the posted receives need, and the PZ cannot
    /// be removed. DAT_INVALID_PARAMETER|ARG3, DAT_MODEL_NOT_SUPPORTED: as `ep_create`. DAT_INSUFFICIENT_RESOURCES.
    /// DAT_INTERNAL_ERROR: the device refused, or has overwritten posted receives.
    pub fn ep_modify(&mut self, ep: EpHandle, change: &EpChange) -> DatResult<()> {
        let old = self.ep(ep)?;
        let (state, before) = (old.hot.state, old.setup());
        let legal = match state {
            EpState::Unconnected | EpState::TentativeConnectionPending => true,
            EpState::Reserved | EpState::PassiveConnectionPending => change.pz.is_none(),
            EpState::ActiveConnectionPending
            | EpState::CompletionPending
            | EpState::Connected
            | EpState::DisconnectPending
            | EpState::Disconnected => false,
        };
        if !legal {
            return Err(state.refuse(EpCall::Modify));
        }
        let evd = |new: Option<Option<EvdHandle>>, old, flag, subtype| match new {
            Some(evd) => self.evd_for(evd, flag, subtype),
            None => Ok(old),
        };
        let after = Setup {
            pz: match change.pz {
                Some(pz) => pz.map(|pz| self.pz_key(pz)).transpose()?,
                None => before.pz,
            },
            recv_evd: evd(
                change.recv_evd,
                before.recv_evd,
                EvdFlags::DTO,
                Subtype::HandleEvdRecv,
            )?,
            request_evd: evd(
                change.request_evd,
                before.request_evd,
                EvdFlags::DTO,
                Subtype::HandleEvdRequest,
            )?,
            connect_evd: evd(
                change.connect_evd,
                before.connect_evd,
                EvdFlags::CONNECTION,
                Subtype::HandleEvdConn,
            )?,
            srq: before.srq,
            attr: change.attr.unwrap_or(before.attr),
            transport: change.transport.unwrap_or(before.transport),
        };
        if after == before {
            return Ok(());
        }
        after
            .attr
            .check(&self.attr, after.srq.is_some(), Subtype::Arg3)
            .and_then(|()| after.transport.check(Subtype::Arg3))
            .and_then(|()| self.check_sharing(&after, Some(&before), Subtype::Arg3))
            .map_err(|error| error.naming("change"))?;
        // Keep-alive needs one more request, so enabling or disabling it changes the size of the queue pair.
        let tried = |setup: &Setup| setup.transport.keep_alive.is_some();
        let same_queue_pair = tried(&before) == tried(&after)
            && before
                == Setup {
                    connect_evd: before.connect_evd,
                    transport: before.transport,
                    ..after
                };
        if !same_queue_pair {
            self.room_for_keep_alive(&after)?;
            let posted = self.recvs_to_keep(ep.key, &before, &after)?;
            let room = self.room_for_binds(&after);
            let (mut qp, discard) = self.create_ep_qp(ep.key, &after)?;
            if let Some(qp) = &mut qp {
                for recv in posted {
                    let segments = recv.segments.iter().copied();
                    // This does not fail: `recvs_to_keep` has checked that the receives fit.
                    let _posted = qp.post_recv(segments, recv.cookie, recv.unsignalled);
                }
            }
            let max_read_iov = after.attr.read_iov(&self.attr);
            self.drain_queues_of(ep.key);
            let target = &mut self.eps[ep.key];
            target.configure(&after, max_read_iov);
            target.binds = VecDeque::with_capacity(room);
            let mut old_qp = target.qp.exchange(qp);
            if let Some(old) = &old_qp {
                let mut counted = old.counts();
                // The new queue pair counts the outstanding receives again.
                counted.recvs -= u64::from(old.recvs_outstanding());
                target.counts.keep(&counted);
            }
            let mut old_discard = core::mem::replace(&mut target.discard, discard);
            self.end_or_stop_device("replacing a queue pair", |ia| {
                ia.destroy_ep_qp(&mut old_qp, &mut old_discard, &before)
            });
        }
        self.detach(ep.key, &before);
        self.attach(ep.key, &after);
        let target = &mut self.eps[ep.key];
        target.attr = after.attr;
        target.transport = after.transport;
        target.pz = after.pz;
        target.recv_evd = after.recv_evd;
        target.request_evd = after.request_evd;
        target.connect_evd = after.connect_evd;
        self.apply_effects();
        Ok(())
    }

    /// Returns the receives posted to an endpoint, if the new configuration can keep them.
    fn recvs_to_keep(
        &mut self,
        key: EpKey,
        before: &Setup,
        after: &Setup,
    ) -> DatResult<Vec<PostedRecv>> {
        let Some(ep) = self.eps.get(key) else {
            return Ok(Vec::new());
        };
        let state = ep.hot.state;
        let Some(qp) = ep.qp.get().filter(|qp| qp.recvs_outstanding() != 0) else {
            return Ok(Vec::new());
        };
        let posted = qp.posted_recvs().ok_or(
            DatError::new(ReturnType::InternalError, Subtype::None)
                .because("the device has overwritten posted receives"),
        )?;
        let refuse = |detail| Err(DatError::state(state.subtype()).because(detail));
        if after.pz.is_none() {
            return refuse("receives are posted, so the endpoint needs a PZ");
        }
        if after.attr.recv_completion_flags != before.attr.recv_completion_flags {
            return refuse("recv_completion_flags change before receives are posted");
        }
        let fits = |count: usize, room: u32| u32::try_from(count).is_ok_and(|count| count <= room);
        if !fits(posted.len(), after.attr.max_recv_dtos) {
            return refuse("more receives are posted than max_recv_dtos");
        }
        let longest = posted.iter().map(|recv| recv.segments.len()).max();
        if !fits(longest.unwrap_or(0), after.attr.max_recv_iov) {
            return refuse("a receive is posted that has more segments than max_recv_iov");
        }
        Ok(posted)
    }
}
