//! Tests of neighbours that are parked and resumed.

use std::collections::BTreeSet;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::groups::query;
use super::peer::{Nd, O, REQUEST, S, arp, arp_announcement, arp_reply, echo, echo_reply};
use super::*;
use crate::NeighboursSnapshot;

/// Our possible addresses, their VLANs and gateways. Those of IPv4 and IPv6 share a number, by which frames choose
/// them.
const OURS_OF: [(&str, Option<u16>, Option<&str>); 8] = [
    ("10.0.0.1/24", None, None),
    ("10.0.0.7/24", None, Some("10.0.0.254")),
    ("10.0.5.1/24", Some(5), None),
    ("2001:db8::1/64", None, None),
    ("2001:db8::7/64", None, Some("fe80::9")),
    ("2001:db8:5::1/64", Some(5), None),
    ("fe80::1/64", None, None),
    ("fe80::5:1/64", Some(5), None),
];
const PEERS_V4: [&str; 6] = [
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.254",
    "10.0.5.2",
    "192.0.2.1",
];
const PEERS_V6: [&str; 6] = [
    "2001:db8::2",
    "2001:db8::3",
    "2001:db8:5::2",
    "2001:db8:9::1",
    "fe80::9",
    "fe80::ff:fe00:2",
];
/// Number of steps of a run.
const STEPS: usize = 400;

/// A call, and what it is made with.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Add(Address),
    Remove(IpAddr),
    AddStatic(IpAddr, Mac),
    RemoveStatic(IpAddr),
    Link(bool),
    Resolve(IpAddr, IpAddr, Need),
    Confirm(IpAddr, IpAddr),
    Echo(IpAddr, IpAddr, u16),
    Receive(Vec<u8>),
    Tick,
    NextFrame,
    NextEvent,
}

impl Call {
    /// Makes the call, and returns its answer.
    pub(super) fn make(&self, us: &mut Neighbours, now: Duration) -> String {
        match *self {
            Self::Add(address) => format!("{:?}", us.add(address, now)),
            Self::Remove(address) => format!("{:?}", us.remove(address, now)),
            Self::AddStatic(address, mac) => format!("{:?}", us.add_static(address, mac)),
            Self::RemoveStatic(address) => format!("{:?}", us.remove_static(address)),
            Self::Link(up) => format!("{:?}", us.link(up, now)),
            Self::Resolve(from, to, need) => format!("{:?}", us.resolve_for(from, to, need, now)),
            Self::Confirm(from, to) => format!("{:?}", us.confirm(from, to, now)),
            Self::Echo(from, to, number) => format!("{:?}", us.echo(from, to, number, now)),
            Self::Receive(ref frame) => format!("{:?}", us.received(frame, now)),
            Self::Tick => format!("{:?}", us.tick(now)),
            Self::NextFrame => format!("{:?}", next_frame(us)),
            Self::NextEvent => format!("{:?}", us.next_event()),
        }
    }
}

fn next_frame(us: &mut Neighbours) -> Option<Vec<u8>> {
    let mut out = [0xa5; crate::MOST_FRAME_BYTES];
    let bytes = us.next_frame(&mut out)?;
    Some(out[..bytes].to_vec())
}

/// Draws calls and times.
pub(super) struct World {
    pub(super) random: ChaCha8Rng,
    /// The body of our last echo request, with its source and destination.
    echoed: Option<(IpAddr, IpAddr, Vec<u8>)>,
    /// The address that the previous call has added.
    added: Option<IpAddr>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            echoed: None,
            added: None,
        }
    }

    /// Draws a configuration with limits that the calls reach.
    pub(super) fn config(&mut self) -> Config {
        let detections = [Detection::Never, Detection::Optimistic, Detection::First];
        Config {
            detection: self.pick(&detections),
            addresses: 6,
            neighbours: 6,
            frames: 12,
            events: 10,
            asks_per_second: 3,
            answers_per_second: 2,
            echoes_per_second: 1,
            ..Config::new(OURS, self.random.random())
        }
    }

    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.random).expect("not empty").clone()
    }

    fn wait(&mut self) -> Duration {
        let most = self.pick(&[0, 0, 0, 0, 300, 1_100, 1_100, 6_000, 60_000]);
        milliseconds(self.random.random_range(0..=most))
    }

    fn ours(&mut self) -> (Address, String) {
        let (text, vlan, gateway) = self.pick(&OURS_OF);
        let vlan = vlan.map(|id| Vlan { id, priority: 3 });
        let address = interface(text, vlan, gateway);
        (address, address.address.to_string())
    }

    /// Draws an address of ours and a peer of its family.
    fn ends(&mut self) -> (Address, String, &'static str) {
        let (ours, text) = self.ours();
        let peers = match ours.address {
            IpAddr::V4(_) => PEERS_V4,
            IpAddr::V6(_) => PEERS_V6,
        };
        (ours, text, self.pick(&peers))
    }

    pub(super) fn call(&mut self) -> Call {
        let (ours, _, peer) = self.ends();
        let (ours, peer) = (ours.address, ip(peer));
        // A request from an address under detection has to wait.
        if let Some(added) = self
            .added
            .take()
            .filter(|own| own.is_ipv4() == peer.is_ipv4())
        {
            return Call::Resolve(added, peer, Need::Own);
        }
        match self.random.random_range(0..100) {
            0..10 => {
                let added = self.ours().0;
                self.added = Some(added.address);
                Call::Add(added)
            }
            10..12 => Call::Remove(ours),
            12 => Call::AddStatic(peer, OTHER),
            13 => Call::RemoveStatic(peer),
            14 => Call::Link(false),
            15..19 => Call::Link(true),
            19..35 => {
                let need = self.pick(&[Need::Own, Need::Datagram, Need::Sender]);
                Call::Resolve(ours, peer, need)
            }
            35..39 => Call::Confirm(ours, peer),
            39..43 => Call::Echo(ours, peer, self.random.random_range(0..4)),
            43..77 => Call::Receive(self.frame()),
            77..80 => Call::Tick,
            80..94 => Call::NextFrame,
            _ => Call::NextEvent,
        }
    }

    fn frame(&mut self) -> Vec<u8> {
        let (ours, text, peer) = self.ends();
        let mac = self.pick(&[PEER, PEER, PEER, OTHER]);
        let what = self.random.random_range(0..20);
        let frame = match (ours.address, what) {
            (_, 0) => {
                let code = self.pick(&[0, 500, 0xffff]);
                query("::", code, "fe80::9", 1)
            }
            (_, 1..4) => match &self.echoed {
                Some((from, to, body)) => {
                    echo_reply((OURS, mac), &to.to_string(), &from.to_string(), body)
                }
                None => echo((OURS, mac), peer, &text, &[0; 40]),
            },
            (_, 4..6) => echo((OURS, mac), peer, &text, &[0; 40]),
            (IpAddr::V4(_), 6) => arp(ALL, REQUEST, (mac, "0.0.0.0"), ([0; 6], &text)),
            (IpAddr::V4(_), 7) => arp_announcement((mac, &text)),
            (IpAddr::V4(_), 8..10) => arp_announcement((mac, peer)),
            (IpAddr::V4(_), 10..13) => arp(ALL, REQUEST, (mac, peer), ([0; 6], &text)),
            (IpAddr::V4(_), _) => arp_reply((mac, peer), (OURS, &text)),
            (IpAddr::V6(_), 6) => Nd::detect(mac, &text).frame(),
            (IpAddr::V6(_), 7) => Nd::announce(mac, &text, O).frame(),
            (IpAddr::V6(_), 8..10) => Nd::announce(mac, peer, O).frame(),
            (IpAddr::V6(_), 10..13) => Nd::solicit(mac, peer, &text).frame(),
            (IpAddr::V6(_), _) => Nd::advertise(mac, peer, (OURS, &text), S | O).frame(),
        };
        match ours.vlan {
            Some(_) => [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat(),
            None => frame,
        }
    }

    /// Remembers an echo request of ours.
    pub(super) fn sent(&mut self, frame: &[u8]) {
        if let Said::EchoRequest {
            source,
            destination,
            body,
        } = Sent::read(frame).said
        {
            self.echoed = Some((source, destination, body));
        }
    }
}

/// Facts that were seen in the snapshots of the runs.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    fn see(&mut self, snapshot: &NeighboursSnapshot) {
        let mut note = |what: String| {
            self.0.insert(what);
        };
        for one in &snapshot.addresses {
            note(format!("{:?}", one.claim));
            if one.defended.is_some() {
                note("defended".to_owned());
            }
        }
        for one in &snapshot.neighbours {
            note(format!("{:?}", one.state));
            let waits = one.state.is_asking() && one.due.is_none();
            let overdue = one.due.is_some_and(|due| due < snapshot.parked);
            let facts = [
                (waits, "waits for an address"),
                (overdue, "overdue"),
                (one.suspect, "suspect"),
                (one.stranger, "stranger"),
                (one.tries > 1, "asked twice"),
            ];
            for (is, what) in facts {
                if is {
                    note(what.to_owned());
                }
            }
        }
        for event in &snapshot.events {
            let text = format!("{event:?}");
            note(text.split(' ').next().expect("a name").to_owned());
        }
        for one in &snapshot.memberships {
            for change in &one.changes {
                note(format!("joined: {}", change.joined));
            }
            if one.answer_due.is_some() {
                note("query".to_owned());
            }
        }
        let BudgetsSpent(spent) = BudgetsSpent::of(snapshot);
        let facts = [
            (!snapshot.up, "down"),
            (!snapshot.frames.is_empty(), "frames"),
            (!snapshot.statics.is_empty(), "statics"),
            (snapshot.echo.is_some(), "echo"),
            (spent[0], "requests used up"),
            (spent[1], "requests to strangers used up"),
            (spent[2], "replies used up"),
            (spent[3], "echo replies used up"),
        ];
        for (is, what) in facts {
            if is {
                note(what.to_owned());
            }
        }
    }
}

/// True for each budget that is partly used up.
struct BudgetsSpent([bool; 4]);

impl BudgetsSpent {
    fn of(snapshot: &NeighboursSnapshot) -> Self {
        let budgets = snapshot.budgets;
        let times = [
            budgets.asks,
            budgets.asks_of_strangers,
            budgets.answers,
            budgets.echoes,
        ];
        Self(times.map(|time| time > snapshot.parked))
    }
}

/// Two tables get the same calls at the same times. One of them goes through a snapshot at every step.
struct Twins {
    straight: Neighbours,
    parked: Neighbours,
    config: Config,
    now: Duration,
}

impl Twins {
    fn new(config: Config) -> Self {
        let now = seconds(1_000);
        Self {
            straight: Neighbours::new(config, now),
            parked: Neighbours::new(config, now),
            config,
            now,
        }
    }

    fn call(&mut self, call: &Call, world: &mut World) {
        if matches!(call, Call::NextFrame) {
            let frame = next_frame(&mut self.straight);
            assert_eq!(next_frame(&mut self.parked), frame);
            if let Some(frame) = frame {
                world.sent(&frame);
            }
            return;
        }
        let answer = call.make(&mut self.straight, self.now);
        assert_eq!(call.make(&mut self.parked, self.now), answer, "{call:?}");
    }

    /// Parks one table, and resumes it after a while.
    fn swap(&mut self, gap: Duration, seen: &mut Seen) {
        let snapshot = self.parked.park();
        seen.see(&snapshot);
        self.now += gap;
        let resumed = Neighbours::resume(&snapshot, self.config, self.now);
        self.parked = resumed.unwrap_or_else(|error| panic!("{error}: {snapshot:#?}"));
        let again = NeighboursSnapshot {
            parked: snapshot.parked,
            ..self.parked.park()
        };
        assert_eq!(again, snapshot);
    }

    fn compare(&self) {
        let (straight, parked) = (&self.straight, &self.parked);
        let expected = NeighboursSnapshot {
            parked: self.now,
            ..straight.park()
        };
        let found = NeighboursSnapshot {
            parked: self.now,
            ..parked.park()
        };
        assert_eq!(found, expected);
        assert_eq!(parked.counters(), straight.counters());
        assert!(parked.addresses().eq(straight.addresses()));
        assert!(parked.groups().eq(straight.groups()));
        // The time of a table that was not parked may be that of a timer that is no longer set.
        if let Some(due) = parked.due() {
            assert!(straight.due().is_some_and(|early| early <= due));
        }
    }
}

/// A table that is parked and resumed after every call gives the same answers, frames and events as one that is not,
/// and its snapshots are the same. Times pass before and after the resumption.
#[test]
fn a_table_that_is_parked_at_every_step_behaves_as_one_that_is_not() {
    let mut seen = Seen::default();
    for seed in 0..96 {
        let mut world = World::new(seed);
        let mut twins = Twins::new(world.config());
        for _ in 0..STEPS {
            let call = world.call();
            twins.call(&call, &mut world);
            let gap = world.wait();
            twins.swap(gap, &mut seen);
            twins.compare();
            // A caller may be late.
            let end = twins.now + world.wait();
            while let Some(due) = twins.straight.due().filter(|&due| due <= end)
                && world.random.random_ratio(7, 8)
            {
                twins.now = twins.now.max(due);
                twins.call(&Call::Tick, &mut world);
                twins.swap(Duration::ZERO, &mut seen);
                twins.compare();
            }
            twins.now = end;
        }
        twins.call(&Call::Tick, &mut world);
        let (straight, parked) = (twins.straight.park(), twins.parked.park());
        assert_eq!(format!("{parked:?}"), format!("{straight:?}"));
    }
    let expected = [
        "Announced",
        "Delay",
        "Duplicate",
        "Echoed",
        "Incomplete",
        "Moved",
        "Optimistic",
        "Preferred",
        "Probe",
        "Reachable",
        "Resolved",
        "Stale",
        "Tentative",
        "Unreachable",
        "asked twice",
        "defended",
        "down",
        "echo",
        "echo replies used up",
        "frames",
        "joined: false",
        "joined: true",
        "overdue",
        "query",
        "replies used up",
        "requests to strangers used up",
        "requests used up",
        "statics",
        "stranger",
        "suspect",
        "waits for an address",
    ];
    assert_eq!(seen.0, expected.map(str::to_owned).into());
}

/// Nothing is sent by the resumption: no detection, no announcement. The answer that came meanwhile is passed in before
/// the overdue timer runs, and the neighbour is found.
#[test]
fn an_answer_that_came_meanwhile_counts_before_the_overdue_timer() {
    for answered in [true, false] {
        let mut us = Us::settled();
        us.resolve(OUR_V4, PEER_V4);
        us.pass(milliseconds(2_500));
        assert_eq!(us.sent().len(), 3);
        let snapshot = us.us.park();
        us.now += seconds(60);
        us.us = Neighbours::resume(&snapshot, us.us.config, us.now).expect("a sound snapshot");
        assert_eq!((us.sent(), us.events()), (vec![], vec![]));
        assert_eq!(us.us.due(), Some(snapshot.parked + seconds(1)));
        if answered {
            us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
        }
        us.pass(Duration::ZERO);
        let state = if answered {
            State::Reachable
        } else {
            State::Unreachable
        };
        assert_eq!(us.state(PEER_V4), state);
        assert_eq!(us.sent(), []);
    }
}

/// With the seed of the parked table, the next random numbers are those that it would have drawn; with another seed,
/// they are others.
#[test]
fn the_seed_decides_whether_random_numbers_go_on() {
    let mut us = Us::settled();
    us.us.add_static(ip(PEER_V4), PEER).expect("an address");
    let snapshot = us.us.park();
    assert!(snapshot.random_words > 0, "the announcements drew some");
    let mut identifier = |seed| {
        let config = Config {
            seed,
            ..us.us.config
        };
        us.us = Neighbours::resume(&snapshot, config, us.now).expect("a sound snapshot");
        us.us.echo(ip(OUR_V4), ip(PEER_V4), 1, us.now);
        us.us.park().echo.expect("outstanding").identifier
    };
    let (same, other) = (identifier(7), identifier(8));
    let mut straight = Us::settled();
    straight
        .us
        .add_static(ip(PEER_V4), PEER)
        .expect("an address");
    straight.us.echo(ip(OUR_V4), ip(PEER_V4), 1, straight.now);
    let expected = straight.us.park().echo.expect("outstanding").identifier;
    assert_eq!(same, expected);
    assert_ne!(other, expected);
}

/// Limits are the configuration's. Lower ones refuse what the parked table had.
#[test]
fn a_configuration_with_less_room_refuses_the_snapshot() {
    let mut us = Us::settled();
    us.resolve(OUR_V4, PEER_V4);
    us.resolve(OUR_V4, "10.0.0.3");
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    let snapshot = us.us.park();
    let config = us.us.config;
    let resumed = |config| Neighbours::resume(&snapshot, config, us.now).map(drop);
    assert_eq!(resumed(config), Ok(()));
    let refused = |config| resumed(config).expect_err("refused").to_string();
    assert_eq!(
        refused(Config {
            neighbours: 1,
            ..config
        }),
        "2 neighbours, and there is room for 1"
    );
    assert_eq!(
        refused(Config {
            addresses: 2,
            ..config
        }),
        "3 addresses, and there is room for 2"
    );
    assert_eq!(
        refused(Config {
            frames: 1,
            ..config
        }),
        "2 frames, and there is room for 1"
    );
    assert_eq!(
        refused(Config {
            events: 0,
            ..config
        }),
        "1 events, and there is room for 0"
    );
    let soon = Config {
        reachable: seconds(1),
        ..config
    };
    assert_eq!(resumed(soon), Ok(()), "the wait is shortened");
}

/// A request that waits for an address to pass detection is sent at once if the next process makes no detection and has
/// an address.
#[test]
fn a_request_that_waited_for_an_address_is_due_when_one_is_usable() {
    let mut us = Us::bare(Detection::Optimistic);
    us.add("2001:db8::1/64");
    us.pass(milliseconds(1));
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Pending);
    us.sent();
    let mut snapshot = us.us.park();
    assert_eq!(snapshot.neighbours[0].due, None);
    let mut other = snapshot.addresses[0];
    other.address.address = ip("2001:db8::7");
    other.claim = crate::Claim::Preferred;
    (other.left, other.due) = (0, None);
    snapshot.addresses.push(other);
    us.us = Neighbours::resume(&snapshot, us.us.config, us.now).expect("a sound snapshot");
    us.pass(Duration::ZERO);
    let asked =
        |said: &Said| matches!(said, Said::Solicit { target, .. } if ip(PEER_V6) == *target);
    assert!(us.said().iter().any(asked));
}
