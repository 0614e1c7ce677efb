//! Tests of the choice of source and next hop.

use super::*;
use crate::Reason;

/// Makes a module with the addresses 10.0.0.1/8, 10.1.0.1/16 with a gateway, 192.0.2.1/24 and 169.254.1.1/16, and with
/// IPv6 addresses: one link-local, two global, one of these with a gateway.
fn world() -> Us {
    let mut us = Us::bare(Detection::Never);
    let with = [
        ("10.0.0.1/8", None),
        ("10.1.0.1/16", Some("10.1.0.254")),
        ("192.0.2.1/24", None),
        ("169.254.1.1/16", None),
        ("2001:db8::1/64", Some("fe80::9")),
        ("2001:db8::7/48", None),
        ("fe80::1/64", None),
    ];
    for (text, gateway) in with {
        let added = us.us.add(interface(text, None, gateway), us.now);
        added.expect("an address");
    }
    us.settle();
    us
}

#[test]
fn the_source_has_the_scope_and_the_longest_prefix_of_the_destination_or_a_gateway() {
    let us = world();
    let cases = [
        ("10.0.0.1", Some("10.0.0.1")),
        ("10.2.0.1", Some("10.0.0.1")),
        ("10.1.7.7", Some("10.1.0.1")),
        ("192.0.2.77", Some("192.0.2.1")),
        ("::ffff:192.0.2.77", Some("192.0.2.1")),
        ("198.51.100.1", Some("10.1.0.1")),
        ("169.254.9.9", Some("169.254.1.1")),
        ("2001:db8::99", Some("2001:db8::1")),
        ("2001:db8:0:1::99", Some("2001:db8::7")),
        ("2001:db8:9::1", Some("2001:db8::1")),
        ("fe80::99", Some("fe80::1")),
        // RFC 4291, 2.5.6: a link-local address is on this link, even if its prefix differs from ours.
        ("fe80:0:0:1::99", Some("fe80::1")),
    ];
    for (destination, source) in cases {
        let found = us.us.source(ip(destination));
        assert_eq!(found, source.map(ip), "{destination}");
    }
}

#[test]
fn a_destination_that_nothing_reaches_has_no_source() {
    let mut us = Us::bare(Detection::Never);
    us.add("10.0.0.1/24");
    us.add("fe80::1/64");
    for destination in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(us.us.source(ip(destination)), None, "{destination}");
    }
}

#[test]
fn the_next_hop_is_the_destination_on_link_or_the_gateway() {
    let us = world();
    let cases = [
        ("10.0.0.1", "10.9.9.9", Ok("10.9.9.9")),
        // The destination is on the link of another of our addresses.
        ("10.0.0.1", "192.0.2.9", Ok("192.0.2.9")),
        ("10.1.0.1", "198.51.100.1", Ok("10.1.0.254")),
        // The gateway belongs to another of our addresses in the same VLAN.
        ("192.0.2.1", "198.51.100.1", Ok("10.1.0.254")),
        ("2001:db8::1", "2001:db8:9::1", Ok("fe80::9")),
        ("2001:db8::1", "fe80::77", Ok("fe80::77")),
        ("::ffff:10.0.0.1", "::ffff:10.9.9.9", Ok("10.9.9.9")),
        // RFC 4291, 2.5.6, and RFC 3927, 2.7: routers do not forward packets from these sources.
        ("fe80::1", "2001:db8:9::1", Err(Reason::NoRoute)),
        ("169.254.1.1", "198.51.100.1", Err(Reason::NoRoute)),
        ("10.7.7.7", "10.0.0.2", Err(Reason::NotOurs)),
        ("10.0.0.1", "2001:db8::2", Err(Reason::NotOurs)),
        ("10.0.0.1", "0.0.0.0", Err(Reason::NotUnicast)),
        ("10.0.0.1", "127.0.0.1", Err(Reason::NotUnicast)),
        ("10.0.0.1", "224.0.0.1", Err(Reason::NotUnicast)),
        ("10.0.0.1", "255.255.255.255", Err(Reason::NotUnicast)),
        ("10.0.0.1", "192.0.2.255", Err(Reason::NotUnicast)),
        ("2001:db8::1", "ff02::1", Err(Reason::NotUnicast)),
        ("2001:db8::1", "::", Err(Reason::NotUnicast)),
    ];
    for (source, destination, hop) in cases {
        let found = us.us.next_hop(ip(source), ip(destination));
        assert_eq!(found, hop.map(ip), "{source} {destination}");
    }
}

#[test]
fn without_a_gateway_there_is_no_route_and_nothing_is_asked() {
    let mut us = Us::settled();
    let no_route = Resolution::Unreachable(Reason::NoRoute);
    assert_eq!(us.resolve(OUR_V4, "192.0.2.1"), no_route);
    assert_eq!(us.resolve(OUR_V6, "2001:db8:1::1"), no_route);
    assert_eq!((us.said(), us.us.entries().count()), (vec![], 0));
}

#[test]
fn our_own_addresses_are_at_our_mac() {
    let mut us = world();
    for (source, destination) in [
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.1"),
        ("fe80::1", "2001:db8::1"),
    ] {
        assert_eq!(us.resolve(source, destination), Resolution::Known(OURS));
    }
    assert_eq!(us.us.entries().count(), 0);
}

#[test]
fn an_off_link_destination_asks_for_the_gateway_which_events_name() {
    let mut us = world();
    assert_eq!(us.resolve("10.1.0.1", "198.51.100.1"), Resolution::Pending);
    us.receive(&peer::arp_reply((PEER, "10.1.0.254"), (OURS, "10.1.0.1")));
    let (address, vlan, mac) = (ip("10.1.0.254"), None, PEER);
    assert_eq!(us.events(), [Event::Resolved { address, vlan, mac }]);
    assert_eq!(
        us.resolve("10.1.0.1", "203.0.113.1"),
        Resolution::Known(PEER)
    );
    // A static entry for a destination behind the gateway applies to that destination.
    us.us
        .add_static(ip("203.0.113.1"), OTHER)
        .expect("a station");
    assert_eq!(
        us.resolve("10.1.0.1", "203.0.113.1"),
        Resolution::Known(OTHER)
    );
    us.pass(seconds(100));
    assert_eq!(us.state("10.1.0.254"), State::Stale);
    us.confirm("10.1.0.1", "198.51.100.1");
    assert_eq!(us.state("10.1.0.254"), State::Reachable);
}
