//! Connections: asked for, accepted, ended.

use hw_sim::Fault;
use mlx_prm::{Opcode, QpState, ServiceType};
use rand::Rng;
use udapl::{CloseFlags, ConnectFlags, CrHandle, EpHandle, Qos, Timeout};

use super::outcome;
use crate::Feature;
use crate::eavesdrop::LIE;
use crate::end::{End, GRACEFUL, Link, Name, Phase, WINDOW};
use crate::side::{CONN_QUAL, ENDS, LENDING_QUAL, OTHER_QUAL, RESERVED_QUAL};
use crate::stranger::QPNS;
use crate::world::World;

/// Where requests are made to.
fn qualifier(draw: u32) -> u64 {
    match draw {
        0 => OTHER_QUAL,
        1 => LENDING_QUAL,
        2 => RESERVED_QUAL,
        _ => CONN_QUAL,
    }
}

impl World {
    pub fn connect(&mut self, side: usize, at: usize) {
        let peer = self.random.random_range(0..self.sides.len());
        let seconds = self.random.random_range(1..8);
        let draw = self.random.random_range(0..12);
        let qual = if self.has(Feature::Listeners) {
            qualifier(draw)
        } else {
            CONN_QUAL
        };
        self.connect_to(side, at, peer, qual, seconds, draw == 11);
    }

    /// Asks for a connection with a peer, or with whom another endpoint is connected to.
    pub fn connect_to(
        &mut self,
        side: usize,
        at: usize,
        peer: usize,
        qual: u64,
        seconds: u32,
        again: bool,
    ) {
        let number = self.next_number();
        let Some(there) = &self.sides[peer].open else {
            return;
        };
        let address = there.ia.query().ia.ia_address;
        let listens = there.ia.listener(qual).is_some();
        let opening = self.sides[side].openings;
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let end = &open.ends[at];
        let (Some(ep), Phase::Idle) = (end.ep, end.phase) else {
            return;
        };
        let dup = open.ends.iter().find(|end| end.phase == Phase::Up);
        let dup = dup.and_then(|end| end.ep).filter(|_| again);
        let name = Name {
            side,
            end: at,
            number,
        };
        let timeout = Timeout::from_micros(seconds * 1_000_000);
        let private = name.bytes();
        let qos = Qos::BEST_EFFORT;
        let answer = match dup {
            Some(dup) => self.ep_call(side, "dat_ep_dup_connect", ep, |open| {
                open.ia.ep_dup_connect(ep, dup, timeout, &private, qos)
            }),
            None => self.ep_call(side, "dat_ep_connect", ep, |open| {
                let flags = ConnectFlags::empty();
                open.ia
                    .ep_connect(ep, address, qual, timeout, &private, qos, flags)
            }),
        };
        let Some(answer) = answer else { return };
        self.cover.count("connect", outcome(&answer));
        if answer.is_err() {
            return;
        }
        let link = self.link(name);
        self.links[link].ends[0] = (side, opening, at);
        if dup.is_some() || !listens {
            // Nobody listens where a passive end's peer came from.
            self.links[link].spoil("nobody listens");
        }
        if self.sides[peer].manner.mixed {
            self.spoil_link(link, "a short backlog");
        }
        // Who is asked may be gone before it answers, or opened anew.
        self.links[link].ends[1].0 = peer;
        self.spoil_if_tampered(link, peer);
        if let Some(open) = &mut self.sides[side].open {
            open.ends[at].phase = Phase::Pending;
            open.ends[at].link = Some((link, 0));
        }
    }

    /// A request has come: what becomes of it.
    pub fn request(&mut self, side: usize, cr: CrHandle) {
        let draw = self.random.random_range(0..20);
        let name = self.call(side, "dat_cr_query", |open| {
            let param = open.ia.cr_query(cr)?;
            assert!(
                !param.private_data.starts_with(LIE),
                "side {side} is asked about a request that names another address than it comes from"
            );
            Ok((Name::read(param.private_data), param.local_ep))
        });
        let Some(Ok((name, brought))) = name else {
            return;
        };
        let Some(name) = name.filter(|name| self.by_name.contains_key(name)) else {
            if draw < 5 && brought.is_none() {
                self.accept_stranger(side, cr);
            } else {
                self.cover.count("request of a stranger", "rejected");
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
            2 if !calm && self.has(Feature::Listeners) => {
                self.spoil_link(link, "a handoff");
                let answer = self.call(side, "dat_cr_handoff", |open| {
                    open.ia.cr_handoff(cr, OTHER_QUAL)
                });
                if answer.is_some_and(|answer| answer.is_err()) {
                    self.reject(side, cr, link);
                } else {
                    // The endpoint of a reserved service point stays behind.
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

    /// Accepts a request that nobody of this world has made. The endpoint is taken until the attempt has come to nothing.
    fn accept_stranger(&mut self, side: usize, cr: CrHandle) {
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
            .count("request of a stranger", outcome(&accepted));
        if accepted.is_err() {
            self.refuse(side, cr);
        } else if let Some(open) = &mut self.sides[side].open {
            open.ends[at].phase = Phase::Pending;
            open.ends[at].link = None;
            self.is_patient_enough(side);
        }
    }

    /// Whoever is connected to, a queue pair gives up after some time.
    fn is_patient_enough(&self, side: usize) {
        let most = udapl::cm::Config::default().max_ack_timeout;
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

    /// Decides all requests that were held.
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

    /// Rejects a request; the endpoint of a reserved service point is its own again.
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
            // The request is there still, and whoever made it is told.
            self.reject(side, cr, link);
            if brought.is_some() && reserved.is_none() {
                self.forget_end(side, at);
            }
            return;
        }
        let opening = self.sides[side].openings;
        self.part(link);
        self.links[link].ends[1] = (side, opening, at);
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

    /// Accepts a request while the device refuses to bring the queue pair up, once. That call fails, and nothing else comes of it:
    /// the request may be accepted again, and the endpoint has its receives.
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

    /// A request may come again when its first accept got nowhere: whoever accepted it then is connected to nobody.
    fn part(&mut self, link: usize) {
        let (side, opening, at) = self.links[link].ends[1];
        if opening == 0 {
            return;
        }
        self.spoil_link(link, "a request that came again");
        self.links.push(Link {
            ends: [(usize::MAX, 0, 0), (side, opening, at)],
            sent: Default::default(),
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

    /// Takes an endpoint that a request has brought into the place of an idle one.
    fn adopt(&mut self, side: usize, at: usize, ep: udapl::EpHandle) -> bool {
        let Some(open) = &self.sides[side].open else {
            return false;
        };
        let (pz, dto, connect) = (open.pz, open.dto, open.connect);
        let attr = crate::side::attributes(&open.ia, open.narrow);
        let change = udapl::EpChange {
            pz: Some(Some(pz)),
            recv_evd: Some(Some(dto)),
            request_evd: Some(Some(dto)),
            connect_evd: Some(Some(connect)),
            attr: Some(attr),
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

    /// Asks for the end of a connection.
    pub fn disconnect(&mut self, side: usize, at: usize, flags: CloseFlags) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let end = &open.ends[at];
        let (Some(ep), Phase::Up | Phase::Pending) = (end.ep, end.phase) else {
            return;
        };
        let sound = |world: &Self| {
            let end = world.sides[side].open.as_ref().map(|open| &open.ends[at]);
            let link = end
                .and_then(|end| end.link)
                .map(|(link, _)| &world.links[link]);
            link.is_some_and(|link| link.spoiled.is_none() && link.up == [true, true])
        };
        let graceful = flags == CloseFlags::Graceful && sound(self);
        let number = self.next_number();
        self.spoil_end(if graceful { GRACEFUL } else { "a disconnect" }, side, at);
        let answer = self.ep_call(side, "dat_ep_disconnect", ep, |open| {
            open.ia.ep_disconnect(ep, flags)
        });
        if let (true, Some(Ok(())), Some(open)) = (graceful, &answer, &mut self.sides[side].open) {
            open.ends[at].drains = Some(number);
        }
        if let Some(answer) = answer {
            self.cover.count("disconnect", outcome(&answer));
        }
    }

    /// An endpoint begins again.
    pub fn reset(&mut self, side: usize, at: usize) {
        let Some(ep) = self.sides[side]
            .open
            .as_ref()
            .and_then(|open| open.ends[at].ep)
        else {
            return;
        };
        let answer = self.ep_call(side, "dat_ep_reset", ep, |open| open.ia.ep_reset(ep));
        if answer.is_some_and(|answer| answer.is_ok())
            && let Some(open) = &mut self.sides[side].open
        {
            let end = &mut open.ends[at];
            (end.phase, end.link, end.drains) = (Phase::Idle, None, None);
        }
    }

    /// Frees an endpoint, in whatever state it is, and makes another.
    pub fn renew(&mut self, side: usize, at: usize) {
        self.events(side);
        let there = self.sides[side].open.as_ref();
        let made_before = there.is_some_and(|open| open.ends[at].ep.is_some());
        if made_before && !self.free_end(side, at) {
            return;
        }
        self.make_end(side, at);
    }

    /// Frees an endpoint; what was posted to it is forgotten.
    pub fn free_end(&mut self, side: usize, at: usize) -> bool {
        let number = self.next_number();
        let Some(ep) = self.sides[side]
            .open
            .as_ref()
            .and_then(|open| open.ends[at].ep)
        else {
            return true;
        };
        self.spoil_end("an endpoint freed", side, at);
        let answer = self.ep_call(side, "dat_ep_free", ep, |open| open.ia.ep_free(ep));
        let Some(answer) = answer else { return false };
        self.cover.count("free an endpoint", outcome(&answer));
        if answer.is_err() {
            // Refused half-way, it is DISCONNECTED, and nobody is told.
            if let Some(open) = &mut self.sides[side].open
                && let Ok(status) = open.ia.ep_get_status(ep)
                && status.state == udapl::EpState::Disconnected
            {
                open.ends[at].phase = Phase::Over;
            }
            return false;
        }
        self.forget_end(side, at);
        if let Some(open) = &mut self.sides[side].open {
            open.binds_lost(number);
        }
        true
    }

    /// An endpoint is no more.
    fn forget_end(&mut self, side: usize, at: usize) {
        if let Some(open) = &mut self.sides[side].open {
            let shares = open.ends[at].shares;
            let end = std::mem::replace(&mut open.ends[at], End::new(None, shares));
            open.buffers_lost |= shares;
            open.forget_posted(&end);
        }
    }

    pub fn make_end(&mut self, side: usize, at: usize) {
        let manner = self.sides[side].manner;
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let shares = manner.shares && at > 0 && open.srq.is_some();
        let name = if shares {
            "dat_ep_create_with_srq"
        } else {
            "dat_ep_create"
        };
        let made = self.call(side, name, |open| open.make_ep(shares));
        let Some(made) = made else { return };
        self.cover.count("make an endpoint", outcome(&made));
        if let Some(open) = &mut self.sides[side].open {
            open.ends[at] = End::new(made.ok(), shares);
        }
    }

    /// Makes the endpoints that could not be made before.
    pub fn make_missing(&mut self, side: usize) {
        for at in 0..ENDS {
            let open = self.sides[side].open.as_ref();
            if open.is_some_and(|open| open.ends[at].ep.is_none()) {
                self.make_end(side, at);
            }
        }
    }
}
