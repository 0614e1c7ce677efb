//! Barriers between accesses to memory that the device shares, and accesses to the device's registers.
//!
//! Each function is named after the order that it guarantees, and its comment describes the bug that it prevents. A
//! barrier orders only the accesses of *this* processor: the device is coherent (PCIe without no-snoop), but it reads
//! at times that it chooses itself.
//!
//! x86 keeps stores in order among themselves, loads among themselves, and a load before later stores. So there the
//! first three functions only restrain the compiler. aarch64 keeps none of these orders. The device is outside the
//! inner shareable domain, hence `osh` instead of the `ish` of the language's fences.

// UNSAFETY: barrier instructions have no safe form.
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "barrier instructions")
)]

/// Makes earlier stores to DMA memory visible to the device before any later store.
///
/// Needed between the stores to a WQE and to its doorbell record, and between the record and the doorbell register.
/// Without this barrier the device may read the new record and then fetch a WQE whose bytes are still in the
/// processor's store buffer.
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

/// Keeps later loads of DMA memory behind the load that showed the device's write.
///
/// Needed between the read of an owner bit and the read of the rest of the entry. Without this barrier the byte count
/// may be loaded before the owner bit, and so come from the entry's previous use.
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
/// Needed between the read of an entry and the store that notifies the device that the entry is free. Without this
/// barrier the device may see the notification before the entry was read, and in a full ring the read may return the
/// next content of the entry.
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

/// Flushes write-combined register stores now, and keeps two of them from merging.
///
/// Needed after a doorbell write. Without this barrier the store may stay in a write-combining buffer until another
/// store evicts it, and a second doorbell write to the same address may replace the first.
#[inline]
pub fn flush_write_combining() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE, which introduced the instruction.
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
