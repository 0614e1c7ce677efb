//! Where a queue pair's work queues lie in memory, and how entries of them are read.
//!
//! One buffer holds both queues: the receive queue first, the send queue behind it (PRM "Work
//! Queues"). The buffer is a list of physical pages (PAS) of one size; an access that crosses a
//! page boundary becomes two. Entries are counted by 16-bit indices that wrap at 2^16 and are
//! masked only here.

use crate::host::{DmaFault, Host};
use hw_mlx::prm::{CmdStatus, Qpc};

/// A send queue's basic block.
pub(super) const WQEBB_BYTES: u32 = 64;
/// `page_offset` counts this part of the page, whatever the page's size: libmlx5's queues lie in pages of
/// any size at offsets that come out in 64ths of it (`mlx5_umem_find_best_quantized_pgoff` in Linux
/// drivers/infiniband/hw/mlx5/mlx5_ib.h).
const LOG_OFFSETS_PER_PAGE: u32 = 6;
/// Low bits of a PAS entry that are not address.
const PAS_FLAGS: u64 = 0xfff;

/// The memory behind both rings.
#[derive(Clone, Debug)]
struct Buffer {
    pages: Vec<u64>,
    log_page_bytes: u32,
    start: u64,
}

impl Buffer {
    fn bytes(&self) -> u64 {
        (self.pages.len() as u64)
            .saturating_mul(1 << self.log_page_bytes)
            .saturating_sub(self.start)
    }

    /// Reads at byte `at`; the rings' bounds were checked against [`Buffer::bytes`] at creation.
    fn read(&self, host: &mut dyn Host, at: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        let page_bytes = 1_u64 << self.log_page_bytes;
        let mut at = self.start + at;
        let mut rest = out;
        while !rest.is_empty() {
            let within = at & (page_bytes - 1);
            let here = usize::try_from(page_bytes - within)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (now, later) = rest.split_at_mut(here);
            let page = usize::try_from(at >> self.log_page_bytes)
                .ok()
                .and_then(|index| self.pages.get(index))
                .ok_or(DmaFault {
                    iova: at,
                    bytes: here,
                    write: false,
                })?;
            host.dma_read(page.wrapping_add(within), now)?;
            at += here as u64;
            rest = later;
        }
        Ok(())
    }
}

/// One of the two rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    offset: u64,
    log_entries: u32,
    log_entry_bytes: u32,
}

impl Ring {
    pub(super) const fn entries(self) -> u32 {
        1 << self.log_entries
    }

    pub(super) const fn entry_bytes(self) -> usize {
        1 << self.log_entry_bytes
    }

    const fn bytes(self) -> u64 {
        1 << (self.log_entries + self.log_entry_bytes)
    }

    /// Byte of the ring at which entry `index` starts.
    fn position(self, index: u16) -> u64 {
        (u64::from(index) << self.log_entry_bytes) & (self.bytes() - 1)
    }
}

/// Both rings and their doorbell record.
#[derive(Clone, Debug)]
pub(super) struct Rings {
    buffer: Buffer,
    /// None with `no_sq`.
    pub(super) send: Option<Ring>,
    /// None when the queue pair has no receive queue of its own.
    pub(super) receive: Option<Ring>,
    doorbell_record: u64,
}

impl Rings {
    /// Lays the rings out; refuses page lists that do not hold them.
    pub(super) fn new(context: &Qpc, pas: Vec<u64>) -> Result<Self, CmdStatus> {
        let own_receive_queue = context.rq_type() == 0;
        let receive = own_receive_queue.then(|| Ring {
            offset: 0,
            log_entries: context.log_rq_size(),
            log_entry_bytes: context.log_rq_stride() + 4,
        });
        let receive_bytes = receive.map_or(0, Ring::bytes);
        let send = (!context.no_sq()).then(|| Ring {
            offset: receive_bytes,
            log_entries: context.log_sq_size(),
            log_entry_bytes: WQEBB_BYTES.trailing_zeros(),
        });
        let log_page_bytes = context.log_page_size() + 12;
        let buffer = Buffer {
            pages: pas.into_iter().map(|page| page & !PAS_FLAGS).collect(),
            log_page_bytes,
            start: u64::from(context.page_offset()) << (log_page_bytes - LOG_OFFSETS_PER_PAGE),
        };
        if buffer.bytes() < receive_bytes + send.map_or(0, Ring::bytes) {
            return Err(CmdStatus::BAD_PARAM);
        }
        Ok(Self {
            buffer,
            send,
            receive,
            doorbell_record: context.dbr_addr(),
        })
    }

    /// Reads the start of entry `index` of `ring`, and on over the ring's end at its beginning.
    pub(super) fn read(
        &self,
        host: &mut dyn Host,
        ring: Ring,
        index: u16,
        out: &mut [u8],
    ) -> Result<(), DmaFault> {
        let at = ring.position(index);
        let until_end = usize::try_from(ring.bytes() - at).unwrap_or(usize::MAX);
        let (first, wrapped) = out.split_at_mut(until_end.min(out.len()));
        self.buffer.read(host, ring.offset + at, first)?;
        self.buffer.read(host, ring.offset, wrapped)
    }

    /// The receive counter of the doorbell record: receive WQEs ever posted, low 16 bits.
    pub(super) fn receive_counter(&self, host: &mut dyn Host) -> Result<u16, DmaFault> {
        self.counter(host, 0)
    }

    /// The send counter of the doorbell record: WQEBBs ever posted, low 16 bits.
    pub(super) fn send_counter(&self, host: &mut dyn Host) -> Result<u16, DmaFault> {
        self.counter(host, 4)
    }

    fn counter(&self, host: &mut dyn Host, at: u64) -> Result<u16, DmaFault> {
        let mut word = [0; 4];
        host.dma_read(self.doorbell_record.wrapping_add(at), &mut word)?;
        let [_, _, high, low] = word;
        Ok(u16::from_be_bytes([high, low]))
    }
}
