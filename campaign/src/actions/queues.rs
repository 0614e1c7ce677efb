//! Shared receive queues and event dispatchers.

use rand::Rng;
use udapl::error::ReturnType;
use udapl::event::SoftwareEvent;
use udapl::{DtoCookie, EvdFlags, Timeout};

use super::outcome;
use super::traffic::local;
use crate::bytes::SLOT;
use crate::side::{EVENTS, Open, SHARED, SHARED_DTOS};
use crate::world::World;

impl World {
    /// Makes, frees, queries, or changes a shared receive queue, or posts to it.
    pub fn share(&mut self, side: usize) {
        let draw = self.random.random_range(0..10);
        let mark = self.random.random_range(0..4);
        let length = self.random.random_range(1..=2 * SHARED_DTOS);
        if !self.sides[side].side_config.shares {
            return;
        }
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let Some(srq) = open.srq else {
            self.make_srq(side);
            return;
        };
        match draw {
            0..=3 => self.receive_shared(side),
            4 => {
                let answer =
                    self.call(side, "dat_srq_set_lw", |open| open.ia.srq_set_lw(srq, mark));
                if let Some(answer) = answer {
                    self.cover.count("SRQ watermark", outcome(&answer));
                }
            }
            5..=6 => {
                let answer = self.call(side, "dat_srq_resize", |open| {
                    open.ia.srq_resize(srq, length)
                });
                if let Some(answer) = answer {
                    self.cover.count("SRQ resize", outcome(&answer));
                }
            }
            7..=8 => {
                let at_most = open.buffers.len();
                let asked = self.call(side, "dat_srq_query", |open| open.ia.srq_query(srq));
                if let Some(Ok(param)) = asked {
                    let there = usize::try_from(param.outstanding_dto_count).unwrap_or(usize::MAX);
                    assert!(
                        there <= at_most,
                        "side {side}: {there} buffers on the SRQ, and {at_most} were posted and are not done"
                    );
                }
            }
            _ => self.free_srq(side),
        }
    }

    /// Frees an SRQ and creates another. The free must be refused while endpoints use the SRQ, so the endpoints are
    /// freed before the second attempt.
    fn free_srq(&mut self, side: usize) {
        let Some(srq) = self.sides[side].open.as_ref().and_then(|open| open.srq) else {
            return;
        };
        let shares = |open: &Open| {
            (0..open.ends.len()).find(|at| open.ends[*at].shares && open.ends[*at].ep.is_some())
        };
        let uses = self.sides[side].open.as_ref().and_then(shares);
        if uses.is_some() {
            let answer = self.call(side, "dat_srq_free", |open| open.ia.srq_free(srq));
            assert!(
                answer.is_none_or(|answer| answer.is_err()),
                "side {side}: an SRQ is freed that endpoints use"
            );
        }
        // Queued completions refer to slots of these endpoints, so they are dequeued before the endpoints are freed.
        self.events(side);
        while let Some(at) = self.sides[side].open.as_ref().and_then(shares) {
            if !self.free_end(side, at) {
                return;
            }
        }
        let Some(answer) = self.call(side, "dat_srq_free", |open| open.ia.srq_free(srq)) else {
            return;
        };
        self.cover.count("free an SRQ", outcome(&answer));
        if answer.is_ok()
            && let Some(open) = &mut self.sides[side].open
        {
            open.srq = None;
            // Completions may still arrive for buffers that endpoints had taken from the SRQ.
            let buffers = std::mem::take(&mut open.buffers);
            open.orphans
                .extend(buffers.into_keys().map(|cookie| (false, cookie)));
            open.buffers_lost = false;
        }
        self.make_srq(side);
    }

    fn make_srq(&mut self, side: usize) {
        let open = self.sides[side].open.as_ref();
        if open.is_some_and(|open| open.srq.is_none())
            && let Some(made) = self.call(side, "dat_srq_create", Open::make_srq)
        {
            self.cover.count("make an SRQ", outcome(&made));
            if let Some(open) = &mut self.sides[side].open {
                open.srq = made.ok();
            }
        }
        self.make_missing(side);
    }

    pub fn receive_shared(&mut self, side: usize) {
        let number = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let free = |slot: &usize| !open.buffers.values().any(|used| used == slot);
        let (Some(srq), Some(slot)) = (open.srq, (0..SHARED).find(free)) else {
            return;
        };
        let cookie = number << 8 | slot as u64;
        let iov = [local(&open.shared, slot, SLOT)];
        let answer = self.call(side, "dat_srq_post_recv", |open| {
            open.ia.srq_post_recv(srq, &iov, DtoCookie(cookie))
        });
        let Some(answer) = answer else { return };
        self.cover.count("post a shared receive", outcome(&answer));
        if answer.is_ok()
            && let Some(open) = &mut self.sides[side].open
        {
            open.buffers.insert(cookie, slot);
        }
    }

    /// Resizes, queries, waits on, or tries to free an event dispatcher, or posts software events.
    pub fn dispatch(&mut self, side: usize) {
        let draw = self.random.random_range(0..12);
        let more = self.random.random_range(0..200);
        let number = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let (dto, connect, cr) = (open.dto, open.connect, open.cr);
        match draw {
            0..=3 => {
                let narrow = open.narrow;
                let length = if narrow { 1 + more / 4 } else { EVENTS + more };
                let answer = self.call(side, "dat_evd_resize", |open| {
                    open.ia.evd_resize(dto, length)
                });
                if let Some(answer) = answer {
                    self.cover.count("EVD resize", outcome(&answer));
                }
            }
            4 => {
                for evd in [dto, connect] {
                    let used = self.sides[side]
                        .open
                        .as_ref()
                        .is_some_and(|open| open.ends.iter().any(|end| end.ep.is_some()));
                    let answer = self.call(side, "dat_evd_free", |open| {
                        if used {
                            open.ia.evd_free(evd)
                        } else {
                            open.ia.evd_query(evd).map(|_| ())
                        }
                    });
                    assert!(
                        !used || answer.is_none_or(|answer| answer.is_err()),
                        "side {side}: an EVD is freed that endpoints use"
                    );
                }
            }
            5..=7 => {
                let evd = [dto, connect, cr][more as usize % 3];
                self.wait(side, evd);
            }
            8 => {
                let asked = self.call(side, "dat_evd_query", |open| open.ia.evd_query(dto));
                let narrow = self.sides[side].side_config.narrow;
                if let Some(Ok(param)) = asked {
                    assert!(narrow || param.qlen >= EVENTS, "side {side}: {param:?}");
                }
            }
            _ => self.software(side, draw, number),
        }
    }

    /// Waits with a timeout of zero, and handles the event if there is one.
    fn wait(&mut self, side: usize, evd: udapl::EvdHandle) {
        let event = self.call(side, "dat_evd_wait", |open| {
            let waited = open.ia.evd_wait(evd, Timeout::ZERO, 1);
            waited.map_err(|refused| refused.error)
        });
        match event {
            Some(Ok((event, _))) => self.event(side, event),
            Some(Err(error)) => assert!(
                matches!(
                    error.return_type(),
                    ReturnType::TimeoutExpired
                        | ReturnType::Abort
                        | ReturnType::InvalidState
                        | ReturnType::InternalError
                ),
                "side {side}: a wait for no time says {error}"
            ),
            None => {}
        }
    }

    /// Posts a software event, or creates the EVD for software events if there is none. In some calls, then dequeues
    /// all software events or frees the EVD.
    fn software(&mut self, side: usize, draw: u32, number: u64) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let Some(evd) = open.spare.evd else {
            let made = self.call(side, "dat_evd_create", |open| {
                open.ia.evd_create(4, EvdFlags::SOFTWARE)
            });
            if let (Some(Ok(evd)), Some(open)) = (made, &mut self.sides[side].open) {
                open.spare.evd = Some(evd);
            }
            return;
        };
        let posted = self.call(side, "dat_evd_post_se", |open| {
            open.ia.evd_post_se(evd, SoftwareEvent(number))
        });
        if draw == 10 {
            // Software events are dequeued in the order in which they were posted.
            let mut last = None;
            while let Some(Ok(Some(event))) =
                self.call(side, "dat_evd_dequeue", |open| open.ia.evd_dequeue(evd))
            {
                let udapl::Event::Software(SoftwareEvent(next)) = event else {
                    panic!("side {side}: {event:?} where the program alone posts");
                };
                assert!(last < Some(next), "side {side}: {next} after {last:?}");
                last = Some(next);
            }
            if let Some(Ok(())) = posted {
                assert_eq!(last, Some(number), "side {side}: what was posted last");
            }
        }
        if draw == 11 {
            let freed = self.call(side, "dat_evd_free", |open| open.ia.evd_free(evd));
            if let (Some(Ok(())), Some(open)) = (freed, &mut self.sides[side].open) {
                open.spare.evd = None;
            }
        }
    }
}
