//! Tests of the link going down and coming up.

use super::*;
use crate::{Reason, Refusal};

#[test]
fn while_the_link_is_down_nothing_is_sent_and_nothing_is_heard() {
    let mut us = states::reachable(OUR_V4, PEER_V4);
    us.resolve(OUR_V4, "10.0.0.3");
    us.us.link(false, us.now);
    assert_eq!(us.sent(), [], "what waited is gone");
    let (address, vlan, reason) = (ip("10.0.0.3"), None, Reason::LinkDown);
    let gone = Event::Unreachable {
        address,
        vlan,
        reason,
    };
    assert_eq!(us.events(), [gone], "who waited is told");
    assert_eq!(us.state(PEER_V4), State::Stale);
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
    let down = Resolution::Unreachable(Reason::LinkDown);
    assert_eq!(us.resolve(OUR_V4, "10.0.0.3"), down);
    assert_eq!(
        us.resolve("fe80::1", "fe80::ff:fe00:2"),
        Resolution::Known(PEER)
    );
    us.add("10.0.0.7/24");
    us.receive(&states::announce(PEER_V4, OTHER));
    us.pass(seconds(1_000));
    assert_eq!(
        (us.said(), us.events(), us.us.due()),
        (vec![], vec![], None)
    );
    assert_eq!(us.us.counters().refused(Refusal::LinkDown), 1);
    assert_eq!(us.us.entries().count(), 1, "nothing was made meanwhile");
}

/// RFC 5227, 2.3, and RFC 4861, 7.2.6: our addresses are announced again. RFC 3810, 6.1: our groups are reported again.
#[test]
fn when_the_link_is_up_again_our_addresses_are_announced_and_neighbours_asked_when_used() {
    let mut us = states::reachable(OUR_V4, PEER_V4);
    us.us.link(false, us.now);
    us.pass(seconds(10));
    us.us.link(true, us.now);
    let announced = |address| Event::Announced {
        address: ip(address),
        vlan: None,
    };
    assert_eq!(us.events(), [OUR_V4, OUR_V6, "fe80::1"].map(announced));
    assert!(matches!(us.said()[0], Said::Report { .. }));
    us.settle();
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(PEER));
    us.pass(seconds(5));
    assert_eq!(us.sent()[0].to, PEER);
    us.us.link(true, us.now);
    assert_eq!(us.events(), [], "it was up");
}

#[test]
fn a_duplicate_address_is_detected_again_when_the_link_is_up_again() {
    let mut us = Us::bare(Detection::Optimistic);
    us.add("2001:db8::1/64");
    us.receive(&peer::Nd::detect(PEER, OUR_V6).frame());
    assert!(matches!(
        us.events()[..],
        [Event::Duplicate {
            detecting: true,
            ..
        }]
    ));
    us.us.link(false, us.now);
    us.us.link(true, us.now);
    us.pass(seconds(1));
    assert!(matches!(us.events()[..], [Event::Announced { .. }]));
}

#[test]
fn an_address_that_was_being_looked_for_when_the_link_went_is_looked_for_again() {
    let mut us = Us::bare(Detection::First);
    us.add("10.0.0.1/24");
    us.pass(seconds(3));
    us.us.link(false, us.now);
    us.pass(seconds(60));
    assert_eq!(us.events(), []);
    us.us.link(true, us.now);
    us.sent();
    us.pass(seconds(8));
    let probes = us
        .said()
        .into_iter()
        .filter(|said| matches!(said, Said::ArpRequest { sender, .. } if sender.is_unspecified()));
    assert_eq!(probes.count(), 3);
    assert!(matches!(us.events()[..], [Event::Announced { .. }]));
}

#[test]
fn time_that_goes_back_is_the_time_that_was() {
    let mut us = states::reachable(OUR_V4, PEER_V4);
    us.pass(seconds(100));
    us.us.tick(us.now);
    us.us.tick(Duration::ZERO);
    us.us
        .received(&states::announce(PEER_V4, PEER), Duration::ZERO);
    assert_eq!(
        us.us.resolve(ip(OUR_V4), ip(PEER_V4), Duration::ZERO),
        Resolution::Known(PEER)
    );
    us.pass(seconds(5));
    let sent = us.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
}

#[test]
fn a_frame_that_does_not_fit_is_lost_and_counted() {
    let mut us = Us::settled();
    us.resolve(OUR_V6, PEER_V6);
    us.resolve(OUR_V4, PEER_V4);
    let mut out = [0; 60];
    assert_eq!(
        us.us.next_frame(&mut out),
        Some(60),
        "the one of 86 bytes is not"
    );
    assert_eq!(us.us.next_frame(&mut out), None);
    assert_eq!(us.us.counters().frames_lost, 1);
}
