//! Buffers for transfers, and the pools that they come from. A buffer has one owner at a time.
//!
//! A pool is one memory region, divided into pieces. A [`Buffer`] is the right to use a piece. Its owner is the program
//! or, while a transfer is in flight, the driver. Dropping a buffer anywhere returns its piece to the pool. When the
//! pool and all its buffers have been dropped, the next `Driver::run_once` frees the region.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use dat_core::{DtoCompletion, LmrHandle, LmrSlice, MemPrivFlags, PzHandle, RmrTriplet};
use driver::{Bytes, DmaBuffer};

use super::error::Error;
use crate::Ia;

/// Alignment of pieces in bytes, so that no two pieces have bytes in one cache line.
const LINE_BYTES: usize = 64;
/// Alignment of a region in bytes, as `O_DIRECT` requires.
const PAGE_BYTES: usize = 4096;

/// A pool of buffers of one size, in one registered region. Clones are handles of the same region.
#[derive(Clone)]
pub struct Pool(Rc<Region>);

/// The region of a pool.
struct Region {
    memory: DmaBuffer,
    lmr: LmrHandle,
    whole: LmrSlice,
    rmr_context: u32,
    registered_address: u64,
    shape: Shape,
    /// Numbers of the free buffers.
    free: RefCell<Vec<u32>>,
    spent: Rc<SpentRegions>,
}

/// Number and size of a pool's buffers.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    count: u32,
    /// Size of a buffer, and distance from the start of a buffer to the start of the next (`stride`), in bytes.
    bytes: u32,
    stride: u32,
    /// Length of the region in bytes, which fits a `u32`, as the length of an LMR slice has to.
    length: usize,
}

impl Shape {
    /// Returns the shape of `count` buffers of `bytes` bytes.
    pub(super) fn new(count: u32, bytes: u32) -> Result<Self, Error> {
        let too_large = || driver::DmaError::Request {
            bytes: usize::MAX,
            align: PAGE_BYTES,
        };
        let line = u32::try_from(LINE_BYTES).map_err(|_| too_large())?;
        let stride = bytes.checked_next_multiple_of(line);
        let all = stride.and_then(|stride| stride.checked_mul(count));
        let (stride, all) = stride.zip(all).ok_or_else(too_large)?;
        Ok(Self {
            count,
            bytes,
            stride,
            length: usize::try_from(all).map_err(|_| too_large())?,
        })
    }
}

/// Regions that are to be freed, because their pools and buffers have been dropped.
#[derive(Default)]
pub(super) struct SpentRegions(RefCell<Vec<LmrHandle>>);

impl SpentRegions {
    pub(super) fn push(&self, lmr: LmrHandle) {
        self.0.borrow_mut().push(lmr);
    }

    pub(super) fn take(&self) -> Vec<LmrHandle> {
        self.0.take()
    }
}

impl Drop for Region {
    /// Requests the free of the region. No transfer uses the region any more, because a transfer would hold a buffer.
    fn drop(&mut self) {
        self.spent.push(self.lmr);
    }
}

impl Pool {
    /// Creates a pool in a region of its own. `spent` gets the region when it is no longer used.
    pub(super) fn new(
        ia: &mut Ia,
        zone: PzHandle,
        shape: Shape,
        rights: MemPrivFlags,
        spent: Rc<SpentRegions>,
    ) -> Result<Self, Error> {
        let memory = ia.provider().arena().alloc(shape.length, PAGE_BYTES)?;
        let region = ia.lmr_create(memory.clone().into(), zone, rights)?;
        // CAST: widening.
        let whole = ia.lmr_slice(region.lmr, 0, shape.length as u64)?;
        Ok(Self(Rc::new(Region {
            memory,
            lmr: region.lmr,
            whole,
            rmr_context: region.rmr_context,
            registered_address: region.registered_address,
            shape,
            free: RefCell::new((0..shape.count).rev().collect()),
            spent,
        })))
    }

    /// Takes a free buffer; `None` if no buffer is free. The buffer's length is its capacity, and it still has the
    /// bytes of its previous use.
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let number = self.0.free.borrow_mut().pop()?;
        Some(Buffer {
            region: Rc::clone(&self.0),
            number,
            len: self.0.shape.bytes,
            completion: None,
        })
    }

    /// Returns the number of free buffers.
    #[must_use]
    pub fn available(&self) -> usize {
        self.0.free.borrow().len()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { count, bytes, .. } = self.0.shape;
        let free = self.available();
        write!(f, "Pool({free} of {count} buffers of {bytes} bytes)")
    }
}

/// A piece of registered memory with one owner. Dropping it returns the piece to its pool.
///
/// Like a `Vec` it has a capacity and a length. The first [`len`](Self::len) bytes are the content: the bytes to send
/// or write, or the bytes that a transfer has received or read.
pub struct Buffer {
    region: Rc<Region>,
    number: u32,
    len: u32,
    completion: Option<DtoCompletion>,
}

impl Buffer {
    /// Clears the completion of the previous transfer, because a new one begins.
    pub(super) const fn forget_completion(&mut self) {
        self.completion = None;
    }

    /// Returns the capacity in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        // CAST: usize has at least 32 bits on every supported target.
        self.region.shape.bytes as usize
    }

    /// Returns the length of the content in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        // CAST: as above.
        self.len as usize
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes the first `len` bytes the content.
    ///
    /// # Errors
    /// [`Error::Bounds`]: `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) -> Result<(), Error> {
        self.bounds(0, len, self.capacity())?;
        // CAST: at most the capacity, which is a `u32`.
        #[expect(clippy::cast_possible_truncation, reason = "at most the capacity")]
        {
            self.len = len as u32;
        }
        Ok(())
    }

    /// Copies bytes to the start of the buffer and makes them the content.
    ///
    /// # Errors
    /// [`Error::Bounds`]: there are more bytes than the capacity. Nothing was copied.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.set_len(bytes.len())?;
        self.region.memory.write_bytes(self.start(), bytes);
        Ok(())
    }

    /// Copies bytes to an offset. The length does not change.
    ///
    /// # Errors
    /// [`Error::Bounds`]: the range exceeds the capacity. Nothing was copied.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.bounds(offset, bytes.len(), self.capacity())?;
        let place = self.start() + offset;
        self.region.memory.write_bytes(place, bytes);
        Ok(())
    }

    /// Copies bytes out of the content.
    ///
    /// # Errors
    /// [`Error::Bounds`]: the range exceeds the content.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.bounds(offset, bytes.len(), self.len())?;
        let place = self.start() + offset;
        self.region.memory.read_bytes(place, bytes);
        Ok(())
    }

    /// Returns a copy of the content.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.region.memory.read_bytes(self.start(), &mut bytes);
        bytes
    }

    /// Returns the completion of the buffer's last transfer; `None` if the buffer had none. The completion has the
    /// immediate data of a receive, or the invalidated RMR context ([`DtoCompletion::detail`]). For a receive of an SRQ
    /// it also has the endpoint ([`DtoCompletion::ep`]).
    #[must_use]
    pub const fn completion(&self) -> Option<&DtoCompletion> {
        self.completion.as_ref()
    }

    pub(super) const fn set_completion(&mut self, done: DtoCompletion) {
        self.completion = Some(done);
    }

    /// Returns the memory of the content, to inspect it, or to read or write files with it
    /// ([`FileOperation`](crate::reactor::FileOperation)) without a copy. Before a read from a file, set the length
    /// ([`set_len`](Self::set_len)). Buffers whose size is a multiple of 4096 bytes are page-aligned, as `O_DIRECT`
    /// requires.
    ///
    /// A file operation does not own the buffer, only its memory. If the buffer is dropped or posted before the
    /// operation has ended, the file may get bytes of other transfers, or messages may get bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        let (start, whole) = (self.start(), Bytes::from(&self.region.memory));
        // PANIC: the content is inside the buffer, and the buffer is inside the region.
        whole.part(start..start + self.len()).expect("inside")
    }

    /// Returns the RMR triplet with which a peer can access the content, within the access rights of the pool. The
    /// triplet stays valid while the region exists, even after the buffer has another owner.
    #[must_use]
    pub fn remote(&self) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.region.rmr_context,
            target_address: self.region.registered_address
                + u64::from(self.number) * u64::from(self.region.shape.stride),
            segment_length: u64::from(self.len),
        }
    }

    /// Returns the LMR slice of the first `bytes` bytes, for a post; `None` if `bytes` exceeds the capacity.
    pub(super) fn slice(&self, bytes: usize) -> Option<LmrSlice> {
        if bytes > self.capacity() {
            return None;
        }
        self.region.whole.part(self.start() as u64, bytes as u64) // CAST: widening.
    }

    fn start(&self) -> usize {
        // CAST: the length of the region fits a `u32`.
        self.number as usize * self.region.shape.stride as usize
    }

    const fn bounds(&self, offset: usize, bytes: usize, capacity: usize) -> Result<(), Error> {
        if offset > capacity || bytes > capacity - offset {
            return Err(Error::Bounds {
                offset,
                bytes,
                capacity,
            });
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.region.free.borrow_mut().push(self.number);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, len, capacity) = (self.number, self.len, self.capacity());
        write!(f, "Buffer({number}, {len} of {capacity} bytes)")
    }
}
