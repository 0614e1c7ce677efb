//! Commands for global resources: doorbell pages, protection domains, transport domains, XRC domains,
//! counter sets, special contexts (PRM "Resource Management Commands").

use super::command::command;
use super::{CmdStatus, Opcode};

command! {
    /// Allocates a doorbell page, which is at BAR0 + uar·4096.
    ALLOC_UAR: AllocUarIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
    } -> AllocUarOut(0x10) {
        uar: 0x08[23:0],
    }

    DEALLOC_UAR: DeallocUarIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        uar: 0x08[23:0],
    } -> DeallocUarOut(0x10) {}

    ALLOC_PD: AllocPdIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
    } -> AllocPdOut(0x10) {
        pd: 0x08[23:0],
    }

    DEALLOC_PD: DeallocPdIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        pd: 0x08[23:0],
    } -> DeallocPdOut(0x10) {}

    ALLOC_TRANSPORT_DOMAIN: AllocTransportDomainIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
    } -> AllocTransportDomainOut(0x10) {
        transport_domain: 0x08[23:0],
    }

    DEALLOC_TRANSPORT_DOMAIN: DeallocTransportDomainIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        transport_domain: 0x08[23:0],
    } -> DeallocTransportDomainOut(0x10) {}

    ALLOC_XRCD: AllocXrcdIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
    } -> AllocXrcdOut(0x10) {
        xrcd: 0x08[23:0],
    }

    DEALLOC_XRCD: DeallocXrcdIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        xrcd: 0x08[23:0],
    } -> DeallocXrcdOut(0x10) {}

    ALLOC_Q_COUNTER: AllocQCounterIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
    } -> AllocQCounterOut(0x10) {
        counter_set_id: 0x08[7:0],
    }

    DEALLOC_Q_COUNTER: DeallocQCounterIn(0x10) {
        counter_set_id: 0x08[7:0],
    } -> DeallocQCounterOut(0x10) {}

    QUERY_Q_COUNTER: QueryQCounterIn(0x20) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        /// Set: the device resets the counters after reading.
        clear: 0x18[31],
        aggregate: 0x18[30],
        counter_set_id: 0x1c[7:0],
    } -> QueryQCounterOut(0x100) {
        rx_write_requests: 0x10 u32,
        rx_read_requests: 0x18 u32,
        rx_atomic_requests: 0x20 u32,
        rx_dct_connect: 0x28 u32,
        out_of_buffer: 0x30 u32,
        out_of_sequence: 0x38 u32,
        duplicate_request: 0x40 u32,
        rnr_nak_retry_err: 0x48 u32,
        packet_seq_err: 0x50 u32,
        implied_nak_seq_err: 0x58 u32,
        local_ack_timeout_err: 0x60 u32,
        req_rnr_retries_exceeded: 0x70 u32,
        resp_local_length_error: 0x78 u32,
        req_local_length_error: 0x7c u32,
        resp_local_qp_error: 0x80 u32,
        local_operation_error: 0x84 u32,
        resp_local_protection: 0x88 u32,
        req_local_protection: 0x8c u32,
        resp_cqe_error: 0x90 u32,
        req_cqe_error: 0x94 u32,
        req_mw_binding: 0x98 u32,
        req_bad_response: 0x9c u32,
        req_remote_invalid_request: 0xa0 u32,
        resp_remote_invalid_request: 0xa4 u32,
        req_remote_access_errors: 0xa8 u32,
        resp_remote_access_errors: 0xac u32,
        req_remote_operation_errors: 0xb0 u32,
        req_transport_retries_exceeded: 0xb4 u32,
        cq_overflow: 0xb8 u32,
        resp_cqe_flush_error: 0xbc u32,
        req_cqe_flush_error: 0xc0 u32,
        roce_adp_retrans: 0xc8 u32,
        roce_adp_retrans_to: 0xcc u32,
        roce_slow_restart: 0xd0 u32,
        roce_slow_restart_cnps: 0xd4 u32,
        roce_slow_restart_trans: 0xd8 u32,
    }

    QUERY_SPECIAL_CONTEXTS: QuerySpecialContextsIn(0x10) {} -> QuerySpecialContextsOut(0x20) {
        /// Key for dump and fill; valid if capability `dump_fill_mkey` is set.
        dump_fill_mkey: 0x08 u32,
        /// Reserved lkey: its addresses are plain DMA addresses. Only queues with `rlky` set can use it.
        resd_lkey: 0x0c u32,
        /// Key without access, for gaps in indirect keys. Valid if capability `null_mkey` is set.
        null_mkey: 0x10 u32,
        /// Key that ends a scatter list. Valid if the capability of the same name is set; otherwise drivers use 0x100.
        terminate_scatter_list_mkey: 0x14 u32,
        repeated_mkey: 0x18 u32,
    }
}
