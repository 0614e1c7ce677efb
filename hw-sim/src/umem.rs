//! User memory objects (umem): memory that is registered once with the device, page by page. Object contexts then refer
//! to it by number.
//!
//! A queue in a umem needs no page list: the queue's context gives the umem's number and a byte offset. The umem's page
//! size and the offset of its first byte apply. A doorbell record may be in a umem as well; its address in the context
//! is then an offset. A queue or record holds a reference to its umem, and a referenced umem does not change. So
//! offsets are resolved once, when the queue is created.

use crate::buffer::QueueBuffer;
use crate::objects::{Table, TableError};

/// A umem of a user context or of the driver itself.
#[derive(Clone, Debug)]
pub struct Umem {
    /// Memory of the umem, from its first byte.
    pub buffer: QueueBuffer,
    /// True if the device may write to every page.
    pub writable: bool,
}

/// Location of a doorbell record in a umem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Number of the umem.
    pub umem: u32,
    /// Offset in bytes, as the queue's context gave it.
    pub offset: u64,
}

/// The umems that hold a queue and its doorbell record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Number of the umem that holds the queue's entries. `None` if the queue has a page list.
    pub queue: Option<u32>,
    /// Location of the doorbell record. `None` if the record has a DMA address.
    pub record: Option<RecordPlace>,
}

impl Places {
    fn numbers(self) -> impl Iterator<Item = u32> {
        let record = self.record.map(|place| place.umem);
        self.queue.into_iter().chain(record)
    }

    /// Adds the references to the umems.
    ///
    /// # Errors
    /// [`TableError`] if a umem does not exist.
    pub fn hold(self, umems: &mut Table<Umem>) -> Result<(), TableError> {
        self.numbers().try_for_each(|number| umems.hold(number))
    }

    /// Removes the references to the umems.
    pub fn release(self, umems: &mut Table<Umem>) {
        for number in self.numbers() {
            umems.release(number);
        }
    }
}
