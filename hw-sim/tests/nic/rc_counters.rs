//! Tests of the counter sets of both sides of a reliable connection, with one kind of event per test.

use hw_sim::link::Port;
use hw_sim::q_counters::QCounter;
use mlx_prm::*;

use crate::bench::destroy_qp;
use crate::rc_support::*;
use crate::strict::{named, usable};

/// Returns the names and values of a side's counters that are not 0.
fn counted(side: &Side) -> Vec<(QCounter, u32)> {
    let all = side.host.counted.iter();
    all.map(|(&(_, what), &times)| (what, times)).collect()
}

#[test]
fn a_good_wire_counts_only_requests() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.a.post(&Wqe::send(DATA, 3 * MTU));
    pair.a.post(&Wqe::write(DATA, 3 * MTU, DATA, KEY));
    pair.a.post(&Wqe::read(DATA, 3 * MTU, DATA, KEY));
    pair.a.post(&Wqe::read(DATA, 4, DATA, KEY));
    pair.a.post(&Wqe::fetch_add(DATA, DATA, KEY, 1));
    pair.run_until(1_000_000);
    assert_eq!(pair.a.send_results().len(), 5);
    assert_eq!(counted(&pair.a), []);
    let asked = [
        (QCounter::RxWriteRequests, 1),
        (QCounter::RxReadRequests, 2),
        (QCounter::RxAtomicRequests, 1),
    ];
    assert_eq!(counted(&pair.b), asked);
}

#[test]
fn a_lost_packet_is_out_of_sequence_there_and_a_sequence_nak_here() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.drop_packets(Port::A, &[1]);
    pair.a.post(&Wqe::send(DATA, 3 * MTU));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(counted(&pair.a), [(QCounter::PacketSeqErr, 1)]);
    assert_eq!(counted(&pair.b), [(QCounter::OutOfSequence, 1)]);
}

#[test]
fn a_lost_acknowledgement_is_a_timeout_here_and_a_duplicate_there() {
    let mut pair = Pair::new();
    pair.drop_packets(Port::B, &[0]);
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until(10_000_000);
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(counted(&pair.a), [(QCounter::LocalAckTimeoutErr, 1)]);
    let there = [
        (QCounter::RxWriteRequests, 1),
        (QCounter::DuplicateRequest, 1),
    ];
    assert_eq!(counted(&pair.b), there);
}

#[test]
fn a_hole_in_the_answers_to_a_read_is_an_implied_nak() {
    let mut pair = Pair::new();
    pair.drop_packets(Port::B, &[1]);
    pair.a.post(&Wqe::read(DATA, 3 * MTU, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0)]);
    assert_eq!(counted(&pair.a), [(QCounter::ImpliedNakSeqErr, 1)]);
    let there = [
        (QCounter::RxReadRequests, 1),
        (QCounter::DuplicateRequest, 1),
    ];
    assert_eq!(counted(&pair.b), there);
}

#[test]
fn a_message_that_finds_no_buffer_is_counted_on_both_sides_each_time() {
    let mut pair = Pair::changed(|options| options.rnr_retry = 2);
    pair.a.post(&Wqe::send(DATA, 4));
    pair.run_until(10_000_000);
    let here = [
        (QCounter::RnrNakRetryErr, 2),
        (QCounter::ReqRnrRetriesExceeded, 1),
        (QCounter::ReqCqeError, 1),
    ];
    assert_eq!(counted(&pair.a), here);
    assert_eq!(counted(&pair.b), [(QCounter::OutOfBuffer, 3)]);
}

#[test]
fn a_peer_that_is_gone_is_a_timeout_for_each_retry_and_one_exceeded() {
    let mut pair = Pair::changed(|options| options.retry_count = 3);
    pair.filter = Box::new(|_, _, _| false);
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until(10_000_000);
    let here = [
        (QCounter::LocalAckTimeoutErr, 3),
        (QCounter::ReqTransportRetriesExceeded, 1),
        (QCounter::ReqCqeError, 2),
        (QCounter::ReqCqeFlushError, 1),
    ];
    assert_eq!(counted(&pair.a), here);
    assert_eq!(counted(&pair.b), []);
}

#[test]
fn each_refused_request_is_counted_by_its_reason_on_both_sides() {
    let cases = [
        (
            Wqe::write(DATA, 4, DATA, NO_KEY),
            QCounter::ReqRemoteAccessErrors,
            QCounter::RespRemoteAccessErrors,
        ),
        (
            Wqe::fetch_add(DATA, DATA + 4, KEY, 1),
            QCounter::ReqRemoteInvalidRequest,
            QCounter::RespRemoteInvalidRequest,
        ),
    ];
    for (wqe, here, there) in cases {
        let mut pair = Pair::new();
        pair.a.post(&wqe);
        pair.run_until_idle();
        let times = |side: &Side, what| side.host.counted.get(&(0, what)).copied();
        assert_eq!(times(&pair.a, here), Some(1), "{wqe:?}");
        assert_eq!(times(&pair.a, QCounter::ReqCqeError), Some(1), "{wqe:?}");
        assert_eq!(times(&pair.b, there), Some(1), "{wqe:?}");
    }
}

#[test]
fn a_message_longer_than_its_buffer_is_counted_as_a_local_length_error_there() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.a.post(&Wqe::send(DATA, 65));
    pair.run_until_idle();
    let here = [
        (QCounter::ReqCqeError, 1),
        (QCounter::ReqRemoteInvalidRequest, 1),
    ];
    assert_eq!(counted(&pair.a), here);
    let there = [
        (QCounter::RespLocalLengthError, 1),
        (QCounter::RespCqeError, 2),
        (QCounter::RespCqeFlushError, 1),
    ];
    assert_eq!(counted(&pair.b), there);
}

/// A queue pair can only refer to a counter set that exists, and the set cannot be freed while it is in use. Linux sets
/// the counter set with RST2INIT (`__mlx5_ib_modify_qp`), without an optional parameter.
#[test]
fn a_counter_set_exists_to_be_named_and_stays_while_it_is() {
    let (mut bench, resources) = usable();
    let qpn = bench.qp(&resources, 6, |_| {}).number;
    let set = bench.exec(&AllocQCounterIn::new()).unwrap();
    let set = set.counter_set_id();
    let mut init = Rst2InitQpIn::for_qp(Qpn::new(qpn), 0);
    named(init.qpc_mut());
    init.qpc_mut().set_counter_set_id(set + 1);
    assert_eq!(bench.status(&init), CmdStatus::BAD_RESOURCE, "of no set");
    init.qpc_mut().set_counter_set_id(set);
    assert_eq!(bench.status(&init), CmdStatus::OK);
    let mut dealloc = DeallocQCounterIn::new();
    dealloc.set_counter_set_id(set);
    assert_ne!(
        bench.status(&dealloc),
        CmdStatus::OK,
        "a queue counts in it"
    );
    let mut query = QueryQCounterIn::new();
    query.set_counter_set_id(set);
    assert_eq!(bench.exec(&query).unwrap().out_of_sequence(), 0);
    query.set_counter_set_id(set + 1);
    assert_eq!(bench.status(&query), CmdStatus::BAD_RESOURCE);
    let destroy = destroy_qp(qpn);
    assert_eq!(bench.status(&destroy), CmdStatus::OK);
    assert_eq!(bench.status(&dealloc), CmdStatus::OK);
    assert_ne!(bench.status(&dealloc), CmdStatus::OK, "once");
}
