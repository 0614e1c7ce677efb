//! Bring-up, commands and teardown against the register-level simulator. The simulator refuses everything that
//! hardware refuses, and reports driver errors that hardware would not show.

use std::sync::Arc;
use std::time::Duration;

use driver::{Device, Function};
use hw_mlx::{AsyncEvent, CmdError, DeadCause, Hca, HcaConfig, MlxError};
use hw_sim::Fault;
use hw_sim::profile::Profile;
use hw_sim::{CardConfig, Sim, SimConfig, SimFunction};
use mlx_prm::{
    AccessRegIn, AllocPdIn, DeallocPdIn, NopIn, Paos, QueryNicVportContextIn, QueryRoceAddressIn,
    RegisterId,
};
use zerocopy::{FromBytes, IntoBytes};

struct World {
    sim: Sim,
    function: Arc<SimFunction>,
}

fn world(profile: Profile) -> World {
    let sim = Sim::new(SimConfig::default());
    let function = sim.add_function(profile);
    World { sim, function }
}

impl World {
    fn driver_function(&self) -> Function {
        Function::in_process(Arc::clone(&self.function) as Arc<dyn Device>).expect("a function")
    }

    fn open(&self, config: HcaConfig) -> Result<Hca, MlxError> {
        Hca::open(self.driver_function(), config)
    }

    fn hca(&self) -> Hca {
        self.open(config()).expect("bring-up")
    }

    fn inject(&self, fault: Fault) {
        self.sim.inject(&self.function, &fault);
    }

    /// Checks that the function leaked nothing, holds nothing, had no DMA fault and saw no driver error.
    fn assert_clean(&self) {
        let report = self.sim.report(&self.function);
        assert!(
            report.is_clean() && report.refused.is_empty(),
            "{report:#?}"
        );
    }

    fn bus_master(&self) -> bool {
        let mut command = [0u8; 2];
        self.function.config_read(4, &mut command);
        command[0] & 4 != 0
    }
}

fn address(text: &str) -> hw_mlx::Address {
    text.parse::<std::net::IpAddr>().expect("an address").into()
}

fn config() -> HcaConfig {
    let mut config = HcaConfig::new();
    config.addresses.push(address("10.1.2.3"));
    config.addresses.push(address("2001:db8::7"));
    config
}

#[test]
fn a_function_comes_up_and_goes_down_without_a_trace() {
    let world = world(Profile::default());
    let hca = world.hca();
    let given = hca.page_counts().given;
    assert!(given > 0);
    let report = hca.close().expect("teardown");
    assert_eq!(
        (
            report.pages_given,
            report.pages_returned,
            report.pages_not_returned
        ),
        (given, given, 0)
    );
    assert_eq!(report.objects_left, []);
    assert!(!world.bus_master());
    world.assert_clean();
}

#[test]
fn a_function_comes_up_with_signatures_checked_on_both_sides() {
    let world = world(Profile::default());
    let mut config = config();
    config.command_checksums = true;
    let mut hca = world.open(config).expect("bring-up");
    assert_eq!(hca.caps().general().cmdif_checksum(), 3);
    for _ in 0..300 {
        let mut input = DeallocPdIn::new();
        input.set_pd(hca.exec(&AllocPdIn::new()).expect("a PD").pd());
        hca.exec(&input).expect("freed");
    }
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn a_function_with_one_vector_comes_up() {
    let world = world(Profile {
        msix_vectors: 1,
        ..Profile::default()
    });
    let mut hca = world.hca();
    hca.exec(&NopIn::new()).expect("NOP");
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn commands_that_take_time_are_waited_for_polled_and_by_event() {
    let world = world(Profile {
        command_time: Duration::from_millis(3),
        ..Profile::default()
    });
    let mut hca = world.hca();
    let begun = hca.now();
    hca.exec(&NopIn::new()).expect("NOP");
    assert_eq!(hca.now() - begun, Duration::from_millis(3));
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn an_infiniband_port_is_refused_with_what_it_lacks() {
    let world = world(Profile::default().infiniband());
    let error = world.open(config()).expect_err("InfiniBand");
    let text = error.to_string();
    assert!(text.starts_with("the device lacks: port_type: need 1 (Ethernet), the device has 0; roce: need 1, or settable"), "{text}");
    assert!(!world.bus_master());
}

#[test]
fn what_can_be_switched_on_is_on_after_bring_up() {
    let world = world(Profile::default());
    let hca = world.hca();
    assert_eq!(hca.caps().udp_source_port(), Some(0xc000));
    assert!(hca.caps().atomics_in_host_order());
    assert_eq!(hca.caps().general().cmdif_checksum(), 0);
    assert_eq!(hca.caps().limits().gids, 255);
}

#[test]
fn more_queue_pairs_are_there_when_asked_for() {
    let world = world(Profile::default());
    let mut config = config();
    config.log_max_qp = Some(17);
    let hca = world.open(config).expect("bring-up");
    assert_eq!(hca.caps().limits().qps, 1 << 17);
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn the_address_table_and_the_vport_hold_what_the_configuration_says() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    let gids: Vec<String> = hca
        .gids()
        .iter()
        .map(|entry| entry.address.address.to_string())
        .collect();
    assert_eq!(gids, ["fe80::5eff:fe10:1", "10.1.2.3", "2001:db8::7"]);
    for entry in hca.gids().to_vec() {
        let mut input = QueryRoceAddressIn::new();
        input
            .set_roce_address_index(u32::from(entry.index))
            .set_vhca_port_num(1);
        let output = hca.exec(&input).expect("an entry");
        let address = output.roce_address();
        assert_eq!(address.source_l3_address(), &entry.gid);
        assert_eq!(
            (address.roce_version(), address.roce_l3_type()),
            (2, u32::from(entry.address.address.is_ipv6()))
        );
        assert_eq!(
            (address.source_mac_47_32(), address.source_mac_31_0()),
            (0x0200, 0x5e10_0001)
        );
    }
    let vport = hca.exec(&QueryNicVportContextIn::new()).expect("the vport");
    assert!(vport.nic_vport_context().roce_en());
    assert!(!vport.nic_vport_context().disable_uc_local_lb());
    assert_eq!(hca.mac(), [0x02, 0x00, 0x5e, 0x10, 0x00, 0x01]);
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn loopback_is_switched_off_where_asked() {
    let world = world(Profile::default());
    let mut config = config();
    config.loopback = false;
    let mut hca = world.open(config).expect("bring-up");
    let vport = hca.exec(&QueryNicVportContextIn::new()).expect("the vport");
    assert!(
        vport.nic_vport_context().disable_uc_local_lb()
            && vport.nic_vport_context().disable_mc_local_lb()
    );
}

#[test]
fn the_port_takes_the_mtu_asked_for_and_no_more_than_it_can() {
    for (asked, code) in [(1500, 3), (4200, 5), (u16::MAX, 5), (600, 1)] {
        let world = world(Profile::default());
        let mut config = config();
        config.port_mtu = Some(asked);
        let hca = world.open(config).expect("bring-up");
        assert_eq!(
            hca.mtu(),
            code,
            "MTU {asked}: the port has {}",
            hca.port().mtu
        );
        hca.close().expect("teardown");
        world.assert_clean();
    }
}

#[test]
fn the_firmwares_requests_for_pages_are_met_in_both_directions_and_end_balanced() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    let before = hca.page_counts();
    for pages in [700, -300, 9000, -9400] {
        world.inject(Fault::PageRequest { pages });
        while hca.wait(hca.now()).expect("alive") {}
    }
    let after = hca.page_counts();
    assert_eq!(
        (
            after.given - before.given,
            after.returned - before.returned,
            after.foreign
        ),
        (9700, 9700, 0)
    );
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn a_command_that_waits_for_pages_gets_them_and_finishes() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    let before = hca.page_counts().given;
    world.inject(Fault::PageStarvation { pages: 123 });
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    assert_eq!(hca.page_counts().given, before + 123);
    let mut input = DeallocPdIn::new();
    input.set_pd(pd);
    hca.exec(&input).expect("freed");
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn every_command_of_bring_up_may_stay_unanswered_and_the_error_names_it() {
    for opcode in [
        0x104, 0x107, 0x108, 0x100, 0x109, 0x102, 0x802, 0x301, 0x755, 0x761,
    ] {
        let world = world(Profile::default());
        world.inject(Fault::CommandSilence {
            opcode: Some(opcode),
            count: 1,
        });
        let error = world.open(config()).expect_err("silence");
        assert!(
            matches!(&error, MlxError::Cmd(CmdError::TimedOut { opcode: found, waited_ms: 60_000, .. }) if found.0 == opcode),
            "{error}"
        );
        assert!(!world.bus_master(), "{opcode:#x}");
        let report = world.sim.report(&world.function);
        assert!(
            report.dma_faults.is_empty() && report.driver_bugs.is_empty(),
            "{opcode:#x}: {report:#?}"
        );
    }
}

#[test]
fn a_slow_command_is_late_and_not_lost() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    world.inject(Fault::CommandDelay {
        opcode: Some(0x80d),
        delay: Duration::from_secs(59),
        count: 1,
    });
    hca.exec(&NopIn::new()).expect("late");
    world.inject(Fault::CommandDelay {
        opcode: Some(0x80d),
        delay: Duration::from_secs(61),
        count: 1,
    });
    let error = hca.exec(&NopIn::new()).expect_err("too late");
    assert!(matches!(error, CmdError::TimedOut { .. }), "{error}");
    assert_eq!(hca.slots_quarantined(), 1);
    hca.wait(hca.now() + Duration::from_secs(2)).expect("alive");
    assert_eq!(hca.slots_quarantined(), 0);
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn every_fault_that_kills_the_device_is_noticed_and_unwound() {
    let rows = [
        (
            Fault::HealthSyndrome(0x08),
            DeadCause::Syndrome { synd: 0x08 },
        ),
        (Fault::BarAllOnes, DeadCause::Gone),
        (Fault::SurpriseRemoval, DeadCause::Gone),
        (Fault::BusError, DeadCause::BusError),
    ];
    for (fault, cause) in rows {
        let world = world(Profile::default());
        let mut hca = world.hca();
        hca.exec(&AllocPdIn::new()).expect("a PD");
        world.inject(fault.clone());
        let error = hca
            .wait(hca.now() + Duration::from_secs(10))
            .expect_err("dead");
        match (&error, cause) {
            // The firmware's behaviour when it fails determines which of the two sensors reports first.
            (
                MlxError::Dead(DeadCause::Syndrome { .. } | DeadCause::ResetRequired { .. }),
                DeadCause::Syndrome { .. },
            ) => {}
            (MlxError::Dead(found), cause) => assert_eq!(*found, cause, "{fault:?}"),
            (error, _) => panic!("{fault:?}: {error}"),
        }
        assert!(
            matches!(hca.next_async(), Some(AsyncEvent::DeviceDead { .. })),
            "{fault:?}"
        );
        assert!(
            matches!(hca.exec(&AllocPdIn::new()), Err(CmdError::Dead { .. })),
            "{fault:?}"
        );
        let report = hca.close().expect("unwound");
        assert!(
            report.dead.is_some() && report.objects_left == [("PD", 1)],
            "{fault:?}: {report:?}"
        );
    }
}

/// The driver notices within a second that another program has reset the function, as
/// `echo 1 > /sys/bus/pci/devices/…/reset` does. Configuration space is as before and the counter still moves, but
/// commands are not answered.
#[test]
fn a_reset_that_somebody_else_asked_for_is_noticed_within_a_second() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    hca.exec(&AllocPdIn::new()).expect("a PD");
    let mut command = [0; 2];
    world.function.config_read(4, &mut command);
    world.function.reset();
    world.function.config_write(4, &command);
    let begun = hca.now();
    let error = hca.wait(begun + Duration::from_secs(30)).expect_err("dead");
    assert!(
        matches!(error, MlxError::Dead(DeadCause::ResetByOthers)),
        "{error}"
    );
    assert!(hca.now() - begun <= Duration::from_secs(1));
    let begun = hca.now();
    let report = hca.close().expect("unwound");
    assert_eq!(report.dead, Some(DeadCause::ResetByOthers));
    assert!(
        world.sim.clock().now() - begun < Duration::from_secs(60),
        "no command is waited for"
    );
}

#[test]
fn a_function_that_is_wanted_back_says_so_once_and_works_on() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    world.inject(Fault::WantedBack);
    assert!(
        hca.wait(hca.now() + Duration::from_secs(10))
            .expect("alive")
    );
    assert_eq!(hca.next_async(), Some(AsyncEvent::DeviceRequested));
    // The system repeats its notice. The repetition does not wake a sleeping instance.
    world.inject(Fault::WantedBack);
    assert!(!hca.wait(hca.now() + Duration::from_secs(3)).expect("alive"));
    assert_eq!(hca.next_async(), None);
    hca.exec(&AllocPdIn::new()).expect("a PD");
    let report = hca.close().expect("teardown");
    assert_eq!(report.dead, None);
}

#[test]
fn what_the_system_says_is_heard_by_those_who_never_sleep() {
    for (fault, dead) in [(Fault::WantedBack, false), (Fault::BusError, true)] {
        let world = world(Profile::default());
        let mut hca = world.hca();
        world.inject(fault);
        world.sim.advance(Duration::from_secs(2));
        hca.process_events();
        assert_eq!(hca.next_async(), None, "no system call is made for it");
        hca.check_health();
        assert!(hca.next_async().is_some());
        assert_eq!(hca.is_dead(), dead);
    }
}

/// A device whose health counter stops and moves again is not dead. Busy firmware may stop the counter for seconds;
/// Linux only reports that (`poll_health`).
#[test]
fn a_health_counter_that_stalls_is_not_death() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    // 30 seconds are more than the ten after which the driver sends a command. The answer shows that the device lives.
    for seconds in [5, 30] {
        world.inject(Fault::HealthCounterStalls(Duration::from_secs(seconds)));
        let end = hca.now() + Duration::from_secs(2 * seconds);
        while hca.now() < end {
            hca.wait(end).expect("alive");
        }
        assert_eq!(hca.next_async(), None);
    }
    hca.exec(&NopIn::new()).expect("NOP");
    hca.close().expect("teardown");
    world.assert_clean();
}

/// Bring-up waits for a function that takes seconds after its reset. Until `initializing` clears, the BAR reads as
/// ones, then as zeros, and loses written values. Linux waits for that too (`mlx5_function_enable`,
/// "pre-initializing").
#[test]
fn a_function_that_takes_seconds_to_come_out_of_its_reset_is_waited_for() {
    let world = world(Profile {
        silent_time: Duration::from_secs(1),
        deaf_time: Duration::from_secs(2),
        boot_time: Duration::from_secs(3),
        ..Profile::default()
    });
    let hca = world.hca();
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn a_health_counter_that_stops_is_death() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    assert!(
        !hca.wait(hca.now() + Duration::from_secs(20))
            .expect("alive")
    );
    world.inject(Fault::HealthCounterStops);
    let begun = hca.now();
    let error = hca.wait(begun + Duration::from_secs(30)).expect_err("dead");
    assert!(
        matches!(error, MlxError::Dead(DeadCause::CounterStuck { .. })),
        "{error}"
    );
    assert!(hca.now() - begun <= Duration::from_secs(22));
}

/// Queue pairs have a counter set (ALLOC_Q_COUNTER) if `max_qp_cnt` announces counters. Bring-up succeeds if the device
/// refuses the command.
#[test]
fn queue_pairs_have_counters_of_their_own() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    let counters = hca.queue_counters().expect("counters").expect("a set");
    assert_eq!(counters.out_of_sequence(), 0);
    hca.close().expect("teardown");
    world.assert_clean();
    world.inject(Fault::CommandFailure {
        opcode: Some(0x771),
        status: 0x0f,
        syndrome: 0,
        count: 1,
    });
    let mut hca = world.hca();
    assert!(hca.queue_counters().expect("no command").is_none());
    hca.close().expect("teardown");
}

#[test]
fn the_port_going_down_and_up_is_told() {
    let world = world(Profile::default());
    let mut hca = world.hca();
    assert!(hca.port().link_up);
    world.inject(Fault::LinkDown);
    world.inject(Fault::LinkUp);
    // One second is longer than the link takes to train.
    let trained = hca.now() + Duration::from_secs(1);
    while hca.wait(trained).expect("alive") {}
    assert_eq!(hca.next_async(), Some(AsyncEvent::PortDown));
    assert_eq!(hca.next_async(), Some(AsyncEvent::PortUp));
    assert_eq!(hca.next_async(), None);
}

#[test]
fn a_function_dropped_open_comes_up_again() {
    let world = world(Profile::default());
    drop(world.hca());
    assert!(!world.bus_master());
    world.hca().close().expect("teardown");
    let report = world.sim.report(&world.function);
    assert!(
        report.dma_faults.is_empty() && report.driver_bugs.is_empty(),
        "{report:#?}"
    );
}

/// Returns the vport's list of unicast addresses, as the device encodes it.
fn announced(hca: &mut Hca) -> Vec<u8> {
    let (vport, list) = hca
        .exec_reading(&QueryNicVportContextIn::new(), &[], 8 * 16)
        .expect("the vport");
    let entries = usize::try_from(vport.nic_vport_context().allowed_list_size()).expect("few");
    list[..8 * entries].to_vec()
}

/// A configured MAC is entered in the list from which the e-switch forwards. The vport's permanent MAC is unchanged.
#[test]
fn a_mac_of_our_choice_is_announced_and_the_permanent_one_stays() {
    let world = world(Profile::default());
    let mut config = config();
    config.mac = Some([2, 0, 0, 0, 0, 0x99]);
    let mut hca = world.open(config).expect("bring-up");
    assert_eq!(hca.mac(), [2, 0, 0, 0, 0, 0x99]);
    assert_eq!(announced(&mut hca), [0, 0, 2, 0, 0, 0, 0, 0x99]);
    let vport = hca.exec(&QueryNicVportContextIn::new()).expect("the vport");
    let permanent = vport.nic_vport_context().permanent_address().clone();
    assert_eq!(
        (permanent.mac_addr_47_32(), permanent.mac_addr_31_0()),
        (0x0200, 0x5e10_0001)
    );
    hca.close().expect("teardown");
    world.assert_clean();
}

#[test]
fn a_function_without_a_mac_draws_and_announces_one() {
    let world = world(Profile {
        mac: [0; 6],
        ..Profile::default()
    });
    let mut hca = world.hca();
    let mac = hca.mac();
    assert_eq!(mac[0] & 3, 2, "{mac:02x?}");
    assert_eq!(announced(&mut hca)[2..], mac);
    hca.close().expect("teardown");
    world.assert_clean();
}

/// `port_qos` returns the settings that the function may read: the physical function all of them, a virtual function
/// the pause and congestion settings but neither QPTS nor QPDPM.
#[test]
fn what_the_port_does_with_priorities_is_told_as_far_as_a_function_may_ask() {
    let sim = Sim::new(SimConfig::default());
    let mut profile = Profile::default();
    profile.general.set(|page| {
        page.set_cc_query_allowed(true);
    });
    let card = sim.add_card(&CardConfig::new(profile, 1));
    let mut set = hw_sim::PortQos {
        paused_priorities: (0x08, 0x88),
        trust: mlx_prm::TrustState::DSCP,
        congestion: (0x08, 0x18),
        cnp: (48, 6),
        ..hw_sim::PortQos::default()
    };
    set.priorities[26] = 3;
    card.set_qos(set.clone());
    let open = |function: Arc<SimFunction>| {
        let function = Function::in_process(function as Arc<dyn Device>).expect("a function");
        Hca::open(function, config()).expect("bring-up")
    };
    let mut physical = open(card.physical());
    let told = physical.port_qos().expect("it answers");
    let flow = told.flow_control.expect("it is told");
    assert_eq!(
        (
            flow.pause_sent,
            flow.pause_obeyed,
            flow.priorities_sent,
            flow.priorities_obeyed
        ),
        (false, false, 0x08, 0x88)
    );
    assert_eq!(told.trust, Some(mlx_prm::TrustState::DSCP));
    assert_eq!(told.dscp_priorities, Some(set.priorities));
    let congestion = told.congestion.expect("it is told");
    assert_eq!((congestion.reacts, congestion.notifies), (0x08, 0x18));
    assert_eq!(
        (congestion.cnp_dscp, congestion.cnp_priority),
        (Some(48), Some(6))
    );

    // Of the registers that `port_qos` reads, a virtual function may read only PFCC.
    let mut virtual_one = open(card.virtual_function(0).expect("one"));
    let told = virtual_one.port_qos().expect("it answers");
    assert_eq!(told.flow_control, Some(flow));
    assert_eq!((told.trust, told.dscp_priorities), (None, None));
    // The queries of congestion control are commands, and this card's firmware permits them to all functions.
    assert_eq!(told.congestion, Some(congestion));
    virtual_one.close().expect("teardown");
    physical.close().expect("teardown");
}

/// Reads the administrative state of the port, or writes it, as another driver would.
fn paos(hca: &mut Hca, switch: Option<u32>) -> u32 {
    let mut input = AccessRegIn::new();
    input
        .set_op_mod(u32::from(switch.is_none()))
        .set_register_id(RegisterId::PAOS.bits());
    let mut register = Paos::new();
    register.set_local_port(1);
    if let Some(status) = switch {
        register.set_admin_status(status).set_ase(true);
    }
    let (_, image) = hca
        .exec_reading(&input, register.as_bytes(), Paos::SIZE)
        .expect("ACCESS_REG");
    Paos::read_from_bytes(&image).expect("PAOS").admin_status()
}

/// A port that an earlier driver has left administratively down is up while our driver has the function, and down
/// afterwards. The kernel's driver leaves it down (Linux `en_main.c` `mlx5e_close`). The state belongs to the card and
/// survives resets.
#[test]
fn a_port_that_the_driver_before_left_switched_off_is_on_while_ours_is_there() {
    const UP: u32 = 1;
    const DOWN: u32 = 2;
    let sim = Sim::new(SimConfig::default());
    let card = sim.add_card(&CardConfig::new(Profile::default(), 1));
    let virtual_function = card.virtual_function(0).expect("one");
    let open = |function: &Arc<SimFunction>| {
        let device = Arc::clone(function) as Arc<dyn Device>;
        let function = Function::in_process(device).expect("a function");
        Hca::open(function, config()).expect("bring-up")
    };
    let mut watcher = open(&virtual_function);
    let mut before = open(&card.physical());
    assert_eq!(paos(&mut before, Some(DOWN)), DOWN);
    before.close().expect("teardown");
    assert_eq!(paos(&mut watcher, None), DOWN);

    let ours = open(&card.physical());
    assert_eq!(paos(&mut watcher, None), UP);
    ours.close().expect("teardown");
    assert_eq!(paos(&mut watcher, None), DOWN, "left as it was found");

    // Our driver does not switch a port off that was on before.
    let mut before = open(&card.physical());
    assert_eq!(paos(&mut before, Some(UP)), UP);
    drop(before);
    open(&card.physical()).close().expect("teardown");
    assert_eq!(paos(&mut watcher, None), UP);
}
