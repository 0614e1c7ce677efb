//! A slice: a part of an LMR. Its range is checked once, when the slice is made.
//!
//! A slice carries its key, range, PZ and rights, and the stamp that the LMR table had when the slice was made. While
//! no LMR of the IA has been freed since, a post compares only the stamp, the PZ and the right, and does not look the
//! LMR up. After any LMR was freed, each post of the slice looks its own LMR up in the table, to find out whether it
//! still exists. A new slice of the same memory avoids this look-up.

use super::table::LmrTable;
use crate::object::lmr::segment::{Scope, Segment, lacking, sealed};
use crate::provider::DataSegment;
use crate::refusal::Refusal;
use crate::types::MemPrivFlags;

/// A checked part of an LMR, ready to post. [`crate::Ia::lmr_slice`] makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmrSlice {
    pub(crate) address: u64,
    pub(crate) stamp: u64,
    pub(crate) lmr_context: u32,
    pub(crate) bytes: u32,
    /// Index of the PZ whose posts may read the slice: the LMR's PZ, or [`NOWHERE`] without the right. So one
    /// comparison checks PZ and right.
    pub(crate) readable_in: u32,
    /// Index of the PZ whose posts may write the slice, or [`NOWHERE`] without the right.
    pub(crate) writable_in: u32,
}

/// Index that no PZ has. (An endpoint without a PZ has the index `u32::MAX`, which differs.)
pub(crate) const NOWHERE: u32 = u32::MAX - 1;

impl LmrSlice {
    /// Returns the LMR context.
    #[must_use]
    pub const fn lmr_context(&self) -> u32 {
        self.lmr_context
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        // CAST: widening.
        self.bytes as u64
    }

    /// Returns whether the slice has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns a part of the slice, or `None` if the range reaches outside the slice.
    #[must_use]
    #[inline]
    pub const fn part(&self, offset: u64, bytes: u64) -> Option<Self> {
        let all = self.len();
        if offset > all || bytes > all - offset {
            return None;
        }
        // CAST: `bytes` is at most `self.bytes`, a `u32`. The sum of address and offset stays inside the LMR, or wraps
        // to 0 at the end of an LMR that ends at 2^64.
        #[expect(clippy::cast_possible_truncation, reason = "not more than a u32")]
        let bytes = bytes as u32;
        Some(Self {
            address: self.address.wrapping_add(offset),
            bytes,
            ..*self
        })
    }

    /// Checks a slice against the table. This is needed if an LMR was freed since the slice was made, if the slice
    /// belongs to another IA, or to find the error.
    #[cold]
    #[inline(never)]
    fn check_again(&self, lmrs: &LmrTable, pz: u32, need: MemPrivFlags) -> Result<(), Refusal> {
        let entry = lmrs.entry(self.lmr_context).ok_or(Refusal::Unknown)?;
        if !entry.contains(self.address, u64::from(self.bytes)) {
            return Err(Refusal::Range);
        }
        if entry.pz != pz {
            return Err(Refusal::Pz);
        }
        if !entry.privileges.contains(need) {
            return Err(lacking(need));
        }
        Ok(())
    }
}

impl Segment for LmrSlice {
    #[inline]
    fn bytes(&self) -> u64 {
        u64::from(self.bytes)
    }
}

impl sealed::Check for LmrSlice {
    #[inline]
    #[allow(private_interfaces, reason = "see the trait")]
    fn check(&self, scope: Scope<'_>) -> Result<(), Refusal> {
        let allowed_in = if scope.need == MemPrivFlags::LOCAL_WRITE {
            self.writable_in
        } else {
            self.readable_in
        };
        if self.stamp == scope.lmrs.stamp && allowed_in == scope.pz {
            return Ok(());
        }
        self.check_again(scope.lmrs, scope.pz, scope.need)
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "see the trait")]
    fn is_good(&self, scope: Scope<'_>) -> bool {
        self.check(scope).is_ok()
    }

    #[inline(always)]
    fn has_up_to(&self, most: u32) -> bool {
        self.bytes.wrapping_sub(1) < most
    }

    #[inline]
    fn data(&self) -> DataSegment {
        DataSegment {
            lmr_context: self.lmr_context,
            address: self.address,
            bytes: self.bytes,
        }
    }
}
