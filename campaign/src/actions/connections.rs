//! Actions on connections and endpoints: connect, disconnect, reset, free and create.

use rand::Rng;
use udapl::{CloseFlags, ConnQual, ConnectFlags, Qos, Timeout};

use super::outcome;
use crate::Feature;
use crate::end::{End, GRACEFUL, Name, Phase};
use crate::side::{COMMON_QUAL, CONN_QUAL, ENDS, LENDING_QUAL, RESERVED_QUAL};
use crate::world::World;

/// Returns the connection qualifier for a request. Values 0 to 2 of the random number `draw` select qualifiers that
/// only some sides listen at.
fn qualifier(draw: u32) -> u64 {
    match draw {
        0 => crate::side::OTHER_QUAL,
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
        let side_config = self.sides[peer].side_config;
        let common = side_config.several && draw % 4 == 3;
        let qual = if common {
            COMMON_QUAL
        } else {
            qual + side_config.apart
        };
        self.connect_to(side, at, peer, qual, seconds, draw == 11);
    }

    /// Requests a connection with `peer` at the qualifier `qual`, with a timeout of `seconds`. If `again` is set and
    /// the side has a connected endpoint, requests one with that endpoint's peer instead (`dat_ep_dup_connect`).
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
        let common = qual == COMMON_QUAL;
        let asked = if common { self.kin(peer) } else { vec![peer] };
        let listens = asked.iter().any(|other| {
            let open = self.sides[*other].open.as_ref();
            open.is_some_and(|open| open.ia.listener(ConnQual(qual)).is_some())
        });
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
                    .ep_connect(ep, address, ConnQual(qual), timeout, &private, qos, flags)
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
            // `dat_ep_dup_connect` on a passive endpoint sends the request to a peer that may not listen.
            self.links[link].spoil("nobody listens");
        }
        if asked
            .iter()
            .any(|other| self.sides[*other].side_config.mixed)
        {
            self.spoil_link(link, "a short backlog");
        }
        // Only the peer's side is recorded, because its adapter may be closed or opened again before it accepts.
        self.links[link].ends[1].0 = peer;
        self.links[link].anybody = common.then_some(self.sides[peer].place);
        self.spoil_if_tampered(link, peer);
        if let Some(open) = &mut self.sides[side].open {
            open.ends[at].phase = Phase::Pending;
            open.ends[at].link = Some((link, 0));
        }
    }

    /// Disconnects an endpoint that is connected or connecting.
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

    /// Resets an endpoint. If the call succeeds, records the endpoint as idle.
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

    /// Frees an endpoint in any state, and creates a new one with the same index.
    pub fn renew(&mut self, side: usize, at: usize) {
        self.events(side);
        let there = self.sides[side].open.as_ref();
        let made_before = there.is_some_and(|open| open.ends[at].ep.is_some());
        if made_before && !self.free_end(side, at) {
            return;
        }
        self.make_end(side, at);
    }

    /// Frees an endpoint and removes the records of its posted requests. Returns true if the endpoint was freed or did
    /// not exist.
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
            // A failed free may leave the endpoint DISCONNECTED, without an event.
            if let Some(open) = &mut self.sides[side].open
                && let Ok(status) = open.ia.ep_get_status(ep)
                && status.state == udapl::endpoint::EpState::Disconnected
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

    /// Removes the records of a freed endpoint.
    pub fn forget_end(&mut self, side: usize, at: usize) {
        if let Some(open) = &mut self.sides[side].open {
            let shares = open.ends[at].shares;
            let end = std::mem::replace(&mut open.ends[at], End::new(None, shares));
            open.buffers_lost |= shares;
            open.forget_posted(&end);
        }
    }

    pub fn make_end(&mut self, side: usize, at: usize) {
        let side_config = self.sides[side].side_config;
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let shares = side_config.shares && at > 0 && open.srq.is_some();
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

    /// Creates the endpoints whose earlier creation failed.
    pub fn make_missing(&mut self, side: usize) {
        for at in 0..ENDS {
            let open = self.sides[side].open.as_ref();
            if open.is_some_and(|open| open.ends[at].ep.is_none()) {
                self.make_end(side, at);
            }
        }
    }
}
