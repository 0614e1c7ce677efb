//! Two queue pairs that are connected directly, without a device.
//!
//! A [`Side`] is a queue pair with a test double as its host: flat memory, a few keys, and records of all completions,
//! events and driver bugs. A [`Pair`] connects two sides by a [`Link`] and controls the time.

mod context;
mod host;
mod wqe;

pub use context::*;
pub use host::*;
pub use wqe::*;

use hw_sim::host::SrqWqe;
use hw_sim::link::{Link, LinkFaults, Port};
use hw_sim::qp::{Qp, Transition};
use hw_sim::wire::{Opcode, Operation, Packet, Psn};
use mlx_prm::{Cqe64, DataSeg, Qpc, Syndrome};

/// Size of a side's memory in bytes. The memory starts at address 0.
pub const MEMORY: usize = 1 << 20;
/// Addresses of the work queue buffer's pages, which are not adjacent.
pub const PAGES: [u64; 2] = [0x1_0000, 0x1_8000];
/// Address of the doorbell record.
pub const RECORD: u64 = 0x800;
/// Address of the data area.
pub const DATA: u64 = 0x4_0000;
/// Key that covers all memory.
pub const KEY: u32 = 0x1701;
/// Key that does not exist.
pub const NO_KEY: u32 = 0xbad0;
/// Key that permits only local and remote reads.
pub const READ_ONLY: u32 = 0x2702;
/// Key of another protection domain.
pub const FOREIGN: u32 = 0x3703;
/// Number of WQEBBs in the send queue.
pub const SQ_BLOCKS: u16 = 64;
/// Number of entries in the receive queue, of 64 bytes each.
pub const RQ_ENTRIES: u16 = 64;
/// Path MTU of most tests in bytes.
pub const MTU: u32 = 256;
/// First PSN that A sends, close to the wrap. B's first PSN is 100 higher.
pub const FIRST_PSN: u32 = 0xff_fff0;

pub const PD: u32 = 7;

pub fn gid(node: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, node]
}

pub fn gid6(node: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, node]
}

pub fn mac(node: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, node]
}

pub const fn qpn(node: u8) -> u32 {
    0x100 + node as u32
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
        let context = create_context(options);
        let qp = Qp::create(qpn(node), &context, memory(&context));
        Self {
            qp: qp.expect("a sensible context"),
            host: TestHost::new(node),
            node,
            shared: options.shared_receive_queue,
            posted_blocks: 0,
            posted_receives: 0,
        }
    }

    pub fn enter_init(&mut self, options: &Options) {
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

    pub fn enter_rtr(&mut self, options: &Options, peer: u8) {
        let mut context = Qpc::new();
        context
            .set_mtu(options.mtu_code)
            .set_log_msg_max(options.log_msg_max)
            .set_remote_qpn(qpn(peer))
            .set_next_rcv_psn(first_psn(peer))
            .set_log_rra_max(options.log_rra_max)
            .set_atomic_mode(options.atomic_mode)
            .set_min_rnr_nak(options.min_rnr_nak)
            .set_primary_address_path(&path(options, peer));
        let done = self
            .qp
            .modify(Transition::InitToRtr, 0, &context, &mut self.host);
        assert_eq!(done, Ok(()), "INIT2RTR");
    }

    pub fn enter_rts(&mut self, options: &Options) {
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

    /// Moves the queue pair from RST to RTS.
    pub fn connect(&mut self, options: &Options, peer: u8) {
        self.enter_init(options);
        self.enter_rtr(options, peer);
        self.enter_rts(options);
    }

    /// Makes a transition without parameters.
    pub fn modify(&mut self, transition: Transition) {
        let done = self.qp.modify(transition, 0, &Qpc::new(), &mut self.host);
        assert_eq!(done, Ok(()), "{transition:?}");
    }

    /// Lets the queue pair do everything that it can do without its peer. Packets stay in the host's `frames`.
    pub fn run(&mut self) {
        while self.qp.pending() {
            self.qp.run(&mut self.host);
        }
    }

    /// Writes bytes to the ring, at `offset` in the work queue buffer of two pages.
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

    /// Writes a WQE to the send queue, the doorbell record and the doorbell register. Returns the index of the WQE.
    pub fn post(&mut self, wqe: &Wqe) -> u16 {
        let index = self.place(wqe);
        self.ring(&wqe.encode(index, self.qp.qpn()));
        index
    }

    /// Writes a WQE and the doorbell record, but not the doorbell register. Returns the index of the WQE.
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

    /// Posts a receive with these segments (key, address, length).
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
                pd: PD,
                scatter: scatter.collect(),
                xrc: None,
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

    /// Returns WQE index and syndrome of each send completion. Syndrome 0 means success.
    pub fn send_results(&self) -> Vec<(u16, u8)> {
        self.sends().iter().map(result).collect()
    }

    pub fn receive_results(&self) -> Vec<(u16, u8)> {
        self.receives().iter().map(result).collect()
    }
}

/// Returns WQE counter and syndrome of a CQE. Syndrome 0 means success.
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
    Psn::masked(FIRST_PSN)
        .advance((node as u32 - 1) * 100)
        .get()
}

/// A packet that was seen on the wire.
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

/// Function that returns whether a packet is delivered. The number is the index of the packet in its direction, from 0.
pub type Filter = Box<dyn FnMut(Port, usize, &Packet<'_>) -> bool>;

/// Two sides, the link between them, and virtual time.
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

    /// Creates a pair. `change` edits the default options of both sides.
    pub fn changed(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::default();
        change(&mut options);
        Self::with(&options)
    }

    pub fn with(options: &Options) -> Self {
        Self::with_each(options, options)
    }

    /// Creates a pair that is connected in both directions, with both sides in RTS.
    pub fn with_each(a: &Options, b: &Options) -> Self {
        let mut pair = Self::created(a, b);
        for (side, options, peer) in [(&mut pair.a, a, 2), (&mut pair.b, b, 1)] {
            side.connect(options, peer);
        }
        pair
    }

    /// Creates a pair with both sides in RST.
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

    /// Drops the packets of `port` with these numbers, counted from 0.
    pub fn drop_packets(&mut self, port: Port, which: &'static [usize]) {
        self.filter = Box::new(move |from, count, _| from != port || !which.contains(&count));
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

    /// Delivers a frame to a side, as a port would.
    pub fn deliver(&mut self, to: Port, frame: &[u8]) {
        let side = match to {
            Port::A => &mut self.a,
            Port::B => &mut self.b,
        };
        if let Ok(packet) = Packet::parse(frame)
            && packet.dest_qpn().get() == side.qp.qpn()
        {
            side.qp.receive(&packet, &mut side.host);
        }
    }

    /// Processes everything that is due at the current time.
    pub fn run_until_idle(&mut self) {
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

    /// Returns the time of the next event.
    pub fn next_event(&self) -> Option<u64> {
        let timers = self
            .a
            .qp
            .timer_due()
            .into_iter()
            .chain(self.b.qp.timer_due());
        timers.chain(self.link.next_due()).min()
    }

    /// Advances time to `until`, and processes everything that becomes due.
    pub fn run_until(&mut self, until: u64) {
        self.run_until_idle();
        while let Some(next) = self.next_event().filter(|&next| next <= until) {
            self.now = next.max(self.now);
            for side in [&mut self.a, &mut self.b] {
                side.host.now = self.now;
                if side.qp.timer_due().is_some_and(|due| due <= self.now) {
                    side.qp.timer(&mut side.host);
                }
            }
            self.run_until_idle();
        }
        self.now = until.max(self.now);
    }

    /// Advances time as long as `waiting` returns true, until there is no event before the time 10 s. Returns whether
    /// `waiting` has returned false.
    pub fn run_while(&mut self, mut waiting: impl FnMut(&Self) -> bool) -> bool {
        self.run_until_idle();
        while waiting(self) {
            let Some(next) = self.next_event().filter(|&next| next <= 10_000_000_000) else {
                return false;
            };
            self.run_until(next);
        }
        true
    }

    /// Returns the operations of all packets that `port` has sent, in order.
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

/// Returns a test pattern in which adjacent bytes differ.
pub fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes)
        .map(|at| u8::try_from((((at * 31) >> 3) ^ at) & 0xff).unwrap_or(0) ^ seed)
        .collect()
}
