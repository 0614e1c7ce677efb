//! An address range of shared memory, and every access to it.
//!
//! [`Span`] turns raw pointers into bytes, objects and words. It checks bounds and alignment on each access and
//! relies on one promise of its creator: the range stays mapped while the span is used, and no Rust reference points
//! into it. The few `unchecked` accesses leave the bounds check to their caller, [`dma_ring`](crate::dma_ring), which
//! does it once. [`SharedMemory`](crate::SharedMemory) creates spans, and keeps each together with its mapping.
//! [`dma_ring`](crate::dma_ring) makes spans of addresses that it has taken from those spans.
//!
//! Copies consist of relaxed atomic words and bytes ([`copy`](crate::copy)). Several threads, including those of a
//! simulated device, may access the same bytes at once. A reader then sees at worst a torn object, which is a valid
//! value; the owner-byte protocols of the callers decide whether to use it. Single words are relaxed atomic accesses
//! too, so they are never torn; [`barrier`](crate::barrier) provides ordering. Only [`dma_ring`](crate::dma_ring) uses
//! plain copies (`write_obj_unchecked`, `write_plain`, `read_obj_unchecked`): a ring has one owner, and its other side
//! is a device.

// UNSAFETY: shared memory is accessed through raw pointers because no reference to it may exist.
#![expect(unsafe_code, reason = "raw pointer access to shared memory")]

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::copy::{load_bytes, store_bytes};

/// An address range that stays mapped, readable and writable for as long as its owner lives.
///
/// A span is `Copy` and has no lifetime parameter: the holder of a span must also keep the range mapped.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a span is an address and a length. Every access goes through a raw pointer or an atomic, and a device or
// another process may write the memory at any time anyway, so a second thread adds no new kind of access.
unsafe impl Send for Span {}
// SAFETY: as above; no access through `&Span` needs exclusivity.
unsafe impl Sync for Span {}

impl Span {
    /// Wraps an address range.
    ///
    /// # Safety
    ///
    /// `len` bytes from `base` are mapped, readable and writable until the last access through this span
    /// or a part of it, and no Rust reference to them exists meanwhile.
    pub(crate) const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Returns the part of `bytes` bytes from `offset` on, which must lie inside the span.
    ///
    /// The part is valid as long as the whole span; the holder of the part must keep the whole span mapped.
    pub(crate) fn part(self, offset: usize, bytes: usize) -> Self {
        Self {
            base: self.at(offset, bytes),
            len: bytes,
        }
    }

    #[inline]
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn address(self) -> usize {
        self.base.addr().get()
    }

    #[inline]
    pub(crate) const fn contains(self, offset: usize, bytes: usize) -> bool {
        bytes <= self.len && offset <= self.len - bytes
    }

    /// Returns a pointer to `bytes` bytes at `offset`.
    // PANIC: the bytes are outside the span. Callers check offsets from untrusted sources with `contains` first. Other
    // offsets are our own, and a wrong one would access memory outside the span.
    #[inline]
    pub(crate) fn at(self, offset: usize, bytes: usize) -> NonNull<u8> {
        if !self.contains(offset, bytes) {
            outside(offset, bytes, self.len);
        }
        // SAFETY: `offset <= len` was just checked, and `new` promised that `len` bytes are mapped.
        unsafe { self.base.add(offset) }
    }

    /// Returns a pointer to one naturally aligned `T` at `offset`.
    // PANIC: the object is outside the span or misaligned; a misaligned access would not be a single one.
    #[inline]
    fn at_aligned<T>(self, offset: usize) -> NonNull<T> {
        let at = self.at(offset, size_of::<T>()).cast::<T>();
        if !at.is_aligned() {
            misaligned(offset, size_of::<T>());
        }
        at
    }

    #[inline]
    pub(crate) fn read_bytes(self, offset: usize, out: &mut [u8]) {
        let (from, bytes) = (self.at(offset, out.len()), out.len());
        // SAFETY: `at` checked that `bytes` bytes are mapped there. No reference to them exists (`new`), so `out`,
        // which has the same length, cannot overlap them.
        unsafe { load_bytes(from.as_ptr(), out.as_mut_ptr(), bytes) }
    }

    #[inline]
    pub(crate) fn write_bytes(self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: as in `read_bytes`, with source and destination exchanged.
        unsafe { store_bytes(data.as_ptr(), to.as_ptr(), data.len()) }
    }

    #[inline]
    pub(crate) fn fill(self, offset: usize, bytes: usize, value: u8) {
        let line = [value; 64];
        for done in (0..bytes).step_by(line.len()) {
            self.write_bytes(offset + done, &line[..line.len().min(bytes - done)]);
        }
    }

    #[inline]
    pub(crate) fn read_obj<T: FromBytes>(self, offset: usize) -> T {
        let from = self.at(offset, size_of::<T>());
        let mut object = MaybeUninit::<T>::uninit();
        // SAFETY: `at` checked that `size_of::<T>()` bytes are mapped there; `object` has the same size, and nothing
        // else accesses it.
        unsafe { load_bytes(from.as_ptr(), object.as_mut_ptr().cast(), size_of::<T>()) };
        // SAFETY: every byte was written; `T: FromBytes` accepts any bytes.
        unsafe { object.assume_init() }
    }

    #[inline]
    pub(crate) fn write_obj<T: IntoBytes + Immutable>(self, offset: usize, value: &T) {
        self.write_bytes(offset, value.as_bytes());
    }

    /// Writes an object by a plain copy. Only a device may access these bytes at the same time.
    #[inline]
    pub(crate) fn write_plain<T: IntoBytes + Immutable>(self, offset: usize, value: &T) {
        let _inside = self.at(offset, size_of_val(value));
        // SAFETY: `at` has just checked the bounds.
        unsafe { self.write_obj_unchecked(offset, value) }
    }

    /// Writes an object by a plain copy at an offset that the caller has checked.
    ///
    /// # Safety
    ///
    /// `offset + size_of::<T>() <= len`.
    #[inline]
    pub(crate) unsafe fn write_obj_unchecked<T: IntoBytes + Immutable>(
        self,
        offset: usize,
        value: &T,
    ) {
        debug_assert!(self.contains(offset, size_of::<T>()));
        let bytes = value.as_bytes();
        // SAFETY: the object is inside the span (the caller's promise), which is mapped (`new`).
        let to = unsafe { self.base.add(offset) };
        // SAFETY: as above for `bytes.len()` bytes; no reference to them exists (`new`), so they cannot overlap.
        unsafe {
            to.as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        }
    }

    /// Reads an object at an offset that the caller has checked.
    ///
    /// # Safety
    ///
    /// `offset + size_of::<T>() <= len`.
    #[inline]
    pub(crate) unsafe fn read_obj_unchecked<T: FromBytes>(self, offset: usize) -> T {
        debug_assert!(self.contains(offset, size_of::<T>()));
        // SAFETY: the object is inside the span (the caller's promise), which is mapped (`new`).
        let from = unsafe { self.base.add(offset) }.cast::<T>();
        // SAFETY: as above; `T: FromBytes` accepts any bytes.
        unsafe { from.as_ptr().read_unaligned() }
    }

    /// Loads a big-endian number at an offset whose bounds and alignment the caller has checked.
    ///
    /// # Safety
    ///
    /// `offset + 8 <= len`, and the address at `offset` is a multiple of 8.
    #[inline]
    pub(crate) unsafe fn load_be64_unchecked(self, offset: usize) -> u64 {
        debug_assert!(self.contains(offset, 8));
        // SAFETY: the word is inside the span (the caller's promise), which is mapped (`new`).
        let at = unsafe { self.base.add(offset) }.cast::<u64>();
        // SAFETY: the word is mapped and aligned (the caller's promise) during the only load through this reference.
        let word = unsafe { AtomicU64::from_ptr(at.as_ptr()) };
        u64::from_be(word.load(Ordering::Relaxed))
    }

    /// Stores a big-endian number at an offset whose bounds and alignment the caller has checked.
    ///
    /// # Safety
    ///
    /// `offset + 4 <= len`, and the address at `offset` is a multiple of 4.
    #[inline]
    pub(crate) unsafe fn store_be32_unchecked(self, offset: usize, value: u32) {
        debug_assert!(self.contains(offset, 4));
        // SAFETY: the word is inside the span (the caller's promise), which is mapped (`new`).
        let at = unsafe { self.base.add(offset) }.cast::<u32>();
        // SAFETY: the word is mapped and aligned (the caller's promise) during the only store through this reference.
        let word = unsafe { AtomicU32::from_ptr(at.as_ptr()) };
        word.store(value.to_be(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn load_u8(&self, offset: usize) -> u8 {
        self.atomic_u8(offset).load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn store_u8(&self, offset: usize, value: u8) {
        self.atomic_u8(offset).store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn load_be32(&self, offset: usize) -> u32 {
        u32::from_be(self.atomic_u32(offset).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn store_be32(&self, offset: usize, value: u32) {
        self.atomic_u32(offset)
            .store(value.to_be(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn load_be64(&self, offset: usize) -> u64 {
        u64::from_be(self.atomic_u64(offset).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn store_be64(&self, offset: usize, value: u64) {
        self.atomic_u64(offset)
            .store(value.to_be(), Ordering::Relaxed);
    }

    #[inline]
    fn atomic_u8(&self, offset: usize) -> &AtomicU8 {
        let at = self.at_aligned::<u8>(offset);
        // SAFETY: the byte is mapped and aligned (`at_aligned`). The span's owner keeps it mapped during the only load
        // or store through this reference.
        unsafe { AtomicU8::from_ptr(at.as_ptr()) }
    }

    #[inline]
    fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        let at = self.at_aligned::<u32>(offset);
        // SAFETY: as in `atomic_u8`.
        unsafe { AtomicU32::from_ptr(at.as_ptr()) }
    }

    #[inline]
    fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        let at = self.at_aligned::<u64>(offset);
        // SAFETY: as in `atomic_u8`.
        unsafe { AtomicU64::from_ptr(at.as_ptr()) }
    }
}

#[cold]
#[inline(never)]
fn outside(offset: usize, bytes: usize, len: usize) -> ! {
    panic!("access of {bytes:#x} bytes at {offset:#x} is outside a memory of {len:#x} bytes")
}

#[cold]
#[inline(never)]
fn misaligned(offset: usize, bytes: usize) -> ! {
    panic!("single access of {bytes} bytes at {offset:#x} is not naturally aligned")
}
