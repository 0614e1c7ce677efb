//! Tests of Ethernet frames between two functions: frames of a send queue arrive in a receive queue with the requested
//! offloads applied. The device drops or refuses frames that do not fit.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use hw_sim::{Fault, LinkFaults, Sim, SimConfig};
use mlx_prm::*;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::collections::VecDeque;

use crate::bench::{Tape, list};
use crate::eth_support::*;

/// Bits of the CQE field `hds_ip_ext`.
const L3_OK: u8 = 2;
const L4_OK: u8 = 4;

/// Returns a UDP frame whose checksums an independent library computed.
fn udp(from: usize, to: usize, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(MACS[from], MACS[to])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1234, 5678);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

fn tcp6(payload: &[u8]) -> Vec<u8> {
    let mut address = [[0xfd; 16]; 2];
    address[1][15] = 7;
    let builder = PacketBuilder::ethernet2(MACS[0], MACS[1])
        .ipv6(address[0], address[1], 64)
        .tcp(80, 41_000, 0xffff_fff0, 500)
        .ack(77)
        .psh()
        .fin();
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// Asserts that the checksums of a frame are the checksums that the `etherparse` library computes.
fn assert_good(frame: &[u8]) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let net = packet.net.unwrap();
    if let NetSlice::Ipv4(v4) = &net {
        let header = v4.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
    }
    let (sum, computed) = match (packet.transport.unwrap(), &net) {
        (TransportSlice::Udp(udp), NetSlice::Ipv4(v4)) => (
            udp.checksum(),
            udp.to_header()
                .calc_checksum_ipv4(&v4.header().to_header(), udp.payload())
                .unwrap(),
        ),
        (TransportSlice::Tcp(tcp), NetSlice::Ipv4(v4)) => (
            tcp.checksum(),
            tcp.calc_checksum_ipv4(v4.header().source(), v4.header().destination())
                .unwrap(),
        ),
        (TransportSlice::Tcp(tcp), NetSlice::Ipv6(v6)) => (
            tcp.checksum(),
            tcp.calc_checksum_ipv6(v6.header().source(), v6.header().destination())
                .unwrap(),
        ),
        other => panic!("{other:?}"),
    };
    assert_eq!(sum, computed);
}

/// Returns the RFC 1071 sum over `bytes`, folded and not inverted. The computation is independent of the simulator's.
fn sum_of(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

#[test]
fn a_frame_arrives_whole_and_completes_on_both_sides() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(2);
    let frame = plain(0, MACS[1], 300);
    a.send(&frame, SendOptions::default());
    let cqe = a.sent().unwrap();
    assert_eq!(cqe.opcode(), CqeOpcode::REQ);
    assert_eq!((cqe.qpn(), cqe.wqe_counter()), (a.sq.number, 0));
    assert_eq!(cqe.send_wqe_opcode(), WqeOpcode::SEND.bits());
    let (cqe, bytes) = b.received().unwrap();
    assert_eq!(cqe.opcode(), CqeOpcode::RESP_SEND);
    assert_eq!(bytes, frame);
    assert_eq!(cqe.l4_l3_hdr_type(), 0, "neither IP nor a VLAN");
    assert!(a.sent().is_none() && b.received().is_none());
    assert!(a.driver_bugs().is_empty() && b.driver_bugs().is_empty());
}

#[test]
fn frames_arrive_in_order_and_only_what_asks_for_it_completes() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(12);
    let mut last = 0;
    for number in 0..12 {
        last = a.sq.posted;
        let ce = if number == 11 { 2 } else { 0 };
        let how = SendOptions {
            inline: number * 8,
            ce,
            ..SendOptions::default()
        };
        a.send(&plain(0, MACS[1], 100 + number), how);
    }
    for number in 0..12 {
        assert_eq!(b.received().unwrap().1.len(), 14 + 100 + number);
    }
    assert_eq!(a.sent().map(|cqe| cqe.wqe_counter()), Some(last));
    assert!(a.sent().is_none());
}

#[test]
fn a_nop_completes_and_sends_nothing() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(1);
    let nop = a.control(WqeOpcode::NOP, 1, 2);
    a.post(zerocopy::IntoBytes::as_bytes(&nop));
    a.ring();
    assert_eq!(a.sent().unwrap().send_wqe_opcode(), WqeOpcode::NOP.bits());
    assert!(b.received().is_none());
}

#[test]
fn a_short_frame_is_padded_to_sixty_bytes() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(1);
    let frame = plain(0, MACS[1], 10);
    a.send(
        &frame,
        SendOptions {
            inline: 0,
            ..SendOptions::default()
        },
    );
    let (cqe, bytes) = b.received().unwrap();
    assert_eq!(cqe.byte_cnt(), 60);
    assert_eq!(&bytes[..24], frame);
    assert!(bytes[24..].iter().all(|&byte| byte == 0));
}

#[test]
fn checksums_left_to_the_device_are_those_of_an_independent_encoder() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(4);
    for frame in [udp(0, 1, b"odd"), udp(0, 1, &[0x5a; 700]), tcp6(&[3; 101])] {
        let mut blank = frame.clone();
        let (network, transport) = if frame[12] == 0x86 {
            (None, 70)
        } else {
            (Some(24), 40)
        };
        if let Some(at) = network {
            blank[at..at + 2].fill(0xee);
        }
        blank[transport..transport + 2].fill(0xdd);
        let how = SendOptions {
            checksums: CHECKSUMS,
            ..SendOptions::default()
        };
        a.send(&blank, how);
        let (cqe, bytes) = b.received().unwrap();
        assert_eq!(bytes[..frame.len()], frame);
        assert_eq!(cqe.hds_ip_ext() & (L3_OK | L4_OK), L3_OK | L4_OK);
    }
    // If the WQE does not request checksums, a wrong checksum stays unchanged.
    let mut wrong = udp(0, 1, &[1; 64]);
    wrong[40] ^= 1;
    a.send(&wrong, SendOptions::default());
    assert_eq!(b.received().unwrap().1, wrong);
}

#[test]
fn a_completion_says_which_checksums_hold_and_what_the_packet_sums_up_to() {
    let (_sim, _a, mut b) = pair();
    b.post_receives(4);
    let good = udp(0, 1, &[7; 90]);
    let mut network = good.clone();
    network[22] ^= 0xff;
    let mut transport = good.clone();
    transport[60] ^= 1;
    for (frame, ok) in [
        (&good, L3_OK | L4_OK),
        (&network, L4_OK),
        (&transport, L3_OK),
    ] {
        b.deliver(frame);
        let (cqe, _) = b.received().unwrap();
        assert_eq!(cqe.hds_ip_ext() & (L3_OK | L4_OK), ok);
        assert_eq!(cqe.check_sum(), sum_of(&frame[14..]));
        assert_eq!(cqe.l4_l3_hdr_type(), 2 << 4 | 2 << 2, "UDP over IPv4");
    }
    // The sum does not include Ethernet padding, which is not part of the packet.
    let mut padded = udp(0, 1, b"x");
    let packet = sum_of(&padded[14..]);
    padded.resize(60, 0xaa);
    b.deliver(&padded);
    assert_eq!(b.received().unwrap().0.check_sum(), packet);
}

#[test]
fn a_large_send_becomes_segments_that_an_independent_decoder_finds_good() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(4);
    let payload: Vec<u8> = (0..=240_u8).cycle().take(3_500).collect();
    let frame = tcp6(&payload);
    let header = frame.len() - payload.len();
    let how = SendOptions {
        opcode: WqeOpcode::LSO,
        checksums: CHECKSUMS,
        mss: 1_000,
        inline: header,
        ..SendOptions::default()
    };
    a.send(&frame, how);
    let mut together: Vec<u8> = Vec::new();
    for index in 0..4_u32 {
        let (_, bytes) = b.received().unwrap();
        assert_good(&bytes);
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else {
            panic!("no TCP");
        };
        let sequence = 0xffff_fff0_u32.wrapping_add(index * 1_000);
        assert_eq!(tcp.sequence_number(), sequence, "wraps with the stream");
        let last = index == 3;
        assert_eq!((tcp.fin(), tcp.psh()), (last, last), "segment {index}");
        together.extend(tcp.payload());
    }
    assert_eq!(together, payload);
    assert_eq!(a.sent().unwrap().send_wqe_opcode(), WqeOpcode::LSO.bits());
    assert!(b.received().is_none());
}

#[test]
fn a_large_send_of_udp_becomes_datagrams_with_ids_that_count_up() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(3);
    let frame = udp(0, 1, &[9; 250]);
    let how = SendOptions {
        opcode: WqeOpcode::LSO,
        checksums: CHECKSUMS,
        mss: 100,
        inline: 42,
        ..SendOptions::default()
    };
    a.send(&frame, how);
    let first = u16::from_be_bytes([frame[18], frame[19]]);
    for (index, length) in (0_u16..).zip([100, 100, 50]) {
        let (_, bytes) = b.received().unwrap();
        assert_good(&bytes);
        let packet = SlicedPacket::from_ethernet(&bytes).unwrap();
        let (Some(NetSlice::Ipv4(v4)), Some(TransportSlice::Udp(udp))) =
            (packet.net, packet.transport)
        else {
            panic!("no UDP");
        };
        assert_eq!(udp.payload().len(), length);
        assert_eq!(v4.header().identification(), first + index);
    }
}

/// No frame of a send queue is lost if the program outside of the simulator fetches none. The send queue pauses before
/// 4096 frames wait to be fetched. The simulator would drop frames beyond that number.
#[test]
fn a_queue_with_more_to_send_than_finds_room_outside_waits_and_no_frame_is_lost() {
    const SENDS: u8 = 31;
    const FRAMES: u8 = 200;
    const BYTES: usize = 20;
    let sim = Sim::new(SimConfig::seeded(1));
    let mut side = Side::new(&sim, profile(0));
    sim.connect_outside(&side.bench.function, LinkFaults::NONE);
    sim.inject(&side.bench.function, &Fault::LinkUp);
    let payload: Vec<u8> = (0..FRAMES).flat_map(|frame| [frame; BYTES]).collect();
    let how = SendOptions {
        opcode: WqeOpcode::LSO,
        mss: u16::try_from(BYTES).unwrap(),
        inline: 42,
        ..SendOptions::default()
    };
    let frame = udp(0, 1, &payload);
    for _ in 0..SENDS {
        let wqe = side.wqe(&frame, how);
        side.post(&wqe);
    }
    side.ring();
    let mut left = Vec::new();
    loop {
        let taken = sim.take_frames(&side.bench.function);
        if taken.is_empty() {
            break;
        }
        left.extend(taken.iter().map(|frame| frame[42]));
    }
    let expected: Vec<u8> = (0..SENDS).flat_map(|_| 0..FRAMES).collect();
    assert_eq!(left.len(), expected.len());
    assert_eq!(left, expected);
}

/// A large send with too many segments completes with an error. Linux cuts 64 KiB into segments of as few as eight
/// bytes (`TCP_MIN_SND_MSS`, less the longest options).
#[test]
fn a_large_send_of_too_many_pieces_is_an_error() {
    for (mss, bytes, frames) in [
        (8, 64 << 10, 8_192),
        (1, 64 << 10, 0),
        (8, 256 << 10, 32_768),
    ] {
        let (_sim, mut a, _b) = pair();
        let payload = vec![7; bytes];
        let how = SendOptions {
            opcode: WqeOpcode::LSO,
            mss,
            inline: 42,
            ..SendOptions::default()
        };
        let mut frame = udp(0, 1, &[]);
        frame.extend(payload);
        a.send(&frame, how);
        let left = a.bench.report().transmitted.packets;
        assert_eq!(left, frames, "{mss} of {bytes}");
        assert_eq!(a.sq_state(), if frames == 0 { ERROR } else { READY });
    }
}

#[test]
fn a_queue_with_many_frames_in_its_wqes_lets_others_have_their_turn() {
    let sim = Sim::new(SimConfig::seeded(1));
    let mut side = Side::new(&sim, profile(0));
    sim.connect_outside(&side.bench.function, LinkFaults::NONE);
    sim.inject(&side.bench.function, &Fault::LinkUp);
    let how = SendOptions {
        opcode: WqeOpcode::LSO,
        mss: 20,
        inline: 42,
        ..SendOptions::default()
    };
    let frame = udp(0, 1, &[9; 40 * 20]);
    for _ in 0..16 {
        let wqe = side.wqe(&frame, how);
        side.post(&wqe);
    }
    side.ring();
    assert_eq!(sim.take_frames(&side.bench.function).len(), 2 * 40);
}

#[test]
fn a_vlan_tag_is_inserted_at_one_end_and_stripped_at_the_other() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(2);
    let frame = plain(0, MACS[1], 100);
    let how = SendOptions {
        inline: 0,
        ..SendOptions::default()
    };
    let mut send = || {
        let mut wqe = a.wqe(&frame, how);
        wqe[28..32].copy_from_slice(&[0x80, 0x00, 0x60, 0x64]);
        a.post(&wqe);
        a.ring();
    };
    send();
    let (cqe, bytes) = b.received().unwrap();
    assert_eq!(bytes, frame);
    assert_eq!((cqe.l4_l3_hdr_type() & 1, cqe.vlan_info()), (1, 0x6064));
    // If stripping is disabled, the tag stays in the frame.
    let mut modify = rq_transition(b.rq.number, READY, READY);
    modify.modify_bitmask_mut().set_vsd(true);
    modify.ctx_mut().set_vsd(true);
    b.bench.exec(&modify).unwrap();
    send();
    let (cqe, bytes) = b.received().unwrap();
    assert_eq!(bytes[12..16], [0x81, 0x00, 0x60, 0x64]);
    assert_eq!(
        (cqe.l4_l3_hdr_type() & 1, bytes.len()),
        (0, frame.len() + 4)
    );
}

#[test]
fn without_a_receive_wqe_a_frame_is_dropped_and_counted() {
    let (_sim, mut a, mut b) = pair();
    let frame = plain(0, MACS[1], 64);
    a.send(&frame, SendOptions::default());
    assert!(a.sent().is_some(), "the sender does not know");
    assert_eq!(b.dropped("no receive WQE"), 1);
    b.post_receives(1);
    a.send(&frame, SendOptions::default());
    assert_eq!(b.received().unwrap().1, frame);
}

#[test]
fn a_frame_longer_than_the_port_carries_is_lost_on_either_side() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(2);
    a.send(&plain(0, MACS[1], 1_504), SendOptions::default());
    assert_eq!(b.received().unwrap().1.len(), 1_518);
    a.send(&plain(0, MACS[1], 1_505), SendOptions::default());
    assert_eq!(a.sent().into_iter().chain(a.sent()).count(), 2);
    assert_eq!(a.dropped("larger than the MTU"), 1);
    b.deliver(&plain(0, MACS[1], 1_505));
    assert_eq!(b.dropped("larger than the MTU"), 1);
    assert!(b.received().is_none());
}

#[test]
fn a_wqe_whose_memory_its_key_does_not_cover_takes_the_send_queue_into_error() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(2);
    let frame = plain(0, MACS[1], 100);
    let wrong = a.wqe(
        &frame,
        SendOptions {
            key: Some(a.key ^ 0xff),
            ce: 0,
            ..SendOptions::default()
        },
    );
    a.post(&wrong);
    let behind = a.wqe(
        &frame,
        SendOptions {
            ce: 0,
            ..SendOptions::default()
        },
    );
    a.post(&behind);
    a.ring();
    let syndromes: Vec<_> = std::iter::from_fn(|| a.sent())
        .map(|cqe| {
            let error = ErrCqe::from_array(*cqe.as_array());
            (
                cqe.opcode(),
                Syndrome(error.syndrome()),
                error.wqe_counter(),
            )
        })
        .collect();
    let at = u16::try_from(wrong.len().div_ceil(64)).unwrap();
    assert_eq!(
        syndromes,
        [
            (CqeOpcode::REQ_ERR, Syndrome::LOCAL_PROT_ERR, 0),
            (CqeOpcode::REQ_ERR, Syndrome::WR_FLUSH_ERR, at),
        ]
    );
    assert_eq!(a.sq_state(), ERROR);
    assert!(b.received().is_none());
    // Only a reset makes the queue ready again. After the reset the queue starts from index 0.
    assert_eq!(a.modify_sq(ERROR, READY), CmdStatus::BAD_RES_STATE);
    assert_eq!(a.modify_sq(ERROR, RESET), CmdStatus::OK);
    assert_eq!(a.modify_sq(RESET, READY), CmdStatus::OK);
    a.sq.posted = 0;
    a.send(&frame, SendOptions::default());
    assert_eq!(b.received().unwrap().1, frame);
}

#[test]
fn malformed_wqes_are_local_queue_errors() {
    type Spoil = fn(&mut Vec<u8>);
    let cases: [(&str, Spoil); 6] = [
        ("opcode", |wqe| wqe[3] = 0x08),
        ("opcode modifier", |wqe| wqe[0] = 1),
        ("queue number", |wqe| wqe[6] ^= 1),
        ("index", |wqe| wqe[2] ^= 1),
        ("inline size", |wqe| {
            wqe[28..30].copy_from_slice(&[0x03, 0xff])
        }),
        ("segment of zero bytes", |wqe| {
            let at = wqe.len() - 16;
            wqe[at..at + 4].fill(0);
        }),
    ];
    for (what, spoil) in cases {
        let (_sim, mut a, mut b) = pair();
        b.post_receives(1);
        let mut wqe = a.wqe(&plain(0, MACS[1], 100), SendOptions::default());
        spoil(&mut wqe);
        a.post(&wqe);
        // The value for the doorbell register always has the right queue number, so the doorbell is valid and the WQE
        // fails.
        a.sq.last[4..7].copy_from_slice(&a.sq.number.to_be_bytes()[1..]);
        a.ring();
        let error = ErrCqe::from_array(*a.sent().expect(what).as_array());
        assert_eq!(
            Syndrome(error.syndrome()),
            Syndrome::LOCAL_QP_OP_ERR,
            "{what}"
        );
        assert_eq!(a.sq_state(), ERROR, "{what}");
        assert!(
            b.received().is_none() && !a.driver_bugs().is_empty(),
            "{what}"
        );
    }
}

#[test]
fn a_buffer_too_small_costs_the_frame_and_a_wrong_key_the_queue() {
    let (_sim, mut a, mut b) = pair();
    b.post_receive(100);
    b.post_receives(1);
    let key = b.key ^ 0xff;
    b.rq.post(&b.bench, BUFFER, key);
    b.post_receives(1);
    let frame = plain(0, MACS[1], 200);
    a.send(&frame, SendOptions::default());
    let mut next = || {
        let cqe = b.received().unwrap().0;
        let error = ErrCqe::from_array(*cqe.as_array());
        (cqe.opcode(), Syndrome(error.syndrome()), cqe.wqe_counter())
    };
    assert_eq!(next(), (CqeOpcode::RESP_ERR, Syndrome::LOCAL_LENGTH_ERR, 0));
    a.send(&frame, SendOptions::default());
    let (opcode, _, counter) = next();
    assert_eq!((opcode, counter), (CqeOpcode::RESP_SEND, 1));
    a.send(&frame, SendOptions::default());
    assert_eq!(next(), (CqeOpcode::RESP_ERR, Syndrome::LOCAL_PROT_ERR, 2));
    assert_eq!(next(), (CqeOpcode::RESP_ERR, Syndrome::WR_FLUSH_ERR, 3));
    assert_eq!(b.rq_state(), ERROR);
    a.send(&frame, SendOptions::default());
    assert_eq!(b.dropped("receive queue is not ready"), 1);
    assert_eq!(b.modify_rq(ERROR, RESET), CmdStatus::OK);
    assert_eq!(b.modify_rq(RESET, READY), CmdStatus::OK);
    b.rq.posted = 0;
    b.post_receives(1);
    a.send(&frame, SendOptions::default());
    assert_eq!(b.received().unwrap().1, frame);
}

#[test]
fn a_doorbell_on_another_page_and_one_in_reset_are_ignored_and_noted() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(1);
    let wqe = a.wqe(&plain(0, MACS[1], 64), SendOptions::default());
    a.post(&wqe);
    let other = a.bench.exec(&AllocUarIn::new()).unwrap().uar();
    a.bench.ring(other, &a.sq.last);
    assert!(a.sent().is_none());
    assert_eq!(a.modify_sq(READY, RESET), CmdStatus::OK);
    a.ring();
    assert!(a.sent().is_none() && b.received().is_none());
    assert_eq!(a.driver_bugs().len(), 2);
}

/// A doorbell that arrives after the doorbell record has advanced is valid. A doorbell ahead of the record is a driver
/// bug. Doorbells of a function in another process arrive by a socket, which buffers many of them while the record
/// advances.
#[test]
fn a_late_doorbell_is_no_driver_bug_and_one_before_its_record_is() {
    const ON_THEIR_WAY: usize = 1 << 16 | 100;
    let (_sim, mut a, _b) = pair();
    let mut doorbells = VecDeque::new();
    for _ in 0..2 * ON_THEIR_WAY {
        let wqe = a.wqe(&plain(0, MACS[1], 64), SendOptions::default());
        a.post(&wqe);
        let last = a.sq.last;
        doorbells.push_back(last);
        // The device handles a post only after a doorbell. So the oldest doorbell is written again until enough
        // doorbells are delayed.
        a.sq.last = doorbells[0];
        if doorbells.len() > ON_THEIR_WAY {
            doorbells.pop_front();
        }
        a.ring();
        a.sq.last = last;
        assert!(a.sent().is_some(), "{:?}", a.driver_bugs());
    }
    assert_eq!(a.driver_bugs(), [""; 0]);
    for doorbell in doorbells {
        a.sq.last = doorbell;
        a.ring();
    }
    // This doorbell is for a WQE that the doorbell record does not cover yet.
    let index = a.sq.posted.to_be_bytes();
    a.sq.last[1..3].copy_from_slice(&index);
    a.ring();
    let bugs = a.driver_bugs();
    assert!(
        bugs.len() == 1 && bugs[0].contains("doorbell record behind the doorbell"),
        "{bugs:?}"
    );
}

#[test]
fn own_frames_come_back_only_to_a_tir_with_loopback() {
    let (_sim, mut a, mut b) = pair();
    a.post_receives(4);
    b.post_receives(4);
    a.send(&plain(0, BROADCAST, 64), SendOptions::default());
    assert!(b.received().is_some() && a.received().is_none());
    a.send(&plain(0, MACS[0], 64), SendOptions::default());
    assert!(b.received().is_none() && a.received().is_none());
    a.allow_loopback(3);
    a.send(&plain(0, BROADCAST, 64), SendOptions::default());
    assert!(b.received().is_some() && a.received().is_some());
    a.send(&plain(0, MACS[0], 64), SendOptions::default());
    assert!(b.received().is_none() && a.received().is_some());
}

/// A frame that a function sends to a group is also delivered to a TIR of another transport domain of the same
/// function. Linux enables loopback as soon as there are two transport domains (`mlx5_ib_enable_lb`).
#[test]
fn a_copy_of_what_goes_to_a_group_comes_back_into_another_transport_domain() {
    let (_sim, mut a, mut b) = pair();
    a.post_receives(4);
    b.post_receives(4);
    let td = a.bench.exec(&AllocTransportDomainIn::new()).unwrap();
    let other = create_tir(&mut a.bench, td.transport_domain(), a.rq.number);
    let table = a.table(0, 4).unwrap();
    let group = a.group(table, 0, 15, &FteMatchParam::new()).unwrap();
    let to = destination(FlowDestinationType::TIR, other);
    a.entry(table, group, 0, &FteMatchParam::new(), &[to])
        .unwrap();
    let unlisted = [0x01, 0x50, 0x56, 0x19, 0x20, 0xa7];
    a.send(&plain(0, unlisted, 64), SendOptions::default());
    assert!(a.received().is_some() && b.received().is_none());
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_disable_mc_local_lb(true);
    modify.nic_vport_context_mut().set_disable_mc_local_lb(true);
    a.bench.exec(&modify).unwrap();
    a.send(&plain(0, unlisted, 64), SendOptions::default());
    assert!(a.received().is_none());
}

#[test]
fn the_port_takes_what_is_for_it_and_everything_when_promiscuous() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(4);
    let stranger = [2, 9, 9, 9, 9, 9];
    let group = [0x33, 0x33, 0, 0, 0, 1];
    a.send(&plain(0, stranger, 64), SendOptions::default());
    a.send(&plain(0, group, 64), SendOptions::default());
    assert!(b.received().is_none());
    assert_eq!(b.dropped("unannounced address"), 1);
    assert_eq!(
        b.dropped("address of another"),
        1,
        "a group it does not list"
    );
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_promisc(true);
    modify.nic_vport_context_mut().set_promisc_all(true);
    b.bench.exec(&modify).unwrap();
    a.send(&plain(0, stranger, 64), SendOptions::default());
    a.send(&plain(0, group, 64), SendOptions::default());
    assert!(b.received().is_some() && b.received().is_some());
}

#[test]
fn a_capture_has_the_frames_as_they_were_on_the_wire() {
    let (sim, mut a, mut b) = pair();
    let capture = Tape::default();
    sim.pcap(capture.clone()).unwrap();
    b.post_receives(1);
    let frame = plain(0, MACS[1], 30);
    a.send(&frame, SendOptions::default());
    sim.flush_pcap().unwrap();
    let bytes = capture.bytes();
    let mut reader = PcapNgReader::new(bytes.as_slice()).unwrap();
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            frames.push(packet.data.into_owned());
        }
    }
    assert_eq!(frames, [b.received().unwrap().1]);
    assert_eq!(frames[0][..frame.len()], frame);
}

#[test]
fn frames_are_counted_by_kind_of_destination_and_foreign_ones_not_at_all() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(8);
    let group = [0x33, 0x33, 0, 0, 0, 1];
    for to in [MACS[1], BROADCAST, BROADCAST, group, [2, 9, 9, 9, 9, 9]] {
        a.send(&plain(0, to, 86), SendOptions::default());
    }
    a.send(&plain(0, MACS[0], 86), SendOptions::default());
    let counters = |side: &mut Side| side.bench.exec(&QueryVportCounterIn::new()).unwrap();
    let sent = counters(&mut a);
    assert_eq!(sent.transmitted_eth_unicast().packets(), 2);
    assert_eq!(sent.transmitted_eth_broadcast().octets(), 200);
    assert_eq!(sent.transmitted_eth_multicast().packets(), 1);
    assert_eq!(sent.transmitted_ib_unicast().packets(), 0, "none is RDMA's");
    assert_eq!(sent.local_loopback().packets(), 1);
    let received = counters(&mut b);
    assert_eq!(received.received_eth_unicast().packets(), 1);
    assert_eq!(received.received_eth_broadcast().packets(), 2);
    assert_eq!(received.received_eth_multicast().packets(), 0, "not listed");
    assert_eq!(
        received.received_ib_unicast().packets(),
        0,
        "none is RDMA's"
    );
}

#[test]
fn any_bytes_from_the_wire_are_a_frame_or_nothing() {
    let (_sim, _a, mut b) = pair();
    b.allow_loopback(3);
    let good = udp(0, 1, &[3; 40]);
    for length in 0..good.len() {
        b.post_receives(1);
        b.deliver(&good[..length]);
    }
    for at in 12..good.len() {
        for bit in 0..8 {
            b.post_receives(1);
            let mut frame = good.clone();
            frame[at] ^= 1 << bit;
            b.deliver(&frame);
            while b.received().is_some() {}
        }
    }
    assert!(b.driver_bugs().is_empty(), "{:?}", b.driver_bugs());
}

#[test]
fn a_packet_for_the_roce_port_is_software_s_only_if_it_is_whole() {
    let (_sim, mut a, mut b) = pair();
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    b.bench.enable_roce(gid, MACS[1]);
    b.post_receives(2);
    let datagram = |sport, dport| {
        let builder = PacketBuilder::ethernet2(MACS[0], MACS[1])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(sport, dport);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[0; 32]).unwrap();
        frame
    };
    a.send(&datagram(50_000, 4_791), SendOptions::default());
    assert!(
        b.received().is_none(),
        "RoCE by its port, and no ICRC that holds"
    );
    assert_eq!(b.dropped("ICRC"), 1);
    a.send(&datagram(4_791, 50_000), SendOptions::default());
    assert!(b.received().is_some());
}

/// A queue may begin at any multiple of 64 bytes in a page, or in user memory. A raw packet queue pair has both its
/// queues in one buffer, so one of them does not begin at a page boundary (Linux `create_raw_packet_qp_sq` and
/// `create_raw_packet_qp_rq`, drivers/infiniband/hw/mlx5/qp.c). DPDK's queues are in user memory
/// (`mlx5_devx_sq_create`).
#[test]
fn queues_begin_anywhere_in_a_page_or_in_user_memory() {
    for place in [
        Place::Pages(0),
        Place::Pages(1),
        Place::Pages(31),
        Place::Umem(0),
        Place::Umem(0x440),
    ] {
        let (_sim, mut a, mut b) = pair_placed(profile, place);
        b.post_receives(RQ_ENTRIES);
        // Each frame takes one block of the send ring, so both rings wrap around. The send ring of one page crosses a
        // page boundary at every offset but 0.
        for round in 0..SQ_BLOCKS + RQ_ENTRIES {
            let frame = plain(0, MACS[1], 200 + round);
            a.send(&frame, SendOptions::default());
            assert_eq!(b.received().unwrap().1, frame, "{place:?} {round}");
            b.post_receives(1);
            assert!(a.sent().is_some());
        }
        assert_eq!(usize::from(a.sq.posted), SQ_BLOCKS + RQ_ENTRIES);
        assert_eq!(a.driver_bugs(), [""; 0]);
        let mut query = QuerySqIn::new();
        query.set_sqn(a.sq.number);
        let context = a.bench.exec(&query).unwrap();
        let told = context.sq_context().wq();
        match place {
            Place::Pages(offset) => assert_eq!(told.page_offset(), offset),
            Place::Umem(_) => {
                let mut destroy = DestroyUmemIn::new();
                destroy.set_umem_id(told.wq_umem_id());
                assert_eq!(a.bench.status(&destroy), CmdStatus::BAD_RES_STATE);
                a.modify_sq(READY, RESET);
                let mut end = DestroySqIn::new();
                end.set_sqn(a.sq.number);
                a.bench.exec(&end).unwrap();
                assert_eq!(a.bench.status(&destroy), CmdStatus::OK);
            }
        }
    }
}

/// A queue is refused if its pages are too few for its size plus its offset.
#[test]
fn a_queue_that_its_pages_do_not_hold_from_its_offset_on_is_refused() {
    let (_sim, mut a, _b) = pair();
    let (_, record) = a.bench.alloc(64);
    let mut create = rq_input(a.rq.cq.number, a.resources.pd, record, [6, 6]);
    create.ctx_mut().wq_mut().set_page_offset(1);
    let (_, ring) = a.bench.alloc(8192);
    let one = list(&[ring]);
    assert_eq!(a.bench.status_with(&create, &one), CmdStatus::BAD_INPUT_LEN);
    let two = list(&[ring, ring + 4096]);
    assert_eq!(a.bench.status_with(&create, &two), CmdStatus::OK);
}
