//! The send queue: what was posted, and fetching it.
//!
//! Three indices count WQEBBs since the queue was reset, modulo 2^16. Between `completed` and
//! `fetched` lie WQEs in progress, between `fetched` and `posted` those nobody looked at yet.
//! `posted` is a copy of the doorbell record's send counter; the doorbell register only says when
//! to look (PRM "Doorbell record"). A record that claims more than the ring holds, or that lags
//! behind the WQE the register names, is an error; one that is further along than the register
//! says is a second post whose doorbell is still on its way. Many may be: a socket holds doorbells of more WQEs than an
//! index counts. So both are counted on from doorbell to doorbell, without an end.

use super::core::Core;
use super::ring::Rings;
use super::wqe::{MAX_SEGMENTS, Malformed, SEGMENT_BYTES, SEGMENTS_PER_BLOCK, SendWqe};
use crate::host::{DmaFault, Host};
use mlx_prm::{CtrlSeg, WqeOpcode};

/// Largest WQE in bytes.
pub(crate) const MAX_WQE_BYTES: usize = MAX_SEGMENTS as usize * SEGMENT_BYTES;

/// Bytes of a WQE of two blocks.
const SHORT_WQE_BYTES: usize = 128;

/// Why there is no WQE where one was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BadWqe {
    /// Its bytes make no sense.
    Malformed(WqeOpcode, Malformed),
    /// Its bytes could not be read.
    Fault(DmaFault),
}

/// Indices into the send ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendQueue {
    completed: u16,
    fetched: u16,
    posted: u16,
    /// All that was ever posted, by the record.
    recorded: u64,
    /// The same by the doorbells that have come, which come in their order.
    rung: u64,
}

impl SendQueue {
    pub(crate) const fn has_more(self) -> bool {
        self.fetched != self.posted
    }

    /// Index of the next WQEBB to fetch.
    pub(crate) const fn next_index(self) -> u16 {
        self.fetched
    }

    /// WQEBBs fetched and posted so far, as QUERY_QP tells them.
    pub(crate) const fn counters(self) -> (u16, u16) {
        (self.fetched, self.posted)
    }

    /// A WQE is done: software may overwrite everything up to its end.
    pub(crate) fn complete(&mut self, index: u16, blocks: u16) {
        self.completed = index.wrapping_add(blocks);
    }

    /// Looks at the doorbell record.
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
        // CAST: what an index counts.
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^16")]
        let step = end.wrapping_sub(self.rung as u16).cast_signed();
        // One that was rung before, once more, is behind.
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

    /// Fetches the next WQE; the caller has seen that there is more.
    pub(super) fn fetch(&mut self, core: &Core, host: &mut dyn Host) -> Result<SendWqe, BadWqe> {
        let (opcode, bytes) = self.head(&core.rings, core.qpn, host)?;
        // Most are short, and setting room for the longest to zero would take as long as all the rest.
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

    /// Steps behind a WQE of so many blocks that [`SendQueue::peek`] has shown.
    pub(crate) fn advance(&mut self, blocks: u16) {
        self.fetched = self.fetched.wrapping_add(blocks);
    }

    /// The bytes of the next WQE, copied into `room`; its index, queue number and size are good. The
    /// caller has seen that there is more.
    pub(crate) fn peek<'a>(
        &self,
        rings: &Rings,
        number: u32,
        host: &mut dyn Host,
        room: &'a mut [u8; MAX_WQE_BYTES],
    ) -> Result<(WqeOpcode, &'a [u8]), BadWqe> {
        let (opcode, bytes) = self.head(rings, number, host)?;
        // PANIC: `head` has compared it with its largest value.
        let bytes = &mut room[..bytes];
        self.read_wqe(rings, host, bytes)?;
        Ok((opcode, bytes))
    }

    /// Opcode and length of the next WQE, [`MAX_WQE_BYTES`] at most; its index, queue number and size are good.
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
        // CAST: six bits.
        Ok((opcode, control.ds() as usize * SEGMENT_BYTES))
    }

    /// The bytes of the next WQE, as many as there is room for.
    fn read_wqe(&self, rings: &Rings, host: &mut dyn Host, room: &mut [u8]) -> Result<(), BadWqe> {
        let Some(ring) = rings.send else {
            return Err(bad("no send queue"));
        };
        rings
            .read(host, ring, self.fetched, room)
            .map_err(BadWqe::Fault)
    }

    /// Steps over the next WQE without executing it, for flushing. Returns its index and opcode. A
    /// WQE whose size makes no sense counts as one block.
    pub(crate) fn skip(&mut self, rings: &Rings, host: &mut dyn Host) -> Option<(u16, WqeOpcode)> {
        let ring = rings.send?;
        if !self.has_more() {
            return None;
        }
        let index = self.fetched;
        let mut first = [0; SEGMENT_BYTES];
        // What cannot be read is flushed as a NOP of one block.
        let _ = rings.read(host, ring, index, &mut first);
        let control = CtrlSeg::from_array(first);
        let posted = u32::from(self.posted.wrapping_sub(index));
        let blocks = control
            .ds()
            .div_ceil(SEGMENTS_PER_BLOCK)
            .clamp(1, posted.min(16));
        // CAST: at most 16.
        self.fetched = index.wrapping_add(u16::try_from(blocks).unwrap_or(1));
        self.completed = self.fetched;
        Some((index, WqeOpcode::from_bits(control.opcode())))
    }
}

const fn bad(why: &'static str) -> BadWqe {
    BadWqe::Malformed(WqeOpcode::NOP, Malformed(why))
}
