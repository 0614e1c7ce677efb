//! Effects of completions, kept until the end of the call carries them out.

use crate::handle::{EpKey, RmrKey};

/// An effect of a completion that is still to be carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// A DTO failed: the connection is broken.
    Failed(EpKey),
    /// A request of a draining endpoint is done.
    Progressed(EpKey),
    /// The last bind of an RMR failed.
    BindFailed(RmrKey),
}
