//! A system without io_uring: RHEL 9 by default, a container's seccomp filter.

// UNSAFETY: a seccomp filter for the test's own thread.
#![expect(unsafe_code, reason = "seccomp(2) has no safe form here")]

use nix::libc;

use super::*;

/// Runs a test on a thread whose `io_uring_setup` fails, as with a container's seccomp filter.
fn without_rings(errno: Errno, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            forbid(errno);
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Filters this thread's system calls (seccomp(2)); this cannot be undone.
fn forbid(errno: Errno) {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let setup = u32::try_from(libc::SYS_io_uring_setup).unwrap();
    let refuse = libc::SECCOMP_RET_ERRNO | (errno as i32).cast_unsigned();
    let mut program = [
        // The call's number is the first word of a filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, setup),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap(),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the flag takes plain numbers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the filter is that of `program`, with its length, and both live until the call returns.
    let set = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A reactor without a ring waits for descriptors and time, whatever the error. EPERM: `kernel.io_uring_disabled` (the
/// default of RHEL 9.3 and later), a filter; ENOSYS: no io_uring in the kernel (RHEL 9.0 to 9.2); EACCES: SELinux;
/// ENOMEM: RLIMIT_MEMLOCK.
#[test]
fn a_reactor_without_a_ring_waits_for_descriptors_and_time() {
    for errno in [Errno::EPERM, Errno::ENOSYS, Errno::EACCES, Errno::ENOMEM] {
        without_rings(errno, || {
            let mut reactor = Reactor::new(4).unwrap();
            let (one, other) = (Interrupt::new().unwrap(), Interrupt::new().unwrap());
            let both = [one.clone(), other.clone()];
            assert_eq!(reactor.wait(&both, Instant(0)).unwrap(), Wake::Deadline);
            let soon = monotonic_now() + Duration::from_millis(1);
            assert_eq!(reactor.wait(&both, soon).unwrap(), Wake::Deadline);
            assert!(monotonic_now() >= soon);
            std::thread::scope(|scope| {
                scope.spawn(|| other.signal());
                assert_eq!(reactor.wait(&both, far()).unwrap(), Wake::Interrupt);
            });
            assert_eq!(other.take(), 1, "it stays signalled");
            one.signal();
            let woken = reactor.wait_for(&[one.as_fd()], far()).unwrap();
            assert_eq!(woken, Wake::Interrupt);
            assert!(reactor.wait_all(far()).unwrap().is_empty());
            assert_eq!(reactor.outstanding(), 0);
        });
    }
}

#[test]
fn a_reactor_without_a_ring_refuses_disks_with_a_sentence() {
    without_rings(Errno::EPERM, || {
        let mut reactor = Reactor::new(4).unwrap();
        let buffer = arena().alloc(4096, 4096).unwrap();
        let file = temporary();
        let error = reactor
            .write_file_at(&file, 0, &buffer, 0, 4096)
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let text = error.to_string();
        assert!(
            text.contains("disks need io_uring") && text.contains("io_uring_disabled"),
            "{text}"
        );
        assert!(reactor.check_disks().is_err());
        assert!(!reactor.register([&buffer]).unwrap());
        assert!(!reactor.register_files(&[file]).unwrap());
        assert_eq!(reactor.outstanding(), 0);
    });
    Reactor::new(4).unwrap().check_disks().unwrap();
}

/// The real clock, which adapters in hardware use, waits without a ring.
#[test]
fn the_real_clock_waits_without_a_ring() {
    without_rings(Errno::EPERM, || {
        let clock = crate::RealClock::new();
        let interrupts = [Interrupt::new().unwrap()];
        let clock: &dyn crate::Clock = &clock;
        assert!(!clock.wait(&interrupts, clock.now() + Duration::from_millis(1)));
        interrupts[0].signal();
        assert!(clock.wait(&interrupts, far()));
    });
}
