//! Tests of neighbour discovery (RFC 4861): our messages, and the checks of received messages.

use super::peer::{Nd, O, S, group, icmpv6, ipv6_packet, option, v6};
use super::*;
use crate::Refusal;

/// RFC 4861, 7.2.2: the solicitation goes to the solicited-node group, and names our MAC.
#[test]
fn a_question_goes_to_the_group_of_the_address_and_says_our_mac() {
    let mut us = Us::settled();
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Pending);
    let (destination, to) = group(v6(PEER_V6));
    let question = Sent {
        to,
        tag: None,
        said: Said::Solicit {
            source: v6(OUR_V6),
            destination,
            target: v6(PEER_V6),
            mac: Some(OURS),
        },
        bytes: 86,
    };
    assert_eq!(us.sent(), [question]);
}

/// RFC 4861, 7.2.2 and 7.3.3: the solicitation goes to the neighbour itself.
#[test]
fn a_known_neighbour_is_asked_by_unicast() {
    let mut us = states::reachable(OUR_V6, PEER_V6);
    us.pass(seconds(60));
    us.resolve(OUR_V6, PEER_V6);
    us.pass(seconds(5));
    let sent = us.sent();
    assert_eq!(sent[0].to, PEER);
    let is_unicast = matches!(sent[0].said, Said::Solicit { destination, mac: Some(OURS), .. } if destination == v6(PEER_V6));
    assert!(is_unicast, "{sent:?}");
}

/// RFC 4861, 7.2.4: the advertisement has the solicited and override flags and the target's MAC, and goes to the node
/// that asked.
#[test]
fn a_solicitation_for_our_address_is_answered_by_unicast() {
    let mut us = Us::settled();
    us.receive(&Nd::solicit(PEER, PEER_V6, OUR_V6).frame());
    let answer = Sent {
        to: PEER,
        tag: None,
        said: Said::Advertise {
            source: v6(OUR_V6),
            destination: v6(PEER_V6),
            target: v6(OUR_V6),
            flags: S | O,
            mac: Some(OURS),
        },
        bytes: 86,
    };
    assert_eq!(us.sent(), std::slice::from_ref(&answer));
    // RFC 4861 lets a unicast solicitation omit the MAC option. Then the answer goes to the MAC that sent the frame.
    let probe = Nd {
        to: OURS,
        destination: v6(OUR_V6),
        options: Vec::new(),
        ..Nd::solicit(PEER, PEER_V6, OUR_V6)
    };
    us.receive(&probe.frame());
    assert_eq!(us.sent(), [answer]);
    assert_eq!(us.us.entries().count(), 0, "and nobody is remembered");
}

/// RFC 4861, 7.2.4: if the source is unspecified, the advertisement goes to all nodes, without the solicited flag.
#[test]
fn duplicate_detection_of_our_address_is_answered_to_all_nodes() {
    let mut us = Us::settled();
    us.receive(&Nd::detect(PEER, OUR_V6).frame());
    let sent = us.sent();
    assert_eq!(sent[0].to, [0x33, 0x33, 0, 0, 0, 1]);
    let answer = Said::Advertise {
        source: v6(OUR_V6),
        destination: v6("ff02::1"),
        target: v6(OUR_V6),
        flags: O,
        mac: Some(OURS),
    };
    assert_eq!(sent[0].said, answer);
    assert_eq!(us.events(), []);
}

#[test]
fn a_request_for_a_foreign_address_is_not_answered() {
    let mut us = Us::settled();
    // 2001:db8::1:0:1 has the same solicited-node group as 2001:db8::1.
    us.receive(&Nd::solicit(PEER, PEER_V6, "2001:db8::1:0:1").frame());
    assert_eq!(us.said(), []);
    assert_eq!(us.us.counters().refused(Refusal::Address), 1);
}

/// A static entry takes precedence over the MAC in the node's own solicitation.
#[test]
fn an_asker_is_answered_at_its_static_mac() {
    let mut us = Us::settled();
    us.us.add_static(ip(PEER_V6), OTHER).expect("a station");
    us.receive(&Nd::solicit(PEER, PEER_V6, OUR_V6).frame());
    assert_eq!(us.sent()[0].to, OTHER);
}

/// RFC 4861, 7.1.1: a solicitation that violates a single check is not answered.
#[test]
fn an_invalid_solicitation_is_refused() {
    use Refusal::{Checksum, HopLimit, Kind, Malformed, Sender};
    let good = Nd::solicit(PEER, PEER_V6, OUR_V6);
    let detect = Nd::detect(PEER, OUR_V6);
    let of = |change: fn(&mut Nd)| {
        let mut changed = good.clone();
        change(&mut changed);
        changed.frame()
    };
    let of_detect = |change: fn(&mut Nd)| {
        let mut changed = detect.clone();
        change(&mut changed);
        changed.frame()
    };
    let with_bytes = |message: &[u8]| {
        let packet = ipv6_packet(good.source, good.destination, 58, 255, message);
        let mut frame = peer::ethernet(good.to, PEER, None, 0x86dd, &packet);
        frame.truncate(14 + packet.len());
        frame
    };
    let short = icmpv6(good.source, good.destination, 135, 0, &[0; 19]);
    let mut wrong_sum = good.message();
    wrong_sum[3] ^= 1;
    let cases = [
        ("hop limit", of(|nd| nd.hop_limit = 254), HopLimit),
        ("checksum", with_bytes(&wrong_sum), Checksum),
        ("code", of(|nd| nd.code = 1), Malformed),
        ("under 24 bytes", with_bytes(&short), Malformed),
        (
            "target is a group",
            of(|nd| nd.target = v6("ff02::1:ff00:1")),
            Malformed,
        ),
        (
            "option of no length",
            of(|nd| nd.options.extend([9, 0, 0, 0, 0, 0, 0, 0])),
            Malformed,
        ),
        (
            "option beyond the end",
            of(|nd| nd.options.extend([9, 2, 0, 0, 0, 0, 0, 0])),
            Malformed,
        ),
        ("half an option", of(|nd| nd.options.push(9)), Malformed),
        (
            "detection to one",
            of_detect(|nd| nd.destination = v6(OUR_V6)),
            Malformed,
        ),
        (
            "detection with a MAC",
            of_detect(|nd| nd.options = option(1, PEER)),
            Malformed,
        ),
        (
            "source is a group",
            of(|nd| nd.source = v6("ff02::2")),
            Sender,
        ),
        ("source is loopback", of(|nd| nd.source = v6("::1")), Sender),
        (
            "MAC of a group",
            of(|nd| nd.options = option(1, ALL)),
            Sender,
        ),
        ("another type", of(|nd| nd.kind = 137), Kind),
    ];
    for (what, frame, why) in cases {
        let mut us = Us::settled();
        us.receive(&frame);
        assert_eq!(us.us.counters().refused(why), 1, "{what}");
        assert_eq!(us.said(), [], "{what}");
    }
    // The unchanged, valid message is answered.
    let mut us = Us::settled();
    us.receive(&of(|_| {}));
    assert_eq!(us.said().len(), 1);
}

/// RFC 4861, 7.1.2: an advertisement that violates a single check does not complete the neighbour's entry.
#[test]
fn an_invalid_advertisement_is_refused() {
    use Refusal::{HopLimit, Malformed, Sender};
    let good = Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O);
    let all = Nd::announce(PEER, PEER_V6, O);
    type Case<'a> = (&'a str, &'a Nd, fn(&mut Nd), Refusal);
    let cases: [Case<'_>; 7] = [
        ("hop limit", &good, |nd| nd.hop_limit = 64, HopLimit),
        ("code", &good, |nd| nd.code = 9, Malformed),
        (
            "target is a group",
            &good,
            |nd| nd.target = v6("ff02::1"),
            Malformed,
        ),
        (
            "solicited by a group",
            &all,
            |nd| nd.flags = S | O,
            Malformed,
        ),
        (
            "option of no length",
            &good,
            |nd| nd.options.extend([9, 0, 0, 0, 0, 0, 0, 0]),
            Malformed,
        ),
        (
            "source unspecified",
            &good,
            |nd| nd.source = v6("::"),
            Sender,
        ),
        (
            "MAC of nobody",
            &good,
            |nd| nd.options = option(2, [0; 6]),
            Sender,
        ),
    ];
    for (what, nd, change, why) in cases {
        let mut us = Us::settled();
        us.resolve(OUR_V6, PEER_V6);
        let mut changed = nd.clone();
        change(&mut changed);
        us.receive(&changed.frame());
        assert_eq!(us.us.counters().refused(why), 1, "{what}");
        assert_eq!(us.state(PEER_V6), State::Incomplete, "{what}");
    }
}

/// RFC 4861, 4.6 and 9: unknown options are skipped, whatever their contents.
#[test]
fn options_of_other_kinds_are_passed_over() {
    for kind in (0..=255).filter(|&kind| kind != 2) {
        let mut us = Us::settled();
        us.resolve(OUR_V6, PEER_V6);
        let mut nd = Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O);
        // The kinds include a nonce (14, RFC 7527), and those that smoltcp expects to be longer (3, 4).
        nd.options
            .splice(0..0, [kind, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        us.receive(&nd.frame());
        assert_eq!(us.state(PEER_V6), State::Reachable, "{kind}");
    }
}

/// RFC 6980, 5: a neighbour discovery message in a fragment is ignored.
#[test]
fn a_message_in_fragments_is_refused() {
    let good = Nd::solicit(PEER, PEER_V6, OUR_V6);
    let fragment = [&[58, 0, 0, 0, 0, 0, 0, 1][..], &good.message()].concat();
    let packet = ipv6_packet(good.source, good.destination, 44, 255, &fragment);
    let mut us = Us::settled();
    us.receive(&peer::ethernet(good.to, PEER, None, 0x86dd, &packet));
    assert_eq!(us.us.counters().refused(Refusal::Fragment), 1);
    // A message behind the hop-by-hop options of another protocol (MLD) is refused, too.
    let behind = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &good.message()].concat();
    let packet = ipv6_packet(good.source, good.destination, 0, 255, &behind);
    us.receive(&peer::ethernet(good.to, PEER, None, 0x86dd, &packet));
    assert_eq!(us.us.counters().refused(Refusal::Kind), 1);
    assert_eq!(us.said(), []);
}

/// RFC 4861, 7.2.5: for an incomplete entry, an advertisement with the solicited flag leads to REACHABLE. Without that
/// flag it leads to STALE, and then to DELAY because a sender waits. The override flag does not matter.
#[test]
fn an_answer_to_a_question_to_all_is_taken_with_any_flags() {
    for (flags, state) in [
        (S | O, State::Reachable),
        (S, State::Reachable),
        (O, State::Delay),
        (0, State::Delay),
    ] {
        let mut us = Us::settled();
        us.resolve(OUR_V6, PEER_V6);
        us.receive(&Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), flags).frame());
        assert_eq!(us.state(PEER_V6), state, "{flags:#04x}");
    }
}

/// RFC 4861, 7.2.5, gives the flags effects on a known MAC. Here the flags have no effect: we probe the known MAC.
#[test]
fn no_flag_replaces_a_mac_that_is_known() {
    for flags in [0, S, O, S | O] {
        let mut us = states::reachable(OUR_V6, PEER_V6);
        us.pass(seconds(2));
        us.receive(&Nd::advertise(OTHER, PEER_V6, (OURS, OUR_V6), flags).frame());
        assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Known(PEER));
        assert_eq!(us.state(PEER_V6), State::Probe);
        // The new MAC is not taken even if it seems to answer our request.
        us.receive(&Nd::advertise(OTHER, PEER_V6, (OURS, OUR_V6), S | O).frame());
        assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Known(PEER));
    }
}

/// RFC 4861, 7.2.3: a neighbour's solicitation for our address completes its entry, but does not prove that the
/// neighbour receives our frames (7.3.1).
#[test]
fn a_solicitation_of_a_neighbour_completes_its_entry_and_proves_nothing() {
    let question = Nd::solicit(PEER, PEER_V6, OUR_V6).frame();
    let mut us = Us::settled();
    us.resolve(OUR_V6, PEER_V6);
    us.receive(&question);
    assert_eq!(us.state(PEER_V6), State::Delay);
    us.pass(seconds(5));
    assert_eq!(us.state(PEER_V6), State::Probe);
    us.receive(&question);
    assert_eq!(us.state(PEER_V6), State::Probe, "that is no answer");
}

/// RFC 4291, appendix A, and RFC 4861, 7.3.3: the MAC in a link-local address is used immediately, and is probed after
/// DELAY_FIRST_PROBE_TIME.
#[test]
fn an_address_that_names_its_mac_is_known_at_once_and_asked_later() {
    let peer = "fe80::ff:fe00:2";
    let mut us = Us::settled();
    assert_eq!(us.resolve("fe80::1", peer), Resolution::Known(PEER));
    assert_eq!((us.said(), us.state(peer)), (vec![], State::Delay));
    us.pass(seconds(5));
    assert_eq!(us.sent()[0].to, PEER);
    us.receive(&Nd::advertise(PEER, peer, (OURS, "fe80::1"), S | O).frame());
    assert_eq!(us.state(peer), State::Reachable);
    assert_eq!(us.events(), []);
}

#[test]
fn an_address_that_names_another_mac_than_it_has_is_found_out() {
    let peer = "fe80::ff:fe00:2";
    let mut us = Us::settled();
    us.resolve("fe80::1", peer);
    us.pass(seconds(8));
    assert_eq!(us.resolve("fe80::1", peer), Resolution::Pending);
    us.sent();
    us.receive(&Nd::advertise(OTHER, peer, (OURS, "fe80::1"), S | O).frame());
    assert_eq!(us.resolve("fe80::1", peer), Resolution::Known(OTHER));
    let [Event::Moved { old, new, .. }, Event::Resolved { .. }] = us.events()[..] else {
        panic!("it has moved")
    };
    assert_eq!((old, new), (PEER, OTHER));
    us.pass(seconds(60));
    assert_eq!(
        us.resolve("fe80::1", peer),
        Resolution::Known(OTHER),
        "learnt wins"
    );
}

#[test]
fn an_address_that_names_a_mac_and_does_not_answer_is_unreachable() {
    let peer = "fe80::ff:fe00:2";
    let mut us = Us::settled();
    us.resolve("fe80::1", peer);
    us.pass(seconds(11));
    let unreachable = Resolution::Unreachable(crate::Reason::NoAnswer);
    assert_eq!(us.resolve("fe80::1", peer), unreachable);
}
