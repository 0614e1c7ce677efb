//! Tests of the groups that we join, and of their reports (RFC 3810).

use std::net::Ipv6Addr;

use super::peer::{ethernet, icmpv6, ipv6_packet, v6};
use super::*;
use crate::Refusal;

/// Record types (RFC 3810, 5.2.12).
const LISTENING: u8 = 2;
const LEFT: u8 = 3;
const JOINED: u8 = 4;

const GROUP: &str = "ff02::1:ff00:1";

/// Returns the reports among the queued frames.
fn reports(us: &mut Us) -> Vec<(Ipv6Addr, Vec<(u8, Ipv6Addr)>)> {
    let mut reports = Vec::new();
    for said in us.said() {
        if let Said::Report { source, records } = said {
            reports.push((source, records));
        }
    }
    reports
}

/// Makes a query of MLDv2 (RFC 3810, 5.1), with the router alert.
pub(super) fn query(group: &str, code: u16, source: &str, hop_limit: u8) -> Vec<u8> {
    let (source, destination) = (v6(source), v6("ff02::1"));
    let mut body = code.to_be_bytes().to_vec();
    body.extend([0, 0]);
    body.extend(v6(group).octets());
    body.extend([2, 125, 0, 0]);
    let message = icmpv6(source, destination, 130, 0, &body);
    let payload = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &message].concat();
    let packet = ipv6_packet(source, destination, 0, hop_limit, &payload);
    ethernet([0x33, 0x33, 0, 0, 0, 1], PEER, None, 0x86dd, &packet)
}

/// RFC 2464, 7: the groups are that of all nodes, and the solicited-node group of each address, without duplicates.
#[test]
fn the_groups_are_those_of_our_addresses() {
    let mut us = Us::bare(Detection::Never);
    us.add("10.0.0.1/24");
    assert_eq!(us.us.groups().count(), 0, "IPv4 needs none");
    us.add("2001:db8::1/64");
    us.add("fe80::1/64");
    us.add("2001:db8::aa:bbcc/64");
    let groups: Vec<Mac> = us.us.groups().collect();
    let expected = [
        [0x33, 0x33, 0, 0, 0, 1],
        [0x33, 0x33, 0xff, 0, 0, 1],
        [0x33, 0x33, 0xff, 0xaa, 0xbb, 0xcc],
    ];
    assert_eq!(groups, expected);
}

/// RFC 3810, 6.1: a joined group is reported twice (Robustness Variable), the second time within a second.
/// RFC 4862, 5.4.2: the first report precedes the solicitation of duplicate detection.
#[test]
fn a_group_is_reported_twice_when_it_is_joined() {
    let mut us = Us::bare(Detection::Optimistic);
    us.add("2001:db8::1/64");
    let said = us.said();
    assert!(matches!(said[0], Said::Report { .. }), "{said:?}");
    let joined = (v6("::"), vec![(JOINED, v6(GROUP))]);
    assert!(matches!(said[1], Said::Solicit { .. }));
    us.pass(seconds(1));
    assert_eq!(reports(&mut us), [joined]);
    us.pass(seconds(100));
    assert_eq!(reports(&mut us), []);
}

/// RFC 3810, 5.2.13: reports come from a link-local address, once there is one.
#[test]
fn a_group_that_another_address_is_in_is_not_reported_again_and_not_left() {
    let mut us = Us::bare(Detection::Never);
    us.add("fe80::1/64");
    us.settle();
    us.add("2001:db8::1/64");
    us.us.remove(ip("2001:db8::1"), us.now);
    us.pass(seconds(5));
    assert_eq!(reports(&mut us), []);
    us.add("2001:db8::2/64");
    let joined = (v6("fe80::1"), vec![(JOINED, v6("ff02::1:ff00:2"))]);
    assert_eq!(reports(&mut us), [joined]);
    us.us.remove(ip("fe80::1"), us.now);
    let (_, records) = &reports(&mut us)[0];
    assert!(records.contains(&(LEFT, v6(GROUP))), "{records:?}");
    us.pass(seconds(5));
    reports(&mut us);
    us.pass(seconds(100));
    assert_eq!(us.us.due(), None);
}

/// RFC 3810, 6.2: the answer to a query has all groups, and is sent within the maximum response delay.
#[test]
fn a_query_is_answered_with_all_groups_within_its_delay() {
    for seed in 0..32 {
        let mut us = Us::of(Config {
            detection: Detection::Never,
            ..Config::new(OURS, seed)
        });
        us.add("fe80::1/64");
        us.add("2001:db8::2/64");
        us.settle();
        us.receive(&query("::", 10_000, "fe80::99", 1));
        us.receive(&query("::", 2_000, "fe80::99", 1));
        us.pass(seconds(2));
        let both = vec![(LISTENING, v6(GROUP)), (LISTENING, v6("ff02::1:ff00:2"))];
        assert_eq!(reports(&mut us), [(v6("fe80::1"), both)]);
        us.pass(seconds(20));
        assert_eq!(reports(&mut us), [], "two queries, one answer");
    }
}

/// RFC 3810, 5.1.3: a response code of 32,768 or more is a floating-point value. 0x8000 is 32,768 ms, and 0xffff is
/// 8,387,584 ms.
#[test]
fn a_long_delay_is_a_float() {
    let longest = |code: u16| {
        (0..200)
            .map(|seed| {
                let mut us = Us::of(Config {
                    detection: Detection::Never,
                    ..Config::new(OURS, seed)
                });
                us.add("fe80::1/64");
                us.settle();
                us.receive(&query("::", code, "fe80::99", 1));
                us.us.due().expect("an answer") - us.now
            })
            .max()
            .expect("some")
    };
    for (code, ms) in [(1_000, 1_000), (0x8000, 32_768), (0xffff, 8_387_584)] {
        let most = milliseconds(ms);
        let longest = longest(code);
        assert!(
            longest <= most && longest > most * 9 / 10,
            "{code:#06x}: {longest:?}"
        );
    }
}

/// RFC 3810, 6.2: a query must come from a link-local address, with a hop limit of 1, and be about a group of ours.
#[test]
fn a_query_that_is_not_from_the_link_or_not_about_us_is_refused() {
    let cases = [
        (query("::", 0, "2001:db8::99", 1), Refusal::Sender),
        (query("::", 0, "fe80::99", 2), Refusal::HopLimit),
        (
            query("ff02::1:ff99:9999", 0, "fe80::99", 1),
            Refusal::Address,
        ),
    ];
    for (frame, why) in cases {
        let mut us = Us::settled();
        us.receive(&frame);
        us.pass(seconds(1));
        assert_eq!(
            (reports(&mut us), us.us.counters().refused(why)),
            (vec![], 1)
        );
    }
    let mut us = Us::settled();
    us.receive(&query(GROUP, 0, "fe80::99", 1));
    us.pass(seconds(1));
    assert_eq!(reports(&mut us).len(), 1);
}

/// A report with the groups of the maximum number of addresses still fits one frame.
#[test]
fn sixty_four_groups_are_one_report() {
    let mut us = Us::bare(Detection::Never);
    us.add("fe80::1/64");
    for last in 2..=64 {
        us.add(&format!("2001:db8::{last:x}/64"));
    }
    us.pass(seconds(30));
    us.sent();
    us.receive(&query("::", 0, "fe80::99", 1));
    us.pass(seconds(1));
    let reports = reports(&mut us);
    assert_eq!((reports.len(), reports[0].1.len()), (1, 64));
}
