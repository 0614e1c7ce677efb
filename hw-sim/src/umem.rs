//! User memory objects (umem): memory registered once with the device, page by page, which contexts then name by
//! number.
//!
//! A queue in a umem needs no page list of its own: its context gives the umem's number and a byte offset, and the
//! umem's page size and first byte apply. A doorbell record may lie in one as well; its address is then an offset. A
//! queue or record holds a reference to its umem. Queues do not change owner, so offsets are resolved once, when the
//! queue is created.

use crate::buffer::QueueBuffer;
use crate::objects::{Table, TableError};

/// Memory of a user context, or of the driver itself.
#[derive(Clone, Debug)]
pub struct Umem {
    /// All its memory, from its first byte.
    pub buffer: QueueBuffer,
    /// True if the device may write every page.
    pub writable: bool,
}

/// A doorbell record in a umem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Number of the umem.
    pub umem: u32,
    /// Offset in bytes, as the context gave it.
    pub offset: u64,
}

/// The umems a queue lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Umem of its entries; `None` for a page list.
    pub queue: Option<u32>,
    /// Umem of its doorbell record; `None` for a DMA address.
    pub record: Option<RecordPlace>,
}

impl Places {
    fn numbers(self) -> impl Iterator<Item = u32> {
        let record = self.record.map(|place| place.umem);
        self.queue.into_iter().chain(record)
    }

    /// Adds the references.
    ///
    /// # Errors
    /// A umem does not exist.
    pub fn hold(self, umems: &mut Table<Umem>) -> Result<(), TableError> {
        self.numbers().try_for_each(|number| umems.hold(number))
    }

    /// Removes the references.
    pub fn release(self, umems: &mut Table<Umem>) {
        for number in self.numbers() {
            umems.release(number);
        }
    }
}
