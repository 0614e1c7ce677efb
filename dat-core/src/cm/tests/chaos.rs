//! Many connections over a wire that loses, repeats and reorders datagrams.
//!
//! The consumers behave correctly. They accept or reject each request, sometimes late; they use each reply; and either
//! side or both disconnect some of the established connections. Safety is checked at every event: each outcome is
//! reported once, and fits the earlier events. Then the wire stops failing, all connections are released, and no state
//! may be left.

use std::collections::HashMap;

use super::*;

/// State of a connection as the consumer at one end knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Connecting,
    Replied,
    Requested,
    Accepted,
    Rejected,
    Connected,
    Disconnecting,
    Over,
}

struct World {
    pair: Pair,
    seed: u64,
    choices: Random,
    known: HashMap<(bool, ConnId), Known>,
    connected: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut pair = Pair::listening();
        let mut choices = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        pair.random = Random(choices.next() | 1);
        pair.faults = Faults {
            lose: [0, 10, 30, 60][usize::from(choices.next().to_be_bytes()[3] & 3)],
            repeat: [0, 20, 50, 90][usize::from(choices.next().to_be_bytes()[3] & 3)],
            delay: [0, MILLISECOND, SECOND, 5 * SECOND]
                [usize::from(choices.next().to_be_bytes()[3] & 3)],
        };
        Self {
            pair,
            seed,
            choices,
            known: HashMap::new(),
            connected: 0,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.choices.below(100) < percent
    }

    fn connect(&mut self, number: u32) {
        let timeout = self.chance(20).then_some(2 * SECOND);
        let random = self.choices.next();
        let conn = self.pair.connect(ConnectParams {
            qpn: Qpn::new(0x100 + number),
            timeout,
            random,
            ..connect_params()
        });
        self.known.insert((true, conn), Known::Connecting);
    }

    /// Lets both consumers react to their events.
    fn consume(&mut self) {
        for end in [A, B] {
            for event in self.pair.take(end) {
                self.check(end, &event);
            }
        }
        let mut names: Vec<_> = self
            .known
            .iter()
            .map(|(&name, &known)| (name, known))
            .collect();
        names.sort_by_key(|&(name, _)| name);
        for ((at_a, conn), known) in names {
            let end = if at_a { A } else { B };
            self.act(end, conn, known);
        }
    }

    fn check(&mut self, end: End, event: &CmEvent) {
        let name = (end == A, event.conn());
        let old = self.known.get(&name).copied();
        let (fits, new) = match event {
            CmEvent::Request { .. } => (old.is_none(), Known::Requested),
            CmEvent::Reply { .. } => (old == Some(Known::Connecting), Known::Replied),
            CmEvent::Established { .. } => {
                self.connected += 1;
                (old == Some(Known::Accepted), Known::Connected)
            }
            CmEvent::Rejected { .. } | CmEvent::TimedOut { .. } => (
                matches!(old, Some(Known::Connecting | Known::Replied)),
                Known::Over,
            ),
            CmEvent::Unreachable { .. } => (old == Some(Known::Connecting), Known::Over),
            CmEvent::AcceptFailed { .. } => (old == Some(Known::Accepted), Known::Over),
            CmEvent::Disconnected { .. } => (old == Some(Known::Connected), Known::Over),
            CmEvent::DisconnectDone { .. } => (old == Some(Known::Disconnecting), Known::Over),
        };
        assert!(
            fits,
            "seed {}: {end:?} knew {old:?} and was told {event:?}",
            self.seed
        );
        self.known.insert(name, new);
    }

    fn act(&mut self, end: End, conn: ConnId, known: Known) {
        let now = self.pair.now;
        let new = match known {
            Known::Requested if self.chance(20) => {
                self.pair
                    .b
                    .reject(now, conn, RejectReason::Consumer)
                    .expect("a request");
                Known::Rejected
            }
            Known::Requested if self.chance(30) => {
                let qpn = 0x200 + u32::try_from(self.known.len()).expect("few connections");
                self.pair
                    .b
                    .accept(
                        now,
                        conn,
                        AcceptParams {
                            qpn: Qpn::new(qpn),
                            ..accept_params()
                        },
                    )
                    .expect("a request");
                Known::Accepted
            }
            Known::Replied => {
                // `ready` fails if the peer has refused meanwhile or the time is over. The event that reports this
                // follows.
                match self.pair.a.ready(now, conn) {
                    Ok(()) => Known::Connected,
                    Err(_) => Known::Replied,
                }
            }
            Known::Connected if self.chance(5) => match self.pair.cm(end).disconnect(now, conn) {
                Ok(()) => Known::Disconnecting,
                Err(_) => Known::Connected,
            },
            Known::Requested
            | Known::Connected
            | Known::Connecting
            | Known::Accepted
            | Known::Rejected
            | Known::Disconnecting
            | Known::Over => known,
        };
        self.known.insert((end == A, conn), new);
    }

    fn run(&mut self, limit: Nanos) {
        let end = self.pair.now + limit;
        while self.pair.now < end {
            let events = |pair: &Pair| !pair.a_events.is_empty() || !pair.b_events.is_empty();
            self.pair.run_until(100 * MILLISECOND, events);
            self.consume();
        }
    }
}

fn run(seed: u64) -> World {
    run_parking(seed, Parking::Never)
}

fn run_parking(seed: u64, parking: Parking) -> World {
    let mut world = World::new(seed);
    world.pair.parking = parking;
    for number in 0..20 {
        world.connect(number);
        world.run(50 * MILLISECOND);
    }
    world.run(60 * SECOND);
    world.pair.faults = Faults::default();
    world.run(600 * SECOND);
    world
}

#[test]
fn every_attempt_has_one_outcome_whatever_the_wire_does() {
    let mut connected = 0;
    for seed in 0..48 {
        let world = run(seed);
        connected += world.connected;
        for (name, known) in &world.known {
            let settled = matches!(known, Known::Over | Known::Rejected | Known::Connected);
            assert!(settled, "seed {seed}: {name:?} is left {known:?}");
        }
    }
    assert!(
        connected > 100,
        "only {connected} connections came about: this tests little"
    );
}

#[test]
fn nothing_is_left_of_connections_that_were_released() {
    for seed in 100..116 {
        let World {
            mut pair, known, ..
        } = run(seed);
        for &(at_a, conn) in known.keys() {
            let (end, now) = (if at_a { A } else { B }, pair.now);
            pair.cm(end).release(now, conn);
        }
        pair.run_to_the_end();
        assert_eq!(
            (pair.a.connections(), pair.b.connections()),
            (0, 0),
            "seed {seed}"
        );
        assert_eq!(
            (pair.take(A), pair.take(B)),
            (vec![], vec![]),
            "seed {seed}"
        );
        for cm in [&pair.a, &pair.b] {
            assert!(
                cm.by_local.is_empty() && cm.by_remote.is_empty() && cm.by_remote_qp.is_empty(),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn same_seed_gives_the_same_datagrams() {
    let (first, second) = (run(7), run(7));
    assert!(first.pair.sent.len() > 100);
    assert_eq!(first.pair.sent, second.pair.sent);
}

/// All that the consumers, the wire and an observer have seen of a run.
#[derive(Debug, PartialEq)]
struct Seen {
    sent: Vec<(End, Message)>,
    known: Vec<((bool, ConnId), Known)>,
    ends: [CmSnapshot; 2],
}

fn seen(world: World) -> Seen {
    let mut known: Vec<_> = world.known.into_iter().collect();
    known.sort_by_key(|&(name, _)| name);
    let Pair {
        a, b, now, sent, ..
    } = world.pair;
    let ends = [a.park(now), b.park(now)];
    Seen { sent, known, ends }
}

#[test]
fn a_run_in_which_both_ends_are_parked_and_resumed_is_the_same_as_without() {
    for seed in 0..12 {
        let without = seen(run(seed));
        assert!(without.sent.len() > 50, "seed {seed}: this tests little");
        let steps = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for parking in [Parking::Always, Parking::Sometimes(steps)] {
            let with = seen(run_parking(seed, parking.clone()));
            assert_eq!(without, with, "seed {seed}, {parking:?}");
        }
    }
}
