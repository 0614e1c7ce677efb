//! A worker's memory.
//!
//! ```text
//!   first region     capsules (64 bytes each) | responses (16 bytes each) | pages (4 KiB each)
//!                    one of each for every command, and responses to event requests behind those of commands
//!   second region    buffers (128 KiB each) | zeros (128 KiB), which nothing writes: the data of a null disk
//! ```
//!
//! A receive has two segments: the command goes to a 64-byte capsule, and the in-capsule data to a page. So the data is
//! aligned, as disks require.

use udapl::memory::{DmaBuffer, LmrSlice, PzHandle, alloc_buffer};
use udapl::{DmaMemory, Ia, MemPrivFlags};
use zerocopy::IntoBytes;

use super::error::WorkerError;
use crate::io;
use crate::io::{DataBuffer, Layout, PAGE};
use crate::model::MAX_TRANSFER;
use crate::nvme::Sqe;
pub(super) use crate::nvme::command::BYTES as COMMAND;
pub(super) use crate::nvme::completion::BYTES as RESPONSE;

/// Registered memory that the adapter and the disks access.
pub(super) struct Region {
    pub buffer: DmaBuffer,
    slice: LmrSlice,
}

impl Region {
    fn new(ia: &mut Ia, zone: PzHandle, bytes: u32) -> Result<Self, WorkerError> {
        // CAST: 32 bits fit into `usize`.
        let buffer = alloc_buffer(ia, bytes as usize, PAGE as usize)?;
        let memory = DmaMemory::Arena {
            buffer: buffer.clone(),
            offset: 0,
            bytes: bytes as usize,
        };
        let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
        let lmr = ia.lmr_create(memory, zone, rights)?.lmr;
        let slice = ia.lmr_slice(lmr, 0, bytes.into())?;
        Ok(Self { buffer, slice })
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

impl Memory {
    /// Allocates memory for `ios` commands, `responses` responses (including one for each command) and `buffers`
    /// buffers.
    pub(super) fn new(
        ia: &mut Ia,
        zone: PzHandle,
        (ios, responses): (u32, u32),
        buffers: u32,
    ) -> Result<Self, WorkerError> {
        let responses_at = ios * COMMAND;
        let layout = Layout {
            pages_at: (responses_at + responses * RESPONSE).next_multiple_of(PAGE),
            buffers,
        };
        let places = Region::new(ia, zone, layout.page_at(ios))?;
        let receive = |io| {
            let command = places.part(io * COMMAND, COMMAND)?;
            Some([command, places.part(layout.page_at(io), PAGE)?])
        };
        let response = |io| places.part(responses_at + io * RESPONSE, RESPONSE);
        Ok(Self {
            receives: (0..ios).filter_map(receive).collect(),
            responses: (0..responses).filter_map(response).collect(),
            places,
            // Memory of an arena is zeroed.
            buffers: Region::new(ia, zone, (buffers + 1) * MAX_TRANSFER)?,
            layout,
            responses_at,
        })
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
