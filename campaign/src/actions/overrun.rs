//! Queues that are too short: programs that dequeue nothing for a while, and ports with many events.
//!
//! A program may have the shortest possible EVD, post more requests than the EVD holds, and not dequeue. Then it may
//! lose the completions that do not fit. The program gets an event on the asynchronous EVD, and the connections that
//! the EVD served are broken (uDAPL 1.2, dat_evd_create, DAT_ASYNC_ERROR_EVD_OVERFLOW). Nothing else is lost: an EVD
//! that holds all events that can be outstanding never overflows, the events that fit arrive in order, and other
//! connections continue. The program then creates another EVD, and endpoints for that EVD.
//!
//! A device's event queue has a fixed length. Carrier changes of the port can fill the queue while no driver reads it.
//! If the number of events exceeds the length, the firmware fails (health syndrome 0x0c).

use hw_sim::Fault;
use rand::Rng;
use udapl::endpoint::EpState;
use udapl::{CompletionFlags, DtoCookie, EvdHandle};

use super::outcome;
use super::traffic::{local, remote};
use crate::end::{Kind, Phase, WINDOW, Work};
use crate::side::{BURST, ENDS, EVENTS_OF_THE_PORT, Open};
use crate::world::World;

/// Maximum number of events in a device's queue besides those of the port.
const OTHERS: u32 = 32;

impl World {
    /// On a side with a short EVD, posts a random number of requests without data, at most `BURST`, and stops when one
    /// is refused. Then makes the side's program dequeue nothing for up to 23 loop iterations.
    pub fn burst(&mut self, side: usize, at: usize) {
        let count = self.random.random_range(1..=BURST);
        let sleep = self.random.random_range(0..24);
        let deep = self.random.random_ratio(1, 4);
        if !self.sides[side].side_config.narrow {
            return;
        }
        for _ in 0..count {
            if !self.post_empty(side, at) {
                break;
            }
        }
        self.crowd(side);
        self.cover
            .count("sleep", if deep { "deeply" } else { "lightly" });
        let one = &mut self.sides[side];
        (one.asleep, one.deep) = (sleep, deep);
    }

    /// Posts a Write of zero bytes, which needs no slot. Returns whether the post was accepted.
    pub fn post_empty(&mut self, side: usize, at: usize) -> bool {
        let cookie = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return false;
        };
        let end = &open.ends[at];
        let (Some(ep), Some((link, own)), Phase::Up | Phase::Over) = (end.ep, end.link, end.phase)
        else {
            return false;
        };
        let (peer, opening, there) = self.links[link].ends[1 - own];
        let Some(other) = self.sides.get(peer) else {
            return false;
        };
        let Some(there_open) = other.open.as_ref().filter(|_| other.openings == opening) else {
            return false;
        };
        let from = [local(&open.source, at * WINDOW, 0)];
        let target = remote(&there_open.written, there * WINDOW, 0);
        let answer = self.ep_call(side, "dat_ep_post_rdma_write", ep, |open| {
            let none = CompletionFlags::empty();
            open.ia
                .ep_post_rdma_write(ep, &from, DtoCookie(cookie), &target, none)
        });
        let Some(answer) = answer else { return false };
        self.cover.count("burst", outcome(&answer));
        if let (Ok(()), Some(open)) = (&answer, &mut self.sides[side].open) {
            open.ends[at].requests.push_back(Work {
                cookie,
                kind: Kind::Empty,
                slot: 0,
                bytes: 0,
                void: None,
            });
        }
        answer.is_ok()
    }

    /// Records whether more requests and receives are outstanding than an adapter's short EVD holds. From then on
    /// completions may be lost.
    pub fn crowd(&mut self, side: usize) {
        let Some(open) = self.sides[side].open.as_mut().filter(|open| open.narrow) else {
            return;
        };
        let of_ends = |end: &crate::end::End| end.requests.len() + end.receives.len();
        let outstanding = open.ends.iter().map(of_ends).sum::<usize>() + open.buffers.len();
        let holds = open.ia.evd_query(open.dto).map(|param| param.qlen);
        let Ok(holds) = holds else { return };
        if outstanding > usize::try_from(holds).unwrap_or(usize::MAX) {
            open.crowded = true;
            self.spoil_side("an EVD that may overflow", side);
        }
    }

    /// Handles an asynchronous event which reports that an EVD has lost an event. Returns the name of the case.
    pub fn overflowed(&mut self, side: usize, evd: EvdHandle) -> &'static str {
        let open = self.sides[side].open.as_mut().expect("it has an event");
        if evd == open.cr && evd == open.connect {
            // The EVD reserves one entry for each endpoint, however many requests arrive. Only a second event of an
            // endpoint may be lost.
            let places = open.ends.iter().filter(|end| end.ep.is_some()).count();
            assert!(
                open.heard >= places,
                "side {side}: a connection event is lost, and {} of {places} were there",
                open.heard
            );
            self.query_endpoint_states(side);
            return "connection event lost";
        }
        // Connection requests may be lost, because other nodes determine their number.
        if evd == open.cr {
            return "request lost";
        }
        if open.narrow && evd == open.connect {
            self.query_endpoint_states(side);
            return "connection event lost";
        }
        assert!(
            evd == open.dto && open.crowded,
            "side {side}: an event is lost, and its queue is long enough for all"
        );
        open.spent = true;
        "completion lost"
    }

    /// Queries the state of all endpoints after a connection event was lost, and updates the records.
    fn query_endpoint_states(&mut self, side: usize) {
        let open = self.sides[side].open.as_ref().expect("it has an event");
        let state = |at: usize| {
            let ep = open.ends[at].ep?;
            open.ia.ep_get_status(ep).ok().map(|status| status.state)
        };
        let states: Vec<_> = (0..ENDS).map(state).collect();
        // Events that have arrived are dequeued before the states are compared.
        self.handle_connection_events(side);
        for (at, state) in states.into_iter().enumerate() {
            let open = self.sides[side].open.as_mut().expect("it has an event");
            let end = &mut open.ends[at];
            match (state, end.phase) {
                (Some(EpState::Connected), Phase::Pending) => {
                    end.phase = Phase::Up;
                    if let Some((link, own)) = end.link {
                        self.links[link].up[own] = true;
                    }
                }
                (Some(EpState::Disconnected), Phase::Pending | Phase::Up) => {
                    end.phase = Phase::Over;
                    self.needs_a_reason(side, at, "an end nobody was told of");
                }
                _ => {}
            }
        }
    }

    /// Replaces an EVD that has lost completions, together with its endpoints.
    pub fn replace_spent(&mut self, side: usize) {
        let Some(open) = self.sides[side].open.as_ref().filter(|open| open.spent) else {
            return;
        };
        if open.dead {
            return;
        }
        self.release_reserved(side);
        let Some(made) = self.call(side, "dat_evd_create", Open::make_dto) else {
            return;
        };
        self.cover.count("another EVD", outcome(&made));
        let (Ok(evd), Some(open)) = (made, &mut self.sides[side].open) else {
            return;
        };
        let old = std::mem::replace(&mut open.dto, evd);
        (open.spent, open.crowded) = (false, false);
        open.old.push(old);
        self.let_go(side);
        self.make_missing(side);
    }

    /// Frees the endpoints of overflowed EVDs, and then these EVDs.
    pub fn let_go(&mut self, side: usize) {
        let Some(open) = &self.sides[side].open else {
            return;
        };
        if open.old.is_empty() || open.dead {
            return;
        }
        for at in 0..ENDS {
            let Some(open) = &self.sides[side].open else {
                return;
            };
            let uses = |ep: udapl::EpHandle| {
                let param = open.ia.ep_query(ep).ok()?;
                let evds = [param.recv_evd, param.request_evd];
                Some(
                    evds.into_iter()
                        .flatten()
                        .any(|evd| open.old.contains(&evd)),
                )
            };
            if open.ends[at].ep.and_then(uses) == Some(true) && !self.free_end(side, at) {
                return;
            }
        }
        let evds = self.sides[side]
            .open
            .as_mut()
            .map(|open| std::mem::take(&mut open.old));
        for evd in evds.unwrap_or_default() {
            let freed = self.call(side, "dat_evd_free", |open| open.ia.evd_free(evd));
            let Some(freed) = freed else { return };
            self.cover.count("free a spent EVD", outcome(&freed));
            if let (Err(error), Some(open)) = (freed, &mut self.sides[side].open) {
                assert!(
                    error.return_type() == udapl::error::ReturnType::InternalError,
                    "side {side}: a spent EVD that nothing feeds is not freed: {error}"
                );
                open.old.push(evd);
            }
        }
    }

    /// Toggles the carrier of a card's port while no driver reads events. The number of events is half of what a
    /// device's event queue holds, nearly all, or more.
    pub fn toggle_carrier(&mut self, side: usize, small: u32) {
        let (what, times) = match small {
            1 => ("event queues overrun", EVENTS_OF_THE_PORT + 200),
            2 => ("event queues full", EVENTS_OF_THE_PORT - OTHERS),
            _ => ("event queues half full", EVENTS_OF_THE_PORT / 2),
        };
        self.cover.count("fault", what);
        for other in 0..self.sides.len() {
            self.timed(other, crate::calls::PROGRESS, |world| {
                if let Some(open) = &mut world.sides[other].open {
                    open.ia.progress();
                }
            });
            if small == 1 {
                self.sides[other].tampered = true;
            }
            // The drivers of these sides empty the queues in the next loop iteration.
            (self.sides[other].asleep, self.sides[other].deep) = (0, false);
        }
        self.trace_line(side, format_args!("{times} events of the port"));
        self.spoil_wire();
        let card = self.cards[self.sides[side].card].physical();
        // A port that was down is up before the first change.
        self.sim.inject(&card, &Fault::LinkUp);
        for _ in 0..times / 2 {
            self.sim.inject(&card, &Fault::LinkDown);
            self.sim.inject(&card, &Fault::LinkUp);
        }
    }

    /// Counts down the loop iterations in which the side's program dequeues nothing. Returns `None` if the program
    /// dequeues in this loop iteration. Otherwise returns true if the side's connections are not served either.
    pub fn sleeps(&mut self, side: usize) -> Option<bool> {
        let one = &mut self.sides[side];
        if self.healing || one.asleep == 0 || one.open.is_none() {
            one.asleep = 0;
            return None;
        }
        one.asleep -= 1;
        let deep = one.deep;
        // Connection requests wait until a program decides, so they may time out.
        let place = one.place;
        self.spoil("a program that sleeps", |link| {
            link.up != [true, true] && link.concerns(side, place)
        });
        Some(deep)
    }
}
