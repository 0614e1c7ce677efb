//! Tests of echo requests and replies of both families (RFC 792; RFC 4443, 4.1 and 4.2), as `ping` uses them.

use super::peer::{echo, echo_reply, ethernet, ipv4_packet, v4};
use super::*;
use crate::Refusal;

/// The reply has the identifier, the sequence number and the data of the request.
#[test]
fn an_echo_request_is_answered_with_its_data() {
    for (source, destination) in [(PEER_V4, OUR_V4), (PEER_V6, OUR_V6)] {
        let mut us = Us::settled();
        let data: Vec<u8> = (0..56).collect();
        us.receive(&echo((OURS, PEER), source, destination, &data));
        let answer = Said::EchoReply {
            source: ip(destination),
            destination: ip(source),
            body: [&[0xbe, 0xef, 0x00, 0x07][..], &data].concat(),
        };
        let sent = us.sent();
        assert_eq!((sent.len(), sent[0].to, &sent[0].said), (1, PEER, &answer));
        assert_eq!(us.us.counters().echoed, 1);
        assert_eq!(us.us.entries().count(), 0);
    }
}

/// Returns the frame by which a node at `source` replies to our echo request.
fn answer_to(sent: &Sent, source: &str, destination: &str) -> Vec<u8> {
    let Said::EchoRequest { body, .. } = &sent.said else {
        panic!("{sent:?}");
    };
    echo_reply((OURS, PEER), source, destination, body)
}

/// RFC 792; RFC 4443, 4.1: of the replies to our request only the first is reported. A reply of another node, a
/// duplicate, and a reply to an earlier request are refused.
#[test]
fn our_echo_request_takes_one_reply_of_its_destination() {
    for (ours, peer) in [(OUR_V4, PEER_V4), (OUR_V6, PEER_V6)] {
        let mut us = Us::settled();
        let echo = |us: &mut Us, sequence| us.us.echo(ip(ours), ip(peer), sequence, us.now);
        assert_eq!(echo(&mut us, 1), Resolution::Pending);
        us.us.add_static(ip(peer), PEER).expect("an address");
        us.sent();
        us.events();
        assert_eq!(echo(&mut us, 1), Resolution::Known(PEER));
        let first = us.sent();
        assert_eq!((first.len(), first[0].to), (1, PEER));
        assert_eq!(echo(&mut us, 2), Resolution::Known(PEER));
        let second = us.sent();
        us.receive(&answer_to(&first[0], peer, ours));
        let another = if ip(peer).is_ipv4() {
            "10.0.0.9"
        } else {
            "2001:db8::9"
        };
        us.receive(&answer_to(&second[0], another, ours));
        assert_eq!(us.events(), []);
        let answer = answer_to(&second[0], peer, ours);
        us.receive(&answer);
        us.receive(&answer);
        let answered = Event::Echoed {
            address: ip(peer),
            sequence: 2,
            bytes: 56,
        };
        assert_eq!(us.events(), [answered]);
        assert_eq!(us.us.counters().refused(Refusal::Unasked), 3);
        assert_eq!(us.sent(), []);
    }
}

#[test]
fn echoes_are_bounded_in_a_second_and_come_again_later() {
    let mut us = Us::settled();
    let request = echo((OURS, PEER), PEER_V4, OUR_V4, &[0; 8]);
    let mut answered = 0;
    for _ in 0..1_000 {
        us.receive(&request);
        answered += us.sent().len();
    }
    assert_eq!(answered, 64);
    us.pass(seconds(2));
    us.receive(&request);
    assert_eq!(us.sent().len(), 1);
}

#[test]
fn an_echo_request_to_others_in_parts_or_with_a_wrong_checksum_is_not_answered() {
    let mut us = Us::settled();
    us.receive(&echo((OURS, PEER), PEER_V4, "10.0.0.9", &[0; 8]));
    let part = ipv4_packet(
        v4(PEER_V4),
        v4(OUR_V4),
        1,
        0x2000,
        &[8, 0, 0xf7, 0xff, 0, 0, 0, 0],
    );
    us.receive(&ethernet(OURS, PEER, None, 0x0800, &part));
    assert_eq!(us.us.counters().refused(Refusal::Fragment), 1);
    let mut broken = echo((OURS, PEER), PEER_V4, OUR_V4, &[0; 8]);
    broken[45] ^= 1;
    us.receive(&broken);
    assert_eq!(us.us.counters().refused(Refusal::Checksum), 1);
    assert_eq!(us.sent(), []);
}

/// The longest echo that is answered fills a packet of 1,500 bytes, the most that a frame holds without fragments.
#[test]
fn an_echo_as_long_as_a_frame_is_answered_and_a_longer_one_is_not() {
    for (source, destination, most) in [
        (PEER_V4, OUR_V4, 1_500 - 20 - 8),
        (PEER_V6, OUR_V6, 1_500 - 40 - 8),
    ] {
        let mut us = Us::settled();
        us.receive(&echo((OURS, PEER), source, destination, &vec![7; most]));
        assert_eq!(us.sent()[0].bytes, 1_514);
        us.receive(&echo((OURS, PEER), source, destination, &vec![7; most + 1]));
        assert_eq!(us.sent(), []);
        assert_eq!(us.us.counters().unanswered, 1);
    }
}

/// RFC 4443, 4.2, says that a node should answer an echo request to a group. We do not, because all nodes would answer
/// one frame. RFC 1122, 3.2.2.6, leaves it open for IPv4.
#[test]
fn an_echo_request_to_all_or_from_ourselves_is_not_answered() {
    let mut us = Us::settled();
    let all = [0x33, 0x33, 0, 0, 0, 1];
    us.receive(&echo((all, PEER), PEER_V6, "ff02::1", &[0; 8]));
    us.receive(&echo((all, PEER), PEER_V6, OUR_V6, &[0; 8]));
    us.receive(&echo((ALL, PEER), PEER_V4, "10.0.0.255", &[0; 8]));
    us.receive(&echo((ALL, PEER), PEER_V4, OUR_V4, &[0; 8]));
    us.receive(&echo((OURS, PEER), OUR_V4, OUR_V4, &[0; 8]));
    us.receive(&echo((OURS, PEER), OUR_V6, OUR_V6, &[0; 8]));
    assert_eq!(us.sent(), []);
}

/// We send nothing, not even an error, in reply to other protocols or to a packet with IPv4 options.
#[test]
fn other_protocols_are_refused_in_silence() {
    let mut us = Us::settled();
    let udp = ipv4_packet(v4(PEER_V4), v4(OUR_V4), 17, 0, &[0; 8]);
    us.receive(&ethernet(OURS, PEER, None, 0x0800, &udp));
    let mut options = ipv4_packet(v4(PEER_V4), v4(OUR_V4), 1, 0, &[0; 12]);
    options[0] = 0x46;
    us.receive(&ethernet(OURS, PEER, None, 0x0800, &options));
    us.receive(&ethernet(OURS, PEER, None, 0x88cc, &[0; 40]));
    assert_eq!(us.us.counters().refused(Refusal::Kind), 3);
    assert_eq!(us.sent(), []);
}
