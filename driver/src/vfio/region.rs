//! Regions: location of BARs and configuration space in the device's file, and their mappable parts.
//!
//! `VFIO_DEVICE_GET_REGION_INFO` returns a fixed part and a chain of capabilities. The kernel first reports the number
//! of bytes that it needs, and the request is repeated with a buffer of that size. The chain is followed towards higher
//! offsets only, so that it ends, and every length is checked against the bytes received.

use core::mem::offset_of;

use vfio_bindings::bindings::vfio::{
    VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS, VFIO_REGION_INFO_FLAG_MMAP,
    vfio_info_cap_header, vfio_region_info, vfio_region_info_cap_sparse_mmap,
    vfio_region_sparse_mmap_area,
};

use super::sys::Message;
use crate::mapping::Area;
use crate::page::page_bytes;

/// Longest accepted answer in bytes; no kernel sends as much.
pub(super) const LONGEST_ANSWER: usize = 64 << 10;

/// A region of the device's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    pub(crate) index: u32,
    /// Offset of the region in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Mappable parts in whole pages, sorted by offset, without overlap.
    pub(crate) areas: Vec<Area>,
}

impl Region {
    /// Parses an answer to `VFIO_DEVICE_GET_REGION_INFO`.
    pub(crate) fn parse(message: &Message) -> Result<Self, String> {
        let flags: u32 = message.field(offset_of!(vfio_region_info, flags));
        let offset: u64 = message.field(offset_of!(vfio_region_info, offset));
        let bytes: u64 = message.field(offset_of!(vfio_region_info, size));
        if offset
            .checked_add(bytes)
            .is_none_or(|end| i64::try_from(end).is_err())
        {
            return Err(format!(
                "a region of {bytes:#x} bytes at {offset:#x} ends beyond any file"
            ));
        }
        let mut region = Self {
            index: message.field(offset_of!(vfio_region_info, index)),
            offset,
            bytes,
            areas: Vec::new(),
        };
        if flags & VFIO_REGION_INFO_FLAG_MMAP == 0 || bytes == 0 {
            return Ok(region);
        }
        let first: u32 = message.field(offset_of!(vfio_region_info, cap_offset));
        let chain = if flags & VFIO_REGION_INFO_FLAG_CAPS == 0 {
            Vec::new()
        } else {
            capabilities(message, size_of::<vfio_region_info>(), first)?
        };
        let page = page_bytes() as u64;
        let sparse = chain
            .iter()
            .find(|capability| u32::from(capability.id) == VFIO_REGION_INFO_CAP_SPARSE_MMAP);
        // A region without sparse areas is mapped in whole pages, even if its BAR ends inside the last page.
        let wanted = match sparse {
            Some(capability) => sparse_areas(message, capability.at, bytes)?
                .into_iter()
                .map(|(start, end)| (start.next_multiple_of(page), end & !(page - 1)))
                .filter(|(start, end)| start < end)
                .collect(),
            None => vec![(0, bytes.next_multiple_of(page))],
        };
        for (start, end) in joined(wanted) {
            let fits = |value: u64| {
                usize::try_from(value).map_err(|_| format!("{value:#x} does not fit a usize"))
            };
            region.areas.push(Area {
                at: fits(start)?,
                bytes: fits(end - start)?,
                file_offset: offset + start,
            });
        }
        Ok(region)
    }

    /// Returns whether all these bytes are in one mapped area.
    pub(crate) fn is_mapped(&self, offset: usize, bytes: usize) -> bool {
        self.areas.iter().any(|area| {
            offset >= area.at && bytes <= area.bytes && offset - area.at <= area.bytes - bytes
        })
    }
}

/// A capability in an answer: its ID and its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Capability {
    pub(super) id: u16,
    pub(super) at: usize,
}

/// Returns the capabilities of the chain that starts at offset `first`. All must be after the fixed part of `fixed`
/// bytes.
pub(super) fn capabilities(
    message: &Message,
    fixed: usize,
    first: u32,
) -> Result<Vec<Capability>, String> {
    let mut found = Vec::new();
    let mut least = fixed;
    let mut next = first;
    while next != 0 {
        let at = next as usize;
        let header = (
            message.get::<u16>(at + offset_of!(vfio_info_cap_header, id)),
            message.get::<u32>(at + offset_of!(vfio_info_cap_header, next)),
        );
        let (Some(id), Some(following)) = header else {
            return Err(format!(
                "a capability at {at:#x} of an answer of {:#x} bytes",
                message.bytes().len()
            ));
        };
        if at < least {
            return Err(format!("a capability at {at:#x}, before {least:#x}"));
        }
        found.push(Capability { id, at });
        least = at + size_of::<vfio_info_cap_header>();
        next = following;
    }
    Ok(found)
}

/// Reads the pairs of 64-bit numbers that follow a capability's count. Sparse areas and IOVA ranges have this form.
pub(super) fn pairs(
    message: &Message,
    count_at: usize,
    first_at: usize,
) -> Result<Vec<(u64, u64)>, String> {
    let received = message.bytes().len();
    let short = |count: u32| {
        format!("a capability with {count} pairs at {first_at:#x} of {received:#x} bytes")
    };
    let count: u32 = message.get(count_at).ok_or_else(|| short(0))?;
    if count as usize > received / 16 {
        return Err(short(count));
    }
    (0..count as usize)
        .map(|number| {
            let at = first_at + 16 * number;
            Some((message.get(at)?, message.get(at + 8)?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| short(count))
}

/// Returns the start and end of each area. An area outside the region is an error.
fn sparse_areas(
    message: &Message,
    at: usize,
    region_bytes: u64,
) -> Result<Vec<(u64, u64)>, String> {
    const { assert!(size_of::<vfio_region_sparse_mmap_area>() == 16) };
    let count_at = at + offset_of!(vfio_region_info_cap_sparse_mmap, nr_areas);
    let first_at = at + size_of::<vfio_region_info_cap_sparse_mmap>();
    pairs(message, count_at, first_at)?
        .into_iter()
        .map(|(offset, bytes)| {
            offset
                .checked_add(bytes)
                .filter(|&end| end <= region_bytes)
                .map(|end| (offset, end))
                .ok_or_else(|| {
                    format!("a mappable area of {bytes:#x} bytes at {offset:#x} in a region of {region_bytes:#x}")
                })
        })
        .collect()
}

/// Sorts areas, and merges those that overlap or touch.
fn joined(mut areas: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    areas.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (start, end) in areas {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            Some(_) | None => out.push((start, end)),
        }
    }
    out
}
