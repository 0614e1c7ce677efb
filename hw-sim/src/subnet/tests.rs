//! Tests of directed routes and of the switch, at the level of single packets.

use super::directed::{self, Step};
use super::switch::{LinkChange, SubnetSwitch};
use super::*;
use crate::card::seat::{PHYSICAL, Seat};
use crate::card::{Card, CardRules};
use crate::env::{Env, Timer};
use crate::wire::{
    self, BthRepr, DethRepr, Headers, LrhPacket, LrhRepr, Network, Opcode, Packet, Psn, Qpn,
};
use mlx_prm::{MadMethod, NodeInfo, PerformanceMad, Smp, SmpAttribute, SwitchInfo};

#[test]
fn two_ports_of_a_subnet_have_lids_and_gids_of_their_own() {
    let ports: Vec<Subnet> = [[2, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0xff, 2]]
        .into_iter()
        .map(|mac| Subnet::new(&Profile::named("port", mac).infiniband(), 8, 128))
        .collect();
    let lids = [ports[0].info().lid(), ports[1].info().lid()];
    assert_eq!(lids, [1, 0x7f02]);
    assert!(lids.iter().all(|lid| *lid < FIRST_MULTICAST_LID));
    assert_ne!(ports[0].gids[0], ports[1].gids[0]);
    assert_eq!(ports[0].gids[0][..2], [0xfe, 0x80]);
    assert_eq!(ports[0].pkeys[..2], [DEFAULT_PKEY, 0]);
}

/// Returns a directed-route Get that has left its sender through port 1.
fn directed(attribute: SmpAttribute, path: &[u8]) -> Smp {
    let mut smp = Smp::new();
    let mut initial = [0; 64];
    initial[..path.len()].copy_from_slice(path);
    smp.set_base_version(1)
        .set_mgmt_class(0x81)
        .set_class_version(1)
        .set_method(MadMethod::GET.0)
        .set_hop_pointer(1)
        .set_hop_count(u8::try_from(path.len() - 1).unwrap())
        .set_transaction_id(0x1234)
        .set_attribute_id(attribute.0)
        .set_dr_slid(0xffff)
        .set_dr_dlid(0xffff)
        .set_initial_path(&initial);
    smp
}

/// A packet that enters a switch by port 3 and leaves by port 5 takes the way back through port 3 (IBTA volume 1,
/// section 14.2.2).
#[test]
fn a_directed_route_is_gone_back_by_the_ports_that_it_came_in_by() {
    let mut smp = directed(SmpAttribute::NODE_INFO, &[0, 1, 5]);
    assert_eq!(directed::arrives(&mut smp, 3), Step::Port(5));
    assert_eq!((smp.hop_pointer(), smp.return_path()[1]), (2, 3));
    assert_eq!(directed::arrives(&mut smp, 1), Step::Agent);
    assert_eq!((smp.hop_pointer(), smp.return_path()[2]), (3, 1));
    assert_eq!(directed::answers(&mut smp), Step::Port(1));
    assert_eq!((smp.hop_pointer(), smp.status()), (2, 0x8000));
    assert_eq!(directed::arrives(&mut smp, 5), Step::Port(3));
    assert_eq!(smp.hop_pointer(), 1);
    // The sender's own step does not change the hop pointer: Linux's smi_handle_dr_smp_recv expects 1 at the sender.
}

#[test]
fn a_route_that_is_none_leads_nowhere() {
    type Change = (&'static str, fn(&mut Smp));
    let paths: [Change; 5] = [
        ("more hops than there is room for", |smp| {
            smp.set_hop_count(64);
        }),
        ("has not left its sender", |smp| {
            smp.set_hop_pointer(0);
        }),
        ("beyond its end", |smp| {
            smp.set_hop_pointer(9);
        }),
        ("has a part by LID behind it", |smp| {
            smp.set_hop_pointer(2).set_dr_dlid(7);
        }),
        ("comes back from beyond its end", |smp| {
            smp.set_status(0x8000).set_hop_pointer(9);
        }),
    ];
    for (what, change) in paths {
        let mut smp = directed(SmpAttribute::NODE_INFO, &[0, 1, 5]);
        change(&mut smp);
        assert_eq!(directed::arrives(&mut smp, 3), Step::Nowhere, "{what}");
    }
}

/// Returns a packet to QP 0 on VL 15.
fn frame(smp: &Smp, dlid: u16, slid: u16) -> Vec<u8> {
    packet(smp.as_array(), dlid, slid, MANAGEMENT_LANE, 0)
}

fn packet(payload: &[u8], dlid: u16, slid: u16, vl: u8, qpn: u32) -> Vec<u8> {
    let packet = Packet {
        link: wire::Link::InfiniBand(LrhRepr {
            vl,
            sl: 0,
            dlid,
            slid,
            global: false,
            packet_len: 0,
        }),
        network: Network::Local,
        bth: BthRepr::new(Opcode::ud(false), Qpn::new(qpn), Psn::masked(0)),
        headers: Headers {
            deth: Some(DethRepr {
                qkey: 0,
                src_qpn: Qpn::SMI,
            }),
            ..Headers::NONE
        },
        payload,
    };
    packet.emit()
}

fn smp_in(frame: &[u8]) -> Smp {
    let packet = Packet::parse_infiniband(frame).expect("a packet");
    Smp::from_array(packet.payload.try_into().expect("256 bytes"))
}

/// Creates a switch with four ports, of which ports 1 and 2 have a cable.
fn switch(manager: Manager) -> SubnetSwitch {
    let mut switch = SubnetSwitch::new(0, 4, manager);
    for port in [1, 2] {
        switch.link_changed(port, true);
    }
    switch
}

/// Sends the switch a packet whose directed route ends there, and returns the answer. The answer leaves through the
/// ingress port.
fn asked(
    switch: &mut SubnetSwitch,
    method: MadMethod,
    attribute: SmpAttribute,
    modifier: u32,
    data: &[u8; 64],
) -> Smp {
    let mut smp = directed(attribute, &[0, 1]);
    smp.set_method(method.0)
        .set_attribute_modifier(modifier)
        .set_data(data);
    let out = switch.receive(1, frame(&smp, 0xffff, 0xffff));
    assert_eq!(out.len(), 1, "{attribute}");
    assert_eq!(out[0].0, 1);
    let lrh = LrhPacket::new_checked(&out[0].1).expect("a header");
    assert_eq!((lrh.dlid(), lrh.slid(), lrh.vl()), (0xffff, 0xffff, 15));
    smp_in(&out[0].1)
}

fn get(switch: &mut SubnetSwitch, attribute: SmpAttribute, modifier: u32) -> Smp {
    asked(switch, MadMethod::GET, attribute, modifier, &[0; 64])
}

#[test]
fn a_switch_is_a_node_with_a_table_and_says_by_which_port_it_was_asked() {
    let mut switch = switch(Manager::Outside);
    let answer = get(&mut switch, SmpAttribute::NODE_INFO, 0);
    assert_eq!((answer.method(), answer.status()), (0x81, 0x8000));
    let node = NodeInfo::from_array(*answer.data());
    assert_eq!(
        (node.node_type(), node.num_ports(), node.local_port_num()),
        (2, 4, 1)
    );
    let info = SwitchInfo::from_array(*get(&mut switch, SmpAttribute::SWITCH_INFO, 0).data());
    assert_eq!(info.linear_fdb_cap(), 0xc000);
    assert!(info.port_state_change(), "two links came up");
    let mut clear = SwitchInfo::new();
    clear.set_port_state_change(true);
    let data = *clear.as_array();
    let info = asked(
        &mut switch,
        MadMethod::SET,
        SmpAttribute::SWITCH_INFO,
        0,
        &data,
    );
    assert!(!SwitchInfo::from_array(*info.data()).port_state_change());
    // PortStateChange does not report PortState changes that the manager made (IBTA volume 1, section 14.2.5.4).
    let mut armed = PortInfo::from_array(*get(&mut switch, SmpAttribute::PORT_INFO, 2).data());
    armed.set_port_state(3).set_port_physical_state(0);
    let data = *armed.as_array();
    let set = asked(
        &mut switch,
        MadMethod::SET,
        SmpAttribute::PORT_INFO,
        2,
        &data,
    );
    assert_eq!(set.status(), 0x8000);
    let info = get(&mut switch, SmpAttribute::SWITCH_INFO, 0);
    assert!(!SwitchInfo::from_array(*info.data()).port_state_change());
    // Bytes with PortState and PortPhysicalState: port 1 is Init and LinkUp, port 3 is Down and Polling.
    for (port, states) in [(1, [0x72, 0x52]), (3, [0x71, 0x22])] {
        let info = get(&mut switch, SmpAttribute::PORT_INFO, port);
        assert_eq!(info.data()[32..34], states, "port {port}");
    }
    assert_eq!(
        get(&mut switch, SmpAttribute::PORT_INFO, 5).status(),
        0x801c
    );
    // opensm and ibportstate set bit 31, because they support extended speeds.
    let info = get(&mut switch, SmpAttribute::PORT_INFO, 1 << 31 | 3);
    assert_eq!((info.status(), info.data()[32]), (0x8000, 0x71));
    assert_eq!(get(&mut switch, SmpAttribute::SM_INFO, 0).status(), 0x800c);
}

#[test]
fn a_switch_passes_a_route_on_and_back_though_none_of_its_ports_is_active() {
    let mut switch = switch(Manager::Outside);
    let smp = directed(SmpAttribute::NODE_INFO, &[0, 1, 2]);
    let out = switch.receive(1, frame(&smp, 0xffff, 0xffff));
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].0, 2, "by the initial path");
    let mut there = smp_in(&out[0].1);
    assert_eq!(directed::arrives(&mut there, 1), Step::Agent);
    directed::answers(&mut there);
    let back = switch.receive(2, frame(&there, 0xffff, 0xffff));
    assert_eq!(back[0].0, 1);
    assert_eq!(smp_in(&back[0].1).hop_pointer(), 1);
    let dark = directed(SmpAttribute::NODE_INFO, &[0, 1, 3]);
    assert!(switch.receive(1, frame(&dark, 0xffff, 0xffff)).is_empty());
}

/// A switch drops a packet to QP 0 outside VL 15, and a packet to QP 1 on VL 15. The subnet is preset, so that the
/// ports are Active and VL 0 passes packets, too.
#[test]
fn a_switch_takes_no_packet_whose_lane_is_not_its_queue_pairs() {
    let mut switch = switch(Manager::Preset);
    let smp = directed(SmpAttribute::NODE_INFO, &[0, 1]);
    let mut performance = PerformanceMad::new();
    performance
        .set_base_version(1)
        .set_mgmt_class(4)
        .set_class_version(1)
        .set_method(MadMethod::GET.0)
        .set_attribute_id(1);
    let mut answers = |mad: &[u8], vl, qpn| {
        let frame = packet(mad, 0xffff, 9, vl, qpn);
        switch.receive(1, frame).len()
    };
    assert_eq!(answers(smp.as_array(), 15, 0), 1);
    assert_eq!(answers(smp.as_array(), 0, 0), 0, "QP 0, lane 0");
    assert_eq!(answers(performance.as_array(), 0, 1), 1);
    assert_eq!(answers(performance.as_array(), 15, 1), 0, "QP 1, lane 15");
}

/// A manager's Set of Down (IBTA volume 1, section 14.2.5.6) makes the switch notify the other end of the link.
#[test]
fn a_switch_that_takes_a_link_down_has_the_other_end_hear_of_it() {
    let mut switch = switch(Manager::Outside);
    assert_eq!(set_state(&mut switch, 2, 1), 0x8000);
    assert_eq!(switch.take_link_changes(), [(2, LinkChange::Retrain)]);
    switch.link_changed(2, false);
    let info = get(&mut switch, SmpAttribute::PORT_INFO, 2);
    assert_eq!(info.data()[32] & 0xf, 1, "Down");
}

/// If a manager requests Down several times before the link goes down, the link goes down only once. Meanwhile the port
/// reports Down.
#[test]
fn a_link_that_is_to_go_down_shows_down_and_goes_down_once() {
    let mut env = Env::new(1, false);
    let profile = Profile::default().infiniband();
    let mut card = Card::new(&profile, CardRules::default());
    card.add(0, &profile);
    env.cards.push(card);
    let seat = Seat {
        card: 0,
        vport: PHYSICAL,
    };
    env.set_light(seat, true);
    assert_eq!(env.link(seat), Link::Up);
    for _ in 0..3 {
        env.retrain_soon(seat);
    }
    assert_eq!(env.link(seat), Link::Dark);
    assert!(env.is_up(seat), "the answer still leaves");
    let retrains = env.timers.values();
    let retrains = retrains.filter(|&&timer| timer == (0, Timer::Retrain));
    assert_eq!(retrains.count(), 1);
}

fn set_state(switch: &mut SubnetSwitch, port: u32, state: u32) -> u16 {
    let mut info = PortInfo::from_array(*get(switch, SmpAttribute::PORT_INFO, port).data());
    info.set_port_state(state).set_port_physical_state(0);
    let data = *info.as_array();
    asked(switch, MadMethod::SET, SmpAttribute::PORT_INFO, port, &data).status()
}

/// A switch forwards data by its tables if both ports are Active (IBTA volume 1, section 7.2.7; 14.2.5.6 for the states
/// that a Set may request).
#[test]
fn a_switch_forwards_data_by_its_tables_once_both_ports_are_active() {
    let mut switch = switch(Manager::Outside);
    let top = |switch: &mut SubnetSwitch, top: u16| {
        let mut info = SwitchInfo::new();
        info.set_linear_fdb_top(top);
        let (set, data) = (MadMethod::SET, *info.as_array());
        asked(switch, set, SmpAttribute::SWITCH_INFO, 0, &data).status()
    };
    assert_eq!(top(&mut switch, 7), 0x8000);
    assert_eq!(top(&mut switch, 0xc000), 0x801c, "beyond LinearFDBCap");
    let mut block = [0xff; 64];
    block[7] = 2;
    asked(
        &mut switch,
        MadMethod::SET,
        SmpAttribute::LINEAR_FORWARDING_TABLE,
        0,
        &block,
    );
    let data = packet(&[1, 2, 3, 4], 7, 9, 0, 0x48);
    assert!(switch.receive(1, data.clone()).is_empty(), "Init");
    assert_eq!(set_state(&mut switch, 1, 4), 0x801c, "Active without Armed");
    for port in [1, 2] {
        assert_eq!(set_state(&mut switch, port, 3), 0x8000);
        assert_eq!(set_state(&mut switch, port, 4), 0x8000);
    }
    assert_eq!(switch.receive(1, data.clone()), [(2, data.clone())]);
    // IBTA volume 1, section 18.2.4.3.3: packets to LIDs above LinearFDBTop are discarded.
    assert_eq!(top(&mut switch, 6), 0x8000);
    assert!(switch.receive(1, data.clone()).is_empty(), "above the top");
    assert_eq!(top(&mut switch, 7), 0x8000);
    let unknown = packet(&[1, 2, 3, 4], 8, 9, 0, 0x48);
    assert!(switch.receive(1, unknown).is_empty(), "no entry");
    // Group 0xc001 gets ports 1 and 2 as members.
    let group = packet(&[1, 2, 3, 4], 0xc001, 9, 0, 0x00ff_ffff);
    assert!(switch.receive(1, group.clone()).is_empty(), "nobody joined");
    let mut masks = [0; 64];
    masks[3] = 0b110;
    asked(
        &mut switch,
        MadMethod::SET,
        SmpAttribute::MULTICAST_FORWARDING_TABLE,
        0,
        &masks,
    );
    assert_eq!(switch.receive(1, group.clone()), [(2, group)]);
    switch.link_changed(2, false);
    switch.link_changed(2, true);
    assert!(switch.receive(1, data).is_empty(), "Init again");
}

#[test]
fn a_switch_of_a_preset_subnet_forwards_from_the_start_and_floods_groups() {
    let mut switch = switch(Manager::Preset);
    switch.preset(7, 2);
    let data = packet(&[1, 2, 3, 4], 7, 9, 0, 0x48);
    assert_eq!(switch.receive(1, data.clone()), [(2, data)]);
    let group = packet(&[1, 2, 3, 4], 0xc0de, 9, 0, 0x00ff_ffff);
    assert_eq!(switch.receive(1, group.clone()), [(2, group)]);
    let mut smp = Smp::new();
    smp.set_base_version(1)
        .set_mgmt_class(1)
        .set_class_version(1)
        .set_method(1)
        .set_attribute_id(SmpAttribute::NODE_DESCRIPTION.0);
    let lid = switch.lid();
    let out = switch.receive(2, frame(&smp, lid, 7));
    let lrh = LrhPacket::new_checked(&out[0].1).expect("a header");
    assert_eq!((out[0].0, lrh.dlid(), lrh.slid()), (2, 7, lid));
    assert!(smp_in(&out[0].1).data().starts_with(b"simulated switch 0"));
}
