//! The entries that operations build, in the kernel's numbers (`linux/io_uring.h`, `linux/fs.h`, `linux/falloc.h`).

// UNSAFETY: the fields of an entry are private, so the tests read its bytes.
#![expect(unsafe_code, reason = "entries are looked into")]

use zerocopy::FromBytes;

use super::*;
use crate::dma::DmaArena;
use crate::double::Double;

struct Nothing;

impl Pinned for Nothing {
    fn buffer(&self, _address: usize, _bytes: usize) -> Option<u16> {
        None
    }
    fn file(&self, _file: &File) -> Option<i32> {
        None
    }
}

struct Everything;

impl Pinned for Everything {
    fn buffer(&self, _address: usize, _bytes: usize) -> Option<u16> {
        Some(5)
    }
    fn file(&self, _file: &File) -> Option<i32> {
        Some(3)
    }
}

/// The fields of an entry.
#[derive(Debug, PartialEq, Eq)]
struct Fields {
    opcode: u8,
    flags: u8,
    fd: i32,
    /// Offset, or the number of a command.
    offset: u64,
    address: u64,
    /// Length, or the mode of an allocation.
    length: u32,
    /// Flags of reads, writes and syncs.
    more_flags: u32,
    buffer: u16,
    /// Command, or the third address.
    command: u64,
}

fn fields(entry: squeue::Entry) -> Fields {
    // SAFETY: an entry is a `repr(C)` struct around the kernel's 64 bytes, all of which are set.
    let bytes: [u8; 64] = unsafe { std::mem::transmute(entry) };
    let long = |at: usize| u64::read_from_prefix(&bytes[at..]).unwrap().0;
    let word = |at: usize| u32::read_from_prefix(&bytes[at..]).unwrap().0;
    Fields {
        opcode: bytes[0],
        flags: bytes[1],
        fd: word(4).cast_signed(),
        offset: long(8),
        address: long(16),
        length: word(24),
        more_flags: word(28),
        buffer: u16::read_from_prefix(&bytes[40..]).unwrap().0,
        command: long(48),
    }
}

fn buffer() -> DmaBuffer {
    let arena = DmaArena::new(&Double::new().function()).unwrap();
    arena.alloc(8192, 4096).unwrap()
}

fn file() -> File {
    File::from_std(tempfile::tempfile().unwrap(), "a file")
}

fn operation(file: &File, operation: FileOperation<'_>) -> Operation {
    Operation::new(file, operation, Token(1), 0).unwrap()
}

#[test]
fn a_write_through_says_so_to_the_kernel_and_others_do_not() {
    let (file, buffer) = (file(), buffer());
    for (through, flag) in [(false, 0), (true, 2)] {
        let write = FileOperation::Write {
            offset: 0x5000,
            buffer: &buffer,
            buffer_offset: 0x10,
            bytes: 0x200,
            through,
        };
        let write = operation(&file, write);
        let expected = Fields {
            opcode: 23,
            flags: 0,
            fd: file.as_fd().as_raw_fd(),
            offset: 0x5000,
            address: buffer.address() + 0x10,
            length: 0x200,
            more_flags: flag,
            buffer: 0,
            command: 0,
        };
        assert_eq!(fields(write.entry(&Nothing)), expected);
        let pinned = Fields {
            opcode: 5,
            flags: 1,
            fd: 3,
            buffer: 5,
            ..expected
        };
        assert_eq!(fields(write.entry(&Everything)), pinned);
    }
}

#[test]
fn a_sync_is_of_data_and_space_is_given_back_in_a_files_size() {
    let file = file();
    let (offset, bytes) = (0x5000, 0x1_0000_0000);
    let plain = Fields {
        opcode: 3,
        flags: 0,
        fd: file.as_fd().as_raw_fd(),
        offset: 0,
        address: 0,
        length: 0,
        more_flags: 1,
        buffer: 0,
        command: 0,
    };
    let sync = operation(&file, FileOperation::Sync);
    assert_eq!(fields(sync.entry(&Nothing)), plain);
    let allocation = |mode| Fields {
        opcode: 17,
        offset,
        address: bytes,
        length: mode,
        more_flags: 0,
        ..plain
    };
    let zero = operation(&file, FileOperation::Zero { offset, bytes });
    assert_eq!(fields(zero.entry(&Nothing)), allocation(0x10 | 1));
    let hole = operation(&file, FileOperation::Deallocate { offset, bytes });
    assert_eq!(fields(hole.entry(&Nothing)), allocation(2 | 1));
    let discard = Operation {
        method: Method::Discard,
        ..hole
    };
    let expected = Fields {
        opcode: 46,
        offset: 0x1200,
        address: offset,
        length: 0,
        command: bytes,
        ..allocation(0)
    };
    assert_eq!(fields(discard.entry(&Nothing)), expected);
}

const fn refused(errno: Errno) -> i32 {
    -(errno as i32)
}

#[test]
fn a_file_system_that_zeroes_no_range_makes_a_hole_and_fills_it() {
    let file = file();
    let zero = FileOperation::Zero {
        offset: 0,
        bytes: 4096,
    };
    let mut zero = operation(&file, zero);
    let unsupported = refused(Errno::EOPNOTSUPP);
    assert_eq!(zero.answer(unsupported), Step::Again);
    assert_eq!(fields(zero.entry(&Nothing)).length, 2 | 1);
    assert_eq!(zero.answer(0), Step::Again);
    assert_eq!(fields(zero.entry(&Nothing)).length, 1);
    assert_eq!(zero.answer(0), Step::Ended);
    assert_eq!(zero.answer(unsupported), Step::Ended, "zero all the same");
    let full = Step::Failed(Errno::ENOSPC);
    assert_eq!(zero.answer(refused(Errno::ENOSPC)), full);
}

#[test]
fn a_kernel_that_is_not_told_to_discard_makes_a_hole() {
    for errno in [Errno::EOPNOTSUPP, Errno::EINVAL, Errno::ENOTTY] {
        let deallocate = FileOperation::Deallocate {
            offset: 0,
            bytes: 4096,
        };
        let file = file();
        let mut discard = operation(&file, deallocate);
        discard.method = Method::Discard;
        assert_eq!(discard.answer(refused(errno)), Step::Again);
        assert_eq!(fields(discard.entry(&Nothing)).length, 2 | 1);
        assert_eq!(discard.answer(refused(errno)), Step::Failed(errno));
    }
}

#[test]
fn a_transfer_goes_on_where_it_stopped_and_ends_at_the_end_of_the_file() {
    let (file, buffer) = (file(), buffer());
    let read = FileOperation::Read {
        offset: 0x5000,
        buffer: &buffer,
        buffer_offset: 0x100,
        bytes: 0x1000,
    };
    let mut read = operation(&file, read);
    assert_eq!(read.answer(0x300), Step::Again);
    assert_eq!(read.answer(refused(Errno::EINTR)), Step::Again);
    let rest = fields(read.entry(&Nothing));
    assert_eq!((rest.opcode, rest.offset, rest.length), (22, 0x5300, 0xd00));
    assert_eq!(rest.address, buffer.address() + 0x400);
    assert_eq!(read.answer(0), Step::Ended);
    assert_eq!(read.done(), 0x300);
    // A kernel that reports more bytes than requested is not trusted.
    assert_eq!(read.answer(0x7000_0000), Step::Ended);
    assert_eq!(read.done(), 0x1000);
}
