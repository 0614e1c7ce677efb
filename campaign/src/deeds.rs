//! What adapters do, and what befalls them.

use std::time::Duration;

use dat::{
    CloseFlags, CompletionFlags, ConnectFlags, DatResult, LmrTriplet, Qos, RmrTriplet, Timeout,
};
use hw_sim::{Fault, Faults, LinkFaults};
use rand::Rng;

use crate::Feature;
use crate::bytes::{self, Freed, SLOT, STRIDE};
use crate::end::{End, Kind, Name, Phase, WINDOW, Work};
use crate::side::{CONN_QUAL, ENDS, Region};
use crate::world::{SIDES, World};

/// Memory that peers may write to and that may be freed, of an adapter.
const MOST_LOOSE: usize = 3;

fn outcome<T>(answer: &DatResult<T>) -> &'static str {
    match answer {
        Ok(_) => "done",
        Err(_) => "refused",
    }
}

fn local(region: &Region, slot: usize, bytes: usize) -> LmrTriplet {
    LmrTriplet {
        lmr_context: region.lmr.lmr_context,
        virtual_address: region.lmr.registered_address + (slot * STRIDE) as u64,
        segment_length: bytes as u64,
    }
}

fn remote(region: &Region, slot: usize, bytes: usize) -> RmrTriplet {
    RmrTriplet {
        rmr_context: region.lmr.rmr_context,
        target_address: region.lmr.registered_address + (slot * STRIDE) as u64,
        segment_length: bytes as u64,
    }
}

impl World {
    /// Something that a program does.
    pub fn deed(&mut self, side: usize) {
        if self.sides[side].open.is_none() {
            self.reopen(side);
            return;
        }
        if self.sides[side].open.as_ref().is_some_and(|open| open.dead)
            && self.random.random_ratio(1, 4)
        {
            self.close(side, CloseFlags::Abrupt);
            return;
        }
        let end = self.random.random_range(0..ENDS);
        match self.random.random_range(0..100) {
            0..=14 => self.connect(side, end),
            15..=39 => self.receive(side, end),
            40..=79 => self.post(side, end),
            80..=83 => {
                let graceful = self.random.random_bool(0.5);
                let flags = if graceful {
                    CloseFlags::Graceful
                } else {
                    CloseFlags::Abrupt
                };
                self.disconnect(side, end, flags);
            }
            84..=89 if self.has(Feature::Frees) => self.lend_or_free(side),
            90..=93 if self.has(Feature::EpFrees) => self.renew(side, end),
            94..=95 if self.has(Feature::Reopen) => self.close(side, CloseFlags::Abrupt),
            96 if self.has(Feature::Drop) => self.abandon(side),
            _ => {}
        }
    }

    fn connect(&mut self, side: usize, at: usize) {
        let peer = self.random.random_range(0..SIDES);
        let seconds = self.random.random_range(1..8);
        let number = self.next_number();
        let Some(address) = self.sides[peer]
            .open
            .as_ref()
            .map(|open| open.ia.query().ia.ia_address)
        else {
            return;
        };
        let opening = self.sides[side].openings;
        let answer = self.timed("connect", |world| {
            let open = world.sides[side].open.as_mut()?;
            let (ep, Phase::Idle) = (open.ends[at].ep?, open.ends[at].phase) else {
                return None;
            };
            let name = Name {
                side,
                end: at,
                number,
            };
            let timeout = Timeout::from_micros(seconds * 1_000_000);
            let flags = ConnectFlags::empty();
            let private = name.bytes();
            Some((
                name,
                open.ia.ep_connect(
                    ep,
                    address,
                    CONN_QUAL,
                    timeout,
                    &private,
                    Qos::BEST_EFFORT,
                    flags,
                ),
            ))
        });
        let Some((name, answer)) = answer else { return };
        self.cover.count("connect", outcome(&answer));
        if answer.is_ok() {
            let link = self.link(name);
            self.links[link].ends[0] = (side, opening, at);
            if let Some(open) = &mut self.sides[side].open {
                open.ends[at].phase = Phase::Pending;
                open.ends[at].link = Some((link, 0));
            }
        }
    }

    fn receive(&mut self, side: usize, at: usize) {
        let number = self.next_number();
        let Some(open) = &mut self.sides[side].open else {
            return;
        };
        let end = &mut open.ends[at];
        let Some(ep) = end.ep else { return };
        if end.receives.len() >= WINDOW
            || !matches!(end.phase, Phase::Idle | Phase::Pending | Phase::Up)
        {
            return;
        }
        let slot = at * WINDOW + end.next_receive % WINDOW;
        let cookie = number << 8 | slot as u64;
        let iov = [local(&open.inbox, slot, SLOT)];
        let answer = open
            .ia
            .ep_post_recv(ep, &iov, cookie, CompletionFlags::empty());
        if answer.is_ok() {
            end.next_receive += 1;
            end.receives.push_back(cookie);
        }
        self.cover.count("post a receive", outcome(&answer));
    }

    fn post(&mut self, side: usize, at: usize) {
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
            7..=8 => Kind::Read,
            _ if self.has(Feature::Frees) => Kind::Attack,
            _ => Kind::Send,
        };
        let pick = self.random.random_range(0..MOST_LOOSE);
        let cookie = self.next_number();
        let Some(open) = &self.sides[side].open else {
            return;
        };
        let end = &open.ends[at];
        let (Some(ep), Some((link, own)), Phase::Up) = (end.ep, end.link, end.phase) else {
            return;
        };
        if end.requests.len() >= WINDOW {
            return;
        }
        let (peer, opening, there) = self.links[link].ends[1 - own];
        if peer >= SIDES {
            return;
        }
        let slot = end.next_request % WINDOW;
        let target = self.target(peer, opening, there * WINDOW + slot, kind, pick, bytes);
        let Some(target) = target else { return };
        let open = self.sides[side].open.as_mut().expect("looked at");
        let mine = at * WINDOW + slot;
        bytes::put(&open.source.memory, mine, cookie);
        let (from, to) = (
            [local(&open.source, mine, bytes)],
            [local(&open.sink, mine, bytes)],
        );
        let none = CompletionFlags::empty();
        let answer = match kind {
            Kind::Send => open.ia.ep_post_send(ep, &from, cookie, none),
            Kind::Write | Kind::Attack => {
                open.ia.ep_post_rdma_write(ep, &from, cookie, &target, none)
            }
            Kind::Read => open.ia.ep_post_rdma_read(ep, &to, cookie, &target, none),
        };
        self.cover.count("post a request", outcome(&answer));
        if answer.is_ok() {
            let end = &mut open.ends[at];
            end.next_request += 1;
            end.requests.push_back(Work {
                cookie,
                kind,
                slot,
                bytes,
            });
            if kind == Kind::Send {
                self.links[link].sent[own].push_back((cookie, bytes));
            }
        }
    }

    /// Where a request goes. An adapter that was opened again has other memory, and the keys of the old one are told
    /// to nobody but those who knew them: they are in the connection.
    fn target(
        &self,
        peer: usize,
        opening: u64,
        slot: usize,
        kind: Kind,
        pick: usize,
        bytes: usize,
    ) -> Option<RmrTriplet> {
        let other = &self.sides[peer];
        let open = other.open.as_ref().filter(|_| other.openings == opening)?;
        match kind {
            Kind::Send | Kind::Write => Some(remote(&open.written, slot, bytes)),
            Kind::Read => Some(remote(&open.offered, slot, bytes)),
            Kind::Attack => {
                let keys: Vec<(u64, u32)> = open.told().collect();
                let (address, context) = *keys.get(pick % keys.len().max(1))?;
                Some(RmrTriplet {
                    rmr_context: context,
                    target_address: address,
                    segment_length: bytes as u64,
                })
            }
        }
    }

    /// Asks for the end of a connection.
    pub fn disconnect(&mut self, side: usize, at: usize, flags: CloseFlags) {
        let answer = self.timed("disconnect", |world| {
            let open = world.sides[side].open.as_mut()?;
            let end = &mut open.ends[at];
            let (ep, Phase::Up | Phase::Pending) = (end.ep?, end.phase) else {
                return None;
            };
            Some(open.ia.ep_disconnect(ep, flags))
        });
        if let Some(answer) = answer {
            self.cover.count("disconnect", outcome(&answer));
        }
    }

    fn lend_or_free(&mut self, side: usize) {
        let free = self.random.random_bool(0.5);
        let full = self.sides[side]
            .open
            .as_ref()
            .is_some_and(|open| open.loose.len() >= MOST_LOOSE);
        if !free && !full {
            let answer = self.timed("lmr_create", |world| {
                world.sides[side].open.as_mut().map(crate::side::Open::lend)
            });
            if let Some(answer) = answer {
                self.cover.count("register", outcome(&answer));
            }
            return;
        }
        let answer = self.timed("lmr_free", |world| {
            let open = world.sides[side].open.as_mut()?;
            let lmr = open.loose.first()?.region.lmr.lmr;
            Some(open.ia.lmr_free(lmr))
        });
        let Some(answer) = answer else { return };
        self.cover.count("free memory", outcome(&answer));
        if answer.is_ok()
            && let Some(open) = &mut self.sides[side].open
        {
            let loose = open.loose.remove(0);
            open.remember(loose.told);
            self.watch(Freed::watch(loose.region.memory, side, "which was freed"));
        }
    }

    /// Frees an endpoint, in whatever state it is, and makes another.
    fn renew(&mut self, side: usize, at: usize) {
        self.events(side);
        let answer = self.timed("ep_free", |world| {
            let open = world.sides[side].open.as_mut()?;
            let ep = open.ends[at].ep?;
            Some(open.ia.ep_free(ep))
        });
        if let Some(answer) = &answer {
            self.cover.count("free an endpoint", outcome(answer));
        }
        let made = self.timed("ep_create", |world| {
            let open = world.sides[side].open.as_mut()?;
            if answer.is_some_and(|answer| answer.is_err()) {
                return None;
            }
            open.ends[at] = End::new(None);
            let made = open.make_ep();
            open.ends[at].ep = made.as_ref().ok().copied();
            Some(made)
        });
        if let Some(made) = made {
            self.cover.count("make an endpoint", outcome(&made));
        }
    }

    /// Closes an adapter. Nobody reaches its memory any more, whatever the device has said.
    pub fn close(&mut self, side: usize, flags: CloseFlags) {
        let Some(open) = self.sides[side].open.take() else {
            return;
        };
        let untouched = !self.sides[side].tampered && !open.dead;
        let (ia, memories) = open.memories();
        let answer = self.timed("close", |_| dat::ia_close(ia, flags));
        self.cover.count(
            "close",
            if answer.is_ok() {
                "done"
            } else {
                "with errors"
            },
        );
        if untouched {
            let report =
                answer.unwrap_or_else(|error| panic!("side {side} does not close: {error}"));
            assert_eq!(
                (report.pages_not_returned, report.objects_left.len()),
                (0, 0),
                "side {side}: {report:?}"
            );
            let said = self.sim.report(&self.sides[side].function);
            assert!(
                said.objects.is_empty() && said.pages_held == 0,
                "side {side} leaves {:?} and {} pages",
                said.objects,
                said.pages_held
            );
        }
        for memory in memories {
            self.watch(Freed::watch(memory, side, "which is closed"));
        }
    }

    /// Drops an adapter that is not closed.
    fn abandon(&mut self, side: usize) {
        let Some(open) = self.sides[side].open.take() else {
            return;
        };
        let (ia, memories) = open.memories();
        self.timed("drop", |_| drop(ia));
        self.cover.count("drop", "done");
        for memory in memories {
            self.watch(Freed::watch(memory, side, "which was dropped"));
        }
    }

    /// Opens an adapter again.
    pub fn reopen(&mut self, side: usize) {
        // Memory that somebody holds keeps its opening of the function.
        self.look();
        self.freed.retain(|freed| freed.side != side);
        let before = self.sides[side].tampered;
        let answer = self.timed("open", |world| world.sides[side].open(side));
        self.cover
            .count("open", if answer.is_ok() { "done" } else { "refused" });
        match answer {
            // The reset before it has ended what was put into the function, but for commands it met while it was opened.
            Ok(()) => self.sides[side].tampered = false,
            Err(error) => {
                assert!(before, "side {side} does not open: {error}");
            }
        }
    }

    /// Something that befalls the wire or a function.
    pub fn trouble(&mut self) {
        if !self.random.random_ratio(1, 8) {
            return;
        }
        let side = self.random.random_range(0..SIDES);
        let (draw, small) = (
            self.random.random_range(0..40),
            self.random.random_range(1..4),
        );
        let for_a_while = self.random.random_range(1..3_000_000_000_u64);
        let ppm = self.random.random_range(0..200_000);
        let faults = Faults {
            loss_ppm: ppm,
            duplicate_ppm: ppm,
            reorder_ppm: ppm,
            corrupt_ppm: ppm / 2,
            delay_ns: 2_000,
            jitter_ns: 50_000,
            reorder_ns: 400_000,
        };
        let gone = Faults {
            loss_ppm: 1_000_000,
            ..Faults::NONE
        };
        let until = Some(self.sim.clock().now().0 + for_a_while);
        match draw {
            0..=5 if self.has(Feature::Wire) => {
                self.cover.count("wire", "faulty");
                self.until = until;
                self.sim.set_faults(self.wire, LinkFaults::both(faults));
            }
            6..=7 if self.has(Feature::Partition) => {
                self.cover.count(
                    "partition",
                    if small == 1 { "both ways" } else { "one way" },
                );
                self.until = until;
                let faults = LinkFaults {
                    a_to_b: gone,
                    b_to_a: if small == 1 { gone } else { Faults::NONE },
                };
                self.sim.set_faults(self.wire, faults);
            }
            8..=9 if self.has(Feature::Flap) => {
                self.cover.count("cable", "pulled");
                self.until = until;
                self.sim
                    .inject(&self.cards[side / 2].physical(), &Fault::LinkDown);
            }
            10..=13 if self.has(Feature::Refused) => self.inject(
                side,
                "refused command",
                &Fault::CommandFailure {
                    opcode: None,
                    status: if small == 1 { 0x06 } else { 0x0f },
                    syndrome: 0,
                    count: small,
                },
            ),
            14 if self.has(Feature::Silent) => {
                let fault = Fault::CommandSilence {
                    opcode: None,
                    count: small,
                };
                self.inject(side, "silent command", &fault);
            }
            15..=17 if self.has(Feature::Late) => self.inject(
                side,
                "late command",
                &Fault::CommandDelay {
                    opcode: None,
                    delay: Duration::from_millis(u64::from(small) * 900),
                    count: small,
                },
            ),
            18..=20 if self.has(Feature::Pages) => {
                let pages = i32::try_from(small).unwrap_or(1) * 10 - 20;
                self.inject(side, "page request", &Fault::PageRequest { pages });
                self.inject(
                    side,
                    "page starvation",
                    &Fault::PageStarvation { pages: small },
                );
            }
            21 if self.has(Feature::Death) => {
                let (what, fault) = match small {
                    1 => ("health syndrome", Fault::HealthSyndrome(1)),
                    2 => ("firmware stops", Fault::HealthCounterStops),
                    _ => ("bus error", Fault::BusError),
                };
                self.inject(side, what, &fault);
            }
            22..=23 if self.has(Feature::Stall) => {
                let stall = Duration::from_millis(u64::from(small) * 1_000);
                self.inject(side, "health stall", &Fault::HealthCounterStalls(stall));
            }
            _ => {}
        }
    }

    fn inject(&mut self, side: usize, what: &'static str, fault: &Fault) {
        self.cover.count("fault", what);
        self.sides[side].tampered = true;
        self.sim.inject(&self.sides[side].function, fault);
    }
}
