//! Calls on an endpoint in states in which DAT forbids them, and queries in any state.

use udapl::connection::CrHandle;
use udapl::endpoint::{EpChange, EpState};
use udapl::memory::{LmrTriplet, RmrCookie, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, DtoCookie, EpHandle, MemPrivFlags, Qos,
    Timeout,
};

use super::traffic::{local, remote};
use crate::end::Phase;
use crate::keys::Region;
use crate::world::World;

impl World {
    /// Queries an endpoint, and makes the calls on it that its state forbids. The module `judge` finds forbidden calls
    /// that succeed, and refused calls that change the state.
    pub fn poke(&mut self, side: usize, ep: EpHandle) {
        use EpState as S;
        self.ask_about(side, ep);
        self.overreach(side, ep);
        self.poke_posts(side, ep);
        self.poke_connects(side, ep);
        // A call may process input, which may change the state. So the state is read again before each of these calls.
        if self.is_none_of(side, ep, &[S::Unconnected, S::Disconnected]) {
            self.ep_call(side, "dat_ep_reset", ep, |open| open.ia.ep_reset(ep));
        }
        let with_others = [
            S::Unconnected,
            S::ActiveConnectionPending,
            S::CompletionPending,
            S::Connected,
            S::DisconnectPending,
            S::Disconnected,
        ];
        if self.is_none_of(side, ep, &with_others) {
            self.ep_call(side, "dat_ep_free", ep, |open| open.ia.ep_free(ep));
        }
        if self.is_none_of(side, ep, &with_others[1..]) {
            self.ep_call(side, "dat_ep_disconnect", ep, |open| {
                open.ia.ep_disconnect(ep, CloseFlags::Abrupt)
            });
        }
        self.ep_call(side, "dat_ep_modify", ep, |open| {
            let mut attr = open.ia.ep_query(ep)?.attr;
            attr.max_request_dtos = u32::MAX;
            let change = EpChange {
                attr: Some(attr),
                ..EpChange::default()
            };
            open.ia.ep_modify(ep, &change)
        });
    }

    /// Returns whether an endpoint exists and is in none of these states.
    fn is_none_of(&self, side: usize, ep: EpHandle, states: &[EpState]) -> bool {
        let open = self.sides[side].open.as_ref();
        let status = open.and_then(|open| open.ia.ep_get_status(ep).ok());
        status.is_some_and(|status| !states.contains(&status.state))
    }

    fn ask_about(&mut self, side: usize, ep: EpHandle) {
        self.ep_call(side, "dat_ep_query", ep, |open| open.ia.ep_query(ep));
        self.ep_call(side, "dat_ep_get_status", ep, |open| {
            open.ia.ep_get_status(ep)
        });
        self.ep_call(side, "dat_ep_recv_query", ep, |open| {
            open.ia.ep_recv_query(ep)
        });
        self.ep_call(side, "dat_ep_set_watermark", ep, |open| {
            open.ia.ep_set_watermark(ep, None, None)
        });
    }

    /// Posts buffers that begin a byte before their LMR or end a byte after it. Each post must be refused.
    fn overreach(&mut self, side: usize, ep: EpHandle) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let around = |region: &Region| {
            let whole = local(region, 0, region.memory.len());
            [
                (whole.virtual_address - 1, 8),
                (whole.virtual_address + whole.segment_length - 7, 8),
            ]
            .map(|(virtual_address, segment_length)| LmrTriplet {
                virtual_address,
                segment_length,
                ..whole
            })
        };
        let (to, from) = (around(&open.inbox), around(&open.source));
        let target = remote(&open.written, 0, 8);
        let none = CompletionFlags::empty();
        for (to, from) in to.into_iter().zip(from) {
            let answers = [
                self.ep_call(side, "dat_ep_post_recv", ep, |open| {
                    open.ia.ep_post_recv(ep, &[to], DtoCookie(0), none)
                }),
                self.ep_call(side, "dat_ep_post_send", ep, |open| {
                    open.ia.ep_post_send(ep, &[from], DtoCookie(0), none)
                }),
                self.ep_call(side, "dat_ep_post_rdma_write", ep, |open| {
                    open.ia
                        .ep_post_rdma_write(ep, &[from], DtoCookie(0), &target, none)
                }),
            ];
            assert!(
                !answers.contains(&Some(Ok(()))),
                "side {side}: a buffer is taken that is not whole in its memory: {to:?}, {from:?}"
            );
        }
    }

    fn poke_posts(&mut self, side: usize, ep: EpHandle) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let (source, sink) = ([local(&open.source, 0, 8)], [local(&open.sink, 0, 8)]);
        let rmr = open
            .window_memories
            .iter()
            .find_map(|window_memory| window_memory.rmr);
        let nowhere = RmrTriplet {
            rmr_context: 0,
            target_address: 0,
            segment_length: 8,
        };
        let none = CompletionFlags::empty();
        // A post processes no input, so the state stays the same between posts. A bind processes input, so it is last.
        if !self.is_none_of(side, ep, &[EpState::Connected, EpState::Disconnected]) {
            return;
        }
        self.ep_call(side, "dat_ep_post_send", ep, |open| {
            open.ia.ep_post_send(ep, &source, DtoCookie(0), none)
        });
        self.ep_call(side, "dat_ep_post_rdma_write", ep, |open| {
            open.ia
                .ep_post_rdma_write(ep, &source, DtoCookie(0), &nowhere, none)
        });
        self.ep_call(side, "dat_ep_post_rdma_read", ep, |open| {
            open.ia
                .ep_post_rdma_read(ep, &sink, DtoCookie(0), &nowhere, none)
        });
        if let Some(rmr) = rmr {
            self.ep_call(side, "dat_rmr_bind", ep, |open| {
                let rights = MemPrivFlags::REMOTE_READ;
                open.ia
                    .rmr_bind(rmr, &source[0], rights, ep, RmrCookie(0), none)
            });
        }
    }

    fn poke_connects(&mut self, side: usize, ep: EpHandle) {
        let second = Timeout::from_micros(1_000_000);
        let qos = Qos::BEST_EFFORT;
        if !self.is_none_of(side, ep, &[EpState::Unconnected]) {
            return;
        }
        self.ep_call(side, "dat_ep_connect", ep, |open| {
            let (address, flags) = (open.ia.query().ia.ia_address, ConnectFlags::empty());
            open.ia
                .ep_connect(ep, address, ConnQual(1), second, &[], qos, flags)
        });
        self.ep_call(side, "dat_ep_dup_connect", ep, |open| {
            open.ia.ep_dup_connect(ep, ep, second, &[], qos)
        });
        self.ep_call(side, "dat_rsp_create", ep, |open| {
            open.ia.rsp_create(ConnQual(1), Some(ep), open.cr)
        });
    }

    /// Tries to accept a request with endpoints that are not idle. Each call must be refused.
    pub fn accept_wrongly(&mut self, side: usize, cr: CrHandle) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let busy = open.ends.iter().filter(|end| end.phase != Phase::Idle);
        let busy: Vec<EpHandle> = busy.filter_map(|end| end.ep).collect();
        for ep in busy {
            let answer = self.ep_call(side, "dat_cr_accept", ep, |open| {
                open.ia.cr_accept(cr, Some(ep), &[])
            });
            assert!(
                answer.is_none_or(|answer| answer.is_err()),
                "side {side}: a request is accepted with an endpoint that is taken"
            );
        }
    }

    /// Makes the forbidden calls on the endpoint with this index.
    pub fn poke_end(&mut self, side: usize, at: usize) {
        let open = self.sides[side].open.as_ref();
        if let Some(ep) = open.and_then(|open| open.ends[at].ep) {
            self.poke(side, ep);
        }
    }
}
