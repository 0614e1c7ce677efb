//! Tests of the command transport: commands that it refuses to deliver, commands that it accepts, and the return of
//! slots.

use hw_sim::Fault;
use mlx_prm::*;
use std::time::Duration;
use zerocopy::IntoBytes;

use crate::bench::{Bench, Failure, modest};

/// Returns the delivery status of a valid command whose entry `edit` has corrupted.
fn delivery(edit: impl FnOnce(&Bench, &mut CmdQueueEntry)) -> DeliveryStatus {
    let mut bench = Bench::booted(modest());
    let mut set = SetHcaCapIn::new();
    set.set_op_mod(CapType::ATOMIC.set());
    let mut submission = bench.prepare(set.as_bytes(), 0x210);
    edit(&bench, &mut submission.entry);
    bench.submit(&submission);
    bench.collect(submission.slot).expect("handed back").0
}

#[test]
fn a_well_formed_command_is_delivered() {
    assert_eq!(delivery(|_, _| {}), DeliveryStatus::OK);
}

#[test]
fn a_transport_other_than_pcie_is_refused() {
    assert_eq!(
        delivery(|_, entry| {
            entry.set_type(1);
        }),
        DeliveryStatus::CMD_TYPE_ERR
    );
}

#[test]
fn lengths_below_eight_are_refused() {
    assert_eq!(
        delivery(|_, entry| {
            entry.set_input_length(7);
        }),
        DeliveryStatus::IN_LENGTH_ERR
    );
    assert_eq!(
        delivery(|_, entry| {
            entry.set_output_length(7);
        }),
        DeliveryStatus::OUT_LENGTH_ERR
    );
}

#[test]
fn mailbox_pointers_are_aligned_to_512_bytes_and_not_zero() {
    let misalign = |pointer: u64| pointer + 0x240;
    assert_eq!(
        delivery(|_, entry| {
            entry.set_input_mailbox_pointer(misalign(entry.input_mailbox_pointer()));
        }),
        DeliveryStatus::IN_PTR_ALIGN_ERR
    );
    assert_eq!(
        delivery(|_, entry| {
            entry.set_output_mailbox_pointer(misalign(entry.output_mailbox_pointer()));
        }),
        DeliveryStatus::OUT_PTR_ALIGN_ERR
    );
    assert_eq!(
        delivery(|_, entry| {
            entry.set_input_mailbox_pointer(0);
        }),
        DeliveryStatus::IN_PTR_ALIGN_ERR
    );
    assert_eq!(
        delivery(|_, entry| {
            entry.set_output_mailbox_pointer(0);
        }),
        DeliveryStatus::OUT_PTR_ALIGN_ERR
    );
}

#[test]
fn a_chain_shorter_than_the_message_is_refused() {
    let cut = |bench: &Bench, output| {
        bench.edit_mailbox(output, 0, |mailbox| _ = mailbox.set_next_pointer(0))
    };
    assert_eq!(
        delivery(|bench, _| cut(bench, false)),
        DeliveryStatus::IN_PTR_ALIGN_ERR
    );
    let long = |bench: &Bench, entry: &mut CmdQueueEntry| {
        entry.set_output_length(16 + 513);
        cut(bench, true);
    };
    assert_eq!(delivery(long), DeliveryStatus::OUT_PTR_ALIGN_ERR);
}

#[test]
fn tokens_of_entry_and_mailbox_agree() {
    assert_eq!(
        delivery(|_, entry| {
            entry.set_token(9);
        }),
        DeliveryStatus::TOKEN_ERR
    );
}

#[test]
fn mailboxes_are_numbered_from_zero() {
    assert_eq!(
        delivery(|bench, _| bench.edit_mailbox(false, 1, |mailbox| _ = mailbox.set_block_number(2))),
        DeliveryStatus::BAD_BLOCK_NUMBER
    );
    assert_eq!(
        delivery(|bench, _| bench.edit_mailbox(true, 0, |mailbox| _ = mailbox.set_block_number(1))),
        DeliveryStatus::BAD_BLOCK_NUMBER
    );
}

#[test]
fn reserved_bits_of_entry_and_mailbox_are_zero() {
    assert_eq!(
        delivery(|_, entry| entry.as_mut_bytes()[0x3e] = 1),
        DeliveryStatus::RES_FLD_NOT_CLR_ERR
    );
    assert_eq!(
        delivery(|_, entry| entry.as_mut_bytes()[2] = 1),
        DeliveryStatus::RES_FLD_NOT_CLR_ERR
    );
    assert_eq!(
        delivery(
            |bench, _| bench.edit_mailbox(false, 0, |mailbox| mailbox.as_mut_bytes()[0x210] = 1)
        ),
        DeliveryStatus::RES_FLD_NOT_CLR_ERR
    );
}

#[test]
fn a_mailbox_the_device_cannot_reach_is_a_firmware_error_and_a_recorded_fault() {
    let mut bench = Bench::booted(modest());
    let mut submission = bench.prepare(SetHcaCapIn::new().as_bytes(), 16);
    submission.entry.set_input_mailbox_pointer(0x1_0000);
    bench.submit(&submission);
    assert_eq!(
        bench.collect(submission.slot).unwrap().0,
        DeliveryStatus::FW_ERR
    );
    let faults = bench.report().dma_faults;
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].fault.iova, 0x1_0000);
}

#[test]
fn mailbox_pointers_of_a_short_message_and_longer_chains_do_not_matter() {
    let mut bench = Bench::booted(modest());
    let mut submission = bench.prepare(NopIn::new().as_bytes(), 16);
    submission
        .entry
        .set_input_mailbox_pointer(0x123_4567)
        .set_output_mailbox_pointer(0x765_4321);
    bench.submit(&submission);
    assert_eq!(
        bench.collect(submission.slot).unwrap().0,
        DeliveryStatus::OK
    );
    let submission = bench.prepare(QueryIssiIn::new().as_bytes(), 0x70);
    bench.edit_mailbox(true, 0, |mailbox| _ = mailbox.set_next_pointer(0xdead_0000));
    bench.submit(&submission);
    assert_eq!(
        bench.collect(submission.slot).unwrap().0,
        DeliveryStatus::OK
    );
}

#[test]
fn spare_input_is_accepted_and_output_is_cut_to_what_was_asked_for() {
    let mut bench = Bench::booted(modest());
    let mut query = QueryHcaCapIn::new();
    query.set_op_mod(CapType::GENERAL.current());
    let mut input = query.as_bytes().to_vec();
    input.extend_from_slice(&[0; 8]);
    let output = bench.raw(&input, 0x458).unwrap();
    assert_eq!(output.len(), 0x458);
    // The last byte of the dword at 0x34 of the capability page is num_ports.
    assert_eq!(output[0x10 + 0x37], 1);
}

#[test]
fn one_doorbell_may_name_several_slots_and_any_subset_of_slots_works() {
    let bench = Bench::enabled(modest());
    let mut entry = CmdQueueEntry::new();
    entry
        .set_type(7)
        .set_ownership(true)
        .set_input_length(16)
        .set_output_length(16);
    let mut inline = [0; 16];
    inline.copy_from_slice(NopIn::new().as_bytes());
    entry.set_command_input_inline_data(&inline);
    for slot in [5, 17, 31] {
        bench.memory.write_obj(slot * 64, &entry);
    }
    bench.write32(0x18, 1 << 5 | 1 << 17 | 1 << 31);
    for slot in [5, 17, 31] {
        assert_eq!(bench.collect(slot).unwrap().0, DeliveryStatus::OK);
    }
}

#[test]
fn a_doorbell_for_an_entry_software_owns_does_nothing_and_is_noted() {
    let mut bench = Bench::enabled(modest());
    let mut submission = bench.prepare(NopIn::new().as_bytes(), 16);
    submission.entry.set_ownership(false);
    bench.submit(&submission);
    assert_eq!(bench.driver_bugs().len(), 1);
    assert_eq!(
        bench.entry(submission.slot).command_output_inline_data(),
        &[0; 16]
    );
}

#[test]
fn a_doorbell_before_the_firmware_has_booted_is_noted() {
    // This profile's firmware accepts writes even before it has booted.
    let mut bench = Bench::power_on(hw_sim::Profile {
        silent_time: Duration::ZERO,
        deaf_time: Duration::ZERO,
        ..modest()
    });
    bench.write32(0x10, 0);
    bench.write32(0x14, 0x4000_0000);
    bench.function_bus_master();
    let submission = bench.prepare(EnableHcaIn::new().as_bytes(), 12);
    bench.submit(&submission);
    assert!(bench.entry(submission.slot).ownership());
    assert_eq!(bench.driver_bugs().len(), 1);
}

#[test]
fn a_doorbell_without_bus_mastering_fetches_nothing_and_is_fatal() {
    let mut bench = Bench::ready(modest());
    driver::Device::config_write(&*bench.function, 4, &[0x02, 0x00]);
    let submission = bench.prepare(EnableHcaIn::new().as_bytes(), 12);
    bench.submit(&submission);
    assert!(bench.entry(submission.slot).ownership());
    assert_eq!(
        bench.bar.load_u8(0x23d),
        HealthSyndrome::ICM_FETCH_PCI_ERR.0
    );
    let fault = bench.report().dma_faults[0];
    assert_eq!(fault.cause, hw_sim::FaultCause::NotBusMaster);
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

#[test]
fn signatures_count_only_while_the_checksum_capability_is_on() {
    let mut bench = Bench::booted(modest());
    let page = bench.capability(CapType::GENERAL.current()).unwrap();
    let mut set = SetHcaCapIn::new();
    set.set_op_mod(CapType::GENERAL.set()).set_capability(&page);
    set.capability_mut()[0x42] |= 0xc0; // cmdif_checksum 3
    bench.exec(&set).unwrap();

    let submission = bench.prepare(NopIn::new().as_bytes(), 16);
    bench.submit(&submission);
    assert_eq!(
        bench.collect(submission.slot).unwrap().0,
        DeliveryStatus::SIGNATURE_ERR
    );

    let mut submission = bench.prepare(NopIn::new().as_bytes(), 16);
    let signature = !xor(submission.entry.as_bytes());
    submission.entry.set_signature(u32::from(signature));
    bench.submit(&submission);
    assert_eq!(
        bench.collect(submission.slot).unwrap().0,
        DeliveryStatus::OK
    );
    assert_eq!(
        xor(bench.entry(submission.slot).as_bytes()),
        0xff,
        "the answer is signed as well"
    );
}

#[test]
fn unknown_opcodes_and_op_mods_are_bad_operations() {
    let mut bench = Bench::booted(modest());
    assert_eq!(
        bench.raw(&[0x0f, 0xff, 0, 0, 0, 0, 0, 0], 16),
        Err(Failure::Refused(CmdStatus::BAD_OP))
    );
    let mut nop = NopIn::new();
    nop.set_op_mod(1);
    assert_eq!(bench.status(&nop), CmdStatus::BAD_OP);
}

#[test]
fn input_shorter_than_the_command_is_refused() {
    let mut bench = Bench::initialised(modest());
    let input = CreateCqIn::new();
    assert_eq!(
        bench.raw(&input.as_bytes()[..0x10c], 16),
        Err(Failure::Refused(CmdStatus::BAD_INPUT_LEN))
    );
}

#[test]
fn a_set_reserved_bit_is_a_bad_parameter() {
    let mut bench = Bench::initialised(modest());
    let mut input = AllocPdIn::new();
    input.as_mut_bytes()[9] = 1;
    assert_eq!(bench.status(&input), CmdStatus::BAD_PARAM);
    let reason = &bench.report().refused[0].reason;
    assert!(reason.contains("reserved"), "{reason}");
}

#[test]
fn equal_reasons_have_equal_syndromes_and_different_ones_differ() {
    let mut bench = Bench::initialised(modest());
    let mut dealloc = DeallocPdIn::new();
    dealloc.set_pd(0x999);
    bench.status(&dealloc);
    dealloc.set_pd(0x998);
    bench.status(&dealloc);
    dealloc.set_op_mod(7);
    bench.status(&dealloc);
    let refused = bench.report().refused;
    assert_eq!(refused[0].syndrome, refused[1].syndrome);
    assert_ne!(refused[1].syndrome, refused[2].syndrome);
    assert_ne!(refused[0].syndrome, 0);
}

#[test]
fn a_completion_event_follows_only_commands_submitted_after_the_command_eq_existed() {
    let (mut bench, mut resources) = Bench::usable(modest());
    assert!(
        bench.drain_eq(&mut resources.eq).is_empty(),
        "none for the CREATE_EQ that made it"
    );
    let _ = bench.interrupts[0].take();
    let submission = bench.prepare(NopIn::new().as_bytes(), 16);
    bench.submit(&submission);
    assert!(
        !bench.entry(submission.slot).ownership(),
        "handed back before the event shows"
    );
    assert!(bench.interrupts[0].is_pending());
    let eqe = bench.next_eqe(&mut resources.eq).expect("an event");
    assert_eq!(EventType(eqe.event_type()), EventType::CMD);
    assert_eq!(
        eqe.event_data()[..4],
        (1_u32 << submission.slot).to_be_bytes()
    );
    let mut destroy = DestroyEqIn::new();
    destroy.set_eq_number(resources.eq.number);
    bench.exec(&destroy).unwrap();
    assert!(
        bench.next_eqe(&mut resources.eq).is_none(),
        "none for the DESTROY_EQ that ended it"
    );
}

#[test]
fn an_injected_failure_hits_its_opcode_once_and_does_nothing() {
    let mut bench = Bench::initialised(modest());
    let fault = Fault::CommandFailure {
        opcode: Some(Opcode::ALLOC_PD.0),
        status: 0x0f,
        syndrome: 0x1234,
        count: 1,
    };
    bench.sim.inject(&bench.function, &fault);
    assert_eq!(bench.status(&AllocUarIn::new()), CmdStatus::OK);
    assert_eq!(bench.status(&AllocPdIn::new()), CmdStatus::NO_RESOURCES);
    assert!(!bench.report().leaked.contains_key("PD"));
    assert_eq!(bench.status(&AllocPdIn::new()), CmdStatus::OK);
}

#[test]
fn a_silenced_command_keeps_its_slot() {
    let mut bench = Bench::initialised(modest());
    bench.sim.inject(
        &bench.function,
        &Fault::CommandSilence {
            opcode: None,
            count: 1,
        },
    );
    let submission = bench.prepare(NopIn::new().as_bytes(), 16);
    bench.submit(&submission);
    assert_eq!(bench.collect(submission.slot), None);
    bench.write32(0x18, 1 << submission.slot);
    let bugs = bench.driver_bugs();
    assert!(bugs[0].contains("device owns"), "{bugs:?}");
}

#[test]
fn a_delayed_command_is_answered_when_its_time_comes() {
    let mut bench = Bench::initialised(modest());
    let delay = Duration::from_secs(2);
    bench.sim.inject(
        &bench.function,
        &Fault::CommandDelay {
            opcode: None,
            delay,
            count: 1,
        },
    );
    let before = bench.now();
    let submission = bench.prepare(NopIn::new().as_bytes(), 16);
    bench.submit(&submission);
    assert!(bench.entry(submission.slot).ownership());
    assert!(bench.collect(submission.slot).is_some());
    assert!(bench.now() - before >= delay);
}

#[test]
fn an_undelivered_command_has_an_event_too() {
    let (mut bench, mut resources) = Bench::usable(modest());
    bench.sim.inject(
        &bench.function,
        &Fault::CommandDelivery {
            opcode: None,
            status: 6,
            count: 1,
        },
    );
    assert_eq!(
        bench.raw(NopIn::new().as_bytes(), 16),
        Err(Failure::Delivery(DeliveryStatus::FW_ERR))
    );
    assert_eq!(bench.drain_eq(&mut resources.eq), [EventType::CMD]);
}

#[test]
fn of_refused_commands_the_first_are_kept_and_all_are_counted() {
    let mut bench = Bench::initialised(modest());
    let mut dealloc = DeallocPdIn::new();
    dealloc.set_pd(0x999);
    for _ in 0..1_500 {
        bench.status(&dealloc);
    }
    let report = bench.report();
    assert_eq!(
        (report.refused.len(), report.refusals[&0x801]),
        (1_000, 1_500)
    );
    let told = report.coverage();
    let line = told.iter().find(|line| line.contains(" DEALLOC_PD "));
    assert!(
        line.is_some_and(|line| line.contains("refused 1500; ")),
        "{line:?}"
    );
}
