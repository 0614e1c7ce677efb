//! The limits DAT reports.
//!
//! A consumer may ask for all of them at once, so each is taken under the assumption that the others are
//! used up too: as many requests as there are rings for if every one of them has the most segments.

use dat_core::provider::Limits;

use crate::bringup::completion_events;
use crate::device::Hca;
use crate::{window, wqe};

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
        max_cqs: device
            .cqs
            .min(completion_events(hca.caps()))
            .saturating_sub(1),
        max_cq_entries: device.cq_entries.saturating_sub(1),
        max_request_segments: request_segments,
        max_read_segments: request_segments,
        max_recv_segments: recv_segments,
        max_regions: device.mkeys.saturating_sub(1),
        max_region_bytes: device.region_bytes,
        max_windows: if windows {
            device.mkeys.saturating_sub(1)
        } else {
            0
        },
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
