//! Interrupts: eventfds that the kernel signals.
//!
//! All MSI-X vectors are set at once, because kernels before 6.5 cannot add one later (`NORESIZE`). The error and
//! request indices are not interrupts of the device: the kernel signals the first when the bus reports an
//! uncorrectable error, and the second when the device is being unbound or unplugged.

use core::mem::offset_of;
use std::os::fd::AsRawFd;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, vfio_irq_info,
    vfio_irq_set,
};

use super::sys::Message;
use crate::interrupt::Interrupt;

/// Makes a query for `VFIO_DEVICE_GET_IRQ_INFO`.
pub(super) fn info_message(index: u32) -> Message {
    let mut message = Message::new(size_of::<vfio_irq_info>());
    message.put(offset_of!(vfio_irq_info, index), index);
    message
}

/// Returns the flags and the count of an answer to `VFIO_DEVICE_GET_IRQ_INFO`.
pub(super) fn info_answer(message: &Message) -> (u32, u32) {
    (
        message.field(offset_of!(vfio_irq_info, flags)),
        message.field(offset_of!(vfio_irq_info, count)),
    )
}

/// Makes a request that sets eventfds for the first vectors of an index. An empty list disables the index.
pub(super) fn set_message(index: u32, vectors: &[Interrupt]) -> Message {
    // The fixed part has 20 bytes, without padding to 8: the data follows directly.
    let data_at = offset_of!(vfio_irq_set, data);
    let mut message = Message::new(data_at + 4 * vectors.len());
    let data = if vectors.is_empty() {
        VFIO_IRQ_SET_DATA_NONE
    } else {
        VFIO_IRQ_SET_DATA_EVENTFD
    };
    message.put(
        offset_of!(vfio_irq_set, flags),
        data | VFIO_IRQ_SET_ACTION_TRIGGER,
    );
    message.put(offset_of!(vfio_irq_set, index), index);
    // PANIC: a device has at most 2048 vectors.
    let count = u32::try_from(vectors.len()).expect("a handful of vectors");
    message.put(offset_of!(vfio_irq_set, count), count);
    for (number, vector) in vectors.iter().enumerate() {
        message.put(data_at + 4 * number, vector.as_fd().as_raw_fd());
    }
    message
}
