//! Registrations with the kernel: buffers whose pages it has pinned, and files it has references to.
//!
//! A missing registration only costs speed: an entry that names the index of a registered buffer or file saves the
//! kernel pinning pages or taking a reference. Registering may fail: by default an ordinary user may lock 8 MiB of
//! memory, and a table may have no more files than the process may have open, by default 1,024.
//!
//! A ring itself needs locked memory, too (Linux 6.13 and later), and without one there are no disks. So all rings of a
//! process together pin at most half of what the process may lock. The limit holds for all processes of the user
//! together, and the kernel does not tell how much they have locked. So buffers are also given back if a ring of
//! [`RESERVE`] entries cannot be made beside them.
//!
//! Lookups are fast. Pinned memory is sorted by address. A file's index in the table follows from its number. Of
//! several files with the same index, only the last is registered.

// UNSAFETY: io-uring does not know how long registered memory stays mapped; this module does.
#![expect(unsafe_code, reason = "registered buffers")]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::IoUring;
use nix::errno::Errno;
use nix::libc::iovec;

use crate::dma::DmaBuffer;
use crate::file::File;
use crate::pci::Machine;
use crate::reactor::operation::Pinned;

/// Maximum number of bytes that the kernel pins in one piece.
const LONGEST: usize = 1 << 30;

/// Number of entries for which locked memory remains after buffers were registered: about 400 KiB.
const RESERVE: u32 = 4096;

/// Number of bytes that the rings of this process have pinned, if their number is limited.
static PINNED: AtomicU64 = AtomicU64::new(0);

/// A part of [`PINNED`].
#[derive(Debug, Default)]
struct Share(u64);

impl Share {
    /// Takes the share of `bytes`; `None` if this would be more than half of `lockable`, the number of bytes that the
    /// process may lock.
    fn take(bytes: u64, lockable: Option<u64>) -> Option<Self> {
        let Some(lockable) = lockable else {
            return Some(Self(0));
        };
        let add =
            |pinned: u64| Some(pinned.saturating_add(bytes)).filter(|all| *all <= lockable / 2);
        PINNED
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        Some(Self(bytes))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        PINNED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A part of a buffer, at most `LONGEST` bytes, with its index in the kernel's table of registered buffers.
struct Piece {
    start: usize,
    bytes: usize,
    index: u16,
}

#[derive(Default)]
pub(super) struct Pins {
    buffers: Vec<DmaBuffer>,
    share: Share,
    /// Registered pieces of `buffers`, sorted by address; empty if the kernel refused to register them.
    pieces: Vec<Piece>,
    /// Registered files. A file's index is its number modulo the table's length, which is 0 or a power of two.
    files: Vec<Option<File>>,
}

/// Returns whether the error means that this system does not allow the registration, which only costs speed.
fn is_denied(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(
            Errno::ENOMEM
                | Errno::EPERM
                | Errno::EOPNOTSUPP
                | Errno::EINVAL
                | Errno::EFAULT
                | Errno::EMFILE
                | Errno::ENFILE
        )
    )
}

fn registered(done: io::Result<()>, what: &str) -> io::Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if is_denied(&error) => {
            tracing::debug!("{what} are not registered, which costs speed: {error}");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

impl Pins {
    pub(super) fn pin_buffers(
        &mut self,
        ring: &IoUring,
        buffers: &[DmaBuffer],
    ) -> io::Result<bool> {
        if !self.pieces.is_empty() {
            ring.submitter().unregister_buffers()?;
            self.pieces.clear();
        }
        self.buffers.clear();
        self.share = Share::default();
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum(); // CAST: widening.
        let lockable = Machine::default().lockable_bytes();
        let Some(share) = Share::take(bytes, lockable) else {
            tracing::debug!(
                bytes,
                "buffers are not registered, so that the process can still lock memory"
            );
            return Ok(false);
        };
        (self.share, self.buffers) = (share, buffers.to_vec());
        let mut done = self.register_buffers(ring);
        if lockable.is_some()
            && !self.pieces.is_empty()
            && let Err(error) = IoUring::new(RESERVE)
        {
            ring.submitter().unregister_buffers()?;
            self.pieces.clear();
            done = Err(error);
        }
        if done.is_err() {
            self.buffers.clear();
            self.share = Share::default();
        }
        registered(done, "buffers")
    }

    pub(super) fn pin_files(&mut self, ring: &IoUring, files: &[File]) -> io::Result<bool> {
        if !self.files.is_empty() {
            ring.submitter().unregister_files()?;
            self.files.clear();
        }
        self.files = table(files);
        let done = self.register_files(ring);
        if done.is_err() {
            self.files.clear();
        }
        registered(done, "files")
    }

    /// Registers the same buffers and files with `ring`, which replaces the previous ring.
    pub(super) fn register_again(&mut self, ring: &IoUring) {
        self.pieces.clear();
        if let Err(error) = self.register_buffers(ring) {
            tracing::debug!("buffers are not registered again, which costs speed: {error}");
        }
        if let Err(error) = self.register_files(ring) {
            tracing::debug!("files are not registered again, which costs speed: {error}");
            self.files.clear();
        }
    }

    fn register_buffers(&mut self, ring: &IoUring) -> io::Result<()> {
        if self.buffers.is_empty() {
            return Ok(());
        }
        let mut vectors = Vec::new();
        let mut pieces = Vec::new();
        for buffer in &self.buffers {
            for at in (0..buffer.len()).step_by(LONGEST) {
                let bytes = LONGEST.min(buffer.len() - at);
                let pointer = buffer.pointer(at, bytes);
                let index = u16::try_from(pieces.len()).map_err(|_many| Errno::EINVAL)?;
                pieces.push(Piece {
                    start: pointer.addr().get(),
                    bytes,
                    index,
                });
                vectors.push(iovec {
                    iov_base: pointer.as_ptr().cast(),
                    iov_len: bytes,
                });
            }
        }
        // SAFETY: the memory stays mapped while it is registered, because `buffers` keeps a clone of each buffer until
        // the buffers are unregistered or the ring is closed.
        unsafe { ring.submitter().register_buffers(&vectors) }?;
        pieces.sort_unstable_by_key(|piece| (piece.start, piece.bytes));
        self.pieces = pieces;
        Ok(())
    }

    fn register_files(&self, ring: &IoUring) -> io::Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let place = |file: &Option<File>| file.as_ref().map_or(-1, |file| file.as_fd().as_raw_fd());
        let descriptors: Vec<i32> = self.files.iter().map(place).collect();
        ring.submitter().register_files(&descriptors)
    }

    /// Leaks the buffers, because the kernel may still write to them.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.buffers));
    }
}

impl Pinned for Pins {
    fn buffer(&self, address: usize, bytes: usize) -> Option<u16> {
        let behind = self.pieces.partition_point(|piece| piece.start <= address);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        let inside = address - piece.start;
        (inside <= piece.bytes && bytes <= piece.bytes - inside).then_some(piece.index)
    }

    fn file(&self, file: &File) -> Option<i32> {
        let at = place(file, self.files.len())?;
        let is_there = self.files.get(at)?.as_ref()?.is(file);
        if is_there {
            i32::try_from(at).ok()
        } else {
            None
        }
    }
}

/// Returns the index of a file in a table of `places` entries; `None` if the table is empty.
fn place(file: &File, places: usize) -> Option<usize> {
    // CAST: 32 bits fit on every target with an io_uring.
    Some(file.number() as usize & places.checked_sub(1)?)
}

/// Makes a table with a separate entry for each file, doubling its length up to four times the initial one. If that
/// does not suffice, a file may replace another one with the same index.
fn table(files: &[File]) -> Vec<Option<File>> {
    let mut places = files.len().next_power_of_two();
    let most = 4 * places;
    if files.is_empty() {
        return Vec::new();
    }
    loop {
        let mut table = vec![None; places];
        let mut has_collision = false;
        for file in files {
            if let Some(free) = place(file, places).and_then(|at| table.get_mut(at)) {
                has_collision |= free.as_ref().is_some_and(|there: &File| !there.is(file));
                *free = Some(file.clone());
            }
        }
        if !has_collision || places >= most {
            return table;
        }
        places *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::DmaArena;
    use crate::double::Double;

    /// Makes a ring, and waits for the memory of rings that were closed.
    fn small_ring() -> IoUring {
        let deadline = crate::clock::monotonic_now() + crate::ring::RETURN;
        crate::ring::until_memory_returns(deadline, || IoUring::new(4)).unwrap()
    }

    /// The rest is for rings, without which there are no disks.
    #[test]
    fn all_rings_of_a_process_pin_at_most_half_of_what_it_may_lock() {
        // Other tests may pin memory meanwhile, but no such amounts.
        const MOST: u64 = 1 << 60;
        let half = Share::take(MOST / 4, Some(MOST)).expect("a quarter");
        assert!(Share::take(MOST / 4 + 1, Some(MOST)).is_none());
        let other = Share::take(MOST / 8, Some(MOST)).expect("an eighth");
        drop(half);
        assert!(Share::take(MOST / 4, Some(MOST)).is_some());
        drop(other);
        assert!(Share::take(u64::MAX, None).is_some());
        assert!(Share::take(u64::MAX, Some(MOST)).is_none());
    }

    #[test]
    fn pinned_memory_of_several_arenas_is_found_to_its_last_byte_and_no_further() {
        let arenas = [(); 3].map(|()| DmaArena::new(&Double::new().function()).unwrap());
        let buffers = arenas
            .each_ref()
            .map(|arena| arena.alloc(8192, 4096).unwrap());
        let other = arenas[0].alloc(8192, 4096).unwrap();
        let ring = small_ring();
        let mut pins = Pins::default();
        if !pins.pin_buffers(&ring, &buffers).unwrap() {
            eprintln!("left out: no memory can be pinned here");
            return;
        }
        for (index, buffer) in (0..).zip(&buffers) {
            let start = buffer.pointer(0, 0).addr().get();
            for (at, bytes) in [(0, 8192), (0, 1), (8191, 1), (100, 5000)] {
                assert_eq!(pins.buffer(start + at, bytes), Some(index), "{at} {bytes}");
            }
            assert_eq!(pins.buffer(start + 1, 8192), None);
            assert_eq!(pins.buffer(start + 8192, 1), None);
        }
        let start = other.pointer(0, 0).addr().get();
        assert_eq!(pins.buffer(start, 1), None);
        assert!(pins.pin_buffers(&ring, &[]).unwrap());
        let start = buffers[0].pointer(0, 0).addr().get();
        assert_eq!(pins.buffer(start, 1), None);
    }

    #[test]
    fn a_file_has_its_own_place_or_none() {
        let open = || File::from_std(tempfile::tempfile().unwrap(), "a file");
        let files: Vec<File> = (0..6).map(|_| open()).collect();
        let ring = small_ring();
        let mut pins = Pins::default();
        if !pins.pin_files(&ring, &files).unwrap() {
            eprintln!("left out: no files can be registered here");
            return;
        }
        let mut places: Vec<i32> = files.iter().filter_map(|file| pins.file(file)).collect();
        assert!(!places.is_empty());
        for file in &files {
            let place = pins.file(file).map(|at| usize::try_from(at).unwrap());
            let there = place.and_then(|at| pins.files[at].as_ref());
            assert!(there.is_none_or(|there| there.is(file)));
        }
        let all = places.len();
        places.dedup();
        assert_eq!(places.len(), all);
        assert_eq!(pins.file(&open()), None);
    }
}
