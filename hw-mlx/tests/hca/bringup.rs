//! Bring-up and teardown against a device double: the order of the steps, and the result if a device does not behave
//! as it should.

use std::time::Duration;

use driver::Device as _;
use hw_mlx::bringup::Step;
use hw_mlx::{CmdError, Hca, HcaConfig, MlxError};
use mlx_prm::{AllocPdIn, DeallocPdIn, NopIn, Pdn};

use crate::double::{Action, Double};

/// Commands of a bring-up and a teardown: opcode, op_mod and name. Up to INIT_HCA the order is mlx5_core's (recorded in
/// snabbco/snabb, `src/apps/mellanox/trace-mlx5_core.txt.gz`). The commands for the port follow rdma-core's VFIO driver
/// and mlx5_core. Teardown is in reverse order.
const BRING_UP: [(u16, u16, &str); 43] = [
    (0x104, 0, "ENABLE_HCA"),
    (0x10a, 0, "QUERY_ISSI"),
    (0x10b, 0, "SET_ISSI"),
    (0x107, 1, "QUERY_PAGES boot"),
    (0x108, 1, "MANAGE_PAGES give"),
    (0x805, 0, "HOST_ENDIANNESS"),
    (0x100, 0, "QUERY_HCA_CAP general, maximum"),
    (0x100, 1, "QUERY_HCA_CAP general, current"),
    (0x100, 8, "QUERY_HCA_CAP RoCE, maximum"),
    (0x100, 9, "QUERY_HCA_CAP RoCE, current"),
    (0x109, 0, "SET_HCA_CAP general"),
    (0x107, 2, "QUERY_PAGES init"),
    (0x108, 1, "MANAGE_PAGES give"),
    (0x102, 0, "INIT_HCA"),
    (0x107, 3, "QUERY_PAGES regular"),
    (0x10d, 0, "SET_DRIVER_VERSION"),
    (0x100, 0, "QUERY_HCA_CAP general, maximum"),
    (0x100, 1, "QUERY_HCA_CAP general, current"),
    (0x100, 8, "QUERY_HCA_CAP RoCE, maximum"),
    (0x100, 9, "QUERY_HCA_CAP RoCE, current"),
    (0x802, 0, "ALLOC_UAR"),
    (0x301, 0, "CREATE_EQ control"),
    (0x301, 0, "CREATE_EQ async"),
    (0x301, 0, "CREATE_EQ shared completions"),
    (0x301, 0, "CREATE_EQ completions"),
    (0x754, 0, "QUERY_NIC_VPORT_CONTEXT"),
    (0x755, 0, "MODIFY_NIC_VPORT_CONTEXT unicast list"),
    (0x754, 0, "QUERY_NIC_VPORT_CONTEXT unicast list"),
    (0x805, 1, "PMTU"),
    (0x755, 0, "MODIFY_NIC_VPORT_CONTEXT RoCE on"),
    (0x805, 1, "PAOS"),
    (0x750, 0, "QUERY_VPORT_STATE"),
    (0x761, 0, "SET_ROCE_ADDRESS 0"),
    (0x761, 0, "SET_ROCE_ADDRESS 1"),
    // Bring-up ends here. The caller sends no commands before teardown.
    (0x761, 0, "SET_ROCE_ADDRESS 1 cleared"),
    (0x761, 0, "SET_ROCE_ADDRESS 0 cleared"),
    (0x755, 0, "MODIFY_NIC_VPORT_CONTEXT unicast list empty"),
    (0x755, 0, "MODIFY_NIC_VPORT_CONTEXT RoCE off"),
    (0x302, 0, "DESTROY_EQ completions"),
    (0x302, 0, "DESTROY_EQ shared completions"),
    (0x302, 0, "DESTROY_EQ async"),
    (0x302, 0, "DESTROY_EQ control"),
    (0x803, 0, "DEALLOC_UAR"),
];
const TEAR_DOWN: [(u16, u16, &str); 3] = [
    (0x103, 0, "TEARDOWN_HCA"),
    (0x108, 2, "MANAGE_PAGES take"),
    (0x105, 0, "DISABLE_HCA"),
];

fn address(text: &str) -> hw_mlx::Address {
    text.parse::<std::net::IpAddr>().expect("an address").into()
}

fn config() -> HcaConfig {
    let mut config = HcaConfig::new();
    config.addresses.push(address("10.1.2.3"));
    config
}

#[test]
fn bring_up_and_teardown_send_the_checked_list_of_commands() {
    let double = Double::new();
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    let steps: Vec<Step> = hca
        .bringup_report()
        .steps
        .iter()
        .map(|(step, _)| *step)
        .collect();
    assert_eq!(steps, Step::ALL);
    let report = hca.close().expect("teardown");
    let seen: Vec<(u16, u16)> = double
        .state()
        .seen
        .iter()
        .map(|seen| (seen.opcode, seen.op_mod))
        .collect();
    let expected: Vec<(u16, u16)> = BRING_UP
        .iter()
        .chain(&TEAR_DOWN)
        .map(|(opcode, op_mod, _)| (*opcode, *op_mod))
        .collect();
    for (number, (seen, (opcode, op_mod, what))) in seen
        .iter()
        .zip(BRING_UP.iter().chain(&TEAR_DOWN))
        .enumerate()
    {
        assert_eq!(
            seen,
            &(*opcode, *op_mod),
            "command {number} should be {what}"
        );
    }
    assert_eq!(seen.len(), expected.len());
    assert_eq!(double.state().violations, [""; 0]);
    assert_eq!(
        (
            report.pages_given,
            report.pages_returned,
            report.pages_not_returned
        ),
        (73, 73, 0)
    );
    assert_eq!(report.objects_left, []);
    assert_eq!(report.commands, u64::try_from(expected.len()).expect("few"));
    assert!(double.state().pages.is_empty());
    let mut command = [0u8; 2];
    double.config_read(4, &mut command);
    assert_eq!(command[0] & 4, 0, "bus master is off");
}

#[test]
fn report_times_the_firmwares_boot() {
    let double = Double::new();
    double.boots_for(Duration::from_millis(700));
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    let report = hca.bringup_report();
    let boot = report
        .steps
        .iter()
        .find(|(step, _)| *step == Step::FirmwareReady)
        .expect("the step")
        .1;
    assert!(
        boot >= Duration::from_millis(690) && boot <= report.total,
        "{boot:?} of {:?}",
        report.total
    );
    assert_eq!(
        (report.boot_pages, report.init_pages, report.regular_pages),
        (3, 70, 0)
    );
}

#[test]
fn firmware_that_never_finishes_booting_is_given_up_after_two_minutes() {
    let double = Double::new();
    double.boots_for(Duration::from_secs(100_000));
    let begun = double.now();
    let error = Hca::open(double.function(), config()).expect_err("never ready");
    assert!(
        matches!(error, MlxError::Initializing { waited_ms: 120_000 }),
        "{error}"
    );
    assert_eq!(double.now() - begun, Duration::from_secs(120));
    assert!(double.state().seen.is_empty());
}

/// The driver reads no revision and writes no queue address before the firmware accepts them. Before that, registers
/// read as ones and written values are lost. Linux `mlx5_function_enable` waits likewise for "firmware to accept
/// initialization segments configurations".
#[test]
fn nothing_is_read_or_written_before_the_firmware_listens() {
    let double = Double::new();
    double.silent_until(double.now() + Duration::from_secs(1));
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    let waited = hca
        .bringup_report()
        .steps
        .iter()
        .find(|(step, _)| *step == Step::PreInitialized)
        .expect("the step")
        .1;
    assert!(waited >= Duration::from_millis(990), "{waited:?}");
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn a_function_whose_registers_stay_silent_is_given_up_after_two_minutes() {
    let double = Double::new();
    double.silent_until(double.now() + Duration::from_secs(100_000));
    let error = Hca::open(double.function(), config()).expect_err("silent");
    assert_eq!(
        error.to_string(),
        "the function's registers read all ones for 120000 ms: it does not boot, or is gone from the bus"
    );
    assert!(double.state().seen.is_empty());
}

#[test]
fn a_function_that_was_pulled_out_is_called_gone_at_once() {
    let double = Double::new();
    double.state().gone = true;
    let begun = double.now();
    let error = Hca::open(double.function(), config()).expect_err("gone");
    assert_eq!(
        error.to_string(),
        "the function is gone from the bus: its registers and its configuration space read all ones"
    );
    assert_eq!(double.now(), begun);
}

/// A command's time limit is the one that the device reports, but at least the configured one. The device reports
/// limits in `cmd_exec_to` and `cmd_q_init_to`, if `cmd_q_init_to` is not zero (Linux `lib/tout.c`
/// `mlx5_tout_query_iseg`).
#[test]
fn a_command_may_take_as_long_as_the_device_says_and_never_less_than_configured() {
    // `cmd_exec_to` of two minutes, and of 30 seconds.
    for (exec, waited) in [(0x4000_0002, 120_000), (0x2000_001e, 60_000)] {
        let double = Double::new();
        double.state().segment = vec![(0xff8, exec), (0xffc, 0x2000_0001)];
        let mut hca = Hca::open(double.function(), config()).expect("bring-up");
        double.rule(0x80d, Action::Hold);
        let error = hca.exec(&NopIn::new()).expect_err("no answer");
        assert!(
            matches!(error, CmdError::TimedOut { waited_ms, .. } if waited_ms == waited),
            "{exec:#x}: {error}"
        );
    }
}

/// The driver reads the register with the time that the firmware may take to return its pages, and waits at least that
/// long (Linux `lib/tout.c` `tout_query_dtor`).
#[test]
fn firmware_gets_the_time_it_asks_for_to_return_its_pages() {
    // The device asks for no time, so the minimum of five seconds applies. Then it asks for 30 seconds.
    for (asked, seconds) in [(0, 5), (0x2000_001e, 30)] {
        let double = Double::new();
        // This sets the capability dtor.
        double.state().caps.insert((0, 0x04), 1 << 29);
        double.state().reclaim_limit = asked;
        let hca = Hca::open(double.function(), config()).expect("bring-up");
        double.state().pages.clear();
        let begun = double.now();
        hca.close().expect("teardown");
        let waited = double.now() - begun;
        let limit = Duration::from_secs(seconds);
        assert!(
            (limit..limit + Duration::from_secs(1)).contains(&waited),
            "{asked:#x}: {waited:?}"
        );
    }
}

/// ENABLE_HCA, DISABLE_HCA, QUERY_PAGES and MANAGE_PAGES state whether the function is that of the adapter's own
/// processor (Linux `ecpf.c` `mlx5_read_embedded_cpu`, `mlx5_core_enable_hca`, `pagealloc.c` `mlx5_cmd_query_pages`).
#[test]
fn commands_about_the_function_say_that_it_is_the_adapters_own_processors() {
    for embedded in [false, true] {
        let double = Double::new();
        double.state().embedded_cpu = embedded;
        let hca = Hca::open(double.function(), config()).expect("bring-up");
        hca.close().expect("teardown");
        let state = double.state();
        for opcode in [0x104, 0x105, 0x107, 0x108] {
            let said: Vec<bool> = state
                .seen
                .iter()
                .filter(|seen| seen.opcode == opcode)
                .map(|seen| crate::double::argument_of(&seen.input, 8) >> 31 == 1)
                .collect();
            assert!(
                !said.is_empty() && said.iter().all(|said| *said == embedded),
                "{opcode:#x}: {said:?}"
            );
        }
    }
}

/// Bring-up succeeds if the device refuses SET_DRIVER_VERSION or the query of regular pages. Linux ignores the answer
/// to the first, and never sends the second.
#[test]
fn optional_steps_that_are_refused_are_survived() {
    for status in [0x02, 0x03] {
        let double = Double::new();
        double.rule(0x10d, Action::Refuse(status, 1));
        double.rule(0x107, Action::NoEvent);
        double.rule(0x107, Action::NoEvent);
        double.rule(0x107, Action::Refuse(status, 1));
        let hca = Hca::open(double.function(), config()).expect("bring-up");
        assert_eq!(hca.bringup_report().regular_pages, 0);
        hca.close().expect("teardown");
    }
}

#[test]
fn a_device_from_before_issis_is_told_what_is_needed() {
    let double = Double::new();
    double.rule(0x10a, Action::Refuse(0x02, 0));
    let text = Hca::open(double.function(), config())
        .expect_err("ISSI 0 only")
        .to_string();
    assert!(
        text.starts_with(
            "this driver needs ISSI 1, and the device does not know of ISSIs: QUERY_ISSI (0x10a"
        ),
        "{text}"
    );
}

/// Bring-up fails if the device does not keep the settings of SET_HCA_CAP. With another UAR page size, for example,
/// doorbells would go to the wrong page.
#[test]
fn what_set_hca_cap_told_is_compared_with_what_the_device_kept() {
    let double = Double::new();
    double.state().keeps_no_caps = true;
    double.state().caps.insert((0, 0x90), 4);
    let error = Hca::open(double.function(), config()).expect_err("not kept");
    assert_eq!(
        error.to_string(),
        "the device did not keep what SET_HCA_CAP set: log_uar_page_sz: set to 0, reads back 4; \
         cmdif_checksum: set to 0, reads back 3"
    );
}

/// Event queues have enough entries, because an overrun is fatal (health syndromes 0x0c and 0x0d). The one for
/// asynchronous events has as many as in Linux (`MLX5_NUM_ASYNC_EQE`), the one for an instance's completions has one
/// for each completion queue that may be armed. Both are limited to the maximum of the device.
#[test]
fn event_queues_have_room_for_what_can_be_armed() {
    for (log_most, sizes) in [
        (22, [8, 12, 8, 14]),
        (13, [8, 12, 8, 13]),
        (11, [8, 11, 8, 11]),
    ] {
        let double = Double::new();
        double
            .state()
            .caps
            .insert((0, 0x1c), log_most << 24 | 0x0018_0008);
        let _hca = Hca::open(double.function(), config()).expect("bring-up");
        let state = double.state();
        let made: Vec<u8> = state
            .seen
            .iter()
            .filter(|seen| seen.opcode == 0x301)
            .map(|seen| seen.input[0x1c] & 0x1f)
            .collect();
        assert_eq!(made, sizes);
        assert_eq!(state.violations, [""; 0]);
    }
}

/// The driver enables only the vectors that it uses. Every wait checks all enabled vectors, and a physical function
/// has hundreds.
#[test]
fn only_vectors_that_are_used_are_enabled() {
    let double = Double::new();
    double.set_vectors(1024);
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    // There are two vectors of the device, and the wakeup that other instances of the function signal.
    assert_eq!(hca.vectors(), 2 + 1);
}

#[test]
fn another_command_interface_is_refused_before_anything_is_written() {
    let double = Double::new();
    double.state().interface = 6 << 16;
    let error = Hca::open(double.function(), config()).expect_err("revision 6");
    assert_eq!(error.to_string(), "command interface revision 6, need 5");
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn a_queue_that_does_not_fit_its_page_is_refused() {
    for geometry in [0x66, 0x58, 0x00, 0x55, 0x06] {
        let double = Double::new();
        double.state().geometry = geometry;
        let error = Hca::open(double.function(), config()).expect_err("no queue");
        assert!(
            matches!(error, MlxError::CommandQueue { .. }),
            "{geometry:#x}: {error}"
        );
    }
}

#[test]
fn smaller_queues_with_wider_strides_are_fine() {
    for geometry in [0x16, 0x26, 0x48, 0x57] {
        let double = Double::new();
        double.state().geometry = geometry;
        let hca = Hca::open(double.function(), config()).expect("bring-up");
        hca.close().expect("teardown");
        let slots = 1 << (geometry >> 4);
        let state = double.state();
        assert_eq!(
            state.seen.iter().map(|seen| seen.slot).max(),
            Some(slots - 1)
        );
        assert!(
            state
                .seen
                .iter()
                .all(|seen| (seen.opcode == 0x108) == (seen.slot == slots - 1)),
            "only pages use the last slot"
        );
    }
}

#[test]
fn a_device_without_issi_1_is_refused_with_what_it_has() {
    let double = Double::new();
    double.state().issi = 0b101;
    let error = Hca::open(double.function(), config()).expect_err("ISSI");
    assert_eq!(
        error.to_string(),
        "ISSI 1 is not among the supported ones (0x5)"
    );
}

#[test]
fn missing_capabilities_are_all_named_in_one_error_before_anything_is_initialized() {
    let double = Double::new();
    double.state().caps.insert((0, 0x44), 0x0000_000e);
    double.state().caps.insert((0, 0x34), 0xc610_0001);
    double.state().caps.insert((4, 0x10), 0x0006_0001);
    let error = Hca::open(double.function(), config()).expect_err("lacking");
    assert_eq!(
        error.to_string(),
        "the device lacks: port_type: need 1 (Ethernet), the device has 0; rc: need 1, the device has 0; \
         roce_version: need bit 2 (RoCE v2), the device has 0x1"
    );
    assert!(
        double
            .state()
            .seen
            .iter()
            .all(|seen| seen.opcode != 0x109 && seen.opcode != 0x102)
    );
}

#[test]
fn a_command_refused_anywhere_in_bring_up_names_itself_and_leaves_the_bus_quiet() {
    // SET_DRIVER_VERSION, the state of the link, the address list and registers are optional, so they are left out.
    let opcodes: std::collections::BTreeSet<u16> = BRING_UP[..32]
        .iter()
        .map(|(opcode, ..)| *opcode)
        .filter(|opcode| ![0x10d, 0x750, 0x755, 0x805].contains(opcode))
        .collect();
    for opcode in opcodes {
        let double = Double::new();
        double.rule(opcode, Action::Refuse(0x04, 0xabc));
        let error = match Hca::open(double.function(), config()) {
            Ok(_) => panic!("{opcode:#x} was refused and nobody minded"),
            Err(error) => error,
        };
        let text = error.to_string();
        assert!(
            text.contains(&format!("({opcode:#05x}")) && text.contains("BAD_SYS_STATE"),
            "{opcode:#x}: {text}"
        );
        let mut command = [0u8; 2];
        double.config_read(4, &mut command);
        assert_eq!(command[0] & 4, 0, "{opcode:#x}: bus master is off");
        assert_eq!(double.state().violations, [""; 0]);
    }
}

/// The effective MTU is the smaller one of port and vport, because a frame must fit both. The driver sets both, and
/// continues if either is refused (Linux `en_main.c` `mlx5e_query_mtu`, `mlx5e_set_mtu`).
#[test]
fn the_mtu_is_the_smaller_one_of_port_and_vport_and_both_are_set() {
    let (none, fixed) = (None, true);
    for (port, vport, vport_fixed, asked, found) in [
        (Some(9022), 1522, false, none, 1522),
        (Some(1522), 9022, false, none, 1522),
        (Some(9022), 0, false, none, 9022),
        (None, 0, false, none, 1522),
        (None, 4222, false, none, 4222),
        (Some(1522), 1522, false, Some(4200), 4222),
        (None, 1522, false, Some(4200), 4222),
        (Some(1522), 1522, fixed, Some(4200), 1522),
    ] {
        let double = Double::new();
        (double.state().port_mtu, double.state().vport_mtu) = (port, vport);
        double.state().vport_mtu_fixed = vport_fixed;
        let mut config = config();
        config.port_mtu = asked;
        let hca = Hca::open(double.function(), config).expect("bring-up");
        let case = format!("port {port:?}, vport {vport}, asked for {asked:?}");
        assert_eq!(hca.port().mtu, found, "{case}");
        assert_eq!(hca.port().ip_mtu(), found - 22, "{case}");
        assert_eq!(hca.mtu(), if found >= 4214 { 5 } else { 3 }, "{case}");
    }
}

#[test]
fn a_function_without_access_to_the_mtu_register_uses_its_vports() {
    let double = Double::new();
    // The second ACCESS_REG accesses PMTU.
    double.rule(0x805, Action::NoEvent);
    double.rule(0x805, Action::Refuse(0x02, 0));
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    assert_eq!((hca.port().mtu, hca.mtu()), (1522, 3));
}

#[test]
fn a_device_with_one_vector_shares_it() {
    let double = Double::new();
    double.set_vectors(1);
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    hca.exec(&NopIn::new()).expect("NOP");
    let vectors: Vec<u8> = double
        .state()
        .seen
        .iter()
        .filter(|seen| seen.opcode == 0x301)
        .map(|seen| seen.input[0x27])
        .collect();
    assert_eq!(vectors, [0; 4]);
}

#[test]
fn completions_have_a_vector_of_their_own_where_there_are_two() {
    let double = Double::new();
    let _hca = Hca::open(double.function(), config()).expect("bring-up");
    let state = double.state();
    let eqs: Vec<(u8, u64)> = state
        .seen
        .iter()
        .filter(|seen| seen.opcode == 0x301)
        .map(|seen| {
            (
                seen.input[0x27],
                u64::from_be_bytes(seen.input[0x58..0x60].try_into().expect("8 bytes")),
            )
        })
        .collect();
    assert_eq!(eqs, [(0, 0x0c00), (0, 0x001f_02be), (0, 0), (1, 0)]);
}

#[test]
fn a_function_without_vectors_is_refused() {
    let double = Double::new();
    double.set_vectors(0);
    assert!(matches!(
        Hca::open(double.function(), config()),
        Err(MlxError::NoInterrupts)
    ));
}

#[test]
fn an_address_table_too_small_for_the_configuration_is_an_error_with_both_numbers() {
    let double = Double::new();
    double.state().caps.insert((4, 0x1c), 1);
    let error = Hca::open(double.function(), config()).expect_err("no room");
    assert_eq!(
        error.to_string(),
        "2 addresses, the RoCE address table holds 1"
    );
}

#[test]
fn a_page_count_beyond_reason_is_an_error_and_not_an_allocation() {
    let double = Double::new();
    double.state().wants.insert(2, 0x7fff_ffff);
    let error = Hca::open(double.function(), config()).expect_err("nonsense");
    assert_eq!(
        error.to_string(),
        "the device answered QUERY_PAGES num_pages = 0x7fffffff"
    );
}

/// The driver gives all pages of a request by one command. A recorded ConnectX-4 Lx took 12,868 pages in one
/// MANAGE_PAGES (snabbco/snabb, `trace-mlx5_core.txt.gz`), and no driver splits a request.
#[test]
fn pages_asked_for_at_once_are_given_by_one_command() {
    let double = Double::new();
    double.state().wants = [(1, 5000), (2, 12_868), (3, 4097)].into();
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    let gives: Vec<u32> = double
        .state()
        .seen
        .iter()
        .filter(|seen| (seen.opcode, seen.op_mod) == (0x108, 1))
        .map(|seen| crate::double::argument_of(&seen.input, 0x0c))
        .collect();
    assert_eq!(gives, [5000, 12_868, 4097]);
    assert_eq!(double.state().violations, [""; 0]);
    hca.close().expect("teardown");
}

#[test]
fn a_doorbell_page_outside_the_bar_is_an_error() {
    let double = Double::new();
    double.state().uar = 0x00ff_ffff;
    let error = Hca::open(double.function(), config()).expect_err("outside");
    assert!(matches!(error, MlxError::Bar(_)), "{error}");
}

#[test]
fn dropping_an_open_function_stops_its_dma_before_its_memory_is_freed() {
    let double = Double::new();
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    drop(hca);
    let mut command = [0u8; 2];
    double.config_read(4, &mut command);
    assert_eq!(command[0] & 4, 0);
}

#[test]
fn a_closed_function_can_be_opened_again() {
    let double = Double::new();
    let function = double.function();
    for _ in 0..3 {
        let hca = Hca::open(function.clone(), config()).expect("bring-up");
        hca.close().expect("teardown");
    }
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn objects_nobody_destroyed_are_reported_by_kind() {
    let double = Double::new();
    let mut hca = Hca::open(double.function(), config()).expect("bring-up");
    let first = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    hca.exec(&AllocPdIn::new()).expect("a PD");
    let mut input = DeallocPdIn::new();
    input.set_pd(Pdn::new(first).get());
    hca.exec(&input).expect("freed");
    let report = hca.close().expect("teardown");
    assert_eq!(report.objects_left, [("PD", 1)]);
}

#[test]
fn a_refused_teardown_still_stops_the_device_and_tells_what_was_refused() {
    let double = Double::new();
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    double.rule(0x302, Action::Refuse(0x09, 1));
    double.rule(0x103, Action::Refuse(0x01, 2));
    let failed = hca.close().expect_err("refused");
    assert!(
        failed
            .to_string()
            .contains("DESTROY_EQ (0x302, op_mod 0x0): refused: BAD_RES_STATE"),
        "{failed}"
    );
    assert_eq!(failed.report.pages_not_returned, 0);
    assert_eq!(double.state().seen.last().expect("a command").opcode, 0x105);
    assert_eq!(double.state().violations, [""; 0]);
}

#[test]
fn firmware_that_keeps_pages_is_given_up_after_five_seconds() {
    let double = Double::new();
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    // The firmware reports no pages, although it has 73.
    double.state().pages.clear();
    let begun = double.now();
    let report = hca.close().expect("teardown");
    assert_eq!((report.pages_returned, report.pages_not_returned), (0, 73));
    let took = double.now() - begun;
    assert!(
        took >= Duration::from_secs(5) && took < Duration::from_secs(6),
        "{took:?}"
    );
}

/// Every function announces its MAC to the e-switch and withdraws it at the end. The e-switch knows a vport's MAC only
/// from the vport's own list of unicast addresses (Linux `en_fs.c` `mlx5e_vport_context_update_addr_list`, `eswitch.c`
/// `esw_update_vport_addr_list`), and keeps it until the list changes.
#[test]
fn every_function_announces_its_mac_to_the_e_switch_and_takes_it_back() {
    for device in [0x1017, 0x1018] {
        let double = Double::new();
        double.set_device(device);
        let hca = Hca::open(double.function(), config()).expect("bring-up");
        assert_eq!(
            double.state().unicast,
            [[0, 0, 2, 0, 0x5e, 0, 0, 1]],
            "{device:#x}: the MAC, and nothing of what was there"
        );
        hca.close().expect("teardown");
        assert_eq!(double.state().unicast, [[0u8; 8]; 0], "{device:#x}");
        assert_eq!(double.state().violations, [""; 0]);
    }
}

/// If the list of unicast addresses reads back differently, bring-up succeeds and reports the difference. No public
/// source states that a virtual function can read its own list, so a device may keep the list without showing it.
#[test]
fn a_device_that_reads_another_list_than_was_written_is_used_and_the_difference_is_told() {
    let double = Double::new();
    double.state().forgets_lists = true;
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    let losses = &hca.bringup_report().losses;
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert_eq!(
        losses[0].why,
        "the vport's list of unicast addresses was set to [02:00:5e:00:00:01] and reads []"
    );
    assert!(
        losses[0].lost.contains("may not know our MAC"),
        "{losses:?}"
    );
    hca.close().expect("teardown");
}

/// The table entry of an address in a VLAN has `vlan_valid` and `vlan_id` set, as in `set_roce_addr` of Linux `main.c`
/// of mlx5_ib.
#[test]
fn an_address_in_a_vlan_is_entered_with_it() {
    let double = Double::new();
    let mut config = config();
    let vlan = |id, priority| Some(hw_mlx::Vlan { id, priority });
    config.addresses[0].vlan = vlan(100, 3);
    let hca = Hca::open(double.function(), config.clone()).expect("bring-up");
    assert_eq!(hca.gids()[1].address.vlan, vlan(100, 3));
    let words: Vec<u32> = double
        .state()
        .seen
        .iter()
        .filter(|seen| seen.opcode == 0x761)
        .map(|seen| crate::double::argument_of(&seen.input, 0x20))
        .collect();
    assert_eq!(words, [0x0200, 1 << 28 | 100 << 16 | 0x0200]);
}

#[test]
fn an_address_that_cannot_be_as_it_was_given_is_refused_with_what_was_given() {
    let ours = address("10.1.2.3");
    let vlan = |id, priority| hw_mlx::Address {
        vlan: Some(hw_mlx::Vlan { id, priority }),
        ..ours
    };
    let within = |prefix, gateway: Option<&str>| hw_mlx::Address {
        prefix,
        gateway: gateway.map(|gateway| address(gateway).address),
        ..ours
    };
    let no_gateway = "its gateway is not another address within its prefix";
    for (addresses, why) in [
        (
            vec![vlan(0, 3)],
            "address 10.1.2.3 in VLAN 0 with priority 3: VLANs are 1..=4094",
        ),
        (vec![vlan(4095, 3)], "VLANs are 1..=4094"),
        (vec![vlan(1, 8)], "priorities are 0..=7"),
        (
            vec![vlan(1, 0), vlan(2, 0)],
            "address 10.1.2.3 in VLAN 2 with priority 0: it is there already, and differs",
        ),
        (
            vec![within(Some(33), None)],
            "address 10.1.2.3/33: its prefix is longer than it",
        ),
        (
            vec![within(Some(24), Some("10.1.3.1"))],
            "address 10.1.2.3/24 over 10.1.3.1: its gateway",
        ),
        (vec![within(Some(24), Some("10.1.2.3"))], no_gateway),
        (vec![within(Some(24), Some("2001:db8::1"))], no_gateway),
        (vec![within(None, Some("10.1.2.1"))], no_gateway),
    ] {
        let mut config = config();
        config.addresses = addresses;
        let error = Hca::open(Double::new().function(), config).expect_err("no such address");
        assert!(error.to_string().contains(why), "{error}");
    }
    let mut config = config();
    let good = within(Some(24), Some("10.1.2.1"));
    config.addresses = vec![good];
    let hca = Hca::open(Double::new().function(), config).expect("bring-up");
    assert_eq!(hca.gids()[1].address, good);
}

/// The driver never writes the permanent MAC of its own vport. `permanent_address` is written by the e-switch manager
/// for other vports (Linux `vport.c` `mlx5_modify_nic_vport_mac_address`), by no driver for its own.
#[test]
fn no_mac_of_ours_is_written_as_the_permanent_one() {
    let configured = {
        let mut config = config();
        config.mac = Some([2, 3, 4, 5, 6, 7]);
        config
    };
    for (permanent, config) in [([0; 6], config()), ([2, 9, 9, 9, 9, 9], configured)] {
        let double = Double::new();
        double.state().mac = permanent;
        Hca::open(double.function(), config)
            .expect("bring-up")
            .close()
            .expect("teardown");
        let written = double
            .state()
            .seen
            .iter()
            .filter(|seen| seen.opcode == 0x755)
            .any(|seen| crate::double::argument_of(&seen.input, 0x0c) & 1 << 3 != 0);
        assert!(!written, "{permanent:02x?}");
    }
}

/// The MAC is the configured one; without one, the vport's own; without that, a random locally administered one (Linux
/// `en_main.c` `mlx5e_set_netdev_dev_addr`).
#[test]
fn a_vport_without_a_mac_gets_the_configured_or_a_random_local_one() {
    let open = |permanent, mac, seed| {
        let double = Double::new();
        double.state().mac = permanent;
        let mut config = config();
        config.mac = mac;
        config.seed = seed;
        let hca = Hca::open(double.function(), config).expect("bring-up");
        assert_eq!(hca.gids()[0].mac, hca.mac());
        let [_, _, listed @ ..] = double.state().unicast[0];
        assert_eq!(listed, hca.mac());
        hca.mac()
    };
    let configured = [2, 3, 4, 5, 6, 7];
    assert_eq!(open([0; 6], Some(configured), None), configured);
    assert_eq!(open([2, 9, 9, 9, 9, 9], Some(configured), None), configured);
    assert_eq!(open([2, 9, 9, 9, 9, 9], None, None), [2, 9, 9, 9, 9, 9]);
    let drawn = open([0; 6], None, Some(1));
    assert_eq!(drawn[0] & 3, 2, "local and of one station: {drawn:02x?}");
    assert_eq!(open([0; 6], None, Some(1)), drawn, "a seed repeats itself");
    assert_ne!(open([0; 6], None, Some(2)), drawn);
    assert_ne!(open([0; 6], None, None), open([0; 6], None, None));
}

#[test]
fn a_configured_mac_that_is_none_of_one_station_is_refused_before_anything_is_sent() {
    for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let double = Double::new();
        let mut config = config();
        config.mac = Some(mac);
        let error = Hca::open(double.function(), config).expect_err("no station's");
        assert!(
            error.to_string().starts_with("HcaConfig::mac is "),
            "{error}"
        );
        assert!(double.state().seen.is_empty());
    }
}

/// Without a configured owner id, the driver draws one. The firmware distinguishes driver instances by it (Linux
/// `main.c`, `sw_owner_id`, drawn at module load).
#[test]
fn the_owner_id_is_drawn_where_none_is_configured() {
    let owner = |configured, seed| {
        let double = Double::new();
        // This sets the capability sw_owner_id.
        double.state().caps.insert((0, 0xc0), 0b10);
        let mut config = config();
        (config.owner_id, config.seed) = (configured, seed);
        let _hca = Hca::open(double.function(), config).expect("bring-up");
        let state = double.state();
        let init = state.seen.iter().find(|seen| seen.opcode == 0x102);
        init.expect("INIT_HCA").input[0x10..0x20].to_vec()
    };
    assert_eq!(owner(Some([7; 16]), None), [7; 16]);
    let drawn = owner(None, Some(1));
    assert_ne!(drawn, [0; 16]);
    assert_eq!(owner(None, Some(1)), drawn, "a seed repeats itself");
    assert_ne!(owner(None, None), owner(None, None));
}

#[test]
fn an_e_switch_manager_announces_its_mac_to_the_port_and_takes_it_back() {
    let double = Double::new();
    double.state().caps.insert((0, 0x34), 0xc710_0101);
    double.state().caps.insert((0, 0x90), 0x1000_0000);
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    hca.close().expect("teardown");
    let state = double.state();
    let set = state
        .seen
        .iter()
        .find(|seen| seen.opcode == 0x829)
        .expect("SET_L2_TABLE_ENTRY");
    assert_eq!(set.input[0x20..0x28], [0, 0, 2, 0, 0x5e, 0, 0, 1]);
    assert!(state.seen.iter().any(|seen| seen.opcode == 0x82b));
    assert_eq!(state.violations, [""; 0]);
}

#[test]
fn a_virtual_function_does_not_write_the_hosts_byte_order() {
    let double = Double::new();
    double.set_device(0x1018);
    let hca = Hca::open(double.function(), config()).expect("bring-up");
    assert_eq!(hca.device_id(), 0x1018);
    let state = double.state();
    let registers: Vec<u8> = state
        .seen
        .iter()
        .filter(|seen| seen.opcode == 0x805)
        .map(|seen| seen.input[0x0a])
        .collect();
    assert_eq!(registers, [0x50], "only PMTU");
}

#[test]
fn firmware_that_needs_more_pages_than_allowed_does_not_come_up() {
    let double = Double::new();
    let mut config = config();
    config.firmware_pages = Some(72);
    let error = Hca::open(double.function(), config).expect_err("too many");
    assert_eq!(
        error.to_string(),
        "the firmware asks for 70 pages, HcaConfig::firmware_pages leaves 69"
    );
}

/// Each answer of a bring-up in turn is replaced by noise. The driver may refuse the device or continue, but does not
/// panic, access memory that it should not, or leave the device running.
#[test]
fn noise_for_an_answer_is_survived_wherever_it_comes() {
    let mut refused = 0;
    for opcode in [
        0x104, 0x10a, 0x10b, 0x107, 0x108, 0x805, 0x100, 0x109, 0x102, 0x10d, 0x802, 0x301, 0x754,
        0x755, 0x750, 0x761,
    ] {
        for seed in 0..40 {
            let double = Double::new();
            // The noise is the answer to the first, second, ... command with this opcode.
            for _ in 0..seed % 4 {
                double.rule(opcode, Action::NoEvent);
            }
            double.rule(opcode, Action::Noise(seed << 16 | u64::from(opcode)));
            let mut config = config();
            config.firmware_pages = Some(2000);
            config.command_timeout = Duration::from_secs(2);
            match Hca::open(double.function(), config) {
                Ok(mut hca) => {
                    // If the event queue got another number, its events do not arrive, and commands time out.
                    let _ = hca.exec(&NopIn::new());
                    let _ = hca.close();
                }
                Err(_) => refused += 1,
            }
            let mut command = [0u8; 2];
            double.config_read(4, &mut command);
            assert_eq!(
                command[0] & 4,
                0,
                "{opcode:#x}, seed {seed}: bus master is off"
            );
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn noise_for_events_is_survived() {
    for seed in 0..200 {
        let double = Double::new();
        let mut config = config();
        config.firmware_pages = Some(500);
        let mut hca = Hca::open(double.function(), config).expect("bring-up");
        let mut noise = crate::double::Noise(seed);
        for _ in 0..100 {
            let mut eqe = [0u8; 64];
            eqe.fill_with(|| noise.byte());
            eqe[1] &= 0x1f;
            let eqn = 1 + noise.byte() % 3;
            double.state().event_to(eqn, eqe);
            hca.process_events();
            while hca.next_async().is_some() {}
        }
        hca.exec(&NopIn::new()).expect("still working");
        assert_eq!(double.state().violations, [""; 0], "seed {seed}");
    }
}
