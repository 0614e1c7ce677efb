//! A reactor that moves to another thread, and one that is dropped with operations in the kernel.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Queues a read of an empty pipe, which stays in the kernel until data is written there.
fn stuck(reactor: &mut Reactor, buffer: &DmaBuffer) -> std::os::fd::OwnedFd {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let pipe = File::from_std(OwnedFd::into(reader), "pipe");
    reactor.queue_read(&pipe, 0, buffer, 0, 4096).unwrap();
    writer
}

#[test]
fn a_reactor_with_nothing_outstanding_goes_to_another_thread_and_keeps_what_was_registered() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let file = temporary();
    let mut reactor = Reactor::new(8).unwrap();
    reactor.register(std::slice::from_ref(&buffer)).unwrap();
    reactor.register_files(std::slice::from_ref(&file)).unwrap();
    for round in 1..=4 {
        let (buffer, file) = (buffer.clone(), file.clone());
        buffer.fill(0, 4096, round);
        // This thread queues the operation, and the other one submits it.
        let token = reactor.queue_write(&file, 0, &buffer, 0, 4096).unwrap();
        reactor = std::thread::spawn(move || {
            let interrupt = Interrupt::new().unwrap();
            let wake = reactor.wait(&[interrupt], far()).unwrap();
            assert_eq!(wake, Wake::Transfer);
            let ended = reactor.take_completion().unwrap();
            assert_eq!((ended.token, ended.result.unwrap()), (token, 4096));
            buffer.fill(0, 4096, 0);
            reactor.read_file_at(&file, 0, &buffer, 0, 4096).unwrap();
            assert_eq!(buffer.load_u8(4095), round);
            reactor
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_reactor_with_operations_in_the_kernel_does_not_work_in_another_thread_and_says_why() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let _writer = stuck(&mut reactor, &buffer);
    assert!(reactor.wait_all(Instant(0)).unwrap().is_empty());
    assert_eq!(ring(&reactor).in_ring(), 1);
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            let interrupt = Interrupt::new().unwrap();
            reactor.wait(&[interrupt], far())
        });
        // A kernel without rings of one thread allows this. The thread would then wait forever, so closing the pipe
        // ends its read.
        drop(_writer);
        match elsewhere.join().unwrap() {
            Ok(wake) => assert_eq!(wake, Wake::Transfer),
            Err(error) => assert!(error.to_string().contains("of another thread"), "{error}"),
        }
    });
}

#[test]
fn memory_in_the_kernel_when_another_thread_drops_the_reactor_is_never_reused() {
    let arena = DmaArena::with_chunk_bytes(&Double::new().function(), 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    let address = buffer.address();
    let writer = stuck(&mut reactor, &buffer);
    drop(buffer);
    assert!(reactor.wait_all(Instant(0)).unwrap().is_empty());
    std::thread::spawn(move || drop(reactor)).join().unwrap();
    let next = arena.alloc(4096, 4096).unwrap();
    // On a kernel with rings of one thread, the thread that dropped the reactor could not wait for the operation, so
    // its buffer was leaked. On other kernels the operation was cancelled, and its completion was seen.
    let is_leaked = next.address() != address;
    let mut file = std::fs::File::from(writer);
    let written = std::io::Write::write(&mut file, &[0xa5; 4096]);
    assert!(is_leaked || written.is_err(), "{written:?}");
    assert_ne!(next.load_u8(0), 0xa5);
}

#[test]
fn operations_of_all_kinds_in_mid_flight_end_before_a_reactor_is_gone() {
    let arena = DmaArena::with_chunk_bytes(&Double::new().function(), 1 << 20).unwrap();
    let file = temporary();
    let mut reactor = Reactor::new(4).unwrap();
    let buffer = arena.alloc(1 << 20, 4096).unwrap();
    let address = buffer.address();
    let _writer = stuck(&mut reactor, &buffer);
    for at in 0..16_u64 {
        let write = FileOperation::Write {
            offset: at << 20,
            buffer: &buffer,
            buffer_offset: 0,
            bytes: 1 << 20,
            through: true,
        };
        reactor.submit(&file, write, at).unwrap();
        reactor.submit(&file, FileOperation::Sync, at).unwrap();
    }
    drop(buffer);
    reactor.wait_for(&[], Instant(0)).unwrap();
    assert!(ring(&reactor).in_ring() > 0 && reactor.outstanding() > 4);
    drop(reactor);
    assert_eq!(arena.alloc(1 << 20, 4096).unwrap().address(), address);
}

#[test]
fn another_thread_registers_with_a_reactor_of_the_first() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let file = temporary();
    let mut reactor = Reactor::new(8).unwrap();
    let pinned = reactor.register(std::slice::from_ref(&buffer)).unwrap();
    reactor.write_file_at(&file, 0, &buffer, 0, 4096).unwrap();
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            let again = reactor.register(std::slice::from_ref(&buffer)).unwrap();
            reactor.register_files(std::slice::from_ref(&file)).unwrap();
            reactor.read_file_at(&file, 0, &buffer, 0, 4096).unwrap();
            again
        });
        let again = elsewhere.join().unwrap();
        // A limit holds for all processes of the user: others may have used it up meanwhile.
        let is_limited = Machine::default().lockable_bytes().is_some();
        assert!(again || !pinned || is_limited);
    });
}

/// The polls of a wait have the same number, so a removal may find a poll that has just completed, and fail (EALREADY).
/// The wait then still removes the polls that remain, and does not sleep until one of them is ready or its time is
/// over.
#[test]
fn polls_that_end_while_they_are_removed_do_not_prolong_the_wait() {
    for mut reactor in [Reactor::new(8).unwrap(), Reactor::of_any_thread(8).unwrap()] {
        let [first, second, silent, again] = [(); 4].map(|()| Interrupt::new().unwrap());
        std::thread::scope(|scope| {
            let signals = [first.clone(), second.clone()];
            let (go, over) = (again.clone(), std::sync::Arc::new(AtomicBool::new(false)));
            let is_over = std::sync::Arc::clone(&over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    if go.take() > 0 {
                        signals.iter().for_each(Interrupt::signal);
                    }
                    std::hint::spin_loop();
                }
            });
            let mut waited = Ok(Wake::Interrupt);
            for _ in 0..20_000 {
                again.signal();
                let all = [first.clone(), silent.clone(), second.clone()];
                waited = reactor.wait(&all, far());
                if waited.is_err() {
                    break;
                }
                let _ = first.take();
                let _ = second.take();
            }
            over.store(true, Ordering::Release);
            assert_eq!(waited.unwrap(), Wake::Interrupt);
        });
    }
}
