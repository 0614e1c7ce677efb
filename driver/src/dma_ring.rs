//! Rings and words in DMA memory whose bounds are checked once.
//!
//! A post or a poll accesses the same few addresses repeatedly: a block of a ring whose size is a power of two, and a
//! word of a doorbell record. [`DmaBuffer`](crate::DmaBuffer)'s accessors check offset, length and alignment each
//! time, which costs a fifth of the instructions of a post. Here the check is made once, when the ring or the word is
//! made. Later accesses cannot go outside: an index is masked to the ring's size, and the offset within a block is
//! checked at compile time (in `write_at` at run time).
//!
//! Each of these types keeps its memory alive, as a clone of the buffer would. The types are small, because each of
//! ten thousand queues has some of them in the data that a post reads. A ring stores a mask and no length.

// UNSAFETY: accesses whose bounds were checked when the ring or the word was made.
#![expect(unsafe_code, reason = "accesses proven once")]

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::dma::{DmaBuffer, Lease};
use crate::register::Be64;
use crate::span::Span;

/// A ring of blocks of `BLOCK` bytes. The number of blocks is a power of two. `BLOCK` is a power of two of at least 8.
///
/// An index counts blocks, and every access masks it. So the owner may increase an index without a wrap at the end.
#[derive(Clone)]
pub struct DmaRing<const BLOCK: usize> {
    place: Place<BLOCK>,
    _lease: Arc<Lease>,
}

/// Location of a ring: `(mask + 1) * BLOCK` bytes, checked to be inside a buffer and aligned to 8. The owner of a
/// `Place` keeps the bytes mapped.
#[derive(Clone, Copy)]
#[repr(C)]
struct Place<const BLOCK: usize> {
    base: NonNull<u8>,
    /// Number of blocks minus one, less than 2^31.
    mask: u32,
    /// Not part of the location: see [`DmaQueue::count`].
    count: u32,
}

// SAFETY: a `Place` is an address, as a span is, and two numbers. All accesses go through a span.
unsafe impl<const BLOCK: usize> Send for Place<BLOCK> {}
// SAFETY: as above.
unsafe impl<const BLOCK: usize> Sync for Place<BLOCK> {}

impl<const BLOCK: usize> Place<BLOCK> {
    const BLOCK_IS_A_POWER_OF_TWO: () = assert!(BLOCK.is_power_of_two() && BLOCK >= 8);

    /// Locates the ring of `blocks` blocks that starts at byte `offset` of a buffer.
    ///
    /// # Panics
    /// If `blocks` is not a power of two, or the ring is not inside the buffer or not aligned to 8.
    fn new(buffer: &DmaBuffer, offset: usize, blocks: u32) -> Self {
        let () = Self::BLOCK_IS_A_POWER_OF_TWO;
        let bytes = (blocks as usize).checked_mul(BLOCK);
        let bytes =
            bytes.filter(|&bytes| blocks.is_power_of_two() && buffer.contains(offset, bytes));
        let base = bytes.map(|bytes| buffer.span().at(offset, bytes));
        let Some(base) = base.filter(|base| base.addr().get().is_multiple_of(8)) else {
            panic!(
                "a ring of {blocks} blocks of {BLOCK} bytes at {offset:#x} of {:#x}",
                buffer.len()
            );
        };
        Self {
            base,
            mask: blocks - 1,
            count: 0,
        }
    }

    const fn span(&self) -> Span {
        // CAST: widening.
        let bytes = (self.mask as usize + 1) * BLOCK;
        // SAFETY: `new` has checked that these bytes are inside a buffer, and the owner of the place keeps them mapped.
        // The buffer's own span fulfils the other requirements.
        unsafe { Span::new(self.base, bytes) }
    }

    /// Returns `PART` bytes of the ring. `index` counts parts of that size, and is masked.
    #[inline]
    const fn part<const PART: usize>(&self, index: u32) -> DmaBlock<'_, PART> {
        const {
            assert!(
                PART.is_power_of_two() && PART >= 8 && PART <= BLOCK,
                "the part is not a part of a block"
            );
        }
        // CAST: widening.
        let mask = (self.mask as usize + 1) * (BLOCK / PART) - 1;
        DmaBlock {
            span: self.span(),
            // CAST: widening.
            at: (index as usize & mask) * PART,
            ring: PhantomData,
        }
    }
}

impl<const BLOCK: usize> DmaRing<BLOCK> {
    /// Makes the ring of `blocks` blocks that starts at byte `offset` of a buffer.
    ///
    /// # Panics
    /// If `blocks` is not a power of two, or the ring is not inside the buffer or not aligned to 8.
    #[must_use]
    pub fn new(buffer: &DmaBuffer, offset: usize, blocks: u32) -> Self {
        Self {
            place: Place::new(buffer, offset, blocks),
            _lease: buffer.lease(),
        }
    }

    /// Returns the number of an index's block: the masked index. All indices of one block give the same number.
    #[inline]
    #[must_use]
    pub const fn slot(&self, index: u32) -> u32 {
        index & self.place.mask
    }

    /// Returns the block of an index.
    #[inline]
    #[must_use]
    pub const fn block(&self, index: u32) -> DmaBlock<'_, BLOCK> {
        DmaBlock {
            span: self.place.span(),
            // CAST: widening.
            at: self.slot(index) as usize * BLOCK,
            ring: PhantomData,
        }
    }
}

/// A ring, the word of its doorbell record, and a count: the memory that a work queue needs for a post, in half a
/// cache line.
#[repr(C)]
pub struct DmaQueue<const BLOCK: usize> {
    place: Place<BLOCK>,
    /// Address of four bytes, aligned to 4, which [`DmaWord`] has checked.
    word: NonNull<u8>,
    _leases: Arc<[Arc<Lease>; 2]>,
}

// SAFETY: `word` is an address, as in a span; all accesses go through a span.
unsafe impl<const BLOCK: usize> Send for DmaQueue<BLOCK> {}
// SAFETY: as above.
unsafe impl<const BLOCK: usize> Sync for DmaQueue<BLOCK> {}

impl<const BLOCK: usize> DmaQueue<BLOCK> {
    /// Makes the ring of `blocks` blocks that starts at byte `offset` of `buffer`. `record` is the buffer and the byte
    /// offset of the word.
    ///
    /// # Panics
    /// As [`DmaRing::new`] and [`DmaWord::new`].
    #[must_use]
    pub fn new(
        buffer: &DmaBuffer,
        offset: usize,
        blocks: u32,
        record: (&DmaBuffer, usize),
    ) -> Self {
        let word = DmaWord::new(record.0, record.1);
        Self {
            place: Place::new(buffer, offset, blocks),
            word: word.at,
            _leases: Arc::new([buffer.lease(), record.0.lease()]),
        }
    }

    /// Returns the block of an index.
    #[inline]
    #[must_use]
    pub const fn block(&self, index: u32) -> DmaBlock<'_, BLOCK> {
        self.place.part(index)
    }

    /// Returns `PART` bytes of the ring. `index` counts parts of that size, and is masked.
    #[inline]
    #[must_use]
    pub const fn part<const PART: usize>(&self, index: u32) -> DmaBlock<'_, PART> {
        self.place.part(index)
    }

    /// Stores the word in a single relaxed access.
    #[inline]
    pub fn store(&self, value: u32) {
        // SAFETY: `new` took the address from a `DmaWord`, and `_leases` keep its buffer.
        unsafe { store_word(self.word, value) };
    }

    /// Returns the progress of the queue: a number that only the queue's owner changes. It is stored here because the
    /// owner reads and writes it together with the ring.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.place.count
    }

    /// Sets [`DmaQueue::count`].
    #[inline]
    pub const fn set_count(&mut self, count: u32) {
        self.place.count = count;
    }
}

impl<const BLOCK: usize> std::fmt::Debug for DmaQueue<BLOCK> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "DmaQueue({:#x} blocks of {BLOCK:#x} bytes at {:#x}, record word at {:#x})",
            u64::from(self.place.mask) + 1,
            self.place.base.addr(),
            self.word.addr()
        )
    }
}

/// A block of a ring. The offset of an access in the block is checked at compile time, in `write_at` at run time.
#[derive(Clone, Copy)]
pub struct DmaBlock<'a, const BLOCK: usize> {
    span: Span,
    /// Offset of the block, whose `BLOCK` bytes are inside the span.
    at: usize,
    /// Borrows the ring, whose lease keeps the memory mapped.
    ring: PhantomData<&'a Arc<Lease>>,
}

impl<const BLOCK: usize> DmaBlock<'_, BLOCK> {
    /// Copies an object to the start of the block, its bytes in no particular order.
    #[inline]
    pub fn write<T: IntoBytes + Immutable>(self, value: &T) {
        const { assert!(size_of::<T>() <= BLOCK, "the object is larger than a block") };
        // SAFETY: the block's `BLOCK` bytes are inside the span (its index was masked, and `Place::new` has checked
        // the ring), and the object has no more bytes.
        unsafe { self.span.write_obj_unchecked(self.at, value) }
    }

    /// Copies an object into the block, from byte `at` on.
    ///
    /// # Panics
    /// If the object is not inside the block.
    #[inline]
    pub fn write_at<T: IntoBytes + Immutable>(self, at: usize, value: &T) {
        assert!(
            at <= BLOCK && size_of::<T>() <= BLOCK - at,
            "{} bytes at {at:#x} of a block of {BLOCK}",
            size_of::<T>()
        );
        self.span.write_plain(self.at + at, value);
    }

    /// Copies an object out of the block, from byte `AT` on. It may be torn if the device writes meanwhile.
    #[inline]
    #[must_use]
    pub fn read<T: FromBytes, const AT: usize>(self) -> T {
        const {
            assert!(
                AT <= BLOCK && size_of::<T>() <= BLOCK - AT,
                "the object is not inside a block"
            )
        };
        // SAFETY: as in `write`, but from byte `AT` of the block on. The assertion above leaves enough bytes there.
        unsafe { self.span.read_obj_unchecked(self.at + AT) }
    }

    /// Loads a 64-bit word of the block in a single relaxed access. The word stays big-endian: comparisons need no
    /// conversion to the host's order.
    #[inline]
    #[must_use]
    pub fn load_be64<const AT: usize>(self) -> Be64 {
        const {
            assert!(
                AT.is_multiple_of(8) && AT < BLOCK,
                "the word is not inside a block"
            )
        };
        // SAFETY: the word is inside the block, as in `read`, and aligned: the ring is aligned to 8 (`Place::new`),
        // and so are its blocks and `AT`.
        Be64::new(unsafe { self.span.load_be64_unchecked(self.at + AT) })
    }
}

impl<const BLOCK: usize> std::fmt::Debug for DmaRing<BLOCK> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "DmaRing({:#x} blocks of {BLOCK:#x} bytes at {:#x})",
            u64::from(self.place.mask) + 1,
            self.place.base.addr()
        )
    }
}

/// A big-endian 32-bit word of a doorbell record, stored in one access.
#[derive(Clone)]
pub struct DmaWord {
    /// Address of four bytes, aligned to 4, in a buffer that the lease keeps.
    at: NonNull<u8>,
    _lease: Arc<Lease>,
}

// SAFETY: a `DmaWord` is an address, as a span is. All accesses go through a span.
unsafe impl Send for DmaWord {}
// SAFETY: as above.
unsafe impl Sync for DmaWord {}

/// Stores a word in a single relaxed access.
///
/// # Safety
/// [`DmaWord::new`] has checked the word, and the caller has kept its buffer since.
#[inline]
unsafe fn store_word(at: NonNull<u8>, value: u32) {
    // SAFETY: `DmaWord::new` has accessed these four bytes of a buffer with all checks, and the buffer still exists.
    let word = unsafe { Span::new(at, 4) };
    // SAFETY: as above.
    unsafe { word.store_be32_unchecked(0, value) }
}

impl DmaWord {
    /// Locates the word at `offset` of a buffer.
    ///
    /// # Panics
    /// If the word is not inside the buffer or not aligned.
    #[must_use]
    pub fn new(buffer: &DmaBuffer, offset: usize) -> Self {
        // This checked load panics, with the reason, if `offset` is wrong.
        let _checked = buffer.load_be32(offset);
        Self {
            at: buffer.span().at(offset, 4),
            _lease: buffer.lease(),
        }
    }

    /// Stores the word in a single relaxed access.
    #[inline]
    pub fn store(&self, value: u32) {
        // SAFETY: `new` has checked the word, and `_lease` keeps its buffer.
        unsafe { store_word(self.at, value) };
    }
}

impl std::fmt::Debug for DmaWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmaWord(at {:#x})", self.at.addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::DmaArena;
    use crate::double::Double;

    fn buffer(bytes: usize) -> DmaBuffer {
        DmaArena::new(&Double::new().function())
            .unwrap()
            .alloc(bytes, 64)
            .unwrap()
    }

    #[test]
    fn an_index_runs_on_around_the_ring() {
        let buffer = buffer(4096);
        let ring = DmaRing::<64>::new(&buffer, 1024, 8);
        ring.block(3).write(&[1u8; 48]);
        ring.block(8 + 4).write(&[2u8; 64]);
        ring.block(u32::MAX).write(&[3u8; 16]);
        let mut bytes = [0; 64];
        buffer.read_bytes(1024 + 3 * 64, &mut bytes);
        assert_eq!((bytes[47], bytes[48]), (1, 0));
        buffer.read_bytes(1024 + 4 * 64, &mut bytes);
        assert_eq!(bytes, [2; 64]);
        buffer.read_bytes(1024 + 7 * 64, &mut bytes);
        assert_eq!((bytes[0], bytes[15], bytes[16]), (3, 3, 0));
        assert_eq!((ring.slot(7), ring.slot(8), ring.slot(u32::MAX)), (7, 0, 7));
        // No byte before or after the ring was written.
        assert!(
            (0..1024)
                .chain(1024 + 8 * 64..4096)
                .all(|at| buffer.load_u8(at) == 0)
        );
    }

    #[test]
    fn words_and_bytes_of_a_block_are_found_at_their_offsets() {
        let buffer = buffer(4096);
        let ring = DmaRing::<64>::new(&buffer, 64, 2);
        buffer.store_be64(64 + 64 + 0x38, 0x0102_0304_0506_0708);
        assert_eq!(
            ring.block(1).load_be64::<0x38>().get(),
            0x0102_0304_0506_0708
        );
        assert_eq!(
            ring.block(3).load_be64::<0x38>().get(),
            0x0102_0304_0506_0708
        );
        assert_eq!(ring.block(2).load_be64::<0x38>().get(), 0);
        assert_eq!(ring.block(1).read::<[u8; 3], 0x3d>(), [6, 7, 8]);
        ring.block(3).write_at(0x3f, &9u8);
        assert_eq!(buffer.load_u8(64 + 127), 9);
    }

    #[test]
    #[should_panic(expected = "16 bytes at 0x34 of a block of 64")]
    fn an_object_does_not_leave_its_block() {
        DmaRing::<64>::new(&buffer(4096), 0, 8)
            .block(0)
            .write_at(0x34, &[0u8; 16]);
    }

    #[test]
    fn a_ring_and_a_word_keep_their_memory() {
        let buffer = buffer(4096);
        let (ring, word) = (DmaRing::<16>::new(&buffer, 0, 4), DmaWord::new(&buffer, 68));
        let window = DmaRing::<8>::new(&buffer, 64, 1);
        drop(buffer);
        ring.block(1).write(&[7u8; 16]);
        word.store(0x0102_0304);
        assert_eq!(ring.block(1).read::<[u8; 16], 0>(), [7; 16]);
        assert_eq!(
            window.block(0).read::<[u8; 8], 0>(),
            [0, 0, 0, 0, 1, 2, 3, 4]
        );
    }

    #[test]
    fn a_queue_is_a_ring_in_blocks_and_parts_and_a_word_and_keeps_both_memories() {
        let (rings, records) = (buffer(4096), buffer(64));
        let (ring, word) = (
            DmaRing::<16>::new(&rings, 128, 8),
            DmaRing::<8>::new(&records, 0, 1),
        );
        let mut queue = DmaQueue::<64>::new(&rings, 128, 2, (&records, 4));
        drop((rings, records));
        queue.block(1).write(&[1u8; 64]);
        queue.block(u32::MAX).write(&[2u8; 16]);
        queue.part::<16>(8 + 6).write(&[3u8; 16]);
        queue.store(0x0102_0304);
        queue.set_count(7);
        let parts = [3, 4, 5, 6, 7].map(|at| ring.block(at).read::<u8, 15>());
        assert_eq!(parts, [0, 2, 1, 3, 1]);
        assert_eq!(word.block(0).read::<[u8; 8], 0>(), [0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(queue.count(), 7);
        assert_eq!(size_of::<DmaQueue<64>>(), 32);
    }

    #[test]
    #[should_panic(expected = "a ring of 128 blocks of 64 bytes at 0x0 of 0x1000")]
    fn a_queue_lies_inside_its_buffer() {
        let buffer = buffer(4096);
        let _queue = DmaQueue::<64>::new(&buffer, 0, 128, (&buffer, 0));
    }

    #[test]
    #[should_panic(expected = "access of 0x4 bytes at 0x1000 is outside")]
    fn the_word_of_a_queue_lies_inside_its_buffer() {
        let buffer = buffer(4096);
        let _queue = DmaQueue::<64>::new(&buffer, 0, 1, (&buffer, 4096));
    }

    #[test]
    #[should_panic(expected = "a ring of 3 blocks of 64 bytes")]
    fn a_ring_has_a_power_of_two_of_blocks() {
        let _ring = DmaRing::<64>::new(&buffer(4096), 0, 3);
    }

    #[test]
    #[should_panic(expected = "a ring of 64 blocks of 64 bytes at 0x40 of 0x1000")]
    fn a_ring_lies_inside_its_buffer() {
        let _ring = DmaRing::<64>::new(&buffer(4096), 64, 64);
    }

    #[test]
    #[should_panic(expected = "a ring of 1 blocks of 64 bytes at 0x4 of 0x1000")]
    fn a_ring_is_aligned_for_its_words() {
        let _ring = DmaRing::<64>::new(&buffer(4096), 4, 1);
    }

    #[test]
    #[should_panic(expected = "access of 0x4 bytes at 0x1000 is outside")]
    fn a_word_lies_inside_its_buffer() {
        let _word = DmaWord::new(&buffer(4096), 4096);
    }

    #[test]
    #[should_panic(expected = "not naturally aligned")]
    fn a_word_is_aligned() {
        let _word = DmaWord::new(&buffer(4096), 2);
    }
}
