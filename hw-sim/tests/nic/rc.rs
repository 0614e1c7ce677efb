//! Tests of reliable connections between two queue pairs: each kind of transfer arrives in order and exactly once, also
//! on a wire with faults.

use hw_sim::link::{Faults, LinkFaults, Port};
use hw_sim::wire::Operation;
use mlx_prm::{CqeOpcode, EventType};

use crate::rc_support::*;

/// Message lengths around segmentation boundaries, in bytes.
const EDGES: [u32; 9] = [
    0,
    1,
    MTU - 1,
    MTU,
    MTU + 1,
    2 * MTU - 1,
    2 * MTU,
    2 * MTU + 1,
    5 * MTU + 3,
];

fn packets(bytes: u32) -> usize {
    bytes.div_ceil(MTU).max(1) as usize
}

#[test]
fn sends_of_every_edge_length_arrive_whole() {
    for bytes in EDGES {
        let mut pair = Pair::new();
        let data = pattern(bytes as usize, 7);
        pair.a.host.write(DATA, &data);
        pair.b.post_receive(&[(KEY, DATA, 4096)]);
        let index = pair.a.post(&Wqe::send(DATA, bytes));
        pair.run_until_idle();
        assert_eq!(
            pair.b.host.read(DATA, bytes as usize),
            data,
            "{bytes} bytes"
        );
        let receives = pair.b.receives();
        assert_eq!(receives.len(), 1);
        assert_eq!(receives[0].opcode(), CqeOpcode::RESP_SEND);
        assert_eq!(receives[0].byte_cnt(), bytes);
        assert_eq!(receives[0].qpn(), qpn(2));
        let sends = pair.a.sends();
        assert_eq!(pair.a.send_results(), [(index, 0)]);
        assert_eq!(
            (sends[0].opcode(), sends[0].send_wqe_opcode()),
            (CqeOpcode::REQ, 0x0a)
        );
        let requests = pair.operations(Port::A);
        assert_eq!(
            requests.len(),
            packets(bytes),
            "{bytes} bytes: {requests:?}"
        );
        let expected_first = if packets(bytes) == 1 {
            Operation::SendOnly
        } else {
            Operation::SendFirst
        };
        assert_eq!(requests[0], expected_first);
        assert!(requests.last().expect("some").ends_message());
        assert_eq!(pair.operations(Port::B), [Operation::Acknowledge]);
    }
}

#[test]
fn writes_of_every_edge_length_arrive_whole_and_silently() {
    for bytes in EDGES {
        let mut pair = Pair::new();
        let data = pattern(bytes as usize, 9);
        pair.a.host.write(DATA, &data);
        pair.a.post(&Wqe::write(DATA, bytes, DATA + 0x333, KEY));
        pair.run_until_idle();
        assert_eq!(pair.b.host.read(DATA + 0x333, bytes as usize), data);
        assert_eq!(pair.a.send_results(), [(0, 0)]);
        assert_eq!(
            pair.b.host.completions.len(),
            0,
            "writes consume no receive"
        );
        assert_eq!(pair.operations(Port::A).len(), packets(bytes));
    }
}

#[test]
fn reads_of_every_edge_length_return_whole() {
    for bytes in EDGES {
        let mut pair = Pair::new();
        let data = pattern(bytes as usize, 11);
        pair.b.host.write(DATA + 5, &data);
        pair.a.post(&Wqe::read(DATA, bytes, DATA + 5, KEY));
        pair.run_until_idle();
        assert_eq!(pair.a.host.read(DATA, bytes as usize), data);
        let sends = pair.a.sends();
        assert_eq!(pair.a.send_results(), [(0, 0)]);
        assert_eq!(
            (sends[0].send_wqe_opcode(), sends[0].byte_cnt()),
            (0x10, bytes)
        );
        assert_eq!(pair.operations(Port::A), [Operation::ReadRequest]);
        let answers = pair.operations(Port::B);
        assert_eq!(answers.len(), packets(bytes));
        let expected_first = if packets(bytes) == 1 {
            Operation::ReadResponseOnly
        } else {
            Operation::ReadResponseFirst
        };
        assert_eq!(answers[0], expected_first);
        assert_eq!(pair.b.host.completions.len(), 0);
    }
}

#[test]
fn requests_after_a_read_continue_behind_its_response_psns() {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::read(DATA, 3 * MTU, DATA, KEY));
    pair.a.post(&Wqe::write(DATA, 1, DATA, KEY));
    pair.run_until_idle();
    let psns: Vec<u32> = pair
        .seen
        .iter()
        .filter(|seen| seen.from == Port::A)
        .map(|seen| seen.psn.get())
        .collect();
    assert_eq!(psns, [FIRST_PSN, FIRST_PSN + 3]);
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
}

#[test]
fn every_mtu_and_encapsulation_carries_messages() {
    for mtu_code in 1..=5 {
        for gid_index in 0..3 {
            let options = Options {
                mtu_code,
                gid_index,
                ..Options::default()
            };
            let mut pair = Pair::with(&options);
            let data = pattern(10_000, 3);
            pair.a.host.write(DATA, &data);
            pair.b.post_receive(&[(KEY, DATA, 10_000)]);
            pair.a.post(&Wqe::send(DATA, 10_000));
            pair.run_until_idle();
            assert_eq!(pair.b.host.read(DATA, 10_000), data);
            let largest = pair.seen.iter().map(|seen| seen.bytes).max();
            assert_eq!(largest, Some(128 << mtu_code));
        }
    }
}

#[test]
fn immediate_data_arrives_as_it_was_posted_with_a_solicited_receive() {
    for bytes in [0, 5, MTU + 1] {
        let mut pair = Pair::new();
        pair.b.post_receive(&[(KEY, DATA, 4096)]);
        pair.b.post_receive(&[(KEY, DATA, 4096)]);
        pair.a
            .post(&Wqe::send_immediate(DATA, bytes, 0x0102_0304).flags(SOLICITED));
        pair.a.post(&Wqe::write_immediate(
            DATA,
            bytes,
            DATA + 0x1000,
            0xa0b0_c0d0,
        ));
        pair.run_until_idle();
        let receives = pair.b.receives();
        assert_eq!(receives.len(), 2);
        assert_eq!(receives[0].opcode(), CqeOpcode::RESP_SEND_IMM);
        assert_eq!(receives[0].imm_inval_pkey(), 0x0102_0304);
        assert!(receives[0].solicited() && pair.b.host.completions[0].2);
        assert_eq!(receives[1].opcode(), CqeOpcode::RESP_WR_IMM);
        assert_eq!(receives[1].imm_inval_pkey(), 0xa0b0_c0d0);
        assert_eq!(
            (receives[1].wqe_counter(), receives[1].byte_cnt()),
            (1, bytes)
        );
        assert!(!receives[1].solicited() && !pair.b.host.completions[1].2);
    }
}

#[test]
fn send_with_invalidate_frees_the_key_and_names_it() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.a.post(&Wqe::send_invalidate(DATA, 3, READ_ONLY));
    pair.run_until_idle();
    assert_eq!(pair.b.host.invalidated, [READ_ONLY]);
    let receives = pair.b.receives();
    assert_eq!(receives[0].opcode(), CqeOpcode::RESP_SEND_INV);
    assert_eq!(receives[0].imm_inval_pkey(), READ_ONLY);
}

#[test]
fn gather_and_scatter_lists_join_at_any_boundary() {
    let mut pair = Pair::new();
    let data = pattern(900, 1);
    pair.a.host.write(DATA, &data);
    pair.b.post_receive(&[
        (KEY, DATA, 1),
        (KEY, DATA + 0x1000, 511),
        (KEY, DATA + 0x2000, 2000),
    ]);
    let wqe = Wqe::send(DATA, 255)
        .data(KEY, DATA + 255, 1)
        .data(KEY, DATA + 256, 644);
    pair.a.post(&wqe);
    pair.run_until_idle();
    let got = [
        pair.b.host.read(DATA, 1),
        pair.b.host.read(DATA + 0x1000, 511),
        pair.b.host.read(DATA + 0x2000, 388),
    ]
    .concat();
    assert_eq!(got, data);
}

#[test]
fn inline_data_mixes_with_pointers_and_wraps_over_the_rings_end() {
    let mut pair = Pair::new();
    let data = pattern(300, 5);
    pair.a.host.write(DATA, &data);
    for _ in 0..SQ_BLOCKS - 1 {
        pair.a.post(&Wqe::nop());
        pair.run_until_idle();
    }
    pair.b.post_receive(&[(KEY, DATA, 1000)]);
    // This WQE begins in the last block of the ring and wraps around to its start.
    let index = pair
        .a
        .post(&Wqe::send_inline(&data[..100]).data(KEY, DATA + 100, 200));
    pair.run_until_idle();
    assert_eq!(pair.b.host.read(DATA, 300), data);
    assert_eq!(pair.a.send_results().last(), Some(&(index, 0)));
    assert_eq!(index, SQ_BLOCKS - 1);
}

#[test]
fn indices_wrap_at_16_bits() {
    let mut pair = Pair::new();
    for round in 0..70_000_u32 {
        if round % 64 == 0 {
            pair.b.post_receive(&[(KEY, DATA, 64)]);
            pair.a.post(&Wqe::send_inline(&round.to_be_bytes()));
        } else {
            pair.a.post(&Wqe::nop().unsignalled());
        }
        pair.run_until_idle();
    }
    assert_eq!(pair.a.sends().len(), 70_000_usize.div_ceil(64));
    assert!(
        pair.a
            .send_results()
            .iter()
            .all(|&(_, syndrome)| syndrome == 0)
    );
    assert_eq!(pair.a.host.bugs, Vec::<String>::new());
}

#[test]
fn unsignalled_wqes_complete_silently_and_in_order_with_signalled_ones() {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY).unsignalled());
    pair.a.post(&Wqe::read(DATA, 4, DATA, KEY).unsignalled());
    pair.a.post(&Wqe::nop().unsignalled());
    let last = pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(last, 0)]);
}

#[test]
fn completions_stay_in_order_when_a_nop_follows_a_read() {
    let mut pair = Pair::new();
    pair.a.place(&Wqe::read(DATA, 5000, DATA, KEY));
    pair.a.post(&Wqe::nop());
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
}

#[test]
fn user_index_replaces_the_srq_number_in_version_1_cqes() {
    for (version, user_index, expected) in [(0, 0x1234, 0), (1, 0x1234, 0x1234), (1, 0xff_ffff, 0)]
    {
        let mut pair = Pair::changed(|options| options.user_index = user_index);
        pair.a.host.cqe_version = version;
        pair.a.post(&Wqe::nop());
        pair.run_until_idle();
        assert_eq!(pair.a.sends()[0].srqn_uidx(), expected);
    }
}

#[test]
fn shared_receive_queue_entries_are_named_by_index() {
    let mut pair = Pair::changed(|options| options.shared_receive_queue = true);
    for n in 0..3 {
        pair.b.post_receive(&[(KEY, DATA + 0x100 * n, 0x100)]);
    }
    for n in 0..3 {
        pair.a.post(&Wqe::send_inline(&[n; 10]));
    }
    pair.run_until_idle();
    assert_eq!(pair.b.receive_results(), [(0, 0), (3, 0), (6, 0)]);
    assert_eq!(pair.b.receives()[1].srqn_uidx(), 0x55);
    assert_eq!(pair.b.host.read(DATA + 0x200, 10), [2; 10]);
}

#[test]
fn atomics_act_once_and_return_the_original() {
    let mut pair = Pair::new();
    pair.b.host.write(DATA, &100_u64.to_ne_bytes_for_test());
    pair.a.post(&Wqe::fetch_add(DATA, DATA, KEY, 5));
    pair.a.post(&Wqe::compare_swap(DATA + 8, DATA, 105, 7));
    pair.a.post(&Wqe::compare_swap(DATA + 16, DATA, 105, 9));
    pair.run_until_idle();
    assert_eq!(pair.b.host.read(DATA, 8), 7_u64.to_ne_bytes_for_test());
    let results = [100_u64, 105, 7]
        .map(ToTestBytes::to_ne_bytes_for_test)
        .concat();
    assert_eq!(pair.a.host.read(DATA, 24), results);
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(pair.a.sends()[0].byte_cnt(), 8);
}

/// Converts numbers to the byte order of the simulated little-endian host.
trait ToTestBytes {
    fn to_ne_bytes_for_test(self) -> [u8; 8];
}

impl ToTestBytes for u64 {
    fn to_ne_bytes_for_test(self) -> [u8; 8] {
        let mut bytes = self.to_be_bytes();
        bytes.reverse();
        bytes
    }
}

#[test]
fn long_messages_ask_for_acknowledgements_on_the_way_and_fill_the_window() {
    let mut pair = Pair::new();
    let bytes = 600 * MTU;
    let data = pattern(bytes as usize, 2);
    pair.a.host.write(DATA, &data);
    pair.a.post(&Wqe::write(DATA, bytes, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.b.host.read(DATA, bytes as usize), data);
    let asking = pair
        .seen
        .iter()
        .filter(|seen| seen.from == Port::A && seen.ack_request)
        .count();
    assert!(
        (9..=11).contains(&asking),
        "{asking} of 600 packets ask for an acknowledgement"
    );
    assert!(pair.count(Port::B, Operation::Acknowledge) <= asking);
}

#[test]
fn both_directions_work_at_once() {
    let mut pair = Pair::new();
    let (left, right) = (pattern(3000, 1), pattern(3000, 2));
    pair.a.host.write(DATA, &left);
    pair.b.host.write(DATA, &right);
    pair.a.post(&Wqe::write(DATA, 3000, DATA + 0x2000, KEY));
    pair.b.post(&Wqe::write(DATA, 3000, DATA + 0x2000, KEY));
    pair.a.post(&Wqe::read(DATA + 0x4000, 3000, DATA, KEY));
    pair.b.post(&Wqe::read(DATA + 0x4000, 3000, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.b.host.read(DATA + 0x2000, 3000), left);
    assert_eq!(pair.a.host.read(DATA + 0x2000, 3000), right);
    assert_eq!(pair.b.host.read(DATA + 0x4000, 3000), left);
    assert_eq!(pair.a.host.read(DATA + 0x4000, 3000), right);
}

/// The simulator can report the first packet of every connection by a COMM_EST event, even in RTS. This option tests
/// drivers whose event queues are too short for one event per connection.
#[test]
fn first_packet_of_a_connection_may_be_an_event_in_rts_too() {
    for (every, events) in [(false, vec![]), (true, vec![EventType::COMM_EST])] {
        let mut pair = Pair::new();
        pair.b.host.habits.tells_every_connection = every;
        pair.b.post_receive(&[(KEY, DATA, 64)]);
        pair.a.post(&Wqe::send_inline(&[1; 8]));
        pair.a.post(&Wqe::write(DATA, 8, DATA, KEY));
        pair.run_until_idle();
        assert_eq!(pair.b.host.events, events);
    }
}

/// A receive CQE has the whole 16-bit receive counter, or the counter modulo the ring size. No public source documents
/// which of the two hardware reports. rdma-core (`mlx5_parse_cqe`) and Linux use only the counter modulo the ring size.
#[test]
fn receive_counters_are_told_whole_or_cut_to_the_ring() {
    for cuts in [false, true] {
        let mut pair = Pair::new();
        pair.b.host.habits.cuts_receive_counter = cuts;
        for _ in 0..RQ_ENTRIES + 3 {
            pair.b.post_receive(&[(KEY, DATA, 64)]);
            pair.a.post(&Wqe::send_inline(&[1; 8]));
            pair.run_until_idle();
        }
        let told = pair.b.receive_results();
        let last = if cuts { 2 } else { RQ_ENTRIES + 2 };
        assert_eq!(told.last(), Some(&(last, 0)));
        assert_eq!(told[3], (3, 0));
    }
}

#[test]
fn first_packet_in_rtr_raises_communication_established_once() {
    let options = Options::default();
    let mut pair = Pair::created(&options, &options);
    pair.a.connect(&options, 2);
    pair.b.enter_init(&options);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.b.enter_rtr(&options, 1);
    pair.a.post(&Wqe::send_inline(&[1; 8]));
    pair.a.post(&Wqe::write(DATA, 8, DATA, KEY));
    pair.run_until_idle();
    assert_eq!(pair.b.host.events, [EventType::COMM_EST]);
    assert_eq!(pair.b.receive_results(), [(0, 0)]);
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)], "RTR answers");
}

#[test]
fn query_shows_live_state_psns_and_counters() {
    let mut pair = Pair::new();
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.a.post(&Wqe::send(DATA, 3 * MTU));
    pair.run_until_idle();
    let (a, b) = (pair.a.qp.query(), pair.b.qp.query());
    assert_eq!((a.state(), b.state()), (3, 3));
    assert_eq!(a.next_send_psn(), FIRST_PSN + 3);
    assert_eq!(a.last_acked_psn(), FIRST_PSN + 2);
    assert_eq!(b.next_rcv_psn(), FIRST_PSN + 3);
    assert_eq!((a.ssn(), b.rmsn()), (1, 1));
    assert_eq!((a.hw_sq_wqebb_counter(), a.sw_sq_wqebb_counter()), (1, 1));
    assert_eq!((b.hw_rq_counter(), b.sw_rq_counter()), (1, 1));
    assert_eq!((a.pd(), a.cqn_snd(), a.uar_page()), (7, CQN_SEND, 9));
}

/// Runs sends, reads and atomics over a wire that has these faults during the first half. Checks that each operation
/// has its effect exactly once, in order, and with the right data.
fn everything_survives(seed: u64, faults: LinkFaults) {
    let mut pair = Pair::faulty(seed, faults);
    let rounds: u16 = 20;
    let data = pattern(4 * MTU as usize + 9, 77);
    pair.a.host.write(DATA, &data);
    pair.b.host.write(DATA, &data);
    let bytes = u32::try_from(data.len()).expect("small");
    for n in 0..rounds {
        let slot = 0x1_0000 + u64::from(n) * 0x800;
        pair.b.post_receive(&[(KEY, DATA + slot, 0x800)]);
        let length = bytes - u32::from(n);
        pair.a.post(&Wqe::send(DATA, length));
        pair.a.post(&Wqe::read(DATA + slot, length, DATA, KEY));
        pair.a
            .post(&Wqe::fetch_add(DATA + 0x8000, DATA + 0x8000, KEY, 1));
        let waits = |pair: &Pair| pair.a.sends().len() < usize::from(n + 1) * 3;
        if n == rounds / 2 {
            assert!(pair.run_while(waits), "stuck; replay with seed {seed}");
            pair.link.heal();
        }
    }
    let done = pair.run_while(|pair| pair.a.sends().len() < usize::from(rounds) * 3);
    assert!(
        done,
        "stuck; replay with seed {seed}: {:?}",
        pair.a.send_results()
    );
    let indices: Vec<u16> = pair
        .a
        .send_results()
        .iter()
        .map(|&(index, _)| index)
        .collect();
    assert!(indices.is_sorted(), "seed {seed}: {indices:?}");
    let last = &pair.seen[pair.seen.len().saturating_sub(60)..];
    let all_good = pair
        .a
        .send_results()
        .iter()
        .all(|&(_, syndrome)| syndrome == 0);
    assert!(
        all_good,
        "seed {seed}: {:?}, {faults:?}, {last:#?}",
        pair.a.send_results()
    );
    assert_eq!(
        pair.b.receive_results(),
        (0..rounds).map(|n| (n, 0)).collect::<Vec<_>>()
    );
    for n in 0..rounds {
        let slot = DATA + 0x1_0000 + u64::from(n) * 0x800;
        let length = data.len() - usize::from(n);
        assert_eq!(
            pair.b.host.read(slot, length),
            &data[..length],
            "seed {seed}, send {n}"
        );
        assert_eq!(
            pair.a.host.read(slot, length),
            &data[..length],
            "seed {seed}, read {n}"
        );
    }
    let count = u64::from(rounds).to_ne_bytes_for_test();
    assert_eq!(
        pair.b.host.read(DATA + 0x8000, 8),
        count,
        "seed {seed}: atomics act once"
    );
}

fn rate(set: impl Fn(&mut Faults, u32)) -> LinkFaults {
    let mut faults = Faults {
        delay_ns: 500,
        reorder_ns: 5_000,
        ..Faults::NONE
    };
    set(&mut faults, 30_000);
    LinkFaults::both(faults)
}

#[test]
fn everything_survives_loss() {
    for seed in 0..20 {
        everything_survives(seed, rate(|faults, ppm| faults.loss_ppm = ppm));
    }
}

#[test]
fn everything_survives_duplication() {
    for seed in 0..20 {
        everything_survives(seed, rate(|faults, ppm| faults.duplicate_ppm = ppm * 10));
    }
}

#[test]
fn everything_survives_reordering() {
    for seed in 0..20 {
        everything_survives(seed, rate(|faults, ppm| faults.reorder_ppm = ppm));
    }
}

#[test]
fn everything_survives_corruption() {
    for seed in 0..20 {
        everything_survives(seed, rate(|faults, ppm| faults.corrupt_ppm = ppm));
    }
}

#[test]
fn everything_survives_a_swarm_of_faults() {
    for seed in 0..60 {
        let mut faults = LinkFaults::swarm(seed);
        // The fault rates are limited, so that seven retries in a row hardly ever fail.
        for faults in [&mut faults.a_to_b, &mut faults.b_to_a] {
            for rate in [
                &mut faults.loss_ppm,
                &mut faults.corrupt_ppm,
                &mut faults.reorder_ppm,
                &mut faults.duplicate_ppm,
            ] {
                *rate /= 3;
            }
        }
        everything_survives(seed, faults);
    }
}

#[test]
fn duplication_without_loss_costs_no_retry() {
    let faults = Faults {
        duplicate_ppm: 1_000_000,
        delay_ns: 10,
        ..Faults::NONE
    };
    let mut pair = Pair::faulty(1, LinkFaults::both(faults));
    pair.b.post_receive(&[(KEY, DATA, 4096)]);
    pair.a.post(&Wqe::send(DATA, 3 * MTU));
    pair.a.post(&Wqe::read(DATA, 3 * MTU, DATA, KEY));
    pair.run_until(10_000);
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
    assert_eq!(pair.b.receive_results(), [(0, 0)], "delivered once");
    assert_eq!(
        pair.operations(Port::A).len(),
        4,
        "nothing was sent twice by the requester"
    );
}
