//! ARP (RFC 826), and IPv4 address conflicts (RFC 5227).

use super::peer::{REPLY, REQUEST, arp, arp_announcement, arp_packet, arp_reply, ethernet, v4};
use super::*;
use crate::{Reason, Refusal};

/// RFC 826, "packet generation", and RFC 894: a request is sent by broadcast.
#[test]
fn a_question_goes_to_all_and_the_answer_resolves() {
    let mut us = Us::settled();
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Pending);
    let question = Sent {
        to: ALL,
        tag: None,
        said: Said::ArpRequest {
            sender: v4(OUR_V4),
            target: v4(PEER_V4),
            target_mac: [0; 6],
        },
        bytes: 60,
    };
    assert_eq!(us.sent(), [question]);
    us.receive(&arp_reply((PEER, PEER_V4), (OURS, OUR_V4)));
    let (address, vlan, mac) = (ip(PEER_V4), None, PEER);
    assert_eq!(us.events(), [Event::Resolved { address, vlan, mac }]);
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
    assert_eq!(us.state(PEER_V4), State::Reachable);
}

/// RFC 826, packet reception: the reply names the request's sender as target, and goes only to that node.
#[test]
fn a_request_for_our_address_is_answered_and_creates_no_entry() {
    let mut us = Us::settled();
    us.receive(&arp(ALL, REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4)));
    let answer = Sent {
        to: PEER,
        tag: None,
        said: Said::ArpReply {
            sender: v4(OUR_V4),
            target: v4(PEER_V4),
            target_mac: PEER,
        },
        bytes: 60,
    };
    assert_eq!(us.sent(), [answer]);
    assert_eq!(us.us.entries().count(), 0);
}

/// RFC 826, "if the pair is already in my translation table, update": a request of the neighbour completes its entry.
#[test]
fn a_request_from_a_neighbour_that_is_being_asked_for_fills_it_in() {
    let mut us = Us::settled();
    us.resolve(OUR_V4, PEER_V4);
    us.sent();
    us.receive(&arp(ALL, REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4)));
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
    assert_eq!(us.sent().len(), 1, "and it is answered");
}

#[test]
fn a_request_for_a_foreign_address_is_not_answered() {
    let mut us = Us::settled();
    us.receive(&arp(ALL, REQUEST, (PEER, PEER_V4), ([0; 6], "10.0.0.9")));
    assert_eq!(us.sent(), []);
    assert_eq!(us.us.counters().refused(Refusal::Address), 1);
}

#[test]
fn a_reply_to_another_station_does_not_answer_our_question_but_shows_the_neighbour() {
    let mut us = Us::settled();
    us.resolve(OUR_V4, PEER_V4);
    us.receive(&arp_reply((PEER, PEER_V4), (OTHER, "10.0.0.3")));
    assert_eq!(us.state(PEER_V4), State::Incomplete, "not for us");
    us.receive(&arp(ALL, REPLY, (PEER, PEER_V4), (OTHER, "10.0.0.3")));
    assert_eq!(us.state(PEER_V4), State::Delay, "said to all");
}

/// RFC 826: packets of other hardware, protocols and lengths are refused. RFC 5227, 1.1: a packet with a group's MAC as
/// sender is refused, too.
#[test]
fn packets_that_are_not_of_one_station_with_one_address_are_refused() {
    let good = arp_packet(REPLY, (PEER, PEER_V4), (OURS, OUR_V4));
    let changed = |at: usize, byte: u8| {
        let mut packet = good.clone();
        packet[at] = byte;
        packet
    };
    let named = |address: &str| arp_packet(REPLY, (PEER, address), (OURS, OUR_V4));
    let cases = [
        (good[..27].to_vec(), Refusal::Malformed),
        (changed(1, 6), Refusal::Kind),
        (changed(2, 0x86), Refusal::Kind),
        (changed(4, 8), Refusal::Malformed),
        (changed(5, 16), Refusal::Malformed),
        (changed(7, 3), Refusal::Kind),
        (changed(8, 0x03), Refusal::Sender),
        (named("0.0.0.0"), Refusal::Sender),
        (named("127.0.0.1"), Refusal::Sender),
        (named("224.0.0.1"), Refusal::Sender),
        (named("255.255.255.255"), Refusal::Sender),
        (
            arp_packet(REPLY, (OURS, PEER_V4), (OURS, OUR_V4)),
            Refusal::Ourselves,
        ),
    ];
    for (packet, why) in cases {
        let mut us = Us::settled();
        us.resolve(OUR_V4, PEER_V4);
        let mut frame = ethernet(OURS, PEER, None, 0x0806, &packet);
        frame.truncate(14 + packet.len());
        us.receive(&frame);
        assert_eq!(us.us.counters().refused(why), 1, "{why:?} {packet:02x?}");
        assert_eq!(us.state(PEER_V4), State::Incomplete);
    }
}

/// RFC 5227, 2.3 and 3: we send ANNOUNCE_NUM requests for our own address, ANNOUNCE_INTERVAL apart.
#[test]
fn an_address_serves_at_once_and_is_announced_twice() {
    let mut us = Us::bare(Detection::Optimistic);
    us.add("10.0.0.1/24");
    let announcement = Said::ArpRequest {
        sender: v4(OUR_V4),
        target: v4(OUR_V4),
        target_mac: [0; 6],
    };
    assert_eq!(us.said(), std::slice::from_ref(&announcement));
    let (address, vlan) = (ip(OUR_V4), None);
    assert_eq!(us.events(), [Event::Announced { address, vlan }]);
    us.pass(milliseconds(1_999));
    assert_eq!(us.said(), []);
    us.pass(milliseconds(501));
    assert_eq!(us.said(), [announcement]);
    us.pass(seconds(60));
    assert_eq!((us.said(), us.events()), (vec![], vec![]));
    assert_eq!(us.us.due(), None);
}

/// RFC 5227, 2.1.1: we send PROBE_NUM probes with sender 0.0.0.0, PROBE_MIN to PROBE_MAX apart. RFC 5227, 2.3: we
/// announce the address ANNOUNCE_WAIT after the last probe.
#[test]
fn an_address_that_is_looked_for_first_serves_after_three_probes() {
    let mut us = Us::bare(Detection::First);
    us.add("10.0.0.1/24");
    let probe = Said::ArpRequest {
        sender: v4("0.0.0.0"),
        target: v4(OUR_V4),
        target_mac: [0; 6],
    };
    let detecting = Resolution::Unreachable(Reason::Detecting);
    let began = us.now;
    let mut probed = Vec::new();
    while us.events().is_empty() {
        assert_eq!(us.resolve(OUR_V4, PEER_V4), detecting);
        assert_eq!(us.us.source(ip(PEER_V4)), None);
        us.receive(&arp(ALL, REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4)));
        let due = us.us.due().expect("it goes on");
        us.pass(due - us.now);
        if us.us.counters().announced == 0 {
            assert_eq!(
                us.said(),
                std::slice::from_ref(&probe),
                "no answer, and no question of ours"
            );
            probed.push(us.now);
        }
    }
    let [first, second, third] = probed[..] else {
        panic!("{probed:?}")
    };
    assert!(first - began <= seconds(1));
    for interval in [second - first, third - second] {
        assert!((seconds(1)..=seconds(2)).contains(&interval));
    }
    assert_eq!(us.now - third, seconds(2));
    assert_eq!(us.said().len(), 1, "the announcement");
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Pending);
}

/// RFC 5227, 2.1.1: a packet from the address, or another node's probe for it, means that the address is taken.
#[test]
fn an_address_under_detection_is_given_up_if_another_node_has_or_probes_it() {
    let has = arp_reply((PEER, OUR_V4), (OURS, "0.0.0.0"));
    let wants = arp(ALL, REQUEST, (PEER, "0.0.0.0"), ([0; 6], OUR_V4));
    for frame in [has, wants] {
        let mut us = Us::bare(Detection::First);
        us.add("10.0.0.1/24");
        us.pass(seconds(2));
        us.sent();
        us.receive(&frame);
        let duplicate = Event::Duplicate {
            address: ip(OUR_V4),
            vlan: None,
            mac: PEER,
            detecting: true,
        };
        assert_eq!(us.events(), [duplicate]);
        us.pass(seconds(60));
        us.receive(&arp(ALL, REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4)));
        assert_eq!((us.said(), us.events()), (vec![], vec![]));
        let lost = Resolution::Unreachable(Reason::Duplicate);
        assert_eq!(us.resolve(OUR_V4, PEER_V4), lost);
        assert!(us.us.remove(ip(OUR_V4), us.now));
        us.add("10.0.0.1/24");
        us.pass(seconds(10));
        assert_eq!(us.events().len(), 1, "it is announced this time");
    }
}

/// Our own probe is not a conflict if a switch sends it back to us.
#[test]
fn our_own_frames_that_come_back_are_refused() {
    let mut us = Us::bare(Detection::First);
    us.add("10.0.0.1/24");
    us.pass(seconds(1));
    let mut out = [0; 1_518];
    let bytes = us.us.next_frame(&mut out).expect("a probe");
    us.receive(&out[..bytes]);
    assert_eq!(us.us.counters().refused(Refusal::Ourselves), 1);
    us.pass(seconds(10));
    assert!(matches!(us.events()[..], [Event::Announced { .. }]));
}

/// RFC 5227, 2.4 (c): we send one announcement in DEFEND_INTERVAL, and keep the address.
#[test]
fn an_address_of_ours_is_defended_once_in_ten_seconds_and_kept() {
    let mut us = Us::settled();
    for _ in 0..100 {
        us.receive(&arp_announcement((PEER, OUR_V4)));
        us.pass(milliseconds(250));
    }
    let defence = Said::ArpRequest {
        sender: v4(OUR_V4),
        target: v4(OUR_V4),
        target_mac: [0; 6],
    };
    assert_eq!(us.said(), vec![defence; 3], "in 25 seconds");
    let duplicate = Event::Duplicate {
        address: ip(OUR_V4),
        vlan: None,
        mac: PEER,
        detecting: false,
    };
    assert_eq!(us.events(), vec![duplicate; 3]);
    assert_eq!(us.us.counters().conflicts, 100);
    assert_eq!(us.us.source(ip(PEER_V4)), Some(ip(OUR_V4)));
    us.receive(&arp(ALL, REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4)));
    assert_eq!(us.said().len(), 1, "and answers go on");
}

/// RFC 5227, 2.1.1: our answer shows a node that probes for our address that the address is taken.
#[test]
fn a_probe_for_our_address_is_answered_and_is_no_conflict() {
    let mut us = Us::settled();
    us.receive(&arp(ALL, REQUEST, (PEER, "0.0.0.0"), ([0; 6], OUR_V4)));
    let answer = Said::ArpReply {
        sender: v4(OUR_V4),
        target: v4("0.0.0.0"),
        target_mac: PEER,
    };
    assert_eq!((us.said(), us.events()), (vec![answer], vec![]));
}

#[test]
fn answers_are_bounded_and_leave_room_for_our_own_questions() {
    let mut us = Us::settled();
    for _ in 0..10_000 {
        us.receive(&arp(ALL, REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4)));
    }
    us.resolve(OUR_V4, "10.0.0.9");
    let sent = us.sent();
    assert_eq!(sent.len(), 129, "half of 256, and the question");
    assert_eq!(sent[128].to, ALL);
    let counters = us.us.counters();
    assert_eq!((counters.answered, counters.unanswered), (128, 9_872));
}
