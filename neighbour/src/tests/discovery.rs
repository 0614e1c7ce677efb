//! Tests of duplicate detection (RFC 4862, 5.4), optimistic addresses (RFC 4429) and announcements (RFC 4861, 7.2.6).

use super::peer::{Nd, O, S, group, v6};
use super::*;
use crate::Reason;

fn detection_of(target: &str) -> Said {
    Said::Solicit {
        source: v6("::"),
        destination: group(v6(target)).0,
        target: v6(target),
        mac: None,
    }
}

fn announcement_of(target: &str) -> Said {
    Said::Advertise {
        source: v6(target),
        destination: v6("ff02::1"),
        target: v6(target),
        flags: O,
        mac: Some(OURS),
    }
}

/// Returns the messages sent, except multicast reports, which have their own tests (`groups`).
fn said(us: &mut Us) -> Vec<Said> {
    let mut said = us.said();
    said.retain(|said| !matches!(said, Said::Report { .. }));
    said
}

fn optimistic() -> Us {
    let mut us = Us::bare(Detection::Optimistic);
    us.add("2001:db8::1/64");
    us
}

/// RFC 4429, 3.3: the address is usable as soon as the solicitation is sent. RFC 4862, 5.4: after one solicitation and
/// RetransTimer the address is ours. RFC 4861, 7.2.6: then we send MAX_NEIGHBOR_ADVERTISEMENT announcements, at least
/// RetransTimer apart.
#[test]
fn an_optimistic_address_is_usable_at_once_and_announced_after_detection() {
    let mut us = optimistic();
    assert_eq!(said(&mut us), [detection_of(OUR_V6)]);
    assert_eq!(us.us.source(ip(PEER_V6)), Some(ip(OUR_V6)));
    us.pass(milliseconds(999));
    assert_eq!((said(&mut us), us.events()), (vec![], vec![]));
    us.pass(milliseconds(1));
    assert_eq!(said(&mut us), [announcement_of(OUR_V6)]);
    let (address, vlan) = (ip(OUR_V6), None);
    assert_eq!(us.events(), [Event::Announced { address, vlan }]);
    for _ in 0..2 {
        let last = us.now;
        let due = us.us.due().expect("it is said again");
        us.pass(due - last);
        assert!((milliseconds(1_000)..=milliseconds(1_500)).contains(&(us.now - last)));
        assert_eq!(said(&mut us), [announcement_of(OUR_V6)]);
    }
    us.pass(seconds(60));
    assert_eq!((said(&mut us), us.us.due()), (vec![], None));
}

/// RFC 4429, 3.2: no neighbour solicitation is sent from an optimistic address. The sender's request waits.
#[test]
fn an_optimistic_address_does_not_ask_until_it_is_ours() {
    let mut us = optimistic();
    said(&mut us);
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Pending);
    us.pass(milliseconds(999));
    assert_eq!(said(&mut us), []);
    us.pass(milliseconds(1));
    let said = said(&mut us);
    let asks = |said: &&Said| matches!(said, Said::Solicit { source, .. } if *source == v6(OUR_V6));
    assert_eq!(said.iter().filter(asks).count(), 1);
    us.receive(&Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O).frame());
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Known(PEER));
}

/// Requests are sent from a preferred address of ours in place of the optimistic one.
#[test]
fn another_address_asks_for_what_an_optimistic_one_wants() {
    let mut us = Us::bare(Detection::Optimistic);
    us.add("fe80::1/64");
    us.settle();
    us.add("2001:db8::1/64");
    said(&mut us);
    us.resolve(OUR_V6, PEER_V6);
    let said = said(&mut us);
    assert!(
        matches!(said[..], [Said::Solicit { source, mac: Some(OURS), .. }] if source == v6("fe80::1")),
        "{said:?}"
    );
}

/// RFC 4429, 3.3: requests for an optimistic address are answered without the override flag.
#[test]
fn an_optimistic_address_answers_without_override() {
    let mut us = optimistic();
    said(&mut us);
    us.receive(&Nd::solicit(PEER, PEER_V6, OUR_V6).frame());
    let said = said(&mut us);
    assert!(
        matches!(
            said[..],
            [Said::Advertise {
                flags: S,
                mac: Some(OURS),
                ..
            }]
        ),
        "{said:?}"
    );
    assert_eq!(us.events(), []);
}

/// RFC 4862, 5.4.4 and 5.4.3; RFC 4429, 3.3: we lose the address to another node's advertisement or detection.
#[test]
fn an_address_under_detection_is_lost_to_a_node_that_has_or_detects_it() {
    let has = Nd::announce(PEER, OUR_V6, O).frame();
    let wants = Nd::detect(PEER, OUR_V6).frame();
    for (detection, wait) in [(Detection::Optimistic, 0), (Detection::First, 1_000)] {
        for frame in [&has, &wants] {
            let mut us = Us::bare(detection);
            us.add("2001:db8::1/64");
            us.pass(milliseconds(wait));
            us.resolve(OUR_V6, PEER_V6);
            us.sent();
            us.receive(frame);
            let duplicate = Event::Duplicate {
                address: ip(OUR_V6),
                vlan: None,
                mac: PEER,
                detecting: true,
            };
            assert_eq!(us.events()[0], duplicate);
            let lost = Resolution::Unreachable(Reason::Duplicate);
            assert_eq!(us.resolve(OUR_V6, PEER_V6), lost);
            assert_eq!(us.us.source(ip(PEER_V6)), None);
            us.pass(seconds(60));
            us.receive(&Nd::solicit(PEER, PEER_V6, OUR_V6).frame());
            us.receive(&Nd::detect(OTHER, OUR_V6).frame());
            assert_eq!(said(&mut us), [], "it is not ours");
        }
    }
}

/// RFC 4862, 5.4.2: the first solicitation is sent within MAX_RTR_SOLICITATION_DELAY. RFC 4862, 5.4.3: meanwhile a
/// solicitation from a unicast address is ignored.
#[test]
fn a_tentative_address_is_not_usable() {
    let mut us = Us::bare(Detection::First);
    us.add("2001:db8::1/64");
    let began = us.now;
    while us.events().is_empty() {
        us.receive(&Nd::solicit(PEER, PEER_V6, OUR_V6).frame());
        let detecting = Resolution::Unreachable(Reason::Detecting);
        assert_eq!(us.resolve(OUR_V6, PEER_V6), detecting);
        let said = said(&mut us);
        assert!(
            said.is_empty() || said == [detection_of(OUR_V6)],
            "{said:?}"
        );
        let due = us.us.due().expect("it goes on");
        us.pass(due - us.now);
    }
    assert!((seconds(1)..=seconds(2)).contains(&(us.now - began)));
    assert_eq!(said(&mut us), [announcement_of(OUR_V6)]);
}

/// RFC 4862, 5.4.4, leaves the reaction open. As in RFC 5227, 2.4 (c), we keep the address, and defend it once in
/// DEFEND_INTERVAL.
#[test]
fn an_address_that_is_ours_is_defended_once_in_ten_seconds_and_kept() {
    let mut us = Us::settled();
    for _ in 0..100 {
        us.receive(&Nd::announce(PEER, OUR_V6, O).frame());
        us.pass(milliseconds(250));
    }
    assert_eq!(us.said(), vec![announcement_of(OUR_V6); 3], "in 25 seconds");
    let events = us.events();
    assert_eq!(events.len(), 3);
    assert!(matches!(
        events[0],
        Event::Duplicate {
            detecting: false,
            mac: PEER,
            ..
        }
    ));
    us.receive(&Nd::solicit(PEER, PEER_V6, OUR_V6).frame());
    assert_eq!(us.said().len(), 1);
}

/// RFC 4862, 5.1: DupAddrDetectTransmits of zero means no detection.
#[test]
fn an_address_that_is_not_looked_for_is_announced_at_once() {
    let mut us = Us::bare(Detection::Never);
    us.add("2001:db8::1/64");
    assert_eq!(said(&mut us), [announcement_of(OUR_V6)]);
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Pending);
    assert_eq!(said(&mut us).len(), 1);
}
