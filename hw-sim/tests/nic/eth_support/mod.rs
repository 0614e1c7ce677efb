//! One side of an Ethernet link: a function with a send queue, a receive queue and steering, driven by commands and
//! memory accesses.
//!
//! Bring-up, rings and completions are those of the bench. The queues differ from a queue pair's: SQ and RQ are two
//! objects with states of their own, a WQE has an Ethernet segment, and steering decides where a frame goes.

use crate::bench::{Bench, CompletionQueue, Failure, Resources, SendRing, data_seg, list, modest};
use hw_sim::{LinkFaults, Profile, Sim, SimConfig};
use mlx_prm::*;
use zerocopy::IntoBytes;

pub use crate::bench::MACS;
pub const BROADCAST: [u8; 6] = [0xff; 6];
pub const SQ_BLOCKS: usize = 64;
pub const RQ_ENTRIES: usize = 16;
pub const RQ_STRIDE: usize = 32;
/// Length of each receive buffer in bytes.
pub const BUFFER: usize = 2048;
pub const RESET: u32 = 0;
pub const READY: u32 = 1;
pub const ERROR: u32 = 3;
/// `cs_flags` that request the checksums of the IPv4 header and of TCP or UDP.
pub const CHECKSUMS: u8 = 0xc0;

/// Location of a queue's memory.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Pages in the command's page list. The queue begins at this offset in the first page, in 64ths of a page.
    Pages(u32),
    /// A umem. The queue begins at this offset in bytes.
    Umem(u32),
}

impl Place {
    /// Allocates two pages for a queue. Returns the ring's offset in the bench's memory, and the bytes that follow the
    /// context in the command.
    fn of_queue(self, bench: &mut Bench, wq: &mut Wq) -> (usize, Vec<u8>) {
        let (at, iova) = bench.alloc(2 * 4096);
        let pages = [iova, iova + 4096];
        match self {
            Self::Pages(offset) => {
                wq.set_page_offset(offset);
                let bytes = usize::try_from(offset).unwrap() * 64;
                (at + bytes, list(&pages))
            }
            Self::Umem(offset) => {
                let mut create = CreateUmemIn::new();
                create.umem_mut().set_num_of_mtt(2);
                let pages = pages.map(|page| page | MTT_READ | MTT_WRITE);
                let umem = bench.exec_with(&create, &list(&pages)).unwrap().umem_id();
                wq.set_wq_umem_valid(true)
                    .set_wq_umem_id(umem)
                    .set_wq_umem_offset(u64::from(offset));
                (at + usize::try_from(offset).unwrap(), Vec::new())
            }
        }
    }
}

/// A send queue.
pub struct SendQueue {
    pub number: u32,
    pub cq: CompletionQueue,
    pub posted: u16,
    /// First eight bytes of the last WQE, which are the value for the doorbell register.
    pub last: [u8; 8],
    ring: SendRing,
}

/// A receive queue. `data` is the offset and the DMA address of its buffers.
pub struct ReceiveQueue {
    pub number: u32,
    pub cq: CompletionQueue,
    pub posted: u16,
    pub data: (usize, u64),
    ring: usize,
    record: usize,
}

/// A function with an Ethernet port, and its queues.
pub struct Side {
    pub bench: Bench,
    pub resources: Resources,
    pub td: u32,
    pub tis: u32,
    pub key: u32,
    pub sq: SendQueue,
    pub rq: ReceiveQueue,
    pub tir: u32,
    /// Buffer for frames to send: offset and DMA address.
    pub data: (usize, u64),
}

/// Send parameters of a frame.
#[derive(Clone, Copy)]
pub struct SendOptions {
    pub opcode: WqeOpcode,
    pub checksums: u8,
    pub mss: u16,
    /// Number of the frame's bytes that are inline in the WQE.
    pub inline: usize,
    pub ce: u32,
    pub key: Option<u32>,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self {
            opcode: WqeOpcode::SEND,
            checksums: 0,
            mss: 0,
            inline: 18,
            ce: 2,
            key: None,
        }
    }
}

pub fn profile(side: usize) -> Profile {
    let mut profile = modest().ethernet().called(&format!("f{side}"), MACS[side]);
    profile
        .eth_offloads
        .set(|page| _ = page.set_wqe_vlan_insert(true));
    profile
}

/// Creates two functions on one link. Each function steers every frame to its receive queue.
pub fn pair() -> (Sim, Side, Side) {
    pair_with(profile)
}

pub fn pair_with(profile: impl Fn(usize) -> Profile) -> (Sim, Side, Side) {
    pair_placed(profile, Place::Pages(0))
}

/// Creates two functions on one link with their queues at `place`. Each function steers every frame to its receive
/// queue.
pub fn pair_placed(profile: impl Fn(usize) -> Profile, place: Place) -> (Sim, Side, Side) {
    let sim = Sim::new(SimConfig::seeded(1));
    let mut sides = [0, 1].map(|side| Side::placed(&sim, profile(side), place));
    sim.connect(
        &sides[0].bench.function,
        &sides[1].bench.function,
        LinkFaults::NONE,
    );
    for side in &mut sides {
        side.steer_everything();
    }
    let [a, b] = sides;
    (sim, a, b)
}

impl Side {
    /// Creates a function that is alone in its world.
    pub fn alone(profile: Profile) -> Self {
        Self::new(&Sim::new(SimConfig::seeded(1)), profile)
    }

    pub fn new(sim: &Sim, profile: Profile) -> Self {
        Self::placed(sim, profile, Place::Pages(0))
    }

    pub fn placed(sim: &Sim, profile: Profile, place: Place) -> Self {
        let mac = profile.mac;
        let mut side = Self::placed_on(Bench::in_world(sim, profile), place);
        side.bench.announce(mac);
        side
    }

    /// Sets up a function after power-on. The function announces no address.
    pub fn on(bench: Bench) -> Self {
        Self::placed_on(bench, Place::Pages(0))
    }

    fn placed_on(bench: Bench, place: Place) -> Self {
        let (mut bench, resources) = bench.with_resources();
        let key = bench.create_pa_key(resources.pd);
        let td = bench
            .exec(&AllocTransportDomainIn::new())
            .unwrap()
            .transport_domain();
        let mut create = CreateTisIn::new();
        create.ctx_mut().set_transport_domain(td);
        let tis = bench.exec(&create).unwrap().tisn();
        let sq = SendQueue::placed(&mut bench, &resources, tis, place);
        let rq = ReceiveQueue::placed(&mut bench, &resources, place);
        let tir = create_tir(&mut bench, td, rq.number);
        let data = bench.alloc(256 << 10);
        Self {
            bench,
            resources,
            td,
            tis,
            key,
            sq,
            rq,
            tir,
            data,
        }
    }

    /// Steers every frame to the TIR, with one table, one group that matches everything, and one entry.
    pub fn steer_everything(&mut self) {
        let table = self.table(5, 4).unwrap();
        let group = self.group(table, 0, 15, &FteMatchParam::new()).unwrap();
        let to = destination(FlowDestinationType::TIR, self.tir);
        self.entry(table, group, 0, &FteMatchParam::new(), &[to])
            .unwrap();
    }

    pub fn table(&mut self, level: u32, log_size: u32) -> Result<u32, Failure> {
        let mut create = CreateFlowTableIn::new();
        create
            .flow_table_context_mut()
            .set_level(level)
            .set_log_size(log_size);
        Ok(self.bench.exec(&create)?.table_id())
    }

    /// Creates a group that compares the bits of the outer headers that are set in `criteria`.
    pub fn group(
        &mut self,
        table: u32,
        start: u32,
        end: u32,
        criteria: &FteMatchParam,
    ) -> Result<u32, Failure> {
        let mut create = CreateFlowGroupIn::new();
        let enable = u32::from(criteria.as_bytes().iter().any(|&byte| byte != 0));
        create
            .set_table_id(table)
            .set_start_flow_index(start)
            .set_end_flow_index(end)
            .set_match_criteria_enable(enable);
        *create.match_criteria_mut() = criteria.clone();
        Ok(self.bench.exec(&create)?.group_id())
    }

    pub fn entry(
        &mut self,
        table: u32,
        group: u32,
        index: u32,
        value: &FteMatchParam,
        destinations: &[u64],
    ) -> Result<(), Failure> {
        let action = if destinations.is_empty() {
            flow_action::DROP
        } else {
            flow_action::FWD_DEST
        };
        let set = entry_input(table, group, index, value, action, destinations.len());
        self.bench.exec_with(&set, &list(destinations)).map(drop)
    }

    /// Posts a WQE for `frame` and writes the doorbell.
    pub fn send(&mut self, frame: &[u8], how: SendOptions) {
        let wqe = self.wqe(frame, how);
        self.post(&wqe);
        self.ring();
    }

    /// Returns the WQE of a frame, and writes the frame's non-inline bytes to memory.
    pub fn wqe(&mut self, frame: &[u8], how: SendOptions) -> Vec<u8> {
        let (inline, rest) = frame.split_at(how.inline.min(frame.len()));
        self.bench.memory.write_bytes(self.data.0, rest);
        let mut wqe = vec![0; CtrlSeg::SIZE + 14];
        wqe.extend_from_slice(inline);
        wqe.resize(wqe.len().max(32).next_multiple_of(16), 0);
        let mut segment = EthSeg::new();
        segment
            .set_cs_flags(how.checksums)
            .set_mss(how.mss)
            .set_inline_hdr_sz(u16::try_from(inline.len()).unwrap());
        wqe[16..30].copy_from_slice(&segment.as_bytes()[..14]);
        if !rest.is_empty() {
            let bytes = u32::try_from(rest.len()).unwrap();
            let data = data_seg(how.key.unwrap_or(self.key), self.data.1, bytes);
            wqe.extend_from_slice(data.as_bytes());
        }
        let control = self.control(how.opcode, wqe.len() / 16, how.ce);
        wqe[..16].copy_from_slice(control.as_bytes());
        wqe
    }

    pub fn control(&self, opcode: WqeOpcode, ds: usize, ce: u32) -> CtrlSeg {
        let mut control = CtrlSeg::new();
        control
            .set_opcode(opcode.bits())
            .set_wqe_index(u32::from(self.sq.posted))
            .set_qp_or_sq(self.sq.number)
            .set_ds(u32::try_from(ds).unwrap())
            .set_ce(ce);
        control
    }

    /// Writes a WQE to the ring and updates the doorbell record, but does not write the doorbell register.
    pub fn post(&mut self, wqe: &[u8]) {
        self.bench.place(self.sq.ring, &mut self.sq.posted, wqe);
        self.sq.last.copy_from_slice(&wqe[..8]);
    }

    pub fn ring(&self) {
        self.bench.ring(self.resources.uar, &self.sq.last);
    }

    /// Posts a receive buffer of `bytes` bytes. Returns its offset.
    pub fn post_receive(&mut self, bytes: usize) -> usize {
        let key = self.key;
        self.rq.post(&self.bench, bytes, key)
    }

    pub fn post_receives(&mut self, count: usize) {
        for _ in 0..count {
            self.post_receive(BUFFER);
        }
    }

    /// Returns the next completion of the send queue.
    pub fn sent(&mut self) -> Option<Cqe64> {
        self.bench.poll(&mut self.sq.cq)
    }

    /// Returns the next completion of the receive queue, and the bytes in its buffer.
    pub fn received(&mut self) -> Option<(Cqe64, Vec<u8>)> {
        self.rq.received(&self.bench)
    }

    /// Delivers a frame to the function's port, as from the wire.
    pub fn deliver(&self, frame: &[u8]) {
        self.bench.sim.deliver(&self.bench.function, frame);
        self.bench.sim.run_until_idle();
    }

    /// Returns the number of frames dropped for this reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        let report = self.bench.report();
        report.dropped.get(reason).copied().unwrap_or(0)
    }

    pub fn driver_bugs(&self) -> Vec<String> {
        self.bench.driver_bugs()
    }

    pub fn sq_state(&mut self) -> u32 {
        let mut query = QuerySqIn::new();
        query.set_sqn(self.sq.number);
        self.bench.exec(&query).unwrap().sq_context().state()
    }

    pub fn rq_state(&mut self) -> u32 {
        let mut query = QueryRqIn::new();
        query.set_rqn(self.rq.number);
        self.bench.exec(&query).unwrap().rq_context().state()
    }

    pub fn modify_sq(&mut self, from: u32, to: u32) -> CmdStatus {
        self.bench.status(&sq_transition(self.sq.number, from, to))
    }

    pub fn modify_rq(&mut self, from: u32, to: u32) -> CmdStatus {
        self.bench.status(&rq_transition(self.rq.number, from, to))
    }

    pub fn allow_loopback(&mut self, bits: u32) {
        let mut modify = ModifyTirIn::new();
        modify.set_tirn(self.tir);
        modify.bitmask_mut().set_self_lb_en(true);
        modify.ctx_mut().set_self_lb_block(bits);
        self.bench.exec(&modify).unwrap();
    }
}

impl SendQueue {
    fn placed(bench: &mut Bench, resources: &Resources, tis: u32, place: Place) -> Self {
        let cq = bench.cq(resources, 7);
        let (record, record_iova) = bench.alloc(64);
        let mut create = CreateSqIn::new();
        create
            .ctx_mut()
            .set_cqn(cq.number)
            .set_flush_in_error_en(true)
            .set_tis_lst_sz(1)
            .set_tis_num_0(tis);
        create
            .ctx_mut()
            .wq_mut()
            .set_wq_type(1)
            .set_pd(resources.pd)
            .set_uar_page(resources.uar)
            .set_dbr_addr(record_iova)
            .set_log_wq_stride(6)
            .set_log_wq_sz(SQ_BLOCKS.ilog2());
        let (at, pages) = place.of_queue(bench, create.ctx_mut().wq_mut());
        let number = bench.exec_with(&create, &pages).unwrap().sqn();
        bench.exec(&sq_transition(number, RESET, READY)).unwrap();
        Self {
            number,
            cq,
            posted: 0,
            last: [0; 8],
            ring: SendRing {
                at,
                blocks: SQ_BLOCKS,
                record,
            },
        }
    }
}

impl ReceiveQueue {
    pub fn new(bench: &mut Bench, resources: &Resources) -> Self {
        Self::placed(bench, resources, Place::Pages(0))
    }

    pub fn placed(bench: &mut Bench, resources: &Resources, place: Place) -> Self {
        let cq = bench.cq(resources, 7);
        let (record, record_iova) = bench.alloc(64);
        let data = bench.alloc(RQ_ENTRIES * BUFFER);
        let logs = [RQ_STRIDE, RQ_ENTRIES].map(usize::ilog2);
        let mut create = rq_input(cq.number, resources.pd, record_iova, logs);
        create.ctx_mut().set_flush_in_error_en(true);
        let (ring, pages) = place.of_queue(bench, create.ctx_mut().wq_mut());
        let number = bench.exec_with(&create, &pages).unwrap().rqn();
        bench.exec(&rq_transition(number, RESET, READY)).unwrap();
        Self {
            number,
            cq,
            posted: 0,
            data,
            ring,
            record,
        }
    }

    /// Posts a receive buffer as two scatter entries, the first of 14 bytes. Returns its offset.
    pub fn post(&mut self, bench: &Bench, bytes: usize, key: u32) -> usize {
        let slot = usize::from(self.posted) % RQ_ENTRIES;
        let first = bytes.min(14);
        let at = slot * BUFFER;
        for (index, (from, length)) in [(0, first), (first, bytes - first)].into_iter().enumerate()
        {
            let key = if length == 0 {
                TERMINATE_SCATTER_LIST_LKEY
            } else {
                key
            };
            let addr = self.data.1 + (at + from) as u64;
            let segment = data_seg(key, addr, u32::try_from(length).unwrap());
            bench
                .memory
                .write_obj(self.ring + slot * RQ_STRIDE + index * 16, &segment);
        }
        self.posted = self.posted.wrapping_add(1);
        bench.memory.store_be32(self.record, u32::from(self.posted));
        self.data.0 + at
    }

    pub fn received(&mut self, bench: &Bench) -> Option<(Cqe64, Vec<u8>)> {
        let cqe = bench.poll(&mut self.cq)?;
        let slot = usize::from(cqe.wqe_counter()) % RQ_ENTRIES;
        let mut bytes = vec![0; usize::try_from(cqe.byte_cnt()).unwrap().min(BUFFER)];
        bench
            .memory
            .read_bytes(self.data.0 + slot * BUFFER, &mut bytes);
        Some((cqe, bytes))
    }
}

/// Creates a TIR that sends every frame to one receive queue.
pub fn create_tir(bench: &mut Bench, td: u32, rqn: u32) -> u32 {
    let mut create = CreateTirIn::new();
    create
        .ctx_mut()
        .set_transport_domain(td)
        .set_inline_rqn(rqn);
    bench.exec(&create).unwrap().tirn()
}

/// Returns a command that creates a receive queue with a stride and a number of entries, given as their log2.
pub fn rq_input(cqn: u32, pd: u32, record: u64, [stride, entries]: [u32; 2]) -> CreateRqIn {
    let mut create = CreateRqIn::new();
    create
        .ctx_mut()
        .set_cqn(cqn)
        .wq_mut()
        .set_wq_type(1)
        .set_pd(pd)
        .set_dbr_addr(record)
        .set_log_wq_stride(stride)
        .set_log_wq_sz(entries);
    create
}

pub fn sq_transition(number: u32, from: u32, to: u32) -> ModifySqIn {
    let mut modify = ModifySqIn::new();
    modify.set_sqn(number).set_sq_state(from);
    modify.ctx_mut().set_state(to);
    modify
}

pub fn rq_transition(number: u32, from: u32, to: u32) -> ModifyRqIn {
    let mut modify = ModifyRqIn::new();
    modify.set_rqn(number).set_rq_state(from);
    modify.ctx_mut().set_state(to);
    modify
}

pub fn destination(kind: FlowDestinationType, number: u32) -> u64 {
    let mut format = DestFormat::new();
    format.set_destination_type(kind).set_destination_id(number);
    u64::from_be_bytes(*format.as_array())
}

pub fn entry_input(
    table: u32,
    group: u32,
    index: u32,
    value: &FteMatchParam,
    action: u32,
    destinations: usize,
) -> SetFlowTableEntryIn {
    let mut set = SetFlowTableEntryIn::new();
    set.set_table_id(table).set_flow_index(index);
    let context = set.flow_context_mut();
    context
        .set_group_id(group)
        .set_action(action)
        .set_destination_list_size(u32::try_from(destinations).unwrap());
    *context.match_value_mut() = value.clone();
    set
}

/// Returns a frame of an unknown protocol from one side to an address.
pub fn plain(from: usize, to: [u8; 6], payload: usize) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(MACS[from]);
    frame.extend([0x88, 0xb5]);
    frame.extend((0..payload).map(|at| u8::try_from(at % 251).unwrap()));
    frame
}
