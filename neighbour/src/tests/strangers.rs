//! Tests of forged frames: any node on the link can send anything, but known entries do not change, and no memory
//! grows.

use super::peer::{Nd, O, REQUEST, S, arp, arp_announcement, arp_reply, echo};
use super::*;

/// Makes the MAC and the two addresses of the forger with this number. No other node has them.
fn nobody(n: u32) -> (Mac, String, String) {
    let [_, a, b, c] = n.to_be_bytes();
    let mac = [0x06, 0, 0, a, b, c];
    // These addresses are neither ours nor those of the neighbours.
    let (v4, v6) = (
        format!("10.0.0.{}", 16 + n % 200),
        format!("2001:db8::{:x}", 16 + n % 60_000),
    );
    (mac, v4, v6)
}

/// 100,000 forged frames of every kind change neither a static neighbour nor one found by asking. They create no entry,
/// and the queues stay bounded.
#[test]
fn a_hundred_thousand_forged_frames_change_nothing_that_is_known() {
    let mut us = Us::settled();
    us.us.add_static(ip("10.0.0.3"), OTHER).expect("an address");
    us.resolve(OUR_V4, PEER_V4);
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    us.resolve(OUR_V6, PEER_V6);
    us.receive(&Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O).frame());
    us.sent();
    us.events();
    let known = us.us.entries().count();
    for n in 0..100_000_u32 {
        let (mac, v4, v6) = nobody(n);
        let frame = match n % 12 {
            0 => arp_reply((mac, PEER_V4), (OURS, OUR_V4)),
            1 => arp_announcement((mac, PEER_V4)),
            2 => arp(ALL, REQUEST, (mac, PEER_V4), ([0; 6], OUR_V4)),
            3 => arp_reply((mac, "10.0.0.3"), (OURS, OUR_V4)),
            4 => arp_reply((mac, &v4), (OURS, OUR_V4)),
            5 => arp(ALL, REQUEST, (mac, &v4), ([0; 6], OUR_V4)),
            6 => Nd::advertise(mac, PEER_V6, (OURS, OUR_V6), S | O).frame(),
            7 => Nd::announce(mac, PEER_V6, O).frame(),
            8 => Nd::solicit(mac, PEER_V6, OUR_V6).frame(),
            9 => Nd::solicit(mac, &v6, OUR_V6).frame(),
            10 => Nd::announce(mac, &v6, O).frame(),
            _ => echo((OURS, mac), &v4, OUR_V4, &[0; 40]),
        };
        us.receive(&frame);
    }
    assert_eq!(us.us.entries().count(), known);
    // The counter counts all entries except the static one.
    assert_eq!(us.us.counters().neighbours, known as u64 - 1);
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Known(PEER));
    assert_eq!(us.resolve(OUR_V4, "10.0.0.3"), Resolution::Known(OTHER));
    let (frames, events) = us.us.outbox.waiting();
    assert!(
        frames <= 256 && events <= 4_096,
        "{frames} frames, {events} events"
    );
    // We ask the neighbour because of the contradictions. It answers from its known MAC, so no `Moved` is reported.
    us.sent();
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    us.receive(&Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S).frame());
    us.pass(milliseconds(10));
    assert_eq!(us.us.counters().moved, 0);
    assert_eq!(us.mac(PEER_V4), Some(PEER));
    assert_eq!(us.mac(PEER_V6), Some(PEER));
}

/// Makes a table of `neighbours` places in a /16, with one neighbour, 10.0.0.2, that a sender of ours has found.
fn with_a_known_neighbour(neighbours: usize) -> Us {
    let mut us = Us::of(Config {
        neighbours,
        detection: Detection::Never,
        ..Config::new(OURS, 7)
    });
    us.add("10.0.0.1/16");
    us.settle();
    us.resolve(OUR_V4, PEER_V4);
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    us.sent();
    us.events();
    us
}

impl Us {
    fn resolve_sender(&mut self, n: usize) -> Resolution {
        let sender = format!("10.0.{}.{}", 1 + n / 200, 1 + n % 200);
        self.us
            .resolve_for(ip(OUR_V4), ip(&sender), Need::Sender, self.now)
    }
}

/// Datagrams from more addresses than the table has places evict entries of each other.
#[test]
fn senders_that_nobody_knows_evict_each_other_and_no_known_neighbour() {
    let mut us = with_a_known_neighbour(64);
    for n in 0..=64 {
        us.pass(milliseconds(1));
        assert_eq!(us.resolve_sender(n), Resolution::Pending, "{n}");
        assert!(us.us.counters().neighbours <= 1 + 16);
    }
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
    // An event reports each evicted stranger to the caller that waits for it.
    let evicted = us.events();
    assert_eq!(evicted.len(), 65 - 16);
    assert!(evicted.iter().all(|event| matches!(
        event,
        Event::Unreachable {
            reason: crate::Reason::TableFull,
            ..
        }
    )));
}

/// While strangers use up their requests, a request of our own is sent at once. Strangers can take places in a table
/// that our own neighbours fill, and our senders take these places back.
#[test]
fn strangers_have_half_as_many_requests_and_give_up_their_places_to_our_senders() {
    let mut us = with_a_known_neighbour(2_048);
    for n in 0..400 {
        us.resolve_sender(n);
    }
    assert_eq!(us.sent().len(), 128);
    assert_eq!(us.resolve(OUR_V4, "10.0.9.1"), Resolution::Pending);
    assert_eq!(us.sent().len(), 1);

    let mut us = with_a_known_neighbour(4);
    for n in [3, 4, 5] {
        let peer = format!("10.0.0.{n}");
        us.pass(milliseconds(1));
        us.resolve(OUR_V4, &peer);
        us.receive(&arp_reply((PEER, &peer), (OURS, OUR_V4)));
    }
    us.pass(milliseconds(1));
    for n in 0..10 {
        assert_eq!(us.resolve_sender(n), Resolution::Pending, "{n}");
    }
    assert_eq!(us.state(PEER_V4), State::Absent, "it was idle for longest");
    assert_eq!(us.state("10.0.0.3"), State::Reachable);
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Pending);
    assert_eq!(
        us.state("10.0.0.3"),
        State::Reachable,
        "a stranger has gone"
    );
}

/// An answer to a stranger leaves the stranger in the strangers' share.
#[test]
fn an_entry_that_only_one_answer_needs_stays_a_strangers() {
    let mut us = with_a_known_neighbour(8);
    for n in 0..20 {
        us.pass(milliseconds(1));
        us.resolve_sender(n);
        let sender = format!("10.0.1.{}", 1 + n);
        us.receive(&arp_reply((PEER, &sender), (OURS, OUR_V4)));
        let sender = ip(&sender);
        let answered = us
            .us
            .resolve_for(ip(OUR_V4), sender, Need::Datagram, us.now);
        assert_eq!(answered, Resolution::Known(PEER));
        assert!(us.us.counters().neighbours <= 1 + 2);
    }
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
}

/// An entry that a sender of ours needs no longer counts as a stranger's.
#[test]
fn an_entry_that_a_sender_of_ours_needs_is_not_evicted_by_strangers() {
    let mut us = with_a_known_neighbour(8);
    assert_eq!(us.resolve_sender(0), Resolution::Pending);
    assert_eq!(us.resolve(OUR_V4, "10.0.1.1"), Resolution::Pending);
    for n in 1..20 {
        us.pass(milliseconds(1));
        us.resolve_sender(n);
    }
    assert_eq!(us.state("10.0.1.1"), State::Incomplete);
}

/// A neighbour that really has another MAC, and announces it, is found again within seconds.
#[test]
fn a_neighbour_that_has_another_mac_is_found_there_within_four_seconds() {
    let mut us = Us::settled();
    us.resolve(OUR_V4, PEER_V4);
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    us.sent();
    us.events();
    us.receive(&arp_announcement((OTHER, PEER_V4)));
    for _ in 0..40 {
        us.pass(milliseconds(100));
        // The old MAC answers nothing any more. The new MAC answers requests to all nodes.
        for sent in us.sent() {
            if sent.to == ALL {
                us.receive(&arp_reply((OTHER, PEER_V4), (OURS, OUR_V4)));
            }
        }
    }
    assert_eq!(us.mac(PEER_V4), Some(OTHER));
    let moved = |event: &Event| {
        matches!(
            event,
            Event::Moved {
                old: PEER,
                new: OTHER,
                ..
            }
        )
    };
    assert!(us.events().iter().any(moved));
}

/// For ten minutes of forged frames, neighbours that answer our requests stay usable at their MACs. We ask each of them
/// by unicast, at most once per second.
#[test]
fn ten_minutes_of_forgery_cost_one_request_per_second_and_move_no_neighbour() {
    let mut us = Us::settled();
    us.resolve(OUR_V4, PEER_V4);
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    us.resolve(OUR_V6, PEER_V6);
    us.receive(&Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O).frame());
    us.sent();
    us.events();
    for n in 0..6_000 {
        let (mac, ..) = nobody(n);
        us.receive(&arp_reply((mac, PEER_V4), (OURS, OUR_V4)));
        us.receive(&Nd::advertise(mac, PEER_V6, (OURS, OUR_V6), S | O).frame());
        for sent in us.sent() {
            assert_eq!(sent.to, PEER, "never all");
            let of_arp = matches!(sent.said, Said::ArpRequest { .. });
            us.receive(&if of_arp {
                arp_reply((PEER, PEER_V4), (OURS, OUR_V4))
            } else {
                Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S).frame()
            });
        }
        assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
        assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Known(PEER));
        us.pass(milliseconds(100));
    }
    assert_eq!(us.events(), []);
    let counters = us.us.counters();
    assert!(
        (1_000..=1_250).contains(&counters.asked_one),
        "{}",
        counters.asked_one
    );
    assert_eq!(counters.asked_all, 2, "at the beginning");
}
