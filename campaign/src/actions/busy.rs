//! Programs that never find their EVD empty, programs that wait, programs that reset an endpoint without dequeuing its
//! events, and programs that stop dequeuing.
//!
//! While a program finds a completion at every dequeue, the driver must still handle its other input (datagrams, events
//! of the device). A program that waits for a completion must be woken by the completion, not by a timeout.

use std::time::Duration;

use hw_sim::{Faults, LinkFaults};
use rand::Rng;
use udapl::{CloseFlags, Timeout};

use crate::Feature;
use crate::end::{End, Phase, WINDOW};
use crate::off_path_attacker::{ATTACKER, datagram};
use crate::side::{CONN_QUAL, ENDS, MIXED};
use crate::world::World;

/// Number of consecutive completions after which the driver must have handled all other input (`hw_mlx::cq`).
const IN_A_ROW: usize = 2048;
/// Time in which a request without data completes, on a wire without faults.
const ROUND_TRIP: Duration = Duration::from_micros(200);
/// Maximum virtual time of a wait for a completion. If the wake-up is lost, the wait is longer, up to
/// [`driver::MAX_WAIT`].
const MAX_WAIT_TIME: Duration = Duration::from_millis(5);
/// Maximum number of consecutive waits.
const WAITS: usize = 3;
/// Timeout of a wait: far longer than a call of a healthy device takes.
const PATIENCE: Timeout = Timeout::from_micros(900_000);

impl World {
    /// Returns the first endpoint of a side on which a request completes without delay: no request is outstanding, and
    /// no fault has affected the endpoint's connection or the wire.
    fn idle_endpoint(&self, side: usize) -> Option<usize> {
        let one = &self.sides[side];
        let open = one.open.as_ref()?;
        let wire = self.until.is_none() && self.now() >= self.trained;
        if !wire || one.tampered || open.dead || open.narrow {
            return None;
        }
        (0..ENDS).find(|at| {
            let end = &open.ends[*at];
            let link = end.link.map(|(link, _)| &self.links[link]);
            let lives = link.is_some_and(|link| link.spoiled.is_none() && link.up == [true, true]);
            end.phase == Phase::Up && lives && end.requests.is_empty()
        })
    }

    /// Posts requests and dequeues completions so that no dequeue finds the EVD empty, and checks that the driver
    /// handles a datagram meanwhile.
    pub fn busy(&mut self, side: usize) {
        let Some(at) = self.idle_endpoint(side) else {
            return;
        };
        let received = |world: &Self| {
            let open = world.sides[side].open.as_ref();
            open.map_or(0, |open| open.ia.cm_counters().received)
        };
        // The driver first handles the input that has already arrived.
        self.run_once(ROUND_TRIP);
        let Some(to) = self
            .address(side)
            .filter(|_| self.idle_endpoint(side) == Some(at))
        else {
            return;
        };
        let (before, full) = (received(self), self.random.random_bool(0.5));
        let card = self.cards[self.sides[side].card].physical();
        self.sim
            .deliver(&card, &datagram(ATTACKER, to, 1, &[0; 256]));
        let mut taken = 0;
        while taken <= IN_A_ROW {
            // If four requests are posted, the last one finds the queue full, so the driver reaps completions.
            for _ in 0..if full { WINDOW } else { WINDOW - 1 } {
                self.post_empty(side, at);
            }
            self.sim.advance(ROUND_TRIP);
            // No dequeue finds the EVD empty, because the driver would then handle its other input.
            for _ in 1..WINDOW {
                let Some(open) = &mut self.sides[side].open else {
                    return;
                };
                let Ok(Some(event)) = open.ia.evd_dequeue(open.dto) else {
                    return;
                };
                self.event(side, event);
                taken += 1;
            }
        }
        self.cover.count("busy", "for thousands of completions");
        assert!(
            received(self) > before,
            "side {side} took {taken} completions in a row, and nobody looked at its datagrams"
        );
    }

    /// Posts a request and waits for its completion, several times.
    pub fn wait_for_completion(&mut self, side: usize) {
        // Without a delay of the wire, the request would complete before the wait begins.
        let far = Faults {
            delay_ns: 50_000,
            ..Faults::NONE
        };
        for _ in 0..WAITS {
            self.events(side);
            let Some(at) = self.idle_endpoint(side).filter(|_| self.repeats.is_none()) else {
                return;
            };
            self.sim.set_faults(self.wire, LinkFaults::both(far));
            if !self.post_empty(side, at) {
                self.sim.set_faults(self.wire, LinkFaults::default());
                return;
            }
            let before = self.now();
            let event = self.call(side, "dat_evd_wait", |open| {
                let waited = open.ia.evd_wait(open.dto, PATIENCE, 1);
                waited.map_err(|refused| refused.error)
            });
            self.sim.set_faults(self.wire, LinkFaults::default());
            let took = Duration::from_nanos(self.now() - before);
            assert!(
                took <= MAX_WAIT_TIME || self.has(Feature::Interrupts),
                "side {side} was woken by a completion after {took:?}"
            );
            let Some(Ok((event, _))) = event else {
                panic!("side {side} waits for a request that is done, and hears {event:?}")
            };
            self.cover.count("wait", "woken");
            self.event(side, event);
        }
    }

    /// Disconnects an endpoint, posts to it, and resets it before dequeuing the events of these posts.
    pub fn start_over(&mut self, side: usize, at: usize) {
        self.events(side);
        self.disconnect(side, at, CloseFlags::Abrupt);
        self.handle_connection_events(side);
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let end = &open.ends[at];
        let (Some(ep), Phase::Over, false) = (end.ep, end.phase, end.shares) else {
            return;
        };
        for _ in 0..self.random.random_range(0..WINDOW) {
            self.receive(side, at);
            self.post_empty(side, at);
        }
        let number = self.next_number();
        let answer = self.ep_call(side, "dat_ep_reset", ep, |open| open.ia.ep_reset(ep));
        let Some(Ok(())) = answer else { return };
        self.cover.count("start over", "done");
        if let Some(open) = &mut self.sides[side].open {
            let end = std::mem::replace(&mut open.ends[at], End::new(Some(ep), false));
            open.forget_posted(&end);
            open.binds_lost(number);
        }
    }

    /// Dequeues and handles all events of the EVD for connection events of a side.
    pub fn handle_connection_events(&mut self, side: usize) {
        while let Some(event) = self.timed(side, "dat_evd_dequeue", |world| {
            let open = world.sides[side].open.as_mut()?;
            open.ia.evd_dequeue(open.connect).ok().flatten()
        }) {
            self.event(side, event);
        }
    }

    /// Makes a program stop dequeuing its events for some loop iterations, while its connections are served. Before
    /// that, a foreign node sends more requests than fit into the EVD that requests and connection events share, and a
    /// connection ends. Does nothing on a side without such an EVD.
    pub fn stop_dequeuing(&mut self, side: usize, at: usize) {
        let turns = self.random.random_range(1..24);
        let Some(to) = self
            .address(side)
            .filter(|_| self.sides[side].side_config.mixed)
        else {
            return;
        };
        self.events(side);
        for _ in 0..MIXED {
            let qual = CONN_QUAL + self.sides[side].side_config.apart;
            self.send_attacker_request(side, to, qual);
        }
        self.serve_connections(side);
        self.disconnect(side, at, CloseFlags::Abrupt);
        self.connect(side, (at + 1) % ENDS);
        self.cover.count("sleep", "with a short backlog");
        (self.sides[side].asleep, self.sides[side].deep) = (turns, false);
    }
}
