//! Effects of completions. They are queued, and carried out at the end of the call that polled the completions.

use crate::handle::{EpKey, RmrKey};

/// An effect of a completion that has not been carried out yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// A DTO of this endpoint failed, so its connection must be broken.
    Failed(EpKey),
    /// A request of an endpoint in DISCONNECT_PENDING is done.
    Progressed(EpKey),
    /// The last bind of an RMR failed, so its window must be unbound by a command. The number is that of the bind. A
    /// later bind replaces the window's binding itself.
    BindFailed(RmrKey, u64),
}
