//! TIS: a transport domain and a priority for send queues.

use mlx_prm::Tisc;

/// A transport interface for sending.
#[derive(Clone, Debug)]
pub struct Tis {
    /// The context as created and modified.
    pub context: Tisc,
}
