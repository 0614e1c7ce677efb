//! Tests with recorded frames of other implementations.
//!
//! - `MININET`: frames that two Linux hosts of a Mininet network send when they come up. They are from the packet-in
//!   messages that M. Kranch's fake OpenFlow switch plays back (`fakeSwitch.py`, OpenFlow 1.0, from byte 18 of each
//!   message).
//! - `HP`: an advertisement without an option, which answers a unicast solicitation, and a router's advertisement
//!   (google/gopacket, `layers/icmp6_test.go`).
//! - `DOCKER`: an ARP request of one container for the MAC of another, recorded with Wireshark (`main_test.go` of an
//!   agent; the repository is not known).
//! - `ARP`: the packet of smoltcp's own tests (`src/wire/arp.rs`).

use super::peer::{ethernet, v4, v6};
use super::*;
use crate::Refusal;
use crate::wire::mld::{Record, report};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| {
        let text = str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(text, 16).expect("hex")
    };
    digits.chunks(2).map(byte).collect()
}

const MININET_MAC: Mac = [0x7a, 0x8e, 0xbe, 0x84, 0xfa, 0x12];
const MININET_ADDRESS: &str = "fe80::788e:beff:fe84:fa12";
const MININET_REPORT: &str = "333300000016 7a8ebe84fa12 86dd 60000000 0024 00 01 00000000000000000000000000000000
    ff020000000000000000000000000016 3a00050200000100 8f0074f300000001 04000000 ff0200000000000000000001ff84fa12";
const MININET_DETECTION: &str =
    "3333ff84fa12 7a8ebe84fa12 86dd 60000000 0018 3a ff 00000000000000000000000000000000
    ff0200000000000000000001ff84fa12 8700516a00000000 fe80000000000000788ebefffe84fa12";
const MININET_SECOND_REPORT: &str = "333300000016 6ae6be545fdd 86dd 60000000 0024 00 01 fe8000000000000068e6befffe545fdd
    ff020000000000000000000000000016 3a00050200000100 8f008abf00000001 04000000 ff0200000000000000000001ff545fdd";
const MININET_ROUTERS: &str =
    "333300000002 7a8ebe84fa12 86dd 60000000 0010 3a ff fe80000000000000788ebefffe84fa12
    ff020000000000000000000000000002 850018e200000000 01017a8ebe84fa12";

const HP_ADVERTISEMENT: &str =
    "001fcab37640 24be05270b17 86dd 60000000 0018 3a ff 262000001005000026be05fffe270b17
    fe80000000000000021fcafffeb37640 88001ed640000000 262000001005000026be05fffe270b17";
const HP_ROUTER: &str = "333300000001 de4272b01ef4 86dd 60000000 0020 3a ff fe80000000000000dc4272fffeb01ef4
    ff020000000000000000000000000001 86004c6b400007080000000000000000 0101de4272b01ef4 05010000000005dc";

const DOCKER_REQUEST: &str =
    "ffffffffffff 0242ac140002 0806 0001080006040001 0242ac140002 ac140002 000000000000 ac140006";

const ARP_REQUEST: &str = "0001080006040001 111213141516 21222324 313233343536 41424344";

/// For a new link-local address we send the same bytes as a Linux host: a report of the group, and the solicitation of
/// duplicate detection.
#[test]
fn frames_sent_for_a_new_address_are_those_of_linux() {
    let mut us = Us::of(Config::new(MININET_MAC, 7));
    us.add(&format!("{MININET_ADDRESS}/64"));
    let mut out = [0xa5; 1_518];
    for expected in [MININET_REPORT, MININET_DETECTION] {
        let sent = us.us.next_frame(&mut out).expect("a frame");
        assert_eq!(out[..sent], bytes(expected));
    }
    assert_eq!(us.us.next_frame(&mut out), None);
}

#[test]
fn a_report_from_a_link_local_address_is_what_linux_sends() {
    let group = v6("ff02::1:ff54:5fdd");
    let source = v6("fe80::68e6:beff:fe54:5fdd");
    let mac = [0x6a, 0xe6, 0xbe, 0x54, 0x5f, 0xdd];
    let report = report(source, &[(group, Record::Joined)], mac, None);
    assert_eq!(report, bytes(MININET_SECOND_REPORT));
}

/// RFC 4862, 5.4.3: the recorded host runs detection for the address for which our own detection is running.
#[test]
fn a_linux_host_that_looks_for_our_address_takes_it_while_we_look_and_not_later() {
    let mut us = Us::bare(Detection::Optimistic);
    us.add(&format!("{MININET_ADDRESS}/64"));
    us.receive(&bytes(MININET_DETECTION));
    let duplicate = Event::Duplicate {
        address: ip(MININET_ADDRESS),
        vlan: None,
        mac: MININET_MAC,
        detecting: true,
    };
    assert_eq!(us.events(), [duplicate]);

    let mut us = Us::bare(Detection::Never);
    us.add(&format!("{MININET_ADDRESS}/64"));
    us.settle();
    us.receive(&bytes(MININET_DETECTION));
    let said = us.said();
    assert!(
        matches!(&said[..], [Said::Advertise { flags: 0x20, destination, .. }] if *destination == v6("ff02::1")),
        "{said:?}"
    );
}

/// RFC 4861, 7.2.5: the answer to a unicast solicitation may omit the MAC. The recorded advertisement has only the
/// solicited flag.
#[test]
fn an_advertisement_without_a_mac_proves_the_one_that_was_asked() {
    let mut us = Us::of(Config {
        detection: Detection::Never,
        ..Config::new([0x00, 0x1f, 0xca, 0xb3, 0x76, 0x40], 7)
    });
    us.add("fe80::21f:caff:feb3:7640/64");
    us.add("2620:0:1005::1/64");
    us.settle();
    let (ours, peer) = (
        "fe80::21f:caff:feb3:7640",
        "2620:0:1005:0:26be:5ff:fe27:b17",
    );
    let hp: Mac = [0x24, 0xbe, 0x05, 0x27, 0x0b, 0x17];
    us.resolve(ours, peer);
    us.receive(&bytes(HP_ADVERTISEMENT));
    assert_eq!(us.state(peer), State::Incomplete, "it does not say which");
    assert_eq!(us.us.counters().refused(Refusal::Unasked), 1);

    let frame = peer::Nd::announce(hp, peer, peer::O).frame();
    us.receive(&frame);
    us.pass(seconds(5));
    assert_eq!(us.state(peer), State::Probe);
    us.receive(&bytes(HP_ADVERTISEMENT));
    assert_eq!(us.state(peer), State::Reachable);
    assert_eq!(us.mac(peer), Some(hp));
}

#[test]
fn routers_and_their_seekers_are_not_listened_to() {
    let mut us = Us::settled();
    us.receive(&bytes(HP_ROUTER));
    us.receive(&bytes(MININET_ROUTERS));
    let counters = us.us.counters();
    assert_eq!(counters.refused(Refusal::Kind), 1);
    assert_eq!(counters.refused(Refusal::Elsewhere), 1, "all routers");
    assert_eq!(us.us.entries().count(), 0);
}

#[test]
fn a_container_that_asks_for_us_is_answered() {
    let mut us = Us::bare(Detection::Never);
    us.add("172.20.0.6/16");
    us.settle();
    us.receive(&bytes(DOCKER_REQUEST));
    let docker = [0x02, 0x42, 0xac, 0x14, 0x00, 0x02];
    let answer = Said::ArpReply {
        sender: v4("172.20.0.6"),
        target: v4("172.20.0.2"),
        target_mac: docker,
    };
    assert_eq!(us.said(), [answer]);
}

/// We refuse a packet whose sender's MAC is that of a group, although smoltcp parses it.
#[test]
fn a_packet_from_a_group_is_refused() {
    let mut us = Us::bare(Detection::Never);
    us.add("65.66.67.68/24");
    us.settle();
    us.receive(&ethernet(ALL, PEER, None, 0x0806, &bytes(ARP_REQUEST)));
    assert_eq!(us.us.counters().refused(Refusal::Sender), 1);
    let mut of_a_station = bytes(ARP_REQUEST);
    of_a_station[8] = 0x10;
    us.receive(&ethernet(ALL, PEER, None, 0x0806, &of_a_station));
    assert_eq!(us.said().len(), 1);
}
