//! Receive and send queues of an Ethernet port: contexts and commands (PRM "Receive Queues", "Send Queues").
//!
//! Unlike the two queues of a queue pair, each is an object of its own: an RQ gets its packets from a TIR, an SQ sends
//! through a TIS. Both start in reset. MODIFY moves them to ready (1), back to reset, or to error (3). The command's
//! state field has the current state as software knows it, and the context has the new state.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode, Wq};

layout! {
    /// Receive queue context (PRM "RQ Context").
    pub struct Rqc(0xf0) {
        /// Set: WQEs may use the reserved lkey.
        rlky: 0x00[31],
        /// Set: while there are no WQEs, the device delays packets instead of dropping them.
        delay_drop_en: 0x00[30],
        /// Set: the device also writes the frame check sequence to the receive buffer.
        scatter_fcs: 0x00[29],
        /// Set: VLAN stripping is disabled.
        vsd: 0x00[28],
        /// Source of WQEs: 0 the queue in `wq`, 1 a receive memory pool.
        mem_rq_type: 0x00[27:24],
        /// State: 0 reset, 1 ready, 3 error.
        state: 0x00[23:20],
        /// Set: the device completes the WQEs of a queue in error as flushed.
        flush_in_error_en: 0x00[18],
        hairpin: 0x00[17],
        /// Timestamp format: 0 free running, 1 default, 2 real time.
        ts_format: 0x00[5:4],
        /// Returned in CQEs of version 1.
        user_index: 0x04[23:0],
        cqn: 0x08[23:0],
        /// Number of the counter set that counts packets for which there was no WQE.
        counter_set_id: 0x0c[31:24],
        rmpn: 0x10[23:0],
        hairpin_peer_sq: 0x14[23:0],
        hairpin_peer_vhca: 0x18[15:0],
        shampo_no_match_alignment_granularity: 0x24[25:24],
        shampo_match_criteria_type: 0x24[17:16],
        reservation_timeout: 0x24[15:0],
        /// The work queue.
        wq: 0x30 Wq,
    }

    /// Send queue context (PRM "SQ Context").
    pub struct Sqc(0xf0) {
        /// Set: WQEs may use the reserved lkey.
        rlky: 0x00[31],
        /// Set: the queue is a master of cross-channel operations.
        cd_master: 0x00[30],
        /// Set: fast register work requests are allowed.
        fre: 0x00[29],
        /// Set: the device completes the WQEs of a queue in error as flushed.
        flush_in_error_en: 0x00[28],
        /// Set: one WQE may carry several packets.
        allow_multi_pkt_send_wqe: 0x00[27],
        /// Headers that every WQE must carry inline: 0 none, 1 L2, 2 IP, 3 TCP/UDP.
        min_wqe_inline_mode: 0x00[26:24],
        /// State: 0 reset, 1 ready, 3 error.
        state: 0x00[23:20],
        /// Set: UMR is allowed.
        reg_umr: 0x00[19],
        /// Set: WQEs may use the software parser.
        allow_swp: 0x00[18],
        hairpin: 0x00[17],
        non_wire: 0x00[16],
        /// Timestamp format: 0 free running, 1 default, 2 real time.
        ts_format: 0x00[5:4],
        /// Returned in CQEs of version 1.
        user_index: 0x04[23:0],
        cqn: 0x08[23:0],
        hairpin_peer_rq: 0x0c[23:0],
        hairpin_peer_vhca: 0x10[15:0],
        ts_cqe_to_dest_cqn: 0x18[23:0],
        packet_pacing_rate_limit_index: 0x1c[15:0],
        /// Number of TISes through which the queue sends: 0 (internal work only) or 1.
        tis_lst_sz: 0x20[31:16],
        qos_queue_group_id: 0x20[15:0],
        tis_num_0: 0x2c[23:0],
        /// The work queue.
        wq: 0x30 Wq,
    }

    /// Fields of the context that MODIFY_RQ changes, besides the state.
    pub struct ModifyRqBitmask(0x08) {
        counter_set_id: 0x04[3],
        scatter_fcs: 0x04[2],
        vsd: 0x04[1],
        lwm: 0x04[0],
    }

    /// Fields of the context that MODIFY_SQ changes, besides the state.
    pub struct ModifySqBitmask(0x08) {
        qos_queue_group_id: 0x04[2],
        packet_pacing_rate_limit_index: 0x04[0],
    }
}

command! {
    /// The page list follows the context.
    CREATE_RQ: CreateRqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        ctx: 0x20 Rqc,
    } -> CreateRqOut(0x10) {
        rqn: 0x08[23:0],
    }

    /// Changes the state and other fields. `rq_state` has the current state, the context has the new state.
    MODIFY_RQ: ModifyRqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        /// Current state of the queue.
        rq_state: 0x08[31:28],
        rqn: 0x08[23:0],
        modify_bitmask: 0x10 ModifyRqBitmask,
        ctx: 0x20 Rqc,
    } -> ModifyRqOut(0x10) {}

    DESTROY_RQ: DestroyRqIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        rqn: 0x08[23:0],
    } -> DestroyRqOut(0x10) {}

    QUERY_RQ: QueryRqIn(0x10) {
        rqn: 0x08[23:0],
    } -> QueryRqOut(0x110) {
        rq_context: 0x20 Rqc,
    }

    /// The page list follows the context.
    CREATE_SQ: CreateSqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        ctx: 0x20 Sqc,
    } -> CreateSqOut(0x10) {
        sqn: 0x08[23:0],
    }

    /// Changes the state and other fields. `sq_state` has the current state, the context has the new state.
    MODIFY_SQ: ModifySqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        /// Current state of the queue.
        sq_state: 0x08[31:28],
        sqn: 0x08[23:0],
        modify_bitmask: 0x10 ModifySqBitmask,
        ctx: 0x20 Sqc,
    } -> ModifySqOut(0x10) {}

    DESTROY_SQ: DestroySqIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        sqn: 0x08[23:0],
    } -> DestroySqOut(0x10) {}

    QUERY_SQ: QuerySqIn(0x10) {
        sqn: 0x08[23:0],
    } -> QuerySqOut(0x110) {
        sq_context: 0x20 Sqc,
    }
}
