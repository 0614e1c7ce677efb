//! Adapters that resolve each other's addresses, without configured MACs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hw_sim::Fault;
use mlx_prm::Opcode;
use udapl::connection::EndCause;
use udapl::error::ReturnType;
use udapl::event::{AsyncEvent, NetworkEvent};
use udapl::fabric::Fabric;
use udapl::network::Address;
use udapl::{ConnectFlags, ConnectionEventKind as Kind, Event, OpenOptions, Qos};

use crate::support::{A, B, CONN_QUAL, LONG, Pair, PairConfig, refused};

/// Returns an address of a side from the prefix for documentation (RFC 3849). Both sides' addresses are on one link.
fn ipv6(side: usize) -> IpAddr {
    let addresses = ["2001:db8::1", "2001:db8::2"];
    addresses[side].parse().expect("an address")
}

/// Returns the configuration of sides that have no static neighbours.
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

/// A connect to an address for which no station answers ends as DAT_CONNECTION_EVENT_UNREACHABLE. This takes less time
/// than all retransmissions of the connection manager's REQ.
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

/// An echo (ICMP) needs no RDMA at the other side, and the other side's program makes no call for the answer.
#[test]
fn a_node_is_asked_for_an_echo_and_answers() {
    for to in [Fabric::ipv4(B), ipv6(B)] {
        let mut pair = Pair::unconnected(&strangers());
        // The address must be resolved first. For a second the adapter's own address is optimistic, and the adapter
        // does not send solicitations (RFC 4429, 3.2).
        assert_eq!(pair.sides[A].ia.echo(to, 1), Ok(false));
        pair.run_for(2_500);
        assert_eq!(pair.sides[A].ia.echo(to, 2), Ok(true));
        assert_eq!(pair.sides[A].ia.echo_answered(), None);
        pair.run_for(10);
        let echo = pair.sides[A].ia.echo_answered().expect("an answer");
        assert_eq!((echo.address, echo.sequence, echo.bytes), (to, 2, 56));
        assert_eq!(pair.sides[A].ia.echo_answered(), None, "once");
        pair.assert_no_complaints();
    }
}

/// An echo waits for a link that trains. A link-local address contains its MAC, so the MAC is known before the link is
/// up.
#[test]
fn an_echo_waits_for_a_link_that_trains() {
    let fabric = Fabric::pair(1);
    fabric.sim.inject(&fabric.function(A), &Fault::LinkDown);
    let mut pair = Pair::over(fabric, &PairConfig::default());
    let to = pair.sides[B].ia.query().ia.ia_address;
    assert_eq!(pair.sides[A].ia.echo(to, 1), Ok(false));
    let function = pair.fabric.function(A);
    pair.fabric.sim.inject(&function, &Fault::LinkUp);
    pair.run_for(500);
    assert_eq!(pair.sides[A].ia.echo(to, 2), Ok(true));
    pair.run_for(500);
    let echo = pair.sides[A].ia.echo_answered().expect("an answer");
    assert_eq!((echo.address, echo.sequence), (to, 2));
}

#[test]
fn an_echo_of_a_node_that_is_not_there_or_not_to_be_reached_is_refused() {
    let mut pair = Pair::unconnected(&strangers());
    let nobody = "10.255.255.254".parse().expect("an address");
    assert_eq!(pair.sides[A].ia.echo(nobody, 1), Ok(false));
    pair.run_for(5_000);
    let asked = pair.sides[A].ia.echo(nobody, 1);
    refused(asked, ReturnType::InvalidAddress);
    assert_eq!(pair.sides[A].ia.echo_answered(), None);
}

/// Returns the network events of a side.
fn heard(pair: &mut Pair, side: usize) -> Vec<NetworkEvent> {
    let evd = pair.sides[side].ia.async_evd();
    let mut all = Vec::new();
    while let Ok(Some(event)) = pair.sides[side].ia.evd_dequeue(evd) {
        let Event::Async(AsyncEvent::Network(event)) = event else {
            panic!("{event:?}");
        };
        all.push(event);
    }
    all
}

fn cause(pair: &Pair, side: usize) -> Option<EndCause> {
    let Pair { sides, .. } = pair;
    sides[side]
        .ia
        .ep_end_cause(sides[side].ep)
        .expect("an endpoint")
}

/// Connects A to an address of B.
fn establish(pair: &mut Pair, to: IpAddr) {
    connect(pair, to);
    let (cr, b) = (pair.request(B), pair.sides[B].ep);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(b), b"");
    accepted.expect("accepted");
    pair.expect_connection(A, Kind::Established);
    pair.expect_connection(B, Kind::Established);
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn within(text: &str, prefix: u8) -> Address {
    Address {
        prefix: Some(prefix),
        ..ip(text).into()
    }
}

#[test]
fn an_address_that_is_added_is_found_and_connected_to_and_its_connections_end_when_it_is_removed() {
    for (address, prefix) in [("10.0.0.77", 8), ("2001:db8::77", 64)] {
        let mut pair = Pair::unconnected(&strangers());
        let before = pair.sides[B].ia.addresses();
        let added = pair.sides[B].ia.address_add(within(address, prefix));
        added.expect("there is room");
        assert_eq!(pair.sides[B].ia.addresses().len(), before.len() + 1);
        establish(&mut pair, ip(address));
        pair.expect_alive();
        let removed = pair.sides[B].ia.address_remove(ip(address));
        removed.expect("it is there");
        pair.expect_end(B, Kind::Broken);
        assert_eq!(cause(&pair, B), Some(EndCause::AddressRemoved));
        pair.expect_end(A, Kind::Disconnected);
        assert_eq!(cause(&pair, A), Some(EndCause::PeerDisconnected));
        assert_eq!(
            heard(&mut pair, B),
            [
                NetworkEvent::AddressAdded(ip(address)),
                NetworkEvent::AddressRemoved(ip(address))
            ]
        );
        assert_eq!(pair.sides[B].ia.addresses(), before);
        let ep = pair.sides[A].ep;
        pair.sides[A].ia.ep_reset(ep).expect("it is over");
        pair.run_for(100);
        connect(&mut pair, ip(address));
        // A still knows the MAC of the address, but the link is cut.
        pair.cut();
        pair.expect_end(A, Kind::Unreachable);
        pair.assert_no_complaints();
    }
}

/// When an address is removed, its entry in the device's table becomes free. So addresses can be removed and added any
/// number of times.
#[test]
fn addresses_that_are_removed_make_room() {
    let mut pair = Pair::unconnected(&strangers());
    let room = pair.sides[A].ia.provider().hca().caps().limits().gids as usize;
    let ia = &mut pair.sides[A].ia;
    let have = ia.addresses().len();
    let address = |n: usize| ip(&format!("10.0.{}.{}", 1 + n / 250, 1 + n % 250));
    // The network's own limit is 64 addresses.
    let most = room.min(64) - have;
    for n in 0..most {
        let added = ia.address_add(address(n).into());
        added.unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    let full = ia.address_add(address(most).into());
    assert!(full.is_err(), "the table is full");
    assert_eq!(ia.addresses().len(), have + most, "nothing has changed");
    for n in 0..3 * room {
        ia.address_remove(address(n)).expect("it is there");
        let added = ia.address_add(address(n + most).into());
        added.unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    pair.assert_no_complaints();
}

#[test]
fn an_address_that_the_device_refuses_is_none() {
    let mut pair = Pair::unconnected(&strangers());
    let before = pair.sides[B].ia.addresses();
    for opcode in [Opcode::SET_ROCE_ADDRESS, Opcode::MODIFY_NIC_VPORT_CONTEXT] {
        pair.refuse_next(B, opcode);
        let refusal = pair.sides[B].ia.address_add(within("2001:db8::77", 64));
        refused(refusal, ReturnType::InsufficientResources);
        assert_eq!(pair.sides[B].ia.addresses(), before, "{opcode:?}");
    }
    let added = pair.sides[B].ia.address_add(within("2001:db8::77", 64));
    added.expect("it takes it now");
    establish(&mut pair, ip("2001:db8::77"));
    pair.assert_no_complaints();
}

/// If both sides have the same address, both get an event that names the other side's MAC (RFC 5227, 2.4), and both
/// keep the address.
#[test]
fn an_address_that_both_have_is_told_on_both_sides() {
    let mut pair = Pair::unconnected(&strangers());
    let taken = Fabric::ipv4(A);
    let added = pair.sides[B].ia.address_add(taken.into());
    added.expect("nobody has said anything yet");
    let before = [A, B].map(|side| pair.sides[side].ia.addresses());
    pair.run_for(3000);
    for side in [A, B] {
        let mac = udapl::fabric::mac(1 - side);
        let told = heard(&mut pair, side);
        let about = |event: &NetworkEvent| matches!(event, NetworkEvent::AddressDuplicate { address, mac: whose, .. } if (*address, *whose) == (taken, mac));
        assert!(told.iter().any(about), "{side}: {told:?}");
        assert_eq!(pair.sides[side].ia.addresses(), before[side], "it stays");
    }
}

/// Addresses cannot be resolved while the link trains; a connect during that time must not end as unreachable.
#[test]
fn who_connects_while_the_link_trains_finds_a_stranger_when_it_is_up() {
    for to in [Fabric::ipv4(B), ipv6(B)] {
        let fabric = Fabric::pair(1);
        fabric.sim.inject(&fabric.function(A), &Fault::LinkDown);
        let mut pair = Pair::over(fabric, &strangers());
        connect(&mut pair, to);
        pair.run_for(50);
        let function = pair.fabric.function(A);
        pair.fabric.sim.inject(&function, &Fault::LinkUp);
        let (cr, b) = (pair.request(B), pair.sides[B].ep);
        pair.sides[B]
            .ia
            .cr_accept(cr, Some(b), b"")
            .expect("accepted");
        pair.expect_connection(A, Kind::Established);
        pair.expect_connection(B, Kind::Established);
        pair.expect_alive();
    }
}

/// A connect over a port that does not come up, as on a wire whose other end is unused, ends as
/// DAT_CONNECTION_EVENT_UNREACHABLE with the cause `PortDown`.
#[test]
fn who_connects_over_a_port_that_does_not_come_up_is_told_that_it_is_down() {
    let fabric = Fabric::pair(1);
    fabric.sim.inject(&fabric.function(A), &Fault::LinkDown);
    let mut pair = Pair::over(fabric, &strangers());
    connect(&mut pair, Fabric::ipv4(B));
    pair.expect_end(A, Kind::Unreachable);
    assert_eq!(cause(&pair, A), Some(EndCause::PortDown));
}

/// Traffic survives a link that is down for less than the connection's retry_count times the local ACK timeout (IBTA).
/// A connect over a link that is down is refused at once.
#[test]
fn traffic_survives_a_link_that_flaps_and_a_connect_over_one_that_is_down_is_refused_at_once() {
    let mut pair = Pair::unconnected(&strangers());
    establish(&mut pair, Fabric::ipv4(B));
    let function = pair.fabric.function(A);
    pair.fabric.sim.inject(&function, &Fault::LinkDown);
    pair.run_for(5);
    let another = pair.another_ep(A);
    let (none, started) = (ConnectFlags::empty(), pair.now());
    let attempt = pair.sides[A].ia.ep_connect(
        another,
        Fabric::ipv4(B),
        CONN_QUAL,
        LONG,
        b"",
        Qos::BEST_EFFORT,
        none,
    );
    let error = refused(attempt, ReturnType::InvalidAddress);
    assert!(error.detail().starts_with("the port is down"), "{error}");
    assert_eq!(pair.now(), started, "at once");
    let why = pair.sides[A].ia.last_device_error().unwrap_or_default();
    assert!(why.contains("is down"), "{why}");
    pair.fabric.sim.inject(&function, &Fault::LinkUp);
    pair.expect_alive();
    let flap = heard(&mut pair, A);
    let up = NetworkEvent::PortUp {
        megabits: Some(100_000),
        mtu: Some(1500),
    };
    assert_eq!(flap, [NetworkEvent::PortDown, up]);
}

/// No two sides of a simulated fabric have the same IPv4 address, however many sides there are.
#[test]
fn every_side_of_a_fabric_has_an_address_of_its_own() {
    let addresses: BTreeSet<IpAddr> = (0..1000).map(Fabric::ipv4).collect();
    assert_eq!(addresses.len(), 1000);
    let told = [0, 253, 254, 255, 509].map(|side| Fabric::ipv4(side).to_string());
    let expected = [
        "192.0.2.1",
        "192.0.2.254",
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.0",
    ];
    assert_eq!(told, expected);
}
