//! Tests of port states: the wire, the administrator, link training.

use super::rig::*;
use crate::bench::{Bench, WRITE};
use hw_sim::{CardRules, Fault, LinkFaults, LinkState, Sim, SimConfig, VfSettings};
use mlx_prm::*;
use std::time::Duration;

/// Time that is longer than link training.
const TRAINED: Duration = Duration::from_millis(200);

fn with_state(state: LinkState) -> VfSettings {
    VfSettings {
        state,
        ..VfSettings::default()
    }
}

fn set_paos(bench: &mut Bench, up: bool) {
    let mut paos = Paos::new();
    paos.set_local_port(1)
        .set_ase(true)
        .set_admin_status(if up { 1 } else { 2 });
    bench
        .register(RegisterId::PAOS, WRITE, paos.as_array())
        .unwrap();
}

fn up(rig: &mut Rig) -> [bool; 3] {
    let [vf0, vf1] = &mut rig.vfs;
    [&mut rig.pf, vf0, vf1].map(link_is_up)
}

/// A virtual function whose own state is 'auto' follows the physical port. One with 'enable' stays up, and one with
/// 'disable' stays down. `ip link set PF down` writes PAOS down (Linux `en_main.c` `mlx5e_modify_admin_state`).
/// Functions that follow the port go down with it, with one event each.
#[test]
fn virtual_functions_follow_the_physical_port_unless_set_otherwise() {
    let mut rig = Rig::announced();
    rig.set_vf(1, with_state(LinkState::Up));
    assert_eq!(up(&mut rig), [true; 3]);
    set_paos(&mut rig.pf.bench, false);
    assert_eq!(up(&mut rig), [false, false, true]);
    assert_eq!(port_events(&mut rig.pf), [PortChange::DOWN]);
    assert_eq!(port_events(&mut rig.vfs[0]), [PortChange::DOWN]);
    assert_eq!(port_events(&mut rig.vfs[1]), []);
    set_paos(&mut rig.pf.bench, true);
    assert_eq!(up(&mut rig), [false, false, true], "it trains");
    rig.sim.advance(TRAINED);
    assert_eq!(up(&mut rig), [true; 3]);
    assert_eq!(port_events(&mut rig.vfs[0]), [PortChange::ACTIVE]);
}

/// Without a cable, functions with link state 'enable' reach each other inside the card, and a function with 'auto'
/// reaches none. With a cable, a function with 'disable' still reaches nothing (link states of the netdev ABI).
#[test]
fn with_the_cable_out_only_enabled_functions_reach_each_other() {
    let mut rig = Rig::announced();
    rig.sim.inject(&rig.card.physical(), &Fault::LinkDown);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], VF_MACS[1]));
    assert_eq!(rig.received(), [0; 4]);
    for index in [0, 1] {
        rig.set_vf(index, with_state(LinkState::Up));
    }
    send(&mut rig.vfs[0], &frame(VF_MACS[0], VF_MACS[1]));
    assert_eq!(rig.received(), [0, 0, 1, 0]);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    assert_eq!(rig.received(), [0; 4]);
    rig.sim.inject(&rig.card.physical(), &Fault::LinkUp);
    rig.set_vf(0, with_state(LinkState::Down));
    port_events(&mut rig.vfs[0]);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(rig.received(), [0; 4]);
    assert!(!link_is_up(&mut rig.vfs[0]));
}

/// A vport that is down counts the frames it loses in both directions, and the manager can query these counts (Linux
/// `esw/legacy.c` `mlx5_esw_query_vport_drop_stats`: `receive_discard_vport_down`, `transmit_discard_vport_down`).
#[test]
fn frames_lost_at_a_vport_that_is_down_are_counted_there() {
    let mut rig = Rig::announced();
    let lost = |rig: &mut Rig, vport| {
        let mut query = QueryVnicEnvIn::new();
        query.set_other_vport(true).set_vport_number(vport);
        let out = rig.pf.bench.exec(&query).unwrap();
        let counters = out.vport_env();
        let received = counters.receive_discard_vport_down();
        (received, counters.transmit_discard_vport_down())
    };
    rig.set_vf(0, with_state(LinkState::Down));
    // Frames to the vport from another function of the card and from the wire, then one from the vport itself.
    send(&mut rig.vfs[1], &frame(VF_MACS[1], VF_MACS[0]));
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(lost(&mut rig, 1), (2, 0));
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    assert_eq!(lost(&mut rig, 1), (2, 1));
    assert_eq!(lost(&mut rig, 2), (0, 0));
    rig.set_vf(0, with_state(LinkState::Follow));
    send(&mut rig.vfs[1], &frame(VF_MACS[1], VF_MACS[0]));
    assert_eq!(lost(&mut rig, 1), (2, 1));
    assert_eq!(rig.received(), [0, 1, 0, 0]);
}

/// A link goes down immediately, and comes up only after link training. Then all functions get an event.
#[test]
fn a_link_trains_and_then_all_functions_get_an_event() {
    let mut rig = Rig::with(CardRules {
        link_training: Duration::from_secs(2),
        ..CardRules::default()
    });
    assert_eq!(
        up(&mut rig),
        [true; 3],
        "it was lit before the drivers came"
    );
    set_paos(&mut rig.pf.bench, false);
    set_paos(&mut rig.pf.bench, true);
    for side in rig.sides() {
        port_events(side);
    }
    rig.sim.advance(Duration::from_millis(1_900));
    assert_eq!(up(&mut rig), [false; 3]);
    assert_eq!(port_events(&mut rig.vfs[1]), []);
    rig.sim.advance(Duration::from_millis(200));
    assert_eq!(up(&mut rig), [true; 3]);
    for side in [&mut rig.pf, &mut rig.vfs[1]] {
        assert_eq!(port_events(side), [PortChange::ACTIVE]);
    }
}

/// A reset of the physical function does not change the administrative state, which belongs to the port.
#[test]
fn the_administrative_state_stays_over_a_reset() {
    let mut rig = Rig::announced();
    set_paos(&mut rig.pf.bench, false);
    driver::Device::reset(&*rig.card.physical());
    assert!(!link_is_up(&mut rig.vfs[0]));
}

/// MODIFY_VPORT_STATE with op_mod 2 disconnects the switch from the wire, and a reset of the physical function connects
/// it again. The virtual functions get an event when their links come up, because their drivers still run.
#[test]
fn a_reset_that_brings_the_switch_back_up_is_an_event_for_virtual_functions() {
    let mut rig = Rig::announced();
    let mut modify = ModifyVportStateIn::new();
    modify.set_op_mod(2);
    modify.set_admin_state(0);
    rig.pf.bench.exec(&modify).unwrap();
    assert_eq!(up(&mut rig), [false; 3]);
    for vf in &mut rig.vfs {
        assert_eq!(port_events(vf), [PortChange::DOWN]);
    }
    driver::Device::reset(&*rig.card.physical());
    for vf in &mut rig.vfs {
        assert!(link_is_up(vf));
        assert_eq!(port_events(vf), [PortChange::ACTIVE]);
    }
}

/// A card has no link before a cable is connected, and neither have its virtual functions.
#[test]
fn without_a_cable_there_is_no_link() {
    let sim = Sim::new(SimConfig::seeded(1));
    let mut physical = profile("dark", PF_MAC);
    physical.carrier_without_link = false;
    let card = sim.add_card(&hw_sim::CardConfig::new(physical, 1));
    let vf = card.virtual_function(0).expect("one");
    let mut vf = crate::eth_support::Side::on(Bench::of(&sim, vf));
    assert!(!link_is_up(&mut vf));
    let far = sim.add_function(profile("far", FAR_MAC));
    sim.connect(&card.physical(), &far, LinkFaults::NONE);
    assert!(!link_is_up(&mut vf), "it trains");
    sim.advance(TRAINED);
    assert!(link_is_up(&mut vf));
    assert_eq!(port_events(&mut vf), [PortChange::ACTIVE]);
}
