//! User memory objects (umem): memory the device is told of once, page by page, which contexts then name by number.
//!
//! A queue in a umem needs no page list of its own: its context gives the umem's number and a byte offset, and
//! the umem's page size and first byte hold for it. A doorbell record may lie in one as well; its address is then an
//! offset. What lies in a umem holds a reference to it. Queues do not change owner, so offsets are resolved once, when
//! the queue is created.

use crate::buffer::QueueBuffer;
use crate::objects::{Table, TableError};

/// Memory of a user context, or of the driver itself.
#[derive(Clone, Debug)]
pub struct Umem {
    /// All of it, from its first byte.
    pub buffer: QueueBuffer,
    /// The device may write every page.
    pub writable: bool,
}

/// A doorbell record in a umem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// The umem.
    pub umem: u32,
    /// Bytes from its start, as the context gave them.
    pub offset: u64,
}

/// The umems a queue lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The one of its entries; a page list otherwise.
    pub queue: Option<u32>,
    /// The one of its doorbell record; a DMA address otherwise.
    pub record: Option<RecordPlace>,
}

impl Places {
    fn numbers(self) -> impl Iterator<Item = u32> {
        let record = self.record.map(|place| place.umem);
        self.queue.into_iter().chain(record)
    }

    /// Counts the references.
    ///
    /// # Errors
    /// A umem that does not exist.
    pub fn hold(self, umems: &mut Table<Umem>) -> Result<(), TableError> {
        self.numbers().try_for_each(|number| umems.hold(number))
    }

    /// Takes the references back.
    pub fn release(self, umems: &mut Table<Umem>) {
        for number in self.numbers() {
            umems.release(number);
        }
    }
}
