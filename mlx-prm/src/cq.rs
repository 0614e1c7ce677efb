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
        /// Status: 0 ok, 9 overflow, 0xa write failure.
        status: 0x00[31:28],
        dbr_umem_valid: 0x00[25],
        apu_cq: 0x00[24],
        /// Entry size: 0 = 64 B, 1 = 128 B, 2 = entries of 64 B at a stride of 128 B.
        cqe_sz: 0x00[23:21],
        /// Collapse: all CQEs go to entry 0.
        cc: 0x00[20],
        scqe_break_moderation_en: 0x00[18],
        /// Overrun ignore (requires capability `cq_oi`).
        oi: 0x00[17],
        /// Start of the moderation period: 0 at the last event, 1 at the last CQE.
        cq_period_mode: 0x00[16:15],
        /// Mini-CQE compression.
        cqe_comp_en: 0x00[14],
        /// Contents of mini CQEs: 0 hash, 1 checksum, 3 checksum + stride index.
        mini_cqe_res_format: 0x00[13:12],
        /// State, read only: 6 armed for solicited CQEs, 9 armed for the next CQE, 0xa fired.
        st: 0x00[11:8],
        /// 0 basic, 1 enhanced.
        cqe_compression_layout: 0x00[1:0],
        /// ID of the user memory (umem) that holds the doorbell record.
        dbr_umem_id: 0x04 u32,
        /// Offset in the first page, in units of 1/64 page; drivers write 0.
        page_offset: 0x08[11:6],
        /// log2 of the number of entries.
        log_cq_size: 0x0c[28:24],
        /// UAR index for the arm doorbell.
        uar_page: 0x0c[23:0],
        /// Moderation time, microseconds.
        cq_period: 0x10[27:16],
        /// Moderation count in CQEs; moderation is off if time and count are 0.
        cq_max_count: 0x10[15:0],
        /// Number of the event queue, in bits 7:0.
        c_eqn_or_apu_element: 0x14 u32,
        /// log2 of the page size in bytes, minus 12.
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
        /// ID of the user memory (umem) that holds the ring.
        cq_umem_id: 0x58 u32,
        /// Set: the ring is in `cq_umem_id`. 0: the PAS list has the ring's pages.
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
        /// Fields that change. op_mod 0: bit 0 period, 1 max count, 2 overrun ignore, 4 period mode; op_mod 1: bit 0
        /// log_cq_size, 1 page_offset, 2 log_page_size.
        modify_field_select: 0x0c[4:0],
        cq_context: 0x10 Cqc,
        cq_umem_offset: 0x50 u64,
        /// ID of the user memory (umem) that holds the new ring.
        cq_umem_id: 0x58 u32,
        cq_umem_valid: 0x5c[31],
    } -> ModifyCqOut(0x10) {}
}

layout! {
    /// Completion queue entry, 64-byte form (PRM "Completion Queue Entry Format"). An entry of the 128-byte form
    /// has this structure as its second half.
    pub struct Cqe64(0x40) {
        /// Tunnel flags (Ethernet).
        tunneled_etc: 0x00 u8,
        /// WQE ID of striding receive queues.
        wqe_id: 0x02 u16,
        /// Fields of large receive and header split (Ethernet).
        lro: 0x04 u64,
        /// Hash (Ethernet).
        rx_hash_result: 0x0c u32,
        /// Hashed fields (Ethernet).
        rx_hash_type: 0x10 u8,
        /// InfiniBand datagrams: destination LID path bits.
        ml_path: 0x11 u8,
        /// Checksum of the packet (Ethernet).
        check_sum: 0x14 u16,
        /// InfiniBand: source LID.
        slid: 0x16 u16,
        /// Bits 23:0: source QP number of a datagram. Bits 25:24: L3 type on RoCE (0 GRH, 1 IPv6, 2 IPv4). Bits 27:24:
        /// SL on InfiniBand. Bits 29:28: GRH (0 none, 1 in the receive buffer, 2 in this entry). Bit 30: force
        /// loopback.
        flags_rqpn: 0x18 u32,
        /// Bit 0 L2 ok, 1 L3 ok, 2 L4 ok (Ethernet).
        hds_ip_ext: 0x1c u8,
        /// Header types (Ethernet).
        l4_l3_hdr_type: 0x1d u8,
        /// VLAN tag.
        vlan_info: 0x1e u16,
        /// CQE version 0: number of the SRQ. Version 1: user index of the QP or SRQ.
        srqn_uidx: 0x20[23:0],
        /// Immediate data as the peer sent it, the rkey that was invalidated, or (datagrams) the P_Key in 15:0.
        imm_inval_pkey: 0x24 u32,
        /// Field of tag matching.
        app: 0x28 u8,
        /// Field of tag matching.
        app_op: 0x29 u8,
        /// Field of tag matching.
        app_info: 0x2a u16,
        /// Number of bytes received or read, including the 40 bytes of a datagram's GRH.
        byte_cnt: 0x2c u32,
        /// Time of the completion, in ticks of the device clock.
        timestamp: 0x30 u64,
        /// Requester: opcode of the completed WQE; see [`WqeOpcode`](super::WqeOpcode).
        send_wqe_opcode: 0x38[31:24],
        /// Number of the local queue pair.
        qpn: 0x38[23:0],
        /// Send: index of the first WQEBB of the completed WQE; all earlier WQEs are complete, too. Receive: number of
        /// the receive, counted from the queue's first. SRQ: index of the SRQ entry.
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
        /// Vendor-specific detail of `syndrome`.
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
    /// Value of `op_own` in an entry that the device has not written yet: opcode 15, owner 1.
    pub const NEVER_WRITTEN: u8 = 0xf1;

    /// Returns the opcode: bits 7:4 of the last byte.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> CqeOpcode {
        CqeOpcode(self.op_own() >> 4)
    }

    /// Returns the format: bits 3:2 of the last byte. 0 plain, 1 and 2 data in the entry, 3 compressed.
    #[inline]
    #[must_use]
    pub const fn format(&self) -> u8 {
        self.op_own() >> 2 & 3
    }

    /// Sets the format: bits 3:2 of the last byte.
    pub fn set_format(&mut self, format: u8) -> &mut Self {
        self.set_op_own(self.op_own() & !(3 << 2) | (format & 3) << 2)
    }

    /// Returns the solicited bit, bit 1 of the last byte: true if the peer asked for a solicited event.
    #[inline]
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.op_own() >> 1 & 1 == 1
    }

    /// Returns the owner bit, bit 0 of the last byte.
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

    /// Returns the same 64 bytes as an error entry. Its fields are valid only if `opcode` is `REQ_ERR` or `RESP_ERR`.
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
        /// A WQE of a send queue completed.
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
        /// Tag matching: an entry for which no packet arrived.
        NO_PACKET = 6,
        /// A signature error (T10).
        SIG_ERR = 12,
        /// A WQE of a send queue failed.
        REQ_ERR = 13,
        /// A receive failed.
        RESP_ERR = 14,
        /// The device has not written the entry yet.
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
        /// The WQE was flushed: the queue pair was already in the error state.
        WR_FLUSH_ERR = 0x05,
        /// Memory window bind error.
        MW_BIND_ERR = 0x06,
        /// The peer's response was invalid.
        BAD_RESP_ERR = 0x10,
        /// Local access error at the responder.
        LOCAL_ACCESS_ERR = 0x11,
        /// The peer found the request invalid.
        REMOTE_INVAL_REQ_ERR = 0x12,
        /// The peer refused access to its memory.
        REMOTE_ACCESS_ERR = 0x13,
        /// The peer failed to carry out the operation.
        REMOTE_OP_ERR = 0x14,
        /// The peer answered none of the retries.
        TRANSPORT_RETRY_EXC_ERR = 0x15,
        /// The peer had no receive buffer at each retry.
        RNR_RETRY_EXC_ERR = 0x16,
        /// The peer aborted the operation.
        REMOTE_ABORTED_ERR = 0x22,
    }
}
