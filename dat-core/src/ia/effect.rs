//! What completions leave to be done, until it is done at the end of the call.

use crate::handle::{EpKey, RmrKey};

/// Something a completion leaves to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// A DTO failed: the connection is broken.
    Failed(EpKey),
    /// A request of a draining endpoint is done.
    Progressed(EpKey),
    /// The last bind of an RMR failed.
    BindFailed(RmrKey),
}
