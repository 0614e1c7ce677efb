//! Copies between memory that others may write at any time and private memory.
//!
//! PCI Express reads and writes a naturally aligned dword as a whole, and both sides of a queue rely on that: a
//! doorbell record is four bytes that one side stores while the other copies them. So a copy moves every naturally
//! aligned word of the shared side, of up to eight bytes, in one access.
//!
//! Most copies are short. A long copy moves words up to the next 16-byte boundary of the shared side, then lines of 64
//! bytes, and words at the end. On x86-64 a line is four vector accesses: an access of 16 aligned bytes is atomic on
//! every processor that has AVX (Intel SDM volume 3, "Guaranteed Atomic Operations"; AMD64 volume 2, "Access
//! Atomicity"). The compiler generates no such accesses to memory that a device or another process writes, hence the
//! assembly.

// UNSAFETY: shared memory is reached through raw pointers because no reference to it may exist.
#![expect(unsafe_code, reason = "raw pointer access to shared memory")]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes of the widest single access in a short copy.
const WORD: usize = size_of::<u64>();
/// Bytes of a vector access. A line on the shared side is aligned to this.
const VECTOR: usize = 16;
/// Number of bytes that one step of a long copy moves.
const LINE: usize = 4 * VECTOR;
/// Minimum number of bytes of a long copy.
const LONG: usize = 4 * LINE;

/// Returns the width in bytes of the widest single access at an address with `left` bytes to go: 8, 4, 2 or 1.
#[inline]
fn width(address: *const u8, left: usize) -> usize {
    let whole = |bytes: usize| address.addr().is_multiple_of(bytes) && left >= bytes;
    [WORD, 4, 2]
        .into_iter()
        .find(|bytes| whole(*bytes))
        .unwrap_or(1)
}

/// Splits a copy whose shared side begins at `shared`: returns the bytes before the lines and the bytes in lines.
#[inline]
fn cut(shared: *const u8, bytes: usize) -> (usize, usize) {
    if bytes < LONG {
        return (0, 0);
    }
    let first = shared.addr().wrapping_neg() % VECTOR;
    (first, (bytes - first) / LINE * LINE)
}

/// Copies shared bytes to private ones, each naturally aligned word in one access.
///
/// # Safety
///
/// `bytes` bytes are mapped and readable at `from`. As many are writable at `to` and are accessed by no one else. No
/// reference to the bytes at `from` exists.
#[inline]
pub(crate) unsafe fn load_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    let (first, lines) = cut(from, bytes);
    let done = first + lines;
    if lines > 0 {
        // SAFETY: the caller's promise covers these bytes, which are the first ones.
        unsafe { load_words(from, to, first) };
        // SAFETY: the caller's promise covers these bytes, which follow the first ones; `cut` aligned the shared side.
        unsafe { load_lines(from.wrapping_add(first), to.wrapping_add(first), lines) };
    }
    // SAFETY: the caller's promise covers these bytes, which are the rest.
    unsafe { load_words(from.wrapping_add(done), to.wrapping_add(done), bytes - done) };
}

/// Copies private bytes to shared ones, each naturally aligned word in one access.
///
/// # Safety
///
/// `bytes` bytes are readable at `from` and do not change meanwhile. As many are mapped and writable at `to`. No
/// reference to the bytes at `to` exists.
#[inline]
pub(crate) unsafe fn store_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    let (first, lines) = cut(to, bytes);
    let done = first + lines;
    if lines > 0 {
        // SAFETY: the caller's promise covers these bytes, which are the first ones.
        unsafe { store_words(from, to, first) };
        // SAFETY: the caller's promise covers these bytes, which follow the first ones; `cut` aligned the shared side.
        unsafe { store_lines(from.wrapping_add(first), to.wrapping_add(first), lines) };
    }
    // SAFETY: the caller's promise covers these bytes, which are the rest.
    unsafe { store_words(from.wrapping_add(done), to.wrapping_add(done), bytes - done) };
}

/// Copies whole lines out of shared memory.
///
/// # Safety
///
/// As [`load_bytes`]; `bytes` is a nonzero multiple of [`LINE`], and `from` a multiple of [`VECTOR`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn load_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the code reads and writes `bytes` bytes, at addresses that the caller promises. It reads shared memory
    // as relaxed loads do. It changes nothing else but the flags and the named registers.
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
/// As [`store_bytes`]; `bytes` is a nonzero multiple of [`LINE`], and `to` a multiple of [`VECTOR`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as in `load_lines`, but the code writes shared memory as relaxed stores do.
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
    // SAFETY: `load_words` asks for what the caller promises here.
    unsafe { load_words(from, to, bytes) };
}

/// Copies whole lines into shared memory.
///
/// # Safety
///
/// As [`store_bytes`].
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn store_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: `store_words` asks for what the caller promises here.
    unsafe { store_words(from, to, bytes) };
}

/// Copies shared bytes to private ones, word by word.
///
/// # Safety
///
/// As [`load_bytes`].
unsafe fn load_words(from: *const u8, to: *mut u8, bytes: usize) {
    let mut at = 0;
    if from.addr().is_multiple_of(WORD) {
        // The common case: whole words need no choice of a width.
        while bytes - at >= WORD {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: mapped (the caller's promise), and aligned for the word.
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
                // SAFETY: mapped (the caller's promise), and aligned for the word.
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

/// Copies private bytes to shared ones, word by word.
///
/// # Safety
///
/// As [`store_bytes`].
unsafe fn store_words(from: *const u8, to: *mut u8, bytes: usize) {
    let mut at = 0;
    if to.addr().is_multiple_of(WORD) {
        // The common case: whole words need no choice of a width.
        while bytes - at >= WORD {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: readable (the caller's promise).
            let word = unsafe { from.cast::<u64>().read_unaligned() };
            // SAFETY: mapped (the caller's promise), and aligned for the word.
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
                // SAFETY: mapped (the caller's promise), and aligned for the word.
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
                // The alignment of the private side varies, too.
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
