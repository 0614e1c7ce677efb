//! Barriers between memory the device shares and the registers that point at it.
//!
//! Each is named for what it promises and carries the bug it prevents. Only the order of *this* processor's
//! accesses is at stake: the device is coherent (PCIe without no-snoop), it merely looks at another time.
//!
//! x86 keeps stores in order among themselves and loads among themselves, so there the first two only hold the
//! compiler. aarch64 keeps neither; the device is outside the inner shareable domain, hence `osh` and not what
//! the language's fences give (`ish`).

// UNSAFETY: barrier instructions have no safe form.
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "barrier instructions")
)]

/// Makes earlier stores to DMA memory visible to the device before any later store.
///
/// Goes between a WQE and its doorbell record, and between the record and the register. Without it the
/// device may fetch, on the strength of the record, a WQE whose bytes are still in our store buffer.
#[inline]
pub fn dma_to_device() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory and no register.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// Keeps later loads of DMA memory behind the load that showed us the device had written.
///
/// Goes between reading an owner bit and reading the rest of the entry. Without it the byte count may be
/// loaded before the owner bit, and so belong to the entry's previous life.
#[inline]
pub fn dma_from_device() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory and no register.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}

/// Keeps earlier loads of DMA memory before any later store.
///
/// Goes between reading an entry and telling the device that its place is free. Without it the device may be
/// told first, and the entry read afterwards may already be its successor in a full ring.
#[inline]
pub fn dma_hand_back() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory and no register.
    unsafe {
        std::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// Pushes write-combined register stores out now, and keeps two of them from merging.
///
/// Goes after a doorbell. Without it the store may sit in a write-combining buffer until something
/// else evicts it, and a second doorbell to the same address may replace the first.
#[inline]
pub fn flush_write_combining() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE, which the instruction came with.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory and no register.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
