//! Limits that DAT reports.
//!
//! A consumer may reach all limits at once. So each limit is computed for the case that all others are reached too: the
//! number of requests is the number that a ring holds if every request has the maximum number of segments.

use dat_core::provider::Limits;

use hw_mlx::{Hca, window, wqe};

/// Returns the limits of an opened function; `joined` is true if it takes part in the network.
pub(super) fn limits(hca: &Hca, joined: bool) -> Limits {
    let device = hca.caps().limits();
    // The first unit of a shared queue's receive WQE is the link to the next WQE.
    let recv_segments = device.recv_segments.saturating_sub(1).max(1);
    let request_segments = device.send_segments.clamp(1, wqe::MAX_READ_SEGMENTS);
    // The 16-bit indices address rings of up to 2^15 blocks, which is also the largest ring that the contexts can
    // express.
    let windows = window::supported(hca);
    let blocks =
        (request_segments + 2)
            .div_ceil(4)
            .max(if windows { window::BLOCKS.into() } else { 1 });
    let requests = device.qp_wqes.min(1 << 15) / blocks;
    let own = own(joined);
    let regions = keys(hca, joined);
    Limits {
        adapter_name: hca.name().to_owned(),
        vendor_name: "Mellanox Technologies".to_owned(),
        hardware_version: hca.hardware_version(),
        firmware_version: hca.firmware_version(),
        gid: hca.gids().first().map_or([0; 16], |entry| entry.gid),
        // One queue pair is QP1, and number 0 is never used.
        max_qps: device.qps.saturating_sub(2),
        max_dtos: requests,
        max_reads_in: device.reads_in.min(255),
        max_reads_out: device.reads_out.min(255),
        // Each queue may have one event in the event queue.
        max_cqs: device.cqs.min(hca.completion_events()).saturating_sub(own),
        max_cq_entries: device.cq_entries.saturating_sub(1),
        max_request_segments: request_segments,
        max_read_segments: request_segments,
        max_recv_segments: recv_segments,
        max_regions: regions.min(mappings(hca.function().dma_mappings_left())),
        max_region_bytes: device.region_bytes,
        max_windows: if windows { regions } else { 0 },
        max_window_bytes: device.region_bytes.min(window::MAX_BYTES),
        max_pds: device.pds.saturating_sub(own),
        max_message_bytes: device.message_bytes,
        atomics: hca.caps().atomics(),
        max_srqs: device.srqs,
        max_srq_recvs: device.srq_entries.min(1 << 15).saturating_sub(1),
        mtu: hca.mtu(),
        ack_delay: device.ack_delay,
    }
}

/// Returns the number of keys that the provider has for itself. QP1 has a key, a completion queue and a protection
/// domain, and so has the network's Ethernet port.
pub(super) const fn own(joined: bool) -> u32 {
    if joined { 2 } else { 1 }
}

/// Returns the number of keys that regions and windows can have; `joined` is true if the function takes part in the
/// network.
pub(super) fn keys(hca: &Hca, joined: bool) -> u32 {
    hca.caps().limits().mkeys.saturating_sub(own(joined))
}

/// Returns the number, at least one, of regions in a program's own memory that can exist at once. Each region needs one
/// of the `left` DMA mappings, of which a share is reserved for the arena. A region in the arena, or in memory that is
/// already lent, needs no further mapping. `None` means that the number of mappings is not limited.
fn mappings(left: Option<u32>) -> u32 {
    /// Divisor for the arena's share: one mapping in 64. Of 65,535 mappings the share is 1,023 chunks of 64 MiB.
    const ARENA: u32 = 64;
    left.map_or(u32::MAX, |left| (left - left / ARENA).max(1))
}

#[cfg(test)]
mod tests {
    use super::mappings;

    /// At most as many regions are promised as mappings are left, but at least one. 65,535 is the default
    /// `dma_entry_limit` of Linux `vfio_iommu_type1`; kernels before 5.10 do not report it.
    #[test]
    fn a_program_is_not_promised_more_regions_than_mappings_are_left() {
        assert_eq!(mappings(Some(65_535)), 64_512);
        assert_eq!(mappings(Some(1)), 1);
        assert_eq!(mappings(Some(0)), 1);
        assert_eq!(mappings(None), u32::MAX);
    }
}
