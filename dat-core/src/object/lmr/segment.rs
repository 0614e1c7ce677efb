//! Segments of local memory in a post, and their checks.
//!
//! A segment has one of two types. An [`LmrTriplet`] is DAT's: three plain numbers, which must be looked up in the
//! `LmrTable`. An [`LmrSlice`](crate::LmrSlice) was checked when it was made, and carries the values that a post
//! compares.
//!
//! Each segment is checked in this order. An empty segment is skipped without inspecting its other fields. Then the LMR
//! must exist, the range must lie inside the LMR, the LMR's PZ must be the queue's, the LMR must have the needed right,
//! and the length must be at most `MAX_SEGMENT_BYTES`. The first fault is returned, and nothing is posted. `check`
//! checks all segments before the provider sees any of them. So the second pass (`pieces`), which encodes the segments,
//! cannot fail.

use crate::object::lmr::table::LmrTable;
use crate::provider::{DataSegment, MAX_SEGMENT_BYTES};
use crate::refusal::Refusal;
use crate::types::MemPrivFlags;

/// Local memory in the form that DAT's posts use (`DAT_LMR_TRIPLET`, with its memory layout).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(C)]
pub struct LmrTriplet {
    /// LMR context that `lmr_create` returned.
    pub lmr_context: u32,
    /// Address of the first byte.
    pub virtual_address: u64,
    /// Length in bytes. If it is 0, which is legal, the other fields are ignored.
    pub segment_length: u64,
}

/// Memory of a peer (`DAT_RMR_TRIPLET`, with its memory layout).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RmrTriplet {
    /// RMR context, which the peer has sent to us.
    pub rmr_context: u32,
    /// Address of the first byte, in the peer's address space.
    pub target_address: u64,
    /// Length in bytes.
    pub segment_length: u64,
}

impl RmrTriplet {
    /// Length of the encoding that [`to_bytes`](Self::to_bytes) returns, in bytes.
    pub const BYTES: usize = 20;

    /// Encodes the triplet for a message or private data: `rmr_context`, `target_address` and `segment_length`, in 4,
    /// 8 and 8 bytes, big-endian. DAT leaves the format to the programs.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.rmr_context.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.target_address.to_be_bytes());
        bytes[12..].copy_from_slice(&self.segment_length.to_be_bytes());
        bytes
    }

    /// Decodes the first 20 bytes of `bytes`, as [`to_bytes`](Self::to_bytes) encodes them. Further bytes are ignored,
    /// because private data arrives padded. Returns `None` if there are fewer bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (context, rest) = bytes.split_first_chunk()?;
        let (address, rest) = rest.split_first_chunk()?;
        let (length, _) = rest.split_first_chunk()?;
        Some(Self {
            rmr_context: u32::from_be_bytes(*context),
            target_address: u64::from_be_bytes(*address),
            segment_length: u64::from_be_bytes(*length),
        })
    }
}

/// The values that a segment is checked against.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) lmrs: &'a LmrTable,
    /// Index of the PZ of the endpoint or SRQ.
    pub(crate) pz: u32,
    /// Right that the operation needs.
    pub(crate) need: MemPrivFlags,
}

pub(crate) mod sealed {
    use super::{DataSegment, Refusal, Scope};

    /// The checks of [`super::Segment`]. Consumers cannot name this trait, so they cannot implement `Segment`.
    pub trait Check: Copy {
        #[doc(hidden)]
        #[allow(
            private_interfaces,
            reason = "the trait cannot be named outside of this crate"
        )]
        fn check(&self, scope: Scope<'_>) -> Result<(), Refusal>;
        /// Returns whether [`Check::check`] would succeed. The caller has checked that the segment has at most
        /// [`MAX_SEGMENT_BYTES`](crate::provider::MAX_SEGMENT_BYTES).
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "as above")]
        fn is_good(&self, scope: Scope<'_>) -> bool;
        /// Returns whether the segment has at least one byte, and at most `most`.
        #[doc(hidden)]
        fn has_up_to(&self, most: u32) -> bool;
        #[doc(hidden)]
        fn data(&self) -> DataSegment;
    }
}

/// An element of a post's I/O vector: [`LmrTriplet`] or [`LmrSlice`](crate::LmrSlice).
pub trait Segment: sealed::Check {
    /// Length in bytes.
    fn bytes(&self) -> u64;
}

impl Segment for LmrTriplet {
    #[inline]
    fn bytes(&self) -> u64 {
        self.segment_length
    }
}

impl sealed::Check for LmrTriplet {
    #[inline]
    #[allow(private_interfaces, reason = "see the trait")]
    fn check(&self, scope: Scope<'_>) -> Result<(), Refusal> {
        let entry = scope.lmrs.entry(self.lmr_context).ok_or(Refusal::Unknown)?;
        if !entry.contains(self.virtual_address, self.segment_length) {
            return Err(Refusal::Range);
        }
        if entry.pz != scope.pz {
            return Err(Refusal::Pz);
        }
        if !entry.privileges.contains(scope.need) {
            return Err(lacking(scope.need));
        }
        if self.segment_length > MAX_SEGMENT_BYTES {
            return Err(Refusal::LongSegment);
        }
        Ok(())
    }

    #[inline(always)]
    #[allow(private_interfaces, reason = "see the trait")]
    fn is_good(&self, scope: Scope<'_>) -> bool {
        scope.lmrs.entry(self.lmr_context).is_some_and(|entry| {
            entry.contains(self.virtual_address, self.segment_length)
                && entry.pz == scope.pz
                && entry.privileges.contains(scope.need)
        })
    }

    #[inline(always)]
    fn has_up_to(&self, most: u32) -> bool {
        self.segment_length.wrapping_sub(1) < u64::from(most)
    }

    #[inline]
    fn data(&self) -> DataSegment {
        // CAST: `check` has bounded the length to 31 bits.
        #[allow(clippy::cast_possible_truncation, reason = "checked to be below 2^31")]
        DataSegment {
            lmr_context: self.lmr_context,
            address: self.virtual_address,
            bytes: self.segment_length as u32,
        }
    }
}

/// Checks every segment of `iov`. Returns the sum of their lengths, saturating.
#[inline]
pub(crate) fn check<S: Segment>(iov: &[S], scope: Scope<'_>) -> Result<u64, Refusal> {
    let mut total = 0u64;
    for segment in iov {
        if segment.bytes() != 0 {
            segment.check(scope)?;
            total = total.saturating_add(segment.bytes());
        }
    }
    Ok(total)
}

/// Returns the non-empty segments of a checked `iov`.
#[inline]
pub(crate) fn pieces<S: Segment>(iov: &[S]) -> impl Iterator<Item = DataSegment> + Clone {
    iov.iter()
        .filter(|segment| segment.bytes() != 0)
        .map(sealed::Check::data)
}

/// Returns the non-empty segments, truncated after `limit` bytes in total: the sink of an RDMA Read may be longer than
/// its source.
#[inline]
pub(crate) fn pieces_up_to<S: Segment>(
    iov: &[S],
    limit: u64,
) -> impl Iterator<Item = DataSegment> + Clone {
    pieces(iov).scan(limit, |left, mut segment| {
        let bytes = u64::from(segment.bytes).min(*left);
        *left -= bytes;
        // CAST: `bytes` is at most `segment.bytes`, a `u32`.
        #[allow(clippy::cast_possible_truncation, reason = "min of a u32")]
        {
            segment.bytes = bytes as u32;
        }
        (bytes != 0).then_some(segment)
    })
}

/// Returns the refusal for a missing right.
#[inline]
pub(crate) const fn lacking(right: MemPrivFlags) -> Refusal {
    if right.contains(MemPrivFlags::LOCAL_WRITE) {
        Refusal::NoWrite
    } else {
        Refusal::NoRead
    }
}
