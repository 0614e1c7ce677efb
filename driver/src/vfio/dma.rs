//! Capabilities of the IOMMU: addresses, page sizes, number of mappings.
//!
//! `VFIO_IOMMU_GET_INFO` returns a page size mask and a list of capabilities. If a kernel is too old to report the
//! address ranges, those of x86 are assumed: all addresses below 2^39 (the smallest IOMMU) except the first 64 KiB and
//! the window of message signalled interrupts.

use core::mem::offset_of;
use std::ops::RangeInclusive;

use vfio_bindings::bindings::vfio::{
    VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES,
    VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL,
    vfio_iommu_type1_dma_map, vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info,
    vfio_iommu_type1_info_cap_iova_range, vfio_iommu_type1_info_dma_avail, vfio_iova_range,
};

use super::region::{capabilities, pairs};
use super::sys::Message;

/// Address ranges assumed if the kernel reports none: without pages 0 to 15 and the window of interrupt messages.
const DEFAULT_RANGES: [RangeInclusive<u64>; 2] =
    [0x1_0000..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1];

/// Capabilities of the IOMMU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Iommu {
    pub(crate) ranges: Vec<RangeInclusive<u64>>,
    /// Bytes of the smallest page.
    pub(crate) page_bytes: u64,
    /// Number of mappings that can still be made, if the kernel reports it.
    pub(crate) available: Option<u32>,
}

impl Iommu {
    /// Parses an answer to `VFIO_IOMMU_GET_INFO`.
    pub(crate) fn parse(message: &Message) -> Result<Self, String> {
        let flags: u32 = message.field(offset_of!(vfio_iommu_type1_info, flags));
        let sizes: u64 = message.field(offset_of!(vfio_iommu_type1_info, iova_pgsizes));
        let page_bytes = if flags & VFIO_IOMMU_INFO_PGSIZES != 0 && sizes != 0 {
            1 << sizes.trailing_zeros()
        } else {
            4096
        };
        let mut iommu = Self {
            ranges: DEFAULT_RANGES.to_vec(),
            page_bytes,
            available: None,
        };
        if flags & VFIO_IOMMU_INFO_CAPS == 0 {
            return Ok(iommu);
        }
        let first: u32 = message.field(offset_of!(vfio_iommu_type1_info, cap_offset));
        for capability in capabilities(message, size_of::<vfio_iommu_type1_info>(), first)? {
            match u32::from(capability.id) {
                VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => {
                    const { assert!(size_of::<vfio_iova_range>() == 16) };
                    let count_at =
                        capability.at + offset_of!(vfio_iommu_type1_info_cap_iova_range, nr_iovas);
                    let first_at =
                        capability.at + size_of::<vfio_iommu_type1_info_cap_iova_range>();
                    iommu.ranges = whole_pages(&pairs(message, count_at, first_at)?, page_bytes);
                    if iommu.ranges.is_empty() {
                        return Err("the IOMMU translates no address at all".to_owned());
                    }
                }
                VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL => {
                    iommu.available = message
                        .get(capability.at + offset_of!(vfio_iommu_type1_info_dma_avail, avail));
                }
                _ => {}
            }
        }
        Ok(iommu)
    }
}

impl Iommu {
    /// Returns the first and last address of each range as text.
    pub(crate) fn ranges_in_words(&self) -> String {
        let words =
            |range: &RangeInclusive<u64>| format!("{:#x}-{:#x}", range.start(), range.end());
        let all: Vec<String> = self.ranges.iter().map(words).collect();
        all.join(" and ")
    }
}

/// Shrinks the ranges to whole pages. A range without a whole page is dropped.
fn whole_pages(ranges: &[(u64, u64)], page: u64) -> Vec<RangeInclusive<u64>> {
    ranges
        .iter()
        .filter_map(|&(first, last)| {
            let start = first.checked_next_multiple_of(page)?;
            // If the range ends at 2^64 - 1, the address after it does not exist.
            let end = match last.checked_add(1) {
                Some(end) => (end & !(page - 1)).checked_sub(1)?,
                None => last,
            };
            (start < end).then_some(start..=end)
        })
        .collect()
}

/// Makes a request that lets the device read and write `bytes` bytes at `address` through the I/O address `iova`.
pub(super) fn map_message(address: u64, iova: u64, bytes: u64) -> Message {
    let mut message = Message::new(size_of::<vfio_iommu_type1_dma_map>());
    message.put(
        offset_of!(vfio_iommu_type1_dma_map, flags),
        VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
    );
    message.put(offset_of!(vfio_iommu_type1_dma_map, vaddr), address);
    message.put(offset_of!(vfio_iommu_type1_dma_map, iova), iova);
    message.put(offset_of!(vfio_iommu_type1_dma_map, size), bytes);
    message
}

/// Makes a request that unmaps `bytes` bytes at `iova`.
pub(super) fn unmap_message(iova: u64, bytes: u64) -> Message {
    let mut message = Message::new(size_of::<vfio_iommu_type1_dma_unmap>());
    message.put(offset_of!(vfio_iommu_type1_dma_unmap, iova), iova);
    message.put(offset_of!(vfio_iommu_type1_dma_unmap, size), bytes);
    message
}

/// Returns the number of bytes that the kernel reports as unmapped.
pub(super) fn unmapped_bytes(message: &Message) -> u64 {
    message.field(offset_of!(vfio_iommu_type1_dma_unmap, size))
}
