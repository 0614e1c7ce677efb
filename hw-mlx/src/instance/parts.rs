//! What each instance has of the device for itself.

use driver::Block;
use mlx_prm::{UarIndex, UarPage};

use crate::eq::Eq;

/// A UAR page, and the completion event queue that rings it.
pub(crate) struct Parts {
    pub(crate) uar_index: UarIndex,
    pub(crate) uar: Block<UarPage>,
    pub(crate) eq: Eq,
    /// The event queue's, by number.
    pub(crate) vector: usize,
}
