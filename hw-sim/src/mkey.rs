//! Memory keys: the translation of a key and a virtual address to DMA addresses.
//!
//! The checks happen in one order for every user: the key exists, its variant is the one used, it is not free,
//! protection domain and queue pair agree, the access is granted, the range lies inside. Then the address is
//! translated: not at all (PA), to an offset in the BAR (MEMIC), by a table of pages (MTT), or by a table of other keys
//! (KLM, and KSM with entries of equal size). Tables of other keys may nest as deep as the device allows. The keys
//! behind an indirect key are used with local rights, because the key that a peer was given decides the peer's rights.
//! The reserved lkey, even behind an indirect key, works only in the own work requests of a queue pair that may use it.
//!
//! A failed check moves nothing. [`resolve`] finds the pieces of an access; the caller does the DMA.

use crate::host::{ANY_PD, KeyError, KeyScope};
use crate::objects::Table;

/// Value of `qpn` in a key that any queue pair may use.
pub const ANY_QP: u32 = 0x00ff_ffff;
/// Read permission bit of a translation entry, in a key created with `pg_access`.
const PAGE_READ: u64 = 1;
/// Write permission bit of a translation entry, in a key created with `pg_access`.
const PAGE_WRITE: u64 = 2;

/// Access rights of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the bits of the context")]
pub struct Access {
    /// Local read is permitted.
    pub local_read: bool,
    /// Local write is permitted.
    pub local_write: bool,
    /// Remote read is permitted.
    pub remote_read: bool,
    /// Remote write is permitted.
    pub remote_write: bool,
    /// Remote atomic operations are permitted.
    pub atomic: bool,
}

impl Access {
    fn grants(self, scope: KeyScope, write: bool) -> bool {
        match (scope.remote, scope.atomic, write) {
            (true, true, _) => self.atomic,
            (true, false, true) => self.remote_write,
            (true, false, false) => self.remote_read,
            (false, _, true) => self.local_write,
            (false, _, false) => self.local_read,
        }
    }
}

/// An entry of an indirect key: a range of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Klm {
    /// Number of bytes that the entry covers. A KSM ignores this and uses the entity size.
    pub bytes: u32,
    /// Key that the entry refers to.
    pub key: u32,
    /// First address of the range in that key.
    pub va: u64,
}

impl Klm {
    /// Returns whether the entry names a key. A KLM of zero bytes names none. The length of a KSM has no meaning, so
    /// only a KSM with neither length nor key names none.
    pub const fn names_key(&self, is_equal_sized: bool) -> bool {
        self.bytes != 0 || is_equal_sized && self.key != 0
    }
}

/// Ranges of keys, concatenated in the order of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    entries: Vec<Klm>,
    /// End of each range in bytes, counted from the start of the first range.
    ends: Vec<u64>,
}

impl Ranges {
    /// Returns the concatenation of `entries` in this order.
    #[must_use]
    pub fn new(entries: Vec<Klm>) -> Self {
        let ends = entries
            .iter()
            .scan(0_u64, |end, entry| {
                *end = end.saturating_add(u64::from(entry.bytes));
                Some(*end)
            })
            .collect();
        Self { entries, ends }
    }

    /// Returns the entries in their order.
    #[must_use]
    pub fn entries(&self) -> &[Klm] {
        &self.entries
    }

    fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
}

/// Limit in bytes for all keys of a function with their tables. In tables of 4 KiB pages this is 256 GiB of registered
/// memory. Only entries that exist count, not the declared capacity: Linux' cache declares tables of up to 2^16 pages
/// for keys that have no pages yet.
pub const KEY_MEMORY: usize = 512 << 20;
/// Number of bytes for an entry that names a key: the entry, its end offset, and its reference.
const KLM_BYTES: usize = size_of::<Klm>() + size_of::<u64>() + size_of::<u32>();

/// Returns the number of bytes of a page table with this number of entries.
#[must_use]
pub const fn page_table_bytes(entries: usize) -> usize {
    entries.saturating_mul(size_of::<u64>())
}

/// Returns the number of bytes of a key table with this number of entries.
#[must_use]
pub const fn key_table_bytes(entries: usize) -> usize {
    entries.saturating_mul(KLM_BYTES)
}

/// Translation of a key's addresses to DMA addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// No translation: addresses are DMA addresses.
    Physical,
    /// A table of page addresses, with permission bits if the key has `pg_access`.
    Pages(Vec<u64>),
    /// A table of ranges of other keys, concatenated.
    Keys(Ranges),
    /// A table of ranges of other keys, all of the entity size.
    EqualKeys(Vec<Klm>),
    /// Memory of the device itself, from this byte offset in the BAR on.
    Device(u64),
}

/// Memory that the pieces of an access lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Host memory; pieces have DMA addresses.
    Host,
    /// Device memory; pieces have offsets in the BAR.
    Device,
}

/// A memory key.
#[derive(Clone, Debug)]
pub struct Mkey {
    /// Low byte of the key.
    pub variant: u8,
    /// True if the key exists but may not be used.
    pub free: bool,
    /// True if a UMR may change the key.
    pub umr_enabled: bool,
    /// True if a peer may invalidate the key.
    pub remote_invalidate: bool,
    /// True if the device may reorder writes by this key. The simulator keeps all accesses in order; only QUERY_MKEY
    /// returns the bit.
    pub relaxed_writes: bool,
    /// True if the device may reorder reads by this key. The simulator keeps all accesses in order; only QUERY_MKEY
    /// returns the bit.
    pub relaxed_reads: bool,
    /// Access rights.
    pub access: Access,
    /// Protection domain.
    pub pd: u32,
    /// Number of the queue pair that may use the key, or [`ANY_QP`].
    pub qpn: u32,
    /// First virtual address.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// True if the key covers the whole address space. `start` and `length` have no meaning then.
    pub unlimited: bool,
    /// log2 of the page or entity size.
    pub log_page: u32,
    /// True if the translation entries carry permission bits.
    pub page_access: bool,
    /// Capacity of the translation table, in units of 16 bytes.
    pub octowords: u32,
    /// Translation of addresses, with its table.
    pub translation: Translation,
    /// Indices of the keys that this key holds a reference to.
    pub held: Vec<u32>,
}

impl Mkey {
    /// Returns the indices of the keys that this key's range reaches. A free key reaches none.
    fn targets(&self) -> Vec<u32> {
        if self.free {
            return Vec::new();
        }
        self.reached().map(|entry| entry.key >> 8).collect()
    }

    /// Returns the number of bytes of [`KEY_MEMORY`] that the key uses.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.table_bytes()
    }

    /// Returns the number of bytes of the key's translation table.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        match &self.translation {
            Translation::Physical | Translation::Device(_) => 0,
            Translation::Pages(table) => page_table_bytes(table.len()),
            Translation::Keys(_) | Translation::EqualKeys(_) => {
                key_table_bytes(self.entries().len())
            }
        }
    }

    /// Returns whether an entry of this key's table names a key.
    #[must_use]
    pub const fn names_key(&self, entry: &Klm) -> bool {
        entry.names_key(self.is_equal_sized())
    }

    /// Returns the entries that the key's range reaches. An unlimited key reaches all entries.
    pub fn reached(&self) -> impl Iterator<Item = &Klm> {
        let (end, size) = match self.translation {
            Translation::EqualKeys(_) => {
                let size = 1 << self.log_page;
                ((self.start & (size - 1)).saturating_add(self.length), size)
            }
            Translation::Physical
            | Translation::Pages(_)
            | Translation::Keys(_)
            | Translation::Device(_) => (self.length, 0),
        };
        self.entries()
            .iter()
            .scan(0_u64, move |at, entry| {
                let begin = *at;
                let bytes = if size == 0 {
                    u64::from(entry.bytes)
                } else {
                    size
                };
                *at = begin.saturating_add(bytes);
                Some((begin, entry))
            })
            .take_while(move |&(begin, _)| self.unlimited || begin < end)
            .map(|(_, entry)| entry)
            .filter(|entry| self.names_key(entry))
    }

    /// Returns the entries of an indirect key. A key of another kind has none.
    #[must_use]
    pub fn entries(&self) -> &[Klm] {
        match &self.translation {
            Translation::Keys(table) => table.entries(),
            Translation::EqualKeys(table) => table,
            Translation::Physical | Translation::Pages(_) | Translation::Device(_) => &[],
        }
    }

    /// Returns whether the key's table names other keys.
    #[must_use]
    pub const fn is_indirect(&self) -> bool {
        matches!(
            self.translation,
            Translation::Keys(_) | Translation::EqualKeys(_)
        )
    }

    const fn is_equal_sized(&self) -> bool {
        matches!(self.translation, Translation::EqualKeys(_))
    }
}

/// Updates the references of the key at `index` to the keys that its table names, after the key changed. A key that
/// others reference cannot be destroyed (status 0x09). Keys of another protection domain are not referenced.
pub fn recount_targets(keys: &mut Table<Mkey>, index: u32) {
    let Some(mkey) = keys.get(index) else {
        return;
    };
    let (pd, targets) = (mkey.pd, mkey.targets());
    // Entries that name no existing key are not referenced; they fail when they are used. The owner of a target is not
    // checked, because a key of a user context may name keys that Linux created under its own uid.
    let held: Vec<u32> = targets
        .into_iter()
        .filter(|&target| {
            keys.get(target).is_some_and(|target| target.pd == pd) && keys.hold_any(target).is_ok()
        })
        .collect();
    if let Some(mkey) = keys.get_mut(index) {
        let before = std::mem::replace(&mut mkey.held, held);
        release_targets(keys, &before);
    }
}

/// Releases the references that a destroyed key held.
pub fn release_targets(keys: &mut Table<Mkey>, held: &[u32]) {
    for &index in held {
        keys.release(index);
    }
}

/// A contiguous piece of an access, in DMA addresses or in offsets of the BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First DMA address, or first offset in the BAR.
    pub iova: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Piece {
    /// Returns the BAR offset of a piece of device memory.
    pub(crate) fn bar_offset(self) -> usize {
        usize::try_from(self.iova).unwrap_or(usize::MAX)
    }
}

/// An access through a key.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The key that the access names.
    pub key: u32,
    /// User of the key: protection domain, queue pair and rights.
    pub scope: KeyScope,
    /// First virtual address.
    pub va: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// True if the access writes memory.
    pub write: bool,
}

/// Properties of the function that apply to all keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyRules {
    /// The reserved lkey of the function.
    pub reserved_lkey: u32,
    /// Maximum depth of nested indirect keys.
    pub max_indirection: u32,
}

/// Maximum number of table entries that one access follows: twice the longest table.
const MOST_STEPS: u32 = 1 << 17;

/// Checks an access, translates it, and appends the pieces to a list. Device memory cannot be accessed through an
/// indirect key. This is inferred: Linux makes no indirect key over device memory.
///
/// # Errors
/// [`KeyError`]: the first check that fails, for the key or for a key behind it.
pub(crate) fn resolve(
    keys: &Table<Mkey>,
    rules: KeyRules,
    access: Use,
    pieces: &mut Vec<Piece>,
) -> Result<Memory, KeyError> {
    let mut walk = Walk {
        keys,
        rules,
        steps: MOST_STEPS,
        out: pieces,
    };
    walk.through(access, 0)
}

/// The translation of one access through nested keys.
struct Walk<'a> {
    keys: &'a Table<Mkey>,
    rules: KeyRules,
    /// Number of table entries that the translation may still follow.
    steps: u32,
    out: &'a mut Vec<Piece>,
}

impl Walk<'_> {
    fn through(&mut self, access: Use, depth: u32) -> Result<Memory, KeyError> {
        let Use {
            key,
            scope,
            va,
            bytes,
            write,
        } = access;
        let range = KeyError::Range { key, va, bytes };
        let end = va.checked_add(bytes).ok_or(range)?;
        if key == self.rules.reserved_lkey && !scope.remote {
            if !scope.rlky {
                return Err(KeyError::Reserved);
            }
            push(self.out, va, bytes);
            return Ok(Memory::Host);
        }
        let mkey = usable(self.keys, key, scope)?;
        if !mkey.access.grants(scope, write) {
            return Err(KeyError::Access { key });
        }
        if !mkey.unlimited && (va < mkey.start || end > mkey.start.saturating_add(mkey.length)) {
            return Err(range);
        }
        if bytes == 0 {
            return Ok(Memory::Host);
        }
        match &mkey.translation {
            Translation::Physical => push(self.out, va, bytes),
            Translation::Pages(table) => pages(mkey, table, access, self.out)?,
            Translation::Keys(table) => {
                let from = va.checked_sub(mkey.start).ok_or(range)?;
                self.ranges(access, depth, table, from)?;
            }
            Translation::EqualKeys(table) => {
                let size = 1_u64 << mkey.log_page;
                let from = va.checked_sub(mkey.start & !(size - 1)).ok_or(range)?;
                self.equal_ranges(access, depth, (table, size), from)?;
            }
            Translation::Device(_) if depth > 0 => return Err(KeyError::Access { key }),
            Translation::Device(first) => {
                push(self.out, first.saturating_add(va), bytes);
                return Ok(Memory::Device);
            }
        }
        Ok(Memory::Host)
    }

    /// Translates an access that begins at byte `from` of concatenated ranges.
    fn ranges(
        &mut self,
        access: Use,
        depth: u32,
        table: &Ranges,
        from: u64,
    ) -> Result<(), KeyError> {
        let to = within(from, access, table.bytes())?;
        let first = table.ends.partition_point(|&end| end <= from);
        let mut at = from;
        for (entry, &end) in table.entries[first..].iter().zip(&table.ends[first..]) {
            if at == to {
                break;
            }
            let inside = at - (end - u64::from(entry.bytes));
            self.follow(access, depth, (entry, inside), end.min(to) - at)?;
            at = end.min(to);
        }
        Ok(())
    }

    /// Translates an access as [`Walk::ranges`] does, for ranges that are all `size` bytes.
    fn equal_ranges(
        &mut self,
        access: Use,
        depth: u32,
        (table, size): (&[Klm], u64),
        from: u64,
    ) -> Result<(), KeyError> {
        let Use { key, va, bytes, .. } = access;
        let to = within(from, access, size.saturating_mul(table.len() as u64))?;
        let mut at = from;
        while at < to {
            let entry = usize::try_from(at / size)
                .ok()
                .and_then(|index| table.get(index))
                .ok_or(KeyError::Range { key, va, bytes })?;
            let inside = at % size;
            let run = (size - inside).min(to - at);
            self.follow(access, depth, (entry, inside), run)?;
            at += run;
        }
        Ok(())
    }

    /// Translates the part of an access that lies in one entry of an indirect key, from byte `inside` of the entry on.
    fn follow(
        &mut self,
        access: Use,
        depth: u32,
        (entry, inside): (&Klm, u64),
        bytes: u64,
    ) -> Result<(), KeyError> {
        let refused = KeyError::Access { key: access.key };
        self.steps = self.steps.checked_sub(1).ok_or(refused)?;
        if bytes == 0 {
            return Ok(());
        }
        if depth >= self.rules.max_indirection {
            return Err(refused);
        }
        let scope = KeyScope {
            remote: false,
            atomic: false,
            ..access.scope
        };
        let inner = Use {
            key: entry.key,
            scope,
            va: entry.va.wrapping_add(inside),
            bytes,
            write: access.write,
        };
        self.through(inner, depth + 1).map(drop)
    }
}

/// Returns the end of an access that begins at byte `from`. Fails if the end is beyond byte `room`.
fn within(from: u64, access: Use, room: u64) -> Result<u64, KeyError> {
    let Use { key, va, bytes, .. } = access;
    from.checked_add(bytes)
        .filter(|&to| to <= room)
        .ok_or(KeyError::Range { key, va, bytes })
}

/// Checks everything that does not depend on the kind and range of the access, and returns the key.
pub(crate) fn usable(keys: &Table<Mkey>, key: u32, scope: KeyScope) -> Result<&Mkey, KeyError> {
    let mkey = keys.get(key >> 8).ok_or(KeyError::Missing { key })?;
    if u32::from(mkey.variant) != key & 0xff {
        return Err(KeyError::Variant { key });
    }
    if mkey.free {
        return Err(KeyError::Free { key });
    }
    if mkey.pd != scope.pd && scope.pd != ANY_PD {
        return Err(KeyError::ProtectionDomain { key });
    }
    if mkey.qpn != ANY_QP && mkey.qpn != scope.qpn {
        return Err(KeyError::QueuePair { key });
    }
    Ok(mkey)
}

fn pages(mkey: &Mkey, table: &[u64], access: Use, out: &mut Vec<Piece>) -> Result<(), KeyError> {
    let Use {
        key,
        va,
        bytes,
        write,
        ..
    } = access;
    let range = KeyError::Range { key, va, bytes };
    let size = 1_u64 << mkey.log_page;
    let mut done = 0;
    while done < bytes {
        let at = va + done;
        let index = (at >> mkey.log_page).wrapping_sub(mkey.start >> mkey.log_page);
        let entry = usize::try_from(index)
            .ok()
            .and_then(|index| table.get(index))
            .ok_or(range)?;
        let needed = if write { PAGE_WRITE } else { PAGE_READ };
        if mkey.page_access && entry & needed == 0 {
            return Err(KeyError::Access { key });
        }
        let inside = at & (size - 1);
        let run = (size - inside).min(bytes - done);
        push(out, (entry & !7 & !(size - 1)) | inside, run);
        done += run;
    }
    Ok(())
}

fn push(out: &mut Vec<Piece>, iova: u64, bytes: u64) {
    if let Some(last) = out.last_mut()
        && last.iova.wrapping_add(last.bytes) == iova
    {
        last.bytes += bytes;
        return;
    }
    out.push(Piece { iova, bytes });
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: KeyRules = KeyRules {
        reserved_lkey: 0x8f00,
        max_indirection: 2,
    };

    fn scope() -> KeyScope {
        KeyScope {
            pd: 1,
            qpn: 0x58,
            remote: false,
            atomic: false,
            rlky: false,
        }
    }

    fn remote() -> KeyScope {
        KeyScope {
            remote: true,
            ..scope()
        }
    }

    fn mkey(start: u64, length: u64, log_page: u32, table: Vec<u64>) -> Mkey {
        Mkey {
            variant: 0x5a,
            free: false,
            umr_enabled: false,
            remote_invalidate: false,
            relaxed_writes: false,
            relaxed_reads: false,
            access: Access {
                local_read: true,
                local_write: true,
                ..Access::default()
            },
            pd: 1,
            qpn: ANY_QP,
            start,
            length,
            unlimited: false,
            log_page,
            page_access: false,
            octowords: 0,
            translation: Translation::Pages(table),
            held: Vec::new(),
        }
    }

    fn table(mkey: Mkey) -> (Table<Mkey>, u32) {
        let mut keys = Table::new("mkey", 0x100, 0x1ff, 64);
        let index = keys.create(mkey).unwrap();
        (keys, index << 8 | 0x5a)
    }

    fn resolved(keys: &Table<Mkey>, access: Use) -> Result<Vec<Piece>, KeyError> {
        let mut pieces = Vec::new();
        resolve(keys, RULES, access, &mut pieces)?;
        Ok(pieces)
    }

    fn read(
        keys: &Table<Mkey>,
        key: u32,
        scope: KeyScope,
        va: u64,
        bytes: u64,
    ) -> Result<Vec<Piece>, KeyError> {
        resolved(
            keys,
            Use {
                key,
                scope,
                va,
                bytes,
                write: false,
            },
        )
    }

    #[test]
    fn an_access_across_pages_follows_the_table() {
        let (keys, key) = table(mkey(0x7f00_0800, 0x1800, 12, vec![0x10000, 0x30000]));
        let pieces = read(&keys, key, scope(), 0x7f00_0ff0, 0x20).unwrap();
        assert_eq!(
            pieces,
            [
                Piece {
                    iova: 0x10ff0,
                    bytes: 0x10
                },
                Piece {
                    iova: 0x30000,
                    bytes: 0x10
                }
            ]
        );
    }

    #[test]
    fn adjoining_pages_are_one_piece() {
        let (keys, key) = table(mkey(0x1000, 0x2000, 12, vec![0x10000, 0x11000]));
        assert_eq!(
            read(&keys, key, scope(), 0x1000, 0x2000).unwrap(),
            [Piece {
                iova: 0x10000,
                bytes: 0x2000
            }]
        );
    }

    #[test]
    fn each_check_has_its_own_error() {
        let (mut keys, key) = table(mkey(0x1000, 0x1000, 12, vec![0x10000]));
        let index = key >> 8;
        assert_eq!(
            read(&keys, 0x1ff00, scope(), 0x1000, 1),
            Err(KeyError::Missing { key: 0x1ff00 })
        );
        assert_eq!(
            read(&keys, key ^ 1, scope(), 0x1000, 1),
            Err(KeyError::Variant { key: key ^ 1 })
        );
        let foreign = KeyScope { pd: 2, ..scope() };
        assert_eq!(
            read(&keys, key, foreign, 0x1000, 1),
            Err(KeyError::ProtectionDomain { key })
        );
        assert_eq!(
            read(&keys, key, remote(), 0x1000, 1),
            Err(KeyError::Access { key })
        );
        let range = |va, bytes| Err(KeyError::Range { key, va, bytes });
        assert_eq!(read(&keys, key, scope(), 0x1fff, 2), range(0x1fff, 2));
        assert_eq!(read(&keys, key, scope(), 0xfff, 1), range(0xfff, 1));
        assert_eq!(read(&keys, key, scope(), u64::MAX, 2), range(u64::MAX, 2));
        keys.get_mut(index).unwrap().qpn = 0x59;
        assert_eq!(
            read(&keys, key, scope(), 0x1000, 1),
            Err(KeyError::QueuePair { key })
        );
        keys.get_mut(index).unwrap().free = true;
        assert_eq!(
            read(&keys, key, scope(), 0x1000, 1),
            Err(KeyError::Free { key })
        );
    }

    #[test]
    fn page_permissions_count_when_the_key_has_them() {
        let mut region = mkey(0x1000, 0x1000, 12, vec![0x10000 | PAGE_READ]);
        region.page_access = true;
        let (keys, key) = table(region);
        assert!(read(&keys, key, scope(), 0x1000, 8).is_ok());
        let write = Use {
            key,
            scope: scope(),
            va: 0x1000,
            bytes: 8,
            write: true,
        };
        assert_eq!(resolved(&keys, write), Err(KeyError::Access { key }));
    }

    #[test]
    fn the_reserved_lkey_needs_rlky_and_is_never_remote() {
        let (keys, _) = table(mkey(0, 0, 12, vec![]));
        assert_eq!(
            read(&keys, 0x8f00, scope(), 0x5000, 4),
            Err(KeyError::Reserved)
        );
        let allowed = KeyScope {
            rlky: true,
            ..scope()
        };
        assert_eq!(
            read(&keys, 0x8f00, allowed, 0x5000, 4).unwrap(),
            [Piece {
                iova: 0x5000,
                bytes: 4
            }]
        );
        let peer = KeyScope {
            rlky: true,
            ..remote()
        };
        assert_eq!(
            read(&keys, 0x8f00, peer, 0x5000, 4),
            Err(KeyError::Missing { key: 0x8f00 })
        );
    }

    #[test]
    fn an_indirect_key_grants_by_itself_and_reaches_through_another() {
        let (mut keys, inner) = table(mkey(0x1000, 0x2000, 12, vec![0x10000, 0x30000]));
        let mut window = mkey(0x9000, 0x100, 0, vec![]);
        window.access = Access {
            remote_write: true,
            ..Access::default()
        };
        window.translation = Translation::Keys(Ranges::new(vec![Klm {
            bytes: 0x100,
            key: inner,
            va: 0x1f80,
        }]));
        let index = keys.create(window).unwrap();
        let key = index << 8 | 0x5a;
        let write = Use {
            key,
            scope: remote(),
            va: 0x9000,
            bytes: 0x100,
            write: true,
        };
        let pieces = resolved(&keys, write).unwrap();
        assert_eq!(
            pieces,
            [
                Piece {
                    iova: 0x10f80,
                    bytes: 0x80
                },
                Piece {
                    iova: 0x30000,
                    bytes: 0x80
                }
            ]
        );
        assert_eq!(
            read(&keys, key, remote(), 0x9000, 4),
            Err(KeyError::Access { key })
        );
    }

    /// A KSM entry with the reserved lkey needs `rlky` when it is used. The test creates the key without CREATE_MKEY,
    /// which refuses such an entry unless the key is free.
    #[test]
    fn the_reserved_lkey_behind_an_indirect_key_needs_rlky() {
        let entry = Klm {
            bytes: 0,
            key: RULES.reserved_lkey,
            va: 0x5000,
        };
        let mut outer = mkey(0, 0x1000, 12, vec![]);
        outer.access.remote_read = true;
        outer.translation = Translation::EqualKeys(vec![entry]);
        let (keys, key) = table(outer);
        let own = KeyScope {
            rlky: true,
            ..scope()
        };
        for user in [scope(), remote()] {
            assert_eq!(read(&keys, key, user, 0, 4), Err(KeyError::Reserved));
        }
        assert!(read(&keys, key, own, 0, 4).is_ok());
    }

    #[test]
    fn indirect_keys_do_not_nest_for_ever() {
        let mut keys = Table::new("mkey", 0x100, 0x1ff, 64);
        let index = keys.reserve().unwrap();
        let mut endless = mkey(0, 0x1000, 0, vec![]);
        endless.translation = Translation::Keys(Ranges::new(vec![Klm {
            bytes: 0x1000,
            key: index << 8 | 0x5a,
            va: 0,
        }]));
        keys.insert(index, endless);
        let key = index << 8 | 0x5a;
        assert_eq!(
            read(&keys, key, scope(), 0, 8),
            Err(KeyError::Access { key })
        );
    }

    /// An access outside of the ranges of an unlimited key of keys is refused, whether the access is before the first
    /// range or behind the last one.
    #[test]
    fn an_access_before_the_first_range_of_a_key_of_keys_leaves_it() {
        let (mut keys, inner) = table(mkey(0x1000, 0x2000, 12, vec![0x10000, 0x30000]));
        let entry = Klm {
            bytes: 0x1000,
            key: inner,
            va: 0x1000,
        };
        for translation in [
            Translation::Keys(Ranges::new(vec![entry])),
            Translation::EqualKeys(vec![entry]),
        ] {
            let mut outer = mkey(0x1000_0000, 1, 12, vec![]);
            outer.unlimited = true;
            outer.translation = translation;
            let key = keys.create(outer).unwrap() << 8 | 0x5a;
            for va in [0, 0x0fff_ffff, 0x1000_1000, u64::MAX - 4] {
                let refused = Err(KeyError::Range { key, va, bytes: 4 });
                assert_eq!(read(&keys, key, scope(), va, 4), refused);
            }
            let pieces = read(&keys, key, scope(), 0x1000_0ffc, 4).unwrap();
            let last = Piece {
                iova: 0x10ffc,
                bytes: 4,
            };
            assert_eq!(pieces, [last]);
        }
    }

    /// An access through nested keys follows a limited number of entries. The test nests four keys, each with a full
    /// table of one-byte ranges of the next key, which makes 2^64 paths.
    #[test]
    fn nested_keys_are_followed_for_a_limited_number_of_entries() {
        let (mut keys, mut key) = table(mkey(0, 0x1000, 12, vec![0x10000]));
        let innermost = key;
        let range = |bytes, key| Klm { bytes, key, va: 0 };
        let make = |keys: &mut Table<Mkey>, ranges| {
            let mut outer = mkey(0, 1 << 16, 0, vec![]);
            outer.translation = Translation::Keys(Ranges::new(ranges));
            keys.create(outer).unwrap() << 8 | 0x5a
        };
        let one = make(&mut keys, vec![range(1, innermost); 1 << 16]);
        assert_eq!(
            read(&keys, one, scope(), 0, 1 << 16).unwrap().len(),
            1 << 16
        );
        // The entry is found by its offset, not by a search from the front, so the skipped entries do not count.
        let far = make(&mut keys, vec![range(1, one); 1 << 16]);
        assert_eq!(read(&keys, far, scope(), 0xfff0, 16).unwrap().len(), 16);
        let deep = KeyRules {
            max_indirection: 4,
            ..RULES
        };
        for _ in 0..4 {
            key = make(&mut keys, vec![range(1, key); 1 << 16]);
        }
        let access = Use {
            key,
            scope: scope(),
            va: 0,
            bytes: 1 << 16,
            write: false,
        };
        let refused = resolve(&keys, deep, access, &mut Vec::new());
        assert!(
            matches!(refused, Err(KeyError::Access { .. })),
            "{refused:?}"
        );
        // Empty ranges between two others count as followed entries.
        let mut gap = vec![range(0, innermost); 1 << 16];
        gap[0].bytes = 1;
        gap[0xffff].bytes = 1;
        let gap = make(&mut keys, gap);
        let outer = make(&mut keys, vec![range(2, gap); 1 << 15]);
        let refused = read(&keys, outer, scope(), 0, 1 << 16);
        assert_eq!(refused, Err(KeyError::Access { key: gap }));
    }
}
