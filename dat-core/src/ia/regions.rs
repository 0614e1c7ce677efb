//! The LMRs of an IA. Calls find an LMR by its key; posts and binds find it by its context.
//!
//! A region is *retired* if a close removes it while a window of the device or an outstanding bind still uses it. No
//! call and no post finds a retired region.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;

use crate::error::parking::ResumeError;
use crate::handle::{LmrKey, index_of};
use crate::object::lmr::table::{Entry, LmrTable};
use crate::object::lmr::{Lmr, MemType};
use crate::provider::Provider;
use crate::table::Table;

/// Stamp of the next change of a table, from 1. All IAs of the process draw from this counter, so no two IAs ever have
/// the same stamp.
static NEXT_STAMP: AtomicU64 = AtomicU64::new(1);

fn fresh_stamp() -> u64 {
    NEXT_STAMP.fetch_add(1, Ordering::Relaxed)
}

/// The regions of an IA. Every region of `objects` also has an entry in `table` and in `by_context`, under its context.
pub(in crate::ia) struct Regions<P: Provider> {
    table: LmrTable,
    objects: Table<LmrKey, Lmr<P>>,
    by_context: BTreeMap<u32, LmrKey>,
    retired: BTreeMap<LmrKey, Lmr<P>>,
}

impl<P: Provider> Regions<P> {
    pub(in crate::ia) fn new() -> Self {
        Self {
            table: LmrTable::new(fresh_stamp()),
            objects: Table::new(),
            by_context: BTreeMap::new(),
            retired: BTreeMap::new(),
        }
    }

    /// Returns the table that posts look up.
    #[inline(always)]
    pub(in crate::ia) const fn table(&self) -> &LmrTable {
        &self.table
    }

    pub(in crate::ia) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(in crate::ia) fn keys(&self) -> impl Iterator<Item = LmrKey> {
        self.objects.keys()
    }

    pub(in crate::ia) fn iter(&self) -> impl Iterator<Item = &Lmr<P>> {
        self.objects.values()
    }

    pub(in crate::ia) fn get(&self, key: LmrKey) -> Option<&Lmr<P>> {
        self.objects.get(key)
    }

    pub(in crate::ia) fn get_mut(&mut self, key: LmrKey) -> Option<&mut Lmr<P>> {
        self.objects.get_mut(key)
    }

    pub(in crate::ia) fn retired_mut(&mut self, key: LmrKey) -> Option<&mut Lmr<P>> {
        self.retired.get_mut(&key)
    }

    pub(in crate::ia) fn with_context(&self, lmr_context: u32) -> Option<LmrKey> {
        self.by_context.get(&lmr_context).copied()
    }

    /// Returns a region that was created with this memory type.
    pub(in crate::ia) fn of_kind(&self, kind: MemType) -> Option<&Lmr<P>> {
        self.objects.values().find(|lmr| lmr.kind == kind)
    }

    pub(in crate::ia) fn insert(&mut self, lmr: Lmr<P>) -> LmrKey {
        let key = self.objects.next_key();
        self.index(key, &lmr);
        self.objects.insert(lmr)
    }

    /// Lets posts and binds find a region. Returns false if another region has its context.
    fn index(&mut self, key: LmrKey, lmr: &Lmr<P>) -> bool {
        let created = lmr.created;
        self.table.insert(Entry::new(
            created.lmr_context,
            created.address,
            created.bytes,
            index_of(lmr.pz),
            lmr.effective,
        ));
        self.by_context.insert(created.lmr_context, key).is_none()
    }

    /// Makes the regions of an IA that was parked.
    ///
    /// # Errors
    /// Keys contradict each other, or two regions have the same context.
    pub(in crate::ia) fn resume(
        regions: Vec<(LmrKey, Lmr<P>)>,
        free: &[LmrKey],
    ) -> Result<Self, ResumeError> {
        const TABLE: &str = "the LMRs";
        let mut all = Self::new();
        for (key, lmr) in &regions {
            if !all.index(*key, lmr) {
                let what = format!("two have the context {:#x}", lmr.created.lmr_context);
                return Err(ResumeError::snapshot(TABLE, what));
            }
        }
        all.objects = Table::resume(regions.into_iter(), free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(all)
    }

    /// Returns the keys of the next regions of the empty slots. The last one is taken first.
    pub(in crate::ia) fn free(&self) -> &[LmrKey] {
        self.objects.free()
    }

    /// Returns all regions, each with its key.
    pub(in crate::ia) fn all(&self) -> impl Iterator<Item = (LmrKey, &Lmr<P>)> {
        self.objects.iter()
    }

    /// Removes and returns all regions, each with its key. They are not used afterwards.
    pub(in crate::ia) fn drain(&mut self) -> impl Iterator<Item = (LmrKey, Lmr<P>)> {
        assert!(self.retired.is_empty(), "only a close retires regions");
        self.objects.drain()
    }

    /// Removes a region. From then on no call and no post finds it.
    pub(in crate::ia) fn remove(&mut self, key: LmrKey) -> Option<Lmr<P>> {
        let lmr = self.objects.remove(key)?;
        self.table.remove(lmr.created.lmr_context, fresh_stamp());
        self.by_context.remove(&lmr.created.lmr_context);
        Some(lmr)
    }

    /// Keeps a removed region for the windows and binds that still use it.
    pub(in crate::ia) fn retire(&mut self, key: LmrKey, lmr: Lmr<P>) {
        self.retired.insert(key, lmr);
    }

    /// Removes and returns a retired region that no window and no bind uses any more.
    pub(in crate::ia) fn end_retired(&mut self, key: LmrKey) -> Option<Lmr<P>> {
        self.retired.remove(&key)
    }
}
