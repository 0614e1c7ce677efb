//! Priorities and congestion control of a port: the frame field that selects the priority (registers QPTS and QPDPM),
//! and the device's RoCE congestion control (PRM "QUERY_CONG_STATUS", "QUERY_CONG_PARAMS"). The layouts are those of
//! Linux: `include/linux/mlx5/mlx5_ifc.h` (`qpts_reg`, `qpdpm_reg`, `query_cong_status_in`, `query_cong_params_out`,
//! `modify_cong_params_in`, `cong_control_r_roce_ecn_rp`, `cong_control_r_roce_ecn_np`) and
//! `drivers/infiniband/hw/mlx5/cong.c`.
//!
//! Register PFCC ([`Pfcc`](crate::Pfcc)) configures pause frames.

use layout::{codes, layout};

use super::command::command;
use super::{CmdStatus, Opcode};

/// Number of IP code points (DSCP values, RFC 2474).
pub const DSCPS: usize = 64;

codes! {
    /// The frame field that selects the priority of a frame at a port (register QPTS).
    pub struct TrustState(u8) {
        /// The priority of the frame's VLAN tag.
        PCP = 1,
        /// The code point (DSCP) of the frame's IP header.
        DSCP = 2,
    }
}

codes! {
    /// Role in congestion control, as `cong_protocol` names it (Linux `cong.c` `mlx5_ib_cong_node_type`).
    pub struct CongProtocol(u8) {
        /// Reaction point: the sender, which slows down on a notification.
        R_ROCE_ECN_RP = 1,
        /// Notification point: the receiver of marked packets, which notifies the sender.
        R_ROCE_ECN_NP = 2,
        /// Parameters of both roles.
        R_ROCE_GENERAL = 3,
    }
}

layout! {
    /// Trust state of a port (register QPTS).
    pub struct Qpts(0x08) {
        local_port: 0x00[23:16],
        trust_state: 0x04(TrustState[2:0]),
    }

    /// Priority of each code point (register QPDPM). `dscp` has two bytes per code point: enable bit and priority.
    pub struct Qpdpm(0x84) {
        local_port: 0x00[23:16],
        dscp: 0x04 [u8; 0x80],
    }

    /// Parameters of the reaction point: how a sender slows down and recovers (DCQCN).
    pub struct CongControlRRoceEcnRp(0x100) {
        clamp_tgt_rate: 0x0c[27],
        clamp_tgt_rate_after_time_inc: 0x0c[23],
        /// Time between rate increases, in microseconds.
        rpg_time_reset: 0x14 u32,
        rpg_byte_reset: 0x18 u32,
        rpg_threshold: 0x1c u32,
        /// Highest rate in Mb/s; 0 is the port's rate.
        rpg_max_rate: 0x20 u32,
        rpg_ai_rate: 0x24 u32,
        rpg_hai_rate: 0x28 u32,
        rpg_gd: 0x2c u32,
        rpg_min_dec_fac: 0x30 u32,
        rpg_min_rate: 0x34 u32,
        rate_to_set_on_first_cnp: 0x54 u32,
        dce_tcp_g: 0x58 u32,
        dce_tcp_rtt: 0x5c u32,
        rate_reduce_monitor_period: 0x60 u32,
        initial_alpha_value: 0x68 u32,
    }

    /// Parameters of the notification point: how a receiver reports ECN marks to the sender with CNPs.
    pub struct CongControlRRoceEcnNp(0x100) {
        /// Shortest time between two CNPs, in microseconds.
        min_time_between_cnps: 0x14 u32,
        cnp_dscp: 0x18[13:8],
        cnp_prio_mode: 0x18[3],
        cnp_802p_prio: 0x18[2:0],
    }
}

codes! {
    /// Bits of `field_select` for the reaction point (Linux `cong.c`, `MLX5_IB_RP_..._ATTR`).
    pub struct RpField(u8) {
        /// A rate cut also lowers the target rate.
        CLAMP_TGT_RATE = 1,
        /// A rate cut also lowers the target rate, if the timer has increased the rate since the last cut.
        CLAMP_TGT_RATE_AFTER_TIME_INC = 2,
        /// Time between rate increases, in microseconds.
        TIME_RESET = 3,
        /// Number of bytes between rate increases.
        BYTE_RESET = 4,
        /// Number of timer or byte-counter events until the target rate rises.
        THRESHOLD = 5,
        /// Highest rate.
        MAX_RATE = 6,
        /// Rate step of the additive increase phase.
        AI_RATE = 7,
        /// Rate step of the hyper increase phase.
        HAI_RATE = 8,
        /// Smallest factor of a rate cut.
        MIN_DEC_FAC = 9,
        /// Lowest rate of a sender.
        MIN_RATE = 10,
        /// Rate after the first CNP.
        RATE_TO_SET_ON_FIRST_CNP = 11,
        /// Gain of the updates of α.
        DCE_TCP_G = 12,
        /// Time after which α decreases.
        DCE_TCP_RTT = 13,
        /// Shortest time between two rate cuts.
        RATE_REDUCE_MONITOR_PERIOD = 14,
        /// Initial α.
        INITIAL_ALPHA_VALUE = 15,
        /// Divisor of α.
        GD = 16,
    }
}

codes! {
    /// Bits of `field_select` for the notification point (Linux `cong.c`, `MLX5_IB_NP_..._ATTR`).
    pub struct NpField(u8) {
        /// Shortest time between two CNPs.
        MIN_TIME_BETWEEN_CNPS = 2,
        /// Code point (DSCP) of CNPs.
        CNP_DSCP = 3,
        /// Priority of CNPs, and the mode that selects it.
        CNP_PRIO_MODE = 4,
    }
}

impl Qpdpm {
    /// Returns the priority of a code point below [`DSCPS`]; 0 for other numbers. Ignores the enable bit.
    #[must_use]
    pub fn priority(&self, dscp: usize) -> u8 {
        let low = dscp.saturating_mul(2).saturating_add(1);
        self.dscp().get(low).map_or(0, |low| low & 0xf)
    }

    /// Sets the priority of a code point, and its enable bit. Ignores a code point that is not below `DSCPS`.
    pub fn set_priority(&mut self, dscp: usize, priority: u8) {
        let mut all = *self.dscp();
        if let Some(entry) = all
            .get_mut(dscp.saturating_mul(2)..)
            .and_then(<[u8]>::first_chunk_mut)
        {
            *entry = [0x80, priority & 0xf];
        }
        self.set_dscp(&all);
    }
}

command! {
    /// Queries whether congestion control is enabled for a priority, in the role `cong_protocol`.
    QUERY_CONG_STATUS: QueryCongStatusIn(0x10) {
        priority: 0x08[7:4],
        cong_protocol: 0x08(CongProtocol[3:0]),
    } -> QueryCongStatusOut(0x10) {
        enable: 0x0c[31],
        tag_enable: 0x0c[30],
    }

    /// Queries the parameters of congestion control. Their layout depends on the protocol.
    QUERY_CONG_PARAMS: QueryCongParamsIn(0x10) {
        cong_protocol: 0x08(CongProtocol[3:0]),
    } -> QueryCongParamsOut(0x110) {
        congestion_parameters: 0x10 [u8; 0x100],
    }

    /// Changes parameters of congestion control. `field_select` has a bit per parameter that changes; the protocol
    /// determines the bits' numbers ([`RpField`], [`NpField`]).
    MODIFY_CONG_PARAMS: ModifyCongParamsIn(0x120) {
        cong_protocol: 0x08(CongProtocol[3:0]),
        field_select: 0x0c u32,
        congestion_parameters: 0x20 [u8; 0x100],
    } -> ModifyCongParamsOut(0x10) {}

    /// Queries the port's counters of congestion control. Linux reports them as `np_cnp_sent` and so on in a port's
    /// `hw_counters`.
    QUERY_CONG_STATISTICS: QueryCongStatisticsIn(0x10) {
        clear: 0x08[31],
    } -> QueryCongStatisticsOut(0x110) {
        rp_cur_flows: 0x10 u32,
        sum_flows: 0x14 u32,
        rp_cnp_ignored: 0x18 u64,
        rp_cnp_handled: 0x20 u64,
        time_stamp: 0x48 u64,
        accumulators_period: 0x50 u32,
        np_ecn_marked_roce_packets_high: 0x54 u32,
        np_ecn_marked_roce_packets_low: 0x58 u32,
        np_cnp_sent_high: 0x5c u32,
        np_cnp_sent_low: 0x60 u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromBytes, IntoBytes};

    /// Registers have the bit offsets of `mlx5_ifc.h`: `trust_state` is at 0x3d of `qpts_reg`. In `qpdpm_reg` the entry
    /// of code point 26 is at 0x20 + 26 * 0x10; its first bit is the enable bit, its last bits are the priority.
    #[test]
    fn the_registers_of_priorities_lie_where_linux_has_them() {
        let qpts = Qpts::read_from_bytes(&[0, 1, 0, 0, 0, 0, 0, 2]).expect("8 bytes");
        assert_eq!(
            (qpts.local_port(), qpts.trust_state()),
            (1, TrustState::DSCP)
        );
        let mut qpdpm = Qpdpm::new();
        qpdpm.set_local_port(1).set_priority(26, 3);
        let mut bytes = [0; 0x84];
        (bytes[1], bytes[4 + 2 * 26], bytes[5 + 2 * 26]) = (1, 0x80, 3);
        assert_eq!(qpdpm.as_bytes(), bytes);
        assert_eq!(
            (qpdpm.priority(26), qpdpm.priority(27), qpdpm.priority(64)),
            (3, 0, 0)
        );
        qpdpm.set_priority(64, 7);
        assert_eq!(qpdpm.as_bytes(), bytes, "there is no such code point");
    }

    /// Fields have the bit offsets of Linux. `query_cong_status_in`: `priority` is at 0x58, `cong_protocol` at 0x5c.
    /// `query_cong_status_out`: `enable` is at 0x60.
    #[test]
    fn the_commands_of_congestion_lie_where_linux_has_them() {
        let mut ask = QueryCongStatusIn::new();
        ask.set_priority(3)
            .set_cong_protocol(CongProtocol::R_ROCE_ECN_NP);
        let bytes = ask.as_bytes();
        assert_eq!(bytes[..4], [0x08, 0x22, 0, 0]);
        assert_eq!(bytes[8..], [0, 0, 0, 0x32, 0, 0, 0, 0]);
        let mut answer = [0; 0x10];
        answer[0x0c] = 0x80;
        assert!(
            QueryCongStatusOut::read_from_bytes(&answer)
                .expect("16 bytes")
                .enable()
        );
        assert_eq!(
            (QueryCongParamsIn::SIZE, QueryCongParamsOut::SIZE),
            (0x10, 0x110)
        );
    }

    /// Fields of `modify_cong_params_in` have Linux's bit offsets: `cong_protocol` 0x5c, `field_select` 0x60,
    /// `congestion_parameters` 0x100.
    #[test]
    fn the_command_that_changes_parameters_lies_where_linux_has_it() {
        let mut change = ModifyCongParamsIn::new();
        change
            .set_cong_protocol(CongProtocol::R_ROCE_ECN_RP)
            .set_field_select(1 << RpField::AI_RATE.0)
            .set_congestion_parameters(&[7; 0x100]);
        let bytes = change.as_bytes();
        assert_eq!(bytes[..4], [0x08, 0x25, 0, 0]);
        assert_eq!(bytes[8..0x10], [0, 0, 0, 1, 0, 0, 0, 0x80]);
        assert_eq!(bytes[0x10..0x20], [0; 0x10]);
        assert_eq!(bytes[0x20..], [7; 0x100]);
    }

    /// Fields have the bit offsets of Linux: `cnp_dscp` is at 0xd2 and has six bits; `initial_alpha_value` is at 0x340.
    #[test]
    fn the_parameters_of_congestion_lie_where_linux_has_them() {
        let mut bytes = [0; 0x100];
        bytes[0x14..0x1c].copy_from_slice(&[0, 0, 0, 4, 0, 0, 48, 6]);
        let notify = CongControlRRoceEcnNp::read_from_bytes(&bytes).expect("0x100 bytes");
        assert_eq!(
            (
                notify.min_time_between_cnps(),
                notify.cnp_dscp(),
                notify.cnp_802p_prio()
            ),
            (4, 48, 6)
        );
        assert!(!notify.cnp_prio_mode());
        let mut react = CongControlRRoceEcnRp::new();
        react.set_initial_alpha_value(0x0102_0304);
        assert_eq!(react.as_bytes()[0x68..0x6c], [1, 2, 3, 4]);
    }
}
