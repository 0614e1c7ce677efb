//! Connections: requesting, disconnecting, and renewing their endpoints.

use rand::Rng;
use udapl::{CloseFlags, ConnQual, ConnectFlags, Qos, Timeout};

use super::outcome;
use crate::Feature;
use crate::end::{End, GRACEFUL, Name, Phase};
use crate::side::{COMMON_QUAL, CONN_QUAL, ENDS, LENDING_QUAL, RESERVED_QUAL};
use crate::world::World;

/// Returns the connection qualifier for a request, given a random number.
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
        let manner = self.sides[peer].manner;
        let common = manner.several && draw % 4 == 3;
        let qual = if common {
            COMMON_QUAL
        } else {
            qual + manner.apart
        };
        self.connect_to(side, at, peer, qual, seconds, draw == 11);
    }

    /// Requests a connection with `peer`. If `again` is set, requests one with the peer of another connected endpoint
    /// instead (`dat_ep_dup_connect`).
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
            // A duplicated request may go to the peer of a passive endpoint, which need not listen at that address.
            self.links[link].spoil("nobody listens");
        }
        if asked.iter().any(|other| self.sides[*other].manner.mixed) {
            self.spoil_link(link, "a short backlog");
        }
        // The peer may end, or may be opened again, before it answers.
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

    /// Resets an endpoint, which becomes idle if that succeeds.
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

    /// Frees an endpoint in any state, and makes another one in its place.
    pub fn renew(&mut self, side: usize, at: usize) {
        self.events(side);
        let there = self.sides[side].open.as_ref();
        let made_before = there.is_some_and(|open| open.ends[at].ep.is_some());
        if made_before && !self.free_end(side, at) {
            return;
        }
        self.make_end(side, at);
    }

    /// Frees an endpoint and removes the records of its posted requests. Returns whether no endpoint is left.
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
            // If the free failed half-way, the endpoint is DISCONNECTED although no event reports that.
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

    /// Makes the endpoints that are missing because making them failed before.
    pub fn make_missing(&mut self, side: usize) {
        for at in 0..ENDS {
            let open = self.sides[side].open.as_ref();
            if open.is_some_and(|open| open.ends[at].ep.is_none()) {
                self.make_end(side, at);
            }
        }
    }
}
