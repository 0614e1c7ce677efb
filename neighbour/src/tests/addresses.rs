//! Tests of the checks of our addresses, and of properties derived from an address alone.

use super::*;
use crate::address::{group_mac, named_mac, solicited_node};
use crate::{AddressError, Reason};

fn refused(interface: Address) -> AddressError {
    let mut us = Us::settled();
    let error = us.us.add(interface, us.now).expect_err("refused");
    assert_eq!(us.us.addresses().count(), 3, "nothing has changed");
    assert_eq!(us.sent(), []);
    error
}

#[test]
fn an_address_that_is_not_one_nodes_is_refused() {
    let cases = [
        "0.0.0.0/24",
        "0.1.2.3/24",
        "127.0.0.1/8",
        "224.0.0.1/24",
        "255.255.255.255/32",
        "240.0.0.1/24",
        // RFC 1122, 3.2.1.3: the address of the network, and its broadcast address.
        "192.0.2.0/24",
        "192.0.2.255/24",
        "192.0.2.3/30",
        "::/64",
        "::1/128",
        "ff02::1/64",
        "::ffff:127.0.0.1/24",
    ];
    for text in cases {
        let address = interface(text, None, None).address.to_canonical();
        let error = refused(interface(text, None, None));
        assert_eq!(error, AddressError::NotUnicast { address });
    }
}

/// RFC 3021: a link of two nodes has no broadcast address.
#[test]
fn both_addresses_of_a_prefix_of_31_bits_are_nodes() {
    let mut us = Us::bare(Detection::Never);
    us.add("192.0.2.0/31");
    assert_eq!(us.resolve("192.0.2.0", "192.0.2.1"), Resolution::Pending);
}

#[test]
fn errors_say_the_numbers() {
    let (address, most) = (ip("192.0.2.1"), 32);
    let error = refused(interface("192.0.2.1/33", None, None));
    let expected = AddressError::Prefix {
        address,
        prefix: 33,
        most,
    };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "192.0.2.1/33: the prefix has at most 32 bits"
    );
    assert!(matches!(
        refused(interface("2001:db8:1::1/129", None, None)),
        AddressError::Prefix { most: 128, .. }
    ));
    for (id, priority) in [(0, 0), (4_095, 0), (1, 8)] {
        let vlan = Some(Vlan { id, priority });
        let error = refused(interface("192.0.2.1/24", vlan, None));
        assert_eq!(error, AddressError::Vlan { id, priority });
    }
    // One of our addresses cannot be in two VLANs. An IPv4-mapped IPv6 address is the same as the IPv4 address.
    let vlan = Some(Vlan { id: 1, priority: 0 });
    let address = ip(OUR_V4);
    let taken = AddressError::Taken { address };
    assert_eq!(refused(interface("10.0.0.1/24", vlan, None)), taken);
    assert_eq!(refused(interface("::ffff:10.0.0.1/24", None, None)), taken);
}

#[test]
fn a_gateway_is_a_neighbour() {
    let cases = [
        ("192.0.2.1/24", "192.0.3.1"),
        ("192.0.2.1/24", "192.0.2.1"),
        ("192.0.2.1/24", "192.0.2.255"),
        ("192.0.2.1/24", "fe80::1"),
        ("192.0.2.1/32", "192.0.2.2"),
        ("2001:db8:1::1/64", "2001:db8:2::1"),
        ("2001:db8:1::1/64", "192.0.2.1"),
        ("2001:db8:1::1/64", "ff02::2"),
    ];
    for (text, gateway) in cases {
        let error = refused(interface(text, None, Some(gateway)));
        let is_that = matches!(error, AddressError::GatewayNotOnLink { gateway: said, .. } if said == ip(gateway));
        assert!(is_that, "{text} {gateway}: {error}");
    }
    let mut us = Us::bare(Detection::Never);
    // RFC 4291, 2.5.6: the link-local address of a router is on link for every prefix.
    let added = us.us.add(
        interface("2001:db8:1::1/128", None, Some("fe80::9")),
        us.now,
    );
    assert_eq!(added, Ok(()));
}

#[test]
fn there_are_as_many_addresses_as_were_asked_for_and_never_more_than_a_report_holds() {
    for (asked, most) in [(2, 2), (1_000, 64)] {
        let mut us = Us::of(Config {
            addresses: asked,
            ..Config::new(OURS, 7)
        });
        for last in 1..=most {
            us.add(&format!("2001:db8::{last:x}/64"));
        }
        let one_more = us
            .us
            .add(interface("2001:db8::ffff/64", None, None), us.now);
        assert_eq!(one_more, Err(AddressError::TooMany { have: most, most }));
        assert!(us.us.remove(ip("2001:db8::1"), us.now));
        assert!(!us.us.remove(ip("2001:db8::1"), us.now));
        us.add("2001:db8::ffff/64");
        us.sent();
    }
}

#[test]
fn static_entries_are_stations_and_win() {
    let mut us = Us::settled();
    let not_unicast = AddressError::NotUnicast {
        address: ip("ff02::1"),
    };
    assert_eq!(us.us.add_static(ip("ff02::1"), PEER), Err(not_unicast));
    for mac in [[0; 6], ALL, [1, 0, 0x5e, 0, 0, 1]] {
        let error = us.us.add_static(ip(PEER_V4), mac);
        assert_eq!(error, Err(AddressError::NotAMac { mac }));
    }
    // A sender that waits for the neighbour gets the static MAC at once.
    us.resolve(OUR_V4, PEER_V4);
    us.us
        .add_static(ip("::ffff:10.0.0.2"), OTHER)
        .expect("a station");
    let (address, vlan, mac) = (ip(PEER_V4), None, OTHER);
    assert_eq!(us.events(), [Event::Resolved { address, vlan, mac }]);
    us.sent();
    us.receive(&states::answer(OUR_V4, PEER_V4, PEER));
    us.receive(&states::announce(PEER_V4, PEER));
    us.pass(seconds(100));
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Known(OTHER));
    assert_eq!((us.said(), us.events()), (vec![], vec![]));
    let shown = us.us.entries().next().expect("it is shown");
    assert_eq!((shown.mac, shown.state), (Some(OTHER), None));

    assert!(us.us.remove_static(ip(PEER_V4)));
    assert!(!us.us.remove_static(ip(PEER_V4)));
    assert_eq!(us.resolve(OUR_V4, PEER_V4), Resolution::Pending);
}

/// The solicited-node group is that of the example in RFC 4291, 2.7.1. The group's MAC has the last four bytes of the
/// group (RFC 2464, 7).
#[test]
fn groups_are_made_as_the_rfcs_say() {
    let address = peer::v6("4037::1:800:200e:8c6c");
    let group = solicited_node(address);
    assert_eq!(group, peer::v6("ff02::1:ff0e:8c6c"));
    assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
}

/// Example of RFC 2464, 4: the MAC 34-56-78-9A-BC-DE is derived from the address.
#[test]
fn a_link_local_address_of_eui_64_names_its_mac() {
    let mac = [0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde];
    assert_eq!(named_mac(ip("fe80::3656:78ff:fe9a:bcde")), Some(mac));
    let nameless = [
        "fe80::1",
        "2001:db8::3656:78ff:fe9a:bcde",
        "fe80::1:3656:78ff:fe9a:bcde",
        // The first address names the MAC of a group, the second the zero MAC.
        "fe80::3756:78ff:fe9a:bcde",
        "fe80::200:ff:fe00:0",
        "10.0.0.1",
    ];
    for text in nameless {
        assert_eq!(named_mac(ip(text)), None, "{text}");
    }
}

#[test]
fn an_address_that_goes_takes_its_questions_with_it() {
    let mut us = Us::bare(Detection::Never);
    us.add("10.0.0.1/24");
    us.add("10.0.0.9/24");
    us.settle();
    us.resolve(OUR_V4, PEER_V4);
    us.sent();
    us.us.remove(ip(OUR_V4), us.now);
    us.pass(seconds(1));
    let said = us.said();
    assert!(
        matches!(said[..], [Said::ArpRequest { sender, .. }] if sender == peer::v4("10.0.0.9")),
        "another of ours asks on: {said:?}"
    );
    us.us.remove(ip("10.0.0.9"), us.now);
    let (address, vlan, reason) = (ip(PEER_V4), None, Reason::Forgotten);
    let gone = Event::Unreachable {
        address,
        vlan,
        reason,
    };
    assert_eq!(us.events(), [gone]);
    us.pass(seconds(10));
    assert_eq!(us.said(), []);
    assert_eq!(us.us.due(), None);
}
