//! The file of a handover: its claim, and files that are not valid.

use std::thread;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::*;

/// Makes a file with this content and these seals.
fn file(content: &[u8], seals: SealFlag) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create("test", flags).expect("a memfd"));
    file.write_all(content).expect("a write");
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
    file.into()
}

fn constant() -> SealFlag {
    SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK
}

/// Makes the content of a file whose header has these numbers.
fn content_of(count: u32, names_bytes: u32, snapshot_bytes: u64, rest: &[u8]) -> Vec<u8> {
    let numbers = [count, names_bytes].map(U32::new);
    let snapshot_bytes = U64::new(snapshot_bytes);
    let parts = [
        b"handov\0\x01",
        numbers.as_bytes(),
        snapshot_bytes.as_bytes(),
        rest,
    ];
    parts.concat()
}

fn error_of(fd: OwnedFd) -> String {
    HandoverFile::read(fd).expect_err("not valid").to_string()
}

#[test]
fn a_file_has_the_names_and_the_snapshot_and_does_not_change() {
    let names = ["memory-0", "nic0.vector-1"];
    let file = HandoverFile::write(names.into_iter(), SNAPSHOT).expect("a file");
    let fd = file.as_fd().try_clone_to_owned().expect("a duplicate");
    let (read, contents) = HandoverFile::read(fd).expect("valid");
    assert_eq!(
        (contents.names, contents.snapshot),
        (names.map(str::to_owned).to_vec(), SNAPSHOT.to_vec())
    );
    let mut writable = File::from(read.into_fd());
    writable.write_all(b"x").expect_err("F_SEAL_WRITE");
    writable.set_len(1).expect_err("F_SEAL_SHRINK");
    writable.set_len(1 << 20).expect_err("F_SEAL_GROW");
}

/// fcntl(2), `F_ADD_SEALS`: EPERM if the file has `F_SEAL_SEAL`.
#[test]
fn only_one_of_many_holders_claims_a_handover() {
    for _ in 0..100 {
        let file = HandoverFile::write(std::iter::empty(), SNAPSHOT).expect("a file");
        let claims = thread::scope(|scope| {
            let holders = [(); 4].map(|()| {
                let fd = file.as_fd().try_clone_to_owned().expect("a duplicate");
                HandoverFile::read(fd).expect("valid").0
            });
            let threads = holders.map(|file| scope.spawn(move || file.claim().is_ok()));
            let claims = threads
                .into_iter()
                .map(|thread| thread.join().expect("a thread"));
            claims.filter(|claimed| *claimed).count()
        });
        assert_eq!(claims, 1);
        assert!(matches!(file.claim(), Err(HandoverError::Claimed)));
        let refused = HandoverFile::read(file.into_fd());
        assert!(
            matches!(refused, Err(HandoverError::Claimed)),
            "{refused:?}"
        );
    }
}

#[test]
fn a_file_that_can_change_or_cannot_be_claimed_is_refused() {
    let valid = content_of(0, 0, 0, &[]);
    assert!(HandoverFile::read(file(&valid, constant())).is_ok());
    for missing in [
        SealFlag::F_SEAL_WRITE,
        SealFlag::F_SEAL_GROW,
        SealFlag::F_SEAL_SHRINK,
    ] {
        let error = error_of(file(&valid, constant() - missing));
        assert!(
            error.contains("its seals are") && error.contains("lack some of 0xe"),
            "{error}"
        );
    }
    let sealed = file(&valid, constant());
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&sealed));
    let reopened = File::open(path).expect("readable");
    let error = error_of(reopened.into());
    assert!(error.contains("not open for writing"), "{error}");
    let (_, pipe) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("a pipe");
    let error = error_of(pipe);
    assert!(error.contains("no memory that can be sealed"), "{error}");
}

#[test]
fn a_file_whose_numbers_contradict_each_other_is_refused() {
    let limit = MAX_SNAPSHOT;
    let mut other_magic = content_of(0, 0, 0, &[]);
    other_magic[7] = 2;
    let cases: [(Vec<u8>, &str); 14] = [
        (vec![0; 23], "it has 23 bytes, its header has 24"),
        (Vec::new(), "it has 0 bytes, its header has 24"),
        (
            other_magic,
            "it begins with [68, 61, 6e, 64, 6f, 76, 00, 02]",
        ),
        (
            content_of(4001, 0, 0, &[]),
            "4001 descriptors, the limit of a handover is 4000",
        ),
        (content_of(u32::MAX, 0, 0, &[]), "4294967295 descriptors"),
        (
            content_of(0, 516_001, 0, &[]),
            "516001 bytes of names, the limit is 516000",
        ),
        (
            content_of(0, 0, limit + 1, &[]),
            "a snapshot of 1073741825 bytes",
        ),
        (
            content_of(0, 0, u64::MAX, &[]),
            "a snapshot of 18446744073709551615 bytes",
        ),
        (
            content_of(0, 0, 4, b"abc"),
            "it has 27 bytes, its header counts 28",
        ),
        (
            content_of(0, 0, 2, b"abc"),
            "it has 27 bytes, its header counts 26",
        ),
        (
            content_of(2, 2, 0, b"\x01a"),
            "it has 1 names, its header counts 2",
        ),
        (
            content_of(1, 3, 0, b"\x03ab"),
            "name 0 has 3 bytes, and 2 are there",
        ),
        (
            content_of(2, 4, 0, b"\x01a\x01a"),
            "there are several descriptors \"a\"",
        ),
        (
            content_of(1, 2, 0, b"\x01\x1b"),
            "descriptor \"\\u{1b}\": the name is not allowed: it has the byte 0x1b",
        ),
    ];
    for (content, text) in cases {
        let error = error_of(file(&content, constant()));
        assert!(error.contains(text), "{error}");
    }
    let error = error_of(file(&content_of(1, 2, 0, b"\x01\xff"), constant()));
    assert!(error.contains("only ASCII letters"), "{error}");
    let error = error_of(file(&content_of(1, 1, 0, b"\0"), constant()));
    assert!(error.contains("it is empty"), "{error}");
}

/// If the seal cannot be added, another process may still claim the handover: the descriptors are kept, and are not
/// given back.
#[test]
fn a_handover_that_cannot_be_claimed_is_not_decided() {
    use std::os::fd::AsRawFd;
    let file = HandoverFile::write(["memory-0"].into_iter(), SNAPSHOT).expect("a file");
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let read_only = HandoverFile::of(File::open(path).expect("a file").into());
    let cause = HandoverError::HungUp { step: "to send" };
    let sent = take_back(read_only, descriptors(1), cause).expect("not kept");
    assert!(matches!(
        sent.unacknowledged,
        Some(HandoverError::HungUp { .. })
    ));
    let undecided = *sent.undecided.expect("not decided");
    let text = undecided.error.to_string();
    assert!(text.starts_with("fcntl(F_ADD_SEALS): "), "{text}");
    let again = undecided.claim().expect("not kept");
    let mut undecided = *again.undecided.expect("not decided");
    assert_are_all(&undecided.descriptors, 1);
    // Another process has claimed it meanwhile.
    file.claim().expect("claimed");
    let sent = undecided.claim().expect("claimed");
    assert!(sent.undecided.is_none());
    // The claim succeeds if no process was faster.
    let file = HandoverFile::write(["memory-0"].into_iter(), SNAPSHOT).expect("a file");
    undecided = Undecided {
        file,
        descriptors: descriptors(1),
        error: HandoverError::Claimed,
    };
    let kept = undecided.claim().expect_err("kept");
    assert_are_all(&kept.descriptors, 1);
    kept.wait_for_receiver(Instant(0)).expect("no receiver");
}
