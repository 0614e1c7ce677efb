//! Two simulated functions with connected queue pairs, set up one command at a time.
//!
//! No driver is between a test and the device. Rings, doorbell records, keys and all other bytes are at addresses that
//! the test knows, so the test can corrupt them one by one. Each function has two reliable queue pairs, connected
//! to the other function's queue pairs with the same index. Each queue pair has its own completion queue, doorbell
//! records and data page. Its key covers just that page, and no key covers the pages of canaries before and after it.

#![allow(dead_code, reason = "each harness uses its part")]

use crate::bench::{Bench, CompletionQueue, Resources, list};
use crate::honest::Longest;
use bolero::TypeGenerator;
use driver::Device;
use hw_sim::{Drive, LinkFaults, Profile, Sim, SimConfig};
use mlx_prm::*;

/// Index of the queue pair that attacks use. Index 1 is the healthy queue pair.
pub const ATTACKED: usize = 0;
pub const HEALTHY: usize = 1;
/// Bytes in a page. Each queue pair has one page of data.
pub const PAGE: usize = 4096;
/// Number of entries of the receive ring, 64 bytes each.
pub const RECEIVES: u32 = 16;
/// Number of basic blocks of the send ring, 64 bytes each.
pub const BLOCKS: u32 = 32;
/// Offset of the send ring in its page.
pub const SEND_RING: usize = RECEIVES as usize * 64;
/// First PSN of every queue pair, which wraps to 0 after four packets.
pub const FIRST_PSN: u32 = 0xff_fffc;
/// Q_Key of every QP 1.
pub const GSI_Q_KEY: u32 = 0x8001_0000;
const VARIANT: u32 = 0x42;
const CANARY: u8 = 0xc5;
const LOG_CQ: u32 = 7;

/// A queue pair and its memory. Positions are offsets into the bench's memory.
pub struct Live {
    pub qpn: u32,
    pub cq: CompletionQueue,
    /// Offset of the page with the receive ring, then the send ring.
    pub ring: usize,
    pub record: usize,
    /// Offset of the data page, and its virtual address, which is also its DMA address.
    pub data: usize,
    pub va: u64,
    pub key: u32,
    pub sends: u16,
    pub receives: u16,
    pub consumed: u32,
}

/// One of the two functions.
pub struct End {
    pub bench: Bench,
    pub resources: Resources,
    pub completion_eqn: u32,
    pub number: u8,
    pub qps: Vec<Live>,
}

/// Bits to flip: half of the values flip none, a quarter changes one byte, a quarter up to three bytes. With more
/// damage, the device would reject the input at the first check.
#[derive(Clone, Copy, Debug, TypeGenerator)]
pub struct Spoil {
    how_much: u8,
    at: [(u16, u8); 3],
}

impl Spoil {
    /// Flips no bits.
    pub const NONE: Self = Self {
        how_much: 0,
        at: [(0, 0); 3],
    };

    /// Returns whether `apply` flips bits, which is true for half of the values.
    pub fn any(self) -> bool {
        self.how_much >= 128
    }

    pub fn apply(self, bytes: &mut [u8]) {
        let count = match self.how_much {
            0..128 => 0,
            128..192 => 1,
            192.. => 3,
        };
        for (at, bits) in self.at.into_iter().take(count) {
            let length = bytes.len();
            if let Some(byte) = bytes.get_mut(usize::from(at).checked_rem(length).unwrap_or(0)) {
                *byte ^= bits;
            }
        }
    }
}

/// Decides about an action that ends most cases and should therefore be rare.
#[derive(Clone, Copy, Debug, TypeGenerator)]
pub struct RareChoice(u8);

impl RareChoice {
    /// Returns true for one value in sixteen.
    pub fn now(self) -> bool {
        self.0 < 16
    }
}

/// Returns a profile whose function boots fast and whose resources are small. It has the commands of Ethernet queues
/// and of user contexts.
pub fn small(name: &str, number: u8) -> Profile {
    let mut profile = Profile::named(name, mac(number)).ethernet().devx();
    profile.pages.boot = 2;
    profile.pages.init = 2;
    profile.pages.runtime = 0;
    profile.bar_bytes = 1 << 16;
    profile.msix_vectors = 2;
    profile
}

pub fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0x5e, 0, 0, number]
}

pub fn gid(number: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number]
}

/// Returns a data segment of a WQE.
pub fn data_segment(key: u32, va: u64, bytes: u32) -> Vec<u8> {
    let mut segment = DataSeg::new();
    segment.set_lkey(key).set_addr(va).set_byte_count(bytes);
    segment.as_array().to_vec()
}

impl End {
    /// Returns an initialised function with two queue pairs in RESET.
    pub fn new(sim: &Sim, number: u8) -> Self {
        let bench = Bench::in_world(sim, small(&format!("end{number}"), number));
        let mut end = Self::power_on(bench, number);
        end.qps = (0..2).map(|_| end.create_qp()).collect();
        end
    }

    /// Initialises a function that was just reset, and creates the objects that its queue pairs share.
    pub fn power_on(mut bench: Bench, number: u8) -> Self {
        bench.start();
        bench.exec(&EnableHcaIn::new()).unwrap();
        bench.satisfy_pages(1);
        bench.bring_up();
        let resources = bench.resources();
        let completion_eqn = bench.create_eq(resources.uar, 0, 1, 6).unwrap().number;
        bench.enable_roce(gid(number), mac(number));
        Self {
            bench,
            resources,
            completion_eqn,
            number,
            qps: Vec::new(),
        }
    }

    /// Creates a reliable queue pair in RESET.
    pub fn create_qp(&mut self) -> Live {
        self.create_queues(ServiceType::RC)
    }

    /// Creates the queue pair for QP 1 and moves it to RTS.
    pub fn create_gsi(&mut self) -> Live {
        let live = self.create_queues(ServiceType::QP1);
        let qpn = Qpn::new(live.qpn);
        let mut init = Rst2InitQpIn::for_qp(qpn, 0);
        init.qpc_mut()
            .set_q_key(GSI_Q_KEY)
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        self.bench.exec(&init).unwrap();
        let mut rtr = Init2RtrQpIn::for_qp(qpn, 0);
        rtr.qpc_mut()
            .set_mtu(1)
            .set_log_msg_max(8)
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        self.bench.exec(&rtr).unwrap();
        let mut rts = Rtr2RtsQpIn::for_qp(qpn, 0);
        rts.qpc_mut()
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        self.bench.exec(&rts).unwrap();
        live
    }

    /// Creates a queue pair of a service type in RESET, with its completion queue, key and memory.
    fn create_queues(&mut self, service: ServiceType) -> Live {
        let Resources { uar, pd, .. } = self.resources;
        let cq = self
            .bench
            .create_cq(uar, self.completion_eqn, LOG_CQ)
            .unwrap();
        let (ring, ring_iova) = self.bench.alloc(PAGE);
        let (record, record_iova) = self.bench.alloc(64);
        let (before, iova) = self.bench.alloc(3 * PAGE);
        self.bench.memory.fill(before, 3 * PAGE, CANARY);
        let (data, va) = (before + PAGE, iova + PAGE as u64);
        let mut create = CreateMkeyIn::new();
        create.set_translations_octword_actual_size(1);
        create
            .memory_key_mkey_entry_mut()
            .set_pd(pd)
            .set_qpn(0xff_ffff)
            .set_access_mode_1_0(1)
            .set_log_page_size(12)
            .set_start_addr(va)
            .set_len(PAGE as u64)
            .set_translations_octword_size(1)
            .set_lr(true)
            .set_lw(true)
            .set_rr(true)
            .set_rw(true)
            .set_a(true)
            .set_mkey_7_0(VARIANT);
        let key = self
            .bench
            .exec_with(&create, &list(&[va, 0]))
            .unwrap()
            .mkey_index()
            << 8
            | VARIANT;
        let mut create = CreateQpIn::new();
        create
            .qpc_mut()
            .set_st(service.bits())
            .set_pm_state(3)
            .set_pd(pd)
            .set_uar_page(uar)
            .set_log_sq_size(BLOCKS.ilog2())
            .set_log_rq_size(RECEIVES.ilog2())
            .set_log_rq_stride(2)
            .set_cqn_snd(cq.number)
            .set_cqn_rcv(cq.number)
            .set_dbr_addr(record_iova)
            .set_user_index(7);
        let qpn = self
            .bench
            .exec_with(&create, &list(&[ring_iova]))
            .unwrap()
            .qpn();
        Live {
            qpn,
            cq,
            ring,
            record,
            data,
            va,
            key,
            sends: 0,
            receives: 0,
            consumed: 0,
        }
    }

    /// Moves a queue pair from RESET to RTS, connected to a queue pair of the function `peer`.
    pub fn connect(&mut self, which: usize, peer: u8, remote_qpn: u32) {
        let qpn = Qpn::new(self.qps[which].qpn);
        let mut init = Rst2InitQpIn::for_qp(qpn, 0);
        init.qpc_mut()
            .set_rre(true)
            .set_rwe(true)
            .set_rae(true)
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        self.bench.exec(&init).unwrap();
        let mut rtr = Init2RtrQpIn::for_qp(qpn, 0);
        let [a, b, c, d, e, f] = mac(peer);
        rtr.qpc_mut()
            .set_mtu(1)
            .set_log_msg_max(20)
            .set_remote_qpn(remote_qpn)
            .set_next_rcv_psn(FIRST_PSN)
            .set_log_rra_max(2)
            .set_atomic_mode(1)
            .set_min_rnr_nak(1)
            .primary_address_path_mut()
            .set_hop_limit(64)
            .set_udp_sport(0xc123)
            .set_rmac_47_32(u32::from(u16::from_be_bytes([a, b])))
            .set_rmac_31_0(u32::from_be_bytes([c, d, e, f]))
            .set_rgid_rip(&gid(peer));
        self.bench.exec(&rtr).unwrap();
        let mut rts = Rtr2RtsQpIn::for_qp(qpn, 0);
        rts.qpc_mut()
            .set_next_send_psn(FIRST_PSN)
            .set_log_sra_max(2)
            .set_retry_count(3)
            .set_rnr_retry(3)
            .set_log_ack_req_freq(8)
            .primary_address_path_mut()
            .set_ack_timeout(4);
        self.bench.exec(&rts).unwrap();
    }

    /// Moves a queue pair from any state to RESET, and sets its software counters to zero.
    pub fn reset_qp(&mut self, which: usize) {
        let mut reset = ToRstQpIn::new();
        reset.set_qpn(self.qps[which].qpn);
        self.bench.exec(&reset).unwrap();
        let live = &mut self.qps[which];
        (live.sends, live.receives) = (0, 0);
        self.bench.memory.store_be64(live.record, 0);
    }

    /// Appends a WQE to a send queue and updates the doorbell record.
    pub fn place(&mut self, which: usize, wqe: &[u8]) {
        let live = &mut self.qps[which];
        for (n, chunk) in wqe.chunks(64).enumerate() {
            let block = (usize::from(live.sends) + n) % BLOCKS as usize;
            self.bench
                .memory
                .write_bytes(live.ring + SEND_RING + block * 64, chunk);
        }
        let blocks = u16::try_from(wqe.len().div_ceil(64)).unwrap();
        live.sends = live.sends.wrapping_add(blocks);
        self.bench
            .memory
            .store_be32(live.record + 4, u32::from(live.sends));
    }

    /// Rings the send doorbell with these eight bytes.
    pub fn ring(&self, value: [u8; 8]) {
        self.bench.write64(
            u64::from(self.resources.uar) << 12 | 0x800,
            u64::from_be_bytes(value),
        );
    }

    /// Posts a receive WQE and updates the doorbell record.
    pub fn post_receive(&mut self, which: usize, entry: &[u8]) {
        let live = &mut self.qps[which];
        let at = live.ring + usize::from(live.receives) % RECEIVES as usize * 64;
        let mut whole = [0; 64];
        let bytes = entry.len().min(64);
        whole[..bytes].copy_from_slice(&entry[..bytes]);
        self.bench.memory.write_bytes(at, &whole);
        live.receives = live.receives.wrapping_add(1);
        self.bench
            .memory
            .store_be32(live.record, u32::from(live.receives));
    }

    /// Consumes and returns the next completion.
    pub fn poll(&mut self, which: usize) -> Option<Cqe64> {
        let live = &mut self.qps[which];
        let slot = (live.consumed & ((1 << LOG_CQ) - 1)) as usize;
        let cqe: Cqe64 = self.bench.memory.read_obj(live.cq.at + slot * 64);
        let lap = u8::from(live.consumed >> LOG_CQ & 1 == 1);
        if cqe.op_own() >> 4 == 0xf || cqe.op_own() & 1 != lap {
            return None;
        }
        live.consumed += 1;
        self.bench
            .memory
            .store_be32(live.cq.record, live.consumed & 0xff_ffff);
        Some(cqe)
    }

    /// Checks that the canary pages, which no key covers, are unchanged.
    pub fn check_canaries(&self) {
        for live in &self.qps {
            for page in [live.data - PAGE, live.data + PAGE] {
                let mut bytes = [0; PAGE];
                self.bench.memory.read_bytes(page, &mut bytes);
                let spoilt = bytes.iter().position(|&byte| byte != CANARY);
                assert_eq!(
                    spoilt, None,
                    "QP {:#x}: memory outside of every key was written",
                    live.qpn
                );
            }
        }
    }

    /// Returns the health syndrome of the firmware.
    pub fn syndrome(&self) -> u8 {
        self.bench.bar.load_u8(0x23d)
    }
}

/// The simulator with two connected functions.
pub struct World {
    pub sim: Sim,
    pub a: End,
    pub b: End,
}

/// Returns the virtual time in whole microseconds.
pub fn now_us(sim: &Sim) -> u64 {
    sim.clock().now().0 / 1_000
}

/// Number of steps without progress of virtual time after which a test fails.
const MOST_STEPS: usize = 20_000;

/// Upper bound, in virtual microseconds, on the time until a message of the healthy queue pairs is delivered and
/// acknowledged.
pub const MOST_US: u64 = 1;

impl World {
    /// Connects all queue pairs. From then on the simulator runs only when the test steps it.
    pub fn new() -> Self {
        let sim = Sim::new(SimConfig {
            seed: 1,
            event_log: false,
        });
        let (mut a, mut b) = (End::new(&sim, 1), End::new(&sim, 2));
        sim.connect(&a.bench.function, &b.bench.function, LinkFaults::NONE);
        for which in [ATTACKED, HEALTHY] {
            a.connect(which, 2, b.qps[which].qpn);
            b.connect(which, 1, a.qps[which].qpn);
        }
        sim.set_drive(Drive::Stepped);
        Self { sim, a, b }
    }

    /// Resets the attacked queue pairs and moves them to RTS again.
    pub fn reconnect(&mut self) {
        self.a.reset_qp(ATTACKED);
        self.b.reset_qp(ATTACKED);
        self.a.connect(ATTACKED, 2, self.b.qps[ATTACKED].qpn);
        self.b.connect(ATTACKED, 1, self.a.qps[ATTACKED].qpn);
    }

    /// Runs the simulator for some virtual time, and checks that time advances.
    pub fn run(&self, microseconds: u64) {
        run(&self.sim, microseconds);
    }

    /// Sends one message from `a` to `b` through the healthy queue pairs, and records the virtual microseconds it took.
    pub fn check_healthy(&mut self, longest: &Longest) {
        let text = b"untouched";
        let (from, to) = (&self.a.qps[HEALTHY], &self.b.qps[HEALTHY]);
        self.a.bench.memory.write_bytes(from.data, text);
        self.b.bench.memory.fill(to.data, text.len(), 0);
        let bytes = u32::try_from(text.len()).unwrap();
        let mut receive = data_segment(to.key, to.va, bytes);
        receive.extend(data_segment(0x100, 0, 0));
        let wqe = send(from, bytes);
        self.b.post_receive(HEALTHY, &receive);
        self.a.place(HEALTHY, &wqe);
        self.a.ring(*wqe.first_chunk().unwrap());
        let (mut sent, mut received) = (None, None);
        let (sim, a, b) = (&self.sim, &mut self.a, &mut self.b);
        let mut are_done = || {
            sent = sent.take().or_else(|| a.poll(HEALTHY));
            received = received.take().or_else(|| b.poll(HEALTHY));
            sent.is_some() && received.is_some()
        };
        longest.wait(
            || now_us(sim),
            &mut are_done,
            || {
                sim.step();
            },
        );
        let sent = sent.expect("a completion of the untouched send");
        let received = received.expect("a completion of the untouched receive");
        assert_eq!(
            (sent.op_own() >> 4, received.op_own() >> 4),
            (0, 2),
            "{sent:?} {received:?}"
        );
        assert_eq!(received.byte_cnt(), bytes);
        let mut arrived = [0; 9];
        self.b
            .bench
            .memory
            .read_bytes(self.b.qps[HEALTHY].data, &mut arrived);
        assert_eq!(&arrived, text);
    }

    /// Resets function `a`, checks that none of its objects and pages are left, and starts the function again.
    pub fn check_reset(self) {
        let Self { sim, a, .. } = self;
        let number = a.number;
        let bench = a.bench;
        sim.set_drive(Drive::Inline);
        bench.function.reset();
        let report = sim.report(&bench.function);
        assert!(report.objects.is_empty(), "{:?}", report.objects);
        assert_eq!(report.pages_held, 0);
        let mut again = End::power_on(bench, number);
        let live = again.create_qp();
        again.qps.push(live);
        again.connect(0, 2, 0x123);
    }
}

/// Returns a signalled SEND of the first `bytes` bytes of the data page.
pub fn send(live: &Live, bytes: u32) -> Vec<u8> {
    let mut control = CtrlSeg::new();
    control
        .set_opcode(u32::from(WqeOpcode::SEND.0))
        .set_ds(2)
        .set_ce(2);
    control
        .set_wqe_index(u32::from(live.sends))
        .set_qp_or_sq(live.qpn);
    let mut wqe = control.as_array().to_vec();
    wqe.extend(data_segment(live.key, live.va, bytes));
    wqe
}

/// Steps the simulator for some virtual time. Fails if virtual time does not advance.
pub fn run(sim: &Sim, microseconds: u64) {
    let clock = sim.clock();
    let end = clock.now().0 + microseconds * 1_000;
    let (mut now, mut steps) = (clock.now(), 0);
    while now.0 < end {
        if !sim.step() {
            return;
        }
        steps = if clock.now() == now { steps + 1 } else { 0 };
        assert!(steps < MOST_STEPS, "{steps} steps at {now:?}");
        now = clock.now();
    }
}
