//! A completion in words: what to write to a log when a DTO has failed.
//!
//! DAT has twelve statuses. The device says more (its syndrome, and a vendor syndrome that refines it), and what a
//! person wants to know is neither: where to look. [`explain`] puts all three on one line.

use dat_core::{DtoCompletion, DtoStatus};

/// One line about a completion: which queue, DAT's status with its number, the device's syndrome and vendor
/// syndrome in hex, and what to do about it.
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
    // CAST: the discriminant is the number.
    let (name, number) = (status.name(), status as u32);
    if status == DtoStatus::Success {
        return format!(
            "{queue} done: {name} ({number}), {} bytes",
            completion.transferred_length
        );
    }
    let (syndrome, vendor) = completion.syndrome();
    let advice = match (status, syndrome) {
        // Flushed by us, because the device is dead and says nothing.
        (DtoStatus::ErrFlushed, 0) => {
            hw_mlx::completion::explain(hw_mlx::completion::syndrome::FLUSHED, 0)
        }
        _ => hw_mlx::completion::explain(syndrome, vendor),
    };
    format!(
        "{queue} failed: {name} ({number}), syndrome {syndrome:#04x}, vendor syndrome {vendor:#04x}: {advice}"
    )
}
