//! Tests of XRC queue pairs (IBTA volume 1, annex A14): a sending and a receiving queue pair that are connected, and
//! shared receive queues that the sender names in each message. The contexts are those of `create_user_qp` and
//! `create_xrc_tgt_qp` of Linux drivers/infiniband/hw/mlx5/qp.c.

use mlx_prm::*;

use crate::bench::{Bench, CompletionQueue, Resources, list, modest};

const SERVICE_XRC: u32 = 3;
const RQ_SHARED: u32 = 1;
const RQ_NONE: u32 = 3;

/// A shared receive queue with 16 entries of 64 bytes.
struct XrcSrq {
    number: u32,
    ring: usize,
    record: usize,
    posted: u16,
    cq: CompletionQueue,
    taken: usize,
}

/// Both ends of an XRC connection, on one InfiniBand function.
struct Ends {
    bench: Bench,
    resources: Resources,
    xrcd: u32,
    sender: u32,
    receiver: u32,
    sends: CompletionQueue,
    ring: usize,
    record: usize,
    sent: u16,
}

fn cq(bench: &mut Bench, resources: &Resources) -> CompletionQueue {
    bench
        .create_cq(resources.uar, resources.eq.number, 4)
        .unwrap()
}

impl Ends {
    fn new() -> Self {
        let (mut bench, resources) = Bench::usable(modest().infiniband());
        let xrcd = bench.exec(&AllocXrcdIn::new()).unwrap().xrcd();
        let sends = cq(&mut bench, &resources);
        let (ring, ring_iova) = bench.alloc(4096);
        let (record, record_iova) = bench.alloc(64);
        let mut create = CreateQpIn::new();
        create
            .qpc_mut()
            .set_st(SERVICE_XRC)
            .set_pm_state(3)
            .set_pd(resources.pd)
            .set_uar_page(resources.uar)
            .set_rq_type(RQ_NONE)
            .set_log_sq_size(4)
            .set_xrcd(xrcd)
            .set_cqn_snd(sends.number)
            .set_cqn_rcv(sends.number)
            .set_dbr_addr(record_iova)
            .set_user_index(0x11);
        let sender = bench.exec_with(&create, &list(&[ring_iova])).unwrap().qpn();
        let mut ends = Self {
            bench,
            resources,
            xrcd,
            sender,
            receiver: 0,
            sends,
            ring,
            record,
            sent: 0,
        };
        // For the receiving queue pair, Linux names an XRC SRQ and a CQ of the driver, and leaves the doorbell page and
        // the doorbell record 0.
        let own = ends.srq(xrcd, ends.resources.pd, 0);
        let mut create = CreateQpIn::new();
        create
            .qpc_mut()
            .set_st(SERVICE_XRC)
            .set_pm_state(3)
            .set_pd(ends.resources.pd)
            .set_no_sq(true)
            .set_rq_type(RQ_SHARED)
            .set_srqn_rmpn_xrqn(own.number)
            .set_xrcd(xrcd)
            .set_cqn_snd(own.cq.number)
            .set_cqn_rcv(own.cq.number)
            .set_rre(true)
            .set_rwe(true);
        ends.receiver = ends.bench.exec(&create).unwrap().qpn();
        ends.connect(ends.sender, ends.receiver);
        ends.connect(ends.receiver, ends.sender);
        ends
    }

    fn connect(&mut self, qpn: u32, peer: u32) {
        let mut init = Rst2InitQpIn::for_qp(Qpn::new(qpn), 0);
        init.qpc_mut().set_rre(true).set_rwe(true);
        init.qpc_mut()
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        self.bench.exec(&init).unwrap();
        let mut rtr = Init2RtrQpIn::for_qp(Qpn::new(qpn), opt_param::RRE | opt_param::RWE);
        rtr.qpc_mut()
            .set_mtu(1)
            .set_log_msg_max(20)
            .set_remote_qpn(peer)
            .set_rre(true)
            .set_rwe(true)
            .set_min_rnr_nak(12);
        rtr.qpc_mut().primary_address_path_mut().set_rlid(1);
        self.bench.exec(&rtr).unwrap();
        let mut rts = Rtr2RtsQpIn::for_qp(Qpn::new(qpn), 0);
        rts.qpc_mut().set_retry_count(1).set_rnr_retry(1);
        rts.qpc_mut().primary_address_path_mut().set_ack_timeout(8);
        self.bench.exec(&rts).unwrap();
    }

    fn srq(&mut self, xrcd: u32, pd: u32, user_index: u32) -> XrcSrq {
        let cq = cq(&mut self.bench, &self.resources);
        let (ring, page) = self.bench.alloc(4096);
        let (record, record_iova) = self.bench.alloc(64);
        for entry in 0..16 {
            let next = u8::try_from((entry + 1) % 16).unwrap();
            self.bench.memory.store_u8(ring + entry * 64 + 3, next);
        }
        let mut create = CreateXrcSrqIn::new();
        create
            .xrc_srq_context_entry_mut()
            .set_log_xrc_srq_size(4)
            .set_log_rq_stride(2)
            .set_xrcd(xrcd)
            .set_cqn(cq.number)
            .set_pd(pd)
            .set_user_index(user_index)
            .set_db_record_addr_h(u32::try_from(record_iova >> 32).unwrap())
            .set_db_record_addr_l(u32::try_from(record_iova & 0xffff_ffff).unwrap() >> 2);
        let number = self.bench.exec_with(&create, &list(&[page])).unwrap();
        XrcSrq {
            number: number.xrc_srqn(),
            ring,
            record,
            posted: 0,
            cq,
            taken: 0,
        }
    }

    fn post_receive(&mut self, srq: &mut XrcSrq, key: u32, addr: u64, bytes: u32) {
        let at = srq.ring + usize::from(srq.posted) * 64 + 16;
        self.bench.memory.write_obj(at, &data(key, addr, bytes));
        self.bench.memory.write_obj(at + 16, &data(0x100, 0, 0));
        srq.posted += 1;
        self.bench
            .memory
            .store_be32(srq.record, u32::from(srq.posted));
    }

    /// Posts a work request: a control segment, an XRC segment with the number `srqn`, and then `segments`.
    fn post(&mut self, opcode: WqeOpcode, srqn: u32, segments: &[[u8; 16]]) {
        let mut control = CtrlSeg::new();
        let size = u32::try_from(segments.len()).unwrap() + 2;
        control
            .set_opcode(opcode.bits())
            .set_wqe_index(u32::from(self.sent))
            .set_qp_or_sq(self.sender)
            .set_ds(size)
            .set_ce(2);
        let mut xrc = XrcSeg::new();
        xrc.set_xrc_srqn(srqn);
        let at = self.ring + usize::from(self.sent) * 64;
        self.bench.memory.write_obj(at, &control);
        self.bench.memory.write_obj(at + 16, &xrc);
        for (place, segment) in segments.iter().enumerate() {
            let at = at + 32 + 16 * place;
            self.bench
                .memory
                .write_obj(at, &CtrlSeg::from_array(*segment));
        }
        self.sent += 1;
        self.bench
            .memory
            .store_be32(self.record + 4, u32::from(self.sent));
        let [a, b, c, d, e, f, g, h, ..] = *control.as_array();
        self.bench.write64(
            u64::from(self.resources.uar) << 12 | 0x800,
            u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        );
    }

    /// Returns the completion of the sender's WQE `number`: its opcode, and the syndrome if the WQE failed.
    fn sent(&self, number: usize) -> (CqeOpcode, u8) {
        let cqe: Cqe64 = self.bench.memory.read_obj(self.sends.at + number * 64);
        (cqe.opcode(), cqe.as_error().syndrome())
    }

    fn received(&self, srq: &mut XrcSrq) -> Option<Cqe64> {
        let cqe: Cqe64 = self.bench.memory.read_obj(srq.cq.at + srq.taken * 64);
        (cqe.opcode() != CqeOpcode::INVALID).then(|| {
            srq.taken += 1;
            cqe
        })
    }
}

fn data(key: u32, addr: u64, bytes: u32) -> DataSeg {
    let mut segment = DataSeg::new();
    segment.set_lkey(key).set_addr(addr).set_byte_count(bytes);
    segment
}

#[test]
fn a_message_lands_in_the_queue_it_names_and_completes_on_that_queues_own() {
    let mut ends = Ends::new();
    let key = ends.bench.create_pa_key(ends.resources.pd);
    let (xrcd, pd) = (ends.xrcd, ends.resources.pd);
    let mut first = ends.srq(xrcd, pd, 0x22);
    let mut second = ends.srq(xrcd, pd, 0x33);
    let (at, iova) = ends.bench.alloc(4096);
    for byte in 0..700 {
        ends.bench
            .memory
            .store_u8(at + byte, u8::try_from(byte % 251).unwrap());
    }
    ends.post_receive(&mut first, key, iova + 0x800, 0x400);
    ends.post_receive(&mut second, key, iova + 0x400, 0x400);
    // The message needs three packets of at most 256 bytes.
    let message = *data(key, iova, 700).as_array();
    ends.post(WqeOpcode::SEND, second.number, &[message]);
    assert_eq!(ends.sent(0).0, CqeOpcode::REQ);
    let cqe = ends.received(&mut second).expect("a receive");
    assert_eq!(cqe.opcode(), CqeOpcode::RESP_SEND);
    assert_eq!(
        (cqe.byte_cnt(), cqe.qpn(), cqe.srqn_uidx()),
        (700, ends.receiver, 0x33),
        "the receiving queue pair, the queue's user index"
    );
    assert!(ends.received(&mut first).is_none());
    let arrived: Vec<u8> = (0..700)
        .map(|byte| ends.bench.memory.load_u8(at + 0x400 + byte))
        .collect();
    let expected: Vec<u8> = (0..700_u32)
        .map(|byte| u8::try_from(byte % 251).unwrap())
        .collect();
    assert_eq!(arrived, expected);
    ends.post(WqeOpcode::SEND, first.number, &[message]);
    assert_eq!(
        ends.received(&mut first).expect("the other").srqn_uidx(),
        0x22
    );
}

#[test]
fn keys_of_a_request_are_of_the_named_queues_protection_domain() {
    let mut ends = Ends::new();
    let other = ends.bench.exec(&AllocPdIn::new()).unwrap().pd();
    let mine = ends.bench.create_pa_key(ends.resources.pd);
    let theirs = ends.bench.create_pa_key(other);
    let (xrcd, pd) = (ends.xrcd, ends.resources.pd);
    let here = ends.srq(xrcd, pd, 1);
    let there = ends.srq(xrcd, other, 2);
    let (at, iova) = ends.bench.alloc(4096);
    ends.bench.memory.store_u8(at, 0x5a);
    let remote = |key: u32| {
        let mut segment = RaddrSeg::new();
        segment.set_raddr(iova + 0x100).set_rkey(key);
        *segment.as_array()
    };
    let local = *data(mine, iova, 1).as_array();
    ends.post(
        WqeOpcode::RDMA_WRITE,
        there.number,
        &[remote(theirs), local],
    );
    assert_eq!(ends.sent(0).0, CqeOpcode::REQ);
    assert_eq!(ends.bench.memory.load_u8(at + 0x100), 0x5a);
    ends.post(WqeOpcode::RDMA_WRITE, here.number, &[remote(theirs), local]);
    assert_eq!(
        ends.sent(1),
        (CqeOpcode::REQ_ERR, Syndrome::REMOTE_ACCESS_ERR.0)
    );
}

#[test]
fn a_queue_of_another_domain_or_none_is_refused() {
    for named in [true, false] {
        let mut ends = Ends::new();
        let key = ends.bench.create_pa_key(ends.resources.pd);
        let foreign = ends.bench.exec(&AllocXrcdIn::new()).unwrap().xrcd();
        let pd = ends.resources.pd;
        let mut srq = ends.srq(foreign, pd, 1);
        let (_, iova) = ends.bench.alloc(4096);
        ends.post_receive(&mut srq, key, iova + 0x100, 0x100);
        let number = if named { srq.number } else { 0xdead };
        let message = *data(key, iova, 16).as_array();
        ends.post(WqeOpcode::SEND, number, &[message]);
        assert_eq!(
            ends.sent(0),
            (CqeOpcode::REQ_ERR, Syndrome::REMOTE_INVAL_REQ_ERR.0)
        );
        assert!(ends.received(&mut srq).is_none());
    }
}

#[test]
fn a_queue_pair_that_only_receives_needs_neither_pages_nor_doorbells_and_holds_its_domain() {
    let mut ends = Ends::new();
    let mut dealloc = DeallocXrcdIn::new();
    dealloc.set_xrcd(ends.xrcd);
    assert_eq!(ends.bench.status(&dealloc), CmdStatus::BAD_RES_STATE);
    let mut profile = modest().infiniband();
    for page in [&mut profile.general.max, &mut profile.general.current] {
        page.set_xrc(false);
    }
    let (mut without, resources) = Bench::usable(profile);
    let cq = cq(&mut without, &resources);
    let mut create = CreateQpIn::new();
    create
        .qpc_mut()
        .set_st(SERVICE_XRC)
        .set_pd(resources.pd)
        .set_no_sq(true)
        .set_rq_type(RQ_NONE)
        .set_cqn_snd(cq.number)
        .set_cqn_rcv(cq.number);
    assert_eq!(without.status(&create), CmdStatus::BAD_PARAM);
}
