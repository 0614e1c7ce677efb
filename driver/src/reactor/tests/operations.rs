//! Operations on files, in a file system on a disk and in one in memory, and their errors.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::O_DIRECT;

use super::*;
use crate::DmaMemory;

/// Makes a file of 1 MiB with a pattern in it, in a folder.
fn patterned(folder: &Path, reactor: &mut Reactor) -> File {
    let named = tempfile::NamedTempFile::new_in(folder).unwrap();
    let file = File::from_std(named.reopen().unwrap(), named.path());
    let buffer = arena().alloc(1 << 20, 4096).unwrap();
    buffer.write_bytes(0, &pattern(1 << 20));
    reactor
        .write_file_at(&file, 0, &buffer, 0, 1 << 20)
        .unwrap();
    file
}

/// Returns a folder of each available kind: on a disk, and in memory.
fn folders() -> Vec<std::path::PathBuf> {
    let mut folders = vec![std::env::temp_dir()];
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        folders.push(memory.to_owned());
    }
    folders
}

/// Runs one operation and returns its completion.
pub(super) fn one(reactor: &mut Reactor, file: &File, operation: FileOperation<'_>) -> Completion {
    let token = reactor.submit(file, operation, 0x7a6).unwrap();
    let mut ended = reactor.wait_all(far()).unwrap();
    assert_eq!(ended.len(), 1, "{ended:?}");
    let ended = ended.remove(0);
    assert_eq!((ended.token, ended.tag), (token, 0x7a6));
    ended
}

pub(super) fn content(reactor: &mut Reactor, file: &File, bytes: usize) -> Vec<u8> {
    let buffer = arena().alloc(bytes, 4096).unwrap();
    let read = reactor.read_file_at(file, 0, &buffer, 0, bytes).unwrap();
    let mut content = vec![0; read];
    buffer.read_bytes(0, &mut content);
    content
}

fn blocks(file: &File) -> u64 {
    file.as_std().sync_all().unwrap();
    file.as_std().metadata().unwrap().blocks()
}

/// Returns the pattern with a hole in it.
pub(super) fn with_zeroes(bytes: usize, zeroes: std::ops::Range<usize>) -> Vec<u8> {
    let mut content = pattern(bytes);
    content[zeroes].fill(0);
    content
}

#[test]
fn bytes_that_are_zeroed_read_as_zeroes_and_stay_allocated() {
    let mut reactor = Reactor::new(8).unwrap();
    for folder in folders() {
        let file = patterned(&folder, &mut reactor);
        let before = blocks(&file);
        let zero = FileOperation::Zero {
            offset: 0x10_000,
            bytes: 0x20_000,
        };
        let ended = one(&mut reactor, &file, zero);
        assert!(matches!(ended.result, Ok(0)), "{folder:?}: {ended:?}");
        let expected = with_zeroes(1 << 20, 0x10_000..0x30_000);
        assert!(
            content(&mut reactor, &file, 1 << 20) == expected,
            "{folder:?}"
        );
        assert!(blocks(&file) >= before, "{folder:?}: {before} before");
    }
}

#[test]
fn space_that_is_deallocated_goes_back_to_the_file_system_and_the_file_keeps_its_size() {
    let mut reactor = Reactor::new(8).unwrap();
    for folder in folders() {
        let file = patterned(&folder, &mut reactor);
        let before = blocks(&file);
        // The range contains the file's end, which must not move.
        let deallocate = FileOperation::Deallocate {
            offset: 0x80_000,
            bytes: 0x100_000,
        };
        let ended = one(&mut reactor, &file, deallocate);
        assert!(matches!(ended.result, Ok(0)), "{folder:?}: {ended:?}");
        let expected = with_zeroes(1 << 20, 0x80_000..0x100_000);
        assert!(
            content(&mut reactor, &file, 2 << 20) == expected,
            "{folder:?}"
        );
        let after = blocks(&file);
        assert!(
            after + (0x70_000 / 512) <= before,
            "{folder:?}: {before}, {after}"
        );
        assert!(file.geometry().unwrap().deallocates, "{folder:?}");
    }
}

#[test]
fn zeroing_and_deallocating_behind_the_end_do_not_grow_a_file() {
    let mut reactor = Reactor::new(8).unwrap();
    let file = temporary();
    for operation in [
        FileOperation::Zero {
            offset: 4096,
            bytes: 4096,
        },
        FileOperation::Deallocate {
            offset: 4096,
            bytes: 4096,
        },
    ] {
        let ended = one(&mut reactor, &file, operation);
        assert!(matches!(ended.result, Ok(0)), "{ended:?}");
    }
    assert_eq!(file.geometry().unwrap().bytes, 0);
}

#[test]
fn a_write_through_and_a_sync_end_with_what_they_moved() {
    let buffer = arena().alloc(8192, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let file = temporary();
    buffer.write_bytes(0, &pattern(8192));
    let write = FileOperation::Write {
        offset: 0,
        buffer: &buffer,
        buffer_offset: 0,
        bytes: 8192,
        through: true,
    };
    let ended = one(&mut reactor, &file, write);
    assert!(matches!(ended.result, Ok(8192)), "{ended:?}");
    let ended = one(&mut reactor, &file, FileOperation::Sync);
    assert!(matches!(ended.result, Ok(0)), "{ended:?}");
    assert!(content(&mut reactor, &file, 8192) == pattern(8192));
}

#[test]
fn operations_on_nothing_end_at_once() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let file = temporary();
    for operation in [
        FileOperation::Read {
            offset: 0,
            buffer: &buffer,
            buffer_offset: 4096,
            bytes: 0,
        },
        FileOperation::Zero {
            offset: 0,
            bytes: 0,
        },
        FileOperation::Deallocate {
            offset: 0,
            bytes: 0,
        },
    ] {
        let ended = one(&mut reactor, &file, operation);
        assert!(matches!(ended.result, Ok(0)), "{ended:?}");
    }
}

#[test]
fn what_cannot_be_written_is_refused_by_name_and_number() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let named = tempfile::NamedTempFile::new().unwrap();
    let file = File::open(named.path()).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let write = FileOperation::Write {
        offset: 0x3000,
        buffer: &buffer,
        buffer_offset: 0,
        bytes: 4096,
        through: true,
    };
    let zero = FileOperation::Zero {
        offset: 0x3000,
        bytes: 4096,
    };
    let deallocate = FileOperation::Deallocate {
        offset: 0x3000,
        bytes: 4096,
    };
    for (operation, name) in [(write, "write"), (zero, "zero"), (deallocate, "deallocate")] {
        let error = one(&mut reactor, &file, operation).result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EBADF as i32));
        let text = error.to_string();
        let where_and_what = format!(
            "{}: {name} of 0x1000 bytes at offset 0x3000: ",
            named.path().display()
        );
        assert!(text.starts_with(&where_and_what), "{text}");
    }
    // A file opened read-only can be synced, with the writes of others.
    let ended = one(&mut reactor, &file, FileOperation::Sync);
    assert!(matches!(ended.result, Ok(0)), "{ended:?}");
    assert!(!file.geometry().unwrap().deallocates);
}

#[test]
fn a_pipe_cannot_be_synced_and_the_error_says_what_was_tried() {
    let (reader, _writer) = nix::unistd::pipe().unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let pipe = File::from_std(reader.into(), "a pipe");
    let error = one(&mut reactor, &pipe, FileOperation::Sync)
        .result
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::EINVAL as i32));
    let text = error.to_string();
    assert!(text.starts_with("a pipe: sync: "), "{text}");
}

#[test]
fn a_device_that_is_full_ends_a_write_with_its_errno() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let full = File::open_with(OpenOptions::new().write(true), "/dev/full").unwrap();
    let write = FileOperation::Write {
        offset: 0,
        buffer: &buffer,
        buffer_offset: 0,
        bytes: 4096,
        through: false,
    };
    let error = one(&mut reactor, &full, write).result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC as i32), "{error}");
}

#[test]
fn what_lies_off_the_grid_fares_past_the_page_cache_as_it_does_by_read() {
    use std::os::unix::fs::FileExt;
    let buffer = arena().alloc(8192, 4096).unwrap();
    let named = tempfile::NamedTempFile::new().unwrap();
    named.as_file().set_len(8192).unwrap();
    let mut direct = OpenOptions::new();
    direct.read(true).custom_flags(O_DIRECT);
    let Ok(file) = File::open_with(&direct, named.path()) else {
        eprintln!("left out: the temporary folder's file system has no O_DIRECT");
        return;
    };
    // A file system may use the page cache in spite of `O_DIRECT`, so the expected result is that of read(2).
    let expected = file.as_std().read_at(&mut [0; 4097][1..], 1);
    let expected = expected.map_err(|error| error.raw_os_error());
    let mut reactor = Reactor::new(8).unwrap();
    let read = FileOperation::Read {
        offset: 1,
        buffer: &buffer,
        buffer_offset: 1,
        bytes: 4096,
    };
    let result = one(&mut reactor, &file, read).result;
    assert_eq!(result.map_err(|error| error.raw_os_error()), expected);
}

#[test]
fn offsets_that_no_file_has_are_refused_before_the_kernel_takes_them_for_others() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    for offset in [u64::MAX, u64::MAX - 4095, i64::MAX.cast_unsigned() - 4094] {
        let read = FileOperation::Read {
            offset,
            buffer: &buffer,
            buffer_offset: 0,
            bytes: 4096,
        };
        let zero = FileOperation::Zero {
            offset,
            bytes: 4096,
        };
        for operation in [read, zero] {
            let error = reactor.submit(&temporary(), operation, 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::EINVAL as i32), "{error}");
        }
    }
    assert_eq!(reactor.outstanding(), 0);
}

#[test]
fn a_thousand_operations_pass_through_eight_entries_each_with_its_tag() {
    let arena = arena();
    let buffer = arena.alloc(1000 * 512, 4096).unwrap();
    let file = temporary();
    for reactor in [Reactor::new(8), Reactor::of_any_thread(8)] {
        thousand(&mut reactor.unwrap(), &file, &buffer);
    }
}

fn thousand(reactor: &mut Reactor, file: &File, buffer: &DmaBuffer) {
    let mut open = std::collections::BTreeSet::new();
    for tag in 0..1000_u64 {
        let at = usize::try_from(tag).unwrap() * 512;
        buffer.fill(at, 512, u8::try_from(tag % 251).unwrap());
        let write = FileOperation::Write {
            offset: tag * 512,
            buffer,
            buffer_offset: at,
            bytes: 512,
            through: false,
        };
        reactor.submit(file, write, tag).unwrap();
        open.insert(tag);
    }
    let interrupt = Interrupt::new().unwrap();
    while !open.is_empty() {
        assert!(ring(reactor).in_ring() <= 8);
        let wake = reactor.wait_for(&[interrupt.as_fd()], far()).unwrap();
        assert_eq!(wake, Wake::Transfer);
        while let Some(ended) = reactor.take_completion() {
            assert!(matches!(ended.result, Ok(512)), "{ended:?}");
            assert!(open.remove(&ended.tag), "{ended:?} again");
        }
    }
    let content = content(reactor, file, 1000 * 512);
    assert!((0..1000_usize).all(|tag| usize::from(content[tag * 512 + 511]) == tag % 251));
}

#[test]
fn a_completion_queue_that_overflows_loses_nothing() {
    // A ring of four entries has eight completion entries; here are forty polls and as many removals.
    let interrupts: Vec<Interrupt> = (0..40).map(|_| Interrupt::new().unwrap()).collect();
    let descriptors: Vec<_> = interrupts
        .iter()
        .map(|interrupt| interrupt.as_fd())
        .collect();
    let buffer = arena().alloc(4096, 4096).unwrap();
    let file = temporary();
    for reactor in [Reactor::new(4), Reactor::of_any_thread(4)] {
        let mut reactor = reactor.unwrap();
        for signalled in [0, 1, 40] {
            for interrupt in &interrupts {
                let _ = interrupt.take();
            }
            for interrupt in &interrupts[..signalled] {
                interrupt.signal();
            }
            for deadline in [Instant(0), far()] {
                let token = reactor.queue_write(&file, 0, &buffer, 0, 4096).unwrap();
                let wake = reactor.wait_for(&descriptors, deadline).unwrap();
                assert!(signalled == 0 || wake == Wake::Interrupt, "{wake:?}");
                assert_eq!(ring(&reactor).polls_left(), 0);
                let ended = reactor.wait_all(far()).unwrap();
                assert!(
                    matches!(ended[..], [Completion { token: t, result: Ok(4096), .. }] if t == token),
                    "{ended:?}"
                );
            }
        }
    }
}

#[test]
fn files_that_are_registered_are_used_and_stay_open_for_as_long() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let files: Vec<File> = (0..5).map(|_| temporary()).collect();
    // Both results are legal; the operations below must work after either.
    reactor.register_files(&files).unwrap();
    let stranger = temporary();
    for (value, file) in (1..).zip(files.iter().chain([&stranger])) {
        buffer.fill(0, 4096, value);
        reactor.write_file_at(file, 0, &buffer, 0, 4096).unwrap();
    }
    for (value, file) in (1..).zip(files.iter().chain([&stranger])) {
        assert_eq!(content(&mut reactor, file, 8192), vec![value; 4096]);
    }
    reactor.register_files(&files[..1]).unwrap();
    reactor.register_files(&[]).unwrap();
    assert_eq!(content(&mut reactor, &files[0], 8192), vec![1; 4096]);
}

#[test]
fn more_files_than_the_system_allows_are_not_registered_and_work_all_the_same() {
    let mut reactor = Reactor::new(8).unwrap();
    let file = temporary();
    // One more than the kernel's own limit (`IORING_MAX_FIXED_FILES`). The limit of the process may be lower.
    let many = vec![file.clone(); (1 << 20) + 1];
    assert!(!reactor.register_files(&many).unwrap());
    assert_eq!(content(&mut reactor, &file, 1), Vec::<u8>::new());
}

#[test]
fn waits_make_one_call_and_none_where_there_is_nothing_to_say() {
    let buffer = arena().alloc(4096, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let file = temporary();
    reactor.write_file_at(&file, 0, &buffer, 0, 4096).unwrap();
    let (silent, signalled) = (Interrupt::new().unwrap(), Interrupt::new().unwrap());
    signalled.signal();
    let (silent, signalled) = (silent.as_fd(), signalled.as_fd());
    let mut calls = |wait: &mut dyn FnMut(&mut Reactor)| {
        let before = ring(&reactor).calls;
        wait(&mut reactor);
        let made = ring(&reactor).calls - before;
        while reactor.take_completion().is_some() {}
        made
    };
    let mut wait = |readable: &[BorrowedFd<'_>], deadline, expected| {
        calls(&mut |reactor| assert_eq!(reactor.wait_for(readable, deadline).unwrap(), expected))
    };
    assert_eq!(wait(&[], Instant(0), Wake::Deadline), 0, "nothing to say");
    assert_eq!(wait(&[silent], Instant(0), Wake::Deadline), 1, "a look");
    assert_eq!(wait(&[signalled], Instant(0), Wake::Interrupt), 1, "a look");
    assert_eq!(wait(&[signalled], far(), Wake::Interrupt), 1, "a sleep");
    let mut transfer = |readable: &[BorrowedFd<'_>]| {
        calls(&mut |reactor| {
            reactor.queue_write(&file, 0, &buffer, 0, 4096).unwrap();
            let wake = reactor.wait_for(readable, far()).unwrap();
            assert_eq!(wake, Wake::Transfer);
        })
    };
    assert_eq!(transfer(&[]), 1, "submitted and waited for");
    assert_eq!(transfer(&[silent]), 2, "and a poll taken back");
}

#[test]
fn a_range_of_a_regions_memory_is_read_and_written_as_a_buffer_is() {
    let memory = DmaMemory::from(arena().alloc(3 * 4096, 4096).unwrap());
    let (file, mut reactor) = (temporary(), Reactor::new(8).unwrap());
    for registered in [false, true] {
        if registered {
            // Both results are legal.
            let range = memory.bytes(4096..).unwrap();
            reactor.register([range, range.part(..0).unwrap()]).unwrap();
        }
        let (from, to) = (4096..6000, 8192..8192 + 1904);
        memory.bytes(..).unwrap().fill(0xa5);
        memory.bytes(from.clone()).unwrap().fill(7);
        let write = FileOperation::write(100, memory.bytes(from.clone()).unwrap());
        assert!(matches!(one(&mut reactor, &file, write).result, Ok(1904)));
        let through = FileOperation::write_through(100, memory.bytes(from).unwrap());
        assert!(matches!(one(&mut reactor, &file, through).result, Ok(1904)));
        let read = FileOperation::read(100, memory.bytes(to).unwrap());
        assert!(matches!(one(&mut reactor, &file, read).result, Ok(1904)));
        let came = memory.read(8191, 1906).unwrap();
        assert_eq!((came[0], came[1905]), (0xa5, 0xa5), "beside the range");
        assert!(came[1..1905].iter().all(|byte| *byte == 7));
    }
    let error = memory.bytes(..3 * 4096 + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bytes 0 to 12289 of 12288 bytes of memory"
    );
}

#[test]
fn a_reactor_that_polls_moves_the_same_bytes_whether_the_device_can_be_polled_or_not() {
    let buffer = arena().alloc(8192, 4096).unwrap();
    let named = tempfile::NamedTempFile::new().unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let cached = File::open_with(&options, named.path()).unwrap();
    let direct = File::open_with(options.custom_flags(O_DIRECT), named.path());
    let mut reactor = Reactor::polled(8).unwrap();
    reactor.register(std::slice::from_ref(&buffer)).unwrap();
    for file in std::iter::once(&cached).chain(&direct) {
        for value in 1..=3 {
            buffer.fill(0, 4096, value);
            reactor.write_file_at(file, 0, &buffer, 0, 4096).unwrap();
            let sync = one(&mut reactor, file, FileOperation::Sync);
            assert!(sync.result.is_ok(), "{sync:?}");
            reactor.read_file_at(file, 0, &buffer, 4096, 4096).unwrap();
            assert_eq!(buffer.load_u8(8191), value);
        }
    }
    // Without O_DIRECT nothing is polled, and the file is marked so.
    assert!(!cached.may_be_polled());
    // An interrupt ends a sleep while a transfer is in flight.
    let interrupt = Interrupt::new().unwrap();
    interrupt.signal();
    reactor.queue_read(&cached, 0, &buffer, 0, 4096).unwrap();
    let wake = reactor.wait(&[interrupt], far()).unwrap();
    assert_eq!(wake, Wake::Interrupt);
}
