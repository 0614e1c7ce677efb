//! Test harness: two connection managers, a wire between them with faults on demand, and a clock.

mod chaos;
mod endings;
mod establishing;
mod hostile;
mod numbers;
mod parking;
mod refusals;
mod strangers;

use super::wire::{Mad, Message};
use super::*;
use crate::provider::{Path, Psn};

const SERVICE: u64 = 0x1000_0000_0000_0042;
const MILLISECOND: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;
/// Time that a datagram takes on the wire, in nanoseconds, unless a test changes it.
const LATENCY: Nanos = 10_000;

/// The two ends: `A` connects and `B` listens, unless a test says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    A,
    B,
}
use End::{A, B};

impl End {
    fn other(self) -> Self {
        match self {
            A => B,
            B => A,
        }
    }

    fn gid(self) -> [u8; 16] {
        let last = match self {
            A => 1,
            B => 2,
        };
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
    }

    fn path_to(peer: Self) -> Path {
        Path {
            source_gid_index: 0,
            gid: peer.gid(),
            hop_limit: 64,
            traffic_class: 0x20,
            flow_label: 0x1_2345,
            priority: 0,
        }
    }

    fn address(self) -> MadAddress {
        MadAddress {
            path: Self::path_to(self),
            qpn: Qpn::GSI,
        }
    }
}

/// Random numbers for the wire and for the connection managers (xorshift).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Probabilities of loss and of duplication of a datagram, in percent, and its maximum additional delay, in
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lose: u64,
    repeat: u64,
    delay: Nanos,
}

/// A datagram in flight.
#[derive(Clone, Debug)]
struct Flight {
    at: Nanos,
    to: End,
    mad: Mad,
}

/// Steps at which the connection managers are parked and resumed.
#[derive(Clone, Debug)]
enum Parking {
    Never,
    /// At one step in eight.
    Sometimes(Random),
    Always,
}

/// Decides about each datagram before it is sent: true delivers the datagram, false loses it.
type Filter = Box<dyn FnMut(End, &Message) -> bool>;

struct Pair {
    a: Cm,
    b: Cm,
    now: Nanos,
    random: Random,
    faults: Faults,
    filter: Filter,
    parking: Parking,
    flights: Vec<Flight>,
    /// Events that the test has not taken yet.
    a_events: Vec<CmEvent>,
    b_events: Vec<CmEvent>,
    /// All datagrams that were sent, including lost ones.
    sent: Vec<(End, Message)>,
}

fn config(end: End) -> Config {
    let local_ca_guid = match end {
        A => 0xaaaa_0000_0000_0001,
        B => 0xbbbb_0000_0000_0002,
    };
    Config {
        local_ca_guid,
        ..Config::default()
    }
}

fn connect_params() -> ConnectParams<'static> {
    ConnectParams {
        service_id: SERVICE,
        source: A.gid(),
        path: End::path_to(B),
        qpn: Qpn::new(0x00_0a0a),
        psn: Psn::masked(0xaa_aaaa),
        reads_out: 4,
        reads_in: 8,
        mtu: 3,
        retry_count: 7,
        rnr_retry: 6,
        ack_timeout: 14,
        private_data: b"may I?",
        timeout: None,
        srq: false,
        random: 0x1234_5678_9abc_def0,
    }
}

fn accept_params() -> AcceptParams<'static> {
    AcceptParams {
        qpn: Qpn::new(0x00_0b0b),
        psn: Psn::masked(0xbb_bbbb),
        reads_out: 2,
        reads_in: 3,
        rnr_retry: 5,
        srq: true,
        private_data: b"you may",
    }
}

impl Pair {
    fn new() -> Self {
        Self {
            a: Cm::new(config(A)),
            b: Cm::new(config(B)),
            now: 1_000 * SECOND,
            random: Random(0x9e37_79b9_7f4a_7c15),
            faults: Faults::default(),
            filter: Box::new(|_, _| true),
            parking: Parking::Never,
            flights: Vec::new(),
            a_events: Vec::new(),
            b_events: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn cm(&mut self, end: End) -> &mut Cm {
        match end {
            A => &mut self.a,
            B => &mut self.b,
        }
    }

    fn listening() -> Self {
        let mut pair = Self::new();
        pair.b.listen(SERVICE).expect("nobody else listens");
        pair
    }

    /// Returns a pair in which A has sent its request, and B's consumer has got the event.
    fn requested() -> (Self, ConnId, ConnId) {
        let mut pair = Self::listening();
        let a = pair.connect(connect_params());
        pair.run_for(LATENCY);
        let [CmEvent::Request { conn: b, .. }] = pair.take(B)[..] else {
            panic!("one request")
        };
        (pair, a, b)
    }

    /// Returns a pair in which B has accepted, and A's consumer has got the event.
    fn replied() -> (Self, ConnId, ConnId) {
        let (mut pair, a, b) = Self::requested();
        pair.b
            .accept(pair.now, b, accept_params())
            .expect("a request");
        pair.run_for(LATENCY);
        let [CmEvent::Reply { conn, .. }] = pair.take(A)[..] else {
            panic!("one reply")
        };
        assert_eq!(conn, a);
        (pair, a, b)
    }

    fn established() -> (Self, ConnId, ConnId) {
        let (mut pair, a, b) = Self::replied();
        pair.a.ready(pair.now, a).expect("a reply");
        pair.run_for(LATENCY);
        assert_eq!(pair.take(B), [CmEvent::Established { conn: b }]);
        assert_eq!(pair.take(A), []);
        (pair, a, b)
    }

    fn connect(&mut self, params: ConnectParams<'_>) -> ConnId {
        self.a.connect(self.now, params).expect("sound parameters")
    }

    fn take(&mut self, end: End) -> Vec<CmEvent> {
        match end {
            A => std::mem::take(&mut self.a_events),
            B => std::mem::take(&mut self.b_events),
        }
    }

    /// Loses every datagram for which `keep` is false, from now on.
    fn keep(&mut self, keep: impl FnMut(End, &Message) -> bool + 'static) {
        self.filter = Box::new(keep);
    }

    fn lose_nothing(&mut self) {
        self.keep(|_, _| true);
    }

    /// Returns the number of datagrams sent by `end` for which `what` is true.
    fn count(&self, end: End, what: impl Fn(&Message) -> bool) -> usize {
        self.sent
            .iter()
            .filter(|(from, message)| *from == end && what(message))
            .count()
    }

    /// Moves outgoing datagrams onto the wire, and events into the event lists.
    fn drain(&mut self) {
        self.park_if_due();
        for end in [A, B] {
            while let Some((to, mad)) = self.cm(end).poll_transmit() {
                assert_eq!(to, end.other().address(), "datagrams go to the peer");
                let (_, message) = Message::parse(&mad).expect("we send what we can read");
                let keep = (self.filter)(end, &message);
                self.sent.push((end, message));
                if keep {
                    self.fly(end.other(), mad);
                }
            }
            while let Some(event) = self.cm(end).poll_event() {
                match end {
                    A => self.a_events.push(event),
                    B => self.b_events.push(event),
                }
            }
        }
    }

    /// Parks and resumes both connection managers if this step is one at which they are.
    fn park_if_due(&mut self) {
        let is_due = match &mut self.parking {
            Parking::Never => false,
            Parking::Sometimes(random) => random.below(8) == 0,
            Parking::Always => true,
        };
        if is_due {
            self.a = parking::resumed(&self.a, self.now);
            self.b = parking::resumed(&self.b, self.now);
        }
    }

    fn fly(&mut self, to: End, mad: Mad) {
        if self.random.below(100) < self.faults.lose {
            return;
        }
        let copies = if self.random.below(100) < self.faults.repeat {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay = self.random.below(self.faults.delay.max(1));
            self.flights.push(Flight {
                at: self.now + LATENCY + delay,
                to,
                mad,
            });
        }
    }

    /// Returns the time at which the next datagram arrives or the next timer expires.
    fn next_time(&self) -> Option<Nanos> {
        let flights = self.flights.iter().map(|flight| flight.at);
        flights
            .chain(self.a.next_timeout())
            .chain(self.b.next_timeout())
            .min()
    }

    /// Does the work that is due: delivers one datagram, or runs the timers if no datagram is due.
    fn tick(&mut self) {
        let due = self
            .flights
            .iter()
            .enumerate()
            .filter(|(_, flight)| flight.at <= self.now);
        if let Some((index, _)) = due.min_by_key(|(_, flight)| flight.at) {
            let Flight { to, mad, .. } = self.flights.remove(index);
            let (now, random, from) = (self.now, self.random.next(), to.other().address());
            self.cm(to).handle_mad(now, &from, &mad, random);
        } else {
            self.a.handle_timeout(self.now);
            self.b.handle_timeout(self.now);
        }
        self.drain();
    }

    /// Advances the clock until `until` holds or nothing more is scheduled, by at most `limit`. Returns whether `until`
    /// holds.
    fn run_until(&mut self, limit: Nanos, until: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        self.drain();
        while !until(self) {
            match self.next_time() {
                Some(at) if at <= end => {
                    self.now = self.now.max(at);
                    self.tick();
                }
                Some(_) | None => {
                    self.now = end;
                    return false;
                }
            }
        }
        true
    }

    /// Advances the clock by `time`.
    fn run_for(&mut self, time: Nanos) {
        self.run_until(time, |_| false);
    }

    /// Advances the clock until neither connection manager has anything left to do.
    fn run_to_the_end(&mut self) {
        self.drain();
        for _ in 0..100_000 {
            let Some(at) = self.next_time() else { return };
            self.now = self.now.max(at);
            self.tick();
        }
        panic!("it never ends: {:?} {:?}", self.a, self.b);
    }
}

fn is_req(message: &Message) -> bool {
    matches!(message, Message::Req(_))
}

fn is_rep(message: &Message) -> bool {
    matches!(message, Message::Rep(_))
}

fn is_rtu(message: &Message) -> bool {
    matches!(message, Message::Rtu(_))
}

fn is_mra(message: &Message) -> bool {
    matches!(message, Message::Mra(_))
}

fn is_rej(message: &Message) -> bool {
    matches!(message, Message::Rej(_))
}

fn is_dreq(message: &Message) -> bool {
    matches!(message, Message::Dreq(_))
}

fn is_drep(message: &Message) -> bool {
    matches!(message, Message::Drep(_))
}
