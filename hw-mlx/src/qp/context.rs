//! Queue pair contexts: the contents of each transition command.
//!
//! ```text
//!            CREATE      RST2INIT       INIT2RTR        RTR2RTS
//!   (none) --------> RST --------> INIT --------> RTR --------> RTS
//!                     ^                                          |
//!                     '---- 2RST, from any state                 |
//!                                    2ERR, from any state  ----> ERR
//! ```
//!
//! A transition command carries a whole context, of which the device takes the fields of the transition and, where
//! `opt_param_mask` selects them, a few more (PRM "Queue Pair Transitions"). Service type, migration state,
//! protection domain, completion queues and, from RST2INIT on, port and frequency of acknowledgement requests are
//! repeated each time, as Linux does (drivers/infiniband/hw/mlx5/qp.c, `__mlx5_ib_modify_qp`).
//!
//! Both sides have negotiated the numbers of outstanding RDMA Reads (the depths), but the device takes powers of two.
//! The depth as originator is rounded down, so that we never have more reads outstanding than the peer agreed to. (The
//! minimum is one; if none was agreed, the peer refuses a read.) The depth as target is rounded up, so that the peer
//! never has more reads outstanding than we keep resources for. If no reads were agreed, the device refuses all (`rre`
//! 0).
//!
//! Atomic operations of the peer are allowed if its reads are allowed and the device supports them: each atomic
//! operation takes one of the same resources. The keys limit the memory that the peer may access with them.
//!
//! This module does not support automatic path migration (`pm_state` is always "migrated") or XRC.

use rdma_types::{Path, Qpn, ReadyToReceive, ReadyToSend};

use mlx_prm::{Ads, Qpc, ServiceType};

/// `pm_state`: migrated, the only state without path migration.
const MIGRATED: u32 = 3;
/// `atomic_mode`: 8-byte atomics as in IBTA (`MLX5_ATOMIC_MODE_IB_COMP` in Linux include/linux/mlx5/qp.h).
const ATOMICS_OF_IBTA: u32 = 1;
/// `log_ack_req_freq`: the device asks for an acknowledgement at least every 2^8 packets, as Linux sets it.
const LOG_ACK_REQ_FREQ: u32 = 8;
/// `vhca_port_num` of the only port a function has.
const PORT: u32 = 1;
/// Q_Key of the general services interface (IBTA volume 1, "Q_Key" of well-known queue pairs).
pub const GSI_Q_KEY: u32 = 0x8001_0000;
/// Hop limit of our packets; 64 is the usual default of IP stacks.
pub const HOP_LIMIT: u8 = 64;

/// Bits of `opt_param_mask` (`enum mlx5_qp_optpar` in Linux include/linux/mlx5/qp.h).
pub mod optional {
    /// `rre`: remote reads enabled.
    pub const RRE: u32 = 1 << 1;
    /// `rae`: remote atomics enabled.
    pub const RAE: u32 = 1 << 2;
    /// `rwe`: remote writes enabled.
    pub const RWE: u32 = 1 << 3;
}

/// Source of a queue pair's receives (`rq_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveSource {
    /// The queue pair's own receive queue.
    Own {
        /// log2 of the number of entries.
        log_entries: u32,
        /// log2 of an entry's bytes.
        log_stride: u32,
    },
    /// A shared receive queue, by its RMP number.
    Shared(u32),
    /// No source: the queue pair never receives.
    None,
}

/// Parameters of a queue pair that stay the same in all its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpFacts {
    /// Service type.
    pub service: ServiceType,
    /// Protection domain.
    pub pd: u32,
    /// UAR page whose registers are the queue pair's doorbells.
    pub uar: u32,
    /// Number of the send queue's CQ.
    pub cqn_send: u32,
    /// Number of the receive queue's CQ.
    pub cqn_receive: u32,
    /// Owner number that the device writes into the queue pair's CQEs.
    pub user_index: u32,
    /// Source of the queue pair's receives.
    pub receive: ReceiveSource,
    /// log2 of the number of blocks of the send ring.
    pub log_send_blocks: u32,
    /// log2 of the buffer's page size.
    pub log_page: u32,
    /// I/O address of the doorbell record.
    pub record: u64,
    /// Format of the time stamps in CQEs (`ts_format`).
    pub ts_format: u32,
    /// log2 of the largest message, in bytes.
    pub log_max_message: u32,
    /// log2 of the maximum number of incoming RDMA Reads that a queue pair can serve at once.
    pub log_max_reads_in: u32,
    /// log2 of the maximum number of RDMA Reads that a queue pair can have outstanding as originator.
    pub log_max_reads_out: u32,
    /// True if the device has atomic operations ([`Caps::atomics`](crate::caps::Caps::atomics)).
    pub atomics: bool,
    /// Counter set to which the device adds the queue pair's events; 0 for none.
    pub counter_set: u32,
}

impl QpFacts {
    /// Returns a context with the fields that every command repeats.
    fn base(&self) -> Qpc {
        let mut context = Qpc::new();
        context
            .set_st(self.service.bits())
            .set_pm_state(MIGRATED)
            .set_pd(self.pd)
            .set_cqn_snd(self.cqn_send)
            .set_cqn_rcv(self.cqn_receive);
        context
    }

    /// Returns a context with all fields that every transition repeats: those of `base`, the port (which the device
    /// needs to associate QP1 with a port), and the frequency of acknowledgement requests.
    fn transition(&self) -> Qpc {
        let mut context = self.base();
        context.set_log_ack_req_freq(LOG_ACK_REQ_FREQ);
        context.primary_address_path_mut().set_vhca_port_num(PORT);
        context
    }

    /// Returns the context for CREATE_QP.
    #[must_use]
    pub fn create(&self) -> Qpc {
        let mut context = self.base();
        context
            .set_uar_page(self.uar)
            .set_user_index(self.user_index)
            .set_log_sq_size(self.log_send_blocks)
            .set_log_page_size(self.log_page - 12)
            .set_dbr_addr(self.record)
            .set_ts_format(self.ts_format);
        match self.receive {
            ReceiveSource::Own {
                log_entries,
                log_stride,
            } => {
                context
                    .set_rq_type(0)
                    .set_log_rq_size(log_entries)
                    .set_log_rq_stride(log_stride - 4);
            }
            ReceiveSource::Shared(rmpn) => {
                context.set_rq_type(1).set_srqn_rmpn_xrqn(rmpn);
            }
            ReceiveSource::None => {
                context.set_rq_type(3);
            }
        }
        context
    }

    /// Returns the context for RST2INIT. The peer's RDMA Writes are allowed from this state on. Its RDMA Reads are
    /// allowed only when their depth is known, in INIT2RTR.
    #[must_use]
    pub fn reset_to_init(&self) -> Qpc {
        let mut context = self.transition();
        context.set_counter_set_id(self.counter_set);
        if self.service == ServiceType::QP1 {
            context.set_q_key(GSI_Q_KEY);
        } else {
            context.set_rwe(true);
        }
        context
    }

    /// Returns the context for INIT2RTR, and its `opt_param_mask`.
    #[must_use]
    pub fn init_to_rtr(
        &self,
        local_qpn: Qpn,
        attributes: &ReadyToReceive,
        mac: [u8; 6],
    ) -> (Qpc, u32) {
        let mut context = self.transition();
        context
            .set_mtu(u32::from(attributes.mtu))
            .set_log_msg_max(self.log_max_message)
            .set_remote_qpn(attributes.remote_qpn.get())
            .set_next_rcv_psn(attributes.receive_psn.get())
            .set_min_rnr_nak(u32::from(attributes.min_rnr_timer))
            .set_log_rra_max(log2_ceil(attributes.reads_in).min(self.log_max_reads_in))
            .set_rre(attributes.reads_in > 0)
            .set_rwe(true);
        set_path(
            context.primary_address_path_mut(),
            (&attributes.path, mac),
            local_qpn,
            attributes.remote_qpn,
        );
        // The bits are set as in Linux `set_qpc_atomic_flags`, drivers/infiniband/hw/mlx5/qp.c.
        if self.atomics && attributes.reads_in > 0 {
            context.set_rae(true).set_atomic_mode(ATOMICS_OF_IBTA);
        }
        (context, optional::RRE | optional::RWE | optional::RAE)
    }

    /// Returns the context for INIT2RTR of a queue pair whose packets the device loops back (`fl`), and its
    /// `opt_param_mask`. Differs from [`QpFacts::init_to_rtr`] in the path, which has only that flag and the port.
    #[must_use]
    pub fn init_to_rtr_looped(&self, local_qpn: Qpn, attributes: &ReadyToReceive) -> (Qpc, u32) {
        let (mut context, mask) = self.init_to_rtr(local_qpn, attributes, [0; 6]);
        let mut path = Ads::new();
        path.set_fl(true).set_vhca_port_num(PORT);
        context.set_primary_address_path(&path);
        (context, mask)
    }

    /// Returns the context for RTR2RTS.
    #[must_use]
    pub fn rtr_to_rts(&self, attributes: &ReadyToSend) -> Qpc {
        let mut context = self.transition();
        context
            .set_next_send_psn(attributes.send_psn.get())
            .set_log_sra_max(log2_floor(attributes.reads_out).min(self.log_max_reads_out))
            .set_retry_count(u32::from(attributes.retry_count))
            .set_rnr_retry(u32::from(attributes.rnr_retry));
        context
            .primary_address_path_mut()
            .set_ack_timeout(u32::from(attributes.ack_timeout));
        context
    }

    /// Returns the context for INIT2RTR of QP1. Its MTU and message limit are 256 bytes, and it has no remote queue
    /// pair.
    #[must_use]
    pub fn gsi_init_to_rtr(&self) -> Qpc {
        let mut context = self.transition();
        context.set_mtu(1).set_log_msg_max(8);
        context
    }

    /// Returns the context for RTR2RTS of QP1.
    #[must_use]
    pub fn gsi_rtr_to_rts(&self) -> Qpc {
        self.transition()
    }
}

/// Fills an address path for RoCE. `mac` is that of the next station on the link: the peer or a gateway. The device
/// takes source address, VLAN and RoCE version from the GID table entry that the path names.
fn set_path(ads: &mut Ads, (path, mac): (&Path, [u8; 6]), local_qpn: Qpn, remote_qpn: Qpn) {
    let [m0, m1, m2, m3, m4, m5] = mac;
    ads.set_src_addr_index(u32::from(path.source_gid_index))
        .set_hop_limit(u32::from(path.hop_limit))
        .set_tclass(u32::from(path.traffic_class))
        .set_dscp(u32::from(path.traffic_class >> 2))
        .set_flow_label(path.flow_label & 0xf_ffff)
        .set_eth_prio(u32::from(path.priority & 7))
        .set_rgid_rip(&path.gid)
        .set_udp_sport(u32::from(udp_source_port(
            path.flow_label,
            local_qpn,
            remote_qpn,
        )))
        .set_rmac_47_32(u32::from(m0) << 8 | u32::from(m1))
        .set_rmac_31_0(u32::from_be_bytes([m2, m3, m4, m5]));
}

/// Returns the UDP source port of a flow. If the flow label is 0, the port depends on the two queue pair numbers. A
/// network that hashes ports spreads the flows of one pair of hosts over several routes, but keeps each flow on one
/// route (`rdma_flow_label_to_udp_sport` and `rdma_calc_flow_label` in Linux include/rdma/ib_verbs.h).
#[must_use]
pub fn udp_source_port(flow_label: u32, local_qpn: Qpn, remote_qpn: Qpn) -> u16 {
    let mut label = flow_label & 0xf_ffff;
    if label == 0 {
        let product = u64::from(local_qpn.get()) * u64::from(remote_qpn.get());
        let mixed = product ^ (product >> 20) ^ (product >> 40);
        // CAST: the value is masked to 20 bits.
        label = (mixed & 0xf_ffff) as u32;
    }
    #[expect(clippy::cast_possible_truncation, reason = "14 bits")]
    let hash = ((label & 0x3fff) ^ (label >> 14)) as u16;
    hash | 0xc000
}

/// Returns log2 of `n`, rounded up; 0 for 0.
fn log2_ceil(n: u8) -> u32 {
    u32::from(n).next_power_of_two().trailing_zeros()
}

/// Returns log2 of `n`, rounded down; 0 for 0.
fn log2_floor(n: u8) -> u32 {
    u32::from(n).max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use rdma_types::Psn;

    use super::*;

    fn facts() -> QpFacts {
        QpFacts {
            service: ServiceType::RC,
            pd: 0x11,
            uar: 0x22,
            cqn_send: 0x33,
            cqn_receive: 0x44,
            user_index: 0x55,
            receive: ReceiveSource::Own {
                log_entries: 4,
                log_stride: 5,
            },
            log_send_blocks: 6,
            log_page: 12,
            record: 0x1_0000_0040,
            ts_format: 1,
            log_max_message: 30,
            log_max_reads_in: 4,
            log_max_reads_out: 4,
            atomics: false,
            counter_set: 9,
        }
    }

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn to_rtr(reads_in: u8) -> ReadyToReceive {
        ReadyToReceive {
            path: Path {
                source_gid_index: 3,
                gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1],
                hop_limit: 64,
                traffic_class: 0x60,
                flow_label: 0x12345,
                priority: 0,
            },
            remote_qpn: Qpn::new(0xabcdef),
            receive_psn: Psn::masked(0x123456),
            mtu: 3,
            reads_in,
            min_rnr_timer: 12,
        }
    }

    /// Returns the dword at byte offset `at` of a context, for comparison with the PRM's table of offsets.
    fn dword(context: &Qpc, at: usize) -> u32 {
        u32::from_be_bytes(context.as_array()[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn create_puts_each_fact_at_the_documented_offset() {
        let context = facts().create();
        assert_eq!(dword(&context, 0x00), 3 << 11, "RC, migrated");
        assert_eq!(dword(&context, 0x04), 0x11);
        assert_eq!(dword(&context, 0x08), 4 << 19 | 1 << 16 | 6 << 11 | 1 << 6);
        assert_eq!(dword(&context, 0x0c), 0x22);
        assert_eq!(dword(&context, 0x10), 0x55);
        assert_eq!(dword(&context, 0x14), 0);
        assert_eq!((dword(&context, 0x7c), dword(&context, 0x9c)), (0x33, 0x44));
        assert_eq!((dword(&context, 0xa0), dword(&context, 0xa4)), (1, 0x40));
        assert_eq!(dword(&context, 0xac), 0);
        let shared = QpFacts {
            receive: ReceiveSource::Shared(0x77),
            ..facts()
        }
        .create();
        assert_eq!(dword(&shared, 0xac), 1 << 24 | 0x77);
        assert_eq!(dword(&shared, 0x08), 6 << 11 | 1 << 6);
        let none = QpFacts {
            receive: ReceiveSource::None,
            ..facts()
        }
        .create();
        assert_eq!(dword(&none, 0xac), 3 << 24);
    }

    #[test]
    fn the_path_to_the_peer_stands_at_the_documented_offsets() {
        let (context, mask) = facts().init_to_rtr(Qpn::new(0x10), &to_rtr(4), MAC);
        assert_eq!(mask, 0b1110);
        assert_eq!(dword(&context, 0x08), 3 << 29 | 30 << 24);
        assert_eq!(dword(&context, 0x14), 0xabcdef);
        assert_eq!(dword(&context, 0x20), 3 << 16 | 64);
        assert_eq!(dword(&context, 0x24), 0x60 << 20 | 0x12345);
        assert_eq!(context.as_array()[0x28..0x38], to_rtr(4).path.gid);
        let port = u32::from(udp_source_port(0x12345, Qpn::SMI, Qpn::SMI));
        assert_eq!(dword(&context, 0x38), 0x18 << 16 | port);
        assert_eq!(
            (dword(&context, 0x3c), dword(&context, 0x40)),
            (1 << 16 | 0x0200, 1)
        );
        assert_eq!(dword(&context, 0x90), 2 << 21 | 1 << 15 | 1 << 14);
        assert_eq!(dword(&context, 0x94), 12 << 24 | 0x123456);
    }

    #[test]
    fn read_depths_never_promise_or_take_more_than_was_agreed() {
        for (reads, target, originator) in [
            (1, 0, 0),
            (2, 1, 1),
            (3, 2, 1),
            (4, 2, 2),
            (5, 3, 2),
            (16, 4, 4),
            (17, 4, 4),
            (255, 4, 4),
        ] {
            let (context, _) = facts().init_to_rtr(Qpn::GSI, &to_rtr(reads), MAC);
            assert_eq!(
                (context.log_rra_max(), context.rre()),
                (target, true),
                "{reads} in"
            );
            let send = ReadyToSend {
                send_psn: Psn::masked(0),
                reads_out: reads,
                retry_count: 7,
                rnr_retry: 7,
                ack_timeout: 14,
            };
            assert_eq!(
                facts().rtr_to_rts(&send).log_sra_max(),
                originator,
                "{reads} out"
            );
        }
        let (context, mask) = facts().init_to_rtr(Qpn::GSI, &to_rtr(0), MAC);
        assert!(!context.rre() && context.rwe() && mask & optional::RRE != 0);
    }

    #[test]
    fn atomics_are_let_in_where_reads_are_if_the_device_has_them() {
        let able = QpFacts {
            atomics: true,
            ..facts()
        };
        for (facts, reads, flags) in [
            (able, 4, 1 << 16 | 0b111 << 13),
            (able, 0, 1 << 14),
            (facts(), 4, 0b110 << 13),
        ] {
            let (context, mask) = facts.init_to_rtr(Qpn::GSI, &to_rtr(reads), MAC);
            assert_eq!(dword(&context, 0x90) & 0xf_e000, flags, "{reads} reads");
            assert!(mask & optional::RAE != 0);
        }
    }

    #[test]
    fn ready_to_send_carries_the_retry_policy() {
        let send = ReadyToSend {
            send_psn: Psn::masked(0xfe_dcba),
            reads_out: 1,
            retry_count: 6,
            rnr_retry: 5,
            ack_timeout: 17,
        };
        let context = facts().rtr_to_rts(&send);
        assert_eq!(dword(&context, 0x78), 0xfe_dcba);
        assert_eq!(dword(&context, 0x70), 8 << 28 | 6 << 16 | 5 << 13);
        assert_eq!(dword(&context, 0x20), 17 << 27);
    }

    /// Every transition carries the port and the acknowledgement frequency. Linux `__mlx5_ib_modify_qp` sets the port
    /// in every transition of a special queue pair, and the frequency in all transitions.
    #[test]
    fn every_transition_says_the_port_and_how_often_to_ask_for_acknowledgements() {
        let gsi = QpFacts {
            service: ServiceType::QP1,
            ..facts()
        };
        let send = ReadyToSend {
            send_psn: Psn::masked(0),
            reads_out: 1,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 14,
        };
        for (what, context) in [
            ("RST2INIT", facts().reset_to_init()),
            ("INIT2RTR", facts().init_to_rtr(Qpn::GSI, &to_rtr(1), MAC).0),
            ("RTR2RTS", facts().rtr_to_rts(&send)),
            ("RST2INIT of QP1", gsi.reset_to_init()),
            ("INIT2RTR of QP1", gsi.gsi_init_to_rtr()),
            ("RTR2RTS of QP1", gsi.gsi_rtr_to_rts()),
        ] {
            let path = context.primary_address_path();
            let found = (path.vhca_port_num(), context.log_ack_req_freq());
            assert_eq!(found, (1, 8), "{what}");
        }
    }

    /// RST2INIT sets the counter set of a queue pair, as Linux does (`__mlx5_ib_modify_qp`, `counter_set_id`).
    #[test]
    fn leaving_reset_a_queue_pair_gets_its_counters() {
        assert_eq!(dword(&facts().reset_to_init(), 0x0c), 9 << 24);
    }

    #[test]
    fn udp_source_ports_are_dynamic_ports_and_follow_the_label() {
        let port = |label, local, remote| udp_source_port(label, Qpn::new(local), Qpn::new(remote));
        // 0xe341 is (0x2345 ^ 0x04) | 0xc000: the low 14 bits of 0x12345, XORed with the bits above them.
        assert_eq!(port(0x12345, 1, 2), 0xe341);
        assert_eq!(
            port(0, 0x40, 0x41),
            port(0, 0x41, 0x40),
            "both ends choose alike"
        );
        assert_ne!(port(0, 0x40, 0x41), port(0, 0x40, 0x42));
        assert!(port(0, 0xff_ffff, 0xff_ffff) >= 0xc000);
    }
}
