//! Copies between memory that somebody else may write at any time and memory that is ours.
//!
//! PCI Express keeps a naturally aligned dword whole, and both sides of a queue rely on that: a doorbell record is four
//! bytes which one side stores while the other copies them. So a copy moves every naturally aligned word of the shared
//! side, of up to eight bytes, in one access.
//!
//! Most copies are short. A long one begins with words up to the next 16 bytes of the shared side, goes on in lines of
//! 64 bytes, and ends with words. On x86-64 a line is four vector accesses: one of 16 aligned bytes is whole on every
//! processor that has AVX (Intel SDM volume 3, "Guaranteed Atomic Operations"; AMD64 volume 2, "Access Atomicity"). The
//! compiler makes no such accesses of its own to memory that others write, hence the assembly.

// UNSAFETY: shared memory is reached through raw pointers because no reference to it may exist.
#![expect(unsafe_code, reason = "raw pointer access to shared memory")]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes of the widest single access that short copies are made of.
const WORD: usize = size_of::<u64>();
/// Alignment of the shared side of a line.
const VECTOR: usize = 16;
/// What a long copy moves at once.
const LINE: usize = 4 * VECTOR;
/// A copy of so many bytes is long.
const LONG: usize = 4 * LINE;

/// Bytes of the widest single access at an address, of a copy with so many bytes left: 8, 4, 2 or 1.
#[inline]
fn width(address: *const u8, left: usize) -> usize {
    let whole = |bytes: usize| address.addr().is_multiple_of(bytes) && left >= bytes;
    [WORD, 4, 2]
        .into_iter()
        .find(|bytes| whole(*bytes))
        .unwrap_or(1)
}

/// How a copy is cut whose shared side is there: bytes before the lines, and bytes in lines.
#[inline]
fn cut(shared: *const u8, bytes: usize) -> (usize, usize) {
    if bytes < LONG {
        return (0, 0);
    }
    let first = shared.addr().wrapping_neg() % VECTOR;
    (first, (bytes - first) / LINE * LINE)
}

/// Copies shared bytes to private ones, naturally aligned words whole.
///
/// # Safety
///
/// `bytes` bytes are mapped and readable at `from`, as many are writable at `to` and nobody else's, and no reference to
/// any of the first exists.
#[inline]
pub(crate) unsafe fn load_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    let (first, lines) = cut(from, bytes);
    let done = first + lines;
    if lines > 0 {
        // SAFETY: the first of the bytes that the caller promises.
        unsafe { load_words(from, to, first) };
        // SAFETY: those behind them; the shared side is aligned, by `cut`.
        unsafe { load_lines(from.wrapping_add(first), to.wrapping_add(first), lines) };
    }
    // SAFETY: the rest of them.
    unsafe { load_words(from.wrapping_add(done), to.wrapping_add(done), bytes - done) };
}

/// Copies private bytes to shared ones, naturally aligned words whole.
///
/// # Safety
///
/// `bytes` bytes are readable at `from` and change meanwhile by nobody, as many are mapped and writable at `to`, and no
/// reference to any of the second exists.
#[inline]
pub(crate) unsafe fn store_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    let (first, lines) = cut(to, bytes);
    let done = first + lines;
    if lines > 0 {
        // SAFETY: the first of the bytes that the caller promises.
        unsafe { store_words(from, to, first) };
        // SAFETY: those behind them; the shared side is aligned, by `cut`.
        unsafe { store_lines(from.wrapping_add(first), to.wrapping_add(first), lines) };
    }
    // SAFETY: the rest of them.
    unsafe { store_words(from.wrapping_add(done), to.wrapping_add(done), bytes - done) };
}

/// Copies whole lines out of shared memory.
///
/// # Safety
///
/// As [`load_bytes`]; `bytes` is a multiple of [`LINE`] and not 0, and `from` of [`VECTOR`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn load_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: `bytes` bytes are read and written, at places the caller promises; it reads shared memory as relaxed
    // loads would. Flags and the named registers are all that is changed besides.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqa {a}, [{from}]",
            "movdqa {b}, [{from} + 16]",
            "movdqa {c}, [{from} + 32]",
            "movdqa {d}, [{from} + 48]",
            "movdqu [{to}], {a}",
            "movdqu [{to} + 16], {b}",
            "movdqu [{to} + 32], {c}",
            "movdqu [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) bytes => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies whole lines into shared memory.
///
/// # Safety
///
/// As [`store_bytes`]; `bytes` is a multiple of [`LINE`] and not 0, and `to` of [`VECTOR`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as in `load_lines`, with relaxed stores.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movdqa [{to}], {a}",
            "movdqa [{to} + 16], {b}",
            "movdqa [{to} + 32], {c}",
            "movdqa [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {left}, 64",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) bytes => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies whole lines out of shared memory.
///
/// # Safety
///
/// As [`load_bytes`].
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn load_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise is the one asked for.
    unsafe { load_words(from, to, bytes) };
}

/// Copies whole lines into shared memory.
///
/// # Safety
///
/// As [`store_bytes`].
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn store_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise is the one asked for.
    unsafe { store_words(from, to, bytes) };
}

/// Copies a few shared bytes to private ones.
///
/// # Safety
///
/// As [`load_bytes`].
unsafe fn load_words(from: *const u8, to: *mut u8, bytes: usize) {
    let mut at = 0;
    if from.addr().is_multiple_of(WORD) {
        // As nearly all are: whole words need no choice.
        while bytes - at >= WORD {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: mapped (the caller's promise), and aligned to it.
            let word = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) };
            // SAFETY: writable and ours (the caller's promise).
            unsafe {
                to.cast::<u64>()
                    .write_unaligned(word.load(Ordering::Relaxed))
            };
            at += WORD;
        }
    }
    while at < bytes {
        let width = width(from.wrapping_add(at), bytes - at);
        // `at + width <= bytes`: inside both.
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        match width {
            WORD => {
                // SAFETY: mapped (the caller's promise), and aligned to it.
                let word = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) };
                // SAFETY: writable and ours (the caller's promise).
                unsafe {
                    to.cast::<u64>()
                        .write_unaligned(word.load(Ordering::Relaxed))
                };
            }
            4 => {
                // SAFETY: as above.
                let word = unsafe { AtomicU32::from_ptr(from.cast_mut().cast()) };
                // SAFETY: as above.
                unsafe {
                    to.cast::<u32>()
                        .write_unaligned(word.load(Ordering::Relaxed))
                };
            }
            2 => {
                // SAFETY: as above.
                let word = unsafe { AtomicU16::from_ptr(from.cast_mut().cast()) };
                // SAFETY: as above.
                unsafe {
                    to.cast::<u16>()
                        .write_unaligned(word.load(Ordering::Relaxed))
                };
            }
            _ => {
                // SAFETY: as above; a byte is aligned anywhere.
                let byte = unsafe { AtomicU8::from_ptr(from.cast_mut()) };
                // SAFETY: as above.
                unsafe { to.write(byte.load(Ordering::Relaxed)) };
            }
        }
        at += width;
    }
}

/// Copies a few private bytes to shared ones.
///
/// # Safety
///
/// As [`store_bytes`].
unsafe fn store_words(from: *const u8, to: *mut u8, bytes: usize) {
    let mut at = 0;
    if to.addr().is_multiple_of(WORD) {
        // As nearly all are: whole words need no choice.
        while bytes - at >= WORD {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: readable (the caller's promise).
            let word = unsafe { from.cast::<u64>().read_unaligned() };
            // SAFETY: mapped (the caller's promise), and aligned to it.
            unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
            at += WORD;
        }
    }
    while at < bytes {
        let width = width(to.wrapping_add(at), bytes - at);
        // `at + width <= bytes`: inside both.
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        match width {
            WORD => {
                // SAFETY: readable (the caller's promise).
                let word = unsafe { from.cast::<u64>().read_unaligned() };
                // SAFETY: mapped (the caller's promise), and aligned to it.
                unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
            }
            4 => {
                // SAFETY: as above.
                let word = unsafe { from.cast::<u32>().read_unaligned() };
                // SAFETY: as above.
                unsafe { AtomicU32::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
            }
            2 => {
                // SAFETY: as above.
                let word = unsafe { from.cast::<u16>().read_unaligned() };
                // SAFETY: as above.
                unsafe { AtomicU16::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
            }
            _ => {
                // SAFETY: as above.
                let byte = unsafe { from.read() };
                // SAFETY: as above; a byte is aligned anywhere.
                unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
            }
        }
        at += width;
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::SharedMemory;

    #[test]
    fn a_copy_of_any_length_from_and_to_any_place_moves_its_bytes_and_no_others() {
        let memory = SharedMemory::anonymous(1024).unwrap();
        let pattern: Vec<u8> = (0..=u8::MAX).cycle().skip(7).take(600).collect();
        for at in 0..17 {
            for bytes in (0..40).chain(250..340).chain([512, 513, 575, 576, 583]) {
                memory.fill(0, 1024, 0xee);
                // The private side is anywhere, too.
                let from = &pattern[bytes % 13..][..bytes];
                memory.write_bytes(at, from);
                let mut all = vec![0; 1025];
                memory.read_bytes(0, &mut all[1..]);
                assert_eq!(&all[1..][at..at + bytes], from, "{bytes} bytes at {at}");
                let around = all[1..][..at].iter().chain(&all[1..][at + bytes..]);
                assert!(around.clone().all(|&byte| byte == 0xee), "{bytes} at {at}");
                let mut out = vec![0xdd; bytes + 2];
                memory.read_bytes(at, &mut out[1..=bytes]);
                assert_eq!(&out[1..=bytes], from, "{bytes} bytes at {at}");
                assert_eq!((out[0], out[bytes + 1]), (0xdd, 0xdd));
            }
        }
    }
}
