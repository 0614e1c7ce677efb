//! A function on RoCE with one reliable queue pair, on a bench.

use hw_sim::{Profile, Sim, SimConfig};
use mlx_prm::*;
use std::time::Duration;
use zerocopy::IntoBytes;

use crate::bench::{
    Bench, MACS, QueuePair, Resources, connect_to, data_seg, modest, raddr_seg, signalled,
};

/// One side of a connection.
pub struct Side {
    pub bench: Bench,
    pub resources: Resources,
    pub qp: QueuePair,
    /// Key that covers all memory.
    pub key: u32,
    /// Data buffer: offset and DMA address.
    pub data: (usize, u64),
}

fn gid(side: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[15] = MACS[side][5];
    gid
}

impl Side {
    pub fn new(sim: &Sim, side: usize, log_cq_size: u32) -> Self {
        Self::with(sim, modest(), side, log_cq_size, |_| {})
    }

    /// Creates a side. `change` edits the context of the queue pair before its creation.
    pub fn with(
        sim: &Sim,
        profile: Profile,
        side: usize,
        log_cq_size: u32,
        change: impl FnOnce(&mut Qpc),
    ) -> Self {
        let profile = profile.called(&format!("f{side}"), MACS[side]);
        let (mut bench, resources) = Bench::in_world(sim, profile).with_resources();
        bench.enable_roce(gid(side), MACS[side]);
        let key = bench.create_pa_key(resources.pd);
        let data = bench.alloc(64 << 10);
        let qp = bench.qp(&resources, log_cq_size, change);
        Self {
            bench,
            resources,
            qp,
            key,
            data,
        }
    }

    /// Creates a side in a world of its own, with its queue pair connected to itself.
    pub fn looped(profile: Profile, change: impl FnOnce(&mut Qpc)) -> Self {
        let sim = Sim::new(SimConfig::seeded(5));
        let mut side = Self::with(&sim, profile, 0, 6, change);
        side.connect(side.qp.number, 0);
        side
    }

    /// Connects the queue pair to the queue pair `remote_qpn` of side `peer`.
    pub fn connect(&mut self, remote_qpn: u32, peer: usize) {
        self.bench.ready_to_send(self.qp.number, |qpc| {
            connect_to(qpc, remote_qpn, &gid(peer), MACS[peer]);
        });
    }

    /// Connects the queue pairs of two sides.
    pub fn connect_pair(a: &mut Self, b: &mut Self) {
        a.connect(b.qp.number, 1);
        b.connect(a.qp.number, 0);
    }

    pub fn post_receive(&mut self, bytes: u32) {
        let entry = data_seg(self.key, self.data.1, bytes);
        self.bench.post_receive(&mut self.qp, &entry);
    }

    pub fn post_send(&mut self, bytes: u32, solicited: bool) {
        let mut control = signalled(WqeOpcode::SEND);
        control.set_se(solicited);
        let data = data_seg(self.key, self.data.1, bytes);
        self.bench.post(&mut self.qp, &control, data.as_bytes());
    }

    /// Posts a work request. `body` follows the control segment.
    pub fn post(&mut self, opcode: WqeOpcode, immediate: u32, body: &[u8]) {
        let mut control = signalled(opcode);
        control.set_imm(immediate);
        self.bench.post(&mut self.qp, &control, body);
    }

    /// Posts an RDMA Write or Read between the remote address and the local address.
    pub fn post_rdma(
        &mut self,
        opcode: WqeOpcode,
        (va, rkey): (u64, u32),
        (local, bytes): (u64, u32),
    ) {
        let (remote, data) = (raddr_seg(va, rkey), data_seg(self.key, local, bytes));
        self.post(opcode, 0, &[remote.as_bytes(), data.as_bytes()].concat());
    }

    /// Returns the next completion, if any.
    pub fn poll(&mut self) -> Option<Cqe64> {
        self.bench.poll(&mut self.qp.cq)
    }

    pub fn wait_cqe(&mut self) -> Cqe64 {
        for _ in 0..100_000 {
            if let Some(cqe) = self.poll() {
                return cqe;
            }
            self.bench.sleep(Duration::from_micros(100));
        }
        panic!("no completion");
    }
}
