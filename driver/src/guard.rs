//! Whether memory of the caller's is still where it was lent.
//!
//! The kernel's VFIO pins the pages that it maps: a program that unmaps them, or maps others in their place, changes
//! nothing for the device. A device that is a model reaches memory by its virtual address, where nothing or something
//! else may be by then. So it asks before each access, and makes it in a way that may fail: it gets an error, never a
//! signal, and never sees pages that were not lent.
//!
//! **Something else.** Lent pages are registered with a userfaultfd(2), for write-protection faults, of which none is
//! ever asked for. The kernel takes the registration away with the mapping, so that an address where it is missing
//! leads to other pages. Nothing waits for the descriptor, and nothing is caught by it. Where there is no userfaultfd,
//! or it does not know such memory (files, a machine without write-protection faults), a replacement is not noticed;
//! nor is it of memory that is lent beyond the first [`MOST_REGISTERED`] pieces.
//!
//! **Nothing.** Accesses are made by process_vm_readv(2) and process_vm_writev(2) of this process to itself, which
//! answer EFAULT where a load or a store would end the program. Where they are not to be had, loads and stores are.
//!
//! What changes between the question and the access, by another thread, is not told apart: the access may be the last
//! one to the old mapping or the first one to the new.

// UNSAFETY: userfaultfd(2), msync(2) and process_vm_readv(2) on addresses that somebody else owns.
#![expect(unsafe_code, reason = "system calls on addresses of the caller's")]

use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;
use nix::libc;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::{Pid, getpid};
use zerocopy::{Immutable, IntoBytes};

use crate::extents::Extents;
use crate::page::page_bytes;

/// `UFFD_USER_MODE_ONLY` (Linux include/uapi/linux/userfaultfd.h), as are those below: no right is needed then.
const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFDIO_API`, of [`Api`].
const API: libc::c_ulong = 0xc018_aa3f;
/// `UFFDIO_REGISTER`, of [`Register`].
const REGISTER: libc::c_ulong = 0xc020_aa00;
/// `UFFDIO_UNREGISTER`, of [`Place`].
const UNREGISTER: libc::c_ulong = 0x8010_aa01;
/// `UFFDIO_WRITEPROTECT`, of [`Protect`].
const WRITE_PROTECT: libc::c_ulong = 0xc018_aa06;
/// `UFFD_API`.
const VERSION: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_WP`.
const REGISTER_PROTECTION: u64 = 1 << 1;
/// `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`; without `UFFDIO_WRITEPROTECT_MODE_WP` protection is taken away, and there is
/// none.
const PROTECT_NOTHING: u64 = 1 << 1;

/// Guards that are registered at a time. Each may cut the list of mappings of the process in two places, and the kernel
/// has a limit for those (`vm.max_map_count`, 65,530 unless it is set).
const MOST_REGISTERED: usize = 4096;

/// `struct uffdio_api`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct Place {
    start: u64,
    bytes: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Register {
    range: Place,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Protect {
    range: Place,
    mode: u64,
}

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
    /// A child of `fork` has it, and it is of its parent's memory.
    of: Pid,
}

impl Descriptor {
    fn new() -> Option<Self> {
        if cfg!(miri) {
            return None;
        }
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: it takes flags, and makes a descriptor.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let made = i32::try_from(made).ok().filter(|made| *made >= 0)?;
        // SAFETY: made just now, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(made) };
        let descriptor = Self { file, of: getpid() };
        let mut api = Api {
            api: VERSION,
            features: 0,
            ioctls: 0,
        };
        descriptor.ask(API, &mut api).ok()?;
        Some(descriptor)
    }

    /// One of its requests, with the structure that the request takes.
    fn ask<T: IntoBytes + Immutable>(
        &self,
        request: libc::c_ulong,
        what: &mut T,
    ) -> nix::Result<()> {
        // CAST: `Ioctl` has another sign with other C libraries.
        // SAFETY: every request above is used with its own structure, which the kernel reads and writes, and changes no
        // contents of memory.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, what) };
        Errno::result(done).map(drop)
    }

    fn register(&self, pages: &Range<usize>) -> bool {
        let mut register = Register {
            range: Place::of(pages),
            mode: REGISTER_PROTECTION,
            ioctls: 0,
        };
        self.ask(REGISTER, &mut register).is_ok()
    }

    /// Pages that are there no more, or others, are not registered.
    fn unregister(&self, pages: &Range<usize>) {
        let _ = self.ask(UNREGISTER, &mut Place::of(pages));
    }

    /// Whether the pages are registered, as far as there are any.
    fn has(&self, pages: &Range<usize>) -> bool {
        let mut protect = Protect {
            range: Place::of(pages),
            mode: PROTECT_NOTHING,
        };
        // Others say that it cannot be known: pages of other sizes, a mapping that is being changed.
        self.ask(WRITE_PROTECT, &mut protect) != Err(Errno::ENOENT)
    }
}

/// What is guarded in this process.
#[derive(Default)]
struct Watch {
    descriptor: Option<Arc<Descriptor>>,
    tried: Option<Pid>,
    /// Pages of guards that are registered.
    taken: Extents,
    registered: usize,
    /// Those that are registered, and some that are no more.
    guards: Vec<Weak<Guard>>,
}

static WATCH: LazyLock<Mutex<Watch>> = LazyLock::new(Mutex::default);

fn watch() -> MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    fn descriptor(&mut self) -> Option<Arc<Descriptor>> {
        let own = getpid();
        if self.tried != Some(own) {
            *self = Self {
                descriptor: Descriptor::new().map(Arc::new),
                tried: Some(own),
                ..Self::default()
            };
        }
        self.descriptor.clone()
    }
}

/// Pages of the caller's that a model of a device reaches by their addresses.
pub(crate) struct Guard {
    pages: Range<usize>,
    /// Where they are registered.
    descriptor: Option<Arc<Descriptor>>,
    /// Some of them were found to be others.
    replaced: AtomicBool,
}

impl Guard {
    /// Guards whole pages.
    ///
    /// # Errors
    /// EFAULT: not all of them are mapped, as the kernel's VFIO answers.
    pub(crate) fn new(pages: Range<usize>) -> nix::Result<Arc<Self>> {
        if !is_mapped(&pages) {
            return Err(Errno::EFAULT);
        }
        let mut watch = watch();
        let descriptor = watch.descriptor();
        if !watch.taken.taken_of(&pages).is_empty() {
            // Those whose pages are not what they were would take the new ones for theirs.
            let all = watch.guards.iter().filter_map(Weak::upgrade);
            for other in all.filter(|other| other.overlaps(&pages)) {
                other.is_there(&other.pages);
            }
        }
        let room = watch.registered < MOST_REGISTERED;
        let descriptor = descriptor.filter(|descriptor| room && descriptor.register(&pages));
        let is_registered = descriptor.is_some();
        let guard = Arc::new(Self {
            pages: pages.clone(),
            descriptor,
            replaced: AtomicBool::new(false),
        });
        if is_registered {
            watch.registered += 1;
            watch.taken.add(&pages);
            if watch.guards.len() >= 2 * watch.registered {
                watch.guards.retain(|other| other.strong_count() > 0);
            }
            watch.guards.push(Arc::downgrade(&guard));
        }
        Ok(guard)
    }

    fn overlaps(&self, pages: &Range<usize>) -> bool {
        self.pages.start < pages.end && pages.start < self.pages.end
    }

    /// Whether these are the pages that were lent, or nothing is there. Pages that were found to be others are so for
    /// good, and all of the guard with them.
    fn is_there(&self, range: &Range<usize>) -> bool {
        if self.replaced.load(Ordering::Relaxed) {
            return false;
        }
        let Some(descriptor) = &self.descriptor else {
            return true;
        };
        let page = page_bytes();
        let pages = range.start / page * page..range.end.next_multiple_of(page);
        let there = descriptor.has(&pages);
        if !there {
            self.replaced.store(true, Ordering::Relaxed);
        }
        there
    }

    /// Whether it notices that other pages are there.
    #[cfg(test)]
    pub(crate) const fn notices(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Whether all of it is what was lent.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_there(&self.pages) && is_mapped(&self.pages)
    }

    /// Whether an access may be made.
    ///
    /// # Errors
    /// In words: other pages are there.
    pub(crate) fn check(&self, address: usize, bytes: usize) -> Result<()> {
        if self.is_there(&(address..address + bytes)) {
            return Ok(());
        }
        Err(Error::other(format!(
            "memory at {address:#x}, which was lent, was unmapped or replaced"
        )))
    }

    /// Copies bytes out. `None` where the system does not do it.
    pub(crate) fn read(&self, address: usize, out: &mut [u8]) -> Option<Result<()>> {
        let bytes = out.len();
        let remote = [RemoteIoVec {
            base: address,
            len: bytes,
        }];
        let done = process_vm_readv(getpid(), &mut [IoSliceMut::new(out)], &remote);
        answer(done, address, bytes)
    }

    /// Copies bytes in. `None` where the system does not do it.
    pub(crate) fn write(&self, address: usize, data: &[u8]) -> Option<Result<()>> {
        let remote = [RemoteIoVec {
            base: address,
            len: data.len(),
        }];
        let done = process_vm_writev(getpid(), &[IoSlice::new(data)], &remote);
        answer(done, address, data.len())
    }
}

/// What came of a copy by the kernel.
fn answer(done: nix::Result<usize>, address: usize, bytes: usize) -> Option<Result<()>> {
    match done {
        Ok(done) if done == bytes => Some(Ok(())),
        Ok(_) | Err(Errno::EFAULT) => Some(Err(Error::other(format!(
            "memory at {address:#x}, which was lent, is not mapped, or may not be accessed so"
        )))),
        Err(_) => None,
    }
}

/// Whether something is mapped at all of these pages.
fn is_mapped(pages: &Range<usize>) -> bool {
    if cfg!(miri) {
        return true;
    }
    let start = std::ptr::without_provenance_mut(pages.start);
    // SAFETY: with MS_ASYNC it changes nothing; it looks at the list of mappings.
    let found = unsafe { libc::msync(start, pages.len(), libc::MS_ASYNC) };
    Errno::result(found) != Err(Errno::ENOMEM)
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(descriptor) = &self.descriptor else {
            return;
        };
        let mut watch = watch();
        if descriptor.of != getpid() || watch.tried != Some(descriptor.of) {
            return;
        }
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
