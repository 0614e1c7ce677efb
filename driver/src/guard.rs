//! Checks that lent memory is still mapped where it was lent.
//!
//! VFIO pins the pages that it maps. A simulated device uses virtual addresses, so the program may unmap or replace
//! the pages under it. Each access of the device first checks with a [`Guard`], and copies by system calls that can
//! fail: the device gets an error, never a signal, and never pages that were not lent.
//!
//! **Replaced pages.** A guard registers its pages with userfaultfd(2) for write protection, but never protects a
//! page. munmap and mmap end the registration, so the pages at an address without a registration are not those that
//! were lent. A replacement goes unnoticed without userfaultfd, for memory that it cannot register (files, a kernel
//! without write-protection faults), and beyond the first [`MOST_REGISTERED`] guards.
//!
//! **Unmapped pages.** process_vm_readv(2) and process_vm_writev(2) fail with EFAULT where a load would raise
//! SIGSEGV. Where the system refuses these calls, plain loads and stores are used.
//!
//! **Race.** A page that another thread replaces between the check and the access may be read or written once.
//!
//! **fork.** A child inherits its parent's guards, but they check nothing in the child. A child must not lend memory
//! before an exec.

// UNSAFETY: userfaultfd(2), msync(2) and process_vm_readv(2) on addresses that the caller owns.
#![expect(unsafe_code, reason = "system calls on addresses of the caller's")]

use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;
use nix::libc;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::{Pid, getpid};
use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, IntoBytes};

use crate::extents::Extents;
use crate::page::page_bytes;

/// `UFFD_USER_MODE_ONLY`: the descriptor needs no privilege. This constant and the next ones are from Linux
/// include/uapi/linux/userfaultfd.h.
const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFD_API`.
const VERSION: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_WP`.
const REGISTER_PROTECTION: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`. Without `UFFDIO_WRITEPROTECT_MODE_WP` the request removes protection; no page
/// is protected, so it changes nothing.
const PROTECT_NOTHING: u64 = 1 << 1;

/// Limit on guards that are registered at a time. Each may split the process's list of mappings in two places, and
/// the kernel limits its length (`vm.max_map_count`, by default 65,530).
const MOST_REGISTERED: usize = 4096;

/// `struct uffdio_api`.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes)]
struct Place {
    start: u64,
    bytes: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
struct Register {
    range: Place,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
struct Protect {
    range: Place,
    mode: u64,
}

/// A request to a userfaultfd.
trait Request: FromBytes + IntoBytes {
    /// Number of the ioctl request, which includes the size of its structure.
    const NUMBER: libc::c_ulong;
}

/// `UFFDIO_API`.
impl Request for Api {
    const NUMBER: libc::c_ulong = 0xc018_aa3f;
}

/// `UFFDIO_REGISTER`.
impl Request for Register {
    const NUMBER: libc::c_ulong = 0xc020_aa00;
}

/// `UFFDIO_UNREGISTER`.
impl Request for Place {
    const NUMBER: libc::c_ulong = 0x8010_aa01;
}

/// `UFFDIO_WRITEPROTECT`.
impl Request for Protect {
    const NUMBER: libc::c_ulong = 0xc018_aa06;
}

/// Returns the number of bytes of a request's structure (`_IOC_SIZE`).
const fn size_of_request<R: Request>() -> usize {
    (R::NUMBER >> 16 & 0x3fff) as usize // CAST: 14 bits.
}

const_assert_eq!(size_of_request::<Api>(), size_of::<Api>());
const_assert_eq!(size_of_request::<Register>(), size_of::<Register>());
const_assert_eq!(size_of_request::<Place>(), size_of::<Place>());
const_assert_eq!(size_of_request::<Protect>(), size_of::<Protect>());

impl Place {
    fn of(range: &Range<usize>) -> Self {
        // CAST: usize has at most 64 bits on every target Rust has.
        Self {
            start: range.start as u64,
            bytes: range.len() as u64,
        }
    }
}

/// A userfaultfd of this process.
struct Descriptor {
    file: OwnedFd,
    /// Process that made the userfaultfd. In a child of `fork` the descriptor still refers to the parent's memory.
    of: Pid,
}

impl Descriptor {
    fn new() -> nix::Result<Self> {
        if cfg!(miri) {
            return Err(Errno::ENOSYS);
        }
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: the call takes flags and makes a descriptor.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let made = i32::try_from(Errno::result(made)?).map_err(|_| Errno::EBADF)?;
        // SAFETY: the descriptor was made just now and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(made) };
        let descriptor = Self { file, of: getpid() };
        let mut api = Api {
            api: VERSION,
            features: 0,
            ioctls: 0,
        };
        descriptor.ask(&mut api)?;
        Ok(descriptor)
    }

    fn ask<R: Request>(&self, what: &mut R) -> nix::Result<()> {
        // CAST: `Ioctl` has another sign with other C libraries.
        let request = R::NUMBER as _;
        // SAFETY: the request number belongs to exactly this structure and contains its size. Any bytes that the kernel
        // writes to the structure are a valid `R`, and the kernel changes no contents of other memory.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), request, what) };
        Errno::result(done).map(drop)
    }

    fn register(&self, pages: &Range<usize>) -> bool {
        let mut register = Register {
            range: Place::of(pages),
            mode: REGISTER_PROTECTION,
            ioctls: 0,
        };
        self.ask(&mut register).is_ok()
    }

    /// Unregisters pages. An error is ignored: pages that were unmapped or replaced are not registered.
    fn unregister(&self, pages: &Range<usize>) {
        let _ = self.ask(&mut Place::of(pages));
    }

    /// Returns whether all of the pages are registered. Before Linux 6.3 the kernel also returns ENOENT for pages of
    /// two mappings, so then each page is checked on its own.
    fn has(&self, pages: &Range<usize>) -> bool {
        let page = page_bytes();
        self.has_together(pages)
            || pages.len() > page
                && pages
                    .clone()
                    .step_by(page)
                    .all(|at| self.has_together(&(at..at + page)))
    }

    fn has_together(&self, pages: &Range<usize>) -> bool {
        let mut protect = Protect {
            range: Place::of(pages),
            mode: PROTECT_NOTHING,
        };
        // Other errors do not show whether the pages are registered. They occur for pages of other sizes and for a
        // mapping that is being changed.
        self.ask(&mut protect) != Err(Errno::ENOENT)
    }
}

/// The guards of this process.
#[derive(Default)]
struct Watch {
    descriptor: Option<Arc<Descriptor>>,
    /// Process to which the other fields belong.
    of: Option<Pid>,
    /// True once the descriptor has been made, or the system has refused it for good.
    tried: bool,
    /// True once a failure that may be temporary was logged as a warning.
    warned: bool,
    /// Pages of registered guards.
    taken: Extents,
    registered: usize,
    /// Registered guards, and some that were dropped.
    guards: Vec<Weak<Guard>>,
}

static WATCH: LazyLock<Mutex<Watch>> = LazyLock::new(Mutex::default);

fn watch() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Returns the userfaultfd of this process, and makes it by `make` if there is none. After a failure that may be
    /// temporary, the next call makes another attempt.
    fn descriptor(
        &mut self,
        make: impl FnOnce() -> nix::Result<Descriptor>,
    ) -> Option<Arc<Descriptor>> {
        let own = getpid();
        if self.of != Some(own) {
            *self = Self {
                of: Some(own),
                ..Self::default()
            };
        }
        if self.tried {
            return self.descriptor.clone();
        }
        match make() {
            Ok(made) => self.descriptor = Some(Arc::new(made)),
            Err(errno) if is_temporary(errno) => {
                if !core::mem::replace(&mut self.warned, true) {
                    tracing::warn!(%errno, "no userfaultfd now: some lent pages are used even if they are replaced");
                }
                return None;
            }
            Err(errno) => {
                tracing::debug!(%errno, "no userfaultfd: lent pages are used even if they are replaced");
            }
        }
        self.tried = true;
        self.descriptor.clone()
    }
}

/// Returns whether userfaultfd(2) may succeed later although it has failed with this error.
fn is_temporary(errno: Errno) -> bool {
    let temporary = [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOMEM,
        Errno::EINTR,
        Errno::EAGAIN,
    ];
    temporary.contains(&errno)
}

/// A guard for pages of the caller that a device model accesses by virtual address.
pub(crate) struct Guard {
    pages: Range<usize>,
    /// Userfaultfd at which the pages are registered; `None` if they are not registered.
    descriptor: Option<Arc<Descriptor>>,
    /// Pages that were found to be replaced; they stay listed.
    replaced: Mutex<Extents>,
}

impl Guard {
    /// Guards whole pages; `None` if not all of them are mapped.
    pub(crate) fn new(pages: Range<usize>) -> Option<Arc<Self>> {
        if !is_mapped(&pages) {
            return None;
        }
        // Declared before the lock guard, so that these `Guard`s are dropped after the lock is released: `Guard::drop`
        // takes the lock.
        let all: Vec<Arc<Self>>;
        let mut watch = watch();
        let descriptor = watch.descriptor(Descriptor::new);
        if !watch.taken.used_parts(&pages).is_empty() {
            // Guards that overlap are checked now, to mark those of their pages that were replaced. Later such a guard
            // would find the new registration and mistake it for its own.
            all = watch.guards.iter().filter_map(Weak::upgrade).collect();
            for other in &all {
                let shared = other.pages.start.max(pages.start)..other.pages.end.min(pages.end);
                for at in shared.step_by(page_bytes()) {
                    other.is_there(&(at..at + page_bytes()));
                }
            }
        }
        let room = watch.registered < MOST_REGISTERED;
        let descriptor = descriptor.filter(|descriptor| room && descriptor.register(&pages));
        let is_registered = descriptor.is_some();
        let guard = Arc::new(Self {
            pages: pages.clone(),
            descriptor,
            replaced: Mutex::default(),
        });
        if is_registered {
            watch.registered += 1;
            watch.taken.add(&pages);
            if watch.guards.len() >= 2 * watch.registered {
                watch.guards.retain(|other| other.strong_count() > 0);
            }
            watch.guards.push(Arc::downgrade(&guard));
        }
        Some(guard)
    }

    /// Returns whether these pages are still those that were lent. Always true if the pages are not registered.
    fn is_there(&self, range: &Range<usize>) -> bool {
        let Some(descriptor) = &self.descriptor else {
            return true;
        };
        let page = page_bytes();
        let pages = range.start / page * page..range.end.next_multiple_of(page);
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        if !replaced.used_parts(&pages).is_empty() {
            return false;
        }
        let there = descriptor.has(&pages);
        if !there {
            replaced.add(&pages);
        }
        there
    }

    /// Returns whether this guard detects replaced pages.
    #[cfg(test)]
    pub(crate) const fn notices(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Returns whether all of these pages are mapped, and are those that were lent.
    pub(crate) fn is_whole(&self, pages: &Range<usize>) -> bool {
        self.is_there(pages) && is_mapped(pages)
    }

    /// Checks that an access is allowed.
    ///
    /// # Errors
    /// The pages have been unmapped or replaced.
    pub(crate) fn check(&self, address: usize, bytes: usize) -> Result<()> {
        if self.is_there(&(address..address + bytes)) {
            return Ok(());
        }
        Err(Error::other(format!(
            "memory at {address:#x}, which was lent, was unmapped or replaced"
        )))
    }

    /// Copies bytes out by a system call. `None` if the system refuses the call.
    ///
    /// # Panics
    /// If the bytes are not inside the guarded pages.
    pub(crate) fn read(&self, address: usize, out: &mut [u8]) -> Option<Result<()>> {
        let bytes = out.len();
        assert!(self.pages.start <= address && bytes <= self.pages.end - address);
        let remote = [RemoteIoVec {
            base: address,
            len: bytes,
        }];
        let done = process_vm_readv(getpid(), &mut [IoSliceMut::new(out)], &remote);
        answer(done, address, bytes)
    }

    /// Copies bytes in by a system call. `None` if the system refuses the call.
    ///
    /// # Panics
    /// If the bytes are not inside the guarded pages.
    pub(crate) fn write(&self, address: usize, data: &[u8]) -> Option<Result<()>> {
        assert!(self.pages.start <= address && data.len() <= self.pages.end - address);
        let remote = [RemoteIoVec {
            base: address,
            len: data.len(),
        }];
        let done = process_vm_writev(getpid(), &[IoSlice::new(data)], &remote);
        answer(done, address, data.len())
    }
}

/// Converts the result of a copy by the kernel; `None` if the system refuses the call.
fn answer(done: nix::Result<usize>, address: usize, bytes: usize) -> Option<Result<()>> {
    match done {
        Ok(done) if done == bytes => Some(Ok(())),
        Ok(_) | Err(Errno::EFAULT) => Some(Err(Error::other(format!(
            "memory at {address:#x}, which was lent, is not mapped or does not permit the access"
        )))),
        Err(_) => None,
    }
}

/// Returns whether all of these pages are mapped.
fn is_mapped(pages: &Range<usize>) -> bool {
    if cfg!(miri) {
        return true;
    }
    let start = std::ptr::without_provenance_mut(pages.start);
    // SAFETY: with MS_ASYNC the call changes nothing; it only walks the list of mappings.
    let found = unsafe { libc::msync(start, pages.len(), libc::MS_ASYNC) };
    Errno::result(found) != Err(Errno::ENOMEM)
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The process is checked before the lock is taken: in a child of `fork` the lock may stay locked forever.
        let own = self.descriptor.as_ref();
        let Some(descriptor) = own.filter(|one| one.of == getpid()) else {
            return;
        };
        let mut watch = watch();
        watch.registered -= 1;
        for pages in watch.taken.remove(&self.pages) {
            descriptor.unregister(&pages);
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guard({:#x}..{:#x})", self.pages.start, self.pages.end)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn made() -> nix::Result<Descriptor> {
        let file = File::open("/dev/null").expect("a file");
        Ok(Descriptor {
            file: file.into(),
            of: getpid(),
        })
    }

    #[test]
    fn a_userfaultfd_that_fails_for_lack_of_resources_is_made_later() {
        let mut watch = Watch::default();
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            assert!(watch.descriptor(|| Err(errno)).is_none());
        }
        assert!(watch.descriptor(made).is_some());
        let again = watch.descriptor(|| unreachable!("there is one"));
        assert!(again.is_some());
    }

    #[test]
    fn a_userfaultfd_that_the_system_refuses_is_tried_once() {
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            let mut watch = Watch::default();
            assert!(watch.descriptor(|| Err(errno)).is_none());
            let again = watch.descriptor(|| unreachable!("it is refused"));
            assert!(again.is_none());
        }
    }
}
