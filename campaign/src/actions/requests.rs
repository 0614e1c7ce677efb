//! Accepting, rejecting, holding and handing off connection requests.

use hw_sim::Fault;
use mlx_prm::{Opcode, QpState, ServiceType};
use rand::Rng;
use udapl::connection::CrHandle;
use udapl::{ConnQual, EpHandle};

use super::outcome;
use crate::Feature;
use crate::captured_packets::SPOOFED_DATA;
use crate::end::{End, Link, Name, Phase, WINDOW};
use crate::off_path_attacker::QPNS;
use crate::world::World;

impl World {
    /// Decides what to do with a connection request that has arrived.
    pub fn request(&mut self, side: usize, cr: CrHandle) {
        let draw = self.random.random_range(0..20);
        let name = self.call(side, "dat_cr_query", |open| {
            let param = open.ia.cr_query(cr)?;
            assert!(
                !param.private_data.starts_with(SPOOFED_DATA),
                "side {side} is asked about a request that names another address than it comes from"
            );
            Ok((Name::read(param.private_data), param.local_ep))
        });
        let Some(Ok((name, brought))) = name else {
            return;
        };
        let Some(name) = name.filter(|name| self.by_name.contains_key(name)) else {
            if draw < 5 && brought.is_none() {
                self.accept_attacker(side, cr);
            } else {
                self.cover.count("request of an attacker", "rejected");
                self.refuse(side, cr);
            }
            return;
        };
        let link = self.link(name);
        if self.has(Feature::Calls) {
            if let Some(ep) = brought {
                self.poke(side, ep);
            } else if draw == 4 {
                self.accept_wrongly(side, cr);
            }
        }
        let calm = self.healing || self.scripted;
        match draw {
            0..=1 if !calm => self.reject(side, cr, link),
            2 if !calm && (self.has(Feature::Listeners) || self.has(Feature::Instances)) => {
                self.spoil_link(link, "a handoff");
                let qual = self.elsewhere(side);
                let answer = self.call(side, "dat_cr_handoff", |open| {
                    open.ia.cr_handoff(cr, ConnQual(qual))
                });
                if answer.is_some_and(|answer| answer.is_err()) {
                    self.reject(side, cr, link);
                } else {
                    // A handoff does not include the endpoint of a reserved service point, so the endpoint is released.
                    self.release_reserved(side);
                }
            }
            3 if !calm && self.has(Feature::Listeners) => {
                self.spoil_link(link, "a request that waits");
                if let Some(open) = &mut self.sides[side].open {
                    open.spare.held.push(cr);
                }
            }
            _ => self.accept(side, cr, link, brought),
        }
    }

    /// Accepts a request that no program of this simulation has made. The endpoint stays in use until the attempt
    /// fails.
    fn accept_attacker(&mut self, side: usize, cr: CrHandle) {
        let idle = |end: &End| end.phase == Phase::Idle && end.ep.is_some();
        let open = self.sides[side].open.as_ref();
        let at = open.and_then(|open| open.ends.iter().position(idle));
        let ep = at.and_then(|at| open.and_then(|open| open.ends[at].ep));
        let (Some(at), Some(ep)) = (at, ep) else {
            self.refuse(side, cr);
            return;
        };
        let accepted = self.ep_call(side, "dat_cr_accept", ep, |open| {
            open.ia.cr_accept(cr, Some(ep), b"welcome")
        });
        let Some(accepted) = accepted else { return };
        self.cover
            .count("request of an attacker", outcome(&accepted));
        if accepted.is_err() {
            self.refuse(side, cr);
        } else if let Some(open) = &mut self.sides[side].open {
            open.ends[at].phase = Phase::Pending;
            open.ends[at].link = None;
            self.check_ack_timeouts(side);
        }
    }

    /// Checks the ACK timeout of each connected queue pair: the timeout must be limited, whatever the peer requested.
    fn check_ack_timeouts(&self, side: usize) {
        let most = dat_core::cm::Config::default().max_ack_timeout;
        for qpn in QPNS {
            let Some(qp) = self.sim.queue_pair(&self.sides[side].function, qpn) else {
                continue;
            };
            let timeout = qp.primary_address_path().ack_timeout();
            let connected =
                qp.st() == u32::from(ServiceType::RC.0) && qp.state() == u32::from(QpState::RTS.0);
            assert!(
                !connected || (1..=u32::from(most)).contains(&timeout),
                "side {side}: queue pair {qpn:#x} waits 4.096 us * 2^{timeout} for an acknowledgement"
            );
        }
    }

    /// Accepts or rejects all held requests.
    pub fn decide_held(&mut self, side: usize) {
        let held = match &mut self.sides[side].open {
            Some(open) => std::mem::take(&mut open.spare.held),
            None => return,
        };
        for cr in held {
            let asked = self.call(side, "dat_cr_query", |open| {
                let param = open.ia.cr_query(cr)?;
                Ok((Name::read(param.private_data), param.local_ep))
            });
            match asked {
                Some(Ok((Some(name), brought))) if self.by_name.contains_key(&name) => {
                    let link = self.link(name);
                    self.accept(side, cr, link, brought);
                }
                Some(_) | None => self.refuse(side, cr),
            }
        }
    }

    pub fn spoil_link(&mut self, link: usize, why: &'static str) {
        self.links[link].spoil(why);
    }

    fn reject(&mut self, side: usize, cr: CrHandle, link: usize) {
        self.spoil_link(link, "a rejection");
        self.refuse(side, cr);
    }

    /// Rejects a request, and releases the endpoint of a reserved service point.
    fn refuse(&mut self, side: usize, cr: CrHandle) {
        let answer = self.call(side, "dat_cr_reject", |open| open.ia.cr_reject(cr));
        if let Some(answer) = answer {
            self.cover.count("reject", outcome(&answer));
        }
        self.release_reserved(side);
    }

    fn accept(&mut self, side: usize, cr: CrHandle, link: usize, brought: Option<udapl::EpHandle>) {
        let number = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let reserved = brought.and_then(|ep| open.ends.iter().position(|end| end.ep == Some(ep)));
        let idle = |end: &End| end.phase == Phase::Idle && end.ep.is_some();
        let at = reserved.or_else(|| open.ends.iter().position(idle));
        let Some(at) = at else {
            self.reject(side, cr, link);
            return;
        };
        if let (Some(ep), None) = (brought, reserved)
            && !self.adopt(side, at, ep)
        {
            self.reject(side, cr, link);
            return;
        }
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let Some(ep) = open.ends[at].ep else { return };
        let own = if brought.is_some() { None } else { Some(ep) };
        let answer = Name {
            side,
            end: at,
            number,
        };
        if self.has(Feature::Refused) && self.random.random_ratio(1, 8) {
            self.accept_half_way(side, cr, ep, own);
        }
        let accepted = self.ep_call(side, "dat_cr_accept", ep, |open| {
            open.ia.cr_accept(cr, own, &answer.bytes())
        });
        let Some(accepted) = accepted else { return };
        self.cover.count("accept", outcome(&accepted));
        if accepted.is_err() {
            // The request still exists. Rejecting it informs its sender.
            self.reject(side, cr, link);
            if brought.is_some() && reserved.is_none() {
                self.forget_end(side, at);
            }
            return;
        }
        let opening = self.sides[side].openings;
        self.part(link);
        self.links[link].ends[1] = (side, opening, at);
        self.links[link].anybody = None;
        self.spoil_if_tampered(link, side);
        if let Some(open) = &mut self.sides[side].open {
            open.ends[at].phase = Phase::Pending;
            open.ends[at].link = Some((link, 1));
        }
        if reserved.is_some() {
            self.free_reserved(side);
        }
        if self.has(Feature::Calls) && self.random.random_ratio(1, 4) {
            self.poke(side, ep);
        }
    }

    /// Tries to accept a request while the device fails one of the commands that bring the queue pair up. The accept
    /// must fail without other effects: the request can be accepted again, and the endpoint keeps its receives.
    fn accept_half_way(&mut self, side: usize, cr: CrHandle, ep: EpHandle, own: Option<EpHandle>) {
        let last = self.random.random_bool(0.5);
        let opcode = if last {
            Opcode::RTR2RTS_QP
        } else {
            Opcode::INIT2RTR_QP
        };
        let open = self.sides[side].open.as_ref();
        let stays = open.is_some_and(|open| open.narrow || open.dead);
        if self.sides[side].tampered || stays || self.healing || self.scripted {
            return;
        }
        let at = open.and_then(|open| open.ends.iter().position(|end| end.ep == Some(ep)));
        if let Some(at) = at.filter(|at| open.is_some_and(|open| !open.ends[*at].shares)) {
            for _ in 0..WINDOW {
                self.receive(side, at);
            }
        }
        let fault = Fault::CommandFailure {
            opcode: Some(opcode.0),
            status: 0x0f,
            syndrome: 0,
            count: 1,
        };
        let function = std::sync::Arc::clone(&self.sides[side].function);
        self.sim.inject(&function, &fault);
        let answer = self.ep_call(side, "dat_cr_accept", ep, |open| {
            open.ia.cr_accept(cr, own, &[])
        });
        self.sim.mend(&function);
        assert!(
            answer.is_none_or(|answer| answer.is_err()),
            "side {side} accepts, and its device refused"
        );
        self.cover.count("accept", "refused half-way");
    }

    /// Handles a request that arrives again although a program has accepted it. Records that the endpoint of the first
    /// accept has no peer any more.
    fn part(&mut self, link: usize) {
        let (side, opening, at) = self.links[link].ends[1];
        if opening == 0 {
            return;
        }
        self.spoil_link(link, "a request that came again");
        self.links.push(Link {
            ends: [(usize::MAX, 0, 0), (side, opening, at)],
            sent: Default::default(),
            anybody: None,
            up: [false; 2],
            spoiled: Some("a request that came again"),
        });
        let nobody = self.links.len() - 1;
        self.links[link].sent[1].clear();
        self.links[link].up[1] = false;
        let one = &mut self.sides[side];
        let open = one.open.as_mut().filter(|_| one.openings == opening);
        if let Some(end) = open.map(|open| &mut open.ends[at])
            && end.link == Some((link, 1))
        {
            end.link = Some((nobody, 1));
        }
    }

    /// Replaces an idle endpoint by the endpoint that the provider made for a request. Returns whether this succeeded.
    fn adopt(&mut self, side: usize, at: usize, ep: udapl::EpHandle) -> bool {
        let Some(open) = &self.sides[side].open else {
            return false;
        };
        let (pz, dto, connect) = (open.pz, open.dto, open.connect);
        let attr = crate::side::attributes(&open.ia, open.narrow);
        let change = udapl::endpoint::EpChange {
            pz: Some(Some(pz)),
            recv_evd: Some(Some(dto)),
            request_evd: Some(Some(dto)),
            connect_evd: Some(Some(connect)),
            attr: Some(attr),
            ..udapl::endpoint::EpChange::default()
        };
        let modified = self.ep_call(side, "dat_ep_modify", ep, |open| {
            open.ia.ep_modify(ep, &change)
        });
        if modified.is_none_or(|answer| answer.is_err()) || !self.free_end(side, at) {
            return false;
        }
        if let Some(open) = &mut self.sides[side].open {
            open.ends[at] = End::new(Some(ep), false);
        }
        true
    }
}
