//! Tests of snapshots that no table has written.

use std::net::Ipv6Addr;

use rand::Rng;

use super::parking::{Call, World};
use super::peer::arp_reply;
use super::*;
use crate::snapshot::{ChangeSnapshot, EchoSnapshot, MembershipSnapshot};
use crate::{
    AddressSnapshot, Claim, Counters, NeighbourSnapshot, NeighboursSnapshot, Reason, Refusal,
};

/// Indexes in the snapshot of [`parked`].
const V4: usize = 0;
const V6: usize = 1;
const REACHABLE: usize = 0;
const INCOMPLETE: usize = 1;
/// Time of the parking.
const PARKED: Duration = Duration::from_secs(1_000);

/// Makes a table with 10.0.0.1 and 2001:db8::1, both preferred and being announced, 10.0.0.2 reachable, 10.0.0.3
/// incomplete, and 10.0.0.4 static. Its group was joined and is reported once more. An echo request is outstanding, and
/// frames and events wait.
fn parked() -> (NeighboursSnapshot, Config) {
    let mut us = Us::bare(Detection::Never);
    us.add("10.0.0.1/24");
    us.add("2001:db8::1/64");
    us.us.add_static(ip("10.0.0.4"), OTHER).expect("an address");
    us.resolve(OUR_V4, PEER_V4);
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    us.resolve(OUR_V4, "10.0.0.3");
    us.us.echo(ip(OUR_V4), ip("10.0.0.4"), 1, us.now);
    let snapshot = us.us.park();
    assert_eq!(snapshot.parked, PARKED);
    (snapshot, us.us.config)
}

fn neighbour(of: &mut NeighboursSnapshot, at: usize) -> &mut NeighbourSnapshot {
    &mut of.neighbours[at]
}

fn address(of: &mut NeighboursSnapshot, at: usize) -> &mut AddressSnapshot {
    &mut of.addresses[at]
}

fn reports(of: &mut NeighboursSnapshot) -> &mut MembershipSnapshot {
    &mut of.memberships[0]
}

fn change(of: &mut NeighboursSnapshot) -> &mut ChangeSnapshot {
    &mut reports(of).changes[0]
}

fn take_down(of: &mut NeighboursSnapshot) {
    of.up = false;
    of.frames.clear();
    of.memberships.clear();
    of.neighbours.clear();
    for address in &mut of.addresses {
        address.due = None;
    }
}

/// A change of the snapshot, and the error that it causes.
type Case = (&'static str, fn(&mut NeighboursSnapshot));

fn assert_refused(cases: &[Case]) {
    let (snapshot, config) = parked();
    let resumed = Neighbours::resume(&snapshot, config, PARKED);
    assert_eq!(resumed.map(|us| us.park()), Ok(snapshot.clone()));
    for (expected, harm) in cases {
        let mut harmed = snapshot.clone();
        harm(&mut harmed);
        let refused = Neighbours::resume(&harmed, config, PARKED).map(drop);
        let refused = refused.map_err(|error| error.to_string());
        assert_eq!(refused, Err((*expected).to_owned()));
    }
}

#[test]
fn a_snapshot_of_another_adapter_or_of_the_future_is_refused() {
    assert_refused(&[
        (
            "parked with the MAC [02, 00, 00, 00, 00, 02]; the adapter has [02, 00, 00, 00, 00, 01]",
            |all| all.mac = PEER,
        ),
        ("parked at 1000.000000001s; the time is 1000s", |all| {
            all.parked += Duration::from_nanos(1);
        }),
        (
            "parked at 18446744073709551615.999999999s; the time is 1000s",
            |all| all.parked = Duration::MAX,
        ),
    ]);
}

#[test]
fn an_address_that_cannot_be_ours_is_refused() {
    assert_refused(&[
        ("224.0.0.1: no address of one node on a network", |all| {
            address(all, V4).address.address = ip("224.0.0.1");
        }),
        ("10.0.0.1/33: the prefix has at most 32 bits", |all| {
            address(all, V4).address.prefix = Some(33)
        }),
        ("VLAN 4095 with priority 0: 1 to 4094, and 0 to 7", |all| {
            let (id, priority) = (4_095, 0);
            address(all, V4).address.vlan = Some(Vlan { id, priority });
        }),
        (
            "gateway 192.0.2.1 is not on the link of 10.0.0.1/24",
            |all| address(all, V4).address.gateway = Some(ip("192.0.2.1")),
        ),
        ("10.0.0.1 is ours already", |all| {
            all.addresses.push(all.addresses[V4]);
        }),
        ("65 addresses, and there is room for 64", |all| {
            all.addresses = vec![all.addresses[V4]; 65];
        }),
        ("address 10.0.0.1: 3 frames left, not 0 to 2", |all| {
            address(all, V4).left = 3;
        }),
        ("address 10.0.0.1: 4 frames left, not 0 to 3", |all| {
            address(all, V4).claim = Claim::Tentative;
            address(all, V4).left = 4;
        }),
        ("address 2001:db8::1: 4 frames left, not 0 to 3", |all| {
            address(all, V6).left = 4;
        }),
        ("address 2001:db8::1: 2 frames left, not 0 to 1", |all| {
            address(all, V6).claim = Claim::Optimistic;
        }),
        ("address 2001:db8::1: 1 frames left, not 0 to 0", |all| {
            address(all, V6).claim = Claim::Duplicate;
            address(all, V6).left = 1;
        }),
        (
            "address 10.0.0.1: an IPv4 address is not Optimistic",
            |all| address(all, V4).claim = Claim::Optimistic,
        ),
        (
            "address 10.0.0.1: Preferred, 1 frames left, due at None, defended at None, link up: true",
            |all| address(all, V4).due = None,
        ),
        (
            "address 10.0.0.1: Preferred, 0 frames left, due at Some(1000s), defended at None, link up: true",
            |all| {
                address(all, V4).left = 0;
                address(all, V4).due = Some(PARKED);
            },
        ),
        (
            "address 10.0.0.1: Tentative, 0 frames left, due at None, defended at None, link up: true",
            |all| {
                address(all, V4).claim = Claim::Tentative;
                (address(all, V4).left, address(all, V4).due) = (0, None);
            },
        ),
        (
            "address 10.0.0.1: Duplicate, 0 frames left, due at None, defended at Some(1000s), link up: true",
            |all| {
                address(all, V4).claim = Claim::Duplicate;
                (address(all, V4).left, address(all, V4).due) = (0, None);
                address(all, V4).defended = Some(PARKED);
            },
        ),
        (
            "address 10.0.0.1: Preferred, 1 frames left, due at Some(1000s), defended at None, link up: false",
            |all| {
                take_down(all);
                address(all, V4).due = Some(PARKED);
            },
        ),
        (
            "address 10.0.0.1: next action at 1002.500000001s, later than 1002.5s",
            |all| address(all, V4).due = Some(Duration::new(1_002, 500_000_001)),
        ),
        (
            "address 10.0.0.1: defence at 1000.000000001s, later than 1000s",
            |all| address(all, V4).defended = Some(PARKED + Duration::from_nanos(1)),
        ),
    ]);
}

#[test]
fn a_static_neighbour_that_cannot_be_one_is_refused() {
    assert_refused(&[
        ("::1: no address of one node on a network", |all| {
            all.statics[0].0 = ip("::1");
        }),
        (
            "[03, 00, 00, 00, 00, 00] is not the MAC of a neighbour",
            |all| all.statics[0].1 = [3, 0, 0, 0, 0, 0],
        ),
        ("static neighbour 10.0.0.4: more than once", |all| {
            all.statics.push((ip("::ffff:10.0.0.4"), PEER));
        }),
    ]);
}

#[test]
fn a_neighbour_that_cannot_be_in_the_table_is_refused() {
    assert_refused(&[
        (
            "255.255.255.255: no address of one node on a network",
            |all| {
                neighbour(all, INCOMPLETE).address = ip("255.255.255.255");
            },
        ),
        ("neighbour 10.0.0.2: more than once", |all| {
            neighbour(all, INCOMPLETE).address = ip("::ffff:10.0.0.2");
        }),
        ("neighbour 10.0.0.4: it is static, too", |all| {
            neighbour(all, INCOMPLETE).address = ip("10.0.0.4");
        }),
        (
            "neighbour 10.0.0.2 in VLAN 5: no address of ours is in its VLAN and family",
            |all| neighbour(all, REACHABLE).vlan = Some(5),
        ),
        (
            "neighbour 10.0.0.2: no address of ours is in its VLAN and family",
            |all| {
                let ours = address(all, V4);
                ours.claim = Claim::Duplicate;
                (ours.left, ours.due) = (0, None);
            },
        ),
        ("1025 neighbours, and there is room for 1024", |all| {
            all.neighbours = vec![all.neighbours[0]; 1_025];
        }),
        ("257 strangers, and there is room for 256", |all| {
            let one = NeighbourSnapshot {
                stranger: true,
                ..all.neighbours[REACHABLE]
            };
            let of = |n: u8| IpAddr::from([10, 0, 1, n]);
            let more = (0..=255).map(|n| NeighbourSnapshot {
                address: of(n),
                ..one
            });
            all.neighbours = more.chain([one]).collect();
        }),
        (
            "[01, 00, 00, 00, 00, 00] is not the MAC of a neighbour",
            |all| neighbour(all, REACHABLE).mac = Some([1, 0, 0, 0, 0, 0]),
        ),
        (
            "neighbour 10.0.0.2: [02, 00, 00, 00, 00, 01] is our own MAC",
            |all| neighbour(all, REACHABLE).mac = Some(OURS),
        ),
        (
            "neighbour 10.0.0.2: our address 2001:db8::1 is of another family",
            |all| neighbour(all, REACHABLE).asker = ip(OUR_V6),
        ),
        ("0.0.0.0: no address of one node on a network", |all| {
            neighbour(all, REACHABLE).asker = ip("0.0.0.0");
        }),
    ]);
}

#[test]
fn a_neighbour_in_an_impossible_state_is_refused() {
    assert_refused(&[
        (
            "neighbour 10.0.0.3: Absent, MAC None, due at None, suspect: false, link up: true",
            |all| {
                let one = neighbour(all, INCOMPLETE);
                (one.state, one.tries, one.due) = (State::Absent, 0, None);
            },
        ),
        (
            "neighbour 10.0.0.3: Stale, MAC None, due at None, suspect: false, link up: true",
            |all| {
                let one = neighbour(all, INCOMPLETE);
                (one.state, one.tries, one.due) = (State::Stale, 0, None);
            },
        ),
        (
            "neighbour 10.0.0.2: Stale, MAC Some([02, 00, 00, 00, 00, 02]), due at Some(1000s), suspect: false, link up: true",
            |all| {
                let one = neighbour(all, REACHABLE);
                (one.state, one.due) = (State::Stale, Some(PARKED));
            },
        ),
        (
            "neighbour 10.0.0.2: Delay, MAC Some([02, 00, 00, 00, 00, 02]), due at None, suspect: false, link up: true",
            |all| {
                let one = neighbour(all, REACHABLE);
                (one.state, one.due) = (State::Delay, None);
            },
        ),
        (
            "neighbour 10.0.0.2: Delay, MAC Some([02, 00, 00, 00, 00, 02]), due at Some(1000s), suspect: true, link up: true",
            |all| {
                let one = neighbour(all, REACHABLE);
                (one.state, one.due, one.suspect) = (State::Delay, Some(PARKED), true);
            },
        ),
        (
            "neighbour 10.0.0.2: Delay, MAC Some([02, 00, 00, 00, 00, 02]), due at Some(1000s), suspect: false, link up: false",
            |all| {
                let mut one = all.neighbours[REACHABLE];
                (one.state, one.due) = (State::Delay, Some(PARKED));
                take_down(all);
                all.neighbours.push(one);
            },
        ),
        ("neighbour 10.0.0.3: 4 requests, not 0 to 3", |all| {
            neighbour(all, INCOMPLETE).tries = 4;
        }),
        ("neighbour 10.0.0.2: 4 requests, not 0 to 3", |all| {
            let one = neighbour(all, REACHABLE);
            (one.state, one.tries) = (State::Probe, 4);
        }),
        ("neighbour 10.0.0.2: 1 requests, not 0 to 0", |all| {
            neighbour(all, REACHABLE).tries = 1;
        }),
    ]);
}

#[test]
fn a_neighbour_with_an_impossible_time_is_refused() {
    assert_refused(&[
        (
            "neighbour 10.0.0.3: next action at 1001.000000001s, later than 1001s",
            |all| neighbour(all, INCOMPLETE).due = Some(Duration::new(1_001, 1)),
        ),
        (
            "neighbour 10.0.0.2: next action at 1001.000000001s, later than 1001s",
            |all| {
                let one = neighbour(all, REACHABLE);
                (one.state, one.due) = (State::Probe, Some(Duration::new(1_001, 1)));
            },
        ),
        (
            "neighbour 10.0.0.2: next action at 1001.000000001s, later than 1001s",
            |all| {
                let one = neighbour(all, REACHABLE);
                (one.suspect, one.due) = (true, Some(Duration::new(1_001, 1)));
            },
        ),
        (
            "neighbour 10.0.0.2: next action at 1005.000000001s, later than 1005s",
            |all| {
                let one = neighbour(all, REACHABLE);
                (one.state, one.due) = (State::Delay, Some(Duration::new(1_005, 1)));
            },
        ),
        (
            "neighbour 10.0.0.2: last use at 1000.000000001s, later than 1000s",
            |all| neighbour(all, REACHABLE).used = Duration::new(1_000, 1),
        ),
        (
            "neighbour 10.0.0.2: beginning of the state at 18446744073709551615.999999999s, later than 1000s",
            |all| neighbour(all, REACHABLE).since = Duration::MAX,
        ),
    ]);
}

#[test]
fn reports_that_no_address_of_ours_causes_are_refused() {
    assert_refused(&[
        ("VLAN 0 with priority 0: 1 to 4094, and 0 to 7", |all| {
            reports(all).vlan = Some(0);
        }),
        ("reports: more than once", |all| {
            all.memberships.push(all.memberships[0].clone());
        }),
        ("group ff02::1:ff00:1: more than once", |all| {
            let again = *change(all);
            reports(all).changes.push(again);
        }),
        (
            "group ff02::1:ff00:1 in VLAN 5: joined: true, group of an address of ours: false",
            |all| reports(all).vlan = Some(5),
        ),
        (
            "group ff02::1:ff00:1: joined: false, group of an address of ours: true",
            |all| change(all).joined = false,
        ),
        (
            "group ff02::1: joined: false, group of an address of ours: false",
            |all| {
                change(all).joined = false;
                change(all).group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            },
        ),
        ("group ff02::1:ff00:1: 0 reports left, not 1 to 2", |all| {
            change(all).left = 0
        }),
        ("group ff02::1:ff00:1: 3 reports left, not 1 to 2", |all| {
            change(all).left = 3
        }),
        (
            "reports: 1 changes, due at None, answer due at None, link up: true",
            |all| reports(all).change_due = None,
        ),
        (
            "reports: 0 changes, due at Some(1000s), answer due at None, link up: true",
            |all| {
                reports(all).changes.clear();
                reports(all).change_due = Some(PARKED);
            },
        ),
        (
            "reports: 0 changes, due at None, answer due at Some(1000s), link up: false",
            |all| {
                let mut one = all.memberships[0].clone();
                one.changes.clear();
                (one.change_due, one.answer_due) = (None, Some(PARKED));
                take_down(all);
                all.memberships.push(one);
            },
        ),
        (
            "reports: report of changes at 1001.000000001s, later than 1001s",
            |all| reports(all).change_due = Some(Duration::new(1_001, 1)),
        ),
        // The maximum response code stands for 8,387.584 seconds (RFC 3810, 5.1.3).
        (
            "reports: answer to a query at 9387.584000001s, later than 9387.584s",
            |all| reports(all).answer_due = Some(Duration::new(9_387, 584_000_001)),
        ),
    ]);
}

#[test]
fn limits_that_are_used_up_for_more_than_a_second_are_refused() {
    const LATE: Duration = Duration::new(1_001, 1);
    assert_refused(&[
        (
            "requests: end of the used budget at 1001.000000001s, later than 1001s",
            |all| all.budgets.asks = LATE,
        ),
        (
            "requests to strangers: end of the used budget at 1001.000000001s, later than 1001s",
            |all| all.budgets.asks_of_strangers = LATE,
        ),
        (
            "replies: end of the used budget at 1001.000000001s, later than 1001s",
            |all| all.budgets.answers = LATE,
        ),
        (
            "echo replies: end of the used budget at 1001.000000001s, later than 1001s",
            |all| all.budgets.echoes = LATE,
        ),
    ]);
}

#[test]
fn an_echo_request_that_we_would_not_send_is_refused() {
    let cases: [Case; 3] = [
        ("ff02::1: no address of one node on a network", |all| {
            all.echo = Some(EchoSnapshot {
                destination: ip("ff02::1"),
                ..all.echo.expect("outstanding")
            });
        }),
        ("0.0.0.0: no address of one node on a network", |all| {
            all.echo = Some(EchoSnapshot {
                source: ip("0.0.0.0"),
                ..all.echo.expect("outstanding")
            });
        }),
        ("echo request: from 2001:db8::1 to 10.0.0.4", |all| {
            all.echo = Some(EchoSnapshot {
                source: ip(OUR_V6),
                ..all.echo.expect("outstanding")
            });
        }),
    ];
    assert_refused(&cases);
}

#[test]
fn frames_that_are_not_ours_are_refused() {
    assert_refused(&[
        (
            "frame 0: 59 bytes from [02, 00, 00, 00, 00, 01]; ours have 60 to 1518 from [02, 00, 00, 00, 00, 01]",
            |all| all.frames[0].truncate(59),
        ),
        (
            "frame 0: 0 bytes from []; ours have 60 to 1518 from [02, 00, 00, 00, 00, 01]",
            |all| all.frames[0].clear(),
        ),
        (
            "frame 1: 1519 bytes from [02, 00, 00, 00, 00, 01]; ours have 60 to 1518 from [02, 00, 00, 00, 00, 01]",
            |all| all.frames[1].resize(1_519, 0),
        ),
        (
            "frame 0: 60 bytes from [02, 00, 00, 00, 00, 02]; ours have 60 to 1518 from [02, 00, 00, 00, 00, 01]",
            |all| all.frames[0][6..12].copy_from_slice(&PEER),
        ),
        ("257 frames, and there is room for 256", |all| {
            all.frames = vec![all.frames[0].clone(); 257];
        }),
        ("1 frames, and there is room for 0", |all| {
            let one = all.frames[0].clone();
            take_down(all);
            all.frames.push(one);
        }),
    ]);
}

#[test]
fn events_about_no_nodes_are_refused() {
    assert_refused(&[
        ("4097 events, and there is room for 4096", |all| {
            all.events = vec![all.events[0]; 4_097];
        }),
        ("0.0.0.0: no address of one node on a network", |all| {
            let (address, vlan) = (ip("0.0.0.0"), None);
            all.events[0] = Event::Announced { address, vlan };
        }),
        ("VLAN 4095 with priority 0: 1 to 4094, and 0 to 7", |all| {
            let (address, vlan, reason) = (ip(PEER_V4), Some(4_095), Reason::NoAnswer);
            all.events[0] = Event::Unreachable {
                address,
                vlan,
                reason,
            };
        }),
        (
            "[ff, ff, ff, ff, ff, ff] is not the MAC of a neighbour",
            |all| {
                let (address, vlan, mac) = (ip(PEER_V4), None, ALL);
                all.events[0] = Event::Resolved { address, vlan, mac };
            },
        ),
        (
            "[ff, ff, ff, ff, ff, ff] is not the MAC of a neighbour",
            |all| {
                all.events[0] = Event::Duplicate {
                    address: ip(OUR_V4),
                    vlan: None,
                    mac: ALL,
                    detecting: true,
                };
            },
        ),
        (
            "[ff, ff, ff, ff, ff, ff] is not the MAC of a neighbour",
            |all| {
                all.events[0] = Event::Moved {
                    address: ip(PEER_V4),
                    vlan: None,
                    old: ALL,
                    new: PEER,
                };
            },
        ),
        (
            "[00, 00, 00, 00, 00, 00] is not the MAC of a neighbour",
            |all| {
                all.events[0] = Event::Moved {
                    address: ip(PEER_V4),
                    vlan: None,
                    old: PEER,
                    new: [0; 6],
                };
            },
        ),
        (
            "event 0: an echo of 1519 bytes; a frame has at most 1518",
            |all| {
                all.events[0] = Event::Echoed {
                    address: ip(PEER_V4),
                    sequence: 1,
                    bytes: 1_519,
                };
            },
        ),
    ]);
}

/// The times of these two states are the configuration's, which may have changed. A longer wait is shortened.
#[test]
fn a_wait_that_the_configuration_sets_is_shortened() {
    for (state, at, longest) in [
        (State::Reachable, REACHABLE, Duration::from_secs(1_045)),
        (State::Unreachable, INCOMPLETE, Duration::from_secs(1_003)),
    ] {
        let just = longest - Duration::from_nanos(1);
        for (due, expected) in [(just, just), (longest, longest), (Duration::MAX, longest)] {
            let (mut snapshot, config) = parked();
            let one = neighbour(&mut snapshot, at);
            (one.state, one.tries, one.due) = (state, 0, Some(due));
            let us = Neighbours::resume(&snapshot, config, PARKED).expect("a sound snapshot");
            assert_eq!(us.park().neighbours[at].due, Some(expected), "{state:?}");
        }
    }
}

/// A counter at its end would overflow with the next frame.
#[test]
fn counters_that_are_nearly_full_are_refused() {
    assert_refused(&[
        (
            "counters: 72057594037927937 received, not 0 to 72057594037927936",
            |all| all.counters.received = (1 << 56) + 1,
        ),
        (
            "counters: 18446744073709551615 refused, not 0 to 72057594037927936",
            |all| {
                all.counters = all.counters.with_refusals([(Refusal::LinkDown, u64::MAX)]);
            },
        ),
        (
            "counters: 72057594037927937 events_lost, not 0 to 72057594037927936",
            |all| all.counters.events_lost = (1 << 56) + 1,
        ),
        (
            "random numbers: 72057594037927937 words, not 0 to 72057594037927936",
            |all| all.random_words = (1 << 56) + 1,
        ),
    ]);
}

/// The number of neighbours in the counters is that of the table.
#[test]
fn the_number_of_neighbours_is_counted_and_not_believed() {
    let (mut snapshot, config) = parked();
    let counters = snapshot.counters;
    assert_eq!(counters.neighbours, 2);
    snapshot.counters.neighbours = u64::MAX;
    let us = Neighbours::resume(&snapshot, config, PARKED).expect("a sound snapshot");
    assert_eq!(us.counters(), counters);
    snapshot.counters = Counters::default();
    let us = Neighbours::resume(&snapshot, config, PARKED).expect("a sound snapshot");
    assert_eq!(us.counters().neighbours, 2);
}

#[test]
fn numbers_of_refused_frames_come_back_by_reason() {
    let mut counters = Counters::default();
    for (at, &why) in <Refusal as strum::VariantArray>::VARIANTS
        .iter()
        .enumerate()
    {
        for _ in 0..=at {
            counters.refuse(why);
        }
    }
    let reasons: Vec<_> = counters.refusals().map(|(why, _)| why).collect();
    assert_eq!(reasons, <Refusal as strum::VariantArray>::VARIANTS);
    let numbers = counters.refusals().map(|(_, times)| times);
    assert!(numbers.eq(1..=12));
    let mut again = counters.with_refusals([]);
    again.received = 5;
    let again = again.with_refusals(counters.refusals());
    assert!(again.refusals().eq(counters.refusals()));
    assert_eq!(again.received, 5);
    assert_eq!(again.with_refusals([]).refused(Refusal::LinkDown), 0);
}

/// Changes one fact of a snapshot to an extreme value, or to that of another item.
fn harm(snapshot: &mut NeighboursSnapshot, world: &mut World) {
    let random: u64 = world.random.random();
    let near = Duration::from_millis(random % 10_000);
    let (parked, least) = (snapshot.parked, Duration::ZERO);
    let time = world.pick(&[least, parked - near, parked, parked + near, Duration::MAX]);
    let due = world.pick(&[None, Some(time)]);
    let number = world.pick(&[0, 1, 2, 3, 4, u8::MAX]);
    let counter = world.pick(&[0, random >> 9, 1 << 55, u64::MAX]);
    let flag = world.pick(&[true, false]);
    let vlan = world.pick(&[None, Some(0), Some(5), Some(4_095)]);
    let address = world.pick(&["10.0.0.1", "10.0.0.2", "0.0.0.0", "fe80::9", "2001:db8::2"]);
    let mac = world.pick(&[OURS, PEER, OTHER, ALL]);
    let at = usize::try_from(random % 8).expect("small");
    let what = world.random.random_range(0..28);
    if let Some(one) = snapshot.addresses.get_mut(at) {
        match what {
            0 => one.due = due,
            1 => one.left = number,
            2 => one.defended = due,
            3 => {
                let claims = [
                    Claim::Tentative,
                    Claim::Optimistic,
                    Claim::Preferred,
                    Claim::Duplicate,
                ];
                one.claim = world.pick(&claims);
            }
            4 => one.address.address = ip(address),
            5 => one.address.vlan = vlan.map(|id| Vlan { id, priority: 1 }),
            6 => one.address.prefix = Some(number),
            7 => one.address.gateway = Some(ip(address)),
            _ => {}
        }
    }
    if let Some(one) = snapshot.neighbours.get_mut(at) {
        match what {
            8 => one.due = due,
            9 => one.tries = number,
            10 => one.used = time,
            11 => one.since = time,
            12 => one.suspect = flag,
            13 => one.stranger = flag,
            14 => one.mac = world.pick(&[None, Some(mac)]),
            15 => one.asker = ip(address),
            16 => one.vlan = vlan,
            17 => {
                let states = <State as strum::VariantArray>::VARIANTS;
                one.state = world.pick(states);
            }
            _ => {}
        }
    }
    if let Some(one) = snapshot.memberships.first_mut() {
        match what {
            18 => one.change_due = due,
            19 => one.answer_due = due,
            20 => one.vlan = vlan,
            21 => {
                if let Some(change) = one.changes.first_mut() {
                    change.left = number;
                    change.joined = flag;
                }
            }
            _ => {}
        }
    }
    match what {
        22 => snapshot.up = flag,
        23 => snapshot.budgets.asks = time,
        24 => snapshot.budgets.answers = time,
        25 => snapshot.counters.received = counter,
        26 => snapshot.random_words = counter,
        27 => snapshot.statics.push((ip(address), mac)),
        _ => {}
    }
}

/// A table that is made of a harmed snapshot, if it is made, goes on without a panic, and writes only snapshots that
/// are resumed.
#[test]
fn a_harmed_snapshot_is_refused_or_makes_a_sound_table() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..400 {
        let mut world = World::new(seed);
        let config = world.config();
        let mut now = seconds(1_000);
        let mut us = Neighbours::new(config, now);
        for _ in 0..8 {
            for _ in 0..40 {
                now += Duration::from_millis(world.random.random_range(0..500));
                let call = world.call();
                call.make(&mut us, now);
                Call::Tick.make(&mut us, now);
            }
            let snapshot = us.park();
            us = Neighbours::resume(&snapshot, config, now)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}: {snapshot:#?}"));
            let mut harmed = snapshot;
            for _ in 0..world.random.random_range(1..3) {
                harm(&mut harmed, &mut world);
            }
            match Neighbours::resume(&harmed, config, now) {
                Ok(resumed) => (us, accepted) = (resumed, accepted + 1),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(accepted > 500 && refused > 500, "{accepted}, {refused}");
}
