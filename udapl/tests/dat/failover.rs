//! Failover between two functions on two paths, as described in docs/network.md.
//!
//! The program numbers its messages and keeps each message until its Send has succeeded. A message whose Send failed or
//! was flushed may have arrived nevertheless. The program sends this message again on the other path, and the receiver
//! drops duplicates.

use std::collections::VecDeque;

use hw_sim::Fault;
use udapl::{ConnectionEventKind as Kind, DtoStatus, Event};

use crate::support::{A, B, Buffer, NONE, Pair};

const MESSAGES: u64 = 200;
const IN_FLIGHT: usize = 8;

/// One path: an adapter at each side, and a buffer for each message in flight.
struct Path {
    pair: Pair,
    from: Buffer,
    to: Buffer,
    ended: bool,
}

impl Path {
    fn new() -> Self {
        let mut pair = Pair::connected();
        let (from, to) = (pair.buffer(A, IN_FLIGHT * 8), pair.buffer(B, IN_FLIGHT * 8));
        let mut path = Self {
            pair,
            from,
            to,
            ended: false,
        };
        (0..IN_FLIGHT).for_each(|slot| path.receive(slot));
        path
    }

    fn receive(&mut self, slot: usize) {
        let place = [self.to.part(slot * 8, 8)];
        let posted = self.pair.post_recv(B, &place, slot as u64, NONE);
        posted.expect("there is room");
    }

    fn send(&mut self, number: u64) {
        let slot = usize::try_from(number).expect("small") % IN_FLIGHT;
        self.from.write(slot * 8, &number.to_be_bytes());
        let place = [self.from.part(slot * 8, 8)];
        let posted = self.pair.post_send(A, &place, number, NONE);
        posted.expect("there is room");
    }

    /// Dequeues the completions of A's Sends. Returns the numbers of the messages whose Sends have succeeded.
    fn sent(&mut self) -> Vec<u64> {
        let evd = self.pair.sides[A].request;
        let mut sent = Vec::new();
        while let Ok(Some(Event::Dto(done))) = self.pair.sides[A].ia.evd_dequeue(evd) {
            if done.status == DtoStatus::Success {
                sent.push(done.cookie.0);
            }
        }
        sent
    }

    /// Dequeues the messages that have arrived at B, and posts their receives again. Returns their numbers, oldest
    /// first.
    fn arrived(&mut self) -> Vec<u64> {
        let evd = self.pair.sides[B].recv;
        let mut arrived = Vec::new();
        while let Ok(Some(Event::Dto(done))) = self.pair.sides[B].ia.evd_dequeue(evd) {
            if done.status == DtoStatus::Success {
                let slot = usize::try_from(done.cookie.0).expect("a slot");
                let bytes = self.to.read(slot * 8, 8);
                arrived.push(u64::from_be_bytes(bytes.try_into().expect("eight")));
                self.receive(slot);
            }
        }
        arrived
    }

    /// Dequeues one connection event of A. Returns true if the event reports a broken connection.
    fn has_broken(&mut self) -> bool {
        let evd = self.pair.sides[A].connect;
        let event = self.pair.sides[A].ia.evd_dequeue(evd);
        matches!(event, Ok(Some(Event::Connection(event))) if event.kind == Kind::Broken)
    }
}

/// Sends messages on the first path, which `end` breaks after 50 messages, and then on the second path. Checks that all
/// messages arrive in order.
fn fail_over(end: impl Fn(&mut Pair)) {
    let mut paths = [Path::new(), Path::new()];
    let (mut used, mut kept, mut next) = (0, VecDeque::new(), 0);
    let mut received = Vec::new();
    for turn in 0_u32.. {
        assert!(turn < 1_000_000, "{received:?}");
        for path in &mut paths {
            path.pair.pump();
            for number in path.arrived() {
                // A duplicate is dropped.
                if number == received.len() as u64 {
                    received.push(number);
                }
            }
        }
        let sent = paths[used].sent();
        kept.retain(|number| !sent.contains(number));
        if used == 0 && paths[0].has_broken() {
            used = 1;
            kept.iter().for_each(|number| paths[1].send(*number));
        }
        while next < MESSAGES
            && kept
                .front()
                .is_none_or(|oldest| next < oldest + IN_FLIGHT as u64)
        {
            paths[used].send(next);
            kept.push_back(next);
            next += 1;
        }
        if received.len() >= 50 && !paths[0].ended {
            paths[0].ended = true;
            end(&mut paths[0].pair);
        }
        if kept.is_empty() && next == MESSAGES {
            break;
        }
    }
    assert_eq!(used, 1, "the first path is over");
    assert_eq!(received, (0..MESSAGES).collect::<Vec<u64>>());
}

#[test]
fn messages_go_on_over_the_second_function_when_the_first_is_removed() {
    fail_over(|pair| {
        pair.fabric
            .sim
            .inject(&pair.fabric.function(A), &Fault::SurpriseRemoval)
    });
}

#[test]
fn messages_go_on_over_the_second_function_when_the_peers_first_dies() {
    fail_over(|pair| {
        pair.fabric
            .sim
            .inject(&pair.fabric.function(B), &Fault::HealthSyndrome(1))
    });
}

#[test]
fn messages_go_on_over_the_second_function_when_the_first_link_is_cut() {
    fail_over(Pair::cut);
}
