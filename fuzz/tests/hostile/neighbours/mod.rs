//! Hostile frames and arbitrary events against the neighbour module.
//!
//! Two stations share one link. A frame that one station sends may reach the other late, changed, or not at all, and
//! forged frames arrive as well. One harness runs each sequence of events twice from one seed and compares the runs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::honest::Longest;
use bolero::{TypeGenerator, check};
use neighbour::{
    Address, Config, Detection, Event, MOST_FRAME_BYTES, Mac, Neighbours, Resolution, Vlan,
};

const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const STATIC: Mac = [2, 0, 0, 0, 0, 9];
const HONEST: Mac = [2, 0, 0, 0, 0, 3];
/// Numbers of the addresses with a static entry, which is never overwritten.
const FIXED: [u8; 2] = [40, 41];
const NEIGHBOURS: usize = 8;
const FRAMES: usize = 16;
const EVENTS: usize = 16;

/// Returns the address with this number: IPv4, global IPv6, or link-local IPv6 with an EUI-64.
fn address(number: u8) -> IpAddr {
    let last = number % 48;
    match number % 3 {
        0 => Ipv4Addr::new(10, 0, 0, last).into(),
        1 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into(),
        _ => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, last.into()).into(),
    }
}

/// Returns an address that only the honest neighbour has, of the same family as the address with this number.
fn honest_address(number: u8) -> IpAddr {
    match address(number) {
        IpAddr::V4(_) => Ipv4Addr::new(10, 0, 0, 99).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 99).into(),
    }
}

/// Returns the VLAN for a number; three numbers in four have none.
fn vlan(number: u8) -> Option<Vlan> {
    number
        .is_multiple_of(4)
        .then_some(Vlan { id: 5, priority: 3 })
}

/// One event of the test.
#[derive(Clone, Debug, TypeGenerator)]
enum Action {
    Add {
        at: bool,
        number: u8,
        vlan: u8,
        gateway: Option<u8>,
    },
    Remove {
        at: bool,
        number: u8,
    },
    Link {
        at: bool,
        up: bool,
    },
    Resolve {
        at: bool,
        source: u8,
        destination: u8,
    },
    Confirm {
        at: bool,
        source: u8,
        destination: u8,
    },
    /// A frame on the wire arrives at its receiver, or comes back to its sender. It may also stay on the wire.
    Deliver {
        which: u8,
        back: bool,
        stays: bool,
    },
    /// A frame on the wire arrives with some bytes changed. If `mend` is set, its checksums are corrected.
    Corrupt {
        which: u8,
        changes: Vec<(u8, u8)>,
        mend: bool,
    },
    /// A frame on the wire is lost.
    Lose {
        which: u8,
    },
    /// A forged frame arrives.
    Forge {
        at: bool,
        bytes: Vec<u8>,
        protocol: u8,
    },
    Wait {
        milliseconds: u16,
    },
}

/// Returns the Internet checksum of RFC 1071.
fn checksum(bytes: impl Iterator<Item = u8>) -> u16 {
    let bytes: Vec<u8> = bytes.collect();
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| low.into()));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

/// Corrects the checksums of a frame, if it has any. Otherwise few inputs would pass the first check.
fn mend(frame: &mut [u8]) {
    let start = if frame.get(12..14) == Some(&[0x81, 0x00]) {
        18
    } else {
        14
    };
    let Some((header, packet)) = frame.split_at_mut_checked(start) else {
        return;
    };
    match header[start - 2..] {
        [0x08, 0x00] if packet.len() >= 28 => {
            packet[10..12].fill(0);
            let sum = checksum(packet[..20].iter().copied());
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            let end =
                usize::from(u16::from_be_bytes([packet[2], packet[3]])).clamp(28, packet.len());
            packet[22..24].fill(0);
            let sum = checksum(packet[20..end].iter().copied());
            packet[22..24].copy_from_slice(&sum.to_be_bytes());
        }
        [0x86, 0xdd] if packet.len() >= 48 => {
            let end = 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            let from = if packet[6] == 0 { 48 } else { 40 };
            let end = end.min(packet.len());
            if end < from + 4 {
                return;
            }
            packet[from + 2..from + 4].fill(0);
            let bytes = u16::try_from(end - from).expect("short").to_be_bytes();
            let pseudo = packet[8..40]
                .iter()
                .chain(&[0, 0])
                .chain(&bytes)
                .chain(&[0, 0, 0, 58]);
            let sum = checksum(pseudo.chain(&packet[from..end]).copied());
            packet[from + 2..from + 4].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {}
    }
}

/// Two stations and the wire between them.
struct World {
    stations: [Neighbours; 2],
    now: Duration,
    /// Frames on the wire, each with the index of its sender.
    wire: Vec<(usize, Vec<u8>)>,
    /// All events that the stations have returned to their callers.
    events: Vec<(usize, Event)>,
}

impl World {
    fn new(detection: Detection) -> Self {
        let stations = MACS.map(|mac| {
            let config = Config {
                detection,
                neighbours: NEIGHBOURS,
                frames: FRAMES,
                events: EVENTS,
                ..Config::new(mac, u64::from(mac[5]))
            };
            let mut station = Neighbours::new(config, Duration::ZERO);
            for number in FIXED {
                let fixed = station.add_static(address(number), STATIC);
                fixed.expect("an address of one node");
            }
            station
        });
        Self {
            stations,
            now: Duration::ZERO,
            wire: Vec::new(),
            events: Vec::new(),
        }
    }

    fn station(&mut self, at: bool) -> &mut Neighbours {
        &mut self.stations[usize::from(at)]
    }

    fn pick(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.wire.len())
    }

    fn receive(&mut self, at: usize, frame: &[u8]) {
        self.stations[at].received(frame, self.now);
    }

    fn act(&mut self, action: &Action) {
        let now = self.now;
        match *action {
            Action::Add {
                at,
                number,
                vlan: tag,
                gateway,
            } => {
                let interface = Address {
                    address: address(number),
                    prefix: Some(if number % 3 == 0 { 24 } else { 64 }),
                    vlan: vlan(tag),
                    gateway: gateway.map(address),
                };
                if !FIXED.map(address).contains(&interface.address) {
                    let _ = self.station(at).add(interface, now);
                }
            }
            Action::Remove { at, number } => {
                self.station(at).remove(address(number), now);
            }
            Action::Link { at, up } => self.station(at).link(up, now),
            Action::Resolve {
                at,
                source,
                destination,
            } => {
                let resolved = self
                    .station(at)
                    .resolve(address(source), address(destination), now);
                if FIXED.map(address).contains(&address(destination)) {
                    let wins = matches!(
                        resolved,
                        Resolution::Known(STATIC) | Resolution::Unreachable(_)
                    );
                    assert!(wins, "a static entry wins: {resolved:?}");
                }
            }
            Action::Confirm {
                at,
                source,
                destination,
            } => {
                self.station(at)
                    .confirm(address(source), address(destination), now);
            }
            Action::Deliver { which, back, stays } => {
                let Some(which) = self.pick(which) else {
                    return;
                };
                let (from, frame) = self.wire[which].clone();
                self.receive(if back { from } else { 1 - from }, &frame);
                if !stays {
                    self.wire.remove(which);
                }
            }
            Action::Corrupt {
                which,
                ref changes,
                mend: good,
            } => {
                let Some(which) = self.pick(which) else {
                    return;
                };
                let (from, mut frame) = self.wire.remove(which);
                for &(place, byte) in changes {
                    // The two MAC addresses are not changed, so that the receiver accepts the frame.
                    if let Some(old) = frame[12..].get_mut(usize::from(place)) {
                        *old ^= byte;
                    }
                }
                if good {
                    mend(&mut frame);
                }
                self.receive(1 - from, &frame);
            }
            Action::Lose { which } => {
                if let Some(which) = self.pick(which) {
                    self.wire.remove(which);
                }
            }
            Action::Forge {
                at,
                ref bytes,
                protocol,
            } => {
                let kinds: [&[u8]; 5] =
                    [&[8, 6], &[8, 0], &[0x86, 0xdd], &[0x81, 0, 0, 5, 8, 6], &[]];
                let kind = kinds[usize::from(protocol) % kinds.len()];
                let mut frame = [&MACS[usize::from(at)][..], &STATIC, kind, bytes].concat();
                mend(&mut frame);
                self.receive(usize::from(at), &frame);
            }
            Action::Wait { milliseconds } => {
                self.now += Duration::from_millis(milliseconds.into());
                let now = self.now;
                self.stations
                    .iter_mut()
                    .for_each(|station| station.tick(now));
            }
        }
    }

    /// Lets the first station and an honest new neighbour, with a wire of its own, resolve each other's address.
    fn honest(&mut self, ours: IpAddr, theirs: IpAddr, longest: &Longest) {
        let (station, now) = (&mut self.stations[0], self.now);
        // The neighbour skips duplicate address detection, because it must not send requests from an optimistic address
        // (RFC 4429, 3.2).
        let config = Config {
            detection: Detection::Never,
            ..Config::new(HONEST, 7)
        };
        let mut honest = Neighbours::new(config, now);
        let interface = |address| Address {
            address,
            prefix: Some(if address.is_ipv4() { 24 } else { 64 }),
            vlan: vlan(1),
            gateway: None,
        };
        let added = honest.add(interface(theirs), now);
        added.expect("an address of one node");
        let mut out = [0; MOST_FRAME_BYTES];
        let mut found = None;
        for turn in 0..=PATIENCE {
            let there = station.resolve(ours, theirs, now);
            let back = honest.resolve(theirs, ours, now);
            if let (Resolution::Known(_), Resolution::Known(mac)) = (there, back) {
                assert_eq!(mac, MACS[0]);
                found = Some(turn);
                break;
            }
            while let Some(bytes) = honest.next_frame(&mut out) {
                station.received(&out[..bytes], now);
            }
            while let Some(bytes) = station.next_frame(&mut out) {
                honest.received(&out[..bytes], now);
            }
        }
        while station.next_event().is_some() {}
        longest.took(found.expect("they find each other"));
    }

    /// Takes frames and events from the stations, and checks that all tables are bounded.
    fn drain(&mut self) {
        for (at, station) in self.stations.iter_mut().enumerate() {
            let mut out = [0; MOST_FRAME_BYTES];
            let mut frames = 0;
            while let Some(bytes) = station.next_frame(&mut out) {
                assert!((60..=MOST_FRAME_BYTES).contains(&bytes));
                assert_eq!(out[6..12], MACS[at], "from us");
                self.wire.push((at, out[..bytes].to_vec()));
                frames += 1;
            }
            assert!(frames <= FRAMES, "{frames} frames waited");
            let before = self.events.len();
            while let Some(event) = station.next_event() {
                self.events.push((at, event));
            }
            assert!(self.events.len() - before <= EVENTS, "events waited");
            let found = station.entries().filter(|entry| entry.state.is_some());
            assert!(found.count() <= NEIGHBOURS, "neighbours");
            let fixed = station.entries().filter(|entry| entry.state.is_none());
            let fixed: Vec<_> = fixed.map(|entry| entry.mac).collect();
            assert_eq!(fixed, [Some(STATIC); FIXED.len()]);
            for entry in station
                .entries()
                .filter(|entry| entry.state.is_some_and(|state| state.is_usable()))
            {
                let mac = entry.mac.expect("what is usable has a MAC");
                assert!(
                    mac[0] & 1 == 0 && mac != [0; 6] && mac != MACS[at],
                    "{mac:02x?}"
                );
            }
            assert!(station.groups().all(|group| group[..2] == [0x33, 0x33]));
        }
        let extra = self.wire.len().saturating_sub(64);
        self.wire.drain(..extra);
    }
}

/// A frame of arbitrary bytes is accepted or dropped, without a panic.
#[test]
fn frames_of_any_bytes_are_survived() {
    check!().for_each(|bytes: &[u8]| {
        let mut world = World::new(Detection::Never);
        for number in [0, 3, 4, 8] {
            world.act(&Action::Add {
                at: false,
                number,
                vlan: number,
                gateway: None,
            });
        }
        world.drain();
        world.receive(0, bytes);
        let ours = [&MACS[0][..], &MACS[1], bytes].concat();
        world.receive(0, &ours);
        world.drain();
        assert_eq!(world.stations[0].counters().received, 2);
    });
}

/// Number of turns until a station and its honest neighbour resolve each other. If the station has given up on the
/// neighbour, it receives the neighbour's frame in the first turn, sends a request in the second and gets the answer in
/// the third. Otherwise the first turn is enough.
const MOST_TURNS: u64 = 3;
/// Number of turns after which the test fails if the two have not resolved each other.
const PATIENCE: u64 = 16;

/// Whatever frames are forged, and whatever the station is asked to resolve, a station and an honest neighbour resolve
/// each other.
#[test]
fn an_honest_neighbour_is_found_in_three_turns_whatever_is_forged() {
    static BESIDE: Longest = Longest::new("forged frames of neighbours", "turns", MOST_TURNS);
    check!().with_type::<Vec<Action>>().for_each(|actions| {
        let mut world = World::new(Detection::Never);
        // For each family, an address of the station and an address that only the honest neighbour has.
        let addresses = [3, 4].map(|number| [address(number), honest_address(number)]);
        for ours in [3, 4] {
            world.act(&Action::Add {
                at: false,
                number: ours,
                vlan: 1,
                gateway: None,
            });
        }
        world.drain();
        for (number, action) in actions.iter().enumerate() {
            // In this test, the station's own configuration does not change.
            let is_ours = matches!(
                action,
                Action::Add { at: false, .. }
                    | Action::Remove { at: false, .. }
                    | Action::Link { at: false, .. }
            );
            if !is_ours {
                world.act(action);
            }
            world.drain();
            if number % 4 == 0 {
                for [ours, theirs] in addresses {
                    world.honest(ours, theirs, &BESIDE);
                }
            }
        }
    });
    BESIDE.report();
}

/// Under any events at two stations and any forged frames, tables are bounded, static entries are not overwritten, and
/// one seed always gives the same run.
#[test]
fn neighbours_survive_any_history() {
    check!()
        .with_type::<(u8, Vec<Action>)>()
        .for_each(|(detection, actions)| {
            let detections = [Detection::Never, Detection::Optimistic, Detection::First];
            let detection = detections[usize::from(*detection) % detections.len()];
            let mut worlds = [World::new(detection), World::new(detection)];
            for world in &mut worlds {
                // The stations start with some addresses, because sequences are short.
                for (at, number) in [
                    (false, 3),
                    (true, 6),
                    (false, 4),
                    (true, 7),
                    (false, 5),
                    (true, 8),
                ] {
                    world.act(&Action::Add {
                        at,
                        number,
                        vlan: 1,
                        gateway: None,
                    });
                }
                world.drain();
                for action in actions {
                    world.act(action);
                    world.drain();
                }
            }
            let [one, other] = worlds;
            assert_eq!(one.events, other.events);
            assert_eq!(one.wire, other.wire);
            for (one, other) in one.stations.iter().zip(&other.stations) {
                assert_eq!(one.counters(), other.counters());
                assert_eq!(one.due(), other.due());
            }
        });
}
