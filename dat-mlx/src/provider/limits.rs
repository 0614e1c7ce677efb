//! The limits DAT reports.
//!
//! A consumer may ask for all of them at once, so each is taken under the assumption that the others are
//! used up too: as many requests as there are rings for if every one of them has the most segments.

use dat_core::provider::Limits;

use hw_mlx::{Hca, window, wqe};

/// The limits of an opened function.
pub(super) fn limits(hca: &Hca) -> Limits {
    let device = hca.caps().limits();
    // A receive of a shared queue has its link in the first unit.
    let recv_segments = device.recv_segments.saturating_sub(1).max(1);
    let request_segments = device.send_segments.clamp(1, wqe::MAX_READ_SEGMENTS);
    // The largest ring the 16-bit indices address is 2^15, and so is the largest the contexts can say.
    let windows = window::supported(hca);
    let blocks =
        (request_segments + 2)
            .div_ceil(4)
            .max(if windows { window::BLOCKS.into() } else { 1 });
    let requests = device.qp_wqes.min(1 << 15) / blocks;
    let regions = device.mkeys.saturating_sub(1);
    Limits {
        adapter_name: hca.name().to_owned(),
        vendor_name: "Mellanox Technologies".to_owned(),
        hardware_version: hca.hardware_version(),
        firmware_version: hca.firmware_version(),
        gid: hca.gids().first().map_or([0; 16], |entry| entry.gid),
        // QP1 is one of them, and number 0 is nobody's.
        max_qps: device.qps.saturating_sub(2),
        max_dtos: requests,
        max_reads_in: device.reads_in.min(255),
        max_reads_out: device.reads_out.min(255),
        // One is QP1's, and each may have an event waiting.
        max_cqs: device.cqs.min(hca.completion_events()).saturating_sub(1),
        max_cq_entries: device.cq_entries.saturating_sub(1),
        max_request_segments: request_segments,
        max_read_segments: request_segments,
        max_recv_segments: recv_segments,
        max_regions: regions.min(mappings(hca.function().dma_mappings_left())),
        max_region_bytes: device.region_bytes,
        max_windows: if windows { regions } else { 0 },
        max_window_bytes: device.region_bytes.min(window::MAX_BYTES),
        max_pds: device.pds.saturating_sub(1),
        max_message_bytes: device.message_bytes,
        atomics: hca.caps().atomics(),
        max_srqs: device.srqs,
        max_srq_recvs: device.srq_entries.min(1 << 15).saturating_sub(1),
        mtu: hca.mtu(),
        ack_delay: device.ack_delay,
    }
}

/// Regions of a program's own memory that can be had at once wherever each lies: one mapping each, of those that are
/// left, less what the arena may need. (Those of the arena take none, and those in memory that is lent already share
/// its mapping.)
fn mappings(left: Option<u32>) -> u32 {
    /// One in so many is the arena's: of 65,535 that is 64 GiB of chunks.
    const ARENA: u32 = 64;
    left.map_or(u32::MAX, |left| (left - left / ARENA).max(1))
}

#[cfg(test)]
mod tests {
    use super::mappings;

    /// 65,535 is `dma_entry_limit` of Linux `vfio_iommu_type1` by itself; kernels before 5.10 do not say.
    #[test]
    fn a_program_is_not_promised_more_regions_than_mappings_are_left() {
        assert_eq!(mappings(Some(65_535)), 64_512);
        assert_eq!(mappings(Some(1)), 1);
        assert_eq!(mappings(Some(0)), 1);
        assert_eq!(mappings(None), u32::MAX);
    }
}
