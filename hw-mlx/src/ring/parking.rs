//! Memory of queues of a function that is handed over to another process.

use driver::{DmaArena, Iova};

use super::{Lent, MIN_LOG_PAGE, RECORD_BYTES, RingMemory};
use crate::error::ResumeError;

/// Name of the table in errors.
const TABLE: &str = "a queue";
/// log2 of the largest page of a ring: larger than any ring.
const MAX_LOG_PAGE: u32 = 31;

/// Memory of a ring and its doorbell record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RingSnapshot {
    /// I/O address of the ring.
    pub iova: u64,
    /// Length in bytes, in whole pages.
    pub bytes: u64,
    /// log2 of the page size.
    pub log_page: u32,
    /// I/O address of the doorbell record, which has 64 bytes, inside the ring's memory or apart from it.
    pub record: u64,
}

impl RingMemory {
    /// Returns whether a page list that the device has returned is that of the ring. Firmware may leave the list out,
    /// which is then all zeros.
    pub(crate) fn is_at(&self, pages: &[u8]) -> bool {
        pages == self.pages() || pages.iter().all(|byte| *byte == 0)
    }

    /// Describes the memory.
    pub(crate) fn snapshot(&self) -> RingSnapshot {
        RingSnapshot {
            iova: self.ring.iova().0,
            bytes: self.ring.len() as u64,
            log_page: self.log_page,
            record: self.record_address(),
        }
    }

    /// Claims the memory, with its contents. The device uses it.
    ///
    /// # Errors
    /// The numbers are impossible, or the memory is not there. Memory that was claimed before stays out of use.
    pub(crate) fn resume(
        arena: &DmaArena,
        snapshot: &RingSnapshot,
    ) -> Result<Lent<Self>, ResumeError> {
        let RingSnapshot {
            iova,
            bytes,
            log_page,
            record,
        } = *snapshot;
        let refused = || ResumeError::snapshot(TABLE, format!("{snapshot:x?}"));
        let of_memory = ResumeError::of_memory(TABLE);
        let len = usize::try_from(bytes).map_err(|_| refused())?;
        let is_possible = (MIN_LOG_PAGE..=MAX_LOG_PAGE).contains(&log_page)
            && (iova | bytes).is_multiple_of(1 << log_page)
            && record.is_multiple_of(RECORD_BYTES as u64);
        if !is_possible {
            return Err(refused());
        }
        let ring = arena.claim(Iova(iova), len).map_err(&of_memory)?;
        let inside = record.checked_sub(iova).filter(|offset| *offset < bytes);
        let record = match inside {
            // Both numbers are multiples of 64, so the record's end is inside too.
            Some(offset) => {
                let offset = usize::try_from(offset).map_err(|_| refused())?;
                ring.part(offset, RECORD_BYTES)
            }
            None => match arena.claim(Iova(record), RECORD_BYTES) {
                Ok(record) => record,
                Err(error) => {
                    arena.downgrade().keep(ring);
                    return Err(of_memory(error));
                }
            },
        };
        let memory = Self {
            ring,
            log_page,
            record,
        };
        Ok(memory.lend())
    }
}
