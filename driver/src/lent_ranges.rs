//! Record of the caller's pages that are lent, and of the mapping through which each page is lent, so that lent pages
//! are not mapped again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::extents::Extents;

/// A mapping of lent memory.
struct Lent<M> {
    mapped: Arc<M>,
    /// Pages that are lent through this mapping, with their use counts.
    leases: Extents,
}

/// A record of the pages that can be lent again without a new mapping ("trusted" pages): those that have been lent
/// without interruption since they were mapped.
pub(crate) struct LentRanges<M> {
    next: u64,
    mappings: BTreeMap<u64, Lent<M>>,
    /// Disjoint ranges of trusted pages: first address to end address and number of the mapping. A page that several
    /// mappings have is in the range of only one of them.
    trusted: BTreeMap<usize, (usize, u64)>,
    /// Numbers of the mappings that have pages in the range of a later mapping.
    shadowed: BTreeSet<u64>,
}

impl<M> Default for LentRanges<M> {
    fn default() -> Self {
        Self {
            next: 0,
            mappings: BTreeMap::new(),
            trusted: BTreeMap::new(),
            shadowed: BTreeSet::new(),
        }
    }
}

impl<M> LentRanges<M> {
    /// Lends pages through an existing mapping and returns the mapping and its number. `None` if no mapping has all of
    /// the pages as trusted pages.
    pub(crate) fn share(&mut self, pages: &Range<usize>) -> Option<(Arc<M>, u64)> {
        let (_, &(end, number)) = self.trusted.range(..=pages.start).next_back()?;
        let lent = self
            .mappings
            .get_mut(&number)
            .filter(|_| pages.end <= end)?;
        lent.leases.add(pages);
        Some((Arc::clone(&lent.mapped), number))
    }

    /// Lends pages through a mapping that was made for them. Returns the number of the mapping.
    pub(crate) fn enter(&mut self, mapped: &Arc<M>, pages: &Range<usize>) -> u64 {
        let number = self.next;
        self.next += 1;
        let mut lent = Lent {
            mapped: Arc::clone(mapped),
            leases: Extents::default(),
        };
        lent.leases.add(pages);
        self.mappings.insert(number, lent);
        // Other mappings may have some of these pages, but this one has them all.
        let others = self.remove_trusted(pages, None);
        self.shadowed.extend(others);
        self.trusted.insert(pages.start, (pages.end, number));
        number
    }

    /// Removes one lease of pages. Returns the mapping if that was the mapping's last lease.
    pub(crate) fn give_back(&mut self, number: u64, pages: &Range<usize>) -> Option<Arc<M>> {
        let free = self.mappings.get_mut(&number)?.leases.remove(pages);
        for pages in &free {
            self.remove_trusted(pages, Some(number));
        }
        let is_over = self.mappings.get(&number)?.leases.is_empty();
        let over = is_over.then(|| self.mappings.remove(&number)).flatten();
        if is_over {
            self.shadowed.remove(&number);
        }
        for pages in &free {
            self.reassign(pages);
        }
        over.map(|lent| lent.mapped)
    }

    /// Assigns these pages, which a newer mapping no longer lends, to an older mapping that still lends them. If the
    /// older mapping has a lease of a page, the page was lent through it without interruption: a lease made after the
    /// page was given back belongs to another mapping.
    fn reassign(&mut self, pages: &Range<usize>) {
        for number in self.shadowed.clone() {
            let Some(lent) = self.mappings.get(&number) else {
                continue;
            };
            for taken in lent.leases.used_parts(pages) {
                for gap in self.gaps(&taken) {
                    self.trust(gap, number);
                }
            }
        }
    }

    /// Returns the parts of these pages that are in no trusted range.
    fn gaps(&self, pages: &Range<usize>) -> Vec<Range<usize>> {
        let first = self.trusted.range(..=pages.start).next_back();
        let mut from = first.map_or(pages.start, |(_, &(end, _))| end.max(pages.start));
        let mut gaps = Vec::new();
        for (&start, &(end, _)) in self.trusted.range(pages.start..pages.end) {
            gaps.extend((from < start).then_some(from..start));
            from = from.max(end);
        }
        gaps.extend((from < pages.end).then_some(from..pages.end));
        gaps
    }

    /// Adds pages that are in no trusted range to the ranges of a mapping, and joins them with that mapping's adjacent
    /// ranges.
    fn trust(&mut self, pages: Range<usize>, number: u64) {
        let Range { mut start, mut end } = pages;
        let before = self.trusted.range(..start).next_back();
        if let Some((&first, &(last, same))) = before
            && (last, same) == (start, number)
        {
            start = first;
        }
        if let Some(&(last, same)) = self.trusted.get(&end)
            && same == number
        {
            self.trusted.remove(&end);
            end = last;
        }
        self.trusted.insert(start, (end, number));
    }

    /// Removes pages from the ranges of one mapping, or of all mappings. Returns the numbers of the mappings that had
    /// them.
    fn remove_trusted(&mut self, pages: &Range<usize>, only: Option<u64>) -> Vec<u64> {
        let first = self.trusted.range(..pages.start).next_back();
        let from = first.map_or(pages.start, |(&start, _)| start);
        let touched: Vec<(usize, usize, u64)> = self
            .trusted
            .range(from..pages.end)
            .map(|(&start, &(end, number))| (start, end, number))
            .filter(|&(_, end, number)| end > pages.start && only.is_none_or(|it| it == number))
            .collect();
        for &(start, end, number) in &touched {
            self.trusted.remove(&start);
            if start < pages.start {
                self.trusted.insert(start, (pages.start, number));
            }
            if pages.end < end {
                self.trusted.insert(pages.end, (end, number));
            }
        }
        touched.into_iter().map(|(.., number)| number).collect()
    }
}
