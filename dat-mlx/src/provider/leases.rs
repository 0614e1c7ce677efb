//! Ranges of a function's arena that are in use: the buffers in which the memory of regions lies.

use driver::{ArenaSnapshot, ChunkSnapshot, LeaseSnapshot};

/// A range of I/O addresses that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lease {
    /// First I/O address.
    pub(super) iova: u64,
    /// Length in bytes.
    pub(super) bytes: u64,
}

/// All ranges of an arena that are in use, by I/O address.
#[derive(Debug)]
pub(super) struct Leases(Vec<Lease>);

impl Leases {
    /// Lists the ranges of an arena, whose snapshot was not checked yet.
    pub(super) fn of(arena: &ArenaSnapshot) -> Self {
        let mut all: Vec<Lease> = arena.chunks.iter().flat_map(leases).collect();
        all.sort_unstable_by_key(|lease| lease.iova);
        Self(all)
    }

    /// Returns the range that has all of `bytes` bytes at an I/O address; `None` if no range has them.
    pub(super) fn around(&self, iova: u64, bytes: u64) -> Option<Lease> {
        let at = self.0.partition_point(|lease| lease.iova <= iova);
        let lease = *self.0.get(at.checked_sub(1)?)?;
        let end = (iova - lease.iova).checked_add(bytes)?;
        (end <= lease.bytes).then_some(lease)
    }
}

fn leases(chunk: &ChunkSnapshot) -> impl Iterator<Item = Lease> + '_ {
    chunk.leases.iter().map(|lease| {
        let &LeaseSnapshot { offset, bytes } = lease;
        Lease {
            iova: chunk.iova.saturating_add(offset),
            bytes,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_only_inside_of_one_range() {
        let lease = |offset, bytes| LeaseSnapshot { offset, bytes };
        let chunk = |iova, leases| ChunkSnapshot {
            iova,
            bytes: 4096,
            is_dedicated: false,
            used_below: 0,
            leases,
        };
        let arena = ArenaSnapshot {
            chunk_bytes: 4096,
            chunks: vec![
                chunk(0x9000, vec![lease(0, 64), lease(128, 128)]),
                chunk(0x1000, vec![lease(64, 64), lease(128, 64)]),
                chunk(u64::MAX - 63, vec![lease(64, u64::MAX)]),
            ],
        };
        let leases = Leases::of(&arena);
        let of = |iova, bytes| leases.around(iova, bytes).map(|lease| lease.iova);
        assert_eq!(of(0x1000, 64), None);
        assert_eq!(of(0x1040, 64), Some(0x1040));
        assert_eq!(of(0x1041, 63), Some(0x1040));
        assert_eq!(of(0x1041, 64), None);
        assert_eq!(of(0x9080, 128), Some(0x9080));
        assert_eq!(of(0x90f0, 16), Some(0x9080));
        assert_eq!(of(0x9040, 1), None);
        assert_eq!(of(0x9080, u64::MAX), None);
        assert_eq!(of(0, 1), None);
    }
}
