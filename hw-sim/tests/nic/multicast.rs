//! Tests of multicast groups of datagram queue pairs, on an Ethernet port.
//!
//! Linux attaches a queue pair to a group by `ib_attach_mcast`, which calls `mlx5_ib_mcg_attach`
//! (drivers/infiniband/hw/mlx5/main.c). The addresses are those of `cma_iboe_set_mgid` and `ib_resolve_eth_dmac` of
//! Linux' RDMA core.

use hw_sim::{LinkFaults, Profile, Sim, SimConfig};
use mlx_prm::*;
use zerocopy::IntoBytes;

use crate::bench::{Bench, CompletionQueue, Resources, list, modest};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const QKEY: u32 = 0x1_1111;
/// GID of the group 239.1.2.3, and its MAC address.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
const GROUP_MAC: [u8; 6] = [0x01, 0x00, 0x5e, 1, 2, 3];
/// GID of another group (238.129.2.3) with the same MAC address.
const SAME_MAC_GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 238, 129, 2, 3];
const EVERYBODY: u32 = 0xff_ffff;
/// Number of bytes before the payload of a received datagram.
const HEADER: u32 = 40;

fn gid(side: usize) -> [u8; 16] {
    let mut gid = GROUP;
    gid[12..].copy_from_slice(&[10, 0, 0, MACS[side][5]]);
    gid
}

/// Enables RoCE v2 over IPv4.
fn enable_roce(bench: &mut Bench, side: usize) {
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_roce_en(true);
    modify.nic_vport_context_mut().set_roce_en(true);
    bench.exec(&modify).unwrap();
    let [a, b, c, d, e, f] = MACS[side];
    let mut set = SetRoceAddressIn::new();
    set.set_vhca_port_num(1);
    set.roce_address_mut()
        .set_source_l3_address(&gid(side))
        .set_source_mac_47_32(u32::from(a) << 8 | u32::from(b))
        .set_source_mac_31_0(u32::from_be_bytes([c, d, e, f]))
        .set_roce_version(2);
    bench.exec(&set).unwrap();
}

/// A datagram queue pair with eight send blocks and eight receive buffers of 2 KiB.
struct Datagrams {
    qpn: u32,
    cq: CompletionQueue,
    ring: usize,
    record: usize,
    data: (usize, u64),
    seen: u32,
    sent: u16,
}

struct Side {
    bench: Bench,
    resources: Resources,
    key: u32,
}

impl Side {
    fn new(sim: &Sim, side: usize, profile: Profile) -> Self {
        let mut bench = Bench::in_world(
            sim,
            Profile {
                name: format!("f{side}"),
                mac: MACS[side],
                ..profile
            },
        );
        bench.start();
        bench.exec(&EnableHcaIn::new()).unwrap();
        bench.satisfy_pages(1);
        bench.bring_up();
        let resources = bench.resources();
        enable_roce(&mut bench, side);
        let key = bench.create_pa_key(resources.pd);
        Self {
            bench,
            resources,
            key,
        }
    }

    fn datagrams(&mut self, service: ServiceType, q_key: u32, block: bool) -> Datagrams {
        let bench = &mut self.bench;
        let resources = &self.resources;
        let cq = bench
            .create_cq(resources.uar, resources.eq.number, 6)
            .unwrap();
        let (ring, ring_iova) = bench.alloc(4096);
        let (record, record_iova) = bench.alloc(64);
        let data = bench.alloc(8 * 2048);
        let mut create = CreateQpIn::new();
        create
            .qpc_mut()
            .set_st(service.bits())
            .set_pd(resources.pd)
            .set_uar_page(resources.uar)
            .set_log_rq_size(3)
            .set_log_sq_size(3)
            .set_cqn_snd(cq.number)
            .set_cqn_rcv(cq.number)
            .set_dbr_addr(record_iova)
            .set_user_index(EVERYBODY)
            .set_block_lb_mc(block);
        let qpn = bench.exec_with(&create, &list(&[ring_iova])).unwrap().qpn();
        let mut init = Rst2InitQpIn::for_qp(Qpn::new(qpn), 0);
        init.qpc_mut().set_q_key(q_key);
        init.qpc_mut()
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        bench.exec(&init).unwrap();
        let mut rtr = Init2RtrQpIn::for_qp(Qpn::new(qpn), 0);
        rtr.qpc_mut().set_mtu(3);
        let mut rts = Rtr2RtsQpIn::for_qp(Qpn::new(qpn), 0);
        for context in [rtr.qpc_mut(), rts.qpc_mut()] {
            context.primary_address_path_mut().set_vhca_port_num(1);
        }
        bench.exec(&rtr).unwrap();
        bench.exec(&rts).unwrap();
        for slot in 0..8 {
            let mut segment = DataSeg::new();
            segment
                .set_byte_count(2048)
                .set_lkey(self.key)
                .set_addr(data.1 + 2048 * slot);
            let at = ring + 16 * usize::try_from(slot).unwrap();
            bench.memory.write_obj(at, &segment);
        }
        bench.memory.store_be32(record, 8);
        Datagrams {
            qpn,
            cq,
            ring: ring + 8 * 16,
            record,
            data,
            seen: 0,
            sent: 0,
        }
    }

    fn join(&mut self, qpn: u32, group: [u8; 16]) -> CmdStatus {
        let mut attach = AttachToMcgIn::new();
        attach.set_qpn(qpn).set_multicast_gid(&group);
        self.bench.status(&attach)
    }

    fn leave(&mut self, qpn: u32, group: [u8; 16]) -> CmdStatus {
        let mut detach = DetachFromMcgIn::new();
        detach.set_qpn(qpn).set_multicast_gid(&group);
        self.bench.status(&detach)
    }

    fn destroy(&mut self, qpn: u32) -> CmdStatus {
        let mut destroy = DestroyQpIn::new();
        destroy.set_qpn(qpn);
        self.bench.status(&destroy)
    }

    /// Sends a datagram of eight bytes to a group.
    fn send(&mut self, from: &mut Datagrams, group: [u8; 16]) {
        let mut control = CtrlSeg::new();
        control
            .set_opcode(WqeOpcode::SEND.bits())
            .set_wqe_index(u32::from(from.sent))
            .set_qp_or_sq(from.qpn)
            .set_ds(5);
        let mut av = Av::new();
        av.set_q_key(QKEY)
            .set_ext(true)
            .set_dqp(EVERYBODY)
            .set_rlid(0xc777)
            .set_rmac(&GROUP_MAC)
            .set_hop_limit(1)
            .set_grh(true)
            .set_rgid(&group);
        let mut inline = InlineSeg::new();
        inline.set_inline(true).set_byte_count(8);
        let bytes = [
            control.as_bytes(),
            av.as_bytes(),
            inline.as_bytes(),
            b"to all..",
        ]
        .concat();
        // Each WQE has two blocks, so the ring holds four WQEs.
        let slot = usize::from(from.sent % 8);
        self.bench.memory.write_bytes(from.ring + slot * 64, &bytes);
        from.sent += 2;
        let record = from.record + 4;
        self.bench.memory.store_be32(record, u32::from(from.sent));
        let mut bell = [0; 8];
        bell.copy_from_slice(&bytes[..8]);
        let register = u64::from(self.resources.uar) << 12 | 0x800;
        self.bench.write64(register, u64::from_be_bytes(bell));
    }

    /// Returns the number of datagrams received since the last call. Checks that each has eight bytes and the group's
    /// address before them.
    fn received(&mut self, by: &mut Datagrams, group: [u8; 16]) -> usize {
        let mut count = 0;
        loop {
            let slot = usize::try_from(by.seen % 64).unwrap();
            let cqe: Cqe64 = self.bench.memory.read_obj(by.cq.at + slot * 64);
            if cqe.opcode() == CqeOpcode::INVALID || cqe.owner() != (by.seen / 64 % 2 == 1) {
                return count;
            }
            assert_eq!(
                (cqe.opcode(), cqe.byte_cnt()),
                (CqeOpcode::RESP_SEND, HEADER + 8)
            );
            let mut bytes = [0; 48];
            let at = by.data.0 + 2048 * usize::from(cqe.wqe_counter() % 8);
            self.bench.memory.read_bytes(at, &mut bytes);
            assert_eq!(bytes[36..40], group[12..], "destination in the IPv4 header");
            assert_eq!(&bytes[40..], b"to all..");
            by.seen += 1;
            count += 1;
        }
    }
}

fn pair_with(profile: &Profile) -> (Side, Side) {
    let sim = Sim::new(SimConfig::seeded(1));
    let sides = [0, 1].map(|side| Side::new(&sim, side, profile.clone()));
    let ends = sides.each_ref().map(|side| &side.bench.function);
    sim.connect(ends[0], ends[1], LinkFaults::NONE);
    let [a, b] = sides;
    (a, b)
}

fn pair() -> (Side, Side) {
    pair_with(&modest())
}

const UD: ServiceType = ServiceType::UD;

#[test]
fn a_datagram_for_a_group_reaches_every_member_on_both_sides_and_no_other() {
    let (mut a, mut b) = pair();
    let mut sender = a.datagrams(UD, QKEY, false);
    let mut here = a.datagrams(UD, QKEY, false);
    let mut there = [0; 3].map(|_| b.datagrams(UD, QKEY, false));
    let mut stranger = b.datagrams(UD, QKEY + 1, false);
    assert_eq!(a.join(here.qpn, GROUP), CmdStatus::OK);
    assert_eq!(b.join(there[0].qpn, GROUP), CmdStatus::OK);
    assert_eq!(b.join(there[1].qpn, GROUP), CmdStatus::OK);
    assert_eq!(b.join(stranger.qpn, GROUP), CmdStatus::OK);
    a.send(&mut sender, GROUP);
    assert_eq!(a.received(&mut here, GROUP), 1, "the same function");
    assert_eq!(a.received(&mut sender, GROUP), 0, "no member");
    let counts = there.each_mut().map(|by| b.received(by, GROUP));
    assert_eq!(counts, [1, 1, 0], "the third is no member");
    assert_eq!(b.received(&mut stranger, GROUP), 0, "another Q_Key");
    // The GID identifies the group, not the MAC address.
    a.send(&mut sender, SAME_MAC_GROUP);
    assert_eq!(b.received(&mut there[0], GROUP), 0);
    assert_eq!(b.leave(there[0].qpn, GROUP), CmdStatus::OK);
    a.send(&mut sender, GROUP);
    let counts = there.each_mut().map(|by| b.received(by, GROUP));
    assert_eq!(counts, [0, 1, 0]);
    for side in [&a, &b] {
        let report = side.bench.sim.report(&side.bench.function);
        assert_eq!(report.driver_bugs, [""; 0]);
    }
}

/// A member of a group also gets packets of its own function (Linux `ipoib_ib_handle_rx_wc`), unless the member's
/// context has `block_lb_mc` (`IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`).
#[test]
fn a_member_gets_packets_of_its_own_function_unless_it_blocks_them() {
    let (mut a, mut b) = pair();
    let mut open = a.datagrams(UD, QKEY, false);
    let mut closed = a.datagrams(UD, QKEY, true);
    let mut far = b.datagrams(UD, QKEY, true);
    for qpn in [open.qpn, closed.qpn] {
        assert_eq!(a.join(qpn, GROUP), CmdStatus::OK);
    }
    assert_eq!(b.join(far.qpn, GROUP), CmdStatus::OK);
    a.send(&mut open, GROUP);
    assert_eq!(a.received(&mut open, GROUP), 1);
    assert_eq!(a.received(&mut closed, GROUP), 0);
    assert_eq!(
        b.received(&mut far, GROUP),
        1,
        "only its own function's are blocked"
    );
    a.send(&mut closed, GROUP);
    assert_eq!(a.received(&mut open, GROUP), 1);
    assert_eq!(a.received(&mut closed, GROUP), 0);
}

#[test]
fn groups_are_of_datagram_queue_pairs_that_exist_and_stay() {
    let (mut a, _b) = pair();
    let member = a.datagrams(UD, QKEY, false);
    let gsi = a.datagrams(ServiceType::QP1, QKEY, false);
    let host = gid(0);
    for (what, qpn, group, status) in [
        ("no such queue pair", 0xdead, GROUP, CmdStatus::BAD_RESOURCE),
        ("general services", gsi.qpn, GROUP, CmdStatus::BAD_PARAM),
        ("the address of one", member.qpn, host, CmdStatus::BAD_PARAM),
        ("a group", member.qpn, GROUP, CmdStatus::OK),
        ("twice", member.qpn, GROUP, CmdStatus::BAD_RES_STATE),
        ("another group", member.qpn, [0xff; 16], CmdStatus::OK),
    ] {
        assert_eq!(a.join(qpn, group), status, "{what}");
    }
    assert_eq!(a.leave(gsi.qpn, GROUP), CmdStatus::BAD_RESOURCE);
    assert_eq!(a.leave(member.qpn, SAME_MAC_GROUP), CmdStatus::BAD_RESOURCE);
    assert_eq!(a.destroy(member.qpn), CmdStatus::BAD_RES_STATE);
    for group in [GROUP, [0xff; 16]] {
        assert_eq!(a.leave(member.qpn, group), CmdStatus::OK);
        assert_eq!(a.leave(member.qpn, group), CmdStatus::BAD_RESOURCE);
    }
    assert_eq!(a.destroy(member.qpn), CmdStatus::OK);
}

#[test]
fn groups_and_their_members_are_as_many_as_announced() {
    let mut profile = modest();
    for page in [&mut profile.general.max, &mut profile.general.current] {
        page.set_log_max_mcg(1).set_max_qp_mcg(2);
    }
    let (mut a, _b) = pair_with(&profile);
    let members = [0; 3].map(|_| a.datagrams(UD, QKEY, false));
    let [first, second, third] = members.map(|member| member.qpn);
    assert_eq!(a.join(first, GROUP), CmdStatus::OK);
    assert_eq!(a.join(second, GROUP), CmdStatus::OK);
    assert_eq!(a.join(third, GROUP), CmdStatus::EXCEED_LIM);
    assert_eq!(a.join(third, SAME_MAC_GROUP), CmdStatus::OK);
    assert_eq!(a.join(third, [0xff; 16]), CmdStatus::EXCEED_LIM);
    let report = a.bench.sim.report(&a.bench.function);
    assert_eq!(report.objects["multicast group"], 2);
}

#[test]
fn a_membership_is_ended_by_the_owner_of_the_queue_pair() {
    let sim = Sim::new(SimConfig::seeded(1));
    let mut station = Side::new(&sim, 0, modest().devx());
    let member = station.datagrams(ServiceType::UD, QKEY, false);
    assert_eq!(station.join(member.qpn, GROUP), CmdStatus::OK);
    let uid = station.bench.exec(&CreateUctxIn::new()).unwrap().uid();
    let mut detach = DetachFromMcgIn::new();
    detach
        .set_uid(uid)
        .set_qpn(member.qpn)
        .set_multicast_gid(&GROUP);
    let status = station.bench.status(&detach);
    assert_eq!(status, CmdStatus::BAD_RESOURCE);
    assert_eq!(station.leave(member.qpn, GROUP), CmdStatus::OK);
}
