//! Tests of an InfiniBand port: its vport context, its management queue pairs, XRC shared receive queues, and queues in
//! large pages. Most cases were found with the stock Linux driver; see docs/findings.md.

use mlx_prm::*;

use crate::bench::{
    Bench, Failure, READ, Resources, WRITE, destroy_qp, list, modest, qp_input, signalled,
};
use crate::xrc::xrc_srq_input;

fn usable() -> (Bench, Resources) {
    Bench::usable(modest().infiniband())
}

#[test]
fn the_vport_is_active_with_a_lid_and_without_carrier_it_is_down() {
    let (mut bench, _) = usable();
    let query = QueryHcaVportContextIn::new();
    let context = bench.exec(&query).unwrap();
    let context = context.hca_vport_context();
    // PortState is Active and PortPhysicalState is LinkUp. Linux reads the port's state from `vport_state`
    // (`mlx5_query_hca_port`).
    assert_eq!(
        (
            context.vport_state(),
            context.port_state(),
            context.port_physical_state()
        ),
        (4, 4, 5)
    );
    assert_eq!(context.lid(), 1);
    bench.sim.inject(&bench.function, &hw_sim::Fault::LinkDown);
    let context = bench.exec(&query).unwrap();
    let context = context.hca_vport_context();
    assert_eq!(
        (context.vport_state(), context.port_physical_state()),
        (1, 2)
    );
}

/// The port has virtual lane 0 only, as PortInfo says (VLCap 1; IBTA volume 1, PortInfo). PVLC has three fields of four
/// bits, at the ends of its last three dwords (Linux `mlx5_ifc_pvlc_reg_bits`), all coded alike (`MLX5_VL_HW_0` is 1).
#[test]
fn the_port_has_one_virtual_lane_which_is_in_operation() {
    let (mut bench, _) = usable();
    let mut ask = |op_mod: u32, port: u8| {
        let mut image = [0; 16];
        image[1] = port;
        bench.register(RegisterId::PVLC, op_mod, &image)
    };
    let told = ask(READ, 1).unwrap();
    assert_eq!(told, [0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    let refused = Err(Failure::Refused(CmdStatus::BAD_PARAM));
    assert_eq!(ask(READ, 2), refused, "there is one port");
    assert_eq!(ask(WRITE, 1), refused, "the lanes are fixed");
}

#[test]
fn the_capability_mask_takes_the_bits_that_are_selected() {
    let (mut bench, _) = usable();
    let mask = |bench: &mut Bench| {
        let out = bench.exec(&QueryHcaVportContextIn::new()).unwrap();
        out.hca_vport_context().cap_mask1()
    };
    let before = mask(&mut bench);
    let mut modify = ModifyHcaVportContextIn::new();
    modify
        .hca_vport_context_mut()
        .set_cap_mask1(u32::MAX)
        .set_cap_mask1_field_select(1 << 1);
    bench.exec(&modify).unwrap();
    assert_eq!(mask(&mut bench), before | 1 << 1);
    modify
        .hca_vport_context_mut()
        .set_cap_mask1(0)
        .set_cap_mask1_field_select(1 << 1);
    bench.exec(&modify).unwrap();
    assert_eq!(mask(&mut bench), before & !(1 << 1));
}

#[test]
fn gids_and_partitions_are_read_one_by_one_or_all_at_once() {
    let (mut bench, _) = usable();
    let mut gid = QueryHcaVportGidIn::new();
    let first = bench.raw(gid.as_array(), 0x20).unwrap();
    assert_eq!(first[0x0c..0x0e], [0, 1], "one GID");
    assert_eq!(first[0x10..0x12], [0xfe, 0x80]);
    gid.set_gid_index(0xffff);
    assert_eq!(
        bench.raw(gid.as_array(), 0x100).unwrap()[0x0c..0x0e],
        [0, 8]
    );
    gid.set_gid_index(8);
    assert_eq!(bench.status(&gid), CmdStatus::BAD_PARAM);
    let mut pkey = QueryHcaVportPkeyIn::new();
    let first = bench.raw(pkey.as_array(), 0x14).unwrap();
    assert_eq!(first[0x10..0x14], [0, 0, 0xff, 0xff]);
    pkey.set_pkey_index(128);
    assert_eq!(bench.status(&pkey), CmdStatus::BAD_PARAM);
}

#[test]
fn an_ethernet_port_has_no_hca_vport() {
    let (mut bench, _) = Bench::usable(modest());
    assert_eq!(
        bench.status(&QueryHcaVportContextIn::new()),
        CmdStatus::BAD_OP
    );
    assert_eq!(bench.status(&QueryHcaVportGidIn::new()), CmdStatus::BAD_OP);
    let mut without = modest();
    without.general.set(|caps| _ = caps.set_xrc(false));
    let (mut bench, _) = Bench::usable(without);
    assert_eq!(bench.status(&CreateXrcSrqIn::new()), CmdStatus::BAD_OP);
}

/// Returns a command that creates a queue pair without a receive queue and with a send queue of 64 WQEBBs.
fn qp(bench: &mut Bench, resources: &Resources, service: ServiceType, pd: u32) -> CreateQpIn {
    let cq = bench.cq(resources, 4);
    let (_, record) = bench.alloc(64);
    let mut create = qp_input(resources, cq.number, record);
    create
        .qpc_mut()
        .set_st(service.bits())
        .set_pd(pd)
        .set_rq_type(3)
        .set_log_rq_size(0)
        .set_log_sq_size(6);
    create
}

#[test]
fn a_port_has_one_queue_pair_for_subnet_management_and_one_for_general_services() {
    let (mut bench, resources) = usable();
    for service in [ServiceType::QP0, ServiceType::QP1] {
        let create = qp(&mut bench, &resources, service, resources.pd);
        let (_, page) = bench.alloc(4096);
        let pages = list(&[page]);
        let number = bench.exec_with(&create, &pages).unwrap().qpn();
        assert_eq!(
            bench.status_with(&create, &pages),
            CmdStatus::EXCEED_LIM,
            "{service:?}"
        );
        let destroy = destroy_qp(number);
        bench.exec(&destroy).unwrap();
        bench.exec_with(&create, &pages).unwrap();
    }
}

/// The queue pair for the driver's UMRs has no protection domain: Linux leaves `pd` zero for this queue pair, and only
/// for this one (`create_kernel_qp` in drivers/infiniband/hw/mlx5/qp.c).
#[test]
fn the_umr_queue_pair_is_in_no_protection_domain() {
    let (mut bench, resources) = usable();
    let (_, page) = bench.alloc(4096);
    let pages = list(&[page]);
    let umr = qp(&mut bench, &resources, ServiceType::REG_UMR, 0);
    bench.exec_with(&umr, &pages).unwrap();
    let rc = qp(&mut bench, &resources, ServiceType::RC, 0);
    assert_eq!(bench.status_with(&rc, &pages), CmdStatus::BAD_RESOURCE);
}

#[test]
fn an_xrc_srq_holds_its_domain_its_queue_and_its_pd() {
    let (mut bench, resources) = usable();
    let xrcd = bench.exec(&AllocXrcdIn::new()).unwrap().xrcd();
    let cq = bench.cq(&resources, 4);
    let (page, record) = bench.ring_and_record();
    let pages = list(&[page]);
    let create = xrc_srq_input(xrcd, resources.pd, cq.number, record);
    let number = bench.exec_with(&create, &pages).unwrap().xrc_srqn();
    let mut query = QueryXrcSrqIn::new();
    query.set_xrc_srqn(number);
    let context = bench.exec(&query).unwrap();
    let context = context.xrc_srq_context_entry();
    assert_eq!(
        (context.xrcd(), context.cqn(), context.log_xrc_srq_size()),
        (xrcd, cq.number, 4)
    );
    let mut arm = ArmXrcSrqIn::new();
    arm.set_op_mod(1).set_xrc_srqn(number).set_lwm(16);
    assert_eq!(bench.status(&arm), CmdStatus::BAD_PARAM, "16 of 16 entries");
    arm.set_lwm(4);
    bench.exec(&arm).unwrap();
    // An XRC SRQ is not a receive memory pool, although both have numbers from the same range.
    let mut rmp = DestroyRmpIn::new();
    rmp.set_rmpn(number);
    assert_eq!(bench.status(&rmp), CmdStatus::BAD_RESOURCE);
    let mut dealloc = DeallocXrcdIn::new();
    dealloc.set_xrcd(xrcd);
    assert_eq!(bench.status(&dealloc), CmdStatus::BAD_RES_STATE);
    let mut destroy = DestroyXrcSrqIn::new();
    destroy.set_xrc_srqn(number);
    bench.exec(&destroy).unwrap();
    bench.exec(&dealloc).unwrap();
}

/// The unit of a queue's page offset is 1/64 of the page, for all page sizes. libmlx5 places a queue at an offset in a
/// 64 KiB page. Regression test: the simulator used 1/64 of 4 KiB as the unit and read the send queue 64 bytes after
/// the page's start, so the first WQE of every other process failed.
#[test]
fn a_page_offset_counts_64ths_of_the_page_whatever_its_size() {
    let (mut bench, resources) = usable();
    let (at, page) = bench.alloc(2 * 0x1_0000);
    let aligned = page.next_multiple_of(0x1_0000);
    let shift = usize::try_from(aligned - page).unwrap();
    let mut create = qp(&mut bench, &resources, ServiceType::UD, resources.pd);
    create.qpc_mut().set_log_page_size(4).set_page_offset(3);
    let record = create.qpc().dbr_addr();
    let cqn = create.qpc().cqn_snd();
    let number = bench.exec_with(&create, &list(&[aligned])).unwrap().qpn();
    bench.ready_to_send(number, |_| {});
    // A signalled NOP at 3/64 of the 64 KiB page.
    let mut nop = signalled(WqeOpcode::NOP);
    nop.set_qp_or_sq(number).set_ds(1);
    bench.memory.write_obj(at + shift + 3 * 1024, &nop);
    let record = usize::try_from(record - page).unwrap() + at;
    bench.memory.store_be32(record + 4, 1);
    bench.ring(resources.uar, nop.as_array());
    let log = bench.log();
    assert!(
        log.contains(&format!("cqe cq={cqn:#x} op=0x0")),
        "{}",
        log.lines().rev().take(5).collect::<Vec<_>>().join("\n")
    );
}

/// The firmware has one component, the boot image, whose version is the firmware version. For `devlink dev info`,
/// Linux' `mlx5_fw_version_query` reads the registers that exist (MCAM), the component that is the boot image (MCQS),
/// and its version (MCQI). Without these registers Linux warns "fw query isn't supported by the FW".
#[test]
fn the_firmware_version_is_that_of_the_only_component() {
    let (mut bench, _) = usable();
    let mut read = |register: RegisterId, image: &[u8]| bench.register(register, READ, image);
    let registers = read(RegisterId::MCAM, &[0; 0x48]).unwrap();
    assert_eq!(registers[0x0b], 0b11, "MCQI and MCQS");
    let component = read(RegisterId::MCQS, &[0; 0x10]).unwrap();
    assert_eq!(
        (component[0] >> 7, component[7]),
        (1, 1),
        "the last one, boot image"
    );
    let mut ask = [0; 0x20];
    ask[0x0b] = 1;
    ask[0x17] = 0x7c;
    let version = read(RegisterId::MCQI, &ask).unwrap();
    assert_eq!(version[0x1c..0x20], [16, 35, 0x03, 0xf4]);
    ask[3] = 1;
    assert!(
        read(RegisterId::MCQI, &ask).is_err(),
        "there is no component 1"
    );
}

/// Sends a Get of a LID-routed subnet management packet by MAD_IFC. Returns the answer.
fn smp(bench: &mut Bench, attribute: u16, modifier: u32) -> Smp {
    let mut mad = Smp::new();
    mad.set_base_version(1)
        .set_mgmt_class(1)
        .set_class_version(1)
        .set_method(1)
        .set_transaction_id(0x1122)
        .set_attribute_id(attribute)
        .set_attribute_modifier(modifier);
    let mut input = MadIfcIn::new();
    input.set_op_mod(3).set_port(1).set_mad(mad.as_array());
    Smp::from_array(*bench.exec(&input).unwrap().response_mad_packet())
}

/// The function answers subnet management packets about its port. The test reads the offsets that rdma-core
/// (`query_port_state_with_mads` in tests/mlx5_base.py) and Linux (`mlx5_query_mad_ifc_port` in
/// drivers/infiniband/hw/mlx5/mad.c) read.
#[test]
fn the_function_answers_subnet_management_packets_about_its_port() {
    let (mut bench, _) = usable();
    let port = smp(&mut bench, 0x15, 1);
    assert_eq!(
        (port.method(), port.status(), port.transaction_id()),
        (0x81, 0, 0x1122)
    );
    let data = port.data();
    assert_eq!(data[32] & 0xf, 4, "ACTIVE");
    assert_eq!(data[33] >> 4, 5, "LinkUp");
    assert_eq!(data[16..18], [0, 1], "the LID");
    assert_eq!((data[36] >> 4, data[41] & 0xf), (5, 5), "4096 bytes");
    // Linux reads the length of the GID table from this field.
    assert_eq!(data[50], 8, "GUIDCap counts GUIDs");
    assert_eq!(
        smp(&mut bench, 0x15, 1 << 31 | 1).status(),
        0,
        "extended speeds"
    );
    let node = smp(&mut bench, 0x11, 0);
    assert_eq!(
        node.data()[..4],
        [1, 1, 1, 1],
        "a channel adapter with one port"
    );
    assert_eq!(node.data()[37..40], [0x00, 0x02, 0xc9]);
    let guids = smp(&mut bench, 0x14, 0);
    assert_eq!(guids.data()[..8], node.data()[20..28], "the port's GUID");
    let pkeys = smp(&mut bench, 0x16, 3);
    assert_eq!((pkeys.status(), pkeys.data()), (0, &[0; 64]));
    assert_eq!(smp(&mut bench, 0x16, 0).data()[..4], [0xff, 0xff, 0, 0]);
    assert_eq!(&smp(&mut bench, 0x10, 0).data()[..4], b"sim0");
    // Linux `mlx5_query_ext_port_caps` and opensm query this attribute on this vendor's devices. Byte 15 reports FDR10.
    let extended = smp(&mut bench, 0xff90, 1);
    assert_eq!((extended.status(), extended.data()[15]), (0, 0));

    bench.sim.inject(&bench.function, &hw_sim::Fault::LinkDown);
    assert_eq!(smp(&mut bench, 0x15, 1).data()[32] & 0xf, 1, "Down");
}

#[test]
fn an_unanswerable_subnet_management_packet_has_a_status_or_is_refused() {
    let (mut bench, _) = usable();
    for (what, attribute, modifier, status) in [
        ("block beyond the GUIDs", 0x14, 1, 0x1c),
        ("block beyond the partitions", 0x16, 4, 0x1c),
        ("port 2", 0x15, 2, 0x1c),
        ("an attribute of the vendor's", 0xff91, 1, 0x0c),
    ] {
        assert_eq!(
            smp(&mut bench, attribute, modifier).status(),
            status,
            "{what}"
        );
    }
    let mut mad = Smp::new();
    mad.set_base_version(1)
        .set_mgmt_class(1)
        .set_class_version(1)
        .set_method(5);
    let mut input = MadIfcIn::new();
    input.set_port(1).set_mad(mad.as_array());
    let answer = bench.exec(&input).unwrap();
    assert_eq!(
        Smp::from_array(*answer.response_mad_packet()).status(),
        0x08,
        "Trap"
    );
    mad.set_mgmt_class(3);
    input.set_mad(mad.as_array());
    assert_eq!(
        bench.status(&input),
        CmdStatus::BAD_PARAM,
        "subnet administration"
    );
    mad.set_mgmt_class(1);
    input.set_mad(mad.as_array()).set_port(2);
    assert_eq!(bench.status(&input), CmdStatus::BAD_PARAM, "port 2");
    input.set_port(1).set_op_mod(4);
    assert_eq!(bench.status(&input), CmdStatus::BAD_OP);
    let (mut ethernet, _) = Bench::usable(modest());
    input.set_op_mod(3);
    assert_eq!(ethernet.status(&input), CmdStatus::BAD_OP);
}
