//! Tests of the port's registers and commands for priorities and congestion, of their permissions and limits, and of
//! their effects on packets.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use hw_sim::switch::{Pfc, SwitchConfig, TrafficClasses};
use hw_sim::{Connector, LinkFaults, NotConnected, PortQos, Sim, SimConfig, SwitchId};
use mlx_prm::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::bench::{Bench, Failure, READ, WRITE, modest};
use crate::side::Side;
use crate::strict::usable;

/// The port reports its trust state and its DSCP mapping (QPTS, QPDPM), but refuses writes of these registers, even by
/// the physical function.
#[test]
fn the_port_tells_its_priorities_and_takes_none() {
    let (mut bench, _) = usable();
    let mut qpts = Qpts::new();
    qpts.set_local_port(1);
    let told = bench.register(RegisterId::QPTS, READ, qpts.as_bytes());
    assert_eq!(told.unwrap()[7], 1, "it goes by the tag's priority");
    let mut qpdpm = Qpdpm::new();
    qpdpm.set_local_port(1);
    let told = bench.register(RegisterId::QPDPM, READ, qpdpm.as_bytes());
    assert_eq!(told.unwrap()[4..8], [0x80, 0, 0x80, 0]);
    let refused = Err(Failure::Refused(CmdStatus::BAD_PARAM));
    for (register, image) in [
        (RegisterId::QPTS, qpts.as_bytes()),
        (RegisterId::QPDPM, qpdpm.as_bytes()),
    ] {
        let written = bench.register(register, WRITE, image);
        assert_eq!(written, refused, "{register:?}");
        let mut other = image.to_vec();
        other[1] = 2;
        assert_eq!(bench.register(register, READ, &other), refused, "port 2");
    }
}

/// The driver can set pauses of the whole port or of priorities. `ethtool -A` writes pptx and pprx and no priorities;
/// `dcb pfc` writes all priorities.
#[test]
fn the_driver_sets_pauses_of_the_port_or_of_priorities() {
    let (mut bench, _) = usable();
    let access = |bench: &mut Bench, op_mod: u32, register: &Pfcc| {
        let told = bench.register(RegisterId::PFCC, op_mod, register.as_bytes())?;
        let told = Pfcc::read_from_bytes(&told).unwrap();
        Ok::<_, Failure>((told.pptx(), told.pprx(), told.pfctx(), told.pfcrx()))
    };
    let port = || {
        let mut register = Pfcc::new();
        register.set_local_port(1);
        register
    };
    // By default, nothing is paused.
    assert_eq!(access(&mut bench, 0, &port()), Ok((false, false, 0, 0)));
    let mut pause = port();
    pause.set_pptx(true).set_pprx(true);
    assert_eq!(access(&mut bench, 0, &pause), Ok((true, true, 0, 0)));
    assert_eq!(access(&mut bench, 1, &port()), Ok((true, true, 0, 0)));
    let mut watermark = port();
    watermark.set_pptx_mask_n(true).set_pprx_mask_n(true);
    assert_eq!(access(&mut bench, 0, &watermark), Ok((true, true, 0, 0)));
    // This write enables pauses of priorities, and disables the pause of the whole port.
    let mut priorities = port();
    priorities
        .set_prio_mask_tx(0xff)
        .set_prio_mask_rx(0xff)
        .set_pfctx(8)
        .set_pfcrx(0x18);
    assert_eq!(
        access(&mut bench, 0, &priorities),
        Ok((false, false, 8, 0x18))
    );
    // Both kinds may be set at the same time.
    assert_eq!(access(&mut bench, 0, &pause), Ok((true, true, 8, 0x18)));
    priorities.set_prio_mask_tx(0).set_pfcrx(0);
    assert_eq!(access(&mut bench, 0, &priorities), Ok((false, false, 8, 0)));
}

/// A priority has the traffic class that the driver writes. Linux writes without a port number (`mlx5_set_port_prio_tc`
/// in drivers/net/ethernet/mellanox/mlx5/core/port.c), and reads with port 1 (`mlx5_query_port_prio_tc`).
#[test]
fn priorities_have_the_traffic_classes_that_the_driver_writes() {
    let (mut bench, _) = usable();
    let class_of = |bench: &mut Bench, priority: u8| {
        let image = [0, 1, 0, priority, 0, 0, 0, 0];
        bench
            .register(RegisterId::QTCT, READ, &image)
            .map(|told| told[7])
    };
    for priority in 0..8 {
        assert_eq!(class_of(&mut bench, priority), Ok(priority), "at first");
    }
    for (priority, class) in [(0, 1), (1, 0)] {
        let image = [0, 0, 0, priority, 0, 0, 0, class];
        bench.register(RegisterId::QTCT, WRITE, &image).unwrap();
    }
    let told: Vec<_> = (0..3).map(|at| class_of(&mut bench, at)).collect();
    assert_eq!(told, [Ok(1), Ok(0), Ok(2)]);
    let refused = Err(Failure::Refused(CmdStatus::BAD_PARAM));
    let port_2 = bench.register(RegisterId::QTCT, READ, &[0, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(port_2, refused);
}

#[test]
fn a_traffic_class_beyond_max_tc_is_refused() {
    let mut profile = modest();
    profile.general.set(|page| _ = page.set_max_tc(4));
    let (mut bench, _) = Bench::usable(profile);
    let image = [0, 0, 0, 0, 0, 0, 0, 4];
    let told = bench.register(RegisterId::QTCT, WRITE, &image);
    assert_eq!(told, Err(Failure::Refused(CmdStatus::BAD_PARAM)));
}

/// A traffic class has the group, share and rate that the driver writes. Linux writes groups first, then shares
/// (`mlx5e_dcbnl_ieee_setets_core` in en_dcbnl.c), and rates separately (`mlx5e_dcbnl_ieee_setmaxrate`). Each write
/// changes only the values whose bits are set.
#[test]
fn traffic_classes_have_the_groups_shares_and_rates_that_the_driver_writes() {
    let (mut bench, _) = usable();
    let write = |bench: &mut Bench, class: [u8; 8]| {
        let mut image = [0; 0x50];
        image[0x10..0x18].copy_from_slice(&class);
        bench.register(RegisterId::QETCR, WRITE, &image).map(|_| ())
    };
    let first = bench.register(RegisterId::QETCR, READ, &[0; 0x50]).unwrap();
    assert_eq!(first[0x08..0x10], [0, 0, 0, 100, 0, 0, 0, 0]);
    assert_eq!(first[0x10..0x18], [0, 1, 0, 100, 0, 0, 0, 0]);
    // Bit g with group 7; bit b with 60 percent; bit r with 25 times 1 Gb/s.
    write(&mut bench, [0x80, 7, 0, 0, 0, 0, 0, 0]).unwrap();
    write(&mut bench, [0x40, 0, 0, 60, 0, 0, 0, 0]).unwrap();
    write(&mut bench, [0x20, 0, 0, 0, 0, 4, 0, 25]).unwrap();
    let told = bench.register(RegisterId::QETCR, READ, &[0; 0x50]).unwrap();
    assert_eq!(told[0x10..0x18], [0, 7, 0, 60, 0, 4, 0, 25]);
    assert_eq!(told[0x08..0x10], first[0x08..0x10], "class 0 was not named");

    let refused = Err(Failure::Refused(CmdStatus::BAD_PARAM));
    for (class, why) in [
        // A share must be 1 to 100 ("Validate BW weight values of ETS", Linux cdcf11212b22).
        ([0x40, 0, 0, 0, 0, 0, 0, 0], "no share"),
        ([0x40, 0, 0, 101, 0, 0, 0, 0], "more than all"),
        ([0x80, 8, 0, 0, 0, 0, 0, 0], "group 8"),
        ([0x20, 0, 0, 0, 0, 1, 0, 25], "a unit without a meaning"),
        ([0x20, 0, 0, 0, 0, 4, 0, 0], "a limit of nothing"),
    ] {
        assert_eq!(write(&mut bench, class), refused, "{why}");
    }
    let told = bench.register(RegisterId::QETCR, READ, &[0; 0x50]).unwrap();
    assert_eq!(told[0x10..0x18], [0, 7, 0, 60, 0, 4, 0, 25], "as before");
}

#[test]
fn without_the_capability_there_are_no_traffic_classes() {
    let mut profile = modest();
    profile.general.set(|page| _ = page.set_ets(false));
    let (mut bench, _) = Bench::usable(profile);
    let refused = Err(Failure::Refused(CmdStatus::BAD_PARAM));
    for (number, bytes) in [(RegisterId::QTCT, 8), (RegisterId::QETCR, 0x50)] {
        let told = bench.register(number, READ, &vec![0; bytes]);
        assert_eq!(told, refused, "{number:?}");
    }
}

/// A card with the general bit `qos` has the QoS capability page. Linux reads that page if the bit is set
/// (`mlx5_query_hca_caps` in fw.c). All its bytes are 0, because the card has neither packet pacing nor scheduling
/// elements.
#[test]
fn a_card_with_qos_has_a_qos_page_of_zeros() {
    let mut bench = Bench::usable(modest()).0;
    for op_mod in [CapType::QOS.max(), CapType::QOS.current()] {
        assert_eq!(bench.capability(op_mod), Ok([0; 0x1000]), "{op_mod:#x}");
    }
}

/// The simulated transceiver module has an EEPROM of one page. The test reads it in the pieces that Linux'
/// `mlx5_query_module_eeprom` requests.
#[test]
fn the_module_in_the_cage_has_an_eeprom_of_one_page() {
    let (mut bench, _) = usable();
    let access = |bench: &mut Bench, register: RegisterId, image: &[u8]| {
        bench.register(register, READ, image).unwrap()
    };
    let mut lanes = Pmlp::new();
    lanes.set_local_port(1);
    let told = access(&mut bench, RegisterId::PMLP, lanes.as_bytes());
    assert_eq!(told[3..8], [4, 0, 0, 0, 0], "four lanes, module 0");
    let mut ask = |address, page, offset, size| {
        let mut register = Mcia::new();
        register
            .set_i2c_device_address(address)
            .set_page_number(page)
            .set_device_address(offset)
            .set_size(size);
        let told = access(&mut bench, RegisterId::MCIA, register.as_bytes());
        (told[3], told[0x10])
    };
    assert_eq!(ask(0x50, 0, 0, 1), (0, 0x11), "a QSFP28");
    assert_eq!(ask(0x50, 0, 208, 48), (0, b' '));
    assert_eq!(ask(0x50, 0, 209, 48).0, 6, "beyond the page");
    assert_eq!(ask(0x50, 3, 0, 1).0, 6);
    assert_eq!(ask(0x51, 0, 0, 1).0, 1);
}

#[test]
fn congestion_commands_need_their_capability() {
    let (mut bench, _) = usable();
    let mut ask = QueryCongStatusIn::new();
    ask.set_priority(3)
        .set_cong_protocol(CongProtocol::R_ROCE_ECN_RP);
    assert_eq!(
        bench.status(&ask),
        CmdStatus::BAD_OP,
        "cc_query_allowed is 0"
    );

    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_cc_query_allowed(true));
    let (mut bench, _) = Bench::usable(profile);
    assert!(bench.exec(&ask).unwrap().enable());
    ask.set_priority(8);
    assert_eq!(bench.status(&ask), CmdStatus::BAD_PARAM, "there are 8");
    ask.set_priority(0)
        .set_cong_protocol(CongProtocol::R_ROCE_GENERAL);
    assert_eq!(bench.status(&ask), CmdStatus::BAD_PARAM);
    let mut ask = QueryCongParamsIn::new();
    ask.set_cong_protocol(CongProtocol::R_ROCE_ECN_NP);
    let told = bench.exec(&ask).unwrap();
    assert_eq!(told.congestion_parameters()[0x18..0x1c], [0, 0, 48, 6]);
    ask.set_cong_protocol(CongProtocol(0));
    assert_eq!(bench.status(&ask), CmdStatus::BAD_PARAM);
}

/// Returns a change of one congestion parameter, as Linux writes it (`cong.c`): all other parameters are 0 and not
/// selected.
fn reacts(field: RpField, set: impl FnOnce(&mut CongControlRRoceEcnRp)) -> ModifyCongParamsIn {
    let mut told = CongControlRRoceEcnRp::new();
    set(&mut told);
    let mut change = ModifyCongParamsIn::new();
    change
        .set_cong_protocol(CongProtocol::R_ROCE_ECN_RP)
        .set_field_select(1 << field.0)
        .set_congestion_parameters(told.as_bytes().try_into().expect("0x100 bytes"));
    change
}

#[test]
fn congestion_parameters_of_the_port_change_one_at_a_time() {
    let rate = |mbps: u32| reacts(RpField::AI_RATE, |told| _ = told.set_rpg_ai_rate(mbps));
    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_cc_query_allowed(true));
    let (mut bench, _) = Bench::usable(profile.clone());
    let status = bench.status(&rate(7));
    assert_eq!(status, CmdStatus::BAD_OP, "cc_modify_allowed is 0");
    profile
        .general
        .set(|page| _ = page.set_cc_modify_allowed(true));
    let (mut bench, _) = Bench::usable(profile);
    bench.exec(&rate(7)).unwrap();
    let mut ask = QueryCongParamsIn::new();
    ask.set_cong_protocol(CongProtocol::R_ROCE_ECN_RP);
    let told = |bench: &mut Bench, ask: &QueryCongParamsIn| {
        let told = bench.exec(ask).unwrap();
        *told.congestion_parameters()
    };
    let now = told(&mut bench, &ask);
    let now = CongControlRRoceEcnRp::read_from_bytes(&now).unwrap();
    assert_eq!(
        (now.rpg_ai_rate(), now.rpg_hai_rate(), now.rpg_time_reset()),
        (7, 50, 300)
    );
    // Invalid: a rate of 0, a time of 0, a gain above 1, a parameter that does not exist, and a parameter that is
    // reported but not implemented.
    for wrong in [
        rate(0),
        reacts(RpField::TIME_RESET, |_| {}),
        reacts(RpField::DCE_TCP_G, |told| _ = told.set_dce_tcp_g(1024)),
        reacts(RpField(17), |_| {}),
        reacts(RpField::CLAMP_TGT_RATE, |told| {
            _ = told.set_clamp_tgt_rate(true)
        }),
    ] {
        assert_eq!(bench.status(&wrong), CmdStatus::BAD_PARAM, "{wrong:?}");
    }
    let same = reacts(RpField::GD, |told| _ = told.set_rpg_gd(now.rpg_gd()));
    bench.exec(&same).unwrap();

    let mut notify = CongControlRRoceEcnNp::new();
    notify
        .set_min_time_between_cnps(4)
        .set_cnp_dscp(26)
        .set_cnp_802p_prio(3);
    let mut change = ModifyCongParamsIn::new();
    change
        .set_cong_protocol(CongProtocol::R_ROCE_ECN_NP)
        .set_field_select(1 << NpField::CNP_DSCP.0 | 1 << NpField::MIN_TIME_BETWEEN_CNPS.0)
        .set_congestion_parameters(notify.as_bytes().try_into().expect("0x100 bytes"));
    bench.exec(&change).unwrap();
    ask.set_cong_protocol(CongProtocol::R_ROCE_ECN_NP);
    let now = told(&mut bench, &ask);
    assert_eq!(
        now[0x14..0x1c],
        [0, 0, 0, 4, 0, 0, 26, 6],
        "the priority was not selected"
    );
    change.set_field_select(1 << 5);
    assert_eq!(bench.status(&change), CmdStatus::BAD_PARAM);
}

#[test]
fn a_reset_undoes_the_drivers_congestion_parameters() {
    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_cc_query_allowed(true).set_cc_modify_allowed(true));
    let mut bench = Bench::power_on(profile);
    let mut qos = PortQos::default();
    qos.reaction.additive_mbps = 9;
    bench.sim.set_qos(&bench.function, qos);
    let rate = |bench: &mut Bench| {
        bench.boot();
        let mut ask = QueryCongParamsIn::new();
        ask.set_cong_protocol(CongProtocol::R_ROCE_ECN_RP);
        let told = bench.exec(&ask).unwrap();
        let told = CongControlRRoceEcnRp::read_from_bytes(told.congestion_parameters());
        told.unwrap().rpg_ai_rate()
    };
    assert_eq!(rate(&mut bench), 9, "as the host has it");
    let change = reacts(RpField::AI_RATE, |told| _ = told.set_rpg_ai_rate(7));
    bench.exec(&change).unwrap();
    driver::Device::reset(&*bench.function);
    assert_eq!(rate(&mut bench), 9, "as the host has it, once more");
}

/// Sends 64 KiB in packets of 1 KiB to another function on the switch. Returns how many frames the switch has received
/// after 100 us.
fn sent(sides: &mut [Side; 2], switch: SwitchId) -> u64 {
    let [a, b] = sides;
    let (remote, local) = ((b.data.1, b.key), (a.data.1, 64 << 10));
    let sim = a.bench.sim.clone();
    let received = || sim.switch_counters(switch, 0).expect("a port").received;
    let before = received();
    a.post_rdma(WqeOpcode::RDMA_WRITE, remote, local);
    sim.advance(Duration::from_micros(100));
    received() - before
}

/// Returns two functions with a connection through a switch.
fn on_a_switch(config: SwitchConfig) -> ([Side; 2], SwitchId) {
    let sim = Sim::new(SimConfig::seeded(7));
    let switch = sim.add_switch(config).unwrap();
    let mut sides = [0, 1].map(|side| Side::new(&sim, side, 6));
    for (side, port) in sides.iter().zip(0..) {
        let ends = [
            Connector::Function(&side.bench.function),
            Connector::Port(switch, port),
        ];
        sim.connect_switch(ends, LinkFaults::NONE).unwrap();
    }
    let [a, b] = &mut sides;
    Side::connect_pair(a, b);
    (sides, switch)
}

#[test]
fn a_switch_cable_between_two_functions_is_refused() {
    let sim = Sim::new(SimConfig::seeded(7));
    let sides = [0, 1].map(|side| Side::new(&sim, side, 6));
    let ends = sides
        .each_ref()
        .map(|side| Connector::Function(&side.bench.function));
    let refused = Err(NotConnected::Port);
    assert_eq!(sim.connect_switch(ends, LinkFaults::NONE), refused);
    sim.add_switch(SwitchConfig::default()).unwrap();
    assert_eq!(sim.connect_switch(ends, LinkFaults::NONE), refused);
}

#[test]
fn the_port_sends_a_traffic_class_at_the_rate_that_the_driver_writes() {
    let (mut sides, switch) = on_a_switch(SwitchConfig::default());
    assert_eq!(sent(&mut sides, switch), 64, "at the port's rate");
    assert_eq!(sides[0].wait_cqe().opcode(), CqeOpcode::REQ);
    // Traffic class 0 gets a rate limit (bit r) of one times 1 Gb/s.
    let mut image = [0; 0x50];
    image[0x08..0x10].copy_from_slice(&[0x20, 0, 0, 0, 0, 4, 0, 1]);
    sides[0]
        .bench
        .register(RegisterId::QETCR, WRITE, &image)
        .unwrap();
    // A packet with Ethernet, IPv6, UDP, BTH, ICRC, FCS, preamble and gap has 1,126 bytes on the wire; the first also
    // has a RETH. Frame n starts after 9,136 + (n - 2) * 9,008 ns, so the twelfth starts within 100 us.
    assert_eq!(sent(&mut sides, switch), 12);
}

/// A port with pauses of priorities enabled obeys them even if the pause of the whole port is also enabled. A port
/// without them ignores them. Inferred: a port obeys either kind (IEEE 802.1Q, "Priority-based flow control").
#[test]
fn a_pause_of_a_priority_is_obeyed_by_a_port_that_obeys_priorities_whatever_else_is_set() {
    let config = SwitchConfig {
        pfc: Some(Pfc {
            xoff_bytes: 1,
            xon_bytes: 0,
            ..Pfc::of(1)
        }),
        ..SwitchConfig::default()
    };
    for priorities in [0, 1] {
        let (mut sides, switch) = on_a_switch(config.clone());
        let mut pfcc = Pfcc::new();
        pfcc.set_local_port(1)
            .set_pptx(true)
            .set_pprx(true)
            .set_prio_mask_tx(0xff)
            .set_prio_mask_rx(0xff)
            .set_pfctx(priorities)
            .set_pfcrx(priorities);
        let bench = &mut sides[0].bench;
        bench
            .register(RegisterId::PFCC, WRITE, pfcc.as_bytes())
            .unwrap();
        sent(&mut sides, switch);
        let bench = &sides[0].bench;
        let pauses = bench.sim.pauses(&bench.function)[0];
        assert!(pauses.received > 0, "{pauses:?}");
        assert_eq!(pauses.silent_ns > 0, priorities == 1, "{pauses:?}");
    }
}

#[test]
fn settings_of_a_port_that_no_register_has_are_refused_at_once() {
    let bench = Bench::power_on(modest());
    let mut classes = [TrafficClasses::default(); 2];
    classes[0].of_priority[3] = 8;
    classes[1].classes[3].group = 8;
    for (traffic, said) in classes.into_iter().zip(["traffic class 8", "group 8"]) {
        let qos = PortQos {
            traffic,
            ..PortQos::default()
        };
        let set = || bench.sim.set_qos(&bench.function, qos);
        let wrong = std::panic::catch_unwind(AssertUnwindSafe(set)).expect_err("it is refused");
        let wrong = wrong.downcast_ref::<String>().expect("a sentence");
        assert!(wrong.contains(said), "{wrong}");
    }
}
