//! The command interface against a device double that checks every byte.

use std::sync::Arc;
use std::time::Duration;

use hw_mlx::{AsyncEvent, CmdError, Hca, HcaConfig};
use mlx_prm::{AccessRegIn, AllocPdIn, CmdStatus, Command, DeallocPdIn, DeliveryStatus, NopIn};

use crate::double::{Action, Double};

const NOP: u16 = 0x80d;
const ALLOC_PD: u16 = 0x800;
const ACCESS_REG: u16 = 0x805;

fn opened(config: HcaConfig) -> (Arc<Double>, Hca) {
    let double = Double::new();
    let hca = Hca::open(double.function(), config).expect("bring-up");
    double.state().seen.clear();
    (double, hca)
}

fn hca() -> (Arc<Double>, Hca) {
    opened(HcaConfig::new())
}

/// Processes events until there are none.
fn process_all_events(hca: &mut Hca) {
    while hca.wait(hca.now()).expect("alive") {}
}

/// Sends a register image of `bytes` bytes, and checks that it comes back unchanged. The double echoes registers.
fn echo(hca: &mut Hca, bytes: usize) {
    let image: Vec<u8> = (0..bytes)
        .map(|at| u8::try_from(at % 251).expect("small") ^ 0x5a)
        .collect();
    let mut input = AccessRegIn::new();
    input.set_register_id(0x7777);
    let (_, back) = hca.exec_reading(&input, &image, bytes).expect("echo");
    assert_eq!(back, image, "{bytes} bytes");
}

#[test]
fn messages_of_every_length_class_arrive_and_return_whole() {
    let (double, mut hca) = hca();
    // Pairs of the number of bytes behind the 16 inline ones, and the number of mailboxes.
    for (bytes, blocks) in [
        (0, 0),
        (1, 1),
        (8, 1),
        (511, 1),
        (512, 1),
        (513, 2),
        (1024, 2),
        (1025, 3),
        (6000, 12),
        (32768, 64),
    ] {
        echo(&mut hca, bytes);
        let seen = double.state().seen.pop().expect("a command");
        assert_eq!(
            (seen.input_blocks.len(), seen.output_blocks.len()),
            (blocks, blocks),
            "{bytes} bytes"
        );
    }
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn tokens_run_from_1_to_255_and_over_zero() {
    let (double, mut hca) = hca();
    for _ in 0..600 {
        hca.exec(&NopIn::new()).expect("NOP");
    }
    let tokens: Vec<u8> = double.state().seen.iter().map(|seen| seen.token).collect();
    assert!(!tokens.contains(&0));
    for pair in tokens.windows(2) {
        assert_eq!(pair[1], if pair[0] == 255 { 1 } else { pair[0] + 1 });
    }
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn every_delivery_status_surfaces_with_its_meaning() {
    let (double, mut hca) = hca();
    let rows = [
        (0x01, "signature error"),
        (0x02, "token error"),
        (0x03, "bad block number"),
        (0x04, "output pointer not aligned"),
        (0x05, "input pointer not aligned"),
        (0x06, "firmware internal error"),
        (0x07, "input length error"),
        (0x08, "output length error"),
        (0x09, "reserved field not zero"),
        (0x10, "bad command type"),
        (0x7f, "unknown delivery status"),
    ];
    for (status, meaning) in rows {
        double.rule(NOP, Action::Deliver(status));
        let error = hca.exec(&NopIn::new()).expect_err("not delivered");
        assert!(
            matches!(error, CmdError::Delivery { status: found, .. } if found == DeliveryStatus(status)),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            format!(
                "NOP (0x80d, op_mod 0x0): not delivered: {meaning} (delivery status {status:#04x})"
            )
        );
    }
}

#[test]
fn every_command_status_surfaces_with_its_name_and_the_syndrome() {
    let (double, mut hca) = hca();
    let rows = [
        (0x01, "INTERNAL_ERR"),
        (0x02, "BAD_OP"),
        (0x03, "BAD_PARAM"),
        (0x04, "BAD_SYS_STATE"),
        (0x05, "BAD_RESOURCE"),
        (0x06, "RESOURCE_BUSY"),
        (0x07, "NOT_READY"),
        (0x08, "EXCEED_LIM"),
        (0x09, "BAD_RES_STATE"),
        (0x0a, "BAD_INDEX"),
        (0x0f, "NO_RESOURCES"),
        (0x10, "BAD_QP_STATE"),
        (0x30, "BAD_PKT"),
        (0x40, "BAD_SIZE_OUTS_CQES"),
        (0x50, "BAD_INPUT_LEN"),
        (0x51, "BAD_OUTPUT_LEN"),
        (0xee, "unknown status"),
    ];
    for (status, name) in rows {
        double.rule(ALLOC_PD, Action::Refuse(status, 0x1_2345));
        let error = hca.exec(&AllocPdIn::new()).expect_err("refused");
        assert_eq!(error.status(), Some(CmdStatus(status)));
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("ALLOC_PD (0x800, op_mod 0x0): refused: {name}")),
            "{text}"
        );
        assert!(
            text.ends_with(&format!("(status {status:#04x}, syndrome 0x00012345)")),
            "{text}"
        );
    }
}

#[test]
fn a_silent_command_times_out_and_its_memory_is_not_touched_until_the_device_returns_it() {
    let mut config = HcaConfig::new();
    config.command_timeout = Duration::from_secs(7);
    let (double, mut hca) = opened(config);
    double.rule(ACCESS_REG, Action::Hold);
    let begun = hca.now();
    let mut input = AccessRegIn::new();
    input.set_register_id(0x7777);
    let error = hca
        .exec_reading(&input, &[0x77; 3000], 3000)
        .expect_err("silence");
    assert!(
        matches!(
            error,
            CmdError::TimedOut {
                slot: 0,
                waited_ms: 7000,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "ACCESS_REG (0x805, op_mod 0x0): no answer after 7000 ms; slot 0 is quarantined"
    );
    assert_eq!(hca.now() - begun, Duration::from_secs(7));
    assert_eq!(hca.slots_quarantined(), 1);

    let lent = double.state().image(0);
    for _ in 0..200 {
        echo(&mut hca, 3000);
    }
    assert_eq!(
        double.state().image(0),
        lent,
        "memory of the held command was used again"
    );
    assert!(
        double
            .state()
            .seen
            .iter()
            .skip(1)
            .all(|seen| seen.slot != 0)
    );

    double.release(0);
    hca.process_events();
    assert_eq!(hca.slots_quarantined(), 0);
    echo(&mut hca, 3000);
    assert_eq!(double.state().seen.last().expect("a command").slot, 0);
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn with_every_slot_quarantined_a_command_fails_with_a_name_and_pages_are_still_served() {
    let mut config = HcaConfig::new();
    config.command_timeout = Duration::from_secs(1);
    let (double, mut hca) = opened(config);
    for slot in 0..31 {
        double.rule(NOP, Action::Hold);
        let error = hca.exec(&NopIn::new()).expect_err("silence");
        assert!(
            matches!(error, CmdError::TimedOut { slot: found, .. } if found == slot),
            "{error}"
        );
    }
    let error = hca.exec(&NopIn::new()).expect_err("no slot");
    assert_eq!(
        error.to_string(),
        "NOP (0x80d): no command slot free after 1000 ms (31 quarantined)"
    );

    double.state().event(page_request(5));
    hca.process_events();
    let given = double.state().seen.last().expect("a command").clone();
    assert_eq!((given.opcode, given.op_mod, given.slot), (0x108, 1, 31));
    for slot in 0..31 {
        double.release(slot);
    }
    hca.process_events();
    hca.exec(&NopIn::new()).expect("slots are back");
}

fn page_request(pages: i32) -> [u8; 64] {
    let mut eqe = [0u8; 64];
    eqe[1] = 0x0b;
    eqe[0x24..0x28].copy_from_slice(&pages.to_be_bytes());
    eqe
}

#[test]
fn a_lost_interrupt_costs_a_second_and_not_the_command() {
    let (double, mut hca) = hca();
    double.rule(NOP, Action::NoEvent);
    let begun = hca.now();
    hca.exec(&NopIn::new()).expect("answered");
    assert!(hca.now() - begun <= Duration::from_secs(1));
}

#[test]
fn commands_in_several_slots_finish_out_of_order_and_each_finds_its_asker() {
    let (double, mut hca) = hca();
    let mut pending = Vec::new();
    for slot in 0..4 {
        double.rule(ALLOC_PD, Action::Hold);
        pending.push(hca.submit(&AllocPdIn::new(), &[]).expect("posted"));
        assert_eq!(double.state().held().last(), Some(&slot));
    }
    let mut numbers = Vec::new();
    for slot in [2, 0, 3, 1] {
        // The double chooses a PD number when it answers, so numbers follow the order of release.
        double.release(slot);
        let mut waiting = Vec::new();
        for (number, claim) in pending.into_iter().enumerate() {
            match hca.try_answer(claim) {
                Ok(answer) => numbers.push((number, answer.expect("a PD").pd())),
                Err(claim) => waiting.push(claim),
            }
        }
        pending = waiting;
    }
    let order: Vec<u32> = numbers.iter().map(|(_, pd)| *pd).collect();
    assert_eq!(order, [0x11, 0x12, 0x13, 0x14]);
    // Expected are positions among the commands still waiting: third of four, first of three, second of two, the last.
    assert_eq!(
        numbers
            .iter()
            .map(|(number, _)| *number)
            .collect::<Vec<_>>(),
        [2, 0, 1, 0]
    );
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn a_waiting_command_is_not_disturbed_by_others_that_finish_meanwhile() {
    let (double, mut hca) = hca();
    double.rule(ALLOC_PD, Action::Hold);
    let first = hca.submit(&AllocPdIn::new(), &[]).expect("posted");
    double.rule(ALLOC_PD, Action::Hold);
    let second = hca.submit(&AllocPdIn::new(), &[]).expect("posted");
    double.after(Duration::from_millis(5), |state| state.release(1));
    double.after(Duration::from_millis(9), |state| state.release(0));
    let begun = hca.now();
    assert_eq!(hca.answer(first).expect("a PD").pd(), 0x12);
    assert_eq!(hca.now() - begun, Duration::from_millis(9));
    assert_eq!(hca.answer(second).expect("a PD").pd(), 0x11);
}

#[test]
fn a_page_request_in_the_middle_of_a_command_is_answered_before_it_finishes() {
    let (double, mut hca) = hca();
    double.rule(ALLOC_PD, Action::Hold);
    let before = double.state().pages.len();
    double.after(Duration::from_millis(1), |state| {
        state.event(page_request(300))
    });
    double.after(Duration::from_millis(2), move |state| {
        assert_eq!(state.pages.len(), before + 300, "pages before the answer");
        state.release(0);
    });
    hca.exec(&AllocPdIn::new()).expect("a PD");
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn page_requests_are_served_one_after_the_other_in_both_directions() {
    let (double, mut hca) = hca();
    let before = double.state().pages.len();
    // The double holds the command of the first request. Two more requests arrive meanwhile.
    double.rule(0x108, Action::Hold);
    for pages in [10, -4, 5000] {
        double.state().event(page_request(pages));
    }
    hca.process_events();
    assert_eq!(double.state().held(), [31]);
    double.release(31);
    process_all_events(&mut hca);
    assert_eq!(double.state().pages.len(), before + 10 - 4 + 5000);
    assert_eq!(
        hca.page_counts().given,
        u64::try_from(before).expect("few") + 5010
    );
    assert_eq!(hca.page_counts().returned, 4);
    let report = hca.close().expect("closed");
    assert_eq!(
        (report.pages_given, report.pages_returned),
        (5010 + 73, 5010 + 73)
    );
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn a_request_beyond_the_budget_is_answered_with_cannot_give() {
    let mut config = HcaConfig::new();
    config.firmware_pages = Some(100);
    let (double, mut hca) = opened(config);
    double.state().event(page_request(50));
    hca.process_events();
    let answer = double.state().seen.last().expect("a command").clone();
    assert_eq!(
        (answer.opcode, answer.op_mod, &answer.input[8..16]),
        (0x108, 0, &[0; 8][..])
    );
    assert_eq!(hca.page_counts().refused, 1);
    double.state().event(page_request(20));
    hca.process_events();
    assert_eq!(double.state().pages.len(), 93);
}

#[test]
fn pages_the_firmware_never_had_are_not_believed() {
    let (double, mut hca) = hca();
    double.state().pages.push(0xdead_0000);
    double.state().event(page_request(-2));
    process_all_events(&mut hca);
    assert_eq!(
        (hca.page_counts().foreign, hca.page_counts().returned),
        (1, 1)
    );
}

#[test]
fn answers_are_checked_once_the_device_signs_them() {
    let mut config = HcaConfig::new();
    config.command_checksums = true;
    let (double, mut hca) = opened(config);
    echo(&mut hca, 2000);
    double.rule(ACCESS_REG, Action::Damage);
    let mut input = AccessRegIn::new();
    input.set_register_id(0x7777);
    let error = hca
        .exec_reading(&input, &[1; 600], 600)
        .expect_err("damaged");
    assert_eq!(
        error.to_string(),
        "ACCESS_REG (0x805, op_mod 0x0): bad signature in the answer's mailbox 0"
    );
    double.rule(ALLOC_PD, Action::Damage);
    let error = hca.exec(&AllocPdIn::new()).expect_err("damaged");
    assert_eq!(
        error.to_string(),
        "ALLOC_PD (0x800, op_mod 0x0): bad signature in the answer's entry"
    );
    echo(&mut hca, 2000);
}

#[test]
fn unsigned_answers_are_taken_as_they_are_while_checksums_are_off() {
    let (double, mut hca) = hca();
    double.rule(ACCESS_REG, Action::Damage);
    let mut input = AccessRegIn::new();
    input.set_register_id(0x7777);
    let (_, image) = hca
        .exec_reading(&input, &[1; 600], 600)
        .expect("nobody checks");
    assert_eq!(image[7], 0x11);
}

#[test]
fn events_for_slots_that_are_not_or_not_yet_done_change_nothing() {
    let (double, mut hca) = hca();
    double.rule(ALLOC_PD, Action::Hold);
    let pending = hca.submit(&AllocPdIn::new(), &[]).expect("posted");
    let mut eqe = [0u8; 64];
    eqe[1] = 0x0a;
    eqe[0x20..0x24].copy_from_slice(&[0xff; 4]);
    double.state().event(eqe);
    let Err(pending) = hca.try_answer(pending) else {
        panic!("answered by an empty event")
    };
    double.release(0);
    assert_eq!(hca.answer(pending).expect("a PD").pd(), 0x11);
}

#[test]
fn thousands_of_events_lap_the_ring_without_an_overrun() {
    let (double, mut hca) = hca();
    let mut eqe = [0u8; 64];
    eqe[1] = 0x09;
    for round in 0..5000u32 {
        eqe[3] = if round % 2 == 0 { 1 } else { 4 };
        double.state().event(eqe);
        if round % 300 == 299 {
            hca.process_events();
        }
    }
    hca.process_events();
    for round in 0..5000u32 {
        assert_eq!(
            hca.next_async(),
            Some(if round % 2 == 0 {
                AsyncEvent::PortDown
            } else {
                AsyncEvent::PortUp
            })
        );
    }
    assert_eq!(hca.next_async(), None);
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn an_event_that_arrives_during_a_command_does_not_let_the_next_wait_sleep() {
    let (double, mut hca) = hca();
    let mut eqe = [0u8; 64];
    eqe[1] = 0x09;
    eqe[3] = 4;
    double.state().event(eqe);
    hca.exec(&NopIn::new()).expect("NOP");
    let begun = hca.now();
    assert!(hca.wait(begun + Duration::from_secs(5)).expect("alive"));
    assert_eq!(hca.now(), begun);
    assert_eq!(hca.next_async(), Some(AsyncEvent::PortUp));
    assert!(!hca.wait(begun + Duration::from_secs(5)).expect("alive"));
    assert_eq!(hca.now() - begun, Duration::from_secs(5));
}

#[test]
fn a_completion_event_wakes_a_waiter_once_and_for_its_queue_only() {
    let (double, mut hca) = hca();
    let cqn = |number| mlx_prm::Cqn::new(number);
    let eqn = u8::try_from(hca.comp_eqn().get()).expect("8 bits");
    double.after(Duration::from_millis(3), move |state| {
        let mut eqe = [0u8; 64];
        eqe[0x3b] = 9;
        state.event_to(eqn, eqe);
    });
    let begun = hca.now();
    assert!(hca.wait(begun + Duration::from_secs(5)).expect("alive"));
    assert_eq!(hca.now() - begun, Duration::from_millis(3));
    assert_eq!(hca.next_completion(), Some(cqn(9)));
    assert_eq!(hca.next_completion(), None);
}

#[test]
fn a_polled_command_ends_as_soon_as_the_health_syndrome_says_so() {
    let double = Double::new();
    double.rule(0x102, Action::Hold);
    double.after(Duration::from_secs(2), |state| {
        state.set_register(0x238, 1 << 31);
        state.set_register(0x23c, 0x0007_0000);
    });
    let begun = double.now();
    let error = Hca::open(double.function(), HcaConfig::new()).expect_err("dead");
    assert!(error.to_string().contains("INIT_HCA (0x102): the device is dead: the firmware asks for a reset: internal processor not responding"), "{error}");
    assert!(double.now() - begun < Duration::from_secs(3));
}

#[test]
fn opcodes_are_written_whatever_the_caller_left_in_the_header() {
    let (double, mut hca) = hca();
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    let mut input = DeallocPdIn::from_array([0; 16]);
    input.set_pd(pd);
    hca.exec(&input).expect("freed");
    assert_eq!(
        double.state().seen.last().expect("a command").opcode,
        DeallocPdIn::OPCODE.0
    );
}

/// During a long drain of an event queue, the driver updates the consumer index at least every 128 entries. A device
/// that continues to write then finds free entries; an overrun would be fatal (Linux `eq.h` `MLX5_NUM_SPARE_EQE`,
/// `eq.c` `mlx5_eq_update_ci`).
#[test]
fn the_device_is_told_every_128_entries_how_far_a_long_drain_is() {
    let (double, mut hca) = hca();
    double.state().eq_doorbells.clear();
    let mut port = [0; 64];
    port[1] = 0x09;
    for _ in 0..1_000 {
        double.state().event(port);
    }
    hca.process_events();
    let told = double.state().eq_doorbells.clone();
    let last = *told.last().expect("a doorbell");
    let of_queue = told.iter().filter(|value| **value >> 24 == last >> 24);
    let counters: Vec<u32> = of_queue.map(|value| value & 0xff_ffff).collect();
    let first = counters[0];
    assert!(first <= 128, "{counters:?}");
    assert_eq!(last & 0xff_ffff, 1_000, "{counters:?}");
    let far = counters.windows(2).find(|pair| pair[1] - pair[0] > 128);
    assert_eq!(far, None, "{counters:?}");
}
