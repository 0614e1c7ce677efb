//! Tests of descriptors that were handed in for files that this process may not open.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::thread;

use nix::unistd::{Uid, geteuid, setfsuid};
use tempfile::TempDir;

use super::*;

const BYTES: u64 = 64 << 10;
/// Alignment in bytes that every disk accepts with O_DIRECT.
const PAGE: usize = 4096;

/// Runs a test in a thread that may not open a file of mode 0. If the process is root, the thread sets another user
/// for file access, and so has no CAP_DAC_OVERRIDE (setfsuid(2), capabilities(7)).
pub(crate) fn without_rights(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if geteuid().is_root() {
                let nobody = Uid::from_raw(65_534);
                setfsuid(nobody);
                // setfsuid reports no failure. The second call returns the user that the first call has set.
                assert_eq!(
                    setfsuid(nobody),
                    nobody,
                    "this user namespace has no user 65534"
                );
            }
            test();
        });
        thread.join().expect("the test holds");
    });
}

/// Sets the file's mode to 0, so that it cannot be opened again. Returns the descriptor, in the role of the program
/// that opened the file, and a copy, in the role of the descriptor that was handed to this process.
fn handed_in(file: std::fs::File) -> Result<(std::fs::File, File), std::io::Error> {
    file.set_permissions(Permissions::from_mode(0o000))?;
    let given = File::from_std(file.try_clone()?, "disk");
    Ok((file, given))
}

fn flags(file: &std::fs::File) -> OFlag {
    OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL).expect("an open file"))
}

/// Makes a disk of a descriptor that was handed in.
fn taken(given: &File, serves: bool) -> Result<Disk, DiskError> {
    let mut disk = Disk::unopened(Source::Given("disk".to_owned()), 12, false);
    disk.take_given(copy(given)?, serves)?;
    Ok(disk)
}

/// Returns whether the file system of a folder supports O_DIRECT.
fn has_direct(folder: &TempDir) -> bool {
    let path = folder.path().join("another");
    fs::write(&path, b"").expect("a file");
    open(&path, false, O_DIRECT).is_ok()
}

#[test]
fn a_descriptor_that_cannot_be_opened_again_gets_o_direct_when_it_is_served_and_not_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let has_direct = has_direct(&folder);
    for writable in [true, false] {
        let path = folder.path().join(format!("disk-{writable}"));
        let (created, whole) = (fs::File::create(&path), || fs::File::open(&path));
        created.and_then(|file| file.set_len(BYTES)).expect("room");
        let another = whole().expect("a file");
        let opened = OpenOptions::new().read(true).write(writable).open(&path);
        let (theirs, given) = opened.and_then(handed_in).expect("a descriptor");
        without_rights(|| {
            let refused = anew(&given, !writable, 0).expect_err("this process may not open it");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
            let before = flags(&theirs);
            taken(&given, false).expect("it could be served");
            assert_eq!(flags(&theirs), before, "a look changes nothing");
            let disk = taken(&given, true).expect("it is served");
            assert_eq!(
                (disk.direct, disk.is_read_only()),
                (has_direct, !writable),
                "{writable}"
            );
            let direct = if has_direct {
                OFlag::O_DIRECT
            } else {
                OFlag::empty()
            };
            assert_eq!(flags(&theirs), before | direct, "of the open file itself");
            // The open file owns the lock. It excludes other programs, and another namespace on the same descriptor.
            disk.lock().expect("nobody else has it");
            let second = taken(&given, true).and_then(|disk| disk.lock());
            let second = second.map_err(|error| error.to_string());
            let taken = "disk is in use: another namespace of this process lies on it; key `lock = false` serves it all the same";
            let expected = if writable {
                Err(taken.to_owned())
            } else {
                Ok(())
            };
            assert_eq!(second, expected, "readers share it");
            let other = if writable {
                another.try_lock_shared()
            } else {
                another.try_lock()
            };
            other.expect_err("it is locked");
            let Handle::File(file) = disk.handle().expect("a copy") else {
                panic!("a file");
            };
            let mut memory = vec![0x5a; 2 * PAGE];
            let at = memory.as_ptr().align_offset(PAGE);
            let page = &mut memory[at..at + PAGE];
            let written = file.as_std().write_all_at(page, 4096);
            assert_eq!(written.is_ok(), writable, "{written:?}");
            file.as_std()
                .read_exact_at(page, 4096)
                .expect("it is there");
            assert!(page.iter().all(|byte| (*byte == 0x5a) == writable));
            disk.give_up();
            another.try_lock().expect("it is free");
            another.unlock().expect("it was locked");
        });
    }
}

/// A descriptor that is open for writing only cannot be read (open(2)). It is not taken for a read-only disk.
#[test]
fn a_descriptor_that_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let created = fs::File::create(&path).and_then(|file| file.set_len(BYTES));
    created.expect("room");
    let opened = OpenOptions::new().write(true).open(&path).expect("a file");
    let given = File::from_std(opened, "disk");
    for serves in [false, true] {
        let refused = taken(&given, serves).expect_err("no disk");
        assert_eq!(
            refused.to_string(),
            "descriptor \"disk\": it is open for writing only (O_WRONLY), and a disk is also read"
        );
    }
}

/// A memory file (memfd_create(2)) that was handed in is served through the cache if it does not accept O_DIRECT.
#[test]
fn a_descriptor_that_cannot_be_opened_again_and_takes_no_o_direct_is_served_by_the_cache() {
    let memory = memfd_create(c"disk", MFdFlags::MFD_CLOEXEC).expect("memory");
    let memory = fs::File::from(memory);
    memory.set_len(BYTES).expect("room");
    let (theirs, given) = handed_in(memory).expect("a descriptor");
    without_rights(|| {
        let before = flags(&theirs);
        let disk = taken(&given, true).expect("it is served");
        let takes_direct = flags(&theirs).contains(OFlag::O_DIRECT);
        assert_eq!(disk.direct, takes_direct);
        assert_eq!(flags(&theirs) - OFlag::O_DIRECT, before);
        assert_eq!(disk.blocks().expect("it is open"), 16);
    });
}
