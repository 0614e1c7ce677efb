//! Tests of reliable connections, packet by packet: timers, retries, limits and recovery.

use hw_sim::link::Port;
use hw_sim::q_counters::QCounter;
use hw_sim::wire::{AckSyndrome, AethRepr, NakCode, Operation, Psn};
use mlx_prm::{EventType, Syndrome};
use std::cell::RefCell;
use std::rc::Rc;

use crate::rc_support::*;

/// ACK timeout of the tests in ns: 4.096 µs · 2^4.
const ACK_TIMEOUT_NS: u64 = 65_536;

/// Collects PSNs and syndromes of the acknowledgements from B.
fn watch_syndromes(pair: &mut Pair) -> Rc<RefCell<Vec<(Psn, AckSyndrome)>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    pair.filter = Box::new(move |from, _, packet| {
        if let (Port::B, Some(aeth)) = (from, packet.headers.aeth) {
            log.borrow_mut().push((packet.bth.psn, aeth.syndrome));
        }
        true
    });
    seen
}

#[test]
fn lost_packet_in_the_middle_draws_one_sequence_nak_and_is_resent_at_once() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.drop_packets(Port::A, &[1]);
    let data = pattern(5 * MTU as usize, 4);
    pair.a.host.write(DATA, &data);
    pair.a.post(&Wqe::send(DATA, 5 * MTU));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0)], "no timer was needed");
    assert_eq!(pair.b.host.read(DATA, data.len()), data);
    assert_eq!(
        pair.count(Port::B, Operation::Acknowledge),
        2,
        "one NAK, one ACK"
    );
}

/// A Write of several packets arrives whole, once and silently, whichever packet is lost: a sequence NAK recovers a
/// packet that others follow, and the timer recovers the last one.
#[test]
fn long_write_arrives_whole_whichever_of_its_packets_is_lost() {
    const TO: u64 = DATA + 0x8000;
    let data = pattern(5 * MTU as usize, 4);
    for lost in [&[0], &[2], &[4]] {
        let mut pair = Pair::new();
        pair.a.host.write(DATA, &data);
        pair.drop_packets(Port::A, lost);
        pair.a.post(&Wqe::write(DATA, 5 * MTU, TO, KEY));
        // All packets are on the wire before B handles the first one.
        pair.a.run();
        pair.run_until_idle();
        let is_last = lost == &[4];
        assert_eq!(pair.a.sends().is_empty(), is_last, "{lost:?} at once");
        pair.run_until(2 * ACK_TIMEOUT_NS);
        assert_eq!(pair.a.send_results(), [(0, 0)], "{lost:?}");
        assert_eq!(pair.b.host.read(TO, data.len()), data, "{lost:?}");
        for beside in [TO - 4, TO + u64::from(5 * MTU)] {
            assert_eq!(pair.b.host.read(beside, 4), [0; 4], "{lost:?}");
        }
        assert_eq!(pair.b.host.completions.len(), 0, "{lost:?}");
        let again = pair.seen[lost[0]].psn;
        let times = pair.seen.iter().filter(|seen| seen.psn == again);
        let times = times.filter(|seen| seen.from == Port::A).count();
        assert_eq!(times, 2, "{lost:?} is sent twice");
        let timeouts = pair.a.host.counted.get(&(0, QCounter::LocalAckTimeoutErr));
        assert_eq!(timeouts.is_some(), is_last, "{lost:?}");
    }
}

#[test]
fn out_of_sequence_packets_draw_a_single_nak() {
    let mut pair = Pair::new();
    let seen = watch_syndromes(&mut pair);
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    let mut lost = false;
    let log = Rc::clone(&seen);
    pair.filter = Box::new(move |from, count, packet| {
        if let (Port::B, Some(aeth)) = (from, packet.headers.aeth) {
            log.borrow_mut().push((packet.bth.psn, aeth.syndrome));
        }
        let lose = from == Port::A && count == 0 && !lost;
        lost |= lose;
        !lose
    });
    // All requests are on the wire before B handles the first one.
    for _ in 0..4 {
        pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    }
    pair.a.run();
    pair.run_until_idle();
    let nak = (Psn::masked(FIRST_PSN), AckSyndrome::Nak(NakCode::Sequence));
    assert_eq!(
        seen.borrow()
            .iter()
            .filter(|&&answer| answer == nak)
            .count(),
        1
    );
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[test]
fn silent_peer_fails_the_wqe_after_all_retries_at_the_right_times() {
    let mut pair = Pair::changed(|options| options.retry_count = 3);
    pair.filter = Box::new(|_, _, _| false);
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY).unsignalled());
    pair.run_until(4 * ACK_TIMEOUT_NS - 1);
    assert_eq!(pair.a.sends().len(), 0);
    pair.run_until(4 * ACK_TIMEOUT_NS);
    let exceeded = Syndrome::TRANSPORT_RETRY_EXC_ERR.0;
    assert_eq!(pair.a.send_results(), [(0, exceeded), (1, FLUSHED)]);
    let first = Psn::masked(FIRST_PSN);
    let times: Vec<u64> = pair
        .seen
        .iter()
        .filter(|seen| seen.psn == first)
        .map(|seen| seen.at)
        .collect();
    assert_eq!(times, [0, 1, 2, 3].map(|n| n * ACK_TIMEOUT_NS));
    assert_eq!(pair.a.qp.query().state(), 6);
    assert_eq!(pair.a.host.events, [], "the CQE says it all");
}

#[test]
fn progress_gives_the_retries_back() {
    let mut pair = Pair::changed(|options| options.retry_count = 1);
    // Every write needs one retry, and there are more writes than the retry count.
    pair.filter = Box::new(|from, count, _| from == Port::B || count % 2 == 1);
    for n in 0..5 {
        pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
        assert!(pair.run_while(|pair| pair.a.sends().len() <= n));
    }
    assert!(
        pair.a
            .send_results()
            .iter()
            .all(|&(_, syndrome)| syndrome == 0)
    );
}

#[test]
fn ack_timeout_zero_waits_forever() {
    let mut pair = Pair::changed(|options| options.ack_timeout = 0);
    pair.filter = Box::new(|_, _, _| false);
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.qp.timer_due(), None);
}

#[test]
fn lost_acknowledgement_is_repeated_without_delivering_twice() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.drop_packets(Port::B, &[0]);
    pair.a.post(&Wqe::send_inline(&[1; 10]));
    pair.run_until(2 * ACK_TIMEOUT_NS);
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(pair.b.receive_results(), [(0, 0)]);
    assert_eq!(pair.count(Port::A, Operation::SendOnly), 2);
}

#[test]
fn lost_read_response_is_requested_again_from_where_it_broke_off() {
    let mut pair = Pair::new();
    let data = pattern(6 * MTU as usize, 8);
    pair.b.host.write(DATA, &data);
    let lengths = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&lengths);
    pair.filter = Box::new(move |from, count, packet| {
        if let Some(reth) = packet.headers.reth {
            log.borrow_mut().push((reth.va, reth.length));
        }
        from == Port::A || count != 2
    });
    pair.a.post(&Wqe::read(DATA, 6 * MTU, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.host.read(DATA, data.len()), data);
    assert_eq!(
        pair.a.send_results(),
        [(0, 0)],
        "the hole was noticed without a timer"
    );
    assert_eq!(
        *lengths.borrow(),
        [(DATA, 6 * MTU), (DATA + 2 * u64::from(MTU), 4 * MTU)]
    );
}

#[test]
fn duplicate_read_is_executed_again_from_memory_as_it_is() {
    let mut pair = Pair::new();
    pair.b.host.write(DATA, &[1; 16]);
    pair.drop_packets(Port::B, &[0]);
    pair.a.post(&Wqe::read(DATA, 16, DATA, KEY));
    pair.run_until_idle();
    pair.b.host.write(DATA, &[2; 16]);
    pair.run_until(2 * ACK_TIMEOUT_NS);
    assert_eq!(pair.a.host.read(DATA, 16), [2; 16]);
}

#[test]
fn duplicate_atomic_is_answered_from_the_replay_buffer() {
    let mut pair = Pair::new();
    pair.drop_packets(Port::B, &[0]);
    pair.a.post(&Wqe::fetch_add(DATA, DATA, KEY, 3));
    pair.run_until(2 * ACK_TIMEOUT_NS);
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(pair.count(Port::A, Operation::FetchAdd), 2);
    assert_eq!(
        pair.b.host.read(DATA, 8),
        [3, 0, 0, 0, 0, 0, 0, 0],
        "added once"
    );
    assert_eq!(pair.a.host.read(DATA, 8), [0; 8], "the original value");
}

#[test]
fn acknowledgement_beyond_a_read_implies_that_its_response_was_lost() {
    let mut pair = Pair::new();
    pair.b.host.write(DATA, &[7; 16]);
    pair.drop_packets(Port::B, &[0]);
    pair.a.place(&Wqe::read(DATA, 16, DATA, KEY));
    pair.a.post(&Wqe::write(DATA + 0x100, 4, DATA + 0x100, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
    assert_eq!(pair.a.host.read(DATA, 16), [7; 16]);
}

#[test]
fn receiver_not_ready_waits_out_the_timer_and_tries_again() {
    let mut pair = Pair::changed(|options| options.min_rnr_nak = 5); // 60 µs
    pair.a.post(&Wqe::send_inline(&[9; 4]));
    pair.run_until_idle();
    assert_eq!(pair.a.sends().len(), 0);
    assert_eq!(pair.a.qp.timer_due(), Some(60_000));
    pair.run_until(59_999);
    assert_eq!(pair.count(Port::A, Operation::SendOnly), 1);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.run_until(60_000);
    assert_eq!(pair.count(Port::A, Operation::SendOnly), 2);
    assert_eq!(
        (pair.a.send_results(), pair.b.receive_results()),
        (vec![(0, 0)], vec![(0, 0)])
    );
}

#[test]
fn receiver_never_ready_exhausts_the_rnr_retries() {
    let mut pair = Pair::changed(|options| options.rnr_retry = 2);
    pair.a.post(&Wqe::send_inline(&[9; 4]));
    pair.run_until(1_000_000);
    assert_eq!(pair.a.send_results(), [(0, Syndrome::RNR_RETRY_EXC_ERR.0)]);
    assert_eq!(pair.count(Port::A, Operation::SendOnly), 3);
}

/// A sequence NAK during an RNR wait neither ends the wait nor counts as a retry. Linux' software RoCE sends a sequence
/// NAK for the message after the one that found no receive.
#[test]
fn sequence_nak_while_the_receiver_is_waited_for_neither_ends_the_wait_nor_counts() {
    let options = Options {
        min_rnr_nak: 0,
        retry_count: 0,
        ..Options::default()
    }; // 655.36 ms: longer than all ACK timeouts together
    let mut pair = Pair::with(&options);
    let nak = Rc::new(RefCell::new(Vec::new()));
    let forged = Rc::clone(&nak);
    pair.filter = Box::new(move |from, _, packet| {
        if let (Port::B, Some(aeth)) = (from, packet.headers.aeth)
            && aeth.syndrome == AckSyndrome::Rnr(0)
        {
            let mut packet = *packet;
            packet.headers.aeth = Some(AethRepr {
                syndrome: AckSyndrome::Nak(NakCode::Sequence),
                ..aeth
            });
            *forged.borrow_mut() = packet.emit();
        }
        true
    });
    for byte in [9, 10] {
        pair.a.post(&Wqe::send_inline(&[byte; 4]));
    }
    pair.run_until_idle();
    pair.deliver(Port::A, &nak.take());
    for _ in 0..2 {
        pair.b.post_receive(&[(KEY, DATA, 64)]);
    }
    pair.run_until(655_359_999);
    assert_eq!(
        (
            pair.a.send_results(),
            pair.count(Port::A, Operation::SendOnly)
        ),
        (vec![], 2)
    );
    pair.run_until(655_360_000);
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
    assert_eq!(pair.count(Port::A, Operation::SendOnly), 4);
}

#[test]
fn rnr_retry_seven_never_gives_up() {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::send_inline(&[9; 4]));
    pair.run_until(1_000_000);
    assert!(pair.count(Port::A, Operation::SendOnly) > 90, "10 µs apart");
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.run_until(1_010_000);
    assert_eq!(pair.a.send_results(), [(0, 0)]);
}

#[test]
fn write_with_immediate_needs_its_receive_only_for_the_last_packet() {
    let mut pair = Pair::new();
    let data = pattern(3 * MTU as usize, 6);
    pair.a.host.write(DATA, &data);
    pair.a.post(&Wqe::write_immediate(DATA, 3 * MTU, DATA, 1));
    pair.run_until_idle();
    let two = 2 * MTU as usize;
    assert_eq!(pair.b.host.read(DATA, two), &data[..two]);
    assert_eq!(
        pair.b.host.read(DATA + two as u64, 4),
        [0; 4],
        "the last packet was refused"
    );
    pair.b.post_receive(&[(KEY, DATA, 0x10)]);
    pair.run_until(100_000);
    assert_eq!(pair.b.host.read(DATA, data.len()), data);
    assert_eq!(pair.b.receives()[0].byte_cnt(), 3 * MTU);
}

#[test]
fn reads_beyond_the_initiator_depth_wait_for_their_turn() {
    let mut pair = Pair::changed(|options| options.log_sra_max = 1);
    for n in 0..5 {
        pair.a.place(&Wqe::read(DATA, 64 + n, DATA, KEY));
    }
    let last = pair.a.place(&Wqe::write(DATA, 4, DATA, KEY));
    pair.a
        .ring(&Wqe::write(DATA, 4, DATA, KEY).encode(last, qpn(1)));
    pair.a.run();
    assert_eq!(
        pair.a.host.frames.len(),
        2,
        "two reads and nothing behind the third"
    );
    pair.run_until_idle();
    assert_eq!(
        pair.a.send_results(),
        (0..6).map(|n| (n, 0)).collect::<Vec<_>>()
    );
}

#[test]
fn reads_beyond_the_responders_resources_are_refused() {
    let a = Options {
        log_sra_max: 3,
        ..Options::default()
    };
    let b = Options {
        log_rra_max: 1,
        ..Options::default()
    };
    let mut pair = Pair::with_each(&a, &b);
    for _ in 0..3 {
        pair.a.post(&Wqe::read(DATA, 64, DATA, KEY));
    }
    pair.a.run();
    pair.run_until_idle();
    let refused = Syndrome::REMOTE_INVAL_REQ_ERR.0;
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0), (2, refused)]);
    assert_eq!(pair.b.host.events, [EventType::WQ_INVAL_REQ_ERROR]);
}

#[test]
fn fenced_wqe_waits_for_earlier_reads_and_nothing_else() {
    for (flags, sent_before) in [(0, 3), (FENCED, 2), (4 << 5, 2), (3 << 5, 2), (1 << 5, 3)] {
        let mut pair = Pair::new();
        pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
        pair.a.post(&Wqe::read(DATA + 0x100, 4, DATA, KEY));
        pair.a
            .post(&Wqe::write(DATA + 0x100, 4, DATA + 0x200, KEY).flags(flags));
        pair.a.run();
        assert_eq!(pair.a.host.frames.len(), sent_before, "fence {flags:#x}");
        pair.run_until_idle();
        assert_eq!(pair.a.send_results(), [(0, 0), (1, 0), (2, 0)]);
    }
}

#[test]
fn fenced_write_sends_what_the_read_before_it_fetched() {
    let mut pair = Pair::new();
    pair.b.host.write(DATA, &[0x77; 8]);
    pair.a.post(&Wqe::read(DATA, 8, DATA, KEY));
    pair.a
        .post(&Wqe::write(DATA, 8, DATA + 0x100, KEY).flags(FENCED));
    pair.run_until_idle();
    assert_eq!(pair.b.host.read(DATA + 0x100, 8), [0x77; 8]);
}

#[test]
fn window_bounds_the_packets_on_the_wire() {
    let mut pair = Pair::new();
    for _ in 0..SQ_BLOCKS {
        pair.a
            .post(&Wqe::write(DATA, 8 * MTU, DATA, KEY).unsignalled());
    }
    pair.a.run();
    assert_eq!(pair.a.host.frames.len(), 256);
    pair.run_until_idle();
    assert_eq!(pair.b.qp.query().rmsn(), u32::from(SQ_BLOCKS));
}

#[test]
fn each_slice_of_work_sends_at_most_one_packet() {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::write(DATA, 50 * MTU, DATA, KEY));
    pair.b.post(&Wqe::read(DATA, 50 * MTU, DATA, KEY));
    for _ in 0..1_000 {
        for side in [&mut pair.a, &mut pair.b] {
            let before = side.host.frames.len();
            side.qp.run(&mut side.host);
            assert!(side.host.frames.len() <= before + 1);
        }
        let next = pair.b.host.frames.pop_front();
        if let Some(frame) = next {
            pair.deliver(Port::A, &frame);
        }
        let next = pair.a.host.frames.pop_front();
        if let Some(frame) = next {
            pair.deliver(Port::B, &frame);
        }
    }
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(pair.b.send_results(), [(0, 0)]);
}

#[test]
fn acknowledgements_that_queue_up_merge_into_one() {
    let mut pair = Pair::new();
    for _ in 0..10 {
        pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    }
    pair.a.run();
    pair.run_until_idle();
    assert_eq!(pair.count(Port::B, Operation::Acknowledge), 1);
    assert_eq!(pair.a.sends().len(), 10);
}

#[test]
fn unexpected_and_duplicate_answers_are_ignored() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    let mut answers = Vec::new();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&kept);
    pair.filter = Box::new(move |from, _, packet| {
        if from == Port::B {
            log.borrow_mut().push(packet.emit());
        }
        true
    });
    pair.a.post(&Wqe::send_inline(&[1; 4]));
    pair.a.post(&Wqe::read(DATA, 4, DATA, KEY));
    pair.run_until_idle();
    answers.append(&mut kept.borrow_mut());
    assert_eq!(answers.len(), 2);
    for frame in &answers {
        pair.deliver(Port::A, frame);
        pair.run_until_idle();
    }
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
    assert_eq!(pair.operations(Port::A).len(), 2, "nothing was sent again");
    assert_eq!(pair.a.qp.query().state(), 3);
}

#[test]
fn a_responder_that_cannot_send_keeps_one_nak_however_often_a_request_comes() {
    let mut pair = Pair::new();
    let mut frames = Vec::new();
    for _ in 0..2 {
        pair.a.post(&Wqe::send_inline(&[9; 4]));
        pair.a.qp.run(&mut pair.a.host);
        frames.extend(pair.a.host.frames.pop_front());
    }
    let [first, second] = &frames[..] else {
        panic!("{} frames", frames.len());
    };
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.deliver(Port::B, first);
    for _ in 0..100 {
        // `second` finds no receive. A duplicate of `first`, which is complete, arrives between the retries of
        // `second`.
        pair.deliver(Port::B, second);
        pair.deliver(Port::B, second);
        pair.deliver(Port::B, first);
    }
    pair.b.run();
    assert!(
        pair.b.host.frames.len() <= 2,
        "{}",
        pair.b.host.frames.len()
    );
}
