//! Tests of links and captures: each fault of a link has its effect, which depends only on the seed, and captures can
//! be parsed.

use hw_sim::PortType;
use hw_sim::link::{Faults, Link, LinkFaults, Port};
use hw_sim::pcap::{Capture, CaptureError};
use pcap_file::pcapng::{Block, PcapNgReader};
use std::time::Duration;

const ALWAYS: u32 = 1_000_000;

fn numbered(n: u8) -> Vec<u8> {
    vec![n; 64]
}

fn drain(link: &mut Link, now: u64) -> Vec<(Port, u8)> {
    std::iter::from_fn(|| link.pop_due(now))
        .map(|delivery| (delivery.to, delivery.frame[0]))
        .collect()
}

#[test]
fn frames_on_a_perfect_link_arrive_at_once_in_order_at_the_other_end() {
    let mut link = Link::new(1, LinkFaults::NONE);
    for n in 0..10 {
        link.send(7, Port::A, numbered(n));
    }
    link.send(7, Port::B, numbered(99));
    assert_eq!(link.next_due(), Some(7));
    let mut expected: Vec<_> = (0..10).map(|n| (Port::B, n)).collect();
    expected.push((Port::A, 99));
    assert_eq!(drain(&mut link, 7), expected);
    assert_eq!(link.next_due(), None);
}

#[test]
fn delay_holds_frames_until_their_time() {
    let mut link = Link::new(
        1,
        LinkFaults::both(Faults {
            delay_ns: 100,
            ..Faults::NONE
        }),
    );
    link.send(10, Port::A, numbered(1));
    assert_eq!(link.next_due(), Some(110));
    assert_eq!(link.pop_due(109), None);
    assert_eq!(drain(&mut link, 110), [(Port::B, 1)]);
}

#[test]
fn jitter_delays_without_reordering() {
    let faults = Faults {
        delay_ns: 10,
        jitter_ns: 1_000,
        ..Faults::NONE
    };
    let mut link = Link::new(3, LinkFaults::both(faults));
    for n in 0..100 {
        link.send(u64::from(n), Port::A, numbered(n));
    }
    let order: Vec<u8> = drain(&mut link, 5_000)
        .into_iter()
        .map(|(_, n)| n)
        .collect();
    assert_eq!(order, (0..100).collect::<Vec<u8>>());
}

#[test]
fn loss_and_duplication_are_per_direction() {
    let faults = LinkFaults {
        a_to_b: Faults {
            loss_ppm: ALWAYS,
            ..Faults::NONE
        },
        b_to_a: Faults {
            duplicate_ppm: ALWAYS,
            ..Faults::NONE
        },
    };
    let mut link = Link::new(1, faults);
    link.send(0, Port::A, numbered(1));
    link.send(0, Port::B, numbered(2));
    assert_eq!(drain(&mut link, 0), [(Port::A, 2), (Port::A, 2)]);
    assert_eq!(link.counters(Port::A).lost, 1);
    assert_eq!(
        (
            link.counters(Port::B).duplicated,
            link.counters(Port::B).delivered
        ),
        (1, 2)
    );
}

#[test]
fn reordered_frames_are_overtaken_and_still_arrive() {
    let faults = Faults {
        reorder_ppm: 300_000,
        reorder_ns: 500,
        ..Faults::NONE
    };
    let mut link = Link::new(5, LinkFaults::both(faults));
    for n in 0..200 {
        link.send(u64::from(n), Port::A, numbered(n));
    }
    let mut order: Vec<u8> = drain(&mut link, 10_000)
        .into_iter()
        .map(|(_, n)| n)
        .collect();
    assert_ne!(order, (0..200).collect::<Vec<u8>>());
    order.sort_unstable();
    assert_eq!(order, (0..200).collect::<Vec<u8>>());
}

#[test]
fn corruption_flips_exactly_one_bit() {
    let mut link = Link::new(
        1,
        LinkFaults::both(Faults {
            corrupt_ppm: ALWAYS,
            ..Faults::NONE
        }),
    );
    for _ in 0..50 {
        link.send(0, Port::A, numbered(0));
        let frame = link.pop_due(0).expect("not lost").frame;
        assert_eq!(frame.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    }
    link.send(0, Port::A, Vec::new()); // nothing to damage, nothing to panic about
    assert!(link.pop_due(0).expect("not lost").frame.is_empty());
}

#[test]
fn healing_ends_faults_and_keeps_the_flight_time() {
    let faults = Faults {
        loss_ppm: ALWAYS,
        delay_ns: 5,
        jitter_ns: 9,
        ..Faults::NONE
    };
    let mut link = Link::new(1, LinkFaults::both(faults));
    link.heal();
    link.send(0, Port::A, numbered(1));
    assert_eq!(link.next_due(), Some(5));
}

#[test]
fn a_seed_decides_every_fault() {
    let run = |seed| {
        let mut link = Link::new(seed, LinkFaults::swarm(seed));
        for n in 0..250 {
            link.send(u64::from(n) * 100, Port::A, numbered(n));
        }
        let arrived: Vec<_> = std::iter::from_fn(|| link.pop_due(u64::MAX)).collect();
        (arrived, link.counters(Port::A))
    };
    assert_eq!(run(42), run(42));
    assert_ne!(run(42), run(43));
}

#[test]
fn swarm_switches_about_half_of_the_faults_off() {
    let off = (0..200)
        .map(LinkFaults::swarm)
        .flat_map(|faults| [faults.a_to_b, faults.b_to_a])
        .flat_map(|f| [f.loss_ppm, f.duplicate_ppm, f.reorder_ppm, f.corrupt_ppm])
        .filter(|&rate| rate == 0)
        .count();
    assert!((600..1_000).contains(&off), "{off} of 1600 rates are zero");
}

#[test]
fn capture_holds_each_frame_with_its_interface_and_virtual_time() {
    let mut capture = Capture::new(Vec::new()).expect("a vector takes bytes");
    let alice = capture
        .add_interface("alice", PortType::Ethernet)
        .expect("written");
    let bob = capture
        .add_interface("bob", PortType::Ethernet)
        .expect("written");
    capture
        .frame(bob, 1_234_567_891, &[1, 2, 3])
        .expect("written");
    capture
        .frame(alice, 2_000_000_000, &[4; 61])
        .expect("written");
    assert!(matches!(
        capture.frame(7, 0, &[]),
        Err(CaptureError::Interface(7))
    ));

    let bytes = capture.into_inner();
    let mut reader = PcapNgReader::new(bytes.as_slice()).expect("a section header");
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("well formed") {
            frames.push((packet.interface_id, packet.timestamp, packet.data.to_vec()));
        }
    }
    assert_eq!(
        frames,
        [
            (bob, Duration::from_nanos(1_234_567_891), vec![1, 2, 3]),
            (alice, Duration::from_secs(2), vec![4; 61]),
        ]
    );
    assert_eq!(reader.interfaces().len(), 2);
}
