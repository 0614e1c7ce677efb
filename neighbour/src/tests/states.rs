//! Tests of the complete state tables, and of the durations of the states (RFC 4861, 7.3 and 10), which apply to ARP as
//! well.

use strum::VariantArray;

use super::peer::{O, S};
use super::*;
use crate::own::{Claim, DetectionResult};
use crate::state::Step;

#[test]
fn every_pair_of_state_and_step_is_as_the_checked_in_table_says() {
    let pairs = State::VARIANTS
        .iter()
        .flat_map(|state| Step::VARIANTS.iter().map(move |step| (*state, *step)));
    let rows = pairs.map(|(state, step)| match state.next(step) {
        Some(next) => format!("{state:?} + {step:?} -> {next:?}"),
        None => format!("{state:?} + {step:?} nothing"),
    });
    assert_table(rows, include_str!("../state.table"));
}

#[test]
fn every_pair_of_claim_and_finding_is_as_the_checked_in_table_says() {
    let pairs = Claim::VARIANTS.iter().flat_map(|claim| {
        DetectionResult::VARIANTS
            .iter()
            .map(move |finding| (*claim, *finding))
    });
    let rows = pairs.map(|(claim, finding)| match claim.next(finding) {
        Some(next) => format!("{claim:?} + {finding:?} -> {next:?}"),
        None => format!("{claim:?} + {finding:?} nothing"),
    });
    assert_table(rows, include_str!("../own.table"));
}

/// Our address and the peer's, for each family.
const FAMILIES: [(&str, &str); 2] = [(OUR_V4, PEER_V4), (OUR_V6, PEER_V6)];

/// Returns the peer's answer to a request of ours.
pub(super) fn answer(ours: &str, peer: &str, mac: Mac) -> Vec<u8> {
    if ip(peer).is_ipv4() {
        peer::arp_reply((mac, peer), (OURS, ours))
    } else {
        peer::Nd::advertise(mac, peer, (OURS, ours), S | O).frame()
    }
}

/// Returns an unsolicited announcement.
pub(super) fn announce(peer: &str, mac: Mac) -> Vec<u8> {
    if ip(peer).is_ipv4() {
        peer::arp_announcement((mac, peer))
    } else {
        peer::Nd::announce(mac, peer, O).frame()
    }
}

/// Makes a module for which the peer is reachable.
pub(super) fn reachable(ours: &str, peer: &str) -> Us {
    let mut us = Us::settled();
    us.resolve(ours, peer);
    us.receive(&answer(ours, peer, PEER));
    assert_eq!(us.state(peer), State::Reachable);
    us.sent();
    us.events();
    us
}

/// RFC 4861, 7.2.2 and 10: we send MAX_MULTICAST_SOLICIT requests, RETRANS_TIMER apart. RFC 1122, 2.3.2.1: ARP sends at
/// most one request per second.
#[test]
fn a_neighbour_is_asked_for_three_times_a_second_apart_and_then_is_unreachable() {
    for (ours, peer) in FAMILIES {
        let mut us = Us::settled();
        assert_eq!(us.resolve(ours, peer), Resolution::Pending);
        for _ in 0..3 {
            let sent = us.sent();
            assert_eq!(sent.len(), 1, "{sent:?}");
            assert_ne!(sent[0].to[0] & 1, 0, "to all, or to a group");
            assert_eq!(us.resolve(ours, peer), Resolution::Pending);
            us.pass(milliseconds(999));
            assert_eq!(us.sent(), []);
            assert_eq!(us.events(), []);
            us.pass(milliseconds(1));
        }
        let reason = crate::Reason::NoAnswer;
        let (address, vlan) = (ip(peer), None);
        assert_eq!(
            us.events(),
            [Event::Unreachable {
                address,
                vlan,
                reason
            }]
        );
        let unreachable = Resolution::Unreachable(reason);
        assert_eq!(us.resolve(ours, peer), unreachable);
        assert_eq!(us.sent(), [], "it is not asked again at once");
        us.pass(seconds(3));
        assert_eq!(us.state(peer), State::Absent);
        assert_eq!(us.resolve(ours, peer), Resolution::Pending);
        assert_eq!(us.sent().len(), 1);
    }
}

/// RFC 4861, 7.3.2: an entry is REACHABLE for ReachableTime, and then STALE. When a sender uses the entry, the entry is
/// DELAY for DELAY_FIRST_PROBE_TIME, and then PROBE. In PROBE we send requests by unicast.
#[test]
fn a_neighbour_goes_from_reachable_to_stale_and_is_asked_by_unicast_once_it_is_used() {
    for (ours, peer) in FAMILIES {
        let mut us = reachable(ours, peer);
        us.pass(milliseconds(14_999));
        assert_eq!(us.state(peer), State::Reachable);
        us.pass(seconds(31));
        assert_eq!(us.state(peer), State::Stale);
        us.pass(seconds(1_000));
        assert_eq!(us.state(peer), State::Stale, "nobody uses it");
        assert_eq!(us.sent(), []);

        assert_eq!(us.resolve(ours, peer), Resolution::Known(PEER));
        assert_eq!(us.state(peer), State::Delay);
        us.pass(milliseconds(4_999));
        assert_eq!(us.sent(), []);
        us.pass(milliseconds(1));
        assert_eq!(us.state(peer), State::Probe);
        let sent = us.sent();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].to, PEER);
        assert_eq!(us.resolve(ours, peer), Resolution::Known(PEER), "usable");
        us.receive(&answer(ours, peer, PEER));
        assert_eq!(us.state(peer), State::Reachable);
        assert_eq!(us.events(), [], "nothing has changed");
    }
}

/// RFC 4861, 6.3.2: ReachableTime is random, between 0.5 and 1.5 times 30 seconds.
#[test]
fn reachable_time_is_drawn_around_thirty_seconds() {
    let times: Vec<Duration> = (0..64)
        .map(|seed| {
            let mut us = Us::of(Config {
                detection: Detection::Never,
                ..Config::new(OURS, seed)
            });
            us.add("10.0.0.1/24");
            us.settle();
            us.resolve(OUR_V4, PEER_V4);
            us.receive(&answer(OUR_V4, PEER_V4, PEER));
            let began = us.now;
            while us.state(PEER_V4) == State::Reachable {
                let due = us.us.due().expect("it goes stale");
                us.pass(due - us.now);
            }
            us.now - began
        })
        .collect();
    assert!(
        times
            .iter()
            .all(|time| (seconds(15)..=seconds(45)).contains(time))
    );
    assert!(times.iter().any(|&time| time < seconds(25)));
    assert!(times.iter().any(|&time| time > seconds(35)));
}

/// RFC 4861, 7.3.1: traffic that the caller confirms proves as much as an answer.
#[test]
fn a_confirmed_neighbour_is_not_asked() {
    for (ours, peer) in FAMILIES {
        let mut us = reachable(ours, peer);
        for _ in 0..20 {
            us.pass(seconds(14));
            us.confirm(ours, peer);
            assert_eq!(us.state(peer), State::Reachable);
        }
        us.pass(seconds(46));
        us.resolve(ours, peer);
        assert_eq!(us.state(peer), State::Delay);
        us.confirm(ours, peer);
        assert_eq!(us.state(peer), State::Reachable);
        assert_eq!(us.sent(), []);
    }
}

#[test]
fn a_confirmation_makes_no_entry() {
    let mut us = Us::settled();
    us.confirm(OUR_V4, PEER_V4);
    assert_eq!(us.state(PEER_V4), State::Absent);
    us.resolve(OUR_V4, PEER_V4);
    us.confirm(OUR_V4, PEER_V4);
    assert_eq!(us.state(PEER_V4), State::Incomplete, "it has no MAC yet");
}

/// RFC 4861, 7.3.3: after three unicast solicitations we ask all nodes, and the node with the new MAC answers.
#[test]
fn a_neighbour_whose_mac_has_changed_in_silence_is_found_again_within_four_seconds_of_asking() {
    for (ours, peer) in FAMILIES {
        let mut us = reachable(ours, peer);
        us.pass(seconds(60));
        us.resolve(ours, peer);
        us.pass(seconds(5));
        us.pass(seconds(3));
        let to: Vec<Mac> = us.sent().iter().map(|sent| sent.to).collect();
        assert_eq!(to[..3], [PEER; 3]);
        assert_eq!(to.len(), 4, "the fourth goes to all");
        assert_eq!(us.resolve(ours, peer), Resolution::Pending);
        us.receive(&answer(ours, peer, OTHER));
        assert_eq!(us.resolve(ours, peer), Resolution::Known(OTHER));
        let (address, vlan) = (ip(peer), None);
        let moved = Event::Moved {
            address,
            vlan,
            old: PEER,
            new: OTHER,
        };
        let resolved = Event::Resolved {
            address,
            vlan,
            mac: OTHER,
        };
        assert_eq!(us.events(), [moved, resolved]);
        assert_eq!(us.us.counters().moved, 1);
    }
}

/// RFC 4861, 7.2.5, would take the new MAC. Instead we ask the old MAC, and all nodes if the old MAC does not answer
/// (docs/decisions/neighbours.md).
#[test]
fn a_neighbour_that_announces_another_mac_is_asked_at_the_old_one_first() {
    for (ours, peer) in FAMILIES {
        let mut us = reachable(ours, peer);
        us.pass(seconds(2));
        us.receive(&announce(peer, OTHER));
        assert_eq!(us.resolve(ours, peer), Resolution::Known(PEER));
        assert_eq!(us.state(peer), State::Probe);
        assert_eq!(us.sent()[0].to, PEER);
        us.receive(&announce(peer, OTHER));
        assert_eq!(us.sent(), [], "saying it again changes nothing");

        us.pass(seconds(3));
        us.sent();
        us.receive(&answer(ours, peer, OTHER));
        assert_eq!(us.resolve(ours, peer), Resolution::Known(OTHER));
        assert!(matches!(us.events()[0], Event::Moved { .. }));
    }
}

#[test]
fn a_neighbour_that_answers_at_its_old_mac_has_not_moved_and_is_asked_once_a_second_at_most() {
    for (ours, peer) in FAMILIES {
        let mut us = reachable(ours, peer);
        us.pass(seconds(2));
        let mut asked = 0;
        for _ in 0..100 {
            us.receive(&announce(peer, OTHER));
            us.receive(&answer(ours, peer, OTHER));
            let sent = us.sent();
            asked += sent.len();
            if !sent.is_empty() {
                assert_eq!(sent[0].to, PEER);
                us.receive(&answer(ours, peer, PEER));
            }
            assert_eq!(us.resolve(ours, peer), Resolution::Known(PEER));
            us.pass(milliseconds(100));
        }
        assert!((8..=11).contains(&asked), "{asked} in ten seconds");
        assert_eq!(us.events(), []);
    }
}

/// If a message contradicts a MAC that was proven within the last second, we probe the MAC when that second is over.
#[test]
fn a_contradiction_just_after_an_answer_is_looked_into_a_second_later() {
    for (ours, peer) in FAMILIES {
        let mut us = reachable(ours, peer);
        us.receive(&announce(peer, OTHER));
        assert_eq!((us.sent(), us.state(peer)), (vec![], State::Reachable));
        us.pass(seconds(1));
        assert_eq!(us.state(peer), State::Probe);
        assert_eq!(us.sent()[0].to, PEER);
    }
}

/// RFC 4861, 7.2.5: an answer that we did not ask for, or an announcement, is ignored if there is no entry for its
/// sender.
#[test]
fn an_unsolicited_message_creates_no_entry() {
    for (ours, peer) in FAMILIES {
        let mut us = Us::settled();
        us.receive(&answer(ours, peer, PEER));
        us.receive(&announce(peer, PEER));
        assert_eq!(us.us.entries().count(), 0);
        assert_eq!((us.sent(), us.events()), (vec![], vec![]));
        assert_eq!(
            us.us.counters().refused(crate::Refusal::Unasked)
                + us.us.counters().refused(crate::Refusal::Address),
            2
        );
    }
}

/// RFC 4861, 7.2.5: an unsolicited advertisement completes an incomplete entry, but does not prove its MAC.
#[test]
fn an_unsolicited_message_completes_an_entry_that_is_asked_soon() {
    for (ours, peer) in FAMILIES {
        let mut us = Us::settled();
        us.resolve(ours, peer);
        us.sent();
        us.receive(&announce(peer, PEER));
        assert_eq!(us.state(peer), State::Delay);
        assert_eq!(us.resolve(ours, peer), Resolution::Known(PEER));
        let (address, vlan, mac) = (ip(peer), None, PEER);
        assert_eq!(us.events(), [Event::Resolved { address, vlan, mac }]);
        us.pass(seconds(5));
        assert_eq!(us.sent()[0].to, PEER);
    }
}

#[test]
fn an_unsolicited_message_of_an_unreachable_neighbour_lets_it_be_asked_at_once() {
    for (ours, peer) in FAMILIES {
        let mut us = Us::settled();
        us.resolve(ours, peer);
        us.pass(seconds(3));
        assert_eq!(us.state(peer), State::Unreachable);
        us.sent();
        us.receive(&announce(peer, PEER));
        assert_eq!(us.state(peer), State::Absent);
        assert_eq!(us.resolve(ours, peer), Resolution::Pending);
        assert_eq!(us.sent().len(), 1);
    }
}

#[test]
fn the_neighbour_that_was_idle_for_longest_makes_room() {
    let mut us = Us::of(Config {
        neighbours: 2,
        detection: Detection::Never,
        ..Config::new(OURS, 7)
    });
    us.add("10.0.0.1/24");
    us.settle();
    for peer in ["10.0.0.2", "10.0.0.3"] {
        us.resolve(OUR_V4, peer);
        us.receive(&answer(OUR_V4, peer, PEER));
        us.pass(seconds(1));
    }
    us.resolve(OUR_V4, "10.0.0.2");
    us.pass(seconds(1));
    assert_eq!(us.resolve(OUR_V4, "10.0.0.4"), Resolution::Pending);
    assert_eq!(us.state("10.0.0.3"), State::Absent);
    assert_eq!(us.state("10.0.0.2"), State::Reachable);
    assert_eq!(us.us.counters().evicted, 1);
    // An entry whose neighbour we are asking is not evicted.
    assert_eq!(us.resolve(OUR_V4, "10.0.0.5"), Resolution::Pending);
    let full = Resolution::Unreachable(crate::Reason::TableFull);
    assert_eq!(us.resolve(OUR_V4, "10.0.0.6"), full);
}

#[test]
fn questions_over_all_neighbours_are_bounded_and_none_is_forgotten() {
    let mut us = Us::of(Config {
        asks_per_second: 10,
        detection: Detection::Never,
        ..Config::new(OURS, 7)
    });
    us.add("10.0.0.1/16");
    us.settle();
    for last in 1..=100_u8 {
        us.resolve(OUR_V4, &format!("10.0.1.{last}"));
    }
    assert_eq!(us.sent().len(), 10, "as many as a second has, at once");
    us.pass(milliseconds(1_050));
    assert_eq!(us.sent().len(), 10);
    us.pass(seconds(60));
    let counters = us.us.counters();
    assert_eq!(counters.asked_all, 300, "three for each");
    assert_eq!(us.events().len(), 100);
}
