//! The file of a handover: the names of the descriptors and the snapshot, in sealed memory.
//!
//! ```text
//!   bytes     contents (numbers are little-endian)
//!   0..8      MAGIC, which includes the version of this layout
//!   8..12     number of descriptors
//!   12..16    length of the names
//!   16..24    length of the snapshot
//!   24..      the names: a byte with the length, and the name
//!             the snapshot, up to the end of the file
//! ```
//!
//! The file has the seals `F_SEAL_WRITE`, `F_SEAL_GROW` and `F_SEAL_SHRINK`, so its contents no longer change. It does
//! not have `F_SEAL_SEAL` at first. The process that adds `F_SEAL_SEAL` has claimed the handover: the kernel lets only
//! one attempt succeed, whichever process makes it, and the seal stays as long as the file (fcntl(2), `F_ADD_SEALS`;
//! Linux `mm/memfd.c`, `memfd_add_seals`, which holds the lock of the inode). Adding a seal needs a descriptor that is
//! open for writing.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::fs::{OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::HandoverError;
use super::name;
use super::{MAX_DESCRIPTORS, MAX_NAME, MAX_SNAPSHOT};

const MAGIC: [u8; 8] = *b"handov\0\x01";
const HEADER_BYTES: usize = 24;
/// Seals of a file whose contents do not change.
const CONSTANT: SealFlags = SealFlags::WRITE
    .union(SealFlags::GROW)
    .union(SealFlags::SHRINK);
/// Maximum length of the names.
const MAX_NAMES: usize = MAX_DESCRIPTORS * (1 + MAX_NAME);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    count: U32,
    names_bytes: U32,
    snapshot_bytes: U64,
}
static_assertions::const_assert_eq!(size_of::<Header>(), HEADER_BYTES);

/// The file of a handover.
#[derive(Debug)]
pub(super) struct HandoverFile {
    file: File,
}

/// Contents of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// Names of the descriptors, in the order in which a socket carries them.
    pub(super) names: Vec<String>,
    /// The snapshot.
    pub(super) snapshot: Vec<u8>,
}

impl HandoverFile {
    /// Makes a file that no process has claimed.
    pub(super) fn write<'a>(
        names: impl ExactSizeIterator<Item = &'a str> + Clone,
        snapshot: &[u8],
    ) -> Result<Self, HandoverError> {
        name::check_all(names.clone())?;
        // CAST: usize has at most 64 bits on every target Rust has.
        let snapshot_bytes = snapshot.len() as u64;
        if snapshot_bytes > MAX_SNAPSHOT {
            return Err(HandoverError::SnapshotSize {
                bytes: snapshot_bytes,
            });
        }
        let count = number(names.len());
        let mut text = Vec::new();
        for name in names {
            // PANIC: `check_all` has checked that the name has at most MAX_NAME bytes, which is below 256.
            text.push(u8::try_from(name.len()).expect("a short name"));
            text.extend_from_slice(name.as_bytes());
        }
        let header = Header {
            magic: MAGIC,
            count: count.into(),
            names_bytes: number(text.len()).into(),
            snapshot_bytes: snapshot_bytes.into(),
        };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create("handover", flags)
            .map_err(|errno| HandoverError::system("memfd_create")(errno.into()))?;
        let mut file = File::from(file);
        for part in [header.as_bytes(), &text, snapshot] {
            file.write_all(part)
                .map_err(HandoverError::system("write of the handover's file"))?;
        }
        fcntl_add_seals(&file, CONSTANT)
            .map_err(|errno| HandoverError::system("fcntl(F_ADD_SEALS)")(errno.into()))?;
        Ok(Self { file })
    }

    /// Takes a file that another process has made.
    pub(super) fn of(fd: OwnedFd) -> Self {
        Self { file: fd.into() }
    }

    /// Reads a file that another process has written.
    pub(super) fn read(fd: OwnedFd) -> Result<(Self, Contents), HandoverError> {
        let file = Self::of(fd);
        let contents = file.contents()?;
        Ok((file, contents))
    }

    /// Reads the contents. Nothing in them is trusted.
    pub(super) fn contents(&self) -> Result<Contents, HandoverError> {
        let seals = self.seals()?;
        if !seals.contains(CONSTANT) {
            let seals = seals.bits();
            let wanted = CONSTANT.bits();
            return invalid(format!(
                "its seals are {seals:#x}, and lack some of {wanted:#x}"
            ));
        }
        if seals.contains(SealFlags::SEAL) {
            return Err(HandoverError::Claimed);
        }
        let flags = fcntl_getfl(&self.file)
            .map_err(|errno| HandoverError::system("fcntl(F_GETFL)")(errno.into()))?;
        if flags & OFlags::RWMODE != OFlags::RDWR {
            return invalid("it is not open for writing, so it cannot be claimed".to_owned());
        }
        let length = self
            .file
            .metadata()
            .map_err(HandoverError::system("fstat of the handover's file"))?
            .len();
        let mut header = [0; HEADER_BYTES];
        if length < HEADER_BYTES as u64 {
            return invalid(format!(
                "it has {length} bytes, its header has {HEADER_BYTES}"
            ));
        }
        self.read_at(&mut header, 0)?;
        // PANIC: the array has the header's size, and every bit pattern is a header.
        let header = Header::read_from_bytes(&header).expect("a header's bytes");
        if header.magic != MAGIC {
            let (found, magic) = (header.magic, MAGIC);
            return invalid(format!(
                "it begins with {found:02x?} and not with {magic:02x?}"
            ));
        }
        let (count, names_bytes) = (size(header.count), size(header.names_bytes));
        let snapshot_bytes = header.snapshot_bytes.get();
        if count > MAX_DESCRIPTORS {
            return Err(HandoverError::TooMany { count });
        }
        if names_bytes > MAX_NAMES {
            return invalid(format!(
                "{names_bytes} bytes of names, the limit is {MAX_NAMES}"
            ));
        }
        if snapshot_bytes > MAX_SNAPSHOT {
            return Err(HandoverError::SnapshotSize {
                bytes: snapshot_bytes,
            });
        }
        let before_snapshot = (HEADER_BYTES + names_bytes) as u64;
        let wanted = before_snapshot + snapshot_bytes;
        if length != wanted {
            return invalid(format!("it has {length} bytes, its header counts {wanted}"));
        }
        let mut text = vec![0; names_bytes];
        self.read_at(&mut text, HEADER_BYTES as u64)?;
        let names = split_names(&text, count)?;
        let Ok(snapshot_length) = usize::try_from(snapshot_bytes) else {
            return Err(HandoverError::SnapshotSize {
                bytes: snapshot_bytes,
            });
        };
        // Another process has chosen the length, and its file may be sparse. A lack of memory must not abort this one.
        let mut snapshot = Vec::new();
        if snapshot.try_reserve_exact(snapshot_length).is_err() {
            let source = std::io::ErrorKind::OutOfMemory.into();
            return Err(HandoverError::system("allocation of the snapshot")(source));
        }
        snapshot.resize(snapshot_length, 0);
        self.read_at(&mut snapshot, before_snapshot)?;
        Ok(Contents { names, snapshot })
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> Result<(), HandoverError> {
        let read = self.file.read_exact_at(out, at);
        read.map_err(HandoverError::system("read of the handover's file"))
    }

    fn seals(&self) -> Result<SealFlags, HandoverError> {
        fcntl_get_seals(&self.file).or_else(|errno| {
            invalid(format!(
                "it is no memory that can be sealed (fcntl(F_GET_SEALS): {errno})"
            ))
        })
    }

    /// Claims the handover for this process. It is [`HandoverError::Claimed`] if a process has claimed it before.
    pub(super) fn claim(&self) -> Result<(), HandoverError> {
        match fcntl_add_seals(&self.file, SealFlags::SEAL) {
            Ok(()) => Ok(()),
            Err(errno) if self.seals()?.contains(SealFlags::SEAL) => {
                tracing::debug!(%errno, "the handover was claimed before");
                Err(HandoverError::Claimed)
            }
            Err(errno) => Err(HandoverError::system("fcntl(F_ADD_SEALS)")(errno.into())),
        }
    }

    /// Returns the descriptor, which another process needs.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the file, to be kept with other descriptors.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.file.into()
    }
}

/// Splits the names of a file, and checks them.
fn split_names(text: &[u8], count: usize) -> Result<Vec<String>, HandoverError> {
    let mut rest = text;
    let mut names = Vec::with_capacity(count);
    while let Some((&length, after)) = rest.split_first() {
        let Some((name, after)) = after.split_at_checked(length.into()) else {
            return invalid(format!(
                "name {} has {length} bytes, and {} are there",
                names.len(),
                after.len()
            ));
        };
        // A byte that is not UTF-8 becomes a character that no name may have.
        names.push(String::from_utf8_lossy(name).into_owned());
        rest = after;
    }
    if names.len() != count {
        return invalid(format!(
            "it has {} names, its header counts {count}",
            names.len()
        ));
    }
    name::check_all(names.iter().map(String::as_str))?;
    Ok(names)
}

fn invalid<T>(what: String) -> Result<T, HandoverError> {
    Err(HandoverError::File { what })
}

fn number(value: usize) -> u32 {
    // PANIC: the number of descriptors and the length of their names have limits.
    u32::try_from(value).expect("a number below 2^32")
}

fn size(value: U32) -> usize {
    usize::try_from(value.get()).unwrap_or(usize::MAX)
}
