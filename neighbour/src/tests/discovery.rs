//! Neighbour discovery (RFC 4861), and who looks whether an address is ours (RFC 4862).

use super::peer::{Nd, O, S, group, option, v6};
use super::*;
use crate::Refusal;

/// RFC 4861, 7.2.2: in the group of the address; 7.2.5: a solicited advertisement makes it reachable.
#[test]
fn a_question_goes_to_the_group_of_the_address_and_the_answer_resolves() {
    let mut us = Us::settled();
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Pending);
    let (destination, to) = group(v6(PEER_V6));
    let question = Said::Solicit {
        source: v6(OUR_V6),
        destination,
        target: v6(PEER_V6),
        mac: Some(OURS),
    };
    let sent = us.sent();
    assert_eq!((sent.len(), sent[0].to, &sent[0].said), (1, to, &question));
    us.receive(&Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O).frame());
    let (address, vlan, mac) = (ip(PEER_V6), None, PEER);
    assert_eq!(us.events(), [Event::Resolved { address, vlan, mac }]);
    assert_eq!(us.resolve(OUR_V6, PEER_V6), Resolution::Known(PEER));
    assert_eq!(us.state(PEER_V6), State::Reachable);
}

/// RFC 4861, 7.2.4: to who asked, with the solicited and the override flag, and our MAC.
#[test]
fn who_asks_for_us_is_answered_and_is_not_remembered() {
    let mut us = Us::settled();
    us.receive(&Nd::solicit(PEER, PEER_V6, OUR_V6).frame());
    let answer = Said::Advertise {
        source: v6(OUR_V6),
        destination: v6(PEER_V6),
        target: v6(OUR_V6),
        flags: S | O,
        mac: Some(OURS),
    };
    let sent = us.sent();
    assert_eq!((sent.len(), sent[0].to, &sent[0].said), (1, PEER, &answer));
    assert_eq!(us.us.entries().count(), 0);
}

/// RFC 4862, 5.4.3 and RFC 4861, 7.2.4: who has no address yet is told in the group of all nodes, not as an answer.
#[test]
fn who_looks_whether_our_address_is_his_is_told_that_it_is_ours() {
    let mut us = Us::settled();
    us.receive(&Nd::detect(PEER, OUR_V6).frame());
    let [
        Said::Advertise {
            destination,
            target,
            flags,
            ..
        },
    ] = us.said()[..]
    else {
        panic!("one advertisement")
    };
    assert_eq!((destination, target), (v6("ff02::1"), v6(OUR_V6)));
    assert_eq!(flags & S, 0);
}

#[test]
fn who_asks_for_others_is_not_answered() {
    let mut us = Us::settled();
    let mut other = Nd::solicit(PEER, PEER_V6, "2001:db8::9");
    other.to = OURS;
    us.receive(&other.frame());
    assert_eq!(us.sent(), []);
}

/// RFC 4861, 7.1.1 and 7.1.2: what a message must hold; one that does not is dropped in silence.
#[test]
fn a_message_that_breaks_a_rule_of_validity_answers_nothing() {
    type Change = fn(&mut Nd);
    let cases: [(Change, Refusal); 5] = [
        (|nd| nd.hop_limit = 254, Refusal::HopLimit),
        (|nd| nd.code = 1, Refusal::Malformed),
        (
            |nd| nd.options = vec![2, 0, 0, 0, 0, 0, 0, 0],
            Refusal::Malformed,
        ),
        (|nd| nd.target = v6("ff02::2"), Refusal::Malformed),
        (
            |nd| nd.options = option(2, [0x03, 0, 0, 0, 0, 9]),
            Refusal::Sender,
        ),
    ];
    for (at, (change, why)) in cases.into_iter().enumerate() {
        let mut us = Us::settled();
        us.resolve(OUR_V6, PEER_V6);
        let mut answer = Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O);
        change(&mut answer);
        us.receive(&answer.frame());
        assert_eq!(us.state(PEER_V6), State::Incomplete, "case {at}");
        assert_eq!(
            us.us.counters().refused(why),
            1,
            "case {at}: {:?}",
            us.us.counters()
        );
    }
    let mut us = Us::settled();
    us.resolve(OUR_V6, PEER_V6);
    let mut frame = Nd::advertise(PEER, PEER_V6, (OURS, OUR_V6), S | O).frame();
    frame[60] ^= 1;
    us.receive(&frame);
    assert_eq!(us.us.counters().refused(Refusal::Checksum), 1);
    assert_eq!(us.state(PEER_V6), State::Incomplete);
}
