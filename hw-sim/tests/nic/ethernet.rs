//! Tests of an Ethernet port as the drivers of operating systems use it: its capabilities, the features that depend on
//! them, and its counters. The findings about the stock Linux drivers are in docs/findings.md.

use mlx_prm::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::bench::{Bench, Failure, READ, list, modest};
use crate::eth_support::*;

fn page(bench: &mut Bench, kind: CapType) -> Result<[u8; 0x1000], Failure> {
    bench.capability(kind.current())
}

#[test]
fn capability_pages_of_ethernet_exist_where_the_general_page_announces_them() {
    let mut without = modest();
    without
        .general
        .set(|caps| _ = caps.set_eth_net_offloads(false).set_nic_flow_table(false));
    let (mut plain, _) = Bench::usable(without);
    let (mut ethernet, _) = Bench::usable(modest().ethernet());
    for kind in [CapType::ETHERNET_OFFLOADS, CapType::FLOW_TABLE] {
        let refused = Err(Failure::Refused(CmdStatus::BAD_OP));
        assert_eq!(page(&mut plain, kind), refused, "{kind:?}");
        assert!(page(&mut ethernet, kind).is_ok(), "{kind:?}");
    }
}

/// The port announces the capabilities that Linux 6.12 `mlx5_eth_supported` (`mlx5/core/dev.c`) requires for a network
/// device, and the levels and sizes without which `create_anchor_flow_table` and `mlx5e_create_l2_table` fail.
#[test]
fn the_port_announces_what_a_stock_network_driver_looks_for() {
    let (mut bench, _) = Bench::usable(modest().ethernet());
    let general = page(&mut bench, CapType::GENERAL).unwrap();
    let (general, _) = CmdHcaCap::read_from_prefix(&general).unwrap();
    assert!(general.eth_net_offloads() && general.nic_flow_table());
    assert_eq!(general.max_wqe_sz_sq(), 1024);
    let offloads = page(&mut bench, CapType::ETHERNET_OFFLOADS).unwrap();
    let (offloads, _) = EthOffloadCaps::read_from_prefix(&offloads).unwrap();
    assert!(offloads.csum_cap() && offloads.vlan_cap());
    assert!(offloads.max_lso_cap() > 0 && offloads.rss_ind_tbl_cap() > 0);
    let tables = page(&mut bench, CapType::FLOW_TABLE).unwrap();
    let receive = FlowTableProperties::read_from_bytes(&tables[0x40..0x80]).unwrap();
    assert!(receive.ft_support());
    assert!(receive.log_max_ft_size() >= 16 && receive.max_ft_level() >= 58);
}

/// An Ethernet port has exactly one P_Key, the default P_Key. Linux's RDMA core queries the P_Keys of every port,
/// including RoCE ports (`ib_cache_update`). If the device refuses the query, the RDMA core fails with "Couldn't set up
/// InfiniBand P_Key/GID cache".
#[test]
fn an_ethernet_port_has_the_default_partition_and_no_other() {
    let (mut bench, _) = Bench::usable(modest());
    let mut query = QueryHcaVportPkeyIn::new();
    let out = bench.raw(query.as_bytes(), 0x14).unwrap();
    assert_eq!(out[0x10..], [0, 0, 0xff, 0xff]);
    query.set_pkey_index(1);
    assert_eq!(bench.status(&query), CmdStatus::BAD_PARAM);
}

/// A receive queue may have PD 0. Linux creates such a queue to drop frames, and posts no receives to it
/// (`mlx5e_build_drop_rq_param` leaves the field at 0).
#[test]
fn a_receive_queue_that_only_drops_needs_no_protection_domain() {
    let (_sim, mut a, _b) = pair();
    let (ring, record) = a.bench.ring_and_record();
    let create = rq_input(a.rq.cq.number, 0, record, [4, 0]);
    let rqn = a.bench.exec_with(&create, &list(&[ring])).unwrap().rqn();
    let mut destroy = DestroyRqIn::new();
    destroy.set_rqn(rqn);
    assert_eq!(a.bench.status(&destroy), CmdStatus::OK);
}

#[test]
fn objects_of_ethernet_ports_do_not_exist_on_infiniband_ports() {
    let (mut bench, _) = Bench::usable(modest().infiniband());
    assert_eq!(bench.status(&CreateTisIn::new()), CmdStatus::BAD_OP);
    assert_eq!(bench.status(&CreateFlowTableIn::new()), CmdStatus::BAD_OP);
}

/// A frame is counted by QUERY_VPORT_COUNTER of both functions and by the receiver's PPCNT register, which `ip -s link`
/// and `ethtool -S` read.
#[test]
fn a_frame_is_counted_where_statistics_are_read() {
    let (_sim, mut a, mut b) = pair();
    b.post_receives(1);
    a.send(&plain(0, MACS[1], 286), SendOptions::default());
    b.received().unwrap();
    let vport = |side: &mut Side| side.bench.exec(&QueryVportCounterIn::new()).unwrap();
    let counted = |counter: &TrafficCounter| (counter.packets(), counter.octets());
    assert_eq!(counted(vport(&mut a).transmitted_eth_unicast()), (1, 300));
    assert_eq!(counted(vport(&mut b).received_eth_unicast()), (1, 300));
    assert_eq!(counted(vport(&mut b).received_ib_unicast()), (0, 0));
    let mut image = Ppcnt::new();
    image.set_local_port(1);
    let out = b.bench.register(RegisterId::PPCNT, READ, image.as_bytes());
    let frames = Ieee8023Counters::read_from_bytes(&out.unwrap()[0x08..]).unwrap();
    assert_eq!(
        (frames.a_frames_received_ok(), frames.a_octets_received_ok()),
        (1, 300)
    );
}

/// A queue can only have a time stamp format whose clock the device has. A device with only a real-time clock refuses
/// free-running time stamps: status 3, syndrome 0xd61c0b of CREATE_SQ on ConnectX-6 Dx (Linux commit 0f3caaa2c6fb).
/// With only a free-running clock, 0 is the only format of a send or receive queue (mlx5_ifc.h). Inferred: a queue pair
/// may always have the default format, as UCX requests it on every card.
#[test]
fn a_queue_has_time_stamps_of_a_clock_that_is_there() {
    for (capability, taken) in [(0, [0].as_slice()), (1, &[1, 2]), (2, &[0, 1, 2])] {
        let mut profile = modest().ethernet();
        profile.general.set(|caps| {
            caps.set_sq_ts_format(capability)
                .set_rq_ts_format(capability);
        });
        profile
            .roce
            .set(|caps| _ = caps.set_qp_ts_format(capability));
        let (mut bench, _) = Bench::usable(profile);
        for format in 0..4 {
            let mut sq = CreateSqIn::new();
            sq.ctx_mut().set_cqn(0xdead).set_ts_format(format);
            let mut rq = CreateRqIn::new();
            rq.ctx_mut().set_cqn(0xdead).set_ts_format(format);
            let mut qp = CreateQpIn::new();
            qp.qpc_mut()
                .set_st(ServiceType::RC.bits())
                .set_pd(0xdead)
                .set_ts_format(format);
            // If the format is accepted, the command still fails, because the completion queue or domain does not
            // exist.
            let status = |is_taken| match is_taken {
                true => CmdStatus::BAD_RESOURCE,
                false => CmdStatus::BAD_PARAM,
            };
            let expected = status(taken.contains(&format));
            let of_qp = status(format == 1 || taken.contains(&format));
            let case = format!("format {format} of capability {capability}");
            assert_eq!(bench.status(&sq), expected, "SQ, {case}");
            assert_eq!(bench.status(&rq), expected, "RQ, {case}");
            assert_eq!(bench.status(&qp), of_qp, "QP, {case}");
        }
    }
    let refusal = "SQ with time stamps of a clock that is not there";
    assert_eq!(hw_sim::cmd::syndrome_of(refusal), 0xd6_1c0b);
}

/// An RC queue pair of a RoCE port can have forced loopback only with `fl_rc_qp_when_roce_enabled` (rdma-core and Linux
/// `dr_send_allow_fl`). A queue pair of another service cannot have it.
#[test]
fn loopback_is_forced_where_the_capability_says_so_and_of_reliable_connections() {
    for (capability, service, expected) in [
        (false, ServiceType::RC, CmdStatus::BAD_PARAM),
        (true, ServiceType::UC, CmdStatus::BAD_PARAM),
        // Forced loopback is accepted. The command fails later, because the queue pair does not exist.
        (true, ServiceType::RC, CmdStatus::BAD_RESOURCE),
    ] {
        let mut profile = modest();
        profile
            .roce
            .set(|caps| _ = caps.set_fl_rc_qp_when_roce_enabled(capability));
        let (mut bench, _) = Bench::usable(profile);
        bench.allow_roce();
        let mut rtr = Init2RtrQpIn::new();
        rtr.set_qpn(0xdead).qpc_mut().set_st(service.bits());
        rtr.qpc_mut().primary_address_path_mut().set_fl(true);
        assert_eq!(bench.status(&rtr), expected, "{capability}, {service:?}");
    }
}
