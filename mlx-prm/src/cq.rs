//! Completion queues: context, entries, commands (PRM "Completion Queues").
//!
//! An entry's last byte has the opcode, format, solicited and owner bits; the device writes that byte last.

use layout::codes;
use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Completion queue context (PRM "Completion Queue Context").
    pub struct Cqc(0x40) {
        /// 0 ok, 9 overflow, 0xa write failure.
        status: 0x00[31:28],
        dbr_umem_valid: 0x00[25],
        apu_cq: 0x00[24],
        /// 0 = 64 B, 1 = 128 B, 2 = 128 B stride with 64 B CQE padded.
        cqe_sz: 0x00[23:21],
        /// Collapse: all CQEs go to entry 0.
        cc: 0x00[20],
        scqe_break_moderation_en: 0x00[18],
        /// Overrun ignore (capability `cq_oi`).
        oi: 0x00[17],
        /// 0 from event, 1 from CQE.
        cq_period_mode: 0x00[16:15],
        /// Mini-CQE compression.
        cqe_comp_en: 0x00[14],
        /// 0 hash, 1 checksum, 3 checksum + stride index.
        mini_cqe_res_format: 0x00[13:12],
        /// Read only: 6 armed solicited, 9 armed next, 0xa fired.
        st: 0x00[11:8],
        /// 0 basic, 1 enhanced.
        cqe_compression_layout: 0x00[1:0],
        /// ID of the user memory that holds the doorbell record.
        dbr_umem_id: 0x04 u32,
        /// 0 (units of 1/64 page).
        page_offset: 0x08[11:6],
        /// log2 of the entries.
        log_cq_size: 0x0c[28:24],
        /// UAR index for the arm doorbell.
        uar_page: 0x0c[23:0],
        /// Moderation time, microseconds.
        cq_period: 0x10[27:16],
        /// Moderation count; 0/0 = off.
        cq_max_count: 0x10[15:0],
        /// Event queue in 7:0.
        c_eqn_or_apu_element: 0x14 u32,
        /// log2(page) − 12.
        log_page_size: 0x18[28:24],
        last_notified_index: 0x20[23:0],
        last_solicit_index: 0x24[23:0],
        consumer_counter: 0x28[23:0],
        producer_counter: 0x2c[23:0],
        /// DMA address of the 8-byte doorbell record, or its offset in the user memory.
        dbr_addr: 0x38 u64,
    }
}

command! {
    CREATE_CQ: CreateCqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        cq_context: 0x10 Cqc,
        cq_umem_offset: 0x50 u64,
        /// ID of the user memory that holds the ring.
        cq_umem_id: 0x58 u32,
        /// 0 when PAS list is used.
        cq_umem_valid: 0x5c[31],
    } -> CreateCqOut(0x10) {
        cqn: 0x08[23:0],
    }

    DESTROY_CQ: DestroyCqIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        cqn: 0x08[23:0],
    } -> DestroyCqOut(0x10) {}

    QUERY_CQ: QueryCqIn(0x10) {
        cqn: 0x08[23:0],
    } -> QueryCqOut(0x110) {
        cq_context: 0x10 Cqc,
    }

    /// op_mod 0 modify, 1 resize.
    MODIFY_CQ: ModifyCqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        cqn: 0x08[23:0],
        /// op_mod 0: bit 0 period, 1 max count, 2 overrun ignore, 4 period mode; op_mod 1: bit 0
        /// log_cq_size, 1 page_offset, 2 log_page_size.
        modify_field_select: 0x0c[4:0],
        cq_context: 0x10 Cqc,
        cq_umem_offset: 0x50 u64,
        /// ID of the user memory that holds the new ring.
        cq_umem_id: 0x58 u32,
        cq_umem_valid: 0x5c[31],
    } -> ModifyCqOut(0x10) {}
}

layout! {
    /// Completion queue entry, 64-byte form (PRM "Completion Queue Entry Format"). In the 128-byte form
    /// it is the second half.
    pub struct Cqe64(0x40) {
        /// Tunnel flags (Ethernet).
        tunneled_etc: 0x00 u8,
        /// WQE ID of striding receive queues.
        wqe_id: 0x02 u16,
        /// Large receive and header split (Ethernet).
        lro: 0x04 u64,
        /// Hash (Ethernet).
        rx_hash_result: 0x0c u32,
        /// Hashed fields (Ethernet).
        rx_hash_type: 0x10 u8,
        /// InfiniBand datagrams: destination LID path bits.
        ml_path: 0x11 u8,
        /// Checksum (Ethernet).
        check_sum: 0x14 u16,
        /// InfiniBand: source LID.
        slid: 0x16 u16,
        /// Datagrams: source QP number in bits 23:0. RoCE: L3 type in 25:24 (0 GRH, 1 IPv6, 2 IPv4);
        /// InfiniBand: SL in 27:24. GRH in 29:28 (0 none, 1 in the buffer, 2 in the entry). Force
        /// loopback in 30.
        flags_rqpn: 0x18 u32,
        /// Bit 0 L2 ok, 1 L3 ok, 2 L4 ok (Ethernet).
        hds_ip_ext: 0x1c u8,
        /// Header types (Ethernet).
        l4_l3_hdr_type: 0x1d u8,
        /// VLAN tag.
        vlan_info: 0x1e u16,
        /// CQE version 0: number of the SRQ. Version 1: user index of the QP or SRQ.
        srqn_uidx: 0x20[23:0],
        /// Immediate data as the peer sent it, the rkey invalidated, or (datagrams) the P_Key in 15:0.
        imm_inval_pkey: 0x24 u32,
        /// Tag matching.
        app: 0x28 u8,
        /// Tag matching.
        app_op: 0x29 u8,
        /// Tag matching.
        app_info: 0x2a u16,
        /// Bytes received or read, including the 40 bytes of a datagram's GRH.
        byte_cnt: 0x2c u32,
        /// Device clock.
        timestamp: 0x30 u64,
        /// Requester: opcode of the WQE done; see [`WqeOpcode`](super::WqeOpcode).
        send_wqe_opcode: 0x38[31:24],
        /// Local queue pair.
        qpn: 0x38[23:0],
        /// Send: index of the first block of the completed WQE; every earlier one is complete, too. Receive: count of
        /// the receive. SRQ: index of its entry.
        wqe_counter: 0x3c u16,
        /// Not checked by drivers.
        signature: 0x3e u8,
        /// Opcode 7:4, format 3:2, solicited 1, owner 0. The device writes this byte last.
        op_own: 0x3f u8,
    }

    /// Completion queue entry of a failed WQE: the same 64 bytes with other fields (PRM "Completion with Error").
    pub struct ErrCqe(0x40) {
        /// As in [`Cqe64`].
        srqn_uidx: 0x20[23:0],
        /// Detail of `syndrome`; its meaning is the vendor's.
        vendor_error_syndrome: 0x36 u8,
        /// Reason of the failure; see [`Syndrome`].
        syndrome: 0x37 u8,
        /// As in [`Cqe64`].
        send_wqe_opcode: 0x38[31:24],
        /// As in [`Cqe64`].
        qpn: 0x38[23:0],
        /// As in [`Cqe64`].
        wqe_counter: 0x3c u16,
        /// Not checked by drivers.
        signature: 0x3e u8,
        /// As in [`Cqe64`].
        op_own: 0x3f u8,
    }
}

impl Cqe64 {
    /// `op_own` of an entry the device has not written: opcode 15, owner 1.
    pub const NEVER_WRITTEN: u8 = 0xf1;

    /// Returns bits 7:4 of the last byte.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> CqeOpcode {
        CqeOpcode(self.op_own() >> 4)
    }

    /// Returns bits 3:2 of the last byte: 0 plain, 1 and 2 data in the entry, 3 compressed.
    #[inline]
    #[must_use]
    pub const fn format(&self) -> u8 {
        self.op_own() >> 2 & 3
    }

    /// Sets bits 3:2 of the last byte.
    pub fn set_format(&mut self, format: u8) -> &mut Self {
        self.set_op_own(self.op_own() & !(3 << 2) | (format & 3) << 2)
    }

    /// Returns bit 1 of the last byte: true if the peer asked for an event.
    #[inline]
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.op_own() >> 1 & 1 == 1
    }

    /// Returns bit 0 of the last byte.
    #[inline]
    #[must_use]
    pub const fn owner(&self) -> bool {
        self.op_own() & 1 == 1
    }

    /// Sets the last byte from its parts.
    pub fn set_op_own_parts(
        &mut self,
        opcode: CqeOpcode,
        format: u8,
        solicited: bool,
        owner: bool,
    ) -> &mut Self {
        self.set_op_own(
            opcode.0 << 4 | (format & 3) << 2 | u8::from(solicited) << 1 | u8::from(owner),
        )
    }

    /// Returns the entry as that of a failed WQE, which it is if the opcode says so.
    #[inline]
    #[must_use]
    pub fn as_error(&self) -> &ErrCqe {
        zerocopy::transmute_ref!(self)
    }
}

impl From<ErrCqe> for Cqe64 {
    fn from(error: ErrCqe) -> Self {
        Self::from_array(*error.as_array())
    }
}

codes! {
    /// Kind of a completion queue entry: bits 7:4 of its last byte.
    pub struct CqeOpcode(u8) {
        /// A send queue's WQE is done.
        REQ = 0,
        /// An RDMA Write with immediate arrived.
        RESP_WR_IMM = 1,
        /// A Send arrived.
        RESP_SEND = 2,
        /// A Send with immediate arrived.
        RESP_SEND_IMM = 3,
        /// A Send with invalidate arrived.
        RESP_SEND_INV = 4,
        /// Last entry of a ring that was replaced by a resize.
        RESIZE_CQ = 5,
        /// Tag matching bookkeeping.
        NO_PACKET = 6,
        /// Signature (T10) error.
        SIG_ERR = 12,
        /// A send queue's WQE failed.
        REQ_ERR = 13,
        /// A receive failed.
        RESP_ERR = 14,
        /// Not written yet.
        INVALID = 15,
    }

    /// Reason why a WQE failed.
    pub struct Syndrome(u8) {
        /// Local length error.
        LOCAL_LENGTH_ERR = 0x01,
        /// Local queue pair operation error.
        LOCAL_QP_OP_ERR = 0x02,
        /// Local protection error.
        LOCAL_PROT_ERR = 0x04,
        /// Flushed: the queue pair was in error already.
        WR_FLUSH_ERR = 0x05,
        /// Memory window bind error.
        MW_BIND_ERR = 0x06,
        /// The peer's response was invalid.
        BAD_RESP_ERR = 0x10,
        /// Local access error (responder).
        LOCAL_ACCESS_ERR = 0x11,
        /// The peer found the request invalid.
        REMOTE_INVAL_REQ_ERR = 0x12,
        /// The peer refused access to its memory.
        REMOTE_ACCESS_ERR = 0x13,
        /// The peer failed to carry out the operation.
        REMOTE_OP_ERR = 0x14,
        /// The peer did not answer any retry.
        TRANSPORT_RETRY_EXC_ERR = 0x15,
        /// The peer had no receive buffer at any retry.
        RNR_RETRY_EXC_ERR = 0x16,
        /// The peer aborted.
        REMOTE_ABORTED_ERR = 0x22,
    }
}
