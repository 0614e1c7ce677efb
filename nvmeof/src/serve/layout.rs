//! A worker's memory.
//!
//! ```text
//!   first region     capsules (64 bytes each) | responses (16 bytes each) | pages (4 KiB each)
//!                    one of each for every command, and responses to event requests behind those of commands
//!   second region    buffers (128 KiB to 1 MiB each) | zeros (as long), which nothing writes: the data of a null disk
//! ```
//!
//! A receive has two segments: the command goes to a 64-byte capsule, and the in-capsule data to a page. So the data is
//! aligned, as disks require.

use udapl::memory::{DmaBuffer, LmrHandle, LmrSlice, MemType, PzHandle, alloc_buffer};
use udapl::{DatError, DmaMemory, Ia, MemPrivFlags};
use zerocopy::IntoBytes;

use super::config::WorkerConfig;
use super::error::WorkerError;
use crate::io;
use crate::io::{DataBuffer, Layout, PAGE};
use crate::nvme::Sqe;
pub(super) use crate::nvme::command::BYTES as COMMAND;
pub(super) use crate::nvme::completion::BYTES as RESPONSE;

/// Registered memory that the adapter and the disks access.
pub(super) struct Region {
    pub buffer: DmaBuffer,
    pub lmr: LmrHandle,
    slice: LmrSlice,
}

/// Rights of a region. Peers have none.
const RIGHTS: MemPrivFlags = MemPrivFlags::LOCAL_READ.union(MemPrivFlags::LOCAL_WRITE);

impl Region {
    fn new(ia: &mut Ia, zone: PzHandle, bytes: u32) -> Result<Self, WorkerError> {
        // CAST: 32 bits fit into `usize`.
        let buffer = alloc_buffer(ia, bytes as usize, PAGE as usize)?;
        let memory = DmaMemory::Arena {
            buffer: buffer.clone(),
            offset: 0,
            bytes: bytes as usize,
        };
        let lmr = ia.lmr_create(memory, zone, RIGHTS)?.lmr;
        let slice = ia.lmr_slice(lmr, 0, bytes.into())?;
        Ok(Self { buffer, lmr, slice })
    }

    /// Returns the region of a resumed instance that has this handle; `None` if it is not such a region.
    fn of(ia: &Ia, zone: PzHandle, lmr: LmrHandle, bytes: u32) -> Result<Option<Self>, DatError> {
        let known = ia.lmr_query(lmr)?;
        let is_same = known.pz == zone
            && known.privileges == RIGHTS
            && known.mem_type == MemType::Virtual
            && known.registered_size == u64::from(bytes);
        let DmaMemory::Arena {
            buffer, offset: 0, ..
        } = ia.lmr_memory(lmr)?
        else {
            return Ok(None);
        };
        // CAST: 32 bits fit into `usize`.
        if !is_same || buffer.len() < bytes as usize {
            return Ok(None);
        }
        let slice = ia.lmr_slice(lmr, 0, bytes.into())?;
        Ok(Some(Self { buffer, lmr, slice }))
    }

    /// Returns a slice of the region; `None` if the range is outside the region.
    #[inline]
    fn part(&self, at: u32, bytes: u32) -> Option<LmrSlice> {
        self.slice.part(at.into(), bytes.into())
    }
}

/// A worker's memory.
pub(super) struct Memory {
    /// Capsules, responses and pages, in one region.
    pub places: Region,
    /// Buffers and zeros, in one region.
    pub buffers: Region,
    layout: Layout,
    /// Offset of the responses, in bytes.
    responses_at: u32,
    /// Receive segments of each command: its capsule and its page. The slices are made once, not for each post.
    receives: Vec<[LmrSlice; 2]>,
    /// Response slice of each command, also made once.
    responses: Vec<LmrSlice>,
}

/// Returns the layout of a worker's memory, for `ios` commands and `responses` responses.
const fn layout(ios: u32, responses: u32, config: WorkerConfig) -> Layout {
    Layout {
        pages_at: (ios * COMMAND + responses * RESPONSE).next_multiple_of(PAGE),
        buffers: config.buffers,
        transfer_shift: config.transfer_shift,
    }
}

/// Returns the lengths of the two regions.
const fn bytes_of(layout: Layout, ios: u32) -> [u32; 2] {
    [layout.page_at(ios), layout.buffers_bytes()]
}

impl Memory {
    /// Allocates memory for `ios` commands, `responses` responses (including one for each command) and the buffers of
    /// `config`.
    pub(super) fn new(
        ia: &mut Ia,
        zone: PzHandle,
        (ios, responses): (u32, u32),
        config: WorkerConfig,
    ) -> Result<Self, WorkerError> {
        let layout = layout(ios, responses, config);
        // Memory of an arena is zeroed.
        let regions = bytes_of(layout, ios).map(|bytes| Region::new(ia, zone, bytes));
        let [places, buffers] = regions;
        Ok(Self::of([places?, buffers?], (ios, responses), layout))
    }

    /// Returns the memory of a resumed instance, in two of its regions; `None` if these are other regions.
    pub(super) fn resume(
        ia: &Ia,
        zone: PzHandle,
        lmrs: [LmrHandle; 2],
        (ios, responses): (u32, u32),
        config: WorkerConfig,
    ) -> Result<Option<Self>, DatError> {
        let layout = layout(ios, responses, config);
        let [places_bytes, buffers_bytes] = bytes_of(layout, ios);
        let places = Region::of(ia, zone, lmrs[0], places_bytes)?;
        let buffers = Region::of(ia, zone, lmrs[1], buffers_bytes)?;
        let regions = places.zip(buffers).filter(|_| lmrs[0] != lmrs[1]);
        Ok(regions.map(|(places, buffers)| Self::of([places, buffers], (ios, responses), layout)))
    }

    fn of([places, buffers]: [Region; 2], (ios, responses): (u32, u32), layout: Layout) -> Self {
        let responses_at = ios * COMMAND;
        let receive = |io| {
            let command = places.part(io * COMMAND, COMMAND)?;
            Some([command, places.part(layout.page_at(io), PAGE)?])
        };
        let response = |io| places.part(responses_at + io * RESPONSE, RESPONSE);
        Self {
            receives: (0..ios).filter_map(receive).collect(),
            responses: (0..responses).filter_map(response).collect(),
            places,
            buffers,
            layout,
            responses_at,
        }
    }

    /// Returns this memory in the form that crate module `io` uses.
    pub(super) fn data(&self) -> io::Memory {
        let (places, buffers) = (self.places.buffer.clone(), self.buffers.buffer.clone());
        io::Memory::new(places, buffers, self.layout)
    }

    const fn command_at(io: u32) -> u32 {
        io * COMMAND
    }

    /// Copies the received command of a slot to `to`.
    #[inline]
    pub(super) fn read_command(&self, io: u32, to: &mut Sqe) {
        let at = Self::command_at(io) as usize; // CAST: 32 bits fit.
        self.places.buffer.read_bytes(at, to.as_mut_bytes());
    }

    /// Returns the slice of a command's data for an RDMA transfer; `None` if the range is outside the region.
    #[inline]
    pub(super) fn slice(&self, data: DataBuffer, bytes: u32) -> Option<LmrSlice> {
        let (is_in_buffers, at) = self.layout.of(data);
        let region = if is_in_buffers {
            &self.buffers
        } else {
            &self.places
        };
        region.part(at, bytes)
    }

    /// Writes the response of a command, and returns its memory for a Send.
    #[inline]
    // PANIC: there is a response for each command.
    pub(super) fn respond(&self, io: u32, response: &crate::nvme::Cqe) -> LmrSlice {
        let at = (self.responses_at + io * RESPONSE) as usize; // CAST: 32 bits fit.
        self.places.buffer.write_obj(at, response);
        self.responses[io as usize] // CAST: widening.
    }

    /// Returns the receive segments of a command.
    #[inline]
    pub(super) fn receive(&self, io: u32) -> Option<&[LmrSlice; 2]> {
        self.receives.get(io as usize) // CAST: widening.
    }
}
