//! Tests of XRC queue pairs (IBTA volume 1, annex A14): a sending and a receiving queue pair that are connected, and
//! shared receive queues that the sender names in each message. The contexts follow `create_user_qp` and
//! `create_xrc_tgt_qp` of Linux drivers/infiniband/hw/mlx5/qp.c.

use mlx_prm::*;

use crate::bench::{
    Bench, CompletionQueue, QueuePair, Resources, data_seg, list, modest, raddr_seg, signalled,
};

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
}

/// Both ends of an XRC connection, on one InfiniBand function.
struct Ends {
    bench: Bench,
    resources: Resources,
    xrcd: u32,
    sender: QueuePair,
    receiver: u32,
}

/// Returns a command that creates an XRC shared receive queue with 16 entries of 64 bytes.
pub fn xrc_srq_input(xrcd: u32, pd: u32, cqn: u32, record: u64) -> CreateXrcSrqIn {
    let mut create = CreateXrcSrqIn::new();
    create
        .xrc_srq_context_entry_mut()
        .set_log_xrc_srq_size(4)
        .set_log_rq_stride(2)
        .set_xrcd(xrcd)
        .set_cqn(cqn)
        .set_pd(pd)
        .set_user_index(0xff_ffff)
        .set_db_record_addr_h(u32::try_from(record >> 32).unwrap())
        .set_db_record_addr_l(u32::try_from(record & 0xffff_ffff).unwrap() >> 2);
    create
}

impl Ends {
    fn new() -> Self {
        let (mut bench, resources) = Bench::usable(modest().infiniband());
        let xrcd = bench.exec(&AllocXrcdIn::new()).unwrap().xrcd();
        let sender = bench.qp(&resources, 4, |qpc| {
            qpc.set_st(SERVICE_XRC)
                .set_rq_type(RQ_NONE)
                .set_log_rq_size(0)
                .set_xrcd(xrcd)
                .set_user_index(0x11);
        });
        let mut ends = Self {
            bench,
            resources,
            xrcd,
            sender,
            receiver: 0,
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
        let (sender, receiver) = (ends.sender.number, ends.receiver);
        for (qpn, peer) in [(sender, receiver), (receiver, sender)] {
            ends.bench.ready_to_send(qpn, |qpc| {
                qpc.set_mtu(1)
                    .set_remote_qpn(peer)
                    .primary_address_path_mut()
                    .set_rlid(1);
            });
        }
        ends
    }

    fn srq(&mut self, xrcd: u32, pd: u32, user_index: u32) -> XrcSrq {
        let cq = self.bench.cq(&self.resources, 4);
        let (ring, page) = self.bench.alloc(4096);
        let (record, record_iova) = self.bench.alloc(64);
        for entry in 0..16 {
            let next = u8::try_from((entry + 1) % 16).unwrap();
            self.bench.memory.store_u8(ring + entry * 64 + 3, next);
        }
        let mut create = xrc_srq_input(xrcd, pd, cq.number, record_iova);
        create
            .xrc_srq_context_entry_mut()
            .set_user_index(user_index);
        let number = self.bench.exec_with(&create, &list(&[page])).unwrap();
        XrcSrq {
            number: number.xrc_srqn(),
            ring,
            record,
            posted: 0,
            cq,
        }
    }

    fn post_receive(&mut self, srq: &mut XrcSrq, key: u32, addr: u64, bytes: u32) {
        let at = srq.ring + usize::from(srq.posted) * 64 + 16;
        self.bench.memory.write_obj(at, &data_seg(key, addr, bytes));
        self.bench.memory.write_obj(at + 16, &data_seg(0x100, 0, 0));
        srq.posted += 1;
        self.bench
            .memory
            .store_be32(srq.record, u32::from(srq.posted));
    }

    /// Posts a work request: a control segment, an XRC segment with the number `srqn`, and then `segments`.
    fn post(&mut self, opcode: WqeOpcode, srqn: u32, segments: &[[u8; 16]]) {
        let mut xrc = XrcSeg::new();
        xrc.set_xrc_srqn(srqn);
        let body = [&[*xrc.as_array()], segments].concat().concat();
        self.bench.post(&mut self.sender, &signalled(opcode), &body);
    }

    /// Returns the sender's next completion: its opcode, and the syndrome if the WQE failed.
    fn sent(&mut self) -> (CqeOpcode, u8) {
        let cqe = self.bench.poll(&mut self.sender.cq).expect("a completion");
        (cqe.opcode(), cqe.as_error().syndrome())
    }

    fn received(&self, srq: &mut XrcSrq) -> Option<Cqe64> {
        self.bench.poll(&mut srq.cq)
    }
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
    let message = *data_seg(key, iova, 700).as_array();
    ends.post(WqeOpcode::SEND, second.number, &[message]);
    assert_eq!(ends.sent().0, CqeOpcode::REQ);
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
    let remote = |key: u32| *raddr_seg(iova + 0x100, key).as_array();
    let local = *data_seg(mine, iova, 1).as_array();
    ends.post(
        WqeOpcode::RDMA_WRITE,
        there.number,
        &[remote(theirs), local],
    );
    assert_eq!(ends.sent().0, CqeOpcode::REQ);
    assert_eq!(ends.bench.memory.load_u8(at + 0x100), 0x5a);
    ends.post(WqeOpcode::RDMA_WRITE, here.number, &[remote(theirs), local]);
    assert_eq!(
        ends.sent(),
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
        let message = *data_seg(key, iova, 16).as_array();
        ends.post(WqeOpcode::SEND, number, &[message]);
        assert_eq!(
            ends.sent(),
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
    profile.general.set(|page| _ = page.set_xrc(false));
    let (mut without, resources) = Bench::usable(profile);
    let cq = without.cq(&resources, 4);
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
