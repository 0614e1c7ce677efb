//! Queue buffers: memory described by a page list.
//!
//! Event, completion and work queues are in host memory that a command described page by page (PAS). The page size is
//! per queue. An address of the list need only be aligned to 4 KiB, even if the queue's pages are larger, and
//! `page_offset` counts sixty-fourths of a page (`mlx5_umem_find_best_quantized_pgoff` in Linux
//! drivers/infiniband/hw/mlx5/mlx5_ib.h). A queue in a user memory object (umem) uses a part of the umem's page list.

use crate::iommu::Iommu;

/// Log2 of the smallest page of a page list, in bytes.
const LOG_ADAPTER_PAGE: u32 = 12;
/// Log2 of the number of `page_offset` units in a page. A unit is 1/64 of a page of any size.
const LOG_OFFSETS_PER_PAGE: u32 = 6;

/// The memory of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBuffer {
    pages: Vec<u64>,
    log_page: u32,
    offset: u64,
}

/// The reason why a page list does not describe a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferError {
    /// The list is too short for the queue.
    Short {
        /// Pages the queue needs.
        needed: u64,
        /// Pages in the list.
        listed: usize,
    },
    /// An address is not 4 KiB aligned.
    Unaligned(u64),
}

impl QueueBuffer {
    /// Returns a buffer of `bytes` bytes in `pages` (2^(12 + `log_page_size`) bytes each). The buffer starts
    /// `page_offset` 64ths of a page after the start of the first page.
    ///
    /// # Errors
    /// [`BufferError`]: an address that is not 4 KiB aligned, or fewer pages than `bytes` need.
    pub fn new(
        pages: &[u64],
        log_page_size: u32,
        page_offset: u32,
        bytes: u64,
    ) -> Result<Self, BufferError> {
        let log_page = LOG_ADAPTER_PAGE + log_page_size;
        let offset = u64::from(page_offset) << (log_page - LOG_OFFSETS_PER_PAGE);
        let whole = Self::whole(pages, log_page, offset)?;
        whole.part(0, bytes).ok_or(BufferError::Short {
            needed: (offset + bytes).div_ceil(1 << log_page),
            listed: pages.len(),
        })
    }

    /// Returns a buffer of all `pages` (2^`log_page` bytes each) that starts at byte `offset` of the first page.
    ///
    /// # Errors
    /// An address that is not 4 KiB aligned.
    pub fn whole(pages: &[u64], log_page: u32, offset: u64) -> Result<Self, BufferError> {
        if let Some(&page) = pages
            .iter()
            .find(|&&page| page % (1 << LOG_ADAPTER_PAGE) != 0)
        {
            return Err(BufferError::Unaligned(page));
        }
        Ok(Self {
            pages: pages.to_vec(),
            log_page,
            offset,
        })
    }

    /// Returns the `bytes` bytes from byte `at` on, if they lie in the buffer.
    pub fn part(&self, at: u64, bytes: u64) -> Option<Self> {
        let first = at.checked_add(self.offset)?;
        let end = first.checked_add(bytes)?;
        let pages = self.pages.get(
            usize::try_from(first >> self.log_page).ok()?
                ..usize::try_from(end.div_ceil(1 << self.log_page)).ok()?,
        )?;
        Some(Self {
            pages: pages.to_vec(),
            log_page: self.log_page,
            offset: first & ((1 << self.log_page) - 1),
        })
    }

    /// Returns the number of bytes from the buffer's start to the end of its last page.
    pub fn bytes(&self) -> u64 {
        let pages = self.pages.len() as u64;
        pages
            .saturating_mul(1 << self.log_page)
            .saturating_sub(self.offset)
    }

    /// Returns the buffer's offset in its first page, in bytes.
    pub fn start(&self) -> u64 {
        self.offset
    }

    /// Returns the DMA address of byte `at`, valid to the end of its page. 64-byte entries never straddle pages.
    pub fn iova(&self, at: u64) -> u64 {
        let at = at + self.offset;
        let page = usize::try_from(at >> self.log_page).unwrap_or(usize::MAX);
        // A byte beyond the list gets an address at which nothing can be mapped.
        self.pages.get(page).map_or(u64::MAX - 0xfff, |page| {
            page.wrapping_add(at & ((1 << self.log_page) - 1))
        })
    }

    /// Returns the page list.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Returns the number of bytes from `at` to the end of its page. [`QueueBuffer::iova`] is contiguous in this range.
    pub fn left_in_page(&self, at: u64) -> u64 {
        (1 << self.log_page) - ((at + self.offset) & ((1 << self.log_page) - 1))
    }

    /// Reads from byte `at` on with `dma`, page by page.
    ///
    /// # Errors
    /// The error of `dma`.
    #[inline]
    pub fn read<E>(
        &self,
        mut at: u64,
        out: &mut [u8],
        mut dma: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if out.len() as u64 <= self.left_in_page(at) {
            return dma(self.iova(at), out);
        }
        let mut rest = out;
        while !rest.is_empty() {
            let here = usize::try_from(self.left_in_page(at))
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (now, later) = rest.split_at_mut(here);
            dma(self.iova(at), now)?;
            at += here as u64;
            rest = later;
        }
        Ok(())
    }

    /// Returns whether the IOMMU maps the first `bytes` of the buffer for the device.
    pub fn reachable(&self, iommu: &Iommu, bytes: u64) -> bool {
        let mut at = 0;
        while at < bytes {
            let run = self.left_in_page(at).min(bytes - at);
            if !iommu.reaches(self.iova(at), usize::try_from(run).unwrap_or(usize::MAX)) {
                return false;
            }
            at += run;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_counts_sixty_fourths_of_a_page() {
        let buffer = QueueBuffer::new(&[0x10000, 0x30000], 2, 2, 0x4000).unwrap();
        assert_eq!(buffer.iova(0), 0x10200);
        assert_eq!(buffer.iova(0x3e00), 0x30000);
    }

    #[test]
    fn a_list_too_short_for_the_queue_is_refused() {
        let error = QueueBuffer::new(&[0x1000], 0, 0, 0x1001).unwrap_err();
        assert_eq!(
            error,
            BufferError::Short {
                needed: 2,
                listed: 1
            }
        );
    }

    #[test]
    fn a_part_lies_where_the_whole_says_and_nowhere_beyond_it() {
        let whole = QueueBuffer::whole(&[0x10000, 0x50000, 0x30000], 12, 0x100).unwrap();
        let part = whole.part(0xf40, 0x1000).unwrap();
        assert_eq!(
            (part.start(), part.pages()),
            (0x40, &[0x50000, 0x30000][..])
        );
        assert_eq!(part.iova(0xfc0), 0x30000);
        assert_eq!(part.left_in_page(0), 0xfc0);
        assert!(whole.part(0, 0x2f00).is_some());
        assert_eq!(whole.part(0, 0x2f01), None);
        assert_eq!(whole.part(0x2f00, 1), None);
        assert_eq!(whole.part(u64::MAX, 2), None);
    }

    #[test]
    fn a_large_page_may_start_at_any_4_kib() {
        let buffer = QueueBuffer::new(&[0x7000], 2, 0, 0x2000).unwrap();
        assert_eq!(buffer.iova(0x1fc0), 0x8fc0);
        assert_eq!(
            QueueBuffer::new(&[0x7200], 2, 0, 64),
            Err(BufferError::Unaligned(0x7200))
        );
    }
}
