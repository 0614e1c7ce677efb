//! The send queue: its indices, and the fetch of WQEs.
//!
//! Three indices count WQEBBs since the queue was reset, modulo 2^16. WQEs between `completed` and `fetched` are in
//! progress; WQEs between `fetched` and `posted` are not read yet. `posted` is a copy of the doorbell record's send
//! counter. The doorbell register only triggers the read of the record (PRM "Doorbell record"). It is an error if the
//! record counts more than the ring holds, or if it lags behind the WQE in the register. If the record is ahead of the
//! register, software has posted again and the doorbell of that post has not arrived yet. Many doorbells may be
//! outstanding: a socket can buffer doorbells of more WQEs than a 16-bit index counts. So both counts are extended to
//! 64 bits from doorbell to doorbell.

use super::core::Core;
use super::ring::Rings;
use super::wqe::{MAX_SEGMENTS, Malformed, SEGMENT_BYTES, SEGMENTS_PER_BLOCK, SendWqe};
use crate::host::{DmaFault, Host};
use mlx_prm::{CtrlSeg, WqeOpcode};

/// Maximum size of a WQE in bytes.
pub(crate) const MAX_WQE_BYTES: usize = MAX_SEGMENTS as usize * SEGMENT_BYTES;

/// Size in bytes of a WQE of two blocks.
const SHORT_WQE_BYTES: usize = 128;

/// Reason for which a posted WQE could not be fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadWqe {
    /// The WQE is malformed.
    Malformed(WqeOpcode, Malformed),
    /// The WQE could not be read.
    Fault(DmaFault),
}

/// Indices into the send ring, in WQEBBs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendQueue {
    completed: u16,
    fetched: u16,
    posted: u16,
    /// Number of WQEBBs ever posted, according to the doorbell record.
    recorded: u64,
    /// Number of WQEBBs ever posted, according to the doorbells that have arrived. Doorbells arrive in order.
    rung: u64,
}

impl SendQueue {
    pub(crate) const fn has_more(self) -> bool {
        self.fetched != self.posted
    }

    /// Returns the index of the next WQEBB to fetch.
    pub(crate) const fn next_index(self) -> u16 {
        self.fetched
    }

    /// Returns the numbers of WQEBBs fetched and posted so far, for QUERY_QP.
    pub(crate) const fn counters(self) -> (u16, u16) {
        (self.fetched, self.posted)
    }

    /// Marks a WQE as completed. Software may then overwrite everything up to the end of the WQE.
    pub(crate) fn complete(&mut self, index: u16, blocks: u16) {
        self.completed = index.wrapping_add(blocks);
    }

    /// Reads the doorbell record.
    pub(crate) fn read_record(&mut self, rings: &Rings, host: &mut dyn Host) -> Result<(), BadWqe> {
        let Some(ring) = rings.send else {
            return Ok(());
        };
        let posted = rings.send_counter(host).map_err(BadWqe::Fault)?;
        let outstanding = posted.wrapping_sub(self.completed);
        let forward = posted.wrapping_sub(self.posted);
        if u32::from(outstanding) > ring.entries() || u32::from(forward) > ring.entries() {
            return Err(bad("doorbell record beyond the ring"));
        }
        self.posted = posted;
        self.recorded += u64::from(forward);
        Ok(())
    }

    /// Compares the doorbell register with the record that was just read.
    pub(crate) fn check_doorbell(
        &mut self,
        value: [u8; 8],
        rings: &Rings,
        host: &mut dyn Host,
    ) -> Result<(), BadWqe> {
        let Some(ring) = rings.send else {
            return Err(bad("doorbell of a queue pair without send queue"));
        };
        let [_, high, low, _, _, _, _, size] = value;
        let index = u16::from_be_bytes([high, low]);
        let blocks = u16::from(size & 0x3f).div_ceil(4);
        let end = index.wrapping_add(blocks);
        // CAST: only the low 16 bits are needed, as in an index.
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^16")]
        let step = end.wrapping_sub(self.rung as u16).cast_signed();
        // A repeated doorbell has a step of zero or less.
        self.rung += u64::try_from(step).unwrap_or(0);
        if self.rung > self.recorded {
            return Err(bad("doorbell record behind the doorbell"));
        }
        if self.rung == self.recorded && end == self.posted && self.has_more() {
            let mut first = [0; 8];
            rings
                .read(host, ring, index, &mut first)
                .map_err(BadWqe::Fault)?;
            if first != value {
                return Err(bad("doorbell that is not the last WQE's first eight bytes"));
            }
        }
        Ok(())
    }

    /// Fetches the next WQE. The caller has checked that there is one.
    pub(super) fn fetch(&mut self, core: &Core, host: &mut dyn Host) -> Result<SendWqe, BadWqe> {
        let (opcode, bytes) = self.head(&core.rings, core.qpn, host)?;
        // Most WQEs are short. Zeroing a buffer for the longest WQE would take as long as the rest of the fetch.
        if bytes <= SHORT_WQE_BYTES {
            self.fetch_into(&mut [0; SHORT_WQE_BYTES][..bytes], opcode, core, host)
        } else {
            self.fetch_into(&mut [0; MAX_WQE_BYTES][..bytes], opcode, core, host)
        }
    }

    fn fetch_into(
        &mut self,
        room: &mut [u8],
        opcode: WqeOpcode,
        core: &Core,
        host: &mut dyn Host,
    ) -> Result<SendWqe, BadWqe> {
        self.read_wqe(&core.rings, host, room)?;
        let wqe =
            SendWqe::parse(core.service, room).map_err(|why| BadWqe::Malformed(opcode, why))?;
        self.advance(wqe.blocks);
        Ok(wqe)
    }

    /// Advances past a WQE of `blocks` blocks that [`SendQueue::peek`] has returned.
    pub(crate) fn advance(&mut self, blocks: u16) {
        self.fetched = self.fetched.wrapping_add(blocks);
    }

    /// Copies the next WQE into `room`, after checking its index, queue number and size. The caller has checked that
    /// there is a WQE.
    pub(crate) fn peek<'a>(
        &self,
        rings: &Rings,
        number: u32,
        host: &mut dyn Host,
        room: &'a mut [u8; MAX_WQE_BYTES],
    ) -> Result<(WqeOpcode, &'a [u8]), BadWqe> {
        let (opcode, bytes) = self.head(rings, number, host)?;
        // PANIC: `head` returns at most `MAX_WQE_BYTES`.
        let bytes = &mut room[..bytes];
        self.read_wqe(rings, host, bytes)?;
        Ok((opcode, bytes))
    }

    /// Returns opcode and length in bytes of the next WQE, after checking its index, queue number and size. The length
    /// is at most [`MAX_WQE_BYTES`].
    fn head(
        &self,
        rings: &Rings,
        number: u32,
        host: &mut dyn Host,
    ) -> Result<(WqeOpcode, usize), BadWqe> {
        let Some(ring) = rings.send else {
            return Err(bad("no send queue"));
        };
        let mut first = [0; SEGMENT_BYTES];
        rings
            .read(host, ring, self.fetched, &mut first)
            .map_err(BadWqe::Fault)?;
        let control = CtrlSeg::from_array(first);
        let opcode = WqeOpcode::from_bits(control.opcode());
        let malformed = |why| Err(BadWqe::Malformed(opcode, Malformed(why)));
        if control.wqe_index() != u32::from(self.fetched) {
            return malformed("WQE index that is not its place in the ring");
        }
        if control.qp_or_sq() != number {
            return malformed("number of another queue");
        }
        if control.ds() == 0 || control.ds() > MAX_SEGMENTS {
            return malformed("WQE size");
        }
        let blocks = control.ds().div_ceil(SEGMENTS_PER_BLOCK);
        if blocks > u32::from(self.posted.wrapping_sub(self.fetched)) {
            return malformed("WQE beyond what was posted");
        }
        // CAST: `ds` has six bits.
        Ok((opcode, control.ds() as usize * SEGMENT_BYTES))
    }

    /// Reads as many bytes of the next WQE as `room` holds.
    fn read_wqe(&self, rings: &Rings, host: &mut dyn Host, room: &mut [u8]) -> Result<(), BadWqe> {
        let Some(ring) = rings.send else {
            return Err(bad("no send queue"));
        };
        rings
            .read(host, ring, self.fetched, room)
            .map_err(BadWqe::Fault)
    }

    /// Skips the next WQE without executing it, so that it can be flushed. Returns its index and opcode. A WQE of size
    /// 0 counts as one block, and a WQE longer than the rest of the queue counts as the rest.
    pub(crate) fn skip(&mut self, rings: &Rings, host: &mut dyn Host) -> Option<(u16, WqeOpcode)> {
        self.skip_before(self.posted, rings, host)
    }

    /// Skips the next WQE like [`SendQueue::skip`] if it lies before the index `end`, which is at most `posted`.
    pub(crate) fn skip_before(
        &mut self,
        end: u16,
        rings: &Rings,
        host: &mut dyn Host,
    ) -> Option<(u16, WqeOpcode)> {
        let ring = rings.send?;
        if self.fetched == end {
            return None;
        }
        let index = self.fetched;
        let mut first = [0; SEGMENT_BYTES];
        // An unreadable WQE is flushed as a NOP of one block.
        let _ = rings.read(host, ring, index, &mut first);
        let control = CtrlSeg::from_array(first);
        let left = u32::from(end.wrapping_sub(index));
        let blocks = control
            .ds()
            .div_ceil(SEGMENTS_PER_BLOCK)
            .clamp(1, left.min(16));
        // CAST: `blocks` is at most 16.
        self.fetched = index.wrapping_add(u16::try_from(blocks).unwrap_or(1));
        self.completed = self.fetched;
        Some((index, WqeOpcode::from_bits(control.opcode())))
    }
}

const fn bad(why: &'static str) -> BadWqe {
    BadWqe::Malformed(WqeOpcode::NOP, Malformed(why))
}
