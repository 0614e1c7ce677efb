//! Shared receive queues: the work queue context, the objects that contain one, commands (PRM "Shared Receive
//! Queues").
//!
//! Interface step (ISSI) 1 has three kinds: a receive memory pool (RMP), which is the basic SRQ; an XRC SRQ; and an
//! XRQ, which does tag matching. CREATE_SRQ belongs to interface step 0.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Work queue context (PRM "Work Queue Context"), the common part of RMPs, RQs and SQs.
    pub struct Wq(0xc0) {
        /// Form of the queue: 0 linked list (SRQ), 1 cyclic (RQ/SQ), 2/3 striding variants.
        wq_type: 0x00[31:28],
        /// Set: WQEs carry signatures.
        wq_signature: 0x00[27],
        /// End padding of receive data: 0 none, 1 to a cache line.
        end_padding_mode: 0x00[26:25],
        /// Set: the queue is a slave of cross-channel operations.
        cd_slave: 0x00[24],
        hds_skip_first_sge: 0x04[31],
        log2_hds_buf_size: 0x04[30:28],
        /// Offset in the first page, in units of 1/64 page, for SQ and RQ; otherwise 0.
        page_offset: 0x04[20:16],
        /// Low water mark, which is the SRQ limit.
        lwm: 0x04[15:0],
        pd: 0x08[23:0],
        uar_page: 0x0c[23:0],
        /// Address of the doorbell record.
        dbr_addr: 0x10 u64,
        /// Counter of the device, read only.
        hw_counter: 0x18 u32,
        /// Counter of the software, read only.
        sw_counter: 0x1c u32,
        /// log2 of the size of a WQE in bytes.
        log_wq_stride: 0x20[19:16],
        /// log2 of the page size in bytes, minus 12.
        log_wq_pg_sz: 0x20[12:8],
        /// log2 of the number of entries.
        log_wq_sz: 0x20[4:0],
        /// Set: the doorbell record is in a umem, and `dbr_addr` is not its DMA address.
        dbr_umem_valid: 0x24[31],
        /// Set: the queue is in a umem. 0: the PAS list has the queue's pages.
        wq_umem_valid: 0x24[30],
        log_hairpin_num_packets: 0x24[28:24],
        log_hairpin_data_sz: 0x24[20:16],
        log_wqe_num_of_strides: 0x24[11:8],
        two_byte_shift_en: 0x24[7],
        log_wqe_stride_size: 0x24[2:0],
        dbr_umem_id: 0x28 u32,
        wq_umem_id: 0x2c u32,
        wq_umem_offset: 0x30 u64,
        headers_mkey: 0x38 u32,
        shampo_enable: 0x3c[31],
        log_reservation_size: 0x3c[26:24],
        log_max_num_of_packets_per_reservation: 0x3c[18:16],
        log_headers_entry_size: 0x3c[9:8],
        log_headers_buffer_entry_num: 0x3c[3:0],
    }

    /// Receive memory pool context (PRM "RMP Context").
    pub struct Rmpc(0xf0) {
        /// State: 1 ready, 3 error.
        state: 0x00[23:20],
        /// True if the entries are a ring of WQEs without a next segment.
        basic_cyclic_rcv_wqe: 0x04[31],
        /// The work queue.
        wq: 0x30 Wq,
    }

    /// XRC SRQ context (PRM "XRC SRQ Context").
    pub struct XrcSrqc(0x40) {
        state: 0x00[31:28],
        /// log2 of the number of entries.
        log_xrc_srq_size: 0x00[27:24],
        wq_signature: 0x04[31],
        cont_srq: 0x04[30],
        rlky: 0x04[28],
        basic_cyclic_rcv_wqe: 0x04[27],
        /// log2 of the size of a WQE in bytes, minus 4.
        log_rq_stride: 0x04[26:24],
        xrcd: 0x04[23:0],
        page_offset: 0x08[31:26],
        dbr_umem_valid: 0x08[24],
        /// Number of the CQ for completions of this XRC SRQ.
        cqn: 0x08[23:0],
        user_index_equal_xrc_srqn: 0x10[31],
        log_page_size: 0x10[29:24],
        /// Value that CQEs of version 1 return.
        user_index: 0x10[23:0],
        pd: 0x18[23:0],
        /// Limit at creation.
        lwm: 0x1c[31:16],
        /// Current number of WQEs, read only.
        wqe_cnt: 0x1c[15:0],
        /// Bits 63:32 of the doorbell record's address.
        db_record_addr_h: 0x28 u32,
        /// Bits 31:2 of the doorbell record's address.
        db_record_addr_l: 0x2c[31:2],
    }

    /// SRQ context of interface step 0 (PRM "SRQ Context").
    pub struct Srqc(0x40) {
        state: 0x00[31:28],
        /// log2 of the number of entries.
        log_srq_size: 0x00[27:24],
        wq_signature: 0x04[31],
        cont_srq: 0x04[30],
        rlky: 0x04[28],
        /// log2 of the size of a WQE in bytes, minus 4.
        log_rq_stride: 0x04[26:24],
        xrcd: 0x04[23:0],
        page_offset: 0x08[31:26],
        cqn: 0x08[23:0],
        log_page_size: 0x10[29:24],
        pd: 0x18[23:0],
        /// Limit at creation.
        lwm: 0x1c[31:16],
        /// Current number of WQEs, read only.
        wqe_cnt: 0x1c[15:0],
        /// DMA address of the doorbell record.
        dbr_addr: 0x28 u64,
    }
}

command! {
    /// The page list follows the context.
    CREATE_RMP: CreateRmpIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        ctx: 0x20 Rmpc,
    } -> CreateRmpOut(0x10) {
        rmpn: 0x08[23:0],
    }

    /// Changes an RMP. rmp_state is the current state (1 ready). Bit 0 of dword 0x14 changes the low water mark (SRQ
    /// limit).
    MODIFY_RMP: ModifyRmpIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        rmp_state: 0x08[31:28],
        rmpn: 0x08[23:0],
        /// Set: the command takes the low water mark from the context.
        bitmask_lwm: 0x14[0],
        ctx: 0x20 Rmpc,
    } -> ModifyRmpOut(0x10) {}

    DESTROY_RMP: DestroyRmpIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        rmpn: 0x08[23:0],
    } -> DestroyRmpOut(0x10) {}

    QUERY_RMP: QueryRmpIn(0x10) {
        rmpn: 0x08[23:0],
    } -> QueryRmpOut(0x110) {
        rmp_context: 0x20 Rmpc,
    }

    CREATE_XRC_SRQ: CreateXrcSrqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        xrc_srq_context_entry: 0x10 XrcSrqc,
        xrc_srq_umem_valid: 0x5c[31],
    } -> CreateXrcSrqOut(0x10) {
        xrc_srqn: 0x08[23:0],
    }

    DESTROY_XRC_SRQ: DestroyXrcSrqIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        xrc_srqn: 0x08[23:0],
    } -> DestroyXrcSrqOut(0x10) {}

    QUERY_XRC_SRQ: QueryXrcSrqIn(0x10) {
        xrc_srqn: 0x08[23:0],
    } -> QueryXrcSrqOut(0x110) {
        xrc_srq_context_entry: 0x10 XrcSrqc,
    }

    /// Arms the limit event of an XRC SRQ (op_mod 1); lwm is the limit.
    ARM_XRC_SRQ: ArmXrcSrqIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        xrc_srqn: 0x08[23:0],
        lwm: 0x0c[15:0],
    } -> ArmXrcSrqOut(0x10) {}

    /// Creates an SRQ; interface step (ISSI) 0 only.
    CREATE_SRQ: CreateSrqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        srq_context_entry: 0x10 Srqc,
    } -> CreateSrqOut(0x10) {
        srqn: 0x08[23:0],
    }

    DESTROY_SRQ: DestroySrqIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        srqn: 0x08[23:0],
    } -> DestroySrqOut(0x10) {}

    QUERY_SRQ: QuerySrqIn(0x10) {
        srqn: 0x08[23:0],
    } -> QuerySrqOut(0x110) {
        srq_context_entry: 0x10 Srqc,
    }

    /// Arms the limit event of an SRQ (op_mod 1) or an XRQ (op_mod 2).
    ARM_RQ: ArmRqIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        srq_number: 0x08[23:0],
        lwm: 0x0c[15:0],
    } -> ArmRqOut(0x10) {}
}
