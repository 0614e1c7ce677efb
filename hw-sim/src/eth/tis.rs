//! TIS: through which a send queue sends. It stands for a transport domain and a priority.

use mlx_prm::Tisc;

/// A transport interface for sending.
#[derive(Clone, Debug)]
pub struct Tis {
    /// As created and modified.
    pub context: Tisc,
}
