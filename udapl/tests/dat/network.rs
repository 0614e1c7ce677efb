//! Adapters that find each other: nobody has typed in a MAC.

use std::net::IpAddr;

use udapl::fabric::Fabric;
use udapl::{Address, ConnectFlags, ConnectionEventKind as Kind, OpenOptions, Qos};

use crate::support::{A, B, CONN_QUAL, LONG, Pair, PairConfig};

/// An address of documentation (RFC 3849), on one link with the other side's.
fn ipv6(side: usize) -> IpAddr {
    let addresses = ["2001:db8::1", "2001:db8::2"];
    addresses[side].parse().expect("an address")
}

/// Sides that know nothing of each other but what they hear.
fn strangers() -> PairConfig {
    PairConfig {
        options: [A, B].map(|side| {
            OpenOptions::default()
                .address(Fabric::ipv4(side))
                .interface(Address {
                    prefix: Some(64),
                    ..ipv6(side).into()
                })
        }),
        ..PairConfig::default()
    }
}

fn connect(pair: &mut Pair, to: IpAddr) {
    let (ep, none) = (pair.sides[A].ep, ConnectFlags::empty());
    pair.sides[A]
        .ia
        .ep_connect(ep, to, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, none)
        .expect("it starts");
}

/// Clauses: CONN-8.
#[test]
fn sides_that_know_nothing_of_each_other_connect_over_either_family() {
    for to in [Fabric::ipv4(B), ipv6(B)] {
        let mut pair = Pair::unconnected(&strangers());
        connect(&mut pair, to);
        let (cr, b) = (pair.request(B), pair.sides[B].ep);
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"")
            .expect("accepted");
        pair.expect_connection(A, Kind::Established);
        pair.expect_connection(B, Kind::Established);
        pair.expect_alive();
        pair.assert_no_complaints();
    }
}

/// DAT_CONNECTION_EVENT_UNREACHABLE: the address is asked for, and nobody answers. It does not take until the connection manager has
/// repeated its request often enough.
#[test]
fn an_address_that_nobody_answers_for_is_unreachable_within_seconds() {
    let mut pair = Pair::unconnected(&strangers());
    let started = pair.fabric.sim.clock().now();
    connect(&mut pair, "10.255.255.254".parse().expect("an address"));
    pair.expect_end(A, Kind::Unreachable);
    let waited = pair.fabric.sim.clock().now() - started;
    assert!(waited.as_secs() < 5, "{waited:?}");
    pair.assert_no_complaints();
}
