//! Any station on the link can send false ARP and neighbour discovery messages. The test delivers forged frames to a
//! function with a live connection. `neighbour/src/tests/strangers.rs` tests the crate `neighbour` alone.
//!
//! The frames are built here byte by byte (RFC 826, RFC 4861, RFC 5227), not by the code that parses them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use udapl::connection::EndCause;
use udapl::counters::NetworkCounters;
use udapl::fabric::{Fabric, mac};
use udapl::network::Address;
use udapl::{Adapter, ConnectFlags, ConnectionEventKind as Kind, OpenOptions, Qos};

use crate::support::{A, B, CONN_QUAL, LONG, Pair, PairConfig};

/// Number of forged frames.
const FLOOD: u32 = 100_000;
const ALL: [u8; 6] = [0xff; 6];

const fn ipv6(side: usize) -> Ipv6Addr {
    // CAST: a side is 0 or 1.
    #[expect(clippy::cast_possible_truncation, reason = "a side")]
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, side as u16 + 1)
}

fn ipv4(side: usize) -> Ipv4Addr {
    match Fabric::ipv4(side) {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address}"),
    }
}

fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Builds an ARP frame; operation 1 is a request, 2 a reply.
fn arp(to: [u8; 6], operation: u8, from: ([u8; 6], Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
    packet.extend(from.0);
    packet.extend(from.1.octets());
    packet.extend([0; 6]);
    packet.extend(target.octets());
    ethernet(to, from.0, 0x0806, &packet)
}

/// Builds an unsolicited neighbour advertisement with the override flag: `whose` is at `from`.
fn advertisement(from: [u8; 6], whose: Ipv6Addr, to: ([u8; 6], Ipv6Addr)) -> Vec<u8> {
    const ICMPV6: u8 = 58;
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(whose.octets());
    message.extend([2, 1]);
    message.extend(from);
    let bytes = u16::try_from(message.len()).expect("32");
    let mut summed = [whose.octets(), to.1.octets()].concat();
    summed.extend(u32::from(bytes).to_be_bytes());
    summed.extend([0, 0, 0, ICMPV6]);
    summed.extend(&message);
    let pairs = summed.chunks(2);
    let sum: u32 = pairs
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("folded");
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(bytes.to_be_bytes());
    packet.extend([ICMPV6, 255]);
    packet.extend(whose.octets());
    packet.extend(to.1.octets());
    packet.extend(message);
    ethernet(to.0, from, 0x86dd, &packet)
}

/// Builds a forged frame from a MAC that no function has; `n` selects the kind of frame.
fn forged(n: u32) -> Vec<u8> {
    let [_, a, b, c] = n.to_be_bytes();
    let (stranger, ours) = ([6, 0, 0, a, b, c], mac(A));
    // An address that neither side has: the sides have the first addresses of the network.
    let somewhere = Ipv4Addr::new(10, 0, 1 + b % 250, 1 + c % 250);
    match n % 6 {
        // The attacker claims the peer's address: in a broadcast, and in a reply.
        0 => arp(ALL, 1, (stranger, ipv4(B)), ipv4(B)),
        1 => arp(ours, 2, (stranger, ipv4(B)), ipv4(A)),
        2 => advertisement(stranger, ipv6(B), (ours, ipv6(A))),
        // The attacker sends an ARP request for our address.
        3 => arp(ALL, 1, (stranger, somewhere), ipv4(A)),
        // The attacker claims our address.
        4 => arp(ALL, 1, (stranger, ipv4(A)), ipv4(A)),
        _ => advertisement(stranger, ipv6(A), (ours, ipv6(A))),
    }
}

fn network(pair: &Pair) -> NetworkCounters {
    let stats = Adapter::of(&pair.sides[A].ia).stats();
    stats.expect("it is open").network.expect("it takes part")
}

#[test]
fn a_hundred_thousand_forged_frames_leave_a_connection_as_it_is() {
    let mut pair = Pair::unconnected(&PairConfig {
        options: [A, B].map(|side| {
            let second = Address {
                prefix: Some(64),
                ..IpAddr::V6(ipv6(side)).into()
            };
            OpenOptions::default()
                .address(Fabric::ipv4(side))
                .interface(second)
        }),
        ..PairConfig::default()
    });
    // A connects to an IPv4 address, which the driver has to resolve.
    let (ep, none) = (pair.sides[A].ep, ConnectFlags::empty());
    let (ia, peer) = (&mut pair.sides[A].ia, Fabric::ipv4(B));
    ia.ep_connect(ep, peer, CONN_QUAL, LONG, b"", Qos::BEST_EFFORT, none)
        .expect("it starts");
    let (cr, ep) = (pair.request(B), pair.sides[B].ep);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(ep), b"");
    accepted.expect("accepted");
    for side in [A, B] {
        pair.expect_connection(side, Kind::Established);
    }
    let function = pair.fabric.function(A);
    let commands = pair.fabric.sim.report(&function).opcodes.clone();
    for n in 0..FLOOD {
        pair.fabric.sim.deliver(&function, &forged(n));
        // The queue of received Ethernet frames is limited: frames that do not fit are lost.
        if n % 32 == 31 {
            pair.sides[A].ia.progress();
        }
        if n % 20_000 == 19_999 {
            pair.expect_alive();
        }
    }
    let told = network(&pair);
    assert!(told.received > u64::from(FLOOD) / 2, "{told:?}");
    assert!(told.contradicted > 0 && told.conflicts > 0, "{told:?}");
    assert_eq!(told.moved, 0, "{told:?}");
    // Replies, requests and announcements are rate-limited: the driver sends fewer frames than the attacker.
    let sent = told.answered + told.asked_one + told.asked_all + told.defended + told.announced;
    assert!(sent < u64::from(FLOOD) / 20, "{told:?}");
    // The driver has created no key, no queue and no address because of the flood: it has executed few commands.
    let later = &pair.fabric.sim.report(&function).opcodes;
    let made = |all: &std::collections::BTreeMap<_, u64>| all.values().sum::<u64>();
    assert!(made(later) - made(&commands) < 200, "{later:?}");
    pair.run_for(5_000);
    pair.expect_alive();
    let cause: Option<EndCause> = pair.sides[A]
        .ia
        .ep_end_cause(pair.sides[A].ep)
        .expect("an endpoint");
    assert_eq!(cause, None);
    pair.assert_no_complaints();
}
