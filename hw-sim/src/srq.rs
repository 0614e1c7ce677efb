//! Shared receive queues: receive memory pools (RMP), and XRC SRQs, which work like RMPs but have their own completion
//! queue and XRC domain.
//!
//! WQEs form a linked list in a ring of equal strides. Each WQE starts with the index of its successor. The device
//! begins at index 0 and follows the links. The counter in the doorbell record limits the number of WQEs that it takes.
//! If a link leads out of the ring, or the counter is ahead by more than the length of the ring, the queue goes to
//! error with a catastrophic event.
//!
//! A cyclic queue is a plain ring instead: the device takes WQEs in order and ignores the links. UCX uses this with
//! DevX (`srq_topo`, src/uct/ib/mlx5/rc/rc_mlx5_iface.c).
//!
//! A limit (`lwm`) requests one event when fewer WQEs than the limit are left. The event disarms the limit.

use crate::buffer::QueueBuffer;
use crate::host::{DmaFault, SrqWqe, XrcSource};
use crate::iommu::{Iommu, Who};
use crate::umem::Places;
use mlx_prm::DataSeg;
use zerocopy::FromBytes;

/// lkey of the entry that ends a scatter list. The entry's byte count is 0.
pub const TERMINATE_SCATTER_LIST: u32 = 0x100;
/// Size in bytes of the next segment, which precedes the scatter list.
const NEXT_SEGMENT: usize = 16;
const DATA_SEGMENT: usize = 16;

/// Result of an attempt to take a WQE.
#[derive(Debug)]
pub enum Taken {
    /// A WQE was taken.
    Wqe {
        /// The taken WQE.
        wqe: SrqWqe,
        /// True if fewer WQEs than the limit are left. The caller must send the limit event.
        limit: bool,
    },
    /// No WQE is posted.
    Empty,
    /// The list of WQEs is broken.
    Broken {
        /// True the first time. The caller must then send the catastrophic error event.
        event: bool,
    },
}

/// Fields that only an XRC SRQ has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcPart {
    /// XRC domain.
    pub xrcd: u32,
    /// Number of the completion queue of the SRQ's receives.
    pub cqn: u32,
    /// User index that CQEs of version 1 carry for the SRQ.
    pub user_index: u32,
}

/// A receive memory pool or XRC SRQ.
#[derive(Clone, Debug)]
pub struct Srq {
    /// Number of the queue.
    pub number: u32,
    /// Protection domain.
    pub pd: u32,
    /// log2 of the number of entries.
    pub log_size: u32,
    /// log2 of the size of a WQE in bytes.
    pub log_stride: u32,
    /// Buffer of the ring.
    pub buffer: QueueBuffer,
    /// DMA address of the doorbell record.
    pub doorbell_record: u64,
    /// Armed limit in WQEs; 0 means that no limit is armed.
    pub limit: u32,
    /// True if WQEs follow each other in the ring and links are ignored.
    pub cyclic: bool,
    /// True if the list of WQEs was found broken.
    pub failed: bool,
    /// Additional fields of an XRC SRQ; `None` for an RMP.
    pub xrc: Option<XrcPart>,
    /// User memory that contains the ring and the doorbell record.
    pub places: Places,
    next: u16,
    taken: u16,
    posted: u16,
}

impl Srq {
    /// Returns an empty queue.
    pub fn new(
        number: u32,
        pd: u32,
        log_size: u32,
        log_stride: u32,
        buffer: QueueBuffer,
        doorbell_record: u64,
        limit: u32,
    ) -> Self {
        Self {
            number,
            pd,
            log_size,
            log_stride,
            buffer,
            doorbell_record,
            limit,
            cyclic: false,
            failed: false,
            xrc: None,
            places: Places::default(),
            next: 0,
            taken: 0,
            posted: 0,
        }
    }

    /// Returns the number of WQEs taken since creation, modulo 2^16.
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// Returns the number of WQEs posted modulo 2^16, as last read from the doorbell record.
    pub fn posted(&self) -> u16 {
        self.posted
    }

    /// Reads the doorbell record, and returns the number of WQEs that are posted and not taken.
    ///
    /// # Errors
    /// [`DmaFault`]: the doorbell record cannot be read.
    pub fn available(&mut self, iommu: &mut Iommu) -> Result<u16, DmaFault> {
        let mut word = [0; 4];
        iommu.read(self.doorbell_record, &mut word, Who::Srq(self.number))?;
        self.posted = u16::from_be_bytes([word[2], word[3]]);
        Ok(self.posted.wrapping_sub(self.taken))
    }

    /// Returns the number of WQEs that are posted and not taken. If the doorbell record cannot be read, the posted WQEs
    /// are those of the last successful read.
    pub fn count(&mut self, iommu: &mut Iommu) -> u16 {
        let _ = self.available(iommu);
        self.posted.wrapping_sub(self.taken)
    }

    /// Returns whether fewer WQEs than the armed limit are available. If so, disarms the limit.
    ///
    /// # Errors
    /// [`DmaFault`]: the doorbell record cannot be read.
    pub fn limit_reached(&mut self, iommu: &mut Iommu) -> Result<bool, DmaFault> {
        let available = u32::from(self.available(iommu)?);
        let reached = self.limit != 0 && available < self.limit;
        if reached {
            self.limit = 0;
        }
        Ok(reached)
    }

    /// Takes the next WQE.
    ///
    /// # Errors
    /// [`DmaFault`]: the doorbell record or the WQE cannot be read. The WQE is not taken.
    pub fn take(&mut self, iommu: &mut Iommu) -> Result<Taken, DmaFault> {
        if self.failed {
            return Ok(Taken::Broken { event: false });
        }
        let available = u32::from(self.available(iommu)?);
        if available == 0 {
            return Ok(Taken::Empty);
        }
        let entries = 1_u32 << self.log_size;
        if available > entries || u32::from(self.next) >= entries {
            self.failed = true;
            return Ok(Taken::Broken { event: true });
        }
        let index = self.next;
        let mut bytes = vec![0; 1 << self.log_stride];
        let at = u64::from(index) << self.log_stride;
        let who = Who::Srq(self.number);
        self.buffer
            .read(at, &mut bytes, |iova, out| iommu.read(iova, out, who))?;
        let following = match self.cyclic {
            // The result is below 2^16, which is the maximum number of entries.
            true => u16::try_from((u32::from(index) + 1) % entries).unwrap_or(0),
            false => u16::from_be_bytes([bytes[2], bytes[3]]),
        };
        if u32::from(following) >= entries {
            self.failed = true;
            return Ok(Taken::Broken { event: true });
        }
        self.next = following;
        self.taken = self.taken.wrapping_add(1);
        let wqe = SrqWqe {
            index,
            pd: self.pd,
            scatter: scatter_list(&bytes[NEXT_SEGMENT..]),
            xrc: self.xrc.map(|part| XrcSource {
                number: self.number,
                cqn: part.cqn,
                user_index: part.user_index,
            }),
        };
        let limit = self.limit != 0 && available - 1 < self.limit;
        if limit {
            self.limit = 0;
        }
        Ok(Taken::Wqe { wqe, limit })
    }
}

/// Returns the data segments up to the terminator, or up to the end of the WQE.
fn scatter_list(bytes: &[u8]) -> Vec<DataSeg> {
    bytes
        .chunks_exact(DATA_SEGMENT)
        .map_while(|chunk| DataSeg::read_from_bytes(chunk).ok())
        .take_while(|segment| {
            !(segment.lkey() == TERMINATE_SCATTER_LIST && segment.byte_count() == 0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::SharedMemory;

    const RECORD: u64 = 0x1800;

    fn queue(limit: u32) -> (Srq, Iommu, SharedMemory) {
        let memory = SharedMemory::anonymous(4096).unwrap();
        let mut iommu = Iommu::default();
        iommu.set_bus_master(true);
        iommu.map(0x1000, memory.clone(), 0, 4096).unwrap();
        let buffer = QueueBuffer::new(&[0x1000], 0, 0, 4 * 64).unwrap();
        for entry in 0..4_u8 {
            let at = usize::from(entry) * 64;
            memory.store_u8(at + 3, (entry + 1) % 4);
            memory.store_be32(at + 16, 100 + u32::from(entry));
            memory.store_be32(at + 20, 0x1234);
            memory.store_be32(at + 36, TERMINATE_SCATTER_LIST);
        }
        (Srq::new(7, 1, 2, 6, buffer, RECORD, limit), iommu, memory)
    }

    fn index(taken: Result<Taken, DmaFault>) -> Option<u16> {
        match taken.unwrap() {
            Taken::Wqe { wqe, .. } => Some(wqe.index),
            Taken::Empty | Taken::Broken { .. } => None,
        }
    }

    #[test]
    fn wqes_come_in_list_order_and_only_when_posted() {
        let (mut srq, mut iommu, memory) = queue(0);
        assert_eq!(index(srq.take(&mut iommu)), None);
        memory.store_be32(0x800, 2);
        memory.store_u8(3, 3); // entry 0 is followed by entry 3
        assert_eq!(index(srq.take(&mut iommu)), Some(0));
        assert_eq!(index(srq.take(&mut iommu)), Some(3));
        assert_eq!(index(srq.take(&mut iommu)), None);
    }

    #[test]
    fn the_count_of_an_unreadable_record_is_that_of_the_last_read() {
        let (mut srq, mut iommu, memory) = queue(0);
        memory.store_be32(0x800, 3);
        assert_eq!(index(srq.take(&mut iommu)), Some(0));
        iommu.set_bus_master(false);
        assert_eq!(srq.count(&mut iommu), 2);
    }

    #[test]
    fn a_ring_does_not_look_at_links() {
        let (mut srq, mut iommu, memory) = queue(0);
        srq.cyclic = true;
        memory.store_be32(0x800, 4);
        memory.store_u8(3, 200);
        let order = [(); 4].map(|()| index(srq.take(&mut iommu)));
        assert_eq!(order, [Some(0), Some(1), Some(2), Some(3)]);
        memory.store_be32(0x800, 5);
        assert_eq!(index(srq.take(&mut iommu)), Some(0));
    }

    #[test]
    fn the_scatter_list_ends_at_the_terminator() {
        let (mut srq, mut iommu, memory) = queue(0);
        memory.store_be32(0x800, 1);
        let Taken::Wqe { wqe, .. } = srq.take(&mut iommu).unwrap() else {
            panic!("posted")
        };
        assert_eq!(wqe.scatter.len(), 1);
        assert_eq!(wqe.scatter[0].byte_count(), 100);
    }

    #[test]
    fn a_wqe_goes_on_in_the_next_page_of_the_list() {
        let memory = SharedMemory::anonymous(2 * 4096).unwrap();
        let mut iommu = Iommu::default();
        iommu.set_bus_master(true);
        iommu.map(0x1000, memory.clone(), 0, 4096).unwrap();
        iommu.map(0x3000, memory.clone(), 4096, 4096).unwrap();
        let buffer = QueueBuffer::new(&[0x1000, 0x3000], 0, 1, 32 * 128).unwrap();
        let mut srq = Srq::new(7, 1, 5, 7, buffer, RECORD, 0);
        memory.store_be32(0x800, 2);
        // Entry 0 is followed by entry 31, whose second half is at the beginning of the second page.
        memory.store_u8(64 + 3, 31);
        for segment in 0..4 {
            memory.store_be32(4096 - 48 + 16 * segment, 100);
        }
        memory.store_be32(4096 + 16 + 4, TERMINATE_SCATTER_LIST);
        assert_eq!(index(srq.take(&mut iommu)), Some(0));
        let Taken::Wqe { wqe, .. } = srq.take(&mut iommu).unwrap() else {
            panic!("posted")
        };
        assert_eq!((wqe.index, wqe.scatter.len()), (31, 4));
    }

    #[test]
    fn the_limit_fires_once() {
        let (mut srq, mut iommu, memory) = queue(2);
        memory.store_be32(0x800, 3);
        let limits: Vec<bool> = (0..3)
            .map(|_| {
                matches!(
                    srq.take(&mut iommu).unwrap(),
                    Taken::Wqe { limit: true, .. }
                )
            })
            .collect();
        assert_eq!(limits, [false, true, false]);
    }

    #[test]
    fn a_counter_beyond_the_ring_or_a_link_out_of_it_breaks_the_queue() {
        let (mut srq, mut iommu, memory) = queue(0);
        memory.store_be32(0x800, 5);
        assert!(matches!(
            srq.take(&mut iommu).unwrap(),
            Taken::Broken { event: true }
        ));
        assert!(matches!(
            srq.take(&mut iommu).unwrap(),
            Taken::Broken { event: false }
        ));
        let (mut srq, mut iommu, memory) = queue(0);
        memory.store_be32(0x800, 1);
        memory.store_u8(3, 4);
        assert!(matches!(
            srq.take(&mut iommu).unwrap(),
            Taken::Broken { event: true }
        ));
    }
}
