//! Queue pair contexts for the tests.

use super::*;
use hw_sim::qp::QueueMemory;
use mlx_prm::{Ads, Qpc};

/// Options of a test's queue pair. Defaults apply to options that a test does not set.
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
    pub atomic_mode: u32,
    pub shared_receive_queue: bool,
    pub gid_index: u32,
    pub log_ack_req_freq: u32,
    pub log_msg_max: u32,
    pub user_index: u32,
    pub q_key: u32,
    pub cs_req: u32,
    pub cs_res: u32,
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
            atomic_mode: 1,
            shared_receive_queue: false,
            gid_index: 0,
            log_ack_req_freq: 8,
            log_msg_max: 20,
            user_index: 0,
            q_key: 0,
            cs_req: 0,
            cs_res: 0,
        }
    }
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
        .set_cs_req(options.cs_req)
        .set_cs_res(options.cs_res)
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

/// Returns the memory of a context's queues. All contexts of these tests have the same pages.
pub fn memory(context: &Qpc) -> QueueMemory {
    QueueMemory::of_pages(context, &PAGES).expect("a context with enough pages")
}

pub fn path(options: &Options, peer: u8) -> Ads {
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
