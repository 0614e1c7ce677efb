//! Memory that others may write at any time.
//!
//! A [`SharedMemory`] is memory that is shared with a device, with a device model, or with another process. No Rust
//! reference ever points into it. Objects are copied in and out. A word that must not be seen half-written (a doorbell
//! record, an owner byte) is read or written in one load or store. The bytes read may be anything, so only types for
//! which every bit pattern is a value can be read (`FromBytes`).
//!
//! A [`SharedMemory`] consists of a [`Span`], which does the accesses, and the [`Mapping`] that keeps the span mapped.
//! A part uses the mapping of the whole, and keeps all of it mapped.

// UNSAFETY: joins a span and the mapping that keeps the span's promise.
#![expect(unsafe_code, reason = "spans are promised to stay mapped")]

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::MemoryError;
use crate::extents::Open;
use crate::guard::Guard;
use crate::mapping::{Area, Mapping, errno_of};
use crate::page::PageSize;
use crate::span::Span;

/// Accessors to shared memory, forwarded to the field that implements them. All except `contains` panic if the access
/// is not inside the memory.
macro_rules! shared_memory_accessors {
    ($inner:ident) => {
        /// Returns whether `bytes` bytes at `offset` lie inside. Check an untrusted offset with this before using it.
        #[inline]
        #[must_use]
        pub const fn contains(&self, offset: usize, bytes: usize) -> bool {
            self.$inner.contains(offset, bytes)
        }

        /// Copies bytes of the memory, from `offset` on, to all of `out`.
        ///
        /// # Panics
        /// If the bytes are not inside the memory, as for all accessors.
        #[inline]
        pub fn read_bytes(&self, offset: usize, out: &mut [u8]) {
            self.$inner.read_bytes(offset, out);
        }

        /// Copies all of `data` into the memory, from `offset` on.
        #[inline]
        pub fn write_bytes(&self, offset: usize, data: &[u8]) {
            self.$inner.write_bytes(offset, data);
        }

        /// Sets `bytes` bytes to `value`.
        #[inline]
        pub fn fill(&self, offset: usize, bytes: usize, value: u8) {
            self.$inner.fill(offset, bytes, value);
        }

        /// Copies an object out. It may be torn if the other side writes meanwhile.
        #[inline]
        #[must_use]
        pub fn read_obj<T: ::zerocopy::FromBytes>(&self, offset: usize) -> T {
            self.$inner.read_obj(offset)
        }

        /// Copies an object in, its bytes in no particular order.
        #[inline]
        pub fn write_obj<T>(&self, offset: usize, value: &T)
        where
            T: ::zerocopy::IntoBytes + ::zerocopy::Immutable,
        {
            self.$inner.write_obj(offset, value);
        }

        /// Loads one byte in a single relaxed access.
        #[inline]
        #[must_use]
        pub fn load_u8(&self, offset: usize) -> u8 {
            self.$inner.load_u8(offset)
        }

        /// Stores one byte in a single relaxed access.
        #[inline]
        pub fn store_u8(&self, offset: usize, value: u8) {
            self.$inner.store_u8(offset, value);
        }

        /// Loads a big-endian 32-bit word in a single relaxed access; its address is a multiple of 4.
        #[inline]
        #[must_use]
        pub fn load_be32(&self, offset: usize) -> u32 {
            self.$inner.load_be32(offset)
        }

        /// Stores a big-endian 32-bit word in a single relaxed access; its address is a multiple of 4.
        #[inline]
        pub fn store_be32(&self, offset: usize, value: u32) {
            self.$inner.store_be32(offset, value);
        }

        /// Loads a big-endian 64-bit word in a single relaxed access; its address is a multiple of 8.
        #[inline]
        #[must_use]
        pub fn load_be64(&self, offset: usize) -> u64 {
            self.$inner.load_be64(offset)
        }

        /// Stores a big-endian 64-bit word in a single relaxed access; its address is a multiple of 8.
        #[inline]
        pub fn store_be64(&self, offset: usize, value: u64) {
            self.$inner.store_be64(offset, value);
        }
    };
}
pub(crate) use shared_memory_accessors;

/// A mapping that others may write at any time. Clones share it.
#[derive(Clone)]
pub struct SharedMemory {
    /// Address range of the memory, inside `mapping`.
    span: Span,
    mapping: Arc<Mapping>,
}

impl SharedMemory {
    /// Maps `bytes` bytes of fresh zeroed memory that can be shared with other processes by descriptor (a memfd). A
    /// child of `fork` does not inherit the mapping, so it cannot write memory that the device uses.
    ///
    /// # Errors
    /// [`MemoryError::Empty`], [`MemoryError::TooLarge`]: `bytes`. [`MemoryError::System`]: a system call failed.
    pub fn anonymous(bytes: usize) -> Result<Self, MemoryError> {
        Self::congruent(bytes, 1, 0, PageSize::Base)
    }

    /// Maps fresh zeroed memory that no other process will map. It keeps no descriptor open, and takes no addresses of
    /// DMA memory.
    ///
    /// # Errors
    /// As [`anonymous`](Self::anonymous).
    pub fn of_this_process(bytes: usize) -> Result<Self, MemoryError> {
        let mapping = Mapping::private(bytes)?;
        Ok(Self {
            // SAFETY: as in `congruent`; a mapping does not need the descriptor of its file.
            span: unsafe { Span::new(mapping.base(), bytes) },
            mapping: Arc::new(mapping),
        })
    }

    /// Does the same as [`anonymous`](Self::anonymous), at an address that is `remainder` modulo `modulus` (a power
    /// of two), and on pages of the given size. The memory is not touched: pages are allocated on first use.
    pub(crate) fn congruent(
        bytes: usize,
        modulus: usize,
        remainder: usize,
        pages: PageSize,
    ) -> Result<Self, MemoryError> {
        let mapping = Mapping::memfd(bytes, modulus, remainder, pages)?;
        Ok(Self {
            // SAFETY: a mapping is readable and writable from its base on, for at least the bytes asked for, until it
            // drops, which is after `span`. No other code has its address, so no reference exists.
            span: unsafe { Span::new(mapping.base(), bytes) },
            mapping: Arc::new(mapping),
        })
    }

    /// Maps `bytes` bytes from `offset` on of a file that another process sent.
    pub(crate) fn imported(fd: OwnedFd, offset: u64, bytes: usize) -> Result<Self, MemoryError> {
        let mapping = Mapping::imported(fd, offset, bytes)?;
        Ok(Self {
            // SAFETY: as in `congruent`; the file cannot become shorter than the mapping. Writes of the other process
            // are like those of a device to shared memory.
            span: unsafe { Span::new(mapping.base(), bytes) },
            mapping: Arc::new(mapping),
        })
    }

    /// Maps a part of this memory a second time, with a mapping of its own. If this memory has no descriptor, the part
    /// shares its mapping.
    pub(crate) fn mapped_again(&self, offset: usize, bytes: usize) -> Result<Self, MemoryError> {
        let Some(fd) = self.as_fd() else {
            return Ok(self.part(offset, bytes));
        };
        let fd = fd
            .try_clone_to_owned()
            .map_err(|error| MemoryError::System {
                call: "fcntl(F_DUPFD_CLOEXEC)",
                bytes,
                errno: errno_of(&error),
            })?;
        // CAST: usize has at most 64 bits on every target Rust has.
        Self::imported(fd, offset as u64, bytes)
    }

    /// Maps a memfd of a previous process at the address that it had there. The file has `file_bytes` bytes, of which
    /// the first `bytes` are the memory.
    // PANIC: if `bytes` is more than `file_bytes`.
    pub(crate) fn adopted(
        fd: OwnedFd,
        address: usize,
        file_bytes: usize,
        bytes: usize,
    ) -> Result<Self, MemoryError> {
        assert!(bytes <= file_bytes, "{bytes:#x} bytes of {file_bytes:#x}");
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        let mapping = Mapping::adopted(fd, address, file_bytes)?;
        Ok(Self {
            // SAFETY: as in `congruent`; the file's size is sealed.
            span: unsafe { Span::new(mapping.base(), bytes) },
            mapping: Arc::new(mapping),
        })
    }

    /// Maps `bytes` bytes that contain pieces of a device's file at the given offsets.
    pub(crate) fn device(
        device: BorrowedFd<'_>,
        bytes: usize,
        areas: &[Area],
    ) -> Result<Self, MemoryError> {
        let mapping = Mapping::device(device, bytes, areas)?;
        Ok(Self {
            // SAFETY: as in `congruent`.
            span: unsafe { Span::new(mapping.base(), bytes) },
            mapping: Arc::new(mapping),
        })
    }

    /// Wraps foreign memory.
    ///
    /// # Safety
    ///
    /// As long as a clone or a part of the result exists, `bytes` bytes from `base` on are mapped, readable and
    /// writable, and no Rust reference accesses them while the result is used to access them.
    pub(crate) unsafe fn foreign(
        base: NonNull<u8>,
        bytes: usize,
        guard: Option<Arc<Guard>>,
    ) -> Self {
        Self {
            // SAFETY: `Span::new` asks for what the caller promises here.
            span: unsafe { Span::new(base, bytes) },
            mapping: Arc::new(Mapping::foreign(base, guard)),
        }
    }

    /// Returns a part of the memory, which keeps the whole mapped.
    // PANIC: if the part is not inside the memory.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Self {
        Self {
            span: self.span.part(offset, bytes),
            mapping: Arc::clone(&self.mapping),
        }
    }

    /// Returns the length in bytes; never zero.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub const fn len(&self) -> usize {
        self.span.len()
    }

    /// Returns the virtual address of the first byte, as a number.
    #[inline]
    #[must_use]
    pub fn address(&self) -> usize {
        self.span.address()
    }

    /// Returns the address range. The caller must keep the range mapped while it uses the result.
    pub(crate) const fn span(&self) -> Span {
        self.span
    }

    /// Returns a pointer to `bytes` bytes at `offset`, valid while a clone of `self` lives.
    // PANIC: if the bytes are not inside the memory.
    #[inline]
    pub(crate) fn pointer(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        self.span.at(offset, bytes)
    }

    /// Returns the addresses that may be accessed on behalf of another process, for foreign memory: none at first.
    /// `None` if all may be accessed.
    pub(crate) fn open(&self) -> Option<&Open> {
        self.mapping.open()
    }

    /// Returns whether these pages are mapped and are still the lent ones; a caller may unmap or replace its memory.
    pub(crate) fn is_whole(&self, pages: &Range<usize>) -> bool {
        self.mapping
            .guard()
            .is_none_or(|guard| guard.is_whole(pages))
    }

    /// Copies bytes to all of `out`, as a device reads them. Lent memory is read only if its pages are still the lent
    /// ones.
    ///
    /// # Errors
    /// The owner has unmapped or replaced the memory.
    ///
    /// # Panics
    /// If the bytes are not inside the memory.
    #[inline]
    pub fn try_read_bytes(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        if let Some(done) = self.guarded(offset, out.len(), |guard, at| guard.read(at, out)) {
            return done;
        }
        self.read_bytes(offset, out);
        Ok(())
    }

    /// Copies all of `data` into the memory, as a device writes it.
    ///
    /// # Errors
    /// As [`SharedMemory::try_read_bytes`].
    ///
    /// # Panics
    /// If the bytes are not inside the memory.
    #[inline]
    pub fn try_write_bytes(&self, offset: usize, data: &[u8]) -> io::Result<()> {
        if let Some(done) = self.guarded(offset, data.len(), |guard, at| guard.write(at, data)) {
            return done;
        }
        self.write_bytes(offset, data);
        Ok(())
    }

    /// Runs an access to guarded memory, by address. `None` if the memory has no guard, `bytes` is 0, or the system
    /// refuses the call.
    #[inline]
    fn guarded(
        &self,
        offset: usize,
        bytes: usize,
        access: impl FnOnce(&Guard, usize) -> Option<io::Result<()>>,
    ) -> Option<io::Result<()>> {
        let guard = self.mapping.guard()?;
        assert!(self.contains(offset, bytes), "{bytes} bytes at {offset:#x}");
        if bytes == 0 {
            return None;
        }
        let address = self.address() + offset;
        match guard.check(address, bytes) {
            Ok(()) => access(guard, address),
            Err(error) => Some(Err(error)),
        }
    }

    /// Returns the descriptor behind the mapping, if there is one. Byte 0 of the file is byte 0 of this memory.
    #[must_use]
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        // A part that begins after the start of the mapping has no descriptor; other crates never get such a part.
        let whole = self.mapping.base().addr().get() == self.address();
        self.mapping.as_fd().filter(|_| whole)
    }

    shared_memory_accessors!(span);
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SharedMemory({:#x} bytes at {:#x})",
            self.len(),
            self.address()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn fresh_memory_is_zero_and_shared_with_its_descriptor() {
        use std::os::unix::fs::FileExt;
        let memory = SharedMemory::anonymous(5000).unwrap();
        assert_eq!(memory.len(), 5000);
        let mut bytes = vec![1; 5000];
        memory.read_bytes(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 0));
        memory.write_bytes(4990, b"0123456789");
        let file = File::from(memory.as_fd().unwrap().try_clone_to_owned().unwrap());
        let mut read = [0; 10];
        file.read_exact_at(&mut read, 4990).unwrap();
        assert_eq!(&read, b"0123456789");
    }

    #[test]
    fn memory_of_this_process_alone_has_no_descriptor() {
        let memory = SharedMemory::of_this_process(5000).unwrap();
        assert!(memory.as_fd().is_none());
        assert!(!is_in_window(&memory), "{memory:?}");
        memory.write_bytes(4990, b"0123456789");
        assert_eq!(memory.read_obj::<[u8; 10]>(4990), *b"0123456789");
        assert_eq!(memory.load_u8(0), 0);
    }

    #[test]
    fn words_are_big_endian_in_memory() {
        let memory = SharedMemory::anonymous(64).unwrap();
        memory.store_be32(4, 0x0102_0304);
        memory.store_be64(8, 0x0506_0708_090a_0b0c);
        let mut bytes = [0; 12];
        memory.read_bytes(4, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(memory.load_be32(8), 0x0506_0708);
        assert_eq!(memory.load_be64(8), 0x0506_0708_090a_0b0c);
    }

    /// PCI Express Base Specification, "Update Ordering and Granularity Observed by a Read Transaction": a naturally
    /// aligned dword, such as a doorbell record, is read and written whole.
    #[test]
    fn a_dword_is_never_seen_half_written_wherever_a_copy_begins_and_ends() {
        const TURNS: usize = 1_000_000;
        let memory = SharedMemory::anonymous(64).unwrap();
        let both = std::sync::Barrier::new(2);
        // Copies with a dword before the first aligned word of eight bytes, after the last one, or both.
        for (begin, bytes, dword) in [(4, 4, 4), (8, 4, 8), (4, 16, 4), (4, 16, 16)] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    both.wait();
                    for turn in 0..TURNS {
                        memory.write_bytes(dword, &[if turn % 2 == 0 { 0xff } else { 0 }; 4]);
                    }
                });
                let mut copy = vec![0; bytes];
                both.wait();
                for _ in 0..TURNS {
                    memory.read_bytes(begin, &mut copy);
                    let seen = &copy[dword - begin..][..4];
                    assert!(
                        seen.iter().all(|byte| *byte == seen[0]),
                        "{seen:02x?} at {dword} of {bytes} bytes from {begin}"
                    );
                }
            });
        }
    }

    #[test]
    fn objects_are_copied_at_any_offset() {
        let memory = SharedMemory::anonymous(64).unwrap();
        let object: [zerocopy::big_endian::U16; 3] = [1.into(), 2.into(), 0x0304.into()];
        memory.write_obj(7, &object);
        assert_eq!(memory.read_obj::<[u8; 6]>(7), [0, 1, 0, 2, 3, 4]);
        assert_eq!(memory.read_obj::<[zerocopy::big_endian::U16; 3]>(7), object);
        memory.fill(7, 3, 0xff);
        memory.store_u8(12, 9);
        assert_eq!(memory.read_obj::<[u8; 6]>(7), [0xff, 0xff, 0xff, 2, 3, 9]);
    }

    #[test]
    fn contains_knows_the_edges() {
        let memory = SharedMemory::anonymous(100).unwrap();
        assert!(memory.contains(0, 100));
        assert!(memory.contains(100, 0));
        assert!(!memory.contains(1, 100));
        assert!(!memory.contains(101, 0));
        assert!(!memory.contains(usize::MAX, 2));
        assert!(!memory.contains(2, usize::MAX));
    }

    #[test]
    #[should_panic(expected = "access of 0x4 bytes at 0x61 is outside a memory of 0x64 bytes")]
    fn an_access_over_the_edge_panics_with_its_numbers() {
        SharedMemory::anonymous(100)
            .unwrap()
            .write_bytes(97, &[0; 4]);
    }

    #[test]
    #[should_panic(expected = "single access of 4 bytes at 0x2 is not naturally aligned")]
    fn a_word_access_off_its_alignment_panics() {
        SharedMemory::anonymous(100).unwrap().store_be32(2, 0);
    }

    #[test]
    fn an_empty_or_endless_mapping_is_refused() {
        assert_eq!(SharedMemory::anonymous(0).unwrap_err(), MemoryError::Empty);
        assert!(matches!(
            SharedMemory::anonymous(usize::MAX).unwrap_err(),
            MemoryError::TooLarge { .. }
        ));
        let error = SharedMemory::anonymous(usize::MAX / 4)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("mmap") || error.contains("ftruncate"),
            "{error}"
        );
    }

    #[test]
    fn memory_goes_where_its_congruence_says() {
        for remainder in [0, 0x1000, 0x12_3000] {
            let memory =
                SharedMemory::congruent(3 * 4096, 1 << 24, remainder, PageSize::Base).unwrap();
            assert_eq!(memory.address() % (1 << 24), remainder);
            memory.fill(0, memory.len(), 0x11);
        }
    }

    fn is_in_window(memory: &SharedMemory) -> bool {
        crate::dma_window::contains(memory.address() as u64, memory.len() as u64)
    }

    /// Another process maps DMA memory at the same address, which must be free there.
    #[test]
    fn memory_lies_in_the_window_of_dma_memory_or_elsewhere_if_that_has_no_such_address() {
        for pages in 1..4 {
            let memory = SharedMemory::anonymous(pages << 12).unwrap();
            assert!(is_in_window(&memory), "{memory:?}");
            memory.fill(0, memory.len(), 0x11);
        }
        // The window has no address with this remainder.
        let (modulus, remainder) = (1 << 45, 0x1800_0000_1000);
        let memory = SharedMemory::congruent(4096, modulus, remainder, PageSize::Base).unwrap();
        assert_eq!(memory.address() % modulus, remainder);
        assert!(!is_in_window(&memory), "{memory:?}");
        memory.fill(0, 4096, 0x11);
    }

    #[test]
    fn memory_of_another_process_is_adopted_only_where_it_was_and_as_it_was() {
        let memory = SharedMemory::anonymous(5000).unwrap();
        memory.write_bytes(4990, b"0123456789");
        let address = memory.address();
        let fd = memory.as_fd().unwrap().try_clone_to_owned().unwrap();
        let adopt = |address, file_bytes, bytes| {
            SharedMemory::adopted(fd.try_clone().unwrap(), address, file_bytes, bytes)
        };
        let in_use = adopt(address, 8192, 5000).unwrap_err();
        assert!(
            matches!(
                in_use,
                MemoryError::System {
                    errno: nix::errno::Errno::EEXIST,
                    ..
                }
            ),
            "{in_use:?}"
        );
        drop(memory);
        for (at, file_bytes) in [
            (address, 4096),
            (address, 12288),
            (address + 1, 8192),
            (0, 8192),
        ] {
            let refused = adopt(at, file_bytes, 1).unwrap_err();
            assert!(matches!(refused, MemoryError::File { .. }), "{refused:?}");
        }
        let refused = adopt(usize::MAX - 4095, 8192, 1).unwrap_err();
        assert!(
            matches!(refused, MemoryError::TooLarge { .. }),
            "{refused:?}"
        );
        assert_eq!(adopt(address, 8192, 0).unwrap_err(), MemoryError::Empty);
        let adopted = adopt(address, 8192, 5000).unwrap();
        assert_eq!((adopted.address(), adopted.len()), (address, 5000));
        assert_eq!(adopted.read_obj::<[u8; 10]>(4990), *b"0123456789");
        assert!(adopted.as_fd().is_some());
        // A file that can become shorter is refused.
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(SharedMemory::adopted(file.into(), address + (1 << 30), 8192, 1).is_err());
    }

    #[test]
    fn clones_share_and_the_last_one_unmaps() {
        let memory = SharedMemory::anonymous(4096).unwrap();
        let clone = memory.clone();
        memory.store_u8(5, 5);
        let address = memory.address();
        drop(memory);
        assert_eq!(clone.load_u8(5), 5);
        let mapped = |address: usize| {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .contains(&format!("{address:x}-"))
        };
        assert!(mapped(address) && clone.address() == address);
    }
}
