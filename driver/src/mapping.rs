//! Mappings: how shared memory comes into the address space, and out of it.
//!
//! A memfd is memory of ours that other processes can map too. It is placed at an address of a wanted congruence:
//! reserve enough address space that such an address is inside, put the memory there, and give back what is left on
//! both sides. It is sealed against changes of its size: a page that disappears under a mapping ends the process that
//! touches it, so nobody we give the descriptor to can do that to us, nor we to them, and a file of another process is
//! mapped only if it is sealed so. Mappings go when they drop. Foreign memory belongs to somebody who promised that it
//! outlives us.
//!
//! A memfd is not inherited over `fork`: pages the device knows must stay the parent's.

// UNSAFETY: mmap and munmap change what addresses mean.
#![expect(unsafe_code, reason = "mmap")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use crate::error::MemoryError;
use crate::extents::Open;
use crate::guard::Guard;
use crate::page::PageSize;
use crate::page::page_bytes;

/// A piece of address space with readable and writable memory in it.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    /// Bytes that are ours, unmapped on drop.
    own: Option<NonZeroUsize>,
    /// The file behind them, if others may have it.
    file: Option<File>,
    /// What of somebody else's memory may be accessed for others.
    open: Option<Open>,
    /// Whether somebody else's memory is still there, where nothing keeps its pages.
    guard: Option<Arc<Guard>>,
}

/// A piece of a device's file, and where it goes in a mapping. Whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    /// Offset in the mapping.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    /// Offset in the file.
    pub(crate) file_offset: u64,
}

// SAFETY: `base` is an address; all that is done with it here is to unmap it, by the thread that drops the mapping.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out the address and the file, both of which any thread may have.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `bytes` zeroed bytes at an address that is `remainder` modulo `modulus`, a power of two.
    pub(crate) fn memfd(
        bytes: usize,
        modulus: usize,
        remainder: usize,
        pages: PageSize,
    ) -> Result<Self, MemoryError> {
        assert!(
            modulus.is_power_of_two(),
            "modulus {modulus:#x} is no power of two"
        );
        let granule = pages.bytes();
        // Of the hugetlb pool; it fails when that has too few.
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

        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(failed("fcntl(F_ADD_SEALS)"))?;

        let reservation = reserve(reserved).map_err(failed("mmap"))?;
        let head = remainder.wrapping_sub(reservation.addr().get()) & (modulus - 1);
        // SAFETY: `head < modulus`, and `mapped + modulus` bytes are reserved.
        let base = unsafe { reservation.add(head) };
        // SAFETY: what this replaces is inside the reservation, which nobody knows of but we.
        if let Err(errno) = unsafe { place(base, mapped, &file, 0) } {
            // SAFETY: the reservation as a whole, which nobody knows of but we.
            unsafe { unmap(reservation, reserved.get()) };
            return Err(failed("mmap")(errno));
        }
        let mapping = Self {
            base,
            own: Some(mapped),
            file: Some(file),
            open: None,
            guard: None,
        };
        // SAFETY: the reservation's bytes below `base`, where nothing was placed.
        unsafe { unmap(reservation, head) };
        // SAFETY: `head + mapped <= reserved`.
        let end = unsafe { base.add(mapped.get()) };
        // SAFETY: the reservation's bytes behind what was placed: `modulus` less the head.
        unsafe { unmap(end, modulus - head) };
        // SAFETY: the advice concerns a later `fork` only, and the range is the mapping.
        unsafe { madvise(base.cast(), mapped.get(), MmapAdvise::MADV_DONTFORK) }
            .map_err(failed("madvise"))?;
        Ok(mapping)
    }

    /// Closes the file; the memory stays mapped. Nobody else can map it any more.
    pub(crate) fn close_file(&mut self) {
        self.file = None;
    }

    /// [`memfd`](Self::memfd) where there are no files to map: under Miri. At a page's begin and no further congruent,
    /// for Miri really has every byte that is reserved; and never unmapped.
    fn interpreted(mapped: NonZeroUsize) -> Result<Self, Errno> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS;
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap_anonymous(None, mapped, access, flags) }?;
        Ok(Self {
            base: base.cast(),
            own: None,
            file: None,
            open: None,
            guard: None,
        })
    }

    /// `bytes` bytes from `offset` on of a file that another process gave us. The descriptor is closed here.
    pub(crate) fn imported(fd: OwnedFd, offset: u64, bytes: usize) -> Result<Self, MemoryError> {
        let mapped = NonZeroUsize::new(bytes).ok_or(MemoryError::Empty)?;
        let failed = |call| move |errno| MemoryError::System { call, bytes, errno };
        let file = File::from(fd);
        // The seal first: the length that is asked for afterwards is one that stays.
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
        let mapping = Self {
            base,
            own: Some(mapped),
            file: None,
            open: None,
            guard: None,
        };
        // SAFETY: the advice concerns a later `fork` only, and the range is the mapping.
        unsafe { madvise(base.cast(), bytes, MmapAdvise::MADV_DONTFORK) }
            .map_err(failed("madvise"))?;
        Ok(mapping)
    }

    /// `bytes` bytes in which pieces of a device's file lie at their places. Between them is memory of ours: an access
    /// there reaches nobody, but it does not fault.
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
        let mapping = Self {
            base: ground.map_err(failed("mmap"))?.cast(),
            own: Some(mapped),
            file: None,
            open: None,
            guard: None,
        };
        for area in areas {
            let end = area.at.checked_add(area.bytes);
            assert!(
                end.is_some_and(|end| end <= mapped.get()),
                "{area:?} outside a mapping of {mapped:#x} bytes"
            );
            let area_bytes = NonZeroUsize::new(area.bytes).ok_or(MemoryError::Empty)?;
            let file_offset = i64::try_from(area.file_offset).map_err(|_| too_large.clone())?;
            // SAFETY: inside what was just mapped (asserted above).
            let at = unsafe { mapping.base.add(area.at) };
            // SAFETY: what this replaces is a part of the ground, which nobody knows of but we.
            unsafe { place(at, area_bytes, device, file_offset) }.map_err(failed("mmap"))?;
        }
        // SAFETY: the advice concerns a later `fork` only, and the range is the mapping.
        unsafe { madvise(mapping.base.cast(), mapped.get(), MmapAdvise::MADV_DONTFORK) }
            .map_err(failed("madvise"))?;
        Ok(mapping)
    }

    /// Memory that is somebody else's to unmap.
    pub(crate) fn foreign(base: NonNull<u8>, guard: Option<Arc<Guard>>) -> Self {
        Self {
            base,
            own: None,
            file: None,
            open: Some(Open::default()),
            guard,
        }
    }

    /// What of somebody else's memory may be accessed for others: nothing at first. All of it, if there is no such
    /// list.
    pub(crate) const fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// What is asked before somebody else's memory is accessed, if something is.
    pub(crate) const fn guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref()
    }

    /// The first byte.
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The file behind it, if it is ours.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(mapped) = self.own {
            // SAFETY: `memfd` or `imported` mapped this range, and whoever used it held this mapping.
            unsafe { unmap(self.base, mapped.get()) };
        }
    }
}

/// Takes address space without memory.
fn reserve(bytes: NonZeroUsize) -> Result<NonNull<u8>, Errno> {
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
    let reservation = unsafe { mmap_anonymous(None, bytes, ProtFlags::PROT_NONE, flags) }?;
    Ok(reservation.cast())
}

/// Maps a file at exactly `base`, in place of what is there.
///
/// # Safety
///
/// Nobody uses what is there.
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
/// The range was mapped by this module, and nobody uses it any more.
unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let process = std::process::id();
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    // A child of `fork` may have something else there.
    left.retain(|range| range.process == process);
    left.push(Left {
        base,
        bytes,
        process,
    });
    left.retain(|range| {
        // SAFETY: the caller's promise, now or when it was left: it is mapped still, so nobody else has got it
        // meanwhile.
        let unmapped = unsafe { munmap(range.base.cast(), range.bytes) };
        if let Err(errno) = unmapped {
            let Left { base, bytes, .. } = range;
            tracing::error!("munmap of {bytes:#x} bytes at {base:?}: {errno}");
        }
        unmapped.is_err()
    });
}

/// What was to be unmapped and could not be: who has too many mappings cannot cut one in two (munmap(2), ENOMEM). It is
/// tried again with the next.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

struct Left {
    base: NonNull<u8>,
    bytes: usize,
    process: u32,
}

// SAFETY: an address that is used to unmap it, which any thread may do.
unsafe impl Send for Left {}

fn errno_of(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::UnknownErrno, Errno::from_raw)
}
