//! Queue pairs: context, address path, commands (PRM "Queue Pairs").

use layout::codes;
use layout::layout;

use super::command::command;
use super::{CmdStatus, Command, Opcode, Qpn};

layout! {
    /// Address path (PRM "Address Path").
    pub struct Ads(0x2c) {
        /// Force loopback: on InfiniBand, and for RC on RoCE if `fl_rc_qp_when_roce_enabled` (or `_disabled`) is set.
        fl: 0x00[31],
        free_ar: 0x00[30],
        /// Index of the P_Key on InfiniBand; 0 on RoCE.
        pkey_index: 0x00[15:0],
        plane_index: 0x04[31:24],
        /// InfiniBand: set if packets carry a GRH. RoCE: 0, as the device knows which header to use.
        grh: 0x04[23],
        /// InfiniBand: source path bits.
        mlid: 0x04[22:16],
        /// InfiniBand: destination LID.
        rlid: 0x04[15:0],
        /// ACK timeout code n, 0..31: 4.096 µs·2^n; 0 is infinite.
        ack_timeout: 0x08[31:27],
        /// Index of the source GID in the RoCE address table or the IB GID table.
        src_addr_index: 0x08[23:16],
        /// Static rate code; 0 is the port's speed.
        stat_rate: 0x08[11:8],
        /// Hop limit of the GRH, or TTL of RoCE v2's IP header.
        hop_limit: 0x08[7:0],
        /// Traffic class on IB and RoCE v1. Linux sets it for RoCE v2, too.
        tclass: 0x0c[27:20],
        flow_label: 0x0c[19:0],
        /// Destination GID; an IPv4 address is mapped (::ffff:a.b.c.d).
        rgid_rip: 0x10 [u8; 16],
        /// Force fields (`f_`), which are 0 in all drivers.
        f_dscp: 0x20[27],
        f_ecn: 0x20[26],
        f_eth_prio: 0x20[24],
        ecn: 0x20[23:22],
        /// DSCP of RoCE v2: tclass >> 2.
        dscp: 0x20[21:16],
        /// UDP source port of RoCE v2.
        udp_sport: 0x20[15:0],
        dei_cfi: 0x24[31],
        /// RoCE: 802.1p priority, which is SL & 7.
        eth_prio: 0x24[30:28],
        /// InfiniBand: service level.
        sl: 0x24[27:24],
        /// Port number, from 1.
        vhca_port_num: 0x24[23:16],
        /// RoCE: bytes 0..1 of the destination MAC.
        rmac_47_32: 0x24[15:0],
        /// RoCE: bytes 2..5 of the destination MAC.
        rmac_31_0: 0x28 u32,
    }

    /// Queue pair context (PRM "QP Context").
    pub struct Qpc(0xe8) {
        /// State, read only; see [`QpState`].
        state: 0x00[31:28],
        /// Port of a LAG through which the queue pair sends; 0 is none in particular.
        lag_tx_port_affinity: 0x00[27:24],
        /// Service type; see [`ServiceType`].
        st: 0x00[23:16],
        isolate_vl_tc: 0x00[13],
        /// Path migration state: 0 armed, 1 rearm, 3 migrated. Drivers without alternate paths always set 3.
        pm_state: 0x00[12:11],
        req_e2e_credit_mode: 0x00[9:8],
        /// Nonzero: rendezvous offload (tag matching).
        offload_type: 0x00[7:4],
        /// End padding of receive data: 0 none, 1 to a cache line.
        end_padding_mode: 0x00[3:2],
        /// Set: WQEs carry signatures.
        wq_signature: 0x04[31],
        /// Set: the device does not loop multicast packets back to this queue pair.
        block_lb_mc: 0x04[30],
        atomic_like_write_en: 0x04[29],
        /// Linux sets it on its UMR queue pair.
        latency_sensitive: 0x04[28],
        drain_sigerr: 0x04[26],
        /// Protection domain.
        pd: 0x04[23:0],
        /// Path MTU: 1..5 = 256,512,1024,2048,4096 bytes; 7 raw Ethernet.
        mtu: 0x08[31:29],
        /// log2 of the largest message in bytes (30 = 1 GiB); drivers take it from capability `log_max_msg`.
        log_msg_max: 0x08[28:24],
        /// log2 of the number of RQ entries; 0 if `rq_type` is not 0.
        log_rq_size: 0x08[22:19],
        /// log2 of the size of an RQ WQE in bytes, minus 4.
        log_rq_stride: 0x08[18:16],
        /// Set: the queue pair has no send queue.
        no_sq: 0x08[15],
        /// log2 of the number of 64-byte WQEBBs in the SQ.
        log_sq_size: 0x08[14:11],
        /// Retransmission mode: 1 go-back-N.
        retry_mode: 0x08[9:8],
        /// Timestamp format: 0 free running, 1 default, 2 real time. Drivers set 1 only if the capability has formats.
        ts_format: 0x08[7:6],
        /// Set: WQEs may use the reserved lkey.
        rlky: 0x08[4],
        /// Stateless offloads: 1 IPoIB.
        ulp_stateless_offload_mode: 0x08[3:0],
        /// Counter set from ALLOC_Q_COUNTER; 0 is none or the default.
        counter_set_id: 0x0c[31:24],
        /// UAR index for this QP's send doorbells.
        uar_page: 0x0c[23:0],
        /// Value that CQEs return if cqe_version is 1. With 0xffffff CQEs are like those of version 0.
        user_index: 0x10[23:0],
        /// log2 of the size in bytes of the WQ buffer's pages (PAS list), minus 12.
        log_page_size: 0x14[28:24],
        /// Queue pair number of the peer; the device reads it at the transition to RTR.
        remote_qpn: 0x14[23:0],
        /// The primary path.
        primary_address_path: 0x18 Ads,
        /// The alternate path.
        secondary_address_path: 0x44 Ads,
        /// log2 of the ACK request frequency; Linux sets 8.
        log_ack_req_freq: 0x70[31:28],
        /// log2 of the largest number of outstanding reads and atomics as initiator.
        log_sra_max: 0x70[23:21],
        /// Number of transport retries, 0..7.
        retry_count: 0x70[18:16],
        /// Number of RNR retries, 0..7; 7 is infinite.
        rnr_retry: 0x70[15:13],
        /// Fast register (UMR) enabled; Linux sets it for its own queue pairs.
        fre: 0x70[11],
        cur_rnr_retry: 0x70[10:8],
        cur_retry_count: 0x70[7:5],
        /// PSN of the first packet to send; the device reads it at the transition to RTS.
        next_send_psn: 0x78[23:0],
        log_num_dci_stream_channels: 0x7c[28:24],
        /// Number of the CQ for sends.
        cqn_snd: 0x7c[23:0],
        log_num_dci_errored_streams: 0x80[28:24],
        /// UD: source QP number that the device writes in the DETH (1 for helper QPs of the GSI).
        deth_sqpn: 0x80[23:0],
        last_acked_psn: 0x88[23:0],
        ssn: 0x8c[23:0],
        /// log2 of the responder's resources for outstanding reads and atomics.
        log_rra_max: 0x90[23:21],
        /// Atomic operands: 1 IB specification, 2 only 8 B, 3 up to 8 B, 4 up to 16 B … 8 up to 256 B.
        atomic_mode: 0x90[19:16],
        /// Remote read enable.
        rre: 0x90[15],
        /// Remote write enable.
        rwe: 0x90[14],
        /// Remote atomic enable.
        rae: 0x90[13],
        /// Offset of the WQ buffer in its first page, in 64-byte units; drivers write 0.
        page_offset: 0x90[11:6],
        cd_slave_receive: 0x90[2],
        cd_slave_send: 0x90[1],
        cd_master: 0x90[0],
        /// RNR NAK timer code (IBTA volume 1, RNR NAK timer field).
        min_rnr_nak: 0x94[28:24],
        /// PSN of the first packet to receive; the device reads it at the transition to RTR.
        next_rcv_psn: 0x94[23:0],
        /// XRC domain; Linux sets one even for RC.
        xrcd: 0x98[23:0],
        /// Number of the CQ for receives.
        cqn_rcv: 0x9c[23:0],
        /// DMA address of the 8-byte doorbell record, or its offset in the user memory.
        dbr_addr: 0xa0 u64,
        /// Q_Key of datagram queue pairs.
        q_key: 0xa8 u32,
        /// Source of receives: 0 the own RQ, 1 an SRQ, 2 a CRQ, 3 a zero-length RQ.
        rq_type: 0xac[26:24],
        /// SRQ number; the RMP number for a basic SRQ.
        srqn_rmpn_xrqn: 0xac[23:0],
        rmsn: 0xb0[23:0],
        /// Send queue: number of WQEBBs that the device has fetched, modulo 2^16; read only.
        hw_sq_wqebb_counter: 0xb4[31:16],
        /// Send queue: counter that the device last read from the doorbell record; read only.
        sw_sq_wqebb_counter: 0xb4[15:0],
        /// Counter of the device, read only.
        hw_rq_counter: 0xb8 u32,
        /// Counter of the software, read only.
        sw_rq_counter: 0xbc u32,
        cgs: 0xc4[16],
        /// Scatter to CQE for the requester: 0 off, 0x11 in 64-byte CQEs, 0x22 in 128-byte CQEs.
        cs_req: 0xc4[15:8],
        /// Scatter to CQE for the responder: 0 off, 1 in 64-byte CQEs, 2 in 128-byte CQEs.
        cs_res: 0xc4[7:0],
        /// Access key of a DC target; DC only.
        dc_access_key: 0xc8 u64,
        /// Set: `dbr_addr` is an offset in `dbr_umem_id`. 0: it is a DMA address.
        dbr_umem_valid: 0xd0[28],
        /// ID of the user memory that holds the doorbell record.
        dbr_umem_id: 0xe4 u32,
    }
}

command! {
    CREATE_QP: CreateQpIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        qpc_ext: 0x08[31],
        /// Always 0.
        input_qpn: 0x08[23:0],
        /// Always 0.
        opt_param_mask: 0x10 u32,
        /// Enhanced connection establishment options; valid only with capability `ece_support`.
        ece: 0x14 u32,
        qpc: 0x18 Qpc,
        wq_umem_offset: 0x100 u64,
        wq_umem_id: 0x108 u32,
        /// Set: the queues are in a umem. 0: the PAS list has their pages.
        wq_umem_valid: 0x10c[31],
    } -> CreateQpOut(0x10) {
        qpn: 0x08[23:0],
        ece: 0x0c u32,
    }

    DESTROY_QP: DestroyQpIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        qpn: 0x08[23:0],
    } -> DestroyQpOut(0x10) {}

    /// Moves a queue pair from any state to error.
    TO_ERR_QP: ToErrQpIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        qpn: 0x08[23:0],
    } -> ToErrQpOut(0x10) {}

    /// Moves a queue pair from any state to reset.
    TO_RST_QP: ToRstQpIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        qpn: 0x08[23:0],
    } -> ToRstQpOut(0x10) {}

    /// Queries a queue pair. The output has the context with the current state, PSNs and counters, then the PAS list.
    /// With qpc_ext, a 0xc0-byte extension precedes the list.
    QUERY_QP: QueryQpIn(0x10) {
        qpc_ext: 0x08[31],
        qpn: 0x08[23:0],
    } -> QueryQpOut(0x1d0) {
        opt_param_mask: 0x10 u32,
        ece: 0x14 u32,
        qpc: 0x18 Qpc,
    }
}

/// Declares the commands for state transitions that take a context; all have the same layout.
macro_rules! transitions {
    ($( $(#[$meta:meta])* $opcode:ident: $input:ident -> $output:ident; )+) => {$(
        command! {
            $(#[$meta])*
            $opcode: $input(0x110) {
                /// ID of the user context that issues the command; 0 is the driver.
                uid: 0x00[15:0],
                /// Number of the queue pair.
                qpn: 0x08[23:0],
                /// Bit per optional parameter that the transition takes from the context (`opt_param`).
                opt_param_mask: 0x10 u32,
                /// Enhanced connection establishment options.
                ece: 0x14 u32,
                /// The queue pair context.
                qpc: 0x18 Qpc,
            } -> $output(0x10) {
                /// Enhanced connection establishment options in force.
                ece: 0x0c u32,
            }
        }

        impl ModifyQp for $input {
            fn for_qp(qpn: Qpn, opt_param_mask: u32) -> Self {
                let mut input = Self::new();
                input.set_qpn(qpn.get()).set_opt_param_mask(opt_param_mask);
                input
            }

            fn context_mut(&mut self) -> &mut Qpc {
                self.qpc_mut()
            }
        }
    )+};
}

transitions! {
    /// Moves a queue pair from reset to initialized.
    RST2INIT_QP: Rst2InitQpIn -> Rst2InitQpOut;
    /// Moves a queue pair from initialized to ready to receive.
    INIT2RTR_QP: Init2RtrQpIn -> Init2RtrQpOut;
    /// Moves a queue pair from ready to receive to ready to send.
    RTR2RTS_QP: Rtr2RtsQpIn -> Rtr2RtsQpOut;
    /// Changes parameters of a queue pair that is ready to send.
    RTS2RTS_QP: Rts2RtsQpIn -> Rts2RtsQpOut;
    /// Moves a queue pair from send queue error to ready to send. `ece` is reserved in this command.
    SQERR2RTS_QP: SqErr2RtsQpIn -> SqErr2RtsQpOut;
    /// Moves a queue pair from send queue drained to ready to send. `ece` is reserved in this command.
    SQD_RTS_QP: SqdRtsQpIn -> SqdRtsQpOut;
    /// Changes parameters of an initialized queue pair.
    INIT2INIT_QP: Init2InitQpIn -> Init2InitQpOut;
}

/// A command that changes a queue pair's state or parameters and carries a context.
pub trait ModifyQp: Command {
    /// Makes the command for a queue pair; the context is zero.
    fn for_qp(qpn: Qpn, opt_param_mask: u32) -> Self;
    /// Returns the context.
    fn context_mut(&mut self) -> &mut Qpc;
}

codes! {
    /// States of a queue pair, as QUERY_QP returns them.
    pub struct QpState(u8) {
        /// Reset.
        RST = 0,
        /// Initialized.
        INIT = 1,
        /// Ready to receive.
        RTR = 2,
        /// Ready to send.
        RTS = 3,
        /// The send queue failed (datagram queue pairs and UC only).
        SQER = 4,
        /// Send queue drained. Linux `qp.h` gives 5 and calls 7 "draining"; Linux `mlx5_ifc.h` gives 7.
        SQD = 5,
        /// Error: both queues failed.
        ERR = 6,
        /// See [`QpState::SQD`].
        SQ_DRAINING = 7,
        /// Suspended.
        SUSPENDED = 9,
    }

    /// Service type of a queue pair.
    pub struct ServiceType(u8) {
        /// Reliable connection.
        RC = 0,
        /// Unreliable connection.
        UC = 1,
        /// Datagram.
        UD = 2,
        /// Extended reliable connection.
        XRC = 3,
        /// MLX transport.
        MLX = 4,
        /// DC initiator.
        DCI = 5,
        /// DC target.
        DCT = 6,
        /// QP0: subnet management.
        QP0 = 7,
        /// QP1: general services.
        QP1 = 8,
        /// Raw Ethernet.
        RAW_ETHERTYPE = 9,
        /// Queue pair that changes memory keys (UMR).
        REG_UMR = 0xc,
        /// Queue pair that synchronizes changes of memory keys.
        SYNC_UMR = 0xe,
    }
}

/// Bits of `opt_param_mask`: optional parameters by the name of their field in the context.
pub mod opt_param {
    /// Alternate address path.
    pub const ALT_ADDR_PATH: u32 = 1 << 0;
    /// `rre`.
    pub const RRE: u32 = 1 << 1;
    /// `rae` and the atomic mode.
    pub const RAE: u32 = 1 << 2;
    /// `rwe`.
    pub const RWE: u32 = 1 << 3;
    /// `pkey_index`.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `q_key`.
    pub const Q_KEY: u32 = 1 << 5;
    /// `min_rnr_nak`.
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    /// Primary address path.
    pub const PRIMARY_ADDR_PATH: u32 = 1 << 7;
    /// `log_sra_max`.
    pub const SRA_MAX: u32 = 1 << 8;
    /// `log_rra_max`.
    pub const RRA_MAX: u32 = 1 << 9;
    /// `pm_state`.
    pub const PM_STATE: u32 = 1 << 10;
    /// `retry_count`.
    pub const RETRY_COUNT: u32 = 1 << 12;
    /// `rnr_retry`.
    pub const RNR_RETRY: u32 = 1 << 13;
    /// `ack_timeout`.
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    /// LAG transmit affinity.
    pub const LAG_TX_AFF: u32 = 1 << 15;
    /// Primary port.
    pub const PRI_PORT: u32 = 1 << 16;
    /// `srqn`.
    pub const SRQN: u32 = 1 << 18;
    /// `cqn_rcv`.
    pub const CQN_RCV: u32 = 1 << 19;
    /// DC handshake.
    pub const DC_HS: u32 = 1 << 20;
    /// DC key.
    pub const DC_KEY: u32 = 1 << 21;
    /// `counter_set_id`.
    pub const COUNTER_SET_ID: u32 = 1 << 25;
}
