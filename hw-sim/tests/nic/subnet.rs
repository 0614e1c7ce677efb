//! Tests of subnet management of InfiniBand ports: agents that answer packets from the wire and from MAD_IFC, and a
//! subnet manager that takes a port from Init to Active.
//!
//! The packets are raw bytes at the offsets of IBTA volume 1 (figures "SMP Format - Directed Route" and "PortInfo";
//! Linux `struct ib_smp` in include/rdma/ib_smi.h and `struct ib_port_info` have the same offsets).

use hw_sim::wire::{
    BthRepr, DethRepr, Headers, Link, LrhPacket, LrhRepr, Network, Opcode, Packet, Psn, Qpn,
};
use hw_sim::{LinkFaults, Sim, SimConfig, SimFunction};
use mlx_prm::*;
use std::sync::Arc;
use std::time::Duration;

use crate::bench::{Bench, Resources, modest};

const PERMISSIVE: u16 = 0xffff;

/// Returns a SubnGet with a directed route of one hop, as it is on the wire to the last node of the route.
fn directed(attribute: u16) -> [u8; 256] {
    let mut smp = [0; 256];
    smp[..4].copy_from_slice(&[1, 0x81, 1, 1]);
    smp[6..8].copy_from_slice(&[1, 1]);
    smp[8..16].copy_from_slice(&0x1122_3344_5566_7788_u64.to_be_bytes());
    smp[16..18].copy_from_slice(&attribute.to_be_bytes());
    smp[32..36].copy_from_slice(&[0xff; 4]);
    smp[129] = 1;
    smp
}

fn frame(mad: &[u8; 256], dlid: u16, slid: u16, vl: u8, qpn: u32) -> Vec<u8> {
    let packet = Packet {
        link: Link::InfiniBand(LrhRepr {
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
                qkey: if qpn == 1 { 0x8001_0000 } else { 0 },
                src_qpn: Qpn::new(qpn),
            }),
            ..Headers::NONE
        },
        payload: mad,
    };
    packet.emit()
}

/// Delivers a packet from the wire to a port. Returns the port's answer.
fn exchange(sim: &Sim, function: &SimFunction, frame: Vec<u8>) -> Option<Vec<u8>> {
    sim.deliver(function, &frame);
    sim.advance(Duration::from_micros(10));
    sim.take_frames(function).pop_front()
}

fn mad_in(frame: &[u8]) -> [u8; 256] {
    let packet = Packet::parse_infiniband(frame).unwrap();
    packet.payload.try_into().unwrap()
}

/// Returns a port without a driver, in a subnet whose manager is not part of the simulator.
fn port() -> (Sim, Arc<SimFunction>) {
    let sim = Sim::new(SimConfig::seeded(1));
    sim.use_external_subnet_manager();
    let function = sim.add_function(modest().infiniband());
    sim.connect_outside(&function, LinkFaults::NONE);
    sim.advance(Duration::from_millis(100));
    (sim, function)
}

#[test]
fn a_port_without_a_driver_answers_a_directed_route_that_ends_there() {
    let (sim, function) = port();
    let asked = directed(0x11);
    let answer = exchange(
        &sim,
        &function,
        frame(&asked, PERMISSIVE, PERMISSIVE, 15, 0),
    )
    .unwrap();
    let lrh = LrhPacket::new_checked(&answer).unwrap();
    assert_eq!(
        (lrh.dlid(), lrh.slid(), lrh.vl()),
        (PERMISSIVE, PERMISSIVE, 15)
    );
    let mad = mad_in(&answer);
    assert_eq!(mad[..4], [1, 0x81, 1, 0x81], "GetResp");
    // Status with the direction bit, hop pointer 1, hop count 1: the answer has arrived at the sender's neighbour.
    assert_eq!(mad[4..8], [0x80, 0, 1, 1]);
    assert_eq!(mad[8..18], asked[8..18], "transaction and attribute");
    assert_eq!(mad[0xc0 + 1], 1, "the return path");
    // Base version, class version, node type channel adapter, one port.
    assert_eq!(mad[64..68], [1, 1, 1, 1]);
    assert_eq!(mad[100..104], [1, 0x00, 0x02, 0xc9], "port 1, vendor");
}

#[test]
fn a_port_waits_in_init_for_its_manager_and_passes_no_data_until_it_is_armed() {
    let (sim, function) = port();
    let ask = |mad: &[u8; 256]| {
        let answer = exchange(&sim, &function, frame(mad, PERMISSIVE, PERMISSIVE, 15, 0));
        mad_in(&answer.unwrap())
    };
    let mut info = ask(&directed(0x15));
    // LID, PortState and PortPhysicalState.
    assert_eq!(
        (&info[80..82], info[96] & 0xf, info[97] >> 4),
        (&[0, 0][..], 2, 5)
    );
    let set = |info: &[u8; 256], state: u8| {
        let mut mad = directed(0x15);
        mad[3] = 2;
        mad[64..128].copy_from_slice(&info[64..128]);
        mad[96] = mad[96] & 0xf0 | state;
        mad[97] &= 0x0f;
        ask(&mad)
    };
    assert_eq!(set(&info, 3)[4..6], [0x80, 0x00], "Armed without a LID");
    info[80..84].copy_from_slice(&[0, 5, 0, 3]);
    let answer = set(&info, 0);
    assert_eq!(answer[80..84], [0, 5, 0, 3], "LID and master SM's LID");
    assert_eq!(answer[96] & 0xf, 3, "Armed");
    assert_eq!(set(&answer, 4)[96] & 0xf, 4, "Active");
    info[80..82].copy_from_slice(&[0xc0, 0]);
    assert_eq!(set(&info, 0)[4..6], [0x80, 0x1c], "a multicast LID");
}

#[test]
fn data_before_a_port_is_armed_is_dropped_and_counted() {
    let (sim, function) = port();
    let data = frame(&[0; 256], 1, 2, 0, 0x48);
    assert_eq!(exchange(&sim, &function, data), None);
    let report = sim.report(&function);
    assert_eq!(report.dropped.get("port not active"), Some(&1));
}

/// Subnet management packets are answered only on VL 15, to QP 0 and without a GRH, and no other packets are answered
/// on VL 15 (IBTA volume 1, sections 3.5.10 and 14.2.1).
#[test]
fn subnet_management_is_answered_on_lane_15_and_nothing_else_is() {
    let (sim, function) = port();
    let smp = directed(0x11);
    let mut performance = [0; 256];
    performance[..4].copy_from_slice(&[1, 4, 1, 1]);
    performance[16..18].copy_from_slice(&[0, 1]);
    // The low bits of the second byte are LNH: 3 means a GRH follows, 0 means a raw packet.
    let behind = |next_header: u8| {
        let mut frame = frame(&smp, PERMISSIVE, PERMISSIVE, 15, 0);
        frame[1] = frame[1] & !3 | next_header;
        frame
    };
    for (frame, reason) in [
        (behind(3), "lane 15 with a global route"),
        (behind(0), "lane 15 without a transport header"),
        (
            frame(&smp, PERMISSIVE, PERMISSIVE, 0, 0),
            "QP 0 outside of lane 15",
        ),
        (
            frame(&performance, PERMISSIVE, PERMISSIVE, 15, 1),
            "lane 15 to another queue pair than QP 0",
        ),
    ] {
        assert_eq!(exchange(&sim, &function, frame), None, "{reason}");
        let report = sim.report(&function);
        assert_eq!(report.dropped.get(reason), Some(&1), "{reason}");
    }
}

/// A Set of PortState Down takes the link down at both ends (IBTA volume 1, section 14.2.5.6, PortState).
#[test]
fn a_set_of_down_takes_the_link_down_at_both_ends() {
    let sim = Sim::new(SimConfig::seeded(1));
    sim.use_external_subnet_manager();
    let mut benches = [1, 2].map(|number| {
        let profile = modest()
            .infiniband()
            .called("port", [2, 0, 0, 0, 0, number]);
        Bench::of(&sim, sim.add_function(profile))
    });
    sim.connect(&benches[0].function, &benches[1].function, LinkFaults::NONE);
    sim.advance(Duration::from_secs(1));
    for bench in &mut benches {
        bench.initialise();
    }
    let info = |bench: &mut Bench| PortInfo::from_array(*local(bench, 1, 0x15, &[0; 64]).data());
    let [one, other] = &mut benches;
    for bench in [&mut *one, &mut *other] {
        let mut info = info(bench);
        info.set_lid(5).set_port_physical_state(0);
        for state in [3, 4] {
            info.set_port_state(state);
            local(bench, 2, 0x15, info.as_array());
        }
    }
    assert_eq!(info(other).port_state(), 4, "Active");
    let mut down = info(one);
    down.set_port_state(1).set_port_physical_state(0);
    assert_eq!(local(one, 2, 0x15, down.as_array()).status(), 0);
    // 10 ms is longer than the answer needs and shorter than link training.
    sim.advance(Duration::from_millis(10));
    let states = |info: PortInfo| (info.port_state(), info.port_physical_state());
    assert_eq!(states(info(one)), (1, 2), "Down, Polling");
    assert_eq!(states(info(other)), (1, 2), "Down, Polling");
    sim.advance(Duration::from_secs(1));
    assert_eq!(states(info(one)), (2, 5), "Init, LinkUp");
    assert_eq!(states(info(other)), (2, 5), "Init, LinkUp");
}

/// Performance counters can be read and cleared over the wire (IBTA volume 1, section 16.1.3.5: PortSelect is byte 65
/// and PortRcvPkts is byte 100 of the MAD).
#[test]
fn performance_counters_are_read_and_cleared_over_the_wire() {
    let sim = Sim::new(SimConfig::seeded(1));
    let function = sim.add_function(modest().infiniband());
    sim.connect_outside(&function, LinkFaults::NONE);
    sim.advance(Duration::from_millis(100));
    let lid = {
        let answer = exchange(
            &sim,
            &function,
            frame(&directed(0x15), PERMISSIVE, PERMISSIVE, 15, 0),
        );
        let mad = mad_in(&answer.unwrap());
        u16::from_be_bytes([mad[80], mad[81]])
    };
    let counters = |method: u8, attribute: u16, select: [u8; 3]| {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, 4, 1, method]);
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[65..68].copy_from_slice(&select);
        let answer = exchange(&sim, &function, frame(&mad, lid, 9, 0, 1)).unwrap();
        let lrh = LrhPacket::new_checked(&answer).unwrap();
        assert_eq!((lrh.dlid(), lrh.slid()), (9, lid));
        mad_in(&answer)
    };
    let class = counters(1, 0x01, [0; 3]);
    assert_eq!(class[64..68], [1, 1, 0x03, 0x00], "all ports, extended");
    let word = |mad: &[u8; 256], at: usize| u32::from_be_bytes(mad[at..at + 4].try_into().unwrap());
    let before = counters(1, 0x12, [1, 0, 0]);
    // Three packets were received: the SMP, the Get of ClassPortInfo and this Get. Each has 8 + 12 + 8 + 256 + 4 bytes
    // from LRH to ICRC.
    assert_eq!((word(&before, 100), word(&before, 92)), (3, 3 * 288 / 4));
    let cleared = counters(2, 0x12, [1, 0xff, 0xff]);
    assert_eq!((word(&cleared, 96), word(&cleared, 100)), (0, 0));
    let extended = counters(1, 0x1d, [0xff, 0, 0]);
    assert_eq!(extended[0x40 + 0x27], 1, "one packet since, of all ports");
    assert_eq!(counters(1, 0x12, [2, 0, 0])[5], 0x1c, "port 2");
    // Bit 15 of CounterSelect clears only the counter of received packets.
    let cleared = counters(2, 0x12, [1, 0x80, 0]);
    assert_eq!(word(&cleared, 100), 0);
    assert!(word(&cleared, 92) > 0, "their data is counted on");
    // A frame of one byte, shorter than a VCRC and than an LRH.
    counters(2, 0x12, [1, 0xff, 0xff]);
    assert_eq!(exchange(&sim, &function, vec![0]), None);
    // PortRcvData, in words of 4 bytes, counts the Get with 288 bytes, and the frame with 1 byte less 2 bytes for its
    // VCRC.
    assert_eq!(word(&counters(1, 0x12, [1, 0, 0]), 92), (288 + 1 - 2) / 4);
    assert_eq!(sim.report(&function).dropped.get("no LRH"), Some(&1));
}

/// Runs a Set or Get by MAD_IFC. Returns the answer.
fn local(bench: &mut Bench, method: u8, attribute: u16, data: &[u8; 64]) -> Smp {
    let mut mad = Smp::new();
    mad.set_base_version(1)
        .set_mgmt_class(1)
        .set_class_version(1)
        .set_method(method)
        .set_attribute_id(attribute)
        .set_data(data);
    let mut input = MadIfcIn::new();
    input.set_op_mod(1).set_port(1).set_mad(mad.as_array());
    Smp::from_array(*bench.exec(&input).unwrap().response_mad_packet())
}

fn managed() -> (Bench, Resources) {
    let (bench, resources) = Bench::usable(modest().infiniband());
    bench.sim.use_external_subnet_manager();
    (bench, resources)
}

/// The driver gets events for changes of LID, state, GID prefix and P_Keys, and for reregistration. The event subtypes
/// are those of Linux `handle_port_event` (drivers/infiniband/hw/mlx5/main.c).
#[test]
fn the_driver_gets_events_of_lid_state_prefix_partitions_and_reregistration() {
    let (mut bench, _) = managed();
    let mut info = PortInfo::from_array(*local(&mut bench, 1, 0x15, &[0; 64]).data());
    assert_eq!((info.port_state(), info.lid(), info.guid_cap()), (2, 0, 8));
    let events = |bench: &Bench| {
        let log = bench.log();
        let events = log
            .lines()
            .filter_map(|line| line.split_once("type=0x09 sub="));
        let subs: Vec<String> = events.map(|(_, rest)| rest[..4].to_owned()).collect();
        subs
    };
    let before = events(&bench).len();
    info.set_lid(5)
        .set_master_sm_lid(3)
        .set_gid_prefix(0xfec0_0000_0000_0001)
        .set_client_reregister(true)
        .set_port_state(3)
        .set_port_physical_state(0);
    let answer = local(&mut bench, 2, 0x15, info.as_array());
    assert_eq!((answer.method(), answer.status()), (0x81, 0));
    assert!(PortInfo::from_array(*answer.data()).client_reregister());
    info.set_client_reregister(false).set_port_state(4);
    local(&mut bench, 2, 0x15, info.as_array());
    let mut pkeys = [0; 64];
    pkeys[..4].copy_from_slice(&[0xff, 0xff, 0x80, 0x01]);
    local(&mut bench, 2, 0x16, &pkeys);
    // The events are: LID, GUID and reregistration; then Active; then P_Keys.
    assert_eq!(
        events(&bench)[before..],
        ["0x06", "0x08", "0x09", "0x04", "0x07"]
    );
    let context = bench.exec(&QueryHcaVportContextIn::new()).unwrap();
    let context = context.hca_vport_context();
    assert_eq!(
        (context.lid(), context.sm_lid(), context.vport_state()),
        (5, 3, 4)
    );
    let gid = bench
        .raw(QueryHcaVportGidIn::new().as_array(), 0x20)
        .unwrap();
    assert_eq!(gid[0x10..0x18], [0xfe, 0xc0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_managers_settings_outlive_a_reset_of_the_function_but_not_a_lost_link() {
    let (mut bench, _) = managed();
    let mut info = PortInfo::from_array(*local(&mut bench, 1, 0x15, &[0; 64]).data());
    info.set_lid(5).set_port_physical_state(0);
    for state in [3, 4] {
        info.set_port_state(state);
        local(&mut bench, 2, 0x15, info.as_array());
    }
    driver::Device::reset(&*bench.function);
    bench.initialise();
    let state = |bench: &mut Bench| {
        let info = PortInfo::from_array(*local(bench, 1, 0x15, &[0; 64]).data());
        (info.port_state(), info.lid())
    };
    assert_eq!(state(&mut bench), (4, 5));
    bench.sim.inject(&bench.function, &hw_sim::Fault::LinkDown);
    assert_eq!(state(&mut bench), (1, 5), "Down");
    bench.sim.inject(&bench.function, &hw_sim::Fault::LinkUp);
    bench.sim.advance(Duration::from_secs(1));
    assert_eq!(state(&mut bench), (2, 5), "Init");
}

/// Without the M_Key no Set is accepted, and the protection bits determine whether a Get is answered (IBTA volume 1,
/// section 14.2.4.1, and its table of protection bits).
#[test]
fn without_the_m_key_nothing_is_set_and_what_is_read_depends_on_the_protection() {
    let (sim, function) = port();
    let mut key = [0; 8];
    for (protection, shown) in [(0, Some(0x5a)), (1, Some(0)), (2, None)] {
        // A SubnSet(PortInfo) from the wire, with the current M_Key, sets the new M_Key.
        let mut mad = directed(0x15);
        mad[24..32].copy_from_slice(&key);
        let now = exchange(&sim, &function, frame(&mad, PERMISSIVE, PERMISSIVE, 15, 0));
        let now = mad_in(&now.unwrap());
        mad[3] = 2;
        mad[64..128].copy_from_slice(&now[64..128]);
        key = [0, 0, 0, 0, 0, 0, 0, 0x5a];
        mad[64..72].copy_from_slice(&key);
        mad[96] &= 0xf0;
        mad[97] &= 0x0f;
        mad[98] = protection << 6;
        let set = exchange(&sim, &function, frame(&mad, PERMISSIVE, PERMISSIVE, 15, 0));
        assert_eq!(mad_in(&set.unwrap())[4..6], [0x80, 0]);
        let get = directed(0x15);
        let got = exchange(&sim, &function, frame(&get, PERMISSIVE, PERMISSIVE, 15, 0));
        assert_eq!(got.map(|frame| mad_in(&frame)[71]), shown, "{protection}");
        mad[24..32].fill(0);
        let set = exchange(&sim, &function, frame(&mad, PERMISSIVE, PERMISSIVE, 15, 0));
        assert_eq!(set, None, "a Set without the key");
    }
}
