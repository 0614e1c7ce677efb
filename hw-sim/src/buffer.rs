//! Queue buffers: memory described by a page list.
//!
//! Event, completion and work queues live in host memory that a command described page by page
//! (PAS). The page size is per queue; a list address may be less aligned than the page it names,
//! and `page_offset` counts sixty-fourths of a page.

use crate::iommu::Iommu;

/// Smallest page of a page list.
const LOG_ADAPTER_PAGE: u32 = 12;

/// The memory of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBuffer {
    pages: Vec<u64>,
    log_page: u32,
    offset: u64,
}

/// Why a page list does not describe a queue.
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
    /// A buffer of `bytes` in `pages` of 2^(12 + `log_page_size`) bytes, starting `page_offset`
    /// 64ths of a page into the first.
    pub fn new(
        pages: &[u64],
        log_page_size: u32,
        page_offset: u32,
        bytes: u64,
    ) -> Result<Self, BufferError> {
        let log_page = LOG_ADAPTER_PAGE + log_page_size;
        let offset = u64::from(page_offset) << (log_page - 6);
        let needed = (offset + bytes).div_ceil(1 << log_page);
        if (pages.len() as u64) < needed {
            return Err(BufferError::Short {
                needed,
                listed: pages.len(),
            });
        }
        if let Some(&page) = pages
            .iter()
            .find(|&&page| page % (1 << LOG_ADAPTER_PAGE) != 0)
        {
            return Err(BufferError::Unaligned(page));
        }
        // CAST: at most the list's length.
        let count = usize::try_from(needed).unwrap_or(usize::MAX);
        Ok(Self {
            pages: pages[..count].to_vec(),
            log_page,
            offset,
        })
    }

    /// DMA address of byte `at`; entries never straddle pages, so it is good for a whole entry.
    pub fn iova(&self, at: u64) -> u64 {
        let at = at + self.offset;
        let page = usize::try_from(at >> self.log_page).unwrap_or(usize::MAX);
        // Beyond the list is an address nothing can be mapped at.
        self.pages.get(page).map_or(u64::MAX - 0xfff, |page| {
            page.wrapping_add(at & ((1 << self.log_page) - 1))
        })
    }

    /// The page list.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Whether the device reaches the first `bytes` of the buffer.
    pub fn reachable(&self, iommu: &Iommu, bytes: u64) -> bool {
        let mut at = 0;
        while at < bytes {
            let in_page = (1 << self.log_page) - ((at + self.offset) & ((1 << self.log_page) - 1));
            let run = in_page.min(bytes - at);
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
    fn a_large_page_may_start_at_any_4_kib() {
        let buffer = QueueBuffer::new(&[0x7000], 2, 0, 0x2000).unwrap();
        assert_eq!(buffer.iova(0x1fc0), 0x8fc0);
        assert_eq!(
            QueueBuffer::new(&[0x7200], 2, 0, 64),
            Err(BufferError::Unaligned(0x7200))
        );
    }
}
