//! Two queue pairs back to back, without a device around them.
//!
//! A [`Side`] is a queue pair and a host made of vectors: flat memory, a few keys, everything that
//! was completed, raised or reported. A [`Pair`] joins two sides by a [`Link`] and owns the time.

#![allow(dead_code, reason = "each test file uses its own part")]

use hw_mlx::prm::{Ads, Av, Cqe64, DataSeg, EventType, Qpc, Syndrome};
use hw_sim::host::{DmaFault, GidEntry, Host, KeyError, KeyScope, SrqWqe, UmrRequest};
use hw_sim::link::{Link, LinkFaults, Port};
use hw_sim::qp::{Qp, Transition};
use hw_sim::wire::{Opcode, Operation, Packet, Psn};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of memory a side has, at address 0.
pub const MEMORY: usize = 1 << 20;
/// Where the work queue buffer lies: two pages of it, not adjacent.
pub const PAGES: [u64; 2] = [0x1_0000, 0x1_8000];
/// Doorbell record.
pub const RECORD: u64 = 0x800;
/// Free for data.
pub const DATA: u64 = 0x4_0000;
/// A key for everything.
pub const KEY: u32 = 0x1701;
/// A key nobody made.
pub const NO_KEY: u32 = 0xbad0;
/// A key that grants only local and remote reading.
pub const READ_ONLY: u32 = 0x2702;
/// A key of another protection domain.
pub const FOREIGN: u32 = 0x3703;
/// Send queue WQEBBs.
pub const SQ_BLOCKS: u16 = 64;
/// Receive queue entries of 64 bytes.
pub const RQ_ENTRIES: u16 = 64;
/// Path MTU of most tests.
pub const MTU: u32 = 256;
/// First PSN of side A towards B, close to the wrap; B's is this plus 100.
pub const FIRST_PSN: u32 = 0xff_fff0;

const PD: u32 = 7;

#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub start: u64,
    pub bytes: u64,
    pub pd: u32,
    pub write: bool,
}

/// The double of a function.
pub struct TestHost {
    pub now: u64,
    pub memory: Vec<u8>,
    pub keys: BTreeMap<u32, Key>,
    pub completions: Vec<(u32, Cqe64, bool)>,
    pub events: Vec<EventType>,
    pub frames: VecDeque<Vec<u8>>,
    pub shared: VecDeque<SrqWqe>,
    pub bugs: Vec<String>,
    pub umrs: Vec<(u32, Vec<u8>)>,
    pub invalidated: Vec<u32>,
    pub gids: Vec<GidEntry>,
    pub cqe_version: u8,
    rng: ChaCha8Rng,
}

impl TestHost {
    fn new(node: u8) -> Self {
        let whole = |pd, write| Key {
            start: 0,
            bytes: MEMORY as u64,
            pd,
            write,
        };
        let keys = BTreeMap::from([
            (KEY, whole(PD, true)),
            (READ_ONLY, whole(PD, false)),
            (FOREIGN, whole(PD + 1, true)),
        ]);
        Self {
            now: 0,
            memory: vec![0; MEMORY],
            keys,
            completions: Vec::new(),
            events: Vec::new(),
            frames: VecDeque::new(),
            shared: VecDeque::new(),
            bugs: Vec::new(),
            umrs: Vec::new(),
            invalidated: Vec::new(),
            gids: vec![
                GidEntry {
                    gid: gid(node),
                    mac: mac(node),
                    roce_version: 2,
                    l3_type: 0,
                    vlan: None,
                },
                GidEntry {
                    gid: gid6(node),
                    mac: mac(node),
                    roce_version: 2,
                    l3_type: 1,
                    vlan: Some(5),
                },
                GidEntry {
                    gid: gid6(node),
                    mac: mac(node),
                    roce_version: 0,
                    l3_type: 0,
                    vlan: None,
                },
            ],
            cqe_version: 0,
            rng: ChaCha8Rng::seed_from_u64(u64::from(node)),
        }
    }

    fn range(
        &self,
        va: u64,
        bytes: usize,
        write: bool,
    ) -> Result<std::ops::Range<usize>, DmaFault> {
        let fault = DmaFault {
            iova: va,
            bytes,
            write,
        };
        let start = usize::try_from(va).map_err(|_| fault)?;
        let end = start
            .checked_add(bytes)
            .filter(|&end| end <= MEMORY)
            .ok_or(fault)?;
        Ok(start..end)
    }

    pub fn write(&mut self, at: u64, data: &[u8]) {
        let range = self
            .range(at, data.len(), true)
            .expect("a test's own address");
        self.memory[range].copy_from_slice(data);
    }

    pub fn read(&self, at: u64, bytes: usize) -> &[u8] {
        let range = self.range(at, bytes, false).expect("a test's own address");
        &self.memory[range]
    }
}

impl Host for TestHost {
    fn now(&self) -> u64 {
        self.now
    }

    fn dma_read(&mut self, iova: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        let range = self.range(iova, out.len(), false)?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn dma_write(&mut self, iova: u64, data: &[u8]) -> Result<(), DmaFault> {
        let range = self.range(iova, data.len(), true)?;
        self.memory[range].copy_from_slice(data);
        Ok(())
    }

    fn key_read(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        out: &mut [u8],
    ) -> Result<(), KeyError> {
        self.key_check(key, scope, va, out.len() as u64, false)?;
        Ok(self.dma_read(va, out)?)
    }

    fn key_write(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        data: &[u8],
    ) -> Result<(), KeyError> {
        self.key_check(key, scope, va, data.len() as u64, true)?;
        Ok(self.dma_write(va, data)?)
    }

    fn key_check(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), KeyError> {
        let found = self.keys.get(&key).ok_or(KeyError::Missing { key })?;
        if found.pd != scope.pd {
            return Err(KeyError::ProtectionDomain { key });
        }
        if write && !found.write {
            return Err(KeyError::Access { key });
        }
        let end = va.checked_add(bytes);
        if va < found.start || end.is_none_or(|end| end > found.start + found.bytes) {
            return Err(KeyError::Range { key, va, bytes });
        }
        Ok(())
    }

    fn complete(&mut self, cqn: u32, cqe: Cqe64, solicited: bool) {
        self.completions.push((cqn, cqe, solicited));
    }

    fn qp_event(&mut self, event: EventType, _qpn: u32) {
        self.events.push(event);
    }

    fn srq_take(&mut self, _srqn: u32) -> Result<Option<SrqWqe>, DmaFault> {
        Ok(self.shared.pop_front())
    }

    fn transmit(&mut self, frame: Vec<u8>) {
        self.frames.push_back(frame);
    }

    fn gid(&self, index: u8) -> Option<GidEntry> {
        self.gids.get(usize::from(index)).cloned()
    }

    fn cqe_version(&self) -> u8 {
        self.cqe_version
    }

    fn driver_bug(&mut self, what: String) {
        self.bugs.push(what);
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn umr(&mut self, request: UmrRequest<'_>) -> Result<(), KeyError> {
        self.umrs.push((request.key, request.entries.to_vec()));
        if request.key == NO_KEY {
            Err(KeyError::Missing { key: NO_KEY })
        } else {
            Ok(())
        }
    }

    fn invalidate(&mut self, key: u32, _scope: KeyScope) -> Result<(), KeyError> {
        self.invalidated.push(key);
        self.keys
            .remove(&key)
            .map(|_| ())
            .ok_or(KeyError::Missing { key })
    }
}

pub fn gid(node: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, node]
}

pub fn gid6(node: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, node]
}

pub fn mac(node: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, node]
}

/// What a test may want to be different.
#[derive(Clone, Debug)]
pub struct Options {
    pub service: u32,
    pub mtu_code: u32,
    pub retry_count: u32,
    pub rnr_retry: u32,
    pub ack_timeout: u32,
    pub min_rnr_nak: u32,
    pub log_sra_max: u32,
    pub log_rra_max: u32,
    pub rights: (bool, bool, bool),
    pub shared_receive_queue: bool,
    pub gid_index: u32,
    pub log_ack_req_freq: u32,
    pub log_msg_max: u32,
    pub user_index: u32,
    pub q_key: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            service: 0,
            mtu_code: 1,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 4, // 65.536 µs
            min_rnr_nak: 1, // 10 µs
            log_sra_max: 2,
            log_rra_max: 2,
            rights: (true, true, true),
            shared_receive_queue: false,
            gid_index: 0,
            log_ack_req_freq: 8,
            log_msg_max: 20,
            user_index: 0,
            q_key: 0,
        }
    }
}

pub const fn qpn(node: u8) -> u32 {
    0x100 + node as u32
}

pub const CQN_SEND: u32 = 0x21;
pub const CQN_RECEIVE: u32 = 0x22;

pub fn create_context(options: &Options) -> Qpc {
    let mut context = Qpc::new();
    context
        .set_st(options.service)
        .set_pm_state(3)
        .set_pd(PD)
        .set_uar_page(9)
        .set_log_sq_size(SQ_BLOCKS.ilog2())
        .set_cqn_snd(CQN_SEND)
        .set_cqn_rcv(CQN_RECEIVE)
        .set_dbr_addr(RECORD)
        .set_user_index(options.user_index)
        .set_log_page_size(0);
    if options.shared_receive_queue {
        context.set_rq_type(1).set_srqn_rmpn_xrqn(0x55);
    } else {
        context
            .set_log_rq_size(RQ_ENTRIES.ilog2())
            .set_log_rq_stride(2);
    }
    context
}

fn path(options: &Options, peer: u8) -> Ads {
    let mut path = Ads::new();
    let [a, b, c, d, e, f] = mac(peer);
    path.set_src_addr_index(options.gid_index)
        .set_hop_limit(64)
        .set_udp_sport(0xc123)
        .set_vhca_port_num(1)
        .set_ack_timeout(options.ack_timeout)
        .set_rmac_47_32(u32::from(u16::from_be_bytes([a, b])))
        .set_rmac_31_0(u32::from_be_bytes([c, d, e, f]))
        .set_rgid_rip(&if options.gid_index == 0 {
            gid(peer)
        } else {
            gid6(peer)
        });
    path
}

/// A queue pair and its host.
pub struct Side {
    pub qp: Qp,
    pub host: TestHost,
    pub node: u8,
    shared: bool,
    posted_blocks: u16,
    posted_receives: u16,
}

impl Side {
    pub fn new(node: u8, options: &Options) -> Self {
        let qp = Qp::create(qpn(node), &create_context(options), PAGES.to_vec());
        Self {
            qp: qp.expect("a sensible context"),
            host: TestHost::new(node),
            node,
            shared: options.shared_receive_queue,
            posted_blocks: 0,
            posted_receives: 0,
        }
    }

    pub fn to_init(&mut self, options: &Options) {
        let mut context = Qpc::new();
        context
            .set_rre(options.rights.0)
            .set_rwe(options.rights.1)
            .set_rae(options.rights.2)
            .set_q_key(options.q_key)
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        let done = self
            .qp
            .modify(Transition::RstToInit, 0, &context, &mut self.host);
        assert_eq!(done, Ok(()), "RST2INIT");
    }

    pub fn to_rtr(&mut self, options: &Options, peer: u8) {
        let mut context = Qpc::new();
        context
            .set_mtu(options.mtu_code)
            .set_log_msg_max(options.log_msg_max)
            .set_remote_qpn(qpn(peer))
            .set_next_rcv_psn(first_psn(peer))
            .set_log_rra_max(options.log_rra_max)
            .set_min_rnr_nak(options.min_rnr_nak)
            .set_primary_address_path(&path(options, peer));
        let done = self
            .qp
            .modify(Transition::InitToRtr, 0, &context, &mut self.host);
        assert_eq!(done, Ok(()), "INIT2RTR");
    }

    pub fn to_rts(&mut self, options: &Options) {
        let mut context = Qpc::new();
        context
            .set_next_send_psn(first_psn(self.node))
            .set_log_sra_max(options.log_sra_max)
            .set_retry_count(options.retry_count)
            .set_rnr_retry(options.rnr_retry)
            .set_log_ack_req_freq(options.log_ack_req_freq)
            .set_primary_address_path(&path(options, 0));
        let done = self
            .qp
            .modify(Transition::RtrToRts, 0, &context, &mut self.host);
        assert_eq!(done, Ok(()), "RTR2RTS");
    }

    /// Bytes of the ring at `offset` of the work queue buffer, which is two pages.
    fn write_ring(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in (offset..).zip(data) {
            let page = PAGES[usize::try_from(at >> 12).expect("small")];
            self.host.write(page + (at & 0xfff), &[*byte]);
        }
    }

    const fn send_ring(&self) -> u64 {
        if self.shared {
            0
        } else {
            RQ_ENTRIES as u64 * 64
        }
    }

    /// Writes a WQE at the end of the send queue and rings the doorbell.
    pub fn post(&mut self, wqe: &Wqe) -> u16 {
        let index = self.place(wqe);
        self.ring(&wqe.encode(index, self.qp.qpn()));
        index
    }

    /// Writes a WQE and the doorbell record; the register comes later.
    pub fn place(&mut self, wqe: &Wqe) -> u16 {
        let index = self.posted_blocks;
        let bytes = wqe.encode(index, self.qp.qpn());
        self.place_bytes(&bytes);
        index
    }

    pub fn place_bytes(&mut self, bytes: &[u8]) {
        let ring = self.send_ring();
        let (mut at, size) = (
            u64::from(self.posted_blocks) * 64,
            u64::from(SQ_BLOCKS) * 64,
        );
        for chunk in bytes.chunks(16) {
            self.write_ring(ring + at % size, chunk);
            at += 16;
        }
        let blocks = u16::try_from(bytes.len().div_ceil(64)).expect("small");
        self.posted_blocks = self.posted_blocks.wrapping_add(blocks);
        self.set_send_record(self.posted_blocks);
    }

    pub fn set_send_record(&mut self, counter: u16) {
        self.host
            .write(RECORD + 4, &u32::from(counter).to_be_bytes());
    }

    pub fn ring(&mut self, wqe: &[u8]) {
        let first = *wqe.first_chunk().expect("a control segment");
        self.qp.doorbell(first, &mut self.host);
    }

    /// Posts a receive of these segments.
    pub fn post_receive(&mut self, segments: &[(u32, u64, u32)]) {
        if self.shared {
            let index = self.posted_receives.wrapping_mul(3); // not in order, on purpose
            self.posted_receives += 1;
            let scatter = segments.iter().map(|&(key, va, bytes)| {
                let mut segment = DataSeg::new();
                segment.set_lkey(key).set_addr(va).set_byte_count(bytes);
                segment
            });
            self.host.shared.push_back(SrqWqe {
                index,
                scatter: scatter.collect(),
            });
            return;
        }
        let mut entry = Vec::new();
        for &(key, va, bytes) in segments {
            entry.extend(data_segment(key, va, bytes));
        }
        if entry.len() < 64 {
            entry.extend(data_segment(0x100, 0, 0));
        }
        entry.resize(64, 0);
        let at = u64::from(self.posted_receives % RQ_ENTRIES) * 64;
        self.write_ring(at, &entry);
        self.posted_receives = self.posted_receives.wrapping_add(1);
        self.set_receive_record(self.posted_receives);
    }

    pub fn set_receive_record(&mut self, counter: u16) {
        self.host.write(RECORD, &u32::from(counter).to_be_bytes());
    }

    pub fn receives(&self) -> Vec<Cqe64> {
        self.of_queue(CQN_RECEIVE)
    }

    pub fn sends(&self) -> Vec<Cqe64> {
        self.of_queue(CQN_SEND)
    }

    fn of_queue(&self, cqn: u32) -> Vec<Cqe64> {
        let of_queue = self.host.completions.iter().filter(|(at, ..)| *at == cqn);
        of_queue.map(|(_, cqe, _)| cqe.clone()).collect()
    }

    /// WQE index and syndrome (0: success) of each send completion.
    pub fn send_results(&self) -> Vec<(u16, u8)> {
        self.sends().iter().map(result).collect()
    }

    pub fn receive_results(&self) -> Vec<(u16, u8)> {
        self.receives().iter().map(result).collect()
    }
}

/// WQE counter and syndrome of a CQE, 0 standing for success.
pub fn result(cqe: &Cqe64) -> (u16, u8) {
    let is_error = matches!(cqe.op_own() >> 4, 13 | 14);
    (
        cqe.wqe_counter(),
        if is_error {
            cqe.as_error().syndrome()
        } else {
            0
        },
    )
}

pub const FLUSHED: u8 = Syndrome::WR_FLUSH_ERR.0;

pub const fn first_psn(node: u8) -> u32 {
    (FIRST_PSN + (node as u32 - 1) * 100) & 0xff_ffff
}

pub fn data_segment(key: u32, va: u64, bytes: u32) -> Vec<u8> {
    [
        &bytes.to_be_bytes()[..],
        &key.to_be_bytes(),
        &va.to_be_bytes(),
    ]
    .concat()
}

/// A send WQE under construction.
#[derive(Clone, Debug)]
pub struct Wqe {
    pub opcode: u8,
    /// Byte 0x0b: fence, completion, solicited.
    pub flags: u8,
    pub last_word: u32,
    pub body: Vec<u8>,
}

pub const SIGNALLED: u8 = 2 << 2;
pub const SOLICITED: u8 = 1 << 1;
pub const FENCED: u8 = 2 << 5;

impl Wqe {
    fn new(opcode: u8) -> Self {
        Self {
            opcode,
            flags: SIGNALLED,
            last_word: 0,
            body: Vec::new(),
        }
    }

    pub fn nop() -> Self {
        Self::new(0)
    }

    pub fn send(va: u64, bytes: u32) -> Self {
        Self::new(0x0a).data(KEY, va, bytes)
    }

    pub fn send_immediate(va: u64, bytes: u32, immediate: u32) -> Self {
        let mut wqe = Self::new(0x0b).data(KEY, va, bytes);
        wqe.last_word = immediate;
        wqe
    }

    pub fn send_invalidate(va: u64, bytes: u32, key: u32) -> Self {
        let mut wqe = Self::new(0x01).data(KEY, va, bytes);
        wqe.last_word = key;
        wqe
    }

    pub fn send_inline(data: &[u8]) -> Self {
        Self::new(0x0a).inline(data)
    }

    pub fn write(va: u64, bytes: u32, to: u64, rkey: u32) -> Self {
        Self::new(0x08).remote(to, rkey).data(KEY, va, bytes)
    }

    pub fn write_immediate(va: u64, bytes: u32, to: u64, immediate: u32) -> Self {
        let mut wqe = Self::new(0x09).remote(to, KEY).data(KEY, va, bytes);
        wqe.last_word = immediate;
        wqe
    }

    pub fn read(to: u64, bytes: u32, from: u64, rkey: u32) -> Self {
        Self::new(0x10).remote(from, rkey).data(KEY, to, bytes)
    }

    pub fn fetch_add(to: u64, at: u64, rkey: u32, add: u64) -> Self {
        Self::new(0x12)
            .remote(at, rkey)
            .words(add, 0)
            .data(KEY, to, 8)
    }

    pub fn compare_swap(to: u64, at: u64, compare: u64, swap: u64) -> Self {
        Self::new(0x11)
            .remote(at, KEY)
            .words(swap, compare)
            .data(KEY, to, 8)
    }

    pub fn datagram(to: u8, q_key: u32, gid_index: u32, va: u64, bytes: u32) -> Self {
        let mut av = Av::new();
        av.set_q_key(q_key)
            .set_ext(true)
            .set_dqp(qpn(to))
            .set_rlid(0xc777)
            .set_rmac(&mac(to))
            .set_hop_limit(64)
            .set_grh(true)
            .set_src_addr_index(gid_index)
            .set_rgid(&if gid_index == 0 { gid(to) } else { gid6(to) });
        let mut wqe = Self::new(0x0a);
        wqe.body.extend(av.as_array());
        wqe.data(KEY, va, bytes)
    }

    pub fn umr(key: u32, entries: &[u8]) -> Self {
        let mut wqe = Self::new(0x25);
        wqe.last_word = key;
        let mut control = [0; 48];
        control[0] = 0x80; // inline
        wqe.body.extend(control);
        wqe.body.extend([0; 64]);
        wqe.body.extend(entries);
        wqe
    }

    fn remote(mut self, va: u64, rkey: u32) -> Self {
        self.body.extend(va.to_be_bytes());
        self.body.extend(rkey.to_be_bytes());
        self.body.extend([0; 4]);
        self
    }

    fn words(mut self, first: u64, second: u64) -> Self {
        self.body.extend(first.to_be_bytes());
        self.body.extend(second.to_be_bytes());
        self
    }

    /// Adds a data pointer; zero bytes add none, as drivers do.
    pub fn data(mut self, key: u32, va: u64, bytes: u32) -> Self {
        if bytes > 0 {
            self.body.extend(data_segment(key, va, bytes));
        }
        self
    }

    pub fn inline(mut self, data: &[u8]) -> Self {
        let header = 1 << 31 | u32::try_from(data.len()).expect("small");
        self.body.extend(header.to_be_bytes());
        self.body.extend(data);
        self.body.resize(self.body.len().next_multiple_of(16), 0);
        self
    }

    pub fn unsignalled(mut self) -> Self {
        self.flags &= !SIGNALLED;
        self
    }

    pub fn flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    pub fn encode(&self, index: u16, qpn: u32) -> Vec<u8> {
        let [high, low] = index.to_be_bytes();
        let ds = u32::try_from(1 + self.body.len().div_ceil(16)).expect("small");
        let mut bytes = vec![0, high, low, self.opcode];
        bytes.extend((qpn << 8 | ds).to_be_bytes());
        bytes.extend([0, 0, 0, self.flags]);
        bytes.extend(self.last_word.to_be_bytes());
        bytes.extend(&self.body);
        bytes
    }
}

/// A packet that was put onto the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub from: Port,
    pub at: u64,
    pub opcode: Opcode,
    pub psn: Psn,
    pub bytes: usize,
    pub ack_request: bool,
}

impl Seen {
    pub fn operation(&self) -> Operation {
        self.opcode.operation()
    }
}

/// Decides whether a packet gets through; the number counts packets of the same direction.
pub type Filter = Box<dyn FnMut(Port, usize, &Packet<'_>) -> bool>;

/// Two sides, the link between them, and time.
pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub link: Link,
    pub now: u64,
    pub seen: Vec<Seen>,
    pub filter: Filter,
    counts: [usize; 2],
}

impl Pair {
    pub fn new() -> Self {
        Self::with(&Options::default())
    }

    pub fn with(options: &Options) -> Self {
        Self::with_each(options, options)
    }

    /// Connected in both directions, everything in RTS.
    pub fn with_each(a: &Options, b: &Options) -> Self {
        let mut pair = Self::created(a, b);
        for (side, options, peer) in [(&mut pair.a, a, 2), (&mut pair.b, b, 1)] {
            side.to_init(options);
            side.to_rtr(options, peer);
            side.to_rts(options);
        }
        pair
    }

    /// Both in RST.
    pub fn created(a: &Options, b: &Options) -> Self {
        Self {
            a: Side::new(1, a),
            b: Side::new(2, b),
            link: Link::new(0, LinkFaults::NONE),
            now: 0,
            seen: Vec::new(),
            filter: Box::new(|_, _, _| true),
            counts: [0; 2],
        }
    }

    pub fn faulty(seed: u64, faults: LinkFaults) -> Self {
        let mut pair = Self::new();
        pair.link = Link::new(seed, faults);
        pair
    }

    fn collect(&mut self, port: Port) {
        loop {
            let (side, count) = match port {
                Port::A => (&mut self.a, &mut self.counts[0]),
                Port::B => (&mut self.b, &mut self.counts[1]),
            };
            let Some(frame) = side.host.frames.pop_front() else {
                break;
            };
            let packet = Packet::parse(&frame).expect("our own packet");
            self.seen.push(Seen {
                from: port,
                at: self.now,
                opcode: packet.bth.opcode,
                psn: packet.bth.psn,
                bytes: packet.payload.len(),
                ack_request: packet.bth.ack_request,
            });
            let passes = (self.filter)(port, *count, &packet);
            *count += 1;
            if passes {
                self.link.send(self.now, port, frame);
            }
        }
    }

    /// Hands a frame to a side, as its port would.
    pub fn deliver(&mut self, to: Port, frame: &[u8]) {
        let side = match to {
            Port::A => &mut self.a,
            Port::B => &mut self.b,
        };
        if let Ok(packet) = Packet::parse(frame)
            && packet.dest_qpn() == side.qp.qpn()
        {
            side.qp.receive(&packet, &mut side.host);
        }
    }

    /// Does everything there is to do at this instant.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            let mut busy = false;
            for port in [Port::A, Port::B] {
                let side = match port {
                    Port::A => &mut self.a,
                    Port::B => &mut self.b,
                };
                side.host.now = self.now;
                if side.qp.pending() {
                    side.qp.run(&mut side.host);
                    busy = true;
                }
                self.collect(port);
            }
            while let Some(delivery) = self.link.pop_due(self.now) {
                self.deliver(delivery.to, &delivery.frame);
                busy = true;
            }
            if !busy {
                return;
            }
        }
        panic!("never idle at {}", self.now);
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<u64> {
        let timers = self
            .a
            .qp
            .timer_due()
            .into_iter()
            .chain(self.b.qp.timer_due());
        timers.chain(self.link.next_due()).min()
    }

    /// Lets time pass until `until`, doing everything that becomes due.
    pub fn run_until(&mut self, until: u64) {
        self.settle();
        while let Some(next) = self.next_event().filter(|&next| next <= until) {
            self.now = next.max(self.now);
            for side in [&mut self.a, &mut self.b] {
                side.host.now = self.now;
                if side.qp.timer_due().is_some_and(|due| due <= self.now) {
                    side.qp.timer(&mut side.host);
                }
            }
            self.settle();
        }
        self.now = until.max(self.now);
    }

    /// Lets time pass until `done`, at most ten virtual seconds; whether it came.
    pub fn run_while(&mut self, mut waiting: impl FnMut(&Self) -> bool) -> bool {
        self.settle();
        while waiting(self) {
            let Some(next) = self.next_event().filter(|&next| next <= 10_000_000_000) else {
                return false;
            };
            self.run_until(next);
        }
        true
    }

    /// Requests seen from `port`, by operation.
    pub fn operations(&self, port: Port) -> Vec<Operation> {
        let from = self.seen.iter().filter(|seen| seen.from == port);
        from.map(Seen::operation).collect()
    }

    pub fn count(&self, port: Port, operation: Operation) -> usize {
        self.operations(port)
            .into_iter()
            .filter(|&seen| seen == operation)
            .count()
    }
}

/// Bytes that differ from their neighbours'.
pub fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ at as u8 ^ seed)
        .collect()
}
