//! Virtual addresses of DMA memory.
//!
//! Virtual addresses of DMA memory are in memory keys and in work requests, so a process that takes a function over
//! maps the memory where the previous process had it. Those addresses must be free in the new process. So DMA memory
//! has a window of its own. With 47 or more address bits the kernel puts position-independent programs, libraries,
//! stacks and ordinary mappings above the window, and other programs below it. A process begins at a random address in
//! the window and goes upwards, so that the memory of two processes seldom overlaps.
//!
//! The window ends at 42 TiB, so it needs 46 address bits. x86-64 has 47. A kernel for 64-bit Arm may be built with 39
//! or 42 (`CONFIG_ARM64_VA_BITS`) and has no such addresses: memory is then mapped outside the window, and a function
//! with memory is not parked.
//!
//! Other users of addresses bound the window: without a limit of the stack's size (`ulimit -s unlimited`) the kernel
//! puts mappings from a third of the address space upwards on x86-64, at 0x2aaa_aaaa_a000, and from a quarter upwards
//! on 64-bit Arm, at 0x4000_0000_0000 (`TASK_UNMAPPED_BASE`). AddressSanitizer has its shadow below 0x1000_7fff_8000 on
//! x86-64, and below 0x2010_0000_0000 on 64-bit Arm (LLVM `asan_mapping.h`). ThreadSanitizer and MemorySanitizer divide
//! all addresses among their own uses, and let a program map none of the window's (`tsan_platform.h`, `msan.h`). Under
//! these two, memory is also mapped outside the window.
//!
//! Proposed addresses go upwards. They begin again at the window's start when its end was reached, and at a random
//! place when several proposals in a row were in use ([`jump`]). Then they may have been proposed before, and be free
//! or in use.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First address of the window.
pub(crate) const FIRST: u64 = 0x2100_0000_0000;
/// End of the window.
pub(crate) const END: u64 = 0x2a00_0000_0000;

/// Address after the range that was proposed last; 0 before the first one.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// ID of the process that `NEXT` belongs to. A child of `fork` has a copy of both, and begins at a place of its own.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns whether all of `bytes` bytes at an address are in the window.
pub(crate) fn contains(address: u64, bytes: u64) -> bool {
    let end = address.checked_add(bytes);
    address >= FIRST && end.is_some_and(|end| end <= END)
}

/// Lets the next proposal begin at a random place. After a process has gone through the whole window, the proposals may
/// lie in a long piece of its own older memory.
pub(crate) fn jump() {
    NEXT.store(random_start(), Ordering::Relaxed);
}

/// Proposes an address for `bytes` bytes that is `remainder` modulo `modulus`, a power of two. The range lies above the
/// one that was proposed last, unless the end of the window was reached or after a [`jump`]. `None` if the window has
/// no such address.
pub(crate) fn propose(bytes: usize, modulus: usize, remainder: usize) -> Option<usize> {
    let process = std::process::id();
    if PROCESS.swap(process, Ordering::Relaxed) != process {
        // Another thread of the child may still propose the parent's addresses. That is harmless: the child has an
        // address space of its own.
        jump();
    }
    let mut proposed = None;
    // The closure always returns a value if an address was found.
    let _previous = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
        let from = if next == 0 { random_start() } else { next };
        // CAST: usize has at most 64 bits on every target Rust has.
        let (bytes, modulus, remainder) = (bytes as u64, modulus as u64, remainder as u64);
        proposed = place(from, bytes, modulus, remainder);
        proposed.map(|at| at + bytes)
    });
    usize::try_from(proposed?).ok()
}

/// Returns a random multiple of 1 GiB in the window.
fn random_start() -> u64 {
    const GIB: u64 = 1 << 30;
    let random = RandomState::new().hash_one(std::process::id());
    FIRST + random % ((END - FIRST) / GIB) * GIB
}

/// Returns the lowest address from `from` on that has the remainder and room for the bytes, or else the lowest one of
/// the window.
fn place(from: u64, bytes: u64, modulus: u64, remainder: u64) -> Option<u64> {
    [from, FIRST].into_iter().find_map(|from| {
        let at = from.checked_add(remainder.wrapping_sub(from) & (modulus - 1))?;
        let end = at.checked_add(bytes)?;
        (at >= FIRST && end <= END).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposed_addresses_are_congruent_and_go_upwards() {
        assert_eq!(place(FIRST + 1, 4096, 4096, 0), Some(FIRST + 4096));
        assert_eq!(place(FIRST + 4096, 8192, 1 << 30, 8192), Some(FIRST + 8192));
        assert_eq!(
            place(FIRST + 16384, 8192, 1 << 30, 8192),
            Some(FIRST + (1 << 30) + 8192)
        );
    }

    #[test]
    fn proposals_begin_again_at_the_start_of_the_window_after_its_end() {
        assert_eq!(place(END - 4096, 4096, 4096, 0), Some(END - 4096));
        assert_eq!(place(END - 4096, 8192, 4096, 0), Some(FIRST));
        assert_eq!(place(END, 4096, 1 << 30, 4096), Some(FIRST + 4096));
        assert_eq!(place(FIRST, END - FIRST + 4096, 4096, 0), None);
        assert_eq!(place(FIRST, u64::MAX, 4096, 0), None);
    }

    #[test]
    fn a_process_begins_inside_the_window() {
        for _ in 0..100 {
            let start = random_start();
            assert!((FIRST..END).contains(&start), "{start:#x}");
        }
    }

    #[test]
    fn the_window_does_not_overlap_addresses_of_the_kernel_and_of_a_sanitizer() {
        // Pairs of first address and end: mappings of x86-64 without a limit of the stack's size, and shadows of
        // AddressSanitizer on x86-64 and on 64-bit Arm.
        let others = [
            (0x2aaa_aaaa_a000, 0x7fff_ffff_f000),
            (0x7fff_8000, 0x1000_7fff_8000),
            (0x10_0000_0000, 0x2010_0000_0000),
        ];
        for (first, end) in others {
            assert!(end <= FIRST || first >= END, "{first:#x}..{end:#x}");
        }
    }

    #[test]
    fn only_whole_ranges_of_the_window_are_contained() {
        assert!(contains(FIRST, END - FIRST) && contains(END - 4096, 4096));
        for (address, bytes) in [
            (FIRST - 1, 4096),
            (END - 4096, 4097),
            (0, END),
            (FIRST, u64::MAX),
        ] {
            assert!(!contains(address, bytes), "{address:#x} {bytes:#x}");
        }
    }
}
