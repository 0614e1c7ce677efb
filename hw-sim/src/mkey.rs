//! Memory keys: from a key and a virtual address to DMA addresses.
//!
//! The checks happen in one order, whoever asks: the key exists, its variant is the one used, it is
//! not free, protection domain and queue pair agree, the access is granted, the range lies inside.
//! Then the translation: none (PA), a table of pages (MTT), or a table of other keys (KLM, and KSM
//! with entries of equal size), which is followed as deep as the device allows. The keys behind an
//! indirect key are used with local rights: what a peer may do is decided by the key it was given.
//!
//! A failed check moves nothing. [`resolve`] finds the pieces of an access; the DMA is the caller's.

use crate::host::{ANY_PD, KeyError, KeyScope};
use crate::objects::Table;

/// `qpn` of a key that any queue pair may use.
pub const ANY_QP: u32 = 0x00ff_ffff;
/// Read permission of a translation entry of a key created with `pg_access`.
const PAGE_READ: u64 = 1;
/// Write permission.
const PAGE_WRITE: u64 = 2;

/// What a key grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the bits of the context")]
pub struct Access {
    /// Local read.
    pub local_read: bool,
    /// Local write.
    pub local_write: bool,
    /// Remote read.
    pub remote_read: bool,
    /// Remote write.
    pub remote_write: bool,
    /// Remote atomic.
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

/// An entry of an indirect key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Klm {
    /// Bytes it covers; for KSM the entity size counts instead.
    pub bytes: u32,
    /// The key behind it.
    pub key: u32,
    /// Address in that key.
    pub va: u64,
}

/// How addresses become DMA addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Translation {
    /// They are DMA addresses.
    Physical,
    /// Pages, with permission bits if the key has `pg_access`.
    Pages(Vec<u64>),
    /// Ranges of other keys, end to end.
    Keys(Vec<Klm>),
    /// Ranges of other keys, all of one size.
    EqualKeys(Vec<Klm>),
}

/// A memory key.
#[derive(Clone, Debug)]
pub struct Mkey {
    /// Low byte of the key.
    pub variant: u8,
    /// Exists, and may not be used.
    pub free: bool,
    /// A UMR may change it.
    pub umr_enabled: bool,
    /// A peer may invalidate it.
    pub remote_invalidate: bool,
    /// What it grants.
    pub access: Access,
    /// Protection domain.
    pub pd: u32,
    /// Queue pair, or [`ANY_QP`].
    pub qpn: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Whole address space; `start` and `length` do not count.
    pub unlimited: bool,
    /// log2 of the page or entity size.
    pub log_page: u32,
    /// Translation entries carry permissions.
    pub page_access: bool,
    /// 16-byte units the translation table has room for.
    pub octowords: u32,
    /// The translation.
    pub translation: Translation,
    /// Indices of the keys it holds a reference to.
    pub held: Vec<u32>,
}

impl Mkey {
    /// Indices of the keys this one reaches through. A free key reaches through none.
    fn targets(&self) -> Vec<u32> {
        match &self.translation {
            Translation::Keys(table) | Translation::EqualKeys(table) if !self.free => table
                .iter()
                .filter(|entry| entry.bytes != 0 || self.is_equal_sized())
                .map(|entry| entry.key >> 8)
                .collect(),
            Translation::Keys(_)
            | Translation::EqualKeys(_)
            | Translation::Physical
            | Translation::Pages(_) => Vec::new(),
        }
    }

    /// Its table names other keys.
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

/// Counts the references of the key at `index` to the keys behind it anew, after it changed. A key
/// that others reach through cannot be destroyed (status 0x09).
pub fn recount_targets(keys: &mut Table<Mkey>, index: u32) {
    let targets = keys.get(index).map(Mkey::targets).unwrap_or_default();
    // Entries that name no key are found out when they are used.
    let held: Vec<u32> = targets
        .into_iter()
        .filter(|&target| keys.hold(target).is_ok())
        .collect();
    if let Some(mkey) = keys.get_mut(index) {
        let before = std::mem::replace(&mut mkey.held, held);
        release_targets(keys, &before);
    }
}

/// The key that held these is gone.
pub fn release_targets(keys: &mut Table<Mkey>, held: &[u32]) {
    for &index in held {
        keys.release(index);
    }
}

/// A piece of an access, in DMA addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address.
    pub iova: u64,
    /// Bytes.
    pub bytes: u64,
}

/// An access through a key.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The key as named.
    pub key: u32,
    /// By whom.
    pub scope: KeyScope,
    /// First virtual address.
    pub va: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether memory is written.
    pub write: bool,
}

/// What the function says about keys in general.
#[derive(Clone, Copy, Debug)]
pub struct KeyRules {
    /// The reserved lkey.
    pub reserved_lkey: u32,
    /// How deep indirect keys may nest.
    pub max_indirection: u32,
}

/// Checks an access and translates it; the pieces are added to a list.
///
/// # Errors
/// [`KeyError`]: the first check that fails, of the key or of one it reaches through.
pub(crate) fn resolve(
    keys: &Table<Mkey>,
    rules: KeyRules,
    access: Use,
    pieces: &mut Vec<Piece>,
) -> Result<(), KeyError> {
    walk(keys, rules, access, 0, pieces)
}

fn walk(
    keys: &Table<Mkey>,
    rules: KeyRules,
    access: Use,
    depth: u32,
    out: &mut Vec<Piece>,
) -> Result<(), KeyError> {
    let Use {
        key,
        scope,
        va,
        bytes,
        write,
    } = access;
    if key == rules.reserved_lkey && !scope.remote {
        if !scope.rlky {
            return Err(KeyError::Reserved);
        }
        push(out, va, bytes);
        return Ok(());
    }
    let mkey = usable(keys, key, scope)?;
    if !mkey.access.grants(scope, write) {
        return Err(KeyError::Access { key });
    }
    let range = KeyError::Range { key, va, bytes };
    let end = va.checked_add(bytes).ok_or(range)?;
    if !mkey.unlimited && (va < mkey.start || end > mkey.start.saturating_add(mkey.length)) {
        return Err(range);
    }
    if bytes == 0 {
        return Ok(());
    }
    match &mkey.translation {
        Translation::Physical => push(out, va, bytes),
        Translation::Pages(table) => pages(mkey, table, access, out)?,
        Translation::Keys(table) => {
            let mut at = mkey.start;
            for entry in table {
                follow(
                    keys,
                    rules,
                    access,
                    depth,
                    (at, u64::from(entry.bytes), entry),
                    out,
                )?;
                at = at.wrapping_add(u64::from(entry.bytes));
            }
            if end > at {
                return Err(range);
            }
        }
        Translation::EqualKeys(table) => {
            let size = 1_u64 << mkey.log_page;
            let base = mkey.start & !(size - 1);
            let at = |index: u64| base.saturating_add(index.saturating_mul(size));
            for (index, entry) in (0_u64..).zip(table) {
                follow(keys, rules, access, depth, (at(index), size, entry), out)?;
            }
            if end > at(table.len() as u64) {
                return Err(range);
            }
        }
    }
    Ok(())
}

/// The checks that do not depend on the access.
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

/// The part of an access that lies in one entry of an indirect key.
fn follow(
    keys: &Table<Mkey>,
    rules: KeyRules,
    access: Use,
    depth: u32,
    (base, size, entry): (u64, u64, &Klm),
    out: &mut Vec<Piece>,
) -> Result<(), KeyError> {
    let from = access.va.max(base);
    let to = (access.va + access.bytes).min(base.saturating_add(size));
    if from >= to {
        return Ok(());
    }
    if depth >= rules.max_indirection {
        return Err(KeyError::Access { key: access.key });
    }
    let scope = KeyScope {
        remote: false,
        atomic: false,
        rlky: true,
        ..access.scope
    };
    let inner = Use {
        key: entry.key,
        scope,
        va: entry.va.wrapping_add(from - base),
        bytes: to - from,
        write: access.write,
    };
    walk(keys, rules, inner, depth + 1, out)
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
        window.translation = Translation::Keys(vec![Klm {
            bytes: 0x100,
            key: inner,
            va: 0x1f80,
        }]);
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

    #[test]
    fn indirect_keys_do_not_nest_for_ever() {
        let mut keys = Table::new("mkey", 0x100, 0x1ff, 64);
        let index = keys.reserve().unwrap();
        let mut endless = mkey(0, 0x1000, 0, vec![]);
        endless.translation = Translation::Keys(vec![Klm {
            bytes: 0x1000,
            key: index << 8 | 0x5a,
            va: 0,
        }]);
        keys.insert(index, endless);
        let key = index << 8 | 0x5a;
        assert_eq!(
            read(&keys, key, scope(), 0, 8),
            Err(KeyError::Access { key })
        );
    }
}
