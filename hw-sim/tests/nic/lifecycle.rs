//! Tests of the function's life cycle: stages, pages, capabilities, health, teardown, and the state that a reset
//! erases.

use driver::Device;
use hw_sim::Fault;
use hw_sim::Profile;
use mlx_prm::*;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

use crate::bench::{Bench, Failure, Resources, Submission, modest};

const BAD_STATE: CmdStatus = CmdStatus::BAD_SYS_STATE;

#[test]
fn the_initialization_segment_says_what_drivers_look_for() {
    let bench = Bench::power_on(modest());
    assert_eq!(bench.read32(0x1fc) >> 31, 1, "firmware boots");
    bench.sleep(Duration::from_millis(100));
    assert_eq!(bench.read32(0x1fc) >> 31, 0);
    assert_eq!(bench.read32(0x04) >> 16, 5, "command interface revision");
    assert_eq!(bench.read32(0x14) & 0xff, 0x56, "32 slots of 64 bytes");
    assert_eq!(bench.read32(0xffc), 0, "no timeout registers");
}

/// While a function boots, writes are lost, and its registers first read as ones and then as 0 except `initializing`.
/// Linux reads only `initializing` until that bit is clear (`mlx5_function_enable`: "wait for firmware to accept
/// initialization segments configurations").
#[test]
fn a_booting_function_reads_ones_and_loses_writes() {
    let bench = Bench::power_on(modest());
    let segment = || [0x04, 0x14, 0x1fc].map(|register| bench.read32(register));
    assert_eq!(segment(), [u32::MAX; 3]);
    bench.write32(0x10, 1);
    bench.sleep(Duration::from_millis(10));
    assert_eq!(segment(), [0, 0, 1 << 31]);
    bench.write32(0x10, 1);
    bench.write32(0x14, 0x4000_0000);
    bench.sleep(Duration::from_millis(10));
    assert_eq!(segment(), [0x0005_03f4, 0x56, 0]);
    assert_eq!(bench.read32(0x10), 0);
    let report = bench.report();
    assert_eq!(report.driver_bugs.len(), 3, "{report:?}");
}

/// A health counter that stalls for a while continues later, as with busy firmware.
#[test]
fn a_health_counter_that_stalls_goes_on() {
    let mut bench = Bench::enabled(modest());
    let stall = Fault::HealthCounterStalls(Duration::from_secs(5));
    bench.sim.inject(&bench.function, &stall);
    let before = bench.read32(0x1010);
    bench.sleep(Duration::from_secs(4));
    assert_eq!(bench.read32(0x1010), before);
    assert_eq!(bench.status(&QueryIssiIn::new()), CmdStatus::OK);
    bench.sleep(Duration::from_secs(2));
    assert_ne!(bench.read32(0x1010), before);
}

#[test]
fn the_health_counter_and_the_timer_move_with_virtual_time() {
    let bench = Bench::ready(modest());
    let (counter, timer) = (bench.read32(0x1010), bench.read32(0x1004));
    bench.sleep(Duration::from_secs(1));
    assert_ne!(bench.read32(0x1010), counter);
    assert_ne!(bench.read32(0x1004), timer);
    bench
        .sim
        .inject(&bench.function, &Fault::HealthCounterStops);
    let counter = bench.read32(0x1010);
    bench.sleep(Duration::from_secs(3));
    assert_eq!(bench.read32(0x1010), counter);
}

#[test]
fn the_first_command_after_a_reset_is_enable_hca() {
    let mut bench = Bench::ready(modest());
    assert_eq!(bench.status(&QueryIssiIn::new()), BAD_STATE);
    assert_eq!(bench.status(&EnableHcaIn::new()), CmdStatus::OK);
    assert_eq!(bench.status(&EnableHcaIn::new()), BAD_STATE, "once");
    assert_eq!(bench.status(&QueryIssiIn::new()), CmdStatus::OK);
}

#[test]
fn another_function_does_not_exist() {
    let mut bench = Bench::ready(modest());
    let mut enable = EnableHcaIn::new();
    enable.set_function_id(1);
    assert_eq!(bench.status(&enable), CmdStatus::BAD_RESOURCE);
}

#[test]
fn only_a_supported_interface_step_can_be_set() {
    let mut bench = Bench::enabled(modest());
    let supported = bench
        .exec(&QueryIssiIn::new())
        .unwrap()
        .supported_issi_dw0();
    assert_eq!(supported & 2, 2);
    let mut set = SetIssiIn::new();
    assert_eq!(bench.status(set.set_current_issi(2)), CmdStatus::BAD_PARAM);
    assert_eq!(bench.status(set.set_current_issi(1)), CmdStatus::OK);
    assert_eq!(bench.exec(&QueryIssiIn::new()).unwrap().current_issi(), 1);
}

#[test]
fn capabilities_and_init_wait_for_their_pages() {
    let mut bench = Bench::enabled(modest());
    assert_eq!(
        bench.status(&QueryHcaCapIn::new()),
        BAD_STATE,
        "boot pages are missing"
    );
    let mut query = QueryPagesIn::new();
    assert_eq!(bench.status(query.set_op_mod(2)), CmdStatus::NO_RESOURCES);
    bench.satisfy_pages(1);
    assert_eq!(bench.status(&QueryHcaCapIn::new()), CmdStatus::OK);
    assert_eq!(
        bench.status(&InitHcaIn::new()),
        CmdStatus::NO_RESOURCES,
        "init pages are missing"
    );
    bench.satisfy_pages(2);
    assert_eq!(
        bench.status(&AllocPdIn::new()),
        BAD_STATE,
        "not before INIT_HCA"
    );
    assert_eq!(bench.status(&InitHcaIn::new()), CmdStatus::OK);
    assert_eq!(bench.status(&InitHcaIn::new()), BAD_STATE, "once");
    assert_eq!(bench.status(&AllocPdIn::new()), CmdStatus::OK);
}

#[test]
fn a_connectx_4_took_an_init_hca_of_16_bytes() {
    let mut bench = Bench::booted(modest());
    bench.satisfy_pages(2);
    let input = InitHcaIn::new();
    assert!(bench.raw(&input.as_bytes()[..0x10], 16).is_ok());
}

#[test]
fn pages_may_come_in_portions_and_none_is_taken_twice() {
    let mut bench = Bench::enabled(modest());
    assert_eq!(bench.query_pages(1), 4);
    let first = bench.give_pages(2);
    assert_eq!(bench.query_pages(1), 2, "what is still missing");
    assert_eq!(
        bench.manage_pages(1, &first).unwrap_err(),
        Failure::Refused(CmdStatus::BAD_RESOURCE)
    );
    assert_eq!(
        bench.manage_pages(1, &[0, 0x1000]).unwrap_err(),
        Failure::Refused(CmdStatus::BAD_PARAM)
    );
    bench.give_pages(2);
    let (_, extra) = bench.alloc(4096);
    assert_eq!(
        bench.manage_pages(1, &[extra]).unwrap_err(),
        Failure::Refused(CmdStatus::BAD_PARAM),
        "not asked for"
    );
    assert!(bench.manage_pages(1, &[]).is_ok(), "giving none is fine");
}

#[test]
fn a_give_shorter_than_its_count_is_refused() {
    let mut bench = Bench::enabled(modest());
    bench.query_pages(1);
    let mut give = ManagePagesIn::new();
    give.set_op_mod(1).set_input_num_entries(2);
    let (_, page) = bench.alloc(4096);
    assert_eq!(
        bench.status_with(&give, &crate::bench::list(&[page])),
        CmdStatus::BAD_INPUT_LEN
    );
    give.set_input_num_entries(u32::MAX);
    assert_eq!(bench.status(&give), CmdStatus::BAD_INPUT_LEN);
}

#[test]
fn after_teardown_every_page_comes_back_and_disable_succeeds() {
    let mut bench = Bench::initialised(modest());
    assert!(bench.take_pages(100).is_empty(), "all in use");
    bench.exec(&TeardownHcaIn::new()).unwrap();
    assert_eq!(
        bench.status(&DisableHcaIn::new()),
        BAD_STATE,
        "the firmware holds pages"
    );
    assert_eq!(bench.take_pages(5).len(), 5);
    assert_eq!(bench.take_pages(100).len(), 7);
    assert!(bench.take_pages(100).is_empty());
    assert_eq!(bench.status(&DisableHcaIn::new()), CmdStatus::OK);
    let report = bench.report();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_write_into_a_page_given_away_is_detected() {
    let mut bench = Bench::enabled(modest());
    let pages = bench.satisfy_pages(1);
    let offset = usize::try_from(pages[1] - crate::bench::BASE).unwrap();
    bench.memory.store_u8(offset + 100, 1);
    bench.take_pages(100);
    let bugs = bench.driver_bugs();
    assert_eq!(bugs, ["software wrote into a page the firmware owned"]);
}

#[test]
fn objects_that_outlive_teardown_are_leaks() {
    let mut bench = Bench::initialised(modest());
    bench.exec(&AllocPdIn::new()).unwrap();
    bench.exec(&AllocPdIn::new()).unwrap();
    bench.exec(&TeardownHcaIn::new()).unwrap();
    assert_eq!(bench.report().leaked["PD"], 2);
}

#[test]
fn teardown_needs_init_and_a_known_profile() {
    let mut bench = Bench::booted(modest());
    assert_eq!(bench.status(&TeardownHcaIn::new()), BAD_STATE);
    bench.bring_up();
    let mut teardown = TeardownHcaIn::new();
    teardown.set_profile(9);
    assert_eq!(bench.status(&teardown), CmdStatus::BAD_PARAM);
    teardown.set_profile(2);
    assert!(
        bench.exec(&teardown).unwrap().state(),
        "fast teardown is refused without the capability"
    );
    assert_eq!(
        bench.status(&AllocPdIn::new()),
        CmdStatus::OK,
        "and nothing happened"
    );
}

#[test]
fn fast_teardown_is_confirmed_in_nic_interface() {
    let mut profile = modest();
    profile.general.current.set_fast_teardown(true);
    let mut bench = Bench::initialised(profile);
    let mut teardown = TeardownHcaIn::new();
    teardown.set_profile(2);
    assert!(!bench.exec(&teardown).unwrap().state());
    let word = bench.read32(0x14) & 0xffff_f000;
    bench.write32(0x14, word | 1 << 8);
    assert_eq!(bench.read32(0x14) >> 8 & 7, 1);
    assert_eq!(bench.read32(0x14) & 0xff, 0x56);
}

#[test]
fn a_function_can_be_brought_up_again_after_disable_and_after_reset() {
    let mut bench = Bench::initialised(modest());
    bench.exec(&TeardownHcaIn::new()).unwrap();
    bench.take_pages(100);
    bench.exec(&DisableHcaIn::new()).unwrap();
    bench.exec(&EnableHcaIn::new()).unwrap();
    bench.satisfy_pages(1);
    bench.bring_up();
    bench.exec(&AllocPdIn::new()).unwrap();

    bench.function.reset();
    assert_eq!(bench.read32(0x1fc) >> 31, 1, "it boots again");
    bench.sleep(Duration::from_millis(100));
    assert_eq!(bench.read32(0x10), 0, "the queue address is forgotten");
    bench.start();
    assert_eq!(bench.status(&AllocPdIn::new()), BAD_STATE);
    bench.exec(&EnableHcaIn::new()).unwrap();
    bench.satisfy_pages(1);
    bench.bring_up();
}

#[test]
fn a_reset_erases_capabilities_objects_and_the_port() {
    let (mut bench, _) = Bench::usable(modest());
    bench.enable_roce(
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1],
    );
    bench.function.config_write(0x69, &[0xa8]); // initiate FLR through Device Control
    assert_eq!(bench.report().resets, 1);
    bench.initialise();
    let context = bench.exec(&QueryNicVportContextIn::new()).unwrap();
    assert!(!context.nic_vport_context().roce_en());
    let mut query = QueryRoceAddressIn::new();
    query.set_vhca_port_num(1);
    let gid = bench.exec(&query).unwrap();
    assert_eq!(gid.roce_address().source_l3_address(), &[0; 16]);
    assert!(
        bench.report().leaked.is_empty(),
        "a reset drops objects without blame"
    );
}

fn capability(bench: &mut Bench, op_mod: u32) -> [u8; 0x1000] {
    bench.capability(op_mod).unwrap()
}

fn set_capability(bench: &mut Bench, kind: CapType, page: &[u8; 0x1000]) -> CmdStatus {
    let mut set = SetHcaCapIn::new();
    set.set_op_mod(kind.set()).set_capability(page);
    bench.status(&set)
}

fn general(page: &[u8; 0x1000]) -> CmdHcaCap {
    CmdHcaCap::read_from_prefix(page).unwrap().0
}

fn page_of<T: Layout>(layout: &T) -> [u8; 0x1000] {
    let mut page = [0; 0x1000];
    page[..T::SIZE].copy_from_slice(layout.as_bytes());
    page
}

#[test]
fn current_returns_what_was_set_and_nothing_goes_above_the_maximum() {
    let mut bench = Bench::booted(modest());
    let mut caps = general(&capability(&mut bench, CapType::GENERAL.current()));
    let max = general(&capability(&mut bench, CapType::GENERAL.max()));
    caps.set_log_max_qp(17);
    assert_eq!(
        set_capability(&mut bench, CapType::GENERAL, &page_of(&caps)),
        CmdStatus::OK
    );
    assert_eq!(
        general(&capability(&mut bench, CapType::GENERAL.current())).log_max_qp(),
        17
    );
    caps.set_log_max_qp(max.log_max_qp() + 1);
    assert_eq!(
        set_capability(&mut bench, CapType::GENERAL, &page_of(&caps)),
        CmdStatus::BAD_PARAM
    );
    caps.set_log_max_qp(17).set_dct(true);
    assert_eq!(
        set_capability(&mut bench, CapType::GENERAL, &page_of(&caps)),
        CmdStatus::BAD_PARAM
    );
}

/// Returns the profile of a generation, changed to need few pages.
fn few_pages(name: &str) -> Profile {
    let mut profile = Profile::generation(name).unwrap();
    profile.pages = modest().pages;
    profile
}

/// SET_HCA_CAP can change exactly the fields that stock drivers write: those of Linux `main.c` `handle_hca_cap` and
/// rdma-core `mlx5_vfio.c` `handle_hca_cap`. A change of any other field is refused, even below its maximum.
#[test]
fn only_fields_that_stock_drivers_write_can_be_set() {
    let mut bench = Bench::booted(few_pages("connectx-5"));
    let mut caps = general(&capability(&mut bench, CapType::GENERAL.current()));
    let max = general(&capability(&mut bench, CapType::GENERAL.max()));
    caps.set_log_max_qp(18)
        .set_pkey_table_size(0)
        .set_cmdif_checksum(0)
        .set_log_uar_page_sz(4)
        .set_num_vhca_ports(max.num_vhca_ports())
        .set_log_max_current_uc_list(5)
        .set_roce(false);
    assert_eq!(
        set_capability(&mut bench, CapType::GENERAL, &page_of(&caps)),
        CmdStatus::OK
    );
    let changes: [fn(&mut CmdHcaCap); 5] = [
        |caps| _ = caps.set_xrc(false),
        |caps| _ = caps.set_log_max_cq(10),
        |caps| _ = caps.set_cqe_version(0),
        |caps| _ = caps.set_pg(false),
        |caps| _ = caps.set_driver_version(false),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut other = caps.clone();
        change(&mut other);
        assert_eq!(
            set_capability(&mut bench, CapType::GENERAL, &page_of(&other)),
            CmdStatus::BAD_PARAM,
            "change {number}"
        );
    }
    let kept = general(&capability(&mut bench, CapType::GENERAL.current()));
    assert_eq!(kept, caps, "a refusal changes nothing");
}

/// SET_HCA_CAP accepts capability bits without a field name only if they are unchanged. A recorded page has such bits,
/// and drivers write them back unchanged.
#[test]
fn bits_without_a_name_come_back_as_they_were() {
    let mut bench = Bench::booted(few_pages("connectx-4-lx-14.12"));
    let mut roce = capability(&mut bench, CapType::ROCE.current());
    assert_eq!(roce[0], 0x40, "as recorded");
    assert_eq!(
        set_capability(&mut bench, CapType::ROCE, &roce),
        CmdStatus::OK
    );
    for (at, byte) in [(0, 0), (0xfff, 1)] {
        roce[at] ^= 0x40 ^ byte;
        assert_eq!(
            set_capability(&mut bench, CapType::ROCE, &roce),
            CmdStatus::BAD_PARAM
        );
        roce[at] ^= 0x40 ^ byte;
    }
}

/// The second general page and the page of on-demand paging exist if the general page announces them. Linux writes
/// `sw_vhca_id_valid` of the second general page only if the device supports this field.
#[test]
fn the_newer_pages_exist_where_the_general_page_announces_them() {
    let mut bench = Bench::booted(few_pages("connectx-5"));
    for kind in [CapType::GENERAL_2, CapType::ODP] {
        let page = capability(&mut bench, kind.current());
        assert_eq!(
            set_capability(&mut bench, kind, &page),
            CmdStatus::OK,
            "{kind:?}"
        );
        assert_eq!(
            set_capability(&mut bench, kind, &[0xff; 0x1000]),
            CmdStatus::BAD_PARAM,
            "{kind:?}"
        );
    }
    let mut bench = Bench::booted(few_pages("connectx-4-lx-14.12"));
    for kind in [CapType::GENERAL_2, CapType::ODP] {
        let refused = Failure::Refused(CmdStatus::BAD_OP);
        assert_eq!(bench.capability(kind.current()), Err(refused), "{kind:?}");
    }
}

#[test]
fn the_atomic_page_may_come_zeroed_but_for_its_endianness_mode() {
    let mut bench = Bench::booted(modest());
    let before = capability(&mut bench, CapType::ATOMIC.current());
    let mut atomic = AtomicCaps::new();
    atomic.set_atomic_req_8B_endianness_mode(1);
    assert_eq!(
        set_capability(&mut bench, CapType::ATOMIC, &page_of(&atomic)),
        CmdStatus::OK
    );
    let after = AtomicCaps::read_from_prefix(&capability(&mut bench, CapType::ATOMIC.current()))
        .unwrap()
        .0;
    let before = AtomicCaps::read_from_prefix(&before).unwrap().0;
    assert_eq!(after.atomic_req_8B_endianness_mode(), 1);
    assert_eq!(after.atomic_operations(), before.atomic_operations());
    assert_eq!(after.atomic_size_qp(), 8);
}

#[test]
fn the_roce_page_takes_the_software_udp_port() {
    let mut bench = Bench::booted(modest());
    let mut roce = RoceCap::read_from_prefix(&capability(&mut bench, CapType::ROCE.current()))
        .unwrap()
        .0;
    assert!(!roce.sw_r_roce_src_udp_port());
    roce.set_sw_r_roce_src_udp_port(true);
    assert_eq!(
        set_capability(&mut bench, CapType::ROCE, &page_of(&roce)),
        CmdStatus::OK
    );
    roce.set_roce_version(7);
    assert_eq!(
        set_capability(&mut bench, CapType::ROCE, &page_of(&roce)),
        CmdStatus::BAD_PARAM
    );
}

#[test]
fn capabilities_are_set_before_init_only_and_other_pages_do_not_exist() {
    let mut bench = Bench::booted(modest());
    let page = capability(&mut bench, CapType::GENERAL.current());
    let refused = Err(Failure::Refused(CmdStatus::BAD_OP));
    assert_eq!(bench.capability(CapType::TLS.current()), refused);
    bench.bring_up();
    assert_eq!(
        set_capability(&mut bench, CapType::GENERAL, &page),
        BAD_STATE
    );
}

#[test]
fn driver_version_adapter_and_nop_are_answered() {
    let mut bench = Bench::initialised(modest());
    bench.exec(&SetDriverVersionIn::new()).unwrap();
    bench.exec(&NopIn::new()).unwrap();
    let adapter = bench.exec(&QueryAdapterIn::new()).unwrap();
    assert_eq!(adapter.query_adapter_struct().ieee_vendor_id(), 0x02c9);
}

/// Returns a function that wants three pages for an ALLOC_PD that was submitted.
fn starved() -> (Bench, Resources, Submission) {
    let (mut bench, mut resources) = Bench::usable(modest());
    bench.drain_eq(&mut resources.eq);
    let fault = Fault::PageStarvation { pages: 3 };
    bench.sim.inject(&bench.function, &fault);
    let submission = bench.prepare(AllocPdIn::new().as_bytes(), 16);
    bench.submit(&submission);
    (bench, resources, submission)
}

#[test]
fn pages_are_requested_at_run_time_and_creations_wait_for_them() {
    let (mut bench, mut resources, submission) = starved();
    assert!(bench.entry(submission.slot).ownership(), "held");
    let eqe = bench.next_eqe(&mut resources.eq).unwrap();
    assert_eq!(EventType(eqe.event_type()), EventType::PAGE_REQUEST);
    assert_eq!(eqe.event_data()[4..8], 3_u32.to_be_bytes());
    bench.exec(&NopIn::new()).expect("other commands go on");
    bench.give_pages(2);
    assert!(
        bench.entry(submission.slot).ownership(),
        "one page is missing"
    );
    bench.give_pages(1);
    assert_eq!(bench.collect(submission.slot).unwrap().1[0], 0);
}

#[test]
fn a_page_request_that_cannot_be_met_fails_the_creation() {
    let (mut bench, _, submission) = starved();
    bench.manage_pages(0, &[]).unwrap();
    let (delivery, output) = bench.collect(submission.slot).unwrap();
    assert_eq!(
        (delivery, CmdStatus(output[0])),
        (DeliveryStatus::OK, CmdStatus::NO_RESOURCES)
    );
    assert_eq!(bench.status(&AllocPdIn::new()), CmdStatus::OK);
}

#[test]
fn the_profile_asks_for_pages_once_the_page_eq_is_armed_and_can_give_some_back() {
    let mut profile = modest();
    profile.pages.runtime = 6;
    let (mut bench, mut resources) = Bench::usable(profile);
    assert_eq!(bench.drain_eq(&mut resources.eq), [EventType::PAGE_REQUEST]);
    bench.give_pages(6);
    bench.drain_eq(&mut resources.eq);
    assert!(bench.take_pages(10).is_empty());
    bench
        .sim
        .inject(&bench.function, &Fault::PageRequest { pages: -2 });
    let seen = bench.drain_eq(&mut resources.eq);
    assert!(seen.contains(&EventType::PAGE_REQUEST), "{seen:?}");
    assert_eq!(bench.take_pages(10).len(), 2);
}

#[test]
fn a_fatal_syndrome_shows_in_the_health_buffer_and_stops_commands() {
    let mut bench = Bench::initialised(modest());
    bench
        .sim
        .inject(&bench.function, &Fault::HealthSyndrome(0x01));
    assert_eq!(bench.bar.load_u8(0x23d), 1);
    assert_eq!(bench.read32(0x1010) >> 24, 1);
    let submission = bench.prepare(NopIn::new().as_bytes(), 16);
    bench.submit(&submission);
    assert_eq!(bench.collect(submission.slot), None);
    bench.function.reset();
    bench.sleep(Duration::from_millis(100));
    assert_eq!(bench.bar.load_u8(0x23d), 0, "a reset cures it");
}

#[test]
fn a_device_that_is_gone_reads_as_ones_everywhere() {
    let bench = Bench::initialised(modest());
    bench.sim.inject(&bench.function, &Fault::SurpriseRemoval);
    assert_eq!(bench.read32(0x230), u32::MAX);
    let mut id = [0; 4];
    bench.function.config_read(0, &mut id);
    assert_eq!(id, [0xff; 4]);
    bench.write32(0x18, 1);
    bench.sleep(Duration::from_secs(1));
    assert_eq!(bench.read32(0x230), u32::MAX);
}

#[test]
fn an_interrupt_raised_before_the_vectors_exist_is_delivered_when_they_do() {
    let mut bench = Bench::initialised(modest());
    let uar = bench.exec(&AllocUarIn::new()).unwrap().uar();
    bench.create_eq(uar, 1, 3, 8).unwrap();
    bench.exec(&NopIn::new()).unwrap();
    let vectors: Vec<_> = (0..4).map(|_| driver::Interrupt::new().unwrap()).collect();
    bench.function.set_interrupts(vectors.clone());
    assert!(vectors[3].is_pending());
    assert!(!vectors[0].is_pending());
}

#[test]
fn two_runs_of_one_seed_have_the_same_log() {
    let run = || {
        let (mut bench, mut resources) = Bench::usable(modest());
        bench
            .create_cq(resources.uar, resources.eq.number, 6)
            .unwrap();
        bench.create_pa_key(resources.pd);
        bench.drain_eq(&mut resources.eq);
        bench.sleep(Duration::from_millis(7));
        bench.log()
    };
    let first = run();
    assert!(first.lines().count() > 12, "{first}");
    assert_eq!(first, run());
}
