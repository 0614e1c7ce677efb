//! The system calls that fail in the tests, and their errors.
//!
//! The errors are those of the manual pages that a program can get on a machine without a defect: lack of
//! descriptors, memory, disk space and rights, and signals. A call is not disturbed if no code of the project handles
//! its errors:
//! - allocating the allocator's memory, and the memory of the stack on which Rust handles an overflow: Rust ends a
//!   process that cannot get them. The calls are recognized by their arguments: they map anonymous memory without
//!   `MAP_NORESERVE` that is not the stack of a thread. Later calls on that memory belong to them. The child runs
//!   with one arena;
//! - unmapping the stack of a thread: the C library ends a process that cannot unmap one;
//! - unmapping an io_uring: its library ignores the result of munmap(2);
//! - reading directories of `/proc`: only the tests do so, to count descriptors;
//! - closing files of `/proc` about the process: closedir(3) does not fail there, and Rust panics if it does;
//! - futex(2), and calls of a thread on itself: the C library or Rust's standard library ends the process if they
//!   fail;
//! - msync(2), by which the driver asks whether pages are mapped: the error is the answer;
//! - reading the clock, yielding, exiting.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;

/// Ways in which a call is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call is not made, and returns this error.
    Error(Errno),
    /// The call is made for half of the bytes or other items, and returns that number.
    Short,
    /// The call is made, but returns this error.
    Done(Errno),
}

use Fault::{Done, Error, Short};

/// Class of a call that is about to be made.
pub enum Call {
    /// A call that is disturbed: its name in the table, and its faults.
    Fails(&'static str, &'static [Fault]),
    /// A call that is not disturbed.
    Left,
    /// A call that is in no table, which fails the test.
    Unknown,
}

const DESCRIPTORS: &[Fault] = &[Error(Errno::EMFILE), Error(Errno::ENFILE)];
const DESCRIPTORS_AND_MEMORY: &[Fault] = &[
    Error(Errno::EMFILE),
    Error(Errno::ENFILE),
    Error(Errno::ENOMEM),
];
const MEMORY: &[Fault] = &[Error(Errno::ENOMEM)];
/// Errors of a copy by the kernel. EFAULT and a short copy are answers: the memory is not mapped.
const COPY: &[Fault] = &[
    Error(Errno::EPERM),
    Error(Errno::ENOSYS),
    Error(Errno::ENOMEM),
];
const POLL: &[Fault] = &[Error(Errno::EINTR), Error(Errno::ENOMEM)];

/// Classifies a read or a write by the target of its descriptor, as in `/proc/PID/fd`.
fn of_descriptor(link: &str, reads: bool) -> Call {
    match link {
        "anon_inode:[eventfd]" if reads => Call::Fails(
            "read (eventfd)",
            &[Error(Errno::EINTR), Error(Errno::EAGAIN)],
        ),
        "anon_inode:[eventfd]" => Call::Fails(
            "write (eventfd)",
            &[Error(Errno::EINTR), Error(Errno::EAGAIN)],
        ),
        // These are the pipes between the test and its child.
        link if link.starts_with("pipe:") || link == "/dev/null" => Call::Left,
        _ if reads => Call::Fails(
            "read (file)",
            &[Error(Errno::EINTR), Error(Errno::EIO), Short],
        ),
        _ => Call::Fails(
            "write (file)",
            &[
                Error(Errno::EINTR),
                Error(Errno::EIO),
                Error(Errno::ENOSPC),
                Short,
            ],
        ),
    }
}

/// Resolves system call arguments of the traced process: descriptors, addresses and paths.
pub trait Caller {
    /// Returns the target of a descriptor.
    fn descriptor(&self, fd: u64) -> String;
    /// Returns the owner of the memory at an address.
    fn owner(&self, address: u64) -> Owner;
    /// Returns the path that is stored at an address.
    fn path(&self, address: u64) -> PathBuf;
    /// Returns the directory of the files whose calls fail.
    fn files(&self) -> &Path;
}

/// Owner of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The allocator, or the stack on which Rust handles a stack overflow.
    Runtime,
    /// A thread's stack.
    Stack,
    /// The io_uring library.
    Ring,
    /// Code of the project.
    Project,
}

/// Returns the owner of the memory that a call with these arguments maps.
pub fn owner(arguments: [u64; 6], caller: &dyn Caller) -> Owner {
    let [_, _, access, flags, fd, _] = arguments;
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    if !has(libc::MAP_ANONYMOUS) {
        return match &*caller.descriptor(fd) {
            "anon_inode:[io_uring]" => Owner::Ring,
            _ => Owner::Project,
        };
    }
    // PROT_NONE is 0.
    match (has(libc::MAP_STACK), access) {
        (true, 0) => Owner::Stack,
        _ if has(libc::MAP_NORESERVE) => Owner::Project,
        _ => Owner::Runtime,
    }
}

/// Classifies a call by its number and arguments.
pub fn call(number: i64, arguments: [u64; 6], caller: &dyn Caller) -> Call {
    let [first, ..] = arguments;
    let (name, faults): (_, &'static [Fault]) = match number {
        libc::SYS_openat => ("openat", DESCRIPTORS),
        libc::SYS_socket => ("socket", DESCRIPTORS_AND_MEMORY),
        libc::SYS_socketpair => ("socketpair", DESCRIPTORS_AND_MEMORY),
        libc::SYS_eventfd2 => ("eventfd", DESCRIPTORS_AND_MEMORY),
        libc::SYS_memfd_create => ("memfd_create", DESCRIPTORS_AND_MEMORY),
        libc::SYS_accept4 => (
            "accept4",
            &[
                Error(Errno::EMFILE),
                Error(Errno::ENFILE),
                Error(Errno::ENOMEM),
                Error(Errno::EINTR),
                Error(Errno::ECONNABORTED),
            ],
        ),
        libc::SYS_mmap => match owner(arguments, caller) {
            Owner::Runtime => return Call::Left,
            Owner::Stack => ("mmap (stack)", MEMORY),
            Owner::Ring => ("mmap (ring)", MEMORY),
            Owner::Project => ("mmap", MEMORY),
        },
        libc::SYS_mprotect if caller.owner(first) == Owner::Stack => ("mprotect (stack)", MEMORY),
        libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_madvise
            if caller.owner(first) != Owner::Project =>
        {
            return Call::Left;
        }
        libc::SYS_munmap => ("munmap", MEMORY),
        libc::SYS_mprotect => ("mprotect", MEMORY),
        libc::SYS_mremap => ("mremap", MEMORY),
        libc::SYS_madvise => ("madvise", &[Error(Errno::ENOMEM), Error(Errno::EINVAL)]),
        libc::SYS_clone | libc::SYS_clone3 => {
            ("clone", &[Error(Errno::EAGAIN), Error(Errno::ENOMEM)])
        }
        libc::SYS_read | libc::SYS_pread64 => {
            return of_descriptor(&caller.descriptor(first), true);
        }
        libc::SYS_write | libc::SYS_pwrite64 => {
            return of_descriptor(&caller.descriptor(first), false);
        }
        libc::SYS_recvfrom => (
            "recvfrom",
            &[
                Error(Errno::EINTR),
                Error(Errno::ENOMEM),
                Error(Errno::ECONNRESET),
            ],
        ),
        libc::SYS_recvmsg => (
            "recvmsg",
            &[
                Error(Errno::EINTR),
                Error(Errno::ENOMEM),
                Error(Errno::EAGAIN),
                Error(Errno::ECONNRESET),
                Short,
            ],
        ),
        libc::SYS_sendto => (
            "sendto",
            &[
                Error(Errno::EINTR),
                Error(Errno::EAGAIN),
                Error(Errno::ENOBUFS),
                Error(Errno::ENOMEM),
                Error(Errno::EPIPE),
            ],
        ),
        libc::SYS_sendmsg => (
            "sendmsg",
            &[
                Error(Errno::EINTR),
                Error(Errno::EAGAIN),
                Error(Errno::ENOBUFS),
                Error(Errno::ENOMEM),
                Error(Errno::ETOOMANYREFS),
                Error(Errno::EPIPE),
                Short,
            ],
        ),
        libc::SYS_bind => (
            "bind",
            &[
                Error(Errno::EADDRINUSE),
                Error(Errno::ENOSPC),
                Error(Errno::ENOMEM),
            ],
        ),
        libc::SYS_listen => ("listen", &[Error(Errno::EADDRINUSE)]),
        libc::SYS_connect => (
            "connect",
            &[
                Error(Errno::EINTR),
                Error(Errno::EAGAIN),
                Error(Errno::ENOMEM),
                Error(Errno::EACCES),
            ],
        ),
        // The call is made, because it wakes the waiter whatever it returns.
        libc::SYS_shutdown => ("shutdown", &[Done(Errno::ENOTCONN)]),
        libc::SYS_setsockopt => ("setsockopt", MEMORY),
        libc::SYS_getsockname => ("getsockname", &[Error(Errno::ENOBUFS)]),
        libc::SYS_ftruncate => (
            "ftruncate",
            &[
                Error(Errno::EINTR),
                Error(Errno::ENOSPC),
                Error(Errno::ENOMEM),
            ],
        ),
        libc::SYS_fcntl => ("fcntl", &[Error(Errno::EPERM), Error(Errno::EINVAL)]),
        libc::SYS_flock => ("flock", &[Error(Errno::EINTR), Error(Errno::ENOLCK)]),
        libc::SYS_ioctl => (
            "ioctl",
            &[
                Error(Errno::EPERM),
                Error(Errno::EINVAL),
                Error(Errno::EINTR),
            ],
        ),
        libc::SYS_unlink | libc::SYS_unlinkat => {
            ("unlink", &[Error(Errno::EACCES), Error(Errno::EIO)])
        }
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => {
            ("rename", &[Error(Errno::ENOSPC), Error(Errno::EIO)])
        }
        libc::SYS_statx
        | libc::SYS_newfstatat
        | libc::SYS_fstat
        | libc::SYS_stat
        | libc::SYS_lstat => ("stat", &[Error(Errno::ENOMEM), Error(Errno::EACCES)]),
        libc::SYS_fstatfs => ("fstatfs", &[Error(Errno::EIO), Error(Errno::EINTR)]),
        libc::SYS_readlink | libc::SYS_readlinkat => {
            ("readlink", &[Error(Errno::ENOMEM), Error(Errno::EACCES)])
        }
        libc::SYS_getdents64 | libc::SYS_close
            if caller.descriptor(first).starts_with("/proc/") =>
        {
            return Call::Left;
        }
        libc::SYS_getdents64 => ("getdents64", &[Error(Errno::EIO)]),
        libc::SYS_getcwd => ("getcwd", MEMORY),
        libc::SYS_lseek => ("lseek", &[Error(Errno::ESPIPE)]),
        libc::SYS_getrandom => ("getrandom", &[Error(Errno::EINTR)]),
        libc::SYS_io_uring_setup => (
            "io_uring_setup",
            &[
                Error(Errno::ENOMEM),
                Error(Errno::EMFILE),
                Error(Errno::EPERM),
                Error(Errno::ENOSYS),
            ],
        ),
        libc::SYS_io_uring_enter => (
            "io_uring_enter",
            &[
                Error(Errno::EINTR),
                Error(Errno::EAGAIN),
                Error(Errno::EBUSY),
                Error(Errno::ENOMEM),
                Short,
            ],
        ),
        libc::SYS_io_uring_register => (
            "io_uring_register",
            &[Error(Errno::ENOMEM), Error(Errno::EPERM)],
        ),
        libc::SYS_userfaultfd => (
            "userfaultfd",
            &[
                Error(Errno::EPERM),
                Error(Errno::ENOSYS),
                Error(Errno::EMFILE),
                Error(Errno::ENOMEM),
            ],
        ),
        libc::SYS_process_vm_readv => ("process_vm_readv", COPY),
        libc::SYS_process_vm_writev => ("process_vm_writev", COPY),
        libc::SYS_membarrier => ("membarrier", &[Error(Errno::EPERM), Error(Errno::ENOMEM)]),
        libc::SYS_poll | libc::SYS_ppoll => ("poll", POLL),
        libc::SYS_clock_nanosleep | libc::SYS_nanosleep => ("nanosleep", &[Error(Errno::EINTR)]),
        // The call is made, because it closes the descriptor whatever it returns.
        libc::SYS_close => ("close", &[Done(Errno::EIO), Done(Errno::EINTR)]),
        libc::SYS_brk
        | libc::SYS_msync
        | libc::SYS_futex
        | libc::SYS_sched_yield
        | libc::SYS_sched_getaffinity
        | libc::SYS_clock_gettime
        | libc::SYS_getpid
        | libc::SYS_getppid
        | libc::SYS_gettid
        | libc::SYS_geteuid
        | libc::SYS_getuid
        | libc::SYS_rt_sigprocmask
        | libc::SYS_rt_sigaction
        | libc::SYS_rt_sigreturn
        | libc::SYS_restart_syscall
        | libc::SYS_sigaltstack
        | libc::SYS_set_robust_list
        | libc::SYS_rseq
        | libc::SYS_prctl
        | libc::SYS_prlimit64
        | libc::SYS_exit
        | libc::SYS_exit_group => return Call::Left,
        _ => return Call::Unknown,
    };
    Call::Fails(name, faults)
}

/// Like `call`, but only calls on files below `Caller::files` may fail.
pub fn call_at_files(number: i64, arguments: [u64; 6], caller: &dyn Caller) -> Call {
    let [first, second, ..] = arguments;
    let path = match number {
        libc::SYS_openat | libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_unlinkat => {
            caller.path(second)
        }
        libc::SYS_linkat | libc::SYS_renameat | libc::SYS_renameat2 => caller.path(second),
        libc::SYS_mkdir | libc::SYS_unlink | libc::SYS_rename | libc::SYS_link => {
            caller.path(first)
        }
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_flock
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_lseek
        | libc::SYS_close => caller.descriptor(first).into(),
        _ => return Call::Left,
    };
    if !path.starts_with(caller.files()) {
        return Call::Left;
    }
    let (name, faults): (_, &'static [Fault]) = match number {
        libc::SYS_openat => (
            "openat",
            &[
                Error(Errno::EMFILE),
                Error(Errno::EACCES),
                Error(Errno::ENOSPC),
                Error(Errno::EROFS),
            ],
        ),
        libc::SYS_newfstatat | libc::SYS_statx => {
            ("stat", &[Error(Errno::ENOMEM), Error(Errno::EACCES)])
        }
        libc::SYS_flock => ("flock", &[Error(Errno::EINTR), Error(Errno::ENOLCK)]),
        libc::SYS_ftruncate => ("ftruncate", &[Error(Errno::EINTR), Error(Errno::EIO)]),
        libc::SYS_mkdir => ("mkdir", &[Error(Errno::ENOSPC), Error(Errno::EACCES)]),
        libc::SYS_linkat | libc::SYS_link => (
            "link",
            &[Error(Errno::EPERM), Error(Errno::ENOSPC), Error(Errno::EIO)],
        ),
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => {
            ("rename", &[Error(Errno::ENOSPC), Error(Errno::EIO)])
        }
        libc::SYS_unlink | libc::SYS_unlinkat => {
            ("unlink", &[Error(Errno::EACCES), Error(Errno::EIO)])
        }
        libc::SYS_write => (
            match path.extension().and_then(OsStr::to_str) {
                Some("log") => "write (trace)",
                Some("pcapng") => "write (capture)",
                _ => "write",
            },
            &[
                Error(Errno::EINTR),
                Error(Errno::EIO),
                Error(Errno::ENOSPC),
                Error(Errno::EDQUOT),
                Short,
            ],
        ),
        libc::SYS_fsync => (
            "fsync",
            &[Error(Errno::EIO), Error(Errno::ENOSPC), Error(Errno::EINTR)],
        ),
        libc::SYS_close => ("close", &[Done(Errno::EIO), Done(Errno::EINTR)]),
        _ => return Call::Unknown,
    };
    Call::Fails(name, faults)
}
