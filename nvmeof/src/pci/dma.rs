//! Memory that the simulated SSD reaches, and the lists of pages that describe a command's data.

use std::collections::BTreeMap;
use std::sync::Arc;

use driver::{MessageMemory, SharedMemory};
use zerocopy::little_endian::U64;
use zerocopy::{FromZeros, IntoBytes};

use crate::model::MAX_TRANSFER;
use crate::nvme::Status;

/// Bytes of a memory page: CC.MPS is 0.
pub(super) const PAGE: u64 = 4096;
/// Highest I/O address that can be mapped.
pub(super) const LAST: u64 = (1 << 48) - 1;

/// Returns whether a queue of this many bytes ends at the highest I/O address or below.
pub(super) const fn is_in_range(at: u64, bytes: u64) -> bool {
    at <= LAST && bytes <= LAST - at + 1
}

/// An access that no mapping permits, or that the owner of the memory did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault;

#[derive(Clone)]
enum Bytes {
    /// Memory of this process, from this offset on.
    Here(SharedMemory, usize),
    /// Memory of another process, which is accessed by messages.
    Asked(Arc<dyn MessageMemory>),
}

struct Mapping {
    bytes: u64,
    memory: Bytes,
    is_writable: bool,
}

/// The mappings of a function.
#[derive(Default)]
pub(super) struct Mappings(BTreeMap<u64, Mapping>);

/// A part of an access that lies in one mapping.
pub(super) struct Part {
    memory: Bytes,
    /// Offset of the part in the mapping.
    inside: u64,
    iova: u64,
    /// Number of bytes.
    pub(super) bytes: usize,
}

impl Mappings {
    /// Maps memory of this process.
    pub(super) fn map(
        &mut self,
        iova: u64,
        (memory, offset): (SharedMemory, usize),
        bytes: usize,
        is_writable: bool,
    ) -> Result<(), String> {
        if !memory.contains(offset, bytes) {
            return Err(format!("map {iova:#x}+{bytes:#x}: outside of the memory"));
        }
        self.insert(iova, Bytes::Here(memory, offset), bytes, is_writable)
    }

    /// Maps memory of another process.
    pub(super) fn map_by_message(
        &mut self,
        iova: u64,
        memory: Arc<dyn MessageMemory>,
        bytes: usize,
        is_writable: bool,
    ) -> Result<(), String> {
        self.insert(iova, Bytes::Asked(memory), bytes, is_writable)
    }

    fn insert(
        &mut self,
        iova: u64,
        memory: Bytes,
        bytes: usize,
        is_writable: bool,
    ) -> Result<(), String> {
        let refused = |why| Err(format!("map {iova:#x}+{bytes:#x}: {why}"));
        let bytes = bytes as u64; // CAST: widening.
        if bytes == 0 || !(iova | bytes).is_multiple_of(PAGE) {
            return refused("not whole pages of 4 KiB");
        }
        let last = iova.checked_add(bytes - 1).filter(|last| *last <= LAST);
        let Some(last) = last else {
            return refused("beyond 2^48");
        };
        let before = self.0.range(..=last).next_back();
        if before.is_some_and(|(start, other)| start + other.bytes > iova) {
            return refused("a part is mapped already");
        }
        let mapping = Mapping {
            bytes,
            memory,
            is_writable,
        };
        self.0.insert(iova, mapping);
        Ok(())
    }

    /// Ends exactly one mapping.
    pub(super) fn unmap(&mut self, iova: u64, bytes: usize) -> Result<(), String> {
        // CAST: widening.
        let is_there = self.0.get(&iova).is_some_and(|it| it.bytes == bytes as u64);
        if !is_there {
            return Err(format!("unmap {iova:#x}+{bytes:#x}: no such mapping"));
        }
        self.0.remove(&iova);
        Ok(())
    }

    /// Returns the first part of an access.
    pub(super) fn part(&self, iova: u64, bytes: usize, is_write: bool) -> Result<Part, Fault> {
        let (start, mapping) = self.0.range(..=iova).next_back().ok_or(Fault)?;
        let inside = iova - start;
        if inside >= mapping.bytes || is_write && !mapping.is_writable {
            return Err(Fault);
        }
        let left = usize::try_from(mapping.bytes - inside).unwrap_or(usize::MAX);
        Ok(Part {
            memory: mapping.memory.clone(),
            inside,
            iova,
            bytes: bytes.min(left),
        })
    }
}

impl Part {
    pub(super) fn read(&self, out: &mut [u8]) -> Result<(), Fault> {
        let done = match &self.memory {
            Bytes::Here(memory, offset) => memory.try_read_bytes(self.place(*offset), out),
            Bytes::Asked(memory) => memory.read(self.iova, out),
        };
        done.map_err(|_refused| Fault)
    }

    pub(super) fn write(&self, data: &[u8]) -> Result<(), Fault> {
        let done = match &self.memory {
            Bytes::Here(memory, offset) => memory.try_write_bytes(self.place(*offset), data),
            Bytes::Asked(memory) => memory.write(self.iova, data),
        };
        done.map_err(|_refused| Fault)
    }

    fn place(&self, offset: usize) -> usize {
        // CAST: the offset in a mapping, whose length came from a usize.
        #[expect(clippy::cast_possible_truncation, reason = "below a usize")]
        let inside = self.inside as usize;
        offset + inside
    }
}

/// Returns the pieces of a command's data that PRP entries describe: address and length of each. `read` reads a list.
///
/// # Errors
/// [`Status::PRP_OFFSET`]: the first entry is no multiple of 4, or another one is inside a page.
/// [`Status::DATA_TRANSFER`]: a list cannot be read. [`Status::INVALID_FIELD`]: the data is longer than MDTS allows.
pub(super) fn pieces(
    [first, second]: [u64; 2],
    bytes: usize,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Fault>,
) -> Result<Vec<(u64, usize)>, Status> {
    const PAGE_BYTES: usize = 4096;
    // CAST: widening.
    if bytes > MAX_TRANSFER as usize {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if !first.is_multiple_of(4) {
        return Err(Status::PRP_OFFSET.dnr());
    }
    // CAST: below 4096.
    let in_page = PAGE_BYTES - (first % PAGE) as usize;
    let mut all = vec![(first, in_page.min(bytes))];
    let mut left = bytes.saturating_sub(in_page);
    if left == 0 {
        return Ok(all);
    }
    if left <= PAGE_BYTES {
        if !second.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET.dnr());
        }
        all.push((second, left));
        return Ok(all);
    }
    let mut list = second;
    if !list.is_multiple_of(8) {
        return Err(Status::PRP_OFFSET.dnr());
    }
    while left > 0 {
        // A list ends at the end of its page. Its last entry is the next list if there is more data.
        // CAST: at most 512.
        let room = ((PAGE - list % PAGE) / 8) as usize;
        let needs = left.div_ceil(PAGE_BYTES);
        let mut entries = vec![U64::new_zeroed(); room.min(needs)];
        let read = read(list, entries.as_mut_bytes());
        read.map_err(|Fault| Status::DATA_TRANSFER)?;
        if needs > room
            && let Some(next) = entries.pop()
        {
            list = next.get();
            if !list.is_multiple_of(PAGE) {
                return Err(Status::PRP_OFFSET.dnr());
            }
        }
        for entry in entries.iter().map(|entry| entry.get()) {
            if !entry.is_multiple_of(PAGE) {
                return Err(Status::PRP_OFFSET.dnr());
            }
            all.push((entry, left.min(PAGE_BYTES)));
            left = left.saturating_sub(PAGE_BYTES);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_memory_is_reached_and_only_as_its_mapping_permits() {
        let memory = SharedMemory::of_this_process(8192).expect("memory");
        let mut mappings = Mappings::default();
        let here = |offset| (memory.clone(), offset);
        mappings.map(0x1000, here(0), 4096, true).expect("mapped");
        mappings
            .map(0x2000, here(4096), 4096, false)
            .expect("mapped");
        for (iova, offset, bytes) in [(0x1000, 0, 4096), (0x3000, 8192, 4096), (0x3001, 0, 4096)] {
            let refused = mappings.map(iova, here(offset), bytes, true);
            assert!(refused.is_err(), "{iova:#x}");
        }
        assert!(mappings.map(LAST - 4095, here(0), 8192, true).is_err());
        let part = mappings.part(0x1ff0, 32, true).expect("mapped");
        assert_eq!(part.bytes, 16);
        part.write(&[7; 16]).expect("written");
        let mut out = [0; 16];
        memory.read_bytes(4080, &mut out);
        assert_eq!(out, [7; 16]);
        assert!(mappings.part(0x2000, 4, true).is_err());
        assert!(mappings.part(0x2000, 4, false).is_ok());
        assert!(mappings.part(0x3000, 1, false).is_err());
        assert!(mappings.unmap(0x1000, 8192).is_err());
        mappings.unmap(0x1000, 4096).expect("unmapped");
        assert!(mappings.part(0x1000, 1, false).is_err());
    }

    /// A list of pages at `at`, whose entries are the pages from 0x10_0000 on.
    fn reads(lists: &BTreeMap<u64, u64>) -> impl FnMut(u64, &mut [u8]) -> Result<(), Fault> + '_ {
        |at, out| {
            for (number, entry) in (0..).zip(out.chunks_mut(8)) {
                let value = lists.get(&(at + 8 * number)).ok_or(Fault)?;
                entry.copy_from_slice(U64::new(*value).as_bytes());
            }
            Ok(())
        }
    }

    #[test]
    fn the_second_entry_is_a_page_or_a_list_and_lists_are_chained() {
        let none = BTreeMap::new();
        let of = |prp, bytes| pieces(prp, bytes, reads(&none));
        assert_eq!(of([0x1004, 0], 100), Ok(vec![(0x1004, 100)]));
        assert_eq!(
            of([0x1800, 0x3000], 4096),
            Ok(vec![(0x1800, 2048), (0x3000, 2048)])
        );
        assert_eq!(of([0x1002, 0], 100), Err(Status::PRP_OFFSET.dnr()));
        assert_eq!(of([0x1000, 0x3008], 8192), Err(Status::PRP_OFFSET.dnr()));
        assert_eq!(of([0x1000, 0x3008], 12288), Err(Status::DATA_TRANSFER));
        assert_eq!(of([0, 0], 128 * 1024 + 1), Err(Status::INVALID_FIELD.dnr()));
        // Two entries are left in the list's page: one page, and the next list.
        let lists = [
            (0x8ff0, 0x10000),
            (0x8ff8, 0x9000),
            (0x9000, 0x11000),
            (0x9008, 0x12000),
        ];
        let lists = BTreeMap::from(lists);
        let chained = pieces([0x1000, 0x8ff0], 4 * 4096, reads(&lists));
        let pages = [0x1000, 0x10000, 0x11000, 0x12000].map(|page| (page, 4096));
        assert_eq!(chained, Ok(pages.to_vec()));
    }
}
