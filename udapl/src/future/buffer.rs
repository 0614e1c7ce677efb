//! Memory for transfers: pools of buffers, each of which has one owner at a time.
//!
//! A pool is one memory region, cut into pieces. A [`Buffer`] is the right to use a piece: whoever has it is the
//! program, or, while a transfer is in flight, the driver. It goes back to the pool when it is dropped, wherever that
//! is, and the region ends when the pool and all its buffers have gone.

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

use dat_core::{DtoCompletion, LmrHandle, LmrSlice, MemPrivFlags, RmrTriplet};
use driver::{Bytes, DmaBuffer};

use super::error::Error;
use super::table::Shared;

/// Of pieces: no two share a cache line.
const LINE_BYTES: usize = 64;
/// Of a region: what reads and writes past the page cache (`O_DIRECT`) ask for.
const PAGE_BYTES: usize = 4096;

/// Buffers of one size, in one registered region. Clones share it.
#[derive(Clone)]
pub struct Pool(Rc<Region>);

/// The region.
struct Region {
    memory: DmaBuffer,
    lmr: LmrHandle,
    whole: LmrSlice,
    rmr_context: u32,
    registered_address: u64,
    /// Bytes of a buffer, and from one to the next.
    bytes: u32,
    stride: u32,
    count: u32,
    /// Numbers of buffers that nobody has.
    free: RefCell<Vec<u32>>,
    shared: Weak<Shared>,
}

impl Drop for Region {
    /// No transfer uses it any more: each would have a buffer.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.region_is_over(self.lmr);
        }
    }
}

impl Pool {
    /// `count` buffers of `bytes` bytes.
    pub(super) fn new(
        shared: &Rc<Shared>,
        count: u32,
        bytes: u32,
        rights: MemPrivFlags,
    ) -> Result<Self, Error> {
        let too_large = || driver::DmaError::Request {
            bytes: usize::MAX,
            align: PAGE_BYTES,
        };
        let line = u32::try_from(LINE_BYTES).map_err(|_| too_large())?;
        let stride = bytes.checked_next_multiple_of(line);
        // One slice of it has 32 bits of length.
        let all = stride.and_then(|stride| stride.checked_mul(count));
        let (stride, all) = stride.zip(all).ok_or_else(too_large)?;
        let length = usize::try_from(all).map_err(|_| too_large())?;
        let (memory, region, whole) = shared.with(|core| {
            let zone = core.zone;
            let ia = core.ia()?;
            let memory = ia.provider().arena().alloc(length, PAGE_BYTES)?;
            let region = ia.lmr_create(memory.clone().into(), zone, rights)?;
            let whole = ia.lmr_slice(region.lmr, 0, u64::from(all))?;
            Ok::<_, Error>((memory, region, whole))
        })?;
        Ok(Self(Rc::new(Region {
            memory,
            lmr: region.lmr,
            whole,
            rmr_context: region.rmr_context,
            registered_address: region.registered_address,
            bytes,
            stride,
            count,
            free: RefCell::new((0..count).rev().collect()),
            shared: Rc::downgrade(shared),
        })))
    }

    /// Takes a free buffer, if there is one. Its length is its capacity, and it still holds the bytes of its last use.
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let number = self.0.free.borrow_mut().pop()?;
        Some(Buffer {
            region: Rc::clone(&self.0),
            number,
            len: self.0.bytes,
            completion: None,
        })
    }

    /// How many buffers are free.
    #[must_use]
    pub fn available(&self) -> usize {
        self.0.free.borrow().len()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Region { count, bytes, .. } = &*self.0;
        let free = self.available();
        write!(f, "Pool({free} of {count} buffers of {bytes} bytes)")
    }
}

/// A piece of registered memory with one owner. When it is dropped it goes back to its pool.
///
/// As a `Vec` it has a capacity and a length. The first [`len`](Self::len) bytes are the content: what is sent or
/// written, and what a transfer has brought.
pub struct Buffer {
    region: Rc<Region>,
    number: u32,
    len: u32,
    completion: Option<DtoCompletion>,
}

impl Buffer {
    /// A transfer begins: what the one before brought is over.
    pub(super) const fn forget_completion(&mut self) {
        self.completion = None;
    }

    /// How many bytes it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        // CAST: usize has at least 32 bits on every target this runs on.
        self.region.bytes as usize
    }

    /// Bytes of the content.
    #[must_use]
    pub const fn len(&self) -> usize {
        // CAST: as above.
        self.len as usize
    }

    /// Whether the content has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes the first `len` bytes the content.
    ///
    /// # Errors
    /// [`Error::Bounds`]: it has fewer.
    pub fn set_len(&mut self, len: usize) -> Result<(), Error> {
        self.bounds(0, len, self.capacity())?;
        // CAST: at most the capacity, which is a `u32`.
        #[expect(clippy::cast_possible_truncation, reason = "at most the capacity")]
        {
            self.len = len as u32;
        }
        Ok(())
    }

    /// Copies bytes in from the beginning and makes them the content.
    ///
    /// # Errors
    /// [`Error::Bounds`]: they are more than it can hold. Nothing was put in.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.set_len(bytes.len())?;
        self.region.memory.write_bytes(self.start(), bytes);
        Ok(())
    }

    /// Copies bytes in at an offset. The length stays what it is.
    ///
    /// # Errors
    /// [`Error::Bounds`]: they are not inside what it can hold. Nothing was put in.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.bounds(offset, bytes.len(), self.capacity())?;
        let place = self.start() + offset;
        self.region.memory.write_bytes(place, bytes);
        Ok(())
    }

    /// Copies bytes out of the content.
    ///
    /// # Errors
    /// [`Error::Bounds`]: they are not inside the content.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.bounds(offset, bytes.len(), self.len())?;
        let place = self.start() + offset;
        self.region.memory.read_bytes(place, bytes);
        Ok(())
    }

    /// A copy of the content.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.region.memory.read_bytes(self.start(), &mut bytes);
        bytes
    }

    /// The completion of the last transfer that it was in, if that came so far: the immediate data that a receive came
    /// with, or the context that was invalidated ([`DtoCompletion::detail`]), and the endpoint that a receive of an SRQ
    /// came through ([`DtoCompletion::ep`]).
    #[must_use]
    pub const fn completion(&self) -> Option<&DtoCompletion> {
        self.completion.as_ref()
    }

    pub(super) const fn set_completion(&mut self, done: DtoCompletion) {
        self.completion = Some(done);
    }

    /// The content, in place: to look at, and to read or write files with
    /// ([`FileOperation`](crate::reactor::FileOperation)), without a copy. For a read from a file the length is set
    /// before ([`set_len`](Self::set_len)). Buffers of a multiple of 4096 bytes lie on pages, as `O_DIRECT` asks for.
    ///
    /// An operation on a file does not own the buffer, only its memory: who drops or posts the buffer before the
    /// operation has ended has others' bytes in the file, or the file's in others' messages.
    #[must_use]
    pub fn bytes(&self) -> Bytes<'_> {
        let (start, whole) = (self.start(), Bytes::from(&self.region.memory));
        // PANIC: the content is inside the buffer, and that inside the region.
        whole.part(start..start + self.len()).expect("inside")
    }

    /// What a peer needs to reach the content, as far as the rights of the pool allow. It stays valid as long as the
    /// pool has its region, also after the buffer has gone to another owner.
    #[must_use]
    pub fn remote(&self) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.region.rmr_context,
            target_address: self.region.registered_address
                + u64::from(self.number) * u64::from(self.region.stride),
            segment_length: u64::from(self.len),
        }
    }

    /// The first `bytes` bytes, to post.
    pub(super) fn slice(&self, bytes: usize) -> Option<LmrSlice> {
        if bytes > self.capacity() {
            return None;
        }
        self.region.whole.part(self.start() as u64, bytes as u64) // CAST: widening.
    }

    fn start(&self) -> usize {
        // CAST: the region is a `u32` long.
        self.number as usize * self.region.stride as usize
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
