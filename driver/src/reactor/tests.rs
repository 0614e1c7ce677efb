//! Tests of the reactor with real files, pipes and eventfds.

use std::os::fd::AsFd as _;
use std::os::fd::OwnedFd;

use super::*;
use crate::dma::DmaArena;
use crate::double::Double;
use crate::file::File;
use crate::pci::Machine;

mod disks;
mod operations;
mod refused;
mod threads;

fn ring(reactor: &Reactor) -> &Ring {
    reactor.ring.as_ref().expect("this machine has io_uring")
}

/// Returns a deadline that only a hang reaches.
fn far() -> Instant {
    monotonic_now() + MAX_WAIT
}

fn arena() -> DmaArena {
    DmaArena::new(&Double::new().function()).unwrap()
}

fn temporary() -> File {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_owned();
    File::from_std(file.into_file(), path)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

#[test]
fn what_was_written_is_read_back_at_any_size_and_offset() {
    let arena = arena();
    let mut reactor = Reactor::new(8).unwrap();
    let source = arena.alloc(4 << 20, 4096).unwrap();
    let target = arena.alloc(4 << 20, 4096).unwrap();
    for registered in [false, true] {
        if registered {
            // Both results are legal; the transfers below must work after either.
            reactor.register(&[source.clone(), target.clone()]).unwrap();
        }
        for (bytes, offset, at) in [
            (1, 0, 0),
            (511, 7, 1),
            (4097, 4096, 64),
            ((3 << 20) + 17, 12_345, 999),
        ] {
            let file = temporary();
            let data = pattern(bytes);
            source.write_bytes(at, &data);
            target.fill(0, target.len(), 0xa5);
            assert_eq!(
                reactor
                    .write_file_at(&file, offset, &source, at, bytes)
                    .unwrap(),
                bytes
            );
            assert_eq!(
                reactor
                    .read_file_at(&file, offset, &target, at + 3, bytes)
                    .unwrap(),
                bytes
            );
            let mut read = vec![0; bytes + 2];
            target.read_bytes(at + 2, &mut read);
            assert_eq!(read[0], 0xa5, "byte before the target of {bytes} bytes");
            assert!(
                read[1..=bytes] == data,
                "{bytes} bytes at {offset}, registered: {registered}"
            );
            assert_eq!(
                read[bytes + 1],
                0xa5,
                "byte behind the target of {bytes} bytes"
            );
        }
    }
}

#[test]
fn a_read_over_the_end_of_the_file_is_short_and_touches_no_more() {
    let buffer = arena().alloc(16_384, 4096).unwrap();
    let file = temporary();
    let mut reactor = Reactor::new(8).unwrap();
    buffer.write_bytes(0, &pattern(10_000));
    reactor.write_file_at(&file, 0, &buffer, 0, 10_000).unwrap();
    buffer.fill(0, 16_384, 0xa5);
    assert_eq!(
        reactor
            .read_file_at(&file, 4096, &buffer, 0, 16_384)
            .unwrap(),
        5904
    );
    assert_eq!(buffer.load_u8(5903), pattern(10_000)[9999]);
    assert_eq!(buffer.load_u8(5904), 0xa5);
    assert_eq!(
        reactor.read_file_at(&file, 10_000, &buffer, 0, 1).unwrap(),
        0
    );
    assert_eq!(reactor.read_file_at(&file, 0, &buffer, 0, 0).unwrap(), 0);
}

#[test]
fn more_transfers_than_entries_all_end_and_come_in_order() {
    let arena = arena();
    let file = temporary();
    let mut reactor = Reactor::new(4).unwrap();
    let buffer = arena.alloc(100 * 512, 512).unwrap();
    for i in 0..100_u8 {
        buffer.fill(usize::from(i) * 512, 512, i);
    }
    let queued: Vec<Token> = (0..100)
        .map(|i| {
            reactor
                .queue_write(
                    &file,
                    i * 512,
                    &buffer,
                    usize::try_from(i * 512).unwrap(),
                    512,
                )
                .unwrap()
        })
        .collect();
    assert_eq!(reactor.outstanding(), 100);
    let ended = reactor.wait_all(far()).unwrap();
    assert_eq!(
        ended.iter().map(|ended| ended.token).collect::<Vec<_>>(),
        queued
    );
    assert!(
        ended.iter().all(|ended| matches!(ended.result, Ok(512))),
        "{ended:?}"
    );
    assert_eq!(reactor.outstanding(), 0);
    let back = arena.alloc(100 * 512, 512).unwrap();
    assert_eq!(
        reactor.read_file_at(&file, 0, &back, 0, 100 * 512).unwrap(),
        100 * 512
    );
    assert!((0..100_u8).all(|i| back.load_u8(usize::from(i) * 512 + 511) == i));
}

#[test]
fn a_failed_transfer_names_file_offset_and_errno() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let named = tempfile::NamedTempFile::new().unwrap();
    let file = File::open(named.path()).unwrap();
    let mut reactor = Reactor::new(4).unwrap();
    let error = reactor
        .write_file_at(&file, 0x2000, &buffer, 0, 100)
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains(named.path().to_str().unwrap()), "{text}");
    assert!(
        text.contains("write of 0x64 bytes at offset 0x2000"),
        "{text}"
    );
    assert!(text.contains("os error 9"), "{text}");
    assert_eq!(
        std::io::Error::from(error).kind(),
        std::io::Error::from(Errno::EBADF).kind()
    );
}

#[test]
fn a_transfer_outside_its_buffer_is_refused() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(4).unwrap();
    for (at, bytes) in [(0, 4097), (4096, 1), (usize::MAX, 2)] {
        let result = reactor.queue_read(&temporary(), 0, &buffer, at, bytes);
        assert!(
            matches!(result, Err(ReactorError::Bounds { len: 4096, .. })),
            "{at} {bytes}: {result:?}"
        );
    }
    assert_eq!(reactor.outstanding(), 0);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let text = File::open("/nowhere/at/all").unwrap_err().to_string();
    assert!(text.starts_with("/nowhere/at/all: open: "), "{text}");
}

#[test]
fn an_abandoned_transfer_owns_its_buffer_until_the_ring_is_gone() {
    let arena = DmaArena::with_chunk_bytes(&Double::new().function(), 4096).unwrap();
    let (reader, _writer) = nix::unistd::pipe().unwrap();
    let mut reactor = Reactor::new(4).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    let address = buffer.address();
    let pipe = File::from_std(OwnedFd::into(reader), "pipe");
    reactor.queue_read(&pipe, 0, &buffer, 0, 4096).unwrap();
    drop(buffer);
    assert!(reactor.wait_all(monotonic_now()).unwrap().is_empty());
    assert_eq!(reactor.outstanding(), 1);
    assert_ne!(arena.alloc(4096, 4096).unwrap().address(), address);
    drop(reactor);
    assert_eq!(arena.alloc(4096, 4096).unwrap().address(), address);
}

#[test]
fn a_read_that_comes_in_pieces_is_continued() {
    use std::io::Write;
    let buffer = arena().alloc(4096, 4096).unwrap();
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let mut writer: std::fs::File = writer.into();
    let mut reactor = Reactor::new(4).unwrap();
    let pipe = File::from_std(reader.into(), "pipe");
    let token = reactor.queue_read(&pipe, 0, &buffer, 0, 300).unwrap();
    for value in 1..=3_u8 {
        assert!(reactor.wait_all(monotonic_now()).unwrap().is_empty());
        writer.write_all(&[value; 100]).unwrap();
    }
    let ended = reactor.wait_all(far()).unwrap();
    assert!(
        matches!(ended[..], [Completion { token: t, tag: 0, result: Ok(300) }] if t == token),
        "{ended:?}"
    );
    assert_eq!(
        [0, 99, 100, 199, 200, 299].map(|at| buffer.load_u8(at)),
        [1, 1, 2, 2, 3, 3]
    );
}

#[test]
fn wait_returns_at_once_for_an_interrupt_that_is_pending_and_leaves_it_so() {
    let interrupts = [
        Interrupt::new().unwrap(),
        Interrupt::new().unwrap(),
        Interrupt::new().unwrap(),
    ];
    interrupts[1].signal();
    let mut reactor = Reactor::new(2).unwrap();
    for deadline in [Instant(0), far()] {
        assert_eq!(
            reactor.wait(&interrupts, deadline).unwrap(),
            Wake::Interrupt
        );
    }
    assert_eq!(interrupts[1].take(), 1);
    assert_eq!(
        ring(&reactor).in_ring() + ring(&reactor).polls_left(),
        0,
        "polls were left in the ring"
    );
}

#[test]
fn wait_for_returns_when_any_descriptor_is_readable_and_leaves_it_so() {
    use std::io::{Read, Write};
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let (mut reader, mut writer) = (std::fs::File::from(reader), std::fs::File::from(writer));
    let mut set = crate::InterruptSet::new().unwrap();
    let interrupt = Interrupt::new().unwrap();
    set.watch(std::slice::from_ref(&interrupt)).unwrap();
    let descriptor = set.descriptor();
    let mut reactor = Reactor::new(8).unwrap();
    let soon = || monotonic_now() + Duration::from_millis(2);
    let both = [reader.as_fd(), descriptor.as_fd()];
    assert_eq!(reactor.wait_for(&both, soon()).unwrap(), Wake::Deadline);
    interrupt.signal();
    for deadline in [Instant(0), far()] {
        assert_eq!(reactor.wait_for(&both, deadline).unwrap(), Wake::Interrupt);
    }
    assert_eq!(interrupt.take(), 1);
    assert_eq!(reactor.wait_for(&both, soon()).unwrap(), Wake::Deadline);
    writer.write_all(b"x").unwrap();
    assert_eq!(reactor.wait_for(&both, far()).unwrap(), Wake::Interrupt);
    assert_eq!(reader.read(&mut [0; 2]).unwrap(), 1);
    assert_eq!(
        ring(&reactor).in_ring() + ring(&reactor).polls_left(),
        0,
        "polls were left in the ring"
    );
}

#[test]
fn wait_for_nothing_starts_what_was_queued() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let token = reactor
        .queue_write(&temporary(), 0, &buffer, 0, 4096)
        .unwrap();
    let hang = far();
    let ended = loop {
        reactor.wait_for(&[], Instant(0)).unwrap();
        if let Some(ended) = reactor.take_completion() {
            break ended;
        }
        assert!(
            monotonic_now() < hang,
            "it was not started, or its end not seen"
        );
    };
    assert_eq!(ended.token, token);
}

#[test]
fn wait_is_woken_by_an_interrupt_from_elsewhere() {
    let interrupts = [Interrupt::new().unwrap(), Interrupt::new().unwrap()];
    let mut reactor = Reactor::new(8).unwrap();
    for round in 1..=20 {
        let signaller = interrupts[round % 2].clone();
        let thread = std::thread::spawn(move || signaller.signal());
        assert_eq!(reactor.wait(&interrupts, far()).unwrap(), Wake::Interrupt);
        thread.join().unwrap();
        assert_eq!(interrupts[round % 2].take(), 1);
    }
}

#[test]
fn wait_ends_with_its_deadline_and_not_before() {
    let interrupt = Interrupt::new().unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    for interrupts in [&[interrupt][..], &[]] {
        let deadline = monotonic_now() + Duration::from_millis(2);
        assert_eq!(reactor.wait(interrupts, deadline).unwrap(), Wake::Deadline);
        assert!(monotonic_now() >= deadline);
    }
    assert_eq!(ring(&reactor).in_ring() + ring(&reactor).polls_left(), 0);
}

#[test]
fn wait_is_woken_by_a_transfer() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let token = reactor
        .queue_write(&temporary(), 0, &buffer, 0, 4096)
        .unwrap();
    assert_eq!(
        reactor.wait(&[Interrupt::new().unwrap()], far()).unwrap(),
        Wake::Transfer
    );
    let ended = reactor.take_completion().unwrap();
    assert_eq!((ended.token, ended.result.unwrap()), (token, 4096));
    assert!(reactor.take_completion().is_none());
}

#[test]
fn the_real_clock_waits_for_interrupts_and_deadlines() {
    use crate::clock::Clock;
    use crate::real_clock::RealClock;
    let clock = RealClock::new();
    let interrupt = Interrupt::new().unwrap();
    let deadline = clock.now() + Duration::from_millis(1);
    assert!(!clock.wait(std::slice::from_ref(&interrupt), deadline));
    assert!(clock.now() >= deadline);
    interrupt.signal();
    assert!(clock.wait(std::slice::from_ref(&interrupt), far()));
    assert_eq!(interrupt.take(), 1);
}
