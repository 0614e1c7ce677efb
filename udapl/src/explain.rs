//! Describes a completion in words, for a log line about a failed DTO.
//!
//! DAT has twelve statuses. The device reports more: a syndrome, and a vendor syndrome that refines it. A person also
//! needs advice where to search for the cause. [`explain`] puts all three on one line.

use dat_core::{DtoCompletion, DtoStatus};

/// Returns one line about a completion. For a failure: the queue, DAT's status with its number, the device's syndrome
/// and vendor syndrome in hex, and advice. For a success: the queue, the status and the number of bytes.
///
/// ```text
/// request failed: DAT_DTO_ERR_RECEIVER_NOT_READY (9), syndrome 0x16, vendor syndrome 0x00: the peer had no
/// receive buffer posted within the retries allowed: post more receives there, or slow down here
/// ```
#[must_use]
pub fn explain(completion: &DtoCompletion) -> String {
    let queue = if completion.request {
        "request"
    } else {
        "receive"
    };
    let status = completion.status;
    // CAST: the discriminant is DAT's number.
    let (name, number) = (status.name(), status as u32);
    if status == DtoStatus::Success {
        return format!(
            "{queue} done: {name} ({number}), {} bytes",
            completion.transferred_length
        );
    }
    let (syndrome, vendor) = completion.syndrome();
    let advice = match (status, syndrome) {
        // The library flushed the DTO itself, because the device is dead or has discarded the DTO in RESET. There is no
        // syndrome from the device.
        (DtoStatus::ErrFlushed, 0) => {
            hw_mlx::completion::explain(hw_mlx::completion::syndrome::FLUSHED, 0)
        }
        _ => hw_mlx::completion::explain(syndrome, vendor),
    };
    format!(
        "{queue} failed: {name} ({number}), syndrome {syndrome:#04x}, vendor syndrome {vendor:#04x}: {advice}"
    )
}
