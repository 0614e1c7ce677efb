//! Tests of failures on reliable connections: every failure, the result on each side, and the flushed WQEs.

use hw_sim::link::Port;
use hw_sim::qp::{State, Transition};
use hw_sim::wire::{
    AckSyndrome, AethRepr, BthRepr, Headers, NakCode, Opcode, Operation, Packet, Psn, Qpn, RethRepr,
};
use mlx_prm::{EventType, Syndrome};

use crate::rc_support::*;

/// Results on both sides after one failed WQE.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    requester: u8,
    responder: Vec<u8>,
    events: Vec<EventType>,
}

/// Posts `wqe` at A between two valid writes. Checks that the writes have the right results.
fn outcome(pair: &mut Pair, wqe: &Wqe) -> Outcome {
    pair.a.post(&Wqe::write(DATA, 4, DATA + 0x9000, KEY));
    let index = pair.a.post(wqe);
    let after = pair
        .a
        .post(&Wqe::write(DATA, 4, DATA + 0x9000, KEY).unsignalled());
    pair.run_until(50_000);
    let results = pair.a.send_results();
    assert_eq!(results.len(), 3, "{results:?}");
    assert_eq!(results[0], (0, 0), "what came before succeeds");
    assert_eq!((results[1].0, results[2]), (index, (after, FLUSHED)));
    assert_eq!(pair.a.qp.state(), State::Error);
    let responder = pair
        .b
        .receive_results()
        .into_iter()
        .map(|(_, syndrome)| syndrome)
        .collect();
    Outcome {
        requester: results[1].1,
        responder,
        events: pair.b.host.events.clone(),
    }
}

fn expected_outcome(requester: Syndrome, responder: &[Syndrome], events: &[EventType]) -> Outcome {
    Outcome {
        requester: requester.0,
        responder: responder.iter().map(|syndrome| syndrome.0).collect(),
        events: events.to_vec(),
    }
}

#[test]
fn remote_access_errors_fail_the_wqe_and_raise_an_access_event() {
    let cases = [
        ("unknown rkey", Wqe::write(DATA, 4, DATA, NO_KEY)),
        ("no write access", Wqe::write(DATA, 4, DATA, READ_ONLY)),
        (
            "another protection domain",
            Wqe::write(DATA, 4, DATA, FOREIGN),
        ),
        (
            "beyond the region",
            Wqe::write(DATA, 4, MEMORY as u64 - 3, KEY),
        ),
        (
            "around the address space",
            Wqe::write(DATA, 4, u64::MAX - 1, KEY),
        ),
        (
            "last byte of a long write",
            Wqe::write(DATA, 3 * MTU, MEMORY as u64 - 767, KEY),
        ),
        ("read with unknown rkey", Wqe::read(DATA, 4, DATA, NO_KEY)),
        (
            "read beyond the region",
            Wqe::read(DATA, 4, MEMORY as u64, KEY),
        ),
        (
            "atomic with unknown rkey",
            Wqe::fetch_add(DATA, DATA, NO_KEY, 1),
        ),
        (
            "atomic without write access",
            Wqe::fetch_add(DATA, DATA, READ_ONLY, 1),
        ),
    ];
    for (what, wqe) in cases {
        let mut pair = Pair::new();
        let expected = expected_outcome(
            Syndrome::REMOTE_ACCESS_ERR,
            &[],
            &[EventType::WQ_ACCESS_ERROR],
        );
        assert_eq!(outcome(&mut pair, &wqe), expected, "{what}");
        assert_eq!(pair.b.qp.state(), State::Error, "{what}");
    }
}

#[test]
fn long_write_to_a_bad_range_writes_nothing() {
    let mut pair = Pair::new();
    pair.a.host.write(DATA, &[0xee; 768]);
    outcome(
        &mut pair,
        &Wqe::write(DATA, 3 * MTU, MEMORY as u64 - 767, KEY),
    );
    assert_eq!(pair.b.host.read(MEMORY as u64 - 767, 767), [0; 767]);
}

#[test]
fn invalid_requests_fail_the_wqe_and_raise_an_invalid_request_event() {
    let all = (true, true, true);
    let cases = [
        (
            "writes not enabled",
            (true, false, true),
            Wqe::write(DATA, 4, DATA, KEY),
        ),
        (
            "reads not enabled",
            (false, true, true),
            Wqe::read(DATA, 4, DATA, KEY),
        ),
        (
            "atomics not enabled",
            (true, true, false),
            Wqe::fetch_add(DATA, DATA, KEY, 1),
        ),
        (
            "atomic not aligned",
            all,
            Wqe::fetch_add(DATA, DATA + 4, KEY, 1),
        ),
    ];
    for (what, rights, wqe) in cases {
        let options = Options {
            rights,
            ..Options::default()
        };
        let mut pair = Pair::with_each(&Options::default(), &options);
        let expected = expected_outcome(
            Syndrome::REMOTE_INVAL_REQ_ERR,
            &[],
            &[EventType::WQ_INVAL_REQ_ERROR],
        );
        if rights.1 {
            assert_eq!(outcome(&mut pair, &wqe), expected, "{what}");
        } else {
            pair.a.post(&wqe);
            pair.run_until_idle();
            assert_eq!(pair.a.send_results(), [(0, expected.requester)], "{what}");
            assert_eq!(pair.b.host.events, expected.events);
        }
    }
}

/// A remote atomic operation is an invalid request if the responder's queue pair permits atomics but has no atomic
/// mode. Drivers set a mode wherever they permit atomics (Linux `set_qpc_atomic_flags`,
/// drivers/infiniband/hw/mlx5/qp.c).
#[test]
fn atomics_that_are_let_in_without_a_mode_are_invalid_requests() {
    let options = Options {
        atomic_mode: 0,
        ..Options::default()
    };
    let mut pair = Pair::with_each(&Options::default(), &options);
    let expected = expected_outcome(
        Syndrome::REMOTE_INVAL_REQ_ERR,
        &[],
        &[EventType::WQ_INVAL_REQ_ERROR],
    );
    let wqe = Wqe::fetch_add(DATA, DATA, KEY, 1);
    assert_eq!(outcome(&mut pair, &wqe), expected);
}

#[test]
fn an_atomic_of_a_function_without_them_is_an_operation_error_and_a_bug_of_the_driver() {
    let mut pair = Pair::new();
    pair.a.host.atomics = false;
    let expected = expected_outcome(Syndrome::LOCAL_QP_OP_ERR, &[], &[]);
    let wqe = Wqe::compare_swap(DATA, DATA, 1, 2);
    assert_eq!(outcome(&mut pair, &wqe), expected);
    assert_eq!(pair.a.host.bugs.len(), 1, "{:?}", pair.a.host.bugs);
}

#[test]
fn message_longer_than_the_receive_is_a_length_error_there_and_invalid_here() {
    for bytes in [65, MTU + 1] {
        let mut pair = Pair::new();
        pair.b.post_receive(&[(KEY, DATA, bytes - 1)]);
        pair.b.post_receive(&[(KEY, DATA, 4096)]);
        let expected = expected_outcome(
            Syndrome::REMOTE_INVAL_REQ_ERR,
            &[Syndrome::LOCAL_LENGTH_ERR, Syndrome::WR_FLUSH_ERR],
            &[],
        );
        assert_eq!(outcome(&mut pair, &Wqe::send(DATA, bytes)), expected);
    }
}

#[test]
fn receive_with_a_bad_key_is_a_protection_error_there_and_an_operation_error_here() {
    for key in [NO_KEY, READ_ONLY, FOREIGN] {
        let mut pair = Pair::new();
        pair.b.post_receive(&[(key, DATA, 64)]);
        let expected = expected_outcome(Syndrome::REMOTE_OP_ERR, &[Syndrome::LOCAL_PROT_ERR], &[]);
        assert_eq!(outcome(&mut pair, &Wqe::send(DATA, 4)), expected);
    }
}

#[test]
fn broken_receive_queue_is_catastrophic() {
    let mut pair = Pair::new();
    pair.b.set_receive_record(RQ_ENTRIES + 1);
    let expected = expected_outcome(Syndrome::REMOTE_OP_ERR, &[], &[EventType::WQ_CATAS_ERROR]);
    assert_eq!(outcome(&mut pair, &Wqe::send(DATA, 4)), expected);
    assert_eq!(pair.b.host.bugs.len(), 1, "{:?}", pair.b.host.bugs);
}

#[test]
fn gather_from_a_bad_key_is_a_local_protection_error_and_never_reaches_the_peer() {
    let mut reads = Wqe::read(DATA, 4, DATA, KEY);
    reads.body.truncate(16);
    let cases = [
        Wqe::write(DATA, 0, DATA, KEY).data(NO_KEY, DATA, 4),
        Wqe::write(DATA, 0, DATA, KEY).data(FOREIGN, DATA, 4),
        Wqe::write(DATA, 0, DATA, KEY).data(KEY, MEMORY as u64 - 3, 4),
        reads.data(READ_ONLY, DATA, 4),
    ];
    for wqe in cases {
        let mut pair = Pair::new();
        let expected = expected_outcome(Syndrome::LOCAL_PROT_ERR, &[], &[]);
        assert_eq!(outcome(&mut pair, &wqe), expected, "{wqe:?}");
        assert_eq!(pair.b.qp.state(), State::ReadyToSend);
    }
}

#[test]
fn message_longer_than_the_maximum_is_a_local_length_error() {
    let mut pair = Pair::changed(|options| options.log_msg_max = 12);
    let expected = expected_outcome(Syndrome::LOCAL_LENGTH_ERR, &[], &[]);
    assert_eq!(
        outcome(&mut pair, &Wqe::write(DATA, 4097, DATA, KEY)),
        expected
    );
}

#[test]
fn error_completion_waits_for_the_wqes_before_it() {
    let mut pair = Pair::new();
    pair.b.host.write(DATA, &pattern(2000, 1));
    pair.a.post(&Wqe::read(DATA, 2000, DATA, KEY));
    pair.a
        .post(&Wqe::write(DATA, 0, DATA, KEY).data(NO_KEY, DATA, 4));
    pair.a.run();
    assert_eq!(pair.a.sends().len(), 0, "the read is not done yet");
    pair.run_until_idle();
    assert_eq!(
        pair.a.send_results(),
        [(0, 0), (1, Syndrome::LOCAL_PROT_ERR.0)]
    );
    assert_eq!(pair.a.host.read(DATA, 2000), pattern(2000, 1));
}

#[test]
fn answers_owed_before_a_refused_request_are_still_given() {
    let mut pair = Pair::new();
    pair.b.host.write(DATA, &pattern(1500, 3));
    pair.a.place(&Wqe::read(DATA, 1500, DATA, KEY));
    pair.a.post(&Wqe::write(DATA, 4, DATA, NO_KEY));
    pair.run_until_idle();
    assert_eq!(
        pair.a.send_results(),
        [(0, 0), (1, Syndrome::REMOTE_ACCESS_ERR.0)]
    );
    assert_eq!(pair.a.host.read(DATA, 1500), pattern(1500, 3));
}

#[test]
fn send_with_invalidate_of_a_bad_key_is_refused() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    let expected = expected_outcome(
        Syndrome::REMOTE_ACCESS_ERR,
        &[Syndrome::WR_FLUSH_ERR],
        &[EventType::WQ_ACCESS_ERROR],
    );
    assert_eq!(
        outcome(&mut pair, &Wqe::send_invalidate(DATA, 4, NO_KEY)),
        expected
    );
}

#[test]
fn error_state_flushes_both_queues_unsignalled_wqes_included() {
    let mut pair = Pair::new();
    pair.filter = Box::new(|_, _, _| false);
    for _ in 0..20 {
        pair.a.post(&Wqe::write(DATA, 4, DATA, KEY).unsignalled());
    }
    for _ in 0..30 {
        pair.a.post_receive(&[(KEY, DATA, 64)]);
    }
    pair.run_until_idle();
    pair.a.modify(Transition::ToErr);
    pair.run_until_idle();
    assert_eq!(
        pair.a.send_results(),
        (0..20).map(|n| (n, FLUSHED)).collect::<Vec<_>>()
    );
    assert_eq!(
        pair.a.receive_results(),
        (0..30).map(|n| (n, FLUSHED)).collect::<Vec<_>>()
    );
    assert!(
        pair.a
            .host
            .completions
            .iter()
            .all(|(.., solicited)| *solicited)
    );
    assert_eq!(pair.a.sends()[0].as_error().send_wqe_opcode(), 0x08);
}

#[test]
fn wqes_posted_in_the_error_state_are_flushed_too() {
    let mut pair = Pair::new();
    pair.a.modify(Transition::ToErr);
    pair.run_until_idle();
    pair.a.post(&Wqe::send(DATA, 4).unsignalled());
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, FLUSHED)]);
    pair.run_until(5_000_000);
    pair.a.post_receive(&[(KEY, DATA, 64)]);
    assert!(
        pair.run_while(|pair| pair.a.receives().is_empty()),
        "the record is polled"
    );
    pair.a.post_receive(&[(KEY, DATA, 64)]);
    pair.run_until(pair.now + 10_000);
    assert_eq!(
        pair.a.receive_results(),
        [(0, FLUSHED), (1, FLUSHED)],
        "soon after the last"
    );
}

#[test]
fn message_half_received_is_flushed() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.filter = Box::new(|from, count, _| from == Port::B || count < 2);
    pair.a.post(&Wqe::send(DATA, 3 * MTU));
    pair.run_until_idle();
    pair.b.modify(Transition::ToErr);
    pair.run_until_idle();
    assert_eq!(pair.b.receive_results(), [(0, FLUSHED), (1, FLUSHED)]);
}

#[test]
fn shared_receive_queue_is_not_flushed_and_its_end_is_announced() {
    let mut pair = Pair::changed(|options| options.shared_receive_queue = true);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.b.modify(Transition::ToErr);
    pair.run_until_idle();
    assert_eq!(pair.b.host.completions.len(), 0);
    assert_eq!(pair.b.host.events, [EventType::SRQ_LAST_WQE]);
    assert_eq!(pair.b.host.shared.len(), 1);
}

#[test]
fn error_state_neither_sends_nor_answers() {
    let mut pair = Pair::new();
    pair.b.modify(Transition::ToErr);
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until(10_000_000);
    assert_eq!(pair.operations(Port::B), []);
    assert_eq!(
        pair.a.send_results(),
        [(0, Syndrome::TRANSPORT_RETRY_EXC_ERR.0)]
    );
}

#[test]
fn reset_drops_wqes_without_completions_and_starts_anew() {
    let options = Options::default();
    let mut pair = Pair::new();
    pair.filter = Box::new(|_, _, _| false);
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.a.post_receive(&[(KEY, DATA, 64)]);
    pair.run_until_idle();
    pair.a.modify(Transition::ToRst);
    pair.run_until(10_000_000);
    assert_eq!(pair.a.host.completions.len(), 0);
    assert_eq!(
        (pair.a.qp.state(), pair.a.qp.timer_due()),
        (State::Reset, None)
    );
    pair.a.connect(&options, 2);
    assert_eq!(pair.a.qp.query().hw_sq_wqebb_counter(), 0);
}

/// Returns a forged packet from A to B.
fn forged(operation: Operation, psn: Psn, headers: Headers, payload: &[u8]) -> Vec<u8> {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::write(DATA, 1, DATA, KEY));
    pair.a.run();
    let frame = pair.a.host.frames.pop_front().expect("a packet to copy");
    let model = Packet::parse(&frame).expect("our own packet");
    let opcode = Opcode::rc(operation);
    let bth = BthRepr {
        opcode,
        psn,
        ..model.bth
    };
    Packet {
        bth,
        headers,
        payload,
        ..model
    }
    .emit()
}

/// Returns the headers of a request for `length` bytes at [`DATA`].
fn reth(rkey: u32, length: u32) -> Headers {
    Headers {
        reth: Some(RethRepr {
            va: DATA,
            rkey,
            length,
        }),
        ..Headers::NONE
    }
}

#[test]
fn request_packets_that_do_not_fit_their_message_are_refused() {
    use Operation as O;
    let full = [0; MTU as usize];
    let none = Headers::NONE;
    let over = [0; MTU as usize + 4];
    let read = reth(KEY, 1 << 30);
    type Step<'a> = (Operation, Headers, &'a [u8]);
    let cases: &[(&str, &[Step<'_>])] = &[
        ("Middle without First", &[(O::SendMiddle, none, &full)]),
        ("Last without First", &[(O::SendLast, none, &full[..4])]),
        (
            "write Last without First",
            &[(O::WriteLast, none, &full[..4])],
        ),
        (
            "Only within a send",
            &[(O::SendFirst, none, &full), (O::SendOnly, none, &full[..4])],
        ),
        (
            "write within a send",
            &[(O::SendFirst, none, &full), (O::WriteMiddle, none, &full)],
        ),
        (
            "read within a send",
            &[(O::SendFirst, none, &full), (O::ReadRequest, read, &[])],
        ),
        (
            "send within a write",
            &[
                (O::WriteFirst, reth(KEY, 600), &full),
                (O::SendLast, none, &full[..4]),
            ],
        ),
        ("short First", &[(O::SendFirst, none, &full[..255])]),
        (
            "short Middle",
            &[
                (O::SendFirst, none, &full),
                (O::SendMiddle, none, &full[..4]),
            ],
        ),
        (
            "empty Last",
            &[(O::SendFirst, none, &full), (O::SendLast, none, &[])],
        ),
        ("long Only", &[(O::SendOnly, none, &over)]),
        (
            "write Only shorter than its length",
            &[(O::WriteOnly, reth(KEY, 5), &full[..4])],
        ),
        (
            "write Only longer than its length",
            &[(O::WriteOnly, reth(KEY, 3), &full[..4])],
        ),
        (
            "write First that is all",
            &[(O::WriteFirst, reth(KEY, MTU), &full)],
        ),
        (
            "write that goes on too long",
            &[
                (O::WriteFirst, reth(KEY, MTU + 4), &full),
                (O::WriteMiddle, none, &full),
            ],
        ),
        (
            "write that ends too early",
            &[
                (O::WriteFirst, reth(KEY, 2 * MTU), &full),
                (O::WriteLast, none, &full[..4]),
            ],
        ),
        (
            "read longer than the largest message",
            &[(O::ReadRequest, read, &[])],
        ),
    ];
    for (what, steps) in cases {
        let mut pair = Pair::new();
        pair.b.post_receive(&[(KEY, DATA, 4096)]);
        for (n, (operation, headers, payload)) in (0..).zip(*steps) {
            assert_eq!(pair.b.qp.state(), State::ReadyToSend, "{what}: step {n}");
            let frame = forged(
                *operation,
                Psn::masked(FIRST_PSN).advance(n),
                *headers,
                payload,
            );
            pair.deliver(Port::B, &frame);
            while pair.b.qp.pending() && pair.b.qp.state() != State::Error {
                pair.b.qp.run(&mut pair.b.host);
            }
        }
        assert_eq!(pair.b.qp.state(), State::Error, "{what}");
        assert_eq!(
            pair.b.host.events,
            [EventType::WQ_INVAL_REQ_ERROR],
            "{what}"
        );
        let last = pair.b.host.frames.back().expect("a NAK");
        let nak = Packet::parse(last)
            .expect("our own packet")
            .headers
            .aeth
            .expect("an AETH");
        assert_eq!(
            nak.syndrome,
            AckSyndrome::Nak(NakCode::InvalidRequest),
            "{what}"
        );
    }
}

#[test]
fn responses_that_do_not_fit_the_read_are_bad_responses() {
    use Operation as O;
    let full = [0; MTU as usize];
    let cases: &[(&str, Operation, &[u8])] = &[
        (
            "Only for a read of three packets",
            O::ReadResponseOnly,
            &full,
        ),
        ("Last for the first of three", O::ReadResponseLast, &full),
        ("short First", O::ReadResponseFirst, &full[..200]),
        ("atomic acknowledge", O::AtomicAcknowledge, &[]),
    ];
    for (what, operation, payload) in cases {
        let mut pair = Pair::new();
        pair.filter = Box::new(|_, _, _| false);
        pair.a.post(&Wqe::read(DATA, 3 * MTU, DATA, KEY));
        pair.run_until_idle();
        let mut headers = Headers {
            aeth: Some(AethRepr {
                syndrome: AckSyndrome::ACK,
                msn: 1,
            }),
            ..Headers::NONE
        };
        if *operation == O::AtomicAcknowledge {
            headers.atomic_ack = Some(hw_sim::wire::AtomicAckEthRepr { original: 1 });
        }
        let mut frame = forged(*operation, Psn::masked(FIRST_PSN), headers, payload);
        // The forged packet is addressed to B, so it is readdressed to A.
        let mut packet = Packet::parse(&frame).expect("our own packet");
        packet.bth.dest_qpn = Qpn::new(qpn(1));
        frame = packet.emit();
        pair.deliver(Port::A, &frame);
        pair.run_until_idle();
        assert_eq!(
            pair.a.send_results(),
            [(0, Syndrome::BAD_RESP_ERR.0)],
            "{what}"
        );
    }
}

#[test]
fn packets_with_another_partition_key_are_dropped() {
    let mut pair = Pair::new();
    let mut frame = forged(
        Operation::WriteOnly,
        Psn::masked(FIRST_PSN),
        reth(KEY, 4),
        &[9; 4],
    );
    let mut packet = Packet::parse(&frame).expect("our own packet");
    packet.bth.pkey = 0x8001;
    frame = packet.emit();
    pair.deliver(Port::B, &frame);
    pair.run_until_idle();
    assert_eq!(pair.operations(Port::B), []);
    assert_eq!(pair.b.host.read(DATA, 4), [0; 4]);
}

/// A duplicate read whose key no longer exists is dropped, at its arrival or in the middle of its response. An NVMe
/// target's response invalidates the key of a read that the target has received completely, although a needless retry
/// of that read may still be in progress. Inferred: a card drops the duplicate; rxe refuses it.
#[test]
fn duplicate_read_whose_key_is_gone_is_dropped_before_and_within_its_answer() {
    for sent in 0..3 {
        let mut pair = Pair::new();
        pair.a.post(&Wqe::read(DATA, 4 * MTU, DATA, READ_ONLY));
        pair.run_until_idle();
        let headers = reth(READ_ONLY, 4 * MTU);
        let again = forged(Operation::ReadRequest, Psn::masked(FIRST_PSN), headers, &[]);
        let gone = |pair: &mut Pair| pair.b.host.keys.remove(&READ_ONLY).map(|_| ());
        if sent == 0 {
            gone(&mut pair);
        }
        let answers = pair.b.host.frames.len();
        pair.deliver(Port::B, &again);
        for _ in 0..sent {
            pair.b.qp.run(&mut pair.b.host);
        }
        assert_eq!(pair.b.host.frames.len(), answers + sent, "after {sent}");
        gone(&mut pair);
        pair.run_until_idle();
        assert_eq!(pair.b.qp.state(), State::ReadyToSend, "after {sent}");
        assert_eq!(pair.b.host.events, [], "after {sent}");
        pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
        pair.run_until_idle();
        assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)], "after {sent}");
    }
}

/// A duplicate read that arrives during the first response is refused if its key no longer exists. The requester cannot
/// have received the whole first response, because the response was not completely sent.
#[test]
fn duplicate_read_that_replaces_its_first_answer_is_refused_if_its_key_is_gone() {
    let mut pair = Pair::new();
    let headers = reth(READ_ONLY, 4 * MTU);
    let request = forged(Operation::ReadRequest, Psn::masked(FIRST_PSN), headers, &[]);
    for _ in 0..2 {
        pair.deliver(Port::B, &request);
        pair.b.qp.run(&mut pair.b.host);
    }
    assert_eq!(pair.b.host.frames.len(), 2);
    pair.b.host.keys.remove(&READ_ONLY);
    while pair.b.qp.pending() && pair.b.qp.state() != State::Error {
        pair.b.qp.run(&mut pair.b.host);
    }
    assert_eq!(pair.b.qp.state(), State::Error);
    assert_eq!(pair.b.host.events, [EventType::WQ_ACCESS_ERROR]);
}

/// A read with a PSN in the past that repeats no accepted read is dropped, whatever its key. Half of all PSNs are in
/// the past. A NAK for such a read would let a sender that does not know the connection's PSNs end the connection.
/// Linux: drivers/infiniband/sw/rxe/rxe_resp.c, duplicate_request (class D error).
#[test]
fn read_that_repeats_no_accepted_one_is_dropped_whatever_its_key() {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::read(DATA, 16, DATA, KEY));
    pair.run_until_idle();
    // A read of the maximum length has more packets than half of all PSNs.
    let cases = [
        (1, 16),
        (100, 16),
        (0x7f_ff00, 16),
        (1, u32::MAX),
        (100, 1 << 31),
    ];
    for (back, length) in cases {
        let headers = reth(KEY ^ 0xff00, length);
        let psn = Psn::masked(FIRST_PSN.wrapping_sub(back));
        let frame = forged(Operation::ReadRequest, psn, headers, &[]);
        pair.deliver(Port::B, &frame);
        pair.run_until_idle();
    }
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(
        pair.a.send_results(),
        [(0, 0), (1, 0)],
        "the connection is there"
    );
}
