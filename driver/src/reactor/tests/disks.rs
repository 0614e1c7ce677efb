//! Operations on a block device: a loop device, which only root can make. Without one the tests are skipped, with a
//! message.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process::Command;

use nix::libc::O_DIRECT;

use super::operations::{content, one, with_zeroes};
use super::*;

/// A loop device of 1 MiB over a file.
struct Loop {
    backing: tempfile::NamedTempFile,
    device: String,
}

impl Loop {
    fn new() -> Option<Self> {
        let backing = tempfile::NamedTempFile::new().unwrap();
        backing.as_file().set_len(1 << 20).unwrap();
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(backing.path())
            .output();
        match made {
            Ok(made) if made.status.success() => {
                let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
                Some(Self { backing, device })
            }
            other => {
                eprintln!("left out: no loop device can be made here: {other:?}");
                None
            }
        }
    }

    fn open(&self) -> File {
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(O_DIRECT)
            .clone();
        File::open_with(&options, &self.device).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let undone = Command::new("losetup")
            .args(["--detach", &self.device])
            .status();
        assert!(
            undone.is_ok_and(|undone| undone.success()),
            "{}",
            self.device
        );
    }
}

#[test]
fn a_block_device_tells_its_geometry_anew_after_it_grew() {
    let Some(disk) = Loop::new() else { return };
    let file = disk.open();
    let geometry = file.geometry().unwrap();
    assert!(
        geometry.is_block_device && geometry.deallocates,
        "{geometry:?}"
    );
    assert_eq!((geometry.bytes, geometry.logical_block), (1 << 20, 512));
    assert!(geometry.physical_block >= 512);
    assert!((1..=4096).contains(&geometry.memory_alignment));
    assert_eq!(geometry.offset_alignment, 512);
    disk.backing.as_file().set_len(2 << 20).unwrap();
    let grown = Command::new("losetup")
        .args(["--set-capacity", &disk.device])
        .status();
    assert!(grown.unwrap().success());
    assert_eq!(file.geometry().unwrap().bytes, 2 << 20);
    // A device opened read-only frees no space.
    let read_only = File::open(&disk.device).unwrap();
    assert!(!read_only.geometry().unwrap().deallocates);
}

#[test]
fn a_block_device_is_written_through_zeroed_and_told_to_discard() {
    let Some(disk) = Loop::new() else { return };
    let file = disk.open();
    let arena = arena();
    let buffer = arena.alloc(1 << 20, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    buffer.write_bytes(0, &pattern(1 << 20));
    let write = FileOperation::Write {
        offset: 0,
        buffer: &buffer,
        buffer_offset: 0,
        bytes: 1 << 20,
        through: true,
    };
    let ended = one(&mut reactor, &file, write);
    assert!(matches!(ended.result, Ok(0x10_0000)), "{ended:?}");
    let blocks = || disk.backing.as_file().metadata().unwrap().blocks();
    assert_eq!(blocks(), 2048);
    let zero = FileOperation::Zero {
        offset: 0x8000,
        bytes: 0x8000,
    };
    assert!(one(&mut reactor, &file, zero).result.is_ok());
    assert_eq!(
        content(&mut reactor, &file, 1 << 20),
        with_zeroes(1 << 20, 0x8000..0x1_0000)
    );
    assert_eq!(blocks(), 2048, "the space is kept");
    let deallocate = FileOperation::Deallocate {
        offset: 0x4_0000,
        bytes: 0x4_0000,
    };
    assert!(one(&mut reactor, &file, deallocate).result.is_ok());
    assert!(one(&mut reactor, &file, FileOperation::Sync).result.is_ok());
    assert!(blocks() <= 2048 - 0x4_0000 / 512, "{} blocks", blocks());
}

#[test]
fn a_block_device_refuses_what_is_off_its_grid_or_behind_its_end() {
    let Some(disk) = Loop::new() else { return };
    let file = disk.open();
    let buffer = arena().alloc(8192, 4096).unwrap();
    let mut reactor = Reactor::new(8).unwrap();
    let write = |offset, bytes| FileOperation::Write {
        offset,
        buffer: &buffer,
        buffer_offset: 0,
        bytes,
        through: false,
    };
    let deallocate = FileOperation::Deallocate {
        offset: 1,
        bytes: 512,
    };
    let zero = FileOperation::Zero {
        offset: 512,
        bytes: 511,
    };
    for (operation, errno) in [
        (write(1, 512), Errno::EINVAL),
        (write(0, 511), Errno::EINVAL),
        (write(1 << 20, 512), Errno::ENOSPC),
        (deallocate, Errno::EINVAL),
        (zero, Errno::EINVAL),
    ] {
        let error = one(&mut reactor, &file, operation).result.unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(errno as i32),
            "{operation:?}: {error}"
        );
    }
    // A write beyond the end of the device writes the bytes before the end, and then fails.
    let over = write((1 << 20) - 512, 1024);
    let error = one(&mut reactor, &file, over).result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC as i32), "{error}");
    assert!(
        error
            .to_string()
            .contains("write of 0x200 bytes at offset 0x100000"),
        "{error}"
    );
}
