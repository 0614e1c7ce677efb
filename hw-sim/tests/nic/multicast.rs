//! Tests of multicast groups of datagram queue pairs, on an Ethernet port.
//!
//! Linux attaches a queue pair to a group by `ib_attach_mcast`, which calls `mlx5_ib_mcg_attach`
//! (drivers/infiniband/hw/mlx5/main.c). The addresses are those of `cma_iboe_set_mgid` and `ib_resolve_eth_dmac` of
//! Linux' RDMA core.

use hw_sim::{LinkFaults, Profile, Sim, SimConfig};
use mlx_prm::*;
use zerocopy::IntoBytes;

use crate::bench::{Bench, MACS, QueuePair, Resources, data_seg, destroy_qp, modest};

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

/// A datagram queue pair, and the offset of its eight receive buffers of 2 KiB.
struct Datagrams {
    qp: QueuePair,
    data: usize,
}

struct Side {
    bench: Bench,
    resources: Resources,
    key: u32,
}

impl Side {
    /// Creates a function with RoCE v2 over IPv4.
    fn new(sim: &Sim, side: usize, profile: Profile) -> Self {
        let profile = profile.called(&format!("f{side}"), MACS[side]);
        let (mut bench, resources) = Bench::in_world(sim, profile).with_resources();
        bench.allow_roce();
        bench.set_gid(gid(side), MACS[side]);
        let key = bench.create_pa_key(resources.pd);
        Self {
            bench,
            resources,
            key,
        }
    }

    fn datagrams(&mut self, service: ServiceType, q_key: u32, block: bool) -> Datagrams {
        let mut qp = self.bench.qp(&self.resources, 6, |qpc| {
            _ = qpc.set_st(service.bits()).set_block_lb_mc(block)
        });
        self.bench
            .ready_to_send(qp.number, |qpc| _ = qpc.set_q_key(q_key));
        let (data, iova) = self.bench.alloc(8 * 2048);
        for slot in 0..8 {
            let entry = data_seg(self.key, iova + 2048 * slot, 2048);
            self.bench.post_receive(&mut qp, &entry);
        }
        Datagrams { qp, data }
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
        let destroy = destroy_qp(qpn);
        self.bench.status(&destroy)
    }

    /// Sends a datagram of eight bytes to a group.
    fn send(&mut self, from: &mut Datagrams, group: [u8; 16]) {
        let mut control = CtrlSeg::new();
        control.set_opcode(WqeOpcode::SEND.bits());
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
        let body = [av.as_bytes(), inline.as_bytes(), b"to all.."].concat();
        self.bench.post(&mut from.qp, &control, &body);
    }

    /// Returns the number of datagrams received since the last call. Checks that each has eight bytes and the group's
    /// address before them.
    fn received(&mut self, by: &mut Datagrams, group: [u8; 16]) -> usize {
        let mut count = 0;
        while let Some(cqe) = self.bench.poll(&mut by.qp.cq) {
            assert_eq!(
                (cqe.opcode(), cqe.byte_cnt()),
                (CqeOpcode::RESP_SEND, HEADER + 8)
            );
            let mut bytes = [0; 48];
            let at = by.data + 2048 * usize::from(cqe.wqe_counter() % 8);
            self.bench.memory.read_bytes(at, &mut bytes);
            assert_eq!(bytes[36..40], group[12..], "destination in the IPv4 header");
            assert_eq!(&bytes[40..], b"to all..");
            count += 1;
        }
        count
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
    assert_eq!(a.join(here.qp.number, GROUP), CmdStatus::OK);
    assert_eq!(b.join(there[0].qp.number, GROUP), CmdStatus::OK);
    assert_eq!(b.join(there[1].qp.number, GROUP), CmdStatus::OK);
    assert_eq!(b.join(stranger.qp.number, GROUP), CmdStatus::OK);
    a.send(&mut sender, GROUP);
    assert_eq!(a.received(&mut here, GROUP), 1, "the same function");
    assert_eq!(a.received(&mut sender, GROUP), 0, "no member");
    let counts = there.each_mut().map(|by| b.received(by, GROUP));
    assert_eq!(counts, [1, 1, 0], "the third is no member");
    assert_eq!(b.received(&mut stranger, GROUP), 0, "another Q_Key");
    // The GID identifies the group, not the MAC address.
    a.send(&mut sender, SAME_MAC_GROUP);
    assert_eq!(b.received(&mut there[0], GROUP), 0);
    assert_eq!(b.leave(there[0].qp.number, GROUP), CmdStatus::OK);
    a.send(&mut sender, GROUP);
    let counts = there.each_mut().map(|by| b.received(by, GROUP));
    assert_eq!(counts, [0, 1, 0]);
    for side in [&a, &b] {
        assert_eq!(side.bench.driver_bugs(), [""; 0]);
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
    for qpn in [open.qp.number, closed.qp.number] {
        assert_eq!(a.join(qpn, GROUP), CmdStatus::OK);
    }
    assert_eq!(b.join(far.qp.number, GROUP), CmdStatus::OK);
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
        (
            "general services",
            gsi.qp.number,
            GROUP,
            CmdStatus::BAD_PARAM,
        ),
        (
            "the address of one",
            member.qp.number,
            host,
            CmdStatus::BAD_PARAM,
        ),
        ("a group", member.qp.number, GROUP, CmdStatus::OK),
        ("twice", member.qp.number, GROUP, CmdStatus::BAD_RES_STATE),
        ("another group", member.qp.number, [0xff; 16], CmdStatus::OK),
    ] {
        assert_eq!(a.join(qpn, group), status, "{what}");
    }
    assert_eq!(a.leave(gsi.qp.number, GROUP), CmdStatus::BAD_RESOURCE);
    assert_eq!(
        a.leave(member.qp.number, SAME_MAC_GROUP),
        CmdStatus::BAD_RESOURCE
    );
    assert_eq!(a.destroy(member.qp.number), CmdStatus::BAD_RES_STATE);
    for group in [GROUP, [0xff; 16]] {
        assert_eq!(a.leave(member.qp.number, group), CmdStatus::OK);
        assert_eq!(a.leave(member.qp.number, group), CmdStatus::BAD_RESOURCE);
    }
    assert_eq!(a.destroy(member.qp.number), CmdStatus::OK);
}

#[test]
fn groups_and_their_members_are_as_many_as_announced() {
    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_log_max_mcg(1).set_max_qp_mcg(2));
    let (mut a, _b) = pair_with(&profile);
    let members = [0; 3].map(|_| a.datagrams(UD, QKEY, false));
    let [first, second, third] = members.map(|member| member.qp.number);
    assert_eq!(a.join(first, GROUP), CmdStatus::OK);
    assert_eq!(a.join(second, GROUP), CmdStatus::OK);
    assert_eq!(a.join(third, GROUP), CmdStatus::EXCEED_LIM);
    assert_eq!(a.join(third, SAME_MAC_GROUP), CmdStatus::OK);
    assert_eq!(a.join(third, [0xff; 16]), CmdStatus::EXCEED_LIM);
    let report = a.bench.report();
    assert_eq!(report.objects["multicast group"], 2);
}

#[test]
fn a_membership_is_ended_by_the_owner_of_the_queue_pair() {
    let sim = Sim::new(SimConfig::seeded(1));
    let mut station = Side::new(&sim, 0, modest().devx());
    let member = station.datagrams(ServiceType::UD, QKEY, false);
    assert_eq!(station.join(member.qp.number, GROUP), CmdStatus::OK);
    let uid = station.bench.exec(&CreateUctxIn::new()).unwrap().uid();
    let mut detach = DetachFromMcgIn::new();
    detach
        .set_uid(uid)
        .set_qpn(member.qp.number)
        .set_multicast_gid(&GROUP);
    let status = station.bench.status(&detach);
    assert_eq!(status, CmdStatus::BAD_RESOURCE);
    assert_eq!(station.leave(member.qp.number, GROUP), CmdStatus::OK);
}
