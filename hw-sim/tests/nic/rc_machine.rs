//! Tests of queue pairs: the state transitions that each state accepts, and the WQEs and doorbells that are refused.

use hw_sim::qp::QueueMemory;
use hw_sim::qp::{Qp, Service, State, Transition};
use hw_sim::wire::Packet;
use mlx_prm::{CmdStatus, Qpc, Syndrome, opt_param};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::rc_support::*;

const TRANSITIONS: [Transition; 9] = [
    Transition::RstToInit,
    Transition::InitToInit,
    Transition::InitToRtr,
    Transition::RtrToRts,
    Transition::RtsToRts,
    Transition::SqErrToRts,
    Transition::SqdToRts,
    Transition::ToErr,
    Transition::ToRst,
];

const STATES: [State; 6] = [
    State::Reset,
    State::Init,
    State::ReadyToReceive,
    State::ReadyToSend,
    State::SendQueueError,
    State::Error,
];

/// Expected state transitions, one per line: state, command, new state.
const TABLE: &str = "\
Reset RstToInit Init
Reset ToErr Error
Reset ToRst Reset
Init InitToInit Init
Init InitToRtr ReadyToReceive
Init ToErr Error
Init ToRst Reset
ReadyToReceive RtrToRts ReadyToSend
ReadyToReceive ToErr Error
ReadyToReceive ToRst Reset
ReadyToSend RtsToRts ReadyToSend
ReadyToSend ToErr Error
ReadyToSend ToRst Reset
SendQueueError SqErrToRts ReadyToSend
SendQueueError ToErr Error
SendQueueError ToRst Reset
Error ToErr Error
Error ToRst Reset
";

#[test]
fn transition_table_is_the_one_written_here() {
    let mut table = String::new();
    for state in STATES {
        for transition in TRANSITIONS {
            if let Some(next) = state.next(transition) {
                table += &format!("{state:?} {transition:?} {next:?}\n");
            }
        }
    }
    assert_eq!(table, TABLE);
}

fn modify(
    side: &mut Side,
    transition: Transition,
    mask: u32,
    context: &Qpc,
) -> Result<(), CmdStatus> {
    side.qp.modify(transition, mask, context, &mut side.host)
}

#[test]
fn transition_from_the_wrong_state_is_refused_and_changes_nothing() {
    let options = Options::default();
    let mut side = Side::new(1, &options);
    side.enter_init(&options);
    let before = side.qp.query();
    for transition in [
        Transition::RstToInit,
        Transition::RtrToRts,
        Transition::RtsToRts,
        Transition::SqdToRts,
    ] {
        assert_eq!(
            modify(&mut side, transition, 0, &Qpc::new()),
            Err(CmdStatus::BAD_QP_STATE)
        );
    }
    assert_eq!(side.qp.query().as_array(), before.as_array());
}

#[test]
fn ready_to_receive_checks_mtu_message_size_and_source_address() {
    let options = Options::default();
    let good = Options::default();
    type Spoil = fn(&mut Qpc);
    let cases: [(&str, Spoil); 5] = [
        ("no MTU", |qpc| _ = qpc.set_mtu(0)),
        ("MTU above 4096", |qpc| _ = qpc.set_mtu(6)),
        ("raw Ethernet's MTU", |qpc| _ = qpc.set_mtu(7)),
        ("messages of 2 GiB", |qpc| _ = qpc.set_log_msg_max(31)),
        ("an unused GID", |qpc| {
            _ = qpc.primary_address_path_mut().set_src_addr_index(200)
        }),
    ];
    for (what, spoil) in cases {
        let mut side = Side::new(1, &options);
        side.enter_init(&options);
        let mut context = Qpc::new();
        context.set_mtu(3).set_log_msg_max(20).set_remote_qpn(2);
        spoil(&mut context);
        let refused = modify(&mut side, Transition::InitToRtr, 0, &context);
        assert_eq!(refused, Err(CmdStatus::BAD_PARAM), "{what}");
        assert_eq!(side.qp.state(), State::Init);
        side.enter_rtr(&good, 2);
    }
}

#[test]
fn optional_parameters_a_transition_does_not_know_are_refused() {
    let options = Options::default();
    let mut side = Side::new(1, &options);
    let unknown = modify(
        &mut side,
        Transition::RstToInit,
        opt_param::RRE,
        &Qpc::new(),
    );
    assert_eq!(unknown, Err(CmdStatus::BAD_PARAM));
    side.enter_init(&options);
    for bit in [
        opt_param::RETRY_COUNT,
        opt_param::ACK_TIMEOUT,
        opt_param::Q_KEY,
        1 << 30,
    ] {
        let unknown = modify(&mut side, Transition::InitToInit, bit, &Qpc::new());
        assert_eq!(unknown, Err(CmdStatus::BAD_PARAM), "{bit:#x}");
    }
}

#[test]
fn optional_parameters_are_taken_only_with_their_bit() {
    let options = Options {
        rights: (false, false, false),
        ..Options::default()
    };
    let mut side = Side::new(1, &options);
    side.enter_init(&options);
    let mut context = Qpc::new();
    context.set_rre(true).set_rwe(true).set_rae(true);
    assert_eq!(
        modify(&mut side, Transition::InitToInit, opt_param::RRE, &context),
        Ok(())
    );
    let live = side.qp.query();
    assert_eq!((live.rre(), live.rwe(), live.rae()), (true, false, false));
    assert_eq!(
        modify(&mut side, Transition::InitToInit, 0, &context),
        Ok(())
    );
    assert!(!side.qp.query().rwe());
    assert_eq!(
        side.qp.query().pd(),
        PD,
        "what the transition does not take stays"
    );
}

#[test]
fn receives_may_be_posted_in_init_and_packets_are_dropped_there() {
    let options = Options::default();
    let mut pair = Pair::created(&options, &options);
    pair.a.connect(&options, 2);
    pair.b.enter_init(&options);
    pair.b.post_receive(&[(KEY, DATA, 64)]);
    pair.a.post(&Wqe::send_inline(&[1; 4]));
    pair.run_until_idle();
    assert_eq!(pair.b.host.completions.len(), 0);
    pair.b.enter_rtr(&options, 1);
    pair.run_until(100_000);
    assert_eq!(pair.b.receive_results(), [(0, 0)], "the retry arrives");
}

#[test]
fn creation_refuses_what_the_device_does_not_have() {
    type Spoil = fn(&mut Qpc);
    let cases: [(&str, Spoil); 6] = [
        ("raw Ethernet", |qpc| _ = qpc.set_st(9)),
        ("signatures", |qpc| _ = qpc.set_wq_signature(true)),
        ("doorbell record not aligned", |qpc| {
            _ = qpc.set_dbr_addr(RECORD + 4)
        }),
        ("a send queue beyond its pages", |qpc| {
            _ = qpc.set_log_sq_size(8)
        }),
        ("a receive queue and a shared one", |qpc| {
            _ = qpc.set_rq_type(1)
        }),
        ("an unknown kind of receive queue", |qpc| {
            _ = qpc.set_rq_type(2).set_log_rq_size(0)
        }),
    ];
    let good = create_context(&Options::default());
    assert!(Qp::create(1, &good, memory(&good)).is_ok());
    for (what, spoil) in cases {
        let mut context = good.clone();
        spoil(&mut context);
        let refused = QueueMemory::of_pages(&context, &PAGES)
            .and_then(|memory| Qp::create(1, &context, memory))
            .err();
        assert_eq!(refused, Some(CmdStatus::BAD_PARAM), "{what}");
    }
    assert!(
        QueueMemory::of_pages(&good, &PAGES[..1]).is_err(),
        "half of the pages"
    );
}

#[test]
fn references_are_those_of_the_context() {
    let side = Side::new(
        1,
        &Options {
            shared_receive_queue: true,
            ..Options::default()
        },
    );
    let qp = &side.qp;
    assert_eq!(
        (qp.pd(), qp.cqn_snd(), qp.cqn_rcv()),
        (PD, CQN_SEND, CQN_RECEIVE)
    );
    assert_eq!(
        (qp.srqn(), qp.uar(), qp.service()),
        (Some(0x55), 9, Service::Rc)
    );
    assert_eq!(Side::new(1, &Options::default()).qp.srqn(), None);
}

/// Posts raw bytes as a WQE after a valid WQE. Returns the send results and the number of driver bugs.
fn posted(bytes: &[u8], doorbell: Option<[u8; 8]>) -> (Vec<(u16, u8)>, usize) {
    let mut pair = Pair::new();
    pair.a.post(&Wqe::write(DATA, 4, DATA, KEY));
    pair.run_until_idle();
    pair.a.place_bytes(bytes);
    let first = doorbell.unwrap_or_else(|| *bytes.first_chunk().expect("a control segment"));
    pair.a.ring(&first);
    pair.run_until_idle();
    (pair.a.send_results(), pair.a.host.bugs.len())
}

#[test]
fn malformed_wqes_are_operation_errors_and_reported() {
    const OPERATION: u8 = Syndrome::LOCAL_QP_OP_ERR.0;
    let good = Wqe::write(DATA, 4, DATA, KEY).encode(1, qpn(1));
    assert_eq!(posted(&good, None), (vec![(0, 0), (1, 0)], 0));
    let mut many = Wqe::read(DATA, 4, DATA, KEY);
    for _ in 0..30 {
        many = many.data(KEY, DATA, 4);
    }
    let mut zero_bytes = Wqe::write(DATA, 0, DATA, KEY);
    zero_bytes.body.extend(data_segment(KEY, DATA, 0));
    let mut short_atomic = Wqe::fetch_add(DATA, DATA, KEY, 1);
    short_atomic.body.truncate(32);
    let mut long_inline = Wqe::send_inline(&[0; 12]);
    long_inline.body[3] = 200;
    let mut no_address = Wqe::write(DATA, 0, DATA, KEY);
    no_address.body.clear();
    let mut inline_read = Wqe::read(DATA, 0, DATA, KEY);
    inline_read = inline_read.inline(&[0; 12]);
    let opcode = |opcode| Wqe {
        opcode,
        ..Wqe::nop()
    };
    let wqes = [
        ("30 + 1 segments of a read", many),
        ("zero bytes", zero_bytes),
        ("atomic without buffer", short_atomic),
        ("inline data beyond the WQE", long_inline),
        ("write without an address", no_address),
        ("read into inline data", inline_read),
        ("large send", opcode(0x0e)),
        ("wait", opcode(0x0f)),
        ("unknown opcode", opcode(0x7f)),
        ("fence 7", Wqe::write(DATA, 4, DATA, KEY).flags(7 << 5)),
    ];
    for (what, wqe) in wqes {
        let result = posted(&wqe.encode(1, qpn(1)), None);
        assert_eq!(result, (vec![(0, 0), (1, OPERATION)], 1), "{what}");
    }
    let mut size = good.clone();
    size[7] = 0;
    let mut beyond = good.clone();
    beyond[7] = 9;
    let encoded = [
        ("index of another place", Wqe::nop().encode(7, qpn(1))),
        ("QPN of another queue pair", Wqe::nop().encode(1, 0x999)),
        ("size zero", size),
        ("size beyond what was posted", beyond),
    ];
    for (what, bytes) in encoded {
        // The doorbell has the same first eight bytes as the WQE, so only the WQE is wrong.
        let (results, bugs) = posted(&bytes, None);
        assert_eq!(
            (results.last().map(|last| last.1), bugs),
            (Some(OPERATION), 1),
            "{what}"
        );
    }
}

#[test]
fn doorbells_that_disagree_with_the_record_are_operation_errors() {
    const OPERATION: (u16, u8) = (1, Syndrome::LOCAL_QP_OP_ERR.0);
    let good = Wqe::write(DATA, 4, DATA, KEY).encode(1, qpn(1));
    let mut ahead: [u8; 8] = *good.first_chunk().expect("a control segment");
    ahead[2] = 2;
    assert_eq!(
        posted(&good, Some(ahead)).0.last(),
        Some(&OPERATION),
        "record behind doorbell"
    );
    let mut other: [u8; 8] = *good.first_chunk().expect("a control segment");
    other[3] = 0x0a;
    assert_eq!(
        posted(&good, Some(other)).0.last(),
        Some(&OPERATION),
        "not the WQE's first bytes"
    );

    let mut pair = Pair::new();
    pair.a.place(&Wqe::nop());
    pair.a.set_send_record(SQ_BLOCKS + 1);
    pair.a.ring(&Wqe::nop().encode(0, qpn(1)));
    pair.run_until_idle();
    let operation = Syndrome::LOCAL_QP_OP_ERR.0;
    assert_eq!(
        pair.a.send_results(),
        [(0, operation)],
        "record beyond the ring"
    );
}

#[test]
fn record_that_is_ahead_of_the_doorbell_is_a_second_post_on_its_way() {
    let mut pair = Pair::new();
    let first = Wqe::write(DATA, 4, DATA, KEY);
    pair.a.place(&first);
    pair.a.place(&first);
    pair.a.ring(&first.encode(0, qpn(1)));
    pair.run_until_idle();
    pair.a.ring(&first.encode(1, qpn(1)));
    pair.run_until_idle();
    assert_eq!(pair.a.send_results(), [(0, 0), (1, 0)]);
    assert_eq!(pair.a.host.bugs, Vec::<String>::new());
}

#[test]
fn doorbells_before_rts_are_ignored_and_reported() {
    let options = Options::default();
    let mut side = Side::new(1, &options);
    side.enter_init(&options);
    side.post(&Wqe::nop());
    assert!(!side.qp.pending());
    assert_eq!((side.host.completions.len(), side.host.bugs.len()), (0, 1));
}

#[test]
fn device_may_look_at_the_record_before_the_doorbell_comes() {
    let mut pair = Pair::new();
    pair.a.place(&Wqe::write(DATA, 4, DATA, KEY)); // record written, register not yet
    for _ in 0..200 {
        pair.b.post(&Wqe::write(DATA, 4, DATA, KEY).unsignalled());
        pair.run_until_idle();
        if !pair.a.sends().is_empty() {
            assert_eq!(pair.a.send_results(), [(0, 0)]);
            return;
        }
    }
    panic!("200 packets arrived and the device never looked");
}

#[test]
fn queue_memory_the_device_cannot_read_is_an_operation_error() {
    let options = Options::default();
    let mut context = create_context(&options);
    let mut pair = Pair::new();
    context.set_dbr_addr(MEMORY as u64 + 0x1000);
    pair.a.qp = Qp::create(qpn(1), &context, memory(&context)).expect("an address is an address");
    pair.a.connect(&options, 2);
    pair.a.post(&Wqe::nop());
    pair.run_until_idle();
    assert_eq!(pair.a.qp.state(), State::Error);
    assert_eq!(pair.a.send_results(), [(0, Syndrome::LOCAL_QP_OP_ERR.0)]);
}

#[test]
fn completion_queue_failure_puts_the_queue_pair_into_error() {
    let mut pair = Pair::new();
    pair.a.qp.fail(&mut pair.a.host);
    assert_eq!(pair.a.qp.state(), State::Error);
    let mut side = Side::new(1, &Options::default());
    side.qp.fail(&mut side.host);
    assert_eq!(side.qp.state(), State::Reset, "nothing to fail yet");
}

/// Random WQEs, doorbells, records, packets and times cause no panic and no endless loop.
#[test]
fn random_guest_and_peer_never_panic() {
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let services = [0, 0, 0, 1, 2, 8];
        let service = services[rng.random_range(0..services.len())];
        let options = Options {
            service,
            ..Options::default()
        };
        let mut pair = Pair::with(&options);
        for _ in 0..40 {
            let mut wqe = [
                Wqe::send(DATA, 700),
                Wqe::write(DATA, 700, DATA, KEY),
                Wqe::read(DATA, 700, DATA, KEY),
                Wqe::fetch_add(DATA, DATA, KEY, 1),
                Wqe::datagram(2, 0, 0, DATA, 100),
                Wqe::umr(KEY, &[0; 16]),
            ][rng.random_range(0..6)]
            .clone();
            if rng.random_bool(0.1) {
                wqe.opcode = rng.random();
            }
            wqe.flags = rng.random_range(0..=0x9f);
            let index = pair.a.place(&wqe);
            let mut bytes = wqe.encode(index, qpn(1));
            if rng.random_bool(0.1) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
                pair.a.place_bytes(&bytes);
            }
            if rng.random_bool(0.05) {
                pair.a.set_send_record(rng.random());
                pair.b.set_receive_record(rng.random());
            }
            pair.b
                .post_receive(&[(KEY, DATA, rng.random_range(1..2000))]);
            pair.a.ring(&bytes);
            while pair.a.qp.pending() {
                pair.a.qp.run(&mut pair.a.host);
                let Some(mut frame) = pair.a.host.frames.pop_front() else {
                    continue;
                };
                if rng.random_bool(0.2) {
                    let at = rng.random_range(42..frame.len());
                    frame[at] ^= 1 << rng.random_range(0..8);
                }
                if let Ok(packet) = Packet::parse_ignoring_icrc(&frame) {
                    pair.b.qp.receive(&packet, &mut pair.b.host);
                    pair.a.qp.receive(&packet, &mut pair.a.host);
                }
                while let Some(frame) = pair.b.host.frames.pop_front() {
                    if let Ok(packet) = Packet::parse_ignoring_icrc(&frame) {
                        pair.a.qp.receive(&packet, &mut pair.a.host);
                    }
                }
                pair.b.qp.run(&mut pair.b.host);
            }
            pair.run_until(pair.now + rng.random_range(0..100_000));
            let codes = [pair.a.qp.query().state(), pair.b.qp.query().state()];
            assert!(
                codes.iter().all(|code| (3..=6).contains(code)),
                "seed {seed}: {codes:?}"
            );
        }
    }
}
