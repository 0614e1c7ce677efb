//! Work queue entries and their segments (PRM "Work Queue Entry Formats").
//!
//! A send WQE is a control segment, then transport segments (remote address and atomic, or address vector), then
//! data: pointers, or one inline segment. A receive WQE is a list of data pointers. The list ends at the stride's end,
//! or at a terminator (lkey 0x100, byte count 0). An entry of a shared receive queue begins with a next segment. The
//! size of every segment is a multiple of 16 bytes, and `ds` counts in that unit.

use layout::codes;
use layout::layout;

layout! {
    /// Control segment (PRM "Ctrl Segment").
    pub struct CtrlSeg(0x10) {
        /// Variant of the opcode; 0 for most opcodes.
        opmod: 0x00[31:24],
        /// Index of the WQE's first 64-byte block (WQEBB), counted since the queue's last reset, modulo 2^16.
        wqe_index: 0x00[23:8],
        /// Operation; see [`WqeOpcode`].
        opcode: 0x00[7:0],
        /// Number of the queue pair or send queue.
        qp_or_sq: 0x04[31:8],
        /// Size of the WQE in 16-byte units, this segment included.
        ds: 0x04[5:0],
        /// Signature; 0 unless the queue's WQEs carry signatures.
        signature: 0x08[31:24],
        /// Stream of a DC initiator; otherwise 0.
        dci_stream_channel_id: 0x08[23:8],
        /// Fence: 0 none, 1 wait for the preceding UMR, 2 fence, 3 strong ordering, 4 both 1 and 2.
        fm: 0x08[7:5],
        /// Condition for a CQE: 0 on error, 1 on the first error, 2 always, 3 always, with an event.
        ce: 0x08[3:2],
        /// Set: solicited event at the responder.
        se: 0x08[1],
        /// Immediate data as the peer receives it, the rkey to invalidate, or the mkey of a UMR.
        imm: 0x0c u32,
    }

    /// Remote address segment (PRM "Remote Address Segment").
    pub struct RaddrSeg(0x10) {
        /// Virtual address at the responder.
        raddr: 0x00 u64,
        /// Remote key of the responder's memory.
        rkey: 0x08 u32,
    }

    /// Atomic segment.
    pub struct AtomicSeg(0x10) {
        /// Value to swap in, or to add.
        swap_add: 0x00 u64,
        /// Value to compare with; unused by fetch and add.
        compare: 0x08 u64,
    }

    /// Masked atomic segment.
    pub struct MaskedAtomicSeg(0x20) {
        /// Value to swap in, or to add.
        swap_add: 0x00 u64,
        /// Value to compare with.
        compare: 0x08 u64,
        /// Bits that are swapped.
        swap_add_mask: 0x10 u64,
        /// Bits that are compared.
        compare_mask: 0x18 u64,
    }

    /// XRC segment.
    pub struct XrcSeg(0x10) {
        /// Number of the target shared receive queue.
        xrc_srqn: 0x00[23:0],
    }

    /// Data pointer segment (PRM "Pointer Data Segment").
    pub struct DataSeg(0x10) {
        /// 0; the bit is set only in an inline segment.
        inline: 0x00[31],
        /// Length in bytes; 0 means 2 GiB, except in a terminator.
        byte_count: 0x00[30:0],
        /// Local key.
        lkey: 0x04 u32,
        /// Address in the memory of `lkey`.
        addr: 0x08 u64,
    }

    /// Header of an inline data segment; the data follows directly (PRM "Inline Data Segment").
    pub struct InlineSeg(0x04) {
        /// Always set; marks the segment as inline.
        inline: 0x00[31],
        /// Number of bytes of data.
        byte_count: 0x00[9:0],
    }

    /// Address vector of a datagram, the transport segment of UD (PRM "UD Address Vector").
    pub struct Av(0x30) {
        /// Q_Key.
        q_key: 0x00 u32,
        /// True if the address vector is complete; drivers always set it.
        ext: 0x08[31],
        /// Number of the destination queue pair.
        dqp: 0x08[23:0],
        /// Static rate code.
        stat_rate: 0x0c[31:28],
        /// InfiniBand: service level. RoCE: priority in bits 3:1.
        sl: 0x0c[27:24],
        /// Force loopback.
        fl: 0x0c[23],
        /// InfiniBand: source path bits.
        mlid: 0x0c[22:16],
        /// InfiniBand: destination LID. RoCE v2: UDP source port.
        rlid: 0x0c[15:0],
        /// RoCE: destination MAC address.
        rmac: 0x14 [u8; 6],
        /// Traffic class.
        tclass: 0x1a u8,
        /// Hop limit.
        hop_limit: 0x1b u8,
        /// True if there is a global routing header.
        grh: 0x1c[30],
        /// Index into the source address table.
        src_addr_index: 0x1c[29:20],
        /// Flow label.
        flow_label: 0x1c[19:0],
        /// Destination GID.
        rgid: 0x20 [u8; 16],
    }

    /// Head of a shared receive queue's WQE: links to the next entry.
    pub struct SrqNextSeg(0x10) {
        /// Index of the next entry in the shared receive queue.
        next_wqe_index: 0x02 u16,
        /// Signature; 0 unless the queue's WQEs carry signatures.
        signature: 0x04 u8,
    }

    /// UMR control segment (PRM "UMR Control Segment").
    pub struct UmrCtrlSeg(0x30) {
        /// Set: the translation entries follow inline.
        inline: 0x00[31],
        /// Check of the key's state: 1 fail unless the key is free, 2 fail if the key is free.
        check_free: 0x00[30:29],
        /// Set: the field after `klm_octwords` is a translation offset.
        translation_offset_en: 0x00[28],
        /// Set: fail unless the key's QP number is that of this queue.
        check_qpn: 0x00[27],
        /// Size of the translation entries that the WQE writes, in 16-byte units.
        klm_octwords: 0x04[31:16],
        /// Translation offset in 16-byte units, or size of the BSF.
        translation_offset: 0x04[15:0],
        /// Bit per field of the memory key context that changes.
        mkey_mask: 0x08 u64,
        /// Bits 47:16 of the translation offset.
        translation_offset_47_16: 0x10 u32,
    }

    /// Entry of an indirect key's translation table.
    pub struct Klm(0x10) {
        /// Length in bytes; 0 if all entries have the same size.
        byte_count: 0x00 u32,
        /// Memory key of the entry.
        mkey: 0x04 u32,
        /// Address in the memory of `mkey`.
        address: 0x08 u64,
    }

    /// Ethernet segment (PRM "Ethernet Segment"). The rest of the inline headers follows the segment.
    pub struct EthSeg(0x10) {
        /// Software parser offsets.
        swp_offsets: 0x00 u32,
        /// Bit per checksum that the device computes: 4 inner L3, 5 inner L4, 6 L3, 7 L4.
        cs_flags: 0x04 u8,
        /// Software parser flags.
        swp_flags: 0x05 u8,
        /// Maximum segment size of large sends.
        mss: 0x06 u16,
        /// Metadata for flow tables.
        metadata: 0x08 u32,
        /// Number of bytes of inline headers.
        inline_hdr_sz: 0x0c u16,
        /// First two bytes of the inline headers.
        inline_hdr_start: 0x0e [u8; 2],
    }
}

impl EthSeg {
    /// Number of inline header bytes in the segment; the other header bytes follow the segment.
    pub const INLINE_BYTES: usize = 2;
}

/// Memory key context segment of a UMR WQE: the context itself.
pub type MkeySeg = super::Mkc;

/// The local key that ends a receive scatter list early, unless the device reports another terminator key.
pub const TERMINATE_SCATTER_LIST_LKEY: u32 = 0x100;

codes! {
    /// Operation of a send WQE.
    pub struct WqeOpcode(u8) {
        /// No operation.
        NOP = 0x00,
        /// Send, and invalidate an rkey at the peer.
        SEND_INVAL = 0x01,
        /// RDMA Write.
        RDMA_WRITE = 0x08,
        /// RDMA Write with immediate data.
        RDMA_WRITE_IMM = 0x09,
        /// Send.
        SEND = 0x0a,
        /// Send with immediate data.
        SEND_IMM = 0x0b,
        /// Large send (Ethernet).
        LSO = 0x0e,
        /// Wait for another queue.
        WAIT = 0x0f,
        /// RDMA Read.
        RDMA_READ = 0x10,
        /// Compare and swap.
        ATOMIC_CS = 0x11,
        /// Fetch and add.
        ATOMIC_FA = 0x12,
        /// Masked compare and swap.
        ATOMIC_MASKED_CS = 0x14,
        /// Masked fetch and add.
        ATOMIC_MASKED_FA = 0x15,
        /// Bind a memory window, obsolete form.
        BIND_MW = 0x18,
        /// Fast memory registration, obsolete form.
        FMR = 0x19,
        /// Invalidate a local key; drivers use UMR.
        LOCAL_INVAL = 0x1b,
        /// Configuration.
        CONFIG_CMD = 0x1f,
        /// Set a signature value.
        SET_PSV = 0x20,
        /// Get a signature value.
        GET_PSV = 0x21,
        /// Check a signature value.
        CHECK_PSV = 0x22,
        /// Dump.
        DUMP = 0x23,
        /// Change a memory key: bind, invalidate, register.
        UMR = 0x25,
        /// RGET signature value.
        RGET_PSV = 0x26,
        /// RCHECK signature value.
        RCHECK_PSV = 0x27,
        /// Changes the list of tag matching.
        TAG_MATCHING = 0x28,
        /// Sends several packets in one WQE (Ethernet).
        ENHANCED_MPSW = 0x29,
        /// Flow table access.
        FLOW_TBL_ACCESS = 0x2c,
        /// Access an ASO object.
        ACCESS_ASO = 0x2d,
        /// Memory to memory operation.
        MMO = 0x2f,
    }
}
