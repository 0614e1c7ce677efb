//! The pages of the firmware of a function that is handed over to another process.
//!
//! No command of pages is under way then, so each page of a chunk is either lent or free. The snapshot has the lent
//! ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use driver::{DmaArena, Iova};

use super::{CHUNK_PAGES, Chunk, PAGE_BYTES, PageCounts, Pages};
use crate::bounds::MAX_COUNT;
use crate::error::ResumeError;
use crate::event::FunctionId;

/// Name of the table in errors.
const TABLE: &str = "the firmware's pages";

/// Host memory that the firmware uses.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PagesSnapshot {
    /// Memory that the pages are parts of.
    pub chunks: Vec<PageChunk>,
    /// Pages that the firmware has, by function.
    pub holders: Vec<PageHolder>,
    /// Counters since the function was opened.
    pub counts: PageCounts,
    /// Maximum number of pages that the firmware may have at a time; `None`: no maximum is configured.
    pub budget: Option<u64>,
}

/// A piece of memory for pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PageChunk {
    /// I/O address of the first page.
    pub iova: u64,
    /// Number of pages of 4 KiB: 1 to 256.
    pub pages: u32,
}

/// A function that has pages.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PageHolder {
    /// Number of the function.
    pub function: u16,
    /// True if it is that of the adapter's own processor.
    pub embedded_cpu: bool,
    /// I/O addresses of its pages.
    pub pages: Vec<u64>,
}

impl Pages {
    /// Returns the number of buffers that the pages are parts of.
    pub(crate) fn buffers(&self) -> usize {
        self.chunks.len()
    }

    /// Describes the pages. No command of pages is under way.
    pub(crate) fn snapshot(&self) -> PagesSnapshot {
        let mut holders: BTreeMap<FunctionId, Vec<u64>> = BTreeMap::new();
        for (&page, &function) in &self.lent {
            holders.entry(function).or_default().push(page);
        }
        let holder = |(function, mut pages): (FunctionId, Vec<u64>)| {
            pages.sort_unstable();
            PageHolder {
                function: function.number,
                embedded_cpu: function.embedded_cpu,
                pages,
            }
        };
        let chunk = |(&iova, chunk): (&u64, &Chunk)| PageChunk {
            iova,
            // PANIC: a chunk has at most 256 pages.
            pages: u32::try_from(chunk.memory.len() / PAGE_BYTES).expect("few pages"),
        };
        PagesSnapshot {
            chunks: self.chunks.iter().map(chunk).collect(),
            holders: holders.into_iter().map(holder).collect(),
            counts: self.counts,
            budget: self.budget.map(|pages| pages as u64),
        }
    }

    /// Makes the table again, over the memory that the arena has.
    ///
    /// # Errors
    /// The numbers contradict each other, or the memory is not there.
    pub(crate) fn resume(arena: &DmaArena, snapshot: &PagesSnapshot) -> Result<Self, ResumeError> {
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        let mut free: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut memories = BTreeMap::new();
        for &PageChunk { iova, pages } in &snapshot.chunks {
            // CAST: widening, on every target of the driver.
            let count = pages as usize;
            if !(1..=CHUNK_PAGES).contains(&count) || !iova.is_multiple_of(PAGE_BYTES as u64) {
                return Err(refused(format!("{pages} pages at IOVA {iova:#x}")));
            }
            let memory = arena.claim(Iova(iova), count * PAGE_BYTES);
            let memory = memory.map_err(ResumeError::of_memory(TABLE))?;
            let all = (0..count).map(|page| iova + (page * PAGE_BYTES) as u64);
            free.insert(iova, all.collect());
            memories.insert(iova, memory);
        }
        let mut lent = HashMap::new();
        for holder in &snapshot.holders {
            let function = FunctionId {
                number: holder.function,
                embedded_cpu: holder.embedded_cpu,
            };
            for &page in &holder.pages {
                // A page that is in no chunk, or that was lent before, is not free.
                let chunk = free.range_mut(..=page).next_back();
                if !chunk.is_some_and(|(_, free)| free.remove(&page)) {
                    return Err(refused(format!(
                        "{function:?} has page {page:#x}, which is in no chunk or is lent twice"
                    )));
                }
                lent.insert(page, function);
            }
        }
        let PageCounts {
            given,
            returned,
            refused: refusals,
            foreign,
        } = snapshot.counts;
        let is_sum = returned.checked_add(lent.len() as u64) == Some(given);
        if !is_sum || given.max(refusals).max(foreign) > MAX_COUNT {
            return Err(refused(format!(
                "{} pages are lent; {:?}",
                lent.len(),
                snapshot.counts
            )));
        }
        let budget = snapshot.budget.map(|budget| {
            // A larger number than the address space is no limit.
            usize::try_from(budget).unwrap_or(usize::MAX)
        });
        let partial = free.iter().filter(|(_, pages)| !pages.is_empty());
        let partial = partial.map(|(&iova, _)| iova).collect();
        let chunk = |(iova, memory)| {
            let pages = free.remove(&iova).unwrap_or_default();
            // The lowest page is the next one that is lent.
            let free = pages.into_iter().rev().collect();
            (iova, Chunk { memory, free })
        };
        Ok(Self {
            arena: arena.clone(),
            chunks: memories.into_iter().map(chunk).collect(),
            partial,
            lent,
            requests: VecDeque::new(),
            running: None,
            counts: snapshot.counts,
            budget,
        })
    }
}
