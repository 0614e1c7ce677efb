//! The configuration of a worker.

use super::admission::most_ios;
use super::error::WorkerError;
use crate::io::PAGE;
#[cfg(doc)]
use crate::model::Model;
use crate::model::{LARGEST_TRANSFER_SHIFT, MAX_TRANSFER_SHIFT};

/// Configuration of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Number of the model's port that the worker serves.
    pub port: u16,
    /// Service (TCP port number) at which the worker listens.
    pub service: u16,
    /// Number of entries that the queues of all hosts together may have at this worker. A queue that does not fit is
    /// refused (`src/serve/admission.rs`).
    pub ios: u32,
    /// Number of buffers, for data that is longer than a page.
    pub buffers: u32,
    /// MDTS: the length of a buffer, and the maximum length of the data of an I/O, is 4 KiB shifted left by this
    /// number, 5 to 8. The model's port has the same number ([`Model::set_transfer_shift`]).
    pub transfer_shift: u8,
    /// Number of iterations without an event after which the worker sleeps.
    pub spin: u32,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            port: 1,
            service: 4420,
            ios: 2048,
            buffers: 32,
            transfer_shift: MAX_TRANSFER_SHIFT,
            spin: 64,
        }
    }
}

impl WorkerConfig {
    /// Checks the numbers, for an adapter with SRQs of at most `receives` receives.
    pub(super) fn check(&self, receives: u32) -> Result<(), WorkerError> {
        /// Upper limit of `ios`, so that offsets in the region of capsules, responses and pages fit into 32 bits.
        const IOS: u32 = 1 << 16;
        /// Upper limit of the length of all buffers, so that offsets in their region fit into 32 bits.
        const BUFFERS_BYTES: u32 = 1 << 31;
        let shifts = (MAX_TRANSFER_SHIFT.into(), LARGEST_TRANSFER_SHIFT.into());
        let shift = u32::from(self.transfer_shift);
        let buffers = (BUFFERS_BYTES / PAGE) >> shift.min(shifts.1);
        for (what, number, least, most) in [
            ("ios", self.ios, 2, IOS.min(most_ios(receives))),
            // A Compare occupies two buffers.
            ("buffers", self.buffers, 2, buffers),
            ("transfer_shift", shift, shifts.0, shifts.1),
        ] {
            if !(least..=most).contains(&number) {
                return Err(WorkerError::Range {
                    what,
                    number,
                    least,
                    most,
                });
            }
        }
        Ok(())
    }
}
