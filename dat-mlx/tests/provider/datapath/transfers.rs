//! Sends, RDMA Writes and RDMA Reads that succeed.

use dat_core::provider::{Provider, QueuePair, QueueSizes, RequestFlags, RequestOp};
use dat_core::types::DtoStatus;
use hw_sim::{Fault, Habits, LinkFaults, Profile};

use super::pair::{
    Pair, REPORTED, SIZES, SUPPRESSED, TERMS, Terms, jumbo_pair, pair, pair_of, pair_with, pattern,
    profile, read, write,
};

#[test]
fn a_send_arrives_in_the_buffer_posted_for_it() {
    let mut p = pair();
    let (mut qa, mut qb) = p.connected();
    let data = pattern(1, 5000);
    p.a.buffer.write_bytes(0, &data);
    qb.post_recv(
        [p.b.segment(0, 1000), p.b.segment(8192, 5000)].into_iter(),
        77,
        true,
    )
    .unwrap();
    assert_eq!(qb.recvs_outstanding(), 1);
    qa.post_request(
        RequestOp::Send,
        std::iter::once(p.a.segment(0, 5000)),
        88,
        RequestFlags {
            solicited: true,
            ..REPORTED
        },
    )
    .unwrap();
    let sent = p.a.completions(&mut qa, 1)[0];
    assert_eq!(
        (sent.cookie, sent.status, sent.request, sent.transferred),
        (88, DtoStatus::Success, true, 5000)
    );
    let received = p.b.completions(&mut qb, 1)[0];
    assert_eq!(
        (
            received.cookie,
            received.status,
            received.request,
            received.transferred
        ),
        (77, DtoStatus::Success, false, 5000)
    );
    assert!(received.solicited && received.unsignalled);
    assert_eq!(p.b.bytes(0, 1000), data[..1000]);
    assert_eq!(p.b.bytes(8192, 4000), data[1000..]);
    assert_eq!((qa.requests_outstanding(), qb.recvs_outstanding()), (0, 0));
    p.finish(qa, qb);
}

#[test]
fn an_rdma_write_gathers_and_lands_where_it_was_told() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let data = pattern(2, 9000);
    p.a.buffer.write_bytes(0, &data);
    let segments = [
        p.a.segment(0, 1),
        p.a.segment(1, 4095),
        p.a.segment(4096, 4904),
    ];
    let op = write(&p.b, 12345);
    qa.post_request(op, segments.into_iter(), 5, REPORTED)
        .unwrap();
    let done = p.a.completions(&mut qa, 1)[0];
    assert_eq!(
        (done.cookie, done.status, done.transferred),
        (5, DtoStatus::Success, 9000)
    );
    assert_eq!(p.b.bytes(12345, 9000), data);
    assert_eq!(p.b.bytes(12345 + 9000, 1), [0]);
    p.finish(qa, qb);
}

#[test]
fn an_rdma_read_scatters_what_the_peer_has() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let data = pattern(3, 6000);
    p.b.buffer.write_bytes(100, &data);
    let op = read(&p.b, 100);
    qa.post_request(
        op,
        [p.a.segment(0, 2000), p.a.segment(4000, 4000)].into_iter(),
        6,
        REPORTED,
    )
    .unwrap();
    let done = p.a.completions(&mut qa, 1)[0];
    assert_eq!(
        (done.cookie, done.status, done.transferred),
        (6, DtoStatus::Success, 6000)
    );
    assert_eq!(p.a.bytes(0, 2000), data[..2000]);
    assert_eq!(p.a.bytes(4000, 4000), data[2000..]);
    p.finish(qa, qb);
}

#[test]
fn empty_requests_complete() {
    let mut p = pair();
    let (mut qa, mut qb) = p.connected();
    qb.post_recv(std::iter::empty(), 1, false).unwrap();
    qa.post_request(RequestOp::Send, std::iter::empty(), 2, REPORTED)
        .unwrap();
    let op = write(&p.b, 0);
    qa.post_request(op, std::iter::empty(), 3, REPORTED)
        .unwrap();
    let op = read(&p.b, 0);
    qa.post_request(op, std::iter::empty(), 4, REPORTED)
        .unwrap();
    let done = p.a.completions(&mut qa, 3);
    assert_eq!(
        done.iter()
            .map(|done| (done.cookie, done.status, done.transferred))
            .collect::<Vec<_>>(),
        [
            (2, DtoStatus::Success, 0),
            (3, DtoStatus::Success, 0),
            (4, DtoStatus::Success, 0)
        ]
    );
    assert_eq!(p.b.completions(&mut qb, 1)[0].transferred, 0);
    p.finish(qa, qb);
}

#[test]
fn inline_data_arrives_although_its_memory_is_not_registered() {
    let mut p = pair();
    let (mut qa, mut qb) = p.connected();
    let longest = qa.send_inline_limit();
    for bytes in [0, 1, 12, 13, 28, longest] {
        let data = pattern(4, bytes);
        qb.post_recv(std::iter::once(p.b.segment(0, 4096)), 1, false)
            .unwrap();
        qa.post_send_inline(RequestOp::Send, &data, 2, REPORTED)
            .unwrap();
        assert_eq!(p.a.completions(&mut qa, 1)[0].status, DtoStatus::Success);
        assert_eq!(p.b.completions(&mut qb, 1)[0].transferred, bytes as u64);
        assert_eq!(p.b.bytes(0, bytes), data);
    }
    p.finish(qa, qb);
}

#[test]
fn a_fenced_write_back_sees_what_the_read_brought() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let data = pattern(5, 64 << 10);
    p.b.buffer.write_bytes(0, &data);
    let bytes = 64 << 10;
    let op = read(&p.b, 0);
    qa.post_request(op, std::iter::once(p.a.segment(0, bytes)), 1, SUPPRESSED)
        .unwrap();
    let op = write(&p.b, 512 << 10);
    qa.post_request(
        op,
        std::iter::once(p.a.segment(0, bytes)),
        2,
        RequestFlags {
            fence: true,
            ..REPORTED
        },
    )
    .unwrap();
    assert_eq!(p.a.completions(&mut qa, 1)[0].cookie, 2);
    assert_eq!(p.b.bytes(512 << 10, data.len()), data);
    p.finish(qa, qb);
}

/// Requests still complete after the 16-bit WQE indices of the send queue and of the receive queue have wrapped. WQEs
/// of five and of six blocks cross the end of the ring.
#[test]
fn traffic_goes_on_after_the_wqe_indices_wrap() {
    let mut p = pair();
    let sizes = QueueSizes {
        max_requests: 7,
        max_recvs: 5,
        max_request_segments: 20,
        max_read_segments: 20,
        max_recv_segments: 3,
        binds: false,
    };
    let (mut qa, mut qb) = p.connected_with(sizes, TERMS);
    for round in 0..70_000_u64 {
        let op = write(&p.b, 4096);
        // The Write has 22 to 18 units, which are six or five blocks. So WQEs cross the ring's end at every position.
        let segments = 20 - u32::try_from(round % 5).unwrap();
        let one = p.a.segment(0, 3);
        qa.post_request(op, (0..segments).map(|_| one), round, REPORTED)
            .unwrap();
        qb.post_recv(std::iter::once(p.b.segment(0, 64)), round, false)
            .unwrap();
        qa.post_request(
            RequestOp::Send,
            (0..segments).map(|_| one),
            round + 1_000_000,
            SUPPRESSED,
        )
        .unwrap();
        let done = p.a.polled(&mut qa);
        assert_eq!(
            done.iter()
                .map(|done| (done.cookie, done.status))
                .collect::<Vec<_>>(),
            [(round, DtoStatus::Success)]
        );
        let received = p.b.polled(&mut qb);
        assert_eq!(
            received
                .iter()
                .map(|done| (done.cookie, done.transferred))
                .collect::<Vec<_>>(),
            [(round, u64::from(segments) * 3)]
        );
    }
    assert_eq!((qa.0.unmatched_entries(), qb.0.unmatched_entries()), (0, 0));
    p.finish(qa, qb);
}

#[test]
fn a_queue_of_suppressed_requests_only_never_wedges() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let op = write(&p.b, 0);
    for n in 0..1000 {
        let segment = p.a.segment(0, 8);
        if qa
            .post_request(op, std::iter::once(segment), n, SUPPRESSED)
            .is_err()
        {
            assert_eq!(p.a.polled(&mut qa), [], "hidden");
            qa.post_request(op, std::iter::once(segment), n, SUPPRESSED)
                .unwrap();
        }
    }
    p.finish(qa, qb);
}

#[test]
fn a_long_message_is_cut_into_packets_of_any_mtu_the_port_takes() {
    for mtu in 1..=5 {
        let mut p = jumbo_pair();
        assert_eq!(p.a.provider.limits().mtu, 5);
        let (mut qa, mut qb) = p.connected_with(SIZES, Terms { mtu, ..TERMS });
        let data = pattern(mtu, 300_000);
        p.a.buffer.write_bytes(0, &data);
        qb.post_recv(std::iter::once(p.b.segment(0, 300_000)), 1, false)
            .unwrap();
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 300_000)),
            2,
            REPORTED,
        )
        .unwrap();
        assert_eq!(p.a.completions(&mut qa, 1)[0].status, DtoStatus::Success);
        assert_eq!(p.b.completions(&mut qb, 1)[0].transferred, 300_000);
        assert_eq!(p.b.bytes(0, 300_000), data);
        p.finish(qa, qb);
    }
}

#[test]
fn a_function_can_talk_to_itself() {
    let mut p = pair();
    let mut one = p.a.create_qp(SIZES, 1);
    let mut two = p.a.create_qp(SIZES, 2);
    let gid = p.a.gid();
    super::pair::ready(&mut p.a, &mut one, gid, two.number(), (1, 2), TERMS);
    super::pair::ready(&mut p.a, &mut two, gid, one.number(), (2, 1), TERMS);
    p.a.buffer.write_bytes(0, b"to myself");
    let op = write(&p.a, 4096);
    one.post_request(op, std::iter::once(p.a.segment(0, 9)), 1, REPORTED)
        .unwrap();
    assert_eq!(p.a.completions(&mut one, 1)[0].status, DtoStatus::Success);
    assert_eq!(p.a.bytes(4096, 9), b"to myself");
    p.a.destroy_qp(one);
    p.a.destroy_qp(two);
    p.finish_bare();
}

/// Everything completes over a link that loses, repeats, delays, reorders and damages packets.
#[test]
fn everything_completes_over_a_bad_wire() {
    for seed in 0..8 {
        let mut p = pair_with(seed, LinkFaults::swarm(seed));
        let (mut qa, mut qb) = p.connected();
        let data = pattern(7, 20_000);
        p.a.buffer.write_bytes(0, &data);
        for n in 0..6 {
            qb.post_recv(std::iter::once(p.b.segment(100_000, 20_000)), n, false)
                .unwrap();
            qa.post_request(
                RequestOp::Send,
                std::iter::once(p.a.segment(0, 20_000)),
                n,
                SUPPRESSED,
            )
            .unwrap();
            let op = write(&p.b, 0);
            qa.post_request(
                op,
                std::iter::once(p.a.segment(0, 20_000)),
                100 + n,
                SUPPRESSED,
            )
            .unwrap();
        }
        let op = read(&p.b, 0);
        qa.post_request(
            op,
            std::iter::once(p.a.segment(500_000, 20_000)),
            999,
            REPORTED,
        )
        .unwrap();
        let done = p.a.completions(&mut qa, 1)[0];
        assert_eq!(
            (done.cookie, done.status),
            (999, DtoStatus::Success),
            "seed {seed}"
        );
        assert_eq!(
            p.b.completions(&mut qb, 6)
                .iter()
                .map(|done| done.cookie)
                .collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5],
            "seed {seed}"
        );
        assert_eq!(p.a.bytes(500_000, 20_000), data, "seed {seed}");
        assert_eq!(p.b.bytes(100_000, 20_000), data, "seed {seed}");
        p.finish(qa, qb);
    }
}

/// Sends `count` messages one after another, and checks each.
fn send_one_by_one(p: &mut Pair, count: u8) {
    let (mut qa, mut qb) = p.connected();
    for round in 0..count {
        let data = pattern(round, 300);
        p.a.buffer.write_bytes(0, &data);
        qb.post_recv(std::iter::once(p.b.segment(0, 300)), round.into(), true)
            .unwrap();
        qa.post_request(
            RequestOp::Send,
            std::iter::once(p.a.segment(0, 300)),
            round.into(),
            REPORTED,
        )
        .unwrap();
        let sent = p.a.completions(&mut qa, 1)[0];
        assert_eq!(sent.status, DtoStatus::Success);
        let received = p.b.completions(&mut qb, 1)[0];
        assert_eq!(
            (received.cookie, received.status),
            (round.into(), DtoStatus::Success)
        );
        assert_eq!(p.b.bytes(0, 300), data);
    }
    p.a.destroy_qp(qa);
    p.b.destroy_qp(qb);
}

/// A receive is found even if the device reports only the bits of `wqe_counter` within the ring. rdma-core and Linux
/// use only these bits, so a device may do that.
#[test]
fn receives_are_found_by_a_counter_that_is_cut_to_the_ring() {
    let cuts = |n| Profile {
        habits: Habits {
            cuts_receive_counter: true,
            ..Habits::default()
        },
        ..profile(n)
    };
    let mut p = pair_of(0, LinkFaults::NONE, cuts, &[]);
    // The ring of sixteen entries wraps several times.
    send_one_by_one(&mut p, 70);
    p.finish_bare();
}

/// Everything completes if the firmware takes milliseconds for a command, completes commands in random order, and
/// requests memory while objects are created.
#[test]
fn a_slow_firmware_that_grows_with_its_objects_is_waited_for() {
    let growth = Fault::Growth { every: 2, pages: 5 };
    let mut p = pair_of(1, LinkFaults::NONE, |n| profile(n).slow(), &[growth]);
    send_one_by_one(&mut p, 20);
    p.finish_bare();
}

/// Everything completes if the device reports an event for every connection that is established.
#[test]
fn a_device_that_tells_of_every_connection_is_listened_to() {
    let tells = |n| Profile {
        habits: Habits {
            tells_every_connection: true,
            ..Habits::default()
        },
        ..profile(n)
    };
    let mut p = pair_of(1, LinkFaults::NONE, tells, &[]);
    send_one_by_one(&mut p, 3);
    p.finish_bare();
}
