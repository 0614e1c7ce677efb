//! The types of DAT 2.0 that differ from those of DAT 1.2 (headers `dat2/*.h`; LP64).
//!
//! Sizes of segments and messages have 32 bits, triplets begin with the address, an event has space for extensions,
//! and some structures have further fields. All other types are those of [`types`](crate::capi::types).

use core::ffi::{c_char, c_int};
use core::mem::{offset_of, size_of};

use crate::capi::types::{
    CAgent, CAsync, CConnection, CNamedAttr, CRmrCompletion, CSharedMemory, CSoftware, DatBoolean,
    DatContext, DatCount, DatHandle, Layout, structs,
};

structs! {
    CLmrTriplet = "DAT_LMR_TRIPLET", 16 {
        virtual_address @ 0: u64,
        segment_length @ 8: u32,
        lmr_context @ 12: u32,
    }
    CRmrTriplet = "DAT_RMR_TRIPLET", 16 {
        virtual_address @ 0: u64,
        segment_length @ 8: u32,
        rmr_context @ 12: u32,
    }
    CDtoCompletion = "DAT_DTO_COMPLETION_EVENT_DATA", 32 {
        ep_handle @ 0: DatHandle,
        user_cookie @ 8: DatContext,
        status @ 16: u32,
        transfered_length @ 20: u32,
        operation @ 24: u32,
        rmr_context @ 28: u32,
    }
    CCrArrival = "DAT_CR_ARRIVAL_EVENT_DATA", 40 {
        sp_handle @ 0: DatHandle,
        local_ia_address_ptr @ 8: *mut libc::sockaddr,
        conn_qual @ 16: u64,
        cr_handle @ 24: DatHandle,
        truncate_flag @ 32: DatBoolean,
    }
    CEvent = "DAT_EVENT", 120 {
        event_number @ 0: u32,
        evd_handle @ 8: DatHandle,
        event_data @ 16: CEventData,
        event_extension_data @ 56: [u64; 8],
    }
    CComm = "DAT_COMM", 12 {
        domain @ 0: c_int,
        type_ @ 4: c_int,
        protocol @ 8: c_int,
    }
    CEpAttr = "DAT_EP_ATTR", 88 {
        service_type @ 0: u32,
        max_message_size @ 4: u32,
        max_rdma_size @ 8: u32,
        qos @ 12: u32,
        recv_completion_flags @ 16: u32,
        request_completion_flags @ 20: u32,
        max_recv_dtos @ 24: DatCount,
        max_request_dtos @ 28: DatCount,
        max_recv_iov @ 32: DatCount,
        max_request_iov @ 36: DatCount,
        max_rdma_read_in @ 40: DatCount,
        max_rdma_read_out @ 44: DatCount,
        srq_soft_hw @ 48: DatCount,
        max_rdma_read_iov @ 52: DatCount,
        max_rdma_write_iov @ 56: DatCount,
        ep_transport_specific_count @ 60: DatCount,
        ep_transport_specific @ 64: *mut CNamedAttr,
        ep_provider_specific_count @ 72: DatCount,
        ep_provider_specific @ 80: *mut CNamedAttr,
    }
    CEpParam = "DAT_EP_PARAM", 184 {
        ia_handle @ 0: DatHandle,
        ep_state @ 8: u32,
        comm @ 12: CComm,
        local_ia_address_ptr @ 24: *mut libc::sockaddr,
        local_port_qual @ 32: u64,
        remote_ia_address_ptr @ 40: *mut libc::sockaddr,
        remote_port_qual @ 48: u64,
        pz_handle @ 56: DatHandle,
        recv_evd_handle @ 64: DatHandle,
        request_evd_handle @ 72: DatHandle,
        connect_evd_handle @ 80: DatHandle,
        srq_handle @ 88: DatHandle,
        ep_attr @ 96: CEpAttr,
    }
    CIaAttr = "DAT_IA_ATTR", 688 {
        adapter_name @ 0: [c_char; 256],
        vendor_name @ 256: [c_char; 256],
        hardware_version_major @ 512: u32,
        hardware_version_minor @ 516: u32,
        firmware_version_major @ 520: u32,
        firmware_version_minor @ 524: u32,
        ia_address_ptr @ 528: *mut libc::sockaddr,
        max_eps @ 536: DatCount,
        max_dto_per_ep @ 540: DatCount,
        max_rdma_read_per_ep_in @ 544: DatCount,
        max_rdma_read_per_ep_out @ 548: DatCount,
        max_evds @ 552: DatCount,
        max_evd_qlen @ 556: DatCount,
        max_iov_segments_per_dto @ 560: DatCount,
        max_lmrs @ 564: DatCount,
        max_lmr_block_size @ 568: u32,
        max_lmr_virtual_address @ 576: u64,
        max_pzs @ 584: DatCount,
        max_message_size @ 588: u32,
        max_rdma_size @ 592: u32,
        max_rmrs @ 596: DatCount,
        max_rmr_target_address @ 600: u64,
        max_srqs @ 608: DatCount,
        max_ep_per_srq @ 612: DatCount,
        max_recv_per_srq @ 616: DatCount,
        max_iov_segments_per_rdma_read @ 620: DatCount,
        max_iov_segments_per_rdma_write @ 624: DatCount,
        max_rdma_read_in @ 628: DatCount,
        max_rdma_read_out @ 632: DatCount,
        max_rdma_read_per_ep_in_guaranteed @ 636: DatBoolean,
        max_rdma_read_per_ep_out_guaranteed @ 640: DatBoolean,
        zb_supported @ 644: DatBoolean,
        extension_supported @ 648: u32,
        extension_version @ 652: DatCount,
        num_transport_attr @ 656: DatCount,
        transport_attr @ 664: *const CNamedAttr,
        num_vendor_attr @ 672: DatCount,
        vendor_attr @ 680: *const CNamedAttr,
    }
    CProviderAttr = "DAT_PROVIDER_ATTR", 520 {
        provider_name @ 0: [c_char; 256],
        provider_version_major @ 256: u32,
        provider_version_minor @ 260: u32,
        dapl_version_major @ 264: u32,
        dapl_version_minor @ 268: u32,
        lmr_mem_types_supported @ 272: u32,
        iov_ownership_on_return @ 276: u32,
        dat_qos_supported @ 280: u32,
        completion_flags_supported @ 284: u32,
        is_thread_safe @ 288: DatBoolean,
        max_private_data_size @ 292: DatCount,
        supports_multipath @ 296: DatBoolean,
        ep_creator @ 300: u32,
        pz_support @ 304: u32,
        optimal_buffer_alignment @ 308: u32,
        evd_stream_merging_supported @ 312: [[DatBoolean; 6]; 6],
        srq_supported @ 456: DatBoolean,
        srq_watermarks_supported @ 460: DatCount,
        srq_ep_pz_difference_supported @ 464: DatBoolean,
        srq_info_supported @ 468: DatCount,
        ep_recv_info_supported @ 472: DatCount,
        lmr_sync_req @ 476: DatBoolean,
        dto_async_return_guaranteed @ 480: DatBoolean,
        rdma_write_for_rdma_read_req @ 484: DatBoolean,
        rdma_read_lmr_rmr_context_exposure @ 488: DatBoolean,
        rmr_scope_supported @ 492: u32,
        is_signal_safe @ 496: DatBoolean,
        ha_supported @ 500: DatBoolean,
        ha_loadbalancing @ 504: u32,
        num_provider_specific_attr @ 508: DatCount,
        provider_specific_attr @ 512: *const CNamedAttr,
    }
    CCnoParam = "DAT_CNO_PARAM", 32 {
        ia_handle @ 0: DatHandle,
        proxy_type @ 8: u32,
        proxy @ 16: CAgent,
    }
    CRmrParam = "DAT_RMR_PARAM", 48 {
        ia_handle @ 0: DatHandle,
        pz_handle @ 8: DatHandle,
        lmr_triplet @ 16: CLmrTriplet,
        mem_priv @ 32: u32,
        rmr_context @ 36: u32,
        rmr_scope @ 40: u32,
        va_type @ 44: u32,
    }
    CLmrParam = "DAT_LMR_PARAM", 80 {
        ia_handle @ 0: DatHandle,
        mem_type @ 8: u32,
        region_desc @ 16: CSharedMemory,
        length @ 32: u64,
        pz_handle @ 40: DatHandle,
        mem_priv @ 48: u32,
        va_type @ 52: u32,
        lmr_context @ 56: u32,
        rmr_context @ 60: u32,
        registered_size @ 64: u64,
        registered_address @ 72: u64,
    }
}

/// `DAT_EVENT_DATA`, a union. The event's number says which member is valid.
#[derive(Clone, Copy)]
#[repr(C)]
pub union CEventData {
    /// `DAT_DTO_COMPLETION_EVENT`.
    pub dto_completion_event_data: CDtoCompletion,
    /// `DAT_RMR_BIND_COMPLETION_EVENT`.
    pub rmr_completion_event_data: CRmrCompletion,
    /// `DAT_CONNECTION_REQUEST_EVENT`.
    pub cr_arrival_event_data: CCrArrival,
    /// `DAT_CONNECTION_EVENT_...`.
    pub connect_event_data: CConnection,
    /// `DAT_ASYNC_ERROR_...`.
    pub asynch_error_event_data: CAsync,
    /// `DAT_SOFTWARE_EVENT`.
    pub software_event_data: CSoftware,
}
const _: () = assert!(size_of::<CEventData>() == 40);

/// `DAT_VA_TYPE_VA`: addresses in a region are the program's virtual addresses.
pub const VA: u32 = 0;
/// `DAT_RMR_SCOPE_PZ`: an RMR is usable through every endpoint of its PZ.
pub const SCOPE_PZ: u32 = 1;
/// `DAT_PROXY_TYPE`.
pub mod proxy {
    /// The CNO has no proxy agent.
    pub const NONE: u32 = 0;
    /// The CNO's proxy agent is a function.
    pub const AGENT: u32 = 1;
}
