//! Mappings: placement of shared memory in the address space, and its removal.
//!
//! A memfd is memory of this process that other processes can map too. It is placed in the window of DMA memory
//! ([`dma_window`](crate::dma_window)), so that the next process can map it at the same address ([`Mapping::adopted`]).
//! If the memory is to stay outside the window, or if the kernel refuses all proposed addresses, this module reserves
//! enough address space anywhere to contain an address with the wanted remainder, maps the memory there, and unmaps the
//! rest on both sides. The memfd is sealed against changes of its size, because a page that disappears under a mapping
//! kills the process that touches it. So neither this process nor one that receives the descriptor can shrink the
//! memory of the other. A file of another process is mapped only if it is sealed against shrinking. A mapping is
//! removed when it drops. Foreign memory has an owner, who promised that the memory outlives the mapping.
//!
//! A child of `fork` does not inherit these mappings: only the parent may use pages that the device accesses. The child
//! has a copy of the values, and unmaps nothing when they drop: at the same addresses it may have other memory.

// UNSAFETY: mmap and munmap change what addresses mean.
#![expect(unsafe_code, reason = "mmap")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use crate::dma_window;
use crate::error::MemoryError;
use crate::extents::Open;
use crate::guard::Guard;
use crate::page::PageSize;
use crate::page::page_bytes;

/// Number of addresses of the window that are tried for a mapping: at first one after the other, then at random places.
const WINDOW_TRIES: usize = 32;
const FIRST_TRIES: usize = 16;
/// Seals of each memfd: its size never changes, and no seal can be added.
const SEALS: [SealFlag; 3] = [
    SealFlag::F_SEAL_SHRINK,
    SealFlag::F_SEAL_GROW,
    SealFlag::F_SEAL_SEAL,
];

/// A piece of address space with readable and writable memory in it.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    /// Range to unmap on drop; none for foreign memory.
    own: Option<Own>,
    /// The file behind the memory, if other processes may map it.
    file: Option<File>,
    /// Parts of foreign memory that may be accessed on behalf of another process.
    open: Option<Open>,
    /// Detects replaced pages of foreign memory that is not pinned.
    guard: Option<Arc<Guard>>,
}

/// A range that this module has mapped.
#[derive(Clone, Copy)]
struct Own {
    bytes: NonZeroUsize,
    /// ID of the process that has the mapping.
    process: u32,
}

/// A piece of a device's file, and its offset in a mapping. All values are multiples of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    /// Offset in the mapping.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    /// Offset in the file.
    pub(crate) file_offset: u64,
}

// SAFETY: `base` is an address; here it is only used for unmapping, by the thread that drops the mapping.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` exposes the address and the file, both of which any thread may use.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes` zeroed bytes at an address that is `remainder` modulo `modulus`, a power of two.
    pub(crate) fn memfd(
        bytes: usize,
        modulus: usize,
        remainder: usize,
        pages: PageSize,
    ) -> Result<Self, MemoryError> {
        Self::memfd_at(bytes, modulus, remainder, pages, true)
    }

    /// Maps at least `bytes` zeroed bytes outside the window of DMA memory, and closes their file. No other process can
    /// map them.
    pub(crate) fn private(bytes: usize) -> Result<Self, MemoryError> {
        let mut mapping = Self::memfd_at(bytes, 1, 0, PageSize::Base, false)?;
        mapping.file = None;
        Ok(mapping)
    }

    /// Makes a mapping of memory that this module has mapped. `mapped` is the length to unmap on drop, if any.
    fn of(base: NonNull<u8>, mapped: Option<NonZeroUsize>, file: Option<File>) -> Self {
        let process = std::process::id();
        Self {
            base,
            own: mapped.map(|bytes| Own { bytes, process }),
            file,
            open: None,
            guard: None,
        }
    }

    fn memfd_at(
        bytes: usize,
        modulus: usize,
        remainder: usize,
        pages: PageSize,
        in_window: bool,
    ) -> Result<Self, MemoryError> {
        assert!(
            modulus.is_power_of_two(),
            "modulus {modulus:#x} is no power of two"
        );
        let granule = pages.bytes();
        // Huge pages come from the hugetlb pool; the mapping fails if the pool has too few.
        let flags = match pages {
            PageSize::Base => MFdFlags::empty(),
            PageSize::Huge2M => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB,
            PageSize::Huge1G => MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB,
        };
        let too_large = MemoryError::TooLarge { bytes };
        let Some(mapped) = bytes.checked_next_multiple_of(granule) else {
            return Err(too_large);
        };
        let mapped = NonZeroUsize::new(mapped).ok_or(MemoryError::Empty)?;
        let modulus = modulus.max(granule);
        let reserved = mapped.checked_add(modulus).ok_or(too_large)?;

        let failed = |call| move |errno| MemoryError::System { call, bytes, errno };
        if cfg!(miri) {
            return Self::interpreted(mapped).map_err(failed("mmap"));
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | flags;
        let file = memfd_create("driver", flags)
            .map(File::from)
            .map_err(failed("memfd_create"))?;
        // CAST: usize has at most 64 bits on every target Rust has.
        file.set_len(mapped.get() as u64)
            .map_err(|error| failed("ftruncate")(errno_of(&error)))?;

        let seals = SEALS.into_iter().collect();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(failed("fcntl(F_ADD_SEALS)"))?;

        let placed = in_window.then(|| place_in_window(mapped, modulus, remainder, &file));
        if let Some(base) = placed.flatten() {
            let mapping = Self::of(base, Some(mapped), Some(file));
            mapping.keep_from_children().map_err(failed("madvise"))?;
            return Ok(mapping);
        }
        let reservation = reserve(reserved).map_err(failed("mmap"))?;
        let head = remainder.wrapping_sub(reservation.addr().get()) & (modulus - 1);
        // SAFETY: `head < modulus`, and `mapped + modulus` bytes are reserved.
        let base = unsafe { reservation.add(head) };
        // SAFETY: the range replaced is inside the reservation, which no other code knows.
        if let Err(errno) = unsafe { place(base, mapped, &file, 0) } {
            // SAFETY: the whole reservation, which no other code knows.
            unsafe { unmap(reservation, reserved.get()) };
            return Err(failed("mmap")(errno));
        }
        let mapping = Self::of(base, Some(mapped), Some(file));
        // SAFETY: the reservation's bytes below `base`, where nothing was placed.
        unsafe { unmap(reservation, head) };
        // SAFETY: `head + mapped <= reserved`.
        let end = unsafe { base.add(mapped.get()) };
        // SAFETY: the reservation's bytes after the placed memory: `modulus` less the head.
        unsafe { unmap(end, modulus - head) };
        mapping.keep_from_children().map_err(failed("madvise"))?;
        Ok(mapping)
    }

    /// Maps a memfd of a previous process, all of its `bytes` bytes, at the address that it had there.
    ///
    /// # Errors
    /// [`MemoryError::File`]: the file has another size, lacks a seal of [`memfd`](Self::memfd), or is of the hugetlb
    /// pool and lacks pages, whose first use could end this process. [`MemoryError::System`]: a system call failed;
    /// `EEXIST` of `mmap` if the address range is in use.
    pub(crate) fn adopted(fd: OwnedFd, address: usize, bytes: usize) -> Result<Self, MemoryError> {
        let mapped = NonZeroUsize::new(bytes).ok_or(MemoryError::Empty)?;
        let failed = |call| move |errno| MemoryError::System { call, bytes, errno };
        let file = File::from(fd);
        let found = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(failed("fcntl(F_GET_SEALS)"))?;
        // CAST: usize has at most 64 bits on every target Rust has.
        let wanted = bytes as u64;
        let metadata = file.metadata();
        let metadata = metadata.map_err(|error| failed("fstat")(errno_of(&error)))?;
        let refused = |what| MemoryError::File {
            bytes,
            offset: 0,
            len: metadata.len(),
            what,
        };
        let found = SealFlag::from_bits_retain(found);
        if !SEALS.into_iter().all(|seal| found.contains(seal)) {
            return Err(refused("its size is not sealed"));
        }
        if metadata.len() != wanted {
            return Err(refused("it has another size"));
        }
        let kind = fstatfs(&file).map_err(failed("fstatfs"))?.filesystem_type();
        let mut granule = page_bytes();
        if kind == HUGETLBFS_MAGIC {
            granule = PageSize::Huge2M.bytes();
            if metadata.blocks().saturating_mul(512) < wanted {
                return Err(refused(
                    "it lacks pages of the hugetlb pool, and the first use of one that the pool lacks would end this process",
                ));
            }
        }
        let at = NonZeroUsize::new(address)
            .filter(|at| at.get().is_multiple_of(granule) && bytes.is_multiple_of(granule))
            .ok_or_else(|| refused("its address or its size is not in whole pages"))?;
        if address.checked_add(bytes).is_none() {
            return Err(MemoryError::TooLarge { bytes });
        }
        let base = place_free(at, mapped, &file).map_err(failed("mmap"))?;
        let mapping = Self::of(base, Some(mapped), Some(file));
        mapping.keep_from_children().map_err(failed("madvise"))?;
        Ok(mapping)
    }

    /// Removes the mapping from children of a later `fork`.
    fn keep_from_children(&self) -> Result<(), Errno> {
        let Some(own) = self.own else { return Ok(()) };
        // SAFETY: the advice concerns a later `fork` only, and the range is the mapping.
        unsafe { madvise(self.base.cast(), own.bytes.get(), MmapAdvise::MADV_DONTFORK) }
    }

    /// Replaces [`memfd`](Self::memfd) under Miri, which has no files to map. The address is page-aligned but not
    /// congruent, because Miri allocates every reserved byte; and it is never unmapped.
    fn interpreted(mapped: NonZeroUsize) -> Result<Self, Errno> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS;
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(None, mapped, access, flags) }?;
        Ok(Self::of(base.cast(), None, None))
    }

    /// Maps `bytes` bytes from `offset` on of a file that another process sent. The descriptor is closed here.
    pub(crate) fn imported(fd: OwnedFd, offset: u64, bytes: usize) -> Result<Self, MemoryError> {
        let mapped = NonZeroUsize::new(bytes).ok_or(MemoryError::Empty)?;
        let failed = |call| move |errno| MemoryError::System { call, bytes, errno };
        let file = File::from(fd);
        // The seals are checked first, so that the length read afterwards cannot shrink.
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(failed("fcntl(F_GET_SEALS)"))?;
        let len = file
            .metadata()
            .map_err(|error| failed("fstat")(errno_of(&error)))?
            .len();
        let refused = |what| MemoryError::File {
            bytes,
            offset,
            len,
            what,
        };
        if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return Err(refused("it is not sealed against shrinking"));
        }
        let kind = fstatfs(&file).map_err(failed("fstatfs"))?.filesystem_type();
        if kind == HUGETLBFS_MAGIC {
            return Err(refused(
                "it has huge pages of the pool, and the first use of one that the pool lacks would end this process",
            ));
        }
        // CAST: usize has at most 64 bits on every target Rust has.
        if offset.checked_add(bytes as u64).is_none_or(|end| end > len) {
            return Err(refused("it ends before that"));
        }
        let file_offset =
            i64::try_from(offset).map_err(|_| refused("the offset is out of range"))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(None, mapped, access, flags, &file, file_offset) }
            .map_err(failed("mmap"))?
            .cast();
        let mapping = Self::of(base, Some(mapped), None);
        mapping.keep_from_children().map_err(failed("madvise"))?;
        Ok(mapping)
    }

    /// Maps `bytes` bytes that contain pieces of a device's file at the given offsets. Anonymous memory fills the gaps:
    /// an access to a gap has no effect on the device, but it does not fault.
    pub(crate) fn device(
        device: BorrowedFd<'_>,
        bytes: usize,
        areas: &[Area],
    ) -> Result<Self, MemoryError> {
        let too_large = MemoryError::TooLarge { bytes };
        let Some(mapped) = bytes.checked_next_multiple_of(page_bytes()) else {
            return Err(too_large);
        };
        let mapped = NonZeroUsize::new(mapped).ok_or(MemoryError::Empty)?;
        let failed = |call| move |errno| MemoryError::System { call, bytes, errno };
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let ground = unsafe { mmap_anonymous(None, mapped, access, flags) };
        let mapping = Self::of(ground.map_err(failed("mmap"))?.cast(), Some(mapped), None);
        for area in areas {
            let end = area.at.checked_add(area.bytes);
            assert!(
                end.is_some_and(|end| end <= mapped.get()),
                "{area:?} outside a mapping of {mapped:#x} bytes"
            );
            let area_bytes = NonZeroUsize::new(area.bytes).ok_or(MemoryError::Empty)?;
            let file_offset = i64::try_from(area.file_offset).map_err(|_| too_large.clone())?;
            // SAFETY: inside the range that was just mapped (asserted above).
            let at = unsafe { mapping.base.add(area.at) };
            // SAFETY: the range replaced is a part of the anonymous mapping, which no other code knows.
            unsafe { place(at, area_bytes, device, file_offset) }.map_err(failed("mmap"))?;
        }
        mapping.keep_from_children().map_err(failed("madvise"))?;
        Ok(mapping)
    }

    /// Wraps foreign memory, which its owner unmaps.
    pub(crate) fn foreign(base: NonNull<u8>, guard: Option<Arc<Guard>>) -> Self {
        Self {
            base,
            own: None,
            file: None,
            open: Some(Open::default()),
            guard,
        }
    }

    /// Returns the parts of foreign memory that may be accessed on behalf of another process: none at first. `None`
    /// if all of the memory may be accessed.
    pub(crate) const fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// Returns the guard to check before an access to foreign memory, if there is one.
    pub(crate) const fn guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref()
    }

    /// Returns the address of the first byte.
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the descriptor of the memfd behind the memory; `None` for other memory and for
    /// [`private`](Self::private) memory.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The process is checked before the lock is taken: in a child of `fork` the lock may stay locked forever.
        let own = self.own.filter(|own| own.process == std::process::id());
        if let Some(own) = own {
            // SAFETY: `memfd`, `adopted`, `imported` or `device` mapped this range, and every user of it held this
            // mapping.
            unsafe { unmap(self.base, own.bytes.get()) };
        }
    }
}

/// Reserves address space without memory.
fn reserve(bytes: NonZeroUsize) -> Result<NonNull<u8>, Errno> {
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
    let reservation = unsafe { mmap_anonymous(None, bytes, ProtFlags::PROT_NONE, flags) }?;
    Ok(reservation.cast())
}

/// Maps a file in the window of DMA memory, at an address that is `remainder` modulo `modulus`. `None` if the kernel
/// has refused the proposed addresses.
fn place_in_window(
    bytes: NonZeroUsize,
    modulus: usize,
    remainder: usize,
    file: &File,
) -> Option<NonNull<u8>> {
    for count in 0..WINDOW_TRIES {
        if count >= FIRST_TRIES {
            dma_window::jump();
        }
        let at = dma_window::propose(bytes.get(), modulus, remainder)?;
        match place_free(NonZeroUsize::new(at)?, bytes, file) {
            Ok(base) => {
                // CAST: usize has at most 64 bits on every target Rust has.
                debug_assert!(dma_window::contains(at as u64, bytes.get() as u64));
                return Some(base);
            }
            Err(Errno::EEXIST) => {}
            // Processes with fewer address bits do not have the window.
            Err(errno) => {
                tracing::debug!("mmap of {bytes:#x} bytes at {at:#x}: {errno}");
                return None;
            }
        }
    }
    None
}

/// Maps the start of a file at exactly `at`, if nothing is mapped there; otherwise the error is `EEXIST`.
fn place_free(at: NonZeroUsize, bytes: NonZeroUsize, file: &File) -> Result<NonNull<u8>, Errno> {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: the flag has the kernel refuse to replace a mapping.
    let base = unsafe { mmap(Some(at), bytes, access, flags, file, 0) }?.cast();
    if base.addr() == at {
        return Ok(base);
    }
    // Linux before 4.17 does not know the flag, and chooses another address if this one is in use.
    // SAFETY: the range was just mapped, and no other code knows it.
    unsafe { unmap(base, bytes.get()) };
    Err(Errno::EEXIST)
}

/// Maps a file at exactly `base`, replacing the previous mapping.
///
/// # Safety
///
/// The replaced range is not in use.
unsafe fn place(
    base: NonNull<u8>,
    bytes: NonZeroUsize,
    file: impl AsFd,
    offset: i64,
) -> Result<(), Errno> {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    // SAFETY: the caller's promise is what MAP_FIXED needs.
    unsafe { mmap(Some(base.addr()), bytes, access, flags, file, offset) }?;
    Ok(())
}

/// Unmaps `bytes` bytes, possibly none.
///
/// # Safety
///
/// The range was mapped by this module, and is not in use any more.
unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let process = std::process::id();
    let mut pending = PENDING_UNMAPS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    // In a child of `fork` these addresses may hold other memory.
    pending.retain(|range| range.process == process);
    pending.push(PendingUnmap {
        base,
        bytes,
        process,
    });
    pending.retain(|range| {
        // SAFETY: the caller promised that the range is not in use, now or when the range was queued. The range is
        // still mapped, so it has no new owner.
        let unmapped = unsafe { munmap(range.base.cast(), range.bytes) };
        if let Err(errno) = unmapped {
            let PendingUnmap { base, bytes, .. } = range;
            tracing::error!("munmap of {bytes:#x} bytes at {base:?}: {errno}");
        }
        unmapped.is_err()
    });
}

/// Ranges whose unmapping failed: a process at the limit of mappings cannot split a mapping in two (munmap(2), ENOMEM).
/// The next unmap tries these ranges again.
static PENDING_UNMAPS: Mutex<Vec<PendingUnmap>> = Mutex::new(Vec::new());

struct PendingUnmap {
    base: NonNull<u8>,
    bytes: usize,
    process: u32,
}

// SAFETY: an address that is only used for unmapping, which any thread may do.
unsafe impl Send for PendingUnmap {}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::UnknownErrno, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use nix::libc;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;

    /// Returns whether all of these pages are mapped (msync(2), ENOMEM).
    fn is_mapped(base: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: with MS_ASYNC the call changes nothing; it only walks the list of mappings.
        let found = unsafe { libc::msync(base.as_ptr().cast(), bytes, libc::MS_ASYNC) };
        found == 0
    }

    /// A child does not have a mapping with `MADV_DONTFORK` (madvise(2)), so it may map other memory there.
    #[test]
    fn a_child_that_drops_a_mapping_of_its_parent_keeps_what_it_has_there_itself() {
        let bytes = NonZeroUsize::new(page_bytes()).unwrap();
        let mapping = Mapping::memfd(bytes.get(), 1, 0, PageSize::Base).unwrap();
        let base = mapping.base();
        // SAFETY: the child calls only what a signal handler may call, and ends by `_exit`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
                let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
                // SAFETY: the flag has the kernel refuse to replace a mapping.
                let own = unsafe { mmap_anonymous(Some(base.addr()), bytes, access, flags) };
                drop(mapping);
                let failed = own.is_err() || !is_mapped(base, bytes.get());
                // SAFETY: the call ends the process.
                unsafe { libc::_exit(i32::from(failed)) };
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            }
        }
        assert!(is_mapped(base, bytes.get()), "the parent has its own");
    }

    /// Otherwise memory of the child and later memory of the parent would have the same addresses, and a function could
    /// not go from one to the other. A process begins at a multiple of 1 GiB.
    #[test]
    fn a_child_begins_at_a_place_of_its_own_in_the_window() {
        let page = page_bytes();
        let propose = || dma_window::propose(page, page, 0).unwrap();
        propose();
        // SAFETY: the child calls only what a signal handler may call, and ends by `_exit`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let begins = propose().is_multiple_of(1 << 30);
                // SAFETY: the call ends the process.
                unsafe { libc::_exit(i32::from(!begins)) };
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
            }
        }
    }
}
