//! Tests that neighbours are keyed by VLAN and address (IEEE 802.1Q).

use super::peer::{Nd, O, REPLY, REQUEST, S, arp_packet, ethernet};
use super::*;
use crate::Refusal;

/// Makes a module with 10.0.0.1 and 2001:db8::1 in VLAN 5 with priority 3, 10.0.0.9 in VLAN 6, and no untagged address.
fn tagged() -> Us {
    let mut us = Us::bare(Detection::Never);
    for (text, id, priority) in [
        ("10.0.0.1/24", 5, 3),
        ("10.0.0.9/24", 6, 0),
        ("2001:db8::1/64", 5, 3),
    ] {
        let added = us
            .us
            .add(interface(text, Some(Vlan { id, priority }), None), us.now);
        added.expect("an address");
    }
    us.settle();
    us
}

fn arp(tag: Option<u16>, operation: u16, from: (Mac, &str), to: (Mac, &str)) -> Vec<u8> {
    ethernet(OURS, from.0, tag, 0x0806, &arp_packet(operation, from, to))
}

/// IEEE 802.1Q, 9.6: a tag has three bits of priority, one bit of drop eligibility, and twelve bits of VLAN ID.
#[test]
fn frames_have_the_tag_of_the_address_they_are_sent_from() {
    let mut us = tagged();
    us.resolve(OUR_V4, PEER_V4);
    us.resolve("10.0.0.9", PEER_V4);
    us.resolve(OUR_V6, PEER_V6);
    let sent = us.sent();
    let tags: Vec<_> = sent.iter().map(|sent| (sent.tag, sent.bytes)).collect();
    assert_eq!(
        tags,
        [(Some((5, 3)), 60), (Some((6, 0)), 60), (Some((5, 3)), 90)]
    );
    us.receive(&arp(
        Some(0xa005),
        REQUEST,
        (PEER, PEER_V4),
        ([0; 6], OUR_V4),
    ));
    let sent = us.sent();
    assert_eq!(
        (sent[0].to, sent[0].tag),
        (PEER, Some((5, 3))),
        "the answer, too"
    );
}

#[test]
fn the_same_address_in_two_vlans_is_two_neighbours() {
    let mut us = tagged();
    us.resolve(OUR_V4, PEER_V4);
    us.resolve("10.0.0.9", PEER_V4);
    us.receive(&arp(Some(6), REPLY, (OTHER, PEER_V4), (OURS, "10.0.0.9")));
    assert_eq!(us.resolve("10.0.0.9", PEER_V4), Resolution::Known(OTHER));
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Pending);
    us.receive(&arp(Some(5), REPLY, (PEER, PEER_V4), (OURS, OUR_V4)));
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
    assert_eq!(us.resolve("10.0.0.9", PEER_V4), Resolution::Known(OTHER));
    let vlans: Vec<_> = us.us.entries().map(|entry| entry.vlan).collect();
    assert_eq!(vlans, [Some(5), Some(6)]);
}

#[test]
fn an_answer_in_another_vlan_or_without_one_answers_nothing() {
    let mut us = tagged();
    us.resolve(OUR_V4, PEER_V4);
    us.resolve(OUR_V6, PEER_V6);
    for (tag, why) in [
        (Some(6), Refusal::Unasked),
        (None, Refusal::Vlan),
        (Some(7), Refusal::Vlan),
        (Some(0x6000), Refusal::Vlan),
    ] {
        let before = us.us.counters().refused(why);
        us.receive(&arp(tag, REPLY, (PEER, PEER_V4), (OURS, OUR_V4)));
        let nd = Nd {
            tag,
            ..Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O)
        };
        us.receive(&nd.frame());
        assert_eq!(us.us.counters().refused(why), before + 2, "{tag:?}");
        assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Pending);
        assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Pending);
    }
}

#[test]
fn a_frame_of_another_vlan_is_not_answered_and_is_no_conflict() {
    let mut us = tagged();
    us.receive(&arp(Some(6), REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4)));
    us.receive(&arp(Some(6), REQUEST, (PEER, OUR_V4), ([0; 6], OUR_V4)));
    let nd = Nd {
        tag: Some(6),
        ..Nd::solicit(PEER, PEER_V6, OUR_V6)
    };
    us.receive(&nd.frame());
    assert_eq!((us.said(), us.events()), (vec![], vec![]));
    assert_eq!(us.us.counters().conflicts, 0);
}

/// IEEE 802.1Q, table 9-2: a tag with VLAN ID 0 carries only a priority.
#[test]
fn a_tag_of_priority_only_is_no_vlan() {
    let mut us = Us::settled();
    us.receive(&arp(
        Some(0xe000),
        REQUEST,
        (PEER, PEER_V4),
        ([0; 6], OUR_V4),
    ));
    let sent = us.sent();
    assert_eq!((sent[0].to, sent[0].tag), (PEER, None));
}

#[test]
fn a_tag_within_a_tag_is_refused() {
    let mut us = tagged();
    let packet = arp_packet(REQUEST, (PEER, PEER_V4), ([0; 6], OUR_V4));
    for inner in [[0x81, 0x00], [0x88, 0xa8]] {
        let payload = [&[0, 5][..], &[0x08, 0x06], &packet].concat();
        let outer = u16::from_be_bytes(inner);
        us.receive(&ethernet(ALL, PEER, Some(5), outer, &payload));
    }
    assert_eq!(us.said(), []);
    assert_eq!(us.us.counters().refused(Refusal::Kind), 2);
}
