//! Calls that carry no traffic (queries, contexts, protection zones, CNOs, the registry), and calls that must fail.

use rand::Rng;
use udapl::Timeout;
use udapl::adapter::{AnyHandle, HandleType};
use udapl::endpoint::EpChange;
use udapl::memory::LmrTriplet;
use udapl::registry::ProviderInfo;

use super::outcome;
use super::traffic::local;
use crate::calls::STATELESS;
use crate::end::Phase;
use crate::side::attributes;
use crate::world::World;

impl World {
    /// Modifies an endpoint's attributes to allow more DTOs, or as many as before. Posted receives stay.
    pub fn modify(&mut self, side: usize, at: usize) {
        let more = self.random.random_range(0..3);
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let Some(ep) = open.ends[at].ep else { return };
        let mut attr = attributes(&open.ia, open.narrow);
        attr.max_recv_dtos += more;
        attr.max_request_dtos += more;
        let change = EpChange {
            attr: Some(attr),
            ..EpChange::default()
        };
        let answer = self.ep_call(side, "dat_ep_modify", ep, |open| {
            open.ia.ep_modify(ep, &change)
        });
        if let Some(answer) = answer {
            self.cover.count("modify an endpoint", outcome(&answer));
        }
    }

    /// Queries objects, and compares the answers with the known state.
    pub fn ask(&mut self, side: usize, at: usize) {
        let draw = self.random.random_range(0..12);
        let word = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let (pz, source) = (open.pz, open.source.lmr.lmr);
        let segments: [LmrTriplet; 1] = [local(&open.written, at, 64)];
        let end = &open.ends[at];
        let (ep, phase, known) = (end.ep, end.phase, end.receives.len());
        match (draw, ep) {
            (0, _) => {
                self.call(side, "dat_lmr_sync_rdma_read", |open| {
                    open.ia.lmr_sync_rdma_read(&segments)
                });
            }
            (1, _) => {
                self.call(side, "dat_lmr_sync_rdma_write", |open| {
                    open.ia.lmr_sync_rdma_write(&segments)
                });
            }
            (2, _) => {
                self.call(side, "dat_ia_query", |open| {
                    assert!(open.ia.query().ia.max_eps > 0);
                    Ok(())
                });
            }
            (3, _) => {
                let asked = self.call(side, "dat_lmr_query", |open| open.ia.lmr_query(source));
                assert!(asked.is_some_and(|answer| answer.is_ok()));
            }
            (4, _) => {
                let freed = self.call(side, "dat_pz_free", |open| open.ia.pz_free(pz));
                assert!(
                    freed.is_none_or(|answer| answer.is_err()),
                    "side {side}: a zone is freed that has memory"
                );
                let asked = self.call(side, "dat_pz_query", |open| open.ia.pz_query(pz));
                assert!(asked.is_some_and(|answer| answer.is_ok()));
            }
            (5, Some(ep)) => {
                let set = self.call(side, "dat_set_consumer_context", |open| {
                    open.ia.set_consumer_context(ep, word)
                });
                assert!(set.is_some_and(|answer| answer.is_ok()));
                let got = self.call(side, "dat_get_consumer_context", |open| {
                    open.ia.get_consumer_context(ep)
                });
                assert!(got.is_some_and(|answer| answer == Ok(word)));
                let kind = self.call(side, "dat_get_handle_type", |open| {
                    open.ia.get_handle_type(AnyHandle::from(ep))
                });
                assert!(kind.is_some_and(|answer| answer == Ok(HandleType::Ep)));
            }
            (6..=8, Some(ep)) => {
                self.check_state(side, ep, phase);
                self.poke(side, ep);
            }
            (9, Some(ep)) => {
                let asked = self.ep_call(side, "dat_ep_recv_query", ep, |open| {
                    open.ia.ep_recv_query(ep)
                });
                if let Some(Ok(param)) = asked
                    && let Some(held) = param.nbufs_allocated
                {
                    let held = usize::try_from(held).unwrap_or(usize::MAX);
                    assert!(
                        held <= known,
                        "side {side}, endpoint {at}: {held} buffers held, {known} posted and not done"
                    );
                }
            }
            (10, Some(ep)) => {
                self.ep_call(side, "dat_ep_set_watermark", ep, |open| {
                    open.ia.ep_set_watermark(ep, Some(2), None)
                });
            }
            _ => self.ask_the_registry(),
        }
    }

    /// Compares the state that an endpoint reports with the events that the program has dequeued.
    fn check_state(&mut self, side: usize, ep: udapl::EpHandle, phase: Phase) {
        use udapl::endpoint::EpState as S;
        let status = self.ep_call(side, "dat_ep_get_status", ep, |open| {
            open.ia.ep_get_status(ep)
        });
        let param = self.ep_call(side, "dat_ep_query", ep, |open| open.ia.ep_query(ep));
        let (Some(Ok(status)), Some(Ok(param))) = (status, param) else {
            panic!("side {side}: an endpoint that is there is not");
        };
        assert_eq!(status.state, param.state, "side {side}: two answers");
        let fits = match phase {
            Phase::Idle => status.state == S::Unconnected,
            Phase::Reserved => {
                matches!(status.state, S::Reserved | S::PassiveConnectionPending)
            }
            Phase::Pending => matches!(
                status.state,
                S::ActiveConnectionPending | S::CompletionPending | S::Connected | S::Disconnected
            ),
            Phase::Up => matches!(
                status.state,
                S::Connected | S::DisconnectPending | S::Disconnected
            ),
            Phase::Over => matches!(
                status.state,
                S::Disconnected | S::DisconnectPending | S::Connected
            ),
        };
        assert!(
            fits,
            "side {side}: {phase:?}, and the endpoint is {status:?}"
        );
    }

    /// Makes calls that need no adapter.
    fn ask_the_registry(&mut self) {
        let info = ProviderInfo::of_this_crate("campaign");
        let registry = &mut self.registry;
        let added = registry.provider_init(info.clone(), "sim:");
        let again = registry.provider_init(info.clone(), "sim:");
        assert!(added.is_ok() && again.is_err(), "an entry is added once");
        let listed = registry.list_providers(8);
        assert!(
            listed.is_ok_and(|all| all.is_empty()),
            "an empty registry lists nothing"
        );
        let gone = registry.provider_fini(&info);
        let again = registry.remove_provider(&info);
        assert!(gone.is_ok() && again.is_err(), "an entry is removed once");
        let opener = std::sync::Arc::new(|_: &udapl::OpenOptions| {
            Err(udapl::DatError::new(
                udapl::error::ReturnType::ModelNotSupported,
                udapl::error::Subtype::None,
            )
            .into())
        });
        let (other, back) = (
            registry.add_provider(info.clone(), opener),
            registry.remove_provider(&info),
        );
        assert!(other.is_ok() && back.is_ok());
        for (call, done) in [
            ("dat_provider_init", true),
            ("dat_provider_init", false),
            ("dat_registry_list_providers", true),
            ("dat_provider_fini", true),
            ("dat_registry_remove_provider", false),
            ("dat_registry_add_provider", true),
            ("dat_registry_remove_provider", true),
        ] {
            self.cover.call(call, STATELESS, done);
        }
        let known = udapl::error::strerror(udapl::error::ReturnType::ModelNotSupported as u32);
        assert!(known.is_some());
        self.cover.call("dat_strerror", STATELESS, true);
    }

    /// Makes, uses or frees objects on which no traffic depends.
    pub fn spare(&mut self, side: usize) {
        let draw = self.random.random_range(0..10);
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let (spare, connect) = (&open.spare, open.connect);
        let (pz, cno) = (spare.pz, spare.cno);
        match (draw, pz, cno) {
            (0..=2, None, _) => {
                let made = self.call(side, "dat_pz_create", |open| open.ia.pz_create());
                if let (Some(Ok(pz)), Some(open)) = (made, &mut self.sides[side].open) {
                    open.spare.pz = Some(pz);
                }
            }
            (0..=2, Some(pz), _) => {
                let freed = self.call(side, "dat_pz_free", |open| open.ia.pz_free(pz));
                if let (Some(Ok(())), Some(open)) = (freed, &mut self.sides[side].open) {
                    open.spare.pz = None;
                }
            }
            (_, _, None) => {
                let made = self.call(side, "dat_cno_create", |open| open.ia.cno_create(None));
                if let (Some(Ok(cno)), Some(open)) = (made, &mut self.sides[side].open) {
                    open.spare.cno = Some(cno);
                }
            }
            (3..=4, _, Some(cno)) => {
                self.call(side, "dat_evd_modify_cno", |open| {
                    open.ia.evd_modify_cno(connect, Some(cno))
                });
                self.call(side, "dat_evd_disable", |open| open.ia.evd_disable(connect));
                self.call(side, "dat_evd_enable", |open| open.ia.evd_enable(connect));
            }
            (5, _, Some(cno)) => {
                self.call(side, "dat_cno_wait", |open| {
                    let woken = open.ia.cno_wait(cno, Timeout::ZERO)?;
                    assert!(woken.is_none_or(|evd| evd == connect), "another EVD's");
                    Ok(())
                });
            }
            (6, _, Some(cno)) => {
                let asked = self.call(side, "dat_cno_query", |open| open.ia.cno_query(cno));
                assert!(asked.is_some_and(|answer| answer.is_ok()));
                self.call(side, "dat_cno_modify_agent", |open| {
                    let agent = udapl::wait::Agent::new(|_| {});
                    open.ia.cno_modify_agent(cno, Some(agent))
                });
            }
            (7, _, Some(cno)) => {
                self.call(side, "dat_evd_modify_cno", |open| {
                    open.ia.evd_modify_cno(connect, None)
                });
                let freed = self.call(side, "dat_cno_free", |open| open.ia.cno_free(cno));
                if let (Some(Ok(())), Some(open)) = (freed, &mut self.sides[side].open) {
                    open.spare.cno = None;
                }
            }
            (_, _, Some(_)) => {
                self.call(side, "dat_evd_set_unwaitable", |open| {
                    open.ia.evd_set_unwaitable(connect)
                });
                let waited = self.call(side, "dat_evd_wait", |open| {
                    let waited = open.ia.evd_wait(connect, Timeout::ZERO, 1);
                    waited.map_err(|refused| refused.error)
                });
                assert!(waited.is_none_or(|answer| answer.is_err()), "unwaitable");
                self.call(side, "dat_evd_clear_unwaitable", |open| {
                    open.ia.evd_clear_unwaitable(connect)
                });
            }
        }
    }
}
