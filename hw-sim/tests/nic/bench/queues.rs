//! Event queues, completion queues and queue pairs of a bench: their creation, the rings in memory, and doorbells.

use super::{Bench, Failure, halves, list};
use mlx_prm::*;
use zerocopy::IntoBytes;

/// Bit mask of the event types that the bench subscribes to.
pub const ALL_EVENTS: u64 = 0x001f_2ebe;
/// Number of entries in the receive queue of a [`QueuePair`], and their size in bytes.
pub const RQ_ENTRIES: usize = 16;
const RQ_STRIDE: usize = 16;
/// Size of a block of a send queue in bytes.
const BLOCK: usize = 64;
/// First PSN of every queue pair.
const FIRST_PSN: u32 = 0x10;

/// Objects that most tests need.
pub struct Resources {
    pub uar: u32,
    pub pd: u32,
    pub eq: EventQueue,
}

pub struct EventQueue {
    pub number: u32,
    pub at: usize,
    pub log_size: u32,
    pub uar: u32,
    pub consumer: u32,
}

pub struct CompletionQueue {
    pub number: u32,
    pub at: usize,
    pub record: usize,
    pub log_size: u32,
    pub consumed: u32,
}

/// A send ring in the bench's memory: offset, number of blocks, and offset of the doorbell record.
#[derive(Clone, Copy, Debug)]
pub struct SendRing {
    pub at: usize,
    pub blocks: usize,
    pub record: usize,
}

/// A queue pair with a completion queue of its own.
pub struct QueuePair {
    pub number: u32,
    pub cq: CompletionQueue,
    /// Offset of the receive ring. The send ring follows it.
    receives: usize,
    sends: SendRing,
    uar: u32,
    posted: u16,
    sent: u16,
}

impl Bench {
    /// Creates an EQ with 2^log_size entries for `ALL_EVENTS`, or for no event if `kind` is 0, and arms it.
    pub fn create_eq(
        &mut self,
        uar: u32,
        kind: u32,
        vector: u32,
        log_size: u32,
    ) -> Result<EventQueue, Failure> {
        let events = if kind == 0 { 0 } else { ALL_EVENTS };
        self.create_eq_for(uar, events, vector, log_size)
    }

    pub fn create_eq_for(
        &mut self,
        uar: u32,
        events: u64,
        vector: u32,
        log_size: u32,
    ) -> Result<EventQueue, Failure> {
        let (at, pages) = self.entries(log_size, 1);
        let mut create = CreateEqIn::new();
        create.set_event_bitmask(events);
        create
            .eq_context_entry_mut()
            .set_log_eq_size(log_size)
            .set_uar_page(uar)
            .set_intr(vector);
        let number = self.exec_with(&create, &list(&pages))?.eq_number();
        let queue = EventQueue {
            number,
            at,
            log_size,
            uar,
            consumer: 0,
        };
        self.arm_eq(&queue);
        Ok(queue)
    }

    /// Allocates a ring of 2^log_size entries of 64 bytes whose last bytes are `last`. Returns its offset and its
    /// pages.
    fn entries(&mut self, log_size: u32, last: u8) -> (usize, Vec<u64>) {
        let bytes = 64 << log_size;
        let (at, iova) = self.alloc(bytes.max(4096));
        for entry in 0..1 << log_size {
            self.memory.store_u8(at + entry * 64 + 63, last);
        }
        let pages = (0..bytes.div_ceil(4096)).map(|page| iova + page as u64 * 4096);
        (at, pages.collect())
    }

    pub fn arm_eq(&self, eq: &EventQueue) {
        self.write32(
            u64::from(eq.uar) << 12 | 0x40,
            eq.number << 24 | (eq.consumer & 0xff_ffff),
        );
    }

    /// Consumes the next entry of an EQ, if there is one.
    pub fn next_eqe(&self, eq: &mut EventQueue) -> Option<Eqe> {
        let slot = (eq.consumer & ((1 << eq.log_size) - 1)) as usize;
        let eqe: Eqe = self.memory.read_obj(eq.at + slot * 64);
        let lap = eq.consumer >> eq.log_size & 1 == 1;
        if eqe.owner() != lap {
            return None;
        }
        eq.consumer += 1;
        Some(eqe)
    }

    /// Consumes all entries of an EQ and arms it.
    pub fn take_events(&self, eq: &mut EventQueue) -> Vec<Eqe> {
        let events = std::iter::from_fn(|| self.next_eqe(eq)).collect();
        self.arm_eq(eq);
        events
    }

    /// Consumes all entries of an EQ and arms it. Returns the event types.
    pub fn drain_eq(&self, eq: &mut EventQueue) -> Vec<EventType> {
        let events = self.take_events(eq).into_iter();
        events.map(|eqe| EventType(eqe.event_type())).collect()
    }

    /// Creates a CQ with 2^log_size entries.
    pub fn create_cq(
        &mut self,
        uar: u32,
        eqn: u32,
        log_size: u32,
    ) -> Result<CompletionQueue, Failure> {
        let (at, pages) = self.entries(log_size, 0xf0);
        let (record, record_iova) = self.alloc(64);
        let create = cq_input(uar, eqn, log_size, record_iova);
        let number = self.exec_with(&create, &list(&pages))?.cqn();
        Ok(CompletionQueue {
            number,
            at,
            record,
            log_size,
            consumed: 0,
        })
    }

    /// Creates a CQ with 2^log_size entries, on the EQ of these resources.
    pub fn cq(&mut self, resources: &Resources, log_size: u32) -> CompletionQueue {
        self.create_cq(resources.uar, resources.eq.number, log_size)
            .unwrap()
    }

    pub fn cq_context(&mut self, cqn: u32) -> Cqc {
        let mut query = QueryCqIn::new();
        query.set_cqn(cqn);
        self.exec(&query).unwrap().cq_context().clone()
    }

    /// Consumes the next entry of a CQ, if there is one, and writes the consumer counter to the doorbell record.
    pub fn poll(&self, cq: &mut CompletionQueue) -> Option<Cqe64> {
        let slot = (cq.consumed & ((1 << cq.log_size) - 1)) as usize;
        let cqe: Cqe64 = self.memory.read_obj(cq.at + slot * 64);
        let lap = cq.consumed >> cq.log_size & 1 == 1;
        if cqe.opcode() == CqeOpcode::INVALID || cqe.owner() != lap {
            return None;
        }
        cq.consumed += 1;
        self.memory.store_be32(cq.record, cq.consumed & 0xff_ffff);
        Some(cqe)
    }

    /// Allocates a page for a ring, and a doorbell record. Returns their DMA addresses.
    pub fn ring_and_record(&mut self) -> (u64, u64) {
        (self.alloc(4096).1, self.alloc(64).1)
    }

    /// Creates a queue pair in RST with a CQ of 2^log_cq_size entries. `change` edits the context of [`qp_input`].
    pub fn qp(
        &mut self,
        resources: &Resources,
        log_cq_size: u32,
        change: impl FnOnce(&mut Qpc),
    ) -> QueuePair {
        let cq = self.cq(resources, log_cq_size);
        let (receives, ring) = self.alloc(4096);
        let (record, record_iova) = self.alloc(64);
        let mut create = qp_input(resources, cq.number, record_iova);
        change(create.qpc_mut());
        let context = create.qpc();
        let blocks = 1 << context.log_sq_size();
        let receive_bytes = match context.rq_type() {
            0 => RQ_STRIDE << context.log_rq_size(),
            _ => 0,
        };
        let sends = SendRing {
            at: receives + receive_bytes,
            blocks,
            record,
        };
        QueuePair {
            number: self.exec_with(&create, &list(&[ring])).unwrap().qpn(),
            cq,
            receives,
            sends,
            uar: resources.uar,
            posted: 0,
            sent: 0,
        }
    }

    /// Moves a queue pair from RST to RTS. `change` edits the context that all three commands carry. Without a change,
    /// the context is that of a reliable connection that permits writes and reads, and lacks the peer.
    pub fn ready_to_send(&mut self, qpn: u32, change: impl FnOnce(&mut Qpc)) {
        let mut context = Qpc::new();
        context
            .set_pm_state(3)
            .set_mtu(3)
            .set_log_msg_max(30)
            .set_next_rcv_psn(FIRST_PSN)
            .set_next_send_psn(FIRST_PSN)
            .set_min_rnr_nak(12)
            .set_retry_count(7)
            .set_rnr_retry(7)
            .set_rwe(true)
            .set_rre(true)
            .primary_address_path_mut()
            .set_ack_timeout(14)
            .set_vhca_port_num(1);
        change(&mut context);
        self.modify_qp::<Rst2InitQpIn>(qpn, &context);
        self.modify_qp::<Init2RtrQpIn>(qpn, &context);
        self.modify_qp::<Rtr2RtsQpIn>(qpn, &context);
    }

    fn modify_qp<C: ModifyQp>(&mut self, qpn: u32, context: &Qpc) {
        let mut modify = C::for_qp(Qpn::new(qpn), 0);
        modify.context_mut().clone_from(context);
        self.exec(&modify).unwrap();
    }

    /// Posts a receive with one scatter entry.
    pub fn post_receive(&self, qp: &mut QueuePair, entry: &DataSeg) {
        let slot = usize::from(qp.posted) % RQ_ENTRIES;
        self.memory.write_obj(qp.receives + slot * RQ_STRIDE, entry);
        qp.posted = qp.posted.wrapping_add(1);
        self.memory
            .store_be32(qp.sends.record, u32::from(qp.posted));
    }

    /// Posts a work request and rings the doorbell. `body` follows the control segment, whose index, queue pair number
    /// and size are filled in.
    pub fn post(&self, qp: &mut QueuePair, control: &CtrlSeg, body: &[u8]) {
        let mut control = control.clone();
        control
            .set_wqe_index(u32::from(qp.sent))
            .set_qp_or_sq(qp.number)
            .set_ds(u32::try_from(1 + body.len().div_ceil(16)).unwrap());
        let wqe = [control.as_bytes(), body].concat();
        self.place(qp.sends, &mut qp.sent, &wqe);
        self.ring(qp.uar, &wqe);
    }

    /// Writes a WQE to a send ring, advances the counter and writes it to the doorbell record.
    pub fn place(&self, ring: SendRing, counter: &mut u16, wqe: &[u8]) {
        for block in wqe.chunks(BLOCK) {
            let slot = usize::from(*counter) % ring.blocks;
            self.memory.write_bytes(ring.at + slot * BLOCK, block);
            *counter = counter.wrapping_add(1);
        }
        self.memory.store_be32(ring.record + 4, u32::from(*counter));
    }

    /// Rings the send doorbell of a UAR page with the first eight bytes of a WQE.
    pub fn ring(&self, uar: u32, wqe: &[u8]) {
        let value = u64::from_be_bytes(*wqe.first_chunk().unwrap());
        self.write64(u64::from(uar) << 12 | 0x800, value);
    }
}

pub fn cq_input(uar: u32, eqn: u32, log_size: u32, record: u64) -> CreateCqIn {
    let mut create = CreateCqIn::new();
    create
        .cq_context_mut()
        .set_log_cq_size(log_size)
        .set_uar_page(uar)
        .set_c_eqn_or_apu_element(eqn)
        .set_dbr_addr(record);
    create
}

/// Returns a command that creates a reliable queue pair with 16 receives of one scatter entry and 16 send blocks. All
/// completions go to one CQ.
pub fn qp_input(resources: &Resources, cqn: u32, record: u64) -> CreateQpIn {
    let mut create = CreateQpIn::new();
    create
        .qpc_mut()
        .set_pm_state(3)
        .set_pd(resources.pd)
        .set_uar_page(resources.uar)
        .set_log_rq_size(RQ_ENTRIES.ilog2())
        .set_log_sq_size(4)
        .set_log_msg_max(30)
        .set_cqn_snd(cqn)
        .set_cqn_rcv(cqn)
        .set_dbr_addr(record)
        .set_user_index(0xff_ffff);
    create
}

pub fn destroy_cq(cqn: u32) -> DestroyCqIn {
    let mut destroy = DestroyCqIn::new();
    destroy.set_cqn(cqn);
    destroy
}

pub fn destroy_qp(qpn: u32) -> DestroyQpIn {
    let mut destroy = DestroyQpIn::new();
    destroy.set_qpn(qpn);
    destroy
}

pub fn destroy_mkey(index: u32) -> DestroyMkeyIn {
    let mut destroy = DestroyMkeyIn::new();
    destroy.set_mkey_index(index);
    destroy
}

/// Sets the peer in a context: a queue pair on RoCE, of the function with this GID and MAC address.
pub fn connect_to(context: &mut Qpc, qpn: u32, gid: &[u8; 16], mac: [u8; 6]) {
    let (high, low) = halves(mac);
    context
        .set_remote_qpn(qpn)
        .primary_address_path_mut()
        .set_rgid_rip(gid)
        .set_rmac_47_32(high)
        .set_rmac_31_0(low)
        .set_hop_limit(64)
        .set_udp_sport(0xc000);
}

/// Returns a control segment that requests a completion.
pub fn signalled(opcode: WqeOpcode) -> CtrlSeg {
    let mut control = CtrlSeg::new();
    control.set_opcode(opcode.bits()).set_ce(2);
    control
}

/// Returns a scatter or gather entry.
pub fn data_seg(key: u32, addr: u64, bytes: u32) -> DataSeg {
    let mut segment = DataSeg::new();
    segment.set_lkey(key).set_addr(addr).set_byte_count(bytes);
    segment
}

/// Returns the segment of an RDMA operation with the remote address and key.
pub fn raddr_seg(addr: u64, key: u32) -> RaddrSeg {
    let mut segment = RaddrSeg::new();
    segment.set_raddr(addr).set_rkey(key);
    segment
}
