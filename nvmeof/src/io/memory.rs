//! The memory for the data of commands.
//!
//! Each command has its own page of 4 KiB, into which data in the capsule arrives, too. Longer data is in buffers
//! ([`super::buffers`]), each as long as the data of an I/O may be. A region of zeros of the same length, which nothing
//! writes, is the data of a null disk.

use udapl::memory::DmaBuffer;
use zerocopy::FromBytes;

use crate::model::IN_CAPSULE;

/// Length of a page in bytes. Disks need memory that is aligned to it.
pub(crate) const PAGE: u32 = IN_CAPSULE;

/// Location of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataBuffer {
    /// The page of the command with this number.
    Page(u32),
    /// The buffer with this number.
    Buffer(u32),
    /// Zeros, for reading only.
    Zeros,
}

/// Layout of the memory: the pages are in one region, the buffers and the zeros in another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Offset of the first page, in bytes.
    pub pages_at: u32,
    /// Number of buffers. The zeros follow the last buffer.
    pub buffers: u32,
    /// MDTS: the length of a buffer is 4 KiB shifted left by this number.
    pub transfer_shift: u8,
}

impl Layout {
    /// Returns the length of a buffer in bytes, which is the maximum length of the data of an I/O.
    #[inline]
    pub(crate) const fn buffer_bytes(self) -> u32 {
        PAGE << self.transfer_shift
    }

    /// Returns the length of the second region in bytes.
    pub(crate) const fn buffers_bytes(self) -> u32 {
        (self.buffers + 1) * self.buffer_bytes()
    }

    /// Returns the offset of a page in the first region, in bytes.
    #[inline]
    pub(crate) const fn page_at(self, io: u32) -> u32 {
        self.pages_at + io * PAGE
    }

    /// Returns whether data is in the second region, and its offset in its region in bytes.
    #[inline]
    pub(crate) const fn of(self, data: DataBuffer) -> (bool, u32) {
        match data {
            DataBuffer::Page(io) => (false, self.page_at(io)),
            DataBuffer::Buffer(buffer) => (true, buffer * self.buffer_bytes()),
            DataBuffer::Zeros => (true, self.buffers * self.buffer_bytes()),
        }
    }
}

/// The memory of a worker's commands.
pub(crate) struct Memory {
    pages: DmaBuffer,
    buffers: DmaBuffer,
    layout: Layout,
}

impl Memory {
    /// Makes the memory from two regions, as long as `layout` needs. The caller has zeroed `buffers`.
    pub(crate) const fn new(pages: DmaBuffer, buffers: DmaBuffer, layout: Layout) -> Self {
        Self {
            pages,
            buffers,
            layout,
        }
    }

    /// Returns the maximum length of the data of an I/O, in bytes.
    #[inline]
    pub(crate) const fn most_bytes(&self) -> u32 {
        self.layout.buffer_bytes()
    }

    /// Returns the region that data is in, and its offset there in bytes.
    #[inline]
    pub(crate) const fn at(&self, data: DataBuffer) -> (&DmaBuffer, usize) {
        let (is_in_buffers, offset) = self.layout.of(data);
        let buffer = if is_in_buffers {
            &self.buffers
        } else {
            &self.pages
        };
        (buffer, offset as usize) // CAST: widening.
    }

    /// Copies a list of `bytes` bytes from the memory at `data`. The caller uses only the copy, because the memory may
    /// change between two reads.
    pub(crate) fn list<T: FromBytes>(&self, data: DataBuffer, bytes: u32) -> Vec<T> {
        let (buffer, from) = self.at(data);
        let count = bytes as usize / size_of::<T>(); // CAST: widening.
        let entries = (0..count).map(|entry| from + entry * size_of::<T>());
        entries.map(|at| buffer.read_obj(at)).collect()
    }

    /// Returns whether two locations hold the same bytes.
    pub(crate) fn is_equal(&self, one: DataBuffer, other: DataBuffer, bytes: u32) -> bool {
        /// Number of bytes that are compared at a time.
        const CHUNK: usize = 512;
        let ((one, a), (other, b)) = (self.at(one), self.at(other));
        let (mut left, mut right) = ([0; CHUNK], [0; CHUNK]);
        // CAST: widening.
        (0..bytes as usize).step_by(CHUNK).all(|from| {
            one.read_bytes(a + from, &mut left);
            other.read_bytes(b + from, &mut right);
            left == right
        })
    }
}
