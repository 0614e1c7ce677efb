//! Two providers on a link, and functions that create and connect a queue pair on each.

use std::net::IpAddr;
use std::sync::Arc;

use dat_core::provider::{
    Completion, CompletionEntry, CompletionQueue, DataSegment, Provider, Psn, Qpn, QueuePair,
    QueueSizes, ReadyToReceive, ReadyToSend, RequestFlags, RequestOp,
};
use dat_core::types::MemPrivFlags;
use dat_mlx::ProviderConfig;
use dat_mlx::provider::{MlxProvider, Region};
use dat_mlx::queues::{Cq, Qp, Srq};
use driver::{Device, DmaBuffer, DmaMemory, Function};
use hw_mlx::HcaConfig;
use hw_sim::{Fault, LinkFaults, LinkId, Profile, Sim, SimConfig, SimFunction};

pub const REPORTED: RequestFlags = RequestFlags {
    suppress: false,
    solicited: false,
    fence: false,
    unsignalled: false,
};
pub const SUPPRESSED: RequestFlags = RequestFlags {
    suppress: true,
    ..REPORTED
};
pub const BUFFER_BYTES: usize = 1 << 20;
pub const SIZES: QueueSizes = QueueSizes {
    max_requests: 16,
    max_recvs: 16,
    max_request_segments: 4,
    max_read_segments: 4,
    max_recv_segments: 4,
    binds: false,
};
const ALL: MemPrivFlags = MemPrivFlags::all();

/// A provider with a protection domain, a completion queue and 1 MiB of registered memory.
pub struct Node {
    pub provider: MlxProvider,
    pub pd: u32,
    pub cq: Option<Cq>,
    pub buffer: DmaBuffer,
    region: Option<Region>,
    pub lkey: u32,
    pub rkey: u32,
    pub function: Arc<SimFunction>,
}

/// Two nodes on a link.
pub struct Pair {
    pub sim: Sim,
    pub link: LinkId,
    pub a: Node,
    pub b: Node,
}

impl Node {
    pub fn new(function: Arc<SimFunction>, config: impl Into<ProviderConfig>) -> Self {
        let driver =
            Function::in_process(Arc::clone(&function) as Arc<dyn Device>).expect("a function");
        let mut provider = MlxProvider::open(driver, config).expect("a provider");
        let pd = provider.alloc_pd().expect("a PD");
        let cq = provider.create_cq(255, 1).expect("a CQ");
        let buffer = provider.arena().alloc(BUFFER_BYTES, 4096).expect("memory");
        let memory = DmaMemory::Arena {
            buffer: buffer.clone(),
            offset: 0,
            bytes: BUFFER_BYTES,
        };
        let registration = provider.register(pd, &memory, ALL).expect("a region");
        Self {
            provider,
            pd,
            cq: Some(cq),
            buffer,
            lkey: registration.lmr_context,
            rkey: registration.rmr_context,
            region: Some(registration.region),
            function,
        }
    }

    pub fn cq(&mut self) -> &mut Cq {
        self.cq.as_mut().expect("a CQ")
    }

    pub fn create_qp(&mut self, sizes: QueueSizes, owner: u32) -> Qp {
        let cq = self.cq.as_ref().expect("a CQ");
        self.provider
            .create_qp(self.pd, cq, cq, None, sizes, owner)
            .expect("a QP")
    }

    pub fn create_qp_with_srq(&mut self, srq: &Srq, owner: u32) -> Qp {
        let cq = self.cq.as_ref().expect("a CQ");
        let sizes = QueueSizes {
            max_recvs: 0,
            ..SIZES
        };
        self.provider
            .create_qp(self.pd, cq, cq, Some(srq), sizes, owner)
            .expect("a QP")
    }

    pub fn destroy_qp(&mut self, mut qp: Qp) {
        let cq = self.cq.as_mut().expect("a CQ");
        self.provider
            .destroy_qp(&mut qp, cq, None)
            .expect("a QP destroyed");
    }

    /// Moves the queue pair back to INIT, with its posted receives. Returns false if a receive was consumed.
    pub fn rewind_qp(&mut self, qp: &mut Qp) -> bool {
        let cq = self.cq.as_mut().expect("a CQ");
        self.provider
            .rewind_qp(qp, cq, None)
            .expect("a QP in RESET or INIT")
    }

    pub fn reset_qp(&mut self, qp: &mut Qp) {
        let cq = self.cq.as_mut().expect("a CQ");
        self.provider.reset_qp(qp, cq, None).expect("a QP reset");
    }

    /// Returns a segment of the registered memory.
    pub fn segment(&self, offset: usize, bytes: u32) -> DataSegment {
        DataSegment {
            lmr_context: self.lkey,
            address: self.buffer.address() + offset as u64,
            bytes,
        }
    }

    pub fn address(&self, offset: usize) -> u64 {
        self.buffer.address() + offset as u64
    }

    pub fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.buffer.read_bytes(offset, &mut out);
        out
    }

    pub fn gid(&self) -> [u8; 16] {
        self.provider.limits().gid
    }

    /// Waits until `count` completions of `qp` have arrived, at most a minute of the simulator's time.
    pub fn completions(&mut self, qp: &mut Qp, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        let deadline = self.provider.now() + 60_000_000_000;
        while done.len() < count {
            while let Some(entry) = self.cq().poll() {
                assert_eq!(entry.owner(), qp.0.owner(), "an entry of somebody else's");
                done.extend(qp.complete(&entry));
            }
            if done.len() >= count {
                break;
            }
            assert!(
                self.provider.now() < deadline,
                "{} of {count} completions in a minute",
                done.len()
            );
            self.cq().arm(false);
            // Arm, poll once more, then sleep.
            if let Some(entry) = self.cq().poll() {
                done.extend(qp.complete(&entry));
                continue;
            }
            let until = self.provider.now() + 1_000_000_000;
            self.provider.wait(until).expect("a live device");
        }
        assert_eq!(done.len(), count);
        done
    }

    /// Returns all completions of `qp` that can be polled now.
    pub fn polled(&mut self, qp: &mut Qp) -> Vec<Completion> {
        let mut done = Vec::new();
        while let Some(entry) = self.cq().poll() {
            done.extend(qp.complete(&entry));
        }
        done
    }

    fn close(mut self, sim: &Sim) {
        self.provider
            .deregister(self.region.as_mut().expect("a region"))
            .expect("deregistered");
        self.provider
            .destroy_cq(self.cq.as_mut().expect("a CQ"))
            .expect("a CQ destroyed");
        self.provider.free_pd(self.pd).expect("a PD freed");
        let report = self.provider.close().expect("closed");
        assert_eq!(report.objects_left, []);
        let report = sim.report(&self.function);
        assert!(report.is_clean(), "{report:#?}");
    }
}

pub fn profile(n: u8) -> Profile {
    Profile::named(&format!("sim{n}"), [2, 0, 0, 0, 0, n])
}

pub fn config(n: u8) -> HcaConfig {
    let mut config = HcaConfig::new();
    let address: IpAddr = format!("10.0.0.{n}").parse().expect("an address");
    config.addresses.push(address.into());
    config.neighbours.push((
        format!("10.0.0.{}", 3 - n).parse().expect("an address"),
        [2, 0, 0, 0, 0, 3 - n],
    ));
    config.seed = Some(u64::from(n));
    config
}

pub fn pair() -> Pair {
    pair_with(0, LinkFaults::NONE)
}

/// Creates a pair with a port MTU of 4,500 bytes, which allows the largest path MTU (4,096 bytes).
pub fn jumbo_pair() -> Pair {
    let sim = Sim::new(SimConfig {
        seed: 0,
        event_log: false,
    });
    let (one, two) = (sim.add_function(profile(1)), sim.add_function(profile(2)));
    let link = sim.connect(&one, &two, LinkFaults::NONE);
    let jumbo = |n| HcaConfig {
        port_mtu: Some(4500),
        ..config(n)
    };
    Pair {
        a: Node::new(one, jumbo(1)),
        b: Node::new(two, jumbo(2)),
        sim,
        link,
    }
}

pub fn pair_with(seed: u64, faults: LinkFaults) -> Pair {
    pair_of(seed, faults, profile, &[])
}

/// Creates a pair of devices with this profile, with these faults injected from the start.
pub fn pair_of(
    seed: u64,
    link_faults: LinkFaults,
    profile: impl Fn(u8) -> Profile,
    faults: &[Fault],
) -> Pair {
    let sim = Sim::new(SimConfig {
        seed,
        event_log: false,
    });
    let (one, two) = (sim.add_function(profile(1)), sim.add_function(profile(2)));
    let link = sim.connect(&one, &two, link_faults);
    for fault in faults {
        sim.inject(&one, fault);
        sim.inject(&two, fault);
    }
    Pair {
        a: Node::new(one, config(1)),
        b: Node::new(two, config(2)),
        sim,
        link,
    }
}

/// Parameters of a connection, for tests that need others than the default.
#[derive(Clone, Copy)]
pub struct Terms {
    pub mtu: u8,
    pub reads: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub ack_timeout: u8,
}

pub const TERMS: Terms = Terms {
    mtu: 3,
    reads: 4,
    retry_count: 7,
    rnr_retry: 7,
    ack_timeout: 8,
};

/// Moves the queue pair of one node to RTS.
pub fn ready(
    node: &mut Node,
    qp: &mut Qp,
    peer_gid: [u8; 16],
    peer_qpn: Qpn,
    psns: (u32, u32),
    terms: Terms,
) {
    ready_to_receive(node, qp, peer_gid, peer_qpn, psns.1, terms);
    let send = ReadyToSend {
        send_psn: Psn::masked(psns.0),
        reads_out: terms.reads,
        retry_count: terms.retry_count,
        rnr_retry: terms.rnr_retry,
        ack_timeout: terms.ack_timeout,
    };
    node.provider.ready_to_send(qp, &send).expect("RTS");
}

/// Moves the queue pair of one node to RTR only.
pub fn ready_to_receive(
    node: &mut Node,
    qp: &mut Qp,
    peer_gid: [u8; 16],
    peer_qpn: Qpn,
    receive_psn: u32,
    terms: Terms,
) {
    let path = node.provider.route(peer_gid, None).expect("a path");
    let receive = ReadyToReceive {
        path,
        remote_qpn: peer_qpn,
        receive_psn: Psn::masked(receive_psn),
        mtu: terms.mtu,
        reads_in: terms.reads,
        min_rnr_timer: 1,
    };
    node.provider.ready_to_receive(qp, &receive).expect("RTR");
}

impl Pair {
    /// Connects two queue pairs. A's PSN wraps after 16 packets.
    pub fn connect(&mut self, qa: &mut Qp, qb: &mut Qp, terms: Terms) {
        let (gid_a, gid_b) = (self.a.gid(), self.b.gid());
        let (psn_a, psn_b) = (0xff_fff0, 0x12_3456);
        ready(&mut self.a, qa, gid_b, qb.number(), (psn_a, psn_b), terms);
        ready(&mut self.b, qb, gid_a, qa.number(), (psn_b, psn_a), terms);
    }

    pub fn connected(&mut self) -> (Qp, Qp) {
        self.connected_with(SIZES, TERMS)
    }

    pub fn connected_with(&mut self, sizes: QueueSizes, terms: Terms) -> (Qp, Qp) {
        let mut qa = self.a.create_qp(sizes, 0xa);
        let mut qb = self.b.create_qp(sizes, 0xb);
        self.connect(&mut qa, &mut qb, terms);
        (qa, qb)
    }

    /// Destroys the queue pairs, closes both nodes, and checks the simulator's report.
    pub fn finish(self, qa: Qp, qb: Qp) {
        let Self {
            sim, mut a, mut b, ..
        } = self;
        a.destroy_qp(qa);
        b.destroy_qp(qb);
        a.close(&sim);
        b.close(&sim);
    }

    pub fn finish_bare(self) {
        let Self { sim, a, b, .. } = self;
        a.close(&sim);
        b.close(&sim);
    }
}

pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|n| u8::try_from((n * 7 + usize::from(seed) * 31) % 251).expect("a byte"))
        .collect()
}

pub fn write(node: &Node, offset: usize) -> RequestOp {
    RequestOp::RdmaWrite {
        address: node.address(offset),
        rmr_context: node.rkey,
    }
}

pub fn read(node: &Node, offset: usize) -> RequestOp {
    RequestOp::RdmaRead {
        address: node.address(offset),
        rmr_context: node.rkey,
    }
}
