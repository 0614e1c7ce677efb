//! Location of work queues in memory, and access to their entries.
//!
//! One buffer holds both queues of a queue pair: the receive queue first, the send queue behind it (PRM "Work Queues").
//! The buffer is a list of physical pages (PAS) of one size; an access that crosses a page boundary is split there.
//! Entries are counted by 16-bit indices that wrap at 2^16. Only this module masks an index to the size of the ring.
//!
//! Each Ethernet send queue or receive queue has a buffer of its own.

use crate::buffer::QueueBuffer;
use crate::host::{DmaFault, Host};
use mlx_prm::{CmdStatus, Qpc, Wq};

/// Size of a send queue's basic block in bytes.
pub(super) const WQEBB_BYTES: u32 = 64;
/// log2 of 16 bytes, which is the stride for which `log_rq_stride` is 0.
const LOG_STRIDE_UNIT: u32 = 4;
/// Low bits of a PAS entry that are not part of the address.
const PAS_FLAGS: u64 = 0xfff;

/// Location of a queue pair's work queues, which the function determines from the context.
#[derive(Clone, Debug)]
pub struct QueueMemory {
    /// Buffer of both rings.
    pub buffer: QueueBuffer,
    /// DMA address of the doorbell record.
    pub doorbell_record: u64,
}

impl QueueMemory {
    /// Returns the memory for a context that describes its buffer by a page list and its doorbell record by an address.
    ///
    /// # Errors
    /// BAD_PARAM for a list that is too short for the queues.
    pub fn of_pages(context: &Qpc, pages: &[u64]) -> Result<Self, CmdStatus> {
        let pages: Vec<u64> = pages.iter().map(|page| page & !PAS_FLAGS).collect();
        let (log_page, offset) = (context.log_page_size(), context.page_offset());
        let buffer = QueueBuffer::new(&pages, log_page, offset, queue_bytes(context));
        Ok(Self {
            buffer: buffer.map_err(|_| CmdStatus::BAD_PARAM)?,
            doorbell_record: context.dbr_addr(),
        })
    }

    /// Reads `out.len()` bytes at offset `at`. The creation of the rings has checked their bounds against the buffer.
    fn read(&self, host: &mut dyn Host, at: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        if out.is_empty() {
            return Ok(());
        }
        self.buffer
            .read(at, out, |iova, out| host.dma_read(iova, out))
    }
}

/// Returns the total number of bytes of the receive queue and the send queue that a context describes.
pub(crate) fn queue_bytes(context: &Qpc) -> u64 {
    let receive = receive_ring(context).map_or(0, Ring::bytes);
    receive + send_ring(context).map_or(0, Ring::bytes)
}

fn receive_ring(context: &Qpc) -> Option<Ring> {
    (context.rq_type() == 0).then(|| Ring {
        offset: 0,
        log_entries: context.log_rq_size(),
        log_entry_bytes: context.log_rq_stride() + LOG_STRIDE_UNIT,
    })
}

/// Returns the send ring, which follows the receive ring. Returns `None` with `no_sq`.
fn send_ring(context: &Qpc) -> Option<Ring> {
    (!context.no_sq()).then(|| Ring {
        offset: receive_ring(context).map_or(0, Ring::bytes),
        log_entries: context.log_sq_size(),
        log_entry_bytes: WQEBB_BYTES.trailing_zeros(),
    })
}

/// Location of one ring in the buffer, and its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    offset: u64,
    log_entries: u32,
    log_entry_bytes: u32,
}

impl Ring {
    pub(crate) const fn entries(self) -> u32 {
        1 << self.log_entries
    }

    pub(crate) const fn entry_bytes(self) -> usize {
        1 << self.log_entry_bytes
    }

    fn of_work_queue(wq: &Wq) -> Self {
        Self {
            offset: 0,
            log_entries: wq.log_wq_sz(),
            log_entry_bytes: wq.log_wq_stride(),
        }
    }

    const fn bytes(self) -> u64 {
        1 << (self.log_entries + self.log_entry_bytes)
    }

    /// Returns the byte offset in the ring at which entry `index` starts.
    fn position(self, index: u16) -> u64 {
        (u64::from(index) << self.log_entry_bytes) & (self.bytes() - 1)
    }
}

/// Both rings of a queue pair, and their doorbell record.
#[derive(Clone, Debug)]
pub(crate) struct Rings {
    memory: QueueMemory,
    /// Send ring; `None` with `no_sq`.
    pub(crate) send: Option<Ring>,
    /// Receive ring; `None` if the queue pair has no receive queue of its own.
    pub(crate) receive: Option<Ring>,
}

impl Rings {
    /// Returns the rings that a context describes. Refuses memory that is too short for them.
    pub(super) fn new(context: &Qpc, memory: QueueMemory) -> Result<Self, CmdStatus> {
        if memory.buffer.bytes() < queue_bytes(context) {
            return Err(CmdStatus::BAD_PARAM);
        }
        Ok(Self {
            memory,
            send: send_ring(context),
            receive: receive_ring(context),
        })
    }

    /// Returns the ring of a stand-alone send queue. The caller has checked the length of the memory.
    pub(crate) fn of_send_queue(wq: &Wq, memory: QueueMemory) -> Self {
        Self {
            memory,
            send: Some(Ring::of_work_queue(wq)),
            receive: None,
        }
    }

    /// Returns the ring of a stand-alone receive queue. The caller has checked the length of the memory.
    pub(crate) fn of_receive_queue(wq: &Wq, memory: QueueMemory) -> Self {
        Self {
            memory,
            send: None,
            receive: Some(Ring::of_work_queue(wq)),
        }
    }

    /// Reads from the start of entry `index` of `ring`, wrapping at the ring's end.
    pub(crate) fn read(
        &self,
        host: &mut dyn Host,
        ring: Ring,
        index: u16,
        out: &mut [u8],
    ) -> Result<(), DmaFault> {
        let at = ring.position(index);
        if out.len() as u64 <= ring.bytes() - at {
            return self.memory.read(host, ring.offset + at, out);
        }
        let until_end = usize::try_from(ring.bytes() - at).unwrap_or(usize::MAX);
        let (first, wrapped) = out.split_at_mut(until_end.min(out.len()));
        self.memory.read(host, ring.offset + at, first)?;
        self.memory.read(host, ring.offset, wrapped)
    }

    /// Reads the receive counter of the doorbell record: the number of receive WQEs ever posted, modulo 2^16.
    pub(crate) fn receive_counter(&self, host: &mut dyn Host) -> Result<u16, DmaFault> {
        self.counter(host, 0)
    }

    /// Returns the value that a CQE carries for the receive WQE `counter`. An index of a shared receive queue is
    /// unchanged.
    pub(crate) fn cqe_counter(&self, host: &dyn Host, counter: u16) -> u16 {
        match self.receive {
            Some(ring) if host.habits().cuts_receive_counter => {
                // CAST: a ring has at most 2^15 entries.
                counter & u16::try_from(ring.entries() - 1).unwrap_or(u16::MAX)
            }
            Some(_) | None => counter,
        }
    }

    /// Reads the send counter of the doorbell record: the number of WQEBBs ever posted, modulo 2^16.
    pub(crate) fn send_counter(&self, host: &mut dyn Host) -> Result<u16, DmaFault> {
        self.counter(host, 4)
    }

    fn counter(&self, host: &mut dyn Host, at: u64) -> Result<u16, DmaFault> {
        let mut word = [0; 4];
        host.dma_read(self.memory.doorbell_record.wrapping_add(at), &mut word)?;
        let [_, _, high, low] = word;
        Ok(u16::from_be_bytes([high, low]))
    }
}
