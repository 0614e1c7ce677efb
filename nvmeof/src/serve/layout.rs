//! Where in a worker's memory things lie.
//!
//! ```text
//!   first region     capsules (64 bytes each) | responses (16 bytes each) | pages (4 KiB each)
//!                    a place of each for every I/O, and responses to event requests behind those of I/Os
//!   second region    buffers (128 KiB each) | zeros (128 KiB), which nothing writes: what a null disk has
//! ```
//!
//! A capsule's command goes to one place and the data behind it to another, a page: so data is where disks can take it.

use udapl::{DmaBuffer, DmaMemory, Ia, LmrSlice, MemPrivFlags, PzHandle};

use super::worker::WorkerError;
use crate::model::{IN_CAPSULE, MAX_TRANSFER};
use crate::nvme::Sqe;
pub(super) use crate::nvme::command::BYTES as COMMAND;
pub(super) use crate::nvme::completion::BYTES as RESPONSE;

/// Bytes of a page, and what disks want memory to be aligned to.
pub(super) const PAGE: u32 = IN_CAPSULE;

/// Memory that the adapter and the disks reach.
pub(super) struct Region {
    pub buffer: DmaBuffer,
    slice: LmrSlice,
}

impl Region {
    fn new(ia: &mut Ia, zone: PzHandle, bytes: u32) -> Result<Self, WorkerError> {
        // CAST: 32 bits fit.
        let buffer = ia.provider().arena().alloc(bytes as usize, PAGE as usize)?;
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

    /// Bytes of it. What leaves it is nothing, which posts refuse.
    #[inline]
    pub(super) fn part(&self, at: u32, bytes: u32) -> Option<LmrSlice> {
        self.slice.part(at.into(), bytes.into())
    }
}

/// A worker's memory.
pub(super) struct Memory {
    /// Capsules, responses and pages.
    pub places: Region,
    /// Buffers.
    pub buffers: Region,
    ios: u32,
    responses: u32,
    /// Where zeros begin in the region of the buffers.
    zeros_at: u32,
}

/// Where data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// In the page of this I/O.
    Page(u32),
    /// In this buffer.
    Buffer(u32),
    /// Zeros, which are read only.
    Zeros,
}

impl Memory {
    /// For so many I/Os; responses are those of the I/Os, and more that have no command.
    pub(super) fn new(
        ia: &mut Ia,
        zone: PzHandle,
        (ios, responses): (u32, u32),
        buffers: u32,
    ) -> Result<Self, WorkerError> {
        Ok(Self {
            places: Region::new(ia, zone, Self::pages_at(ios, responses) + ios * PAGE)?,
            // An arena gives zeroed memory.
            buffers: Region::new(ia, zone, (buffers + 1) * MAX_TRANSFER)?,
            ios,
            responses,
            zeros_at: buffers * MAX_TRANSFER,
        })
    }

    /// Where pages begin: behind capsules and responses, on a page.
    const fn pages_at(ios: u32, responses: u32) -> u32 {
        (ios * COMMAND + responses * RESPONSE).next_multiple_of(PAGE)
    }

    pub(super) const fn command_at(io: u32) -> u32 {
        io * COMMAND
    }

    pub(super) const fn response_at(&self, io: u32) -> u32 {
        self.ios * COMMAND + io * RESPONSE
    }

    const fn page_at(&self, io: u32) -> u32 {
        Self::pages_at(self.ios, self.responses) + io * PAGE
    }

    /// The command that was received.
    #[inline]
    pub(super) fn command(&self, io: u32) -> Sqe {
        // CAST: 32 bits fit.
        self.places.buffer.read_obj(Self::command_at(io) as usize)
    }

    /// The memory of a spot, and where in it.
    #[inline]
    pub(super) const fn at(&self, spot: Spot) -> (&Region, u32) {
        match spot {
            Spot::Page(io) => (&self.places, self.page_at(io)),
            Spot::Buffer(buffer) => (&self.buffers, buffer * MAX_TRANSFER),
            Spot::Zeros => (&self.buffers, self.zeros_at),
        }
    }

    /// Bytes of a spot, for a transfer over the network.
    #[inline]
    pub(super) fn slice(&self, spot: Spot, offset: u32, bytes: u32) -> Option<LmrSlice> {
        let (region, at) = self.at(spot);
        region.part(at + offset, bytes)
    }

    /// The response of an I/O, for a Send.
    #[inline]
    // PANIC: the region was made with room for all responses that there are.
    pub(super) fn response(&self, io: u32) -> LmrSlice {
        let response = self.places.part(self.response_at(io), RESPONSE);
        response.expect("a place for each response")
    }

    /// What a receive of an I/O is posted with: its command, and its page behind it.
    pub(super) fn receive(&self, io: u32) -> Option<[LmrSlice; 2]> {
        Some([
            self.places.part(Self::command_at(io), COMMAND)?,
            self.places.part(self.page_at(io), PAGE)?,
        ])
    }
}
