//! Attributes of an IA (`DAT_IA_ATTR`, from the limits of its device) and of the provider (`DAT_PROVIDER_ATTR`).

use crate::provider::{Limits, MAX_SEGMENT_BYTES};
use crate::types::{CompletionFlags, Qos};
use std::net::{IpAddr, Ipv6Addr};

/// Number of entries of a completion queue beyond its EVD's queue length. They hold completions that the provider
/// itself requests: a few per endpoint when successes are suppressed, and one for a graceful disconnect. The consumer
/// does not see these completions, and need not count them when it chooses the length of an EVD.
pub(crate) const HIDDEN: u32 = 16;

/// Attributes of the adapter (`DAT_IA_ATTR`), the same for every program that opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IaAttr {
    /// Name of the adapter, as opened.
    pub adapter_name: String,
    /// Vendor name.
    pub vendor_name: String,
    /// Hardware version: the device ID as major, the revision as minor.
    pub hardware_version: (u32, u32),
    /// Firmware version, major and minor (DAT has no field for the sub-minor).
    pub firmware_version: (u32, u32),
    /// Address of the adapter at GID index 0.
    pub ia_address: IpAddr,
    /// Maximum number of endpoints.
    pub max_eps: u32,
    /// Maximum number of outstanding DTOs per endpoint and direction.
    pub max_dto_per_ep: u32,
    /// Maximum number of outstanding RDMA Reads per endpoint, as target.
    pub max_rdma_read_per_ep_in: u32,
    /// Maximum number of outstanding RDMA Reads per endpoint, as originator.
    pub max_rdma_read_per_ep_out: u32,
    /// Maximum number of EVDs.
    pub max_evds: u32,
    /// Maximum number of events an EVD can hold.
    pub max_evd_qlen: u32,
    /// Maximum number of segments per Send and per Receive.
    pub max_iov_segments_per_dto: u32,
    /// Maximum number of LMRs of a program's own memory: the number of the device's keys, or of its free DMA mappings,
    /// if these are fewer. LMRs of memory that is mapped already need no further mapping. So more LMRs than this number
    /// can exist, up to the number of keys.
    pub max_lmrs: u32,
    /// Maximum length of one LMR, in bytes.
    pub max_lmr_block_size: u64,
    /// Highest address that an LMR may contain.
    pub max_lmr_virtual_address: u64,
    /// Maximum number of protection zones.
    pub max_pzs: u32,
    /// Maximum length of one Send, in bytes.
    pub max_message_size: u64,
    /// Maximum length of one RDMA operation, in bytes.
    pub max_rdma_size: u64,
    /// Maximum number of RMRs.
    pub max_rmrs: u32,
    /// Highest address that an RMR may contain; 0 if there are no RMRs.
    pub max_rmr_target_address: u64,
    /// Maximum number of SRQs.
    pub max_srqs: u32,
    /// Maximum number of endpoints per SRQ.
    pub max_ep_per_srq: u32,
    /// Maximum number of receives per SRQ.
    pub max_recv_per_srq: u32,
    /// Maximum number of segments per RDMA Read.
    pub max_iov_segments_per_rdma_read: u32,
    /// Maximum number of segments per RDMA Write.
    pub max_iov_segments_per_rdma_write: u32,
    /// Maximum number of outstanding RDMA Reads in the whole IA, as target.
    pub max_rdma_read_in: u32,
    /// Maximum number of outstanding RDMA Reads in the whole IA, as originator.
    pub max_rdma_read_out: u32,
    /// True if `max_rdma_read_per_ep_in` is always available.
    pub max_rdma_read_per_ep_in_guaranteed: bool,
    /// True if `max_rdma_read_per_ep_out` is always available.
    pub max_rdma_read_per_ep_out_guaranteed: bool,
    /// Further attributes of the transport, which have no DAT field.
    pub transport_attr: Vec<NamedAttr>,
    /// Further attributes of the vendor's device, which have no DAT field.
    pub vendor_attr: Vec<NamedAttr>,
}

/// An attribute DAT has no field for (`DAT_NAMED_ATTR`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedAttr {
    /// Name of the attribute.
    pub name: &'static str,
    /// Value of the attribute.
    pub value: String,
}

impl NamedAttr {
    pub(crate) fn new(name: &'static str, value: impl ToString) -> Self {
        Self {
            name,
            value: value.to_string(),
        }
    }
}

impl IaAttr {
    pub(crate) fn from_limits(limits: &Limits) -> Self {
        // The length field of a segment has 31 bits, which also limits a message of one segment.
        let max_bytes = limits.max_message_bytes.min(MAX_SEGMENT_BYTES);
        let segments = limits.max_request_segments.min(limits.max_recv_segments);
        Self {
            adapter_name: limits.adapter_name.clone(),
            vendor_name: limits.vendor_name.clone(),
            hardware_version: limits.hardware_version,
            firmware_version: (limits.firmware_version.0, limits.firmware_version.1),
            ia_address: address_of(limits.gid),
            max_eps: limits.max_qps,
            max_dto_per_ep: limits.max_dtos,
            max_rdma_read_per_ep_in: limits.max_reads_in,
            max_rdma_read_per_ep_out: limits.max_reads_out,
            max_evds: limits.max_cqs,
            max_evd_qlen: limits.max_cq_entries.saturating_sub(HIDDEN),
            max_iov_segments_per_dto: segments,
            max_lmrs: limits.max_regions,
            max_lmr_block_size: limits.max_region_bytes,
            max_lmr_virtual_address: u64::MAX,
            max_pzs: limits.max_pds,
            max_message_size: max_bytes,
            max_rdma_size: max_bytes,
            max_rmrs: limits.max_windows,
            max_rmr_target_address: if limits.max_windows == 0 { 0 } else { u64::MAX },
            max_srqs: limits.max_srqs,
            max_ep_per_srq: limits.max_qps,
            max_recv_per_srq: limits.max_srq_recvs,
            max_iov_segments_per_rdma_read: limits.max_read_segments,
            max_iov_segments_per_rdma_write: limits.max_request_segments,
            max_rdma_read_in: limits.max_qps.saturating_mul(limits.max_reads_in),
            max_rdma_read_out: limits.max_qps.saturating_mul(limits.max_reads_out),
            max_rdma_read_per_ep_in_guaranteed: true,
            max_rdma_read_per_ep_out_guaranteed: true,
            transport_attr: vec![
                NamedAttr::new("gid", Ipv6Addr::from(limits.gid)),
                NamedAttr::new("path_mtu", 128_u32 << limits.mtu.min(5)),
            ],
            vendor_attr: vec![
                NamedAttr::new(
                    "device_id",
                    format_args!("{:#06x}", limits.hardware_version.0),
                ),
                NamedAttr::new(
                    "firmware_version",
                    format_args!(
                        "{}.{}.{}",
                        limits.firmware_version.0,
                        limits.firmware_version.1,
                        limits.firmware_version.2
                    ),
                ),
            ],
        }
    }
}

/// Attributes of the provider (`DAT_PROVIDER_ATTR`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderAttr {
    /// Name of the provider.
    pub provider_name: String,
    /// Version of the provider, major and minor.
    pub provider_version: (u32, u32),
    /// Version of DAT, major and minor.
    pub dapl_version: (u32, u32),
    /// Kinds of memory that `lmr_create` takes besides DAT_MEM_TYPE_VIRTUAL (0): DAT_MEM_TYPE_LMR (1) and
    /// DAT_MEM_TYPE_SHARED_VIRTUAL (2).
    pub lmr_mem_types_supported: u32,
    /// DAT_IOV_CONSUMER (0): the I/O vector belongs to the consumer again when a post returns.
    pub iov_ownership_on_return: u32,
    /// Supported qualities of service.
    pub dat_qos_supported: Qos,
    /// Completion flags that a post may carry.
    pub completion_flags_supported: CompletionFlags,
    /// True if several threads may make calls at once. (In Rust, the borrow checker prevents such calls.)
    pub is_thread_safe: bool,
    /// Maximum length of private data in either direction, in bytes. Towards an RDMA CM port the maximum is 56.
    pub max_private_data_size: usize,
    /// True if a connection may have several paths.
    pub supports_multipath: bool,
    /// Creator of a PSP's endpoints: DAT_PSP_CREATES_EP_NEVER (0), IFASKED (1) or ALWAYS (2).
    pub ep_creator: u32,
    /// Support of protection zones: DAT_PZ_UNIQUE (0).
    pub pz_support: u32,
    /// Alignment of buffers for best speed, in bytes.
    pub optimal_buffer_alignment: u32,
    /// Matrix of the event streams that may share an EVD. Order: software, CR, DTO, connection, RMR bind, async.
    pub evd_stream_merging_supported: [[bool; 6]; 6],
    /// True if the provider supports SRQs.
    pub srq_supported: bool,
    /// Supported watermarks, one hex digit each: 0x1 SRQ low, 0x10 EP soft high, 0x100 EP hard high.
    pub srq_watermarks_supported: u32,
    /// True if an endpoint and its SRQ may be in different PZs.
    pub srq_ep_pz_difference_supported: bool,
    /// Supported counters of an SRQ, one hex digit each: 0x1 available, 0x10 outstanding.
    pub srq_info_supported: u32,
    /// Supported counters of an endpoint's receives, one hex digit each.
    pub ep_recv_info_supported: u32,
    /// True if the consumer must make the `lmr_sync` calls.
    pub lmr_sync_req: bool,
    /// True if an event always reports a DTO error, and the return value of the post never does.
    pub dto_async_return_guaranteed: bool,
    /// True if the sink of an RDMA Read needs the remote write privilege.
    pub rdma_write_for_rdma_read_req: bool,
}

/// Maximum length of a consumer's private data, in bytes. DAT requires at least 64.
pub(crate) const MAX_PRIVATE_DATA: usize = 64;
/// Maximum length of private data towards an RDMA CM port, in bytes: the IP header takes 36 of the REQ's 92 bytes
/// (IBTA volume 1, annex A11).
pub(crate) const MAX_PRIVATE_DATA_TO_PORT: usize = 56;

impl ProviderAttr {
    pub(crate) fn of_this_crate() -> Self {
        Self {
            provider_name: "dat-core".into(),
            provider_version: (0, 1),
            dapl_version: (1, 2),
            lmr_mem_types_supported: 3,
            iov_ownership_on_return: 0,
            dat_qos_supported: Qos::all(),
            completion_flags_supported: CompletionFlags::SUPPRESS
                | CompletionFlags::UNSIGNALLED
                | CompletionFlags::SOLICITED_WAIT
                | CompletionFlags::BARRIER_FENCE,
            is_thread_safe: false,
            max_private_data_size: MAX_PRIVATE_DATA,
            supports_multipath: false,
            ep_creator: 1,
            pz_support: 0,
            optimal_buffer_alignment: 64,
            evd_stream_merging_supported: [[true; 6]; 6],
            srq_supported: true,
            srq_watermarks_supported: 0x111,
            srq_ep_pz_difference_supported: true,
            srq_info_supported: 0x11,
            ep_recv_info_supported: 0x11,
            lmr_sync_req: false,
            dto_async_return_guaranteed: false,
            rdma_write_for_rdma_read_req: false,
        }
    }
}

/// Returns the IP address that a GID encodes; `::ffff:a.b.c.d` is IPv4.
pub(crate) fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// Returns the GID that encodes an IP address.
pub(crate) fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
