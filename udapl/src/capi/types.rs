//! The types of `dat/udat.h` in Rust (DAT 1.2 headers; LP64).
//!
//! Enumerations that a caller passes are plain integers here. A C program may pass any value, and an invalid value of a
//! Rust `enum` would be undefined behaviour before the library could check it. Offsets and sizes are asserted next to
//! the fields, and `udapl/tests/dat/capi_layout.rs` compares them with a C compiler's view of the header.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

/// `DAT_RETURN`: 0, or class, type and subtype.
pub type DatReturn = u32;
/// `DAT_HANDLE` and its typed names. The library only looks the value up, and never dereferences it.
pub type DatHandle = *mut c_void;
/// `DAT_COUNT`.
pub type DatCount = c_int;
/// `DAT_BOOLEAN`: 0 is false.
pub type DatBoolean = u32;
/// `DAT_CONTEXT`, `DAT_DTO_COOKIE`, `DAT_RMR_COOKIE`: a union of eight bytes, passed like an integer.
pub type DatContext = u64;
/// `DAT_AGENT_FUNC`.
pub type DatAgentFunc = Option<unsafe extern "C" fn(*mut c_void, DatHandle)>;

/// Layout of one structure: its C name, size, and the name and offset of each field.
pub type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

macro_rules! structs {
    ($($(#[$meta:meta])* $name:ident = $c:literal, $size:literal { $($field:ident @ $at:literal: $ty:ty,)* })*) => {
        $(
            #[doc = concat!("`", $c, "`.")]
            $(#[$meta])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub struct $name {
                $(#[doc = concat!("`", stringify!($field), "`, byte ", stringify!($at), ".")] pub $field: $ty,)*
            }
            const _: () = assert!(size_of::<$name>() == $size);
            $(const _: () = assert!(offset_of!($name, $field) == $at);)*
        )*

        /// Layouts that a test compares with the header as a C compiler sees it.
        pub const LAYOUTS: &[Layout] = &[
            $(($c, $size, &[$((stringify!($field), $at)),*]),)*
        ];
    };
}

pub(super) use structs;

structs! {
    CNamedAttr = "DAT_NAMED_ATTR", 16 {
        name @ 0: *const c_char,
        value @ 8: *const c_char,
    }
    CLmrTriplet = "DAT_LMR_TRIPLET", 24 {
        lmr_context @ 0: u32,
        pad @ 4: u32,
        virtual_address @ 8: u64,
        segment_length @ 16: u64,
    }
    CRmrTriplet = "DAT_RMR_TRIPLET", 24 {
        rmr_context @ 0: u32,
        pad @ 4: u32,
        target_address @ 8: u64,
        segment_length @ 16: u64,
    }
    CPost = "DAT_POST", 56 {
        operation @ 0: u32,
        num_segments @ 4: DatCount,
        local_iov @ 8: *const dat_core::LmrTriplet,
        user_cookie @ 16: DatContext,
        remote_buffer @ 24: *const dat_core::RmrTriplet,
        completion_flags @ 32: u32,
        value @ 36: u32,
        operand @ 40: u64,
        swap @ 48: u64,
    }
    CNamedFd = "DAT_NAMED_FD", 16 {
        name @ 0: *const c_char,
        fd @ 8: c_int,
    }
    CDtoDetail = "DAT_DTO_DETAIL", 8 {
        kind @ 0: u32,
        value @ 4: u32,
    }
    CCounter = "DAT_COUNTER", 16 {
        name @ 0: *const c_char,
        value @ 8: u64,
    }
    CProviderInfo = "DAT_PROVIDER_INFO", 268 {
        ia_name @ 0: [c_char; 256],
        dapl_version_major @ 256: u32,
        dapl_version_minor @ 260: u32,
        is_thread_safe @ 264: DatBoolean,
    }
    CAgent = "DAT_OS_WAIT_PROXY_AGENT", 16 {
        instance_data @ 0: *mut c_void,
        proxy_agent_func @ 8: DatAgentFunc,
    }
    CDtoCompletion = "DAT_DTO_COMPLETION_EVENT_DATA", 32 {
        ep_handle @ 0: DatHandle,
        user_cookie @ 8: DatContext,
        status @ 16: u32,
        transfered_length @ 24: u64,
    }
    CRmrCompletion = "DAT_RMR_BIND_COMPLETION_EVENT_DATA", 24 {
        rmr_handle @ 0: DatHandle,
        user_cookie @ 8: DatContext,
        status @ 16: u32,
    }
    CCrArrival = "DAT_CR_ARRIVAL_EVENT_DATA", 32 {
        sp_handle @ 0: DatHandle,
        local_ia_address_ptr @ 8: *mut libc::sockaddr,
        conn_qual @ 16: u64,
        cr_handle @ 24: DatHandle,
    }
    CConnection = "DAT_CONNECTION_EVENT_DATA", 24 {
        ep_handle @ 0: DatHandle,
        private_data_size @ 8: DatCount,
        private_data @ 16: *const c_void,
    }
    CAsync = "DAT_ASYNCH_ERROR_EVENT_DATA", 16 {
        dat_handle @ 0: DatHandle,
        reason @ 8: DatCount,
    }
    CSoftware = "DAT_SOFTWARE_EVENT_DATA", 8 {
        pointer @ 0: *mut c_void,
    }
    CEvent = "DAT_EVENT", 48 {
        event_number @ 0: u32,
        evd_handle @ 8: DatHandle,
        event_data @ 16: CEventData,
    }
    CEpAttr = "DAT_EP_ATTR", 104 {
        service_type @ 0: u32,
        max_message_size @ 8: u64,
        max_rdma_size @ 16: u64,
        qos @ 24: u32,
        recv_completion_flags @ 28: u32,
        request_completion_flags @ 32: u32,
        max_recv_dtos @ 36: DatCount,
        max_request_dtos @ 40: DatCount,
        max_recv_iov @ 44: DatCount,
        max_request_iov @ 48: DatCount,
        max_rdma_read_in @ 52: DatCount,
        max_rdma_read_out @ 56: DatCount,
        srq_soft_hw @ 60: DatCount,
        max_rdma_read_iov @ 64: DatCount,
        max_rdma_write_iov @ 68: DatCount,
        ep_transport_specific_count @ 72: DatCount,
        ep_transport_specific @ 80: *mut CNamedAttr,
        ep_provider_specific_count @ 88: DatCount,
        ep_provider_specific @ 96: *mut CNamedAttr,
    }
    CEpParam = "DAT_EP_PARAM", 192 {
        ia_handle @ 0: DatHandle,
        ep_state @ 8: u32,
        local_ia_address_ptr @ 16: *mut libc::sockaddr,
        local_port_qual @ 24: u64,
        remote_ia_address_ptr @ 32: *mut libc::sockaddr,
        remote_port_qual @ 40: u64,
        pz_handle @ 48: DatHandle,
        recv_evd_handle @ 56: DatHandle,
        request_evd_handle @ 64: DatHandle,
        connect_evd_handle @ 72: DatHandle,
        srq_handle @ 80: DatHandle,
        ep_attr @ 88: CEpAttr,
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
        max_lmr_block_size @ 568: u64,
        max_lmr_virtual_address @ 576: u64,
        max_pzs @ 584: DatCount,
        max_message_size @ 592: u64,
        max_rdma_size @ 600: u64,
        max_rmrs @ 608: DatCount,
        max_rmr_target_address @ 616: u64,
        max_srqs @ 624: DatCount,
        max_ep_per_srq @ 628: DatCount,
        max_recv_per_srq @ 632: DatCount,
        max_iov_segments_per_rdma_read @ 636: DatCount,
        max_iov_segments_per_rdma_write @ 640: DatCount,
        max_rdma_read_in @ 644: DatCount,
        max_rdma_read_out @ 648: DatCount,
        max_rdma_read_per_ep_in_guaranteed @ 652: DatBoolean,
        max_rdma_read_per_ep_out_guaranteed @ 656: DatBoolean,
        num_transport_attr @ 660: DatCount,
        transport_attr @ 664: *const CNamedAttr,
        num_vendor_attr @ 672: DatCount,
        vendor_attr @ 680: *const CNamedAttr,
    }
    CProviderAttr = "DAT_PROVIDER_ATTR", 504 {
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
        num_provider_specific_attr @ 488: DatCount,
        provider_specific_attr @ 496: *const CNamedAttr,
    }
    CEvdParam = "DAT_EVD_PARAM", 32 {
        ia_handle @ 0: DatHandle,
        evd_qlen @ 8: DatCount,
        evd_state @ 12: u32,
        cno_handle @ 16: DatHandle,
        evd_flags @ 24: u32,
    }
    CCnoParam = "DAT_CNO_PARAM", 24 {
        ia_handle @ 0: DatHandle,
        agent @ 8: CAgent,
    }
    CSrqAttr = "DAT_SRQ_ATTR", 12 {
        max_recv_dtos @ 0: DatCount,
        max_recv_iov @ 4: DatCount,
        low_watermark @ 8: DatCount,
    }
    CSrqParam = "DAT_SRQ_PARAM", 48 {
        ia_handle @ 0: DatHandle,
        srq_state @ 8: u32,
        pz_handle @ 16: DatHandle,
        max_recv_dtos @ 24: DatCount,
        max_recv_iov @ 28: DatCount,
        low_watermark @ 32: DatCount,
        available_dto_count @ 36: DatCount,
        outstanding_dto_count @ 40: DatCount,
    }
    CPzParam = "DAT_PZ_PARAM", 8 {
        ia_handle @ 0: DatHandle,
    }
    CPspParam = "DAT_PSP_PARAM", 32 {
        ia_handle @ 0: DatHandle,
        conn_qual @ 8: u64,
        evd_handle @ 16: DatHandle,
        psp_flags @ 24: u32,
    }
    CRspParam = "DAT_RSP_PARAM", 32 {
        ia_handle @ 0: DatHandle,
        conn_qual @ 8: u64,
        evd_handle @ 16: DatHandle,
        ep_handle @ 24: DatHandle,
    }
    CCrParam = "DAT_CR_PARAM", 40 {
        remote_ia_address_ptr @ 0: *mut libc::sockaddr,
        remote_port_qual @ 8: u64,
        private_data_size @ 16: DatCount,
        private_data @ 24: *const c_void,
        local_ep_handle @ 32: DatHandle,
    }
    CRmrParam = "DAT_RMR_PARAM", 48 {
        ia_handle @ 0: DatHandle,
        pz_handle @ 8: DatHandle,
        lmr_triplet @ 16: CLmrTriplet,
        mem_priv @ 40: u32,
        rmr_context @ 44: u32,
    }
    CSharedMemory = "DAT_SHARED_MEMORY", 16 {
        virtual_address @ 0: *mut c_void,
        shared_memory_id @ 8: *const [u8; 40],
    }
    CLmrParam = "DAT_LMR_PARAM", 80 {
        ia_handle @ 0: DatHandle,
        mem_type @ 8: u32,
        region_desc @ 16: CSharedMemory,
        length @ 32: u64,
        pz_handle @ 40: DatHandle,
        mem_priv @ 48: u32,
        lmr_context @ 52: u32,
        rmr_context @ 56: u32,
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
const _: () = assert!(size_of::<CEventData>() == 32);

/// `DAT_REGION_DESCRIPTION`, a union of 16 bytes passed by value: an address, a handle, or both words of
/// `DAT_SHARED_MEMORY`. A structure of two words is passed in the same registers (System V ABI for x86-64, class
/// INTEGER twice; AAPCS64, composite of 16 bytes).
pub type CRegionDescription = CSharedMemory;

/// Operation numbers of DAT 2.0's `DAT_DTOS`, which the calls for many posts also use. Numbers from 0x100 are our own
/// (`DAT_POST_OPERATION`); DAT 2.0 events report these operations as Sends.
pub mod operation {
    /// A Send.
    pub const SEND: u32 = 0;
    /// An RDMA Write.
    pub const RDMA_WRITE: u32 = 1;
    /// An RDMA Read.
    pub const RDMA_READ: u32 = 2;
    /// A Receive.
    pub const RECEIVE: u32 = 3;
    /// A Receive of a Send that has invalidated an RMR context.
    pub const RECEIVE_WITH_INVALIDATE: u32 = 4;
    /// An RDMA Write with immediate data. This and the following numbers are those of `DAT_IB_DTOS`.
    pub const RDMA_WRITE_IMMED: u32 = 8;
    /// A Receive that an RDMA Write with immediate data consumed.
    pub const RECV_IMMED: u32 = 9;
    /// A fetch-and-add.
    pub const FETCH_ADD: u32 = 10;
    /// A compare-and-swap.
    pub const CMP_SWAP: u32 = 11;
    /// A Receive of a Send with immediate data.
    pub const RECV_MSG_IMMED: u32 = 12;
    /// A Send with immediate data.
    pub const SEND_IMMEDIATE: u32 = 0x100;
    /// A Send that invalidates an RMR context of the peer.
    pub const SEND_INVALIDATE: u32 = 0x101;
}
