//! Posting requests: receives, sends and RDMA.

use rand::Rng;
use udapl::memory::{LmrTriplet, RmrTriplet};
use udapl::{CompletionFlags, DtoCookie, EpHandle};

use super::outcome;
use crate::Feature;
use crate::bytes::{self, SLOT, STRIDE};
use crate::end::{Kind, Phase, Sent, WINDOW, Work};
use crate::keys::{Key, Region};
use crate::world::World;

/// Returns the first `bytes` bytes of a region's slot as a local buffer.
pub fn local(region: &Region, slot: usize, bytes: usize) -> LmrTriplet {
    LmrTriplet {
        lmr_context: region.lmr.lmr_context,
        virtual_address: region.lmr.registered_address + (slot * STRIDE) as u64,
        segment_length: bytes as u64,
    }
}

pub fn remote(region: &Region, slot: usize, bytes: usize) -> RmrTriplet {
    RmrTriplet {
        rmr_context: region.lmr.rmr_context,
        target_address: region.lmr.registered_address + (slot * STRIDE) as u64,
        segment_length: bytes as u64,
    }
}

/// Returns the immediate data of a message, which one message in four has.
#[must_use]
pub fn immediate(number: u64) -> Option<u32> {
    let data = u32::try_from(number & u64::from(u32::MAX)).ok();
    data.filter(|data| data % 4 == 3)
}

/// A request that is ready to be posted.
pub struct Prepared {
    pub ep: EpHandle,
    link: usize,
    own: usize,
    pub from: [LmrTriplet; 1],
    pub to: [LmrTriplet; 1],
    pub target: RmrTriplet,
    pub flags: CompletionFlags,
    pub work: Work,
}

impl World {
    pub fn receive(&mut self, side: usize, at: usize) {
        let number = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let end = &open.ends[at];
        if end.shares {
            self.receive_shared(side);
            return;
        }
        let Some(ep) = end.ep else { return };
        if end.receives.len() >= WINDOW {
            return;
        }
        let slot = at * WINDOW + end.next_receive % WINDOW;
        let cookie = number << 8 | slot as u64;
        let iov = [local(&open.inbox, slot, SLOT)];
        let answer = self.ep_call(side, "dat_ep_post_recv", ep, |open| {
            let none = CompletionFlags::empty();
            open.ia.ep_post_recv(ep, &iov, DtoCookie(cookie), none)
        });
        let Some(answer) = answer else { return };
        if answer.is_ok()
            && let Some(open) = &mut self.sides[side].open
        {
            let end = &mut open.ends[at];
            end.next_receive += 1;
            end.receives.push_back(cookie);
        }
        self.cover.count("post a receive", outcome(&answer));
    }

    pub fn post(&mut self, side: usize, at: usize) {
        let bytes = match self.random.random_range(0..6) {
            0 => 0,
            1 => 8,
            2 => 1024,
            3 => SLOT,
            _ => 8 * self.random.random_range(0..=SLOT / 8),
        };
        let kind = match self.random.random_range(0..10) {
            0..=3 => Kind::Send,
            4..=6 => Kind::Write,
            7 => Kind::Read,
            8 => Kind::Count,
            _ if self.has(Feature::Frees) || self.has(Feature::Windows) => Kind::Attack,
            _ => Kind::Send,
        };
        if self.random.random_ratio(1, 4) {
            self.post_batch(side, at, bytes);
            return;
        }
        let pick = self.random.random_range(0..12);
        let fence = self.random.random_ratio(1, 8);
        self.post_one(side, at, kind, bytes, pick, fence);
    }

    /// Posts a request if the endpoint has a connection.
    pub fn post_one(
        &mut self,
        side: usize,
        at: usize,
        kind: Kind,
        bytes: usize,
        pick: usize,
        fence: bool,
    ) {
        let Some(one) = self.prepare(side, at, (kind, bytes, pick, fence), &[]) else {
            return;
        };
        let Prepared {
            ep,
            from,
            to,
            target,
            flags,
            ..
        } = one;
        let cookie = one.work.cookie;
        let answer = match kind {
            Kind::Send | Kind::Bind(_) => match immediate(cookie) {
                Some(data) => self.ep_call(side, "send immediate", ep, |open| {
                    open.ia
                        .ep_post_send_immediate(ep, &from, DtoCookie(cookie), data, flags)
                }),
                None => self.ep_call(side, "dat_ep_post_send", ep, |open| {
                    open.ia.ep_post_send(ep, &from, DtoCookie(cookie), flags)
                }),
            },
            Kind::Invalidate(context) => self.ep_call(side, "send invalidate", ep, |open| {
                open.ia
                    .ep_post_send_invalidate(ep, &from, DtoCookie(cookie), context, flags)
            }),
            Kind::Count => self.ep_call(side, "fetch and add", ep, |open| {
                open.ia
                    .ep_post_fetch_add(ep, &to, DtoCookie(cookie), &target, 1, flags)
            }),
            Kind::Write | Kind::Empty | Kind::Attack => {
                self.ep_call(side, "dat_ep_post_rdma_write", ep, |open| {
                    open.ia
                        .ep_post_rdma_write(ep, &from, DtoCookie(cookie), &target, flags)
                })
            }
            Kind::Read => self.ep_call(side, "dat_ep_post_rdma_read", ep, |open| {
                open.ia
                    .ep_post_rdma_read(ep, &to, DtoCookie(cookie), &target, flags)
            }),
        };
        let Some(answer) = answer else { return };
        self.cover.count("post a request", outcome(&answer));
        if answer.is_ok() {
            self.posted(side, at, one);
        }
    }

    /// Prepares a request that is to be posted after the requests `before`, if the endpoint has a connection and a free
    /// slot. The tuple is the kind, the length in bytes, the index of the key for an attack, and whether the request is
    /// fenced.
    pub fn prepare(
        &mut self,
        side: usize,
        at: usize,
        (kind, bytes, pick, fence): (Kind, usize, usize, bool),
        before: &[Prepared],
    ) -> Option<Prepared> {
        let cookie = self.next_number();
        let bytes = if kind == Kind::Count { 8 } else { bytes };
        let open = self.sides[side].open.as_ref()?;
        let end = &open.ends[at];
        let (Some(ep), Some((link, own)), Phase::Up | Phase::Over) = (end.ep, end.link, end.phase)
        else {
            return None;
        };
        if end.holding() + before.len() >= WINDOW {
            return None;
        }
        let (peer, opening, there) = self.links[link].ends[1 - own];
        let slot = (end.next_request + before.len()) % WINDOW;
        let place = there * WINDOW + slot;
        let (target, void) = self.target(peer, opening, place, kind, pick, bytes)?;
        let mine = at * WINDOW + slot;
        bytes::put(&open.source.memory, mine, cookie);
        let (from, to) = (
            [local(&open.source, mine, bytes)],
            [local(&open.sink, mine, bytes)],
        );
        let flags = if fence {
            CompletionFlags::BARRIER_FENCE
        } else {
            CompletionFlags::empty()
        };
        let messages = before.iter().filter(|one| one.work.kind.is_message());
        let coming = messages.count();
        if kind.is_message() && !self.is_awaited(peer, opening, there, link, own, coming) {
            self.spoil_link(link, "a message nobody waits for");
        }
        if kind == Kind::Attack {
            self.spoil_link(link, "an attack");
        }
        let work = Work {
            cookie,
            kind,
            slot,
            bytes,
            void,
        };
        self.record_claim(link, (peer, opening), &work);
        Some(Prepared {
            ep,
            link,
            own,
            from,
            to,
            target,
            flags,
            work,
        })
    }

    /// Records that a prepared request has been posted.
    pub fn posted(&mut self, side: usize, at: usize, one: Prepared) {
        if self.sides[side].open.is_none() {
            return;
        }
        let Prepared {
            link, own, work, ..
        } = one;
        if work.kind.is_message() {
            let takes = match work.kind {
                Kind::Invalidate(context) => Some(context),
                Kind::Send
                | Kind::Write
                | Kind::Read
                | Kind::Count
                | Kind::Empty
                | Kind::Attack
                | Kind::Bind(_) => None,
            };
            self.links[link].sent[own].push_back(Sent {
                number: work.cookie,
                bytes: work.bytes,
                takes,
            });
        }
        let (peer, opening, _) = self.links[link].ends[1 - own];
        if work.kind == Kind::Count
            && let Some(other) = self.sides.get_mut(peer)
            && other.openings == opening
            && let Some(open) = &mut other.open
        {
            open.asked += 1;
        }
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        let end = &mut open.ends[at];
        end.next_request += 1;
        end.requests.push_back(work);
    }

    /// Returns whether the peer has a receive buffer for one more message on a connection, after the outstanding
    /// messages and `before` more.
    fn is_awaited(
        &self,
        peer: usize,
        opening: u64,
        there: usize,
        link: usize,
        own: usize,
        before: usize,
    ) -> bool {
        let Some(other) = self.sides.get(peer) else {
            return false;
        };
        let open = other.open.as_ref().filter(|_| other.openings == opening);
        let Some(open) = open else { return false };
        let end = &open.ends[there];
        if end.shares {
            let coming = |end: &crate::end::End| match end.link {
                Some((link, own)) if end.shares => self.links[link].sent[1 - own].len(),
                Some(_) | None => 0,
            };
            let coming: usize = open.ends.iter().map(coming).sum::<usize>() + before;
            return !open.buffers_lost && open.buffers.len() > coming;
        }
        end.receives.len() > self.links[link].sent[own].len() + before
    }

    /// Returns the target of a request, and the value of [`Work::void`] for the request. If the peer's adapter was
    /// closed since the connection was made, only an attack has a target: memory of the closed adapter.
    #[allow(
        clippy::type_complexity,
        reason = "a place, and the key in it that is void"
    )]
    fn target(
        &self,
        peer: usize,
        opening: u64,
        slot: usize,
        kind: Kind,
        pick: usize,
        bytes: usize,
    ) -> Option<(RmrTriplet, Option<(u64, u32)>)> {
        let other = self.sides.get(peer)?;
        let open = other.open.as_ref().filter(|_| other.openings == opening);
        let Some(open) = open else {
            return match kind {
                Kind::Attack => self.closed_target(pick, bytes).map(|target| (target, None)),
                Kind::Send
                | Kind::Invalidate(_)
                | Kind::Write
                | Kind::Read
                | Kind::Count
                | Kind::Empty
                | Kind::Bind(_) => None,
            };
        };
        match kind {
            Kind::Send | Kind::Write | Kind::Empty | Kind::Bind(_) => {
                Some((remote(&open.written, slot, bytes), None))
            }
            Kind::Invalidate(context) => {
                let void = (!open.yields(context)).then_some((0, context));
                Some((remote(&open.written, slot, bytes), void))
            }
            Kind::Read => Some((remote(&open.offered, slot, bytes), None)),
            Kind::Count => Some((remote(&open.counter, 0, bytes), None)),
            Kind::Attack => {
                let mut keys: Vec<Key> = open.known_keys().chain([open.to_be_read()]).collect();
                keys.extend(self.keys_of_kin(peer));
                let key = *keys.get(pick % keys.len().max(1))?;
                let target = RmrTriplet {
                    rmr_context: key.context,
                    target_address: key.address,
                    segment_length: bytes as u64,
                };
                Some((target, key.void.map(|_| (key.address, key.context))))
            }
        }
    }
}
